"""Reads in the receive side: requests of peers, openings, responses; against the rule (P20 to P30,
P32, P39)."""

from dataclasses import replace
from itertools import pairwise

import pytest
from receive_bench import make_rng, put_stream
from receive_rule import Region, Rule
from receiver_bench import ReceiverBench, datagram, qp_row
from test_datagram_receiver import check, cut_send

from sim_tb.units import RECEIVE
from tests.seeds import seeds
from uwarp.contract import Access, CloseTarget, Counter, CqeFlag, Parameters, QpState, Status

PARAMETERS = replace(RECEIVE, n_read=2)
TOP = 1 << 64
PEER, OTHER = 0xFFFF_0A000001, 0x20010DB8 << 96 | 5
READ, RESPONSE = 0x1, 0xD
ALL = int(Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ)


def make_qps():
    return [
        qp_row(recv_cq=0, send_cq=1, rq_addr=0x0000 >> 6, rq_log2=5),
        qp_row(recv_cq=2, send_cq=0, rq_addr=0x1000 >> 6, timeout=200),
        qp_row(recv_cq=2, send_cq=2, state=QpState.RTR),
        qp_row(recv_cq=3, send_cq=3, pd=2, opcodes=1 << 0xC, udp_port=700),
    ]


def make_regions():
    return [
        Region(mapped=1, key=0x11, access=ALL, base_to=0x10000, length=0x4000, dma_addr=0x20000,
               map_addr=0x1000, map_base=0),
        Region(mapped=1, key=0x22, access=ALL, base_to=TOP - 0x1000, length=0x1000,
               dma_addr=0x40003, map_addr=0x2008, map_base=256),
        Region(mapped=1, key=0x33, access=ALL, granule_log2=8, base_to=0x80000, length=0x1000,
               dma_addr=0x60000, map_addr=0x3000, map_base=512),
        Region(key=0x44, access=ALL, base_to=0xFFFFFFF3, length=0x3001, dma_addr=0x61001),
        Region(mapped=1, key=0x55, access=ALL, pd=2, base_to=0, length=0x1000, dma_addr=0x80000,
               map_base=1024),
        Region(valid=0, mapped=1, key=0x66, access=ALL, base_to=0, length=0x1000),
        Region(mapped=1, key=0x77, access=int(Access.REMOTE_WRITE), base_to=0x500000,
               length=0x8000, dma_addr=0x90004, map_addr=0x3000, map_base=1024),
        Region(mapped=1, key=0x88, access=int(Access.REMOTE_READ), base_to=0x1000, length=0x1000,
               dma_addr=1 << 50, map_base=1536),
    ]  # fmt: skip


def stag_of(index):
    return index << 8 | 0x11 * (index + 1)


def opening(msn, addr=0x10000, mlen=64, **fields):
    """Of a Read by QP 0 into region 0."""
    o = {"qpn": 0, "msn": msn, "lkey": 0x11, "addr": addr % TOP, "mlen": mlen, "source_ip": PEER}
    o |= {"source_port": 4000, "wqe_index": 0x100 + msn & 0xFFFF}
    unknown = fields.keys() - o.keys()
    assert not unknown, unknown
    return o | fields


def responses(rng, o, cut=64):
    """Segments cut where the TO's granules end."""
    stops = range(cut - o["addr"] % 64, o["mlen"], cut)
    segments = []
    for mo, stop in pairwise([0, *stops, o["mlen"]]):
        fields = {name: o[name] for name in ("qpn", "source_ip", "source_port", "msn", "mlen")}
        fields |= {"stag": o["lkey"], "to": (o["addr"] + mo) % TOP, "mo": mo}
        fields["payload_offset"] = rng.randrange(8)
        segments.append((datagram(RESPONSE, stop - mo, **fields), rng.randbytes(stop - mo)))
    return segments


def request(length=0, **fields):
    return datagram(
        READ, length, **{
            "qn": 1, "mlen": 1, "stag": 0x11, "to": 0x10000, "source_mac": 0x0200_0000_0001,
            "sink_to": 0xFEDC_BA98_7654_3210, "immediate": 0x89ABCDEF,
        } | fields
    )  # fmt: skip


def record(rng, msn, base, mo, length, mlen, **fields):
    fields = {"stag": 0x11, "msn": msn, "mo": mo, "mlen": mlen, "to": (base + mo) % TOP} | fields
    return datagram(0xC, length, **fields), rng.randbytes(length)


class ReadBench(ReceiverBench):
    """A ReceiverBench and its rule; ``play`` gives it datagrams and openings, ``check`` tells the
    rule of them in the order in which they were taken."""

    def __init__(self, rng, parameters=PARAMETERS, receives=None, **options):
        super().__init__(
            parameters, make_qps(), make_regions(), receives or {}, {3}, rng, **options
        )
        self.rule = Rule(parameters, make_qps(), make_regions(), self.receives, {3})
        self.background += [self.reads, self.feed_openings]
        self.offered = []
        self.openings = []
        self.datagrams = []
        self.tick = 0

    async def feed_openings(self, ctx):
        while True:
            while not self.offered:
                await ctx.tick()
            self.openings.append(self.offered[0])
            await put_stream(ctx, self.dut.read_openings, [self.offered[0]], self.rng, self.stall)
            self.offered.pop(0)

    async def play(self, ctx, items):
        """An item is a datagram with its payload, an opening, or None: wait for all answers."""
        for item in items:
            if item is None:
                while self.offered or len(self.answers) < len(self.openings):
                    await ctx.tick()
            elif isinstance(item, tuple):
                self.datagrams.append(item)
                await self.give(ctx, [item])
            else:
                self.offered.append(item)

    async def check(self, ctx):
        """Everything has happened, and as the rule says."""
        while (
            self.offered
            or len(self.answers) < len(self.openings)
            or len(self.outcomes) < len(self.datagrams)
        ):
            await ctx.tick()
        for is_opening in self.order:
            if is_opening:
                self.rule.opening(self.openings[len(self.rule.answers)], self.tick)
            else:
                self.rule.datagram(*self.datagrams[len(self.rule.outcomes)], self.tick)
        self.order.clear()
        await self.settle(ctx, sum(message is not None for message in self.rule.trackers))
        check(self, self.rule)
        assert self.answers == self.rule.answers
        assert self.requests == self.rule.requests

    async def pass_ticks(self, ctx, ticks):
        """Messages that have been silent for their timeout close."""
        self.tick += ticks
        self.set_tick(ctx, self.tick)
        await ctx.tick().repeat(self.rule.parameters.n_tracker + 64)
        await self.settle(ctx, (await self._still_open(ctx)))
        # Which of those that expire at once closes first is not said.
        for completion in self.completed[len(self.rule.completed) :]:
            self.rule.expire(self.tick, completion.cqe)
        self.rule.expire(self.tick)
        await self.check(ctx)

    async def _still_open(self, ctx):
        messages = [message for message in self.rule.trackers if message]
        return sum(self.tick - message.tick < message.timeout for message in messages)


class Traffic:
    """Reads, Write-Records and Sends in one place, lost, doubled, shuffled, late and contradicted;
    and Read Requests."""

    def __init__(self, rng):
        self.rng = rng
        self.msn = 0xFFFFFFF8

    def place(self, length):
        index = self.rng.choices((0, 1), (3, 1))[0]
        region = make_regions()[index]
        room = region.length - length
        where = self.rng.choice((0, room, 256, self.rng.randrange(room + 1)))
        return stag_of(index), region.base_to + where

    def shuffled(self, segments):
        rng = self.rng
        if rng.random() < 0.3 and len(segments) > 1:
            segments.pop(rng.randrange(len(segments)))
        if rng.random() < 0.5:
            rng.shuffle(segments)
        return segments + rng.sample(segments, rng.choice((0, 0, min(2, len(segments)))))

    def read(self):
        rng = self.rng
        length = rng.choice((1, 63, 64, 200, 600, 900))
        lkey, addr = self.place(length)
        o = opening(
            self.msn, addr, length, lkey=lkey, qpn=rng.choice((0, 0, 1)),
            source_ip=rng.choice((PEER, OTHER)), source_port=rng.choice((4000, 4001)),
        )  # fmt: skip
        if rng.random() < 0.15:
            o |= rng.choice((
                {"qpn": 2}, {"lkey": lkey ^ 1}, {"lkey": stag_of(2)}, {"addr": addr ^ 1 << 40},
            ))  # fmt: skip
        segments = self.shuffled(responses(rng, o, rng.choice((64, 128, 256))))
        for _ in range(rng.choice((0, 0, 1))):
            fields, octets = rng.choice(segments)
            name, bit = rng.choice((("stag", 0), ("stag", 9), ("to", 63), ("to", 3), ("mo", 4),
                                    ("mlen", 31), ("mlen", 0), ("qpn", 0), ("source_port", 1),
                                    ("source_ip", 127), ("msn", 31), ("msn", 0)))  # fmt: skip
            segments.insert(
                rng.randrange(len(segments)), (fields | {name: fields[name] ^ 1 << bit}, octets)
            )
        if rng.random() < 0.2:  # without payload
            fields, _ = rng.choice(segments)
            segments.append((fields | {"payload_length": 0}, b""))
        return [o] + [None] * (rng.random() < 0.7) + segments

    def record(self):
        rng = self.rng
        mlen = rng.choice((64, 300, 700))
        stag, base = self.place(mlen)
        starts = range(0, mlen, 64)
        return self.shuffled(
            [record(rng, self.msn, base, mo, min(64, mlen - mo), mlen, stag=stag) for mo in starts]
        )

    def message(self):
        self.msn = self.msn + 1 & 0xFFFFFFFF
        kind = self.rng.choices(("read", "record", "send", "request"), (6, 2, 2, 2))[0]
        if kind == "send":
            return self.shuffled(cut_send(self.rng, self.msn, self.rng.choice((64, 500))))
        if kind == "request":
            return [(request(msn=self.msn, qpn=self.rng.randrange(3)), b"")]
        return getattr(self, kind)()

    def stream(self, number):
        """Several messages at a time."""
        rng = self.rng
        going, result = [], []
        while len(result) < number:
            while len(going) < 4:
                going.append(self.message())
            mine = rng.choice(going)
            result.append(mine.pop(0))
            going = [items for items in going if items]
        return result


@pytest.mark.parametrize("seed", seeds(1, 9))
@pytest.mark.parametrize("stall", [pytest.param(0.0, marks=pytest.mark.soak), 0.3])
def test_random_reads(seed, stall):
    rng = make_rng(500 + seed)
    sge = {"addr": 0x10000, "length": 600, "lkey": 0x11}
    receives = {0: [sge | {"addr": 0x10000 + rng.randrange(200) * 64} for _ in range(30)]}
    bench = ReadBench(rng, receives=receives, stall=stall)
    traffic = Traffic(rng)

    async def drive(ctx):
        await bench.ring(ctx)
        for ticks in (150, 100, 30000):
            await bench.play(ctx, traffic.stream(50))
            await bench.check(ctx)
            bench.waiting = bench.rule.waiting = 0
            await bench.pass_ticks(ctx, ticks)

    bench.run(drive)
    reads = [completion for completion in bench.completed if completion.cqe.opcode == READ]
    statuses = {completion.cqe.status for completion in reads}
    assert statuses == {Status.SUCCESS, Status.PARTIAL}
    assert {Counter.DROP_LATE, Counter.RX_PLACED} <= set(bench.outcomes)
    assert set(bench.answers) == {False, True}


def test_a_read_from_opening_to_completion():
    """Its CQE goes to the send CQ, says what its WQE asked for, and is not remembered: a second
    Read of the same name opens."""
    rng = make_rng(510)
    bench = ReadBench(rng)
    o = opening(7, 0x10000 + 100, 300)
    segments = responses(rng, o)

    async def drive(ctx):
        for _ in range(2):
            await bench.play(ctx, [segments[0], o, None, *segments, segments[-1]])
            await bench.check(ctx)

    bench.run(drive)
    late, placed = Counter.DROP_LATE, Counter.RX_PLACED
    assert bench.outcomes == 2 * [late, *[placed] * len(segments), late]
    for completion in bench.completed:
        cqe = completion.cqe
        assert completion.cq == 1
        assert (cqe.opcode, cqe.status, cqe.flags) == (READ, Status.SUCCESS, CqeFlag.MAPPED)
        assert (cqe.wqe_index, cqe.base_to, cqe.stag) == (0x107, 0x10000 + 100, 0x11)
        assert (cqe.source_ip, cqe.source_port, cqe.msn) == (PEER, 4000, 7)
        assert (cqe.valid, cqe.mlen) == (300, 300)


def test_every_reason_not_to_open():
    """Each check of a Read's SGE at its edges, again when the tracker is to be opened; and the
    trackers run out. What is not opened closes nothing but what it overlaps."""
    rng = make_rng(511)
    bench = ReadBench(rng)
    good = opening(0)
    cases = [
        opening(1, qpn=2), opening(1, qpn=3), opening(1, 0x10000 - 1), opening(1, 0x14000 - 63),
        opening(1, 0x10000, 0x4001), opening(1, 0x10000, 0xFFFFFFFF), opening(1, lkey=0x10),
        opening(1, lkey=0x811), opening(1, lkey=0x80000011), opening(1, TOP - 63, lkey=stag_of(1)),
        opening(1, 0, lkey=stag_of(1)), opening(1, 0x80000, lkey=stag_of(2)),
        opening(1, 0xFFFFFFF3, lkey=stag_of(3)), opening(1, 0, lkey=stag_of(4)),
        opening(1, 0, lkey=stag_of(5)), opening(1, 0x500000, lkey=stag_of(6)),
        opening(1, 0x1000, lkey=stag_of(7)),
    ]  # fmt: skip

    async def drive(ctx):
        await bench.play(ctx, [good, *cases])
        await bench.check(ctx)
        assert bench.answers == [True] + [False] * len(cases)
        assert not bench.completed
        bench.answers.clear(), bench.rule.answers.clear(), bench.openings.clear()
        rows = [opening(2, 0x14000 - 64), opening(3, TOP - 64, lkey=stag_of(1)),
                opening(4, 0, lkey=stag_of(4), qpn=3)]  # fmt: skip
        bench.qps[3] |= {"opcodes": 0}
        rows += [opening(5, 0x10000 + 64, 640), opening(6, 0x12000)]
        # The last takes the place of the second last; the first and that are neighbours.
        await bench.play(ctx, [*rows, opening(7, 0x10000 + 640)])
        await bench.check(ctx)
        assert bench.answers == [True, True, True, False, False, False]
        assert bench.completed == []
        await bench.play(ctx, [opening(8, 0x10000, 65)])
        await bench.check(ctx)

    bench.run(drive)
    assert bench.answers[-1]
    assert [completion.cqe.msn for completion in bench.completed] == [0]


def test_every_check_of_a_request():
    """At its edges, and faults together: the first one counts; last, too many wait."""
    rng = make_rng(512)
    bench = ReadBench(rng, replace(PARAMETERS, n_read=32))
    items = [
        request(qpn=2), request(qpn=3), request(qpn=3, group=1, own=1, source_port=700),
        request(qn=0), request(qn=2, mo=1), request(qn=1 << 31 | 1), request(mo=1, mlen=2),
        request(mlen=0), request(mlen=0, stag=0), request(1), request(28, stag=0),
    ]  # fmt: skip
    for index, region in enumerate(make_regions()):
        stag, base, end = stag_of(index), region.base_to, region.base_to + region.length
        items += [
            request(stag=stag, to=to % TOP, mlen=mlen)
            for to, mlen in (
                (base, 1), (base - 1, 1), (base, region.length), (base, region.length + 1),
                (end - 1, 1), (end, 1), (end - 1, 2), (end - 1, 0xFFFFFFFF), (TOP - 1, 2),
            )
        ]  # fmt: skip
        items += [request(stag=stag ^ 1), request(stag=stag + 0x800)]
    items += [request(stag=0xFFFFFF11), request(source_ip=OTHER, msn=0xFFFFFFFF)]
    items += [request(msn=msn) for msn in range(32)] + [request(mlen=0), request(stag=0x10)]
    given = [(fields, rng.randbytes(fields["payload_length"])) for fields in items]

    async def drive(ctx):
        await bench.play(ctx, given)
        await bench.check(ctx)
        bench.waiting = bench.rule.waiting = 31
        await ctx.tick().repeat(3)
        await bench.play(ctx, given[-3:-2] * 2)
        await bench.check(ctx)

    bench.run(drive)
    wanted = {Counter.DROP_QP_STATE, Counter.DROP_QP_OPCODE, Counter.DROP_UNTAGGED_QN,
              Counter.DROP_MESSAGE_LENGTH, Counter.DROP_STAG_INVALID, Counter.DROP_STAG_KEY,
              Counter.DROP_STAG_PD, Counter.DROP_STAG_ACCESS, Counter.DROP_TO_WRAP,
              Counter.DROP_BOUNDS, Counter.DROP_READ_BUSY, Counter.RX_PLACED}  # fmt: skip
    assert wanted <= set(bench.outcomes)


def test_own_group_datagrams():
    """Only with the group, from the own MAC and from the QP's port; before the peer filter."""
    bench = ReadBench(make_rng(513))
    for rows in (bench.qps, bench.rule.qps):
        rows[3] |= {"peer_port": 1}
        rows[1] |= {"udp_port": 4000}
    items = [
        datagram(0xE, 0, qpn=qpn, group=group, own=own, source_port=port)
        for qpn in (1, 3)
        for group in (0, 1)
        for own in (0, 1)
        for port in (4000, 4001, 700)
    ]

    async def drive(ctx):
        await bench.play(ctx, [(fields, b"") for fields in items])
        await bench.check(ctx)

    bench.run(drive)
    assert bench.outcomes.count(Counter.DROP_OWN_GROUP) == 2


def test_a_read_times_out():
    """Counted from its opening, then from its last segment."""
    rng = make_rng(514)
    bench = ReadBench(rng)
    o = opening(1, mlen=200, qpn=1)
    segments = responses(rng, o)

    async def drive(ctx):
        bench.tick = 65400
        bench.set_tick(ctx, bench.tick)
        await bench.play(ctx, [o, None])
        await bench.check(ctx)
        await bench.pass_ticks(ctx, 199)
        await bench.play(ctx, segments[:1])
        await bench.check(ctx)
        await bench.pass_ticks(ctx, 199)
        assert not bench.completed
        await bench.pass_ticks(ctx, 1)
        assert [c.cqe.status for c in bench.completed] == [Status.PARTIAL]
        await bench.play(ctx, [o, None])
        await bench.check(ctx)
        await bench.pass_ticks(ctx, 200)

    bench.run(drive)
    assert [c.cqe.valid for c in bench.completed] == [64, 0]


def test_a_read_in_place_of_others():
    """Overlaps close both ways, whatever the kinds; a name of another kind is another message."""
    rng = make_rng(515)
    receives = {0: [{"addr": 0x10000, "length": 1000, "lkey": 0x11}]}
    bench = ReadBench(rng, receives=receives)
    items = [
        record(rng, 1, 0x10000, 0, 64, 1000),
        opening(1, 0x10000 + 999, 500), None,  # closes it
        responses(rng, opening(1, 0x10000 + 999, 500))[1],
        opening(1, 0x10000 + 1500, 500, source_port=4001), None,
        record(rng, 2, 0x10000 + 1499, 64, 64, 500),  # closes both
        cut_send(rng, 5, 1000)[2],
        opening(2, 0x10000 + 128, 500), None,  # closes the Send
        record(rng, 1, 0x10000, 64, 64, 1000),  # late
        opening(3, 0x10000 + 300, 8), None,  # closes the Read before
        responses(rng, opening(2, 0x10000 + 128, 500))[0],  # late
        responses(rng, opening(3, 0x10000 + 300, 8))[0],
    ]  # fmt: skip

    async def drive(ctx):
        await bench.ring(ctx)
        await bench.play(ctx, items)
        await bench.check(ctx)
        await bench.pass_ticks(ctx, 30000)

    bench.run(drive)
    assert [(c.cqe.opcode, c.cqe.msn) for c in bench.completed] == [
        (0xC, 1), (READ, 1), (READ, 1), (0x3, 5), (READ, 2), (READ, 3), (0xC, 2),
    ]  # fmt: skip
    assert bench.outcomes.count(Counter.DROP_LATE) == 2


def test_a_response_contradicts_its_read():
    """In any bit of what the open message says of itself; in what names it, it is another's. It
    marks nothing: what it would have brought is missing in the end."""
    rng = make_rng(522)
    bench = ReadBench(rng)
    o = opening(1, 0x10000 + 1000, 700)
    segments = responses(rng, o)
    fields, octets = segments.pop(3)
    items = [(fields | {"mo": fields["mo"] + 1}, octets), (fields | {"mlen": 699}, octets)]
    for name, bits in (("stag", range(32)), ("to", range(64)), ("mlen", (10, 20, 31))):
        items += [(fields | {name: fields[name] ^ 1 << bit}, octets) for bit in bits]
    names = len(items)
    for name, bit in (("qpn", 0), ("msn", 31), ("source_port", 15), ("source_ip", 127)):
        items.append((fields | {name: fields[name] ^ 1 << bit}, octets))
    items += [(fields | {"opcode": 0x3}, octets), (fields | {"mlen": 0}, octets)]

    async def drive(ctx):
        await bench.play(ctx, [o, None, *items])
        await bench.check(ctx)
        await bench.play(ctx, segments)
        await bench.check(ctx)
        await bench.pass_ticks(ctx, 30000)
        await bench.check(ctx)

    bench.run(drive)
    assert [c.cqe.status for c in bench.completed] == [Status.PARTIAL]
    assert bench.outcomes[:names] == [Counter.DROP_RECORD_MISMATCH] * names
    late, length = Counter.DROP_LATE, Counter.DROP_MESSAGE_LENGTH
    others = [*[late] * 4, Counter.DROP_NO_RECEIVE, length]
    placed = [Counter.RX_PLACED] * len(segments)
    assert bench.outcomes[names:] == [*others, *placed]


def test_an_open_read_keeps_to_its_region_as_it_was():
    rng = make_rng(516)
    bench = ReadBench(rng)
    o = opening(1, 0x10000 + 1000, 700)
    segments = responses(rng, o)

    async def drive(ctx):
        await bench.play(ctx, [o, None, *segments[:4]])
        await bench.check(ctx)
        other = Region(valid=0, key=0x99, granule_log2=9, dma_addr=0x12345000, map_base=512)
        bench.rule.regions[0] = other
        bench.regions[0] = other.row()
        await bench.play(ctx, segments[4:])
        await bench.check(ctx)

    bench.run(drive)
    assert [c.cqe.status for c in bench.completed] == [Status.SUCCESS]


def test_a_failed_queue_pair():
    """A write of its response fails: nothing is said to be valid, and its next Read is refused."""
    rng = make_rng(517)
    bench = ReadBench(rng)
    o = opening(1, 0x10000, 200)
    segments = responses(rng, o)
    bench.memory.faulty.append(range(0x20000, 0x20040))

    async def drive(ctx):
        await bench.play(ctx, [o, None, segments[1], segments[0]])
        await bench.settle(ctx, 1)
        await bench.play(ctx, [segments[2], opening(2, 0x11000), None])
        bench.set_tick(ctx, 30000)
        await bench.settle(ctx)

    bench.run(drive)
    assert bench.outcomes == [Counter.RX_PLACED, Counter.RX_PLACED, Counter.DROP_QP_STATE]
    assert bench.answers == [True, False]
    (completion,) = bench.completed
    cqe = completion.cqe
    assert (completion.cq, cqe.opcode, cqe.status) == (1, READ, Status.GENERAL_ERR)
    assert (cqe.flags, cqe.valid, cqe.head_map, cqe.tail_map) == (0, 0, 0, 0)


@pytest.mark.parametrize("target", list(CloseTarget))
def test_messages_close(target):
    """Reads close, too; so do those that are offered when the register is written, behind a queue
    of datagrams that never ends."""
    rng = make_rng(518 + target)
    parameters = Parameters(n_qp=4, n_region=8, n_tracker=16, n_closed=64, map_bits=2048)
    bench = ReadBench(rng, parameters)
    row = 0
    first = [opening(msn, 0x10000 + 1024 * msn, 200, qpn=msn % 2) for msn in range(4)]
    elsewhere = [opening(9, TOP - 512, 300, lkey=stag_of(1), qpn=qpn) for qpn in (0, 1)]
    elsewhere[1]["addr"] -= 1024
    last = opening(20, 0x10000 + 1024 * 8, 200)
    flood = (datagram(0x0, 0, qpn=1), b"")
    ends = []

    async def close(ctx):
        while not bench.offered or bench.offered[0] is not last:
            await ctx.tick()
        ends.append(await bench.close_messages(ctx, target, row))
        assert bench.written == len(bench.completed), "done before the CQEs were written"
        assert last["msn"] in [c.cqe.msn for c in bench.completed]
        while True:
            await ctx.tick()

    async def drive(ctx):
        await bench.play(ctx, [*first, *elsewhere, None, responses(rng, first[0])[1]])
        await bench.check(ctx)
        await bench.play(ctx, [last])
        while not ends:
            await bench.play(ctx, [flood])
        while bench.order:
            if bench.order.pop(0):
                bench.rule.opening(bench.openings[len(bench.rule.answers)])
            else:
                bench.rule.datagram(*bench.datagrams[len(bench.rule.outcomes)])
        bench.rule.close_messages(target, row)
        for completed in (bench.completed, bench.rule.completed):
            completed.sort(key=lambda c: c.cqe["msn"] if isinstance(c.cqe, dict) else c.cqe.msn)
        await bench.check(ctx)

    bench.background.append(close)
    bench.run(drive)
    print(f"{ends[0]} cycles")
    assert ends[0] < 1500
    assert len(bench.completed) == (4 if target == CloseTarget.QP else 5)


def test_messages_close_with_an_opening_behind_a_slow_send():
    """The Send waits for its WQE; the Read offered then waits for the Send, and has others to close
    first. There are few trackers, for what looks at them to come by soon."""
    rng = make_rng(523)
    receives = {0: [{"addr": 0x12000, "length": 64, "lkey": 0x11}]}
    parameters = replace(PARAMETERS, n_tracker=2)
    bench = ReadBench(rng, parameters, receives=receives, wqe_delay=lambda: 600)
    others = [
        record(rng, 7, 0x10000 + base, 0, 64, 128, qpn=qpn) for base, qpn in ((0, 1), (256, 2))
    ]

    async def drive(ctx):
        await ctx.tick().until(~bench.dut.busy)
        await bench.play(ctx, others)
        await bench.check(ctx)
        await bench.ring(ctx)
        await bench.play(ctx, [(datagram(0x3, 8, msn=1), bytes(8)), opening(2, mlen=512)])
        await ctx.tick().repeat(2)
        assert await bench.close_messages(ctx, CloseTarget.QP, 0) > 400
        bench.rule.datagram(*bench.datagrams[-1])
        bench.rule.opening(bench.openings[0])
        bench.rule.close_messages(CloseTarget.QP, 0)
        assert bench.order == [False, True]
        bench.order.clear()
        await bench.check(ctx)

    bench.run(drive, 5000)
    assert [c.cqe.msn for c in bench.completed] == [1, 7, 7, 2]


def test_openings_and_datagrams_take_turns():
    """With both offered all the time an opening waits for one datagram, a datagram for one
    opening."""
    rng = make_rng(520)
    bench = ReadBench(rng)
    number = 30
    refused = opening(1, 0)

    async def drive(ctx):
        await ctx.tick().until(~bench.dut.busy)
        await bench.play(ctx, [refused] * number + [(datagram(0x0, 0), b"")] * number)
        order = list(bench.order)
        await bench.check(ctx)
        assert not any(one == other for one, other in pairwise(order))
        assert len(order) >= 2 * number - 2

    bench.run(drive)


def test_rates():
    """Cycles for each response, request and opening, while the host takes 1 us to answer."""
    rng = make_rng(521)
    bench = ReadBench(rng, delay=lambda: 156)
    bench.n_read = 1000
    number = 60
    o = opening(1, 0x10000, 0x4000)
    kinds = {
        "response": (responses(rng, o)[:number], 12),
        "request": ([(request(msn=msn), b"") for msn in range(number)], 10),
        "opening": ([opening(msn, 0) for msn in range(number)], 10),
    }

    async def drive(ctx):
        await ctx.tick().until(~bench.dut.busy)
        await bench.play(ctx, [o, None])
        for kind, (items, most) in kinds.items():
            await bench.play(ctx, items[:1])
            start = bench.cycle
            await bench.play(ctx, items[1:])
            while bench.offered:
                await ctx.tick()
            cycles = (bench.cycle - start) / number
            print(f"{kind}: {cycles:.2f} cycles")
            assert cycles <= most, f"{kind}: {cycles} cycles"
            await ctx.tick().repeat(300)

    bench.run(drive)
    assert len(bench.requests) == number
    assert bench.outcomes == [Counter.RX_PLACED] * 2 * number
