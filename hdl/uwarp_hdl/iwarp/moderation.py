"""Timers of moderated CQs: which have held their interrupt back long enough.

::

    timers written --> memory --> age --> age >= ticks --+
                          ^                              +--> round robin --> due
                      every CQ in turn                   |
    (a bank for each 64 CQs) ----------------------------+

A CQ is looked at every 64 cycles, or every 128 if a timer is written every second cycle; none is
while one that is due waits to be taken. From the look to ``due``: 5 cycles.
"""

from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..stream.arbiter import RoundRobin

__all__ = ["DueTimer", "ModerationTimers", "Timer"]

_BANK_CQS = 64


class Timer(data.Struct):
    """A CQ's interrupt is held back (``waiting``) until ``ticks`` ticks after tick ``first``."""

    waiting: 1
    first: 16
    ticks: 16


class DueTimer(data.Struct):
    """A timer that has come to its end. It may have been stopped, or another begun, meanwhile."""

    cq: 16
    first: 16
    ticks: 16


class _Bank(wiring.Component):
    """The timers of up to 64 CQs. ``due.cq`` counts from the bank's first."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._width = (depth - 1).bit_length()
        super().__init__(
            {
                "enable": In(1),
                "cq": In(self._width),
                "timer": In(Timer),
                "tick": In(16),
                "due": Out(stream.Signature(DueTimer)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.timers = timers = memory.Memory(shape=Timer, depth=self._depth, init=[])
        put, get = timers.write_port(), timers.read_port()
        turn = Signal(self._width)
        # No longer path than that: a due timer costs a cycle.
        moving = ~self.due.valid
        m.d.comb += [
            put.addr.eq(self.cq),
            put.data.eq(self.timer),
            put.en.eq(self.enable),
            get.addr.eq(turn),
            # Never beside a write: since synthesis can see that, it adds no logic behind the
            # memory for its sake.
            get.en.eq(moving & ~self.enable),
        ]
        with m.If(get.en):
            m.d.sync += turn.eq(turn + 1)

        read = Signal()
        cqs = [Signal(self._width, name=f"cq_{stage}") for stage in range(3)]
        timer = Signal(Timer)
        age = Signal(16)
        aged = Signal(Timer)
        with m.If(self.due.ready):
            m.d.sync += self.due.valid.eq(0)
        with m.If(moving):
            m.d.sync += [
                read.eq(get.en),
                Cat(cqs).eq(Cat(turn, cqs[0], cqs[1])),
                timer.eq(get.data),
                timer.waiting.eq(get.data.waiting & read),
                age.eq(self.tick - timer.first),
                aged.eq(timer),
                self.due.valid.eq(aged.waiting & (age >= aged.ticks)),
                self.due.p.cq.eq(cqs[2]),
                self.due.p.first.eq(aged.first),
                self.due.p.ticks.eq(aged.ticks),
            ]
        return m


class ModerationTimers(wiring.Component):
    """A timer for each CQ; those that are due, again and again until they are written anew.

    Parameters
    ----------
    n_cq : int
        CQs, a power of two.

    Members
    -------
    enable, cq, timer : In
        A CQ's timer is set.
    tick : In(16)
        The tick number.
    due : Out(stream.Signature(DueTimer))
        Those whose ``ticks`` or more have passed, modulo 2^16.
    """

    def __init__(self, n_cq: int) -> None:
        if n_cq < 2 or n_cq & (n_cq - 1):
            raise ValueError(f"n_cq is {n_cq}; it takes a power of two from 2")
        self._n_cq = n_cq
        super().__init__(
            {
                "enable": In(1),
                "cq": In((n_cq - 1).bit_length()),
                "timer": In(Timer),
                "tick": In(16),
                "due": Out(stream.Signature(DueTimer)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        depth = min(self._n_cq, _BANK_CQS)
        count = self._n_cq // depth
        width = (depth - 1).bit_length()
        banks = [_Bank(depth) for _ in range(count)]
        m.submodules.turn = turn = RoundRobin(count)
        free = ~self.due.valid
        for index, bank in enumerate(banks):
            m.submodules[f"bank{index}"] = bank
            m.d.comb += [
                bank.cq.eq(self.cq),
                bank.timer.eq(self.timer),
                bank.tick.eq(self.tick),
                bank.enable.eq(self.enable & (self.cq[width:] == index)),
                bank.due.ready.eq(free & turn.valid & (turn.index == index)),
            ]
        found = Array(bank.due.payload for bank in banks)[turn.index]
        m.d.comb += [
            turn.requests.eq(Cat(bank.due.valid for bank in banks)),
            turn.advance.eq(free & turn.valid),
        ]
        with m.If(self.due.ready):
            m.d.sync += self.due.valid.eq(0)
        with m.If(free):
            m.d.sync += [
                self.due.valid.eq(turn.valid),
                self.due.p.cq.eq(Cat(found.cq[:width], turn.index[: (count - 1).bit_length()])),
                self.due.p.first.eq(found.first),
                self.due.p.ticks.eq(found.ticks),
            ]
        return m
