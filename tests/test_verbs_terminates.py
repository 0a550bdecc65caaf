"""The verbs API over both forms: Terminates of a queue pair and of its peers."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.test_verbs import IPS, IPV6S, Pair, Side, refused
from tests.test_verbs import request as send_request
from uwarp.contract import TERMINATE_TICKS, TICK_CYCLES, Counter, EventType, Parameters
from uwarp.verbs import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_EVENT_QP_TERMINATE,
    IBV_QP_RATE_LIMIT,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_RTS,
    IBV_WC_PARTIAL,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_RECORD,
    IBV_WR_SEND,
    QP,
    AsyncEvent,
    QPAttr,
    QPCap,
    QPInitAttr,
    TerminateReport,
)
from uwarp.wire import Opcode, Segment, Terminate, terminate_text

KINDS = ("model", "rtl")
PORT = 5
SHORT = 0.02  # seconds, in which an event does not come


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(cap=QPCap(16, 16), parameters=Parameters(), kind=request.param)
    yield made
    made.close()


def reporter(side: Side, port: int = PORT) -> QP:
    """A queue pair that tells its peers what it does not take."""
    init = QPInitAttr(scq=side.cq, rcq=side.cq, cap=QPCap(4, 4), terminate=True)
    return QP(side.pd, init, QPAttr(), udp_port=port)


def told(side: Side) -> AsyncEvent:
    event = side.context.get_async_event(timeout=10)
    assert (event.event_type, event.cause) == (IBV_EVENT_QP_TERMINATE, EventType.TERMINATE)
    assert event.cq is None
    return event


def quiet(side: Side) -> None:
    with refused(errno.ETIMEDOUT):
        side.context.get_async_event(timeout=SHORT)


def wait_for_the_next(pair: Pair) -> None:
    """So long that a device makes another Terminate."""
    context = pair.one.context
    context._wait_until(context.time + (TERMINATE_TICKS + 1) * TICK_CYCLES)


def test_what_was_refused_and_why(pair: Pair) -> None:
    """The event names the message as its completion does. Nothing happens to the queue pair."""
    one, two = pair.one, pair.two
    qp = reporter(two)
    before = one.context.time
    for _ in range(2):
        one.qp.post_send(send_request(one, IBV_WR_SEND, one.region(64), 9, port=PORT))
    first, _ = one.take(2)
    event = told(one)
    assert event.qp is one.qp
    assert event.report == TerminateReport(IPS[1], PORT, first.msn, 1, 2, 2)
    assert event.report.meaning == "DDP, untagged buffer: no buffer for the message"
    assert before - 256 < event.time <= one.context.time
    quiet(one)  # the second came too soon
    assert one.qp.qp_state == qp.qp_state == IBV_QPS_RTS
    counters = two.context.counters()
    assert (counters[Counter.DROP_NO_RECEIVE], counters[Counter.TX_TERMINATES]) == (2, 1)


def test_both_ways(pair: Pair) -> None:
    """Two queue pairs that report, each what the other one sends; no answer has an answer."""
    qps = {side.context: reporter(side) for side in (pair.one, pair.two)}
    for side in (pair.one, pair.two):
        target = 0x1234_5678, 0x9ABC
        wr = send_request(side, IBV_WR_RDMA_WRITE_RECORD, side.region(64), 9, port=PORT)
        wr.set_wr_rdma(*target)
        qps[side.context].post_send(wr)
    for side in (pair.one, pair.two):
        (wc,) = side.take(1)
        event = told(side)
        assert event.qp is qps[side.context]
        assert event.report is not None
        assert (event.report.peer_port, event.report.msn) == (PORT, wc.msn)
        assert event.report.meaning == "DDP, tagged buffer: invalid STag"
        quiet(side)


def test_reads_and_writes(pair: Pair) -> None:
    """An RDMA Write has no number; a Read that is refused goes on to wait for its octets."""
    one, two = pair.one, pair.two
    reporter(two)
    secret = two.region(4096, IBV_ACCESS_LOCAL_WRITE)
    sink = one.region(4096, validity=True)
    one.qp.post_send(
        send_request(one, IBV_WR_RDMA_WRITE, one.region(64), 9, target=secret, port=PORT)
    )
    report = told(one).report
    assert report is not None
    assert (report.msn, report.meaning) == (0, "DDP, tagged buffer: invalid STag")
    wait_for_the_next(pair)
    wr = send_request(one, IBV_WR_RDMA_READ, sink, 9, target=secret, port=PORT)
    one.qp.post_send(wr)
    report = told(one).report
    assert report is not None
    assert report.meaning == "RDMAP, remote protection: access rights violation"
    written, read = one.take(2)
    assert written.status == IBV_WC_SUCCESS
    assert (read.msn, read.status) == (report.msn, IBV_WC_PARTIAL)


def test_not_asked_for(pair: Pair) -> None:
    """Queue pairs do not report by themselves; what they are made with can be asked."""
    one, two = pair.one, pair.two
    assert not two.qp.query()[1].terminate
    assert reporter(two).query()[1].terminate
    one.qp.post_send(send_request(one, IBV_WR_SEND, None))
    one.take(1)
    quiet(one)
    counters = two.context.counters()
    assert (counters[Counter.DROP_NO_RECEIVE], counters[Counter.TX_TERMINATES]) == (1, 0)


@pytest.mark.parametrize("source, code", [(IPS[0], 0x0206), (IPV6S[0], 0xF3AB)])
def test_any_sender_and_code(pair: Pair, source: str, code: int) -> None:
    body = Terminate.of(code)
    pair.inject_segment(
        Segment(opcode=Opcode.TERMINATE, payload=body.encode(), qn=2, msn=1 << 31, mlen=4), source
    )
    event = told(pair.two)
    assert event.qp is pair.two.qp
    expected = TerminateReport(source, 7777, 1 << 31, body.layer, body.etype, body.code)
    assert event.report == expected
    assert expected.meaning == terminate_text(code) == body.meaning


def test_queue_pair_that_ends_with_one_to_send(pair: Pair) -> None:
    """It waits for its rate, and never goes; the device's other queue pairs go on."""
    one, two = pair.one, pair.two
    qp = reporter(two)
    qp.modify(QPAttr(rate_limit=5, max_burst_sz=64), IBV_QP_RATE_LIMIT)
    for _ in range(2):
        one.qp.post_send(send_request(one, IBV_WR_SEND, None, port=PORT))
        one.take(1)
        wait_for_the_next(pair)
    told(one)
    qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    qp.close()
    wait_for_the_next(pair)
    assert two.context.counters()[Counter.TX_TERMINATES] == 1
    reporter(two, PORT + 1)
    one.qp.post_send(send_request(one, IBV_WR_SEND, None, port=PORT + 1))
    report = told(one).report
    assert report is not None
    assert report.peer_port == PORT + 1


def test_what_codes_mean() -> None:
    assert terminate_text(0x1205) == "DDP, untagged buffer: message too long for the buffer"
    assert terminate_text(0x0000) == "RDMAP: local catastrophic error"
    assert terminate_text(0x2002) == "LLP: CRC error"
    assert terminate_text(0x12FE) == "DDP, untagged buffer: code 0xfe"
    assert terminate_text(0x1505) == "DDP, type 5: code 0x05"
    assert terminate_text(0xF305) == "layer 15, type 3: code 0x05"
