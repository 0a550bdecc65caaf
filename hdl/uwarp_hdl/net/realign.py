"""VLAN tags taken out of a frame, and its UDP header brought to a fixed place within words.

A VLAN tag has 4 octets, an IPv4 header a multiple of 4, that of IPv6 40; so the UDP header of any
frame begins 2 or 6 octets into a word. As many units of 4 octets are taken out before the IP header
as there are tags, and one more if the UDP header is not 2 octets into a word then. What goes is in
truth the source MAC address, which is taken before, and what follows it::

    unit           0   1   2   3    4   5   6   7   8   9
    MAC, type     |dst |src    |type, IPv4 (5)         |UDP    as it comes
    one tag       |dst |src    |tag |type, IPv4        |UDP    without unit 2
    6 words       |dst |src    |type, IPv4 (6)             |UDP    without unit 2
    tag, 6 words  |dst |src    |tag |type, IPv4 (6)            |UDP    without units 2 and 3

Units are numbered from the frame's first octet, two to a word.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..data_register import data_fields
from ..layouts import PacketBeat
from .headers import ETHERTYPE_IPV4, ETHERTYPE_IPV6, TAG_TYPES
from .word import FrameWord

__all__ = ["Realigner"]


class UnitKind(data.Struct):
    """What the 4 octets of a unit are if they begin with a number of type or tag.

    ``even``: the units before the UDP header of that IP header are even in number.
    """

    tag: 1
    ipv4: 1
    ipv6: 1
    even: 1


def unit_kind(unit):
    number = Cat(unit[8:16], unit[:8])
    is_ipv4, is_ipv6 = number == ETHERTYPE_IPV4, number == ETHERTYPE_IPV6
    # Of IPv4 the lowest bit of the header's length says so.
    even = is_ipv6 | (is_ipv4 & ~unit[16])
    return Cat(Cat(number == value for value in TAG_TYPES).any(), is_ipv4, is_ipv6, even)


class Realigner(wiring.Component):
    """Take out tags and align the UDP header to octet 2 of a word.

    A word a cycle; a frame's last word leaves two cycles after it came, others two cycles after
    they came or, if that is later, one cycle after the next one. A frame gets fewer words, never
    none, and never one that is empty. The IP header of what leaves begins at octet 10 of the frame
    if ``early``, else at 14. A frame that ends within tags or type ends before that.

    Attributes
    ----------
    beat : In(PacketBeat)
    beat_valid : In(1)
    word : Out(FrameWord)
        With ``ipv4``, ``ipv6`` and ``early`` right from word 1 on, without numbers. Combinational.
    ends : Out(1)
        ``word`` is valid and its frame's last.
    source_mac : Out(48)
        Of the frame whose words leave, from its word 1 on; in its last word's cycle if it has 4
        beats or more.
    """

    beat: In(PacketBeat)
    beat_valid: In(1)
    word: Out(FrameWord)
    ends: Out(1)
    source_mac: Out(48)

    def elaborate(self, platform):
        m = Module()
        beat, word = self.beat, self.word

        # Words come to ``following``, which never waits, and go on to ``held``, which waits for the
        # rest of its frame.
        following = data_fields(FrameWord, "following")
        first, at_start = Signal(), Signal(init=1)
        is_short_end = Signal()  # its frame's last word, of one unit
        low_kind, high_kind = Signal(UnitKind, reset_less=True), Signal(UnitKind, reset_less=True)
        m.d.sync += [
            following.valid.eq(self.beat_valid),
            is_short_end.eq(self.beat_valid & beat.last & (beat.count <= 4)),
        ]
        with m.If(self.beat_valid):
            m.d.sync += [
                following.data.eq(beat.data),
                following.last_octet.eq(beat.count - 1),
                following.last.eq(beat.last),
                following.error.eq(beat.error | (following.error & ~at_start)),
                first.eq(at_start),
                at_start.eq(beat.last),
                low_kind.as_value().eq(unit_kind(beat.data[:32])),
                high_kind.as_value().eq(
                    unit_kind(beat.data[32:]) & (~beat.last | (beat.count > 4)).replicate(4)
                ),
            ]

        held = Signal(FrameWord, reset_less=True)
        held_first = Signal()
        mac_octets = Signal(48, reset_less=True)
        with m.If(following.valid):
            m.d.sync += [held.eq(following), held_first.eq(first)]
            with m.If(first):
                m.d.sync += mac_octets[:16].eq(following.data[48:])
            with m.Elif(held_first):
                m.d.sync += mac_octets[16:].eq(following.data[:32])

        m.d.comb += self.source_mac.eq(
            Cat(mac_octets.word_select(octet, 8) for octet in reversed(range(6)))
        )

        # A word begins with the second unit of one that came if it is ``shifted``. A frame's second
        # word settles that. If it ends in a tag, the word behind it does, whose kinds are in
        # registers only when both are here: ``asks`` it, and adds that to what is settled.
        shifted, settled_shift = Signal(), Signal()
        properties = Cat(word.ipv4, word.ipv6, word.early)
        settled = Signal.like(properties, reset_less=True)
        asks, is_second = Signal(), Signal()
        kind = Mux(low_kind.tag, high_kind.as_value(), low_kind.as_value())
        m.d.comb += [
            is_second.eq(held_first & ~first),
            properties.eq(settled | Mux(asks, kind[1:], 0)),
            shifted.eq(settled_shift | (asks & (low_kind.tag == kind[3]))),
        ]
        # Of the word that comes to ``held``, but for what that asks.
        next_shift = Signal()
        m.d.comb += next_shift.eq(shifted & ~first)
        with m.If(is_second):
            m.d.comb += next_shift.eq(Mux(high_kind.tag, following.last, high_kind.even))
        with m.If(following.valid):
            m.d.sync += [
                asks.eq(is_second & high_kind.tag & ~following.last),
                settled_shift.eq(next_shift),
                # ``high_kind`` is 0 if the frame has no octets there.
                settled.eq(Mux(is_second, high_kind.as_value()[1:], properties)),
            ]
        # A last word leaves at once, if anything of it is left; another one with the next.
        ends, goes_on = Signal(), Signal()
        m.d.sync += [
            ends.eq(following.valid & following.last & (~next_shift | following.last_octet[2])),
            goes_on.eq(Mux(following.valid, ~following.last, goes_on)),
        ]

        ends_next = following.last & ~following.last_octet[2]
        last_word = Mux(held.last, held.last_octet, following.last_octet)
        m.d.comb += [
            # There is nothing left of the second word if two units go.
            word.valid.eq(
                ends | (goes_on & following.valid & ~(asks & (low_kind.tag | low_kind.even)))
            ),
            word.data.eq(held.data),
            word.last_octet.eq(held.last_octet),
            word.last.eq(held.last),
            word.error.eq(held.error),
            # The same as of ``word``, apart from what is late there: a word that asks is not
            # ``settled_shift``, and leaves nothing or is shifted.
            self.ends.eq(
                ends
                | goes_on & is_short_end & (settled_shift | (asks & ~low_kind.tag & ~low_kind.even))
            ),
        ]
        with m.If(shifted):
            m.d.comb += [
                word.data.eq(Cat(held.data[32:], following.data[:32])),
                # Of the last word 4 octets are gone; one that is not has those of the next.
                word.last_octet[:2].eq(Mux(word.last, last_word[:2], 3)),
                word.last_octet[2].eq(~held.last),
                word.last.eq(held.last | ends_next),
                word.error.eq(held.error | (~held.last & ends_next & following.error)),
            ]
        return m
