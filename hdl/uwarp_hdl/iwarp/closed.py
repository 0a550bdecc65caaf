"""Names of closed messages: they tell late segments from new messages (device behaviour, 5)."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import Parameters

from ..compare import equal
from .receive_layouts import message_name_layout, name_parts

__all__ = ["ClosedMessages"]

SCRUB_INTERVAL = 16
"""Cycles from one scrubbed row to the next. A row of the largest memory is looked at every 2^20
cycles, 2^10 ticks: long before a tick number of 16 bits wraps."""


class ClosedMessages(wiring.Component):
    """A direct-mapped memory of names, each with the tick number of its closing.

    A row is two words, read and written one after the other. The answer to a lookup stands from
    four cycles later until the next lookup. Rows older than the longest timeout, 2^15 - 1 ticks,
    are forgotten in the background.

    Members
    -------
    lookup, name : In
        Neither beside ``hold`` nor ``spare``. A lookup takes the place of one not yet answered.
    spare : In(1)
        No lookup comes in this cycle. High now and then, for rows to be looked at.
    asked : In
        ``name`` of the lookup, from the cycle after it until ``answered``.
    timeout : In(16)
        From the cycle after ``lookup`` until ``answered``.
    answered : Out(1)
        Since the last lookup until the next cycle without ``spare``: ``hit`` is its answer.
    tick : In(16)
        The present tick number.
    hit : Out(1)
        The name has been inserted fewer than ``timeout`` ticks ago, and not been replaced.
    hold : In(1)
        There may be an ``insert``.
    insert, inserted : In
        Not in two cycles in turn. ``inserted`` is the low part of a name (:func:`name_parts`), in
        the cycle after the high one.
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
                "spare": In(1),
                "asked": In(name),
                "timeout": In(16),
                "answered": Out(1),
                "tick": In(16),
                "hit": Out(1),
                "hold": In(1),
                "insert": In(1),
                "inserted": In(len(name_parts(C(0, name.size))[0]) + 17),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        depth = self._parameters.n_closed
        bits = exact_log2(depth)
        name_shape = message_name_layout(self._parameters)
        asked = Signal(name_shape, reset_less=True)  # close to the words that it is compared with
        asked_low, asked_high = name_parts(asked.as_value())
        first_shape = data.StructLayout({"name_low": len(asked_low), "tick": 16, "valid": 1})
        m.submodules.ram = ram = memory.Memory(shape=first_shape.size, depth=2 * depth, init=[])
        read = ram.read_port()
        write = ram.write_port()

        def row_of(name):
            return (name.msn ^ (name.qpn << 4))[:bits]

        sweeping = Signal(init=1)
        sweep = Signal(bits)
        scrub = Signal(bits)
        # Kept, since ``spare`` comes late: without, synthesis would put all of this behind it.
        may_scrub = Signal(attrs={"keep": 1})
        scrub_write = Signal()
        # The second word is asked for, or written, in the next cycle.
        asked_row = Signal(bits, reset_less=True)
        inserted = Signal(name_shape)
        inserted_row = row_of(inserted)
        inserting_row = Signal(bits, reset_less=True)
        inserting = Signal()
        stage = Signal(3)
        first_word = data.View(first_shape, write.data)
        m.d.comb += [
            inserted.as_value().eq(self.inserted[: len(asked_low)]),
            self.busy.eq(sweeping),
            read.addr.eq(
                Mux(
                    self.spare,
                    Mux(stage[0], Cat(C(1, 1), asked_row), Cat(C(0, 1), scrub)),
                    Cat(C(0, 1), row_of(self.name)),
                )
            ),
            # The word that is written is not read, for synthesis to add no logic behind the memory.
            # ``insert`` comes late in its cycle. A lookup beside ``inserting`` is of first words.
            read.en.eq(~(sweeping | self.hold | scrub_write | (inserting & self.spare))),
            write.en.eq(sweeping | (self.hold & self.insert) | inserting | scrub_write),
            write.addr.eq(
                Cat(
                    inserting,
                    Mux(
                        sweeping,
                        sweep,
                        Mux(inserting, inserting_row, Mux(self.hold, inserted_row, scrub)),
                    ),
                )
            ),
            write.data.eq(self.inserted),
        ]
        with m.If(~inserting):
            m.d.comb += Cat(first_word.tick, first_word.valid).eq(
                Cat(self.tick, ~sweeping & self.hold)
            )
        m.d.sync += [inserting.eq(self.insert), inserting_row.eq(inserted_row)]
        with m.If(sweeping):
            m.d.sync += [sweep.eq(sweep + 1), sweeping.eq(~sweep.all())]

        # A word, then what the first says, then the answer with what the second says.
        word = Signal(first_shape, reset_less=True)
        age = Signal(16, reset_less=True)
        valid = Signal(reset_less=True)
        same_low = Signal(reset_less=True)
        m.d.sync += [
            stage.eq(Cat(self.lookup, stage[:2] & ~self.lookup.replicate(2))),
            word.as_value().eq(read.data),
            valid.eq(word.valid),
            age.eq(self.tick - word.tick),
            asked.eq(self.asked),
            same_low.eq(equal(m, word.name_low, asked_low)),
        ]
        same_high = equal(m, word.as_value()[: len(asked_high)], asked_high)
        with m.If(~self.spare):
            m.d.sync += [asked_row.eq(row_of(self.name)), self.answered.eq(0)]
        with m.Elif(stage[2]):
            m.d.sync += [
                self.hit.eq(valid & same_low & (age < self.timeout) & same_high),
                self.answered.eq(1),
            ]

        # An insert may have been to the row that is looked at: then this is begun again.
        interval = Signal(range(SCRUB_INTERVAL))
        due = Signal()
        # Whether its row was read comes late in its cycle, too.
        is_read = Signal()
        m.d.sync += [
            interval.eq(interval + 1),
            is_read.eq(~(sweeping | self.hold | inserting | stage[0]) & self.spare),
        ]
        with m.If(interval == 0):
            m.d.sync += due.eq(1)
        with m.FSM(name="scrubber") as scrubber:
            m.d.comb += [
                may_scrub.eq(scrubber.ongoing("FORGET") & ~(self.hold | inserting | stage[0])),
                scrub_write.eq(may_scrub & self.spare),
            ]
            with m.State("READ"):
                with m.If(due):
                    m.next = "ROW"
            with m.State("ROW"):
                m.next = "AGE"
                with m.If(inserting | ~is_read):
                    m.next = "READ"
            with m.State("AGE"):
                m.next = "COMPARE"
                with m.If(inserting):
                    m.next = "READ"
            with m.State("COMPARE"):
                m.next = "READ"
                with m.If(~inserting):
                    with m.If(valid & age[15]):
                        m.next = "FORGET"
                    with m.Else():
                        m.d.sync += [scrub.eq(scrub + 1), due.eq(0)]
            with m.State("FORGET"):
                with m.If(inserting | scrub_write):
                    m.next = "READ"
        return m
