"""Event counters: 64 bits each in one memory, behind small accumulators.

::

    outcomes --> code --> two banks of counts --+
                                                +--> sweep: memory + count --> memory
    alone ----> count, latched at the swap -----+                        |
                                                                         +--> read (32 bits)

What a unit counts in turns goes, one count a cycle, to the bank in use, in LUT RAM; what it may
count beside that, to a counter of its own. A *swap* gives all counts of one cycle to a sweep, which
adds them to their rows, a word of 32 bits a cycle, while the next ones come in.

A read takes a swap of its own and is the first that its sweep comes to: it holds every event up to
the cycle of the swap. It takes 11 cycles, after the end of the sweep at work if there is one,
140 cycles at most.

The memory has two halves. After the sweep of a snapshot (140 cycles, or 270) the next one takes the
counters into the other half, and leaves the copy behind. A word of that is read between two sweeps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from operator import or_

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter, Register

from ..stream.ports import keep_apart

__all__ = ["CounterReadSignature", "EventCounters", "EventSource", "SnapshotSignature"]

_ROWS = Register.COUNTERS_LOW.value.count

#: Of a row, from the least significant one.
_WORDS = 2

#: Cycles from one swap to the next at most, with a margin.
_SWAP_CYCLES = 208


@dataclass(frozen=True)
class EventSource:
    """What a unit counts; its strobes of other counters are not looked at.

    Attributes
    ----------
    outcomes : range
        Numbers of counters of which it strobes at most one in a cycle.
    alone : frozenset of Counter
        Those that it may strobe in any cycle, whatever else it does.
    """

    alone: frozenset[Counter] = frozenset()
    outcomes: range = field(default=range(0))

    def __post_init__(self) -> None:
        if self.outcomes.step != 1:
            raise ValueError(f"outcomes is {self.outcomes}; it takes numbers without gaps")
        both = sorted(counter for counter in self.alone if counter in self.outcomes)
        if both:
            raise ValueError(f"alone and outcomes both have {both[0]!r}")


class CounterReadSignature(wiring.Signature):
    """``request`` and the rest are held until ``done``, a strobe. ``value`` is counter ``index``'s
    low word with ``low``, a strobe in the cycle before, and the high word with ``done``.

    With ``copy`` it is, with ``low`` alone, word ``word`` of the last snapshot, 0 before the first:
    words 2 i and 2 i + 1 are the low and the high half of counter i.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "request": Out(1),
                "index": Out(range(_ROWS)),
                "copy": Out(1),
                "word": Out(range(_WORDS * _ROWS)),
                "low": In(1),
                "done": In(1),
                "value": In(32),
            }
        )


class SnapshotSignature(wiring.Signature):
    """``request`` is held until ``done``, a strobe, with which all counters have been copied."""

    def __init__(self) -> None:
        super().__init__(
            {
                "request": Out(1),
                "done": In(1),
            }
        )


class _OutcomeBanks(wiring.Component):
    """Counts of strobes of which at most one comes in a cycle, in two banks of LUT RAM.

    A strobe is counted two cycles after it came, in the bank that was in use in the cycle before.

    Parameters
    ----------
    outcomes : range
        Counters.
    width : int
        Of a count.

    Members
    -------
    events : In(len(outcomes))
    swap : In(1)
        After this cycle the other bank is in use; in the next, what is taken is not yet whole.
    index : In(range(_ROWS))
        A counter: ``count`` is that of the bank which is not in use, if ``take``.
    take : In(1)
        The count taken is set to 0.
    clear : In(1)
        Whatever counter has that number, modulo the bank's size, is set to 0.
    count : Out(width)
        A cycle later; 0 without ``take``, and for a counter that is not one of these.
    """

    def __init__(self, outcomes: range, width: int) -> None:
        self._outcomes = outcomes
        self._width = width
        super().__init__(
            {
                "events": In(len(outcomes)),
                "swap": In(1),
                "index": In(range(_ROWS)),
                "take": In(1),
                "clear": In(1),
                "count": Out(width),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # The numbers follow each other, so that they differ modulo the depth.
        depth = 1 << (len(self._outcomes) - 1).bit_length()
        numbered = zip(self._outcomes, self.events, strict=True)
        strobe = Signal()
        code = Signal(range(depth))
        m.d.sync += [
            strobe.eq(self.events.any()),
            code.eq(reduce(or_, (Mux(event, number % depth, 0) for number, event in numbered))),
        ]
        # A count is read and, in the next cycle, written: the one that is being written goes past
        # the memory if its counter is next, too.
        bank = Signal()
        with m.If(self.swap):
            m.d.sync += bank.eq(~bank)
        is_ours = Signal()
        counts = []
        read = Signal(self._width, reset_less=True)
        more = Signal(self._width)
        written = Signal(self._width, reset_less=True)
        written_code = Signal(range(depth), reset_less=True)
        written_bank = Signal()
        writes = Signal()
        is_same = Signal()
        for number in range(2):
            counted = memory.Memory(shape=self._width, depth=depth, init=[])
            m.submodules[f"bank{number}"] = counted
            get, put = counted.read_port(domain="comb"), counted.write_port()
            in_use = written_bank == number
            m.d.comb += [
                get.addr.eq(Mux(bank == number, code, self.index)),
                put.addr.eq(Mux(in_use, written_code, self.index)),
                put.data.eq(Mux(in_use, more, 0)),
                put.en.eq(Mux(in_use, writes, is_ours | self.clear)),
            ]
            counts.append(get.data)
        m.d.comb += [
            is_ours.eq(
                self.take & (self.index >= self._outcomes[0]) & (self.index <= self._outcomes[-1])
            ),
            more.eq(Mux(is_same, written, read) + 1),
        ]
        m.d.sync += [
            read.eq(Mux(bank, counts[1], counts[0])),
            written.eq(more),
            written_code.eq(code),
            written_bank.eq(bank),
            writes.eq(strobe),
            is_same.eq(writes & (written_code == code) & (written_bank == bank)),
        ]
        m.d.sync += self.count.eq(Mux(is_ours, Mux(bank, counts[0], counts[1]), 0))
        return m


class EventCounters(wiring.Component):
    """Count strobes of several sources, each in any cycle, without loss.

    Parameters
    ----------
    sources : Sequence[EventSource]
        Vectors of strobes.

    Members
    -------
    events : In(len(Counter)).array(len(sources))
        Bit i adds one to counter i; not to be relied on while ``busy``.
    read : In(CounterReadSignature())
        Numbers beyond the last counter read as 0.
    snapshot : In(SnapshotSignature())
    busy : Out(1)
        The counters are being cleared after a reset; a read waits, and so does a snapshot.

    Attributes
    ----------
    row_words : memory.MemoryData
        For simulation: in one half the low and the high word of each counter as of the last sweep,
        in the first before a snapshot.
    """

    def __init__(self, sources: Sequence[EventSource]) -> None:
        if not sources:
            raise ValueError("sources is empty; it takes at least 1")
        numbers = [number for source in sources for number in source.outcomes]
        for number in numbers:
            if numbers.count(number) > 1:
                raise ValueError(f"outcomes of two sources have {Counter(number)!r}; it takes one")
        self._sources = tuple(sources)
        self.row_words = memory.MemoryData(shape=32, depth=2 * _WORDS * _ROWS, init=[])
        super().__init__(
            {
                "events": In(len(Counter)).array(len(self._sources)),
                "read": In(CounterReadSignature()),
                "snapshot": In(SnapshotSignature()),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        depth = _WORDS * _ROWS
        m.submodules.rows = rows = memory.Memory(self.row_words)
        get, put = rows.read_port(), rows.write_port()

        # A word of a sweep: decoded, read, in a register with its count, sum in one, written.
        words = [Signal(range(depth), name=f"word_{stage}") for stage in range(5)]
        active = Signal(4)  # of words 1 to 4
        is_first = Signal(7)  # of the sweep for a read, from the cycle before it
        copying = Signal()
        # Where the counters are; the sweep takes them to the other half, which is the copy's, then.
        half = Signal()
        moves = Signal(init=1)
        fresh = Signal(init=1)  # only one half has been cleared
        is_copy = Signal()
        age = Signal(range(_SWAP_CYCLES))
        swap = Signal()
        sweep = Signal()
        clear = Signal()
        read_wanted = Signal()
        copy_wanted = Signal()
        snapshot_wanted = Signal()
        index, is_high = words[1][1:], words[1][0]
        m.d.sync += [
            read_wanted.eq(self.read.request & ~self.read.copy & ~self.read.done),
            copy_wanted.eq(self.read.request & self.read.copy & ~self.read.done),
            snapshot_wanted.eq(self.snapshot.request & ~self.snapshot.done),
            self.snapshot.done.eq(0),
            is_first.eq(is_first << 1),
            active.eq(sweep | active << 1),
            age.eq(age + 1),
            *(new.eq(old) for old, new in pairwise(words)),
        ]
        with m.FSM(init="SWEEP"):
            with m.State("SWAP"):
                m.d.comb += swap.eq(1)
                m.d.sync += [
                    words[0].eq(Cat(Const(0, 1), self.read.index)),
                    is_first[0].eq(read_wanted),
                    copying.eq(snapshot_wanted),
                    age.eq(0),
                ]
                m.next = "SETTLE"
            with m.State("SETTLE"):
                m.d.sync += age.eq(0)
                m.next = "SWEEP"
            with m.State("SWEEP"):
                m.d.comb += [
                    sweep.eq(1),
                    # One bank in the first half, the other in the second.
                    clear.eq(self.busy),
                    swap.eq(self.busy & (age == depth // 2 - 1)),
                ]
                m.d.sync += words[0].eq(words[0] + 1)
                with m.If(age == depth - 1):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                with m.If(~active.any()):
                    m.d.sync += [
                        half.eq(half ^ moves),
                        moves.eq(Mux(self.busy, fresh, copying)),
                        fresh.eq(0),
                        self.snapshot.done.eq(copying),
                    ]
                    with m.If(fresh):
                        m.next = "SETTLE"
                    with m.Else():
                        m.d.sync += self.busy.eq(0)
                        m.next = "WAIT"
            with m.State("COPY"):
                m.d.comb += is_copy.eq(1)
                with m.If(is_first[5]):
                    m.next = "WAIT"
            with m.State("WAIT"):
                # The third at 192 cycles.
                with m.If(read_wanted | snapshot_wanted | age[6]):
                    m.next = "SWAP"
                with m.Elif(copy_wanted & ~self.read.done):
                    m.d.sync += is_first[2].eq(1)
                    m.next = "COPY"

        counts = self._count_outcomes(m, swap, index, active[0] & ~is_high, clear)
        latched = self._count_alone(m, swap)
        chosen = []
        for counter, count in latched.items():
            is_chosen = Signal(name=f"is_{counter.name.lower()}")
            m.d.sync += is_chosen.eq(words[0] == _WORDS * counter)
            chosen.append((is_chosen, count))
        alone = Signal(
            max(len(count) for count in latched.values()) if latched else 1, reset_less=True
        )
        amount = Signal(max(len(count) for count in (alone, *counts)) + 1, reset_less=True)
        row = Signal(32, reset_less=True)
        written = Signal(33, reset_less=True)
        m.d.sync += [
            alone.eq(reduce(or_, (Mux(*item, 0) for item in chosen), Const(0, 1))),
            amount.eq(reduce(or_, counts, Const(0, 1)) + alone),
            row.eq(get.data),
            # With a high word no amount comes, but the carry of its low one.
            written.eq(row + (amount | (words[3][0] & written[32]))),
        ]
        with m.If(is_copy):
            m.d.sync += amount.eq(0)
        with m.If(self.busy):
            m.d.sync += written.eq(0)
        m.d.comb += [
            self.read.low.eq(is_first[5]),
            self.read.done.eq(is_first[6]),
            self.read.value.eq(written),
            get.addr.eq(Mux(is_copy, Cat(self.read.word, half ^ ~moves), Cat(words[1], half))),
            put.addr.eq(Cat(words[4], half ^ moves)),
            put.data.eq(written),
            put.en.eq(active[3]),
        ]
        # A sweep reads three words ahead of where it writes.
        keep_apart(m, get, put)
        return m

    def _count_outcomes(self, m, swap, index, take, clear):
        """Counts of the outcomes at ``index``, a cycle later: at most one source's is not 0."""
        counts = []
        width = (_SWAP_CYCLES - 1).bit_length()
        for number, (source, vector) in enumerate(zip(self._sources, self.events, strict=True)):
            if not source.outcomes:
                continue
            banks = _OutcomeBanks(source.outcomes, width)
            m.submodules[f"outcomes{number}"] = banks
            m.d.comb += [
                banks.events.eq(vector[source.outcomes.start : source.outcomes.stop]),
                banks.swap.eq(swap),
                banks.index.eq(index),
                banks.take.eq(take),
                banks.clear.eq(clear),
            ]
            counts.append(banks.count)
        return counts

    def _count_alone(self, m, swap):
        """Counts, as of the last swap, of those counters that come beside others."""
        latched = {}
        # From a register, since all the counters take it; so strobes come a cycle later, too.
        swapped = Signal()
        m.d.sync += swapped.eq(swap)
        for counter in Counter:
            chosen = [
                vector[counter]
                for source, vector in zip(self._sources, self.events, strict=True)
                if counter in source.alone
            ]
            if not chosen:
                continue
            name = counter.name.lower()
            strobes = Signal(range(len(chosen) + 1), name=f"strobes_{name}")
            count = Signal(range(_SWAP_CYCLES * len(chosen)), name=f"count_{name}")
            total = Signal.like(count, name=f"total_{name}")
            held = Signal.like(count, name=f"held_{name}")
            strobed = Signal.like(strobes, name=f"strobed_{name}")
            m.d.comb += total.eq(count + strobed)
            m.d.sync += [
                strobes.eq(sum(chosen, Const(0, 1))),
                strobed.eq(strobes),
                count.eq(total),
            ]
            with m.If(swapped):
                m.d.sync += [count.eq(0), held.eq(total)]
            latched[counter] = held
        return latched
