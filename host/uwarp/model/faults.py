"""DMA on behalf of a queue pair, and what its errors mean for it (device behaviour, 8.1, 8.2)."""

from __future__ import annotations

from uwarp.contract import EventType

from .dma import Dma
from .events import EventRing
from .tables import QueuePair

__all__ = ["QpDma"]


class QpDma:
    """Every burst that fails is an event; after a failed write the QP has failed."""

    def __init__(self, dma: Dma, events: EventRing) -> None:
        self._dma = dma
        self._events = events

    def write(self, qp: QueuePair, address: int, octets: bytes) -> None:
        """Write payload or a map."""
        for _ in range(self._dma.write(address, octets)):
            qp.failed = True
            self._events.post(EventType.DMA_WRITE, qp.number)

    def read(self, qp: QueuePair, address: int, length: int) -> bytes | None:
        """Read a WQE or payload; None if not all of it could be read."""
        octets, errors = self._dma.read(address, length)
        for _ in range(errors):
            self._events.post(EventType.DMA_READ, qp.number)
        return None if errors else octets
