"""What software is told about CQs, in order with the CQEs in memory.

::

    notice --> queue --> head, when the CQEs before it are in memory --> irq_set, irq_clear
    done, error --> answers not yet used --------^                  '--> event_requests

A notice that waits for nothing comes out 3 cycles after it went in.
"""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import EventType

from ..layouts import EventRequest
from ..stream.queue import Queue

__all__ = ["NOTICES", "Notice", "NoticeQueue"]

#: CQEs and interrupts that wait for answers of the bus.
NOTICES = 32


class Notice(data.Struct):
    """What happens when all CQEs before it, and itself if ``is_write``, are in memory."""

    is_write: 1
    set: 1
    clear: 1
    cq: 16


class NoticeQueue(wiring.Component):
    """Hold interrupts back until the CQEs that they speak of are in memory.

    Members
    -------
    notice : In(Notice)
        Queued in each cycle in which it is not empty (``is_write``, ``set`` or ``clear``).
    has_room : Out(1)
        Notices of four further operations have room.
    done, error : In(1)
        A CQE is in memory, in the order of their notices; or, with ``error``, its write has failed.
    irq_set, irq_clear : Out(1)
    irq_cq : Out(16)
    unanswered : Out
        CQEs announced and not in memory, 0 to ``NOTICES``.
    event_requests : Out(stream of EventRequest)
        For each CQE whose write has failed; no later notice comes out before it is taken.
    """

    notice: In(Notice)
    has_room: Out(1)
    done: In(1)
    error: In(1)
    irq_set: Out(1)
    irq_clear: Out(1)
    irq_cq: Out(16)
    unanswered: Out(range(NOTICES + 1))
    event_requests: Out(stream.Signature(EventRequest))

    def elaborate(self, platform):
        m = Module()
        notice = Signal(Notice)
        m.d.sync += notice.eq(self.notice)
        m.submodules.queue = queue = Queue(Notice, NOTICES)
        head = queue.o.payload
        # Of each answer: whether it is an error.
        m.submodules.answers = answers = Queue(1, NOTICES)
        told = self.event_requests
        due = queue.o.valid & (~head.is_write | answers.o.valid) & ~told.valid
        used = due & head.is_write
        m.d.comb += [
            queue.i.payload.eq(notice),
            queue.i.valid.eq(notice.is_write | notice.set | notice.clear),
            queue.o.ready.eq(due),
            answers.i.payload.eq(self.error),
            answers.i.valid.eq(self.done),
            answers.o.ready.eq(used),
            told.payload.type.eq(EventType.DMA_CQE),
        ]
        with m.If(told.ready):
            m.d.sync += told.valid.eq(0)
        with m.If(due):
            m.d.sync += [
                told.valid.eq(head.is_write & answers.o.payload),
                told.payload.number.eq(head.cq),
            ]
        m.d.sync += [
            self.has_room.eq(queue.level < NOTICES - 5),
            self.irq_set.eq(due & head.set),
            self.irq_clear.eq(due & head.clear),
            self.irq_cq.eq(head.cq),
        ]
        with m.If(notice.is_write & ~used):
            m.d.sync += self.unanswered.eq(self.unanswered + 1)
        with m.Elif(used & ~notice.is_write):
            m.d.sync += self.unanswered.eq(self.unanswered - 1)
        return m
