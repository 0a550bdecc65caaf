"""What is folded into carry cells and resets or copied does what it did: netlists before and after
are simulated cell by cell, by the rules of the cells and not by the passes' own reading of them."""

import json
import random
import subprocess
import sys
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from amaranth.back import verilog
from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp_boards.block_ram import fold_output_registers
from uwarp_boards.global_resets import use_global_network
from uwarp_boards.netlist import Netlist
from uwarp_boards.synth import fold

PATTERNS = 1 << 14
ONES = (1 << PATTERNS) - 1
STATES = ("TRELLIS_FF", "TRELLIS_DPR16X4", "DP16KD")


class Cells(wiring.Component):
    """A counter that loads, one that counts down, conditional operands, bits cleared together."""

    def __init__(self) -> None:
        super().__init__(
            {
                "load": In(1),
                "keep": In(1),
                "enable": In(1),
                "a": In(12),
                "b": In(12),
                "up": Out(12),
                "down": Out(13),
                "total": Out(12),
                "kept": Out(12),
                "less": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        operand = Signal(12)
        m.d.comb += operand.eq(Mux(self.enable, self.b, self.a ^ 0x5A5))
        m.d.sync += [
            self.up.eq(Mux(self.load, self.a, self.up + 1)),
            self.down.eq(Mux(self.load, self.b, self.down - 1)),
            self.total.eq(self.total + operand),
            self.less.eq(self.a < ~operand),
        ]
        with m.If(self.enable):
            m.d.sync += self.kept.eq(self.b & self.keep.replicate(12))
        return m


class Cleared(wiring.Component):
    """Two registers of two units, cleared by one flip-flop or the reset of the clock domain."""

    def __init__(self) -> None:
        super().__init__({"clear": In(1), "i": In(12), "first": Out(12), "second": Out(12)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        clears = Signal()
        m.d.sync += clears.eq(self.clear)
        for name, o in (("left", self.first), ("right", self.second)):
            unit = Module()
            kept = Signal(12, name="kept")
            unit.d.sync += kept.eq(self.i ^ Mux(kept[0], 0x5A5, kept))
            m.d.comb += o.eq(~kept)
            m.submodules[name] = ResetInserter(clears)(unit)
        return m


class Stored(wiring.Component):
    """Memories with a register behind each read port: one wide and one of two ports with enables,
    one whose register is reset, one whose output is read beside its register."""

    def __init__(self) -> None:
        super().__init__(
            {
                "write": In(1),
                "address": In(10),
                "data": In(36),
                "hold": In(1),
                "take": In(1),
                "wide": Out(36),
                "reset": Out(9),
                "first": Out(9),
                "second": Out(9),
                "read": Out(9),
                "parity": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        held = {name: Signal(9, reset_less=True, name=name) for name in ("first", "second", "read")}
        held["wide"] = Signal(36, reset_less=True, name="wide")
        held["reset"] = Signal(9, name="reset")
        ports = {}
        for name in ("wide", "reset", "two", "read"):
            width = len(held[name]) if name in held else 9
            m.submodules[name] = memory = Memory(
                shape=width, depth=512, init=[], attrs={"no_rw_check": 1}
            )
            write = memory.write_port()
            m.d.comb += [write.en.eq(self.write), write.addr.eq(self.address)]
            m.d.comb += write.data.eq(self.data)
            ports[name] = memory.read_port()
            if name == "two":
                ports["first"], ports["second"] = ports.pop("two"), memory.read_port()
        for number, (name, port) in enumerate(ports.items()):
            m.d.comb += [port.addr.eq(self.address ^ number), port.en.eq(1)]
            m.d.comb += getattr(self, name).eq(held[name])
        with m.If(~self.hold):
            m.d.sync += held["wide"].eq(ports["wide"].data)
        with m.If(self.take):
            m.d.sync += held["first"].eq(ports["first"].data)
        for name in ("second", "reset", "read"):
            m.d.sync += held[name].eq(ports[name].data)
        m.d.comb += self.parity.eq(ports["read"].data.xor())
        return m


def synthesised(unit: wiring.Component, directory: Path) -> dict[str, Any]:
    (directory / "unit.v").write_text(verilog.convert(unit, name="unit", emit_src=False))
    script = (
        "from pyosys import libyosys as y; d = y.Design();"
        "y.run_pass('read_verilog unit.v', d);"
        "y.run_pass('synth_ecp5 -top unit -json unit.json', d)"
    )
    subprocess.run(
        [sys.executable, "-c", script], cwd=directory, check=True, stdout=subprocess.DEVNULL
    )
    module: dict[str, Any] = json.loads((directory / "unit.json").read_text())["modules"]["unit"]
    return module


class Evaluation:
    """Values of the nets of a netlist, :data:`PATTERNS` bits each: inputs and what is stored are
    random, but the same by ``seed`` for cells of one name."""

    def __init__(self, module: dict[str, Any], seed: int) -> None:
        self.cells = module["cells"]
        self.seed = seed
        self.values: dict[Any, int] = {"0": 0, "1": ONES, "x": 0}
        self.driver = {
            net: (name, port, number)
            for name, cell in self.cells.items()
            for port, nets in cell["connections"].items()
            if cell["port_directions"][port] == "output"
            for number, net in enumerate(nets)
        }
        self.read = Counter(
            net
            for cell in self.cells.values()
            for port, nets in cell["connections"].items()
            if cell["port_directions"][port] == "input"
            for net in nets
        )
        for port in module["ports"].values():
            self.read.update(port["bits"] if port["direction"] == "output" else ())
        for name, port in module["ports"].items():
            if port["direction"] == "input":
                for number, net in enumerate(port["bits"]):
                    self.values[net] = self.random("port", name, number)

    def random(self, kind: str, name: str, *key: object) -> int:
        return random.Random(repr((self.seed, kind, name, *key))).getrandbits(PATTERNS)

    def register(self, name: str) -> tuple[str, ...]:
        """What tells a register, be it a flip-flop behind a block RAM or that's own."""
        net = self.cells[name]["connections"]["DI"][0]
        driver, port, _ = self.driver.get(net, ("", "", 0))
        behind = driver and self.cells[driver]["type"] == "DP16KD" and self.read[net] == 1
        return (driver, port, "register") if behind else (name,)

    def pin(self, name: str, port: str) -> int:
        return self.net((self.cells[name]["connections"].get(port) or ["0"])[0])

    def net(self, net: Any) -> int:
        if net not in self.values:
            self.values[net] = self.driven(*self.driver[net])
        return self.values[net]

    def table(self, bits: str, inputs: list[int]) -> int:
        value = 0
        for place, bit in enumerate(reversed(bits)):
            if bit == "1":
                term = ONES
                for number, given in enumerate(inputs):
                    term &= given if place >> number & 1 else ~given
                value |= term
        return value & ONES

    def driven(self, name: str, port: str, number: int) -> int:
        kind, parameters = self.cells[name]["type"], self.cells[name]["parameters"]
        if kind == "TRELLIS_FF":
            return self.random("state", *self.register(name))
        if kind == "DP16KD" and parameters[f"REGMODE_{port[2]}"] == "OUTREG":
            return self.random("state", name, port, "register")
        if kind in STATES:
            return self.random("state", name, port, number)
        if kind == "LUT4":
            return self.table(parameters["INIT"], [self.pin(name, pin) for pin in "ABCD"])
        if kind == "DCCA":
            return self.pin(name, "CLKI") & self.pin(name, "CE")
        if kind in ("PFUMX", "L6MUX21"):
            high, low, select = ("ALUT", "BLUT", "C0") if kind == "PFUMX" else ("D1", "D0", "SD")
            chosen = self.pin(name, select)
            return self.pin(name, high) & chosen | self.pin(name, low) & ~chosen
        assert kind == "CCU2C", kind
        carry, gives = self.pin(name, "CIN"), {}
        for half in "01":
            inputs = [self.pin(name, pin + half) for pin in "ABCD"]
            propagate = self.table(parameters[f"INIT{half}"], inputs)
            generate = self.table(parameters[f"INIT{half}"][-4:], inputs[:2])
            gives[f"S{half}"] = propagate ^ carry
            carry = propagate & carry | generate & ~propagate & ONES
        return {**gives, "COUT": carry}[port]

    def next_state(self, name: str) -> int:
        parameters = self.cells[name]["parameters"]
        given = self.pin(name, "CE")
        enable = {"CE": given, "INV": ~given & ONES, "1": ONES}[parameters["CEMUX"].strip()]
        state = self.pin(name, "DI") & enable | self.pin(name, "Q") & ~enable
        reset = self.pin(name, "LSR") if self.cells[name]["connections"].get("LSR") else 0
        return state & ~reset | (reset if parameters["REGSET"] == "SET" else 0)

    def output_register(self, name: str, port: str) -> int:
        """The next state of the output register of a block RAM; of one with a port of 36 bits the
        clock and the enable are those of B."""
        parameters = self.cells[name]["parameters"]
        whole = all(int(parameters[f"DATA_WIDTH_{side}"], 2) == 36 for side in "AB")
        side = "B" if whole else port[2]
        enable = self.pin(name, f"OCE{side}")
        if parameters[f"OCE{side}MUX"] == "INV":
            enable = ~enable & ONES
        word = self.random("state", name, port, 0)
        return word & enable | self.random("state", name, port, "register") & ~enable

    def outcome(self) -> dict[tuple[str, ...], int]:
        """All that the netlist tells: the next state of each flip-flop, what memories are given,
        and the outputs."""
        told = {}
        for name, cell in self.cells.items():
            if cell["type"] == "TRELLIS_FF":
                told[self.register(name)] = self.next_state(name)
            elif cell["type"] in STATES:
                for port, nets in cell["connections"].items():
                    if cell["port_directions"][port] == "output":
                        registered = cell["parameters"].get(f"REGMODE_{port[2]}") == "OUTREG"
                        if registered and self.read[nets[0]]:
                            told[name, port, "register"] = self.output_register(name, port)
                    elif not port.startswith("OCE"):
                        told |= {(name, port, str(k)): self.net(n) for k, n in enumerate(nets)}
        return told


def kinds(module: dict[str, Any], kind: str) -> int:
    return sum(cell["type"] == kind for cell in module["cells"].values())


@pytest.fixture(scope="module")
def netlist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return synthesised(Cells(), tmp_path_factory.mktemp("fold"))


def test_folded_netlist_does_the_same(netlist: dict[str, Any]) -> None:
    folded = deepcopy(netlist)
    fold(folded)
    for seed in range(4):
        before, after = Evaluation(netlist, seed).outcome(), Evaluation(folded, seed).outcome()
        assert before == after, f"seed {seed}"
    # The loads of two counters, the operands that are not inverted, all bits cleared but one LUT.
    assert kinds(netlist, "LUT4") - kinds(folded, "LUT4") >= 12 + 12 + 5 + 11
    assert kinds(netlist, "CCU2C") == kinds(folded, "CCU2C")
    assert kinds(netlist, "TRELLIS_FF") == kinds(folded, "TRELLIS_FF")


def test_each_carry_cell_counts(netlist: dict[str, Any]) -> None:
    """The comparison above sees a wrong place in the table of any half of a carry cell that has
    both its operands."""
    folded = deepcopy(netlist)
    fold(folded)
    right = Evaluation(folded, 0).outcome()
    for name, cell in folded["cells"].items():
        operands = [cell["connections"].get(pin) for pin in ("A1", "B1")]
        if cell["type"] == "CCU2C" and all(isinstance(net[0], int) for net in operands if net):
            wrong = deepcopy(folded)
            parameters = wrong["cells"][name]["parameters"]
            parameters["INIT1"] = "".join("10"[int(bit)] for bit in parameters["INIT1"])
            assert Evaluation(wrong, 0).outcome() != right, name


def test_nothing_reads_what_is_gone(netlist: dict[str, Any]) -> None:
    folded = deepcopy(netlist)
    fold(folded)
    driven = set(Evaluation(folded, 0).driver)
    driven |= {net for port in folded["ports"].values() for net in port["bits"]} | {"0", "1", "x"}
    for name, cell in folded["cells"].items():
        assert all(net in driven for nets in cell["connections"].values() for net in nets), name
    for name, net in folded["netnames"].items():
        assert all(bit in driven for bit in net["bits"]), name


def test_resets_of_many_go_over_the_global_network(tmp_path: Path) -> None:
    netlist = synthesised(Cleared(), tmp_path)
    buffered = deepcopy(netlist)
    use_global_network(Netlist(buffered), many=20)
    ((name, buffer),) = [cell for cell in buffered["cells"].items() if cell[1]["type"] == "DCCA"]
    driven = buffer["connections"]["CLKO"]
    resets = [c["connections"].get("LSR") for c in buffered["cells"].values()]
    assert resets.count(driven) == 24, name
    for seed in range(4):
        assert Evaluation(netlist, seed).outcome() == Evaluation(buffered, seed).outcome(), seed


def test_output_registers_take_the_place_of_flip_flops(tmp_path: Path) -> None:
    netlist = synthesised(Stored(), tmp_path)
    folded = deepcopy(netlist)
    fold_output_registers(Netlist(folded))
    # Those of the wide port and of two ports; not the one with a reset nor that beside which the
    # word is read.
    assert kinds(netlist, "TRELLIS_FF") - kinds(folded, "TRELLIS_FF") == 36 + 9 + 9
    for seed in range(4):
        before, after = Evaluation(netlist, seed).outcome(), Evaluation(folded, seed).outcome()
        assert before == after, f"seed {seed}"
    driven = Evaluation(folded, 0).driver
    for port in folded["ports"].values():
        assert port["direction"] == "input" or all(net in driven for net in port["bits"])


def test_few_loads_are_left_alone(netlist: dict[str, Any]) -> None:
    alone = deepcopy(netlist)
    use_global_network(Netlist(alone))
    assert alone == netlist
