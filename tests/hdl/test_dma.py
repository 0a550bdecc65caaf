"""DMA engines under random stalls, and at full rate."""

import random
import sys
from pathlib import Path

import pytest
from amaranth.hdl import Cat, Module
from amaranth.sim import Simulator

from uwarp_hdl.dma import ReadArbiter, WriteArbiter
from uwarp_hdl.dma.channels import OUTSTANDING
from uwarp_hdl.stream.arbiter import RoundRobin

sys.path.insert(0, str(Path(__file__).parent))
from axi_model import PAGE, AxiMemory, until, watchdog

CLIENTS = 3
PERIOD = 6.4e-9


def random_burst(rng: random.Random, client: int) -> tuple[int, int]:
    """Address and beats of a burst within one page; a page belongs to one client."""
    beats = rng.choice((1, 1, 2, 8, rng.randint(1, 40), 256))
    word = rng.randrange(PAGE // 8 - beats + 1)
    page = rng.randrange(1 << 40) * CLIENTS + client
    return page * PAGE + 8 * word, beats


async def put(ctx, stream, payload, rng, stall) -> None:
    while rng.random() < stall:
        await ctx.tick()
    ctx.set(stream.payload, payload)
    ctx.set(stream.valid, 1)
    await until(ctx, stream.ready)
    ctx.set(stream.valid, 0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("stall", (0.0, 0.4))
def test_write(seed, stall):
    rng = random.Random(f"write {seed} {stall}")
    dut = WriteArbiter(CLIENTS)
    memory = AxiMemory(dut.bus, rng, stall=stall)
    plans = [[random_burst(rng, client) for _ in range(14)] for client in range(CLIENTS)]
    words = [
        [
            [
                (rng.getrandbits(64), rng.choice((255, 255, rng.getrandbits(8))))
                for _ in range(beats)
            ]
            for _, beats in plan
        ]
        for plan in plans
    ]
    # The faulty burst of a client: its second.
    memory.faulty = [range(plan[1][0], plan[1][0] + 1) for plan in plans]
    expected: dict[int, int] = {}
    for plan, client_words in zip(plans, words, strict=True):
        for (address, _), burst_words in zip(plan, client_words, strict=True):
            if memory.is_faulty(address):
                continue
            for index, (word, strobe) in enumerate(burst_words):
                for lane in range(8):
                    if strobe >> lane & 1:
                        expected[address + 8 * index + lane] = word >> 8 * lane & 0xFF
    answers: list[list[int]] = [[] for _ in range(CLIENTS)]
    failed = []

    async def count(ctx):
        while True:
            failed.append((await ctx.tick().sample(dut.failed))[2])

    def announce(client):
        async def process(ctx):
            for address, beats in plans[client]:
                payload = {"address": address, "beats": beats - 1}
                await put(ctx, dut.clients[client].bursts, payload, rng, stall)

        return process

    def bring(client):
        async def process(ctx):
            for burst_words in words[client]:
                for index, (word, strobe) in enumerate(burst_words):
                    last = index == len(burst_words) - 1
                    payload = {"data": word, "strobe": strobe, "last": last}
                    await put(ctx, dut.clients[client].beats, payload, rng, stall)

        return process

    def hear(client):
        async def process(ctx):
            port = dut.clients[client]
            while len(answers[client]) < len(plans[client]):
                _, _, done, error = await ctx.tick().sample(port.done, port.error)
                assert done or not error, "error without done"
                if done:
                    answers[client].append(error)

        return process

    sim = Simulator(dut)
    sim.add_clock(PERIOD)
    for client in range(CLIENTS):
        for process in (announce, bring, hear):
            sim.add_testbench(process(client))
    sim.add_testbench(count, background=True)
    memory.add_to(sim, write=True)
    sim.add_testbench(watchdog(20000), background=True)
    sim.run()
    for client, plan in enumerate(plans):
        wanted = [int(memory.is_faulty(address)) for address, _ in plan]
        assert answers[client] == wanted, f"seed {seed}: client {client}"
        order = [item for item in memory.log if item[0] // PAGE % CLIENTS == client]
        assert order == [(address, 8 * beats) for address, beats in plan], f"seed {seed}"
    assert memory.octets == expected, f"seed {seed}"
    assert sum(failed) == sum(map(sum, answers)) >= CLIENTS, f"seed {seed}"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("stall", (0.0, 0.4))
def test_read(seed, stall):
    rng = random.Random(f"read {seed} {stall}")
    dut = ReadArbiter(CLIENTS)
    memory = AxiMemory(dut.bus, rng, stall=stall)
    plans = [[random_burst(rng, client) for _ in range(14)] for client in range(CLIENTS)]
    memory.faulty = [range(plan[1][0], plan[1][0] + 8) for plan in plans]
    for plan in plans:
        for address, beats in plan:
            memory.write(address, rng.randbytes(8 * beats))

    failed = []

    async def count(ctx):
        while True:
            failed.append((await ctx.tick().sample(dut.failed))[2])

    def announce(client):
        async def process(ctx):
            for address, beats in plans[client]:
                payload = {"address": address, "beats": beats - 1}
                await put(ctx, dut.clients[client].bursts, payload, rng, stall)

        return process

    def take(client):
        async def process(ctx):
            stream = dut.clients[client].beats
            for address, beats in plans[client]:
                for index in range(beats):
                    while rng.random() < stall:
                        await ctx.tick()
                    ctx.set(stream.ready, 1)
                    (beat,) = await until(ctx, stream.valid, stream.payload)
                    ctx.set(stream.ready, 0)
                    at = address + 8 * index
                    word = int.from_bytes(memory.read(at, 8), "little")
                    got = (beat.data, beat.last, beat.error)
                    wanted = (word, index == beats - 1, memory.is_faulty(at))
                    assert got == wanted, f"seed {seed}: word {index} of {beats} at {address:#x}"

        return process

    sim = Simulator(dut)
    sim.add_clock(PERIOD)
    for client in range(CLIENTS):
        for process in (announce, take):
            sim.add_testbench(process(client))
    sim.add_testbench(count, background=True)
    memory.add_to(sim, read=True)
    sim.add_testbench(watchdog(30000), background=True)
    sim.run()
    faulty = sum(
        any(memory.is_faulty(address + 8 * index) for index in range(beats))
        for plan in plans
        for address, beats in plan
    )
    assert sum(failed) == faulty >= CLIENTS, f"seed {seed}"


def test_write_rate():
    """Bursts of two words of all clients: a word every cycle, an answer every second."""
    bursts = 64
    dut = WriteArbiter(CLIENTS)
    log = []

    async def bench(ctx):
        ctx.set(dut.bus.awready, 1)
        ctx.set(dut.bus.wready, 1)
        for client in dut.clients:
            ctx.set(client.bursts.valid, 1)
            ctx.set(client.beats.valid, 1)
        answers = taken = 0
        for _ in range(2 * bursts + 4):
            ctx.set(dut.bus.bvalid, answers > 0)
            for client in dut.clients:
                ctx.set(client.beats.p.last, taken % 2)
            _, _, aw, w, last, *takes = await ctx.tick().sample(
                dut.bus.awvalid,
                dut.bus.wvalid,
                dut.bus.wlast,
                *(client.beats.ready for client in dut.clients),
            )
            taken += sum(takes)
            answers += (w & last) - (answers > 0)
            log.append((aw, w))

    sim = Simulator(dut)
    sim.add_clock(PERIOD)
    sim.add_testbench(bench)
    sim.run()
    assert sum(w for _, w in log) >= 2 * bursts
    first = [w for _, w in log].index(1)
    # The second burst may come just when the first has gone.
    assert all(w for _, w in log[first : first + 2]), "a bubble in a burst"
    assert all(w for _, w in log[first + 4 :]), "a bubble between bursts"
    assert first <= 2, f"the first word after {first} cycles"


@pytest.mark.parametrize("kind", (WriteArbiter, ReadArbiter))
def test_outstanding_and_halt(kind):
    """Without answers OUTSTANDING bursts are granted, of writes one more; ``halt`` stops grants,
    then ``idle``."""
    dut = kind(2)
    write = kind is WriteArbiter
    bound = OUTSTANDING + write
    bus = dut.bus

    async def bench(ctx):
        address_valid = bus.awvalid if write else bus.arvalid
        ctx.set(bus.awready if write else bus.arready, 1)
        if write:
            ctx.set(bus.wready, 1)
        for client in dut.clients:
            ctx.set(client.bursts.valid, 1)
            if write:
                ctx.set(client.beats.valid, 1)
                ctx.set(client.beats.p.last, 1)
            else:
                ctx.set(client.beats.ready, 1)
        assert ctx.get(dut.idle)
        granted = 0
        for _ in range(2 * bound + 20):
            _, _, valid = await ctx.tick().sample(address_valid)
            granted += valid
        assert granted == bound
        ctx.set(dut.halt, 1)
        if not write:
            ctx.set(bus.rlast, 1)
        ctx.set(bus.bvalid if write else bus.rvalid, 1)
        for _ in range(bound):
            assert not ctx.get(dut.idle)
            await ctx.tick()
        ctx.set(bus.bvalid if write else bus.rvalid, 0)
        await ctx.tick().repeat(2)
        assert ctx.get(dut.idle), "halted, everything answered, and not idle"
        assert not ctx.get(address_valid), "a burst granted while halted"
        ctx.set(dut.halt, 0)
        await ctx.tick().repeat(2)
        assert ctx.get(address_valid)

    sim = Simulator(dut)
    sim.add_clock(PERIOD)
    sim.add_testbench(bench)
    sim.add_testbench(watchdog(1000), background=True)
    sim.run()


@pytest.mark.parametrize("count", (1, 2, 3, 5))
def test_round_robin(count):
    """Against the rule: the first requester after the one served last."""
    seed = 20 + count
    rng = random.Random(seed)
    m = Module()
    m.submodules.dut = dut = RoundRobin(count)

    async def bench(ctx):
        last = None
        for _ in range(300):
            requests = rng.getrandbits(count)
            advance = rng.getrandbits(1)
            ctx.set(dut.requests, requests)
            ctx.set(dut.advance, advance & (requests != 0))
            _, _, state = await ctx.tick().sample(Cat(dut.index, dut.valid))
            index, valid = state & ((1 << len(dut.index)) - 1), state >> len(dut.index)
            assert valid == (requests != 0)
            if not valid:
                continue
            start = 0 if last is None else last + 1
            order = [(start + i) % count for i in range(count)]
            wanted = next(i for i in order if requests >> i & 1)
            assert index == wanted, f"seed {seed}: requests {requests:#b} after {last}"
            if advance:
                last = index

    sim = Simulator(m)
    sim.add_clock(PERIOD)
    sim.add_testbench(bench)
    sim.run()
