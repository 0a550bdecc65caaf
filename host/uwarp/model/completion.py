"""Completion queues, their reservations and the interrupt (device behaviour, section 6)."""

from __future__ import annotations

from dataclasses import dataclass

from uwarp.contract import (
    CQ_ENTRY,
    CQE,
    MODERATION_ENTRY,
    TICK_CYCLES,
    Counter,
    CqeFlag,
    Doorbell,
    EventType,
    Status,
)

from .clock import Clock, time_fields
from .dma import Dma
from .events import EventRing
from .ring import entry_address

__all__ = ["CompletionQueues"]

_LAST_WORD = CQE.offset("source_port") // 8  # the 64-bit word that ends with the phase bit


@dataclass
class _Queue:
    """One CQ: its row, 32-bit free-running indices, reserved slots, and the arm.

    ``armed`` is the doorbell that armed it, ``first`` the tick of the first CQE since then,
    ``full_told`` whether a CQ_FULL event has been raised that no doorbell followed.
    """

    valid: bool = False
    log2: int = 0
    addr: int = 0
    producer: int = 0
    consumer: int = 0
    reserved: int = 0
    armed: Doorbell | None = None
    armed_at: int = 0
    first: int | None = None
    full_told: bool = False

    @property
    def free(self) -> int:
        if not self.valid:
            return 0
        used = (self.producer - self.consumer) & 0xFFFF_FFFF
        return (1 << self.log2) - used - self.reserved

    @property
    def new(self) -> int:
        return (self.producer - self.armed_at) & 0xFFFF_FFFF


@dataclass(frozen=True)
class _Moderation:
    """A row of the moderation table."""

    count: int
    ticks: int


class CompletionQueues:
    """All CQs. A number beyond the table is a queue that never has a free slot."""

    def __init__(
        self, number: int, dma: Dma, events: EventRing, clock: Clock, counters: list[int]
    ) -> None:
        self._dma = dma
        self._events = events
        self._clock = clock
        self._counters = counters
        self._queues = [_Queue() for _ in range(number)]
        self._moderation = [_Moderation(0, 0)] * number
        self.fired = [0] * ((number + 31) // 32)  # IRQ_STATUS

    def load(self, number: int, value: int) -> None:
        """Write a row of the CQ table."""
        row = CQ_ENTRY.from_int(value)
        self._queues[number] = _Queue(valid=bool(row.valid), log2=row.log2, addr=row.addr)
        self.fired[number // 32] &= ~(1 << number % 32)

    def load_moderation(self, number: int, value: int) -> None:
        """Write a row of the moderation table."""
        self._moderation[number] = _Moderation(**vars(MODERATION_ENTRY.from_int(value)))
        self._moderate(number)

    def has_room(self, number: int) -> bool:
        return number < len(self._queues) and self._queues[number].free > 0

    def tell_full(self, number: int) -> None:
        """A datagram was dropped for want of a slot. A CQ that is not there has no events."""
        if number < len(self._queues) and not self._queues[number].full_told:
            self._queues[number].full_told = True
            self._events.post(EventType.CQ_FULL, number)

    def reserve(self, number: int) -> None:
        self._queues[number].reserved += 1

    def release(self, number: int) -> None:
        queue = self._queues[number]
        # The row may have been written since the slot was reserved: it gave all of them back.
        queue.reserved = max(0, queue.reserved - 1)

    def write(self, number: int, fields: dict[str, int], *, reserved: bool = False) -> None:
        """Write a CQE of ``fields``, into a reserved slot or into one that ``has_room`` promised.

        A completion for a queue whose row is not valid any more is lost.
        """
        if reserved:
            self.release(number)
        queue = self._queues[number]
        if not queue.valid:
            return
        cqe = CQE.pack(
            **fields,
            **time_fields(self._clock.time),
            phase=1 - (queue.producer >> queue.log2 & 1),
        )
        address = entry_address(queue.addr, CQE.size, queue.log2, queue.producer)
        if self._dma.write_in_two(address, cqe, _LAST_WORD):
            self._events.post(EventType.DMA_CQE, number)
        queue.producer = (queue.producer + 1) & 0xFFFF_FFFF
        self._counters[Counter.CQES] += 1
        if fields["status"] == Status.PARTIAL:
            self._counters[Counter.MESSAGES_PARTIAL] += 1
        if queue.first is None:
            queue.first = self._clock.tick
        if fields.get("flags", 0) & CqeFlag.SOLICITED or fields["status"] != Status.SUCCESS:
            self._fire(number)
        else:
            self._moderate(number)

    def consume(self, number: int, index: int) -> None:
        """The doorbell CQ_CONSUMER, which is part of the others, too."""
        queue = self._queues[number]
        queue.consumer = index
        queue.full_told = False

    def arm(self, number: int, index: int, doorbell: Doorbell) -> None:
        """The doorbells CQ_ARM and CQ_ARM_SOLICITED."""
        self.consume(number, index)
        queue = self._queues[number]
        queue.armed = doorbell
        queue.armed_at = index
        queue.first = None
        if queue.new:
            self._fire(number)

    def next_due(self) -> int | None:
        """Clock cycle in which moderation lets the next CQ fire, if no CQE is written."""
        dues = (self._due(number) for number in range(len(self._queues)))
        return min((due for due in dues if due is not None), default=None)

    def fire_due(self) -> None:
        """Fire what moderation has held back long enough."""
        for number in range(len(self._queues)):
            self._moderate(number)

    def _due(self, number: int) -> int | None:
        queue, ticks = self._queues[number], self._moderation[number].ticks
        if queue.armed is not Doorbell.CQ_ARM or queue.first is None or not ticks:
            return None
        return (queue.first + ticks) * TICK_CYCLES

    def _moderate(self, number: int) -> None:
        """Fire if moderation allows."""
        queue = self._queues[number]
        if queue.armed is not Doorbell.CQ_ARM or not queue.new:
            return
        due = self._due(number)
        enough = queue.new >= self._moderation[number].count
        if enough or (due is not None and due <= self._clock.cycles):
            self._fire(number)

    def _fire(self, number: int) -> None:
        queue = self._queues[number]
        if queue.armed is not None:
            queue.armed = None
            self.fired[number // 32] |= 1 << number % 32
