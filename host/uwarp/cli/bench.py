"""``uwarp bench``: how fast one NIC takes in datagrams, and sends them, and reads from another."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from uwarp.contract import Parameters
from uwarp.device.rtl import RtlLink, RtlNic
from uwarp.wire import DEFAULT_GRANULE, Opcode

from .arguments import UsageError, integer
from .measure import LoadFactory, Row, cycle_figures, measure
from .plot import plot
from .read_bench import LENGTH, ReadCase, ReadRow, measure_reads
from .receive_bench import Receiving, receive_latency
from .send_bench import Sending, send_latency
from .workload import CLOCK_HZ, MTUS, OPCODES, Case

__all__ = ["add_parser", "run"]

PAYLOADS = (1, 8, 16, 32, 63, 64, 65, 128, 256, 512, 1024, 1408, 4096, 8896)
QPS = (1, 16)
DATAGRAMS = (1, 8)  # a message; a Send has one
MICROSECOND = CLOCK_HZ // 1_000_000
LATENCY_PAYLOAD, LATENCY_FRAMES = 64, 64
ROW_CYCLES, LEAST_FRAMES = 65536, 64
MOST_FRAMES = 1 << 14
LEAST_READS = 16
FULL = (1408, 8896)  # what a message of several datagrams is cut into at the two MTUs
LOADS: dict[str, Sequence[LoadFactory]] = {
    "rx": (Receiving,),
    "tx": (Sending,),
    "both": (Receiving, Sending),
}
LATENCIES = {
    "data": "last word in, last word of data out",
    "cqe": "last word in, last word of CQE out",
    "first": "doorbell, first word of frame out",
    "beyond_reads": "the same without the DMA reads",
}


def add_parser(commands: Any) -> None:
    """Add the subcommand to the ``uwarp`` command's parser."""
    parser = commands.add_parser(
        "bench",
        help="measure throughput and latency of the gateware",
        description="Give one NIC back-to-back frames at the spacing of 10GbE, or messages to "
        "send, or both at once, and say, for each payload, how much of it was placed and "
        "completed, or sent, and how much the wire can carry. Reads take two NICs: of what the one "
        "reads from the other, how much arrived.",
    )
    add = parser.add_argument
    add("form", choices=("rtl",), help="form of the NIC")
    add("--direction", choices=tuple(LOADS), default="rx", help="side of the NIC (rx)")
    add("--op", choices=(*OPCODES, "read"), help="kind of message (all but Reads)")
    add("--qps", metavar="N", type=integer, help="queue pairs, in turn (1, then 16)")
    add("--datagrams", metavar="N", type=integer, help="of a Write-Record (1, then 8)")
    add("--payload", metavar="N", type=integer, nargs="+", help="octets of a datagram (1 to 8896)")
    add(
        "--cq-mod",
        metavar="N",
        type=integer,
        help="of N messages sent one is signalled (1; both: 16)",
    )
    add("--frames", metavar="N", type=integer, help="measured in a row (some 65,536 cycles)")
    for way, usual in (
        ("read", "156, 1 us, for rx, else and of Reads 234, 1.5 us"),
        ("write", "156, 1 us"),
    ):
        add(
            f"--{way}-latency",
            metavar="CYCLES",
            type=integer,
            help=f"until the host answers a {way} ({usual})",
        )
    add("--json", metavar="FILE", type=Path, help="write the figures to FILE as well")
    add("--plot", metavar="FILE", type=Path, help="draw them (PNG)")
    parser.set_defaults(run=run, command="bench")


def run(options: argparse.Namespace) -> int:
    """The bench. Returns 0 if all was measured. Raises UsageError, Failure, OSError."""
    reads = options.op == "read"
    cases = [] if reads else list(_cases(options))
    read_cases = list(_read_cases(options)) if reads else []
    if options.frames is not None and not 1 <= options.frames <= MOST_FRAMES:
        raise UsageError(f"--frames is {options.frames}; it takes 1 to {MOST_FRAMES}")
    usual = MICROSECOND if options.direction == "rx" and not reads else 3 * MICROSECOND // 2
    for name, cycles in (("read_latency", usual), ("write_latency", MICROSECOND)):
        if getattr(options, name) is None:
            setattr(options, name, cycles)
        if not 0 <= getattr(options, name) < 1 << 16:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} is {getattr(options, name)}; it takes 0 to 65535 cycles")
    for path in (options.json, options.plot):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"there is no folder {path.parent} for {path.name}")
    if reads:
        return _run_reads(options, read_cases)
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
            fresh = measure(nic, case, frames, LOADS[options.direction])
            rows += fresh
            for row in fresh:
                print(_line(row), flush=True)
    latencies: dict[str, dict[str, list[int]]] = {}
    with RtlNic(read_latency=0, write_latency=0) as nic:
        for case in dict.fromkeys(Case(item.opcode, LATENCY_PAYLOAD) for item in cases):
            latencies[case.kind] = {}
            if options.direction != "tx":
                latencies[case.kind] |= receive_latency(nic, case, LATENCY_FRAMES)
            if options.direction != "rx":
                latencies[case.kind] |= send_latency(nic, case, LATENCY_FRAMES)
    print(f"\ncycles, of a message of {LATENCY_PAYLOAD} octets; the host answers at once")
    print(f"{'min':>57}{'median':>9}{'max':>9}")
    for kind, latency in latencies.items():
        for name, taken in latency.items():
            figures = cycle_figures(taken)
            columns = "".join(f"{figures[column]:>9g}" for column in ("min", "median", "max"))
            print(f"{f'{kind}, {LATENCIES[name]}':<48}{columns}")
    if options.json is not None:
        first = next(iter(latencies.values()))
        result = {
            "direction": options.direction,
            "rows": [row.figures() for row in rows],
            "latency_cycles": {name: cycle_figures(cycles) for name, cycles in first.items()},
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.plot is not None:
        plot(rows, options.plot)
    return 0


def _run_reads(options: argparse.Namespace, cases: Sequence[ReadCase]) -> int:
    rows: list[ReadRow] = []
    latencies = {"read_latency": options.read_latency, "write_latency": options.write_latency}
    print(
        f"two NICs, {CLOCK_HZ / 1e6:g} MHz; the hosts answer a read in {options.read_latency} "
        f"cycles, a write in {options.write_latency}; Reads of {LENGTH} octets"
    )
    for case in cases:
        if not rows or rows[-1].case.kind != case.kind:
            print(f"\n{case.kind}, {case.open} at once\n{HEADING}{'round trip':>12}")
        reads = LEAST_READS
        if options.frames is not None:
            reads = -(-options.frames // len(case.payloads))
        with RtlLink(**latencies) as link:
            rows.append(measure_reads(link, case, reads))
            link.check()
        print(f"{_line(rows[-1])}{rows[-1].round_trip:>12}", flush=True)
    if options.json is not None:
        result = {"direction": "rx", "rows": [row.figures() for row in rows]}
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def _check_qps(options: argparse.Namespace, most: int) -> None:
    if options.qps is not None and not 1 <= options.qps <= most:
        raise UsageError(f"--qps is {options.qps}; it takes 1 to {most}")


def _read_cases(options: argparse.Namespace) -> Iterator[ReadCase]:
    """What is measured of Reads. Raises UsageError."""
    for name in ("payload", "datagrams", "cq_mod", "plot"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} says nothing of Reads")
    if options.direction != "rx":
        raise UsageError(f"--direction is {options.direction}; of Reads it takes rx")
    _check_qps(options, Parameters().n_tracker)
    for qps in QPS if options.qps is None else (options.qps,):
        for mtu in MTUS:
            yield ReadCase(mtu, qps)


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    """What is measured, kind by kind. Raises UsageError."""
    cq_mod = options.cq_mod
    if cq_mod is None:
        cq_mod = 16 if options.direction == "both" else 1
    if cq_mod < 1:
        raise UsageError(f"--cq-mod is {cq_mod}; it takes 1 or more")
    _check_qps(options, Parameters().n_qp)
    payloads = PAYLOADS if options.payload is None else options.payload
    given = options.datagrams
    if given is not None and not 1 <= given <= 64:
        raise UsageError(f"--datagrams is {given}; it takes 1 to 64")
    if given is not None and given > 1:
        if options.op == "send":
            raise UsageError(f"--datagrams is {given}; a Send has one")
        if options.direction != "rx" and options.payload is not None:
            for payload in options.payload:
                if payload not in FULL:
                    raise UsageError(
                        f"--payload is {payload}; what is sent of several datagrams has full ones, "
                        f"of {' or '.join(map(str, FULL))} octets"
                    )
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
                    case = Case(opcode, payload, qps, datagrams, cq_mod)
                    try:
                        case.mtu  # noqa: B018
                    except ValueError as error:
                        raise UsageError(f"--payload: {error}") from None
                    whole = options.direction == "rx" and payload % DEFAULT_GRANULE == 0
                    if datagrams == 1 or whole or payload in FULL:
                        yield case


HEADING = (
    f"{'':>4}{'payload':>9}{'MTU':>6}{'frames':>8}{'cycles':>9}{'Gb/s':>9}{'ceiling':>9}"
    f"{'percent':>9}{'dropped':>9}{'M/s':>8}"
)


def _line(row: Row | ReadRow) -> str:
    of = row.figures()
    return (
        f"{of['direction']:<4}{of['payload']:>9}{of['mtu']:>6}{row.frames:>8}{row.cycles:>9}"
        f"{row.gbps:>9.3f}{row.case.ceiling_gbps:>9.3f}{row.percent:>9.1f}{row.dropped:>9}"
        f"{row.messages_per_second / 1e6:>8.2f}"
    )
