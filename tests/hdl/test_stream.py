"""Queue, Skid and PacketFifo against deques, with random gaps and stalls."""

import gc
import random
from collections import deque

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.sim import Simulator

from uwarp_hdl.stream.packet_fifo import PacketFifo
from uwarp_hdl.stream.ports import keep_apart
from uwarp_hdl.stream.queue import Queue, connect_streams
from uwarp_hdl.stream.skid import Skid

SEED = 1071
CYCLES = 2500


def simulate(dut, bench):
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


class HoldCheck:
    """Once valid, an item stays until it is taken."""

    def __init__(self, stream):
        self.stream = stream
        self.held = None

    def look(self, ctx, ready):
        """Return the item that is taken in this cycle, or None."""
        item = ctx.get(self.stream.payload) if ctx.get(self.stream.valid) else None
        if self.held is not None:
            assert item == self.held, f"{self.held} was offered, then {item}"
        self.held = None if ready else item
        return item if ready else None


@pytest.mark.parametrize(
    ("depth", "options"),
    [(depth, {}) for depth in (2, 3, 4, 5, 16, 33, 64, 65, 80)]
    + [(depth, {"direct": False}) for depth in (2, 3, 4, 16, 33)]
    + [(depth, {"block": True}) for depth in (3, 4, 16, 33)]
    + [(depth, {"registered": False}) for depth in (2, 3, 16, 32)]
    + [(depth, {"eager": False}) for depth in (4, 16, 64)]
    + [(depth, {"bounded": False}) for depth in (3, 16, 80)]
    + [(depth, {"bounded": False, "registered": False}) for depth in (3, 16)]
    + [(16, {"bounded": False, "direct": False}), (16, {"bounded": False, "block": True})],
)
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_queue(depth, options, seed):
    dut = Queue(16, depth, **options)
    direct = options.get("direct", True)
    in_block_ram = 16 * depth > 1024 or not direct or options.get("block", False)
    bounded = options.get("bounded", True)
    longest = 2 if in_block_ram else not options.get("eager", True)

    async def bench(ctx):
        rng = random.Random(seed)
        held, output, offered, fullest, pause = deque(), HoldCheck(dut.o), None, 0, 0
        for cycle in range(CYCLES):
            # Phases: fill, drain, both.
            push, pull = ((0.9, 0.3), (0.3, 0.9), (0.8, 0.8))[cycle // 150 % 3]
            has_room = bounded or len(held) < depth
            if offered is None and has_room and rng.random() < push:
                offered = rng.getrandbits(16)
            ready = rng.random() < pull
            ctx.set(dut.i.valid, offered is not None)
            ctx.set(dut.i.payload, offered or 0)
            ctx.set(dut.o.ready, ready)
            if bounded:
                assert ctx.get(dut.level) == len(held), f"{cycle=} {seed=}"
                assert ctx.get(dut.i.ready) == (len(held) < depth), f"{cycle=} {seed=}"
            else:
                assert ctx.get(dut.i.ready), f"{cycle=} {seed=}"
            pause = pause + 1 if held and not ctx.get(dut.o.valid) else 0
            assert pause <= longest, f"{cycle=} {seed=}"
            taken = output.look(ctx, ready)
            if taken is not None:
                assert held and taken == held.popleft(), f"{cycle=} {seed=}"
            if offered is not None and ctx.get(dut.i.ready):
                held.append(offered)
                offered = None
            fullest = max(fullest, len(held))
            await ctx.tick()
        assert fullest == depth, f"held {fullest} of {depth}, {seed=}"

    simulate(dut, bench)


@pytest.mark.parametrize(
    ("depth", "registered"),
    [(depth, True) for depth in (2, 3, 4, 5, 16, 33)] + [(2, False), (16, False)],
)
@pytest.mark.parametrize("filled", [0, 1, 2])
def test_queue_takes_and_gives_in_every_cycle(depth, registered, filled):
    dut = Queue(16, depth, registered=registered)

    async def bench(ctx):
        sent, got = 0, []
        ctx.set(dut.i.valid, 1)
        for cycle in range(200):
            ctx.set(dut.i.payload, cycle)
            ctx.set(dut.o.ready, cycle > filled)
            if cycle > filled:
                assert ctx.get(dut.o.valid), f"{cycle=}"
                got.append(ctx.get(dut.o.payload))
            if filled < depth - 1:
                assert ctx.get(dut.i.ready), f"{cycle=}"
                sent += 1
            await ctx.tick()
            if cycle == 0:
                assert ctx.get(dut.o.valid), "not offered in the cycle after"
        if filled < depth - 1:
            assert got == list(range(sent - filled - 1))

    simulate(dut, bench)


def test_skid():
    dut = Skid(16)

    async def bench(ctx):
        rng = random.Random(SEED)
        sent, got, offered, output, was_ready = [], [], None, HoldCheck(dut.o), True
        for cycle in range(CYCLES):
            if offered is None and (cycle % 200 > 100 or rng.random() < 0.6):
                offered = rng.getrandbits(16)
            ready = cycle % 400 > 300 or rng.random() < 0.6
            ctx.set(dut.i.valid, offered is not None)
            ctx.set(dut.i.payload, offered or 0)
            accepts = ctx.get(dut.i.ready)
            ctx.set(dut.o.ready, ready)
            assert ctx.get(dut.i.ready) == accepts, "i.ready follows o.ready"
            assert accepts or not was_ready, f"{cycle=}: not ready after a cycle without a stall"
            taken = output.look(ctx, ready)
            if taken is not None:
                got.append(taken)
            if offered is not None and accepts:
                sent.append(offered)
                offered = None
            was_ready = ready
            await ctx.tick()
        assert len(got) > CYCLES // 3
        assert got == sent[: len(got)] and len(sent) - len(got) <= 1

    simulate(dut, bench)


@pytest.mark.parametrize("depth", [2, 16, 64])
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_packet_fifo(depth, seed):
    """P11, P15, P16: commit and discard with and without a word, when full and when empty."""
    dut = PacketFifo(16, depth)

    async def bench(ctx):
        rng = random.Random(seed)
        committed, undecided, output, refused, taken_count = deque(), [], HoldCheck(dut.o), 0, 0
        decision = None
        for cycle in range(CYCLES):
            push, pull = ((0.9, 0.2), (0.5, 0.9), (0.9, 0.9))[cycle // 250 % 3]
            write, word = rng.random() < push, rng.getrandbits(16)
            # A full memory without committed words moves again by a decision alone.
            stuck = not committed and len(undecided) == depth
            discarded = decision == "discard"
            decision = rng.choice(("commit", "discard")) if stuck or rng.random() < 0.2 else None
            ready = rng.random() < pull
            ctx.set(dut.i.valid, write)
            ctx.set(dut.i.payload, word)
            ctx.set(dut.commit, decision == "commit")
            ctx.set(dut.discard, decision == "discard")
            ctx.set(dut.o.ready, ready)
            room = ctx.get(dut.i.ready)
            waiting = len(committed) + len(undecided)
            assert not room or waiting <= depth + 1, f"{cycle=} {seed=}: {waiting} in {depth}"
            assert room or waiting >= depth or discarded, (
                f"{cycle=} {seed=}: refused at {waiting} of {depth}"
            )
            refused += write and not room
            taken = output.look(ctx, ready)
            if taken is not None:
                assert committed and taken == committed.popleft(), f"{cycle=} {seed=}"
                taken_count += 1
            if write and room:
                undecided.append(word)
            if decision == "commit":
                committed.extend(undecided)
            if decision:
                undecided.clear()
            await ctx.tick()
        assert refused > 10 and taken_count > CYCLES // 6, f"{refused=} {taken_count=} {seed=}"
        ctx.set(dut.i.valid, 0)
        ctx.set(dut.commit, 0)
        ctx.set(dut.discard, 1)
        ctx.set(dut.o.ready, 1)
        for _ in range(depth + 4):
            taken = output.look(ctx, True)
            if taken is not None:
                assert taken == committed.popleft(), f"{seed=}"
            await ctx.tick()
        assert not committed and not ctx.get(dut.o.valid), f"{seed=}"

    simulate(dut, bench)


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_packets_again(seed):
    """Packets that come once to four times, among those that are discarded; their room is free when
    the last time has gone, and not before."""
    depth = 16
    dut = PacketFifo(data.StructLayout({"word": 16, "last": 1}), depth, repeats=True)
    packets = random.Random(seed)

    async def bench(ctx):
        rng = random.Random(seed + 100)
        undecided, committed, left = [], deque(), []  # left: of the packet that is offered
        times, passes, told, full = 0, 0, 0, 0
        discard = False
        for cycle in range(CYCLES):
            write = rng.random() < (0.9, 0.3)[cycle // 200 % 2]
            last = len(undecided) + 1 >= packets.randint(1, 12)
            word = {"word": rng.getrandbits(16), "last": last}
            ready = rng.random() < (0.9, 0.4)[cycle // 300 % 2]
            ctx.set(dut.i.valid, write)
            ctx.set(dut.i.payload, word)
            room = ctx.get(dut.i.ready)
            full += not room
            taken = write and room
            keep = rng.random() < 0.7
            discarded = discard
            # A packet without room goes, as the frame receiver has it.
            commit, discard = taken and last and keep, taken and last and not keep
            discard |= write and not room
            ctx.set(dut.commit, commit)
            ctx.set(dut.discard, discard)
            if not times and committed:
                times, left = rng.randint(1, 4), list(committed[0])
            held = sum(map(len, committed)) + len(undecided)
            if times == 1 and committed:
                held -= len(committed[0]) - len(left)
            assert held <= depth, f"{cycle=} {seed=}: {held} words in {depth}"
            assert room or held >= depth - 1 or discarded, f"{cycle=} {seed=}: refused at {held}"
            ctx.set(dut.again, times > 1)
            # Only as GroupCopies has it: with what is known of the packet.
            ctx.set(dut.o.ready, ready and times > 0)
            if ctx.get(dut.o.valid) and times:
                value = ctx.get(dut.o.payload)
                assert {"word": value.word, "last": value.last} == left[0], f"{cycle=} {seed=}"
                if ready:
                    left.pop(0)
                    if not left:
                        passes, times = passes + 1, times - 1
                        left = list(committed[0])
                        if not times:
                            committed.popleft()
                            told += 1
            if taken:
                undecided.append(word)
            if commit:
                committed.append(undecided)
            if commit or discard:
                undecided = []
            await ctx.tick()
        assert told > 40 and passes > 1.5 * told and full > 10, f"{told=} {passes=} {full=}"

    simulate(dut, bench)


def test_packet_fifo_latency_and_rate():
    dut = PacketFifo(16, 32)

    async def bench(ctx):
        ctx.set(dut.o.ready, 1)
        for cycle in range(60):
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.payload, cycle)
            ctx.set(dut.commit, cycle % 5 == 4)
            if cycle >= 7:
                assert ctx.get(dut.o.valid) and ctx.get(dut.o.payload) == cycle - 7
            else:
                assert not ctx.get(dut.o.valid)
            await ctx.tick()

    simulate(dut, bench)


def test_connect_streams_compares_shapes():
    first = data.StructLayout({"data": 8, "first": 1})
    second = data.StructLayout({"data": 8, "last": 1})
    source = stream.Signature(first).create(path=("source",))
    m = Module()
    with pytest.raises(TypeError, match=r"a stream of .*'first'.* cannot feed one of .*'last'"):
        connect_streams(m, source, stream.Signature(second).create(path=("sink",)))

    m.submodules.a, m.submodules.b = a, b = Queue(first, 2), Queue(first, 4)
    connect_streams(m, a.o, b.i)

    async def bench(ctx):
        ctx.set(a.i.payload, {"data": 0x5A, "first": 1})
        ctx.set(a.i.valid, 1)
        await ctx.tick()
        ctx.set(a.i.valid, 0)
        await ctx.tick()
        assert ctx.get(b.o.valid) and ctx.get(b.o.payload.data) == 0x5A
        assert not ctx.get(a.o.valid)

    simulate(m, bench)


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
@pytest.mark.parametrize("depth", [0, 1, 2.0])
def test_depths_are_checked(depth):
    with pytest.raises(ValueError, match=f"depth is {depth}"):
        Queue(8, depth)
    with pytest.raises(ValueError, match="not bounded"):
        Queue(8, 2, bounded=False)
    with pytest.raises(ValueError, match="not eager"):
        Queue(8, 4, eager=False, registered=False)
    with pytest.raises(ValueError, match=f"depth is {depth}"):
        PacketFifo(8, depth)
    gc.collect()


def test_ports_apart():
    """A port reads every row but the one that is being written: then it keeps what it read."""
    rng = random.Random(SEED)
    m = Module()
    m.submodules.memory = memory = Memory(shape=8, depth=4, init=[])
    reader, writer = memory.read_port(), memory.write_port()
    enable = Signal()
    keep_apart(m, reader, writer, enable)

    async def testbench(ctx):
        rows, shown, kept = [0] * 4, 0, 0
        for _ in range(400):
            place, into, value = rng.randrange(4), rng.randrange(4), rng.getrandbits(8)
            writes, reads = rng.getrandbits(1), rng.getrandbits(1)
            for signal, number in (
                (reader.addr, place),
                (writer.addr, into),
                (writer.data, value),
                (writer.en, writes),
                (enable, reads),
            ):
                ctx.set(signal, number)
            await ctx.tick()
            meets = writes and place == into
            kept += meets and reads
            if reads and not meets:
                shown = rows[place]
            if writes:
                rows[into] = value
            assert ctx.get(reader.data) == shown
        assert kept > 10

    simulate(m, testbench)
