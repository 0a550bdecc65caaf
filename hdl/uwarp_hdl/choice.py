"""Choices by an OR of values of which all but one are 0, which take less than a multiplexer."""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

from amaranth.hdl import Mux, Signal, Value
from amaranth.lib import data

__all__ = ["chosen", "chosen_after", "chosen_item", "word_after"]


def chosen(one_hot: Iterable[Value], values: Iterable[Value]) -> Value:
    """The value whose bit in ``one_hot`` is set; 0 if none is."""
    return reduce(or_, (Mux(bit, value, 0) for bit, value in zip(one_hot, values, strict=True)))


def chosen_item(one_hot: Iterable[Value], items: Sequence[data.View]) -> data.View:
    """Like ``chosen``, of items of one layout."""
    values = (item.as_value() for item in items)
    return data.View(items[0].shape(), chosen(one_hot, values))


def chosen_after(m, choices: Iterable[tuple[Value, Value]], name="part", enable=1):
    """The OR of the values whose conditions are 1, after a cycle with ``enable``; it stays where
    that is 0.

    An OR of registers with a reset: less than half of what a multiplexer takes.
    """
    parts = []
    for number, (condition, value) in enumerate(choices):
        part = Signal(len(value), name=f"{name}_{number}", reset_less=True)
        with m.If(enable):
            m.d.sync += part.eq(value)
        # Outermost: a reset that goes before the enable takes no logic.
        with m.If(enable & ~condition):
            m.d.sync += part.eq(0)
        parts.append(part)
    return reduce(or_, parts)


def word_after(m, item, select, enable=1):
    """Word ``n`` of ``item``, 8 octets, after a cycle with bit ``n`` of ``select``; it stays where
    ``enable`` is 0."""
    words = (item.as_value().word_select(number, 64) for number in range(len(select)))
    return chosen_after(m, zip(select, words, strict=True), "word", enable)
