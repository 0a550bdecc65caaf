"""Where the fields of an untagged IPv4 frame stand, and what the opcodes' headers need.

Octets are numbered from the destination MAC address. IEEE 802.3 clause 3.1.1; RFC 791 section 3.1;
RFC 768; RFC 5041 section 4; RFC 5040 section 4.1; the record extension is the wire format's own.
"""

from dataclasses import dataclass

from amaranth.hdl import Const, Mux

__all__ = [
    "BROADCAST_IPV4",
    "BROADCAST_MAC",
    "CHECKED_FIELDS",
    "DATAGRAM_FIELDS",
    "ETHERNET_HEADER",
    "ETHERTYPE_IPV4",
    "IPV4_HEADER",
    "OPCODES",
    "PROTOCOL_UDP",
    "SEGMENT",
    "SEGMENT_CRC",
    "UDP",
    "UDP_HEADER",
    "Opcode",
    "header_octets",
    "known_opcode",
]

ETHERNET_HEADER = 14
IPV4_HEADER = 20
UDP_HEADER = 8
UDP = ETHERNET_HEADER + IPV4_HEADER
SEGMENT = UDP + UDP_HEADER
SEGMENT_CRC = 4

BROADCAST_MAC = 0xFFFF_FFFF_FFFF
BROADCAST_IPV4 = 0xFFFF_FFFF
ETHERTYPE_IPV4 = 0x0800
PROTOCOL_UDP = 17

CHECKED_FIELDS = {
    "destination_mac": (0, 6),
    "ethertype": (12, 2),
    "version_ihl": (14, 1),
    "total_length": (16, 2),
    "fragment": (20, 2),
    "protocol": (23, 1),
    "destination_ip": (30, 4),
    "destination_port": (36, 2),
    "udp_length": (38, 2),
    "udp_checksum": (40, 2),
    "ddp_control": (SEGMENT, 1),
    "rdmap_control": (SEGMENT + 1, 1),
}
"""Fields that the verdict looks at: name, first octet, octets."""

DATAGRAM_FIELDS = {
    "source_ip": (26, 4),
    "source_port": (34, 2),
    "ddp_control": (SEGMENT, 1),
    "rdmap_control": (SEGMENT + 1, 1),
    "stag": (SEGMENT + 2, 4),
    "to": (SEGMENT + 6, 8),
    "record_msn": (SEGMENT + 14, 4),
    "record_mo": (SEGMENT + 18, 4),
    "record_mlen": (SEGMENT + 22, 4),
    "record_immediate": (SEGMENT + 26, 4),
}
"""Fields of the datagram, those of the segment by their names in a tagged one. In an untagged one
``stag`` holds MLEN, the halves of ``to`` QN and MSN, ``record_msn`` MO, ``record_mo`` the
immediate."""


@dataclass(frozen=True)
class Opcode:
    """A message that is received: RDMAP opcode, T bit, octets of its header."""

    opcode: int
    tagged: bool
    header: int


OPCODES = (
    Opcode(0x0, True, 14),
    Opcode(0x3, False, 18),
    Opcode(0x5, False, 18),
    Opcode(0xC, True, 30),
    Opcode(0xE, False, 22),
)


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
