"""Random sequences of messages on the gateware and the model, and that a fault is found.

Trial by trial: ``python -m sim_tb.messages --seed N``. A failure prints the command that replays
what is left of it after shrinking. P9, P20 to P28 turn up in them at random; P12 by the latencies
of memory, which are the seed's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from sim_tb.fuzz import fuzz
from sim_tb.instant import InstantModel
from sim_tb.messages import messages
from sim_tb.reading import read_request
from sim_tb.trials import (
    PARAMETERS,
    TIMED,
    Event,
    Generator,
    Outcome,
    Trial,
    TrialFailed,
    investigate,
    parse_spans,
    play,
    shrink,
)
from tests.seeds import seeds
from uwarp.contract import Access, Counter, Table
from uwarp.device import build
from uwarp.model import MemoryFault, Rnic
from uwarp.model.answers import Answer, Answers
from uwarp.model.closed import ClosedMessages, Kind, MessageName
from uwarp.model.reads import Response
from uwarp.model.receive import Receiver
from uwarp.model.tables import QueuePair, RegionRow
from uwarp.model.terminates import Reporter
from uwarp.model.trackers import Tracker, Trackers
from uwarp.model.verdict import Datagram


def investigated(generate: Generator, name: str, seed: int) -> Outcome:
    try:
        outcome = investigate(generate, seed, f"python -m sim_tb.{name}")
    except build.MissingToolError as error:
        pytest.skip(str(error))
    counters = outcome.counters
    assert counters[Counter.DROP_OVERFLOW] == 0
    return outcome


@pytest.mark.parametrize("seed", seeds(6, soak=6, first=1))
def test_p20_p21_p22_p25_p26_messages(seed: int) -> None:
    outcome = investigated(messages, "messages", seed)
    assert outcome.frames >= 40 and outcome.completions >= 5


@pytest.mark.parametrize("seed", seeds(4, soak=4, first=1))
def test_p3_p4_p13_p31_fuzz(seed: int) -> None:
    outcome = investigated(fuzz, "fuzz", seed)
    assert outcome.frames >= 100 and outcome.completions >= 8


@pytest.mark.soak
@pytest.mark.parametrize("hundred", range(1, 6))
def test_long_messages(hundred: int) -> None:
    total = Outcome()
    for seed in range(100 * hundred, 100 * hundred + 100):
        total.add(investigated(messages, "messages", seed))
    assert total.frames > 20_000 and total.completions > 5_000


@pytest.mark.soak
@pytest.mark.parametrize("hundred", range(1, 6))
def test_long_fuzz(hundred: int) -> None:
    total = Outcome()
    for seed in range(100 * hundred, 100 * hundred + 100):
        total.add(investigated(fuzz, "fuzz", seed))
    assert total.frames > 20_000 and total.completions > 1_600


# Faults that a trial must find. Each is put into the model, which then plays the NIC.


class _Generous(Trackers):
    """Marks a granule of which the beginning is missing."""

    def mark(self, tracker: Tracker, to: int, octets: int) -> None:
        more = (to - tracker.region.base_to) % 64 if to > tracker.base else 0
        super().mark(tracker, to - more, octets + more)


class _Overtaking(Trackers):
    """Leaves a message open that another one is written over."""

    def close_overlapping(self, stag: int, base: int, end: int) -> None:
        pass


class _Forgetful(ClosedMessages):
    """Takes late segments for a new message."""

    def remembers(self, name: MessageName, timeout: int) -> bool:
        return False


class OverReporting(Rnic):
    def soft_reset(self) -> None:
        super().soft_reset()
        self._trackers.__class__ = _Generous


class OverWriting(Rnic):
    def soft_reset(self) -> None:
        super().soft_reset()
        self._trackers.__class__ = _Overtaking


class Forgetting(Rnic):
    def soft_reset(self) -> None:
        super().soft_reset()
        self._receiver._closed.__class__ = _Forgetful


class _Swapping(Trackers):
    """Takes, of an open Send, the octets of one segment for those of the next."""

    def mark(self, tracker: Tracker, to: int, octets: int) -> None:
        send = tracker.name.kind is Kind.SEND
        super().mark(tracker, min(to + 64, tracker.end - octets) if send else to, octets)


class Swapping(Rnic):
    def soft_reset(self) -> None:
        super().soft_reset()
        self._trackers.__class__ = _Swapping


class Miscounting(Rnic):
    """Counts frames of 64 octets twice."""

    def receive(self, frame: bytes, error: bool = False) -> None:
        super().receive(frame, error)
        if len(frame) % 64 == 0:
            self.counters[Counter.RX_FRAMES] += 1


class Straying(Rnic):
    """Writes an octet behind what it places, wherever that is."""

    def receive(self, frame: bytes, error: bool = False) -> None:
        before = self.counters[Counter.RX_PLACED]
        super().receive(frame, error)
        if self.counters[Counter.RX_PLACED] > before and len(frame) > 400:
            region = self._tables.regions[2]
            self.memory.write(region.dma_addr + region.length, b"!")


class Deaf(Rnic):
    """Hears nothing more after a frame that is too long."""

    deaf = False

    def receive(self, frame: bytes, error: bool = False) -> None:
        if not self.deaf:
            super().receive(frame, error)
        self.deaf |= len(frame) > 9014


class _Prying(Answers):
    """Answers with octets that begin one behind those that were asked for."""

    def add(self, answer: Answer) -> None:
        if isinstance(answer, Response):
            answer = replace(answer, address=answer.address + 1)
        super().add(answer)


class Prying(Rnic):
    def soft_reset(self) -> None:
        super().soft_reset()
        self._receiver._answers.__class__ = _Prying


class _Boundless(Receiver):
    """Lets peers read beyond the end of a region, as far as memory goes."""

    def _remote_octets(
        self, qp: QueuePair, stag: int, to: int, octets: int, access: Access
    ) -> RegionRow | Counter:
        if access is Access.REMOTE_READ:
            octets = min(octets, 1)
        return super()._remote_octets(qp, stag, to, octets, access)


class _Credulous(Receiver):
    """Believes every answer to a Read, wherever it says that the octets go."""

    def _read_response(self, qp: QueuePair, datagram: Datagram) -> Counter:
        tracker = self._trackers.find(datagram.name)
        if tracker is not None:
            to, mlen = tracker.base + datagram.segment.mo, tracker.mlen
            segment = replace(datagram.segment, stag=tracker.stag, to=to, mlen=mlen)
            datagram = replace(datagram, segment=segment)
        return super()._read_response(qp, datagram)


class _SelfHearing(Receiver):
    """Hears what a member of a group sends to it."""

    def accept(self, datagram: Datagram) -> Counter:
        return super().accept(replace(datagram, own_group=False))


class Boundless(Rnic):
    def soft_reset(self) -> None:
        super().soft_reset()
        self._receiver.__class__ = _Boundless


class Credulous(Rnic):
    def soft_reset(self) -> None:
        super().soft_reset()
        self._receiver.__class__ = _Credulous


class SelfHearing(Rnic):
    def soft_reset(self) -> None:
        super().soft_reset()
        self._receiver.__class__ = _SelfHearing


class _Confusing(Trackers):
    """Takes a segment of any kind for one of the open Read with its number."""

    def find(self, name: MessageName) -> Tracker | None:
        return super().find(name) or super().find(name._replace(kind=Kind.READ))


class Confusing(Rnic):
    def soft_reset(self) -> None:
        super().soft_reset()
        self._trackers.__class__ = _Confusing


class _Hasty(Reporter):
    """Knows no limit of rate."""

    def report(self, qp: QueuePair, datagram: Datagram, counter: Counter) -> None:
        self._last = None
        super().report(qp, datagram, counter)


class _Gossiping(Reporter):
    """Tells of what came to a group, too."""

    def report(self, qp: QueuePair, datagram: Datagram, counter: Counter) -> None:
        super().report(qp, replace(datagram, is_copy=False), counter)


class Hasty(Rnic):
    def soft_reset(self) -> None:
        super().soft_reset()
        self._receiver._reporter.__class__ = _Hasty


class Gossiping(Rnic):
    def soft_reset(self) -> None:
        super().soft_reset()
        self._receiver._reporter.__class__ = _Gossiping


class Whispering(Rnic):
    """Tells the host of a peer's Terminate, and not which message it is about."""

    def soft_reset(self) -> None:
        super().soft_reset()
        post = self._events.post
        self._events.post = lambda kind, number, **fields: post(  # type: ignore[method-assign]
            kind, number, **fields | {"msn": 0}
        )


class Unsociable(Rnic):
    """Lets the last member of a group go without."""

    def load_row(self, table: Table, row: int, value: int) -> None:
        super().load_row(table, row, value)
        if table is Table.GROUP and value:
            group = self._tables.groups[row]
            self._tables.groups[row] = replace(group, members=group.members[:-1])


def play_faulty(fault: type[Rnic]) -> Callable[[int], InstantModel]:
    return lambda seed: InstantModel(PARAMETERS, seed, fault)


@pytest.mark.parametrize(
    ("fault", "generate", "most"),
    [
        (OverReporting, messages, 2),
        (OverWriting, messages, 3),
        (Forgetting, messages, 3),
        (Swapping, messages, 8),  # all of a message that it leaves open
        (Miscounting, messages, 1),
        (Straying, messages, 1),
        (Deaf, fuzz, 2),
        (Prying, messages, 1),
        (Credulous, fuzz, 3),
        (SelfHearing, messages, 2),
        (Confusing, messages, 3),
        (Unsociable, messages, 2),
        (Hasty, messages, 2),
        (Gossiping, messages, 1),
        (Whispering, messages, 1),
        (Unsociable, fuzz, 2),
    ],
)
def test_a_fault_is_found_and_shrunk(fault: type[Rnic], generate: Generator, most: int) -> None:
    opponent = play_faulty(fault)
    for seed in range(TIMED, 20 * TIMED, TIMED):  # short ones
        try:
            investigate(generate, seed, "again", opponent=opponent)
        except TrialFailed as failure:
            report = str(failure)
            break
    else:
        pytest.fail("no trial finds it")
    kept = parse_spans(report.rsplit("--keep ", 1)[1])
    assert f"again --seed {seed} --keep" in report
    assert len(kept) <= most, report
    with pytest.raises((AssertionError, MemoryFault)):
        play(generate, seed, kept, opponent=opponent)
    play(generate, seed, kept, opponent=play_faulty(Rnic))


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (OverReporting, "is called valid"),
        (Credulous, "is called valid"),
        (Prying, "a response to no request"),
        (Boundless, "a response to no request|not allocated"),
        (Gossiping, "a Terminate of nothing that came"),
    ],
)
def test_the_oracle_needs_no_model(fault: type[Rnic], what: str) -> None:
    """A model that is as wrong as the NIC hides nothing from it."""
    with pytest.raises((AssertionError, MemoryFault), match=what):
        for seed in range(1, 20):
            play(messages, seed, opponent=play_faulty(fault), reference=fault)


def test_the_oracle_knows_a_request_cut_short() -> None:
    """It asks for nothing, even if a whole one with its number is answered."""

    def both(trial: Trial, rng: random.Random) -> list[Event]:
        whole = read_request(trial, trial.source_of_reads, 0, 9)
        short = replace(whole, payload=whole.payload[:-5])
        return [trial.arrival(segment, 1, {}) for segment in (short, whole)]

    outcome = play(both, 1, opponent=play_faulty(Rnic))
    assert outcome.counters[Counter.DROP_DDP_SHORT] == 1
    assert outcome.counters[Counter.TX_FRAMES] == 1


def test_shrink_finds_what_matters() -> None:
    def fails(kept: object) -> bool:
        return {17, 40, 41} <= set(kept)  # type: ignore[call-overload]

    assert shrink(fails, range(100)) == [17, 40, 41]
