"""Write engine: bursts of several units onto one AXI4 write port.

::

    clients[*].bursts --> turns ------> AW register ------------> AW
                             |
                             +-> rest -> second -> head   order of answers
                                                    |             |
    clients[*].beats  -------------------> mux -> W queue of two -|-> W
    clients[*].done   <-------------------------------------------+-- B

One burst is granted every second cycle, and one word leaves a cycle without a gap between bursts of
two words or more, whichever clients they are of. Whether a burst or a word is taken does not depend
on the bus in the same cycle; for a word it is a register. AW runs ahead of W; up to ``OUTSTANDING``
bursts and one more wait for their answers. From a burst to AW: 1 cycle if it is the first client's
and no other waits, 2 for others; from a word to W: 1 cycle, and not before the cycle after its
burst was granted (two later, if that was the cycle in which the last word of the only burst left);
from B to ``done``: 1 cycle.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..choice import chosen_item
from ..data_register import data_register
from ..interfaces import WriteClientSignature
from ..stream.queue import Queue
from ..stream.roomy_fifo import RoomyFifo
from .channels import INCR, OUTSTANDING, SIZE_8_OCTETS, WRITE_CHANNELS
from .turns import Turns

__all__ = ["WriteArbiter"]


class WriteArbiter(wiring.Component):
    """Write bursts of ``count`` clients in turn; one ID, so answers come in the order of bursts.

    A client that announces a burst and does not bring its words holds up all others.

    Parameters
    ----------
    count : int
        Clients.

    Members
    -------
    clients : In(WriteClientSignature()).array(count)
    bus : Out(WRITE_CHANNELS)
    failed : Out(1)
        Strobe: a burst was answered with an error.
    halt : In(1)
        From the next cycle on no further burst is granted; those granted run to their end.
    idle : Out(1)
        Nothing is on its way to the bus or unanswered.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        super().__init__(
            {
                "clients": In(WriteClientSignature()).array(count),
                "bus": Out(WRITE_CHANNELS),
                "failed": Out(1),
                "halt": In(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.turns = turns = Turns(self._count)
        # A bit for each client: that takes no decoder, and up to four no more LUT RAM.
        # A burst comes there a cycle late, or later if there was no room: then none is granted. It
        # is there before it can be answered: its last word comes to W two cycles after its grant.
        m.submodules.answer_order = answer_order = Queue(self._count, OUTSTANDING, eager=False)
        bus = self.bus

        # Bursts to AW.
        address_free = ~bus.awvalid | bus.awready
        grant = turns.grant
        # From a register: so no path goes from the bus to a client.
        may = Signal(init=1)
        m.d.sync += may.eq(address_free & ~grant & ~self.halt & answer_order.i.ready)
        orders = answer_order.i
        m.d.sync += orders.valid.eq(grant | (orders.valid & ~orders.ready))
        order = data_register(m, orders.payload)
        with m.If(~orders.valid):
            m.d.sync += order.eq(turns.turn)
        burst = chosen_item(~turns.away, [client.bursts.payload for client in self.clients])
        requests = Cat(client.bursts.valid for client in self.clients)
        m.d.comb += [
            turns.requests.eq(requests),
            turns.may.eq(may),
            bus.awsize.eq(SIZE_8_OCTETS),
            bus.awburst.eq(INCR),
        ]
        for is_its, client in zip(turns.turn, self.clients, strict=True):
            m.d.comb += client.bursts.ready.eq(may & is_its)
        address, beats = data_register(m, bus.awaddr), data_register(m, bus.awlen)
        with m.If(address_free):
            m.d.sync += [
                bus.awvalid.eq(grant),
                address.eq(burst.address),
                beats.eq(burst.beats),
            ]

        # Whose words are taken, and whose come next: no bit is set where there is no burst. So what
        # is known late, that the last word leaves, moves no more than these. A burst with words to
        # come is unanswered, so of those that are neither ``rest`` has room for all.
        head, second = Signal(self._count), Signal(self._count)
        m.submodules.rest = rest = RoomyFifo(self._count, OUTSTANDING)
        granted = turns.turn & requests & may.replicate(self._count)
        leaves = Signal()
        waiting = Signal()
        m.d.comb += [
            waiting.eq(second.any() | rest.holds),
            rest.last.eq(turns.turn),
            rest.put.eq(grant & waiting),
            rest.take.eq(rest.holds & ~second.any()),
        ]
        moves = leaves | ~head.any()
        head_next = Signal.like(head)
        m.d.comb += head_next.eq(
            Mux(leaves, 0, head) | Mux(moves, second, 0) | Mux(head.any() | waiting, 0, granted)
        )
        m.d.sync += head.eq(head_next)
        with m.If(second.any()):
            with m.If(moves):
                m.d.sync += second.eq(0)
        with m.Elif(rest.holds):
            m.d.sync += second.eq(rest.first)
        with m.Elif(head.any()):
            m.d.sync += second.eq(granted)

        # Words to W: the client at the head may bring one if there is room, by the cycle before.
        m.submodules.words = words = Queue(self.clients[0].beats.payload.shape(), 2)
        open_to = Signal(self._count)
        # Kept apart, for what comes of them late is to go through few gates.
        comes, is_last = Signal(attrs={"keep": 1}), Signal(attrs={"keep": 1})
        word_free = ~bus.wvalid | bus.wready | ~(comes | ~words.i.ready)
        m.d.sync += open_to.eq(Mux(word_free, head_next, 0))
        m.d.comb += [
            comes.eq((open_to & Cat(client.beats.valid for client in self.clients)).any()),
            is_last.eq((head & Cat(client.beats.p.last for client in self.clients)).any()),
            leaves.eq(comes & is_last),
            words.i.payload.eq(
                chosen_item(head, [client.beats.payload for client in self.clients])
            ),
            words.i.valid.eq(comes),
            bus.wvalid.eq(words.o.valid),
            bus.wdata.eq(words.o.payload.data),
            bus.wstrb.eq(words.o.payload.strobe),
            bus.wlast.eq(words.o.payload.last),
            words.o.ready.eq(bus.wready),
        ]
        for is_its, client in zip(open_to, self.clients, strict=True):
            m.d.comb += client.beats.ready.eq(is_its)

        # Answers to their clients.
        m.d.comb += [bus.bready.eq(1), answer_order.o.ready.eq(bus.bvalid)]
        answering = Signal()
        m.d.sync += [answering.eq(bus.bvalid), self.failed.eq(bus.bvalid & bus.bresp[1])]
        for index, client in enumerate(self.clients):
            is_client = bus.bvalid & answer_order.o.valid & answer_order.o.payload[index]
            m.d.sync += [client.done.eq(is_client), client.error.eq(is_client & bus.bresp[1])]

        m.d.comb += self.idle.eq(
            ~bus.awvalid & ~orders.valid & ~answer_order.o.valid & ~answering & ~(self.halt & may)
        )
        return m
