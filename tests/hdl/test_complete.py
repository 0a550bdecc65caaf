"""Completion queues against the rule, with software that polls memory; tables."""

import random
import sys
from collections import deque
from pathlib import Path

import pytest
from amaranth.sim import Simulator

from tests.seeds import seeds
from uwarp.contract import (
    CQ_ENTRY,
    CQE,
    PORT_ENTRY,
    QP_ENTRY,
    REGION_ENTRY,
    Counter,
    CqeFlag,
    Parameters,
    Status,
    port_rows,
)
from uwarp_hdl.iwarp.complete import CompletionUnit
from uwarp_hdl.iwarp.tables import (
    AGAIN,
    QP_READS,
    REGION_READS,
    PortTable,
    RowTable,
    half_words,
)
from uwarp_hdl.layouts import CQ_ROW, QP_ROW, REGION_ROW, port_row_layout

sys.path.insert(0, str(Path(__file__).parent))
from axi_model import until, watchdog

PERIOD = 6.4e-9
PARAMETERS = Parameters(n_qp=4)
RESERVE, RELEASE = 0, 1
MASK32 = (1 << 32) - 1


class HostMemory:
    """The other side of the unit's write client: bursts, words and late answers."""

    def __init__(self, port, rng, *, stall=0.3, latency=30):
        self.port = port
        self.rng = rng
        self.stall = stall
        self.latency = latency
        self.slots: dict[int, bytes] = {}
        self.cycle = 0
        self.addresses: deque[int] = deque()
        self.words: list[int] = []
        self.bodies: deque[bytes] = deque()
        self.done: deque[int] = deque()
        self.answered = 0

    async def process(self, ctx):
        port = self.port
        while True:
            bursts_ready = self.rng.random() >= self.stall
            beats_ready = self.rng.random() >= self.stall
            ctx.set(port.bursts.ready, bursts_ready)
            ctx.set(port.beats.ready, beats_ready)
            done = bool(self.done) and self.done[0] <= self.cycle
            ctx.set(port.done, done)
            if done:
                self.done.popleft()
                self.answered += 1
            _, _, burst_valid, burst, beat_valid, beat = await ctx.tick().sample(
                port.bursts.valid, port.bursts.payload, port.beats.valid, port.beats.payload
            )
            self.cycle += 1
            if burst_valid and bursts_ready:
                assert burst.beats == 7
                self.addresses.append(burst.address)
            if beat_valid and beats_ready:
                assert beat.strobe == 0xFF
                self.words.append(beat.data)
                assert beat.last == (len(self.words) == 8), "the word with the phase is the last"
                if beat.last:
                    self.bodies.append(b"".join(w.to_bytes(8, "little") for w in self.words))
                    self.words = []
            while self.addresses and self.bodies:
                self.slots[self.addresses.popleft()] = self.bodies.popleft()
                self.done.append(self.cycle + self.rng.randint(1, self.latency))


class Ring:
    """A CQ as software sees it."""

    def __init__(self, memory, address, log2):
        self.memory = memory
        self.address = address
        self.log2 = log2
        self.consumer = 0

    def poll(self):
        """The next CQE, or None."""
        at = self.address + 64 * (self.consumer & ((1 << self.log2) - 1))
        body = self.memory.slots.get(at)
        if body is None:
            return None
        cqe = CQE.unpack(body)
        if cqe.phase != 1 - (self.consumer >> self.log2 & 1):
            return None
        self.consumer = self.consumer + 1 & MASK32
        return cqe


async def ring_doorbell(ctx, dut, cq, *, index=0, arm=0, row=None, **fields):
    is_reset = row is not None and not fields.get("moderate")
    payload = {"cq": cq, "index": index, "arm": arm, "reset": is_reset}
    ctx.set(dut.doorbells.payload, payload | fields | {"row": CQ_ROW.from_bits(row or 0)})
    ctx.set(dut.doorbells.valid, 1)
    await until(ctx, dut.doorbells.ready)
    ctx.set(dut.doorbells.valid, 0)


async def credit(ctx, port, operation, cq):
    """Ask; the answer of a RESERVE."""
    ctx.set(port.requests.payload, {"operation": operation, "cq": cq})
    ctx.set(port.requests.valid, 1)
    await until(ctx, port.requests.ready)
    ctx.set(port.requests.valid, 0)
    if operation == RELEASE:
        return None
    ctx.set(port.granted.ready, 1)
    (granted,) = await until(ctx, port.granted.valid, port.granted.payload)
    ctx.set(port.granted.ready, 0)
    return granted


async def request(ctx, port, cq, urgent=False):
    ctx.set(port.requests.payload, {"cq": cq, "urgent": urgent})
    ctx.set(port.requests.valid, 1)
    await until(ctx, port.requests.ready)
    ctx.set(port.requests.valid, 0)


async def complete(ctx, port, cq, **fields):
    """A CQE: its request, then its words. Time and phase are the unit's to give."""
    urgent = fields.get("flags", 0) & CqeFlag.SOLICITED or fields.get("status", Status.SUCCESS)
    await request(ctx, port, cq, bool(urgent))
    octets = CQE.pack(**fields)
    for at in range(0, CQE.size, 8):
        ctx.set(port.words.payload, int.from_bytes(octets[at : at + 8], "little"))
        ctx.set(port.words.valid, 1)
        await until(ctx, port.words.ready)
        ctx.set(port.words.valid, 0)


def simulate(dut, *benches, background=(), cycles=60000):
    sim = Simulator(dut)
    sim.add_clock(PERIOD)
    for bench in benches:
        sim.add_testbench(bench)
    for bench in (*background, watchdog(cycles)):
        sim.add_testbench(bench, background=True)
    sim.run()


@pytest.mark.parametrize("seed", seeds(1, 9))
def test_credits_in_sequence(seed):
    """Each answer, index and slot against the formula of 6.1, one operation after the other."""
    rng = random.Random(f"credits {seed}")
    dut = CompletionUnit(PARAMETERS)
    memory = HostMemory(dut.write, rng)
    irqs: list[tuple[str, int]] = []

    async def interrupts(ctx):
        while True:
            _, _, fired, cleared, cq = await ctx.tick().sample(
                dut.irq_set, dut.irq_clear, dut.irq_cq
            )
            if fired or cleared:
                irqs.append(("set" if fired else "clear", cq))

    async def bench(ctx):
        while ctx.get(dut.busy):
            await ctx.tick()
        rows: dict[int, tuple[int, int]] = {}
        producer, consumer, reserved, armed = ({cq: 0 for cq in range(4)} for _ in range(4))
        expected_irqs = []
        written = 0

        def fire(cq):
            if armed[cq]:
                armed[cq] = 0
                expected_irqs.append(("set", cq))

        for step in range(700):
            cq = rng.randrange(4)
            client = rng.randrange(2)
            action = rng.choices(
                ("row", "reserve", "release", "complete", "consume", "arm", "beyond"),
                (1, 8, 2, 8, 4, 4, 1),
            )[0]
            if action == "row":
                log2 = rng.choice((1, 1, 2, 3, 16))
                address = rng.randrange(1 << 58) << 6
                valid = rng.random() < 0.9
                row = CQ_ENTRY.to_int(valid=valid, log2=log2, addr=address)
                await ring_doorbell(ctx, dut, cq, row=row)
                # The bits below the ring's size are taken as 0 (1.6).
                rows[cq] = (log2, address & -CQE.size << log2) if valid else None
                producer[cq] = consumer[cq] = reserved[cq] = armed[cq] = 0
                expected_irqs.append(("clear", cq))
            elif action == "reserve":
                free = 0
                if rows.get(cq):
                    used = (producer[cq] - consumer[cq] & MASK32) + reserved[cq]
                    free = (1 << rows[cq][0]) - used
                granted = await credit(ctx, dut.credits[client], RESERVE, cq)
                assert granted == (free > 0), f"seed {seed}, step {step}: CQ {cq}, {free} free"
                reserved[cq] += granted
            elif action == "release" and reserved[cq]:
                await credit(ctx, dut.credits[client], RELEASE, cq)
                reserved[cq] -= 1
            elif action == "complete" and reserved[cq]:
                msn = rng.getrandbits(32)
                await complete(ctx, dut.completions[client], cq, msn=msn)
                log2, base = rows[cq]
                at = base + 64 * (producer[cq] & ((1 << log2) - 1)) & (1 << 64) - 1
                phase = 1 - (producer[cq] >> log2 & 1)
                producer[cq] = producer[cq] + 1
                reserved[cq] -= 1
                written += 1
                while memory.answered < written:
                    await ctx.tick()
                cqe = CQE.unpack(memory.slots[at])
                assert (cqe.msn, cqe.phase) == (msn, phase), f"seed {seed}, step {step}"
                fire(cq)
            elif action in ("consume", "arm"):
                # Software in error: a consumer ahead of the producer.
                ahead = rng.randint(1, 3) if cq == 3 and rng.random() < 0.3 else 0
                index = rng.randint(consumer[cq], max(consumer[cq], producer[cq])) + ahead
                index &= MASK32
                await ring_doorbell(ctx, dut, cq, index=index, arm=action == "arm")
                consumer[cq] = index
                if action == "arm":
                    armed[cq] = 1
                    if producer[cq] != index:
                        fire(cq)
            elif action == "beyond":
                granted = await credit(ctx, dut.credits[client], RESERVE, cq + 4)
                assert not granted, f"seed {seed}: a slot of CQ {cq + 4} of 4"
            await ctx.tick().repeat(8)
            assert irqs == expected_irqs, f"seed {seed}, step {step}: {action} of CQ {cq}"

    simulate(dut, bench, background=(memory.process, interrupts))
    assert memory.answered > 20, f"seed {seed} wrote {memory.answered} CQEs: tests too little"


@pytest.mark.parametrize("seed", seeds(1, 9))
def test_concurrent(seed):
    """Two clients, software that polls and arms: each completion once, in order, none lost."""
    rng = random.Random(f"concurrent {seed}")
    dut = CompletionUnit(PARAMETERS)
    memory = HostMemory(dut.write, rng, stall=rng.choice((0, 0.3, 0.6)))
    per_client = 60
    rings = {0: Ring(memory, 0x10000, 3), 3: Ring(memory, 0x20000, 1)}
    got = {cq: [] for cq in rings}
    given: list[list[tuple[int, int]]] = [[], []]
    counts = [0, 0]
    status = 0
    wakes = 0

    async def interrupts(ctx):
        nonlocal status
        while True:
            _, _, fired, cleared, cq = await ctx.tick().sample(
                dut.irq_set, dut.irq_clear, dut.irq_cq
            )
            if fired:
                status |= 1 << cq
                ring = rings[cq]
                at = ring.address + 64 * (ring.consumer & ((1 << ring.log2) - 1))
                assert at in memory.slots, "an interrupt before its CQE is in memory"
            if cleared:
                status &= ~(1 << cq)

    async def events(ctx):
        while True:
            _, _, strobes = await ctx.tick().sample(dut.events)
            counts[0] += strobes >> Counter.CQES & 1
            counts[1] += strobes >> Counter.MESSAGES_PARTIAL & 1

    async def start(ctx):
        while ctx.get(dut.busy):
            await ctx.tick()
        for cq, ring in rings.items():
            row = CQ_ENTRY.to_int(valid=1, log2=ring.log2, addr=ring.address)
            await ring_doorbell(ctx, dut, cq, row=row)

    def client(number):
        async def process(ctx):
            await ctx.tick().repeat(40)
            while len(given[number]) < per_client:
                cq = rng.choice(list(rings))
                if not await credit(ctx, dut.credits[number], RESERVE, cq):
                    await ctx.tick().repeat(rng.randint(1, 10))
                elif rng.random() < 0.2:
                    await credit(ctx, dut.credits[number], RELEASE, cq)
                else:
                    serial = len(given[number])
                    kind = rng.choice((Status.SUCCESS, Status.PARTIAL))
                    given[number].append((cq, kind))
                    await complete(
                        ctx, dut.completions[number], cq, qpn=number, msn=serial, status=kind
                    )

        return process

    async def software(ctx):
        """Sleeps until the interrupt, polls all, arms, polls again: as a driver does."""
        nonlocal status, wakes
        await start(ctx)
        for cq in rings:
            await ring_doorbell(ctx, dut, cq, index=0, arm=1)
        while sum(map(len, got.values())) < 2 * per_client:
            await ctx.tick()
            for cq, ring in rings.items():
                if not status >> cq & 1:
                    continue
                status &= ~(1 << cq)
                wakes += 1
                while (cqe := ring.poll()) is not None:
                    got[cq].append(cqe)
                    if rng.random() < 0.3:
                        await ring_doorbell(ctx, dut, cq, index=ring.consumer)
                await ring_doorbell(ctx, dut, cq, index=ring.consumer, arm=1)
        await ctx.tick().repeat(100)
        assert ctx.get(dut.pending) == 0
        # All slots are free again: as many reservations as entries, and no more.
        for cq, ring in rings.items():
            await ring_doorbell(ctx, dut, cq, index=ring.consumer)
            answers = [
                await credit(ctx, dut.credits[0], RESERVE, cq) for _ in range((1 << ring.log2) + 1)
            ]
            assert answers == [1] * (1 << ring.log2) + [0], f"seed {seed}: CQ {cq}: {answers}"

    simulate(dut, software, client(0), client(1), background=(memory.process, interrupts, events))
    for number in range(2):
        for cq in rings:
            order = [(cqe.msn, cqe.status) for cqe in got[cq] if cqe.qpn == number]
            wanted = [(i, kind) for i, (at, kind) in enumerate(given[number]) if at == cq]
            assert order == wanted, f"seed {seed}: client {number}, CQ {cq}"
    times = [cqe.time_low for cqe in got[0]]
    assert times == sorted(times)
    partial = sum(kind == Status.PARTIAL for item in given for _, kind in item)
    assert counts == [2 * per_client, partial], f"seed {seed}"
    assert wakes > 2


class Moderated:
    """The rule of 6.3 for one CQ, step by step, with times in cycles."""

    def __init__(self):
        self.producer = self.written = 0
        self.count = self.ticks = 0
        self.armed = None  # "any" or "solicited"
        self.first = None  # tick of the first CQE since it was armed

    @property
    def new(self):
        return self.producer - self.written & MASK32

    def _allows(self, tick):
        if self.new >= max(1, self.count):
            return True
        waited = None if self.first is None else tick - self.first
        return bool(self.new and self.ticks and waited is not None and waited >= self.ticks)

    def fires(self, tick, urgent=False):
        """Whether it fires now; if so it is disarmed."""
        if self.armed and (urgent or (self.armed == "any" and self._allows(tick))):
            self.armed = None
            return True
        return False

    def arm(self, index, kind):
        self.written, self.first = index, None
        self.armed = kind if self.new == 0 else None
        return self.new != 0

    def complete(self, tick, urgent):
        self.producer = self.producer + 1 & MASK32
        if self.first is None:
            self.first = tick
        return self.fires(tick, urgent)


@pytest.mark.parametrize("seed", seeds(1, 9))
def test_moderation(seed):
    """Arming of both kinds, counts, ticks and rows changed meanwhile, against the rule: each
    interrupt comes once, with its cause or, by ticks, within 256 cycles."""
    rng = random.Random(f"moderation {seed}")
    dut = CompletionUnit(PARAMETERS)
    memory = HostMemory(dut.write, rng, stall=rng.choice((0, 0.3)), latency=8)
    cqs = {cq: Moderated() for cq in (0, 3)}
    rings = {cq: Ring(memory, 0x10000 * (cq + 1), 4) for cq in cqs}
    now = 0
    fired: list[tuple[int, int]] = []
    causes = {"arm": 0, "urgent": 0, "count": 0, "ticks": 0, "row": 0}
    # Short ticks by a clock that runs fast: a tick is 1024 units of time.
    step = 16
    start = rng.getrandbits(47) >> 1

    def tick():
        return start + now * step >> 10

    async def clock(ctx):
        nonlocal now
        while True:
            ctx.set(dut.time, start + now * step & (1 << 47) - 1)
            _, _, is_set, cq = await ctx.tick().sample(dut.irq_set, dut.irq_cq)
            now += 1
            if is_set:
                fired.append((cq, now))

    async def expect(ctx, cq, cause, where):
        """The interrupt of ``cq`` comes, and no other."""
        for _ in range(400):
            if fired:
                break
            await ctx.tick()
        assert [item for item, _ in fired] == [cq], f"{where}: {cause} of CQ {cq}: {fired}"
        fired.clear()
        causes[cause] += 1

    async def pass_time(ctx, cycles, where):
        """Let time go by, and see which fire by their ticks, and when."""
        for _ in range(cycles):
            await ctx.tick()
            while fired:
                cq, _ = fired.pop(0)
                state = cqs[cq]
                assert state.fires(tick()), f"{where}: CQ {cq} fired, not due: {vars(state)}"
                causes["ticks"] += 1
            for cq, state in cqs.items():
                if state.armed == "any" and state.first is not None:
                    late = tick() - 256 * step // 1024 - 1
                    assert not state._allows(late), f"{where}: CQ {cq} should have fired"

    async def finish(ctx, cq, urgent, where):
        state = cqs[cq]
        assert await credit(ctx, dut.credits[0], RESERVE, cq), where
        fields = {}
        if urgent:
            fields = rng.choice(({"flags": CqeFlag.SOLICITED}, {"status": Status.PARTIAL}))
        written = memory.answered + 1
        stamp = state.producer & 15
        await complete(ctx, dut.completions[0], cq, **fields)
        while memory.answered < written:
            await ctx.tick()
        cqe = CQE.unpack(memory.slots[rings[cq].address + 64 * stamp])
        # The tick that counts is that of the CQE's time.
        time = cqe.time_high << 31 | cqe.time_low
        return state.complete(time >> 10, urgent)

    async def bench(ctx):
        while ctx.get(dut.busy):
            await ctx.tick()
        for cq, ring in rings.items():
            row = CQ_ENTRY.to_int(valid=1, log2=ring.log2, addr=ring.address)
            await ring_doorbell(ctx, dut, cq, row=row)
        for number in range(400):
            where = f"seed {seed}, step {number}"
            # None fires by its ticks while something is done.
            while any(item.armed == "any" and item._allows(tick() + 2) for item in cqs.values()):
                await pass_time(ctx, 1, where)
            cq = rng.choice(list(cqs))
            state = cqs[cq]
            action = rng.choices(("row", "arm", "complete", "wait", "reset"), (6, 4, 9, 2, 0.3))[0]
            if action == "row":
                state.count = rng.choice((0, 1, 2, 2, 3, 5, 0xFFFF))
                if state.armed and state.new and rng.random() < 0.8:
                    state.count = rng.randint(1, state.new)
                state.ticks = rng.choice((0, 1, 1, 2, 2, 3, 9, 0x8001, 0xFFFF))
                row = state.ticks << 16 | state.count
                await ring_doorbell(ctx, dut, cq, row=row, moderate=1)
                if state.fires(tick()):
                    await expect(ctx, cq, "row", where)
            elif action == "arm":
                kind = rng.choice(("any", "any", "solicited"))
                index = rng.choice((*4 * (state.producer,), state.written))
                fires = state.arm(index, kind)
                await ring_doorbell(ctx, dut, cq, index=index, arm=1, solicited=kind == "solicited")
                if fires:
                    await expect(ctx, cq, "arm", where)
            elif action == "complete":
                urgent = rng.random() < 0.15
                if state.producer - state.written >= 15:
                    continue
                if await finish(ctx, cq, urgent, where):
                    await expect(ctx, cq, "urgent" if urgent else "count", where)
            elif action == "wait":
                await pass_time(ctx, rng.randint(1, 300), where)
            else:
                ring = rings[cq]
                row = CQ_ENTRY.to_int(valid=1, log2=ring.log2, addr=ring.address)
                await ring_doorbell(ctx, dut, cq, row=row)
                state.producer = state.written = 0
                state.armed = state.first = None
            await pass_time(ctx, 8, where)
        # What is armed wakes for the next CQE that is solicited: no wake-up is lost.
        for cq, state in cqs.items():
            if state.producer - state.written >= 15:
                state.arm(state.producer, None)
                await ring_doorbell(ctx, dut, cq, index=state.producer, arm=1)
                state.armed = "any"
            armed = state.armed
            assert await finish(ctx, cq, True, "at the end") == bool(armed)
            if armed:
                await expect(ctx, cq, "urgent", "at the end")

    simulate(dut, bench, background=(memory.process, clock))
    assert all(causes.values()), f"seed {seed} tests too little: {causes}"


@pytest.mark.parametrize("n_cq", (64, 256))
def test_many_timers(n_cq):
    """Timers of all CQs that end in one tick fire all, within 256 cycles of their end."""
    dut = CompletionUnit(Parameters(n_qp=n_cq))
    memory = HostMemory(dut.write, random.Random(0), stall=0, latency=4)
    chosen = range(0, n_cq, n_cq // 32)
    fired = []
    now = 0

    async def clock(ctx):
        nonlocal now
        while True:
            ctx.set(dut.time, now)
            _, _, is_set, cq = await ctx.tick().sample(dut.irq_set, dut.irq_cq)
            now += 1
            if is_set:
                fired.append((cq, now))

    async def bench(ctx):
        while ctx.get(dut.busy):
            await ctx.tick()
        for cq in chosen:
            row = CQ_ENTRY.to_int(valid=1, log2=1, addr=cq << 7)
            await ring_doorbell(ctx, dut, cq, row=row)
            await ring_doorbell(ctx, dut, cq, row=1 << 16 | 9, moderate=1)
            await ring_doorbell(ctx, dut, cq, index=0, arm=1)
        while now % 1024:
            await ctx.tick()
        began = now
        for cq in chosen:
            assert await credit(ctx, dut.credits[0], RESERVE, cq)
            await complete(ctx, dut.completions[0], cq)
        assert now < began + 1000
        await ctx.tick().repeat(began + 1024 - now)
        assert fired == []
        await ctx.tick().repeat(256)
        assert sorted(cq for cq, _ in fired) == list(chosen)
        await ctx.tick().repeat(300)
        assert len(fired) == len(chosen), "one fired twice"

    simulate(dut, bench, background=(memory.process, clock))


@pytest.mark.parametrize("doorbells", (False, True))
def test_rate(doorbells):
    """A client that reserves and completes: a CQE every 12 cycles, whatever doorbells come, and of
    those one every 13."""
    dut = CompletionUnit(PARAMETERS)
    memory = HostMemory(dut.write, random.Random(0), stall=0, latency=200)
    total = 100
    rung = 0
    took = 0

    async def reserve(ctx):
        while ctx.get(dut.busy):
            await ctx.tick()
        await ring_doorbell(ctx, dut, 0, row=CQ_ENTRY.to_int(valid=1, log2=10, addr=0))
        for _ in range(total):
            assert await credit(ctx, dut.credits[0], RESERVE, 0)

    async def finish(ctx):
        nonlocal took
        await ctx.tick().repeat(30)
        start = memory.cycle
        ctx.set(dut.completions[0].words.valid, 1)
        for _ in range(total):
            await request(ctx, dut.completions[0], 0)
        took = memory.cycle - start

    async def ring(ctx):
        nonlocal rung
        await ctx.tick().repeat(30)
        while doorbells:
            await ring_doorbell(ctx, dut, 1, index=rung)
            rung += 1

    simulate(dut, reserve, finish, background=(memory.process, ring), cycles=3000)
    assert took <= 12 * total, f"{took} cycles for {total} CQEs"
    assert not doorbells or 13 * rung >= took


def test_latency():
    """In an idle unit: an answer after 3 cycles, a burst after 3, its last word after 11."""
    dut = CompletionUnit(PARAMETERS)
    seen = {}

    async def bench(ctx):
        while ctx.get(dut.busy):
            await ctx.tick()
        await ring_doorbell(ctx, dut, 0, row=CQ_ENTRY.to_int(valid=1, log2=4, addr=0))
        ctx.set(dut.write.bursts.ready, 1)
        ctx.set(dut.write.beats.ready, 1)
        for gap in range(10, 14):
            await ctx.tick().repeat(gap)
            port = dut.credits[0]
            ctx.set(port.requests.payload, {"operation": RESERVE, "cq": 0})
            ctx.set(port.requests.valid, 1)
            ctx.set(port.granted.ready, 1)
            for cycle in range(6):
                _, _, taken, valid = await ctx.tick().sample(
                    port.requests.ready, port.granted.valid
                )
                if taken:
                    ctx.set(port.requests.valid, 0)
                if valid:
                    assert cycle == 3, f"answered after {cycle} cycles"
            await ctx.tick().repeat(gap)
            port = dut.completions[0]
            ctx.set(port.requests.valid, 1)
            ctx.set(port.words.valid, 1)
            seen.clear()
            for cycle in range(16):
                _, _, taken, burst, beat, last = await ctx.tick().sample(
                    port.requests.ready,
                    dut.write.bursts.valid,
                    dut.write.beats.valid,
                    dut.write.beats.p.last,
                )
                if taken:
                    ctx.set(port.requests.valid, 0)
                if burst:
                    seen["burst"] = cycle
                if beat and last:
                    seen["last"] = cycle
            assert seen == {"burst": 3, "last": 11}, seen

    simulate(dut, bench)


@pytest.mark.parametrize("seed", range(2))
def test_time(seed):
    """47 bits of time, split as the CQE wants it."""
    time = random.Random(seed).getrandbits(47)
    dut = CompletionUnit(PARAMETERS)
    memory = HostMemory(dut.write, random.Random(seed))

    async def bench(ctx):
        ctx.set(dut.time, time)
        while ctx.get(dut.busy):
            await ctx.tick()
        await ring_doorbell(ctx, dut, 2, row=CQ_ENTRY.to_int(valid=1, log2=1, addr=0x80))
        assert await credit(ctx, dut.credits[1], RESERVE, 2)
        await complete(ctx, dut.completions[1], 2, wqe_index=7)
        while not memory.answered:
            await ctx.tick()
        cqe = CQE.unpack(memory.slots[0x80])
        assert (cqe.time_high << 31 | cqe.time_low, cqe.wqe_index) == (time, 7), f"seed {seed}"

    simulate(dut, bench, background=(memory.process,))


TABLES = {
    "qp": (QP_ROW, QP_ENTRY, QP_READS),
    "region": (REGION_ROW, REGION_ENTRY, REGION_READS * 2),
}


async def write_words(ctx, dut, entry, index, row):
    """A row to a table, as the control unit does it; the port's other signals are noise then."""
    write = dut.write
    words = entry.size // 4
    ctx.set(write.index, index)
    ctx.set(write.row.as_value(), row)
    ctx.set(write.enable, 1)
    await ctx.tick()
    ctx.set(write.enable, 0)
    ctx.set(write.held, 1)
    await ctx.tick().repeat(5)
    ctx.set(write.store, 1)
    for number in (AGAIN, *range(words)):
        ctx.set(write.number, number)
        ctx.set(write.data, row >> 32 * (number % AGAIN) & 0xFFFFFFFF)
        await ctx.tick()
    ctx.set(write.store, 0)
    ctx.set(write.data, 0x55555555)
    await ctx.tick().repeat(2)
    ctx.set(write.held, 0)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("seed", seeds(1, 9))
def test_row_table(seed, name):
    """No row is in use after the sweep; a row written is read whole, old or new, whenever it is
    begun, and new from then on."""
    rng = random.Random(f"row table {seed}")
    layout, entry, reads = TABLES[name]
    dut = RowTable(layout, 8, reads[:1] if name == "region" else reads)
    rows = [0] * 8
    may_be = {index: {0} for index in range(8)}
    stop = []

    def read_port(side):
        async def process(ctx):
            port, found = dut.reads[side], 0
            while ctx.get(dut.busy):
                await ctx.tick()
            while not stop:
                if ctx.get(port.held) or rng.random() < 0.3:
                    ctx.set(port.index, rng.randrange(8))
                    await ctx.tick()
                    continue
                index = rng.randrange(8)
                allowed = set(may_be[index])
                ctx.set(port.index, index)
                for word, numbers in enumerate(reads[side]):
                    ctx.set(port.word, word)
                    await ctx.tick()
                    got = ctx.get(port.row.as_value())
                    halves = half_words(numbers)
                    matching = {
                        row
                        for row in allowed | may_be[index]
                        if all((row ^ got) >> 16 * half & 0xFFFF == 0 for half in halves)
                    }
                    # Of a row that was not written only the first word is known.
                    if 0 in allowed and (0 not in halves or not got & 0xFFFFFFFF):
                        matching.add(0)
                    assert matching, f"seed {seed}: port {side}, row {index}, word {word}"
                    allowed = matching
                found += 1
            assert found > 50

        return process

    async def bench(ctx):
        ctx.set(dut.write.data, 0xFFFFFFFF)
        cycles = 0
        while ctx.get(dut.busy):
            cycles += 1
            await ctx.tick()
        assert cycles == 8 * 4
        for _ in range(60):
            index = rng.randrange(8)
            row = entry.to_int(**entry.from_int(rng.getrandbits(8 * entry.size)).__dict__)
            row |= 1  # in use
            may_be[index] = {rows[index], row}
            await write_words(ctx, dut, entry, index, row)
            rows[index] = row
            may_be[index] = {row}
            await ctx.tick().repeat(rng.randint(1, 12))
        stop.append(1)
        await ctx.tick().repeat(10)

    simulate(dut, bench, background=[read_port(side) for side in range(2)])


def test_row_table_depth():
    with pytest.raises(ValueError, match="power of two"):
        RowTable(QP_ROW, 6, QP_READS)


def stored_port(parameters, index, row):
    """A row of the port table as it is looked up."""
    n_qp = parameters.n_qp
    entry = PORT_ENTRY.from_int(row)
    layout = port_row_layout(parameters)
    if not entry.valid or port_rows(entry.port, n_qp)[index // n_qp] != index % n_qp:
        return 0
    exists = entry.qpn < (parameters.n_group if entry.group else n_qp)
    number = (entry.qpn if exists else -1) & (1 << layout["number"].width) - 1
    tag = entry.port // n_qp
    fields = {"group": entry.group, "exists": exists, "number": number, "tag": tag}
    return layout.const(fields).as_bits()


@pytest.mark.parametrize("seed", seeds(2, 9))
def test_port_table(seed):
    """A row is found in the bank and the place that its number names, if its port belongs there;
    whatever is looked up while it is written gives the old row or the new one."""
    rng = random.Random(f"port table {seed}")
    dut = PortTable(PARAMETERS)
    n_qp, n_port = PARAMETERS.n_qp, PARAMETERS.n_port
    rows = [0] * n_port

    async def bench(ctx):
        while ctx.get(dut.busy):
            await ctx.tick()
        asked = [0] * 4
        for number in range(3 * n_port):
            index = number if number < n_port else rng.randrange(n_port)
            bank, place = divmod(index, n_qp)
            port = rng.getrandbits(16)
            while rng.random() < 0.97 and port_rows(port, n_qp)[bank] != place:
                port = rng.getrandbits(16)
            row = PORT_ENTRY.to_int(
                valid=rng.random() < 0.9,
                group=rng.randrange(2),
                port=port,
                qpn=rng.choice((rng.randrange(8), rng.randrange(n_qp), rng.getrandbits(16))),
            )
            ctx.set(dut.write.index, index)
            ctx.set(dut.write.row.as_value(), row)
            old, rows[index] = rows[index], stored_port(PARAMETERS, index, row)
            for cycle in range(20):
                ctx.set(dut.write.enable, cycle == 0)
                if rng.random() < 0.4 and cycle != 19:
                    asked = [rng.choice((place, rng.randrange(n_qp))) for _ in range(4)]
                for number, item in enumerate(asked):
                    ctx.set(dut.lookup.indices[number], item)
                await ctx.tick()
                for number, item in enumerate(asked):
                    got = ctx.get(dut.lookup.rows[number].as_value())
                    looked_up = number * n_qp + item
                    if looked_up == index and cycle < 19 and got == old:
                        continue
                    assert got == rows[looked_up], f"seed {seed}: row {looked_up}"

    simulate(dut, bench)
