"""Host memory as the NIC sees it."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

__all__ = ["Memory", "MemoryFault", "try_read", "try_write"]


class MemoryFault(Exception):
    """An access that no memory answers: the DMA's error response."""


class Memory(Protocol):
    """What the NIC reaches by DMA. Both methods raise :class:`MemoryFault` out of bounds."""

    def read(self, address: int, length: int) -> bytes: ...

    def write(self, address: int, data: bytes) -> None: ...


def try_read(memory: Memory, address: int, length: int) -> bytes | None:
    """The octets, or None if the read fails."""
    try:
        return memory.read(address, length)
    except MemoryFault:
        return None


def try_write(memory: Memory, address: int, data: bytes) -> None:
    """Write; a failed write has no effect and is not reported, as in the gateware."""
    with suppress(MemoryFault):
        memory.write(address, data)
