"""Frame builder and sender together: frames against scapy's, dropped frames, the checksum 0."""

import random
from collections import deque

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator
from transmit_bench import (
    HEADERS,
    IMMEDIATE,
    IPV4,
    MAC,
    PEER_IPV4,
    PEER_MAC,
    SEND,
    SIGNALED,
    SOLICITED,
    WRITE_RECORD,
    reference_frames,
)

from uwarp.contract import Parameters, Status
from uwarp_hdl.iwarp.frame_builder import FrameBuilder
from uwarp_hdl.iwarp.frame_sender import FrameSender

PARAMETERS = Parameters(n_qp=4, n_region=4, max_mtu=1500)


class FrameBench:
    """Segments and payload in, frames and messages done out."""

    def __init__(self, seed, stall):
        self.rng, self.seed, self.stall = random.Random(seed), seed, stall
        self.m = Module()
        self.m.submodules.builder = self.builder = builder = FrameBuilder(PARAMETERS)
        self.m.submodules.sender = self.sender = sender = FrameSender(PARAMETERS)
        wiring.connect(self.m, builder.frames, sender.frames)
        self.m.d.comb += [
            sender.write_enable.eq(builder.write_enable),
            sender.write_address.eq(builder.write_address),
            sender.write_data.eq(builder.write_data),
            builder.tail.eq(sender.tail),
            builder.finished.eq(sender.passed),
            builder.done.ready.eq(1),
        ]
        self.segments, self.words = deque(), deque()
        self.frames, self.done, self.passed = [], [], []
        self.partial = b""
        self.within = False
        print(f"seed {seed}")

    def segment(self, opcode, payload, *, error=False, **fields):
        """Queue one segment. Returns its frame."""
        rng = self.rng
        flags = 0
        if opcode in (WRITE_RECORD, 0xE):
            flags = rng.choice((0, SOLICITED, IMMEDIATE, SOLICITED | IMMEDIATE))
        wqe = {
            "opcode": opcode,
            "flags": flags,
            "granule_log2": 0,
            "remote_to": rng.getrandbits(64),
            "remote_stag": rng.getrandbits(32),
            "immediate": rng.getrandbits(32),
            "dest_ip": PEER_IPV4,
            "dest_port": rng.getrandbits(16),
            "dest_mac": PEER_MAC,
            "traffic_class": rng.getrandbits(8),
            "hop_limit": rng.randint(1, 255),
        } | fields
        msn, udp_port = rng.getrandbits(32), rng.getrandbits(16)
        if wqe["dest_port"] is None:
            # The port that makes the checksum 0, which is sent as 0xFFFF.
            (frame,) = reference_frames(wqe | {"dest_port": 0}, udp_port, 1500, msn, payload)
            wqe["dest_port"] = int.from_bytes(frame[40:42], "big")
        (frame,) = reference_frames(wqe, udp_port, 1500, msn, payload)
        sent_immediate = opcode == 0xE or flags & IMMEDIATE
        self.segments.append(
            {
                "slot": fields.get("slot", 0),
                "opcode": opcode,
                "signaled": flags & SIGNALED,
                "solicited": bool(flags & SOLICITED),
                "immediate_valid": bool(flags & IMMEDIATE),
                "immediate": wqe["immediate"] if sent_immediate else 0,
                "stag": wqe["remote_stag"],
                "to": wqe["remote_to"],
                "udp_port": udp_port,
                "frame": 1,
                "last": fields.get("last", 1),
                "length": len(payload),
                "octets": len(frame),
                "msn": msn,
                "mlen": len(payload),
                **{
                    name: wqe[name]
                    for name in ("dest_ip", "dest_port", "dest_mac", "traffic_class", "hop_limit")
                },
            }
        )
        if payload:
            placed = bytes(4 if opcode == SEND else 0) + payload
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
        )
        segment_taken, word_taken, word_waits, done_valid, done, valid, ready, beat, passed = values
        if segment_taken:
            self.segments.popleft()
        if word_taken:
            self.words.popleft()
        if done_valid:
            self.done.append((done.status, done.slot))
        assert valid or not self.within, "a gap in a frame"
        if valid and ready:
            self.partial += beat.data.to_bytes(8, "little")[: beat.count]
            if beat.last:
                self.frames.append(self.partial)
                self.partial = b""
        self.within = valid and not (ready and beat.last)
        if passed:
            self.passed.append(len(self.frames))
        ctx.set(builder.segments.valid, bool(self.segments))
        if self.segments:
            ctx.set(builder.segments.payload, self.segments[0])
        offer = bool(self.words) and bool(word_waits or self.rng.random() >= self.stall)
        ctx.set(builder.payload.valid, offer)
        if offer:
            ctx.set(builder.payload.payload, self.words[0])
        ctx.set(sender.tx.ready, self.rng.random() >= self.stall)

    def run(self, passes, limit=20_000):
        """Until that many messages have ended."""

        async def testbench(ctx):
            config = {"enable": 1, "mac": MAC, "ipv4": IPV4, "mtu": 1500}
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

    def check(self, expected):
        for got, frame in zip(self.frames, expected, strict=False):
            assert got == frame, f"seed {self.seed}\n{got.hex()}\nnot\n{frame.hex()}"
        assert len(self.frames) == len(expected), f"{len(self.frames)}, not {len(expected)}"


@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_frames(stall):
    """Random frames of all opcodes, every ending in a word, largest and smallest ones."""
    bench = FrameBench(400 + int(10 * stall), stall)
    expected = []
    for opcode, header in HEADERS.items():
        largest = 1500 - 32 - header
        lengths = [*range(18), largest, largest - 1, bench.rng.randrange(largest)]
        expected += [bench.segment(opcode, bench.rng.randbytes(length)) for length in lengths]
    bench.run(len(expected))
    bench.check(expected)
    assert bench.passed == list(range(1, len(expected) + 1)), "completed before it had left"
    assert bench.done == [(Status.SUCCESS, 0)] * len(expected)


def test_checksum_zero_goes_as_ones():
    bench = FrameBench(500, 0.1)
    expected = [
        bench.segment(opcode, bench.rng.randbytes(length), dest_port=None)
        for length in range(40, 56)
        for opcode in HEADERS
    ]
    assert all(frame[40:42] == b"\xff\xff" for frame in expected)
    bench.run(len(expected))
    bench.check(expected)


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
    # The reference has L in all: these segments are whole messages but for the flag.
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
