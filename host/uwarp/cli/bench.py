"""``uwarp bench``: what one NIC makes of datagrams that come as fast as they can."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from uwarp.contract import Parameters
from uwarp.device.rtl import RtlNic
from uwarp.wire import DEFAULT_GRANULE, Opcode

from .arguments import UsageError, integer
from .plot import plot
from .receive_bench import Latency, Row, measure_latency, measure_row
from .workload import CLOCK_HZ, OPCODES, Case

__all__ = ["add_parser", "run"]

PAYLOADS = (1, 8, 16, 32, 63, 64, 65, 128, 256, 512, 1024, 1408, 4096, 8896)
QPS = (1, 16)
DATAGRAMS = (1, 8)  # a message; a Send has one
MICROSECOND = CLOCK_HZ // 1_000_000
LATENCY_PAYLOAD, LATENCY_FRAMES = 64, 64
ROW_CYCLES, LEAST_FRAMES = 32768, 64
MOST_FRAMES = 1 << 14


def add_parser(commands: Any) -> None:
    """Add the subcommand to the ``uwarp`` command's parser."""
    parser = commands.add_parser(
        "bench",
        help="measure throughput and latency of the gateware",
        description="Give one NIC back-to-back frames at the spacing of 10GbE and say, for each "
        "payload, how much of it was placed and completed, and how much the wire can carry.",
    )
    add = parser.add_argument
    add("form", choices=("rtl",), help="form of the NIC")
    add("--direction", choices=("rx",), default="rx", help="side of the NIC (rx)")
    add("--op", choices=tuple(OPCODES), help="kind of message (both)")
    add("--qps", metavar="N", type=integer, help="queue pairs, in turn (1, then 16)")
    add("--datagrams", metavar="N", type=integer, help="of a Write-Record (1, then 8)")
    add("--payload", metavar="N", type=integer, nargs="+", help="octets of a datagram (1 to 8896)")
    add("--frames", metavar="N", type=integer, help="counted in a row (some 32,768 cycles)")
    for way in ("read", "write"):
        add(
            f"--{way}-latency",
            metavar="CYCLES",
            type=integer,
            default=MICROSECOND,
            help=f"until the host answers a {way} ({MICROSECOND}, 1 us)",
        )
    add("--json", metavar="FILE", type=Path, help="write the figures to FILE as well")
    add("--plot", metavar="FILE", type=Path, help="draw them (PNG)")
    parser.set_defaults(run=run, command="bench")


def run(options: argparse.Namespace) -> int:
    """The bench. Returns 0 if all was measured. Raises UsageError, Failure, OSError."""
    cases = list(_cases(options))
    if options.frames is not None and not 1 <= options.frames <= MOST_FRAMES:
        raise UsageError(f"--frames is {options.frames}; it takes 1 to {MOST_FRAMES}")
    for name in ("read_latency", "write_latency"):
        if not 0 <= getattr(options, name) < 1 << 16:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} is {getattr(options, name)}; it takes 0 to 65535 cycles")
    for path in (options.json, options.plot):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"there is no folder {path.parent} for {path.name}")
    rows: list[Row] = []
    with RtlNic(read_latency=options.read_latency, write_latency=options.write_latency) as nic:
        print(
            f"one NIC, {nic.parameters.clock_hz / 1e6:g} MHz; the host answers a read in "
            f"{options.read_latency} cycles, a write in {options.write_latency}"
        )
        for case in cases:
            if not rows or rows[-1].case.kind != case.kind:
                print(f"\n{case.kind}\n{HEADING}")
            frames = options.frames or max(LEAST_FRAMES, int(ROW_CYCLES / case.wire_cycles))
            rows.append(measure_row(nic, case, frames))
            print(_line(rows[-1]), flush=True)
    with RtlNic(read_latency=0, write_latency=0) as nic:
        latencies = {
            case.kind: measure_latency(nic, case, LATENCY_FRAMES)
            for case in dict.fromkeys(Case(item.opcode, LATENCY_PAYLOAD) for item in cases)
        }
    print(f"\ncycles from the last word of a frame of {LATENCY_PAYLOAD} octets; the host answers")
    print(f"at once{'min':>37}{'median':>9}{'max':>9}")
    for kind, latency in latencies.items():
        for line in _latency_lines(kind, latency):
            print(line)
    if options.json is not None:
        figures = {
            "direction": options.direction,
            "rows": [row.figures() for row in rows],
            "latency_cycles": next(iter(latencies.values())).figures(),
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if options.plot is not None:
        plot(rows, options.plot)
    return 0


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    """What is measured, kind by kind. Raises UsageError."""
    most = Parameters().n_qp
    if options.qps is not None and not 1 <= options.qps <= most:
        raise UsageError(f"--qps is {options.qps}; it takes 1 to {most}")
    payloads = PAYLOADS if options.payload is None else options.payload
    given = options.datagrams
    if given is not None and not 1 <= given <= 64:
        raise UsageError(f"--datagrams is {given}; it takes 1 to 64")
    if given is not None and given > 1:
        if options.op == "send":
            raise UsageError(f"--datagrams is {given}; a Send has one")
        for payload in payloads if options.payload is not None else ():
            if payload % DEFAULT_GRANULE:
                raise UsageError(
                    f"--payload is {payload}; a datagram that others follow takes a multiple of "
                    f"{DEFAULT_GRANULE}"
                )
    for name, opcode in OPCODES.items():
        if options.op not in (None, name):
            continue
        several = opcode is Opcode.WRITE_RECORD
        for datagrams in (DATAGRAMS if given is None else (given,)) if several else (1,):
            for qps in QPS if options.qps is None else (options.qps,):
                for payload in payloads:
                    case = Case(opcode, payload, qps, datagrams)
                    try:
                        case.mtu  # noqa: B018
                    except ValueError as error:
                        raise UsageError(f"--payload: {error}") from None
                    if datagrams == 1 or payload % DEFAULT_GRANULE == 0:
                        yield case


HEADING = (
    f"{'payload':>9}{'MTU':>6}{'frames':>8}{'cycles':>9}{'Gb/s placed':>13}{'ceiling':>9}"
    f"{'percent':>9}{'dropped':>9}"
)


def _line(row: Row) -> str:
    case = row.case
    return (
        f"{case.payload:>9}{case.mtu:>6}{row.frames:>8}{row.cycles:>9}{row.gbps:>13.3f}"
        f"{case.ceiling_gbps:>9.3f}{row.percent:>9.1f}{row.dropped:>9}"
    )


def _latency_lines(kind: str, latency: Latency) -> Iterator[str]:
    names = {"data": "last word of its data", "cqe": "last word of its CQE"}
    for key, figures in latency.figures().items():
        what = f"{kind}, {names[key]}"
        yield f"{what:<35}" + "".join(f"{figures[name]:>9g}" for name in ("min", "median", "max"))
