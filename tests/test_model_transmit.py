"""The reference NIC's sending side, section 7 of ``docs/device.md``, and two NICs back to back.

Expectations are worked out by hand. Tests named after a pitfall (``p9``) are of a fault that such
devices are known for.
"""

from __future__ import annotations

import random

import pytest

from tests.host import (
    IPV4,
    PEER_IPV4,
    PEER_MAC,
    Region,
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
    ones_sum,
    pattern,
    sent,
)
from uwarp.contract import (
    Counter,
    Doorbell,
    QpState,
    Status,
    WqeFlag,
)
from uwarp.model import MemoryFault
from uwarp.wire import Opcode, Segment, UdpFrame, crc32c


@pytest.fixture
def bench() -> Bench:
    return make_bench()


class TestTransmit:
    """Section 7."""

    def source(self, bench: Bench, length: int, index: int = 3) -> Region:
        region = bench.host.add_region(index, length, base_to=0x50_0001, access=0)
        bench.memory.write(region.address, pattern(length))
        return region

    def test_7_5_frame(self, bench: Bench) -> None:
        """A Send of three octets."""
        source = self.source(bench, 3)
        bench.memory.write(source.address, b"abc")
        bench.host.post_send(
            QPN, payload=source, opcode=0x3, traffic_class=0xB8, hop_limit=3, dest_port=0x1234
        )
        (frame,) = frames(bench)
        segment = bytes.fromhex("4143 00000003 00000000 00000001 00000000 616263")
        segment += crc32c(segment).to_bytes(4, "little")
        # 45B8 + 0035 + 4000 + 0311 + 0A00 + 0001 + 0A00 + 0002 = 9D01, complement 62FE.
        ip = bytes.fromhex("45b8 0035 0000 4000 0311 62fe 0a000001 0a000002")
        assert frame[:14].hex() == "020000000002" + "020000000001" + "0800"
        assert frame[14:34].hex() == ip.hex()
        assert frame[34:40].hex() == "12c0" + "1234" + "0021"
        assert frame[42:].hex() == segment.hex()
        assert ones_sum(ip[12:] + bytes.fromhex("0011 0021") + frame[34:]) == 0xFFFF
        assert bench.host.counter(Counter.TX_FRAMES) == 1

    def test_7_5_shortest_frame(self, bench: Bench) -> None:
        bench.host.post_send(QPN, opcode=Opcode.WRITE)
        (frame,) = frames(bench)
        assert len(frame) == 60
        assert UdpFrame.decode(frame).payload[:14] == bytes.fromhex("c140").ljust(14, b"\0")

    def test_7_3_segments(self, bench: Bench) -> None:
        """R is 1438. From TO 30 mod 64 the first ends at 1408, the next at 2816."""
        source = self.source(bench, 3000)
        bench.host.post_send(
            QPN, payload=source, opcode=0xC, remote_to=0x200_001E, remote_stag=0xABCDEF01
        )
        segments = sent(bench)
        assert [(item.mo, len(item.payload), item.last) for item in segments] == [
            (0, 1378, False),
            (1378, 1408, False),
            (2786, 214, True),
        ]
        assert [item.to for item in segments] == [0x200_001E, 0x200_0580, 0x200_0B00]
        assert b"".join(item.payload for item in segments) == pattern(3000)
        for item in segments:
            assert (item.stag, item.msn, item.mlen) == (0xABCDEF01, 1, 3000)
            assert (item.immediate, item.immediate_valid, item.solicited) == (0, False, False)
        cqe = bench.only_cqe()
        assert vars(cqe) == {
            "opcode": 0xC,
            "status": 0,
            "flags": 0,
            "qpn": 3,
            "wqe_index": 0,
            "time_high": 0,
            "valid": 3000,
            "msn": 1,
            "mlen": 3000,
            "base_to": 0x200_001E,
            "stag": 0xABCDEF01,
            "immediate": 0,
            "source_ip": 0,
            "source_port": 0,
            "head_map": 0,
            "tail_map": 0,
            "time_low": 0,
            "phase": 1,
        }

    @pytest.mark.parametrize(
        "opcode, mtu, log2, length, sizes",
        [
            (0xC, 1500, 0, 1438, [1438]),
            (0xC, 1500, 0, 1439, [1408, 31]),
            (0xC, 1500, 6, 1439, [1408, 31]),
            (0xC, 1500, 10, 4000, [1024, 1024, 1024, 928]),
            (0xC, 9000, 0, 20000, [8896, 8896, 2208]),
            (0xC, 576, 8, 1000, [512, 488]),
            (0x0, 1500, 0, 1454, [1454]),
            (0x0, 1500, 0, 1455, [1408, 47]),
            (0x3, 1500, 0, 1450, [1450]),
            (0x3, 1500, 0, 1451, [1408, 43]),
            (0x3, 9000, 10, 20000, [8192, 8192, 3616]),
            (0xE, 1500, 0, 1446, [1446]),
            (0xE, 1500, 0, 1447, [1408, 39]),
            (0xC, 1500, 0, 0, [0]),
            (0xC, 1500, 16, 1438, [1438]),
            (0x3, 1500, 16, 10, [10]),
        ],
    )
    def test_7_3_sizes(
        self,
        bench: Bench,
        opcode: int,
        mtu: int,
        log2: int,
        length: int,
        sizes: list[int],
    ) -> None:
        bench.host.modify_qp(QPN, path_mtu=mtu)
        source = self.source(bench, 20000)
        bench.host.post_send(QPN, payload=source, opcode=opcode, length=length, granule_log2=log2)
        found = sent(bench)
        assert [len(item.payload) for item in found] == sizes
        assert [item.last for item in found] == [False] * (len(sizes) - 1) + [True]
        assert b"".join(item.payload for item in found) == pattern(20000)[:length]
        assert bench.only_cqe().status == Status.SUCCESS

    @pytest.mark.parametrize("opcode, flags", [(0x3, 0), (0x3, 2), (0xE, 6)])
    def test_7_3_send_of_several_datagrams(self, bench: Bench, opcode: int, flags: int) -> None:
        """Segments end on multiples of the granule of MO, whatever remote_to is."""
        source = self.source(bench, 3000)
        fields = {"remote_to": 0x1E, "remote_stag": 0xABCDEF01, "immediate": 0x12345678}
        bench.host.post_send(QPN, payload=source, opcode=opcode, flags=flags | 1, **fields)
        bench.host.post_send(QPN, payload=source, opcode=opcode, length=1)
        *segments, after = sent(bench)
        assert [(item.mo, len(item.payload), item.last) for item in segments] == [
            (0, 1408, False),
            (1408, 1408, False),
            (2816, 184, True),
        ]
        assert b"".join(item.payload for item in segments) == pattern(3000)
        for item in segments:
            assert item.opcode == (0x5 if (opcode, flags) == (0x3, 2) else opcode)
            assert (item.qn, item.msn, item.mlen) == (0, 1, 3000)
            assert item.immediate == (0x12345678 if opcode == 0xE else 0)
            assert item.solicited == item.immediate_valid == (opcode == 0xE)
        assert (after.msn, after.mo, after.mlen) == (2, 0, 1)
        first, _ = bench.host.poll_all()
        assert (first.opcode, first.status, first.valid, first.msn) == (opcode, 0, 3000, 1)
        assert (first.base_to, first.stag) == (0, 0)

    def test_7_3_target_offset_wraps(self, bench: Bench) -> None:
        """The sender does not judge: that is for the target."""
        source = self.source(bench, 1500)
        bench.host.post_send(QPN, payload=source, opcode=0xC, remote_to=2**64 - 1408)
        assert [item.to for item in sent(bench)] == [2**64 - 1408, 0]

    @pytest.mark.parametrize(
        "opcode, flags, control, immediate",
        [
            (0x0, 0, "c140", 0),
            (0x3, 0, "4143", 0),
            (0x3, WqeFlag.SOLICITED, "4145", 0),
            (0xC, 0, "c14c", 0),
            (0xC, WqeFlag.SOLICITED, "c16c", 0),
            (0xC, WqeFlag.IMMEDIATE, "c15c", 0x12345678),
            (0xC, WqeFlag.IMMEDIATE | WqeFlag.SOLICITED, "c17c", 0x12345678),
            (0xE, 0, "414e", 0x12345678),
            (0xE, WqeFlag.SOLICITED, "416e", 0x12345678),
            (0xE, WqeFlag.IMMEDIATE, "415e", 0x12345678),
        ],
    )
    def test_7_4_control_octets_and_immediate(
        self, bench: Bench, opcode: int, flags: int, control: str, immediate: int
    ) -> None:
        source = self.source(bench, 5)
        bench.host.post_send(
            QPN, payload=source, opcode=opcode, flags=flags | 1, immediate=0x12345678
        )
        (frame,) = frames(bench)
        payload = UdpFrame.decode(frame).payload
        assert payload[:2].hex() == control
        assert Segment.from_datagram(payload).immediate == immediate
        assert bench.only_cqe().opcode == opcode

    def test_7_4_msn(self, bench: Bench) -> None:
        """Counted over all destinations; not by Writes, nor by what failed. Wraps through 0."""
        host = bench.host
        bench.nic._tables.qps[QPN].next_msn = 0xFFFF_FFFE
        for opcode in (0xC, 0x0, 0x3, 0xB, 0xE, 0xC):
            host.post_send(QPN, opcode=opcode, dest_ip=PEER_IPV4 + opcode)
        assert [item.msn for item in sent(bench)] == [0xFFFF_FFFE, 0, 0xFFFF_FFFF, 0, 1]
        cqes = host.poll_all()
        assert [cqe.msn for cqe in cqes] == [0xFFFF_FFFE, 0, 0xFFFF_FFFF, 0, 0, 1]
        assert [cqe.status == 0 for cqe in cqes] == [True, True, True, False, True, True]
        assert [cqe.wqe_index for cqe in cqes] == [0, 1, 2, 3, 4, 5]

    @pytest.mark.parametrize(
        "fields, status",
        [
            ({"opcode": 0x2}, Status.LOC_QP_OP_ERR),
            ({"opcode": 0x5}, Status.LOC_QP_OP_ERR),
            ({"opcode": 0xD}, Status.LOC_QP_OP_ERR),
            ({"opcode": 0x1C}, Status.LOC_QP_OP_ERR),
            ({"opcode": 0xFF}, Status.LOC_QP_OP_ERR),
            ({"num_sge": 2}, Status.LOC_QP_OP_ERR),
            ({"num_sge": 255}, Status.LOC_QP_OP_ERR),
            ({"sge_length": 99}, Status.LOC_QP_OP_ERR),
            ({"length": 99, "sge_length": 100}, Status.LOC_QP_OP_ERR),
            ({"num_sge": 0}, Status.LOC_QP_OP_ERR),
            ({"granule_log2": 1}, Status.LOC_QP_OP_ERR),
            ({"granule_log2": 5}, Status.LOC_QP_OP_ERR),
            ({"granule_log2": 17}, Status.LOC_QP_OP_ERR),
            ({"granule_log2": 255}, Status.LOC_QP_OP_ERR),
            ({"opcode": 0x3, "granule_log2": 5}, Status.LOC_QP_OP_ERR),
            ({"opcode": 0x0, "flags": WqeFlag.IMMEDIATE}, Status.LOC_QP_OP_ERR),
            ({"opcode": 0x3, "flags": WqeFlag.IMMEDIATE}, Status.LOC_QP_OP_ERR),
            ({"opcode": 0x0, "flags": WqeFlag.SOLICITED}, Status.LOC_QP_OP_ERR),
            ({"opcode": 0x3, "length": 1451, "granule_log2": 11}, Status.LOC_LEN_ERR),
            ({"opcode": 0xE, "length": 1447, "granule_log2": 16}, Status.LOC_LEN_ERR),
            ({"opcode": 0x3, "length": 0xFFFF_FFFF}, Status.LOC_PROT_ERR),
            ({"opcode": 0xC, "length": 1439, "granule_log2": 11}, Status.LOC_LEN_ERR),
            ({"opcode": 0x0, "length": 1455, "granule_log2": 16}, Status.LOC_LEN_ERR),
            ({"sge_lkey": 0}, Status.LOC_PROT_ERR),
            ({"sge_lkey": 0x35B}, Status.LOC_PROT_ERR),
            ({"sge_lkey": 0xFFFF_FF5A}, Status.LOC_PROT_ERR),
            ({"sge_lkey": 0x45A, "sge_addr": 0x10_0000}, Status.LOC_PROT_ERR),
            ({"sge_addr": 0x50_0000}, Status.LOC_PROT_ERR),
            ({"sge_addr": 0x50_0002, "length": 2000}, Status.LOC_PROT_ERR),
            ({"sge_addr": 2**64 - 50}, Status.LOC_PROT_ERR),
            ({"length": 2001}, Status.LOC_PROT_ERR),
            # Of several, the first of the rule.
            (
                {"num_sge": 2, "sge_lkey": 0, "length": 1451, "granule_log2": 11},
                Status.LOC_QP_OP_ERR,
            ),
            ({"sge_lkey": 0, "length": 1451, "granule_log2": 11}, Status.LOC_LEN_ERR),
        ],
    )
    def test_p38_p39_7_2_wqe_that_fails(
        self, bench: Bench, fields: dict[str, int], status: Status
    ) -> None:
        """It always completes, though not signalled; the next WQE is sent."""
        bench.host.add_region(4, 4096, pd=2)
        source = self.source(bench, 2000)
        wqe = {"opcode": 0xC, "flags": 0, "length": 100, "sge_length": 100} | fields
        if "length" in fields and "sge_length" not in fields:
            wqe["sge_length"] = fields["length"]
        bench.host.post_send(QPN, payload=source, **wqe)
        bench.host.post_send(QPN, payload=source, opcode=0xC, length=10)
        assert len(bench.nic.next_frame() or b"") == 72 + 10 + 4
        assert bench.nic.next_frame() is None
        failed, good = bench.host.poll_all()
        assert (failed.status, failed.valid, failed.msn) == (status, 0, 0)
        assert (failed.opcode, failed.qpn, failed.wqe_index) == (wqe["opcode"], QPN, 0)
        assert (good.status, good.valid, good.msn, good.wqe_index) == (0, 10, 1, 1)

    def test_7_2_wqe_that_cannot_be_read(self, bench: Bench) -> None:
        host = bench.host
        host.modify_qp(QPN, sq_addr=1)
        host.post_send(QPN, opcode=Opcode.SEND)
        assert bench.nic.next_frame() is None
        assert bench.only_cqe().status == Status.LOC_QP_OP_ERR

    def test_7_2_sge_of_no_octets_is_not_checked(self, bench: Bench) -> None:
        bench.host.post_send(QPN, opcode=0x3, num_sge=1, sge_addr=5, sge_lkey=0xDEAD)
        assert len(frames(bench)) == 1
        assert bench.only_cqe().status == Status.SUCCESS

    def test_7_6_payload_that_cannot_be_read(self, bench: Bench) -> None:
        """Memory ends 2000 octets into the SGE: the first segment goes, the other two do not."""
        host = bench.host
        end = bench.memory.base + len(bench.memory.octets)
        host.add_region(3, 4000, base_to=0, dma_addr=end - 2000)
        with pytest.raises(MemoryFault):
            bench.memory.read(end - 2000, 4000)
        source = Region(0x35A, 0, 4000, 0, 0)
        host.post_send(QPN, payload=source, opcode=0xC, flags=0)
        host.post_send(QPN, payload=source, opcode=0xC, length=5)
        assert [(item.msn, item.mo, len(item.payload)) for item in sent(bench)] == [
            (1, 0, 1408),
            (2, 0, 5),
        ]
        failed, good = host.poll_all()
        assert (failed.status, failed.wqe_index) == (Status.GENERAL_ERR, 0)
        assert (good.status, good.wqe_index) == (Status.SUCCESS, 1)
        assert host.counter(Counter.TX_FRAMES) == 2

    @pytest.mark.parametrize("state", [0, 1, 2, 6])
    def test_7_1_state(self, bench: Bench, state: int) -> None:
        bench.host.post_send(QPN, opcode=0x3)
        bench.host.modify_qp(QPN, state=state)
        assert bench.nic.next_frame() is None
        assert bench.host.poll_all() == []

    def test_7_1_turns(self, bench: Bench) -> None:
        """A long message does not hold back a short one."""
        host = bench.host
        source = self.source(bench, 5000)
        host.add_qp(5, port=PORT + 5)
        host.add_qp(1, port=PORT + 1)
        host.post_send(QPN, payload=source, opcode=0xC)
        for _ in range(2):
            host.post_send(5, opcode=0x3)
        ports = [UdpFrame.decode(frame).source_port - PORT for frame in frames_of(bench, 3)]
        assert ports == [0, 5, 0]
        host.post_send(1, opcode=0x3)
        ports = [UdpFrame.decode(frame).source_port - PORT for frame in frames(bench)]
        assert ports == [5, 1, 0, 0]
        assert [cqe.qpn for cqe in host.poll_all()] == [5, 5, 1, 3]

    def test_7_6_cqe_comes_with_the_last_segment(self, bench: Bench) -> None:
        source = self.source(bench, 1500)
        bench.host.post_send(QPN, payload=source, opcode=0xC)
        assert bench.nic.next_frame() is not None
        assert bench.host.poll_all() == []
        assert bench.nic.next_frame() is not None
        assert bench.only_cqe().valid == 1500

    def test_p24_7_1_send_cq_full(self, bench: Bench) -> None:
        """A slot is reserved for an unsignalled WQE too, and given back if it is not used."""
        host = bench.host
        host.add_cq(1, log2=1)
        host.modify_qp(QPN, send_cq=1)
        for flags in (0, 0, 1, 1, 0, 1):
            host.post_send(QPN, opcode=0x3, flags=flags)
        assert len(frames(bench)) == 4
        first = host.poll(1)
        assert first is not None and first.wqe_index == 2
        assert len(frames(bench)) == 2
        assert [cqe.wqe_index for cqe in host.poll_all(1)] == [3, 5]

    def test_6_1_message_under_way_holds_a_slot(self, bench: Bench) -> None:
        host = bench.host
        host.add_cq(0, log2=1)
        source = self.source(bench, 3000)
        host.post_send(QPN, payload=source, opcode=0xC, flags=0)
        assert bench.nic.next_frame() is not None
        bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 1, 0, b"x", 1))
        bench.gets(Counter.DROP_CQ_FULL, record(bench.plain, 0, 1, 0, b"x", 2))
        assert len(frames(bench)) == 2
        bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 1, 0, b"x", 2))

    def test_p32_reset_of_a_qp_in_mid_message(self, bench: Bench) -> None:
        """Nothing of the message follows, and its slot is given back."""
        host = bench.host
        host.add_cq(0, log2=1)
        host.post_send(QPN, payload=self.source(bench, 3000), opcode=0xC)
        assert bench.nic.next_frame() is not None
        host.modify_qp(QPN, state=QpState.RESET)
        host.modify_qp(QPN, state=QpState.RTS)
        assert bench.nic.next_frame() is None
        for msn in (1, 2):
            bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 1, 0, b"x", msn))
        assert [cqe.msn for cqe in host.poll_all()] == [1, 2]

    @pytest.mark.parametrize("cq", [1, 8, 0xFFFF])
    def test_6_1_send_cq_that_is_not_there(self, bench: Bench, cq: int) -> None:
        bench.host.modify_qp(QPN, send_cq=cq)
        bench.host.post_send(QPN, opcode=0x3)
        assert bench.nic.next_frame() is None

    def test_p24_send_ring_wraps(self, bench: Bench) -> None:
        """Sixteen entries; also where the 32-bit index wraps, which is set here by hand."""
        qp = bench.nic._tables.qps[QPN]
        qp.sq_producer = qp.sq_consumer = bench.host.sqs[QPN].index = 0xFFFF_FFF0
        for number in range(40):
            bench.host.post_send(QPN, opcode=0xE, immediate=number)
            (segment,) = sent(bench)
            assert segment.immediate == number
            assert bench.only_cqe().wqe_index == (0xFFF0 + number) % 65536

    def test_no_work_without_a_doorbell(self, bench: Bench) -> None:
        bench.host.ring(Doorbell.SQ_PRODUCER, QPN, 0)
        assert bench.nic.next_frame() is None


def frames_of(bench: Bench, number: int) -> list[bytes]:
    found = [bench.nic.next_frame() for _ in range(number)]
    return [frame for frame in found if frame is not None]


class TestTwoNics:
    """One NIC's frames are what the other takes."""

    @pytest.mark.parametrize("loss", [0.0, 0.02, 0.3])
    @pytest.mark.parametrize("mtu", [1500, 9000])
    def test_a_long_message(self, loss: float, mtu: int) -> None:
        """Valid granules hold the sender's octets, the others what was there before."""
        seed = int(1000 * loss) + mtu
        rng = random.Random(seed)
        one, two = make_bench(), make_bench(map_bits=65536)
        two.host.start(PEER_MAC, PEER_IPV4, mtu)
        one.host.modify_qp(QPN, path_mtu=mtu)
        length = 200_000
        source = one.host.add_region(3, length)
        data = rng.randbytes(length)
        one.memory.write(source.address, data)
        target = two.host.add_region(3, 1 << 18, base_to=0x40_0000, mapped=1, map_base=4096)
        offset = 64 * 8 * 3 + 17
        one.host.post_send(
            QPN,
            payload=source,
            opcode=0xC,
            remote_stag=target.stag,
            remote_to=target.base_to + offset,
            dest_port=PORT,
        )
        for frame in frames(one):
            if rng.random() >= loss:
                two.nic.receive(frame)
        two.advance_ticks(TIMEOUT)
        cqe = two.only_cqe()
        assert cqe.source_ip == 0xFFFF << 32 | IPV4 and cqe.source_port == PORT
        first, last = offset // 64, (offset + length - 1) // 64
        octets = bytearray(two.memory.read(target.map_address, last // 8 + 1))
        octets[first // 8], octets[last // 8] = cqe.head_map, cqe.tail_map
        number = int.from_bytes(octets, "little")
        placed = two.octets(target)
        valid = 0
        for granule in range(first, last + 1):
            low, high = max(64 * granule, offset), min(64 * granule + 64, offset + length)
            expected = data[low - offset : high - offset]
            if number >> granule & 1:
                valid += high - low
            else:
                expected = bytes([FILL]) * (high - low)
            assert placed[low:high] == expected, f"granule {granule}, seed {seed}"
        assert cqe.valid == valid
        assert (cqe.status == Status.SUCCESS) == (valid == length)
        assert placed[:offset] == bytes([FILL]) * offset
        assert set(placed[offset + length :]) == {FILL}
        one.host.check_sum()
        two.host.check_sum()
