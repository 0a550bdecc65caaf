"""Send WQEs, with and without their extension, and what must hold of them (7.2)."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

from uwarp.contract import (
    INLINE_OCTETS,
    MAX_SGE,
    SEND_WQE,
    SEND_WQE_EXTENSION,
    Access,
    Status,
    WqeFlag,
)
from uwarp.wire import (
    DEFAULT_GRANULE_LOG2,
    IMMEDIATE_OPCODES,
    TAGGED_OPCODES,
    Opcode,
    is_group_mac,
    mapped_ipv4,
    segment_room,
)

from .faults import QpDma
from .reads import read_sink
from .ring import entry_address
from .tables import QpRow, QueuePair, Tables

__all__ = ["Piece", "SendWqe", "Sge", "read_wqe"]

_OPCODES = frozenset(
    {
        Opcode.WRITE,
        Opcode.READ_REQUEST,
        Opcode.SEND,
        Opcode.WRITE_RECORD,
        Opcode.SEND_IMMEDIATE,
    }
)
_SOLICITED_OPCODES = IMMEDIATE_OPCODES | {Opcode.SEND}
_GROUP_OPCODES = frozenset({Opcode.SEND, Opcode.SEND_IMMEDIATE})
_NO_ACCESS = Access(0)  # local read is always allowed


class Sge(NamedTuple):
    addr: int
    length: int
    lkey: int


class Piece(NamedTuple):
    """Octets of a message that lie together: a DMA address."""

    address: int
    length: int


@dataclass(frozen=True)
class SendWqe:
    """An entry of a send ring, all 0 if it could not be read.

    ``fields`` are those of both structures, ``extension`` the octets of the second: 0 if the ring
    is not wide.
    """

    fields: SimpleNamespace
    wide: bool
    extension: bytes
    was_read: bool

    @classmethod
    def parse(cls, octets: bytes | None, wide: bool) -> SendWqe:
        known = octets or b""
        whole = known.ljust(SEND_WQE.size + SEND_WQE_EXTENSION.size, b"\0")
        wqe, extension = whole[: SEND_WQE.size], whole[SEND_WQE.size :]
        fields = vars(SEND_WQE.unpack(wqe)) | vars(SEND_WQE_EXTENSION.unpack(extension))
        return cls(SimpleNamespace(**fields), wide, extension, octets is not None)

    def has(self, flag: WqeFlag) -> bool:
        return bool(self.fields.flags & flag)

    @property
    def sges(self) -> tuple[Sge, ...]:
        """The first ``num_sge`` SGEs, as far as there are any."""
        names = ("sge", *(f"sge{index}" for index in range(1, MAX_SGE)))
        fields = vars(self.fields)
        return tuple(
            Sge(fields[f"{name}_addr"], fields[f"{name}_length"], fields[f"{name}_lkey"])
            for name in names[: self.fields.num_sge]
        )

    @property
    def inline(self) -> bytes | None:
        """The message, if the WQE itself holds it."""
        return self.extension[: self.fields.length] if self.has(WqeFlag.INLINE) else None

    @property
    def is_tagged(self) -> bool:
        return self.fields.opcode in TAGGED_OPCODES

    @property
    def granule(self) -> int:
        return 1 << (self.fields.granule_log2 or DEFAULT_GRANULE_LOG2)

    @property
    def ip_version(self) -> int:
        return 6 if self.has(WqeFlag.IPV6) else 4

    @property
    def dest_ip(self) -> int:
        """128 bits for either family."""
        if self.ip_version == 6:
            return int(self.fields.dest_ipv6)
        return mapped_ipv4(self.fields.dest_ip)

    @property
    def is_well_formed(self) -> bool:
        wqe = self.fields
        return (
            self.was_read
            and wqe.opcode in _OPCODES
            and self._octets_are_told
            and (wqe.granule_log2 == 0 or 6 <= wqe.granule_log2 <= 16)
            and not (self.has(WqeFlag.IMMEDIATE) and wqe.opcode not in IMMEDIATE_OPCODES)
            and not (self.has(WqeFlag.SOLICITED) and wqe.opcode not in _SOLICITED_OPCODES)
            and not (self.has(WqeFlag.IPV6) and not self.wide)
            and not (is_group_mac(wqe.dest_mac) and wqe.opcode not in _GROUP_OPCODES)
            and (wqe.opcode != Opcode.READ_REQUEST or (wqe.num_sge == 1 and wqe.length > 0))
        )

    @property
    def _octets_are_told(self) -> bool:
        """Whether SGEs, or the octets inline, are as many as they may be and make the length."""
        wqe = self.fields
        if self.has(WqeFlag.INLINE):
            return self.wide and wqe.num_sge == 0 and wqe.length <= INLINE_OCTETS
        if wqe.num_sge > (MAX_SGE if self.wide else 1):
            return False
        return bool(wqe.length == sum(sge.length for sge in self.sges))

    def fits(self, path_mtu: int) -> bool:
        """Whether the message can be cut into segments."""
        opcode = Opcode(self.fields.opcode)
        if opcode is Opcode.READ_REQUEST:
            return True
        room = segment_room(opcode, path_mtu, ip_version=self.ip_version)
        return self.fields.length <= room or self.granule <= room

    def pieces(self, tables: Tables, pd: int) -> tuple[Piece, ...] | None:
        """Where the message is, or will be (Reads); None if the QP may not use all of it."""
        found = []
        for addr, length, lkey in self.sges:
            if not length:
                continue
            if self.fields.opcode == Opcode.READ_REQUEST:
                region = read_sink(tables, pd, lkey, addr, length)
            else:
                region = tables.allowed_sge(pd, lkey, addr, length, _NO_ACCESS)
            if region is None:
                return None
            found.append(Piece(region.dma_address(addr), length))
        return tuple(found)

    def check(self, row: QpRow, tables: Tables) -> tuple[Status, tuple[Piece, ...]]:
        """SUCCESS and where the message is, or how the WQE fails. In the rule's order."""
        if not self.is_well_formed:
            return Status.LOC_QP_OP_ERR, ()
        if not self.fits(row.path_mtu):
            return Status.LOC_LEN_ERR, ()
        pieces = self.pieces(tables, row.pd)
        if pieces is None:
            return Status.LOC_PROT_ERR, ()
        return Status.SUCCESS, pieces


def read_wqe(dma: QpDma, qp: QueuePair) -> SendWqe:
    """The QP's next send WQE."""
    row = qp.row
    size = SEND_WQE.size + (SEND_WQE_EXTENSION.size if row.sq_wide else 0)
    address = entry_address(64 * row.sq_addr, size, row.sq_log2, qp.sq_consumer)
    octets = dma.read(qp, address, size)
    return SendWqe.parse(octets, bool(row.sq_wide))
