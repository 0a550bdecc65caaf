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

    One word a cycle in and out. A word committed in cycle n is offered in cycle n + 3, if those
    before it have gone. Words that no commit follows take room until they are discarded: who fills
    the memory with undecided words has to discard them, or nothing moves again.

    Parameters
    ----------
    shape : ShapeLike
        Of a word.
    depth : int
        Words of room, a power of two of 2 or more. The word that ``o`` offers, and the next, are
        not counted.

    Attributes
    ----------
    i : In(stream)
        Words as yet undecided. ``i.ready`` says that there is room; it is a register.
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
        room = Signal(init=1)
        put = Signal()
        m.d.comb += [
            self.i.ready.eq(room),
            put.eq(self.i.valid & room),
            writer.addr.eq(write[:-1]),
            writer.data.eq(i_bits),
            # That there is room, once more: this and ``read != write`` below let synthesis see that
            # no word is read while it is written, so that it adds no logic for that case.
            writer.en.eq(put & ((write ^ read) != self._depth)),
            write_next.eq(write + put),
        ]
        m.d.sync += write.eq(write_next)
        with m.If(self.commit):
            m.d.sync += committed.eq(write_next)
        with m.Elif(self.discard):
            m.d.sync += write.eq(committed)

        fetched = Signal()
        head_free = ~self.o.valid | self.o.ready
        m.d.comb += [
            reader.addr.eq(read[:-1]),
            reader.en.eq((read != committed) & (read != write) & (~fetched | head_free)),
        ]
        with m.If(reader.en):
            m.d.sync += [fetched.eq(1), read.eq(read + 1)]
        with m.Elif(head_free):
            m.d.sync += fetched.eq(0)
        with m.If(head_free):
            m.d.sync += [self.o.valid.eq(fetched), o_bits.eq(reader.data)]

        with m.If(reader.en):
            m.d.sync += room.eq(1)
        with m.Elif(self.discard):
            m.d.sync += room.eq((committed ^ read) != self._depth)
        with m.Elif(put):
            m.d.sync += room.eq(((write + 1)[: len(write)] ^ read) != self._depth)
        return m
