"""The reference NIC's sending side, section 7 of ``docs/device.md``, and two NICs back to back.

Expectations are worked out by hand. Tests named after a pitfall (``p9``) are of a fault that such
devices are known for.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from tests.host import (
    IPV4,
    IPV6,
    MAC,
    PEER_IPV4,
    PEER_IPV6,
    PEER_MAC,
    PEER_PORT,
    Region,
    record,
)
from tests.model_bench import (
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
    CqeFlag,
    Doorbell,
    EventType,
    Filter,
    QpState,
    Register,
    Status,
    WqeFlag,
)
from uwarp.model import MemoryFault, Way
from uwarp.wire import (
    Opcode,
    ReadRequest,
    Segment,
    UdpFrame,
    crc32c,
    ip_text,
    ipv4_text,
    mac_text,
)


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


def split(octets: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to have ``octets`` in ``parts``, none of them included."""
    if parts == 1:
        yield (octets,)
        return
    for first in range(octets + 1):
        for rest in split(octets - first, parts - 1):
            yield first, *rest


def sge_fields(region: Region, lengths: Sequence[int], gap: int = 3) -> dict[str, int]:
    """SGEs of so many octets in ``region``, ``gap`` octets from one to the next."""
    fields = {"num_sge": len(lengths), "length": sum(lengths)}
    at = region.base_to
    for index, length in enumerate(lengths):
        name = f"sge{index or ''}"
        fields |= {f"{name}_addr": at, f"{name}_length": length, f"{name}_lkey": region.stag}
        at += length + gap
    return fields


def gathered(region: Region, octets: bytes, lengths: Sequence[int], gap: int = 3) -> bytes:
    """The octets of :func:`sge_fields`, one SGE after the other."""
    found, at = b"", 0
    for length in lengths:
        found += octets[at : at + length]
        at += length + gap
    return found


class TestWideRing:
    """SGEs, octets inline, IPv6 and VLAN: 7.2, 7.3 and 7.5."""

    @pytest.fixture
    def bench(self) -> Bench:
        """QP 3 has a wide ring; region 3, of 8000 octets, holds a pattern."""
        bench = make_bench()
        bench.host.add_qp(QPN, port=PORT, sq_wide=1)
        self.source = bench.host.add_region(3, 8000, base_to=0x50_0001, access=0)
        self.octets = pattern(8000)
        bench.memory.write(self.source.address, self.octets)
        return bench

    @pytest.mark.parametrize("parts", [1, 2, 3, 4])
    @pytest.mark.parametrize("octets", range(7))
    def test_every_split_of_a_short_message(self, bench: Bench, octets: int, parts: int) -> None:
        for lengths in split(octets, parts):
            bench.host.post_send(QPN, opcode=0x3, **sge_fields(self.source, lengths))
            (segment,) = sent(bench)
            assert segment.payload == gathered(self.source, self.octets, lengths), lengths
            assert segment.mlen == octets
            assert bench.only_cqe().valid == octets

    @pytest.mark.parametrize("opcode", [0x0, 0x3, 0xC, 0xE])
    @pytest.mark.parametrize(
        "lengths",
        [(1, 1407, 1, 1407), (1407, 2, 0, 1500), (0, 0, 0, 3000), (700, 700, 700, 700)],
    )
    def test_a_long_message(self, bench: Bench, opcode: int, lengths: tuple[int, ...]) -> None:
        """Segments are cut wherever SGEs end."""
        fields = sge_fields(self.source, lengths, gap=13)
        bench.host.post_send(QPN, opcode=opcode, remote_to=0x7000, **fields)
        found = sent(bench)
        payload = b"".join(item.payload for item in found)
        assert payload == gathered(self.source, self.octets, lengths, 13)
        total = sum(lengths)
        sizes = [min(1408, total - at) for at in range(0, total, 1408)]
        assert [len(item.payload) for item in found] == sizes
        assert bench.only_cqe().valid == total

    def test_sges_of_several_regions(self, bench: Bench) -> None:
        """Also backwards, and twice the same octets."""
        other = bench.host.add_region(4, 100, base_to=7, access=0)
        bench.memory.write(other.address, b"z" * 100)
        fields = {
            "num_sge": 3,
            "length": 9,
            "sge_addr": self.source.base_to + 100,
            "sge_length": 4,
            "sge_lkey": self.source.stag,
            "sge1_addr": 106,
            "sge1_length": 1,
            "sge1_lkey": other.stag,
            "sge2_addr": self.source.base_to + 100,
            "sge2_length": 4,
            "sge2_lkey": self.source.stag,
        }
        bench.host.post_send(QPN, opcode=0x3, **fields)
        (segment,) = sent(bench)
        assert segment.payload == self.octets[100:104] + b"z" + self.octets[100:104]

    @pytest.mark.parametrize("octets", [0, 1, 7, 8, 47, 48])
    @pytest.mark.parametrize("opcode", [0x0, 0x3, 0xC, 0xE])
    def test_inline(self, bench: Bench, opcode: int, octets: int) -> None:
        """The octets need no region; with IPV6 the address lies behind them."""
        for flags, version in ((WqeFlag.INLINE, 4), (WqeFlag.INLINE | WqeFlag.IPV6, 6)):
            message = pattern(48, octets)
            bench.host.post_send(
                QPN,
                opcode=opcode,
                flags=flags | WqeFlag.SIGNALED,
                inline=message,
                length=octets,
                dest_ipv6=PEER_IPV6,
                sge_lkey=0xDEAD,
                sge_length=99,
            )
            (frame,) = frames(bench)
            datagram = UdpFrame.decode(frame)
            assert (datagram.ip_version, datagram.dest_ip) == (
                version,
                PEER_IPV6 if version == 6 else PEER_IPV4,
            )
            assert Segment.from_datagram(datagram.payload).payload == message[:octets]
            cqe = bench.only_cqe()
            assert (cqe.status, cqe.valid) == (Status.SUCCESS, octets)

    def test_narrow_fields_mean_the_same(self, bench: Bench) -> None:
        """The first half of a wide entry is a narrow one; the second is not looked at."""
        narrow = make_bench()
        source = narrow.host.add_region(3, 8000, base_to=0x50_0001, access=0)
        narrow.memory.write(source.address, self.octets)
        wqe = {"opcode": 0xC, "length": 3000, "remote_to": 0x7001, "traffic_class": 9}
        narrow.host.post_send(QPN, payload=source, **wqe)
        bench.host.post_send(QPN, payload=self.source, **wqe, inline=b"\xff" * 64)
        assert frames(bench) == frames(narrow)

    def test_p24_ring_wraps(self, bench: Bench) -> None:
        """Entries of 128 octets."""
        for number in range(40):
            fields = sge_fields(self.source, (number, 1, 2))
            bench.host.post_send(QPN, opcode=0x3, **fields)
            (segment,) = sent(bench)
            expected = gathered(self.source, self.octets, (number, 1, 2))
            assert segment.payload == expected
            assert bench.only_cqe().wqe_index == number

    @pytest.mark.parametrize(
        "fields, status",
        [
            ({"num_sge": 5}, Status.LOC_QP_OP_ERR),
            ({"num_sge": 255}, Status.LOC_QP_OP_ERR),
            ({"length": 41}, Status.LOC_QP_OP_ERR),
            ({"length": 39}, Status.LOC_QP_OP_ERR),
            ({"num_sge": 3}, Status.LOC_QP_OP_ERR),
            ({"num_sge": 0}, Status.LOC_QP_OP_ERR),
            ({"flags": WqeFlag.INLINE}, Status.LOC_QP_OP_ERR),
            ({"flags": WqeFlag.INLINE, "num_sge": 1, "length": 10}, Status.LOC_QP_OP_ERR),
            ({"flags": WqeFlag.INLINE, "num_sge": 0, "length": 49}, Status.LOC_QP_OP_ERR),
            ({"dest_mac": 1 << 40, "opcode": 0x0}, Status.LOC_QP_OP_ERR),
            ({"dest_mac": 0x33_33_00_00_00_01}, Status.LOC_QP_OP_ERR),
            ({"dest_mac": 2**48 - 1}, Status.LOC_QP_OP_ERR),
            *(
                ({f"sge{index or ''}_{name}": value}, Status.LOC_PROT_ERR)
                for index in range(4)
                for name, value in (
                    ("lkey", 0x35B),
                    ("lkey", 0x45A),
                    ("lkey", 0xFFFF_FF5A),
                    ("addr", 0x50_0000),
                    ("addr", 0x50_0001 + 7991),
                    ("addr", 2**64 - 10),
                )
            ),
            # Of several, the first of the rule.
            ({"length": 41, "sge3_lkey": 0}, Status.LOC_QP_OP_ERR),
        ],
    )
    def test_7_2_wqe_that_fails(self, bench: Bench, fields: dict[str, int], status: Status) -> None:
        """One of four SGEs is enough."""
        bench.host.add_region(4, 8000, base_to=0x50_0001, pd=2)
        good = sge_fields(self.source, (10, 10, 10, 10))
        wqe = {"opcode": 0xC, "flags": 0} | good
        bench.host.post_send(QPN, **(wqe | fields))
        bench.host.post_send(QPN, **wqe)
        assert [item.msn for item in sent(bench)] == [1]
        cqe = bench.only_cqe()
        assert (cqe.status, cqe.valid, cqe.msn) == (status, 0, 0)

    def test_7_2_lengths_add_up_exactly(self, bench: Bench) -> None:
        """Not modulo 2^32."""
        fields = sge_fields(self.source, (0x4000_0001,) * 4) | {"length": 4}
        bench.host.post_send(QPN, opcode=0xC, **fields)
        assert sent(bench) == []
        assert bench.only_cqe().status == Status.LOC_QP_OP_ERR

    def test_7_2_sges_that_are_not_looked_at(self, bench: Bench) -> None:
        """Those beyond num_sge, and those of no octets."""
        fields = sge_fields(self.source, (5, 0, 5, 7)) | {"num_sge": 3, "length": 10}
        bench.host.post_send(QPN, opcode=0x3, **(fields | {"sge1_lkey": 0, "sge3_lkey": 0}))
        assert len(sent(bench)) == 1

    @pytest.mark.parametrize("flag", [WqeFlag.INLINE, WqeFlag.IPV6])
    def test_7_2_flags_that_ask_for_a_wide_ring(self, bench: Bench, flag: WqeFlag) -> None:
        bench.host.add_qp(QPN, port=PORT)
        bench.host.post_send(QPN, opcode=0x3, flags=flag)
        assert sent(bench) == []
        assert bench.only_cqe().status == Status.LOC_QP_OP_ERR

    @pytest.mark.parametrize("opcode", [0x3, 0xE])
    def test_7_2_group_bit_of_a_send(self, bench: Bench, opcode: int) -> None:
        bench.host.post_send(QPN, opcode=opcode, dest_mac=0x01_00_5E_00_00_01)
        assert len(sent(bench)) == 1

    @pytest.mark.parametrize(
        "opcode, length, sizes",
        [
            (0x0, 1434, [1434]),
            (0x0, 1435, [1408, 27]),
            (0x3, 1430, [1430]),
            (0x3, 1431, [1408, 23]),
            (0xC, 1418, [1418]),
            (0xC, 1419, [1408, 11]),
            (0xE, 1426, [1426]),
            (0xE, 1427, [1408, 19]),
        ],
    )
    def test_7_3_ipv6_sizes(self, bench: Bench, opcode: int, length: int, sizes: list[int]) -> None:
        """Twenty octets less than in IPv4; a VLAN tag takes none of them."""
        flags = WqeFlag.IPV6 | WqeFlag.VLAN
        bench.host.post_send(QPN, payload=self.source, opcode=opcode, length=length, flags=flags)
        found = frames(bench)
        payloads = [UdpFrame.decode(frame).payload for frame in found]
        assert [len(Segment.from_datagram(item).payload) for item in payloads] == sizes
        assert all(len(frame) <= 1500 + 18 for frame in found)

    def test_7_2_granule_that_ipv6_has_no_room_for(self, bench: Bench) -> None:
        """R is 1038 or 1018."""
        bench.host.modify_qp(QPN, path_mtu=1100)
        for flags in (1, 1 | WqeFlag.IPV6):
            bench.host.post_send(
                QPN, payload=self.source, opcode=0xC, length=2000, granule_log2=10, flags=flags
            )
        assert len(sent(bench)) == 2
        assert [cqe.status for cqe in bench.host.poll_all()] == [0, Status.LOC_LEN_ERR]

    @pytest.mark.parametrize("vlan", [None, 0xE064, 0x0FFF, 0x1000])
    @pytest.mark.parametrize("version", [4, 6])
    @pytest.mark.parametrize("octets", [0, 3, 4, 18, 501, 1400])
    def test_7_5_frame_against_scapy(
        self, bench: Bench, octets: int, version: int, vlan: int | None
    ) -> None:
        flags = WqeFlag.IPV6 if version == 6 else WqeFlag(0)
        if vlan is not None:
            flags |= WqeFlag.VLAN
        bench.host.post_send(
            QPN,
            payload=self.source,
            opcode=0x3,
            length=octets,
            flags=flags,
            vlan=vlan or 0,
            dest_ipv6=PEER_IPV6,
            traffic_class=0xB9,
            hop_limit=3,
        )
        (frame,) = frames(bench)
        packet = Ether(dst=mac_text(PEER_MAC), src=mac_text(MAC))
        if vlan is not None:
            packet /= Dot1Q(prio=vlan >> 13, dei=vlan >> 12 & 1, vlan=vlan & 0xFFF)
        if version == 6:
            packet /= IPv6(src=ip_text(IPV6), dst=ip_text(PEER_IPV6), tc=0xB9, hlim=3)
        else:
            source, destination = ipv4_text(IPV4), ipv4_text(PEER_IPV4)
            packet /= IP(src=source, dst=destination, tos=0xB9, id=0, flags="DF", ttl=3)
        body = bytes.fromhex("4143") + struct.pack("!IIII", octets, 0, 1, 0)
        body += self.octets[:octets]
        body += crc32c(body).to_bytes(4, "little")
        packet = packet / UDP(sport=PORT, dport=PEER_PORT) / Raw(body)
        assert frame.hex() == bytes(packet).ljust(60, b"\0").hex()

    def test_7_5_vlan_needs_no_wide_ring(self, bench: Bench) -> None:
        bench.host.add_qp(QPN, port=PORT)
        bench.host.post_send(QPN, opcode=0x3, flags=WqeFlag.VLAN, vlan=0x123)
        (frame,) = frames(bench)
        assert frame[12:18].hex() == "8100" + "0123" + "0800"

    def test_7_6_piece_that_cannot_be_read(self, bench: Bench) -> None:
        """The second SGE of the second segment: the first segment has gone."""
        host = bench.host
        host.add_events()
        nowhere = host.add_region(4, 4096, dma_addr=0)
        fields = sge_fields(self.source, (1500, 64, 1500))
        fields |= {"sge1_addr": nowhere.base_to, "sge1_lkey": nowhere.stag}
        host.post_send(QPN, opcode=0x3, **fields)
        host.post_send(QPN, opcode=0x3, **sge_fields(self.source, (1, 2)))
        assert [(item.msn, item.mo) for item in sent(bench)] == [(1, 0), (2, 0)]
        assert [cqe.status for cqe in host.poll_all()] == [Status.GENERAL_ERR, Status.SUCCESS]
        assert host.poll_events() == [(EventType.DMA_READ, QPN)]

    def test_7_2_wqe_that_cannot_be_read(self, bench: Bench) -> None:
        """One burst, one event."""
        bench.host.add_events()
        bench.host.modify_qp(QPN, sq_addr=2)
        bench.host.post_send(QPN, opcode=0x3)
        assert sent(bench) == []
        assert bench.only_cqe().status == Status.LOC_QP_OP_ERR
        assert bench.host.poll_events() == [(EventType.DMA_READ, QPN)]


class TestSendRate:
    """Item 7.9. A frame of 60 octets takes 84 from the bucket."""

    def limit(self, bench: Bench, rate: int, burst: int = 0, posted: int = 12) -> None:
        bench.host.modify_qp(QPN, send_rate=rate, send_burst=burst)
        for _ in range(posted):
            bench.host.post_send(QPN, opcode=0x0)

    def test_falls_below_0(self, bench: Bench) -> None:
        """64, -20, and 30 a tick: 10 after one; -74, -44, -14, 16."""
        self.limit(bench, 30 * 256)
        counts = [len(frames(bench))]
        for _ in range(8):
            bench.advance_ticks(1)
            counts.append(len(frames(bench)))
        assert counts == [1, 1, 0, 0, 1, 0, 0, 1, 0]

    def test_ticks_are_those_of_the_clock(self, bench: Bench) -> None:
        """Not of when the row was written or the frame was sent."""
        bench.nic.advance(1000)
        self.limit(bench, 30 * 256)
        assert len(frames(bench)) == 1
        bench.nic.advance(23)
        assert frames(bench) == []
        bench.nic.advance(1)
        assert len(frames(bench)) == 1

    def test_above_0(self, bench: Bench) -> None:
        """-20 octets at 1/256 octet a tick: 0 after 5120 ticks, which is not above 0."""
        self.limit(bench, 1)
        assert len(frames(bench)) == 1
        bench.advance_ticks(5120)
        assert frames(bench) == []
        bench.advance_ticks(1)
        assert len(frames(bench)) == 1

    @pytest.mark.parametrize("burst, count", [(0, 1), (1, 2), (5, 5), (6, 6)])
    def test_burst(self, bench: Bench, burst: int, count: int) -> None:
        """(burst + 1) * 64 octets are there at first, and never more."""
        self.limit(bench, 256, burst, posted=16)
        assert len(frames(bench)) == count
        bench.advance_ticks(10_000)
        assert len(frames(bench)) == count

    def test_a_row_fills_it(self, bench: Bench) -> None:
        self.limit(bench, 1)
        for _ in range(3):
            assert len(frames(bench)) == 1
            bench.host.modify_qp(QPN)
        bench.host.modify_qp(QPN, send_rate=0)
        assert len(frames(bench)) == 9

    def test_others_are_not_held_back(self, bench: Bench) -> None:
        bench.host.add_qp(5, port=PORT + 5)
        self.limit(bench, 256)
        for _ in range(9):
            bench.host.post_send(5, opcode=0x3)
        ports = [UdpFrame.decode(frame).source_port - PORT for frame in frames(bench)]
        assert sorted(ports) == [0] + [5] * 9

    def test_by_octets_of_the_wire(self, bench: Bench) -> None:
        """A frame of 72 + 1400 + 24 octets, 100 a tick: above 0 after 15 ticks, not after 14."""
        source = bench.host.add_region(3, 1400, access=0)
        bench.host.modify_qp(QPN, send_rate=25600)
        for _ in range(2):
            bench.host.post_send(QPN, payload=source, opcode=0x3)
        (frame,) = frames(bench)
        assert len(frame) == 14 + 20 + 8 + 18 + 1400 + 4
        bench.advance_ticks(14)  # 64 - 1488 + 1400
        assert frames(bench) == []
        bench.advance_ticks(1)
        assert len(frames(bench)) == 1

    def test_responses_count(self, bench: Bench) -> None:
        body = ReadRequest(
            sink_stag=1,
            sink_to=0,
            size=3000,
            source_stag=bench.plain.stag,
            source_to=bench.plain.base_to,
        )
        read = Segment(opcode=Opcode.READ_REQUEST, qn=1, msn=1, payload=body.encode())
        bench.host.modify_qp(QPN, send_rate=256 * 1000)
        bench.receive(read)
        counts = []
        for _ in range(5):
            counts.append(len(frames(bench)))
            bench.advance_ticks(1)
        # 64 - (42 + 30 + 1408 + 4 + 24) = -1444, -444, 556 (to 64), and so on.
        assert counts == [1, 0, 1, 0, 1]

    def test_reads_count(self, bench: Bench) -> None:
        """Their requests have 92 octets, 116 on the wire."""
        bench.host.modify_qp(QPN, send_rate=256 * 26)
        for number in range(2):
            bench.host.post_send(
                QPN,
                payload=bench.mapped,
                opcode=0x1,
                length=8,
                sge_addr=bench.mapped.base_to + 64 * number,
            )
        assert len(frames(bench)) == 1
        bench.advance_ticks(2)
        assert frames(bench) == []  # 64 - 116 + 52
        bench.advance_ticks(1)
        assert len(frames(bench)) == 1

    def test_a_wqe_that_fails_takes_none(self, bench: Bench) -> None:
        bench.host.modify_qp(QPN, send_rate=1)
        for opcode in (0xB, 0xB, 0x3, 0xB):
            bench.host.post_send(QPN, opcode=opcode)
        assert len(frames(bench)) == 1
        assert [cqe.wqe_index for cqe in bench.host.poll_all()] == [0, 1, 2]


class TestLoopback:
    """Item 7.10: frames to the port's own MAC address."""

    def test_own_mac(self, bench: Bench) -> None:
        """It does not leave, and is received as if it had come in."""
        host = bench.host
        host.add_qp(5, port=PORT + 5)
        source = host.add_region(3, 3000, access=0)
        bench.memory.write(source.address, pattern(3000))
        host.post_send(
            QPN,
            payload=source,
            opcode=0xC,
            dest_mac=MAC,
            dest_ip=IPV4,
            dest_port=PORT + 5,
            remote_stag=bench.mapped.stag,
            remote_to=bench.mapped.base_to,
        )
        host.post_send(5, opcode=0x3)
        assert [item.opcode for item in sent(bench)] == [0x3]
        counters = host.counters()
        host.check_sum()
        assert (counters[Counter.TX_FRAMES], counters[Counter.RX_FRAMES]) == (4, 3)
        assert counters[Counter.RX_PLACED] == 3
        received = [cqe for cqe in host.poll_all() if cqe.flags & CqeFlag.RECEIVE]
        assert [(cqe.qpn, cqe.valid, cqe.source_port) for cqe in received] == [(5, 3000, PORT)]
        assert bench.octets(bench.mapped, 0, 3000) == pattern(3000)

    def test_every_check_is_made(self, bench: Bench) -> None:
        """Larger than the port's MTU; another IP address; a port that is nobody's."""
        host = bench.host
        source = host.add_region(3, 1400, access=0)
        own = {"dest_mac": MAC, "dest_ip": IPV4, "dest_port": PORT}
        host.set(Register.MTU, 1000)
        for fields in ({}, {"dest_ip": IPV4 + 7, "length": 9}, {"dest_port": 9, "length": 9}):
            host.post_send(QPN, payload=source, opcode=0x3, **(own | fields))
        assert frames(bench) == []
        for counter in (Counter.DROP_OVERSIZE, Counter.DROP_IP_FILTER, Counter.RX_MANAGEMENT):
            assert host.counter(counter) == 1
        assert len(bench.nic.management) == 1

    def test_read_of_ones_own_memory(self, bench: Bench) -> None:
        """The answer comes back by the same way."""
        bench.memory.write(bench.plain.address, pattern(5000))
        bench.host.post_send(
            QPN,
            payload=bench.mapped,
            opcode=0x1,
            length=5000,
            dest_mac=MAC,
            dest_ip=IPV4,
            dest_port=PORT,
            remote_stag=bench.plain.stag,
            remote_to=bench.plain.base_to,
        )
        assert frames(bench) == []
        cqe = bench.only_cqe()
        assert (cqe.opcode, cqe.status, cqe.valid) == (0x1, Status.SUCCESS, 5000)
        assert bench.octets(bench.mapped, 0, 5000) == pattern(5000)
        bench.host.check_sum()

    def test_transmit_leaves_it_to_the_caller(self, bench: Bench) -> None:
        """Which way each frame goes; nothing is received by itself."""
        host = bench.host
        group = 0x01_00_5E_00_00_01
        ways = []
        for bits in (0, Filter.LOOP_GROUPS):
            host.set(Register.FILTER, bits)
            for mac in (PEER_MAC, MAC, group):
                host.post_send(QPN, opcode=0x3, dest_mac=mac)
                frame, way = bench.nic.transmit() or (b"", None)
                assert frame[:6] == mac.to_bytes(6, "big")
                ways.append(way)
        assert ways == [Way.MAC, Way.LOOP, Way.MAC, Way.MAC, Way.LOOP, Way.MAC | Way.LOOP]
        assert bench.nic.transmit() is None
        assert host.counter(Counter.RX_FRAMES) == 0
        assert host.counter(Counter.TX_FRAMES) == 6


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
        two.check_map(target, offset, data, cqe, seed)
        one.host.check_sum()
        two.host.check_sum()
