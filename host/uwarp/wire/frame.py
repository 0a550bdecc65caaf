"""Ethernet, VLAN tags, IPv4 or IPv6, and UDP around one datagram: numbers to octets, and back."""

from __future__ import annotations

from dataclasses import dataclass

from .header import ETHERNET, IPV4, IPV6, UDP, VLAN

__all__ = [
    "BROADCAST_IPV4",
    "BROADCAST_MAC",
    "ETHERTYPE_IPV4",
    "ETHERTYPE_IPV6",
    "ETHERTYPE_QINQ",
    "ETHERTYPE_VLAN",
    "FRAME_OVERHEAD",
    "IPV4_DONT_FRAGMENT",
    "IPV4_FRAGMENT_MASK",
    "MAX_VLAN_TAGS",
    "MIN_FRAME",
    "PROTOCOL_FRAGMENT",
    "PROTOCOL_UDP",
    "FrameError",
    "UdpFrame",
    "internet_sum",
    "udp_sum",
    "vlan_octets",
    "wire_octets",
]

BROADCAST_MAC = 0xFFFF_FFFF_FFFF
BROADCAST_IPV4 = 0xFFFF_FFFF
ETHERTYPE_IPV4 = 0x0800
ETHERTYPE_IPV6 = 0x86DD
ETHERTYPE_VLAN = 0x8100  # IEEE 802.1Q, table 9-1: customer tag
ETHERTYPE_QINQ = 0x88A8  # and service tag
MAX_VLAN_TAGS = 2
PROTOCOL_UDP = 17
PROTOCOL_FRAGMENT = 44  # IPv6 fragment header (RFC 8200, section 4.5)
IPV4_DONT_FRAGMENT = 0x4000
IPV4_FRAGMENT_MASK = 0x3FFF  # MF and the offset
MIN_FRAME = 60  # IEEE 802.3, clause 4A.2.3.2.4: 64 octets with FCS
FRAME_OVERHEAD = 8 + 4 + 12  # preamble and SFD, FCS, inter-frame gap

_TYPE = ETHERNET.offset("ethertype")  # VLAN tags go here, before the EtherType


class FrameError(ValueError):
    """Octets that are not one whole UDP datagram in IPv4 or IPv6 in Ethernet."""


def internet_sum(octets: bytes, start: int = 0) -> int:
    """One's complement sum of 16-bit words, zero-padded to a whole number of them (RFC 1071)."""
    if len(octets) % 2:
        octets += b"\0"
    total = start + sum(memoryview(octets).cast("B")[0::2]) * 256 + sum(memoryview(octets)[1::2])
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def udp_sum(addresses: bytes, datagram: bytes) -> int:
    """Sum over pseudo header and UDP datagram: 0xFFFF if its checksum is right.

    ``addresses`` are source and destination, of either family: the pseudo headers (RFC 768; RFC
    8200, section 8.1) differ by zeros only.
    """
    return internet_sum(addresses + datagram, PROTOCOL_UDP + len(datagram))


def vlan_octets(frame: bytes) -> int:
    """Octets of the frame's VLAN tags, two at most."""
    place = _TYPE
    while place < _TYPE + MAX_VLAN_TAGS * VLAN.size and int.from_bytes(
        frame[place : place + 2], "big"
    ) in (ETHERTYPE_VLAN, ETHERTYPE_QINQ):
        place += VLAN.size
    return place - _TYPE


def wire_octets(frame_length: int) -> int:
    """Octet times that a frame of ``frame_length`` octets (without FCS) takes, its gap included."""
    return max(frame_length, MIN_FRAME) + FRAME_OVERHEAD


@dataclass(frozen=True, kw_only=True)
class UdpFrame:
    """A UDP datagram in a frame.

    Attributes
    ----------
    dest_mac, source_mac : numbers.
    source_ip, dest_ip : numbers, of 32 or 128 bits as ``ip_version`` (4 or 6) has it.
    vlan_tags : each of 32 bits, 0x8100 or 0x88A8 in the upper 16; the outer one first.
    """

    dest_mac: int
    source_mac: int
    source_ip: int
    dest_ip: int
    source_port: int
    dest_port: int
    payload: bytes
    traffic_class: int = 0
    hop_limit: int = 64
    ip_version: int = 4
    vlan_tags: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The frame without FCS, padded to 60 octets. Raises ValueError for a field that does not
        fit."""
        if self.ip_version not in (4, 6):
            raise ValueError(f"ip_version is {self.ip_version}; it takes 4 or 6")
        udp_length = UDP.size + len(self.payload)
        ethertype = ETHERTYPE_IPV4 if self.ip_version == 4 else ETHERTYPE_IPV6
        ip = self._ipv4(udp_length) if self.ip_version == 4 else self._ipv6(udp_length)
        table = IPV4 if self.ip_version == 4 else IPV6
        fields = {
            "source_port": self.source_port,
            "destination_port": self.dest_port,
            "length": udp_length,
        }
        total = udp_sum(ip[table.offset("source") :], UDP.pack(**fields) + self.payload)
        udp = UDP.pack(**fields, checksum=0xFFFF ^ total or 0xFFFF)
        ethernet = ETHERNET.pack(
            destination=self.dest_mac, source=self.source_mac, ethertype=ethertype
        )
        tags = b"".join(VLAN.pack(tpid=tag >> 16, tci=tag & 0xFFFF) for tag in self.vlan_tags)
        frame = ethernet[:_TYPE] + tags + ethernet[_TYPE:] + ip + udp + self.payload
        return frame.ljust(MIN_FRAME, b"\0")

    def _ipv4(self, udp_length: int) -> bytes:
        header = IPV4.pack(
            version_ihl=0x45,
            traffic_class=self.traffic_class,
            total_length=IPV4.size + udp_length,
            flags_fragment=IPV4_DONT_FRAGMENT,
            ttl=self.hop_limit,
            protocol=PROTOCOL_UDP,
            source=self.source_ip,
            destination=self.dest_ip,
        )
        place = IPV4.offset("checksum")
        checksum = 0xFFFF ^ internet_sum(header)
        return header[:place] + checksum.to_bytes(2, "big") + header[place + 2 :]

    def _ipv6(self, udp_length: int) -> bytes:
        if not 0 <= self.traffic_class < 256:
            raise ValueError(f"traffic_class is {self.traffic_class}; it takes 0 to 255")
        return IPV6.pack(
            version_class_flow=6 << 28 | self.traffic_class << 20,
            payload_length=udp_length,
            next_header=PROTOCOL_UDP,
            hop_limit=self.hop_limit,
            source=self.source_ip,
            destination=self.dest_ip,
        )

    @classmethod
    def decode(cls, frame: bytes) -> UdpFrame:
        """The datagram in ``frame``; IPv4 options and the IPv6 flow label are skipped.

        Raises FrameError, for IPv6 with extension headers among others.
        """
        tags = frame[_TYPE : _TYPE + vlan_octets(frame)]
        untagged = frame[:_TYPE] + frame[_TYPE + len(tags) :]
        try:
            ethernet = ETHERNET.unpack(untagged)
            packet = untagged[ETHERNET.size :]
            if ethernet["ethertype"] == ETHERTYPE_IPV4:
                version = 4
                fields, data = _decode_ipv4(packet)
            elif ethernet["ethertype"] == ETHERTYPE_IPV6:
                version = 6
                fields, data = _decode_ipv6(packet)
            else:
                raise FrameError(f"EtherType {ethernet['ethertype']:#06x} is neither IPv4 nor IPv6")
            udp = UDP.unpack(data)
        except FrameError:
            raise
        except ValueError as error:
            raise FrameError(str(error)) from None
        if not UDP.size <= udp["length"] <= len(data):
            raise FrameError(f"UDP length {udp['length']} in {len(data)} octets of IP payload")
        return cls(
            dest_mac=ethernet["destination"],
            source_mac=ethernet["source"],
            source_port=udp["source_port"],
            dest_port=udp["destination_port"],
            payload=data[UDP.size : udp["length"]],
            ip_version=version,
            vlan_tags=tuple(
                int.from_bytes(tags[place : place + VLAN.size], "big")
                for place in range(0, len(tags), VLAN.size)
            ),
            **fields,
        )


def _decode_ipv4(packet: bytes) -> tuple[dict[str, int], bytes]:
    """The fields of UdpFrame that an IPv4 header gives, and the IP payload."""
    ip = IPV4.unpack(packet)
    header = 4 * (ip["version_ihl"] & 15)
    if ip["version_ihl"] >> 4 != 4 or header < IPV4.size:
        raise FrameError(f"IPv4 begins with {ip['version_ihl']:#04x}")
    if ip["total_length"] > len(packet):
        raise FrameError(f"IPv4 total length {ip['total_length']}, {len(packet)} octets left")
    if ip["protocol"] != PROTOCOL_UDP or ip["flags_fragment"] & IPV4_FRAGMENT_MASK:
        raise FrameError("not a whole UDP datagram")
    fields = {
        "source_ip": ip["source"],
        "dest_ip": ip["destination"],
        "traffic_class": ip["traffic_class"],
        "hop_limit": ip["ttl"],
    }
    return fields, packet[header : ip["total_length"]]


def _decode_ipv6(packet: bytes) -> tuple[dict[str, int], bytes]:
    """The fields of UdpFrame that an IPv6 header gives, and the IP payload."""
    ip = IPV6.unpack(packet)
    data = packet[IPV6.size : IPV6.size + ip["payload_length"]]
    if ip["version_class_flow"] >> 28 != 6:
        raise FrameError(f"IPv6 begins with {packet[0]:#04x}")
    if ip["payload_length"] > len(data):
        raise FrameError(f"IPv6 payload length {ip['payload_length']}, {len(data)} octets left")
    if ip["next_header"] != PROTOCOL_UDP:
        raise FrameError("not a whole UDP datagram")
    fields = {
        "source_ip": ip["source"],
        "dest_ip": ip["destination"],
        "traffic_class": ip["version_class_flow"] >> 20 & 0xFF,
        "hop_limit": ip["hop_limit"],
    }
    return fields, data
