"""Static timing of a placed netlist: how long each path is, with wires as long as their ends are
apart.

nextpnr writes what a placement is (JSON) and how long each cell takes (SDF). Between cells it tells
what it guesses, which at a distance is up to twice what its router then needs, so that a path
through few long wires looks worse than one through many short ones. Here a wire takes what wires of
its kind took on average in this project's routed units; once it is routed, what nextpnr says of it,
and then the longest path is the one that nextpnr reports::

    FF --wire--> LUT --wire--> LUT --wire--> FF
       `-----------. arrival .------------'
                    `-- tail from here --'     path of a wire: arrival + its delay + tail
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .netlist import Netlist

__all__ = ["CLOCK_PINS", "Cells", "Timing", "wire_delays"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CLOCK_PINS = ("CLK", "CLKA", "CLKB", "WCK")

#: What a wire takes by how far its ends are apart, horizontally and vertically, in ps: up to twelve
#: tiles as measured, and what each further tile takes.
_ACROSS = (0, 152, 198, 309, 350, 405, 380, 404, 434, 497, 580, 600, 618), 38.0
_ALONG = (0, 199, 238, 369, 443, 486, 450, 506, 547, 657, 706, 730, 750), 45.0
#: Less if it goes both ways.
_BENT = -60.0

#: What a wire takes besides, by the pin that it ends at, and by the one that it comes from.
_TO_LUT, _TO_MUX, _TO_ENABLE, _TO_RESET, _TO_BLOCK_RAM, _TO_LUT_RAM = 410, 305, 302, 226, 404, 470
_FROM_FF, _FROM_BLOCK_RAM = 90, 179

#: A LUT to its own flip-flop; the other wires within a slice take nothing worth counting.
_TO_OWN_FF = 118
_WITHIN_SLICE = ("DI", "F1", "FXA", "FXB", "FCI", "WD", "WAD0", "WAD1", "WAD2", "WAD3")

#: As long as no device is wide.
_FARTHEST = 256


def _table(measured: tuple[tuple[int, ...], float]) -> Floats:
    first, slope = measured
    beyond = np.arange(1, _FARTHEST - len(first) + 1)
    return np.concatenate([np.array(first, dtype=float), first[-1] + slope * beyond])


_ACROSS_BY_TILES, _ALONG_BY_TILES = _table(_ACROSS), _table(_ALONG)


def wire_delays(across: Integers, along: Integers) -> Floats:
    """What wires take in ps for ends so many tiles apart, apart from what their pins do."""
    across, along = np.abs(across), np.abs(along)
    bent = np.where((across > 0) & (along > 0), _BENT, 0.0)
    result: Floats = _ACROSS_BY_TILES[across] + _ALONG_BY_TILES[along] + bent
    return result


@dataclass
class Cells:
    """The cells of a placed netlist by number.

    Attributes
    ----------
    names, kinds : list of str
    content : list of dict
        As in the JSON.
    sites : list of str
        The part of each one's place behind its tile, for instance ``SLICEA.K0``; "" without one.
    x, y : array
        The tile of each; -1 without one.
    netlist : Netlist
        Who drives and who reads each net, by name.
    """

    names: list[str]
    kinds: list[str]
    content: list[dict[str, Any]]
    sites: list[str]
    x: Integers
    y: Integers
    netlist: Netlist

    @staticmethod
    def of(module: dict[str, Any]) -> Cells:
        """The cells of ``module``, a placed one of nextpnr's JSON."""
        content = list(module["cells"].values())
        places = [re.match(r"X(\d+)/Y(\d+)/(\S+)", _place_of(cell)) for cell in content]
        return Cells(
            names=list(module["cells"]),
            kinds=[cell["type"] for cell in content],
            content=content,
            sites=[place[3] if place else "" for place in places],
            x=np.array([int(place[1]) if place else -1 for place in places]),
            y=np.array([int(place[2]) if place else -1 for place in places]),
            netlist=Netlist(module),
        )

    def net(self, cell: int, pin: str) -> int | None:
        net = self.netlist.pin(self.names[cell], pin)
        return None if isinstance(net, str) else net


def _place_of(cell: dict[str, Any]) -> str:
    place: str = cell["attributes"].get("NEXTPNR_BEL", "")
    return place


@dataclass(frozen=True)
class _CellTiming:
    """In ps: through a cell by (input, output), and what each input takes before a clock's edge."""

    through: dict[tuple[str, str], float]
    setup: dict[str, float]


#: The upper half of a carry cell, from its carry in, in ps. nextpnr tells them when it has packed
#: the netlist itself; when it reads one back, it counts the cell's whole carry for each half.
_UPPER_HALF = "$CCU2_COMB1"
_UPPER_CARRY = {("FCI", "FCO"): 0.0, ("FCI", "F"): 293.0}

_WIRE = re.compile(r"\(INTERCONNECT \S+ (\S+)/(\S+) \(\d+:\d+:(\d+)\)")
_PATH = re.compile(r"\(IOPATH (\S+) (\S+) \(\d+:\d+:(\d+)\)")
_SETUP = re.compile(r"\(SETUPHOLD \(posedge (\S+)\) \(posedge \S+\) \(\d+:\d+:(\d+)\)")


def _cell_timings(cells: Iterable[str]) -> dict[str, _CellTiming]:
    """By the name of the cell, of what an SDF file tells of each."""
    result: dict[str, _CellTiming] = {}
    known: dict[tuple[str, bool], _CellTiming] = {}
    for told in cells:
        name, _, rest = told.partition("(INSTANCE ")[2].partition(")\n")
        is_upper = name.endswith(_UPPER_HALF)
        if (rest, is_upper) not in known:
            through = {(a, b): float(delay) for a, b, delay in _PATH.findall(rest)}
            if is_upper:
                through.update({way: _UPPER_CARRY[way] for way in through.keys() & _UPPER_CARRY})
            setup = {pin: float(delay) for pin, delay in _SETUP.findall(rest)}
            known[rest, is_upper] = _CellTiming(through, setup)
        result[name] = known[rest, is_upper]
    return result


def _pin_delay(kind: str, pin: str, source: str) -> float:
    to = {
        "CE": _TO_ENABLE,
        "LSR": _TO_RESET,
        "WRE": _TO_RESET,
        "M": _TO_MUX,
    }.get(pin, {"DP16KD": _TO_BLOCK_RAM, "TRELLIS_RAMW": _TO_LUT_RAM}.get(kind, _TO_LUT))
    return to + {"TRELLIS_FF": _FROM_FF, "DP16KD": _FROM_BLOCK_RAM}.get(source, 0)


class Timing:
    """Wires of a netlist, and how long the longest path through each is; times in ps.

    Attributes
    ----------
    source, sink : array
        The cell that drives each wire, and the one that reads it.
    fan_out : array
        Wires of the same net.
    fixed : array
        Whether what a wire takes does not depend on places.
    told : array
        What nextpnr says that each wire takes: right once it is routed.
    path : array
        The longest path through each wire, after ``update``.
    """

    def __init__(self, cells: Cells, sdf: Path) -> None:
        self._cells = cells
        wires, *told = sdf.read_text().replace("\\", "").split("\n  (CELL\n")[1:]
        timings = _cell_timings(told)
        none = _CellTiming({}, {})
        nodes: dict[int, int] = {}
        self._node_cells: list[int] = []
        starts: list[float] = []
        for cell, content in enumerate(cells.content):
            timing = timings.get(cells.names[cell], none)
            for pin, bits in content["connections"].items():
                if bits and content["port_directions"][pin] == "output":
                    nodes[bits[0]] = len(starts)
                    self._node_cells.append(cell)
                    clocked = [
                        delay
                        for (start, end), delay in timing.through.items()
                        if end == pin and start in CLOCK_PINS
                    ]
                    starts.append(max(clocked, default=-np.inf))
        self._starts = np.array(starts)
        sources: list[int] = []
        sinks: list[int] = []
        pins: list[str] = []
        setups: list[float] = []
        offsets: list[float] = []
        fixed: list[bool] = []
        arcs: list[tuple[int, int, float]] = []
        for cell, content in enumerate(cells.content):
            timing = timings.get(cells.names[cell], none)
            for pin, bits in content["connections"].items():
                if not bits or content["port_directions"][pin] != "input":
                    continue
                if pin in CLOCK_PINS or bits[0] not in nodes:
                    continue
                through = timing.through.items()
                outputs = [(out, delay) for (start, out), delay in through if start == pin]
                source = self._node_cells[nodes[bits[0]]]
                kind = cells.kinds[source]
                if kind in ("DCCA", "TRELLIS_IO") or not (outputs or pin in timing.setup):
                    continue
                wire = len(sources)
                sources.append(nodes[bits[0]])
                sinks.append(cell)
                pins.append(pin)
                setups.append(timing.setup.get(pin, -np.inf))
                inside = pin in _WITHIN_SLICE
                fixed.append(inside)
                offsets.append(
                    (_TO_OWN_FF if pin == "DI" else 0)
                    if inside
                    else _pin_delay(cells.kinds[cell], pin, kind)
                )
                for output, delay in outputs:
                    net = cells.net(cell, output)
                    if net is not None:
                        arcs.append((wire, nodes[net], delay))
        self._source_nodes = np.array(sources)
        self.source = np.array(self._node_cells)[self._source_nodes]
        self.sink = np.array(sinks)
        self.fan_out = np.bincount(self._source_nodes, minlength=len(starts))[self._source_nodes]
        self.fixed = np.array(fixed)
        self.offset = np.array(offsets)
        self._setup = np.array(setups)
        self._arrange(arcs)
        self.path: Floats = np.zeros(len(sinks))
        lasting = {(name, pin): float(delay) for name, pin, delay in _WIRE.findall(wires)}
        names = (cells.names[cell] for cell in sinks)
        self.told: Floats = np.array([lasting[key] for key in zip(names, pins, strict=True)])

    def _arrange(self, arcs: list[tuple[int, int, float]]) -> None:
        """Sort what goes through cells into levels, each of which needs only those before it."""
        onward: dict[int, list[int]] = defaultdict(list)
        missing = np.zeros(len(self._starts), dtype=int)
        for number, (wire, out, _) in enumerate(arcs):
            onward[int(self._source_nodes[wire])].append(number)
            missing[out] += 1
        level = np.zeros(len(self._starts), dtype=int)
        ready = [int(node) for node in np.flatnonzero(missing == 0)]
        while ready:
            node = ready.pop()
            for number in onward[node]:
                out = arcs[number][1]
                level[out] = max(level[out], level[node] + 1)
                missing[out] -= 1
                if missing[out] == 0:
                    ready.append(out)
        wires = np.array([wire for wire, _, _ in arcs], dtype=int)
        outs = np.array([out for _, out, _ in arcs], dtype=int)
        delays = np.array([delay for _, _, delay in arcs], dtype=float)
        depth = int(level.max(initial=0))
        self._forward = [
            _Groups.of(np.flatnonzero(level[outs] == number), outs, wires, delays)
            for number in range(1, depth + 1)
        ]
        arc_levels = level[self._source_nodes[wires]]
        wire_levels = level[self._source_nodes]
        everything = np.arange(len(self._source_nodes))
        self._backward = [
            (
                _Groups.of(np.flatnonzero(arc_levels == number), wires, outs, delays),
                _Groups.of(
                    np.flatnonzero(wire_levels == number),
                    self._source_nodes,
                    everything,
                    np.zeros(len(everything)),
                ),
            )
            for number in range(depth, -1, -1)
        ]

    def delays(self, wires: Integers | slice = slice(None)) -> Floats:
        """What ``wires`` take with the cells where they are."""
        x, y = self._cells.x, self._cells.y
        source, sink = self.source[wires], self.sink[wires]
        far = wire_delays(x[source] - x[sink], y[source] - y[sink])
        result: Floats = self.offset[wires] + np.where(self.fixed[wires], 0.0, far)
        return result

    def update(self, delays: Floats | None = None) -> float:
        """Find the paths anew; the longest of all. ``delays`` if they are known better."""
        taken = self.delays() if delays is None else delays
        arrival = self._starts.copy()
        for groups in self._forward:
            before = self._source_nodes[groups.others]
            groups.raise_to(arrival, arrival[before] + taken[groups.others])
        tail = self._setup.copy()
        onward = np.full(len(self._starts), -np.inf)
        for arcs, wires in self._backward:
            arcs.raise_to(tail, onward[arcs.others])
            wires.raise_to(onward, taken[wires.others] + tail[wires.others])
        self._arrival = arrival[self._source_nodes]
        self.path = self._arrival + taken + tail
        return float(self.path.max(initial=0.0))

    def longest_path(self) -> list[tuple[str, float]]:
        """The cells on the longest path of the last ``update``, and when it is through each."""
        if not len(self.path):
            return []
        wires = np.flatnonzero(self.path == self.path.max())
        wires = wires[np.argsort(self._arrival[wires], kind="stable")]
        # Of paths that are as long as each other, one.
        steps: list[tuple[str, float]] = []
        cell = self.source[wires[0]]
        for wire in wires:
            if self.source[wire] == cell:
                steps.append((self._cells.names[cell], float(self._arrival[wire])))
                cell = self.sink[wire]
        return [*steps, (self._cells.names[cell], float(self.path.max()))]


@dataclass(frozen=True)
class _Groups:
    """Numbers sorted by what they belong to, so that the largest of each is found at once."""

    owners: Integers
    begins: Integers
    others: Integers
    delays: Floats

    @staticmethod
    def of(chosen: Integers, owner: Integers, other: Integers, delay: Floats) -> _Groups:
        order = chosen[np.argsort(owner[chosen], kind="stable")]
        owners, begins = np.unique(owner[order], return_index=True)
        return _Groups(owners, begins, other[order], delay[order])

    def raise_to(self, values: Floats, candidates: Floats) -> None:
        """Raise each owner's value to the largest of its candidates and their delays."""
        if len(self.owners):
            largest = np.maximum.reduceat(candidates + self.delays, self.begins)
            values[self.owners] = np.maximum(values[self.owners], largest)
