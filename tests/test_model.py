"""The reference NIC against ``docs/device.md``, item by item, with expectations worked out by hand.

Registers, tables, and what is decided of a frame before its QP is known: sections 1 and 2.
Tests named after a pitfall (``p9``) are of a fault that such devices are known for.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace

import pytest

from tests.host import (
    IPV6,
    PEER_IPV4,
    PEER_IPV6,
    PEER_PORT,
    HostMemory,
    Region,
    frame_around,
    frame_of,
    record,
)
from tests.model_bench import (
    FILL,
    MLEN,
    PARAMETERS,
    PORT,
    QPN,
    RECEIVE,
    TIMEOUT,
    Bench,
    fill_tables,
    first_half,
    make_bench,
    msn_of,
    ones_sum,
    second_half,
    send,
    write,
)
from uwarp.contract import (
    Control,
    Counter,
    Doorbell,
    QpState,
    Register,
    Status,
    Table,
    doorbell_address,
)
from uwarp.model import Rnic
from uwarp.wire import Opcode, append_crc, crc32c


@pytest.fixture
def bench() -> Bench:
    return make_bench()


class TestRegisters:
    """Section 1."""

    def test_identity(self, bench: Bench) -> None:
        nic = bench.nic
        words = [nic.read32(address) for address in range(0, 0x30, 4)]
        assert words == [0x50525755, 0x30000, 8, 16, 4, 64, 4096, 9000, 156_250_000, 4, 2, 0]

    def test_1_1_after_power_up(self) -> None:
        nic = Rnic(PARAMETERS, HostMemory())
        expected = {0x08C: 1500}
        for address in [*range(0x40, 0x800, 4), *range(0x10_0000, 0x10_2000, 4)]:
            assert nic.read32(address) == expected.get(address, 0), hex(address)

    def test_registers_hold_what_was_written(self, bench: Bench) -> None:
        nic = bench.nic
        nic.write32(0x080, 0x89ABCDEF)
        nic.write32(0x084, 0x4567)
        nic.write32(0x088, 0xC0A80001)
        nic.write32(0x08C, 9000)
        nic.write32(0x090, 0xFFFF_FFFE)
        for word in range(4):
            nic.write32(0x0A0 + 4 * word, 0x8000_0000 + word)
        nic.write32(0x0A4, 0x1234_5678)
        nic.write32(0x0C0, 1)
        nic.write32(0x200, 0x02_0007)
        for word in range(32):
            nic.write32(0x240 + 4 * word, 0xF000_0000 + word)
        assert [nic.read32(address) for address in (0x80, 0x84, 0x88, 0x8C, 0xC0, 0x200)] == [
            0x89ABCDEF,
            0x4567,
            0xC0A80001,
            9000,
            1,
            0x02_0007,
        ]
        assert nic.read32(0x090) == 6
        assert [nic.read32(0x0A0 + 4 * word) for word in range(5)] == [
            0x8000_0000,
            0x1234_5678,
            0x8000_0002,
            0x8000_0003,
            0,
        ]
        assert [nic.read32(0x240 + 4 * word) for word in range(32)] == [
            0xF000_0000 + word for word in range(32)
        ]
        assert nic.read32(0x204) == 0
        for address in (0xC8, 0xCC, 0xD0, 0xD4):
            nic.write32(address, 0xFFFF_FFC0)
        expected = [0xFFFF_FFC0, 0xFFFF_FFC0, 0x100, 0]
        assert [nic.read32(address) for address in (0xC8, 0xCC, 0xD0, 0xD4)] == expected

    def test_read_only_and_unlisted_addresses(self, bench: Bench) -> None:
        nic = bench.nic
        for address in (0x000, 0x024, 0x02C, 0x044, 0x048, 0x05C, 0x400, 0x600, 0x800, 0x7F_FFFC):
            before = nic.read32(address)
            nic.write32(address, 0xFFFF_FFFF)
            assert nic.read32(address) == before
        assert nic.read32(0x02C) == nic.read32(0x800) == nic.read32(0x7F_FFFC) == 0

    def test_bad_accesses(self, bench: Bench) -> None:
        for address in (1, 2, 0x43, -4):
            with pytest.raises(ValueError, match="aligned words"):
                bench.nic.read32(address)
            with pytest.raises(ValueError, match="aligned words"):
                bench.nic.write32(address, 0)
        for value in (-1, 1 << 32):
            with pytest.raises(ValueError, match="32 bits"):
                bench.nic.write32(0x40, value)

    def test_1_2_disabled(self, bench: Bench) -> None:
        bench.host.set(Register.CONTROL, 0)
        bench.receive(record(bench.plain, 0, 5, 0, b"abcde"))
        bench.host.post_send(QPN, opcode=Opcode.SEND)
        assert bench.nic.next_frame() is None
        assert set(bench.host.counters().values()) == {0}
        assert bench.host.poll_all() == []
        bench.host.set(Register.CONTROL, Control.ENABLE)
        assert bench.nic.next_frame() is not None

    def test_1_3_time(self, bench: Bench) -> None:
        nic = bench.nic
        nic.advance(0x1234_8000_0005)
        assert nic.time == 0x1234_8000_0005
        assert nic.read32(0x048) == 0x8000_0005
        nic.advance(1 << 32)
        assert nic.read32(0x04C) == 0x1234, "TIME_HIGH is latched by TIME_LOW"
        nic.read32(0x048)
        assert nic.read32(0x04C) == 0x1235
        nic.advance((1 << 47) - nic.time)
        assert nic.time == nic.read32(0x048) == 0
        with pytest.raises(ValueError, match="forward"):
            nic.advance(-1)

    def test_counter_high_is_latched_by_low(self, bench: Bench) -> None:
        bench.nic.counters[Counter.DROP_CRC] = 0x7_FFFF_FFFF
        address = 0x400 + 8 * 15
        assert bench.nic.read32(address) == 0xFFFF_FFFF
        bench.nic.counters[Counter.DROP_CRC] += 1
        assert bench.nic.read32(address + 4) == 7
        assert bench.nic.read32(address) == 0
        assert bench.nic.read32(address + 4) == 8

    @pytest.mark.parametrize(
        "table, row",
        [
            (Table.QP, 8),
            (Table.REGION, 16),
            (Table.CQ, 8),
            (Table.PORT, 32),
            (Table.MODERATION, 8),
            (Table.GROUP, 4),
            (9, 0),
        ],
    )
    def test_1_4_rows_beyond_the_tables(self, bench: Bench, table: int, row: int) -> None:
        for word in range(32):
            bench.host.set(Register.TABLE_DATA, 0xFFFF_FFFF, word)
        bench.host.set(Register.TABLE_SELECT, table << 16 | row)
        bench.host.set(Register.TABLE_COMMAND, 0)
        bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 5, 0, b"abcde"))

    def test_1_4_qp_reset_clears_indices(self, bench: Bench) -> None:
        host = bench.host
        host.post_send(QPN, opcode=Opcode.SEND)
        frame = bench.nic.next_frame()
        assert frame is not None and msn_of(frame) == 1
        host.post_receive(QPN, bench.plain.base_to, 64, bench.plain.stag)
        host.post_send(QPN, opcode=Opcode.SEND)
        host.modify_qp(QPN, state=QpState.RESET)
        host.modify_qp(QPN, state=QpState.RTS)
        assert bench.nic.next_frame() is None
        bench.gets(Counter.DROP_NO_RECEIVE, send(b"x"))
        host.sqs[QPN].index = host.rqs[QPN].index = 0
        host.post_send(QPN, opcode=Opcode.SEND)
        frame = bench.nic.next_frame()
        assert frame is not None and msn_of(frame) == 1
        assert [cqe.wqe_index for cqe in host.poll_all()] == [0, 0]

    def test_1_4_other_states_keep_indices(self, bench: Bench) -> None:
        host = bench.host
        for _ in range(2):
            host.post_send(QPN, opcode=Opcode.SEND)
        assert bench.nic.next_frame() is not None
        host.modify_qp(QPN, state=QpState.ERROR)
        assert bench.nic.next_frame() is None
        host.modify_qp(QPN, state=QpState.RTS)
        frame = bench.nic.next_frame()
        assert frame is not None and msn_of(frame) == 2

    def test_1_4_cq_row_starts_anew(self, bench: Bench) -> None:
        host = bench.host
        host.ring(Doorbell.CQ_ARM, 0, 0)
        bench.receive(record(bench.plain, 0, 5, 0, b"abcde"))
        assert host.get(Register.IRQ_STATUS) == 1
        host.ring(Doorbell.CQ_ARM, 0, 1)
        host.add_cq(0, log2=1)
        assert host.get(Register.IRQ_STATUS) == 0
        bench.receive(record(bench.plain, 0, 5, 0, b"abcde", msn=2))
        assert host.get(Register.IRQ_STATUS) == 0, "disarmed"
        assert bench.only_cqe().msn == 2

    def test_1_4_cq_row_gives_reservations_back(self, bench: Bench) -> None:
        host = bench.host
        host.add_cq(0, log2=1)
        for msn in (1, 2):
            bench.receive(first_half(replace(bench.mapped, base_to=0x10_0000 + 2048 * msn), msn))
        bench.gets(Counter.DROP_CQ_FULL, record(bench.plain, 0, 5, 0, b"abcde", msn=3))
        host.add_cq(0, log2=1)
        bench.gets(Counter.RX_PLACED, record(bench.plain, 0, 5, 0, b"abcde", msn=3))
        assert bench.only_cqe().msn == 3
        bench.advance_ticks(TIMEOUT)
        assert [cqe.msn for cqe in host.poll_all()] == [1, 2]

    def test_1_5_doorbells(self, bench: Bench) -> None:
        for doorbell in Doorbell:
            bench.nic.write32(doorbell_address(doorbell, 8), 5)
            bench.nic.write32(doorbell_address(doorbell, 1023), 5)
        assert bench.nic.next_frame() is None
        bench.host.modify_qp(QPN, state=QpState.INIT)
        bench.host.post_send(QPN, opcode=Opcode.SEND)
        bench.host.post_receive(QPN, bench.plain.base_to, 64, bench.plain.stag)
        assert bench.nic.next_frame() is None
        bench.host.modify_qp(QPN, state=QpState.RTS)
        assert bench.nic.next_frame() is not None
        bench.gets(Counter.RX_PLACED, send(b"x"))

    def test_p32_soft_reset_with_messages_open(self, bench: Bench) -> None:
        """Nothing is written afterwards; a second run works without anything left of the first."""
        host, nic, memory = bench.host, bench.nic, bench.memory
        source = host.add_region(3, 3000)
        host.set(Register.FILTER, 3)
        host.set(Register.IRQ_ENABLE, 1)
        host.ring(Doorbell.CQ_ARM, 0, 0)
        bench.receive(record(bench.plain, 0, 5, 0, b"abcde"))
        bench.receive(first_half(bench.mapped, msn=2))
        host.post_send(QPN, payload=source, opcode=Opcode.WRITE)
        assert nic.next_frame() is not None and nic.irq
        nic.advance(5000)
        host.set(Register.CONTROL, Control.ENABLE | Control.RESET)
        assert nic.time == 5000, "time goes on"
        assert not nic.irq
        assert host.get(Register.OPEN_MESSAGES) == host.get(Register.CONTROL) == 0
        assert host.get(Register.MTU) == 1500
        for register in (Register.MAC_LOW, Register.MAC_HIGH, Register.IPV4, Register.IRQ_STATUS):
            assert host.get(register) == 0
        assert host.get(Register.FILTER) == 0
        assert [host.get(Register.IPV6, word) for word in range(4)] == [0] * 4
        assert set(host.counters().values()) == {0}
        before = len(memory.writes)
        nic.advance(1 << 30)
        host.start()
        nic.receive(frame_of(record(bench.plain, 0, 5, 0, b"abcde"), PORT))
        assert host.counter(Counter.RX_MANAGEMENT) == 1, "the port table is empty"
        assert nic.next_frame() is None
        assert len(memory.writes) == before

        again = fill_tables(nic, host, memory)
        again.receive(first_half(again.mapped, msn=2))
        again.receive(second_half(again.mapped, msn=2))
        cqe = again.only_cqe()
        assert (cqe.status, cqe.valid, cqe.phase) == (Status.SUCCESS, MLEN, 1)


# Faults that one frame can have together, in the order in which they are found.
FAULTS: dict[str, Counter] = {
    "mac error": Counter.DROP_MAC_ERROR,
    "oversize": Counter.DROP_OVERSIZE,
    "mac filter": Counter.DROP_MAC_FILTER,
    "ethertype": Counter.RX_MANAGEMENT,
    "ip version": Counter.DROP_IP_HEADER,
    "ip checksum": Counter.DROP_IP_CHECKSUM,
    "fragment": Counter.DROP_IP_FRAGMENT,
    "ip filter": Counter.DROP_IP_FILTER,
    "protocol": Counter.RX_MANAGEMENT,
    "udp length": Counter.DROP_UDP_LENGTH,
    "udp checksum": Counter.DROP_UDP_CHECKSUM,
    "port": Counter.RX_MANAGEMENT,
    "crc": Counter.DROP_CRC,
    "ddp version": Counter.DROP_DDP_VERSION,
    "rdmap version": Counter.DROP_RDMAP_VERSION,
    "opcode": Counter.DROP_OPCODE,
    "short": Counter.DROP_DDP_SHORT,
}


# What the fault-finding frames come in: EtherTypes and contents of VLAN tags, IP version.
SHAPES = {
    "IPv4": ("", 4),
    "IPv4 in VLAN": ("8100 e005", 4),
    "IPv4 in QinQ": ("88a8 0001 8100 0002", 4),
    "IPv6": ("", 6),
    "IPv6 in VLAN": ("88a8 1fff", 6),
    "IPv6 in QinQ": ("8100 0000 8100 ffff", 6),
}


def faulty_frame(faults: set[str], stag: int, to: int, shape: str = "IPv4") -> bytes:
    """A Write-Record of eight octets with the named faults, and no others."""
    tags, version = SHAPES[shape]
    ddp = 0xC2 if "ddp version" in faults else 0xC1
    rdmap = (0x80 if "rdmap version" in faults else 0x40) | (0xF if "opcode" in faults else 0xC)
    segment = struct.pack("!BBIQIIII", ddp, rdmap, stag, to, 1, 0, 8, 0)
    segment = segment[:29] if "short" in faults else segment + b"12345678"
    crc = crc32c(segment) ^ ("crc" in faults)
    body = segment + struct.pack("<I", crc)
    length = len(body) + 8
    if version == 4:
        source, destination = struct.pack("!I", PEER_IPV4), bytes((10, 0, 0, 1))
    else:
        source, destination = PEER_IPV6.to_bytes(16, "big"), IPV6.to_bytes(16, "big")
    if "ip filter" in faults:
        destination = destination[:-1] + b"\x09"
    udp_length = 7 if "udp length" in faults else length
    udp = struct.pack("!HHH", PEER_PORT, 4801 if "port" in faults else PORT, udp_length)
    pseudo = source + destination + struct.pack("!II", length, 17)
    checksum = 0xFFFF - ones_sum(pseudo + udp + bytes(2) + body) or 0xFFFF
    udp += struct.pack("!H", checksum ^ (0x0100 if "udp checksum" in faults else 0))
    protocol = 6 if "protocol" in faults else 17
    if version == 4:
        ip = struct.pack(
            "!BBHHHBBH",
            0x65 if "ip version" in faults else 0x45,
            0,
            20 + length,
            0,
            0x6000 if "fragment" in faults else 0x4000,
            64,
            protocol,
            0,
        )
        ip_sum = 0xFFFF - ones_sum(ip + source + destination) ^ ("ip checksum" in faults)
        ip = ip[:10] + struct.pack("!H", ip_sum)
    else:
        first = 0x4FFF_FFFF if "ip version" in faults else 0x6FFF_FFFF
        ip = struct.pack("!IHBB", first, length, 44 if "fragment" in faults else protocol, 1)
    ethernet = bytes.fromhex("020000000001020000000002" + tags)
    if "mac filter" in faults:
        ethernet = b"\x06" + ethernet[1:]
    ethertype = "0806" if "ethertype" in faults else "0800" if version == 4 else "86dd"
    frame = ethernet + bytes.fromhex(ethertype) + ip + source + destination + udp + body
    room = 1500 + len(ethernet) + 2
    return frame.ljust(room + 1 if "oversize" in faults else 60, b"\0")


def with_ip(frame: bytes, place: int, octets: str) -> bytes:
    """The frame with octets of its IPv4 header replaced, and the header's checksum put right."""
    changed = bytearray(frame)
    changed[14 + place : 14 + place + len(octets) // 2] = bytes.fromhex(octets)
    changed[24:26] = bytes(2)
    end = 14 + max(20, 4 * (changed[14] & 15))
    changed[24:26] = struct.pack("!H", 0xFFFF - ones_sum(bytes(changed[14:end])))
    return bytes(changed)


def with_options(frame: bytes, options: bytes, more: int = 0) -> bytes:
    """The untagged IPv4 frame with options; its total length ``more`` octets off."""
    assert len(options) % 4 == 0
    (total,) = struct.unpack("!H", frame[16:18])
    changed = frame[:34] + options + frame[34:]
    changed = with_ip(changed, 0, f"{0x45 + len(options) // 4:02x}")
    return with_ip(changed, 2, f"{total + len(options) + more:04x}")


def with_octets(frame: bytes, place: int, octets: str) -> bytes:
    return frame[:place] + bytes.fromhex(octets) + frame[place + len(octets) // 2 :]


def without_udp_checksum(frame: bytes) -> bytes:
    return with_octets(frame, 40, "0000")


class TestVerdict:
    """Section 2."""

    def good(self, bench: Bench, shape: str = "IPv4") -> bytes:
        return faulty_frame(set(), bench.plain.stag, bench.plain.base_to, shape)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_p8_good_frame(self, bench: Bench, shape: str) -> None:
        bench.frame_gets(Counter.RX_PLACED, self.good(bench, shape))
        assert bench.octets(bench.plain, 0, 9) == b"12345678" + bytes([FILL])
        assert bench.only_cqe().valid == 8

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("fault", FAULTS)
    def test_p9_p15_each_fault(self, bench: Bench, fault: str, shape: str) -> None:
        """No octet placed, no CQE; the next frame is intact."""
        if fault == "ip checksum" and "IPv6" in shape:
            return
        frame = faulty_frame({fault}, bench.plain.stag, bench.plain.base_to, shape)
        bench.frame_gets(FAULTS[fault], frame, error=fault == "mac error")
        bench.frame_gets(Counter.RX_PLACED, self.good(bench, shape))
        assert len(bench.nic.management) == (FAULTS[fault] is Counter.RX_MANAGEMENT)

    @pytest.mark.parametrize("shape", ["IPv4", "IPv6 in QinQ"])
    @pytest.mark.parametrize("pair", list(itertools.combinations(FAULTS, 2)), ids=" and ".join)
    def test_the_first_fault_counts(self, bench: Bench, pair: tuple[str, str], shape: str) -> None:
        if "ip checksum" in pair and "IPv6" in shape:
            return
        frame = faulty_frame(set(pair), bench.plain.stag, bench.plain.base_to, shape)
        bench.frame_gets(FAULTS[pair[0]], frame, error="mac error" in pair)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_p13_frame_cut_short_anywhere(self, bench: Bench, shape: str) -> None:
        """Any prefix is dropped: without an EtherType a runt, else for its IP header."""
        good = self.good(bench, shape)
        header = 14 + len(bytes.fromhex(SHAPES[shape][0]))
        assert len(good) == header + (20 if "IPv4" in shape else 40) + 50
        for length in range(len(good)):
            runt = Counter.DROP_RUNT if length < header else Counter.DROP_IP_HEADER
            bench.frame_gets(runt, good[:length])
        bench.frame_gets(Counter.RX_PLACED, good)
        bench.host.check_sum()

    @pytest.mark.parametrize("shape", SHAPES)
    def test_p17_oversize_leaves_tags_out(self, bench: Bench, shape: str) -> None:
        header = 14 + len(bytes.fromhex(SHAPES[shape][0]))
        bench.frame_gets(Counter.RX_PLACED, self.good(bench, shape).ljust(1500 + header, b"\0"))
        bench.frame_gets(Counter.DROP_OVERSIZE, self.good(bench, shape).ljust(1501 + header, b"\0"))

    def test_p17_oversize(self, bench: Bench) -> None:
        """MTU + 14 octets pass, one more does not, whatever is in them."""
        bench.host.add_region(4, 10000, base_to=0)
        region = Region(0x45A, 0, 10000, 0, 0)
        for msn, mtu in enumerate((576, 1500, 9000), start=1):
            bench.host.set(Register.MTU, mtu)
            room = mtu - 62
            full = frame_of(record(region, 0, room, 0, bytes(room), msn), PORT)
            assert len(full) == mtu + 14
            bench.frame_gets(Counter.RX_PLACED, full)
            more = frame_of(record(region, 0, room + 1, 0, bytes(room + 1), msn + 10), PORT)
            bench.frame_gets(Counter.DROP_OVERSIZE, more)
            bench.frame_gets(Counter.DROP_OVERSIZE, bytes.fromhex("06").ljust(mtu + 15, b"\0"))
            bench.frame_gets(Counter.DROP_OVERSIZE, self.good(bench).ljust(mtu + 15, b"\0"))

    def test_p7_destinations(self, bench: Bench) -> None:
        good = self.good(bench)
        bench.frame_gets(Counter.DROP_MAC_FILTER, with_octets(good, 0, "020000000009"))
        bench.frame_gets(Counter.DROP_MAC_FILTER, with_octets(good, 0, "01005e000001"))
        bench.frame_gets(Counter.DROP_MAC_FILTER, with_octets(good, 0, "fffffffffffe"))
        # The sum over the pseudo header is not what is looked at here.
        good = without_udp_checksum(good)
        bench.frame_gets(Counter.DROP_IP_FILTER, with_ip(good, 16, "0a000003"))
        bench.frame_gets(Counter.DROP_IP_FILTER, with_ip(good, 16, "e0000001"))
        bench.frame_gets(Counter.RX_MANAGEMENT, with_ip(good, 16, "ffffffff"))
        bench.frame_gets(Counter.RX_MANAGEMENT, with_octets(good, 0, "ffffffffffff"))
        bench.frame_gets(Counter.RX_PLACED, good)

    @pytest.mark.parametrize("value", range(4))
    def test_p7_filter(self, bench: Bench, value: int) -> None:
        """What FILTER lets through to management, whatever the rest of the frame is."""
        bench.host.set(Register.FILTER, value)
        multicast = Counter.RX_MANAGEMENT if value & 1 else Counter.DROP_MAC_FILTER
        foreign = Counter.RX_MANAGEMENT if value & 2 else Counter.DROP_MAC_FILTER
        good = self.good(bench)
        for mac, counter in {
            "01005e000001": multicast,
            "333300000001": multicast,
            "030000000001": multicast,
            "fffffffffffe": multicast,
            "020000000009": foreign,
            "000000000000": foreign,
            "fe0000000001": foreign,
            "ffffffffffff": Counter.RX_MANAGEMENT,
        }.items():
            frame = with_octets(good, 0, mac)
            bench.frame_gets(counter, frame)
            kept = list(bench.nic.management)[-1:]
            assert (kept == [frame]) == (counter is Counter.RX_MANAGEMENT)
        bench.frame_gets(foreign, with_octets(good, 0, "020000000009")[:14])
        bench.frame_gets(Counter.DROP_RUNT, with_octets(good, 0, "020000000009")[:13])
        bench.frame_gets(Counter.DROP_OVERSIZE, with_octets(good, 0, "01").ljust(1515, b"\0"))
        bench.frame_gets(Counter.RX_PLACED, good)

    @pytest.mark.parametrize("tags", ["", "81000005", "88a800018100ffff"])
    @pytest.mark.parametrize("ethertype", ["0806", "88cc", "9100", "0000", "05dc", "0801", "86dc"])
    def test_p8_other_ethertypes(self, bench: Bench, tags: str, ethertype: str) -> None:
        good = self.good(bench)
        frame = good[:12] + bytes.fromhex(tags + ethertype) + good[14:]
        bench.frame_gets(Counter.RX_MANAGEMENT, frame)
        assert list(bench.nic.management) == [frame]
        bench.frame_gets(Counter.RX_MANAGEMENT, frame[: 14 + len(tags) // 2])

    def test_p8_three_tags(self, bench: Bench) -> None:
        """The third tag is an EtherType that nobody here knows."""
        frame = self.good(bench, "IPv4 in QinQ")
        frame = frame[:12] + bytes.fromhex("81000001") + frame[12:]
        bench.frame_gets(Counter.RX_MANAGEMENT, frame)
        bench.frame_gets(Counter.RX_MANAGEMENT, frame[:22])
        bench.frame_gets(Counter.DROP_RUNT, frame[:21])

    @pytest.mark.parametrize(
        "place, octets, counter",
        [
            (0, "35", Counter.DROP_IP_HEADER),
            (0, "44", Counter.DROP_IP_HEADER),
            (0, "40", Counter.DROP_IP_HEADER),
            (0, "46", Counter.DROP_UDP_LENGTH),
            (0, "4f", Counter.DROP_UDP_LENGTH),
            (2, "0000", Counter.DROP_IP_HEADER),
            (2, "0013", Counter.DROP_IP_HEADER),
            (2, "0047", Counter.DROP_IP_HEADER),
            (2, "ffff", Counter.DROP_IP_HEADER),
            (6, "2000", Counter.DROP_IP_FRAGMENT),
            (6, "0001", Counter.DROP_IP_FRAGMENT),
            (6, "1000", Counter.DROP_IP_FRAGMENT),
            (6, "0000", Counter.RX_PLACED),
            (6, "8000", Counter.RX_PLACED),
            (9, "01", Counter.RX_MANAGEMENT),
            (9, "02", Counter.RX_MANAGEMENT),
            (2, "0014", Counter.DROP_UDP_LENGTH),
            (2, "001b", Counter.DROP_UDP_LENGTH),
            (2, "001c", Counter.DROP_UDP_LENGTH),
            (2, "0045", Counter.DROP_UDP_LENGTH),
        ],
    )
    def test_p4_p5_p6_ip_header(
        self, bench: Bench, place: int, octets: str, counter: Counter
    ) -> None:
        """The packet has 70 (0x46) octets, of which UDP says that it takes 50."""
        bench.frame_gets(counter, with_ip(self.good(bench), place, octets))
        bench.host.check_sum()

    @pytest.mark.parametrize("words", range(1, 11))
    def test_p6_options(self, bench: Bench, words: int) -> None:
        """Options of every length are skipped, and the header's sum is over them too."""
        options = bytes(range(0x81, 0x81 + 4 * words))
        good = self.good(bench)
        frame = with_options(good, options)
        bench.frame_gets(Counter.RX_PLACED, frame)
        assert bench.octets(bench.plain, 0, 9) == b"12345678" + bytes([FILL])
        for place in (34, 33 + 4 * words):
            wrong = bytearray(frame)
            wrong[place] ^= 0x40
            bench.frame_gets(Counter.DROP_IP_CHECKSUM, bytes(wrong))
        header = 20 + 4 * words
        # Lengths that end in the options, at their end, and one octet before the datagram's.
        for more, counter in [
            (-51, Counter.DROP_IP_HEADER),
            (-50, Counter.DROP_UDP_LENGTH),
            (-43, Counter.DROP_UDP_LENGTH),
            (-1, Counter.DROP_UDP_LENGTH),
            (1, Counter.DROP_IP_HEADER),
        ]:
            bench.frame_gets(counter, with_options(good, options, more))
        for length in range(34, 14 + header):
            bench.frame_gets(Counter.DROP_IP_HEADER, frame[:length])
        bench.frame_gets(Counter.DROP_IP_FRAGMENT, with_ip(frame, 6, "2000"))
        bench.frame_gets(Counter.DROP_IP_FILTER, with_ip(frame, 16, "0a000003"))
        bench.frame_gets(Counter.RX_MANAGEMENT, with_ip(frame, 9, "01"))
        bench.advance_ticks(TIMEOUT)
        bench.frame_gets(Counter.RX_PLACED, frame + b"\xee" * 9)

    def test_p6_options_with_total_length_under_the_header(self, bench: Bench) -> None:
        """IHL 6 with a total length of 23: the checksum is not looked at."""
        frame = with_octets(with_octets(self.good(bench), 14, "46"), 16, "0017")
        bench.frame_gets(Counter.DROP_IP_HEADER, frame)

    @pytest.mark.parametrize("shape", ["IPv6", "IPv6 in VLAN", "IPv6 in QinQ"])
    @pytest.mark.parametrize(
        "place, octets, counter",
        [
            (0, "5f", Counter.DROP_IP_HEADER),
            (0, "45", Counter.DROP_IP_HEADER),
            (0, "7f", Counter.DROP_IP_HEADER),
            (0, "60000000", Counter.RX_PLACED),
            (4, "0033", Counter.DROP_IP_HEADER),
            (4, "ffff", Counter.DROP_IP_HEADER),
            (4, "0031", Counter.DROP_UDP_LENGTH),
            (4, "0008", Counter.DROP_UDP_LENGTH),
            (4, "0007", Counter.DROP_UDP_LENGTH),
            (4, "0000", Counter.DROP_UDP_LENGTH),
            (6, "2c", Counter.DROP_IP_FRAGMENT),
            *((6, f"{header:02x}", Counter.RX_MANAGEMENT) for header in (0, 43, 60, 51, 50, 135)),
            *((6, f"{header:02x}", Counter.RX_MANAGEMENT) for header in (59, 58, 6, 16, 18, 255)),
            (7, "00", Counter.RX_PLACED),
            (24, "7d", Counter.DROP_IP_FILTER),
            (39, "00", Counter.DROP_IP_FILTER),
            (24, "ff020000000000000000000000000001", Counter.DROP_IP_FILTER),
            (24, "00000000000000000000ffff0a000001", Counter.DROP_IP_FILTER),
            (8, "fe", Counter.DROP_UDP_CHECKSUM),
            (23, "03", Counter.DROP_UDP_CHECKSUM),
            (44, "0007", Counter.DROP_UDP_LENGTH),
            (44, "0000", Counter.DROP_UDP_LENGTH),
            (44, "0033", Counter.DROP_UDP_LENGTH),
            (46, "0000", Counter.RX_PLACED),
        ],
    )
    def test_p4_p5_p6_ipv6_header(
        self, bench: Bench, place: int, octets: str, counter: Counter, shape: str
    ) -> None:
        """The payload has 50 (0x32) octets. The checksum of 0 is that of UDP, at 46."""
        good = self.good(bench, shape)
        start = 14 + len(bytes.fromhex(SHAPES[shape][0]))
        bench.frame_gets(counter, with_octets(good, start + place, octets))
        bench.advance_ticks(TIMEOUT)
        bench.frame_gets(Counter.RX_PLACED, good)
        bench.host.check_sum()

    @pytest.mark.parametrize("shape", ["IPv6", "IPv6 in VLAN", "IPv6 in QinQ"])
    def test_p7_ipv6_to_the_broadcast_mac(self, bench: Bench, shape: str) -> None:
        frame = with_octets(self.good(bench, shape), 0, "ffffffffffff")
        bench.frame_gets(Counter.RX_MANAGEMENT, frame)
        start = 14 + len(bytes.fromhex(SHAPES[shape][0]))
        bench.frame_gets(Counter.DROP_IP_FILTER, with_octets(frame, start + 39, "02"))

    def test_p6_unset_ipv6_address(self, bench: Bench) -> None:
        """All 32-bit words of IPV6 count."""
        for word in range(4):
            bench.host.start()
            bench.advance_ticks(TIMEOUT)
            bench.frame_gets(Counter.RX_PLACED, self.good(bench, "IPv6"))
            bench.host.set(Register.IPV6, 0x8000_0000, word)
            bench.frame_gets(Counter.DROP_IP_FILTER, self.good(bench, "IPv6"))

    @pytest.mark.parametrize(
        "length, counter",
        [
            ("0000", Counter.DROP_UDP_LENGTH),
            ("0007", Counter.DROP_UDP_LENGTH),
            ("0033", Counter.DROP_UDP_LENGTH),
            ("ffff", Counter.DROP_UDP_LENGTH),
            ("0008", Counter.DROP_DDP_SHORT),
            ("0019", Counter.DROP_DDP_SHORT),
            ("001a", Counter.DROP_CRC),
            ("0031", Counter.DROP_CRC),
            ("0032", Counter.RX_PLACED),
        ],
    )
    def test_p3_p4_udp_length(self, bench: Bench, length: str, counter: Counter) -> None:
        """UDP payloads of 0 and 17 octets are too short; from 18 on their CRC is looked at."""
        bench.frame_gets(counter, without_udp_checksum(with_octets(self.good(bench), 38, length)))
        bench.frame_gets(Counter.RX_PLACED, frame_of(write(bench.plain, 0, b"x"), PORT))

    @pytest.mark.parametrize("version", [4, 6])
    @pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 17])
    def test_p3_short_datagrams_for_us(self, bench: Bench, size: int, version: int) -> None:
        frame = frame_around(bytes(size), PORT, ip_version=version)
        bench.frame_gets(Counter.DROP_DDP_SHORT, frame)

    @pytest.mark.parametrize("version, place", [(4, 40), (6, 60)])
    def test_p19_checksums(self, bench: Bench, version: int, place: int) -> None:
        for length in (1, 2, 3, 63, 64, 65):
            for fill in (b"\xff", b"\0", b"\x80"):
                segment = write(bench.plain, 0, fill * length)
                frame = frame_of(segment, PORT, ip_version=version)
                bench.frame_gets(Counter.RX_PLACED, frame)
                bench.frame_gets(Counter.RX_PLACED, with_octets(frame, place, "0000"))
                wrong = struct.unpack("!H", frame[place : place + 2])[0] ^ 0x8000
                if wrong:
                    bench.frame_gets(
                        Counter.DROP_UDP_CHECKSUM, with_octets(frame, place, f"{wrong:04x}")
                    )

    def test_p19_udp_checksum_ffff(self, bench: Bench) -> None:
        """A sum that comes to 0 is sent as 0xFFFF, and is right."""
        segment = write(bench.plain, 0, b"abc")
        frame = frame_of(segment, PORT, source_port=0)
        # The complement of the sum without a port is the port that makes the sum 0xFFFF.
        (port,) = struct.unpack("!H", frame[40:42])
        frame = frame_of(segment, PORT, source_port=port)
        assert frame[40:42] == b"\xff\xff"
        bench.frame_gets(Counter.RX_PLACED, frame)

    def test_p31_opcodes_and_versions(self, bench: Bench) -> None:
        """Every pair of control octets, with a segment long enough for any opcode."""
        tagged = {0x0: True, 0x1: False, 0x3: False, 0x5: False, 0x7: False}
        tagged |= {0xC: True, 0xD: True, 0xE: False}
        for ddp, rdmap in itertools.product((0x01, 0x81, 0x80, 0x82, 0x83, 0x00), range(256)):
            payload = append_crc(bytes((ddp, rdmap)) + bytes(45))
            before = bench.host.counters()
            bench.nic.receive(frame_around(payload, PORT))
            after = bench.host.counters()
            if ddp & 3 != 1:
                expected = Counter.DROP_DDP_VERSION
            elif rdmap >> 6 != 1:
                expected = Counter.DROP_RDMAP_VERSION
            elif tagged.get(rdmap & 15) != bool(ddp & 0x80):
                expected = Counter.DROP_OPCODE
            elif rdmap & 15 == 0:
                expected = Counter.DROP_STAG_INVALID
            elif rdmap & 15 in (1, 7):
                expected = Counter.DROP_UNTAGGED_QN
            else:  # payload without a message length
                expected = Counter.DROP_MESSAGE_LENGTH
            assert after[expected] == before[expected] + 1, f"{ddp:02x} {rdmap:02x}"
        bench.host.check_sum()

    @pytest.mark.parametrize(
        "control, header",
        [
            ("c140", 14),
            ("4141", 46),
            ("c14c", 30),
            ("c14d", 30),
            ("4143", 18),
            ("4145", 18),
            ("4147", 22),
            ("414e", 22),
        ],
    )
    def test_p31_segments_shorter_than_their_header(
        self, bench: Bench, control: str, header: int
    ) -> None:
        for length in range(14, header + 1):
            payload = append_crc(bytes.fromhex(control).ljust(length, b"\0"))
            before = bench.host.counter(Counter.DROP_DDP_SHORT)
            bench.nic.receive(frame_around(payload, PORT))
            short = bench.host.counter(Counter.DROP_DDP_SHORT) - before
            assert short == (length < header), length
        bench.host.check_sum()

    def test_reserved_bits_are_ignored(self, bench: Bench) -> None:
        """Reserved bits of the DDP octet; SE and IM of a Write and a Send."""
        body = struct.pack("!BBIQ", 0xFD, 0x70, bench.plain.stag, bench.plain.base_to) + b"hi"
        bench.frame_gets(Counter.RX_PLACED, frame_around(append_crc(body), PORT))
        assert bench.octets(bench.plain, 0, 3) == b"hi" + bytes([FILL])
        bench.host.post_receive(QPN, bench.plain.base_to, 64, bench.plain.stag)
        body = struct.pack("!BBIIII", 0x7D, 0x73, 2, 0, 9, 0) + b"yo"
        bench.frame_gets(Counter.RX_PLACED, frame_around(append_crc(body), PORT))
        cqe = bench.only_cqe()
        assert (cqe.opcode, cqe.flags, cqe.immediate) == (Opcode.SEND, RECEIVE, 0)

    @pytest.mark.parametrize("length", range(1, 46))
    def test_p1_padding(self, bench: Bench, length: int) -> None:
        """Padding of the frame, and octets between the UDP and the IP length, are never placed."""
        frame = frame_of(write(bench.plain, 100, b"\x11" * length), PORT)
        bench.frame_gets(Counter.RX_PLACED, frame + b"\xee" * 7)
        longer = with_ip(frame + b"\xee" * 7, 2, f"{len(frame) - 14 + 5:04x}")
        bench.frame_gets(Counter.RX_PLACED, longer)
        expected = bytes([FILL]) * 100 + b"\x11" * length
        assert bench.octets(bench.plain) == expected.ljust(16384, bytes([FILL]))

    def test_port_table(self, bench: Bench) -> None:
        """A port may stand in a row of each bank. For 8 rows: 4800 is 0x12C0."""
        host = bench.host
        # 0x12C0 >> 3 = 0x258, >> 6 = 0x4B, >> 10 = 4; low three bits of the XORs: 0, 0, 3, 4.
        rows = (0, 8 + 0, 16 + 3, 24 + 4)
        host.write_row(Table.PORT, rows[0])
        bench.gets(Counter.RX_MANAGEMENT, write(bench.plain, 0, b"x"))
        for row in rows:
            host.write_row(Table.PORT, row, valid=1, port=PORT, qpn=QPN)
            bench.gets(Counter.RX_PLACED, write(bench.plain, 0, b"x"))
            host.write_row(Table.PORT, row, valid=1, port=PORT + 1, qpn=QPN)
            bench.gets(Counter.RX_MANAGEMENT, write(bench.plain, 0, b"x"))
            host.write_row(Table.PORT, row, valid=0, port=PORT, qpn=QPN)
            bench.gets(Counter.RX_MANAGEMENT, write(bench.plain, 0, b"x"))
        host.write_row(Table.PORT, rows[3], valid=1, port=PORT, qpn=QPN)
        host.write_row(Table.PORT, rows[1], valid=1, port=PORT, qpn=QPN + 1)
        bench.gets(Counter.DROP_QP_STATE, write(bench.plain, 0, b"x"))
