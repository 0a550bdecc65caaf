"""The buckets of send rates, against the rule in exact arithmetic (device behaviour, 7.9)."""

import random

import pytest
from amaranth.sim import Simulator

from uwarp.contract import QP_ENTRY, TICK_CYCLES, Parameters
from uwarp_hdl.iwarp.token_bucket import TokenBuckets, refill_ticks


class Buckets:
    """The unit, and beside it what each bucket holds, in 1/256 of an octet."""

    def __init__(self, seed, n_qp):
        self.parameters = Parameters(n_qp=n_qp)
        self.dut = TokenBuckets(self.parameters)
        self.rng = random.Random(seed)
        self.rate = [0] * n_qp
        self.limit = [64 * 256] * n_qp
        self.level = [64 * 256] * n_qp
        self.now = 0
        print(f"seed {seed}")

    def run(self, script):
        async def testbench(ctx):
            self.ctx = ctx
            ctx.set(self.dut.wakes.ready, 1)
            await script()

        simulator = Simulator(self.dut)
        simulator.add_clock(6.4e-9)
        simulator.add_testbench(testbench)
        simulator.run()

    async def cycles(self, count):
        await self.ctx.tick().repeat(count)
        self.now += count

    async def write(self, qpn, rate, burst):
        ctx, dut = self.ctx, self.dut
        ctx.set(dut.written, 1)
        ctx.set(dut.written_qpn, qpn)
        ctx.set(dut.written_row.as_value(), QP_ENTRY.to_int(send_rate=rate, send_burst=burst))
        await self.cycles(1)
        ctx.set(dut.written, 0)
        self.rate[qpn], self.limit[qpn] = rate, (burst + 1) * 64 * 256
        self.level[qpn] = self.limit[qpn]

    async def charge(self, qpn, octets):
        ctx, dut = self.ctx, self.dut
        ctx.set(dut.charge, {"valid": 1, "qpn": qpn, "octets": octets})
        await self.cycles(1)
        ctx.set(dut.charge.valid, 0)
        self.level[qpn] -= (max(octets, 60) + 24) * 256

    def is_dry(self, qpn):
        self.ctx.set(self.dut.look, qpn)
        return self.ctx.get(self.dut.dry)


def test_rate_in_exact_arithmetic():
    """1 Gb/s at 156.25 MHz is 819.2 octets a tick: whoever sends whenever it may has just that."""
    bench = Buckets(1, 8)
    rate = round(1e9 / 8 * TICK_CYCLES / 156.25e6 * 256)

    async def script():
        await bench.write(3, rate, 200)
        await bench.cycles(16)
        while not bench.is_dry(3):
            await bench.charge(3, 9000)
            await bench.cycles(5)
        while bench.is_dry(3):
            await bench.cycles(1)
        # From just after a refill to just after another.
        sent, begin = 0, bench.now
        while bench.now < begin + 40 * TICK_CYCLES:
            if not bench.is_dry(3):
                await bench.charge(3, 300)
                sent += 324 * 256
            await bench.cycles(9)
        gained = 40 * rate
        assert abs(sent - gained) <= 2 * 324 * 256, f"{sent / 256} octets, not {gained / 256}"
        assert abs(sent / gained - 1) < 0.01, f"{sent / 256} octets, not {gained / 256}"

    bench.run(script)


def test_level_falls_and_rises_to_the_octet():
    """From full down to nothing, 1/256 of an octet above it, below it; up to the limit, no more."""
    bench = Buckets(2, 4)

    async def script():
        for extra, dry in ((0, True), (1, False)):
            # A tick raises it from -60 octets to nothing, or to the smallest part of one.
            await bench.write(1, 20 * 256 + extra, 0)
            await bench.cycles(16)
            await bench.charge(1, 100)
            await bench.cycles(4)
            assert bench.is_dry(1)
            await bench.cycles(3 * TICK_CYCLES)
            assert bench.is_dry(1) == dry, f"{extra=}"
        await bench.write(1, 2**32 - 1, 65535)
        await bench.cycles(3 * TICK_CYCLES)
        # The largest bucket holds 4 MiB: 453 frames of 9240 octets leave it above 0, 454 do not.
        ready = 65536 * 64
        charges = 0
        while not bench.is_dry(1) and charges < 460:
            await bench.charge(1, 9216)
            charges += 1
            await bench.cycles(4)
        assert charges >= ready // 9240
        await bench.write(1, 0, 0)
        await bench.cycles(16)
        for _ in range(3):
            await bench.charge(1, 9000)
            await bench.cycles(5)
            assert not bench.is_dry(1), "a QP without a rate is held back"

    bench.run(script)


def test_wakes():
    """One for each bucket that is above 0 again, filled or refilled, and only then."""
    bench = Buckets(3, 64)

    woken = []

    async def cycles(count):
        """Wakes are taken in one cycle of four."""
        ctx, dut = bench.ctx, bench.dut
        for _ in range(count):
            ready = bench.rng.random() < 0.25
            ctx.set(dut.wakes.ready, ready)
            if ready and ctx.get(dut.wakes.valid):
                woken.append(ctx.get(dut.wakes.payload))
                assert not bench.is_dry(woken[-1])
            await bench.cycles(1)
        ctx.set(dut.wakes.ready, 0)

    async def script():
        for qpn in range(64):
            await bench.write(qpn, 100 * 256, 0)
            await cycles(20)
            await bench.charge(qpn, 100)
            await cycles(10)
        await cycles(2 * TICK_CYCLES)
        assert sorted(woken) == list(range(64))

    bench.run(script)


@pytest.mark.parametrize("n_qp", [4, 64, pytest.param(1024, marks=pytest.mark.soak)])
def test_no_charge_and_no_refill_is_lost(n_qp):
    """Charges as fast as they may come, many on their way together with a refill of the same QP."""
    bench = Buckets(10 + n_qp, n_qp)
    rng = bench.rng
    ticks = refill_ticks(bench.parameters)
    every = TICK_CYCLES * ticks
    busy = [0, 1, n_qp - 1]

    async def script():
        # When QP 0 is refilled: a bucket below 0 is above it in one step.
        await bench.write(0, 2**31, 0)
        await bench.cycles(16)
        while not bench.is_dry(0):
            await bench.charge(0, 9000)
            await bench.cycles(8)
        while bench.is_dry(0):
            await bench.cycles(1)
        phase = bench.now % every
        due = {qpn: (phase + qpn * every // n_qp) % every for qpn in busy}
        filled = {}
        for qpn in busy:
            while abs((bench.now - due[qpn] + every // 2) % every - every // 2) < 40:
                await bench.cycles(1)
            # From the first charge on, refills never fill it again.
            await bench.write(qpn, rng.randrange(100_000, 300_000), 65535)
            filled[qpn] = bench.now
            await bench.cycles(8)
            for _ in range(455):
                await bench.charge(qpn, 9216)
                await bench.cycles(7)
        checked = {False: 0, True: 0}
        end = bench.now + 40 * TICK_CYCLES
        while bench.now < end:
            qpn = rng.choice(busy)
            away = (bench.now - due[qpn] + every // 2) % every - every // 2
            if rng.random() < 0.5 and abs(away) < 20:
                await bench.charge(qpn, 40)
                await bench.cycles(rng.choice((3, 3, 5)))
                continue
            if abs(away) < 20:
                await bench.cycles(1)
                continue
            refills = (bench.now - due[qpn]) // every - (filled[qpn] - due[qpn]) // every
            level = bench.level[qpn] + refills * ticks * bench.rate[qpn]
            dry = level <= 0
            assert bench.is_dry(qpn) == dry, f"QP {qpn} has {level / 256} octets"
            checked[dry] += 1
            if not dry:
                await bench.charge(
                    qpn,
                    min(9216, max(40, rng.choice((60, 700, level // 256 - 24, level // 256 - 23)))),
                )
            await bench.cycles(rng.choice((3, 5, 40)))
        assert min(checked.values()) > 50, f"{checked}"

    bench.run(script)
