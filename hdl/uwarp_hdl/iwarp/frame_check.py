"""CRC32c and UDP checksum of a frame that goes by word by word.

::

    word --+--> CRC share --> state --> back 4 --> back 2 --> back 1 --> CRC --+
           |                                                                   v
           +--> lanes --> word's sum --> frame's sum --> fold --> fold ------> + --> fold --> fold

One word a cycle, no gap needed between frames, latency 9 cycles after the last word. The CRC is
taken over whole words: the two octets before the DDP segment and those after its end are zero, and
the state begins before the former and is taken back over the latter. The checksum covers the CRC,
which is added last.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from uwarp.wire import CRC_OCTETS, ETHERNET, IPV4, PROTOCOL_UDP

from ..net.header import HEADER_OCTETS
from . import crc32c
from .fetch import LENGTH_WIDTH

__all__ = ["FrameCheck", "FrameEnd"]

#: The first word with octets that the CRC covers, and how many others that has; the first word with
#: octets that the checksum covers, which begins with the IPv4 checksum.
_CRC_WORD, _CRC_BEFORE = divmod(HEADER_OCTETS, 8)
_SUM_WORD = (ETHERNET.size + IPV4.offset("checksum")) // 8
_INITIAL = crc32c.unstep(crc32c.INITIAL, _CRC_BEFORE)


class FrameEnd(data.Struct):
    """A frame whose words are in the buffer.

    ``checksum`` is octets 40 and 41, ``crc`` the last four, the first on the wire in bits 7:0.
    Without ``frame`` there is nothing to send. ``completes`` if a message ends with it.
    """

    octets: LENGTH_WIDTH
    frame: 1
    completes: 1
    checksum: 16
    crc: 32


class FrameCheck(wiring.Component):
    """Compute the two checks of frames from :class:`FrameBuilder`.

    Members
    -------
    valid : In(1)
    word : In(64)
        The frame's next word; octets 40, 41 and those after the payload are 0.
    position : In(4)
        Number of the word, right up to 6 and at least 6 after.
    udp_length : In(16)
        Of the frame that ``word`` is of.
    end : In(FrameEnd), end_valid : In(1)
        With the last word of the frame, or alone if ``frame`` is not set; ``checksum`` and ``crc``
        are not looked at.
    o : Out(FrameEnd), o_valid : Out(1)
        ``end``, complete, nine cycles later.
    """

    valid: In(1)
    word: In(64)
    position: In(4)
    udp_length: In(16)
    end: In(FrameEnd)
    end_valid: In(1)
    o: Out(FrameEnd)
    o_valid: Out(1)

    def elaborate(self, platform):
        m = Module()

        # The ends go along, one stage a cycle.
        ends = [self.end]
        valids = [self.end_valid]
        for stage in range(1, 10):
            end, valid = Signal(FrameEnd, name=f"end_{stage}"), Signal(name=f"valid_{stage}")
            m.d.sync += [end.eq(ends[-1]), valid.eq(valids[-1])]
            ends.append(end)
            valids.append(valid)

        def place(stage):
            """Where the CRC begins in its word."""
            return (ends[stage].octets - CRC_OCTETS)[:3]

        # Stage 1: what the word adds to the CRC; sums of lanes. The IPv4 checksum's place carries
        # the pseudo header's protocol and length (RFC 768); lanes are little-endian (RFC 1071).
        share = Signal(32)
        crc_covers, crc_begins = Signal(), Signal()
        sum_covers, sum_begins = Signal(), Signal()
        pseudo = Signal(16)
        lane_sums = [Signal(17, name=f"lane_sum_{index}") for index in range(2)]
        begins = self.position == _SUM_WORD
        m.d.comb += pseudo.eq(self.udp_length + PROTOCOL_UDP)
        first_lane = Mux(begins, Cat(pseudo[8:], pseudo[:8]), self.word[:16])
        m.d.sync += [
            share.eq(crc32c.data_share(self.word)),
            crc_covers.eq(self.valid & (self.position >= _CRC_WORD)),
            crc_begins.eq(self.position == _CRC_WORD),
            sum_covers.eq(self.valid & (self.position >= _SUM_WORD)),
            sum_begins.eq(begins),
            lane_sums[0].eq(first_lane + self.word[16:32]),
            lane_sums[1].eq(self.word[32:48] + self.word[48:]),
        ]

        # Stages 2 and 3: state; sum of the word, then of the frame.
        state = Signal(32)
        word_sum = Signal(18)
        word_sum_covers, word_sum_begins = Signal(), Signal()
        frame_sum = Signal(32)
        with m.If(crc_covers):
            advanced = Mux(crc_begins, crc32c.advance(_INITIAL, 8), crc32c.advance(state, 8))
            m.d.sync += state.eq(advanced ^ share)
        m.d.sync += [
            word_sum.eq(lane_sums[0] + lane_sums[1]),
            word_sum_covers.eq(sum_covers),
            word_sum_begins.eq(sum_begins),
        ]
        with m.If(word_sum_covers):
            m.d.sync += frame_sum.eq(Mux(word_sum_begins, 0, frame_sum) + word_sum)

        # Stages 3 to 5: back over the octets after the payload, which number -place modulo 8.
        steps = [state]
        for index, octets in enumerate((4, 2, 1)):
            back = Signal(32, name=f"back_{octets}")
            excess = (-place(2 + index))[:3]
            taken_back = crc32c.unstep(steps[-1], octets)
            m.d.sync += back.eq(Mux(excess[octets.bit_length() - 1], taken_back, steps[-1]))
            steps.append(back)
        crc = Signal(32)
        m.d.comb += crc.eq(~steps[-1])

        # Stages 4 and 5: fold the sum to 16 bits.
        folded, sum16 = Signal(17), Signal(16)
        m.d.sync += [
            folded.eq(frame_sum[:16] + frame_sum[16:]),
            sum16.eq(folded[:16] + folded[16]),
        ]

        # Stages 6 to 9: the CRC's share of the sum depends on whether it begins at an even octet.
        odd = place(5)[0]
        crc_sum, total, once, twice = Signal(18), Signal(19), Signal(17), Signal(16)
        sum_6 = Signal(16)
        crcs = [crc]
        for stage in range(6, 10):
            crcs.append(Signal(32, name=f"crc_{stage}"))
            m.d.sync += crcs[-1].eq(crcs[-2])
        even_sum = crc[:16] + crc[16:]
        odd_sum = Cat(Const(0, 8), crc[:8]) + crc[8:24] + crc[24:]
        m.d.sync += [
            crc_sum.eq(Mux(odd, odd_sum, even_sum)),
            sum_6.eq(sum16),
            total.eq(crc_sum + sum_6),
            once.eq(total[:16] + total[16:]),
            twice.eq(once[:16] + once[16]),
        ]
        m.d.comb += [
            self.o.eq(ends[9]),
            self.o.checksum.eq(Mux(twice == 0xFFFF, 0xFFFF, ~twice)),
            self.o.crc.eq(crcs[-1]),
            self.o_valid.eq(valids[9]),
        ]
        return m
