"""Comparisons with constants."""

from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from uwarp_hdl.iwarp.compare import at_least


def test_at_least():
    m = Module()
    value = Signal(5)
    results = Signal(40)
    m.d.comb += [results[least].eq(at_least(value, least)) for least in range(40)]

    async def bench(ctx):
        for number in range(32):
            ctx.set(value, number)
            assert ctx.get(results) == sum((number >= least) << least for least in range(40))

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()
