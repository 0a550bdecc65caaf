"""Scenarios of what stands before a datagram: every header, addresses and filters, peers."""

from collections import Counter as Multiset

from uwarp.contract import Counter, Filter, QpState, Register
from uwarp.wire import ip_text, ipv4_text, mac_text, mapped_ipv4

from .matrix import Target, matrix
from .reading import readable
from .receiving import receive_wqe
from .stage import ANY_OPCODE, IP, IPV6, LONG, MAC, PD, PEER_IP, PEER_IPV6, Stage

__all__ = ["addresses", "cut_headers", "every_header", "peers", "wrong_octets_in_headers"]

PEER_PORT = 4791
_BATCH = 100


async def _target(stage: Stage) -> Target:
    region, source = stage.plain, await readable(stage)
    return Target(
        mac=mac_text(MAC),
        ipv4=ipv4_text(IP),
        ipv6=ip_text(IPV6),
        port=stage.port(1),
        stag=region.stag,
        to=region.base_to,
        length=region.length,
        source_stag=source.stag,
        source_to=source.base_to,
        source_length=source.length,
        peer_ipv4=ipv4_text(PEER_IP),
        peer_ipv6=ip_text(PEER_IPV6),
        peer_port=PEER_PORT,
    )


async def every_header(stage: Stage, count: int | None) -> None:
    """P3 to P6, P8, P9, P19, P31: the matrix, or ``count`` of it, as its own rule says."""
    cases = list(matrix(await _target(stage), stage.rng, count=count))
    expected: Multiset[Counter] = Multiset()
    for start in range(0, len(cases), _BATCH):
        batch = cases[start : start + _BATCH]
        sends = sum(case.takes_receive for case in batch)
        if sends:
            await stage.post_receive(1, *[receive_wqe(stage.local, 1, 40)] * sends)
        await stage.deliver([case.frame for case in batch])
        expected.update(case.expected for case in batch)
        await stage.check()
        counters = await stage.counters(stage.model)  # those of the NIC are equal
        wrong = {c.name: (counters[c], n) for c, n in expected.items() if counters[c] != n}
        assert not wrong, f"frames {start} on, found and expected: {wrong}"


async def _good_frames(stage: Stage) -> list[tuple[bytes, int]]:
    """A Write behind each kind of header that may stand before it; octets of its VLAN tags."""
    cases = matrix(await _target(stage), stage.rng, named=", UDP, opcode 0x0, T 1")
    good = [case for case in cases if case.expected is Counter.RX_PLACED]
    tags = {"no tag": 0, "VLAN": 4, "QinQ": 8}
    assert len(good) == 9
    return [(case.frame, tags[case.name.split(",")[0]]) for case in good]


async def cut_headers(stage: Stage) -> None:
    """P13: each kind of frame cut at each length; the next one is intact."""
    runts = others = 0
    for good, tags in await _good_frames(stage):
        frames = []
        for length in range(1, len(good)):
            frames += [good[:length], stage.frame(stage.write(stage.plain, 0, length % 9))]
        await stage.deliver(frames)
        runts += 13 + tags
        others += len(good) - 14 - tags
        await stage.check()
        counters = await stage.counters(stage.model)  # those of the NIC are equal
        assert counters[Counter.DROP_RUNT] == runts
        assert counters[Counter.DROP_IP_HEADER] == others
        assert counters[Counter.RX_PLACED] == runts + others


async def wrong_octets_in_headers(stage: Stage) -> None:
    """P9: each octet wrong in turn: only what no checksum covers and nobody reads is harmless."""
    for good, tags in await _good_frames(stage):
        ip = 14 + tags
        harmless = [
            *range(6, 12),
            *(place for tag in range(0, tags, 4) for place in (14 + tag, 15 + tag)),
        ]
        if good[ip] >> 4 == 6:
            harmless += [ip + 1, ip + 2, ip + 3, ip + 7]  # traffic class, flow label, hop limit
        ports = PEER_PORT.to_bytes(2, "big") + stage.port(1).to_bytes(2, "big")
        checksum = good.index(ports, ip + 20) + 6
        frames = []
        for place in range(len(good)):
            frame = bytearray(good)
            frame[place] ^= stage.rng.choice((0x80, 0xFF, 0x10, 0x35))
            if any(frame[checksum : checksum + 2]):  # 0 is no wrong one, it is none
                frames.append(bytes(frame))
        before = await stage.placed()
        await stage.deliver(frames)
        await stage.check()
        assert await stage.placed() == before + len(harmless)


async def addresses(stage: Stage) -> None:
    """P7: addresses that differ in any one bit, unicast and multicast, under every FILTER."""

    async def ends_in(counter: Counter, frames: list[bytes]) -> None:
        before = (await stage.counters(stage.model))[counter]
        await stage.deliver(frames)
        await stage.check()
        assert (await stage.counters(stage.model))[counter] == before + len(frames), counter.name

    def frame(**fields) -> bytes:
        return stage.frame(stage.write(stage.plain, 0, 9), **fields)

    six = {"ip_version": 6, "source_ip": PEER_IPV6, "dest_ip": IPV6}
    macs = [MAC ^ 1 << bit for bit in range(48)]
    macs += [0x01005E_000001, 0x3333_00000001, 0xFFFF_FFFF_FFFE]
    for value in range(4):
        await stage.write_register(Register.FILTER, value)
        assert await stage.read32(Register.FILTER.address) == value
        for group, wanted in (0, Filter.PROMISCUOUS), (1, Filter.MULTICAST):
            frames = [frame(dest_mac=mac) for mac in macs if mac >> 40 & 1 == group]
            kept = Counter.RX_MANAGEMENT if value & wanted else Counter.DROP_MAC_FILTER
            await ends_in(kept, frames)
        await ends_in(Counter.RX_PLACED, [frame(), frame(**six)])
    await ends_in(
        Counter.DROP_IP_FILTER,
        [
            *(frame(dest_ip=IP ^ 1 << bit) for bit in range(32)),
            *(frame(**six | {"dest_ip": IPV6 ^ 1 << bit}) for bit in range(128)),
            frame(**six | {"dest_ip": mapped_ipv4(IP)}),
        ],
    )
    for word in range(4):
        await stage.write32(Register.IPV6.at(word), 0x8000_0001 + word)
    await ends_in(Counter.DROP_IP_FILTER, [frame(**six)])
    other = sum(0x8000_0001 + word << 32 * word for word in range(4))
    await ends_in(Counter.RX_PLACED, [frame(**six | {"dest_ip": other})])


async def peers(stage: Stage) -> None:
    """A QP that listens to one address, to a prefix, to a port; of both families."""
    await stage.open_port(stage.port(7), 7)
    row = {"pd": PD, "timeout": LONG, "opcodes": ANY_OPCODE, "path_mtu": 1500, "recv_cq": 1}
    row |= {"state": QpState.RTR, "send_cq": 2}
    everyone, ones = 0, (1 << 128) - 1
    six = {"ip_version": 6, "dest_ip": IPV6}
    flips = [0, *(1 << bit for bit in (0, 7, 8, 31))]
    long_flips = [0, *(1 << bit for bit in range(0, 128, 9)), 1 << 127]
    for ip, mask, port in (
        (mapped_ipv4(PEER_IP), ones, 0),
        (mapped_ipv4(PEER_IP), ones, 5000),
        (mapped_ipv4(PEER_IP), ones ^ 0xFF, 0),
        (PEER_IPV6, ones, 5000),
        (PEER_IPV6, ones >> 64 << 64, 0),
        (1 << 127, 1 << 127, 0),
        (stage.rng.getrandbits(128), everyone, 0),
        (0, everyone, 5000),
    ):
        await stage.create_qp(7, **row, peer_ip=ip, peer_mask=mask, peer_port=port)
        frames = []
        for source_port in (5000, 5001, 0):
            for flip in flips:
                fields = {"source_ip": PEER_IP ^ flip, "source_port": source_port}
                frames.append(stage.frame(stage.write(stage.plain, 0, 3), 7, **fields))
            for flip in long_flips:
                fields = {"source_ip": PEER_IPV6 ^ flip, "source_port": source_port}
                frames.append(stage.frame(stage.write(stage.plain, 0, 3), 7, **six | fields))
        before = await stage.placed()
        await stage.deliver(frames)
        # Whom a completion names: of each family one, if it is heard.
        four = {"source_ip": PEER_IP, "source_port": 5000}
        (first,), (second,) = (stage.record(stage.plain, 0, 5) for _ in range(2))
        await stage.deliver([stage.frame(first, 7, **four)])
        await stage.deliver([stage.frame(second, 7, **four | six | {"source_ip": PEER_IPV6})])
        completions = (await stage.check())[1]
        senders = {mapped_ipv4(PEER_IP), PEER_IPV6}
        heard = {sender for sender in senders if not (sender ^ ip) & mask}
        assert {entry.source_ip for entry in completions} == heard
        assert await stage.placed() > before
    assert (await stage.counters(stage.model))[Counter.DROP_PEER]
