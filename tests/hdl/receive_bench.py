"""Drivers for the receive side's benches: host memory, streams with stalls."""

import os
import random
from collections import deque

from amaranth.hdl import ShapeCastable, ValueCastable
from amaranth.sim import Simulator

__all__ = [
    "HostMemory",
    "bits_of",
    "follow_failed",
    "make_rng",
    "payload_words",
    "put_stream",
    "run",
    "take",
    "value_of",
]


def make_rng(default):
    """A generator whose seed is printed, and can be set by the environment variable SEED."""
    seed = int(os.environ.get("SEED", default))
    print(f"SEED={seed}")
    return random.Random(seed)


def run(dut, *testbenches, background=(), max_cycles=100_000):
    """Simulate until all ``testbenches`` end. Fails if that takes more than ``max_cycles``."""
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    for testbench in testbenches:
        simulator.add_testbench(testbench)
    for testbench in background:
        simulator.add_testbench(testbench, background=True)

    async def watchdog(ctx):
        await ctx.delay(max_cycles * 1e-6)
        raise AssertionError(f"still running after {max_cycles} cycles")

    simulator.add_testbench(watchdog, background=True)
    simulator.run()


def value_of(payload):
    """The bits of a payload: setting and sampling these is much faster than a layout's fields."""
    return payload.as_value() if isinstance(payload, ValueCastable) else payload


def bits_of(shape, fields):
    return shape.const(fields).as_bits() if isinstance(shape, ShapeCastable) else fields


def follow_failed(failed, change):
    """Take a change (failed_layout) over into the set of QPs that have failed."""
    if change.write:
        four = range(4 * change.row, 4 * change.row + 4)
        failed.difference_update(four)
        failed.update(qpn for bit, qpn in enumerate(four) if change.bits >> bit & 1)


async def put_stream(ctx, stream, items, rng=None, stall=0.0):
    """Give ``items`` to a stream, pausing before each with probability ``stall``."""
    shape = stream.payload.shape()
    payload = value_of(stream.payload)
    for item in items:
        while stall and rng.random() < stall:
            await ctx.tick()
        ctx.set(payload, item if isinstance(item, int) else bits_of(shape, item))
        ctx.set(stream.valid, 1)
        while not (await ctx.tick().sample(stream.ready))[2]:
            pass
        ctx.set(stream.valid, 0)


async def take(ctx, stream, rng=None, stall=0.0):
    """The next item of a stream."""
    while stall and rng.random() < stall:
        await ctx.tick()
    ctx.set(stream.ready, 1)
    valid = False
    while not valid:
        _, _, valid, bits = await ctx.tick().sample(stream.valid, value_of(stream.payload))
    ctx.set(stream.ready, 0)
    shape = stream.payload.shape()
    return shape.from_bits(bits) if isinstance(shape, ShapeCastable) else bits


def payload_words(octets, offset, rng):
    """Beats, as integers, that carry ``octets`` from position ``offset`` on, with noise around."""
    padded = rng.randbytes(offset) + octets
    padded += rng.randbytes(-len(padded) % 8)
    count = len(padded) // 8
    return [
        int.from_bytes(padded[8 * i : 8 * i + 8], "little") | 8 << 64 | (i == count - 1) << 68
        for i in range(count)
    ]


class HostMemory:
    """What a write client has written: octets by address. Checks the client's side of the rules.

    ``delay()`` gives the cycles from a burst's last word to its answer. Nothing is visible before
    the answer. ``written`` counts how often each octet was written, ``answered`` all of them.
    A burst with an octet in ``faulty`` (ranges) is answered with an error and writes nothing;
    ``failed`` lists the addresses of such. Memories with the same ``answers_in`` answer as one bus
    does: at most one of them in a cycle.
    """

    def __init__(self, client, rng, stall=0.0, delay=lambda: 3, answers_in=None):
        self.client = client
        self.rng = rng
        self.stall = stall
        self.delay = delay
        self.octets = {}
        self.faulty = []
        self.failed = []
        self.answers_in = set() if answers_in is None else answers_in
        self.written = {}
        self.answered = 0
        self.bursts = deque()
        self.answers = deque()
        self.unanswered = 0
        self.max_unanswered = 0
        self.beats = 0
        self.cycle = 0

    def read(self, address, length):
        """Octets, None where nothing was written."""
        return [self.octets.get(address + i) for i in range(length)]

    async def serve(self, ctx):
        client = self.client
        waiting = deque()
        position = 0
        octets = {}
        driven = None
        while True:
            bursts_ready = self.rng.random() >= self.stall
            beats_ready = self.rng.random() >= self.stall
            error = False
            done = bool(self.answers and self.answers[0][0] <= self.cycle)
            done &= self.cycle not in self.answers_in
            if done:
                self.answers_in.add(self.cycle)
                error = self.answers[0][2]
            if driven != (driven := (bursts_ready, beats_ready, done, error)):
                ctx.set(client.bursts.ready, bursts_ready)
                ctx.set(client.beats.ready, beats_ready)
                ctx.set(client.done, done)
                ctx.set(client.error, error)
            if done:
                _, visible, _ = self.answers.popleft()
                if not error:
                    self.octets.update(visible)
                self.answered += len(visible)
                self.unanswered -= 1
            _, _, burst_valid, burst, beat_valid, beat = await ctx.tick().sample(
                client.bursts.valid,
                value_of(client.bursts.payload),
                client.beats.valid,
                value_of(client.beats.payload),
            )
            self.cycle += 1
            if burst_valid and bursts_ready:
                address, beats = burst & (1 << 64) - 1, burst >> 64
                assert address % 8 == 0, f"burst address {address:#x}"
                assert address // 4096 == (address + 8 * beats) // 4096, (
                    f"burst of {beats + 1} words at {address:#x} crosses a page"
                )
                assert beats < 16, f"burst of {beats + 1} words"
                self.bursts.append((address, beats))
                self.unanswered += 1
                self.max_unanswered = max(self.max_unanswered, self.unanswered)
            if beat_valid and beats_ready:
                waiting.append((beat & (1 << 64) - 1, beat >> 64 & 0xFF, beat >> 72))
                self.beats += 1
            while waiting and self.bursts:
                address, beats = self.bursts[0]
                word, strobe, last = waiting.popleft()
                assert last == (position == beats), (
                    f"last is {last} in word {position} of {beats + 1} at {address:#x}"
                )
                for lane in range(8):
                    if strobe >> lane & 1:
                        octet_address = address + 8 * position + lane
                        octets[octet_address] = word >> 8 * lane & 0xFF
                        self.written[octet_address] = self.written.get(octet_address, 0) + 1
                position += 1
                if last:
                    error = any(octet in span for span in self.faulty for octet in octets)
                    if error:
                        self.failed.append(address)
                    self.bursts.popleft()
                    position = 0
                    earliest = self.answers[-1][0] + 1 if self.answers else 0
                    self.answers.append((max(earliest, self.cycle + self.delay()), octets, error))
                    octets = {}
