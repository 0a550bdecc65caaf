"""Validity map and snapshots: counts exact however close the ranges follow (P20)."""

from amaranth.hdl import Elaboratable, Module
from amaranth.lib import wiring
from receive_bench import make_rng, put_stream, run, take

from uwarp.contract import Parameters
from uwarp_hdl.iwarp.snapshot import MapSnapshot
from uwarp_hdl.iwarp.validity_map import MAP_WORD, ValidityMap

PARAMETERS = Parameters(map_bits=2048)


class MapBench(Elaboratable):
    """A map and its snapshots, joined."""

    def __init__(self, depth=64):
        self.map = ValidityMap(PARAMETERS)
        self.snapshot = MapSnapshot(PARAMETERS, depth)

    def elaborate(self, platform):
        m = Module()
        m.submodules.map = self.map
        m.submodules.snapshot = self.snapshot
        wiring.connect(m, self.snapshot.clears, self.map.clears)
        for name in ("word_valid", "word", "word_last"):
            m.d.comb += getattr(self.snapshot, name).eq(getattr(self.map, name))
        return m


async def mark(ctx, dut, first, last):
    await put_stream(ctx, dut.marks, [{"first": first, "last": last}])


async def mark_all(ctx, dut, ranges):
    await put_stream(ctx, dut.marks, [{"first": a, "last": b} for a, b in ranges])


async def counts_of(ctx, dut, number, counts):
    while len(counts) < number:
        _, _, marked, count = await ctx.tick().sample(dut.marked, dut.count)
        if marked:
            counts.append(count)


def test_ranges_in_the_same_words():
    """Back to back, the same bits and neighbours: each new bit counts once; 4 cycles a word."""
    ranges = [(64, 64), (65, 65), (64, 66), (127, 127), (64, 127), (0, 63), (63, 64), (5, 5)]
    rng = make_rng(5)
    for _ in range(400):
        first = rng.randrange(2048)
        length = rng.choice((0, 0, 1, 3, 22, 63, 64, 140))
        ranges += [(first, min(2047, first + length))] * rng.choice((1, 1, 2))
    bits = set()
    expected = []
    words = 0
    for first, last in ranges:
        new = set(range(first, last + 1)) - bits
        bits |= new
        expected.append(len(new))
        words += last // MAP_WORD - first // MAP_WORD
    dut = ValidityMap(PARAMETERS)
    counts = []

    async def give(ctx):
        await ctx.tick().until(~dut.busy)
        await mark_all(ctx, dut, ranges)

    async def count(ctx):
        await counts_of(ctx, dut, len(ranges), counts)

    sweep = PARAMETERS.map_bits // MAP_WORD
    run(dut, give, count, max_cycles=sweep + 4 * len(ranges) + words + 16)
    assert counts == expected


def test_ranges_with_pauses():
    """What stood at the inputs while nothing was offered makes no difference."""
    rng = make_rng(6)
    dut = ValidityMap(PARAMETERS)
    counts = []
    expected = []

    async def give(ctx):
        bits = set()
        await ctx.tick().until(~dut.busy)
        for _ in range(150):
            bit = MAP_WORD * rng.randrange(1, 32)
            ctx.set(dut.clears.payload, {"first": bit, "last": bit})
            for first, last in ((bit, bit), (bit - MAP_WORD, bit + rng.randrange(2 * MAP_WORD))):
                new = set(range(first, last + 1)) - bits
                bits |= new
                expected.append(len(new))
                await mark(ctx, dut, first, last)
                await ctx.tick().repeat(rng.randrange(1, 8))
            if len(bits) > 500:
                bits.clear()
                await put_stream(ctx, dut.clears, [{"first": 0, "last": 1023}])

    async def count(ctx):
        await counts_of(ctx, dut, 300, counts)

    run(dut, give, count)
    assert counts == expected


def test_nothing_is_taken_before_the_map_is_clear():
    dut = ValidityMap(PARAMETERS)

    async def bench(ctx):
        ctx.set(dut.marks.valid, 1)
        ctx.set(dut.clears.valid, 1)
        for _ in range(PARAMETERS.map_bits // MAP_WORD + 3):
            assert ctx.get(dut.busy)
            assert not ctx.get(dut.marks.ready)
            assert not ctx.get(dut.clears.ready)
            await ctx.tick()
        assert not ctx.get(dut.busy)
        assert ctx.get(dut.marks.ready)

    run(dut, bench)


def expected_snapshot(bits, base, first, last, head, tail):
    """Map bytes by number between the edge bytes, and the two edge bytes."""
    granules = {g for g in range(first + 1, last) if base + g in bits}
    granules |= {first} if head else set()
    granules |= {last} if tail else set()
    octets = {n: 0 for n in range(first // 8, last // 8 + 1)}
    for g in granules:
        octets[g // 8] |= 1 << g % 8
    edges = octets[first // 8], octets[last // 8]
    return {n: octets[n] for n in range(first // 8 + 1, last // 8)}, edges


def test_snapshots():
    """Random messages are marked and taken, among marks of others that share words and bytes."""
    rng = make_rng(6)
    dut = MapBench()
    bits = set()
    expected = []
    seen = []

    async def drive(ctx):
        await ctx.tick().until(~dut.map.busy)
        for _ in range(150):
            base = 64 * rng.randrange(8)
            first = rng.randrange(1024)
            last = min(1200, first + rng.choice((0, 1, 2, 7, 8, 9, 20, 64, 100, 300)))
            for _ in range(rng.randrange(8)):
                low = base + rng.randrange(first, last + 1)
                high = min(base + last, low + rng.randrange(140))
                await mark(ctx, dut.map, low, high)
                bits.update(range(low, high + 1))
            message = {
                "map_base": base,
                "map_addr": 0x1000 + 8 * rng.randrange(64),
                "first": first,
                "last": last,
                "head": rng.randrange(2),
                "tail": rng.randrange(2),
            }
            between, edges = expected_snapshot(
                bits, base, first, last, message["head"], message["tail"]
            )
            octets = {message["map_addr"] + n: octet for n, octet in between.items()}
            expected.append((octets, edges))
            await put_stream(ctx, dut.snapshot.commands, [message])
            bits.difference_update(range(base + first + 1, base + last))
            for _ in range(rng.randrange(4)):  # others, right beside, while the snapshot is taken
                for bit in (base + first, base + last):
                    await mark(ctx, dut.map, bit, bit)
                    bits.add(bit)
            while not ctx.get(dut.snapshot.idle):
                await ctx.tick()

    async def collect(ctx):
        snapshot = dut.snapshot
        while len(seen) < 150:
            words = await take(ctx, snapshot.runs)
            octets = {}
            for i in range(words.words):
                word = await take(ctx, snapshot.words, rng, 0.3)
                for lane in range(8):
                    if word.strobe >> lane & 1:
                        octets[8 * (words.word + i) + lane] = word.data >> 8 * lane & 0xFF
            edges = await take(ctx, snapshot.edges)
            seen.append((octets, (edges.head, edges.tail)))

    run(dut, drive, collect)
    for number, (got, want) in enumerate(zip(seen, expected, strict=True)):
        assert got == want, f"snapshot {number}: {got}, not {want}"


def test_a_full_queue_takes_nothing_back():
    """While little leaves, a command that may be given may be given until it is; none is lost."""
    rng = make_rng(7)
    dut = MapBench(8)
    number = 200
    seen = []

    async def drive(ctx):
        await ctx.tick().until(~dut.map.busy)
        for qpn in range(number):
            first = rng.randrange(64)
            message = {"qpn": qpn % 64, "first": first, "last": first + rng.choice((0, 1, 9, 70))}
            ready = False
            for _ in range(rng.randrange(12)):
                assert ctx.get(dut.snapshot.commands.ready) or not ready
                ready = ctx.get(dut.snapshot.commands.ready)
                await ctx.tick()
            await put_stream(ctx, dut.snapshot.commands, [message])

    async def collect(ctx):
        while len(seen) < number:
            run_of = await take(ctx, dut.snapshot.runs, rng, 0.9)
            for _ in range(run_of.words):
                await take(ctx, dut.snapshot.words, rng, 0.9)
            await take(ctx, dut.snapshot.edges, rng, 0.9)
            seen.append(run_of.qpn)

    run(dut, drive, collect)
    assert seen == [qpn % 64 for qpn in range(number)]
