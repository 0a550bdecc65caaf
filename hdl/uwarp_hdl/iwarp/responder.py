"""Responder: Read Requests that were accepted, and Terminates to be sent, become messages (device
behaviour, 7.8 and 7.11).

::

    requests --+--> slot --> messages --> (segmenter ... completer) --> released --+
               |     ^                                                             |
               |     +---------------------- free slots <--------------------------+
               +--> rows, destinations: memory of the slot
               +--> terminates: those that came, in a queue to the event ring

A request takes 4 cycles, more if its memory is in use. Responses of a QP, or from a region, that
``close`` names are dropped: their slots are marked until they are free again, and the segmenter
cuts no more of them. The slots are looked at one a cycle; the closing is done when the segments
that were cut by then are through.
"""

from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import CloseTarget, Parameters
from uwarp.wire import DEFAULT_GRANULE, Opcode

from ..layouts import CloseRequest, ReadRequest, ReceivedTerminate, is_mapped_ipv4
from ..stream.ports import keep_apart
from ..stream.queue import Queue
from .destination import (
    DESTINATION_WORDS,
    HIGH,
    LINK,
    LOW,
    PORT,
    LinkWord,
    PortWord,
    destination_write_layout,
)
from .fetch import message_layout
from .scheduler import qp_width, slot_count, slot_width
from .segment import responding_layout

__all__ = ["Responder"]

_HOP_LIMIT = 64

#: Terminates that may wait for the event ring.
_TOLD = 8


def _queue(shape, depth):
    """Without a register where one LUT RAM holds it."""
    return Queue(shape, depth, registered=depth > 16)


class Responder(wiring.Component):
    """Give each request a slot of its own, behind those of the send rings.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    requests : In(stream of ReadRequest)
        Only while there is ``read_room``, but for Terminates that came.
    terminates : Out(stream of ReceivedTerminate)
    lost : Out(1)
        Strobe: one that came is not told, since 8 wait.
    destination : Out(stream of destination_write_layout)
    rows : Out(stream of message_layout)
        To the memory of the slot, before ``messages``.
    messages : Out(stream of responding_layout)
    released : In(stream of slot)
        The response in this slot is through.
    read_room : Out(1)
        Fewer than ``n_read`` Read Requests and Terminates to be sent wait; it knows of one the
        cycle after it is taken.
    close, close_done : In(CloseRequest), Out(1)
        Responses to be dropped; a strobe when nothing more is read for them.
    look, dropped : In(slot), Out(1)
        Whether the message in a slot is a response that was dropped; combinational.
    between : In(1)
        The segmenter works on no message.
    cut, built : In(1)
        Strobes: a segment is cut; one is built, or will not be.
    busy : Out(1)
        Slots are being made ready after a reset.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        super().__init__(
            {
                "requests": In(stream.Signature(ReadRequest)),
                "terminates": Out(stream.Signature(ReceivedTerminate)),
                "lost": Out(1),
                "destination": Out(stream.Signature(destination_write_layout(parameters))),
                "rows": Out(stream.Signature(message_layout(parameters))),
                "messages": Out(stream.Signature(responding_layout(parameters))),
                "released": In(stream.Signature(slot_width(parameters))),
                "read_room": Out(1),
                "close": In(CloseRequest),
                "close_done": Out(1),
                "look": In(slot_width(parameters)),
                "dropped": Out(1),
                "between": In(1),
                "cut": In(1),
                "built": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n_read, first = self._parameters.n_read, slot_count(self._parameters)
        m.submodules.free = free = _queue(slot_width(self._parameters), n_read)
        m.submodules.waiting = waiting = _queue(responding_layout(self._parameters), n_read)
        wiring.connect(m, waiting.o, wiring.flipped(self.messages))

        sweep = Signal(range(n_read + 1))
        comes = self.requests.p.terminate
        taken = self.requests.valid & self.requests.ready & ~comes
        m.d.comb += [
            self.busy.eq(~sweep[-1]),
            self.read_room.eq(free.o.valid),
            self.released.ready.eq(~self.busy & free.i.ready),
            free.i.p.eq(Mux(self.busy, first + sweep, self.released.p)),
            free.i.valid.eq(self.busy | self.released.valid),
        ]
        with m.If(self.busy):
            m.d.sync += sweep.eq(sweep + 1)

        request, row, place = self.requests.p, self.rows.p, self.destination.p
        m.d.comb += [
            row.slot.eq(free.o.p),
            row.qpn.eq(request.qpn),
            row.opcode.eq(Mux(request.report, Opcode.TERMINATE, Opcode.READ_RESPONSE_RECORD)),
            row.silent.eq(1),
            row.ipv6.eq(~is_mapped_ipv4(request.source_ip)),
            row.length.eq(request.size),
            row.remote_to.eq(request.sink_to),
            row.stag.eq(request.sink_stag),
            row.immediate.eq(request.msn),
            row.address.eq(request.address),
            row.granule_mask.eq(DEFAULT_GRANULE - 1),
            waiting.i.p.slot.eq(free.o.p),
            waiting.i.p.qpn.eq(request.qpn),
            place.address.slot.eq(free.o.p),
        ]

        # A word of the destination a cycle; the row in one of those.
        port, link = Signal(PortWord), Signal(LinkWord)
        m.d.comb += [
            port.dest_ip.eq(request.source_ip[:32]),
            port.dest_port.eq(request.source_port),
            port.vlan.eq(request.sink_stag[16:]),  # of a Terminate the code, else of no meaning
            link.dest_mac.eq(request.source_mac),
            link.hop_limit.eq(_HOP_LIMIT),
        ]
        words = {
            PORT: port.as_value(),
            LOW: request.source_ip[:64],
            HIGH: request.source_ip[64:],
            LINK: Mux(comes, Cat(request.msn, request.qpn), link.as_value()),
        }
        at = Signal(len(words), init=1)  # one of them is 1
        index = Signal(range(len(words)))
        sent = Signal()
        row_taken = Signal()
        last = Signal()
        offered = self.requests.valid & free.o.valid & ~self.busy & ~comes
        stores = self._tell(m, at, index, place.word)
        row_done = row_taken | self.rows.ready
        m.d.comb += [
            index.eq(Cat(at[1] | at[3], at[2] | at[3])),
            last.eq(at[-1] & row_done),
            place.address.index.eq(index),
            place.word.eq(reduce(or_, (at[n].replicate(64) & word for n, word in words.items()))),
            self.destination.valid.eq(offered & (~at[-1] | row_done)),
            self.rows.valid.eq(offered & ~row_taken),
            self.requests.ready.eq(
                Mux(
                    comes,
                    self.lost | (stores & at[-1]),
                    offered & last & self.destination.ready,
                )
            ),
            waiting.i.valid.eq(taken),
            free.o.ready.eq(taken),
        ]
        m.d.comb += sent.eq((self.destination.valid & self.destination.ready) | stores)
        with m.If(sent):
            m.d.sync += at.eq(at.rotate_left(1))
        with m.If(offered):
            m.d.sync += row_taken.eq(row_done & ~taken)
        self._drop(m, taken, request, free.o.p - first)
        return m

    def _tell(self, m, at, index, word):
        """Keep the Terminates that come, a word a cycle, and give them as a whole. Returns whether
        ``word`` of ``index`` is kept."""
        m.submodules.told_words = told_words = Memory(
            shape=64, depth=DESTINATION_WORDS * _TOLD, init=[], attrs={"ram_style": "block"}
        )
        reader, writer = told_words.read_port(), told_words.write_port()
        keep_apart(m, reader, writer)
        came = self.terminates.p
        waits = Signal(range(_TOLD + 1))  # the one that is offered among them
        into, out_of = Signal(range(_TOLD)), Signal(range(_TOLD))
        step = Signal(range(DESTINATION_WORDS))
        arrives = Signal.like(step)
        arriving = Signal()
        reads, fetches = Signal(), Signal()
        told_word = Signal(64)
        stores = Signal()
        comes = self.requests.valid & self.requests.p.terminate
        full = (waits == _TOLD) & at[0]
        kept = stores & at[-1]
        tells = self.terminates.valid & self.terminates.ready
        m.d.comb += [
            self.lost.eq(comes & full),
            stores.eq(comes & ~full),
            writer.addr.eq(Cat(index, into)),
            writer.data.eq(word),
            writer.en.eq(stores),
            reader.addr.eq(Cat(step, out_of)),
        ]
        m.d.sync += [
            waits.eq(waits + kept - tells),
            Cat(told_word, arriving).eq(Cat(reader.data, fetches)),
            fetches.eq(reads),
        ]
        with m.If(arriving):
            m.d.sync += arrives.eq(arrives + 1)
        with m.If(kept):
            m.d.sync += into.eq(into + 1)
        with m.If(tells):
            m.d.sync += self.terminates.valid.eq(0)
        # The next one is not read before this one is taken.
        idle = (waits != 0) & ~self.terminates.valid & ~arriving & ~fetches
        m.d.comb += reads.eq((step != 0) | idle)
        with m.If(reads):
            m.d.sync += step.eq(step + 1)
            with m.If(step == DESTINATION_WORDS - 1):
                m.d.sync += out_of.eq(out_of + 1)
        port = data.View(PortWord, told_word)
        with m.If(arriving):
            with m.Switch(arrives):
                with m.Case(PORT):
                    m.d.sync += [
                        came.source_port.eq(port.dest_port),
                        came.code.eq(port.vlan),
                    ]
                with m.Case(LOW):
                    m.d.sync += came.source_ip[:64].eq(told_word)
                with m.Case(HIGH):
                    m.d.sync += came.source_ip[64:].eq(told_word)
                with m.Case(LINK):
                    m.d.sync += [
                        Cat(came.msn, came.qpn).eq(told_word),
                        self.terminates.valid.eq(1),
                    ]
        return stores

    def _drop(self, m, taken, request, slot):
        """Mark what ``close`` names. ``slot`` counts from the first one of a response."""
        n_read, first = self._parameters.n_read, slot_count(self._parameters)
        qp_bits, region_bits = (
            qp_width(self._parameters),
            exact_log2(self._parameters.n_region),
        )
        # A Terminate's region is one that there is not. ``close`` names no row beyond the tables.
        owner_layout = data.StructLayout({"qpn": qp_bits, "region": region_bits + 1})
        m.submodules.owners = owners = Memory(shape=owner_layout, depth=n_read, init=[])
        owner_look, owner_write = owners.read_port(domain="comb"), owners.write_port()
        # A slot that is free may be marked, too: it loses the mark when it is taken.
        m.submodules.marks = marks = Memory(shape=1, depth=n_read, init=[])
        mark_look, mark_write = marks.read_port(domain="comb"), marks.write_port()
        slot_bits = exact_log2(n_read)
        number = Signal(slot_bits)  # of the slot that is looked at
        under_way = Signal(range(64))
        left = Signal.like(under_way)
        is_named = Signal()
        m.d.comb += [
            owner_write.addr.eq(slot[:slot_bits]),
            owner_write.data.qpn.eq(request.qpn),
            owner_write.data.region.eq(Cat(request.region[:region_bits], request.report)),
            owner_write.en.eq(taken),
            owner_look.addr.eq(number),
        ]
        m.d.sync += under_way.eq(under_way + self.cut - self.built)
        by_qp = self.close.target == CloseTarget.QP
        m.d.comb += [
            mark_look.addr.eq((self.look - first)[:slot_bits]),
            self.dropped.eq((self.look >= first) & mark_look.data),
            is_named.eq(Mux(by_qp, owner_look.data.qpn, owner_look.data.region) == self.close.row),
            mark_write.addr.eq(Mux(taken, slot[:slot_bits], number)),
            mark_write.data.eq(~taken),
            mark_write.en.eq(taken),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += number.eq(0)
                with m.If(self.close.active & ~self.requests.valid):
                    m.next = "MARK"
            with m.State("MARK"):
                with m.If(~taken):
                    m.d.comb += mark_write.en.eq(is_named)
                    m.d.sync += number.eq(number + 1)
                    with m.If(number == n_read - 1):
                        m.next = "TURN"
            with m.State("TURN"):
                # A turn that began before the marks may still cut a segment.
                m.d.sync += left.eq(under_way - self.built)
                with m.If(self.between & ~self.cut):
                    m.next = "BUILD"
            with m.State("BUILD"):
                m.d.sync += left.eq(left - self.built)
                with m.If(left == 0):
                    m.d.comb += self.close_done.eq(1)
                    m.next = "REST"
            with m.State("REST"):
                with m.If(~self.close.active):
                    m.next = "IDLE"
