"""The send side of one NIC with work always posted: throughput and latency, from its port.

Throughput: the frames after the last one of a warm-up, up to the last one counted, and the time
between those two; a frame's time is when its last word has left.
"""

from __future__ import annotations

from collections.abc import Sequence

from uwarp.contract import DOORBELL_BASE, DOORBELL_PAGE, Counter, Doorbell
from uwarp.device.rtl import Event, EventKind, RtlNic
from uwarp.verbs import PD
from uwarp.wire import UdpFrame

from .arguments import Failure
from .measure import Row, Turns, open_context
from .send_workload import Source
from .workload import Case

__all__ = ["Sending", "send_latency"]

SPACING = 512  # cycles between doorbells whose latency is measured


class Sending:
    """Messages posted all at once, as many on each queue pair."""

    def __init__(self, nic: RtlNic, pd: PD, case: Case, turns: Turns) -> None:
        self._nic, self._context, self._case, self._turns = nic, pd.context, case, turns
        self._sources = [Source(pd, case, index, turns.all) for index in range(case.qps)]
        nic.records()

    def start(self) -> None:
        for source in self._sources:
            source.post(self._turns.all)

    def row(self, events: Sequence[Event]) -> Row:
        case, turns = self._case, self._turns
        turn = case.qps * case.datagrams
        records = self._nic.records()
        sent = self._context.counters()[Counter.TX_FRAMES]
        if len(records) != turns.all * turn or sent != len(records):
            raise Failure(
                f"{turns.all * turn} frames were posted, {len(records)} left, the NIC counted "
                f"{sent}"
            )
        frames: dict[int, list[UdpFrame]] = {source.port: [] for source in self._sources}
        for record in records:
            frame = UdpFrame.decode(record.frame)
            frames[frame.source_port].append(frame)
        for source in self._sources:
            source.check(frames[source.port])
        begin = turns.lead * turn - 1
        counted = turns.counted * turn
        return Row(
            direction="tx",
            case=case,
            frames=counted,
            dropped=0,
            cycles=records[begin + counted].time - records[begin].time,
        )


def send_latency(nic: RtlNic, case: Case, messages: int) -> dict[str, list[int]]:
    """Cycles from the doorbell to the ``first`` word of the frame, and those ``beyond_reads``.

    What the reads take is the time from each one's address to its last word: that of the WQE and
    that of the payload, of one burst. One message at a time, at any phase of what else the NIC
    does. Raises Failure.
    """
    latency: dict[str, list[int]] = {"first": [], "beyond_reads": []}
    with open_context(nic, case) as context:
        source = Source(PD(context), case, 0, messages)
        nic.device.watch()
        for number in range(messages):
            source.post(1)
            nic.run(SPACING + number)
            rung, left, reads = -1, -1, 0
            for event in nic.device.take_events():
                if event.kind is EventKind.REGISTER and _rings_send_queue(event.address):
                    rung = event.time
                elif event.kind is EventKind.DEPARTURE:
                    left = event.time
                elif event.kind is EventKind.ASKED:
                    reads -= event.time
                elif event.kind is EventKind.READ:
                    reads += event.time
            if not 0 <= rung < left:
                raise Failure(f"message {number} of {case.kind} was not sent within {SPACING}")
            latency["first"].append(left - rung)
            latency["beyond_reads"].append(left - rung - reads)
        nic.device.watch(False)
        nic.check()
    return latency


def _rings_send_queue(address: int) -> bool:
    return (
        address >= DOORBELL_BASE
        and (address - DOORBELL_BASE) % DOORBELL_PAGE == Doorbell.SQ_PRODUCER.value
    )
