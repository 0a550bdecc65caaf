"""Frames that are not for the NIC, at the highest rate that the wire has: 14.88 million a second.

Each has 64 octets with its FCS, so that the wire carries one every 10.5 cycles, or fewer. All kinds
take turns: for another station, no IP at all, wrong in every header, cut short, for nobody's port.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from uwarp.contract import Counter
from uwarp.wire import BROADCAST_MAC, ETHERTYPE_IPV6, IPV6, Opcode, Segment, UdpFrame

__all__ = ["Junk", "junk"]

_SOURCE_MAC = 0x02_00_00_00_00_77


class Junk(NamedTuple):
    """A frame, the counter that it ends in, and whether the MAC flags it."""

    frame: bytes
    ends_in: Counter
    error: bool = False


def junk(mac: int, ipv4: int, ipv6: int, port: int, seed: int) -> Iterator[Junk]:
    """Endless junk for a NIC with these addresses, and a QP that listens to ``port``."""
    rng = random.Random(seed)
    four = {"dest_mac": mac, "source_mac": _SOURCE_MAC, "source_ip": 0x0A00_0077, "dest_ip": ipv4}
    four |= {"source_port": 7, "dest_port": port}

    def datagram(octets: int, **changes: int) -> bytes:
        payload = rng.randbytes(octets)
        return UdpFrame(**four | changes, payload=payload).encode()

    def packet(next_header: int, dest: int = ipv6) -> bytes:
        """An IPv6 packet of 46 octets."""
        header = IPV6.pack(
            version_class_flow=6 << 28,
            payload_length=6,
            next_header=next_header,
            hop_limit=64,
            source=ipv6 ^ 0x77,
            destination=dest,
        )
        return plain(mac, ETHERTYPE_IPV6)[:14] + header + rng.randbytes(6)

    def changed(frame: bytes, place: int, *octets: int) -> bytes:
        return frame[:place] + bytes(octets) + frame[place + len(octets) :]

    def resummed(frame: bytes) -> bytes:
        """The IPv4 header checksum made right."""
        total = sum(int.from_bytes(frame[n : n + 2], "big") for n in range(14, 34, 2) if n != 24)
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        return changed(frame, 24, *(0xFFFF - total).to_bytes(2, "big"))

    def plain(dest: int, ethertype: int) -> bytes:
        addresses = dest.to_bytes(6, "big") + _SOURCE_MAC.to_bytes(6, "big")
        return addresses + ethertype.to_bytes(2, "big") + rng.randbytes(46)

    def write() -> bytes:
        segment = Segment(opcode=Opcode.WRITE, stag=rng.getrandbits(32), to=rng.getrandbits(64))
        return UdpFrame(**four, payload=segment.to_datagram()).encode()

    kinds = (
        lambda: (datagram(18, dest_mac=mac ^ 1 << rng.randrange(40)), Counter.DROP_MAC_FILTER),
        lambda: (plain(0x01005E_000001, 0x0800), Counter.DROP_MAC_FILTER),
        lambda: (plain(BROADCAST_MAC, 0x0806), Counter.RX_MANAGEMENT),
        lambda: (plain(mac, 0x88CC), Counter.RX_MANAGEMENT),
        lambda: (plain(mac, 0x0800)[: rng.randint(1, 13)], Counter.DROP_RUNT),
        lambda: (datagram(18)[: rng.randint(14, 45)], Counter.DROP_IP_HEADER),
        lambda: (changed(datagram(18), 14, 0x65), Counter.DROP_IP_HEADER),
        lambda: (changed(datagram(18), 22, rng.randrange(64)), Counter.DROP_IP_CHECKSUM),
        lambda: (resummed(changed(datagram(18), 20, 0x20)), Counter.DROP_IP_FRAGMENT),
        lambda: (resummed(changed(datagram(18), 20, 0, 185)), Counter.DROP_IP_FRAGMENT),
        lambda: (datagram(18, dest_ip=ipv4 ^ 1 << rng.randrange(32)), Counter.DROP_IP_FILTER),
        lambda: (resummed(changed(datagram(18), 23, 6)), Counter.RX_MANAGEMENT),
        lambda: (changed(datagram(18), 38, 0, rng.randrange(8)), Counter.DROP_UDP_LENGTH),
        lambda: (changed(datagram(18), 40, rng.randint(1, 255), 0x55), Counter.DROP_UDP_CHECKSUM),
        lambda: (datagram(18, dest_port=rng.randint(1, 1023)), Counter.RX_MANAGEMENT),
        lambda: (datagram(rng.randrange(18)), Counter.DROP_DDP_SHORT),
        lambda: (datagram(18), Counter.DROP_CRC),
        lambda: (write(), Counter.RX_PLACED),  # of no octets: it looks at neither STag nor TO
        lambda: (packet(0), Counter.RX_MANAGEMENT),  # hop-by-hop options
        lambda: (packet(60), Counter.RX_MANAGEMENT),  # destination options
        lambda: (packet(44), Counter.DROP_IP_FRAGMENT),
        lambda: (packet(17, ipv6 ^ 1 << rng.randrange(128)), Counter.DROP_IP_FILTER),
        lambda: (packet(17), Counter.DROP_UDP_LENGTH),  # 6 octets are no UDP header
    )
    while True:
        for make in rng.sample(kinds, len(kinds)):
            yield Junk(*make())
        yield Junk(datagram(18), Counter.DROP_MAC_ERROR, True)
