"""Frames that nobody would send, and whether the NIC survives them.

``python -m sim_tb.fuzz --seconds 60 --seed 1`` gives a NIC of the rtl form bursts of frames made
from good ones: bits flipped, fields set to their limits, cut, lengthened, spliced, or nothing but
noise; with checksums and CRC made right again, or not. Two good messages follow each burst. Nothing
is written beyond what was allocated, both messages complete, every frame ends in one counter, and
in all this the model does the same.
"""

import random
import struct
import sys
from collections import Counter
from collections.abc import Iterator

from uwarp.wire import (
    CRC_OCTETS,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ETHERTYPE_QINQ,
    ETHERTYPE_VLAN,
    PROTOCOL_UDP,
    Segment,
    SegmentError,
    append_crc,
    internet_sum,
    mapped_ipv4,
    udp_sum,
    vlan_octets,
)

from .messages import RandomReceives, random_arrivals, random_read
from .oracle import Name, Placement
from .receiving import receive_wqe
from .trials import GROUPS, PROBE_IP, Arrival, Event, Probe, Receives, Trial, run_command

__all__ = ["fuzz", "repaired", "with_options"]

_BURSTS = 4
_READS = 2  # of ours for each burst
_LONGEST = 9100
_ETHERNET = (("destination", 0, 6), ("source", 6, 6), ("ethertype", 12, 2))
_IPV4 = (
    ("version and IHL", 0, 1),
    ("traffic class", 1, 1),
    ("total length", 2, 2),
    ("fragment", 6, 2),
    ("hop limit", 8, 1),
    ("protocol", 9, 1),
    ("header checksum", 10, 2),
    ("source address", 12, 4),
    ("destination address", 16, 4),
)
_IPV6 = (
    ("version", 0, 1),
    ("flow label", 1, 3),
    ("payload length", 4, 2),
    ("next header", 6, 1),
    ("source address", 8, 16),
    ("destination address", 24, 16),
)
_UDP = (
    ("source port", 0, 2),
    ("destination port", 2, 2),
    ("UDP length", 4, 2),
    ("UDP checksum", 6, 2),
)
_TAGGED = (
    ("DDP control", 0, 1),
    ("RDMAP control", 1, 1),
    ("STag", 2, 4),
    ("TO", 6, 8),
    ("MSN", 14, 4),
    ("MO", 18, 4),
    ("MLEN", 22, 4),
    ("immediate", 26, 4),
)
_UNTAGGED = (
    ("DDP control", 0, 1),
    ("RDMAP control", 1, 1),
    ("RsvdULP", 2, 4),
    ("QN", 6, 4),
    ("MSN", 10, 4),
    ("MO", 14, 4),
)


class _Layers:
    """Where the headers of a frame are, as far as it has them; None for those it has not."""

    def __init__(self, frame: bytes) -> None:
        self.ip: int | None = None
        self.udp: int | None = None
        self.six = False
        tags = vlan_octets(frame)
        start = 14 + tags
        kind = int.from_bytes(frame[12 + tags : start], "big")
        if kind == ETHERTYPE_IPV4 and len(frame) >= start + 20:
            self.ip = start
            header = 4 * (frame[start] & 15)
            if frame[start + 9] == PROTOCOL_UDP and len(frame) >= start + header + 8:
                self.udp = start + header
        elif kind == ETHERTYPE_IPV6 and len(frame) >= start + 40:
            self.ip, self.six = start, True
            if frame[start + 6] == PROTOCOL_UDP and len(frame) >= start + 48:
                self.udp = start + 40


def repaired(frame: bytes, *, crc: bool = True, udp: bool = True, ip: bool = True) -> bytes:
    """The frame with CRC32c, UDP checksum and IP header checksum made right, where it has them."""
    octets, layers = bytearray(frame), _Layers(frame)
    if layers.udp is not None and layers.ip is not None:
        start = layers.udp
        length = int.from_bytes(octets[start + 4 : start + 6], "big")
        end = start + length
        if length > 8 + CRC_OCTETS and end <= len(octets) and crc:
            octets[start + 8 : end] = append_crc(bytes(octets[start + 8 : end - CRC_OCTETS]))
        if length >= 8 and end <= len(octets) and udp:
            octets[start + 6 : start + 8] = bytes(2)
            place = layers.ip + (8 if layers.six else 12)
            addresses = bytes(octets[place : place + (32 if layers.six else 8)])
            total = udp_sum(addresses, bytes(octets[start:end]))
            octets[start + 6 : start + 8] = (0xFFFF - total or 0xFFFF).to_bytes(2, "big")
    if layers.ip is not None and not layers.six and ip:
        start = layers.ip
        end = start + 4 * (octets[start] & 15)
        octets[start + 10 : start + 12] = bytes(2)
        total = internet_sum(bytes(octets[start:end]))
        octets[start + 10 : start + 12] = (0xFFFF - total).to_bytes(2, "big")
    return bytes(octets)


def fuzz(trial: Trial, rng: random.Random) -> list[Event]:
    """Mutated frames, each burst of them followed by two good messages."""
    events: list[Event] = []
    receives = RandomReceives(trial, rng)
    pool: list[bytes] = []
    posted: Counter[int] = Counter()
    for burst in range(_BURSTS):
        pool += [frame for _ in range(8) for frame in _good_frames(trial, rng)]
        for number in range(_READS * burst, _READS * (burst + 1)):
            read, answers = random_read(trial, rng, number)
            events.append(read)
            posted[read.qpn] += 1  # its MSN, if none before it fails
            pool += [item.arrival(trial, posted[read.qpn]).frame for item in answers[:4]]
        if rng.random() < 0.8:
            events.append(receives.some(rng.choice((1, 2, 8))))
        for _ in range(rng.randint(30, 120)):
            events.append(_mutant(trial, rng, pool))
        events.append(_probe(trial, rng, burst))
    return events


def _good_frames(trial: Trial, rng: random.Random) -> Iterator[bytes]:
    for arrival in random_arrivals(trial, rng, [], (1, 1, 1, 2, 3, 4, 8, 9, 10))[:3]:
        frame = arrival.frame
        for _ in range(rng.choice((0, 0, 1, 2, 3))):
            kind = rng.choice((ETHERTYPE_VLAN, ETHERTYPE_QINQ))
            tag = kind.to_bytes(2, "big") + rng.randbytes(2)
            frame = frame[:12] + tag + frame[12:]
        if frame[12:14] == ETHERTYPE_IPV4.to_bytes(2, "big") and rng.random() < 0.2:
            frame = with_options(rng, frame)
        yield frame


def with_options(rng: random.Random, frame: bytes) -> bytes:
    """A frame without tags, with 1 to 10 words of IPv4 options."""
    words = rng.randint(1, 10)
    octets = bytearray(frame[:34] + rng.randbytes(4 * words) + frame[34:])
    octets[14] += words
    total = int.from_bytes(octets[16:18], "big") + 4 * words
    octets[16:18] = total.to_bytes(2, "big")
    return repaired(bytes(octets), crc=False, udp=False)


def _mutant(trial: Trial, rng: random.Random, pool: list[bytes]) -> Arrival:
    frame, notes = rng.choice(pool), []
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        kind = rng.choices(
            (_flip, _set_field, _cut, _lengthen, _splice, _noise, _set_lengths),
            (15, 50, 8, 5, 8, 3, 8),
        )[0]
        frame, note = kind(rng, frame, pool)
        notes.append(note)
        if rng.random() < 0.75:
            parts = {part: rng.random() < 0.95 for part in ("crc", "udp", "ip")}
            frame = repaired(frame, **parts)
            notes.append("repaired" if all(parts.values()) else "half repaired")
    note = ", ".join(notes) or "as it was"
    return Arrival(frame, note, _placements(trial, frame), error=rng.random() < 0.02)


def _placements(trial: Trial, frame: bytes) -> tuple[Placement, ...]:
    """The segment in a frame, for each QP that might take it for good."""
    layers = _Layers(frame)
    if layers.ip is None or layers.udp is None:
        return ()
    start = layers.udp
    source, dest, length = struct.unpack_from(">3H", frame, start)
    place, size = (layers.ip + 8, 16) if layers.six else (layers.ip + 12, 4)
    address = int.from_bytes(frame[place : place + size], "big")
    qpns = [qpn for qpn in range(1, 11) if trial.port(qpn) == dest]
    members = [qpn for group in GROUPS if group.port == dest for qpn in group.members]
    if start + length > len(frame):
        return ()
    try:
        segment = Segment.from_datagram(frame[start + 8 : start + length])
    except SegmentError:
        return ()
    ip = address if layers.six else mapped_ipv4(address)
    return tuple(
        Placement(Name(qpn, ip, source, segment.msn), segment, is_copy)
        for numbers, is_copy in ((qpns, False), (members, True))
        for qpn in numbers
    )


def _flip(rng: random.Random, frame: bytes, pool: list[bytes]) -> tuple[bytes, str]:
    octets = bytearray(frame)
    reach = min(len(octets), rng.choice((64, 110, len(octets))))
    for _ in range(rng.choice((1, 1, 2, 8))):
        octets[rng.randrange(reach)] ^= 1 << rng.randrange(8)
    return bytes(octets), "bits flipped"


def _fields(frame: bytes) -> list[tuple[str, int, int]]:
    """Name, place and octets of each field that the frame has."""
    layers = _Layers(frame)
    found = [*_ETHERNET]
    if layers.ip is not None:
        found += [(n, layers.ip + at, size) for n, at, size in (_IPV6 if layers.six else _IPV4)]
    if layers.udp is not None:
        found += [(n, layers.udp + at, size) for n, at, size in _UDP]
        place = layers.udp + 8
        tagged = place < len(frame) and frame[place] & 0x80
        found += 3 * [(n, place + at, size) for n, at, size in (_TAGGED if tagged else _UNTAGGED)]
    return [field for field in found if field[1] + field[2] <= len(frame)]


def _set_field(rng: random.Random, frame: bytes, pool: list[bytes]) -> tuple[bytes, str]:
    fields = _fields(frame)
    if not fields:
        return frame, "no field to set"
    name, place, size = rng.choice(fields)
    now, top = int.from_bytes(frame[place : place + size], "big"), (1 << 8 * size) - 1
    value = rng.choice(
        (
            0,
            1,
            top,
            top >> 1,
            now + 1 & top,
            now - 1 & top,
            now + rng.randint(-64, 64) & top,
            now ^ 1 << rng.randrange(8 * size),
            rng.getrandbits(8 * size),
            rng.getrandbits(rng.randint(1, 8 * size)),
        )
    )
    octets = frame[:place] + value.to_bytes(size, "big") + frame[place + size :]
    return octets, f"{name} {now:#x} to {value:#x}"


def _set_lengths(rng: random.Random, frame: bytes, pool: list[bytes]) -> tuple[bytes, str]:
    """Another length of the datagram, said alike by IP and UDP; the frame may be too short."""
    layers = _Layers(frame)
    if layers.ip is None or layers.udp is None:
        return frame, "no length to set"
    octets = bytearray(frame)
    now = int.from_bytes(octets[layers.udp + 4 : layers.udp + 6], "big")
    change = rng.randint(1, 40)
    length = rng.choice((max(now - change, 0), now + change, rng.randrange(60)))
    header = layers.udp - layers.ip
    place, total = (layers.ip + 4, length) if layers.six else (layers.ip + 2, length + header)
    octets[layers.udp + 4 : layers.udp + 6] = min(length, 0xFFFF).to_bytes(2, "big")
    octets[place : place + 2] = min(total, 0xFFFF).to_bytes(2, "big")
    return bytes(octets), f"UDP length {now} to {length}"


def _cut(rng: random.Random, frame: bytes, pool: list[bytes]) -> tuple[bytes, str]:
    length = rng.choice((rng.randint(1, len(frame)), rng.randint(1, min(len(frame), 80))))
    return frame[:length], f"cut to {length}"


def _lengthen(rng: random.Random, frame: bytes, pool: list[bytes]) -> tuple[bytes, str]:
    more = rng.choice((1, 4, rng.randint(1, 64), rng.randint(64, 1500)))
    if rng.random() < 0.05:
        more = _LONGEST
    octets = rng.randbytes(min(more, max(_LONGEST - len(frame), 0)))
    return frame + octets, f"{len(octets)} octets longer"


def _splice(rng: random.Random, frame: bytes, pool: list[bytes]) -> tuple[bytes, str]:
    other = rng.choice(pool)
    head = rng.randint(0, len(frame))
    tail = head if rng.random() < 0.5 else rng.randrange(len(other))
    return (frame[:head] + other[tail:] or frame)[:_LONGEST], f"spliced at {head}"


def _noise(rng: random.Random, frame: bytes, pool: list[bytes]) -> tuple[bytes, str]:
    head = rng.choice((0, 6, 14, 34, 42))
    return frame[:head] + rng.randbytes(rng.randint(1, 200)), f"noise from {head}"


def _probe(trial: Trial, rng: random.Random, burst: int) -> Probe:
    """A Write-Record and a Send that must complete, whatever came before."""
    octets = rng.randint(200, 2000)
    offset = rng.randrange(2048)
    segments = trial.record(trial.probe, offset, octets, path_mtu=62 + 64 * rng.randint(1, 12))
    segments.append(trial.send(rng.randint(1, 64)))
    receive = receive_wqe(trial.probe, 4096 + 64 * burst, 64)
    arrivals = []
    for segment in segments:
        frame = trial.frame(segment, 10, source_ip=PROBE_IP)
        name = Name(10, mapped_ipv4(PROBE_IP), 9010, segment.msn)
        arrivals.append(Arrival(frame, f"probe, MO {segment.mo}", (Placement(name, segment),)))
    return Probe(Receives(10, (receive,)), tuple(arrivals), 2)


if __name__ == "__main__":
    sys.exit(run_command("sim_tb.fuzz", fuzz))
