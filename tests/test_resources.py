"""The table of resources, and the path from a unit to its row."""

import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.lib import data

from uwarp_boards import synth
from uwarp_boards.resources import resources_table
from uwarp_boards.synth import PathStep, UnitReport, synthesise
from uwarp_hdl.stream.skid import Skid
from uwarp_hdl.units import UNITS

SHAPE = data.StructLayout({"a": 3})


def test_table() -> None:
    steps = [PathStep(0.52, "unit.held"), PathStep(1.234, "unit.o__valid")]
    reports = [
        UnitReport("skid", 12, 34, 1, 0, 201.25, {1: 199.0, 2: 201.25, 3: 230.0}, steps),
        UnitReport("queue", 5, 6, 0, 2, 180.0, {1: 180.0}, []),
    ]
    text = resources_table(reports, speed=8)
    assert "n_qp 64" in text and "LFE5U-85F, speed grade 8" in text
    assert text.splitlines()[-2:] == [
        "| `skid` | 12 | 34 | 1 | 0 | 201.2 | 3 | `held` 0.52 → `o__valid` 1.23 |",
        "| `queue` | 5 | 6 | 0 | 2 | 180.0 | 1 |  |",
    ]
    assert "Not measured" not in text
    partial = resources_table(reports, speed=8, missing=["nic", "trackers"])
    assert "each place. Not measured: `nic`, `trackers`." in partial


def test_a_unit_is_measured(tmp_path: Path) -> None:
    """A skid buffer of 3 bits: what it catches and that it is empty, 4 flip-flops."""
    report = synthesise("skid", Skid(SHAPE), directory=tmp_path)
    assert report.ff == 4 and 3 <= report.lut4 <= 12, report
    assert report.block_ram == report.dsp == 0 and report.mhz > 100, report
    assert report.critical_path and all(step.delay > 0 for step in report.critical_path)
    row = resources_table([report], speed=8).splitlines()[-1]
    assert row.startswith(f"| `skid` | {report.lut4} | 4 | 0 | 0 | {report.mhz:.1f} | 1 | `")


def test_what_was_measured_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither tool runs again for the same unit; another seed only places it."""
    cache = tmp_path / "cache"
    first = synthesise("skid", Skid(SHAPE), cache=cache)
    runs: list[str] = []
    run = synth._run
    monkeypatch.setattr(synth, "_run", lambda a, d: (runs.append(Path(a[0]).name), run(a, d)))
    assert synthesise("skid", Skid(SHAPE), cache=cache) == first
    assert not runs
    both = synthesise("skid", Skid(SHAPE), seeds=2, cache=cache)
    assert both.mhz_by_seed[1] == first.mhz and len(both.mhz_by_seed) == 2
    assert sum("nextpnr" in name for name in runs) == 2
    runs.clear()
    synthesise("skid", Skid(data.StructLayout({"a": 4})), cache=cache)
    assert sum("nextpnr" in name for name in runs) == 2 and len(runs) == 4


def test_unknown_unit() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "uwarp_boards.resources", "quene"], capture_output=True, text=True
    )
    assert run.returncode == 2
    assert "no unit is named quene" in run.stderr and "queue" in run.stderr
    assert "receive_side" in UNITS
