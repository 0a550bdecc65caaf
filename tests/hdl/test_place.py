"""Placer: exact octets at every alignment (P12, P14, P33)."""

import pytest
from receive_bench import HostMemory, make_rng, payload_words, put_stream, run

from uwarp.contract import Parameters
from uwarp_hdl.iwarp.place import Placer


def place(cases, rng, stall, delay=lambda: 3, outstanding=64, max_cycles=100_000):
    """Run commands (offset, address, octets, drop); check every octet that was written."""
    dut = Placer(Parameters(), outstanding)
    memory = HostMemory(dut.write, rng, stall, delay)
    commands = []
    words = []
    for offset, address, octets, drop in cases:
        commands.append({"address": address, "length": len(octets), "offset": offset, "drop": drop})
        words += payload_words(octets, offset, rng)
    placed = sum(not drop for *_, drop in cases)

    async def command(ctx):
        await put_stream(ctx, dut.commands, commands, rng, stall)

    async def payload(ctx):
        await put_stream(ctx, dut.payload, words, rng, stall)
        # All words are taken, so what is left is in the output register or waits for its answer.
        await ctx.tick().repeat(3)
        while memory.unanswered or memory.bursts or ctx.get(dut.write.beats.valid):
            await ctx.tick()
        await ctx.tick()
        assert ctx.get(dut.retired) == placed % 256

    run(dut, command, payload, background=[memory.serve], max_cycles=max_cycles)
    expected = {}
    for _, address, octets, drop in cases:
        if not drop:
            for i, octet in enumerate(octets):
                assert address + i not in expected
                expected[address + i] = octet
    assert memory.octets == expected, (
        f"{len(memory.octets)} octets written, {len(expected)} expected; first difference at "
        f"{min(set(memory.octets.items()) ^ set(expected.items()))}"
    )
    assert set(memory.written.values()) <= {1}
    return memory


@pytest.mark.parametrize("stall", [0.0, 0.4])
def test_every_alignment_and_length(stall):
    rng = make_rng(1)
    cases = []
    base = 0x1000
    for offset in range(8):
        for lane in range(8):
            for length in range(1, 41):
                if stall and rng.random() < 0.7:
                    continue
                cases.append((offset, base + lane, rng.randbytes(length), rng.random() < 0.1))
                base += 64
    rng.shuffle(cases)
    place(cases, rng, stall)


@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_long_payloads_cross_pages(stall):
    rng = make_rng(2)
    base = (1 << 63) + 0x7F0
    cases = []
    for length in (2040, 2048, 2049, 4096, 4097, 8896, 9000):
        for _ in range(1 if stall else 2):
            cases.append((rng.randrange(8), base + rng.randrange(8), rng.randbytes(length), 0))
            base += 0x4000 + 8 * rng.randrange(512)
    place(cases, rng, stall)


def test_a_word_a_cycle_with_a_slow_host():
    """1.5 us to answer: bursts overlap, and a 64-octet payload takes at most 11 cycles."""
    rng = make_rng(3)
    cases = [(0, 64 * 3 * i + 3, rng.randbytes(64), 0) for i in range(100)]
    memory = place(cases, rng, 0.0, delay=lambda: 234, max_cycles=100 * 11 + 300)
    assert memory.max_unanswered >= 16


def test_few_outstanding():
    rng = make_rng(4)
    cases = [(5, 1000 * i + 3, rng.randbytes(300), 0) for i in range(20)]
    memory = place(cases, rng, 0.2, delay=lambda: 50, outstanding=2)
    assert memory.max_unanswered <= 2
