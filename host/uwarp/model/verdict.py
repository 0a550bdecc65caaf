"""From frame to verdict (device behaviour, section 2): what is decided without a QP or a region.

``network`` finds the UDP datagram, this module the DDP segment in it (items 15 to 21).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from uwarp.contract import Counter, CqeFlag
from uwarp.wire import (
    CRC_OCTETS,
    DDP_TAGGED,
    DDP_VERSION,
    DDP_VERSION_MASK,
    RDMAP_OPCODE_MASK,
    RDMAP_VERSION,
    RDMAP_VERSION_MASK,
    TAGGED,
    Opcode,
    Segment,
    crc_is_right,
    least_size,
)

from .closed import Kind, MessageName
from .network import Port, examine_frame
from .tables import Tables

__all__ = ["Datagram", "examine"]

_SENDS = frozenset({Opcode.SEND, Opcode.SEND_SOLICITED, Opcode.SEND_IMMEDIATE})
_TAGGED = frozenset({Opcode.WRITE, Opcode.WRITE_RECORD, Opcode.READ_RESPONSE_RECORD})
_OPCODES = _SENDS | _TAGGED | {Opcode.READ_REQUEST, Opcode.TERMINATE}
_KINDS = {
    Opcode.WRITE_RECORD: Kind.WRITE_RECORD,
    Opcode.READ_RESPONSE_RECORD: Kind.READ,
}


@dataclass(frozen=True)
class Datagram:
    """A segment that passed, and where it came from.

    ``own_group`` says that it came to a group, and from this port itself; ``members`` are the
    group's, the first of them ``qpn``; ``is_copy`` that it is what one of them receives.
    """

    qpn: int
    source_mac: int
    source_ip: int
    source_port: int
    segment: Segment
    own_group: bool = False
    members: tuple[int, ...] = ()
    is_copy: bool = False

    def copies(self) -> Iterator[Datagram]:
        """What each QP receives."""
        if not self.members:
            yield self
        for qpn in self.members:
            yield replace(self, qpn=qpn, members=(), is_copy=True)

    @property
    def name(self) -> MessageName:
        kind = _KINDS.get(self.segment.opcode, Kind.SEND)
        return MessageName(self.qpn, self.source_ip, self.source_port, self.segment.msn, kind)

    def answer_fields(self) -> dict[str, int]:
        """Fields of an ``Answer``: it goes back where the datagram came from."""
        return {
            "qpn": self.qpn,
            "dest_mac": self.source_mac,
            "dest_ip": self.source_ip,
            "dest_port": self.source_port,
            "msn": self.segment.msn,
        }

    def cqe_fields(self) -> dict[str, int]:
        """Fields of a CQE that are the datagram's, whatever becomes of it."""
        segment = self.segment
        flags = CqeFlag.RECEIVE
        if segment.immediate_valid:
            flags |= CqeFlag.IMMEDIATE
        if segment.solicited or segment.opcode is Opcode.SEND_SOLICITED:
            flags |= CqeFlag.SOLICITED
        return {
            "opcode": segment.opcode,
            "flags": flags,
            "qpn": self.qpn,
            "msn": segment.msn,
            "mlen": segment.mlen,
            "immediate": segment.immediate if segment.immediate_valid else 0,
            "source_ip": self.source_ip,
            "source_port": self.source_port,
        }


def examine(frame: bytes, error: bool, port: Port, tables: Tables) -> Datagram | Counter:
    """The datagram in a frame, or the counter in which the frame ends. In the rule's order."""
    datagram = examine_frame(frame, error, port, tables)
    if isinstance(datagram, Counter):
        return datagram
    members = datagram.members
    qpn = members[0] if members else tables.qp_of_port(datagram.dest_port)
    if qpn is None or (datagram.broadcast and not members):
        return Counter.RX_MANAGEMENT
    segment = _examine_segment(datagram.payload, _SENDS if members else _OPCODES)
    if isinstance(segment, Counter):
        return segment
    return Datagram(
        qpn=qpn,
        source_mac=datagram.source_mac,
        source_ip=datagram.source_ip,
        source_port=datagram.source_port,
        segment=segment,
        own_group=bool(members) and datagram.source_mac == port.mac,
        members=members,
    )


def _examine_segment(payload: bytes, opcodes: frozenset[Opcode]) -> Segment | Counter:
    if len(payload) < TAGGED.size + CRC_OCTETS:
        return Counter.DROP_DDP_SHORT
    if not crc_is_right(payload):
        return Counter.DROP_CRC
    ddp, rdmap = payload[0], payload[1]
    if ddp & DDP_VERSION_MASK != DDP_VERSION:
        return Counter.DROP_DDP_VERSION
    if rdmap & RDMAP_VERSION_MASK != RDMAP_VERSION:
        return Counter.DROP_RDMAP_VERSION
    opcode = Opcode(rdmap & RDMAP_OPCODE_MASK)
    if opcode not in opcodes or bool(ddp & DDP_TAGGED) != (opcode in _TAGGED):
        return Counter.DROP_OPCODE
    if len(payload) < least_size(opcode) + CRC_OCTETS:
        return Counter.DROP_DDP_SHORT
    return Segment.decode(payload[:-CRC_OCTETS])
