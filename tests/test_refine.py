"""Placements are read, timed and moved as nextpnr would have it."""

import copy
import json
import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amaranth.back import verilog
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp_boards import synth
from uwarp_boards.harness import RegisteredPins
from uwarp_boards.refine import ask_for_places, refine
from uwarp_boards.slices import LUTS, Tiles
from uwarp_boards.timing import Cells, Timing

Json = dict[str, Any]


class OneOfEach(wiring.Component):
    """A long carry chain, a LUT RAM, a block RAM, multiplexers, enables and resets."""

    data: In(32)
    choice: In(8)
    enable: In(2)
    clear: In(2)
    sums: Out(32)
    chosen: Out(8)
    read: Out(8)
    kept: Out(16)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        words = []
        for style, depth, domain in (("distributed", 16, "comb"), ("block", 2048, "sync")):
            attributes = {"ram_style": style}
            memory = Memory(shape=8, depth=depth, init=[], attrs=attributes)
            m.submodules[style] = memory
            read, write = memory.read_port(domain=domain), memory.write_port()
            address = self.data[: len(read.addr)]
            m.d.comb += [read.addr.eq(address), write.addr.eq(self.sums), write.data.eq(self.data)]
            m.d.comb += write.en.eq(self.enable[0])
            word = Signal(8, name=style)
            m.d.sync += word.eq(read.data)
            words.append(word)
        m.d.sync += self.read.eq(words[0] ^ words[1])
        m.d.sync += self.sums.eq(self.sums + self.data)
        wide = Signal(8)
        for bit in range(8):
            m.d.comb += wide[bit].eq(self.data.bit_select(self.choice[:5] + bit, 1))
        m.d.sync += self.chosen.eq(wide)
        for half in range(2):
            part = self.kept.word_select(half, 8)
            with m.If(self.enable[half]):
                m.d.sync += part.eq(self.data.word_select(half, 8) ^ self.choice)
            with m.If(self.clear[half]):
                m.d.sync += part.eq(0)
        return m


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``OneOfEach`` placed, and placed and routed, by nextpnr."""
    directory = tmp_path_factory.mktemp("placed")
    pinned = RegisteredPins(OneOfEach())
    ports = [pinned.clk, pinned.scan_in, pinned.scan_out]
    text = verilog.convert(pinned, name="pinned", ports=ports, emit_src=False)
    (directory / "pinned.v").write_text(text)
    netlist = synth._yosys("pinned", "pinned.v", "pinned.json", directory)
    (directory / "pinned.json").write_text(json.dumps(netlist))
    for name, routing in (("placed", ["--no-route"]), ("routed", ["--report=routed.report"])):
        outputs = (f"--write={name}.json", f"--sdf={name}.sdf", *routing)
        synth._nextpnr(1, 8, "--json=pinned.json", *outputs, directory=directory)
    return directory


def module_of(directory: Path, name: str) -> Json:
    module: Json = json.loads((directory / f"{name}.json").read_text())["modules"]["top"]
    return module


def route(module: Json, directory: Path, name: str) -> Timing:
    """Let nextpnr route ``module`` with its cells where they are."""
    places = {name: cell["attributes"]["NEXTPNR_BEL"] for name, cell in module["cells"].items()}
    module = copy.deepcopy(module)
    ask_for_places(module)
    whole = json.loads((directory / "placed.json").read_text())
    whole["modules"]["top"] = module
    (directory / f"{name}.in.json").write_text(json.dumps(whole))
    outputs = (f"--write={name}.json", f"--sdf={name}.sdf")
    reading = ("--no-pack", f"--json={name}.in.json")
    synth._nextpnr(1, 8, *reading, *outputs, directory=directory)
    routed = module_of(directory, name)
    for cell, place in places.items():
        assert routed["cells"][cell]["attributes"]["NEXTPNR_BEL"] == place, cell
    assert_inputs_are_right(routed)
    return Timing(Cells.of(routed), directory / f"{name}.sdf")


def assert_inputs_are_right(module: Json) -> None:
    """The router exchanged no inputs but those that a cell can do without telling them apart."""
    kinds = {}
    for cell in module["cells"].values():
        if cell["type"] == "TRELLIS_COMB":
            tile, part = cell["attributes"]["NEXTPNR_BEL"].split("/SLICE")
            kinds[tile, 2 * "ABCD".index(part[0]) + int(part[-1])] = cell["parameters"].get(
                "MODE", "LOGIC"
            )
    classes = {"DPRAM": "ABCD", "RAMW_BLOCK": "ABCD", "CCU2": "AACC", "LOGIC": "AAAA"}
    seen: Counter[str] = Counter()
    for net in module["netnames"].values():
        pips = net["attributes"].get("ROUTING", "").split(";")[1::3]
        for pip in pips:
            entry = re.fullmatch(r"(X\d+/Y\d+)/0_0_([ABCD])\d->0_0_([ABCD])(\d)_SLICE", pip)
            kind = kinds.get((entry[1], int(entry[4])), "LOGIC").strip() if entry else ""
            if entry and kind:
                wire, pin = (classes[kind]["ABCD".index(entry[n])] for n in (2, 3))
                assert wire == pin, (kind, pip)
                seen[kind] += 1
    assert all(seen[kind] > 10 for kind in classes), seen


def assert_sound(before: Json, after: Json) -> None:
    """The same netlist, each cell in a slot of its own, and all tiles legal."""
    same = ("type", "connections", "parameters")
    for name, cell in before["cells"].items():
        assert all(cell[key] == after["cells"][name][key] for key in same), name
    places = Counter(cell["attributes"]["NEXTPNR_BEL"] for cell in after["cells"].values())
    assert max(places.values()) == 1
    tiles = Tiles(Cells.of(after))
    assert all(tiles.is_legal(x, y) for x, y in {slot[:2] for slot in tiles.at})
    assert all(
        tiles.slots[ff][2] == tiles.slots[lut][2] + LUTS for ff, lut in tiles.takes_lut.items()
    )


def test_the_longest_path_is_the_one_of_nextpnr(placed: Path) -> None:
    """Of what it placed and routed at once; and as long when it has read that back."""
    report = json.loads((placed / "routed.report").read_text())
    (clock,) = report["fmax"].values()
    timing = Timing(Cells.of(module_of(placed, "routed")), placed / "routed.sdf")
    longest = timing.update(timing.told)
    assert 1e6 / longest == pytest.approx(clock["achieved"], rel=1e-4)
    synth._nextpnr(
        1, 8, "--no-pack", "--no-place", "--json=routed.json", "--sdf=again.sdf", directory=placed
    )
    again = Timing(Cells.of(module_of(placed, "routed")), placed / "again.sdf")
    assert again.update(again.told) == longest


def test_a_path_ends_when_it_is_through(placed: Path) -> None:
    timing = Timing(Cells.of(module_of(placed, "routed")), placed / "routed.sdf")
    longest = timing.update(timing.told)
    steps = timing.longest_path()
    times = [through for _, through in steps]
    assert times == sorted(times) and times[0] > 0 and times[-1] == longest
    cells = module_of(placed, "routed")["cells"]
    assert {cells[steps[end][0]]["type"] for end in (0, -1)} <= {"TRELLIS_FF", "DP16KD"}


def test_estimated_wires_are_about_as_long_as_routed_ones(placed: Path) -> None:
    timing = Timing(Cells.of(module_of(placed, "routed")), placed / "routed.sdf")
    error = (timing.delays() - timing.told)[~timing.fixed]
    assert abs(error.mean()) < 100 and error.std() < 300, (error.mean(), error.std())


def shuffled(directory: Path, reach: int) -> tuple[Json, Counter[str]]:
    """The placement with cells, pairs and tiles moved up to ``reach`` tiles each time, at random;
    and how many of each."""
    module = module_of(directory, "placed")
    cells = Cells.of(module)
    tiles = Tiles(cells)
    rng = random.Random(5)
    columns, rows = sorted(tiles.columns), sorted(tiles.rows)
    moved: Counter[str] = Counter()
    for _ in range(4000):
        cell = rng.choice(list(tiles.slots))
        x, y, _ = tiles.slots[cell]
        to = (
            rng.choice([column for column in columns if abs(column - x) <= reach]),
            rng.choice([row for row in rows if abs(row - y) <= reach]),
        )
        if cell in tiles.free:
            base = LUTS if cells.kinds[cell] == "TRELLIS_FF" else 0
            kind, moves = "cell", tiles.exchange(cell, (*to, base + rng.randrange(LUTS)))
        elif cell in tiles.pairs:
            kind, moves = "pair", tiles.exchange_pair(cell, (*to, rng.randrange(0, LUTS, 2)))
        else:
            kind, moves = "tile", tiles.exchange_tiles(cell, to)
        if moves and tiles.try_moves(moves):
            moved[kind] += 1
    tiles.tell()
    return module, moved


def test_whatever_is_moved_can_be_routed(placed: Path) -> None:
    module, moved = shuffled(placed, 100)
    assert all(moved[kind] > 20 for kind in ("cell", "pair", "tile")), moved
    assert_sound(module_of(placed, "placed"), module)
    route(module, placed, "shuffled")


def test_refined_paths_are_shorter_and_can_be_routed(placed: Path) -> None:
    """Of a bad placement about what nextpnr made of it; of a good one nothing worse."""
    before = module_of(placed, "placed")
    good = Timing(Cells.of(before), placed / "placed.sdf").update()
    bad, _ = shuffled(placed, 4)
    first, then = refine(bad, placed / "placed.sdf")
    assert then < 1.05 * good < 0.9 * first, (first, then, good)
    assert_sound(before, bad)
    timing = route(bad, placed, "refined")
    assert timing.update() == then and timing.update(timing.told) < 1.2 * then
    first, then = refine(before, placed / "placed.sdf")
    assert then <= first == good


def half_perimeters(module: Json, directory: Path) -> int:
    """How far the ends of each net are apart, in tiles, of all nets together."""
    cells = Cells.of(module)
    timing = Timing(cells, directory / "placed.sdf")
    ends: dict[int, list[int]] = defaultdict(list)
    for wire in np.flatnonzero(~timing.fixed):
        ends[timing.source[wire]] += [timing.source[wire], timing.sink[wire]]
    return sum(int(np.ptp(cells.x[net]) + np.ptp(cells.y[net])) for net in ends.values())


def test_wires_are_shortened_also_off_the_longest_paths(placed: Path) -> None:
    """Else they are in the way of those on them. Of a bad placement to not much more than of what
    nextpnr made."""
    good = module_of(placed, "placed")
    bad, _ = shuffled(placed, 4)
    refined = copy.deepcopy(bad)
    refine(refined, placed / "placed.sdf")
    before, after, least = (half_perimeters(module, placed) for module in (bad, refined, good))
    assert after < 1.5 * least < 0.5 * before, (before, after, least)


def test_the_same_placement_is_refined_alike(placed: Path) -> None:
    first, second = (shuffled(placed, 4)[0] for _ in range(2))
    for module in (first, second):
        refine(module, placed / "placed.sdf", seed=3)
    assert first == second
