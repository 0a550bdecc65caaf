"""Memory of the host as the NIC sees it, and the AXI subordinate in front of it."""

import random

from uwarp.model import MemoryFault

__all__ = ["AxiMemory", "HostMemory"]


class HostMemory:
    """``size`` octets from DMA address ``base``; any access that leaves them faults."""

    def __init__(self, base: int, size: int, seed: int) -> None:
        self.base = base
        self.octets = bytearray(random.Random(seed).randbytes(size))

    def _place(self, address: int, length: int) -> int:
        start = address - self.base
        if start < 0 or start + length > len(self.octets):
            raise MemoryFault(f"{length} octets at {address:#x} are not memory")
        return start

    def read(self, address: int, length: int) -> bytes:
        start = self._place(address, length)
        return bytes(self.octets[start : start + length])

    def write(self, address: int, data: bytes) -> None:
        start = self._place(address, len(data))
        self.octets[start : start + len(data)] = data


class AxiMemory:
    """Target of cocotbext-axi's ``AxiSlave``: a fault becomes an error response."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory

    async def read(self, address: int, length: int) -> bytes:
        return self._memory.read(address, length)

    async def write(self, address: int, data: bytes) -> None:
        self._memory.write(address, data)
