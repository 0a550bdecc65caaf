"""Frame builder and sender together: frames against scapy's, dropped frames, the checksum 0."""

import random
from collections import deque
from itertools import product

import google_crc32c
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from uwarp.contract import Parameters, Status
from uwarp_hdl.iwarp.frame_builder import FrameBuilder
from uwarp_hdl.iwarp.frame_sender import FrameSender

PARAMETERS = Parameters(n_qp=4, n_region=4, max_mtu=1500)
WRITE, READ, SEND, WRITE_RECORD, RESPONSE, SEND_IMMEDIATE = 0x0, 0x1, 0x3, 0xC, 0xD, 0xE
HEADERS = {WRITE: 14, READ: 46, SEND: 18, WRITE_RECORD: 30, RESPONSE: 30, SEND_IMMEDIATE: 22}
TAGGED = (WRITE, WRITE_RECORD, RESPONSE)
MAC, IPV4, IPV6 = 0x0200_0000_0001, 0x0A00_0001, 0x2001_0DB8_0000_0000_0123_4567_89AB_CDEF
PEER_MAC = 0x0200_0000_0002
#: (VLAN tag, IPv6)
SHAPES = list(product((0, 1), (0, 1)))


def be(value, octets):
    return value.to_bytes(octets, "big")


def text_of(number, octets):
    """An address as scapy takes it."""
    if octets == 6:
        return be(number, 6).hex(":")
    if octets == 4:
        return ".".join(map(str, be(number, 4)))
    digits = be(number, 16).hex()
    return ":".join(digits[start : start + 4] for start in range(0, 32, 4))


def ddp_header(segment):
    """Octets before the payload: RFC 5041, RFC 5040 and the record extension, field by field."""
    opcode = segment["opcode"]
    ddp = 0x01 | (0x80 if opcode in TAGGED else 0) | (0x40 if segment["last"] else 0)
    rdmap = 0x40 | (0x5 if opcode == SEND and segment["solicited"] else opcode)
    if opcode in (WRITE_RECORD, SEND_IMMEDIATE):
        rdmap |= (0x20 if segment["solicited"] else 0) | (0x10 if segment["immediate_valid"] else 0)
    control = bytes((ddp, rdmap))
    msn, mo, mlen = (be(segment[name], 4) for name in ("msn", "mo", "mlen"))
    immediate, stag, to = be(segment["immediate"], 4), be(segment["stag"], 4), be(segment["to"], 8)
    tagged, untagged = control + stag + to, control + mlen + be(0, 4) + msn + mo
    return {
        WRITE: tagged,
        WRITE_RECORD: tagged + msn + mo + mlen + immediate,
        RESPONSE: tagged + msn + mo + mlen + immediate,
        SEND: untagged,
        SEND_IMMEDIATE: untagged + immediate,
        # The sink's STag and TO, size, the source's STag and TO.
        READ: control
        + (be(28, 4) + be(1, 4) + msn + mo)
        + (immediate + be(segment["sink_to"], 8) + mlen + stag + to),
    }[opcode]


def reference_frame(segment, payload):
    """The frame of a segment, put together by scapy and google_crc32c."""
    ddp = ddp_header(segment) + payload
    ddp += google_crc32c.value(ddp).to_bytes(4, "little")
    frame = Ether(dst=text_of(segment["dest_mac"], 6), src=text_of(MAC, 6))
    if segment["vlan_valid"]:
        tci = segment["vlan"]
        frame /= Dot1Q(prio=tci >> 13, dei=tci >> 12 & 1, vlan=tci & 0xFFF)
    if segment["ipv6"]:
        frame /= IPv6(
            src=text_of(IPV6, 16),
            dst=text_of(segment["dest_ip"], 16),
            tc=segment["traffic_class"],
            hlim=segment["hop_limit"],
        )
    else:
        frame /= IP(
            src=text_of(IPV4, 4),
            dst=text_of(segment["dest_ip"], 4),
            tos=segment["traffic_class"],
            ttl=segment["hop_limit"],
            id=0,
            flags="DF",
        )
    frame /= UDP(sport=segment["udp_port"], dport=segment["dest_port"]) / Raw(ddp)
    return bytes(frame)


def destination_words(segment):
    """The four words of a destination: IPv4, port, tag; IP; MAC, traffic class, hop limit."""
    ip = segment["dest_ip"]
    ipv4 = 0x5A5A_5A5A if segment["ipv6"] else ip
    return [
        ipv4 | segment["dest_port"] << 32 | segment["vlan"] << 48,
        ip & (1 << 64) - 1,
        ip >> 64,
        segment["dest_mac"] | segment["traffic_class"] << 48 | segment["hop_limit"] << 56,
    ]


class FrameBench:
    """Segments, payload and answers in, frames and messages done out."""

    def __init__(self, seed, stall):
        self.rng, self.seed, self.stall = random.Random(seed), seed, stall
        self.m = Module()
        self.m.submodules.builder = self.builder = builder = FrameBuilder(PARAMETERS)
        self.m.submodules.sender = self.sender = sender = FrameSender(PARAMETERS)
        wiring.connect(self.m, builder.frames, sender.frames)
        wiring.connect(self.m, builder.checks, sender.checks)
        self.m.d.comb += [
            sender.write_low.eq(builder.write_low),
            sender.write_high.eq(builder.write_high),
            sender.write_low_address.eq(builder.write_low_address),
            sender.write_high_address.eq(builder.write_high_address),
            sender.write_data.eq(builder.write_data),
            builder.tail.eq(sender.tail),
            builder.finished.eq(sender.passed),
            builder.done.ready.eq(1),
        ]
        self.segments, self.words, self.answers = deque(), deque(), deque()
        self.quads = deque()  # (address, word), of segments queued
        self.queued = self.removed = 0
        self.just_taken = None
        self.destination_word = 0
        self.frames, self.ways, self.done, self.passed = [], [], [], []
        self.done_tracked = []
        self.partial = b""
        self.within = False
        self.now = 0
        self.taken, self.written = [], []
        print(f"seed {seed}")

    def segment(self, opcode, payload=b"", shape=(0, 0), *, error=False, opening=None, **fields):
        """Queue one segment. Returns its frame. ``opening`` is the answer that it waits for."""
        rng = self.rng
        vlan_valid, ipv6 = shape
        segment = {
            "slot": 0,
            "opcode": opcode,
            "signaled": 1,
            "solicited": opcode not in (WRITE, READ, RESPONSE) and rng.getrandbits(1),
            "immediate_valid": opcode in (WRITE_RECORD, SEND_IMMEDIATE) and rng.getrandbits(1),
            "immediate": rng.getrandbits(32) if opcode not in (WRITE, RESPONSE) else 0,
            "stag": rng.getrandbits(32),
            "to": rng.getrandbits(64),
            "sink_to": rng.getrandbits(64),
            "frame": 1,
            "last": 1,
            "length": len(payload),
            "msn": rng.getrandbits(32),
            "mo": 0 if opcode == READ else rng.getrandbits(32),
            "mlen": rng.getrandbits(32),
            "udp_port": rng.getrandbits(16),
            "dest_port": rng.getrandbits(16),
            "dest_mac": PEER_MAC,
            "dest_ip": rng.getrandbits(128 if ipv6 else 32),
            "vlan_valid": vlan_valid,
            "vlan": rng.getrandbits(16),
            "ipv6": ipv6,
            "traffic_class": rng.getrandbits(8),
            "hop_limit": rng.randint(1, 255),
            "opens": opening is not None,
        } | fields
        if segment["dest_port"] is None:
            # The port that makes the checksum 0, which is sent as 0xFFFF.
            frame = reference_frame(segment | {"dest_port": 0}, payload)
            place = checksum_place(shape)
            segment["dest_port"] = int.from_bytes(frame[place : place + 2], "big")
        frame = reference_frame(segment, payload)
        segment["octets"] = len(frame)
        self.segments.append(segment)
        quads = (bytes(4) + ddp_header(segment)[2:]).ljust(48, b"\xa5")
        for row in range(6):
            word = int.from_bytes(quads[8 * row : 8 * row + 8], "little")
            self.quads.append((self.queued, row, word))
        self.queued += 1
        if opening is not None:
            self.answers.append(opening)
        if payload:
            # In pairs of quads as in an IPv4 frame without a tag.
            placed = bytes((42 + HEADERS[opcode]) % 8) + payload
            words = [placed[start : start + 8] for start in range(0, len(placed), 8)]
            for number, word in enumerate(words, 1):
                last = number == len(words)
                item = {"data": int.from_bytes(word, "little"), "last": last}
                self.words.append(item | {"error": last and error})
        return frame

    async def cycle(self, ctx):
        builder, sender = self.builder, self.sender
        _, _, *values = await ctx.tick().sample(
            builder.segments.valid & builder.segments.ready,
            builder.payload.valid & builder.payload.ready,
            builder.payload.valid & ~builder.payload.ready,
            builder.done.valid,
            builder.done.payload,
            sender.tx.valid,
            sender.tx.ready,
            sender.tx.payload,
            sender.passed & sender.completes,
            builder.write_low | builder.write_high,
            sender.own,
            sender.group,
            builder.destination.index,
            builder.checks.ready & ~builder.checks.valid,
        )
        *values, destination_index, too_late = values
        assert not too_late, "a frame ends before its checks are there"
        segment_taken, word_taken, word_waits, done_valid, done, valid, ready, *values = values
        beat, passed, written, own, group = values
        self.now += 1
        if segment_taken:
            self.taken.append(self.now)
        if written:
            self.written.append(self.now)
        # A slot's destination is there until the cycle after its segment is taken.
        index, slot = destination_index & 3, destination_index >> 2
        segment = self.just_taken or (self.segments[0] if self.segments else None)
        self.just_taken = None
        word = self.rng.getrandbits(64)
        if segment is not None and segment["slot"] == slot:
            word = destination_words(segment)[index]
        ctx.set(builder.destination.row, self.destination_word)
        self.destination_word = word
        if segment_taken:
            self.removed += 1
            self.just_taken = self.segments.popleft()
        # The quads are no more than some segments ahead.
        ahead = bool(self.quads) and self.quads[0][0] < self.removed + 32
        ctx.set(builder.quads.valid, ahead)
        if ahead:
            number, row, quads = self.quads.popleft()
            ctx.set(builder.quads.address, 8 * (number % 64) + row)
            ctx.set(builder.quads.word, quads)
        if word_taken:
            self.words.popleft()
        if done_valid:
            self.done.append((done.status, done.slot))
            self.done_tracked.append((done.status, done.slot, done.tracked))
        assert valid or not self.within, "a gap in a frame"
        if valid and ready:
            self.partial += beat.data.to_bytes(8, "little")[: beat.count]
            if beat.last:
                self.frames.append(self.partial)
                self.ways.append((own, group))
                self.partial = b""
        self.within = valid and not (ready and beat.last)
        if passed:
            self.passed.append(len(self.frames))
        ctx.set(builder.segments.valid, bool(self.segments))
        if self.segments:
            segment = self.segments[0] | {"has_payload": self.segments[0]["length"] != 0}
            names = builder.segments.payload.shape().members
            ctx.set(
                builder.segments.payload,
                {name: value for name, value in segment.items() if name in names},
            )
        offer = bool(self.words) and bool(word_waits or self.rng.random() >= self.stall)
        ctx.set(builder.payload.valid, offer)
        if offer:
            ctx.set(builder.payload.payload, self.words[0])
        ctx.set(sender.tx.ready, self.rng.random() >= self.stall)
        answered = bool(self.answers) and self.rng.random() >= 0.9
        if answered:
            ctx.set(builder.opened_ok, self.answers.popleft())
        ctx.set(builder.opened, answered)

    def run(self, passes, limit=20_000):
        """Until that many messages have ended."""

        async def testbench(ctx):
            config = {"enable": 1, "mac": MAC, "ipv4": IPV4, "ipv6": IPV6, "mtu": 1500}
            ctx.set(self.builder.config, config)
            ctx.set(self.sender.enable, 1)
            for _ in range(limit):
                if len(self.passed) == passes:
                    break
                await self.cycle(ctx)
            assert len(self.passed) == passes, f"{len(self.passed)} ended; seed {self.seed}"

        simulator = Simulator(self.m)
        simulator.add_clock(6.4e-9)
        simulator.add_testbench(testbench)
        simulator.run()

    def check(self, expected, more=0):
        """``more`` frames at the end are not looked at."""
        for got, frame in zip(self.frames, expected, strict=False):
            assert got == frame, f"seed {self.seed}\n{got.hex()}\nnot\n{frame.hex()}"
        count = len(self.frames) - more
        assert count == len(expected), f"{count}, not {len(expected)}"


def checksum_place(shape):
    vlan_valid, ipv6 = shape
    return 40 + 4 * vlan_valid + 20 * ipv6


def send_all(bench, lengths):
    """Frames of every shape and opcode with each of ``lengths``, the order mixed."""
    kinds = [
        (shape, opcode, length)
        for shape in SHAPES
        for opcode in HEADERS
        for length in (lengths if opcode != READ else [0])
    ]
    bench.rng.shuffle(kinds)
    expected = [
        bench.segment(opcode, bench.rng.randbytes(length), shape, last=bench.rng.getrandbits(1))
        for shape, opcode, length in kinds
    ]
    lasts = [segment["last"] for segment in bench.segments]
    bench.segment(WRITE)  # One more, so that the last frame completes something.
    bench.run(sum(lasts) + 1, limit=40_000 + 100 * len(expected))
    bench.check(expected, more=1)
    assert bench.done == [(Status.SUCCESS, 0)] * (sum(lasts) + 1)
    places = [number for number, last in enumerate([*lasts, 1], 1) if last]
    assert bench.passed == places, "completed before it had left"


def test_frames():
    """Every shape, opcode and end in a word, with stalls."""
    send_all(FrameBench(400, 0.3), range(9))


@pytest.mark.soak
@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_every_length(stall):
    send_all(FrameBench(410 + int(10 * stall), stall), range(71))


def test_largest_frames():
    """The largest payload of each shape and opcode, and one octet less."""
    bench = FrameBench(420, 0.0)
    expected = []
    for number, (shape, opcode) in enumerate(product(SHAPES, HEADERS)):
        if opcode != READ and number % 3 == 0:
            largest = 1500 - 32 - 20 * shape[1] - HEADERS[opcode] - number % 2
            expected.append(bench.segment(opcode, bench.rng.randbytes(largest), shape))
    bench.run(len(expected))
    bench.check(expected)


def test_word_a_cycle():
    """The first pair is written two cycles after the segment is taken, then one a cycle; there is
    one cycle between frames, and one in them for each odd quad."""
    bench = FrameBench(430, 0.0)
    messages = ((WRITE_RECORD, 13), (SEND, 0), (SEND, 40), (READ, 0), (WRITE, 0))
    frames = [
        bench.segment(opcode, bench.rng.randbytes(length), shape)
        for shape in SHAPES
        for opcode, length in messages
    ]
    bench.run(len(frames))
    bench.check(frames)
    place = 0
    odd = [sum(shape) for shape in SHAPES for _ in range(5)]
    for number, (frame, taken) in enumerate(zip(frames, bench.taken, strict=True)):
        # The CRC is put in by the sender.
        words = odd[number] + (len(frame) - 4 - 4 * odd[number] + 7) // 8
        assert bench.written[place : place + words] == list(range(taken + 2, taken + 2 + words))
        place += words
        if number + 1 < len(frames):
            following = taken + words + 1
            assert bench.taken[number + 1] == following, f"after {len(frame)} octets"


def test_checksum_zero_goes_as_ones():
    bench = FrameBench(500, 0.1)
    shapes = list(product(SHAPES, HEADERS))
    expected = [
        bench.segment(opcode, bench.rng.randbytes(number if opcode != READ else 0), shape, **fields)
        for number, (shape, opcode) in enumerate(shapes)
        for fields in [{"dest_port": None}]
    ]
    for (shape, _), frame in zip(shapes, expected, strict=True):
        place = checksum_place(shape)
        assert frame[place : place + 2] == b"\xff\xff"
    bench.run(len(expected))
    bench.check(expected)


def test_openings():
    """A Read goes out if the answer is yes; else it ends with NO_TRACKER. Answers in any time."""
    bench = FrameBench(510, 0.2)
    expected, done = [], []
    for number in range(24):
        if number % 3 == 0:
            frame = bench.segment(WRITE, bench.rng.randbytes(9), slot=1)
            opening, tracked = True, 0
        elif number % 7 == 0:
            # It failed before: nobody was asked to open a tracker for it.
            bench.segment(READ, slot=2, opens=1, frame=0, status=Status.LOC_PROT_ERR)
            done.append((Status.LOC_PROT_ERR, 2, 0))
            continue
        else:
            opening = bench.rng.getrandbits(1)
            frame = bench.segment(READ, b"", bench.rng.choice(SHAPES), slot=3, opening=opening)
            tracked = 1
        if opening:
            expected.append(frame)
        slot = 3 if number % 3 else 1
        status = Status.SUCCESS if opening else Status.NO_TRACKER
        done.append((status, slot, tracked and opening))
    bench.run(len(done))
    bench.check(expected)
    assert bench.done_tracked == done
    assert Status.NO_TRACKER in {status for status, _, _ in done}


@pytest.mark.parametrize("octets", [4, 8, 11, 12])
def test_length_of_no_frame(octets):
    """A segment without a frame has any length: the next frame, which waits with it for the end of
    a long one, is whole."""
    bench = FrameBench(515, 0.0)
    expected = [bench.segment(WRITE_RECORD, bench.rng.randbytes(400), slot=1)]
    bench.segment(WRITE, slot=2, frame=0, status=Status.LOC_PROT_ERR)
    bench.segments[-1]["octets"] = octets
    expected.append(bench.segment(WRITE_RECORD, b"123", slot=3))
    bench.run(3)
    bench.check(expected)


def test_destination_of_frames():
    """Frames to the own MAC address and to those with the group bit are told apart."""
    bench = FrameBench(520, 0.3)
    macs = [MAC, PEER_MAC, 0x0100_5E00_0001, 0xFFFF_FFFF_FFFF, MAC ^ 1 << 47, MAC ^ 1, MAC]
    expected = [bench.segment(SEND, b"123", dest_mac=mac) for mac in macs]
    bench.run(len(expected))
    bench.check(expected)
    assert bench.ways == [(mac == MAC, mac >> 40 & 1) for mac in macs]


def test_failed_reads():
    """Frames with an error, and those after it of the same message, stay; the slot serves again."""
    bench = FrameBench(600, 0.2)
    payloads = [bench.rng.randbytes(bench.rng.randrange(1, 1400)) for _ in range(9)]
    plan = [
        # slot, last, error
        (1, 0, False),
        (2, 0, False),
        (1, 0, True),
        (2, 1, False),
        (1, 0, False),
        (1, 1, False),
        (1, 1, False),
        (3, 1, True),
        (3, 1, False),
    ]
    frames = [
        bench.segment(WRITE_RECORD, payload, slot=slot, last=last, error=error)
        for payload, (slot, last, error) in zip(payloads, plan, strict=True)
    ]
    bench.run(5)
    good = [0, 1, 3, 6, 8]
    assert [len(frame) for frame in bench.frames] == [len(frames[index]) for index in good]
    assert [frame[72:-4] for frame in bench.frames] == [payloads[index] for index in good]
    assert bench.done == [
        (Status.SUCCESS, 2),
        (Status.GENERAL_ERR, 1),
        (Status.SUCCESS, 1),
        (Status.GENERAL_ERR, 3),
        (Status.SUCCESS, 3),
    ]
    assert bench.passed == [3, 3, 4, 4, 5]
