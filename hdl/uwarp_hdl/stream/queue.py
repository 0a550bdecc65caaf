"""A FIFO of any shape, and a way to connect streams that compares their shapes.

::

            nothing waits, output free
        i --+---------------------------------+--> output register --> o
            +--> LUT RAM ---------------------+
            |    or block RAM --> register ---+
"""

from amaranth.hdl import Module, Mux, Signal, ValueCastable
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Queue", "connect_streams"]

#: Words of one LUT RAM, and bits up to which several of them make a memory.
_LUT_RAM_WORDS = 16
#: Items that may wait where ``o`` comes from LUT RAM: two of those and a multiplexer.
_UNREGISTERED = 2 * _LUT_RAM_WORDS
_LUT_RAM_BITS = 1024


class Queue(wiring.Component):
    """First in, first out.

    One item a cycle in and out. An item that finds the queue empty is offered in the next cycle.
    ``o`` comes from registers, ``i.ready`` is one.

    What waits in block RAM takes 4 cycles to ``o``. So ``o`` may pause for 2 cycles when a stall
    ends in which the first item had to wait; then it keeps up with ``i``.

    If not ``registered``, ``o.payload`` comes from LUT RAM, an item goes there in any case, and is
    offered in the next cycle, too: that saves the same multiplexer and register where the reader
    has the time for it.

    With ``block`` what waits is in block RAM, even if synthesis would take LUT RAM for it.

    If not ``bounded``, its user never brings an item for which there is no room: ``i.ready`` is 1,
    and ``level`` is not kept.

    If not ``direct``, each item goes through block RAM and is offered 3 cycles later, at the
    earliest: that saves a multiplexer and a register as wide as the item.

    If not ``eager``, an item that comes in the cycle in which the only one leaves is offered two
    cycles later: so whether one is stored does not depend on ``o.ready``. Of less than 4 items it
    may then hold one less.

    Parameters
    ----------
    shape : ShapeLike
        Of an item.
    depth : int
        Items it holds: 2, in registers, or more, in a register and memory: LUT RAM up to 16 items
        or 1024 bits, else block RAM. Up to 32 if not ``registered``.
    direct : bool
    registered : bool
    block : bool
    bounded : bool
    eager : bool

    Attributes
    ----------
    i, o : In(stream), Out(stream)
    level : Out
        Items held, 0 to ``depth``.
    """

    def __init__(
        self,
        shape,
        depth,
        *,
        direct=True,
        registered=True,
        block=False,
        bounded=True,
        eager=True,
    ):
        if not isinstance(depth, int) or depth < 2:
            raise ValueError(f"depth is {depth!r}; it takes an integer of 2 or more")
        if not registered and (depth > _UNREGISTERED or not direct or block):
            raise ValueError(
                f"depth is {depth}, direct {direct}, block {block}; without a register it takes up "
                f"to {_UNREGISTERED}, direct and not block"
            )
        if not bounded and depth == 2:
            raise ValueError(f"depth is {depth}; not bounded it takes more than 2")
        if not eager and not (direct and registered):
            raise ValueError(
                f"direct is {direct}, registered {registered}; not eager it is to be both"
            )
        self._shape = shape
        self._depth = depth
        self._direct = direct
        self._registered = registered
        self._bounded = bounded
        self._eager = eager
        self._block = block or not direct
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        if not self._registered:
            self._give_from_lut_ram(m)
            return m
        width = len(_bits(self.i.payload))
        head = Signal(width, reset_less=True)
        head_valid = Signal()
        head_free = Signal()
        # What ``head`` takes next, if ``back_valid``. ``waiting``: something is on its way there.
        back = Signal(width, reset_less=True)
        back_valid = Signal()
        waiting = Signal()
        put = Signal()
        store = Signal()
        m.d.comb += [
            _bits(self.o.payload).eq(head),
            self.o.valid.eq(head_valid),
            put.eq(self.i.valid & self.i.ready),
        ]
        if self._direct:
            # An item goes past those that wait only when there are none, so order is kept.
            goes_by = ~waiting & (head_free if self._eager else ~head_valid)
            m.d.comb += [
                head_free.eq(~head_valid | self.o.ready),
                store.eq(put & ~goes_by),
            ]
            with m.If(head_free):
                m.d.sync += [
                    head.eq(Mux(waiting, back, _bits(self.i.payload))),
                    head_valid.eq(back_valid | (put & goes_by)),
                ]
        else:
            m.d.comb += [
                head.eq(back),
                head_valid.eq(back_valid),
                head_free.eq(self.o.ready),
                store.eq(put),
            ]
        if self._depth == 2 and self._direct:
            m.d.comb += [self.i.ready.eq(~back_valid), waiting.eq(back_valid)]
            # Whatever is there, until it counts: so what many bits wait for is a register.
            with m.If(~back_valid):
                m.d.sync += back.eq(_bits(self.i.payload))
            with m.If(store):
                m.d.sync += back_valid.eq(1)
            with m.Elif(head_free):
                m.d.sync += back_valid.eq(0)
            m.d.comb += self.level.eq(head_valid + back_valid)
            return m

        small = self._depth <= _LUT_RAM_WORDS or self._depth * width <= _LUT_RAM_BITS
        if small and not self._block:
            fills = self._store_in_lut_ram(m, store, head_free, back, back_valid, waiting)
        else:
            fills = self.level == self._depth - 1
            self._store_in_block_ram(m, store, head_free, back, back_valid, waiting)
        self._keep_level(m, put, fills)
        return m

    def _keep_level(self, m, put, fills):
        """``fills``: an item that comes, while none leaves, is the last that has room. Where that
        does not ask for ``level``, nothing is left of it in a queue whose user does not either."""
        if not self._bounded:
            m.d.comb += self.i.ready.eq(1)
            return
        full = Signal()
        take = Signal()
        m.d.comb += [self.i.ready.eq(~full), take.eq(self.o.valid & self.o.ready)]
        with m.If(put & ~take):
            m.d.sync += [self.level.eq(self.level + 1), full.eq(fills)]
        with m.Elif(take & ~put):
            m.d.sync += [self.level.eq(self.level - 1), full.eq(0)]

    def _give_from_lut_ram(self, m):
        put = self.i.valid & self.i.ready
        take = self.o.valid & self.o.ready
        (write, after_write), read, reader = self._memory(
            m,
            put,
            len(_bits(self.i.payload)),
            ahead=1,
            enable=self.i.ready if self._bounded else put,
            domain="comb",
        )
        read_next = _after(read, self._depth)
        self._keep_level(m, put, after_write == read)
        m.d.comb += _bits(self.o.payload).eq(reader.data)
        with m.If(take):
            m.d.sync += read.eq(read_next)
        with m.If(put):
            m.d.sync += self.o.valid.eq(1)
        with m.Elif(take):
            m.d.sync += self.o.valid.eq(read_next != write)

    def _memory(self, m, store, width, *, ahead=0, enable=None, **read_port):
        """The memory with its write port, and its pointers: to the word that is written next, and
        as many as ``ahead`` after it; and to the oldest one. It is written with ``enable``, where
        nothing is kept that is written without ``store``."""
        attributes = {"ram_style": "block"} if self._block else {}
        m.submodules.memory = words = memory.Memory(
            shape=width, depth=self._depth, init=[], attrs=attributes
        )
        writer, reader = words.write_port(), words.read_port(**read_port)
        # Of a queue that is registered never more words than it holds but one, since the first is
        # on its way out (or is ``head``) when the last comes, so equal pointers mean none.
        writes = [
            Signal(range(self._depth), init=number % self._depth, name=f"write_{number}")
            for number in range(ahead + 1)
        ]
        read = Signal(range(self._depth))
        m.d.comb += [
            writer.addr.eq(writes[0]),
            writer.data.eq(_bits(self.i.payload)),
            writer.en.eq(store if enable is None else enable),
            reader.addr.eq(read),
        ]
        with m.If(store):
            # Those ahead are carried along, so that only the last one takes an adder.
            following = [*writes[1:], _after(writes[-1], self._depth)]
            m.d.sync += [a.eq(b) for a, b in zip(writes, following, strict=True)]
        return writes, read, reader

    def _store_in_lut_ram(self, m, store, head_free, back, back_valid, waiting):
        # The word that is written next is free.
        writes, read, reader = self._memory(m, store, len(back), ahead=2, enable=1, domain="comb")
        m.d.comb += [back.eq(reader.data), waiting.eq(back_valid)]
        read_next = _after(read, self._depth)
        with m.If(head_free & back_valid):
            m.d.sync += [read.eq(read_next), back_valid.eq(read_next != writes[0])]
        with m.If(store):
            m.d.sync += back_valid.eq(1)
        # Nothing has left, so the first item is in ``head``, and all others are here.
        return writes[2] == read

    def _store_in_block_ram(self, m, store, head_free, back, back_valid, waiting):
        (write,), read, reader = self._memory(m, store, len(back))
        fetched = Signal()
        fetched_free = ~fetched | ~back_valid | head_free
        # Never the word that is being written: since synthesis can see that, it does not add
        # logic behind the memory for its sake.
        m.d.comb += reader.en.eq((write != read) & fetched_free)
        with m.If(reader.en):
            m.d.sync += read.eq(_after(read, self._depth))
        with m.If(fetched_free):
            m.d.sync += fetched.eq(reader.en)
        with m.If(~back_valid | head_free):
            m.d.sync += [back.eq(reader.data), back_valid.eq(fetched)]
        with m.If(head_free & back_valid):
            m.d.sync += waiting.eq((write != read) | fetched)
        with m.If(store):
            m.d.sync += waiting.eq(1)


def _after(pointer, words):
    if words == 1 << len(pointer):
        return (pointer + 1)[: len(pointer)]
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
