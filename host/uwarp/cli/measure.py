"""What a bench measures of one NIC, and how: rows of throughput, and latencies.

Throughput is taken in steady state, while the wire is busy: frames go before those that are
counted, and behind them. A bubble or a stall in the NIC, a buffer that fills and a frame that is
dropped all make the time longer than the wire needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Protocol

from uwarp.device.rtl import Event, RtlNic
from uwarp.verbs import PD, Context

from .workload import CLOCK_HZ, IP, MAC, Case

if TYPE_CHECKING:
    from .read_bench import ReadRow

__all__ = ["Load", "Row", "Turns", "cycle_figures", "figures", "measure", "open_context"]

LEAST_MESSAGES = 8  # counted, and as many before and behind those
SETTLING = 2048  # cycles at least before, in, and behind those, and four answers of the host
PATIENCE = 4096  # cycles in which nothing happens, after which nothing is waited for


def figures(row: Row | ReadRow, direction: str, payload: int) -> dict[str, int | float | str]:
    """The columns of a row: what is printed of it, and what its JSON begins with."""
    return {
        "direction": direction,
        "payload": payload,
        "mtu": row.case.mtu,
        "kind": row.case.kind,
        "frames": row.frames,
        "dropped": row.dropped,
        "cycles": row.cycles,
        "gbps": row.gbps,
        "ceiling_gbps": row.case.ceiling_gbps,
        "percent": row.percent,
        "messages_per_second": row.messages_per_second,
    }


@dataclass(frozen=True)
class Row:
    """``frames`` frames' worth of payload placed and completed, or sent, in ``cycles``.

    ``dropped`` is the sum of the NIC's drop counters: of all frames, also those not counted.
    """

    direction: str
    case: Case
    frames: int
    dropped: int
    cycles: int

    @property
    def kind(self) -> str:
        return f"{self.direction} {self.case.kind}"

    @property
    def gbps(self) -> float:
        return 8 * self.frames * self.case.payload * CLOCK_HZ / self.cycles / 1e9

    @property
    def percent(self) -> float:
        return 100 * self.frames * self.case.wire_cycles / self.cycles

    @property
    def messages_per_second(self) -> float:
        return self.frames / self.case.datagrams * CLOCK_HZ / self.cycles

    def figures(self) -> dict[str, int | float | str]:
        return figures(self, self.direction, self.case.payload)


@dataclass(frozen=True)
class Turns:
    """Turns of all queue pairs, a message each: those before the counted ones, these, and all."""

    lead: int
    counted: int

    @property
    def all(self) -> int:
        return self.lead + self.counted + self.lead

    @classmethod
    def for_frames(cls, nic: RtlNic, case: Case, frames: int) -> Turns:
        """So many that at least ``frames`` frames are measured, long after the first."""
        turn = case.qps * case.datagrams
        least = -(-LEAST_MESSAGES // case.qps)
        settling = SETTLING + 4 * (nic.read_latency + nic.write_latency)
        lead = max(least, math.ceil(settling / case.wire_cycles / turn))
        return cls(lead, max(lead, math.ceil(frames / turn)))


class Load(Protocol):
    """One direction's traffic."""

    def start(self) -> None:
        """Offer all of it."""

    def row(self, events: Sequence[Event]) -> Row:
        """What came of it, all of it over. Raises Failure if anything is wrong."""


LoadFactory = Callable[[RtlNic, PD, Case, Turns], Load]


def open_context(nic: RtlNic, case: Case) -> Context:
    return Context(device=nic.device, mac=MAC, ipv4=IP, mtu=case.mtu)


def measure(nic: RtlNic, case: Case, frames: int, loads: Sequence[LoadFactory]) -> list[Row]:
    """Run the loads side by side, at least ``frames`` frames of each measured. Raises Failure."""
    turns = Turns.for_frames(nic, case, frames)
    with open_context(nic, case) as context:
        running = [load(nic, PD(context), case, turns) for load in loads]
        nic.device.watch()
        for load in running:
            load.start()
        nic.run(int(turns.all * case.qps * case.datagrams * case.wire_cycles))
        events: list[Event] = []
        patience = PATIENCE + 2 * (nic.read_latency + nic.write_latency)
        while fresh := nic.device.take_events():
            events += fresh
            nic.run(patience)
        nic.device.watch(False)
        nic.check()
        return [load.row(events) for load in running]


def cycle_figures(cycles: Sequence[int]) -> dict[str, int | float]:
    return {"min": min(cycles), "median": median(cycles), "max": max(cycles)}
