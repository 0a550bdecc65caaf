"""The on-chip validity map: one bit a granule, in words of 64 bits.

    marks, clears -> address -> RAM -> new word -> write back
                                          '-> bits that changed -> count, words

Ranges are worked on one at a time, a word a cycle. The next range starts when the last word of the
one before has been written back, 4 cycles after its own start for a range of one word; so two
ranges in one word never lose each other's bits.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters

from .receive_layouts import granule_width

__all__ = ["ValidityMap", "bit_range_layout"]


def bit_range_layout(parameters: Parameters) -> data.StructLayout:
    """Bits ``first`` to ``last`` of the map, ``first`` not after ``last``."""
    width = granule_width(parameters)
    return data.StructLayout({"first": width, "last": width})


class ValidityMap(wiring.Component):
    """Set ranges of bits and count those that were clear; clear ranges and tell which were set.

    Marks go before clears. A mark of ``n`` words is answered ``n + 4`` cycles after it was taken.

    Members
    -------
    marks : In(stream of bit range)
    marked : Out(1)
        Strobe: the mark taken last is done, and ``count`` says how many of its bits were clear.
    count : Out(9)
    clears : In(stream of bit range)
    word_valid : Out(1)
        Strobe for each word of a clear, lowest first.
    word : Out(64)
        The bits of the range that were set; the others read 0.
    word_last : Out(1)
        With ``word_valid``: the clear's last word.
    busy : Out(1)
        After a reset, until all bits are 0. Nothing is taken before.
    """

    def __init__(self, parameters: Parameters):
        self._depth = parameters.map_bits // 64
        bits = bit_range_layout(parameters)
        super().__init__(
            {
                "marks": In(stream.Signature(bits)),
                "marked": Out(1),
                "count": Out(9),
                "clears": In(stream.Signature(bits)),
                "word_valid": Out(1),
                "word": Out(64),
                "word_last": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.ram = ram = memory.Memory(shape=64, depth=self._depth, init=[])
        read = ram.read_port()
        write = ram.write_port()

        sweeping = Signal(init=1)
        sweep = Signal(range(self._depth))
        m.d.comb += self.busy.eq(sweeping)
        with m.If(sweeping):
            m.d.sync += sweep.eq(sweep + 1)
            with m.If(sweep == self._depth - 1):
                m.d.sync += sweeping.eq(0)

        stage = data.StructLayout(
            {
                "valid": 1,
                "clear": 1,
                "index": range(self._depth),
                "first": 1,
                "last": 1,
            }
        )
        # addressed: the RAM's output is the word; loaded: it is in ``old``; changed: the new word
        # is being written back.
        addressed = Signal(stage)
        loaded = Signal(stage)
        changed = Signal(stage)
        summed = Signal(stage)

        walking = Signal()
        walk_clear = Signal()
        walk_index = Signal(range(self._depth))
        walk_last = Signal.like(self.marks.payload.last)
        idle = ~(sweeping | walking | addressed.valid | loaded.valid | changed.valid)
        m.d.comb += [self.marks.ready.eq(idle), self.clears.ready.eq(idle & ~self.marks.valid)]
        taken = Mux(self.marks.valid, self.marks.payload.as_value(), self.clears.payload.as_value())
        range_taken = data.View(self.marks.payload.shape(), taken)

        start = Signal()
        index = Signal(range(self._depth))
        last_bit = Signal.like(walk_last)
        final = Signal()
        m.d.comb += [
            start.eq(idle & (self.marks.valid | self.clears.valid)),
            index.eq(Mux(walking, walk_index, range_taken.first[6:])),
            last_bit.eq(Mux(walking, walk_last, range_taken.last)),
            final.eq(index == last_bit[6:]),
            read.addr.eq(index),
            # Never the word that is being written: since synthesis can see that, it does not add
            # logic behind the memory for its sake.
            read.en.eq(~sweeping & ~(changed.valid & (~walking | (changed.index == walk_index)))),
        ]
        low_bit = Signal(6)
        high_bit = Signal(6)
        m.d.sync += [
            addressed.valid.eq(start | walking),
            addressed.clear.eq(Mux(walking, walk_clear, ~self.marks.valid)),
            addressed.index.eq(index),
            addressed.first.eq(~walking),
            addressed.last.eq(final),
            low_bit.eq(Mux(walking, 0, range_taken.first[:6])),
            high_bit.eq(Mux(final, last_bit[:6], 63)),
            walking.eq((start | walking) & ~final),
            walk_index.eq(index + 1),
        ]
        with m.If(start):
            m.d.sync += [walk_clear.eq(~self.marks.valid), walk_last.eq(range_taken.last)]

        old = Signal(64)
        mask = Signal(64)
        m.d.sync += [
            loaded.eq(addressed),
            old.eq(read.data),
            mask.eq(((1 << 64) - 1 << low_bit) & ((1 << 64) - 1 >> ~high_bit)),
        ]

        new = Signal(64)
        difference = Signal(64)
        m.d.sync += [
            changed.eq(loaded),
            new.eq(Mux(loaded.clear, old & ~mask, old | mask)),
            difference.eq(Mux(loaded.clear, old & mask, mask & ~old)),
        ]
        m.d.comb += [
            write.addr.eq(Mux(sweeping, sweep, changed.index)),
            write.data.eq(Mux(sweeping, 0, new)),
            write.en.eq(sweeping | changed.valid),
            self.word_valid.eq(changed.valid & changed.clear),
            self.word.eq(difference),
            self.word_last.eq(changed.last),
        ]

        quarters = [Signal(5, name=f"quarter{i}") for i in range(4)]
        m.d.sync += summed.eq(changed)
        for i, quarter in enumerate(quarters):
            m.d.sync += quarter.eq(sum(difference[16 * i : 16 * i + 16]))
        with m.If(summed.valid):
            m.d.sync += self.count.eq(Mux(summed.first, 0, self.count) + sum(quarters))
        m.d.sync += self.marked.eq(summed.valid & summed.last & ~summed.clear)
        return m
