"""Testbenches on a compiled unit find what they find in Amaranth's simulator."""

import random

import pytest
from amaranth.hdl import Cat, Signal

from sim_tb.port_tables import TabledReceiver
from sim_tb.units import COMPILED, Compiled, Simulated, unit

SIZES = {"payload_words": 256, "datagrams": 8}


def beats(rng, frames):
    """Bits of the beats of frames that mean nothing, with pauses."""
    for _ in range(frames):
        words = rng.randint(1, 12)
        for word in range(words):
            while rng.random() < 0.2:
                yield 0
            last = word == words - 1
            count = rng.randint(1, 8) if last else 8
            yield 1 | (rng.getrandbits(64) | count << 64 | last << 68) << 1
    yield from [0] * 20


def trace(receiver):
    """What two testbenches see, in order."""
    dut, rng, seen = receiver.component, random.Random(4), []

    async def drive(ctx):
        ctx.set(dut.config, {"enable": 1, "mac": 0x020000000001, "mtu": 64})
        ctx.set(dut.config.accept_multicast, 1)
        seen.append(ctx.get(dut.config))
        await ctx.tick().repeat(4)
        for bits in beats(rng, 60):
            ctx.set(Cat(dut.rx.valid, dut.rx.payload.as_value()), bits)
            seen.append((ctx.get(dut.rx.ready), ctx.get(dut.rx.payload), ctx.get(dut.events[3:40])))
            await ctx.tick()
        (events,) = await ctx.tick().sample(dut.events).until(~dut.rx.valid & dut.rx.ready)
        seen.append(events)

    async def watch(ctx):
        while True:
            clock, reset, *values = await ctx.tick().sample(
                dut.events, dut.waiting, dut.rx.payload, ~dut.rx.valid & dut.rx.ready
            )
            seen.append((clock, reset, *values))

    receiver.run(drive, background=[watch], max_cycles=2000)
    return seen


def test_both_simulators_tell_the_same():
    compiled = trace(unit(TabledReceiver, **SIZES))
    assert compiled == trace(Simulated(TabledReceiver, **SIZES))
    assert len({item[2] for item in compiled if isinstance(item, tuple)}) > 3


def test_a_run_begins_anew():
    receiver = unit(TabledReceiver, **SIZES)
    assert receiver is unit(TabledReceiver, **SIZES)
    assert trace(receiver) == trace(receiver)


@pytest.mark.parametrize("make", [unit, Simulated])
def test_a_run_that_does_not_end(make):
    receiver = make(TabledReceiver, **SIZES)

    async def wait(ctx):
        while True:
            await ctx.tick()

    with pytest.raises(AssertionError, match="still running after 10 cycles"):
        receiver.run(wait, max_cycles=10)


def test_only_ports_can_be_read_and_only_inputs_set():
    receiver = unit(TabledReceiver, **SIZES)
    inner = Signal(name="inner")

    async def read(ctx):
        ctx.get(inner)

    async def write(ctx):
        ctx.set(receiver.component.events, 1)

    with pytest.raises(ValueError, match=r"inner.* is no port of the unit"):
        receiver.run(read)
    with pytest.raises(ValueError, match=r"events.* is no input of the unit"):
        receiver.run(write)


def test_which_are_compiled():
    for make, arguments, options in COMPILED:
        assert isinstance(unit(make, *arguments, **options), Compiled)
    assert isinstance(unit(TabledReceiver, **SIZES | {"datagrams": 16}), Simulated)
