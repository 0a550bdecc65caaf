"""Frame sender: frames from the buffer to the MAC, with UDP checksum and CRC put in.

::

    frames --> word counter --> frame buffer --> register --> insertion --> skid --> tx
    checks ---------+--> octets to insert ----------^

One word a cycle, frame after frame without a gap. From a frame's announcement to its first beat 5
cycles. A frame that has begun goes on without a gap as long as ``tx`` is ready: what comes late, it
goes no further than the skid buffer.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters
from uwarp.wire import CRC_OCTETS, ETHERNET, IPV4, IPV6, UDP, VLAN

from ..data_register import data_fields, data_register
from ..interfaces import PacketSignature
from ..layouts import PacketBeat
from ..stream.skid import Skid
from .fetch import LENGTH_WIDTH
from .frame_builder import buffer_words
from .frame_check import FrameChecks, FrameEnd

__all__ = ["FrameSender"]

#: Word and octet of the UDP checksum by VLAN tag and IPv6.
_CHECKSUM = {
    (vlan, ipv6): divmod(
        ETHERNET.size
        + (VLAN.size if vlan else 0)
        + (IPV6.size if ipv6 else IPV4.size)
        + UDP.offset("checksum"),
        8,
    )
    for vlan in (0, 1)
    for ipv6 in (0, 1)
}


class _Stage(data.Struct):
    """A word on its way, and which octets of it are from the checks: a lane of 16 bits from the
    checksum; from the CRC octet n from octet n modulo 4 (``straight``) or from the one two further
    on (``crossed``). ``alone``: none is from the buffer."""

    valid: 1
    last: 1
    count: 4
    checksum: 4
    straight: 8
    crossed: 8
    alone: 1
    mark: 1
    completes: 1
    own: 1
    group: 1
    terminate: 1


class _Output(data.Struct):
    """A word that leaves, and of its frame what FrameEnd has; or, without ``frame``, no word."""

    beat: PacketBeat
    frame: 1
    completes: 1
    own: 1
    group: 1
    terminate: 1


class FrameSender(wiring.Component):
    """Send frames in the order announced.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    enable : In(1)
        While 0 no frame begins.
    write_low, write_high : In(1)
    write_low_address, write_high_address, write_data : In
        Into the buffer, each half of a word. Of a frame's last word only the low one counts.
    frames : In(stream of FrameEnd)
    checks : In(stream of FrameChecks)
        Of each with ``frame``, no later than 8 cycles after that.
    tail : Out
        First word of the buffer that is still to be sent; one bit more than an address.
    tx : Out(PacketSignature())
    own, group, terminate : Out(1)
        Of the frame that ``tx`` offers, as FrameEnd has them.
    passed, completes : Out(1)
        In the cycle after that in which the last beat of a frame is taken, or a FrameEnd without
        a frame has come this far: ``passed``, and with it that FrameEnd's ``completes``.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._depth = buffer_words(parameters)
        address_width = (self._depth - 1).bit_length()
        super().__init__(
            {
                "enable": In(1),
                "write_low": In(1),
                "write_high": In(1),
                "write_low_address": In(address_width),
                "write_high_address": In(address_width),
                "write_data": In(64),
                "frames": In(stream.Signature(FrameEnd)),
                "checks": In(stream.Signature(FrameChecks)),
                "tail": Out(address_width + 1),
                "tx": Out(PacketSignature()),
                "own": Out(1),
                "group": Out(1),
                "terminate": Out(1),
                "passed": Out(1),
                "completes": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # A word is never read and written at once: synthesis need not add logic for that case.
        reads = []
        for name, enable, address, word in (
            ("low", self.write_low, self.write_low_address, self.write_data[:32]),
            ("high", self.write_high, self.write_high_address, self.write_data[32:]),
        ):
            m.submodules[name] = half = Memory(
                shape=32, depth=self._depth, init=[], attrs={"no_rw_check": 1}
            )
            read, write = half.read_port(), half.write_port()
            reads.append(read)
            m.d.comb += [write.addr.eq(address), write.data.eq(word), write.en.eq(enable)]

        m.submodules.skid = skid = Skid(_Output)
        given, left = skid.i.payload, skid.o.payload
        m.d.comb += [
            self.tx.p.eq(left.beat),
            self.own.eq(left.own),
            self.group.eq(left.group),
            self.terminate.eq(left.terminate),
            self.tx.valid.eq(skid.o.valid & left.frame),
            skid.o.ready.eq(self.tx.ready | ~left.frame),
        ]
        m.d.sync += [
            self.passed.eq(skid.o.valid & skid.o.ready & (left.beat.last | ~left.frame)),
            self.completes.eq(left.completes),
        ]
        advance = Signal()
        m.d.comb += advance.eq(~skid.i.valid | skid.i.ready)

        # The next frame waits in a register, so that what is late here goes no further.
        coming, coming_valid = Signal(FrameEnd, reset_less=True), Signal()
        gives = Signal()
        m.d.comb += [
            gives.eq(coming_valid & (self.enable | ~coming.frame)),
            self.frames.ready.eq(~coming_valid),
        ]
        with m.If(~coming_valid):
            m.d.sync += [coming.eq(self.frames.p), coming_valid.eq(self.frames.valid)]

        # The frame whose words are being read. What follows from its length is known a cycle after
        # it; until then it is that of the frame before, of which nothing is in the first word
        # either.
        active = Signal()
        frame = Signal(FrameEnd, reset_less=True)
        index = Signal(LENGTH_WIDTH - 3, reset_less=True)
        word_before = Signal(len(index), init=-1)  # that of the CRC
        place = Signal(3, reset_less=True)  # of the CRC in its word
        with m.If(frame.frame):
            m.d.sync += Cat(place, word_before).eq(frame.octets - CRC_OCTETS - 8)
        # This word, the one before; the frame's last. Known a word ahead.
        begins_crc, had_crc, is_last = Signal(), Signal(), Signal()
        spills = place > CRC_OCTETS
        next_stage = Signal(_Stage)
        # Signals of their own: a Verilog process does not see what it has yet to assign.
        next_valid, next_last = Signal(), Signal()
        m.d.comb += [
            *(read.addr.eq(self.tail) for read in reads),
            *(read.en.eq(advance) for read in reads),
            next_valid.eq(active & frame.frame),
            next_last.eq(is_last),
            next_stage.valid.eq(next_valid),
            next_stage.last.eq(next_last),
            next_stage.count.eq(8),
            next_stage.mark.eq(active & ~frame.frame),
            next_stage.completes.eq(frame.completes),
            next_stage.own.eq(frame.own),
            next_stage.group.eq(frame.group),
            next_stage.terminate.eq(frame.terminate),
            # Is there an octet of the frame before the CRC in the last word?
            next_stage.alone.eq(next_last & ((place == 0) | spills)),
        ]
        with m.If(next_last & (place != CRC_OCTETS)):
            m.d.comb += next_stage.count.eq(place ^ CRC_OCTETS)
        kind = Cat(frame.vlan, frame.ipv6)
        for (vlan, ipv6), (word, octet) in _CHECKSUM.items():
            with m.If((kind == (vlan | ipv6 << 1)) & (index == word)):
                m.d.comb += next_stage.checksum[octet // 2].eq(1)
        # From where it begins to the end of that half, and all of the next half.
        for octet in range(8):
            puts = begins_crc & (octet >= place)
            if octet < 4:
                puts |= had_crc
            m.d.comb += [
                next_stage.straight[octet].eq(puts & ~place[1]),
                next_stage.crossed[octet].eq(puts & place[1]),
            ]

        ending = next_stage.mark | (next_valid & next_last)
        loads = Signal()
        m.d.comb += loads.eq(advance & (~active | ending))
        with m.If(advance & next_valid):
            m.d.sync += [
                index.eq(index + 1),
                begins_crc.eq(index == word_before),
                had_crc.eq(begins_crc),
                is_last.eq(Mux(spills, begins_crc, index == word_before)),
                self.tail.eq(self.tail + 1),
            ]
        with m.If(loads):
            m.d.sync += [
                active.eq(gives),
                frame.eq(coming),
                index.eq(0),
                begins_crc.eq(0),
                had_crc.eq(0),
                is_last.eq(0),
            ]
        with m.If(loads & gives):
            m.d.sync += coming_valid.eq(0)

        # Memory, register, insertion. What may be in a word is in registers of its own that are 0
        # where it is not, so that insertion is an OR.
        in_memory, in_register = (
            data_fields(_Stage, name, reset=("valid", "mark", "completes"))
            for name in ("in_memory", "in_register")
        )
        word, straight, crossed, checksum = (
            Signal(64, name=name, reset_less=True)
            for name in ("word", "straight", "crossed", "checksum")
        )
        checks = self.checks.p
        # Where the last word has octets of the frame before the CRC, they are in its low half.
        low, high = reads
        parts = [
            (word[:32], low.data, ~in_memory.alone),
            (word[32:], high.data, ~in_memory.last),
        ]
        for octet in range(8):
            for register, puts, source in (
                (straight, in_memory.straight, octet % 4),
                (crossed, in_memory.crossed, (octet + 2) % 4),
            ):
                part = register.word_select(octet, 8)
                parts.append((part, checks.crc.word_select(source, 8), puts[octet]))
        for lane in range(4):
            part = checksum.word_select(lane, 16)
            parts.append((part, checks.checksum, in_memory.checksum[lane]))
        for part, source, puts in parts:
            # In this order it is the register's reset.
            with m.If(advance & ~puts):
                m.d.sync += part.eq(0)
            with m.Elif(advance):
                m.d.sync += part.eq(source)
        m.d.comb += self.checks.ready.eq(advance & in_memory.valid & in_memory.last)
        beat = given.beat
        outputs = (beat.data, beat.last, beat.count, given.own, given.group, given.terminate)
        word_out, last, count, own, group, terminate = (
            data_register(m, output) for output in outputs
        )
        frame_out, completes = data_register(m, given.frame), data_register(m, given.completes)
        with m.If(advance):
            m.d.sync += [
                in_memory.eq(next_stage),
                in_register.eq(in_memory),
                skid.i.valid.eq(in_register.valid | in_register.mark),
                frame_out.eq(in_register.valid),
                last.eq(in_register.last),
                count.eq(in_register.count),
                own.eq(in_register.own),
                group.eq(in_register.group),
                terminate.eq(in_register.terminate),
                completes.eq(in_register.completes),
            ]
            m.d.sync += word_out.eq(word | straight | crossed | checksum)
        return m
