"""Comparisons."""

from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from uwarp_hdl.compare import at_least, equal


def simulate(m, bench):
    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()


def test_at_least():
    m = Module()
    value = Signal(5)
    results = Signal(40)
    m.d.comb += [results[least].eq(at_least(value, least)) for least in range(40)]

    async def bench(ctx):
        for number in range(32):
            ctx.set(value, number)
            assert ctx.get(results) == sum((number >= least) << least for least in range(40))

    simulate(m, bench)


def test_equal():
    m = Module()
    a, b = Signal(3), Signal(3)
    result = Signal()
    m.d.comb += result.eq(equal(m, a, b))

    async def bench(ctx):
        for left in range(8):
            for right in range(8):
                ctx.set(a, left)
                ctx.set(b, right)
                assert ctx.get(result) == (left == right)

    simulate(m, bench)
