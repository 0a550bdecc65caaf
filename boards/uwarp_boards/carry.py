"""Fold LUTs into the carry cells beside them, which have room for them.

Half of an ECP5 carry cell (CCU2C) is a LUT of four inputs that says whether the half passes the
carry on (``propagate``), and the first quarter of the same table, by inputs A and B alone, that
says what it carries if it does not (``generate``)::

    A B C D -> propagate:  S = propagate ^ CIN,  COUT = CIN if propagate else generate

Yosys takes two of the four inputs for an adder and leaves what stands before and behind it to LUTs
of their own. These fit into the cell:

* the choice between the sum and a value to load, behind a counter: while it loads, no half of the
  chain generates a carry, so that each gives what it is told to propagate;
* a LUT that does what the first half of a chain does (the lowest bit of a counter);
* a LUT that nothing but carry cells read (an inverter, an enable, a choice of the operand), if its
  inputs and the other operand are four at most.

A half is replaced only by a table that was found to be the same function of the same nets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product

from .netlist import PINS, Assignment, Function, Net, Netlist, distinct, place, points, table_text

__all__ = ["fold_carry_luts"]

_OPERANDS = frozenset(f"{pin}{number}" for pin in PINS for number in (0, 1))

#: Pins A to D of a half, and its table.
_Fit = tuple[tuple[Net, ...], str]


@dataclass(frozen=True)
class _Half:
    """What half of a carry cell does with the nets at its pins; ``generate`` counts only where
    ``propagate`` is 0, and not at all (None) if nothing reads the carry."""

    nets: tuple[Net, ...]
    propagate: Function
    generate: Function | None

    def fit(self) -> _Fit | None:
        """Pins and a table that do this, if there are any."""
        if len(self.nets) > len(PINS):
            return None
        for rest in product("01", repeat=len(PINS) - len(self.nets)):
            for pins in sorted(set(permutations((*self.nets, *rest))), key=str):
                table = self._table(pins)
                if table is not None:
                    return pins, table_text(table)
        return None

    def _table(self, pins: tuple[Net, ...]) -> dict[int, int] | None:
        table = {place(pins, point): self.propagate(point) for point in points(self.nets)}
        for point in points(self.nets):
            if self.generate is None or self.propagate(point):
                continue
            carry = self.generate(point)
            if table.setdefault(place(pins[:2], point), carry) != carry:
                return None
        return table


def _half(netlist: Netlist, name: str, number: int) -> _Half:
    pins = tuple(netlist.pin(name, f"{pin}{number}") for pin in PINS)
    table = int(netlist.cells[name]["parameters"][f"INIT{number}"], 2)
    carries = netlist.read_from(name, "COUT") or (number == 0 and netlist.read_from(name, "S1"))
    return _Half(
        distinct(pins),
        lambda point: table >> place(pins, point) & 1,
        (lambda point: table >> place(pins[:2], point) & 1) if carries else None,
    )


def _set_half(netlist: Netlist, name: str, number: int, fit: _Fit) -> None:
    pins, table = fit
    for pin, net in zip(PINS, pins, strict=True):
        netlist.connect(name, f"{pin}{number}", net)
    netlist.cells[name]["parameters"][f"INIT{number}"] = table


def _is_carry(netlist: Netlist, name: str) -> bool:
    if netlist.kind(name) != "CCU2C":
        return False
    parameters = netlist.cells[name]["parameters"]
    return parameters["INJECT1_0"] == parameters["INJECT1_1"] == "NO"


def _chains(netlist: Netlist) -> Iterator[list[tuple[str, int]]]:
    """The halves, up to the last whose sum is read, of each chain without a carry into it, or with
    a constant one, of which no carry is read elsewhere."""
    cells = [name for name in netlist.cells if _is_carry(netlist, name)]
    following = {}
    for name in cells:
        before, port = netlist.driver.get(netlist.pin(name, "CIN"), ("", ""))
        if port == "COUT" and _is_carry(netlist, before):
            following[before] = name
    for head in cells:
        if netlist.pin(head, "CIN") not in ("0", "1"):
            continue
        chain = [head]
        while chain[-1] in following:
            chain.append(following[chain[-1]])
        if any(len(netlist.read_from(name, "COUT")) != (name in following) for name in chain):
            continue
        halves = [(name, number) for name in chain for number in (0, 1)]
        while halves and not netlist.read_from(halves[-1][0], f"S{halves[-1][1]}"):
            halves.pop()
        if halves:
            yield halves


def _loads(netlist: Netlist, lut: str, total: Net) -> set[tuple[Net, int]]:
    """The nets, each with the value, by which a LUT gives something else than ``total``, which it
    gives by the other value."""
    nets, function = netlist.lut(lut)
    others = [net for net in nets if net != total]

    def by_total(point: Assignment) -> tuple[int, int]:
        return function({**point, total: 0}), function({**point, total: 1})

    return {
        (net, value)
        for net, value in product(others, (0, 1))
        if all(
            len(set(by_total(point))) == 1 if point[net] == value else by_total(point) == (0, 1)
            for point in points(others)
        )
    }


def _without_carry_in(half: _Half) -> _Half | None:
    """What does without a carry into it all that ``half`` does with one, if it can."""
    if half.generate is None:
        return replace(half, propagate=lambda point: 1 - half.propagate(point))
    if any(not half.propagate(point) and half.generate(point) for point in points(half.nets)):
        return None
    return _Half(half.nets, lambda point: 1 - half.propagate(point), lambda point: 1)


def _loaded(netlist: Netlist, half: _Half, load: tuple[Net, int], lut: str, total: Net) -> _Half:
    """``half``, but that it gives what ``lut`` does, without a carry, where ``load`` holds."""
    net, value = load
    nets, function = netlist.lut(lut) if lut else ((), half.propagate)

    def propagate(point: Assignment) -> int:
        if point[net] == value:
            return function({**point, total: 0})
        return half.propagate(point)

    def generate(point: Assignment) -> int:
        return 0 if point[net] == value or half.generate is None else half.generate(point)

    others = (item for item in (*half.nets, net, *nets) if item != total)
    return _Half(distinct(others), propagate, half.generate and generate)


def _fold_load(netlist: Netlist, halves: Sequence[tuple[str, int]]) -> None:
    """Fold the LUTs behind a chain that choose between its sum and what it loads."""
    luts: list[str] = []
    loads: set[tuple[Net, int]] | None = None
    for name, number in halves:
        readers = netlist.read_from(name, f"S{number}")
        if not readers:
            luts.append("")
            continue
        lut, _ = next(iter(readers))
        if len(readers) > 1 or netlist.kind(lut) != "LUT4":
            return
        if netlist.feeds_mux(lut):
            return
        found = _loads(netlist, lut, netlist.pin(name, f"S{number}"))
        loads = found if loads is None else loads & found
        luts.append(lut)
    for load in sorted(loads or (), key=str):
        fits = []
        for (name, number), lut in zip(halves, luts, strict=True):
            half: _Half | None = _half(netlist, name, number)
            if half and not fits and netlist.pin(name, "CIN") == "1":
                half = _without_carry_in(half)
            if half is None:
                break
            total = netlist.pin(name, f"S{number}")
            fit = _loaded(netlist, half, load, lut, total).fit()
            if fit is None:
                break
            fits.append(fit)
        if len(fits) == len(halves):
            _replace_load(netlist, halves, luts, fits)
            return


def _replace_load(
    netlist: Netlist, halves: Sequence[tuple[str, int]], luts: Sequence[str], fits: Sequence[_Fit]
) -> None:
    netlist.connect(halves[0][0], "CIN", "0")
    for (name, number), lut, fit in zip(halves, luts, fits, strict=True):
        _set_half(netlist, name, number, fit)
        if lut:
            netlist.take_place(name, f"S{number}", lut)


def _fold_first(netlist: Netlist) -> None:
    """Let the first halves of chains take the place of LUTs that do the same."""
    luts = defaultdict(list)
    for name in netlist.cells:
        if netlist.kind(name) == "LUT4":
            nets, function = netlist.lut(name)
            luts[frozenset(nets)].append((name, function))
    for name in [name for name in netlist.cells if _is_carry(netlist, name)]:
        if netlist.pin(name, "CIN") not in ("0", "1"):
            continue
        half, carry = _half(netlist, name, 0), int(netlist.pin(name, "CIN"))
        if netlist.read_from(name, "S0") or not half.nets:
            continue
        for lut, function in luts[frozenset(half.nets)]:
            if lut not in netlist.cells or any(
                function(point) != half.propagate(point) ^ carry for point in points(half.nets)
            ):
                continue
            if not netlist.feeds_mux(lut):
                netlist.take_place(name, "S0", lut)
                break


def _fold_operand(netlist: Netlist, lut: str) -> bool:
    """Fold a LUT into the carry cells, if nothing else reads it."""
    result, readers = netlist.pin(lut, "Z"), netlist.read_from(lut, "Z")
    if not readers or not all(
        _is_carry(netlist, reader) and port in _OPERANDS for reader, port in readers
    ):
        return False
    nets, function = netlist.lut(lut)

    def behind(wanted: Function) -> Function:
        return lambda point: wanted({**point, result: function(point)})

    fits = {}
    for reader, port in readers:
        half = _half(netlist, reader, int(port[-1]))
        half = _Half(
            distinct(net for net in (*half.nets, *nets) if net != result),
            behind(half.propagate),
            half.generate and behind(half.generate),
        )
        fit = half.fit()
        if fit is None:
            return False
        fits[reader, int(port[-1])] = fit
    for (reader, number), fit in fits.items():
        _set_half(netlist, reader, number, fit)
    netlist.remove(lut)
    return True


def fold_carry_luts(netlist: Netlist) -> None:
    """Fold LUTs into the carry cells of ``netlist``, as far as they fit."""
    for halves in list(_chains(netlist)):
        _fold_load(netlist, halves)
    _fold_first(netlist)
    luts = [name for name in netlist.cells if netlist.kind(name) == "LUT4"]
    while any([_fold_operand(netlist, name) for name in luts]):
        luts = [name for name in luts if name in netlist.cells]
