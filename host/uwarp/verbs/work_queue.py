"""One work queue of a QP: a ring of descriptors, and who posted them."""

from __future__ import annotations

import errno

from uwarp.contract import Structure

from . import enums as e
from .errors import refuse
from .memory import Memory

__all__ = ["WorkQueue"]


class WorkQueue:
    """One work queue: its memory, its free-running indices, and the wr_id of each request in it."""

    def __init__(
        self, structure: Structure, limit: int, name: str, *, in_order: bool = True
    ) -> None:
        if not 1 <= limit <= 1 << 15:
            raise refuse(f"{name} is {limit}; it takes 1 to {1 << 15}")
        self.limit = limit
        self.in_order = in_order
        self.log2 = (limit - 1).bit_length()
        self.size = structure.size
        self.memory = Memory(structure.size << self.log2)
        self.reset()

    def reset(self) -> None:
        self.producer = self.consumer = 0
        self.requests: dict[int, tuple[int, e.ibv_wc_opcode]] = {}

    @property
    def outstanding(self) -> int:
        return self.producer - self.consumer & 0xFFFF_FFFF

    @property
    def full(self) -> bool:
        return self.outstanding >= self.limit

    def post(self, wqe: bytes, wr_id: int, opcode: e.ibv_wc_opcode) -> None:
        place = self.size * (self.producer & (1 << self.log2) - 1)
        self.memory.view[place : place + self.size] = wqe
        self.requests[self.producer] = (wr_id, opcode)
        self.producer = self.producer + 1 & 0xFFFF_FFFF

    def complete(self, low_index: int) -> int:
        """The wr_id of a completed request, given the low half of its index.

        With ``in_order`` those before it have completed too, unsignalled.
        """
        index = self.consumer + (low_index - self.consumer & 0xFFFF) & 0xFFFF_FFFF
        if index not in self.requests:
            raise refuse(
                f"the device completed request {low_index}, which is not posted", errno.EIO
            )
        wr_id = self.requests[index][0]
        if self.in_order:
            while self.consumer != index:
                del self.requests[self.consumer]
                self.consumer = self.consumer + 1 & 0xFFFF_FFFF
        del self.requests[index]
        while self.consumer != self.producer and self.consumer not in self.requests:
            self.consumer = self.consumer + 1 & 0xFFFF_FFFF
        return wr_id

    def flush(self) -> list[tuple[int, e.ibv_wc_opcode]]:
        """The requests that have not completed, oldest first; none are left."""
        requests = list(self.requests.values())
        self.requests.clear()
        self.consumer = self.producer
        return requests
