"""The verbs API: multicast groups, on ``tests.forms`` where the traffic counts."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest

from tests.forms import EVERYWHERE, forms
from tests.test_verbs import IPS, IPV6S, PORTS, Pair, Side, octets, refused, request
from uwarp.contract import PORT_ENTRY, Counter, Filter, Parameters, Register, outcome_sum
from uwarp.verbs import (
    AH,
    GID,
    IBV_QP_STATE,
    IBV_QPS_RESET,
    IBV_SEND_INLINE,
    IBV_SEND_SOLICITED,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_RECORD,
    IBV_WR_RDMA_WRITE_RECORD_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    QP,
    SGE,
    WC,
    AHAttr,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
)
from uwarp.verbs.ports import PortTable
from uwarp.wire import UdpFrame, mac_text

CAP = QPCap(16, 16, max_inline_data=48)
GROUPS = ("239.1.2.3", "ff02::1:2", "255.255.255.255")
GROUP_MACS = ("01:00:5e:01:02:03", "33:33:00:01:00:02", "ff:ff:ff:ff:ff:ff")
PORT = 5000


@pytest.fixture(params=forms())
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(cap=CAP, parameters=Parameters(), kind=request.param)
    yield made
    made.close()


def extra(side: Side, port: int, *, state: bool = True) -> QP:
    """One more QP of a side."""
    init = QPInitAttr(scq=side.cq, rcq=side.cq, cap=CAP)
    return QP(side.pd, init, QPAttr(timeout_us=30) if state else None, udp_port=port)


def receive(side: Side, qp: QP, wr_id: int, length: int = 2048) -> bytearray:
    """Post a receive and return its memory."""
    region = side.region(length)
    qp.post_recv(RecvWR(wr_id, sg=[SGE(region.buf, length, region.lkey)]))
    return region.view  # type: ignore[return-value]


def to_group(side: Side, group: str, data: bytes, port: int = PORT, **options: int) -> SendWR:
    source = side.region(len(data) or 1)
    source.write(data)
    opcode = options.pop("opcode", IBV_WR_SEND)
    sg = [SGE(source.buf, len(data), source.lkey)]
    wr = SendWR(opcode=opcode, sg=sg, **options)  # type: ignore[arg-type]
    wr.set_wr_ud(AH(side.pd, attr=AHAttr(gr=GlobalRoute(GID(group), hop_limit=7))), port)
    return wr


def received(wcs: list[WC]) -> dict[int, tuple[int, int, int]]:
    """wr_id: QP, octets, sender's port."""
    assert {wc.status for wc in wcs} <= {IBV_WC_SUCCESS}
    return {wc.wr_id: (wc.qp_num, wc.byte_len, wc.src_qp) for wc in wcs}


@pytest.mark.parametrize("group", GROUPS)
def test_p43_delivery_to_all_members_but_the_sender(pair: Pair, group: str) -> None:
    """P43: on both devices, each member once; a QP that is no member gets nothing."""
    one, two = pair.one, pair.two
    local = [extra(one, port) for port in (11, 12)]
    remote = [extra(two, port) for port in (21, 22)]
    outsider = extra(two, 23)
    members = [one.qp, *local, two.qp, *remote]
    for qp in members:
        qp.attach_mcast(group, port=PORT)
    views = {}
    for number, qp in enumerate([*members, outsider]):
        side = one if qp.context is one.context else two
        views[number] = receive(side, qp, 100 + number)
    pair.link.records()
    data = octets(1000)
    one.qp.post_send(to_group(one, group, data, wr_id=1))
    found = one.take(3)
    sent = next(wc for wc in found if wc.wr_id == 1)
    assert (sent.status, sent.byte_len) == (IBV_WC_SUCCESS, 1000)
    assert received([wc for wc in found if wc.wr_id != 1]) == {
        101: (11, 1000, PORTS[0]),
        102: (12, 1000, PORTS[0]),
    }
    assert received(two.take(3)) == {
        103: (PORTS[1], 1000, PORTS[0]),
        104: (21, 1000, PORTS[0]),
        105: (22, 1000, PORTS[0]),
    }
    assert one.settle(3000) == two.settle(1) == []
    for number in range(1, 6):
        assert bytes(views[number][:1000]) == data
    (record,) = pair.link.records()
    frame = UdpFrame.decode(record.frame)
    assert mac_text(frame.dest_mac) == GROUP_MACS[GROUPS.index(group)]
    assert (frame.dest_port, frame.source_port, frame.hop_limit) == (PORT, PORTS[0], 7)
    for side, copies in ((one, 2), (two, 2)):
        counters = side.context.counters()
        assert counters[Counter.RX_COPIES] == copies
        assert outcome_sum(counters) == counters[Counter.RX_FRAMES]
    assert one.context.counters()[Counter.DROP_OWN_GROUP] == 1
    # A member that is not the sender answers: the former sender is one of its members.
    remote[0].post_send(to_group(two, group, b"answer", wr_id=2))
    assert received(one.take(1)) == {100: (PORTS[0], 6, 21)}


@EVERYWHERE
def test_group_sends_of_each_kind(pair: Pair) -> None:
    """With immediate, inline, solicited, of no octets, of many datagrams."""
    one, two = pair.one, pair.two
    two.qp.attach_mcast(GID(GROUPS[1]), 0, port=PORT)
    target = two.region(8192, validity=True)
    two.receive(0, target)
    one.qp.post_send(to_group(one, GROUPS[1], octets(5000)))
    (wc,) = two.take(1)
    assert (wc.status, wc.byte_len, wc.src_ip) == (IBV_WC_SUCCESS, 5000, IPV6S[0])
    assert target.read(5000) == octets(5000)
    for number, options in enumerate(
        (
            {"opcode": IBV_WR_SEND_WITH_IMM, "imm_data": 7},
            {"send_flags": IBV_SEND_INLINE},
            {"send_flags": IBV_SEND_SOLICITED},
        )
    ):
        two.receive(number, target)
        one.qp.post_send(to_group(one, GROUPS[1], octets(40, number), **options))
        (wc,) = two.take(1)
        assert (wc.wr_id, wc.byte_len) == (number, 40)
        assert wc.imm_data == options.get("imm_data", 0)
        assert wc.solicited == (options.get("send_flags") == IBV_SEND_SOLICITED)
        assert target.read(40) == octets(40, number)
    two.receive(9, target)
    one.qp.post_send(to_group(one, GROUPS[1], b""))
    assert two.take(1)[0].byte_len == 0
    one.settle(1000)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    "opcode",
    [
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_RECORD,
        IBV_WR_RDMA_WRITE_RECORD_WITH_IMM,
        IBV_WR_RDMA_READ,
    ],
)
def test_what_names_memory_does_not_go_to_a_group(group: str, opcode: int) -> None:
    pair = Pair(cap=CAP)
    one = pair.one
    wr = to_group(one, group, octets(64), opcode=opcode)
    wr.set_wr_rdma(0x101, 0)
    with refused(errno.EINVAL) as caught:
        one.qp.post_send(wr)
    assert "group" in str(caught.value)
    pair.close()


def test_p43_leaving_a_group(pair: Pair) -> None:
    """P43: who has left gets nothing; when the last one has, the datagrams are none of ours."""
    one, two = pair.one, pair.two
    other = extra(two, 21)
    group = GROUPS[0]
    for qp in (two.qp, other):
        qp.attach_mcast(group, port=PORT)
    for number in range(4):
        receive(two, two.qp, number)
        receive(two, other, 10 + number)
    one.qp.post_send(to_group(one, group, b"to both"))
    assert sorted(wc.wr_id for wc in two.take(2)) == [0, 10]
    two.qp.detach_mcast(group, port=PORT)
    one.qp.post_send(to_group(one, group, b"to one"))
    assert [wc.wr_id for wc in two.settle(3000)] == [11]
    other.detach_mcast(group, port=PORT)
    one.qp.post_send(to_group(one, group, b"to none"))
    assert two.settle(3000) == []
    counters = two.context.counters()
    assert counters[Counter.DROP_MAC_FILTER] == 1
    assert counters[Counter.RX_COPIES] == 1
    two.qp.attach_mcast(group, port=PORT)
    one.qp.post_send(to_group(one, group, b"again"))
    assert [wc.wr_id for wc in two.take(1)] == [1]
    one.settle(1000)


def loops(side: Side) -> bool:
    return bool(side.context._read(Register.FILTER) & Filter.LOOP_GROUPS)


@pytest.mark.parametrize("how", ["detach", "close"])
def test_p43_no_leak_when_the_last_one_leaves(how: str) -> None:
    """P43: rows of the tables and the loop of own datagrams are given back, many times over."""
    pair = Pair(parameters=Parameters(n_qp=4, n_region=16, n_group=2, map_bits=4096))
    one = pair.one
    ports = len(one.context._ports)
    for turn in range(10):
        qps = [extra(one, 11 + index, state=turn % 2 == 0) for index in range(2)]
        for number, group in enumerate(("224.0.0.9", "ff02::9")):
            for qp in qps:
                qp.attach_mcast(group, port=PORT + number)
        assert loops(one)
        assert len(one.context._groups) == 2 and len(one.context._ports) == ports + 4
        if how == "close":
            for qp in qps:
                assert loops(one)
                qp.close()
        else:
            for qp in qps:
                for number, group in enumerate(("224.0.0.9", "ff02::9")):
                    assert loops(one)
                    qp.detach_mcast(group, port=PORT + number)
            for qp in qps:
                qp.close()
        assert not loops(one)
        assert len(one.context._groups) == 0 and len(one.context._ports) == ports
    before = one.context.counters()[Counter.RX_FRAMES]
    one.qp.post_send(to_group(one, "224.0.0.9", b"to nobody here"))
    one.settle(2000)
    assert one.context.counters()[Counter.RX_FRAMES] == before
    pair.close()


def test_membership_outlives_a_reset(pair: Pair) -> None:
    one, two = pair.one, pair.two
    two.qp.attach_mcast(GROUPS[0], port=PORT)
    two.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    one.qp.post_send(to_group(one, GROUPS[0], b"unheard"))
    assert two.settle(3000) == []
    two.qp.to_rts(QPAttr())
    receive(two, two.qp, 3)
    one.qp.post_send(to_group(one, GROUPS[0], b"heard"))
    assert two.take(1)[0].byte_len == 5
    one.settle(1000)


def test_attaching_twice_is_one_membership(pair: Pair) -> None:
    one, two = pair.one, pair.two
    for _ in range(2):
        two.qp.attach_mcast(GROUPS[0], port=PORT)
    for number in range(2):
        receive(two, two.qp, number)
    one.qp.post_send(to_group(one, GROUPS[0], b"once"))
    assert [wc.wr_id for wc in two.settle(3000)] == [0]
    two.qp.detach_mcast(GROUPS[0], port=PORT)
    with refused(errno.EINVAL):
        two.qp.detach_mcast(GROUPS[0], port=PORT)
    one.settle(1000)


def test_refusals() -> None:
    pair = Pair(parameters=Parameters(n_qp=32, n_region=16, n_group=2, map_bits=4096))
    one = pair.one
    qp = one.qp
    for gid, port in (
        (IPS[0], PORT),
        ("fd00::9", PORT),
        ("::", PORT),
        (GROUPS[0], 0),
        (GROUPS[0], 65536),
    ):
        for call in (qp.attach_mcast, qp.detach_mcast):
            with refused(errno.EINVAL):
                call(gid, port=port)
    with refused(errno.EADDRINUSE) as caught:
        qp.attach_mcast(GROUPS[0], port=PORTS[0])
    assert "has a QP" in str(caught.value)
    assert not loops(one) and len(one.context._groups) == 0
    qp.attach_mcast(GROUPS[0], port=PORT)
    with refused(errno.EINVAL):
        qp.detach_mcast(GROUPS[0], port=PORT + 1)
    with refused(errno.EINVAL):
        qp.detach_mcast(GROUPS[1], port=PORT)
    with refused(errno.EADDRINUSE) as caught:
        qp.attach_mcast(GROUPS[1], port=PORT)
    assert "has a group" in str(caught.value)
    with refused(errno.EADDRINUSE):
        extra(one, PORT)
    qp.attach_mcast(GROUPS[0], port=PORT + 1)
    with refused(errno.ENOSPC):
        qp.attach_mcast(GROUPS[0], port=PORT + 2)
    others = [extra(one, 100 + index) for index in range(16)]
    for other in others[:15]:
        other.attach_mcast(GROUPS[0], port=PORT)
    with refused(errno.ENOMEM):
        others[15].attach_mcast(GROUPS[0], port=PORT)
    others[0].close()
    others[15].attach_mcast(GROUPS[0], port=PORT)
    qp.close()
    with refused(errno.EBADF):
        qp.attach_mcast(GROUPS[0], port=PORT)
    one.context._qps[others[1]._row].close()
    pair.close()


def test_sixteen_members(pair: Pair) -> None:
    """The last of the row's members is served as the first is; the same sender's order is kept."""
    one, two = pair.one, pair.two
    members = [extra(two, 100 + index) for index in range(16)]
    for qp in members:
        qp.attach_mcast(GROUPS[1], port=65535)
        for number in range(3):
            receive(two, qp, 1000 * number + qp.qp_num)
    for number in range(3):
        one.qp.post_send(to_group(one, GROUPS[1], octets(100 + number), port=65535))
    found = two.take(48)
    assert {(wc.wr_id, wc.byte_len) for wc in found} == {
        (1000 * number + qp.qp_num, 100 + number) for qp in members for number in range(3)
    }
    one.settle(1000)


def test_group_ports_move_in_the_port_table_as_groups() -> None:
    """Ports of QPs and of groups, in a table so full that they move; each keeps what it names."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    rows: dict[int, bytes] = {}
    table = PortTable(16, rows.__setitem__)
    owners = {
        port: (rng.randrange(16), rng.random() < 0.5) for port in rng.sample(range(1, 65536), 32)
    }
    for port, (number, group) in owners.items():
        table.insert(port, number, group=group)
    found = {}
    for octets_ in rows.values():
        row = PORT_ENTRY.unpack(octets_)
        if row.valid:
            found[row.port] = (row.qpn, bool(row.group))
    assert found == owners, f"seed {seed}"


def test_what_a_unicast_send_to_a_group_s_port_is(pair: Pair) -> None:
    """The port is the group's only together with its address."""
    one, two = pair.one, pair.two
    two.qp.attach_mcast(GROUPS[0], port=PORT)
    receive(two, two.qp, 0)
    one.qp.post_send(request(one, IBV_WR_SEND, None, port=PORT))
    one.qp.post_send(to_group(one, "239.1.2.4", b"another group"))
    assert two.settle(3000) == []
    counters = two.context.counters()
    assert counters[Counter.RX_MANAGEMENT] == 1 and counters[Counter.DROP_MAC_FILTER] == 1
    one.settle(1000)
