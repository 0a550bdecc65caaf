"""A host for tests: memory, tables, rings, polling, over what has ``read32`` and ``write32``."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

from uwarp.contract import (
    CQE,
    EVENT,
    RECV_WQE,
    SEND_WQE,
    SEND_WQE_EXTENSION,
    TABLES,
    Access,
    Control,
    Counter,
    Doorbell,
    EventType,
    QpState,
    Register,
    Table,
    counter_address,
    doorbell_address,
    outcome_sum,
    port_rows,
)
from uwarp.model import MemoryFault
from uwarp.wire import Opcode, Segment, UdpFrame

MAC = 0x02_00_00_00_00_01
IPV4 = 0x0A_00_00_01
IPV6 = 0xFD00 << 112 | 1
PEER_MAC = 0x02_00_00_00_00_02
PEER_IPV4 = 0x0A_00_00_02
PEER_IPV6 = 0xFD00 << 112 | 2
PEER_PORT = 4791
ALL_ACCESS = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
ALL_OPCODES = 0xFFFF


class Bus(Protocol):
    """Registers of a device."""

    def read32(self, address: int) -> int: ...

    def write32(self, address: int, value: int) -> None: ...


class HostMemory:
    """``size`` octets at DMA address ``base``, filled with 0xA5; keeps a log of writes."""

    FILL = 0xA5

    def __init__(self, size: int = 1 << 20, base: int = 0x1_0000_0000) -> None:
        self.base = base
        self.octets = bytearray([self.FILL]) * size
        self.writes: list[tuple[int, int]] = []
        self._used = 0

    def _place(self, address: int, length: int) -> slice:
        start = address - self.base
        if start < 0 or start + length > len(self.octets):
            raise MemoryFault(f"{length} octets at {address:#x}")
        return slice(start, start + length)

    def read(self, address: int, length: int) -> bytes:
        return bytes(self.octets[self._place(address, length)])

    def write(self, address: int, data: bytes) -> None:
        self.octets[self._place(address, len(data))] = data
        self.writes.append((address, len(data)))

    def allocate(self, size: int, align: int = 64) -> int:
        """DMA address of ``size`` octets that nobody else has."""
        start = -(-self._used // align) * align
        if start + size > len(self.octets):
            raise MemoryError(f"{size} octets of host memory; {len(self.octets) - start} left")
        self._used = start + size
        return self.base + start


@dataclass
class Region:
    """What a test needs to know of a region that it registered."""

    stag: int
    base_to: int
    length: int
    address: int
    map_address: int


@dataclass
class Ring:
    """A ring in host memory, and the host's index into it."""

    address: int
    log2: int
    entry: int
    index: int = 0

    def slot(self) -> int:
        return self.address + self.entry * (self.index & (1 << self.log2) - 1)


@dataclass
class Host:
    """Drives a device as a driver would. Row numbers are the caller's choice."""

    device: Bus
    memory: HostMemory
    n_qp: int = 64
    cqs: dict[int, Ring] = field(default_factory=dict)
    sqs: dict[int, Ring] = field(default_factory=dict)
    rqs: dict[int, Ring] = field(default_factory=dict)
    qps: dict[int, dict[str, int]] = field(default_factory=dict)
    events: Ring | None = None

    def get(self, register: Register, index: int = 0) -> int:
        return self.device.read32(register.at(index))

    def set(self, register: Register, value: int, index: int = 0) -> None:
        self.device.write32(register.at(index), value)

    def ring(self, doorbell: Doorbell, page: int, value: int) -> None:
        self.device.write32(doorbell_address(doorbell, page), value & 0xFFFF_FFFF)

    def counter(self, counter: Counter) -> int:
        low = self.device.read32(counter_address(counter))
        return low | self.device.read32(counter_address(counter) + 4) << 32

    def counters(self) -> dict[Counter, int]:
        return {counter: self.counter(counter) for counter in Counter}

    def snapshot(self) -> dict[Counter, int]:
        """All counters as of now."""
        self.set(Register.COUNTERS_SNAPSHOT, 1)
        return {
            counter: self.get(Register.SNAPSHOT_LOW, counter)
            | self.get(Register.SNAPSHOT_HIGH, counter) << 32
            for counter in Counter
        }

    def check_sum(self) -> None:
        """Every frame ends in exactly one counter."""
        counters = self.counters()
        assert outcome_sum(counters) == counters[Counter.RX_FRAMES], counters

    def start(self, mac: int = MAC, ipv4: int = IPV4, mtu: int = 1500, ipv6: int = IPV6) -> None:
        self.set(Register.MAC_LOW, mac & 0xFFFF_FFFF)
        self.set(Register.MAC_HIGH, mac >> 32)
        self.set(Register.IPV4, ipv4)
        for word in range(4):
            self.set(Register.IPV6, ipv6 >> 32 * word & 0xFFFF_FFFF, word)
        self.set(Register.MTU, mtu)
        self.set(Register.CONTROL, Control.ENABLE)

    def write_row(self, table: Table, row: int, **fields: int) -> None:
        value = TABLES[table].to_int(**fields)
        for word in range(TABLES[table].size // 4):
            self.set(Register.TABLE_DATA, value >> 32 * word & 0xFFFF_FFFF, word)
        self.set(Register.TABLE_SELECT, table << 16 | row)
        self.set(Register.TABLE_COMMAND, 1)

    def _ring(self, entry: int, log2: int) -> Ring:
        """A ring of ``2 ** log2`` entries of ``entry`` octets, at a multiple of its size."""
        size = entry << log2
        return Ring(self.memory.allocate(size, max(64, size)), log2, entry)

    def add_cq(self, number: int, log2: int = 6) -> None:
        ring = self._ring(CQE.size, log2)
        self.memory.write(ring.address, bytes(CQE.size << log2))
        self.cqs[number] = ring
        self.write_row(Table.CQ, number, valid=1, log2=log2, addr=ring.address)

    def moderate(self, number: int, count: int, ticks: int) -> None:
        self.write_row(Table.MODERATION, number, count=count, ticks=ticks)

    def add_events(self, log2: int = 4) -> None:
        """Set the event ring up."""
        ring = self._ring(EVENT.size, log2)
        self.memory.write(ring.address, bytes(EVENT.size << log2))
        self.set(Register.EVENT_ADDR_LOW, ring.address & 0xFFFF_FFFF)
        self.set(Register.EVENT_ADDR_HIGH, ring.address >> 32)
        self.set(Register.EVENT_RING, 1 << 8 | log2)
        self.events = ring

    def poll_events(self, *, consume: bool = True) -> list[tuple[EventType, int]]:
        """Types and numbers of the events that have come; tells the device that they were."""
        ring = self.events
        assert ring is not None
        found = []
        while True:
            event = EVENT.unpack(self.memory.read(ring.slot(), EVENT.size))
            if event.phase != 1 - (ring.index >> ring.log2 & 1):
                break
            ring.index += 1
            found.append((EventType(event.type), event.number))
        if consume:
            self.set(Register.EVENT_CONSUMER, ring.index & 0xFFFF_FFFF)
        return found

    def close_messages(self, target: int, row: int) -> None:
        """Ask that open messages be closed; does not wait for it."""
        self.set(Register.MESSAGES_CLOSE, target << 16 | row)

    def add_qp(self, number: int, *, port: int, ring_log2: int = 4, **fields: int) -> None:
        """A QP in RTS that accepts everything; ``fields`` go over the defaults of its row."""
        entry = SEND_WQE.size + (SEND_WQE_EXTENSION.size if fields.get("sq_wide") else 0)
        sq, rq = self._ring(entry, ring_log2), self._ring(RECV_WQE.size, ring_log2)
        self.sqs[number], self.rqs[number] = sq, rq
        row = {
            "state": QpState.RTS,
            "sq_log2": ring_log2,
            "rq_log2": ring_log2,
            "pd": 1,
            "udp_port": port,
            "path_mtu": 1500,
            "send_cq": 0,
            "recv_cq": 0,
            "timeout": 100,
            "opcodes": ALL_OPCODES,
            "sq_addr": sq.address // 64,
            "rq_addr": rq.address // 64,
        } | fields
        self.qps.pop(number, None)
        self.write_row(Table.QP, number, state=QpState.RESET)
        self.modify_qp(number, **row)
        self.add_port(port, number)

    def modify_qp(self, number: int, **fields: int) -> None:
        """Write the QP's row anew with some fields changed."""
        self.qps[number] = self.qps.get(number, {}) | fields
        self.write_row(Table.QP, number, **self.qps[number])

    def add_port(self, port: int, qpn: int, bank: int = 0, group: int = 0) -> None:
        row = bank * self.n_qp + port_rows(port, self.n_qp)[bank]
        self.write_row(Table.PORT, row, valid=1, port=port, qpn=qpn, group=group)

    def set_group(self, row: int, address: int, *members: int) -> None:
        """Write a row of the group table; ``address`` has 128 bits."""
        numbers = {f"member{index}": qpn for index, qpn in enumerate(members)}
        self.write_row(Table.GROUP, row, count=len(members), address=address, **numbers)

    def add_region(self, index: int, length: int, *, align: int = 64, **fields: int) -> Region:
        """A region of ``length`` octets; ``fields`` go over the defaults of its row.

        Its map's octets in host memory (if ``mapped``) begin as HostMemory.FILL.
        """
        row = {"valid": 1, "access": ALL_ACCESS, "key": 0x5A, "pd": 1, "base_to": 0x10_0000}
        row |= {"granule_log2": 6, "length": length} | fields
        if "dma_addr" not in row:
            row["dma_addr"] = self.memory.allocate(length, align)
        if "map_addr" not in row:
            octets = (length >> row["granule_log2"]) // 8 + 1
            row["map_addr"] = self.memory.allocate(octets) if row.get("mapped") else 0
        self.write_row(Table.REGION, index, **row)
        stag = index << 8 | row["key"]
        return Region(stag, row["base_to"], length, row["dma_addr"], row["map_addr"])

    def post_send(
        self,
        qpn: int,
        *,
        payload: Region | None = None,
        inline: bytes = b"",
        **fields: int,
    ) -> None:
        """Post a send WQE; ``payload`` gives its SGE all of a region, if ``fields`` do not say.

        In a wide ring ``fields`` may be those of the extension, too, and ``inline`` are octets
        over them.
        """
        wqe = {
            "flags": 1,
            "dest_ip": PEER_IPV4,
            "dest_port": PEER_PORT,
            "dest_mac": PEER_MAC,
            "hop_limit": 64,
        }
        if payload is not None:
            wqe |= {"num_sge": 1, "sge_addr": payload.base_to, "sge_lkey": payload.stag}
            wqe |= {"length": payload.length, "sge_length": payload.length}
        wqe |= fields
        if "length" in fields and payload is not None and "sge_length" not in fields:
            wqe["sge_length"] = fields["length"]
        ring = self.sqs[qpn]
        names = {field.name for field in SEND_WQE_EXTENSION.named_fields} & wqe.keys()
        extension = SEND_WQE_EXTENSION.pack(**{name: wqe.pop(name) for name in names})
        octets = SEND_WQE.pack(**wqe) + inline + extension[len(inline) :]
        self.memory.write(ring.slot(), octets[: ring.entry])
        ring.index += 1
        self.ring(Doorbell.SQ_PRODUCER, qpn, ring.index)

    def post_receive(self, qpn: int, addr: int, length: int, lkey: int) -> None:
        ring = self.rqs[qpn]
        wqe = RECV_WQE.pack(sge0_addr=addr, sge0_length=length, sge0_lkey=lkey)
        self.memory.write(ring.slot(), wqe)
        ring.index += 1
        self.ring(Doorbell.RQ_PRODUCER, qpn, ring.index)

    def poll(self, number: int = 0, *, consume: bool = True) -> SimpleNamespace | None:
        """The next CQE of a CQ, or None; tells the device that it was consumed."""
        ring = self.cqs[number]
        cqe = CQE.unpack(self.memory.read(ring.slot(), CQE.size))
        if cqe.phase != 1 - (ring.index >> ring.log2 & 1):
            return None
        ring.index += 1
        if consume:
            self.ring(Doorbell.CQ_CONSUMER, number, ring.index)
        return cqe

    def poll_all(self, number: int = 0) -> list[SimpleNamespace]:
        cqes = []
        while (cqe := self.poll(number)) is not None:
            cqes.append(cqe)
        return cqes


def frame_of(segment: Segment, port: int, **fields: Any) -> bytes:
    """The frame by which the peer sends ``segment`` to UDP port ``port``."""
    return frame_around(segment.to_datagram(), port, **fields)


def frame_around(payload: bytes, port: int, **fields: Any) -> bytes:
    """The peer's frame with any UDP payload; ``fields`` of UdpFrame go over the addresses."""
    six = fields.get("ip_version") == 6
    addresses = {
        "dest_mac": MAC,
        "source_mac": PEER_MAC,
        "source_ip": PEER_IPV6 if six else PEER_IPV4,
        "dest_ip": IPV6 if six else IPV4,
        "source_port": PEER_PORT,
        "dest_port": port,
    }
    return UdpFrame(payload=payload, **(addresses | fields)).encode()


def record(
    region: Region, offset: int, mlen: int, mo: int, payload: bytes, msn: int = 1
) -> Segment:
    """A Write-Record segment of a message that begins ``offset`` octets into a region."""
    return Segment(
        opcode=Opcode.WRITE_RECORD,
        payload=payload,
        last=mo + len(payload) == mlen,
        stag=region.stag,
        to=region.base_to + offset + mo,
        msn=msn,
        mo=mo,
        mlen=mlen,
    )
