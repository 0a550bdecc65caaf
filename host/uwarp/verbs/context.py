"""Context, the opened device, and PD, the protection domain."""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uwarp.contract import (
    EVENT_TIME_LOG2,
    GROUP_MEMBERS,
    INLINE_OCTETS,
    MAGIC,
    MAX_SGE,
    MIN_MTU,
    TABLES,
    TICK_CYCLES,
    VERSION,
    CloseTarget,
    Control,
    Counter,
    DeviceStatus,
    Doorbell,
    EventType,
    Filter,
    Register,
    Table,
    doorbell_address,
)
from uwarp.device.base import Device
from uwarp.wire import (
    ip_number,
    ip_text,
    ipv4_number,
    ipv4_of,
    ipv4_text,
    is_group_mac,
    mac_number,
    mac_text,
)

from .addressing import GID
from .allocator import MapAllocator, Numbers
from .enums import IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE, ibv_port_state
from .errors import refuse
from .events import EVENT_TYPES, AsyncEvent, EventQueue, TerminateReport
from .groups import GroupTable
from .lifetime import Resource
from .ports import PortTable
from .translate import entry_time

if TYPE_CHECKING:
    from .completion import CQ
    from .queue_pair import QP
    from .region import MR

__all__ = ["PD", "Context", "DeviceAttr", "PortAttr"]

MAX_EVENTS = 4096  # that nobody has asked for; older ones are forgotten
SETTLE_CYCLES = 8192  # two of the longest datagrams through the pipeline, with the bus busy
STALL_SECONDS = 10.0  # without the device's clock moving


@dataclass(frozen=True)
class DeviceAttr:
    """What the device was built with.

    Attributes
    ----------
    max_sge, max_inline_data : of a send; a receive and a Read take one SGE (``max_sge_rd``).
    max_open_messages : that can be received at once, own Reads included (``max_qp_init_rd_atom``).
    max_qp_rd_atom, max_res_rd_atom : Reads of peers that can wait for an answer, all QPs together.
    max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach : multicast groups, members of
        each, and of all.
    max_timeout_us : bounds ``QPAttr.timeout_us``.
    """

    name: str
    version: int
    max_qp: int
    max_cq: int
    max_mr: int
    max_pd: int
    max_qp_wr: int
    max_cqe: int
    max_sge: int
    max_sge_rd: int
    max_inline_data: int
    max_open_messages: int
    max_qp_rd_atom: int
    max_qp_init_rd_atom: int
    max_res_rd_atom: int
    max_mcast_grp: int
    max_mcast_qp_attach: int
    max_total_mcast_qp_attach: int
    map_bits: int
    max_mtu: int
    clock_hz: int
    max_timeout_us: int
    phys_port_cnt: int = 1


@dataclass(frozen=True)
class PortAttr:
    """The port; MTUs in octets of an IP packet, whichever its version."""

    state: ibv_port_state
    max_mtu: int
    active_mtu: int
    mac: str
    ipv4: str
    ipv6: str | None = None
    gid_tbl_len: int = 1
    link_layer: int = IBV_LINK_LAYER_ETHERNET


class Context(Resource):
    """An opened device: everything else is made from it.

    Not thread-safe: one thread at a time uses a context and what was made from it. It resets the
    device, so a device has one context. Closing it stops the device's traffic; the device itself
    stays open.

    Parameters
    ----------
    device : Device
    mac : MAC address of the port, as text or number.
    ipv4 : IPv4 address of the port, as text or number.
    mtu : largest IP packet, octets: 576 to the device's ``max_mtu``.
    ipv6 : IPv6 address of the port, as text or number; None for none.

    Raises
    ------
    VerbsRDMAError
        ENODEV if it is no uwarp device, EPROTONOSUPPORT for another version of the contract,
        ETIMEDOUT if the reset does not end, EINVAL for an address or MTU that cannot be.
    """

    def __init__(
        self,
        *,
        device: Device,
        mac: str | int,
        ipv4: str | int,
        mtu: int = 1500,
        ipv6: str | int | None = None,
    ) -> None:
        super().__init__()
        self.device = device
        self.name = device.name
        self.mac, self.ipv4 = _address("mac", mac), _address("ipv4", ipv4)
        self.ipv6 = None if ipv6 is None else _address("ipv6", ipv6)
        magic, version = self._read(Register.MAGIC), self._read(Register.VERSION)
        if magic != MAGIC:
            raise refuse(f"{self.name} has magic {magic:#010x}, not {MAGIC:#010x}", errno.ENODEV)
        if version >> 16 != VERSION >> 16:
            raise refuse(
                f"{self.name} has version {version:#010x} of the contract; "
                f"this driver is for {VERSION:#010x}",
                errno.EPROTONOSUPPORT,
            )
        self._write(Register.CONTROL, Control.RESET)
        while self._read(Register.STATUS) & DeviceStatus.BUSY:
            self._progress()
        self._attr = self._query(version)
        if not MIN_MTU <= mtu <= self._attr.max_mtu:
            raise refuse(f"mtu is {mtu}; it takes {MIN_MTU} to {self._attr.max_mtu}")
        self.mtu = mtu
        self._neighbours: dict[GID, int] = {}
        self._qps: dict[int, QP] = {}
        self._cqs: dict[int, CQ] = {}
        self._regions: dict[int, MR] = {}
        self._keys: dict[int, int] = {}  # region row: key of its last region
        self._quiet_since: dict[int, int] = {}  # QP row: time when it last could receive
        self._qp_rows = Numbers("queue pairs", range(self._attr.max_qp))
        self._cq_rows = Numbers("completion queues", range(self._attr.max_cq))
        self._region_rows = Numbers("memory regions", range(self._attr.max_mr))
        self._pd_numbers = Numbers("protection domains", range(1, self._attr.max_pd + 1))
        self._map = MapAllocator(self._attr.map_bits)
        self._events = EventQueue()
        self._async_events: deque[AsyncEvent] = deque(maxlen=MAX_EVENTS)
        self._ports = PortTable(
            self._attr.max_qp, lambda row, octets: self._write_row(Table.PORT, row, octets)
        )
        self._groups = GroupTable(
            self._attr.max_mcast_grp,
            self._ports,
            lambda row, octets: self._write_row(Table.GROUP, row, octets),
            lambda loop: self._write(Register.FILTER, Filter.LOOP_GROUPS if loop else 0),
        )
        for register, value in (
            (Register.MAC_LOW, self.mac & 0xFFFF_FFFF),
            (Register.MAC_HIGH, self.mac >> 32),
            (Register.IPV4, self.ipv4),
            (Register.MTU, mtu),
        ):
            self._write(register, value)
        self._start_events()
        for word in range(Register.IPV6.value.count):
            self._write(Register.IPV6, (self.ipv6 or 0) >> 32 * word & 0xFFFF_FFFF, word)
        self._write(Register.CONTROL, Control.ENABLE)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._qps)} QPs, {len(self._regions)} MRs"
        return f"<Context {self.name} {ipv4_text(self.ipv4)} at {mac_text(self.mac)}, {state}>"

    def _query(self, version: int) -> DeviceAttr:
        clock = self._read(Register.CLOCK_HZ)
        trackers, reads = self._read(Register.N_TRACKER), self._read(Register.N_READ)
        groups = self._read(Register.N_GROUP)
        return DeviceAttr(
            name=self.name,
            version=version,
            max_qp=self._read(Register.N_QP),
            max_cq=self._read(Register.N_QP),
            max_mr=self._read(Register.N_REGION),
            max_pd=0xFFFF,
            max_qp_wr=1 << 15,
            max_cqe=1 << 16,
            max_sge=MAX_SGE,
            max_sge_rd=1,
            max_inline_data=INLINE_OCTETS,
            max_open_messages=trackers,
            max_qp_rd_atom=reads,
            max_qp_init_rd_atom=trackers,
            max_res_rd_atom=reads,
            max_mcast_grp=groups,
            max_mcast_qp_attach=GROUP_MEMBERS,
            max_total_mcast_qp_attach=groups * GROUP_MEMBERS,
            map_bits=self._read(Register.MAP_BITS),
            max_mtu=self._read(Register.MAX_MTU),
            clock_hz=clock,
            max_timeout_us=32767 * TICK_CYCLES * 1_000_000 // clock,
        )

    def query_device(self) -> DeviceAttr:
        return self._attr

    def query_port(self, port_num: int = 1) -> PortAttr:
        _check_port(port_num)
        self._check_open()
        return PortAttr(
            state=IBV_PORT_ACTIVE,
            max_mtu=self._attr.max_mtu,
            active_mtu=self.mtu,
            mac=mac_text(self.mac),
            ipv4=ipv4_text(self.ipv4),
            ipv6=None if self.ipv6 is None else ip_text(self.ipv6),
            gid_tbl_len=1 if self.ipv6 is None else 2,
        )

    def query_gid(self, port_num: int = 1, index: int = 0) -> GID:
        """An address of the port: at index 0 the IPv4 one, mapped; at index 1 the IPv6 one, if any.

        Raises EINVAL for another index.
        """
        _check_port(port_num)
        if index == 0:
            return GID(ipv4_text(self.ipv4))
        if index != 1 or self.ipv6 is None:
            last = 0 if self.ipv6 is None else 1
            raise refuse(f"GID index {index}; the port's last is {last}")
        return GID(ip_text(self.ipv6))

    def add_neighbour(self, ip: str | int, mac: str | int) -> None:
        """Say which MAC address datagrams for ``ip`` go to: the peer's, or a gateway's.

        An :class:`AH` takes it when it is made. A number of 32 bits is an IPv4 address. Raises
        EINVAL.
        """
        try:
            number = ip_number(ip) if isinstance(ip, str) else ip
        except ValueError as error:
            raise refuse(str(error)) from None
        ipv4 = number if 0 <= number < 1 << 32 and not isinstance(ip, str) else ipv4_of(number)
        if ipv4 is None:
            gid = GID(ip_text(_address("ipv6", ip)))
        else:
            gid = GID(ipv4_text(_address("ipv4", ipv4)))
        self._neighbours[gid] = _address("mac", mac)

    def _next_hop(self, gid: GID) -> int:
        """The MAC address for one station; the port's own for its own. Raises EHOSTUNREACH."""
        own = {GID(ipv4_text(self.ipv4))}
        if self.ipv6 is not None:
            own.add(GID(ip_text(self.ipv6)))
        if gid in own:
            return self.mac
        if gid not in self._neighbours:
            text = ip_text(gid.number)
            raise refuse(
                f"the MAC address of {text} is not known; "
                f'call context.add_neighbour("{text}", "02:...") first',
                errno.EHOSTUNREACH,
            )
        return self._neighbours[gid]

    @property
    def time(self) -> int:
        """The device's clock, in cycles."""
        low = self._read(Register.TIME_LOW)
        return self._read(Register.TIME_HIGH) << 32 | low

    def counters(self) -> dict[Counter, int]:
        """All counters of the device since it was reset, as they were in one moment."""
        self._check_open()
        self._write(Register.COUNTERS_SNAPSHOT, 1)
        return {
            counter: self._read(Register.SNAPSHOT_HIGH, counter) << 32
            | self._read(Register.SNAPSHOT_LOW, counter)
            for counter in Counter
        }

    def get_async_event(self, timeout: float | None = None) -> AsyncEvent:
        """The oldest event that nobody has taken; waits for one if there is none.

        Parameters
        ----------
        timeout : seconds of this process's clock; None waits for ever.

        Raises
        ------
        VerbsRDMAError
            ETIMEDOUT.
        """
        self._check_open()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._take_events()
            if self._async_events:
                return self._async_events.popleft()
            if deadline is not None and time.monotonic() >= deadline:
                raise refuse(f"no event within {timeout} s", errno.ETIMEDOUT)
            self.device.progress()

    def _start_events(self) -> None:
        memory = self._events.memory
        memory.map(self.device)
        self._write(Register.EVENT_ADDR_LOW, memory.dma_address & 0xFFFF_FFFF)
        self._write(Register.EVENT_ADDR_HIGH, memory.dma_address >> 32)
        self._write(Register.EVENT_RING, 1 << 8 | self._events.log2)

    def _take_events(self) -> None:
        """Note what the device has written to the event ring. QPs that have failed go to ERR."""
        entries = list(self._events.take())
        if not entries:
            return
        self._write(Register.EVENT_CONSUMER, self._events.consumer)
        failed = []
        for entry in entries:
            cause = EventType(entry.type)
            of_cq = cause in (EventType.CQ_FULL, EventType.DMA_CQE)
            cq = self._cqs.get(entry.number) if of_cq else None
            qp = None if of_cq else self._qps.get(entry.number)
            if cq is None and qp is None:
                continue
            when = entry_time(entry) << EVENT_TIME_LOG2
            report = TerminateReport.of(entry) if cause is EventType.TERMINATE else None
            event = AsyncEvent(EVENT_TYPES[cause], cause, qp, cq, when, report)
            self._async_events.append(event)
            if qp is not None and cause is EventType.DMA_WRITE:
                failed.append(qp)
        for qp in failed:
            qp._stop()

    def progress(self) -> None:
        """Let time go by on a simulated device, for a program that waits for no CQ."""
        self._check_open()
        self.device.progress()

    def _read(self, register: Register, index: int = 0) -> int:
        return self.device.read32(register.at(index))

    def _write(self, register: Register, value: int, index: int = 0) -> None:
        self.device.write32(register.at(index), value)

    def _ring_doorbell(self, doorbell: Doorbell, row: int, index: int) -> None:
        self.device.write32(doorbell_address(doorbell, row), index & 0xFFFF_FFFF)

    def _write_row(self, table: Table, row: int, octets: bytes) -> None:
        assert len(octets) == TABLES[table].size
        for index in range(0, len(octets), 4):
            word = int.from_bytes(octets[index : index + 4], "little")
            self._write(Register.TABLE_DATA, word, index // 4)
        self._write(Register.TABLE_SELECT, table << 16 | row)
        self._write(Register.TABLE_COMMAND, 1)

    _stalled: tuple[int, float] = (-1, 0.0)

    def _progress(self) -> int:
        """Let time go by and return it. Raises ETIMEDOUT if the device's clock has stopped."""
        self.device.progress()
        now, wall = self.time, time.monotonic()
        if now != self._stalled[0]:
            self._stalled = (now, wall)
        elif wall - self._stalled[1] > STALL_SECONDS:
            raise refuse(
                f"the clock of {self.name} has stood still for {STALL_SECONDS:.0f} s",
                errno.ETIMEDOUT,
            )
        return now

    def _wait_until(self, moment: int, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait for a time of the device's clock, no longer than until ``unless`` holds."""
        if self.time >= moment:
            return
        while not unless() and self._progress() < moment:
            pass

    def _close_messages(self, target: CloseTarget, row: int) -> None:
        """Close, as partial, the messages of a QP or of a region; returns when they are."""
        self._write(Register.MESSAGES_CLOSE, target << 16 | row)
        while self._read(Register.MESSAGES_CLOSE):
            self._progress()

    def _settle_receives(self, target: CloseTarget, row: int) -> None:
        """Close the messages of a QP or of a region whose row accepts no datagrams any more, and
        wait until nothing can be written for it: datagrams without a message have passed, too."""
        self._close_messages(target, row)
        moment = self.time + SETTLE_CYCLES
        self._wait_until(moment, unless=lambda: not self._read(Register.OPEN_MESSAGES))

    def _settle_sends(self) -> None:
        """Wait until a datagram that was being made has left, and its completion is written."""
        self._wait_until(self.time + SETTLE_CYCLES)

    def _take_interrupts(self) -> None:
        """Note which completion queues have fired, and what events there are."""
        if self._read(Register.EVENT_STATUS):
            self._write(Register.EVENT_STATUS, 1)
            self._take_events()
        for word in range(-(-self._attr.max_cq // 32)):
            fired = self._read(Register.IRQ_STATUS, word)
            if fired:
                self._write(Register.IRQ_STATUS, fired, word)
            for row, cq in self._cqs.items():
                if row // 32 == word and fired >> row % 32 & 1:
                    cq._fired = True

    def _release(self) -> None:
        self._write(Register.IRQ_ENABLE, 0)
        self._write(Register.CONTROL, 0)
        self._write(Register.EVENT_RING, 0)
        self._events.memory.release()


class PD(Resource):
    """Protection domain: a QP reaches the regions of its own only."""

    def __init__(self, context: Context) -> None:
        context._check_open()
        super().__init__(context)
        self.context = context
        self.number = context._pd_numbers.take()

    def __repr__(self) -> str:
        return f"<PD {self.number} of {self.context.name}{', closed' if self.closed else ''}>"

    def _release(self) -> None:
        self.context._pd_numbers.give(self.number)


def _check_port(port_num: int) -> None:
    if port_num != 1:
        raise refuse(f"port {port_num}; the device has port 1 only")


_PARSERS = {"mac": (mac_number, 48), "ipv4": (ipv4_number, 32), "ipv6": (ip_number, 128)}


def _address(kind: str, value: str | int) -> int:
    """A unicast MAC, IPv4 or IPv6 address as a number. Raises EINVAL."""
    parse, bits = _PARSERS[kind]
    try:
        number = parse(value) if isinstance(value, str) else value
    except ValueError as error:
        raise refuse(str(error)) from None
    multicast = {
        "mac": is_group_mac(number),
        "ipv4": number >> 28 >= 0xE,
        "ipv6": number >> 120 == 255,
    }
    foreign = kind == "ipv6" and ipv4_of(number) is not None
    if not 0 < number < 1 << bits or multicast[kind] or foreign:
        raise refuse(f"{kind} is {value!r}; it takes the address of one station")
    return number
