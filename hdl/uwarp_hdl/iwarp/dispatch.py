"""The fate of each datagram: which message it belongs to, what is placed, marked and completed; and
the opening of Reads.

    LOOKUP -> MATCH -+-> VERIFY (open message) ---------+-> ISSUE -> FINISH -> LOOKUP
      |  |           '-> DECIDE (any other) -> RELEASE -'
      |  '-> ROOM (Read Request) -----------------------^
      '-> CLOSE_* (complete, expired, or overlapped by a new message or Read)

A segment of an open message takes 5 to 7 cycles; any other datagram 7 or 8, with a CQ that answers
in 2, or 10 if it has a CQE; 3 more until it is taken if the message may overlap others and more
than half of the trackers are open. Open messages whose names share a digest are told apart before,
one after the other. The CQE of a datagram, like that of a message, is composed of a row: its own,
kept in the four cycles after LOOKUP's beside those of the trackers; FINISH waits for it. What is to
be answered, a Read Request or by a Terminate, and what a peer's Terminate tells goes out in the
cycle after ISSUE, from the same registers.
To close a message takes 7 cycles, or 17 to 27 if it is not complete; after an opening nothing is
taken for 6, and no segment of an open message for 9. Whether a segment may be taken is known a
cycle before: one that comes to an idle unit waits for nothing.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import TERMINATE_TICKS, Counter, CqeFlag, Parameters, Status
from uwarp.wire import IMMEDIATE_OPCODES, RECORD_OPCODES, Opcode

from ..compare import equal
from ..data_register import data_register
from ..interfaces import CreditSignature
from ..layouts import CloseRequest, CreditOperation, ReadRequest
from .closed import ClosedMessages
from .closing import Closing
from .receive_layouts import (
    NO_SENDS,
    TICKET_WIDTH,
    MessageKind,
    PendingCompletion,
    PlaceCommand,
    covered_layout,
    message_name,
    segment_layout,
    snapshot_layout,
    span_layout,
)
from .terminate import CODE_WIDTH, code_or, is_reported, terminate_code
from .trackers import OVERLAP_SETTLES, Trackers, lowest_set
from .validity_map import bit_range_layout

__all__ = ["Dispatch"]


_STATES = (
    "LOOKUP",
    "ROOM",
    "MATCH",
    "CREDIT",
    "VERIFY",
    "DECIDE",
    "RELEASE",
    "ISSUE",
    "FINISH",
    "CLOSE_READ",
    "CLOSE_ROW",
    "CLOSE_START",
    "CLOSE_PUSH",
    "CLOSED",
    "CLOSED_READ",
)


class Plan(data.Struct):
    """What ISSUE does besides taking the payload off: ``drop`` is a Counter, 0 to place it, and
    ``dropped`` says that it is not 0, ``unplaced`` also of a Terminate.
    ``awaits``: only if the credit is granted. ``request``: it is a Read Request to be answered;
    ``terminate``: it is a peer's Terminate, of which nothing is placed."""

    drop: 6
    dropped: 1
    unplaced: 1
    awaits: 1
    complete: 1
    status: 8
    segment: 1
    consume: 1
    remember: 1
    open: 1
    mark: 1
    request: 1
    terminate: 1


class Dispatch(wiring.Component):
    """Take segments in order; own the trackers and the memory of closed messages.

    A datagram is looked up only when the one before is entirely accounted for, its map bits
    included: a segment that completes its message makes the very next one late.

    Members
    -------
    segments : In(stream of segment)
        Digest, STag and extent of its message stand from two cycles before it is offered until one
        after it was taken, the extent until two.
    covered : In(covered)
        Of the segment that was taken in the cycle before.
    tick : In(16)
    credits : Out(CreditSignature)
    requests : Out(stream of ReadRequest)
        A cycle after its datagram has met its fate.
    read_room : In(1)
        A Read Request, or a Terminate to be sent, can be taken. Right from the cycle after the last
        was taken.
    places : Out(stream of PlaceCommand)
    numbered : Out(8)
        Number, modulo 256, of commands given to ``places`` without ``drop``.
    crowded : In(1)
        No placement may be numbered now.
    entries : Out(stream of PendingCompletion)
    ticket : Out(8)
        With ``entries``: ``numbered``, the placement of this very cycle included.
    mapped : Out(1)
        With ``entries``: its snapshot is commanded in the same cycle.
    snapshots : Out(stream of snapshot)
    snapshot_idle : In(1)
    marks : Out(stream of bit range)
    marked, count : In
        Answer to ``marks``.
    found, begin, span, own, renew : Out, In, Out, Out, In
        As of :class:`Trackers`: whether the message of what ``segments`` holds is open.
    opened : Out(1)
        Strobe: a message was opened in the cycle before.
    still : Out(1)
        Nothing is at work, nor due: what ``found`` says in the cycle after next counts, if ``hold``
        is high from the next cycle until a segment is taken.
    hold : In(1)
        No message may be closed now but by a segment.
    ending : In(CloseRequest)
    ended : Out(1)
        Each message that was open when ``ending`` became active, and that it names, has its entry.
    read_answered, read_opened : Out(1)
        Strobe, a cycle late: a Read to be opened has met its fate; with ``read_opened`` it is open.
    full : Out(1)
        No tracker is free.
    settle : Out(1)
        Strobe: the segment at work has met its fate.
    consume : Out(1)
        With ``settle``: it is a Send that uses up its receive.
    events : Out
        Strobes by Counter, two cycles late: RX_PLACED and the drops of section 3.
    cq : Out(16)
        With ``events``: the receive CQ of the datagram's QP.
    quiet : Out(1)
        No segment is at work.
    open_count : Out
        Open messages.
    busy : Out(1)
        Clearing after a reset; nothing may be offered.
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        super().__init__(
            {
                "segments": In(stream.Signature(segment_layout(parameters))),
                "covered": In(covered_layout(parameters)),
                "tick": In(16),
                "credits": Out(CreditSignature()),
                "requests": Out(stream.Signature(ReadRequest)),
                "read_room": In(1),
                "places": Out(stream.Signature(PlaceCommand)),
                "numbered": Out(TICKET_WIDTH),
                "ticket": Out(TICKET_WIDTH),
                "crowded": In(1),
                "entries": Out(stream.Signature(PendingCompletion)),
                "mapped": Out(1),
                "snapshots": Out(stream.Signature(snapshot_layout(parameters))),
                "snapshot_idle": In(1),
                "marks": Out(stream.Signature(bit_range_layout(parameters))),
                "marked": In(1),
                "count": In(9),
                "found": Out(1),
                "span": Out(span_layout(parameters)),
                "own": Out(1),
                "begin": In(1),
                "renew": In(1),
                "opened": Out(1),
                "still": Out(1),
                "hold": In(1),
                "ending": In(CloseRequest),
                "ended": Out(1),
                "read_answered": Out(1),
                "read_opened": Out(1),
                "full": Out(1),
                "settle": Out(1),
                "consume": Out(1),
                "events": Out(len(Counter)),
                "cq": Out(16),
                "quiet": Out(1),
                "open_count": Out(range(parameters.n_tracker + 1)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n = self._parameters.n_tracker
        m.submodules.trackers = trackers = Trackers(self._parameters)
        m.submodules.closed = closed = ClosedMessages(self._parameters)
        m.submodules.closing = closing_unit = Closing(self._parameters)

        segment = Signal(segment_layout(self._parameters), reset_less=True)
        datagram = segment.datagram
        incoming = self.segments.payload
        is_record = Signal(reset_less=True)
        closes_at_once = Signal()  # what it conflicts with, without regard to a credit
        has_immediate, is_solicited = Signal(reset_less=True), Signal(reset_less=True)
        is_send = Signal(reset_less=True)
        # what it says of its message's STag and base must be right
        names_place = Signal(reset_less=True)
        conflicts = Signal()
        found = Signal()
        overlap = Signal(n, reset_less=True)
        tracker = Signal(range(n), reset_less=True)
        plan = Signal(Plan)
        has_payload = Signal()
        credit_asked = Signal()
        marking = Signal()
        # A register for each state: nothing is to be decoded.
        states = {name: Signal(name=name.lower(), init=name == "LOOKUP") for name in _STATES}
        (
            looking,
            in_room,
            in_match,
            in_credit,
            in_verify,
            in_decide,
            in_release,
            issuing,
            finishing,
            in_close_read,
            in_close_row,
            in_close_start,
            pushing,
            in_closed,
            in_closed_read,
        ) = states.values()
        issue = Signal()
        has_room = Signal()
        goes = Signal()  # in ISSUE, and nothing speaks against it but what is found out then
        finish_now = Signal()
        unfit = Signal()
        opens_send = Signal()
        unfit_reason = Signal(Counter)
        mismatches = Signal(4)  # with parts of the tracker's row
        mismatch = mismatches.any()

        chosen = Signal(range(n + 1))
        closing_status = Signal(Status, reset_less=True)
        back_to_decide = Signal()
        close = Signal()
        takes = Signal()
        tick = Signal.like(self.tick, reset_less=True)  # it comes from far
        m.d.sync += tick.eq(self.tick)
        passes_none = Signal()  # nothing is offered, as the unit before was waiting a cycle ago
        taken = Signal(3)  # one, two, three cycles ago
        was_taken = Signal()  # one or two cycles ago

        m.d.comb += [
            trackers.digest.eq(incoming.digest),
            # The STag stands for a cycle less than the extent.
            trackers.region.eq(Mux(was_taken, datagram.stag[8:], incoming.datagram.stag[8:])),
            trackers.start.eq(incoming.start),
            trackers.end.eq(incoming.end),
            trackers.tick.eq(tick),
            trackers.name.eq(self._name(incoming.datagram)),
            trackers.begin.eq(self.begin),
            trackers.renew.eq(self.renew),
            trackers.dma_addr.eq(segment.dma_addr),
            trackers.ending.eq(self.ending),
            self.ended.eq(trackers.ended),
            self.found.eq(trackers.found),
            self.span.eq(trackers.span),
            self.own.eq(trackers.own),
            closed.name.eq(self._name(incoming.datagram)),
            closed.spare.eq(~looking | passes_none),
            closed.asked.eq(self._name(datagram)),
            closed.timeout.eq(segment.timeout),
            closed.tick.eq(tick),
            self.open_count.eq(trackers.count),
            self.full.eq(~trackers.free),
            self.busy.eq(closed.busy),
        ]
        # What is offered is in ``segment``.
        # Without regard to ``ready``, which comes a long way from the responder.
        held_up = self.requests.valid
        request = self.credits.requests
        granted = self.credits.granted
        # The answer is kept until its datagram is issued.
        has_credit, has_none = Signal(), Signal()
        m.d.comb += granted.ready.eq(1)
        with m.If(granted.valid):
            m.d.sync += [has_credit.eq(granted.payload), has_none.eq(~granted.payload)]
        with m.If(issue):
            m.d.sync += [has_credit.eq(0), has_none.eq(0)]
        refused = plan.awaits & has_none
        m.d.comb += request.payload.cq.eq(segment.cq)
        # Right from the second cycle after a segment is taken.
        complete = segment.starts & segment.ends
        fits = is_send & ~segment.receive.fault & ~segment.receive.short
        m.d.sync += [
            closes_at_once.eq(is_record | segment.opening),
            unfit.eq(
                is_send
                & ~segment.receive.fault
                & (segment.receive.short | ~(complete | segment.mapped))
            ),
            opens_send.eq(fits & segment.mapped & ~complete),
            unfit_reason.eq(
                Mux(
                    segment.receive.short,
                    Counter.DROP_RECEIVE_SHORT,
                    Mux(segment.mapped, Counter.DROP_NO_TRACKER, Counter.DROP_SEND_SEGMENTED),
                )
            ),
        ]

        # What is done with it if nothing speaks against that, right from the third cycle on.
        usual = Signal(Plan, reset_less=True)
        refuses, refuses_conflicts = Signal(), Signal()
        m.d.sync += [
            refuses.eq(credit_asked & (unfit | (opens_send & ~trackers.free))),
            refuses_conflicts.eq(credit_asked & opens_send),
            usual.eq(0),
            usual.awaits.eq(1),
            usual.complete.eq(1),
        ]
        with m.If(segment.opening):
            m.d.sync += [
                usual.awaits.eq(0),
                usual.complete.eq(0),
                usual.open.eq(trackers.free),
                usual.drop.eq(Mux(trackers.free, 0, Counter.DROP_NO_TRACKER)),
                usual.dropped.eq(~trackers.free),
                usual.unplaced.eq(~trackers.free),
            ]
        with m.Elif(~credit_asked):
            m.d.sync += [
                usual.awaits.eq(0),
                usual.complete.eq(0),
                usual.drop.eq(Counter.DROP_NO_RECEIVE),
                usual.dropped.eq(1),
                usual.unplaced.eq(1),
            ]
        with m.Elif(is_send & segment.receive.fault):
            m.d.sync += [
                usual.drop.eq(Counter.DROP_RECEIVE_PROTECTION),
                usual.dropped.eq(1),
                usual.unplaced.eq(1),
                usual.status.eq(Status.LOC_PROT_ERR),
                usual.consume.eq(1),
            ]
        with m.Elif(complete):
            m.d.sync += [usual.consume.eq(is_send), usual.remember.eq(1)]
        with m.Elif(segment.mapped & trackers.free):
            m.d.sync += [
                usual.complete.eq(0),
                usual.open.eq(1),
                usual.mark.eq(1),
                usual.consume.eq(is_send),
            ]
        with m.Else():
            m.d.sync += usual.segment.eq(1)

        # Until ``match`` tells of the last opening or closing, and what it takes for ``overlap``,
        # and to be ``sure`` of the message opened.
        settling = Signal(OVERLAP_SETTLES - 2)
        m.d.sync += settling.eq(Mux(trackers.open, ~0, Cat(settling[1:]) | close))
        m.d.sync += [
            taken.eq(Cat(takes, taken[:2])),
            was_taken.eq(takes | taken[0]),
        ]
        # Of those that have closed since, nothing is left.
        m.d.sync += overlap.eq(Mux(taken[2], trackers.overlap, overlap & trackers.is_open))
        # With many trackers open, what they may overlap waits until they have all been looked at.
        waited = Signal(2)
        too_early = Signal()
        m.d.sync += waited.eq(Mux(self.segments.valid & ~settling[0], Cat(1, waited[0]), 0))
        m.d.comb += [
            too_early.eq(
                trackers.many
                & ~waited[1]
                & incoming.mapped
                & (
                    (incoming.datagram.opcode == Opcode.WRITE_RECORD)
                    | incoming.opening
                    | (
                        ~incoming.datagram.opcode.matches(*NO_SENDS)
                        & ~(incoming.starts & incoming.ends)
                    )
                )
            ),
        ]

        # What of its message the segment covers: long before ISSUE, if that marks it.
        covered = Signal.like(self.covered, reset_less=True)
        covers_inner, covers_head, covers_tail = (
            Signal(reset_less=True),
            Signal(reset_less=True),
            Signal(reset_less=True),
        )
        # A region's bits of the map begin with a word of 64.
        inner_last = Signal(len(covered.high) - 1, reset_less=True)
        gap = Signal(len(covered.high) + 1)
        whole = ~gap[-1]
        with m.If(taken[0]):
            m.d.sync += covered.eq(self.covered)
        m.d.comb += gap.eq(covered.high - covered.low)
        m.d.sync += [
            inner_last.eq(covered.high - 1),
            covers_inner.eq(whole & ~equal(m, covered.high, covered.low)),
            covers_head.eq(segment.starts & (segment.ends | whole)),
            covers_tail.eq(segment.ends & (segment.starts | whole)),
        ]

        may_have_immediate = Signal()
        m.d.comb += may_have_immediate.eq(incoming.datagram.opcode.matches(*IMMEDIATE_OPCODES))
        # What LOOKUP turns to. A segment is taken if it could have been a cycle ago, when marking
        # may have come to its end: of what forbids it only ``complete`` can have come since.
        ready_to_look, completes, expires = Signal(), Signal(), Signal()
        may_take = Signal()
        m.d.comb += [
            closed.lookup.eq(looking & self.segments.valid),
            # Nothing is offered while ``busy``.
            ready_to_look.eq(looking & ~(marking | held_up)),
            completes.eq(ready_to_look & trackers.complete),
            expires.eq(
                ready_to_look & ~may_take & ~trackers.complete & trackers.expired & ~self.hold
            ),
            self.segments.ready.eq(looking & may_take & ~trackers.complete),
            takes.eq(self.segments.valid & self.segments.ready),
        ]
        m.d.sync += [
            passes_none.eq(self.renew),
            may_take.eq(
                looking
                & ~(marking & ~trackers.mark)
                & ~held_up
                & ~trackers.complete
                & ~(trackers.expired & ~self.hold)
                & ~settling[0]
                & trackers.sure
                & (trackers.seen | ~too_early)
            ),
        ]
        with m.If(looking):
            # Taken in every cycle: what counts is the last, and the paths are shorter.
            with m.If(~held_up & ~settling[2]):
                m.d.sync += [
                    segment.eq(incoming),
                    is_record.eq(incoming.datagram.opcode == Opcode.WRITE_RECORD),
                    has_immediate.eq(may_have_immediate & incoming.datagram.immediate_valid),
                    is_solicited.eq(
                        Mux(
                            may_have_immediate,
                            incoming.datagram.solicited,
                            incoming.datagram.opcode == Opcode.SEND_SOLICITED,
                        )
                    ),
                ]
            m.d.sync += [
                is_send.eq(~incoming.datagram.opcode.matches(*NO_SENDS)),
                names_place.eq(incoming.datagram.opcode.matches(*RECORD_OPCODES)),
                found.eq(trackers.seen),
                tracker.eq(trackers.found_index),
                mismatches.eq(0),
                plan.eq(0),
                plan.drop.eq(incoming.drop),
                plan.dropped.eq(incoming.drop != 0),
                plan.unplaced.eq(
                    (incoming.drop != 0) | (incoming.datagram.opcode == Opcode.TERMINATE)
                ),
                plan.terminate.eq(incoming.datagram.opcode == Opcode.TERMINATE),
                has_payload.eq(incoming.datagram.payload_length != 0),
                back_to_decide.eq(0),
                chosen.eq(Mux(trackers.complete, trackers.complete_index, trackers.expired_index)),
                closing_status.eq(Mux(trackers.complete, Status.SUCCESS, Status.PARTIAL)),
            ]
        turned_down = closed.hit | refuses | (refuses_conflicts & conflicts)
        place = trackers.place
        # Of what names no place only the length counts.
        held_row, asked_row = (
            Cat(of.stag, base, of.mlen)
            for of, base in ((place, place.base), (datagram, segment.base))
        )
        *place_differs, length_differs = (
            ~equal(m, held_row[bit : bit + 32], asked_row[bit : bit + 32])
            for bit in range(0, len(held_row), 32)
        )
        # LOOKUP, MATCH
        issues_at_once = (incoming.drop != 0) | incoming.datagram.opcode.matches(
            Opcode.WRITE, Opcode.TERMINATE
        )
        asks_for_room = incoming.datagram.opcode == Opcode.READ_REQUEST
        is_open = (is_record | segment.held) & found
        wants_credit = ~is_open & (is_record | segment.receive.available)
        # DECIDE: of what conflicts nothing is told until the last of those has closed.
        meets = closed.answered & conflicts & ~closed.hit & (closes_at_once | has_credit)
        gives_back = turned_down & credit_asked & ~has_none
        decides = in_decide & closed.answered & ~meets
        plans = decides & ~gives_back
        released = in_release & request.ready
        following = {
            "LOOKUP": (looking & ~(completes | expires | takes))
            | (issue & ~plan.complete)
            | finish_now
            | (close & ~back_to_decide),
            "ROOM": takes & ~issues_at_once & asks_for_room,
            "MATCH": takes & ~issues_at_once & ~asks_for_room,
            "CREDIT": (in_match & wants_credit) | (in_credit & ~request.ready),
            "VERIFY": in_match & is_open,
            "DECIDE": (in_match & ~is_open & ~wants_credit)
            | (in_credit & request.ready)
            | (in_decide & ~closed.answered)
            | (decides & gives_back & ~has_credit)
            | in_closed_read,
            "RELEASE": (decides & gives_back & has_credit) | (in_release & ~request.ready),
            "ISSUE": (takes & issues_at_once)
            | in_room
            | in_verify
            | plans
            | released
            | (issuing & ~issue),
            "FINISH": (issue & plan.complete) | (finishing & ~finish_now),
            "CLOSE_READ": completes | expires | (in_decide & meets),
            "CLOSE_ROW": in_close_read,
            "CLOSE_START": in_close_row,
            "CLOSE_PUSH": in_close_start | (pushing & ~close),
            # The tracker that has become free is known a cycle later. Back to the datagram's own
            # row, which is there when the plan is made.
            "CLOSED": close & back_to_decide,
            "CLOSED_READ": in_closed,
        }
        m.d.sync += [states[name].eq(condition) for name, condition in following.items()]

        # It is issued in the next cycle, unless its credit is not answered, or it opens a message
        # whose bits in the map may still be those of the last one in the same place.
        def may_go(awaits, opens):
            is_answered = has_credit | has_none | granted.valid
            return (~awaits | is_answered) & (~opens | self.snapshot_idle)

        is_undone = refused | mismatch
        m.d.sync += goes.eq(
            has_room
            & (
                (takes & issues_at_once)
                | in_room
                | in_verify
                | (plans & may_go(usual.awaits & ~turned_down, usual.open & ~turned_down))
                | released
                | (issuing & ~issue & (is_undone | may_go(plan.awaits, plan.open)))
            )
        )

        with m.If(in_room):
            m.d.sync += [
                plan.request.eq(self.read_room),
                plan.drop.eq(Mux(self.read_room, 0, Counter.DROP_READ_BUSY)),
                plan.dropped.eq(~self.read_room),
                plan.unplaced.eq(~self.read_room),
            ]
        with m.If(in_match):
            m.d.sync += [credit_asked.eq(wants_credit), chosen.eq(n)]
        with m.If(in_verify):
            m.d.sync += [
                plan.mark.eq(1),
                mismatches.eq(Cat(*(names_place & part for part in place_differs), length_differs)),
            ]
        with m.If(in_decide):
            # In every cycle: what counts is the last, and the paths are shorter.
            m.d.sync += [
                plan.eq(Mux(turned_down, 0, usual)),
                tracker.eq(trackers.free_index),
                back_to_decide.eq(1),
                closing_status.eq(Status.PARTIAL),
            ]
            with m.If(turned_down):
                m.d.sync += [
                    plan.drop.eq(
                        Mux(
                            closed.hit,
                            Counter.DROP_LATE,
                            Mux(has_credit, unfit_reason, Counter.DROP_CQ_FULL),
                        )
                    ),
                    plan.dropped.eq(1),
                    plan.unplaced.eq(1),
                ]
            with m.If(closed.answered & conflicts):
                m.d.sync += chosen.eq(lowest_set(overlap))
        # Of which neither lets it be issued.
        with m.If(issuing & is_undone):
            m.d.sync += [
                mismatches.eq(0),
                plan.eq(0),
                plan.drop.eq(Mux(refused, Counter.DROP_CQ_FULL, Counter.DROP_RECORD_MISMATCH)),
                plan.dropped.eq(1),
                plan.unplaced.eq(1),
            ]
        with m.If(close):
            m.d.sync += chosen.eq(n)
        m.d.comb += [
            request.valid.eq(in_credit | in_release),
            request.payload.operation.eq(
                Mux(in_release, CreditOperation.RELEASE, CreditOperation.RESERVE)
            ),
            closing_unit.start.eq(in_close_start),
        ]

        # In time for DECIDE, which waits for ``closed``: four cycles after LOOKUP.
        m.d.sync += conflicts.eq(
            segment.mapped
            & (closes_at_once | (fits & ~complete))
            & Mux(taken[2], trackers.overlap.any(), overlap.any())
        )
        # The place is read before it is known whether there is anything to look it up for.
        m.d.comb += [
            trackers.index.eq(Mux(looking, trackers.found_index, chosen)),
            trackers.look.eq(looking),
            trackers.first.eq(in_close_read | in_closed),
        ]

        # ISSUE: everything that the plan asks for, in one cycle, but for the completion: that waits
        # for its row in FINISH. Only what is given out here takes of the room, so that it is still
        # there then.
        places_now = has_payload & ~plan.unplaced
        room_to_close = Signal()
        m.d.sync += room_to_close.eq(self.entries.ready & self.snapshots.ready)
        m.d.comb += [
            has_room.eq(self.places.ready & ~self.crowded & self.entries.ready),
            issue.eq(goes & ~is_undone),
            self.places.valid.eq(issue & has_payload),
            self.places.payload.address.eq(segment.address),
            self.places.payload.qpn.eq(datagram.qpn),
            self.places.payload.length.eq(datagram.payload_length),
            self.places.payload.offset.eq(datagram.payload_offset),
            self.places.payload.drop.eq(plan.unplaced),
            self.ticket.eq(self.numbered + (issuing & places_now)),
            self.settle.eq(issue),
            self.consume.eq(issue & plan.consume),
        ]
        # Whether it counts comes late, so it doesn't decide which event it is in the same cycle.
        outcome = Signal.like(plan.drop, reset_less=True)
        counts_outcome = Signal()
        m.d.sync += [
            outcome.eq(Mux(plan.dropped, plan.drop, Counter.RX_PLACED)),
            counts_outcome.eq(issue & ~segment.opening),
            self.events.eq(0),
            self.events.bit_select(outcome, 1).eq(counts_outcome),
            data_register(m, self.cq).eq(segment.cq),
            self.read_answered.eq(issue & segment.opening),
            self.read_opened.eq(plan.open),
        ]
        with m.If(issue):
            m.d.sync += self.numbered.eq(self.ticket)

        # CLOSE_PUSH, and the two sources of completions and of closed names.
        m.d.comb += [
            closing_unit.row.eq(trackers.row),
            closing_unit.progress.eq(trackers.progress),
            closing_unit.status.eq(closing_status),
            closing_unit.take.eq(close),
            close.eq(pushing & closing_unit.done & trackers.there & room_to_close),
            finish_now.eq(finishing & trackers.there),
            trackers.close.eq(close),
            trackers.close_index.eq(chosen),
            self.snapshots.valid.eq(close),
            self.snapshots.payload.eq(closing_unit.snapshot),
            self.mapped.eq(pushing),
            self.entries.valid.eq(close | finish_now),
            self.entries.payload.eq(closing_unit.entry),
            closed.inserted.eq(trackers.name_word),
        ]
        # What has closed is remembered a cycle later, in time for what is taken next.
        m.d.sync += [
            closed.hold.eq(finishing | pushing),
            closed.insert.eq(
                (finish_now & plan.remember)
                | (close & (trackers.row.name.kind != MessageKind.READ))
            ),
            trackers.advance.eq(finish_now | close),
        ]
        self._compose(m, segment, plan, trackers.row, pushing)
        self._track(m, segment, trackers, taken[1])
        m.d.comb += [
            trackers.opened.immediate_valid.eq(has_immediate),
            trackers.opened.immediate.eq(Mux(has_immediate, datagram.immediate, 0)),
            trackers.opened.solicited.eq(is_solicited),
        ]
        self._request(m, segment, plan, is_send, issue, tick)
        in_vain = Signal()
        m.d.sync += in_vain.eq(goes & is_undone)
        # The map's answer comes while the next datagram is on its way here.
        m.d.comb += [
            trackers.prepare.eq(issuing),
            # Of a message that is opened nothing could differ from what it said before.
            trackers.open.eq(goes & plan.open & ~refused),
            trackers.touch.eq(goes & plan.mark),
            trackers.untouch.eq(in_vain),
            trackers.touch_index.eq(tracker),
            # Of what is dropped, or needs no completion, this is for nothing.
            trackers.keep.eq(taken[0]),
            trackers.keep_bare.eq(~is_record),
        ]
        counts = Signal()
        with m.If(counts):
            m.d.comb += trackers.newly.eq(self.count)
        index, head, tail, mark = (
            data_register(m, driven)
            for driven in (trackers.mark_index, trackers.head, trackers.tail, self.marks.payload)
        )
        # Whether it is issued is found too late: what has begun in vain stops in its first cycle.
        begins = goes & plan.mark & has_payload
        with m.FSM(name="marking"):
            with m.State("IDLE"):
                m.d.sync += [
                    counts.eq(begins & covers_inner),
                    index.eq(tracker),
                    head.eq(covers_head),
                    tail.eq(covers_tail),
                    mark.first.eq(Cat(covered.low[:6], segment.map_base[6:] + covered.low[6:])),
                    mark.last.eq(Cat(inner_last[:6], segment.map_base[6:] + inner_last[6:])),
                ]
                with m.If(begins):
                    m.d.sync += marking.eq(1)
                    m.next = "EDGES_READ"
                    with m.If(covers_inner):
                        m.next = "MARK"
            with m.State("EDGES_READ"):
                m.next = "EDGES"
                with m.If(in_vain):
                    m.d.sync += marking.eq(0)
                    m.next = "IDLE"
            with m.State("EDGES"):
                m.d.comb += trackers.mark.eq(1)
                m.d.sync += marking.eq(0)
                m.next = "IDLE"
            with m.State("MARK"):
                m.d.comb += self.marks.valid.eq(~in_vain)
                with m.If(in_vain):
                    m.d.sync += marking.eq(0)
                    m.next = "IDLE"
                with m.Elif(self.marks.ready):
                    m.next = "COUNT"
            with m.State("COUNT"):
                m.d.comb += trackers.mark.eq(self.marked)
                with m.If(self.marked):
                    m.d.sync += marking.eq(0)
                    m.next = "IDLE"
        m.d.comb += [
            trackers.marking.eq(marking),
            self.quiet.eq(looking & ~marking),
            self.still.eq(self.quiet & ~trackers.complete & ~trackers.expired),
        ]
        m.d.sync += self.opened.eq(trackers.open)
        return m

    def _name(self, datagram):
        return message_name(self._parameters, datagram).as_value()

    def _request(self, m, segment, plan, is_send, issue, tick):
        """Answers that the datagram at ISSUE asks for, or a peer's Terminate."""
        datagram = segment.datagram
        offered = self.requests
        reports, terminates = Signal(), Signal()
        code = Signal(CODE_WIDTH, reset_less=True)
        # The tick number with which the pause after a Terminate ends. The pause is a power of two:
        # modulo twice that its sum with anything differs in one bit.
        after = Signal(TERMINATE_TICKS.bit_length())
        pauses = Signal()
        report, terminate = Signal(), Signal()
        m.d.comb += [
            report.eq(is_reported(plan.drop) & segment.reports & self.read_room & ~pauses),
            terminate.eq(plan.terminate & ~plan.dropped),
        ]
        m.d.sync += pauses.eq(Mux(pauses, tick[: len(after)] != after, issue & report))
        with m.If(~pauses):
            m.d.sync += after.eq(tick ^ TERMINATE_TICKS)
        with m.If(issue):
            is_request = datagram.opcode == Opcode.READ_REQUEST
            m.d.sync += [
                offered.valid.eq(plan.request | report | terminate),
                reports.eq(report),
                terminates.eq(terminate),
                code.eq(terminate_code(plan.drop, is_send, is_request)),
            ]
        with m.Elif(offered.ready):
            m.d.sync += offered.valid.eq(0)
        for name in ("qpn", "source_mac", "source_ip", "source_port", "msn", "sink_to"):
            m.d.comb += offered.payload[name].eq(datagram[name])
        m.d.comb += [
            offered.payload.sink_stag.eq(
                Cat(datagram.immediate[:16], code_or(reports, code, datagram.immediate[16:]))
            ),
            offered.payload.size.eq(datagram.mlen),
            offered.payload.address.eq(segment.address),
            offered.payload.region.eq(datagram.stag[8:]),
            offered.payload.report.eq(reports),
            offered.payload.terminate.eq(terminates),
        ]

    def _track(self, m, segment, trackers, keeps):
        """What a tracker that opens keeps of the segment that opens it, and what is kept of any
        segment until its own completion."""
        datagram = segment.datagram
        row = trackers.opened
        m.d.comb += [
            row.name.eq(self._name(datagram)),
            row.wqe_index.eq(segment.receive.index),
            row.stag.eq(datagram.stag),
            row.base.eq(segment.base),
            trackers.opened_digest.eq(segment.digest),
            trackers.opened_start.eq(segment.start),
            trackers.opened_end.eq(segment.end),
            trackers.timeout.eq(segment.timeout),
        ]
        # What is kept of a segment has its TO.
        with m.If(keeps):
            m.d.comb += row.base.eq(datagram.to)
        # In time for an opening, which waits for the memory of closed messages. There is a borrow
        # if the first granule and the last are two.
        distance = Signal(len(segment.last) + 1)
        m.d.comb += distance.eq(segment.first - segment.last)
        others = Signal(len(segment.last), init=(1 << len(segment.last)) - 1, reset_less=True)
        m.d.sync += others.eq(distance)
        with m.If(~distance[-1]):
            m.d.sync += others.eq(~0)
        m.d.comb += row.others.eq(others)
        m.d.comb += [row[name].eq(datagram[name]) for name in ("opcode", "mlen")]
        m.d.comb += [row.map_base.eq(segment.map_base[6:]), row.map_addr.eq(segment.map_addr[3:])]
        for name in ("cq", "granule_log2"):
            m.d.comb += row[name].eq(segment[name])
        for name in ("start", "end", "first", "last"):
            m.d.comb += row[name].eq(segment[name])

    def _compose(self, m, segment, plan, row, pushing):
        """What the completion of a datagram has of its own: of a single one, of a Send, or of one
        segment."""
        datagram = segment.datagram
        entry = self.entries.payload
        flags = {
            CqeFlag.RECEIVE: 1,
            CqeFlag.IMMEDIATE: row.immediate_valid,
            CqeFlag.SOLICITED: row.solicited,
            CqeFlag.SEGMENT: plan.segment,
            CqeFlag.HEAD: plan.segment & segment.starts,
            CqeFlag.TAIL: plan.segment & segment.ends,
            CqeFlag.MAPPED: 0,
        }
        with m.If(~pushing):
            m.d.comb += [
                entry.status.eq(plan.status),
                entry.flags.eq(Cat(flags[flag] for flag in CqeFlag)),
                entry.valid.eq(Mux(plan.dropped, 0, datagram.payload_length)),
            ]
