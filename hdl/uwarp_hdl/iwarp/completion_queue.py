"""Completions in order, each after its payload and its map.

entries --+--> entry queue ----------------------------------------------> join --> completions
          '--> order queue --> [MapWriter: payload retired? write map] --> releases --^
                                 ^ runs, words, edges of the snapshot       (map answered?)
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import CqeFlag

from ..interfaces import WriteClientSignature
from ..layouts import Completion
from ..stream.queue import Queue
from .burst import BLOCK_WORDS, BurstSplitter, WordRun
from .receive_layouts import TICKET_WIDTH, PendingCompletion
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
    runs, words, edges : In(streams of WordRun, MapWord, EdgeBytes)
        Of each order with a map.
    write : Out(WriteClientSignature)
    releases : Out(stream of Release)
    answered : Out(1)
        Strobe: all bursts of the next map have been answered.
    """

    orders: In(stream.Signature(Order))
    retired: In(TICKET_WIDTH)
    runs: In(stream.Signature(WordRun))
    words: In(stream.Signature(MapWord))
    edges: In(stream.Signature(EdgeBytes))
    write: Out(WriteClientSignature())
    releases: Out(stream.Signature(Release))
    answered: Out(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.splitter = splitter = BurstSplitter()
        # One bit for each burst on its way: whether it is the last one of its map.
        m.submodules.finals = finals = Queue(1, 32)
        m.d.comb += [
            self.write.bursts.payload.eq(splitter.bursts.payload),
            self.write.bursts.valid.eq(splitter.bursts.valid & finals.i.ready),
            splitter.bursts.ready.eq(self.write.bursts.ready & finals.i.ready),
            finals.i.payload.eq(splitter.final),
            finals.i.valid.eq(splitter.bursts.valid & self.write.bursts.ready),
            finals.o.ready.eq(self.write.done),
        ]
        m.d.sync += self.answered.eq(self.write.done & finals.o.payload)

        order = self.orders.payload
        run = self.runs.payload
        # Of an order that has been offered for a cycle or more.
        placed = Signal()
        m.d.sync += placed.eq(
            self.orders.valid & ~self.orders.ready & reached(self.retired, order.ticket)
        )
        position = Signal(range(BLOCK_WORDS))
        left = Signal(24)
        final = Signal()
        has_map = Signal()
        # Of a run that has been offered for a cycle or more.
        seen = Signal()
        end = Signal(25)
        empty = Signal()
        m.d.sync += [
            seen.eq(self.runs.valid & ~self.runs.ready),
            end.eq(run.word[: exact_log2(BLOCK_WORDS)] + run.words - 1),
            empty.eq(run.words == 0),
        ]
        beat = self.write.beats
        m.d.comb += [
            splitter.commands.payload.word.eq(run.word),
            splitter.commands.payload.end.eq(end),
            beat.payload.data.eq(self.words.payload.data),
            beat.payload.strobe.eq(self.words.payload.strobe),
            beat.payload.last.eq(final | position.all()),
            self.releases.payload.has_map.eq(has_map),
            self.releases.payload.edges.eq(self.edges.payload),
        ]
        with m.FSM():
            with m.State("ORDER"):
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
                    splitter.commands.valid.eq(seen & ~empty),
                    self.runs.ready.eq(seen & (empty | splitter.commands.ready)),
                ]
                m.d.sync += [
                    left.eq(run.words),
                    final.eq(run.words == 1),
                    position.eq(run.word),
                ]
                with m.If(self.runs.ready):
                    m.next = "WORDS"
                    with m.If(empty):
                        m.next = "EDGES"
                    with m.Else():
                        m.d.sync += has_map.eq(1)
            with m.State("WORDS"):
                m.d.comb += [beat.valid.eq(self.words.valid), self.words.ready.eq(beat.ready)]
                with m.If(beat.valid & beat.ready):
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
    map_write : Out(WriteClientSignature)
    completions : Out(stream of Completion)
    level : Out
        Completions held.
    crowded : Out(1)
        So many placements (96, by the cycle before) have been numbered since the oldest
        completion's that the next must wait, for the numbers to stay comparable.
    """

    def __init__(self, depth: int = 64):
        if not 4 <= depth <= 1 << TICKET_WIDTH - 2:
            raise ValueError(f"depth is {depth}; it takes 4 to {1 << TICKET_WIDTH - 2}")
        self._depth = depth
        super().__init__(
            {
                "entries": In(stream.Signature(PendingCompletion)),
                "ticket": In(TICKET_WIDTH),
                "numbered": In(TICKET_WIDTH),
                "mapped": In(1),
                "retired": In(TICKET_WIDTH),
                "runs": In(stream.Signature(WordRun)),
                "words": In(stream.Signature(MapWord)),
                "edges": In(stream.Signature(EdgeBytes)),
                "map_write": Out(WriteClientSignature()),
                "completions": Out(stream.Signature(Completion)),
                "level": Out(range(depth + 1)),
                "crowded": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.entries = entries = Queue(PendingCompletion, self._depth)
        m.submodules.orders = orders = Queue(Order, self._depth)
        m.submodules.releases = releases = Queue(Release, 16)
        m.submodules.writer = writer = MapWriter()
        both_ready = entries.i.ready & orders.i.ready
        m.d.comb += [
            self.entries.ready.eq(both_ready),
            entries.i.payload.eq(self.entries.payload),
            entries.i.valid.eq(self.entries.valid & both_ready),
            orders.i.payload.ticket.eq(self.ticket),
            orders.i.payload.mapped.eq(self.mapped),
            orders.i.valid.eq(self.entries.valid & both_ready),
            self.level.eq(entries.level),
            writer.retired.eq(self.retired),
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
        mapped = entry.flags & CqeFlag.MAPPED != 0
        for name in ("opcode", "status", "flags", "qpn", "wqe_index", "valid", "msn", "mlen"):
            m.d.comb += completion.cqe[name].eq(entry[name])
        for name in ("base_to", "stag", "immediate", "source_ip", "source_port"):
            m.d.comb += completion.cqe[name].eq(entry[name])
        m.d.comb += [
            completion.cq.eq(entry.cq),
            completion.cqe.head_map.eq(Mux(mapped, release.edges.head, 0)),
            completion.cqe.tail_map.eq(Mux(mapped, release.edges.tail, 0)),
            self.completions.valid.eq(entries.o.valid & release_valid & written),
            entries.o.ready.eq(self.completions.ready & release_valid & written),
            take.eq(self.completions.valid & self.completions.ready),
        ]
        return m
