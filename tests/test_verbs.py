"""The verbs API over the model form: lifetimes, refusals, traffic, validity."""

from __future__ import annotations

import errno
import ipaddress
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from uwarp.contract import CQE, Counter, Parameters, outcome_sum
from uwarp.device import Impairments, Link, open_link
from uwarp.verbs import (
    AH,
    CQ,
    GID,
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_QP_PATH_MTU,
    IBV_QP_PEER,
    IBV_QP_STATE,
    IBV_QP_TIMEOUT,
    IBV_QPS_ERR,
    IBV_QPS_INIT,
    IBV_QPS_RESET,
    IBV_QPS_RTR,
    IBV_QPS_RTS,
    IBV_QPT_RC,
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_PARTIAL,
    IBV_WC_RDMA_WRITE,
    IBV_WC_RDMA_WRITE_RECORD,
    IBV_WC_RECV,
    IBV_WC_RECV_RDMA_RECORD,
    IBV_WC_SEND,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_RECORD,
    IBV_WR_RDMA_WRITE_RECORD_WITH_IMM,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    MR,
    PD,
    QP,
    SGE,
    WC,
    AHAttr,
    CompChannel,
    Context,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    Validity,
    VerbsError,
    VerbsRDMAError,
    VerbsUserError,
    ibv_access_flags,
    ibv_wc_status,
)
from uwarp.verbs.allocator import MapAllocator
from uwarp.verbs.ports import PortTable
from uwarp.wire import Opcode, Segment, UdpFrame, mac_number, segments

MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
IPS = ("10.0.0.1", "10.0.0.2")
IPV6S = ("fd00::1", "fd00::2")
PORTS = (1001, 1002)
REMOTE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
SMALL = Parameters(n_qp=4, n_region=16, n_tracker=2, n_closed=16, map_bits=4096)
LONG = 1_000_000  # cycles: longer than anything here takes


@dataclass
class Side:
    """A context with a QP in RTS, and what it needs."""

    context: Context
    pd: PD
    cq: CQ
    qp: QP
    ah: AH  # of the other side

    def take(self, count: int) -> list[WC]:
        """Exactly ``count`` completions; fails if they do not come."""
        found: list[WC] = []
        end = self.context.time + LONG
        while len(found) < count:
            assert self.context.time < end, f"{len(found)} of {count} completions: {found}"
            found += self.cq.poll(count - len(found))[1]
        return found

    def settle(self, cycles: int = 30_000) -> list[WC]:
        """All completions of some time."""
        found: list[WC] = []
        end = self.context.time + cycles
        while self.context.time < end:
            found += self.cq.poll(64)[1]
        return found

    def region(self, length: int, access: int = REMOTE, **options: object) -> MR:
        return MR(self.pd, length, access, **options)  # type: ignore[arg-type]

    def receive(self, wr_id: int, region: MR, offset: int = 0, length: int | None = None) -> None:
        length = region.length - offset if length is None else length
        self.qp.post_recv(RecvWR(wr_id, sg=[SGE(region.buf + offset, length, region.lkey)]))


def request(
    side: Side,
    opcode: int,
    source: MR | None,
    length: int = 0,
    *,
    target: MR | None = None,
    offset: int = 0,
    port: int = PORTS[1],
    **options: int,
) -> SendWR:
    """A send of the first ``length`` octets of ``source``, to ``offset`` of ``target``."""
    sg = [SGE(source.buf, length, source.lkey)] if source else []
    wr = SendWR(opcode=opcode, sg=sg, **options)  # type: ignore[arg-type]
    wr.set_wr_ud(side.ah, port)
    if target is not None:
        wr.set_wr_rdma(target.rkey, target.buf + offset)
    return wr


def open_side(link: Link, index: int, cap: QPCap, timeout_us: float, mtu: int) -> Side:
    context = Context(
        device=link.devices[index], mac=MACS[index], ipv4=IPS[index], mtu=mtu, ipv6=IPV6S[index]
    )
    for address in (IPS[1 - index], IPV6S[1 - index]):
        context.add_neighbour(address, MACS[1 - index])
    pd, cq = PD(context), CQ(context, 64)
    attr = QPAttr(timeout_us=timeout_us)
    qp = QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=cap), attr, udp_port=PORTS[index])
    ah = AH(pd, attr=AHAttr(gr=GlobalRoute(GID(IPS[1 - index]))))
    return Side(context, pd, cq, qp, ah)


class Pair:
    """Two sides on a link. At the end the counters must add up, and DMA have stayed in bounds."""

    def __init__(
        self,
        impairments: Impairments | None = None,
        parameters: Parameters = SMALL,
        cap: QPCap | None = None,
        timeout_us: float = 30,
        mtu: int = 1500,
        kind: str = "model",
    ) -> None:
        self.link = open_link(kind, parameters=parameters, impairments=impairments)
        cap = cap or QPCap(8, 8)
        self.one, self.two = (open_side(self.link, i, cap, timeout_us, mtu) for i in (0, 1))

    def close(self) -> None:
        self.one.context._wait_until(self.one.context.time + 5_000)
        for side in (self.one, self.two):
            counters = side.context.counters()
            assert counters[Counter.RX_FRAMES] == outcome_sum(counters)
            side.context.close()
        self.link.check()  # type: ignore[attr-defined]
        self.link.close()

    def inject(
        self,
        region: MR,
        base: int,
        mlen: int,
        mo: int,
        payload: bytes,
        msn: int,
        source: str = IPS[0],
        source_port: int = 7777,
    ) -> None:
        """One Write-Record segment arrives at side two, made by hand."""
        self.inject_segment(
            Segment(
                opcode=Opcode.WRITE_RECORD,
                payload=payload,
                last=mo + len(payload) == mlen,
                stag=region.rkey,
                to=region.buf + base + mo,
                msn=msn,
                mo=mo,
                mlen=mlen,
            ),
            source,
            source_port,
        )

    def inject_segment(
        self, segment: Segment, source: str = IPS[0], source_port: int = 7777
    ) -> None:
        frame = UdpFrame(
            dest_mac=mac_number(MACS[1]),
            source_mac=mac_number(MACS[0]),
            source_ip=int(ipaddress.ip_address(source)),
            dest_ip=int(ipaddress.ip_address(IPV6S[1] if ":" in source else IPS[1])),
            source_port=source_port,
            dest_port=PORTS[1],
            payload=segment.to_datagram(),
            ip_version=6 if ":" in source else 4,
        )
        self.link.devices[1].inject(frame.encode())  # type: ignore[attr-defined]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def refused(code: int) -> pytest.RaisesExc[VerbsRDMAError]:
    return pytest.raises(VerbsRDMAError, check=lambda error: error.error_code == code)


def octets(length: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(length)


# Context and lifetimes


def test_context_attributes(pair: Pair) -> None:
    context = pair.one.context
    device = context.query_device()
    assert (device.max_qp, device.max_mr, device.max_open_messages) == (4, 16, 2)
    assert device.map_bits == 4096
    port = context.query_port(1)
    assert (port.mac, port.ipv4, port.active_mtu) == (MACS[0], IPS[0], 1500)
    assert (port.ipv6, port.gid_tbl_len) == ("fd00::1", 2)
    assert context.query_gid(1, 0) == GID("::ffff:10.0.0.1")
    assert context.query_gid(1, 0).gid == "0000:0000:0000:0000:0000:ffff:0a00:0001"
    assert context.query_gid(1, 1) == GID("fd00::1")
    assert context.query_gid(1, 1).ipv4 is None
    with refused(errno.EINVAL):
        context.query_gid(1, 2)
    with refused(errno.EINVAL):
        context.query_port(2)


def test_context_without_ipv6() -> None:
    with open_link("model", parameters=SMALL) as link:
        with Context(device=link.devices[0], mac=MACS[0], ipv4=IPS[0], ipv6="fe80::7") as context:
            assert context.query_port().ipv6 == "fe80::7"
        with Context(device=link.devices[0], mac=MACS[0], ipv4=IPS[0]) as context:
            port = context.query_port()
            assert (port.ipv6, port.gid_tbl_len) == (None, 1)
            with refused(errno.EINVAL):
                context.query_gid(1, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"mac": "01:00:00:00:00:01"},
        {"mac": 0},
        {"mac": "nonsense"},
        {"ipv4": "0.0.0.0"},
        {"ipv4": "224.0.0.1"},
        {"ipv4": "10.0.0"},
        {"ipv4": "fd00::1"},
        {"ipv6": "::"},
        {"ipv6": "ff02::1"},
        {"ipv6": "10.0.0.1"},
        {"ipv6": "::ffff:10.0.0.1"},
        {"ipv6": "fd00"},
        {"ipv6": 1 << 128},
        {"mtu": 575},
        {"mtu": 9001},
    ],
)
def test_context_refuses(options: dict[str, object]) -> None:
    with open_link("model", parameters=SMALL) as link, refused(errno.EINVAL):
        Context(device=link.devices[0], **{"mac": MACS[0], "ipv4": IPS[0], **options})


def test_context_wants_the_magic() -> None:
    class Other:
        name = "other"

        def read32(self, address: int) -> int:
            return 0xFFFF_FFFF

    with refused(errno.ENODEV):
        Context(device=Other(), mac=MACS[0], ipv4=IPS[0])  # type: ignore[arg-type]


def test_context_waits_for_the_reset() -> None:
    """STATUS.BUSY stands for a while after a reset, and nothing else is touched meanwhile."""
    with open_link("model", parameters=SMALL) as link:
        device = link.devices[0]
        busy = 3

        class Slow:
            name, interrupt = "slow", False

            def read32(self, address: int) -> int:
                nonlocal busy
                value = device.read32(address)
                if address == 0x044 and busy:
                    busy -= 1
                    return 1
                return value

            def write32(self, address: int, value: int) -> None:
                assert not busy or address == 0x040
                device.write32(address, value)

            def map(self, address: int, length: int, *, writable: bool = True) -> int:
                return device.map(address, length, writable=writable)

            def unmap(self, dma_address: int) -> None:
                device.unmap(dma_address)

            def progress(self) -> None:
                device.progress()

        with Context(device=Slow(), mac=MACS[0], ipv4=IPS[0]):  # type: ignore[arg-type]
            assert busy == 0


def test_closing_closes_children_and_twice_is_harmless(pair: Pair) -> None:
    one = pair.one
    region = one.region(100, validity=True)
    one.pd.close()
    assert region.closed and one.qp.closed and one.ah.closed and not one.cq.closed
    one.pd.close()
    region.close()
    with refused(errno.EBADF):
        MR(one.pd, 64)
    with refused(errno.EBADF):
        one.qp.post_send(request(one, IBV_WR_SEND, None))
    pair.two.cq.close()
    assert pair.two.qp.closed


def test_everything_can_be_made_again(pair: Pair) -> None:
    """Nothing leaks: more of each are made and closed than the device holds."""
    side = pair.one
    mapped = pair.link.devices[0]._memory.space._starts  # type: ignore[attr-defined]
    before = len(mapped)
    for _ in range(3 * SMALL.n_region):
        pd, cq = PD(side.context), CQ(side.context, 4)
        MR(pd, 4096 * 64, REMOTE, validity=True)
        QP(pd, QPInitAttr(scq=cq, rcq=cq), QPAttr(timeout_us=7))
        pd.close()
        cq.close()
    assert len(mapped) == before


def test_with_statement_and_repr(pair: Pair) -> None:
    with PD(pair.one.context) as pd, MR(pd, 10, validity=True) as region:
        for item in (pair.one.context, pd, region, pair.one.cq, pair.one.qp, pair.one.ah):
            assert repr(item).startswith(f"<{type(item).__name__} ")
        assert "granule 64" in repr(region)
        assert "RTS" in repr(pair.one.qp) and "1001" in repr(pair.one.qp)
    assert "closed" in repr(region) and "closed" in repr(pd)


def test_errors_are_typed() -> None:
    error = VerbsRDMAError("too much", errno.ENOSPC)
    assert isinstance(error, OSError) and isinstance(error, VerbsError)
    assert error.errno == error.error_code == errno.ENOSPC
    assert "too much" in str(error) and "ENOSPC" in str(error)
    assert [flag.value for flag in ibv_access_flags] == [1, 2, 4]


# Port table


@pytest.mark.parametrize("n_qp", [4, 64, 1024])
def test_as_many_ports_as_queue_pairs_fit(n_qp: int) -> None:
    """Four banks hold n_qp ports, whichever they are; every port is always found in its own row."""
    seed = random.randrange(1 << 32)
    for trial in range(20):
        rng = random.Random(seed + trial)
        rows: dict[int, bytes] = {}
        table = PortTable(n_qp, rows.__setitem__)
        ports = rng.sample(range(1, 65536), n_qp)
        for qpn, port in enumerate(ports):
            table.insert(port, qpn)
        for port in ports[: n_qp // 2]:
            table.remove(port)
        again = [port for port in rng.sample(range(1, 65536), n_qp) if port not in ports]
        ports = ports[n_qp // 2 :] + again[: n_qp // 2]
        for qpn, port in enumerate(ports[n_qp - n_qp // 2 :]):
            table.insert(port, qpn)
        live = {int.from_bytes(row[2:4], "little"): key for key, row in rows.items() if row[0] & 1}
        assert sorted(live) == sorted(ports), f"seed {seed + trial}"
        assert all(live[port] in table._candidates(port) for port in ports)


def test_a_full_port_table_says_so() -> None:
    table = PortTable(4, lambda row, octets: None)
    with refused(errno.ENOSPC):
        for port in range(1, 100):
            table.insert(port, 0)
    assert len(table) >= 4


# Queue pairs


def test_ports_of_queue_pairs(pair: Pair) -> None:
    side = pair.one
    init = QPInitAttr(scq=side.cq, rcq=side.cq)
    assert side.qp.qp_num == PORTS[0]
    with refused(errno.EADDRINUSE):
        QP(side.pd, init, udp_port=PORTS[0])
    for port in (0, 65536, -1):
        with refused(errno.EINVAL):
            QP(side.pd, init, udp_port=port)
    with QP(side.pd, init) as first, QP(side.pd, init) as second:
        assert (first.qp_num, second.qp_num) == (0xC000, 0xC001)
        with QP(side.pd, init, udp_port=65535) as last:
            assert last.qp_num == 65535
            with refused(errno.ENOSPC):
                QP(side.pd, init)


def test_port_65535_receives(pair: Pair) -> None:
    two = pair.two
    init = QPInitAttr(scq=two.cq, rcq=two.cq)
    with QP(two.pd, init, QPAttr(timeout_us=10), udp_port=65535) as qp, two.region(64) as region:
        qp.post_recv(RecvWR(5, sg=[SGE(region.buf, 64, region.lkey)]))
        pair.one.qp.post_send(request(pair.one, IBV_WR_SEND, None, port=65535))
        (wc,) = two.take(1)
        assert (wc.wr_id, wc.qp_num, wc.byte_len) == (5, 65535, 0)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"qp_type": IBV_QPT_RC}, errno.EOPNOTSUPP),
        ({"srq": object()}, errno.EOPNOTSUPP),
        ({"scq": None}, errno.EINVAL),
        ({"cap": QPCap(max_send_sge=5)}, errno.EINVAL),
        ({"cap": QPCap(max_recv_sge=2)}, errno.EINVAL),
        ({"cap": QPCap(max_inline_data=49)}, errno.EINVAL),
        ({"cap": QPCap(max_send_wr=0)}, errno.EINVAL),
        ({"cap": QPCap(max_recv_wr=1 << 15 | 1)}, errno.EINVAL),
    ],
)
def test_queue_pair_refuses(pair: Pair, options: dict[str, object], code: int) -> None:
    side = pair.one
    with refused(code):
        QP(side.pd, QPInitAttr(**{"scq": side.cq, "rcq": side.cq, **options}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "attr",
    [
        QPAttr(path_mtu=575),
        QPAttr(path_mtu=1501),
        QPAttr(path_mtu=3),
        QPAttr(timeout_us=0),
        QPAttr(timeout_us=300_000),
        QPAttr(port_num=2),
    ],
)
def test_queue_pair_attributes_refused(pair: Pair, attr: QPAttr) -> None:
    side = pair.one
    with refused(errno.EINVAL):
        QP(side.pd, QPInitAttr(scq=side.cq, rcq=side.cq), attr)
    with QP(side.pd, QPInitAttr(scq=side.cq, rcq=side.cq)) as qp:
        assert qp.qp_num == 0xC000, "a refused QP kept its port"


def test_states(pair: Pair) -> None:
    side = pair.one
    with QP(side.pd, QPInitAttr(scq=side.cq, rcq=side.cq)) as qp:
        assert qp.qp_state == IBV_QPS_RESET
        with refused(errno.EINVAL):
            qp.post_send(request(side, IBV_WR_SEND, None))
        with refused(errno.EINVAL):
            qp.post_recv(RecvWR())
        with refused(errno.EINVAL):
            qp.modify(QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
        qp.to_init(QPAttr())
        qp.post_recv(RecvWR(1))
        with refused(errno.EINVAL):
            qp.post_send(request(side, IBV_WR_SEND, None))
        qp.modify(QPAttr(qp_state=IBV_QPS_RTR), IBV_QP_STATE)
        with refused(errno.EINVAL):
            qp.post_send(request(side, IBV_WR_SEND, None))
        qp.to_rts(QPAttr())
        qp.modify(QPAttr(path_mtu=600, timeout_us=20), IBV_QP_PATH_MTU | IBV_QP_TIMEOUT)
        attr, init = qp.query(0)
        assert attr.qp_state == IBV_QPS_RTS and attr.path_mtu == 600
        assert 20 <= attr.timeout_us <= 20 + 6.6  # type: ignore[operator]
        assert init.cap.max_recv_wr == 10
        with refused(errno.EINVAL):
            qp.to_init(QPAttr())
        with refused(errno.EINVAL):
            qp.modify(QPAttr(), IBV_QP_STATE | 1 << 7)
        qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
        (wc,) = side.take(1)
        assert (wc.wr_id, wc.status, wc.opcode) == (1, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV)
        qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
        qp.modify(QPAttr(qp_state=IBV_QPS_INIT), IBV_QP_STATE)


def test_list_that_fails_in_the_middle(pair: Pair) -> None:
    """P35: those before the one that fails are sent, the error says which failed."""
    one, two = pair.one, pair.two
    region = two.region(64)
    for wr_id in range(3):
        two.receive(wr_id, region)
    source = one.region(64)
    wrs = [request(one, IBV_WR_SEND, source, 8, wr_id=index) for index in range(4)]
    wrs[2].sg_list *= 2
    for wr, following in itertools.pairwise(wrs):
        wr.next_wr = following
    copy = SendWR(sg=[])
    with refused(errno.EINVAL) as caught:
        one.qp.post_send(wrs[0], copy)
    assert caught.value.bad_wr is wrs[2] and copy.wr_id == 2
    assert [wc.wr_id for wc in one.take(2)] == [0, 1]
    assert len(two.take(2)) == 2
    assert not one.settle() and not two.settle()
    receives = [RecvWR(0), RecvWR(1, sg=[SGE(0, 1, 0)] * 2), RecvWR(2)]
    receives[0].next_wr, receives[1].next_wr = receives[1], receives[2]
    with refused(errno.EINVAL) as caught:
        two.qp.post_recv(receives[0])
    assert caught.value.bad_wr is receives[1]


def test_full_queues(pair: Pair) -> None:
    """P36: as many as asked for, then ENOMEM; after a completion there is room again."""
    one, two = pair.one, pair.two
    for wr_id in range(8):
        two.qp.post_recv(RecvWR(wr_id))
    with refused(errno.ENOMEM):
        two.qp.post_recv(RecvWR(8))
    source = one.region(60_000)
    for wr_id in range(8):
        wr = request(one, IBV_WR_RDMA_WRITE, source, 60_000, target=source, wr_id=wr_id)
        one.qp.post_send(wr)
    with refused(errno.ENOMEM):
        one.qp.post_send(request(one, IBV_WR_SEND, None, wr_id=8))
    one.take(1)
    one.qp.post_send(request(one, IBV_WR_SEND, None, wr_id=8))
    assert [wc.wr_id for wc in one.take(8)] == [*range(1, 9)]
    (wc,) = two.take(1)
    assert wc.wr_id == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"opcode": IBV_WR_RDMA_WRITE_WITH_IMM}, errno.EOPNOTSUPP),
        ({"opcode": 99}, errno.EOPNOTSUPP),
        ({"send_flags": IBV_SEND_INLINE}, errno.EINVAL),
        ({"send_flags": IBV_SEND_SOLICITED}, errno.EINVAL),
        ({"granule": 96}, errno.EINVAL),
        ({"granule": 32}, errno.EINVAL),
        ({"granule": 2048}, errno.EMSGSIZE),
        ({"rqpn": 0}, errno.EINVAL),
        ({"rqpn": 65536}, errno.EINVAL),
        ({"ah": None}, errno.EINVAL),
        ({"remote_addr": 1 << 64}, errno.EINVAL),
        ({"opcode": IBV_WR_SEND_WITH_IMM, "imm_data": 1 << 32, "sg_list": []}, errno.EINVAL),
        ({"opcode": IBV_WR_SEND, "granule": 2048}, errno.EMSGSIZE),
        ({"opcode": IBV_WR_SEND, "granule": 65}, errno.EINVAL),
        ({"sg_list": [SGE(1 << 64, 1, 1)]}, errno.EINVAL),
        ({"sg_list": [SGE(1, 1 << 32, 1)]}, errno.EINVAL),
        ({"sg_list": [SGE(1, 1, 1 << 32)]}, errno.EINVAL),
    ],
)
def test_post_send_refuses(pair: Pair, change: dict[str, object], code: int) -> None:
    one = pair.one
    source = one.region(2000)
    wr = request(one, IBV_WR_RDMA_WRITE, source, 2000, target=source)
    vars(wr).update(change)
    with refused(code):
        one.qp.post_send(wr)
    assert one.settle(2000) == []


def test_longest_send(pair: Pair) -> None:
    one, two = pair.one, pair.two
    source, target = one.region(2000), two.region(2000)
    source.write(octets(2000))
    longest = one.qp.max_send_length
    assert longest == 1500 - 28 - 18 - 4
    for opcode, length in ((IBV_WR_SEND, longest), (IBV_WR_SEND_WITH_IMM, longest - 4)):
        two.receive(0, target)
        one.qp.post_send(request(one, opcode, source, length))
        (wc,) = two.take(1)
        assert wc.byte_len == wc.message_length == length
        assert target.read(length) == octets(2000)[:length]
        assert wc.validity is None


@pytest.mark.parametrize("opcode", [IBV_WR_SEND, IBV_WR_SEND_WITH_IMM])
def test_send_of_many_datagrams(pair: Pair, opcode: int) -> None:
    """Into a region with a map. A buffer without one, or off the granule, stays posted."""
    one, two = pair.one, pair.two
    source, plain = one.region(20_000), two.region(20_000)
    target = two.region(30_000, validity=True)
    source.write(octets(20_000))
    two.receive(7, plain)
    two.receive(8, target, 32)
    for wr_id, offset in ((9, 1024), (10, 21_056)):
        two.receive(wr_id, target, offset)
    for number in range(2):
        one.qp.post_send(request(one, opcode, source, 5000))
        one.take(1)
        assert two.settle() == []
        drops = two.context.counters()[Counter.DROP_SEND_SEGMENTED]
        assert drops == 4 * (number + 1), "1408 + 1408 + 1408 + 776"
        one.qp.post_send(request(one, opcode, source, 100))
        assert [wc.wr_id for wc in two.take(1)] == [7 + number]
        one.take(1)
    one.qp.post_send(request(one, opcode, source, 20_000, imm_data=5))
    one.qp.post_send(request(one, opcode, source, 5000))
    long, short = two.take(2)
    assert (long.wr_id, long.opcode, long.status) == (9, IBV_WC_RECV, IBV_WC_SUCCESS)
    assert long.byte_len == long.message_length == 20_000
    assert (long.stag, long.remote_addr) == (target.lkey, target.buf + 1024)
    assert long.imm_data == (5 if opcode == IBV_WR_SEND_WITH_IMM else 0)
    assert long.validity is not None and long.validity.complete
    assert target.read(20_000, 1024) == octets(20_000)
    assert (short.wr_id, short.byte_len) == (10, 5000)
    assert target.validity.ranges() == [(1024, 20_000), (21_056, 5000)]
    assert [wc.byte_len for wc in one.take(2)] == [20_000, 5000]


def test_granule_of_a_send(pair: Pair) -> None:
    """The sender cuts at the receiver's granule; then a lost datagram costs that datagram only."""
    one, two = pair.one, pair.two
    source, target = one.region(5000), two.region(8192, validity=True, granule=1024)
    source.write(octets(5000))
    two.receive(0, target, 1024)
    one.qp.post_send(request(one, IBV_WR_SEND, source, 5000, granule=1024))
    (wc,) = two.take(1)
    assert (wc.status, wc.byte_len) == (IBV_WC_SUCCESS, 5000)
    sizes = [len(record.frame) - 42 - 18 - 4 for record in pair.link.records()]
    assert sizes == [1024, 1024, 1024, 1024, 904]


@pytest.mark.parametrize("seed", range(4))
def test_sends_with_losses_never_over_report(seed: int) -> None:
    """Every receive completes exactly once, in whatever order; what is valid is what was sent."""
    impairments = Impairments(loss=0.1, duplicate=0.1, reorder=0.1, seed=seed)
    pair = Pair(impairments, cap=QPCap(32, 32), timeout_us=60)
    one, two = pair.one, pair.two
    rng = random.Random(seed)
    source = one.region(16 * 4096)
    target = two.region(32 * 4096, validity=True)
    source.write(octets(source.length, seed))
    for wr_id in range(32):
        two.receive(wr_id, target, 4096 * wr_id, 4096)
    found: list[WC] = []
    for _ in range(24):
        length = rng.randrange(1, 4097)
        wr = request(one, IBV_WR_SEND, source, length)
        one.qp.post_send(wr)
        one.take(1)
        found += two.settle(6000)
    found += two.settle(40_000)
    assert any(wc.status == IBV_WC_PARTIAL for wc in found), f"seed {seed}"
    assert any(wc.validity is not None and wc.validity.complete for wc in found), f"seed {seed}"
    assert len({wc.wr_id for wc in found}) == len(found) <= 24, f"seed {seed}"
    for wc in found:
        received = target.read(wc.message_length, 4096 * wc.wr_id)
        runs = [(0, wc.byte_len)] if wc.validity is None else wc.validity.ranges()
        assert sum(size for _, size in runs) == wc.byte_len
        for start, size in runs:
            sent = source.read(size, start)
            assert received[start : start + size] == sent, f"seed {seed}, receive {wc.wr_id}"
    two.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    rest = two.settle(2000)
    assert sorted(wc.wr_id for wc in found + rest) == list(range(32)), f"P37, seed {seed}"
    pair.close()


def test_work_requests_check_themselves() -> None:
    with pytest.raises(VerbsUserError):
        SendWR()
    with pytest.raises(VerbsUserError):
        SendWR(num_sge=2, sg=[SGE(0, 1, 0)])
    with pytest.raises(VerbsUserError):
        RecvWR(num_sge=1)
    with pytest.raises(VerbsUserError):
        GID("nonsense")


def test_bad_lkey_completes_with_an_error(pair: Pair) -> None:
    """P38: and the QP goes on with what follows."""
    one, two = pair.one, pair.two
    source, target = one.region(64), two.region(64)
    two.receive(1, target)
    bad = SendWR(7, sg=[SGE(source.buf, 8, source.lkey ^ 1)])
    bad.set_wr_ud(one.ah, PORTS[1])
    beyond = SendWR(8, sg=[SGE(source.buf + 60, 8, source.lkey)])
    beyond.set_wr_ud(one.ah, PORTS[1])
    bad.next_wr, beyond.next_wr = beyond, request(one, IBV_WR_SEND, source, 8, wr_id=9)
    one.qp.post_send(bad)
    assert [(wc.wr_id, wc.status) for wc in one.take(3)] == [
        (7, IBV_WC_LOC_PROT_ERR),
        (8, IBV_WC_LOC_PROT_ERR),
        (9, IBV_WC_SUCCESS),
    ]
    assert two.take(1)[0].wr_id == 1
    two.qp.post_recv(RecvWR(2, sg=[SGE(target.buf, 64, target.lkey ^ 1)]))
    one.qp.post_send(request(one, IBV_WR_SEND, source, 8))
    (wc,) = two.take(1)
    assert (wc.wr_id, wc.status, wc.byte_len) == (2, IBV_WC_LOC_PROT_ERR, 0)


def test_unsignalled_sends(pair: Pair) -> None:
    one = pair.one
    init = QPInitAttr(scq=one.cq, rcq=one.cq, cap=QPCap(4, 1), sq_sig_all=0)
    target = pair.two.region(64)
    source = one.region(64)
    with QP(one.pd, init, QPAttr(timeout_us=10)) as qp:
        for round_number in range(10):
            for index in range(4):
                flags = IBV_SEND_SIGNALED if index == 3 else 0
                wr_id = 10 * round_number + index
                wr = request(
                    one, IBV_WR_RDMA_WRITE, source, 64, target=target, send_flags=flags, wr_id=wr_id
                )
                qp.post_send(wr)
            (wc,) = one.take(1)
            assert wc.wr_id == 10 * round_number + 3
        assert not one.settle()


@pytest.mark.parametrize("how", ["close", "error", "reset"])
def test_flush(how: str) -> None:
    """P37: each posted request completes exactly once."""
    pair = Pair(cap=QPCap(16, 16))
    one = pair.one
    source = one.region(60_000)
    for wr_id in range(10):
        wr = request(one, IBV_WR_RDMA_WRITE, source, 60_000, target=source, wr_id=wr_id)
        one.qp.post_send(wr)
    for wr_id in range(100, 107):
        one.qp.post_recv(RecvWR(wr_id))
    early = one.take(2)
    if how == "close":
        one.qp.close()
    else:
        state = IBV_QPS_ERR if how == "error" else IBV_QPS_RESET
        one.qp.modify(QPAttr(qp_state=state), IBV_QP_STATE)
    found = early + one.settle()
    assert sorted(wc.wr_id for wc in found) == [*range(10), *range(100, 107)]
    flushed = [wc for wc in found if wc.status != IBV_WC_SUCCESS]
    assert flushed and {wc.status for wc in flushed} == {IBV_WC_WR_FLUSH_ERR}
    assert all(wc.qp_num == PORTS[0] for wc in flushed)
    if how == "error":
        one.qp.post_recv(RecvWR(200))
        one.qp.post_send(request(one, IBV_WR_SEND, None, wr_id=201))
        wcs = one.take(2)
        assert [(wc.wr_id, wc.status) for wc in wcs] == [
            (200, IBV_WC_WR_FLUSH_ERR),
            (201, IBV_WC_WR_FLUSH_ERR),
        ]
    if how == "reset":
        one.qp.to_rts(QPAttr())
        one.qp.post_send(request(one, IBV_WR_RDMA_WRITE, source, 64, target=source, wr_id=300))
        (wc,) = one.take(1)
        assert (wc.wr_id, wc.status) == (300, IBV_WC_SUCCESS)
    pair.close()


# Addresses


def test_addresses(pair: Pair) -> None:
    pd = pair.one.pd

    def handle(text: str) -> AH:
        return AH(pd, attr=AHAttr(gr=GlobalRoute(GID(text))))

    with refused(errno.EHOSTUNREACH) as caught:
        handle("10.0.0.3")
    assert "add_neighbour" in str(caught.value)
    pair.one.context.add_neighbour("192.168.7.7", "02:00:00:00:00:fe")  # by way of a gateway
    far = handle("192.168.7.7")
    assert (far.ip, far.mac) == (0xC0A8_0707, 0x02_00_00_00_00_FE)
    assert handle("255.255.255.255").mac == 0xFFFF_FFFF_FFFF
    for nobody in ("0.0.0.0", "::"):
        with refused(errno.EINVAL):
            handle(nobody)
    for call in (lambda: handle("fe80::1"), lambda: AH(pd, wc=WC(src_ip="fd00::9"))):
        with refused(errno.EHOSTUNREACH):
            call()
    six = handle("fd00::2")
    assert (six.ip_version, six.ip, six.mac) == (6, 0xFD00 << 112 | 2, mac_number(MACS[1]))
    pair.one.context.add_neighbour(0xFD00 << 112 | 9, MACS[1])
    pair.one.context.add_neighbour(0x0A00_0009, MACS[1])
    pair.one.context.add_neighbour("::ffff:10.0.0.10", MACS[1])
    assert handle("fd00::9").mac == handle("10.0.0.9").mac == handle("10.0.0.10").mac
    for own in (IPS[0], IPV6S[0]):
        assert handle(own).mac == mac_number(MACS[0]), "the port needs no neighbour for itself"
    for wrong in ("ff02::1", "224.0.0.1", "255.255.255.255", "10.0.0", "::", -1, 1 << 128):
        with refused(errno.EINVAL):
            pair.one.context.add_neighbour(wrong, MACS[1])
    with refused(errno.EINVAL):
        AH(pd, attr=AHAttr())
    with refused(errno.EINVAL):
        AH(pd, wc=WC())
    with pytest.raises(VerbsUserError):
        AH(pd)


# Memory regions


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"length": 0}, errno.EINVAL),
        ({"length": -1}, errno.EINVAL),
        ({"length": 64, "buffer": bytearray(64)}, errno.EINVAL),
        ({"buffer": bytearray()}, errno.EINVAL),
        ({"buffer": b"octets", "access": IBV_ACCESS_LOCAL_WRITE}, errno.EINVAL),
        ({"buffer": np.zeros((8, 8))[:, ::2]}, errno.EINVAL),
        ({"buffer": 17}, errno.EINVAL),
        ({"length": 64, "access": IBV_ACCESS_REMOTE_WRITE}, errno.EINVAL),
        ({"length": 64, "access": 1 << 20}, errno.EINVAL),
        ({"length": 64, "granule": 63}, errno.EINVAL),
        ({"length": 64, "granule": 1 << 17}, errno.EINVAL),
        ({"length": 4096 * 64 + 1, "validity": True}, errno.ENOSPC),
    ],
)
def test_region_refuses(pair: Pair, options: dict[str, object], code: int) -> None:
    with refused(code):
        MR(pair.one.pd, **options)  # type: ignore[arg-type]


def test_regions_of_foreign_memory(pair: Pair) -> None:
    pd = pair.one.pd
    array = np.arange(1000, dtype=np.uint32)
    with MR(pd, buffer=array, access=REMOTE) as region:
        assert (region.buf, region.length) == (array.ctypes.data, 4000)
        region.write(b"\xff" * 4, offset=4)
        assert array[1] == 0xFFFF_FFFF
    grown = bytearray(100)
    region = MR(pd, buffer=memoryview(grown)[10:], access=REMOTE)
    assert region.length == 90
    with pytest.raises(BufferError):
        grown.append(1)
    region.close()
    grown.append(1)
    with MR(pd, buffer=b"read only") as fixed:
        assert fixed.read(4, 5) == b"only"
    with MR(pd, 12, address=array.ctypes.data) as at:
        assert at.buf == array.ctypes.data and at.read(4, 8) == b"\x02\0\0\0"
    odd = bytearray(200)
    with refused(errno.EINVAL) as caught:
        MR(pd, buffer=memoryview(odd)[1:], access=REMOTE, validity=True, granule=128)
    assert "granule" in str(caught.value)


def test_region_read_and_write_bounds(pair: Pair) -> None:
    region = pair.one.region(100)
    assert region.read() == bytes(100)
    for call in (
        lambda: region.read(101),
        lambda: region.read(1, 100),
        lambda: region.write(b"ab", offset=99),
        lambda: region.read(1, -1),
    ):
        with refused(errno.EINVAL):
            call()
    with refused(errno.EINVAL):
        _ = region.validity


def test_all_regions_and_their_map(pair: Pair) -> None:
    regions = [pair.one.region(64) for _ in range(SMALL.n_region)]
    assert len({region.rkey for region in regions}) == SMALL.n_region
    assert all(regions), "an STag of 0"
    with refused(errno.ENOSPC):
        pair.one.region(64)


def test_large_granules_are_aligned(pair: Pair) -> None:
    with pair.one.region(1 << 20, validity=True, granule=1 << 16) as region:
        assert region.buf % (1 << 16) == 0
        assert len(region.validity.granules) == 16


def test_keys_change_and_old_ones_are_refused(pair: Pair) -> None:
    one, two = pair.one, pair.two
    source = one.region(64)
    keys = set[int]()
    for _ in range(2 * SMALL.n_region):
        with two.region(64) as region:
            keys.add(region.rkey)
    assert len(keys) == 2 * SMALL.n_region and 0 not in keys
    wr = request(one, IBV_WR_RDMA_WRITE, source, 64, target=region)
    wr.set_wr_rdma(region.rkey, source.buf)
    one.qp.post_send(wr)
    one.take(1)
    two.settle(5000)
    assert two.context.counters()[Counter.DROP_STAG_INVALID] == 1


def test_map_allocator_reuses_and_merges() -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    allocator = MapAllocator(64 * 64)
    held: list[tuple[int, int]] = []
    for _ in range(2000):
        if held and rng.random() < 0.5:
            allocator.give(*held.pop(rng.randrange(len(held))))
            continue
        bits = rng.randint(1, 700)
        try:
            first = allocator.take(bits)
        except VerbsRDMAError as error:
            assert error.errno == errno.ENOSPC
            continue
        assert first % 64 == 0 and first + bits <= 64 * 64
        for other, size in held:
            assert first + bits <= other or other + size <= first, f"seed {seed}"
        held.append((first, bits))
    for item in held:
        allocator.give(*item)
    assert allocator.take(64 * 64) == 0, f"seed {seed}: the free bits did not merge"


# Traffic


def test_send_and_receive_around_the_rings(pair: Pair) -> None:
    """Both rings and the CQ wrap several times; each message keeps its number, data and sender."""
    one, two = pair.one, pair.two
    source, target = one.region(8 * 64), two.region(8 * 64)
    for number in range(300):
        slot = number % 8 * 64
        two.receive(number, target, slot, 64)
        source.write(octets(64, number), offset=slot)
        length = number % 65
        wr = SendWR(number, IBV_WR_SEND, sg=[SGE(source.buf + slot, length, source.lkey)])
        if number % 3 == 0:
            wr.opcode, wr.imm_data = IBV_WR_SEND_WITH_IMM, number << 8
        wr.set_wr_ud(one.ah, PORTS[1])
        one.qp.post_send(wr)
        (sent,) = one.take(1)
        assert (sent.wr_id, sent.opcode, sent.byte_len) == (number, IBV_WC_SEND, length)
        (wc,) = two.take(1)
        assert (wc.wr_id, wc.status, wc.opcode) == (number, IBV_WC_SUCCESS, IBV_WC_RECV)
        assert (wc.src_ip, wc.src_qp, wc.qp_num) == (IPS[0], PORTS[0], PORTS[1])
        assert (wc.byte_len, wc.msn) == (length, number + 1)
        assert bool(wc.wc_flags & IBV_WC_WITH_IMM) == (number % 3 == 0)
        assert wc.imm_data == (number << 8 if number % 3 == 0 else 0)
        assert target.read(length, slot) == octets(64, number)[:length]
        assert wc.validity is None and wc.time > 0


def test_answer_to_the_sender_of_a_completion(pair: Pair) -> None:
    one, two = pair.one, pair.two
    two.receive(0, two.region(8))
    one.receive(1, one.region(8))
    one.qp.post_send(request(one, IBV_WR_SEND, None))
    (wc,) = two.take(1)
    answer = SendWR(2, sg=[])
    answer.set_wr_ud(AH(two.pd, wc=wc), wc.src_qp)
    two.qp.post_send(answer)
    assert {item.wr_id for item in one.take(2)} == {0, 1}


def test_senders_of_both_families(pair: Pair) -> None:
    """Each is named as it is, and can be answered if its next hop is known."""
    two = pair.two
    two.context.add_neighbour("fd00::9", MACS[0])
    target = two.region(64)
    for msn, source in enumerate(("10.0.0.9", "fd00::9", "::a00:9"), start=1):
        pair.inject(target, 0, 8, 0, octets(8, msn), msn, source)
        (wc,) = two.take(1)
        assert (wc.src_ip, wc.src_qp) == (source, 7777)
        assert target.read(8) == octets(8, msn)
        if source == "fd00::9":
            assert AH(two.pd, wc=wc).mac == mac_number(MACS[0])
        else:
            with refused(errno.EHOSTUNREACH):
                AH(two.pd, wc=wc)


@pytest.mark.parametrize(
    ("fields", "heard"),
    [
        ({"peer_ip": "10.0.0.1"}, "ab"),
        ({"peer_ip": "10.0.0.1", "peer_port": 7777}, "a"),
        ({"peer_ip": "10.0.0.1", "peer_prefix": 32, "peer_port": 7778}, "b"),
        ({"peer_ip": "10.0.0.128", "peer_prefix": 24}, "ab"),
        ({"peer_ip": "10.0.0.0", "peer_prefix": 8}, "abc"),
        ({"peer_ip": "0.0.0.0", "peer_prefix": 0}, "abc"),
        ({"peer_ip": "::", "peer_prefix": 0}, "abcde"),
        ({"peer_ip": "fd00::9"}, "d"),
        ({"peer_ip": "fd00::", "peer_prefix": 16}, "de"),
        ({"peer_ip": "fd00::", "peer_prefix": 64}, "d"),
        ({"peer_ip": "::ffff:10.0.0.1"}, "ab"),
        ({"peer_port": 7778}, "b"),
        ({"peer_port": 0}, "abcde"),
    ],
)
@pytest.mark.parametrize("how", ["to_rts", "modify"])
def test_peer_filter(pair: Pair, fields: dict[str, object], heard: str, how: str) -> None:
    two = pair.two
    if how == "modify":
        two.qp.modify(QPAttr(**fields), IBV_QP_PEER)  # type: ignore[arg-type]
    else:
        two.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
        two.qp.to_init(QPAttr(**fields))  # type: ignore[arg-type]
        two.qp.to_rts(QPAttr())
    target = two.region(64)
    senders = {
        "a": ("10.0.0.1", 7777),
        "b": ("10.0.0.1", 7778),
        "c": ("10.1.2.3", 7777),
        "d": ("fd00::9", 7777),
        "e": ("fd00:1::9", 7777),
    }
    for msn, (source, port) in enumerate(senders.values(), start=1):
        pair.inject(target, 0, 8, 0, octets(8), msn, source, port)
    found = {wc.msn: (wc.src_ip, wc.src_qp) for wc in two.settle()}
    assert list(found.values()) == [senders[name] for name in heard]
    counters = two.context.counters()
    assert counters[Counter.DROP_PEER] == 5 - len(heard)


def test_peer_filter_attributes(pair: Pair) -> None:
    qp = pair.two.qp

    def state() -> tuple[object, ...]:
        attr, _ = qp.query()
        return attr.peer_ip, attr.peer_prefix, attr.peer_port

    assert state() == ("::", 0, 0)
    qp.modify(QPAttr(peer_ip="10.0.0.1", peer_port=9), IBV_QP_PEER)
    assert state() == ("10.0.0.1", 32, 9)
    qp.modify(QPAttr(timeout_us=50, peer_ip="10.0.0.2", peer_port=3), IBV_QP_TIMEOUT)
    assert state() == ("10.0.0.1", 32, 9), "not named by the mask"
    qp.modify(QPAttr(peer_ip="fd00::1"), IBV_QP_PEER)
    assert state() == ("fd00::1", 128, 9)
    for wrong in (
        {"peer_ip": "10.0.0"},
        {"peer_ip": ""},
        {"peer_ip": "10.0.0.1", "peer_prefix": 33},
        {"peer_ip": "fd00::1", "peer_prefix": 129},
        {"peer_ip": "fd00::1", "peer_prefix": -1},
        {"peer_prefix": 0},
        {"peer_port": 65536},
        {"peer_port": -1},
    ):
        with refused(errno.EINVAL):
            qp.modify(QPAttr(**wrong), IBV_QP_PEER)  # type: ignore[arg-type]
        assert state() == ("fd00::1", 128, 9)
    qp.modify(qp.query()[0], IBV_QP_PEER)
    assert state() == ("fd00::1", 128, 9)


def test_write(pair: Pair) -> None:
    one, two = pair.one, pair.two
    source, target = one.region(5000), two.region(5000)
    source.write(octets(5000))
    one.qp.post_send(request(one, IBV_WR_RDMA_WRITE, source, 4000, target=target, offset=333))
    (wc,) = one.take(1)
    assert (wc.opcode, wc.byte_len, wc.stag) == (IBV_WC_RDMA_WRITE, 4000, target.rkey)
    assert two.settle() == []
    assert target.read() == bytes(333) + octets(5000)[:4000] + bytes(667)


def test_write_record_of_many_datagrams(pair: Pair) -> None:
    one, two = pair.one, pair.two
    source, target = one.region(20_000), two.region(30_000, validity=True)
    source.write(octets(20_000))
    wr = request(
        one,
        IBV_WR_RDMA_WRITE_RECORD_WITH_IMM,
        source,
        20_000,
        target=target,
        offset=1000,
        imm_data=0xCAFE_F00D,
        send_flags=IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
    )
    one.qp.post_send(wr)
    (sent,) = one.take(1)
    assert (sent.opcode, sent.byte_len) == (IBV_WC_RDMA_WRITE_RECORD, 20_000)
    (wc,) = two.take(1)
    assert (wc.opcode, wc.status) == (IBV_WC_RECV_RDMA_RECORD, IBV_WC_SUCCESS)
    assert (wc.byte_len, wc.message_length, wc.msn) == (20_000, 20_000, 1)
    assert (wc.stag, wc.remote_addr) == (target.rkey, target.buf + 1000)
    assert (wc.imm_data, wc.wc_flags, wc.solicited) == (0xCAFE_F00D, IBV_WC_WITH_IMM, True)
    assert (wc.src_ip, wc.src_qp, wc.wr_id) == (IPS[0], PORTS[0], 0)
    assert wc.validity is not None and wc.validity.complete
    assert wc.validity.ranges() == [(0, 20_000)] and wc.validity.missing() == []
    assert target.read(20_000, 1000) == octets(20_000)
    assert target.validity.ranges() == [(1000, 20_000)]
    assert target.validity.missing() == [(0, 1000), (21_000, 9000)]
    # 1000 = 15 * 64 + 40 and 21,000 = 328 * 64 + 8: the granules at the edges are not whole.
    assert np.flatnonzero(target.validity.granules).tolist() == [*range(16, 328)]


def test_write_record_into_a_region_without_a_map(pair: Pair) -> None:
    """Each datagram completes by itself, and says what it brought."""
    one, two = pair.one, pair.two
    source, target = one.region(4000), two.region(4000)
    source.write(octets(4000))
    one.qp.post_send(request(one, IBV_WR_RDMA_WRITE_RECORD, source, 4000, target=target))
    parts = list(segments(Opcode.WRITE_RECORD, 4000, 1500, to=target.buf))
    wcs = two.take(len(parts))
    assert [(wc.remote_addr - target.buf, wc.byte_len) for wc in wcs] == parts
    assert [(wc.head, wc.tail) for wc in wcs] == [(True, False), (False, False), (False, True)]
    for wc in wcs:
        assert wc.segment and wc.message_length == 4000
        assert wc.validity is not None and wc.validity.ranges() == [(0, wc.byte_len)]
    assert target.read() == octets(4000)


def test_empty_write_record(pair: Pair) -> None:
    one, two = pair.one, pair.two
    one.qp.post_send(request(one, IBV_WR_RDMA_WRITE_RECORD, None))
    (wc,) = two.take(1)
    assert (wc.byte_len, wc.message_length) == (0, 0)
    assert wc.validity is not None and wc.validity.complete and wc.validity.ranges() == []


def test_small_messages_meet_inside_a_granule(pair: Pair) -> None:
    """Single datagrams are folded by exact octets: a granule is valid once they cover it."""
    one, two = pair.one, pair.two
    source, target = one.region(64), two.region(256, validity=True)

    def put(offset: int, length: int) -> None:
        wr = request(one, IBV_WR_RDMA_WRITE_RECORD, source, length, target=target, offset=offset)
        one.qp.post_send(wr)
        one.take(1)
        two.take(1)

    put(10, 20)
    put(40, 24)
    assert target.validity.ranges() == [(10, 20), (40, 24)]
    assert not target.validity.granules.any()
    put(0, 10)
    assert target.validity.is_valid(0, 30) and not target.validity.is_valid(0, 31)
    put(25, 15)
    assert target.validity.granules.tolist() == [True, False, False, False]
    put(50, 30)
    put(130, 40)
    assert target.validity.ranges() == [(0, 80), (130, 40)]
    assert target.validity.read().tolist() == [True, False, False, False]
    assert target.validity.ranges() == [] and target.validity.valid == 0


@pytest.mark.parametrize("base", [0, 64, 100, 1000, 4095])
@pytest.mark.parametrize("lost", [{0}, {1}, {2}, {3}, {0, 3}, {1, 2}, {0, 1, 2}])
def test_partial_message_by_hand(pair: Pair, base: int, lost: set[int]) -> None:
    """A message of four segments, some of which never come: exact map in WC and region."""
    two = pair.two
    target = two.region(16_384, validity=True)
    mlen = 4500
    data = octets(mlen)
    parts = list(segments(Opcode.WRITE_RECORD, mlen, 1500, to=target.buf + base))
    assert len(parts) == 4
    for number, (mo, length) in enumerate(parts):
        if number not in lost:
            pair.inject(target, base, mlen, mo, data[mo : mo + length], msn=77)
    (wc,) = two.take(1)
    came = [part for number, part in enumerate(parts) if number not in lost]
    assert (wc.status, wc.msn, wc.message_length) == (IBV_WC_PARTIAL, 77, mlen)
    assert wc.byte_len == sum(length for _, length in came)
    assert wc.remote_addr == target.buf + base
    assert wc.validity is not None
    assert wc.validity.valid == wc.byte_len
    for mo, length in parts:
        assert wc.validity.is_valid(mo, length) == ((mo, length) in came)
        assert target.validity.is_valid(base + mo, length) == ((mo, length) in came)
        expected = data[mo : mo + length] if (mo, length) in came else bytes(length)
        assert target.read(length, base + mo) == expected
    assert target.validity.valid == wc.byte_len
    assert two.settle(3 * 30 * 157) == []


@pytest.mark.parametrize("seed", range(6))
def test_random_messages_never_over_report(seed: int) -> None:
    """Loss, duplication, reordering: what is called valid equals what was sent."""
    pair = Pair(Impairments(0.1, 0.1, 0.2, seed), cap=QPCap(16, 16))
    one, two = pair.one, pair.two
    rng = random.Random(seed)
    size = 60_000
    granule = rng.choice([64, 128, 512])
    source, target = one.region(size), two.region(size, validity=True, granule=granule)
    data = octets(size, seed)
    source.write(data)
    sent = offset = 0
    reported = 0
    while offset < size:
        length = min(size - offset, rng.choice([rng.randint(1, 200), rng.randint(1, 12_000)]))
        wr = SendWR(
            sent,
            IBV_WR_RDMA_WRITE_RECORD,
            sg=[SGE(source.buf + offset, length, source.lkey)],
            granule=granule,
        )
        wr.set_wr_ud(one.ah, PORTS[1])
        wr.set_wr_rdma(target.rkey, target.buf + offset)
        one.qp.post_send(wr)
        one.take(1)
        for wc in two.settle(200):
            reported += wc.byte_len
        sent, offset = sent + 1, offset + length
    reported += sum(wc.byte_len for wc in two.settle(40_000))
    validity = target.validity
    assert 0 < validity.valid < size
    for start, length in validity.ranges():
        part = slice(start, start + length)
        assert target.read(length, start) == data[part], f"seed {seed} at {start}"
    covered = sum(length for _, length in validity.ranges() + validity.missing())
    assert covered == size and validity.valid <= reported
    pair.close()


def test_more_open_messages_than_trackers(pair: Pair) -> None:
    """Two trackers, three messages open: the third completes datagram by datagram, none is lost."""
    two = pair.two
    target = two.region(16_384, validity=True)
    for number in range(3):
        pair.inject(target, 4096 * number, 2816, 0, bytes([number + 1]) * 1408, msn=number)
    (early,) = two.take(1)
    assert (early.segment, early.head, early.tail, early.msn) == (True, True, False, 2)
    late = two.take(2)
    assert {wc.msn for wc in late} == {0, 1} and {wc.status for wc in late} == {IBV_WC_PARTIAL}
    assert target.validity.ranges() == [(4096 * number, 1408) for number in range(3)]


def test_p32_closing_a_region_closes_its_open_messages(pair: Pair) -> None:
    """The message completes by the region's row; nothing is written once the memory is gone."""
    two = pair.two
    memory = bytearray(20_000)
    skip = -np.frombuffer(memory, dtype=np.uint8).ctypes.data % 64
    target = MR(two.pd, buffer=memoryview(memory)[skip : skip + 8192], access=REMOTE, validity=True)
    pair.inject(target, 0, 4000, 0, bytes([7]) * 1408, msn=1)
    pair.link.run(2000)
    before = pair.link.time
    target.close()
    assert pair.link.time - before < 3000, "less than the timeout"
    memory[:] = bytes(len(memory))
    pair.inject(target, 0, 4000, 1408, bytes([7]) * 1408, msn=1)
    (wc,) = two.settle()
    assert (wc.status, wc.byte_len, wc.validity) == (IBV_WC_PARTIAL, 1408, None)
    assert not any(memory)


def test_destroyed_queue_pair_and_its_port(pair: Pair) -> None:
    """P41: what was open at the old QP completes there; the next QP of that port starts afresh."""
    two = pair.two
    target = two.region(8192, validity=True)
    pair.inject(target, 0, 2816, 0, bytes([1]) * 1408, msn=1)
    pair.link.run(2000)
    two.qp.close()
    (wc,) = two.settle(2000)
    assert (wc.status, wc.qp_num) == (IBV_WC_PARTIAL, PORTS[1])
    attr = QPAttr(timeout_us=30)
    two.qp = QP(two.pd, QPInitAttr(scq=two.cq, rcq=two.cq), attr, udp_port=PORTS[1])
    target.validity.clear()
    for mo in (0, 1408):
        pair.inject(target, 4096, 2816, mo, bytes([2]) * 1408, msn=1)
    (wc,) = two.take(1)
    assert (wc.status, wc.byte_len) == (IBV_WC_SUCCESS, 2816)
    assert target.validity.ranges() == [(4096, 2816)]


def test_reset_queue_pair_hears_a_peer_that_starts_again(pair: Pair) -> None:
    """A closed message's name does not outlive a reset, in which the peer's numbers begin again."""
    one, two = pair.one, pair.two
    source, target = one.region(64), two.region(64)
    for _ in range(3):
        one.qp.post_send(request(one, IBV_WR_RDMA_WRITE_RECORD, source, 64, target=target))
        assert two.take(1)[0].msn == 1
        one.take(1)
        for side in (one, two):
            side.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
            side.qp.to_rts(QPAttr())


def open_messages(pair: Pair) -> MR:
    """A Write-Record and a Send of side two, of which datagrams are still to come."""
    two = pair.two
    target = two.region(16_384, validity=True)
    two.receive(7, target, 8192, 4096)
    pair.inject(target, 0, 2816, 0, bytes([1]) * 1408, msn=1)
    send = Segment(opcode=Opcode.SEND, payload=bytes([2]) * 1408, msn=2, mo=64, mlen=4000)
    pair.inject_segment(send)
    pair.link.run(2000)
    assert two.settle(100) == []
    return target


@pytest.mark.parametrize("how", ["nothing open", "queue pair", "region", "context"])
def test_p32_closing_is_quick_whatever_the_timeout(how: str) -> None:
    """Messages that are open are closed, and nothing is written afterwards: a DMA access to what
    is no longer mapped would be a fault of the pair."""
    pair = Pair(timeout_us=100_000)
    two = pair.two
    target = None if how == "nothing open" else open_messages(pair)
    before = pair.link.time
    closing = {"region": target, "context": two.context}.get(how, two.qp)
    assert closing is not None
    closing.close()
    assert pair.link.time - before < 5000
    if how in ("queue pair", "region"):
        first, second = two.settle(2000)
        assert (first.status, first.byte_len) == (IBV_WC_PARTIAL, 1408)
        assert (second.status, second.byte_len, second.wr_id) == (IBV_WC_PARTIAL, 1408, 7)
        assert (second.validity is None) == (how == "region")
    if how != "context":
        pair.close()
        return
    pair.link.run(100_000 * 157)
    pair.link.check()  # type: ignore[attr-defined]
    pair.link.close()


@pytest.mark.parametrize("state", [IBV_QPS_ERR, IBV_QPS_RESET])
def test_p37_receive_of_an_open_message_completes_once(pair: Pair, state: int) -> None:
    two = pair.two
    open_messages(pair)
    two.qp.post_recv(RecvWR(8))
    two.qp.modify(QPAttr(qp_state=state), IBV_QP_STATE)
    found = [(wc.wr_id, wc.status) for wc in two.settle(2000) if wc.opcode == IBV_WC_RECV]
    assert found == [(7, IBV_WC_PARTIAL), (8, IBV_WC_WR_FLUSH_ERR)]


# Completion queues and events


def test_poll(pair: Pair) -> None:
    one = pair.one
    assert one.cq.cqe == 64 and CQ(one.context, 3).cqe == 4
    before = pair.link.time
    assert one.cq.poll() == (0, [])
    assert pair.link.time > before, "time stands still for one who polls in vain"
    for cqe in (0, (1 << 16) + 1):
        with refused(errno.EINVAL):
            CQ(one.context, cqe)
    with refused(errno.EINVAL):
        one.cq.poll(0)
    source = one.region(64)
    for number in range(5):
        wr = request(one, IBV_WR_RDMA_WRITE, source, 64, target=source, wr_id=number)
        one.qp.post_send(wr)
    pair.link.run(3000)
    number, wcs = one.cq.poll(3)
    assert number == 3 and [wc.wr_id for wc in wcs] == [0, 1, 2]
    assert [wc.wr_id for wc in one.cq.poll(16)[1]] == [3, 4]


def test_small_queue_holds_back_sends_and_loses_none(pair: Pair) -> None:
    one = pair.one
    cq = CQ(one.context, 2)
    source = one.region(64)
    with QP(one.pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(16, 1)), QPAttr(timeout_us=10)) as qp:
        for number in range(16):
            qp.post_send(request(one, IBV_WR_RDMA_WRITE, source, 64, target=source, wr_id=number))
        pair.link.run(20_000)
        found = []
        for _ in range(200):
            found += cq.poll(1)[1]
        assert [wc.wr_id for wc in found] == list(range(16))


def test_events(pair: Pair) -> None:
    one, two = pair.one, pair.two
    channel = CompChannel(two.context)
    cq = CQ(two.context, 8, channel=channel)
    with refused(errno.EINVAL):
        channel.get_cq_event(cq)
    with refused(errno.EINVAL):
        two.cq.req_notify()
    init = QPInitAttr(scq=cq, rcq=cq)
    qp = QP(two.pd, init, QPAttr(timeout_us=10), udp_port=5)
    for number in range(3):
        qp.post_recv(RecvWR(number))
        cq.req_notify()
        with refused(errno.ETIMEDOUT):
            channel.get_cq_event(cq, timeout=0.01)
        one.qp.post_send(request(one, IBV_WR_SEND, None, port=5))
        assert channel.get_cq_event(cq, timeout=10) is cq
        assert cq.poll(4)[1][0].wr_id == number
    assert cq.events == 3
    cq.ack_events(3)
    assert cq.events == 0
    assert not two.context.device.interrupt
    qp.post_recv(RecvWR(9))
    cq.req_notify()
    qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    channel.get_cq_event(cq, timeout=10)  # a flushed request is an event too
    assert cq.poll()[1][0].status == ibv_wc_status.IBV_WC_WR_FLUSH_ERR


def test_completion_of_what_was_not_posted(pair: Pair) -> None:
    """P39: an index from a ring is checked before it is used."""
    cq = pair.one.cq
    entry = CQE.pack(opcode=Opcode.SEND, qpn=pair.one.qp._row, wqe_index=3, phase=1)
    cq._memory.view[: CQE.size] = entry
    with refused(errno.EIO):
        cq.poll()


def test_access_of_regions(pair: Pair) -> None:
    one, two = pair.one, pair.two
    source = one.region(64)
    shut = two.region(64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ)
    other = MR(PD(two.context), 64, REMOTE)
    for target in (shut, other):
        one.qp.post_send(request(one, IBV_WR_RDMA_WRITE, source, 64, target=target))
    two.settle(5000)
    counters = two.context.counters()
    assert counters[Counter.DROP_STAG_ACCESS] == counters[Counter.DROP_STAG_PD] == 1


# Validity by itself


@pytest.mark.parametrize("seed", range(30))
def test_validity_against_octets(seed: int) -> None:
    """Random marks, against one flag an octet."""
    rng = random.Random(seed)
    granule = rng.choice([64, 128, 256])
    length, shift = rng.randint(1, 3000), rng.randrange(granule)
    validity, truth = Validity(length, granule, shift), np.zeros(length, dtype=bool)
    for _ in range(rng.randint(0, 40)):
        start = rng.randrange(length)
        stop = min(length, start + rng.choice([rng.randint(0, 30), rng.randint(0, 600)]))
        validity._mark(start, stop)
        truth[start:stop] = True
    assert validity.valid == truth.sum()
    shown = np.zeros(length, dtype=bool)
    for start, size in validity.ranges():
        assert truth[start : start + size].all()
        shown[start : start + size] = True
    assert (shown == truth).all()
    hidden = np.ones(length, dtype=bool)
    for start, size in validity.missing():
        hidden[start : start + size] = False
    assert (hidden == truth).all()
    for _ in range(50):
        start = rng.randrange(length + 1)
        size = rng.randint(0, length - start)
        assert validity.is_valid(start, size) == truth[start : start + size].all()
    for index, flag in enumerate(validity.granules):
        low = max(0, index * granule - shift)
        assert flag == truth[low : (index + 1) * granule - shift].all()
    assert validity.complete == truth.all()
    with pytest.raises(ValueError):
        validity.is_valid(0, length + 1)
    with pytest.raises(ValueError):
        validity.granules[0] = True
