"""Payload octets into host memory, exactly.

    commands --+--> [WriteBursts] --------------------> write.bursts
               |
    payload ---+--> rotate -> merge with held octets --> write.beats

A word leaves a cycle. A command takes one cycle for itself, its words, and one more if the
payload's first octet stands further up in its word than in memory.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import BURST_WORDS, Parameters

from ..interfaces import WriteClientSignature
from ..layouts import PacketBeat
from .burst import WriteBursts
from .receive_layouts import TICKET_WIDTH, PlaceCommand, fault_layout

__all__ = ["Placer"]


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
        Only ``data`` is looked at: the commands know the lengths.
    write : Out(WriteClientSignature)
    retired : Out(8)
        Number, modulo 256, of commands without ``drop`` whose bursts have all been answered, in
        this very cycle included.
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
                "hold": In(1),
                "fault": Out(fault_layout(parameters)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.bursts = bursts = WriteBursts(self._parameters, self._outstanding)

        command = self.commands.payload
        lane = command.address[:3]
        in_beyond = Signal(17)  # octets, the first word's included, from octet 1 on
        out_beyond = Signal(17)
        m.d.comb += [
            in_beyond.eq(command.length + command.offset - 1),
            out_beyond.eq(command.length + lane - 1),
        ]

        active = Signal()
        drop = Signal()
        shift = Signal(3)
        from_held = Signal(8)
        ahead = Signal()
        first = Signal()
        in_left = Signal(14)  # words after the next one
        out_left = Signal(14)
        exhausted = Signal()
        final = Signal()
        position = Signal(range(BURST_WORDS))
        head_strobe = Signal(8)
        tail_strobe = Signal(8)
        m.d.comb += [
            bursts.commands.payload.run.word.eq(command.address[3:]),
            bursts.commands.payload.run.end.eq(
                (command.address[: 3 + exact_log2(BURST_WORDS)] + command.length - 1)[3:]
            ),
            bursts.commands.payload.qpn.eq(command.qpn),
            bursts.commands.valid.eq(self.commands.valid & ~active & ~command.drop),
            self.commands.ready.eq(~active & (command.drop | bursts.commands.ready)),
        ]
        with m.If(self.commands.valid & self.commands.ready):
            shift_next = Signal(3)
            m.d.comb += shift_next.eq(lane - command.offset)
            m.d.sync += [
                active.eq(1),
                drop.eq(command.drop),
                shift.eq(shift_next),
                from_held.eq(Cat(shift_next > i for i in range(8))),
                ahead.eq(lane < command.offset),
                first.eq(1),
                in_left.eq(in_beyond[3:]),
                out_left.eq(out_beyond[3:]),
                exhausted.eq(0),
                final.eq(out_beyond[3:] == 0),
                position.eq(command.address[3:]),
                head_strobe.eq(0xFF << lane),
                tail_strobe.eq(0xFF >> ~out_beyond[:3]),
            ]

        # Octet i of the payload's word goes to lane i + shift, of this word of memory or the next.
        rotated = self.payload.payload.data
        for bit in range(3):
            rotated = Mux(shift[bit], rotated.rotate_left(8 << bit), rotated)
        held = Signal(64)
        merged = Signal(64)
        m.d.comb += merged.eq(
            Cat(
                Mux(from_held[i], held.word_select(i, 8), rotated[8 * i : 8 * i + 8])
                for i in range(8)
            )
        )

        beat = self.write.beats
        beat_free = ~beat.valid | beat.ready
        emit = Signal()
        m.d.comb += [
            self.payload.ready.eq(active & ~exhausted & (drop | ahead | beat_free)),
            emit.eq(active & ~drop & ~ahead & beat_free & (exhausted | self.payload.valid)),
        ]
        with m.If(beat.ready):
            m.d.sync += beat.valid.eq(0)
        with m.If(self.payload.valid & self.payload.ready):
            m.d.sync += [
                held.eq(rotated),
                ahead.eq(0),
                in_left.eq(in_left - 1),
                exhausted.eq(in_left == 0),
            ]
            with m.If(drop & (in_left == 0)):
                m.d.sync += active.eq(0)
        with m.If(emit):
            m.d.sync += [
                beat.valid.eq(1),
                beat.payload.data.eq(merged),
                beat.payload.strobe.eq(
                    Mux(first, head_strobe, 0xFF) & Mux(final, tail_strobe, 0xFF)
                ),
                beat.payload.last.eq(final | position.all()),
                position.eq(position + 1),
                out_left.eq(out_left - 1),
                final.eq(out_left == 1),
                first.eq(0),
                active.eq(~final),
            ]

        wiring.connect(m, wiring.flipped(self.write.bursts), bursts.bursts)
        m.d.comb += [
            bursts.done.eq(self.write.done),
            bursts.error.eq(self.write.error),
            bursts.hold.eq(self.hold),
            self.fault.eq(bursts.fault),
        ]
        retired = Signal(TICKET_WIDTH)
        m.d.comb += self.retired.eq(retired + bursts.answered)
        m.d.sync += retired.eq(self.retired)
        return m
