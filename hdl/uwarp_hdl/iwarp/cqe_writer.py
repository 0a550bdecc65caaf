"""CQEs on their way to memory.

::

    slots --------+--> write burst
    completions --+--> 64 octets, with time and phase --> 8 words

Words leave from a shift register: 8 cycles a CQE, and one between two of them. The burst of the
next CQE is announced while they do.
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

    ``time`` goes into the CQE. With ``discard`` the completion's CQ has no ring any more, and it is
    dropped.
    """

    client: 4
    address: 64
    phase: 1
    time: 47
    discard: 1


class CqeWriter(wiring.Component):
    """Write completions into the slots given.

    The burst is offered with its slot, the first word in the cycle after slot and completion meet.

    Parameters
    ----------
    clients : int

    Members
    -------
    slots : In(stream.Signature(Slot))
    completions : In(stream.Signature(Completion)).array(clients)
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
        # What has been done for the slot at hand.
        announced = Signal()
        loaded = Signal()
        load = Signal()
        m.d.comb += load.eq(self.slots.valid & ~self.beats.valid & ~loaded)

        cqe = Signal(_CQE_LAYOUT)
        chosen = Array(item.payload.cqe for item in self.completions)[slot.client]
        m.d.comb += [
            cqe.eq(chosen),
            cqe.time_low.eq(slot.time),
            cqe.time_high.eq(slot.time[31:]),
            cqe.phase.eq(slot.phase),
        ]
        for index, item in enumerate(self.completions):
            m.d.comb += item.ready.eq(load & (slot.client == index))

        m.d.comb += [
            self.bursts.p.address.eq(slot.address),
            self.bursts.p.beats.eq(_CQE_BEATS - 1),
            self.bursts.valid.eq(self.slots.valid & ~slot.discard & ~announced),
            self.slots.ready.eq((load | loaded) & (announced | self.bursts.ready | slot.discard)),
            self.beats.p.data.eq(words[:64]),
            self.beats.p.strobe.eq(0xFF),
            self.beats.p.last.eq(is_last),
        ]
        with m.If(self.slots.valid):
            m.d.sync += [
                announced.eq((announced | self.bursts.ready) & ~self.slots.ready),
                loaded.eq((loaded | load) & ~self.slots.ready),
            ]
        with m.If(self.beats.valid & self.beats.ready):
            m.d.sync += [
                words.eq(words[64:]),
                position.eq(position + 1),
                is_last.eq(position == _CQE_BEATS - 2),
                self.beats.valid.eq(~is_last),
            ]
        with m.If(~self.beats.valid):
            m.d.sync += words.eq(cqe)
        with m.If(load):
            m.d.sync += [
                self.beats.valid.eq(~slot.discard),
                position.eq(0),
                is_last.eq(0),
            ]
        written = load & ~slot.discard
        m.d.sync += [
            self.events[Counter.CQES].eq(written),
            self.events[Counter.MESSAGES_PARTIAL].eq(written & (cqe.status == Status.PARTIAL)),
        ]
        return m
