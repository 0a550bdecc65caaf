"""Groups of the reference NIC: ``docs/device.md``, sections 2 and 3, item by item. Expectations are
worked out by hand. Tests named after a pitfall (``p43``) are of a fault that such devices are known
for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.host import IPV4, MAC, PEER_MAC, PEER_PORT, frame_around, frame_of
from tests.model_bench import (
    FILL,
    PORT,
    QPN,
    Bench,
    frames,
    make_bench,
    pattern,
    send,
)
from uwarp.contract import (
    Counter,
    CqeFlag,
    Filter,
    QpState,
    Register,
    Status,
    Table,
    port_rows,
)
from uwarp.wire import IPV4 as IPV4_HEADER
from uwarp.wire import Opcode, Segment, append_crc, internet_sum

GROUP_PORT = 5002
GROUP_MAC = 0x01_00_5E_01_02_03
GROUP_IPV4 = 0xEF_01_02_03  # 239.1.2.3
GROUP_IPV6 = 0xFF15 << 112 | 0x1234
GROUP_IPV6_MAC = 0x33_33_00_00_12_34
MAPPED = 0xFFFF << 32
ROW = 2
MEMBERS = (1, 5, QPN)


@pytest.fixture
def bench() -> Bench:
    """QPs 1, 3 and 5 are members of 239.1.2.3 at port 5002, each with eight receives of 64 octets:
    QP n's begin 1024 n octets into the plain region."""
    bench = make_bench(n_closed=256)
    for number in (1, 5):
        bench.host.add_qp(number, port=PORT + number)
    for number in MEMBERS:
        for slot in range(8):
            at = bench.plain.base_to + 1024 * number + 64 * slot
            bench.host.post_receive(number, at, 64, bench.plain.stag)
    bench.host.set_group(ROW, MAPPED | GROUP_IPV4, *MEMBERS)
    bench.host.add_port(GROUP_PORT, ROW, group=1)
    return bench


def to_group(segment: Segment, port: int = GROUP_PORT, **fields: Any) -> bytes:
    """A frame to the group; with ``ip_version`` 6 to the other one."""
    six = fields.get("ip_version") == 6
    addresses = {
        "dest_mac": GROUP_IPV6_MAC if six else GROUP_MAC,
        "dest_ip": GROUP_IPV6 if six else GROUP_IPV4,
    }
    return frame_of(segment, port, **(addresses | fields))


def ends(bench: Bench, frame: bytes) -> dict[Counter, int]:
    """Receive a frame; returns how many of its copies ended in which counter."""
    before = bench.host.counters()
    bench.nic.receive(frame)
    after = bench.host.counters()
    bench.host.check_sum()
    changed = {item: after[item] - before[item] for item in after if after[item] != before[item]}
    assert changed.pop(Counter.RX_FRAMES) == 1
    changed.pop(Counter.CQES, None)
    changed.pop(Counter.EVENTS_LOST, None)
    copies = changed.pop(Counter.RX_COPIES, 0)
    assert copies == sum(changed.values()) - 1
    return changed


class TestGroupDatagram:
    """Section 2, items 5, 10, 15 and 20."""

    @pytest.mark.parametrize("version", [4, 6])
    def test_every_member_receives(self, bench: Bench, version: int) -> None:
        bench.host.set_group(3, GROUP_IPV6, *MEMBERS)
        bench.host.add_port(GROUP_PORT + 1, 3, group=1)
        port = GROUP_PORT + (version == 6)
        frame = to_group(send(b"hello"), port, ip_version=version)
        assert ends(bench, frame) == {Counter.RX_PLACED: 3}
        assert [(cqe.qpn, cqe.valid) for cqe in bench.host.poll_all()] == [(1, 5), (5, 5), (3, 5)]
        for number in MEMBERS:
            assert bench.octets(bench.plain, 1024 * number, 6) == b"hello" + bytes([FILL])
        assert len(bench.nic.management) == 0

    @pytest.mark.parametrize("opcode", [Opcode.SEND, Opcode.SEND_SOLICITED, Opcode.SEND_IMMEDIATE])
    def test_20_opcodes(self, bench: Bench, opcode: Opcode) -> None:
        assert ends(bench, to_group(send(b"x", opcode=opcode))) == {Counter.RX_PLACED: 3}

    def test_20_other_opcodes(self, bench: Bench) -> None:
        """One drop, not one for each member."""
        for opcode in range(16):
            if opcode in (0x3, 0x5, 0xE):
                continue
            tagged = 0x80 if opcode in (0x0, 0x2, 0xC, 0xD) else 0
            payload = append_crc(bytes((0x41 | tagged, 0x40 | opcode)) + bytes(45))
            frame = frame_around(payload, GROUP_PORT, dest_mac=GROUP_MAC, dest_ip=GROUP_IPV4)
            assert ends(bench, frame) == {Counter.DROP_OPCODE: 1}, opcode

    @pytest.mark.parametrize(
        "fields, counter",
        [
            ({"dest_ip": GROUP_IPV4 + 1}, Counter.DROP_MAC_FILTER),
            ({"dest_ip": IPV4}, Counter.DROP_MAC_FILTER),
            ({"dest_mac": GROUP_MAC + 7}, Counter.RX_PLACED),  # the IP address is what counts
            ({"dest_mac": 0xFFFF_FFFF_FFFF}, Counter.RX_PLACED),
            ({"dest_mac": 0xFFFF_FFFF_FFFF, "dest_ip": GROUP_IPV4 + 1}, Counter.DROP_IP_FILTER),
            ({"dest_mac": 0xFFFF_FFFF_FFFF, "dest_ip": IPV4}, Counter.RX_MANAGEMENT),
            ({"dest_mac": MAC}, Counter.DROP_IP_FILTER),
            ({"dest_mac": MAC, "dest_ip": IPV4}, Counter.RX_MANAGEMENT),
            ({"dest_mac": PEER_MAC}, Counter.DROP_MAC_FILTER),
            ({"dest_port": GROUP_PORT + 9}, Counter.DROP_MAC_FILTER),
            ({"dest_port": PORT}, Counter.DROP_MAC_FILTER),
            ({"vlan_tags": (0x8100_0001, 0x88A8_0002)}, Counter.RX_PLACED),
        ],
    )
    def test_5_which_frames(self, bench: Bench, fields: dict[str, int], counter: Counter) -> None:
        expected = {counter: 3 if counter is Counter.RX_PLACED else 1}
        assert ends(bench, to_group(send(b"x"), **fields)) == expected

    @pytest.mark.parametrize(
        "broken, unicast",
        [
            ("ethertype", Counter.RX_MANAGEMENT),
            ("version", Counter.DROP_IP_HEADER),
            ("checksum", Counter.DROP_IP_CHECKSUM),
            ("fragment", Counter.DROP_IP_FRAGMENT),
            ("protocol", Counter.DROP_IP_FILTER),
            ("udp length", Counter.DROP_IP_FILTER),
        ],
    )
    @pytest.mark.parametrize("wanted", [0, Filter.MULTICAST])
    def test_5_a_frame_that_fails_a_check_is_none(
        self, bench: Bench, broken: str, unicast: Counter, wanted: int
    ) -> None:
        """It ends as a multicast frame; to a broadcast MAC address it ends at that check."""
        bench.host.set(Register.FILTER, wanted)
        octets = bytearray(to_group(send(b"x" * 40)))
        at = {"ethertype": 12, "version": 14, "checksum": 24, "fragment": 20, "protocol": 23}
        if broken == "udp length":
            octets[38:40] = b"\xff\xff"
        else:
            octets[at[broken]] ^= 0x21
        if broken in ("fragment", "protocol"):
            octets[24:26] = bytes(2)
            octets[24:26] = (0xFFFF ^ internet_sum(bytes(octets[14:34]))).to_bytes(2, "big")
        counter = Counter.RX_MANAGEMENT if wanted else Counter.DROP_MAC_FILTER
        assert ends(bench, bytes(octets)) == {counter: 1}
        octets[:6] = b"\xff" * 6
        assert ends(bench, bytes(octets)) == {unicast: 1}

    def test_5_it_skips_the_filter(self, bench: Bench) -> None:
        """It is no management frame, though multicast frames are."""
        bench.host.set(Register.FILTER, Filter.MULTICAST)
        assert ends(bench, to_group(send(b"x"))) == {Counter.RX_PLACED: 3}
        assert ends(bench, to_group(send(b"x"), GROUP_PORT + 1)) == {Counter.RX_MANAGEMENT: 1}

    @pytest.mark.parametrize(
        "place, counter",
        [(40, Counter.DROP_UDP_CHECKSUM), (-1, Counter.DROP_CRC)],
    )
    def test_14_17_damage_is_seen_once(self, bench: Bench, place: int, counter: Counter) -> None:
        octets = bytearray(to_group(send(b"x" * 40)))
        octets[place] ^= 1
        if place == -1:
            octets[40:42] = bytes(2)
        assert ends(bench, bytes(octets)) == {counter: 1}

    def test_16_short(self, bench: Bench) -> None:
        frame = frame_around(bytes(17), GROUP_PORT, dest_mac=GROUP_MAC, dest_ip=GROUP_IPV4)
        assert ends(bench, frame) == {Counter.DROP_DDP_SHORT: 1}

    def test_15_unicast_to_the_port_of_a_group(self, bench: Bench) -> None:
        bench.gets(Counter.RX_MANAGEMENT, send(b"x"), GROUP_PORT)

    def test_15_group_address_at_the_port_of_a_qp(self, bench: Bench) -> None:
        """A QP receives nothing that was not sent to it, nor does a group whose row has its
        number."""
        bench.host.set_group(QPN, MAPPED | GROUP_IPV4, *MEMBERS)
        assert ends(bench, to_group(send(b"x"), PORT)) == {Counter.DROP_MAC_FILTER: 1}

    @pytest.mark.parametrize("ip", [IPV4, 0xFFFF_FFFF])
    @pytest.mark.parametrize("mac", [GROUP_MAC, 0xFFFF_FFFF_FFFF])
    def test_a_group_may_have_any_address(self, bench: Bench, ip: int, mac: int) -> None:
        """The port's own, or the limited broadcast; it is the MAC address that has a group bit."""
        bench.host.set_group(ROW, MAPPED | ip, 1, 5)
        frame = to_group(send(b"x"), dest_mac=mac, dest_ip=ip)
        assert ends(bench, frame) == {Counter.RX_PLACED: 2}
        frame = to_group(send(b"x"), dest_mac=MAC, dest_ip=ip)
        assert ends(bench, frame) == {Counter.RX_MANAGEMENT: 1}

    @pytest.mark.parametrize("row", [4, 255, 0xFFFF])
    def test_row_beyond_the_table(self, bench: Bench, row: int) -> None:
        bench.host.add_port(GROUP_PORT, row, group=1)
        assert ends(bench, to_group(send(b"x"))) == {Counter.DROP_MAC_FILTER: 1}

    def test_lowest_bank_counts(self, bench: Bench) -> None:
        """Whether it names a QP or a group."""
        banks = port_rows(GROUP_PORT, bench.host.n_qp)
        assert len(banks) == 4
        bench.host.add_port(GROUP_PORT, 1, bank=1)
        assert ends(bench, to_group(send(b"x"))) == {Counter.RX_PLACED: 3}
        bench.host.add_port(GROUP_PORT, ROW, bank=1, group=1)
        bench.host.add_port(GROUP_PORT, 1, bank=0)
        assert ends(bench, to_group(send(b"x", 2))) == {Counter.DROP_MAC_FILTER: 1}
        bench.gets(Counter.RX_PLACED, send(b"x", 2), GROUP_PORT)

    @pytest.mark.parametrize("count, copies", [(1, 1), (15, 15), (16, 16), (17, 16), (255, 16)])
    def test_count(self, bench: Bench, count: int, copies: int) -> None:
        """Sixteen members at most; a QP may be there twice, but a message reaches it once."""
        members = {f"member{index}": 1 if index % 2 else 99 for index in range(16)}
        bench.host.write_row(Table.GROUP, ROW, count=count, address=MAPPED | GROUP_IPV4, **members)
        found = ends(bench, to_group(send(b"x")))
        assert sum(found.values()) == copies
        assert found[Counter.DROP_QP_STATE] == (copies + 1) // 2
        assert found.get(Counter.RX_PLACED, 0) == (copies > 1)
        assert found.get(Counter.DROP_LATE, 0) == max(0, copies // 2 - 1)


class TestCopies:
    """Section 3: each copy ends like a datagram to its QP."""

    def test_each_ends_for_itself(self, bench: Bench) -> None:
        host = bench.host
        host.modify_qp(1, state=QpState.INIT)
        host.modify_qp(5, peer_port=PEER_PORT + 1)
        assert ends(bench, to_group(send(b"x"))) == {
            Counter.DROP_QP_STATE: 1,
            Counter.DROP_PEER: 1,
            Counter.RX_PLACED: 1,
        }
        host.modify_qp(1, state=QpState.RTR, opcodes=0)
        host.modify_qp(5, peer_port=0, recv_cq=7)
        assert ends(bench, to_group(send(b"y", 2))) == {
            Counter.DROP_QP_OPCODE: 1,
            Counter.DROP_CQ_FULL: 1,
            Counter.RX_PLACED: 1,
        }
        assert [cqe.qpn for cqe in host.poll_all()] == [QPN, QPN]

    def test_a_message_of_several_datagrams(self, bench: Bench) -> None:
        """Each member has a tracker of its own, in a region of its own part."""
        host = bench.host
        for number in (1, 5):
            host.add_qp(number, port=PORT + number)
            host.post_receive(number, bench.mapped.base_to + 2048 * number, 2048, bench.mapped.stag)
        host.set_group(ROW, MAPPED | GROUP_IPV4, 1, 5)
        data = pattern(1500)
        for low, high in ((1408, 1500), (0, 1408)):
            segment = send(data[low:high], mo=low, mlen=1500)
            assert ends(bench, to_group(segment)) == {Counter.RX_PLACED: 2}
        assert [(cqe.qpn, cqe.valid, cqe.status) for cqe in host.poll_all()] == [
            (1, 1500, Status.SUCCESS),
            (5, 1500, Status.SUCCESS),
        ]
        for number in (1, 5):
            assert bench.octets(bench.mapped, 2048 * number, 1500) == data

    def test_twice_the_same_is_late_at_each(self, bench: Bench) -> None:
        frame = to_group(send(b"x"))
        assert ends(bench, frame) == {Counter.RX_PLACED: 3}
        assert ends(bench, frame) == {Counter.DROP_LATE: 3}

    def test_own_group(self, bench: Bench) -> None:
        """The QP that sent it is the one whose udp_port is its source port, if it comes from this
        port at all. The state is looked at before, the peer after."""
        host = bench.host
        host.modify_qp(5, peer_port=7)
        own = {"source_mac": MAC, "source_ip": IPV4}
        frame = to_group(send(b"x"), source_port=PORT + 5, **own)
        assert ends(bench, frame) == {Counter.DROP_OWN_GROUP: 1, Counter.RX_PLACED: 2}
        host.modify_qp(5, state=QpState.INIT)
        frame = to_group(send(b"x", 2), source_port=PORT + 5, **own)
        assert ends(bench, frame) == {Counter.DROP_QP_STATE: 1, Counter.RX_PLACED: 2}
        host.modify_qp(5, state=QpState.RTR, peer_port=0)
        frame = to_group(send(b"x", 3), source_port=PORT + 5)
        assert ends(bench, frame) == {Counter.RX_PLACED: 3}
        frame = to_group(send(b"x", 4), source_port=PORT + 77, **own)
        assert ends(bench, frame) == {Counter.RX_PLACED: 3}

    def test_own_datagram_that_came_to_no_group(self, bench: Bench) -> None:
        """From the port's own MAC address and the QP's own port: it is received."""
        fields = {"source_mac": MAC, "source_ip": IPV4, "source_port": PORT}
        bench.gets(Counter.RX_PLACED, send(b"x"), PORT, **fields)


class TestMembership:
    """Joining and leaving: rows of the group and the port table."""

    def test_p43_join_and_leave(self, bench: Bench) -> None:
        host = bench.host
        steps = [(), (1,), (1, 5), (5,), (5, QPN), (), (QPN,)]
        for msn, members in enumerate(map(list, steps), 1):
            host.set_group(ROW, MAPPED | GROUP_IPV4, *members)
            found = ends(bench, to_group(send(b"x", msn)))
            expected = {Counter.RX_PLACED: len(members)}
            assert found == (expected if members else {Counter.DROP_MAC_FILTER: 1})
            assert [cqe.qpn for cqe in host.poll_all()] == members

    def test_p43_nothing_is_left_of_a_group(self, bench: Bench) -> None:
        """Neither at its address nor at its port, and not in a group that takes its row."""
        host = bench.host
        host.set_group(ROW, 0)
        host.write_row(Table.PORT, port_rows(GROUP_PORT, host.n_qp)[0], valid=0)
        assert ends(bench, to_group(send(b"x"))) == {Counter.DROP_MAC_FILTER: 1}
        other = GROUP_IPV4 + 1
        host.set_group(ROW, MAPPED | other, 5)
        host.add_port(GROUP_PORT + 1, ROW, group=1)
        assert ends(bench, to_group(send(b"x"))) == {Counter.DROP_MAC_FILTER: 1}
        frame = to_group(send(b"x"), GROUP_PORT + 1)
        assert ends(bench, frame) == {Counter.DROP_MAC_FILTER: 1}
        frame = to_group(send(b"x"), GROUP_PORT + 1, dest_ip=other)
        assert ends(bench, frame) == {Counter.RX_PLACED: 1}
        assert [cqe.qpn for cqe in host.poll_all()] == [5]

    def test_two_groups_of_one_port_number(self, bench: Bench) -> None:
        """A port names one row: the other address is nobody's."""
        bench.host.set_group(1, MAPPED | GROUP_IPV4 + 1, 5)
        frame = to_group(send(b"x"), dest_ip=GROUP_IPV4 + 1)
        assert ends(bench, frame) == {Counter.DROP_MAC_FILTER: 1}

    def test_a_reset_empties_the_table(self, bench: Bench) -> None:
        host = bench.host
        host.set(Register.CONTROL, 2)
        host.start()
        host.add_port(GROUP_PORT, ROW, group=1)
        assert ends(bench, to_group(send(b"x"))) == {Counter.DROP_MAC_FILTER: 1}


class TestLoopback:
    """Item 7.10, and what a member hears of itself."""

    def post(self, bench: Bench, qpn: int, **fields: int) -> None:
        source = bench.host.add_region(3, 64, base_to=0)
        bench.memory.write(source.address, b"hello")
        bench.host.post_send(qpn, payload=source, opcode=0x3, length=5, **fields)

    @pytest.mark.parametrize("loop", [False, True])
    def test_to_a_group(self, bench: Bench, loop: bool) -> None:
        """It leaves in any case; with LOOP_GROUPS the other members here receive it."""
        host = bench.host
        host.set(Register.FILTER, Filter.LOOP_GROUPS if loop else 0)
        self.post(bench, 5, dest_mac=GROUP_MAC, dest_ip=GROUP_IPV4, dest_port=GROUP_PORT)
        (frame,) = frames(bench)
        assert frame[:6] == GROUP_MAC.to_bytes(6, "big")
        counters = host.counters()
        host.check_sum()
        assert counters[Counter.TX_FRAMES] == 1
        assert counters[Counter.RX_FRAMES] == loop
        assert counters[Counter.RX_PLACED] == 2 * loop
        assert counters[Counter.DROP_OWN_GROUP] == loop
        receives = [cqe for cqe in host.poll_all() if cqe.flags & CqeFlag.RECEIVE]
        assert [cqe.qpn for cqe in receives] == [1, QPN] * loop
        assert {cqe.source_ip for cqe in receives} <= {MAPPED | IPV4}

    def test_to_everybody(self, bench: Bench) -> None:
        """A broadcast MAC address has the group bit."""
        host = bench.host
        host.set(Register.FILTER, Filter.LOOP_GROUPS)
        fields = {"dest_mac": 0xFFFF_FFFF_FFFF, "dest_ip": 0xFFFF_FFFF, "dest_port": PORT}
        self.post(bench, QPN, **fields)
        assert len(frames(bench)) == 1
        assert host.counter(Counter.RX_MANAGEMENT) == 1

    def test_the_filter_bits_are_three(self, bench: Bench) -> None:
        """LOOP_GROUPS alone lets no frame pass to management."""
        bench.host.set(Register.FILTER, Filter.LOOP_GROUPS)
        assert ends(bench, to_group(send(b"x"), PORT)) == {Counter.DROP_MAC_FILTER: 1}
        frame = to_group(send(b"x"), dest_mac=PEER_MAC)
        assert ends(bench, frame) == {Counter.DROP_MAC_FILTER: 1}


def test_ipv4_header_used_here() -> None:
    """Places that are damaged above."""
    names = ("version_ihl", "checksum", "flags_fragment", "protocol")
    assert [14 + IPV4_HEADER.offset(name) for name in names] == [14, 24, 20, 23]
