"""Compile the NIC for cocotb with Verilator, once for each Verilog, and run a bench on it.

The compiled simulation is kept under a digest of all that goes into it, in ``UWARP_CACHE`` or
``~/.cache/uwarp``. Processes that want the same one wait for the first to make it; ``python -m
sim_tb.build`` makes all that the tests want before any of them waits.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from cocotb_tools.check_results import get_results
from cocotb_tools.runner import Verilator

from uwarp.contract import Parameters
from uwarp.device import build

__all__ = ["TOP", "compile_verilog", "compiled", "run_bench"]

TOP = "uwarp_nic"
_TIMESCALE = ("1ns", "1ps")
_BUILD_ARGS = ["-Wno-fatal", "-Wno-WIDTH", "-O3", "--noassert"]
_MAKE_ARGS = "OPT_FAST=-O1 OPT_SLOW=-O0"  # drivers in Python take most of the time
_PORTS = ("clk", "rst", "irq", "rx__*", "tx__*", "bus__*", "dma__*")


class _PortsOnly(Verilator):
    """cocotb's runner, but with the ports alone made public: a third of the code to compile."""

    def _build_command(self) -> list[list[str]]:
        commands = super()._build_command()
        commands[0].remove("--public-flat-rw")
        return commands


@contextmanager
def _exclusive(path: Path):
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _verilator_environment():
    """Verilator as its Python package has it: its ``bin`` on PATH, VERILATOR_ROOT set."""
    import verilator

    root = Path(verilator.__file__).parent
    kept = {name: os.environ.get(name) for name in ("PATH", "VERILATOR_ROOT", "MAKEFLAGS")}
    os.environ["PATH"] = f"{root / 'bin'}{os.pathsep}{kept['PATH']}"
    os.environ["VERILATOR_ROOT"] = str(root)
    # The package's makefile has lost the flag by which g++ takes a precompiled header.
    jobs = f"-j{len(os.sched_getaffinity(0))}"
    os.environ["MAKEFLAGS"] = f"{jobs} CFG_CXXFLAGS_PCH_I=-include {_MAKE_ARGS}"
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _digest(*parts: object) -> str:
    return build.content_digest(*(str(part).encode() for part in parts))


def _compile(verilog: Callable[[], str], top: str, digest: str) -> Path:
    """Folder ``digest`` of the cache with the simulation of ``verilog()``, made if not there."""
    folder = build.cache_directory() / f"bench-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder.with_suffix(".lock")):
        if (folder / "built").exists():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        source = folder / f"{top}.v"
        source.write_text(verilog())
        ports = folder / "ports.vlt"
        rules = [f'public_flat_rw -module "{top}" -var "{name}"' for name in _PORTS]
        ports.write_text("\n".join(["`verilator_config", *rules, ""]))
        with _verilator_environment():
            _PortsOnly().build(
                sources=[ports, source],
                hdl_toplevel=top,
                build_dir=folder,
                build_args=_BUILD_ARGS,
                timescale=_TIMESCALE,
                log_file=folder / "build.log",
                always=True,
            )
        (folder / "built").touch()
    return folder


def _recipe() -> list[object]:
    """What a simulation is made with."""
    tools = [f"{name} {version(name)}" for name in ("amaranth", "cocotb", "verilator")]
    return [_BUILD_ARGS, _MAKE_ARGS, _PORTS, _TIMESCALE, *tools]


def compile_verilog(text: str, top: str) -> Path:
    """Folder of the simulation of ``text``."""
    return _compile(lambda: text, top, _digest(text, top, *_recipe()))


def compiled(parameters: Parameters) -> Path:
    """Folder of the compiled NIC; keyed by its sources, so that a second run makes no Verilog."""
    import uwarp.contract
    import uwarp_hdl

    packages = (uwarp_hdl, uwarp.contract)
    files = sorted(p for package in packages for p in Path(package.__file__).parent.rglob("*.py"))
    sources = [f"{path.name}\n{path.read_text()}" for path in files]

    def make() -> str:
        from uwarp_hdl.verilog import verilog

        return verilog(parameters)

    return _compile(make, TOP, _digest(parameters, sources, *_recipe()))


def run_bench(
    folder: Path,
    module: str,
    test_dir: Path,
    *,
    top: str = TOP,
    only: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run the cocotb tests of ``module`` whose names match ``only``. Raises AssertionError.

    The error quotes the end of the log, which names the seed.
    """
    log = test_dir / "bench.log"
    results = test_dir / "results.xml"
    with _verilator_environment(), suppress(SystemExit, RuntimeError):
        # The runner ends the process when a test fails; the results say which.
        _PortsOnly().test(
            hdl_toplevel=top,
            hdl_toplevel_lang="verilog",
            test_module=module,
            build_dir=folder,
            test_dir=test_dir,
            results_xml=str(results),
            test_filter=only,
            extra_env={"PYTHONWARNINGS": "ignore::DeprecationWarning", **(environment or {})},
            log_file=log,
        )
    tests, failed = get_results(results) if results.exists() else (0, 0)
    if failed or not tests:
        tail = log.read_text().splitlines()[-120:] if log.exists() else ["no log"]
        raise AssertionError("\n".join([f"{failed} of {tests} tests failed", *tail]))


def main() -> int:
    """Fill the cache with the NIC for cocotb, with the one that writes waveforms, with units."""
    from . import units
    from .stage import BENCH

    print("compiling the NIC for the benches (once)", file=sys.stderr, flush=True)
    compiled(BENCH)
    units.compile_all()
    return build.main(trace=True)


if __name__ == "__main__":
    sys.exit(main())
