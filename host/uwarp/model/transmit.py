"""Sending (device behaviour, section 7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from uwarp.contract import Counter, Status, WqeFlag
from uwarp.wire import (
    ETHERTYPE_VLAN,
    IMMEDIATE_OPCODES,
    READ_REQUEST,
    TAGGED_OPCODES,
    Opcode,
    QueueNumber,
    ReadRequest,
    Segment,
    UdpFrame,
    segments,
    wire_octets,
)

from .answers import Answer, Answers
from .bucket import Bucket
from .clock import Clock
from .closed import Kind, MessageName
from .completion import CompletionQueues
from .faults import QpDma
from .network import Port
from .reads import Response, read_sink
from .tables import QueuePair, Tables
from .terminates import Report
from .trackers import Placement, Trackers
from .wqe import Piece, SendWqe, read_wqe

__all__ = ["Transmitter"]

_ANSWER_HOP_LIMIT = 64
_TO_MASK = (1 << 64) - 1
_IPV4_MASK = (1 << 32) - 1


@dataclass(frozen=True)
class _Path:
    """Where a datagram goes to, and how; ``ip`` has 128 bits, whatever the family."""

    mac: int
    ip: int
    ip_version: int
    port: int
    hop_limit: int
    traffic_class: int = 0
    vlan_tags: tuple[int, ...] = ()

    @classmethod
    def of_wqe(cls, wqe: SendWqe) -> _Path:
        fields = wqe.fields
        vlan = (ETHERTYPE_VLAN << 16 | fields.vlan,) if wqe.has(WqeFlag.VLAN) else ()
        return cls(
            mac=fields.dest_mac,
            ip=wqe.dest_ip,
            ip_version=wqe.ip_version,
            port=fields.dest_port,
            hop_limit=fields.hop_limit,
            traffic_class=fields.traffic_class,
            vlan_tags=vlan,
        )

    @classmethod
    def of_answer(cls, answer: Answer) -> _Path:
        return cls(
            mac=answer.dest_mac,
            ip=answer.dest_ip,
            ip_version=answer.ip_version,
            port=answer.dest_port,
            hop_limit=_ANSWER_HOP_LIMIT,
        )


@dataclass
class _Message:
    """A WQE that passed its checks, and what is left of it to send."""

    wqe: SendWqe
    path: _Path
    opcode: Opcode
    pieces: tuple[Piece, ...]
    msn: int
    cq: int
    plan: Iterator[tuple[int, int]]


class Transmitter:
    """Takes WQEs and answers and makes frames of them, a datagram of each QP in turn.

    A QP that has both a message and an answer to send does so by turns.
    """

    def __init__(
        self,
        dma: QpDma,
        tables: Tables,
        completions: CompletionQueues,
        trackers: Trackers,
        answers: Answers,
        port: Port,
        clock: Clock,
        counters: list[int],
    ) -> None:
        self._dma = dma
        self._tables = tables
        self._completions = completions
        self._trackers = trackers
        self._answers = answers
        self._port = port
        self._counters = counters
        self._buckets = [Bucket(clock) for _ in tables.qps]
        self._under_way: dict[int, _Message] = {}
        self._answered = [False] * len(tables.qps)
        self._turn = 0

    def next_frame(self) -> bytes | None:
        """The next frame to send, or None. Completes WQEs on the way."""
        while (qp := self._next_qp()) is not None:
            frame = self._datagram(qp)
            if frame is not None:
                self._buckets[qp.number].take(wire_octets(len(frame)))
                self._counters[Counter.TX_FRAMES] += 1
                return frame
        return None

    def load(self, qp: QueuePair) -> None:
        """The QP's row was written."""
        self._buckets[qp.number].load(qp.row.send_rate, qp.row.send_burst)

    def forget(self, qp: QueuePair) -> None:
        """Drop what is under way: the QP was reset."""
        self._answers.forget(qp)
        message = self._under_way.pop(qp.number, None)
        if message is not None:
            self._completions.release(message.cq)

    def _next_qp(self) -> QueuePair | None:
        qps = self._tables.qps
        for step in range(len(qps)):
            qp = qps[(self._turn + step) % len(qps)]
            if self._has_work(qp):
                self._turn = qp.number + 1
                return qp
        return None

    def _has_work(self, qp: QueuePair) -> bool:
        if not qp.row.sends or not self._buckets[qp.number].open:
            return False
        return self._may_send(qp) or self._may_answer(qp) is not None

    def _may_send(self, qp: QueuePair) -> bool:
        message = self._under_way.get(qp.number)
        if message is not None:
            return message.opcode is not Opcode.READ_REQUEST or self._trackers.has_free
        if qp.failed:
            return False
        return qp.sq_consumer != qp.sq_producer and self._completions.has_room(qp.row.send_cq)

    def _may_answer(self, qp: QueuePair) -> Answer | None:
        return None if qp.failed else self._answers.first_of(qp)

    def _datagram(self, qp: QueuePair) -> bytes | None:
        """One turn of a QP: a frame, or None if what it was to carry failed, or waits."""
        answer = self._may_answer(qp)
        if answer is not None and not (self._answered[qp.number] and self._may_send(qp)):
            self._answered[qp.number] = True
            return self._answer(qp, answer)
        self._answered[qp.number] = False
        message = self._under_way.get(qp.number) or self._fetch(qp)
        if message is None:
            return None
        if message.opcode is Opcode.READ_REQUEST:
            return self._read(qp, message)
        return self._send(qp, message)

    def _fetch(self, qp: QueuePair) -> _Message | None:
        """Read and check the QP's next WQE (7.2); None if it failed and was completed."""
        cq = qp.row.send_cq
        self._completions.reserve(cq)
        wqe = read_wqe(self._dma, qp)
        status, pieces = wqe.check(qp.row, self._tables)
        if status is not Status.SUCCESS:
            self._complete(qp, cq, wqe, status, valid=0, msn=0)
            return None
        opcode = Opcode(wqe.fields.opcode)
        plan = segments(
            opcode,
            wqe.fields.length,
            qp.row.path_mtu,
            to=wqe.fields.remote_to if wqe.is_tagged else 0,
            granule=wqe.granule,
            ip_version=wqe.ip_version,
        )
        msn = 0 if opcode is Opcode.WRITE else qp.take_msn()
        if opcode is Opcode.SEND and wqe.has(WqeFlag.SOLICITED):
            opcode = Opcode.SEND_SOLICITED
        message = _Message(wqe, _Path.of_wqe(wqe), opcode, pieces, msn, cq, plan)
        self._under_way[qp.number] = message
        return message

    def _send(self, qp: QueuePair, message: _Message) -> bytes | None:
        """The next segment of a message that is no Read."""
        offset, octets = next(message.plan)
        payload = self._payload(qp, message, offset, octets)
        if payload is None:
            self._finish(qp, message, Status.GENERAL_ERR)
            return None
        last = offset + octets == message.wqe.fields.length
        segment = _segment_of(message, offset, payload, last)
        frame = self._frame(qp, message.path, segment)
        if last:
            self._finish(qp, message, Status.SUCCESS)
        return frame

    def _payload(self, qp: QueuePair, message: _Message, offset: int, octets: int) -> bytes | None:
        """Octets of a message; None if not all of them could be read."""
        inline = message.wqe.inline
        if inline is not None:
            return inline[offset : offset + octets]
        found = [
            self._dma.read(qp, address, length)
            for address, length in _cut(message.pieces, offset, octets)
        ]
        return None if None in found else b"".join(piece or b"" for piece in found)

    def _read(self, qp: QueuePair, message: _Message) -> bytes | None:
        """Open a Read's tracker and request its octets (7.7)."""
        if not self._trackers.has_free:
            return None
        wqe = message.wqe.fields
        region = read_sink(self._tables, qp.row.pd, wqe.sge_lkey, wqe.sge_addr, wqe.length)
        if region is None:
            self._finish(qp, message, Status.NO_TRACKER)
            return None
        path = message.path
        self._trackers.open_read(
            MessageName(qp.number, path.ip, path.port, message.msn, Kind.READ),
            wqe.length,
            message.cq,
            qp.row.timeout,
            Placement(region, wqe.sge_lkey, wqe.sge_addr, qp.sq_consumer & 0xFFFF),
        )
        request = ReadRequest(
            sink_stag=wqe.sge_lkey,
            sink_to=wqe.sge_addr,
            size=wqe.length,
            source_stag=wqe.remote_stag,
            source_to=wqe.remote_to,
        )
        segment = Segment(
            opcode=Opcode.READ_REQUEST,
            payload=request.encode(),
            qn=QueueNumber.REQUEST,
            msn=message.msn,
            mlen=READ_REQUEST.size,
        )
        # Its slot is the tracker's now, which completes it.
        del self._under_way[qp.number]
        qp.take_send()
        return self._frame(qp, path, segment)

    def _answer(self, qp: QueuePair, answer: Answer) -> bytes | None:
        if isinstance(answer, Report):
            self._answers.remove(answer)
            self._counters[Counter.TX_TERMINATES] += 1
            return self._frame(qp, _Path.of_answer(answer), answer.segment())
        assert isinstance(answer, Response)
        return self._respond(qp, answer)

    def _respond(self, qp: QueuePair, response: Response) -> bytes | None:
        """The next segment of a response (7.8)."""
        request = response.request
        offset, octets = response.next_segment(qp.row.path_mtu)
        payload = self._dma.read(qp, response.address + offset & _TO_MASK, octets)
        last = offset + octets == request.size
        if last or payload is None:
            self._answers.remove(response)
        if payload is None:
            return None
        segment = Segment(
            opcode=Opcode.READ_RESPONSE_RECORD,
            payload=payload,
            last=last,
            stag=request.sink_stag,
            to=request.sink_to + offset & _TO_MASK,
            msn=response.msn,
            mo=offset,
            mlen=request.size,
        )
        return self._frame(qp, _Path.of_answer(response), segment)

    def _frame(self, qp: QueuePair, path: _Path, segment: Segment) -> bytes:
        port, six = self._port, path.ip_version == 6
        return UdpFrame(
            dest_mac=path.mac,
            source_mac=port.mac,
            source_ip=port.ipv6 if six else port.ipv4,
            dest_ip=path.ip if six else path.ip & _IPV4_MASK,
            source_port=qp.row.udp_port,
            dest_port=path.port,
            payload=segment.to_datagram(),
            traffic_class=path.traffic_class,
            hop_limit=path.hop_limit,
            ip_version=path.ip_version,
            vlan_tags=path.vlan_tags,
        ).encode()

    def _finish(self, qp: QueuePair, message: _Message, status: Status) -> None:
        """The message has been sent, or cannot be."""
        del self._under_way[qp.number]
        valid = message.wqe.fields.length if status is Status.SUCCESS else 0
        self._complete(qp, message.cq, message.wqe, status, valid=valid, msn=message.msn)

    def _complete(
        self, qp: QueuePair, cq: int, wqe: SendWqe, status: Status, *, valid: int, msn: int
    ) -> None:
        index = qp.take_send()
        if status is Status.SUCCESS and not wqe.has(WqeFlag.SIGNALED):
            self._completions.release(cq)
            return
        fields = {
            "opcode": wqe.fields.opcode,
            "status": status,
            "qpn": qp.number,
            "wqe_index": index,
            "valid": valid,
            "msn": msn,
            "mlen": wqe.fields.length,
            "base_to": wqe.fields.remote_to if wqe.is_tagged else 0,
            "stag": wqe.fields.remote_stag if wqe.is_tagged else 0,
        }
        self._completions.write(cq, fields, reserved=True)


def _segment_of(message: _Message, offset: int, payload: bytes, last: bool) -> Segment:
    wqe, opcode = message.wqe, message.opcode
    tagged = opcode in TAGGED_OPCODES
    flagged = opcode in IMMEDIATE_OPCODES
    send_immediate = opcode is Opcode.SEND_IMMEDIATE or wqe.has(WqeFlag.IMMEDIATE)
    return Segment(
        opcode=opcode,
        payload=payload,
        last=last,
        solicited=flagged and wqe.has(WqeFlag.SOLICITED),
        immediate_valid=flagged and wqe.has(WqeFlag.IMMEDIATE),
        stag=wqe.fields.remote_stag if tagged else 0,
        to=wqe.fields.remote_to + offset & _TO_MASK if tagged else 0,
        msn=message.msn,
        mo=0 if opcode is Opcode.WRITE else offset,
        mlen=wqe.fields.length,
        immediate=wqe.fields.immediate if send_immediate else 0,
    )


def _cut(pieces: Iterable[Piece], offset: int, octets: int) -> Iterator[Piece]:
    """What lies from ``offset`` on of the octets of ``pieces``, which follow each other."""
    end = offset + octets
    start = 0
    for address, length in pieces:
        low, high = max(offset, start), min(end, start + length)
        if low < high:
            yield Piece(address + low - start & _TO_MASK, high - low)
        start += length
