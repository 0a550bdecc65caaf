"""``python -m uwarp_boards.resources``: synthesise every unit and write ``docs/resources.md``.

What it measured stays in the cache (:func:`uwarp.device.build.cache_directory`): it may be stopped
and begun again, and a unit that has not changed takes seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from uwarp.contract import Parameters
from uwarp.device.build import cache_directory

from .synth import DEVICE, PathStep, SynthError, UnitReport, synthesise

__all__ = ["measure", "resources_table", "write_resources"]

_INTRODUCTION = """# Resources

Made by `make resources`: do not edit. `uwarp synth UNIT` measures one unit.

Each unit with the default parameters ({parameters}), alone on an {device}, speed grade {speed}:
synthesised with Yosys (`synth_ecp5`) for what it takes, and once more between registers at its
pins, placed and routed with nextpnr, for its clock; the block RAMs get their places before that,
and what is on the longest paths is moved before it is routed.
The clock is the median of so many placements. A carry cell counts as two LUT4, a 16x4 RAM as six.
The critical path is that of the median: delays in ns up to and through each place.{missing}
"""

#: Placements of units that are large, of which one tells little, and have a clock to reach; of
#: others one.
_PLACEMENTS = {"datagram_receiver": 3, "receive_side": 3, "nic": 5}


def _path(steps: Iterable[PathStep]) -> str:
    # The pins' registers and the pinned unit itself are no names of ours.
    return " → ".join(f"`{step.place.removeprefix('unit.')}` {step.delay:.2f}" for step in steps)


def resources_table(
    reports: Sequence[UnitReport], *, speed: int, missing: Sequence[str] = ()
) -> str:
    """The text of ``docs/resources.md``; ``missing`` are units that were left out."""
    parameters = ", ".join(f"{name} {value}" for name, value in vars(Parameters()).items())
    lines = [
        _INTRODUCTION.format(
            parameters=parameters,
            device=DEVICE,
            speed=speed,
            missing=f" Not measured: {', '.join(f'`{unit}`' for unit in missing)}."
            if missing
            else "",
        ),
        "| unit | LUT4 | FF | block RAM | DSP | MHz | placements | critical path |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for report in reports:
        figures = (report.lut4, report.ff, report.block_ram, report.dsp, f"{report.mhz:.1f}")
        placements = len(report.mhz_by_seed)
        cells = [f"`{report.unit}`", *map(str, figures), str(placements)]
        cells.append(_path(report.critical_path))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _measure_one(unit: str, seeds: int, speed: int) -> UnitReport:
    from uwarp_hdl.units import UNITS

    cache = cache_directory() / "synth"
    return synthesise(unit, UNITS[unit](Parameters()), seeds=seeds, speed=speed, cache=cache)


def measure(
    units: Sequence[str], *, seeds: int | None = None, speed: int = 8, processes: int = 2
) -> Iterator[UnitReport]:
    """Reports of ``units`` (names of :data:`uwarp_hdl.units.UNITS`) as they come; ``seeds``
    placements of each, or as many as :data:`_PLACEMENTS` says.

    Raises
    ------
    SynthError
        A tool failed; the message names the unit.
    """
    with ProcessPoolExecutor(processes) as pool:
        # The last are the largest and take longest.
        waiting = {
            pool.submit(_measure_one, unit, seeds or _PLACEMENTS.get(unit, 1), speed): unit
            for unit in reversed(units)
        }
        try:
            for done in as_completed(waiting):
                try:
                    yield done.result()
                except SynthError as error:
                    raise SynthError(f"{waiting[done]}: {error}") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def write_resources(path: Path, units: Sequence[str], **options: Any) -> None:
    """Measure ``units``, saying each as it is done, and write the table in their order."""
    from uwarp_hdl.units import UNITS

    reports: dict[str, UnitReport] = {}
    for report in measure(units, **options):
        reports[report.unit] = report
        print(
            f"{len(reports)} of {len(units)}: {report.unit} {report.lut4} LUT4, {report.mhz} MHz",
            file=sys.stderr,
            flush=True,
        )
    table = resources_table(
        [reports[unit] for unit in units],
        speed=options.get("speed", 8),
        missing=[unit for unit in UNITS if unit not in units],
    )
    path.write_text(table, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    from uwarp_hdl.units import UNITS

    parser = argparse.ArgumentParser(prog="python -m uwarp_boards.resources", description=__doc__)
    parser.add_argument("units", nargs="*", metavar="UNIT", help="by default all")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/resources.md"))
    promised = ", ".join(f"{count} of {unit}" for unit, count in _PLACEMENTS.items())
    parser.add_argument("--seeds", type=int, help=f"placements of each unit (1; {promised})")
    parser.add_argument("--processes", type=int, default=2, help="units at a time (2)")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.units) - set(UNITS))
    if unknown:
        parser.error(f"no unit is named {', '.join(unknown)}; there are {', '.join(UNITS)}")
    if min(1 if options.seeds is None else options.seeds, options.processes) < 1:
        parser.error("--seeds and --processes take 1 or more")
    try:
        write_resources(
            options.output,
            options.units or list(UNITS),
            seeds=options.seeds,
            processes=options.processes,
        )
    except SynthError as error:
        print(f"resources: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
