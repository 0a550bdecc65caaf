"""Completions in order, each after its payload and its map.

entries --+--> entry queue ----------------------------------------------> join --> completions
          '--> order queue --> [MapWriter: payload retired? write map] --> releases --^
                                 ^ runs, words, edges of the snapshot       (map answered?)
"""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import BURST_WORDS, CqeFlag, Parameters, Status

from ..interfaces import WriteClientSignature
from ..layouts import Completion
from ..stream.queue import Queue
from .burst import WriteBursts
from .receive_layouts import (
    TICKET_WIDTH,
    PendingCompletion,
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


def _fields(view):
    layout = data.Layout.cast(view.shape())
    return [(name, Value.cast(view[name])) for name, _ in layout]


def reached(number, ticket):
    """Whether ``number``, which counts up, has come to ``ticket``, less than half a turn away."""
    return ~(number - ticket)[TICKET_WIDTH - 1]


class MapWriter(wiring.Component):
    """Release completions in order; write the maps of those that have one.

    An order without a map takes 2 cycles, one with a map 4 or 5 and its words. Words of the map are
    written as soon as the message's payload has been answered; nothing waits for the answer here.

    Members
    -------
    orders : In(stream of Order)
    retired : In(8)
        Placements answered.
    runs, words, edges : In(streams of map_run_layout, MapWord, EdgeBytes)
        Of each order with a map.
    failed : In(n_qp)
        QPs that have failed: their maps are taken and not written.
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
                "runs": In(stream.Signature(map_run_layout(parameters))),
                "words": In(stream.Signature(MapWord)),
                "edges": In(stream.Signature(EdgeBytes)),
                "failed": In(parameters.n_qp),
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
        # A cycle late, for ``failed`` to tell of its faults.
        m.d.sync += self.answered.eq(bursts.answered)

        order = self.orders.payload
        run = self.runs.payload
        # Of an order that has been offered for a cycle or more.
        placed = Signal()
        m.d.sync += placed.eq(
            self.orders.valid & ~self.orders.ready & reached(self.retired, order.ticket)
        )
        position = Signal(range(BURST_WORDS))
        left = Signal(words_width)
        final = Signal()
        has_map = Signal()
        # Of a run that has been offered for a cycle or more.
        seen = Signal()
        end = Signal(words_width)
        empty = Signal()
        # Looked up when the payload is in memory, and then kept.
        failed = self.failed.bit_select(run.qpn, 1)
        discard = Signal()
        m.d.sync += [
            seen.eq(self.runs.valid & ~self.runs.ready),
            end.eq(run.word[: exact_log2(BURST_WORDS)] + run.words - 1),
            empty.eq(run.words == 0),
        ]
        beat = self.write.beats
        m.d.comb += [
            bursts.commands.payload.run.word.eq(run.word),
            bursts.commands.payload.run.end.eq(end),
            bursts.commands.payload.qpn.eq(run.qpn),
            beat.payload.data.eq(self.words.payload.data),
            beat.payload.strobe.eq(self.words.payload.strobe),
            beat.payload.last.eq(final | position.all()),
            self.releases.payload.has_map.eq(has_map),
            self.releases.payload.edges.eq(self.edges.payload),
        ]
        with m.FSM():
            with m.State("ORDER"):
                m.d.sync += discard.eq(failed)
                with m.If(placed):
                    with m.If(order.mapped):
                        m.next = "RUN"
                    with m.Else():
                        m.d.comb += [
                            self.releases.valid.eq(1),
                            self.orders.ready.eq(self.releases.ready),
                        ]
            with m.State("RUN"):
                m.d.comb += [
                    bursts.commands.valid.eq(seen & ~empty & ~discard),
                    self.runs.ready.eq(seen & (empty | discard | bursts.commands.ready)),
                ]
                m.d.sync += [
                    left.eq(run.words),
                    final.eq(run.words == 1),
                    position.eq(run.word),
                ]
                with m.If(~seen):
                    m.d.sync += discard.eq(failed)
                with m.If(self.runs.ready):
                    m.next = "WORDS"
                    with m.If(empty):
                        m.next = "EDGES"
                    with m.Else():
                        m.d.sync += has_map.eq(~discard)
            with m.State("WORDS"):
                m.d.comb += [
                    beat.valid.eq(self.words.valid & ~discard),
                    self.words.ready.eq(beat.ready | discard),
                ]
                with m.If(self.words.valid & self.words.ready):
                    m.d.sync += [
                        left.eq(left - 1),
                        final.eq(left == 2),
                        position.eq(position + 1),
                    ]
                    with m.If(final):
                        m.next = "EDGES"
            with m.State("EDGES"):
                m.d.comb += [
                    self.releases.valid.eq(self.edges.valid),
                    self.edges.ready.eq(self.releases.ready),
                ]
                with m.If(self.edges.valid & self.releases.ready):
                    m.d.comb += self.orders.ready.eq(1)
                    m.d.sync += has_map.eq(0)
                    m.next = "ORDER"
        return m


class CompletionQueue(wiring.Component):
    """Hold completions until their payload and map are in host memory (device behaviour, 4.5).

    Parameters
    ----------
    parameters : Parameters
    depth : int
        Completions, 4 to 64.

    Members
    -------
    entries : In(stream of PendingCompletion)
    ticket : In(8)
        With ``entries``: the number of the placement to wait for.
    numbered : In(8)
        The number of the last placement.
    mapped : In(1)
        With ``entries``: a map comes with it.
    retired : In(8)
    runs, words, edges : In
    failed : In(n_qp)
        QPs that have failed: their completions leave with GENERAL_ERR and without a map (8.1).
    payload_fault : In(fault)
        In the cycle in which ``retired`` counts it; ``failed`` tells of it in the next.
    map_write : Out(WriteClientSignature)
    hold, fault : In(1), Out(fault)
        As of :class:`WriteBursts`; ``failed`` tells of a fault in the next cycle.
    completions : Out(stream of Completion)
    level : Out
        Completions held.
    crowded : Out(1)
        So many placements (96, by the cycle before) have been numbered since the oldest
        completion's that the next must wait, for the numbers to stay comparable.
    """

    def __init__(self, parameters: Parameters, depth: int = 64):
        if not 4 <= depth <= 1 << TICKET_WIDTH - 2:
            raise ValueError(f"depth is {depth}; it takes 4 to {1 << TICKET_WIDTH - 2}")
        self._parameters = parameters
        self._depth = depth
        super().__init__(
            {
                "entries": In(stream.Signature(PendingCompletion)),
                "ticket": In(TICKET_WIDTH),
                "numbered": In(TICKET_WIDTH),
                "mapped": In(1),
                "retired": In(TICKET_WIDTH),
                "runs": In(stream.Signature(map_run_layout(parameters))),
                "words": In(stream.Signature(MapWord)),
                "edges": In(stream.Signature(EdgeBytes)),
                "failed": In(parameters.n_qp),
                "payload_fault": In(fault_layout(parameters)),
                "map_write": Out(WriteClientSignature()),
                "hold": In(1),
                "fault": Out(fault_layout(parameters)),
                "completions": Out(stream.Signature(Completion)),
                "level": Out(range(depth + 1)),
                "crowded": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # Stored as wide as a slot can have been reserved for: of QPs and CQs that exist.
        widths = {name: len(field) for name, field in _fields(self.entries.payload)}
        widths |= {name: exact_log2(self._parameters.n_qp) for name in ("qpn", "cq")}
        stored = data.StructLayout(widths)
        m.submodules.entries = entries = Queue(stored, self._depth, direct=False)
        m.submodules.orders = orders = Queue(Order, self._depth)
        m.submodules.releases = releases = Queue(Release, 16, registered=False)
        m.submodules.writer = writer = MapWriter(self._parameters)
        both_ready = entries.i.ready & orders.i.ready
        m.d.comb += [
            self.entries.ready.eq(both_ready),
            *(entries.i.payload[name].eq(field) for name, field in _fields(self.entries.payload)),
            entries.i.valid.eq(self.entries.valid & both_ready),
            orders.i.payload.ticket.eq(self.ticket),
            orders.i.payload.mapped.eq(self.mapped),
            orders.i.valid.eq(self.entries.valid & both_ready),
            self.level.eq(entries.level),
            writer.retired.eq(self.retired),
            writer.failed.eq(self.failed),
            writer.hold.eq(self.hold),
            self.fault.eq(writer.fault),
        ]
        m.d.sync += self.crowded.eq(
            orders.o.valid & ((self.numbered - orders.o.payload.ticket)[:8] >= 96)
        )
        for name in ("runs", "words", "edges"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(writer, name))
        wiring.connect(m, orders.o, writer.orders)
        wiring.connect(m, writer.write, wiring.flipped(self.map_write))

        entry = entries.o.payload
        # A release goes past the queue if nothing is in there.
        release = Signal(Release)
        release_valid = Signal()
        take = Signal()
        m.d.comb += [
            release.eq(Mux(releases.o.valid, releases.o.payload, writer.releases.payload)),
            release_valid.eq(releases.o.valid | writer.releases.valid),
            releases.o.ready.eq(take),
            releases.i.payload.eq(writer.releases.payload),
            releases.i.valid.eq(writer.releases.valid & (releases.o.valid | ~take)),
            writer.releases.ready.eq(releases.i.ready),
        ]
        completion = self.completions.payload
        # Maps answered whose completions are still here.
        answers = Signal(range(self._depth + 1))
        answered = Signal()
        written = ~release.has_map | answered
        with_map = take & release.has_map
        with m.If(writer.answered & ~with_map):
            m.d.sync += [answers.eq(answers + 1), answered.eq(1)]
        with m.Elif(with_map & ~writer.answered):
            m.d.sync += [answers.eq(answers - 1), answered.eq(answers != 1)]
        # Of the entry that was here a cycle before, with the fault of that cycle. It stands while
        # the completion is offered.
        failed = Signal()
        looked = Signal()
        m.d.sync += looked.eq(entries.o.valid & ~entries.o.ready)
        with m.If(~self.completions.valid):
            hit = self.payload_fault.valid & (self.payload_fault.qpn == entry.qpn)
            m.d.sync += failed.eq(self.failed.bit_select(entry.qpn, 1) | hit)
        mapped = (entry.flags & CqeFlag.MAPPED != 0) & ~failed
        for name in ("opcode", "qpn", "wqe_index", "msn", "mlen", "base_to", "stag"):
            m.d.comb += completion.cqe[name].eq(entry[name])
        for name in ("immediate", "source_ip", "source_port"):
            m.d.comb += completion.cqe[name].eq(entry[name])
        due = looked & release_valid & written
        m.d.comb += [
            completion.cq.eq(entry.cq),
            completion.cqe.status.eq(Mux(failed, Status.GENERAL_ERR, entry.status)),
            completion.cqe.flags.eq(Mux(failed, entry.flags & ~CqeFlag.MAPPED, entry.flags)),
            completion.cqe.valid.eq(Mux(failed, 0, entry.valid)),
            completion.cqe.head_map.eq(Mux(mapped, release.edges.head, 0)),
            completion.cqe.tail_map.eq(Mux(mapped, release.edges.tail, 0)),
            self.completions.valid.eq(due),
            entries.o.ready.eq(self.completions.ready & due),
            take.eq(self.completions.valid & self.completions.ready),
        ]
        return m
