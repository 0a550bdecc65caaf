"""The event ring's writer and the CQ_FULL events against device behaviour, 6.5 (P33)."""

from collections import Counter as Tally
from collections import deque

import pytest
from receive_bench import HostMemory, make_rng, put_stream, run, take, value_of

from uwarp.contract import EVENT, Counter, EventType, Parameters
from uwarp_hdl.iwarp.events import EventUnit, FullQueues
from uwarp_hdl.layouts import ReceivedTerminate

RING = 0x4_0000_0FD3
CLIENTS = 3
#: The lower part of the time in an event begins anew soon after.
START = (5 << 39) - 0x2000
STEP = 64
TERMINATE = ReceivedTerminate.as_shape()


class EventBench:
    """An EventUnit with its ring in memory, its registers, and counts of its strobes."""

    def __init__(self, rng, stall=0.0, delay=lambda: 5):
        self.rng = rng
        self.stall = stall
        self.dut = EventUnit(CLIENTS)
        self.memory = HostMemory(self.dut.write, rng, stall, delay)
        self.taken = []
        self.counts = Tally()
        self.time = START

    async def clock(self, ctx):
        dut = self.dut
        ports = [
            signal
            for port in (*dut.requests, dut.terminates)
            for signal in (port.valid & port.ready, value_of(port.payload))
        ]
        while True:
            _, _, events, written, *requests = await ctx.tick().sample(
                dut.events, dut.written, *ports
            )
            self.time += STEP
            ctx.set(dut.time, self.time)
            *others, is_terminate, terminate = requests
            for taken, request in zip(others[::2], others[1::2], strict=True):
                if taken:
                    self.taken.append((request & 0xFF, request >> 8, 0, 0, 0, 0))
            if is_terminate:
                fields = TERMINATE.from_bits(terminate)
                told = [getattr(fields, name) for name, _ in TERMINATE]
                self.taken.append((EventType.TERMINATE, *told))
            assert not events & ~(1 << Counter.EVENTS | 1 << Counter.EVENTS_LOST)
            for counter in (Counter.EVENTS, Counter.EVENTS_LOST):
                self.counts[counter] += events >> counter & 1
            self.counts["written"] += written

    async def set_ring(self, ctx, log2, enabled=1):
        """EVENT_RING is written, and the consumer index cleared with it."""
        dut = self.dut
        ctx.set(dut.ring, {"address": RING, "log2": log2, "enabled": enabled})
        ctx.set(dut.consumer, 0)
        ctx.set(dut.clear, 1)
        await ctx.tick()
        ctx.set(dut.clear, 0)

    async def settle(self, ctx, events):
        """Until so many have been written or lost, and the written ones answered."""
        while self.counts[Counter.EVENTS] + self.counts[Counter.EVENTS_LOST] < events:
            await ctx.tick()
        while self.counts["written"] < self.counts[Counter.EVENTS]:
            await ctx.tick()

    def entry(self, index, log2):
        # The bits of the address below the ring's size are taken as 0 (1.6).
        size = EVENT.size << log2
        place = RING // size * size + EVENT.size * index % size
        octets = self.memory.read(place, EVENT.size)
        assert None not in octets, f"entry {index} has not been written"
        return EVENT.unpack(bytes(octets))

    @staticmethod
    def told(entry):
        """As in ``taken``."""
        return (
            entry.type, entry.number, entry.msn, entry.source_ip, entry.source_port, entry.code,
        )  # fmt: skip

    def run(self, script, *beside, max_cycles=20_000):
        background = [self.clock, self.memory.serve, *beside]
        run(self.dut, script, background=background, max_cycles=max_cycles)


@pytest.mark.parametrize("log2", [0, 2, 15])
@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_full_wrap_and_phase(log2, stall):
    """Events fill the ring, are lost while it is full, and go on with the other phase."""
    rng = make_rng(400 + log2)
    bench = EventBench(rng, stall, lambda: 1 + rng.randrange(30))
    size = 1 << log2
    # The largest ring is not filled: its consumer index starts behind 0, for room of two events.
    room = size if log2 < 15 else 2
    behind = size - room
    waiting = [deque() for _ in range(CLIENTS + 1)]

    def client(index):
        async def process(ctx):
            while True:
                while not waiting[index]:
                    await ctx.tick()
                item = {"type": rng.choice(list(EventType)), "number": rng.getrandbits(16)}
                port = bench.dut.terminates
                if index < CLIENTS:
                    port = bench.dut.requests[index]
                else:
                    item = {name: rng.getrandbits(item.width) for name, item in TERMINATE}
                await put_stream(ctx, port, [item], rng, stall)
                waiting[index].popleft()

        return process

    async def raise_events(ctx, count):
        """Returns, when each is written or lost, what was raised."""
        begin = len(bench.taken)
        for number in range(count):
            waiting[number % len(waiting)].append(number)
        await bench.settle(ctx, begin + count)
        return bench.taken[begin:]

    async def consume(ctx, index):
        ctx.set(bench.dut.consumer, (index - behind) & 0xFFFF_FFFF)
        await ctx.tick().repeat(3)

    async def script(ctx):
        await raise_events(ctx, 4)
        assert bench.counts[Counter.EVENTS_LOST] == 4, "no ring is in use"
        assert not bench.memory.octets
        await bench.set_ring(ctx, log2)
        for lap in range(3):
            first = lap * room
            await consume(ctx, first)
            lost = bench.counts[Counter.EVENTS_LOST]
            lap_began = bench.time
            raised = await raise_events(ctx, room + 3)
            assert bench.counts[Counter.EVENTS_LOST] == lost + 3, f"lap {lap}"
            times = []
            for index in range(first, first + room):
                got = bench.entry(index, log2)
                assert bench.told(got) == raised[index - first], f"entry {index}"
                assert got.phase == 1 - (index >> log2 & 1), f"phase of entry {index}"
                times.append((got.time_high << 31 | got.time_low) << 8)
            assert times == sorted(times)
            assert lap_began <= times[0] + 0x100 and times[-1] <= bench.time
        assert bench.counts[Counter.EVENTS] == bench.counts["written"] == 3 * room
        # A write of EVENT_RING clears both indices: entry 0 again, with phase 1.
        await bench.set_ring(ctx, log2)
        (raised,) = await raise_events(ctx, 1)
        got = bench.entry(0, log2)
        assert (bench.told(got), got.phase) == (raised, 1)
        await bench.set_ring(ctx, log2, enabled=0)
        lost = bench.counts[Counter.EVENTS_LOST]
        await raise_events(ctx, 2)
        assert bench.counts[Counter.EVENTS_LOST] == lost + 2

    bench.run(script, *(client(index) for index in range(CLIENTS + 1)))


def test_configured_anew_among_events():
    """With the ring taken out of use before or not: new events begin at entry 0, in order."""
    rng = make_rng(410)
    bench = EventBench(rng, 0.1, lambda: 1 + rng.randrange(30))

    async def raise_events(ctx):
        numbers = range(1 << 16)
        items = ({"type": EventType.DMA_READ, "number": number} for number in numbers)
        await put_stream(ctx, bench.dut.requests[1], items, rng, 0.2)

    async def script(ctx):
        total = 0
        for lap in range(40):
            log2 = rng.randrange(4)
            in_use = rng.random() < 0.5
            if in_use:
                await bench.set_ring(ctx, 15)
                await ctx.tick().repeat(rng.randrange(20, 60))
            bench.memory.octets.clear()
            before = bench.counts[Counter.EVENTS]
            await bench.set_ring(ctx, log2)
            await ctx.tick().repeat(rng.randrange(100))
            ctx.set(bench.dut.ring.enabled, 0)
            await ctx.tick().repeat(12)
            while bench.counts["written"] < bench.counts[Counter.EVENTS]:
                await ctx.tick()
            # One event may have been decided on, and not counted, before the ring was new.
            written = bench.counts[Counter.EVENTS] - before
            assert written <= (1 << log2) + in_use, f"{written} events in lap {lap}"
            entries = [bench.entry(index, log2) for index in range(written - in_use)]
            assert all(entry.phase for entry in entries), f"phase in lap {lap}"
            numbers = [entry.number for entry in entries]
            assert numbers == sorted(numbers), f"order in lap {lap}"
            total += written
        assert total > 80

    bench.run(script, raise_events, max_cycles=40_000)


def test_an_event_that_memory_refuses():
    """Nothing more comes of it (section 8.3): it counts as written, and the next follows."""
    rng = make_rng(420)
    bench = EventBench(rng)
    start = RING & -EVENT.size << 2
    bench.memory.faulty = [range(start, start + EVENT.size)]

    async def script(ctx):
        await bench.set_ring(ctx, 2)
        items = [{"type": EventType.DMA_CQE, "number": n} for n in (7, 8)]
        await put_stream(ctx, bench.dut.requests[0], items)
        await bench.settle(ctx, 2)
        assert bench.counts[Counter.EVENTS] == bench.counts["written"] == 2
        assert bench.memory.failed == [start]
        assert bench.entry(1, 2).number == 8

    bench.run(script)


def test_rate():
    """Events of all clients in turn: one in 6 cycles."""
    rng = make_rng(430)
    bench = EventBench(rng, delay=lambda: 100)

    async def script(ctx):
        await bench.set_ring(ctx, 8)
        for index, port in enumerate(bench.dut.requests):
            ctx.set(port.payload, {"type": EventType.CQ_FULL, "number": index})
            ctx.set(port.valid, 1)
        await ctx.tick().repeat(300)
        assert len(bench.taken) >= 300 // 6 - 1
        numbers = [number for _, number, *_ in bench.taken]
        assert numbers == [(numbers[0] + index) % CLIENTS for index in range(len(numbers))]

    bench.run(script)


@pytest.mark.parametrize("seed", range(2))
def test_full_once_until_touched(seed):
    """A CQ_FULL event for the first drop since a CQ was touched, in order (6.5)."""
    rng = make_rng(440 + seed)
    dut = FullQueues(Parameters(n_qp=8))
    told = set()
    expected = []
    got = []

    async def listen(ctx):
        while True:
            await ctx.tick().repeat(1 + rng.randrange(12))
            request = await take(ctx, dut.requests)
            got.append((request.type, request.number))

    async def script(ctx):
        await ctx.tick().until(~dut.busy)
        drop_at = touch_at = 0
        dropped = None
        for cycle in range(3000):
            touch = cycle >= touch_at and rng.random() < 0.2
            drop = cycle >= drop_at and rng.random() < 0.4
            # A touch of the cycle after a drop still comes before it.
            if touch:
                touched = rng.randrange(8)
                told.discard(touched)
                touch_at = cycle + 2
                ctx.set(dut.touched_cq, touched)
            elif dropped is not None:
                if dropped < 8 and dropped not in told:
                    told.add(dropped)
                    expected.append((EventType.CQ_FULL, dropped))
                dropped = None
            if drop:
                dropped = rng.choice((0, 1, 2, 3, 7, 8, 0x8001))
                drop_at = cycle + 4
                ctx.set(dut.full_cq, dropped)
            ctx.set(dut.touched, touch)
            ctx.set(dut.full, drop)
            await ctx.tick()
        ctx.set(dut.touched, 0)
        ctx.set(dut.full, 0)
        while len(got) < len(expected):
            await ctx.tick()
        await ctx.tick().repeat(30)
        assert got == expected

    run(dut, script, background=[listen], max_cycles=6000)
    assert len(expected) > 100
