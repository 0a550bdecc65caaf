"""The checks of an IP header, of either version, as its words go by.

An IPv4 header begins at octet 14 of a realigned frame, or, ``early``, at octet 10; that of IPv6
always does the latter::

    word      |1              |2              |3              |4              |5     |6
    IPv4      |            vi |tl    fo    p  |      s   s  d |d
    IPv4 early|    vi  tl     |fo    p      s |s  d   d       |
    IPv6      |    v       pl |n  s  s  s   s |...          s |s  d  d  d   d |... d |d

v version, i header length, tl total length, fo fragment, p protocol, s source, d destination, pl
payload length, n next header.
"""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..compare import at_least, equal
from ..layouts import PortConfig
from .headers import (
    EARLY_HEADER,
    ETHERNET_HEADER,
    IPV6_HEADER,
    NEXT_FRAGMENT,
    PROTOCOL_UDP,
)
from .word import FrameWord

__all__ = ["NetworkCheck"]


class NetworkCheck(wiring.Component):
    """What is wrong with the IP header, but its checksum.

    Each result is right for a word of the frame from 2 cycles after it on, if the words up to it
    held what it tells of: of the header's first 12 octets from word 3 on, of the whole from its
    last word on. They stay until the next frame's word 1.

    Attributes
    ----------
    word : In(FrameWord)
    destination : In(128)
        As of GroupLookup: there with the ``word`` that holds its last octet.
    config : In(PortConfig)
    before_udp : Out(4)
        Index of the word before that with the header's last octets, right when word 2 is ``word``;
        below 3 if the header is shorter than it may be.
    payload_length : Out(16)
        Octets of the IP payload, one cycle earlier than the other results.
    malformed : Out(1)
        Another version than the type says, or a header longer than the datagram.
    short : Out(1)
        The frame up to this word does not hold the header, or not the datagram. One cycle later
        than the other results.
    fragment, other_protocol, other_address, broadcast : Out(1)
    """

    word: In(FrameWord)
    destination: In(128)
    config: In(PortConfig)
    before_udp: Out(4)
    payload_length: Out(16)
    malformed: Out(1)
    short: Out(1)
    fragment: Out(1)
    other_protocol: Out(1)
    other_address: Out(1)
    broadcast: Out(1)

    def elaborate(self, platform):
        m = Module()
        word = self.word
        octets = [word.data.word_select(i, 8) for i in range(8)]
        lanes = [Cat(octets[2 * i + 1], octets[2 * i]) for i in range(4)]

        def in_word(index):
            return m.If(word.valid & word.at(index))

        # The header's length in units of 4 octets.
        units = Signal(4, reset_less=True)
        length = Signal(16, reset_less=True)
        wrong_version = Signal()
        version_octet = Mux(word.early, octets[2], octets[6])
        with in_word(1):
            m.d.sync += [
                units.eq(Mux(word.ipv6, IPV6_HEADER // 4, version_octet[:4])),
                wrong_version.eq(version_octet[4:] != Mux(word.ipv6, 6, 4)),
                length.eq(Mux(word.ipv6, lanes[3], lanes[2])),
            ]
        protocol = Mux(word.early, Mux(word.ipv6, octets[0], octets[3]), octets[7])
        # More Fragments and the offset; the reserved bit and Don't Fragment are not looked at.
        offset = Mux(word.early, lanes[0], lanes[2])[:14]
        with in_word(2):
            m.d.sync += [
                self.other_protocol.eq(protocol != PROTOCOL_UDP),
                self.fragment.eq(Mux(word.ipv6, protocol == NEXT_FRAGMENT, offset != 0)),
            ]
            with m.If(~word.early):
                m.d.sync += length.eq(lanes[0])

        payload = Signal(17, reset_less=True)
        # The word's last octet less the datagram's length: what that is compared with has few bits.
        beyond = Signal(signed(18), reset_less=True)
        ends = [
            at_least(beyond[:-1], header - 1)
            for header in (ETHERNET_HEADER, EARLY_HEADER, EARLY_HEADER + IPV6_HEADER)
        ]
        form, has_header = Signal(2), Signal()
        has_datagram = ~beyond[-1] & Mux(form[1], ends[2], Mux(form[0], ends[1], ends[0]))
        m.d.comb += [
            self.before_udp.eq((units + 1)[1:]),
            self.payload_length.eq(payload),
        ]
        m.d.sync += [
            payload.eq(length - Mux(word.ipv6, 0, units << 2)),
            self.malformed.eq(wrong_version | payload[16]),
            # The header is in full if the datagram is, but where its own length is too small.
            beyond.eq(word.position - length),
            form.eq(Cat(word.early, word.ipv6)),
            has_header.eq(word.step != 0),
            self.short.eq(~(has_header & has_datagram)),
        ]

        # Parts of an address, to be looked at together in the next cycle.
        address = self.destination
        ours_ipv4, ours_ipv6 = Signal(2), Signal(8)
        all_ones = Signal()
        m.d.sync += all_ones.eq(~word.ipv6 & address[:32].all())
        for parts, own, is_type in (
            (ours_ipv4, self.config.ipv4, ~word.ipv6),
            (ours_ipv6, self.config.ipv6, word.ipv6),
        ):
            same = [
                equal(m, address.word_select(part, 16), own.word_select(part, 16))
                for part in range(len(parts))
            ]
            m.d.sync += parts.eq(Cat(same[0] & is_type, same[1:]))
        m.d.comb += [
            self.broadcast.eq(all_ones),
            self.other_address.eq(~(ours_ipv6.all() | ours_ipv4.all() | all_ones)),
        ]
        return m
