"""Error answers of the bus, P33: on bursts of payload, of maps, of CQEs and of WQEs.

Device behaviour, section 8.
"""

import pytest
from receive_bench import HostMemory, follow_failed, make_rng, put_stream, run, take
from receive_rule import Region
from receiver_bench import ReceiverBench, datagram, qp_row
from transmit_bench import DATA, RINGS, WRITE_RECORD, Bench

from sim_tb.units import RECEIVE
from tests.seeds import seeds
from uwarp.contract import CQE, Counter, CqeFlag, EventType, Parameters, Status
from uwarp_hdl.iwarp.complete import CompletionUnit
from uwarp_hdl.iwarp.faults import FailedQueuePairs
from uwarp_hdl.layouts import CreditOperation

PARAMETERS = RECEIVE
BASE = 0x10000
MLEN = 3000
MESSAGES = 4
#: The QP that fails and one that does not have a region each; region n has STag key 0x11 + n.
BAD, GOOD = 1, 2


def make_regions():
    own = [
        Region(mapped=1, key=0x11 + index, base_to=BASE, length=0x8000,
               dma_addr=0x100003 * (1 + index), map_addr=0x1000 * (1 + index),
               map_base=512 * index)
        for index in range(3)
    ]  # fmt: skip
    return own + [Region(valid=0)] * 5


def make_bench(rng, **options):
    qps = [qp_row(recv_cq=qpn, rq_addr=qpn << 6) for qpn in range(4)]
    return ReceiverBench(PARAMETERS, qps, make_regions(), {}, set(), rng, **options)


def segments(rng, qpn, msn, place, mlen=MLEN):
    """A message of a Write-Record in the QP's own region, cut at multiples of 512 octets."""
    to = BASE + 0x1000 * place + 8
    octets = rng.randbytes(mlen)
    result = []
    for mo in (0, *range(504, mlen, 512)):
        payload = octets[mo : (mo + 8) // 512 * 512 + 504]
        fields = datagram(
            0xC, len(payload), qpn=qpn, msn=msn, mo=mo, mlen=mlen, to=to + mo,
            stag=qpn << 8 | 0x11 + qpn, payload_offset=rng.randrange(8),
        )  # fmt: skip
        result.append((fields, payload))
    return result


def interleaved(rng, first, second):
    """Two lists in one, each in its order."""
    chosen = [0] * len(first) + [1] * len(second)
    rng.shuffle(chosen)
    sources = iter(first), iter(second)
    return [next(sources[which]) for which in chosen]


def dma_address(bench, qpn, place, octet):
    return bench.regions[qpn]["dma_addr"] + 0x1000 * place + 8 + octet


def check_payload(bench, qpn, place, items):
    octets = b"".join(payload for _, payload in items)
    got = bench.memory.read(dma_address(bench, qpn, place, 0), len(octets))
    assert got == list(octets), f"payload of QP {qpn} at place {place}"


def map_bytes(bench, qpn, place):
    """Bytes of the host's map strictly between a message's first and last."""
    first, last = (0x1000 * place + 8) >> 9, (0x1000 * place + 8 + MLEN - 1) >> 9
    place = bench.regions[qpn]["map_addr"] + first + 1
    return bench.map_memory.read(place, last - first - 1)


def check_good(bench, expected):
    """Everything of the QP that does not fail is there, message by message."""
    cqes = [item.cqe for item in bench.completed if item.cqe.qpn == GOOD]
    assert [cqe.msn for cqe in cqes] == [msn for msn, _ in expected]
    for cqe, (_, items) in zip(cqes, expected, strict=True):
        assert (cqe.status, cqe.valid) == (Status.SUCCESS, MLEN)
        assert cqe.flags & CqeFlag.MAPPED
        check_payload(bench, GOOD, cqe.msn, items)
        assert set(map_bytes(bench, GOOD, cqe.msn)) == {0xFF}


@pytest.mark.parametrize("n_qp", [4, 64])
def test_faults_and_rows_written_at_once(n_qp):
    """A fault tells in the second cycle after it, and is recent before. A row that is written
    meanwhile ends a failure when no fault comes, but not one that comes in the cycle after it or
    later."""
    rng = make_rng(505)
    dut = FailedQueuePairs(Parameters(n_qp=n_qp))
    failed, told = set(), set()
    collisions = 0

    async def bench(ctx):
        nonlocal collisions
        ctx.set(dut.requests.ready, 1)
        await ctx.tick().until(~dut.busy)
        last = ended = None
        before = None
        for cycle in range(4000):
            written = rng.randrange(n_qp) if cycle % 40 == 0 else None
            faulty = None
            # Faults without a pause end before the next row is written.
            if rng.random() < (0.95 if cycle % 40 < 30 else 0):
                faulty = rng.choice((rng.randrange(n_qp), rng.randrange(n_qp), last or 0))
            last = last if written is None else written
            port = rng.choice((dut.payload, dut.map))
            for item in (dut.payload, dut.map):
                ctx.set(item, {"valid": faulty is not None and item is port, "qpn": faulty or 0})
            ctx.set(dut.written, written is not None)
            ctx.set(dut.written_qpn, written or 0)
            _, _, change, recent = await ctx.tick().sample(dut.failed, dut.recent)
            assert recent.valid == (before is not None)
            if before is not None:
                assert recent.qpn == before
                failed.add(before)
            failed.discard(ended)
            collisions += None not in (ended, faulty)
            ended = written
            follow_failed(told, change)
            assert failed <= told
            if before is None:
                assert failed == told
            before = faulty

    run(dut, bench)
    assert collisions > 50


@pytest.mark.parametrize("seed", seeds(1, 9))
@pytest.mark.parametrize("what", ["payload", "map"])
def test_one_burst_of_one_message(what, seed):
    """Its QP fails, and no message is called valid that is not; the other QP is unharmed at line
    rate. The bits of the failed messages are cleared on chip, and not written."""
    rng = make_rng(500 + seed)
    bench = make_bench(rng, delay=lambda: 40 + rng.randrange(100))
    messages = {qpn: [segments(rng, qpn, i, i) for i in range(MESSAGES)] for qpn in (BAD, GOOD)}
    faulty = 1 + rng.randrange(MESSAGES - 2)
    if what == "payload":
        place = dma_address(bench, BAD, faulty, rng.randrange(MLEN))
        bench.memory.faulty = [range(place, place + 1)]
    else:
        first = (0x1000 * faulty + 8) >> 9
        place = bench.regions[BAD]["map_addr"] + first + 1 + rng.randrange(4)
        bench.map_memory.faulty = [range(place, place + 1)]
    items = []
    for bad, good in zip(messages[BAD], messages[GOOD], strict=True):
        items += interleaved(rng, bad, good)
    again = segments(rng, BAD, 100, faulty)

    async def drive(ctx):
        await ctx.tick().until(~bench.dut.busy)
        start = bench.cycle
        await bench.give(ctx, items)
        # 64 words and a few cycles each.
        assert bench.cycle - start < 80 * len(items), "not at line rate"
        # The failed message that is open, if any, times out.
        while sum(item.cqe.qpn == GOOD for item in bench.completed) < MESSAGES:
            await ctx.tick()
        await ctx.tick().repeat(200)
        assert bench.failed == {BAD}
        check_good(bench, list(enumerate(messages[GOOD])))
        bench.set_tick(ctx, 30000)
        await bench.settle(ctx)
        check_bad(list(bench.completed))
        # The row is written: it works again, in the same place, whose bits are clear.
        bench.memory.faulty = bench.map_memory.faulty = []
        ctx.set(bench.dut.qp_written_qpn, BAD)
        ctx.set(bench.dut.qp_written, 1)
        await ctx.tick()
        ctx.set(bench.dut.qp_written, 0)
        await bench.give(ctx, again[1:-1])
        await bench.settle(ctx, 1)
        bench.set_tick(ctx, 60000)
        await bench.settle(ctx)
        cqe = bench.completed[-1].cqe
        assert (cqe.status, cqe.msn) == (Status.PARTIAL, 100)
        assert bench.failed == set()
        assert cqe.valid == sum(len(payload) for _, payload in again[1:-1])

    def check_bad(completed):
        cqes = [item.cqe for item in completed if item.cqe.qpn == BAD]
        assert {cqe.status for cqe in cqes} <= {Status.SUCCESS, Status.GENERAL_ERR}
        statuses = [cqe.status for cqe in cqes]
        failed_from = statuses.index(Status.GENERAL_ERR)
        assert set(statuses[failed_from:]) == {Status.GENERAL_ERR}
        for cqe in cqes[:failed_from]:
            assert cqe.msn < faulty and cqe.valid == MLEN
            check_payload(bench, BAD, cqe.msn, messages[BAD][cqe.msn])
            assert set(map_bytes(bench, BAD, cqe.msn)) == {0xFF}
        for cqe in cqes[failed_from:]:
            assert cqe.msn >= faulty - 1
            assert (cqe.valid, cqe.head_map, cqe.tail_map) == (0, 0, 0)
            assert cqe.flags & CqeFlag.RECEIVE and not cqe.flags & CqeFlag.MAPPED
            assert cqe.mlen == MLEN
            if cqe.msn > faulty or (what == "payload" and cqe.msn == faulty):
                assert set(map_bytes(bench, BAD, cqe.msn)) == {None}, "a map was written"
        assert faulty in [cqe.msn for cqe in cqes[failed_from:]]

    bench.run(drive)
    memory = bench.memory if what == "payload" else bench.map_memory
    assert len(memory.failed) == 1
    assert bench.events == [(EventType.DMA_WRITE, BAD)]
    assert Counter.DROP_QP_STATE in bench.outcomes
    assert set(bench.outcomes) <= {Counter.RX_PLACED, Counter.DROP_QP_STATE}


def test_a_storm_of_errors():
    """Every burst of some long Writes fails, and events are taken slowly: none is lost, and the
    other QP's datagrams behind them arrive."""
    rng = make_rng(510)
    bench = make_bench(rng, delay=lambda: 200)
    bench.event_gap = lambda: 15
    start = bench.regions[BAD]["dma_addr"]
    bench.memory.faulty = [range(start, start + 0x8000)]
    items = []
    for number in range(2):
        octets = rng.randbytes(9000)
        stag = BAD << 8 | 0x11 + BAD
        items.append((datagram(0x0, 9000, qpn=BAD, stag=stag, to=BASE + 9001 * number), octets))
    good = segments(rng, GOOD, 0, 0)

    async def drive(ctx):
        await ctx.tick().until(~bench.dut.busy)
        await bench.give(ctx, items + good)
        await bench.settle(ctx)
        while len(bench.events) < len(bench.memory.failed):
            await ctx.tick()
        await ctx.tick().repeat(100)

    bench.run(drive)
    assert len(bench.memory.failed) > 128, "no more than what the queue of events holds"
    assert bench.events == [(EventType.DMA_WRITE, BAD)] * len(bench.memory.failed)
    check_good(bench, [(0, good)])


def test_a_single_and_a_send_whose_payload_fails():
    """No tracker, no map: GENERAL_ERR and valid 0 all the same; then DROP_QP_STATE."""
    rng = make_rng(520)
    bench = make_bench(rng)
    sge = {"addr": BASE + 0x2000, "length": 100, "lkey": BAD << 8 | 0x11 + BAD}
    bench.receives = {BAD: [sge, sge]}
    start = bench.regions[BAD]["dma_addr"]
    stag = BAD << 8 | 0x11 + BAD
    single = datagram(0xC, 40, qpn=BAD, msn=1, stag=stag, to=BASE)
    send = datagram(0x3, 40, qpn=BAD, msn=2)
    bench.memory.faulty = [range(start + 0x2000 + 39, start + 0x2000 + 40)]

    async def drive(ctx):
        await bench.ring(ctx)
        await bench.give(ctx, [(single, rng.randbytes(40))])
        await bench.settle(ctx)
        await bench.give(ctx, [(send, rng.randbytes(40))])
        await bench.settle(ctx)
        for fields in (single, send):
            await bench.give(ctx, [(fields | {"msn": 9}, rng.randbytes(40))])
        await bench.settle(ctx)

    bench.run(drive)
    assert [(c.cqe.status, c.cqe.valid, c.cqe.mlen) for c in bench.completed] == [
        (Status.SUCCESS, 40, 40),
        (Status.GENERAL_ERR, 0, 40),
    ]
    assert bench.outcomes == [Counter.RX_PLACED] * 2 + [Counter.DROP_QP_STATE] * 2
    assert bench.events == [(EventType.DMA_WRITE, BAD)]


def test_cqe_writes():
    """An event for each CQE that memory refuses, with its CQ, in order; interrupts go on."""
    rng = make_rng(530)
    dut = CompletionUnit(Parameters(n_qp=8), clients=1)
    memory = HostMemory(dut.write, rng, 0.2, lambda: 1 + rng.randrange(60))
    cqs = [1, 4]
    bad = {(cq, index) for cq in cqs for index in range(16) if rng.random() < 0.4}
    memory.faulty = [
        range(0x10000 * cq + 64 * index + place, 0x10000 * cq + 64 * index + place + 1)
        for cq, index in bad
        for place in (rng.randrange(64),)
    ]
    order = [cq for cq in cqs for _ in range(16)]
    rng.shuffle(order)
    told = []
    fired = []

    async def listen(ctx):
        while True:
            await ctx.tick().repeat(1 + rng.randrange(20))
            request = await take(ctx, dut.event_requests)
            told.append((request.type, request.number))

    async def interrupts(ctx):
        while True:
            _, _, is_set, cq = await ctx.tick().sample(dut.irq_set, dut.irq_cq)
            if is_set:
                fired.append(cq)

    async def doorbell(ctx, cq, **fields):
        row = {"addr": 0x10000 * cq, "log2": 4, "valid": 1}
        item = {"cq": cq, "index": 0, "arm": 0, "reset": 0, "row": row} | fields
        await put_stream(ctx, dut.doorbells, [item])

    async def script(ctx):
        await ctx.tick().until(~dut.busy)
        for cq in cqs:
            await doorbell(ctx, cq, reset=1)
            await doorbell(ctx, cq, arm=1)
        for cq in order:
            request = {"operation": CreditOperation.RESERVE, "cq": cq}
            await put_stream(ctx, dut.credits[0].requests, [request])
            assert await take(ctx, dut.credits[0].granted)
            await put_stream(ctx, dut.completions[0].requests, [{"cq": cq, "urgent": 0}])
            words = [rng.getrandbits(32) << 16 for _ in range(CQE.size // 8)]
            await put_stream(ctx, dut.completions[0].words, words)
        while ctx.get(dut.pending):
            await ctx.tick()
        await ctx.tick().repeat(100)

    run(dut, script, background=[memory.serve, listen, interrupts])
    seen = dict.fromkeys(cqs, 0)
    expected = []
    for cq in order:
        if (cq, seen[cq]) in bad:
            expected.append((EventType.DMA_CQE, cq))
        seen[cq] += 1
    assert told == expected and expected
    assert sorted(fired) == cqs


def test_wqe_and_payload_reads():
    """An event for each burst of a send WQE or of payload that fails, with its QP."""
    bench = Bench(540, stall=0.1)
    bench.set_qp(0)
    bench.set_qp(5, send_cq=5)
    bench.broken = {RINGS + 64 + 24, DATA + 128, DATA + 1024, DATA + 1032}

    async def script(bench):
        for number in range(3):
            bench.post(0, WRITE_RECORD, 20_000 + 100 * number, 300)
            bench.post(5, WRITE_RECORD, 2000 * (number % 2), 1300)
        await bench.until(lambda: len(bench.completions) == 6)
        await bench.idle(100)
        by_qpn = {qpn: [] for qpn in (0, 5)}
        for _, cqe in bench.completions:
            by_qpn[cqe["qpn"]].append(cqe["status"])
        assert by_qpn[0] == [Status.SUCCESS, Status.LOC_QP_OP_ERR, Status.SUCCESS]
        assert by_qpn[5] == [Status.GENERAL_ERR, Status.SUCCESS, Status.GENERAL_ERR]
        events = [number for kind, number in bench.dma_events if kind == EventType.DMA_READ]
        assert sorted(events) == [0] + [5] * 4

    bench.run(script)


def test_a_failed_qp_sends_nothing_more():
    """What it has fetched it completes; the rest waits until it has not failed any more."""
    bench = Bench(550)
    bench.set_qp(0)
    bench.set_qp(3)

    async def script(bench):
        for _ in range(6):
            bench.post(0, WRITE_RECORD, 64, 900)
        await bench.until(lambda: bench.wqe_reads.bursts == 2)
        bench.ctx.set(bench.dut.failed, {"write": 1, "row": 0, "bits": 1 << 0 | 1 << 2})
        await bench.idle(20)
        fetched = bench.wqe_reads.bursts
        assert fetched < 6
        for _ in range(3):
            bench.post(3, WRITE_RECORD, 64, 900)
        await bench.until(lambda: len(bench.completions) == fetched + 3)
        await bench.idle(300)
        assert bench.wqe_reads.bursts == fetched + 3
        assert len(bench.frames) == fetched + 3
        bench.ctx.set(bench.dut.failed, {"write": 1, "row": 0, "bits": 0})
        await bench.until(lambda: len(bench.completions) == 9)
        assert all(cqe["status"] == Status.SUCCESS for _, cqe in bench.completions)

    bench.run(script)
