"""Event counters: 64 bits each in one memory, behind small accumulators.

::

    events[*] --> accumulator of each counter --> visit: memory + accumulator --> memory
                                                                 |
                                      read (64 bits) <-----------+

One counter is visited a cycle: its accumulator is emptied into its row. A read is a visit out of
turn, so it holds every event up to the cycle of the visit. A read takes 4 to 8 cycles.
"""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter, Register

__all__ = ["CounterReadSignature", "EventCounters"]

_ROWS = Register.COUNTERS_LOW.value.count

#: Cycles within which each counter is visited: its turn, plus the visits out of turn. A read takes
#: 9 cycles or more on the bus and keeps off at most 4 visits in turn.
_VISIT_CYCLES = 2 * len(Counter)


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
    busy : Out(1)
        The counters are being cleared after a reset; a read waits.
    """

    def __init__(self, sources: int) -> None:
        if sources < 1:
            raise ValueError(f"sources is {sources}; it takes at least 1")
        self._sources = sources
        super().__init__(
            {
                "events": In(len(Counter)).array(sources),
                "read": In(CounterReadSignature()),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        count = len(Counter)
        m.submodules.rows = rows = memory.Memory(shape=64, depth=_ROWS, init=[])
        get = rows.read_port()
        put = rows.write_port()

        # A visit: chosen, row read, row and amount in registers, sum written.
        turn = Signal(range(_ROWS))
        chosen = Signal(range(_ROWS))
        reading = self.read.request & ~self.read.done
        served = Signal(3)  # the stage of the read's visit
        stages = [Signal(range(_ROWS), name=f"index_{stage}") for stage in range(3)]
        active = Signal(3)
        is_read = Signal()
        visit = Signal()
        index = stages[0]
        # A row still in the pipeline would be read old.
        in_flight = Cat(active[i] & (chosen == stages[i]) for i in range(3)).any()
        m.d.comb += [
            is_read.eq(reading & ~served.any()),
            chosen.eq(Mux(is_read, self.read.index, turn)),
            visit.eq(~self.busy & ~in_flight),
            get.addr.eq(index),
        ]
        with m.If(self.busy | (visit & ~is_read)):
            m.d.sync += turn.eq(Mux(~self.busy & (turn == count - 1), 0, turn + 1))
        with m.If(self.busy & turn.all()):
            m.d.sync += self.busy.eq(0)

        most = _VISIT_CYCLES * self._sources
        accumulators = []
        for counter in Counter:
            strobes = sum((vector[counter] for vector in self.events), Const(0, 1))
            accumulator = Signal(range(most + 1), name=f"accumulator_{counter.name.lower()}")
            emptied = active[0] & (index == counter)
            m.d.sync += accumulator.eq(Mux(emptied, 0, accumulator) + strobes)
            accumulators.append(accumulator)
        accumulators += [Const(0)] * (_ROWS - count)

        amounts = [Signal(range(most + 1), name=f"amount_{stage}") for stage in (1, 2)]
        row = Signal(64)
        total = Signal(64)
        m.d.sync += [
            active.eq(visit | active << 1),
            stages[0].eq(chosen),
            stages[1].eq(stages[0]),
            stages[2].eq(stages[1]),
            amounts[0].eq(Array(accumulators)[index]),
            amounts[1].eq(amounts[0]),
            row.eq(get.data),
            served.eq((visit & is_read) | served << 1),
            self.read.value.eq(total),
            self.read.done.eq(served[2]),
        ]
        m.d.comb += [
            total.eq(row + amounts[1]),
            put.addr.eq(Mux(self.busy, turn, stages[2])),
            put.data.eq(Mux(self.busy, 0, total)),
            put.en.eq(self.busy | active[2]),
        ]
        return m
