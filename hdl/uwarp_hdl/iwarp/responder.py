"""Responder: Read Requests that were accepted, and Terminates to be sent, become messages (device
behaviour, 7.8 and 7.11).

::

    requests --+--> slot --> messages --> (segmenter ... completer) --> released --+
               |     ^                                                             |
               |     +---------------------- free slots <--------------------------+
               +--> rows, destinations: memory of the slot
               +--> destinations: those that came --> terminates, to the event ring

A request takes 7 cycles, more if its memory is in use. Responses of a QP, or from a region, that
``close`` names are dropped: their slots are marked until they are free again, and the segmenter
cuts no more of them. A slot is looked at in two cycles; the closing is done when the segments that
were cut by then are through.

The words of destinations, those of the WQE fetch among them, are written the cycle after they are
given: each kind of word has a register of its own, which is 0 when another one is written, so that
an OR chooses.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import CloseTarget, Parameters
from uwarp.wire import DEFAULT_GRANULE, Opcode

from ..choice import chosen_after
from ..data_register import data_register
from ..interfaces import TableReadSignature
from ..layouts import CloseRequest, ReadRequest, ReceivedTerminate, is_mapped_ipv4
from ..stream.queue import Queue
from .destination import (
    DESTINATION_WORDS,
    HIGH,
    LINK,
    LOW,
    PORT,
    TOLD,
    LinkWord,
    PortWord,
    destination_address,
    destination_write_layout,
)
from .fetch import message_layout
from .scheduler import qp_width, slot_count, slot_width
from .segment import responding_layout

__all__ = ["Responder"]

_HOP_LIMIT = 64


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
    fetched, fetched_valid : In(destination_write_layout), In(1)
        A word of a destination that is to be written.
    written, written_valid : Out(destination_write_layout), Out(1)
        To the memory of destinations: ``fetched`` of two cycles before, or one of a request's
        words.
    destination, destination_taken, destination_asked : Out(TableReadSignature), In(1), Out(1)
        Words of destinations, of two cycles before; another unit uses the port in this cycle, or
        else this one does.
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
                "fetched": In(destination_write_layout(parameters)),
                "fetched_valid": In(1),
                "written": Out(destination_write_layout(parameters)),
                "written_valid": Out(1),
                "destination": Out(TableReadSignature(64, destination_address(parameters).size)),
                "destination_taken": In(1),
                "destination_asked": Out(1),
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
        # Nothing begins in the cycle in which a request is taken, which is known from a register.
        present = self.requests.valid & ~self.requests.ready
        taken = self.requests.valid & self.requests.ready & ~comes
        fetched, fetched_valid = Signal.like(self.fetched, reset_less=True), Signal()
        m.d.sync += [fetched.eq(self.fetched), fetched_valid.eq(self.fetched_valid)]
        m.d.comb += [
            self.busy.eq(~sweep[-1]),
            self.read_room.eq(free.o.valid),
            self.released.ready.eq(~self.busy & free.i.ready),
            free.i.p.eq(Mux(self.busy, first + sweep, self.released.p)),
            free.i.valid.eq(self.busy | self.released.valid),
        ]
        with m.If(self.busy):
            m.d.sync += sweep.eq(sweep + 1)

        request, row = self.requests.p, self.rows.p
        m.d.comb += [
            row.slot.eq(free.o.p),
            row.qpn.eq(request.qpn),
            row.opcode.eq(Mux(request.report, Opcode.TERMINATE, Opcode.READ_RESPONSE_RECORD)),
            row.ipv6.eq(~is_mapped_ipv4(request.source_ip)),
            row.length.eq(request.size),
            row.remote_to.eq(request.sink_to),
            row.stag.eq(request.sink_stag),
            row.immediate.eq(request.msn),
            row.address.eq(request.address),
            row.granule_mask.eq(DEFAULT_GRANULE - 1),
            waiting.i.p.slot.eq(free.o.p),
            waiting.i.p.qpn.eq(request.qpn),
        ]

        # A word of the destination a cycle; the row in one of those.
        at = Signal(DESTINATION_WORDS, init=1)  # one of them is 1
        row_taken = Signal()
        told_slot, has_room = self._tell(m, at, present)
        # From the cycle after that in which there is a slot for it, and one too long.
        works = Signal()
        puts, done = Signal(), Signal()
        m.d.comb += [
            puts.eq(works & ~self.requests.ready & ~fetched_valid & (~at[-1] | row_taken | comes)),
            done.eq(puts & at[-1]),
            waiting.i.valid.eq(taken),
            free.o.ready.eq(taken),
        ]
        m.d.sync += [
            self.lost.eq(present & comes & ~has_room),
            self.requests.ready.eq(done | (present & comes & ~has_room)),
            works.eq(present & Mux(comes, has_room, free.o.valid & ~self.busy)),
        ]
        with m.If(puts):
            m.d.sync += at.eq(at.rotate_left(1))
        # From registers: what is ready for the row is known late, and nobody waits for a request.
        row_leaves = self.rows.valid & self.rows.ready
        m.d.sync += [
            self.rows.valid.eq(works & ~comes & ~row_taken & ~row_leaves),
            row_taken.eq((row_taken | row_leaves) & ~taken),
        ]
        self._write(m, fetched, fetched_valid, at, puts, comes, Mux(comes, told_slot, free.o.p))
        self._drop(m, taken, request, free.o.p - first)
        return m

    def _write(self, m, fetched, fetched_valid, at, puts, comes, slot):
        """Words of destinations. Of the low halves of PORT and LOW there is one, for both. Of a
        Terminate that came the tag is the code, of a Read Request of no meaning."""
        request, written = self.requests.p, self.written
        port, link = Signal(PortWord), Signal(LinkWord)
        m.d.comb += [
            port.dest_port.eq(request.source_port),
            port.vlan.eq(request.sink_stag[16:]),
            link.dest_mac.eq(request.source_mac),
            link.hop_limit.eq(_HOP_LIMIT),
        ]
        assert (PORT, LOW) == (0, 1)
        # Whether or not it is written, so that what is late is late for the enable only.
        own = ~fetched_valid
        choices = (
            (fetched_valid, fetched.word),
            (own & (at[PORT] | at[LOW]), request.source_ip[:32]),
            (own & at[PORT], port.as_value()),
            (own & at[LOW], Cat(Const(0, 32), request.source_ip[32:64])),
            (own & at[HIGH], request.source_ip[64:]),
            (own & at[LINK] & ~comes, link.as_value()),
            (own & at[LINK] & comes, Cat(request.msn, request.qpn)),
        )
        m.d.comb += written.word.eq(chosen_after(m, choices, "word"))
        address = data_register(m, written.address)
        m.d.sync += [
            self.written_valid.eq(fetched_valid | puts),
            address.index.eq(Cat(at[1] | at[3], at[2] | at[3])),
            address.slot.eq(slot),
        ]
        with m.If(fetched_valid):
            m.d.sync += address.eq(fetched.address)

    def _tell(self, m, at, present):
        """Give the Terminates that came, of which a word a cycle is read. Returns the slot of the
        one that comes, and whether it is kept."""
        came = data_register(m, self.terminates.p)
        address = Signal(destination_address(self._parameters))
        waits = Signal(range(TOLD + 1))  # the one that is offered among them
        into, out_of = Signal(range(TOLD)), Signal(range(TOLD))
        step = Signal(range(DESTINATION_WORDS))
        comes, arrives = Signal(DESTINATION_WORDS), Signal(DESTINATION_WORDS)
        fetches = Signal()
        given = Signal()
        all_wait = Signal()
        full = Signal()
        waits_next = Signal.like(waits)
        told = Signal()  # one was taken, which is known late: it counts until the next cycle
        terminate = self.requests.p.terminate
        kept = self.requests.valid & self.requests.ready & terminate & ~self.lost
        tells = self.terminates.valid & self.terminates.ready
        word = self.destination.row
        m.d.comb += [
            full.eq(all_wait & at[0]),
            waits_next.eq(waits + kept - told),
            address.slot.eq(Cat(out_of, Const(-1, len(address.slot) - len(out_of)))),
            address.index.eq(step),
            self.destination.index.eq(address),
            self.destination_asked.eq(fetches),
            given.eq(fetches & ~self.destination_taken),
        ]
        m.d.sync += [
            told.eq(tells),
            waits.eq(waits_next),
            all_wait.eq(waits_next == TOLD),
            comes.eq(Mux(given, 1 << step, 0)),
            arrives.eq(comes),
        ]
        # The next one is not read before this one is taken.
        waits_now = (waits != 0) & ~told
        with m.If(waits_now & ~self.terminates.valid & ~comes.any() & ~arrives.any()):
            m.d.sync += fetches.eq(1)
        with m.If(given):
            m.d.sync += step.eq(step + 1)
            with m.If(step == DESTINATION_WORDS - 1):
                m.d.sync += [fetches.eq(0), out_of.eq(out_of + 1)]
        with m.If(kept):
            m.d.sync += into.eq(into + 1)
        with m.If(tells):
            m.d.sync += self.terminates.valid.eq(0)
        port = data.View(PortWord, word)
        with m.If(arrives[PORT]):
            m.d.sync += [came.source_port.eq(port.dest_port), came.code.eq(port.vlan)]
        with m.If(arrives[LOW]):
            m.d.sync += came.source_ip[:64].eq(word)
        with m.If(arrives[HIGH]):
            m.d.sync += came.source_ip[64:].eq(word)
        with m.If(arrives[LINK]):
            m.d.sync += [Cat(came.msn, came.qpn).eq(word), self.terminates.valid.eq(1)]
        return Cat(into, Const(-1, len(address.slot) - len(into))), ~full

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
        # Known in the cycle after it is active, which is the first in which an owner is looked at.
        close_row = Signal.like(self.close.row, reset_less=True)
        by_qp = Signal(reset_less=True)
        m.d.sync += [
            close_row.eq(self.close.row),
            by_qp.eq(self.close.target == CloseTarget.QP),
        ]
        m.d.comb += [
            mark_look.addr.eq((self.look - first)[:slot_bits]),
            self.dropped.eq((self.look >= first) & mark_look.data),
            mark_write.addr.eq(Mux(taken, slot[:slot_bits], number)),
            mark_write.data.eq(~taken),
            mark_write.en.eq(taken),
        ]
        m.d.sync += is_named.eq(
            Mux(by_qp, owner_look.data.qpn, owner_look.data.region) == close_row
        )
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += number.eq(0)
                with m.If(self.close.active & ~self.requests.valid):
                    m.next = "LOOK"
            with m.State("LOOK"):
                with m.If(~taken):
                    m.next = "MARK"
            with m.State("MARK"):
                m.next = "LOOK"
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
