"""How fast a QP may send: its token bucket (device behaviour, 7.9)."""

from __future__ import annotations

from dataclasses import dataclass

from uwarp.contract import TICK_CYCLES
from uwarp.wire import ETHERNET, FRAME_OVERHEAD, VLAN

from .errors import refuse

__all__ = ["RateLimit"]

UNIT = 64  # octets that send_burst counts in
MAX_BURST = UNIT << 16
FRACTION = 256  # send_rate counts in octets a tick divided by this


@dataclass(frozen=True)
class RateLimit:
    """Fields of a QP's row for a rate; all 0 sets no limit.

    Attributes
    ----------
    kbps : the rate, in kb/s of the wire.
    burst : octets that the bucket holds.
    send_rate : what the device counts in, rounded down: the rate is not exceeded.
    """

    kbps: int = 0
    burst: int = UNIT
    send_rate: int = 0

    @property
    def send_burst(self) -> int:
        return self.burst // UNIT - 1

    @classmethod
    def of(cls, kbps: int, burst: int | None, *, clock_hz: int, mtu: int) -> RateLimit:
        """The limit for a rate; ``burst`` None is enough to meet it. Raises EINVAL.

        A bucket that holds less than it gains in a tick would lose the rest of each gain.
        """
        octets = 1000 // 8 * TICK_CYCLES  # of 1 kb/s, in clock_hz ticks
        send_rate = kbps * octets * FRACTION // clock_hz
        gain = -(-send_rate // FRACTION)
        if kbps and not (1 <= send_rate < 1 << 32 and gain <= MAX_BURST):
            least = -(-clock_hz // (octets * FRACTION))
            most = min(MAX_BURST, (1 << 32) // FRACTION - 1) * clock_hz // octets
            raise refuse(f"rate_limit is {kbps}; it takes 0, or {least} to {most} kb/s")
        if not kbps:
            return cls()
        if burst is None:
            largest = mtu + ETHERNET.size + VLAN.size + FRAME_OVERHEAD
            burst = min(MAX_BURST, max(4 * gain, 2 * largest))
        elif not max(UNIT, gain) <= burst <= MAX_BURST:
            raise refuse(
                f"max_burst_sz is {burst}; with a rate_limit of {kbps} it takes "
                f"{max(UNIT, gain)} to {MAX_BURST}"
            )
        return cls(kbps, -(-burst // UNIT) * UNIT, send_rate)
