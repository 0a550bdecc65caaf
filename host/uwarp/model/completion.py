"""Completion queues, their reservations and the interrupt (device behaviour, section 6)."""

from __future__ import annotations

from dataclasses import dataclass

from uwarp.contract import CQ_ENTRY, CQE, Counter, Status

from .clock import Clock
from .memory import Memory, try_write

__all__ = ["CompletionQueues"]

_LAST_WORD = CQE.offset("source_port") // 8  # the 64-bit word that ends with the phase bit


@dataclass
class _Queue:
    """One CQ: its row, 32-bit free-running indices, reserved slots, and the arm."""

    valid: bool = False
    log2: int = 0
    addr: int = 0
    producer: int = 0
    consumer: int = 0
    reserved: int = 0
    armed: bool = False
    armed_at: int = 0

    @property
    def free(self) -> int:
        if not self.valid:
            return 0
        used = (self.producer - self.consumer) & 0xFFFF_FFFF
        return (1 << self.log2) - used - self.reserved


class CompletionQueues:
    """All CQs. A number beyond the table is a queue that never has a free slot."""

    def __init__(self, number: int, memory: Memory, clock: Clock, counters: list[int]) -> None:
        self._memory = memory
        self._clock = clock
        self._counters = counters
        self._queues = [_Queue() for _ in range(number)]
        self.fired = [0] * ((number + 31) // 32)  # IRQ_STATUS

    def load(self, number: int, value: int) -> None:
        """Write a row of the CQ table."""
        row = CQ_ENTRY.from_int(value)
        self._queues[number] = _Queue(valid=bool(row.valid), log2=row.log2, addr=row.addr)
        self.fired[number // 32] &= ~(1 << number % 32)

    def has_room(self, number: int) -> bool:
        return number < len(self._queues) and self._queues[number].free > 0

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
        time = self._clock.time
        cqe = CQE.pack(
            **fields,
            time_low=time & 0x7FFF_FFFF,
            time_high=time >> 31,
            phase=1 - (queue.producer >> queue.log2 & 1),
        )
        address = queue.addr + CQE.size * (queue.producer & (1 << queue.log2) - 1)
        try_write(self._memory, address, cqe[:_LAST_WORD])
        try_write(self._memory, address + _LAST_WORD, cqe[_LAST_WORD:])
        queue.producer = (queue.producer + 1) & 0xFFFF_FFFF
        self._counters[Counter.CQES] += 1
        if fields.get("status") == Status.PARTIAL:
            self._counters[Counter.MESSAGES_PARTIAL] += 1
        self._fire(number)

    def consume(self, number: int, index: int, *, arm: bool) -> None:
        """The doorbells CQ_CONSUMER and CQ_ARM."""
        queue = self._queues[number]
        queue.consumer = index
        if arm:
            queue.armed = True
            queue.armed_at = index
            self._fire(number)

    def _fire(self, number: int) -> None:
        queue = self._queues[number]
        if queue.armed and queue.producer != queue.armed_at:
            queue.armed = False
            self.fired[number // 32] |= 1 << number % 32
