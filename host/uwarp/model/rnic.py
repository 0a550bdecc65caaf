"""The reference NIC as a whole."""

from __future__ import annotations

from collections import deque
from enum import Flag

from uwarp.contract import CloseTarget, Counter, Doorbell, Filter, Parameters, QpState, Table
from uwarp.wire import ETHERNET, is_group_mac

from .answers import Answers
from .clock import Clock
from .closed import ClosedMessages
from .completion import CompletionQueues
from .dma import Dma
from .events import EventRing
from .faults import QpDma
from .memory import Memory
from .network import Port
from .receive import Receiver
from .registers import RegisterFile
from .tables import GroupRow, PortRow, QpRow, RegionRow, Tables
from .terminates import Reporter
from .trackers import Trackers
from .transmit import Transmitter
from .verdict import examine

__all__ = ["Rnic", "Way"]

_MANAGEMENT_FRAMES = 1024


class Way(Flag):
    """Where a frame that the NIC sends goes to (7.10): the MAC, its own receive side, or both."""

    MAC = 1
    LOOP = 2


class Rnic:
    """Software reading of ``docs/device.md``: the golden model of every testbench.

    A frame that is received has had all its effects when :meth:`receive` returns, a register access
    when it returns, and a message that times out completes in the very cycle, as does an interrupt
    that moderation held back. Time goes by in :meth:`advance` only. There is no receive buffer, so
    that DROP_OVERFLOW stays 0.

    Bursts are cut at multiples of 128 octets (section 8). Of a write burst that fails, the words
    that memory takes are written.

    Parameters
    ----------
    parameters : sizes of tables and memories.
    memory : what DMA reaches.

    Attributes
    ----------
    management : the last frames handed to the management port, oldest first.
    counters : values by ``Counter``.
    """

    def __init__(self, parameters: Parameters, memory: Memory) -> None:
        self.parameters = parameters
        self.memory = memory
        self.management: deque[bytes] = deque(maxlen=_MANAGEMENT_FRAMES)
        self._clock = Clock()
        self.soft_reset()

    def soft_reset(self) -> None:
        """As CONTROL.RESET: all but the time starts anew."""
        parameters, clock = self.parameters, self._clock
        port = Port()
        self.management.clear()
        self.counters = [0] * len(Counter)
        self._port = port
        self._tables = Tables(parameters)
        dma = Dma(self.memory, self.counters)
        self._events = EventRing(dma, clock, self.counters)
        qp_dma = QpDma(dma, self._events)
        self._completions = CompletionQueues(
            parameters.n_cq, dma, self._events, clock, self.counters
        )
        closed = ClosedMessages(parameters.n_closed, clock)
        self._trackers = Trackers(
            parameters, qp_dma, self._tables, clock, self._completions, closed
        )
        answers = self._answers = Answers(parameters.n_read)
        self._receiver = Receiver(
            qp_dma,
            self._tables,
            self._completions,
            self._trackers,
            closed,
            answers,
            Reporter(clock, answers),
            self._events,
        )
        self._transmitter = Transmitter(
            qp_dma,
            self._tables,
            self._completions,
            self._trackers,
            answers,
            port,
            clock,
            self.counters,
        )
        self.irq_status = self._completions.fired
        self._registers = RegisterFile(parameters, clock, port, self._events, self)

    @property
    def time(self) -> int:
        """Clock cycles since power-up, modulo 2^47."""
        return self._clock.time

    @property
    def irq(self) -> bool:
        """Level of the interrupt line."""
        pending = any(self.irq_status) or bool(self._events.status)
        return self._registers.irq_enabled and pending

    @property
    def open_messages(self) -> int:
        return len(self._trackers.all_open())

    def read32(self, address: int) -> int:
        """Read a register. Raises ValueError for an address that is not a whole word's."""
        _check_word(address, 0)
        return self._registers.read(address)

    def write32(self, address: int, value: int) -> None:
        """Write a register or ring a doorbell.

        Raises ValueError as :meth:`read32`, and for a value of more than 32 bits.
        """
        _check_word(address, value)
        self._registers.write(address, value)

    def receive(self, frame: bytes, error: bool = False) -> None:
        """A frame off the wire, without FCS; ``error`` if the MAC flagged it."""
        if not self._registers.enabled:
            return
        self.counters[Counter.RX_FRAMES] += 1
        frame = bytes(frame)
        verdict = examine(frame, error, self._port, self._tables)
        if isinstance(verdict, Counter):
            self.counters[verdict] += 1
            if verdict is Counter.RX_MANAGEMENT:
                self.management.append(frame)
            return
        for number, datagram in enumerate(verdict.copies()):
            self.counters[self._receiver.accept(datagram)] += 1
            self.counters[Counter.RX_COPIES] += number > 0

    def next_frame(self) -> bytes | None:
        """The next frame that goes to the MAC, without FCS, or None if there is no work.

        A WQE completes in the call that gives its last frame; WQEs that fail complete on the way.
        Frames that come in again (7.10) are received on the way, too.
        """
        while (sent := self.transmit()) is not None:
            frame, way = sent
            if Way.LOOP in way:
                self.receive(frame)
            if Way.MAC in way:
                return frame
        return None

    def transmit(self) -> tuple[bytes, Way] | None:
        """The next frame to send, without FCS, and where it goes to, or None.

        Unlike :meth:`next_frame` it leaves it to the caller, who may let time go by meanwhile, to
        receive a frame that comes in again.
        """
        frame = self._transmitter.next_frame() if self._registers.enabled else None
        if frame is None:
            return None
        mac = ETHERNET.unpack(frame)["destination"]
        if mac == self._port.mac:
            return frame, Way.LOOP
        if is_group_mac(mac) and self._port.filter & Filter.LOOP_GROUPS:
            return frame, Way.MAC | Way.LOOP
        return frame, Way.MAC

    def advance(self, cycles: int) -> None:
        """Let clock cycles go by. Messages that time out complete, and CQs whose moderation ends
        fire, each at its time."""
        if cycles < 0:
            raise ValueError(f"{cycles} cycles; time goes forward")
        end = self._clock.cycles + cycles
        while (due := self._next_due()) is not None and due <= end:
            self._clock.cycles = max(due, self._clock.cycles)
            self._trackers.close_due()
            self._completions.fire_due()
        self._clock.cycles = end

    def _next_due(self) -> int | None:
        dues = (self._trackers.next_due(), self._completions.next_due())
        return min((due for due in dues if due is not None), default=None)

    def load_row(self, table: Table, row: int, value: int) -> None:
        """Write a table row, given as one number. A row beyond the table is none."""
        if table is Table.QP and row < self.parameters.n_qp:
            qp = self._tables.qps[row]
            qp.load(QpRow.from_int(value))
            self._transmitter.load(qp)
            if qp.row.state == QpState.RESET:
                self._transmitter.forget(qp)
        elif table is Table.REGION and row < self.parameters.n_region:
            self._tables.regions[row] = RegionRow.from_int(value)
        elif table is Table.CQ and row < self.parameters.n_cq:
            self._completions.load(row, value)
        elif table is Table.MODERATION and row < self.parameters.n_cq:
            self._completions.load_moderation(row, value)
        elif table is Table.PORT and row < self.parameters.n_port:
            self._tables.ports[row] = PortRow.from_int(value)
        elif table is Table.GROUP and row < self.parameters.n_group:
            self._tables.groups[row] = GroupRow.from_int(value)

    def close_messages(self, target: CloseTarget, row: int) -> None:
        """Write MESSAGES_CLOSE."""
        self._trackers.close_all(target, row)
        self._answers.drop(target, row)

    def ring(self, doorbell: Doorbell, page: int, value: int) -> None:
        """Write a doorbell; a page beyond the tables is none."""
        if page >= self.parameters.n_qp:
            return
        qp = self._tables.qps[page]
        match doorbell:
            case Doorbell.SQ_PRODUCER:
                qp.sq_producer = value
            case Doorbell.RQ_PRODUCER:
                qp.rq_producer = value
            case Doorbell.CQ_CONSUMER:
                self._completions.consume(page, value)
            case Doorbell.CQ_ARM | Doorbell.CQ_ARM_SOLICITED:
                self._completions.arm(page, value, doorbell)


def _check_word(address: int, value: int) -> None:
    if address < 0 or address % 4:
        raise ValueError(f"address {address:#x}; registers are aligned words")
    if not 0 <= value < 1 << 32:
        raise ValueError(f"value {value:#x}; registers take 32 bits")
