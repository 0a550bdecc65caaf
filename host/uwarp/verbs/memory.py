"""Memory that a device may reach."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from uwarp.device.base import Device

__all__ = ["Memory"]


class Memory:
    """Zeroed, page-aligned memory.

    Parameters
    ----------
    length : octets, rounded up to whole pages.
    alignment : of the first octet in this process: a power of two.
    """

    def __init__(self, length: int, *, alignment: int = mmap.PAGESIZE) -> None:
        size = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        spare = alignment if alignment > mmap.PAGESIZE else 0
        pages = np.frombuffer(mmap.mmap(-1, size + spare), dtype=np.uint8)
        skip = -int(pages.ctypes.data) % alignment
        self.array: npt.NDArray[np.uint8] = pages[skip : skip + size]
        self.view: memoryview[Any] = self.array.data
        self.address = int(self.array.ctypes.data)
        self.size = size
        self.dma_address = 0
        self._device: Device | None = None

    def map(self, device: Device) -> None:
        """Let ``device`` read and write all of it, until :meth:`release`."""
        self.dma_address = device.map(self.address, self.size)
        self._device = device

    def release(self) -> None:
        """Take it from the device; the process keeps it while something refers to it."""
        if self._device is not None:
            self._device.unmap(self.dma_address)
            self._device = None
