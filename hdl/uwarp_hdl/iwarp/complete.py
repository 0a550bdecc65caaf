"""Completion queues: slots given out and taken back, CQEs written, interrupts fired.

::

    doorbells ----+                      +--> granted
    credits[*] ---+-> choice      -> state of the CQ, one operation every two cycles
    completions[*]+                      |        |  |
    due timers ---+                      |        |  +--> ModerationTimers --> due timers
         |                             slot     notices (in order) --> irq_set, irq_clear
         +---------------------------> CqeWriter ---|--> write            ^
                                                    +---- done -----------+

Every two cycles an operation (doorbell, reservation, release, slot for a CQE, timer) begins::

    cycle 0 (even)   chosen; its CQ's state is read
          1 (odd)    the state comes; that of the operation before is written
          2 (even)   answer of a reservation; carried out; the next is chosen
          3 (odd)    slot and burst of the CQE; written, with what follows from it
          4 to 11    words of the CQE

One that follows an operation of the same CQ at once is read again, and takes two cycles more. In an
idle unit every cycle is even. A reservation, which is chosen in the cycle after it came, is
answered, and the burst of a CQE offered, 3 cycles after it is asked for in an idle unit, 4 if the
CQE is not the first client's. Writing a CQE takes 8 cycles, beside the operations. A timer takes
two operations, the second at once behind the first. An interrupt fires when the CQE that causes it
is in memory (its write answered).
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import TICK_CYCLES, Counter, Parameters

from .. import choice
from ..compare import equal
from ..data_register import data_fields, data_register
from ..interfaces import CompletionSignature, CreditSignature, WriteClientSignature
from ..layouts import CqDoorbell, CreditOperation, EventRequest
from ..ring import ring_entry
from ..stream.queue import connect_streams
from .cqe_writer import CqeWriter, Slot
from .moderation import ModerationTimers
from .notices import NoticeQueue

__all__ = ["CompletionUnit"]

_LARGEST_LOG2 = 16


class _Ring(data.Struct):
    """The ring of a CQ, of ``in_ring`` + 1 slots. ``address`` in units of 64 octets.

    Of the slots' binary logarithm bit ``n`` of ``over_odd`` says that it is more than 2 n + 1:
    half a mask, and all of it needs no more than one gate in front of what it masks. With the
    whole mask a ring would take a third block RAM.
    """

    valid: 1
    odd_log2: 1
    over_odd: _LARGEST_LOG2 // 2
    address: 58

    @property
    def in_ring(self):
        bits = []
        is_over = Const(1, 1)
        for is_over_next in self.over_odd:
            bits += [is_over_next | is_over & self.odd_log2, is_over_next]
            is_over = is_over_next
        return Cat(bits)


#: Bits of a number of slots: that of the largest ring's, and of a few more.
_SLOTS_WIDTH = _LARGEST_LOG2 + 1


class _State(data.Struct):
    """What goes on in a CQ.

    ``promised`` is producer + slots reserved, ``occupied`` is producer - consumer, ``taken`` is
    both together: all kept beside each other, so that each operation is one addition or one
    comparison. No more of them than can matter: what is left of ``occupied`` is in the outlook,
    and with as much no slot is free, whatever ``taken`` says.

    It is at its ``turn``: 1 and the CQEs since it was armed, the first of which (if ``begun``)
    came at tick ``first``.
    """

    producer: 32
    promised: _SLOTS_WIDTH
    occupied: _LARGEST_LOG2
    taken: _SLOTS_WIDTH
    solicited: 1
    begun: 1
    turn: 16
    first: 16


class _Outlook(data.Struct):
    """What follows from a CQ's state, found in the cycle in which that is written.

    ``armed``: it has not fired since. ``over``: ``taken`` is the ring's size or more, by the lower
    and by the upper half of its bits; if one is set, or ``far``, no slot is free. ``some``: there
    is a slot reserved. ``ripe``: moderation lets the next CQE fire. ``far``: occupied (modulo 2^32)
    is 2^16 or more. ``ahead``: so much that 2^16 CQEs or less make it 0: software has taken more
    than there was. It cannot come to that by CQEs: there are no slots reserved for as many.
    """

    armed: 1
    over: 2
    some: 1
    ripe: 1
    far: 1
    ahead: 1

    @property
    def full(self):
        return self.over.any() | self.far


class _Carries(data.Struct):
    """Of the operation before, for the outlook: the upper half of producer - consumer, if a
    consumer index was taken (``consumed``); what the outlook was; whether it was a CQE, whether the
    CQ was armed, after a CQE or anew; whether it has new moderation, or its timer has expired."""

    consumed: 1
    distance: 32 - _LARGEST_LOG2
    far: 1
    ahead: 1
    produced: 1
    armed: 1
    arms: 1
    moderated: 1
    expired: 1


class CompletionUnit(wiring.Component):
    """The CQs (section 6 of the device behaviour).

    Parameters
    ----------
    parameters : Parameters
    clients : int
        Units that reserve slots and complete; the completions of the first are the most urgent.

    Members
    -------
    doorbells : In(stream.Signature(CqDoorbell))
        CQ numbers below ``n_cq``.
    credits : In(CreditSignature()).array(clients)
    completions : In(CompletionSignature()).array(clients)
    write : Out(WriteClientSignature())
    time : In(47)
    irq_set, irq_clear : Out(1)
        Strobes for the IRQ_STATUS bit ``irq_cq``: a CQ has fired; its row was written.
    irq_cq : Out(16)
    cq_touched : Out(1)
        Strobe: a doorbell or the row of CQ ``cq_touched_cq`` has been taken.
    cq_touched_cq : Out(16)
    events : Out(len(Counter))
    event_requests : Out(stream of EventRequest)
        For each CQE whose write has failed.
    pending : Out(8)
        Completions offered or not yet answered by the bus.
    busy : Out(1)
        The CQs are being cleared after a reset, twice ``n_cq`` cycles.
    """

    def __init__(self, parameters: Parameters, clients: int = 2) -> None:
        if not 1 <= clients <= 15:
            raise ValueError(f"clients is {clients}; it takes 1 to 15")
        self._parameters = parameters
        self._clients = clients
        super().__init__(
            {
                "doorbells": In(stream.Signature(CqDoorbell)),
                "credits": In(CreditSignature()).array(clients),
                "completions": In(CompletionSignature()).array(clients),
                "write": Out(WriteClientSignature()),
                "time": In(47),
                "irq_set": Out(1),
                "irq_clear": Out(1),
                "irq_cq": Out(16),
                "cq_touched": Out(1),
                "cq_touched_cq": Out(16),
                "events": Out(len(Counter)),
                "event_requests": Out(stream.Signature(EventRequest)),
                "pending": Out(8),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        clients = self._clients
        n_cq = self._parameters.n_cq
        width = (n_cq - 1).bit_length()
        m.submodules.writer = writer = CqeWriter(clients)
        m.submodules.notices = notices = NoticeQueue(n_cq)
        m.submodules.timers = timers = ModerationTimers(n_cq)
        tick = self.time[exact_log2(TICK_CYCLES) :][:16]

        # Choice, in even cycles: the favoured one, if it has asked for a cycle, or else the first
        # in the order of the latencies that matter. One that asks is favoured in its turn, until
        # it is served. The first client's completions are chosen in the cycle in which they come,
        # reservations in the one after; of the others one is picked in each cycle for the next, if
        # it may be chosen in both.
        is_odd = Signal()
        slot = Signal(Slot, reset_less=True)
        slot_valid = Signal()
        count = 2 * clients + 2
        chosen = Signal(count)  # one bit, or none; from the cycle after its choice until it is done
        chosen_valid = Signal()
        chosen_cq = Signal(width, reset_less=True)
        chosen_in_range = Signal(reset_less=True)
        completing, crediting = chosen[:clients], chosen[clients : 2 * clients]
        ringing, timing = chosen[-2], chosen[-1]
        completion_requests = [port.requests for port in self.completions]
        # Of a client's credit request a copy, by the cycle before. What it is about stays until it
        # is carried out, the request itself does not.
        picked = Signal(count)
        credit_layout = data.StructLayout({"valid": 1, "in_range": 1, "cq": width, "release": 1})
        credit_requests = [
            data_fields(credit_layout, f"credit_request_{index}") for index in range(clients)
        ]
        for index, request in enumerate(credit_requests):
            given = self.credits[index].requests
            m.d.sync += [
                request.valid.eq(given.valid & ~given.ready),
                request.cq.eq(given.p.cq),
                request.in_range.eq(given.p.cq[width:] == 0),
            ]
            with m.If(~(crediting[index] | picked[clients + index])):
                m.d.sync += request.release.eq(given.p.operation == CreditOperation.RELEASE)
        streams = (*completion_requests, self.doorbells, timers.due)
        offered = Signal(count)
        # By the cycle before, in which the one that is carried out now was chosen.
        may = Signal(count)
        may_next = Signal(count)
        favoured = Signal(count, init=1)
        may_complete = notices.has_room & ~slot_valid & ~completing.any()
        m.d.comb += [
            offered.eq(
                Cat(item.valid for item in (*completion_requests, *credit_requests, *streams[-2:]))
            ),
            may_next.eq(
                Cat(
                    may_complete.replicate(clients),
                    *(
                        ~is_served & ~port.granted.valid
                        for port, is_served in zip(self.credits, crediting, strict=True)
                    ),
                    notices.has_room & ~ringing,
                    notices.has_room & ~timing,
                )
            ),
        ]
        is_turn_over = (chosen & favoured).any() | ~(offered & favoured).any()
        with m.If(is_turn_over):
            m.d.sync += favoured.eq(favoured.rotate_left(1))
        # The favoured one waits, and is chosen if a choice is made: then no other may. Its turn is
        # not over: what is being served may not be chosen.
        is_due = (offered & may_next & favoured).any()
        allowed = Signal(count)
        m.d.comb += allowed.eq(may_next & (favoured | (~is_due).replicate(count)))
        m.d.sync += may.eq(allowed)

        # Of each request: the CQ's number and, above it, whether there is one.
        numbers = [Cat(item.p.cq[:width], item.p.cq[width:] == 0) for item in streams]
        numbers[clients:clients] = [Cat(item.cq, item.in_range) for item in credit_requests]
        prompt = [0, *range(clients, 2 * clients)]
        patient = [index for index in range(count) if index not in prompt]
        picked_cq = Signal(width + 1, reset_less=True)
        m.d.sync += [picked.eq(0), picked_cq.eq(numbers[patient[-1]])]
        for index in reversed(patient):
            with m.If(offered[index] & may[index]):
                m.d.sync += [picked.eq(1 << index), picked_cq.eq(numbers[index])]
        # What was read is out of date: the same is chosen once more. So is, to be carried out next
        # of all, what is looked at before.
        is_stale = Signal()
        looks = Signal()
        with m.If(is_stale | (is_odd & looks)):
            m.d.sync += [
                may.eq(chosen),
                picked.eq(chosen),
                picked_cq.eq(Cat(chosen_cq, chosen_in_range)),
            ]
        requests = Signal(len(prompt))
        first = Signal(count)
        choice_cq = Signal(width + 1)
        m.d.comb += [
            requests.eq(Cat(offered[index] & may[index] for index in prompt)),
            first.eq(picked & may),
            choice_cq.eq(picked_cq),
        ]
        for place, index in reversed(list(enumerate(prompt))):
            with m.If(requests[place]):
                m.d.comb += [first.eq(1 << index), choice_cq.eq(numbers[index])]
        choose = (requests.any() | (picked & may).any()) & ~self.busy
        # The odd cycle after an operation writes its CQ's state, whether or not one follows.
        m.d.sync += is_odd.eq(~is_odd & (choose | chosen_valid))
        with m.If(~is_odd):
            m.d.sync += [
                chosen_valid.eq(choose),
                chosen.eq(Mux(self.busy, 0, first)),
                Cat(chosen_cq, chosen_in_range).eq(choice_cq),
            ]
        with m.If(is_stale):
            m.d.sync += [chosen_valid.eq(0), chosen.eq(0)]
        # Requests stay until they are carried out, those for credits until they are answered.
        execute = Signal()
        m.d.comb += execute.eq(chosen_valid & ~is_odd)
        doorbell = self.doorbells.p
        # A row of the moderation table is carried out three times: it is written, then it is looked
        # whether it fires, and then it does. A timer is carried out twice.
        recorded, looked = Signal(), Signal()
        unrecorded = Signal()
        m.d.sync += unrecorded.eq(doorbell.moderate & ~recorded & ~looked)
        records = ringing & unrecorded
        m.d.comb += looks.eq((timing | (ringing & doorbell.moderate & recorded)) & ~looked)
        ready = chosen & (~is_odd).replicate(count)
        for item, is_ready in zip(completion_requests, ready, strict=False):
            m.d.comb += item.ready.eq(is_ready)
        m.d.comb += [
            self.doorbells.ready.eq(ready[-2] & ~records & ~looks),
            timers.due.ready.eq(ready[-1] & ~looks),
        ]
        with m.If(execute):
            m.d.sync += [recorded.eq(records | recorded & ~ringing), looked.eq(looks)]
        retried = Signal()
        m.d.sync += retried.eq(is_stale | (retried & ~is_odd))
        # In the odd cycle of one that is carried out: from a register, who asks is far.
        answers = Signal(clients)
        m.d.sync += answers.eq(first[clients : 2 * clients])
        with m.If(is_odd | is_stale | retried | self.busy):
            m.d.sync += answers.eq(0)
        for port, is_answered in zip(self.credits, answers, strict=True):
            m.d.comb += port.requests.ready.eq(is_answered)
        # What the operation is, found in its odd cycle: 0 but when it is carried out.
        names = ("reserves", "releases", "completes", "consumes", "arms", "moderates", "resets")
        operations = [Signal(name=name) for name in (*names, "expires", "confirms")]
        reserves, releases, completes, consumes, arms, moderates, resets = operations[: len(names)]
        expires, confirms = operations[len(names) :]
        urgent = Signal()
        moves_consumer = ringing & ~doorbell.moderate & ~doorbell.reset
        gives_back = Cat(item.release for item in credit_requests)
        calls = Cat(item.p.urgent for item in completion_requests)
        m.d.sync += [
            reserves.eq(is_odd & (crediting & ~gives_back).any() & chosen_in_range),
            releases.eq(is_odd & (crediting & gives_back).any()),
            completes.eq(is_odd & completing.any() & chosen_in_range),
            consumes.eq(is_odd & moves_consumer),
            arms.eq(is_odd & moves_consumer & doorbell.arm),
            moderates.eq(is_odd & ringing & doorbell.moderate & recorded & ~looked),
            resets.eq(is_odd & ringing & doorbell.reset & ~doorbell.moderate),
            expires.eq(is_odd & timing & ~looked),
            confirms.eq(is_odd & looked),
            urgent.eq((completing & calls).any()),
        ]
        with m.If(is_stale):
            m.d.sync += [operation.eq(0) for operation in operations]

        # State: read in even cycles, taken in odd ones, used in even ones, written in odd ones.
        stored = data.StructLayout({"state": _State, "outlook": _Outlook})
        m.submodules.states = states = memory.Memory(shape=stored, depth=n_cq, init=[])
        put, get = states.write_port(), states.read_port()
        sweep = Signal(width + 1)
        fetched = Signal(stored, reset_less=True)
        state, outlook = fetched.state, fetched.outlook
        state_next = Signal(_State)
        in_range = Signal(reset_less=True)
        # The state of the operation before, in the cycle after it.
        written = Signal(_State)
        is_late = Signal()
        m.d.sync += is_late.eq(execute)
        carries, carries_next = Signal(_Carries), Signal(_Carries)
        outlook_next = Signal(_Outlook)
        written_cq = Signal(width, reset_less=True)
        written_valid = Signal()
        is_same = equal(m, written_cq, chosen_cq)
        m.d.comb += [
            # A look changes nothing of what is read at once for what it was for.
            is_stale.eq(is_late & chosen_valid & is_same & ~looked),
            get.addr.eq(choice_cq),
            get.en.eq(~is_odd & ~self.busy),
            put.addr.eq(Mux(self.busy, sweep[:width], written_cq)),
            # 0 while the CQs are cleared: there has been no operation.
            put.data.state.eq(written),
            put.data.outlook.eq(outlook_next),
            # Never beside a read: since synthesis can see that, it adds no logic behind the memory
            # for its sake.
            put.en.eq(self.busy | (written_valid & is_late & is_odd)),
        ]
        with m.If(is_odd):
            m.d.sync += [
                fetched.eq(get.data),
                in_range.eq(chosen_in_range),
            ]
        with m.If(execute):
            m.d.sync += [
                written.eq(state_next),
                carries.eq(carries_next),
                written_cq.eq(chosen_cq),
                written_valid.eq(in_range & ~records),
            ]
        with m.If(self.busy):
            m.d.sync += [sweep.eq(sweep + 1), self.busy.eq(~sweep.all())]

        # A ring is as a doorbell brings it, and written in its first odd cycle: before the next
        # operation reads it. So is moderation, for the second time that it is carried out.
        m.submodules.rings = rings = memory.Memory(shape=_Ring, depth=n_cq, init=[])
        put_ring, get_ring = rings.write_port(), rings.read_port()
        row = doorbell.row
        ring = Signal(_Ring, reset_less=True)
        begins = is_odd & ringing
        m.d.comb += [
            put_ring.data.valid.eq(row.valid & (row.log2 <= _LARGEST_LOG2) & ~self.busy),
            put_ring.data.odd_log2.eq(row.log2[0]),
            put_ring.data.over_odd.eq(Cat(row.log2 > odd for odd in range(1, _LARGEST_LOG2, 2))),
            put_ring.data.address.eq(row.addr[6:]),
            put_ring.addr.eq(Mux(self.busy, sweep[:width], chosen_cq)),
            put_ring.en.eq(self.busy | (begins & doorbell.reset)),
            get_ring.addr.eq(choice_cq),
            get_ring.en.eq(~is_odd & ~self.busy),
        ]
        with m.If(is_odd):
            m.d.sync += ring.eq(get_ring.data)

        moderation = timers.moderation
        # It stays for a cycle after it was taken.
        due = Cat(timers.due.p.first, timers.due.p.ticks)
        # Taken is compared with the size, a power of two.
        beyond_ring = Cat(
            written.taken[:_LARGEST_LOG2] & ~ring.in_ring, written.taken[_LARGEST_LOG2:]
        )
        is_distant = carries.distance.any()
        wraps = carries.produced & ~written.occupied.any()
        # What is armed anew fires in the cycle after the operation, what new moderation or a timer
        # lets fire does in the operation after. New moderation leaves the number of CQEs as it is.
        # Of a timer: neither armed anew nor moderated anew since it was looked at.
        waits = written.begun & ~written.solicited
        is_at_count = equal(m, written.turn, moderation.count)
        is_due_still = equal(m, Cat(written.first, moderation.ticks), due)
        is_over = Signal()
        with m.If(is_late):
            m.d.sync += is_over.eq(
                waits
                & (
                    (carries.moderated & outlook_next.ripe & ~is_at_count)
                    | (carries.expired & moderation.ticks.any() & is_due_still)
                )
            )
        fires_late = carries.arms & (written.occupied.any() | is_distant)
        m.d.comb += [
            outlook_next.armed.eq(carries.armed & ~fires_late),
            outlook_next.far.eq(
                Mux(
                    carries.consumed,
                    is_distant,
                    carries.far ^ (wraps & (carries.ahead | ~carries.far)),
                )
            ),
            outlook_next.ahead.eq(
                Mux(carries.consumed, carries.distance.all(), carries.ahead & ~wraps)
            ),
            outlook_next.over.eq(Cat(half.any() for half in (beyond_ring[:8], beyond_ring[8:]))),
            outlook_next.ripe.eq(written.turn >= moderation.count),
            outlook_next.some.eq(written.promised != written.producer[:_SLOTS_WIDTH]),
        ]
        m.d.comb += [
            timers.tick.eq(tick),
            timers.fetch.eq(is_odd),
            timers.set.eq((self.busy & ~sweep[-1]) | (is_odd & records)),
            timers.row_cq.eq(put_ring.addr),
            timers.row.eq(Mux(self.busy, 0, doorbell.row.as_value())),
        ]
        timer = data_register(m, timers.timer)
        m.d.sync += [
            timers.enable.eq(Mux(self.busy, sweep[-1], put.en)),
            timers.cq.eq(put.addr),
            timer.first.eq(written.first),
            timer.ticks.eq(moderation.ticks),
            timer.waiting.eq(outlook_next.armed & waits & moderation.ticks.any()),
        ]

        gives, produces = (Signal(name=name) for name in ("gives", "produces"))
        # A slot more or one less is promised and taken.
        more, less = Signal(), Signal()
        # Each of these is one carry chain, whatever the operation. The lowest bits make the carry
        # in: a - index is a + ~index + 1.
        promised, taken = (Signal(_SLOTS_WIDTH + 1, name=name) for name in ("promised", "taken"))
        occupied = Signal(33)
        m.d.comb += [
            gives.eq(reserves & ring.valid & ~outlook.full),
            # No slot is reserved of a CQ that is not valid: nothing of it changes.
            produces.eq(completes & ring.valid),
            # A client gives back or uses only what it reserved, unless the row was written since.
            more.eq(gives | (produces & ~outlook.some)),
            less.eq(releases & outlook.some),
            promised.eq(Cat(Const(1, 1), state.promised) + Cat(more, less.replicate(_SLOTS_WIDTH))),
            # Above the bits that are kept: of a consumer index only.
            occupied.eq(
                Cat(
                    Const(1, 1),
                    Mux(consumes, state.producer[:_LARGEST_LOG2], state.occupied),
                    state.producer[_LARGEST_LOG2:],
                )
                + Cat(
                    consumes | produces,
                    Mux(consumes, ~doorbell.index[:_LARGEST_LOG2], 0),
                    ~doorbell.index[_LARGEST_LOG2:],
                )
            ),
            taken.eq(
                Cat(Const(1, 1), Mux(consumes, state.promised, state.taken))
                + Cat(
                    consumes | more,
                    Mux(consumes, ~doorbell.index[:_SLOTS_WIDTH], 0) | less.replicate(_SLOTS_WIDTH),
                )
            ),
            state_next.producer.eq(state.producer + produces),
            state_next.promised.eq(promised[1:]),
            state_next.occupied.eq(occupied[1:]),
            state_next.taken.eq(taken[1:]),
            carries_next.consumed.eq(consumes),
            carries_next.distance.eq(occupied[1 + _LARGEST_LOG2 :]),
            carries_next.far.eq(outlook.far),
            carries_next.ahead.eq(outlook.ahead),
            carries_next.produced.eq(produces),
            carries_next.moderated.eq(moderates),
            carries_next.expired.eq(expires),
        ]
        fires = outlook.armed & (
            (produces & (urgent | ~state.solicited & outlook.ripe)) | (confirms & is_over)
        )
        m.d.comb += [
            state_next.solicited.eq(Mux(arms, doorbell.solicited, state.solicited)),
            state_next.begun.eq(produces | state.begun & ~arms),
            state_next.turn.eq(Mux(arms, 1, state.turn + produces)),
            state_next.first.eq(Mux(produces & ~state.begun, tick, state.first)),
            carries_next.armed.eq(arms | (outlook.armed & ~fires)),
            carries_next.arms.eq(arms),
            notices.notice.cq.eq(Mux(is_late, written_cq, chosen_cq)),
            notices.notice.is_write.eq(produces),
            notices.notice.set.eq(fires | (is_late & fires_late)),
            notices.notice.clear.eq(resets),
        ]
        with m.If(resets):
            m.d.sync += [written.eq(0), carries.eq(0)]

        # Whether a slot is given is told from what was read, before it is taken, and kept.
        for index, port in enumerate(self.credits):
            is_new, granted = Signal(), Signal(reset_less=True)
            m.d.comb += port.granted.payload.eq(
                Mux(is_new, ring.valid & ~outlook.full & in_range, granted)
            )
            m.d.sync += [is_new.eq(is_odd & crediting[index]), granted.eq(port.granted.payload)]
            with m.If(port.granted.ready):
                m.d.sync += port.granted.valid.eq(0)
            with m.If(is_odd & crediting[index] & ~gives_back[index] & ~is_stale):
                m.d.sync += port.granted.valid.eq(1)

        # Slots to the writer.
        m.d.comb += [writer.slots.payload.eq(slot), writer.slots.valid.eq(slot_valid)]
        with m.If(writer.slots.ready):
            m.d.sync += slot_valid.eq(0)
        size = Cat(Const(1, 1), ring.in_ring) & ~Cat(ring.in_ring, Const(0, 1))
        entry = ring_entry(ring.address, state.producer, ring.in_ring)
        with m.If(~is_odd & completing.any()):
            m.d.sync += [
                slot_valid.eq(1),
                slot.client.eq(_index(completing)),
                slot.address.eq(Cat(Const(0, 6), entry)),
                slot.phase.eq(~(state.producer[: len(size)] & size).any()),
                slot.time.eq(self.time),
                slot.discard.eq(~produces),
            ]
        m.d.comb += self.events.eq(writer.events)
        wiring.connect(m, wiring.flipped(self.write.bursts), writer.bursts)
        wiring.connect(m, wiring.flipped(self.write.beats), writer.beats)
        for outer, inner in zip(self.completions, writer.words, strict=True):
            connect_streams(m, outer.words, inner)

        m.d.sync += [
            self.cq_touched.eq(ringing & ~is_odd & ~doorbell.moderate),
            data_register(m, self.cq_touched_cq).eq(chosen_cq),
        ]
        m.d.comb += [
            notices.done.eq(self.write.done),
            notices.error.eq(self.write.error),
            self.irq_set.eq(notices.irq_set),
            self.irq_clear.eq(notices.irq_clear),
            self.irq_cq.eq(notices.irq_cq),
        ]
        wiring.connect(m, notices.event_requests, wiring.flipped(self.event_requests))
        # A request that is carried out counts here until its notice does there.
        waiting = Signal(range(clients + 1))
        m.d.sync += waiting.eq(sum((item.valid for item in completion_requests), Const(0, 1)))
        m.d.comb += self.pending.eq(notices.unanswered + waiting)
        return m


def _index(one_hot):
    """The number of the bit that is set."""
    return choice.chosen(one_hot, range(len(one_hot)))
