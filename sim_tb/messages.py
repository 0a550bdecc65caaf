"""Trials of messages on several QPs over a bad wire: ``python -m sim_tb.messages --seed N``."""

import itertools
import random
import sys
from collections.abc import Sequence
from dataclasses import replace

from uwarp.contract import QpState, Table, WqeFlag
from uwarp.wire import Opcode, Segment, ipv4_of, segments

from .reading import read_request
from .receiving import receive_wqe
from .sending import request
from .stage import IPV6, MAC, PEER_IPV6, Region
from .terminating import terminate
from .trials import (
    GROUPS,
    Answer,
    Arrival,
    Event,
    Look,
    Read,
    Receives,
    Restart,
    Row,
    Silence,
    Trial,
    run_command,
)

__all__ = ["RandomReceives", "messages", "random_arrivals", "random_read"]

_SOURCE_MAC = range(6, 12)
_HEADERS = {4: 14 + 20 + 8, 6: 14 + 40 + 8}
_READS, _TO_GROUPS = 0.12, 0.1  # of the messages
_WIDE = (2, 9)  # QPs whose send ring is
_RECEIVE_SLOT = 128  # octets of the stage's local region for each receive


def messages(trial: Trial, rng: random.Random) -> list[Event]:
    """Write-Records, Writes, Sends, Reads of either side, to QPs and to groups: lost, repeated,
    reordered, overlapping and damaged."""
    loss = rng.choice((0.0, 0.05, 0.3))
    repeat = rng.choice((0.0, 0.1, 0.4))
    damage = rng.choice((0.0, 0.03, 0.1))
    spread = rng.choice((0.0, 2.0, 8.0, 40.0))
    trial.crowded = rng.random() < 0.5
    timed: list[tuple[float, Event]] = []
    receives = RandomReceives(trial, rng)
    earlier: list[Segment] = []
    count = rng.randint(20, 50) if trial.timed else rng.randint(40, 160)
    restart = rng.randrange(4 * count)
    for start in range(count):
        arrivals: list[Arrival | Answer]
        if rng.random() < _READS:
            read, arrivals = random_read(trial, rng, start)
            timed.append((start, read))
        else:
            arrivals = random_arrivals(trial, rng, earlier)
        for position, arrival in enumerate(arrivals):
            when = start + spread * rng.random() + position / (len(arrivals) + 1)
            while rng.random() >= loss:
                timed.append((when, arrival if rng.random() >= damage else _spoilt(rng, arrival)))
                if rng.random() >= repeat:
                    break
                when += spread * rng.random()
        if rng.random() < 0.5:
            timed.append((start + rng.random(), receives.some(rng.choice((1, 2, 8)))))
        if start == restart:
            timed.append((start, Restart(rng.randrange(200))))
        for kind, chance in ((_look, 0.06), (_silence, 0.02), (_change, 0.05)):
            if rng.random() < chance:
                timed += [(start + delay, event) for delay, event in kind(trial, rng)]
    return [event for _, event in sorted(timed, key=lambda item: item[0])]


def random_sender(rng: random.Random) -> dict[str, int]:
    """Fields of the frame that say who sends."""
    fields: dict[str, int] = {}
    if rng.random() < 0.2:
        fields |= {"ip_version": 6, "source_ip": PEER_IPV6, "dest_ip": IPV6}
    if rng.random() < 0.2:
        fields["source_port"] = rng.choice((77, 9009))
    return fields


def random_arrivals(
    trial: Trial,
    rng: random.Random,
    earlier: list[Segment],
    qpns: Sequence[int] = (1, 1, 2, 2, 2, 8, 9),
) -> list[Arrival]:
    """The datagrams of a message to a QP, or to a group; it is one of the ``earlier`` then."""
    if rng.random() < _TO_GROUPS:
        return _to_group(trial, rng)
    qpn, fields = rng.choice(qpns), random_sender(rng)
    segments = random_message(trial, rng, earlier)
    earlier += segments[:1]
    return [trial.arrival(segment, qpn, fields) for segment in segments]


def _to_group(trial: Trial, rng: random.Random) -> list[Arrival]:
    """A Send to a group, now and then one that a member itself has sent."""
    group = rng.choice(GROUPS)
    fields = {"dest_mac": group.mac, "dest_port": group.port, "source_port": 9000}
    if (four := ipv4_of(group.address)) is None:
        fields |= {"ip_version": 6, "source_ip": PEER_IPV6, "dest_ip": group.address}
    else:
        fields |= {"dest_ip": four}
    match rng.randrange(6):
        case 0:
            fields |= {"source_mac": MAC, "source_port": trial.port(rng.choice(group.members))}
        case 1:
            fields |= {"source_port": 9009}
    kind = rng.choices((_send, _long_send, _write), (6, 3, 1))[0]
    return [
        trial.arrival(segment, 0, fields, group.members if not segment.tagged else ())
        for segment in kind(trial, rng)
    ]


def random_read(trial: Trial, rng: random.Random, number: int) -> tuple[Read, list[Answer]]:
    """A Read of ours, and the datagrams of its answer: right, or contradicting what was asked."""
    qpn = rng.choice((1, 2, 2, 8, 9))
    sink, octets = trial.mapped, min(_octets(rng), 9000)
    to = sink.base_to + _place(trial, rng, sink, octets)
    work = request(trial, Opcode.READ_REQUEST, octets, sge_addr=to, sge_lkey=sink.stag)
    work |= {"dest_port": 9000 + qpn, "flags": rng.choice((0, WqeFlag.SIGNALED))}
    fields: dict[str, int] = {}
    if qpn in _WIDE and rng.random() < 0.3:
        work |= {"flags": work["flags"] | WqeFlag.IPV6, "dest_ipv6": PEER_IPV6}
        fields = {"ip_version": 6, "source_ip": PEER_IPV6, "dest_ip": IPV6}
    if rng.random() < 0.1:
        work |= rng.choice(
            (
                {"sge_lkey": trial.plain.stag, "sge_addr": trial.plain.base_to},
                {"sge_lkey": trial.coarse.stag, "sge_addr": trial.coarse.base_to},
                {"sge_lkey": sink.stag ^ 1},
                {"sge_addr": sink.base_to + sink.length - octets + 1},
                {"flags": WqeFlag.SOLICITED},
                {"length": octets + 1},
            )
        )
    content = trial.rng.randbytes(octets)
    plan = list(segments(Opcode.WRITE_RECORD, octets, rng.choice((191, 700, 1500)), to=to))
    if rng.random() < 0.2 and octets > 1:
        plan = _foreign_plan(rng, octets)
    answer = [
        Segment(
            opcode=Opcode.READ_RESPONSE_RECORD,
            stag=sink.stag,
            to=to + mo,
            mo=mo,
            mlen=octets,
            last=mo + length == octets,
            payload=content[mo : mo + length],
        )
        for mo, length in plan
    ]
    if rng.random() < 0.2:
        wrong = rng.choice(answer)
        changes = {"stag": trial.coarse.stag, "to": wrong.to + 64, "mlen": octets + 1}
        name = rng.choice(list(changes))
        place = rng.randint(0, len(answer))
        answer.insert(place, replace(wrong, **{name: changes[name]}))
    return Read(number, qpn, work), [Answer(number, qpn, item, fields) for item in answer]


def _spoilt(rng: random.Random, arrival: Arrival | Answer) -> Arrival | Answer:
    if isinstance(arrival, Arrival):
        return _damaged(rng, arrival)
    seed = rng.getrandbits(32)
    return replace(arrival, spoiler=lambda frame: _damaged(random.Random(seed), frame))


def _damaged(rng: random.Random, arrival: Arrival) -> Arrival:
    """The frame with wrong octets: in the source MAC they do no harm, in the datagram they do."""
    octets = bytearray(arrival.frame)
    headers = _HEADERS[octets[14] >> 4]
    match rng.randrange(4):
        case 0:
            return Arrival(arrival.frame, arrival.note, error=True)
        case 1:
            octets[rng.choice(_SOURCE_MAC)] ^= rng.randint(1, 255)
            return Arrival(bytes(octets), f"{arrival.note}, harmless damage", arrival.placements)
        case 2:
            cut = rng.randrange(1, headers + 14)
            return Arrival(bytes(octets[:cut]), f"{arrival.note}, cut")
        case _:
            # The CRC covers the datagram. What follows it in a short frame is padding.
            length = int.from_bytes(octets[headers - 4 : headers - 2], "big") - 8
            octets[headers + rng.randrange(length)] ^= rng.randint(1, 255)
            return Arrival(bytes(octets), f"{arrival.note}, damaged")


# Messages


def random_message(
    trial: Trial, rng: random.Random, earlier: Sequence[Segment] = ()
) -> list[Segment]:
    """The segments of a message; ``earlier`` ones may turn up in it again."""
    kind = rng.choices(
        (
            _mapped,
            _coarse,
            _unmapped,
            _write,
            _send,
            _long_send,
            _request,
            _terminate,
            _empty,
            _astray,
            _again,
        ),
        (34, 10, 8, 8, 14, 12, 10, 4, 4, 6, 6),
    )[0]
    if kind is _again:
        return _again(trial, rng, earlier)
    return kind(trial, rng)


def _octets(rng: random.Random) -> int:
    kind = rng.choices(range(5), (20, 20, 40, 18, 2))[0]
    ranges = ((1, 63), (64, 130), (64, 700), (700, 4000), (4000, 20000))
    octets = rng.randint(*ranges[kind])
    return octets if rng.random() < 0.7 else max(octets // 64 * 64, 1)


def _place(trial: Trial, rng: random.Random, region: Region, octets: int) -> int:
    """Where a message begins: anywhere, or mostly where others are too."""
    room = region.length - octets
    if not trial.crowded:
        return rng.randint(0, room)
    window = rng.choice((64, 600, 5000, room + 1))
    offset = min(rng.randrange(window), room)
    if rng.random() < 0.2:
        offset = offset // 64 * 64
    return room if rng.random() < 0.05 else offset


def _record(trial: Trial, rng: random.Random, region: Region, granule: int) -> list[Segment]:
    octets = min(_octets(rng), region.length)
    fields: dict[str, int] = {}
    if rng.random() < 0.3:
        fields = {
            "immediate_valid": rng.random() < 0.7,
            "solicited": rng.random() < 0.5,
            "immediate": rng.getrandbits(32),
        }
    plan = None
    if rng.random() < 0.3 and octets > 1:
        plan = _foreign_plan(rng, octets)
    return trial.record(
        region,
        _place(trial, rng, region, octets),
        octets,
        path_mtu=min(62 + granule * rng.choice((1, 2, 3, 5, 22)), 1500),
        granule=granule,
        plan=plan,
        **fields,
    )


def _foreign_plan(rng: random.Random, octets: int) -> list[tuple[int, int]]:
    """Cut anywhere, at most 1400 octets each, some of them overlapping (P25)."""
    cuts = set(rng.sample(range(1, octets), min(octets - 1, rng.randint(1, 6))))
    cuts |= set(range(0, octets + 1, 1400)) | {octets}
    edges = sorted(cuts)
    plan = [(a, b - a) for a, b in itertools.pairwise(edges)]
    for _ in range(rng.choice((0, 0, 1, 3))):
        start = rng.randrange(octets)
        plan.append((start, rng.randint(1, min(octets - start, 1400))))
    return plan


def _mapped(trial: Trial, rng: random.Random) -> list[Segment]:
    return _record(trial, rng, trial.mapped, 64)


def _coarse(trial: Trial, rng: random.Random) -> list[Segment]:
    return _record(trial, rng, trial.coarse, 256)


def _unmapped(trial: Trial, rng: random.Random) -> list[Segment]:
    return _record(trial, rng, rng.choice((trial.plain, trial.top)), 64)


def _write(trial: Trial, rng: random.Random) -> list[Segment]:
    region = rng.choice((trial.plain, trial.mapped, trial.top))
    octets = rng.choice((0, rng.randint(1, 300), rng.randint(1, 1400)))
    return [trial.write(region, _place(trial, rng, region, max(octets, 1)), octets)]


def _send(trial: Trial, rng: random.Random) -> list[Segment]:
    opcode = rng.choice((Opcode.SEND, Opcode.SEND_SOLICITED, Opcode.SEND_IMMEDIATE))
    fields: dict[str, int] = {}
    if opcode is Opcode.SEND_IMMEDIATE:
        fields = {"immediate": rng.getrandbits(32), "immediate_valid": rng.random() < 0.5}
    octets = rng.choice((0, rng.randint(1, 64), rng.randint(1, 140)))
    return [trial.send(octets, opcode, **fields)]


def _long_send(trial: Trial, rng: random.Random) -> list[Segment]:
    """A Send of several datagrams, some of them cut where no sender of ours cuts (P25)."""
    opcode = rng.choice((Opcode.SEND, Opcode.SEND_SOLICITED, Opcode.SEND_IMMEDIATE))
    fields: dict[str, int] = {}
    if opcode is Opcode.SEND_IMMEDIATE:
        fields = {"immediate": rng.getrandbits(32), "immediate_valid": rng.random() < 0.5}
    cut = rng.choice((64, 192, 1280, rng.randint(20, 400)))
    return trial.long_send(rng.randint(cut + 1, 6 * cut), opcode, cut=cut, **fields)


def _request(trial: Trial, rng: random.Random) -> list[Segment]:
    """A Read Request of a peer, some of them for what it must not read."""
    source = trial.source_of_reads
    octets = rng.choice((1, rng.randint(1, 200), rng.randint(1, 3000)))
    offset = rng.randint(0, source.length - octets)
    changes: dict[str, int] = {}
    if rng.random() < 0.2:
        changes = rng.choice(
            (
                {"source_stag": source.stag ^ 1},
                {"source_stag": trial.mapped.stag},
                {"source_stag": 12 << 8},
                {"source_to": source.base_to - 1},
                {"size": source.length - offset + 1},
                {"size": 0},
                {"mo": 1},
                {"qn": 0},
            )
        )
    return [read_request(trial, source, offset, octets, **changes)]


def _terminate(trial: Trial, rng: random.Random) -> list[Segment]:
    """A Terminate of a peer, now and then for another queue."""
    quoted = rng.randbytes(rng.choice((0, rng.randint(1, 100))))
    fields = {"qn": rng.choice((0, 1, 3))} if rng.random() < 0.2 else {}
    return [terminate(trial, rng.getrandbits(16), quoted, **fields)]


def _empty(trial: Trial, rng: random.Random) -> list[Segment]:
    """Messages of no octets look at neither STag nor TO (P28)."""
    (segment,) = trial.record(trial.mapped, 0, 0, plan=[(0, 0)])
    return [replace(segment, stag=rng.getrandbits(32), to=rng.getrandbits(64))]


def _astray(trial: Trial, rng: random.Random) -> list[Segment]:
    """Good datagrams that must not be placed: P27, P29, and messages longer than they say."""
    region = rng.choice((trial.mapped, trial.plain, trial.top, trial.coarse))
    octets = rng.randint(1, 200)
    offset = rng.choice((-1, region.length - octets + 1, region.length, -octets))
    stag = rng.choice(
        (region.stag, region.stag ^ 1, trial.foreign.stag, trial.local.stag, 9 << 8, 1 << 31)
    )
    to = region.base_to + (offset if stag == region.stag else 0) & (1 << 64) - 1
    if rng.random() < 0.5:
        return [trial.write(region, 0, octets, stag=stag, to=to)]
    (segment,) = trial.record(region, 0, octets, plan=[(0, octets)])
    if rng.random() < 0.3:
        return [replace(segment, mlen=octets - 1)]
    return [replace(segment, stag=stag, to=to)]


def _again(trial: Trial, rng: random.Random, earlier: Sequence[Segment]) -> list[Segment]:
    """The number of an earlier message, for another one (P26: and the other way about)."""
    (first, *rest) = _record(trial, rng, trial.mapped, 64)
    if not earlier:
        return [first, *rest]
    old = rng.choice(earlier)
    if rng.random() < 0.5:
        return [replace(item, msn=old.msn) for item in (first, *rest)]
    if old.opcode is not Opcode.WRITE_RECORD:
        return [old]
    return [replace(old, msn=trial.next_msn()), old]


# What the host does


class RandomReceives:
    """Posts receives to places of the stage's local region, each its own until they run out, and to
    places of its mapped region, where Write-Records go as well."""

    def __init__(self, trial: Trial, rng: random.Random) -> None:
        self._trial = trial
        self._rng = rng
        self._slot = 0
        self._posted: dict[int, int] = {}

    def some(self, qpn: int) -> Event:
        requests = []
        for _ in range(self._rng.randint(1, 4)):
            if self._posted.get(qpn, 0) < 120:  # the ring has 128
                self._posted[qpn] = self._posted.get(qpn, 0) + 1
                requests.append(self._one())
        return Receives(qpn, tuple(requests))

    def _one(self) -> dict[str, int]:
        trial, rng = self._trial, self._rng
        places = trial.local.length // _RECEIVE_SLOT
        place = self._slot % places * _RECEIVE_SLOT
        self._slot += 1
        length = rng.choice((_RECEIVE_SLOT, _RECEIVE_SLOT, 40, 1, 0))
        if rng.random() < 0.4:
            return self._mapped()
        match rng.randrange(12):
            case 0:
                return receive_wqe(trial.foreign, 0, 32)
            case 1:
                return receive_wqe(trial.local, trial.local.length - 7, 8)
            case _:
                return receive_wqe(trial.local, place + rng.randrange(8) * (length == 40), length)

    def _mapped(self) -> dict[str, int]:
        """A receive that a Send of several datagrams fits, but for the few off the granules."""
        trial, rng = self._trial, self._rng
        region, step = rng.choice(((trial.mapped, 64), (trial.coarse, 256)))
        length = rng.choice((100, 1000, 8192))
        place = _place(trial, rng, region, length)
        return receive_wqe(region, place if rng.random() < 0.1 else place // step * step, length)


def _look(trial: Trial, rng: random.Random) -> list[tuple[float, Event]]:
    return [(0.0, Look())]


def _silence(trial: Trial, rng: random.Random) -> list[tuple[float, Event]]:
    return [(0.0, Silence())]


def _change(trial: Trial, rng: random.Random) -> list[tuple[float, Event]]:
    """A QP that rests for a while, or a region whose key is another for a while (P29)."""
    if rng.random() < 0.5:
        table, row = Table.QP, rng.choice((1, 2, 8))
        states = (QpState.ERROR, QpState.RTS)
        before, after = ({"state": state} for state in states)
    else:
        table, row = Table.REGION, trial.plain.stag >> 8
        before, after = ({"key": key} for key in (0x11, trial.plain.stag & 0xFF))
    return [(0.0, Row(table, row, before)), (3 * rng.random(), Row(table, row, after))]


if __name__ == "__main__":
    sys.exit(run_command("sim_tb.messages", messages))
