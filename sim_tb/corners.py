"""Scenarios of conditions that random frames hardly meet, and of an overload on the rtl form."""

from dataclasses import replace

from uwarp.contract import (
    DROPS,
    TICK_CYCLES,
    Access,
    CloseTarget,
    Counter,
    QpState,
    Register,
    Status,
    Table,
    WqeFlag,
    outcome_sum,
)
from uwarp.wire import (
    BROADCAST_IPV4,
    BROADCAST_MAC,
    ETHERTYPE_QINQ,
    ETHERTYPE_VLAN,
    Opcode,
    append_crc,
    mapped_ipv4,
)

from .fuzz import repaired, with_options
from .grouping import GROUP6_MAC, GROUP_IP, GROUP_IPV6, GROUP_MAC, create_group
from .reading import PEER_PORT, Requester, read_request, readable
from .receiving import receive_wqe
from .stage import ANY_OPCODE, IPV6, LONG, PD, PEER_IPV6, Region
from .terminating import terminate
from .trials import PARAMETERS, Trial

__all__ = ["SLOW", "corners", "groups", "overload", "reads", "stags", "terminates", "zero_length"]

SLOW = 10_000
"""Cycles that memory takes to answer a write in an overload."""

_SIX = {"ip_version": 6, "source_ip": PEER_IPV6, "dest_ip": IPV6}
_SIZE, _FRAMES = 1000, 120
_SETTLED = 2000  # cycles after which a WQE that waits has been fetched
_TAGS = [
    b"",
    ETHERTYPE_VLAN.to_bytes(2, "big") + b"\0\1",
    (ETHERTYPE_QINQ.to_bytes(2, "big") + b"\0\1") * 2,
]


async def corners(trial: Trial) -> None:
    """What the other runs may miss."""
    await _queue_pairs(trial)
    await _headers(trial)
    await _no_tracker(trial)
    await _full_after_overlap(trial)
    await _granules(trial)


async def _queue_pairs(trial: Trial) -> None:
    """A port of a QP that does not exist, a QP in RTR, peers that are not heard, a timeout."""
    await trial.open_port(60001, PARAMETERS.n_qp)
    await trial.create_qp(11, state=QpState.RTR, pd=PD, timeout=9, opcodes=ANY_OPCODE, recv_cq=1)
    await trial.open_port(60002, 11)
    write = trial.write(trial.plain, 0, 9)
    frames = [trial.frame(write, dest_port=port) for port in (60001, 60002)]
    frames += [trial.frame(write, qpn, source_port=77) for qpn in (9, 10)]
    await trial.deliver(frames)
    await trial.check()
    assert await trial.placed() == 1

    (first, _) = trial.record(trial.mapped, 0, 128, path_mtu=62 + 64)
    await trial.deliver([trial.frame(first, dest_port=60002)])
    await trial.settle()
    await trial.wait(11 * TICK_CYCLES)
    (completion,) = (await trial.check())[1]
    assert (completion.status, completion.valid) == (Status.PARTIAL, 64)


async def _headers(trial: Trial) -> None:
    """Each kind of runt, every opcode behind every header, other ports and lengths behind both."""
    write = trial.write(trial.plain, 0, 9)
    frame = trial.frame(write)
    await trial.deliver([frame[:12] + tags + b"\x08" for tags in _TAGS])
    optional = with_options(trial.rng, frame)
    await trial.deliver([optional, optional[:24] + b"\0\0" + optional[26:]])
    total = int.from_bytes(frame[16:18], "big") + 3  # octets behind the UDP datagram
    longer = frame[:16] + total.to_bytes(2, "big") + frame[18:] + bytes(3)
    await trial.deliver([repaired(longer, crc=False, udp=False), frame + bytes(3)])
    six = trial.frame(write, **_SIX)
    length = int.from_bytes(six[18:20], "big") + 1
    await trial.deliver(
        [
            six[: 14 + 39],
            six[:14] + b"\x50" + six[15:],
            six[:18] + length.to_bytes(2, "big") + six[20:],
            frame[:12] + _TAGS[1] + frame[12:].ljust(9000 + 3, b"\0"),
        ]
    )
    cut = [bytes((0x41, 0x40 | opcode)) + bytes(15) for opcode in (0x3, 0x5, 0xE)]
    cut.append(bytes((0x81, 0x4C)) + bytes(27))
    await trial.deliver([trial.datagram(append_crc(octets)) for octets in cut])
    await trial.check()
    counters = await trial.counters(trial.nic)
    assert counters[Counter.DROP_RUNT] == len(_TAGS)
    assert counters[Counter.DROP_IP_CHECKSUM] == 1
    assert counters[Counter.DROP_IP_HEADER] == 3
    assert counters[Counter.DROP_OVERSIZE] == 1
    assert counters[Counter.DROP_DDP_SHORT] == len(cut)

    opcodes = (Opcode.SEND, Opcode.SEND_SOLICITED, Opcode.SEND_IMMEDIATE)
    receives = [receive_wqe(trial.local, 64 * n, 9) for n in range(len(_TAGS) * len(opcodes) * 2)]
    await trial.post_receive(1, *receives)
    for fields in ({}, _SIX):
        frames = [trial.frame(write, dest_port=5, **fields)]
        frames += [trial.datagram(bytes(octets), **fields) for octets in (0, 17, 18)]
        unsummed = bytearray(trial.frame(write, **fields))
        place = 14 + (40 if fields else 20) + 6
        unsummed[place : place + 2] = bytes(2)
        frames.append(bytes(unsummed))
        for tags in _TAGS:
            segments = [trial.write(trial.plain, 0, 9), *trial.record(trial.plain, 0, 9)]
            segments += [trial.send(9, opcode) for opcode in opcodes]
            tagged = [trial.frame(segment, **fields) for segment in segments]
            frames += [item[:12] + tags + item[12:] for item in tagged]
        before = await trial.placed()
        await trial.deliver(frames)
        await trial.check()
        assert await trial.placed() == before + 1 + 5 * len(_TAGS)


async def _no_tracker(trial: Trial) -> None:
    """One more message than there are trackers: a completion for each of its datagrams."""
    size, path_mtu = 300, 62 + 64
    messages = [
        trial.record(trial.mapped, 512 * n, size, path_mtu=path_mtu)
        for n in range(PARAMETERS.n_tracker + 1)
    ]
    await trial.deliver([trial.frame(message[0]) for message in messages[:-1]])
    await trial.deliver([trial.frame(segment) for segment in messages[-1]])
    completions = (await trial.check())[1]
    assert [entry.valid for entry in completions] == [len(s.payload) for s in messages[-1]]

    # What contradicts an open message: the STag, the length; and an STag beyond the table.
    msn = messages[0][0].msn
    (stranger, *_) = trial.record(trial.plain, 0, size, path_mtu=path_mtu, msn=msn)
    (longer, *_) = trial.record(trial.mapped, 0, size + 1, path_mtu=path_mtu, msn=msn)
    stag = PARAMETERS.n_region << 8
    beyond = [
        trial.write(trial.plain, 0, 9, stag=stag),
        *trial.record(trial.plain, 0, 9, stag=stag),
    ]
    await trial.deliver([trial.frame(segment) for segment in (stranger, longer, *beyond)])
    rest = [segment for message in messages[:-1] for segment in message[1:]]
    await trial.deliver([trial.frame(segment) for segment in rest])
    assert len((await trial.check())[1]) == PARAMETERS.n_tracker
    assert (await trial.counters(trial.nic))[Counter.DROP_RECORD_MISMATCH] == 2


async def _full_after_overlap(trial: Trial) -> None:
    """3, Write-Record, 7 and 8: what overlaps is closed even if the CQ then has no slot."""
    under = [trial.record(trial.mapped, 1000 * n, 1000, path_mtu=62 + 128) for n in range(2)]
    await trial.deliver([trial.frame(message[0]) for message in under])
    size = 1 << 3
    singles = [trial.record(trial.plain, 0, 5)[0] for _ in range(size)]
    await trial.deliver([trial.frame(segment, 8) for segment in singles])
    (over,) = trial.record(trial.mapped, 900, 200)
    await trial.post_receive(8, receive_wqe(trial.local, 0, 9))
    await trial.deliver([trial.frame(over, 8), trial.frame(trial.send(9), 8)])
    completions = await trial.check()
    assert len(completions[8]) == size
    counters = await trial.counters(trial.nic)
    assert counters[Counter.DROP_CQ_FULL] == 2
    assert [entry.status for entry in completions[1]] == [Status.PARTIAL] * 2


async def _granules(trial: Trial) -> None:
    """4.2 to 4.4: messages of one granule and of many, closed by their end, over each other."""
    await trial.post_receive(1, receive_wqe(trial.local, 0, 0), receive_wqe(trial.local, 0, 9))
    sends = [trial.send(octets) for octets in (9, 0, 9)]  # the first one is longer than its receive
    await trial.deliver([trial.frame(segment) for segment in sends])
    for offset, plan in (
        (8192, [(0, 3), (0, 30), (3, 27)]),  # neither part covers the only granule
        (8192, [(0, 0), (0, 64), (64, 64)]),
        (8250, [(0, 6), (6, 64), (70, 9)]),
        (8192, [(64 * n, 64) for n in range(40)]),
    ):
        octets = max(start + length for start, length in plan)
        message = trial.record(trial.mapped, offset, octets, plan=plan)
        await trial.deliver([trial.frame(segment) for segment in message])
    completions = (await trial.check())[1]
    assert len(completions) == 2 + 4

    # One open message under another; and one where there is no map.
    (under, _) = trial.record(trial.mapped, 0, 128, path_mtu=62 + 64)
    over = trial.record(trial.mapped, 100, 128, path_mtu=62 + 64)
    flat = trial.record(trial.plain, 0, 192, path_mtu=62 + 64)
    await trial.deliver([trial.frame(segment) for segment in (under, *over, *flat)])
    completions = (await trial.check())[1]
    assert [entry.status for entry in completions].count(Status.PARTIAL) == 1
    assert len(completions) == 2 + len(flat)


async def reads(trial: Trial) -> None:
    """What random Reads may miss: every header, trackers and regions that go, unreadable octets."""
    source = await readable(trial)
    reader = Requester(trial, 5)
    await _headers_of_reads(trial, reader, source)
    await _no_tracker_for_a_read(trial, reader)
    await _unreadable(trial)


async def _headers_of_reads(trial: Trial, reader: Requester, source: Region) -> None:
    """Requests and answers behind every header, and cut ones; an answer of no octets."""
    cut = [append_crc(bytes((0x41, 0x41)) + bytes(43)), append_crc(bytes((0x81, 0x4D)) + bytes(27))]
    await trial.deliver([trial.datagram(octets, 5) for octets in cut])
    work, answer = reader.post(64, 6 * 64)
    await trial.post_send(5, work)
    six_work, six_answer = Requester(trial, 12).post(4096, 6 * 64)
    await trial.create_qp(
        12,
        state=QpState.RTS,
        pd=PD,
        opcodes=ANY_OPCODE,
        path_mtu=1500,
        timeout=LONG,
        udp_port=trial.port(12),
        sq_wide=1,
        send_cq=5,
        recv_cq=1,
    )
    await trial.open_port(60003, 12)
    flags = six_work["flags"] | WqeFlag.IPV6
    await trial.post_send(12, six_work | {"flags": flags, "dest_ipv6": PEER_IPV6})
    await trial.check()
    frames, refused = [], 0
    for segments, qpn, fields in (
        (answer, 5, {}),
        (six_answer, 12, _SIX | {"dest_port": 60003}),
    ):
        (whole,) = segments
        wrong = {"mo": 1}, {"stag": whole.stag ^ 1}, {"to": whole.to + 64}, {"mlen": whole.mlen + 1}
        bad = [replace(whole, **change) for change in wrong]
        refused += len(bad)
        frames += [trial.frame(item, qpn, source_port=PEER_PORT, **fields) for item in bad]
        for number, tags in enumerate(_TAGS):
            piece = replace(whole, to=whole.to + 128 * number, mo=128 * number, last=False)
            piece = replace(piece, payload=whole.payload[128 * number : 128 * (number + 1)])
            asked = read_request(trial, source, number, 9)
            for item in (replace(piece, payload=b""), piece, asked):
                frame = trial.frame(item, qpn, source_port=PEER_PORT, **fields)
                frames.append(frame[:12] + tags + frame[12:])
    before = await trial.counters(trial.model)
    await trial.deliver(frames)
    completions = (await trial.check())[5]
    after = await trial.counters(trial.model)
    assert [entry.status for entry in completions] == [Status.SUCCESS] * 2
    assert after[Counter.RX_PLACED] == before[Counter.RX_PLACED] + len(frames) - refused
    assert after[Counter.TX_FRAMES] == before[Counter.TX_FRAMES] + 2 * len(_TAGS)


async def _no_tracker_for_a_read(trial: Trial, reader: Requester) -> None:
    """7.7: a Read waits for a tracker, and its region is another when there is one."""
    taken = [
        trial.record(trial.mapped, 512 * n, 300, path_mtu=62 + 64)
        for n in range(PARAMETERS.n_tracker)
    ]
    await trial.deliver([trial.frame(message[0]) for message in taken])
    await trial.check()
    work, answer = reader.post(512 * len(taken), 700)
    before = await trial.counters(trial.model)
    await trial.post_send(5, work)
    await trial.nic.wait(_SETTLED)
    assert await trial.counters(trial.nic) == before
    key = trial.mapped.stag & 0xFF
    await trial.change_row(Table.REGION, trial.mapped.stag >> 8, {"key": key ^ 1})
    await trial.write_register(
        Register.MESSAGES_CLOSE, CloseTarget.REGION << 16 | trial.mapped.stag >> 8
    )
    completions = await trial.check()
    assert [entry.status for entry in completions[5]] == [Status.NO_TRACKER]
    assert len(completions[1]) == len(taken)
    await trial.change_row(Table.REGION, trial.mapped.stag >> 8, {"key": key})
    await trial.deliver([reader.frame(item) for item in answer])
    await trial.check()

    # The next one opens, is answered in part, and closed by the host.
    work, answer = reader.post(512, 3000)
    await trial.post_send(5, work)
    await trial.check()
    await trial.deliver([reader.frame(answer[0])])
    await trial.check()
    await trial.write_register(Register.MESSAGES_CLOSE, CloseTarget.QP << 16 | 5)
    (completion,) = (await trial.check())[5]
    assert (completion.status, completion.msn) == (Status.PARTIAL, answer[0].msn)
    assert completion.valid > 0


async def _unreadable(trial: Trial) -> None:
    """8.1, 8.2: octets that a peer reads, or writes, and that no memory answers for."""
    access = Access.REMOTE_READ | Access.REMOTE_WRITE
    hole = await trial.register(12, 4096, access, base_to=0, at=0x66 << 40)
    await trial.create_event_ring(4)
    before = await trial.counters(trial.model)
    await trial.deliver([trial.frame(read_request(trial, hole, 0, 90), 5)])
    await trial.check()
    await trial.deliver([trial.frame(trial.write(hole, 0, 9), 5)])
    await trial.check()
    await trial.deliver([trial.frame(trial.write(trial.plain, 0, 9), 5)])
    await trial.check()
    after = await trial.counters(trial.model)
    assert after[Counter.TX_FRAMES] == before[Counter.TX_FRAMES]
    assert after[Counter.DMA_ERRORS] == before[Counter.DMA_ERRORS] + 2
    assert after[Counter.DROP_QP_STATE] == before[Counter.DROP_QP_STATE] + 1


async def groups(trial: Trial) -> None:
    """What random group datagrams may miss: each of the checks around them, of either family."""
    address = mapped_ipv4(GROUP_IP)
    ports = {"four": 5353, "six": 5354, "empty": 5355, "beyond": 5356, "one": 5357, "all": 5358}
    members = (1, 2, PARAMETERS.n_qp, 3)
    await create_group(trial, 1, address, ports["four"], members)
    await create_group(trial, 2, GROUP_IPV6, ports["six"], (2, 1))
    await create_group(trial, 3, address, ports["empty"], ())
    await create_group(trial, PARAMETERS.n_group, address, ports["beyond"], (1,))
    await create_group(trial, 5, address, ports["one"], (1,))
    await create_group(trial, 6, mapped_ipv4(BROADCAST_IPV4), ports["all"], (1, 2))
    for qpn in (1, 2):
        await trial.post_receive(qpn, *(receive_wqe(trial.local, 64 * n, 9) for n in range(20)))
    four = {"dest_mac": GROUP_MAC, "dest_ip": GROUP_IP, "dest_port": ports["four"]}
    six = _SIX | {"dest_mac": GROUP6_MAC, "dest_ip": GROUP_IPV6, "dest_port": ports["six"]}
    everybody = {"dest_mac": BROADCAST_MAC, "dest_ip": BROADCAST_IPV4, "dest_port": ports["all"]}
    placed = 0
    frames = []
    for to, count in ((four, 2), (six, 2), (everybody, 2), (four | {"dest_port": 5357}, 1)):
        for opcode in (Opcode.SEND, Opcode.SEND_SOLICITED, Opcode.SEND_IMMEDIATE):
            frames.append(trial.frame(trial.send(9, opcode), **to))
            placed += count
    good = trial.frame(trial.send(9), **four)
    spoilt = [repaired(good[:20] + b"\x20" + good[21:], crc=False, udp=False)]  # MF
    spoilt.append(good[:14] + b"\x44" + good[15:])
    spoilt += [good[:place] + bytes((good[place] ^ 1,)) + good[place + 1 :] for place in (24, 50)]
    spoilt.append(repaired(spoilt[-1], crc=False))
    spoilt += [trial.frame(trial.send(9), **four | {"dest_port": ports[n]}) for n in ("empty",)]
    spoilt.append(trial.frame(trial.send(9), **four | {"dest_port": ports["beyond"]}))
    spoilt.append(trial.frame(trial.send(9), **four | {"dest_ip": GROUP_IP ^ 1}))
    spoilt.append(trial.frame(trial.send(9), dest_port=ports["four"]))
    spoilt.append(trial.frame(read_request(trial, trial.plain, 0, 9), **four))
    (record,) = trial.record(trial.plain, 0, 9)
    spoilt.append(trial.frame(terminate(trial), **four))
    for opcode in (Opcode.WRITE_RECORD, Opcode.READ_RESPONSE_RECORD, Opcode.WRITE):
        spoilt.append(trial.frame(replace(record, opcode=opcode), **four))
    frames += spoilt
    trial.rng.shuffle(frames)
    before = await trial.counters(trial.model)
    await trial.deliver(frames)
    await trial.check()
    after = await trial.counters(trial.model)
    assert after[Counter.RX_PLACED] == before[Counter.RX_PLACED] + placed
    assert after[Counter.DROP_QP_STATE] == before[Counter.DROP_QP_STATE] + 3 * 2
    found = {
        counter: after[counter] - before[counter]
        for counter in (Counter.DROP_MAC_FILTER, Counter.DROP_UDP_CHECKSUM, Counter.DROP_CRC)
    }
    assert list(found.values()) == [6, 1, 1], found
    assert after[Counter.DROP_OPCODE] == before[Counter.DROP_OPCODE] + 5


async def terminates(trial: Trial) -> None:
    """Terminates of peers behind every header, cut ones, of another queue, and with a T bit."""
    await trial.create_event_ring(4)
    wrong = [
        trial.frame(terminate(trial, qn=1)),
        trial.datagram(append_crc(bytes((0x41, 0x47)) + bytes(19))),
        trial.datagram(append_crc(bytes((0xC1, 0x47)) + bytes(20))),
    ]
    good = []
    for fields in ({}, _SIX):
        for tags in _TAGS:
            frame = trial.frame(terminate(trial), **fields)
            good.append(frame[:12] + tags + frame[12:])
    await trial.deliver([*wrong, *good])
    await trial.check()
    counters = await trial.counters(trial.nic)
    for counter in (Counter.DROP_UNTAGGED_QN, Counter.DROP_DDP_SHORT, Counter.DROP_OPCODE):
        assert counters[counter] == 1, counter.name
    assert counters[Counter.RX_PLACED] == counters[Counter.EVENTS] == len(good)
    assert [event.msn for event in trial.events(trial.nic)] == list(range(2, 2 + len(good)))


async def zero_length(trial: Trial) -> None:
    """P28: messages of no octets look at neither STag nor TO, and Write-Records complete."""
    stags = (0, 1, trial.plain.stag ^ 1, trial.foreign.stag, trial.local.stag, 0xFFFF_FFFF)
    places = (0, 1, trial.plain.base_to, (1 << 64) - 1)
    for stag in stags:
        for to in places:
            write = trial.write(trial.plain, 0, 0, stag=stag, to=to)
            (segment,) = trial.record(trial.mapped, 0, 0, plan=[(0, 0)])
            record = replace(segment, stag=stag, to=to)
            await trial.deliver([trial.frame(write), trial.frame(record), trial.frame(record)])
    completions = (await trial.check())[1]
    messages = len(stags) * len(places)
    assert [(entry.status, entry.valid, entry.mlen) for entry in completions] == (
        [(Status.SUCCESS, 0, 0)] * messages
    )
    assert [(entry.stag, entry.base_to) for entry in completions] == [
        (stag, to) for stag in stags for to in places
    ]
    counters = await trial.counters(trial.nic)
    assert counters[Counter.RX_PLACED] == 2 * messages
    assert counters[Counter.DROP_LATE] == messages  # the second of each name
    assert not trial.nic.faults()


async def stags(trial: Trial) -> None:
    """P29: an STag that names nothing, nothing any more, or what the peer must not write."""
    region = trial.plain
    row = region.stag >> 8
    before = trial.peek(region.dma, region.length)

    async def ends_in(counter: Counter, stag: int) -> None:
        write = trial.write(region, 0, 9, stag=stag)
        (record,) = trial.record(region, 64, 9, stag=stag)
        message = trial.record(region, 128, 200, path_mtu=62 + 64, stag=stag)
        frames = [trial.frame(segment) for segment in (write, record, *message)]
        count = (await trial.counters(trial.nic))[counter]
        await trial.deliver(frames)
        completions = (await trial.check())[1]
        assert (await trial.counters(trial.nic))[counter] == count + len(frames)
        if counter is not Counter.RX_PLACED:
            assert not completions
            assert trial.peek(region.dma, region.length) == before

    for index in (PARAMETERS.n_region, 1 << 16, (1 << 24) - 1, 0, 9):
        await ends_in(Counter.DROP_STAG_INVALID, index << 8 | region.stag & 0xFF)
    await ends_in(Counter.DROP_STAG_INVALID, 0)
    for bit in range(8):
        await ends_in(Counter.DROP_STAG_KEY, region.stag ^ 1 << bit)
    await ends_in(Counter.DROP_STAG_PD, trial.foreign.stag)
    await ends_in(Counter.DROP_STAG_ACCESS, trial.local.stag)
    await ends_in(Counter.DROP_STAG_ACCESS, trial.source.stag)

    # Taken away, then registered again under another key, then under its own.
    await trial.change_row(Table.REGION, row, {"valid": 0})
    await ends_in(Counter.DROP_STAG_INVALID, region.stag)
    await trial.change_row(Table.REGION, row, {"valid": 1, "key": region.stag + 1 & 0xFF})
    await ends_in(Counter.DROP_STAG_KEY, region.stag)
    await trial.change_row(Table.REGION, row, {"key": region.stag & 0xFF})
    await ends_in(Counter.RX_PLACED, region.stag)
    assert trial.peek(region.dma, region.length) != before


async def overload(trial: Trial) -> dict[Counter, int]:
    """P16: memory answers late while frames pour in; whole frames are dropped, the rest is right.

    For a NIC with ``SLOW`` memory. The model has no limit to its buffer: only the sum is compared,
    and the trial is of no use afterwards. Returns the NIC's counters.
    """
    nic, region = trial.nic, trial.mapped
    places = [region.dma + _SIZE * n for n in range(_FRAMES)]
    before = [trial.peek(place, _SIZE) for place in places]
    segments = [trial.write(region, _SIZE * n, _SIZE) for n in range(_FRAMES)]
    for segment in segments:
        nic.receive(trial.frame(segment))
    await nic.delivered()
    for _ in range(100):
        # A datagram is counted as placed before its octets are in memory, and open until then.
        if await nic.read32(Register.OPEN_MESSAGES.address) == 0:
            break
        await nic.wait(SLOW)
    counters = await trial.counters(nic)
    assert outcome_sum(counters) == counters[Counter.RX_FRAMES]
    placed = 0
    for number, segment in enumerate(segments):
        now = trial.peek(places[number], _SIZE)
        assert now in (before[number], segment.payload), f"frame {number} is placed in part"
        placed += now == segment.payload
    assert placed == counters[Counter.RX_PLACED]
    assert placed + counters[Counter.DROP_OVERFLOW] == counters[Counter.RX_FRAMES] == _FRAMES
    assert sum(counters[item] for item in DROPS) == counters[Counter.DROP_OVERFLOW] > 0
    assert not nic.faults()

    (again,) = trial.record(region, 5, 500)
    nic.receive(trial.frame(again))
    await nic.wait(3 * SLOW)
    assert (await trial.counters(nic))[Counter.CQES] == 1
    assert trial.peek(region.dma + 5, 500) == again.payload
    return counters
