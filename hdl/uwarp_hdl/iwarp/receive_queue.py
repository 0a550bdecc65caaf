"""Receive rings: their indices, and the fetch of the oldest posted receive."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import Parameters

from ..interfaces import ReadClientSignature
from ..layouts import RECV_WQE_LAYOUT, RingDoorbell

__all__ = ["PostedReceive", "ReceiveQueue", "ring_layout"]


def ring_layout(parameters: Parameters) -> data.StructLayout:
    """A QP and the place of its receive ring, as in the QP's row."""
    return data.StructLayout({"qpn": exact_log2(parameters.n_qp), "log2": 4, "addr": 56})


class PostedReceive(data.Struct):
    """The oldest posted receive, if ``available``. ``error``: its WQE could not be read."""

    available: 1
    error: 1
    index: 16
    addr: 64
    length: 32
    lkey: 32


class ReceiveQueue(wiring.Component):
    """Look at a QP's oldest posted receive; take it later with ``consume``.

    An empty ring is answered in 3 cycles, another in 8 and the read's latency. One request at a
    time.

    Members
    -------
    doorbells : In(stream of RingDoorbell)
    requests : In(stream of ring)
    receives : Out(stream of PostedReceive)
    consume, consume_qpn : In
        The oldest posted receive is used up. Not before it was asked for.
    wqe_read : Out(ReadClientSignature)
    busy : Out(1)
        After a reset, until all indices are 0.
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        super().__init__(
            {
                "doorbells": In(stream.Signature(RingDoorbell)),
                "requests": In(stream.Signature(ring_layout(parameters))),
                "receives": Out(stream.Signature(PostedReceive)),
                "consume": In(1),
                "consume_qpn": In(exact_log2(parameters.n_qp)),
                "wqe_read": Out(ReadClientSignature()),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n = self._parameters.n_qp
        m.submodules.producers = producers = memory.Memory(shape=32, depth=n, init=[])
        m.submodules.consumers = consumers = memory.Memory(shape=32, depth=n, init=[])
        producer_write = producers.write_port()
        producer = producers.read_port(transparent_for=(producer_write,))
        consumer_write = consumers.write_port()
        consumer = consumers.read_port(transparent_for=(consumer_write,))

        sweeping = Signal(init=1)
        sweep = Signal(range(n))
        m.d.comb += self.busy.eq(sweeping)
        with m.If(sweeping):
            m.d.sync += [sweep.eq(sweep + 1), sweeping.eq(~sweep.all())]

        # The consumer at the read port is that of the last request, hence of consume. A reset may
        # have emptied the ring since.
        doorbell = self.doorbells.payload
        rung = Signal()
        consumed = self.consume & (producer.data != consumer.data)
        m.d.comb += [
            self.doorbells.ready.eq(~sweeping & ~self.consume),
            rung.eq(self.doorbells.valid & self.doorbells.ready & (doorbell.qpn < n)),
            producer_write.en.eq(sweeping | rung),
            producer_write.addr.eq(Mux(sweeping, sweep, doorbell.qpn)),
            producer_write.data.eq(Mux(sweeping | doorbell.reset, 0, doorbell.index)),
            consumer_write.en.eq(sweeping | consumed | (rung & doorbell.reset)),
            consumer_write.addr.eq(
                Mux(sweeping, sweep, Mux(self.consume, self.consume_qpn, doorbell.qpn))
            ),
            consumer_write.data.eq(Mux(self.consume & ~sweeping, consumer.data + 1, 0)),
        ]

        ring = Signal(ring_layout(self._parameters))
        slot = Signal(15)
        address = Signal(64)
        receive = self.receives.payload
        burst = self.wqe_read.bursts
        beat = self.wqe_read.beats
        words = Signal(192)
        m.d.comb += [
            producer.addr.eq(ring.qpn),
            consumer.addr.eq(ring.qpn),
            burst.payload.address.eq(address),
            burst.payload.beats.eq(len(RECV_WQE_LAYOUT.const({}).as_value()) // 64 - 1),
            beat.ready.eq(1),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.requests.ready.eq(~sweeping)
                with m.If(self.requests.valid & ~sweeping):
                    m.d.sync += [ring.eq(self.requests.payload), receive.eq(0)]
                    m.next = "INDICES"
            with m.State("INDICES"):
                m.next = "COMPARE"
            with m.State("COMPARE"):
                m.d.sync += [
                    receive.available.eq(producer.data != consumer.data),
                    receive.index.eq(consumer.data),
                    slot.eq(consumer.data & ((C(1, 16) << ring.log2) - 1)),
                ]
                m.next = "ADDRESS"
                with m.If(producer.data == consumer.data):
                    m.next = "ANSWER"
            with m.State("ADDRESS"):
                m.d.sync += address.eq(Cat(C(0, 6), ring.addr) + Cat(C(0, 5), slot))
                m.next = "BURST"
            with m.State("BURST"):
                m.d.comb += burst.valid.eq(1)
                with m.If(burst.ready):
                    m.next = "WORDS"
            with m.State("WORDS"):
                with m.If(beat.valid):
                    m.d.sync += [
                        words.eq(Cat(words[64:], beat.payload.data)),
                        receive.error.eq(receive.error | beat.payload.error),
                    ]
                    with m.If(beat.payload.last):
                        wqe = data.View(RECV_WQE_LAYOUT, Cat(words, beat.payload.data))
                        m.d.sync += [
                            receive.addr.eq(wqe.sge0_addr),
                            receive.length.eq(wqe.sge0_length),
                            receive.lkey.eq(wqe.sge0_lkey),
                        ]
                        m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += self.receives.valid.eq(1)
                with m.If(self.receives.ready):
                    m.next = "IDLE"
        return m
