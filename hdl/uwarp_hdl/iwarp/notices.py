"""What software is told about CQs, in order with the CQEs in memory.

::

    notice --> queue --> head, when the CQEs before it are in memory --> irq_set, irq_clear
    done, error --> answers not yet used --------^                  '--> event_requests

A notice that waits for nothing comes out 3 cycles after it went in.
"""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import EventType

from ..data_register import data_fields, data_register
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

    Parameters
    ----------
    n_cq : int

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

    def __init__(self, n_cq: int) -> None:
        self._cq_width = (n_cq - 1).bit_length()
        super().__init__(
            {
                "notice": In(Notice),
                "has_room": Out(1),
                "done": In(1),
                "error": In(1),
                "irq_set": Out(1),
                "irq_clear": Out(1),
                "irq_cq": Out(16),
                "unanswered": Out(range(NOTICES + 1)),
                "event_requests": Out(stream.Signature(EventRequest)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        notice = data_fields(Notice, "notice", reset=("is_write", "set", "clear"))
        m.d.sync += notice.eq(self.notice)
        # Kept as wide as the number of a CQ that exists.
        kept = data.StructLayout({"is_write": 1, "set": 1, "clear": 1, "cq": self._cq_width})
        m.submodules.queue = queue = Queue(kept, NOTICES)
        head = queue.o.payload
        # Of each answer not yet used: whether it is an error. No more than there are notices.
        m.submodules.answers = answers = memory.Memory(shape=1, depth=NOTICES, init=[])
        put, get = answers.write_port(), answers.read_port(domain="comb")
        is_answered = Signal()
        used_next = Signal.like(get.addr)
        told = self.event_requests
        due = queue.o.valid & (~head.is_write | is_answered) & ~told.valid
        used = due & head.is_write
        with m.If(used):
            m.d.sync += [get.addr.eq(used_next), is_answered.eq(used_next != put.addr)]
        with m.If(self.done):
            m.d.sync += [put.addr.eq(put.addr + 1), is_answered.eq(1)]
        m.d.comb += [
            used_next.eq(get.addr + 1),
            put.data.eq(self.error),
            put.en.eq(self.done),
            *(queue.i.payload[name].eq(notice[name]) for name in kept.members),
            queue.i.valid.eq(notice.is_write | notice.set | notice.clear),
            queue.o.ready.eq(due),
            told.payload.type.eq(EventType.DMA_CQE),
        ]
        number, irq_cq = data_register(m, told.payload.number), data_register(m, self.irq_cq)
        with m.If(told.ready):
            m.d.sync += told.valid.eq(0)
        with m.If(due):
            m.d.sync += [
                told.valid.eq(head.is_write & get.data),
                number.eq(head.cq),
            ]
        m.d.sync += [
            self.has_room.eq(queue.level < NOTICES - 5),
            self.irq_set.eq(due & head.set),
            self.irq_clear.eq(due & head.clear),
            irq_cq.eq(head.cq),
        ]
        with m.If(notice.is_write & ~used):
            m.d.sync += self.unanswered.eq(self.unanswered + 1)
        with m.Elif(used & ~notice.is_write):
            m.d.sync += self.unanswered.eq(self.unanswered - 1)
        return m
