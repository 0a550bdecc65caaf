"""Terminates of the reference NIC: item 7.11 of ``docs/device.md``, and what section 3 says of
those that come. Expectations are worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
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
    frame_of,
    record,
)
from tests.model_bench import (
    PORT,
    QPN,
    Bench,
    first_half,
    frames,
    make_bench,
    second_half,
    send,
    sent,
    write,
)
from tests.test_model_reads import request
from uwarp.contract import (
    EVENT,
    TERMINATE_CODES,
    TERMINATE_TICKS,
    Access,
    CloseTarget,
    Control,
    Counter,
    EventType,
    QpState,
    Register,
    Terminated,
)
from uwarp.wire import Opcode, Segment, UdpFrame, mapped_ipv4

MSN = 0x89AB_CDEF
GROUP = 0xE000_0105  # 224.0.1.5
GROUP_MAC = 0x0100_5E00_0105
GROUP_PORT = 5002


@pytest.fixture
def bench() -> Bench:
    bench = make_bench()
    bench.host.modify_qp(QPN, terminate=1)
    return bench


def refused(msn: int = MSN) -> Segment:
    """A Send that nobody has posted a receive for."""
    return send(b"x", msn)


def receive_of(bench: Bench, length: int) -> None:
    region = bench.plain
    bench.host.post_receive(QPN, region.base_to, length, region.stag)


def only_to_write(bench: Bench) -> None:
    bench.host.add_region(3, 4096, access=Access.LOCAL_WRITE | Access.REMOTE_WRITE)


def only_to_read(bench: Bench) -> None:
    bench.host.add_region(3, 4096, access=Access.REMOTE_READ)


def of_another(bench: Bench) -> None:
    bench.host.add_region(3, 4096, pd=2)


def at_the_end(bench: Bench) -> None:
    bench.host.add_region(3, 4096, base_to=2**64 - 4096)


def deaf(bench: Bench) -> None:
    bench.host.modify_qp(QPN, opcodes=0)


def nothing(bench: Bench) -> None:
    """The bench as it is."""


Case = tuple[Counter, Terminated, int, Callable[[Bench], None], Callable[[Bench], Segment]]


def cases() -> list[Case]:
    """Counter, kind of datagram, upper half of the control word, what comes before, datagram."""
    untagged, tagged, asking = Terminated
    send_long = replace(send(b"x", MSN), mo=1)
    found: list[Case] = [
        (Counter.DROP_QP_OPCODE, untagged, 0x0206, deaf, lambda b: send(b"x", MSN)),
        (Counter.DROP_QP_OPCODE, tagged, 0x0206, deaf, lambda b: write(b.plain, 0, b"x")),
        (Counter.DROP_QP_OPCODE, tagged, 0x0206, deaf, lambda b: first_half(b.mapped, MSN)),
        (Counter.DROP_QP_OPCODE, asking, 0x0206, deaf, lambda b: request(b.plain, 0, 9, MSN)),
        (Counter.DROP_UNTAGGED_QN, untagged, 0x1201, nothing, lambda b: send(b"", MSN, qn=3)),
        (Counter.DROP_UNTAGGED_QN, asking, 0x1201, nothing, lambda b: asked(b, qn=0)),
        (Counter.DROP_MESSAGE_LENGTH, untagged, 0x1204, nothing, lambda b: send_long),
        (Counter.DROP_MESSAGE_LENGTH, tagged, 0x1101, nothing, lambda b: too_long(b, 0xC)),
        (Counter.DROP_MESSAGE_LENGTH, tagged, 0x1101, nothing, lambda b: too_long(b, 0xD)),
        (Counter.DROP_MESSAGE_LENGTH, asking, 0x1204, nothing, lambda b: asked(b, size=0)),
        (Counter.DROP_NO_RECEIVE, untagged, 0x1202, nothing, lambda b: refused()),
        (
            Counter.DROP_RECEIVE_SHORT,
            untagged,
            0x1205,
            lambda b: receive_of(b, 4),
            lambda b: send(b"12345", MSN, Opcode.SEND_IMMEDIATE),
        ),
        (
            Counter.DROP_SEND_SEGMENTED,
            untagged,
            0x1205,
            lambda b: receive_of(b, 4096),
            lambda b: send(b"1", MSN, Opcode.SEND_SOLICITED, mlen=2),
        ),
    ]
    # The STags are of row 3 with key 0x5A, as ``add_region`` makes them, or of rows that are not.
    stags: list[tuple[Counter, int, int, Callable[[Bench], None], int, int]] = [
        (Counter.DROP_STAG_INVALID, 0x1100, 0x0100, nothing, 0x35A, 0),
        (Counter.DROP_STAG_INVALID, 0x1100, 0x0100, nothing, 0xFFFF_FF5A, 0),
        (Counter.DROP_STAG_KEY, 0x1100, 0x0100, of_another, 0x35B, 0),
        (Counter.DROP_STAG_PD, 0x1102, 0x0103, of_another, 0x35A, 0),
        (Counter.DROP_TO_WRAP, 0x1103, 0x0104, at_the_end, 0x35A, 2**64 - 1),
        (Counter.DROP_BOUNDS, 0x1101, 0x0101, at_the_end, 0x35A, 0),
    ]
    for counter, code, read_code, before, stag, to in stags:
        found += [
            (counter, tagged, code, before, lambda b, s=stag, t=to: written(0x0, s, t)),
            (counter, tagged, code, before, lambda b, s=stag, t=to: written(0xC, s, t)),
            (counter, asking, read_code, before, lambda b, s=stag, t=to: wants(s, t)),
        ]
    found += [
        (Counter.DROP_STAG_ACCESS, tagged, 0x1100, only_to_read, lambda b: written(0x0, 0x35A, 0)),
        (Counter.DROP_STAG_ACCESS, tagged, 0x1100, only_to_read, lambda b: written(0xC, 0x35A, 0)),
        (Counter.DROP_STAG_ACCESS, asking, 0x0102, only_to_write, lambda b: wants(0x35A, 0)),
    ]
    return found


def asked(bench: Bench, **fields: int) -> Segment:
    return request(bench.plain, 0, fields.pop("size", 9), MSN, **fields)


def too_long(bench: Bench, opcode: int) -> Segment:
    return replace(record(bench.plain, 0, 2, 0, b"123", MSN), opcode=Opcode(opcode))


def written(opcode: int, stag: int, to: int) -> Segment:
    """Two octets of a Write or a Write-Record."""
    fields: dict[str, Any] = {"opcode": Opcode(opcode), "stag": stag, "to": to, "payload": b"ab"}
    return Segment(**fields, **({"msn": MSN, "mlen": 2} if opcode else {}))


def wants(stag: int, to: int) -> Segment:
    """A request for two octets."""
    region = SimpleNamespace(stag=stag, base_to=to)
    return request(region, 0, 2, MSN)  # type: ignore[arg-type]


CASES = cases()


class TestMade:
    """What is answered by a Terminate, and with which."""

    @pytest.mark.parametrize("counter, kind, code, before, make", CASES)
    def test_code(
        self,
        bench: Bench,
        counter: Counter,
        kind: Terminated,
        code: int,
        before: Callable[[Bench], None],
        make: Callable[[Bench], Segment],
    ) -> None:
        before(bench)
        segment = make(bench)
        bench.gets(counter, segment)
        (found,) = sent(bench)
        assert found == Segment(
            opcode=Opcode.TERMINATE,
            payload=code.to_bytes(2, "big") + b"\0\0",
            last=True,
            qn=2,
            msn=0 if segment.opcode is Opcode.WRITE else MSN,
            mo=0,
            mlen=4,
        )
        assert TERMINATE_CODES[counter][kind] == code
        assert bench.host.counter(Counter.TX_TERMINATES) == 1
        assert bench.host.counter(Counter.TX_FRAMES) == 1
        assert bench.host.poll_all() == []

    def test_every_counter_of_the_list(self) -> None:
        """With each kind of datagram that can end there: a Send has no STag, what is tagged no
        queue, and neither of them nor a Read Request takes a receive of a Send."""
        untagged, tagged, asking = Terminated
        by_stag = {item for item in TERMINATE_CODES if "STAG" in item.name}
        by_stag |= {Counter.DROP_TO_WRAP, Counter.DROP_BOUNDS}
        expected = {(counter, kind) for counter in by_stag for kind in (tagged, asking)}
        expected |= {(Counter.DROP_QP_OPCODE, kind) for kind in Terminated}
        expected |= {(Counter.DROP_MESSAGE_LENGTH, kind) for kind in Terminated}
        expected |= {(Counter.DROP_UNTAGGED_QN, kind) for kind in (untagged, asking)}
        expected |= {
            (counter, untagged)
            for counter in (
                Counter.DROP_NO_RECEIVE,
                Counter.DROP_RECEIVE_SHORT,
                Counter.DROP_SEND_SEGMENTED,
            )
        }
        assert {(case[0], case[1]) for case in CASES} == expected
        assert {counter for counter, _ in expected} == set(TERMINATE_CODES)

    def test_whole_frame(self, bench: Bench) -> None:
        """Tags, traffic class and hop limit of the datagram are not those of its answer."""
        bench.receive(refused(), vlan_tags=(0x8100_0123,), traffic_class=0xB8, hop_limit=3)
        (frame,) = frames(bench)
        assert UdpFrame.decode(frame) == UdpFrame(
            dest_mac=PEER_MAC,
            source_mac=MAC,
            source_ip=IPV4,
            dest_ip=PEER_IPV4,
            source_port=PORT,
            dest_port=PEER_PORT,
            payload=UdpFrame.decode(frame).payload,
            traffic_class=0,
            hop_limit=64,
        )
        # 8 of UDP, 18 of header, 4 of control word, 4 of CRC.
        assert len(frame) == 14 + 20 + 8 + 18 + 4 + 4
        assert frame[42:64].hex() == "4147" + "00000004" + "00000002" + "89abcdef" + "00000000" + (
            "12020000"
        )

    def test_ipv6(self, bench: Bench) -> None:
        bench.receive(refused(), ip_version=6, hop_limit=3)
        datagram = UdpFrame.decode(frames(bench)[0])
        assert (datagram.ip_version, datagram.hop_limit) == (6, 64)
        assert (datagram.source_ip, datagram.dest_ip) == (IPV6, PEER_IPV6)

    def test_twice_dropped_is_told_twice(self, bench: Bench) -> None:
        """Nothing is remembered of what was told."""
        for _ in range(2):
            bench.receive(refused())
            assert [item.msn for item in sent(bench)] == [MSN]
            bench.advance_ticks(TERMINATE_TICKS)


class TestNotMade:
    def test_row_without(self, bench: Bench) -> None:
        bench.host.modify_qp(QPN, terminate=0)
        bench.gets(Counter.DROP_NO_RECEIVE, refused())
        assert frames(bench) == []

    @pytest.mark.parametrize("state", [QpState.RTR, QpState.RTS])
    def test_qp_state(self, bench: Bench, state: QpState) -> None:
        """A QP in RTR receives, and has nothing to say later either."""
        bench.host.modify_qp(QPN, state=state)
        bench.gets(Counter.DROP_NO_RECEIVE, refused())
        bench.host.modify_qp(QPN, state=QpState.RTS)
        assert len(frames(bench)) == (state is QpState.RTS)

    @pytest.mark.parametrize(
        "state", [QpState.RESET, QpState.INIT, QpState.ERROR], ids=lambda state: state.name
    )
    def test_qp_that_does_not_receive(self, bench: Bench, state: QpState) -> None:
        bench.host.modify_qp(QPN, state=state)
        bench.gets(Counter.DROP_QP_STATE, refused())
        bench.host.modify_qp(QPN, state=QpState.RTS)
        assert frames(bench) == []

    def test_in_answer_to_a_terminate(self, bench: Bench) -> None:
        told = Segment(opcode=Opcode.TERMINATE, payload=b"\x12\2\0\0", qn=0, msn=1, mlen=4)
        bench.gets(Counter.DROP_UNTAGGED_QN, told)
        deaf(bench)
        bench.gets(Counter.DROP_QP_OPCODE, replace(told, qn=2))
        assert frames(bench) == []

    def test_in_answer_to_a_copy(self, bench: Bench) -> None:
        """One of a group of one member is a copy, too."""
        host = bench.host
        host.add_qp(1, port=4801, terminate=1)
        fields = {"dest_mac": GROUP_MAC, "dest_ip": GROUP}
        for number, members in enumerate(((QPN,), (1, QPN))):
            host.set_group(number, mapped_ipv4(GROUP), *members)
            host.add_port(GROUP_PORT, number, group=1)
            before = host.counter(Counter.DROP_NO_RECEIVE)
            bench.receive(refused(), GROUP_PORT, **fields)
            assert host.counter(Counter.DROP_NO_RECEIVE) == before + len(members)
            assert frames(bench) == []
        bench.receive(refused())
        assert len(frames(bench)) == 1

    def test_in_answer_to_a_wrong_crc(self, bench: Bench) -> None:
        frame = bytearray(frame_of(refused(), PORT))
        frame[40:42] = b"\0\0"  # no UDP checksum
        frame[-19] ^= 1
        bench.frame_gets(Counter.DROP_CRC, bytes(frame))
        assert frames(bench) == []

    def test_drops_that_are_not_in_the_list(self, bench: Bench) -> None:
        host = bench.host
        bench.gets(Counter.DROP_LATE, replace(written(0xC, 0, 0), opcode=Opcode(0xD)))
        host.post_receive(QPN, 0, 64, 0)
        bench.gets(Counter.DROP_RECEIVE_PROTECTION, refused())
        bench.gets(Counter.RX_PLACED, first_half(bench.mapped, 5))
        mismatched = replace(second_half(bench.mapped, 5), stag=bench.plain.stag)
        mismatched = replace(mismatched, to=mismatched.to + 0x10_0000)
        bench.gets(Counter.DROP_RECORD_MISMATCH, mismatched)
        receive_of(bench, 64)
        host.modify_qp(QPN, recv_cq=7)
        bench.gets(Counter.DROP_CQ_FULL, refused())
        host.modify_qp(QPN, peer_port=PEER_PORT + 1)
        bench.gets(Counter.DROP_PEER, refused())
        assert frames(bench) == []
        assert host.counter(Counter.TX_TERMINATES) == 0


class TestRate:
    def test_ticks_between_two(self, bench: Bench) -> None:
        """The first is made at the end of tick 5: 64 tick numbers have begun in tick 69."""
        bench.nic.advance(6 * 1024 - 1)
        bench.receive(refused(1))
        bench.nic.advance(69 * 1024 - 1 - bench.nic.time)
        bench.receive(refused(2))
        bench.nic.advance(1)
        bench.receive(refused(3))
        bench.receive(refused(4))
        assert [item.msn for item in sent(bench)] == [1, 3]

    def test_limit_is_the_devices(self, bench: Bench) -> None:
        bench.host.add_qp(1, port=4801, terminate=1)
        bench.receive(refused(1))
        bench.receive(refused(2), 4801)
        assert [item.msn for item in sent(bench)] == [1]
        bench.advance_ticks(TERMINATE_TICKS)
        bench.receive(refused(3), 4801)
        assert UdpFrame.decode(frames(bench)[0]).source_port == 4801

    def test_one_that_is_not_made_does_not_count(self, bench: Bench) -> None:
        for msn in (1, 2):
            bench.receive(request(bench.plain, 0, 1, msn))
        bench.receive(refused())
        assert [item.opcode for item in sent(bench)] == [Opcode.READ_RESPONSE_RECORD] * 2
        bench.receive(refused())
        assert [item.opcode for item in sent(bench)] == [Opcode.TERMINATE]

    def test_time_counts_from_when_it_was_made(self, bench: Bench) -> None:
        """Not from when it was sent."""
        bench.receive(refused(1))
        bench.advance_ticks(TERMINATE_TICKS - 1)
        assert len(frames(bench)) == 1
        bench.advance_ticks(1)
        bench.receive(refused(2))
        assert len(frames(bench)) == 1

    def test_soft_reset(self, bench: Bench) -> None:
        """Nothing is left of what was made before, and no time has to go by."""
        bench.receive(refused())
        bench.host.set(Register.CONTROL, Control.RESET)
        bench.host.start()
        bench.host.add_qp(QPN, port=PORT, terminate=1)
        assert frames(bench) == []
        bench.receive(refused())
        assert len(frames(bench)) == 1


class TestWaiting:
    def test_takes_the_place_of_a_request(self, bench: Bench) -> None:
        """There are two."""
        bench.receive(refused())
        bench.gets(Counter.RX_PLACED, request(bench.plain, 0, 1))
        bench.gets(Counter.DROP_READ_BUSY, request(bench.plain, 0, 1))
        assert len(frames(bench)) == 2
        bench.gets(Counter.RX_PLACED, request(bench.plain, 0, 1))

    def test_turns(self, bench: Bench) -> None:
        """Its QP's message goes on between two answers."""
        host = bench.host
        work = {"opcode": Opcode.WRITE_RECORD, "remote_stag": 1, "length": 5000}
        host.post_send(QPN, payload=bench.plain, **work)
        bench.receive(refused())
        bench.receive(request(bench.plain, 0, 1))
        opcodes = [item.opcode for item in sent(bench)]
        assert opcodes[:3].count(Opcode.WRITE_RECORD) == 1
        assert opcodes.index(Opcode.TERMINATE) < 3
        assert sorted(opcodes) == [0x7, *[0xC] * 4, 0xD]

    def test_send_rate(self, bench: Bench) -> None:
        """It waits while the bucket is empty, and takes from it 68 octets and 24 more."""
        host = bench.host
        # 64 octets at first, one every 256 ticks: 28 are owed afterwards.
        host.modify_qp(QPN, send_rate=1)
        bench.receive(refused(1))
        assert len(frames(bench)) == 1
        bench.advance_ticks(TERMINATE_TICKS)
        bench.receive(refused(2))
        bench.advance_ticks(28 * 256 - TERMINATE_TICKS)
        assert frames(bench) == []
        bench.advance_ticks(1)
        assert [item.msn for item in sent(bench)] == [2]

    def test_messages_close(self, bench: Bench) -> None:
        """Of the QP only: it reads from no region."""
        host = bench.host
        for target, row, left in (
            (CloseTarget.QP, QPN, 0),
            (CloseTarget.QP, QPN + 1, 1),
            (CloseTarget.REGION, 0, 1),
            (CloseTarget.REGION, QPN, 1),
        ):
            bench.receive(refused())
            host.close_messages(target, row)
            assert len(frames(bench)) == left, (target, row)
            bench.advance_ticks(TERMINATE_TICKS)

    @pytest.mark.parametrize("state", [QpState.RESET, QpState.ERROR])
    def test_qp_that_stops(self, bench: Bench, state: QpState) -> None:
        """Reset drops it; in ERROR it goes on to wait."""
        bench.receive(refused())
        bench.host.modify_qp(QPN, state=state)
        assert frames(bench) == []
        bench.host.modify_qp(QPN, state=QpState.RTS)
        assert len(frames(bench)) == (state is QpState.ERROR)


def told(msn: int = 7, word: bytes = b"\x12\x05\0\0", **fields: Any) -> Segment:
    """A peer's Terminate."""
    given = {"opcode": Opcode.TERMINATE, "payload": word, "qn": 2, "msn": msn, "mlen": len(word)}
    return Segment(**given | fields)


class TestReceived:
    @pytest.fixture
    def bench(self) -> Bench:
        bench = make_bench()
        bench.host.add_events()
        return bench

    def entry(self, bench: Bench, index: int = 0) -> SimpleNamespace:
        assert bench.host.events is not None
        address = bench.host.events.address + EVENT.size * index
        return EVENT.unpack(bench.memory.read(address, EVENT.size))

    def test_event(self, bench: Bench) -> None:
        host = bench.host
        bench.nic.advance(0x1234_5678_9ABC)
        before = len(bench.memory.writes)
        bench.gets(Counter.RX_PLACED, told(MSN))
        assert host.events is not None
        assert bench.memory.writes[before:] == [(host.events.address, 32)]
        octets = bench.memory.read(host.events.address, 32)
        assert (
            octets.hex()
            == (
                "05" + "24" + "0300" + "efcdab89"  # type, time, QP, MSN
                "0200000affff" + "00" * 10 + "b712" + "0512"  # ::ffff:10.0.0.2, 4791, code
                "9a7856b4"  # time and phase
            )
        )
        assert host.get(Register.EVENT_STATUS) == 1
        assert (host.counter(Counter.EVENTS), host.poll_all(), frames(bench)) == (1, [], [])

    def test_ipv6(self, bench: Bench) -> None:
        bench.receive(told(), ip_version=6)
        assert self.entry(bench).source_ip == PEER_IPV6

    def test_all_of_it_is_believed(self, bench: Bench) -> None:
        """RsvdULP, MO and what is quoted are not looked at; any code is told."""
        bench.gets(
            Counter.RX_PLACED, told(0, b"\xff\xfe\xff\xff" + bytes(99), mlen=0, mo=77, last=False)
        )
        entry = self.entry(bench)
        assert (entry.msn, entry.code) == (0, 0xFFFE)

    def test_nothing_is_done_to_the_qp(self, bench: Bench) -> None:
        bench.gets(Counter.RX_PLACED, first_half(bench.mapped))
        bench.gets(Counter.RX_PLACED, told())
        bench.gets(Counter.RX_PLACED, second_half(bench.mapped))
        bench.only_cqe()

    @pytest.mark.parametrize("qn", [0, 1, 3, 1 << 31 | 2])
    def test_other_queue(self, bench: Bench, qn: int) -> None:
        bench.gets(Counter.DROP_UNTAGGED_QN, told(qn=qn))
        assert bench.host.poll_events() == []

    def test_qp(self, bench: Bench) -> None:
        """One that may send or not; its opcodes, and its peer."""
        host = bench.host
        host.modify_qp(QPN, state=QpState.RTR)
        bench.gets(Counter.RX_PLACED, told())
        host.modify_qp(QPN, opcodes=0xFFFF ^ 1 << 7)
        bench.gets(Counter.DROP_QP_OPCODE, told())
        host.modify_qp(QPN, opcodes=1 << 7, peer_port=PEER_PORT + 1)
        bench.gets(Counter.DROP_PEER, told())
        bench.gets(Counter.RX_PLACED, told(), source_port=PEER_PORT + 1)
        host.modify_qp(QPN, state=QpState.INIT)
        bench.gets(Counter.DROP_QP_STATE, told(), source_port=PEER_PORT + 1)
        assert host.poll_events() == [(EventType.TERMINATE, QPN)] * 2

    def test_to_a_group(self, bench: Bench) -> None:
        bench.host.set_group(0, mapped_ipv4(GROUP), QPN)
        bench.host.add_port(GROUP_PORT, 0, group=1)
        fields = {"dest_mac": GROUP_MAC, "dest_ip": GROUP}
        bench.gets(Counter.DROP_OPCODE, told(), GROUP_PORT, **fields)

    def test_full_ring(self, bench: Bench) -> None:
        bench.host.add_events(log2=1)
        for msn in (1, 2, 3):
            bench.gets(Counter.RX_PLACED, told(msn))
        assert bench.host.counter(Counter.EVENTS_LOST) == 1
        assert [self.entry(bench, index).msn for index in (0, 1)] == [1, 2]

    def test_other_events_tell_nothing_of_a_peer(self, bench: Bench) -> None:
        bench.host.modify_qp(QPN, recv_cq=7)
        receive_of(bench, 64)
        bench.gets(Counter.DROP_CQ_FULL, send(b"x", MSN))
        entry = self.entry(bench)
        assert entry.type == EventType.CQ_FULL
        assert (entry.msn, entry.source_ip, entry.source_port, entry.code) == (0, 0, 0, 0)
