"""From frame to UDP datagram (device behaviour, section 2, items 2 to 14)."""

from __future__ import annotations

from dataclasses import dataclass

from uwarp.contract import Counter, Filter
from uwarp.wire import (
    BROADCAST_IPV4,
    BROADCAST_MAC,
    ETHERNET,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    IPV4,
    IPV4_FRAGMENT_MASK,
    IPV6,
    PROTOCOL_FRAGMENT,
    PROTOCOL_UDP,
    UDP,
    internet_sum,
    mapped_ipv4,
    udp_sum,
    vlan_octets,
)

__all__ = ["Port", "UdpDatagram", "examine_frame"]

_RESET_MTU = 1500
_GROUP_BIT = 1 << 40


@dataclass
class Port:
    """The port registers."""

    mac: int = 0
    ipv4: int = 0
    ipv6: int = 0
    mtu: int = _RESET_MTU
    filter: int = 0


@dataclass(frozen=True)
class UdpDatagram:
    """A datagram whose checksums are right. ``source_ip`` has 128 bits, whatever the family."""

    source_ip: int
    source_port: int
    dest_port: int
    broadcast: bool
    payload: bytes


@dataclass(frozen=True)
class _IpPacket:
    """An IP packet for us that carries UDP; ``addresses`` as in the pseudo header."""

    source: int
    addresses: bytes
    broadcast: bool
    payload: bytes


def examine_frame(frame: bytes, error: bool, port: Port) -> UdpDatagram | Counter:
    """The datagram in a frame, or the counter in which the frame ends. In the rule's order."""
    if error:
        return Counter.DROP_MAC_ERROR
    type_place = ETHERNET.offset("ethertype")
    frame = frame[:type_place] + frame[type_place + vlan_octets(frame) :]
    if len(frame) < ETHERNET.size:
        return Counter.DROP_RUNT
    if len(frame) > port.mtu + ETHERNET.size:
        return Counter.DROP_OVERSIZE
    ethernet = ETHERNET.unpack(frame)
    mac = ethernet["destination"]
    if mac not in (port.mac, BROADCAST_MAC):
        wanted = Filter.MULTICAST if mac & _GROUP_BIT else Filter.PROMISCUOUS
        return Counter.RX_MANAGEMENT if port.filter & wanted else Counter.DROP_MAC_FILTER
    packet = frame[ETHERNET.size :]
    if ethernet["ethertype"] == ETHERTYPE_IPV4:
        ip = _examine_ipv4(packet, port)
    elif ethernet["ethertype"] == ETHERTYPE_IPV6:
        ip = _examine_ipv6(packet, port)
    else:
        return Counter.RX_MANAGEMENT
    if isinstance(ip, Counter):
        return ip
    return _examine_udp(ip, ip.broadcast or mac == BROADCAST_MAC)


def _examine_ipv4(packet: bytes, port: Port) -> _IpPacket | Counter:
    if len(packet) < IPV4.size:
        return Counter.DROP_IP_HEADER
    ip = IPV4.unpack(packet)
    version, header_words = divmod(ip["version_ihl"], 16)
    header = 4 * header_words
    if version != 4 or header < IPV4.size or not header <= ip["total_length"] <= len(packet):
        return Counter.DROP_IP_HEADER
    if internet_sum(packet[:header]) != 0xFFFF:
        return Counter.DROP_IP_CHECKSUM
    if ip["flags_fragment"] & IPV4_FRAGMENT_MASK:
        return Counter.DROP_IP_FRAGMENT
    if ip["destination"] not in (port.ipv4, BROADCAST_IPV4):
        return Counter.DROP_IP_FILTER
    if ip["protocol"] != PROTOCOL_UDP:
        return Counter.RX_MANAGEMENT
    return _IpPacket(
        source=mapped_ipv4(ip["source"]),
        addresses=packet[IPV4.offset("source") : IPV4.size],
        broadcast=ip["destination"] == BROADCAST_IPV4,
        payload=packet[header : ip["total_length"]],
    )


def _examine_ipv6(packet: bytes, port: Port) -> _IpPacket | Counter:
    if len(packet) < IPV6.size:
        return Counter.DROP_IP_HEADER
    ip = IPV6.unpack(packet)
    end = IPV6.size + ip["payload_length"]
    if ip["version_class_flow"] >> 28 != 6 or end > len(packet):
        return Counter.DROP_IP_HEADER
    if ip["next_header"] == PROTOCOL_FRAGMENT:
        return Counter.DROP_IP_FRAGMENT
    if ip["destination"] != port.ipv6:
        return Counter.DROP_IP_FILTER
    if ip["next_header"] != PROTOCOL_UDP:
        return Counter.RX_MANAGEMENT
    return _IpPacket(
        source=ip["source"],
        addresses=packet[IPV6.offset("source") : IPV6.size],
        broadcast=False,
        payload=packet[IPV6.size : end],
    )


def _examine_udp(ip: _IpPacket, broadcast: bool) -> UdpDatagram | Counter:
    if len(ip.payload) < UDP.size:
        return Counter.DROP_UDP_LENGTH
    udp = UDP.unpack(ip.payload)
    if not UDP.size <= udp["length"] <= len(ip.payload):
        return Counter.DROP_UDP_LENGTH
    datagram = ip.payload[: udp["length"]]
    if udp["checksum"] and udp_sum(ip.addresses, datagram) != 0xFFFF:
        return Counter.DROP_UDP_CHECKSUM
    return UdpDatagram(
        source_ip=ip.source,
        source_port=udp["source_port"],
        dest_port=udp["destination_port"],
        broadcast=broadcast,
        payload=datagram[UDP.size :],
    )
