"""Granules of a message and of its segment (device behaviour, 4.2), by one shifter.

::

    start -------.            .--> first
    end ---------+--> shift --+--> last ----------------.
    offset ------|            +--> granule, remainder --+--> covered
    payload_end -'            '--> granule -------------'

One number a cycle, in the cycle after ``begin`` the first. The shifter is two cycles long.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters

from ..data_register import data_register
from .receive_layouts import covered_layout, granule_width, offset_width

__all__ = ["SegmentGranules"]

_SMALLEST_LOG2 = 6

#: Of the shifter, by two to this: behind it are registers.
_REGISTERED_STAGE = 2


class SegmentGranules(wiring.Component):
    """Number the granules that a message touches, and those that a segment of it covers.

    Members
    -------
    begin : In(1)
        ``start`` and ``end`` are right in the next cycle, ``offset`` in the second from now;
        ``payload_end`` from the third on, while it counts.
    log2 : In(5)
        Of the granule, 6 to 16. From ``begin`` on.
    start, end, offset, payload_end : In
        First and last octet of the message; first of the segment, and the one after its last.
    starts, ends : In(1)
        The segment begins, or ends, where its message does. From the fourth cycle on.
    first, last : Out
        Granules of ``start`` and ``end``. From 3 and 4 cycles after ``begin``.
    aligned : Out(1)
        ``start`` is the first octet of a granule. From 3 cycles after ``begin``.
    covered : Out(covered)
        From 5 cycles after ``begin``.
    """

    def __init__(self, parameters: Parameters):
        self._granule_width = granule_width(parameters)
        offset = offset_width(parameters)
        super().__init__(
            {
                "begin": In(1),
                "log2": In(5),
                "start": In(offset),
                "end": In(offset),
                "offset": In(offset),
                "payload_end": In(offset),
                "starts": In(1),
                "ends": In(1),
                "first": Out(self._granule_width),
                "last": Out(self._granule_width),
                "aligned": Out(1),
                "covered": Out(covered_layout(parameters)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        steps = Signal(4)  # one bit each
        octet = Signal.like(self.start)
        shift = Signal(4, reset_less=True)
        inside = Signal(16, init=0x3F, reset_less=True)
        low = Signal(self._granule_width + 1, reset_less=True)
        low_part = Signal(reset_less=True)
        next_shift = Signal.like(shift)
        m.d.comb += next_shift.eq(self.log2 - _SMALLEST_LOG2)
        m.d.sync += [
            shift.eq(next_shift),
            inside[6:].eq(Cat(i < next_shift for i in range(10))),
            steps.eq(Mux(self.begin, 1, steps << 1)),
        ]

        # Only as wide in each stage as the granule's number and what is still to be shifted.
        granule = octet[_SMALLEST_LOG2:]
        for bit in reversed(range(len(shift))):
            width = len(low) + (1 << bit) - 1
            stage = Signal(width, name=f"shifted{bit}", reset_less=True)
            domain = m.d.sync if bit == _REGISTERED_STAGE else m.d.comb
            domain += stage.eq(Mux(shift[bit], granule[1 << bit :], granule))
            granule = stage
        part = Signal(reset_less=True)
        m.d.sync += part.eq((octet[:16] & inside).any())
        # All but the first are chosen a cycle before.
        later = Signal.like(octet, reset_less=True)
        m.d.sync += later.eq(Mux(steps[0], self.end, Mux(steps[1], self.offset, self.payload_end)))
        # What comes last is shifted in each step before, too.
        m.d.comb += octet.eq(Mux(steps[0], self.start, later))
        first, last, aligned = (
            data_register(m, output) for output in (self.first, self.last, self.aligned)
        )
        with m.If(steps[1]):
            m.d.sync += [first.eq(granule), aligned.eq(~part)]
        with m.If(steps[2]):
            m.d.sync += last.eq(granule)
        with m.If(steps[3]):
            m.d.sync += [low.eq(granule), low_part.eq(part)]

        with m.If(self.ends):
            m.d.comb += self.covered.high.eq(self.last)
        with m.Else():
            m.d.comb += self.covered.high.eq(granule)
        m.d.comb += self.covered.low.eq(low + (self.starts | low_part))
        return m
