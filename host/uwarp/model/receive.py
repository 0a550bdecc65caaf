"""From verdict to memory (device behaviour, section 3). Checks are in the rule's order."""

from __future__ import annotations

from uwarp.contract import RECV_WQE, Access, Counter, CqeFlag, EventType, Status
from uwarp.wire import READ_REQUEST, Opcode, QueueNumber, ReadRequest, Terminate

from .answers import Answers
from .closed import ClosedMessages
from .completion import CompletionQueues
from .events import EventRing
from .faults import QpDma
from .reads import Response
from .ring import entry_address
from .tables import QueuePair, RegionRow, Tables
from .terminates import Reporter
from .trackers import Placement, Tracker, Trackers
from .verdict import Datagram

__all__ = ["Receiver"]

_TO_END = 1 << 64


class Receiver:
    """Checks a datagram against its QP and region, places it and completes it."""

    def __init__(
        self,
        dma: QpDma,
        tables: Tables,
        completions: CompletionQueues,
        trackers: Trackers,
        closed: ClosedMessages,
        answers: Answers,
        reporter: Reporter,
        events: EventRing,
    ) -> None:
        self._dma = dma
        self._tables = tables
        self._completions = completions
        self._trackers = trackers
        self._closed = closed
        self._answers = answers
        self._reporter = reporter
        self._events = events

    def accept(self, datagram: Datagram) -> Counter:
        """Do all that a datagram asks for. Returns the counter in which it ends."""
        if datagram.qpn >= len(self._tables.qps):
            return Counter.DROP_QP_STATE
        qp = self._tables.qps[datagram.qpn]
        counter = self._accept(qp, datagram)
        self._reporter.report(qp, datagram, counter)
        return counter

    def _accept(self, qp: QueuePair, datagram: Datagram) -> Counter:
        opcode = datagram.segment.opcode
        if not qp.receives or (opcode is Opcode.READ_REQUEST and not qp.row.sends):
            return Counter.DROP_QP_STATE
        if datagram.own_group and datagram.source_port == qp.row.udp_port:
            return Counter.DROP_OWN_GROUP
        if not qp.row.listens_to(datagram.source_ip, datagram.source_port):
            return Counter.DROP_PEER
        if not qp.row.opcodes >> opcode & 1:
            return Counter.DROP_QP_OPCODE
        match opcode:
            case Opcode.WRITE:
                return self._write(qp, datagram)
            case Opcode.WRITE_RECORD:
                return self._write_record(qp, datagram)
            case Opcode.READ_REQUEST:
                return self._read_request(qp, datagram)
            case Opcode.READ_RESPONSE_RECORD:
                return self._read_response(qp, datagram)
            case Opcode.TERMINATE:
                return self._terminate(qp, datagram)
            case _:
                return self._send(qp, datagram)

    def _send(self, qp: QueuePair, datagram: Datagram) -> Counter:
        segment = datagram.segment
        payload = len(segment.payload)
        if segment.qn != QueueNumber.SEND:
            return Counter.DROP_UNTAGGED_QN
        if segment.mo + payload > segment.mlen:
            return Counter.DROP_MESSAGE_LENGTH
        tracker = self._trackers.find(datagram.name)
        if tracker is not None:
            if segment.mlen != tracker.mlen:
                return Counter.DROP_RECORD_MISMATCH
            return self._place_in(tracker, qp, datagram)
        if self._closed.remembers(datagram.name, qp.row.timeout):
            return Counter.DROP_LATE
        if qp.rq_consumer == qp.rq_producer:
            return Counter.DROP_NO_RECEIVE
        if not self._completions.has_room(qp.row.recv_cq):
            return self._cq_full(qp)

        row, size = qp.row, RECV_WQE.size
        address = entry_address(64 * row.rq_addr, size, row.rq_log2, qp.rq_consumer)
        octets = self._dma.read(qp, address, size)
        wqe = RECV_WQE.unpack(octets or bytes(RECV_WQE.size))
        addr, length = wqe.sge0_addr, wqe.sge0_length
        region = self._tables.allowed_sge(
            qp.row.pd, wqe.sge0_lkey, addr, length, Access.LOCAL_WRITE
        )
        if segment.mlen and (octets is None or (length and region is None)):
            self._complete_receive(qp, datagram, Status.LOC_PROT_ERR)
            return Counter.DROP_RECEIVE_PROTECTION
        if segment.mlen > length:
            return Counter.DROP_RECEIVE_SHORT
        if payload == segment.mlen:
            if payload:
                assert region is not None
                self._dma.write(qp, region.dma_address(addr), segment.payload)
            self._complete_receive(qp, datagram, Status.SUCCESS)
            self._closed.remember(datagram.name)
            return Counter.RX_PLACED
        assert region is not None
        if not region.mapped or addr % (1 << region.granule_log2):
            return Counter.DROP_SEND_SEGMENTED
        self._trackers.close_overlapping(wqe.sge0_lkey, addr, addr + segment.mlen)
        placement = Placement(region, wqe.sge0_lkey, addr, qp.rq_consumer & 0xFFFF)
        tracker = self._trackers.open(datagram, qp.row, placement)
        if tracker is None:
            return Counter.DROP_NO_TRACKER
        qp.take_receive()
        return self._place_in(tracker, qp, datagram)

    def _place_in(self, tracker: Tracker, qp: QueuePair, datagram: Datagram) -> Counter:
        """Place and mark a datagram of an open Send or Read."""
        segment = datagram.segment
        to = tracker.base + segment.mo
        if segment.payload:
            self._dma.write(qp, tracker.region.dma_address(to), segment.payload)
        self._trackers.mark(tracker, to, len(segment.payload))
        return Counter.RX_PLACED

    def _cq_full(self, qp: QueuePair) -> Counter:
        self._completions.tell_full(qp.row.recv_cq)
        return Counter.DROP_CQ_FULL

    def _complete_receive(self, qp: QueuePair, datagram: Datagram, status: Status) -> None:
        """Consume the receive WQE and complete it."""
        fields = datagram.cqe_fields() | {
            "status": status,
            "valid": len(datagram.segment.payload) if status is Status.SUCCESS else 0,
            "wqe_index": qp.take_receive(),
        }
        self._completions.write(qp.row.recv_cq, qp.receive_cqe(fields))

    def _write(self, qp: QueuePair, datagram: Datagram) -> Counter:
        segment = datagram.segment
        payload = len(segment.payload)
        if payload == 0:
            return Counter.RX_PLACED
        region = self._remote_octets(qp, segment.stag, segment.to, payload, Access.REMOTE_WRITE)
        if isinstance(region, Counter):
            return region
        self._dma.write(qp, region.dma_address(segment.to), segment.payload)
        return Counter.RX_PLACED

    def _read_request(self, qp: QueuePair, datagram: Datagram) -> Counter:
        segment = datagram.segment
        if segment.qn != QueueNumber.REQUEST:
            return Counter.DROP_UNTAGGED_QN
        request = ReadRequest.decode(segment.payload[: READ_REQUEST.size])
        if segment.mo or len(segment.payload) > READ_REQUEST.size or not request.size:
            return Counter.DROP_MESSAGE_LENGTH
        region = self._remote_octets(
            qp, request.source_stag, request.source_to, request.size, Access.REMOTE_READ
        )
        if isinstance(region, Counter):
            return region
        if not self._answers.has_room:
            return Counter.DROP_READ_BUSY
        address = region.dma_address(request.source_to)
        self._answers.add(Response.to(datagram, request, address))
        return Counter.RX_PLACED

    def _read_response(self, qp: QueuePair, datagram: Datagram) -> Counter:
        segment = datagram.segment
        if segment.mo + len(segment.payload) > segment.mlen:
            return Counter.DROP_MESSAGE_LENGTH
        tracker = self._trackers.find(datagram.name)
        if tracker is None:
            return Counter.DROP_LATE
        if _contradicts(datagram, tracker):
            return Counter.DROP_RECORD_MISMATCH
        return self._place_in(tracker, qp, datagram)

    def _terminate(self, qp: QueuePair, datagram: Datagram) -> Counter:
        """A peer's report."""
        segment = datagram.segment
        if segment.qn != QueueNumber.TERMINATE:
            return Counter.DROP_UNTAGGED_QN
        self._events.post(
            EventType.TERMINATE,
            qp.number,
            msn=segment.msn,
            source_ip=datagram.source_ip,
            source_port=datagram.source_port,
            code=Terminate.decode(segment.payload).report,
        )
        return Counter.RX_PLACED

    def _remote_octets(
        self, qp: QueuePair, stag: int, to: int, octets: int, access: Access
    ) -> RegionRow | Counter:
        """The region of octets that a peer may have, or why it may not."""
        region = self._remote_region(qp, stag, access)
        if isinstance(region, Counter):
            return region
        if to + octets > _TO_END:
            return Counter.DROP_TO_WRAP
        if not region.holds(to, octets):
            return Counter.DROP_BOUNDS
        return region

    def _remote_region(self, qp: QueuePair, stag: int, access: Access) -> RegionRow | Counter:
        """The region that a peer may reach under ``stag``, or why it may not."""
        region = self._tables.region_of(stag)
        if region is None:
            return Counter.DROP_STAG_INVALID
        if region.key != stag & 0xFF:
            return Counter.DROP_STAG_KEY
        if region.pd != qp.row.pd:
            return Counter.DROP_STAG_PD
        if not region.access & access:
            return Counter.DROP_STAG_ACCESS
        return region

    def _write_record(self, qp: QueuePair, datagram: Datagram) -> Counter:
        segment = datagram.segment
        payload = len(segment.payload)
        base = segment.to - segment.mo
        if segment.mo + payload > segment.mlen:
            return Counter.DROP_MESSAGE_LENGTH
        region: RegionRow | None = None
        if segment.mlen:
            found = self._remote_region(qp, segment.stag, Access.REMOTE_WRITE)
            if isinstance(found, Counter):
                return found
            region = found
            if base < 0 or base + segment.mlen > _TO_END:
                return Counter.DROP_TO_WRAP
            if not region.holds(base, segment.mlen):
                return Counter.DROP_BOUNDS
        tracker = self._trackers.find(datagram.name)
        if tracker is not None:
            if _contradicts(datagram, tracker):
                return Counter.DROP_RECORD_MISMATCH
        else:
            if self._closed.remembers(datagram.name, qp.row.timeout):
                return Counter.DROP_LATE
            if region is not None and region.mapped:
                self._trackers.close_overlapping(segment.stag, base, base + segment.mlen)
            if not self._completions.has_room(qp.row.recv_cq):
                return self._cq_full(qp)

        if region is not None and payload:
            self._dma.write(qp, region.dma_address(segment.to), segment.payload)
        if tracker is None and payload == segment.mlen:
            self._complete_datagram(qp, datagram, CqeFlag(0))
            self._closed.remember(datagram.name)
            return Counter.RX_PLACED
        if tracker is None and region is not None and region.mapped:
            placement = Placement(region, segment.stag, base)
            tracker = self._trackers.open(datagram, qp.row, placement)
        if tracker is not None:
            self._trackers.mark(tracker, segment.to, payload)
            return Counter.RX_PLACED
        flags = CqeFlag.SEGMENT
        if segment.mo == 0:
            flags |= CqeFlag.HEAD
        if segment.mo + payload == segment.mlen:
            flags |= CqeFlag.TAIL
        self._complete_datagram(qp, datagram, flags)
        return Counter.RX_PLACED

    def _complete_datagram(self, qp: QueuePair, datagram: Datagram, flags: CqeFlag) -> None:
        """A CQE that speaks of one Write-Record datagram."""
        fields = datagram.cqe_fields()
        fields |= {
            "status": Status.SUCCESS,
            "flags": fields["flags"] | flags,
            "valid": len(datagram.segment.payload),
            "base_to": datagram.segment.to,
            "stag": datagram.segment.stag,
        }
        self._completions.write(qp.row.recv_cq, qp.receive_cqe(fields))


def _contradicts(datagram: Datagram, tracker: Tracker) -> bool:
    """Whether a tagged segment speaks of other octets than its open message."""
    segment = datagram.segment
    place = segment.stag, segment.to - segment.mo, segment.mlen
    return place != (tracker.stag, tracker.base, tracker.mlen)
