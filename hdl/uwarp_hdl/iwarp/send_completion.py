"""Completion of sends (device behaviour, 7.6)."""

from amaranth.hdl import Cat, Module, Signal
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
from .segment import recall_layout

__all__ = ["SendCompleter"]


class SendCompleter(wiring.Component):
    """Write the CQE of each message whose last frame has left, and retire the message.

    A message that ended well and is unsignalled, or is discarded, gives its CQ slot back instead. A
    Read that has a tracker leaves it to the tracker's CQE. A response or Terminate (``silent``) has
    neither: its slot is ``released``. 5 cycles a message, if nobody stalls; the words of its CQE
    leave while the next one is looked at.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    done : In(stream of done_layout)
    passed : In(1)
        The next message's last frame has left.
    recall, recalled, recall_ready : Out(slot), In(recall_layout), In(1)
        The message in a slot: that of the slot of the cycle before, if then ``recall_ready``.
    completions : Out(CompletionSignature)
    retirements : Out(stream of retirement_layout)
    released : Out(stream of slot)
        Of a response or Terminate whose last frame has left, or will not.
    finished : Out(1)
        One message is through.
    """

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(
            {
                "done": In(stream.Signature(done_layout(parameters))),
                "passed": In(1),
                "recall": Out(slot_width(parameters)),
                "recalled": In(recall_layout(parameters)),
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
        message = Signal(self.recalled.shape())
        success = Signal()
        tagged = Signal()
        # What is offered, and what leaves.
        cqe = Signal(CQE_LAYOUT)
        leaving = Signal(CQE_LAYOUT)
        m.d.comb += [
            success.eq(done.status == Status.SUCCESS),
            tagged.eq(Cat(message.opcode == opcode for opcode in TAGGED_OPCODES).any()),
            self.recall.eq(done.slot),
            self.completions.requests.p.cq.eq(message.cq),
            self.completions.requests.p.urgent.eq(~success),
            cqe.opcode.eq(message.opcode),
            cqe.status.eq(done.status),
            cqe.qpn.eq(message.qpn),
            cqe.wqe_index.eq(message.index),
            cqe.mlen.eq(message.length),
            cqe.msn.eq(message.msn),
            self.retirements.p.qpn.eq(message.qpn),
            self.retirements.p.slot.eq(done.slot),
            self.retirements.p.cq.eq(message.cq),
            self.retirements.p.release.eq(
                done.discard | (success & ~message.signaled & ~done.tracked)
            ),
            self.released.p.eq(done.slot),
        ]
        with m.If(success):
            m.d.comb += cqe.valid.eq(message.length)
        with m.If(tagged):
            m.d.comb += [cqe.base_to.eq(message.remote_to), cqe.stag.eq(message.stag)]

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

        m.d.sync += owed.eq(owed + self.passed - self.finished)
        with m.FSM():
            with m.State("WAIT"):
                with m.If(self.done.valid & (owed != 0)):
                    with m.If(done.silent):
                        m.next = "RELEASE"
                    with m.Elif(self.recall_ready):
                        m.next = "RECALL"
            with m.State("RECALL"):
                m.d.sync += message.eq(self.recalled)
                m.next = "DECIDE"
            with m.State("DECIDE"):
                m.next = "COMPLETE"
                with m.If(self.retirements.p.release | (success & done.tracked)):
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
