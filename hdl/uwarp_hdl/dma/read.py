"""Read engine: bursts of several units onto one AXI4 read port.

::

    clients[*].bursts --> turns ------> AR register ---------> AR
                             |
                             +-> order of bursts
                                        |
    clients[*].beats  <-------- R register <----------------- R

One burst is granted every second cycle, one word a cycle comes back. From a burst to AR: 1 cycle if
it is that of the client ``parked`` and no other waits, 2 for others; from R to a client's word: 1
cycle. Up to ``OUTSTANDING`` bursts wait for their words.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..choice import chosen_item
from ..data_register import data_register
from ..interfaces import ReadClientSignature
from ..layouts import ReadBeat
from ..stream.queue import Queue
from .channels import INCR, OUTSTANDING, READ_CHANNELS, SIZE_8_OCTETS
from .turns import Turns

__all__ = ["ReadArbiter"]


class ReadArbiter(wiring.Component):
    """Read bursts of ``count`` clients in turn; a single ID, so words come in the order of bursts.

    A client that does not take its words holds up all others. A word whose answer is SLVERR or
    DECERR has ``error``.

    Parameters
    ----------
    count : int
        Clients.
    parked : int
        The client whose burst waits least.

    Members
    -------
    clients : In(ReadClientSignature()).array(count)
    bus : Out(READ_CHANNELS)
    failed : Out(1)
        Strobe: a word of the burst that has just ended was answered with an error.
    halt : In(1)
        From the next cycle on no further burst is granted; those granted run to their end.
    idle : Out(1)
        No word is expected from the bus or on its way to a client.
    """

    def __init__(self, count: int, parked: int = 0) -> None:
        self._count = count
        self._parked = parked
        super().__init__(
            {
                "clients": In(ReadClientSignature()).array(count),
                "bus": Out(READ_CHANNELS),
                "failed": Out(1),
                "halt": In(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.turns = turns = Turns(self._count, self._parked)
        # A bit for each client: that takes no decoder, and up to four no more LUT RAM.
        m.submodules.order = order = Queue(self._count, OUTSTANDING - 1, eager=False)
        bus = self.bus

        # Bursts to AR.
        address_free = ~bus.arvalid | bus.arready
        burst = chosen_item(~turns.away, [client.bursts.payload for client in self.clients])
        # From a register: so no path goes from the bus to a client.
        may = Signal(init=1)
        m.d.sync += may.eq(address_free & ~turns.grant & ~self.halt & order.i.ready)
        # A burst is in order a cycle late, or later if there was no room: then none is granted.
        m.d.sync += order.i.valid.eq(turns.grant | (order.i.valid & ~order.i.ready))
        turn = data_register(m, order.i.payload)
        with m.If(turns.grant):
            m.d.sync += turn.eq(turns.turn)
        m.d.comb += [
            turns.requests.eq(Cat(client.bursts.valid for client in self.clients)),
            turns.may.eq(may),
            bus.arsize.eq(SIZE_8_OCTETS),
            bus.arburst.eq(INCR),
        ]
        for is_its, client in zip(turns.turn, self.clients, strict=True):
            m.d.comb += client.bursts.ready.eq(may & is_its)
        address, beats = data_register(m, bus.araddr), data_register(m, bus.arlen)
        with m.If(address_free):
            m.d.sync += [
                bus.arvalid.eq(turns.grant),
                address.eq(burst.address),
                beats.eq(burst.beats),
            ]

        # Words to the client of the oldest burst.
        beat = Signal(ReadBeat, reset_less=True)
        valid = Signal(self._count)
        taken = Cat(client.beats.ready for client in self.clients)
        free = ~(valid & ~taken).any()
        # A word that is answered at once may come before its burst is in order.
        m.d.comb += [
            bus.rready.eq(free & order.o.valid),
            order.o.ready.eq(free & bus.rvalid & bus.rlast),
        ]
        with m.If(free):
            m.d.sync += [
                valid.eq(Mux(bus.rvalid & order.o.valid, order.o.payload, 0)),
                beat.data.eq(bus.rdata),
                beat.last.eq(bus.rlast),
                beat.error.eq(bus.rresp[1]),
            ]
        spoiled = Signal()
        m.d.sync += self.failed.eq(0)
        with m.If(bus.rvalid & bus.rready):
            m.d.sync += [
                spoiled.eq((spoiled | bus.rresp[1]) & ~bus.rlast),
                self.failed.eq((spoiled | bus.rresp[1]) & bus.rlast),
            ]
        for index, client in enumerate(self.clients):
            m.d.comb += [client.beats.payload.eq(beat), client.beats.valid.eq(valid[index])]

        m.d.comb += self.idle.eq(
            ~bus.arvalid & ~order.i.valid & ~order.o.valid & ~valid.any() & ~(self.halt & may)
        )
        return m
