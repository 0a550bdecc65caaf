"""Let the reset of a flip-flop clear it where a LUT did.

A flip-flop of the ECP5 has a synchronous reset beside its enable. Yosys gives it the reset of the
clock domain, and leaves a register that is cleared for another reason as well to a LUT a bit:
``D = x & keep``. Where several bits are cleared for the same reason, one LUT for all of them says
so to their reset::

    keep, x -> LUT -> D            keep, reset, enable -> LUT -> LSR
                           becomes                        x -> D
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from .netlist import PINS, Assignment, Net, Netlist, place, points, table_text

__all__ = ["fold_resets"]

#: Flip-flops for which a LUT and a net of their own pay.
_FEWEST = 4


@dataclass(frozen=True)
class _Reason:
    """When some flip-flops with one enable and one reset are cleared: if the values of ``nets`` are
    none of ``kept``."""

    nets: tuple[Net, ...]
    kept: frozenset[tuple[int, ...]]
    enable: Net
    enabled: int
    reset: Net


def _control(netlist: Netlist, name: str) -> tuple[Net, int, Net] | None:
    """The enable, at which value it enables, and the reset; None if they are not plain."""
    parameters = netlist.cells[name]["parameters"]
    if parameters.get("SRMODE") != "LSR_OVER_CE" or parameters["LSRMUX"] != "LSR":
        return None
    enable = netlist.enable(name)
    return None if enable is None else (*enable, netlist.pin(name, "LSR"))


def _reasons(netlist: Netlist, name: str) -> Iterator[tuple[_Reason, Net]]:
    """For what reasons a LUT clears a flip-flop, each with what it passes on otherwise."""
    data = netlist.pin(name, "DI")
    lut, _ = netlist.driver.get(data, ("", ""))
    control = _control(netlist, name)
    if netlist.kind(lut) != "LUT4" or len(netlist.readers[data]) > 1 or control is None:
        return
    enable, _, reset = control
    cleared = int(netlist.cells[name]["parameters"]["REGSET"] == "SET")
    nets, function = netlist.lut(lut)
    for passed in nets:
        others = tuple(sorted((net for net in nets if net != passed), key=str))
        kept = set()
        for point in points(others):
            gives = function({**point, passed: 0}), function({**point, passed: 1})
            if gives == (0, 1):
                kept.add(tuple(point.values()))
            elif gives != (cleared, cleared):
                break
        else:
            told = len(others) + isinstance(enable, int) + isinstance(reset, int)
            if kept and others and told <= len(PINS):
                yield _Reason(others, frozenset(kept), *control), passed


def _reset_lut(netlist: Netlist, reason: _Reason, name: str) -> Net:
    pins: list[Net] = [*reason.nets]
    pins += [net for net in (reason.enable, reason.reset) if isinstance(net, int)]

    def resets(point: Assignment) -> int:
        values: Assignment = {**point, "0": 0, "1": 1}
        enabled = values[reason.enable] == reason.enabled
        clears = tuple(point[net] for net in reason.nets) not in reason.kept
        return int(values[reason.reset] or (enabled and clears))

    table = {place(pins, point): resets(point) for point in points(pins)}
    return netlist.add_lut(name, pins, table_text(table))


def fold_resets(netlist: Netlist) -> None:
    """Clear the flip-flops of ``netlist`` by their resets, where one LUT then takes the place of
    several."""
    found: dict[_Reason, dict[str, Net]] = defaultdict(dict)
    for name in netlist.cells:
        if netlist.kind(name) == "TRELLIS_FF":
            for reason, passed in _reasons(netlist, name):
                found[reason][name] = passed
    taken: set[str] = set()
    for number, (reason, cleared) in enumerate(
        sorted(found.items(), key=lambda item: len(item[1]), reverse=True)
    ):
        left = {name: passed for name, passed in cleared.items() if name not in taken}
        if len(left) < _FEWEST:
            continue
        taken.update(left)
        reset = _reset_lut(netlist, reason, f"$fold_resets${number}")
        for name, passed in left.items():
            lut, _ = netlist.driver[netlist.pin(name, "DI")]
            netlist.connect(name, "DI", passed)
            netlist.connect(name, "LSR", reset)
            netlist.remove(lut)
