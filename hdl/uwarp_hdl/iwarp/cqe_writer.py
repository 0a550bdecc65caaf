"""CQEs on their way to memory.

::

    slots --------+
    completions --+--> 64 octets, with time and phase --> write burst of 8 words

Words leave from a shift register: 8 cycles a CQE, and one between two of them.
"""

from amaranth.hdl import Array, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import CQE, Counter, Status

from ..interfaces import WriteClientSignature
from ..layouts import Completion, structure_layout

__all__ = ["CqeWriter", "Slot"]

_CQE_LAYOUT = structure_layout(CQE)
_CQE_BEATS = CQE.size // 8


class Slot(data.Struct):
    """A slot of a ring for the completion at the head of ``client``'s stream.

    With ``discard`` the completion's CQ has no ring any more, and it is dropped.
    """

    client: 4
    address: 64
    phase: 1
    discard: 1


class CqeWriter(wiring.Component):
    """Write completions into the slots given.

    The first word is offered in the cycle after slot and completion meet.

    Parameters
    ----------
    clients : int

    Members
    -------
    slots : In(stream.Signature(Slot))
    completions : In(stream.Signature(Completion)).array(clients)
    time : In(47)
        Cycles; goes into the CQE when its writing begins.
    bursts, beats : Out
        As in ``WriteClientSignature``.
    events : Out(len(Counter))
    """

    def __init__(self, clients: int) -> None:
        write = WriteClientSignature().members
        super().__init__(
            {
                "slots": In(stream.Signature(Slot)),
                "completions": In(stream.Signature(Completion)).array(clients),
                "time": In(47),
                "bursts": write["bursts"],
                "beats": write["beats"],
                "events": Out(len(Counter)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        slot = self.slots.payload
        words = Signal(8 * CQE.size)
        position = Signal(range(_CQE_BEATS))
        is_last = Signal()
        # A burst that is taken late holds up the next CQE.
        free = ~self.beats.valid & ~self.bursts.valid
        begin = free & self.slots.valid

        cqe = Signal(_CQE_LAYOUT)
        chosen = Array(item.payload.cqe for item in self.completions)[slot.client]
        m.d.comb += [
            cqe.eq(chosen),
            cqe.time_low.eq(self.time),
            cqe.time_high.eq(self.time[31:]),
            cqe.phase.eq(slot.phase),
            self.slots.ready.eq(free),
        ]
        for index, item in enumerate(self.completions):
            m.d.comb += item.ready.eq(begin & (slot.client == index))

        m.d.comb += [
            self.bursts.p.beats.eq(_CQE_BEATS - 1),
            self.beats.p.data.eq(words[:64]),
            self.beats.p.strobe.eq(0xFF),
            self.beats.p.last.eq(is_last),
        ]
        with m.If(self.bursts.ready):
            m.d.sync += self.bursts.valid.eq(0)
        with m.If(self.beats.valid & self.beats.ready):
            m.d.sync += [
                words.eq(words[64:]),
                position.eq(position + 1),
                is_last.eq(position == _CQE_BEATS - 2),
                self.beats.valid.eq(~is_last),
            ]
        with m.If(~self.beats.valid):
            m.d.sync += words.eq(cqe)
        with m.If(begin):
            m.d.sync += [
                self.bursts.p.address.eq(slot.address),
                self.bursts.valid.eq(~slot.discard),
                self.beats.valid.eq(~slot.discard),
                position.eq(0),
                is_last.eq(0),
            ]
        written = begin & ~slot.discard
        m.d.sync += [
            self.events[Counter.CQES].eq(written),
            self.events[Counter.MESSAGES_PARTIAL].eq(written & (cqe.status == Status.PARTIAL)),
        ]
        return m
