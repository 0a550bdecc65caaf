"""Open messages and the validity map (device behaviour, section 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from uwarp.contract import TICK_CYCLES, CloseTarget, CqeFlag, Parameters, Status
from uwarp.wire import Opcode

from .clock import Clock
from .closed import ClosedMessages, Kind, MessageName
from .completion import CompletionQueues
from .faults import QpDma
from .tables import QpRow, QueuePair, RegionRow, Tables
from .verdict import Datagram

__all__ = ["Placement", "Tracker", "Trackers", "ValidityMap"]


class ValidityMap:
    """The on-chip map, one octet a bit. Bit numbers are taken modulo the map's size."""

    def __init__(self, bits: int) -> None:
        self._bits = bytearray(bits)

    def _runs(self, first: int, count: int) -> Iterator[slice]:
        size = len(self._bits)
        while count:
            start = first % size
            run = min(count, size - start)
            yield slice(start, start + run)
            first += run
            count -= run

    def set(self, first: int, count: int) -> int:
        """Set bits; returns how many were clear."""
        fresh = 0
        for run in self._runs(first, count):
            fresh += self._bits[run].count(0)
            self._bits[run] = b"\1" * (run.stop - run.start)
        return fresh

    def take(self, first: int, count: int) -> bytes:
        """The bits, one octet each; they are clear afterwards."""
        taken = bytearray()
        for run in self._runs(first, count):
            taken += self._bits[run]
            self._bits[run] = bytes(run.stop - run.start)
        return bytes(taken)


@dataclass(frozen=True)
class Placement:
    """Where a message lies: its first octet's offset in a region, and by which STag.

    ``wqe_index`` is that of the WQE that said so (Sends and Reads), else 0.
    """

    region: RegionRow
    stag: int
    base: int
    wqe_index: int = 0


@dataclass(eq=False)
class Tracker:
    """One open message.

    Region row, CQ and timeout are those of the moment in which the message was opened.
    """

    name: MessageName
    stag: int
    region: RegionRow
    base: int
    mlen: int
    cq: int
    timeout: int
    cqe_fields: dict[str, int]
    tick: int
    first_valid: bool = False
    last_valid: bool = False
    inner_valid: int = 0

    @property
    def end(self) -> int:
        return self.base + self.mlen

    @property
    def first(self) -> int:
        return self.region.granule(self.base)

    @property
    def last(self) -> int:
        return self.region.granule(self.end - 1)

    @property
    def inner(self) -> int:
        """Granules between the first and the last."""
        return max(0, self.last - self.first - 1)

    @property
    def inner_bit(self) -> int:
        """Bit of the on-chip map of the granule after the first."""
        return self.region.map_base + self.first + 1

    @property
    def complete(self) -> bool:
        return self.first_valid and self.last_valid and self.inner_valid == self.inner

    @property
    def due(self) -> int:
        """Clock cycle from which the message is partial."""
        return (self.tick + self.timeout) * TICK_CYCLES

    def covered(self, to: int, octets: int) -> tuple[int, int]:
        """First granule that a segment covers, and the one after the last (4.2)."""
        size = 1 << self.region.granule_log2
        start = to - self.region.base_to
        stop = start + octets
        low = self.first if to == self.base else -(-start // size)
        high = self.last + 1 if to + octets == self.end else stop // size
        return low, max(low, high)

    def valid_octets(self) -> int:
        """Octets of the message in valid granules."""
        if self.first == self.last:
            return self.mlen if self.first_valid else 0
        size = 1 << self.region.granule_log2
        octets = self.inner_valid * size
        if self.first_valid:
            octets += size - (self.base - self.region.base_to) % size
        if self.last_valid:
            octets += (self.end - 1 - self.region.base_to) % size + 1
        return octets


class Trackers:
    """The trackers. Each open one holds a reserved slot of its CQ."""

    def __init__(
        self,
        parameters: Parameters,
        dma: QpDma,
        tables: Tables,
        clock: Clock,
        completions: CompletionQueues,
        closed: ClosedMessages,
    ) -> None:
        self._dma = dma
        self._tables = tables
        self._clock = clock
        self._completions = completions
        self._closed = closed
        self._map = ValidityMap(parameters.map_bits)
        self._slots: list[Tracker | None] = [None] * parameters.n_tracker

    def all_open(self) -> list[Tracker]:
        """Open messages, lowest tracker first."""
        return [tracker for tracker in self._slots if tracker is not None]

    @property
    def has_free(self) -> bool:
        return None in self._slots

    def find(self, name: MessageName) -> Tracker | None:
        return next((tracker for tracker in self.all_open() if tracker.name == name), None)

    def close_overlapping(self, stag: int, base: int, end: int) -> None:
        """Close, as partial, messages of the STag's region that share octets with [base, end)."""
        for tracker in self.all_open():
            if tracker.stag >> 8 == stag >> 8 and tracker.base < end and base < tracker.end:
                self._close(tracker, Status.PARTIAL)

    def close_all(self, target: CloseTarget, row: int) -> None:
        """Close, as partial, the messages of a QP or of a region (4.6), lowest tracker first."""
        for tracker in self.all_open():
            owner = tracker.name.qpn if target is CloseTarget.QP else tracker.stag >> 8
            if owner == row:
                self._close(tracker, Status.PARTIAL)

    def open(self, datagram: Datagram, qp: QpRow, placement: Placement) -> Tracker | None:
        """Give the lowest free tracker to the datagram's message; None if all are taken."""
        if not self.has_free:
            return None
        self._completions.reserve(qp.recv_cq)
        return self._take(datagram.name, datagram.cqe_fields(), qp.recv_cq, qp.timeout, placement)

    def open_read(
        self, name: MessageName, mlen: int, cq: int, timeout: int, placement: Placement
    ) -> None:
        """Give the lowest free tracker to a Read that holds a slot of ``cq``; messages that it
        overlaps are closed first (7.7)."""
        self.close_overlapping(placement.stag, placement.base, placement.base + mlen)
        fields: dict[str, int] = {
            "opcode": Opcode.READ_REQUEST,
            "flags": CqeFlag(0),
            "qpn": name.qpn,
            "msn": name.msn,
            "mlen": mlen,
            "source_ip": name.source_ip,
            "source_port": name.source_port,
        }
        self._take(name, fields, cq, timeout, placement)

    def _take(
        self,
        name: MessageName,
        cqe_fields: dict[str, int],
        cq: int,
        timeout: int,
        placement: Placement,
    ) -> Tracker:
        tracker = Tracker(
            name=name,
            stag=placement.stag,
            region=placement.region,
            base=placement.base,
            mlen=cqe_fields["mlen"],
            cq=cq,
            timeout=timeout,
            cqe_fields=cqe_fields | {"wqe_index": placement.wqe_index},
            tick=self._clock.tick,
        )
        self._slots[self._slots.index(None)] = tracker
        return tracker

    def mark(self, tracker: Tracker, to: int, octets: int) -> None:
        """Take note of a placed segment; close the message if that was all of it."""
        tracker.tick = self._clock.tick
        low, high = tracker.covered(to, octets)
        if low <= tracker.first < high:
            tracker.first_valid = True
        if low <= tracker.last < high:
            tracker.last_valid = True
        inner_low, inner_high = max(low, tracker.first + 1), min(high, tracker.last)
        if inner_low < inner_high:
            bit = tracker.region.map_base + inner_low
            tracker.inner_valid += self._map.set(bit, inner_high - inner_low)
        if tracker.complete:
            self._close(tracker, Status.SUCCESS)

    def next_due(self) -> int | None:
        """Clock cycle in which the next message times out, if none of its segments arrives."""
        return min((tracker.due for tracker in self.all_open()), default=None)

    def close_due(self) -> None:
        """Close, as partial, what has timed out by now, lowest tracker first."""
        for tracker in self.all_open():
            if tracker.due <= self._clock.cycles:
                self._close(tracker, Status.PARTIAL)

    def _close(self, tracker: Tracker, status: Status) -> None:
        qp = self._tables.qps[tracker.name.qpn]
        head_map, tail_map = self._flush(tracker, qp)
        fields = tracker.cqe_fields | {
            "status": status,
            "flags": tracker.cqe_fields["flags"] | CqeFlag.MAPPED,
            "valid": tracker.valid_octets(),
            "base_to": tracker.base,
            "stag": tracker.stag,
            "head_map": head_map,
            "tail_map": tail_map,
        }
        self._completions.write(tracker.cq, qp.receive_cqe(fields), reserved=True)
        if tracker.name.kind is not Kind.READ:
            self._closed.remember(tracker.name)
        self._slots[self._slots.index(tracker)] = None

    def _flush(self, tracker: Tracker, qp: QueuePair) -> tuple[int, int]:
        """Write the map's inner octets, but not for a QP that has failed; returns its head and
        tail octet (4.4)."""
        bits = self._map.take(tracker.inner_bit, tracker.inner)
        granules = bytes((tracker.first_valid,)) + bits
        if tracker.last > tracker.first:
            granules += bytes((tracker.last_valid,))
        before = tracker.first % 8
        octets = _pack_bits(bytes(before) + granules)
        if len(octets) > 2 and not qp.failed:
            address = tracker.region.map_addr + tracker.first // 8 + 1
            self._dma.write(qp, address, octets[1:-1])
        return octets[0], octets[-1]


def _pack_bits(bits: bytes) -> bytes:
    """Octets of 0 or 1 to bits, the first of eight in the least significant place."""
    number = int(bits[::-1].translate(_DIGITS), 2)
    return number.to_bytes((len(bits) + 7) // 8, "little")


_DIGITS = bytes.maketrans(b"\0\1", b"01")
