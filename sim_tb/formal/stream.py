"""The rules of streams as properties, and the proofs of units that only store.

::

    free inputs --> i [ unit ] o --> free ready
                    |          |
                    +--> Scoreboard: what comes out is what went in
                    +--> StreamContract of i (assumed), of o (asserted)
"""

from amaranth.hdl import (
    Assert,
    Assume,
    Const,
    Cover,
    Elaboratable,
    Module,
    Mux,
    Signal,
    ValueCastable,
)
from amaranth.lib import wiring
from amaranth.lib.wiring import In

__all__ = [
    "ALTERED",
    "INVENTED",
    "LOST",
    "NOT_OFFERED",
    "OVERFULL",
    "PAYLOAD_CHANGED",
    "READY_WAITS",
    "REFUSED",
    "VALID_DROPPED",
    "VALID_WAITS",
    "BufferProof",
    "ReadinessProof",
    "Scoreboard",
    "StreamContract",
]

VALID_DROPPED = "valid is taken back before the transfer"
PAYLOAD_CHANGED = "the payload changes before the transfer"
VALID_WAITS = "valid depends on ready"
READY_WAITS = "ready of the input depends on ready of the output"
INVENTED = "an item is offered that was not put, or was discarded or given before"
LOST = "the marked item is inside no more, and did not leave"
ALTERED = "an item is not the one that was put in its place"
OVERFULL = "more items are taken than there is room"
REFUSED = "an item is refused though there is room"
NOT_OFFERED = "an item that is held is not offered in time"


def _bits(payload):
    return payload.as_value() if isinstance(payload, ValueCastable) else payload


class StreamContract(Elaboratable):
    """Once valid, a stream holds valid and payload until the transfer.

    Parameters
    ----------
    stream : stream.Interface
    rule : Assert or Assume
        What becomes of the contract: a duty of the unit, or of what feeds it.
    waive : Value, optional
        While 1, what was offered in this cycle need not be there in the next.
    """

    def __init__(self, stream, rule, waive=0):
        self._stream, self._rule, self._waive = stream, rule, waive

    def elaborate(self, platform):
        m = Module()
        payload = _bits(self._stream.payload)
        pending = Signal()
        offered = Signal.like(payload)
        m.d.sync += [
            pending.eq(self._stream.valid & ~self._stream.ready & ~self._waive),
            offered.eq(payload),
        ]
        with m.If(pending):
            m.d.comb += [
                self._rule(self._stream.valid, VALID_DROPPED),
                self._rule(payload == offered, PAYLOAD_CHANGED),
            ]
        return m


class Scoreboard(Elaboratable):
    """Items leave as they were put: none lost, doubled, invented, altered or out of its place.

    The solver marks any one item as it is put (``mark``); how many leave before it is counted. As
    it could have been any item, what holds for it holds for all. Counters stay small, so
    that the state of a proof does not grow with its length.

    Parameters
    ----------
    i, o : stream.Interface
    room : int
        Items that may be inside at most.
    mark : Value
        A free input.
    commit, discard : Value, optional
        Of items put so far, as for ``PacketFifo``. Without them items are decided as they are put.

    Attributes
    ----------
    committed, undecided : Signal
        Items inside before this cycle's transfers.
    """

    def __init__(self, i, o, room, mark, commit=None, discard=None):
        self._i, self._o, self._room, self._mark = i, o, room, mark
        self._commit, self._discard = commit, discard
        self.committed = Signal(range(2 * room + 2))
        self.undecided = Signal(range(2 * room + 2))
        self.was_marked = Signal()

    def elaborate(self, platform):
        m = Module()
        i, o = self._i, self._o
        put, get = i.valid & i.ready, o.valid & o.ready
        total = self.committed + self.undecided
        commit = Const(1) if self._commit is None else self._commit
        discard = Const(0) if self._discard is None else self._discard

        m.d.sync += self.committed.eq(self.committed - get)
        m.d.sync += self.undecided.eq(self.undecided + put)
        with m.If(commit):
            m.d.sync += self.committed.eq(total + put - get)
        with m.If(commit | discard):
            m.d.sync += self.undecided.eq(0)
        m.d.comb += Assert(total <= self._room, OVERFULL)
        with m.If(total == self._room):
            m.d.comb += Assert(~i.ready, OVERFULL)

        # A unit without latency, which decides nothing, gives an item as it is put.
        through = put & (self.committed == 0) if self._commit is None else Const(0)
        with m.If(o.valid):
            m.d.comb += Assert((self.committed != 0) | through, INVENTED)

        inside = Signal()
        ahead = Signal.like(self.committed)
        value = Signal(len(_bits(i.payload)))
        marking = put & self._mark & ~self.was_marked
        with m.If(marking):
            with m.If(~discard & ~(through & get)):
                m.d.sync += [inside.eq(1), value.eq(_bits(i.payload)), ahead.eq(total - get)]
            m.d.sync += self.was_marked.eq(~discard)
        with m.Elif(inside):
            m.d.comb += Assert(ahead < total, LOST)
            m.d.sync += ahead.eq(ahead - get)
            with m.If((get & (ahead == 0)) | (discard & (ahead >= self.committed))):
                m.d.sync += inside.eq(0)
                m.d.sync += self.was_marked.eq(get & (ahead == 0))
        with m.If(o.valid & ((inside & (ahead == 0)) | (marking & through))):
            expected = Mux(inside, value, _bits(i.payload))
            m.d.comb += Assert(_bits(o.payload) == expected, ALTERED)
        m.d.comb += [
            Cover(total == self._room, "full"),
            Cover(self.was_marked & ~inside & ~o.valid, "the marked item has left, and all others"),
        ]
        return m


class BufferProof(wiring.Component):
    """A unit with ``i`` and ``o``, perhaps ``commit`` and ``discard``, gives what it takes.

    Parameters
    ----------
    unit : wiring.Component
    room : int
        Items inside below which it must take one.
    most : int
        Items inside at most.
    delay : int
        Cycles, at most, for which nothing is offered though a decided item is inside.
    """

    def __init__(self, unit, *, room, most, delay=0):
        self._unit, self._room, self._most, self._delay = unit, room, most, delay
        self._decides = hasattr(unit, "commit")
        super().__init__(
            {
                "payload": In(len(_bits(unit.i.payload))),
                "valid": In(1),
                "ready": In(1),
                "mark": In(1),
                "commit": In(1),
                "discard": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit
        m.d.comb += [
            unit.i.valid.eq(self.valid),
            _bits(unit.i.payload).eq(self.payload),
            unit.o.ready.eq(self.ready),
        ]
        decision = ()
        if self._decides:
            decision = (self.commit, self.discard)
            m.d.comb += [
                unit.commit.eq(self.commit),
                unit.discard.eq(self.discard),
                Assume(~(self.commit & self.discard)),
            ]
        m.submodules.i_contract = StreamContract(unit.i, Assume)
        m.submodules.o_contract = StreamContract(unit.o, Assert)
        m.submodules.scoreboard = scoreboard = Scoreboard(
            unit.i, unit.o, self._most, self.mark, *decision
        )
        total = scoreboard.committed + scoreboard.undecided
        # Room that a decision leaves may count a cycle later.
        decided = Signal()
        m.d.sync += decided.eq(self._decides & self.discard)
        m.d.comb += Assert(unit.i.ready | (total >= self._room) | decided, REFUSED)
        idle = Signal(range(self._delay + 2))
        with m.If((scoreboard.committed != 0) & ~unit.o.valid):
            m.d.sync += idle.eq(idle + 1)
            m.d.comb += Assert(idle < self._delay, NOT_OFFERED)
        with m.Else():
            m.d.sync += idle.eq(0)
        return m


class ReadinessProof(wiring.Component):
    """``o.valid`` and ``i.ready`` of a unit do not depend on ``o.ready`` of the same cycle.

    Two units get the same inputs, until in some cycle their ``o.ready`` differ: in that cycle they
    must still say the same.
    """

    def __init__(self, make):
        self._units = make(), make()
        unit = self._units[0]
        self._extra = [name for name in unit.signature.members if name not in ("i", "o", "level")]
        super().__init__(
            {
                "payload": In(len(_bits(unit.i.payload))),
                "valid": In(1),
                "ready": In(2),
                **{name: In(1) for name in self._extra},
            }
        )

    def elaborate(self, platform):
        m = Module()
        for index, unit in enumerate(self._units):
            m.submodules[f"unit{index}"] = unit
            m.d.comb += [
                unit.i.valid.eq(self.valid),
                _bits(unit.i.payload).eq(self.payload),
                unit.o.ready.eq(self.ready[index]),
            ]
            m.d.comb += [getattr(unit, name).eq(getattr(self, name)) for name in self._extra]
        one, other = self._units
        m.submodules.i_contract = StreamContract(one.i, Assume)
        differed = Signal()
        with m.If(self.ready.xor()):
            m.d.sync += differed.eq(1)
        with m.If(~differed):
            m.d.comb += Assert(one.o.valid == other.o.valid, VALID_WAITS)
            with m.If(one.o.valid):
                m.d.comb += Assert(_bits(one.o.payload) == _bits(other.o.payload), VALID_WAITS)
            m.d.comb += Assert(one.i.ready == other.i.ready, READY_WAITS)
            m.d.comb += Cover(self.ready.xor() & one.o.valid, "one is ready for what both offer")
        return m
