"""Cut a run of words into DMA bursts.

    commands {word, words} -> [BurstSplitter] -> bursts {address, beats}, final

One burst a cycle; the first one a cycle after the command.
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..layouts import Burst

__all__ = ["BLOCK_WORDS", "BurstSplitter", "WordRun"]

BLOCK_WORDS = 256
"""No burst crosses a multiple of this many words (2 KiB): so none crosses a 4 KiB page, which AXI
forbids (Arm IHI 0022, A3.4.1), and none is longer than 256 words."""


class WordRun(data.Struct):
    """``words`` (at least one) words of 8 octets from address 8 * ``word`` on."""

    word: 61
    words: 24


class BurstSplitter(wiring.Component):
    """Bursts of a run of words, in order, cut at multiples of ``BLOCK_WORDS``.

    Members
    -------
    commands : In(stream of WordRun)
    bursts : Out(stream of Burst)
    final : Out(1)
        With ``bursts``: the last one of its command.
    """

    commands: In(stream.Signature(WordRun))
    bursts: Out(stream.Signature(Burst))
    final: Out(1)

    def elaborate(self, platform):
        m = Module()

        active = Signal()
        word = Signal(61)
        words = Signal(24)
        room = Signal(9)
        m.d.comb += [
            room.eq(BLOCK_WORDS - word[:8]),
            self.final.eq(words <= room),
            self.bursts.valid.eq(active),
            self.bursts.payload.address.eq(Cat(C(0, 3), word)),
            self.bursts.payload.beats.eq(Mux(self.final, words, room) - 1),
            self.commands.ready.eq(~active),
        ]
        with m.If(self.bursts.valid & self.bursts.ready):
            m.d.sync += [
                words.eq(words - room),
                word.eq(Cat(C(0, 8), word[8:] + 1)),
                active.eq(~self.final),
            ]
        with m.If(self.commands.valid & self.commands.ready):
            m.d.sync += [
                active.eq(1),
                word.eq(self.commands.payload.word),
                words.eq(self.commands.payload.words),
            ]
        return m
