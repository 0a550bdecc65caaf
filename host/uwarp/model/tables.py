"""Tables of the NIC and the indices that go with their rows (device behaviour, section 1)."""

from __future__ import annotations

from dataclasses import dataclass, field

from uwarp.contract import (
    GROUP_ENTRY,
    GROUP_MEMBERS,
    PORT_ENTRY,
    QP_ENTRY,
    REGION_ENTRY,
    Access,
    CqeFlag,
    Parameters,
    QpState,
    Status,
    port_rows,
)

__all__ = ["GroupRow", "PortRow", "QpRow", "QueuePair", "RegionRow", "Tables"]


@dataclass(frozen=True)
class QpRow:
    """A row of the QP table; fields as in ``QP_ENTRY``."""

    state: int
    sq_log2: int
    rq_log2: int
    sq_wide: int
    terminate: int
    pd: int
    udp_port: int
    path_mtu: int
    send_cq: int
    recv_cq: int
    timeout: int
    opcodes: int
    send_burst: int
    sq_addr: int
    rq_addr: int
    peer_ip: int
    peer_mask: int
    peer_port: int
    send_rate: int

    @classmethod
    def from_int(cls, value: int) -> QpRow:
        return cls(**vars(QP_ENTRY.from_int(value)))

    def listens_to(self, ip: int, port: int) -> bool:
        """Whether the peer filter lets a sender pass."""
        return not (ip ^ self.peer_ip) & self.peer_mask and self.peer_port in (0, port)

    @property
    def receives(self) -> bool:
        return self.state in (QpState.RTR, QpState.RTS)

    @property
    def sends(self) -> bool:
        return self.state == QpState.RTS


@dataclass(frozen=True)
class RegionRow:
    """A row of the region table; fields as in ``REGION_ENTRY``."""

    valid: int
    mapped: int
    access: int
    key: int
    pd: int
    granule_log2: int
    base_to: int
    length: int
    dma_addr: int
    map_addr: int
    map_base: int

    @classmethod
    def from_int(cls, value: int) -> RegionRow:
        return cls(**vars(REGION_ENTRY.from_int(value)))

    def holds(self, to: int, octets: int) -> bool:
        """Whether [to, to + octets) is inside, in exact arithmetic."""
        return self.base_to <= to and to + octets <= self.base_to + self.length

    def dma_address(self, to: int) -> int:
        return (self.dma_addr + to - self.base_to) & (1 << 64) - 1

    def granule(self, to: int) -> int:
        """Number of the granule that octet ``to`` is in (4.2)."""
        return to - self.base_to >> self.granule_log2


@dataclass(frozen=True)
class PortRow:
    """A row of the port table; fields as in ``PORT_ENTRY``."""

    valid: int
    group: int
    port: int
    qpn: int

    @classmethod
    def from_int(cls, value: int) -> PortRow:
        return cls(**vars(PORT_ENTRY.from_int(value)))


@dataclass(frozen=True)
class GroupRow:
    """A row of the group table: the group's address, and the QP numbers of its members."""

    address: int
    members: tuple[int, ...]

    @classmethod
    def from_int(cls, value: int) -> GroupRow:
        row = GROUP_ENTRY.from_int(value)
        numbers = [getattr(row, f"member{index}") for index in range(GROUP_MEMBERS)]
        return cls(row.address, tuple(numbers[: row.count]))


@dataclass
class QueuePair:
    """A QP's row and its indices: 32 bits, free-running. ``failed``: see 8.1."""

    number: int
    row: QpRow = field(default_factory=lambda: QpRow.from_int(0))
    sq_producer: int = 0
    sq_consumer: int = 0
    rq_producer: int = 0
    rq_consumer: int = 0
    next_msn: int = 0
    failed: bool = False

    def load(self, row: QpRow) -> None:
        self.row = row
        self.failed = False
        if row.state == QpState.RESET:
            self.sq_producer = self.sq_consumer = 0
            self.rq_producer = self.rq_consumer = 0
            self.next_msn = 1

    @property
    def receives(self) -> bool:
        return self.row.receives and not self.failed

    def receive_cqe(self, fields: dict[str, int]) -> dict[str, int]:
        """Fields of a receive's or a Read's CQE; what is left once the QP has failed (8.1)."""
        if not self.failed:
            return fields
        return fields | {
            "status": Status.GENERAL_ERR,
            "flags": fields["flags"] & ~CqeFlag.MAPPED,
            "valid": 0,
            "head_map": 0,
            "tail_map": 0,
        }

    def take_receive(self) -> int:
        """Consume the next receive WQE; returns the low half of its index."""
        index = self.rq_consumer
        self.rq_consumer = (index + 1) & 0xFFFF_FFFF
        return index & 0xFFFF

    def take_send(self) -> int:
        """Consume the next send WQE; returns the low half of its index."""
        index = self.sq_consumer
        self.sq_consumer = (index + 1) & 0xFFFF_FFFF
        return index & 0xFFFF

    def take_msn(self) -> int:
        msn = self.next_msn
        self.next_msn = (msn + 1) & 0xFFFF_FFFF
        return msn


class Tables:
    """QPs, regions, UDP ports and groups. Completion queues are in ``completion``."""

    def __init__(self, parameters: Parameters) -> None:
        self._n_qp = parameters.n_qp
        self.qps = [QueuePair(number) for number in range(parameters.n_qp)]
        self.regions = [RegionRow.from_int(0)] * parameters.n_region
        self.ports = [PortRow.from_int(0)] * parameters.n_port
        self.groups = [GroupRow.from_int(0)] * parameters.n_group

    def _port_row(self, port: int) -> PortRow | None:
        """The port's row in the lowest bank that has one, or None."""
        for bank, row in enumerate(port_rows(port, self._n_qp)):
            entry = self.ports[bank * self._n_qp + row]
            if entry.valid and entry.port == port:
                return entry
        return None

    def qp_of_port(self, port: int) -> int | None:
        """QP number that the port table gives, or None."""
        row = self._port_row(port)
        return None if row is None or row.group else row.qpn

    def members_of(self, address: int, port: int) -> tuple[int, ...]:
        """QP numbers that receive what comes to a group's address and port; none of others."""
        row = self._port_row(port)
        if row is None or not row.group or row.qpn >= len(self.groups):
            return ()
        group = self.groups[row.qpn]
        return group.members if group.address == address else ()

    def region_of(self, stag: int) -> RegionRow | None:
        """The valid row that an STag's upper 24 bits name, whatever its key; or None."""
        index = stag >> 8
        if index < len(self.regions) and self.regions[index].valid:
            return self.regions[index]
        return None

    def allowed_sge(
        self, pd: int, lkey: int, addr: int, length: int, access: Access
    ) -> RegionRow | None:
        """The region of an SGE if a QP of ``pd`` may use all of it with ``access``, else None."""
        region = self.region_of(lkey)
        if (
            region is None
            or region.key != lkey & 0xFF
            or region.pd != pd
            or access & ~region.access
            or not region.holds(addr, length)
        ):
            return None
        return region
