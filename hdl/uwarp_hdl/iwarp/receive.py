"""The receive side past the verdict: datagrams into memory, validity maps and completions.

datagrams -----+-> [SegmentCheck] -> [Dispatch] ------------> [CompletionQueue] -> completions
read_openings -'    |         |       |  |    |  '-> [MapSnapshot] --^     |
               tables     [Receive-   |  |    '----> [ValidityMap]         '--> map_write
                           Queue]     |  |
requests <----------------------------'  v
payload ----------------------> [Placer] --> payload_write

faults of both writes --> [FailedQueuePairs] --> failed: to the check, the completions, and out
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import TICK_CYCLES, Counter, Parameters

from ..interfaces import (
    CompletionSignature,
    CreditSignature,
    ReadClientSignature,
    TableReadSignature,
    WriteClientSignature,
)
from ..layouts import (
    QP_ROW,
    REGION_ROW,
    CloseRequest,
    Datagram,
    EventRequest,
    PacketBeat,
    ReadOpening,
    ReadRequest,
    RingDoorbell,
)
from ..stream.queue import Queue
from .check import SegmentCheck
from .completion_queue import CompletionQueue
from .dispatch import Dispatch
from .faults import FailedQueuePairs
from .message_close import MessageClose
from .place import Placer
from .receive_layouts import PlaceCommand, failed_layout
from .receive_queue import ReceiveQueue
from .snapshot import MapSnapshot
from .validity_map import ValidityMap

__all__ = ["DatagramReceiver"]


class DatagramReceiver(wiring.Component):
    """Sections 3 to 5 of the device behaviour, and the receive side of section 6.

    A word of payload a cycle; a Write, a single Write-Record or a segment of an open one in at most
    10 cycles, a Send in 11, a segment of an open one or of a Read in 12. A Send whose WQE has not
    been read ahead waits for it.

    Parameters
    ----------
    parameters : Parameters
    datagrams_ahead : int
        Datagrams that may wait in the queue that offers them.

    Members
    -------
    datagrams : In(stream of Datagram)
    waiting, more : In(1)
        A datagram waits to be offered; another copy follows of the one that is offered.
    payload : In(stream of PacketBeat)
        Words of the datagrams' payloads, in order.
    read_openings : In(stream of ReadOpening)
        Reads to be opened. Each is taken after at most one datagram more.
    opened, opened_ok : Out(1)
        Strobe for each of those, in order; with ``opened_ok`` it is open.
    trackers_full : Out(1)
        No tracker is free.
    requests : Out(stream of ReadRequest)
        Read Requests accepted, Terminates to be sent, and those that came.
    read_room : In(1)
        One of the first two can be taken. Right from the cycle after the last was taken.
    time : In(47)
        Cycles.
    qp, region : Out(TableReadSignature)
    doorbells : In(stream of RingDoorbell)
        Of receive rings.
    credits : Out(CreditSignature)
    wqe_read : Out(ReadClientSignature)
    payload_write, map_write : Out(WriteClientSignature)
        Of one bus: at most one of them is answered in a cycle.
    completions : Out(CompletionSignature)
        In the order in which they came about, each when its payload and map are in memory.
    close, close_done : In(CloseRequest), Out(1)
        Open messages to be closed; a strobe when the CQEs of all of them are in memory.
    unwritten, written : In(8), In(1)
        ``completions`` offered, or taken and not in memory; a strobe for each that is, in order.
    qp_written, qp_written_qpn : In
        Strobe: the row of this QP is written.
    failed : Out(failed_layout)
        QPs that have failed (section 8).
    cq_full, cq_full_cq : Out
        Strobe: a datagram was dropped for want of a slot in this CQ.
    event_requests : Out(stream of EventRequest).array(2)
        Of writes of payload and maps, and of reads of WQEs, that failed.
    events : Out
        Strobes by Counter: RX_PLACED and the drops of section 3.
    open_messages : Out(16)
        Messages open or completing, and datagrams and Reads in here that may still write or open.
    busy : Out(1)
        Clearing memories after a reset; no datagram is taken.
    """

    def __init__(self, parameters: Parameters, datagrams_ahead: int = 64):
        self._parameters = parameters
        self._datagrams_ahead = datagrams_ahead
        super().__init__(
            {
                "datagrams": In(stream.Signature(Datagram)),
                "waiting": In(1),
                "more": In(1),
                "payload": In(stream.Signature(PacketBeat)),
                "read_openings": In(stream.Signature(ReadOpening)),
                "opened": Out(1),
                "opened_ok": Out(1),
                "trackers_full": Out(1),
                "requests": Out(stream.Signature(ReadRequest)),
                "read_room": In(1),
                "time": In(47),
                "qp": Out(TableReadSignature(QP_ROW, exact_log2(parameters.n_qp), 4)),
                "region": Out(TableReadSignature(REGION_ROW, exact_log2(parameters.n_region), 4)),
                "doorbells": In(stream.Signature(RingDoorbell)),
                "credits": Out(CreditSignature()),
                "wqe_read": Out(ReadClientSignature()),
                "payload_write": Out(WriteClientSignature()),
                "map_write": Out(WriteClientSignature()),
                "completions": Out(CompletionSignature()),
                "close": In(CloseRequest),
                "close_done": Out(1),
                "unwritten": In(8),
                "written": In(1),
                "qp_written": In(1),
                "qp_written_qpn": In(exact_log2(parameters.n_qp)),
                "failed": Out(failed_layout(parameters)),
                "cq_full": Out(1),
                "cq_full_cq": Out(16),
                "event_requests": Out(stream.Signature(EventRequest)).array(2),
                "events": Out(len(Counter)),
                "open_messages": Out(16),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        m.submodules.check = check = SegmentCheck(parameters)
        m.submodules.receive_queue = receive_queue = ReceiveQueue(parameters)
        m.submodules.dispatch = dispatch = Dispatch(parameters)
        # Room for as many as pass while a word or two is held up: what waits longer does so as a
        # datagram.
        m.submodules.places = places = Queue(PlaceCommand, 2)
        m.submodules.placer = placer = Placer(parameters)
        m.submodules.map = validity_map = ValidityMap(parameters)
        m.submodules.snapshot = snapshot = MapSnapshot(parameters)
        m.submodules.completion_queue = completion_queue = CompletionQueue(parameters)
        m.submodules.message_close = message_close = MessageClose(self._datagrams_ahead)
        m.submodules.faults = faults = FailedQueuePairs(parameters)

        wiring.connect(m, wiring.flipped(self.datagrams), check.datagrams)
        wiring.connect(m, wiring.flipped(self.read_openings), check.read_openings)
        wiring.connect(m, wiring.flipped(self.region), check.region)
        wiring.connect(m, wiring.flipped(self.doorbells), receive_queue.doorbells)
        wiring.connect(m, wiring.flipped(self.wqe_read), receive_queue.wqe_read)
        wiring.connect(m, check.look, receive_queue.look)
        wiring.connect(m, check.segments, dispatch.segments)
        wiring.connect(m, dispatch.requests, wiring.flipped(self.requests))

        wiring.connect(m, wiring.flipped(self.credits), dispatch.credits)
        wiring.connect(m, dispatch.places, places.i)
        wiring.connect(m, places.o, placer.commands)
        wiring.connect(m, wiring.flipped(self.payload), placer.payload)
        wiring.connect(m, wiring.flipped(self.payload_write), placer.write)

        wiring.connect(m, dispatch.marks, validity_map.marks)
        wiring.connect(m, dispatch.snapshots, snapshot.commands)
        wiring.connect(m, snapshot.clears, validity_map.clears)
        wiring.connect(m, dispatch.entries, completion_queue.entries)
        wiring.connect(m, snapshot.runs, completion_queue.runs)
        wiring.connect(m, snapshot.words, completion_queue.words)
        wiring.connect(m, snapshot.edges, completion_queue.edges)
        wiring.connect(m, wiring.flipped(self.map_write), completion_queue.map_write)
        wiring.connect(m, wiring.flipped(self.completions), completion_queue.completions)

        wiring.connect(m, faults.requests, wiring.flipped(self.event_requests[0]))
        wiring.connect(m, receive_queue.event_requests, wiring.flipped(self.event_requests[1]))
        m.d.comb += [
            faults.payload.eq(placer.fault),
            faults.map.eq(completion_queue.fault),
            faults.written.eq(self.qp_written),
            faults.written_qpn.eq(self.qp_written_qpn),
            placer.hold.eq(faults.hold),
            completion_queue.hold.eq(faults.hold),
            check.failed.eq(faults.failed),
            completion_queue.failed.eq(faults.failed),
            completion_queue.payload_fault.eq(placer.fault),
            completion_queue.recent.eq(faults.recent),
            self.failed.eq(faults.failed),
            self.cq_full.eq(dispatch.events[Counter.DROP_CQ_FULL]),
            self.cq_full_cq.eq(dispatch.cq),
        ]

        # No datagram is looked at while a row is written.
        m.d.sync += check.open.eq(~(self.busy | self.qp.held | self.region.held))
        m.d.comb += [
            self.busy.eq(receive_queue.busy | dispatch.busy | validity_map.busy | faults.busy),
            dispatch.read_room.eq(self.read_room),
            self.opened.eq(dispatch.read_answered),
            self.opened_ok.eq(dispatch.read_opened),
            self.trackers_full.eq(dispatch.full),
            self.qp.index.eq(Mux(check.qp_used, check.qp.index, receive_queue.qp.index)),
            self.qp.word.eq(Mux(check.qp_used, check.qp.word, receive_queue.qp.word)),
            receive_queue.qp_taken.eq(check.qp_used | self.qp.held),
            check.qp.row.eq(self.qp.row),
            receive_queue.qp.row.eq(self.qp.row),
            receive_queue.settle.eq(dispatch.settle),
            receive_queue.consume.eq(dispatch.consume),
            dispatch.covered.eq(check.covered),
            check.found.eq(dispatch.found),
            check.span.eq(dispatch.span),
            check.own.eq(dispatch.own),
            dispatch.begin.eq(check.begin),
            dispatch.renew.eq(check.renew),
            check.opened.eq(dispatch.opened),
            check.still.eq(dispatch.still),
            dispatch.hold.eq(check.hold),
            dispatch.tick.eq(self.time[exact_log2(TICK_CYCLES) :]),
            dispatch.crowded.eq(completion_queue.crowded),
            dispatch.snapshot_idle.eq(snapshot.idle),
            dispatch.marked.eq(validity_map.marked),
            dispatch.count.eq(validity_map.count),
            snapshot.word_valid.eq(validity_map.word_valid),
            snapshot.word.eq(validity_map.word),
            snapshot.word_last.eq(validity_map.word_last),
            completion_queue.ticket.eq(dispatch.ticket),
            completion_queue.numbered.eq(dispatch.numbered),
            completion_queue.mapped.eq(dispatch.mapped),
            completion_queue.retired.eq(placer.retired),
            completion_queue.retires.eq(placer.retires),
            self.events.eq(dispatch.events),
            message_close.request.eq(self.close),
            self.close_done.eq(message_close.done),
            message_close.offered.eq(self.waiting | self.datagrams.valid),
            message_close.passed.eq(self.datagrams.valid & self.datagrams.ready & ~self.more),
            message_close.taken.eq(self.datagrams.valid & self.datagrams.ready),
            message_close.opening_offered.eq(self.read_openings.valid),
            message_close.opening_taken.eq(self.read_openings.valid & self.read_openings.ready),
            message_close.settled.eq(dispatch.settle),
            dispatch.ending.eq(message_close.ending),
            message_close.ended.eq(dispatch.ended),
            message_close.held.eq(completion_queue.level),
            message_close.leaves.eq(completion_queue.leaves),
            message_close.unwritten.eq(self.unwritten),
            message_close.written.eq(self.written),
        ]

        placing = Signal.like(placer.retired)
        retired = Signal.like(placer.retired)
        m.d.comb += placing.eq(dispatch.numbered - retired)
        m.d.sync += retired.eq(placer.retired)
        m.d.sync += self.open_messages.eq(
            self.datagrams.valid
            + self.read_openings.valid
            + check.active
            + ~dispatch.quiet
            + placing
            + dispatch.open_count
            + completion_queue.level
            + completion_queue.accepted
        )
        return m
