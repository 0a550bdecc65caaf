"""Whose burst may be granted, decided in the cycle before."""

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..stream.arbiter import RoundRobin

__all__ = ["Turns"]


class Turns(wiring.Component):
    """Turns of requesters, one a cycle, from a register: no path from one's request to another.

    While there are no requests it is the turn of ``parked``, whose request waits for nothing then;
    another's waits for a cycle. A requester is passed over at most ``count - 1`` times.

    Parameters
    ----------
    count : int
        Requesters, at least 1.
    parked : int
        Whose turn it is while there are no requests.

    Members
    -------
    requests : In(count)
    may : In(1)
        A request can be granted.
    turn, away : Out(count)
        One bit is set; all others are, from registers of their own for what many bits depend on.
    grant : Out(1)
        The request of the one whose turn it is is granted.
    """

    def __init__(self, count: int, parked: int = 0) -> None:
        if not 0 <= parked < count:
            raise ValueError(f"parked is {parked}; it takes a number below count, {count}")
        self._count = count
        self._parked = parked
        super().__init__(
            {
                "requests": In(count),
                "may": In(1),
                "turn": Out(count, init=1 << parked),
                "away": Out(count, init=~(1 << parked) & (1 << count) - 1),
                "grant": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.others = others = RoundRobin(self._count)
        asks, moves = Signal(), Signal()
        m.d.comb += [
            asks.eq((self.requests & self.turn).any()),
            moves.eq(~asks | self.may),
            self.grant.eq(asks & self.may),
            others.requests.eq(self.requests & ~self.turn),
            others.advance.eq(moves & others.valid),
        ]
        for following, enable in (
            (Cat(others.index == index for index in range(self._count)), others.valid),
            (Const(1 << self._parked, self._count), ~others.valid & ~asks),
        ):
            with m.If(moves & enable):
                m.d.sync += [self.turn.eq(following), self.away.eq(~following)]
        return m
