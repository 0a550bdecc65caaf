"""Ports of a memory that never meet."""

from amaranth.hdl import Module, Value
from amaranth.lib import memory

__all__ = ["keep_apart"]


def keep_apart(
    m: Module, reader: memory.ReadPort, writer: memory.WritePort, enable: Value | int = 1
) -> None:
    """Enable ``reader``, of the domain "sync", but where ``writer`` writes the same row.

    What is then read must not matter: the port keeps what it read before. Since synthesis can see
    that, it does not add a comparison, and a multiplexer as wide as the row, behind the memory for
    the sake of a row that is read and written in one cycle.
    """
    m.d.comb += reader.en.eq(enable & ~(writer.en & (writer.addr == reader.addr)))
