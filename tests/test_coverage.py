"""Every condition of the written rule is met on the rtl form, and every drop counter moves.

Once more, with the table: ``python -m sim_tb.coverage``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim_tb.coverage import CONDITIONS, Coverage, main
from uwarp.contract import DROPS
from uwarp.device import build

REPORT = Path(__file__).parents[1] / "build" / "coverage.txt"


def test_p16_p17_all_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--seed", "1", "--matrix", "250", "--trials", "1", "--output", str(REPORT)]
    try:
        status = main(small)
    except build.MissingToolError as error:
        pytest.skip(str(error))
    report = capsys.readouterr().out
    missed = [line for line in report.splitlines() if line.startswith("not met")]
    assert not missed and status == 0
    assert REPORT.read_text() == report
    runs = json.loads(REPORT.with_suffix(".json").read_text())
    met = {condition for counts in runs.values() for condition in counts}
    assert met == set(CONDITIONS)
    assert {counter.name for counter in DROPS} <= met


def test_what_is_not_met_is_named() -> None:
    coverage = Coverage()
    coverage.add("run", [condition for condition in CONDITIONS if condition != "2.9 IPv6"])
    assert coverage.missed == ["2.9 IPv6"]
    assert coverage.report().endswith("not met: 2.9 IPv6")
    with pytest.raises(KeyError, match=r"2\.99"):
        coverage.add("run", ["2.99"])
