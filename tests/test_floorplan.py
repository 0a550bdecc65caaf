"""Block RAMs get sites of their own, near what they are connected with."""

from itertools import combinations
from statistics import mean
from typing import Any

import pytest

from uwarp_boards.floorplan import SITES, fix_block_rams
from uwarp_boards.netlist import Netlist

GROUPS, RAMS, FLIP_FLOPS = 6, 6, 500


def cell(kind: str, inputs: dict[str, int], outputs: dict[str, int]) -> dict[str, Any]:
    directions = {**dict.fromkeys(inputs, "input"), **dict.fromkeys(outputs, "output")}
    nets = {port: [net] for port, net in (inputs | outputs).items()}
    return {
        "type": kind,
        "parameters": {},
        "attributes": {},
        "port_directions": directions,
        "connections": nets,
    }


def rings(groups: int, rams: int, flip_flops: int) -> dict[str, Any]:
    """Rings of flip-flops, one for each group, with block RAMs evenly in between."""
    cells: dict[str, Any] = {}
    for group in range(groups):
        first, size = 2 + group * (rams + flip_flops), rams + flip_flops
        every = size // rams
        for place in range(size):
            net, after = first + place, first + (place + 1) % size
            if place % every == 0 and place // every < rams:
                name = f"ram{group}.{place // every}"
                cells[name] = cell("DP16KD", {"CLKA": 1, "DIA0": net}, {"DOA0": after})
            else:
                cells[f"ff{group}.{place}"] = cell(
                    "TRELLIS_FF", {"CLK": 1, "DI": net}, {"Q": after}
                )
    return {"cells": cells, "ports": {"clk": {"bits": [1]}}, "netnames": {}}


def places(module: dict[str, Any]) -> dict[str, tuple[int, int]]:
    tiles = {site: (x, y) for x, y, site in SITES}
    rams = {name: c for name, c in module["cells"].items() if c["type"] == "DP16KD"}
    sites = {name: ram["attributes"]["BEL"] for name, ram in rams.items()}
    assert len(set(sites.values())) == len(rams), "two block RAMs on one site"
    return {name: tiles[site] for name, site in sites.items()}


def test_sites_are_those_of_the_device() -> None:
    assert len(SITES) == len({site for _, _, site in SITES}) == 208


def test_each_block_ram_is_near_its_own() -> None:
    module = rings(GROUPS, RAMS, FLIP_FLOPS)
    fix_block_rams(Netlist(module))
    at = places(module)
    near: list[int] = []
    far: list[int] = []
    for one, other in combinations(at, 2):
        distance = sum(abs(a - b) for a, b in zip(at[one], at[other], strict=True))
        (near if one.split(".")[0] == other.split(".")[0] else far).append(distance)
    assert mean(near) < mean(far) / 2


def test_the_same_netlist_gets_the_same_places() -> None:
    first, second = rings(2, 5, 400), rings(2, 5, 400)
    for module in (first, second):
        fix_block_rams(Netlist(module))
    assert first == second


def test_a_full_device() -> None:
    module = rings(1, len(SITES), 208)
    fix_block_rams(Netlist(module))
    assert len(places(module)) == len(SITES)


def test_too_many_block_rams() -> None:
    with pytest.raises(ValueError, match="209 block RAMs; the device has 208"):
        fix_block_rams(Netlist(rings(1, 209, 300)))


def test_nothing_to_place() -> None:
    module = rings(1, 1, 400)
    del module["cells"]["ram0.0"]
    fix_block_rams(Netlist(module))
    assert all("BEL" not in c["attributes"] for c in module["cells"].values())
