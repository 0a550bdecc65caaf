"""The bench of Reads on ``tests.forms``: figures, and what is not a whole Read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.forms import forms
from uwarp.cli import main
from uwarp.cli.arguments import Failure
from uwarp.cli.read_bench import LENGTH, ReadCase, measure_reads
from uwarp.contract import Parameters
from uwarp.device import Impairments, open_link
from uwarp.device.model import ModelLink

ROW_KEYS = {
    "direction", "payload", "mtu", "kind", "length", "open", "frames", "dropped", "cycles", "gbps",
    "ceiling_gbps", "percent", "messages_per_second", "round_trip_cycles",
}  # fmt: skip
CLOCK_HZ = Parameters().clock_hz


@pytest.mark.parametrize(
    ("kind", "mtu", "qps"),
    [
        pytest.param(*form.values, *case, marks=form.marks)
        for case, made in (((1500, 1), ["model"]), ((9000, 4), ["model", "rtl"]))
        for form in forms(made)
    ],
)
def test_reads_at_line_rate(kind: str, mtu: int, qps: int) -> None:
    case = ReadCase(mtu, qps)
    with open_link(kind) as link:
        row = measure_reads(link, case, 4)
    figures = row.figures()
    assert set(figures) == ROW_KEYS
    assert row.dropped == 0
    assert row.percent == pytest.approx(100, abs=1), figures
    assert row.gbps == pytest.approx(8 * row.octets * CLOCK_HZ / row.cycles / 1e9)
    assert row.octets >= 3 * LENGTH
    assert row.round_trip > 2 * 32, "less than the wire takes"
    assert figures["kind"] == ("read" if qps == 1 else f"read, {qps} QPs")
    assert figures["payload"] == (1408 if mtu == 1500 else 8896)


def test_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows and its file; on the model form, which has none of the latencies."""
    asked: list[dict[str, int]] = []

    def link(**latencies: int) -> ModelLink:
        asked.append(latencies)
        return ModelLink()

    monkeypatch.setattr("uwarp.cli.bench.RtlLink", link)
    path = tmp_path / "reads.json"
    options = ["--op", "read", "--qps", "2", "--frames", "190", "--json", str(path)]
    assert main(["bench", "rtl", *options]) == 0
    assert asked == [{"read_latency": 234, "write_latency": 156}] * 2
    figures = json.loads(path.read_text())
    assert figures["direction"] == "rx"
    assert [row["mtu"] for row in figures["rows"]] == [1500, 9000]
    assert all(set(row) == ROW_KEYS and row["percent"] > 99 for row in figures["rows"])
    assert figures["rows"][0]["frames"] >= 190
    text = capsys.readouterr().out
    assert "read, 2 QPs, 8 at once" in text and "\nrx       1408  1500" in text


def test_ceiling() -> None:
    """46 datagrams of 1408 octets and one of 768, each with 72 octets of headers, CRC32c, FCS,
    preamble and gap; the first MTU's, by hand."""
    case = ReadCase(1500)
    assert case.payloads == [1408] * 46 + [768]
    assert 8 * case.wire_cycles == LENGTH + 47 * (72 + 4 + 24)
    assert case.ceiling_gbps == pytest.approx(10 * LENGTH / (LENGTH + 47 * 100))


def test_reads_at_once() -> None:
    assert [ReadCase(1500, qps).open for qps in (1, 2, 3, 8, 16)] == [8, 8, 6, 8, 16]


def test_a_read_that_is_not_whole_is_a_failure() -> None:
    with open_link("model", impairments=Impairments(loss=0.05, seed=1)) as link:
        with pytest.raises(Failure, match=r"PARTIAL|no Read"):
            measure_reads(link, ReadCase(1500), 16)
