"""``uwarp demo``: a picture, or any file, crosses two NICs over a wire that loses datagrams."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from uwarp.contract import MIN_MTU, Counter, Parameters
from uwarp.device import Fate, Impairments, Link, WireRecord, open_link
from uwarp.verbs import MR, Context
from uwarp.wire import DEFAULT_GRANULE, Opcode, segment_room

from .analysis import Account, Speed, checks, placing_speed, sending_speed
from .arguments import UsageError, integer, probability
from .pcap import write_pcap
from .picture import Raster, default_picture, received_picture, validity_picture
from .programs import MESSAGE, Received, receiver, sender
from .report import report

__all__ = ["add_parser", "run"]

SENDER = ("02:00:00:00:00:01", "10.0.0.1")
RECEIVER = ("02:00:00:00:00:02", "10.0.0.2")


def add_parser(commands: Any) -> None:
    """Add the subcommand to the ``uwarp`` command's parser."""
    parser = commands.add_parser(
        "demo",
        help="send a picture over a lossy wire between two NICs",
        description="Two NICs, joined by a simulated 10GbE wire that loses datagrams, and a "
        "program on each. One writes a picture into the other's memory with Write-Record; the "
        "validity map says what arrived.",
    )
    add = parser.add_argument
    add("--file", metavar="PATH", type=Path, help="send this file instead of the picture")
    add("--loss", metavar="P", type=probability, default=0.01, help="of datagrams lost (0.01)")
    add("--duplicate", metavar="P", type=probability, default=0.0, help="sent twice (0)")
    add("--reorder", metavar="P", type=probability, default=0.0, help="delayed past others (0)")
    add("--seed", metavar="N", type=integer, default=1, help="of the wire's random choices (1)")
    add("--mtu", metavar="N", type=integer, default=1500, help="octets, 576 to 9000 (1500)")
    add("--device", choices=("rtl", "model"), default="rtl", help="form of the NICs (rtl)")
    add("--out", metavar="DIR", type=Path, default=Path("demo-out"), help="(demo-out)")
    add("--trace", metavar="FILE", type=Path, help="write waveforms of the gateware")
    parser.set_defaults(run=run, command="demo")


class _Progress:
    """One line on stderr that says how far it is: rewritten on a terminal, else a few lines."""

    def __init__(self, total: int, stream: TextIO = sys.stderr) -> None:
        self._total, self._stream = total, stream
        self._octets = 0
        self._shown = time.monotonic()
        self._tty = stream.isatty()
        self._quarter = 0

    def add(self, octets: int) -> None:
        self._octets += octets
        quarter = min(4, 4 * self._octets // self._total)
        if self._tty and time.monotonic() - self._shown > 0.1:
            self._shown = time.monotonic()
            self._stream.write(f"\r{self._text()}\x1b[K")
            self._stream.flush()
        elif not self._tty and quarter > self._quarter:
            self._quarter = quarter
            self._stream.write(f"{self._text()}\n")

    def _text(self) -> str:
        percent = min(100, 100 * self._octets // self._total)
        return f"{percent:3} %  {self._octets:,} of {self._total:,} octets have arrived"

    def end(self) -> None:
        if self._tty:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


@dataclass
class _Run:
    """What one run left."""

    received: Received
    octets: bytes
    records: list[WireRecord]
    cycles: int
    seconds: float
    counters: tuple[dict[Counter, int], dict[Counter, int]]


def _granule(length: int, mtu: int, map_bits: int) -> int:
    """Smallest granule with which the on-chip map holds ``length`` octets. Raises UsageError."""
    granule = DEFAULT_GRANULE
    while granule * map_bits < length:
        granule *= 2
    largest = 1 << segment_room(Opcode.WRITE_RECORD, mtu).bit_length() - 1
    if granule > largest:
        raise UsageError(
            f"{length:,} octets; the validity map holds {map_bits * largest:,} at MTU {mtu}"
        )
    return granule


def _source(path: Path | None) -> tuple[bytes, Raster, str]:
    if path is None:
        data, raster = default_picture()
        height = len(data) // raster.channels // raster.width
        return data, raster, f"a picture of {raster.width} x {height} RGB pixels"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if not data:
        raise UsageError(f"{path} is empty")
    return data, Raster.for_octets(len(data)), str(path)


def _transfer(link: Link, mtu: int, data: bytes, granule: int, progress: _Progress) -> _Run:
    """Run both programs to their end, in turn."""
    left, right = link.devices
    records: list[WireRecord] = []
    with (
        Context(device=left, mac=SENDER[0], ipv4=SENDER[1], mtu=mtu) as one,
        Context(device=right, mac=RECEIVER[0], ipv4=RECEIVER[1], mtu=mtu) as two,
    ):
        one.add_neighbour(RECEIVER[1], RECEIVER[0])
        two.add_neighbour(SENDER[1], SENDER[0])
        began, cycles = time.monotonic(), link.time
        sending = sender(one, RECEIVER[1], data)
        receiving = receiver(two, granule, progress.add)
        received: Received | None = None
        sends = True
        while received is None:
            if sends:
                sends = next(sending, _END) is not _END
            try:
                next(receiving)
            except StopIteration as end:
                received = end.value
            records += link.records()
        cycles, seconds = link.time - cycles, time.monotonic() - began
        counters = (one.counters(), two.counters())
        return _Run(received, received.region.read(), records, cycles, seconds, counters)


_END = object()


def run(options: argparse.Namespace) -> int:
    """The demo. Returns 0 if every check holds, else 1. Raises UsageError, Failure, OSError."""
    parameters = Parameters()
    if not MIN_MTU <= options.mtu <= parameters.max_mtu:
        raise UsageError(f"--mtu is {options.mtu}; it takes {MIN_MTU} to {parameters.max_mtu}")
    if options.trace is not None and options.device != "rtl":
        raise UsageError("--trace needs the gateware: --device rtl")
    data, raster, name = _source(options.file)
    granule = _granule(len(data), options.mtu, parameters.map_bits)
    out: Path = options.out
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {out}: {error.strerror}") from None
    impairments = Impairments(options.loss, options.duplicate, options.reorder, options.seed)
    extra = {} if options.trace is None else {"trace": options.trace}
    link = open_link(options.device, parameters=parameters, impairments=impairments, **extra)
    progress = _Progress(len(data))
    try:
        result = _transfer(link, options.mtu, data, granule, progress)
    finally:
        progress.end()
        link.close()
    account = Account.of(result.records, result.received, len(data))
    figures = _figures(options, name, len(data), granule, result, account)
    held = checks(data, result.octets, account, result.received, result.counters, impairments)
    figures["checks"] = held
    figures["passed"] = all(held.values())
    _files(out, result, raster, parameters.clock_hz)
    (out / "result.json").write_text(json.dumps(figures, indent=2) + "\n")
    report(figures, out)
    return 0 if figures["passed"] else 1


def _files(out: Path, result: _Run, raster: Raster, clock_hz: int) -> None:
    region = result.received.region
    valid = np.zeros(region.length, dtype=np.bool_)
    for offset, length in region.validity.ranges():
        valid[offset : offset + length] = True
    octets = np.frombuffer(result.octets, dtype=np.uint8)
    received_picture(octets, valid, raster, out / "received.png")
    validity_picture(region.validity.granules, out / "validity.png")
    crossed = [record for record in result.records if record.fate is not Fate.DROPPED]
    # In the order of arrival. A frame that was held back left before those that overtook it.
    times = itertools.accumulate((record.time for record in crossed), max)
    nanoseconds = (time * 1_000_000_000 // clock_hz for time in times)
    frames = (record.frame for record in crossed)
    write_pcap(out / "wire.pcap", zip(nanoseconds, frames, strict=True))


def _figures(
    options: argparse.Namespace,
    name: str,
    length: int,
    granule: int,
    result: _Run,
    account: Account,
) -> dict[str, Any]:
    """Everything that is printed, and a little more."""
    region: MR = result.received.region
    validity = region.validity
    speeds: dict[str, Speed | None] = {
        "sending": sending_speed(account),
        "placing": placing_speed(account, result.received),
    }
    return {
        "device": options.device,
        "source": name,
        "octets": length,
        "mtu": options.mtu,
        "loss": options.loss,
        "duplicate": options.duplicate,
        "reorder": options.reorder,
        "seed": options.seed,
        "granule": granule,
        "message_octets": MESSAGE,
        **account.messages(result.received),
        "octets_valid": validity.valid,
        "octets_missing": length - validity.valid,
        "missing_ranges": validity.missing(),
        "datagrams_sent": account.sent,
        "datagrams_dropped": account.dropped,
        "datagrams_duplicated": account.duplicated,
        "cycles": result.cycles,
        "seconds": result.seconds,
        "cycles_per_second": result.cycles / result.seconds,
        **{
            f"{kind}_{key}": value
            for kind, speed in speeds.items()
            for key, value in (speed or Speed.unknown()).figures().items()
        },
        "counters": {
            side: {counter.name: value for counter, value in counters.items() if value}
            for side, counters in zip(("sender", "receiver"), result.counters, strict=True)
        },
    }
