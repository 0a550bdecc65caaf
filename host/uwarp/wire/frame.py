"""Ethernet, IPv4 and UDP around one datagram, as numbers in and octets out, and back."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from .header import ETHERNET, IPV4, UDP

__all__ = [
    "BROADCAST_IPV4",
    "BROADCAST_MAC",
    "ETHERTYPE_IPV4",
    "FRAME_OVERHEAD",
    "IPV4_DONT_FRAGMENT",
    "IPV4_FRAGMENT_MASK",
    "MIN_FRAME",
    "PROTOCOL_UDP",
    "FrameError",
    "UdpFrame",
    "internet_sum",
    "ipv4_number",
    "ipv4_text",
    "mac_number",
    "mac_text",
    "wire_octets",
]

BROADCAST_MAC = 0xFFFF_FFFF_FFFF
BROADCAST_IPV4 = 0xFFFF_FFFF
ETHERTYPE_IPV4 = 0x0800
PROTOCOL_UDP = 17
IPV4_DONT_FRAGMENT = 0x4000
IPV4_FRAGMENT_MASK = 0x3FFF  # MF and the offset
MIN_FRAME = 60  # IEEE 802.3, clause 4A.2.3.2.4: 64 octets with FCS
FRAME_OVERHEAD = 8 + 4 + 12  # preamble and SFD, FCS, inter-frame gap


class FrameError(ValueError):
    """Octets that are not one whole UDP datagram in IPv4 in Ethernet."""


def internet_sum(octets: bytes, start: int = 0) -> int:
    """One's complement sum of 16-bit words, zero-padded to a whole number of them (RFC 1071)."""
    if len(octets) % 2:
        octets += b"\0"
    total = start + sum(memoryview(octets).cast("B")[0::2]) * 256 + sum(memoryview(octets)[1::2])
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def wire_octets(frame_length: int) -> int:
    """Octet times that a frame of ``frame_length`` octets (without FCS) takes, its gap included."""
    return max(frame_length, MIN_FRAME) + FRAME_OVERHEAD


def mac_number(text: str) -> int:
    """``02:00:00:00:00:01`` as a number. Raises ValueError."""
    parts = text.split(":")
    if len(parts) != 6 or not all(len(part) in (1, 2) for part in parts):
        raise ValueError(f"{text!r} is no MAC address; write it as 02:00:00:00:00:01")
    return int.from_bytes(bytes(int(part, 16) for part in parts), "big")


def mac_text(number: int) -> str:
    return number.to_bytes(6, "big").hex(":")


def ipv4_number(text: str) -> int:
    """``10.0.0.1`` as a number. Raises ValueError."""
    return int(ipaddress.IPv4Address(text))


def ipv4_text(number: int) -> str:
    return str(ipaddress.IPv4Address(number))


@dataclass(frozen=True, kw_only=True)
class UdpFrame:
    """A UDP datagram in an untagged IPv4 frame; MAC and IPv4 addresses as numbers."""

    dest_mac: int
    source_mac: int
    source_ip: int
    dest_ip: int
    source_port: int
    dest_port: int
    payload: bytes
    traffic_class: int = 0
    hop_limit: int = 64

    def encode(self) -> bytes:
        """The frame without FCS, padded to 60 octets. Raises ValueError for a field that does not
        fit."""
        udp_length = UDP.size + len(self.payload)
        ip = IPV4.pack(
            version_ihl=0x45,
            traffic_class=self.traffic_class,
            total_length=IPV4.size + udp_length,
            flags_fragment=IPV4_DONT_FRAGMENT,
            ttl=self.hop_limit,
            protocol=PROTOCOL_UDP,
            source=self.source_ip,
            destination=self.dest_ip,
        )
        checksum = IPV4.offset("checksum")
        ip = ip[:checksum] + (0xFFFF ^ internet_sum(ip)).to_bytes(2, "big") + ip[checksum + 2 :]
        ports = {"source_port": self.source_port, "destination_port": self.dest_port}
        pseudo = (
            ip[IPV4.offset("source") :] + bytes((0, PROTOCOL_UDP)) + udp_length.to_bytes(2, "big")
        )
        total = internet_sum(pseudo + UDP.pack(**ports, length=udp_length) + self.payload)
        udp = UDP.pack(**ports, length=udp_length, checksum=0xFFFF ^ total or 0xFFFF)
        ethernet = ETHERNET.pack(
            destination=self.dest_mac, source=self.source_mac, ethertype=ETHERTYPE_IPV4
        )
        return (ethernet + ip + udp + self.payload).ljust(MIN_FRAME, b"\0")

    @classmethod
    def decode(cls, frame: bytes) -> UdpFrame:
        """The datagram in ``frame``; IP options are skipped. Raises FrameError."""
        try:
            ethernet = ETHERNET.unpack(frame)
            if ethernet["ethertype"] != ETHERTYPE_IPV4:
                raise FrameError(f"EtherType {ethernet['ethertype']:#06x} is not IPv4")
            ip = IPV4.unpack(frame, ETHERNET.size)
            header = 4 * (ip["version_ihl"] & 15)
            if ip["version_ihl"] >> 4 != 4 or header < IPV4.size:
                raise FrameError(f"IPv4 begins with {ip['version_ihl']:#04x}")
            if ip["protocol"] != PROTOCOL_UDP or ip["flags_fragment"] & IPV4_FRAGMENT_MASK:
                raise FrameError("not a whole UDP datagram")
            start = ETHERNET.size + header
            end = ETHERNET.size + ip["total_length"]
            udp = UDP.unpack(frame[:end], start)
        except FrameError:
            raise
        except ValueError as error:
            raise FrameError(str(error)) from None
        if not UDP.size <= udp["length"] <= end - start or end > len(frame):
            raise FrameError(f"UDP length {udp['length']} in {end - start} octets of IPv4 payload")
        return cls(
            dest_mac=ethernet["destination"],
            source_mac=ethernet["source"],
            source_ip=ip["source"],
            dest_ip=ip["destination"],
            source_port=udp["source_port"],
            dest_port=udp["destination_port"],
            payload=frame[start + UDP.size : start + udp["length"]],
            traffic_class=ip["traffic_class"],
            hop_limit=ip["ttl"],
        )
