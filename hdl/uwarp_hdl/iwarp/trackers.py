"""Trackers: the open messages, one each (device behaviour, section 4).

Digests of names are compared in parallel. The octets that a new message would share with open ones
are compared in ``SCAN_STEPS`` steps, ``n_tracker / SCAN_STEPS`` messages at a time, over and over.
What stays the same until a message closes is in block RAM, its progress in LUT RAM.
"""

from itertools import pairwise

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import CloseTarget, Parameters

from ..layouts import CloseRequest
from .receive_layouts import (
    DIGEST_WIDTH,
    granule_width,
    message_name_layout,
    offset_width,
    span_layout,
    tracker_layout,
)

__all__ = ["OVERLAP_SETTLES", "SCAN_STEPS", "Trackers", "lowest_set", "progress_layout"]

SCAN_STEPS = 4
"""Cycles in which every open message is compared with the extent that is asked for."""

OVERLAP_SETTLES = 4 + SCAN_STEPS
"""Cycles from an ``open`` to the ``overlap`` that counts with it: one until it is written, three
from the memory's address to what is compared, ``SCAN_STEPS`` to come by all."""

_BLOCK_RAM = {"ram_style": "block"}


def lowest_set(bits):
    """The number of the lowest bit that is set; of the highest bit if none is."""
    if len(bits) == 1:
        return C(0, 0)
    half = 1 << exact_log2(len(bits)) - 1
    low = bits[:half].any()
    return Cat(Mux(low, lowest_set(bits[:half]), lowest_set(bits[half:])), ~low)


def _carries(a, not_b):
    """Whether a >= b: the carry of a - b."""
    width = len(a)
    return (Cat(C(1, 1), a) + Cat(C(1, 1), not_b[:width]))[width + 1]


def progress_layout(parameters: Parameters) -> data.StructLayout:
    """``missing``: granules between the first and the last that are not valid yet. ``head`` and
    ``tail``: the first and the last granule are valid; of a message in one granule both are set."""
    return data.StructLayout({"missing": granule_width(parameters), "head": 1, "tail": 1})


class Trackers(wiring.Component):
    """``n_tracker`` open messages: look up, open, account, close; and find those that fell silent.

    ``match`` is a cycle late. ``row`` and ``progress`` are those of the ``index`` of two cycles
    before; ``index`` may change in the cycle after an ``open``, and counts from the
    one after that on. One of ``open``, ``touch``, ``mark`` and ``close`` may be high in a cycle; or
    ``open`` and ``touch``, of the same tracker. What comes with ``open`` stays for two cycles.

    Members
    -------
    digest, region, start, end : In
        Of a datagram's message; its first and last octet count from the region's base. ``region``
        is the region's number.
    match : Out(n_tracker)
        Trackers whose message's name has ``digest``: nearly always the one of that name, if any.
    overlap : Out(n_tracker)
        Trackers of ``region`` that share an octet with ``start`` to ``end``, which must have been
        the same in the ``SCAN_STEPS`` cycles before; right from ``OVERLAP_SETTLES`` cycles after an
        ``open``, and at once after a ``close``.
    found : Out(1)
        Trackers matched in the cycle before, strangers apart. Of the lowest ...
    span : Out
        ... two cycles after that: where its message lies.
    name, own : In, Out(1)
        ... three cycles after that: its message has this name, which was there a cycle before.
    stranger, renew : In(1)
        ... three cycles after that: it is a stranger, until ``open`` or ``renew``.
    keep : In(1)
        Row ``n_tracker``, which is no tracker's, becomes ``opened``. Not beside ``open``, nor in
        the cycle after.
    index : In
    row, progress : Out
    free, free_index : Out
        The lowest free tracker; right from two cycles after an ``open`` or ``close``.
    open, opened, opened_digest, dma_addr, missing, timeout : In
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
                "digest": In(DIGEST_WIDTH),
                "region": In(exact_log2(parameters.n_region)),
                "start": In(offset),
                "end": In(offset),
                "match": Out(n),
                "found": Out(1),
                "span": Out(span_layout(parameters)),
                "name": In(message_name_layout(parameters)),
                "own": Out(1),
                "stranger": In(1),
                "renew": In(1),
                "overlap": Out(n),
                "keep": In(1),
                "index": In(range(n + 1)),
                "row": Out(tracker_layout(parameters)),
                "progress": Out(progress_layout(parameters)),
                "free": Out(1, init=1),
                "free_index": Out(range(n)),
                "open": In(1),
                "opened": In(tracker_layout(parameters)),
                "dma_addr": In(64),
                "opened_digest": In(DIGEST_WIDTH),
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
        opened = Signal(n)
        # One bit, or none, a cycle late like ``free_index``. The free tracker's digest follows
        # ``opened``, so that ``open`` only has to say that it counts.
        is_free = Signal(n, init=1)
        m.d.sync += is_free.eq(~opened & (opened + 1)[:n])
        matches = Signal(n)
        for i in range(n):
            digest = Signal(DIGEST_WIDTH, name=f"digest{i}")
            with m.If(self.open & is_free[i]):
                m.d.sync += opened[i].eq(1)
            with m.If(is_free[i] & ~opened[i]):
                m.d.sync += digest.eq(self.opened_digest)
            with m.If(self.close & (self.close_index == i)):
                m.d.sync += opened[i].eq(0)
            m.d.comb += matches[i].eq(opened[i] & (digest == self.digest))
        m.d.sync += self.match.eq(matches)
        # ``open`` comes late in its cycle, so what it opens is written in the next.
        writing = Signal()
        m.d.sync += writing.eq(self.open)
        self._find_overlaps(m, opened, writing)
        with m.If(self.open):
            m.d.sync += self.count.eq(self.count + 1)
        with m.Elif(self.close):
            m.d.sync += self.count.eq(self.count - 1)

        m.d.sync += [self.free_index.eq(lowest_set(~opened)), self.free.eq(~opened.all())]

        # Nothing is read while it is written, for synthesis to add no logic behind the memories.
        m.submodules.rows = rows = memory.Memory(
            shape=tracker_layout(self._parameters), depth=n + 1, init=[], attrs=_BLOCK_RAM
        )
        row_read = rows.read_port()
        row_write = rows.write_port()
        m.d.comb += [
            row_read.addr.eq(self.index),
            row_read.en.eq(~(writing | self.keep)),
            row_write.addr.eq(Mux(self.keep, n, self.free_index)),
            row_write.data.eq(self.opened),
            row_write.en.eq(writing | self.keep),
        ]
        m.d.sync += self.row.eq(row_read.data)

        matched = Signal(n)
        m.submodules.spans = spans = memory.Memory(
            shape=span_layout(self._parameters), depth=n, init=[], attrs=_BLOCK_RAM
        )
        span_read = spans.read_port()
        span_write = spans.write_port()
        name_shape = message_name_layout(self._parameters)
        m.submodules.names = names = memory.Memory(
            shape=name_shape, depth=n, init=[], attrs=_BLOCK_RAM
        )
        name_read = names.read_port()
        name_write = names.write_port()
        name = Signal(name_shape)
        looked_at = [Signal(range(n), name=f"looked_at{i}") for i in range(4)]
        strangers = Signal(n)
        m.d.sync += [
            matched.eq(matches & ~strangers),
            self.span.eq(span_read.data),
            name.eq(name_read.data),
            self.own.eq(name.as_value() == self.name.as_value()),
            *(later.eq(index) for index, later in pairwise(looked_at)),
        ]
        with m.If(self.stranger):
            m.d.sync += strangers.bit_select(looked_at[3], 1).eq(1)
        with m.If(self.open | self.renew):
            m.d.sync += strangers.eq(0)
        m.d.comb += [
            self.found.eq(matched.any()),
            looked_at[0].eq(lowest_set(matched)),
            span_read.addr.eq(looked_at[0]),
            span_read.en.eq(~writing),
            name_read.addr.eq(looked_at[0]),
            name_read.en.eq(~writing),
            span_write.addr.eq(self.free_index),
            span_write.data.dma_addr.eq(self.dma_addr),
            span_write.en.eq(writing),
            name_write.addr.eq(self.free_index),
            name_write.data.eq(self.opened.name),
            name_write.en.eq(writing),
        ]
        for field in ("granule_log2", "map_base", "start"):
            m.d.comb += span_write.data[field].eq(self.opened[field])

        m.submodules.progresses = progresses = memory.Memory(
            shape=progress_layout(self._parameters), depth=n, init=[]
        )
        progress_read = progresses.read_port()
        before = progresses.read_port(domain="comb")
        progress_write = progresses.write_port()
        after = Signal(progress_layout(self._parameters))
        m.d.sync += progress_read.addr.eq(self.index)
        m.d.comb += [
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

    def _find_overlaps(self, m, opened, writing):
        """Tracker ``SCAN_STEPS * bank + step`` is in row ``step`` of its bank."""
        n = self._parameters.n_tracker
        steps = min(SCAN_STEPS, n)
        step = Signal(range(steps))
        # Of what the memory gives out, and of what is compared.
        step_read, step_compared = Signal.like(step), Signal.like(step)
        m.d.sync += [step.eq(step + 1), step_read.eq(step), step_compared.eq(step_read)]
        extent_shape = data.StructLayout({"before_start": len(self.start), "end": len(self.end)})
        region_shape = exact_log2(self._parameters.n_region)
        for bank in range(n // steps):
            extents = memory.Memory(shape=extent_shape, depth=steps, init=[], attrs=_BLOCK_RAM)
            regions = memory.Memory(shape=region_shape, depth=steps, init=[])
            m.submodules[f"extents{bank}"] = extents
            m.submodules[f"regions{bank}"] = regions
            extent_write, region_write = extents.write_port(), regions.write_port()
            extent_read, region_read = extents.read_port(), regions.read_port(domain="comb")
            extent = Signal(extent_shape, name=f"extent{bank}")
            region = Signal(region_shape, name=f"region{bank}")
            in_bank = self.free_index[exact_log2(steps) :] == bank
            m.d.comb += [
                extent_write.addr.eq(self.free_index),
                # Inverted, since a carry chain subtracts its second operand by adding the inverse.
                extent_write.data.before_start.eq(~self.opened.start),
                extent_write.data.end.eq(self.opened.end),
                extent_write.en.eq(writing & in_bank),
                extent_read.addr.eq(step),
                extent_read.en.eq(~writing),
                region_write.addr.eq(self.free_index),
                region_write.data.eq(self.opened.stag[8:]),
                region_write.en.eq(writing & in_bank),
                region_read.addr.eq(step_read),
            ]
            overlaps = Signal(3, name=f"overlaps{bank}")
            m.d.sync += [extent.eq(extent_read.data), region.eq(region_read.data)]
            m.d.comb += overlaps.eq(
                Cat(
                    region == self.region,
                    _carries(self.end, extent.before_start),
                    _carries(extent.end, ~self.start),
                )
            )
            for i in range(steps):
                tracker = steps * bank + i
                conditions = Signal(3, name=f"conditions{tracker}")
                with m.If(step_compared == i):
                    m.d.sync += conditions.eq(overlaps)
                m.d.comb += self.overlap[tracker].eq(opened[tracker] & conditions.all())

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
