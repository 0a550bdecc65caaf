"""The send scheduler alone, beside a segmenter that takes the read port of the QP table from it."""

import random
from collections import deque

import pytest
from amaranth.sim import Simulator

from uwarp.contract import QP_ENTRY, Parameters, QpState
from uwarp_hdl.iwarp.scheduler import SendScheduler, slot_count
from uwarp_hdl.iwarp.tables import QP_READS, half_words
from uwarp_hdl.layouts import CreditOperation

PARAMETERS = Parameters(n_qp=4, n_region=4)
IN_RESET = 3  # the QP that may not send at first
# In which a row that is written is ``held``; the first of them let reads that have begun end.
WRITE_CYCLES, READ_CYCLES = 27, 6
ROW_BITS = 8 * QP_ENTRY.size


class Bench:
    """A scheduler among a QP table, completion queues and a fetcher, all of them at random.

    ``taken`` is the share of cycles in which the table is read by the segmenter. What it is given
    then is the row of another QP; and of a row only what the read gives is that row's.
    """

    def __init__(self, seed: int, taken: float) -> None:
        self.rng = random.Random(seed)
        self.dut = SendScheduler(PARAMETERS)
        self.taken = taken
        self.rows = [self.row() for _ in range(PARAMETERS.n_qp)]
        self.rows[IN_RESET]["state"] = QpState.RESET
        self.written: int | None = None  # the row that is just being
        self.producers = [0] * PARAMETERS.n_qp
        self.fetched = [0] * PARAMETERS.n_qp
        self.doorbells, self.grants, self.retirements = deque(), deque(), deque()
        self.free = set(range(slot_count(PARAMETERS)))
        self.now = 0

    def row(self, state: QpState = QpState.RTS) -> dict[str, int]:
        rng, log2 = self.rng, self.rng.randrange(16)
        wide = rng.getrandbits(1)
        return {
            "state": state,
            "sq_log2": log2,
            "sq_wide": wide,
            "pd": rng.getrandbits(16),
            "path_mtu": rng.getrandbits(16),
            "send_cq": rng.randrange(PARAMETERS.n_qp),
            "sq_addr": rng.getrandbits(56) >> log2 + wide << log2 + wide,
        }

    def post(self, qpn: int, count: int) -> None:
        self.producers[qpn] += count
        self.doorbells.append({"qpn": qpn, "index": self.producers[qpn]})

    def given(self, index: int, word: int, taken: bool) -> int:
        if taken or index == self.written:
            state = QpState.RTS if self.rng.random() < 0.7 else QpState.ERROR
            return QP_ENTRY.to_int(**self.row(state))
        row, given = QP_ENTRY.to_int(**self.rows[index]), self.rng.getrandbits(ROW_BITS)
        for half in half_words(QP_READS[1][word]):
            mask = 0xFFFF << 16 * half
            given = given & ~mask | row & mask
        return given

    def check_fetch(self, fetch) -> None:
        qpn = fetch.qpn
        row, index = self.rows[qpn], self.fetched[qpn]
        place = index % (1 << row["sq_log2"])
        expected = {
            "index": index,
            "cq": row["send_cq"],
            "pd": row["pd"],
            "path_mtu": row["path_mtu"],
            "wide": row["sq_wide"],
            "entry": row["sq_addr"] + (place << row["sq_wide"]),
        }
        got = {name: getattr(fetch, name) for name in expected}
        assert got == expected, f"cycle {self.now}: of QP {qpn} {got}, not {expected}"
        assert row["state"] == QpState.RTS, f"a fetch of QP {qpn} in {row['state']!r}"
        assert index < self.producers[qpn], f"a fetch of QP {qpn} beyond its producer"
        assert fetch.slot in self.free, f"slot {fetch.slot} is in use"
        self.fetched[qpn] += 1
        self.free.remove(fetch.slot)
        retirement = {"qpn": qpn, "slot": fetch.slot, "cq": row["send_cq"], "release": 0}
        self.retirements.append((self.now + self.rng.randrange(60), retirement))

    async def cycle(self, ctx) -> None:
        dut, rng = self.dut, self.rng
        requests, granted = dut.credits.requests, dut.credits.granted
        streams = (dut.doorbells, requests, granted, dut.retirements, dut.fetches)
        sampled = [part for item in streams for part in (item.valid, item.ready)]
        _, _, index, word, taken, fetch, operation, *hands = await ctx.tick().sample(
            dut.qp.index, dut.qp.word, dut.qp_taken, dut.fetches.p, requests.p.operation, *sampled
        )
        self.now += 1
        rung, asked, answered, retired, fetches = (
            hands[n] and hands[n + 1] for n in range(0, len(hands), 2)
        )
        if rung:
            self.doorbells.popleft()
        if answered:
            self.grants.popleft()
        if asked:
            assert operation == CreditOperation.RESERVE
            self.grants.append((self.now + rng.randrange(3), rng.random() < 0.8))
        if retired:
            self.free.add(self.retirements.popleft()[1]["slot"])
        if fetches:
            self.check_fetch(fetch)
        ctx.set(dut.qp.row.as_value(), self.given(index, word, taken))
        ctx.set(dut.qp_taken, rng.random() < self.taken)
        for port, items in ((granted, self.grants), (dut.retirements, self.retirements)):
            offered = bool(items) and items[0][0] <= self.now
            ctx.set(port.valid, offered)
            if offered:
                ctx.set(port.p, items[0][1])
        ctx.set(dut.doorbells.valid, bool(self.doorbells))
        if self.doorbells:
            ctx.set(dut.doorbells.p, self.doorbells[0])
        ctx.set(requests.ready, rng.random() < 0.7)
        # Not in the cycle in which it is first offered.
        waits = hands[-2] and not fetches
        ctx.set(dut.fetches.ready, waits and rng.random() < 0.7)

    async def cycles(self, ctx, count: int) -> None:
        for _ in range(count):
            await self.cycle(ctx)

    async def write_row(self, ctx, qpn: int, **fields: int) -> None:
        """As the table does it: what is being read by then is read to its end before."""
        ctx.set(self.dut.qp.held, 1)
        await self.cycles(ctx, READ_CYCLES)
        self.written = qpn
        await self.cycles(ctx, WRITE_CYCLES - READ_CYCLES)
        self.written = None
        self.rows[qpn] |= fields
        ctx.set(self.dut.qp.held, 0)

    async def until_all_is_fetched(self, ctx) -> None:
        sends = [qpn for qpn, row in enumerate(self.rows) if row["state"] == QpState.RTS]
        for _ in range(4000):
            if all(self.fetched[qpn] == self.producers[qpn] for qpn in sends):
                return
            await self.cycle(ctx)
        raise AssertionError(f"fetched {self.fetched} of {self.producers}")

    def run(self, script) -> None:
        async def testbench(ctx):
            ctx.set(self.dut.enable, 1)
            ctx.set(self.dut.resets.ready, 1)
            while ctx.get(self.dut.busy):
                await ctx.tick()
            await script(ctx)

        simulator = Simulator(self.dut)
        simulator.add_clock(6.4e-9)
        simulator.add_testbench(testbench)
        simulator.run()


@pytest.mark.parametrize("taken", [0.0, 0.3, 0.8])
def test_every_fetch_while_the_segmenter_takes_the_port(taken):
    """Rings of several QPs: each WQE once, in its ring's order, with what its own row says."""
    bench = Bench(7000, taken)

    async def script(ctx):
        for turn in range(40):
            bench.post(bench.rng.randrange(PARAMETERS.n_qp), bench.rng.randint(1, 4))
            await bench.cycles(ctx, bench.rng.randrange(60))
            if turn == 20:
                await bench.until_all_is_fetched(ctx)
                assert bench.producers[IN_RESET] and not bench.fetched[IN_RESET]
                await bench.write_row(ctx, IN_RESET, state=QpState.RTS)
        await bench.until_all_is_fetched(ctx)
        assert bench.fetched == bench.producers and min(bench.fetched) > 0

    bench.run(script)


@pytest.mark.parametrize("waits", [True, False], ids=["queued", "at once"])
@pytest.mark.parametrize("cycles", [1, 2, 3, 9])
def test_a_look_is_repeated_until_the_port_is_free(cycles, waits):
    """The port is taken for so many cycles, from each cycle on after a doorbell; of a QP that has
    to wait for its turn, or of one alone."""
    bench = Bench(7100, 0.0)

    async def script(ctx):
        dut, asked = bench.dut, set()
        if waits:
            bench.post(IN_RESET, 1)  # looked at in every turn
        for turn in range(36):
            bench.post(1, 1)
            await bench.cycles(ctx, turn % 12)
            bench.taken = 1.0
            await bench.cycles(ctx, cycles)
            asked.add(ctx.get(dut.qp.word))
            bench.taken = 0.0
            await bench.until_all_is_fetched(ctx)
            # A turn of the other QP may be at any of its three cycles when the next doorbell comes.
            await bench.cycles(ctx, 30 + turn // 12)
        assert bench.fetched[1] == 36 and not bench.fetched[IN_RESET]
        if cycles == 9:
            assert asked > {0}, f"of a row only the parts {asked} were waited for"

    bench.run(script)


def test_a_doorbell_that_brings_no_work_queues_its_qp_once():
    """Were it queued for each of them, the queue would run over and lose who else waits."""
    bench = Bench(7200, 0.0)

    async def script(ctx):
        ctx.set(bench.dut.enable, 0)
        for qpn in (IN_RESET, 0, 2):
            bench.post(qpn, 1)
        bench.doorbells.extend({"qpn": 1, "index": 0} for _ in range(300))
        while bench.doorbells:
            await bench.cycle(ctx)
        ctx.set(bench.dut.enable, 1)
        await bench.until_all_is_fetched(ctx)
        bench.post(1, 1)
        await bench.until_all_is_fetched(ctx)
        assert bench.fetched == [1, 1, 1, 0]

    bench.run(script)


def test_a_ring_that_is_reset_begins_with_index_0():
    """Whatever index comes with the reset; what was posted before is not fetched any more."""
    bench = Bench(7300, 0.0)

    async def script(ctx):
        for _ in range(8):
            bench.post(1, bench.rng.randint(1, 3))
            await bench.until_all_is_fetched(ctx)
            bench.doorbells.append({"qpn": 1, "index": bench.rng.getrandbits(32), "reset": 1})
            while bench.doorbells:
                await bench.cycle(ctx)
            bench.producers[1] = bench.fetched[1] = 0
            await bench.cycles(ctx, 40)
            assert not bench.fetched[1], "fetched of a ring that nothing is in"

    bench.run(script)
