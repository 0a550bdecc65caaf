"""Which cells may stand in one tile of LUTs and flip-flops of an ECP5, and what has to move as one.

A tile has four slices of two LUTs and two flip-flops each. Its flip-flops have one clock and one
reset, those of a slice one enable. A flip-flop takes its value from the LUT beside it (DI) or from
the slice's M input, which a LUT also needs that is half of a wider multiplexer::

    SLICEA  K0 -DI-> FF0        K0 and K1 of a PFUMX stay beside each other,
            K1 -DI-> FF1        so do carry chains and LUT RAMs with all that is in them
    SLICEB  ...

As nextpnr's rules for placements are (``Arch::slices_compatible`` in its ``ecp5`` directory), which
take fewer mixtures than the device would.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from .netlist import Net
from .timing import Cells

__all__ = ["LUTS", "Slot", "Tiles"]

#: LUTs of a tile, and flip-flops.
LUTS = 8

#: x, y and which of the tile's LUTs, or flip-flops LUTS later, or the write port of its LUT RAM.
Slot = tuple[int, int, int]
_RAM_WRITE = 2 * LUTS

_SLICES = "ABCD"
#: The first LUT of the slice that a LUT RAM is written through.
_WRITES = 4


def _bel(slot: Slot) -> str:
    """nextpnr's name of a slot."""
    x, y, place = slot
    if place == _RAM_WRITE:
        return f"X{x}/Y{y}/SLICEC.RAMW"
    part, kind = _SLICES[place % LUTS // 2], "K" if place < LUTS else "FF"
    return f"X{x}/Y{y}/SLICE{part}.{kind}{place % 2}"


@dataclass
class _Traits:
    """What the rules ask of one cell."""

    is_carry: bool = False
    blocks_slice: bool = False
    takes_m: bool = False
    enable: tuple[Any, ...] = ()
    control: tuple[Any, ...] = ()


@dataclass
class Tiles:
    """What stands where, and what may be moved.

    Attributes
    ----------
    at : dict of Slot to int
        The cell in each slot that has one.
    slots : dict of int to Slot
        The slot of each cell of a tile.
    takes_lut : dict of int to int
        The LUT whose value each flip-flop takes that takes one's.
    free : set of int
        The LUTs that may go anywhere with their flip-flop, and flip-flops that take no LUT's value.
    pairs : dict of int to int
        The lower LUT of each two that may go anywhere together, and the upper.
    """

    cells: Cells
    at: dict[Slot, int] = field(default_factory=dict)
    slots: dict[int, Slot] = field(default_factory=dict)
    takes_lut: dict[int, int] = field(default_factory=dict)
    free: set[int] = field(default_factory=set)
    pairs: dict[int, int] = field(default_factory=dict)
    columns: frozenset[int] = frozenset()
    rows: frozenset[int] = frozenset()
    _traits: dict[int, _Traits] = field(default_factory=dict)
    _chains: dict[int, int] = field(default_factory=dict)
    _members: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _runs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cells = self.cells
        number = {name: cell for cell, name in enumerate(cells.names)}
        netlist = cells.netlist
        drivers = {net: number[name] for net, (name, _) in netlist.driver.items()}
        for cell, kind in enumerate(cells.kinds):
            if kind in ("TRELLIS_COMB", "TRELLIS_FF"):
                part, number = cells.sites[cell][5], int(cells.sites[cell][-1])
                slot = 2 * _SLICES.index(part) + number + LUTS * (kind == "TRELLIS_FF")
                self._put(cell, (int(cells.x[cell]), int(cells.y[cell]), slot))
                self._traits[cell] = self._traits_of(cell)
            elif kind == "TRELLIS_RAMW":
                self._put(cell, (int(cells.x[cell]), int(cells.y[cell]), _RAM_WRITE))
        self.columns = frozenset(x for x, _, _ in self.at)
        self.rows = frozenset(y for _, y, _ in self.at)
        for cell, kind in enumerate(cells.kinds):
            if kind == "TRELLIS_FF":
                source = cells.net(cell, "DI")
                if source is None:
                    self.free.add(cell)
                else:
                    self.takes_lut[cell] = drivers[source]
        for cell, kind in enumerate(cells.kinds):
            if kind != "TRELLIS_COMB" or not self._is_plain(cell):
                continue
            read = (netlist.read_from(cells.names[cell], pin) for pin in ("F", "OFX"))
            told = {pin for readers in read for _, pin in readers}
            upper = cells.net(cell, "F1")
            if not told & {"F1", "FXA", "FXB"}:
                if upper is None:
                    self.free.add(cell)
                elif self._is_plain(drivers[upper]):
                    self.pairs[cell] = drivers[upper]
        self._find_chains(drivers)

    def _find_chains(self, drivers: dict[Net, int]) -> None:
        """Give each LUT of a carry chain the chain's last one."""
        before = {}
        for cell, kind in enumerate(self.cells.kinds):
            carry = self.cells.net(cell, "FCI") if kind == "TRELLIS_COMB" else None
            if carry is not None:
                before[cell] = drivers[carry]
        for last in set(before) - set(before.values()):
            member: int | None = last
            while member is not None:
                self._chains[member] = last
                self._members[last].append(member)
                member = before.get(member)
            self._find_run(last)

    def _find_run(self, last: int) -> None:
        self._runs[last] = sorted({self.slots[cell][:2] for cell in self._members[last]})

    def _put(self, cell: int, slot: Slot) -> None:
        self.at[slot] = cell
        self.slots[cell] = slot

    def _is_plain(self, cell: int) -> bool:
        """Whether a LUT is no part of a carry chain, a LUT RAM, or a multiplexer of four."""
        content = self.cells.content[cell]
        joined = any(self.cells.net(cell, pin) is not None for pin in ("FXA", "FXB"))
        return content["parameters"].get("MODE", "LOGIC").strip() == "LOGIC" and not joined

    def _traits_of(self, cell: int) -> _Traits:
        parameters = self.cells.content[cell]["parameters"]
        told = {name: str(value).strip() for name, value in parameters.items()}
        net = self.cells.net
        if self.cells.kinds[cell] == "TRELLIS_COMB":
            mode = told.get("MODE", "LOGIC")
            return _Traits(
                is_carry=mode == "CCU2",
                blocks_slice=mode == "RAMW_BLOCK",
                takes_m=any(net(cell, pin) is not None for pin in ("F1", "FXA", "FXB")),
            )
        controls = ("CLKMUX", "LSRMUX", "SRMODE", "GSR")
        return _Traits(
            takes_m=net(cell, "M") is not None,
            enable=(net(cell, "CE"), told.get("CEMUX")),
            control=(net(cell, "CLK"), net(cell, "LSR"), *(told.get(key) for key in controls)),
        )

    def move(self, moves: dict[int, Slot]) -> None:
        """Put each cell of ``moves`` into its slot; all that stood there must be moved, too."""
        for cell in moves:
            del self.at[self.slots[cell]]
        for cell, slot in moves.items():
            self._put(cell, slot)
            self.cells.x[cell], self.cells.y[cell] = slot[:2]
        for last in {self._chains[cell] for cell in moves if cell in self._chains}:
            self._find_run(last)

    def try_moves(self, moves: dict[int, Slot]) -> dict[int, Slot] | None:
        """Do ``moves``; the ones back, or None, and nothing is done, if they are not legal."""
        back = {cell: self.slots[cell] for cell in moves}
        self.move(moves)
        tiles = {slot[:2] for slot in (*back.values(), *moves.values())}
        if all(self.is_legal(*tile) for tile in tiles):
            return back
        self.move(back)
        return None

    def tell(self) -> None:
        """Write the slots into the netlist."""
        for cell, slot in self.slots.items():
            self.cells.content[cell]["attributes"]["NEXTPNR_BEL"] = _bel(slot)

    def may_take(self, ff: int, x: int, y: int) -> bool:
        """Whether the other flip-flops of a tile have the clock and the reset of ``ff``."""
        own = self._traits[ff].control
        for place in range(LUTS, 2 * LUTS):
            other = self.at.get((x, y, place))
            if other is not None and other != ff:
                return self._traits[other].control == own
        return True

    def is_legal(self, x: int, y: int) -> bool:
        """Whether what stands in a tile may."""
        control: tuple[Any, ...] | None = None
        for base in range(0, LUTS, 2):
            luts, enable = [], None
            for place in (base, base + 1):
                lut = self.at.get((x, y, place))
                traits = self._traits[lut] if lut is not None else None
                if traits is not None:
                    luts.append(traits)
                ff = self.at.get((x, y, place + LUTS))
                if ff is None:
                    continue
                own = self._traits[ff]
                if traits is not None and traits.takes_m and own.takes_m:
                    return False
                if enable not in (None, own.enable) or control not in (None, own.control):
                    return False
                enable, control = own.enable, own.control
            if len(luts) == 2 and luts[0].is_carry != luts[1].is_carry:
                return False
            writes = base == _WRITES and (x, y, _RAM_WRITE) in self.at
            if writes and not all(lut.blocks_slice for lut in luts):
                return False
        return True

    def exchange(self, cell: int, to: Slot) -> dict[int, Slot] | None:
        """The moves that bring a free cell to a slot and what is there to where the cell was.

        None if what is there stays with others.
        """
        x, y, place = self.slots[cell]
        if place >= LUTS:
            return self._exchange_slots([((x, y, place), to)])
        return self._exchange_luts([((x, y, place), to)])

    def exchange_pair(self, lower: int, to: Slot) -> dict[int, Slot] | None:
        """As ``exchange`` for two LUTs; ``to`` is the lower one's slot, an even one."""
        x, y, place = self.slots[lower]
        return self._exchange_luts([((x, y, place + n), (to[0], to[1], to[2] + n)) for n in (0, 1)])

    def run(self, cell: int) -> list[tuple[int, int]]:
        """The tiles over which the carry chain of a cell goes, from left to right; else its own."""
        return self._runs.get(self._chains.get(cell, -1), [self.slots[cell][:2]])

    def exchange_tiles(self, cell: int, to: tuple[int, int]) -> dict[int, Slot] | None:
        """The moves that exchange all in the tiles of ``run`` for all in as many from ``to`` on."""
        here = self.run(cell)
        there = [(to[0] + number, to[1]) for number in range(len(here))]
        if set(here) & set(there) or not {x for x, _ in there} <= self.columns:
            return None
        moves: dict[int, Slot] = {}
        for starts, ends in ((here, there), (there, here)):
            inside = set(starts)
            for start, end in zip(starts, ends, strict=True):
                for place in range(_RAM_WRITE + 1):
                    member = self.at.get((*start, place))
                    if member is not None:
                        if not inside.issuperset(self.run(member)):
                            return None
                        moves[member] = (*end, place)
        return moves

    def _exchange_luts(self, ways: list[tuple[Slot, Slot]]) -> dict[int, Slot] | None:
        both = []
        for here, there in ways:
            both.append((here, there))
            ffs = [(slot[0], slot[1], slot[2] + LUTS) for slot in (here, there)]
            if any(self.at.get(slot) in self.takes_lut for slot in ffs):
                both.append((ffs[0], ffs[1]))
        return self._exchange_slots(both)

    def _exchange_slots(self, ways: list[tuple[Slot, Slot]]) -> dict[int, Slot] | None:
        moves: dict[int, Slot] = {}
        for here, there in ways:
            for start, end in ((here, there), (there, here)):
                cell = self.at.get(start)
                if cell is not None:
                    moves[cell] = end
        return moves if all(self._stays_whole(cell, moves) for cell in moves) else None

    def _stays_whole(self, cell: int, moves: dict[int, Slot]) -> bool:
        """Whether what has to be beside ``cell`` goes with it."""
        x, y, place = moves[cell]
        lut = self.takes_lut.get(cell)
        if lut is not None:
            return moves.get(lut, self.slots[lut]) == (x, y, place - LUTS)
        if cell in self.free:
            return True
        if cell in self.pairs:
            upper = self.pairs[cell]
            return place % 2 == 0 and moves.get(upper) == (x, y, place + 1)
        slot = self.slots[cell]
        lower = self.at.get((slot[0], slot[1], slot[2] - 1))
        if lower is not None and self.pairs.get(lower) == cell:
            return moves.get(lower) == (x, y, place - 1)
        return False
