"""The verbs API: gathered and inline sends, IPv6, VLAN tags, loopback, rate limits.

Where the traffic counts, on ``tests.forms``.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Iterator

import pytest

from tests.forms import EVERYWHERE, forms
from tests.seeds import seeds
from tests.test_verbs import IPS, IPV6S, LONG, MACS, PORTS, Pair, Side, octets, refused, request
from uwarp.contract import TICK_CYCLES, Counter, Parameters
from uwarp.device import Fate, open_link
from uwarp.verbs import (
    AH,
    CQ,
    GID,
    IBV_QP_PATH_MTU,
    IBV_QP_RATE_LIMIT,
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_RECORD,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    MR,
    PD,
    QP,
    SGE,
    AHAttr,
    Context,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    VerbsRDMAError,
)
from uwarp.wire import Segment, UdpFrame, mac_number, wire_octets

WIDE = QPCap(16, 16, max_send_sge=4, max_inline_data=48)
INLINE = IBV_SEND_INLINE | IBV_SEND_SIGNALED


@pytest.fixture(params=forms())
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(cap=WIDE, parameters=Parameters(), kind=request.param)
    yield made
    made.close()


def handle(side: Side, address: str, **options: int) -> AH:
    """An address handle; ``vlan_id`` and ``sl`` of ``options`` are the AHAttr's."""
    tag = {name: options.pop(name) for name in ("vlan_id", "sl") if name in options}
    return AH(side.pd, attr=AHAttr(gr=GlobalRoute(GID(address), **options), **tag))


def frames(pair: Pair, source: int = 0) -> list[UdpFrame]:
    """What a side has sent since the last call."""
    records = pair.link.records()
    return [
        UdpFrame.decode(record.frame)
        for record in records
        if record.source == source and record.fate is not Fate.DUPLICATE
    ]


# SGEs and inline data


def gathered(region: MR, length: int, rng: random.Random) -> tuple[list[SGE], bytes]:
    """One to four SGEs of ``length`` octets together, anywhere in a region, and those octets."""
    count = rng.randint(1, 4)
    cuts = sorted(rng.randint(0, length) for _ in range(count - 1))
    elements, expected = [], b""
    for begin, end in zip([0, *cuts], [*cuts, length], strict=True):
        offset = rng.randint(0, region.length - (end - begin))
        elements.append(SGE(region.buf + offset, end - begin, region.lkey))
        expected += region.read(end - begin, offset)
    return elements, expected


@EVERYWHERE
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_messages_are_gathered(pair: Pair, seed: int) -> None:
    """Any split at any alignment arrives as one message, also of many datagrams."""
    rng = random.Random(seed)
    one, two = pair.one, pair.two
    source, target = one.region(9000), two.region(9000, validity=True)
    source.write(octets(9000, seed))
    for number in range(60):
        length = rng.choice((rng.randint(0, 130), rng.randint(1, 1400), rng.randint(1400, 6000)))
        elements, expected = gathered(source, length, rng)
        record = number % 2 == 0
        base = rng.randint(0, 9000 - length) if record else 64 * rng.randint(0, 40)
        if not record:
            two.receive(number, target, base)
        opcode = IBV_WR_RDMA_WRITE_RECORD if record else IBV_WR_SEND
        wr = SendWR(number, opcode, sg=elements)
        wr.set_wr_ud(one.ah, PORTS[1])
        wr.set_wr_rdma(target.rkey, target.buf + base)
        one.qp.post_send(wr)
        (sent,) = one.take(1)
        where = f"seed {seed}, message {number}: {[item.length for item in elements]} to {base}"
        assert (sent.wr_id, sent.status, sent.byte_len) == (number, IBV_WC_SUCCESS, length), where
        (wc,) = two.take(1)
        assert (wc.status, wc.byte_len) == (IBV_WC_SUCCESS, length), where
        assert target.read(length, base) == expected, where


def test_inline_octets_are_taken_when_posted(pair: Pair) -> None:
    """Of each length, from one to three pieces of memory that no region has; rewritten at once."""
    one, two = pair.one, pair.two
    scratch = one.region(64)
    target = two.region(64)
    for length in range(49):
        two.receive(length, target)
        scratch.write(octets(64, length))
        cut = length // 3
        parts = [(0, cut), (cut, length - cut), (length, 0)]
        sg = [SGE(scratch.buf + start, size, 0xBAD) for start, size in parts]
        opcode = IBV_WR_SEND_WITH_IMM if length % 2 else IBV_WR_SEND
        wr = SendWR(length, opcode, sg=sg, send_flags=INLINE, imm_data=length)
        wr.set_wr_ud(one.ah, PORTS[1])
        one.qp.post_send(wr)
        scratch.write(bytes(64))
        (sent,) = one.take(1)
        assert (sent.wr_id, sent.status, sent.byte_len) == (length, IBV_WC_SUCCESS, length)
        (wc,) = two.take(1)
        assert (wc.wr_id, wc.byte_len, wc.imm_data) == (length, length, length % 2 * length)
        assert target.read(length) == octets(64, length)[:length]


@EVERYWHERE
def test_inline_writes(pair: Pair) -> None:
    """A ring full of them at one doorbell, each with other octets, to IPv4 and IPv6 in turn."""
    one, two = pair.one, pair.two
    scratch, target = one.region(48), two.region(16 * 48)
    handles = [handle(one, IPV6S[1]), one.ah]
    for number in range(16):
        scratch.write(octets(48, number))
        wr = SendWR(number, IBV_WR_RDMA_WRITE, sg=[SGE(scratch.buf, 48, 0)], send_flags=INLINE)
        wr.set_wr_ud(handles[number % 2], PORTS[1])
        wr.set_wr_rdma(target.rkey, target.buf + 48 * number)
        one.qp.post_send(wr)
    assert [wc.wr_id for wc in one.take(16)] == list(range(16))
    two.settle(5000)
    assert target.read() == b"".join(octets(48, number) for number in range(16))


@pytest.mark.parametrize("wide", [False, True])
def test_p36_more_than_the_queue_pair_takes(wide: bool) -> None:
    """P36, P39: SGEs and inline octets are those of the QP's own cap, whatever its ring holds."""
    pair = Pair(cap=QPCap(4, 4, max_send_sge=2 if wide else 1, max_inline_data=16 if wide else 0))
    one = pair.one
    source = one.region(256)
    for count, flags, code in (
        (3 if wide else 2, 0, errno.EINVAL),
        (1, IBV_SEND_INLINE, errno.EINVAL),
    ):
        sg = [SGE(source.buf, 17, source.lkey)] * count
        wr = SendWR(sg=sg, send_flags=flags)
        wr.set_wr_ud(one.ah, PORTS[1])
        with refused(code):
            one.qp.post_send(wr)
    if wide:
        wr = SendWR(sg=[SGE(source.buf, (1 << 32) - 1, source.lkey)] * 2)
        wr.set_wr_ud(one.ah, PORTS[1])
        with refused(errno.EMSGSIZE):
            one.qp.post_send(wr)
    assert one.settle(2000) == []
    pair.close()


def test_p35_list_that_fails_in_the_middle(pair: Pair) -> None:
    """P35: inline and gathered requests before the refused one are sent, the rest is not."""
    one, two = pair.one, pair.two
    source, target = one.region(256), two.region(256)
    source.write(octets(256))
    for wr_id in range(4):
        two.receive(wr_id, target, 64 * wr_id, 64)
    requests = [
        SendWR(0, sg=[SGE(source.buf, 40, 0)], send_flags=INLINE),
        SendWR(1, sg=[SGE(source.buf + 1, 20, source.lkey), SGE(source.buf, 1, source.lkey)]),
        SendWR(2, sg=[SGE(source.buf, 49, 0)], send_flags=INLINE),
        SendWR(3, sg=[]),
    ]
    for before, after in itertools.pairwise(requests):
        before.next_wr = after
    for item in requests:
        item.set_wr_ud(one.ah, PORTS[1])
    with refused(errno.EINVAL) as caught:
        one.qp.post_send(requests[0])
    assert isinstance(caught.value, VerbsRDMAError)
    assert caught.value.bad_wr is requests[2]
    assert [wc.wr_id for wc in one.take(2)] == [0, 1]
    assert [wc.wr_id for wc in two.settle(3000)] == [0, 1]
    assert target.read(40) == octets(256)[:40]
    assert target.read(21, 64) == octets(256)[1:21] + octets(256)[:1]


def test_p38_one_bad_lkey_of_several(pair: Pair) -> None:
    """P38: the request completes with the error, whichever SGE it is, and the next ones are sent.
    An SGE of no octets is not looked at."""
    one, two = pair.one, pair.two
    source, target = one.region(256), two.region(256)
    for bad in range(4):
        two.receive(9, target)
        for wr_id, length in ((7, 8), (8, 0)):
            sg = [SGE(source.buf, 8, source.lkey) for _ in range(4)]
            sg[bad] = SGE(source.buf, length, source.lkey ^ 1)
            wr = SendWR(wr_id, sg=sg)
            wr.set_wr_ud(one.ah, PORTS[1])
            one.qp.post_send(wr)
        assert [(wc.wr_id, wc.status, wc.byte_len) for wc in one.take(2)] == [
            (7, IBV_WC_LOC_PROT_ERR, 0),
            (8, IBV_WC_SUCCESS, 24),
        ], f"SGE {bad}"
        assert two.take(1)[0].byte_len == 24, f"SGE {bad}"


def test_p42_buffer_rewritten_after_posting(pair: Pair) -> None:
    """P42: whatever octets a datagram took, its CRC and its UDP checksum are those of these."""
    one, two = pair.one, pair.two
    source, target = one.region(60_002), two.region(60_000, validity=True)
    frames(pair)
    sg = [SGE(source.buf + 15_001 * part, 14_999, source.lkey) for part in range(4)]
    wr = SendWR(1, IBV_WR_RDMA_WRITE_RECORD, sg=sg)
    wr.set_wr_ud(one.ah, PORTS[1])
    wr.set_wr_rdma(target.rkey, target.buf)
    one.qp.post_send(wr)
    found: list[object] = []
    pattern = 0
    while not found:
        pattern += 1
        source.view[:] = bytes([pattern & 0xFF]) * source.length
        pair.link.run(300)
        found = list(one.cq.poll(1)[1])
    assert pattern > 4, "the message left before it could be rewritten"
    (wc,) = two.take(1)
    assert wc.status == IBV_WC_SUCCESS
    sent = frames(pair)
    assert len(sent) > 40
    assert len({frame.payload[40] for frame in sent}) > 4, "one pattern only: nothing was tested"
    for frame in sent:
        Segment.from_datagram(frame.payload)
    counters = two.context.counters()
    assert not counters[Counter.DROP_CRC] and not counters[Counter.DROP_UDP_CHECKSUM]


def test_buffers_over_the_whole_ring(pair: Pair) -> None:
    """The wide ring wraps many times; gathered, inline, IPv4 and IPv6 requests take turns."""
    one, two = pair.one, pair.two
    source, target = one.region(4096), two.region(4096)
    source.write(octets(4096))
    six = handle(one, IPV6S[1], hop_limit=3)
    rng = random.Random(7)
    for number in range(100):
        two.receive(number, target)
        elements, expected = gathered(source, rng.randint(0, 48), rng)
        flags = INLINE if number % 3 == 0 else IBV_SEND_SIGNALED
        wr = SendWR(number, sg=elements, send_flags=flags)
        wr.set_wr_ud(six if number % 2 else one.ah, PORTS[1])
        one.qp.post_send(wr)
        assert one.take(1)[0].wr_id == number
        (wc,) = two.take(1)
        assert (wc.wr_id, wc.src_ip) == (number, (IPV6S if number % 2 else IPS)[0])
        assert target.read(wc.byte_len) == expected, number


# Addresses


@EVERYWHERE
@pytest.mark.parametrize("family", [4, 6])
def test_what_the_address_handle_says_is_sent(pair: Pair, family: int) -> None:
    one, two = pair.one, pair.two
    address = (IPS if family == 4 else IPV6S)[1]
    source, target = one.region(3000), two.region(3000, validity=True)
    source.write(octets(3000))
    frames(pair)
    tags = [{}, {"vlan_id": 0, "sl": 5}, {"vlan_id": 4094}, {"vlan_id": 17, "sl": 7}]
    for number, tag in enumerate(tags):
        ah = handle(one, address, hop_limit=200 + number, traffic_class=0xB8 + number, **tag)
        wr = request(one, IBV_WR_RDMA_WRITE_RECORD, source, 3000, target=target)
        wr.set_wr_ud(ah, PORTS[1])
        one.qp.post_send(wr)
        one.take(1)
        (wc,) = two.take(1)
        assert (wc.status, wc.src_ip) == (IBV_WC_SUCCESS, (IPS if family == 4 else IPV6S)[0])
        assert target.read() == octets(3000)
        target.write(bytes(3000))
        sent = frames(pair)
        assert len(sent) == 3
        for frame in sent:
            assert (frame.ip_version, frame.dest_mac) == (family, mac_number(MACS[1]))
            assert (frame.hop_limit, frame.traffic_class) == (200 + number, 0xB8 + number)
            tci = tag.get("sl", 0) << 13 | tag.get("vlan_id", 0)
            assert frame.vlan_tags == ((0x8100 << 16 | tci,) if tag else ())
            assert len(frame.payload) + (28 if family == 4 else 48) <= 1500


def test_answer_over_ipv6(pair: Pair) -> None:
    one, two = pair.one, pair.two
    two.receive(0, two.region(8))
    one.receive(1, one.region(8))
    wr = request(one, IBV_WR_SEND, None)
    wr.set_wr_ud(handle(one, IPV6S[1]), PORTS[1])
    one.qp.post_send(wr)
    (wc,) = two.take(1)
    assert (wc.src_ip, wc.src_qp) == (IPV6S[0], PORTS[0])
    answer = SendWR(2, sg=[])
    answer.set_wr_ud(AH(two.pd, wc=wc), wc.src_qp)
    two.qp.post_send(answer)
    found = {item.wr_id: item for item in one.take(2)}
    assert found[1].src_ip == IPV6S[1]


def test_longest_datagrams_of_both_families(pair: Pair) -> None:
    """A Send of one datagram has 20 octets less over IPv6; a longer one is cut."""
    one, two = pair.one, pair.two
    source, target = one.region(1450), two.region(1450, validity=True)
    source.write(octets(1450))
    lengths = (1, 1428, 1429, 1430, 1450)
    for length, (family, room) in itertools.product(lengths, ((4, 1450), (6, 1430))):
        where = f"{length} octets over IPv{family}"
        target.write(bytes(1450))
        two.receive(family, target)
        frames(pair)
        wr = request(one, IBV_WR_SEND, source, length)
        wr.set_wr_ud(handle(one, (IPS if family == 4 else IPV6S)[1]), PORTS[1])
        one.qp.post_send(wr)
        one.take(1)
        pair.link.run(1000)
        sent = frames(pair)
        assert len(sent) == (1 if length <= room else 2), where
        (wc,) = two.take(1)
        assert (wc.status, wc.byte_len) == (IBV_WC_SUCCESS, length), where
        assert target.read(length) == octets(1450)[:length], where


def test_granule_that_only_ipv4_has_room_for() -> None:
    """The room for payload is that of the destination's family."""
    pair = Pair(cap=WIDE)
    one = pair.one
    one.qp.modify(QPAttr(path_mtu=576), IBV_QP_PATH_MTU)
    source = one.region(4000)
    room = {4: 576 - 28 - 30 - 4, 6: 576 - 48 - 30 - 4}
    assert room[6] < 512 <= room[4]
    wr = request(one, IBV_WR_RDMA_WRITE_RECORD, source, 4000, target=source, granule=512)
    one.qp.post_send(wr)
    wr.set_wr_ud(handle(one, IPV6S[1]), PORTS[1])
    with refused(errno.EMSGSIZE):
        one.qp.post_send(wr)
    assert one.take(1)[0].status == IBV_WC_SUCCESS
    pair.close()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"vlan_id": 4095}, errno.EINVAL),
        ({"vlan_id": -1}, errno.EINVAL),
        ({"vlan_id": 1, "sl": 8}, errno.EINVAL),
        ({"flow_label": 1}, errno.EINVAL),
    ],
)
def test_address_handle_refuses(options: dict[str, int], code: int) -> None:
    pair = Pair()
    with refused(code):
        handle(pair.one, IPV6S[1], **options)
    pair.close()


def test_queue_pairs_are_wide_if_they_need_it() -> None:
    """A QP can send to IPv6 if the port has an IPv6 address, unless it was made without."""
    with open_link("model") as link:
        with Context(device=link.devices[0], mac=MACS[0], ipv4=IPS[0], ipv6=IPV6S[0]) as context:
            context.add_neighbour(IPV6S[1], MACS[1])
            pd, cq = PD(context), CQ(context, 4)
            ah = AH(pd, attr=AHAttr(gr=GlobalRoute(GID(IPV6S[1]))))
            init = QPInitAttr(scq=cq, rcq=cq)
            assert QP(pd, init).wide
            narrow = QP(pd, init, QPAttr(), ipv6=False)
            assert not narrow.wide
            wr = SendWR(sg=[])
            wr.set_wr_ud(ah, 7)
            with refused(errno.EAFNOSUPPORT) as caught:
                narrow.post_send(wr)
            assert "ipv6=True" in str(caught.value)
        with Context(device=link.devices[1], mac=MACS[1], ipv4=IPS[1]) as context:
            context.add_neighbour(IPV6S[0], MACS[0])
            pd, cq = PD(context), CQ(context, 4)
            init = QPInitAttr(scq=cq, rcq=cq)
            assert not QP(pd, init).wide and QP(pd, init, ipv6=True).wide
            for cap in (QPCap(max_send_sge=2), QPCap(max_inline_data=1)):
                assert QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=cap)).wide
            with refused(errno.EADDRNOTAVAIL) as caught:
                AH(pd, attr=AHAttr(gr=GlobalRoute(GID(IPV6S[0]))))
            assert "ipv6=" in str(caught.value)


# Loopback


@pytest.mark.parametrize("own", [IPS[0], IPV6S[0]])
def test_own_address_needs_no_wire(pair: Pair, own: str) -> None:
    """To another QP of the device, and to itself; traffic with the peer goes on meanwhile."""
    one, two = pair.one, pair.two
    init = QPInitAttr(scq=one.cq, rcq=one.cq, cap=QPCap(8, 8))
    with QP(one.pd, init, QPAttr(timeout_us=30), udp_port=77) as other:
        source, target = one.region(5000), one.region(5000, validity=True)
        source.write(octets(5000))
        ah = handle(one, own)
        frames(pair)
        wr = request(one, IBV_WR_RDMA_WRITE_RECORD, source, 5000, target=target, wr_id=1)
        wr.set_wr_ud(ah, 77)
        one.qp.post_send(wr)
        found = one.take(2)
        (arrived,) = (wc for wc in found if wc.validity is not None)
        assert (arrived.status, arrived.qp_num, arrived.src_ip) == (IBV_WC_SUCCESS, 77, own)
        assert arrived.src_qp == PORTS[0] and target.read() == octets(5000)
        assert frames(pair) == []
        far = two.region(64)
        two.receive(5, far)
        one.receive(3, target, 0, 64)
        wr = request(one, IBV_WR_SEND, source, 64, wr_id=2)
        wr.set_wr_ud(ah, PORTS[0])
        wr.next_wr = request(one, IBV_WR_SEND, source, 32, wr_id=4)
        one.qp.post_send(wr)
        assert sorted(wc.wr_id for wc in one.take(3)) == [2, 3, 4]
        assert two.take(1)[0].byte_len == 32
        assert len(frames(pair)) == 1
        assert other.qp_num == 77


# Rate limits


def test_rate_limit_attributes() -> None:
    pair = Pair()
    qp = pair.one.qp

    def state() -> tuple[object, ...]:
        attr, _ = qp.query()
        return attr.rate_limit, attr.max_burst_sz

    assert state() == (0, None)
    qp.modify(QPAttr(rate_limit=1_000_000), IBV_QP_RATE_LIMIT)
    rate, burst = state()
    assert rate == 1_000_000 and isinstance(burst, int) and burst >= 3 * 1500 - 1500
    qp.modify(QPAttr(rate_limit=1_000_000, max_burst_sz=1000), IBV_QP_RATE_LIMIT)
    assert state() == (1_000_000, 1024)
    qp.modify(QPAttr(rate_limit=5), 0)
    assert state() == (1_000_000, 1024), "not named by the mask"
    qp.modify(qp.query()[0], IBV_QP_RATE_LIMIT)
    assert state() == (1_000_000, 1024)
    for wrong in (
        {"rate_limit": -1},
        {"rate_limit": 4},
        {"rate_limit": 1 << 33},
        {"rate_limit": 1_000_000, "max_burst_sz": 819},
        {"rate_limit": 5, "max_burst_sz": 63},
        {"rate_limit": 5, "max_burst_sz": (4 << 20) + 1},
        {"max_burst_sz": 1000},
    ):
        with refused(errno.EINVAL):
            qp.modify(QPAttr(**wrong), IBV_QP_RATE_LIMIT)
        assert state() == (1_000_000, 1024)
    qp.modify(QPAttr(rate_limit=0), IBV_QP_RATE_LIMIT)
    assert state() == (0, None)
    pair.close()


class Stream:
    """A QP of side one that always has Writes posted; counts its octets of the wire."""

    def __init__(self, side: Side, target: MR, attr: QPAttr, port: int) -> None:
        self._side, self._target = side, target
        self._cq = CQ(side.context, 64)
        init = QPInitAttr(scq=self._cq, rcq=self._cq, cap=QPCap(max_send_wr=32))
        self.qp = QP(side.pd, init, attr, udp_port=port)
        self._source = side.region(target.length)
        for _ in range(32):
            self._post()

    def _post(self) -> None:
        wr = request(
            self._side, IBV_WR_RDMA_WRITE, self._source, self._source.length, target=self._target
        )
        self.qp.post_send(wr)

    def again(self) -> None:
        for wc in self._cq.poll(32)[1]:
            assert wc.status == IBV_WC_SUCCESS
            self._post()


@pytest.mark.parametrize("kind", forms())
def test_rate_limit_is_met_and_the_rest_of_the_line_is_the_other_s(kind: str) -> None:
    """1 Gb/s within 1 %, beside a QP without a limit: together they fill the line."""
    pair = Pair(parameters=Parameters(), kind=kind)
    target = pair.two.region(2 * 1408)
    streams = [
        Stream(pair.one, target, QPAttr(rate_limit=1_000_000), 31),
        Stream(pair.one, target, QPAttr(), 32),
    ]
    for ticks in (30, 300):  # the first burst, and what counts
        pair.link.records()
        begin = pair.link.time
        while pair.link.time < begin + ticks * TICK_CYCLES:
            for stream in streams:
                stream.again()
    ends: dict[int, list[int]] = {31: [], 32: []}
    octets_of = {31: 0, 32: 0}
    for record in pair.link.records():
        if record.source == 0:
            port = UdpFrame.decode(record.frame).source_port
            if ends[port]:
                octets_of[port] += wire_octets(len(record.frame))
            ends[port].append(record.time)
    clock = pair.link.parameters.clock_hz  # type: ignore[attr-defined]
    rates = {
        port: 8 * octets_of[port] * clock / (times[-1] - times[0]) for port, times in ends.items()
    }
    assert rates[31] == pytest.approx(1e9, rel=0.01)
    assert rates[31] + rates[32] == pytest.approx(10e9, rel=0.01)
    for stream in streams:
        stream.qp.close()
    pair.close()


def test_burst_after_a_pause() -> None:
    """As many octets as the bucket holds go out at the wire's pace, the rest at the rate's."""
    pair = Pair(parameters=Parameters(), cap=QPCap(32, 4))
    one = pair.one
    one.qp.modify(QPAttr(rate_limit=100_000, max_burst_sz=12_800), IBV_QP_RATE_LIMIT)
    source, target = one.region(1000), pair.two.region(1000)
    pair.link.run(2 * TICK_CYCLES)
    pair.link.records()
    for number in range(16):
        wr = request(one, IBV_WR_RDMA_WRITE, source, 1000, target=target, wr_id=number)
        one.qp.post_send(wr)
    end = pair.link.time + LONG
    times: list[int] = []
    while len(times) < 16 and pair.link.time < end:
        pair.link.run(1000)
        times += [record.time for record in pair.link.records() if record.source == 0]
    assert len(times) == 16
    gaps = [after - before for before, after in itertools.pairwise(times)]
    frame = wire_octets(14 + 28 + 14 + 1000 + 4)
    at_once = -(-12_800 // frame)
    assert all(gap < 1000 for gap in gaps[: at_once - 1]), gaps
    late = gaps[at_once:]
    spacing = frame * 8 * 1.5625  # cycles at 100 Mb/s
    assert sum(late) == pytest.approx(spacing * len(late), rel=0.1), gaps
    one.take(16)
    pair.close()


def test_receives_of_a_wide_queue_pair_are_not_wide(pair: Pair) -> None:
    """Only the send ring has extensions."""
    one, two = pair.one, pair.two
    target = two.region(64 * 16)
    for number in range(16):
        two.qp.post_recv(RecvWR(number, sg=[SGE(target.buf + 64 * number, 64, target.lkey)]))
    source = one.region(64)
    for number in range(16):
        source.write(octets(64, number))
        one.qp.post_send(request(one, IBV_WR_SEND, source, 64))
        one.take(1)
    assert [wc.wr_id for wc in two.take(16)] == list(range(16))
    assert target.read() == b"".join(octets(64, number) for number in range(16))
