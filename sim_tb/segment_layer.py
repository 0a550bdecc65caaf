"""The wire format as scapy layers, written from the specification alone.

Shares no code with ``uwarp.wire``: the two check each other. The CRC comes from the package
``crc32c``, where ``uwarp.wire`` uses another one. :func:`dissect` reads a frame::

    Ether / IP / UDP / DdpTagged [/ Record] / Raw
    Ether / IP / UDP / DdpUntagged [/ ReadRequest | Terminate | Immediate ...] / Raw

The CRC32c is the field ``crc`` of the DDP layer: a trailer, computed on building if it is None.
"""

import crc32c
from scapy.fields import (
    BitEnumField,
    BitField,
    FCSField,
    IntField,
    LongField,
    XIntField,
    XLongField,
)
from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_layers

__all__ = [
    "AtomicRequest",
    "AtomicResponse",
    "DdpTagged",
    "DdpUntagged",
    "ImmediateData",
    "ReadRequest",
    "Record",
    "SendImmediate",
    "Terminate",
    "bind_port",
    "crc_is_right",
    "dissect",
]

OPCODES = {
    0x0: "write",
    0x1: "read-request",
    0x2: "read-response",
    0x3: "send",
    0x4: "send-invalidate",
    0x5: "send-se",
    0x6: "send-se-invalidate",
    0x7: "terminate",
    0x8: "immediate",
    0x9: "immediate-se",
    0xA: "atomic-request",
    0xB: "atomic-response",
    0xC: "write-record",
    0xD: "read-response-record",
    0xE: "send-immediate",
    0xF: "reliable-ack",
}


def _control(tagged: int, opcode: int) -> list:
    """The DDP and the RDMAP control octet."""
    return [
        BitField("t", tagged, 1),
        BitField("l", 1, 1),
        BitField("reserved", 0, 4),
        BitField("dv", 1, 2),
        BitField("rv", 1, 2),
        BitField("se", 0, 1),
        BitField("im", 0, 1),
        BitEnumField("opcode", opcode, 4, OPCODES),
    ]


class _Ddp(Packet):
    """What tagged and untagged segments share: the trailer."""

    def post_build(self, header: bytes, payload: bytes) -> bytes:
        if self.crc is None:
            payload = payload[:-4]
            payload += crc32c.crc32c(header + payload).to_bytes(4, "little")
        return header + payload


class DdpTagged(_Ddp):
    """Tagged DDP header (RFC 5041, section 4.2)."""

    name = "DDP tagged"
    fields_desc = [
        *_control(1, 0x0),
        XIntField("stag", 0),
        XLongField("to", 0),
        FCSField("crc", None, fmt="<I"),
    ]

    def guess_payload_class(self, payload: bytes):
        return Record if self.opcode in (0xC, 0xD) else Raw


class DdpUntagged(_Ddp):
    """Untagged DDP header (RFC 5041, section 4.3); ``mlen`` is the field RsvdULP."""

    name = "DDP untagged"
    fields_desc = [
        *_control(0, 0x3),
        IntField("mlen", 0),
        IntField("qn", 0),
        IntField("msn", 1),
        IntField("mo", 0),
        FCSField("crc", None, fmt="<I"),
    ]

    def guess_payload_class(self, payload: bytes):
        return _BODIES.get(self.opcode, Raw)


class Record(Packet):
    """Record extension of the opcodes 0xC and 0xD."""

    name = "record extension"
    fields_desc = [
        IntField("msn", 1),
        IntField("mo", 0),
        IntField("mlen", 0),
        XIntField("immediate", 0),
    ]


class SendImmediate(Packet):
    """The immediate of a Send with Immediate, 0xE."""

    name = "send immediate"
    fields_desc = [XIntField("immediate", 0)]


class ReadRequest(Packet):
    """RDMA Read Request header (RFC 5040, section 4.4)."""

    name = "read request"
    fields_desc = [
        XIntField("sink_stag", 0),
        XLongField("sink_to", 0),
        IntField("size", 0),
        XIntField("source_stag", 0),
        XLongField("source_to", 0),
    ]


class Terminate(Packet):
    """Terminate control word (RFC 5040, section 4.8)."""

    name = "terminate"
    fields_desc = [
        BitField("layer", 0, 4),
        BitField("etype", 0, 4),
        BitField("code", 0, 8),
        BitField("m", 0, 1),
        BitField("d", 0, 1),
        BitField("r", 0, 1),
        BitField("reserved", 0, 13),
    ]


class ImmediateData(Packet):
    """Immediate Data (RFC 7306, section 6.2)."""

    name = "immediate data"
    fields_desc = [LongField("data", 0)]


class AtomicRequest(Packet):
    """Atomic Request (RFC 7306, section 5.2.1)."""

    name = "atomic request"
    fields_desc = [
        BitField("reserved", 0, 28),
        BitField("operation", 0, 4),
        IntField("request", 0),
        XIntField("stag", 0),
        XLongField("to", 0),
        XLongField("add_swap", 0),
        XLongField("add_swap_mask", 0),
        XLongField("compare", 0),
        XLongField("compare_mask", 0),
    ]


class AtomicResponse(Packet):
    """Atomic Response (RFC 7306, section 5.2.2)."""

    name = "atomic response"
    fields_desc = [IntField("request", 0), XLongField("data", 0)]


_BODIES = {
    0x1: ReadRequest,
    0x7: Terminate,
    0x8: ImmediateData,
    0x9: ImmediateData,
    0xA: AtomicRequest,
    0xB: AtomicResponse,
    0xE: SendImmediate,
}


class _Segment(_Ddp):
    """Entry for dissection: turns into one of the two DDP layers by the T bit."""

    name = "DDP"
    fields_desc = []

    @classmethod
    def dispatch_hook(cls, octets=None, *_args, **_kwargs):
        if octets:
            return DdpTagged if octets[0] & 0x80 else DdpUntagged
        return cls


def bind_port(port: int) -> None:
    """Dissect what goes to UDP ``port`` as DDP. UDP port 0 cannot be bound."""
    bind_layers(UDP, _Segment, dport=port)


def crc_is_right(segment: _Ddp) -> bool:
    """Whether a dissected segment's ``crc`` is that of the octets before it."""
    octets = segment.original
    return segment.crc == crc32c.crc32c(octets[:-4])


def dissect(frame: bytes) -> Ether:
    """A frame whose UDP payload is read as DDP whatever its port."""
    packet = Ether(frame)
    udp = packet[UDP]
    octets = bytes(udp.payload.original)[: udp.len - 8]
    udp.remove_payload()
    udp.add_payload(DdpTagged(octets) if octets[0] & 0x80 else DdpUntagged(octets))
    return packet
