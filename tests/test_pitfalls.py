"""Each numbered pitfall that there can be a test of yet has one that names it.

A test names it in the name of a function, as in ``test_p3_...``, or in a function's docstring, as
in ``P3``. Scenarios of the benches count: each runs in one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SELF = Path(__file__)
NOT_YET = {10, 40}  # what the MAC's gaps, lanes and error characters do; what UDP sockets do
WANTED = set(range(1, 44)) - NOT_YET


def named(source: str) -> set[int]:
    """Numbers that the functions of a module name."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, functions):
            found |= {int(number) for number in re.findall(r"_p(\d+)(?=_|$)", node.name)}
            text = ast.get_docstring(node) or ""
            found |= {int(number) for number in re.findall(r"\bP(\d+)\b", text)}
    return found


def modules() -> Iterator[Path]:
    yield from (path for path in (ROOT / "tests").rglob("test_*.py") if path != SELF)
    yield from (ROOT / "sim_tb").glob("*.py")


def test_each_pitfall_has_a_test() -> None:
    found = set().union(*(named(path.read_text()) for path in modules()))
    assert not WANTED - found, f"no test names {sorted(WANTED - found)}"
    assert not NOT_YET & found, f"{sorted(NOT_YET & found)} has a test: it is not to be left out"


def test_what_counts_as_named() -> None:
    source = '''"""P1."""
def test_p2_p33_x(): "P4 to P6, P40."
async def p7(): "xP8"
def a_p9(): ...
'''
    assert named(source) == {2, 33, 4, 6, 40, 9}
