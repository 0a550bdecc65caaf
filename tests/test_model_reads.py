"""Reads of the reference NIC: items 7.7 and 7.8 of ``docs/device.md``, and what sections 3 and 4
say of Read Requests and Read Response-Records. Expectations are worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.host import (
    IPV4,
    IPV6,
    MAC,
    PEER_IPV4,
    PEER_IPV6,
    PEER_MAC,
    PEER_PORT,
    Region,
    frame_of,
    record,
)
from tests.model_bench import (
    FILL,
    PORT,
    QPN,
    TIMEOUT,
    Bench,
    frames,
    make_bench,
    pattern,
    send,
    sent,
)
from uwarp.contract import (
    Access,
    CloseTarget,
    Counter,
    CqeFlag,
    EventType,
    QpState,
    Register,
    Status,
    WqeFlag,
)
from uwarp.wire import Opcode, ReadRequest, Segment, UdpFrame, crc32c

SINK_STAG = 0xABCDEF01
MAPPED_IPV4 = 0xFFFF << 32


@pytest.fixture
def bench() -> Bench:
    return make_bench()


def request(region: Region, offset: int, size: int, msn: int = 1, **fields: Any) -> Segment:
    """A peer's Read Request of octets of ``region``; ``fields`` of either structure."""
    body = {
        "sink_stag": SINK_STAG,
        "sink_to": 0x7000,
        "size": size,
        "source_stag": region.stag,
        "source_to": region.base_to + offset,
    }
    body |= {name: fields.pop(name) for name in list(fields) if name in body}
    payload = ReadRequest(**body).encode() + fields.pop("more", b"")
    header = {"opcode": Opcode.READ_REQUEST, "qn": 1, "msn": msn, "mlen": 28} | fields
    return Segment(payload=payload, **header)


class TestRequest:
    """What becomes of a peer's Read Request: section 3."""

    @pytest.mark.parametrize(
        "fields, counter",
        [
            ({"qn": 0}, Counter.DROP_UNTAGGED_QN),
            ({"qn": 2}, Counter.DROP_UNTAGGED_QN),
            ({"qn": 1 << 31 | 1}, Counter.DROP_UNTAGGED_QN),
            ({"mo": 1}, Counter.DROP_MESSAGE_LENGTH),
            ({"mo": 1 << 31}, Counter.DROP_MESSAGE_LENGTH),
            ({"more": b"x"}, Counter.DROP_MESSAGE_LENGTH),
            ({"size": 0}, Counter.DROP_MESSAGE_LENGTH),
            ({"source_stag": 0xFFFF_FF5A}, Counter.DROP_STAG_INVALID),
            ({"source_stag": 0x55A}, Counter.DROP_STAG_INVALID),
            ({"source_stag": 0x15B}, Counter.DROP_STAG_KEY),
            ({"source_stag": 0x45A}, Counter.DROP_STAG_PD),
            ({"source_stag": 0x35A}, Counter.DROP_STAG_ACCESS),
            ({"source_to": 2**64 - 99}, Counter.DROP_TO_WRAP),
            ({"source_to": 2**64 - 100}, Counter.DROP_BOUNDS),
            ({"source_to": 0x1F_FFFF}, Counter.DROP_BOUNDS),
            ({"source_to": 0x20_3F9D}, Counter.DROP_BOUNDS),
            ({"size": 0xFFFF_FFFF}, Counter.DROP_BOUNDS),
            # Of several, the first of the rule.
            ({"qn": 0, "size": 0}, Counter.DROP_UNTAGGED_QN),
            ({"size": 0, "source_stag": 0x55A}, Counter.DROP_MESSAGE_LENGTH),
            ({"source_stag": 0x55A, "source_to": 2**64 - 99}, Counter.DROP_STAG_INVALID),
        ],
    )
    def test_dropped(self, bench: Bench, fields: dict[str, Any], counter: Counter) -> None:
        host = bench.host
        host.add_region(3, 4096, access=Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        host.add_region(4, 4096, pd=2)
        bench.gets(counter, request(bench.plain, 0, **({"size": 100} | fields)))
        assert frames(bench) == []

    @pytest.mark.parametrize("to", [0x20_0000, 0x20_3F9C])
    def test_accepted_at_either_end(self, bench: Bench, to: int) -> None:
        """A region that may be read only is enough; RsvdULP says nothing."""
        host = bench.host
        host.add_region(1, 16384, base_to=0x20_0000, access=Access.REMOTE_READ)
        bench.gets(Counter.RX_PLACED, request(bench.plain, 0, 100, source_to=to, mlen=0xDEAD))
        assert len(frames(bench)) == 1
        assert host.poll_all() == []

    @pytest.mark.parametrize(
        "state, counter",
        [
            (QpState.RESET, Counter.DROP_QP_STATE),
            (QpState.INIT, Counter.DROP_QP_STATE),
            (QpState.RTR, Counter.DROP_QP_STATE),
            (QpState.RTS, Counter.RX_PLACED),
            (QpState.ERROR, Counter.DROP_QP_STATE),
        ],
    )
    def test_qp_state(self, bench: Bench, state: QpState, counter: Counter) -> None:
        bench.host.modify_qp(QPN, state=state)
        bench.gets(counter, request(bench.plain, 0, 100))

    def test_qp_opcode_and_peer(self, bench: Bench) -> None:
        """The state is looked at first, the opcode last."""
        host = bench.host
        host.modify_qp(QPN, opcodes=0xFFFF ^ 1 << 1)
        bench.gets(Counter.DROP_QP_OPCODE, request(bench.plain, 0, 100, qn=0))
        host.modify_qp(QPN, peer_port=PEER_PORT + 1)
        bench.gets(Counter.DROP_PEER, request(bench.plain, 0, 100))
        host.modify_qp(QPN, state=QpState.RTR)
        bench.gets(Counter.DROP_QP_STATE, request(bench.plain, 0, 100))

    def test_7_8_busy_until_the_last_segment_is_cut(self, bench: Bench) -> None:
        """Two wait at once here, those of one QP or of several."""
        host = bench.host
        host.add_qp(5, port=PORT + 5)
        bench.gets(Counter.RX_PLACED, request(bench.plain, 0, 1500))
        bench.gets(Counter.RX_PLACED, request(bench.plain, 0, 100), PORT + 5)
        bench.gets(Counter.DROP_READ_BUSY, request(bench.plain, 0, 100, 2))
        bench.gets(Counter.DROP_BOUNDS, request(bench.plain, 0, 20000, 2))
        assert len(bench.nic.next_frame() or b"") > 1000
        bench.gets(Counter.DROP_READ_BUSY, request(bench.plain, 0, 100, 2))
        assert len(frames(bench)) == 2
        for msn in (2, 3):
            bench.gets(Counter.RX_PLACED, request(bench.plain, 0, 100, msn))
        bench.gets(Counter.DROP_READ_BUSY, request(bench.plain, 0, 100, 4))
        assert [item.msn for item in sent(bench)] == [2, 3]

    def test_a_request_twice_is_answered_twice(self, bench: Bench) -> None:
        for _ in range(2):
            bench.gets(Counter.RX_PLACED, request(bench.plain, 0, 10))
        assert len(frames(bench)) == 2


class TestResponse:
    """What the responder sends: 7.8."""

    def fill(self, bench: Bench) -> bytes:
        octets = pattern(bench.plain.length)
        bench.memory.write(bench.plain.address, octets)
        return octets

    def test_frame(self, bench: Bench) -> None:
        octets = self.fill(bench)
        tags = (0x8100_E064,)
        fields: dict[str, Any] = {"traffic_class": 0xB8, "hop_limit": 9, "vlan_tags": tags}
        bench.receive(request(bench.plain, 11, 5, 0x01020304, sink_to=0x7001), **fields)
        (frame,) = frames(bench)
        segment = bytes.fromhex(
            "c14d abcdef01 0000000000007001 01020304 00000000 00000005 00000000"
        )
        segment += octets[11:16]
        segment += crc32c(segment).to_bytes(4, "little")
        # 4500 + 0043 + 4000 + 4011 + 0A00 + 0001 + 0A00 + 0002 = D957, complement 26A8.
        ip = bytes.fromhex("4500 0043 0000 4000 4011 26a8 0a000001 0a000002")
        assert frame[:14].hex() == "020000000002" + "020000000001" + "0800"
        assert frame[14:34].hex() == ip.hex()
        assert frame[34:40].hex() == "12c0" + "12b7" + "002f"
        assert frame[42:].hex() == segment.hex()
        assert bench.host.counter(Counter.TX_FRAMES) == 1
        assert bench.host.poll_all() == []

    def test_to_where_the_request_came_from(self, bench: Bench) -> None:
        self.fill(bench)
        source = 0xFD00 << 112 | 0x1234
        bench.receive(
            request(bench.plain, 0, 10),
            ip_version=6,
            source_ip=source,
            source_mac=0x02_00_00_00_00_77,
            source_port=77,
        )
        (frame,) = frames(bench)
        found = UdpFrame.decode(frame)
        assert (found.dest_mac, found.source_mac) == (0x02_00_00_00_00_77, MAC)
        assert (found.ip_version, found.source_ip, found.dest_ip) == (6, IPV6, source)
        assert (found.source_port, found.dest_port) == (PORT, 77)
        assert (found.traffic_class, found.hop_limit) == (0, 64)

    @pytest.mark.parametrize(
        "version, mtu, sink_to, size, sizes",
        [
            (4, 1500, 0x7000, 1438, [1438]),
            (4, 1500, 0x7000, 1439, [1408, 31]),
            (6, 1500, 0x7000, 1418, [1418]),
            (6, 1500, 0x7000, 1419, [1408, 11]),
            (4, 1500, 0x701E, 3000, [1378, 1408, 214]),
            (4, 9000, 0x7000, 16384, [8896, 7488]),
            (6, 576, 0x7001, 1000, [447, 448, 105]),
        ],
    )
    def test_segments(
        self, bench: Bench, version: int, mtu: int, sink_to: int, size: int, sizes: list[int]
    ) -> None:
        """They end on multiples of 64 of the sink's TO."""
        octets = self.fill(bench)
        bench.host.modify_qp(QPN, path_mtu=mtu)
        segment = request(bench.plain, 0, size, 9, sink_to=sink_to)
        bench.receive(segment, ip_version=version)
        found = sent(bench)
        assert [len(item.payload) for item in found] == sizes
        assert b"".join(item.payload for item in found) == octets[:size]
        assert [item.last for item in found] == [False] * (len(sizes) - 1) + [True]
        for number, item in enumerate(found):
            mo = sum(sizes[:number])
            assert (item.mo, item.to, item.mlen) == (mo, sink_to + mo, size)
            assert (item.opcode, item.stag, item.msn) == (0xD, SINK_STAG, 9)
            assert item.immediate == 0

    def test_sink_offset_wraps(self, bench: Bench) -> None:
        """The responder does not judge: that is for the sink."""
        bench.receive(request(bench.plain, 0, 1500, sink_to=2**64 - 1408))
        assert [item.to for item in sent(bench)] == [2**64 - 1408, 0]

    def test_turns(self, bench: Bench) -> None:
        """A long response holds back neither the QP's own messages nor other QPs."""
        host = bench.host
        host.add_qp(5, port=PORT + 5)
        bench.receive(request(bench.plain, 0, 5000))
        host.post_send(QPN, payload=bench.plain, opcode=0xC, length=3000)
        host.post_send(5, opcode=0x3)
        found = [
            (UdpFrame.decode(frame).source_port - PORT, frame[43] & 15) for frame in frames(bench)
        ]
        assert found[1] == (5, 3)
        own = [opcode for port, opcode in found if port == 0]
        assert sorted(own) == [0xC] * 3 + [0xD] * 4
        assert own.index(0xC) < 2 and own.index(0xD) < 2

    def test_answered_though_the_send_cq_is_full(self, bench: Bench) -> None:
        bench.host.modify_qp(QPN, send_cq=7)
        bench.host.post_send(QPN, opcode=0x3)
        bench.receive(request(bench.plain, 0, 10))
        assert [item.opcode for item in sent(bench)] == [0xD]

    def test_octets_that_cannot_be_read(self, bench: Bench) -> None:
        """Memory ends 2000 octets into the region: the first segment goes, the rest does not."""
        host = bench.host
        host.add_events()
        end = bench.memory.base + len(bench.memory.octets)
        source = host.add_region(3, 4000, base_to=0, dma_addr=end - 2000)
        bench.receive(request(source, 0, 4000))
        bench.receive(request(bench.plain, 0, 5, 2))
        assert [(item.msn, item.mo) for item in sent(bench)] == [(1, 0), (2, 0)]
        assert set(host.poll_events()) == {(EventType.DMA_READ, QPN)}
        assert host.poll_all() == []
        for msn in (3, 4):  # nothing waits any more
            bench.gets(Counter.RX_PLACED, request(bench.plain, 0, 10, msn))

    def test_nothing_follows_octets_that_cannot_be_read(self, bench: Bench) -> None:
        """Memory begins 100 octets into the region: only the first segment would fail."""
        source = bench.host.add_region(3, 4000, dma_addr=bench.memory.base - 100)
        bench.receive(request(source, 0, 4000))
        assert frames(bench) == []

    def test_p32_reset_discards_responses(self, bench: Bench) -> None:
        host = bench.host
        host.add_qp(5, port=PORT + 5)
        bench.receive(request(bench.plain, 0, 3000))
        bench.receive(request(bench.plain, 0, 10, 2), PORT + 5)
        assert bench.nic.next_frame() is not None
        host.modify_qp(QPN, state=QpState.RESET)
        host.modify_qp(QPN, state=QpState.RTS)
        assert [item.msn for item in sent(bench)] == [2]
        for msn in (3, 4):
            bench.gets(Counter.RX_PLACED, request(bench.plain, 0, 10, msn))

    @pytest.mark.parametrize("state", [QpState.INIT, QpState.RTR, QpState.ERROR])
    def test_sent_in_rts_only(self, bench: Bench, state: QpState) -> None:
        bench.receive(request(bench.plain, 0, 10))
        bench.host.modify_qp(QPN, state=state)
        assert frames(bench) == []
        bench.host.modify_qp(QPN, state=QpState.RTS)
        assert len(frames(bench)) == 1

    def test_8_1_a_failed_qp_sends_no_response(self, bench: Bench) -> None:
        host = bench.host
        nowhere = host.add_region(3, 4096, dma_addr=0)
        bench.receive(request(bench.plain, 0, 10))
        bench.receive(record(nowhere, 0, 1, 0, b"x"))
        assert frames(bench) == []
        bench.gets(Counter.DROP_QP_STATE, request(bench.plain, 0, 10, 2))
        host.modify_qp(QPN)
        assert [item.msn for item in sent(bench)] == [1]

    def test_region_is_that_of_the_request(self, bench: Bench) -> None:
        """Its row may be written between."""
        octets = self.fill(bench)
        bench.receive(request(bench.plain, 0, 10))
        bench.host.add_region(1, 64, valid=0)
        assert [item.payload for item in sent(bench)] == [octets[:10]]


SIZE = 1500
AT = 202  # granules 3 (from octet 10 on) to 26 (38 octets)
CUT = 1398  # octets to the end of granule 24
ANSWER = pattern(SIZE, 7)
READ_MAPPED = CqeFlag.MAPPED


def post_read(bench: Bench, size: int = SIZE, at: int = AT, **fields: int) -> None:
    """Post a Read into the mapped region."""
    wqe = {
        "opcode": 0x1,
        "sge_addr": bench.mapped.base_to + at,
        "length": size,
        "remote_stag": 0x7788_99AA,
        "remote_to": 0x0102_0304_0506_0708,
    }
    bench.host.post_send(QPN, payload=bench.mapped, **(wqe | fields))


def answer(
    bench: Bench, start: int, stop: int, msn: int = 1, at: int = AT, size: int = SIZE, **fields: Any
) -> Segment:
    """Octets [start, stop) of the answer to :func:`post_read`."""
    segment = Segment(
        opcode=Opcode.READ_RESPONSE_RECORD,
        payload=ANSWER[start:stop],
        last=stop == size,
        stag=bench.mapped.stag,
        to=bench.mapped.base_to + at + start,
        msn=msn,
        mo=start,
        mlen=size,
    )
    return replace(segment, **fields)


class TestRead:
    """What the requester does: 7.7 and section 4."""

    def test_request_frame(self, bench: Bench) -> None:
        post_read(bench, traffic_class=0xB8, hop_limit=3, dest_port=0x1234)
        (frame,) = frames(bench)
        segment = bytes.fromhex(
            "4141 0000001c 00000001 00000001 00000000"
            "0000025a 00000000001000ca 000005dc 778899aa 0102030405060708"
        )
        segment += crc32c(segment).to_bytes(4, "little")
        assert len(segment) == 50
        # 45B8 + 004E + 4000 + 0311 + 0A00 + 0001 + 0A00 + 0002 = 9D1A, complement 62E5.
        ip = bytes.fromhex("45b8 004e 0000 4000 0311 62e5 0a000001 0a000002")
        assert frame[:14].hex() == "020000000002" + "020000000001" + "0800"
        assert frame[14:34].hex() == ip.hex()
        assert frame[34:40].hex() == "12c0" + "1234" + "003a"
        assert frame[42:].hex() == segment.hex()
        assert bench.host.counter(Counter.TX_FRAMES) == 1
        assert bench.host.get(Register.OPEN_MESSAGES) == 1

    @pytest.mark.parametrize("flags", [0, WqeFlag.SIGNALED])
    @pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0, 1), (1, 1, 0)])
    def test_complete(self, bench: Bench, order: tuple[int, ...], flags: int) -> None:
        """It completes, signalled or not, on the send CQ."""
        host = bench.host
        host.add_cq(1)
        host.modify_qp(QPN, send_cq=1)
        host.post_send(QPN, opcode=0x3, flags=0)
        post_read(bench, flags=flags)
        assert [item.opcode for item in sent(bench)] == [0x3, 0x1]
        parts = answer(bench, 0, CUT, 2), answer(bench, CUT, SIZE, 2)
        for number in order:
            assert host.poll_all(1) == []
            bench.gets(Counter.RX_PLACED, parts[number])
        cqe = bench.only_cqe(1)
        assert vars(cqe) == {
            "opcode": 0x1,
            "status": 0,
            "flags": READ_MAPPED,
            "qpn": QPN,
            "wqe_index": 1,
            "time_high": 0,
            "valid": SIZE,
            "msn": 2,
            "mlen": SIZE,
            "base_to": bench.mapped.base_to + AT,
            "stag": bench.mapped.stag,
            "immediate": 0,
            "source_ip": MAPPED_IPV4 | PEER_IPV4,
            "source_port": PEER_PORT,
            "head_map": 0xF8,
            "tail_map": 0x07,
            "time_low": 0,
            "phase": 1,
        }
        assert bench.octets(bench.mapped, AT, SIZE) == ANSWER
        assert bench.map_octets(bench.mapped, 0, 4) == f"{FILL:02x}ffff{FILL:02x}"
        assert host.poll_all(0) == []
        bench.gets(Counter.DROP_LATE, parts[0])

    def test_one_datagram(self, bench: Bench) -> None:
        post_read(bench, 5)
        assert len(frames(bench)) == 1
        bench.gets(Counter.RX_PLACED, answer(bench, 0, 5, size=5))
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.flags, cqe.mlen) == (0, 5, READ_MAPPED, 5)
        assert (cqe.head_map, cqe.tail_map) == (0x08, 0x08)

    def test_ipv6_and_vlan(self, bench: Bench) -> None:
        """The responder's address is what names it."""
        host = bench.host
        host.add_qp(QPN, port=PORT, sq_wide=1)
        flags = WqeFlag.IPV6 | WqeFlag.VLAN
        post_read(bench, 5, flags=flags, dest_ipv6=PEER_IPV6, vlan=0xE064)
        (frame,) = frames(bench)
        found = UdpFrame.decode(frame)
        assert (found.ip_version, found.source_ip, found.dest_ip) == (6, IPV6, PEER_IPV6)
        assert found.vlan_tags == (0x8100_E064,)
        bench.gets(Counter.DROP_LATE, answer(bench, 0, 5, size=5))
        bench.gets(Counter.RX_PLACED, answer(bench, 0, 5, size=5), ip_version=6)
        assert bench.only_cqe().source_ip == PEER_IPV6

    @pytest.mark.parametrize(
        "parts, valid, head, tail, inner",
        [
            ([], 0, 0, 0, "0000"),
            ([(0, CUT)], CUT, 0xF8, 0x01, "ffff"),
            ([(CUT, SIZE)], SIZE - CUT, 0, 0x06, "0000"),
            ([(54, 54 + 640)], 640, 0xF0, 0, "3f00"),
        ],
    )
    def test_partial(
        self,
        bench: Bench,
        parts: list[tuple[int, int]],
        valid: int,
        head: int,
        tail: int,
        inner: str,
    ) -> None:
        """After ``timeout`` ticks of silence, from the request on if nothing comes."""
        host = bench.host
        bench.advance_ticks(5)
        post_read(bench)
        assert len(frames(bench)) == 1
        for start, stop in parts:
            bench.gets(Counter.RX_PLACED, answer(bench, start, stop))
        bench.nic.advance(1024 * TIMEOUT - 1)
        assert host.poll_all() == []
        bench.nic.advance(1)
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.opcode, cqe.flags) == (Status.PARTIAL, 0x1, READ_MAPPED)
        assert (cqe.valid, cqe.head_map, cqe.tail_map) == (valid, head, tail)
        assert bench.map_octets(bench.mapped, 1, 2) == inner
        assert host.counter(Counter.MESSAGES_PARTIAL) == 1
        bench.gets(Counter.DROP_LATE, answer(bench, 0, CUT))
        assert bench.octets(bench.mapped, AT + SIZE) == bytes([FILL]) * (16384 - AT - SIZE)

    def test_every_answer_postpones_the_timeout(self, bench: Bench) -> None:
        post_read(bench)
        assert len(frames(bench)) == 1
        for _ in range(3):
            bench.advance_ticks(TIMEOUT - 1)
            bench.gets(Counter.RX_PLACED, answer(bench, 0, CUT))
        assert bench.host.poll_all() == []

    @pytest.mark.parametrize(
        "fields, counter",
        [
            ({"mlen": SIZE - 1}, Counter.DROP_MESSAGE_LENGTH),
            ({"mo": SIZE}, Counter.DROP_MESSAGE_LENGTH),
            ({"mo": 0xFFFF_FFFF}, Counter.DROP_MESSAGE_LENGTH),
            ({"msn": 2}, Counter.DROP_LATE),
            ({"stag": 0x25B}, Counter.DROP_RECORD_MISMATCH),
            ({"stag": 0x15A}, Counter.DROP_RECORD_MISMATCH),
            ({"to": 0x10_0000 + AT + CUT + 1}, Counter.DROP_RECORD_MISMATCH),
            ({"to": 0}, Counter.DROP_RECORD_MISMATCH),
            ({"mo": CUT - 1}, Counter.DROP_RECORD_MISMATCH),
            ({"mlen": SIZE + 1}, Counter.DROP_RECORD_MISMATCH),
            # Of several, the first of the rule.
            ({"mlen": SIZE - 1, "msn": 2}, Counter.DROP_MESSAGE_LENGTH),
            ({"stag": 0x25B, "msn": 2}, Counter.DROP_LATE),
        ],
    )
    def test_answer_dropped(self, bench: Bench, fields: dict[str, Any], counter: Counter) -> None:
        post_read(bench)
        assert len(frames(bench)) == 1
        bench.gets(counter, answer(bench, CUT, SIZE, **fields))
        for start, stop in ((0, CUT), (CUT, SIZE)):
            bench.gets(Counter.RX_PLACED, answer(bench, start, stop))
        assert bench.only_cqe().status == Status.SUCCESS

    def test_answer_of_somebody_else(self, bench: Bench) -> None:
        """Another address, another port, another QP, another kind of message."""
        bench.host.add_qp(5, port=PORT + 5)
        post_read(bench, 5)
        assert len(frames(bench)) == 1
        good = answer(bench, 0, 5, size=5)
        bench.gets(Counter.DROP_LATE, good, source_ip=PEER_IPV4 + 1)
        bench.gets(Counter.DROP_LATE, good, source_port=PEER_PORT + 1)
        bench.gets(Counter.DROP_LATE, good, PORT + 5)
        post_receive = bench.host.post_receive
        post_receive(QPN, bench.plain.base_to, 64, bench.plain.stag)
        bench.gets(Counter.RX_PLACED, send(b"abc"))
        bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 3, 0, b"abc"))
        assert [cqe.opcode for cqe in bench.host.poll_all()] == [0x3, 0xC]
        bench.gets(Counter.RX_PLACED, good)
        assert bench.only_cqe().opcode == 0x1

    def test_answer_to_a_qp_that_does_not_take_it(self, bench: Bench) -> None:
        host = bench.host
        post_read(bench, 5)
        assert len(frames(bench)) == 1
        good = answer(bench, 0, 5, size=5)
        for fields, counter in (
            ({"opcodes": 0xFFFF ^ 1 << 0xD}, Counter.DROP_QP_OPCODE),
            ({"opcodes": 0xFFFF, "peer_port": 7}, Counter.DROP_PEER),
            ({"state": QpState.INIT}, Counter.DROP_QP_STATE),
            ({"state": QpState.RTR, "peer_port": 0}, Counter.RX_PLACED),
        ):
            host.modify_qp(QPN, **fields)
            bench.gets(counter, good)
        assert bench.only_cqe().status == Status.SUCCESS

    def test_not_remembered_as_closed(self, bench: Bench) -> None:
        """Its name takes nobody's row: a Send of the same row stays remembered."""
        bench.host.post_receive(QPN, bench.plain.base_to, 64, bench.plain.stag)
        bench.gets(Counter.RX_PLACED, send(b"abc"))
        post_read(bench, 5)
        assert len(frames(bench)) == 1
        bench.gets(Counter.RX_PLACED, answer(bench, 0, 5, size=5))
        bench.gets(Counter.DROP_LATE, send(b"abc"))

    def test_in_whatever_order(self, bench: Bench) -> None:
        """Reads complete when their answers are there, Sends posted behind them before."""
        for number in range(3):
            post_read(bench, 5, 64 * number)
        bench.host.post_send(QPN, opcode=0x3)
        assert [item.msn for item in sent(bench)] == [1, 2, 3, 4]
        for msn in (2, 3, 1):
            segment = answer(bench, 0, 5, msn, 64 * (msn - 1), 5)
            bench.gets(Counter.RX_PLACED, segment)
        cqes = bench.host.poll_all()
        assert [cqe.msn for cqe in cqes] == [4, 2, 3, 1]
        assert [cqe.wqe_index for cqe in cqes] == [3, 1, 2, 0]

    def test_overlapping_messages_are_closed(self, bench: Bench) -> None:
        """By a Read those that are open; a Read by what overlaps it."""
        host = bench.host
        bench.gets(Counter.RX_PLACED, record(bench.mapped, 0, 300, 0, b"x" * 64, 7))
        bench.gets(Counter.RX_PLACED, record(bench.mapped, 4096, 300, 0, b"x" * 64, 8))
        post_read(bench)
        assert len(frames(bench)) == 1
        cqe = bench.only_cqe()
        assert (cqe.msn, cqe.status, cqe.valid) == (7, Status.PARTIAL, 64)
        bench.gets(Counter.RX_PLACED, answer(bench, 0, CUT))
        bench.gets(Counter.RX_PLACED, record(bench.mapped, AT + SIZE - 1, 100, 0, b"", 9))
        cqe = bench.only_cqe()
        assert (cqe.opcode, cqe.status, cqe.valid) == (0x1, Status.PARTIAL, CUT)
        bench.gets(Counter.DROP_LATE, answer(bench, CUT, SIZE))
        assert host.get(Register.OPEN_MESSAGES) == 2

    def test_7_7_waits_while_all_trackers_are_taken(self, bench: Bench) -> None:
        """Others have their turns, and so has the QP's response; nothing is closed for it."""
        host = bench.host
        host.add_qp(5, port=PORT + 5)
        for msn in range(4):
            bench.receive(record(bench.mapped, 4096 + 512 * msn, 300, 0, b"x" * 64, msn))
        post_read(bench, at=4096)
        host.post_send(QPN, opcode=0x3)
        host.post_send(5, opcode=0x3)
        bench.receive(request(bench.plain, 0, 10))
        found = [(item.opcode, item.msn) for item in sent(bench)]
        assert sorted(found) == [(0x3, 1), (0xD, 1)]
        assert [cqe.qpn for cqe in host.poll_all()] == [5]
        bench.advance_ticks(TIMEOUT)
        assert [(item.opcode, item.msn) for item in sent(bench)] == [(0x1, 1), (0x3, 2)]

    @pytest.mark.parametrize(
        "change",
        [
            {"valid": 0},
            {"key": 0x5B},
            {"pd": 2},
            {"access": Access.REMOTE_WRITE},
            {"mapped": 0},
            {"granule_log2": 7},
            {"length": 1024},
        ],
    )
    def test_7_7_region_that_changes_while_a_read_waits(
        self, bench: Bench, change: dict[str, int]
    ) -> None:
        """The WQE completes with NO_TRACKER; its MSN is used up; open messages stay."""
        host = bench.host
        fields = {"base_to": 0x40_0000, "mapped": 1, "map_base": 1024}
        sink = host.add_region(3, 4096, **fields)
        for msn in range(4):
            bench.receive(record(bench.mapped, 512 * msn, 300, 0, b"x" * 64, msn))
        post_read(bench, sge_lkey=sink.stag, sge_addr=sink.base_to, flags=0)
        post_read(bench, 5)
        assert sent(bench) == []
        fields |= {"length": 4096, "dma_addr": sink.address, "map_addr": sink.map_address}
        host.add_region(3, **(fields | change))
        host.close_messages(CloseTarget.QP, QPN)
        host.poll_all()
        assert [item.msn for item in sent(bench)] == [2]
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.msn, cqe.mlen) == (Status.NO_TRACKER, 0, 1, SIZE)
        assert (cqe.opcode, cqe.wqe_index, cqe.flags) == (0x1, 0, 0)
        bench.gets(Counter.DROP_LATE, answer(bench, 0, 5, size=5))
        bench.gets(Counter.RX_PLACED, answer(bench, 0, 5, 2, size=5))
        assert bench.only_cqe().msn == 2

    @pytest.mark.parametrize(
        "fields, status",
        [
            ({"num_sge": 0, "length": 0, "sge_length": 0}, Status.LOC_QP_OP_ERR),
            ({"num_sge": 2, "sge1_length": 0}, Status.LOC_QP_OP_ERR),
            ({"length": 0, "sge_length": 0}, Status.LOC_QP_OP_ERR),
            ({"flags": WqeFlag.INLINE, "num_sge": 0, "length": 5}, Status.LOC_QP_OP_ERR),
            ({"flags": WqeFlag.IMMEDIATE}, Status.LOC_QP_OP_ERR),
            ({"flags": WqeFlag.SOLICITED}, Status.LOC_QP_OP_ERR),
            ({"dest_mac": 0x01_00_5E_00_00_01}, Status.LOC_QP_OP_ERR),
            ({"granule_log2": 17}, Status.LOC_QP_OP_ERR),
            ({"sge_length": 4}, Status.LOC_QP_OP_ERR),
            ({"sge_lkey": 0x25B}, Status.LOC_PROT_ERR),
            ({"sge_lkey": 0x55A}, Status.LOC_PROT_ERR),
            ({"sge_addr": 0x0F_FFFF}, Status.LOC_PROT_ERR),
            ({"sge_addr": 0x10_3FFC}, Status.LOC_PROT_ERR),
            ({"sge_lkey": 0x15A, "sge_addr": 0x20_0000}, Status.LOC_PROT_ERR),  # not mapped
            ({"sge_lkey": 0x35A}, Status.LOC_PROT_ERR),  # no LOCAL_WRITE
            ({"sge_lkey": 0x45A}, Status.LOC_PROT_ERR),  # another PD
            ({"sge_lkey": 0x65A}, Status.LOC_PROT_ERR),  # granules of 128 octets
        ],
    )
    def test_7_2_wqe_that_fails(self, bench: Bench, fields: dict[str, int], status: Status) -> None:
        """It takes no MSN, no tracker and, in the end, no slot."""
        host = bench.host
        host.add_qp(QPN, port=PORT, sq_wide=1)
        mapped = {"mapped": 1, "map_base": 1024}
        host.add_region(3, 4096, access=Access.REMOTE_WRITE | Access.REMOTE_READ, **mapped)
        host.add_region(4, 4096, pd=2, **mapped)
        host.add_region(6, 4096, granule_log2=7, **mapped)
        post_read(bench, 5, 0, **fields)
        post_read(bench, 5)
        assert [item.msn for item in sent(bench)] == [1]
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.msn, cqe.opcode) == (status, 0, 0, 0x1)
        assert host.get(Register.OPEN_MESSAGES) == 1

    @pytest.mark.parametrize("log2", [6, 16])
    def test_7_2_granule_of_a_read_is_not_used(self, bench: Bench, log2: int) -> None:
        """A Read of many segments, with a granule that none of them could hold."""
        post_read(bench, 5000, granule_log2=log2)
        assert len(frames(bench)) == 1

    def test_p24_holds_its_slot_until_it_completes(self, bench: Bench) -> None:
        host = bench.host
        host.add_cq(1, log2=1)
        host.modify_qp(QPN, send_cq=1)
        for number in range(3):
            post_read(bench, 5, 64 * number)
        assert [item.msn for item in sent(bench)] == [1, 2]
        bench.gets(Counter.RX_PLACED, answer(bench, 0, 5, 2, 64, 5))
        assert frames(bench) == []
        assert bench.only_cqe(1).msn == 2
        assert [item.msn for item in sent(bench)] == [3]

    def test_waiting_read_of_a_qp_that_is_reset(self, bench: Bench) -> None:
        """It is forgotten, and its slot given back."""
        host = bench.host
        host.add_cq(1, log2=1)
        host.modify_qp(QPN, send_cq=1)
        for msn in range(4):
            bench.receive(record(bench.mapped, 4096 + 512 * msn, 300, 0, b"x" * 64, msn))
        post_read(bench)
        assert frames(bench) == []
        host.modify_qp(QPN, state=QpState.RESET)
        host.modify_qp(QPN, state=QpState.RTS)
        bench.advance_ticks(TIMEOUT)
        assert frames(bench) == []
        host.sqs[QPN].index = 0
        for number in range(2):
            post_read(bench, 5, 64 * number)
        assert len(frames(bench)) == 2

    def test_4_6_closed_by_whoever_resets_the_qp(self, bench: Bench) -> None:
        host = bench.host
        post_read(bench)
        assert len(frames(bench)) == 1
        bench.receive(answer(bench, 0, CUT))
        host.modify_qp(QPN, state=QpState.RESET)
        assert host.poll_all() == []
        host.close_messages(CloseTarget.QP, QPN)
        cqe = bench.only_cqe()
        assert (cqe.opcode, cqe.status, cqe.valid) == (0x1, Status.PARTIAL, CUT)

    def test_4_6_closed_with_its_region(self, bench: Bench) -> None:
        post_read(bench)
        assert len(frames(bench)) == 1
        bench.host.close_messages(CloseTarget.REGION, 1)
        assert bench.host.poll_all() == []
        bench.host.close_messages(CloseTarget.REGION, 2)
        assert bench.only_cqe().status == Status.PARTIAL

    def test_8_1_read_of_a_failed_qp(self, bench: Bench) -> None:
        host = bench.host
        nowhere = host.add_region(3, 4096, dma_addr=0)
        post_read(bench)
        assert len(frames(bench)) == 1
        bench.receive(answer(bench, 0, CUT))
        bench.receive(record(nowhere, 0, 1, 0, b"x", 9))
        host.poll_all()
        bench.gets(Counter.DROP_QP_STATE, answer(bench, CUT, SIZE))
        bench.advance_ticks(TIMEOUT)
        cqe = bench.only_cqe()
        assert (cqe.opcode, cqe.status, cqe.flags) == (0x1, Status.GENERAL_ERR, 0)
        assert (cqe.valid, cqe.head_map, cqe.tail_map) == (0, 0, 0)
        assert bench.map_octets(bench.mapped, 1, 2) == f"{FILL:02x}" * 2

    def test_8_1_answer_that_memory_does_not_take(self, bench: Bench) -> None:
        host = bench.host
        host.add_events()
        sink = host.add_region(
            3, 4096, base_to=0x40_0000, mapped=1, map_base=1024, dma_addr=0, map_addr=0
        )
        post_read(bench, 5, sge_lkey=sink.stag, sge_addr=sink.base_to)
        assert len(frames(bench)) == 1
        segment = answer(bench, 0, 5, size=5, stag=sink.stag, to=sink.base_to)
        bench.receive(segment)
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.flags) == (Status.GENERAL_ERR, 0, 0)
        assert host.poll_events() == [(EventType.DMA_WRITE, QPN)]

    def test_msn_counts_reads(self, bench: Bench) -> None:
        for opcode in (0x3, 0x1, 0x0, 0xC):
            if opcode == 1:
                post_read(bench, 5)
            else:
                bench.host.post_send(QPN, opcode=opcode)
        assert [item.msn for item in sent(bench)] == [1, 2, 0, 3]


class TestTwoNics:
    """A Read from one NIC of the other's memory."""

    @pytest.mark.parametrize("version", [4, 6])
    @pytest.mark.parametrize("loss", [0.0, 0.1, 0.4])
    def test_with_loss(self, loss: float, version: int) -> None:
        """Valid granules hold the responder's octets, the others what was there before."""
        seed = int(100 * loss) + version
        rng = random.Random(seed)
        one, two = make_bench(map_bits=65536), make_bench()
        two.host.start(PEER_MAC, PEER_IPV4, 1500, PEER_IPV6)
        one.host.add_qp(QPN, port=PORT, sq_wide=1)
        size = 100_000
        source = two.host.add_region(3, size, base_to=0x30_0007)
        data = rng.randbytes(size)
        two.memory.write(source.address, data)
        sink = one.host.add_region(3, 1 << 17, base_to=0x40_0000, mapped=1, map_base=4096)
        offset = 64 * 8 * 5 + rng.randrange(64)
        flags = WqeFlag.IPV6 if version == 6 else 0
        one.host.post_send(
            QPN,
            payload=sink,
            opcode=0x1,
            flags=flags,
            length=size,
            sge_addr=sink.base_to + offset,
            remote_stag=source.stag,
            remote_to=source.base_to,
            dest_port=PORT,
            dest_ipv6=PEER_IPV6,
        )
        (read,) = frames(one)
        two.nic.receive(read)
        for frame in frames(two):
            if rng.random() >= loss:
                one.nic.receive(frame)
        one.advance_ticks(TIMEOUT)
        cqe = one.only_cqe()
        one.check_map(sink, offset, data, cqe, seed)
        assert (loss == 0) == (cqe.valid == size), f"seed {seed}"
        one.host.check_sum()
        two.host.check_sum()

    def test_requests_cross(self) -> None:
        """Each reads of the other while all trackers are taken: nobody waits for ever."""
        benches = make_bench(n_tracker=2), make_bench(n_tracker=2)
        one, two = benches
        two.host.start(PEER_MAC, PEER_IPV4)
        for mine, other, mac, address in (
            (one, two, PEER_MAC, PEER_IPV4),
            (two, one, MAC, IPV4),
        ):
            for number in range(8):
                post_read(
                    mine,
                    64,
                    64 * number,
                    dest_mac=mac,
                    dest_ip=address,
                    dest_port=PORT,
                    remote_stag=other.plain.stag,
                    remote_to=other.plain.base_to,
                )
        busy = True
        while busy:
            busy = False
            for mine, other in ((one, two), (two, one)):
                frame = mine.nic.next_frame()
                if frame is not None:
                    busy = True
                    other.nic.receive(frame)
        for mine in benches:
            assert [cqe.status for cqe in mine.host.poll_all()] == [Status.SUCCESS] * 8


def test_frame_of_a_request_is_what_the_wire_format_says() -> None:
    """The responder of these tests and the requester speak of the same octets."""
    bench = make_bench()
    post_read(bench)
    (frame,) = frames(bench)
    body = Segment.from_datagram(UdpFrame.decode(frame).payload)
    assert ReadRequest.decode(body.payload) == ReadRequest(
        sink_stag=bench.mapped.stag,
        sink_to=bench.mapped.base_to + AT,
        size=SIZE,
        source_stag=0x7788_99AA,
        source_to=0x0102_0304_0506_0708,
    )
    assert frame_of(body, PORT)[42:] == frame[42:]
