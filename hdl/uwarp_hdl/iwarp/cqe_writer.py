"""CQEs on their way to memory.

::

    slots --------------+--> write burst
    completions.words --+--> word, with time and phase --> beats

8 cycles a CQE, and one between two of them. The burst is announced beside the words.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import CQE, Counter, Status

from ..interfaces import WriteClientSignature
from ..layouts import CQE_LAYOUT

__all__ = ["CQE_WORDS", "CqeWriter", "Slot"]

CQE_WORDS = CQE.size // 8

_TIME_LOW_BITS = CQE_LAYOUT["time_low"].width
_STATUS = CQE_LAYOUT["status"]
# Where in their words time and phase go.
_TIME_HIGH_AT = CQE_LAYOUT["time_high"].offset % 64
_TIME_LOW_AT = CQE_LAYOUT["time_low"].offset % 64
_TIME_HIGH_WORD = CQE_LAYOUT["time_high"].offset // 64


class Slot(data.Struct):
    """A slot of a ring for the next CQE of ``client``.

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

    The burst is offered with its slot, the first word in the next cycle.

    Parameters
    ----------
    clients : int

    Members
    -------
    slots : In(stream.Signature(Slot))
    words : In(stream.Signature(64)).array(clients)
        As in ``CompletionSignature``.
    bursts, beats : Out
        As in ``WriteClientSignature``.
    events : Out(len(Counter))
    """

    def __init__(self, clients: int) -> None:
        self._clients = clients
        write = WriteClientSignature().members
        super().__init__(
            {
                "slots": In(stream.Signature(Slot)),
                "words": In(stream.Signature(64)).array(clients),
                "bursts": write["bursts"],
                "beats": write["beats"],
                "events": Out(len(Counter)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        slot = self.slots.payload
        # One bit, while the words of that client's CQE are written; what of the slot they need.
        serving = Signal(self._clients)
        discard = Signal(reset_less=True)
        time = Signal.like(slot.time, reset_less=True)
        phase = Signal(reset_less=True)
        position = Signal(range(CQE_WORDS))
        is_first = Signal()
        is_last = Signal()
        # What has been done for the slot at hand.
        announced = Signal()
        loaded = Signal()
        load = Signal()
        m.d.comb += load.eq(self.slots.valid & ~serving.any() & ~loaded)

        word = self.words[0].payload
        for is_its, item in zip(serving[1:], self.words[1:], strict=True):
            word = Mux(is_its, item.payload, word)
        flows = self.beats.ready | discard
        is_there = (serving & Cat(item.valid for item in self.words)).any()
        take = is_there & flows
        for is_its, item in zip(serving, self.words, strict=True):
            m.d.comb += item.ready.eq(is_its & flows)

        # 0 but beside the word that they go into.
        time_high = Signal(len(time) - _TIME_LOW_BITS)
        time_low = Signal(_TIME_LOW_BITS + 1)
        stamp = Cat(
            Const(0, _TIME_HIGH_AT),
            time_high,
            Const(0, _TIME_LOW_AT - _TIME_HIGH_AT - len(time_high)),
            time_low,
        )
        with m.If(take):
            m.d.sync += [
                time_high.eq(time[_TIME_LOW_BITS:]),
                time_low.eq(Cat(time[:_TIME_LOW_BITS], phase)),
                position.eq(position + 1),
                is_first.eq(0),
                is_last.eq(position == CQE_WORDS - 2),
            ]
            with m.If(is_last):
                m.d.sync += serving.eq(0)
        with m.If(take & (position != _TIME_HIGH_WORD - 1)):
            m.d.sync += time_high.eq(0)
        with m.If(take & (position != CQE_WORDS - 2)):
            m.d.sync += time_low.eq(0)
        with m.If(load):
            m.d.sync += [
                serving.eq(Cat(slot.client == index for index in range(self._clients))),
                discard.eq(slot.discard),
                time.eq(slot.time),
                phase.eq(slot.phase),
                is_first.eq(1),
            ]
        m.d.comb += [
            self.bursts.p.address.eq(slot.address),
            self.bursts.p.beats.eq(CQE_WORDS - 1),
            self.bursts.valid.eq(self.slots.valid & ~slot.discard & ~announced),
            self.slots.ready.eq((load | loaded) & (announced | self.bursts.ready | slot.discard)),
            self.beats.p.data.eq(word | stamp),
            self.beats.p.strobe.eq(0xFF),
            self.beats.p.last.eq(is_last),
            self.beats.valid.eq(is_there & ~discard),
        ]
        with m.If(self.slots.valid):
            m.d.sync += [
                announced.eq((announced | self.bursts.ready) & ~self.slots.ready),
                loaded.eq((loaded | load) & ~self.slots.ready),
            ]
        status = word[_STATUS.offset :][: _STATUS.width]
        m.d.sync += [
            self.events[Counter.CQES].eq(load & ~slot.discard),
            self.events[Counter.MESSAGES_PARTIAL].eq(
                take & is_first & ~discard & (status == Status.PARTIAL)
            ),
        ]
        return m
