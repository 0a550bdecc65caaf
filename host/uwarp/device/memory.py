"""Memory of this process that a simulated NIC may reach, by DMA address.

A DMA address is not the address of the memory, so that mixing them up shows: mappings are handed
out from ``FIRST`` (above 4 GiB) upward, never twice, a page or more apart. As with an IOMMU, the
offset in the 4 KiB page is that of the memory.
"""

from __future__ import annotations

import bisect
import ctypes
from dataclasses import dataclass

__all__ = ["AddressSpace", "DmaFault", "Mapping", "aligned"]

PAGE = 4096
FIRST = 0x23_4500_0000


@dataclass(frozen=True)
class DmaFault:
    """What a NIC did to memory or its ports and must not. ``kind`` says it in words."""

    time: int
    address: int
    kind: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.address:#x} in cycle {self.time}"


@dataclass(frozen=True)
class Mapping:
    """``length`` octets at ``address`` of this process, for the NIC at ``dma_address``."""

    dma_address: int
    length: int
    address: int
    writable: bool

    @property
    def end(self) -> int:
        return self.dma_address + self.length


def aligned(start: int, length: int) -> int:
    """The next multiple of a page, and of the power of two that holds ``length`` octets."""
    step = max(PAGE, 1 << (length - 1).bit_length())
    return -(-start // step) * step


class AddressSpace:
    """The DMA addresses of one NIC. Bounds are those of the octets mapped, not of pages. A mapping
    from a page's begin on lies at a multiple of the power of two that holds it, as a ring has to.
    """

    def __init__(self) -> None:
        self._next = FIRST
        self._starts: list[int] = []
        self._mappings: list[Mapping] = []

    def map(self, address: int, length: int, writable: bool) -> Mapping:
        if length <= 0 or address <= 0:
            raise ValueError(
                f"cannot map {length} octets at {address:#x}; it takes 1 or more, at 1 or above"
            )
        start = aligned(self._next, length) + address % PAGE
        self._next = (start + length + 2 * PAGE - 1) // PAGE * PAGE
        mapping = Mapping(start, length, address, writable)
        self._starts.append(start)
        self._mappings.append(mapping)
        return mapping

    def unmap(self, dma_address: int) -> None:
        place = bisect.bisect_left(self._starts, dma_address)
        if place == len(self._starts) or self._starts[place] != dma_address:
            raise ValueError(f"{dma_address:#x} is not the DMA address of a mapping")
        del self._starts[place], self._mappings[place]

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        """All there are, by DMA address."""
        return tuple(self._mappings)

    def find(self, dma_address: int, length: int) -> Mapping | None:
        """The mapping that holds all ``length`` octets, or None."""
        place = bisect.bisect_right(self._starts, dma_address) - 1
        if place < 0 or dma_address + length > self._mappings[place].end:
            return None
        return self._mappings[place]

    def read(self, dma_address: int, length: int) -> bytes | None:
        """Octets of memory, or None if they are not all in one mapping."""
        mapping = self.find(dma_address, length)
        if mapping is None:
            return None
        return ctypes.string_at(mapping.address + dma_address - mapping.dma_address, length)

    def write(self, dma_address: int, octets: bytes | bytearray | memoryview) -> bool:
        """Write memory. False, and nothing is written, if it is not all in one writable mapping."""
        mapping = self.find(dma_address, len(octets))
        if mapping is None or not mapping.writable:
            return False
        ctypes.memmove(
            mapping.address + dma_address - mapping.dma_address, bytes(octets), len(octets)
        )
        return True
