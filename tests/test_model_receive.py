"""The reference NIC, from verdict to completion: sections 3 to 6 of ``docs/device.md``.

Expectations are worked out by hand. Tests named after a pitfall (``p9``) are of a fault that such
devices are known for.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from tests.host import (
    ALL_OPCODES,
    PEER_IPV4,
    PEER_PORT,
    Region,
    frame_of,
    record,
)
from tests.model_bench import (
    CUT,
    DATA,
    FILL,
    MAPPED,
    MLEN,
    OFFSET,
    PORT,
    QPN,
    RECEIVE,
    TIMEOUT,
    Bench,
    first_half,
    make_bench,
    pattern,
    second_half,
    send,
    write,
)
from uwarp.contract import (
    Access,
    Counter,
    CqeFlag,
    Doorbell,
    QpState,
    Register,
    Status,
)
from uwarp.wire import Opcode, Segment

ONES = (1 << 128) - 1
SENDER_A = "00000000000000000000ffff0a000002"
SENDER_B = "00000000000000000000ffff0a000003"
SENDER_C = "fd000000000000000000000000000002"


@pytest.fixture
def bench() -> Bench:
    return make_bench()


class TestQueuePair:
    """Section 3, what is checked of the QP."""

    @pytest.mark.parametrize("state", range(16))
    def test_state(self, bench: Bench, state: int) -> None:
        bench.host.modify_qp(QPN, state=state)
        good = state in (2, 3)
        counter = Counter.RX_PLACED if good else Counter.DROP_QP_STATE
        bench.gets(counter, write(bench.plain, 0, b"x"))

    def test_opcodes(self, bench: Bench) -> None:
        host = bench.host
        host.post_receive(QPN, bench.plain.base_to, 64, bench.plain.stag)
        segments = {
            0x0: write(bench.plain, 0, b"x"),
            0x3: send(b"x", 1),
            0x5: send(b"x", 2, Opcode.SEND_SOLICITED),
            0xC: record(bench.plain, 0, 1, 0, b"x", 3),
            0xE: send(b"x", 4, Opcode.SEND_IMMEDIATE),
        }
        for opcode, segment in segments.items():
            host.modify_qp(QPN, opcodes=ALL_OPCODES & ~(1 << opcode))
            bench.gets(Counter.DROP_QP_OPCODE, segment)
            host.modify_qp(QPN, opcodes=1 << opcode)
            bench.gets(Counter.RX_PLACED, segment)
            host.post_receive(QPN, bench.plain.base_to, 64, bench.plain.stag)
        host.modify_qp(QPN, opcodes=0, state=QpState.INIT)
        bench.gets(Counter.DROP_QP_STATE, write(bench.plain, 0, b"x"))

    @pytest.mark.parametrize("row", [8, 63, 0xFFFF])
    def test_p39_qpn_beyond_the_table(self, bench: Bench, row: int) -> None:
        bench.host.add_port(PORT, row)
        bench.gets(Counter.DROP_QP_STATE, write(bench.plain, 0, b"x"))

    @pytest.mark.parametrize(
        "peer, mask, port, heard",
        [
            (0, 0, 0, "ABC"),
            ("1" * 32, 0, 0, "ABC"),
            (SENDER_A, ONES, 0, "A"),
            (SENDER_A, ONES, PEER_PORT, "A"),
            (SENDER_A, ONES, PEER_PORT + 1, ""),
            (SENDER_A, ONES ^ 1, 0, "AB"),
            ("00000000000000000000ffff0a0000ff", ONES ^ 0xFF, PEER_PORT, "AB"),
            ("00000000000000000000ffff00000000", ONES >> 32 << 32, 0, "AB"),
            (SENDER_B, ONES, 0, "B"),
            (SENDER_C, ONES, 0, "C"),
            (SENDER_C, ONES >> 64 << 64, 0, "C"),
            ("0000000000000000000000000a000002", ONES, 0, ""),
            ("0000000000000000000000000a000002", 0xFFFF_FFFF, 0, "A"),
            ("80000000000000000000000000000000", 1 << 127, 0, "C"),
            (0, 0, PEER_PORT, "ABC"),
            (0, 0, PEER_PORT ^ 1 << 15, ""),
            (0, 1 << 127, 0, "AB"),
        ],
    )
    def test_peer_filter(
        self, bench: Bench, peer: str | int, mask: int, port: int, heard: str
    ) -> None:
        """Senders 10.0.0.2, 10.0.0.3 and an IPv6 one, whose address begins with a 1 bit."""
        peer = int(peer, 16) if isinstance(peer, str) else peer
        bench.host.modify_qp(QPN, peer_ip=peer, peer_mask=mask, peer_port=port)
        segment = write(bench.plain, 0, b"x")
        for name, fields in {
            "A": {},
            "B": {"source_ip": 0x0A000003},
            "C": {"source_ip": int(SENDER_C, 16), "ip_version": 6},
        }.items():
            counter = Counter.RX_PLACED if name in heard else Counter.DROP_PEER
            bench.gets(counter, segment, **fields)

    def test_peer_filter_stands_between_state_and_opcode(self, bench: Bench) -> None:
        segment = write(bench.plain, 0, b"x")
        bench.host.modify_qp(QPN, peer_port=1, opcodes=0)
        bench.gets(Counter.DROP_PEER, segment)
        bench.host.modify_qp(QPN, state=QpState.INIT)
        bench.gets(Counter.DROP_QP_STATE, segment)
        bench.host.modify_qp(QPN, state=QpState.RTS, peer_port=0)
        bench.gets(Counter.DROP_QP_OPCODE, segment)

    def test_ipv6_sender_in_the_cqe(self, bench: Bench) -> None:
        fields = {"ip_version": 6, "vlan_tags": (0x8100_0005,)}
        bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 5, 0, b"hello"), **fields)
        assert bench.only_cqe().source_ip == 0xFD00_0000_0000_0000_0000_0000_0000_0002


class TestSend:
    """Section 3, Send."""

    def post(self, bench: Bench, length: int = 64, offset: int = 0) -> None:
        bench.host.post_receive(QPN, bench.plain.base_to + offset, length, bench.plain.stag)

    def test_send(self, bench: Bench) -> None:
        self.post(bench, 100, offset=5)
        bench.nic.advance(0x1_2345_6789)
        bench.gets(Counter.RX_PLACED, send(b"hello", msn=7))
        assert bench.octets(bench.plain, 4, 7) == b"\xa5hello\xa5"
        assert vars(bench.only_cqe()) == {
            "opcode": 3,
            "status": 0,
            "flags": 1,
            "qpn": 3,
            "wqe_index": 0,
            "time_high": 0x1_2345_6789 >> 31,
            "valid": 5,
            "msn": 7,
            "mlen": 5,
            "base_to": 0,
            "stag": 0,
            "immediate": 0,
            "source_ip": 0xFFFF_0A00_0002,
            "source_port": 4791,
            "head_map": 0,
            "tail_map": 0,
            "time_low": 0x2345_6789,
            "phase": 1,
        }

    @pytest.mark.parametrize(
        "opcode, fields, flags, immediate",
        [
            (Opcode.SEND_SOLICITED, {}, CqeFlag.SOLICITED, 0),
            (Opcode.SEND_IMMEDIATE, {"immediate": 7}, 0, 0),
            (
                Opcode.SEND_IMMEDIATE,
                {"immediate": 0xFFFFFFFF, "immediate_valid": True},
                CqeFlag.IMMEDIATE,
                0xFFFFFFFF,
            ),
            (
                Opcode.SEND_IMMEDIATE,
                {"immediate": 8, "immediate_valid": True, "solicited": True},
                CqeFlag.IMMEDIATE | CqeFlag.SOLICITED,
                8,
            ),
        ],
    )
    def test_flags(
        self,
        bench: Bench,
        opcode: Opcode,
        fields: dict[str, int],
        flags: CqeFlag,
        immediate: int,
    ) -> None:
        self.post(bench)
        bench.gets(Counter.RX_PLACED, send(b"hello", 1, opcode, **fields))
        cqe = bench.only_cqe()
        assert (cqe.opcode, cqe.flags, cqe.immediate) == (opcode, RECEIVE | flags, immediate)
        assert cqe.valid == cqe.mlen == 5
        assert bench.octets(bench.plain, 0, 6) == b"hello\xa5"

    def test_queue_number(self, bench: Bench) -> None:
        self.post(bench)
        for qn in (1, 2, 3, 0xFFFFFFFF):
            bench.gets(Counter.DROP_UNTAGGED_QN, send(b"hello", qn=qn, mo=9))
        bench.gets(Counter.RX_PLACED, send(b"hello"))

    def test_lengths(self, bench: Bench) -> None:
        """MO + payload over MLEN, in more than 32 bits; then Sends of several datagrams into a
        receive that has no map."""
        self.post(bench)
        for mo, mlen in (1, 5), (0, 4), (0xFFFF_FFFF, 5), (0xFFFF_FFFF, 0xFFFF_FFFF):
            bench.gets(Counter.DROP_MESSAGE_LENGTH, send(b"hello", mo=mo, mlen=mlen))
        for mo, mlen in (0, 6), (1, 6), (59, 64):
            bench.gets(Counter.DROP_SEND_SEGMENTED, send(b"hello", mo=mo, mlen=mlen))
        bench.gets(Counter.RX_PLACED, send(b"hello"))

    def test_duplicate_is_late(self, bench: Bench) -> None:
        for _ in range(3):
            self.post(bench)
        bench.gets(Counter.RX_PLACED, send(b"hello", 1))
        bench.gets(Counter.DROP_LATE, send(b"hello", 1))
        bench.gets(Counter.DROP_LATE, send(b"other", 1, Opcode.SEND_SOLICITED))
        bench.gets(Counter.RX_PLACED, send(b"hello", 1), source_port=4792)
        bench.gets(Counter.RX_PLACED, send(b"hello", 2))

    def test_p30_no_receive_posted(self, bench: Bench) -> None:
        bench.gets(Counter.DROP_NO_RECEIVE, send(b"hello"))
        self.post(bench)
        bench.gets(Counter.RX_PLACED, send(b"hello"))
        bench.gets(Counter.DROP_NO_RECEIVE, send(b"hello", 2))

    def test_p24_cq_full(self, bench: Bench) -> None:
        """The receive stays posted. DROP_NO_RECEIVE is found first."""
        host = bench.host
        host.add_cq(0, log2=1)
        for msn in (1, 2):
            bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 1, 0, b"x", msn))
        bench.gets(Counter.DROP_NO_RECEIVE, send(b"hello"))
        self.post(bench)
        bench.gets(Counter.DROP_CQ_FULL, send(b"hello"))
        assert len(host.poll_all()) == 2
        bench.gets(Counter.RX_PLACED, send(b"hello"))
        assert bench.only_cqe().wqe_index == 0

    def test_p30_receive_too_short(self, bench: Bench) -> None:
        """The receive stays posted; MLEN equal to its length fits."""
        self.post(bench, 5)
        bench.gets(Counter.DROP_RECEIVE_SHORT, send(b"hello!", 1))
        bench.gets(Counter.RX_PLACED, send(b"hello", 1))
        assert bench.only_cqe().wqe_index == 0

    def test_p3_no_payload(self, bench: Bench) -> None:
        """Takes a receive whose SGE is not looked at."""
        bench.host.post_receive(QPN, 0, 0xFFFF_FFFF, 0xDEAD_BEEF)
        bench.gets(Counter.RX_PLACED, send(b""))
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.mlen) == (Status.SUCCESS, 0, 0)

    def test_p39_sge_not_allowed(self, bench: Bench) -> None:
        """Each wrong SGE uses its receive up, with an error; then a right one."""
        host = bench.host
        plain = bench.plain
        base, stag = plain.base_to, plain.stag
        host.add_region(4, 4096, pd=2)
        host.add_region(5, 4096, access=Access.REMOTE_WRITE)
        host.add_region(6, 4096, valid=0)
        wrong = [
            (base, 64, stag ^ 1),
            (base, 64, 0x00),
            (base, 64, 16 << 8 | 0x5A),
            (base, 64, 0xFFFFFF5A),
            (base - 1, 64, stag),
            (base + 16384 - 63, 64, stag),
            (base + 16384, 5, stag),
            (0xFFFF_FFFF_FFFF_FFF0, 0x20, stag),
            (0x10_0000, 64, 0x45A),
            (0x10_0000, 64, 0x55A),
            (0x10_0000, 64, 0x65A),
        ]
        for index, (addr, length, lkey) in enumerate(wrong):
            host.post_receive(QPN, addr, length, lkey)
            bench.gets(Counter.DROP_RECEIVE_PROTECTION, send(b"hello", 1))
            cqe = bench.only_cqe()
            assert (cqe.status, cqe.valid, cqe.wqe_index) == (Status.LOC_PROT_ERR, 0, index)
            assert (cqe.opcode, cqe.qpn, cqe.flags) == (Opcode.SEND, QPN, RECEIVE)
        host.post_receive(QPN, base + 16384 - 5, 5, stag)
        bench.gets(Counter.RX_PLACED, send(b"hello", 1))
        assert bench.octets(plain, 16379) == b"hello"
        assert bench.only_cqe().wqe_index == len(wrong)

    def test_p39_sge_of_no_octets(self, bench: Bench) -> None:
        """Not checked, and too short. It stays posted."""
        bench.host.post_receive(QPN, 0, 0, 0)
        bench.gets(Counter.DROP_RECEIVE_SHORT, send(b"hello"))
        bench.gets(Counter.RX_PLACED, send(b"", 2))

    def test_protection_is_found_before_short(self, bench: Bench) -> None:
        bench.host.post_receive(QPN, 0, 1, 0)
        bench.gets(Counter.DROP_RECEIVE_PROTECTION, send(b"hello"))

    def test_wqe_that_cannot_be_read(self, bench: Bench) -> None:
        bench.host.modify_qp(QPN, rq_addr=1)
        for _ in range(2):
            self.post(bench)
        bench.gets(Counter.DROP_RECEIVE_PROTECTION, send(b"hello"))
        assert bench.only_cqe().status == Status.LOC_PROT_ERR
        bench.gets(Counter.RX_PLACED, send(b"", 2))
        bench.gets(Counter.DROP_NO_RECEIVE, send(b"", 3))

    def test_p24_receive_ring_wraps(self, bench: Bench) -> None:
        """Sixteen entries; also where the 32-bit index wraps, which is set here by hand."""
        qp = bench.nic._tables.qps[QPN]
        qp.rq_producer = qp.rq_consumer = bench.host.rqs[QPN].index = 0xFFFF_FFF0
        for number in range(40):
            self.post(bench, offset=64 * number)
            bench.gets(Counter.RX_PLACED, send(bytes([number]), number))
            cqe = bench.only_cqe()
            assert cqe.wqe_index == (0xFFF0 + number) % 65536
            assert bench.octets(bench.plain, 64 * number, 2) == bytes([number, FILL])


class TestWrite:
    """Section 3, Write, and the checks that it shares with Write-Record."""

    def test_placed_without_completion_or_map(self, bench: Bench) -> None:
        bench.gets(Counter.RX_PLACED, write(bench.mapped, 64, bytes(128)))
        assert bench.octets(bench.mapped, 63, 130) == b"\xa5" + bytes(128) + b"\xa5"
        assert bench.host.poll_all() == []
        bench.receive(first_half(bench.mapped))
        bench.advance_ticks(TIMEOUT)
        assert bench.only_cqe().valid == CUT

    def test_p28_no_payload(self, bench: Bench) -> None:
        writes = len(bench.memory.writes)
        bench.gets(Counter.RX_PLACED, Segment(opcode=Opcode.WRITE, stag=0xFFFFFFFF, to=2**64 - 1))
        assert len(bench.memory.writes) == writes and bench.host.poll_all() == []

    @pytest.mark.parametrize("opcode", [Opcode.WRITE, Opcode.WRITE_RECORD])
    def test_p29_stag(self, bench: Bench, opcode: Opcode) -> None:
        """In order: index, valid, key, protection domain, access."""
        host = bench.host
        host.add_region(0, 4096, valid=0, key=0)
        host.add_region(4, 4096, pd=2, access=0)
        host.add_region(5, 4096, access=Access.LOCAL_WRITE | Access.REMOTE_READ)
        expected = {
            0x0000_0000: Counter.DROP_STAG_INVALID,
            0x0000_105A: Counter.DROP_STAG_INVALID,
            0xFFFF_FF5A: Counter.DROP_STAG_INVALID,
            0x0000_065A: Counter.DROP_STAG_INVALID,
            0x0000_045B: Counter.DROP_STAG_KEY,
            0x0000_025B: Counter.DROP_STAG_KEY,
            0x0000_045A: Counter.DROP_STAG_PD,
            0x0000_055A: Counter.DROP_STAG_ACCESS,
        }
        for stag, counter in expected.items():
            for to in (0x10_0000, 0, 2**64 - 1):
                bench.gets(
                    counter, Segment(opcode=opcode, stag=stag, to=to, mlen=3, payload=b"abc")
                )

    def test_p29_stale_key(self, bench: Bench) -> None:
        host = bench.host
        region = host.add_region(4, 4096, key=0x11)
        bench.gets(Counter.RX_PLACED, write(region, 0, b"old"))
        again = host.add_region(4, 4096, key=0x12)
        bench.gets(Counter.DROP_STAG_KEY, write(region, 0, b"old"))
        bench.gets(Counter.RX_PLACED, write(again, 0, b"new"))
        assert bench.octets(again, 0, 4) == b"new\xa5"

    @pytest.mark.parametrize("opcode", [Opcode.WRITE, Opcode.WRITE_RECORD])
    @pytest.mark.parametrize(
        "base_to, length",
        [
            (0, 4096),
            (0x10_0000, 1),
            (0xFFFF_FF80, 4096),
            (2**64 - 4096, 4096),
            (2**63 - 7, 4096),
        ],
    )
    def test_p27_bounds(self, bench: Bench, opcode: Opcode, base_to: int, length: int) -> None:
        """At both ends and one past them, across 2^32, up to 2^64, with one octet and more."""
        region = bench.host.add_region(4, length, base_to=base_to)
        msn = itertools.count(1)

        def segment(to: int, octets: int) -> Segment:
            payload = b"\x77" * octets
            return Segment(
                opcode=opcode,
                stag=region.stag,
                to=to,
                msn=next(msn) % 2**32 if opcode is Opcode.WRITE_RECORD else 0,
                mlen=octets if opcode is Opcode.WRITE_RECORD else 0,
                payload=payload,
            )

        end = base_to + length
        bench.gets(Counter.RX_PLACED, segment(base_to, 1))
        bench.gets(Counter.RX_PLACED, segment(end - 1, 1))
        past = Counter.DROP_TO_WRAP if end == 2**64 else Counter.DROP_BOUNDS
        bench.gets(past, segment(end - 1, 2))
        if length > 1:
            bench.gets(past, segment(end - 9, 10))
        if base_to:
            bench.gets(Counter.DROP_BOUNDS, segment(base_to - 1, 1))
            bench.gets(Counter.DROP_BOUNDS, segment(base_to - 1, 2))
        if end < 2**64:
            bench.gets(Counter.DROP_BOUNDS, segment(end, 1))
            bench.gets(Counter.DROP_BOUNDS, segment(2**64 - 1, 1))
            bench.gets(Counter.DROP_TO_WRAP, segment(2**64 - 1, 2))
        expected = bytearray([FILL]) * length
        expected[0] = expected[-1] = 0x77
        assert bench.octets(region) == expected

    def test_p27_region_of_more_than_4_gib(self, bench: Bench) -> None:
        """8 GiB at a DMA address such that TO 2^32 + 64 lies at the window's start."""
        window = bench.memory.allocate(4096)
        bench.host.add_region(
            4, 1 << 33, base_to=0, dma_addr=(window - (1 << 32) - 64) % 2**64, mapped=0
        )
        region = Region(0x45A, 0, 1 << 33, 0, 0)
        bench.gets(Counter.RX_PLACED, write(region, (1 << 32) + 64, b"high"))
        assert bench.memory.read(window, 5) == b"high\xa5"
        bench.gets(Counter.RX_PLACED, record(region, (1 << 32) + 100, 4, 0, b"more"))
        assert bench.memory.read(window + 36, 4) == b"more"
        assert bench.only_cqe().base_to == 0x1_0000_0064
        bench.gets(Counter.DROP_BOUNDS, write(region, (1 << 33) - 3, b"high"))


class TestWriteRecord:
    """Section 3, Write-Record."""

    def test_single(self, bench: Bench) -> None:
        """One CQE, without flag MAPPED although the region is."""
        segment = replace(
            record(bench.mapped, 7, 5, 0, b"hello", msn=9),
            immediate=0xC001D00D,
            immediate_valid=True,
            solicited=True,
        )
        bench.gets(Counter.RX_PLACED, segment)
        assert bench.octets(bench.mapped, 6, 7) == b"\xa5hello\xa5"
        assert bench.host.get(Register.OPEN_MESSAGES) == 0
        cqe = bench.only_cqe()
        assert vars(cqe) == {
            "opcode": 0xC,
            "status": 0,
            "flags": 0b0000111,
            "qpn": 3,
            "wqe_index": 0,
            "time_high": 0,
            "valid": 5,
            "msn": 9,
            "mlen": 5,
            "base_to": 0x10_0007,
            "stag": 0x25A,
            "immediate": 0xC001D00D,
            "source_ip": 0xFFFF_0A00_0002,
            "source_port": 4791,
            "head_map": 0,
            "tail_map": 0,
            "time_low": 0,
            "phase": 1,
        }
        bench.gets(Counter.DROP_LATE, segment)
        assert bench.map_octets(bench.mapped, 0, 33) == "a5" * 33

    @pytest.mark.parametrize("first", [0, 700])
    def test_p2_every_length_and_alignment(self, bench: Bench, first: int) -> None:
        """Exactly the payload's octets are written, whatever its length and offset."""
        region = bench.plain
        for length in range(first, first + (700 if first == 0 else 739)):
            offset = 64 + length % 64 + length % 7
            data = pattern(length, length)
            bench.gets(Counter.RX_PLACED, record(region, offset, length, 0, data, length))
            expected = bytes([FILL]) * 64 + data + bytes([FILL]) * 64
            assert bench.octets(region, offset - 64, length + 128) == expected, length
            assert bench.only_cqe().valid == length
            bench.memory.write(region.address + offset, bytes([FILL]) * length)

    def test_message_length(self, bench: Bench) -> None:
        """Found before anything of the STag, in more than 32 bits."""
        region = replace(bench.plain, stag=0)
        for mo, mlen in (0, 4), (1, 5), (5, 4), (0xFFFF_FFFF, 5), (0xFFFF_FFFF, 0xFFFF_FFFF):
            bench.gets(Counter.DROP_MESSAGE_LENGTH, record(region, 0, mlen, mo, b"hello"))

    def test_p27_base_and_bounds_of_the_whole_message(self, bench: Bench) -> None:
        """It is the message that must be inside the region, not the segment alone."""
        region = bench.plain
        bench.gets(Counter.DROP_BOUNDS, record(region, 16384 - 100, 101, 0, b"hello"))
        bench.gets(Counter.DROP_BOUNDS, record(region, -1, 100, 64, b"hello"))
        bench.gets(Counter.RX_PLACED, record(region, 16384 - 100, 100, 64, b"hello", 2))
        wrap = replace(record(region, 0, 100, 50, b"hello"), to=49)
        bench.gets(Counter.DROP_TO_WRAP, wrap)
        wrap = replace(record(region, 0, 100, 50, b"hello"), to=2**64 - 49)
        bench.gets(Counter.DROP_TO_WRAP, wrap)
        bench.gets(Counter.DROP_BOUNDS, replace(wrap, to=2**64 - 50))
        top = bench.host.add_region(4, 4096, base_to=2**64 - 4096)
        bench.gets(Counter.RX_PLACED, record(top, 3996, 100, 95, b"hello", 3))
        assert bench.octets(top, 4090, 6) == b"\xa5hello"

    def test_p28_zero_length(self, bench: Bench) -> None:
        """STag and TO are not checked, no octet is placed, and it completes, once."""
        segment = Segment(
            opcode=Opcode.WRITE_RECORD, stag=0xFFFF_FFFF, to=0xFFFF_FFFF_FFFF_FFFF, msn=5
        )
        bench.gets(Counter.RX_PLACED, segment)
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.flags, cqe.valid, cqe.mlen, cqe.msn) == (0, RECEIVE, 0, 0, 5)
        assert (cqe.base_to, cqe.stag) == (0xFFFF_FFFF_FFFF_FFFF, 0xFFFF_FFFF)
        bench.gets(Counter.DROP_LATE, segment)

    def test_unmapped_region_completes_each_datagram(self, bench: Bench) -> None:
        """HEAD, none, TAIL; nothing is remembered, so that a duplicate completes again."""
        region = bench.plain
        parts = [(0, 64), (64, 64), (128, 72)]
        for mo, octets in [parts[2], parts[1], parts[0], parts[1]]:
            data = DATA[mo : mo + octets]
            bench.gets(Counter.RX_PLACED, record(region, 3, 200, mo, data))
        assert bench.octets(region, 2, 202) == b"\xa5" + DATA[:200] + b"\xa5"
        cqes = bench.host.poll_all()
        segment = CqeFlag.RECEIVE | CqeFlag.SEGMENT
        assert [(cqe.flags, cqe.valid, cqe.base_to, cqe.mlen) for cqe in cqes] == [
            (segment | CqeFlag.TAIL, 72, 0x20_0083, 200),
            (segment, 64, 0x20_0043, 200),
            (segment | CqeFlag.HEAD, 64, 0x20_0003, 200),
            (segment, 64, 0x20_0043, 200),
        ]
        assert {cqe.status for cqe in cqes} == {Status.SUCCESS}

    def test_no_tracker_left(self, bench: Bench) -> None:
        """The fifth message completes by the datagram; a tracker that came free serves the next."""
        for msn in range(1, 6):
            part = record(bench.mapped, 1024 * msn, 200, 0, DATA[:128], msn)
            bench.gets(Counter.RX_PLACED, part)
        assert bench.host.get(Register.OPEN_MESSAGES) == 4
        cqe = bench.only_cqe()
        assert (cqe.msn, cqe.flags) == (5, RECEIVE | CqeFlag.SEGMENT | CqeFlag.HEAD)
        bench.gets(Counter.RX_PLACED, record(bench.mapped, 2048, 200, 128, DATA[128:200], 2))
        assert bench.only_cqe().msn == 2
        bench.gets(Counter.RX_PLACED, record(bench.mapped, 5120, 200, 128, DATA[128:200], 5))
        assert bench.host.poll_all() == []
        bench.advance_ticks(TIMEOUT)
        # Message 5 took tracker 1, which message 2 had left.
        assert [cqe.msn for cqe in bench.host.poll_all()] == [1, 5, 3, 4]

    def test_mismatch(self, bench: Bench) -> None:
        """A segment that contradicts its open message does not even keep it open."""
        other = bench.host.add_region(4, 16384, base_to=0x10_0000)
        bench.receive(first_half(bench.mapped))
        good = second_half(bench.mapped)
        bench.advance_ticks(TIMEOUT - 1)
        for wrong in (
            replace(good, stag=other.stag),
            replace(good, to=good.to + 64),
            replace(good, mo=good.mo - 64),
            replace(good, mlen=MLEN + 1),
            replace(good, mlen=0, mo=0, payload=b""),
            record(bench.mapped, 4096, 5, 0, b"hello"),
        ):
            bench.gets(Counter.DROP_RECORD_MISMATCH, wrong)
        bench.advance_ticks(1)
        assert bench.only_cqe().status == Status.PARTIAL

    def test_p24_cq_full(self, bench: Bench) -> None:
        """A tracker holds its slot: others find the CQ full, its own segments do not."""
        host = bench.host
        host.add_cq(0, log2=1)
        bench.gets(Counter.RX_PLACED, first_half(bench.mapped, 1))
        bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 5, 0, b"hello", 2))
        bench.gets(Counter.DROP_CQ_FULL, record(bench.plain, 0, 5, 0, b"other", 3))
        bench.gets(Counter.DROP_CQ_FULL, record(bench.plain, 0, 5, 1, b"othe", 4))
        bench.gets(Counter.DROP_CQ_FULL, record(bench.mapped, 4096, 200, 0, DATA[:64], 5))
        bench.gets(Counter.DROP_CQ_FULL, Segment(opcode=Opcode.WRITE_RECORD, msn=6))
        bench.gets(Counter.RX_PLACED, second_half(bench.mapped, 1))
        assert [cqe.msn for cqe in host.poll_all()] == [2, 1]
        bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 5, 0, b"other", 3))

    @pytest.mark.parametrize("fields", [{"recv_cq": 5}, {"recv_cq": 8}, {"recv_cq": 0xFFFF}])
    def test_cq_that_is_not_there(self, bench: Bench, fields: dict[str, int]) -> None:
        bench.host.modify_qp(QPN, **fields)
        bench.gets(Counter.DROP_CQ_FULL, first_half(bench.mapped))
        bench.gets(Counter.RX_PLACED, write(bench.plain, 0, b"x"))

    def test_p26_overlap_closes_the_older_message(self, bench: Bench) -> None:
        """A retransmission under a new MSN: the old one is partial, and done with, first."""
        bench.receive(first_half(bench.mapped, 1))
        bench.receive(second_half(bench.mapped, 2))
        cqe = bench.only_cqe()
        assert (cqe.msn, cqe.status, cqe.valid) == (1, Status.PARTIAL, CUT)
        assert (cqe.head_map, cqe.tail_map) == (0xF8, 0x01)
        assert bench.map_octets(bench.mapped, 0, 4) == "a5ffffa5"
        bench.gets(Counter.DROP_LATE, second_half(bench.mapped, 1))
        bench.gets(Counter.RX_PLACED, first_half(bench.mapped, 2))
        cqe = bench.only_cqe()
        assert (cqe.msn, cqe.status, cqe.valid) == (2, Status.SUCCESS, MLEN)

    def test_overlap_is_of_octets_in_one_region(self, bench: Bench) -> None:
        """Neighbours by the octet stay open; one octet in common closes, lowest tracker first."""
        other = bench.host.add_region(4, 16384, base_to=0x10_0000, mapped=1, map_base=1024)
        bench.receive(record(bench.mapped, 1000, 200, 0, DATA[:64], 1))
        bench.receive(record(bench.mapped, 1200, 200, 0, DATA[:64], 2))
        bench.receive(record(bench.mapped, 800, 200, 0, DATA[:64], 3))
        bench.receive(record(other, 1000, 200, 0, DATA[:64], 4))
        assert bench.host.poll_all() == []
        bench.receive(record(bench.mapped, 999, 202, 0, DATA[:202], 5))
        assert [(cqe.msn, cqe.status) for cqe in bench.host.poll_all()] == [
            (1, Status.PARTIAL),
            (2, Status.PARTIAL),
            (3, Status.PARTIAL),
            (5, Status.SUCCESS),
        ]
        assert bench.host.get(Register.OPEN_MESSAGES) == 1

    def test_overlap_closes_even_if_the_cq_is_full(self, bench: Bench) -> None:
        bench.host.add_cq(0, log2=1)
        bench.receive(first_half(bench.mapped, 1))
        bench.receive(record(bench.plain, 0, 5, 0, b"hello", 2))
        bench.nic.receive(frame_of(first_half(bench.mapped, 3), PORT))
        assert bench.host.counter(Counter.DROP_CQ_FULL) == 1
        assert [cqe.msn for cqe in bench.host.poll_all()] == [2, 1]
        assert bench.host.get(Register.OPEN_MESSAGES) == 0

    def test_zero_length_overlaps_nothing(self, bench: Bench) -> None:
        bench.receive(first_half(bench.mapped, 1))
        bench.receive(record(bench.mapped, OFFSET + 10, 0, 0, b"", 2))
        assert bench.only_cqe().msn == 2

    def test_same_msn_from_elsewhere_is_another_message(self) -> None:
        """QP, source address, all 128 bits of it, and source port are part of the name."""
        bench = make_bench(n_tracker=8)
        bench.host.add_qp(QPN + 1, port=PORT + 1)
        for place, (port, fields) in enumerate(
            [
                (PORT, {}),
                (PORT + 1, {}),
                (PORT, {"source_ip": PEER_IPV4 + 1}),
                (PORT, {"source_port": PEER_PORT + 1}),
                (PORT, {"ip_version": 6}),
                (PORT, {"ip_version": 6, "source_ip": PEER_IPV4}),
            ]
        ):
            part = record(bench.mapped, 2048 * place, 200, 0, DATA[:64])
            bench.receive(part, port, **fields)
        assert bench.host.get(Register.OPEN_MESSAGES) == 6
        mapped = {"ip_version": 6, "source_ip": 0xFFFF_0000_0000 | PEER_IPV4}
        rest = record(bench.mapped, 0, 200, 64, DATA[64:200])
        bench.gets(Counter.RX_PLACED, rest, **mapped)
        assert bench.host.get(Register.OPEN_MESSAGES) == 5, "a mapped address is the IPv4 one"


class TestMap:
    """Section 4."""

    def test_4_2_to_4_4_whole_message(self, bench: Bench) -> None:
        segment = replace(
            first_half(bench.mapped, 7), immediate=0xBEEF, immediate_valid=True, solicited=True
        )
        bench.nic.advance(1 << 33)
        bench.receive(segment)
        assert bench.host.get(Register.OPEN_MESSAGES) == 1
        assert bench.host.poll_all() == []
        bench.memory.writes.clear()
        bench.receive(second_half(bench.mapped, 7))
        cqe = bench.only_cqe()
        assert bench.octets(bench.mapped, OFFSET - 1, MLEN + 2) == b"\xa5" + DATA + b"\xa5"
        assert bench.map_octets(bench.mapped, 0, 5) == "a5ffffa5a5"
        assert vars(cqe) == {
            "opcode": 0xC,
            "status": 0,
            "flags": 0b1000111,
            "qpn": 3,
            "wqe_index": 0,
            "time_high": 4,
            "valid": 1500,
            "msn": 7,
            "mlen": 1500,
            "base_to": 0x10_0000 + 202,
            "stag": 0x25A,
            "immediate": 0xBEEF,
            "source_ip": 0xFFFF_0A00_0002,
            "source_port": 4791,
            "head_map": 0xF8,
            "tail_map": 0x07,
            "time_low": 0,
            "phase": 1,
        }
        assert bench.host.get(Register.OPEN_MESSAGES) == 0

    def test_4_5_p23_order_of_writes(self, bench: Bench) -> None:
        """Payload, map, CQE, and of the CQE the word with the phase last."""
        bench.receive(first_half(bench.mapped))
        bench.memory.writes.clear()
        bench.receive(second_half(bench.mapped))
        ring = bench.host.cqs[0].address
        assert bench.memory.writes == [
            (bench.mapped.address + OFFSET + CUT, MLEN - CUT),
            (bench.mapped.map_address + 1, 2),
            (ring, 56),
            (ring + 56, 8),
        ]

    @pytest.mark.parametrize("half", [0, 1])
    def test_4_3_p22_half_is_lost(self, bench: Bench, half: int) -> None:
        bench.nic.advance(500)
        bench.receive((first_half, second_half)[half](bench.mapped))
        bench.nic.advance(TIMEOUT * 1024 - 501)
        assert bench.host.poll_all() == []
        bench.nic.advance(1)
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.flags, cqe.base_to) == (Status.PARTIAL, MAPPED, 0x10_00CA)
        assert cqe.time_low == TIMEOUT * 1024
        if half == 0:
            assert (cqe.valid, cqe.head_map, cqe.tail_map) == (1398, 0xF8, 0x01)
            assert bench.map_octets(bench.mapped, 0, 4) == "a5ffffa5"
        else:
            assert (cqe.valid, cqe.head_map, cqe.tail_map) == (102, 0x00, 0x06)
            assert bench.map_octets(bench.mapped, 0, 4) == "a50000a5"
        assert bench.host.counter(Counter.MESSAGES_PARTIAL) == 1
        bench.advance_ticks(10 * TIMEOUT)
        assert bench.host.poll_all() == []

    def test_4_3_timeouts_in_one_advance(self, bench: Bench) -> None:
        """Each closes at its own time: by due time, and of one tick the lowest tracker first."""
        bench.receive(record(bench.mapped, 0, 200, 0, DATA[:64], 1))
        bench.host.modify_qp(QPN, timeout=10)
        bench.receive(record(bench.mapped, 1024, 200, 0, DATA[:64], 2))
        bench.nic.advance(1023)
        bench.receive(record(bench.mapped, 2048, 200, 0, DATA[:64], 3))
        bench.nic.advance(1)
        bench.receive(record(bench.mapped, 3072, 200, 0, DATA[:64], 4))
        bench.nic.advance(1 << 20)
        assert [(cqe.msn, cqe.time_low) for cqe in bench.host.poll_all()] == [
            (2, 10 * 1024),
            (3, 10 * 1024),
            (4, 11 * 1024),
            (1, 100 * 1024),
        ]
        assert bench.nic.time == 1024 + (1 << 20)

    def test_4_3_duplicates_keep_a_message_open(self, bench: Bench) -> None:
        for _ in range(5):
            bench.gets(Counter.RX_PLACED, first_half(bench.mapped))
            bench.advance_ticks(TIMEOUT - 1)
        assert bench.host.poll_all() == []
        bench.advance_ticks(1)
        assert bench.only_cqe().valid == CUT

    def test_p22_duplicates_only(self, bench: Bench) -> None:
        """The same segment any number of times is one segment."""
        for _ in range(30):
            bench.gets(Counter.RX_PLACED, second_half(bench.mapped))
        bench.advance_ticks(TIMEOUT)
        assert bench.only_cqe().valid == 102

    @pytest.mark.parametrize("seed", range(12))
    def test_p22_any_order_duplicates_and_losses(self, bench: Bench, seed: int) -> None:
        """A message of 40 segments of one granule, against a set of granules kept here."""
        rng = random.Random(seed)
        offset = rng.randrange(2000)
        mlen = 40 * 64 - rng.randrange(64)
        data = rng.randbytes(mlen)
        edges = sorted({0, mlen, *range(64 - offset % 64, mlen, 64)})
        parts = list(itertools.pairwise(edges))
        kept = [part for part in parts if rng.random() < (1 if seed % 3 == 0 else 0.6)]
        arriving = kept + rng.choices(kept, k=20)
        rng.shuffle(arriving)
        if seed % 4 == 0:
            arriving = sorted(kept, reverse=True)
        for low, high in arriving:
            segment = record(bench.mapped, offset, mlen, low, data[low:high])
            bench.nic.receive(frame_of(segment, PORT))
        bench.advance_ticks(TIMEOUT)
        cqe = bench.only_cqe()
        granules = {(offset + low) // 64 for low, _ in kept}
        whole = len(kept) == len(parts)
        assert cqe.status == (Status.SUCCESS if whole else Status.PARTIAL), f"seed {seed}"
        assert cqe.valid == sum(high - low for low, high in kept), f"seed {seed}"
        number = sum(1 << granule for granule in granules)
        octets = number.to_bytes(256, "little")
        head, tail = offset // 64 // 8, (offset + mlen - 1) // 64 // 8
        assert (cqe.head_map, cqe.tail_map) == (octets[head], octets[tail]), f"seed {seed}"
        inner = octets[head + 1 : tail]
        assert bench.map_octets(bench.mapped, head, tail - head + 1) == (f"a5{inner.hex()}a5"), (
            f"seed {seed}"
        )
        for low, high in kept:
            assert bench.octets(bench.mapped, offset + low, high - low) == data[low:high]
        bench.host.check_sum()

    def test_p25_granule_split_by_a_foreign_sender(self, bench: Bench) -> None:
        """Octets 0 to 99 and 100 to 255: the granule of 64 to 127 was never in one segment."""
        bench.receive(record(bench.mapped, 0, 256, 0, DATA[:100]))
        bench.receive(record(bench.mapped, 0, 256, 100, DATA[100:256]))
        bench.advance_ticks(TIMEOUT)
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid) == (Status.PARTIAL, 192)
        assert cqe.head_map == cqe.tail_map == 0b1101
        assert bench.octets(bench.mapped, 0, 256) == DATA[:256]

    def test_p25_first_and_last_granule_the_same(self, bench: Bench) -> None:
        """Ten octets in one granule, in two segments: never valid. In one: a single."""
        bench.receive(record(bench.mapped, 70, 10, 0, DATA[:5]))
        bench.receive(record(bench.mapped, 70, 10, 5, DATA[5:10]))
        bench.advance_ticks(TIMEOUT)
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.head_map, cqe.tail_map) == (Status.PARTIAL, 0, 0, 0)

    def test_p25_overlapping_segments(self, bench: Bench) -> None:
        """0 to 127 and 64 to 255: granule 1 counts once."""
        bench.receive(record(bench.mapped, 0, 320, 0, DATA[:128]))
        bench.receive(record(bench.mapped, 0, 320, 64, DATA[64:256]))
        bench.advance_ticks(TIMEOUT)
        cqe = bench.only_cqe()
        assert (cqe.valid, cqe.head_map, cqe.tail_map) == (256, 0x0F, 0x0F)

    def test_p25_segments_without_payload_cover_nothing(self, bench: Bench) -> None:
        for mo in (0, 54, 64, 118, 200):
            bench.gets(Counter.RX_PLACED, record(bench.mapped, 10, 200, mo, b""))
        bench.advance_ticks(TIMEOUT)
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.head_map) == (Status.PARTIAL, 0, 0)

    def test_p25_neighbours_share_an_edge_granule(self, bench: Bench) -> None:
        """Octets 0 to 99 and 100 to 199: granule 1 is the last of one, the first of the other."""
        bench.receive(record(bench.mapped, 0, 100, 64, DATA[64:100], 1))
        bench.receive(record(bench.mapped, 100, 100, 28, DATA[128:200], 2))
        bench.advance_ticks(TIMEOUT)
        one, two = bench.host.poll_all()
        assert (one.msn, one.valid, one.head_map, one.tail_map) == (1, 36, 0b0010, 0b0010)
        assert (two.msn, two.valid, two.head_map, two.tail_map) == (2, 72, 0b1100, 0b1100)

    def test_p20_two_qps_in_turn_in_one_map_word(self, bench: Bench) -> None:
        """Messages of granules 0 to 3 and 4 to 11 grow in turn; each counts its own."""
        bench.host.add_qp(QPN + 1, port=PORT + 1)
        for granule in range(4):
            low = 64 * granule
            bench.receive(record(bench.mapped, 0, 256, low, DATA[low : low + 64]))
            for part in (low, low + 256):
                segment = record(bench.mapped, 256, 512, part, DATA[part : part + 64])
                bench.receive(segment, PORT + 1)
                bench.receive(segment, PORT + 1)
        one, two = bench.host.poll_all()
        assert (one.qpn, one.valid, one.head_map, one.tail_map) == (3, 256, 0x0F, 0x0F)
        assert (two.qpn, two.valid, two.head_map, two.tail_map) == (4, 512, 0xF0, 0x0F)

    def test_p21_late_segments_do_not_touch_the_next_message(self, bench: Bench) -> None:
        bench.receive(first_half(bench.mapped, 1))
        bench.advance_ticks(TIMEOUT)
        assert bench.only_cqe().msn == 1
        bench.receive(first_half(bench.mapped, 2))
        bench.gets(Counter.DROP_LATE, second_half(bench.mapped, 1))
        bench.advance_ticks(TIMEOUT - 1)
        bench.gets(Counter.DROP_LATE, first_half(bench.mapped, 1))
        bench.advance_ticks(1)
        cqe = bench.only_cqe()
        assert (cqe.msn, cqe.valid, cqe.tail_map) == (2, CUT, 0x01)

    def test_4_4_the_map_is_clear_for_the_next_message(self, bench: Bench) -> None:
        bench.receive(first_half(bench.mapped, 1))
        bench.receive(second_half(bench.mapped, 1))
        bench.receive(second_half(bench.mapped, 2))
        bench.advance_ticks(TIMEOUT)
        cqe = bench.host.poll_all()[1]
        assert (cqe.valid, cqe.head_map, cqe.tail_map) == (102, 0x00, 0x06)
        assert bench.map_octets(bench.mapped, 0, 4) == "a50000a5"

    @pytest.mark.parametrize("log2, granules", [(6, 16), (7, 8), (9, 2), (10, 1), (16, 1)])
    def test_4_2_granules(self, bench: Bench, log2: int, granules: int) -> None:
        """A message of 1024 octets at the region's start, in two parts of 512."""
        region = bench.host.add_region(
            4, 65536, base_to=0x40_0000, mapped=1, map_base=1024, granule_log2=log2
        )
        bench.receive(record(region, 0, 1024, 512, DATA[512:1024]))
        bench.receive(record(region, 0, 1024, 0, DATA[:512]))
        bench.advance_ticks(TIMEOUT)
        cqe = bench.only_cqe()
        if granules == 1:
            assert (cqe.status, cqe.valid, cqe.head_map) == (Status.PARTIAL, 0, 0)
        else:
            assert (cqe.status, cqe.valid) == (Status.SUCCESS, 1024)
            assert cqe.head_map == (1 << min(granules, 8)) - 1

    def test_4_2_granules_count_from_the_regions_base(self, bench: Bench) -> None:
        region = bench.host.add_region(4, 4096, base_to=0x40_0040, mapped=1, map_base=1024)
        bench.receive(record(region, 0, 192, 0, DATA[:128]))
        bench.advance_ticks(TIMEOUT)
        assert bench.only_cqe().head_map == 0b011

    def test_4_1_name_of_a_tracker(self, bench: Bench) -> None:
        """The second half from another port is another message, which closes the first."""
        bench.receive(first_half(bench.mapped))
        bench.receive(second_half(bench.mapped), source_port=1)
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.source_port) == (Status.PARTIAL, PEER_PORT)

    def test_timeout_is_that_of_the_opening(self, bench: Bench) -> None:
        bench.receive(first_half(bench.mapped))
        bench.host.modify_qp(QPN, timeout=5)
        bench.advance_ticks(TIMEOUT - 1)
        assert bench.host.poll_all() == []
        bench.advance_ticks(1)
        assert bench.only_cqe().status == Status.PARTIAL

    def test_immediate_is_that_of_the_opening_segment(self, bench: Bench) -> None:
        bench.receive(first_half(bench.mapped))
        bench.receive(
            replace(second_half(bench.mapped), immediate=5, immediate_valid=True, solicited=True)
        )
        cqe = bench.only_cqe()
        assert (cqe.flags, cqe.immediate) == (MAPPED, 0)


class TestClosed:
    """Section 5."""

    @pytest.mark.parametrize("kind", ["single", "mapped", "send"])
    def test_remembered_for_one_timeout(self, bench: Bench, kind: str) -> None:
        host, plain = bench.host, bench.plain
        for _ in range(2):
            host.post_receive(QPN, plain.base_to, 64, plain.stag)
        if kind == "mapped":
            bench.receive(first_half(bench.mapped))
            last = second_half(bench.mapped)
        else:
            last = record(plain, 0, 5, 0, b"hello") if kind == "single" else send(b"hello")
        bench.gets(Counter.RX_PLACED, last)
        bench.advance_ticks(TIMEOUT - 1)
        bench.gets(Counter.DROP_LATE, last)
        host.modify_qp(QPN, timeout=TIMEOUT - 1)
        bench.nic.receive(frame_of(last, PORT))
        assert host.counter(Counter.DROP_LATE) == 1, "the timeout is that of the row as it is now"

    def test_forgotten_after_it(self, bench: Bench) -> None:
        segment = record(bench.plain, 0, 5, 0, b"hello")
        bench.gets(Counter.RX_PLACED, segment)
        bench.nic.advance(TIMEOUT * 1024 - 1)
        bench.gets(Counter.DROP_LATE, segment)
        bench.nic.advance(1)
        bench.gets(Counter.RX_PLACED, segment)

    @pytest.mark.parametrize("ticks", [65535, 65536, 65536 + 50])
    def test_forgotten_when_the_tick_number_wraps(self, bench: Bench, ticks: int) -> None:
        segment = record(bench.plain, 0, 5, 0, b"hello")
        bench.gets(Counter.RX_PLACED, segment)
        bench.advance_ticks(ticks)
        bench.gets(Counter.RX_PLACED, segment)

    def test_direct_mapped(self, bench: Bench) -> None:
        """Of 64 rows, QP 3's MSN 1 has row 1 xor 48 = 49; so has MSN 65, and QP 4's MSN 49."""
        bench.host.add_qp(4, port=PORT + 1, timeout=TIMEOUT)
        one = record(bench.plain, 0, 5, 0, b"hello", 1)
        for msn, port, evicts in [
            (2, PORT, False),
            (64, PORT, False),
            (65, PORT, True),
            (1, PORT + 1, False),
            (49, PORT + 1, True),
            (113, PORT + 1, True),
        ]:
            bench.advance_ticks(TIMEOUT)
            bench.gets(Counter.RX_PLACED, one)
            bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 5, 0, b"hello", msn), port)
            bench.gets(Counter.RX_PLACED if evicts else Counter.DROP_LATE, one)

    def test_kinds_are_apart(self, bench: Bench) -> None:
        """A Send and a Write-Record of one MSN are two messages; they share a row."""
        bench.host.post_receive(QPN, bench.plain.base_to, 64, bench.plain.stag)
        single = record(bench.plain, 0, 5, 0, b"hello")
        bench.gets(Counter.RX_PLACED, single)
        bench.gets(Counter.RX_PLACED, send(b"hello"))
        bench.gets(Counter.DROP_LATE, send(b"hello"))
        bench.gets(Counter.RX_PLACED, single)


class TestCompletion:
    """Section 6."""

    def single(self, bench: Bench, msn: int) -> None:
        bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 1, 0, b"x", msn))

    @pytest.mark.parametrize("start", [0, 0xFFFF_FFF9])
    def test_p24_6_2_phase_and_wrap(self, bench: Bench, start: int) -> None:
        """A ring of four: phase 1 1 1 1 0 0 0 0 1...; also where the 32-bit index wraps."""
        host = bench.host
        host.add_cq(0, log2=2)
        queue = bench.nic._completions._queues[0]
        queue.producer = queue.consumer = host.cqs[0].index = start
        address = host.cqs[0].address
        for number in range(20):
            self.single(bench, number)
            slot = address + 64 * ((start + number) % 4)
            octets = bench.memory.read(slot, 64)
            assert octets[63] >> 7 == 1 - ((start + number) // 4) % 2
            assert int.from_bytes(octets[16:20], "little") == number
            cqe = host.poll()
            assert cqe is not None and cqe.msn == number

    def test_p24_6_1_full(self, bench: Bench) -> None:
        bench.host.add_cq(0, log2=2)
        for msn in range(4):
            self.single(bench, msn)
        for consumer in range(3):
            segment = record(bench.plain, 0, 1, 0, b"x", 10 + consumer)
            bench.gets(Counter.DROP_CQ_FULL, segment)
            bench.host.ring(Doorbell.CQ_CONSUMER, 0, consumer + 1)
            bench.gets(Counter.RX_PLACED, segment)

    def test_consumer_ahead_of_producer_is_full(self, bench: Bench) -> None:
        bench.host.ring(Doorbell.CQ_CONSUMER, 0, 1)
        bench.gets(Counter.DROP_CQ_FULL, record(bench.plain, 0, 1, 0, b"x"))

    def test_6_3_arm_fires_once(self, bench: Bench) -> None:
        host, nic = bench.host, bench.nic
        host.set(Register.IRQ_ENABLE, 1)
        host.ring(Doorbell.CQ_ARM, 0, 0)
        assert not nic.irq
        self.single(bench, 1)
        assert nic.irq and host.get(Register.IRQ_STATUS) == 1
        host.set(Register.IRQ_STATUS, 2)
        assert nic.irq
        host.set(Register.IRQ_STATUS, 1)
        assert not nic.irq
        self.single(bench, 2)
        assert not nic.irq and host.get(Register.IRQ_STATUS) == 0
        host.set(Register.IRQ_ENABLE, 0)
        host.ring(Doorbell.CQ_ARM, 0, 1)
        assert host.get(Register.IRQ_STATUS) == 1 and not nic.irq
        host.set(Register.IRQ_ENABLE, 1)
        assert nic.irq

    def test_p24_6_3_completion_between_poll_and_arm(self, bench: Bench) -> None:
        """Arming with the index up to which was polled fires at once for what came since."""
        self.single(bench, 1)
        assert bench.host.poll() is not None
        self.single(bench, 2)
        assert bench.host.get(Register.IRQ_STATUS) == 0
        bench.host.ring(Doorbell.CQ_ARM, 0, 1)
        assert bench.host.get(Register.IRQ_STATUS) == 1

    def test_6_3_a_later_consumer_index_does_not_move_the_arm(self, bench: Bench) -> None:
        bench.host.ring(Doorbell.CQ_ARM, 0, 0)
        bench.host.ring(Doorbell.CQ_CONSUMER, 0, 0xFFFF_FFFF)
        self.single(bench, 1)
        assert bench.host.get(Register.IRQ_STATUS) == 1

    def test_p24_6_3_arm_where_the_index_wraps(self, bench: Bench) -> None:
        """The producer index after 0xFFFFFFFF is 0, which is set up here by hand."""
        queue = bench.nic._completions._queues[0]
        queue.producer = queue.consumer = 0xFFFF_FFFF
        self.single(bench, 1)
        bench.host.ring(Doorbell.CQ_ARM, 0, 0)
        assert bench.host.get(Register.IRQ_STATUS) == 0
        self.single(bench, 2)
        assert bench.host.get(Register.IRQ_STATUS) == 1

    def test_6_3_high_cqs(self) -> None:
        bench = make_bench(n_qp=64)
        bench.host.add_cq(37)
        bench.host.modify_qp(QPN, recv_cq=37)
        bench.host.ring(Doorbell.CQ_ARM, 37, 0)
        self.single(bench, 1)
        assert bench.host.get(Register.IRQ_STATUS, 0) == 0
        assert bench.host.get(Register.IRQ_STATUS, 1) == 1 << 5
        assert bench.host.get(Register.IRQ_STATUS, 2) == 0

    def test_6_4_counters_and_time(self, bench: Bench) -> None:
        bench.nic.advance((1 << 46) + (1 << 31) + 5)
        self.single(bench, 1)
        bench.receive(first_half(bench.mapped, 2))
        bench.advance_ticks(TIMEOUT)
        first, second = bench.host.poll_all()
        assert (first.time_high, first.time_low) == ((1 << 15) + 1, 5)
        assert second.time_low == TIMEOUT * 1024, "time 5 was in tick 0"
        assert bench.host.counter(Counter.CQES) == 2
        assert bench.host.counter(Counter.MESSAGES_PARTIAL) == 1
