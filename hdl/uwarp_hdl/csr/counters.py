"""Event counters: 64 bits each in one memory, behind small accumulators.

::

    events[*] --> accumulator of each counter --> visit: memory + accumulator --> memory
                          |                                      |
                          |                                      +--> read (64 bits)
                          +--> latch --> sweep: memory + latched ---> copy

One counter is visited a cycle: its accumulator is emptied into its row. A read is a visit out of
turn, so it holds every event up to the cycle before the visit. A read takes 4 to 9 cycles.

A snapshot begins between two rounds of visits: it latches all accumulators in one cycle, then
writes the sums to the copy, while none is emptied. It takes up to 170 cycles; a read waits.
"""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter, Register

__all__ = ["CounterReadSignature", "EventCounters", "SnapshotSignature"]

_ROWS = Register.COUNTERS_LOW.value.count

#: Cycles within which each counter is visited: its turn, plus the visits out of turn, plus a
#: snapshot. A read takes 9 cycles or more on the bus and keeps off at most 5 visits in turn.
_VISIT_CYCLES = 2 * len(Counter) + _ROWS + 16


class CounterReadSignature(wiring.Signature):
    """``request`` and ``index`` are held until ``done``, a strobe; ``value`` comes with it."""

    def __init__(self) -> None:
        super().__init__(
            {
                "request": Out(1),
                "index": Out(range(_ROWS)),
                "done": In(1),
                "value": In(64),
            }
        )


class SnapshotSignature(wiring.Signature):
    """``request`` is held until ``done``, a strobe, with which all counters have been copied.

    ``value`` is the copy of counter ``index`` of two cycles before, 0 before the first snapshot.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "request": Out(1),
                "done": In(1),
                "index": Out(range(_ROWS)),
                "value": In(64),
            }
        )


class EventCounters(wiring.Component):
    """Count strobes of several sources, each and all in any cycle, without loss.

    Parameters
    ----------
    sources : int
        Vectors of strobes.

    Members
    -------
    events : In(len(Counter)).array(sources)
        Bit i adds one to counter i.
    read : In(CounterReadSignature())
        Numbers beyond the last counter read as 0.
    snapshot : In(SnapshotSignature())
    busy : Out(1)
        The counters are being cleared after a reset; a read waits, and so does a snapshot.
    """

    def __init__(self, sources: int) -> None:
        if sources < 1:
            raise ValueError(f"sources is {sources}; it takes at least 1")
        self._sources = sources
        super().__init__(
            {
                "events": In(len(Counter)).array(sources),
                "read": In(CounterReadSignature()),
                "snapshot": In(SnapshotSignature()),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        count = len(Counter)
        m.submodules.rows = rows = memory.Memory(shape=64, depth=_ROWS, init=[])
        m.submodules.copies = copies = memory.Memory(shape=64, depth=_ROWS, init=[])
        get, put = rows.read_port(), rows.write_port()
        get_copy, put_copy = copies.read_port(), copies.write_port()

        # A visit: chosen, row read, row and amount in registers, sum in one, written.
        turn = Signal(range(_ROWS))
        chosen = Signal(range(_ROWS))
        reading = self.read.request & ~self.read.done
        served = Signal(3)  # the stage of the read's visit
        stages = [Signal(range(_ROWS), name=f"index_{stage}") for stage in range(4)]
        active = Signal(4)
        is_read = Signal()
        visit = Signal()
        index = stages[0]
        # A row still in the pipeline would be read old.
        in_flight = Cat(active[i] & (chosen == stages[i]) for i in range(4)).any()

        # A snapshot: at the end of a round nothing more is visited; when no row is in the pipeline
        # the accumulators are latched; then each row is visited for the copy.
        wanted = Signal()
        pausing = Signal()
        latch = Signal()
        sweeping = Signal()
        copying = Signal(4)  # as ``active``, of the sweep
        m.d.sync += [
            wanted.eq(self.snapshot.request & ~self.snapshot.done),
            self.snapshot.done.eq(0),
        ]
        with m.FSM():
            with m.State("ROUNDS"):
                with m.If(visit & ~is_read & (turn == count - 1) & wanted):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.comb += pausing.eq(1)
                with m.If(~active.any()):
                    m.d.comb += latch.eq(1)
                    m.next = "SWEEP"
            with m.State("SWEEP"):
                m.d.comb += [pausing.eq(1), sweeping.eq(1)]
                with m.If(turn.all()):
                    m.next = "FINISH"
            with m.State("FINISH"):
                m.d.comb += pausing.eq(1)
                with m.If(~copying.any()):
                    m.d.sync += self.snapshot.done.eq(1)
                    m.next = "ROUNDS"

        m.d.comb += [
            is_read.eq(reading & ~served.any() & ~pausing),
            chosen.eq(Mux(is_read, self.read.index, turn)),
            visit.eq(~self.busy & ~in_flight & ~pausing),
            get.addr.eq(index),
            # Never the row that is being written: since synthesis can see that, it does not add
            # logic behind the memory for its sake.
            get.en.eq(~self.busy & ~(active[3] & (stages[3] == index))),
        ]
        with m.If(self.busy | sweeping | (visit & ~is_read)):
            is_round = ~self.busy & ~sweeping
            m.d.sync += turn.eq(Mux(is_round & (turn == count - 1), 0, turn + 1))
        with m.If(self.busy & turn.all()):
            m.d.sync += self.busy.eq(0)

        most = _VISIT_CYCLES * self._sources
        accumulators = []
        latched = []
        for counter in Counter:
            name = counter.name.lower()
            strobes = Signal(range(self._sources + 1), name=f"strobes_{name}")
            m.d.sync += strobes.eq(sum((vector[counter] for vector in self.events), Const(0, 1)))
            accumulator = Signal(range(most + 1), name=f"accumulator_{name}")
            emptied = Signal(name=f"emptied_{name}")
            m.d.sync += [
                emptied.eq(visit & (chosen == counter)),
                accumulator.eq(Mux(emptied, 0, accumulator) + strobes),
            ]
            accumulators.append(accumulator)
            latched.append(Signal.like(accumulator, name=f"latched_{name}"))
        with m.If(latch):
            m.d.sync += [old.eq(new) for old, new in zip(latched, accumulators, strict=True)]
        with m.If(copying[0]):
            m.d.sync += Cat(latched).eq(Cat(latched[1:]))
        accumulators += [Const(0)] * (_ROWS - count)

        amounts = [Signal(range(most + 1), name=f"amount_{stage}") for stage in (1, 2)]
        row = Signal(64)
        total = Signal(64)
        written = Signal(64)
        m.d.sync += [
            active.eq(visit | active << 1),
            copying.eq(sweeping | copying << 1),
            stages[0].eq(chosen),
            stages[1].eq(stages[0]),
            stages[2].eq(stages[1]),
            stages[3].eq(stages[2]),
            amounts[0].eq(Mux(copying[0], latched[0], Array(accumulators)[index])),
            amounts[1].eq(amounts[0]),
            row.eq(get.data),
            served.eq((visit & is_read) | served << 1),
            self.read.value.eq(total),
            written.eq(total),
            self.read.done.eq(served[2]),
            self.snapshot.value.eq(get_copy.data),
        ]
        m.d.comb += [
            total.eq(row + amounts[1]),
            put.addr.eq(Mux(self.busy, turn, stages[3])),
            put.data.eq(Mux(self.busy, 0, written)),
            put.en.eq(self.busy | active[3]),
            put_copy.addr.eq(put.addr),
            put_copy.data.eq(put.data),
            put_copy.en.eq(self.busy | copying[3]),
            get_copy.addr.eq(self.snapshot.index),
            get_copy.en.eq(~put_copy.en),
        ]
        return m
