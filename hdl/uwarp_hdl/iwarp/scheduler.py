"""Send scheduler: which queue pair's next WQE is fetched.

::

    doorbells ----+                  +--> credits (RESERVE, RELEASE)
    retirements --+--> one machine --+--> fetches
    waiting QPs --+         |        +--> resets
         ^                  v
         +------ row of the QP (producer, next, messages in flight)

A QP with work stands in the queue of waiting QPs exactly once. In its turn it is looked up in the
QP table; not in RTS, without a CQ slot or without a message slot it goes to the queue's end and is
asked again. A turn takes 5 cycles and the answer of the completion queues, in whose time
retirements are taken; a doorbell or a retirement by itself takes 2 to 4. A doorbell that nobody
waits beside is its QP's turn at once.
"""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters, QpState

from ..interfaces import CreditSignature, TableReadSignature
from ..layouts import QP_ROW, CreditOperation, RingDoorbell
from ..stream.queue import Queue

__all__ = [
    "EPOCH_WIDTH",
    "EXTRA_SLOTS",
    "SendScheduler",
    "all_slots",
    "fetch_layout",
    "qp_width",
    "retirement_layout",
    "slot_count",
    "slot_width",
]

#: Messages that are fetched ahead, beyond the one that every QP may have. A message of one small
#: datagram holds its slot for two read latencies, 500 cycles, and the wire takes one in 12 to 20.
EXTRA_SLOTS = 64

#: Bits of the number of a QP's resets that a message carries: one of an earlier life is dropped.
EPOCH_WIDTH = 4


def qp_width(parameters: Parameters) -> int:
    """Bits of a QP's or CQ's number."""
    return (parameters.n_qp - 1).bit_length()


def slot_count(parameters: Parameters) -> int:
    """Messages that can be between their fetch and their completion."""
    return parameters.n_qp + EXTRA_SLOTS


def all_slots(parameters: Parameters) -> int:
    """Slots of messages, and behind them those of responses."""
    return slot_count(parameters) + parameters.n_read


def slot_width(parameters: Parameters) -> int:
    return (all_slots(parameters) - 1).bit_length()


def fetch_layout(parameters: Parameters) -> data.StructLayout:
    """A WQE to fetch: entry ``offset`` of the ring, with its extension if ``wide``; the rest goes
    with its message."""
    return data.StructLayout(
        {
            "qpn": qp_width(parameters),
            "slot": slot_width(parameters),
            "epoch": EPOCH_WIDTH,
            "index": 16,
            "cq": qp_width(parameters),
            "pd": 16,
            "path_mtu": 16,
            "wide": 1,
            "sq_addr": 56,
            "offset": 15,
        }
    )


def retirement_layout(parameters: Parameters) -> data.StructLayout:
    """A message that has completed; ``release`` if its CQ slot was not used."""
    return data.StructLayout(
        {
            "qpn": qp_width(parameters),
            "slot": slot_width(parameters),
            "cq": qp_width(parameters),
            "release": 1,
        }
    )


class SendScheduler(wiring.Component):
    """Hand out WQE fetches to the QPs that have work, in turn.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    doorbells : In(stream of RingDoorbell)
    retirements : In(stream of retirement_layout)
        Frees the message slot, and gives back the CQ slot on ``release``.
    fetches : Out(stream of fetch_layout)
        Each has a CQ slot reserved and a message slot of its own.
    resets : Out(stream of QPN)
        The QP begins anew; taken before any later fetch of that QP.
    qp : Out(TableReadSignature)
    qp_taken : In(1)
        Another unit uses the QP table's read port in this cycle.
    credits : Out(CreditSignature)
    failed : In(n_qp)
        QPs that have failed: they wait as those do that are not in RTS.
    enable : In(1)
        While 0 nothing is fetched.
    busy : Out(1)
        The rows are being cleared after a reset.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        width, n_qp = qp_width(parameters), parameters.n_qp
        super().__init__(
            {
                "doorbells": In(stream.Signature(RingDoorbell)),
                "retirements": In(stream.Signature(retirement_layout(parameters))),
                "fetches": Out(stream.Signature(fetch_layout(parameters))),
                "resets": Out(stream.Signature(width)),
                "qp": Out(TableReadSignature(QP_ROW, width)),
                "qp_taken": In(1),
                "credits": Out(CreditSignature()),
                "failed": In(n_qp),
                "enable": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n_qp, n_slots = self._parameters.n_qp, slot_count(self._parameters)
        row_layout = data.StructLayout(
            {
                "producer": 32,
                "next": 32,
                "in_flight": range(n_slots + 1),
                "epoch": EPOCH_WIDTH,
                "waiting": 1,
            }
        )
        m.submodules.rows = rows = Memory(shape=row_layout, depth=n_qp, init=[])
        read, write = rows.read_port(), rows.write_port()
        m.submodules.waiting = waiting = Queue(qp_width(self._parameters), n_qp)
        m.submodules.free = free = Queue(slot_width(self._parameters), n_slots, direct=False)

        doorbell, retirement, request = self.doorbells.p, self.retirements.p, self.credits.requests
        qpn = Signal(qp_width(self._parameters))
        row = Signal(row_layout)
        qp = Signal(QP_ROW)
        failed = Signal()
        extra = Signal(range(EXTRA_SLOTS + 1))
        sweep = Signal(range(n_slots))
        fetch = self.fetches.p
        next_index = Signal(32)
        reserve = Signal()
        retire = Signal()
        at_once = Signal()  # the doorbell's QP has its turn

        m.d.comb += [
            write.addr.eq(qpn),
            write.data.eq(row),
            waiting.i.p.eq(qpn),
            free.i.p.eq(retirement.slot),
            self.qp.index.eq(waiting.o.p),
            self.resets.p.eq(qpn),
            next_index.eq(row.next + 1),
            fetch.qpn.eq(qpn),
            fetch.slot.eq(free.o.p),
            fetch.epoch.eq(row.epoch),
            fetch.index.eq(row.next),
            fetch.cq.eq(qp.send_cq),
            fetch.pd.eq(qp.pd),
            fetch.path_mtu.eq(qp.path_mtu),
            fetch.wide.eq(qp.sq_wide),
            fetch.sq_addr.eq(qp.sq_addr),
            fetch.offset.eq(row.next & ((1 << qp.sq_log2) - 1)),
        ]

        with m.FSM(init="CLEAR") as fsm:
            with m.State("CLEAR"):
                m.d.comb += [
                    self.busy.eq(1),
                    write.addr.eq(sweep),
                    write.data.eq(0),
                    write.en.eq(sweep < n_qp),
                    free.i.p.eq(sweep),
                    free.i.valid.eq(1),
                ]
                m.d.sync += sweep.eq(sweep + 1)
                with m.If(sweep == n_slots - 1):
                    m.next = "IDLE"

            with m.State("IDLE"):
                with m.If(self.doorbells.valid):
                    m.d.comb += read.addr.eq(doorbell.qpn)
                    m.d.sync += qpn.eq(doorbell.qpn)
                    m.next = "DOORBELL"
                with m.Elif(self.retirements.valid):
                    m.d.comb += read.addr.eq(retirement.qpn)
                    m.d.sync += qpn.eq(retirement.qpn)
                    m.next = "RETIRE"
                with m.Elif(waiting.o.valid & self.enable & ~self.qp_taken):
                    m.d.comb += [read.addr.eq(waiting.o.p), waiting.o.ready.eq(1)]
                    m.d.sync += qpn.eq(waiting.o.p)
                    m.next = "LOOK"

            with m.State("DOORBELL"):
                m.d.comb += write.data.eq(read.data)
                with m.If(doorbell.qpn >= n_qp):
                    m.d.comb += self.doorbells.ready.eq(1)
                    m.next = "IDLE"
                with m.Elif(doorbell.reset):
                    # The QP stays in the queue if it is there: its next turn finds no work.
                    m.d.comb += self.resets.valid.eq(1)
                    with m.If(self.resets.ready):
                        m.d.comb += [
                            write.data.producer.eq(0),
                            write.data.next.eq(0),
                            write.data.epoch.eq(read.data.epoch + 1),
                            write.en.eq(1),
                            self.doorbells.ready.eq(1),
                        ]
                        m.next = "IDLE"
                    with m.Else():
                        m.d.comb += read.addr.eq(qpn)
                with m.Else():
                    m.d.comb += [
                        write.data.producer.eq(doorbell.index),
                        write.data.waiting.eq(1),
                        write.en.eq(1),
                        waiting.i.valid.eq(~read.data.waiting & ~at_once),
                        self.doorbells.ready.eq(1),
                        self.qp.index.eq(qpn),
                    ]
                    m.d.sync += [
                        row.eq(read.data),
                        row.producer.eq(doorbell.index),
                        row.waiting.eq(1),
                    ]
                    m.next = "IDLE"
                    with m.If(~waiting.o.valid & self.enable & ~self.qp_taken):
                        with m.If(~read.data.waiting):
                            m.d.comb += at_once.eq(1)
                            m.next = "LOOK_QP"

            with m.State("RETIRE"):
                m.d.comb += retire.eq(1)
                with m.If(retirement.release):
                    m.next = "RELEASE"
                with m.Else():
                    m.d.comb += self.retirements.ready.eq(1)
                    m.next = "IDLE"

            with m.State("RELEASE"):
                m.d.comb += [
                    request.p.operation.eq(CreditOperation.RELEASE),
                    request.p.cq.eq(retirement.cq),
                    request.valid.eq(1),
                    self.retirements.ready.eq(request.ready),
                ]
                with m.If(request.ready):
                    m.next = "IDLE"

            with m.State("LOOK"):
                m.d.sync += row.eq(read.data)
                m.next = "DECIDE"

            with m.State("LOOK_QP"):
                m.next = "DECIDE"

            with m.State("DECIDE"):
                with m.If(row.producer == row.next):
                    m.d.comb += [write.data.waiting.eq(0), write.en.eq(1)]
                    m.next = "IDLE"
                with m.Elif(
                    (qp.state != QpState.RTS)
                    | failed
                    | (row.in_flight.any() & (extra == EXTRA_SLOTS))
                ):
                    m.d.comb += waiting.i.valid.eq(1)
                    m.next = "IDLE"
                with m.Else():
                    m.d.comb += reserve.eq(1)
                    m.next = "RESERVE"
                    with m.If(request.ready):
                        m.next = "GRANT"

            with m.State("RESERVE"):
                m.d.comb += reserve.eq(1)
                with m.If(request.ready):
                    m.next = "GRANT"

            with m.State("GRANT"):
                m.d.comb += [
                    self.credits.granted.ready.eq(1),
                    read.addr.eq(retirement.qpn),
                ]
                with m.If(self.credits.granted.valid):
                    with m.If(self.credits.granted.p):
                        m.next = "FETCH"
                    with m.Else():
                        m.d.comb += waiting.i.valid.eq(1)
                        m.next = "IDLE"
                with m.Elif(self.retirements.valid & ~retirement.release):
                    m.next = "GRANT_RETIRE"

            with m.State("GRANT_RETIRE"):
                m.d.comb += [
                    retire.eq(1),
                    write.addr.eq(retirement.qpn),
                    self.retirements.ready.eq(1),
                ]
                with m.If(retirement.qpn == qpn):
                    m.d.sync += row.in_flight.eq(row.in_flight - 1)
                m.next = "GRANT"

            with m.State("FETCH"):
                m.d.comb += self.fetches.valid.eq(free.o.valid)
                with m.If(free.o.valid & self.fetches.ready):
                    more = next_index != row.producer
                    m.d.comb += [
                        free.o.ready.eq(1),
                        write.data.next.eq(next_index),
                        write.data.in_flight.eq(row.in_flight + 1),
                        write.data.waiting.eq(more),
                        write.en.eq(1),
                        waiting.i.valid.eq(more),
                    ]
                    with m.If(row.in_flight.any()):
                        m.d.sync += extra.eq(extra + 1)
                    m.next = "IDLE"

        with m.If(fsm.ongoing("LOOK") | fsm.ongoing("LOOK_QP")):
            m.d.sync += [qp.eq(self.qp.row), failed.eq(self.failed.bit_select(qpn, 1))]
        with m.If(reserve):
            m.d.comb += [
                request.p.operation.eq(CreditOperation.RESERVE),
                request.p.cq.eq(qp.send_cq),
                request.valid.eq(1),
            ]
        with m.If(retire):
            m.d.comb += [
                write.data.eq(read.data),
                write.data.in_flight.eq(read.data.in_flight - 1),
                write.en.eq(1),
                free.i.valid.eq(1),
            ]
            with m.If(read.data.in_flight > 1):
                m.d.sync += extra.eq(extra - 1)
        return m
