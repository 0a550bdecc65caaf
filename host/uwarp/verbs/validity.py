"""Which octets of a region, or of one message, have arrived.

A device speaks in granules: runs of 64 octets (or a larger power of two) of the region. A message
that begins or ends inside a granule says nothing about the rest of that granule, so a
:class:`Validity` also keeps, for such granules only, which of their octets have been spoken of.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["Validity"]

Run = tuple[int, int]


def _merge(runs: list[Run]) -> list[Run]:
    """Half-open runs, ascending, without overlap or contact."""
    merged: list[Run] = []
    for start, stop in sorted(runs):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _runs(flags: npt.NDArray[np.bool_]) -> list[Run]:
    """Half-open runs of true flags."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return [(int(a), int(b)) for a, b in zip(edges[0::2], edges[1::2], strict=True)]


class Validity:
    """Validity of ``length`` octets.

    A granule is valid once completions have covered all of its octets that lie within the
    ``length``: one message that covers it whole, or several that meet inside it. It never becomes
    invalid but by :meth:`clear` and :meth:`read`. Nothing is ever reported that was not placed.

    Parameters
    ----------
    length : octets.
    granule : octets, a power of two.
    shift : octets of the first granule that lie before the first octet. Not 0 for a message that
        begins inside a granule.

    Attributes
    ----------
    granules : numpy array of bool
        One flag a granule, the live one: see it, copy it, do not write it.
    """

    def __init__(self, length: int, granule: int = 64, shift: int = 0) -> None:
        self.length = length
        self.granule = granule
        self.shift = shift
        self._flags = np.zeros(-(-(shift + length) // granule) if length else 0, dtype=np.bool_)
        self._edges: dict[int, list[Run]] = {}

    def __repr__(self) -> str:
        return f"<Validity {self.valid} of {self.length} octets, granule {self.granule}>"

    @property
    def granules(self) -> npt.NDArray[np.bool_]:
        view = self._flags.view()
        view.flags.writeable = False
        return view

    def _span(self, first: int, last: int) -> Run:
        """Octets of the granules ``first`` to ``last`` (exclusive)."""
        return (
            max(0, first * self.granule - self.shift),
            min(self.length, last * self.granule - self.shift),
        )

    def _mark(self, start: int, stop: int) -> None:
        """Octets ``start`` to ``stop`` (exclusive) have been placed."""
        if start >= stop:
            return
        first = (start + self.shift) // self.granule
        last = (stop - 1 + self.shift) // self.granule
        for index in {first, last}:
            low, high = self._span(index, index + 1)
            runs = _merge([*self._edges.pop(index, []), (max(start, low), min(stop, high))])
            if runs == [(low, high)]:
                self._flags[index] = True
            elif not self._flags[index]:
                self._edges[index] = runs
        if last - first > 1:
            self._flags[first + 1 : last] = True
            for index in [key for key in self._edges if first < key < last]:
                del self._edges[index]

    def _mark_granules(self, flags: npt.NDArray[np.bool_]) -> None:
        for first, last in _runs(flags):
            self._mark(*self._span(first, last))

    def _fold(self, message: Validity, offset: int) -> None:
        """Add a message that begins ``offset`` octets in."""
        for start, size in message.ranges():
            self._mark(offset + start, offset + start + size)

    def _half_open(self) -> list[Run]:
        runs = [self._span(first, last) for first, last in _runs(self._flags)]
        return _merge(runs + [run for edge in self._edges.values() for run in edge])

    @property
    def valid(self) -> int:
        """Valid octets."""
        return sum(stop - start for start, stop in self._half_open())

    @property
    def complete(self) -> bool:
        """Whether every octet is valid."""
        return bool(self._flags.all())

    def is_valid(self, offset: int = 0, length: int | None = None) -> bool:
        """Whether ``length`` octets from ``offset`` (to the end if not given) are all valid.

        Raises ValueError if they are not within the range that this object speaks of.
        """
        stop = self.length if length is None else offset + length
        if not 0 <= offset <= stop <= self.length:
            raise ValueError(f"octets {offset} to {stop} of {self.length}")
        if offset == stop:
            return True
        first = (offset + self.shift) // self.granule
        last = (stop - 1 + self.shift) // self.granule
        for index in range(first, last + 1) if self._edges else (first, last):
            if not self._flags[index]:
                low, high = self._span(index, index + 1)
                low, high = max(low, offset), min(high, stop)
                if not any(a <= low and high <= b for a, b in self._edges.get(index, [])):
                    return False
        return bool(self._edges) or bool(self._flags[first : last + 1].all())

    def ranges(self) -> list[tuple[int, int]]:
        """Valid runs as (offset, length), ascending."""
        return [(start, stop - start) for start, stop in self._half_open()]

    def missing(self) -> list[tuple[int, int]]:
        """Runs that are not valid, as (offset, length), ascending."""
        return list(self._gaps())

    def _gaps(self) -> Iterator[tuple[int, int]]:
        position = 0
        for start, stop in [*self._half_open(), (self.length, self.length)]:
            if start > position:
                yield position, start - position
            position = stop

    def clear(self) -> None:
        """Forget: nothing is valid until further completions say so."""
        self._flags[:] = False
        self._edges.clear()

    def read(self) -> npt.NDArray[np.bool_]:
        """A copy of ``granules``, after which all is cleared: each arrival is read once."""
        flags = self._flags.copy()
        self.clear()
        return flags
