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

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, enum, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter, Parameters

from ..interfaces import CreditSignature, WriteClientSignature
from ..layouts import Completion, CqDoorbell, CreditOperation, EventRequest
from ..stream.arbiter import RoundRobin
from .cqe_writer import CqeWriter, Slot
from .notices import NoticeQueue

__all__ = ["CompletionUnit"]

_LARGEST_LOG2 = 16


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
                "events": Out(len(Counter)),
                "event_requests": Out(stream.Signature(EventRequest)),
                "pending": Out(8),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        clients = self._clients
        m.submodules.writer = writer = CqeWriter(clients)
        m.submodules.notices = notices = NoticeQueue()
        m.submodules.turn = turn = RoundRobin(1 + 2 * clients)

        # Choice, in even cycles. By the next choice but one the operation has been carried out.
        is_odd = Signal()
        chosen = Signal(_Operation)
        chosen_valid = Signal()
        slot = Signal(Slot)
        slot_valid = Signal()

        may_notice = notices.has_room
        completes = Signal()  # the operation chosen, or the one before
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
            get.en.eq(is_odd & ~self.busy),
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
            # In even cycles as it is: said for synthesis to see that no read is beside it.
            m.d.comb += put.en.eq(written_valid & ~is_odd)

        in_ring = Signal(_LARGEST_LOG2)  # the bits of an index that count in the ring
        notice = notices.notice
        give = Signal()
        m.d.comb += [
            in_ring.eq(Cat(state.log2 > bit for bit in range(_LARGEST_LOG2))),
            completes.eq(
                (chosen_valid & (chosen.kind == _Kind.COMPLETE))
                | (active & (kind == _Kind.COMPLETE))
            ),
            state_next.eq(state),
            notice.cq.eq(cq),
        ]
        # A client gives back or uses only what it reserved, unless the row was written since.
        gives_back = state.reserved != 0
        reserved_less = Mux(gives_back, (state.reserved - 1)[:17], state.reserved)
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
                        occupied = state.producer - doorbell.index
                        # occupied modulo 2^32, plus reserved, in one carry chain.
                        taken = Signal(signed(35))
                        m.d.comb += [
                            taken.eq(state.producer + state.reserved - doorbell.index),
                            state_next.occupied.eq(occupied),
                            state_next.taken.eq(
                                Cat(taken[:32], Mux(occupied[32], ~taken[34], taken[32]))
                            ),
                        ]
                        with m.If(doorbell.arm):
                            differs = state.producer != doorbell.index
                            m.d.comb += [state_next.armed.eq(~differs), notice.set.eq(differs)]
                with m.Case(_Kind.CREDIT):
                    with m.If(release):
                        m.d.comb += [
                            state_next.reserved.eq(reserved_less),
                            state_next.taken.eq(Mux(gives_back, state.taken - 1, state.taken)),
                        ]
                    with m.Else():
                        # taken < size, a power of two.
                        beyond_ring = Cat(
                            state.taken[:_LARGEST_LOG2] & ~in_ring, state.taken[_LARGEST_LOG2:]
                        )
                        m.d.comb += give.eq(state.valid & ~beyond_ring.any())
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
                        state_next.taken.eq(
                            Mux(state.valid & ~gives_back, state.taken + 1, state.taken)
                        ),
                        state_next.armed.eq(state.armed & ~state.valid),
                        notice.is_write.eq(state.valid),
                        notice.set.eq(state.valid & state.armed),
                    ]
                    with m.If(state.valid & state.occupied.all()):
                        m.d.comb += state_next.taken[32].eq(0)

        for index, port in enumerate(self.credits):
            with m.If(port.granted.ready):
                m.d.sync += port.granted.valid.eq(0)
            with m.If(execute & (kind == _Kind.CREDIT) & ~release & (client == index)):
                m.d.sync += [port.granted.valid.eq(1), port.granted.payload.eq(give)]

        # Slots to the writer.
        m.d.comb += [writer.slots.payload.eq(slot), writer.slots.valid.eq(slot_valid)]
        with m.If(writer.slots.ready):
            m.d.sync += slot_valid.eq(0)
        # In the cycle after: operation and state stay until its end.
        offset = Signal(_LARGEST_LOG2)
        m.d.sync += offset.eq(state.producer[:_LARGEST_LOG2] & in_ring)
        with m.If(active & ~is_odd & (kind == _Kind.COMPLETE)):
            m.d.sync += [
                slot_valid.eq(1),
                slot.client.eq(client),
                slot.address.eq(Cat(Const(0, 6), state.address + offset)),
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

        m.d.comb += [
            notices.done.eq(self.write.done),
            notices.error.eq(self.write.error),
            self.irq_set.eq(notices.irq_set),
            self.irq_clear.eq(notices.irq_clear),
            self.irq_cq.eq(notices.irq_cq),
        ]
        wiring.connect(m, notices.event_requests, wiring.flipped(self.event_requests))
        offered = sum((item.valid for item in self.completions), Const(0, 1))
        m.d.comb += self.pending.eq(notices.unanswered + offered)
        return m
