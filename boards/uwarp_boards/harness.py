"""A unit with a register at each pin, behind three pins: for the timing analysis of a unit alone.

The inputs are a shift register fed from one pin; the outputs are registered and XORed together in a
pipelined tree that ends at another. So no path but the unit's own, and the unit's paths from and to
a register at its pins, limit the clock.

The clock domain has no reset, as that of an ECP5 board in Amaranth has none: the bitstream and the
device's own set/reset network give the first values, and a soft reset is the unit's own matter.
"""

from amaranth.hdl import Cat, ClockDomain, Elaboratable, Module, Signal, Value
from amaranth.lib import wiring

__all__ = ["RegisteredPins"]


class RegisteredPins(Elaboratable):
    """``unit`` between registers.

    Attributes
    ----------
    clk, scan_in, scan_out : Signal
        The three pins, 1 bit each.
    """

    def __init__(self, unit: wiring.Component) -> None:
        self.unit = unit
        self.clk = Signal()
        self.scan_in = Signal()
        self.scan_out = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.domains.sync = sync = ClockDomain(reset_less=True)
        m.d.comb += sync.clk.eq(self.clk)
        m.submodules.unit = self.unit
        inputs, outputs = [], []
        for _, member, value in self.unit.signature.flatten(self.unit):
            pins = Value.cast(value)
            if len(pins):
                (inputs if member.flow is wiring.In else outputs).append(pins)

        chain = Signal(1 + sum(map(len, inputs)))
        m.d.sync += chain.eq(Cat(self.scan_in, chain[:-1]))
        position = 1
        for pins in inputs:
            m.d.comb += pins.eq(chain[position : position + len(pins)])
            position += len(pins)

        level = Signal(1 + sum(map(len, outputs)))
        m.d.sync += level.eq(Cat(*outputs, chain[-1]))
        while len(level) > 1:
            folded = Signal((len(level) + 3) // 4)
            groups = (level[start : start + 4] for start in range(0, len(level), 4))
            m.d.sync += folded.eq(Cat(group.xor() for group in groups))
            level = folded
        m.d.comb += self.scan_out.eq(level)
        return m
