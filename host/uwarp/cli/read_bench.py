"""Reads of 64 KiB from one NIC by another, several open at once: throughput and round trip.

Throughput: the octets of the responses that leave the responder while Reads complete at the
requester, after a warm-up and before the last ones run out; each Read must complete whole, with the
source's octets. Round trip: of one Read of one datagram, from when its request has left until the
response begins to arrive.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from uwarp.contract import DROPS, Counter
from uwarp.device import Fate, Link, WireRecord
from uwarp.device.wire import WIRE_CYCLES
from uwarp.verbs import (
    AH,
    CQ,
    GID,
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_READ,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_READ,
    MR,
    PD,
    QP,
    SGE,
    WC,
    AHAttr,
    Context,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    SendWR,
)
from uwarp.wire import Opcode, Segment, UdpFrame, segments

from .arguments import Failure
from .measure import figures
from .workload import CLOCK_HZ, IP, MAC, PEER_IP, PEER_MAC, datagram_cycles

__all__ = ["LENGTH", "ReadCase", "ReadRow", "measure_reads"]

LENGTH = 64 * 1024
OPEN = 8  # Reads at once, unless there are more queue pairs
RESPONSE = Opcode.READ_RESPONSE_RECORD
FIRST_PORT = 18000
PATIENCE = 1_000_000  # cycles without a completion, after which none is waited for


@dataclass(frozen=True)
class ReadCase:
    """Reads of ``LENGTH`` octets at an MTU, by ``qps`` queue pairs, each of a peer of its own."""

    mtu: int
    qps: int = 1

    @property
    def kind(self) -> str:
        return "read" + (f", {self.qps} QPs" if self.qps > 1 else "")

    @property
    def open(self) -> int:
        """Reads that are posted and not completed, of all queue pairs."""
        return max(self.qps, OPEN // self.qps * self.qps)

    @property
    def payloads(self) -> list[int]:
        """Octets of each datagram of a response."""
        return [octets for _, octets in segments(RESPONSE, LENGTH, self.mtu)]

    @property
    def wire_cycles(self) -> float:
        """What one response takes of the wire's time."""
        return sum(datagram_cycles(RESPONSE, octets) for octets in self.payloads)

    @property
    def ceiling_gbps(self) -> float:
        return 8 * LENGTH * CLOCK_HZ / self.wire_cycles / 1e9


@dataclass(frozen=True)
class ReadRow:
    """``octets`` octets in ``frames`` responses in ``cycles``. ``dropped``: by either NIC."""

    case: ReadCase
    octets: int
    frames: int
    cycles: int
    dropped: int
    round_trip: int

    @property
    def gbps(self) -> float:
        return 8 * self.octets * CLOCK_HZ / self.cycles / 1e9

    @property
    def percent(self) -> float:
        return 100 * self.gbps / self.case.ceiling_gbps

    @property
    def messages_per_second(self) -> float:
        return self.octets / LENGTH * CLOCK_HZ / self.cycles

    def figures(self) -> dict[str, int | float | str]:
        return figures(self, "rx", max(self.case.payloads)) | {
            "length": LENGTH,
            "open": self.case.open,
            "round_trip_cycles": self.round_trip,
        }


class _Responder:
    """Queue pairs and memory that is read."""

    def __init__(self, context: Context, qps: int, octets: bytes) -> None:
        pd, cq = PD(context), CQ(context, 2)
        self.region = MR(pd, len(octets), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ)
        self.region.write(octets)
        init = QPInitAttr(scq=cq, rcq=cq)
        for index in range(qps):
            QP(pd, init, QPAttr(), udp_port=FIRST_PORT + index)


class _Requester:
    """Queue pairs that read: each slot of the region again and again, octet for octet checked."""

    def __init__(self, context: Context, case: ReadCase, responder: _Responder) -> None:
        self._case, self._responder = case, responder
        pd = PD(context)
        self.context = context
        self._cq = CQ(context, 2 * case.open)
        self._region = MR(pd, case.open * LENGTH, IBV_ACCESS_LOCAL_WRITE, validity=True)
        cap = QPCap(max_send_wr=case.open // case.qps, max_recv_wr=1)
        init = QPInitAttr(scq=self._cq, rcq=self._cq, cap=cap)
        self._qps = [
            QP(pd, init, QPAttr(), udp_port=FIRST_PORT + index) for index in range(case.qps)
        ]
        context.add_neighbour(PEER_IP, PEER_MAC)
        self._ah = AH(pd, attr=AHAttr(gr=GlobalRoute(GID(PEER_IP), hop_limit=64)))

    def post(self, slot: int, length: int = LENGTH) -> None:
        """Read into a slot what stands in the responder's, from the next queue pair's peer."""
        source = self._responder.region
        self._region.view[slot * LENGTH : (slot + 1) * LENGTH] = bytes(LENGTH)
        sge = SGE(self._region.buf + slot * LENGTH, length, self._region.lkey)
        wr = SendWR(slot, IBV_WR_RDMA_READ, sg=[sge])
        index = slot % self._case.qps
        wr.set_wr_ud(self._ah, FIRST_PORT + index)
        wr.set_wr_rdma(source.rkey, source.buf + slot * LENGTH)
        self._qps[index].post_send(wr)

    def take(self) -> WC:
        """The next completion, once it has come. Raises Failure if it is not a whole Read."""
        end = self.context.time + PATIENCE
        while not (found := self._cq.poll()[1]):
            if self.context.time > end:
                raise Failure(f"no Read has completed for {PATIENCE} cycles")
        (wc,) = found
        if wc.status != IBV_WC_SUCCESS:
            raise Failure(f"a Read has {wc.status.name}, {wc.byte_len} octets of it arrived")
        place = wc.wr_id * LENGTH, wc.wr_id * LENGTH + wc.byte_len
        if self._region.view[slice(*place)] != self._responder.region.view[slice(*place)]:
            raise Failure("a Read brought other octets than the source's")
        return wc


def measure_reads(link: Link, case: ReadCase, reads: int) -> ReadRow:
    """At least ``reads`` Reads of the first NIC from the second, counted. Raises Failure."""
    one, two = link.devices
    octets = random.Random(case.mtu).randbytes(case.open * LENGTH)
    with (
        Context(device=one, mac=MAC, ipv4=IP, mtu=case.mtu) as near,
        Context(device=two, mac=PEER_MAC, ipv4=PEER_IP, mtu=case.mtu) as far,
    ):
        far.add_neighbour(IP, MAC)
        requester = _Requester(near, case, _Responder(far, case.qps, octets))
        link.records()
        requester.post(0, 64)
        requester.take()
        request, response = link.records()
        round_trip = response.time - request.time + WIRE_CYCLES
        records: list[WireRecord] = []
        for slot in range(case.open):
            requester.post(slot)
        times: list[int] = []
        while len(times) < case.open + reads:
            requester.post(requester.take().wr_id)
            times.append(link.time)
            records += link.records()
        for _ in range(case.open):
            requester.take()
        counters = [context.counters() for context in (near, far)]
        counted = _responses(records, times[case.open - 1], times[-1])
        dropped = sum(item[counter] for item in counters for counter in DROPS)
        if counters[0][Counter.MESSAGES_PARTIAL]:
            raise Failure(f"{counters[0][Counter.MESSAGES_PARTIAL]} Reads were partial")
        return ReadRow(
            case=case,
            octets=sum(size for _, size in counted[1:]),
            frames=len(counted) - 1,
            cycles=counted[-1][0] - counted[0][0],
            dropped=dropped,
            round_trip=round_trip,
        )


def _responses(records: Sequence[WireRecord], begin: int, end: int) -> list[tuple[int, int]]:
    """When each response of the responder left, and its octets, between two times."""
    found = []
    for record in records:
        if record.source == 1 and record.fate is Fate.DELIVERED and begin < record.time <= end:
            segment = Segment.from_datagram(UdpFrame.decode(record.frame).payload)
            found.append((record.time, len(segment.payload)))
    if len(found) < 2:
        raise Failure("too few responses to measure")
    return found
