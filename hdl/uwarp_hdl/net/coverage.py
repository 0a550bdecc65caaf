"""Which octets of a frame the checksums and the CRC cover, and which are payload.

::

    octet of the frame  14      26      34      42            UDP end - 4   UDP end
                         | IPv4 header  | UDP   | header, payload |   CRC   | padding
    header checksum      |<------------>|
    UDP checksum                |<------------------------------------->|
    CRC32c                                      |<--------------------->|
    payload                                            |<-------->|

The addresses of the IPv4 header count for the UDP checksum as part of the pseudo header (RFC 768),
the pseudo header's length by doubling the UDP header's own.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .headers import PROTOCOL_UDP, SEGMENT, SEGMENT_CRC, UDP, UDP_HEADER, header_octets
from .word import FrameWord

__all__ = ["PayloadWindow", "SumCoverage", "UdpRemainder"]

SEGMENT_WORD, SEGMENT_LEAD = divmod(SEGMENT, 8)
PSEUDO_HEADER_START = PROTOCOL_UDP << 8
"""The pseudo header's protocol, in the octet order of lanes taken from a word."""


class UdpRemainder(wiring.Component):
    """How many octets of the UDP datagram are left at the start of a word, from word 5 on.

    Attributes
    ----------
    word : In(FrameWord)
        Word of this cycle.
    udp_length : In(16)
        Of the frame, once its word 4 has gone by.
    octets : Out(16)
        For the word of the cycle before, if it is word 5 or later; 0 after the datagram's end.
    """

    word: In(FrameWord)
    udp_length: In(16)
    octets: Out(16)

    def elaborate(self, platform):
        m = Module()
        with m.If(self.word.valid):
            with m.If(self.word.index == SEGMENT_WORD):
                m.d.sync += self.octets.eq(self.udp_length - (8 * SEGMENT_WORD - UDP))
            with m.Elif(self.octets > 8):
                m.d.sync += self.octets.eq(self.octets - 8)
            with m.Else():
                m.d.sync += self.octets.eq(0)
        return m


class SumCoverage(wiring.Component):
    """Words masked for the three sums. Latency 1.

    Attributes
    ----------
    word : In(FrameWord)
    remainder : In(16)
        UDP octets left at the start of ``word``.
    ip_lanes, udp_lanes : Out(17).array(4)
        16-bit numbers to add, the octets of each swapped; ``ip_add``, ``ip_restart``, ``udp_add``
        and ``udp_restart`` as for OnesComplementCheck.
    crc_data, crc_add, crc_restart : Out
        As for CrcCheck.
    """

    word: In(FrameWord)
    remainder: In(16)
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
        lanes = [word.data.word_select(i, 16) for i in range(4)]

        # Octets 14 to 33 of the frame: lane 3 of word 1 to lane 0 of word 4.
        for i, (lane, held) in enumerate(zip(lanes, self.ip_lanes, strict=True)):
            inside = {1: i == 3, 2: True, 3: True, 4: i == 0}
            words = [index for index, is_inside in inside.items() if is_inside]
            m.d.sync += held.eq(Mux(Cat(word.index == index for index in words).any(), lane, 0))
        m.d.sync += [
            self.ip_restart.eq(word.valid & (word.index == 0)),
            self.ip_add.eq(word.valid),
        ]

        covered = Signal(64)
        for i in range(8):
            m.d.comb += covered.word_select(i, 8).eq(
                Mux(self.remainder > i, word.data.word_select(i, 8), 0)
            )
        with m.Switch(word.index):
            with m.Case(3):  # addresses, from octet 26
                m.d.sync += self.udp_lanes[0].eq(0)
                for lane, held in zip(lanes[1:], list(self.udp_lanes)[1:], strict=True):
                    m.d.sync += held.eq(lane)
            with m.Case(4):  # its last lane is the UDP length
                for lane, held in zip(lanes[:3], list(self.udp_lanes)[:3], strict=True):
                    m.d.sync += held.eq(lane)
                m.d.sync += self.udp_lanes[3].eq(lanes[3] << 1)
            with m.Default():
                for i, held in enumerate(self.udp_lanes):
                    m.d.sync += held.eq(covered.word_select(i, 16))
        m.d.sync += [
            self.udp_restart.eq(word.valid & (word.index < 3)),
            self.udp_add.eq(word.valid),
        ]

        lead = Mux(word.index == SEGMENT_WORD, 0, covered[: 8 * SEGMENT_LEAD])
        m.d.sync += [
            self.crc_data.eq(Cat(lead, covered[8 * SEGMENT_LEAD :])),
            self.crc_restart.eq(word.valid & (word.index < SEGMENT_WORD)),
            self.crc_add.eq(word.valid & (self.remainder != 0)),
        ]
        return m


class PayloadWindow(wiring.Component):
    """Which words hold payload. Latency 1.

    Attributes
    ----------
    word : In(FrameWord)
    remainder : In(16)
        UDP octets left at the start of ``word``.
    opcode : In(4)
    udp_length : In(16)
        Both of the frame, in time for its word 5.
    inside : Out(1)
        The word of the cycle before holds payload.
    last : Out(1)
        It holds the last octet of the payload.
    count : Out(4)
        Its octets up to the payload's end.
    length : Out(16)
        Octets of the payload, from word 7 of the frame to the next frame's word 4.
    """

    word: In(FrameWord)
    remainder: In(16)
    opcode: In(4)
    udp_length: In(16)
    inside: Out(1)
    last: Out(1)
    count: Out(4)
    length: Out(16)

    def elaborate(self, platform):
        m = Module()
        # The opcode comes in word 5, no payload before word 7: there is a cycle between for these.
        first_word = Signal(4)
        is_empty = Signal()
        others = header_octets(self.opcode, UDP_HEADER + SEGMENT_CRC)
        m.d.sync += [
            first_word.eq(header_octets(self.opcode, SEGMENT)[3:]),
            self.length.eq(self.udp_length - others),
            is_empty.eq(self.udp_length <= others),
        ]
        is_last = self.remainder <= 8 + SEGMENT_CRC
        m.d.sync += [
            self.inside.eq(
                self.word.valid
                & (self.word.index >= first_word)
                & (self.word.index > SEGMENT_WORD + 1)
                & ~is_empty
                & (self.remainder > SEGMENT_CRC)
            ),
            self.last.eq(is_last),
            self.count.eq(Mux(is_last, self.remainder[:4] - SEGMENT_CRC, 8)),
        ]
        return m
