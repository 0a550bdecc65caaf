"""A FIFO whose writer decides at the end of a packet whether it was ever there.

::

    read          committed        write
     |  committed  |  undecided     |
    -+=============+................+-----   commit: committed := write
                                             discard: write := committed

A packet may be offered again::

    oldest      read               oldest follows the words that are taken for the last time;
     |  fetched  |                 after the last word, taken not for the last time, read := oldest
    -+===========+----------
"""

from amaranth.hdl import Module, Signal, ValueCastable
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..compare import equal
from ..data_register import data_register

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
        not counted, unless ``repeats``.
    repeats : bool
        Packets may be offered again: a word has a member ``last``.

    Attributes
    ----------
    i : In(stream)
        Words as yet undecided. ``i.ready`` says that there is room; it is a register. Room that
        words leave, or ``discard``, counts a cycle later.
    commit : In(1)
        The words written so far, with one written in this same cycle, belong to the output.
    discard : In(1)
        The undecided words, with one written in this same cycle, are forgotten. Not together with
        ``commit``.
    again : In(1)
        If ``repeats``, while a word is offered: its packet is to be offered once more after this.
        The same for all words of the packet, whose first word then comes 3 cycles after its last.
    o : Out(stream)
    """

    def __init__(self, shape, depth, *, repeats=False):
        if not isinstance(depth, int) or depth < 2 or depth & (depth - 1):
            raise ValueError(f"depth is {depth!r}; it takes a power of two of 2 or more")
        self._depth = depth
        self._repeats = repeats
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "commit": In(1),
                "discard": In(1),
                **({"again": In(1)} if repeats else {}),
                "o": Out(stream.Signature(shape)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        i_bits, o_bits = (
            payload.as_value() if isinstance(payload, ValueCastable) else payload
            for payload in (self.i.payload, self.o.payload)
        )
        # No word is read while it is written: synthesis need not add logic for that case.
        m.submodules.words = words = memory.Memory(
            shape=len(i_bits), depth=self._depth, init=[], attrs={"no_rw_check": 1}
        )
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
            writer.en.eq(put),
            write_next.eq(write + put),
        ]
        undecided, unread, fetched = Signal(), Signal(), Signal()  # there are words
        m.d.sync += [
            write.eq(write_next),
            undecided.eq((undecided | put) & ~self.commit & ~self.discard),
        ]
        with m.If(self.commit):
            m.d.sync += committed.eq(write_next)
        with m.Elif(self.discard):
            m.d.sync += write.eq(committed)

        # The last word is offered, and its packet's first one comes next: nothing behind it is
        # wanted. Whether that word is taken, which is known late, does not matter.
        restarts = self.o.valid & self.again & self.o.p.last if self._repeats else 0
        head_free = ~self.o.valid | self.o.ready
        read_next = Signal.like(read)
        is_last = Signal()
        m.d.comb += [
            read_next.eq(read + 1),
            is_last.eq(equal(m, read_next, committed)),
            reader.addr.eq(read[:-1]),
            reader.en.eq(unread & (~fetched | head_free)),
        ]
        with m.If(reader.en):
            m.d.sync += [fetched.eq(1), read.eq(read_next)]
        with m.Elif(head_free):
            m.d.sync += fetched.eq(0)
        head = data_register(m, o_bits)
        with m.If(head_free):
            m.d.sync += [self.o.valid.eq(fetched & ~restarts), head.eq(reader.data)]
        with m.If(self.commit & (undecided | put)):
            m.d.sync += unread.eq(1)
        with m.Elif(reader.en):
            m.d.sync += unread.eq(~is_last)

        oldest = read
        if self._repeats:
            oldest = Signal.like(read, name="oldest")
            taken = self.o.valid & self.o.ready
            with m.If(taken & ~self.again):
                m.d.sync += oldest.eq(oldest + 1)
            with m.If(restarts):
                m.d.sync += [read.eq(oldest), unread.eq(1), fetched.eq(0)]
        m.d.sync += room.eq(~equal(m, write_next, oldest ^ self._depth))
        return m
