"""What must hold of a receiver whatever the model says: only what was sent is ever called valid.

The oracle knows the good segments that were put on the wire, the receives that were posted and the
memory that is the NIC's to write. It knows neither order nor tables nor trackers: it says less than
the model, and shares nothing with it.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from uwarp.contract import RECV_WQE, TERMINATE_CODES, CqeFlag, Status, Terminated
from uwarp.wire import READ_REQUEST, Opcode, ReadRequest, Segment, UdpFrame, mapped_ipv4

from .instant import Arena
from .stage import Region

__all__ = ["Name", "Oracle", "Placement"]

_SIX = 6


class Name(NamedTuple):
    """What names a message (device behaviour, 4.1)."""

    qpn: int
    source_ip: int
    source_port: int
    msn: int


@dataclass(frozen=True)
class Placement:
    """A good segment on the wire. ``is_copy``: it goes to a group, and is what one member gets."""

    name: Name
    segment: Segment
    is_copy: bool = False


class Oracle:
    """Watches one NIC's memory and completions.

    Parameters
    ----------
    memory : of the NIC, with all its regions and rings allocated.
    regions : what a peer may write, by index.
    granules : octets of a granule of the regions that are mapped, by index.
    rings : DMA addresses that hold completion queues.
    readable : what a peer may read, and nobody writes, by index.
    """

    def __init__(
        self,
        memory: Arena,
        regions: dict[int, Region],
        granules: dict[int, int],
        rings: list[range],
        readable: dict[int, Region],
    ) -> None:
        self._memory = memory
        self._regions = regions
        self._granules = granules
        self._readable = readable
        self._reads: dict[tuple[int, int], dict[str, int]] = {}
        self._placements: list[Placement] = []
        self._receives: dict[int, list[tuple[int, int, bool]]] = {}
        self._begin = np.frombuffer(bytes(memory.octets), np.uint8)
        self._may_change = np.zeros(len(memory.octets), bool)
        for ring in rings:
            self._allow(ring.start, len(ring))

    def _allow(self, address: int, length: int) -> None:
        start = address - self._memory.base
        self._may_change[start : start + length] = True

    def _octets(self, address: int, length: int) -> np.ndarray:
        return np.frombuffer(self._memory.read(address, length), np.uint8)

    # What goes in

    def arrives(self, placement: Placement) -> None:
        """A good segment is put on the wire."""
        self._placements.append(placement)
        segment = placement.segment
        region = self._regions.get(segment.stag >> 8)
        if segment.opcode is Opcode.READ_RESPONSE_RECORD:
            return  # has a place only if a Read asked for it
        if not segment.tagged or region is None:
            return
        start = max(segment.to - region.base_to, 0)
        end = min(segment.to + len(segment.payload) - region.base_to, region.length)
        if start < end:
            self._allow(region.dma + start, end - start)
        if segment.opcode is Opcode.WRITE_RECORD and segment.mlen:
            self._allow_map(segment.stag >> 8, segment.to - segment.mo, segment.mlen)

    def _allow_map(self, index: int, to: int, octets: int) -> None:
        """The octets of a region's map between the first and the last of a message there."""
        if index not in self._granules:
            return
        region, granule = self._regions[index], self._granules[index]
        base = to - region.base_to
        if octets and 0 <= base <= base + octets <= region.length:
            first, last = base // granule // 8, (base + octets - 1) // granule // 8
            if last - first > 1:
                self._allow(region.map_address + first + 1, last - first - 1)

    def posted(self, qpn: int, place: int, wqe: bytes, address: int | None) -> None:
        """A receive is posted: ``wqe`` at DMA address ``place``, its SGE at ``address`` if the
        region allows it."""
        self._allow(place, len(wqe))
        receive = RECV_WQE.unpack(wqe)
        length = receive.sge0_length
        if address is not None:
            self._allow(address, length)
            self._allow_map(receive.sge0_lkey >> 8, receive.sge0_addr, length)
        self._receives.setdefault(qpn, []).append((address or 0, length, address is not None))

    def asks(self, qpn: int, index: int, place: range, request: dict[str, int]) -> None:
        """A Read is posted: its WQE's index, DMA addresses and fields."""
        self._allow(place.start, len(place))
        self._reads[qpn, index] = request
        region = self._regions.get(request["sge_lkey"] >> 8)
        if region is None:
            return
        offset, length = request["sge_addr"] - region.base_to, request["length"]
        if 0 <= offset <= offset + length <= region.length:
            self._allow(region.dma + offset, length)
            self._allow_map(request["sge_lkey"] >> 8, request["sge_addr"], length)

    # What comes out

    def check_sent(self, frames: list[bytes]) -> None:
        """Responses among these frames carry what a peer has asked for and may read; Terminates
        tell of a segment that came, to who sent it."""
        for frame in frames:
            datagram = UdpFrame.decode(frame)
            segment = Segment.from_datagram(datagram.payload)
            if segment.opcode is Opcode.TERMINATE:
                assert any(
                    _tells(segment, datagram, placement) for placement in self._placements
                ), f"a Terminate of nothing that came: {frame.hex()}"
            if segment.opcode is Opcode.READ_RESPONSE_RECORD:
                assert any(
                    self._answers(segment, datagram, placement) for placement in self._placements
                ), f"a response to no request, or not what was asked for: {frame.hex()}"

    def _answers(self, segment: Segment, datagram: UdpFrame, placement: Placement) -> bool:
        asked = placement.segment
        if asked.opcode is not Opcode.READ_REQUEST or not _goes_back(datagram, placement):
            return False
        if asked.msn != segment.msn or len(asked.payload) < READ_REQUEST.size:
            return False
        request = ReadRequest.decode(asked.payload[: READ_REQUEST.size])
        region = self._readable.get(request.source_stag >> 8)
        if region is None or region.stag != request.source_stag:
            return False
        offset, end = request.source_to - region.base_to, segment.mo + len(segment.payload)
        return (
            (segment.stag, segment.mlen) == (request.sink_stag, request.size)
            and segment.to == request.sink_to + segment.mo & (1 << 64) - 1
            and 0 <= offset <= offset + request.size <= region.length
            and end <= request.size
            and segment.last == (end == request.size)
            and self._memory.read(region.dma + offset + segment.mo, len(segment.payload))
            == segment.payload
        )

    def check(self, completions: list[SimpleNamespace]) -> None:
        """New completions of all receive CQs, those of each in the order of its ring."""
        mapped = [entry for entry in completions if entry.flags & CqeFlag.MAPPED]
        for entry in completions:
            if entry.opcode == Opcode.READ_REQUEST:
                self._check_read(entry, mapped)
            if not entry.flags & CqeFlag.RECEIVE:
                continue
            if entry.opcode == Opcode.WRITE_RECORD:
                self._check_record(entry, mapped)
            elif entry.flags & CqeFlag.MAPPED:
                self._check_long_send(entry, mapped)
            else:
                self._check_receive(entry)

    def check_memory(self) -> None:
        """Only what was the NIC's to write has changed."""
        now = np.frombuffer(bytes(self._memory.octets), np.uint8)
        wrong = np.flatnonzero((now != self._begin) & ~self._may_change)
        assert not wrong.size, (
            f"{wrong.size} octets changed that nobody wrote, the first at "
            f"{self._memory.base + int(wrong[0]):#x}"
        )

    def _segments(self, entry: SimpleNamespace) -> list[Segment]:
        name = Name(entry.qpn, entry.source_ip, entry.source_port, entry.msn)
        found = [
            item.segment
            for item in self._placements
            if item.name == name and item.segment.opcode == entry.opcode
        ]
        assert found, f"a completion of a message that nobody sent: {entry}"
        return found

    def _check_record(self, entry: SimpleNamespace, mapped: list[SimpleNamespace]) -> None:
        own = self._segments(entry)
        if not entry.flags & CqeFlag.MAPPED:
            own = [item for item in own if item.to == entry.base_to and item.mlen == entry.mlen]
            own = [item for item in own if len(item.payload) == entry.valid]
            assert own, f"a completion of a datagram that nobody sent: {entry}"
            valid = np.ones(entry.valid, bool)
        else:
            valid, sure = self._valid(entry, mapped)
            assert int(valid.sum()) == entry.valid or not sure, f"{int(valid.sum())} in {entry}"
            own = [item for item in own if item.to - item.mo == entry.base_to]
        self._check_covered(entry, valid, [(item.to - entry.base_to, item) for item in own])
        self._check_octets(entry, valid, [])

    def _check_long_send(self, entry: SimpleNamespace, mapped: list[SimpleNamespace]) -> None:
        """A Send of several datagrams lies in the receive that its completion names."""
        own = [item for item in self._segments(entry) if item.mlen == entry.mlen]
        own = [item for item in own if item.mo + len(item.payload) <= item.mlen]
        address, length, allowed = self._receives[entry.qpn][entry.wqe_index]
        region = self._regions[entry.stag >> 8]
        assert allowed and entry.mlen <= length, f"{length} octets posted: {entry}"
        assert region.dma + entry.base_to - region.base_to == address, f"{address:#x}: {entry}"
        self._check_placed(entry, mapped, own)

    def _check_read(self, entry: SimpleNamespace, mapped: list[SimpleNamespace]) -> None:
        """A Read's octets are those of answers that came for it, where its WQE said."""
        request = self._reads[entry.qpn, entry.wqe_index]
        assert entry.mlen == request["length"], f"of {request}: {entry}"
        if not entry.flags & CqeFlag.MAPPED:
            assert entry.status not in (Status.SUCCESS, Status.PARTIAL) and not entry.valid, entry
            return
        place = request["sge_lkey"], request["sge_addr"]
        assert (entry.stag, entry.base_to) == place, f"of {request}: {entry}"
        name = Name(entry.qpn, entry.source_ip, entry.source_port, entry.msn)
        own = [
            item.segment
            for item in self._placements
            if item.name == name
            and item.segment.opcode is Opcode.READ_RESPONSE_RECORD
            and (item.segment.stag, item.segment.to - item.segment.mo) == place
            and item.segment.mlen == entry.mlen
            and item.segment.mo + len(item.segment.payload) <= entry.mlen
        ]
        self._check_placed(entry, mapped, own)

    def _check_placed(
        self, entry: SimpleNamespace, mapped: list[SimpleNamespace], own: list[Segment]
    ) -> None:
        """What a message's map calls valid came with its segments, each placed by its MO."""
        valid, sure = self._valid(entry, mapped)
        assert int(valid.sum()) == entry.valid or not sure, f"{int(valid.sum())} in {entry}"
        placed = [(item.mo, item) for item in own]
        self._check_covered(entry, valid, placed)
        self._check_octets(entry, valid, placed)

    @staticmethod
    def _check_covered(
        entry: SimpleNamespace, valid: np.ndarray, placed: list[tuple[int, Segment]]
    ) -> None:
        """Each valid octet came with a segment; those ``placed`` are at so many octets behind the
        message's first."""
        covered = np.zeros(len(valid), bool)
        for start, item in placed:
            covered[start : start + len(item.payload)] = True
        wrong = np.flatnonzero(valid & ~covered)
        assert not wrong.size, f"octet {wrong[0]} is called valid and never came: {entry}"

    def _valid(
        self, entry: SimpleNamespace, mapped: list[SimpleNamespace]
    ) -> tuple[np.ndarray, bool]:
        """The octets of a message that its map calls valid.

        The second value is False if another message has since written some octet of the map; what
        that octet says is then left out.
        """
        index = entry.stag >> 8
        region, granule = self._regions[index], self._granules[index]

        def inner(item: SimpleNamespace) -> range:
            base = item.base_to - region.base_to
            return range(base // granule // 8 + 1, (base + item.mlen - 1) // granule // 8)

        base = entry.base_to - region.base_to
        places = inner(entry)
        first, last = places.start - 1, places.stop
        octets = np.zeros(last - first + 1, np.uint8)
        octets[0] = entry.head_map
        octets[-1] = entry.tail_map
        if len(places) > 0:
            octets[1:-1] = self._octets(region.map_address + places.start, len(places))
        sure = True
        for other in mapped:
            if other is not entry and other.stag >> 8 == index:
                shared = range(
                    max(places.start, inner(other).start), min(places.stop, inner(other).stop)
                )
                if len(shared):
                    octets[shared.start - first : shared.stop - first] = 0
                    sure = False
        bits = np.unpackbits(octets, bitorder="little")
        of_octet = np.arange(base, base + entry.mlen) // granule - 8 * first
        return bits[of_octet].astype(bool), sure

    def _check_octets(
        self, entry: SimpleNamespace, valid: np.ndarray, placed: list[tuple[int, Segment]]
    ) -> None:
        """Each valid octet in memory is one that was sent for its place: tagged, or with a segment
        of those ``placed``. Nothing can be said of octets where other receives lie."""
        region = self._regions.get(entry.stag >> 8)
        if region is None or not len(valid):
            return
        begin = region.dma + entry.base_to - region.base_to
        now = self._octets(begin, len(valid))
        right = ~valid
        for address, length in self._other_receives(entry):
            right[max(address - begin, 0) : max(address + length - begin, 0)] = True
        for start, item in placed:
            sent = np.frombuffer(item.payload, np.uint8)
            right[start : start + len(sent)] |= now[start : start + len(sent)] == sent
        for placement in self._placements:
            item = placement.segment
            if not item.tagged or item.stag >> 8 != entry.stag >> 8:
                continue
            start = max(item.to, entry.base_to)
            end = min(item.to + len(item.payload), entry.base_to + len(valid))
            if start < end:
                here = slice(start - entry.base_to, end - entry.base_to)
                sent = np.frombuffer(item.payload, np.uint8)[start - item.to : end - item.to]
                right[here] |= now[here] == sent
        wrong = np.flatnonzero(~right)
        assert not wrong.size, f"octet {wrong[0]} is called valid and was not sent so: {entry}"

    def _other_receives(self, entry: SimpleNamespace) -> list[tuple[int, int]]:
        """Where receives may write, but the one that a Send's completion names."""
        is_send = entry.opcode not in (Opcode.WRITE_RECORD, Opcode.READ_REQUEST)
        own = (entry.qpn, entry.wqe_index) if is_send else None
        return [
            (address, length)
            for qpn, receives in self._receives.items()
            for index, (address, length, allowed) in enumerate(receives)
            if allowed and (qpn, index) != own
        ]

    def _check_receive(self, entry: SimpleNamespace) -> None:
        """A Send's octets are in the receive that its completion names.

        If other receives lie there, or peers may write there, nothing can be said of them.
        """
        own = self._segments(entry)
        receives = self._receives[entry.qpn]
        address, length, allowed = receives[entry.wqe_index]
        if entry.status != Status.SUCCESS:
            assert entry.status == Status.LOC_PROT_ERR and entry.valid == 0, entry
            return
        assert entry.valid == entry.mlen <= length, f"{length} octets posted: {entry}"
        if not entry.valid:
            return
        assert allowed, f"placed where the receive must not write: {entry}"
        others = self._other_receives(entry)
        others += [(region.dma, region.length) for region in self._regions.values()]
        if any(other < address + length and address < other + size for other, size in others):
            return
        now = self._memory.read(address, entry.valid)
        assert now in [item.payload for item in own], f"not what was sent: {entry}"


def _goes_back(datagram: UdpFrame, placement: Placement) -> bool:
    """Whether a datagram goes to who sent the segment."""
    dest = datagram.dest_ip
    dest = dest if datagram.ip_version == _SIX else mapped_ipv4(dest)
    name = placement.name
    return (name.source_ip, name.source_port) == (dest, datagram.dest_port)


def _tells(report: Segment, datagram: UdpFrame, placement: Placement) -> bool:
    """Whether a Terminate may be the answer to a segment: one that is no Terminate, and came to one
    queue pair only."""
    told = placement.segment
    if told.opcode is Opcode.TERMINATE or placement.is_copy:
        return False
    kind = Terminated.TAGGED if told.tagged else Terminated.UNTAGGED
    if told.opcode is Opcode.READ_REQUEST:
        kind = Terminated.READ_REQUEST
    words = {codes[kind].to_bytes(2, "big") + bytes(2) for codes in TERMINATE_CODES.values()}
    return (
        _goes_back(datagram, placement)
        and report.payload in words
        and (report.qn, report.msn, report.mo, report.mlen) == (2, told.msn, 0, 4)
        and report.last
    )
