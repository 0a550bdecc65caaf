"""Register map and doorbell pages as seen from the bus (device behaviour, section 1)."""

from __future__ import annotations

from typing import Protocol

from uwarp.contract import (
    DOORBELL_BASE,
    DOORBELL_PAGE,
    MAGIC,
    REGISTERS,
    VERSION,
    CloseTarget,
    Control,
    Doorbell,
    Filter,
    Parameters,
    Register,
    Table,
)

from .clock import Clock
from .events import EventRing
from .network import Port

__all__ = ["RegisterFile", "Target"]

_WORD = 0xFFFF_FFFF
_DOORBELLS = {item.value: item for item in Doorbell}
_FILTER = Filter.MULTICAST | Filter.PROMISCUOUS | Filter.LOOP_GROUPS
_PLACES = {
    register.at(index): (register, index)
    for register in REGISTERS
    for index in range(register.value.count)
}


class Target(Protocol):
    """What the registers act on."""

    counters: list[int]
    irq_status: list[int]

    @property
    def open_messages(self) -> int: ...

    def soft_reset(self) -> None: ...

    def load_row(self, table: Table, row: int, value: int) -> None: ...

    def close_messages(self, target: CloseTarget, row: int) -> None: ...

    def ring(self, doorbell: Doorbell, page: int, value: int) -> None: ...


class RegisterFile:
    """Registers of BAR 0. Those that hold nothing but a value are kept here.

    STATUS.BUSY and a 1 in MESSAGES_CLOSE are never seen: neither takes the model time.
    """

    def __init__(
        self, parameters: Parameters, clock: Clock, port: Port, events: EventRing, target: Target
    ) -> None:
        self._clock = clock
        self._port = port
        self._events = events
        self._target = target
        self.enabled = False
        self.irq_enabled = False
        self._time_high = 0
        self._counter_high = 0
        self._snapshot = [0] * Register.SNAPSHOT_LOW.value.count
        self._select = 0
        self._data = [0] * Register.TABLE_DATA.value.count
        self._constants = {
            Register.MAGIC: MAGIC,
            Register.VERSION: VERSION,
            Register.N_QP: parameters.n_qp,
            Register.N_REGION: parameters.n_region,
            Register.N_TRACKER: parameters.n_tracker,
            Register.N_CLOSED: parameters.n_closed,
            Register.MAP_BITS: parameters.map_bits,
            Register.MAX_MTU: parameters.max_mtu,
            Register.CLOCK_HZ: parameters.clock_hz,
            Register.N_GROUP: parameters.n_group,
            Register.N_READ: parameters.n_read,
        }

    def read(self, address: int) -> int:
        if address not in _PLACES:
            return 0
        register, index = _PLACES[address]
        if register in self._constants:
            return self._constants[register]
        match register:
            case Register.CONTROL:
                return Control.ENABLE if self.enabled else 0
            case Register.TIME_LOW:
                self._time_high = self._clock.time >> 32
                return self._clock.time & _WORD
            case Register.TIME_HIGH:
                return self._time_high
            case Register.OPEN_MESSAGES:
                return self._target.open_messages
            case Register.MAC_LOW:
                return self._port.mac & _WORD
            case Register.MAC_HIGH:
                return self._port.mac >> 32
            case Register.IPV4:
                return self._port.ipv4
            case Register.MTU:
                return self._port.mtu
            case Register.FILTER:
                return self._port.filter
            case Register.IPV6:
                return self._port.ipv6 >> 32 * index & _WORD
            case Register.IRQ_ENABLE:
                return int(self.irq_enabled)
            case Register.EVENT_STATUS:
                return self._events.status
            case Register.EVENT_ADDR_LOW:
                return self._events.addr & _WORD
            case Register.EVENT_ADDR_HIGH:
                return self._events.addr >> 32
            case Register.EVENT_RING:
                return self._events.log2 | self._events.in_use << 8
            case Register.IRQ_STATUS:
                status = self._target.irq_status
                return status[index] if index < len(status) else 0
            case Register.TABLE_SELECT:
                return self._select
            case Register.TABLE_DATA:
                return self._data[index]
            case Register.COUNTERS_LOW:
                counters = self._target.counters
                value = counters[index] if index < len(counters) else 0
                self._counter_high = value >> 32 & _WORD
                return value & _WORD
            case Register.COUNTERS_HIGH:
                return self._counter_high
            case Register.SNAPSHOT_LOW:
                return self._snapshot[index] & _WORD
            case Register.SNAPSHOT_HIGH:
                return self._snapshot[index] >> 32 & _WORD
            case _:
                return 0

    def write(self, address: int, value: int) -> None:
        if address >= DOORBELL_BASE:
            page, place = divmod(address - DOORBELL_BASE, DOORBELL_PAGE)
            if place in _DOORBELLS:
                self._target.ring(_DOORBELLS[place], page, value)
            return
        if address not in _PLACES:
            return
        register, index = _PLACES[address]
        match register:
            case Register.CONTROL:
                self.enabled = bool(value & Control.ENABLE)
                if value & Control.RESET:
                    self._target.soft_reset()
            case Register.MAC_LOW:
                self._port.mac = self._port.mac >> 32 << 32 | value
            case Register.MAC_HIGH:
                self._port.mac = (value & 0xFFFF) << 32 | self._port.mac & _WORD
            case Register.IPV4:
                self._port.ipv4 = value
            case Register.MTU:
                self._port.mtu = value & 0xFFFF
            case Register.FILTER:
                self._port.filter = value & _FILTER
            case Register.IPV6:
                self._port.ipv6 &= ~(_WORD << 32 * index)
                self._port.ipv6 |= value << 32 * index
            case Register.IRQ_ENABLE:
                self.irq_enabled = bool(value & 1)
            case Register.EVENT_STATUS:
                self._events.status &= ~value
            case Register.EVENT_ADDR_LOW:
                self._events.addr = self._events.addr >> 32 << 32 | value
            case Register.EVENT_ADDR_HIGH:
                self._events.addr = value << 32 | self._events.addr & _WORD
            case Register.EVENT_RING:
                self._events.set_up(log2=value & 0xF, in_use=bool(value >> 8 & 1))
            case Register.EVENT_CONSUMER:
                self._events.consumer = value
            case Register.IRQ_STATUS:
                if index < len(self._target.irq_status):
                    self._target.irq_status[index] &= ~value
            case Register.TABLE_SELECT:
                self._select = value & 0xFF_FFFF
            case Register.TABLE_DATA:
                self._data[index] = value
            case Register.TABLE_COMMAND:
                table, row = divmod(self._select, 1 << 16)
                if table in set(Table):
                    words = (word << 32 * place for place, word in enumerate(self._data))
                    self._target.load_row(Table(table), row, sum(words))
            case Register.MESSAGES_CLOSE:
                target, row = divmod(value & 0xFF_FFFF, 1 << 16)
                if target in set(CloseTarget):
                    self._target.close_messages(CloseTarget(target), row)
            case Register.COUNTERS_SNAPSHOT:
                self._snapshot[: len(self._target.counters)] = self._target.counters
