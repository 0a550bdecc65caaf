"""DDP segments: control octets, headers, and what each RDMAP message carries behind them.

Tagged and untagged headers are those of RFC 5041, the opcodes those of RFC 5040 and RFC 7306 and
this project's 0xC to 0xF (the record extension and Send with Immediate).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from .crc import CRC_OCTETS, append_crc, crc_is_right
from .header import IMMEDIATE, READ_REQUEST, RECORD, TAGGED, UNTAGGED, Header
from .terminate import terminate_text

__all__ = [
    "DATAGRAM_OPCODES",
    "DDP_LAST",
    "DDP_TAGGED",
    "DDP_VERSION",
    "DDP_VERSION_MASK",
    "IMMEDIATE_OPCODES",
    "RDMAP_IMMEDIATE",
    "RDMAP_OPCODE_MASK",
    "RDMAP_SOLICITED",
    "RDMAP_VERSION",
    "RDMAP_VERSION_MASK",
    "RECORD_OPCODES",
    "TAGGED_OPCODES",
    "AtomicRequest",
    "AtomicResponse",
    "ImmediateData",
    "Opcode",
    "QueueNumber",
    "ReadRequest",
    "Segment",
    "SegmentError",
    "Terminate",
    "header_size",
    "least_size",
    "queue_number",
]

DDP_TAGGED = 0x80
DDP_LAST = 0x40
DDP_VERSION_MASK = 0x03
DDP_VERSION = 1
RDMAP_VERSION_MASK = 0xC0
RDMAP_VERSION = 0x40
RDMAP_SOLICITED = 0x20
RDMAP_IMMEDIATE = 0x10
RDMAP_OPCODE_MASK = 0x0F


class Opcode(IntEnum):
    """RDMAP opcodes."""

    WRITE = 0x0
    READ_REQUEST = 0x1
    READ_RESPONSE = 0x2
    SEND = 0x3
    SEND_INVALIDATE = 0x4
    SEND_SOLICITED = 0x5
    SEND_SOLICITED_INVALIDATE = 0x6
    TERMINATE = 0x7
    IMMEDIATE = 0x8
    IMMEDIATE_SOLICITED = 0x9
    ATOMIC_REQUEST = 0xA
    ATOMIC_RESPONSE = 0xB
    WRITE_RECORD = 0xC
    READ_RESPONSE_RECORD = 0xD
    SEND_IMMEDIATE = 0xE
    RELIABLE_ACK = 0xF


class QueueNumber(IntEnum):
    """Untagged queues."""

    SEND = 0
    REQUEST = 1
    TERMINATE = 2
    RESPONSE = 3


TAGGED_OPCODES = frozenset(
    {Opcode.WRITE, Opcode.READ_RESPONSE, Opcode.WRITE_RECORD, Opcode.READ_RESPONSE_RECORD}
)
#: What a device takes on datagram queue pairs.
DATAGRAM_OPCODES = (
    Opcode.WRITE,
    Opcode.READ_REQUEST,
    Opcode.SEND,
    Opcode.SEND_SOLICITED,
    Opcode.TERMINATE,
    Opcode.WRITE_RECORD,
    Opcode.READ_RESPONSE_RECORD,
    Opcode.SEND_IMMEDIATE,
)
RECORD_OPCODES = frozenset({Opcode.WRITE_RECORD, Opcode.READ_RESPONSE_RECORD})
IMMEDIATE_OPCODES = frozenset({Opcode.WRITE_RECORD, Opcode.SEND_IMMEDIATE})
_INVALIDATE_OPCODES = frozenset({Opcode.SEND_INVALIDATE, Opcode.SEND_SOLICITED_INVALIDATE})
_CONTROL_WORD = 4  # octets with which a Terminate's payload begins
_BODIES = {Opcode.READ_REQUEST: READ_REQUEST.size, Opcode.TERMINATE: _CONTROL_WORD}
_QUEUES = {
    Opcode.READ_REQUEST: QueueNumber.REQUEST,
    Opcode.TERMINATE: QueueNumber.TERMINATE,
    Opcode.ATOMIC_REQUEST: QueueNumber.REQUEST,
    Opcode.ATOMIC_RESPONSE: QueueNumber.RESPONSE,
    Opcode.RELIABLE_ACK: QueueNumber.RESPONSE,
}


class SegmentError(ValueError):
    """Octets that are no DDP segment of this wire format."""


def header_size(opcode: Opcode) -> int:
    """Octets before the payload: 14 or 18, and the record extension or immediate if there is
    one."""
    size = TAGGED.size if opcode in TAGGED_OPCODES else UNTAGGED.size
    if opcode in RECORD_OPCODES:
        size += RECORD.size
    elif opcode is Opcode.SEND_IMMEDIATE:
        size += IMMEDIATE.size
    return size


def least_size(opcode: Opcode) -> int:
    """Octets of the shortest segment: the header, and the body that each Read Request has, or the
    control word of a Terminate."""
    return header_size(opcode) + _BODIES.get(opcode, 0)


def queue_number(opcode: Opcode) -> QueueNumber:
    """The untagged queue that an opcode goes to."""
    return _QUEUES.get(opcode, QueueNumber.SEND)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One DDP segment.

    Tagged opcodes use ``stag`` and ``to``, untagged ones ``qn``; ``msn``, ``mo`` and ``mlen``
    belong to all but the plain tagged ones. ``solicited`` and ``immediate_valid`` are the bits SE
    and IM, for opcodes 0xC and 0xE only. ``mlen`` of a Send with Invalidate is the STag to
    invalidate, as in RFC 5040.
    """

    opcode: Opcode
    payload: bytes = b""
    last: bool = True
    solicited: bool = False
    immediate_valid: bool = False
    stag: int = 0
    to: int = 0
    qn: int = 0
    msn: int = 0
    mo: int = 0
    mlen: int = 0
    immediate: int = 0

    @property
    def tagged(self) -> bool:
        return self.opcode in TAGGED_OPCODES

    @property
    def invalidate_stag(self) -> int | None:
        """The STag that a Send with Invalidate names, or None for other opcodes."""
        return self.mlen if self.opcode in _INVALIDATE_OPCODES else None

    def encode(self) -> bytes:
        """The segment's octets, without CRC. Raises ValueError for a field that does not fit."""
        if (self.solicited or self.immediate_valid) and self.opcode not in IMMEDIATE_OPCODES:
            raise ValueError(f"{self.opcode.name} has no SE and no IM bit")
        ddp = DDP_VERSION | (DDP_TAGGED if self.tagged else 0) | (DDP_LAST if self.last else 0)
        rdmap = (
            RDMAP_VERSION
            | (RDMAP_SOLICITED if self.solicited else 0)
            | (RDMAP_IMMEDIATE if self.immediate_valid else 0)
            | self.opcode
        )
        if self.tagged:
            octets = TAGGED.pack(ddp=ddp, rdmap=rdmap, stag=self.stag, to=self.to)
            if self.opcode in RECORD_OPCODES:
                octets += RECORD.pack(
                    msn=self.msn, mo=self.mo, mlen=self.mlen, immediate=self.immediate
                )
        else:
            octets = UNTAGGED.pack(
                ddp=ddp, rdmap=rdmap, rsvdulp=self.mlen, qn=self.qn, msn=self.msn, mo=self.mo
            )
            if self.opcode is Opcode.SEND_IMMEDIATE:
                octets += IMMEDIATE.pack(immediate=self.immediate)
        return octets + self.payload

    def to_datagram(self) -> bytes:
        """The UDP payload that carries the segment: its octets and their CRC32c."""
        return append_crc(self.encode())

    @classmethod
    def decode(cls, octets: bytes) -> Segment:
        """The segment in ``octets`` (without CRC).

        Raises
        ------
        SegmentError
            Cut short, another version, or a T bit that is not the opcode's.
        """
        if len(octets) < 2:
            raise SegmentError(f"a segment of {len(octets)} octets has no control octets")
        ddp, rdmap = octets[0], octets[1]
        if ddp & DDP_VERSION_MASK != DDP_VERSION:
            raise SegmentError(f"DDP version {ddp & DDP_VERSION_MASK}, not {DDP_VERSION}")
        if rdmap & RDMAP_VERSION_MASK != RDMAP_VERSION:
            raise SegmentError(f"RDMAP version {rdmap >> 6}, not {RDMAP_VERSION >> 6}")
        opcode = Opcode(rdmap & RDMAP_OPCODE_MASK)
        if bool(ddp & DDP_TAGGED) != (opcode in TAGGED_OPCODES):
            raise SegmentError(f"T is {ddp >> 7} in a segment of opcode {opcode.name}")
        size = header_size(opcode)
        if len(octets) < size:
            raise SegmentError(f"{opcode.name} takes {size} octets of header, {len(octets)} came")
        fields: dict[str, int] = {}
        if opcode in TAGGED_OPCODES:
            fields |= TAGGED.unpack(octets)
            if opcode in RECORD_OPCODES:
                fields |= RECORD.unpack(octets, TAGGED.size)
        else:
            fields |= UNTAGGED.unpack(octets)
            fields["mlen"] = fields.pop("rsvdulp")
            if opcode is Opcode.SEND_IMMEDIATE:
                fields |= IMMEDIATE.unpack(octets, UNTAGGED.size)
        del fields["ddp"], fields["rdmap"]
        flagged = opcode in IMMEDIATE_OPCODES
        return cls(
            opcode=opcode,
            payload=bytes(octets[size:]),
            last=bool(ddp & DDP_LAST),
            solicited=flagged and bool(rdmap & RDMAP_SOLICITED),
            immediate_valid=flagged and bool(rdmap & RDMAP_IMMEDIATE),
            **fields,
        )

    @classmethod
    def from_datagram(cls, payload: bytes) -> Segment:
        """The segment in a UDP payload. Raises SegmentError, also for a wrong CRC."""
        if not crc_is_right(payload):
            raise SegmentError("the CRC32c is wrong")
        return cls.decode(payload[:-CRC_OCTETS])


class _Body:
    """A message body of fixed fields: encoded from, and decoded to, a dataclass of the same
    names."""

    _header: Header

    def encode(self) -> bytes:
        return self._header.pack(**{name: getattr(self, name) for name, _ in self._header.fields})


def _decode_body(header: Header, octets: bytes) -> dict[str, int]:
    if len(octets) != header.size:
        raise SegmentError(f"{header.name} has {header.size} octets, {len(octets)} came")
    return header.unpack(octets)


@dataclass(frozen=True, kw_only=True)
class ReadRequest(_Body):
    """Payload of an RDMA Read Request (RFC 5040, section 4.4)."""

    _header = READ_REQUEST

    sink_stag: int
    sink_to: int
    size: int
    source_stag: int
    source_to: int

    @classmethod
    def decode(cls, octets: bytes) -> ReadRequest:
        return cls(**_decode_body(cls._header, octets))


@dataclass(frozen=True, kw_only=True)
class ImmediateData(_Body):
    """Payload of Immediate Data (RFC 7306, section 6.2)."""

    _header = Header("immediate_data", (("data", 8),))

    data: int

    @classmethod
    def decode(cls, octets: bytes) -> ImmediateData:
        return cls(**_decode_body(cls._header, octets))


@dataclass(frozen=True, kw_only=True)
class AtomicRequest(_Body):
    """Payload of an Atomic Request (RFC 7306, section 5.2.1); ``operation`` is the low nibble of
    its word."""

    _header = Header(
        "atomic_request",
        (
            ("operation", 4),
            ("request", 4),
            ("stag", 4),
            ("to", 8),
            ("add_swap", 8),
            ("add_swap_mask", 8),
            ("compare", 8),
            ("compare_mask", 8),
        ),
    )

    operation: int
    request: int
    stag: int
    to: int
    add_swap: int
    add_swap_mask: int
    compare: int
    compare_mask: int

    @classmethod
    def decode(cls, octets: bytes) -> AtomicRequest:
        return cls(**_decode_body(cls._header, octets))


@dataclass(frozen=True, kw_only=True)
class AtomicResponse(_Body):
    """Payload of an Atomic Response (RFC 7306, section 5.2.2)."""

    _header = Header("atomic_response", (("request", 4), ("data", 8)))

    request: int
    data: int

    @classmethod
    def decode(cls, octets: bytes) -> AtomicResponse:
        return cls(**_decode_body(cls._header, octets))


@dataclass(frozen=True, kw_only=True)
class Terminate:
    """Payload of a Terminate (RFC 5040, section 4.8): the control word, then what it quotes.

    ``layer`` and ``etype`` are 4 bits, ``code`` 8. The flags M, D, R say which of the segment
    length, the DDP header and the RDMAP header ``quoted`` holds.
    """

    layer: int
    etype: int
    code: int
    has_length: bool = False
    has_ddp: bool = False
    has_rdmap: bool = False
    quoted: bytes = b""

    @classmethod
    def of(cls, report: int) -> Terminate:
        """One that quotes nothing, of the upper half of its control word."""
        return cls(layer=report >> 12, etype=report >> 8 & 15, code=report & 255)

    @property
    def report(self) -> int:
        """The upper half of the control word: ``layer << 12 | etype << 8 | code``."""
        return self.layer << 12 | self.etype << 8 | self.code

    @property
    def meaning(self) -> str:
        """What it reports, in words: ``DDP, untagged buffer: invalid queue number``."""
        return terminate_text(self.report)

    def encode(self) -> bytes:
        for name, bits in (("layer", 4), ("etype", 4), ("code", 8)):
            if not 0 <= getattr(self, name) < 1 << bits:
                raise ValueError(f"{name} is {getattr(self, name)}; it takes {bits} bits")
        word = self.report << 16 | self.has_length << 15 | self.has_ddp << 14 | self.has_rdmap << 13
        return word.to_bytes(_CONTROL_WORD, "big") + self.quoted

    @classmethod
    def decode(cls, octets: bytes) -> Terminate:
        if len(octets) < _CONTROL_WORD:
            raise SegmentError(f"a Terminate of {len(octets)} octets has no control word")
        word = int.from_bytes(octets[:_CONTROL_WORD], "big")
        return replace(
            cls.of(word >> 16),
            has_length=bool(word & 0x8000),
            has_ddp=bool(word & 0x4000),
            has_rdmap=bool(word & 0x2000),
            quoted=bytes(octets[_CONTROL_WORD:]),
        )
