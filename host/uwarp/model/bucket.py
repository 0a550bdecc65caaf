"""What holds a queue pair to its send rate (device behaviour, 7.9)."""

from __future__ import annotations

from .clock import Clock

__all__ = ["Bucket"]

_UNIT = 256  # parts of an octet
_BURST_UNIT = 64 * _UNIT


class Bucket:
    """Octets that a QP may put on the wire: gained once every tick, up to a limit.

    Without a rate there is no limit to them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.load(0, 0)

    def load(self, rate: int, burst: int) -> None:
        """A row of the QP table was written, of send_rate and send_burst: the bucket is full."""
        self._rate = rate
        self._limit = (burst + 1) * _BURST_UNIT
        self._level = self._limit
        self._tick = self._clock.tick

    def _gain(self) -> None:
        ticks = self._clock.tick - self._tick
        self._tick += ticks
        self._level = min(self._limit, self._level + ticks * self._rate)

    @property
    def open(self) -> bool:
        """Whether the QP may take its turn."""
        if not self._rate:
            return True
        self._gain()
        return self._level > 0

    def take(self, octets: int) -> None:
        """A datagram has taken ``octets`` of the wire."""
        if self._rate:
            self._gain()
            self._level -= octets * _UNIT
