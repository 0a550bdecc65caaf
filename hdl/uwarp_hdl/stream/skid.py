"""A skid buffer: it cuts the path from ``o.ready`` to ``i.ready``."""

from amaranth.hdl import Module, Mux, Signal, ValueCastable
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Skid"]


class Skid(wiring.Component):
    """One item is caught when ``o`` stalls.

    One item a cycle, latency 0: while nothing is caught, ``o`` follows ``i``. ``i.ready`` is a
    register. ``Queue(shape, 2)`` cuts the paths in both directions, for a cycle of latency.

    Parameters
    ----------
    shape : ShapeLike
        Of an item.

    Attributes
    ----------
    i, o : In(stream), Out(stream)
    """

    def __init__(self, shape):
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        i_bits, o_bits = (
            payload.as_value() if isinstance(payload, ValueCastable) else payload
            for payload in (self.i.payload, self.o.payload)
        )
        caught = Signal(len(i_bits), reset_less=True)
        empty = Signal(init=1)
        m.d.comb += [
            self.i.ready.eq(empty),
            self.o.valid.eq(self.i.valid | ~empty),
            # Apart from what depends on ``o.ready``, which may depend on the payload.
            o_bits.eq(Mux(empty, i_bits, caught)),
        ]
        with m.If(empty):
            m.d.sync += [caught.eq(i_bits), empty.eq(~self.i.valid | self.o.ready)]
        with m.Elif(self.o.ready):
            m.d.sync += empty.eq(1)
        return m
