"""The control side of the NIC: bus, registers, doorbells, table commands, counters, time.

::

    bus --> Axi4LiteSubordinate --+--> RegisterFile --+--> config, irq
                                  |                   +--> TableCommand --> table rows
                                  |                   +--> EventCounters <-- events
                                  |                   +--> event_ring, close
                                  +--> DoorbellPages ----> doorbells

From the write of a doorbell on the bus to its offer to a unit: 2 cycles. The bus logic and the time
go on through a soft reset; all else is reset by ``clear``.
"""

from collections.abc import Sequence

from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import ADDRESS_BITS, DOORBELL_BASE, Counter, Parameters

from ..interfaces import Axi4LiteSignature
from ..layouts import CloseRequest, CqDoorbell, EventRing, PortConfig, RingDoorbell
from ..stream.queue import connect_streams
from .bus import Axi4LiteSubordinate
from .command import TableCommand
from .counters import EventCounters, EventSource
from .doorbells import DoorbellPages
from .registers import RegisterFile

__all__ = ["ControlUnit"]

_TABLES = ("qp", "region", "port", "group")
_TIME_BITS = 47


class ControlUnit(wiring.Component):
    """What software sees on BAR 0.

    Parameters
    ----------
    parameters : Parameters
    sources : Sequence[EventSource]
        Units that count events.

    Members
    -------
    bus : In(Axi4LiteSignature(ADDRESS_BITS))
    irq : Out(1)
    time : Out(47)
        Clock cycles since power-up.
    config : Out(PortConfig)
    qp, region, port, group : Out(TableWriteSignature)
    group_written : In(1)
        As of TableCommand.
    send, receive : Out(stream.Signature(RingDoorbell))
    completion : Out(stream.Signature(CqDoorbell))
    irq_set, irq_clear, irq_cq : In
        As from the completion unit.
    event_ring, event_clear, event_consumer : Out
    event_written : In(1)
        Of the event unit, as in the register file.
    close : Out(CloseRequest)
    close_done : In(1)
    events : In(len(Counter)).array(len(sources))
    open_messages : In(32)
    reset_request : Out(1)
    clear : In(1)
        Reset all but bus and time.
    busy : In(1)
        STATUS.BUSY.
    sweeping : Out(1)
        The counters are being cleared.
    """

    def __init__(self, parameters: Parameters, sources: Sequence[EventSource]) -> None:
        self._parameters = parameters
        self._sources = sources
        self._command = TableCommand(parameters)
        writes = {name: self._command.signature.members[name] for name in _TABLES}
        super().__init__(
            {
                "bus": In(Axi4LiteSignature(ADDRESS_BITS)),
                "irq": Out(1),
                "time": Out(_TIME_BITS),
                "config": Out(PortConfig),
                **writes,
                "group_written": In(1),
                "send": Out(stream.Signature(RingDoorbell)),
                "receive": Out(stream.Signature(RingDoorbell)),
                "completion": Out(stream.Signature(CqDoorbell)),
                "irq_set": In(1),
                "irq_clear": In(1),
                "irq_cq": In(16),
                "event_ring": Out(EventRing),
                "event_clear": Out(1),
                "event_consumer": Out(32),
                "event_written": In(1),
                "close": Out(CloseRequest),
                "close_done": In(1),
                "events": In(len(Counter)).array(len(sources)),
                "open_messages": In(32),
                "reset_request": Out(1),
                "clear": In(1),
                "busy": In(1),
                "sweeping": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        clear = ResetInserter(self.clear)
        m.submodules.subordinate = subordinate = Axi4LiteSubordinate()
        registers = RegisterFile(self._parameters)
        pages = DoorbellPages(self._parameters)
        counters = EventCounters(self._sources)
        command = self._command
        m.submodules.registers = clear(registers)
        m.submodules.pages = clear(pages)
        m.submodules.counters = clear(counters)
        m.submodules.command = clear(command)

        m.d.sync += self.time.eq(self.time + 1)
        wiring.connect(m, wiring.flipped(self.bus), subordinate.bus)

        access = subordinate.access
        beyond_registers = Signal()
        with m.If(access.begins):
            m.d.sync += beyond_registers.eq(access.ahead >= DOORBELL_BASE)
        is_doorbell = access.write & beyond_registers
        for part, chosen in ((registers.access, ~is_doorbell), (pages.access, is_doorbell)):
            m.d.comb += [
                part.request.eq(access.request & chosen),
                part.write.eq(access.write),
                part.address.eq(access.address),
                part.ahead.eq(access.ahead),
                part.begins.eq(access.begins),
                part.data.eq(access.data),
            ]
            with m.If(chosen):
                m.d.comb += access.done.eq(part.done)

        m.d.comb += [
            # A doorbell is not read.
            access.value.eq(registers.access.value),
            registers.busy.eq(self.busy),
            registers.time.eq(self.time),
            registers.open_messages.eq(self.open_messages),
            registers.irq_set.eq(self.irq_set),
            registers.irq_clear.eq(self.irq_clear),
            registers.irq_cq.eq(self.irq_cq),
            registers.event_written.eq(self.event_written),
            registers.close_done.eq(self.close_done),
            self.event_ring.eq(registers.event_ring),
            self.event_clear.eq(registers.event_clear),
            self.event_consumer.eq(registers.event_consumer),
            self.close.eq(registers.close),
            self.config.eq(registers.config),
            self.reset_request.eq(registers.reset_request),
            self.irq.eq(registers.irq),
            self.sweeping.eq(counters.busy),
            *(inner.eq(outer) for inner, outer in zip(counters.events, self.events, strict=True)),
        ]
        wiring.connect(m, registers.counter, counters.read)
        wiring.connect(m, registers.snapshot, counters.snapshot)
        wiring.connect(m, registers.command, command.command)

        connect_streams(m, command.post_send, pages.post_send)
        connect_streams(m, command.post_receive, pages.post_receive)
        connect_streams(m, command.post_completion, pages.post_completion)
        m.d.comb += [
            pages.busy.eq(self.busy),
            pages.row.eq(command.row),
            command.doorbells_empty.eq(pages.empty),
            command.cq_cleared.eq(self.irq_clear),
            command.group_written.eq(self.group_written),
        ]
        for name in _TABLES:
            wiring.connect(m, getattr(command, name), wiring.flipped(getattr(self, name)))
        for name in ("send", "receive", "completion"):
            connect_streams(m, getattr(pages, name), getattr(self, name))
        return m
