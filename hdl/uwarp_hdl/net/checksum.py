"""One's complement sums (RFC 1071) over four 16-bit lanes a cycle.

::

    lanes --> + --> lane sum --> + --> sum --> right
                                 ^       |
                                 +-------+

The end-around carry is never added: a sum of less than 2^32 is a multiple of 0xFFFF, and not 0,
exactly if its low half and what is above add up to 0xFFFF, that is, if one is the other's
complement. The octets of the lanes may be in either order, so long as all are in the same one (RFC
1071, section 2 B).
"""

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..compare import equal

__all__ = ["OnesComplementCheck"]


class OnesComplementCheck(wiring.Component):
    """Whether what was added since the last start has the one's complement sum 0xFFFF.

    Takes lanes every cycle; ``right`` follows two cycles after them.

    Parameters
    ----------
    width : int
        Bits of the sum, 17 to 32, which it must not exceed: 32 do for 16,000 cycles of lanes from a
        start to the next.
    start : int
        Value that a sum starts with, in the lanes' octet order.

    Attributes
    ----------
    lanes : In(17).array(4)
        Numbers to add; the 17th bit lets a lane count twice.
    add : In(1)
        The lanes are to be added.
    restart : In(1)
        The sum starts anew, without the lanes.
    right : Out(1)
    """

    def __init__(self, width=32, start=0):
        if not 17 <= width <= 32:
            raise ValueError(f"width is {width}; it takes 17 to 32")
        if not 0 <= start < 1 << 16:
            raise ValueError(f"start is {start}; it takes 16 bits")
        self._width = width
        self._start = start
        super().__init__(
            {"lanes": In(17).array(4), "add": In(1), "restart": In(1), "right": Out(1)}
        )

    def elaborate(self, platform):
        m = Module()
        lane_sum = Signal(19, reset_less=True)
        add, restart = Signal(), Signal()
        total = Signal(self._width, init=self._start, reset_less=True)
        # Kept apart: of a sum of four, synthesis would make a tree of twice the size.
        pairs = [Signal(18, name=f"pair{number}", attrs={"keep": 1}) for number in range(2)]
        m.d.comb += [pair.eq(sum(self.lanes[2 * i : 2 * i + 2])) for i, pair in enumerate(pairs)]
        m.d.sync += [lane_sum.eq(pairs[0] + pairs[1]), add.eq(self.add), restart.eq(self.restart)]
        with m.If(restart):
            m.d.sync += total.eq(self._start)
        with m.Elif(add):
            m.d.sync += total.eq(total + lane_sum)
        above = Cat(total[16:], Const(0, 32 - self._width))
        m.d.comb += self.right.eq(equal(m, total[:16], ~above))
        return m
