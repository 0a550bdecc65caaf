"""Which octets of a frame the checksums and the CRC cover, and which are payload.

::

                       IP header   UDP + 8           UDP end - 4   UDP end
                         |        | UDP   | header, payload |   CRC   | padding
    header checksum      |<------>|
    UDP checksum          <addresses, UDP ------------------------->|
    CRC32c                                |<----------------------->|
    payload                                      |<-------->|

The addresses of the IP header count for the UDP checksum as part of the pseudo header (RFC 768; RFC
8200, section 8.1), the pseudo header's length by doubling the UDP header's own. Addresses and
headers begin and end between lanes of 16 bits: only the end of the UDP datagram does not.
"""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..compare import at_least
from ..data_register import data_register
from .headers import PROTOCOL_UDP, SEGMENT, SEGMENT_CRC, UDP, UDP_HEADER, header_octets
from .word import FrameWord

__all__ = ["PayloadWindow", "SumCoverage", "UdpRemainder"]

SEGMENT_STEP, SEGMENT_LEAD = divmod(SEGMENT, 8)
IP_SUM_WIDTH = 21
"""Bits of the sum of an IPv4 header: of 30 numbers at most."""
PSEUDO_HEADER_START = PROTOCOL_UDP << 8
"""The pseudo header's protocol, in the octet order of lanes taken from a word."""


class UdpRemainder(wiring.Component):
    """How many octets of the UDP datagram are left at the start of a word, from step 2 on.

    Attributes
    ----------
    word : In(FrameWord)
        Word of this cycle.
    udp_length : In(16)
        Of the frame, once the word with the UDP header's begin has gone by.
    octets : Out(16)
        For the word of the cycle before, if its step is 2 or more; 0 before and after.
    many : Out(1)
        They are 16 or more.
    covered : Out(8)
        Which octets of that word these are.
    """

    word: In(FrameWord)
    udp_length: In(16)
    octets: Out(16)
    many: Out(1)
    covered: Out(8)

    def elaborate(self, platform):
        m = Module()
        before = 8 * SEGMENT_STEP - UDP

        more = Signal()  # than a word
        begins = self.word.step == SEGMENT_STEP
        # One adder for both. There are no more when it begins, which is known earlier than that it
        # does.
        reduced = Mux(more, self.octets, self.udp_length) - Mux(more, 8, before)
        # Each as it will be: full words of this one, of this and the next, and more than this.
        udp_length, octets = self.udp_length, data_register(m, self.octets)
        over_31 = octets[5:].any()
        low = Mux(begins, (udp_length - before)[:3], octets[:3])
        full = Signal()
        covered = Signal(8)
        m.d.comb += self.covered.eq(covered | full.replicate(8))
        with m.If(self.word.valid):
            m.d.sync += [
                octets.eq(reduced),
                full.eq(Mux(begins, at_least(udp_length, before + 8), self.many)),
                covered.eq(Cat(low > octet for octet in range(8))),
            ]
            with m.If(begins):
                m.d.sync += [
                    self.many.eq(at_least(udp_length, before + 16)),
                    # Nor are there more words of a datagram of less than its header: the verdict
                    # on that does not ask.
                    more.eq(at_least(udp_length, before + 9)),
                ]
            with m.Else():
                m.d.sync += [
                    self.many.eq(over_31 | octets[4] & octets[3]),
                    more.eq(over_31 | octets[4] & octets[:4].any()),
                ]
            with m.If(~begins & ~((self.word.step > SEGMENT_STEP) & more)):
                m.d.sync += [
                    octets.eq(0),
                    self.many.eq(0),
                    full.eq(0),
                    covered.eq(0),
                    more.eq(0),
                ]
        return m


class SumCoverage(wiring.Component):
    """Words masked for the three sums. Latency 1.

    Attributes
    ----------
    following, word : In(FrameWord)
        Word of the next cycle, and of this one: what its numbers say of it is decided a cycle
        before.
    covered : In(8)
        Which octets of ``word`` are of the UDP datagram, from step 2 on.
    ip_lanes, udp_lanes : Out(17).array(4)
        16-bit numbers to add, the octets of each swapped; ``ip_add``, ``ip_restart``, ``udp_add``
        and ``udp_restart`` as for OnesComplementCheck.
    crc_data, crc_add, crc_restart : Out
        As for CrcCheck.
    """

    following: In(FrameWord)
    word: In(FrameWord)
    covered: In(8)
    ip_lanes: Out(17).array(4)
    ip_add: Out(1)
    ip_restart: Out(1)
    udp_lanes: Out(17).array(4)
    udp_add: Out(1)
    udp_restart: Out(1)
    crc_data: Out(64)
    crc_add: Out(1)
    crc_restart: Out(1)

    def elaborate(self, platform):
        m = Module()
        word = self.word
        lanes = word.lanes

        following = self.following

        def at(*indices):
            return ~following.far & following.index[:3].matches(*indices)

        in_header = (following.far | following.index[1:3].any()) & (following.step == 0)
        starts_udp = following.step == 1
        late_ipv4 = ~following.ipv6 & ~following.early
        early_ipv4 = ~following.ipv6 & following.early
        in_ip = Signal(4)
        in_address = Signal(4)
        ends_header = Signal()
        leads_segment = Signal()
        m.d.sync += [
            ends_header.eq(starts_udp),
            leads_segment.eq(following.step == SEGMENT_STEP),
            in_ip.eq(
                Cat(
                    in_header | starts_udp,
                    in_header | at(1) & following.early,
                    in_header | at(1) & following.early,
                    in_header | at(1),
                )
            ),
            in_address.eq(
                Cat(
                    following.ipv6 & at(3, 4, 5, 6) | early_ipv4 & at(3) | late_ipv4 & at(4),
                    following.ipv6 & at(2, 3, 4, 5) | ~following.ipv6 & at(3),
                    following.ipv6 & at(2, 3, 4, 5) | ~following.ipv6 & at(3),
                    following.ipv6 & at(2, 3, 4, 5) | early_ipv4 & at(2) | late_ipv4 & at(3),
                )
            ),
        ]
        # Octets that do not count are set to 0 last: that is the registers' reset, and takes no
        # LUTs.
        covered = self.covered
        ip_lanes, udp_lanes = (
            [data_register(m, lane) for lane in lanes_of]
            for lanes_of in (self.ip_lanes, self.udp_lanes)
        )
        for i, lane in enumerate(lanes):
            is_whole = Signal(name=f"is_whole{i}")
            m.d.comb += is_whole.eq(in_address[i] | (ends_header if i in (1, 2, 3) else 0))
            m.d.sync += [
                ip_lanes[i].eq(Mux(in_ip[i], lane, 0)),
                udp_lanes[i].eq(lane),
            ]
            if i == 3:  # the UDP length
                with m.If(ends_header):
                    m.d.sync += udp_lanes[i].eq(lane << 1)
            for half in range(2):
                with m.If(~is_whole & ~covered[2 * i + half]):
                    m.d.sync += udp_lanes[i].word_select(half, 8).eq(0)
            with m.If(~is_whole):
                m.d.sync += udp_lanes[i][16].eq(0)
        m.d.sync += [
            self.ip_restart.eq(word.valid & word.at(0)),
            self.ip_add.eq(word.valid),
            self.udp_restart.eq(word.valid & (word.at(0) | word.at(1))),
            self.udp_add.eq(word.valid),
        ]

        crc_data = data_register(m, self.crc_data)
        for octet in range(8):
            place = crc_data.word_select(octet, 8)
            leads = leads_segment if octet < SEGMENT_LEAD else 0
            m.d.sync += place.eq(word.data.word_select(octet, 8))
            with m.If(~covered[octet] | leads):
                m.d.sync += place.eq(0)
        m.d.sync += [
            self.crc_restart.eq(word.valid & (word.step < SEGMENT_STEP)),
            self.crc_add.eq(word.valid & covered[0]),
        ]
        return m


class PayloadWindow(wiring.Component):
    """Which words hold payload. Latency 1.

    Attributes
    ----------
    word : In(FrameWord)
    remainder, many : In(16), In(1)
        UDP octets left at the start of ``word``; they are 16 or more.
    opcode : In(4)
    udp_length : In(16)
        Both of the frame, in time for its step 2.
    inside : Out(1)
        The word of the cycle before holds payload.
    last : Out(1)
        It holds the last octet of the payload.
    count : Out(4)
        Its octets up to the payload's end.
    length : Out(16)
        Octets of the payload, from step 4 of the frame to the next frame's step 1.
    """

    word: In(FrameWord)
    remainder: In(16)
    many: In(1)
    opcode: In(4)
    udp_length: In(16)
    inside: Out(1)
    last: Out(1)
    count: Out(4)
    length: Out(16)

    def elaborate(self, platform):
        m = Module()
        # The opcode comes in step 2, no payload before step 4: there are two cycles for these.
        first_step = Signal(4)
        length = Signal(signed(17), reset_less=True)
        is_empty = Signal()
        others = header_octets(self.opcode, UDP_HEADER + SEGMENT_CRC)
        m.d.comb += self.length.eq(length)
        m.d.sync += [
            first_step.eq(header_octets(self.opcode, SEGMENT)[3:]),
            length.eq(self.udp_length - others),
            is_empty.eq(length[-1] | ~length[:-1].any()),
        ]
        # Comparisons of the bits that matter only.
        low = self.remainder[:4]
        is_last = ~self.many & (low <= 8 + SEGMENT_CRC)
        over_crc = self.many | (low > SEGMENT_CRC)
        m.d.sync += [
            self.inside.eq(
                self.word.valid
                & (self.word.step >= first_step)
                & (self.word.step > SEGMENT_STEP + 1)
                & ~is_empty
                & over_crc
            ),
            self.last.eq(is_last),
            data_register(m, self.count).eq(Mux(is_last, low - SEGMENT_CRC, 8)),
        ]
        return m
