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
retirements are taken; a doorbell or a retirement by itself takes 3 or 4. A doorbell that nobody
waits beside is its QP's turn at once.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters, QpState

from ..compare import at_least
from ..interfaces import CreditSignature, TableReadSignature
from ..layouts import QP_ROW, CreditOperation, RingDoorbell
from ..stream.queue import Queue
from .tables import QP_READS, half_words

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
    """A WQE to fetch: ``entry`` is its DMA address in units of 64 octets, ``wide`` says that it has
    an extension; the rest goes with its message."""
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
            "entry": 58,
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
    qp_failed : In(1)
        With ``qp.row``: the QP has failed. It waits as those do that are not in RTS.
    enable : In(1)
        While 0 nothing is fetched.
    busy : Out(1)
        The rows are being cleared after a reset.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        width = qp_width(parameters)
        super().__init__(
            {
                "doorbells": In(stream.Signature(RingDoorbell)),
                "retirements": In(stream.Signature(retirement_layout(parameters))),
                "fetches": Out(stream.Signature(fetch_layout(parameters))),
                "resets": Out(stream.Signature(width)),
                "qp": Out(TableReadSignature(QP_ROW, width, 4)),
                "qp_taken": In(1),
                "credits": Out(CreditSignature()),
                "qp_failed": In(1),
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
                "epoch": EPOCH_WIDTH,
                "waiting": 1,
                "work": 1,  # ``producer`` is not ``next``
            }
        )
        flight = range(n_slots + 1)
        m.submodules.rows = rows = Memory(shape=row_layout, depth=n_qp, init=[])
        read, write = rows.read_port(), rows.write_port()
        m.submodules.flights = flights = Memory(
            shape=flight, depth=n_qp, init=[], attrs={"ram_style": "block"}
        )
        flight_read, flight_write = flights.read_port(), flights.write_port()
        m.submodules.waiting = waiting = Queue(qp_width(self._parameters), n_qp)
        m.submodules.free = free = Queue(slot_width(self._parameters), n_slots, direct=False)

        doorbell, retirement, request = self.doorbells.p, self.retirements.p, self.credits.requests
        qpn = Signal(qp_width(self._parameters))
        row = Signal(row_layout)
        in_flight = Signal(flight)
        retiring = Signal(flight)  # messages in flight of the QP of a retirement
        qp = Signal(QP_ROW)
        failed = Signal()
        extra = Signal(range(EXTRA_SLOTS + 1))
        extra_full = Signal()
        slot = Signal(slot_width(self._parameters))  # of the next message, if ``slot_valid``
        slot_valid = Signal()
        sweep = Signal(range(n_slots))
        offset = Signal(16)
        fetch = self.fetches.p
        next_index = Signal(32)
        more = Signal()  # work after this WQE
        reserve = Signal()
        retire = Signal()
        retired = Signal(flight)  # one less
        more_extra, less_extra = Signal(), Signal()
        row_loads, rings, qp_loads = Signal(), Signal(), Signal()
        may_look = Signal()
        qp_asks = Signal()  # the first part of a row is asked for
        qp_known = Signal()  # all of it is there
        at_once = Signal()  # the doorbell's QP has its turn

        m.d.comb += may_look.eq(self.enable & ~self.qp_taken & ~self.qp.held)
        # Nothing is read while something is written.
        m.d.comb += [
            read.en.eq(~write.en),
            flight_read.en.eq(~flight_write.en),
            flight_read.addr.eq(read.addr),
            write.addr.eq(qpn),
            write.data.eq(row),
            flight_write.addr.eq(qpn),
            waiting.i.p.eq(qpn),
            free.i.p.eq(retirement.slot),
            self.qp.index.eq(waiting.o.p),
            self.resets.p.eq(qpn),
            fetch.qpn.eq(qpn),
            fetch.slot.eq(slot),
            free.o.ready.eq(~slot_valid),
            fetch.epoch.eq(row.epoch),
            fetch.index.eq(row.next),
            fetch.cq.eq(qp.send_cq),
            fetch.pd.eq(qp.pd),
            fetch.path_mtu.eq(qp.path_mtu),
            fetch.wide.eq(qp.sq_wide),
        ]
        # Known two cycles after ``row`` and ``qp`` are, which is when a fetch may begin.
        place = Cat(
            bit & at_least(qp.sq_log2, index + 1) for index, bit in enumerate(row.next[:15])
        )
        m.d.sync += [
            next_index.eq(row.next + 1),
            more.eq(next_index != row.producer),
            offset.eq(Mux(qp.sq_wide, place << 1, place)),
            fetch.entry.eq(Cat(qp.sq_addr[0] & ~qp.sq_wide, qp.sq_addr[1:]) + offset),
            extra_full.eq(extra == EXTRA_SLOTS),
            retiring.eq(flight_read.data),
        ]
        with m.If(~slot_valid):
            m.d.sync += [slot.eq(free.o.p), slot_valid.eq(free.o.valid)]

        with m.FSM(init="CLEAR") as fsm:
            with m.State("CLEAR"):
                # ``row`` is 0.
                m.d.comb += [
                    self.busy.eq(1),
                    write.addr.eq(sweep),
                    write.en.eq(sweep < n_qp),
                    flight_write.addr.eq(sweep),
                    flight_write.en.eq(sweep < n_qp),
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
                    m.next = "RETIRE"
                with m.Elif(waiting.o.valid & may_look):
                    m.d.comb += [read.addr.eq(waiting.o.p), waiting.o.ready.eq(1)]
                    m.d.sync += qpn.eq(waiting.o.p)
                    m.next = "LOOK"

            with m.State("DOORBELL"):
                m.d.comb += self.qp.index.eq(qpn)
                m.d.sync += at_once.eq(~waiting.o.valid & may_look)
                with m.If(doorbell.qpn >= n_qp):
                    m.d.comb += self.doorbells.ready.eq(1)
                    m.next = "IDLE"
                with m.Elif(doorbell.reset):
                    m.next = "CLEAR_ROW"
                with m.Else():
                    m.d.comb += self.doorbells.ready.eq(1)
                    m.next = "RING"

            with m.State("CLEAR_ROW"):
                m.next = "RESET"

            with m.State("RESET"):
                # The QP stays in the queue if it is there: its next turn finds no work.
                m.d.comb += [
                    self.resets.valid.eq(1),
                    write.data.epoch.eq(row.epoch + 1),
                    write.en.eq(self.resets.ready),
                    self.doorbells.ready.eq(self.resets.ready),
                ]
                with m.If(self.resets.ready):
                    m.next = "IDLE"

            with m.State("RING"):
                work = row.producer != row.next
                m.d.comb += [
                    write.data.waiting.eq(1),
                    write.data.work.eq(work),
                    write.en.eq(1),
                    waiting.i.valid.eq(~row.waiting & ~at_once),
                ]
                m.d.sync += row.work.eq(work)
                m.next = "IDLE"
                with m.If(~row.waiting & at_once):
                    m.next = "DECIDE"

            with m.State("RETIRE"):
                m.next = "RETIRED"

            with m.State("RETIRED"):
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
                m.next = "DECIDE"

            with m.State("DECIDE"):
                with m.If(~row.work):
                    m.d.comb += [write.data.waiting.eq(0), write.en.eq(1)]
                    m.next = "IDLE"
                with m.Elif((qp.state != QpState.RTS) | failed | (in_flight.any() & extra_full)):
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
                m.next = "GRANT_RETIRED"

            with m.State("GRANT_RETIRED"):
                m.d.comb += [retire.eq(1), self.retirements.ready.eq(1)]
                with m.If(retirement.qpn == qpn):
                    m.d.sync += in_flight.eq(retired)
                m.next = "GRANT"

            with m.State("FETCH"):
                m.d.comb += self.fetches.valid.eq(slot_valid & qp_known)
                with m.If(slot_valid & qp_known & self.fetches.ready):
                    m.d.sync += slot_valid.eq(0)
                    m.d.comb += [
                        write.data.next.eq(next_index),
                        write.data.work.eq(more),
                        write.data.waiting.eq(more),
                        write.en.eq(1),
                        flight_write.data.eq(in_flight + 1),
                        flight_write.en.eq(1),
                        waiting.i.valid.eq(more),
                    ]
                    m.d.comb += more_extra.eq(in_flight.any())
                    m.next = "IDLE"

        # Strobes from registers load the rows, in some cycles more than are of use.
        m.d.sync += [
            row_loads.eq(fsm.ongoing("IDLE")),
            rings.eq(self.doorbells.valid),
            qp_loads.eq(qp_asks),
        ]
        with m.If(row_loads):
            m.d.sync += [
                row.eq(read.data),
                row.producer.eq(Mux(rings, doorbell.index, read.data.producer)),
                in_flight.eq(flight_read.data),
            ]
        with m.If(fsm.ongoing("CLEAR_ROW")):
            m.d.sync += [row.producer.eq(0), row.next.eq(0), row.work.eq(0)]
        # The reads behind the first one of a row are made as soon as the port is free.
        loads, asks = Signal(2), Signal(2)
        m.d.comb += [
            qp_asks.eq(fsm.ongoing("IDLE") | fsm.ongoing("DOORBELL")),
            self.qp.word.eq(Mux(qp_asks, 0, asks)),
        ]
        m.d.sync += loads.eq(Mux(self.qp_taken | qp_asks, 0, asks))
        with m.If(~qp_asks):
            m.d.comb += self.qp.index.eq(qpn)
        with m.If(loads[1]):
            m.d.sync += qp_known.eq(1)
        with m.If(qp_asks):
            m.d.sync += [asks.eq(1), qp_known.eq(0)]
        with m.Elif(~self.qp_taken):
            m.d.sync += asks.eq(asks << 1)
        for strobe, numbers in zip((qp_loads, *loads), QP_READS[1], strict=False):
            with m.If(strobe):
                m.d.sync += [
                    qp.as_value()
                    .word_select(half, 16)
                    .eq(self.qp.row.as_value().word_select(half, 16))
                    for half in half_words(numbers)
                ]
        with m.If(qp_loads):
            m.d.sync += failed.eq(self.qp_failed)
        with m.If(reserve):
            m.d.comb += [
                request.p.operation.eq(CreditOperation.RESERVE),
                request.p.cq.eq(qp.send_cq),
                request.valid.eq(1),
            ]
        with m.If(retire):
            m.d.comb += [
                flight_write.addr.eq(retirement.qpn),
                flight_write.data.eq(retired),
                flight_write.en.eq(1),
                free.i.valid.eq(1),
                less_extra.eq(retired.any()),
            ]
        m.d.comb += retired.eq(retiring - 1)
        with m.If(more_extra | less_extra):
            m.d.sync += extra.eq(extra + Mux(less_extra, -1, 1))
        return m
