"""Payload reader: octets of host memory as the words of a frame, read ahead of it.

::

    jobs --> bursts --> memory --> words (FIFO) --> rotator --> o
       +--> alignments (FIFO) ------------------------^

A burst is asked for when the FIFO has room for it, so words always have a place, and all of the
FIFO can be on its way: 512 words, 32 bursts of 16, are 3.3 us of line rate at 156.25 MHz. A burst
ends at a 128-octet boundary, hence never crosses 4 KiB. One burst a cycle, one word a cycle; a job
takes one cycle more than its words, or two if its first word comes from two.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import BURST_WORDS, EventType, Parameters

from ..interfaces import ReadClientSignature
from ..layouts import EventRequest, ReadBeat
from ..stream.queue import Queue
from .fetch import LENGTH_WIDTH
from .scheduler import qp_width
from .segment import ReadJob

__all__ = ["PayloadReader", "PayloadWord"]

FIFO_WORDS = 512
JOBS = 32

_COUNT_WIDTH = LENGTH_WIDTH - 2


class PayloadWord(data.Struct):
    """A word of payload in its place in the frame; octets that are not payload are 0.

    ``error``, in the last word, tells that a read of the job failed.
    """

    data: 64
    last: 1
    error: 1


class _Alignment(data.Struct):
    """``rotate`` octets up; ``prime`` if the first frame word needs two memory words."""

    rotate: 3
    upper: 1
    prime: 1
    words_in: _COUNT_WIDTH
    words_out: _COUNT_WIDTH
    tail: 3


class PayloadReader(wiring.Component):
    """Read jobs in order. After a burst that failed ``o`` pauses until its event is taken.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    jobs : In(stream of ReadJob)
    o : Out(stream of PayloadWord)
        For each job the words from the one with its first to the one with its last octet.
    read : Out(ReadClientSignature)
    event_requests : Out(stream of EventRequest)
        For each burst that failed.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._qpn_width = qp_width(parameters)
        super().__init__(
            {
                "jobs": In(stream.Signature(ReadJob)),
                "o": Out(stream.Signature(PayloadWord)),
                "read": Out(ReadClientSignature()),
                "event_requests": Out(stream.Signature(EventRequest)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.words = words = Queue(ReadBeat, FIFO_WORDS)
        # Two queues in step: one of all these bits would not fit into LUT RAM.
        m.submodules.alignments = alignments = Queue(_Alignment, JOBS)
        m.submodules.owners = owners = Queue(self._qpn_width, JOBS)
        m.d.comb += [
            owners.i.p.eq(self.jobs.p.qpn),
            owners.i.valid.eq(alignments.i.valid),
            owners.o.ready.eq(alignments.o.ready),
        ]
        self._ask(m, words, alignments)
        self._align(m, words, alignments, owners)
        return m

    def _ask(self, m, words, alignments):
        job, bursts = self.jobs.p, self.read.bursts
        first = job.address[:3]
        place = Cat(Const(0, 2), job.upper)
        alignment = alignments.i.p
        words_in = (first + job.length + 7) >> 3

        word_address = Signal(61)
        left = Signal(_COUNT_WIDTH)
        vacant = Signal(range(FIFO_WORDS + 1), init=FIFO_WORDS)
        boundary = Signal(range(BURST_WORDS + 1))
        size = Signal(range(BURST_WORDS + 1))
        ask = Signal()
        m.d.comb += [
            alignment.rotate.eq(place - first),
            alignment.upper.eq(job.upper),
            alignment.prime.eq(first > place),
            alignment.words_in.eq(words_in),
            alignment.words_out.eq((place + job.length + 7) >> 3),
            alignment.tail.eq(place + job.length),
            boundary.eq(BURST_WORDS - word_address[: BURST_WORDS.bit_length() - 1]),
            size.eq(Mux(left < boundary, left, boundary)),
            words.i.p.eq(self.read.beats.p),
            words.i.valid.eq(self.read.beats.valid),
            self.read.beats.ready.eq(words.i.ready),
        ]
        with m.FSM():
            with m.State("JOB"):
                m.d.comb += [
                    self.jobs.ready.eq(alignments.i.ready),
                    alignments.i.valid.eq(self.jobs.valid),
                ]
                m.d.sync += [word_address.eq(job.address[3:]), left.eq(words_in)]
                with m.If(self.jobs.valid & alignments.i.ready):
                    m.next = "BURSTS"
            with m.State("BURSTS"):
                with m.If((~bursts.valid | bursts.ready) & (vacant >= BURST_WORDS)):
                    m.d.comb += ask.eq(1)
                    m.d.sync += [word_address.eq(word_address + size), left.eq(left - size)]
                    with m.If(left == size):
                        m.next = "JOB"

        with m.If(~bursts.valid | bursts.ready):
            m.d.sync += [
                bursts.valid.eq(ask),
                bursts.p.address.eq(word_address << 3),
                bursts.p.beats.eq(size - 1),
            ]
        popped = words.o.valid & words.o.ready
        m.d.sync += vacant.eq(vacant - Mux(ask, size, 0) + popped)

    def _align(self, m, words, alignments, owners):
        told = self.event_requests
        spoiled = Signal()  # a word of the burst
        job = Signal(_Alignment)
        qpn = Signal(self._qpn_width)
        active = Signal()
        priming = Signal()
        beginning = Signal()
        previous = Signal(64)
        error = Signal()

        rotated = words.o.p.data
        for bit, turn in enumerate(job.rotate):
            by = 8 << bit
            rotated = Mux(turn, Cat(rotated[64 - by :], rotated[: 64 - by]), rotated)
        mixed = Signal(64)
        present = Signal(64)
        step = Signal()
        ending = Signal()
        needs_word = job.words_in != 0
        out_free = ~self.o.valid | self.o.ready
        may_step = (priming | out_free) & ~told.valid
        m.d.comb += [
            told.p.type.eq(EventType.DMA_READ),
            present.eq(Mux(needs_word, rotated, 0)),
            ending.eq(~priming & (job.words_out == 1)),
            step.eq(active & may_step & (words.o.valid | ~needs_word)),
            words.o.ready.eq(active & may_step & needs_word),
            alignments.o.ready.eq(~active | (step & ending)),
        ]
        for octet in range(8):
            lane = slice(8 * octet, 8 * octet + 8)
            outside = ending & (job.tail != 0) & (octet >= job.tail)
            if octet < 4:
                outside = outside | (beginning & job.upper)
            with m.If(~outside):
                m.d.comb += mixed[lane].eq(Mux(octet < job.rotate, previous[lane], present[lane]))

        with m.If(told.ready):
            m.d.sync += told.valid.eq(0)
        with m.If(words.o.valid & words.o.ready):
            failed = spoiled | words.o.p.error
            m.d.sync += [
                spoiled.eq(failed & ~words.o.p.last),
                told.valid.eq(failed & words.o.p.last),
                told.p.number.eq(qpn),
            ]
        with m.If(out_free):
            m.d.sync += self.o.valid.eq(0)
        with m.If(step):
            m.d.sync += [
                previous.eq(rotated),
                error.eq(error | (needs_word & words.o.p.error)),
                priming.eq(0),
            ]
            with m.If(needs_word):
                m.d.sync += job.words_in.eq(job.words_in - 1)
            with m.If(~priming):
                m.d.sync += [
                    beginning.eq(0),
                    job.words_out.eq(job.words_out - 1),
                    self.o.valid.eq(1),
                    self.o.p.data.eq(mixed),
                    self.o.p.last.eq(ending),
                    self.o.p.error.eq(ending & (error | (needs_word & words.o.p.error))),
                ]
        with m.If(alignments.o.ready):
            m.d.sync += [
                active.eq(alignments.o.valid),
                job.eq(alignments.o.p),
                qpn.eq(owners.o.p),
                priming.eq(alignments.o.p.prime),
                beginning.eq(1),
                previous.eq(0),
                error.eq(0),
            ]
