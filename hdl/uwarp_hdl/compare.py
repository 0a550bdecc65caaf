"""Comparisons that take fewer LUTs than synthesis makes of the operators."""

from amaranth.hdl import Cat, Const, Module, Signal, Value

__all__ = ["at_least", "equal"]


def at_least(value: Value, least: int) -> Value:
    """Whether ``value >= least``, without the carry chain that an operator takes."""
    result = Const(1)
    for index, bit in enumerate(value):
        result = bit & result if least >> index & 1 else bit | result
    return result & (not least >> len(value))


def equal(m: Module, a: Value, b: Value) -> Value:
    """Whether ``a`` equals ``b``, which is as wide: a LUT4 for every two bits and those that join
    them. Left to itself synthesis makes an equality one wide AND of implications, and finds half as
    much again when it puts their halves into LUTs.

    Not to be called inside a condition: that would become part of each pair.
    """
    assert len(a) == len(b)
    pairs = Signal(-(-len(a) // 2), attrs={"keep": 1})
    m.d.comb += pairs.eq(Cat(a[i : i + 2] == b[i : i + 2] for i in range(0, len(a), 2)))
    return pairs.all()
