"""Reads: whose buffer may be a sink, and the answer to a request (7.7, 7.8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from uwarp.contract import Access, CloseTarget
from uwarp.wire import DEFAULT_GRANULE_LOG2, Opcode, ReadRequest, segments

from .answers import Answer
from .tables import RegionRow, Tables
from .verdict import Datagram

__all__ = ["Response", "read_sink"]


def read_sink(tables: Tables, pd: int, lkey: int, addr: int, length: int) -> RegionRow | None:
    """The region of a Read's SGE, if octets that come back may be placed and marked there.

    Responses are cut at multiples of the default granule, hence so must the sink's map be.
    """
    region = tables.allowed_sge(pd, lkey, addr, length, Access.LOCAL_WRITE)
    if region is None or not region.mapped or region.granule_log2 != DEFAULT_GRANULE_LOG2:
        return None
    return region


@dataclass(kw_only=True)
class Response(Answer):
    """A Read Request accepted: ``address`` is the DMA address of its first octet."""

    request: ReadRequest
    address: int
    _plan: Iterator[tuple[int, int]] | None = field(default=None, init=False)

    @classmethod
    def to(cls, datagram: Datagram, request: ReadRequest, address: int) -> Response:
        return cls(**datagram.answer_fields(), request=request, address=address)

    def concerns(self, target: CloseTarget, row: int) -> bool:
        if target is CloseTarget.REGION:
            return self.request.source_stag >> 8 == row
        return super().concerns(target, row)

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
