"""Scenarios on the rtl form and the model at once, without a simulator's scheduler."""

from __future__ import annotations

import pytest

from sim_tb.corners import SLOW, corners, groups, overload, reads, stags, terminates, zero_length
from sim_tb.receiving import small_messages
from sim_tb.trials import Scenario, Trial, play_scenario
from uwarp.device import build, open_link
from uwarp.verbs import IBV_ACCESS_LOCAL_WRITE, MR, PD, Context

SEED = 1


async def many_small_messages(trial: Trial) -> None:
    await small_messages(trial, 30)


@pytest.mark.parametrize("latency", [0, 90])
@pytest.mark.parametrize(
    "scenario", [corners, zero_length, stags, many_small_messages, reads, groups, terminates]
)
def test_p28_p29_p25(scenario: Scenario, latency: int) -> None:
    try:
        play_scenario(scenario, SEED, read_latency=latency, write_latency=latency)
    except build.MissingToolError as error:
        pytest.skip(str(error))


def test_p16_overload() -> None:
    try:
        play_scenario(overload, SEED, write_latency=SLOW)
    except build.MissingToolError as error:
        pytest.skip(str(error))


def test_p29_stag_0_is_not_handed_out() -> None:
    with (
        open_link("model") as link,
        Context(device=link.devices[0], mac="02:00:00:00:00:01", ipv4="10.0.0.1") as context,
    ):
        pd = PD(context)
        keys: set[int] = set()
        for _ in range(40):
            regions = [MR(pd, 64, IBV_ACCESS_LOCAL_WRITE) for _ in range(4)]
            new = {key for region in regions for key in (region.lkey, region.rkey)}
            assert 0 not in new
            assert not keys & new, "a key is handed out again at once"
            keys = new
            for region in regions:
                region.close()
