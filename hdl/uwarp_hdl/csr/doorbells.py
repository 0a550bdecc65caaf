"""Doorbells: from their pages, and from table commands, to the units that serve them.

::

    access --> page and register decoded --+--> queue --> send       (RingDoorbell)
    post_* (table commands) ---------------+--> queue --> receive    (RingDoorbell)
                                           +--> queue --> completion (CqDoorbell)

Addresses are decoded in the cycle before their access. A doorbell is queued in the cycle in which
its access begins, and offered to its unit in the next. An access waits only while its queue is
full.
"""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import DOORBELL_BASE, DOORBELL_PAGE, Doorbell, Parameters

from ..layouts import CQ_ROW, CqDoorbell, RingDoorbell
from ..stream.queue import Queue
from .bus import AccessSignature

__all__ = ["DEPTH", "CqPost", "DoorbellPages"]

#: Doorbells that wait for a unit.
DEPTH = 16

_PAGE_LOG2 = DOORBELL_PAGE.bit_length() - 1


class CqPost(data.Struct):
    """A ``CqDoorbell`` without its row: that is not queued, since its writer waits for it."""

    cq: 16
    index: 32
    arm: 1
    solicited: 1
    reset: 1
    moderate: 1


class DoorbellPages(wiring.Component):
    """Doorbells, in small queues.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    access : In(AccessSignature())
        Writes to addresses from ``DOORBELL_BASE``. Those to other registers, to pages beyond the
        last, or while ``busy`` do nothing.
    busy : In(1)
    post_send, post_receive : In(stream.Signature(RingDoorbell))
    post_completion : In(stream.Signature(CqPost))
        Of table commands, never during a doorbell's access.
    row : In(CQ_ROW)
        Goes with a completion doorbell that has ``reset``; held until it is taken.
    send, receive : Out(stream.Signature(RingDoorbell))
    completion : Out(stream.Signature(CqDoorbell))
    empty : Out(1)
        Every doorbell has been taken.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        super().__init__(
            {
                "access": In(AccessSignature()),
                "busy": In(1),
                "post_send": In(stream.Signature(RingDoorbell)),
                "post_receive": In(stream.Signature(RingDoorbell)),
                "post_completion": In(stream.Signature(CqPost)),
                "row": In(CQ_ROW),
                "send": Out(stream.Signature(RingDoorbell)),
                "receive": Out(stream.Signature(RingDoorbell)),
                "completion": Out(stream.Signature(CqDoorbell)),
                "empty": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        access = self.access
        # Numbers are stored as wide as they get.
        number_width = (self._parameters.n_qp - 1).bit_length()
        ring_doorbell = data.StructLayout({"number": number_width, "index": 32, "reset": 1})
        cq_doorbell = data.StructLayout(
            {
                "number": number_width,
                "index": 32,
                "arm": 1,
                "solicited": 1,
                "reset": 1,
                "moderate": 1,
            }
        )
        send, receive = (Queue(ring_doorbell, DEPTH, registered=False) for _ in range(2))
        completion = Queue(cq_doorbell, DEPTH, registered=False)
        m.submodules.send_queue = send
        m.submodules.receive_queue = receive
        m.submodules.completion_queue = completion

        page = Signal(range(self._parameters.n_qp))
        page_ahead = access.ahead[_PAGE_LOG2:] - (DOORBELL_BASE >> _PAGE_LOG2)
        in_range = (page_ahead >= 0) & (page_ahead < self._parameters.n_qp)
        offset = access.ahead[2:_PAGE_LOG2]
        rings = {doorbell: Signal(name=doorbell.name.lower()) for doorbell in Doorbell}
        with m.If(access.begins):
            m.d.sync += page.eq(page_ahead)
            for doorbell, signal in rings.items():
                m.d.sync += signal.eq(in_range & (offset == doorbell.value >> 2))
        arm, solicited = rings[Doorbell.CQ_ARM], rings[Doorbell.CQ_ARM_SOLICITED]
        waits = Signal()
        m.d.sync += access.done.eq(access.request & ~access.done & ~waits)
        for queue, post, number, doorbells in (
            (send, self.post_send, self.post_send.p.qpn, (Doorbell.SQ_PRODUCER,)),
            (receive, self.post_receive, self.post_receive.p.qpn, (Doorbell.RQ_PRODUCER,)),
            (
                completion,
                self.post_completion,
                self.post_completion.p.cq,
                (Doorbell.CQ_CONSUMER, Doorbell.CQ_ARM, Doorbell.CQ_ARM_SOLICITED),
            ),
        ):
            item = queue.i.p
            m.d.comb += [
                item.number.eq(number),
                *(item[name].eq(post.p[name]) for name, _ in item.shape() if name != "number"),
                queue.i.valid.eq(post.valid),
                post.ready.eq(queue.i.ready),
            ]
            with m.If(Cat(rings[doorbell] for doorbell in doorbells).any()):
                m.d.comb += [
                    queue.i.valid.eq(~self.busy),
                    item.as_value().eq(0),
                    item.number.eq(page),
                    item.index.eq(access.data),
                    waits.eq(~self.busy & ~queue.i.ready),
                ]
                with m.If(~waits):
                    m.d.sync += [rings[doorbell].eq(0) for doorbell in doorbells]
        with m.If(arm | solicited):
            m.d.comb += [
                completion.i.payload.arm.eq(1),
                completion.i.payload.solicited.eq(solicited),
            ]

        for queue, ring in ((send, self.send), (receive, self.receive)):
            m.d.comb += [
                ring.p.qpn.eq(queue.o.p.number),
                ring.p.index.eq(queue.o.p.index),
                ring.p.reset.eq(queue.o.p.reset),
                ring.valid.eq(queue.o.valid),
                queue.o.ready.eq(ring.ready),
            ]
        post = completion.o.p
        m.d.comb += [
            self.completion.p.cq.eq(post.number),
            self.completion.p.index.eq(post.index),
            self.completion.p.arm.eq(post.arm),
            self.completion.p.solicited.eq(post.solicited),
            self.completion.p.reset.eq(post.reset),
            self.completion.p.moderate.eq(post.moderate),
            self.completion.p.row.eq(self.row),
            self.completion.valid.eq(completion.o.valid),
            completion.o.ready.eq(self.completion.ready),
            self.empty.eq((send.level == 0) & (receive.level == 0) & (completion.level == 0)),
        ]
        return m
