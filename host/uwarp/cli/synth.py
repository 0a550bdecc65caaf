"""``uwarp synth``: what a unit of the gateware takes on an ECP5, and the clock it closes at."""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from typing import Any

from uwarp.contract import Parameters

from .arguments import Failure, UsageError, integer

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add the subcommand to the ``uwarp`` command's parser."""
    parser = commands.add_parser(
        "synth",
        help="synthesise, place and route one unit of the gateware",
        description="Synthesise one unit, or the whole 'nic', for an ECP5 (LFE5U-85F) with open "
        "tools, alone and with a register at each pin, and say what it takes and how fast it is.",
    )
    add = parser.add_argument
    add("unit", metavar="UNIT", help="its name, or 'list' for all names")
    add("--seeds", metavar="N", type=integer, default=1, help="placements; the median counts (1)")
    add("--speed", metavar="GRADE", type=integer, default=8, help="speed grade, 6 to 8 (8)")
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run, command="synth")


def run(options: argparse.Namespace) -> int:
    """Returns 0. Raises UsageError for names and numbers that cannot be, Failure for the tools."""
    for package, extra in (("amaranth", "hdl"), ("pyosys", "boards"), ("uwarp_boards", "boards")):
        if find_spec(package) is None:
            raise Failure(f"{package} is not installed: pip install 'uwarp[{extra}]'")
    from uwarp_boards.synth import DEVICE, SynthError, synthesise
    from uwarp_hdl.units import UNITS

    if options.unit == "list":
        print("\n".join(UNITS))
        return 0
    if options.unit not in UNITS:
        raise UsageError(f"no unit is named {options.unit!r}; 'uwarp synth list' names them all")
    if options.seeds < 1:
        raise UsageError(f"--seeds is {options.seeds}; it takes 1 or more")
    if options.speed not in (6, 7, 8):
        raise UsageError(f"--speed is {options.speed}; it takes 6, 7 or 8")
    print(f"synthesising {options.unit} for {DEVICE}-{options.speed}", file=sys.stderr)
    try:
        report = synthesise(
            options.unit,
            UNITS[options.unit](Parameters()),
            seeds=options.seeds,
            speed=options.speed,
        )
    except SynthError as error:
        raise Failure(str(error)) from None
    if options.json:
        print(json.dumps(report.as_json(), indent=2))
        return 0
    print(
        f"{report.unit}: {report.lut4} LUT4, {report.ff} FF, {report.block_ram} block RAM, ", end=""
    )
    print(f"{report.dsp} DSP, {report.mhz} MHz (median of {len(report.mhz_by_seed)})")
    for step in report.critical_path:
        print(f"  {step.delay:5.2f} ns  {step.place}")
    return 0
