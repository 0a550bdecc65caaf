"""A FIFO for what is known to have room: no flow control, only LUT RAM and two pointers.

One item a cycle in and out; an item is there in the cycle after it was put in.
"""

from amaranth.hdl import Module, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["RoomyFifo"]


class RoomyFifo(wiring.Component):
    """A FIFO in LUT RAM that never holds more than it has room for.

    Parameters
    ----------
    width, depth : int
        Bits of an item; items, a power of two.

    Members
    -------
    put, last : In
        ``last`` is put in; it is there from the next cycle on.
    holds, first : Out
        ``holds`` is a register.
    take : In(1)
        ``first`` goes. Only if it ``holds`` any.
    """

    def __init__(self, width: int, depth: int):
        self._depth = depth
        super().__init__(
            {
                "put": In(1),
                "last": In(width),
                "holds": Out(1),
                "first": Out(width),
                "take": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = items = memory.Memory(
            shape=len(self.last), depth=self._depth, init=[]
        )
        writer, reader = items.write_port(), items.read_port(domain="comb")
        # What follows ``read`` is carried along, so that no sum is compared.
        write, read = Signal(range(self._depth)), Signal(range(self._depth))
        after_read = Signal(range(self._depth), init=1)
        m.d.comb += [
            writer.addr.eq(write),
            writer.data.eq(self.last),
            writer.en.eq(self.put),
            reader.addr.eq(read),
            self.first.eq(reader.data),
        ]
        with m.If(self.take):
            m.d.sync += [read.eq(after_read), after_read.eq(after_read + 1)]
        with m.If(self.put):
            m.d.sync += [write.eq(write + 1), self.holds.eq(1)]
        with m.Elif(self.take):
            m.d.sync += self.holds.eq(after_read != write)
        return m
