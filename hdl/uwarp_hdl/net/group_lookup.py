"""Whether the IP destination is the address of the group that a UDP port belongs to.

::

    words --> destination --+
                            +--> parts compared --> match
    row of the port --> row of the group
        0                             1               2     cycle
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters

from ..compare import equal
from ..interfaces import GroupLookupSignature
from ..layouts import MAPPED
from .word import FrameWord

__all__ = ["GroupLookup"]

#: Bits of an address that are compared in one cycle behind the memory.
_PART = 8


class GroupLookup(wiring.Component):
    """Compare a frame's IP destination with a group's address.

    ``match`` belongs to ``row``, ``is_group`` and the destination of two cycles before. The
    destination is there in the cycle after ``word`` held its last octet, until that after word 3 of
    the next frame. One of IPv4 is mapped into IPv6 (RFC 4291, section 2.5.5.2).

    Parameters
    ----------
    parameters : Parameters

    Attributes
    ----------
    word : In(FrameWord)
    row : In(16)
    is_group : In(1)
        Row of the group table; one beyond it never matches.
    groups : Out(GroupLookupSignature)
    destination : Out(128)
    match : Out(1)
        ``is_group``, the row is in use, and its address is the destination.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._index_width = (parameters.n_group - 1).bit_length()
        super().__init__(
            {
                "word": In(FrameWord),
                "row": In(16),
                "is_group": In(1),
                "groups": Out(GroupLookupSignature(self._index_width)),
                "destination": Out(128),
                "match": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        word, groups = self.word, self.groups
        # The word's octets in network order, so that the address is a number: octet i of the word
        # is ``octets[8 * (7 - i):]``.
        octets = Cat(word.data.word_select(octet, 8) for octet in reversed(range(8)))
        destination = self.destination

        # ``valid`` is late: until the frame's word of that number comes, others are taken for it.
        def in_word(index):
            return word.at(index)

        # An IPv4 header at octet 14 has its destination in octets 30 to 33, one at octet 10 in 26
        # to 29; of IPv6 it is in octets 34 to 49. What IPv4 does not have is set last: that is the
        # registers' reset, and takes no LUTs.
        upper, mapped, middle, lower = (
            Signal(width, name=name, init=init, reset_less=True)
            for name, width, init in (
                ("upper", 80, 0),
                ("mapped", 16, MAPPED),
                ("middle", 16, 0),
                ("lower", 16, 0),
            )
        )
        starts = in_word(3)
        is_early = starts & word.early
        with m.If(in_word(4) & word.ipv6):
            m.d.sync += upper[32:].eq(octets[:48])
        with m.If(in_word(5) & word.ipv6):
            m.d.sync += [upper[:32].eq(octets[32:]), mapped.eq(octets[16:32])]
        with m.If(starts | in_word(5) & word.ipv6):
            m.d.sync += middle.eq(Mux(is_early, octets[32:48], octets[:16]))
        with m.If(starts | in_word(4) & ~word.ipv6 & ~word.early | in_word(6) & word.ipv6):
            m.d.sync += lower.eq(Mux(is_early, octets[16:32], octets[48:]))
        with m.If(starts):
            m.d.sync += [upper.eq(0), mapped.eq(MAPPED)]
        m.d.comb += destination.eq(Cat(lower, middle, mapped, upper))

        parts = Signal(128 // _PART, reset_less=True)
        in_use = Signal()
        m.d.comb += groups.index.eq(self.row)
        m.d.sync += [
            parts.eq(
                Cat(
                    equal(m, groups.address[start:][:_PART], destination[start:][:_PART])
                    for start in range(0, 128, _PART)
                )
            ),
            in_use.eq(self.is_group & groups.in_use & (self.row[self._index_width :] == 0)),
            self.match.eq(in_use & parts.all()),
        ]
        return m
