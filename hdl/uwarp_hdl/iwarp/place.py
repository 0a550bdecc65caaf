"""Payload octets into host memory, exactly.

    commands --+--> [WriteBursts] --------------------> write.bursts
               |
    payload -> skid --> rotate -> merge with held octets --> write.beats

A word leaves a cycle. A command takes one cycle for itself, its words, and one more if the
payload's first octet stands further up in its word than in memory.
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import BURST_WORDS, Parameters

from ..data_register import data_register
from ..interfaces import WriteClientSignature
from ..layouts import PacketBeat
from ..stream.skid import Skid
from .burst import WriteBursts
from .receive_layouts import TICKET_WIDTH, PlaceCommand, fault_layout

__all__ = ["Placer"]

_END_WIDTH = 14
"""Of the number of a payload's last word, from a multiple of ``BURST_WORDS`` on."""


class Placer(wiring.Component):
    """Take payloads off the payload stream and write them to memory, or drop them.

    Octets outside the payload's range are never written (byte strobes). Latency from the command
    and its words to the first word written: 2 cycles. Error answers of the bus count as answers.

    Parameters
    ----------
    parameters : Parameters
    outstanding : int
        Bursts that may wait for their answer, at least 2.

    Members
    -------
    commands : In(stream of PlaceCommand)
    payload : In(stream of PacketBeat)
        Only ``data`` is looked at: the commands know the lengths. ``ready`` is a register: where
        the words wait is far from where they are written. One may be taken before its command.
    write : Out(WriteClientSignature)
    retired : Out(8)
        Number, modulo 256, of commands without ``drop`` whose bursts have all been answered, in
        this very cycle included.
    retires : Out(1)
        Strobe: ``retired`` counts one more than in the cycle before.
    hold, fault : In(1), Out(fault)
        As of :class:`WriteBursts`.
    """

    def __init__(self, parameters: Parameters, outstanding: int = 64):
        self._parameters = parameters
        self._outstanding = outstanding
        super().__init__(
            {
                "commands": In(stream.Signature(PlaceCommand)),
                "payload": In(stream.Signature(PacketBeat)),
                "write": Out(WriteClientSignature()),
                "retired": Out(TICKET_WIDTH),
                "retires": Out(1),
                "hold": In(1),
                "fault": Out(fault_layout(parameters)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.bursts = bursts = WriteBursts(
            self._parameters, self._outstanding, end_width=_END_WIDTH
        )

        # What is dropped moves no octet up or down.
        command = self.commands.payload
        lane = Signal(3)
        shift = Signal(3)
        place_bits = 3 + exact_log2(BURST_WORDS)
        final_octet = Signal(17)  # from the first word's octet 0 on
        final_in_block = Signal(17)  # from the last multiple of ``BURST_WORDS`` on
        m.d.comb += [
            lane.eq(Mux(command.drop, command.offset, command.address[:3])),
            shift.eq(lane - command.offset),
            final_octet.eq(self._last(lane, command.length)),
            final_in_block.eq(self._last(command.address[:place_bits], command.length)),
        ]

        fits = Cat(command.length[:4] <= 8 - place for place in range(8))

        active = Signal()
        drop = Signal(reset_less=True)
        back = Signal(3, reset_less=True)
        ahead = Signal(reset_less=True)
        first = Signal(reset_less=True)
        left = Signal(14, reset_less=True)  # words after this one
        final = Signal(reset_less=True)
        spills = Signal(reset_less=True)  # the final word holds octets of the word before only
        position = Signal(range(BURST_WORDS), reset_less=True)
        head_strobe = Signal(8, reset_less=True)
        tail_strobe = Signal(8, reset_less=True)
        m.d.comb += [
            bursts.commands.payload.run.word.eq(command.address[3:]),
            bursts.commands.payload.run.end.eq(final_in_block[3:]),
            # Of less than 256 octets, and one that is not dropped has some: the sum has no more.
            bursts.commands.payload.run.one_block.eq(
                ~command.length[place_bits + 1 :].any()
                & ~final_in_block[place_bits : place_bits + 2].any()
            ),
            bursts.commands.payload.qpn.eq(command.qpn),
            bursts.commands.valid.eq(self.commands.valid & ~active & ~command.drop),
            self.commands.ready.eq(~active & (command.drop | bursts.commands.ready)),
        ]
        m.submodules.words = words = Skid(64)
        m.d.comb += [
            words.i.payload.eq(self.payload.payload.data),
            words.i.valid.eq(self.payload.valid),
            self.payload.ready.eq(words.i.ready),
        ]

        # Octet i of the payload's word goes to lane i + shift, of this word of memory or the next:
        # eight octets of this word and the seven before, the highest by ``back`` octets first.
        beat = self.write.beats
        beat_held = data_register(m, beat.payload)
        held = Signal(56, reset_less=True)
        octets = Cat(held, words.o.payload)
        for bit in reversed(range(3)):
            octets = Mux(back[bit], octets[8 << bit :], octets)[: 64 + 8 * ((1 << bit) - 1)]

        beat_free = ~beat.valid | beat.ready
        exhausted = final & spills & ~ahead
        emit = Signal()
        m.d.comb += [
            words.o.ready.eq(active & ~exhausted & (drop | ahead | beat_free)),
            emit.eq(active & ~ahead & (drop | beat_free) & (exhausted | words.o.valid)),
        ]
        with m.If(beat.ready):
            m.d.sync += beat.valid.eq(0)
        with m.If(self.commands.valid & self.commands.ready):
            m.d.sync += active.eq(1)
        # In every cycle: what counts is the last.
        with m.If(~active):
            m.d.sync += [
                drop.eq(command.drop),
                back.eq(~shift),
                ahead.eq(lane < command.offset),
                spills.eq(final_octet[:3] < shift),
                first.eq(1),
                left.eq(final_octet[3:]),
                # Without the carries of ``final_octet``, or any.
                final.eq(~command.length[4:].any() & fits.bit_select(lane, 1)),
                position.eq(command.address[3:]),
                head_strobe.eq(0xFF << lane),
                tail_strobe.eq(0xFF >> ~final_octet[:3]),
            ]
        with m.Elif(emit):
            m.d.sync += [
                position.eq(position + 1),
                left.eq(left - 1),
                final.eq(left == 1),
                first.eq(0),
                active.eq(~final),
            ]
        with m.If(words.o.valid & words.o.ready):
            m.d.sync += [held.eq(words.o.payload[8:]), ahead.eq(0)]
        with m.If(emit & ~drop):
            m.d.sync += beat.valid.eq(1)
        # Without regard to ``emit``, which comes late: nobody looks at what is not valid.
        with m.If(beat_free):
            m.d.sync += [
                beat_held.data.eq(octets),
                beat_held.strobe.eq(Mux(first, head_strobe, 0xFF) & Mux(final, tail_strobe, 0xFF)),
                beat_held.last.eq(final | position.all()),
            ]

        wiring.connect(m, wiring.flipped(self.write.bursts), bursts.bursts)
        m.d.comb += [
            bursts.done.eq(self.write.done),
            bursts.error.eq(self.write.error),
            bursts.hold.eq(self.hold),
            self.fault.eq(bursts.fault),
        ]
        # The bus's answer comes late, and only chooses.
        retired = Signal(TICKET_WIDTH)
        following = Signal(TICKET_WIDTH, init=1)
        m.d.comb += [
            self.retires.eq(bursts.answered),
            self.retired.eq(Mux(bursts.answered, following, retired)),
        ]
        with m.If(bursts.answered):
            m.d.sync += [retired.eq(following), following.eq(following + 1)]
        return m

    def _last(self, first, length):
        """``first + length - 1``, with one carry chain only of all bits."""
        before = (first + ~C(0, len(first)))[: len(first)]
        return length + Cat(before, (first == 0).replicate(17 - len(first)))
