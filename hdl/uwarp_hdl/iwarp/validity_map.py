"""The on-chip validity map: one bit a granule, in words of ``MAP_WORD`` bits.

    marks, clears -> address -> RAM -> new word -> write back
                                          '-> bits that changed -> count, words

Ranges are worked on one at a time, a word a cycle. The next range starts when the last word of the
one before has been written back, 4 cycles after its own start for a range of one word; so two
ranges in one word never lose each other's bits. After a reset all of the map is cleared like any
other range. Words are narrow because their masks and sums are what a map takes in logic; even so a
word of the smallest granules is as many octets as pass in 128 cycles.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import Parameters

from ..compare import equal
from ..data_register import data_fields
from .receive_layouts import granule_width

__all__ = ["MAP_WORD", "ValidityMap", "bit_range_layout"]

MAP_WORD = 16
"""Bits of a word of the map."""

_PLACE = exact_log2(MAP_WORD)


def bit_range_layout(parameters: Parameters) -> data.StructLayout:
    """Bits ``first`` to ``last`` of the map, ``first`` not after ``last``."""
    width = granule_width(parameters)
    return data.StructLayout({"first": width, "last": width})


def _ones(nibble):
    """How many of four bits are set, each bit of the answer a function of the four."""
    a, b, c, d = nibble
    two = (a & b) | (c & d) | ((a | b) & (c | d))
    return Cat(nibble.xor(), two & ~nibble.all(), nibble.all())


class ValidityMap(wiring.Component):
    """Set ranges of bits and count those that were clear; clear ranges and tell which were set.

    Marks go before clears. A mark of ``n`` words is answered ``n + 4`` cycles after it was taken;
    the last word of a clear comes ``n + 3`` cycles after.

    Members
    -------
    marks : In(stream of bit range)
    marked : Out(1)
        Strobe: the mark taken last is done, and ``count`` says how many of its bits were clear.
    count : Out(9)
    clears : In(stream of bit range)
    word_valid : Out(1)
        Strobe for each word of a clear, lowest first.
    word : Out(MAP_WORD)
        The bits of the range that were set; the others read 0.
    word_last : Out(1)
        Strobe: it is the clear's last word.
    busy : Out(1)
        After a reset, until all bits are 0. Nothing is taken before.
    """

    def __init__(self, parameters: Parameters):
        self._depth = parameters.map_bits // MAP_WORD
        bits = bit_range_layout(parameters)
        super().__init__(
            {
                "marks": In(stream.Signature(bits)),
                "marked": Out(1),
                "count": Out(9),
                "clears": In(stream.Signature(bits)),
                "word_valid": Out(1),
                "word": Out(MAP_WORD),
                "word_last": Out(1),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.ram = ram = memory.Memory(shape=MAP_WORD, depth=self._depth, init=[])
        read = ram.read_port()
        write = ram.write_port()

        stage = data.StructLayout({"valid": 1, "clear": 1, "index": range(self._depth), "last": 1})
        # addressed: the RAM's output is the word; loaded: it is in ``old``; changed: the new word
        # is being written back.
        addressed = data_fields(stage, "addressed")
        loaded = data_fields(stage, "loaded")
        changed = data_fields(stage, "changed")
        summed = data_fields(stage, "summed")

        # A mark's first word is addressed as it is taken, everything else by the walk: a clear from
        # its first word on, in the cycle after.
        mark, clear = self.marks.payload, self.clears.payload
        walking = Signal(init=1)
        walk_clear = Signal(init=1)
        walk_index = Signal(range(self._depth))
        walk_low = Signal(_PLACE)
        walk_last = Signal(len(mark.last), init=self._depth * MAP_WORD - 1)
        idle = Signal()  # nothing is in any stage up to ``changed``
        begin_mark, begin_clear = Signal(), Signal()
        index = Signal(range(self._depth))
        last_bit = Signal.like(walk_last, init=0)
        final = Signal()
        m.d.comb += [
            self.marks.ready.eq(idle),
            self.clears.ready.eq(idle & ~self.marks.valid),
            begin_mark.eq(idle & self.marks.valid),
            begin_clear.eq(self.clears.valid & self.clears.ready),
            index.eq(Mux(walking, walk_index, mark.first[_PLACE:])),
            last_bit.eq(Mux(walking, walk_last, mark.last)),
            # Compared before it is chosen.
            final.eq(
                Mux(
                    walking,
                    equal(m, walk_index, walk_last[_PLACE:]),
                    equal(m, mark.first[_PLACE:], mark.last[_PLACE:]),
                )
            ),
            read.addr.eq(index),
            # Never the word that is being written, which is three before the one that is read:
            # since synthesis can see that, it does not add logic behind the memory for its sake.
            read.en.eq(~(changed.valid & (~walking | (changed.index[:2] == walk_index[:2])))),
        ]
        low_bit = Signal(_PLACE, reset_less=True)
        high_bit = Signal(_PLACE, reset_less=True)
        begun = Signal()
        m.d.sync += [
            idle.eq(~(begin_mark | begin_clear | walking | addressed.valid | loaded.valid)),
            begun.eq(begin_mark),
            addressed.valid.eq(begin_mark | walking),
            addressed.clear.eq(walking & walk_clear),
            addressed.index.eq(index),
            addressed.last.eq(final),
            low_bit.eq(Mux(walking, walk_low, mark.first[:_PLACE])),
            high_bit.eq(Mux(final, last_bit[:_PLACE], MAP_WORD - 1)),
            walking.eq(((begin_mark | walking) & ~final) | begin_clear),
            walk_index.eq(Mux(begin_clear, clear.first[_PLACE:], index + 1)),
            walk_low.eq(Mux(begin_clear, clear.first[:_PLACE], 0)),
        ]
        with m.If(idle):
            m.d.sync += [
                walk_clear.eq(~self.marks.valid),
                walk_last.eq(Mux(self.marks.valid, mark.last, clear.last)),
            ]

        old = Signal(MAP_WORD, reset_less=True)
        # From the first bit on, and up to the last one.
        upper = Signal(MAP_WORD, reset_less=True)
        lower = Signal(MAP_WORD, reset_less=True)
        ones = (1 << MAP_WORD) - 1
        m.d.sync += [
            loaded.eq(addressed),
            old.eq(read.data),
            upper.eq(ones << low_bit),
            lower.eq(ones >> ~high_bit),
        ]

        new = Signal(MAP_WORD, reset_less=True)
        difference = Signal(MAP_WORD, reset_less=True)
        mask = upper & lower
        m.d.sync += [
            changed.eq(loaded),
            new.eq(Mux(loaded.clear, old & ~mask, old | mask)),
            difference.eq(Mux(loaded.clear, old & mask, mask & ~old)),
        ]
        m.d.comb += [
            write.addr.eq(changed.index),
            write.data.eq(new),
            write.en.eq(changed.valid),
            self.word.eq(difference),
        ]
        # As ``changed``. While ``busy``, what is loaded is the sweep's.
        cleared = loaded.valid & loaded.clear & ~self.busy
        m.d.sync += [self.word_valid.eq(cleared), self.word_last.eq(cleared & loaded.last)]
        with m.If(changed.valid & changed.last):
            m.d.sync += self.busy.eq(0)

        parts = [Signal(3, name=f"ones{i}", reset_less=True) for i in range(MAP_WORD // 4)]
        m.d.sync += [part.eq(_ones(difference[4 * i : 4 * i + 4])) for i, part in enumerate(parts)]
        m.d.sync += summed.eq(changed)
        with m.If(summed.valid):
            m.d.sync += self.count.eq(self.count + sum(parts))
        # The count before is told by now.
        with m.If(begun):
            m.d.sync += self.count.eq(0)
        m.d.sync += self.marked.eq(summed.valid & summed.last & ~summed.clear)
        return m
