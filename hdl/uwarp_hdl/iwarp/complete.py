"""Completion queues: slots given out and taken back, CQEs written, interrupts fired.

::

    doorbells ----+                      +--> granted
    credits[*] ---+-> round robin -> state of the CQ, one operation every two cycles
    completions[*]+                      |          |
         |                             slot     notices (in order) --> irq_set, irq_clear
         +---------------------------> CqeWriter ---|--> write            ^
                                                    +---- done -----------+

Every two cycles an operation (doorbell, reservation, release, slot for a CQE) begins: it is chosen,
the CQ's state is read, taken, changed and written back. A reservation is answered 4 or 5 cycles
after it is asked for in an idle unit. Writing a CQE takes 8 cycles,
beside the operations. An interrupt fires when the CQE that causes it is in memory (its write
answered).
"""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, enum, fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import CQE, Counter, Parameters, Status

from ..interfaces import CreditSignature, WriteClientSignature
from ..layouts import Completion, CqDoorbell, CreditOperation, structure_layout
from ..stream.arbiter import RoundRobin

__all__ = ["CompletionUnit", "CqeWriter", "Slot"]

#: CQEs and interrupts that wait for answers of the bus.
NOTICES = 32

_CQE_LAYOUT = structure_layout(CQE)
_CQE_BEATS = CQE.size // 8
_LARGEST_LOG2 = 16


class Slot(data.Struct):
    """A slot of a ring for the completion at the head of ``client``'s stream.

    With ``discard`` the completion's CQ has no ring any more, and it is dropped.
    """

    client: 4
    address: 64
    phase: 1
    discard: 1


class _State(data.Struct):
    """A CQ. ``address`` in units of 64 octets; ``occupied`` is producer - consumer modulo 2^32.

    ``taken`` is occupied + reserved, kept beside them so that a reservation compares at once.
    """

    valid: 1
    log2: 5
    address: 58
    producer: 32
    occupied: 32
    taken: 33
    reserved: 17
    armed: 1


class _Notice(data.Struct):
    """What happens when all CQEs before it, and itself if it is one, are in memory."""

    is_write: 1
    set: 1
    clear: 1
    cq: 16


class _Kind(enum.Enum, shape=2):
    DOORBELL = 0
    CREDIT = 1
    COMPLETE = 2


class _Operation(data.Struct):
    kind: _Kind
    client: 4
    cq: 16
    release: 1
    doorbell: CqDoorbell


class CqeWriter(wiring.Component):
    """Write completions into the slots given.

    The first word is offered in the cycle after slot and completion meet; with a slot always
    waiting one CQE follows the other without a gap.

    Parameters
    ----------
    clients : int

    Members
    -------
    slots : In(stream.Signature(Slot))
    completions : In(stream.Signature(Completion)).array(clients)
    time : In(47)
        Cycles; goes into the CQE when its writing begins.
    bursts, beats : Out
        As in ``WriteClientSignature``.
    events : Out(len(Counter))
    """

    def __init__(self, clients: int) -> None:
        write = WriteClientSignature().members
        super().__init__(
            {
                "slots": In(stream.Signature(Slot)),
                "completions": In(stream.Signature(Completion)).array(clients),
                "time": In(47),
                "bursts": write["bursts"],
                "beats": write["beats"],
                "events": Out(len(Counter)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        slot = self.slots.payload
        words = Signal(8 * CQE.size)
        position = Signal(range(_CQE_BEATS))
        is_last = position == _CQE_BEATS - 1
        free = (~self.beats.valid | (self.beats.ready & is_last)) & (
            ~self.bursts.valid | self.bursts.ready
        )
        begin = free & self.slots.valid

        cqe = Signal(_CQE_LAYOUT)
        chosen = Array(item.payload.cqe for item in self.completions)[slot.client]
        m.d.comb += [
            cqe.eq(chosen),
            cqe.time_low.eq(self.time),
            cqe.time_high.eq(self.time[31:]),
            cqe.phase.eq(slot.phase),
            self.slots.ready.eq(free),
        ]
        for index, item in enumerate(self.completions):
            m.d.comb += item.ready.eq(begin & (slot.client == index))

        m.d.comb += [
            self.bursts.p.beats.eq(_CQE_BEATS - 1),
            self.beats.p.data.eq(words[:64]),
            self.beats.p.strobe.eq(0xFF),
            self.beats.p.last.eq(is_last),
        ]
        with m.If(self.bursts.ready):
            m.d.sync += self.bursts.valid.eq(0)
        with m.If(self.beats.valid & self.beats.ready):
            m.d.sync += [
                words.eq(words[64:]),
                position.eq(position + 1),
                self.beats.valid.eq(~is_last),
            ]
        with m.If(begin):
            m.d.sync += [
                self.bursts.p.address.eq(slot.address),
                self.bursts.valid.eq(~slot.discard),
                self.beats.valid.eq(~slot.discard),
                words.eq(cqe),
                position.eq(0),
            ]
        written = begin & ~slot.discard
        m.d.sync += [
            self.events[Counter.CQES].eq(written),
            self.events[Counter.MESSAGES_PARTIAL].eq(written & (cqe.status == Status.PARTIAL)),
        ]
        return m


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
    events : Out(len(Counter))
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
                "events": Out(len(Counter)),
                "pending": Out(8),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        clients = self._clients
        m.submodules.writer = writer = CqeWriter(clients)
        m.submodules.notices = notices = fifo.SyncFIFO(
            width=len(Signal(_Notice).as_value()), depth=NOTICES
        )
        m.submodules.turn = turn = RoundRobin(1 + 2 * clients)

        # Choice, in even cycles. By the next choice but one the operation has been carried out.
        is_odd = Signal()
        chosen = Signal(_Operation)
        chosen_valid = Signal()
        slot = Signal(Slot)
        slot_valid = Signal()

        # Operations may be on their way to the queue of notices when the choice is made.
        may_notice = Signal()
        m.d.sync += may_notice.eq(notices.level < NOTICES - 4)
        completes = chosen_valid & (chosen.kind == _Kind.COMPLETE)
        may_complete = may_notice & ~slot_valid & ~completes
        requests = [self.doorbells.valid & may_notice]
        requested = [self.doorbells.p.cq]
        ready = [self.doorbells.ready]
        for index, port in enumerate(self.credits):
            answering = chosen_valid & (chosen.kind == _Kind.CREDIT) & (chosen.client == index)
            requests.append(port.requests.valid & ~port.granted.valid & ~answering)
            requested.append(port.requests.p.cq)
            ready.append(port.requests.ready)
        for item in self.completions:
            requests.append(item.valid & may_complete)
            requested.append(item.p.cq)
        m.d.comb += [
            turn.requests.eq(Cat(requests)),
            turn.advance.eq(turn.valid & ~is_odd & ~self.busy),
        ]
        for index, signal in enumerate(ready):
            m.d.comb += signal.eq(turn.advance & (turn.index == index))
        m.d.sync += is_odd.eq(~is_odd)
        with m.If(~is_odd):
            m.d.sync += [
                chosen_valid.eq(turn.advance),
                chosen.cq.eq(Array(requested)[turn.index]),
                chosen.doorbell.eq(self.doorbells.p),
            ]
            with m.If(turn.index == 0):
                m.d.sync += chosen.kind.eq(_Kind.DOORBELL)
            with m.Elif(turn.index <= clients):
                m.d.sync += [
                    chosen.kind.eq(_Kind.CREDIT),
                    chosen.client.eq(turn.index - 1),
                ]
            with m.Else():
                m.d.sync += [
                    chosen.kind.eq(_Kind.COMPLETE),
                    chosen.client.eq(turn.index - 1 - clients),
                ]
            for index, port in enumerate(self.credits):
                is_release = port.requests.p.operation == CreditOperation.RELEASE
                with m.If(turn.index == 1 + index):
                    m.d.sync += chosen.release.eq(is_release)

        # State: read in odd cycles, taken in even ones, used in odd ones, written in even ones.
        operation = Signal(_Operation)
        active = Signal()
        kind, client, cq = operation.kind, operation.client, operation.cq
        release, doorbell = operation.release, operation.doorbell
        n_cq = self._parameters.n_cq
        width = (n_cq - 1).bit_length()
        m.submodules.states = states = memory.Memory(shape=_State, depth=n_cq, init=[])
        put = states.write_port()
        get = states.read_port()
        sweep = Signal(width)
        state = Signal(_State)
        state_next = Signal(_State)
        in_range = Signal()
        execute = active & is_odd
        # The operation before is written while this one's state is taken: they may share a CQ.
        written = Signal(_State)
        written_cq = Signal(16)
        written_valid = Signal()
        read_state = Signal(_State)
        m.d.comb += [
            get.addr.eq(chosen.cq),
            put.addr.eq(written_cq),
            put.data.eq(written),
            read_state.eq(Mux(written_valid & (written_cq == chosen.cq), written, get.data)),
        ]
        m.d.sync += [
            written.eq(state_next),
            written_cq.eq(cq),
            written_valid.eq(execute & in_range),
        ]
        with m.If(~is_odd):
            chosen_in_range = chosen.cq[width:] == 0
            m.d.sync += [
                operation.eq(chosen),
                active.eq(chosen_valid),
                state.eq(read_state),
                state.valid.eq(read_state.valid & chosen_in_range),
                in_range.eq(chosen_in_range),
            ]
        with m.If(self.busy):
            m.d.comb += [put.addr.eq(sweep), put.data.eq(Const(0)), put.en.eq(1)]
            m.d.sync += [sweep.eq(sweep + 1), self.busy.eq(~sweep.all())]
        with m.Else():
            m.d.comb += put.en.eq(written_valid)

        size = Signal(17)
        notice = Signal(_Notice)
        give = Signal()
        m.d.comb += [
            size.eq(Const(1, 17) << state.log2),
            state_next.eq(state),
            notice.cq.eq(cq),
            notices.w_data.eq(notice),
        ]
        # A client gives back or uses only what it reserved, unless the row was written since.
        gives_back = state.reserved != 0
        reserved_less = state.reserved - gives_back
        with m.If(execute):
            with m.Switch(kind):
                with m.Case(_Kind.DOORBELL):
                    row = doorbell.row
                    with m.If(doorbell.reset):
                        m.d.comb += [
                            state_next.eq(0),
                            state_next.valid.eq(row.valid & (row.log2 <= _LARGEST_LOG2)),
                            state_next.log2.eq(row.log2),
                            state_next.address.eq(row.addr[6:]),
                            notice.clear.eq(1),
                        ]
                    with m.Else():
                        occupied = (state.producer - doorbell.index)[:32]
                        m.d.comb += [
                            state_next.occupied.eq(occupied),
                            state_next.taken.eq(occupied + state.reserved),
                        ]
                        with m.If(doorbell.arm):
                            differs = state.producer != doorbell.index
                            m.d.comb += [state_next.armed.eq(~differs), notice.set.eq(differs)]
                with m.Case(_Kind.CREDIT):
                    with m.If(release):
                        m.d.comb += [
                            state_next.reserved.eq(reserved_less),
                            state_next.taken.eq(state.taken - gives_back),
                        ]
                    with m.Else():
                        # taken < size, a power of two.
                        m.d.comb += give.eq(state.valid & ((state.taken >> state.log2) == 0))
                        with m.If(give):
                            m.d.comb += [
                                state_next.reserved.eq(state.reserved + 1),
                                state_next.taken.eq(state.taken + 1),
                            ]
                with m.Case(_Kind.COMPLETE):
                    # Armed means that the producer is where CQ_ARM saw it: any CQE makes it differ.
                    m.d.comb += [
                        state_next.reserved.eq(reserved_less),
                        state_next.producer.eq(state.producer + state.valid),
                        state_next.occupied.eq(state.occupied + state.valid),
                        state_next.taken.eq(state.taken + (state.valid & ~gives_back)),
                        state_next.armed.eq(state.armed & ~state.valid),
                        notice.is_write.eq(state.valid),
                        notice.set.eq(state.valid & state.armed),
                    ]
                    with m.If(state.valid & state.occupied.all()):
                        m.d.comb += state_next.taken[32].eq(0)
        m.d.comb += notices.w_en.eq(notice.is_write | notice.set | notice.clear)

        for index, port in enumerate(self.credits):
            with m.If(port.granted.ready):
                m.d.sync += port.granted.valid.eq(0)
            with m.If(execute & (kind == _Kind.CREDIT) & ~release & (client == index)):
                m.d.sync += [port.granted.valid.eq(1), port.granted.payload.eq(give)]

        # Slots to the writer.
        m.d.comb += [writer.slots.payload.eq(slot), writer.slots.valid.eq(slot_valid)]
        with m.If(writer.slots.ready):
            m.d.sync += slot_valid.eq(0)
        with m.If(execute & (kind == _Kind.COMPLETE)):
            offset = state.producer & (size - 1)
            m.d.sync += [
                slot_valid.eq(1),
                slot.client.eq(client),
                slot.address.eq(Cat(Const(0, 6), state.address + offset[:_LARGEST_LOG2])),
                slot.phase.eq(~state.producer.bit_select(state.log2, 1)),
                slot.discard.eq(~state.valid),
            ]
        m.d.comb += [
            writer.time.eq(self.time),
            self.events.eq(writer.events),
        ]
        wiring.connect(m, wiring.flipped(self.write.bursts), writer.bursts)
        wiring.connect(m, wiring.flipped(self.write.beats), writer.beats)
        for outer, inner in zip(self.completions, writer.completions, strict=True):
            wiring.connect(m, wiring.flipped(outer), inner)

        # Notices, once the CQEs before them are in memory.
        head = data.View(_Notice, notices.r_data)
        answered = Signal(range(NOTICES + 1))
        unanswered = Signal(range(NOTICES + 1))
        due = notices.r_rdy & (~head.is_write | (answered != 0))
        m.d.comb += notices.r_en.eq(due)
        m.d.sync += [
            answered.eq(answered + self.write.done - (due & head.is_write)),
            unanswered.eq(unanswered + (notices.w_en & notice.is_write) - (due & head.is_write)),
            self.irq_set.eq(due & head.set),
            self.irq_clear.eq(due & head.clear),
            self.irq_cq.eq(head.cq),
        ]
        offered = sum((item.valid for item in self.completions), Const(0, 1))
        m.d.comb += self.pending.eq(unanswered + offered)
        return m
