"""``uwarp demo`` on the model form: figures, files, checks, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pytest
from PIL import Image
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapReader, rdpcap

from uwarp import __version__
from uwarp.cli import main
from uwarp.cli.arguments import UsageError
from uwarp.cli.demo import _granule
from uwarp.cli.picture import HOLE, MISSING, VALID, default_picture
from uwarp.contract import Counter
from uwarp.device.memory import AddressSpace
from uwarp.model.transmit import Transmitter
from uwarp.verbs import Validity
from uwarp.wire import Segment

SIZE = 768 * 512 * 3
KEYS = {
    "source", "device", "octets", "mtu", "loss", "duplicate", "reorder", "seed", "granule",
    "message_octets", "messages", "messages_complete", "messages_partial", "messages_lost",
    "octets_valid", "octets_missing", "missing_ranges", "datagrams_sent", "datagrams_dropped",
    "datagrams_duplicated", "cycles", "seconds", "cycles_per_second", "sending_gbps",
    "sending_ceiling_gbps", "sending_percent", "placing_gbps", "placing_ceiling_gbps",
    "placing_percent", "counters", "checks", "passed",
}  # fmt: skip


def demo(out: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["demo", "--device", "model", "--out", str(out), *arguments]) == code
    figures: dict[str, Any] = json.loads((out / "result.json").read_text())
    return figures


def picture(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with Image.open(path) as image:
        return np.asarray(image)


def test_one_percent_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = demo(tmp_path)
    assert set(figures) == KEYS
    assert figures["passed"] and all(figures["checks"].values())
    assert figures["octets"] == SIZE >= 1 << 20
    assert figures["messages"] == 18 and figures["messages_partial"] > 0
    assert figures["octets_valid"] + figures["octets_missing"] == SIZE
    assert figures["octets_missing"] == 1408 * figures["datagrams_dropped"] > 0
    assert sum(length for _, length in figures["missing_ranges"]) == figures["octets_missing"]
    assert figures["sending_percent"] >= 95
    text = capsys.readouterr().out
    assert f"{figures['octets_missing']:,} missing" in text
    assert f"{figures['messages_complete']} complete" in text
    assert f"{figures['cycles']:,} cycles" in text

    granules = picture(tmp_path / "validity.png").reshape(-1, 3)
    assert len(granules) >= SIZE // 64
    assert (granules == MISSING).all(axis=1).sum() == figures["octets_missing"] // 64
    assert (granules == VALID).all(axis=1).sum() == figures["octets_valid"] // 64
    shown = picture(tmp_path / "received.png")
    assert shown.shape == (512, 768, 3)
    holes = (shown == HOLE).all(axis=-1)
    sent = np.frombuffer(default_picture()[0], dtype=np.uint8).reshape(shown.shape)
    assert (shown[~holes] == sent[~holes]).all()
    missing = np.zeros(SIZE, dtype=bool)
    for offset, length in figures["missing_ranges"]:
        missing[offset : offset + length] = True
    assert (holes == missing.reshape(shown.shape).any(axis=-1)).all()


@pytest.mark.parametrize(("mtu", "ceiling"), [(1500, 9.33), (9000, 9.88), (576, 8.37)])
def test_no_loss_is_a_perfect_picture_at_the_wires_ceiling(
    tmp_path: Path, mtu: int, ceiling: float
) -> None:
    figures = demo(tmp_path, "--loss", "0", "--mtu", str(mtu))
    assert figures["messages_complete"] == figures["messages"] == 18
    assert figures["octets_missing"] == 0 and figures["missing_ranges"] == []
    for path in ("sending", "placing"):
        assert 95 <= figures[f"{path}_percent"] <= 100.1
        assert figures[f"{path}_ceiling_gbps"] == pytest.approx(ceiling, abs=0.01)
    pixels = picture(tmp_path / "received.png")
    assert pixels.tobytes() == default_picture()[0]


@pytest.mark.parametrize("seed", range(4))
def test_loss_duplicates_and_reordering(tmp_path: Path, seed: int) -> None:
    arguments = ["--loss", "0.03", "--duplicate", "0.1", "--reorder", "0.2", "--seed", f"{seed}"]
    figures = demo(tmp_path, *arguments)
    assert figures["passed"] and figures["datagrams_duplicated"] > 0
    again = demo(tmp_path, *arguments)
    for varying in ("seconds", "cycles_per_second"):
        del figures[varying], again[varying]
    assert figures == again, "the same seed gave another run"


def test_capture(tmp_path: Path) -> None:
    figures = demo(tmp_path, "--loss", "0.05", "--reorder", "0.1", "--duplicate", "0.02")
    path = str(tmp_path / "wire.pcap")
    records = crossed = 0
    last = -1
    for octets, meta in RawPcapReader(path):
        assert meta.wirelen == len(octets)
        time = meta.sec * 1_000_000_000 + meta.usec
        assert time >= last
        last = time
    packets = rdpcap(path)
    for packet in packets:
        assert type(packet) is Ether
        again = Ether(bytes(packet))
        ip, udp = again[IP], again[UDP]
        expected = ip.chksum, udp.chksum
        del again[IP].chksum, again[UDP].chksum
        built = Ether(bytes(again))
        assert (built[IP].chksum, built[UDP].chksum) == expected
        payload = bytes(udp.payload)[: udp.len - 8]
        assert crc32c.crc32c(payload[:-4]).to_bytes(4, "little") == payload[-4:]
        records += Segment.from_datagram(payload).opcode == 0xC
        crossed += 1
    sent = figures["datagrams_sent"]
    assert records == sent - figures["datagrams_dropped"] + figures["datagrams_duplicated"]
    assert crossed > records, "the programs' own messages are missing"


@pytest.mark.parametrize("length", [1, 63, 64, 1408, 65_536, 65_537, 200_001])
def test_file_of_any_length(tmp_path: Path, length: int) -> None:
    source = tmp_path / "source"
    octets = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8)
    source.write_bytes(octets.tobytes())
    figures = demo(tmp_path, "--file", str(source), "--loss", "0")
    assert figures["octets_valid"] == length
    assert figures["messages"] == -(-length // 65_536)
    shown = picture(tmp_path / "received.png")
    assert (shown.reshape(-1, 3)[:length, 0] == octets).all()


def test_heavy_loss(tmp_path: Path) -> None:
    figures = demo(tmp_path, "--loss", "0.5")
    assert figures["passed"] and figures["messages_complete"] == 0


def test_a_wire_that_carries_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--device", "model", "--loss", "1", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_granules_grow_with_the_file() -> None:
    bits = 256 * 1024
    assert _granule(1, 1500, bits) == _granule(64 * bits, 1500, bits) == 64
    assert _granule(64 * bits + 1, 1500, bits) == 128
    assert _granule(1024 * bits, 1500, bits) == 1024
    assert _granule(8192 * bits, 9000, bits) == 8192
    with pytest.raises(UsageError, match=r"268,435,457 octets; .* 268,435,456 at MTU 1500"):
        _granule(1024 * bits + 1, 1500, bits)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--loss", "2"], "'2' is no probability"),
        (["--loss", "nan"], "'nan' is no probability"),
        (["--duplicate", "-0.1"], "no probability"),
        (["--reorder", "x"], "no probability"),
        (["--seed", "x"], "no whole number"),
        (["--mtu", "575"], "--mtu is 575"),
        (["--mtu", "9001"], "--mtu is 9001"),
        (["--device", "card"], "invalid choice: 'card'"),
        (["--file", "/nowhere"], "cannot read /nowhere: No such file"),
        (["--file", "/dev/null"], "/dev/null is empty"),
        (["--file", "/"], "cannot read /"),
        (["--out", "/dev/null/x"], "cannot make the folder"),
        (["--trace", "t.vcd"], "--trace needs the gateware"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_refusals_take_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out")] if "--out" not in arguments else []
    assert main(["demo", "--device", "model", *out, *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1
    assert not captured.out


def test_command_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"uwarp {__version__}\n"
    assert main([]) == 2
    assert main(["demo", "--help"]) == 0
    assert "--reorder" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["data", "map", "count", "frames"])
def test_a_wrong_device_is_found(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checks fail for a NIC that spoils octets or frames, reports too much, or loses count."""
    if what == "count":
        monkeypatch.setattr(
            "uwarp.cli.analysis.outcome_sum", lambda counters: counters[Counter.RX_FRAMES] + 1
        )
    elif what == "frames":
        next_frame = Transmitter.next_frame

        def cut(self: Transmitter) -> bytes | None:
            frame = next_frame(self)
            return frame[:-1] + b"?" if frame and len(frame) == 1484 else frame

        monkeypatch.setattr(Transmitter, "next_frame", cut)
    elif what == "data":
        write = AddressSpace.write

        def spoil(self: AddressSpace, address: int, octets: bytes) -> bool:
            if len(octets) == 1408:
                octets = bytes([octets[0] ^ 1]) + bytes(octets[1:])
            return write(self, address, octets)

        monkeypatch.setattr(AddressSpace, "write", spoil)
    else:
        monkeypatch.setattr(
            Validity, "_mark_granules", lambda self, flags: self._mark(0, self.length)
        )
    figures = demo(tmp_path, "--loss", "0.05", code=1)
    assert not figures["passed"]
    assert "FAILED" in capsys.readouterr().out
