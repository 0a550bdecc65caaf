"""AXI4-Lite subordinate: one access at a time, reads and writes in turn.

::

    AW, W --+
    AR -----+--> access (held until done) --> B or R

An access is asked for in the cycle after its address (and data) came, and answered in the cycle
after ``done``: 6 cycles an access if ``done`` takes three.
"""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import ADDRESS_BITS

from ..data_register import data_register
from ..interfaces import Axi4LiteSignature

__all__ = ["AccessSignature", "Axi4LiteSubordinate"]

_WHOLE_WORD = 0xF


class AccessSignature(wiring.Signature):
    """An access to a register: ``request`` and the rest are held until ``done``, a strobe.

    ``value`` is the register's with ``done``. A request that is withdrawn before (by a reset of its
    initiator) never happened. With ``begins`` a write to ``ahead`` is requested in the next cycle.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "request": Out(1),
                "write": Out(1),
                "address": Out(ADDRESS_BITS),
                "ahead": Out(ADDRESS_BITS),
                "begins": Out(1),
                "data": Out(32),
                "done": In(1),
                "value": In(32),
            }
        )


class Axi4LiteSubordinate(wiring.Component):
    """AXI4-Lite to register accesses. All answers are OKAY (Arm IHI 0022, part B).

    The two low address bits are ignored. A write that does not strobe all four octets is answered
    and does nothing.

    Members
    -------
    bus : In(Axi4LiteSignature(ADDRESS_BITS))
    access : Out(AccessSignature())
    """

    bus: In(Axi4LiteSignature(ADDRESS_BITS))
    access: Out(AccessSignature())

    def elaborate(self, platform):
        m = Module()
        bus = self.bus
        access = self.access
        was_write = Signal()
        address, data, value = (
            data_register(m, output) for output in (access.address, access.data, bus.rdata)
        )
        write_offered = bus.awvalid & bus.wvalid
        take_write = write_offered & ~(bus.arvalid & was_write)
        m.d.comb += access.ahead.eq(bus.awaddr)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [
                    bus.awready.eq(take_write),
                    bus.wready.eq(take_write),
                    bus.arready.eq(~take_write),
                ]
                with m.If(take_write):
                    m.d.sync += [
                        access.write.eq(1),
                        address.eq(bus.awaddr),
                        data.eq(bus.wdata),
                        was_write.eq(1),
                    ]
                    with m.If(bus.wstrb == _WHOLE_WORD):
                        m.d.comb += access.begins.eq(1)
                        m.d.sync += access.request.eq(1)
                        m.next = "ACCESS"
                    with m.Else():
                        m.d.sync += bus.bvalid.eq(1)
                        m.next = "RESPOND"
                with m.Elif(bus.arvalid):
                    m.d.sync += [
                        access.write.eq(0),
                        address.eq(bus.araddr),
                        access.request.eq(1),
                        was_write.eq(0),
                    ]
                    m.next = "ACCESS"
            with m.State("ACCESS"):
                with m.If(access.done):
                    m.d.sync += [
                        access.request.eq(0),
                        value.eq(access.value),
                        bus.bvalid.eq(access.write),
                        bus.rvalid.eq(~access.write),
                    ]
                    m.next = "RESPOND"
            with m.State("RESPOND"):
                with m.If((bus.bvalid & bus.bready) | (bus.rvalid & bus.rready)):
                    m.d.sync += [bus.bvalid.eq(0), bus.rvalid.eq(0)]
                    m.next = "IDLE"
        return m
