"""Payload reader: octets of host memory as the words of a frame, read ahead of it.

::

    jobs --> bursts --> memory --> words (FIFO) --> rotator --> blend with the word before --> o
       +--> alignments (FIFO) ------------------------^-----------^

A segment's payload is gathered from pieces of any length at any address. A burst is asked for when
the FIFO has room for it, so words always have a place, and all of the FIFO can be on its way: 512
words, 32 bursts of 16, are 3.3 us of line rate at 156.25 MHz. A burst ends at a 128-octet boundary,
hence never crosses 4 KiB.

A burst every other cycle, one word of memory a cycle, no gap between pieces but what asking takes:
two cycles for each burst of a piece. A final piece takes one cycle more than its words if the last
one ends up in two words of the frame.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp.contract import BURST_WORDS, EventType, Parameters

from ..data_register import data_register
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
_LINE_WIDTH = _COUNT_WIDTH + 1 - (BURST_WORDS - 1).bit_length()


class PayloadWord(data.Struct):
    """A word of payload in its place in the frame; octets that are not payload are 0.

    ``error``, in the last word, tells that a read of the segment's payload failed.
    """

    data: 64
    last: 1
    error: 1


def _alignment_layout(parameters):
    """How a piece's words of memory become words of the frame.

    There are ``more`` than one, or it is ``single``. They go ``rotate`` octets up; ``prime`` if the
    first one fills up no word, because its octets lie beyond the word's end. The piece ends before
    octet ``tail`` of a word, or 0, which with ``spill`` is the one after that which the last word
    of memory completes.
    """

    return data.StructLayout(
        {
            "more": _COUNT_WIDTH,
            "single": 1,
            "place": 3,
            "rotate": 3,
            "prime": 1,
            "tail": 3,
            "spill": 1,
            "final": 1,
            "qpn": qp_width(parameters),
        }
    )


class PayloadReader(wiring.Component):
    """Read jobs in order. After a burst that failed ``o`` pauses until its event is taken.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    jobs : In(stream of ReadJob)
        The pieces of a segment follow each other; each begins in the octet of a frame word in which
        the one before ended.
    o : Out(stream of PayloadWord)
        For each segment the words from the one with its first to the one with its last octet.
    read : Out(ReadClientSignature)
    event_requests : Out(stream of EventRequest)
        For each burst that failed.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._alignment = _alignment_layout(parameters)
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
        m.submodules.alignments = alignments = Queue(self._alignment, JOBS, registered=False)
        words = stream.Signature(ReadBeat).create()
        self._store(m, words)
        self._ask(m, words, alignments)
        self._align(m, words, alignments)
        return m

    def _store(self, m, words):
        """Words of memory, which are asked for when there is room for them, so that nothing need
        tell whether there is: what comes is offered 3 cycles later, then one a cycle."""
        m.submodules.fifo = fifo = Memory(shape=ReadBeat, depth=FIFO_WORDS, init=[])
        writer, reader = fifo.write_port(), fifo.read_port()
        beats = self.read.beats
        fetched, fetched_free, free = Signal(), Signal(), Signal()
        # Kept apart from ``ready``, which comes a long way.
        some = Signal(attrs={"keep": 1})
        m.d.comb += [
            beats.ready.eq(1),
            writer.data.eq(beats.p),
            writer.en.eq(beats.valid),
            free.eq(~words.valid | words.ready),
            fetched_free.eq(~fetched | free),
            # Never the word that is being written: synthesis need not add logic for that case.
            some.eq(writer.addr != reader.addr),
            reader.en.eq(some & fetched_free),
        ]
        with m.If(beats.valid):
            m.d.sync += writer.addr.eq(writer.addr + 1)
        with m.If(reader.en):
            m.d.sync += reader.addr.eq(reader.addr + 1)
        with m.If(fetched_free):
            m.d.sync += fetched.eq(reader.en)
        held = data_register(m, words.p)
        with m.If(free):
            m.d.sync += [held.eq(reader.data), words.valid.eq(fetched)]

    def _ask(self, m, words, alignments):
        job, bursts = self.jobs.p, self.read.bursts
        first = job.address[:3]
        # It is put in the cycle after the job's first, in which the job does not end.
        alignment = data_register(m, alignments.i.p)
        more = (first + job.length - 1) >> 3
        last_octet = Signal(3)  # of the word of the frame
        rotate = Signal(3)

        # The job stays where it is until its last burst is asked for. Bursts end at lines.
        line_bits = BURST_WORDS.bit_length() - 1
        line_address = job.address[3 + line_bits :]
        offset = job.address[3 : 3 + line_bits]  # of the first word in its line
        last_end = Signal(line_bits, reset_less=True)  # the last word's place in line ``last_line``
        line, last_line = Signal(_LINE_WIDTH, reset_less=True), Signal(_LINE_WIDTH, reset_less=True)
        begin, end = Signal(line_bits, reset_less=True), Signal(line_bits)  # of a burst in its line
        # Without the burst just asked for, if ``asked``.
        vacant = Signal(range(FIFO_WORDS + 1), init=FIFO_WORDS)
        is_last = Signal()
        ask, asked, popped = Signal(), Signal(), Signal()
        m.d.sync += [
            alignment.more.eq(more),
            alignment.single.eq(more == 0),
            alignment.place.eq(job.place),
            alignment.rotate.eq(rotate),
            alignment.prime.eq(first > job.place),
            alignment.tail.eq(job.place + job.length[:3]),
            alignment.spill.eq(last_octet < rotate),
            alignment.final.eq(job.final),
            alignment.qpn.eq(job.qpn),
            alignments.i.valid.eq(0),
        ]
        m.d.comb += [
            last_octet.eq(job.place + job.length[:3] - 1),
            rotate.eq(job.place - first),
            is_last.eq(line == last_line),
            end.eq(Mux(is_last, last_end, BURST_WORDS - 1)),
        ]
        has_room = Mux(asked, vacant >= 2 * BURST_WORDS, vacant >= BURST_WORDS)
        with m.FSM():
            with m.State("JOB"):
                m.d.sync += [
                    line.eq(0),
                    begin.eq(offset),
                    Cat(last_end, last_line).eq(offset + more),
                ]
                with m.If(self.jobs.valid & alignments.i.ready):
                    m.d.sync += alignments.i.valid.eq(1)
                    m.next = "BURSTS"
            with m.State("BURSTS"):
                with m.If(~bursts.valid & has_room):
                    m.d.comb += [ask.eq(1), self.jobs.ready.eq(is_last)]
                    m.d.sync += [line.eq(line + 1), begin.eq(0)]
                    with m.If(is_last):
                        m.next = "JOB"

        burst = data_register(m, bursts.p)
        with m.If(bursts.valid):
            m.d.sync += bursts.valid.eq(~bursts.ready)
        with m.Else():
            m.d.sync += [
                bursts.valid.eq(ask),
                burst.address.eq(Cat(Const(0, 3), begin, line_address + line)),
                burst.beats.eq(end - begin),
            ]
        # Less those of the burst, beats + 1, which is adding the complement of beats; and popped.
        taken = Signal(len(vacant))
        m.d.comb += taken.eq(
            Mux(asked, Cat(~bursts.p.beats[:line_bits], Const(-1, len(taken) - line_bits)), 0)
        )
        m.d.sync += [
            asked.eq(ask),
            popped.eq(words.valid & words.ready),
            vacant.eq((Cat(1, vacant) + Cat(popped, taken))[1:]),
        ]

    def _align(self, m, words, alignments):
        told = self.event_requests
        number, o = data_register(m, told.p.number), data_register(m, self.o.p)
        spoiled = Signal()  # a word of the burst
        piece = Signal(self._alignment, reset_less=True)
        active = Signal()
        # Octets of the frame's word before this one are in ``kept``.
        boundary = Signal(3, reset_less=True)
        kept = Signal(64)
        error = Signal()

        rotated = Signal(64)
        turned = words.p.data
        for bit, turn in enumerate(piece.rotate):
            by = 8 << bit
            turned = Mux(turn, Cat(turned[64 - by :], turned[: 64 - by]), turned)
        blend = Signal(64)
        # A word of memory is still to come; one only.
        needs_word = Signal()
        last_word = Signal()
        ending = Signal()  # the piece, with the next step
        completes = Signal()  # that, a word of the frame
        closes = Signal()  # ... the piece's last step does
        step = Signal()
        # There is a piece, and no event to be taken; and a word of memory is needed.
        runs, draws = Signal(), Signal()
        tells, needs_next = Signal(), Signal()
        out_free = ~self.o.valid | self.o.ready
        ends_all = ending & piece.final
        m.d.comb += [
            rotated.eq(turned),
            step.eq(runs & (out_free | ~completes) & (words.valid | ~needs_word)),
            words.ready.eq(draws & (out_free | ~completes)),
            alignments.o.ready.eq(~active | (step & ending)),
            told.p.type.eq(EventType.DMA_READ),
        ]
        for octet in range(8):
            lane = slice(8 * octet, 8 * octet + 8)
            m.d.comb += blend[lane].eq(
                Mux((octet < boundary) | ~needs_word, kept[lane], rotated[lane])
            )
            with m.If(ending & piece.final & (piece.tail != 0) & (octet >= piece.tail)):
                m.d.comb += blend[lane].eq(0)

        failed = spoiled | words.p.error
        m.d.comb += tells.eq(told.valid & ~told.ready)
        m.d.sync += told.valid.eq(tells)
        with m.If(words.valid & words.ready):
            m.d.comb += tells.eq(failed & words.p.last)
            m.d.sync += [
                spoiled.eq(failed & ~words.p.last),
                number.eq(piece.qpn),
            ]
        # Whatever is there, until it counts: so the step is late for the valid bit only.
        with m.If(out_free):
            m.d.sync += [
                self.o.valid.eq(step & completes),
                o.data.eq(blend),
                o.last.eq(ends_all),
                o.error.eq(ends_all & (error | (needs_word & words.p.error))),
            ]
        # The next segment's first word begins with zeros. In this order it is the register's reset.
        with m.If(step & ends_all):
            m.d.sync += kept.eq(0)
        with m.Elif(step):
            for octet in range(8):
                with m.If(completes | (octet >= boundary)):
                    lane = slice(8 * octet, 8 * octet + 8)
                    m.d.sync += kept[lane].eq(rotated[lane])
        with m.If(step):
            m.d.sync += [
                boundary.eq(piece.rotate),
                error.eq((error | (needs_word & words.p.error)) & ~ends_all),
            ]
            with m.If(needs_word):
                ends_next = Mux(piece.spill & piece.final, last_word, piece.more == 1)
                m.d.sync += [
                    piece.more.eq(piece.more - 1),
                    needs_word.eq(~last_word),
                    last_word.eq(piece.more == 1),
                    ending.eq(ends_next),
                    completes.eq(~ends_next | closes),
                ]
        # A final piece that spills ends with a word of what is kept.
        coming = alignments.o.p
        ends_first = coming.single & ~(coming.spill & coming.final)
        closes_coming = coming.spill | coming.final | (coming.tail == 0)
        runs_next = Mux(alignments.o.ready, alignments.o.valid, active) & ~tells
        m.d.comb += needs_next.eq(alignments.o.ready | (needs_word & ~(step & last_word)))
        m.d.sync += [runs.eq(runs_next), draws.eq(runs_next & needs_next)]
        with m.If(alignments.o.ready):
            m.d.sync += [
                active.eq(alignments.o.valid),
                piece.eq(coming),
                needs_word.eq(1),
                last_word.eq(coming.single),
                ending.eq(ends_first),
                closes.eq(closes_coming),
                completes.eq(~coming.prime & (~ends_first | closes_coming)),
                boundary.eq(coming.place),
            ]
