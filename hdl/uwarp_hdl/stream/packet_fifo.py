"""A FIFO whose writer decides at the end of a packet whether it was ever there.

::

    read          committed        write
     |  committed  |  undecided     |
    -+=============+................+-----   commit: committed := write
                                             discard: write := committed
"""

from amaranth.hdl import Module, Signal, ValueCastable
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["PacketFifo"]


class PacketFifo(wiring.Component):
    """Words in order, visible only once they are committed.

    One word a cycle in and out. A word committed in cycle n is offered in cycle n + 2, if those
    before it have gone. Words that no commit follows take room until they are discarded: who fills
    the memory with undecided words has to discard them, or nothing moves again.

    Parameters
    ----------
    shape : ShapeLike
        Of a word.
    depth : int
        Words of room, a power of two of 2 or more. The word that ``o`` offers is not counted.

    Attributes
    ----------
    i : In(stream)
        Words as yet undecided. ``i.ready`` says that there is room; it depends on registers only.
    commit : In(1)
        The words written so far, with one written in this same cycle, belong to the output.
    discard : In(1)
        The undecided words, with one written in this same cycle, are forgotten. Not together with
        ``commit``.
    o : Out(stream)
    """

    def __init__(self, shape, depth):
        if not isinstance(depth, int) or depth < 2 or depth & (depth - 1):
            raise ValueError(f"depth is {depth!r}; it takes a power of two of 2 or more")
        self._depth = depth
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "commit": In(1),
                "discard": In(1),
                "o": Out(stream.Signature(shape)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        i_bits, o_bits = (
            payload.as_value() if isinstance(payload, ValueCastable) else payload
            for payload in (self.i.payload, self.o.payload)
        )
        m.submodules.words = words = memory.Memory(shape=len(i_bits), depth=self._depth, init=[])
        writer, reader = words.write_port(), words.read_port()

        # One bit more than an address, so that full and empty differ.
        write, committed, read = (
            Signal(range(2 * self._depth), name=name) for name in ("write", "committed", "read")
        )
        write_next = Signal.like(write)
        m.d.comb += [
            self.i.ready.eq((write ^ read) != self._depth),
            writer.addr.eq(write[:-1]),
            writer.data.eq(i_bits),
            writer.en.eq(self.i.valid & self.i.ready),
            write_next.eq(write + writer.en),
        ]
        m.d.sync += write.eq(write_next)
        with m.If(self.commit):
            m.d.sync += committed.eq(write_next)
        with m.Elif(self.discard):
            m.d.sync += write.eq(committed)

        m.d.comb += [
            reader.addr.eq(read[:-1]),
            reader.en.eq(~self.o.valid | self.o.ready),
            o_bits.eq(reader.data),
        ]
        valid = Signal()
        m.d.comb += self.o.valid.eq(valid)
        with m.If(reader.en):
            m.d.sync += [valid.eq(read != committed), read.eq(read + (read != committed))]
        return m
