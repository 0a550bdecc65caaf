"""The verbs API over both forms: moderation, asynchronous events, memory that fails."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.test_verbs import PORTS, Pair, Side, octets, refused, request
from uwarp.contract import Counter, Doorbell, EventType, Parameters, outcome_sum
from uwarp.verbs import (
    CQ,
    IBV_EVENT_CQ_ERR,
    IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL,
    IBV_QP_STATE,
    IBV_QP_TIMEOUT,
    IBV_QPS_ERR,
    IBV_QPS_RESET,
    IBV_QPS_RTS,
    IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
    IBV_WC_GENERAL_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_PARTIAL,
    IBV_WC_RECV,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_RECORD,
    IBV_WR_SEND,
    MR,
    QP,
    CompChannel,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
)
from uwarp.verbs.memory import Memory

KINDS = ("model", "rtl")
TICK_US = 1024 / 156.25
SHORT = 0.02  # seconds, in which an event does not come


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(cap=QPCap(16, 16), parameters=Parameters(), kind=request.param)
    yield made
    made.close()


def hide(region: MR) -> None:
    """The device's next accesses to the region's memory are answered with errors."""
    device = region.context.device
    device.unmap(region._dma_address)
    # Mapped anew, where the device's row does not look, to be unmapped in the end.
    region._dma_address = device.map(region.buf, region.length)


def hide_ring(memory: Memory, side: Side) -> None:
    """As ``hide``; it is found again once the row that names it is written."""
    memory.release()
    memory.map(side.context.device)


def take_faults(side: Side) -> int:
    """How many accesses were answered with an error; they are expected."""
    return len(side.context.device.take_faults())  # type: ignore[attr-defined]


def reset(qp: QP) -> None:
    qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    qp.to_rts(QPAttr())


class Notified:
    """A QP of side two on a CQ with a channel; side one sends to it."""

    def __init__(self, pair: Pair, cqe: int = 16) -> None:
        self.one, two = pair.one, pair.two
        self.channel = CompChannel(two.context)
        self.cq = CQ(two.context, cqe, channel=self.channel)
        init = QPInitAttr(scq=self.cq, rcq=self.cq, cap=QPCap(4, 16))
        self.qp = QP(two.pd, init, QPAttr(timeout_us=30), udp_port=5)
        for number in range(16):
            self.qp.post_recv(RecvWR(number))

    def send(self, flags: int = 0) -> None:
        flags |= IBV_SEND_SIGNALED
        self.one.qp.post_send(request(self.one, IBV_WR_SEND, None, port=5, send_flags=flags))
        self.one.take(1)

    def quiet(self) -> bool:
        """Whether no event comes in some time."""
        try:
            self.channel.get_cq_event(self.cq, timeout=SHORT)
        except OSError as error:
            assert error.errno == errno.ETIMEDOUT
            return True
        return False

    def event(self) -> None:
        self.channel.get_cq_event(self.cq, timeout=10)


# Moderation


def test_moderation_by_count(pair: Pair) -> None:
    notified = Notified(pair)
    notified.cq.modify(cq_count=3)
    notified.cq.req_notify()
    for _ in range(2):
        notified.send()
        assert notified.quiet()
    notified.send()
    notified.event()
    assert notified.cq.poll(8)[0] == 3
    notified.cq.modify()
    notified.cq.req_notify()
    notified.send()
    notified.event()


def test_moderation_by_period(pair: Pair) -> None:
    notified = Notified(pair)
    notified.cq.modify(cq_count=100, cq_period=50 * TICK_US)
    notified.cq.req_notify()
    notified.send()
    begin = pair.link.time
    notified.event()
    assert 40 * 1024 < pair.link.time - begin < 55 * 1024
    assert notified.cq.poll(8)[0] == 1


def test_p24_moderation_does_not_hold_back_what_is_there(pair: Pair) -> None:
    """A completion between the poll and the arm."""
    notified = Notified(pair)
    notified.cq.modify(cq_count=8)
    assert notified.cq.poll(4) == (0, [])
    notified.send()
    notified.cq.req_notify()
    notified.event()


def test_moderation_refuses(pair: Pair) -> None:
    cq = pair.two.cq
    for options in (
        {"cq_count": -1},
        {"cq_count": 65536},
        {"cq_period": -1},
        {"cq_period": 65536 * TICK_US},
        {"cq_count": 65},
    ):
        with refused(errno.EINVAL):
            cq.modify(**options)  # type: ignore[arg-type]
    cq.modify(cq_count=64)
    cq.modify(cq_count=65535, cq_period=1)


def test_moderation_ends_with_its_queue(pair: Pair) -> None:
    """The next CQ of the same row begins without."""
    rows = []
    for count in (16, 0):
        notified = Notified(pair)
        rows.append(notified.cq._row)
        notified.cq.req_notify()
        if count:
            notified.cq.modify(cq_count=count)
            notified.send()
            assert notified.quiet()
        else:
            notified.send()
            notified.event()
        notified.channel.close()
        # Rows are taken in turn: all the others first.
        spares = [
            CQ(pair.two.context, 2) for _ in range(pair.two.context.query_device().max_cq - 2)
        ]
        for spare in spares:
            spare.close()
    assert rows[0] == rows[1]


def test_solicited_only(pair: Pair) -> None:
    notified = Notified(pair)
    notified.cq.req_notify(solicited_only=True)
    for _ in range(2):
        notified.send()
    assert notified.quiet()
    assert notified.cq.poll(8)[0] == 2
    notified.cq.req_notify(solicited_only=True)
    notified.send()
    notified.send(IBV_SEND_SOLICITED)
    notified.event()
    assert [wc.solicited for wc in notified.cq.poll(8)[1]] == [False, True]
    notified.cq.req_notify(solicited_only=True)
    wr = request(pair.two, IBV_WR_SEND, pair.two.region(64), 64, port=PORTS[0])
    wr.sg_list[0].lkey ^= 1
    notified.qp.post_send(wr)
    notified.event()
    assert notified.cq.poll(8)[1][0].status == IBV_WC_LOC_PROT_ERR


# Events


def test_p24_cq_full(pair: Pair) -> None:
    """One event until the queue is polled; the QP goes on, what was dropped is counted."""
    notified = Notified(pair, cqe=2)
    context = pair.two.context
    for _ in range(5):
        notified.send()
    event = context.get_async_event(timeout=10)
    assert (event.event_type, event.cause) == (IBV_EVENT_CQ_ERR, EventType.CQ_FULL)
    assert event.cq is notified.cq
    assert event.qp is None
    event.ack()
    assert event.acknowledged
    with refused(errno.ETIMEDOUT):
        context.get_async_event(timeout=SHORT)
    assert context.counters()[Counter.DROP_CQ_FULL] == 3
    assert notified.cq.poll(8)[0] == 2
    for _ in range(3):
        notified.send()
    assert context.get_async_event(timeout=10).cq is notified.cq
    assert [wc.wr_id for wc in notified.cq.poll(8)[1]] == [2, 3]
    assert notified.qp.qp_state == IBV_QPS_RTS


def test_p24_event_ring_goes_round(pair: Pair) -> None:
    """More events than the ring holds, taken by polling alone."""
    notified = Notified(pair, cqe=2)
    context = pair.two.context
    size = 1 << context._events.log2
    notified.send()
    notified.send()
    for _ in range(size + 20):
        notified.send()
        # A doorbell that frees no slot: the next drop is an event again.
        context._ring_doorbell(Doorbell.CQ_CONSUMER, notified.cq._row, 0)
        pair.two.cq.poll()
    assert len(context._async_events) == size + 20
    counters = context.counters()
    assert (counters[Counter.EVENTS], counters[Counter.EVENTS_LOST]) == (size + 20, 0)


def test_completion_event_while_others_come(pair: Pair) -> None:
    """An asynchronous event holds the interrupt line; who waits for a CQ gets past it."""
    full = Notified(pair, cqe=2)
    for _ in range(3):
        full.send()
    context = pair.two.context
    cq = CQ(context, 4, channel=full.channel)
    cq.req_notify()
    with refused(errno.ETIMEDOUT):
        full.channel.get_cq_event(cq, timeout=SHORT)
    assert not context.device.interrupt
    assert context.get_async_event(timeout=0).event_type == IBV_EVENT_CQ_ERR


# Memory that fails


def test_p33_write_that_memory_does_not_take(pair: Pair) -> None:
    """P33, P37: the QP fails and is flushed; every request completes once; a reset recovers it."""
    one, two = pair.one, pair.two
    source, target = one.region(5000), two.region(8192, validity=True)
    source.write(octets(5000))
    for wr_id in range(4):
        two.receive(wr_id, target, 0, 4096)
    hide(target)
    one.qp.post_send(request(one, IBV_WR_SEND, source, 3000))
    one.qp.post_send(request(one, IBV_WR_SEND, source, 10))
    one.take(2)
    found = two.take(4)
    assert [(wc.wr_id, wc.status) for wc in found] == [
        (0, IBV_WC_GENERAL_ERR),
        (1, IBV_WC_WR_FLUSH_ERR),
        (2, IBV_WC_WR_FLUSH_ERR),
        (3, IBV_WC_WR_FLUSH_ERR),
    ]
    assert (found[0].opcode, found[0].byte_len, found[0].validity) == (IBV_WC_RECV, 0, None)
    assert two.qp.qp_state == IBV_QPS_ERR
    event = two.context.get_async_event(timeout=10)
    assert (event.event_type, event.cause) == (IBV_EVENT_QP_FATAL, EventType.DMA_WRITE)
    assert event.qp is two.qp
    assert event.cq is None
    counters = two.context.counters()
    assert counters[Counter.DROP_QP_STATE] == 3, "two datagrams of one Send, one of the other"
    assert counters[Counter.DMA_ERRORS] == counters[Counter.EVENTS] > 1
    assert take_faults(two)
    two.qp.post_recv(RecvWR(5))
    assert two.take(1)[0].status == IBV_WC_WR_FLUSH_ERR
    reset(two.qp)
    fresh = two.region(8192, validity=True)
    two.receive(6, fresh, 0, 4096)
    one.qp.post_send(request(one, IBV_WR_SEND, source, 3000))
    (wc,) = two.take(1)
    assert (wc.wr_id, wc.status, wc.byte_len) == (6, IBV_WC_SUCCESS, 3000)
    assert fresh.read(3000) == octets(5000)[:3000]
    one.take(1)
    assert two.settle() == []


def test_write_that_fails_without_a_receive(pair: Pair) -> None:
    """A Write tells nobody but by the event. Another QP of the same memory's owner goes on."""
    one, two = pair.one, pair.two
    notified = Notified(pair)
    source, target = one.region(64), two.region(64)
    hide(target)
    one.qp.post_send(request(one, IBV_WR_RDMA_WRITE, source, 64, target=target))
    one.take(1)
    event = two.context.get_async_event(timeout=10)
    assert (event.event_type, event.qp) == (IBV_EVENT_QP_FATAL, two.qp)
    notified.send()
    assert notified.cq.poll(4)[1][0].status == IBV_WC_SUCCESS
    assert take_faults(two)


def test_messages_open_when_a_queue_pair_fails(pair: Pair) -> None:
    """They complete with an error, not as partial: what they hold is not to be believed."""
    one, two = pair.one, pair.two
    source, lost, target = one.region(64), two.region(64), two.region(8192, validity=True)
    two.qp.modify(QPAttr(timeout_us=100_000), IBV_QP_TIMEOUT)
    pair.inject(target, 0, 2816, 0, bytes([1]) * 1408, msn=1)
    hide(lost)
    one.qp.post_send(request(one, IBV_WR_RDMA_WRITE, source, 64, target=lost))
    one.take(1)
    (wc,) = two.take(1)
    assert (wc.status, wc.byte_len) == (IBV_WC_GENERAL_ERR, 0)
    assert target.validity.valid == 0
    assert two.qp.qp_state == IBV_QPS_ERR
    assert take_faults(two)


def test_reset_before_anybody_has_seen_the_failure(pair: Pair) -> None:
    """Writing the row would end the failure: the messages must not become partial ones."""
    one, two = pair.one, pair.two
    source, lost, target = one.region(64), two.region(64), two.region(8192, validity=True)
    two.qp.modify(QPAttr(timeout_us=1000), IBV_QP_TIMEOUT)
    pair.inject(target, 0, 2816, 0, bytes([1]) * 1408, msn=1)
    hide(lost)
    one.qp.post_send(request(one, IBV_WR_RDMA_WRITE, source, 64, target=lost))
    pair.link.run(5000)
    reset(two.qp)
    (wc,) = two.take(1)
    assert (wc.status, wc.byte_len) == (IBV_WC_GENERAL_ERR, 0)
    assert two.qp.qp_state == IBV_QPS_RTS, "its event is of the time before"
    assert two.context.get_async_event(timeout=10).event_type == IBV_EVENT_QP_FATAL
    one.take(1)
    two.receive(3, target, 0, 4096)
    one.qp.post_send(request(one, IBV_WR_SEND, source, 64))
    assert two.take(1)[0].status == IBV_WC_SUCCESS
    assert take_faults(two)


def test_reads_that_memory_does_not_answer(pair: Pair) -> None:
    """Payload, a send WQE and a receive WQE: the request completes with an error, others go on."""
    one, two = pair.one, pair.two
    source, good = one.region(5000), one.region(64)
    target = two.region(64)
    hide(source)
    one.qp.post_send(request(one, IBV_WR_RDMA_WRITE_RECORD, source, 5000, target=target))
    one.qp.post_send(request(one, IBV_WR_RDMA_WRITE, good, 64, target=target))
    assert [wc.status for wc in one.take(2)] == [IBV_WC_GENERAL_ERR, IBV_WC_SUCCESS]
    event = one.context.get_async_event(timeout=10)
    assert (event.event_type, event.cause) == (IBV_EVENT_QP_ACCESS_ERR, EventType.DMA_READ)
    assert event.qp is one.qp
    hide_ring(one.qp._sq.memory, one)
    one.qp.post_send(request(one, IBV_WR_SEND, None))
    assert one.take(1)[0].status == IBV_WC_LOC_QP_OP_ERR
    assert one.qp.qp_state == IBV_QPS_RTS
    one.qp._write_row()
    hide_ring(two.qp._rq.memory, two)
    two.receive(0, target)
    one.qp.post_send(request(one, IBV_WR_SEND, good, 64))
    one.take(1)
    assert two.take(1)[0].status == IBV_WC_LOC_PROT_ERR
    event = two.context.get_async_event(timeout=10)
    assert (event.event_type, event.qp) == (IBV_EVENT_QP_ACCESS_ERR, two.qp)
    assert take_faults(one)
    assert take_faults(two)


def test_completion_that_memory_does_not_take(pair: Pair) -> None:
    one, two = pair.one, pair.two
    hide_ring(two.cq._memory, two)
    two.qp.post_recv(RecvWR(0))
    one.qp.post_send(request(one, IBV_WR_SEND, None))
    one.take(1)
    event = two.context.get_async_event(timeout=10)
    assert (event.event_type, event.cause) == (IBV_EVENT_CQ_ERR, EventType.DMA_CQE)
    assert event.cq is two.cq
    assert take_faults(two)
    two.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    assert [wc.status for wc in two.settle(2000)] == [IBV_WC_WR_FLUSH_ERR], "P37"


def test_p41_events_of_a_destroyed_queue_pair(pair: Pair) -> None:
    """The next QP of that row is not taken to ERR for it."""
    one, two = pair.one, pair.two
    source, lost = one.region(64), two.region(64)
    hide(lost)
    one.qp.post_send(request(one, IBV_WR_RDMA_WRITE, source, 64, target=lost))
    one.take(1)
    pair.link.run(2000)
    row = two.qp._row
    two.qp.close()
    others = []
    while True:
        qp = QP(two.pd, QPInitAttr(scq=two.cq, rcq=two.cq), QPAttr(timeout_us=30))
        others.append(qp)
        if qp._row == row:
            break
    two.settle(1000)
    assert {qp.qp_state for qp in others} == {IBV_QPS_RTS}
    assert two.context.get_async_event(timeout=10).event_type == IBV_EVENT_QP_FATAL
    assert take_faults(two)


def test_partial_message_is_still_partial(pair: Pair) -> None:
    """Nothing failed: a message that misses octets says what it has."""
    two = pair.two
    target = two.region(8192, validity=True)
    pair.inject(target, 0, 2816, 0, bytes([1]) * 1408, msn=1)
    (wc,) = two.take(1)
    assert (wc.status, wc.byte_len) == (IBV_WC_PARTIAL, 1408)


def test_counters_are_of_one_moment(pair: Pair) -> None:
    """While frames come: what was received and what became of it add up in every snapshot."""
    one, two = pair.one, pair.two
    source, target = one.region(60_000), two.region(60_000)
    for _ in range(4):
        one.qp.post_send(request(one, IBV_WR_RDMA_WRITE, source, 60_000, target=target))
    seen = set()
    for _ in range(8):
        counters = two.context.counters()
        assert outcome_sum(counters) <= counters[Counter.RX_FRAMES]
        seen.add(counters[Counter.RX_PLACED])
    assert len(seen) > 4
    one.take(4)
