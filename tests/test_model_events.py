"""The reference NIC: moderation, the event ring, the snapshot of counters (``docs/device.md``,
section 6) and DMA errors (section 8). Expectations are worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.host import record
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
    frames,
    make_bench,
    second_half,
    send,
    sent,
    write,
)
from uwarp.contract import (
    CloseTarget,
    Control,
    Counter,
    Doorbell,
    EventType,
    QpState,
    Register,
    Status,
    Table,
)
from uwarp.wire import Opcode

NOWHERE = 0x1_0000  # no host memory there
LOG2 = 4


@pytest.fixture
def bench() -> Bench:
    bench = make_bench()
    bench.host.add_events(LOG2)
    return bench


def single(bench: Bench, msn: int, solicited: bool = False) -> None:
    segment = record(bench.plain, 0, 1, 0, b"x", msn)
    bench.gets(Counter.RX_PLACED, replace(segment, solicited=solicited))


def fired(bench: Bench) -> bool:
    """Whether CQ 0 has fired; takes note of it."""
    status = bench.host.get(Register.IRQ_STATUS)
    bench.host.set(Register.IRQ_STATUS, status)
    return status == 1


class TestModeration:
    """6.3."""

    def test_count(self, bench: Bench) -> None:
        bench.host.moderate(0, 3, 0)
        for start in (0, 3):
            bench.host.ring(Doorbell.CQ_ARM, 0, start)
            for msn in (1, 2):
                single(bench, start + msn)
                bench.advance_ticks(60000)
                assert not fired(bench)
            single(bench, start + 3)
            assert fired(bench)
            assert not fired(bench)

    @pytest.mark.parametrize("count", [0, 1])
    def test_count_of_none_or_one(self, bench: Bench, count: int) -> None:
        bench.host.moderate(0, count, 500)
        bench.host.ring(Doorbell.CQ_ARM, 0, 0)
        single(bench, 1)
        assert fired(bench)

    def test_ticks_from_the_first_completion(self, bench: Bench) -> None:
        """It comes in tick 7, in mid-tick; the CQ fires where tick 17 begins."""
        bench.host.moderate(0, 0xFFFF, 10)
        bench.host.ring(Doorbell.CQ_ARM, 0, 0)
        bench.nic.advance(7 * 1024 + 500)
        single(bench, 1)
        bench.nic.advance(5 * 1024)
        single(bench, 2)
        bench.nic.advance(17 * 1024 - 1 - bench.nic.time)
        assert not fired(bench)
        bench.nic.advance(1)
        assert fired(bench)
        bench.nic.advance(100 * 1024)
        assert not fired(bench)

    def test_ticks_are_counted_anew_for_each_arm(self, bench: Bench) -> None:
        bench.host.moderate(0, 0xFFFF, 10)
        single(bench, 1)
        bench.advance_ticks(20)
        bench.host.ring(Doorbell.CQ_ARM, 0, 1)
        bench.advance_ticks(20)
        assert not fired(bench)
        single(bench, 2)
        bench.advance_ticks(9)
        assert not fired(bench)
        bench.advance_ticks(1)
        assert fired(bench)

    def test_p24_new_completions_fire_at_once_when_armed(self, bench: Bench) -> None:
        """Whatever moderation says, and for either doorbell."""
        bench.host.moderate(0, 100, 0)
        single(bench, 1)
        for doorbell in (Doorbell.CQ_ARM, Doorbell.CQ_ARM_SOLICITED):
            bench.host.ring(doorbell, 0, 0)
            assert fired(bench)

    def test_solicited_and_errors_are_not_held_back(self, bench: Bench) -> None:
        host = bench.host
        host.moderate(0, 100, 0)
        host.ring(Doorbell.CQ_ARM, 0, 0)
        single(bench, 1)
        assert not fired(bench)
        single(bench, 2, solicited=True)
        assert fired(bench)
        host.ring(Doorbell.CQ_ARM, 0, 2)
        host.post_receive(QPN, 0, 64, 0)
        bench.gets(Counter.DROP_RECEIVE_PROTECTION, send(b"x", 3))
        assert fired(bench)
        host.ring(Doorbell.CQ_ARM, 0, 3)
        bench.gets(Counter.RX_PLACED, first_half(bench.mapped, 4))
        bench.advance_ticks(TIMEOUT)
        assert fired(bench), "PARTIAL"

    def test_arm_solicited(self, bench: Bench) -> None:
        """Other completions do not fire it, in any number; the consumer index is set."""
        host = bench.host
        host.moderate(0, 2, 5)
        host.ring(Doorbell.CQ_ARM_SOLICITED, 0, 0)
        for msn in range(1, 61):
            single(bench, msn)
        bench.advance_ticks(10)
        assert not fired(bench)
        host.ring(Doorbell.CQ_ARM_SOLICITED, 0, 60)
        for msn in range(61, 111):
            single(bench, msn)
        assert not fired(bench)
        single(bench, 111, solicited=True)
        assert fired(bench)
        single(bench, 112, solicited=True)
        assert not fired(bench)

    def test_arm_solicited_fires_for_a_send_solicited_and_an_error(self, bench: Bench) -> None:
        host = bench.host
        for _ in range(2):
            host.post_receive(QPN, bench.plain.base_to, 64, bench.plain.stag)
        host.ring(Doorbell.CQ_ARM_SOLICITED, 0, 0)
        bench.gets(Counter.RX_PLACED, send(b"x", 1))
        assert not fired(bench)
        bench.gets(Counter.RX_PLACED, send(b"x", 2, Opcode.SEND_SOLICITED))
        assert fired(bench)
        host.ring(Doorbell.CQ_ARM_SOLICITED, 0, 2)
        host.post_send(QPN, opcode=0xB)
        assert frames(bench) == []
        assert fired(bench)

    def test_the_later_doorbell_counts(self, bench: Bench) -> None:
        bench.host.ring(Doorbell.CQ_ARM, 0, 0)
        bench.host.ring(Doorbell.CQ_ARM_SOLICITED, 0, 0)
        single(bench, 1)
        assert not fired(bench)
        bench.host.ring(Doorbell.CQ_ARM_SOLICITED, 0, 1)
        bench.host.ring(Doorbell.CQ_ARM, 0, 1)
        single(bench, 2)
        assert fired(bench)

    def test_row_counts_for_armed_queues(self, bench: Bench) -> None:
        """A smaller count, and a time that has passed, fire at once."""
        host = bench.host
        host.moderate(0, 10, 0)
        host.ring(Doorbell.CQ_ARM, 0, 0)
        for msn in (1, 2):
            single(bench, msn)
        host.moderate(0, 3, 0)
        assert not fired(bench)
        host.moderate(0, 2, 0)
        assert fired(bench)
        host.moderate(0, 10, 0)
        host.ring(Doorbell.CQ_ARM, 0, 2)
        host.moderate(0, 1, 0)
        assert not fired(bench), "nothing is new"
        host.moderate(0, 10, 0)
        single(bench, 3)
        bench.advance_ticks(30)
        host.moderate(0, 10, 31)
        assert not fired(bench)
        host.moderate(0, 10, 30)
        assert fired(bench)

    def test_1_4_cq_row_leaves_moderation(self, bench: Bench) -> None:
        bench.host.moderate(0, 2, 0)
        bench.host.add_cq(0)
        bench.host.ring(Doorbell.CQ_ARM, 0, 0)
        single(bench, 1)
        assert not fired(bench)
        single(bench, 2)
        assert fired(bench)
        bench.host.set(Register.CONTROL, Control.RESET)
        bench.host.start()
        bench.host.add_cq(0)
        bench.host.add_qp(QPN, port=PORT)
        region = bench.host.add_region(1, 4096)
        bench.host.ring(Doorbell.CQ_ARM, 0, 0)
        bench.gets(Counter.RX_PLACED, record(region, 0, 1, 0, b"x"))
        assert fired(bench)

    def test_rows_are_of_their_own_cq(self, bench: Bench) -> None:
        host = bench.host
        host.add_cq(1)
        host.moderate(1, 2, 4)
        host.modify_qp(QPN, recv_cq=1)
        for number in (0, 1):
            host.ring(Doorbell.CQ_ARM, number, 0)
        single(bench, 1)
        bench.advance_ticks(4)
        assert host.get(Register.IRQ_STATUS) == 2


class TestEvents:
    """6.5."""

    def fill(self, bench: Bench, number: int = 0, msn: int = 1) -> None:
        """A CQ of two slots, both taken."""
        bench.host.add_cq(number, log2=1)
        bench.host.modify_qp(QPN, recv_cq=number)
        for offset in (0, 1):
            single(bench, msn + offset)

    def full(self, bench: Bench) -> None:
        bench.gets(Counter.DROP_CQ_FULL, record(bench.plain, 0, 1, 0, b"x", 9))

    def test_cq_full_once_until_a_doorbell(self, bench: Bench) -> None:
        host = bench.host
        self.fill(bench, 5)
        for _ in range(3):
            self.full(bench)
        assert host.poll_events() == [(EventType.CQ_FULL, 5)]
        for doorbell in (Doorbell.CQ_CONSUMER, Doorbell.CQ_ARM, Doorbell.CQ_ARM_SOLICITED):
            host.ring(doorbell, 5, 0)
            for _ in range(2):
                self.full(bench)
            assert host.poll_events() == [(EventType.CQ_FULL, 5)]
        host.ring(Doorbell.CQ_CONSUMER, 0, 0)
        self.full(bench)
        assert host.poll_events() == []
        self.fill(bench, 5, msn=3)
        self.full(bench)
        assert host.poll_events() == [(EventType.CQ_FULL, 5)], "a new row"

    def test_cq_full_of_a_send_and_of_an_invalid_row(self, bench: Bench) -> None:
        """A number beyond the table names no CQ."""
        bench.host.post_receive(QPN, bench.plain.base_to, 64, bench.plain.stag)
        for number in (7, 8, 0xFFFF):
            bench.host.modify_qp(QPN, recv_cq=number)
            bench.gets(Counter.DROP_CQ_FULL, send(b"x", 1))
        assert bench.host.poll_events() == [(EventType.CQ_FULL, 7)]

    def test_entry_and_interrupt(self, bench: Bench) -> None:
        host, nic = bench.host, bench.nic
        self.fill(bench, 5)
        nic.advance(0x1234_5678_9ABC)
        before = len(bench.memory.writes)
        self.full(bench)
        assert host.events is not None
        address = host.events.address
        assert bench.memory.writes[before:] == [(address, 32)], "one burst"
        entry = bench.memory.read(address, 32)
        assert entry.hex() == "01240500" + "00" * 24 + "9a7856b4"
        assert (host.counter(Counter.EVENTS), host.counter(Counter.EVENTS_LOST)) == (1, 0)
        assert host.get(Register.EVENT_STATUS) == 1
        assert not nic.irq
        host.set(Register.IRQ_ENABLE, 1)
        assert nic.irq
        host.set(Register.EVENT_STATUS, 0xFFFF_FFFE)
        assert nic.irq
        host.set(Register.EVENT_STATUS, 1)
        assert not nic.irq and host.get(Register.EVENT_STATUS) == 0

    def again(self, bench: Bench) -> None:
        """One more event."""
        bench.host.ring(Doorbell.CQ_CONSUMER, 0, 0)
        self.full(bench)

    def test_phase_wrap_and_full_ring(self, bench: Bench) -> None:
        """A ring of two. What finds it full is lost, and the ring goes on."""
        host = bench.host
        host.add_events(log2=1)
        self.fill(bench)
        for number in range(1, 7):
            self.again(bench)
            assert host.poll_events(consume=number % 3 != 1) == [(EventType.CQ_FULL, 0)]
        for _ in range(2):
            self.again(bench)
        for lost in (1, 2, 3):
            self.again(bench)
            assert host.counter(Counter.EVENTS_LOST) == lost
        assert len(host.poll_events()) == 2
        self.again(bench)
        assert len(host.poll_events()) == 1
        assert host.counter(Counter.EVENTS) == 9

    def test_p24_index_wraps(self, bench: Bench) -> None:
        host, start = bench.host, 0xFFFF_FFE0
        bench.nic._events.producer = bench.nic._events.consumer = start
        assert host.events is not None
        host.events.index = start
        self.fill(bench)
        for _ in range(50):
            self.again(bench)
            assert host.poll_events() == [(EventType.CQ_FULL, 0)]

    def test_not_in_use(self, bench: Bench) -> None:
        """Lost and counted; then set up anew, its indices are 0."""
        host = bench.host
        self.fill(bench)
        self.again(bench)
        host.set(Register.EVENT_RING, LOG2)
        before = len(bench.memory.writes)
        self.again(bench)
        assert bench.memory.writes[before:] == []
        assert host.counter(Counter.EVENTS_LOST) == 1
        host.add_events(LOG2)
        self.again(bench)
        assert host.poll_events() == [(EventType.CQ_FULL, 0)]

    def test_address_of_64_bits(self, bench: Bench) -> None:
        assert bench.host.events is not None and bench.host.events.address >> 32 == 1
        assert bench.host.get(Register.EVENT_ADDR_HIGH) == 1
        assert bench.host.get(Register.EVENT_RING) == 0x104

    def test_1_1_soft_reset(self, bench: Bench) -> None:
        self.fill(bench)
        self.full(bench)
        bench.host.set(Register.CONTROL, Control.RESET)
        for register in (
            Register.EVENT_STATUS,
            Register.EVENT_ADDR_LOW,
            Register.EVENT_ADDR_HIGH,
            Register.EVENT_RING,
        ):
            assert bench.host.get(register) == 0


class TestSnapshot:
    """6.6."""

    def test_all_of_one_moment(self, bench: Bench) -> None:
        host = bench.host
        assert {host.get(Register.SNAPSHOT_LOW, number) for number in range(64)} == {0}
        bench.nic.counters[Counter.DMA_ERRORS] = 0x1_2345_6789_ABCD_EF01
        single(bench, 1)
        before = host.snapshot()
        assert before[Counter.RX_FRAMES] == before[Counter.CQES] == 1
        assert before[Counter.DMA_ERRORS] == 0x2345_6789_ABCD_EF01
        single(bench, 2)
        assert host.get(Register.SNAPSHOT_LOW, Counter.RX_FRAMES) == 1
        assert host.counter(Counter.RX_FRAMES) == 2
        assert host.snapshot() == host.counters()
        assert host.get(Register.SNAPSHOT_LOW, 63) == host.get(Register.SNAPSHOT_HIGH, 63) == 0
        assert host.get(Register.COUNTERS_SNAPSHOT) == 0

    def test_1_1_soft_reset(self, bench: Bench) -> None:
        single(bench, 1)
        bench.host.snapshot()
        bench.host.set(Register.CONTROL, Control.RESET)
        assert bench.host.get(Register.SNAPSHOT_LOW, Counter.RX_FRAMES) == 0


class TestDmaErrors:
    """Section 8."""

    def errors(self, bench: Bench) -> int:
        return bench.host.counter(Counter.DMA_ERRORS)

    def fail(self, bench: Bench, qpn: int = QPN, port: int = PORT) -> None:
        """A Write that no memory takes."""
        region = bench.host.add_region(9, 4096, dma_addr=NOWHERE, base_to=0)
        bench.gets(Counter.RX_PLACED, write(region, 0, b"gone"), port=port)
        assert bench.host.poll_events() == [(EventType.DMA_WRITE, qpn)]

    def test_8_1_write_of_payload(self, bench: Bench) -> None:
        """The datagram's own CQE tells; what comes next is dropped."""
        host = bench.host
        host.post_receive(QPN, bench.plain.base_to, 64, bench.plain.stag)
        host.modify_qp(QPN, opcodes=0xFFFF)
        region = host.add_region(9, 4096, dma_addr=NOWHERE, base_to=0)
        bench.gets(Counter.RX_PLACED, record(region, 5, 4, 0, b"gone", 3))
        assert host.poll_events() == [(EventType.DMA_WRITE, QPN)]
        assert self.errors(bench) == 1
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.flags) == (Status.GENERAL_ERR, 0, RECEIVE)
        assert (cqe.msn, cqe.mlen, cqe.base_to, cqe.stag) == (3, 4, 5, region.stag)
        for segment in (send(b"x", 4), write(bench.plain, 0, b"x"), record(region, 5, 4, 0, b"x")):
            bench.gets(Counter.DROP_QP_STATE, segment)
        host.post_send(QPN, opcode=Opcode.SEND)
        assert frames(bench) == []
        assert host.poll_all() == host.poll_events() == []

    def test_8_1_other_qps_are_not_touched(self, bench: Bench) -> None:
        bench.host.add_qp(5, port=PORT + 1)
        bench.gets(Counter.RX_PLACED, first_half(bench.mapped, 1), port=PORT + 1)
        self.fail(bench)
        bench.gets(Counter.RX_PLACED, second_half(bench.mapped, 1), port=PORT + 1)
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.flags) == (Status.SUCCESS, MLEN, MAPPED)
        bench.host.post_send(5, opcode=Opcode.SEND)
        assert len(frames(bench)) == 1

    @pytest.mark.parametrize("state", [QpState.RESET, QpState.INIT, QpState.RTR, QpState.RTS])
    def test_8_1_1_4_any_row_ends_it(self, bench: Bench, state: QpState) -> None:
        self.fail(bench)
        bench.gets(Counter.DROP_QP_STATE, write(bench.plain, 0, b"x"))
        bench.host.modify_qp(QPN, state=state)
        bench.host.modify_qp(QPN, state=QpState.RTS)
        bench.gets(Counter.RX_PLACED, write(bench.plain, 0, b"x"))
        bench.host.post_send(QPN, opcode=Opcode.SEND)
        assert len(frames(bench)) == 1

    def test_8_1_doorbells_do_not_end_it(self, bench: Bench) -> None:
        self.fail(bench)
        bench.host.post_send(QPN, opcode=Opcode.SEND)
        bench.host.post_receive(QPN, bench.plain.base_to, 64, bench.plain.stag)
        assert frames(bench) == []
        bench.gets(Counter.DROP_QP_STATE, send(b"x"))

    @pytest.mark.parametrize("how", ["timeout", "close", "overlap"])
    def test_8_1_open_messages_of_a_failed_qp(self, bench: Bench, how: str) -> None:
        """Their CQEs tell; nothing is called valid; the map is clear for the next message."""
        host = bench.host
        host.add_qp(5, port=PORT + 1)
        host.post_receive(QPN, bench.mapped.base_to + 8192, MLEN, bench.mapped.stag)
        bench.gets(Counter.RX_PLACED, first_half(bench.mapped, 1))
        bench.gets(Counter.RX_PLACED, send(DATA[:CUT], 2, mlen=MLEN))
        self.fail(bench)
        before = len(bench.memory.writes)
        if how == "timeout":
            bench.advance_ticks(TIMEOUT)
        elif how == "close":
            host.close_messages(CloseTarget.QP, QPN)
        else:
            for msn, offset in (1, OFFSET), (2, 8192):
                segment = record(bench.mapped, offset, MLEN, 0, b"", msn)
                bench.gets(Counter.RX_PLACED, segment, port=PORT + 1)
        assert len(bench.memory.writes) - before == 4, "two CQEs, no map"
        for index, cqe in enumerate(host.poll_all()):
            assert (cqe.status, cqe.valid, cqe.flags) == (Status.GENERAL_ERR, 0, RECEIVE)
            assert (cqe.head_map, cqe.tail_map, cqe.msn) == (0, 0, index + 1)
        assert host.counter(Counter.MESSAGES_PARTIAL) == 0
        host.modify_qp(QPN, state=QpState.RTS)
        bench.gets(Counter.DROP_LATE, second_half(bench.mapped, 1))
        if how != "overlap":
            bench.gets(Counter.RX_PLACED, second_half(bench.mapped, 3))
            bench.advance_ticks(TIMEOUT)
            assert bench.only_cqe().valid == MLEN - CUT

    def test_8_1_message_whose_octets_are_lost(self, bench: Bench) -> None:
        """The region ends beyond memory: the segment that is lost fails the message."""
        host = bench.host
        end = bench.memory.base + len(bench.memory.octets)
        region = host.add_region(4, 16384, mapped=1, dma_addr=end - OFFSET - CUT, map_base=1024)
        bench.gets(Counter.RX_PLACED, first_half(region))
        assert host.poll_events() == host.poll_all() == []
        bench.gets(Counter.RX_PLACED, second_half(region))
        assert host.poll_events() == [(EventType.DMA_WRITE, QPN)] * self.errors(bench)
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.flags) == (Status.GENERAL_ERR, 0, RECEIVE)
        assert bench.map_octets(region, 0, 4) == "a5a5a5a5"

    def test_8_1_write_of_a_map(self, bench: Bench) -> None:
        """Its octets are in memory, and yet nothing is called valid."""
        region = bench.host.add_region(4, 16384, mapped=1, map_addr=NOWHERE, map_base=1024)
        bench.gets(Counter.RX_PLACED, first_half(region))
        bench.gets(Counter.RX_PLACED, second_half(region))
        assert bench.host.poll_events() == [(EventType.DMA_WRITE, QPN)]
        assert bench.octets(region, OFFSET, MLEN) == DATA
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.flags) == (Status.GENERAL_ERR, 0, RECEIVE)
        assert (cqe.head_map, cqe.tail_map) == (0, 0)
        bench.gets(Counter.DROP_QP_STATE, send(b"x", 9))

    def test_8_1_map_within_the_cqe_needs_no_write(self, bench: Bench) -> None:
        region = bench.host.add_region(4, 16384, mapped=1, map_addr=NOWHERE, map_base=1024)
        bench.gets(Counter.RX_PLACED, record(region, 0, 100, 0, DATA[:64]))
        bench.gets(Counter.RX_PLACED, record(region, 0, 100, 64, DATA[64:100]))
        assert bench.host.poll_events() == []
        assert bench.only_cqe().status == Status.SUCCESS

    @pytest.mark.parametrize(
        "start, octets, bursts",
        [(0, 1, 1), (127, 1, 1), (127, 2, 2), (0, 128, 1), (0, 129, 2), (1, 128, 2), (4, 1408, 12)],
    )
    def test_one_event_for_each_burst_that_fails(
        self, bench: Bench, start: int, octets: int, bursts: int
    ) -> None:
        region = bench.host.add_region(9, 4096, dma_addr=NOWHERE, base_to=0)
        bench.gets(Counter.RX_PLACED, write(region, start, DATA[:octets]))
        assert bench.host.poll_events() == [(EventType.DMA_WRITE, QPN)] * bursts
        assert self.errors(bench) == bursts

    def test_p33_bursts_that_memory_takes(self, bench: Bench) -> None:
        """Memory ends 70 octets into the second of three bursts: two fail, and the octets are
        there as far as memory is."""
        end = bench.memory.base + len(bench.memory.octets)
        region = bench.host.add_region(9, 4096, dma_addr=end - 128 - 70, base_to=0)
        bench.memory.octets[-128 - 70 :] = bytes([FILL]) * 198
        shift = (end - 198) % 128
        payload = DATA[: 3 * 128 - shift]
        bench.gets(Counter.RX_PLACED, write(region, 0, payload))
        failing = -(-(shift + len(payload)) // 128) - (shift + 198) // 128
        assert self.errors(bench) == len(bench.host.poll_events()) == failing == 1
        assert bytes(bench.memory.octets[-198:]) == payload[:198]

    def test_8_2_read_of_a_receive_wqe(self, bench: Bench) -> None:
        """Section 3, item 9; the QP goes on."""
        host = bench.host
        for _ in range(2):
            host.post_receive(QPN, bench.plain.base_to, 64, bench.plain.stag)
        host.modify_qp(QPN, rq_addr=NOWHERE // 64)
        bench.gets(Counter.DROP_RECEIVE_PROTECTION, send(b"hello"))
        assert host.poll_events() == [(EventType.DMA_READ, QPN)]
        assert bench.only_cqe().status == Status.LOC_PROT_ERR
        assert self.errors(bench) == 1
        host.modify_qp(QPN, rq_addr=host.rqs[QPN].address // 64)
        bench.gets(Counter.RX_PLACED, send(b"hello", 2))

    def test_8_2_read_of_a_send_wqe(self, bench: Bench) -> None:
        host = bench.host
        host.modify_qp(QPN, sq_addr=NOWHERE // 64)
        host.post_send(QPN, opcode=Opcode.SEND)
        assert frames(bench) == []
        assert host.poll_events() == [(EventType.DMA_READ, QPN)]
        assert bench.only_cqe().status == Status.LOC_QP_OP_ERR
        host.modify_qp(QPN, sq_addr=host.sqs[QPN].address // 64)
        host.post_send(QPN, opcode=Opcode.SEND)
        assert len(frames(bench)) == 1

    def test_8_2_read_of_payload(self, bench: Bench) -> None:
        host = bench.host
        source = host.add_region(9, 4096, dma_addr=NOWHERE, base_to=0)
        host.post_send(QPN, payload=source, opcode=Opcode.SEND, length=200)
        host.post_send(QPN, opcode=Opcode.SEND)
        assert len(frames(bench)) == 1
        assert host.poll_events() == [(EventType.DMA_READ, QPN)] * 2
        assert [cqe.status for cqe in host.poll_all()] == [Status.GENERAL_ERR, Status.SUCCESS]
        assert self.errors(bench) == 2

    def test_8_3_write_of_a_cqe(self, bench: Bench) -> None:
        """The slot is used up and counted, the CQ goes on."""
        host = bench.host
        host.write_row(Table.CQ, 0, valid=1, log2=6, addr=NOWHERE)
        host.ring(Doorbell.CQ_ARM, 0, 0)
        single(bench, 1)
        assert host.poll_events() == [(EventType.DMA_CQE, 0)]
        assert fired(bench)
        single(bench, 2)
        assert host.poll_events() == [(EventType.DMA_CQE, 0)]
        assert self.errors(bench) == host.counter(Counter.CQES) == 2
        bench.gets(Counter.RX_PLACED, write(bench.plain, 0, b"x"))

    def test_8_3_write_of_an_event(self, bench: Bench) -> None:
        """Counted as a failed burst and as an event; nothing more, and no event of its own."""
        host = bench.host
        host.set(Register.EVENT_ADDR_HIGH, 0)
        host.set(Register.EVENT_ADDR_LOW, NOWHERE)
        region = host.add_region(9, 4096, dma_addr=NOWHERE, base_to=0)
        bench.gets(Counter.RX_PLACED, write(region, 0, b"gone"))
        assert (self.errors(bench), host.counter(Counter.EVENTS)) == (2, 1)
        assert host.get(Register.EVENT_STATUS) == 1

    def test_failed_qp_completes_the_message_under_way(self, bench: Bench) -> None:
        """A send WQE that was fetched before the failure is sent to its end; no other is."""
        host = bench.host
        source = host.add_region(3, 3000)
        host.post_send(QPN, payload=source, opcode=Opcode.WRITE_RECORD)
        host.post_send(QPN, opcode=Opcode.SEND)
        assert bench.nic.next_frame() is not None
        self.fail(bench)
        assert [item.mo for item in sent(bench)] == [1408, 2816]
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.wqe_index) == (Status.SUCCESS, 3000, 0)
        host.modify_qp(QPN, state=QpState.RTS)
        assert [item.opcode for item in sent(bench)] == [Opcode.SEND]

    def test_p32_recovery(self, bench: Bench) -> None:
        """A failed QP that is reset, with its messages closed, works as a new one."""
        host = bench.host
        bench.gets(Counter.RX_PLACED, first_half(bench.mapped, 1))
        self.fail(bench)
        host.close_messages(CloseTarget.QP, QPN)
        assert bench.only_cqe().status == Status.GENERAL_ERR
        host.modify_qp(QPN, state=QpState.RESET)
        host.modify_qp(QPN, state=QpState.RTS)
        bench.gets(Counter.RX_PLACED, first_half(bench.mapped, 2))
        bench.gets(Counter.RX_PLACED, second_half(bench.mapped, 2))
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid) == (Status.SUCCESS, MLEN)
        bench.host.check_sum()
