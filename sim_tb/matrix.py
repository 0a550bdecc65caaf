"""Every kind of header that may stand before a datagram, around every kind of datagram.

{VLAN tags} x {IP} x {UDP} x {DDP}: frames made by scapy and the DDP layer of ``segment_layer``.
What each must end in is written down here, by hand and from ``docs/device.md`` alone: neither
``uwarp.wire`` nor the model has a part in it.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import crc32c
from scapy.layers.inet import IP, TCP, UDP, IPOption
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Raw

from uwarp.contract import Counter

from .segment_layer import DdpTagged, DdpUntagged, ReadRequest, Record, SendImmediate, Terminate

__all__ = ["TAGS", "Case", "Target", "matrix"]


class Case(NamedTuple):
    """A frame, and the counter that it must end in."""

    name: str
    frame: bytes
    expected: Counter
    takes_receive: bool  # a Send that is placed: a receive of 40 octets must wait for it
    is_answered: bool  # a Read Request that is accepted
    is_event: bool  # a Terminate that is


@dataclass(frozen=True)
class Target:
    """Whom the frames are for: a QP that accepts every opcode, octets that peers may write, and
    octets (``source_...``) that they may read.

    Addresses are text. Messages have numbers from ``first_msn`` on, which must be new to the
    device. The QP has no Read of its own.
    """

    mac: str
    ipv4: str
    ipv6: str
    port: int
    stag: int
    to: int
    length: int
    source_stag: int
    source_to: int
    source_length: int
    peer_mac: str = "02:00:00:00:00:02"
    peer_ipv4: str = "10.0.0.2"
    peer_ipv6: str = "fd00::2"
    peer_port: int = 4791
    first_msn: int = 1


class _Kind(NamedTuple):
    """A choice on one axis; ``ends_in`` is None if the frame gets past it."""

    name: str
    ends_in: Counter | None
    make: Callable


def _stacked(*layers: Packet) -> Packet:
    """The layers, each in the one before: unlike ``first / second`` this copies none."""
    for outer, inner in pairwise(layers):
        outer.lastlayer().add_payload(inner)
    return layers[0]


def _octets(packet: Packet) -> bytes:
    """Of a packet whose fields are values: scapy need not choose among sets of them, which takes it
    most of the time."""
    layer = packet
    while layer:
        layer.explicit = 1
        layer = layer.payload
    return bytes(packet)


# VLAN tags


def _one_tag(rng: random.Random) -> Packet:
    return Dot1Q(vlan=rng.getrandbits(12), prio=rng.getrandbits(3))


def _two_tags(rng: random.Random) -> Packet:
    outer = rng.choice((Dot1AD, Dot1Q))
    return _stacked(outer(vlan=rng.getrandbits(12), dei=1), Dot1Q(vlan=rng.getrandbits(12)))


TAGS = [
    _Kind("no tag", None, lambda rng: None),
    _Kind("VLAN", None, _one_tag),
    _Kind("QinQ", None, _two_tags),
]

# IP


def _ipv4(target: Target, rng: random.Random, **fields: object) -> Packet:
    return IP(**{"src": target.peer_ipv4, "dst": target.ipv4, "flags": "DF"} | fields)


def _options(target: Target, rng: random.Random) -> Packet:
    """Options of 1 to 10 words: an experimental one (RFC 4727), then scapy's padding."""
    octets = rng.randint(3, 40)
    option = bytes((0x9E, octets)) + rng.randbytes(octets - 2)
    return _ipv4(target, rng, options=[IPOption(option)])


def _ipv6(target: Target, rng: random.Random, *extensions: type[Packet]) -> Packet:
    packet = IPv6(src=target.peer_ipv6, dst=target.ipv6, tc=0xB8, fl=rng.getrandbits(20))
    return _stacked(packet, *(extension() for extension in extensions))


_FRAGMENT, _MANAGEMENT = Counter.DROP_IP_FRAGMENT, Counter.RX_MANAGEMENT
IPS = [
    _Kind("IPv4", None, _ipv4),
    _Kind("options", None, _options),
    _Kind("first fragment", _FRAGMENT, partial(_ipv4, flags="MF")),
    _Kind("last fragment", _FRAGMENT, partial(_ipv4, flags=0, frag=185)),
    _Kind("IPv6", None, _ipv6),
    _Kind("IPv6 fragment", _FRAGMENT, lambda t, rng: _ipv6(t, rng, IPv6ExtHdrFragment)),
    _Kind("hop-by-hop", _MANAGEMENT, lambda t, rng: _ipv6(t, rng, IPv6ExtHdrHopByHop)),
    _Kind("destination options", _MANAGEMENT, lambda t, rng: _ipv6(t, rng, IPv6ExtHdrDestOpt)),
    _Kind(  # nobody looks behind the first extension header
        "hidden fragment",
        _MANAGEMENT,
        lambda t, rng: _ipv6(t, rng, IPv6ExtHdrHopByHop, IPv6ExtHdrFragment),
    ),
]

# UDP: each takes the IP header, the target, what UDP is to carry, and the generator.


def _udp(ip: Packet, target: Target, data: bytes, rng: random.Random, **fields: int) -> Packet:
    udp = UDP(**{"sport": target.peer_port, "dport": target.port} | fields)
    return _stacked(ip, udp, Raw(data))


def _wrong_checksum(ip: Packet, target: Target, data: bytes, rng: random.Random) -> Packet:
    """A wrong one that is not 0, which would say that there is none."""
    headers = len(ip)
    packet = _udp(ip, target, data, rng)
    right = UDP(_octets(packet)[headers:]).chksum
    packet[UDP].chksum = rng.choice([n for n in (right ^ 1, right ^ 0x8000, right ^ 0x0110) if n])
    return packet


def _padded(ip: Packet, target: Target, data: bytes, rng: random.Random) -> Packet:
    """Octets behind the UDP datagram in the IP payload."""
    padding = rng.randbytes(rng.randint(1, 9))
    return _udp(ip, target, data + padding, rng, len=8 + len(data), chksum=0)


def _empty(ip: Packet, target: Target, data: bytes, rng: random.Random) -> Packet:
    return _udp(ip, target, b"", rng)


def _no_header(ip: Packet, target: Target, data: bytes, rng: random.Random) -> Packet:
    """An IP payload too short for a UDP header."""
    last = ip.lastlayer()
    setattr(last, "proto" if isinstance(last, IP) else "nh", 17)
    return _stacked(ip, Raw(rng.randbytes(rng.randrange(8))))


def _short_length(ip: Packet, target: Target, data: bytes, rng: random.Random) -> Packet:
    return _udp(ip, target, data, rng, len=rng.randrange(8), chksum=0)


def _long_length(ip: Packet, target: Target, data: bytes, rng: random.Random) -> Packet:
    length = rng.choice((8 + len(data) + 1, 0xFFFF))
    return _udp(ip, target, data, rng, len=length, chksum=0)


def _tcp(ip: Packet, target: Target, data: bytes, rng: random.Random) -> Packet:
    return _stacked(ip, TCP(sport=target.peer_port, dport=target.port), Raw(data))


_LENGTH, _SHORT = Counter.DROP_UDP_LENGTH, Counter.DROP_DDP_SHORT
UDPS = [
    _Kind("UDP", None, _udp),
    _Kind("no checksum", None, partial(_udp, chksum=0)),
    _Kind("padded", None, _padded),
    _Kind("empty", _SHORT, _empty),
    _Kind("wrong checksum", Counter.DROP_UDP_CHECKSUM, _wrong_checksum),
    _Kind("no header", _LENGTH, _no_header),
    _Kind("length under 8", _LENGTH, _short_length),
    _Kind("length over the payload", _LENGTH, _long_length),
    _Kind("other port", _MANAGEMENT, partial(_udp, dport=53)),
    _Kind("TCP", _MANAGEMENT, _tcp),
]

# DDP: each takes the target, the message's number and the generator.

_HEADERS = {0x0: 14, 0x1: 46, 0x3: 18, 0x5: 18, 0x7: 22, 0xC: 30, 0xD: 30, 0xE: 22}
_TAGGED = (0x0, 0xC, 0xD)
_REQUEST, _TERMINATE = 0x1, 0x7
_SENDS = (0x3, 0x5, 0xE)


def _segment(
    target: Target,
    msn: int,
    rng: random.Random,
    opcode: int = 0xC,
    tagged: bool = True,
    **control: int,
) -> bytes:
    """A segment with its CRC, of 1 to 40 octets for anywhere in the target."""
    payload = rng.randbytes(rng.randint(1, 40))
    numbers = {"msn": msn, "mo": 0, "mlen": len(payload)}
    if tagged:
        to = target.to + rng.randint(0, target.length - len(payload))
        packet = DdpTagged(opcode=opcode, stag=target.stag, to=to, **control)
        if opcode in (0xC, 0xD):
            packet.add_payload(Record(**numbers))
    elif opcode == _REQUEST:
        size = rng.randint(1, 40)
        packet = DdpUntagged(opcode=opcode, mlen=28, qn=1, msn=msn, **control)
        packet.add_payload(
            ReadRequest(
                sink_stag=rng.getrandbits(32),
                sink_to=rng.getrandbits(64),
                size=size,
                source_stag=target.source_stag,
                source_to=target.source_to + rng.randint(0, target.source_length - size),
            )
        )
        payload = b""
    elif opcode == _TERMINATE:
        packet = DdpUntagged(opcode=opcode, mlen=4 + len(payload), qn=2, msn=msn, **control)
        packet.add_payload(Terminate(layer=1, etype=2, code=5, m=1, d=1))
    else:
        packet = DdpUntagged(opcode=opcode, **numbers, **control)
        if opcode == 0xE:
            packet.add_payload(SendImmediate(immediate=rng.getrandbits(32)))
    return _octets(_stacked(packet, Raw(payload)))


def _cut(
    target: Target, msn: int, rng: random.Random, opcode: int, tagged: bool, octets: int
) -> bytes:
    """The first octets of a segment, and the right CRC of them."""
    part = _segment(target, msn, rng, opcode, tagged)[:octets]
    return part + crc32c.crc32c(part).to_bytes(4, "little")


def _wrong_crc(target: Target, msn: int, rng: random.Random, **control: int) -> bytes:
    """One bit wrong, anywhere."""
    octets = bytearray(_segment(target, msn, rng, **control))
    octets[rng.randrange(len(octets))] ^= 1 << rng.randrange(8)
    return bytes(octets)


def _ddps() -> Iterator[_Kind]:
    for opcode in range(16):
        for tagged in (False, True):
            good = opcode in _HEADERS and tagged == (opcode in _TAGGED)
            # A Read Response finds no Read open.
            ends_in = Counter.DROP_LATE if opcode == 0xD else Counter.RX_PLACED
            yield _Kind(
                f"opcode {opcode:#x}, T {tagged:d}",
                ends_in if good else Counter.DROP_OPCODE,
                partial(_segment, opcode=opcode, tagged=tagged),
            )
    for version in (0, 2, 3):
        wrong_ddp = partial(_segment, dv=version, rv=version, opcode=0xF)
        yield _Kind(f"DDP version {version}", Counter.DROP_DDP_VERSION, wrong_ddp)
        wrong_rdmap = partial(_segment, rv=version, opcode=0xF)
        yield _Kind(f"RDMAP version {version}", Counter.DROP_RDMAP_VERSION, wrong_rdmap)
    yield _Kind("wrong CRC", Counter.DROP_CRC, _wrong_crc)
    yield _Kind("wrong CRC and version", Counter.DROP_CRC, partial(_wrong_crc, dv=0))
    yield _Kind("1 octet", _SHORT, lambda target, msn, rng: rng.randbytes(1))
    yield _Kind("17 octets", _SHORT, partial(_cut, opcode=0x0, tagged=True, octets=13))
    for opcode, header in _HEADERS.items():
        if header > 14:
            cut = partial(_cut, opcode=opcode, tagged=opcode in _TAGGED)
            last = partial(cut, octets=header - 1)
            yield _Kind(f"14 octets of {opcode:#x}", _SHORT, partial(cut, octets=14))
            yield _Kind(f"{header - 1} octets of {opcode:#x}", _SHORT, last)


_ANSWERED, _TOLD = (f"opcode {opcode:#x}, T 0" for opcode in (_REQUEST, _TERMINATE))
_PLACED_SENDS = {f"opcode {opcode:#x}, T 0" for opcode in _SENDS}


def _name(kinds: tuple[_Kind, ...]) -> str:
    return ", ".join(kind.name for kind in kinds)


def matrix(
    target: Target,
    rng: random.Random,
    *,
    tags: list[_Kind] = TAGS,
    count: int | None = None,
    named: str | None = None,
) -> Iterator[Case]:
    """The combinations, or ``count`` of them; each is made anew, what is free in it by ``rng``.

    ``named`` leaves those whose names end so, as in ``", UDP, opcode 0x0, T 1"``. The order is
    random, so that every kind comes after every other. The outermost header that ends a frame
    decides: the rule looks at the headers in their order.
    """
    every = [
        kinds
        for kinds in itertools.product(tags, IPS, UDPS, _ddps())
        if named is None or _name(kinds).endswith(named)
    ]
    for number, kinds in enumerate(rng.sample(every, len(every) if count is None else count)):
        tag, ip, udp, ddp = kinds
        data = ddp.make(target, target.first_msn + number & 0xFFFF_FFFF, rng)
        packet = udp.make(ip.make(target, rng), target, data, rng)
        ether, tag_header = Ether(dst=target.mac, src=target.peer_mac), tag.make(rng)
        outer = (ether,) if tag_header is None else (ether, tag_header)
        frame = _octets(_stacked(*outer, packet))
        expected = next(kind.ends_in for kind in kinds if kind.ends_in is not None)
        yield Case(
            _name(kinds),
            frame.ljust(60, b"\0"),
            expected,
            expected is Counter.RX_PLACED and ddp.name in _PLACED_SENDS,
            expected is Counter.RX_PLACED and ddp.name == _ANSWERED,
            expected is Counter.RX_PLACED and ddp.name == _TOLD,
        )
