"""The receive side of one NIC under back-to-back frames: throughput and latency, from its bus.

Throughput is taken in steady state, while the wire is busy: of all completions between the arrival
of the last frame of a warm-up and that of the last frame counted, the octets of all but the first,
and the time from the first to the last. A completion is when the last word of its CQE is written. A
bubble or a stall in the NIC, a buffer that fills and a frame that is dropped all make that time
longer than the wire needs for those octets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from uwarp.contract import DROPS, Counter, outcome_sum
from uwarp.device.rtl import EventKind, RtlNic
from uwarp.verbs import PD, Context

from .arguments import Failure
from .workload import CLOCK_HZ, IP, MAC, Case, Target

__all__ = ["Latency", "Row", "measure_latency", "measure_row"]

LEAST_MESSAGES = 8  # counted, and as many before and behind those
SETTLING = 2048  # cycles at least before, in, and behind those, and four answers of the host
PATIENCE = 4096  # cycles in which nothing happens, after which nothing is waited for
SPACING = 512  # cycles between frames whose latency is measured


@dataclass(frozen=True)
class Row:
    """``frames`` frames' worth of payload placed and completed in ``cycles``.

    ``dropped`` is the sum of the NIC's drop counters: of all frames, also those not counted.
    """

    case: Case
    frames: int
    dropped: int
    cycles: int

    @property
    def gbps(self) -> float:
        return 8 * self.frames * self.case.payload * CLOCK_HZ / self.cycles / 1e9

    @property
    def percent(self) -> float:
        return 100 * self.frames * self.case.wire_cycles / self.cycles

    def figures(self) -> dict[str, int | float | str]:
        return {
            "payload": self.case.payload,
            "mtu": self.case.mtu,
            "kind": self.case.kind,
            "frames": self.frames,
            "dropped": self.dropped,
            "cycles": self.cycles,
            "gbps": self.gbps,
            "ceiling_gbps": self.case.ceiling_gbps,
            "percent": self.percent,
        }


@dataclass(frozen=True)
class Latency:
    """Cycles from the last word of a frame to the last word of its data and of its CQE."""

    data: list[int]
    cqe: list[int]

    def figures(self) -> dict[str, dict[str, int | float]]:
        return {
            name: {"min": min(cycles), "median": median(cycles), "max": max(cycles)}
            for name, cycles in (("data", self.data), ("cqe", self.cqe))
        }


def measure_row(nic: RtlNic, case: Case, frames: int) -> Row:
    """Offer at least ``frames`` frames to count, whole turns of all queue pairs, between others.

    Raises
    ------
    Failure
        If too little of it arrives, or what arrives is wrong, or frames are not accounted for.
    """
    turn = case.qps * case.datagrams
    least = -(-LEAST_MESSAGES // case.qps)
    settling = SETTLING + 4 * (nic.read_latency + nic.write_latency)
    lead = max(least, math.ceil(settling / case.wire_cycles / turn))
    counted = max(lead, math.ceil(frames / turn))
    with _receiver(nic, case) as context:
        pd = PD(context)
        turns = lead + counted + lead
        targets = [Target(pd, nic.device, case, index, turns) for index in range(case.qps)]
        offered = [frame for _ in range(turns) for item in targets for frame in item.message()]
        nic.device.watch()
        for frame in offered:
            nic.device.inject(frame)
        nic.run(int(len(offered) * case.wire_cycles))
        arrivals, ended = _times(nic, targets)
        nic.device.watch(False)
        counters = context.counters()
        nic.check()
        if counters[Counter.RX_FRAMES] != len(offered) or outcome_sum(counters) != len(offered):
            raise Failure(
                f"{len(offered)} frames arrived; the NIC counted {counters[Counter.RX_FRAMES]} "
                f"and accounts for {outcome_sum(counters)}"
            )
        placed: list[tuple[int, int]] = []  # time of a CQE, octets that it speaks of
        for times, target in zip(ended, targets, strict=True):
            completions = target.completions()
            if len(completions) != len(times):
                raise Failure(f"{len(times)} CQEs were written, {len(completions)} can be polled")
            placed += [(time, wc.byte_len) for time, wc in zip(times, completions, strict=True)]
    begin, end = arrivals[lead * turn - 1], arrivals[(lead + counted) * turn - 1]
    placed = sorted(item for item in placed if begin < item[0] <= end)
    dropped = sum(counters[counter] for counter in DROPS)
    if len(placed) < 2:
        raise Failure(
            f"{case.kind}, {case.payload} octets: too few completions to measure, and {dropped} of "
            f"{len(offered)} frames dropped"
        )
    return Row(
        case=case,
        frames=sum(octets for _, octets in placed[1:]) // case.payload,
        dropped=dropped,
        cycles=placed[-1][0] - placed[0][0],
    )


def measure_latency(nic: RtlNic, case: Case, frames: int) -> Latency:
    """Let messages of one datagram arrive far apart, at any phase of what else the NIC does.

    Raises Failure.
    """
    latency = Latency([], [])
    with _receiver(nic, case) as context:
        target = Target(PD(context), nic.device, case, 0, frames)
        nic.device.watch()
        for number in range(frames):
            (frame,) = target.message()
            nic.device.inject(frame)
            nic.run(SPACING + number)
            arrival, data, cqe = -1, -1, -1
            for event in nic.device.take_events():
                if event.kind is EventKind.ARRIVAL:
                    arrival = event.time
                elif target.ends_message(event.address, number):
                    data = event.time
                elif target.ends_cqe(event.address):
                    cqe = event.time
            if not 0 <= arrival < data < cqe:
                raise Failure(f"frame {number} of {case.kind} was not completed within {SPACING}")
            latency.data.append(data - arrival)
            latency.cqe.append(cqe - arrival)
        nic.device.watch(False)
        nic.check()
        target.completions()
    return latency


def _receiver(nic: RtlNic, case: Case) -> Context:
    return Context(device=nic.device, mac=MAC, ipv4=IP, mtu=case.mtu)


def _times(nic: RtlNic, targets: list[Target]) -> tuple[list[int], list[list[int]]]:
    """When each frame had arrived, and, for each of the targets, when each CQE was whole.

    Returns when there are no more.
    """
    arrivals: list[int] = []
    ended: list[list[int]] = [[] for _ in targets]
    patience = PATIENCE + 2 * (nic.read_latency + nic.write_latency)
    while events := nic.device.take_events():
        for event in events:
            if event.kind is EventKind.ARRIVAL:
                arrivals.append(event.time)
                continue
            for target, times in zip(targets, ended, strict=True):
                if target.ends_cqe(event.address):
                    times.append(event.time)
                    break
        nic.run(patience)
    return arrivals, ended
