"""What a wire does to frames: loss, duplicates and reordering, by a rule that every form shares.

Each direction has its own generator, splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom
Number Generators, OOPSLA 2014), started from ``(seed, source)``. Each frame takes four draws, in
this order, whatever becomes of it: loss, duplicate, reorder, hold. So the n-th frame of a direction
has the same fate in every form of the device, whatever the timing.

A probability is compared as an integer: the upper 53 bits of the draw are less than p * 2^53.

1. A lost frame is dropped; nothing else happens.
2. A frame that is not reordered is delivered, and once more directly behind itself if duplicated.
3. Each frame held from before then counts this one as passed. Those that have seen as many as they
   drew (1 to 8: the top three bits of the fourth draw, plus 1) are delivered now, in the order in
   which they were taken, each followed by its duplicate.
4. A frame that is reordered is held from here on.

A frame that is held itself counts as one that passed, so a frame falls behind by at most 8. A
direction that has been idle for ``IDLE_CYCLES`` delivers all that it holds.

The harness of the rtl form has the same rule in ``harness/impair.hpp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from .base import Fate, Impairments

__all__ = ["IDLE_CYCLES", "Direction", "SplitMix64", "thresholds"]

IDLE_CYCLES = 4096

_MASK = (1 << 64) - 1
_GAMMA = 0x9E37_79B9_7F4A_7C15

T = TypeVar("T")


def _mix(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58_476D_1CE4_E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D0_49BB_1331_11EB & _MASK
    return value ^ value >> 31


class SplitMix64:
    """64-bit generator; its state is a counter, so equal seeds give equal sequences."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def draw(self) -> int:
        self._state = self._state + _GAMMA & _MASK
        return _mix(self._state)


def thresholds(impairments: Impairments) -> tuple[int, int, int]:
    """Loss, duplicate and reorder as integers out of 2^53."""
    return (
        int(impairments.loss * 2**53),
        int(impairments.duplicate * 2**53),
        int(impairments.reorder * 2**53),
    )


@dataclass
class _Held(Generic[T]):
    item: T
    remaining: int
    duplicate: bool


class Direction(Generic[T]):
    """One direction of a wire. Says which items to deliver, in which order.

    Parameters
    ----------
    impairments : probabilities and seed.
    source : number of the sending device; the second half of the seed.
    """

    def __init__(self, impairments: Impairments, source: int) -> None:
        self._loss, self._duplicate, self._reorder = thresholds(impairments)
        self._draws = SplitMix64(_mix(_mix(impairments.seed & _MASK) + source & _MASK))
        self._held: list[_Held[T]] = []

    @property
    def holds(self) -> bool:
        """Whether frames are being held back."""
        return bool(self._held)

    def offer(self, item: T) -> list[tuple[Fate, T]]:
        """The next frame of the direction. Returns what happens now, in order."""
        lost = self._draws.draw() >> 11 < self._loss
        duplicate = self._draws.draw() >> 11 < self._duplicate
        reorder = self._draws.draw() >> 11 < self._reorder
        hold = 1 + (self._draws.draw() >> 61)
        if lost:
            return [(Fate.DROPPED, item)]
        outcome: list[tuple[Fate, T]] = []
        if not reorder:
            self._deliver(outcome, item, duplicate)
        for held in self._held:
            held.remaining -= 1
            if not held.remaining:
                self._deliver(outcome, held.item, held.duplicate)
        self._held = [held for held in self._held if held.remaining]
        if reorder:
            self._held.append(_Held(item, hold, duplicate))
        return outcome

    def release(self) -> list[tuple[Fate, T]]:
        """Deliver all that is held: the direction has been idle for ``IDLE_CYCLES``."""
        outcome: list[tuple[Fate, T]] = []
        for held in self._held:
            self._deliver(outcome, held.item, held.duplicate)
        self._held = []
        return outcome

    @staticmethod
    def _deliver(outcome: list[tuple[Fate, T]], item: T, duplicate: bool) -> None:
        outcome.append((Fate.DELIVERED, item))
        if duplicate:
            outcome.append((Fate.DUPLICATE, item))
