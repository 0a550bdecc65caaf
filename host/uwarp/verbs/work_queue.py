"""One work queue of a QP: a ring of descriptors, and who posted them."""

from __future__ import annotations

import errno
from collections import deque
from dataclasses import dataclass

from . import enums as e
from .errors import refuse
from .memory import Memory

__all__ = ["Request", "WorkQueue"]


@dataclass(frozen=True, slots=True)
class Request:
    """Who posted a descriptor.

    Attributes
    ----------
    opcode : of its completion.
    signalled : a success is reported. The device completes some requests (Reads) anyhow.
    in_order : it completes before all later requests do, so theirs stand for its own. Reads and
        receives do not.
    """

    wr_id: int
    opcode: e.ibv_wc_opcode
    signalled: bool = True
    in_order: bool = True


class WorkQueue:
    """One work queue: its memory, its free-running indices, and the requests in it.

    Parameters
    ----------
    entry_size : octets.
    limit : requests that are posted and not completed.
    name : of the limit, for messages.
    read_once : the device reads an entry no more once a later one has completed. So a request that
        does not complete keeps no place in the ring.
    """

    def __init__(self, entry_size: int, limit: int, name: str, *, read_once: bool = False) -> None:
        if not 1 <= limit <= 1 << 15:
            raise refuse(f"{name} is {limit}; it takes 1 to {1 << 15}")
        self.limit = limit
        self.log2 = (limit - 1).bit_length()
        self.size = entry_size
        self._read_once = read_once
        self.memory = Memory(entry_size << self.log2)
        self.reset()

    def reset(self) -> None:
        self.producer = self.consumer = 0
        self.requests: dict[int, Request] = {}
        self._ordered: deque[int] = deque()  # indices of those that are in order, oldest first

    @property
    def outstanding(self) -> int:
        return self.producer - self.consumer & 0xFFFF_FFFF

    @property
    def full(self) -> bool:
        if self._read_once:
            # A completion names its request by the low half of the index.
            return len(self.requests) >= self.limit or self.outstanding >= 1 << 16
        return self.outstanding >= self.limit

    def post(self, wqe: bytes, request: Request) -> None:
        place = self.size * (self.producer & (1 << self.log2) - 1)
        self.memory.view[place : place + self.size] = wqe
        self.requests[self.producer] = request
        if request.in_order:
            self._ordered.append(self.producer)
        self.producer = self.producer + 1 & 0xFFFF_FFFF

    def complete(self, low_index: int) -> Request:
        """The request that has completed, given the low half of its index.

        Those before it that are ``in_order`` have completed too, unsignalled.
        """
        index = self.consumer + (low_index - self.consumer & 0xFFFF) & 0xFFFF_FFFF
        request = self.requests.pop(index, None)
        if request is None:
            raise refuse(
                f"the device completed request {low_index}, which is not posted", errno.EIO
            )
        passed = index - self.consumer & 0xFFFF_FFFF
        while self._ordered and self._ordered[0] - self.consumer & 0xFFFF_FFFF <= passed:
            self.requests.pop(self._ordered.popleft(), None)
        while self.consumer != self.producer and self.consumer not in self.requests:
            self.consumer = self.consumer + 1 & 0xFFFF_FFFF
        return request

    def flush(self) -> list[Request]:
        """The requests that have not completed, oldest first; none are left."""
        requests = list(self.requests.values())
        self.requests.clear()
        self._ordered.clear()
        self.consumer = self.producer
        return requests
