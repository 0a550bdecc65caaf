"""Asynchronous events of a device: the event ring, and what its entries mean to a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

from uwarp.contract import EVENT, EventType
from uwarp.wire import Terminate, ip_text

from .enums import (
    IBV_EVENT_CQ_ERR,
    IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL,
    IBV_EVENT_QP_TERMINATE,
    ibv_event_type,
)
from .memory import Memory

if TYPE_CHECKING:
    from .completion import CQ
    from .queue_pair import QP

__all__ = ["EVENT_TYPES", "AsyncEvent", "EventQueue", "TerminateReport"]

EVENT_TYPES: dict[EventType, ibv_event_type] = {
    EventType.CQ_FULL: IBV_EVENT_CQ_ERR,
    EventType.DMA_WRITE: IBV_EVENT_QP_FATAL,
    EventType.DMA_READ: IBV_EVENT_QP_ACCESS_ERR,
    EventType.DMA_CQE: IBV_EVENT_CQ_ERR,
    EventType.TERMINATE: IBV_EVENT_QP_TERMINATE,
}
_LOG2 = 8


@dataclass(frozen=True)
class TerminateReport:
    """What a peer says of a message of the QP's: it has not taken it, or a part of it.

    Attributes
    ----------
    peer_ip, peer_port : who says so. Nothing proves that it is whom the message went to.
    msn : of the message, 0 of an RDMA Write. It is the ``msn`` of the message's :class:`WC`.
    layer, etype, code : why (RFC 5040, section 4.8).
    """

    peer_ip: str
    peer_port: int
    msn: int
    layer: int
    etype: int
    code: int

    @property
    def meaning(self) -> str:
        """Why, in words: ``DDP, untagged buffer: message too long for the buffer``."""
        return Terminate(layer=self.layer, etype=self.etype, code=self.code).meaning

    @classmethod
    def of(cls, entry: SimpleNamespace) -> TerminateReport:
        """The report in an entry of the event ring."""
        told = Terminate.of(entry.code)
        return cls(
            ip_text(entry.source_ip),
            entry.source_port,
            entry.msn,
            told.layer,
            told.etype,
            told.code,
        )


@dataclass
class AsyncEvent:
    """Something that happened to a QP or a CQ, whoever asked for it.

    Attributes
    ----------
    event_type : ibv_event_type
        IBV_EVENT_QP_FATAL: memory did not take what the QP received. It is in IBV_QPS_ERR since
        then, and its work requests have been flushed: bring it to IBV_QPS_RESET and up again.
        IBV_EVENT_QP_ACCESS_ERR: memory did not give a work request or the octets to send; the
        completion of that request has the error. Or it did not give octets that a peer reads, who
        will miss them. The QP goes on.
        IBV_EVENT_CQ_ERR: see ``cause``. The CQ goes on.
        IBV_EVENT_QP_TERMINATE: a peer has not taken something that the QP sent, see ``report``. The
        QP goes on.
    cause : EventType
        The device's own word: CQ_FULL, datagrams were dropped because nobody polled the CQ;
        DMA_CQE, memory did not take a completion, which is lost; DMA_WRITE; DMA_READ;
        TERMINATE.
    qp, cq : whose event it is; the other one is None.
    time : in cycles of the device's clock, rounded down to 256.
    report : of IBV_EVENT_QP_TERMINATE, else None.
    """

    event_type: ibv_event_type
    cause: EventType
    qp: QP | None
    cq: CQ | None
    time: int
    report: TerminateReport | None = None
    acknowledged: bool = False

    def ack(self) -> None:
        """Acknowledge the event, as the verbs API has it. There is nothing to free here."""
        self.acknowledged = True


class EventQueue:
    """The event ring in host memory."""

    def __init__(self) -> None:
        self.log2 = _LOG2
        self.memory = Memory(EVENT.size << _LOG2)
        self.consumer = 0

    def take(self) -> Iterator[SimpleNamespace]:
        """Entries that the device has written since the last look."""
        while True:
            place = EVENT.size * (self.consumer & (1 << self.log2) - 1)
            entry = EVENT.unpack(self.memory.view[place : place + EVENT.size])
            if entry.phase == self.consumer >> self.log2 & 1:
                return
            self.consumer = self.consumer + 1 & 0xFFFF_FFFF
            yield entry
