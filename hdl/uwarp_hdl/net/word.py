"""The words of a frame, numbered, and the fields that stand at fixed places in them."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..layouts import PacketBeat

__all__ = ["FieldCapture", "FrameWord", "WordNumbering"]


class FrameWord(data.Struct):
    """A word of a frame as it goes down the receive pipeline.

    Word ``index`` holds octets 8 index to 8 index + 7 of the frame, the first one in
    ``data[0:8]``; past the largest number ``index`` stays. ``last_octet`` is ``count`` - 1 of the
    beat, so that ``position`` is the number of the word's last octet. ``error``: this or an earlier
    word of the frame had one.
    """

    data: 64
    last_octet: 3
    index: 14
    last: 1
    error: 1
    valid: 1

    @property
    def position(self):
        return Cat(self.last_octet, self.index)


class WordNumbering(wiring.Component):
    """Number the beats of each frame; frames that begin while ``enable`` is 0 vanish.

    Combinational: ``word`` is the beat that is offered in this cycle, which is taken.

    Attributes
    ----------
    beat : In(PacketBeat)
    beat_valid : In(1)
    enable : In(1)
    word : Out(FrameWord)
    """

    beat: In(PacketBeat)
    beat_valid: In(1)
    enable: In(1)
    word: Out(FrameWord)

    def elaborate(self, platform):
        m = Module()
        index = Signal(14)
        first = Signal(init=1)
        accepted = Signal()
        error = Signal()
        m.d.comb += [
            self.word.data.eq(self.beat.data),
            self.word.last_octet.eq(self.beat.count - 1),
            self.word.index.eq(index),
            self.word.last.eq(self.beat.last),
            self.word.error.eq(self.beat.error | error),
            self.word.valid.eq(self.beat_valid & (self.enable & first | accepted)),
        ]
        with m.If(self.beat_valid):
            m.d.sync += [
                first.eq(self.beat.last),
                accepted.eq(self.word.valid & ~self.beat.last),
                error.eq(self.word.error & ~self.beat.last),
            ]
            with m.If(self.beat.last):
                m.d.sync += index.eq(0)
            with m.Elif(~index.all()):
                m.d.sync += index.eq(index + 1)
        return m


class FieldCapture(wiring.Component):
    """Registers for fields of the frame. This is where network byte order ends.

    A field is complete in the cycle after ``word`` held its last octet, and stays until the same
    word of a later frame. A frame too short for a field leaves in it, in whole or in part, what an
    earlier one had there.

    Parameters
    ----------
    places : dict
        For each field's name the number of its first octet in the frame and its octets.

    Attributes
    ----------
    word : In(FrameWord)
    fields : Out(StructLayout)
        The fields as numbers.
    """

    def __init__(self, places):
        for name, (offset, octets) in places.items():
            if offset < 0 or octets < 1:
                raise ValueError(f"field {name} has {octets} octets at {offset}")
        self._places = places
        layout = data.StructLayout({name: 8 * octets for name, (_, octets) in places.items()})
        super().__init__({"word": In(FrameWord), "fields": Out(layout)})

    def elaborate(self, platform):
        m = Module()
        words = {}
        for name, (offset, octets) in self._places.items():
            for i in range(octets):
                register = self.fields[name].word_select(octets - 1 - i, 8)
                words.setdefault((offset + i) // 8, []).append((register, (offset + i) % 8))
        for index, parts in words.items():
            with m.If(self.word.valid & (self.word.index == index)):
                for register, octet in parts:
                    m.d.sync += register.eq(self.word.data.word_select(octet, 8))
        return m
