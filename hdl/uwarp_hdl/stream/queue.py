"""A FIFO of any shape, and a way to connect streams that compares their shapes.

::

            empty, output free
        i --+-----------------------+--> output register --> o
            +--> memory ------------+
"""

from amaranth.hdl import Module, Mux, Signal, ValueCastable
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Queue", "connect_streams"]


class Queue(wiring.Component):
    """First in, first out.

    One item a cycle in and out. An item that finds the queue empty is offered in the next cycle.
    ``o`` comes from registers, ``i.ready`` does not depend on ``o.ready``.

    Parameters
    ----------
    shape : ShapeLike
        Of an item.
    depth : int
        Items it holds: 2, in registers, or more, in a register and memory.

    Attributes
    ----------
    i, o : In(stream), Out(stream)
    level : Out
        Items held, 0 to ``depth``.
    """

    def __init__(self, shape, depth):
        if not isinstance(depth, int) or depth < 2:
            raise ValueError(f"depth is {depth!r}; it takes an integer of 2 or more")
        self._shape = shape
        self._depth = depth
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = len(_bits(self.i.payload))
        head = Signal(width)
        head_valid = Signal()
        head_free = Signal()
        store = Signal()
        back = Signal(width)
        back_valid = Signal()
        m.d.comb += [
            head_free.eq(~head_valid | self.o.ready),
            _bits(self.o.payload).eq(head),
            self.o.valid.eq(head_valid),
            # An item goes past the memory only when that is empty, so order is kept.
            store.eq(self.i.valid & self.i.ready & ~(head_free & ~back_valid)),
        ]
        if self._depth == 2:
            m.d.comb += self.i.ready.eq(~back_valid)
            with m.If(store):
                m.d.sync += [back.eq(_bits(self.i.payload)), back_valid.eq(1)]
            with m.Elif(head_free):
                m.d.sync += back_valid.eq(0)
            m.d.comb += self.level.eq(head_valid + back_valid)
        else:
            words = self._depth - 1
            m.submodules.memory = storage = memory.Memory(shape=width, depth=words, init=[])
            writer = storage.write_port()
            reader = storage.read_port(transparent_for=(writer,))
            write, read, read_next = (
                Signal(range(words), name=name) for name in ("write", "read", "read_next")
            )
            held = Signal(range(words + 1))
            fetch = Signal()
            m.d.comb += [
                fetch.eq(head_free & back_valid),
                read_next.eq(Mux(fetch, _after(read, words), read)),
                writer.addr.eq(write),
                writer.data.eq(_bits(self.i.payload)),
                writer.en.eq(store),
                reader.addr.eq(read_next),
                back.eq(reader.data),
                back_valid.eq(held != 0),
                self.i.ready.eq(held != words),
                self.level.eq(held + head_valid),
            ]
            m.d.sync += [read.eq(read_next), held.eq(held + store - fetch)]
            with m.If(store):
                m.d.sync += write.eq(_after(write, words))

        with m.If(head_free):
            with m.If(back_valid):
                m.d.sync += [head.eq(back), head_valid.eq(1)]
            with m.Else():
                m.d.sync += [
                    head.eq(_bits(self.i.payload)),
                    head_valid.eq(self.i.valid & self.i.ready),
                ]
        return m


def _after(pointer, words):
    return Mux(pointer == words - 1, 0, pointer + 1)


def _bits(payload):
    return payload.as_value() if isinstance(payload, ValueCastable) else payload


def connect_streams(m, source, sink):
    """Let the stream ``source`` feed the stream ``sink`` in the module ``m``.

    ``wiring.connect`` compares widths only; this compares payload shapes too. Either may be a
    submodule's stream or the component's own: an own ``i`` is a source, an own ``o`` a sink.

    Raises
    ------
    TypeError
        If the payloads' shapes differ.
    """
    given, taken = source.payload.shape(), sink.payload.shape()
    if given != taken:
        raise TypeError(f"a stream of {given!r} cannot feed one of {taken!r}")
    m.d.comb += [
        _bits(sink.payload).eq(_bits(source.payload)),
        sink.valid.eq(source.valid),
        source.ready.eq(sink.ready),
    ]
