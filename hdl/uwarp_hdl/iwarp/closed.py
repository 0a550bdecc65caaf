"""Names of closed messages: they tell late segments from new messages (device behaviour, 5)."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import Parameters

from .receive_layouts import message_name_layout

__all__ = ["ClosedMessages"]

SCRUB_INTERVAL = 16
"""Cycles from one scrubbed row to the next. A row of the largest memory is looked at every 2^20
cycles, 2^10 ticks: long before a tick number of 16 bits wraps."""


class ClosedMessages(wiring.Component):
    """A direct-mapped memory of names, each with the tick number of its closing.

    The answer to a lookup stands from four cycles later until the next lookup. Rows older than
    the longest timeout, 2^15 - 1 ticks, are forgotten in the background.

    Members
    -------
    lookup, name : In
        Not while ``hold`` is high. A lookup takes the place of one not yet answered.
    timeout : In(16)
        From the cycle after ``lookup`` until ``answered``.
    answered : Out(1)
        ``hit`` is the answer to the last lookup.
    tick : In(16)
        The present tick number.
    hit : Out(1)
        The name has been inserted fewer than ``timeout`` ticks ago, and not been replaced.
    hold : In(1)
        There may be an ``insert``.
    insert, inserted : In
    busy : Out(1)
        After a reset, until all rows are empty.
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        name = message_name_layout(parameters)
        super().__init__(
            {
                "lookup": In(1),
                "name": In(name),
                "timeout": In(16),
                "answered": Out(1),
                "tick": In(16),
                "hit": Out(1),
                "hold": In(1),
                "insert": In(1),
                "inserted": In(name),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        depth = self._parameters.n_closed
        bits = exact_log2(depth)
        name_shape = message_name_layout(self._parameters)
        row_shape = data.StructLayout({"valid": 1, "tick": 16, "name": name_shape})
        m.submodules.ram = ram = memory.Memory(shape=row_shape, depth=depth, init=[])
        read = ram.read_port()
        write = ram.write_port()

        def row_of(name):
            return (name.msn ^ (name.qpn << 4))[:bits]

        sweeping = Signal(init=1)
        sweep = Signal(bits)
        scrub = Signal(bits)
        scrub_write = Signal()
        m.d.comb += [
            self.busy.eq(sweeping),
            read.addr.eq(Mux(self.lookup, row_of(self.name), scrub)),
            # Nothing is asked of it while it is written. ``insert`` comes late in its cycle.
            read.en.eq(~(sweeping | self.hold | scrub_write)),
            write.en.eq(sweeping | (self.hold & self.insert) | scrub_write),
            write.addr.eq(Mux(sweeping, sweep, Mux(self.hold, row_of(self.inserted), scrub))),
            write.data.valid.eq(~sweeping & self.hold),
            write.data.tick.eq(self.tick),
            write.data.name.eq(self.inserted),
        ]
        with m.If(sweeping):
            m.d.sync += [sweep.eq(sweep + 1), sweeping.eq(~sweep.all())]

        # The row, then what it says, then the answer.
        row = Signal(row_shape)
        asked = Signal(name_shape)
        age = Signal(16)
        valid = Signal()
        same_name = Signal()
        stage = Signal(3)
        m.d.sync += [
            stage.eq(Cat(self.lookup, stage[:2] & ~self.lookup.replicate(2))),
            row.eq(read.data),
            age.eq(self.tick - row.tick),
            valid.eq(row.valid),
            same_name.eq(row.name.as_value() == asked.as_value()),
        ]
        with m.If(self.lookup):
            m.d.sync += [asked.eq(self.name), self.answered.eq(0)]
        with m.Elif(stage[2]):
            m.d.sync += [
                self.hit.eq(valid & same_name & (age < self.timeout)),
                self.answered.eq(1),
            ]

        # An insert may have been to the row that is looked at: then this is begun again.
        disturbed = Signal()
        interval = Signal(range(SCRUB_INTERVAL))
        due = Signal()
        m.d.sync += [interval.eq(interval + 1), disturbed.eq(self.insert)]
        with m.If(interval == 0):
            m.d.sync += due.eq(1)
        with m.FSM(name="scrubber"):
            with m.State("READ"):
                with m.If(due & read.en & ~self.lookup):
                    m.next = "ROW"
            for state, following in (("ROW", "AGE"), ("AGE", "COMPARE")):
                with m.State(state):
                    m.next = following
                    with m.If(disturbed):
                        m.next = "READ"
            with m.State("COMPARE"):
                m.next = "READ"
                with m.If(~disturbed):
                    with m.If(valid & age[15]):
                        m.next = "FORGET"
                    with m.Else():
                        m.d.sync += [scrub.eq(scrub + 1), due.eq(0)]
            with m.State("FORGET"):
                with m.If(disturbed):
                    m.next = "READ"
                with m.Elif(~self.hold & ~self.lookup):
                    m.d.comb += scrub_write.eq(1)
                    m.next = "READ"
        return m
