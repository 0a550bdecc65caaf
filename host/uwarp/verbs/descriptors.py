"""Work requests as the device's descriptors, after every check that can be made here."""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uwarp.contract import RECV_WQE, SEND_WQE, SEND_WQE_EXTENSION, WqeFlag
from uwarp.wire import DEFAULT_GRANULE, Opcode, segment_room

from . import enums as e
from .errors import refuse
from .region import MAX_GRANULE
from .work import RecvWR, SendWR
from .work_queue import Request

if TYPE_CHECKING:
    from .queue_pair import QP

__all__ = ["recv_wqe", "send_wqe"]


@dataclass(frozen=True)
class _Kind:
    """How a send opcode is made; ``named``: it names memory of the peer."""

    opcode: Opcode
    completion: e.ibv_wc_opcode
    flags: int = 0

    @property
    def named(self) -> bool:
        return self.opcode in (Opcode.WRITE, Opcode.READ_REQUEST, Opcode.WRITE_RECORD)


SENDS: dict[int, _Kind] = {
    e.IBV_WR_SEND: _Kind(Opcode.SEND, e.IBV_WC_SEND),
    e.IBV_WR_SEND_WITH_IMM: _Kind(Opcode.SEND_IMMEDIATE, e.IBV_WC_SEND, WqeFlag.IMMEDIATE),
    e.IBV_WR_RDMA_WRITE: _Kind(Opcode.WRITE, e.IBV_WC_RDMA_WRITE),
    e.IBV_WR_RDMA_READ: _Kind(Opcode.READ_REQUEST, e.IBV_WC_RDMA_READ),
    e.IBV_WR_RDMA_WRITE_RECORD: _Kind(Opcode.WRITE_RECORD, e.IBV_WC_RDMA_WRITE_RECORD),
    e.IBV_WR_RDMA_WRITE_RECORD_WITH_IMM: _Kind(
        Opcode.WRITE_RECORD, e.IBV_WC_RDMA_WRITE_RECORD, WqeFlag.IMMEDIATE
    ),
}


def send_wqe(qp: QP, wr: SendWR) -> tuple[Request, bytes]:
    """What is posted, and its ring entry. Raises what ``QP.post_send`` says."""
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
    fields, extension = _destination(qp, wr, kind)
    flags = fields["flags"] = fields["flags"] | _flags(qp, wr, kind)
    if kind.opcode is Opcode.READ_REQUEST:
        _check_read(qp, wr)
    else:
        fields["granule_log2"] = _granule_log2(qp, wr, kind)
    if kind.named:
        if not 0 <= wr.remote_addr < 1 << 64 or not 0 <= wr.rkey < 1 << 32:
            raise refuse(f"rkey {wr.rkey:#x}, remote address {wr.remote_addr:#x}")
        fields |= {"remote_to": wr.remote_addr, "remote_stag": wr.rkey}
    if flags & WqeFlag.IMMEDIATE:
        if not 0 <= wr.imm_data < 1 << 32:
            raise refuse(f"imm_data is {wr.imm_data}; it takes 32 bits")
        fields["immediate"] = wr.imm_data
    inline = b""
    if wr.send_flags & e.IBV_SEND_INLINE:
        inline = b"".join(ctypes.string_at(item.addr, item.length) for item in wr.sg_list)
    else:
        fields["num_sge"] = wr.num_sge
        for index, item in enumerate(wr.sg_list):
            into, name = (extension, f"sge{index}") if index else (fields, "sge")
            into[f"{name}_addr"], into[f"{name}_length"] = item.addr, item.length
            into[f"{name}_lkey"] = item.lkey
    entry = SEND_WQE.pack(opcode=kind.opcode, length=wr.length, **fields)
    if qp.wide:
        entry += inline + SEND_WQE_EXTENSION.pack(**extension)[len(inline) :]
    signalled = bool(flags & WqeFlag.SIGNALED)
    in_order = kind.opcode is not Opcode.READ_REQUEST
    return Request(wr.wr_id, kind.completion, signalled, in_order), entry


def _destination(qp: QP, wr: SendWR, kind: _Kind) -> tuple[dict[str, int], dict[str, int]]:
    """Fields that say where it goes, of the WQE and of its extension."""
    ah = wr.ah
    if ah is None:
        raise refuse("a datagram needs a destination: call set_wr_ud")
    ah._check_open()
    if ah.pd is not qp.pd:
        raise refuse("the AH belongs to another PD")
    if not 1 <= wr.rqpn <= 65535:
        raise refuse(f"rqpn is {wr.rqpn}; it takes the peer's UDP port, 1 to 65535")
    if ah.is_multicast and kind.named:
        raise refuse(f"{wr.opcode!r} names memory of one peer, and {ah!r} is a group")
    fields: dict[str, int] = {
        "flags": 0,
        "dest_port": wr.rqpn,
        "dest_mac": ah.mac,
        "traffic_class": ah.traffic_class,
        "hop_limit": ah.hop_limit,
    }
    extension: dict[str, int] = {}
    if ah.vlan is not None:
        fields |= {"flags": WqeFlag.VLAN, "vlan": ah.vlan}
    if ah.ip_version == 4:
        fields["dest_ip"] = ah.ip
    elif qp.wide:
        fields["flags"] |= WqeFlag.IPV6
        extension["dest_ipv6"] = ah.ip
    else:
        raise refuse(
            "this QP was made for IPv4 destinations only: make it with ipv6=True",
            errno.EAFNOSUPPORT,
        )
    return fields, extension


def _flags(qp: QP, wr: SendWR, kind: _Kind) -> int:
    flags = kind.flags
    if qp.signal_all or wr.send_flags & e.IBV_SEND_SIGNALED:
        flags |= WqeFlag.SIGNALED
    if wr.send_flags & e.IBV_SEND_SOLICITED:
        if kind.opcode in (Opcode.WRITE, Opcode.READ_REQUEST):
            name = "Write" if kind.opcode is Opcode.WRITE else "Read"
            raise refuse(f"a {name} completes nothing at the peer, so it cannot be solicited")
        flags |= WqeFlag.SOLICITED
    if wr.send_flags & e.IBV_SEND_INLINE:
        if kind.opcode is Opcode.READ_REQUEST:
            raise refuse("a Read has no octets to send, so they cannot be inline")
        if wr.length > qp.cap.max_inline_data:
            raise refuse(f"{wr.length} octets inline; max_inline_data is {qp.cap.max_inline_data}")
        if qp.wide:
            flags |= WqeFlag.INLINE
    return flags


def _granule_log2(qp: QP, wr: SendWR, kind: _Kind) -> int:
    assert wr.ah is not None
    room = segment_room(kind.opcode, qp.path_mtu, ip_version=wr.ah.ip_version)
    granule = wr.granule
    if not DEFAULT_GRANULE <= granule <= MAX_GRANULE or granule & (granule - 1):
        raise refuse(f"granule is {granule}; it takes a power of two, 64 to {MAX_GRANULE}")
    if wr.length > room < granule:
        raise refuse(
            f"granule is {granule}; a datagram of path MTU {qp.path_mtu} carries {room}",
            errno.EMSGSIZE,
        )
    return granule.bit_length() - 1


def _check_read(qp: QP, wr: SendWR) -> None:
    """What the device would refuse without a word why. A bad lkey is left to it."""
    if wr.num_sge != 1 or not wr.length:
        raise refuse(f"a Read of {wr.length} octets into {wr.num_sge} SGEs; it takes some, and 1")
    region = qp.context._regions.get(wr.sg_list[0].lkey)
    if region is not None and not (region.mapped and region.granule == DEFAULT_GRANULE):
        raise refuse(
            f"{region!r} has no validity map of granule {DEFAULT_GRANULE}, which a Read needs: "
            "register it with validity=True"
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
    length = sum(sge.length for sge in wr.sg_list)
    if length >= 1 << 32:
        raise refuse(f"a message of {length} octets; it takes {(1 << 32) - 1}", errno.EMSGSIZE)
