"""The event ring: asynchronous events into host memory (device behaviour, 6.5).

::

    requests[*] -+-> turns --> room in the ring? --> write burst of 4 words --> written
    terminates --'                       '--> lost
    full, touched --> [FullQueues] --> requests (once for each CQ)
"""

from amaranth.hdl import C, Cat, Module, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import EVENT, EVENT_TIME_LOG2, Counter, EventType, Parameters

from ..choice import chosen, word_after
from ..compare import at_least
from ..data_register import data_register
from ..interfaces import WriteClientSignature
from ..layouts import EventRequest, EventRing, ReceivedTerminate, structure_layout
from ..ring import ring_entry
from ..stream.queue import Queue

__all__ = ["EventUnit", "FullQueues"]

_EVENT_LAYOUT = structure_layout(EVENT)
_EVENT_BEATS = EVENT.size // 8


class EventUnit(wiring.Component):
    """Write events into their ring, or count them as lost if it is full or not in use.

    An event takes 6 cycles, if the bus takes its words at once, one that is lost 2; if the client
    whose turn is next has none, up to a cycle more for each that has none. The bus may have any
    number of them unanswered.

    Parameters
    ----------
    clients : int
        Units that raise events.

    Members
    -------
    requests : In(stream of EventRequest).array(clients)
    terminates : In(stream of ReceivedTerminate)
        Taken when it is written or lost: nothing else keeps it.
    ring : In(EventRing)
    clear : In(1)
        Strobe: the ring begins anew, not later than in the first cycle in which ``ring`` is new.
    consumer : In(32)
    time : In(47)
        Cycles; goes into the event when its writing begins.
    write : Out(WriteClientSignature)
    written : Out(1)
        Strobe: an event is in memory.
    events : Out(len(Counter))
        EVENTS and EVENTS_LOST.
    """

    def __init__(self, clients: int) -> None:
        self._clients = clients
        super().__init__(
            {
                "requests": In(stream.Signature(EventRequest)).array(clients),
                "terminates": In(stream.Signature(ReceivedTerminate)),
                "ring": In(EventRing),
                "clear": In(1),
                "consumer": In(32),
                "time": In(47),
                "write": Out(WriteClientSignature()),
                "written": Out(1),
                "events": Out(len(Counter)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        ring = self.ring
        # One bit: whose event is at hand; a terminate's is the last.
        owner = Signal(self._clients + 1)
        # Whose turn is next; it goes on while there is no event of his.
        turn = Signal.like(owner, init=1)
        is_asked = Signal()
        is_terminate = owner[-1]
        producer = Signal(32)
        occupied = Signal(32, reset_less=True)
        full = Signal()
        entry_bits = exact_log2(EVENT.size)
        entry = Signal(64 - entry_bits, reset_less=True)
        phase = Signal(reset_less=True)
        written_phase = Signal(reset_less=True)
        time = Signal(_EVENT_LAYOUT["time_low"].width, reset_less=True)
        event = Signal(_EVENT_LAYOUT)
        burst, beat = self.write.bursts, self.write.beats
        size = Signal(16, reset_less=True)
        in_ring = Signal(15, reset_less=True)
        m.d.sync += [
            size.eq(Cat(ring.log2 == bit for bit in range(len(size)))),
            in_ring.eq(Cat(ring.log2 > bit for bit in range(len(in_ring)))),
            occupied.eq(producer - self.consumer),
            full.eq(~ring.enabled | (occupied == size)),
            entry.eq(ring_entry(ring.address[entry_bits:], producer, in_ring)),
            phase.eq(~(producer & size).any()),
            self.written.eq(self.write.done),
            self.events.eq(0),
        ]
        low = _EVENT_LAYOUT["time_low"].width
        terminate = self.terminates.p
        numbers = [*(port.p.number for port in self.requests), terminate.qpn]
        types = [*(port.p.type for port in self.requests), C(EventType.TERMINATE, 8)]
        # Bit ``n``: word ``n`` is the next to be offered; the last: all have been.
        select = Signal(_EVENT_BEATS + 1)
        # Those of an address are a Terminate's.
        address = _EVENT_LAYOUT["source_ip"]
        address_words = range(address.offset // 64, (address.offset + address.width) // 64)
        selected = [
            bit & is_terminate if number in address_words else bit
            for number, bit in enumerate(select[:-1])
        ]
        moves = Signal()
        # Those of the cycle before, but none that was taken then or is being taken.
        ports = (*self.requests, self.terminates)
        requests = Signal(len(ports))
        m.d.sync += requests.eq(Cat(port.valid & ~port.ready for port in ports))
        taking = Cat(port.ready for port in ports)
        m.d.comb += [
            is_asked.eq((requests & ~taking & turn).any()),
            event.type.eq(chosen(owner, types)),
            event.number.eq(chosen(owner, numbers)),
            event.time_low.eq(time),
            # In the first word, which leaves when the time is taken.
            event.time_high.eq(self.time[EVENT_TIME_LOG2 + low :]),
            event.phase.eq(written_phase),
            burst.p.beats.eq(_EVENT_BEATS - 1),
            beat.p.strobe.eq(0xFF),
            beat.p.last.eq(select[-1]),
            beat.p.data.eq(word_after(m, event, selected, moves)),
        ]
        m.d.comb += event.source_ip.eq(terminate.source_ip)
        with m.If(is_terminate):
            m.d.comb += [event[name].eq(terminate[name]) for name in ("msn", "source_port", "code")]
        address = data_register(m, burst.p.address)
        with m.If(burst.ready):
            m.d.sync += burst.valid.eq(0)

        # What ``full``, ``entry`` and ``phase`` say is right two cycles after the index moved.
        moved = Signal(2)
        m.d.sync += moved.eq(moved[1:])
        decided, ended = Signal(), Signal()
        for is_chosen, port in zip(owner[:-1], self.requests, strict=True):
            m.d.sync += port.ready.eq(decided & is_chosen)
        m.d.sync += self.terminates.ready.eq(ended & is_terminate)
        with m.FSM() as fsm:
            with m.State("CHOOSE"):
                m.d.sync += [owner.eq(turn), select.eq(1)]
                with m.If(is_asked):
                    m.next = "DECIDE"
            with m.State("DECIDE"):
                m.d.comb += moves.eq(1)
                m.d.sync += [
                    written_phase.eq(phase),
                    time.eq(self.time[EVENT_TIME_LOG2:]),
                ]
                with m.If(~moved.any() & ~self.clear & ~burst.valid):
                    m.d.comb += decided.eq(1)
                    with m.If(full):
                        m.d.comb += ended.eq(1)
                        m.d.sync += self.events[Counter.EVENTS_LOST].eq(1)
                        m.next = "CHOOSE"
                    with m.Else():
                        m.d.sync += [
                            self.events[Counter.EVENTS].eq(1),
                            address.eq(Cat(C(0, entry_bits), entry)),
                            burst.valid.eq(1),
                            producer.eq(producer + 1),
                            moved.eq(0b11),
                            select.eq(select << 1),
                        ]
                        m.next = "WRITE"
            with m.State("WRITE"):
                m.d.comb += [beat.valid.eq(1), moves.eq(beat.ready)]
                with m.If(beat.ready):
                    m.d.sync += select.eq(select << 1)
                    with m.If(beat.p.last):
                        m.d.comb += ended.eq(1)
                        m.next = "CHOOSE"
        with m.If(~is_asked | fsm.ongoing("CHOOSE")):
            m.d.sync += turn.eq(turn.rotate_left(1))
        with m.If(self.clear):
            m.d.sync += [producer.eq(0), moved.eq(0b11)]
        return m


class FullQueues(wiring.Component):
    """CQ_FULL events: one for the first datagram dropped since a CQ was last ``touched``.

    A drop that finds 16 events waiting is not the first: the CQ's next one tells.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    full, full_cq : In
        Strobe: a datagram was dropped for want of a slot; at most one in 4 cycles.
    touched, touched_cq : In
        Strobe: a doorbell or the row of this CQ was written; at most one in 2 cycles.
    requests : Out(stream of EventRequest)
    busy : Out(1)
        The CQs are being cleared after a reset, ``n_cq`` cycles.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._n_cq = parameters.n_cq
        super().__init__(
            {
                "full": In(1),
                "full_cq": In(16),
                "touched": In(1),
                "touched_cq": In(16),
                "requests": Out(stream.Signature(EventRequest)),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = (self._n_cq - 1).bit_length()
        m.submodules.told = told = memory.Memory(shape=1, depth=self._n_cq, init=[])
        get = told.read_port(domain="comb")
        put = told.write_port()
        m.submodules.waiting = waiting = Queue(width, 16, registered=False)
        sweep = Signal(width)
        cq = Signal(width, reset_less=True)
        pending = Signal()

        # A touch takes the write port; a drop waits for the cycle after.
        m.d.comb += [
            get.addr.eq(cq),
            waiting.i.payload.eq(cq),
            self.requests.payload.type.eq(EventType.CQ_FULL),
            self.requests.payload.number.eq(waiting.o.payload),
            self.requests.valid.eq(waiting.o.valid),
            waiting.o.ready.eq(self.requests.ready),
        ]
        with m.If(self.busy):
            m.d.comb += [put.addr.eq(sweep), put.en.eq(1)]
            m.d.sync += [sweep.eq(sweep + 1), self.busy.eq(sweep != self._n_cq - 1)]
        with m.Elif(self.touched):
            m.d.comb += [put.addr.eq(self.touched_cq), put.en.eq(1)]
        with m.Elif(pending):
            m.d.comb += [
                waiting.i.valid.eq(~get.data),
                put.addr.eq(cq),
                put.data.eq(1),
                put.en.eq(waiting.i.valid & waiting.i.ready),
            ]
            m.d.sync += pending.eq(0)
        with m.If(self.full):
            m.d.sync += [pending.eq(~at_least(self.full_cq, self._n_cq)), cq.eq(self.full_cq)]
        return m
