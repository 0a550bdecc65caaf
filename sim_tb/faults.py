"""Scenarios of what arrives badly: wrong octets, cut frames, and each reason to drop."""

from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Raw

from uwarp.contract import DROPS, Counter, QpState, Register
from uwarp.wire import (
    BROADCAST_IPV4,
    BROADCAST_MAC,
    append_crc,
    ip_text,
    ipv4_text,
    mac_text,
    mapped_ipv4,
)

from .grouping import GROUP_IP, GROUP_MAC, create_group
from .reading import read_busy, readable
from .receiving import receive_wqe
from .stage import BENCH, IPV6, MAC, PEER_IP, PEER_IPV6, PEER_MAC, Stage
from .stage import IP as OUR_IP

__all__ = [
    "cut_frames",
    "every_reason",
    "flagged_frames",
    "overload",
    "record_octets",
    "wrong_octets",
]

_GROUP_PORT = 5353
_SOURCE_MAC = range(6, 12)  # covered by the FCS alone


def record_octets(payload: int) -> int:
    """Of a frame with one Write-Record, without FCS."""
    return max(60, 42 + 30 + payload + 4)


async def wrong_octets(stage: Stage, payload: int, positions: list[int] | None = None) -> None:
    """P9: one wrong octet in each frame; only source MAC and padding may be wrong without harm."""
    places = list(positions if positions is not None else range(record_octets(payload)))
    before = await stage.placed()
    harmless = 0
    frames = []
    for place in places:
        (segment,) = stage.record(stage.mapped, stage.rng.randrange(4096), payload)
        frame = bytearray(stage.frame(segment))
        frame[place] ^= stage.rng.randint(1, 255)
        frames.append(bytes(frame))
        harmless += place in _SOURCE_MAC
    await stage.deliver(frames)
    completions = (await stage.check())[1]
    assert await stage.placed() == before + harmless
    assert len(completions) == harmless

    # The shortest datagram leaves padding, which nothing covers.
    short = stage.frame(stage.write(stage.plain, 0, 0))
    padding = range(42 + 14 + 4, len(short))
    for place in padding:
        frame = bytearray(short)
        frame[place] ^= 0xFF
        await stage.deliver([bytes(frame)])
    await stage.check()
    assert await stage.placed() == before + harmless + len(padding)


async def cut_frames(stage: Stage, payload: int) -> None:
    """P13: a frame cut at each length, and one with octets behind its end."""
    (segment,) = stage.record(stage.plain, 64, payload)
    frame = stage.frame(segment)
    await stage.deliver([frame[:length] for length in range(1, len(frame))])
    before = await stage.placed()
    await stage.check()
    assert before == await stage.placed() == 0
    for extra in range(1, 10):
        (segment,) = stage.record(stage.plain, 64, payload)
        await stage.deliver([stage.frame(segment) + stage.rng.randbytes(extra)])
    await stage.check()
    assert await stage.placed() == 9


async def flagged_frames(stage: Stage) -> None:
    """P9, P15: the MAC's error on each beat of a good frame in turn, good frames between."""
    (segment,) = stage.record(stage.plain, 0, 100)
    beats = -(-len(stage.frame(segment)) // 8)
    for beat in range(beats):
        (segment,) = stage.record(stage.plain, 0, 100)
        stage.receive(stage.frame(segment), error_beat=beat)
        (segment,) = stage.record(stage.plain, 200, 100)
        await stage.deliver([stage.frame(segment)])
    await stage.check()
    assert (await stage.counters(stage.model))[Counter.DROP_MAC_ERROR] == beats


def _management(stage: Stage) -> list[bytes]:
    """Frames for the management port, by scapy."""
    ether = Ether(src=mac_text(PEER_MAC), dst=mac_text(MAC))
    ip = IP(src=ipv4_text(PEER_IP), dst=ipv4_text(OUR_IP))
    broadcast = Ether(src=mac_text(PEER_MAC), dst=mac_text(BROADCAST_MAC))
    everyone = IP(src=ipv4_text(PEER_IP), dst=ipv4_text(BROADCAST_IPV4))
    query = ARP(op="who-has", psrc=ipv4_text(PEER_IP), pdst=ipv4_text(OUR_IP))
    packets = [
        broadcast / query,
        ether / query,
        ether / ip / ICMP() / Raw(b"ping" * 14),
        ether / ip / UDP(sport=1, dport=53) / Raw(b"query"),
        broadcast / everyone / UDP(sport=68, dport=67) / Raw(b"discover"),
        broadcast / ip / UDP(dport=stage.port(1)) / Raw(b"to all, by MAC"),
        ether / everyone / UDP(dport=stage.port(1)) / Raw(b"to all, by IP"),
        ether / Dot1Q(vlan=7) / query,
        ether / Dot1Q() / Dot1Q() / Dot1Q() / ip / UDP(dport=stage.port(1)),
        ether / IPv6(src=ip_text(PEER_IPV6), dst=ip_text(IPV6)) / ICMPv6EchoRequest(),
        Ether(src=mac_text(PEER_MAC), dst=mac_text(MAC), type=0x88CC) / Raw(bytes(60)),
    ]
    return [bytes(packet).ljust(60, b"\0") for packet in packets]


def _resum(frame: bytearray) -> bytes:
    """Make the IPv4 header checksum right again, and the UDP checksum absent."""
    frame[24:26] = frame[40:42] = bytes(2)
    total = sum(int.from_bytes(frame[n : n + 2], "big") for n in range(14, 34, 2))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    frame[24:26] = (0xFFFF ^ total).to_bytes(2, "big")
    return bytes(frame)


def _changed(frame: bytes, **places: tuple[int, bytes]) -> bytes:
    """The frame with octets replaced at each place, checksums right."""
    octets = bytearray(frame)
    for place, new in places.values():
        octets[place : place + len(new)] = new
    return _resum(octets)


def _bad_frames(stage: Stage) -> list[bytes]:
    """Faults of section 2, one or more for each rule."""
    (segment,) = stage.record(stage.plain, 0, 33)
    good = stage.frame(segment)
    datagram = segment.to_datagram()

    def at(place: int, *octets: int) -> bytes:
        return _changed(good, there=(place, bytes(octets)))

    def control(place: int, value: int) -> bytes:
        octets = bytearray(segment.encode())
        octets[place] = value
        return stage.datagram(append_crc(bytes(octets)))

    bad_ip_sum, bad_udp_sum = bytearray(good), bytearray(good)
    bad_ip_sum[24] ^= 1
    bad_udp_sum[41] ^= 1
    total = int.from_bytes(good[16:18], "big")
    udp = int.from_bytes(good[38:40], "big")
    return [
        good[:13],
        good[:5],
        stage.datagram(bytes(8996)),
        stage.frame(segment, dest_mac=MAC ^ 1 << 40),
        stage.frame(segment, dest_mac=MAC ^ 1),
        good[:33],
        at(14, 0x55),
        at(14, 0x44),
        at(16, *(total + 1).to_bytes(2, "big")),
        at(16, 0, 19),
        bytes(bad_ip_sum),
        at(20, 0x20, 0),
        at(20, 0, 1),
        stage.frame(segment, dest_ip=OUR_IP ^ 1),
        stage.frame(segment, dest_ip=OUR_IP ^ 1 << 31),
        at(16, 0, 27),
        at(38, 0, 7),
        at(38, *(udp + 1).to_bytes(2, "big")),
        bytes(bad_udp_sum),
        stage.datagram(datagram[:17]),
        stage.datagram(b""),
        stage.datagram(datagram[:-1] + bytes([datagram[-1] ^ 0x80])),
        control(0, 0xC0),
        control(0, 0xC2),
        control(1, 0x0C),
        control(1, 0x8C),
        *(
            control(1, 0x40 | opcode)
            for opcode in (1, 2, 4, 6, 7, 8, 9, 0xA, 0xB, 0xD, 0xF, 3, 5, 0xE)
        ),
        control(0, 0x41),
        stage.datagram(append_crc(datagram[:29])),
        stage.datagram(append_crc(bytes.fromhex("4143") + bytes(15))),
        stage.datagram(append_crc(bytes.fromhex("414e") + bytes(18))),
        # Reserved bits, an absent UDP checksum and padding are no faults.
        control(0, 0xFD),
        _changed(good),
    ]


def _bad_datagrams(stage: Stage) -> list[bytes]:
    """Faults of section 3, one or more for each rule."""
    plain, top = stage.plain, stage.top
    end = 1 << 64

    def write(stag: int, to: int, octets: int = 16) -> bytes:
        return stage.frame(stage.write(plain, 0, octets, stag=stag, to=to))

    def record(stag: int, to: int, mo: int, mlen: int, octets: int = 16) -> bytes:
        (segment,) = stage.record(plain, 0, octets, plan=[(0, octets)])
        fields = segment.__dict__ | {"stag": stag, "to": to, "mo": mo, "mlen": mlen}
        return stage.frame(type(segment)(**fields))

    frames = [
        stage.frame(stage.write(plain, 0, 8), 3),
        stage.frame(stage.write(plain, 0, 8), 4),
        stage.frame(stage.send(8, qn=1)),
        stage.frame(stage.send(8, mo=1)),
        stage.frame(stage.send(8, mlen=7)),
        stage.frame(stage.send(8, mlen=9)),
        stage.frame(stage.send(8, mo=0xFFFF_FFFF)),
        stage.frame(stage.send(8)),  # no receive is posted
    ]
    for make in (write, lambda stag, to: record(stag, to, 0, 16)):
        frames += [
            make(plain.stag + (1 << 8 << 4), plain.base_to),  # beyond the table
            make(9 << 8, 0),  # not valid
            make(plain.stag ^ 1, plain.base_to),
            make(stage.foreign.stag, 0),
            make(stage.local.stag, 0),
            make(stage.source.stag, stage.source.base_to),
            make(top.stag, end - 8),
            make(plain.stag, plain.base_to - 1),
            make(plain.stag, plain.base_to + plain.length - 15),
            make(plain.stag, plain.base_to + plain.length - 16),  # fits
            make(top.stag, end - 16),  # fits
            make(stage.foreign.stag ^ 1, 0),
        ]
    return [
        *frames,
        write(0xFFFF_FFFF, 77, 0),  # nothing to check
        record(plain.stag, plain.base_to, 1, 16),  # MO + payload > MLEN
        record(plain.stag, plain.base_to, 0xFFFF_FFF8, 16),
        record(plain.stag, plain.base_to + 4, 5, 32),  # begins before the region
        record(stage.local.stag ^ 0x600, 3, 4, 32),  # another region's key
        record(top.stag, 3, 4, 32),  # TO < MO
        record(top.stag, end - 32, 0, 33),  # wraps at the end
        record(plain.stag, plain.base_to + plain.length - 32, 16, 65),
        record(0, 0, 0, 0, 0),
    ]


async def every_reason(stage: Stage) -> None:
    """Each rule of sections 2 and 3, each counter but DROP_OVERFLOW; then all still works."""
    await stage.deliver(_management(stage))
    await stage.check()
    assert (await stage.counters(stage.model))[Counter.RX_MANAGEMENT] == len(_management(stage))
    bad = [*_bad_frames(stage), *_bad_datagrams(stage)]
    stage.rng.shuffle(bad)
    for start in range(0, len(bad), 20):
        await stage.deliver(bad[start : start + 20])
        await stage.check()
    stage.receive(stage.frame(stage.write(stage.plain, 0, 8)), error_beat=2)

    await stage.check()

    # More Read Requests than can wait; a datagram to a group that comes from its member.
    await read_busy(stage, await readable(stage))
    await create_group(stage, 1, mapped_ipv4(GROUP_IP), _GROUP_PORT, (1,))
    fields = {"source_mac": MAC, "dest_mac": GROUP_MAC, "dest_ip": GROUP_IP}
    ports = {"source_port": stage.port(1), "dest_port": _GROUP_PORT}
    await stage.deliver([stage.frame(stage.send(8), **fields, **ports)])

    # A QP that listens to another port than the sender's.
    await stage.create_qp(7, state=QpState.RTR, timeout=9, peer_port=1)
    await stage.open_port(stage.port(7), 7)
    await stage.deliver([stage.frame(stage.write(stage.plain, 0, 8), 7)])

    # A smaller MTU.
    await stage.check()
    await stage.write_register(Register.MTU, 576)
    fits = 576 - 28 - 14 - 4
    await stage.deliver([stage.frame(stage.write(stage.plain, 0, fits + n)) for n in (0, 1)])
    await stage.check()
    await stage.write_register(Register.MTU, 9000)

    # Receives that are not allowed, too short, or cannot be read; late and contradicting messages.
    local, good = stage.local, stage.send(32)
    await stage.post_receive(
        1,
        receive_wqe(local, local.length - 31, 32),
        receive_wqe(stage.foreign, 0, 32),
        receive_wqe(stage.source, 0, 32),
        {"sge0_addr": 0, "sge0_length": 32, "sge0_lkey": local.stag ^ 1},
        {"sge0_addr": 0, "sge0_length": 32, "sge0_lkey": 11 << 8},
        receive_wqe(local, 0, 31),
        receive_wqe(local, 64, 32),
    )
    sends = [stage.frame(stage.send(32)) for _ in range(6)]
    await stage.deliver([*sends, stage.frame(stage.send(31)), stage.frame(good), stage.frame(good)])
    await stage.check()
    message = stage.record(stage.mapped, 0, 256, path_mtu=62 + 128)
    liar = stage.record(stage.mapped, 64, 256, path_mtu=62 + 128, msn=message[0].msn)
    (late,) = stage.record(stage.mapped, 2048, 64)
    await stage.deliver(
        [stage.frame(segment) for segment in (message[0], liar[1], late, late, message[1])]
    )
    await stage.check()

    # Sends of several datagrams: no map to hold one, no tracker for the next.
    await stage.post_receive(1, receive_wqe(stage.plain, 0, 3000))
    await stage.deliver([stage.frame(item) for item in (*stage.long_send(3000), stage.send(9))])
    trackers = range(stage.parameters.n_tracker)
    messages = [stage.record(stage.mapped, 999 * n, 300, path_mtu=190) for n in trackers]
    await stage.deliver([stage.frame(segments[0]) for segments in messages])
    await stage.post_receive(1, receive_wqe(stage.mapped, 0x8000, 3000))
    await stage.deliver([stage.frame(item) for item in (*stage.long_send(3000), stage.send(9))])
    await stage.deliver([stage.frame(item) for segments in messages for item in segments[1:]])
    await stage.check()

    # A full CQ: the queue of QP 1 takes 256.
    for _ in range(4):
        singles = [stage.record(stage.plain, 0, 1)[0] for _ in range(64)]
        await stage.deliver([stage.frame(segment) for segment in singles])
        await stage.settle()
    over = [stage.record(stage.plain, 1, 9)[0] for _ in range(3)]
    await stage.deliver([stage.frame(segment) for segment in over])
    await stage.check()

    counters = await stage.counters(stage.model)
    missed = [c.name for c in DROPS if not counters[c] and c is not Counter.DROP_OVERFLOW]
    assert not missed, f"nothing was dropped for {', '.join(missed)}"
    (again,) = stage.record(stage.plain, 0, 100)
    await stage.deliver([stage.frame(again)])
    assert len((await stage.check())[1]) == 1


async def overload(stage: Stage) -> None:
    """P16: memory stands still while frames pour in: whole frames are dropped, the rest is right.

    The model has no limit to its buffer, so that only the sum is compared here.
    """
    channel = stage.nic.dma.write_if.w_channel
    region, size = stage.mapped, 1000
    channel.pause = True
    frames = 120
    before = [stage.peek(region.dma + size * n, size) for n in range(frames)]
    segments = [stage.write(region, size * n, size) for n in range(frames)]
    for segment in segments:
        stage.nic.receive(stage.frame(segment))
    await stage.nic.delivered()
    channel.pause = False
    await stage.nic.wait(20000)
    counters = await stage.counters(stage.nic)
    assert counters[Counter.DROP_OVERFLOW] > 0
    placed = 0
    for number, segment in enumerate(segments):
        now = stage.peek(region.dma + size * number, size)
        assert now in (before[number], segment.payload), f"frame {number} is placed in part"
        placed += now == segment.payload
    assert placed == counters[Counter.RX_PLACED]
    assert placed + counters[Counter.DROP_OVERFLOW] == counters[Counter.RX_FRAMES] == frames
    assert sum(counters[item] for item in DROPS) == counters[Counter.DROP_OVERFLOW]
    assert BENCH.max_mtu <= placed * size, "the buffer holds less than a frame of the largest MTU"
    await stage.reset()
    await stage.set_up()
    (segment,) = stage.record(stage.mapped, 5, 500)
    await stage.deliver([stage.frame(segment)])
    assert len((await stage.check())[1]) == 1
