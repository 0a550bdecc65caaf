"""Take a closed message's bits out of the on-chip map.

    commands -> clears (of a host word) -> ValidityMap -> words -> gathered --+           +-> runs
            '-> run: word, then words and qpn --------------------------------+-> queue --+-> words
                                                  edge bytes, of first, last -+           '-> edges

What there is of a message waits in a queue until its payload is in memory; the map is free for the
next message in the same place as soon as ``idle``. Only words of the map have a strobe, and what
follows the last has none: so they wait in the same block RAM as run and edges.
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import Parameters

from ..compare import equal
from ..data_register import data_register
from ..stream.queue import Queue
from .receive_layouts import granule_width, map_run_layout, snapshot_layout
from .validity_map import MAP_WORD, bit_range_layout

__all__ = ["EdgeBytes", "MapSnapshot", "MapWord"]


class MapWord(data.Struct):
    """Eight bytes of a host map; those with a strobe lie between the message's edge bytes."""

    data: 64
    strobe: 8


class EdgeBytes(data.Struct):
    """Map bytes of a message's first and last granule."""

    head: 8
    tail: 8


def _run_rest(parameters):
    """The second part of a run, and from which bit on it lies in its word."""
    shape = map_run_layout(parameters)
    rest = data.StructLayout({name: shape[name].shape for name in ("words", "qpn")})
    return rest, 64 - rest.size


class MapSnapshot(wiring.Component):
    """Clear the bits of closed messages and say what they were (device behaviour, 4.4).

    8 cycles a host word of 64 granules, and 10 a message. A host word and a command wait while the
    queue is almost full. What is given out comes in the order run, words, edges, message after
    message: a word every 3 cycles, a message without words in 8.

    Parameters
    ----------
    parameters : Parameters
    depth : int
        Words of map that can wait for their message's payload, and three more of each message: a
        power of two, at least 8.

    Members
    -------
    commands : In(stream of snapshot)
    clears : Out(stream of bit range)
    word_valid, word, word_last : In
        Answers to ``clears``, as of :class:`ValidityMap`.
    runs : Out(stream of map_run_layout)
        For each command: the words of host map that come of it; ``words`` is 0 if none do.
    words : Out(stream of MapWord)
    edges : Out(stream of EdgeBytes)
        For each command, after its words.
    idle : Out(1)
        Each command that was taken has left the map.
    """

    def __init__(self, parameters: Parameters, depth: int = 512):
        if depth < 8 or depth & depth - 1:
            raise ValueError(f"depth is {depth}; it takes a power of two, 8 or more")
        self._parameters = parameters
        self._depth = depth
        super().__init__(
            {
                "commands": In(stream.Signature(snapshot_layout(parameters))),
                "clears": Out(stream.Signature(bit_range_layout(parameters))),
                "word_valid": In(1),
                "word": In(MAP_WORD),
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
        run_shape = map_run_layout(self._parameters)
        rest_shape, rest_at = _run_rest(self._parameters)
        m.submodules.words = queue = Queue(MapWord, self._depth, direct=False)
        self._give(m, queue.o)

        message = Signal(snapshot_layout(self._parameters), reset_less=True)
        first, last = message.first, message.last
        # Right from the cycle after the message was taken: granules and bytes of the map between.
        distance = Signal(width, reset_less=True)
        end_word = Signal(width - 5, reset_less=True)
        byte_more = (first[:3] + distance[:3])[3]
        has_inner = Signal()  # a cycle later
        has_words = distance[4:].any() | (distance[3] & byte_more)
        same_byte = ~distance[3:].any() & ~byte_more
        m.d.sync += [
            distance.eq(last - first),
            has_inner.eq(distance[1:].any()),
            end_word.eq(last[6:] + last[3:6].any()),
        ]
        # The run's words begin with that of the byte after the first. Both parts of it are 0 but in
        # the cycle in which they go into the queue, the second and the third one after.
        run_word = Signal(run_shape["word"].shape, reset_less=True)
        run_rest = Signal(rest_shape, reset_less=True)
        run_due = Signal(3)
        first_ends_word = first[3:6].all()
        words = Cat(C(1, 1), end_word) + Cat(~first_ends_word, ~first[6:], C(1, 1))
        m.d.sync += [
            run_word.eq((Cat(C(1, 1), message.map_addr[3:]) + Cat(first_ends_word, first[6:]))[1:]),
            run_rest.words.eq(words[1:]),
            run_rest.qpn.eq(message.qpn),
            run_due.eq(Cat(C(0, 1), run_due[:2])),
        ]
        with m.If(~run_due[0]):
            m.d.sync += run_word.eq(0)
        with m.If(~run_due[1]):
            m.d.sync += run_rest.eq(0)
        with m.If(~has_words):
            m.d.sync += run_rest.words.eq(0)

        # Host word after host word is cleared: from granule ``place`` of word ``number`` on, up to
        # its last one, or the one before the message's last. A map begins with a host word.
        number = Signal(width - 6, reset_less=True)
        place = Signal(6, reset_less=True)
        step = Signal()  # 0: the granule after the first is in its word
        is_last = Signal()
        is_empty = Signal()  # as the last one, nothing of it is between the first and the last
        mapped_word = Signal(width - 6, reset_less=True)
        last_place = Signal(6, reset_less=True)
        m.d.sync += [
            is_last.eq(equal(m, number, last[6:])),
            is_empty.eq(last[:6] == 0),
            mapped_word.eq(message.map_base[6:] + number),
            last_place.eq(Mux(is_last, last[:6] - 1, 63)),
        ]
        m.d.comb += [
            self.clears.payload.first.eq(Cat(place, mapped_word)),
            self.clears.payload.last.eq(Cat(last_place, mapped_word)),
        ]

        # What the map tells is gathered to host words. Whether its next word is that of the first
        # granule, or its last one that of the last.
        lane = Signal(exact_log2(64 // MAP_WORD))
        at_head = Signal()
        ends_at_tail = Signal()
        final = Signal()  # the host word that is cleared is the last one
        at_tail = self.word_last & ends_at_tail
        gathered = Signal(MapWord)
        push = Signal()
        edge_bytes = Signal(EdgeBytes)
        m.d.comb += [
            queue.i.payload.data.eq(
                gathered.data | run_word | Cat(edge_bytes, C(0, rest_at - 16), run_rest)
            ),
            queue.i.payload.strobe.eq(gathered.strobe),
        ]
        m.d.sync += push.eq(self.word_last)
        strobe = Cat(~at_head & (~at_tail | last[3]), ~at_tail & (~at_head | ~first[3]))
        for i in range(64 // MAP_WORD):
            with m.If(self.word_valid & (lane == i)):
                m.d.sync += [
                    gathered.data.word_select(i, MAP_WORD).eq(self.word),
                    gathered.strobe.word_select(i, MAP_WORD // 8).eq(strobe),
                ]
        # Never beside a word of the map. Outermost: a reset before an enable takes no logic.
        with m.If(push):
            m.d.sync += gathered.eq(0)
        edges = Signal(EdgeBytes, reset_less=True)
        with m.If(self.word_valid):
            m.d.sync += [lane.eq(lane + 1), at_head.eq(0)]
            with m.If(at_head):
                m.d.sync += edges.head.eq(self.word.word_select(first[3], 8))
            with m.If(at_tail):
                m.d.sync += edges.tail.eq(self.word.word_select(last[3], 8))

        head_bit = Mux(message.head, 1 << first[:3], 0)
        tail_bit = Mux(message.tail, 1 << last[:3], 0)
        same = Signal()
        pushes_edges = Signal()
        m.d.sync += same.eq(same_byte)
        with m.If(pushes_edges):
            m.d.comb += [
                edge_bytes.head.eq(edges.head | head_bit | Mux(same, tail_bit, 0)),
                edge_bytes.tail.eq(edges.tail | tail_bit | Mux(same, head_bit, 0)),
            ]
        m.d.comb += queue.i.valid.eq(
            (push & gathered.strobe.any()) | run_due[1] | run_due[2] | pushes_edges
        )
        # For the words on their way, and one more. What was there of it when a message was waited
        # for is enough for its run, whatever edges have come since.
        room = Signal()
        bits = exact_log2(self._depth)
        m.d.sync += room.eq(~(queue.level[bits] | queue.level[2:bits].all()))
        # Both of registers: they are asked for a long way from here.
        ready = Signal()
        idle = Signal(init=1)
        m.d.comb += [self.commands.ready.eq(ready), self.idle.eq(idle)]
        with m.FSM():
            with m.State("IDLE"):
                command = self.commands.payload
                following = command.first[:6] + 1
                m.d.sync += [
                    ready.eq(ready | room),
                    message.eq(command),
                    number.eq(command.first[6:]),
                    place.eq(following),
                    step.eq(following[6]),
                    lane.eq(following[6 - len(lane) : 6]),
                    at_head.eq(~command.first[: exact_log2(MAP_WORD)].all()),
                    edges.eq(0),
                ]
                with m.If(self.commands.valid & ready):
                    m.d.sync += [run_due[0].eq(1), ready.eq(0), idle.eq(0)]
                    m.next = "SPAN"
            with m.State("SPAN"):
                m.d.sync += [number.eq(number + step), step.eq(1)]
                m.next = "INNER"
            with m.State("INNER"):
                m.next = "ROOM"
            with m.State("ROOM"):
                # The first and the last granule are not in the map.
                with m.If(~has_inner):
                    m.next = "EDGES"
                with m.Elif(room):
                    m.next = "CLEAR"
            with m.State("CLEAR"):
                m.d.comb += self.clears.valid.eq(1)
                m.d.sync += [
                    final.eq(is_last),
                    ends_at_tail.eq(is_last & last[: exact_log2(MAP_WORD)].any()),
                ]
                with m.If(self.clears.ready):
                    m.d.sync += [number.eq(number + step), place.eq(0)]
                    m.next = "WORDS"
            with m.State("WORDS"):
                with m.If(self.word_last):
                    m.next = "ROOM"
                    with m.If(final | (is_last & is_empty)):
                        m.next = "EDGES"
                    with m.Elif(room):
                        m.next = "CLEAR"
            with m.State("EDGES"):
                # Nothing else is pushed in the cycle after.
                m.d.sync += pushes_edges.eq(~run_due[1])
                with m.If(pushes_edges & queue.i.ready):
                    m.d.sync += [pushes_edges.eq(0), ready.eq(room), idle.eq(1)]
                    m.next = "IDLE"
        return m

    def _give(self, m, queued):
        """What leaves the queue to the stream that it is for."""
        runs, words, edges = self.runs, self.words, self.edges
        _, rest_at = _run_rest(self._parameters)
        bits = queued.payload.data
        # What the head of the queue is, and that it has gone: from registers, so a word takes three
        # cycles, and no path goes through here.
        word_due, edges_due, gone = Signal(), Signal(), Signal()
        is_edges = ~queued.payload.strobe.any()
        m.d.comb += [
            Cat(runs.payload.words, runs.payload.qpn).eq(bits[rest_at:]),
            words.payload.eq(queued.payload),
            words.valid.eq(word_due),
            edges.payload.eq(bits[:16]),
            edges.valid.eq(edges_due),
            queued.ready.eq(gone),
        ]
        word = data_register(m, runs.payload.word)
        m.d.sync += gone.eq(0)
        with m.FSM(name="giving"):
            with m.State("WORD"):
                m.d.sync += word.eq(bits)
                with m.If(queued.valid & ~gone):
                    m.d.sync += gone.eq(1)
                    m.next = "RUN"
            with m.State("RUN"):
                m.d.comb += runs.valid.eq(queued.valid & ~gone)
                with m.If(runs.valid & runs.ready):
                    m.d.sync += gone.eq(1)
                    m.next = "WORDS"
            with m.State("WORDS"):
                m.d.sync += [
                    word_due.eq(queued.valid & ~gone & ~is_edges),
                    edges_due.eq(queued.valid & ~gone & is_edges),
                ]
                with m.If((word_due & words.ready) | (edges_due & edges.ready)):
                    m.d.sync += [word_due.eq(0), edges_due.eq(0), gone.eq(1)]
                with m.If(edges_due & edges.ready):
                    m.next = "WORD"
