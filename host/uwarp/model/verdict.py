"""From frame to verdict (device behaviour, section 2): what is decided without a QP or a region."""

from __future__ import annotations

from dataclasses import dataclass

from uwarp.contract import Counter, CqeFlag
from uwarp.wire import (
    BROADCAST_IPV4,
    BROADCAST_MAC,
    CRC_OCTETS,
    DDP_TAGGED,
    DDP_VERSION,
    DDP_VERSION_MASK,
    ETHERNET,
    ETHERTYPE_IPV4,
    IPV4,
    IPV4_FRAGMENT_MASK,
    PROTOCOL_UDP,
    RDMAP_OPCODE_MASK,
    RDMAP_VERSION,
    RDMAP_VERSION_MASK,
    TAGGED,
    UDP,
    Opcode,
    Segment,
    crc_is_right,
    header_size,
    internet_sum,
)

from .closed import MessageName
from .tables import Tables

__all__ = ["Datagram", "Port", "examine"]

_OPCODES = frozenset(
    {Opcode.WRITE, Opcode.SEND, Opcode.SEND_SOLICITED, Opcode.WRITE_RECORD, Opcode.SEND_IMMEDIATE}
)
_TAGGED = frozenset({Opcode.WRITE, Opcode.WRITE_RECORD})
_RESET_MTU = 1500


@dataclass
class Port:
    """The port registers."""

    mac: int = 0
    ipv4: int = 0
    mtu: int = _RESET_MTU


@dataclass(frozen=True)
class Datagram:
    """A segment that passed, and where it came from."""

    qpn: int
    source_ip: int
    source_port: int
    segment: Segment

    @property
    def name(self) -> MessageName:
        return MessageName(self.qpn, self.source_ip, self.source_port, self.segment.msn)

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
    if error:
        return Counter.DROP_MAC_ERROR
    if len(frame) < ETHERNET.size:
        return Counter.DROP_RUNT
    if len(frame) > port.mtu + ETHERNET.size:
        return Counter.DROP_OVERSIZE
    ethernet = ETHERNET.unpack(frame)
    if ethernet["destination"] not in (port.mac, BROADCAST_MAC):
        return Counter.DROP_MAC_FILTER
    if ethernet["ethertype"] != ETHERTYPE_IPV4:
        return Counter.RX_MANAGEMENT
    packet = frame[ETHERNET.size :]
    if len(packet) < IPV4.size:
        return Counter.DROP_IP_HEADER
    ip = IPV4.unpack(packet)
    version, header_words = divmod(ip["version_ihl"], 16)
    if (
        version != 4
        or header_words < 5
        or not 4 * header_words <= ip["total_length"] <= len(packet)
    ):
        return Counter.DROP_IP_HEADER
    if header_words > 5:
        return Counter.RX_MANAGEMENT
    if internet_sum(packet[: IPV4.size]) != 0xFFFF:
        return Counter.DROP_IP_CHECKSUM
    if ip["flags_fragment"] & IPV4_FRAGMENT_MASK:
        return Counter.DROP_IP_FRAGMENT
    if ip["destination"] not in (port.ipv4, BROADCAST_IPV4):
        return Counter.DROP_IP_FILTER
    if ip["protocol"] != PROTOCOL_UDP:
        return Counter.RX_MANAGEMENT
    datagram = packet[IPV4.size : ip["total_length"]]
    if len(datagram) < UDP.size:
        return Counter.DROP_UDP_LENGTH
    udp = UDP.unpack(datagram)
    if not UDP.size <= udp["length"] <= len(datagram):
        return Counter.DROP_UDP_LENGTH
    datagram = datagram[: udp["length"]]
    if udp["checksum"] and not _udp_checksum_is_right(packet, datagram):
        return Counter.DROP_UDP_CHECKSUM
    broadcast = ethernet["destination"] == BROADCAST_MAC or ip["destination"] == BROADCAST_IPV4
    qpn = tables.qp_of_port(udp["destination_port"])
    if broadcast or qpn is None:
        return Counter.RX_MANAGEMENT
    segment = _examine_segment(datagram[UDP.size :])
    if isinstance(segment, Counter):
        return segment
    return Datagram(qpn, ip["source"], udp["source_port"], segment)


def _udp_checksum_is_right(packet: bytes, datagram: bytes) -> bool:
    addresses = packet[IPV4.offset("source") : IPV4.size]
    pseudo = addresses + bytes((0, PROTOCOL_UDP)) + len(datagram).to_bytes(2, "big")
    return internet_sum(pseudo + datagram) == 0xFFFF


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
