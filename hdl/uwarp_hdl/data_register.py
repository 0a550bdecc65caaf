"""Registers of data, without a reset: nobody looks at what they hold until it is written.

A flip-flop without a reset shares a tile with any other, and may become a part of the block RAM in
front of it. What is set back after its use, so that it is 0 where a later one does not write it,
is no such register.
"""

from collections.abc import Collection

from amaranth.hdl import Cat, Signal, Value
from amaranth.lib import data

__all__ = ["data_fields", "data_register"]


def data_register(m, output):
    """The register that drives ``output``, all of it, in the module ``m``: to be asked for where no
    condition is open."""
    driven = Value.cast(output)
    name = f"{driven.name}_data" if isinstance(driven, Signal) else "data"
    register = Signal(output.shape(), name=name, reset_less=True)
    m.d.comb += output.eq(register)
    return register


def data_fields(layout, name: str, reset: Collection[str] = ("valid",)):
    """A register for each member of a struct; those of ``reset`` have one."""
    fields = [
        Signal(field.width, name=f"{name}_{member}", reset_less=member not in reset)
        for member, field in data.Layout.cast(layout)
    ]
    return layout(Cat(fields))
