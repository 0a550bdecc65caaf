"""Take a closed message's bits out of the on-chip map.

    commands -> clears (of up to 4 words) -> ValidityMap -> word -> strobes, edge bytes -> words
            '-> runs {word, words, qpn}                                                   '-> edges

The words wait in a queue until the message's payload is in memory; the map is free for the next
message in the same place as soon as ``idle``.
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters

from ..stream.queue import Queue
from .receive_layouts import granule_width, map_run_layout, snapshot_layout
from .validity_map import bit_range_layout

__all__ = ["EdgeBytes", "MapSnapshot", "MapWord"]

CHUNK_WORDS = 4


class MapWord(data.Struct):
    """Eight bytes of a host map; those with a strobe lie between the message's edge bytes."""

    data: 64
    strobe: 8


class EdgeBytes(data.Struct):
    """Map bytes of a message's first and last granule."""

    head: 8
    tail: 8


class MapSnapshot(wiring.Component):
    """Clear the bits of closed messages and say what they were (device behaviour, 4.4).

    About 3 cycles a word of 64 granules, and 10 a message. A chunk waits while the queue
    of words is almost full; a command, while the edges of 16 wait.

    Parameters
    ----------
    parameters : Parameters
    depth : int
        Words of map that can wait for their message's payload, at least 8.

    Members
    -------
    commands : In(stream of snapshot)
    clears : Out(stream of bit range)
    word_valid, word, word_last : In
        Answers to ``clears``, as of :class:`ValidityMap`.
    runs : Out(stream of map_run_layout)
        For each command at once: the words of host map that come of it; ``words`` is 0 if none do.
    words : Out(stream of MapWord)
    edges : Out(stream of EdgeBytes)
        For each command, after its words.
    idle : Out(1)
        Each command that was taken has left the map.
    """

    def __init__(self, parameters: Parameters, depth: int = 512):
        if depth < 2 * CHUNK_WORDS:
            raise ValueError(f"depth is {depth}; it takes {2 * CHUNK_WORDS} or more")
        self._parameters = parameters
        self._depth = depth
        super().__init__(
            {
                "commands": In(stream.Signature(snapshot_layout(parameters))),
                "clears": Out(stream.Signature(bit_range_layout(parameters))),
                "word_valid": In(1),
                "word": In(64),
                "word_last": In(1),
                "runs": Out(stream.Signature(map_run_layout(parameters))),
                "words": Out(stream.Signature(MapWord)),
                "edges": Out(stream.Signature(EdgeBytes)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = granule_width(self._parameters)
        m.submodules.words = queue = Queue(MapWord, self._depth, direct=False)
        m.submodules.runs = runs = Queue(map_run_layout(self._parameters), 16, registered=False)
        m.submodules.edges = edges_queue = Queue(EdgeBytes, 16, registered=False)
        wiring.connect(m, queue.o, wiring.flipped(self.words))
        wiring.connect(m, runs.o, wiring.flipped(self.runs))
        wiring.connect(m, edges_queue.o, wiring.flipped(self.edges))

        message = Signal(snapshot_layout(self._parameters))
        head_byte = message.first[3:]
        tail_byte = message.last[3:]
        # Of the word that comes next, and, up to a chunk's first word, of the next granule to
        # clear: a word's first one but in the first chunk.
        word_number = Signal(width - 6)
        place = Signal(6)
        granule = Cat(place, word_number)
        edges = Signal(EdgeBytes)
        # Right from the cycle after the message was taken.
        inner_last = Signal(width)
        has_inner = Signal()
        first_word = Signal(width - 6)
        end_word = Signal(width - 5)
        has_words = Signal()
        head_mask = Signal(8)
        tail_mask = Signal(8)
        m.d.sync += [
            inner_last.eq(message.last - 1),
            # In this cycle ``granule`` is the one after the first.
            has_inner.eq((message.last != message.first) & (message.last != granule)),
            first_word.eq((head_byte + 1)[3:]),
            end_word.eq((tail_byte + 7)[3:]),
            has_words.eq((tail_byte != head_byte) & (tail_byte != head_byte + 1)),
            head_mask.eq(0xFE << message.first[3:6]),
            tail_mask.eq(~(0xFF << message.last[3:6])),
        ]
        # Right from two cycles after, and then given out, whatever comes of the bits.
        run = runs.i.payload
        run_due = Signal(3)
        m.d.sync += [
            run.word.eq(message.map_addr[3:] + first_word),
            run.words.eq(Mux(has_words, end_word - first_word, 0)),
        ]
        m.d.comb += [run.qpn.eq(message.qpn), runs.i.valid.eq(run_due[2])]
        m.d.sync += run_due.eq(Cat(C(0, 1), run_due[0], run_due[1] | (run_due[2] & ~runs.i.ready)))

        is_final = Signal()  # the chunk of ``granule``
        chunk_last = Cat(inner_last[:8] | (~is_final).replicate(8), granule[8:])
        m.d.sync += [
            is_final.eq(granule[8:] == inner_last[8:]),
            self.clears.payload.first.eq(message.map_base + granule),
            self.clears.payload.last.eq(message.map_base + chunk_last),
        ]

        # Whether the word that comes next is that of the first, or the last granule.
        at_head = Signal()
        at_tail = Signal()
        tail_word = message.last[6:]
        number_next = Signal(width - 6)
        m.d.comb += number_next.eq(word_number + self.word_valid)
        m.d.sync += at_tail.eq(number_next == tail_word)
        m.d.comb += [
            queue.i.payload.data.eq(self.word),
            queue.i.payload.strobe.eq(
                Mux(at_head, head_mask, 0xFF) & Mux(at_tail, tail_mask, 0xFF)
            ),
            queue.i.valid.eq(self.word_valid & queue.i.payload.strobe.any()),
        ]
        with m.If(self.word_valid):
            m.d.sync += [word_number.eq(number_next), at_head.eq(0)]
            with m.If(at_head):
                m.d.sync += edges.head.eq(self.word.word_select(message.first[3:6], 8))
            with m.If(at_tail):
                m.d.sync += edges.tail.eq(self.word.word_select(message.last[3:6], 8))

        head_bit = Mux(message.head, 1 << message.first[:3], 0)
        tail_bit = Mux(message.tail, 1 << message.last[:3], 0)
        same = Signal()
        m.d.sync += same.eq(head_byte == tail_byte)
        m.d.comb += [
            edges_queue.i.payload.head.eq(edges.head | head_bit | Mux(same, tail_bit, 0)),
            edges_queue.i.payload.tail.eq(edges.tail | tail_bit | Mux(same, head_bit, 0)),
        ]
        with m.FSM() as fsm:
            with m.State("IDLE"):
                m.d.comb += self.commands.ready.eq(~run_due.any())
                with m.If(self.commands.valid & self.commands.ready):
                    m.d.sync += [
                        message.eq(self.commands.payload),
                        granule.eq(self.commands.payload.first + 1),
                        at_head.eq(~self.commands.payload.first[:6].all()),
                        edges.eq(0),
                        run_due[0].eq(1),
                    ]
                    m.next = "SPAN"
            with m.State("SPAN"):
                m.next = "INNER"
            with m.State("INNER"):
                # The first and the last granule are not in the map.
                m.next = "EDGES"
                with m.If(has_inner):
                    m.next = "ROOM"
            with m.State("CHUNK"):
                m.next = "ROOM"
            with m.State("ROOM"):
                with m.If(queue.level <= self._depth - 2 * CHUNK_WORDS):
                    m.next = "CLEAR"
            with m.State("CLEAR"):
                m.d.comb += self.clears.valid.eq(1)
                with m.If(self.clears.ready):
                    m.next = "WORDS"
            with m.State("WORDS"):
                with m.If(self.word_valid & self.word_last):
                    m.d.sync += place.eq(0)
                    m.next = "CHUNK"
                    with m.If(is_final):
                        m.next = "EDGES"
            with m.State("EDGES"):
                m.d.comb += edges_queue.i.valid.eq(1)
                with m.If(edges_queue.i.ready):
                    m.next = "IDLE"
        m.d.comb += self.idle.eq(fsm.ongoing("IDLE") & ~self.commands.valid)
        return m
