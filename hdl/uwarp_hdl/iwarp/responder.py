"""Responder: Read Requests that were accepted, and Terminates to be sent, become messages (device
behaviour, 7.8 and 7.11).

::

    requests --+--> slot --> messages --> (segmenter ... completer) --> released --+
               |     ^                                                             |
               |     +---------------------- free slots <--------------------------+
               +--> terminates: those that came, in the same queue to the event ring

A request takes a cycle; what comes of it is offered 3 cycles later. Responses of a QP, or from a
region, that ``close`` names are dropped: their slots are marked, one after the other, until they
are free again, and the segmenter cuts no more of them. That is done when the segments that were cut
by then are through.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import CloseTarget, Parameters
from uwarp.wire import DEFAULT_GRANULE, Opcode

from ..layouts import CloseRequest, ReadRequest, ReceivedTerminate, is_mapped_ipv4
from ..stream.queue import Queue
from .fetch import message_layout
from .scheduler import qp_width, slot_count, slot_width

__all__ = ["Responder"]

_HOP_LIMIT = 64

#: Terminates that may wait for the event ring.
_TOLD = 8


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
    messages : Out(stream of message_layout)
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
                "messages": Out(stream.Signature(message_layout(parameters))),
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
        m.submodules.free = free = Queue(slot_width(self._parameters), n_read)
        m.submodules.waiting = waiting = Queue(ReadRequest, n_read + _TOLD, direct=False)

        waits = Signal(range(n_read + 1))
        told = Signal(range(_TOLD + 1))  # of what is in the queue
        sweep = Signal(range(n_read + 1))
        arrival = self.requests
        accepted = arrival.valid & waiting.i.ready
        taken = accepted & ~arrival.p.terminate
        loses = arrival.p.terminate & (told == _TOLD)
        keeps = accepted & arrival.p.terminate & ~loses
        tells = self.terminates.valid & self.terminates.ready
        returned = self.released.valid & self.released.ready
        m.d.comb += [
            self.busy.eq(sweep != n_read),
            self.read_room.eq(waits != n_read),
            waiting.i.p.eq(arrival.p),
            waiting.i.valid.eq(arrival.valid & ~loses),
            arrival.ready.eq(waiting.i.ready),
            self.lost.eq(accepted & loses),
            self.released.ready.eq(~self.busy & free.i.ready),
            free.i.p.eq(Mux(self.busy, first + sweep, self.released.p)),
            free.i.valid.eq(self.busy | self.released.valid),
        ]
        m.d.sync += [
            waits.eq(waits + taken - returned),
            told.eq(told + keeps - tells),
        ]
        with m.If(self.busy):
            m.d.sync += sweep.eq(sweep + 1)

        request, message = waiting.o.p, self.messages.p
        came = self.terminates.p
        ready = free.o.valid & ~self.busy & ~request.terminate
        m.d.comb += [
            self.terminates.valid.eq(waiting.o.valid & request.terminate),
            came.qpn.eq(request.qpn),
            came.msn.eq(request.msn),
            came.source_ip.eq(request.source_ip),
            came.source_port.eq(request.source_port),
            came.code.eq(request.sink_stag[16:]),
            self.messages.valid.eq(waiting.o.valid & ready),
            waiting.o.ready.eq(
                Mux(request.terminate, self.terminates.ready, self.messages.ready & ready)
            ),
            free.o.ready.eq(self.messages.ready & waiting.o.valid & ready),
            message.slot.eq(free.o.p),
            message.qpn.eq(request.qpn),
            message.opcode.eq(Mux(request.report, Opcode.TERMINATE, Opcode.READ_RESPONSE_RECORD)),
            message.silent.eq(1),
            message.ipv6.eq(~is_mapped_ipv4(request.source_ip)),
            message.length.eq(request.size),
            message.remote_to.eq(request.sink_to),
            message.stag.eq(request.sink_stag),
            message.immediate.eq(request.msn),
            message.dest_ip.eq(request.source_ip),
            message.dest_port.eq(request.source_port),
            message.dest_mac.eq(request.source_mac),
            message.hop_limit.eq(Const(_HOP_LIMIT)),
            message.address.eq(request.address),
            message.granule_mask.eq(DEFAULT_GRANULE - 1),
        ]
        given = self.messages.valid & self.messages.ready
        self._drop(m, given, request, free.o.p - first, returned, waiting.level != told)
        return m

    def _drop(self, m, given, request, slot, returned, waits):
        """Mark what ``close`` names. ``slot`` counts from the first one of a response."""
        n_read, first = self._parameters.n_read, slot_count(self._parameters)
        # A Terminate's region is one that there is not. ``close`` names no row beyond the tables.
        region_width = exact_log2(self._parameters.n_region)
        row_layout = {"qpn": qp_width(self._parameters), "region": region_width + 1}
        m.submodules.owners = owners = Memory(
            shape=data.StructLayout(row_layout), depth=n_read, init=[]
        )
        owner_get, owner_put = owners.read_port(domain="comb"), owners.write_port()
        used, marked = Signal(n_read), Signal(n_read)
        visited = Signal(range(n_read))
        under_way = Signal(range(64))
        left = Signal.like(under_way)
        by_qp = self.close.target == CloseTarget.QP
        m.d.comb += [
            owner_put.addr.eq(slot[: exact_log2(n_read)]),
            owner_put.data.qpn.eq(request.qpn),
            owner_put.data.region.eq(Cat(request.region[:region_width], request.report)),
            owner_put.en.eq(given),
            owner_get.addr.eq(visited),
        ]
        row = Mux(by_qp, owner_get.data.qpn, owner_get.data.region)
        matches = row == self.close.row
        m.d.sync += under_way.eq(under_way + self.cut - self.built)
        is_response = self.look >= first
        m.d.comb += self.dropped.eq(
            is_response & marked.bit_select((self.look - first)[: exact_log2(n_read)], 1)
        )
        marking = Signal()
        for index in range(n_read):
            freed = returned & (self.released.p == first + index)
            with m.If(given & (slot == index)):
                m.d.sync += used[index].eq(1)
            with m.If(marking & matches & used[index] & (visited == index)):
                m.d.sync += marked[index].eq(1)
            with m.If(freed):
                m.d.sync += [used[index].eq(0), marked[index].eq(0)]
        with m.FSM():
            with m.State("IDLE"):
                with m.If(self.close.active & ~waits):
                    m.next = "MARK"
            with m.State("MARK"):
                m.d.comb += marking.eq(1)
                m.d.sync += visited.eq(visited + 1)
                with m.If(visited == n_read - 1):
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
