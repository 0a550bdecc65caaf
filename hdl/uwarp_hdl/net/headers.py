"""Where the fields of a realigned frame stand, and what the opcodes' headers need.

Octets before the IP header's end are numbered from the destination MAC address, those from there on
so that the UDP header begins at octet 10: it is in word 1 by ``FrameWord.step``. IEEE 802.3 clause
3.1.1; IEEE 802.1Q clause 9.4; RFC 791 section 3.1; RFC 8200 section 3; RFC 768; RFC 5041 section 4;
RFC 5040 section 4.1; the record extension is the wire format's own.
"""

from dataclasses import dataclass

from amaranth.hdl import Const, Mux

from uwarp.wire import DATAGRAM_OPCODES, TAGGED_OPCODES, Opcode, least_size

__all__ = [
    "BROADCAST_IPV4",
    "BROADCAST_MAC",
    "CHECKED_FIELDS",
    "EARLY_HEADER",
    "ETHERNET_HEADER",
    "ETHERTYPE_IPV4",
    "ETHERTYPE_IPV6",
    "FIRST_UDP_WORD",
    "GROUP_OPCODES",
    "IPV6_HEADER",
    "NEXT_FRAGMENT",
    "OPCODES",
    "PROTOCOL_UDP",
    "SEGMENT",
    "SEGMENT_CRC",
    "TAG_TYPES",
    "UDP",
    "UDP_HEADER",
    "ReceivedOpcode",
    "header_octets",
    "known_opcode",
]

ETHERNET_HEADER = 14
EARLY_HEADER = 10
"""Octets before an IP header that the realigner has moved to the front."""

IPV6_HEADER = 40
UDP_HEADER = 8
UDP = 10
SEGMENT = UDP + UDP_HEADER
SEGMENT_CRC = 4
FIRST_UDP_WORD = 4
"""Index of the word with the UDP header's begin, behind the shortest IP header."""

BROADCAST_MAC = 0xFFFF_FFFF_FFFF
BROADCAST_IPV4 = 0xFFFF_FFFF
TAG_TYPES = (0x8100, 0x88A8)
ETHERTYPE_IPV4 = 0x0800
ETHERTYPE_IPV6 = 0x86DD
PROTOCOL_UDP = 17
NEXT_FRAGMENT = 44

CHECKED_FIELDS = {
    "destination_port": (UDP + 2, 2),
    "udp_length": (UDP + 4, 2),
    "udp_checksum": (UDP + 6, 2),
    "ddp_control": (SEGMENT, 1),
    "rdmap_control": (SEGMENT + 1, 1),
}
"""Fields that the verdict looks at: name, first octet, octets."""


@dataclass(frozen=True)
class ReceivedOpcode:
    """A message that is received: RDMAP opcode, T bit, octets of its header, all that a Read
    Request has and the control word of a Terminate included."""

    opcode: int
    tagged: bool
    header: int


OPCODES = tuple(
    ReceivedOpcode(int(opcode), opcode in TAGGED_OPCODES, least_size(opcode))
    for opcode in DATAGRAM_OPCODES
)
GROUP_OPCODES = (Opcode.SEND, Opcode.SEND_SOLICITED, Opcode.SEND_IMMEDIATE)
"""Those that may come to a group."""


def header_octets(opcode, more=0):
    """Octets of the header of ``opcode``, the shortest for an unknown one, and ``more``.

    The addition is done here, once for each opcode, since the result is a function of 4 bits only.
    """
    width = (max(item.header for item in OPCODES) + more).bit_length()
    octets = Const(min(item.header for item in OPCODES) + more, width)
    for item in OPCODES:
        octets = Mux(opcode == item.opcode, Const(item.header + more, width), octets)
    return octets


def known_opcode(opcode, tagged):
    """1 if ``opcode`` is received and ``tagged`` is its T bit."""
    known = Const(0)
    for item in OPCODES:
        known |= (opcode == item.opcode) & (tagged == item.tagged)
    return known
