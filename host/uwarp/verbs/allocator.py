"""Allocation of the on-chip validity map, and of table rows, reused as late as possible."""

from __future__ import annotations

import errno
from collections import deque

from .errors import refuse

__all__ = ["MAP_UNIT", "MapAllocator", "Numbers"]

MAP_UNIT = 64  # bits: a word of the on-chip map, never shared by two regions


class MapAllocator:
    """Runs of bits of the on-chip map, in whole words."""

    def __init__(self, bits: int) -> None:
        self._total = bits
        self._free = [(0, bits)]  # (first bit, bits), ascending, never adjacent

    @property
    def free_bits(self) -> int:
        return sum(size for _, size in self._free)

    def take(self, bits: int) -> int:
        """First of at least ``bits`` consecutive bits. Raises ENOSPC."""
        size = -(-bits // MAP_UNIT) * MAP_UNIT
        for index, (first, room) in enumerate(self._free):
            if room >= size:
                self._free[index : index + 1] = [(first + size, room - size)] if room > size else []
                return first
        raise refuse(
            f"a validity map of {bits} granules; the device has {self.free_bits} of {self._total} "
            f"bits free, {max((room for _, room in self._free), default=0)} in one piece: "
            "use a larger granule or a smaller region",
            errno.ENOSPC,
        )

    def give(self, first: int, bits: int) -> None:
        size = -(-bits // MAP_UNIT) * MAP_UNIT
        merged: list[tuple[int, int]] = []
        for start, room in sorted([*self._free, (first, size)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((start, room))
        self._free = merged


class Numbers:
    """Rows of a table. The one that has been free for longest is taken first."""

    def __init__(self, kind: str, numbers: range) -> None:
        self._kind = kind
        self._count = len(numbers)
        self._free = deque(numbers)

    def take(self) -> int:
        """A free number. Raises ENOSPC."""
        if not self._free:
            raise refuse(f"all {self._count} {self._kind} of the device are taken", errno.ENOSPC)
        return self._free.popleft()

    def give(self, number: int) -> None:
        self._free.append(number)
