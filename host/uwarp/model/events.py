"""The event ring (device behaviour, 6.5)."""

from __future__ import annotations

from dataclasses import dataclass

from uwarp.contract import EVENT, EVENT_TIME_LOG2, Counter, EventType

from .clock import Clock, time_fields
from .dma import Dma
from .ring import entry_address

__all__ = ["EventRing"]


@dataclass
class EventRing:
    """The ring's registers, its 32-bit free-running indices, and who writes to it."""

    dma: Dma
    clock: Clock
    counters: list[int]
    addr: int = 0
    log2: int = 0
    in_use: bool = False
    producer: int = 0
    consumer: int = 0
    status: int = 0  # EVENT_STATUS

    def set_up(self, log2: int, in_use: bool) -> None:
        """Write EVENT_RING: the ring starts anew."""
        self.log2, self.in_use = log2, in_use
        self.producer = self.consumer = 0

    def post(self, kind: EventType, number: int, **fields: int) -> None:
        """Write an event, or lose it; ``fields`` are those that only its kind has."""
        size = 1 << self.log2
        if not self.in_use or (self.producer - self.consumer) & 0xFFFF_FFFF == size:
            self.counters[Counter.EVENTS_LOST] += 1
            return
        phase = 1 - (self.producer >> self.log2 & 1)
        octets = EVENT.pack(
            type=kind,
            number=number,
            **fields,
            **time_fields(self.clock.time >> EVENT_TIME_LOG2),
            phase=phase,
        )
        self.counters[Counter.EVENTS] += 1
        self.dma.write(entry_address(self.addr, EVENT.size, self.log2, self.producer), octets)
        self.producer = (self.producer + 1) & 0xFFFF_FFFF
        self.status = 1
