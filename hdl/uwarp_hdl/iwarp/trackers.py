"""Trackers: the open messages, one each (device behaviour, section 4).

Names are compared in parallel, and so are the octets that a new message would share with open
ones. What stays the same until a message closes is in a memory; so is its progress.
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import CloseTarget, Parameters

from ..layouts import CloseRequest
from .receive_layouts import (
    granule_width,
    message_name_layout,
    offset_width,
    span_layout,
    tracker_layout,
)

__all__ = ["Trackers", "lowest_set", "progress_layout"]


def lowest_set(bits):
    """The number of the lowest bit that is set; of the highest bit if none is."""
    result = C(len(bits) - 1, range(len(bits)))
    for i in reversed(range(len(bits) - 1)):
        result = Mux(bits[i], i, result)
    return result


def progress_layout(parameters: Parameters) -> data.StructLayout:
    """``missing``: granules between the first and the last that are not valid yet. ``head`` and
    ``tail``: the first and the last granule are valid; of a message in one granule both are set."""
    return data.StructLayout({"missing": granule_width(parameters), "head": 1, "tail": 1})


class Trackers(wiring.Component):
    """``n_tracker`` open messages: look up, open, account, close; and find those that fell silent.

    ``match`` and ``overlap`` are combinational. ``row`` and ``progress`` are those of the ``index``
    of the cycle before. One of ``open``, ``touch``, ``mark`` and ``close`` may be high in a cycle;
    or ``open`` and ``touch``, of the same tracker.

    Members
    -------
    name, region, start, end : In
        Of a datagram's message; its first and last octet count from the region's base.
    match : Out(n_tracker)
        The tracker that holds ``name``.
    overlap : Out(n_tracker)
        Trackers of ``region`` that share an octet with ``start`` to ``end``.
    found : Out(1)
        A tracker held ``name`` in the cycle before.
    span : Out
        Of the tracker that held ``name`` three cycles before.
    index : In
    row, progress : Out
    free, free_index : Out
        The lowest free tracker; right from two cycles after an ``open`` or ``close``.
    open, opened, dma_addr, missing, timeout : In
        Opens ``free_index`` with the row ``opened``, silent for at most ``timeout`` ticks.
    touch, touch_index, tick : In
        A segment of ``touch_index`` has been placed at ``tick``.
    mark, mark_index, newly, head, tail : In
        ``newly`` more granules, and maybe the first and the last, are valid.
    complete, complete_index : Out
        From the cycle after ``mark`` until ``close``: nothing of that message is missing.
    close, close_index : In
    expired, expired_index : Out
        A message that has been silent for its timeout, or that ``ending`` names. Withdrawn by a
        ``touch`` or ``close`` of it. Found within ``4 * n_tracker`` cycles without those.
    ending : In(CloseRequest)
    ended : Out(1)
        Every message that was open when ``ending`` became active, and that it names, is closed.
    count : Out
        Open messages.
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        n = parameters.n_tracker
        offset = offset_width(parameters)
        super().__init__(
            {
                "name": In(message_name_layout(parameters)),
                "region": In(24),
                "start": In(offset),
                "end": In(offset),
                "match": Out(n),
                "found": Out(1),
                "span": Out(span_layout(parameters)),
                "overlap": Out(n),
                "index": In(range(n)),
                "row": Out(tracker_layout(parameters)),
                "progress": Out(progress_layout(parameters)),
                "free": Out(1, init=1),
                "free_index": Out(range(n)),
                "open": In(1),
                "opened": In(tracker_layout(parameters)),
                "dma_addr": In(64),
                "missing": In(granule_width(parameters)),
                "timeout": In(16),
                "touch": In(1),
                "touch_index": In(range(n)),
                "tick": In(16),
                "mark": In(1),
                "mark_index": In(range(n)),
                "newly": In(9),
                "head": In(1),
                "tail": In(1),
                "complete": Out(1),
                "complete_index": Out(range(n)),
                "close": In(1),
                "close_index": In(range(n)),
                "expired": Out(1),
                "expired_index": Out(range(n)),
                "ending": In(CloseRequest),
                "ended": Out(1),
                "count": Out(range(n + 1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n = self._parameters.n_tracker
        name_shape = message_name_layout(self._parameters)

        opened = Signal(n)
        # One bit, or none, a cycle late like ``free_index``. The free tracker's registers follow
        # ``opened``, so that ``open`` only has to say that they count.
        is_free = Signal(n, init=1)
        m.d.sync += is_free.eq(~opened & (opened + 1)[:n])
        for i in range(n):
            name = Signal(name_shape, name=f"name{i}")
            region = Signal(24, name=f"region{i}")
            start = Signal.like(self.start, name=f"start{i}")
            end = Signal.like(self.end, name=f"end{i}")
            with m.If(self.open & is_free[i]):
                m.d.sync += opened[i].eq(1)
            with m.If(is_free[i] & ~opened[i]):
                m.d.sync += [
                    name.eq(self.opened.name),
                    region.eq(self.opened.stag[8:]),
                    start.eq(self.opened.start),
                    end.eq(self.opened.end),
                ]
            with m.If(self.close & (self.close_index == i)):
                m.d.sync += opened[i].eq(0)
            m.d.comb += [
                self.match[i].eq(opened[i] & (name.as_value() == self.name.as_value())),
                self.overlap[i].eq(
                    opened[i] & (region == self.region) & (start <= self.end) & (self.start <= end)
                ),
            ]
        with m.If(self.open):
            m.d.sync += self.count.eq(self.count + 1)
        with m.Elif(self.close):
            m.d.sync += self.count.eq(self.count - 1)

        m.d.sync += [self.free_index.eq(lowest_set(~opened)), self.free.eq(~opened.all())]

        m.submodules.rows = rows = memory.Memory(
            shape=tracker_layout(self._parameters), depth=n, init=[]
        )
        row_read = rows.read_port()
        row_write = rows.write_port()
        m.d.comb += [
            row_read.addr.eq(self.index),
            self.row.eq(row_read.data),
            row_write.addr.eq(self.free_index),
            row_write.data.eq(self.opened),
            row_write.en.eq(self.open),
        ]

        matched = Signal(n)
        m.submodules.spans = spans = memory.Memory(
            shape=span_layout(self._parameters), depth=n, init=[]
        )
        span_read = spans.read_port()
        span_write = spans.write_port()
        m.d.sync += [matched.eq(self.match), self.span.eq(span_read.data)]
        m.d.comb += [
            self.found.eq(matched.any()),
            # At most one bit is set.
            span_read.addr.eq(
                Cat(
                    Cat(matched[i] for i in range(n) if i >> bit & 1).any()
                    for bit in range(len(span_read.addr))
                )
            ),
            span_write.addr.eq(self.free_index),
            span_write.data.dma_addr.eq(self.dma_addr),
            span_write.en.eq(self.open),
        ]
        for name in ("granule_log2", "map_base", "start"):
            m.d.comb += span_write.data[name].eq(self.opened[name])

        m.submodules.progresses = progresses = memory.Memory(
            shape=progress_layout(self._parameters), depth=n, init=[]
        )
        progress_read = progresses.read_port()
        before = progresses.read_port(domain="comb")
        progress_write = progresses.write_port()
        after = Signal(progress_layout(self._parameters))
        m.d.comb += [
            progress_read.addr.eq(self.index),
            self.progress.eq(progress_read.data),
            before.addr.eq(self.mark_index),
            after.missing.eq(before.data.missing - self.newly),
            after.head.eq(before.data.head | self.head),
            after.tail.eq(before.data.tail | self.tail),
            progress_write.en.eq(self.open | self.mark),
            progress_write.addr.eq(Mux(self.mark, self.mark_index, self.free_index)),
            progress_write.data.missing.eq(Mux(self.mark, after.missing, self.missing)),
            progress_write.data.head.eq(self.mark & after.head),
            progress_write.data.tail.eq(self.mark & after.tail),
        ]
        with m.If(self.close):
            m.d.sync += self.complete.eq(0)
        with m.If(self.mark):
            m.d.sync += [
                self.complete.eq((before.data.missing == self.newly) & after.head & after.tail),
                self.complete_index.eq(self.mark_index),
            ]

        self._find_expired(m, opened)
        return m

    def _find_expired(self, m, opened):
        n = self._parameters.n_tracker
        m.submodules.touched = touched = memory.Memory(shape=16, depth=n, init=[])
        touched_read = touched.read_port()
        touched_write = touched.write_port()
        owner_shape = data.StructLayout(
            {
                "timeout": 16,
                "qpn": exact_log2(self._parameters.n_qp),
                "region": exact_log2(self._parameters.n_region),
            }
        )
        m.submodules.owners = owners = memory.Memory(shape=owner_shape, depth=n, init=[])
        owners_read = owners.read_port()
        owners_write = owners.write_port()
        scan = Signal(range(n))
        age = Signal(16)
        timeout = Signal(16)
        named = Signal()
        of_qp = self.ending.target == CloseTarget.QP
        of_region = self.ending.target == CloseTarget.REGION
        m.d.comb += [
            touched_read.addr.eq(scan),
            owners_read.addr.eq(scan),
            touched_write.addr.eq(Mux(self.open, self.free_index, self.touch_index)),
            touched_write.data.eq(self.tick),
            touched_write.en.eq(self.open | self.touch),
            owners_write.addr.eq(self.free_index),
            owners_write.data.timeout.eq(self.timeout),
            owners_write.data.qpn.eq(self.opened.name.qpn),
            owners_write.data.region.eq(self.opened.stag[8:]),
            owners_write.en.eq(self.open),
            self.expired_index.eq(scan),
        ]
        m.d.sync += [
            age.eq(self.tick - touched_read.data),
            timeout.eq(owners_read.data.timeout),
            named.eq(
                (of_qp & (self.ending.row == owners_read.data.qpn))
                | (of_region & (self.ending.row == owners_read.data.region))
            ),
        ]

        # The first of the looks may have begun before ``ending`` was there.
        looks = Signal(range(n + 2))
        m.d.comb += self.ended.eq(self.ending.active & (looks == 0))
        with m.If(~self.ending.active):
            m.d.sync += looks.eq(n + 1)

        # What has been read of the tracker before an open, touch or close may be of the past then.
        changes = Signal()
        m.d.comb += changes.eq(
            (self.open & (self.free_index == scan))
            | (self.touch & (self.touch_index == scan))
            | (self.close & (self.close_index == scan))
        )
        with m.FSM(name="scan"):
            with m.State("READ"):
                with m.If(~changes):
                    m.next = "AGE"
            with m.State("AGE"):
                m.next = "COMPARE"
                with m.If(changes):
                    m.next = "READ"
            with m.State("COMPARE"):
                m.next = "READ"
                with m.If(~changes):
                    with m.If(
                        opened.bit_select(scan, 1)
                        & ((age >= timeout) | (named & self.ending.active))
                    ):
                        m.d.sync += self.expired.eq(1)
                        m.next = "EXPIRED"
                    with m.Else():
                        m.d.sync += scan.eq(scan + 1)
                        with m.If(self.ending.active & ~self.ended):
                            m.d.sync += looks.eq(looks - 1)
            with m.State("EXPIRED"):
                with m.If(changes):
                    m.d.sync += self.expired.eq(0)
                    m.next = "READ"
