"""From verdict to memory (device behaviour, section 3). Checks are in the rule's order."""

from __future__ import annotations

from uwarp.contract import RECV_WQE, Access, Counter, CqeFlag, Status
from uwarp.wire import Opcode

from .closed import ClosedMessages, Kind
from .completion import CompletionQueues
from .memory import Memory, try_read, try_write
from .tables import QueuePair, RegionRow, Tables
from .trackers import Trackers
from .verdict import Datagram

__all__ = ["Receiver"]

_TO_END = 1 << 64


class Receiver:
    """Checks a datagram against its QP and region, places it and completes it."""

    def __init__(
        self,
        memory: Memory,
        tables: Tables,
        completions: CompletionQueues,
        trackers: Trackers,
        closed: ClosedMessages,
    ) -> None:
        self._memory = memory
        self._tables = tables
        self._completions = completions
        self._trackers = trackers
        self._closed = closed

    def accept(self, datagram: Datagram) -> Counter:
        """Do all that a datagram asks for. Returns the counter in which it ends."""
        if datagram.qpn >= len(self._tables.qps):
            return Counter.DROP_QP_STATE
        qp = self._tables.qps[datagram.qpn]
        if not qp.row.receives:
            return Counter.DROP_QP_STATE
        if not qp.row.listens_to(datagram.source_ip, datagram.source_port):
            return Counter.DROP_PEER
        if not qp.row.opcodes >> datagram.segment.opcode & 1:
            return Counter.DROP_QP_OPCODE
        if datagram.segment.opcode is Opcode.WRITE:
            return self._write(qp, datagram)
        if datagram.segment.opcode is Opcode.WRITE_RECORD:
            return self._write_record(qp, datagram)
        return self._send(qp, datagram)

    def _send(self, qp: QueuePair, datagram: Datagram) -> Counter:
        segment = datagram.segment
        payload = len(segment.payload)
        if segment.qn != 0:
            return Counter.DROP_UNTAGGED_QN
        if segment.mo + payload > segment.mlen:
            return Counter.DROP_MESSAGE_LENGTH
        if payload != segment.mlen:
            return Counter.DROP_SEND_SEGMENTED
        if self._closed.remembers(datagram.name, Kind.SEND, qp.row.timeout):
            return Counter.DROP_LATE
        if qp.rq_consumer == qp.rq_producer:
            return Counter.DROP_NO_RECEIVE
        if not self._completions.has_room(qp.row.recv_cq):
            return Counter.DROP_CQ_FULL

        index = qp.rq_consumer & (1 << qp.row.rq_log2) - 1
        octets = try_read(self._memory, 64 * qp.row.rq_addr + RECV_WQE.size * index, RECV_WQE.size)
        wqe = RECV_WQE.unpack(octets or bytes(RECV_WQE.size))
        addr, length = wqe.sge0_addr, wqe.sge0_length
        region = self._tables.allowed_sge(
            qp.row.pd, wqe.sge0_lkey, addr, length, Access.LOCAL_WRITE
        )
        if payload and (octets is None or (length and region is None)):
            self._complete_receive(qp, datagram, Status.LOC_PROT_ERR)
            return Counter.DROP_RECEIVE_PROTECTION
        if segment.mlen > length:
            return Counter.DROP_RECEIVE_SHORT
        if payload:
            assert region is not None
            try_write(self._memory, region.dma_address(addr), segment.payload)
        self._complete_receive(qp, datagram, Status.SUCCESS)
        self._closed.remember(datagram.name, Kind.SEND)
        return Counter.RX_PLACED

    def _complete_receive(self, qp: QueuePair, datagram: Datagram, status: Status) -> None:
        """Consume the receive WQE and complete it."""
        fields = datagram.cqe_fields() | {
            "status": status,
            "valid": len(datagram.segment.payload) if status is Status.SUCCESS else 0,
            "wqe_index": qp.rq_consumer & 0xFFFF,
        }
        self._completions.write(qp.row.recv_cq, fields)
        qp.rq_consumer = (qp.rq_consumer + 1) & 0xFFFF_FFFF

    def _write(self, qp: QueuePair, datagram: Datagram) -> Counter:
        segment = datagram.segment
        payload = len(segment.payload)
        if payload == 0:
            return Counter.RX_PLACED
        region = self._remote_region(qp, segment.stag)
        if isinstance(region, Counter):
            return region
        if segment.to + payload > _TO_END:
            return Counter.DROP_TO_WRAP
        if not region.holds(segment.to, payload):
            return Counter.DROP_BOUNDS
        try_write(self._memory, region.dma_address(segment.to), segment.payload)
        return Counter.RX_PLACED

    def _remote_region(self, qp: QueuePair, stag: int) -> RegionRow | Counter:
        """The region that a peer may write under ``stag``, or why it may not."""
        region = self._tables.region_of(stag)
        if region is None:
            return Counter.DROP_STAG_INVALID
        if region.key != stag & 0xFF:
            return Counter.DROP_STAG_KEY
        if region.pd != qp.row.pd:
            return Counter.DROP_STAG_PD
        if not region.access & Access.REMOTE_WRITE:
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
            found = self._remote_region(qp, segment.stag)
            if isinstance(found, Counter):
                return found
            region = found
            if base < 0 or base + segment.mlen > _TO_END:
                return Counter.DROP_TO_WRAP
            if not region.holds(base, segment.mlen):
                return Counter.DROP_BOUNDS
        tracker = self._trackers.find(datagram.name)
        if tracker is not None:
            if (segment.stag, base, segment.mlen) != (tracker.stag, tracker.base, tracker.mlen):
                return Counter.DROP_RECORD_MISMATCH
        else:
            if self._closed.remembers(datagram.name, Kind.WRITE_RECORD, qp.row.timeout):
                return Counter.DROP_LATE
            if region is not None and region.mapped:
                self._trackers.close_overlapping(segment.stag, base, base + segment.mlen)
            if not self._completions.has_room(qp.row.recv_cq):
                return Counter.DROP_CQ_FULL

        if region is not None and payload:
            try_write(self._memory, region.dma_address(segment.to), segment.payload)
        if tracker is None and payload == segment.mlen:
            self._complete_datagram(qp, datagram, CqeFlag(0))
            self._closed.remember(datagram.name, Kind.WRITE_RECORD)
            return Counter.RX_PLACED
        if tracker is None and region is not None and region.mapped:
            tracker = self._trackers.open(datagram, qp.row, region)
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
        self._completions.write(qp.row.recv_cq, fields)
