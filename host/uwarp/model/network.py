"""From frame to UDP datagram (device behaviour, section 2, items 2 to 14), groups included."""

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
    is_group_mac,
    mapped_ipv4,
    udp_sum,
    vlan_octets,
)

from .tables import Tables

__all__ = ["Port", "UdpDatagram", "examine_frame"]

_RESET_MTU = 1500


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
    """A datagram whose checksums are right. ``source_ip`` has 128 bits, whatever the family.

    ``members`` are the QPs of the group that a group datagram came to.
    """

    source_mac: int
    source_ip: int
    source_port: int
    dest_port: int
    members: tuple[int, ...]
    broadcast: bool
    payload: bytes


@dataclass(frozen=True)
class _IpPacket:
    """An IP packet; ``addresses`` as in the pseudo header. ``ours`` if its destination is."""

    source: int
    destination: int
    addresses: bytes
    protocol: int
    ours: bool
    broadcast: bool
    payload: bytes


@dataclass(frozen=True)
class _Udp:
    """A UDP datagram of a length that may be; its checksum has not been looked at."""

    source_port: int
    dest_port: int
    checksum: int
    octets: bytes


def examine_frame(frame: bytes, error: bool, port: Port, tables: Tables) -> UdpDatagram | Counter:
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
    ip = _find_ip(ethernet["ethertype"], frame[ETHERNET.size :], port)
    udp = ip if isinstance(ip, Counter) else _find_udp(ip)
    members: tuple[int, ...] = ()
    if is_group_mac(mac) and not isinstance(ip, Counter) and not isinstance(udp, Counter):
        members = tables.members_of(ip.destination, udp.dest_port)
    if mac not in (port.mac, BROADCAST_MAC) and not members:
        wanted = Filter.MULTICAST if is_group_mac(mac) else Filter.PROMISCUOUS
        return Counter.RX_MANAGEMENT if port.filter & wanted else Counter.DROP_MAC_FILTER
    if isinstance(ip, Counter):
        return ip
    if not ip.ours and not members:
        return Counter.DROP_IP_FILTER
    if isinstance(udp, Counter):
        return udp
    if udp.checksum and udp_sum(ip.addresses, udp.octets) != 0xFFFF:
        return Counter.DROP_UDP_CHECKSUM
    return UdpDatagram(
        source_mac=ethernet["source"],
        source_ip=ip.source,
        source_port=udp.source_port,
        dest_port=udp.dest_port,
        members=members,
        broadcast=ip.broadcast or mac == BROADCAST_MAC,
        payload=udp.octets[UDP.size :],
    )


def _find_ip(ethertype: int, packet: bytes, port: Port) -> _IpPacket | Counter:
    """Items 6 to 9: the IP packet, or where a frame to us ends that has none."""
    if ethertype == ETHERTYPE_IPV4:
        return _find_ipv4(packet, port)
    if ethertype == ETHERTYPE_IPV6:
        return _find_ipv6(packet, port)
    return Counter.RX_MANAGEMENT


def _find_ipv4(packet: bytes, port: Port) -> _IpPacket | Counter:
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
    return _IpPacket(
        source=mapped_ipv4(ip["source"]),
        destination=mapped_ipv4(ip["destination"]),
        addresses=packet[IPV4.offset("source") : IPV4.size],
        protocol=ip["protocol"],
        ours=ip["destination"] in (port.ipv4, BROADCAST_IPV4),
        broadcast=ip["destination"] == BROADCAST_IPV4,
        payload=packet[header : ip["total_length"]],
    )


def _find_ipv6(packet: bytes, port: Port) -> _IpPacket | Counter:
    if len(packet) < IPV6.size:
        return Counter.DROP_IP_HEADER
    ip = IPV6.unpack(packet)
    end = IPV6.size + ip["payload_length"]
    if ip["version_class_flow"] >> 28 != 6 or end > len(packet):
        return Counter.DROP_IP_HEADER
    if ip["next_header"] == PROTOCOL_FRAGMENT:
        return Counter.DROP_IP_FRAGMENT
    return _IpPacket(
        source=ip["source"],
        destination=ip["destination"],
        addresses=packet[IPV6.offset("source") : IPV6.size],
        protocol=ip["next_header"],
        ours=ip["destination"] == port.ipv6,
        broadcast=False,
        payload=packet[IPV6.size : end],
    )


def _find_udp(ip: _IpPacket) -> _Udp | Counter:
    """Items 11 and 13."""
    if ip.protocol != PROTOCOL_UDP:
        return Counter.RX_MANAGEMENT
    if len(ip.payload) < UDP.size:
        return Counter.DROP_UDP_LENGTH
    udp = UDP.unpack(ip.payload)
    if not UDP.size <= udp["length"] <= len(ip.payload):
        return Counter.DROP_UDP_LENGTH
    return _Udp(
        source_port=udp["source_port"],
        dest_port=udp["destination_port"],
        checksum=udp["checksum"],
        octets=ip.payload[: udp["length"]],
    )
