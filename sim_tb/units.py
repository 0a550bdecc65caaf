# amaranth: UnusedElaboratable=no
"""Units of the gateware compiled with Verilator, under testbenches as for Amaranth's simulator.

A large unit takes Amaranth's simulator a millisecond a cycle; compiled it takes some microseconds.
A testbench is a coroutine that gets a context with ``get``, ``set`` and ``tick``, which do what
those of ``amaranth.sim`` do; but only the ports of a compiled unit can be read, and only its inputs
set. As there, the testbenches run in the order given, and what they sample at a clock edge is what
was just before it.

To compile a unit takes some ten seconds, once for its sources and parameters. Those of
``COMPILED``, which most runs are of, are compiled (``make benches``); a unit of other parameters is
simulated by Amaranth, under the same testbenches.
"""

import base64
import ctypes
import functools
import inspect
import os
import pickle
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from amaranth.back import verilog as backend
from amaranth.hdl import Const, ShapeCastable, Signal, Value, ValueCastable
from amaranth.hdl._ast import Concat, Operator, Slice
from amaranth.hdl._ir import PortDirection
from amaranth.lib import wiring
from amaranth.sim import Simulator

from uwarp.contract import Parameters
from uwarp.device import build
from uwarp_hdl.iwarp.receive import DatagramReceiver
from uwarp_hdl.iwarp.transmit import TransmitPath

from .port_tables import TabledReceiver

__all__ = [
    "COMPILED",
    "RECEIVE",
    "RECEIVE_RATE",
    "TRANSMIT",
    "Compiled",
    "Context",
    "Simulated",
    "compile_all",
    "unit",
    "verilog",
]

TOP = "unit"
_HARNESS = Path(__file__).parent / "harness" / "unit.cpp"
_ELABORATE = """
import os, sys
from sim_tb import units
os.environ["AMARANTH_USE_YOSYS"] = "builtin"
sys.stdout.write(units.verilog(sys.argv[1]))
"""
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_PERIOD = 6.4e-9
_KEPT = 4096  # expressions with their readers

Getter = Callable[[], int]
Make = Callable[..., wiring.Component]

#: Parameters of the benches of the datagram receiver, two sets, and of the transmit path.
RECEIVE = Parameters(n_qp=4, n_region=8, n_tracker=4, n_closed=16, map_bits=2048)
RECEIVE_RATE = Parameters(n_qp=16, n_region=8, n_tracker=2, n_closed=64, map_bits=1024)
TRANSMIT = Parameters(n_qp=8, n_region=8, max_mtu=1500)
#: The units that are compiled: what makes them, of what.
COMPILED: tuple[tuple[Make, tuple, dict], ...] = (
    (TransmitPath, (TRANSMIT,), {}),
    (TransmitPath, (replace(TRANSMIT, n_read=4),), {}),
    (DatagramReceiver, (RECEIVE,), {}),
    (DatagramReceiver, (replace(RECEIVE, n_read=2),), {}),
    (DatagramReceiver, (RECEIVE_RATE,), {}),
    (TabledReceiver, (), {"payload_words": 256, "datagrams": 8}),
)


def _ports(component: wiring.Component) -> dict[str, tuple[Signal, PortDirection]]:
    """The ports of a component under names that C++ has, too: ``p0`` and so on."""
    ports = {}
    for _, member, value in component.signature.flatten(component):
        direction = PortDirection.Input if member.flow == wiring.In else PortDirection.Output
        signal = Value.cast(value)
        if len(signal):
            ports[f"p{len(ports)}"] = signal, direction
    return ports


def verilog(pickled: str) -> str:
    """The Verilog of the component that (make, arguments, options) makes."""
    make, arguments, options = pickle.loads(base64.b64decode(pickled))
    component = make(*arguments, **options)
    return backend.convert(
        component,
        name=TOP,
        ports=_ports(component),
        emit_src=False,
        strip_internal_attrs=True,
    )


class _Tick:
    """What ``ctx.tick()`` gives: to be awaited, once or for some cycles."""

    __slots__ = ("_context", "_values")

    def __init__(self, context: "Context", values: tuple = ()) -> None:
        self._context = context
        self._values = values

    def sample(self, *values) -> "_Tick":
        return _Tick(self._context, (*self._values, *values))

    def __await__(self):
        return (yield self._context.getters(self._values))

    async def repeat(self, count: int) -> tuple:
        if count < 1:
            raise ValueError(f"cannot wait for {count} cycles")
        for _ in range(count):
            _, _, *values = await self
        return tuple(values)

    async def until(self, condition) -> tuple:
        sampled = self.sample(condition)
        while True:
            _, _, *values, holds = await sampled
            if holds:
                return tuple(values)


class Context:
    """The ports of one simulation of a unit, for its testbenches."""

    def __init__(self, library: ctypes.CDLL, ports: Sequence[tuple[Signal, PortDirection]]) -> None:
        self._settle, self._edge = library.unit_settle, library.unit_edge
        self._delete = library.unit_delete
        self._model = ctypes.c_void_p(library.unit_new())
        addresses = (ctypes.c_void_p * len(ports))()
        library.unit_ports(self._model, addresses)
        self._stale = True
        self._readers: dict[int, Getter] = {}
        self._writers: dict[int, Callable[[int], None]] = {}
        self._getters: dict[tuple[int, ...], tuple] = {}
        self._setters: dict[int, tuple] = {}
        for (signal, direction), address in zip(ports, addresses, strict=True):
            self._add(signal, direction, address)

    def _add(self, signal: Signal, direction: PortDirection, address: int) -> None:
        width = len(signal)
        if signal.shape().signed:
            raise NotImplementedError(f"{signal!r} is signed")
        size = next((size for size in _CODES if width <= 8 * size), 4 * -(-width // 32))
        octets = memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B")
        mask = (1 << width) - 1
        if size in _CODES:
            word = octets.cast(_CODES[size])

            def read() -> int:
                return word[0]

            def write(value: int) -> None:
                word[0] = value & mask
        else:

            def read() -> int:
                return int.from_bytes(octets, "little")

            def write(value: int) -> None:
                octets[:] = (value & mask).to_bytes(size, "little")

        self._readers[id(signal)] = read
        if direction is PortDirection.Input:
            self._writers[id(signal)] = write

    def close(self) -> None:
        """End the simulation."""
        self._delete(self._model)

    def clock(self) -> None:
        """The rising edge of the clock; nothing may be set since the last ``settle``."""
        self._edge(self._model)
        self._stale = True

    def settle(self) -> None:
        """Let what was set take effect."""
        if self._stale:
            self._settle(self._model)
            self._stale = False

    def tick(self) -> _Tick:
        """Wait for the rising edge of the clock."""
        return _Tick(self)

    def get(self, expression):
        """The value of an expression of ports, as its shape has it."""
        self.settle()
        return self.getters((expression,))[0]()

    def set(self, expression, value) -> None:
        """Set inputs, slices of them, or several together (``Cat``)."""
        kept = self._setters.get(id(expression))
        if kept is None:
            if len(self._setters) > _KEPT:
                self._setters.clear()
            kept = expression, _shape(expression), self._setter(Value.cast(expression))
            self._setters[id(expression)] = kept
        _, shape, write = kept
        if shape is not None:
            value = shape.const(value)
        write(value if type(value) is int else Const.cast(value).value)
        self._stale = True

    def getters(self, expressions: tuple) -> list[Callable]:
        """What reads each of the expressions."""
        key = tuple(map(id, expressions))
        kept = self._getters.get(key)
        if kept is None:
            if len(self._getters) > _KEPT:
                self._getters.clear()
            # The expressions are kept with it, so that nothing else gets their ids.
            kept = expressions, [self._shaped(item) for item in expressions]
            self._getters[key] = kept
        return kept[1]

    def _shaped(self, expression) -> Callable:
        read = self._getter(Value.cast(expression))
        shape = _shape(expression)
        return read if shape is None else lambda: shape.from_bits(read())

    def _getter(self, value: Value) -> Getter:
        match value:
            case Signal():
                try:
                    return self._readers[id(value)]
                except KeyError:
                    raise ValueError(f"{value!r} is no port of the unit") from None
            case Const():
                return lambda: value.value
            case Slice():
                read, start, mask = self._getter(value.value), value.start, (1 << len(value)) - 1
                return lambda: read() >> start & mask
            case Concat():
                parts = [(self._getter(part), place) for part, place in _placed(value)]
                return lambda: sum(read() << place for read, place in parts)
            case Operator(operator="&", operands=[left, right]):
                left, right = self._getter(left), self._getter(right)
                return lambda: left() & right()
            case Operator(operator="~", operands=[operand]):
                read, mask = self._getter(operand), (1 << len(value)) - 1
                return lambda: ~read() & mask
        raise NotImplementedError(f"{value!r} cannot be read")

    def _setter(self, value: Value) -> Callable[[int], None]:
        match value:
            case Signal():
                try:
                    return self._writers[id(value)]
                except KeyError:
                    raise ValueError(f"{value!r} is no input of the unit") from None
            case Slice():
                read, write = self._getter(value.value), self._setter(value.value)
                start, mask = value.start, (1 << len(value)) - 1
                return lambda bits: write(read() & ~(mask << start) | (bits & mask) << start)
            case Concat():
                parts = [(self._setter(part), place) for part, place in _placed(value)]

                def write_parts(bits: int) -> None:
                    for write, place in parts:
                        write(bits >> place)

                return write_parts
        raise NotImplementedError(f"{value!r} cannot be set")


def _placed(value: Concat) -> list[tuple[Value, int]]:
    """The parts of a concatenation, each with the place of its lowest bit."""
    places = accumulate(map(len, value.parts), initial=0)
    return list(zip(value.parts, places, strict=False))


def _shape(expression) -> ShapeCastable | None:
    """The shape of an expression whose values are more than numbers."""
    if isinstance(expression, ValueCastable):
        shape = expression.shape()
        if isinstance(shape, ShapeCastable):
            return shape
    return None


class Compiled:
    """A compiled unit.

    Attributes
    ----------
    component : wiring.Component
        Its ports are what testbenches read and set.
    """

    def __init__(self, make: Make, *arguments, **options) -> None:
        self.component = make(*arguments, **options)
        self._ports = _ports(self.component)
        library = ctypes.CDLL(str(_library(make, arguments, options, list(self._ports))))
        library.unit_new.restype = ctypes.c_void_p
        self._library = library

    def run(
        self,
        *testbenches: Callable[[Context], Coroutine],
        background: Sequence[Callable[[Context], Coroutine]] = (),
        max_cycles: int | None = None,
    ) -> None:
        """Simulate from power-on until all ``testbenches`` end.

        Raises
        ------
        AssertionError
            If that takes more than ``max_cycles``.
        """
        context = Context(self._library, list(self._ports.values()))
        tasks = [
            _Task(bench(context), place < len(testbenches))
            for place, bench in enumerate((*testbenches, *background))
        ]
        running = list(tasks)
        cycles = 0
        try:
            while True:
                for task in tuple(running):
                    try:
                        task.getters = task.coroutine.send(task.result)
                    except StopIteration:
                        running.remove(task)
                if not any(task.critical for task in running):
                    return
                assert cycles != max_cycles, f"still running after {max_cycles} cycles"
                cycles += 1
                context.settle()
                for task in running:
                    task.result = (True, False, *[get() for get in task.getters])
                context.clock()
        finally:
            for task in tasks:
                task.coroutine.close()
            context.close()


class _Task:
    """A testbench, and what it waits for: the values to be sampled at the next clock edge."""

    __slots__ = ("coroutine", "critical", "getters", "result")

    def __init__(self, coroutine: Coroutine, critical: bool) -> None:
        self.coroutine = coroutine
        self.critical = critical
        self.getters: list[Callable] = []
        self.result: tuple | None = None


class Simulated:
    """A unit in Amaranth's simulator, for one run. Its attributes and methods are Compiled's."""

    def __init__(self, make: Make, *arguments, **options) -> None:
        self.component = make(*arguments, **options)

    def run(
        self,
        *testbenches: Callable[..., Coroutine],
        background: Sequence[Callable[..., Coroutine]] = (),
        max_cycles: int | None = None,
    ) -> None:
        async def watchdog(ctx):
            await ctx.delay(max_cycles * _PERIOD)
            raise AssertionError(f"still running after {max_cycles} cycles")

        simulator = Simulator(self.component)
        simulator.add_clock(_PERIOD)
        for testbench in testbenches:
            simulator.add_testbench(testbench)
        for testbench in (*background, *([] if max_cycles is None else [watchdog])):
            simulator.add_testbench(testbench, background=True)
        simulator.run()


_compiled = functools.cache(Compiled)


def unit(make: Make, *arguments, **options) -> Compiled | Simulated:
    """The unit that ``make`` makes of the arguments."""
    is_compiled = (make, arguments, options) in COMPILED
    return (_compiled if is_compiled else Simulated)(make, *arguments, **options)


def compile_all() -> None:
    """Fill the cache with all of ``COMPILED``."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda item: unit(item[0], *item[1], **item[2]), COMPILED))


def _library(make: Make, arguments: tuple, options: dict, ports: Sequence[str]) -> Path:
    name = f"{make.__name__}{(*arguments, options)}"
    text = build.elaborated(
        _ELABORATE,
        base64.b64encode(pickle.dumps((make, arguments, options))).decode(),
        name,
        [Path(__file__), Path(inspect.getsourcefile(make))],
        None,
    )
    return build.model_library(
        text,
        TOP,
        _HARNESS,
        [f"-DUNIT_PORTS={','.join(f'&top.{port}' for port in ports)}"],
        f"compiling {make.__name__} for its benches (once)",
        small=True,
    )
