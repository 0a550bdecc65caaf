"""``uwarp bench`` on the gateware: figures, files, refusals; the events that it counts by."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from uwarp.cli import main
from uwarp.cli.workload import Case
from uwarp.contract import (
    Control,
    Counter,
    DeviceStatus,
    Parameters,
    Register,
    counter_address,
)
from uwarp.device.rtl import EventKind, RtlNic
from uwarp.wire import Opcode

ROW_KEYS = {
    "direction", "payload", "mtu", "kind", "frames", "dropped", "cycles", "gbps", "ceiling_gbps",
    "percent", "messages_per_second",
}  # fmt: skip
CLOCK_HZ = Parameters().clock_hz


def bench(out: Path, *arguments: str, direction: str = "rx") -> dict[str, Any]:
    path = out / "bench.json"
    assert main(["bench", "rtl", "--direction", direction, "--json", str(path), *arguments]) == 0
    figures: dict[str, Any] = json.loads(path.read_text())
    return figures


def check_row(row: dict[str, Any], header: int) -> None:
    """What follows from the row's own figures; ``header`` octets come before the payload."""
    assert set(row) == ROW_KEYS
    wire = max(60, header + row["payload"] + 4) + 24
    ceiling = 8 * row["payload"] * CLOCK_HZ * 8 / wire / 1e9
    assert row["ceiling_gbps"] == pytest.approx(ceiling)
    rate = 8 * row["payload"] * row["frames"] * CLOCK_HZ / row["cycles"] / 1e9
    assert row["gbps"] == pytest.approx(rate)
    assert row["percent"] == pytest.approx(100 * rate / ceiling)


@pytest.mark.parametrize("qps", [1, 16])
def test_write_record_at_line_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], qps: int
) -> None:
    payloads = [1, 64, 65, 1408, 8896]
    options = ["--op", "write-record", "--qps", str(qps), "--frames", "64", "--datagrams", "1"]
    figures = bench(tmp_path, *options, "--payload", *map(str, payloads))
    assert figures["direction"] == "rx"
    assert [row["payload"] for row in figures["rows"]] == payloads
    for row in figures["rows"]:
        check_row(row, header=72)
        assert row["dropped"] == 0, row
        assert row["percent"] >= 99, row
        assert row["percent"] <= 101, row
        assert row["mtu"] == (9000 if row["payload"] > 1408 else 1500)
        assert row["kind"] == ("write-record" if qps == 1 else "write-record, 16 QPs")
    for name in ("data", "cqe"):
        latency = figures["latency_cycles"][name]
        assert set(latency) == {"min", "median", "max"}
        assert 0 < latency["min"] <= latency["median"] <= latency["max"], (name, latency)
    text = capsys.readouterr().out
    assert all(f"\nrx  {payload:>9}" in text for payload in payloads)


def test_latency_goal(tmp_path: Path) -> None:
    """The last word of a 64-octet Write-Record to its data 32 cycles, to its CQE 48."""
    options = ["--op", "write-record", "--qps", "1", "--frames", "64", "--datagrams", "1"]
    latency = bench(tmp_path, *options, "--payload", "64")["latency_cycles"]
    assert latency["data"]["max"] <= 32 and latency["cqe"]["max"] <= 48, latency


@pytest.mark.parametrize("qps", [1, 16])
def test_messages_of_several_datagrams(tmp_path: Path, qps: int) -> None:
    options = ["--op", "write-record", "--qps", str(qps), "--frames", "64", "--datagrams", "4"]
    (row,) = bench(tmp_path, *options, "--payload", "64")["rows"]
    check_row(row, header=72)
    assert row["frames"] % 4 == 0
    assert row["dropped"] == 0 and 99 <= row["percent"] <= 101, row


def test_send(tmp_path: Path) -> None:
    options = ["--op", "send", "--qps", "2", "--frames", "64", "--payload", "1408", "8896"]
    figures = bench(tmp_path, *options)
    for row in figures["rows"]:
        check_row(row, header=60)
        assert row["kind"] == "send, 2 QPs"
        assert row["dropped"] == 0 and 99 <= row["percent"] <= 101, row
    assert figures["latency_cycles"]["data"]["min"] > 0


def test_a_host_too_slow_shows(tmp_path: Path) -> None:
    """Writes in flight are bounded, so answers after 25 us hold the NIC up, and frames are lost."""
    options = ["--op", "write-record", "--qps", "1", "--datagrams", "1", "--frames", "64"]
    (row,) = bench(tmp_path, *options, "--payload", "64", "--write-latency", "4000")["rows"]
    check_row(row, header=72)
    assert row["percent"] < 50 and row["dropped"] > 0, row


@pytest.mark.parametrize("qps", [1, 16])
def test_sending_at_line_rate(tmp_path: Path, qps: int) -> None:
    """With a host that takes 1.5 us to answer a read; every send is signalled."""
    options = ["--op", "write-record", "--qps", str(qps), "--frames", "64"]
    figures = bench(tmp_path, *options, "--payload", "1", "16", "65", "1408", direction="tx")
    assert figures["direction"] == "tx"
    assert [row["payload"] for row in figures["rows"]] == [1, 16, 65, 1408, 1408]
    assert figures["rows"][-1]["kind"].startswith("write-record of 8 datagrams")
    for row in figures["rows"]:
        check_row(row, header=72)
        assert row["direction"] == "tx"
        # Below 64 octets the goal is 12 million messages a second.
        if row["payload"] < 64:
            assert row["messages_per_second"] >= 12e6 or row["percent"] > 99.9, row
        else:
            assert row["percent"] == pytest.approx(100, abs=0.1), row
    latency = figures["latency_cycles"]
    assert set(latency) == {"first", "beyond_reads"}
    assert latency["beyond_reads"]["min"] > 0 and latency["beyond_reads"]["max"] <= 51
    assert latency["beyond_reads"]["max"] + 16 <= latency["first"]["min"]


@pytest.mark.parametrize("kind, qps, header", [("write-record", 16, 72), ("send", 1, 60)])
def test_both_ways_at_line_rate(tmp_path: Path, kind: str, qps: int, header: int) -> None:
    options = ["--op", kind, "--qps", str(qps), "--frames", "128", "--datagrams", "1"]
    rows = bench(tmp_path, *options, "--payload", "256", "8896", direction="both")["rows"]
    assert [row["direction"] for row in rows] == ["rx", "tx"] * 2
    for row in rows:
        check_row(row, header=header)
        assert row["dropped"] == 0 and row["percent"] == pytest.approx(100, abs=1), row


def test_sends_slower_than_the_wire_show(tmp_path: Path) -> None:
    """Reads on their way are bounded, so answers after 25 us leave the wire idle."""
    options = ["--op", "write-record", "--qps", "1", "--frames", "64", "--datagrams", "1"]
    slow = ["--payload", "1408", "--read-latency", "4000"]
    (row,) = bench(tmp_path, *options, *slow, direction="tx")["rows"]
    check_row(row, header=72)
    assert row["percent"] < 50, row


def test_plot(tmp_path: Path) -> None:
    options = ["--op", "write-record", "--qps", "1", "--datagrams", "1", "--frames", "16"]
    bench(tmp_path, *options, "--payload", "64", "512", "--plot", str(tmp_path / "plot.png"))
    with Image.open(tmp_path / "plot.png") as image:
        assert image.format == "PNG"
        colours = {colour for _, colour in image.getcolors(1 << 24)}
    assert len(colours) > 16


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--payload", "0"], "a payload of 0 octets; it takes 1 to 8938"),
        (["--payload", "9000"], "a payload of 9000 octets"),
        (["--qps", "65"], "--qps is 65; it takes 1 to 64"),
        (["--frames", "0"], "--frames is 0; it takes 1 to 16384"),
        (["--write-latency", "-1"], "--write-latency is -1; it takes 0 to 65535 cycles"),
        (["--op", "send", "--datagrams", "2"], "--datagrams is 2; a Send has one"),
        (["--datagrams", "2", "--payload", "65"], "takes a multiple of 64"),
        (["--op", "reads"], "invalid choice"),
        (["--op", "read", "--payload", "64"], "--payload says nothing of Reads"),
        (["--op", "read", "--direction", "tx"], "--direction is tx; of Reads it takes rx"),
        (["--op", "read", "--qps", "17"], "--qps is 17; it takes 1 to 16"),
        (["--cq-mod", "0"], "--cq-mod is 0; it takes 1 or more"),
        (
            ["--direction", "tx", "--datagrams", "8", "--payload", "64"],
            "has full ones, of 1408 or 8896 octets",
        ),
        (["--direction", "up"], "invalid choice"),
        (["--json", "/nowhere/at/all.json"], "there is no folder /nowhere/at"),
    ],
)
def test_bad_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rtl", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and said in captured.err


@pytest.mark.parametrize(
    ("opcode", "payload", "mtu", "wire_octets"),
    [
        (Opcode.WRITE_RECORD, 1, 1500, 101),
        (Opcode.WRITE_RECORD, 1438, 1500, 1538),
        (Opcode.WRITE_RECORD, 1439, 9000, 1539),
        (Opcode.SEND, 1, 1500, 89),
        (Opcode.SEND, 1450, 1500, 1538),
    ],
)
def test_case(opcode: Opcode, payload: int, mtu: int, wire_octets: int) -> None:
    case = Case(opcode, payload)
    assert case.mtu == mtu
    assert 8 * case.wire_cycles == wire_octets


def test_frames_arrive_at_the_spacing_of_the_wire() -> None:
    """Of 61 octets each: 85 with all overhead, 10.625 cycles; nothing is lost to rounding."""
    with RtlNic() as nic:
        nic.device.write32(Register.CONTROL.address, Control.RESET)
        while nic.device.read32(Register.STATUS.address) & DeviceStatus.BUSY:
            nic.run(64)
        nic.device.write32(Register.CONTROL.address, Control.ENABLE)
        nic.device.watch()
        for _ in range(81):
            nic.device.inject(b"\2" * 61)
        nic.run(2000)
        events = nic.device.take_events()
        assert {event.kind for event in events} == {EventKind.ARRIVAL}
        assert {event.octets for event in events} == {61}
        times = [event.time for event in events]
        assert len(times) == 81 and times[80] - times[0] == 850
        assert {after - before for before, after in itertools.pairwise(times)} == {10, 11}
        filtered = counter_address(Counter.DROP_MAC_FILTER)
        assert nic.device.read32(filtered) == 81
        nic.device.inject(b"\2" * 61)
        nic.device.watch(False)
        nic.run(100)
        assert nic.device.take_events() == []
        nic.check()
