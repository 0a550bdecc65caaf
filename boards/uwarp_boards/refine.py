"""Move cells of a placed netlist a little so that its longest paths become shorter.

nextpnr's placement is one of little wire, in which what is on the longest paths counts somewhat
more. Here paths count: again and again the cells on the longest ones are taken, and each goes
to the slot around it where the paths through it and through what it changes places with are
shortest. What a path costs grows as e to its length, so that the longer decides and no other may
become as long; each step looks at the paths as the steps before have left them::

    paths of all wires -> cells on the longest -> for each: what each tile around would cost
         ^                                                     |
         `--------- moved, if legal and cheaper, <-------------'

Before that and after it all cells are taken so, for less wire: a tenth less of the NIC's, which
makes room for the wires on the longest paths.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .floorplan import SITES
from .slices import LUTS, Slot, Tiles
from .timing import Cells, Timing, wire_delays

__all__ = ["ask_for_places", "refine"]

#: A path of so many ps more costs e times as much: coarse to begin with, fine in the end.
_COARSE, _FINE = 400.0, 90.0
#: What each ps of wire costs, beside 1 for a long path, while paths are made shorter, and while
#: wires are. What is in the way of others makes these longer when it is routed.
_WIRE, _SHORT_WIRE = 2e-4, 1e-3
#: By that power of the wires of a net each costs less: they share most of the way.
_SHARED = 0.9
#: What a move saves at least.
_LEAST = 1e-6

#: The share of all wires whose cells are taken in a round, at most, and the rounds.
_TAKEN = 0.1
_ROUNDS = 40
#: Rounds of all cells for shorter wires, before and after those.
_BEFORE, _AFTER = 2, 4
#: Tiles that are looked at around a cell, at most; and how many are tried.
_REACH, _WIDEST = 7, 31
_TRIED = 40
#: Cells on a path that are moved together, at most, and how many tiles apart they are.
_TOGETHER, _NEAR = 5, 2
#: The share of all wires that may be on longer paths than one that costs 1: were that the longest
#: of all, and nothing helps that, the ones behind would cost next to nothing.
_STUCK = 0.002
#: Moves after which paths are found anew, while they are made shorter and while wires are.
_FRESH, _SELDOM_FRESH = 25, 500

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Part:
    """Cells that stay together: ``first``, the upper LUT of a pair, and their flip-flops."""

    first: int
    is_pair: bool
    group: list[int]
    ffs: list[int]


class _Refinement:
    def __init__(self, cells: Cells, sdf: Path, seed: int) -> None:
        self.cells = cells
        self.timing = Timing(cells, sdf)
        self._sharing = self.timing.fan_out**-_SHARED
        self.tiles = Tiles(cells)
        self._random = np.random.default_rng(seed)
        wires: dict[int, list[int]] = defaultdict(list)
        for wire in np.flatnonzero(~self.timing.fixed):
            for cell in {int(self.timing.source[wire]), int(self.timing.sink[wire])}:
                wires[cell].append(int(wire))
        self._wires = {cell: np.array(numbers) for cell, numbers in wires.items()}
        self._sharpness = _COARSE
        self._level = 0.0
        self._xs = np.array(sorted(self.tiles.columns))
        self._ys = np.array(sorted(self.tiles.rows))
        self._done: list[tuple[dict[int, Slot], Any, Floats, Floats]] = []
        self._site_places = np.array([site[:2] for site in SITES])
        sites = {(x, y): number for number, (x, y, _) in enumerate(SITES)}
        self._site_of = {
            cell: sites[int(cells.x[cell]), int(cells.y[cell])]
            for cell, kind in enumerate(cells.kinds)
            if kind == "DP16KD"
        }
        self._ram_at = {site: cell for cell, site in self._site_of.items()}

    def _cost(self, wires: Any, path: Floats, delay: Floats) -> Floats:
        result: Floats = (
            np.exp(np.minimum((path - self._level) / self._sharpness, 20.0))
            + self._wire_cost[wires] * delay
        )
        return result

    def _wires_of(self, cells: Iterable[int]) -> NDArray[np.int64]:
        touched = [self._wires[cell] for cell in cells if cell in self._wires]
        return np.unique(np.concatenate(touched)) if touched else np.array([], dtype=int)

    def _map(self, cell: int, group: list[int]) -> list[tuple[int, int]]:
        """The tiles around ``cell``, in which ``group`` is, that would be best for it."""
        timing, cells = self.timing, self.cells
        wires = self._wires_of(group)
        inside = np.isin(timing.source[wires], group) & np.isin(timing.sink[wires], group)
        wires = wires[~inside]
        at_sink = np.isin(timing.sink[wires], group)
        other = np.where(at_sink, timing.source[wires], timing.sink[wires])
        x, y = int(cells.x[cell]), int(cells.y[cell])
        ox, oy = cells.x[other], cells.y[other]
        path, delay = timing.path[wires], self._delay[wires]
        hot = path > self._level - 3 * self._sharpness
        near = np.concatenate([ox[hot], [x]]), np.concatenate([oy[hot], [y]])
        columns = self._around(self._xs, near[0], x)
        rows = self._around(self._ys, near[1], y)
        cost = np.zeros((len(columns), len(rows)))
        for begin in range(0, len(wires), 64):
            part = slice(begin, begin + 64)
            new = wire_delays(
                (columns[None, :] - ox[part, None])[:, :, None],
                (rows[None, :] - oy[part, None])[:, None, :],
            )
            new += timing.offset[wires[part], None, None]
            longer = new - delay[part, None, None]
            numbers = wires[part, None, None]
            cost += self._cost(numbers, path[part, None, None] + longer, new).sum(axis=0)
        here = cost[np.searchsorted(columns, x), np.searchsorted(rows, y)]
        order = np.argsort(cost, axis=None)[: np.count_nonzero(cost < here)]
        return [(int(columns[n // len(rows)]), int(rows[n % len(rows)])) for n in order]

    @staticmethod
    def _around(lines: NDArray[np.int64], near: NDArray[np.int64], here: int) -> Any:
        low, high = near.min() - 1, near.max() + 1
        low, high = min(low, here - _REACH), max(high, here + _REACH)
        low, high = max(low, here - _WIDEST), min(high, here + _WIDEST)
        return lines[(lines >= low) & (lines <= high)]

    def _step(self, moves: dict[int, Slot]) -> float | None:
        """Do ``moves``; what they save, or None, and nothing is done, if they are not legal."""
        back = self.tiles.try_moves(moves)
        if back is None:
            return None
        wires = self._wires_of(moves)
        saved, path, delay = self._time_again(wires)
        self._done.append((back, wires, path, delay))
        return saved

    def _time_again(self, wires: NDArray[np.int64]) -> tuple[float, Floats, Floats]:
        """Time ``wires`` with the cells where they are now: what they cost less than before, and
        their paths and delays of before."""
        path, delay = self.timing.path[wires], self._delay[wires]
        new = self.timing.delays(wires)
        self.timing.path[wires] += new - delay
        self._delay[wires] = new
        now = self._cost(wires, self.timing.path[wires], new)
        return float((self._cost(wires, path, delay) - now).sum()), path, delay

    def _take_back(self, number: int) -> None:
        """Take the last ``number`` steps back."""
        for _ in range(number):
            back, wires, path, delay = self._done.pop()
            self.tiles.move(back)
            self.timing.path[wires], self._delay[wires] = path, delay

    def _saves(self, moves: dict[int, Slot], before: float = 0.0) -> bool:
        """Do ``moves`` if what they save, with what was saved before, is worth it."""
        saved = self._step(moves)
        if saved is not None and before + saved <= _LEAST:
            self._take_back(1)
            return False
        return saved is not None

    def _part(self, cell: int) -> _Part | None:
        """What goes with ``cell`` wherever it goes, if that is less than its tile."""
        tiles = self.tiles
        lut = tiles.takes_lut.get(cell, cell)
        x, y, place = tiles.slots[lut]
        lower = lut if lut in tiles.pairs else tiles.at.get((x, y, place - 1), -1)
        is_pair = lut in (lower, tiles.pairs.get(lower, -1)) and lower in tiles.pairs
        if lut not in tiles.free and not is_pair:
            return None
        luts = [lower, tiles.pairs[lower]] if is_pair else [lut]
        ffs = []
        for member in luts:
            slot = tiles.slots[member]
            ff = tiles.at.get((slot[0], slot[1], slot[2] + LUTS), -1)
            if slot[2] >= LUTS:
                ffs.append(member)
            elif tiles.takes_lut.get(ff) == member:
                ffs.append(ff)
        return _Part(luts[0], is_pair, [*dict.fromkeys((*luts, *ffs))], ffs)

    def _ways(self, part: _Part, tile: tuple[int, int]) -> list[dict[int, Slot]]:
        """The moves that bring ``part`` into a tile, those of few cells first."""
        if not all(self.tiles.may_take(ff, *tile) for ff in part.ffs):
            return []
        base = LUTS if self.tiles.slots[part.first][2] >= LUTS else 0
        exchange = self.tiles.exchange_pair if part.is_pair else self.tiles.exchange
        step = 2 if part.is_pair else 1
        places = range(base, base + LUTS, step)
        ways = (exchange(part.first, (*tile, place)) for place in places)
        return sorted((moves for moves in ways if moves), key=len)

    def _improve(self, parts: list[_Part]) -> bool:
        """Move ``parts`` into one tile; False if there is no better one."""
        group = [cell for part in parts for cell in part.group]
        tried = 0
        for tile in self._map(parts[0].first, group):
            saved, steps = 0.0, 0
            for part in parts[:-1]:
                gains = (self._step(moves) for moves in self._ways(part, tile))
                gain = next((gain for gain in gains if gain is not None), None)
                if gain is None:
                    break
                saved, steps = saved + gain, steps + 1
            ways = self._ways(parts[-1], tile) if steps == len(parts) - 1 else []
            if any(self._saves(moves, saved) for moves in ways):
                return True
            self._take_back(steps)
            tried += bool(ways)
            if tried > _TRIED:
                break
        return False

    def _neighbours(self, cell: int) -> list[_Part]:
        """``cell``, and what is near it on the longest paths through it."""
        timing, cells = self.timing, self.cells
        parts: dict[int, _Part] = {}
        ahead = [cell]
        while ahead and len(parts) < _TOGETHER:
            here = ahead.pop(0)
            part = self._part(here) if here in self.tiles.slots else None
            if part is None or part.first in parts:
                continue
            parts[part.first] = part
            wires = self._wires_of(part.group)
            wires = wires[timing.path[wires] > self._level - self._sharpness]
            near = np.abs(cells.x[timing.source[wires]] - cells.x[timing.sink[wires]]) <= _NEAR
            near &= np.abs(cells.y[timing.source[wires]] - cells.y[timing.sink[wires]]) <= _NEAR
            ahead.extend(map(int, timing.source[wires[near]]))
            ahead.extend(map(int, timing.sink[wires[near]]))
        return list(parts.values())

    def _improve_tiles(self, cell: int) -> bool:
        """Move the tile of ``cell``, or all tiles of its carry chain."""
        run = self.tiles.run(cell)
        group = [
            member
            for tile in run
            for place in range(2 * LUTS + 1)
            if (member := self.tiles.at.get((*tile, place))) is not None
        ]
        for tile in self._map(cell, group):
            to = (tile[0] - (int(self.cells.x[cell]) - run[0][0]), tile[1])
            moves = self.tiles.exchange_tiles(cell, to)
            if moves and self._saves(moves):
                return True
        return False

    def _improve_ram(self, cell: int) -> bool:
        """Move a block RAM to another site."""
        timing, cells = self.timing, self.cells
        wires = self._wires[cell]
        other = np.where(timing.sink[wires] == cell, timing.source[wires], timing.sink[wires])
        path, delay = timing.path[wires], self._delay[wires]
        xs, ys = self._site_places.T
        new = wire_delays(xs[None] - cells.x[other][:, None], ys[None] - cells.y[other][:, None])
        new += timing.offset[wires, None]
        cost = self._cost(wires[:, None], path[:, None] + new - delay[:, None], new).sum(axis=0)
        order = np.argsort(cost)
        better = order[: np.flatnonzero(order == self._site_of[cell])[0]]
        return any(self._exchange_rams(cell, int(site)) for site in better[:_TRIED])

    def _exchange_rams(self, cell: int, to: int) -> bool:
        """Move ``cell`` to a site and what is there to its own, if that is better."""
        here = self._site_of[cell]
        moved = [ram for ram in (cell, self._ram_at.get(to)) if ram is not None]
        wires = self._wires_of(moved)
        self._put_rams(moved, (to, here))
        saved, path, delay = self._time_again(wires)
        if saved <= _LEAST:
            self._put_rams(moved, (here, to))
            self.timing.path[wires], self._delay[wires] = path, delay
            return False
        return True

    def _put_rams(self, rams: list[int], sites: tuple[int, int]) -> None:
        for ram in rams:
            del self._ram_at[self._site_of[ram]]
        for ram, site in zip(rams, sites, strict=False):
            self._site_of[ram], self._ram_at[site] = site, ram
            self.cells.x[ram], self.cells.y[ram] = self._site_places[site]

    def run(self) -> None:
        for _ in range(_BEFORE):
            self._shorten_wires()
        self._wire_cost = _WIRE * self._sharing
        for number in range(_ROUNDS):
            done = number / (_ROUNDS - 1)
            self._sharpness = _COARSE * (_FINE / _COARSE) ** done
            self._fresh()
            order = np.argsort(-self.timing.path)[: int(_TAKEN * len(self.timing.path)) + 1]
            hot = order[self.timing.path[order] > self._level - 4 * self._sharpness]
            ends = np.concatenate([self.timing.source[hot], self.timing.sink[hot]])
            self._improve_all(np.unique(ends), self._improve_any, _FRESH)
        for _ in range(_AFTER):
            self._shorten_wires()

    def _improve_all(self, cells: Any, improve: Callable[[int], bool], fresh: int) -> None:
        """Try ``cells`` in any order, and find paths anew after every ``fresh`` moves."""
        moved = 0
        for cell in self._random.permutation(cells):
            if improve(int(cell)):
                moved += 1
                self._done.clear()
                if moved % fresh == 0:
                    self._fresh()

    def _shorten_wires(self) -> None:
        """Move any cell to where its wires are shorter and no path becomes too long."""
        self._wire_cost = _SHORT_WIRE * self._sharing
        self._fresh()
        self._improve_all(list(self._wires), self._improve_alone, _SELDOM_FRESH)

    def tell(self) -> None:
        """Write the places into the netlist."""
        self.tiles.tell()
        for cell, site in self._site_of.items():
            self.cells.content[cell]["attributes"]["NEXTPNR_BEL"] = SITES[site][2]

    def _improve_alone(self, cell: int) -> bool:
        if cell in self._site_of:
            return self._improve_ram(cell)
        if cell not in self.tiles.slots:
            return False
        part = self._part(cell)
        return self._improve_tiles(cell) if part is None else self._improve([part])

    def _improve_any(self, cell: int) -> bool:
        if self._improve_alone(cell):
            return True
        together = self._neighbours(cell)
        return any(self._improve(together[:count]) for count in range(2, len(together) + 1))

    def _fresh(self) -> None:
        self._delay = self.timing.delays()
        self.timing.update(self._delay)
        path = self.timing.path
        count = int(_STUCK * len(path)) + 1
        self._level = float(np.partition(path, -count)[-count]) if len(path) else 0.0


def refine(module: dict[str, Any], sdf: Path, seed: int = 1) -> tuple[float, float]:
    """Move cells of ``module``, a placed one of nextpnr's JSON, in place.

    Parameters
    ----------
    sdf : how long its cells take, as nextpnr writes it with the placement.

    Returns
    -------
    The longest path in ps by this package's ``timing``, before and after.
    """
    cells = Cells.of(module)
    work = _Refinement(cells, sdf, seed)
    before = work.timing.update()
    work.run()
    work.tell()
    return before, work.timing.update()


def ask_for_places(module: dict[str, Any]) -> None:
    """Turn the places of ``module``, a placed one of nextpnr's JSON, into those asked for.

    nextpnr takes a placement that it reads for what it is, and then routes it before it knows which
    inputs of a LUT it may exchange: of a carry cell or a LUT RAM not all. What is asked for it
    places itself.
    """
    for cell in module["cells"].values():
        attributes = cell["attributes"]
        attributes.pop("BEL_STRENGTH", None)
        if "NEXTPNR_BEL" in attributes:
            attributes["BEL"] = attributes.pop("NEXTPNR_BEL")
    for net in module["netnames"].values():
        net["attributes"].pop("ROUTING", None)
