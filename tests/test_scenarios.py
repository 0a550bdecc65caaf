"""Scenarios on the gateware and the model, each with nothing held up but by memory.

P1 to P9, P13, P14, P19, P27, P29, P31, P33, P38, P39, P43 are among them;
``tests/test_bench_nic.py`` plays most of them with stalls on every port.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from sim_tb import (
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
from sim_tb.stage import Stage
from sim_tb.trials import TIMED, play_scenario
from tests.seeds import seeds
from uwarp.device import build
from uwarp.wire import Opcode

#: Octets of a frame whose payload are 1408, of a sample of which each is wrong in turn.
PLACES = random.Random(1).sample(range(faults.record_octets(1408)), 120)
SCENARIOS: dict[str, Callable[[Stage], Awaitable[object]]] = {
    "large messages": lambda stage: receiving.large_messages(stage, 2),
    "received Sends": receiving.received_sends,
    "wrong octets, short": lambda stage: faults.wrong_octets(stage, 9),
    "wrong octets, long": lambda stage: faults.wrong_octets(stage, 1408, PLACES),
    "cut frames": lambda stage: faults.cut_frames(stage, 40),
    "cut headers": headers.cut_headers,
    "wrong octets in headers": headers.wrong_octets_in_headers,
    "send alignments": lambda stage: sending.lengths_and_alignments(
        stage, sending.telling_lengths()
    ),
    "several senders": sending.several_senders,
    "both directions": lambda stage: sending.both_directions(stage, 4),
    "send errors": sending.send_errors,
    "interrupts": hosting.interrupts,
    "event ring": trouble.event_ring,
    "snapshot": trouble.snapshot,
    "closing": trouble.closing,
    "failing memory": trouble.failing_memory,
    "moderation": trouble.moderation,
}


def play(scenario: Callable[[Stage], Awaitable[object]], seed: int) -> None:
    """On a NIC whose memory takes its time, more or less with the seed."""
    latency = (8, 40, 156)[seed % 3]
    try:
        play_scenario(scenario, seed, read_latency=latency, write_latency=latency)
    except build.MissingToolError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    play(SCENARIOS[name], TIMED)


@pytest.mark.parametrize("seed", seeds(1, 5))
@pytest.mark.parametrize("opcode", [Opcode.WRITE, Opcode.WRITE_RECORD, Opcode.SEND])
def test_p1_p2_p14_p33_every_length(opcode: Opcode, seed: int) -> None:
    play(lambda stage: receiving.every_length(stage, opcode, [*range(1501)]), seed)


@pytest.mark.parametrize("seed", seeds(1, 5))
def test_p3_p4_p5_p6_p8_p9_p19_p31_every_header(seed: int) -> None:
    play(lambda stage: headers.every_header(stage, None), seed)


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_gathered(seed: int) -> None:
    play(lambda stage: gathering.gathered(stage, 60), seed)


@pytest.mark.parametrize("seed", seeds(1, 5))
def test_p38_p39_wide_send_requests_that_fail(seed: int) -> None:
    play(gathering.gather_errors, seed)


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_read_requests_are_answered(seed: int) -> None:
    play(lambda stage: reading.answered(stage, 20), seed)


def test_p27_p29_read_requests_that_are_refused() -> None:
    play(reading.read_requests_refused, 1)


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_p20_p21_reads(seed: int) -> None:
    play(lambda stage: reading.reads(stage, 20), seed)


def test_p23_reads_in_silence() -> None:
    play(reading.reads_in_silence, TIMED)


@pytest.mark.parametrize("seed", seeds(3, 20))
def test_p43_groups(seed: int) -> None:
    play(grouping.groups, seed)


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_frames_to_the_own_address(seed: int) -> None:
    play(lambda stage: grouping.looped(stage, 6), seed)


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_p43_own_frames_to_a_group(seed: int) -> None:
    play(grouping.looped_groups, seed)


@pytest.mark.parametrize("seed", seeds(1, 5))
def test_terminated(seed: int) -> None:
    """Each takes the time of 64 ticks."""
    play(lambda stage: terminating.terminated(stage, 5), seed)


@pytest.mark.soak
def test_terminated_for_every_reason() -> None:
    play(lambda stage: terminating.terminated(stage, terminating.REFUSALS), 1)


def test_not_terminated() -> None:
    play(terminating.not_terminated, 1)


def test_terminates_that_wait() -> None:
    play(terminating.waiting, 1)


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_terminates_of_peers(seed: int) -> None:
    play(terminating.terminates_told, seed)
