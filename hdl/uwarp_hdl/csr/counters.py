"""Event counters: 64 bits each in one memory, behind small accumulators.

::

    events[*] --> accumulator of each counter --> visit: memory + accumulator --> memory
                          |                                      |
                          |                                      +--> read (64 bits)
                          +--> latch --> sweep: memory + latched ---> copy

One counter is visited a cycle: its accumulator is emptied into its row. A read is a visit between
them, once its row is not in the pipeline, so it holds every event up to the cycle before the visit.
It takes 8 to 12 cycles, and other visits wait.

A snapshot begins between two rounds of visits: it latches all accumulators in one cycle, then
writes the sums to the copy, while none is emptied. It takes up to 200 cycles; a read waits.
"""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter, Register

__all__ = ["CounterReadSignature", "EventCounters", "SnapshotSignature"]

_ROWS = Register.COUNTERS_LOW.value.count

#: Cycles within which each counter is visited: its turn, the reads between, and a snapshot. A read
#: takes 15 cycles or more on the bus and keeps off at most 10 visits.
_VISIT_CYCLES = 3 * len(Counter) + _ROWS + 16


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
        served = Signal(3)  # the stage of the read's visit
        stages = [Signal(range(_ROWS), name=f"index_{stage}") for stage in range(4)]
        active = Signal(4)
        copying = Signal(4)  # as ``active``, of a snapshot
        visit = Signal()
        is_read = Signal()
        sweep = Signal()
        latch = Signal()
        index = stages[0]
        read_wanted = Signal()
        snapshot_wanted = Signal()
        # Of the read's row, a cycle before: it would be read old.
        in_flight = Signal()
        m.d.sync += [
            read_wanted.eq(self.read.request & ~self.read.done),
            snapshot_wanted.eq(self.snapshot.request & ~self.snapshot.done),
            in_flight.eq(Cat(active[i] & (stages[i] == self.read.index) for i in range(3)).any()),
            self.snapshot.done.eq(0),
        ]
        is_last = turn == count - 1
        with m.FSM(init="CLEAR"):
            with m.State("CLEAR"):
                with m.If(turn.all()):
                    m.d.sync += self.busy.eq(0)
                    m.next = "ROUNDS"
            with m.State("ROUNDS"):
                m.d.comb += visit.eq(1)
                with m.If(snapshot_wanted & is_last):
                    m.next = "DRAIN"
                with m.Elif(read_wanted):
                    m.next = "SETTLE"
            with m.State("SETTLE"):
                m.next = "READ"
            with m.State("READ"):
                m.d.comb += [visit.eq(~in_flight), is_read.eq(~in_flight)]
                with m.If(~in_flight):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                with m.If(self.read.done):
                    m.next = "ROUNDS"
            with m.State("DRAIN"):
                with m.If(~active.any()):
                    m.d.comb += latch.eq(1)
                    m.next = "SWEEP"
            with m.State("SWEEP"):
                m.d.comb += sweep.eq(1)
                with m.If(turn.all()):
                    m.next = "FINISH"
            with m.State("FINISH"):
                with m.If(~copying.any()):
                    m.d.sync += self.snapshot.done.eq(1)
                    m.next = "ROUNDS"
        m.d.comb += [
            chosen.eq(Mux(is_read, self.read.index, turn)),
            get.addr.eq(index),
            # Never the row that is being written: since synthesis can see that, it does not add
            # logic behind the memory for its sake.
            get.en.eq(~self.busy & ~(active[3] & (stages[3] == index))),
        ]
        with m.If(self.busy | sweep):
            m.d.sync += turn.eq(turn + 1)
        with m.Elif(visit & ~is_read):
            m.d.sync += turn.eq(Mux(is_last, 0, turn + 1))

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
            copying.eq(sweep | copying << 1),
            stages[0].eq(chosen),
            stages[1].eq(stages[0]),
            stages[2].eq(stages[1]),
            stages[3].eq(stages[2]),
            amounts[0].eq(Mux(copying[0], latched[0], Array(accumulators)[index])),
            amounts[1].eq(amounts[0]),
            row.eq(get.data),
            served.eq(is_read | served << 1),
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
