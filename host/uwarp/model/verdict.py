"""From frame to verdict (device behaviour, section 2): what is decided without a QP or a region.

``network`` finds the UDP datagram, this module the DDP segment in it (items 15 to 21).
"""

from __future__ import annotations

from dataclasses import dataclass

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
    header_size,
)

from .closed import Kind, MessageName
from .network import Port, examine_frame
from .tables import Tables

__all__ = ["Datagram", "examine"]

_OPCODES = frozenset(
    {Opcode.WRITE, Opcode.SEND, Opcode.SEND_SOLICITED, Opcode.WRITE_RECORD, Opcode.SEND_IMMEDIATE}
)
_TAGGED = frozenset({Opcode.WRITE, Opcode.WRITE_RECORD})


@dataclass(frozen=True)
class Datagram:
    """A segment that passed, and where it came from."""

    qpn: int
    source_ip: int
    source_port: int
    segment: Segment

    @property
    def name(self) -> MessageName:
        record = self.segment.opcode is Opcode.WRITE_RECORD
        kind = Kind.WRITE_RECORD if record else Kind.SEND
        return MessageName(self.qpn, self.source_ip, self.source_port, self.segment.msn, kind)

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
    datagram = examine_frame(frame, error, port)
    if isinstance(datagram, Counter):
        return datagram
    qpn = tables.qp_of_port(datagram.dest_port)
    if datagram.broadcast or qpn is None:
        return Counter.RX_MANAGEMENT
    segment = _examine_segment(datagram.payload)
    if isinstance(segment, Counter):
        return segment
    return Datagram(qpn, datagram.source_ip, datagram.source_port, segment)


def _examine_segment(payload: bytes) -> Segment | Counter:
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
    if opcode not in _OPCODES or bool(ddp & DDP_TAGGED) != (opcode in _TAGGED):
        return Counter.DROP_OPCODE
    if len(payload) < header_size(opcode) + CRC_OCTETS:
        return Counter.DROP_DDP_SHORT
    return Segment.decode(payload[:-CRC_OCTETS])
