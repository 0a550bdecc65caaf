"""CRC32c and UDP checksum of a frame that goes by word by word.

::

    word --+--> CRC share --> state, back 2, 2, 2 --> back 1 --> CRC ------+
           |                                                               v
           +--> lanes --> word's sum --> frame's --> fold --> fold, turn --> + --> fold --> fold

One word a cycle, no gap needed between frames, latency 9 cycles after the last word. The CRC is
taken over whole words: the two or six octets before the DDP segment and those after its end count
as zero, and the state begins before the former and is taken back over the latter, while the words
of the next frame's headers go by. The checksum covers the CRC, which is added last; if that begins
at an odd octet, the octets of the sum change places for it (RFC 1071, section 2).
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from uwarp.wire import CRC_OCTETS, PROTOCOL_UDP

from ..net.header import DDP_STEP
from . import crc32c
from .fetch import LENGTH_WIDTH

__all__ = ["FrameCheck", "FrameEnd"]

#: The CRC's state before the octets in front of the DDP segment in its first word.
_INITIAL = {octets: crc32c.unstep(crc32c.INITIAL, octets) for octets in (2, 6)}


class FrameEnd(data.Struct):
    """A frame whose words are in the buffer.

    ``checksum`` is UDP's, ``crc`` the last four octets, the first on the wire in bits 7:0; ``vlan``
    and ``ipv6`` tell where the former goes. ``own`` if its destination is the port's own MAC
    address, ``group`` if that has the group bit; ``terminate`` if it is a Terminate. Without
    ``frame`` there is nothing to send. ``completes`` if a message ends with it.
    """

    octets: LENGTH_WIDTH
    frame: 1
    completes: 1
    vlan: 1
    ipv6: 1
    own: 1
    group: 1
    terminate: 1
    checksum: 16
    crc: 32


class FrameCheck(wiring.Component):
    """Compute the two checks of frames from :class:`FrameBuilder`.

    Members
    -------
    valid : In(1)
    word : In(64)
        The frame's next word; the UDP checksum's octets and those after the payload are 0.
    low : In(32)
        The low half of ``word``, 0 if it is before the DDP segment in a word with octets of that.
    step : In(4)
        Of the word, as FrameHeader has it; greater than DDP_STEP after that.
    vlan, ipv6, udp_length : In(1), In(1), In(16)
        Of the frame that ``word`` is of.
    end : In(FrameEnd), end_valid : In(1)
        With the last word of the frame, or alone if ``frame`` is not set; ``checksum`` and ``crc``
        are not looked at.
    o : Out(FrameEnd), o_valid : Out(1)
        ``end``, complete, nine cycles later.
    """

    valid: In(1)
    word: In(64)
    low: In(32)
    step: In(4)
    vlan: In(1)
    ipv6: In(1)
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

        # In a frame that is ``late`` the first word that the CRC covers has six octets before the
        # DDP segment, and the first that the checksum covers six before the source address.
        late = Signal()
        crc_first, sum_first, sum_after = Signal(), Signal(), Signal()
        m.d.comb += [
            late.eq(self.vlan ^ self.ipv6),
            crc_first.eq(self.step == DDP_STEP),
            sum_first.eq(self.step == Mux(self.ipv6 & ~self.vlan, 2, 3)),
            sum_after.eq(self.step >= 3),
        ]

        # Stage 1: what the word adds to the CRC; sums of lanes. The place of what lies before the
        # source address carries the pseudo header's protocol and length (RFC 768; RFC 8200, section
        # 8.1); lanes are little-endian (RFC 1071).
        share = Signal(32)
        crc_covers, crc_begins, crc_late = Signal(), Signal(), Signal()
        sum_covers, sum_clears = Signal(), Signal()
        pseudo = Signal(16)
        lane_sums = [Signal(17, name=f"lane_sum_{index}") for index in range(2)]
        foreign = (sum_first & late).replicate(16)
        m.d.sync += pseudo.eq(self.udp_length + PROTOCOL_UDP)
        first_lane = Mux(sum_first, Cat(pseudo[8:], pseudo[:8]), self.word[:16])
        m.d.sync += [
            share.eq(crc32c.data_share(Cat(self.low, self.word[32:]))),
            crc_covers.eq(self.valid & (self.step >= DDP_STEP)),
            crc_begins.eq(crc_first),
            crc_late.eq(late),
            sum_covers.eq(self.valid & (sum_first | sum_after)),
            sum_clears.eq(self.step == 0),
            lane_sums[0].eq(first_lane + (self.word[16:32] & ~foreign)),
            lane_sums[1].eq((self.word[32:48] & ~foreign) + self.word[48:]),
        ]

        # Stages 2 and 3: state; sum of the word, then of the frame, fewer than 2^13 times 2^16. In
        # stages 3 to 5 the state goes back over pairs of the octets after the payload, which number
        # -place modulo 8.
        state = Signal(32)
        word_sum = Signal(18)
        word_sum_covers, word_sum_clears = Signal(), Signal()
        frame_sum = Signal(29)

        def excess(stage):
            return (-place(stage))[:3]

        goes_back = Cat(
            valids[2 + pair] & ends[2 + pair].frame & (excess(2 + pair)[1:] > pair)
            for pair in range(3)
        ).any()
        with m.If(crc_covers):
            begun = Mux(crc_late, *(crc32c.advance(_INITIAL[octets], 8) for octets in (6, 2)))
            advanced = Mux(crc_begins, begun, crc32c.advance(state, 8))
            m.d.sync += state.eq(advanced ^ share)
        with m.Elif(goes_back):
            m.d.sync += state.eq(crc32c.unstep(state, 2))
        m.d.sync += [
            word_sum.eq(lane_sums[0] + lane_sums[1]),
            word_sum_covers.eq(sum_covers),
            word_sum_clears.eq(sum_clears),
        ]
        with m.If(word_sum_clears):
            m.d.sync += frame_sum.eq(0)
        with m.Elif(word_sum_covers):
            m.d.sync += frame_sum.eq(frame_sum + word_sum)

        # Stage 6: back over the last octet.
        crc = Signal(32)
        m.d.sync += crc.eq(~Mux(excess(5)[0], crc32c.unstep(state, 1), state))

        # Stages 4 and 5: fold the sum to 16 bits.
        folded, sum16 = Signal(17), Signal(16)
        m.d.sync += [
            folded.eq(frame_sum[:16] + frame_sum[16:]),
            sum16.eq(folded[:16] + folded[16]),
        ]

        # Stages 6 to 9: the CRC's share of the sum.
        sum_6, total, once, twice = Signal(16), Signal(18), Signal(17), Signal(16)
        crcs = [crc]
        for stage in range(7, 10):
            crcs.append(Signal(32, name=f"crc_{stage}"))
            m.d.sync += crcs[-1].eq(crcs[-2])

        def turned(stage, value):
            return Mux(place(stage)[0], Cat(value[8:], value[:8]), value)

        m.d.sync += [
            sum_6.eq(turned(5, sum16)),
            total.eq(crc[:16] + crc[16:] + sum_6),
            once.eq(total[:16] + total[16:]),
            twice.eq(once[:16] + once[16]),
        ]
        m.d.comb += [
            self.o.eq(ends[9]),
            self.o.checksum.eq(Mux(twice == 0xFFFF, 0xFFFF, ~turned(9, twice))),
            self.o.crc.eq(crcs[-1]),
            self.o_valid.eq(valids[9]),
        ]
        return m
