"""Comparisons with constants."""

from amaranth.hdl import Const, Value

__all__ = ["at_least"]


def at_least(value: Value, least: int) -> Value:
    """Whether ``value >= least``, without the carry chain that an operator takes."""
    result = Const(1)
    for index, bit in enumerate(value):
        result = bit & result if least >> index & 1 else bit | result
    return result & (not least >> len(value))
