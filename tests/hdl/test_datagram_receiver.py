"""The receive side end to end, against the rule (P3, P20 to P30, P33)."""

from itertools import pairwise

import pytest
from receive_bench import make_rng, put_stream
from receive_rule import Region, Rule
from receiver_bench import ReceiverBench, datagram, qp_row

from sim_tb.units import RECEIVE
from tests.seeds import seeds
from uwarp.contract import Access, CloseTarget, Counter, Parameters, QpState, Status

PARAMETERS = RECEIVE
TOP = 1 << 64
LOCAL, REMOTE = int(Access.LOCAL_WRITE), int(Access.REMOTE_WRITE)
FULL_CQ = 3
MAPPED = 0xFFFF << 32
PREFIX = 0x20010DB8 << 96
#: Senders, of which some differ in one bit only, wherever it is.
SENDERS = (
    MAPPED | 0x0A000001,
    MAPPED | 0x0A000002,
    0x0A000001,
    PREFIX | MAPPED | 0x0A000001,
    PREFIX | 1 << 127 | MAPPED | 0x0A000001,
)


def make_qps():
    """QP 3 listens to port 4000 of the senders in 2001::/16 only."""
    return [
        qp_row(recv_cq=0, rq_addr=0x0000 >> 6, rq_log2=5),
        qp_row(recv_cq=1, rq_addr=0x1000 >> 6, state=QpState.RTR, opcodes=0b0101000000001001),
        qp_row(recv_cq=2, rq_addr=0x2000 >> 6, state=QpState.INIT, peer_port=1),
        qp_row(recv_cq=FULL_CQ, rq_addr=0x3000 >> 6, pd=1, peer_ip=PREFIX,
               peer_mask=0xFFFF << 112, peer_port=4000),
    ]  # fmt: skip


def make_regions():
    return [
        Region(mapped=1, key=0x11, base_to=0x10000, length=0x4000, dma_addr=0x20000,
               map_addr=0x1000, map_base=0),
        Region(mapped=1, key=0x22, granule_log2=8, base_to=TOP - 0x8000, length=0x8000,
               dma_addr=0x40003, map_addr=0x2008, map_base=256),
        Region(key=0x33, base_to=0xFFFFFFF3, length=0x3001, dma_addr=0x61001),
        Region(key=0x44, access=LOCAL, base_to=0, length=0x1000, dma_addr=0x70000),
        Region(key=0x55, pd=2, base_to=0, length=0x1000, dma_addr=0x80000),
        Region(valid=0, key=0x66, base_to=0, length=0x1000),
        Region(mapped=1, key=0x77, base_to=0x500000, length=0x8000, dma_addr=0x90004,
               map_addr=0x3000, map_base=1024),
        Region(key=0x88, access=REMOTE, base_to=1 << 40, length=5 << 32, dma_addr=1 << 50),
    ]  # fmt: skip


def stag_of(regions, index):
    return index << 8 | regions[index].key


class Traffic:
    """Random messages whose datagrams are lost, doubled, shuffled, cut wrongly and contradicted."""

    def __init__(self, rng, regions):
        self.rng = rng
        self.regions = regions
        self.msn = 0xFFFFFFF0

    def name(self):
        self.msn = self.msn + 1 & 0xFFFFFFFF
        return {
            "qpn": self.rng.choices((0, 1, 2, 3), (10, 3, 1, 1))[0],
            "source_ip": self.rng.choices(SENDERS, (8, 3, 1, 2, 1))[0],
            "source_port": self.rng.choice((4000, 4001)),
            "msn": self.rng.choice((self.msn, self.msn, self.msn, self.rng.randrange(3))),
            "immediate_valid": self.rng.randrange(2),
            "solicited": self.rng.randrange(2),
            "immediate": self.rng.getrandbits(32),
        }

    def message(self):
        rng = self.rng
        kind = rng.choices(
            ("record", "single", "write", "send", "sends", "empty"), (8, 3, 2, 3, 7, 1)
        )[0]
        if kind == "send":
            return self.send()
        if kind == "sends":
            return self.sends()
        index = rng.choices(range(8), (8, 6, 2, 1, 1, 1, 6, 1))[0]
        region = self.regions[index]
        length = {
            "record": rng.choice((100, 400, 700, 1500, 3000)),
            "empty": 0,
        }.get(kind, rng.choice((1, 8, 40, 200)))
        length = min(length, region.length)
        room = region.length - length
        where = rng.choice((0, room, rng.randrange(room + 1), rng.randrange(0, room + 1) & ~0x3F))
        base = region.base_to + where
        if rng.random() < 0.05:  # one octet out of bounds, either way
            base += rng.choice((-1, 1)) + rng.choice((-where, room - where))
        stag = index << 8 | region.key
        if rng.random() < 0.03:
            stag ^= rng.choice((1, 0x80, 0x800, 0x800000))
        if kind == "write":
            return [self.wrap(datagram(0x0, length, stag=stag, **self.name() | {"msn": 0}), base)]
        name = self.name()
        if kind != "record":
            return [self.wrap(datagram(0xC, length, stag=stag, **name), base)]
        if rng.random() < 0.85:
            size = 1 << region.granule_log2
            cut = rng.choice((size, 2 * size, 5 * size))
            first = cut - (base - region.base_to) % size
        else:  # a foreign sender
            cut = rng.choice((100, 333))
            first = rng.randrange(1, cut + 1)
        cuts = [0, *range(min(first, length), length, cut), length]
        segments = []
        for start, stop in pairwise(cuts):
            fields = datagram(0xC, stop - start, stag=stag, **name | {"mo": start, "mlen": length})
            if rng.random() < 0.02:
                fields[rng.choice(("mo", "mlen", "to", "stag"))] ^= 1 << rng.randrange(32)
            segments.append(self.wrap(fields, base + start))
        return segments

    def send(self):
        rng = self.rng
        opcode = rng.choice((0x3, 0x3, 0x5, 0xE))
        length = rng.choice((0, 1, 63, 64, 200, 600))
        name = self.name() | {"immediate": rng.getrandbits(32) if opcode == 0xE else 0}
        fields = datagram(opcode, length, **name)
        if rng.random() < 0.1:
            fields[rng.choice(("qn", "mo", "mlen"))] += rng.randrange(1, 3)
        return [(fields, rng.randbytes(length))]

    def sends(self):
        """A Send of several datagrams, cut where granules end or anywhere."""
        rng = self.rng
        opcode = rng.choice((0x3, 0x3, 0x5, 0xE))
        length = rng.choice((65, 128, 500, 600, 900))
        cut = rng.choice((64, 64, 128, 256, 100))
        name = self.name() | {"qpn": rng.choices((0, 1), (9, 1))[0]}
        name |= {"immediate": rng.getrandbits(32) if opcode == 0xE else 0}
        segments = []
        for start in range(0, length, cut):
            octets = min(cut, length - start)
            fields = datagram(opcode, octets, **name | {"mo": start, "mlen": length})
            if rng.random() < 0.03:
                fields[rng.choice(("qn", "mo", "mlen"))] += rng.randrange(1, 3)
            segments.append((fields, rng.randbytes(octets)))
        if rng.random() < 0.2:  # without payload, anywhere in the message
            mo = rng.choice((0, rng.randrange(length), length))
            empty = datagram(opcode, 0, **name | {"mo": mo, "mlen": length})
            segments.insert(rng.randrange(len(segments) + 1), (empty, b""))
        return segments

    def wrap(self, fields, to):
        fields["to"] = to % TOP ^ fields["to"]
        return fields, self.rng.randbytes(fields["payload_length"])

    def stream(self, number):
        """Datagrams of several messages at a time."""
        rng = self.rng
        going = []
        result = []
        while len(result) < number:
            while len(going) < 5:
                segments = self.message()
                if rng.random() < 0.3 and len(segments) > 1:
                    segments.pop(rng.randrange(len(segments)))
                if rng.random() < 0.5:
                    rng.shuffle(segments)
                segments += rng.sample(segments, rng.choice((0, 0, min(2, len(segments)))))
                going.append(segments)
            mine = rng.choice(going)
            fields, octets = mine.pop(0)
            offset = rng.randrange(8)
            result.append((fields | {"payload_offset": offset}, octets))
            if not mine:
                going.remove(mine)
        return result


def make_receives(rng, regions, number):
    """Posted receives, some of which no Send may use."""

    def sge():
        index = rng.choices((0, 1, 2, 3, 4, 5, 6, 7), (12, 8, 1, 1, 2, 1, 9, 1))[0]
        region = regions[index]
        length = rng.choices((0, 64, 600, 1000), (1, 1, 4, 16))[0]
        addr = region.base_to + rng.randrange(region.length - length + 1)
        if rng.random() < 0.93:
            addr &= -1 << region.granule_log2
        if rng.random() < 0.06:
            addr = region.base_to + region.length - length + 1
        return {"addr": addr, "length": length, "lkey": stag_of(regions, index)}

    return {0: [sge() for _ in range(number)], 1: [sge() for _ in range(5)], 3: [sge()]}


def check(bench, rule):
    outcomes = [Counter(counter).name for counter in bench.outcomes]
    expected = [counter.name for counter in rule.outcomes]
    for i, (got, want) in enumerate(zip(outcomes, expected, strict=False)):
        assert got == want, f"datagram {i}: {got}, not {want}"
    assert len(outcomes) == len(expected)
    for i, (got, want) in enumerate(zip(bench.completed, rule.completed, strict=False)):
        assert got.cq == want.cq, f"completion {i}"
        for name, _ in got.cqe.shape():
            value = getattr(got.cqe, name)
            assert value == want.cqe.get(name, 0), (
                f"completion {i}: {name} is {value:#x}, not {want.cqe.get(name, 0):#x}: {want.cqe}"
            )
    assert len(bench.completed) == len(rule.completed)
    assert bench.memory.octets == rule.memory
    assert bench.map_memory.octets == rule.map_memory
    assert bench.reserved == sum(tracker is not None for tracker in rule.trackers)


def run_against_rule(bench, rule, items, max_cycles=100_000):
    """All datagrams at one tick; then every open message times out."""
    for fields, octets in items:
        rule.datagram(fields, octets)

    def in_memory(completion):
        want = rule.completed[len(bench.completed) - 1]
        assert bench.memory.answered >= want.after, "CQE before its payload"
        assert bench.map_memory.answered >= want.after_map, "CQE before its map"

    bench.on_completion = in_memory

    async def drive(ctx):
        await bench.ring(ctx)
        await bench.give(ctx, items)
        await bench.settle(ctx, sum(tracker is not None for tracker in rule.trackers))
        check(bench, rule)
        bench.on_completion = lambda completion: None
        bench.set_tick(ctx, 30000)
        await bench.settle(ctx)
        # Which of those that expire at once closes first is not said.
        for completion in bench.completed[len(rule.completed) :]:
            rule.expire(30000, completion.cqe)
        rule.expire(30000)
        check(bench, rule)

    bench.run(drive, max_cycles)


@pytest.mark.parametrize("seed", seeds(1, 9))
@pytest.mark.parametrize("stall", [pytest.param(0.0, marks=pytest.mark.soak), 0.3])
def test_random_traffic(seed, stall):
    rng = make_rng(100 + seed)
    regions = make_regions()
    receives = make_receives(rng, regions, 30)
    bench = ReceiverBench(PARAMETERS, make_qps(), regions, receives, {FULL_CQ}, rng, stall)
    rule = Rule(PARAMETERS, make_qps(), regions, receives, {FULL_CQ})
    items = Traffic(rng, regions).stream(200)
    run_against_rule(bench, rule, items)


def one_region(**fields):
    region = Region(mapped=1, key=0x11, base_to=0x10000, length=0x10000, dma_addr=0x20000,
                    map_addr=0x1000)  # fmt: skip
    for name, value in fields.items():
        setattr(region, name, value)
    return region


def small_bench(rng, region=None, parameters=PARAMETERS, **options):
    regions = [region or one_region()] + [Region(valid=0)] * 7
    qps = make_qps()
    rule = Rule(parameters, qps, regions, {}, {FULL_CQ})
    return ReceiverBench(parameters, qps, regions, {}, {FULL_CQ}, rng, **options), rule


def record(rng, msn, mo, length, mlen, base=0x10000, qpn=0):
    fields = datagram(0xC, length, qpn=qpn, msn=msn, mo=mo, mlen=mlen, stag=0x11, to=base + mo)
    if qpn == 3:
        fields["source_ip"] = SENDERS[3]
    return fields, rng.randbytes(length)


@pytest.mark.parametrize(("length", "segments"), [(0, 1), (1, 1), (64, 1), (64, 3)])
def test_open_messages_tell_of_a_message_until_its_completion_leaves(length, segments):
    """Without a gap: who waits for 0, to take the memory away, reads it in any one cycle."""
    rng = make_rng(60 + length + segments)
    bench, _ = small_bench(rng)
    told = []

    async def watch(ctx):
        while True:
            told.append((await ctx.tick().sample(bench.dut.open_messages))[2])

    async def drive(ctx):
        mlen = segments * length
        items = [record(rng, 1, n * length, length, mlen) for n in range(segments)]
        await bench.ring(ctx)
        await bench.give(ctx, items)
        await bench.settle(ctx)

    bench.background.append(watch)
    bench.run(drive)
    assert len(bench.completed) == 1
    open_in = [cycle for cycle, count in enumerate(told) if count]
    gaps = set(range(open_in[0], open_in[-1])).difference(open_in)
    assert not gaps, f"none is told of in cycles {sorted(gaps)} of {open_in[0]} to {open_in[-1]}"


@pytest.mark.parametrize("kind", ["record", "send"])
def test_timeout(kind):
    """A message closes as partial when it has been silent for its timeout, not a tick before; a
    duplicate puts it off (P22). Its late segments are dropped until it is forgotten (P21)."""
    rng = make_rng(20)
    bench, rule = small_bench(rng)
    for rows in (bench.qps, rule.qps):
        rows[0]["timeout"] = 100
    start = 65500  # the tick number wraps meanwhile
    if kind == "send":
        bench.receives = rule.receives = {0: posted_sends(rng, 2)}
        first, *_, last = cut_send(rng, 7, 200)
    else:
        first = record(rng, 7, 0, 64, 200)
        last = record(rng, 7, 192, 8, 200)

    async def drive(ctx):
        await bench.ring(ctx)

        async def at(tick, *items):
            bench.set_tick(ctx, tick)
            await ctx.tick().repeat(PARAMETERS.n_tracker + 64)
            rule.expire(tick)
            for item in items:
                rule.datagram(*item, tick)
            await bench.give(ctx, items)
            await bench.settle(ctx, sum(tracker is not None for tracker in rule.trackers))
            check(bench, rule)

        await at(start, first)
        await at(start + 99, first)  # counts from here again
        await at(start + 198)
        assert not bench.completed
        await at(start + 199)
        assert [c.cqe.status for c in bench.completed] == [Status.PARTIAL]
        await at(start + 298, last)
        assert bench.outcomes[-1] == Counter.DROP_LATE
        await at(start + 299, last)
        assert bench.outcomes[-1] == Counter.RX_PLACED
        await at(start + 399)
        assert len(bench.completed) == 2

    bench.run(drive)


def test_old_names_are_forgotten_before_the_tick_number_wraps():
    rng = make_rng(21)
    bench, _ = small_bench(rng)
    single = record(rng, 5, 0, 64, 64)

    async def drive(ctx):
        await bench.give(ctx, [single])
        await bench.settle(ctx)
        bench.set_tick(ctx, 1 << 15)
        await ctx.tick().repeat(2 * 16 * PARAMETERS.n_closed)
        bench.set_tick(ctx, (1 << 16) + 5)
        await bench.give(ctx, [single])
        await bench.settle(ctx)

    bench.run(drive)
    assert bench.outcomes == [Counter.RX_PLACED] * 2


def test_the_segment_right_behind_the_last_is_late():
    """Duplicates and a new message in the same place, without a pause between them (P20, P21)."""
    rng = make_rng(22)
    bench, rule = small_bench(rng)
    items = []
    for msn in range(12):
        mlen = rng.choice((128, 192, 1000))
        segments = [record(rng, msn, mo, min(64, mlen - mo), mlen) for mo in range(0, mlen, 64)]
        items += segments + segments[-1:] + segments[:1]
    run_against_rule(bench, rule, items)
    assert bench.outcomes.count(Counter.DROP_LATE) == 24
    assert {c.cqe.status for c in bench.completed} == {Status.SUCCESS}


def test_a_new_message_closes_the_ones_it_overlaps():
    """A retransmission under a new MSN (P26); neighbours in one granule are left alone (P25)."""
    rng = make_rng(23)
    bench, rule = small_bench(rng)
    items = [
        record(rng, 1, 0, 64, 1000),
        record(rng, 1, 512, 64, 1000),
        record(rng, 2, 0, 24, 1000, base=0x10000 + 1000),  # from the granule where 1 ends
        record(rng, 3, 64, 64, 1000),  # closes 1
        record(rng, 1, 128, 64, 1000),  # late
        record(rng, 3, 448, 64, 1000),
        record(rng, 4, 0, 40, 40, base=0x10000 + 980),  # a single, closes 3 and 2
        record(rng, 5, 0, 64, 300, base=0x10000 + 64 * 50, qpn=3),  # CQ full
        record(rng, 6, 0, 64, 300, base=0x10000 + 64 * 40),
        record(rng, 7, 0, 64, 300, base=0x10000 + 64 * 40, qpn=3),  # CQ full, yet closes 6
    ]
    run_against_rule(bench, rule, items)
    assert [c.cqe.msn for c in bench.completed] == [1, 3, 2, 4, 6]


def test_more_messages_than_trackers():
    """Two first segments find no tracker and complete by themselves."""
    rng = make_rng(24)
    bench, rule = small_bench(rng)
    items = [
        record(rng, msn, mo, 64, 128, base=0x10000 + 256 * msn)
        for mo in (0, 64)
        for msn in range(PARAMETERS.n_tracker + 2)
    ]
    run_against_rule(bench, rule, items)
    assert sum(bool(c.cqe.flags & 8) for c in bench.completed) == 2


def test_a_map_of_many_words():
    """Longer than the queue between map and memory, and than a burst; granules at random."""
    rng = make_rng(25)
    parameters = Parameters(n_qp=4, n_region=8, n_tracker=4, n_closed=16, map_bits=16384)
    region = one_region(length=64 * 16384)
    bench, rule = small_bench(rng, region, parameters)
    mlen = 64 * 12000
    items = [record(rng, 9, 64 * rng.randrange(11900), 64, mlen) for _ in range(40)]
    items.append(record(rng, 10, 0, 64, 128))  # closes it
    items.append(record(rng, 10, 64, 64, 128))
    run_against_rule(bench, rule, items)
    assert bench.completed[0].cqe.status == Status.PARTIAL


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        pytest.param("single", 10, marks=pytest.mark.soak),
        ("single beside open", 10),
        ("open", 10),
        ("send", 12),
    ],
)
def test_rate_with_a_slow_host(kind, least):
    """Datagrams of 64 octets at 10 or 12 cycles each, while the host takes 1 us to answer a
    write; singles also while all trackers are open, for which it takes longest to find overlaps."""
    rng = make_rng(26)
    bench, rule = small_bench(rng, delay=lambda: 156)
    number = 200
    begun = []
    if kind.startswith("single"):
        items = [record(rng, i, 0, 8, 8, base=0x10000 + 64 * i) for i in range(number)]
        if kind == "single beside open":
            begun = [
                record(rng, 1000 + i, 0, 64, 128, base=0x18000 + 256 * i)
                for i in range(PARAMETERS.n_tracker)
            ]
    elif kind == "send":
        sge = {"addr": 0x10000, "length": 0x10000, "lkey": 0x11}
        bench.receives = rule.receives = {0: [sge]}
        items = [send(rng, 1, 64, mo=64 * i, mlen=64 * 1000) for i in range(number)]
    else:
        items = [record(rng, 1, 64 * i, 64, 64 * 1000) for i in range(number)]
    for item in begun + items:
        rule.datagram(*item)
    cycles = []

    async def drive(ctx):
        await bench.ring(ctx)
        await ctx.tick().until(~bench.dut.busy)
        await bench.give(ctx, begun + items[:1])
        start = bench.cycle
        await bench.give(ctx, items[1:])
        cycles.append(bench.cycle - start)
        await bench.settle(ctx, len(begun) if kind.startswith("single") else 1)
        check(bench, rule)

    bench.run(drive)
    print(f"{cycles[0] / number:.2f} cycles a datagram")
    assert cycles[0] <= least * number, f"{cycles[0] / number} cycles a datagram"
    assert bench.memory.max_unanswered >= 16 or not kind.startswith("single")


def send(rng, msn, length, **fields):
    return datagram(0x3, length, msn=msn, **fields), rng.randbytes(length)


def test_a_receive_whose_wqe_cannot_be_read():
    """It counts as not allowed, and is used up; an empty Send needs no SGE."""
    rng = make_rng(27)
    bench, _ = small_bench(rng)
    good = {"addr": 0x10000, "length": 100, "lkey": 0x11}
    bench.receives = {0: [good | {"error": 1}, good | {"error": 3}, good]}

    async def drive(ctx):
        await bench.ring(ctx)
        await bench.give(ctx, [send(rng, 1, 40), send(rng, 2, 0), send(rng, 3, 40)])
        await bench.settle(ctx)

    bench.run(drive)
    assert bench.outcomes == [
        Counter.DROP_RECEIVE_PROTECTION,
        Counter.RX_PLACED,
        Counter.RX_PLACED,
    ]
    assert [(c.cqe.status, c.cqe.wqe_index, c.cqe.valid) for c in bench.completed] == [
        (Status.LOC_PROT_ERR, 0, 0),
        (Status.SUCCESS, 1, 0),
        (Status.SUCCESS, 2, 40),
    ]


def test_a_reset_empties_the_receive_ring():
    """Producer and consumer start again at 0, on a ring that had wrapped (P24, P32)."""
    rng = make_rng(28)
    bench, _ = small_bench(rng)
    bench.qps[0]["rq_log2"] = 1
    bench.receives = {0: [{"addr": 0x10000 + 64 * i, "length": 64, "lkey": 0x11} for i in range(2)]}
    doorbells = bench.dut.doorbells

    async def drive(ctx):
        await bench.ring(ctx)
        await bench.give(ctx, [send(rng, msn, 8) for msn in range(3)])
        await bench.settle(ctx)
        await put_stream(ctx, doorbells, [{"qpn": 0, "index": 3, "reset": 0}])
        await bench.give(ctx, [send(rng, msn, 8) for msn in range(3, 5)])
        await bench.settle(ctx)
        await put_stream(ctx, doorbells, [{"qpn": 0, "index": 9, "reset": 1}])
        await bench.give(ctx, [send(rng, 5, 8)])
        await bench.settle(ctx)
        await put_stream(ctx, doorbells, [{"qpn": 0, "index": 1, "reset": 0}])
        await bench.give(ctx, [send(rng, 6, 8)])
        await bench.settle(ctx)

    bench.run(drive)
    placed, empty = Counter.RX_PLACED, Counter.DROP_NO_RECEIVE
    assert bench.outcomes == [placed, placed, empty, placed, empty, empty, placed]
    assert [c.cqe.wqe_index for c in bench.completed] == [0, 1, 2, 0]


def test_peer_filter():
    """Each bit of mask, address and port; the QP's state goes before it, the opcode after."""
    rng = make_rng(30)
    peer = rng.getrandbits(128)
    qps = [
        qp_row(peer_ip=peer, peer_mask=TOP * TOP - 1, opcodes=1),
        qp_row(peer_ip=peer, peer_mask=sum(1 << i for i in range(0, 128, 3)), peer_port=0x8001),
        qp_row(peer_ip=peer, peer_port=4000, state=QpState.ERROR),
        qp_row(peer_ip=peer, peer_port=1),
    ]
    regions = [Region(valid=0)] * 8
    rule = Rule(PARAMETERS, qps, regions)
    bench = ReceiverBench(PARAMETERS, qps, regions, {}, set(), rng)
    items = []

    def case(qpn, source, port, opcode=0x0):
        items.append((datagram(opcode, 0, qpn=qpn, source_ip=source, source_port=port), b""))

    for bit in (*range(128), None):
        source = peer if bit is None else peer ^ 1 << bit
        case(0, source, 4000)
        case(1, source, 0x8001)
    for port in (0x8001, 0x8000, 1, 0, 0x8003):
        case(1, peer, port)
        case(0, peer, port)
    for source in (peer, 0, ~peer % (TOP * TOP)):
        for port in (1, 4000, 0):
            case(3, source, port)
            case(2, source, port)
    case(0, peer, 1, opcode=0xC)
    case(0, peer ^ 1, 1, opcode=0xC)
    run_against_rule(bench, rule, items)
    assert bench.outcomes[:258].count(Counter.RX_PLACED) == 1 + 128 - 43 + 1
    assert bench.outcomes[-2:] == [Counter.DROP_QP_OPCODE, Counter.DROP_PEER]


def test_every_reason_to_drop():
    """Each check at its edges, and faults together: the first one counts (P27 to P30)."""
    rng = make_rng(29)
    regions = make_regions()
    sge = {"addr": 0x500000, "length": 64, "lkey": stag_of(regions, 6)}
    no_map = {"addr": 0, "length": 64, "lkey": stag_of(regions, 3)}
    receives = {
        0: [no_map, sge | {"addr": 0x500020}, sge | {"lkey": stag_of(regions, 6) ^ 1}]
        + [sge | {"addr": 0x500000 + 64 * i} for i in range(5)],
        3: [sge],
    }
    bench = ReceiverBench(PARAMETERS, make_qps(), regions, receives, {FULL_CQ}, rng)
    bench.background.append(bench.reads)
    rule = Rule(PARAMETERS, make_qps(), regions, receives, {FULL_CQ})
    items = []

    def case(opcode, length, **fields):
        fields.setdefault("msn", len(items) % 256)
        items.append((datagram(opcode, length, **fields), rng.randbytes(length)))

    for index, region in enumerate(regions):
        stag, end = stag_of(regions, index), region.base_to + region.length
        for opcode in (0x0, 0xC):
            for to in (region.base_to, region.base_to - 1, end - 16, end - 15, end):
                case(opcode, 16, stag=stag, to=to % TOP)
                case(opcode, 0, stag=stag, to=to % TOP)
            case(opcode, 16, stag=stag ^ 1, to=region.base_to)
            case(opcode, 16, stag=stag + 0x800, to=region.base_to)
        mo = region.base_to + 1
        if mo < 1 << 32:  # the message would begin before 0
            case(0xC, 8, stag=stag, to=region.base_to, mo=mo, mlen=mo + 8)
        case(0xC, 8, stag=stag, to=region.base_to, mo=0xFFFFFFF8, mlen=0xFFFFFFFF)
        case(0xC, 8, stag=stag, to=region.base_to + 8, mo=8, mlen=15)
        case(0xC, 8, stag=stag, to=end - 8, mlen=9)
        case(0xC, 8, stag=stag, to=end - 8, mo=0, mlen=0xFFFFFFFF)
    case(0xC, 16, qpn=2, stag=0xFFFFFFFF)
    regions[0].access |= Access.REMOTE_READ
    bench.regions[0] = regions[0].row()
    for number in range(PARAMETERS.n_read + 1):
        case(0x1, 0, qn=1, mlen=1, stag=stag_of(regions, 0), to=0x10000 + number)
    case(0x3, 8, group=1, own=1, source_port=0)
    for opcode in (0x3, 0x5, 0xE):
        case(opcode, 8, qpn=1)
        case(opcode, 8, qpn=2, qn=1)
        case(opcode, 8, qn=1, mlen=4)
        case(opcode, 8, mo=1, mlen=8)
        case(opcode, 8, mlen=9)
        case(opcode, 65)
        case(opcode, 0, qpn=3)
        case(opcode, 0, qpn=3, source_ip=SENDERS[3])
    case(0x3, 64, msn=300)
    case(0x3, 64, msn=300)
    case(0x3, 8, msn=301, mlen=64)  # SGE not aligned
    case(0x3, 0, msn=301, mlen=0)
    case(0x3, 0, msn=302, mo=64, mlen=64)  # SGE not allowed
    for number in range(5):
        case(0x3, 8, msn=310 + number, mo=8, mlen=60)
    case(0x3, 8, msn=310, mo=16, mlen=59)
    case(0x3, 60, msn=312, mlen=60)
    case(0x3, 60, msn=312, mlen=60)
    run_against_rule(bench, rule, items)
    reasons = {counter for counter in Counter if counter.name.startswith("DROP_")}
    missing = {c for c in reasons if c >= Counter.DROP_QP_STATE} - set(bench.outcomes)
    assert not missing


def posted_sends(rng, number, length=1000):
    """Receives of ``length`` octets, one behind the other in steps of 1024."""
    return [{"addr": 0x10000 + 1024 * i, "length": length, "lkey": 0x11} for i in range(number)]


def cut_send(rng, msn, mlen, cut=64, opcode=0x3, **fields):
    return [
        (
            datagram(opcode, min(cut, mlen - mo), msn=msn, mo=mo, mlen=mlen, **fields),
            rng.randbytes(min(cut, mlen - mo)),
        )
        for mo in range(0, mlen, cut)
    ]


@pytest.mark.parametrize("stall", [pytest.param(0.0, marks=pytest.mark.soak), 0.3])
def test_sends_of_several_peers_interleaved(stall):
    """Each finds its own receive, whatever is lost, doubled or out of order; a message too many
    finds no tracker and leaves its receive to others (P20 to P23, P30)."""
    rng = make_rng(40)
    bench, rule = small_bench(rng, stall=stall)
    bench.receives = rule.receives = {0: posted_sends(rng, 32)}
    going, items, peers = [], [], {}
    while len(items) < 200:
        while len(going) < 5:
            peer = rng.choice(SENDERS), rng.choice((4000, 4001))
            peers[peer] = number = peers.get(peer, 0) + 1
            # Pairs of names with one digest.
            msn = number // 2 ^ (0x01000001 if number % 2 else 0)
            opcode = rng.choice((0x3, 0x5, 0xE))
            segments = cut_send(
                rng, msn, rng.choice((100, 128, 400, 900)), rng.choice((64, 128)), opcode,
                source_ip=peer[0], source_port=peer[1], solicited=rng.randrange(2),
                immediate_valid=rng.randrange(2), immediate=rng.getrandbits(32),
            )  # fmt: skip
            if rng.random() < 0.3 and len(segments) > 1:
                segments.pop(rng.randrange(len(segments)))
            if rng.random() < 0.5:
                rng.shuffle(segments)
            if rng.random() < 0.3:
                segments.append(rng.choice(segments))
            going.append(segments)
        mine = rng.choice(going)
        items.append(mine.pop(0))
        going = [segments for segments in going if segments]
    run_against_rule(bench, rule, items)
    assert Counter.DROP_LATE in bench.outcomes
    assert Counter.DROP_NO_TRACKER in bench.outcomes
    statuses = [completion.cqe.status for completion in bench.completed]
    assert statuses.count(Status.SUCCESS) >= 8 and statuses.count(Status.PARTIAL) >= 4


def test_a_send_in_place_of_others():
    """Its SGE overlaps what is open: that closes, but only if the Send has its CQ slot."""
    rng = make_rng(41)
    bench, rule = small_bench(rng)
    sges = posted_sends(rng, 6)
    for number, octets in enumerate((0, 512, 0, 2048, 2048)):
        sges[number]["addr"] = 0x10000 + octets
    bench.receives = rule.receives = {0: sges, 3: sges[:1]}
    peer = {"qpn": 3, "source_ip": SENDERS[3]}
    items = [
        record(rng, 1, 0, 64, 1000),
        cut_send(rng, 9, 600, **peer)[0],  # CQ full: nothing closes
        cut_send(rng, 1, 512)[0],  # closes the record of the same name but for its kind
        cut_send(rng, 2, 600)[1],  # from where that ends
        record(rng, 3, 0, 64, 64),  # a single, closes Send 1
        cut_send(rng, 1, 512)[1],  # late
        cut_send(rng, 4, 600)[3],  # closes Send 2
        cut_send(rng, 2, 600)[2],
        *cut_send(rng, 5, 600)[:3],
        cut_send(rng, 6, 600)[1],  # closes Send 5
        *cut_send(rng, 4, 600),
    ]
    run_against_rule(bench, rule, items)
    assert [(c.cqe.opcode, c.cqe.msn) for c in bench.completed] == [
        (0xC, 1), (0x3, 1), (0xC, 3), (0x3, 2), (0x3, 5), (0x3, 4), (0x3, 6),
    ]  # fmt: skip


def test_an_open_send_keeps_to_its_region_as_it_was():
    """Its row is written again meanwhile: nothing more is checked, nothing goes elsewhere."""
    rng = make_rng(42)
    bench, rule = small_bench(rng)
    bench.receives = rule.receives = {0: posted_sends(rng, 1)}
    segments = cut_send(rng, 1, 700)

    async def drive(ctx):
        await bench.ring(ctx)
        for items in (segments[:4], segments[4:]):
            for item in items:
                rule.datagram(*item)
            await bench.give(ctx, items)
            await bench.settle(ctx, items is not segments[4:] and items == segments[:4])
            check(bench, rule)
            other = Region(valid=0, key=0x99, granule_log2=9, dma_addr=0x12345000, map_base=512)
            rule.regions[0] = other
            bench.regions[0] = other.row()

    bench.run(drive)
    assert [c.cqe.status for c in bench.completed] == [Status.SUCCESS]


@pytest.mark.parametrize("target", list(CloseTarget))
def test_messages_close(target):
    """Those of a QP or of a region, also of datagrams that were on their way, while a flood to
    others goes on; the rest stays open (P32)."""
    rng = make_rng(43 + target)
    parameters = Parameters(n_qp=4, n_region=8, n_tracker=16, n_closed=64, map_bits=2048)
    regions = [one_region(), one_region(key=0x12, base_to=0x80000, dma_addr=0x80000,
                                        map_addr=0x2000, map_base=1024)]  # fmt: skip
    regions += [Region(valid=0)] * 6
    qps = make_qps()
    qps[1]["opcodes"] = qps[0]["opcodes"]
    sges = posted_sends(rng, 8)
    receives = {0: sges[:4], 1: [sge | {"addr": sge["addr"] + 0x8000} for sge in sges[4:]]}
    rule = Rule(parameters, qps, regions, receives, {FULL_CQ})
    bench = ReceiverBench(parameters, qps, regions, receives, {FULL_CQ}, rng)
    items = []
    for msn in range(4):
        items += cut_send(rng, msn, 700, qpn=msn % 2)[:3]
        items += [record(rng, msn, mo, 64, 1000, base=0x14000 + 1024 * msn) for mo in (0, 192)]
        fields, octets = record(rng, 10 + msn, 64, 64, 640, base=0x80000 + 1024 * msn, qpn=msn % 2)
        items.append((fields | {"stag": 0x112}, octets))
    flood = [datagram(0x0, 0, qpn=1)] * 2000
    row = 0 if target == CloseTarget.QP else 1
    given = []
    ends = []

    async def close(ctx):
        while not given:
            await ctx.tick()
        ends.append(await bench.close_messages(ctx, target, row))
        assert bench.written == len(rule.completed), "done before the CQEs were written"
        while True:
            await ctx.tick()

    async def drive(ctx):
        await bench.ring(ctx)
        await bench.give(ctx, items[:10])
        for item in items:
            rule.datagram(*item)
        open_before = sum(message is not None for message in rule.trackers)
        rule.close_messages(target, row)
        assert 2 <= len(rule.completed) < open_before
        # The write comes now: the other items wait in the queue.
        given.append(True)
        await bench.give(ctx, items[10:])
        while not ends:
            await bench.give(ctx, [(flood.pop(), b"")])
            rule.datagram(*(datagram(0x0, 0, qpn=1), b""))
        await bench.settle(ctx, sum(message is not None for message in rule.trackers))
        bench.completed.sort(key=lambda c: (c.cqe.msn, c.cqe.opcode, c.cqe.qpn))
        rule.completed.sort(key=lambda c: (c.cqe["msn"], c.cqe["opcode"], c.cqe["qpn"]))
        check(bench, rule)
        # Once more, for a row and for targets that name nothing.
        for nothing in ((target, 3), (target, 0x100), (2, row)):
            assert await bench.close_messages(ctx, *nothing) < 200
        check(bench, rule)

    bench.background.append(close)
    bench.run(drive)
    print(f"{ends[0]} cycles")
    assert ends[0] < 1500
