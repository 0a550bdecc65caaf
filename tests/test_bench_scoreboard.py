"""The scenarios and the scoreboard, with the model on both sides."""

import random

import pytest

from sim_tb import faults, headers, hosting, receiving, sending
from sim_tb.sides import ModelSide
from sim_tb.stage import BENCH, Stage, host_memories
from uwarp.contract import CQE
from uwarp.wire import Opcode

SCENARIOS = {
    "write lengths": (receiving.every_length, Opcode.WRITE, list(range(0, 1501, 3))),
    "record lengths": (receiving.every_length, Opcode.WRITE_RECORD, list(range(0, 1501, 3))),
    "send lengths": (receiving.every_length, Opcode.SEND, list(range(0, 1501, 3))),
    "large messages": (receiving.large_messages, 4),
    "small messages": (receiving.small_messages, 20),
    "received sends": (receiving.received_sends,),
    "tracker rules": (receiving.tracker_rules,),
    "wrong octets": (faults.wrong_octets, 9),
    "cut frames": (faults.cut_frames, 40),
    "flagged frames": (faults.flagged_frames,),
    "every reason": (faults.every_reason,),
    "every header": (headers.every_header, 600),
    "cut headers": (headers.cut_headers,),
    "wrong octets in headers": (headers.wrong_octets_in_headers,),
    "addresses": (headers.addresses,),
    "peers": (headers.peers,),
    "send alignments": (sending.lengths_and_alignments, list(range(0, 3000, 17))),
    "several senders": (sending.several_senders,),
    "send errors": (sending.send_errors,),
    "both directions": (sending.both_directions, 8),
    "broken memory": (hosting.broken_memory,),
    "identity": (hosting.identity,),
    "interrupts": (hosting.interrupts,),
    "resets": (hosting.resets,),
}


def run(coroutine) -> None:
    """Run a coroutine that never waits, as those of the model do not."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def model_stage(seed: int) -> Stage:
    first, second = host_memories(seed)
    return Stage(ModelSide(BENCH, first), second, random.Random(seed), False)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("seed", (1, 2, 3))
def test_model_against_itself(name, seed):
    scenario, *arguments = SCENARIOS[name]

    async def play() -> None:
        stage = model_stage(seed)
        await stage.set_up()
        await scenario(stage, *arguments)

    run(play())


def _stray_octet(stage: Stage) -> None:
    stage.nic.memory.octets[-1] ^= 1


def _wrong_cqe(stage: Stage) -> None:
    start = stage.queue_range(1).start - stage.nic.memory.base
    stage.nic.memory.octets[start + CQE.offset("valid") // 8] ^= 1


def _extra_frame(stage: Stage) -> None:
    stage.nic.sent.append(bytes(60))


def _lost_frame(stage: Stage) -> None:
    stage.model.receive(stage.frame(stage.write(stage.plain, 0, 1)))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (_stray_octet, "memory differs in 1 octets"),
        (_wrong_cqe, "CQ 1"),
        (_extra_frame, "1 frames, not 0"),
        (_lost_frame, "RX_FRAMES 1, not 2"),
    ],
)
def test_scoreboard_finds(fault, message):
    async def play() -> None:
        stage = model_stage(1)
        await stage.set_up()
        (segment,) = stage.record(stage.plain, 0, 9)
        stage.receive(stage.frame(segment))
        fault(stage)
        with pytest.raises(AssertionError, match=message):
            await stage.check()

    run(play())
