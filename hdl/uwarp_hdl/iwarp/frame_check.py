"""CRC32c and UDP checksum of a frame that goes by word by word.

::

    word --+--> CRC share --> state --> back by octets ---> turn --> CRC ---+--> checks
           +--> lanes --> word's sum --> frame's --> halves --> sum <-------+

The words are pairs of quads as :class:`FrameHeader` gives them, which in the frame may be further
on by one quad: to either check that makes no difference. One word a cycle, frames at least 8 cycles
apart from end to end. The CRC is taken over whole words: the two octets before the DDP segment and
those after its end count as zero; the state begins before the former, and a copy of it is taken
back over the latter, an octet a cycle, while the words of the next frame go by. The checksum covers
the CRC, which is added last, turned as it lies in the frame's words (RFC 1071, section 2).
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from uwarp.wire import ETHERNET, IPV4, IPV6, PROTOCOL_UDP

from ..data_register import data_register
from ..net.header import DDP_STEP
from . import crc32c
from .fetch import LENGTH_WIDTH

__all__ = ["FrameCheck", "FrameChecks", "FrameEnd"]

#: The CRC's state before the octets in front of the DDP segment in its first word.
_INITIAL = crc32c.unstep(crc32c.INITIAL, 2)

#: Cycles from a frame's last word to its announcement, and to its checks.
_ANNOUNCED, _CHECKED = 6, 14


#: What the sum of 32 bits begins with. Of the pseudo header (RFC 768; RFC 8200, section 8.1) it has
#: the protocol; addresses and length come from the IP header, of which IPv4's length counts that
#: header, too. As numbers the halves are 0x14 and 0xFFE8.
_SUM_BEGINS = 0x1400_E8FF
assert (PROTOCOL_UDP - IPV4.size) % 0xFFFF == (0x14 + 0xFFE8) % 0xFFFF

#: What the sum of IPv6 has more, in lane 0 of the word of step 3, which is of nothing covered.
_MORE_IPV6 = IPV4.size << 8


def _covering(step, lane):
    """The values of ``ipv6`` with which the sum covers the lane of 16 bits in the word of ``step``,
    3 or 4: it is of the length or of the addresses."""
    place = 8 * (step - 1) + 2 * lane - ETHERNET.size
    return [
        ipv6
        for ipv6, header, length in ((0, IPV4, "total_length"), (1, IPV6, "payload_length"))
        if place == header.offset(length) or place >= header.offset("source")
    ]


class FrameEnd(data.Struct):
    """A frame whose words are in the buffer.

    ``vlan`` and ``ipv6`` tell where its UDP checksum goes. ``own`` if its destination is the port's
    own MAC address, ``group`` if that has the group bit; ``terminate`` if it is a Terminate.
    Without ``frame`` there is nothing to send. ``completes`` if a message ends with it.
    """

    octets: LENGTH_WIDTH
    frame: 1
    completes: 1
    vlan: 1
    ipv6: 1
    own: 1
    group: 1
    terminate: 1


class FrameChecks(data.Struct):
    """The UDP checksum of a frame, and its CRC, both as they are in a word, the first octet in the
    low bits: but of a CRC that begins at an odd octet the last octet comes first."""

    checksum: 16
    crc: 32


class FrameCheck(wiring.Component):
    """Compute the two checks of frames from :class:`FrameBuilder`.

    Members
    -------
    valid : In(1)
    word : In(64)
        The frame's next word; the UDP checksum's octets and those after the payload are 0.
    step : In(4)
        Of the word, as FrameHeader has it; greater than DDP_STEP after that. 0 in the cycle of a
        frame's first word, and in none from there to its last.
    ipv6 : In(1)
        Of the frame that ``word`` is of.
    end : In(FrameEnd), end_valid : In(1)
        With the last word of the frame, or alone if ``frame`` is not set.
    o : Out(FrameEnd), o_valid : Out(1)
        ``end`` 6 cycles later.
    checks : Out(FrameChecks), checks_valid : Out(1)
        Of an end with ``frame``, 14 cycles after that.
    """

    valid: In(1)
    word: In(64)
    step: In(4)
    ipv6: In(1)
    end: In(FrameEnd)
    end_valid: In(1)
    o: Out(FrameEnd)
    o_valid: Out(1)
    checks: Out(FrameChecks)
    checks_valid: Out(1)

    def elaborate(self, platform):
        m = Module()
        end, end_valid = self.end, self.end_valid
        for stage in range(1, _ANNOUNCED + 1):
            later, valid = (
                Signal(FrameEnd, name=f"end_{stage}", reset_less=True),
                Signal(name=f"valid_{stage}"),
            )
            m.d.sync += [later.eq(end), valid.eq(end_valid)]
            end, end_valid = later, valid
            if stage == 2:
                # Where the frame ends in a pair, which an odd quad before it moves by half of one.
                octets = later.octets[:3] ^ Cat(Const(0, 2), later.vlan ^ later.ipv6)
        # ``after[n]``: n cycles ago a frame ended.
        after = [self.end_valid & self.end.frame]
        for stage in range(1, _CHECKED + 1):
            strobe = Signal(name=f"after_{stage}")
            m.d.sync += strobe.eq(after[-1])
            after.append(strobe)
        begins = Signal(3)  # one to three cycles ago a frame began
        m.d.sync += begins.eq(Cat(self.step == 0, begins[:-1]))

        crc = self._crc(m, after, begins, octets)
        self._sum(m, after, begins, crc)
        m.d.comb += [
            self.o.eq(end),
            self.o_valid.eq(end_valid),
            self.checks_valid.eq(after[_CHECKED]),
        ]
        return m

    def _crc(self, m, after, begins, octets):
        """The CRC, turned, ten cycles after the end, and from the next one on in ``checks``."""
        # The low half goes in with the state: what is left of it after eight octets is the same.
        # Where the register begins is where its reset leads: else that takes logic.
        share, low, state = (
            Signal(32, reset_less=True),
            Signal(32, reset_less=True),
            Signal(32, init=_INITIAL, reset_less=True),
        )
        covers = Signal()
        m.d.sync += [
            share.eq(crc32c.data_share(self.word[32:])),
            low.eq(self.word[:32]),
            covers.eq(self.valid & (self.step >= DDP_STEP)),
        ]
        with m.If(begins[0]):
            m.d.sync += state.eq(_INITIAL)
        with m.Elif(covers):
            m.d.sync += state.eq(crc32c.advance(state ^ low, 8) ^ share)

        back = Signal(32, reset_less=True)
        excess = Signal(3)  # octets that it is still to be taken back
        odd = Signal(reset_less=True)
        with m.If(after[2]):
            m.d.sync += [back.eq(state), excess.eq(4 - octets), odd.eq(octets[0])]
        with m.Elif(excess != 0):
            m.d.sync += [back.eq(crc32c.unstep(back, 1)), excess.eq(excess - 1)]
        turned = Signal(32)
        m.d.comb += turned.eq(~Mux(odd, Cat(back[24:], back[:24]), back))
        kept = data_register(m, self.checks.crc)
        with m.If(after[10]):
            m.d.sync += kept.eq(turned)
        return turned

    def _sum(self, m, after, begins, crc):
        """The checksum; lanes are little-endian (RFC 1071). Carries out of the top go into the next
        addition, so that the last of them takes one more, of 0."""
        lanes = [Signal(16, name=f"lane_{index}", reset_less=True) for index in range(4)]
        for index, lane in enumerate(lanes):
            covers = Signal(name=f"covers_{index}")
            m.d.comb += covers.eq(self.valid & (self.step > 4))
            for step in (3, 4):
                where = self.ipv6.matches(*_covering(step, index))
                with m.If(self.valid & (self.step == step) & where):
                    m.d.comb += covers.eq(1)
            # Not both: the lane is the word's, or 0, or has but the bits of the constant.
            more = _MORE_IPV6 if index == 0 else 0
            adds = self.valid & (self.step == 3) & self.ipv6
            m.d.sync += lane.eq(Mux(covers, self.word.word_select(index, 16), Mux(adds, more, 0)))

        # Begins as below, like ``state``.
        word_sum, frame_sum = (
            Signal(33, reset_less=True),
            Signal(33, init=_SUM_BEGINS, reset_less=True),
        )
        m.d.sync += [
            word_sum.eq(_plus(word_sum, Cat(lanes[:2]), Cat(lanes[2:]))),
            frame_sum.eq(_plus(frame_sum, frame_sum[:32], word_sum[:32])),
        ]
        with m.If(begins[2]):
            m.d.sync += frame_sum.eq(_SUM_BEGINS)

        # The frame's sum is taken five cycles after the end; the halves of it and of the CRC are
        # added one a cycle. Each is in a register that is 0 in any other cycle.
        halves = Signal(32, reset_less=True)
        with m.If(after[5]):
            m.d.sync += halves.eq(frame_sum)
        sources = (halves[:16], halves[16:], crc[:16], self.checks.crc[16:])
        terms = [Signal(16, name=f"term_{index}", reset_less=True) for index in range(len(sources))]
        for index, (term, source) in enumerate(zip(terms, sources, strict=True)):
            m.d.sync += term.eq(Mux(after[8 + index], source, 0))
        total = Signal(17, reset_less=True)
        m.d.sync += total.eq(_plus(total, total[:16], terms[0] | terms[1] | terms[2] | terms[3]))
        with m.If(after[8]):
            m.d.sync += total.eq(0)
        ones = 0xFFFF
        m.d.comb += self.checks.checksum.eq(Mux(total[:16] == ones, ones, ~total[:16]))


def _plus(before, a, b):
    """``a`` and ``b`` and the carry out of the top of ``before``, in one carry chain."""
    return (Cat(1, a) + Cat(before[-1], b))[1:]
