"""Choices by an OR of values of which all but one are 0, which take less than a multiplexer."""

from collections.abc import Iterable
from functools import reduce
from operator import or_

from amaranth.hdl import Mux, Signal, Value

__all__ = ["chosen", "word_after"]


def chosen(one_hot: Iterable[Value], values: Iterable[Value]) -> Value:
    """The value whose bit in ``one_hot`` is set; 0 if none is."""
    return reduce(or_, (Mux(bit, value, 0) for bit, value in zip(one_hot, values, strict=True)))


def word_after(m, item, select, enable=1):
    """Word ``n`` of ``item``, 8 octets, after a cycle with bit ``n`` of ``select``; it stays where
    ``enable`` is 0.

    An OR of registers with a reset, of which at most one is not 0: less than half of what a
    multiplexer takes.
    """
    parts = []
    for number, selected in enumerate(select):
        part = Signal(64, name=f"word_{number}")
        with m.If(enable):
            m.d.sync += part.eq(item.as_value().word_select(number, 64))
        # Outermost: a reset that goes before the enable takes no logic.
        with m.If(enable & ~selected):
            m.d.sync += part.eq(0)
        parts.append(part)
    return reduce(or_, parts)
