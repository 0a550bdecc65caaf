"""Round-robin choice between requesters."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["RoundRobin"]


class RoundRobin(wiring.Component):
    """Choose the next requester after the one served last.

    ``index`` and ``valid`` answer ``requests`` in the same cycle; ``advance`` makes the present
    choice the one served last. A requester that waits is passed over at most ``count - 1`` times.

    Parameters
    ----------
    count : int
        Requesters, at least 1.

    Members
    -------
    requests : In(count)
    advance : In(1)
    index : Out(ceil(log2(count)), at least 1)
        Meaningful while ``valid``.
    valid : Out(1)
        There is a requester.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"count is {count}; an arbiter takes at least 1 requester")
        self._count = count
        width = max(1, (count - 1).bit_length())
        super().__init__(
            {
                "requests": In(count),
                "advance": In(1),
                "index": Out(width),
                "valid": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # Bit i is set if requester i comes after the one served last: its turn in this round.
        this_round = Signal(self._count)
        first = Signal.like(self.index)
        later = Signal.like(self.index)
        candidates = self.requests & this_round
        for index in reversed(range(self._count)):
            with m.If(self.requests[index]):
                m.d.comb += first.eq(index)
            with m.If(candidates[index]):
                m.d.comb += later.eq(index)
        m.d.comb += [
            self.index.eq(Mux(candidates.any(), later, first)),
            self.valid.eq(self.requests.any()),
        ]
        with m.If(self.advance):
            m.d.sync += this_round.eq(Cat(self.index < after for after in range(self._count)))
        return m
