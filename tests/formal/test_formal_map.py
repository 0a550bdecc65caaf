"""Proofs of the validity map's read-modify-write (P20, P21)."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from amaranth.hdl import Assert, Assume, Cat, Cover, Elaboratable, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In

from sim_tb.formal.prove import prove, refute
from uwarp_hdl.iwarp import validity_map
from uwarp_hdl.iwarp.validity_map import MAP_WORD, ValidityMap

#: Two words, so that ranges cross from one to the other; the map asks for its size only.
PARAMETERS = SimpleNamespace(map_bits=2 * MAP_WORD)

#: Cycles from a mark of no words to its answer; each word is one more.
LATENCY = 4

WRONG_WORD = "a clear does not tell its bits as the ranges before left them"
MISCOUNTED = "a mark does not count exactly the bits that were clear"
NOT_IN_TIME = "a range is not answered in time"
UNASKED = "an answer to no range"


class MapProof(wiring.Component):
    """Whatever ranges follow each other, marks count each new bit once and clears tell every bit.

    Ranges stay within four neighbouring bits of a window, over which a second map is kept; all
    others must stay 0.

    Parameters
    ----------
    unit : ValidityMap
    base : int
        First bit of the window.
    """

    mark: In(1)
    clear: In(1)
    mark_first: In(2)
    mark_last: In(2)
    clear_first: In(2)
    clear_last: In(2)

    def __init__(self, unit, base):
        self._unit, self._base = unit, base
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit
        base = self._base
        for name in ("mark", "clear"):
            ranges = getattr(unit, f"{name}s")
            first, last = getattr(self, f"{name}_first"), getattr(self, f"{name}_last")
            m.d.comb += [
                ranges.valid.eq(getattr(self, name)),
                ranges.payload.first.eq(first + base),
                ranges.payload.last.eq(last + base),
                Assume(first <= last),
            ]
        marks, clears = unit.marks, unit.clears
        marked, cleared = marks.valid & marks.ready, clears.valid & clears.ready
        m.d.comb += Assert(~(marked & cleared), "two ranges are taken at once")

        first = Mux(marked, self.mark_first, self.clear_first)
        last = Mux(marked, self.mark_last, self.clear_last)
        touched = Signal(4)
        first_word, last_word = Signal(), Signal()
        m.d.comb += [
            touched.eq(Cat((first <= i) & (last >= i) for i in range(4))),
            first_word.eq((first + base) // MAP_WORD),
            last_word.eq((last + base) // MAP_WORD),
        ]
        bits = Signal(4)
        told = Signal(4)
        word, final_word, clearing = Signal(), Signal(), Signal()
        with m.If(marked):
            m.d.sync += bits.eq(bits | touched)
        with m.If(cleared):
            m.d.sync += [
                bits.eq(bits & ~touched),
                told.eq(bits & touched),
                word.eq(first_word),
                final_word.eq(last_word),
                clearing.eq(1),
            ]

        # Counts on their way, by the cycles left.
        counts = [Signal(3, name=f"count{i}") for i in range(LATENCY + 2)]
        due = Signal(LATENCY + 2)
        m.d.sync += due.eq(due >> 1)
        m.d.sync += [count.eq(later) for count, later in pairwise(counts)]
        for words in (1, 2):
            with m.If(marked & (first_word + words - 1 == last_word)):
                m.d.sync += counts[LATENCY + words - 1].eq(sum(touched & ~bits))
                m.d.sync += due[LATENCY + words - 1].eq(1)
        m.d.comb += Assert(unit.marked == due[0], NOT_IN_TIME)
        with m.If(due[0]):
            m.d.comb += Assert(unit.count == counts[0], MISCOUNTED)

        expected = Signal(MAP_WORD)
        for i in range(4):
            with m.If((base + i) // MAP_WORD == word):
                m.d.comb += expected[(base + i) % MAP_WORD].eq(told[i])
        with m.If(unit.word_valid):
            m.d.comb += [
                Assert(clearing, UNASKED),
                Assert(unit.word == expected, WRONG_WORD),
                Assert(unit.word_last == (word == final_word), WRONG_WORD),
            ]
            m.d.sync += [word.eq(word + 1), clearing.eq(~unit.word_last)]
        with m.If(clearing):
            m.d.comb += Assert(~marked & ~cleared, UNASKED)

        refused = Signal(range(LATENCY + 2))
        with m.If(~unit.busy & (self.mark | self.clear) & ~(marked | cleared)):
            m.d.sync += refused.eq(refused + 1)
            # A clear of two words holds up the next range for as long as a mark's answer takes.
            m.d.comb += Assert(refused <= LATENCY, NOT_IN_TIME)
        with m.Else():
            m.d.sync += refused.eq(0)
        m.d.comb += Assert(~(unit.busy & (marked | cleared)), "taken before the map is clear")

        again = Signal()
        m.d.sync += again.eq(again | (unit.marked & (unit.count == 1)))
        m.d.comb += [
            Cover(unit.marked & (unit.count == 2) & again, "two marks of the same word"),
            Cover(unit.word_valid & (unit.word != 0), "bits told"),
        ]
        return m


class LateMemory(Elaboratable):
    """A memory whose writes take a cycle longer: the next range reads the word as it was."""

    def __init__(self, **arguments):
        self._memory = memory.Memory(**arguments)
        self._write = self._memory.write_port()
        self._given = {
            name: Signal.like(getattr(self._write, name)) for name in ("addr", "data", "en")
        }

    def read_port(self):
        return self._memory.read_port()

    def write_port(self):
        return SimpleNamespace(**self._given)

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = self._memory
        m.d.sync += [getattr(self._write, name).eq(value) for name, value in self._given.items()]
        return m


@pytest.mark.parametrize(
    "base", [MAP_WORD // 2 - 2, MAP_WORD - 2], ids=["within-a-word", "across-words"]
)
def test_validity_map(tmp_path, base):
    prove(MapProof(ValidityMap(PARAMETERS), base), tmp_path, cycles=22)


@pytest.mark.parametrize("message", [MISCOUNTED, WRONG_WORD])
def test_a_late_write_is_refuted(tmp_path, monkeypatch, message):
    monkeypatch.setattr(validity_map, "memory", SimpleNamespace(Memory=LateMemory))
    refute(
        MapProof(ValidityMap(PARAMETERS), MAP_WORD // 2 - 2), tmp_path, cycles=20, message=message
    )
