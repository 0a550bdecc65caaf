"""Proofs of Skid, Queue and PacketFifo, and of what they must not do."""

import pytest
from amaranth.hdl import Assert, Assume, Cover, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from sim_tb.formal import stream as rules
from sim_tb.formal.faults import FaultyOutput
from sim_tb.formal.prove import prove, refute
from sim_tb.formal.stream import BufferProof, ReadinessProof
from uwarp_hdl.stream.packet_fifo import PacketFifo
from uwarp_hdl.stream.queue import Queue
from uwarp_hdl.stream.skid import Skid

WIDTH = 2


def test_skid(tmp_path):
    prove(BufferProof(Skid(WIDTH), room=1, most=1), tmp_path, cycles=12, induction=3)


@pytest.mark.parametrize(
    "depth, options, cycles",
    [
        (2, {}, 20),
        (3, {}, 18),
        (4, {}, 15),
        (2, {"direct": False}, 15),
        (3, {"registered": False}, 15),
        (4, {"eager": False}, 13),
    ],
)
def test_queue(tmp_path, depth, options, cycles):
    """Each has its own store: registers, an odd ring, an even one, block RAM, LUT RAM alone."""
    unit = Queue(WIDTH, depth, **options)
    delay = 0 if options.get("direct", True) else 2
    if not options.get("eager", True):
        delay = 1
    proof = BufferProof(unit, room=depth, most=depth, delay=delay)
    prove(proof, tmp_path, cycles=cycles)


@pytest.mark.parametrize(
    "depth, cycles", [(2, 11), pytest.param(2, 15, marks=pytest.mark.soak), (4, 11)]
)
def test_packet_fifo(tmp_path, depth, cycles):
    """P11, P15: commits and discards at any time, with a word and without."""
    unit = PacketFifo(1, depth)
    prove(BufferProof(unit, room=depth, most=depth + 2, delay=2), tmp_path, cycles=cycles)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Skid(WIDTH),
        lambda: Queue(WIDTH, 2),
        lambda: Queue(WIDTH, 3),
        lambda: Queue(WIDTH, 3, registered=False),
        lambda: PacketFifo(WIDTH, 2),
    ],
    ids=["skid", "queue-2", "queue-3", "queue-3-bare", "packet-fifo"],
)
def test_neither_side_waits_for_ready(tmp_path, make):
    prove(ReadinessProof(make), tmp_path, cycles=10)


class FrameProof(wiring.Component):
    """Frames through a PacketFifo, written as the receiver writes them, come out whole.

    A frame is committed or discarded with its last word, and discarded when a word of it finds no
    room; the rest of it is then skipped. At the output a frame that has begun goes on without a gap
    to its last word, and no word of a discarded frame is seen.
    """

    word: In(data.StructLayout({"good": 1, "last": 1}))
    valid: In(1)
    keep: In(1)
    ready: In(1)

    def __init__(self, fifo):
        self._fifo = fifo
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = fifo = self._fifo
        skipping, in_frame, good = Signal(), Signal(), Signal()
        ends = self.valid & self.word.last
        refused = self.valid & ~fifo.i.ready & ~skipping
        m.d.comb += [
            # All words of a frame say whether it will be kept.
            Assume(~in_frame | (self.word.good == good)),
            fifo.i.payload.eq(self.word),
            fifo.i.valid.eq(self.valid & ~skipping),
            fifo.commit.eq(ends & ~skipping & ~refused & self.word.good),
            fifo.discard.eq((ends & ~skipping & ~self.word.good) | refused),
            fifo.o.ready.eq(self.ready),
        ]
        with m.If(self.valid):
            m.d.sync += [
                in_frame.eq(~self.word.last),
                good.eq(self.word.good),
                skipping.eq((skipping | refused) & ~self.word.last),
            ]
        out = data.View(self.word.shape(), fifo.o.payload)
        inside = Signal()
        with m.If(fifo.o.valid & self.ready):
            m.d.sync += inside.eq(~out.last)
        kept, lost, left = Signal(2), Signal(), Signal(2)
        m.d.sync += [
            kept.eq(kept + (fifo.commit & ~kept.all())),
            left.eq(left + (fifo.o.valid & self.ready & out.last & ~left.all())),
            lost.eq(lost | (refused & in_frame)),
        ]
        m.d.comb += [
            Assert(~inside | fifo.o.valid, GAP),
            Assert(~fifo.o.valid | out.good, DISCARDED_SEEN),
            Assert((left < kept) | ~fifo.o.valid | kept.all(), CUT),
            Cover(lost & (left == 2) & ~fifo.o.valid, "frames before and after one without room"),
        ]
        return m


GAP = "a frame has a gap"
DISCARDED_SEEN = "a word of a discarded frame is seen"
CUT = "more frames leave than were committed"


class FaultyDecision(wiring.Component):
    """A PacketFifo whose ``discard`` or ``commit`` passes over the word of its own cycle."""

    def __init__(self, width, depth, fault):
        self._fifo, self._fault = PacketFifo(width, depth), fault
        super().__init__(self._fifo.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = fifo = self._fifo
        wiring.connect(m, wiring.flipped(self.i), fifo.i)
        wiring.connect(m, fifo.o, wiring.flipped(self.o))
        late = Signal()
        m.d.sync += late.eq(self.commit)
        put = self.i.valid & self.i.ready
        m.d.comb += [fifo.commit.eq(self.commit), fifo.discard.eq(self.discard)]
        if self._fault == "discard without the word":
            m.d.comb += fifo.discard.eq(self.discard & ~put)
        else:
            m.d.comb += [fifo.commit.eq(late & ~self.discard)]
        return m


def test_frames_stay_whole(tmp_path):
    """P15, P16."""
    prove(FrameProof(PacketFifo(2, 4)), tmp_path, cycles=14)


@pytest.mark.parametrize(
    "fault, message",
    [
        ("discard without the word", rules.INVENTED),
        ("discard without the word", rules.ALTERED),
        ("late commit", rules.NOT_OFFERED),
        ("late commit", rules.ALTERED),
    ],
)
def test_a_faulty_decision_is_refuted(tmp_path, fault, message):
    proof = BufferProof(FaultyDecision(1, 2, fault), room=2, most=3, delay=1)
    refute(proof, tmp_path, cycles=8, message=message)


@pytest.mark.parametrize(
    "fault, message",
    [("discard without the word", DISCARDED_SEEN), ("late commit", GAP)],
)
def test_a_broken_frame_is_refuted(tmp_path, fault, message):
    refute(FrameProof(FaultyDecision(2, 4, fault)), tmp_path, cycles=10, message=message)


@pytest.mark.parametrize(
    "fault, message",
    [
        ("lose", rules.NOT_OFFERED),
        ("repeat", rules.INVENTED),
        ("reorder", rules.ALTERED),
        ("alter", rules.ALTERED),
        ("change", rules.PAYLOAD_CHANGED),
        ("retract", rules.VALID_DROPPED),
        ("stop", rules.NOT_OFFERED),
    ],
)
def test_a_faulty_queue_is_refuted(tmp_path, fault, message):
    unit = FaultyOutput(Queue(WIDTH, 3), fault)
    refute(BufferProof(unit, room=3, most=3), tmp_path, cycles=12, message=message)


def test_a_valid_that_waits_is_refuted(tmp_path):
    proof = ReadinessProof(lambda: FaultyOutput(Queue(WIDTH, 3), "wait"))
    refute(proof, tmp_path, cycles=10, message=rules.VALID_WAITS)
