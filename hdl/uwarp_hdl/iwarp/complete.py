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
          2 (even)   carried out; the next is chosen
          3          answer, slot and burst of the CQE
          4 to 11    words of the CQE

In an idle unit every cycle is even. A reservation is answered, and the burst of a CQE offered,
3 cycles after it is asked for in an idle unit. Writing a CQE takes 8 cycles, beside the operations.
An interrupt fires when the CQE that causes it is in memory (its write answered).
"""

from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import TICK_CYCLES, Counter, CqeFlag, Parameters, Status

from ..interfaces import CreditSignature, WriteClientSignature
from ..layouts import MODERATION_ROW, Completion, CqDoorbell, CreditOperation, EventRequest
from .cqe_writer import CqeWriter, Slot
from .moderation import ModerationTimers
from .notices import Notice, NoticeQueue

__all__ = ["CompletionUnit"]

_LARGEST_LOG2 = 16


class _State(data.Struct):
    """A CQ of ``in_ring`` + 1 slots. ``address`` in units of 64 octets.

    ``promised`` is producer (modulo 2^32) + ``reserved``, ``occupied`` is producer - consumer
    modulo 2^32, ``taken`` is occupied + reserved, and ``some`` is reserved != 0: all kept beside
    them, so that each operation is one addition or one comparison.

    ``since`` CQEs have come since it was armed, the first (if ``begun``) at tick ``first``. Armed,
    it fires with the next CQE if ``since`` is ``enough`` or more.
    """

    valid: 1
    in_ring: _LARGEST_LOG2
    address: 58
    producer: 32
    promised: 33
    occupied: 32
    taken: 33
    reserved: 17
    some: 1
    armed: 1
    solicited: 1
    begun: 1
    since: 16
    first: 16
    enough: 16
    ticks: 16


class CompletionUnit(wiring.Component):
    """The CQs (section 6 of the device behaviour).

    Parameters
    ----------
    parameters : Parameters
    clients : int
        Units that reserve slots and complete.

    Members
    -------
    doorbells : In(stream.Signature(CqDoorbell))
        CQ numbers below ``n_cq``.
    credits : In(CreditSignature()).array(clients)
    completions : In(stream.Signature(Completion)).array(clients)
        Each for a slot reserved before.
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
        The CQs are being cleared after a reset, ``n_cq`` cycles.
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
                "completions": In(stream.Signature(Completion)).array(clients),
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
        m.submodules.notices = notices = NoticeQueue()
        m.submodules.timers = timers = ModerationTimers(n_cq)
        tick = self.time[exact_log2(TICK_CYCLES) :][:16]

        # Choice, in even cycles: the favoured one, if it has asked for a cycle, or else the first
        # in the order of the latencies that matter. One that asks is favoured in its turn, until
        # it is served.
        is_odd = Signal()
        slot = Signal(Slot)
        slot_valid = Signal()
        count = 2 * clients + 2
        chosen = Signal(count)  # one bit, or none; from the cycle after its choice until it is done
        chosen_valid = Signal()
        chosen_cq = Signal(16)
        completing, crediting = chosen[:clients], chosen[clients : 2 * clients]
        ringing, timing = chosen[-2], chosen[-1]
        credit_requests = [port.requests for port in self.credits]
        streams = (*self.completions, *credit_requests, self.doorbells, timers.due)
        offered = Signal(count)
        # By the cycle before, in which the one that is carried out now was chosen.
        may = Signal(count)
        may_next = Signal(count)
        favoured = Signal(count, init=1)
        hit = Signal()
        may_complete = notices.has_room & ~slot_valid & ~completing.any()
        m.d.comb += [
            offered.eq(Cat(item.valid for item in streams)),
            may_next.eq(
                Cat(
                    may_complete.replicate(clients),
                    *(
                        ~is_served & ~(port.granted.valid & ~port.granted.ready)
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
        m.d.sync += [
            may.eq(may_next),
            hit.eq((offered & may_next & favoured).any() & ~is_turn_over),
        ]

        requests = Signal(count)
        first_cq = Signal(16)
        choice_cq = Signal(16)
        favoured_cq = reduce(
            or_, (Mux(favoured[i], item.p.cq, 0) for i, item in enumerate(streams))
        )
        m.d.comb += requests.eq(offered & may)
        for index, item in reversed(list(enumerate(streams))):
            with m.If(requests[index]):
                m.d.comb += first_cq.eq(item.p.cq)
        m.d.comb += choice_cq.eq(Mux(hit, favoured_cq, first_cq))
        first = Cat(requests[i] & ~requests[:i].any() for i in range(count))
        choose = requests.any() & ~self.busy
        # The odd cycle after an operation writes its CQ's state, whether or not one follows.
        m.d.sync += is_odd.eq(~is_odd & (choose | chosen_valid))
        with m.If(~is_odd):
            m.d.sync += [
                chosen_valid.eq(choose),
                chosen.eq(Mux(self.busy, 0, Mux(hit, favoured, first))),
                chosen_cq.eq(choice_cq),
            ]
        # Requests stay until they are carried out, completions until the writer takes them.
        execute = Signal()
        m.d.comb += execute.eq(chosen_valid & ~is_odd)
        for index, item in enumerate(streams[clients:], clients):
            m.d.comb += item.ready.eq(chosen[index] & ~is_odd)
        release = Signal()
        urgent = Signal()
        m.d.sync += [
            release.eq(
                Cat(
                    is_chosen & (item.p.operation == CreditOperation.RELEASE)
                    for is_chosen, item in zip(crediting, credit_requests, strict=True)
                ).any()
            ),
            urgent.eq(
                Cat(
                    is_chosen
                    & (
                        (item.p.cqe.flags & CqeFlag.SOLICITED).any()
                        | (item.p.cqe.status != Status.SUCCESS)
                    )
                    for is_chosen, item in zip(completing, self.completions, strict=True)
                ).any()
            ),
        ]

        # State: read in even cycles, taken in odd ones, used in even ones, written in odd ones.
        m.submodules.states = states = memory.Memory(shape=_State, depth=n_cq, init=[])
        put, get = states.write_port(), states.read_port()
        sweep = Signal(width)
        state = Signal(_State)
        state_next = Signal(_State)
        in_range = Signal()
        # The state of the operation before, which may be of the same CQ.
        written = Signal(_State)
        written_cq = Signal(width)
        written_valid = Signal()
        read_state = Signal(_State)
        chosen_in_range = chosen_cq[width:] == 0
        m.d.comb += [
            get.addr.eq(choice_cq),
            get.en.eq(~is_odd & ~self.busy),
            put.addr.eq(Mux(self.busy, sweep, written_cq)),
            put.data.eq(Mux(self.busy, Const(0), written)),
            # Never beside a read: since synthesis can see that, it adds no logic behind the memory
            # for its sake.
            put.en.eq(self.busy | (written_valid & is_odd)),
            read_state.eq(
                Mux(written_valid & (written_cq == chosen_cq[:width]), written, get.data)
            ),
            timers.enable.eq(put.en),
            timers.cq.eq(put.addr),
            timers.timer.first.eq(put.data.first),
            timers.timer.ticks.eq(put.data.ticks),
            timers.timer.waiting.eq(_held_back(put.data)),
            timers.tick.eq(tick),
        ]
        with m.If(is_odd):
            m.d.sync += [
                state.eq(read_state),
                state.valid.eq(read_state.valid & chosen_in_range),
                in_range.eq(chosen_in_range),
            ]
        with m.If(execute):
            m.d.sync += [
                written.eq(state_next),
                written_cq.eq(chosen_cq),
                written_valid.eq(in_range),
            ]
        with m.If(self.busy):
            m.d.sync += [sweep.eq(sweep + 1), self.busy.eq(~sweep.all())]

        notice = Signal(Notice)
        give = Signal()
        m.d.comb += [
            state_next.eq(state),
            # What is found below counts only when the operation is carried out.
            notices.notice.cq.eq(chosen_cq),
            notices.notice.is_write.eq(notice.is_write & execute),
            notices.notice.set.eq(notice.set & execute),
            notices.notice.clear.eq(notice.clear & execute),
        ]
        doorbell = self.doorbells.p
        one_less = [
            state_next.reserved.eq(state.reserved - 1),
            state_next.some.eq(state.reserved[1:].any()),
        ]
        # Of the slots promised and of those taken.
        more = Signal()
        less = Signal()
        with m.If(more):
            m.d.comb += [
                state_next.promised.eq(state.promised + 1),
                state_next.taken.eq(state.taken + 1),
            ]
        with m.If(less):
            m.d.comb += [
                state_next.promised.eq(state.promised - 1),
                state_next.taken.eq(state.taken - 1),
            ]
        with m.If(ringing):
            row = doorbell.row
            moderation = Signal(MODERATION_ROW)
            m.d.comb += moderation.as_value().eq(doorbell.index)
            with m.If(doorbell.moderate):
                allows = state.begun & (state.since >= moderation.count)
                fires = state.armed & ~state.solicited & allows
                m.d.comb += [
                    state_next.enough.eq(
                        Mux(moderation.count == 0, 0, (moderation.count - 1)[:16])
                    ),
                    state_next.ticks.eq(moderation.ticks),
                    state_next.armed.eq(state.armed & ~fires),
                    notice.set.eq(fires),
                ]
            with m.Elif(doorbell.reset):
                m.d.comb += [
                    state_next.eq(0),
                    state_next.valid.eq(row.valid & (row.log2 <= _LARGEST_LOG2)),
                    state_next.in_ring.eq(Cat(row.log2 > bit for bit in range(_LARGEST_LOG2))),
                    state_next.address.eq(row.addr[6:]),
                    state_next.enough.eq(state.enough),
                    state_next.ticks.eq(state.ticks),
                    notice.clear.eq(1),
                ]
            with m.Else():
                occupied = state.producer - doorbell.index
                # occupied modulo 2^32, plus reserved, in one carry chain.
                taken = Signal(signed(35))
                m.d.comb += [
                    taken.eq(state.promised - doorbell.index),
                    state_next.occupied.eq(occupied),
                    state_next.taken.eq(Cat(taken[:32], Mux(occupied[32], ~taken[34], taken[32]))),
                ]
                with m.If(doorbell.arm):
                    differs = state.producer != doorbell.index
                    m.d.comb += [
                        state_next.armed.eq(~differs),
                        state_next.solicited.eq(doorbell.solicited),
                        state_next.begun.eq(0),
                        state_next.since.eq(0),
                        notice.set.eq(differs),
                    ]
        with m.Elif(crediting.any()):
            # taken < size, a power of two.
            beyond_ring = Cat(
                state.taken[:_LARGEST_LOG2] & ~state.in_ring, state.taken[_LARGEST_LOG2:]
            )
            m.d.comb += give.eq(state.valid & ~beyond_ring.any())
            # A client gives back or uses only what it reserved, unless the row was written since.
            with m.If(release):
                m.d.comb += less.eq(state.some)
                with m.If(state.some):
                    m.d.comb += one_less
            with m.Else():
                m.d.comb += more.eq(give)
                with m.If(give):
                    m.d.comb += [
                        state_next.reserved.eq(state.reserved + 1),
                        state_next.some.eq(1),
                    ]
        with m.Elif(completing.any()):
            # No slot is reserved of a CQ that is not valid: nothing of it changes.
            with m.If(state.valid):
                allows = ~state.solicited & (state.since >= state.enough)
                fires = state.armed & (urgent | allows)
                m.d.comb += [
                    more.eq(~state.some),
                    state_next.producer.eq(state.producer + 1),
                    state_next.occupied.eq(state.occupied + 1),
                    state_next.armed.eq(state.armed & ~fires),
                    state_next.begun.eq(1),
                    state_next.since.eq(state.since + 1),
                    state_next.first.eq(Mux(state.begun, state.first, tick)),
                    notice.is_write.eq(1),
                    notice.set.eq(fires),
                ]
                with m.If(state.some):
                    m.d.comb += one_less
                with m.If(state.producer.all()):
                    m.d.comb += state_next.promised[32].eq(0)
                with m.If(state.occupied.all()):
                    m.d.comb += state_next.taken[32].eq(0)
        with m.Elif(timing):
            # Neither armed anew nor moderated anew since the timer was looked at.
            due = timers.due.p
            fires = _held_back(state) & (Cat(state.first, state.ticks) == Cat(due.first, due.ticks))
            m.d.comb += [state_next.armed.eq(state.armed & ~fires), notice.set.eq(fires)]

        for index, port in enumerate(self.credits):
            with m.If(port.granted.ready):
                m.d.sync += port.granted.valid.eq(0)
            with m.If(~is_odd & crediting[index] & ~release):
                m.d.sync += [port.granted.valid.eq(1), port.granted.payload.eq(give)]

        # Slots to the writer.
        m.d.comb += [writer.slots.payload.eq(slot), writer.slots.valid.eq(slot_valid)]
        with m.If(writer.slots.ready):
            m.d.sync += slot_valid.eq(0)
        size = Cat(Const(1, 1), state.in_ring) & ~Cat(state.in_ring, Const(0, 1))
        offset = state.producer[:_LARGEST_LOG2] & state.in_ring
        with m.If(~is_odd & completing.any()):
            m.d.sync += [
                slot_valid.eq(1),
                slot.client.eq(_index(completing)),
                slot.address.eq(Cat(Const(0, 6), state.address + offset)),
                slot.phase.eq(~(state.producer[: len(size)] & size).any()),
                slot.time.eq(self.time),
                slot.discard.eq(~state.valid),
            ]
        m.d.comb += self.events.eq(writer.events)
        wiring.connect(m, wiring.flipped(self.write.bursts), writer.bursts)
        wiring.connect(m, wiring.flipped(self.write.beats), writer.beats)
        for outer, inner in zip(self.completions, writer.completions, strict=True):
            wiring.connect(m, wiring.flipped(outer), inner)

        m.d.sync += [
            self.cq_touched.eq(ringing & ~is_odd & ~doorbell.moderate),
            self.cq_touched_cq.eq(chosen_cq),
        ]
        m.d.comb += [
            notices.done.eq(self.write.done),
            notices.error.eq(self.write.error),
            self.irq_set.eq(notices.irq_set),
            self.irq_clear.eq(notices.irq_clear),
            self.irq_cq.eq(notices.irq_cq),
        ]
        wiring.connect(m, notices.event_requests, wiring.flipped(self.event_requests))
        waiting = sum((item.valid for item in self.completions), Const(0, 1))
        m.d.comb += self.pending.eq(notices.unanswered + waiting)
        return m


def _index(one_hot):
    """The number of the bit that is set."""
    return reduce(or_, (Mux(bit, index, 0) for index, bit in enumerate(one_hot)))


def _held_back(state):
    """Whether a CQ in this state waits for its ticks to fire."""
    return state.armed & ~state.solicited & state.begun & state.ticks.any()
