"""Completion of sends (device behaviour, 7.6)."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters, Status
from uwarp.wire import TAGGED_OPCODES

from ..choice import word_after
from ..interfaces import CompletionSignature
from ..layouts import CQE_LAYOUT
from .cqe_writer import CQE_WORDS
from .frame_builder import FRAMES, done_layout
from .scheduler import retirement_layout, slot_width
from .segment import MessageWord, message_words, recall_layout, word_width

__all__ = ["SendCompleter"]


class SendCompleter(wiring.Component):
    """Write the CQE of each message whose last frame has left, and retire the message.

    A message that ended well and is unsignalled, or is discarded, gives its CQ slot back instead. A
    Read that has a tracker leaves it to the tracker's CQE. A response or Terminate (``silent``) has
    neither: its slot is ``released``. 8 cycles a message, if nobody stalls, 5 of them before its
    frame has left; the words of its CQE leave while the next one is looked at.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    done : In(stream of done_layout)
    passed : In(1)
        The next message's last frame has left.
    recall, recalled, recalled_msn, recall_ready : Out(recall_layout), In, In(32), In(1)
        A word of the message in a slot, and its MSN: those of two cycles before, if then
        ``recall_ready``.
    completions : Out(CompletionSignature)
    retirements : Out(stream of retirement_layout)
    released : Out(stream of slot)
        Of a response or Terminate whose last frame has left, or will not.
    finished : Out(1)
        One message is through.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        super().__init__(
            {
                "done": In(stream.Signature(done_layout(parameters))),
                "passed": In(1),
                "recall": Out(recall_layout(parameters)),
                "recalled": In(word_width(parameters)),
                "recalled_msn": In(32),
                "recall_ready": In(1),
                "completions": Out(CompletionSignature()),
                "retirements": Out(stream.Signature(retirement_layout(parameters))),
                "released": Out(stream.Signature(slot_width(parameters))),
                "finished": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        done = self.done.p
        owed = Signal(range(FRAMES + 1))
        # The words that are asked for, in turn; the last one is there when the CQE is asked for.
        layouts = message_words(self._parameters)
        cut, kind, quads, source = recalled = [
            Signal(layouts[word], name=word.name.lower(), reset_less=True) for word in MessageWord
        ]
        step = Signal(range(len(recalled)))
        asks = Signal()
        coming, arriving = Signal(len(recalled)), Signal(len(recalled))
        msn = Signal(32, reset_less=True)
        success = Signal()
        # Without a completion: the CQ slot goes back, or it was another's to complete.
        releases, goes_by = Signal(reset_less=True), Signal(reset_less=True)
        tagged = Signal()
        # What is offered, and what leaves.
        cqe = Signal(CQE_LAYOUT)
        leaving = Signal(CQE_LAYOUT, reset_less=True)
        m.d.comb += [
            success.eq(done.status == Status.SUCCESS),
            tagged.eq(Cat(kind.opcode == opcode for opcode in TAGGED_OPCODES).any()),
            self.recall.slot.eq(done.slot),
            self.recall.word.eq(step),
            self.completions.requests.p.cq.eq(source.cq),
            self.completions.requests.p.urgent.eq(~success),
            cqe.opcode.eq(kind.opcode),
            cqe.status.eq(done.status),
            cqe.qpn.eq(source.qpn),
            cqe.wqe_index.eq(source.index),
            cqe.mlen.eq(cut.length),
            cqe.msn.eq(msn),
            self.retirements.p.qpn.eq(source.qpn),
            self.retirements.p.slot.eq(done.slot),
            self.retirements.p.cq.eq(source.cq),
            self.retirements.p.release.eq(releases),
            self.released.p.eq(done.slot),
        ]
        with m.If(success):
            m.d.comb += cqe.valid.eq(cut.length)
        with m.If(tagged):
            m.d.comb += [cqe.base_to.eq(Cat(cut.to_low, kind.to_high)), cqe.stag.eq(quads.stag)]

        # Bit ``n``: word ``n`` is the next to be offered.
        select = Signal(CQE_WORDS)
        words = self.completions.words
        moves = ~words.valid | words.ready
        hand_over = Signal()
        is_free = Signal(init=1)
        m.d.comb += words.payload.eq(word_after(m, leaving, select, moves))
        with m.If(moves):
            m.d.sync += [words.valid.eq(select.any()), select.eq(select << 1)]
            with m.If(select[-1]):
                m.d.sync += is_free.eq(1)
        with m.If(hand_over):
            m.d.sync += [leaving.eq(cqe), select.eq(1), is_free.eq(0)]

        m.d.sync += [coming.eq(Mux(asks, 1 << step, 0)), arriving.eq(coming)]
        for arrives, word in zip(arriving, recalled, strict=True):
            with m.If(arrives):
                m.d.sync += word.eq(self.recalled)
        with m.If(arriving[-1]):
            m.d.sync += msn.eq(self.recalled_msn)

        m.d.sync += owed.eq(owed + self.passed - self.finished)
        # KIND is there two cycles before they are looked at.
        releases_next = done.discard | (success & ~kind.signaled & ~done.tracked)
        m.d.sync += [
            releases.eq(releases_next),
            goes_by.eq(releases_next | (success & done.tracked)),
        ]
        with m.FSM():
            with m.State("WAIT"):
                m.d.comb += asks.eq(self.done.valid & ~done.silent & self.recall_ready)
                with m.If(self.done.valid & done.silent & (owed != 0)):
                    m.next = "RELEASE"
                with m.If(asks):
                    m.d.sync += step.eq(step + 1)
                    with m.If(step == len(recalled) - 1):
                        m.next = "ARRIVE"
            with m.State("ARRIVE"):
                m.next = "DECIDE"
            with m.State("DECIDE"):
                with m.If(owed != 0):
                    m.next = "COMPLETE"
                    with m.If(goes_by):
                        m.next = "RETIRE"
            with m.State("COMPLETE"):
                m.d.comb += self.completions.requests.valid.eq(1)
                with m.If(self.completions.requests.ready):
                    m.next = "HAND_OVER"
                    with m.If(is_free):
                        m.d.comb += hand_over.eq(1)
                        m.next = "RETIRE"
            with m.State("HAND_OVER"):
                m.d.comb += hand_over.eq(is_free)
                with m.If(is_free):
                    m.next = "RETIRE"
            with m.State("RETIRE"):
                m.d.comb += self.retirements.valid.eq(1)
                with m.If(self.retirements.ready):
                    m.d.comb += [self.done.ready.eq(1), self.finished.eq(1)]
                    m.next = "WAIT"
            with m.State("RELEASE"):
                m.d.comb += self.released.valid.eq(1)
                with m.If(self.released.ready):
                    m.d.comb += [self.done.ready.eq(1), self.finished.eq(1)]
                    m.next = "WAIT"
        return m
