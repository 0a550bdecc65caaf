"""Work requests as the device's descriptors, after every check that can be made here."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uwarp.contract import RECV_WQE, SEND_WQE, WqeFlag
from uwarp.wire import DEFAULT_GRANULE, Opcode, segment_room

from . import enums as e
from .errors import refuse
from .region import MAX_GRANULE
from .work import RecvWR, SendWR

if TYPE_CHECKING:
    from .queue_pair import QP

__all__ = ["SENT", "recv_wqe", "send_wqe"]


@dataclass(frozen=True)
class _Kind:
    """How a send opcode is made."""

    opcode: Opcode
    flags: int = 0
    tagged: bool = False


SENDS: dict[int, _Kind] = {
    e.IBV_WR_SEND: _Kind(Opcode.SEND),
    e.IBV_WR_SEND_WITH_IMM: _Kind(Opcode.SEND_IMMEDIATE, WqeFlag.IMMEDIATE),
    e.IBV_WR_RDMA_WRITE: _Kind(Opcode.WRITE, tagged=True),
    e.IBV_WR_RDMA_WRITE_RECORD: _Kind(Opcode.WRITE_RECORD, tagged=True),
    e.IBV_WR_RDMA_WRITE_RECORD_WITH_IMM: _Kind(Opcode.WRITE_RECORD, WqeFlag.IMMEDIATE, tagged=True),
}
SENT: dict[int, e.ibv_wc_opcode] = {
    Opcode.SEND: e.IBV_WC_SEND,
    Opcode.SEND_IMMEDIATE: e.IBV_WC_SEND,
    Opcode.WRITE: e.IBV_WC_RDMA_WRITE,
    Opcode.WRITE_RECORD: e.IBV_WC_RDMA_WRITE_RECORD,
}


def send_wqe(qp: QP, wr: SendWR) -> tuple[e.ibv_wc_opcode, bytes]:
    """The opcode of its completion, and the descriptor. Raises what ``QP.post_send`` says."""
    if qp.qp_state not in (e.IBV_QPS_RTS, e.IBV_QPS_ERR):
        raise refuse(f"a QP in {qp.qp_state.name} takes no sends: bring it to RTS")
    kind = SENDS.get(wr.opcode)
    if kind is None:
        hint = (
            "; IBV_WR_RDMA_WRITE_RECORD_WITH_IMM is there"
            if wr.opcode == e.IBV_WR_RDMA_WRITE_WITH_IMM
            else ""
        )
        raise refuse(f"opcode {wr.opcode!r} is not supported{hint}", errno.EOPNOTSUPP)
    _check_elements(wr, qp.cap.max_send_sge)
    if wr.ah is None:
        raise refuse("a datagram needs a destination: call set_wr_ud")
    wr.ah._check_open()
    if wr.ah.pd is not qp.pd:
        raise refuse("the AH belongs to another PD")
    if not 1 <= wr.rqpn <= 65535:
        raise refuse(f"rqpn is {wr.rqpn}; it takes the peer's UDP port, 1 to 65535")
    if wr.send_flags & e.IBV_SEND_INLINE:
        raise refuse("inline data: max_inline_data is 0")
    flags = kind.flags
    if qp.signal_all or wr.send_flags & e.IBV_SEND_SIGNALED:
        flags |= WqeFlag.SIGNALED
    if wr.send_flags & e.IBV_SEND_SOLICITED:
        if kind.opcode is Opcode.WRITE:
            raise refuse("a Write completes nothing at the peer, so it cannot be solicited")
        flags |= WqeFlag.SOLICITED
    room = segment_room(kind.opcode, qp.path_mtu)
    granule = wr.granule
    if not DEFAULT_GRANULE <= granule <= MAX_GRANULE or granule & (granule - 1):
        raise refuse(f"granule is {granule}; it takes a power of two, 64 to {MAX_GRANULE}")
    if wr.length > room < granule:
        raise refuse(
            f"granule is {granule}; a datagram of path MTU {qp.path_mtu} carries {room}",
            errno.EMSGSIZE,
        )
    fields = {"granule_log2": granule.bit_length() - 1}
    if kind.tagged:
        if not 0 <= wr.remote_addr < 1 << 64 or not 0 <= wr.rkey < 1 << 32:
            raise refuse(f"rkey {wr.rkey:#x}, remote address {wr.remote_addr:#x}")
        fields |= {"remote_to": wr.remote_addr, "remote_stag": wr.rkey}
    if flags & WqeFlag.IMMEDIATE:
        if not 0 <= wr.imm_data < 1 << 32:
            raise refuse(f"imm_data is {wr.imm_data}; it takes 32 bits")
        fields["immediate"] = wr.imm_data
    if wr.sg_list:
        sge = wr.sg_list[0]
        fields |= {"sge_addr": sge.addr, "sge_length": sge.length, "sge_lkey": sge.lkey}
    return SENT[kind.opcode], SEND_WQE.pack(
        opcode=kind.opcode,
        flags=flags,
        num_sge=wr.num_sge,
        length=wr.length,
        dest_ip=wr.ah.ip,
        dest_port=wr.rqpn,
        dest_mac=wr.ah.mac,
        traffic_class=wr.ah.traffic_class,
        hop_limit=wr.ah.hop_limit,
        **fields,
    )


def recv_wqe(qp: QP, wr: RecvWR) -> bytes:
    """The descriptor of a receive. Raises what ``QP.post_recv`` says."""
    if qp.qp_state is e.IBV_QPS_RESET:
        raise refuse("a QP in IBV_QPS_RESET takes no receives: bring it to INIT")
    _check_elements(wr, qp.cap.max_recv_sge)
    if not wr.sg_list:
        return RECV_WQE.pack()
    sge = wr.sg_list[0]
    return RECV_WQE.pack(sge0_addr=sge.addr, sge0_length=sge.length, sge0_lkey=sge.lkey)


def _check_elements(wr: SendWR | RecvWR, limit: int) -> None:
    if wr.num_sge > limit:
        raise refuse(f"{wr.num_sge} SGEs; this QP takes {limit}")
    for sge in wr.sg_list:
        if not 0 <= sge.addr < 1 << 64 or not 0 <= sge.length < 1 << 32:
            raise refuse(f"{sge!r} does not fit the descriptor")
        if not 0 <= sge.lkey < 1 << 32:
            raise refuse(f"{sge!r} does not fit the descriptor")
