"""Soft reset, and the gates that keep whole frames whole through it.

::

    request --> HALT: DMA and transmitter run empty --> CLEAR --> RESET (1 cycle) --> SWEEP --> RUN
                                                                    |
    rx --> ReceiveGate --> NIC (reset) --> TransmitGate --> tx

The MAC's sides of the gates see whole frames whatever happens between them.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..interfaces import PacketSignature

__all__ = ["ReceiveGate", "SoftReset", "TransmitGate"]


class SoftReset(wiring.Component):
    """Sequence of a soft reset; after power-up it begins with SWEEP.

    Members
    -------
    request : In(1)
        Strobe.
    quiet : In(1)
        Nothing is on its way to or from the bus or the MAC, with ``halt`` given.
    sweeping : In(1)
        A table or a map is being cleared.
    halt : Out(1)
        Let what has begun on the bus and towards the MAC end, begin nothing.
    reset : Out(1)
        One cycle.
    busy : Out(1)
        From the cycle after ``request`` until the sweep is over.
    """

    request: In(1)
    quiet: In(1)
    sweeping: In(1)
    halt: Out(1)
    reset: Out(1)
    busy: Out(1)

    def elaborate(self, platform):
        m = Module()
        # A register before the one that resets everything, which may stand far from here.
        clears = Signal()
        m.d.sync += self.reset.eq(clears)
        with m.FSM(init="SWEEP") as fsm:
            with m.State("RUN"):
                with m.If(self.request):
                    m.next = "HALT"
            with m.State("HALT"):
                m.d.comb += self.halt.eq(1)
                with m.If(self.quiet):
                    m.d.sync += clears.eq(1)
                    m.next = "CLEAR"
            with m.State("CLEAR"):
                m.d.comb += self.halt.eq(1)
                m.d.sync += clears.eq(0)
                m.next = "RESET"
            with m.State("RESET"):
                m.d.comb += self.halt.eq(1)
                m.next = "SWEEP"
            with m.State("SWEEP"):
                with m.If(~self.sweeping):
                    m.next = "RUN"
            m.d.comb += self.busy.eq(~fsm.ongoing("RUN"))
        return m


class ReceiveGate(wiring.Component):
    """Pass frames that begin while ``open``, whole; drop the others. No latency.

    A frame is cut only by ``cut``, after its cycle; that is for a reset of all that lies behind the
    gate. ``i`` is never held up by a frame that is dropped.

    Members
    -------
    i : In(PacketSignature())
    o : Out(PacketSignature())
    open : In(1)
    cut : In(1)
    """

    i: In(PacketSignature())
    o: Out(PacketSignature())
    open: In(1)
    cut: In(1)

    def elaborate(self, platform):
        m = Module()
        inside = Signal()
        passed = Signal()  # the frame that the input is in is passed
        passing = Signal()
        offered = Signal()  # the first beat was offered and not taken: its fate is decided
        decided = inside | offered
        m.d.comb += [
            passing.eq((passed & decided) | (self.open & ~decided)),
            self.o.payload.eq(self.i.payload),
            self.o.valid.eq(self.i.valid & passing),
            self.i.ready.eq(self.o.ready | ~passing),
        ]
        with m.If(self.i.valid):
            m.d.sync += [passed.eq(passing), offered.eq(~self.i.ready & ~inside)]
            with m.If(self.i.ready):
                m.d.sync += inside.eq(~self.i.payload.last)
        with m.If(self.cut):
            m.d.sync += passed.eq(0)
        return m


class TransmitGate(wiring.Component):
    """Pass frames; from the second cycle of ``halt`` on end the one that has begun and begin none.
    No latency.

    Members
    -------
    i : In(PacketSignature())
    o : Out(PacketSignature())
    halt : In(1)
    idle : Out(1)
        No frame has been offered to ``o`` and not ended.
    """

    i: In(PacketSignature())
    o: Out(PacketSignature())
    halt: In(1)
    idle: Out(1)

    def elaborate(self, platform):
        m = Module()
        begun, begun_next = Signal(), Signal()
        # A register: frames come from far.
        passing = Signal(init=1)
        m.d.sync += [begun.eq(begun_next), passing.eq(begun_next | ~self.halt)]
        m.d.comb += [
            begun_next.eq(Mux(self.o.valid, ~(self.o.ready & self.o.payload.last), begun)),
            self.o.payload.eq(self.i.payload),
            self.o.valid.eq(self.i.valid & passing),
            self.i.ready.eq(self.o.ready & passing),
            self.idle.eq(~begun),
        ]
        return m
