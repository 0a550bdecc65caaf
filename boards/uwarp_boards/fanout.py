"""Copy what resets or enables thousands of flip-flops, so that each unit has its own.

A net to flip-flops all over the device is as slow as the device is wide, and a placer that looks at
nothing but it makes the rest slow, too. Yosys merges equal registers, so copies that are described
would be one again: they are made here, behind it. A LUT that drives such a net is copied, and so is
a flip-flop that drives it or that LUT; what drives that flip-flop has the whole clock's period to
reach its copies::

    FF -> LUT -> 16,000 resets      becomes      -+-> FF -> LUT -> 2,500 resets of one unit
                                                  +-> FF -> LUT -> 1,800 of another
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from .netlist import PINS, Net, Netlist

__all__ = ["share_out"]

#: Loads of a net that is shared out, and of one copy.
_MANY = 2000
_MOST = 3000
_CONTROLS = ("LSR", "CE")
#: Parts of a cell's name that tell its unit, the top included.
_DEPTH = 3


def _groups(loads: list[tuple[str, str]], most: int) -> Iterator[list[tuple[str, str]]]:
    """Loads of one unit or of small ones that follow each other, at most ``most`` each."""
    by_unit: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    for load in sorted(loads):
        by_unit[tuple(load[0].split(".")[:-1][:_DEPTH])].append(load)
    group: list[tuple[str, str]] = []
    for _, of_unit in sorted(by_unit.items()):
        if group and len(group) + len(of_unit) > most:
            yield group
            group = []
        group += of_unit
        while len(group) > most:
            yield group[:most]
            group = group[most:]
    if group:
        yield group


def _copy(netlist: Netlist, net: Net, suffix: str) -> Net:
    """A copy of what drives ``net`` and, if that is a LUT, of its flip-flops of few loads."""
    name, port = netlist.driver[net]
    copied = netlist.copy(name, f"{name}{suffix}", port)
    if netlist.kind(name) == "LUT4":
        for pin in PINS:
            source = netlist.pin(name, pin)
            driver = netlist.driver.get(source, ("", ""))[0]
            if netlist.kind(driver) == "TRELLIS_FF":
                netlist.connect(f"{name}{suffix}", pin, _copy(netlist, source, suffix))
    return copied


def share_out(netlist: Netlist, *, many: int = _MANY, most: int = _MOST) -> None:
    """Copy the drivers of nets of ``netlist`` that reset or enable over ``many`` flip-flops: a copy
    for at most ``most`` loads."""
    for net in [net for net, loads in netlist.readers.items() if len(loads) > many]:
        driver = netlist.driver.get(net, ("", ""))[0]
        if netlist.kind(driver) not in ("LUT4", "TRELLIS_FF"):
            continue
        if sum(port in _CONTROLS for _, port in netlist.readers[net]) <= many:
            continue
        groups = list(_groups([load for load in netlist.readers[net] if load[0]], most))
        for number, group in enumerate(groups[1:], 1):
            copied = _copy(netlist, net, f"$share_out${number}")
            for name, port in group:
                netlist.connect(name, port, copied)
