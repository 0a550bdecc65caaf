"""The control side: every register of the contract, doorbells, commands, counters, reset."""

import random
import sys
from pathlib import Path

import pytest
from amaranth.sim import Simulator

from tests.seeds import seeds
from uwarp.contract import (
    CQ_ENTRY,
    DOORBELL_BASE,
    DOORBELL_PAGE,
    GROUP_ENTRY,
    MAGIC,
    MODERATION_ENTRY,
    QP_ENTRY,
    REGION_ENTRY,
    REGISTERS,
    VERSION,
    AccessMode,
    CloseTarget,
    Control,
    Counter,
    DeviceStatus,
    Doorbell,
    Filter,
    Parameters,
    QpState,
    Register,
    Table,
    doorbell_address,
)
from uwarp_hdl.csr import ControlUnit
from uwarp_hdl.csr.counters import EventCounters, EventSource
from uwarp_hdl.csr.reset import ReceiveGate, SoftReset, TransmitGate
from uwarp_hdl.iwarp.cqe_writer import CqeWriter
from uwarp_hdl.iwarp.dispatch import Dispatch
from uwarp_hdl.iwarp.events import EventUnit
from uwarp_hdl.iwarp.tables import AGAIN
from uwarp_hdl.iwarp.transmit import TransmitPath
from uwarp_hdl.net.group_copies import GroupCopies
from uwarp_hdl.net.loopback import Loopback
from uwarp_hdl.net.receive import FrameReceiver
from uwarp_hdl.nic import EVENT_SOURCES

sys.path.insert(0, str(Path(__file__).parent))
from axi_model import AxiLite, until, watchdog

PERIOD = 6.4e-9
PARAMETERS = Parameters(
    n_qp=64, n_region=16, n_tracker=4, n_closed=32, n_group=8, n_read=4, map_bits=2048
)
# Each counter has a source that it may come alone from, or as an outcome.
OUTCOMES = (range(4, 19), range(19, 40))
SOURCES = (
    EventSource(frozenset({Counter.RX_FRAMES, Counter.CQES}), OUTCOMES[0]),
    EventSource(frozenset({Counter.RX_FRAMES, Counter.CQES}), OUTCOMES[1]),
    EventSource(frozenset(set(Counter) - {Counter(i) for r in OUTCOMES for i in r})),
)


def simulate(dut, *benches, background=(), cycles=60000):
    sim = Simulator(dut)
    sim.add_clock(PERIOD)
    for bench in benches:
        sim.add_testbench(bench)
    for bench in (*background, watchdog(cycles)):
        sim.add_testbench(bench, background=True)
    sim.run()


async def wait_sweep(ctx, dut):
    while ctx.get(dut.sweeping):
        await ctx.tick()


def test_every_register():
    """Values after a reset, and what a write leaves, of each register and of the space between."""
    seed = 1
    rng = random.Random(seed)
    dut = ControlUnit(PARAMETERS, SOURCES)
    bus = AxiLite(dut.bus, rng)
    constant = {
        Register.MAGIC: MAGIC,
        Register.VERSION: VERSION,
        Register.N_QP: 64,
        Register.N_REGION: 16,
        Register.N_TRACKER: 4,
        Register.N_CLOSED: 32,
        Register.MAP_BITS: 2048,
        Register.MAX_MTU: 9000,
        Register.CLOCK_HZ: 156_250_000,
        Register.N_GROUP: 8,
        Register.N_READ: 4,
    }
    masks = {
        Register.CONTROL: Control.ENABLE,
        Register.MAC_LOW: 0xFFFFFFFF,
        Register.MAC_HIGH: 0xFFFF,
        Register.IPV4: 0xFFFFFFFF,
        Register.MTU: 0xFFFF,
        Register.FILTER: Filter.MULTICAST | Filter.PROMISCUOUS | Filter.LOOP_GROUPS,
        Register.IPV6: 0xFFFFFFFF,
        Register.IRQ_ENABLE: 1,
        Register.EVENT_ADDR_LOW: 0xFFFFFFFF,
        Register.EVENT_ADDR_HIGH: 0xFFFFFFFF,
        Register.EVENT_RING: 0x10F,
        # It takes targets that exist only, and reads as whether it is at work.
        Register.MESSAGES_CLOSE: 0,
        Register.TABLE_SELECT: 0xFFFFFF,
        Register.TABLE_DATA: 0xFFFFFFFF,
    }
    assert set(masks) == {r for r in REGISTERS if r.value.access is AccessMode.RW}

    async def bench(ctx):
        await wait_sweep(ctx, dut)
        ctx.set(dut.open_messages, 77)
        for register in REGISTERS:
            if register in (Register.TIME_LOW, Register.TIME_HIGH):
                continue
            initial = {Register.MTU: 1500, Register.OPEN_MESSAGES: 77} | constant
            for index in range(register.value.count):
                got = await bus.read(ctx, register.at(index))
                assert got == initial.get(register, 0), f"{register.name}[{index}] is {got:#x}"
        written = {}
        for register in REGISTERS:
            for index in range(register.value.count):
                value = rng.getrandbits(32)
                if register is Register.CONTROL:
                    value &= ~Control.RESET
                if register is Register.TABLE_COMMAND:
                    value = 0
                if register is Register.MESSAGES_CLOSE:
                    value |= 2 << 16
                await bus.write(ctx, register.at(index), value)
                written[register, index] = value & masks.get(register, 0)
        for address in (
            0x02C,
            0x060,
            0x098,
            0x0B0,
            0x0D8,
            0x180,
            0x210,
            0x2C0,
            0x800,
            0x1000,
            DOORBELL_BASE - 4,
        ):
            await bus.write(ctx, address, 0xFFFFFFFF)
            assert await bus.read(ctx, address) == 0, f"{address:#x} is not a register"
        await bus.write(ctx, Register.IPV4.address, 0, strobe=0x7)
        for (register, index), value in written.items():
            if register in masks:
                got = await bus.read(ctx, register.at(index))
                assert got == value, f"seed {seed}: {register.name}[{index}] is {got:#x}"
        ring = ctx.get(dut.event_ring)
        low, high = written[Register.EVENT_ADDR_LOW, 0], written[Register.EVENT_ADDR_HIGH, 0]
        assert ring.address == high << 32 | low
        assert ring.log2 | ring.enabled << 8 == written[Register.EVENT_RING, 0]
        config = ctx.get(dut.config)
        mac = written[Register.MAC_HIGH, 0] << 32 | written[Register.MAC_LOW, 0]
        assert (config.mac, config.ipv4) == (mac, written[Register.IPV4, 0])
        assert config.ipv6 == sum(written[Register.IPV6, i] << 32 * i for i in range(4))
        bits = written[Register.FILTER, 0]
        assert config.accept_multicast == bool(bits & Filter.MULTICAST)
        assert config.accept_foreign == bool(bits & Filter.PROMISCUOUS)
        assert config.loop_groups == bool(bits & Filter.LOOP_GROUPS)
        assert (config.mtu, config.enable) == (
            written[Register.MTU, 0],
            written[Register.CONTROL, 0],
        )

    simulate(dut, bench)


def test_registers_after_a_reset():
    """What was written before reads as after power-up, also beside words written since; constants
    and TABLE_DATA stay."""
    dut = ControlUnit(PARAMETERS, SOURCES)
    bus = AxiLite(dut.bus, random.Random(8), stall=0)
    words = [
        (register, index)
        for register in REGISTERS
        for index in range(register.value.count)
        if register.value.access is AccessMode.RW
        and register not in (Register.TABLE_DATA, Register.CONTROL, Register.MESSAGES_CLOSE)
    ]

    async def bench(ctx):
        await wait_sweep(ctx, dut)
        for register, index in (*words, (Register.TABLE_DATA, 3)):
            await bus.write(ctx, register.at(index), 0xFFFFFFFF)
        ctx.set(dut.clear, 1)
        ctx.set(dut.busy, 1)
        await ctx.tick()
        ctx.set(dut.clear, 0)
        await wait_sweep(ctx, dut)
        assert await bus.read(ctx, Register.TABLE_DATA.at(3)) == 0, "busy"
        assert await bus.read(ctx, Register.N_READ.address) == 4
        ctx.set(dut.busy, 0)
        await bus.write(ctx, Register.IPV6.at(2), 0x12345678)
        for register, index in words:
            wanted = {Register.MTU: 1500}.get(register, 0)
            if (register, index) == (Register.IPV6, 2):
                wanted = 0x12345678
            got = await bus.read(ctx, register.at(index))
            assert got == wanted, f"{register.name}[{index}] is {got:#x}"
        assert ctx.get(dut.config).ipv6 == 0x12345678 << 64
        assert await bus.read(ctx, Register.TABLE_DATA.at(3)) == 0xFFFFFFFF

    simulate(dut, bench)


def test_time():
    """TIME_LOW latches TIME_HIGH, both count cycles, and a clear leaves them alone."""
    dut = ControlUnit(PARAMETERS, SOURCES)
    bus = AxiLite(dut.bus, random.Random(2), stall=0)

    async def bench(ctx):
        await wait_sweep(ctx, dut)
        ctx.set(dut.time, (5 << 32) - 40)
        times = []
        for _ in range(8):
            low = await bus.read(ctx, Register.TIME_LOW.address)
            await ctx.tick().repeat(7)
            high = await bus.read(ctx, Register.TIME_HIGH.address)
            times.append((high << 32 | low, ctx.get(dut.time)))
        assert times[0][0] >> 32 == 4 and times[-1][0] >> 32 == 5
        gaps = {now - got for got, now in times}
        assert len(gaps) == 1, f"a constant distance to the time, not {gaps}"
        before = ctx.get(dut.time)
        ctx.set(dut.clear, 1)
        await ctx.tick()
        ctx.set(dut.clear, 0)
        await ctx.tick().repeat(3)
        assert ctx.get(dut.time) == before + 4
        assert await bus.read(ctx, Register.TIME_HIGH.address) == 0

    simulate(dut, bench)


@pytest.mark.parametrize("seed", range(2))
def test_doorbells(seed):
    """Each doorbell reaches its unit, once and in order; those of no page reach none."""
    rng = random.Random(f"doorbells {seed}")
    dut = ControlUnit(PARAMETERS, SOURCES)
    bus = AxiLite(dut.bus, rng, stall=0.1)
    streams = {"send": dut.send, "receive": dut.receive, "completion": dut.completion}
    expected = {name: [] for name in streams}
    got = {name: [] for name in streams}
    slow = rng.choice(list(streams))

    def take(name):
        async def process(ctx):
            stream = streams[name]
            while True:
                ctx.set(stream.ready, rng.random() < (0.03 if name == slow else 0.5))
                _, _, ready, valid, item = await ctx.tick().sample(
                    stream.ready, stream.valid, stream.payload
                )
                if ready and valid:
                    number = item.cq if name == "completion" else item.qpn
                    arm = (item.arm, item.solicited) if name == "completion" else (0, 0)
                    got[name].append((number, item.index, arm, item.reset))

        return process

    async def bench(ctx):
        await wait_sweep(ctx, dut)
        for _ in range(150):
            page = rng.choice((0, 1, 63, 64, 1023, 1024, 1791, rng.randrange(64)))
            offset = rng.choice((0, 4, 8, 12, 16, 20, 0x800, 0xFFC))
            address = DOORBELL_BASE + page * DOORBELL_PAGE + offset
            index = rng.getrandbits(32)
            if rng.random() < 0.1:
                assert await bus.read(ctx, address) == 0
                continue
            await bus.write(ctx, address, index)
            if page >= PARAMETERS.n_qp or offset > 16:
                continue
            doorbell = Doorbell(offset)
            assert address == doorbell_address(doorbell, page)
            name = {0: "send", 4: "receive"}.get(offset, "completion")
            solicited = doorbell is Doorbell.CQ_ARM_SOLICITED
            arm = doorbell is Doorbell.CQ_ARM or solicited
            expected[name].append((page, index, (arm, solicited), 0))
        await ctx.tick().repeat(1000)
        assert got == expected, f"seed {seed}"

    simulate(dut, bench, background=[take(name) for name in streams])


def test_table_commands():
    """Rows go to the table selected; QP rows in RESET and CQ rows are told to the units first."""
    seed = 3
    rng = random.Random(seed)
    dut = ControlUnit(PARAMETERS, SOURCES)
    bus = AxiLite(dut.bus, rng, stall=0)
    log = []
    words = {"qp": [], "region": []}
    numbers = {"qp": (AGAIN, *range(18)), "region": (AGAIN, *range(12))}
    age = dict.fromkeys(words, 0)

    async def watch(ctx):
        while True:
            values = await ctx.tick().sample(
                *(
                    item
                    for port in (dut.qp, dut.region, dut.port, dut.group)
                    for item in (port.enable, port.index, port.row)
                ),
                *(
                    item
                    for port in (dut.qp, dut.region)
                    for item in (port.store, port.held, port.number, port.data)
                ),
            )
            values = values[2:]
            for kind, name in enumerate(("qp", "region", "port", "group")):
                enable, index, row = values[3 * kind : 3 * kind + 3]
                if enable:
                    log.append((name, index, row.as_bits()))
            for kind, name in enumerate(("qp", "region")):
                store, held, number, data = values[12 + 4 * kind : 16 + 4 * kind]
                age[name] = age[name] + 1 if held else 0
                if store and number in numbers[name]:
                    assert age[name] >= 6, "the first word too early"
                    words[name].append((number, data))

    def ring(name, stream):
        async def process(ctx):
            while True:
                await ctx.tick().repeat(rng.randint(1, 30))
                ctx.set(stream.ready, 1)
                (item,) = await until(ctx, stream.valid, stream.payload)
                ctx.set(stream.ready, 0)
                assert item.reset
                log.append((name, item.qpn))

        return process

    async def completions(ctx):
        while True:
            ctx.set(dut.completion.ready, 1)
            (item,) = await until(ctx, dut.completion.valid, dut.completion.payload)
            ctx.set(dut.completion.ready, 0)
            if item.moderate:
                log.append(("moderation", item.cq, item.reset, item.row.as_bits() & 0xFFFFFFFF))
                continue
            await ctx.tick().repeat(rng.randint(1, 50))
            log.append(("cq", item.cq, item.reset, item.row.as_bits()))
            ctx.set(dut.irq_clear, 1)
            ctx.set(dut.irq_cq, item.cq)
            await ctx.tick()
            ctx.set(dut.irq_clear, 0)

    async def groups(ctx):
        """The table takes its time, and the row must stay."""
        while True:
            (row,) = await until(ctx, dut.group.enable, dut.group.row)
            for _ in range(rng.randint(10, 60)):
                await ctx.tick()
                assert ctx.get(dut.group.row) == row and not ctx.get(dut.group.enable)
            log.append(("written",))
            ctx.set(dut.group_written, 1)
            await ctx.tick()
            ctx.set(dut.group_written, 0)

    async def bench(ctx):
        await wait_sweep(ctx, dut)

        async def check(table, row, value, *wanted):
            log.clear()
            await bus.command(ctx, table, row, value)
            assert sorted(log, key=str) == sorted(wanted, key=str), f"{table.name} row {row}"
            # The row's words, to a row that exists.
            for name, came in words.items():
                data = [
                    (number, value >> 32 * (number % AGAIN) & 0xFFFFFFFF)
                    for number in numbers[name]
                ]
                assert came == (data if name in (item[0] for item in wanted) else [])
                came.clear()

        live = QP_ENTRY.to_int(state=QpState.RTS, udp_port=9, rq_addr=0xABCDE, peer_port=0xBEEF)
        await check(Table.QP, 63, live, ("qp", 63, live))
        await check(Table.QP, 64, live)
        dead = QP_ENTRY.to_int(state=QpState.RESET, udp_port=9)
        await check(Table.QP, 5, dead, ("qp", 5, dead), ("send", 5), ("receive", 5))
        await check(Table.QP, 64, dead)
        region = REGION_ENTRY.to_int(valid=1, length=rng.getrandbits(64), map_base=77 << 6)
        await check(Table.REGION, 15, region, ("region", 15, region))
        await check(Table.REGION, 16, region)
        await check(Table.PORT, 255, 1, ("port", 255, 1))
        await check(Table.PORT, 256, 1)
        cq = CQ_ENTRY.to_int(valid=1, log2=4, addr=rng.getrandbits(58) << 6)
        await check(Table.CQ, 63, cq, ("cq", 63, 1, cq))
        await check(Table.CQ, 64, cq)
        moderation = MODERATION_ENTRY.to_int(count=rng.getrandbits(16), ticks=77)
        await check(Table.MODERATION, 63, moderation, ("moderation", 63, 0, moderation))
        await check(Table.MODERATION, 64, moderation)
        log.clear()
        group = GROUP_ENTRY.to_int(count=16, address=rng.getrandbits(128), member15=0xFEDC)
        await check(Table.GROUP, 7, group, ("group", 7, group), ("written",))
        await check(Table.GROUP, 8, group)
        log.clear()
        await bus.write(ctx, Register.TABLE_SELECT.address, 6 << 16)
        await bus.write(ctx, Register.TABLE_COMMAND.address, 0)
        assert log == []

    rings = [ring("send", dut.send), ring("receive", dut.receive)]
    simulate(dut, bench, background=(watch, *rings, completions, groups))


def test_interrupts():
    """Bits are set by their CQ, cleared by writing 1, and kept when both come at once."""
    dut = ControlUnit(PARAMETERS, SOURCES)
    bus = AxiLite(dut.bus, random.Random(4), stall=0)

    async def strobe(ctx, signal, cq):
        ctx.set(dut.irq_cq, cq)
        ctx.set(signal, 1)
        await ctx.tick()
        ctx.set(signal, 0)

    async def bench(ctx):
        await wait_sweep(ctx, dut)
        await strobe(ctx, dut.irq_set, 3)
        await strobe(ctx, dut.irq_set, 34)
        await ctx.tick().repeat(2)
        assert not ctx.get(dut.irq), "not enabled"
        await bus.write(ctx, Register.IRQ_ENABLE.address, 1)
        await ctx.tick().repeat(2)
        assert ctx.get(dut.irq)
        assert await bus.read(ctx, Register.IRQ_STATUS.at(0)) == 1 << 3
        assert await bus.read(ctx, Register.IRQ_STATUS.at(1)) == 1 << 2
        await bus.write(ctx, Register.IRQ_STATUS.at(1), 0xFFFFFFFF)
        await bus.write(ctx, Register.IRQ_STATUS.at(0), 0xFFFFFFFF ^ 1 << 3)
        assert await bus.read(ctx, Register.IRQ_STATUS.at(0)) == 1 << 3
        assert await bus.read(ctx, Register.IRQ_STATUS.at(1)) == 0
        await strobe(ctx, dut.irq_clear, 3)
        await ctx.tick().repeat(2)
        assert not ctx.get(dut.irq)
        # Held through the whole write: the firing must win.
        ctx.set(dut.irq_cq, 3)
        ctx.set(dut.irq_set, 1)
        await bus.write(ctx, Register.IRQ_STATUS.at(0), 1 << 3)
        ctx.set(dut.irq_set, 0)
        assert await bus.read(ctx, Register.IRQ_STATUS.at(0)) == 1 << 3

    simulate(dut, bench)


def test_event_registers():
    """EVENT_STATUS as IRQ_STATUS; a write of EVENT_RING tells the event unit, and is consumed."""
    dut = ControlUnit(PARAMETERS, SOURCES)
    bus = AxiLite(dut.bus, random.Random(6), stall=0)
    cleared = []

    async def watch(ctx):
        while True:
            _, _, clear, ring, consumer = await ctx.tick().sample(
                dut.event_clear, dut.event_ring, dut.event_consumer
            )
            if clear:
                cleared.append((ring.enabled, ring.log2, consumer))

    async def bench(ctx):
        await wait_sweep(ctx, dut)
        await bus.write(ctx, Register.EVENT_CONSUMER.address, 0x89ABCDEF)
        assert ctx.get(dut.event_consumer) == 0x89ABCDEF and cleared == []
        await bus.write(ctx, Register.EVENT_RING.address, 0x106)
        assert cleared == [(1, 6, 0)], "one strobe, with the ring and consumer index 0"
        ctx.set(dut.event_written, 1)
        await ctx.tick()
        ctx.set(dut.event_written, 0)
        await ctx.tick().repeat(2)
        assert not ctx.get(dut.irq), "not enabled"
        await bus.write(ctx, Register.IRQ_ENABLE.address, 1)
        await ctx.tick().repeat(2)
        assert ctx.get(dut.irq)
        await bus.write(ctx, Register.EVENT_STATUS.address, 0xFFFFFFFE)
        assert await bus.read(ctx, Register.EVENT_STATUS.address) == 1
        await bus.write(ctx, Register.EVENT_STATUS.address, 1)
        await ctx.tick().repeat(2)
        assert not ctx.get(dut.irq)
        # Held through the whole write: the event must win.
        ctx.set(dut.event_written, 1)
        await bus.write(ctx, Register.EVENT_STATUS.address, 1)
        ctx.set(dut.event_written, 0)
        assert await bus.read(ctx, Register.EVENT_STATUS.address) == 1

    simulate(dut, bench, background=(watch,))


def test_messages_close():
    """Held, as it was written first, until the receiver has done; not begun for what is not."""
    dut = ControlUnit(PARAMETERS, SOURCES)
    bus = AxiLite(dut.bus, random.Random(7), stall=0)

    async def bench(ctx):
        await wait_sweep(ctx, dut)
        address = Register.MESSAGES_CLOSE.address
        for target, row in (
            (CloseTarget.QP, PARAMETERS.n_qp),
            (CloseTarget.REGION, PARAMETERS.n_region),
            (CloseTarget.REGION, 0xFFFF),
            (2, 0),
            (0xFF, 0),
        ):
            await bus.write(ctx, address, target << 16 | row)
            await ctx.tick().repeat(3)
            assert not ctx.get(dut.close.active), f"target {target}, row {row}"
            assert await bus.read(ctx, address) == 0
        for target, row in ((CloseTarget.QP, 63), (CloseTarget.REGION, 15), (CloseTarget.QP, 0)):
            await bus.write(ctx, address, target << 16 | row)
            await bus.write(ctx, address, CloseTarget.REGION << 16 | 7)
            for _ in range(3):
                assert await bus.read(ctx, address) == 1
                close = ctx.get(dut.close)
                assert (close.active, close.target, close.row) == (1, target, row)
            ctx.set(dut.close_done, 1)
            await ctx.tick()
            ctx.set(dut.close_done, 0)
            assert not ctx.get(dut.close.active)
            assert await bus.read(ctx, address) == 0

    simulate(dut, bench)


def strobes(rng, outcomes, rate):
    """A cycle's strobes of each source: those alone by chance, of the outcomes at most one. An
    outcome often stays for long, for the most that its count must hold."""
    vectors = []
    for number, source in enumerate(SOURCES):
        chosen = sum((rng.random() < rate) << counter for counter in sorted(source.alone))
        if source.outcomes and rng.random() < rate:
            if rng.random() < 0.01:
                outcomes[number] = rng.choice(source.outcomes)
            chosen |= 1 << outcomes[number]
        vectors.append(chosen)
    return vectors


async def read_counter(ctx, dut, index):
    ctx.set(dut.read.index, index)
    ctx.set(dut.read.request, 1)
    (low,) = await until(ctx, dut.read.low, dut.read.value)
    assert ctx.get(dut.read.done), "in the cycle after the low word"
    high = ctx.get(dut.read.value)
    await ctx.tick()
    ctx.set(dut.read.request, 0)
    return high << 32 | low


@pytest.mark.parametrize("rate", (0.1, 1.0))
def test_counters(rate):
    """Strobes of all sources in any cycles: none lost, none twice, and each read is up to date."""
    seed = int(100 * rate)
    rng = random.Random(seed)
    dut = EventCounters(SOURCES)
    totals = [0] * len(Counter)
    width = len(Counter)
    outcomes = [source.outcomes[0] if source.outcomes else None for source in SOURCES]
    reading, counting = True, True

    async def count(ctx):
        nonlocal counting
        while ctx.get(dut.busy):
            await ctx.tick()
        while reading:
            for vector, chosen in zip(dut.events, strobes(rng, outcomes, rate), strict=True):
                ctx.set(vector, chosen)
                for i in range(width):
                    totals[i] += chosen >> i & 1
            await ctx.tick()
        for vector in dut.events:
            ctx.set(vector, 0)
        counting = False

    async def readers(ctx):
        nonlocal reading
        while ctx.get(dut.busy):
            await ctx.tick()
        for _ in range(30):
            index = rng.randrange(width)
            before = totals[index]
            value = await read_counter(ctx, dut, index)
            assert before <= value <= totals[index], f"seed {seed}: {Counter(index)!r}"
            # Of any age of a sweep, and none.
            await ctx.tick().repeat(rng.choice((4, 5, 60, 130, 300)))
        reading = False
        while counting:
            await ctx.tick()
        await ctx.tick()
        for index in range(width):
            value = await read_counter(ctx, dut, index)
            assert value == totals[index], f"seed {seed}: {Counter(index)!r}"
        assert await read_counter(ctx, dut, 63) == 0

    simulate(dut, count, readers)


def test_counters_carry():
    """From the low word into the high one, and no further."""
    dut = EventCounters(SOURCES)
    rows = dut.row_words

    async def bench(ctx):
        while ctx.get(dut.busy):
            await ctx.tick()
        for counter in (Counter.CQES, Counter.DROP_CRC, Counter.DROP_CQ_FULL):
            ctx.set(rows[2 * counter], 0xFFFFFFFE)
            ctx.set(rows[2 * counter + 1], 0x12345678)
        ctx.set(dut.events[0], 1 << Counter.CQES | 1 << Counter.DROP_CRC)
        ctx.set(dut.events[1], 1 << Counter.CQES | 1 << Counter.DROP_CQ_FULL)
        await ctx.tick().repeat(3)
        ctx.set(dut.events[0], 0)
        ctx.set(dut.events[1], 0)
        for counter in Counter:
            wanted = {
                Counter.CQES: 0x12345678_FFFFFFFE + 6,
                Counter.DROP_CRC: 0x12345678_FFFFFFFE + 3,
                Counter.DROP_CQ_FULL: 0x12345678_FFFFFFFE + 3,
            }.get(counter, 0)
            value = await read_counter(ctx, dut, counter)
            assert value == wanted, f"{counter.name} is {value:#x}"

    simulate(dut, bench)


@pytest.mark.parametrize("seed", range(2))
def test_snapshot(seed):
    """Copies of one moment, while all goes on: equal counters are equal, an outcome is never
    without its frame, and no strobe is lost."""
    rng = random.Random(f"snapshot {seed}")
    dut = EventCounters(SOURCES)
    width = len(Counter)
    # Those of the last source come together; the first two's RX_FRAMES comes with each outcome.
    together = sorted(SOURCES[2].alone - SOURCES[0].alone)
    ended = [number for outcomes in OUTCOMES for number in outcomes]
    totals = [0] * width
    finished = False

    async def count(ctx):
        nonlocal finished
        while ctx.get(dut.busy):
            await ctx.tick()
        while not finished:
            for number, (vector, chance) in enumerate(zip(dut.events, (1, 0.5, 0.3), strict=True)):
                chosen = 0
                if rng.random() < chance:
                    if number < 2:
                        chosen = 1 << Counter.RX_FRAMES | 1 << rng.choice(OUTCOMES[number])
                    else:
                        chosen = sum(1 << item for item in together)
                ctx.set(vector, chosen)
                for item in range(width):
                    totals[item] += chosen >> item & 1
            await ctx.tick()
        for vector in dut.events:
            ctx.set(vector, 0)
        finished = False

    async def copied(ctx, index):
        words = []
        for word in range(2):
            ctx.set(dut.read.word, 2 * index + word)
            ctx.set(dut.read.copy, 1)
            ctx.set(dut.read.request, 1)
            (value,) = await until(ctx, dut.read.low, dut.read.value)
            await until(ctx, dut.read.done)
            ctx.set(dut.read.request, 0)
            ctx.set(dut.read.copy, 0)
            words.append(value)
        return words[1] << 32 | words[0]

    async def bench(ctx):
        nonlocal finished
        while ctx.get(dut.busy):
            await ctx.tick()
        for index in range(64):
            assert await copied(ctx, index) == 0, "before the first snapshot"
        for _ in range(8):
            await ctx.tick().repeat(rng.choice((1, 3, rng.randrange(100))))
            before = list(totals)
            ctx.set(dut.snapshot.request, 1)
            await until(ctx, dut.snapshot.done)
            ctx.set(dut.snapshot.request, 0)
            after = list(totals)
            if rng.random() < 0.2:
                continue
            values = [await copied(ctx, index) for index in range(64)]
            assert len({values[item] for item in together}) == 1, f"seed {seed}: not of one cycle"
            frames = values[Counter.RX_FRAMES]
            assert sum(values[item] for item in ended) == frames, f"seed {seed}: not of one cycle"
            assert all(
                a <= b <= c for a, b, c in zip(before, values[:width], after, strict=True)
            ), f"seed {seed}"
            assert not any(values[width:])
        finished = True
        while finished:
            await ctx.tick()
        for index in range(width):
            value = await read_counter(ctx, dut, index)
            assert value == totals[index], f"seed {seed}: {Counter(index)!r}"

    simulate(dut, count, bench)


def test_event_sources():
    """What a source cannot be."""
    with pytest.raises(ValueError, match=r"both have .*DROP_CRC"):
        EventSource(frozenset({Counter.DROP_CRC}), range(4, 19))
    with pytest.raises(ValueError, match="without gaps"):
        EventSource(outcomes=range(4, 19, 2))
    with pytest.raises(ValueError, match="at least 1"):
        EventCounters(())
    with pytest.raises(ValueError, match="two sources"):
        EventCounters((*SOURCES, EventSource(outcomes=range(18, 20))))


class StrobesSeen:
    """In the place of a unit's ``events``: which of them its description strobes."""

    def __init__(self, events):
        self._events = events
        self.counters = set()
        self.has_outcomes = False

    def __getitem__(self, counter):
        self.counters.add(Counter(counter))
        return self._events[counter]

    def bit_select(self, outcome, width):
        self.has_outcomes = True
        return self._events.bit_select(outcome, width)

    def eq(self, value):
        return self._events.eq(value)


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
@pytest.mark.parametrize(
    ("number", "make"),
    [
        (0, Loopback),
        (1, FrameReceiver),
        (2, GroupCopies),
        (3, Dispatch),
        (4, TransmitPath),
        (5, lambda parameters: CqeWriter(clients=2)),
        (6, lambda parameters: EventUnit(clients=6)),
    ],
)
def test_event_sources_of_the_nic(number, make):
    """The NIC knows all that a unit counts: a strobe that it does not know would count nothing."""
    unit, source = make(PARAMETERS), EVENT_SOURCES[number]
    unit.events = seen = StrobesSeen(unit.events)
    unit.elaborate(None)
    assert seen.counters or seen.has_outcomes
    unknown = {item.name for item in seen.counters if item not in (*source.alone, *source.outcomes)}
    assert not unknown
    assert seen.has_outcomes == bool(source.outcomes)


def test_counters_on_the_bus():
    """A low half latches the high one; a clear empties all."""
    dut = ControlUnit(PARAMETERS, SOURCES)
    bus = AxiLite(dut.bus, random.Random(5))

    async def bench(ctx):
        await wait_sweep(ctx, dut)
        ctx.set(dut.events[0], 1 << Counter.CQES | 1 << Counter.DROP_CRC)
        ctx.set(dut.events[1], 1 << Counter.CQES | 1 << Counter.RX_FRAMES)
        await ctx.tick().repeat(100)
        ctx.set(dut.events[0], 0)
        ctx.set(dut.events[1], 0)
        assert await bus.read_counter(ctx, Counter.CQES) == 200
        assert await bus.read_counter(ctx, Counter.RX_FRAMES) == 100
        assert await bus.read_counter(ctx, Counter.TX_FRAMES) == 0
        await bus.write(ctx, Register.COUNTERS_SNAPSHOT.address, 0)
        ctx.set(dut.events[1], 1 << Counter.CQES)
        await ctx.tick()
        ctx.set(dut.events[1], 0)
        for counter in Counter:
            wanted = {Counter.CQES: 200, Counter.RX_FRAMES: 100, Counter.DROP_CRC: 100}.get(
                counter, 0
            )
            got = await bus.read(ctx, Register.SNAPSHOT_LOW.at(counter))
            assert got == wanted, f"{counter.name} in the snapshot is {got}, not {wanted}"
            assert await bus.read(ctx, Register.SNAPSHOT_HIGH.at(counter)) == 0
        assert await bus.read_counter(ctx, Counter.CQES) == 201
        # In both banks.
        ctx.set(dut.events[0], 1 << Counter.DROP_CRC)
        assert await bus.read_counter(ctx, Counter.TX_FRAMES) == 0
        ctx.set(dut.events[0], 0)
        ctx.set(dut.clear, 1)
        ctx.set(dut.busy, 1)
        await ctx.tick()
        ctx.set(dut.clear, 0)
        assert await bus.read(ctx, Register.STATUS.address) == DeviceStatus.BUSY
        assert await bus.read(ctx, Register.MAGIC.address) == MAGIC
        assert await bus.read_counter(ctx, Counter.CQES) == 0
        await wait_sweep(ctx, dut)
        ctx.set(dut.busy, 0)
        assert await bus.read(ctx, Register.STATUS.address) == 0
        assert await bus.read_counter(ctx, Counter.DROP_CRC) == 0
        for _ in range(2):
            for counter in Counter:
                assert await bus.read(ctx, Register.SNAPSHOT_LOW.at(counter)) == 0, counter.name
            await bus.write(ctx, Register.COUNTERS_SNAPSHOT.address, 0)

    simulate(dut, bench)


def test_reset_sequence():
    dut = SoftReset()

    async def bench(ctx):
        ctx.set(dut.sweeping, 1)
        await ctx.tick().repeat(3)
        assert ctx.get(dut.busy) and not ctx.get(dut.reset)
        ctx.set(dut.sweeping, 0)
        await ctx.tick()
        assert not ctx.get(dut.busy)
        ctx.set(dut.request, 1)
        await ctx.tick()
        ctx.set(dut.request, 0)
        for _ in range(20):
            assert ctx.get(dut.busy) and ctx.get(dut.halt) and not ctx.get(dut.reset)
            await ctx.tick()
        ctx.set(dut.quiet, 1)
        await ctx.tick()
        assert ctx.get(dut.busy) and ctx.get(dut.halt) and not ctx.get(dut.reset)
        await ctx.tick()
        assert ctx.get(dut.reset) and ctx.get(dut.halt)
        ctx.set(dut.sweeping, 1)
        await ctx.tick()
        assert not ctx.get(dut.reset) and not ctx.get(dut.halt) and ctx.get(dut.busy)
        ctx.set(dut.sweeping, 0)
        await ctx.tick()
        assert not ctx.get(dut.busy)

    simulate(dut, bench)


@pytest.mark.parametrize("seed", seeds(1, 9))
def test_receive_gate(seed):
    """Whole frames that begin while open pass; others vanish; a cut frame loses its tail only."""
    rng = random.Random(f"receive gate {seed}")
    dut = ReceiveGate()
    out = []
    wanted = []

    async def bench(ctx):
        is_open = cut = 0
        passing = None
        offered = False
        for frame in range(150):
            length = rng.choice((1, 1, 2, 5))
            index = 0
            while index < length:
                if rng.random() < 0.2:
                    is_open ^= 1
                cut = rng.random() < 0.03
                valid = offered or rng.random() < 0.7
                ready = rng.random() < 0.6
                word = frame << 8 | index
                ctx.set(dut.open, is_open)
                ctx.set(dut.cut, cut)
                ctx.set(dut.i.valid, valid)
                ctx.set(dut.i.payload, {"data": word, "last": index == length - 1})
                ctx.set(dut.o.ready, ready)
                if valid and index == 0 and not offered:
                    passing = bool(is_open)
                _, _, i_ready, o_valid, beat = await ctx.tick().sample(
                    dut.i.ready, dut.o.valid, dut.o.payload
                )
                assert o_valid == (valid and passing), f"seed {seed}: frame {frame}, {index}"
                if valid and not passing:
                    assert i_ready, f"seed {seed}: a frame that is dropped was held up"
                if o_valid and ready:
                    out.append((beat.data, beat.last))
                if valid and passing and ready:
                    wanted.append((word, index == length - 1))
                taken = valid and (ready or not passing)
                offered = valid and not taken
                index += taken
                if cut and (offered or index):
                    passing = False
        assert out == wanted, f"seed {seed}"
        assert len(out) > 50

    simulate(dut, bench)


def test_transmit_gate():
    """A halt waits for the end of the frame that has been offered, and begins none."""
    dut = TransmitGate()

    async def bench(ctx):
        ctx.set(dut.i.valid, 1)
        await ctx.tick()
        ctx.set(dut.halt, 1)
        for last in (0, 0, 1):
            ctx.set(dut.i.p.last, last)
            for ready in (0, 0, 1):
                ctx.set(dut.o.ready, ready)
                assert ctx.get(dut.o.valid) and not ctx.get(dut.idle)
                assert ctx.get(dut.i.ready) == ready
                await ctx.tick()
        ctx.set(dut.i.p.last, 0)
        for _ in range(5):
            assert ctx.get(dut.idle) and not ctx.get(dut.o.valid) and not ctx.get(dut.i.ready)
            await ctx.tick()
        ctx.set(dut.halt, 0)
        await ctx.tick()
        assert ctx.get(dut.o.valid)

    simulate(dut, bench)
