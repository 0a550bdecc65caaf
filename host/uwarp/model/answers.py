"""What a QP owes its peers: Read Responses and Terminates that wait to be sent (7.8, 7.11)."""

from __future__ import annotations

from dataclasses import dataclass

from uwarp.contract import CloseTarget
from uwarp.wire import ipv4_of

from .tables import QueuePair

__all__ = ["Answer", "Answers"]


@dataclass(kw_only=True)
class Answer:
    """To a datagram, from the QP that it came to; ``dest_ip`` has 128 bits for either family."""

    qpn: int
    dest_mac: int
    dest_ip: int
    dest_port: int
    msn: int

    @property
    def ip_version(self) -> int:
        return 6 if ipv4_of(self.dest_ip) is None else 4

    def concerns(self, target: CloseTarget, row: int) -> bool:
        """Whether it is dropped with a QP, or a region, that is closed (4.6)."""
        return target is CloseTarget.QP and self.qpn == row


class Answers:
    """Those that wait, the oldest first: from when they are made until their last segment is cut,
    ``slots`` at most."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._waiting: list[Answer] = []

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self._slots

    def add(self, answer: Answer) -> None:
        self._waiting.append(answer)

    def first_of(self, qp: QueuePair) -> Answer | None:
        return next((item for item in self._waiting if item.qpn == qp.number), None)

    def remove(self, answer: Answer) -> None:
        """It is sent, or cannot be."""
        self._waiting = [item for item in self._waiting if item is not answer]

    def forget(self, qp: QueuePair) -> None:
        """The QP was reset."""
        self.drop(CloseTarget.QP, qp.number)

    def drop(self, target: CloseTarget, row: int) -> None:
        """Drop those of a QP, or from a region (4.6)."""
        self._waiting = [item for item in self._waiting if not item.concerns(target, row)]
