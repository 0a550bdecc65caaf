"""The wire format as code: encode, decode, CRC32c. Pure functions; nothing here knows a device."""

from .crc import CRC_OCTETS, append_crc, crc32c, crc_is_right
from .frame import (
    BROADCAST_IPV4,
    BROADCAST_MAC,
    ETHERTYPE_IPV4,
    FRAME_OVERHEAD,
    IPV4_DONT_FRAGMENT,
    IPV4_FRAGMENT_MASK,
    MIN_FRAME,
    PROTOCOL_UDP,
    FrameError,
    UdpFrame,
    internet_sum,
    ipv4_number,
    ipv4_text,
    mac_number,
    mac_text,
    wire_octets,
)
from .header import ETHERNET, IMMEDIATE, IPV4, READ_REQUEST, RECORD, TAGGED, UDP, UNTAGGED, Header
from .plan import DEFAULT_GRANULE, segment_room, segments
from .segment import (
    DDP_LAST,
    DDP_TAGGED,
    DDP_VERSION,
    DDP_VERSION_MASK,
    IMMEDIATE_OPCODES,
    RDMAP_IMMEDIATE,
    RDMAP_OPCODE_MASK,
    RDMAP_SOLICITED,
    RDMAP_VERSION,
    RDMAP_VERSION_MASK,
    RECORD_OPCODES,
    TAGGED_OPCODES,
    AtomicRequest,
    AtomicResponse,
    ImmediateData,
    Opcode,
    QueueNumber,
    ReadRequest,
    Segment,
    SegmentError,
    Terminate,
    header_size,
    queue_number,
)

__all__ = [
    name
    for name in dir()
    if not name.startswith("_") and name not in {"crc", "frame", "header", "plan", "segment"}
]
