"""Receive WQEs read ahead of the Sends that take them.

::

    hints (FIFO) --+--> look: indices, QP row --> burst --> memory --> words --> fills
    miss ----------+                         '--> flights (FIFO) --------^

From a hint or a miss to its burst 8 cycles, from one burst to the next 8. QPs take turns, a
burst each, until their shares of the cache are full; one for which a Send waits comes first. Up to
``FLIGHTS`` bursts of up to 8 WQEs, 16 words, are on their way; words always have a place. After one
that failed nothing begins until its event is taken.
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import BURST_WORDS, RECV_WQE, EventType, Parameters, QpState

from ..data_register import data_register
from ..interfaces import ReadClientSignature, TableReadSignature
from ..layouts import QP_ROW, RECV_WQE_LAYOUT, EventRequest
from ..ring import ring_entry
from ..stream.roomy_fifo import RoomyFifo
from .tables import RING_READ

__all__ = [
    "ReceivePrefetch",
    "cached_receive_layout",
    "check_depth",
    "default_depth",
    "fill_layout",
]

FLIGHTS = 16
WQE_WORDS = RECV_WQE.size // 8
LARGEST_BURST = BURST_WORDS // WQE_WORDS
CACHED_WQES = 2048

# Of the WQEs in the unit in which a ring's address is given.
_WQES_LOG2 = exact_log2(64 // RECV_WQE.size)


def default_depth(parameters: Parameters) -> int:
    """WQEs of a QP that are held: 32 at most.

    At 11 cycles a Send, all but a burst's 8 last for 264 cycles: 1.5 us until the host answers, and
    a burst of words. QPs that take turns add theirs up.
    """
    return min(32, max(8, CACHED_WQES // parameters.n_qp))


def check_depth(depth: int) -> None:
    if depth not in (1 << log2 for log2 in range(2, 11)):
        raise ValueError(f"depth is {depth!r}; it takes a power of two from 4 to 1024")


def cached_receive_layout(parameters: Parameters) -> data.StructLayout:
    """What is kept of a WQE. ``lkey`` is as it came for a row of the region table, and of a row
    beyond for any other. ``error``: it could not be read."""
    lkey = 8 + exact_log2(parameters.n_region) + 1
    return data.StructLayout({"addr": 64, "length": 32, "lkey": lkey, "error": 1})


def fill_layout(parameters: Parameters) -> data.StructLayout:
    """A WQE that was read: the one at the free-running ``index``, modulo 2^16, of a QP's ring."""
    return data.StructLayout(
        {
            "qpn": exact_log2(parameters.n_qp),
            "index": 16,
            "receive": cached_receive_layout(parameters),
        }
    )


class ReceivePrefetch(wiring.Component):
    """Keep ``depth`` receives of each QP read, from its consumer index on.

    No burst goes beyond the producer index or the ring's end, or crosses a multiple of 128 octets
    (hence no 4 KiB page). Short ones, which only the producer index or the cache's room would end,
    wait until less than half of ``depth`` is held or on its way. Nothing is read for a QP that is
    neither in RTR nor in RTS.

    Parameters
    ----------
    parameters : Parameters
    depth : int
        A power of two, 4 to 1024.

    Members
    -------
    hint, hint_qpn : In
        Strobe: a QP may have receives to read.
    miss, miss_qpn : In
        A Send waits for a receive of this QP, or did a cycle ago.
    waiting : In(1)
        A Send waits, be it for a lookup; low between two.
    refuse : Out(1)
        Strobe: nothing is read for ``look_qpn``, for which a Send waits.
    look, look_qpn : Out
        The row and the indices of a QP are to be read.
    look_lost, look_stale : In(1)
        In the cycle after ``look``, or the second one: they were not, or the indices have changed.
        It is asked for again.
    qp : Out(TableReadSignature)
    consumer : In
        Of ``look_qpn``, two cycles after ``look``.
    posted : In(32)
        Receives that wait in that ring, three cycles after ``look``.
    pause : In(1)
        Begin nothing.
    idle : Out(1)
        While ``pause``, from its second cycle on: nothing is on its way.
    clear, clear_qpn : In
        Indices of this QP begin at 0. Only in the cycle after one with ``idle`` and ``pause``.
    sweep : In(1)
        With ``clear``, for each QP after a reset.
    read : Out(ReadClientSignature)
    fill : Out(1)
        Strobe.
    filled : Out
        WQEs of each QP come in the order of its ring.
    event_requests : Out(stream of EventRequest)
        For each burst that failed.
    """

    def __init__(self, parameters: Parameters, depth: int):
        check_depth(depth)
        self._parameters = parameters
        self._depth = depth
        qpn = exact_log2(parameters.n_qp)
        super().__init__(
            {
                "hint": In(1),
                "hint_qpn": In(qpn),
                "miss": In(1),
                "miss_qpn": In(qpn),
                "waiting": In(1),
                "refuse": Out(1),
                "look": Out(1),
                "look_qpn": Out(qpn),
                "look_lost": In(1),
                "look_stale": In(1),
                "qp": Out(TableReadSignature(QP_ROW, qpn, 4)),
                "consumer": In(exact_log2(depth) + 1),
                "posted": In(32),
                "pause": In(1),
                "idle": Out(1),
                "clear": In(1),
                "clear_qpn": In(qpn),
                "sweep": In(1),
                "read": Out(ReadClientSignature()),
                "fill": Out(1),
                "filled": Out(fill_layout(parameters)),
                "event_requests": Out(stream.Signature(EventRequest)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        flight_shape = data.StructLayout({"qpn": len(self.look_qpn), "index": 16})
        m.submodules.flights = flights = fifo.SyncFIFO(width=flight_shape.size, depth=FLIGHTS)
        flying = Signal()
        m.d.comb += flying.eq((flights.level != 0) | self.fill)
        # All bursts may fail that are on their way, and the one that was being chosen.
        m.submodules.faults = faults = RoomyFifo(len(self.look_qpn), 2 * FLIGHTS)
        m.d.comb += [
            self.event_requests.payload.type.eq(EventType.DMA_READ),
            self.event_requests.payload.number.eq(faults.first),
            self.event_requests.valid.eq(faults.holds),
            faults.take.eq(self.event_requests.valid & self.event_requests.ready),
        ]
        self._ask(m, flights, flying)
        self._take(m, flights, data.View(flight_shape, flights.r_data), faults)
        return m

    def _ask(self, m, flights, flying):
        depth = self._depth
        largest = min(LARGEST_BURST, depth // 2)
        level_bits = exact_log2(depth) + 1

        def clip(value):
            return Mux(value >= largest, largest, value[: exact_log2(largest) + 1])

        def least(a, b):
            return Mux(a < b, a, b)

        # Each QP at most once, so there is always room.
        n_qp = self._parameters.n_qp
        m.submodules.hints = hints = RoomyFifo(len(self.hint_qpn), n_qp)
        m.submodules.queued = queued = memory.Memory(shape=1, depth=n_qp, init=[])
        is_queued = queued.read_port(domain="comb")
        queue = queued.write_port()
        hint = Signal()
        hint_qpn = Signal.like(self.hint_qpn, reset_less=True)
        back = Signal()
        puts = Signal()
        took = Signal()
        put_qpn = Signal.like(self.hint_qpn, reset_less=True)
        m.submodules.asked = asked_memory = memory.Memory(
            shape=16, depth=n_qp, init=[], attrs={"ram_style": "block"}
        )
        put = asked_memory.write_port()
        get = asked_memory.read_port()

        qpn = self.look_qpn
        burst = self.read.bursts
        again = Signal()
        served = Signal()
        for_miss = Signal()
        up = Signal()
        ring_addr = Signal(56, reset_less=True)
        ring_log2 = Signal(4, reset_less=True)
        asked = Signal(16, reset_less=True)
        asked_next = Signal(16, reset_less=True)
        issued = Signal()
        cleared = Signal()
        cleared_qpn = Signal.like(self.clear_qpn, reset_less=True)
        level = Signal(level_bits, reset_less=True)
        slot = Signal(15, reset_less=True)
        ring_mask, in_ring = Signal(15), Signal(15, reset_less=True)
        many = Signal(reset_less=True)  # more than any burst takes
        left = Signal(signed(len(self.consumer) + 1), reset_less=True)
        room = Signal(level_bits, reset_less=True)
        ring_left = Signal(range(largest + 1), reset_less=True)
        wqe_address = Signal(64 - exact_log2(RECV_WQE.size), reset_less=True)
        stretch = Signal(range(largest + 1), reset_less=True)
        most = Signal(range(largest + 1), reset_less=True)
        is_low = Signal(reset_less=True)
        count = Signal(range(largest + 1), reset_less=True)

        m.d.comb += [
            is_queued.addr.eq(put_qpn),
            hints.last.eq(put_qpn),
            hints.put.eq(puts & ~is_queued.data),
            # Never both in a cycle. One that was taken is there no more when the next is put in.
            queue.addr.eq(Mux(self.sweep, self.clear_qpn, Mux(puts, put_qpn, qpn))),
            queue.data.eq(puts & ~self.sweep),
            queue.en.eq(self.sweep | puts | took),
            self.qp.index.eq(qpn),
            self.qp.word.eq(RING_READ),
            get.addr.eq(qpn),
            # Looked at in LOOK, written neither then nor in ROW.
            get.en.eq(~put.en),
            put.addr.eq(Mux(cleared, cleared_qpn, qpn)),
            put.data.eq(asked_next),
            put.en.eq(issued | cleared),
            burst.p.address.eq(Cat(C(0, exact_log2(RECV_WQE.size)), wqe_address)),
            burst.p.beats.eq((count << exact_log2(WQE_WORDS)) - 1),
            flights.w_data.eq(Cat(qpn, asked)),
        ]
        m.d.sync += [
            hint.eq(self.hint),
            hint_qpn.eq(self.hint_qpn),
            puts.eq(hint | back),
            took.eq(hints.take),
            put_qpn.eq(Mux(hint, hint_qpn, qpn)),
            asked_next.eq(asked + count),
            issued.eq(0),
            cleared.eq(self.clear),
            cleared_qpn.eq(self.clear_qpn),
        ]
        with m.If(self.clear):
            m.d.sync += asked_next.eq(0)
        has_failed = Signal()
        has_room = Signal()  # for a flight: only a burst, some cycles before the next, takes it
        m.d.sync += [has_failed.eq(self.event_requests.valid), has_room.eq(flights.w_rdy)]
        with m.If(~self.waiting):
            m.d.sync += served.eq(0)

        # In every cycle, though only what ROW gives is looked at.
        row = self.qp.row
        m.d.sync += [
            up.eq((row.state == QpState.RTR) | (row.state == QpState.RTS)),
            ring_addr.eq(row.rq_addr),
            ring_log2.eq(row.rq_log2),
        ]

        with m.FSM() as fsm:
            m.d.sync += self.idle.eq(fsm.ongoing("IDLE") & ~flying & self.pause)
            with m.State("IDLE"):
                with m.If(~self.pause & ~self.clear & ~has_failed):
                    m.d.sync += for_miss.eq(0)
                    # A miss is looked at once, and whenever it lasts with nothing on its way.
                    missed = self.miss & ~(served & flying)
                    with m.If(again & (hints.holds | missed)):
                        # Behind the others; a hint that comes in this very cycle goes first.
                        m.d.comb += back.eq(1)
                        m.d.sync += again.eq(hint)
                    with m.Elif(missed):
                        m.d.sync += [qpn.eq(self.miss_qpn), for_miss.eq(1), served.eq(1)]
                        m.next = "LOOK"
                    with m.Elif(again):
                        m.next = "LOOK"
                    with m.Elif(hints.holds & ~puts & ~hint):
                        m.d.comb += hints.take.eq(1)
                        m.d.sync += qpn.eq(hints.first)
                        m.next = "LOOK"
            with m.State("LOOK"):
                m.d.comb += self.look.eq(1)
                m.next = "ROW"
            with m.State("ROW"):
                m.d.sync += [asked.eq(get.data), again.eq(self.look_lost & self.pause)]
                m.next = "INDICES"
                with m.If(self.look_lost):
                    m.next = "LOOK"
                    with m.If(self.pause):
                        m.next = "IDLE"
            with m.State("INDICES"):
                m.d.comb += self.refuse.eq(for_miss & ~up)
                m.d.comb += ring_mask.eq((1 << ring_log2) - 1)
                m.d.sync += [
                    level.eq(asked - self.consumer),
                    in_ring.eq(ring_mask),
                    slot.eq(asked & ring_mask),
                    wqe_address.eq(ring_entry(ring_addr << _WQES_LOG2, asked, ring_mask)),
                ]
                m.next = "DIFFERENCES"
                with m.If(~up):
                    m.next = "IDLE"
                with m.Elif(self.look_stale):
                    m.d.sync += again.eq(self.pause)
                    m.next = "LOOK"
                    with m.If(self.pause):
                        m.next = "IDLE"
            with m.State("DIFFERENCES"):
                burst_bits = exact_log2(largest)
                behind = ~slot & in_ring
                m.d.sync += [
                    ring_left.eq(Mux(behind[burst_bits:].any(), largest, behind[:burst_bits] + 1)),
                    many.eq(self.posted[level_bits:].any()),
                    left.eq(self.posted[:level_bits] - level),
                    room.eq(depth - level),
                    is_low.eq(level < depth // 2),
                ]
                m.next = "LIMITS"
            with m.State("LIMITS"):
                offset = wqe_address[: exact_log2(largest)]
                m.d.sync += [
                    stretch.eq(least(largest - offset, ring_left)),
                    # A producer index that was set back is behind what has been asked for.
                    most.eq(
                        Mux(many, clip(room), Mux(left < 0, 0, least(clip(left[:-1]), clip(room))))
                    ),
                ]
                m.next = "COUNT"
            with m.State("COUNT"):
                m.d.sync += count.eq(least(stretch, most))
                m.next = "IDLE"
                with m.If((most != 0) & ((most >= stretch) | is_low)):
                    m.next = "BURST"
            with m.State("BURST"):
                m.d.comb += burst.valid.eq(has_room)
                with m.If(burst.valid & burst.ready):
                    m.d.comb += flights.w_en.eq(1)
                    m.d.sync += [issued.eq(1), again.eq(1)]
                    m.next = "IDLE"

    def _take(self, m, flights, flight, faults):
        beat = self.read.beats
        word = Signal(range(WQE_WORDS))
        wqe = Signal(range(LARGEST_BURST))
        words = Signal(64, reset_less=True)
        error = Signal(reset_less=True)
        spoiled = Signal()  # a word of the burst
        received = data.View(RECV_WQE_LAYOUT, Cat(words, beat.p.data))
        filled = data_register(m, self.filled)
        lkey = received.sge0_lkey
        in_table = len(filled.receive.lkey) - 1
        m.d.comb += [
            beat.ready.eq(1),
            faults.last.eq(flight.qpn),
            faults.put.eq(beat.valid & beat.p.last & (spoiled | beat.p.error)),
        ]
        m.d.sync += self.fill.eq(0)
        with m.If(beat.valid):
            failed = beat.p.error | (error & (word != 0))
            m.d.sync += [Cat(word, wqe).eq(Cat(word, wqe) + 1), error.eq(failed)]
            with m.If(word == 0):
                m.d.sync += words.eq(beat.p.data)
            with m.If(word == 1):
                m.d.sync += [
                    filled.receive.addr.eq(received.sge0_addr),
                    filled.receive.length.eq(received.sge0_length),
                    filled.receive.lkey.eq(Cat(lkey[:in_table], lkey[in_table:].any())),
                ]
            with m.If(word == WQE_WORDS - 1):
                m.d.sync += [
                    self.fill.eq(1),
                    filled.qpn.eq(flight.qpn),
                    filled.index.eq(flight.index + wqe),
                    filled.receive.error.eq(failed),
                ]
            with m.If(beat.p.last):
                m.d.sync += [wqe.eq(0), spoiled.eq(0)]
                m.d.comb += flights.r_en.eq(1)
            with m.Elif(beat.p.error):
                m.d.sync += spoiled.eq(1)
