"""Placements are read, timed and moved as nextpnr would have it."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from amaranth.back import verilog
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp_boards import synth
from uwarp_boards.harness import RegisteredPins
from uwarp_boards.refine import refine
from uwarp_boards.slices import LUTS, Tiles, bel
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
        for name, depth in (("small", 16), ("large", 2048)):
            m.submodules[name] = memory = Memory(shape=8, depth=depth, init=[])
            read, write = memory.read_port(), memory.write_port()
            address = self.data[: len(read.addr)]
            m.d.comb += [read.addr.eq(address), write.addr.eq(self.sums), write.data.eq(self.data)]
            m.d.comb += write.en.eq(self.enable[0])
            m.d.sync += self.read.eq(self.read ^ read.data)
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
    """Let nextpnr route ``module``, of whose routing it is told nothing."""
    for net in module["netnames"].values():
        net["attributes"].pop("ROUTING", None)
    whole = json.loads((directory / "placed.json").read_text())
    whole["modules"]["top"] = module
    (directory / f"{name}.in.json").write_text(json.dumps(whole))
    outputs = (f"--write={name}.json", f"--sdf={name}.sdf")
    reading = ("--no-pack", "--no-place", f"--json={name}.in.json")
    synth._nextpnr(1, 8, *reading, *outputs, directory=directory)
    return Timing(Cells.of(module_of(directory, name)), directory / f"{name}.sdf")


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
        if not moves:
            continue
        here = {member: tiles.slots[member] for member in moves}
        tiles.move(moves)
        touched = {slot[:2] for slot in (*here.values(), *moves.values())}
        if all(tiles.is_legal(*tile) for tile in touched):
            moved[kind] += 1
        else:
            tiles.move(here)
    for cell, slot in tiles.slots.items():
        cells.content[cell]["attributes"]["NEXTPNR_BEL"] = bel(slot)
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


def test_the_same_placement_is_refined_alike(placed: Path) -> None:
    first, second = (shuffled(placed, 4)[0] for _ in range(2))
    for module in (first, second):
        refine(module, placed / "placed.sdf", seed=3)
    assert first == second
