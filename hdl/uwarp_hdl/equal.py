"""Equality of two values, in a LUT4 for every two bits and those that join them.

Left to itself synthesis makes an equality one wide AND of implications, and finds half as much
again when it puts their halves into LUTs.
"""

from amaranth.hdl import Cat, Module, Signal, Value

__all__ = ["equal"]


def equal(m: Module, a: Value, b: Value) -> Value:
    """Whether ``a`` equals ``b``, which is as wide. Not to be called inside a condition: that would
    become part of each pair."""
    assert len(a) == len(b)
    pairs = Signal(-(-len(a) // 2), attrs={"keep": 1})
    m.d.comb += pairs.eq(Cat(a[i : i + 2] == b[i : i + 2] for i in range(0, len(a), 2)))
    return pairs.all()
