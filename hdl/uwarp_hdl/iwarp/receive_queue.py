"""Receive rings: their indices, and the oldest posted receive of a QP.

::

    doorbells --> producer, consumer, filled --> index --> cache of WQEs --> receive
                     ^ consume           ^                   ^
                                         +- ReceivePrefetch -+ <-- memory

The receive of a Send is looked up before it is known whether the Send ahead of it takes one: it is
guessed, and looked up again after a wrong guess.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import Parameters

from ..data_register import data_register
from ..interfaces import ReadClientSignature, TableReadSignature
from ..layouts import QP_ROW, EventRequest, RingDoorbell
from .receive_prefetch import (
    ReceivePrefetch,
    cached_receive_layout,
    check_depth,
    default_depth,
)

__all__ = ["PostedReceive", "ReceiveLookupSignature", "ReceiveQueue"]


def _block_ram_width(depth):
    """Of one block RAM of 16 Kbit; wider words have parity bits as well."""
    width = max(1, min(32, (1 << 14) // depth))
    return width + width // 8


class PostedReceive(data.Struct):
    """A posted receive, if ``available``: the one at the free-running ``index``, modulo 2^16, of
    its ring. ``lkey`` is of a row beyond the region table if that of the WQE is. ``error``: its WQE
    could not be read."""

    available: 1
    error: 1
    index: 16
    addr: 64
    length: 32
    lkey: 32


class ReceiveLookupSignature(wiring.Signature):
    """The receive for a datagram, looked up beside its other checks, one datagram at a time.

    ``lookup`` is high with the datagram's ``qpn`` in each cycle that may serve. ``receive`` belongs
    to a lookup of 4 cycles before; it is taken in a cycle with ``waiting`` and ``known``. Before
    the datagram is ``offered`` to the unit behind, ``unsettled`` must be low, and so must
    ``wrong``: else its receive is to be looked up once more. ``dismiss`` says that it takes none
    after all: what was looked up is forgotten. While it is offered ``may_take`` says
    whether it takes its receive unless it is late or its CQ is full, and lookups are for the next
    one. ``given`` strobes when it is taken; ``may_take`` stays for the cycle after.
    """

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(
            {
                "lookup": Out(1),
                "qpn": Out(exact_log2(parameters.n_qp)),
                "waiting": Out(1),
                "dismiss": Out(1),
                "known": In(1),
                "receive": In(PostedReceive),
                "unsettled": In(1),
                "wrong": In(1),
                "offered": Out(1),
                "may_take": Out(1),
                "given": Out(1),
            }
        )


class ReceiveQueue(wiring.Component):
    """Receives of all QPs, in the order of their rings.

    A lookup takes 4 cycles, one can begin in each but those in which it would read the cache while
    a WQE comes in, or an index while it is written, or while the prefetch reads beside the first of
    several: then the one begun a cycle later answers. One
    whose WQE is not in the cache yet becomes known when it is, at most 6 cycles after its last
    word. A doorbell is taken in its third cycle or later; one that clears a QP waits until no Send
    of that QP and no read is on its way: then its ring is read no more.

    Parameters
    ----------
    parameters : Parameters
    depth : int
        Receives of each QP in the cache. By default as many as ``default_depth`` says.

    Members
    -------
    doorbells : In(stream of RingDoorbell)
    look : In(ReceiveLookupSignature)
    settle, consume : In(1)
        ``settle`` strobes when the last datagram given has met its fate, with ``consume`` if it
        was a Send that uses up its receive.
    qp : Out(TableReadSignature)
    qp_taken : In(1)
        Not in this cycle.
    wqe_read : Out(ReadClientSignature)
    event_requests : Out(stream of EventRequest)
        For each burst of ``wqe_read`` that failed.
    busy : Out(1)
        After a reset, until all indices are 0.
    """

    def __init__(self, parameters: Parameters, depth: int | None = None):
        self._parameters = parameters
        self._depth = default_depth(parameters) if depth is None else depth
        check_depth(self._depth)
        super().__init__(
            {
                "doorbells": In(stream.Signature(RingDoorbell)),
                "look": In(ReceiveLookupSignature(parameters)),
                "settle": In(1),
                "consume": In(1),
                "qp": Out(TableReadSignature(QP_ROW, exact_log2(parameters.n_qp), 4)),
                "qp_taken": In(1),
                "wqe_read": Out(ReadClientSignature()),
                "event_requests": Out(stream.Signature(EventRequest)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n = self._parameters.n_qp
        width = exact_log2(n)
        cache_bits = exact_log2(self._depth)
        level_bits = cache_bits + 1
        m.submodules.prefetch = prefetch = ReceivePrefetch(self._parameters, self._depth)
        # No index is read while it is written: synthesis need not add logic for that case.
        apart = {"no_rw_check": 1}
        m.submodules.producers = producers = memory.Memory(shape=32, depth=n, init=[], attrs=apart)
        m.submodules.consumers = consumers = memory.Memory(shape=32, depth=n, init=[], attrs=apart)
        m.submodules.filled = filled = memory.Memory(shape=level_bits, depth=n, init=[])
        producer_write = producers.write_port()
        produced = data_register(m, producer_write.data)
        consumer_write = consumers.write_port()
        filled_write = filled.write_port()
        producer = producers.read_port()
        consumer = consumers.read_port()
        filled_end = filled.read_port(domain="comb")
        cached_address = Signal(range(n * self._depth))
        cached = self._cache(m, prefetch, cached_address)

        # The Send between its lookup and the unit behind, and the one there.
        look = self.look
        held = Signal()
        held_qpn = Signal(width, reset_less=True)
        held_next = Signal(32, reset_less=True)
        sent = Signal()
        sent_qpn = Signal(width, reset_less=True)
        sent_next = Signal(32, reset_less=True)
        sent_may_take = Signal(reset_less=True)
        sent_guess = Signal(reset_less=True)
        doubt = Signal()
        guess = Signal()
        # A cycle late, when at the earliest the next one is given. What the units around tell comes
        # a long way, so it ends in registers.
        given = Signal()
        settled, takes_one = Signal(), Signal()
        consumed, misguessed = Signal(), Signal()
        next_4 = Signal(32, reset_less=True)
        m.d.comb += [
            guess.eq(look.may_take & ~doubt),
            look.unsettled.eq(held & sent),
            consumed.eq(sent & takes_one),
            misguessed.eq(sent & settled & (takes_one != sent_guess)),
        ]
        m.d.sync += [
            given.eq(look.given),
            settled.eq(self.settle),
            takes_one.eq(self.settle & self.consume),
        ]
        # A cycle late, long before it is offered.
        waited, was_known, was_misguessed = Signal(), Signal(), Signal()
        next_5 = Signal(32, reset_less=True)
        asked_qpn = Signal(width, reset_less=True)  # stays from the cycle after the lookup on
        m.d.sync += [
            waited.eq(look.waiting),
            was_known.eq(look.known),
            was_misguessed.eq(misguessed),
            next_5.eq(next_4),
            asked_qpn.eq(look.qpn),
        ]
        with m.If(waited):
            m.d.sync += [
                held.eq(was_known),
                held_qpn.eq(asked_qpn),
                held_next.eq(next_5),
                look.wrong.eq(misguessed | was_misguessed),
            ]
        with m.Elif(held & misguessed):
            m.d.sync += look.wrong.eq(1)
        with m.If(look.dismiss):
            m.d.sync += [held.eq(0), look.wrong.eq(0)]
        with m.If(settled):
            m.d.sync += sent.eq(0)
            with m.If(sent & sent_may_take):
                m.d.sync += doubt.eq(~consumed)
        # What was offered stays for the cycle after. Taken in every one: what counts is the last.
        with m.If(given & held):
            m.d.sync += [held.eq(0), sent.eq(1)]
        with m.If(~sent):
            m.d.sync += [
                sent_qpn.eq(held_qpn),
                sent_next.eq(held_next),
                sent_may_take.eq(look.may_take),
                sent_guess.eq(guess),
            ]

        # Doorbells.
        sweeping = Signal(init=1)
        sweep = Signal(range(n))
        m.d.comb += self.busy.eq(sweeping)
        with m.If(sweeping):
            m.d.sync += [sweep.eq(sweep + 1), sweeping.eq(~sweep.all())]
        doorbell = self.doorbells.payload
        # Decided before it is taken.
        seen = Signal()
        resetting = Signal()
        in_range = Signal()
        unused = Signal()
        due = Signal()
        rung = Signal()
        reset = Signal()
        clear_qpn = Signal(width)

        def is_rung(qpn):
            return doorbell.qpn[:width] == qpn

        waits = self.doorbells.valid & ~self.doorbells.ready
        m.d.sync += [
            seen.eq(waits),
            in_range.eq(~doorbell.qpn[width:].any()),
            resetting.eq(waits & doorbell.reset & ~doorbell.qpn[width:].any()),
            # Of a QP that is reset nothing becomes ``held`` any more.
            unused.eq(
                resetting
                & prefetch.idle
                & ~(held & is_rung(held_qpn))
                & ~(sent & is_rung(sent_qpn))
            ),
            due.eq(seen & ~self.doorbells.ready & ~sweeping & (~resetting | unused)),
        ]
        m.d.comb += [
            self.doorbells.ready.eq(due & ~consumed),
            rung.eq(self.doorbells.ready & in_range),
            reset.eq(rung & doorbell.reset),
            producer_write.addr.eq(prefetch.clear_qpn),
            consumer_write.en.eq(sweeping | consumed | reset),
            consumer_write.addr.eq(Mux(consumed, sent_qpn, clear_qpn)),
            consumer_write.data.eq(Mux(consumed, sent_next, 0)),
            filled_write.en.eq(prefetch.clear | prefetch.fill),
            filled_write.addr.eq(Mux(prefetch.clear, prefetch.clear_qpn, prefetch.filled.qpn)),
            filled_write.data.eq(Mux(prefetch.clear, 0, prefetch.filled.index + 1)),
            prefetch.pause.eq(sweeping | resetting),
            clear_qpn.eq(Mux(sweeping, sweep, doorbell.qpn)),
            prefetch.hint.eq(consumed | (rung & ~doorbell.reset)),
            prefetch.hint_qpn.eq(Mux(consumed, sent_qpn, doorbell.qpn)),
        ]
        # Nothing is read there for some cycles to come.
        m.d.sync += [
            prefetch.clear.eq(sweeping | reset),
            prefetch.sweep.eq(sweeping),
            prefetch.clear_qpn.eq(clear_qpn),
            producer_write.en.eq(sweeping | rung),
            produced.eq(doorbell.index),
        ]
        with m.If(sweeping | doorbell.reset):
            m.d.sync += produced.eq(0)

        # The prefetch uses the read ports in cycles that no lookup needs, as far as is known from
        # the cycle before: the first of several may be in vain. So are those of a Send that waits:
        # from its second cycle on they come behind. It hears a cycle later whether it could.
        qpn, qpn_1, qpn_2 = (
            Signal(width),
            Signal(width, reset_less=True),
            Signal(width, reset_less=True),
        )
        flush = Signal()
        cleared = Signal()
        looked = Signal()
        lent = Signal()
        taken_1 = Signal()
        # What was written when the indices were read.
        consumed_1, consumed_qpn_1 = Signal(), Signal(width, reset_less=True)
        posted_1, posted_qpn_1 = Signal(), Signal(width, reset_less=True)
        written_1, written_2 = Signal(), Signal()

        wiring.connect(m, prefetch.qp, wiring.flipped(self.qp))
        m.d.sync += [
            cleared.eq(reset),
            looked.eq(look.lookup & ~look.waiting),
            taken_1.eq(self.qp_taken | ~lent),
            consumed_1.eq(consumed),
            consumed_qpn_1.eq(sent_qpn),
            posted_1.eq(producer_write.en),
            posted_qpn_1.eq(producer_write.addr),
            written_2.eq(written_1),
        ]
        m.d.comb += [
            lent.eq(prefetch.look & ~looked),
            written_1.eq(
                (consumed_1 & (consumed_qpn_1 == qpn_1)) | (posted_1 & (posted_qpn_1 == qpn_1))
            ),
            prefetch.look_lost.eq(taken_1),
            prefetch.look_stale.eq(written_2),
            qpn.eq(Mux(lent, prefetch.look_qpn, look.qpn)),
            producer.addr.eq(qpn),
            consumer.addr.eq(qpn),
            filled_end.addr.eq(qpn_1),
            flush.eq(misguessed | cleared),
        ]

        # Lookup: valid[k], ahead[k] and so on are those of k cycles before.
        valid = Signal(5)
        ahead = Signal(4)
        leaves = (look.offered | given) & held
        # Of the cycle of a lookup: the Send that is ahead, if it was guessed to take its receive.
        ahead_guess_1, ahead_qpn_1 = Signal(reset_less=True), Signal(width, reset_less=True)
        producer_2, consumer_2 = Signal(32, reset_less=True), Signal(32, reset_less=True)
        filled_2 = Signal(level_bits, reset_less=True)
        index_2, index_3 = Signal(16, reset_less=True), Signal(16, reset_less=True)
        next_3 = Signal(32, reset_less=True)
        posted_3 = Signal(32, reset_less=True)
        level_3 = Signal(level_bits, reset_less=True)
        receive_4 = Signal(PostedReceive, reset_less=True)
        present_4 = Signal()
        m.d.comb += [
            index_2.eq(consumer_2[:16] + ahead[2]),
            cached_address.eq(Cat(index_2[:cache_bits], qpn_2)),
            prefetch.consumer.eq(consumer_2),
            prefetch.posted.eq(posted_3),
        ]
        m.d.sync += [
            valid.eq(
                Mux(
                    flush,
                    0,
                    Cat(
                        0,
                        look.lookup & ~lent,
                        valid[1],
                        valid[2] & ~written_2 & ~prefetch.fill,
                        valid[3],
                    ),
                )
            ),
            ahead_guess_1.eq(Mux(leaves, guess, sent & ~settled & sent_guess)),
            ahead_qpn_1.eq(Mux(leaves, held_qpn, sent_qpn)),
            ahead.eq(Cat(0, 0, ahead_guess_1 & (ahead_qpn_1 == qpn_1), ahead[2])),
            qpn_1.eq(qpn),
            qpn_2.eq(qpn_1),
            producer_2.eq(producer.data),
            consumer_2.eq(consumer.data),
            filled_2.eq(filled_end.data),
            index_3.eq(index_2),
            next_3.eq(consumer_2 + ahead[2] + 1),
            next_4.eq(next_3),
            posted_3.eq(producer_2 - consumer_2),
            level_3.eq(filled_2 - consumer_2),
            receive_4.available.eq(posted_3 != ahead[3]),
            receive_4.index.eq(index_3),
            present_4.eq(level_3 > ahead[3]),
        ]
        for name in ("addr", "length", "lkey", "error"):
            m.d.sync += receive_4[name].eq(cached[name])

        # A QP that has gone down is not read, so a Send that waits for a WQE finds none.
        refuses, refused = Signal(), Signal()
        was_absent = Signal()
        absent = receive_4.available & ~present_4 & ~refused
        m.d.sync += [
            refuses.eq(prefetch.refuse & (prefetch.look_qpn == asked_qpn)),
            refused.eq(waited & (refused | refuses)),
            was_absent.eq(valid[4] & absent),
        ]
        is_reset = Signal()
        m.d.sync += is_reset.eq(is_rung(asked_qpn))
        m.d.comb += [
            look.receive.eq(receive_4),
            look.receive.available.eq(receive_4.available & ~refused),
            look.known.eq(valid[4] & ~absent & ~cleared & ~(resetting & is_reset)),
            prefetch.miss.eq(waited & was_absent),
            prefetch.miss_qpn.eq(asked_qpn),
            prefetch.waiting.eq(waited),
        ]
        wiring.connect(m, wiring.flipped(self.wqe_read), prefetch.read)
        wiring.connect(m, prefetch.event_requests, wiring.flipped(self.event_requests))
        return m

    def _cache(self, m, prefetch, address):
        """The cache's word at ``address`` of the cycle before, unless there was a fill in it.

        In memories as wide as one block RAM of this depth: of a wider one, synthesis would put
        several deep ones behind each other, and a multiplexer behind them.
        """
        filled = prefetch.filled
        depth = self._parameters.n_qp * self._depth
        width = _block_ram_width(depth)
        bits = Signal(cached_receive_layout(self._parameters))
        word = filled.receive.as_value()
        for first in range(0, len(word), width):
            part = word[first : first + width]
            cache = memory.Memory(shape=len(part), depth=depth, init=[])
            m.submodules[f"cache{first}"] = cache
            write, read = cache.write_port(), cache.read_port()
            m.d.comb += [
                write.en.eq(prefetch.fill),
                write.addr.eq(Cat(filled.index[: exact_log2(self._depth)], filled.qpn)),
                write.data.eq(part),
                read.addr.eq(address),
                # Not beside a write, for synthesis to add no logic behind the memory for its sake.
                read.en.eq(~prefetch.fill),
                bits.as_value()[first : first + width].eq(read.data),
            ]
        return bits
