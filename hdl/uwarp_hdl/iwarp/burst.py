"""Cut a run of words into DMA bursts.

    commands {word, end} -> [BurstSplitter] -> bursts {address, beats}, final

One burst a cycle; the first one a cycle after the command.
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..layouts import Burst

__all__ = ["BLOCK_WORDS", "BlockRun", "BurstSplitter", "WordRun"]

BLOCK_WORDS = 256
"""No burst crosses a multiple of this many words (2 KiB): so none crosses a 4 KiB page, which AXI
forbids (Arm IHI 0022, A3.4.1), and none is longer than 256 words."""

_BLOCK_LOG2 = BLOCK_WORDS.bit_length() - 1


class WordRun(data.Struct):
    """``words`` (at least one) words of 8 octets from address 8 * ``word`` on."""

    word: 61
    words: 24


class BlockRun(data.Struct):
    """Words of 8 octets, from address 8 * ``word`` on. ``end`` is the number of the last one, that
    of the first word of the first one's block being 0."""

    word: 61
    end: 25


class BurstSplitter(wiring.Component):
    """Bursts of a run of words, in order, cut at multiples of ``BLOCK_WORDS``.

    Members
    -------
    commands : In(stream of BlockRun)
    bursts : Out(stream of Burst)
    final : Out(1)
        With ``bursts``: the last one of its command.
    """

    commands: In(stream.Signature(BlockRun))
    bursts: Out(stream.Signature(Burst))
    final: Out(1)

    def elaborate(self, platform):
        m = Module()

        active = Signal()
        block = Signal(61 - _BLOCK_LOG2)
        first = Signal(_BLOCK_LOG2)
        last = Signal(_BLOCK_LOG2)
        further = Signal(len(self.commands.payload.end) - _BLOCK_LOG2)  # blocks after this one
        m.d.comb += [
            self.bursts.valid.eq(active),
            self.bursts.payload.address.eq(Cat(C(0, 3), first, block)),
            self.bursts.payload.beats.eq(Mux(self.final, last, BLOCK_WORDS - 1) - first),
            self.commands.ready.eq(~active),
        ]
        with m.If(self.bursts.valid & self.bursts.ready):
            m.d.sync += [
                block.eq(block + 1),
                first.eq(0),
                further.eq(further - 1),
                self.final.eq(further == 1),
                active.eq(~self.final),
            ]
        with m.If(self.commands.valid & self.commands.ready):
            m.d.sync += [
                active.eq(1),
                Cat(first, block).eq(self.commands.payload.word),
                Cat(last, further).eq(self.commands.payload.end),
                self.final.eq(self.commands.payload.end[_BLOCK_LOG2:] == 0),
            ]
        return m
