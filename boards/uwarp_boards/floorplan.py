"""Give each block RAM its place before nextpnr places the rest.

nextpnr begins with the placement of least wire between what is fixed, and spreads that out. Of a
unit behind three pins nothing is fixed: all begins in one point, and what comes of that has a
quarter more wire and little of the netlist's structure. The block RAMs are in every part of these
units; with their places fixed the rest finds its own.

Their places come of a placement by recursive min-cut bisection (Mt-KaHyPar): a rectangle of tiles
is cut across its longer side, and the cells with it so that few nets cross, those to cells outside
held to the side where these are. Then each block RAM takes a site near its part of the last
rectangles::

    +-------+---+---+      what is in a part      ...EBR..EBR..EBR..EBR...  y 70
    |       |   |   |   -> stays in it while   ->
    |       +---+---+      it is cut further      ...EBR..EBR..EBR..EBR...  y 46
    +-------+-------+
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt

import mtkahypar
import numpy as np
from numpy.typing import NDArray

from .netlist import Net, Netlist
from .timing import CLOCK_PINS

__all__ = ["SITES", "fix_block_rams"]

#: Tile (x, y) and site of each block RAM of an LFE5U-85F.
SITES = [
    (first + 2 * place, y, f"X{first + 2 * place}/Y{y}/EBR{place}")
    for y in (22, 46, 70, 82)
    for first in (*range(4, 59, 9), *range(69, 115, 9))
    for place in range(4)
]

#: Between the two long rows of sites in the middle of the device.
_CENTRE = (62.0, 58.0)
_WIDTH_TO_HEIGHT = 1.5
_LARGEST = (118.0, 84.0)

#: LUTs and flip-flops of a tile each, and how much of them is used.
_PER_TILE = 8
_DENSITY = 0.6

#: What a cell counts for when areas are cut in two. A block RAM has none of the tiles around it,
#: but its wires need room.
_AREA = {"DP16KD": 40, "CCU2C": 2, "TRELLIS_DPR16X4": 6}
_UNBALANCE = 0.03

#: What cutting a net costs if it leaves a block RAM without an output register, and else.
_LATE_NET, _NET = 4, 1

#: Nets of more cells say nothing of places.
_WIDEST_NET = 500

#: Parts of fewer cells or tiles are not cut.
_FEWEST_CELLS = 300
_FEWEST_TILES = 6

Points = NDArray[np.float64]


@dataclass(frozen=True)
class _Rectangle:
    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2

    @property
    def axis(self) -> int:
        """0 if it is cut in a left and a right half."""
        return int(self.height > self.width)

    def halves(self) -> tuple[_Rectangle, _Rectangle]:
        if self.axis == 0:
            half = self.width / 2
            return (
                _Rectangle(self.x, self.y, half, self.height),
                _Rectangle(self.x + half, self.y, half, self.height),
            )
        half = self.height / 2
        return (
            _Rectangle(self.x, self.y, self.width, half),
            _Rectangle(self.x, self.y + half, self.width, half),
        )


def _is_late(netlist: Netlist, net: Net) -> bool:
    name, port = netlist.driver[net]
    parameters = netlist.cells[name]["parameters"]
    is_block_ram = netlist.kind(name) == "DP16KD"
    return is_block_ram and parameters.get(f"REGMODE_{port[2]}") != "OUTREG"


@cache
def _partitioner() -> mtkahypar.Initializer:
    """Once a process; with one thread."""
    return mtkahypar.initialize(1)


class _Placement:
    """Cells of a netlist by number with the nets between them, placed by bisection."""

    def __init__(self, netlist: Netlist) -> None:
        self._partitioner = _partitioner()
        self.number = number = {name: index for index, name in enumerate(netlist.cells)}
        kinds = [netlist.kind(name) for name in netlist.cells]
        self._areas = [_AREA.get(kind, 1) for kind in kinds]
        self._nets: list[NDArray[np.int64]] = []
        self._costs: list[int] = []
        self._nets_of: dict[int, list[int]] = defaultdict(list)
        for net, readers in netlist.readers.items():
            if isinstance(net, str) or net not in netlist.driver:
                continue
            pins = {number[name] for name, port in readers if name and port not in CLOCK_PINS}
            pins.add(number[netlist.driver[net][0]])
            if 2 <= len(pins) <= _WIDEST_NET:
                for pin in pins:
                    self._nets_of[pin].append(len(self._nets))
                self._nets.append(np.array(sorted(pins)))
                self._costs.append(_LATE_NET if _is_late(netlist, net) else _NET)
        ffs = sum(kind == "TRELLIS_FF" for kind in kinds)
        tiles = max(ffs, sum(self._areas) - ffs) / (_PER_TILE * _DENSITY)
        tiles = max(tiles, _FEWEST_TILES**2)
        width = min(sqrt(tiles * _WIDTH_TO_HEIGHT), _LARGEST[0])
        height = min(tiles / width, _LARGEST[1])
        self._device = _Rectangle(_CENTRE[0] - width / 2, _CENTRE[1] - height / 2, width, height)

    def _cut(self, cells: Sequence[int], part: _Rectangle, points: Points) -> list[int]:
        """For each of ``cells`` in ``part`` the half that it goes to."""
        local = {cell: index for index, cell in enumerate(cells)}
        sides = len(cells), len(cells) + 1
        axis, middle = part.axis, part.centre[part.axis]
        pins: list[list[int]] = []
        costs: list[int] = []
        for net in sorted({net for cell in cells for net in self._nets_of[cell]}):
            inside = [local[cell] for cell in self._nets[net] if cell in local]
            outside = [cell for cell in self._nets[net] if cell not in local]
            if outside:
                distance = points[outside, axis].mean() - middle
                if abs(distance) > 1:
                    inside.append(sides[int(distance > 0)])
            if len(inside) > 1:
                pins.append(inside)
                costs.append(self._costs[net])
        context = self._partitioner.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
        context.logging = False
        context.set_partitioning_parameters(2, _UNBALANCE, mtkahypar.Objective.CUT)
        graph = self._partitioner.create_hypergraph(
            context,
            len(cells) + 2,
            len(pins),
            pins,
            [self._areas[cell] for cell in cells] + [1, 1],
            costs,
        )
        graph.add_fixed_vertices([-1] * len(cells) + [0, 1], 2)
        parts = graph.partition(context)
        return [parts.block_id(index) for index in range(len(cells))]

    def place(self) -> Points:
        """Where each cell is, in tiles."""
        points = np.tile(np.array(self._device.centre), (len(self.number), 1))
        parts = [(list(range(len(self.number))), self._device)]
        while parts:
            cells, part = parts.pop(0)
            if len(cells) < _FEWEST_CELLS or max(part.width, part.height) < _FEWEST_TILES:
                continue
            sides = self._cut(cells, part, points)
            for side, half in enumerate(part.halves()):
                moved = [cell for cell, at in zip(cells, sides, strict=True) if at == side]
                points[moved] = half.centre
                parts.append((moved, half))
        return points

    def drawn(self, points: Points, rounds: int = 10) -> Points:
        """``points`` drawn half of the way to what they are connected with."""
        drawn = points
        for _ in range(rounds):
            pulls, weights = np.zeros_like(points), np.full(len(points), 1e-9)
            for net, cost in zip(self._nets, self._costs, strict=True):
                weight = cost / (len(net) - 1)
                pulls[net] += drawn[net].mean(axis=0) * weight
                weights[net] += weight
            drawn = (points + pulls / weights[:, None]) / 2
        return drawn


def _assigned(wanted: Points) -> list[int]:
    """A site for each of ``wanted``: no two can gain by changing places, nor one by a free site."""
    sites = np.array([site[:2] for site in SITES], dtype=float)
    cost = np.abs(wanted[:, None, :] - sites[None]).sum(axis=2) ** 1.5
    # Rows without a RAM of theirs make free sites like all others.
    cost = np.vstack([cost, np.zeros((len(sites) - len(wanted), len(sites)))])
    taken = np.arange(len(sites))
    while True:
        now = cost[np.arange(len(sites)), taken]
        swapped = cost[:, taken]
        gain = now[:, None] + now[None] - swapped - swapped.T
        first, second = np.unravel_index(np.argmax(gain), gain.shape)
        if gain[first, second] <= 1e-9:
            return [int(site) for site in taken[: len(wanted)]]
        taken[[first, second]] = taken[[second, first]]


def fix_block_rams(netlist: Netlist) -> None:
    """Tell nextpnr the site of each block RAM of ``netlist``; the same for the same netlist.

    Raises
    ------
    ValueError
        There are more block RAMs than the device has.
    """
    block_rams = [name for name in netlist.cells if netlist.kind(name) == "DP16KD"]
    if not block_rams:
        return
    if len(block_rams) > len(SITES):
        raise ValueError(f"{len(block_rams)} block RAMs; the device has {len(SITES)}")
    placement = _Placement(netlist)
    wanted = placement.drawn(placement.place())[[placement.number[name] for name in block_rams]]
    for name, site in zip(block_rams, _assigned(wanted), strict=True):
        netlist.cells[name]["attributes"]["BEL"] = SITES[site][2]
