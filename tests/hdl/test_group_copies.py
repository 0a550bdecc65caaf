"""Copies of datagrams to groups: order, payloads, timing; the group table behind them."""

import random
from collections import deque

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator

from tests.seeds import seeds
from uwarp.contract import GROUP_ENTRY, GROUP_MEMBERS, Counter, Parameters
from uwarp_hdl.iwarp.message_close import MessageClose
from uwarp_hdl.layouts import Datagram, PacketBeat
from uwarp_hdl.net.group_copies import GroupCopies
from uwarp_hdl.net.group_table import GroupTable
from uwarp_hdl.stream.packet_fifo import PacketFifo
from uwarp_hdl.stream.queue import connect_streams

PARAMETERS = Parameters(n_qp=16, n_group=4, max_mtu=576)
LARGEST = (576 + 14) // 8
WAITING = 64


def entry(members, address=0):
    numbers = {f"member{index}": qpn for index, qpn in enumerate(members[:GROUP_MEMBERS])}
    return GROUP_ENTRY.to_int(count=len(members), address=address, **numbers)


class Harness(wiring.Component):
    """The copies with their table, and the FIFO that offers payloads again."""

    def __init__(self):
        self.copies = GroupCopies(PARAMETERS)
        self.payloads = PacketFifo(PacketBeat, 128, repeats=True)
        self.table = GroupTable(PARAMETERS, WAITING)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.copies = self.copies
        m.submodules.table = self.table
        m.submodules.payloads = payloads = self.payloads
        wiring.connect(m, self.copies.members, self.table.members)
        write = self.table.write
        m.d.sync += write.number.eq(write.number + 1)
        m.d.comb += write.data.eq(write.row.as_value().word_select(write.number, 32))
        connect_streams(m, payloads.o, self.copies.payload_i)
        m.d.comb += [
            payloads.again.eq(self.copies.again),
            payloads.commit.eq(payloads.i.valid & payloads.i.ready & payloads.i.p.last),
        ]
        return m


class Bench:
    """Offer items, each a datagram's row or None, its number, and words of payload; take what comes
    out. ``rates`` are probabilities for each cycle of a datagram's and a payload word's offer, and
    of their taking; an offer stays."""

    def __init__(self, seed, rates=(1, 1, 1, 1)):
        self.rng = random.Random(seed)
        self.seed = seed
        self.rates = rates
        self.harness = Harness()
        self.queue, self.words = deque(), deque()
        self.datagrams, self.payload, self.passed = [], [], []
        self.cycle = 0
        self.offers = []
        self.copies_counted = self.payloads_due = 0
        self.queued = 0

    def item(self, index, group, words):
        """Queue a datagram, with its payload; what ``source_port`` and data say tells it apart."""
        fields = {"qpn": index % 16 if group is None else group, "group": group is not None}
        fields |= {"source_port": index, "payload_length": 8 * words, "msn": index * 77}
        self.queue.append(Datagram.const(fields).as_value().value)
        for word in range(words):
            last = word == words - 1
            value = {"data": index << 32 | word, "count": 1 + index % 8 if last else 8}
            self.words.append(PacketBeat.const(value | {"last": last}).as_value().value)
        self.queued += group is not None

    async def write(self, ctx, row, members, address=0):
        """Write a row; the number of cycles that it took."""
        port = self.harness.table.write
        ctx.set(port.index, row)
        ctx.set(port.row.as_value(), entry(members, address))
        ctx.set(port.enable, 1)
        await ctx.tick()
        ctx.set(port.enable, 0)
        for cycles in range(5000):
            if ctx.get(self.harness.table.written):
                await ctx.tick()
                return cycles
            await ctx.tick()
        raise AssertionError(f"row {row} not written, seed {self.seed}")

    async def settle(self, ctx):
        while ctx.get(self.harness.table.busy):
            await ctx.tick()

    async def streams(self, ctx):
        """Both streams, for ever: what is offered stays, what is taken is noted."""
        dut, rng, table = self.harness.copies, self.rng, self.harness.table
        sides = (
            (dut.datagrams_i, self.queue, dut.datagrams_o, self.datagrams),
            (self.harness.payloads.i, self.words, dut.payload_o, self.payload),
        )
        sides = [
            (source, source.payload.as_value(), items, sink, sink.payload.as_value(), taken)
            for source, items, sink, taken in sides
        ]
        held, offered = [None, None], [False, False]
        payloads_begun = 0
        inside = False
        while True:
            ctx.set(table.lookup.queued, self.queued > 0)
            self.queued -= self.queued > 0
            for side, (source, payload, items, sink, _, _) in enumerate(sides):
                if not offered[side] and items and rng.random() < self.rates[side]:
                    ctx.set(payload, items[0])
                    ctx.set(source.valid, 1)
                    offered[side] = True
                    if side == 0:
                        self.offers.append(self.cycle)
                ctx.set(sink.ready, rng.random() < self.rates[2 + side])
            for side, (source, _, items, sink, payload, taken) in enumerate(sides):
                valid, ready = ctx.get(sink.valid), ctx.get(sink.ready)
                if held[side] is not None:
                    assert valid and ctx.get(payload) == held[side], f"{self.seed=}: taken back"
                held[side] = ctx.get(payload) if valid and not ready else None
                if valid and ready:
                    item = ctx.get(sink.payload)
                    taken.append((self.cycle, item))
                    if side == 0:
                        self.passed.append(not ctx.get(dut.more))
                        self.payloads_due += item.payload_length != 0
                    else:
                        payloads_begun += not inside
                        inside = not item.last
                        assert payloads_begun <= self.payloads_due, f"{self.seed=}: early payload"
                if offered[side] and ctx.get(source.ready):
                    items.popleft()
                    offered[side] = False
            events = ctx.get(dut.events)
            assert events in (0, 1 << Counter.RX_COPIES)
            self.copies_counted += events != 0
            await ctx.tick()
            for side, (source, *_) in enumerate(sides):
                ctx.set(source.valid, offered[side])
            self.cycle += 1

    async def drain(self, ctx, limit=30000):
        quiet, count = 0, 0
        for _ in range(limit):
            ended = sum(beat.last for _, beat in self.payload[-1:])
            if not self.queue and not self.words and (ended or not self.payload):
                if len(self.payload) == count:
                    quiet += 1
                    if quiet == 60:
                        return
                else:
                    quiet, count = 0, len(self.payload)
            await ctx.tick()
        raise AssertionError(
            f"{len(self.queue)} datagrams, {len(self.words)} words left, {self.seed=}"
        )

    def run(self, bench):
        simulator = Simulator(self.harness)
        simulator.add_clock(1e-6)
        simulator.add_testbench(bench)
        simulator.add_testbench(self.streams, background=True)
        simulator.run()

    def packets(self):
        """What came: of each datagram number, QP, and whether it was the last; of each payload its
        datagram's number and its words."""
        datagrams = [(item.source_port, item.qpn) for _, item in self.datagrams]
        packets, words = [], 0
        for _, beat in self.payload:
            index, word = beat.data >> 32, beat.data & 0xFFFFFFFF
            assert word == words, f"word {word} of {index} after {words}, seed {self.seed}"
            assert beat.count == (1 + index % 8 if beat.last else 8)
            words += 1
            if beat.last:
                packets.append((index, words))
                words = 0
        assert words == 0
        return datagrams, packets


@pytest.mark.parametrize("seed", seeds(4, 60, 7000))
def test_random(seed):
    """Groups of 1 to 16 members, others between, payloads of none to the largest."""
    rng = random.Random(seed)
    bench = Bench(seed, [rng.choice((1, 0.8, 0.3)) for _ in range(4)])
    groups = {
        row: [rng.randrange(1 << 16) for _ in range(rng.choice((1, 2, 3, 16)))] for row in range(4)
    }
    groups[rng.randrange(4)] = list(range(16))
    share = rng.choice((0.2, 0.5, 1))
    items = []
    for _ in range(40):
        words = rng.choice((0, 0, 1, 1, 2, 3, 8, rng.randrange(30)))
        items.append((rng.randrange(4) if rng.random() < share else None, words))
    items[rng.randrange(40)] = (rng.randrange(4), LARGEST)

    async def run(ctx):
        await bench.settle(ctx)
        for row, members in groups.items():
            await bench.write(ctx, row, members)
        for index, (group, words) in enumerate(items):
            while len(bench.queue) >= WAITING - 1:
                await ctx.tick()
            bench.item(index, group, words)
            if rng.random() < 0.2:
                await ctx.tick().repeat(rng.randint(1, 40))
        await bench.drain(ctx)

    bench.run(run)
    wanted, packets, passed = [], [], []
    for index, (group, words) in enumerate(items):
        members = [index % 16] if group is None else groups[group]
        wanted += [(index, qpn) for qpn in members]
        passed += [False] * (len(members) - 1) + [True]
        packets += [(index, words)] * len(members) if words else []
    assert bench.packets() == (wanted, packets), f"{seed=}"
    assert bench.passed == passed, f"{seed=}"
    assert bench.copies_counted == len(wanted) - len(items), f"{seed=}"
    others = {index: index * 77 for index, _ in wanted}
    assert all(item.msn == others[item.source_port] for _, item in bench.datagrams)


def test_timing():
    """Others come a cycle after their offer, their payloads with a cycle between; copies come 4
    cycles apart, their words without a pause and 3 cycles apart, if they are there before the
    datagrams."""
    bench = Bench(0)
    words = 5

    async def offer(ctx, *groups):
        bench.rates = (0, 1, 1, 1)
        for group in groups:
            bench.item(len(bench.offers) + len(bench.queue), group, words)
        await ctx.tick().repeat(len(groups) * words + 5)
        bench.rates = (1, 1, 1, 1)
        await bench.drain(ctx)

    async def run(ctx):
        await bench.settle(ctx)
        await bench.write(ctx, 0, [1, 2, 3])
        await offer(ctx, *[None] * 5)
        first = bench.offers[0]
        assert [cycle for cycle, _ in bench.datagrams] == list(range(first + 1, first + 16, 3))
        cycles = [cycle - first for cycle, _ in bench.payload]
        assert cycles == [
            3 + cycle for cycle in range(5 * (words + 1)) if (cycle + 1) % (words + 1)
        ]
        bench.datagrams.clear()
        bench.payload.clear()
        await offer(ctx, 0, None)
        first = bench.offers[5]
        assert [cycle - first for cycle, _ in bench.datagrams] == [3, 7, 11, 14]
        cycles = [cycle - first for cycle, _ in bench.payload]
        assert cycles[0] == 5
        for copy in (1, 2, 3):
            begin, end = copy * words, (copy + 1) * words
            assert cycles[begin] - cycles[begin - 1] <= 3
            assert cycles[end - 1] - cycles[begin] == words - 1

    bench.run(run)


@pytest.mark.parametrize("members", (1, 4))
def test_budget(members):
    """Datagrams of 64-octet frames to a group of one keep up with 10 cycles for each; copies with
    the 10 cycles that the receiver takes for each."""
    bench = Bench(1)
    taken = []

    async def run(ctx):
        await bench.settle(ctx)
        await bench.write(ctx, 0, list(range(members)))
        bench.rates = (1, 1, 0.0, 1)
        for index in range(30):
            bench.item(index, 0, 1)
        # A receiver that takes one every 10 cycles, in the cycle in which it comes to it.
        for _ in range(30 * members):
            await ctx.tick().repeat(9)
            bench.rates = (1, 1, 1, 1)
            count = len(bench.datagrams)
            await ctx.tick()
            bench.rates = (1, 1, 0.0, 1)
            taken.append(len(bench.datagrams) - count)
        await bench.drain(ctx)

    bench.run(run)
    assert taken[1:] == [1] * (30 * members - 1)
    assert len(bench.payload) == 30 * members


def test_table():
    """Rows as they are written, none after a reset; a count above 16 is 16."""
    bench = Bench(2)
    table = bench.harness.table

    async def look(ctx, row):
        ctx.set(table.lookup.index, row)
        return ctx.get(table.lookup.in_use), ctx.get(table.lookup.address)

    async def run(ctx):
        assert ctx.get(table.busy)
        await bench.settle(ctx)
        for row in range(4):
            assert (await look(ctx, row))[0] == 0
        for row, count in ((1, 1), (2, 16), (3, 200)):
            value = GROUP_ENTRY.to_int(
                count=count,
                address=row << 120 | 5,
                **{f"member{index}": 100 * row + index for index in range(16)},
            )
            ctx.set(table.write.row.as_value(), value)
            ctx.set(table.write.index, row)
            ctx.set(table.write.enable, 1)
            await ctx.tick()
            ctx.set(table.write.enable, 0)
            while not ctx.get(table.written):
                await ctx.tick()
                assert (await look(ctx, row))[0] == 0, "in use before its members are there"
            await ctx.tick()
        assert (await look(ctx, 0))[0] == 0
        for row in (1, 2, 3):
            assert await look(ctx, row) == (1, row << 120 | 5)
            bench.item(row, row, 0)
        await bench.drain(ctx)
        await bench.write(ctx, 2, [], address=5)
        assert (await look(ctx, 2))[0] == 0 and (await look(ctx, 1))[0] == 1

    bench.run(run)
    wanted = [(1, 100)] + [(row, 100 * row + index) for row in (2, 3) for index in range(16)]
    assert bench.packets()[0] == wanted


@pytest.mark.parametrize("seed", seeds(2, 30, 7100))
def test_a_row_written_while_datagrams_wait(seed):
    """They go to the members that the row had; the write waits for them, not for later ones."""
    rng = random.Random(seed)
    bench = Bench(seed, (1, 1, 0.2, 0.5))
    wanted = []

    async def run(ctx):
        await bench.settle(ctx)
        await bench.write(ctx, 3, [7])
        for round_ in range(4):
            members = [1000 * round_ + index for index in range(rng.randint(1, 16))]
            await bench.write(ctx, 0, members)
            for _ in range(rng.randrange(6)):
                index = len(wanted)
                wanted.append([(index, qpn) for qpn in members])
                bench.item(index, 0, rng.randrange(4))
            await ctx.tick().repeat(rng.randint(1, 8))
        # Traffic to another group does not keep the write from its end.
        done = []

        async def busy():
            while not done:
                if len(bench.queue) < 20:
                    index = len(wanted)
                    wanted.append([(index, 7)])
                    bench.item(index, 3, 0)
                await ctx.tick()

        for _ in range(20):
            index = len(wanted)
            wanted.append([(index, 7)])
            bench.item(index, 3, 0)
        await bench.write(ctx, 0, [1])
        done.append(1)
        await bench.drain(ctx)

    bench.run(run)
    assert bench.packets()[0] == [item for items in wanted for item in items], f"{seed=}"


def test_closing_waits_for_copies_under_way():
    """MESSAGES_CLOSE: the datagrams that waited have gone, each to its last member, whatever comes
    behind them; a copy that is not there yet is no end of the queue."""
    waited, copies = 3, 5
    dut = MessageClose(waited)
    left = []

    async def traffic(ctx):
        """Copies every 10 cycles, each settled 6 cycles later, for ever."""
        ctx.set(dut.offered, 1)
        while not ctx.get(dut.request.active):
            await ctx.tick()
        # Until the frames that had come before the write can be queued.
        for _ in range(25):
            await ctx.tick()
        for cycle in range(10 * 40 * copies):
            number, phase = divmod(cycle, 10)
            ctx.set(dut.taken, phase == 0)
            ctx.set(dut.passed, phase == 0 and number % copies == copies - 1)
            ctx.set(dut.settled, phase == 6)
            if phase == 0:
                left.append(number)
            await ctx.tick()

    async def run(ctx):
        await ctx.tick().repeat(5)
        ctx.set(dut.request, {"active": 1, "target": 0, "row": 1})
        for _ in range(1000):
            await ctx.tick()
            if ctx.get(dut.ending.active):
                break
        else:
            raise AssertionError("it never ends")
        assert len(left) == waited * copies, f"closing begins after copy {len(left)}"

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(run)
    simulator.add_testbench(traffic, background=True)
    simulator.run()
