"""Doorbells: from their pages, and from table commands, to the units that serve them.

::

    access --> page and register decoded --+--> register --> send       (RingDoorbell)
    post_* (table commands) ---------------+--> register --> receive    (RingDoorbell)
                                           +--> register --> completion (CqDoorbell)

Addresses are decoded in the cycle before their access. A doorbell is taken in the cycle in which
its access begins, and offered to its unit in the next. An access waits only while the doorbell
before it, to the same unit, does.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import DOORBELL_BASE, DOORBELL_PAGE, Doorbell, Parameters

from ..layouts import CQ_ROW, CqDoorbell, RingDoorbell
from .bus import AccessSignature

__all__ = ["CqPost", "DoorbellPages"]

_PAGE_LOG2 = DOORBELL_PAGE.bit_length() - 1


class CqPost(data.Struct):
    """A ``CqDoorbell`` of a row, whose writer waits and holds it."""

    cq: 16
    reset: 1
    moderate: 1


class DoorbellPages(wiring.Component):
    """Doorbells, one for each unit.

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
        Goes with a completion doorbell that is posted; held until it is taken.
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
        page = Signal(range(self._parameters.n_qp), reset_less=True)
        page_ahead = access.ahead[_PAGE_LOG2:] - (DOORBELL_BASE >> _PAGE_LOG2)
        in_range = (page_ahead >= 0) & (page_ahead < self._parameters.n_qp)
        offset = access.ahead[2:_PAGE_LOG2]
        rings = {doorbell: Signal(name=doorbell.name.lower()) for doorbell in Doorbell}
        # What an access would ring is found before it begins. It has, and is not carried out yet:
        begun = Signal()
        with m.If(~access.request):
            m.d.sync += page.eq(page_ahead)
            for doorbell, signal in rings.items():
                m.d.sync += signal.eq(in_range & (offset == doorbell.value >> 2))
        arm, solicited = rings[Doorbell.CQ_ARM], rings[Doorbell.CQ_ARM_SOLICITED]
        waits = Signal()
        m.d.sync += begun.eq(access.begins | (begun & waits))
        m.d.sync += access.done.eq(access.request & ~access.done & ~waits)
        held = {}
        for name, layout, post, number, doorbells in (
            ("send", ring_doorbell, self.post_send, self.post_send.p.qpn, (Doorbell.SQ_PRODUCER,)),
            (
                "receive",
                ring_doorbell,
                self.post_receive,
                self.post_receive.p.qpn,
                (Doorbell.RQ_PRODUCER,),
            ),
            (
                "completion",
                cq_doorbell,
                self.post_completion,
                self.post_completion.p.cq,
                (Doorbell.CQ_CONSUMER, Doorbell.CQ_ARM, Doorbell.CQ_ARM_SOLICITED),
            ),
        ):
            item = Signal(layout, name=f"{name}_item", reset_less=True)
            out = getattr(self, name)
            rung = begun & Cat(rings[doorbell] for doorbell in doorbells).any()
            held[name] = item
            m.d.comb += post.ready.eq(~out.valid)
            with m.If(~out.valid):
                m.d.sync += [
                    out.valid.eq(Mux(rung, ~self.busy, post.valid)),
                    item.number.eq(Mux(rung, page, number)),
                    # Of a post it is not looked at, nor is ``arm``.
                    item.index.eq(access.data),
                    *(
                        item[field].eq(post.p[field] & ~rung)
                        for field in ("reset", "moderate")
                        if field in layout.members
                    ),
                ]
                if name == "completion":
                    m.d.sync += [item.arm.eq(arm | solicited), item.solicited.eq(solicited)]
            with m.Else():
                with m.If(out.ready):
                    m.d.sync += out.valid.eq(0)
                with m.If(rung):
                    m.d.comb += waits.eq(~self.busy)
        for name in ("send", "receive"):
            ring, item = getattr(self, name).p, held[name]
            m.d.comb += [
                ring.qpn.eq(item.number),
                ring.index.eq(item.index),
                ring.reset.eq(item.reset),
            ]
        item = held["completion"]
        m.d.comb += [
            self.completion.p.cq.eq(item.number),
            self.completion.p.row.eq(self.row),
            *(
                self.completion.p[field].eq(item[field])
                for field in cq_doorbell.members
                if field != "number"
            ),
            self.empty.eq(~(self.send.valid | self.receive.valid | self.completion.valid)),
        ]
        return m
