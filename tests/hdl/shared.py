"""Units that tests of the same parameters share, each with its simulator.

To elaborate a large unit and to make its simulator takes as long as a thousand cycles of it. So it
is made once, and reset before each run.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from amaranth.hdl import Elaboratable
from amaranth.sim import Simulator

__all__ = ["Shared", "shared"]

_KEPT = 4  # units at a time: each takes some 50 MiB
_PERIOD = 6.4e-9
# Testbenches of a simulator: none can be added once it has run, none taken away.
_FOREGROUND, _BACKGROUND = 3, 20
_kept: OrderedDict[Hashable, "Shared"] = OrderedDict()


class Shared:
    """A unit and a simulator of it, in which one run after the other takes place.

    Attributes
    ----------
    unit : Elaboratable
        Its signals have their initial values when a run begins.
    """

    def __init__(self, unit: Elaboratable) -> None:
        self.unit = unit
        self._simulator: Simulator | None = None
        self._testbenches: dict[int, Callable] = {}

    def run(
        self,
        *testbenches: Callable,
        background: Sequence[Callable] = (),
        max_cycles: int | None = None,
    ) -> None:
        """Simulate until all ``testbenches`` end. Fails if that takes more than ``max_cycles``."""

        async def watchdog(ctx):
            await ctx.delay(max_cycles * _PERIOD)
            raise AssertionError(f"still running after {max_cycles} cycles")

        behind = [*background, *([] if max_cycles is None else [watchdog])]
        if len(testbenches) > _FOREGROUND or len(behind) > _BACKGROUND:
            raise ValueError(f"{len(testbenches)} and {len(behind)} testbenches are too many")
        self._testbenches = {**dict(enumerate(testbenches)), **dict(enumerate(behind, _FOREGROUND))}
        # One that failed may have left anything behind.
        simulator, self._simulator = self._simulator, None
        if simulator is None:
            simulator = self._make()
        else:
            simulator.reset()
        simulator.run()
        self._simulator = simulator

    def _make(self) -> Simulator:
        simulator = Simulator(self.unit)
        simulator.add_clock(_PERIOD)
        for number in range(_FOREGROUND + _BACKGROUND):

            async def play(ctx, number=number):
                if number in self._testbenches:
                    await self._testbenches[number](ctx)

            simulator.add_testbench(play, background=number >= _FOREGROUND)
        return simulator


def shared(make: Callable[..., Elaboratable], *arguments: Hashable, **options: Hashable) -> Shared:
    """The unit that ``make`` makes of the arguments, if it is kept the one that it made before."""
    key = (make, arguments, tuple(sorted(options.items())))
    found = _kept.pop(key, None) or Shared(make(*arguments, **options))
    _kept[key] = found
    if len(_kept) > _KEPT:
        _kept.popitem(last=False)
    return found
