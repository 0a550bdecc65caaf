"""Sending (device behaviour, section 7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

from uwarp.contract import SEND_WQE, Access, Counter, Status, WqeFlag
from uwarp.wire import (
    IMMEDIATE_OPCODES,
    TAGGED_OPCODES,
    Opcode,
    Segment,
    UdpFrame,
    segment_room,
    segments,
)

from .completion import CompletionQueues
from .faults import QpDma
from .network import Port
from .tables import QueuePair, RegionRow, Tables

__all__ = ["Transmitter"]

_OPCODES = frozenset({Opcode.WRITE, Opcode.SEND, Opcode.WRITE_RECORD, Opcode.SEND_IMMEDIATE})
_NO_SGE_ACCESS = Access(0)  # local read is always allowed


@dataclass
class _Message:
    """A WQE that passed its checks, and what is left of it to send."""

    wqe: SimpleNamespace
    opcode: Opcode
    region: RegionRow | None
    msn: int
    cq: int
    plan: Iterator[tuple[int, int]]


class Transmitter:
    """Takes WQEs and makes frames of them, a datagram of each QP in turn."""

    def __init__(
        self,
        dma: QpDma,
        tables: Tables,
        completions: CompletionQueues,
        port: Port,
        counters: list[int],
    ) -> None:
        self._dma = dma
        self._tables = tables
        self._completions = completions
        self._port = port
        self._counters = counters
        self._under_way: dict[int, _Message] = {}
        self._turn = 0

    def next_frame(self) -> bytes | None:
        """The next frame to send, or None. Completes WQEs on the way."""
        while (qp := self._next_qp()) is not None:
            frame = self._datagram(qp)
            if frame is not None:
                return frame
        return None

    def forget(self, qp: QueuePair) -> None:
        """Drop what is under way: the QP was reset."""
        message = self._under_way.pop(qp.number, None)
        if message is not None:
            self._completions.release(message.cq)

    def _has_work(self, qp: QueuePair) -> bool:
        if not qp.row.sends:
            return False
        if qp.number in self._under_way:
            return True
        if qp.failed:
            return False
        return qp.sq_consumer != qp.sq_producer and self._completions.has_room(qp.row.send_cq)

    def _next_qp(self) -> QueuePair | None:
        qps = self._tables.qps
        for step in range(len(qps)):
            qp = qps[(self._turn + step) % len(qps)]
            if self._has_work(qp):
                self._turn = qp.number + 1
                return qp
        return None

    def _datagram(self, qp: QueuePair) -> bytes | None:
        """One turn of a QP: a frame, or None if a WQE failed instead."""
        message = self._under_way.get(qp.number) or self._fetch(qp)
        if message is None:
            return None
        wqe = message.wqe
        offset, octets = next(message.plan)
        last = offset + octets == wqe.length
        payload: bytes | None = b""
        if octets:
            assert message.region is not None
            address = message.region.dma_address(wqe.sge_addr + offset)
            payload = self._dma.read(qp, address, octets)
        if payload is None:
            self._finish(qp, message, Status.GENERAL_ERR)
            return None
        frame = self._frame(qp, message, offset, payload, last)
        self._counters[Counter.TX_FRAMES] += 1
        if last:
            self._finish(qp, message, Status.SUCCESS)
        return frame

    def _fetch(self, qp: QueuePair) -> _Message | None:
        """Read and check the QP's next WQE (7.2); None if it failed and was completed."""
        cq = qp.row.send_cq
        self._completions.reserve(cq)
        index = qp.sq_consumer & (1 << qp.row.sq_log2) - 1
        octets = self._dma.read(qp, 64 * qp.row.sq_addr + SEND_WQE.size * index, SEND_WQE.size)
        wqe = SEND_WQE.unpack(octets or bytes(SEND_WQE.size))
        region: RegionRow | None = None
        if octets is None or not _is_well_formed(wqe):
            status = Status.LOC_QP_OP_ERR
        elif not _fits(wqe, qp.row.path_mtu):
            status = Status.LOC_LEN_ERR
        else:
            status = Status.SUCCESS
            if wqe.length:
                region = self._tables.allowed_sge(
                    qp.row.pd, wqe.sge_lkey, wqe.sge_addr, wqe.sge_length, _NO_SGE_ACCESS
                )
                if region is None:
                    status = Status.LOC_PROT_ERR
        if status is not Status.SUCCESS:
            self._complete(qp, cq, wqe, status, valid=0, msn=0)
            return None
        opcode = Opcode(wqe.opcode)
        to = wqe.remote_to if opcode in TAGGED_OPCODES else 0
        plan = segments(opcode, wqe.length, qp.row.path_mtu, to=to, granule=_granule(wqe))
        msn = 0 if opcode is Opcode.WRITE else qp.take_msn()
        if opcode is Opcode.SEND and wqe.flags & WqeFlag.SOLICITED:
            opcode = Opcode.SEND_SOLICITED
        message = _Message(wqe, opcode, region, msn, cq, plan)
        self._under_way[qp.number] = message
        return message

    def _frame(
        self, qp: QueuePair, message: _Message, offset: int, payload: bytes, last: bool
    ) -> bytes:
        wqe, opcode = message.wqe, message.opcode
        tagged = opcode in TAGGED_OPCODES
        flagged = opcode in IMMEDIATE_OPCODES
        send_immediate = opcode is Opcode.SEND_IMMEDIATE or wqe.flags & WqeFlag.IMMEDIATE
        segment = Segment(
            opcode=opcode,
            payload=payload,
            last=last,
            solicited=flagged and bool(wqe.flags & WqeFlag.SOLICITED),
            immediate_valid=flagged and bool(wqe.flags & WqeFlag.IMMEDIATE),
            stag=wqe.remote_stag if tagged else 0,
            to=(wqe.remote_to + offset) & (1 << 64) - 1 if tagged else 0,
            msn=message.msn,
            mo=0 if opcode is Opcode.WRITE else offset,
            mlen=wqe.length,
            immediate=wqe.immediate if send_immediate else 0,
        )
        return UdpFrame(
            dest_mac=wqe.dest_mac,
            source_mac=self._port.mac,
            source_ip=self._port.ipv4,
            dest_ip=wqe.dest_ip,
            source_port=qp.row.udp_port,
            dest_port=wqe.dest_port,
            payload=segment.to_datagram(),
            traffic_class=wqe.traffic_class,
            hop_limit=wqe.hop_limit,
        ).encode()

    def _finish(self, qp: QueuePair, message: _Message, status: Status) -> None:
        """The message has been sent, or cannot be."""
        del self._under_way[qp.number]
        valid = message.wqe.length if status is Status.SUCCESS else 0
        self._complete(qp, message.cq, message.wqe, status, valid=valid, msn=message.msn)

    def _complete(
        self,
        qp: QueuePair,
        cq: int,
        wqe: SimpleNamespace,
        status: Status,
        *,
        valid: int,
        msn: int,
    ) -> None:
        tagged = wqe.opcode in TAGGED_OPCODES
        if status is Status.SUCCESS and not wqe.flags & WqeFlag.SIGNALED:
            self._completions.release(cq)
        else:
            fields = {
                "opcode": wqe.opcode,
                "status": status,
                "qpn": qp.number,
                "wqe_index": qp.sq_consumer & 0xFFFF,
                "valid": valid,
                "msn": msn,
                "mlen": wqe.length,
                "base_to": wqe.remote_to if tagged else 0,
                "stag": wqe.remote_stag if tagged else 0,
            }
            self._completions.write(cq, fields, reserved=True)
        qp.sq_consumer = (qp.sq_consumer + 1) & 0xFFFF_FFFF


def _granule(wqe: SimpleNamespace) -> int:
    return 1 << (wqe.granule_log2 or 6)


def _is_well_formed(wqe: SimpleNamespace) -> bool:
    return (
        wqe.opcode in _OPCODES
        and wqe.num_sge <= 1
        and wqe.length == (wqe.sge_length if wqe.num_sge else 0)
        and (wqe.granule_log2 == 0 or 6 <= wqe.granule_log2 <= 16)
        and not (wqe.flags & WqeFlag.IMMEDIATE and wqe.opcode in (Opcode.WRITE, Opcode.SEND))
        and not (wqe.flags & WqeFlag.SOLICITED and wqe.opcode == Opcode.WRITE)
    )


def _fits(wqe: SimpleNamespace, path_mtu: int) -> bool:
    """Whether the message can be cut into segments."""
    room = segment_room(Opcode(wqe.opcode), path_mtu)
    return bool(wqe.length <= room or _granule(wqe) <= room)
