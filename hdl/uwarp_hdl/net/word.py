"""The words of a frame, numbered, and the fields that stand at fixed places in them."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..data_register import data_register
from .headers import FIRST_UDP_WORD

__all__ = ["FieldCapture", "FrameWord", "WordNumbering"]


class FrameWord(data.Struct):
    """A word of a frame as it goes down the receive pipeline, realigned.

    Word ``index`` holds octets 8 index to 8 index + 7 of what is left of the frame, the first one
    in ``data[0:8]``; past the largest number ``index`` stays. ``far`` says that it is 8 or more.
    ``last_octet`` is the number of valid octets less 1, so that ``position`` is the number of the
    word's last octet. ``step`` is 0 before the word with the UDP header's begin, 1 in that, and so
    on to 8, where it stays. ``ipv4`` and ``ipv6`` tell the type, ``early`` that the IP header
    begins at octet 10, not 14; not in word 0. ``error``: this or an earlier word of the frame had
    one.
    """

    data: 64
    last_octet: 3
    index: 14
    far: 1
    step: 4
    ipv4: 1
    ipv6: 1
    early: 1
    last: 1
    error: 1
    valid: 1

    @property
    def position(self):
        return Cat(self.last_octet, self.index)

    def at(self, index):
        """Whether this is word ``index``, 0 to 7."""
        return ~self.far & (self.index[:3] == index)

    @property
    def lanes(self):
        """The word as numbers of 16 bits, each with its octets swapped."""
        return [self.data.word_select(i, 16) for i in range(4)]


class WordNumbering(wiring.Component):
    """Number the words of each frame; frames that begin while ``enable`` is 0 vanish.

    Combinational; the numbers are from registers.

    Attributes
    ----------
    i : In(FrameWord)
        Without numbers.
    ends : In(1)
        ``i`` is valid and its frame's last.
    enable : In(1)
    before_udp : In(4)
        Index of the word before that in which the UDP header begins, right from word 3 on; below 3
        for none.
    word : Out(FrameWord)
    """

    i: In(FrameWord)
    ends: In(1)
    enable: In(1)
    before_udp: In(4)
    word: Out(FrameWord)

    def elaborate(self, platform):
        m = Module()
        index = Signal(14)
        far = Signal()
        step = Signal(4)
        first = Signal(init=1)
        accepted = Signal()
        m.d.comb += [
            self.word.eq(self.i),
            self.word.index.eq(index),
            self.word.far.eq(far),
            self.word.step.eq(step),
            self.word.valid.eq(self.i.valid & (self.enable & first | accepted)),
        ]
        with m.If(self.i.valid):
            m.d.sync += [
                first.eq(0),
                accepted.eq(self.word.valid),
                far.eq(far | (index[:3] == 7)),
            ]
            with m.If(~index.all()):
                m.d.sync += index.eq(index + 1)
            with m.If(step == 0):
                ends = (index[:4] == self.before_udp) & (index[:4] >= FIRST_UDP_WORD - 1)
                m.d.sync += step.eq(ends)
            with m.Elif(~step[3]):
                m.d.sync += step.eq(step + 1)
        with m.If(self.ends):
            m.d.sync += [first.eq(1), accepted.eq(0), index.eq(0), far.eq(0), step.eq(0)]
        return m


class FieldCapture(wiring.Component):
    """Registers for fields of the frame. This is where network byte order ends.

    A field is complete in the cycle after ``word`` held its last octet, and stays until the same
    word of a later frame. A frame too short for a field leaves in it, in whole or in part, what an
    earlier one had there.

    Parameters
    ----------
    places : dict
        For each field's name the number of its first octet and its octets.
    number : str
        The number of words that octets are counted by: ``"index"``, or ``"step"``, by which the
        word with the UDP header's begin has octets 8 to 15.

    Attributes
    ----------
    word : In(FrameWord)
    fields : Out(StructLayout)
        The fields as numbers.
    """

    def __init__(self, places, number):
        for name, (offset, octets) in places.items():
            if offset < 0 or octets < 1:
                raise ValueError(f"field {name} has {octets} octets at {offset}")
        if number not in ("index", "step"):
            raise ValueError(f"number is {number!r}; it takes 'index' or 'step'")
        self._places = places
        self._number = number
        layout = data.StructLayout({name: 8 * octets for name, (_, octets) in places.items()})
        super().__init__({"word": In(FrameWord), "fields": Out(layout)})

    def elaborate(self, platform):
        m = Module()
        fields, words = data_register(m, self.fields), {}
        for name, (offset, octets) in self._places.items():
            for i in range(octets):
                register = fields[name].word_select(octets - 1 - i, 8)
                words.setdefault((offset + i) // 8, []).append((register, (offset + i) % 8))
        for number, parts in words.items():
            # With a number above 0 the frame's word takes the place of what stood there before it
            # came, and ``valid`` is late.
            counts = self.word.valid if number == 0 else 1
            here = self.word.at(number) if self._number == "index" else self.word.step == number
            with m.If(counts & here):
                for register, octet in parts:
                    m.d.sync += register.eq(self.word.data.word_select(octet, 8))
        return m
