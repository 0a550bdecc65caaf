"""A flat netlist of Yosys with who drives and who reads each net, for passes that change cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

__all__ = [
    "PINS",
    "Assignment",
    "Function",
    "Net",
    "Netlist",
    "distinct",
    "place",
    "points",
    "table_text",
]

#: The inputs of a LUT4; the first is the lowest bit of the number of a place in its table.
PINS = "ABCD"

#: A net's number in the netlist, or the constant "0" or "1".
Net = int | str
Assignment = dict[Net, int]
Function = Callable[[Assignment], int]


def place(pins: Sequence[Net], point: Assignment) -> int:
    """The place of a LUT's table that ``pins`` tell, the first being the lowest bit."""
    values = (int(pin) if isinstance(pin, str) else point[pin] for pin in pins)
    return sum(value << number for number, value in enumerate(values))


def distinct(nets: Iterable[Net]) -> tuple[Net, ...]:
    """``nets`` once each, without the constants."""
    return tuple(dict.fromkeys(net for net in nets if not isinstance(net, str)))


def points(nets: Sequence[Net]) -> Iterator[Assignment]:
    """Every assignment of values to ``nets``."""
    for values in product((0, 1), repeat=len(nets)):
        yield dict(zip(nets, values, strict=True))


def table_text(table: dict[int, int]) -> str:
    """The parameter of a LUT4 by the places of its table; 0 where none is told."""
    return "".join(str(int(table.get(number, 0))) for number in reversed(range(1 << len(PINS))))


class Netlist:
    """``module`` of Yosys's JSON, which is changed in place.

    Attributes
    ----------
    cells : dict
        By name, as in the JSON.
    readers : dict of Net to set of (cell, port)
        Of a port of the module the cell is "".
    driver : dict of Net to (cell, port)
    """

    def __init__(self, module: dict[str, Any]) -> None:
        self.cells: dict[str, dict[str, Any]] = module["cells"]
        self._names = module["netnames"]
        self.readers: dict[Net, set[tuple[str, str]]] = defaultdict(set)
        self.driver: dict[Net, tuple[str, str]] = {}
        for name in self.cells:
            self._note(name)
        for name, port in module["ports"].items():
            for net in port["bits"]:
                self.readers[net].add(("", name))
        self._driven = set(self.driver)
        nets = (net for net in (*self.readers, *self.driver) if isinstance(net, int))
        self._next = max(nets, default=1) + 1

    def _note(self, name: str) -> None:
        cell = self.cells[name]
        for port, nets in cell["connections"].items():
            for net in nets:
                if cell["port_directions"][port] == "output":
                    self.driver[net] = (name, port)
                else:
                    self.readers[net].add((name, port))

    def kind(self, name: str) -> str:
        """The type of a cell, "" of a port of the module."""
        return self.cells[name]["type"] if name else ""

    def pin(self, name: str, port: str) -> Net:
        """The net at a port of one bit; "0" if there is none."""
        net: Net = (self.cells[name]["connections"].get(port) or ["x"])[0]
        return "0" if net in ("x", "z") else net

    def read_from(self, name: str, port: str) -> set[tuple[str, str]]:
        """Who reads an output of one bit."""
        net = self.pin(name, port)
        return set() if isinstance(net, str) else self.readers[net]

    def enable(self, name: str) -> tuple[Net, int] | None:
        """The enable of a flip-flop, and at which value it enables; None if it never does."""
        told = self.cells[name]["parameters"]["CEMUX"].strip()
        values = {"CE": (self.pin(name, "CE"), 1), "INV": (self.pin(name, "CE"), 0), "1": ("1", 1)}
        return values.get(told)

    def lut(self, name: str) -> tuple[tuple[Net, ...], Function]:
        """The nets that a LUT4 reads, and its function."""
        pins = tuple(self.pin(name, pin) for pin in PINS)
        table = int(self.cells[name]["parameters"]["INIT"], 2)
        return distinct(pins), lambda point: table >> place(pins, point) & 1

    def connect(self, name: str, port: str, net: Net) -> None:
        """Let an input read ``net``."""
        self.readers[self.pin(name, port)].discard((name, port))
        self.cells[name]["connections"][port] = [net]
        self.readers[net].add((name, port))

    def drive(self, name: str, port: str, net: Net) -> None:
        """Let an output drive ``net``, which nothing drives, instead of what it drove."""
        self.driver.pop(self.pin(name, port), None)
        self.cells[name]["connections"][port] = [net]
        self.driver[net] = (name, port)

    def _add(
        self, name: str, kind: str, inputs: dict[str, Net], output: str, **parameters: str
    ) -> Net:
        result = self._next
        self._next += 1
        self.cells[name] = {
            "hide_name": 1,
            "type": kind,
            "parameters": parameters,
            "attributes": {},
            "port_directions": {**dict.fromkeys(inputs, "input"), output: "output"},
            "connections": {**{pin: [net] for pin, net in inputs.items()}, output: [result]},
        }
        self._note(name)
        return result

    def add_lut(self, name: str, pins: Sequence[Net], table: str) -> Net:
        """Add a LUT4 of up to four ``pins``; the new net that it drives."""
        inputs = dict(zip(PINS, (*pins, *"0000"), strict=False))
        return self._add(name, "LUT4", inputs, "Z", INIT=table)

    def add_global_buffer(self, name: str, net: Net) -> Net:
        """Add a buffer of ``net`` on the global network; the new net that it drives."""
        return self._add(name, "DCCA", {"CLKI": net, "CE": "1"}, "CLKO")

    def feeds_mux(self, lut: str) -> bool:
        """Whether a PFUMX reads a LUT4, which then must stay one."""
        return any(self.kind(reader) == "PFUMX" for reader, _ in self.read_from(lut, "Z"))

    def take_place(self, name: str, port: str, lut: str) -> None:
        """Let an output drive what a LUT4 does, and remove that."""
        result = self.pin(lut, "Z")
        self.remove(lut)
        self.drive(name, port, result)

    def remove(self, name: str) -> None:
        cell = self.cells.pop(name)
        for port, nets in cell["connections"].items():
            for net in nets:
                self.readers[net].discard((name, port))
                if self.driver.get(net) == (name, port):
                    del self.driver[net]

    def forget_undriven(self) -> None:
        """Take the nets whose driver is gone out of the names; the last thing to do."""
        gone = self._driven - set(self.driver)
        for net in self._names.values():
            net["bits"] = ["x" if bit in gone else bit for bit in net["bits"]]
