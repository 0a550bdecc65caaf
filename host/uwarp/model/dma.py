"""DMA in bursts, and those that the host answers with an error (device behaviour, section 8)."""

from __future__ import annotations

from collections.abc import Iterator

from uwarp.contract import BURST_WORDS, Counter

from .memory import Memory, MemoryFault

__all__ = ["BURST_OCTETS", "Dma"]

_WORD = 8

BURST_OCTETS = BURST_WORDS * _WORD
"""A burst ends at a multiple of this."""


def _pieces(address: int, length: int, size: int) -> Iterator[slice]:
    """Cut [address, address + length) at multiples of ``size``; as slices of the octets."""
    start = 0
    while start < length:
        stop = min(length, start + size - (address + start) % size)
        yield slice(start, stop)
        start = stop


class Dma:
    """Reads and writes of memory. Bursts that fail are counted."""

    def __init__(self, memory: Memory, counters: list[int]) -> None:
        self._memory = memory
        self._counters = counters

    def read(self, address: int, length: int) -> tuple[bytes, int]:
        """The octets, and how many bursts failed: their octets are 0."""
        octets = self._try_read(address, length)
        if octets is not None:
            return octets, 0
        octets = b""
        errors = 0
        for piece in _pieces(address, length, BURST_OCTETS):
            size = piece.stop - piece.start
            burst = self._try_read(address + piece.start, size)
            errors += burst is None
            octets += burst or bytes(size)
        self._counters[Counter.DMA_ERRORS] += errors
        return octets, errors

    def write(self, address: int, octets: bytes) -> int:
        """Returns how many bursts failed. What memory took of them, word by word, is written."""
        if self._try_write(address, octets):
            return 0
        errors = 0
        for burst in _pieces(address, len(octets), BURST_OCTETS):
            errors += not self._write_burst(address + burst.start, octets[burst])
        self._counters[Counter.DMA_ERRORS] += errors
        return errors

    def write_in_two(self, address: int, octets: bytes, cut: int) -> int:
        """One burst whose octets from ``cut`` on are written last. Returns 1 if it failed."""
        first = self._write_burst(address, octets[:cut])
        second = self._write_burst(address + cut, octets[cut:])
        error = int(not (first and second))
        self._counters[Counter.DMA_ERRORS] += error
        return error

    def _write_burst(self, address: int, octets: bytes) -> bool:
        if self._try_write(address, octets):
            return True
        for word in _pieces(address, len(octets), _WORD):
            self._try_write(address + word.start, octets[word])
        return False

    def _try_read(self, address: int, length: int) -> bytes | None:
        try:
            return self._memory.read(address, length)
        except MemoryFault:
            return None

    def _try_write(self, address: int, octets: bytes) -> bool:
        try:
            self._memory.write(address, octets)
        except MemoryFault:
            return False
        return True
