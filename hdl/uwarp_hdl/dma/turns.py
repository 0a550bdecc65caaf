"""Whose burst may be granted, decided in the cycle before."""

from amaranth.hdl import Cat, Module, Signal
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
    turn : Out(count)
        One bit is set.
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
        with m.If(moves):
            with m.If(others.valid):
                m.d.sync += self.turn.eq(Cat(others.index == index for index in range(self._count)))
            with m.Elif(~asks):
                m.d.sync += self.turn.eq(1 << self._parked)
        return m
