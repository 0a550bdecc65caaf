"""CRC-32C matrices against two implementations that are not ours (P34)."""

import random

import crc32c as second
import google_crc32c as first
import pytest
from amaranth.hdl import Cat, Module, Signal
from amaranth.sim import Simulator

from uwarp_hdl.iwarp import crc32c

SEED = 20150309


def test_reference_value_and_residues():
    assert crc32c.crc32c(b"123456789") == 0xE3069283 == first.value(b"123456789")
    rng = random.Random(SEED)
    for length in range(200):
        octets = rng.randbytes(length)
        value = second.crc32c(octets)
        assert crc32c.crc32c(octets) == value == first.value(octets), f"{length=} {SEED=}"
        for zeros, residue in enumerate(crc32c.RESIDUES):
            tail = value.to_bytes(4, "little") + bytes(zeros)
            state = crc32c.step(crc32c.INITIAL, octets + tail)
            assert state == residue, f"{length=} {zeros=}: {state:#x}, not {residue:#x}"
    assert len(set(crc32c.RESIDUES)) == 9


def test_unstep_undoes_zero_octets():
    rng = random.Random(SEED)
    for octets in range(20):
        state = rng.getrandbits(32)
        assert crc32c.unstep(crc32c.advance(state, octets), octets) == state, f"{octets=}"
        assert crc32c.advance(crc32c.unstep(state, octets), octets) == state, f"{octets=}"


def test_values_of_every_width():
    """crc32c_next, its two shares and unstep as logic, for 1 to 8 octets."""
    state, data = Signal(32), Signal(64)
    results = {}
    m = Module()
    for octets in range(1, 9):
        part = data[: 8 * octets]
        outputs = [
            crc32c.crc32c_next(state, part),
            crc32c.advance(state, octets) ^ crc32c.data_share(part),
            crc32c.unstep(state, octets),
        ]
        results[octets] = []
        for output in outputs:
            assert len(output) == 32
            result = Signal(32)
            m.d.comb += result.eq(output)
            results[octets].append(result)

    async def bench(ctx):
        rng = random.Random(SEED)
        for _ in range(40):
            start, word = rng.getrandbits(32), rng.randbytes(8)
            ctx.set(state, start)
            ctx.set(data, int.from_bytes(word, "little"))
            for octets, signals in results.items():
                expected = first.extend(start ^ 0xFFFF_FFFF, word[:octets]) ^ 0xFFFF_FFFF
                got = [ctx.get(signal) for signal in signals]
                what = f"{octets=} {start=:#x} {word.hex()} {SEED=}"
                assert got[:2] == [expected, expected], what
                assert crc32c.step(got[2], bytes(octets)) == start, what

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize("width", [0, 4, 12, 72])
def test_width_is_checked(width):
    with pytest.raises(ValueError, match=f"data is {width} bits wide"):
        crc32c.crc32c_next(Signal(32), Signal(width))
    with pytest.raises(ValueError, match=f"data is {width} bits wide"):
        crc32c.data_share(Signal(width))
    with pytest.raises(ValueError, match="state is 31 bits wide"):
        crc32c.unstep(Signal(31), 4)
    with pytest.raises(ValueError, match="octets is -1"):
        crc32c.advance(Cat(Signal(32)), -1)
