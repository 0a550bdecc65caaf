"""Reads: whose buffer may be a sink, and the requests that wait for an answer (7.7, 7.8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from uwarp.contract import Access, CloseTarget
from uwarp.wire import DEFAULT_GRANULE_LOG2, Opcode, ReadRequest, ipv4_of, segments

from .tables import QueuePair, RegionRow, Tables
from .verdict import Datagram

__all__ = ["Response", "Responses", "read_sink"]


def read_sink(tables: Tables, pd: int, lkey: int, addr: int, length: int) -> RegionRow | None:
    """The region of a Read's SGE, if octets that come back may be placed and marked there.

    Responses are cut at multiples of the default granule, hence so must the sink's map be.
    """
    region = tables.allowed_sge(pd, lkey, addr, length, Access.LOCAL_WRITE)
    if region is None or not region.mapped or region.granule_log2 != DEFAULT_GRANULE_LOG2:
        return None
    return region


@dataclass
class Response:
    """A Read Request accepted: ``address`` is the DMA address of its first octet."""

    qpn: int
    dest_mac: int
    dest_ip: int
    dest_port: int
    msn: int
    request: ReadRequest
    address: int
    _plan: Iterator[tuple[int, int]] | None = None

    @classmethod
    def to(cls, datagram: Datagram, request: ReadRequest, address: int) -> Response:
        return cls(
            qpn=datagram.qpn,
            dest_mac=datagram.source_mac,
            dest_ip=datagram.source_ip,
            dest_port=datagram.source_port,
            msn=datagram.segment.msn,
            request=request,
            address=address,
        )

    def owner(self, target: CloseTarget) -> int:
        """Row of the QP that answers, or of the region that is read."""
        return self.qpn if target is CloseTarget.QP else self.request.source_stag >> 8

    @property
    def ip_version(self) -> int:
        return 6 if ipv4_of(self.dest_ip) is None else 4

    def next_segment(self, path_mtu: int) -> tuple[int, int]:
        """Offset and octets of the next segment; ``path_mtu`` is the QP's, looked at once."""
        if self._plan is None:
            self._plan = segments(
                Opcode.READ_RESPONSE_RECORD,
                self.request.size,
                path_mtu,
                to=self.request.sink_to,
                ip_version=self.ip_version,
            )
        return next(self._plan)


class Responses:
    """Requests that wait, the oldest first: from when they are accepted until their last segment
    is cut, ``slots`` at most."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._waiting: list[Response] = []

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self._slots

    def add(self, response: Response) -> None:
        self._waiting.append(response)

    def first_of(self, qp: QueuePair) -> Response | None:
        return next((item for item in self._waiting if item.qpn == qp.number), None)

    def remove(self, response: Response) -> None:
        """It is sent, or cannot be."""
        self._waiting.remove(response)

    def forget(self, qp: QueuePair) -> None:
        """The QP was reset."""
        self.drop(CloseTarget.QP, qp.number)

    def drop(self, target: CloseTarget, row: int) -> None:
        """Drop those of a QP, or from a region (4.6)."""
        self._waiting = [item for item in self._waiting if item.owner(target) != row]
