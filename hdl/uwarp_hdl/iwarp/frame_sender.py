"""Frame sender: frames from the buffer to the MAC, with UDP checksum and CRC put in.

::

    frames --> word counter --> frame buffer --> register --> insertion --> tx
                    +--> octets to insert ----------^

One word a cycle, frame after frame without a gap. From a frame's announcement to its first beat 5
cycles. A frame that has begun goes on without a gap as long as ``tx`` is ready.
"""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters
from uwarp.wire import CRC_OCTETS, ETHERNET, IPV4, IPV6, UDP, VLAN

from ..interfaces import PacketSignature
from .fetch import LENGTH_WIDTH
from .frame_builder import buffer_words
from .frame_check import FrameEnd

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


#: The least of those words; none of a frame's CRC is in it or in one before.
_SETTLED = min(word for word, _ in _CHECKSUM.values())


class _Stage(data.Struct):
    """A word on its way: ``insert`` is put over it, instead of it if ``alone``."""

    valid: 1
    last: 1
    count: 4
    insert: 64
    alone: 1
    mark: 1
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
    write_enable, write_address, write_data : In
        Into the buffer.
    frames : In(stream of FrameEnd)
    tail : Out
        First word of the buffer that is still to be sent; one bit more than an address.
    tx : Out(PacketSignature())
    own, group, terminate : Out(1)
        Of the frame that ``tx`` offers, as FrameEnd has them.
    passed, completes : Out(1)
        In the cycle in which the last beat of a frame is taken, or a FrameEnd without a frame
        has come this far: ``passed``, and with it that FrameEnd's ``completes``.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._depth = buffer_words(parameters)
        address_width = (self._depth - 1).bit_length()
        super().__init__(
            {
                "enable": In(1),
                "write_enable": In(1),
                "write_address": In(address_width),
                "write_data": In(64),
                "frames": In(stream.Signature(FrameEnd)),
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
        m.submodules.buffer = buffer = Memory(shape=64, depth=self._depth, init=[])
        read, write = buffer.read_port(), buffer.write_port()
        m.d.comb += [
            write.addr.eq(self.write_address),
            write.data.eq(self.write_data),
            write.en.eq(self.write_enable),
        ]

        advance = Signal()
        m.d.comb += advance.eq(~self.tx.valid | self.tx.ready)

        # The frame whose words are being read.
        active = Signal()
        frame = Signal(FrameEnd)
        index = Signal(LENGTH_WIDTH - 3)
        crc_index, crc_place = (frame.octets - CRC_OCTETS)[3:], (frame.octets - CRC_OCTETS)[:3]
        last_index = (frame.octets - 1)[3:]
        # Settled before the checksum's word, and long before the CRC's, is read.
        crc_octets = Signal(96)
        crc_word, end_word = Signal(len(index)), Signal(len(index))
        last_count = Signal(4)
        checksum_word = Signal(4, init=_SETTLED)
        checksum = Signal(64)
        with m.Switch(Cat(frame.vlan, frame.ipv6)):
            for (vlan, ipv6), (word, octet) in _CHECKSUM.items():
                with m.Case(vlan | ipv6 << 1):
                    m.d.sync += checksum_word.eq(word)
                    m.d.comb += checksum.eq(frame.checksum << (8 * octet))
        m.d.sync += [
            crc_octets.eq(frame.crc << (crc_place << 3)),
            crc_word.eq(crc_index),
            end_word.eq(last_index),
            last_count.eq((frame.octets - 1)[:3] + 1),
        ]

        next_stage = Signal(_Stage)
        # Signals of their own: a Verilog process does not see what it has yet to assign.
        next_valid, next_last = Signal(), Signal()
        begins_crc = index == crc_word
        m.d.comb += [
            read.addr.eq(self.tail),
            read.en.eq(advance),
            next_valid.eq(active & frame.frame),
            next_last.eq((index == end_word) & (index > _SETTLED)),
            next_stage.valid.eq(next_valid),
            next_stage.last.eq(next_last),
            next_stage.count.eq(8),
            next_stage.mark.eq(active & ~frame.frame),
            next_stage.completes.eq(frame.completes),
            next_stage.own.eq(frame.own),
            next_stage.group.eq(frame.group),
            next_stage.terminate.eq(frame.terminate),
        ]
        with m.If(next_last):
            m.d.comb += [
                next_stage.count.eq(last_count),
                # Is there an octet of the frame before the CRC in this word?
                next_stage.alone.eq((crc_place == 0) | ~begins_crc),
            ]
        with m.If(index == checksum_word):
            m.d.comb += next_stage.insert.eq(checksum)
        with m.Elif(begins_crc & (index > _SETTLED)):
            m.d.comb += next_stage.insert.eq(crc_octets[:64])
        with m.Elif(next_last):
            m.d.comb += next_stage.insert.eq(crc_octets[64:])

        ending = next_stage.mark | (next_valid & next_last)
        loads = Signal()
        m.d.comb += [
            loads.eq(advance & (~active | ending)),
            self.frames.ready.eq(loads & (self.enable | ~self.frames.p.frame)),
        ]
        with m.If(advance & next_valid):
            m.d.sync += [index.eq(index + 1), self.tail.eq(self.tail + 1)]
        with m.If(loads):
            m.d.sync += [
                active.eq(self.frames.valid & self.frames.ready),
                frame.eq(self.frames.p),
                index.eq(0),
            ]

        # Memory, register, insertion.
        in_memory, in_register = Signal(_Stage), Signal(_Stage)
        word = Signal(64)
        mark, completes = Signal(), Signal()
        tx = self.tx.p
        with m.If(advance):
            m.d.sync += [
                in_memory.eq(next_stage),
                in_register.eq(in_memory),
                word.eq(read.data),
                self.tx.valid.eq(in_register.valid),
                tx.last.eq(in_register.last),
                tx.count.eq(in_register.count),
                self.own.eq(in_register.own),
                self.group.eq(in_register.group),
                self.terminate.eq(in_register.terminate),
                mark.eq(in_register.mark),
                completes.eq(in_register.completes),
            ]
            kept = ~in_register.alone
            m.d.sync += tx.data.eq((word & kept.replicate(64)) | in_register.insert)
        m.d.comb += [
            self.passed.eq(mark | (self.tx.valid & self.tx.ready & tx.last)),
            self.completes.eq(completes),
        ]
        return m
