"""Units with a fault: a proof that does not refute them proves nothing."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["FAULTS", "FaultyOutput"]

#: What :class:`FaultyOutput` can do to the third item, or to one that waits.
FAULTS = ("lose", "repeat", "reorder", "alter", "change", "retract", "wait", "stop")


class FaultyOutput(wiring.Component):
    """``unit`` with a fault behind ``o``.

    ``lose``, ``repeat`` and ``alter`` strike the third item; ``reorder`` gives the fourth before
    it; ``stop`` gives no third. ``change`` alters the payload and ``retract`` drops valid after a
    cycle of waiting. ``wait`` gives valid only with ready.
    """

    def __init__(self, unit, fault):
        if fault not in FAULTS:
            raise ValueError(f"fault is {fault!r}; it takes one of {', '.join(FAULTS)}")
        self._unit, self._fault = unit, fault
        self._width = len(unit.i.payload)
        self._others = [name for name in unit.signature.members if name not in ("i", "o", "level")]
        members = {"i": In(stream.Signature(self._width)), "o": Out(stream.Signature(self._width))}
        super().__init__({**members, **{name: In(1) for name in self._others}})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit
        m.d.comb += [
            unit.i.valid.eq(self.i.valid),
            unit.i.payload.eq(self.i.payload),
            self.i.ready.eq(unit.i.ready),
            self.o.valid.eq(unit.o.valid),
            self.o.payload.eq(unit.o.payload),
            unit.o.ready.eq(self.o.ready),
        ]
        m.d.comb += [getattr(unit, name).eq(getattr(self, name)) for name in self._others]

        number = Signal(3)
        third = number == 2
        with m.If(unit.o.valid & unit.o.ready & (number != 7)):
            m.d.sync += number.eq(number + 1)
        waited = Signal()
        m.d.sync += waited.eq(self.o.valid & ~self.o.ready)
        kept = Signal(self._width)
        again = Signal()
        match self._fault:
            case "lose":
                with m.If(third):
                    m.d.comb += [self.o.valid.eq(0), unit.o.ready.eq(1)]
            case "repeat":
                m.d.comb += unit.o.ready.eq(self.o.ready & ~(third & ~again))
                with m.If(third & self.o.valid & self.o.ready):
                    m.d.sync += again.eq(1)
            case "reorder":
                with m.If(third):
                    m.d.comb += [self.o.valid.eq(0), unit.o.ready.eq(1)]
                    m.d.sync += kept.eq(unit.o.payload)
                with m.If((number == 4) & ~again):
                    m.d.comb += [
                        self.o.valid.eq(1),
                        self.o.payload.eq(kept),
                        unit.o.ready.eq(0),
                    ]
                    m.d.sync += again.eq(self.o.ready)
            case "alter":
                m.d.comb += self.o.payload.eq(unit.o.payload ^ third)
            case "change":
                m.d.comb += self.o.payload.eq(unit.o.payload ^ waited)
            case "retract":
                with m.If(waited):
                    m.d.comb += [self.o.valid.eq(0), unit.o.ready.eq(0)]
            case "wait":
                m.d.comb += self.o.valid.eq(unit.o.valid & self.o.ready)
            case "stop":
                with m.If(third):
                    m.d.comb += [self.o.valid.eq(0), unit.o.ready.eq(0)]
        return m
