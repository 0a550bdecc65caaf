"""The cocotb tests of the whole NIC: each scenario, with and without stalls on every port (P12).

``UWARP_SEED`` sets the seed (1 if unset). ``UWARP_SOAK`` makes the random ones longer, plays
every length and every header, and without stalls also what ``tests/test_scenarios.py``,
``tests/test_corners.py`` and ``tests/test_coverage.py`` play so in any case, on the NIC without
this simulator, which takes some fifty times as long.
"""

import logging
import os
import random
from collections.abc import Awaitable, Callable

import cocotb

from uwarp.wire import Opcode

from . import (
    faults,
    gathering,
    grouping,
    headers,
    hosting,
    reading,
    receiving,
    sending,
    terminating,
    trouble,
)
from .sides import GatewareSide
from .stage import Stage, host_memories

SOAK = bool(os.environ.get("UWARP_SOAK"))
SEED = int(os.environ.get("UWARP_SEED", "1"))

_test = cocotb.test(timeout_time=100, timeout_unit="ms")
_stalls = cocotb.parametrize(stalled=[False, True])
# What the NIC without this simulator plays in every run, without stalls.
_more_stalls = cocotb.parametrize(stalled=[False, True] if SOAK else [True])


async def _play(dut, stalled: bool, scenario: Callable[..., Awaitable[None]], *arguments) -> None:
    """Set a stage up and run a scenario on it; a failure names the seed."""
    logging.getLogger("cocotb.uwarp_nic").setLevel(logging.WARNING)
    memory, model_memory = host_memories(SEED)
    stalls = random.Random(SEED + 1) if stalled else None
    nic = await GatewareSide.start(dut, memory, stalls)
    stage = Stage(nic, model_memory, random.Random(SEED), stalled)
    try:
        await stage.set_up()
        await scenario(stage, *arguments)
    except BaseException:
        cocotb.log.error(
            "%s failed with seed %d; again: UWARP_SEED=%d %spytest tests/test_bench_nic.py",
            scenario.__name__,
            SEED,
            SEED,
            "UWARP_SOAK=1 " if SOAK else "",
        )
        raise


def _lengths(longest: int = 1500) -> list[int]:
    """Payload lengths: a sample, since stalls are slow to simulate."""
    lengths = range(longest + 1)
    return list(lengths) if SOAK else random.Random(SEED).sample(lengths, longest // 15)


@_test
@_more_stalls
async def write_lengths(dut, stalled):
    await _play(dut, stalled, receiving.every_length, Opcode.WRITE, _lengths())


@_test
@_more_stalls
async def record_lengths(dut, stalled):
    await _play(dut, stalled, receiving.every_length, Opcode.WRITE_RECORD, _lengths())


@_test
@_more_stalls
async def send_lengths(dut, stalled):
    await _play(dut, stalled, receiving.every_length, Opcode.SEND, _lengths())


@_test
@_more_stalls
async def large_messages(dut, stalled):
    await _play(dut, stalled, receiving.large_messages, 20 if SOAK else 2)


@_test
@_more_stalls
async def small_messages(dut, stalled):
    await _play(dut, stalled, receiving.small_messages, 300 if SOAK else 8)


@_test
@_more_stalls
async def received_sends(dut, stalled):
    await _play(dut, stalled, receiving.received_sends)


@_test
@_more_stalls
async def long_sends(dut, stalled):
    await _play(dut, stalled, receiving.long_sends, 40 if SOAK else 2)


@_test
@_stalls
async def tracker_rules(dut, stalled):
    await _play(dut, stalled, receiving.tracker_rules)


@_test
@_more_stalls
async def wrong_octets_short(dut, stalled):
    await _play(dut, stalled, faults.wrong_octets, 9)


@_test
@_more_stalls
async def wrong_octets_long(dut, stalled):
    length = faults.record_octets(1408)
    count = length if SOAK else 20
    positions = random.Random(SEED).sample(range(length), count)
    await _play(dut, stalled, faults.wrong_octets, 1408, positions)


@_test
@_more_stalls
async def cut_frames(dut, stalled):
    await _play(dut, stalled, faults.cut_frames, 40)


@_test
@_stalls
async def flagged_frames(dut, stalled):
    await _play(dut, stalled, faults.flagged_frames)


@_test
@_more_stalls
async def every_reason(dut, stalled):
    await _play(dut, stalled, faults.every_reason)


@_test
@_more_stalls
async def every_header(dut, stalled):
    await _play(dut, stalled, headers.every_header, None if SOAK else 300)


@_test
@_more_stalls
async def cut_headers(dut, stalled):
    await _play(dut, stalled, headers.cut_headers)


@_test
@_more_stalls
async def wrong_octets_in_headers(dut, stalled):
    await _play(dut, stalled, headers.wrong_octets_in_headers)


@_test
@_more_stalls
async def addresses(dut, stalled):
    await _play(dut, stalled, headers.addresses)


@_test
@_more_stalls
async def peers(dut, stalled):
    await _play(dut, stalled, headers.peers)


@_test
async def overload(dut):
    await _play(dut, False, faults.overload)


@_test
@_more_stalls
async def send_alignments(dut, stalled):
    lengths = sending.telling_lengths(1500 if SOAK else 260)
    if stalled:
        lengths = [*random.Random(SEED).sample(lengths, 60), 20000]
    await _play(dut, stalled, sending.lengths_and_alignments, lengths)


@_test
@_more_stalls
async def several_senders(dut, stalled):
    await _play(dut, stalled, sending.several_senders)


@_test
@_more_stalls
async def both_directions(dut, stalled):
    await _play(dut, stalled, sending.both_directions, 40 if SOAK else 2)


@_test
@_more_stalls
async def send_errors(dut, stalled):
    await _play(dut, stalled, sending.send_errors)


@_test
async def identity(dut):
    await _play(dut, False, hosting.identity)


@_test
@_more_stalls
async def interrupts(dut, stalled):
    await _play(dut, stalled, hosting.interrupts)


@_test
@_stalls
async def resets(dut, stalled):
    await _play(dut, stalled, hosting.resets)


@_test
async def broken_memory(dut):
    await _play(dut, False, hosting.broken_memory)


@_test
@_stalls
async def order_of_writes(dut, stalled):
    await _play(dut, stalled, hosting.order_of_writes)


@_test
@_more_stalls
async def event_ring(dut, stalled):
    await _play(dut, stalled, trouble.event_ring)


@_test
@_more_stalls
async def snapshot(dut, stalled):
    await _play(dut, stalled, trouble.snapshot)


@_test
@_more_stalls
async def closing(dut, stalled):
    await _play(dut, stalled, trouble.closing)


@_test
@_more_stalls
async def failing_memory(dut, stalled):
    await _play(dut, stalled, trouble.failing_memory)


@_test
@_more_stalls
async def moderation(dut, stalled):
    await _play(dut, stalled, trouble.moderation)


@_test
async def gathered(dut):
    await _play(dut, True, gathering.gathered, 60 if SOAK else 10)


@_test
async def answered(dut):
    await _play(dut, True, reading.answered, 30 if SOAK else 4)


@_test
async def reads(dut):
    await _play(dut, True, reading.reads, 30 if SOAK else 3)


@_test
async def reads_in_silence(dut):
    await _play(dut, True, reading.reads_in_silence)


@_test
async def groups(dut):
    await _play(dut, True, grouping.groups)


@_test
async def looped(dut):
    await _play(dut, True, grouping.looped, 20 if SOAK else 2)


@_test
async def looped_groups(dut):
    await _play(dut, True, grouping.looped_groups)


@_test
async def terminated(dut):
    await _play(dut, True, terminating.terminated, 6 if SOAK else 1)


@_test
async def not_terminated(dut):
    await _play(dut, True, terminating.not_terminated)


@_test
async def terminates_told(dut):
    await _play(dut, True, terminating.terminates_told)
