"""Time of the NIC (device behaviour, 1.3)."""

from __future__ import annotations

from uwarp.contract import TICK_CYCLES

__all__ = ["TIME_BITS", "Clock"]

TIME_BITS = 47


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
