"""The verbs API: Reads, on ``tests.forms`` where the traffic counts."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest

from tests.forms import EVERYWHERE, forms
from tests.seeds import seeds
from tests.test_verbs import IPS, IPV6S, PORTS, REMOTE, Pair, Side, octets, refused, request
from tests.test_verbs_events import hide, take_faults
from uwarp.contract import CQE, Counter, Parameters, Status
from uwarp.device import Impairments
from uwarp.verbs import (
    AH,
    CQ,
    GID,
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_READ,
    IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL,
    IBV_QP_STATE,
    IBV_QP_TIMEOUT,
    IBV_QPS_ERR,
    IBV_QPS_RESET,
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
    IBV_WC_GENERAL_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_NO_TRACKER,
    IBV_WC_PARTIAL,
    IBV_WC_RDMA_READ,
    IBV_WC_RDMA_WRITE,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    MR,
    PD,
    QP,
    SGE,
    AHAttr,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    SendWR,
)
from uwarp.verbs.work_queue import Request
from uwarp.wire import Opcode, Segment, UdpFrame

CAP = QPCap(16, 16, max_inline_data=48)
READABLE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ
NOBODY = 4000  # a UDP port that no QP has
FEW = Parameters(n_qp=4, n_region=16, n_tracker=2, n_closed=16, n_read=2, map_bits=8192)


@pytest.fixture(params=forms())
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(cap=CAP, parameters=Parameters(), kind=request.param)
    yield made
    made.close()


def read(
    side: Side,
    sink: MR,
    source: MR,
    length: int,
    *,
    into: int = 0,
    start: int = 0,
    port: int = PORTS[1],
    ah: AH | None = None,
    **options: int,
) -> SendWR:
    """A Read of ``length`` octets from ``start`` of ``source`` into ``into`` of ``sink``."""
    sg = [SGE(sink.buf + into, length, sink.lkey)]
    wr = SendWR(opcode=IBV_WR_RDMA_READ, sg=sg, **options)  # type: ignore[arg-type]
    wr.set_wr_ud(ah or side.ah, port)
    wr.set_wr_rdma(source.rkey, source.buf + start)
    return wr


def regions(pair: Pair, length: int, seed: int = 1) -> tuple[MR, MR]:
    """A sink at side one, and a source at side two with octets in it."""
    source = pair.two.region(length, READABLE)
    source.write(octets(length, seed))
    return pair.one.region(length, validity=True), source


def answer(
    pair: Pair,
    stag: int,
    to: int,
    payload: bytes,
    *,
    msn: int,
    mlen: int,
    mo: int = 0,
    port: int = NOBODY,
) -> None:
    """One segment of a response to a Read into ``to`` arrives at side one, made by hand."""
    segment = Segment(
        opcode=Opcode.READ_RESPONSE_RECORD,
        payload=payload,
        last=mo + len(payload) == mlen,
        stag=stag,
        to=to + mo,
        msn=msn,
        mo=mo,
        mlen=mlen,
    )
    frame = UdpFrame(
        dest_mac=pair.one.context.mac,
        source_mac=pair.two.context.mac,
        source_ip=pair.two.context.ipv4,
        dest_ip=pair.one.context.ipv4,
        source_port=port,
        dest_port=PORTS[0],
        payload=segment.to_datagram(),
    )
    pair.link.devices[0].inject(frame.encode())  # type: ignore[attr-defined]


@EVERYWHERE
@pytest.mark.parametrize("family", [4, 6])
def test_reads_of_any_length_and_alignment(pair: Pair, family: int) -> None:
    one, rng = pair.one, random.Random(family)
    sink, source = regions(pair, 9000)
    address = (IPS if family == 4 else IPV6S)[1]
    ah = AH(one.pd, attr=AHAttr(gr=GlobalRoute(GID(address), hop_limit=9)))
    lengths = [1, 63, 64, 65, 1408, 1409, *(rng.randint(1, 9000) for _ in range(12))]
    for number, length in enumerate(lengths):
        into, start = rng.randint(0, 9000 - length), rng.randint(0, 9000 - length)
        sink.write(bytes(9000))
        sink.validity.clear()
        one.qp.post_send(
            read(one, sink, source, length, into=into, start=start, ah=ah, wr_id=number)
        )
        (wc,) = one.take(1)
        where = f"{length} octets from {start} to {into}"
        assert (wc.wr_id, wc.status, wc.opcode) == (number, IBV_WC_SUCCESS, IBV_WC_RDMA_READ), where
        assert (wc.byte_len, wc.message_length, wc.qp_num) == (length, length, PORTS[0]), where
        assert (wc.src_ip, wc.src_qp) == (address, PORTS[1]), where
        assert (wc.stag, wc.remote_addr) == (sink.lkey, sink.buf + into), where
        assert wc.validity is not None and wc.validity.ranges() == [(0, length)], where
        assert sink.validity.ranges() == [(into, length)], where
        expected = bytearray(9000)
        expected[into : into + length] = source.read(length, start)
        assert sink.read() == bytes(expected), where
    assert pair.two.settle(500) == [], "the responder's CQ has nothing of Reads"


@EVERYWHERE
def test_many_reads_at_once_both_ways(pair: Pair) -> None:
    """As many as a queue holds, and more than there are trackers for both together."""
    sides = (pair.one, pair.two)
    for side in sides:
        side.qp.modify(QPAttr(timeout_us=500), IBV_QP_TIMEOUT)
    sinks = [side.region(16 * 5000, validity=True) for side in sides]
    sources = [side.region(16 * 5000, READABLE) for side in sides]
    for seed, source in enumerate(sources):
        source.write(octets(16 * 5000, seed))
    for index, side in enumerate(sides):
        for number in range(16):
            wr = read(
                side,
                sinks[index],
                sources[1 - index],
                5000,
                into=5000 * number,
                start=5000 * (15 - number),
                port=PORTS[1 - index],
                wr_id=number,
            )
            side.qp.post_send(wr)
    for index, side in enumerate(sides):
        found = side.take(16)
        assert sorted(wc.wr_id for wc in found) == list(range(16))
        assert {wc.status for wc in found} == {IBV_WC_SUCCESS}
        whole = b"".join(
            sources[1 - index].read(5000, 5000 * (15 - number)) for number in range(16)
        )
        assert sinks[index].read() == whole
        assert sinks[index].validity.complete


def test_read_from_own_device(pair: Pair) -> None:
    """By loopback, from another QP and from itself."""
    one = pair.one
    source, sink = one.region(3000, READABLE), one.region(3000, validity=True)
    source.write(octets(3000))
    init = QPInitAttr(scq=one.cq, rcq=one.cq)
    with QP(one.pd, init, QPAttr(timeout_us=30), udp_port=77):
        ah = AH(one.pd, attr=AHAttr(gr=GlobalRoute(GID(IPS[0]))))
        for port in (77, PORTS[0]):
            sink.write(bytes(3000))
            one.qp.post_send(read(one, sink, source, 3000, port=port, ah=ah))
            (wc,) = one.take(1)
            assert (wc.status, wc.src_ip, wc.src_qp) == (IBV_WC_SUCCESS, IPS[0], port)
            assert sink.read() == octets(3000)


def test_completions_come_in_any_order(pair: Pair) -> None:
    """A Read that nobody answers keeps no later request, and is itself completed by its timeout."""
    one = pair.one
    sink, source = regions(pair, 4096)
    lost = read(one, sink, source, 1000, wr_id=1, port=NOBODY)
    answered = read(one, sink, source, 1000, into=1024, wr_id=2)
    send = request(one, IBV_WR_RDMA_WRITE, sink, 64, target=pair.two.region(64), wr_id=3)
    lost.next_wr, answered.next_wr = answered, send
    one.qp.post_send(lost)
    found = one.take(3)
    assert sorted(wc.wr_id for wc in found[:2]) == [2, 3]
    assert {wc.status for wc in found[:2]} == {IBV_WC_SUCCESS}
    (wc,) = found[2:]
    assert (wc.wr_id, wc.status, wc.opcode) == (1, IBV_WC_PARTIAL, IBV_WC_RDMA_READ)
    assert (wc.byte_len, wc.message_length) == (0, 1000)
    assert wc.validity is not None and wc.validity.ranges() == []
    assert sink.validity.ranges() == [(1024, 1000)]


def test_unsignalled_reads(pair: Pair) -> None:
    """A success is not reported, but accounted for; what is not one is reported all the same."""
    one = pair.one
    sink, source = regions(pair, 8192)
    init = QPInitAttr(scq=one.cq, rcq=one.cq, cap=QPCap(4, 1), sq_sig_all=0)
    with QP(one.pd, init, QPAttr(timeout_us=20), udp_port=9) as qp:
        for number in range(4):
            qp.post_send(read(one, sink, source, 2000, into=2048 * number, send_flags=0))
        with refused(errno.ENOMEM):
            qp.post_send(read(one, sink, source, 64, send_flags=0))
        assert one.settle() == []
        assert sink.validity.ranges() == [(2048 * number, 2000) for number in range(4)]
        for number in range(4):
            qp.post_send(read(one, sink, source, 64, wr_id=number, send_flags=0, port=NOBODY))
        found = one.take(4)
        assert sorted((wc.wr_id, wc.status) for wc in found) == [
            (number, IBV_WC_PARTIAL) for number in range(4)
        ]


def test_completed_read_stands_for_unsignalled_sends_before_it(pair: Pair) -> None:
    """And for no Read before it: those have a completion of their own."""
    one = pair.one
    sink, source = regions(pair, 4096)
    target = pair.two.region(64)
    init = QPInitAttr(scq=one.cq, rcq=one.cq, cap=QPCap(4, 1), sq_sig_all=0)
    with QP(one.pd, init, QPAttr(timeout_us=20), udp_port=9) as qp:
        for number in range(20):
            for flags in (0, 0):
                wr = request(one, IBV_WR_RDMA_WRITE, sink, 8, target=target, send_flags=flags)
                qp.post_send(wr)
            qp.post_send(read(one, sink, source, 640, wr_id=number, send_flags=IBV_SEND_SIGNALED))
            (wc,) = one.take(1)
            assert (wc.wr_id, wc.opcode) == (number, IBV_WC_RDMA_READ)
        qp.post_send(read(one, sink, source, 64, wr_id=50, send_flags=0, port=NOBODY))
        wr = request(one, IBV_WR_RDMA_WRITE, sink, 8, target=target, wr_id=51)
        qp.post_send(wr)
        found = one.take(2)
        assert [(wc.wr_id, wc.opcode) for wc in found] == [
            (51, IBV_WC_RDMA_WRITE),
            (50, IBV_WC_RDMA_READ),
        ]
        assert qp._sq.outstanding == 0


def test_open_read_keeps_no_place_in_the_ring(pair: Pair) -> None:
    """While it is open, the queue takes as many as it does else but one, over and over."""
    one = pair.one
    sink, source = regions(pair, 4096)
    target = pair.two.region(8 * 64)
    init = QPInitAttr(scq=one.cq, rcq=one.cq, cap=QPCap(4, 1, max_inline_data=8))
    with QP(one.pd, init, QPAttr(timeout_us=200), udp_port=9) as qp:
        qp.post_send(read(one, sink, source, 64, wr_id=1000, port=NOBODY))
        for turn in range(5):
            for number in range(3):
                wr_id = 3 * turn + number
                target.write(bytes(8))
                sink.write(octets(8, wr_id), offset=2048)
                inline = SendWR(
                    wr_id,
                    IBV_WR_RDMA_WRITE,
                    sg=[SGE(sink.buf + 2048, 8, 0)],
                    send_flags=IBV_SEND_INLINE,
                )
                inline.set_wr_ud(one.ah, PORTS[1])
                inline.set_wr_rdma(target.rkey, target.buf + 64 * number)
                qp.post_send(inline)
            with refused(errno.ENOMEM):
                qp.post_send(read(one, sink, source, 64))
            assert [wc.wr_id for wc in one.take(3)] == [3 * turn + number for number in range(3)]
            pair.link.run(500)
            for number in range(3):
                assert target.read(8, 64 * number) == octets(8, 3 * turn + number)
        assert one.take(1)[0].wr_id == 1000


@pytest.mark.parametrize("kind", forms())
@pytest.mark.parametrize("seed", seeds(1, 7))
def test_reads_with_losses_never_over_report(kind: str, seed: int) -> None:
    """What is called valid is the source's; each Read completes once, whatever was lost."""
    impairments = Impairments(0.1, 0.1, 0.2, seed)
    pair = Pair(impairments, cap=CAP, timeout_us=60, parameters=Parameters(), kind=kind)
    one, rng = pair.one, random.Random(seed)
    sink, source = regions(pair, 16 * 8192, seed)
    partial = 0
    for _ in range(3):
        sink.write(bytes(sink.length))
        sink.validity.clear()
        expected = {}
        for number in range(16):
            length = rng.randint(1, 8000)
            into = 8192 * number + rng.randint(0, 8192 - length)
            start = rng.randint(0, source.length - length)
            expected[number] = (into, length, source.read(length, start))
            wr = read(one, sink, source, length, into=into, start=start, wr_id=number)
            one.qp.post_send(wr)
        found = one.take(16)
        assert sorted(wc.wr_id for wc in found) == list(range(16)), f"seed {seed}"
        for wc in found:
            into, length, data = expected[wc.wr_id]
            assert wc.status in (IBV_WC_SUCCESS, IBV_WC_PARTIAL), f"seed {seed}"
            assert wc.validity is not None and wc.validity.valid == wc.byte_len
            assert (wc.byte_len == length) == (wc.status == IBV_WC_SUCCESS)
            partial += wc.status == IBV_WC_PARTIAL
            for offset, size in wc.validity.ranges():
                where = f"seed {seed}, octets {offset} to {offset + size} of Read {wc.wr_id}"
                assert sink.read(size, into + offset) == data[offset : offset + size], where
        assert one.settle(3000) == []
    assert partial, "nothing was lost"
    pair.close()


def test_late_responses_change_nothing(pair: Pair) -> None:
    """A response to a Read that has completed is dropped, though it would fit."""
    one = pair.one
    sink, source = regions(pair, 4096)
    one.qp.post_send(read(one, sink, source, 64, port=NOBODY))
    (wc,) = one.take(1)
    assert wc.status == IBV_WC_PARTIAL
    answer(pair, sink.lkey, sink.buf, octets(64, 9), msn=wc.msn, mlen=64)
    assert one.settle(3000) == []
    assert one.context.counters()[Counter.DROP_LATE] == 1
    assert sink.read(64) == bytes(64) and sink.validity.ranges() == []


def test_what_the_peer_does_not_allow(pair: Pair) -> None:
    """Another access, key, protection domain, or octets beyond: nothing comes, one reason each."""
    one, two = pair.one, pair.two
    sink, source = regions(pair, 4096)
    shut = two.region(4096, REMOTE)
    foreign = MR(PD(two.context), 4096, READABLE)
    stale = read(one, sink, source, 64)
    stale.rkey ^= 1
    wrs = [
        read(one, sink, shut, 64),
        read(one, sink, foreign, 64),
        stale,
        read(one, sink, source, 64, start=4033),
    ]
    for number, wr in enumerate(wrs):
        wr.wr_id = number
        one.qp.post_send(wr)
        (wc,) = one.take(1)
        assert (wc.wr_id, wc.status, wc.byte_len) == (number, IBV_WC_PARTIAL, 0)
    counters = two.context.counters()
    assert counters[Counter.DROP_STAG_ACCESS] == counters[Counter.DROP_STAG_PD] == 1
    assert counters[Counter.DROP_STAG_KEY] == counters[Counter.DROP_BOUNDS] == 1


def test_p38_bad_sink_completes_with_an_error(pair: Pair) -> None:
    """P38, P39: a wrong lkey, octets beyond the region, one that takes no writes, one of another
    protection domain; nothing is sent, and the next Read works."""
    one = pair.one
    sink, source = regions(pair, 4096)
    shut = one.region(4096, 0, validity=True)
    foreign = MR(PD(one.context), 4096, IBV_ACCESS_LOCAL_WRITE, validity=True)
    wrong = read(one, sink, source, 64)
    wrong.sg_list[0].lkey ^= 1
    wrs = [
        wrong,
        read(one, sink, source, 64, into=4033),
        read(one, shut, source, 64),
        read(one, foreign, source, 64),
    ]
    pair.link.records()
    for number, wr in enumerate(wrs):
        wr.wr_id, wr.send_flags = number, 0
        one.qp.post_send(wr)
        (wc,) = one.take(1)
        assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.validity, wc.src_ip) == (
            number,
            IBV_WC_LOC_PROT_ERR,
            IBV_WC_RDMA_READ,
            0,
            None,
            None,
        )
    assert pair.link.records() == []
    one.qp.post_send(read(one, sink, source, 64, wr_id=9))
    (wc,) = one.take(1)
    assert (wc.wr_id, wc.status) == (9, IBV_WC_SUCCESS)


def test_post_send_refuses(pair: Pair) -> None:
    """P36: what a Read cannot be is said when it is posted."""
    one = pair.one
    sink, source = regions(pair, 4096)
    none = read(one, sink, source, 64)
    none.sg_list = []
    wide = QP(
        one.pd,
        QPInitAttr(scq=one.cq, rcq=one.cq, cap=QPCap(max_send_sge=2)),
        QPAttr(),
    )
    two_sges = read(one, sink, source, 64)
    two_sges.sg_list *= 2
    group = AH(one.pd, attr=AHAttr(gr=GlobalRoute(GID("239.1.1.1"))))
    for wr in (
        none,
        two_sges,
        read(one, sink, source, 0),
        read(one, one.region(64), source, 64),
        read(one, one.region(4096, validity=True, granule=128), source, 64),
        read(one, sink, source, 64, send_flags=IBV_SEND_SOLICITED),
        read(one, sink, source, 48, send_flags=IBV_SEND_INLINE),
        read(one, sink, source, 64, ah=group),
    ):
        with refused(errno.EINVAL):
            wide.post_send(wr)
    assert one.settle(1000) == []
    wide.close()


def test_device_attributes() -> None:
    pair = Pair(parameters=FEW)
    device = pair.one.context.query_device()
    assert (device.max_qp_rd_atom, device.max_res_rd_atom, device.max_qp_init_rd_atom) == (2, 2, 2)
    assert (device.max_sge, device.max_sge_rd, device.max_inline_data) == (4, 1, 48)
    assert (device.max_mcast_grp, device.max_mcast_qp_attach) == (16, 16)
    assert device.max_total_mcast_qp_attach == 256
    assert device.version >> 16 == 3
    pair.close()


def test_more_reads_than_trackers_and_places() -> None:
    """Reads wait for a tracker; requests that find no place are dropped, and time out."""
    pair = Pair(parameters=FEW, cap=QPCap(16, 16))
    one = pair.one
    sink, source = regions(pair, 16 * 1024)
    for number in range(16):
        one.qp.post_send(read(one, sink, source, 1000, into=1024 * number, wr_id=number))
    found = one.take(16)
    assert sorted(wc.wr_id for wc in found) == list(range(16))
    assert {wc.status for wc in found} == {IBV_WC_SUCCESS}, "two at once, and two places"
    assert not pair.two.context.counters()[Counter.DROP_READ_BUSY]
    pair.close()


def test_read_that_the_device_cannot_keep_account_of() -> None:
    """Its status is one of its own; it names no sender, and no octets."""
    pair = Pair(parameters=FEW)
    one = pair.one
    cq = CQ(one.context, 4)
    with QP(one.pd, QPInitAttr(scq=cq, rcq=cq)) as qp:
        asked = Request(5, IBV_WC_RDMA_READ, signalled=False, in_order=False)
        qp._sq.post(bytes(qp._sq.size), asked)
        entry = CQE.pack(
            opcode=Opcode.READ_REQUEST,
            status=Status.NO_TRACKER,
            qpn=qp._row,
            mlen=64,
            phase=1,
        )
        cq._memory.view[: CQE.size] = entry
        _, (wc,) = cq.poll()
        assert (wc.wr_id, wc.status, wc.opcode) == (5, IBV_WC_NO_TRACKER, IBV_WC_RDMA_READ)
        assert (wc.byte_len, wc.validity, wc.src_ip) == (0, None, None)
    pair.close()


# The end of a QP, of a region


def end(qp: QP, how: str) -> None:
    """Close the QP, or bring it to the error state, or to reset."""
    if how == "close":
        qp.close()
    else:
        state = IBV_QPS_ERR if how == "error" else IBV_QPS_RESET
        qp.modify(QPAttr(qp_state=state), IBV_QP_STATE)


def check_reads_again(pair: Pair) -> None:
    """The first QP, which was reset."""
    one = pair.one
    one.qp.to_rts(QPAttr(timeout_us=30))
    sink, source = regions(pair, 4096)
    one.qp.post_send(read(one, sink, source, 4000, wr_id=7))
    (wc,) = one.take(1)
    assert (wc.wr_id, wc.status) == (7, IBV_WC_SUCCESS)


def posted(pair: Pair, count: int) -> MR:
    """The sink of ``count`` Reads that nobody answers, wr_id 0 upward."""
    one = pair.one
    sink, source = regions(pair, 4096)
    for number in range(count):
        into = 1024 * (number % 4)
        one.qp.post_send(read(one, sink, source, 1000, into=into, wr_id=number, port=NOBODY))
    return sink


@pytest.mark.parametrize("kind", forms())
@pytest.mark.parametrize("how", ["close", "error", "reset"])
def test_p37_each_open_read_completes_once(kind: str, how: str) -> None:
    """P37: those that were open as partial, with their map; quickly, whatever the timeout."""
    pair = Pair(cap=CAP, timeout_us=100_000, parameters=Parameters(), kind=kind)
    one = pair.one
    posted(pair, 4)
    pair.link.run(2000)
    assert one.settle(100) == []
    before = one.context.time
    end(one.qp, how)
    assert one.context.time - before < 30_000
    found = one.settle(2000)
    assert [(wc.wr_id, wc.status) for wc in found] == [
        (number, IBV_WC_PARTIAL) for number in range(4)
    ]
    assert all(wc.opcode == IBV_WC_RDMA_READ and wc.byte_len == 0 for wc in found)
    if how == "reset":
        check_reads_again(pair)
    pair.close()


@pytest.mark.parametrize("how", ["close", "error", "reset"])
def test_p37_reads_that_wait_for_a_tracker_are_flushed(how: str) -> None:
    """P37: two are open, which is all there can be; the others have not begun."""
    pair = Pair(cap=CAP, timeout_us=100_000, parameters=FEW)
    one = pair.one
    posted(pair, 6)
    pair.link.run(2000)
    end(one.qp, how)
    found = one.settle(3000)
    assert sorted(wc.wr_id for wc in found) == list(range(6))
    assert {wc.status for wc in found} <= {IBV_WC_PARTIAL, IBV_WC_WR_FLUSH_ERR}
    assert IBV_WC_WR_FLUSH_ERR in {wc.status for wc in found}
    if how == "reset":
        check_reads_again(pair)
    pair.close()


def test_p32_closing_the_sink_closes_its_reads(pair: Pair) -> None:
    """The Read completes; a response that comes afterwards writes to nothing."""
    one = pair.one
    one.qp.modify(QPAttr(timeout_us=100_000), IBV_QP_TIMEOUT)
    sink = posted(pair, 2)
    pair.link.run(2000)
    lkey, buf = sink.lkey, sink.buf
    sink.close()
    found = one.settle(1000)
    assert [(wc.wr_id, wc.status, wc.validity) for wc in found] == [
        (0, IBV_WC_PARTIAL, None),
        (1, IBV_WC_PARTIAL, None),
    ]
    answer(pair, lkey, buf, octets(64), msn=found[0].msn, mlen=1000)
    pair.link.run(3000)
    one.context.device.check()  # type: ignore[attr-defined]
    assert one.context.counters()[Counter.DROP_LATE] == 1


def test_p41_responses_do_not_reach_the_next_queue_pair(pair: Pair) -> None:
    """P41: a QP is destroyed while a Read is answered; the next one of its row and port, which
    numbers its messages anew, reads into the same place when more of the answer comes."""
    one, two = pair.one, pair.two
    sink, source = regions(pair, 20_000)
    rows = one.context._qp_rows
    others = [rows.take() for _ in range(one.context.query_device().max_qp - 1)]
    row = one.qp._row
    one.qp.post_send(read(one, sink, source, 20_000))
    pair.link.run(1500)
    one.qp.close()
    (wc,) = one.settle(500)
    assert (wc.status, wc.opcode, wc.msn) == (IBV_WC_PARTIAL, IBV_WC_RDMA_READ, 1)
    two.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)  # it would answer the next one
    init = QPInitAttr(scq=one.cq, rcq=one.cq, cap=CAP)
    one.qp = QP(one.pd, init, QPAttr(timeout_us=100), udp_port=PORTS[0])
    assert one.qp._row == row
    before = sink.read()
    one.qp.post_send(read(one, sink, source, 64, into=1408))
    pair.link.run(1000)
    for mo in range(0, 19_712, 1408):
        answer(pair, sink.lkey, sink.buf, octets(1408, 9), msn=1, mo=mo, mlen=20_000, port=PORTS[1])
    pair.link.run(5000)
    assert one.cq.poll()[1] == [] and sink.read() == before
    answer(pair, sink.lkey, sink.buf + 1408, octets(64, 3), msn=1, mlen=64, port=PORTS[1])
    (wc,) = one.take(1)
    assert (wc.status, wc.msn) == (IBV_WC_SUCCESS, 1)
    assert sink.read(64, 1408) == octets(64, 3)
    for other in others:
        rows.give(other)


@pytest.mark.parametrize("what", ["queue pair", "region"])
def test_responder_ends_while_it_answers(pair: Pair, what: str) -> None:
    """The Read ends as partial, and the device reads nothing of what is closed."""
    one, two = pair.one, pair.two
    sink, source = regions(pair, 200_000)
    one.qp.post_send(read(one, sink, source, 200_000))
    pair.link.run(4000)
    (two.qp if what == "queue pair" else source).close()
    if what == "queue pair":
        source.close()
    (wc,) = one.take(1)
    assert wc.status == IBV_WC_PARTIAL and 0 < wc.byte_len < 200_000
    assert sink.read(wc.byte_len) == octets(200_000)[: wc.byte_len]
    assert not two.context.device.take_faults()  # type: ignore[attr-defined]


# Memory that fails


def test_source_that_cannot_be_read(pair: Pair) -> None:
    """The responder has an event, and goes on; the Read is partial."""
    one, two = pair.one, pair.two
    sink, source = regions(pair, 4096)
    hide(source)
    one.qp.post_send(read(one, sink, source, 4000))
    (wc,) = one.take(1)
    assert (wc.status, wc.byte_len) == (IBV_WC_PARTIAL, 0)
    event = two.context.get_async_event(timeout=10)
    assert (event.event_type, event.qp) == (IBV_EVENT_QP_ACCESS_ERR, two.qp)
    assert take_faults(two)
    sink, source = regions(pair, 4096)
    one.qp.post_send(read(one, sink, source, 4000))
    assert one.take(1)[0].status == IBV_WC_SUCCESS


def test_sink_that_cannot_be_written(pair: Pair) -> None:
    """The requester's QP has failed: the Read and what was behind it complete with errors."""
    one = pair.one
    sink, source = regions(pair, 4096)
    hide(sink)
    one.qp.post_send(read(one, sink, source, 4000, wr_id=1))
    event = one.context.get_async_event(timeout=10)
    assert (event.event_type, event.qp) == (IBV_EVENT_QP_FATAL, one.qp)
    assert one.qp.qp_state == IBV_QPS_ERR
    (wc,) = one.take(1)
    assert (wc.wr_id, wc.status, wc.opcode) == (1, IBV_WC_GENERAL_ERR, IBV_WC_RDMA_READ)
    assert (wc.byte_len, wc.validity) == (0, None)
    assert take_faults(one)
    one.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    one.qp.to_rts(QPAttr())
    sink, source = regions(pair, 4096)
    one.qp.post_send(read(one, sink, source, 4000))
    assert one.take(1)[0].status == IBV_WC_SUCCESS
