"""Send scheduler: which queue pair's next WQE is fetched.

::

    doorbells ----+                  +--> credits (RESERVE, RELEASE)
    retirements --+--> one machine --+--> fetches
    waiting QPs --+         |        +--> resets
         ^                  v
         +------ words of the QP (messages in flight, next, producer)

A QP with work stands in the queue of waiting QPs exactly once. In its turn it is looked up in the
QP table; not in RTS, without a CQ slot or without a message slot it goes to the queue's end and is
asked again. A turn takes 5 cycles and the answer of the completion queues, in whose time
retirements are taken; a doorbell takes 4, a retirement by itself 3. A doorbell that nobody
waits beside is its QP's turn at once.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters, QpState

from ..compare import at_least, equal
from ..data_register import data_register
from ..interfaces import CreditSignature, TableReadSignature
from ..layouts import QP_ROW, CreditOperation, RingDoorbell
from ..ring import ring_entry
from .tables import QP_READS, half_words, keep_half_words

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
#: datagram holds its slot for two read latencies, 550 cycles, and the wire takes one in 12 to 20.
#: With 64 QPs and 16 responses there are 128 slots: half of what 8 bits would take of memory.
EXTRA_SLOTS = 48

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


class _Word(enum.Enum, shape=2):
    """The words of a QP."""

    STATE = 0
    NEXT = 1
    PRODUCER = 2


class _Waiting(wiring.Component):
    """QPs that wait and slots that are free, each first in, first out, in one memory.

    At most one of them comes in a cycle; never more than there are. What finds its queue empty is
    offered in the next cycle if it is a QP, and 3 cycles later if it is a slot or does not.

    Members
    -------
    i, i_slot, i_valid : In, In(1), In(1)
        A slot (``i_slot``) or a QP.
    qp, slot : Out(stream)
    waits : Out(1)
        Some QP does, or comes.
    """

    def __init__(self, qp_bits: int, slot_bits: int) -> None:
        self._pointer_bits = max(qp_bits, slot_bits)
        super().__init__(
            {
                "i": In(self._pointer_bits),
                "i_slot": In(1),
                "i_valid": In(1),
                "qp": Out(stream.Signature(qp_bits)),
                "slot": Out(stream.Signature(slot_bits)),
                "waits": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(
            shape=self._pointer_bits,
            depth=2 << self._pointer_bits,
            init=[],
            # Only what was written before is read.
            attrs={"ram_style": "block", "no_rw_check": 1},
        )
        reader, writer = memory.read_port(), memory.write_port()
        direct = Signal()
        waits = Signal()
        m.d.comb += [writer.data.eq(self.i), writer.en.eq(self.i_valid & ~direct)]
        ways = []
        for number, port in enumerate((self.qp, self.slot)):
            into, out_of = (
                Signal(self._pointer_bits, name=f"{name}_{number}") for name in ("into", "out_of")
            )
            item = data_register(m, port.payload)
            kept = Signal(name=f"kept_{number}")  # some are in memory
            reads, arrives = (Signal(name=f"{name}_{number}") for name in ("reads", "arrives"))
            stored = writer.en & (self.i_slot == number)
            out_next = Signal.like(out_of, name=f"out_next_{number}")
            m.d.comb += out_next.eq(out_of + 1)
            m.d.sync += arrives.eq(reads)
            with m.If(reads):
                m.d.sync += [out_of.eq(out_next), kept.eq(out_next != into)]
            with m.If(stored):
                m.d.sync += [into.eq(into + 1), kept.eq(1)]
            with m.If(port.ready):
                m.d.sync += port.valid.eq(0)
            with m.If(arrives):
                m.d.sync += [item.eq(reader.data), port.valid.eq(1)]
            ways.append((into, out_of, kept, reads, arrives, item))
        (qp_into, qp_out, qp_kept, qp_reads, qp_arrives, qp_item) = ways[0]
        (slot_into, slot_out, slot_kept, slot_reads, slot_arrives, _) = ways[1]
        m.d.comb += [
            qp_reads.eq(qp_kept & ~qp_arrives & ~self.qp.valid),
            slot_reads.eq(slot_kept & ~slot_arrives & ~self.slot.valid & ~qp_reads),
            reader.addr.eq(Cat(Mux(qp_reads, qp_out, slot_out), ~qp_reads)),
            writer.addr.eq(Cat(Mux(self.i_slot, slot_into, qp_into), self.i_slot)),
            waits.eq(qp_kept | qp_arrives | self.qp.valid),
            direct.eq(~self.i_slot & ~waits),
            self.waits.eq(waits | (self.i_valid & ~self.i_slot)),
        ]
        with m.If(self.i_valid & direct):
            m.d.sync += [qp_item.eq(self.i), self.qp.valid.eq(1)]
        return m


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
        Each has a CQ slot reserved and a message slot of its own. ``ready`` only in a cycle after
        one in which it is offered.
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
        qp_bits, slot_bits = qp_width(self._parameters), slot_width(self._parameters)
        flight = range(n_slots + 1)
        state_layout = data.StructLayout(
            {
                "in_flight": flight,
                "active": 1,  # some are
                "epoch": EPOCH_WIDTH,
                "waiting": 1,
                "work": 1,  # the producer is not ``next``
            }
        )
        # What is read and looked at is never what is written.
        m.submodules.rows = rows = Memory(
            shape=32, depth=4 * n_qp, init=[], attrs={"no_rw_check": 1}
        )
        read, write = rows.read_port(), rows.write_port()
        m.submodules.queues = queues = _Waiting(qp_bits, slot_bits)
        waiting, free = queues.qp, queues.slot

        doorbell, retirement, request = self.doorbells.p, self.retirements.p, self.credits.requests
        qpn = Signal(qp_bits)
        row = Signal(state_layout)
        following = Signal(32, reset_less=True)  # the index of the next WQE
        producer = Signal(32, reset_less=True)
        retiring = Signal(state_layout, reset_less=True)  # of the QP of a retirement
        given = data.View(state_layout, read.data[: state_layout.size])
        written = Signal(state_layout)
        qp = Signal(QP_ROW, reset_less=True)
        failed = Signal()
        extra = Signal(range(EXTRA_SLOTS + 1))
        extra_full = Signal()
        sweeps = max(4 * n_qp, n_slots)
        sweep = Signal(range(sweeps))
        next_entry = Signal(16, reset_less=True)
        in_ring = Signal(16, reset_less=True)
        fetch = self.fetches.p
        next_index = Signal(32, reset_less=True)
        more = Signal()  # work after this WQE
        # What is written is an index or 0, if not a state: chosen before, in registers.
        number, is_number = Signal(32), Signal(init=1)
        reserve, release = Signal(), Signal()  # is asked for from the next cycle on
        asking, reserved = Signal(), Signal()
        can_ask = ~asking
        granted = Signal(reset_less=True)  # the answer
        offers = Signal()  # the fetch is granted and known: in FETCH only
        may_fetch = Signal()
        retire = Signal()
        more_extra, less_extra = Signal(), Signal()
        may_look = Signal()
        missed = Signal()  # the first part of a row was not read
        qp_asks = Signal()  # the first part of a row is asked for
        qp_known = Signal()  # all of it is there
        at_once = Signal()  # the QP has its turn, be it by a doorbell or by the queue
        # What is queued a cycle later: a QP or a slot.
        queue = Signal(len(queues.i))
        queues_slot, queues_one = Signal(), Signal()
        queued, entry = data_register(m, queues.i), data_register(m, fetch.entry)
        m.d.sync += [
            queued.eq(queue),
            queues.i_slot.eq(queues_slot),
            queues.i_valid.eq(queues_one),
        ]
        # Strobes from registers load words, in some cycles more than are of use.
        state_arrives, next_arrives, producer_arrives, qp_loads = (Signal() for _ in range(4))
        known = Signal()  # ``next_index``

        # While a row is held its first words do not change yet: a cycle late is early enough.
        m.d.sync += [may_look.eq(self.enable & ~self.qp.held), missed.eq(self.qp_taken)]
        m.d.comb += [
            read.addr.eq(Cat(_Word.NEXT, qpn)),
            write.addr.eq(Cat(_Word.STATE, qpn)),
            write.data.eq(
                Mux(
                    is_number & ~self.fetches.ready,
                    number,
                    Cat(written, number[state_layout.size :]),
                )
            ),
            written.eq(row),
            queue.eq(qpn),
            self.resets.p.eq(qpn),
            self.fetches.valid.eq(offers),
            fetch.qpn.eq(qpn),
            fetch.slot.eq(free.p),
            fetch.epoch.eq(row.epoch),
            fetch.index.eq(following),
            fetch.cq.eq(qp.send_cq),
            fetch.pd.eq(qp.pd),
            fetch.path_mtu.eq(qp.path_mtu),
            fetch.wide.eq(qp.sq_wide),
        ]
        # Known two cycles after ``following`` and ``qp`` are, which is when a fetch may begin.
        places = Cat(at_least(qp.sq_log2, log2) for log2 in range(1, 16))
        next_place = following[: len(places)]
        m.d.sync += [
            next_index.eq(following + 1),
            more.eq(~equal(m, next_index, producer)),
            next_entry.eq(Mux(qp.sq_wide, next_place << 1, next_place)),
            in_ring.eq(Mux(qp.sq_wide, places << 1 | 1, places)),
            entry.eq(ring_entry(qp.sq_addr, next_entry, in_ring)),
            extra_full.eq(extra == EXTRA_SLOTS),
            retiring.eq(given),
        ]

        # The doorbell comes from afar, two cycles or more before its index is looked at.
        index = Signal.like(doorbell.index, reset_less=True)
        m.d.sync += index.eq(doorbell.index)
        work = ~equal(m, index, following)
        # A retirement is taken in the cycle after its last.
        retires = self.retirements.valid & ~self.retirements.ready
        m.d.sync += self.retirements.ready.eq(0)
        with m.FSM(init="CLEAR") as fsm:
            with m.State("CLEAR"):
                # ``row`` is 0.
                m.d.comb += [
                    self.busy.eq(1),
                    write.addr.eq(sweep),
                    write.en.eq(1),
                    queue.eq(sweep),
                    queues_slot.eq(1),
                    queues_one.eq(sweep < n_slots),
                ]
                m.d.sync += sweep.eq(sweep + 1)
                with m.If(sweep == sweeps - 1):
                    m.next = "IDLE"

            with m.State("IDLE"):
                with m.If(self.doorbells.valid):
                    m.d.comb += read.addr.eq(Cat(_Word.STATE, doorbell.qpn[:qp_bits]))
                    m.d.sync += qpn.eq(doorbell.qpn)
                    m.next = "DOORBELL"
                with m.Elif(retires):
                    m.d.comb += read.addr.eq(Cat(_Word.STATE, retirement.qpn))
                    m.next = "RETIRE"
                with m.Else():
                    # Whether or not it has its turn.
                    m.d.comb += read.addr.eq(Cat(_Word.STATE, waiting.p))
                    m.d.sync += qpn.eq(waiting.p)
                    with m.If(waiting.valid & may_look):
                        m.d.comb += waiting.ready.eq(1)
                        m.next = "LOOK"

            with m.State("DOORBELL"):
                m.d.sync += at_once.eq(~queues.waits & may_look & ~self.qp_taken)
                with m.If(doorbell.qpn >= n_qp):
                    m.d.comb += self.doorbells.ready.eq(1)
                    m.next = "IDLE"
                with m.Elif(doorbell.reset):
                    m.next = "CLEAR_NEXT"
                with m.Else():
                    m.next = "PRODUCE"

            for state, word, following_state in (
                ("CLEAR_NEXT", _Word.NEXT, "CLEAR_PRODUCER"),
                ("CLEAR_PRODUCER", _Word.PRODUCER, "RESET"),
            ):
                with m.State(state):
                    m.d.comb += [write.addr.eq(Cat(word, qpn)), write.en.eq(1)]
                    m.next = following_state

            with m.State("RESET"):
                # The QP stays in the queue if it is there: its next turn finds no work.
                m.d.comb += [
                    written.epoch.eq(row.epoch + 1),
                    written.work.eq(0),
                    write.en.eq(self.resets.ready),
                    self.doorbells.ready.eq(self.resets.ready),
                ]
                with m.If(self.resets.ready):
                    m.next = "IDLE"

            with m.State("PRODUCE"):
                m.d.comb += [write.addr.eq(Cat(_Word.PRODUCER, qpn)), write.en.eq(1)]
                m.next = "RING"

            with m.State("RING"):
                # Whether there is work is written in the next cycle, from a register.
                m.d.comb += [
                    self.doorbells.ready.eq(1),
                    queues_one.eq(~row.waiting & ~at_once),
                ]
                m.d.sync += [row.work.eq(work), at_once.eq(at_once & ~row.waiting)]
                m.next = "DECIDE"
                with m.If(~row.waiting & at_once):
                    # A cycle before it is decided: what is decided then is known but for ``work``.
                    m.d.comb += reserve.eq(may_fetch & can_ask)

            with m.State("RETIRE"):
                m.next = "RETIRED"

            with m.State("RETIRED"):
                with m.If(can_ask | ~retirement.release):
                    m.d.comb += release.eq(retirement.release)
                    m.d.sync += self.retirements.ready.eq(1)
                    m.next = "IDLE"

            with m.State("LOOK"):
                m.d.sync += at_once.eq(1)
                with m.If(~missed):
                    m.next = "DECIDE"

            with m.State("DECIDE"):
                m.d.comb += [
                    read.addr.eq(Cat(_Word.PRODUCER, qpn)),
                    written.waiting.eq(row.work | ~at_once),
                    write.en.eq(1),
                ]
                with m.If(~row.work | ~at_once):
                    m.next = "IDLE"
                with m.Elif(reserved):
                    m.next = "GRANT"
                with m.Elif(~may_fetch):
                    m.d.comb += queues_one.eq(1)
                    m.next = "IDLE"
                with m.Elif(can_ask):
                    m.d.comb += reserve.eq(1)
                    m.next = "GRANT"

            with m.State("GRANT"):
                m.d.comb += [
                    self.credits.granted.ready.eq(known),
                    read.addr.eq(Cat(_Word.STATE, retirement.qpn)),
                ]
                m.d.sync += granted.eq(self.credits.granted.p)
                with m.If(self.credits.granted.valid & known):
                    m.next = "FETCH"
                with m.Elif(retires & ~retirement.release):
                    m.next = "GRANT_RETIRE"

            with m.State("GRANT_RETIRE"):
                m.next = "GRANT_RETIRED"

            with m.State("GRANT_RETIRED"):
                m.d.sync += self.retirements.ready.eq(1)
                with m.If(retirement.qpn == qpn):
                    m.d.sync += [
                        row.in_flight.eq(written.in_flight),
                        row.active.eq(written.active),
                    ]
                m.next = "GRANT"

            with m.State("FETCH"):
                # NEXT is written while the fetch is offered.
                m.d.comb += write.en.eq(granted)
                with m.If(~granted):
                    m.d.comb += queues_one.eq(1)
                    m.next = "IDLE"
                with m.Elif(self.fetches.ready):
                    m.d.comb += [
                        free.ready.eq(1),
                        queues_one.eq(more),
                        more_extra.eq(row.active),
                    ]
                    m.next = "IDLE"
                with m.Else():
                    m.d.comb += write.addr.eq(Cat(_Word.NEXT, qpn))

        # Of the cycle after; ``ready`` comes in FETCH only.
        with m.If(fsm.ongoing("GRANT") | fsm.ongoing("FETCH")):
            m.d.sync += number.eq(next_index)
        with m.Else():
            m.d.sync += number.eq(Mux(fsm.ongoing("CLEAR") | doorbell.reset, 0, index))
        m.d.sync += is_number.eq(
            Cat(map(fsm.ongoing, ("CLEAR", "DOORBELL", "CLEAR_NEXT", "GRANT", "FETCH"))).any()
        )
        with m.If(self.fetches.ready):
            m.d.comb += [
                written.work.eq(more),
                written.waiting.eq(more),
                written.in_flight.eq(row.in_flight + 1),
                written.active.eq(1),
            ]
        # Neither a slot nor the QP's row goes once it is there. The answer comes late.
        may_offer, goes_on = Signal(), Signal()
        m.d.comb += [
            may_offer.eq(fsm.ongoing("GRANT") & known & free.valid & qp_known),
            goes_on.eq(
                fsm.ongoing("FETCH") & granted & free.valid & qp_known & ~self.fetches.ready
            ),
        ]
        m.d.sync += [
            offers.eq((self.credits.granted.valid & self.credits.granted.p & may_offer) | goes_on),
            self.resets.valid.eq(
                fsm.ongoing("CLEAR_PRODUCER") | (fsm.ongoing("RESET") & ~self.resets.ready)
            ),
            state_arrives.eq(fsm.ongoing("IDLE")),
            next_arrives.eq(state_arrives),
            producer_arrives.eq(fsm.ongoing("DECIDE")),
            retire.eq(fsm.ongoing("RETIRE") | fsm.ongoing("GRANT_RETIRE")),
            known.eq(~fsm.ongoing("DECIDE") & (producer_arrives | known)),
            qp_loads.eq(qp_asks),
        ]
        with m.If(state_arrives):
            m.d.sync += row.eq(given)
        with m.If(next_arrives):
            m.d.sync += following.eq(read.data)
        with m.If(producer_arrives):
            m.d.sync += producer.eq(read.data)
        # The reads behind the first one of a row are made as soon as the port is free.
        loads, asks = Signal(2), Signal(2)
        m.d.comb += [
            qp_asks.eq(
                fsm.ongoing("IDLE") | fsm.ongoing("DOORBELL") | (fsm.ongoing("LOOK") & missed)
            ),
            self.qp.word.eq(Mux(qp_asks, 0, asks)),
            self.qp.index.eq(Mux(fsm.ongoing("IDLE"), waiting.p, qpn)),
        ]
        m.d.sync += loads.eq(Mux(self.qp_taken | qp_asks, 0, asks))
        with m.If(loads[1]):
            m.d.sync += qp_known.eq(1)
        with m.If(qp_asks):
            m.d.sync += [asks.eq(1), qp_known.eq(0)]
        with m.Elif(~self.qp_taken):
            m.d.sync += asks.eq(asks << 1)
        for strobe, numbers in zip((qp_loads, *loads), QP_READS[1], strict=False):
            with m.If(strobe):
                m.d.sync += keep_half_words(qp, self.qp.row, half_words(numbers))
        with m.If(qp_loads):
            m.d.sync += failed.eq(self.qp_failed)
        # One request after the other: it waits in a register, not the turn or the retirement. One
        # of a doorbell without work is never made.
        idles = reserved & ~row.work
        m.d.comb += [
            may_fetch.eq((qp.state == QpState.RTS) & ~failed & ~(row.active & extra_full)),
            request.valid.eq(asking & ~idles),
        ]
        m.d.sync += reserved.eq(reserve)
        with m.If(reserve | release):
            m.d.sync += asking.eq(1)
        with m.Elif(request.ready | idles):
            m.d.sync += asking.eq(0)
        asked = data_register(m, request.p)
        with m.If(~asking):
            m.d.sync += [
                asked.operation.eq(Mux(release, CreditOperation.RELEASE, CreditOperation.RESERVE)),
                asked.cq.eq(Mux(release, retirement.cq, qp.send_cq)),
            ]
        with m.If(retire):
            m.d.comb += [
                write.addr.eq(Cat(_Word.STATE, retirement.qpn)),
                written.eq(retiring),
                written.in_flight.eq(retiring.in_flight - 1),
                written.active.eq(retiring.in_flight != 1),
                write.en.eq(1),
                queue.eq(retirement.slot),
                queues_slot.eq(1),
                queues_one.eq(1),
                less_extra.eq(retiring.in_flight != 1),
            ]
        with m.If(more_extra | less_extra):
            m.d.sync += extra.eq(extra + Mux(less_extra, -1, 1))
        return m
