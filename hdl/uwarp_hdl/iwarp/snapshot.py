"""Take a closed message's bits out of the on-chip map.

    commands -> clears (of a host word) -> ValidityMap -> words -> strobes, gathered ---> words
            '-> runs {word, words, qpn}                        '-> edge bytes ----------> edges

The words wait in a queue until the message's payload is in memory; the map is free for the next
message in the same place as soon as ``idle``.
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import Parameters

from ..compare import equal
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


class MapSnapshot(wiring.Component):
    """Clear the bits of closed messages and say what they were (device behaviour, 4.4).

    8 cycles a host word of 64 granules, and 8 a message. A host word waits while the queue of words
    is almost full; a command, while the edges of 16 wait.

    Parameters
    ----------
    parameters : Parameters
    depth : int
        Words of map that can wait for their message's payload: a power of two, at least 8.

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
        m.submodules.words = queue = Queue(MapWord, self._depth, direct=False)
        m.submodules.runs = runs = Queue(map_run_layout(self._parameters), 16, registered=False)
        m.submodules.edges = edges_queue = Queue(EdgeBytes, 16, registered=False)
        wiring.connect(m, queue.o, wiring.flipped(self.words))
        wiring.connect(m, runs.o, wiring.flipped(self.runs))
        wiring.connect(m, edges_queue.o, wiring.flipped(self.edges))

        message = Signal(snapshot_layout(self._parameters))
        first, last = message.first, message.last
        # Right from the cycle after the message was taken: granules and bytes of the map between.
        distance = Signal(width)
        end_word = Signal(width - 5)
        byte_more = (first[:3] + distance[:3])[3]
        has_inner = distance[1:].any()
        has_words = distance[4:].any() | (distance[3] & byte_more)
        same_byte = ~distance[3:].any() & ~byte_more
        m.d.sync += [
            distance.eq(last - first),
            end_word.eq(last[6:] + last[3:6].any()),
        ]
        # Right from two cycles after, and then given out, whatever comes of the bits. The words
        # begin with that of the byte after the first.
        run = runs.i.payload
        run_due = Signal(3)
        first_ends_word = first[3:6].all()
        words = Cat(C(1, 1), end_word) + Cat(~first_ends_word, ~first[6:], C(1, 1))
        m.d.sync += [
            run.word.eq((Cat(C(1, 1), message.map_addr[3:]) + Cat(first_ends_word, first[6:]))[1:]),
            run.words.eq(Mux(has_words, words[1:], 0)),
            run_due.eq(Cat(C(0, 1), run_due[0], run_due[1] | (run_due[2] & ~runs.i.ready))),
        ]
        m.d.comb += [run.qpn.eq(message.qpn), runs.i.valid.eq(run_due[2])]

        # Host word after host word is cleared: from granule ``place`` of word ``number`` on, up to
        # its last one, or the one before the message's last. A map begins with a host word.
        number = Signal(width - 6)
        place = Signal(6)
        step = Signal()  # 0: the granule after the first is in its word
        is_last = Signal()
        is_empty = Signal()  # as the last one, nothing of it is between the first and the last
        mapped_word = Signal(width - 6)
        last_place = Signal(6)
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
        m.d.comb += [
            queue.i.payload.eq(gathered),
            queue.i.valid.eq(push & gathered.strobe.any()),
        ]
        m.d.sync += push.eq(self.word_valid & self.word_last)
        with m.If(push):
            m.d.sync += gathered.strobe.eq(0)
        strobe = Cat(~at_head & (~at_tail | last[3]), ~at_tail & (~at_head | ~first[3]))
        for i in range(64 // MAP_WORD):
            with m.If(self.word_valid & (lane == i)):
                m.d.sync += [
                    gathered.data.word_select(i, MAP_WORD).eq(self.word),
                    gathered.strobe.word_select(i, MAP_WORD // 8).eq(strobe),
                ]
        edges = Signal(EdgeBytes)
        with m.If(self.word_valid):
            m.d.sync += [lane.eq(lane + 1), at_head.eq(0)]
            with m.If(at_head):
                m.d.sync += edges.head.eq(self.word.word_select(first[3], 8))
            with m.If(at_tail):
                m.d.sync += edges.tail.eq(self.word.word_select(last[3], 8))

        head_bit = Mux(message.head, 1 << first[:3], 0)
        tail_bit = Mux(message.tail, 1 << last[:3], 0)
        same = Signal()
        m.d.sync += same.eq(same_byte)
        m.d.comb += [
            edges_queue.i.payload.head.eq(edges.head | head_bit | Mux(same, tail_bit, 0)),
            edges_queue.i.payload.tail.eq(edges.tail | tail_bit | Mux(same, head_bit, 0)),
        ]
        # For the words on their way, and one more.
        room = Signal()
        bits = exact_log2(self._depth)
        m.d.sync += room.eq(~(queue.level[bits] | queue.level[2:bits].all()))
        with m.FSM() as fsm:
            with m.State("IDLE"):
                command = self.commands.payload
                following = command.first[:6] + 1
                m.d.comb += self.commands.ready.eq(~run_due.any())
                m.d.sync += [
                    message.eq(command),
                    number.eq(command.first[6:]),
                    place.eq(following),
                    step.eq(following[6]),
                    lane.eq(following[6 - len(lane) : 6]),
                    at_head.eq(~command.first[: exact_log2(MAP_WORD)].all()),
                    edges.eq(0),
                ]
                with m.If(self.commands.valid & self.commands.ready):
                    m.d.sync += run_due[0].eq(1)
                    m.next = "SPAN"
            with m.State("SPAN"):
                m.d.sync += [number.eq(number + step), step.eq(1)]
                m.next = "INNER"
            with m.State("INNER"):
                # The first and the last granule are not in the map.
                m.next = "EDGES"
                with m.If(has_inner):
                    m.next = "ROOM"
            with m.State("ROOM"):
                with m.If(room):
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
                with m.If(self.word_valid & self.word_last):
                    m.next = "ROOM"
                    with m.If(final | (is_last & is_empty)):
                        m.next = "EDGES"
                    with m.Elif(room):
                        m.next = "CLEAR"
            with m.State("EDGES"):
                m.d.comb += edges_queue.i.valid.eq(1)
                with m.If(edges_queue.i.ready):
                    m.next = "IDLE"
        m.d.comb += self.idle.eq(fsm.ongoing("IDLE"))
        return m
