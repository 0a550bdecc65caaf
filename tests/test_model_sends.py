"""The reference NIC: Sends of several datagrams, and closing of messages (``docs/device.md``,
sections 3 and 4). Expectations are worked out by hand."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from tests.host import Region, record
from tests.model_bench import (
    CUT,
    DATA,
    MAPPED,
    MLEN,
    PORT,
    QPN,
    TIMEOUT,
    Bench,
    first_half,
    make_bench,
    pattern,
    second_half,
    send,
)
from uwarp.contract import CloseTarget, Counter, CqeFlag, Doorbell, QpState, Register, Status, Table
from uwarp.wire import Opcode, Segment

# A Send of 1500 octets into a receive at offset 192 of a region with granules of 64: granules 3 to
# 26, the last of them of 28 octets. Its first segment, of 1408 octets, holds granules 3 to 24.
AT = 192
FULL = 1408


@pytest.fixture
def bench() -> Bench:
    return make_bench()


def post(bench: Bench, at: int = AT, length: int = MLEN) -> None:
    bench.host.post_receive(QPN, bench.mapped.base_to + at, length, bench.mapped.stag)


def part(start: int, stop: int, msn: int = 1, opcode: Opcode = Opcode.SEND, **fields) -> Segment:
    """Octets [start, stop) of the Send."""
    return send(DATA[start:stop], msn, opcode, **({"mo": start, "mlen": MLEN} | fields))


class TestSendOfSeveralDatagrams:
    """Section 3, Send, items 5 and 12 to 15."""

    @pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0, 1, 1), (1, 1, 0)])
    def test_any_order(self, bench: Bench, order: tuple[int, ...]) -> None:
        """Duplicates that come when it is closed are late."""
        parts = (part(0, FULL), part(FULL, MLEN))
        post(bench)
        seen: set[int] = set()
        for number in order:
            late = seen == {0, 1}
            bench.gets(Counter.DROP_LATE if late else Counter.RX_PLACED, parts[number])
            seen.add(number)
        assert bench.octets(bench.mapped, AT - 1, MLEN + 2) == b"\xa5" + DATA + b"\xa5"
        assert vars(bench.only_cqe()) == {
            "opcode": 3,
            "status": 0,
            "flags": MAPPED,
            "qpn": 3,
            "wqe_index": 0,
            "time_high": 0,
            "valid": 1500,
            "msn": 1,
            "mlen": 1500,
            "base_to": bench.mapped.base_to + AT,
            "stag": bench.mapped.stag,
            "immediate": 0,
            "source_ip": 0xFFFF_0A00_0002,
            "source_port": 4791,
            "head_map": 0xF8,
            "tail_map": 0x07,
            "time_low": 0,
            "phase": 1,
        }
        assert bench.map_octets(bench.mapped, 0, 4) == "a5ffffa5"
        bench.gets(Counter.DROP_NO_RECEIVE, part(0, FULL, 2))

    def test_wqe_index_and_flags_are_of_the_opening(self, bench: Bench) -> None:
        for at in (0, 2048, 4096):
            post(bench, at)
        bench.gets(Counter.RX_PLACED, send(b"hello", 1))
        fields = {"immediate": 7, "immediate_valid": True}
        immediate = Opcode.SEND_IMMEDIATE
        bench.gets(Counter.RX_PLACED, part(FULL, MLEN, 2, immediate, solicited=True, **fields))
        bench.gets(Counter.RX_PLACED, part(0, FULL, 3, Opcode.SEND_SOLICITED))
        bench.gets(Counter.RX_PLACED, part(FULL, MLEN, 3))
        bench.gets(Counter.RX_PLACED, part(0, FULL, 2, immediate))
        cqes = bench.host.poll_all()
        assert [(cqe.msn, cqe.wqe_index, cqe.opcode, cqe.immediate) for cqe in cqes] == [
            (1, 0, 3, 0),
            (3, 2, 5, 0),
            (2, 1, 0xE, 7),
        ]
        solicited = MAPPED | CqeFlag.SOLICITED
        assert [cqe.flags for cqe in cqes[1:]] == [solicited, solicited | CqeFlag.IMMEDIATE]
        assert bench.octets(bench.mapped, 2048, MLEN) == DATA
        assert bench.octets(bench.mapped, 4096, MLEN) == DATA

    def test_5_another_mlen(self, bench: Bench) -> None:
        post(bench)
        bench.gets(Counter.RX_PLACED, part(0, FULL))
        for mlen in (MLEN - 1, MLEN + 1):
            bench.gets(Counter.DROP_RECORD_MISMATCH, part(FULL, FULL + 10, mlen=mlen))
        bench.gets(Counter.DROP_RECORD_MISMATCH, send(DATA[:10], 1))
        bench.gets(Counter.DROP_MESSAGE_LENGTH, part(FULL, MLEN, mo=FULL + 1))
        bench.gets(Counter.DROP_UNTAGGED_QN, part(FULL, MLEN, qn=1))
        bench.gets(Counter.RX_PLACED, part(FULL, MLEN))
        assert bench.only_cqe().status == Status.SUCCESS

    def test_5_nothing_more_is_checked(self, bench: Bench) -> None:
        """Not the region, whose row may have gone, nor the CQ, nor the receive queue."""
        host = bench.host
        host.add_cq(0, log2=1)
        post(bench)
        bench.gets(Counter.RX_PLACED, part(0, FULL))
        bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 1, 0, b"x", 9))
        host.write_row(Table.REGION, 2, valid=0)
        bench.gets(Counter.RX_PLACED, part(FULL, MLEN))
        assert bench.octets(bench.mapped, AT, MLEN) == DATA
        assert [cqe.status for cqe in host.poll_all()] == [Status.SUCCESS, Status.SUCCESS]

    def test_8_p24_cq_full(self, bench: Bench) -> None:
        """The tracker takes a slot when it opens, and needs none when it closes."""
        host = bench.host
        host.add_cq(0, log2=1)
        for at in (0, 2048):
            post(bench, at)
        bench.gets(Counter.RX_PLACED, part(0, FULL, 1))
        bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 1, 0, b"x", 9))
        bench.gets(Counter.DROP_CQ_FULL, part(0, FULL, 2))
        bench.gets(Counter.RX_PLACED, part(FULL, MLEN, 1))
        assert [cqe.msn for cqe in host.poll_all()] == [9, 1]
        bench.gets(Counter.RX_PLACED, part(0, FULL, 2))
        bench.advance_ticks(TIMEOUT)
        assert bench.only_cqe().wqe_index == 1

    def test_9_p39_sge_not_allowed(self, bench: Bench) -> None:
        """Found by a segment without payload, too, if the message is not empty."""
        for _ in range(2):
            bench.host.post_receive(QPN, bench.mapped.base_to, MLEN, bench.mapped.stag ^ 1)
        bench.gets(Counter.DROP_RECEIVE_PROTECTION, part(0, 0, 1))
        bench.gets(Counter.DROP_RECEIVE_PROTECTION, part(0, FULL, 2))
        for index, cqe in enumerate(bench.host.poll_all()):
            assert (cqe.status, cqe.valid, cqe.wqe_index) == (Status.LOC_PROT_ERR, 0, index)
            assert (cqe.mlen, cqe.base_to, cqe.stag) == (MLEN, 0, 0)

    def test_10_p30_too_short(self, bench: Bench) -> None:
        post(bench, length=MLEN - 1)
        bench.gets(Counter.DROP_RECEIVE_SHORT, part(0, FULL))
        bench.gets(Counter.RX_PLACED, send(b"hello", 2))
        assert bench.only_cqe().wqe_index == 0

    @pytest.mark.parametrize("log2", [6, 9])
    def test_12_place_without_a_map(self, bench: Bench, log2: int) -> None:
        """A region that is not mapped, and a receive that does not begin with a granule. Both stay
        posted, and do for one datagram."""
        host, plain = bench.host, bench.plain
        mapped = host.add_region(4, 16384, mapped=1, granule_log2=log2, base_to=0x10_0000)
        host.post_receive(QPN, plain.base_to, MLEN, plain.stag)
        host.post_receive(QPN, mapped.base_to + (1 << log2) - 1, MLEN, mapped.stag)
        host.post_receive(QPN, mapped.base_to + (1 << log2), MLEN, mapped.stag)
        for msn in (1, 2):
            bench.gets(Counter.DROP_SEND_SEGMENTED, part(0, FULL, msn))
            bench.gets(Counter.DROP_SEND_SEGMENTED, part(FULL, MLEN, msn))
            bench.gets(Counter.RX_PLACED, send(b"hello", msn))
        bench.gets(Counter.RX_PLACED, part(0, FULL, 3))
        assert [cqe.wqe_index for cqe in host.poll_all()] == [0, 1]

    def test_13_p26_overlap_closes_the_older_messages(self, bench: Bench) -> None:
        """A Write-Record and a Send. What only touches, or lies in another region, stays open."""
        host, mapped = bench.host, bench.mapped
        other = host.add_region(4, 16384, mapped=1, map_base=1024)
        bench.gets(Counter.RX_PLACED, first_half(other, 1))
        bench.gets(Counter.RX_PLACED, record(mapped, 0, AT, 0, DATA[:64], 2))
        bench.gets(Counter.RX_PLACED, record(mapped, AT + MLEN - 1, 200, 0, DATA[:64], 3))
        for at in (AT, AT + 64):
            post(bench, at)
        bench.gets(Counter.RX_PLACED, part(0, FULL, 4))
        cqe = bench.only_cqe()
        assert (cqe.msn, cqe.status) == (3, Status.PARTIAL)
        bench.gets(Counter.RX_PLACED, part(0, FULL, 5))
        cqe = bench.only_cqe()
        assert (cqe.msn, cqe.status, cqe.valid) == (4, Status.PARTIAL, FULL)
        bench.gets(Counter.RX_PLACED, record(mapped, AT + 64 + MLEN - 1, 200, 0, DATA[:64], 6))
        cqe = bench.only_cqe()
        assert (cqe.msn, cqe.status, cqe.wqe_index) == (5, Status.PARTIAL, 1)
        assert host.get(Register.OPEN_MESSAGES) == 3

    def test_14_no_tracker(self, bench: Bench) -> None:
        """Four trackers. The fifth message finds none; its receive stays posted."""
        for number in range(5):
            post(bench, 2048 * number)
        for msn in (1, 2, 3, 4):
            bench.gets(Counter.RX_PLACED, part(0, FULL, msn))
        for start, stop in (0, FULL), (FULL, MLEN), (10, 10):
            bench.gets(Counter.DROP_NO_TRACKER, part(start, stop, 5))
        bench.gets(Counter.RX_PLACED, part(FULL, MLEN, 2))
        assert bench.only_cqe().wqe_index == 1
        bench.gets(Counter.RX_PLACED, part(0, FULL, 5))
        bench.gets(Counter.RX_PLACED, part(FULL, MLEN, 5))
        assert bench.only_cqe().wqe_index == 4
        assert bench.octets(bench.mapped, 4 * 2048, MLEN) == DATA

    def test_15_segment_without_payload_opens(self, bench: Bench) -> None:
        post(bench)
        bench.gets(Counter.RX_PLACED, part(700, 700))
        bench.gets(Counter.DROP_NO_RECEIVE, send(b"hello", 2))
        bench.advance_ticks(TIMEOUT)
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.head_map, cqe.tail_map) == (Status.PARTIAL, 0, 0, 0)

    @pytest.mark.parametrize("half", [0, 1])
    def test_4_3_p22_half_is_lost(self, bench: Bench, half: int) -> None:
        post(bench)
        bench.gets(Counter.RX_PLACED, part(0, FULL) if half == 0 else part(FULL, MLEN))
        bench.advance_ticks(TIMEOUT - 1)
        assert bench.host.poll_all() == []
        bench.advance_ticks(1)
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid) == (Status.PARTIAL, FULL if half == 0 else MLEN - FULL)
        assert (cqe.head_map, cqe.tail_map) == ((0xF8, 0x01) if half == 0 else (0, 0x06))
        assert bench.map_octets(bench.mapped, 1, 2) == ("ffff" if half == 0 else "0000")
        bench.gets(Counter.DROP_LATE, part(FULL, MLEN) if half == 0 else part(0, FULL))

    def test_4_1_kinds_are_apart(self, bench: Bench) -> None:
        """A Send and a Write-Record of one MSN, both open."""
        post(bench)
        far = replace(bench.mapped, base_to=bench.mapped.base_to + 4096)
        bench.gets(Counter.RX_PLACED, part(0, FULL))
        bench.gets(Counter.RX_PLACED, first_half(far))
        bench.gets(Counter.RX_PLACED, part(FULL, MLEN))
        bench.gets(Counter.RX_PLACED, second_half(far))
        assert [(cqe.opcode, cqe.status) for cqe in bench.host.poll_all()] == [(3, 0), (0xC, 0)]
        bench.gets(Counter.DROP_LATE, first_half(far))
        bench.gets(Counter.DROP_NO_RECEIVE, part(0, FULL))  # one row remembers one of the two

    @pytest.mark.parametrize("seed", range(6))
    def test_p22_any_order_duplicates_and_losses(self, bench: Bench, seed: int) -> None:
        """What the CQEs and the map call valid is what came whole, granule by granule."""
        rng = random.Random(seed)
        granule = 64
        for msn in range(1, 9):
            mlen = rng.randrange(65, 2000)
            at = granule * rng.randrange(100)
            data = pattern(mlen, seed=100 * seed + msn)
            post(bench, at, mlen)
            cuts = [0, *range(granule * rng.randrange(1, 3), mlen, granule * 3), mlen]
            whole = [(low, high) for low, high in itertools.pairwise(cuts) if low < high]
            pieces = [item for item in whole if rng.random() < 0.8] or whole
            pieces += [item for item in pieces if rng.random() < 0.2]
            rng.shuffle(pieces)
            got = set()
            for start, stop in pieces:
                bench.receive(send(data[start:stop], msn, mo=start, mlen=mlen))
                got.update(range(start, stop))
            bench.advance_ticks(TIMEOUT)
            cqe = bench.only_cqe()
            assert cqe.valid == len(got), f"seed {seed}, message {msn}"
            assert cqe.status == (Status.SUCCESS if len(got) == mlen else Status.PARTIAL)
            assert cqe.wqe_index == msn - 1
            for octet in got:
                assert bench.octets(bench.mapped, at + octet, 1) == data[octet : octet + 1]
        bench.host.check_sum()


class TestMessagesClose:
    """4.6."""

    def open_four(self, bench: Bench) -> Region:
        """Messages 1 (Send) and 2 in the mapped region, 3 in another; 4 of another QP in that."""
        other = bench.host.add_region(4, 16384, mapped=1, map_base=1024)
        bench.host.add_qp(5, port=PORT + 1, timeout=TIMEOUT)
        post(bench, 8192)
        bench.gets(Counter.RX_PLACED, part(0, FULL, 1))
        bench.gets(Counter.RX_PLACED, first_half(bench.mapped, 2))
        bench.gets(Counter.RX_PLACED, first_half(other, 3))
        far = replace(other, base_to=other.base_to + 4096)
        bench.gets(Counter.RX_PLACED, first_half(far, 4), port=PORT + 1)
        return other

    @pytest.mark.parametrize(
        "target, row, closed",
        [
            (CloseTarget.QP, QPN, [1, 2, 3]),
            (CloseTarget.QP, 5, [4]),
            (CloseTarget.QP, 4, []),
            (CloseTarget.QP, 8 + QPN, []),
            (CloseTarget.QP, 0x4000 + QPN, []),
            (CloseTarget.REGION, 2, [1, 2]),
            (CloseTarget.REGION, 4, [3, 4]),
            (CloseTarget.REGION, QPN, []),
            (CloseTarget.REGION, 16 + 2, []),
            (2, QPN, []),
            (0xFF, 2, []),
        ],
    )
    def test_p32_whose_are_closed(
        self, bench: Bench, target: int, row: int, closed: list[int]
    ) -> None:
        self.open_four(bench)
        bench.host.close_messages(target, row)
        assert bench.host.get(Register.MESSAGES_CLOSE) == 0
        cqes = bench.host.poll_all()
        assert [cqe.msn for cqe in cqes] == closed
        assert {cqe.status for cqe in cqes} <= {Status.PARTIAL}
        assert bench.host.get(Register.OPEN_MESSAGES) == 4 - len(closed)
        bench.advance_ticks(TIMEOUT)
        assert [cqe.msn for cqe in bench.host.poll_all()] == [
            msn for msn in (1, 2, 3, 4) if msn not in closed
        ]

    def test_p32_no_write_after_a_destroyed_region(self, bench: Bench) -> None:
        """The row first, then the messages: nothing is written behind."""
        host = bench.host
        self.open_four(bench)
        host.write_row(Table.REGION, 2, valid=0)
        host.close_messages(CloseTarget.REGION, 2)
        assert len(host.poll_all()) == 2
        before = len(bench.memory.writes)
        bench.gets(Counter.DROP_STAG_INVALID, second_half(bench.mapped, 2))
        bench.gets(Counter.DROP_LATE, part(FULL, MLEN, 1))
        bench.gets(Counter.DROP_STAG_INVALID, first_half(bench.mapped, 7))
        bench.advance_ticks(TIMEOUT)
        cq, size = host.cqs[0].address, 64 << host.cqs[0].log2
        late = [address for address, _ in bench.memory.writes[before:]]
        assert len(late) == 2 * 2 + 1 + 1, "two CQEs of two writes, two maps of one"
        region, octets = bench.mapped.address, bench.mapped.length
        assert not [address for address in late if region <= address < region + octets]
        assert [cq <= address < cq + size for address in late].count(True) == 4

    def test_p32_p41_destroyed_qp_and_its_successor(self, bench: Bench) -> None:
        host = bench.host
        self.open_four(bench)
        host.modify_qp(QPN, state=QpState.RESET)
        host.close_messages(CloseTarget.QP, QPN)
        assert [cqe.msn for cqe in host.poll_all()] == [1, 2, 3]
        bench.gets(Counter.DROP_QP_STATE, second_half(bench.mapped, 2))
        host.modify_qp(QPN, state=QpState.RTS)
        bench.gets(Counter.DROP_LATE, second_half(bench.mapped, 2))
        assert bench.host.get(Register.OPEN_MESSAGES) == 1

    def test_again_and_while_disarmed(self, bench: Bench) -> None:
        """It closes what is open when it is written, each time."""
        self.open_four(bench)
        bench.host.ring(Doorbell.CQ_CONSUMER, 0, 0)
        for expected in ([4], []):
            bench.host.close_messages(CloseTarget.QP, 5)
            assert [cqe.msn for cqe in bench.host.poll_all()] == expected
        bench.gets(Counter.RX_PLACED, record(bench.mapped, 4096, MLEN, 0, DATA[:CUT], 5), PORT + 1)
        bench.host.close_messages(CloseTarget.QP, 5)
        assert bench.only_cqe().msn == 5
