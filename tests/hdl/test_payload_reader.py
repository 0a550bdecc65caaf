"""The payload reader alone: pieces of memory joined to the payload of a frame, octet by octet."""

import random
from collections import deque

import pytest
from amaranth.sim import Simulator

from uwarp.contract import EventType, Parameters
from uwarp_hdl.iwarp.payload_reader import PayloadReader

PARAMETERS = Parameters(n_qp=4, n_region=4, max_mtu=1500)
MEMORY = 0x4000


class ReaderBench:
    """Segments, each of pieces (address, length), and a memory that answers after a while."""

    def __init__(self, seed, stall=0.0, latency=4):
        self.rng, self.seed, self.stall, self.latency = random.Random(seed), seed, stall, latency
        self.dut = PayloadReader(PARAMETERS)
        self.memory = self.rng.randbytes(MEMORY)
        self.broken = set()  # addresses of words that cannot be read
        self.jobs, self.expected = deque(), []
        self.segments, self.events = [], []
        self.busy_cycles = []
        print(f"seed {seed}")

    def segment(self, place, pieces, qpn=0):
        payload = bytes(place)
        failed = 0
        for number, (address, length) in enumerate(pieces, 1):
            self.jobs.append(
                {
                    "address": address,
                    "length": length,
                    "place": len(payload) % 8,
                    "final": number == len(pieces),
                    "qpn": qpn,
                }
            )
            payload += self.memory[address : address + length]
            failed |= any(word in self.broken for word in range(address & ~7, address + length, 8))
        payload += bytes(-len(payload) % 8)
        self.expected.append((payload, failed))

    def pieces(self, lengths):
        """Pieces of these lengths anywhere in memory."""
        return [(self.rng.randrange(MEMORY - length), length) for length in lengths]

    async def testbench(self, ctx):
        dut, rng = self.dut, self.rng
        bursts, beats = deque(), deque()
        partial, now = b"", 0
        job, word = None, None
        began = None
        while len(self.segments) < len(self.expected):
            assert now < 60_000, f"{len(self.segments)} segments in {now} cycles; {self.seed}"
            if job is None and self.jobs and rng.random() >= self.stall:
                job = self.jobs.popleft()
                ctx.set(dut.jobs.payload, job)
            ctx.set(dut.jobs.valid, job is not None)
            while bursts and bursts[0][0] <= now:
                _, address, count = bursts.popleft()
                for index in range(count):
                    place = address + 8 * index
                    octets = self.memory[place : place + 8].ljust(8, b"\0")
                    beats.append(
                        {
                            "data": int.from_bytes(octets, "little"),
                            "last": index == count - 1,
                            "error": place in self.broken,
                        }
                    )
            if word is None and beats and rng.random() >= self.stall:
                word = beats.popleft()
                ctx.set(dut.read.beats.payload, word)
            ctx.set(dut.read.beats.valid, word is not None)
            ctx.set(dut.read.bursts.ready, rng.random() >= self.stall)
            ctx.set(dut.o.ready, rng.random() >= self.stall)
            ctx.set(dut.event_requests.ready, rng.random() >= self.stall)
            _, _, *values = await ctx.tick().sample(
                dut.jobs.ready,
                dut.read.beats.ready,
                dut.read.bursts.valid & dut.read.bursts.ready,
                dut.read.bursts.payload,
                dut.o.valid & dut.o.ready,
                dut.o.payload,
                dut.event_requests.valid & dut.event_requests.ready,
                dut.event_requests.payload,
            )
            job_ready, beat_ready, asked, burst, given, out, told, event = values
            now += 1
            if job_ready:
                job = None
            assert beat_ready or word is None, "the reader asked for what it has no room for"
            if beat_ready:
                word = None
            if asked:
                end = burst.address + 8 * (burst.beats + 1)
                assert burst.address % 8 == 0 and burst.address // 128 == (end - 1) // 128
                bursts.append((now + self.latency, burst.address, burst.beats + 1))
            if told:
                self.events.append((event.type, event.number))
            if given:
                began = now if began is None else began
                partial += out.data.to_bytes(8, "little")
                assert out.last or not out.error
                if out.last:
                    self.segments.append((partial, out.error))
                    self.busy_cycles.append(now - began + 1)
                    partial, began = b"", None

    def run(self):
        simulator = Simulator(self.dut)
        simulator.add_clock(6.4e-9)
        simulator.add_testbench(self.testbench)
        simulator.run()
        for number, (got, wanted) in enumerate(zip(self.segments, self.expected, strict=True)):
            assert got == wanted, (
                f"segment {number}, seed {self.seed}:\n{got[0].hex()}\nnot\n{wanted[0].hex()}"
            )


def splits(length):
    """Every way to cut ``length`` octets into pieces of one or more."""
    for cuts in range(1 << (length - 1)):
        pieces = [1]
        for bit in range(length - 1):
            if cuts >> bit & 1:
                pieces.append(1)
            else:
                pieces[-1] += 1
        yield pieces


@pytest.mark.parametrize("place", [0, 4])
def test_every_split(place):
    """Every cut of up to 9 octets, at random addresses."""
    bench = ReaderBench(4700 + place, stall=0.1)
    for length in range(1, 10):
        for lengths in splits(length):
            bench.segment(place, bench.pieces(lengths))
    bench.run()


def test_every_alignment():
    """Two pieces: every place, every alignment of either in memory, ends in every octet."""
    bench = ReaderBench(4710, stall=0.05)
    for place in (0, 4):
        for first in range(8):
            for second in range(8):
                lengths = bench.rng.randint(1, 24), bench.rng.randint(1, 24)
                pieces = [
                    (256 * number + address, length)
                    for number, (address, length) in enumerate(
                        zip((first, second), lengths, strict=True)
                    )
                ]
                bench.segment(place, pieces)
    bench.run()


@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_random_pieces(stall):
    """Up to five pieces of up to a frame's length, some of which cannot be read."""
    bench = ReaderBench(4720 + int(10 * stall), stall)
    bench.broken = {8 * bench.rng.randrange(MEMORY // 8) for _ in range(12)}
    for number in range(60):
        count = bench.rng.randint(1, 5)
        most = bench.rng.choice((3, 40, 280))
        lengths = [bench.rng.randint(1, most) for _ in range(count)]
        bench.segment(4 * (number % 2), bench.pieces(lengths), number % 4)
    bench.run()
    assert any(failed for _, failed in bench.expected) and bench.events
    assert {kind for kind, _ in bench.events} == {EventType.DMA_READ}


def test_error_ends_with_its_segment():
    """An error in a piece, even the first, spoils its segment, not the one before or after."""
    bench = ReaderBench(4730)
    bench.broken = {0x800}
    bench.segment(0, [(0x700, 5), (0x708, 3)], 1)
    bench.segment(0, [(0x804, 2), (0x100, 9), (0x200, 1)], 2)
    bench.segment(4, [(0x101, 1)], 3)
    bench.run()
    assert [failed for _, failed in bench.segments] == [0, 1, 0]
    assert bench.events == [(EventType.DMA_READ, 2)]


def test_throughput():
    """A word of memory a cycle; no more than two idle cycles between pieces."""
    bench = ReaderBench(4740, latency=0)
    plans = [[1400], [300, 300, 300], [1, 1, 1, 1], [64, 1, 64, 1], [5] * 5]
    expected = []
    for lengths in plans:
        pieces = [(0x400 * n + 3 * n + 5, length) for n, length in enumerate(lengths)]
        bench.segment(0, pieces)
        words = sum((address % 8 + length + 7) // 8 for address, length in pieces)
        expected.append(words + 2 * len(pieces) + 1)
    bench.run()
    for lengths, cycles, most in zip(plans, bench.busy_cycles, expected, strict=True):
        assert cycles <= most, f"{lengths}: {cycles} cycles, not {most}"
