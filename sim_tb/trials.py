"""Random sequences of frames and of what the host does, on the gateware and on the model at once.

A *trial* is made from a seed: a list of events. They are played on a NIC of the rtl form and on the
model; after every look the two agree in counters, memory, maps and completions, and the oracle,
which knows neither, finds nothing called valid that was not sent. A trial that fails is played
again with fewer and fewer events, until none can be left out; what is reported is the command that
plays those. See ``python -m sim_tb.messages --help``.

Time decides whether a message closes as partial, and the two sides do not work at the same pace. So
a trial with timeouts is a row of short *epochs*, in which none runs out on either side, with
silences between them, in which all do. Silences are long to simulate: only one trial in
``TIMED`` has timeouts at all.
"""

import argparse
import itertools
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import NamedTuple

from uwarp.contract import (
    CQE,
    RECV_WQE,
    TERMINATE_TICKS,
    TICK_CYCLES,
    Access,
    Counter,
    Parameters,
    QpState,
    Status,
    Table,
)
from uwarp.device import DeviceError
from uwarp.model import MemoryFault, Rnic
from uwarp.wire import READ_REQUEST, Opcode, ReadRequest, Segment, mapped_ipv4

from .grouping import create_group
from .instant import InstantModel, RtlSide, finish, wire_cycles
from .oracle import Name, Oracle, Placement
from .stage import ANY_OPCODE, LONG, PD, PEER_IP, SHORT, Region, Stage
from .twin import Twin

__all__ = [
    "GROUPS",
    "PARAMETERS",
    "PROBE_IP",
    "TIMED",
    "TIMEOUT",
    "Answer",
    "Arrival",
    "Event",
    "Look",
    "Outcome",
    "Probe",
    "Read",
    "Receives",
    "Restart",
    "Row",
    "Silence",
    "Trial",
    "TrialFailed",
    "gateware",
    "investigate",
    "parse_spans",
    "play",
    "play_scenario",
    "run_command",
    "shrink",
]

PARAMETERS = Parameters()  # those of the demo and of the benches: nothing more is compiled
TIMED = 3
TIMEOUT = SHORT  # as scenarios have it; and so long that an epoch has room for more than its looks
# Two epochs with a silence between them end before the name of a message that closed in the silence
# is forgotten; a second silence later it is.
EPOCH = (TIMEOUT - 5) * TICK_CYCLES // 2
SILENCE = (TIMEOUT + 2) * TICK_CYCLES
_ROOM_TO_LOOK = 5000  # cycles of an epoch kept for registers, most of them for the counters
PROBE_IP, PROBE_PD, PROBE_CQ = 0x0A09_0909, 7, 10
_ROOM_TO_READ = 800  # for the host's doorbell, the WQE, and the request on the wire
_MOST_READABLE = 6000  # octets
_MOST_REQUESTS = PARAMETERS.n_read - 2
_LONGEST_ANSWERS = 3000  # cycles
_MOST_COPIED = 4096  # octets
_MOST_READS = 40  # whose completions a send CQ of the stage holds, beside those of open ones
_MOST_REPORTS = 6  # Terminates of peers at once: the model has no limit to their events
_EVENTS_LOG2 = 8
_REPORTERS = (2, 8, 9)  # QPs that report by Terminate
# Neither side makes a Terminate while so much time since the last one is certain not to have gone.
_TOO_SOON = (TERMINATE_TICKS - 5) * TICK_CYCLES
_SOON_ENOUGH = (TERMINATE_TICKS + 1) * TICK_CYCLES
_SMALL_CQ_LOG2 = 3
_MOST_REPLAYS = 200
_SHOWN = 100  # octets of a frame in a report


class Group(NamedTuple):
    """A group of the stage's QPs. ``address`` is one of 128 bits."""

    mac: int
    address: int
    port: int
    members: tuple[int, ...]


GROUPS = (
    Group(0x01_00_5E_05_06_07, mapped_ipv4(0xEF05_0607), 6353, (1, 2, 8, 9)),
    Group(0x33_33_00_00_77_77, 0xFF05 << 112 | 0x7777, 6354, (8, 1)),
)


@dataclass(frozen=True)
class Arrival:
    """A frame comes in. ``placements`` are the good segment in it, once for each QP it is for."""

    frame: bytes
    note: str
    placements: tuple[Placement, ...] = ()
    error: bool = False


@dataclass(frozen=True)
class Receives:
    """The host posts receives to a QP."""

    qpn: int
    requests: tuple[dict[str, int], ...]


@dataclass(frozen=True)
class Read:
    """The host posts a Read, if a tracker is free for it: waiting for one it would have a place in
    time that is the NIC's alone. ``number`` is its name in the trial."""

    number: int
    qpn: int
    request: dict[str, int]


@dataclass(frozen=True)
class Answer:
    """A segment of what a Read is answered comes in; its MSN is that which the Read was given.

    ``fields`` are those of the frame; with a ``spoiler`` it is spoilt before it comes.
    """

    read: int
    qpn: int
    segment: Segment
    fields: dict[str, int]
    spoiler: Callable[[Arrival], Arrival] | None = None

    def arrival(self, trial: "Trial", msn: int) -> Arrival:
        segment = replace(self.segment, msn=msn)
        arrival = trial.arrival(segment, self.qpn, self.fields)
        return self.spoiler(arrival) if self.spoiler else arrival


@dataclass(frozen=True)
class Row:
    """The host changes fields of a table's row."""

    table: Table
    row: int
    fields: dict[str, int]


@dataclass(frozen=True)
class Look:
    """The host polls, and everything is compared."""


@dataclass(frozen=True)
class Probe:
    """Good messages to QP 10, ``count`` of them, that must complete with SUCCESS."""

    receives: Receives
    arrivals: tuple[Arrival, ...]
    count: int


@dataclass(frozen=True)
class Silence:
    """If there are timeouts, no frame until all of them have run out; then a look."""


@dataclass(frozen=True)
class Restart:
    """A soft reset with messages open, so many cycles later, and the host begins anew (P32)."""

    cycles: int


Event = Arrival | Receives | Read | Answer | Row | Look | Probe | Silence | Restart


class Trial(Stage):
    """The stage with more queue pairs, on a NIC and a model without a simulator's scheduler.

    ====  ==========================================================
    QP    what it is for, beside those of the stage
    ====  ==========================================================
    2     receives everything; timeout ``TIMEOUT``, or none; CQ 3
    8     the same, with a CQ of 8 entries: CQ 8
    9     listens to one UDP port; CQ 1
    10    listens to ``PROBE_IP`` and has a region of its own; CQ 10
    ====  ==========================================================

    Those but 10 are members of groups. QP 2 and 9 have a wide send ring.
    """

    def __init__(self, nic: RtlSide | InstantModel, model: InstantModel, seed: int) -> None:
        Twin.__init__(self, nic, model, PARAMETERS)
        self.rng = random.Random(seed)
        self.timed = seed % TIMED == 0
        self.crowded = True  # messages are written where others are: for generators
        self.stalled = False
        self._msn = 0

    def _forget(self) -> None:
        super()._forget()
        self._rows: dict[tuple[Table, int], dict[str, int]] = {}

    def allocate(self, octets: int, alignment: int = 64) -> int:
        (address,) = {side.memory.allocate(octets) for side in self._sides}
        return address

    async def write_row(self, table: Table, row: int, **fields: int) -> None:
        self._rows[table, row] = fields
        await super().write_row(table, row, **fields)

    async def change_row(self, table: Table, row: int, fields: dict[str, int]) -> None:
        await self.write_row(table, row, **self._rows[table, row] | fields)

    async def set_up(self) -> None:
        await super().set_up()
        await self.create_cq(8, _SMALL_CQ_LOG2)
        row = {"pd": PD, "opcodes": ANY_OPCODE, "path_mtu": 1500}
        row |= {"timeout": TIMEOUT if self.timed else LONG}
        row |= {"state": QpState.RTS, "send_cq": 4, "rq_log2": 7}
        await self.create_qp(2, **row, udp_port=self.port(2), recv_cq=3, sq_wide=1)
        await self.create_qp(8, **row, udp_port=self.port(8), recv_cq=8)
        row |= {"timeout": LONG, "udp_port": self.port(9)}
        await self.create_qp(9, **row, recv_cq=1, peer_port=9009, sq_wide=1)
        await self.create_cq(PROBE_CQ, 6)
        row |= {"udp_port": self.port(10), "recv_cq": PROBE_CQ, "pd": PROBE_PD}
        peer = {"peer_ip": mapped_ipv4(PROBE_IP), "peer_mask": (1 << 128) - 1}
        await self.create_qp(10, **row | peer)
        for qpn in (8, 9, 10):
            await self.open_port(self.port(qpn), qpn)
        write = Access.LOCAL_WRITE | Access.REMOTE_WRITE
        self.probe = await self.register(
            10, 1 << 13, write, base_to=0x77_0000, pd=PROBE_PD, map_base=8192
        )
        self.source_of_reads = await self.register(
            13, _MOST_READABLE, Access.REMOTE_READ, base_to=0x9000_0000_0007, skew=3
        )
        # In the last rows: scenarios of groups take the first ones.
        for number, group in enumerate(GROUPS, PARAMETERS.n_group - len(GROUPS)):
            await create_group(self, number, group.address, group.port, group.members)
        self.synchronise()

    def arrival(
        self,
        segment: Segment,
        qpn: int,
        fields: dict[str, int],
        members: tuple[int, ...] | None = None,
    ) -> Arrival:
        """A good segment for a QP, or for the members of a group that ``fields`` name."""
        source = fields.get("source_ip", mapped_ipv4(PEER_IP))
        port = fields.get("source_port", 9000 + qpn)
        placements = tuple(
            Placement(Name(member, source, port, segment.msn), segment, members is not None)
            for member in ((qpn,) if members is None else members)
        )
        note = (
            f"QP {qpn if members is None else members}, {segment.opcode.name} of "
            f"{len(segment.payload)} octets, STag {segment.stag:#x}, TO {segment.to:#x}, "
            f"MSN {segment.msn}, MO {segment.mo}, MLEN {segment.mlen}"
        )
        return Arrival(self.frame(segment, qpn, **fields), note, placements)

    @property
    def regions(self) -> dict[int, Region]:
        """What a peer may write, by index."""
        every = (self.mapped, self.plain, self.top, self.coarse, self.probe)
        return {region.stag >> 8: region for region in every}

    def synchronise(self) -> None:
        """Bring the model's time up to the NIC's."""
        finish(self.model.wait(max(0, self.nic.time - self.model.time)))

    def oracle(self) -> Oracle:
        """For the memory as it is now."""
        granules = {self.mapped.stag >> 8: 64, self.coarse.stag >> 8: 256, self.probe.stag >> 8: 64}
        rings = [self.queue_range(cq) for cq in self._queues] + self._event_rings
        readable = {self.source_of_reads.stag >> 8: self.source_of_reads}
        return Oracle(self.nic.memory, self.regions, granules, rings, readable)

    def completions_of_nic(self) -> list[SimpleNamespace]:
        """The NIC's new completions, those of each CQ in the order of its ring."""
        queues = self._queues.values()
        return [CQE.from_int(e) for queue in queues for e in queue.entries(self.nic.memory)]

    def receive_place(self, qpn: int) -> int:
        """DMA address of the next receive WQE."""
        return self._receive_rings[qpn].place

    def send_place(self, qpn: int) -> range:
        """DMA addresses of the next send WQE."""
        ring = self._send_rings[qpn]
        return range(ring.place, ring.place + ring.size)

    def receive_address(self, request: dict[str, int]) -> int | None:
        """DMA address of a receive's SGE, or None if it must not be written."""
        for region in (*self.regions.values(), self.local):
            if region.stag == request["sge0_lkey"]:
                offset = request["sge0_addr"] - region.base_to
                if 0 <= offset <= offset + request["sge0_length"] <= region.length:
                    return region.dma + offset
        return None


@dataclass
class Outcome:
    """What became of a trial."""

    frames: int = 0
    completions: int = 0
    counters: dict[Counter, int] = field(default_factory=lambda: dict.fromkeys(Counter, 0))

    def add(self, other: "Outcome") -> None:
        self.frames += other.frames
        self.completions += other.completions
        for counter, value in other.counters.items():
            self.counters[counter] += value


def _cycles_to_answer(placement: Placement) -> int:
    """Cycles that the answer to a Read Request takes, if this is one; rather too many."""
    segment = placement.segment
    if segment.opcode is not Opcode.READ_REQUEST or len(segment.payload) < READ_REQUEST.size:
        return 0
    size = ReadRequest.decode(segment.payload[: READ_REQUEST.size]).size
    return 400 + min(size, _MOST_READABLE) // 4


class _Player:
    """Plays events on a trial."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.outcome = Outcome()
        self._of_probe: list[SimpleNamespace] = []
        self._msns: dict[int, int] = {}

    async def set_up(self) -> None:
        """Of the trial, anew after a reset."""
        trial = self.trial
        await trial.set_up()
        await trial.create_event_ring(_EVENTS_LOG2)
        for qpn in _REPORTERS:
            await trial.change_row(Table.QP, qpn, {"terminate": 1})
        self.oracle = trial.oracle()
        self._epoch = trial.nic.time
        self._reads = 0  # posted since a look
        self._requests = 0  # that may wait for an answer
        self._answering = 0  # cycles that those answers may take
        self._copied = 0  # octets of copies of group datagrams
        self._reports = 0  # Terminates of peers
        self._looked_at = 0  # frames that the NIC has sent
        # Cycles of the NIC between which it has made its last Terminate, or not yet known to have.
        self._told: tuple[int, int | None] | None = None

    async def play(self, event: Event) -> None:
        trial = self.trial
        match event:
            case Arrival():
                await self._make_room_to_answer(event)
                await self._make_room_to_copy(event)
                await self._make_room_to_report(event)
                await self._make_room(wire_cycles(event.frame))
                await self._agree_on_time(wire_cycles(event.frame))
                before, now = self._terminates, max(trial.nic.time, trial.model.time)
                trial.receive(event.frame, error_beat=0 if event.error else None)
                if self._terminates != before:
                    self._told = now, None
                for placement in event.placements:
                    self.oracle.arrives(placement)
                self.outcome.frames += 1
            case Read():
                await self._read(event)
            case Answer():
                # One that was not posted has an MSN that none has.
                msn = self._msns.get(event.read, 1 << 31 | event.read)
                await self.play(event.arrival(trial, msn))
            case Receives():
                await self._pause()
                for request in event.requests:
                    self.oracle.posted(
                        event.qpn,
                        trial.receive_place(event.qpn),
                        RECV_WQE.pack(**request),
                        trial.receive_address(request),
                    )
                    await trial.post_receive(event.qpn, request)
            case Row():
                await self._pause()
                await trial.change_row(event.table, event.row, event.fields)
            case Look():
                await self._make_room(_ROOM_TO_LOOK)
                await self.look()
            case Probe():
                self._of_probe = []
                for part in (event.receives, *event.arrivals):
                    await self.play(part)
                await self._make_room(_ROOM_TO_LOOK)
                await self.look()
                found = [entry.status for entry in self._of_probe]
                assert found == [Status.SUCCESS] * event.count, (
                    f"CQ {PROBE_CQ} has {found}, not {event.count} good completions"
                )
            case Silence():
                await self._be_silent()
            case Restart():
                await self._restart(event)

    async def _make_room(self, cycles: int) -> None:
        """Be silent if the epoch has no room left for what takes so long."""
        trial = self.trial
        if not trial.timed:
            return
        owed = self._answering + self._copied // 8
        end = max(trial.nic.time, trial.nic.wire_free) + owed + cycles
        if end + _ROOM_TO_LOOK > self._epoch + EPOCH:
            await self._be_silent()

    async def _make_room_to_answer(self, arrival: Arrival) -> None:
        """No more Read Requests at once than can wait: how many do is a matter of time."""
        cycles = sum(map(_cycles_to_answer, arrival.placements))
        if not cycles:
            return
        if self._requests >= _MOST_REQUESTS or self._answering + cycles > _LONGEST_ANSWERS:
            await self._pause()
        await self._make_room(cycles)
        self._requests += 1
        self._answering += cycles

    async def _make_room_to_copy(self, arrival: Arrival) -> None:
        """No more copies at once than the receive buffer can wait for: the model has no limit."""
        copied = len(arrival.frame) * (len(arrival.placements) - 1)
        if copied <= 0:
            return
        if self._copied + copied > _MOST_COPIED:
            await self._pause()
        self._copied += copied
        await self._make_room(0)

    async def _make_room_to_report(self, arrival: Arrival) -> None:
        """No more Terminates at once than events may wait."""
        self._reports += sum(item.segment.opcode is Opcode.TERMINATE for item in arrival.placements)
        if self._reports > _MOST_REPORTS:
            await self._pause()
            self._reports = 1

    @property
    def _terminates(self) -> int:
        """Terminates that the model has made."""
        return self.trial.model.nic.counters[Counter.TX_TERMINATES]

    async def _agree_on_time(self, cycles: int) -> None:
        """Whether the next frame, which takes so many cycles, may be answered by a Terminate is a
        matter of time: let it be the same on both sides."""
        trial = self.trial
        if self._told is not None:
            owed = self._answering + self._copied // 8
            end = max(trial.nic.time, trial.nic.wire_free) + owed + cycles
            if end < self._told[0] + _TOO_SOON:
                return
            await self._be_silent()
            _, made = self._told
            assert made is not None
            while trial.nic.time < made + _SOON_ENOUGH:
                if trial.timed:
                    await self._be_silent()
                else:
                    await trial.nic.wait(made + _SOON_ENOUGH - trial.nic.time)
            self._told = None
        trial.synchronise()

    async def _read(self, event: Read) -> None:
        trial = self.trial
        if self._reads >= _MOST_READS:
            await self.look()
        await self._make_room(_ROOM_TO_READ)
        await self._pause()
        qp = trial.model.nic._tables.qps[event.qpn]
        if not trial.model.nic._trackers.has_free or not qp.row.sends:
            return
        self._msns[event.number] = qp.next_msn
        self._reads += 1
        index = qp.sq_producer & 0xFFFF
        self.oracle.asks(event.qpn, index, trial.send_place(event.qpn), event.request)
        await trial.post_send(event.qpn, event.request)
        await trial.settle()

    async def _pause(self) -> None:
        """Let all that has arrived have its effects, before the host does something."""
        await self._make_room(_ROOM_TO_LOOK)
        await self._settle()

    async def _settle(self) -> None:
        await self.trial.nic.delivered()
        await self.trial.settle()
        self._requests = self._answering = self._copied = self._reports = 0
        if self._told is not None and self._told[1] is None:
            self._told = self._told[0], self.trial.nic.time

    async def _be_silent(self) -> None:
        trial = self.trial
        await self._settle()
        trial.synchronise()
        if trial.timed:
            await trial.wait(SILENCE)
            trial.synchronise()
        self._epoch = trial.nic.time
        await self.look()

    async def look(self) -> None:
        """Compare everything and consume completions."""
        trial = self.trial
        await self._settle()
        self._check_faults()
        self._reads = 0
        self.oracle.check_sent(trial.nic.sent[self._looked_at :])
        self._looked_at = len(trial.nic.sent)
        found = trial.completions_of_nic()
        self._of_probe += (await trial.check())[PROBE_CQ]
        self.oracle.check(found)
        self.oracle.check_memory()
        self.outcome.completions += len(found)
        late = trial.nic.time - self._epoch - EPOCH
        assert not trial.timed or late <= 0, f"a look ends {late} cycles behind its epoch"

    def _check_faults(self) -> None:
        faults = self.trial.nic.faults()
        assert not faults, f"{faults[0]} (the first of {len(faults)})"
        faults = self.trial.model.faults()
        assert not faults, f"the model: {faults[0]}"

    async def _restart(self, event: Restart) -> None:
        trial = self.trial
        await trial.nic.wait(event.cycles)
        await self._add_counters()
        await trial.reset()
        for side in (trial.nic, trial.model):
            side.memory.release()
        await trial.nic.delivered()
        await self.set_up()

    async def _add_counters(self) -> None:
        for counter, value in (await self.trial.counters(self.trial.nic)).items():
            self.outcome.counters[counter] += value

    async def end(self) -> Outcome:
        await self._be_silent()
        await self._add_counters()
        return self.outcome


Generator = Callable[[Trial, random.Random], list[Event]]
"""Makes the events of a trial; all that is random in them comes from the given generator."""

Opponent = Callable[[int], RtlSide | InstantModel]
"""Makes the NIC that is tried, from a seed."""


def gateware(seed: int) -> RtlSide:
    """A NIC of the rtl form, before a memory whose speed is the seed's."""
    rng = random.Random(seed)
    read_latency, write_latency = rng.choice((0, 8, 40, 156)), rng.choice((0, 8, 90, 156))
    return RtlSide(PARAMETERS, seed, read_latency=read_latency, write_latency=write_latency)


def play(
    generate: Generator,
    seed: int,
    keep: Iterable[int] | None = None,
    *,
    events: Sequence[Event] | None = None,
    opponent: Opponent = gateware,
    reference: type[Rnic] = Rnic,
    watch: Callable[[InstantModel], None] | None = None,
) -> Outcome:
    """Play the trial of a seed, or those events of it whose numbers are in ``keep``.

    Parameters
    ----------
    events : what the generator makes of the seed, if that is known already.
    reference : the model.
    watch : is given the model before anything happens.

    Raises
    ------
    AssertionError, DeviceError
        If the NIC does not do as the model, or as the oracle says.
    """
    nic = opponent(seed)
    try:
        model = InstantModel(PARAMETERS, seed, reference)
        if watch is not None:
            watch(model)
        trial = Trial(nic, model, seed)
        player = _Player(trial)
        finish(player.set_up())
        if events is None:
            events = generate(trial, random.Random(seed))
        for number in range(len(events)) if keep is None else sorted(set(keep)):
            finish(player.play(events[number]))
        return finish(player.end())
    finally:
        nic.close()


_FAILURES = (AssertionError, DeviceError, MemoryFault)


def shrink(fails: Callable[[Sequence[int]], bool], items: Sequence[int]) -> list[int]:
    """The fewest of ``items`` that still fail, as far as leaving out parts of them finds it.

    Parts are halved until they are single items (delta debugging), at most ``_MOST_REPLAYS`` tries.
    """
    kept, parts, tries = list(items), 2, 0
    while len(kept) > 1 and tries < _MOST_REPLAYS:
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            tries += 1
            if rest and fails(rest):
                kept, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(kept))
    return kept


Scenario = Callable[[Trial], Awaitable[object]]


def play_scenario(
    scenario: Scenario,
    seed: int,
    *,
    watch: Callable[[InstantModel], None] | None = None,
    **latencies: int,
) -> object:
    """Run a scenario of the benches on a NIC of the rtl form; returns what it returns."""
    nic = RtlSide(PARAMETERS, seed, **latencies)
    try:
        model = InstantModel(PARAMETERS, seed)
        if watch is not None:
            watch(model)
        trial = Trial(nic, model, seed)
        finish(trial.set_up())
        return finish(scenario(trial))
    finally:
        nic.close()


class TrialFailed(AssertionError):
    """A trial failed; the text says how, and how to play it again."""


def investigate(
    generate: Generator,
    seed: int,
    command: str,
    keep: Sequence[int] | None = None,
    *,
    opponent: Opponent = gateware,
    reference: type[Rnic] = Rnic,
    watch: Callable[[InstantModel], None] | None = None,
) -> Outcome:
    """Play a trial; if it fails, shrink it first.

    Parameters
    ----------
    command : plays the trials of this generator, if ``--seed`` and ``--keep`` are added.

    Raises
    ------
    TrialFailed
    """
    events = events_of(generate, seed)
    sides = {"events": events, "opponent": opponent, "reference": reference}
    try:
        return play(generate, seed, keep, **sides, watch=watch)
    except _FAILURES:
        pass
    last: dict[tuple[int, ...], BaseException] = {}

    def fails(numbers: Sequence[int]) -> bool:
        try:
            play(generate, seed, numbers, **sides)
        except _FAILURES as error:
            last[tuple(numbers)] = error
            return True
        return False

    whole = list(range(len(events))) if keep is None else sorted(set(keep))
    if not fails(whole):
        raise TrialFailed(f"seed {seed} fails, but not always: {command} --seed {seed}")
    kept = shrink(fails, whole)
    error = last[tuple(kept)]
    lines = [
        f"seed {seed}: {type(error).__name__}: {error}",
        f"{len(kept)} of {len(events)} events are enough:",
        *(f"  {number}: {_describe(events[number])}" for number in kept),
        f"again: {command} --seed {seed} --keep {_spans(kept)}",
    ]
    raise TrialFailed("\n".join(lines)) from error


def events_of(generate: Generator, seed: int) -> list[Event]:
    """The events of a seed: the same whatever NIC they are for."""
    trial = Trial(InstantModel(PARAMETERS, seed), InstantModel(PARAMETERS, seed), seed)
    finish(trial.set_up())
    return generate(trial, random.Random(seed))


def _describe(event: Event) -> str:
    match event:
        case Arrival():
            flagged = ", flagged by the MAC" if event.error else ""
            more = "..." if len(event.frame) > _SHOWN else ""
            shown = event.frame[:_SHOWN].hex() + more
            return f"{event.note}{flagged}, {len(event.frame)} octets: {shown}"
        case Probe():
            return f"probe: {event.count} good messages in {len(event.arrivals)} frames"
        case _:
            return repr(event)


def _spans(numbers: Sequence[int]) -> str:
    """Numbers as text: ``1,4-7``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def parse_spans(text: str) -> list[int]:
    """The reverse of what a report prints. Raises ValueError."""
    numbers: list[int] = []
    for span in text.split(","):
        first, _, last = span.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def run_command(name: str, generate: Generator, arguments: Sequence[str] | None = None) -> int:
    """The command line of a generator: ``python -m NAME``. Returns the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=generate.__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first trial (default: 1)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--count", type=int, help="how many trials (default: 1)")
    group.add_argument("--seconds", type=float, help="one trial after another, for so long")
    group.add_argument("--keep", type=parse_spans, help="only these events of the one seed: 1,4-7")
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    total = Outcome()
    for seed in itertools.count(options.seed):
        try:
            outcome = investigate(generate, seed, f"python -m {name}", options.keep)
        except TrialFailed as error:
            print(error, file=sys.stderr)
            return 1
        total.add(outcome)
        trials = seed - options.seed + 1
        if options.seconds is None and trials >= (options.count or 1):
            break
        if options.seconds is not None and time.monotonic() - begin >= options.seconds:
            break
    print(f"{trials} trials, {total.frames} frames, {total.completions} completions: all alike")
    return 0
