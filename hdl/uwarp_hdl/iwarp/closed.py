"""Names of closed messages: they tell late segments from new messages (device behaviour, 5)."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import Parameters

from .receive_layouts import closed_name_layout

__all__ = ["ClosedMessages"]

SCRUB_INTERVAL = 16
"""Cycles from one scrubbed row to the next. A row of the largest memory is looked at every 2^20
cycles, 2^10 ticks: long before a tick number of 16 bits wraps."""


class ClosedMessages(wiring.Component):
    """A direct-mapped memory of names, each with the tick number of its closing.

    A lookup a cycle; its answer stands from two cycles later until the next lookup's. Rows
    older than the longest timeout, 2^15 - 1 ticks, are forgotten in the background.

    Members
    -------
    lookup, name : In
    timeout : In(16)
        Taken the cycle after ``lookup``.
    tick : In(16)
        The present tick number.
    hit : Out(1)
        The name has been inserted fewer than ``timeout`` ticks ago, and not been replaced.
    insert, inserted : In
    busy : Out(1)
        After a reset, until all rows are empty.
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        name = closed_name_layout(parameters)
        super().__init__(
            {
                "lookup": In(1),
                "name": In(name),
                "timeout": In(16),
                "tick": In(16),
                "hit": Out(1),
                "insert": In(1),
                "inserted": In(name),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        depth = self._parameters.n_closed
        bits = exact_log2(depth)
        name_shape = closed_name_layout(self._parameters)
        row_shape = data.StructLayout({"valid": 1, "tick": 16, "name": name_shape})
        m.submodules.ram = ram = memory.Memory(shape=row_shape, depth=depth, init=[])
        read = ram.read_port()
        write = ram.write_port()

        def row_of(name):
            return (name.message.msn ^ (name.message.qpn << 4))[:bits]

        sweeping = Signal(init=1)
        sweep = Signal(bits)
        scrub = Signal(bits)
        scrub_write = Signal()
        m.d.comb += [
            self.busy.eq(sweeping),
            read.addr.eq(Mux(self.lookup, row_of(self.name), scrub)),
            write.en.eq(sweeping | self.insert | scrub_write),
            write.addr.eq(Mux(sweeping, sweep, Mux(self.insert, row_of(self.inserted), scrub))),
            write.data.valid.eq(~sweeping & self.insert),
            write.data.tick.eq(self.tick),
            write.data.name.eq(self.inserted),
        ]
        with m.If(sweeping):
            m.d.sync += [sweep.eq(sweep + 1), sweeping.eq(~sweep.all())]

        row = read.data
        age = Signal(16)
        asked = Signal(name_shape)
        answering = Signal()
        m.d.comb += age.eq(self.tick - row.tick)
        m.d.sync += [answering.eq(self.lookup), asked.eq(self.name)]
        with m.If(answering):
            m.d.sync += self.hit.eq(
                row.valid & (row.name.as_value() == asked.as_value()) & (age < self.timeout)
            )

        interval = Signal(range(SCRUB_INTERVAL))
        m.d.sync += interval.eq(interval + 1)
        with m.FSM(name="scrubber"):
            with m.State("READ"):
                with m.If((interval == 0) & ~self.lookup & ~self.insert & ~sweeping):
                    m.next = "AGE"
            with m.State("AGE"):
                with m.If(self.insert):
                    m.next = "READ"
                with m.Elif(row.valid & age[15]):
                    m.next = "FORGET"
                with m.Else():
                    m.d.sync += scrub.eq(scrub + 1)
                    m.next = "READ"
            with m.State("FORGET"):
                m.d.comb += scrub_write.eq(~self.insert)
                m.next = "READ"
        return m
