"""Time of the NIC (device behaviour, 1.3)."""

from __future__ import annotations

from uwarp.contract import TICK_CYCLES

__all__ = ["TIME_BITS", "Clock", "time_fields"]

TIME_BITS = 47
_LOW_BITS = 31


def time_fields(time: int) -> dict[str, int]:
    """A time as a CQE and an event have it."""
    return {"time_low": time & (1 << _LOW_BITS) - 1, "time_high": time >> _LOW_BITS}


class Clock:
    """Clock cycles since power-up.

    ``cycles`` and ``tick`` do not wrap here: messages are closed, and the names of closed ones
    forgotten, long before the 16-bit tick number comes round, so that nobody can tell.
    """

    def __init__(self) -> None:
        self.cycles = 0

    @property
    def time(self) -> int:
        """The register TIME."""
        return self.cycles & (1 << TIME_BITS) - 1

    @property
    def tick(self) -> int:
        return self.cycles // TICK_CYCLES
