"""Sides without a simulator's scheduler: a NIC of the rtl form, and the model, in this process.

Their coroutines never wait, so that :func:`finish` can run whatever is written for a ``Twin``. Each
NIC reaches what the host has allocated and no octet more, and what it does beyond is a fault.
"""

import ctypes
import random
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from uwarp.contract import Doorbell, Parameters, Register, doorbell_address
from uwarp.device.memory import FIRST, PAGE, AddressSpace, aligned
from uwarp.device.rtl import RtlNic
from uwarp.model import MemoryFault, Rnic
from uwarp.wire import wire_octets

from .memory import HostMemory
from .sides import ModelSide

__all__ = ["Arena", "InstantModel", "RtlSide", "finish", "wire_cycles"]

_SIZE = 2 << 20
_OCTETS_PER_CYCLE = 8
_MAY_SEND = (
    Register.CONTROL.address,
    Register.TABLE_COMMAND.address,
    Register.MESSAGES_CLOSE.address,
)
_DOORBELLS = doorbell_address(Doorbell(0), 0)

T = TypeVar("T")


def finish(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise RuntimeError("this coroutine waits for a scheduler; there is none")


def wire_cycles(frame: bytes) -> int:
    """Clock cycles that a frame takes of the wire, its gap included, rounded up."""
    return -(-wire_octets(len(frame)) // _OCTETS_PER_CYCLE)


class Arena(HostMemory):
    """Memory of ``size`` octets, of which a NIC reaches what was allocated.

    The same sequence of allocations has the same DMA addresses in every arena; between any two lies
    a page or more.
    """

    def __init__(self, seed: int, size: int = _SIZE) -> None:
        room = bytearray(size + PAGE)
        self._address = ctypes.addressof(ctypes.c_ubyte.from_buffer(room))
        skip = -self._address % PAGE
        self._address += skip
        self.octets = memoryview(room)[skip : skip + size]
        self.octets[:] = random.Random(seed).randbytes(PAGE) * (size // PAGE)
        self.base = FIRST
        self.faults: list[str] = []
        self._space = AddressSpace()
        self._free = 0

    def allocate(self, length: int) -> int:
        """DMA address of the first of ``length`` fresh octets: as ``Device.map`` has it, a multiple
        of the power of two that holds them, and of a page."""
        start = aligned(self._free, length)
        if start + length > len(self.octets):
            raise MemoryError(f"{length} octets; {len(self.octets) - start} are left")
        address = self._map(self._address + start, length)
        assert address == self.base + start
        self._free = (start + length + 2 * PAGE - 1) // PAGE * PAGE
        return address

    def release(self) -> None:
        """Take everything away from the NIC; it is not allocated again."""
        for mapping in self._space.mappings:
            self._unmap(mapping.dma_address)

    @property
    def allocated(self) -> list[slice]:
        """Where in ``octets`` the NIC may read and write."""
        return [
            slice(item.dma_address - self.base, item.end - self.base)
            for item in self._space.mappings
        ]

    def _map(self, address: int, length: int) -> int:
        return self._space.map(address, length, True).dma_address

    def _unmap(self, address: int) -> None:
        self._space.unmap(address)

    def _place(self, address: int, length: int) -> int:
        if self._space.find(address, length) is None:
            fault = f"{length} octets at {address:#x} are not allocated"
            self.faults.append(fault)
            raise MemoryFault(fault)
        return address - self.base


class _RtlArena(Arena):
    """The same for a NIC of the rtl form: the addresses are those of its device."""

    def __init__(self, nic: RtlNic, seed: int) -> None:
        super().__init__(seed)
        self._device = nic.device

    def _map(self, address: int, length: int) -> int:
        found = super()._map(address, length)
        assert self._device.map(address, length) == found
        return found

    def _unmap(self, address: int) -> None:
        super()._unmap(address)
        self._device.unmap(address)


class RtlSide:
    """A fresh NIC of the rtl form. Frames arrive back to back."""

    def __init__(
        self,
        parameters: Parameters,
        seed: int,
        *,
        read_latency: int = 8,
        write_latency: int = 8,
    ) -> None:
        self.nic = RtlNic(parameters, read_latency=read_latency, write_latency=write_latency)
        self.memory = _RtlArena(self.nic, seed)
        self.sent: list[bytes] = []
        self._wire_free = 0  # cycle from which nothing is left to arrive

    @property
    def time(self) -> int:
        return self.nic.time

    @property
    def wire_free(self) -> int:
        """Cycle in which the last frame of :meth:`receive` has arrived, gap included."""
        return self._wire_free

    def faults(self) -> list[str]:
        """What the NIC did and must not, since the last call."""
        return [str(fault) for fault in self.nic.device.take_faults()]

    async def read32(self, address: int) -> int:
        return self.nic.device.read32(address)

    async def read_each(self, addresses: Sequence[int]) -> list[int]:
        return [self.nic.device.read32(address) for address in addresses]

    async def write32(self, address: int, value: int) -> None:
        self.nic.device.write32(address, value)

    def receive(self, frame: bytes, error_beat: int | None = None) -> None:
        """``error_beat`` is None, or the MAC flags the frame (on its last beat, whatever it is)."""
        self.nic.device.inject(frame, error=error_beat is not None)
        self._wire_free = max(self._wire_free, self.nic.time) + wire_cycles(frame)

    async def delivered(self) -> None:
        await self.wait(max(0, self._wire_free - self.nic.time))

    async def wait(self, cycles: int) -> None:
        self.nic.run(cycles)
        self.sent += [record.frame for record in self.nic.records()]

    @property
    def irq(self) -> bool:
        return self.nic.device.interrupt

    def close(self) -> None:
        self.nic.close()


class InstantModel(ModelSide):
    """The model in an arena. ``rnic`` makes it: a class of the reference model's interface."""

    def __init__(self, parameters: Parameters, seed: int, rnic: type[Rnic] = Rnic) -> None:
        super().__init__(parameters, Arena(seed))
        self.nic = self._nic = rnic(parameters, self.memory)

    async def write32(self, address: int, value: int) -> None:
        self.nic.write32(address, value)
        if address in _MAY_SEND or address >= _DOORBELLS:
            self._collect()

    def receive(self, frame: bytes, error_beat: int | None = None) -> None:
        self.nic.receive(frame, error_beat is not None)
        self._collect()

    @property
    def time(self) -> int:
        return self.nic.time

    @property
    def wire_free(self) -> int:
        return self.nic.time

    def faults(self) -> list[str]:
        """Addresses that the model tried and that are not allocated, since the last call."""
        found, self.memory.faults = self.memory.faults, []
        return found

    def close(self) -> None:
        pass
