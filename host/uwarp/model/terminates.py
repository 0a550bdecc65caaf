"""Terminates: what peers report, and what a QP reports to them (7.11)."""

from __future__ import annotations

from dataclasses import dataclass

from uwarp.contract import (
    TERMINATE_CODES,
    TERMINATE_TICKS,
    Counter,
    Terminated,
)
from uwarp.wire import Opcode, QueueNumber, Segment, Terminate

from .answers import Answer, Answers
from .clock import Clock
from .tables import QueuePair
from .verdict import Datagram

__all__ = ["Report", "Reporter", "kind_of"]


@dataclass(kw_only=True)
class Report(Answer):
    """A Terminate that waits. ``code`` is the upper half of its control word."""

    code: int

    def segment(self) -> Segment:
        body = Terminate.of(self.code).encode()
        return Segment(
            opcode=Opcode.TERMINATE,
            payload=body,
            qn=QueueNumber.TERMINATE,
            msn=self.msn,
            mlen=len(body),
        )


class Reporter:
    """Makes a Terminate of a datagram that was dropped, where it is asked for and not too often."""

    def __init__(self, clock: Clock, answers: Answers) -> None:
        self._clock = clock
        self._answers = answers
        self._last: int | None = None

    def report(self, qp: QueuePair, datagram: Datagram, counter: Counter) -> None:
        """A datagram has ended in ``counter``."""
        if not qp.row.terminate or not qp.row.sends or counter not in TERMINATE_CODES:
            return
        if datagram.segment.opcode is Opcode.TERMINATE or datagram.is_copy:
            return
        tick = self._clock.tick
        if self._last is not None and tick - self._last < TERMINATE_TICKS:
            return
        if not self._answers.has_room:
            return
        self._last = tick
        code = TERMINATE_CODES[counter][kind_of(datagram)]
        self._answers.add(Report(**datagram.answer_fields(), code=code))


def kind_of(datagram: Datagram) -> Terminated:
    """The column of the list of codes."""
    if datagram.segment.tagged:
        return Terminated.TAGGED
    if datagram.segment.opcode is Opcode.READ_REQUEST:
        return Terminated.READ_REQUEST
    return Terminated.UNTAGGED
