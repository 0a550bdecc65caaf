"""Scenarios of Terminates: told to peers for what a queue pair does not take, and told by peers."""

import itertools
from dataclasses import replace
from typing import NamedTuple

from uwarp.contract import (
    TERMINATE_TICKS,
    TICK_CYCLES,
    CloseTarget,
    Counter,
    EventType,
    QpState,
    Table,
)
from uwarp.wire import Opcode, QueueNumber, Segment, UdpFrame, mapped_ipv4

from .grouping import GROUP_IP, GROUP_MAC, create_group
from .reading import read_request, readable
from .receiving import receive_wqe
from .sending import check_with_scapy
from .stage import ANY_OPCODE, IPV6, LONG, PD, PEER_IP, PEER_IPV6, Region, Stage

__all__ = ["REFUSALS", "not_terminated", "terminate", "terminated", "terminates_told", "waiting"]

DEAF, HEARING = 0, 7  # queue pairs that report: one accepts no opcode, one all of them
SIX = {"ip_version": 6, "source_ip": PEER_IPV6, "dest_ip": IPV6}
TO_GROUP = {"dest_mac": GROUP_MAC, "dest_ip": GROUP_IP, "dest_port": 5353}
REFUSALS = 32
_ENOUGH = (TERMINATE_TICKS + 2) * TICK_CYCLES  # on both sides, whose times differ


class Refusal(NamedTuple):
    """A segment that a queue pair does not take, and what it must say of it: the upper half of the
    control word. ``receive`` is posted before."""

    counter: Counter
    code: int
    segment: Segment
    qpn: int = HEARING
    receive: dict[str, int] | None = None


def terminate(stage: Stage, code: int = 0x1205, quoted: bytes = b"", **fields: int) -> Segment:
    """A peer's Terminate. ``code`` is the upper half of its control word."""
    given = {"qn": QueueNumber.TERMINATE, "msn": stage.next_msn(), "mlen": 4 + len(quoted)}
    payload = code.to_bytes(2, "big") + bytes(2) + quoted
    return Segment(opcode=Opcode.TERMINATE, payload=payload, **given | fields)


def _row(stage: Stage, qpn: int, **fields: int) -> dict[str, int]:
    row = {"pd": PD, "timeout": LONG, "path_mtu": 1500, "recv_cq": 1, "send_cq": 5, "terminate": 1}
    row |= {"state": QpState.RTS, "udp_port": stage.port(qpn)}
    return row | {"opcodes": 0 if qpn == DEAF else ANY_OPCODE} | fields


async def _reporters(stage: Stage, **fields: int) -> None:
    for qpn in (DEAF, HEARING):
        await stage.create_qp(qpn, **_row(stage, qpn, **fields))
        await stage.open_port(stage.port(qpn), qpn)


def _refusals(stage: Stage, source: Region) -> list[Refusal]:
    """Each counter that is reported, with each kind of datagram that can end there."""
    end = source.base_to + source.length

    def record(region: Region, offset: int = 0, **fields: int) -> Segment:
        (segment,) = stage.record(region, offset, 9)
        return replace(segment, **fields)

    def response(**fields: int) -> Segment:
        return replace(record(stage.mapped), opcode=Opcode.READ_RESPONSE_RECORD, **fields)

    def asks(**fields: int) -> Segment:
        return read_request(stage, source, 0, 9, **fields)

    first, _ = stage.long_send(300, cut=200)
    short = receive_wqe(stage.local, 0, 8)
    unmapped = receive_wqe(stage.plain, 0, 400)
    deaf = [stage.send(9), stage.write(stage.plain, 0, 9), record(stage.plain), response(), asks()]
    found = [Refusal(Counter.DROP_QP_OPCODE, 0x0206, segment, DEAF) for segment in deaf]
    found += [
        Refusal(Counter.DROP_UNTAGGED_QN, 0x1201, stage.send(9, qn=1)),
        Refusal(Counter.DROP_UNTAGGED_QN, 0x1201, asks(qn=0)),
        Refusal(Counter.DROP_MESSAGE_LENGTH, 0x1204, stage.send(9, mo=1)),
        Refusal(Counter.DROP_MESSAGE_LENGTH, 0x1101, record(stage.plain, mlen=8)),
        Refusal(Counter.DROP_MESSAGE_LENGTH, 0x1101, response(mlen=8)),
        Refusal(Counter.DROP_MESSAGE_LENGTH, 0x1204, asks(size=0)),
        Refusal(Counter.DROP_NO_RECEIVE, 0x1202, stage.send(9, Opcode.SEND_SOLICITED)),
        Refusal(Counter.DROP_RECEIVE_SHORT, 0x1205, stage.send(9), receive=short),
        Refusal(Counter.DROP_SEND_SEGMENTED, 0x1205, first, receive=unmapped),
        Refusal(Counter.DROP_STAG_INVALID, 0x0100, asks(source_stag=11 << 8)),
        Refusal(Counter.DROP_STAG_KEY, 0x0100, asks(source_stag=source.stag ^ 1)),
        Refusal(Counter.DROP_STAG_PD, 0x0103, asks(source_stag=stage.foreign.stag)),
        Refusal(Counter.DROP_STAG_ACCESS, 0x0102, asks(source_stag=stage.plain.stag)),
        Refusal(Counter.DROP_TO_WRAP, 0x0104, asks(source_to=(1 << 64) - 8)),
        Refusal(Counter.DROP_BOUNDS, 0x0101, asks(source_to=end - 8)),
    ]
    write, plain, top = stage.write, stage.plain, stage.top
    for counter, code, segments in (
        (
            Counter.DROP_STAG_INVALID,
            0x1100,
            (write(plain, 0, 9, stag=11 << 8), record(plain, stag=1 << 31)),
        ),
        (
            Counter.DROP_STAG_KEY,
            0x1100,
            (write(plain, 0, 9, stag=plain.stag ^ 1), record(plain, stag=plain.stag ^ 128)),
        ),
        (Counter.DROP_STAG_PD, 0x1102, (write(stage.foreign, 0, 9), record(stage.foreign))),
        (Counter.DROP_STAG_ACCESS, 0x1100, (write(stage.local, 0, 9), record(stage.local))),
        (Counter.DROP_TO_WRAP, 0x1103, (write(top, 4088, 9), record(top, 4088))),
        (Counter.DROP_BOUNDS, 0x1101, (write(top, -1, 9), record(top, -9))),
    ):
        found += [Refusal(counter, code, segment) for segment in segments]
    return found


def _in_turns(refusals: list[Refusal]) -> list[Refusal]:
    """One of each kind of datagram, then another of each, as long as there are any."""
    kinds: dict[tuple[bool, bool], list[Refusal]] = {}
    for item in refusals:
        kind = item.segment.tagged, item.segment.opcode is Opcode.READ_REQUEST
        kinds.setdefault(kind, []).append(item)
    turns = itertools.zip_longest(*kinds.values())
    return [item for turn in turns for item in turn if item is not None]


async def terminated(stage: Stage, count: int) -> None:
    """So many of the refusals, each told to who sent it; the first six are of each kind of datagram
    over either IP."""
    rng = stage.rng
    await _reporters(stage)
    every = _refusals(stage, await readable(stage))
    assert len(every) == REFUSALS
    rng.shuffle(every)
    for number, refusal in enumerate(_in_turns(every)[:count]):
        if number:
            await stage.wait(_ENOUGH)
        if refusal.receive is not None:
            await stage.post_receive(refusal.qpn, refusal.receive)
        fields = SIX if number % 2 else {}
        before, sent = await stage.counters(stage.model), len(stage.nic.sent)
        await stage.deliver([stage.frame(refusal.segment, refusal.qpn, **fields)])
        await stage.check()
        after = await stage.counters(stage.model)
        changed = {item: after[item] - before[item] for item in Counter}
        for counter in (refusal.counter, Counter.TX_TERMINATES, Counter.TX_FRAMES):
            assert changed[counter] == 1, f"{counter.name} of {refusal}"
        (frame,) = stage.nic.sent[sent:]
        datagram = UdpFrame.decode(frame)
        expected = terminate(stage, refusal.code, msn=refusal.segment.msn)
        assert Segment.from_datagram(datagram.payload) == expected, refusal
        ends = datagram.dest_ip, datagram.source_port, datagram.dest_port
        address = PEER_IPV6 if number % 2 else PEER_IP
        assert ends == (address, stage.port(refusal.qpn), 9000 + refusal.qpn), refusal
        if refusal.receive is not None:
            await stage.deliver([stage.frame(stage.send(0), refusal.qpn)])
            await stage.check()
    check_with_scapy(stage.nic.sent)


async def not_terminated(stage: Stage) -> None:
    """What nobody is told of; then what is, and another right behind it, which is too soon."""
    await _reporters(stage, state=QpState.RTR)
    silent = [stage.frame(stage.send(9), HEARING)]
    await stage.deliver(silent)
    await stage.check()
    await _reporters(stage)
    await create_group(stage, 0, mapped_ipv4(GROUP_IP), TO_GROUP["dest_port"], (HEARING, 1))
    spoilt = bytearray(stage.frame(stage.send(60), HEARING))
    spoilt[40:42] = bytes(2)  # no UDP checksum
    spoilt[-1] ^= 1
    answer = replace(stage.record(stage.mapped, 0, 9)[0], opcode=Opcode.READ_RESPONSE_RECORD)
    frames = {
        Counter.DROP_UNTAGGED_QN: stage.frame(terminate(stage, qn=1), HEARING),
        Counter.DROP_QP_OPCODE: stage.frame(terminate(stage), DEAF),
        Counter.DROP_CRC: bytes(spoilt),
        Counter.DROP_LATE: stage.frame(answer, HEARING),
        Counter.DROP_OPCODE: stage.frame(terminate(stage), **TO_GROUP),
    }
    before = await stage.counters(stage.model)
    await stage.deliver(
        [*frames.values(), stage.frame(stage.send(9), **TO_GROUP), stage.frame(stage.send(9), 1)]
    )
    await stage.check()
    after = await stage.counters(stage.model)
    for counter in frames:
        assert after[counter] == before[counter] + 1, counter.name
    # The copies of one Send, and one to a queue pair that does not report.
    assert after[Counter.DROP_NO_RECEIVE] == before[Counter.DROP_NO_RECEIVE] + 3
    assert stage.nic.sent == []
    good, soon = stage.send(9), stage.send(9)
    await stage.deliver([stage.frame(item, HEARING) for item in (good, soon)])
    await stage.check()
    (frame,) = stage.nic.sent
    assert Segment.from_datagram(UdpFrame.decode(frame).payload).msn == good.msn


async def waiting(stage: Stage) -> None:
    """A Terminate that waits has the place of a request, and a request that of a Terminate; it is
    dropped with its queue pair.

    They wait while the bucket of the queue pair is empty: an answer to a Read takes what is in it.
    """
    source = await readable(stage)
    await _reporters(stage, send_rate=1)
    n_read = stage.parameters.n_read
    dropped = stage.frame(stage.send(9), HEARING)

    def asks(count: int) -> list[bytes]:
        return [stage.frame(read_request(stage, source, n, 1 + n), HEARING) for n in range(count)]

    async def expect(terminates: int, busy: int, frames: int) -> None:
        await stage.check()
        counters = await stage.counters(stage.model)
        found = counters[Counter.TX_TERMINATES], counters[Counter.DROP_READ_BUSY]
        assert (*found, len(stage.nic.sent)) == (terminates, busy, frames)

    async def fill_bucket(state: QpState) -> None:
        """What is dropped is taken up once more, to be dropped."""
        await stage.write_row(Table.QP, HEARING, **_row(stage, HEARING, send_rate=1, state=state))
        await stage.wait(2000)

    await stage.deliver(asks(1))
    await expect(0, 0, 1)
    await stage.deliver([dropped, *asks(n_read)])
    await expect(0, 1, 1)
    await stage.close_messages(CloseTarget.QP, HEARING)
    await fill_bucket(QpState.RTS)
    await stage.deliver(asks(1))
    await expect(0, 1, 2)
    await stage.wait(_ENOUGH)
    await stage.deliver([*asks(n_read), dropped])
    await expect(0, 1, 2)
    # The one that found no room was not made: there is no need to wait for the next.
    for state in (QpState.RESET, QpState.RTS):
        await fill_bucket(state)
    await stage.deliver([dropped])
    await expect(1, 1, 3)


async def terminates_told(stage: Stage) -> None:
    """Those of peers become events, whatever they say; a full ring loses one; others are
    dropped."""
    rng = stage.rng
    await _reporters(stage)
    await create_group(stage, 0, mapped_ipv4(GROUP_IP), TO_GROUP["dest_port"], (1,))
    await stage.create_event_ring(3)
    expected = []
    for fields in ({}, SIX, {"source_port": 77}):
        for _ in range(3):
            qpn = rng.choice((1, 2, HEARING))
            code, msn = rng.getrandbits(16), rng.getrandbits(32)
            quoted = rng.randbytes(rng.choice((0, rng.randint(1, 30), 1400)))
            segment = terminate(stage, code, quoted, msn=msn, mo=rng.getrandbits(8))
            await stage.deliver(
                [
                    stage.frame(segment, qpn, **fields),
                    stage.frame(terminate(stage, qn=rng.choice((0, 1, 3, 1 << 31 | 2))), qpn),
                    stage.frame(terminate(stage), DEAF, **fields),
                    stage.frame(terminate(stage), **TO_GROUP),
                    stage.frame(stage.write(stage.plain, 0, 40), qpn),
                ]
            )
            source = fields.get("source_ip", mapped_ipv4(PEER_IP))
            expected.append((qpn, msn, source, fields.get("source_port", 9000 + qpn), code))
        await stage.check()
    found = [
        (event.number, event.msn, event.source_ip, event.source_port, event.code)
        for event in stage.events(stage.nic)
        if event.type == EventType.TERMINATE
    ]
    assert found == expected[:8]
    counters = await stage.counters(stage.model)
    assert (counters[Counter.EVENTS], counters[Counter.EVENTS_LOST]) == (8, 1)
    assert stage.nic.sent == []
