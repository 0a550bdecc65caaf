"""CQEs of the device as work completions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from uwarp.contract import CqeFlag
from uwarp.wire import Opcode, ip_text

from . import enums as e
from .validity import Validity
from .work_completion import WC

if TYPE_CHECKING:
    from .queue_pair import QP

__all__ = ["completion", "entry_time"]


def entry_time(entry: SimpleNamespace) -> int:
    """The time in a CQE or an event."""
    return int(entry.time_high << 31 | entry.time_low)


def completion(qp: QP, entry: SimpleNamespace) -> WC | None:
    """The WC of a CQE of this QP; None if nobody asked for it (an unsignalled Read's)."""
    flags = CqeFlag(entry.flags)
    wc = WC(
        status=e.ibv_wc_status(entry.status),
        byte_len=entry.valid,
        qp_num=qp.qp_num,
        msn=entry.msn,
        message_length=entry.mlen,
        stag=entry.stag,
        remote_addr=entry.base_to,
        solicited=CqeFlag.SOLICITED in flags,
        time=entry_time(entry),
    )
    if CqeFlag.RECEIVE not in flags:
        request = qp._sq.complete(entry.wqe_index)
        wc.opcode, wc.wr_id = request.opcode, request.wr_id
        if CqeFlag.MAPPED in flags:
            wc.src_ip, wc.src_qp = ip_text(entry.source_ip), entry.source_port
            wc.validity = _validity(qp, entry, flags)
        return wc if request.signalled or wc.status != e.IBV_WC_SUCCESS else None
    wc.src_ip, wc.src_qp = ip_text(entry.source_ip), entry.source_port
    if CqeFlag.IMMEDIATE in flags:
        wc.imm_data, wc.wc_flags = entry.immediate, e.IBV_WC_WITH_IMM
    if entry.opcode == Opcode.WRITE_RECORD:
        wc.opcode = e.IBV_WC_RECV_RDMA_RECORD
        wc.segment = CqeFlag.SEGMENT in flags
        wc.head = not wc.segment or CqeFlag.HEAD in flags
        wc.tail = not wc.segment or CqeFlag.TAIL in flags
        wc.validity = _validity(qp, entry, flags)
    else:
        wc.opcode = e.IBV_WC_RECV
        wc.wr_id = qp._rq.complete(entry.wqe_index).wr_id
        if CqeFlag.MAPPED in flags:
            wc.validity = _validity(qp, entry, flags)
    return wc


def _validity(qp: QP, entry: SimpleNamespace, flags: CqeFlag) -> Validity | None:
    """Which octets a CQE speaks of, of a Write-Record, a Read or a Send of many datagrams; folded
    into the region's own account."""
    if not entry.mlen:
        return Validity(0)
    region = qp.context._regions.get(entry.stag)
    if region is None:
        return None
    base = entry.base_to - region.buf
    length = entry.mlen if CqeFlag.MAPPED in flags else entry.valid
    granule = region.granule
    message = Validity(length, granule, base % granule)
    if CqeFlag.MAPPED in flags:
        first, last = base // granule, (base + length - 1) // granule
        low, high = first // 8, last // 8
        octets = bytes([entry.head_map])
        if high > low:
            octets += region._map_octets(low + 1, high) + bytes([entry.tail_map])
        bits = np.unpackbits(np.frombuffer(octets, dtype=np.uint8), bitorder="little")
        message._mark_granules(bits[first - 8 * low : last - 8 * low + 1].astype(np.bool_))
    else:
        message._mark(0, length)
    if region.mapped:
        region.validity._fold(message, base)
    return message
