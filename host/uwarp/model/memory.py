"""Host memory as the NIC sees it."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Memory", "MemoryFault"]


class MemoryFault(Exception):
    """An access that no memory answers: the DMA's error response."""


class Memory(Protocol):
    """What the NIC reaches by DMA. Both methods raise :class:`MemoryFault` out of bounds."""

    def read(self, address: int, length: int) -> bytes: ...

    def write(self, address: int, data: bytes) -> None: ...
