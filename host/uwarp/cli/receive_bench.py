"""The receive side of one NIC under back-to-back frames: throughput and latency, from its bus.

Of all completions between the arrival of the last frame of a warm-up and that of the last frame
counted, the octets and the time from the middle of the first quarter to the middle of the last
count. A completion is when the last word of its CQE is written; that may wait for the data of the
next frame, so that from one completion to another it is some cycles more or less than it should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from uwarp.contract import DROPS, Counter, outcome_sum
from uwarp.device.rtl import Event, EventKind, RtlNic
from uwarp.verbs import PD

from .arguments import Failure
from .measure import Row, Turns, open_context
from .workload import Case, Target

__all__ = ["Receiving", "receive_latency"]

SPACING = 512  # cycles between frames whose latency is measured


class Receiving:
    """Frames that arrive back to back: whole turns of all queue pairs."""

    def __init__(self, nic: RtlNic, pd: PD, case: Case, turns: Turns) -> None:
        self._nic, self._context, self._case, self._turns = nic, pd.context, case, turns
        self._targets = [
            Target(pd, nic.device, case, index, turns.all) for index in range(case.qps)
        ]
        self._offered = 0

    def start(self) -> None:
        for _ in range(self._turns.all):
            for target in self._targets:
                for frame in target.message():
                    self._nic.device.inject(frame)
                    self._offered += 1

    def row(self, events: Sequence[Event]) -> Row:
        case = self._case
        arrivals, ended = self._times(events)
        counters = self._context.counters()
        received, accounted = counters[Counter.RX_FRAMES], outcome_sum(counters)
        if received != self._offered or accounted != self._offered:
            raise Failure(
                f"{self._offered} frames arrived; the NIC counted {received} and accounts for "
                f"{accounted}"
            )
        placed: list[tuple[int, int]] = []  # time of a CQE, octets that it speaks of
        for times, target in zip(ended, self._targets, strict=True):
            completions = target.completions()
            if len(completions) != len(times):
                raise Failure(f"{len(times)} CQEs were written, {len(completions)} can be polled")
            placed += [(time, wc.byte_len) for time, wc in zip(times, completions, strict=True)]
        turn = case.qps * case.datagrams
        begin = arrivals[self._turns.lead * turn - 1]
        end = arrivals[(self._turns.lead + self._turns.counted) * turn - 1]
        placed = sorted(item for item in placed if begin < item[0] <= end)
        dropped = sum(counters[counter] for counter in DROPS)
        if len(placed) < 2:
            raise Failure(
                f"{case.kind}, {case.payload} octets: too few completions to measure, and "
                f"{dropped} of {self._offered} frames dropped"
            )
        ends, octets = zip(*placed, strict=True)
        return Row(
            direction="rx",
            case=case,
            frames=_between_middles(list(accumulate(octets))) // case.payload,
            dropped=dropped,
            cycles=_between_middles(ends),
        )

    def _times(self, events: Sequence[Event]) -> tuple[list[int], list[list[int]]]:
        """When each frame had arrived, and, for each target, when each CQE was whole."""
        arrivals: list[int] = []
        ended: list[list[int]] = [[] for _ in self._targets]
        for event in events:
            if event.kind is EventKind.ARRIVAL:
                arrivals.append(event.time)
            elif event.kind is EventKind.WRITE:
                for target, times in zip(self._targets, ended, strict=True):
                    if target.ends_cqe(event.address):
                        times.append(event.time)
                        break
        return arrivals, ended


def _between_middles(values: Sequence[int]) -> int:
    """From the mean of the first quarter of ``values`` to that of the last, rounded."""
    count = max(1, len(values) // 4)
    return round((sum(values[-count:]) - sum(values[:count])) / count)


def receive_latency(nic: RtlNic, case: Case, frames: int) -> dict[str, list[int]]:
    """Cycles from the last word of a frame to the last word of its ``data`` and of its ``cqe``.

    Messages of one datagram arrive far apart, at any phase of what else the NIC does. Raises
    Failure.
    """
    latency: dict[str, list[int]] = {"data": [], "cqe": []}
    with open_context(nic, case) as context:
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
                elif event.kind is not EventKind.WRITE:
                    continue
                elif target.ends_message(event.address, number):
                    data = event.time
                elif target.ends_cqe(event.address):
                    cqe = event.time
            if not 0 <= arrival < data < cqe:
                raise Failure(f"frame {number} of {case.kind} was not completed within {SPACING}")
            latency["data"].append(data - arrival)
            latency["cqe"].append(cqe - arrival)
        nic.device.watch(False)
        nic.check()
        target.completions()
    return latency
