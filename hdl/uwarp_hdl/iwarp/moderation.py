"""Moderation of CQs: its table, and timers that tell which have held their interrupt back enough.

::

    rows written ----> memory --> moderation
    timers written --> memory --> age --> age >= ticks --+
                          ^                              +--> round robin --> due
                      every CQ in turn                   |
    (a bank for each 64 CQs) ----------------------------+

Rows and timers of a bank share a block RAM. A row comes two cycles after it was asked for. A CQ's
timer is looked at every 128 cycles, if not more than every second cycle is for rows; none is while
one that is due waits to be taken. From the look to ``due``: 5 cycles.
"""

from functools import reduce
from operator import or_

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..data_register import data_fields, data_register
from ..layouts import MODERATION_ROW
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


def _ports(width):
    return {
        "enable": In(1),
        "cq": In(width),
        "timer": In(Timer),
        "set": In(1),
        "fetch": In(1),
        "row_cq": In(width),
        "row": In(MODERATION_ROW),
        "moderation": Out(MODERATION_ROW),
        "tick": In(16),
        "due": Out(stream.Signature(DueTimer)),
    }


class _Bank(wiring.Component):
    """Rows and timers of up to 64 CQs. ``due.cq`` counts from the bank's first; ``moderation`` is 0
    if no row of the bank was asked for last."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._width = (depth - 1).bit_length()
        super().__init__(_ports(self._width) | {"other": In(1)})

    def elaborate(self, platform):
        m = Module()
        # The timers, and above them the rows.
        words = memory.Memory(shape=Timer, depth=2 * self._depth, init=[])
        m.submodules.words = words
        put, get = words.write_port(), words.read_port()
        turn = Signal(self._width)
        looked = Signal()
        # Every second cycle at most: so what was read has somewhere to go, whatever waits.
        look = Signal()
        missed = Signal()
        is_set = Signal()
        # No longer path than that: a due timer costs a cycle.
        moving = ~self.due.valid
        row = Timer(Cat(self.timer.waiting, self.row))
        m.d.comb += [
            look.eq(moving & ~self.fetch & ~looked),
            is_set.eq(self.enable & (self.cq == turn)),
            put.addr.eq(Cat(Mux(self.set, self.row_cq, self.cq), self.set)),
            put.data.eq(Mux(self.set, row, self.timer)),
            put.en.eq(self.enable | self.set),
            get.addr.eq(Cat(Mux(self.fetch, self.row_cq, turn), self.fetch)),
            # Never what is being written: since synthesis can see that, it adds no logic behind
            # the memory for its sake.
            get.en.eq(Mux(self.fetch, ~self.set, moving & ~looked & ~is_set)),
        ]
        # One that was just being written is looked at again, but once.
        m.d.sync += [looked.eq(look & ~is_set), missed.eq(look & is_set)]
        with m.If(look & (~is_set | missed)):
            m.d.sync += turn.eq(turn + 1)

        cqs = [Signal(self._width, name=f"cq_{stage}", reset_less=True) for stage in range(3)]
        timer = data_fields(Timer, "timer", reset=("waiting",))
        age = Signal(16, reset_less=True)
        aged = data_fields(Timer, "aged", reset=("waiting",))
        due = data_register(m, self.due.p)
        with m.If(self.due.ready):
            m.d.sync += self.due.valid.eq(0)
        with m.If(look):
            m.d.sync += cqs[0].eq(turn)
        with m.If(moving):
            m.d.sync += [
                timer.waiting.eq(0),
                cqs[2].eq(cqs[1]),
                age.eq(self.tick - timer.first),
                aged.eq(timer),
                self.due.valid.eq(aged.waiting & (age >= aged.ticks)),
                due.cq.eq(cqs[2]),
                due.first.eq(aged.first),
                due.ticks.eq(aged.ticks),
            ]
        with m.If(looked):
            m.d.sync += [timer.eq(get.data), cqs[1].eq(cqs[0])]
        fetched, is_other = Signal(), Signal()
        m.d.sync += [fetched.eq(self.fetch), is_other.eq(self.other)]
        moderation = data_register(m, self.moderation)
        with m.If(fetched):
            m.d.sync += moderation.as_value().eq(get.data.as_value()[1:])
        with m.If(fetched & is_other):
            m.d.sync += moderation.as_value().eq(0)
        return m


class ModerationTimers(wiring.Component):
    """A row and a timer for each CQ; timers that are due, again and again until written anew.

    Parameters
    ----------
    n_cq : int
        CQs, a power of two.

    Members
    -------
    enable, cq, timer : In
        A CQ's timer is set.
    set, row_cq, row : In
        A row is written, not in a cycle with ``enable``.
    fetch : In(1)
        The row of ``row_cq`` is asked for, and no timer is looked at. One that is being written is
        not what comes.
    moderation : Out(MODERATION_ROW)
        From two cycles after ``fetch`` on.
    tick : In(16)
        The tick number.
    due : Out(stream.Signature(DueTimer))
        Those whose ``ticks`` or more have passed, modulo 2^16. It stays for a cycle after it was
        taken.
    """

    def __init__(self, n_cq: int) -> None:
        if n_cq < 2 or n_cq & (n_cq - 1):
            raise ValueError(f"n_cq is {n_cq}; it takes a power of two from 2")
        self._n_cq = n_cq
        super().__init__(_ports((n_cq - 1).bit_length()))

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
                bank.enable.eq(self.enable & (self.cq[width:] == index)),
                bank.row_cq.eq(self.row_cq),
                bank.row.eq(self.row),
                bank.other.eq(self.row_cq[width:] != index),
                bank.set.eq(self.set & ~bank.other),
                bank.fetch.eq(self.fetch),
                bank.tick.eq(self.tick),
                bank.due.ready.eq(free & turn.valid & (turn.index == index)),
            ]
        found = Array(bank.due.payload for bank in banks)[turn.index]
        m.d.comb += [
            self.moderation.eq(reduce(or_, (bank.moderation.as_value() for bank in banks))),
            turn.requests.eq(Cat(bank.due.valid for bank in banks)),
            turn.advance.eq(free & turn.valid),
        ]
        with m.If(self.due.ready):
            m.d.sync += self.due.valid.eq(0)
        due = data_register(m, self.due.p)
        with m.If(free):
            m.d.sync += [
                self.due.valid.eq(turn.valid),
                due.cq.eq(Cat(found.cq[:width], turn.index[: (count - 1).bit_length()])),
                due.first.eq(found.first),
                due.ticks.eq(found.ticks),
            ]
        return m
