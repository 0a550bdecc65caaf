"""Completions in order, each after its payload and its map.

entries --+--> words in block RAM ---------------------------------------> completions.words
          '--> items in block RAM --+--> head ---------------------------> join --> completions
                                    '--> order --> [MapWriter] --> releases --^
                                         payload retired? write map      (map answered?)
                                              ^ runs, words, edges of the snapshot
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import BURST_WORDS, CqeFlag, Parameters, Status

from ..choice import word_after
from ..interfaces import CompletionSignature, WriteClientSignature
from ..layouts import CQE_LAYOUT
from ..stream.queue import Queue
from .burst import WriteBursts
from .cqe_writer import CQE_WORDS
from .faults import has_failed
from .receive_layouts import (
    TICKET_WIDTH,
    PendingCompletion,
    failed_layout,
    fault_layout,
    map_run_layout,
    map_words_width,
)
from .snapshot import EdgeBytes, MapWord

__all__ = ["CompletionQueue", "MapWriter", "Order", "Release"]


class Order(data.Struct):
    """A completion that waits for placement number ``ticket``, then for its map, if ``mapped``."""

    ticket: TICKET_WIDTH
    mapped: 1


class Release(data.Struct):
    """A completion whose payload is in memory. If it ``has_map`` it uses up one answered map."""

    has_map: 1
    edges: EdgeBytes


class MapWriter(wiring.Component):
    """Release completions in order; write the maps of those that have one.

    An order without a map takes 3 cycles, one with a map 6 to 8 and its words. Words of the map are
    written as soon as the message's payload has been answered; nothing waits for the answer here.

    Members
    -------
    orders : In(stream of Order)
    retired, retires : In(8), In(1)
        Placements answered; a strobe with each, as of the placer.
    runs, words, edges : In(streams of map_run_layout, MapWord, EdgeBytes)
        Of each order with a map.
    failed : In(failed_layout)
        QPs that have failed: their maps are taken and not written.
    recent : In(fault)
        Of the cycle before; ``failed`` tells of it in the next.
    write : Out(WriteClientSignature)
    releases : Out(stream of Release)
    answered : Out(1)
        Strobe: all bursts of the next map have been answered.
    hold, fault : In(1), Out(fault)
        As of :class:`WriteBursts`.
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        super().__init__(
            {
                "orders": In(stream.Signature(Order)),
                "retired": In(TICKET_WIDTH),
                "retires": In(1),
                "runs": In(stream.Signature(map_run_layout(parameters))),
                "words": In(stream.Signature(MapWord)),
                "edges": In(stream.Signature(EdgeBytes)),
                "failed": In(failed_layout(parameters)),
                "recent": In(fault_layout(parameters)),
                "write": Out(WriteClientSignature()),
                "releases": Out(stream.Signature(Release)),
                "answered": Out(1),
                "hold": In(1),
                "fault": Out(fault_layout(parameters)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        words_width = map_words_width(self._parameters)
        # Counted from its first block on, a run ends less than a block behind its number of words.
        m.submodules.bursts = bursts = WriteBursts(self._parameters, 32, words_width)
        wiring.connect(m, wiring.flipped(self.write.bursts), bursts.bursts)
        m.d.comb += [
            bursts.done.eq(self.write.done),
            bursts.error.eq(self.write.error),
            bursts.hold.eq(self.hold),
            self.fault.eq(bursts.fault),
        ]
        # A cycle late, for ``recent`` to tell of its faults.
        m.d.sync += self.answered.eq(bursts.answered)

        order = self.orders.payload
        run = self.runs.payload
        # ``failed`` and ``recent`` are right a cycle after the payload is in memory.
        is_placed = Signal()
        was_placed = Signal()
        # By the cycle before: it was there; its placement was answered; its is the next.
        known, is_reached, is_next = Signal(), Signal(), Signal()
        # Its distance, less than half a turn either way, from what was answered a cycle before:
        # that one more is answered now comes from far, and late.
        retired, distance = Signal(TICKET_WIDTH), Signal(TICKET_WIDTH)
        m.d.comb += distance.eq(order.ticket - retired)
        is_near = distance[2:] == 0
        m.d.sync += [
            known.eq(self.orders.valid & ~self.orders.ready),
            is_reached.eq(distance[-1] | (is_near & (distance[:2] <= self.retires))),
            is_next.eq(is_near & (distance[:2] == 1 + self.retires)),
            retired.eq(self.retired),
        ]
        m.d.comb += is_placed.eq(known & (is_reached | (is_next & self.retires)))
        m.d.sync += was_placed.eq(is_placed & ~self.orders.ready)
        # The order at hand is taken a cycle after its release.
        released = Signal()
        m.d.comb += self.orders.ready.eq(released)
        m.d.sync += released.eq(self.releases.valid & self.releases.ready)
        position = Signal(range(BURST_WORDS), reset_less=True)
        left = Signal(words_width, reset_less=True)
        final = Signal()
        ends = Signal()  # the word at hand is its burst's last
        has_map = Signal()
        # Of a run that has been offered for a cycle or more.
        seen = Signal()
        end = Signal(words_width, reset_less=True)
        empty = Signal()
        # Looked up when the payload is in memory, and then kept.
        failed = Signal()
        is_recent = self.recent.valid & (self.recent.qpn == run.qpn)
        m.d.comb += failed.eq(has_failed(m, self.failed, run.qpn) | is_recent)
        discard = Signal()
        # A release is offered, or is if its placement is answered now: kept apart, for that comes
        # late, and the completion in the next cycle.
        releases, may_release = Signal(), Signal(attrs={"keep": 1})
        m.d.comb += self.releases.valid.eq(releases | (may_release & self.retires))
        # In the state of words: they are written, or dropped.
        writes, drops = Signal(), Signal()
        m.d.sync += [
            seen.eq(self.runs.valid & ~self.runs.ready),
            end.eq(run.word[: exact_log2(BURST_WORDS)] + run.words - 1),
            empty.eq(run.words == 0),
        ]
        beat = self.write.beats
        m.d.comb += [
            bursts.commands.payload.run.word.eq(run.word),
            bursts.commands.payload.run.end.eq(end),
            bursts.commands.payload.run.one_block.eq(end[exact_log2(BURST_WORDS) :] == 0),
            bursts.commands.payload.qpn.eq(run.qpn),
            beat.payload.data.eq(self.words.payload.data),
            beat.payload.strobe.eq(self.words.payload.strobe),
            beat.payload.last.eq(ends),
            beat.valid.eq(writes & self.words.valid),
            self.words.ready.eq((writes & beat.ready) | drops),
            self.releases.payload.has_map.eq(has_map),
            self.releases.payload.edges.eq(self.edges.payload),
        ]
        with m.FSM():
            with m.State("ORDER"):
                m.d.sync += discard.eq(failed)
                with m.If(order.mapped):
                    with m.If(was_placed & ~released):
                        m.next = "RUN"
                with m.Else():
                    m.d.comb += [
                        releases.eq(known & is_reached & ~released),
                        may_release.eq(known & is_next & ~released),
                    ]
            with m.State("RUN"):
                m.d.comb += self.runs.ready.eq(seen & (empty | discard))
                m.d.sync += [
                    left.eq(run.words),
                    final.eq(run.words == 1),
                    position.eq(run.word),
                    ends.eq((run.words == 1) | run.word[: len(position)].all()),
                ]
                with m.If(~seen):
                    m.d.sync += discard.eq(failed)
                with m.Else():
                    m.d.sync += drops.eq(discard & ~empty)
                    m.next = "CUT"
                    with m.If(discard):
                        m.next = "WORDS"
                    with m.If(empty):
                        m.next = "EDGES"
            with m.State("CUT"):
                m.d.comb += [
                    bursts.commands.valid.eq(1),
                    self.runs.ready.eq(bursts.commands.ready),
                ]
                with m.If(bursts.commands.ready):
                    m.d.sync += [has_map.eq(1), writes.eq(1)]
                    m.next = "WORDS"
            with m.State("WORDS"):
                with m.If(self.words.valid & self.words.ready):
                    m.d.sync += [
                        left.eq(left - 1),
                        final.eq(left == 2),
                        position.eq(position + 1),
                        ends.eq((left == 2) | (position == BURST_WORDS - 2)),
                    ]
                    with m.If(final):
                        m.d.sync += [writes.eq(0), drops.eq(0)]
                        m.next = "EDGES"
            with m.State("EDGES"):
                m.d.comb += [
                    releases.eq(self.edges.valid),
                    self.edges.ready.eq(self.releases.ready),
                ]
                with m.If(self.edges.valid & self.releases.ready):
                    m.d.sync += has_map.eq(0)
                    m.next = "ORDER"
        return m


class CompletionQueue(wiring.Component):
    """Hold completions until their payload and map are in host memory (device behaviour, 4.5).

    One comes in every 8 cycles at most. It is offered 4 cycles later, at the earliest, and its
    first word 2 cycles after that.

    Parameters
    ----------
    parameters : Parameters
    depth : int
        Completions, a power of two from 4 to 64: that many less one are held, and one leaves.

    Members
    -------
    entries : In(stream of PendingCompletion)
    ticket : In(8)
        With ``entries``: the number of the placement to wait for.
    numbered : In(8)
        The number of the last placement.
    mapped : In(1)
        With ``entries``: a map comes with it.
    retired, retires : In(8), In(1)
    runs, words, edges : In
    failed : In(failed_layout)
        QPs that have failed: their completions leave with GENERAL_ERR and without a map (8.1).
    payload_fault : In(fault)
        In the cycle in which ``retired`` counts it.
    recent : In(fault)
        Of payload or map, a cycle later; ``failed`` tells of it in the next.
    map_write : Out(WriteClientSignature)
    hold, fault : In(1), Out(fault)
        As of :class:`WriteBursts`.
    completions : Out(CompletionSignature)
    level, accepted : Out, Out(1)
        Completions held, but for one ``accepted`` in the cycle before.
    leaves : Out(1)
        Strobe: one of them is held no more. Its request has been taken, and its first word.
    crowded : Out(1)
        So many placements (96, by the cycle before) have been numbered since the oldest
        completion's that the next must wait, for the numbers to stay comparable.
    """

    def __init__(self, parameters: Parameters, depth: int = 64):
        if not 4 <= depth <= 1 << TICKET_WIDTH - 2 or depth & (depth - 1):
            raise ValueError(
                f"depth is {depth}; it takes a power of two from 4 to {1 << TICKET_WIDTH - 2}"
            )
        self._parameters = parameters
        self._depth = depth
        super().__init__(
            {
                "entries": In(stream.Signature(PendingCompletion)),
                "ticket": In(TICKET_WIDTH),
                "numbered": In(TICKET_WIDTH),
                "mapped": In(1),
                "retired": In(TICKET_WIDTH),
                "retires": In(1),
                "runs": In(stream.Signature(map_run_layout(parameters))),
                "words": In(stream.Signature(MapWord)),
                "edges": In(stream.Signature(EdgeBytes)),
                "failed": In(failed_layout(parameters)),
                "recent": In(fault_layout(parameters)),
                "payload_fault": In(fault_layout(parameters)),
                "map_write": Out(WriteClientSignature()),
                "hold": In(1),
                "fault": Out(fault_layout(parameters)),
                "completions": Out(CompletionSignature()),
                "level": Out(range(depth)),
                "accepted": Out(1),
                "leaves": Out(1),
                "crowded": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # Kept as wide as a slot can have been reserved for: of QPs and CQs that exist.
        number_width = exact_log2(self._parameters.n_qp)
        head_layout = data.StructLayout(
            {"cq": number_width, "qpn": number_width, "urgent": 1, "mapped": 1}
        )
        head, order = Signal(head_layout, reset_less=True), Signal(Order, reset_less=True)
        head_valid, order_valid = Signal(), Signal()
        item = Signal(data.StructLayout({"head": head_layout, "order": Order}))
        m.submodules.releases = releases = Queue(Release, 16, registered=False)
        m.submodules.writer = writer = MapWriter(self._parameters)
        # A word is read some cycles after it was written: synthesis need not add logic for one that
        # is written in the same cycle.
        m.submodules.words = words = memory.Memory(
            shape=64,
            depth=CQE_WORDS * self._depth,
            init=[],
            attrs={"no_rw_check": 1, "ram_style": "block"},
        )
        put, get = words.write_port(), words.read_port()
        # ``entry`` has been written, or its last word is on its way from there.
        is_free = Signal(init=1)
        is_kept = Signal()  # the same, for the many bits of ``entry``
        full = Signal()
        accept = Signal()
        given = self.entries.payload
        m.d.comb += [
            self.entries.ready.eq(~full & is_free),
            accept.eq(self.entries.valid & self.entries.ready),
            item.head.cq.eq(given.cq),
            item.head.qpn.eq(given.qpn),
            item.head.urgent.eq(
                (given.flags & CqeFlag.SOLICITED).any() | (given.status != Status.SUCCESS)
            ),
            item.head.mapped.eq((given.flags & CqeFlag.MAPPED).any()),
            item.order.ticket.eq(self.ticket),
            item.order.mapped.eq(self.mapped),
            writer.orders.payload.eq(order),
            writer.orders.valid.eq(order_valid),
            writer.retired.eq(self.retired),
            writer.retires.eq(self.retires),
            writer.failed.eq(self.failed),
            writer.recent.eq(self.recent),
            writer.hold.eq(self.hold),
            self.fault.eq(writer.fault),
        ]
        m.d.sync += self.crowded.eq(
            order_valid & ((self.numbered - order.ticket)[:TICKET_WIDTH] >= 96)
        )
        for name in ("runs", "words", "edges"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(writer, name))
        wiring.connect(m, writer.releases, releases.i)
        wiring.connect(m, writer.write, wiring.flipped(self.map_write))

        # A cycle late, in which none is accepted: what offers them is far away.
        m.d.sync += self.accepted.eq(accept)
        with m.If(self.accepted & ~self.leaves):
            m.d.sync += [self.level.eq(self.level + 1), full.eq(self.level == self._depth - 2)]
        with m.Elif(self.leaves & ~self.accepted):
            m.d.sync += [self.level.eq(self.level - 1), full.eq(0)]
        self._keep_items(
            m,
            (item, accept),
            (head, head_valid, self.leaves),
            (order, order_valid, writer.orders.ready),
        )

        # Words into memory, the first in the second cycle after its entry came. None is read before
        # it is there: to that its head takes longer.
        entry = Signal(given.shape(), reset_less=True)
        fields = data.Layout.cast(given.shape())
        cqe = Signal(CQE_LAYOUT)
        select = Signal(CQE_WORDS)
        with m.If(~is_kept):
            m.d.sync += entry.eq(given)
        with m.If(accept):
            m.d.sync += [is_free.eq(0), is_kept.eq(1)]
        with m.Elif(select[-2]):
            m.d.sync += [is_free.eq(1), is_kept.eq(0)]
        m.d.comb += [
            *(cqe[name].eq(entry[name]) for name, _ in fields if name not in ("cq", "qpn")),
            cqe.qpn.eq(entry.qpn[:number_width]),
            put.data.eq(word_after(m, cqe, select)),
        ]
        m.d.sync += [select.eq(Cat(accept, select[:-1])), put.en.eq(select.any())]
        with m.If(put.en):
            m.d.sync += put.addr.eq(put.addr + 1)

        # Of the head: it may be offered; it has been taken; its first word was asked for.
        release = releases.o.p
        due = Signal()
        requested = Signal()
        begun = Signal()
        # Maps answered whose completions are still here.
        answers = Signal(range(self._depth + 1))
        answered = Signal()
        with_map = self.leaves & release.has_map
        with m.If(writer.answered & ~with_map):
            m.d.sync += [answers.eq(answers + 1), answered.eq(1)]
        with m.Elif(with_map & ~writer.answered):
            m.d.sync += [answers.eq(answers - 1), answered.eq(answers != 1)]
        is_answered = answered | writer.answered
        # By the release that waits, or by that which comes.
        due_next = Signal()
        waits, may_come = Signal(), Signal(attrs={"keep": 1})
        is_here = head_valid & ~self.leaves
        m.d.comb += [
            waits.eq(is_here & releases.o.valid & (~release.has_map | is_answered)),
            may_come.eq(is_here & ~releases.o.valid & (~writer.releases.p.has_map | is_answered)),
            due_next.eq(waits | (may_come & writer.releases.valid)),
        ]
        m.d.sync += due.eq(due_next)
        # Of the head that was here a cycle before, with the fault of that cycle. It stands while
        # the completion is offered, and until its second word has been read.
        failed = Signal()
        is_failed = has_failed(m, self.failed, head.qpn)
        with m.If(~due):
            hits = [
                fault.valid & (fault.qpn == head.qpn) for fault in (self.payload_fault, self.recent)
            ]
            m.d.sync += failed.eq(is_failed | Cat(hits).any())
        edges = Signal(EdgeBytes, reset_less=True)
        requests = self.completions.requests
        m.d.comb += [
            requests.p.cq.eq(head.cq),
            requests.p.urgent.eq(head.urgent | failed),
            releases.o.ready.eq(self.leaves),
        ]
        with m.If(self.leaves):
            m.d.sync += [requested.eq(0), edges.eq(Mux(head.mapped & ~failed, release.edges, 0))]
        with m.Elif(requests.ready & requests.valid):
            m.d.sync += requested.eq(1)
        # A register of its own: what it asks for is chosen in the cycle in which it comes.
        m.d.sync += requests.valid.eq(due_next & ~requested & ~(requests.ready & requests.valid))

        # Words out of memory.
        offered = self.completions.words
        is_first = get.addr[: exact_log2(CQE_WORDS)] == 0
        fetched = Signal()
        fetched_number = Signal(exact_log2(CQE_WORDS), reset_less=True)
        offered_first = Signal()
        moves = ~offered.valid | offered.ready
        fetch_moves = ~fetched | moves
        may_fetch = Signal()
        m.d.comb += may_fetch.eq(~is_first | (due & ~begun))
        m.d.comb += get.en.eq(may_fetch & fetch_moves)
        with m.If(fetch_moves):
            m.d.sync += [
                fetched.eq(may_fetch),
                fetched_number.eq(get.addr),
            ]
            with m.If(may_fetch):
                m.d.sync += get.addr.eq(get.addr + 1)
        with m.If(self.leaves):
            m.d.sync += begun.eq(0)
        with m.Elif(fetch_moves & may_fetch & is_first):
            m.d.sync += begun.eq(1)
        m.d.sync += self.leaves.eq(offered.valid & offered.ready & offered_first)
        # Straight from the memory into a register, which may be the memory's own: the edges, 0 but
        # beside their word, and what a failure changes come after it.
        word = Signal(64, reset_less=True)
        changed = Signal(2, reset_less=True)  # this word's status, or its ``valid``, is another
        word_edges = Signal(EdgeBytes, reset_less=True)
        bits = Signal(64)
        m.d.comb += bits.eq(word)
        m.d.comb += offered.payload.eq(
            bits
            | Cat(Const(0, CQE_LAYOUT["head_map"].offset % 64), word_edges.head, word_edges.tail)
        )
        part = {name: bits[field.offset % 64 :][: field.width] for name, field in CQE_LAYOUT}
        is_word = {name: fetched_number == field.offset // 64 for name, field in CQE_LAYOUT}
        with m.If(moves):
            m.d.sync += [
                offered.valid.eq(fetched),
                offered_first.eq(fetched_number == 0),
                word.eq(get.data),
                word_edges.eq(edges),
                changed.eq(Cat(failed & is_word["status"], failed & is_word["valid"])),
            ]
        with m.If(changed[0]):
            m.d.comb += [
                part["status"].eq(Status.GENERAL_ERR),
                part["flags"][exact_log2(CqeFlag.MAPPED)].eq(0),
            ]
        with m.If(changed[1]):
            m.d.comb += part["valid"].eq(0)
        with m.If(moves & ~is_word["head_map"]):
            m.d.sync += word_edges.eq(0)
        return m

    def _keep_items(self, m, given, heads, orders):
        """Items in one block RAM, of which first the order is taken and then the head, each from a
        register. In an empty queue both come at once, 3 cycles after their item."""
        (item, put), (head, head_valid, leaves), (order, order_valid, taken) = given, heads, orders
        # What is read was written before, and is not being written: as above.
        m.submodules.items = items = memory.Memory(
            shape=item.shape(),
            depth=self._depth,
            init=[],
            attrs={"no_rw_check": 1, "ram_style": "block"},
        )
        writer, reader = items.write_port(), items.read_port()
        next_head, next_order = Signal.like(writer.addr), Signal.like(writer.addr)
        # By the cycle before: what changes any of these then keeps it from being asked for now.
        has_head, has_order, is_same = Signal(), Signal(), Signal()
        wants_head, wants_order = Signal(), Signal()
        fetched_head, fetched_order = Signal(), Signal()
        m.d.comb += [
            writer.data.eq(item),
            writer.en.eq(put),
            wants_head.eq(~head_valid & ~fetched_head & has_head),
            wants_order.eq(~order_valid & ~fetched_order & has_order & (~wants_head | is_same)),
            reader.addr.eq(Mux(wants_head, next_head, next_order)),
            reader.en.eq(wants_head | wants_order),
        ]
        m.d.sync += [
            has_head.eq(put | (next_head != writer.addr)),
            has_order.eq(put | (next_order != writer.addr)),
            is_same.eq(next_order == next_head),
            writer.addr.eq(writer.addr + put),
            next_head.eq(next_head + wants_head),
            next_order.eq(next_order + wants_order),
            fetched_head.eq(wants_head),
            fetched_order.eq(wants_order),
        ]
        for name, register, valid, fetched, gone in (
            ("head", head, head_valid, fetched_head, leaves),
            ("order", order, order_valid, fetched_order, taken),
        ):
            with m.If(fetched):
                m.d.sync += [register.eq(reader.data[name]), valid.eq(1)]
            with m.Elif(gone):
                m.d.sync += valid.eq(0)
