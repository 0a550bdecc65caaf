"""Receive rings: WQEs read ahead, lookups that guess, resets amid both; and the rate of Sends."""

from collections import deque

import pytest
from receive_bench import bits_of, make_rng, put_stream, run, take, value_of
from receive_rule import Region, Rule
from receiver_bench import ReceiverBench, datagram, qp_row

from sim_tb.units import RECEIVE_RATE
from tests.seeds import seeds
from uwarp.contract import RECV_WQE, Counter, EventType, Parameters, QpState
from uwarp_hdl.iwarp.receive_prefetch import (
    LARGEST_BURST,
    WQE_WORDS,
    ReceivePrefetch,
    check_depth,
    default_depth,
)
from uwarp_hdl.iwarp.receive_queue import ReceiveQueue
from uwarp_hdl.layouts import QP_ROW

PARAMETERS = Parameters(n_qp=8, n_region=8, n_tracker=2, n_closed=64, map_bits=1024)
TURN = 1 << 32
UP = (QpState.RTR, QpState.RTS)


async def pause(ctx, cycles):
    for _ in range(cycles):
        await ctx.tick()


def ring_octets(log2):
    """Octets of a receive ring, and what its address is a multiple of."""
    return max(64, RECV_WQE.size << log2)


class Ring:
    """Software's side of a receive ring. A slot holds its WQE only while that is posted.

    The bits of the address that it is given below the ring's size are taken as 0 (1.6).
    """

    def __init__(self, qpn, address, log2, state, first=0):
        self.qpn = qpn
        self.given = address
        self.address = address // ring_octets(log2) * ring_octets(log2)
        self.log2 = log2
        self.state = state
        self.producer = self.consumer = self.rung = first
        self.slots = {}

    @property
    def row(self):
        return bits_of(QP_ROW, qp_row(state=self.state, rq_addr=self.given >> 6, rq_log2=self.log2))

    def address_of(self, index):
        return self.address + RECV_WQE.size * (index % (1 << self.log2))


class QueueBench:
    """Doorbells, a host's memory, and the two units around a ReceiveQueue, all at random.

    The unit before it looks receives up and offers datagrams, some of them without a receive; the
    one behind settles each some cycles later, and may or may not consume. Rings are reset and moved
    meanwhile. ``delay`` gives the cycles from a read burst to its first word.
    """

    def __init__(self, rng, depth, *, sends, stall=0.0, delay=None, first=0, consumes=0.8):
        self.dut = ReceiveQueue(PARAMETERS, depth)
        self.rng = rng
        self.depth = depth
        self.left = sends
        self.stall = stall
        self.delay = delay or (lambda: 1 + rng.randrange(60))
        self.consumes = consumes
        self.cycle = 0
        self.top = 0x1000
        self.rings = {}
        self.by_address = {}
        self.answers = deque()
        self.favourite = 0
        self.held = None
        self.promised = None
        self.work = None
        self.last_empty = [0] * PARAMETERS.n_qp
        self.counts = dict.fromkeys(
            ("taken", "none", "retries", "resets", "errors", "bursts", "dismissed"), 0
        )
        self.lengths = set()
        self.spoiled = []
        self.told = []
        self.new_rings(first)

    def new_rings(self, first):
        for qpn in range(PARAMETERS.n_qp):
            self.new_ring(qpn, (0, 1, 2, 3, 4, 5, 6, 7)[qpn], QpState.RTS, first)

    def new_ring(self, qpn, log2, state, first=0):
        """Behind all others, at any multiple of 64 octets within a multiple of its size."""
        size = ring_octets(log2)
        self.top = (self.top // size + self.rng.randrange(1, 4)) * size
        given = self.top + 64 * self.rng.randrange(size // 64)
        self.rings[qpn] = Ring(qpn, given, log2, state, first)
        self.top += size

    def post(self, ring, number):
        for _ in range(number):
            address = ring.address_of(ring.producer)
            assert address not in self.by_address
            self.by_address[address] = ring.producer
            ring.slots[ring.producer] = {
                "addr": self.rng.getrandbits(64),
                "length": self.rng.getrandbits(32),
                "lkey": self.rng.getrandbits(32) >> self.rng.choice((0, 15, 21)),
                "error": self.rng.randrange(WQE_WORDS) if self.rng.random() < 0.05 else -1,
            }
            ring.producer = (ring.producer + 1) % TURN

    def free(self, ring):
        for index in ring.slots:
            del self.by_address[ring.address_of(index)]
        ring.slots.clear()

    async def clock(self, ctx):
        shown = None
        while True:
            index = (await ctx.tick().sample(self.dut.qp.index))[2]
            self.cycle += 1
            row = self.rings[index].row
            if shown != (shown := row):
                ctx.set(value_of(self.dut.qp.row), row)
            for qpn, ring in self.rings.items():
                promised = self.promised == qpn
                if (ring.rung - ring.consumer) % TURN in (0, promised) or ring.state not in UP:
                    self.last_empty[qpn] = self.cycle

    async def doorbells(self, ctx):
        rng = self.rng
        doorbells = self.dut.doorbells
        while self.left:
            await pause(ctx, 1 + rng.randrange(60))
            qpn = rng.randrange(PARAMETERS.n_qp)
            ring = self.rings[qpn]
            if rng.random() < 0.06:
                ring.state = QpState.RESET
                await put_stream(ctx, doorbells, [{"qpn": qpn, "index": 77, "reset": 1}])
                assert self.held != qpn and self.work != (qpn, True)
                assert all(item[1] is not ring for item in self.answers), "a read after the reset"
                self.counts["resets"] += 1
                self.free(ring)
                self.new_ring(qpn, rng.randrange(8), QpState.INIT)
                continue
            if ring.state == QpState.INIT and rng.random() < 0.5:
                ring.state = rng.choice(UP)
            room = (1 << ring.log2) - (ring.producer - ring.consumer) % TURN
            number = rng.choice((min(1, room), room // 2, room))
            self.post(ring, number)
            await put_stream(ctx, doorbells, [{"qpn": qpn, "index": ring.producer, "reset": 0}])
            ring.rung = ring.producer

    async def bursts(self, ctx):
        while True:
            burst = await take(ctx, self.dut.wqe_read.bursts, self.rng, self.stall)
            octets = 8 * (burst.beats + 1)
            assert burst.address % RECV_WQE.size == 0 and octets % RECV_WQE.size == 0
            assert burst.address // 4096 == (burst.address + octets - 1) // 4096, "over a page"
            wqes = range(burst.address, burst.address + octets, RECV_WQE.size)
            assert all(address in self.by_address for address in wqes), "beyond what is posted"
            (ring,) = (
                ring
                for ring in self.rings.values()
                if ring.address <= burst.address < ring.address + (RECV_WQE.size << ring.log2)
            )
            self.counts["bursts"] += 1
            self.lengths.add(octets // RECV_WQE.size)
            self.answers.append((self.cycle + self.delay(), ring, wqes))

    async def words(self, ctx):
        while True:
            while not self.answers or self.answers[0][0] > self.cycle:
                await ctx.tick()
            _, ring, wqes = self.answers[0]
            beats = []
            for address in wqes:
                sge = ring.slots[self.by_address[address]]
                wqe = RECV_WQE.to_int(
                    sge0_addr=sge["addr"], sge0_length=sge["length"], sge0_lkey=sge["lkey"]
                )
                beats += [
                    {"data": wqe >> 64 * i & (1 << 64) - 1, "error": i == sge["error"], "last": 0}
                    for i in range(WQE_WORDS)
                ]
            beats[-1]["last"] = 1
            if any(beat["error"] for beat in beats):
                self.spoiled.append((EventType.DMA_READ, ring.qpn))
            await put_stream(ctx, self.dut.wqe_read.beats, beats, self.rng, self.stall)
            self.answers.popleft()

    async def event_requests(self, ctx):
        while True:
            await pause(ctx, 1 + self.rng.randrange(60))
            request = await take(ctx, self.dut.event_requests)
            self.told.append((request.type, request.number))

    def pick(self):
        if self.rng.random() < 0.3:
            self.favourite = self.rng.randrange(PARAMETERS.n_qp)
        return self.favourite

    def verify(self, ring, receive, waited_since):
        """The receive that is about to be offered: everything before it is settled."""
        if not receive.available:
            is_empty = ring.rung == ring.consumer
            was_empty = self.last_empty[ring.qpn] >= waited_since - 8
            assert is_empty or was_empty, f"QP {ring.qpn} has receives"
            self.counts["none"] += 1
            return
        assert receive.index == ring.consumer & 0xFFFF, f"QP {ring.qpn}: not the oldest receive"
        sge = ring.slots[ring.consumer]
        assert receive.error == (sge["error"] >= 0)
        if not receive.error:
            assert (receive.addr, receive.length) == (sge["addr"], sge["length"])
            # Of the row all that counts is whether there is one, and which.
            rows = PARAMETERS.n_region
            row, key = divmod(sge["lkey"], 256)
            assert receive.lkey % 256 == key
            assert min(receive.lkey >> 8, rows) == min(row, rows)
        self.counts["errors"] += receive.error
        self.counts["taken"] += 1

    async def looked_up(self, ctx, qpn):
        """RECEIVE to VERDICT."""
        look = self.dut.look
        shape = look.receive.shape()
        while True:
            since = self.cycle
            ctx.set(look.lookup, 1)
            ctx.set(look.waiting, 1)
            _, _, known, bits = await ctx.tick().sample(look.known, value_of(look.receive))
            while not known:
                _, _, known, bits = await ctx.tick().sample(look.known, value_of(look.receive))
            self.held = qpn
            ctx.set(look.lookup, 0)
            ctx.set(look.waiting, 0)
            await pause(ctx, 4)
            unsettled = True
            while unsettled:
                _, _, unsettled, wrong = await ctx.tick().sample(look.unsettled, look.wrong)
            if not wrong:
                receive = shape.from_bits(bits)
                self.verify(self.rings[qpn], receive, since)
                return receive
            self.held = None
            self.counts["retries"] += 1

    async def check(self, ctx):
        rng, look = self.rng, self.dut.look
        head = self.pick()
        while self.left:
            qpn = head
            while rng.random() < 0.2:
                await ctx.tick()
            ctx.set(look.qpn, qpn)
            ctx.set(look.lookup, 1)
            await ctx.tick()
            up = self.rings[qpn].state in UP
            await ctx.tick()
            ctx.set(look.lookup, 0)
            receive = None
            if up and rng.random() < 0.9:
                receive = await self.looked_up(ctx, qpn)
            else:
                await pause(ctx, 4)
            if receive is not None and rng.random() < 0.1:  # its message is open after all
                ctx.set(look.dismiss, 1)
                await ctx.tick()
                ctx.set(look.dismiss, 0)
                self.held = receive = None
                self.counts["dismissed"] += 1
                await pause(ctx, 4)
            may_take = receive is not None and bool(receive.available) and rng.random() < 0.9
            ctx.set(look.offered, 1)
            ctx.set(look.may_take, may_take)
            if may_take:
                self.promised = qpn
            head = self.pick()
            if rng.random() < 0.7:  # the next one is there already
                ctx.set(look.qpn, head)
                ctx.set(look.lookup, 1)
            while self.work or rng.random() < 0.2:
                await ctx.tick()
            ctx.set(look.given, 1)
            await ctx.tick()
            self.work = (qpn, may_take)
            self.held = None
            self.left -= 1
            ctx.set(look.given, 0)
            ctx.set(look.offered, 0)
            ctx.set(look.lookup, 0)

    async def settle(self, ctx):
        rng = self.rng
        while True:
            while not self.work:
                await ctx.tick()
            qpn, may_take = self.work
            await pause(ctx, 1 + rng.randrange(14))
            consumes = may_take and rng.random() < self.consumes
            ctx.set(self.dut.settle, 1)
            ctx.set(self.dut.consume, consumes)
            await ctx.tick()
            ctx.set(self.dut.settle, 0)
            ctx.set(self.dut.consume, 0)
            if consumes:
                ring = self.rings[qpn]
                del self.by_address[ring.address_of(ring.consumer)]
                del ring.slots[ring.consumer]
                ring.consumer = (ring.consumer + 1) % TURN
            self.work = self.promised = None

    def run(self, prepare=None, max_cycles=200_000):
        async def drive(ctx):
            await ctx.tick().until(~self.dut.busy)
            if prepare:
                await ctx.tick().repeat(2)  # until the last index has been cleared
                prepare(ctx)
            await self.check(ctx)
            # Reads go on until all is cached, each of which may fail.
            while len(self.told) < len(self.spoiled) or self.answers:
                await ctx.tick()
            assert self.told == self.spoiled

        background = [self.clock, self.doorbells, self.bursts, self.words, self.settle]
        background.append(self.event_requests)
        run(self.dut, drive, background=background, max_cycles=max_cycles)


@pytest.mark.parametrize("seed", seeds(1, 9))
@pytest.mark.parametrize(("depth", "stall", "consumes"), [(16, 0.0, 0.95), (4, 0.3, 0.5)])
def test_at_random(seed, depth, stall, consumes):
    """Rings of 1 to 128 receives over page ends, resets with reads on their way (P24, P32, P33)."""
    rng = make_rng(300 + seed)
    bench = QueueBench(rng, depth, sends=400, stall=stall, consumes=consumes)
    bench.run()
    for name, least in (
        ("taken", 100),
        ("none", 20),
        ("retries", 5),
        ("resets", 3),
        ("errors", 1),
        ("dismissed", 10),
    ):
        assert bench.counts[name] >= least, f"{name}: {bench.counts[name]}"
    assert max(bench.lengths) == min(LARGEST_BURST, depth // 2)


def test_indices_wrap(monkeypatch):
    """At 2^32, where rings of all sizes wrap as well (P24)."""
    rng = make_rng(310)
    modules = {}
    for unit in (ReceiveQueue, ReceivePrefetch):
        elaborate = unit.elaborate

        def keep(self, platform, unit=unit, elaborate=elaborate):
            modules[unit] = elaborate(self, platform)
            return modules[unit]

        monkeypatch.setattr(unit, "elaborate", keep)
    first = TURN - 20
    bench = QueueBench(rng, 16, sends=500, first=first)

    def prepare(ctx):
        queue, prefetch = (modules[unit].submodules for unit in (ReceiveQueue, ReceivePrefetch))
        for qpn in range(PARAMETERS.n_qp):
            for rows, value in (
                (queue.producers, first),
                (queue.consumers, first),
                (queue.filled, first % 32),
                (prefetch.asked, first % 65536),
            ):
                ctx.set(rows.data[qpn], value)

    bench.run(prepare)
    assert bench.counts["taken"] > 150


def test_a_rung_ring_is_read_before_any_send():
    """As far as the cache goes; the rest in bursts when half of it has been used."""
    rng = make_rng(311)
    bench = QueueBench(rng, 16, sends=0)
    ring = bench.rings[5]  # of 32
    look = bench.dut.look

    async def drive(ctx):
        await ctx.tick().until(~bench.dut.busy)
        bench.post(ring, 32)
        await put_stream(ctx, bench.dut.doorbells, [{"qpn": 5, "index": 32, "reset": 0}])
        await pause(ctx, 400)
        bursts = bench.counts["bursts"]
        assert 2 <= bursts <= 3  # the first may end at 128 octets
        for taken in range(32):
            ctx.set(look.qpn, 5)
            ctx.set(look.lookup, 1)
            await pause(ctx, 2)
            start = bench.cycle
            receive = await bench.looked_up(ctx, 5)
            assert receive.available and receive.index == taken
            assert bench.cycle - start == 8, "waited although the WQE had time to come"
            ctx.set(look.offered, 1)
            ctx.set(look.may_take, 1)
            ctx.set(look.given, 1)
            await ctx.tick()
            bench.work = (5, True)
            ctx.set(look.given, 0)
            ctx.set(look.offered, 0)
            await pause(ctx, 80)
        assert bench.counts["bursts"] <= 10

    bench.consumes = 1
    background = [bench.clock, bench.bursts, bench.words, bench.settle, bench.event_requests]
    run(bench.dut, drive, background=background)


def test_a_send_that_waits_for_the_ring_of_a_qp_that_goes_down():
    """Its ring is not read any more: there is no receive, and no hang."""
    rng = make_rng(312)
    bench = QueueBench(rng, 16, sends=0)
    ring = bench.rings[4]
    look = bench.dut.look

    async def drive(ctx):
        await ctx.tick().until(~bench.dut.busy)
        ring.state = QpState.ERROR
        bench.post(ring, 16)
        await put_stream(ctx, bench.dut.doorbells, [{"qpn": 4, "index": 16, "reset": 0}])
        ctx.set(look.qpn, 4)
        receive = await bench.looked_up(ctx, 4)
        assert not receive.available
        assert bench.counts["bursts"] == 0
        ctx.set(look.offered, 1)
        ctx.set(look.given, 1)
        await ctx.tick()
        ctx.set(look.given, 0)
        ctx.set(look.offered, 0)
        bench.work, bench.held = (4, False), None
        await pause(ctx, 20)
        ring.state = QpState.RTR
        receive = await bench.looked_up(ctx, 4)
        assert receive.available and receive.index == 0

    background = [bench.clock, bench.bursts, bench.words, bench.settle, bench.event_requests]
    run(bench.dut, drive, background=background)


def test_depth_is_checked():
    for depth in (0, 2, 12, 2048):
        with pytest.raises(ValueError, match=f"depth is {depth}; it takes a power of two"):
            check_depth(depth)
    assert [default_depth(Parameters(n_qp=n)) for n in (4, 64, 128, 1024)] == [32, 32, 16, 8]


@pytest.mark.parametrize(
    "n_qp, read_delay",
    [
        (1, 234),
        (16, 156),
        pytest.param(1, 156, marks=pytest.mark.soak),
        pytest.param(16, 590, marks=pytest.mark.soak),
    ],
)
def test_rate(n_qp, read_delay):
    """11 cycles a Send of one octet, from one QP and from 16 in turn: less than on the wire.

    The host takes 1 us to answer a write, and to answer a read 1 or 1.5 us; for several QPs, whose
    shares of the cache add up, also what it takes when all that the payload reader asks for is
    ahead.
    """
    rng = make_rng(320)
    region = Region(key=0x11, base_to=0x10000, length=0x10000, dma_addr=0x20000)
    regions = [region] + [Region(valid=0)] * 7
    qps = [qp_row(recv_cq=qpn, rq_addr=qpn << 6, rq_log2=7) for qpn in range(16)]
    ring = [{"addr": 0x10000 + 64 * i, "length": 64, "lkey": 0x11} for i in range(128)]
    bench = ReceiverBench(
        RECEIVE_RATE, qps, regions, dict.fromkeys(range(n_qp), ring), set(), rng,
        delay=lambda: 156, wqe_delay=lambda: read_delay,
    )  # fmt: skip
    number = 300
    items = [(datagram(0x3, 1, qpn=i % n_qp, msn=i), rng.randbytes(1))
             for i in range(number)]  # fmt: skip
    rule = Rule(RECEIVE_RATE, qps, regions, {qpn: ring * 4 for qpn in range(n_qp)}, set())
    for item in items:
        rule.datagram(*item)
    cycles = []

    async def post_again(ctx):
        producers = [128] * n_qp
        seen = 0
        while True:
            await ctx.tick()
            for completion in bench.completed[seen:]:
                seen += 1
                qpn = completion.cqe.qpn
                producers[qpn] += 1
                if producers[qpn] % 8 == 0:
                    doorbell = {"qpn": qpn, "index": producers[qpn], "reset": 0}
                    await put_stream(ctx, bench.dut.doorbells, [doorbell])

    async def drive(ctx):
        await bench.ring(ctx)
        await pause(ctx, read_delay + 32 * n_qp)
        await bench.give(ctx, items[:1])
        start = bench.cycle
        await bench.give(ctx, items[1:])
        cycles.append(bench.cycle - start)
        await bench.settle(ctx)

    bench.background.append(post_again)
    bench.run(drive)
    assert [c.name for c in bench.outcomes] == [c.name for c in rule.outcomes]
    assert [(c.cq, c.cqe.wqe_index) for c in bench.completed] == [
        (c.cq, c.cqe["wqe_index"]) for c in rule.completed
    ]
    assert bench.memory.octets == rule.memory
    print(f"{cycles[0] / number:.2f} cycles a Send")
    assert cycles[0] <= 11 * number, f"{cycles[0] / number:.2f} cycles a Send"


@pytest.mark.parametrize("reason", ["short", "late", "full"])
def test_rate_of_sends_that_leave_the_receive_posted(reason):
    """A flood of them does not hold up what comes behind: the guess follows them (P30)."""
    rng = make_rng(330)
    region = Region(key=0x11, base_to=0x10000, length=0x10000, dma_addr=0x20000)
    qps = [qp_row(recv_cq=0, rq_addr=0, rq_log2=2), *[qp_row()] * 15]
    sge = {"addr": 0x10000, "length": 64, "lkey": 0x11}
    full = {0} if reason == "full" else set()
    regions = [region] + [Region(valid=0)] * 7
    bench = ReceiverBench(RECEIVE_RATE, qps, regions, {0: [sge] * 4}, full, rng)
    length = 65 if reason == "short" else 8
    number = 100
    items = [(datagram(0x3, 8, msn=1), rng.randbytes(8))]
    items += [
        (datagram(0x3, length, msn=1 if reason == "late" else 2 + i), rng.randbytes(length))
        for i in range(number)
    ]
    items.append((datagram(0x3, 8, msn=500), rng.randbytes(8)))
    cycles = []

    async def drive(ctx):
        await bench.ring(ctx)
        await pause(ctx, 60)
        await bench.give(ctx, items[:1])
        start = bench.cycle
        await bench.give(ctx, items[1:])
        cycles.append(bench.cycle - start)
        await bench.settle(ctx)

    bench.run(drive)
    drop = {
        "short": Counter.DROP_RECEIVE_SHORT,
        "late": Counter.DROP_LATE,
        "full": Counter.DROP_CQ_FULL,
    }[reason]
    around = drop if reason == "full" else Counter.RX_PLACED
    assert bench.outcomes == [around, *[drop] * number, around]
    if reason != "full":
        assert [c.cqe.wqe_index for c in bench.completed] == [0, 1]
    print(f"{cycles[0] / number:.2f} cycles a Send")
    assert cycles[0] <= 12 * number, f"{cycles[0] / number:.2f} cycles a Send"
