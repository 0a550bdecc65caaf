"""The model form: two software NICs joined by a wire, in the time of the wire.

A NIC's own work takes no time here; frames take theirs, and a register access ``ACCESS_CYCLES``, so
that a loop that polls a register ends. Time passes from event to event: a frame that begins, one
that arrives, held frames that are let go, a tick.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from abc import abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from uwarp.contract import TICK_CYCLES, Parameters
from uwarp.model import MemoryFault, Rnic, Way
from uwarp.wire import FRAME_OVERHEAD, MIN_FRAME

from .base import Device, DeviceError, Fate, Impairments, WireRecord
from .impair import IDLE_CYCLES, Direction
from .memory import AddressSpace, DmaFault
from .wire import (
    PROGRESS_CYCLES,
    WIRE_CYCLES,
    DirectionStatistics,
    Pace,
    parse_frame,
)

__all__ = ["ModelDevice", "ModelLink", "WiredDevice"]

ACCESS_CYCLES = 8


class _Memory:
    """The memory of one NIC, as the model wants it."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.space = AddressSpace()
        self.faults: list[DmaFault] = []
        self._now = now

    def read(self, address: int, length: int) -> bytes:
        octets = self.space.read(address, length)
        if octets is None:
            raise self._fault(address, "DMA read of an address that is not mapped")
        return octets

    def write(self, address: int, data: bytes) -> None:
        if not self.space.write(address, data):
            mapped = self.space.find(address, len(data)) is not None
            raise self._fault(
                address,
                "DMA write into a mapping that is read only"
                if mapped
                else "DMA write to an address that is not mapped",
            )

    def _fault(self, address: int, kind: str) -> MemoryFault:
        fault = DmaFault(self._now(), address, kind)
        self.faults.append(fault)
        return MemoryFault(str(fault))


class WiredNic(Protocol):
    """What the wire of a :class:`ModelLink` gives frames to, and takes them from."""

    def receive(self, frame: bytes, error: bool = False) -> None: ...

    def transmit(self) -> tuple[bytes, Way] | None: ...

    def advance(self, cycles: int) -> None:
        """Follow the wire, whose time is ``cycles`` more than it was."""


class WiredDevice(Device):
    """One NIC of a :class:`ModelLink`, whatever it is made of: what is the same of all."""

    form: str
    rnic: WiredNic

    def __init__(self, link: ModelLink, index: int) -> None:
        self._link = link
        self._index = index
        self.sent = DirectionStatistics()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def name(self) -> str:
        return f"{self.form}{self._index}"

    @abstractmethod
    def take_faults(self) -> list[DmaFault]:
        """What the NIC did to memory and must not, since the last call."""

    def progress(self) -> None:
        self._link.run(PROGRESS_CYCLES)

    def check(self) -> None:
        """Raise DeviceError if the NIC did what it must not since the last look."""
        faults = self.take_faults()
        if faults:
            raise DeviceError(f"{self.name}: {faults[0]} (the first of {len(faults)})")

    def inject(self, frame: bytes, *, error: bool = False) -> None:
        """Let a frame arrive that no NIC has sent: as it is, past impairments and records."""
        octets = parse_frame(frame)
        with self._link._lock:
            self._link._arrive(self._index, self._link._time, octets, error)

    def close(self) -> None:
        """Close the link: the NICs share a clock."""
        self._link.close()


class ModelDevice(WiredDevice):
    """A software NIC. Implements :class:`~uwarp.device.base.Device`."""

    form = "model"
    rnic: Rnic

    def __init__(self, link: ModelLink, index: int) -> None:
        super().__init__(link, index)
        self._memory = _Memory(lambda: link._time)
        self.rnic = Rnic(link.parameters, self._memory)

    def read32(self, address: int) -> int:
        with self._link._lock:
            self._link.run(ACCESS_CYCLES)
            return int(self.rnic.read32(address))

    def write32(self, address: int, value: int) -> None:
        with self._link._lock:
            self._link.run(ACCESS_CYCLES)
            self.rnic.write32(address, value)

    def map(self, address: int, length: int, *, writable: bool = True) -> int:
        with self._link._lock:
            return self._memory.space.map(address, length, writable).dma_address

    def unmap(self, dma_address: int) -> None:
        with self._link._lock:
            self._memory.space.unmap(dma_address)

    @property
    def interrupt(self) -> bool:
        return bool(self.rnic.irq)

    def take_faults(self) -> list[DmaFault]:
        """What the NIC did to memory and must not, since the last call."""
        faults = list(self._memory.faults)
        self._memory.faults.clear()
        return faults


class ModelLink:
    """Two software NICs joined by a wire.

    Parameters
    ----------
    parameters : sizes of the NICs' tables.
    impairments : what the wire does to frames.
    """

    def __init__(
        self, parameters: Parameters | None = None, impairments: Impairments | None = None
    ) -> None:
        self.parameters = parameters or Parameters()
        self.impairments = impairments or Impairments()
        self._lock = threading.RLock()
        self._time = 0
        self._closed = False
        self._sides = (_Side(self.impairments, 0), _Side(self.impairments, 1))
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._records: list[WireRecord] = []
        self._devices = (self._make_device(0), self._make_device(1))

    def __repr__(self) -> str:
        return f"<ModelLink {'closed' if self._closed else 'open'}>"

    def _make_device(self, index: int) -> WiredDevice:
        return ModelDevice(self, index)

    @property
    def devices(self) -> tuple[WiredDevice, WiredDevice]:
        return self._devices

    @property
    def time(self) -> int:
        return self._time

    def run(self, cycles: int) -> None:
        if cycles < 0:
            raise ValueError(f"cannot run {cycles} cycles")
        with self._lock:
            if self._closed:
                raise DeviceError("the link is closed")
            end = self._time + cycles
            while True:
                self._settle()
                if self._time >= end:
                    break
                self._advance(min(end, self._next_event()) - self._time)

    def _settle(self) -> None:
        """All that is due now."""
        while True:
            if self._events and self._events[0][0] <= self._time:
                heapq.heappop(self._events)[2]()
            elif not any([self._send(0), self._send(1)]):
                return

    def _send(self, source: int) -> bool:
        """Begin the next frame of a NIC, if the wire is free and the NIC has one."""
        side = self._sides[source]
        if side.pace.next > self._time:
            return False
        device = self._devices[source]
        sent = device.rnic.transmit()
        if sent is None:
            return False
        frame, way = sent
        frame = bytes(frame).ljust(MIN_FRAME, b"\0")
        side.pace.begin(self._time, len(frame))
        if Way.LOOP in way:
            self._arrive(source, self._time, frame, False)
        if Way.MAC not in way:
            return True
        device.sent.frames += 1
        device.sent.octets += len(frame)
        device.sent.wire_octets += len(frame) + FRAME_OVERHEAD
        left = self._time + -(-len(frame) // 8) - 1
        self._at(left, lambda: self._leave(source, left, frame))
        return True

    def _leave(self, source: int, time: int, frame: bytes) -> None:
        side = self._sides[source]
        self._deliver(source, time, side.fates.offer((time, frame)))
        side.last = time
        if side.fates.holds:
            self._at(time + IDLE_CYCLES, lambda: self._idle(source, time))

    def _idle(self, source: int, last: int) -> None:
        side = self._sides[source]
        if side.last == last and side.fates.holds:
            self._deliver(source, last + IDLE_CYCLES, side.fates.release())

    def _deliver(
        self, source: int, time: int, outcome: list[tuple[Fate, tuple[int, bytes]]]
    ) -> None:
        sent = self._devices[source].sent
        for fate, (left, frame) in outcome:
            self._records.append(WireRecord(left, source, fate, frame))
            if fate is Fate.DROPPED:
                sent.dropped += 1
            else:
                sent.delivered += 1
                self._arrive(1 - source, time + WIRE_CYCLES, frame, False)

    def _arrive(self, target: int, time: int, frame: bytes, error: bool) -> None:
        """A frame begins to arrive at ``time``, or once the frames before it have arrived."""
        pace = self._sides[target].arrivals
        start = max(time, pace.next)
        pace.begin(start, len(frame))
        rnic = self._devices[target].rnic
        self._at(start + -(-len(frame) // 8), lambda: rnic.receive(frame, error))

    def _at(self, time: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def _next_event(self) -> int:
        times = [self._time - self._time % TICK_CYCLES + TICK_CYCLES]
        if self._events:
            times.append(self._events[0][0])
        times += [side.pace.next for side in self._sides if side.pace.next > self._time]
        return min(times)

    def _advance(self, cycles: int) -> None:
        self._time += cycles
        for device in self._devices:
            device.rnic.advance(cycles)

    def records(self) -> list[WireRecord]:
        """Frames, in the order of delivery or loss, each with the time when it left."""
        with self._lock:
            records, self._records = self._records, []
            return records

    def check(self) -> None:
        """Raise DeviceError if a NIC did what it must not since the last look."""
        for device in self._devices:
            device.check()

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Side:
    """What belongs to one NIC's end of the wire."""

    def __init__(self, impairments: Impairments, source: int) -> None:
        self.pace = Pace()
        self.arrivals = Pace()
        self.fates: Direction[tuple[int, bytes]] = Direction(impairments, source)
        self.last = 0  # when its last frame left
