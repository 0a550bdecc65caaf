"""The frame receiver against a second reading of section 2 of the device behaviour."""

import gc
import random
import struct
from types import SimpleNamespace

import google_crc32c
import pytest
from amaranth.hdl import Module
from amaranth.lib import memory, wiring
from amaranth.sim import Simulator
from scapy.layers.inet import IP, UDP, IPOption_NOP
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Raw

from uwarp.contract import PORT_ENTRY, Counter, Parameters, port_rows
from uwarp_hdl.layouts import PORT_ROW, Datagram, PacketBeat
from uwarp_hdl.net.receive import FrameReceiver

SEED = 5041
PARAMETERS = Parameters(n_qp=16, max_mtu=1500)
OUR_MAC, OUR_IP, PEER_IP = "02:00:00:00:00:01", "10.0.0.1", "10.1.2.3"
CONFIG = {"enable": 1, "mac": 0x020000000001, "ipv4": 0x0A000001, "mtu": 1500}
PORTS = {4791: 3, 1: 7, 65535: 15, 20001: 0}
HEADERS = {0x0: 14, 0x3: 18, 0x5: 18, 0xC: 30, 0xE: 22}
TAGGED = (0x0, 0xC)


# Frames


def segment(opcode, payload, *, flags=0x40, bits=0, rng=None):
    """A DDP segment with random header fields, CRC included."""
    fill = (rng or random.Random(SEED)).randbytes(HEADERS[opcode] - 2)
    control = (0x80 if opcode in TAGGED else 0) | flags | 1
    return with_crc(bytes([control, 0x40 | bits | opcode]) + fill + payload)


def with_crc(octets):
    return octets + google_crc32c.value(octets).to_bytes(4, "little")


def frame(content, *, port=4791, sport=49152, ether=None, ip=None, udp=None, pad=True):
    """An untagged frame with right lengths and checksums, but for what the dictionaries say."""
    packet = (
        Ether(**{"dst": OUR_MAC, "src": "02:00:00:00:00:09", **(ether or {})})
        / IP(**{"src": PEER_IP, "dst": OUR_IP, "flags": "DF", **(ip or {})})
        / UDP(**{"sport": sport, "dport": port, **(udp or {})})
        / Raw(content)
    )
    octets = bytes(packet)
    return octets.ljust(60, b"\0") if pad else octets


def patched(octets, changes):
    result = bytearray(octets)
    for offset, value in changes.items():
        result[offset : offset + len(value)] = value
    return bytes(result)


def total(octets):
    """The sum of RFC 1071, of 16-bit numbers, odd octets filled up with zero."""
    octets += bytes(len(octets) % 2)
    value = sum(struct.unpack(f">{len(octets) // 2}H", octets))
    while value >> 16:
        value = (value & 0xFFFF) + (value >> 16)
    return value


def with_ip_sum(octets):
    octets = patched(octets, {24: b"\0\0"})
    return patched(octets, {24: struct.pack(">H", total(octets[14:34]) ^ 0xFFFF)})


def with_udp_sum(octets):
    octets = patched(octets, {40: b"\0\0"})
    length = int.from_bytes(octets[38:40], "big")
    value = total(octets[26:34] + struct.pack(">HH", 17, length) + octets[34 : 34 + length])
    return patched(octets, {40: struct.pack(">H", (value ^ 0xFFFF) or 0xFFFF)})


# What is to become of them


def expected(octets, *, flagged=False, mtu=1500):
    """The Counter that the frame ends in, or what the receiver says of the datagram."""
    number = lambda first, size: int.from_bytes(octets[first : first + size], "big")  # noqa: E731
    length = len(octets)
    if flagged:
        return Counter.DROP_MAC_ERROR
    if length < 14:
        return Counter.DROP_RUNT
    if length > mtu + 14:
        return Counter.DROP_OVERSIZE
    mac = octets[:6]
    if mac not in (bytes.fromhex("020000000001"), b"\xff" * 6):
        return Counter.DROP_MAC_FILTER
    if octets[12:14] != b"\x08\x00":
        return Counter.RX_MANAGEMENT
    if length < 34:
        return Counter.DROP_IP_HEADER
    version, ihl = divmod(octets[14], 16)
    ip_length = number(16, 2)
    if version != 4 or ihl < 5 or ip_length < 4 * ihl or ip_length > length - 14:
        return Counter.DROP_IP_HEADER
    if ihl > 5:
        return Counter.RX_MANAGEMENT
    if total(octets[14:34]) != 0xFFFF:
        return Counter.DROP_IP_CHECKSUM
    if octets[20] & 0x3F or octets[21]:
        return Counter.DROP_IP_FRAGMENT
    if octets[30:34] not in (bytes([10, 0, 0, 1]), b"\xff" * 4):
        return Counter.DROP_IP_FILTER
    if octets[23] != 17:
        return Counter.RX_MANAGEMENT
    udp_length = number(38, 2) if ip_length >= 28 else 0
    if udp_length < 8 or udp_length > ip_length - 20:
        return Counter.DROP_UDP_LENGTH
    datagram = octets[34 : 34 + udp_length]
    pseudo = octets[26:34] + struct.pack(">HH", 17, udp_length)
    if number(40, 2) and total(pseudo + datagram) != 0xFFFF:
        return Counter.DROP_UDP_CHECKSUM
    if mac == b"\xff" * 6 or octets[30:34] == b"\xff" * 4 or number(36, 2) not in PORTS:
        return Counter.RX_MANAGEMENT
    content = datagram[8:]
    if len(content) < 18:
        return Counter.DROP_DDP_SHORT
    ddp = content[:-4]
    if google_crc32c.value(ddp) != int.from_bytes(content[-4:], "little"):
        return Counter.DROP_CRC
    if ddp[0] & 3 != 1:
        return Counter.DROP_DDP_VERSION
    if ddp[1] >> 6 != 1:
        return Counter.DROP_RDMAP_VERSION
    opcode = ddp[1] & 15
    if opcode not in HEADERS or bool(ddp[0] & 0x80) != (opcode in TAGGED):
        return Counter.DROP_OPCODE
    header = HEADERS[opcode]
    if len(content) < header + 4:
        return Counter.DROP_DDP_SHORT
    fields = dict.fromkeys(Datagram.as_shape().members, 0)
    fields.update(
        qpn=PORTS[number(36, 2)],
        source_ip=number(26, 4),
        source_port=number(34, 2),
        opcode=opcode,
        solicited=int(opcode == 5 or (opcode in (0xC, 0xE) and bool(ddp[1] & 0x20))),
        immediate_valid=int(opcode in (0xC, 0xE) and bool(ddp[1] & 0x10)),
        last=ddp[0] >> 6 & 1,
        payload_length=len(ddp) - header,
        payload_offset=(42 + header) % 8,
    )
    if opcode in TAGGED:
        fields["stag"], fields["to"] = struct.unpack_from(">IQ", ddp, 2)
        if opcode == 0xC:
            names = ("msn", "mo", "mlen", "immediate")
            fields.update(zip(names, struct.unpack_from(">IIII", ddp, 14), strict=True))
    else:
        names = ("mlen", "qn", "msn", "mo")
        fields.update(zip(names, struct.unpack_from(">IIII", ddp, 2), strict=True))
        if opcode == 0xE:
            (fields["immediate"],) = struct.unpack_from(">I", ddp, 18)
    fields["immediate"] *= fields["immediate_valid"]
    return SimpleNamespace(fields=fields, payload=ddp[header:])


# The bench


class Harness(wiring.Component):
    """The receiver with its port table."""

    def __init__(self, **sizes):
        self.receiver = FrameReceiver(PARAMETERS, **{"payload_words": 256, "datagrams": 8, **sizes})
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.receiver = self.receiver
        banks = [[0] * PARAMETERS.n_qp for _ in range(4)]
        for i, (port, qpn) in enumerate(PORTS.items()):
            row = port_rows(port, PARAMETERS.n_qp)[i % 4]
            banks[i % 4][row] = PORT_ENTRY.to_int(valid=1, port=port, qpn=qpn)
        # A port in two banks is the lower bank's.
        banks[3][port_rows(4791, PARAMETERS.n_qp)[3]] = PORT_ENTRY.to_int(
            valid=1, port=4791, qpn=9
        )
        for i, bank in enumerate(banks):
            rows = memory.Memory(shape=PORT_ROW.size, depth=PARAMETERS.n_qp, init=bank)
            m.submodules[f"bank{i}"] = rows
            read = rows.read_port()
            m.d.comb += [
                read.addr.eq(self.receiver.ports.indices[i]),
                self.receiver.ports.rows[i].as_value().eq(read.data),
            ]
        return m


class Run:
    """Drive frames, take everything that comes out, and note when.

    ``frames`` are octets, or pairs of octets and the numbers of the beats that carry ``error``.
    ``gap`` and ``stall`` are probabilities for each cycle; ``open_at`` holds the outputs until that
    cycle.
    """

    def __init__(self, frames, *, gap=0.0, stall=0.0, open_at=0, seed=SEED, config=CONFIG, **sizes):
        self.frames = [item if isinstance(item, tuple) else (item, ()) for item in frames]
        self.gap, self.stall, self.open_at, self.seed = gap, stall, open_at, seed
        self.config = config
        self.outcomes, self.datagrams, self.payloads = [], [], []
        self.frame_ends, self.datagram_times = [], []
        harness = Harness(**sizes)
        self.dut = harness.receiver
        simulator = Simulator(harness)
        simulator.add_clock(1e-6)
        simulator.add_testbench(self._bench)
        simulator.run()

    def _beats(self):
        for octets, errors in self.frames:
            count = -(-len(octets) // 8)
            for i in range(count):
                part = octets[8 * i : 8 * i + 8]
                # Octets past the end are no zeros on a real bus.
                word = part + b"\xa5" * (8 - len(part))
                yield PacketBeat.const(
                    {
                        "data": int.from_bytes(word, "little"),
                        "count": len(part),
                        "last": i == count - 1,
                        "error": i in errors,
                    }
                )

    async def _bench(self, ctx):
        dut, rng = self.dut, random.Random(self.seed)
        ctx.set(dut.config, self.config)
        await ctx.tick().repeat(4)
        beats = self._beats()
        pending, partial, quiet, cycle = next(beats), b"", 0, 0
        limit = 2000 + self.open_at + 20 * sum(len(octets) // 8 + 2 for octets, _ in self.frames)
        ready = False
        while quiet < 40:
            assert cycle < limit, f"no end after {cycle} cycles; seed {self.seed}"
            send = pending is not None and rng.random() >= self.gap
            ready = (
                cycle >= self.open_at and rng.random() >= self.stall,
                cycle >= self.open_at and rng.random() >= self.stall,
            )
            ctx.set(dut.rx.valid, send)
            if send:
                ctx.set(dut.rx.payload, pending)
                if pending.last:
                    self.frame_ends.append(cycle)
                pending = next(beats, None)
            ctx.set(dut.datagrams.ready, ready[0])
            ctx.set(dut.payload.ready, ready[1])
            quiet = 0 if pending is not None or cycle < self.open_at else quiet + 1

            assert ctx.get(dut.rx.ready) == 1
            events = ctx.get(dut.events)
            if events:
                bits = [item for item in Counter if events >> item & 1]
                assert bits[0] is Counter.RX_FRAMES and len(bits) <= 2, f"{bits=}"
                self.outcomes.append(bits[1] if len(bits) == 2 else None)
                quiet = 0
            if ready[0] and ctx.get(dut.datagrams.valid):
                self.datagrams.append(ctx.get(dut.datagrams.payload))
                self.datagram_times.append(cycle)
                quiet = 0
            if ready[1] and ctx.get(dut.payload.valid):
                beat = ctx.get(dut.payload.payload)
                partial += beat.data.to_bytes(8, "little")[: beat.count]
                assert beat.count == 8 or beat.last, f"{beat=}"
                if beat.last:
                    self.payloads.append(partial)
                    partial = b""
                quiet = 0
            await ctx.tick()
            cycle += 1
        assert partial == b"", f"payload without its end: {partial.hex()}"

    def check_datagrams(self, wanted, seed=None):
        """Datagrams and payloads are those of ``wanted``, in that order."""
        assert len(self.datagrams) == len(wanted), f"{len(self.datagrams)=} {seed=}"
        payloads = iter(self.payloads)
        for i, (got, want) in enumerate(zip(self.datagrams, wanted, strict=True)):
            for name, value in want.fields.items():
                assert int(getattr(got, name)) == value, f"datagram {i}: {name}, {seed=}"
            if want.payload:
                octets = next(payloads)[want.fields["payload_offset"] :]
                assert octets == want.payload, f"payload of datagram {i}, {seed=}"
        assert next(payloads, None) is None, f"payload without a datagram, {seed=}"

    def check(self, wanted):
        """Every frame ended as ``wanted`` says."""
        counters = [item if isinstance(item, Counter) else None for item in wanted]
        assert len(self.outcomes) == len(counters), f"frames counted, seed {self.seed}"
        for i, (got, want) in enumerate(zip(self.outcomes, counters, strict=True)):
            assert got == want, f"frame {i}, {self.frames[i][0].hex()}: {got!r}, not {want!r}"
        self.check_datagrams([item for item in wanted if not isinstance(item, Counter)], self.seed)
        return self


def check(frames, **options):
    mtu = options.get("config", CONFIG)["mtu"]
    wanted = [
        expected(item[0], flagged=bool(item[1]), mtu=mtu)
        if isinstance(item, tuple)
        else expected(item, mtu=mtu)
        for item in frames
    ]
    return Run(frames, **options).check(wanted)


def good(opcode=0xC, size=24, **options):
    rng = random.Random(SEED + size)
    return frame(segment(opcode, rng.randbytes(size), rng=rng), **options)


# Tests


@pytest.mark.parametrize("opcode", HEADERS)
def test_every_short_payload(opcode):
    """P1, P2, P3, P14, P18: 0 to 72 octets, back to back, padded to 60 octets and not."""
    frames = [good(opcode, size, pad=bool(size & 1)) for size in range(73)]
    run = check(frames)
    assert run.outcomes == [None] * 73


def test_every_payload_to_200_and_the_largest():
    """P2, P12, P17, with gaps and stalls."""
    opcodes = list(HEADERS)
    frames = [good(opcodes[size % 5], size) for size in range(73, 201)]
    frames += [good(opcode, 1500 - 28 - 4 - header) for opcode, header in HEADERS.items()]
    frames += [good(0xC, 1408), good(0xC, 1500 - 28 - 4 - 30 + 1)]
    run = check(frames, gap=0.2, stall=0.2)
    assert run.outcomes == [None] * (len(frames) - 1) + [Counter.DROP_OVERSIZE]


@pytest.mark.parametrize("opcode", [0x0, 0x5, 0xC])
def test_every_truncation(opcode):
    """P4, P13: the frame ends early, in any header or after; the next one is intact."""
    whole = good(opcode, 21, pad=False)
    frames = []
    for length in range(1, len(whole) + 1):
        frames += [whole[:length], good(opcode, length % 9)]
    run = check(frames)
    assert run.outcomes[1::2] == [None] * len(whole)
    assert run.outcomes[:26:2] == [Counter.DROP_RUNT] * 13
    assert run.outcomes[26:66:2] == [Counter.DROP_IP_HEADER] * 20


def test_every_truncation_with_lengths_to_match():
    """P4, P31: IP and UDP lengths and checksums are right for a segment that is cut short."""
    frames = []
    for opcode in HEADERS:
        rng = random.Random(SEED)
        whole = segment(opcode, b"", rng=rng)[:-4]
        for length in range(len(whole) + 1):
            frames.append(frame(with_crc(whole[:length]), pad=bool(length & 1)))
    run = check(frames)
    assert set(run.outcomes) == {None, Counter.DROP_DDP_SHORT}


@pytest.mark.parametrize("offset", range(8))
def test_every_wrong_octet(offset):
    """P9, P19: a wrong octet anywhere, in padding too, is found by the right check."""
    rng = random.Random(SEED + offset)
    whole = good(0xC, 13 + offset) + rng.randbytes(offset)
    frames = []
    for position in range(offset, len(whole), 8):
        for fault in (1 << offset, rng.randrange(1, 256)):
            wrong = patched(whole, {position: bytes([whole[position] ^ fault])})
            frames += [wrong, with_ip_sum(wrong), patched(wrong, {40: b"\0\0"})]
            frames += [with_udp_sum(with_ip_sum(wrong))] * (position >= 34)
    check(frames)


def ip_lengths(octets, ip_length, udp_length):
    octets = patched(
        octets, {16: struct.pack(">H", ip_length), 38: struct.pack(">H", udp_length)}
    )
    return with_udp_sum(with_ip_sum(octets))


def named_cases():
    """A frame for each line of the rule, and its counter; None for a datagram."""
    base = good(0xC, 24)
    n = len(base)
    send = segment(0x3, b"hello")
    yield "P7 other MAC", good(ether={"dst": "02:00:00:00:00:02"}), Counter.DROP_MAC_FILTER
    yield "P7 multicast", good(ether={"dst": "01:00:5e:00:00:01"}), Counter.DROP_MAC_FILTER
    yield "P7 broadcast MAC", good(ether={"dst": "ff:ff:ff:ff:ff:ff"}), Counter.RX_MANAGEMENT
    yield "P7 other IP", good(ip={"dst": "10.0.0.2"}), Counter.DROP_IP_FILTER
    yield "P7 multicast IP", good(ip={"dst": "224.0.0.1"}), Counter.DROP_IP_FILTER
    yield "P7 broadcast IP", good(ip={"dst": "255.255.255.255"}), Counter.RX_MANAGEMENT
    arp_frame = bytes(Ether(dst="ff:ff:ff:ff:ff:ff") / ARP()).ljust(60, b"\0")
    yield "ARP", arp_frame, Counter.RX_MANAGEMENT
    tagged = Ether(dst=OUR_MAC) / Dot1Q(vlan=5) / Ether(base)[IP]
    yield "P8 VLAN", bytes(tagged), Counter.RX_MANAGEMENT
    yield "P6 version 6", with_ip_sum(patched(base, {14: b"\x65"})), Counter.DROP_IP_HEADER
    yield "P6 IHL 4", with_ip_sum(patched(base, {14: b"\x44"})), Counter.DROP_IP_HEADER
    options = good(ip={"options": [IPOption_NOP()] * 4})
    yield "P6 options", options, Counter.RX_MANAGEMENT
    yield "P6 options, wrong sum", patched(options, {24: b"\0\1"}), Counter.RX_MANAGEMENT
    yield "P6 IHL 15", with_ip_sum(patched(base, {14: b"\x4f"})), Counter.RX_MANAGEMENT
    long_ihl = ip_lengths(patched(base, {14: b"\x4f"}), 59, 8)
    yield "P6 IHL 15, 59 octets", long_ihl, Counter.DROP_IP_HEADER
    yield "P5 MF", good(ip={"flags": "MF"}), Counter.DROP_IP_FRAGMENT
    yield "P5 offset 1", good(ip={"flags": 0, "frag": 1}), Counter.DROP_IP_FRAGMENT
    yield "P5 offset 256", good(ip={"flags": "DF", "frag": 256}), Counter.DROP_IP_FRAGMENT
    yield "P5 offset 4096", good(ip={"flags": "DF", "frag": 4096}), Counter.DROP_IP_FRAGMENT
    yield "reserved flag", good(ip={"flags": "evil"}), None
    yield "ICMP", good(ip={"proto": 1}), Counter.RX_MANAGEMENT
    yield "TCP over 20 octets", good(ip={"proto": 6, "len": 20}), Counter.RX_MANAGEMENT
    bare = good(ip={"proto": 6, "len": 20})
    yield "P13 an IP header and no more", bare[:34], Counter.RX_MANAGEMENT
    yield "P13 one octet less", bare[:33], Counter.DROP_IP_HEADER
    yield "P13 an Ethernet header and no more", arp_frame[:14], Counter.RX_MANAGEMENT
    yield "P4 total 19", ip_lengths(base, 19, 8), Counter.DROP_IP_HEADER
    yield "P4 total 20", ip_lengths(base, 20, 8), Counter.DROP_UDP_LENGTH
    yield "P4 total 27", ip_lengths(base, 27, 8), Counter.DROP_UDP_LENGTH
    yield "P4 total over the frame", ip_lengths(base, n - 13, 30), Counter.DROP_IP_HEADER
    yield "P4 total 65535", ip_lengths(base, 65535, 30), Counter.DROP_IP_HEADER
    yield "P4 UDP 0", ip_lengths(base, n - 14, 0), Counter.DROP_UDP_LENGTH
    yield "P4 UDP 7", ip_lengths(base, n - 14, 7), Counter.DROP_UDP_LENGTH
    yield "P4 UDP one over", ip_lengths(base, n - 14, n - 33), Counter.DROP_UDP_LENGTH
    yield "P4 UDP 65535", ip_lengths(base, n - 14, 65535), Counter.DROP_UDP_LENGTH
    yield "P3 UDP 8", ip_lengths(base, 28, 8), Counter.DROP_DDP_SHORT
    yield "P3 UDP 8 in more IP", ip_lengths(base, n - 14, 8), Counter.DROP_DDP_SHORT
    yield "P3 UDP 8, other port", frame(b"", port=9), Counter.RX_MANAGEMENT
    yield "P3 unpadded, other port", frame(b"", port=9, pad=False), Counter.RX_MANAGEMENT
    yield "P3 unpadded, our port", frame(b"", pad=False), Counter.DROP_DDP_SHORT
    yield "P1 IP padding in UDP", frame(send, udp={"len": 8 + len(send)}), None
    shorter = frame(send + b"padding of the IP payload", udp={"len": 8 + len(send), "chksum": 0})
    yield "P1 UDP shorter than IP", shorter, None
    yield "P1 frame longer than IP", frame(send) + b"padding of the frame" * 3, None
    yield "P19 IP sum wrong", good(ip={"chksum": 0x1234}), Counter.DROP_IP_CHECKSUM
    yield "P19 IP sum zero", good(ip={"chksum": 0}), Counter.DROP_IP_CHECKSUM
    yield "P19 UDP sum wrong", good(udp={"chksum": 0x1234}), Counter.DROP_UDP_CHECKSUM
    yield "P19 UDP sum zero", good(udp={"chksum": 0}), None
    octets = good(port=9, udp={"chksum": 1})
    yield "P19 UDP sum wrong, other port", octets, Counter.DROP_UDP_CHECKSUM
    for number in (1, 65535, 20001):
        yield f"P44 port {number}", good(port=number), None
    yield "other port", good(port=4792), Counter.RX_MANAGEMENT
    yield "P44 port 0", good(port=0), Counter.RX_MANAGEMENT
    yield "17 octets", frame(with_crc(bytes(13))), Counter.DROP_DDP_SHORT
    yield "18 octets", frame(segment(0x0, b"")), None
    header = segment(0x0, b"")[:-4]
    for version in (0, 2, 3):
        octets = with_crc(patched(header, {0: bytes([0x80 | version])}))
        yield f"P31 DDP version {version}", frame(octets), Counter.DROP_DDP_VERSION
        octets = with_crc(patched(header, {1: bytes([version << 6])}))
        yield f"P31 RDMAP version {version}", frame(octets), Counter.DROP_RDMAP_VERSION
    for opcode in range(16):
        for control in (0x01, 0x81, 0x7D, 0xFD):
            octets = with_crc(bytes([control, 0x40 | opcode]) + bytes(40))
            known = opcode in HEADERS and bool(control & 0x80) == (opcode in TAGGED)
            yield f"P31 {opcode=:#x} {control=:#x}", frame(octets), (
                None if known else Counter.DROP_OPCODE
            )
    yield "CRC wrong", frame(header + b"\0\0\0\0"), Counter.DROP_CRC
    yield "CRC big-endian", frame(header + segment(0x0, b"")[:-5:-1]), Counter.DROP_CRC
    for opcode in HEADERS:
        yield f"{opcode=:#x} SE, IM", frame(segment(opcode, b"x", flags=0, bits=0x30)), None


def test_each_line_of_the_rule():
    """P1, P3 to P9, P19, P31: the counter is named here, and the second reading agrees."""
    names, frames, counters = zip(*named_cases(), strict=True)
    for name, octets, counter in zip(names, frames, counters, strict=True):
        want = expected(octets)
        assert (want if isinstance(want, Counter) else None) == counter, name
    check(frames)
    check(frames[::-1], gap=0.3, stall=0.3)


def test_sums_that_fold_twice():
    """P19: many large numbers, odd lengths; a UDP sum that is sent as 0xFFFF."""
    frames = []
    for size in (1, 2, 7, 8, 9, 1405, 1408):
        content = segment(0xC, b"\xff" * size)
        frames.append(frame(content, sport=0xFFFF, port=65535, ip={"src": "255.255.255.254"}))
    # The source port makes up for the checksum, so that this comes out as 0.
    base = good(0x3, 9)
    port = int.from_bytes(base[34:36], "big") + int.from_bytes(base[40:42], "big")
    port = (port & 0xFFFF) + (port >> 16)
    ones = with_udp_sum(patched(base, {34: struct.pack(">H", port)}))
    assert ones[40:42] == b"\xff\xff"
    frames += [ones, patched(ones, {40: b"\xff\xfe"})]
    run = check(frames)
    assert run.outcomes == [None] * 8 + [Counter.DROP_UDP_CHECKSUM]


def test_frames_of_one_beat_in_a_row():
    """P13, P15: a frame may end in every cycle."""
    frames = []
    for count in range(12):
        frames += [good(0x3, count)[: 1 + i % 8] for i in range(count)]
        frames += [good(0x3, count), good(0x3, count)[:9]]
    check(frames)
    check([good(0xC, 5), *[b"\x02"] * 20, good(0xE, 6)], gap=0.5)


def test_mac_error_on_any_beat():
    """P9, P15: whichever beat carries it, once or more often."""
    whole = good(0xC, 40)
    beats = -(-len(whole) // 8)
    frames = []
    for beat in range(beats):
        frames += [(whole, (beat,)), good(0x0, beat), (b"\x02", (0,))]
    frames += [(whole, range(beats)), whole]
    run = check(frames)
    assert run.outcomes.count(Counter.DROP_MAC_ERROR) == 2 * beats + 1


def test_oversize_against_the_mtu():
    """P17: frames of the MTU, one octet more, and far more than the payload buffer's room."""
    config = CONFIG | {"mtu": 600}
    largest = 600 - 28 - 4 - 30
    frames = [good(0xC, largest), good(0xC, largest + 1), good(0xC, 3000), good(0xC, 8000)]
    frames += [bytes(20_000), good(0xC, 8)]
    run = check(frames, config=config)
    bad = Counter.DROP_OVERSIZE
    assert run.outcomes == [None, bad, bad, bad, bad, None]


def test_disabled_frames_vanish():
    run = Run([good(), good(0x3, 0), b"\x02"], config=CONFIG | {"enable": 0})
    assert (run.outcomes, run.datagrams, run.payloads) == ([], [], [])


@pytest.mark.parametrize(("size", "gap"), [(0, 0), (0, 0.4), (8, 0.4), (600, 0), (1400, 0.2)])
def test_overflow_drops_whole_frames_and_recovers(size, gap):
    """P11, P16: without room for Datagram or payload frames go, whole; then all is as before."""
    frames = [good(0xC, size + i, port=(4791, 1)[i % 2]) for i in range(14)]
    bad = [good(ether={"dst": "02:00:00:00:00:02"}), good(ip={"chksum": 1}), good(port=9)]
    words = sum(len(octets) // 8 + 1 for octets in frames)
    late = [good(0xE, size // 2 + i) for i in range(6)]
    # What the headers rule out is counted as what it is, room or none.
    run = Run([*frames, *bad], open_at=2 * words + 100, gap=gap, datagrams=8)
    wanted = [expected(octets) for octets in frames]
    room = 8 if size < 248 else 257 * 8 // (size + 16)
    kept = [i for i, outcome in enumerate(run.outcomes[:14]) if outcome is None]
    assert kept[:room] == list(range(room))
    assert set(run.outcomes[:14]) == {None, Counter.DROP_OVERFLOW}
    assert run.outcomes[14:] == [expected(octets) for octets in bad]
    run.check_datagrams([wanted[i] for i in kept])

    rest = [good(port=9, size=400)] * 8
    run = Run([*frames, *rest, *late], open_at=words + 20, datagrams=8)
    assert run.outcomes[-6:] == [None] * 6
    kept = [i for i, outcome in enumerate(run.outcomes[:14]) if outcome is None]
    assert len(kept) < 14
    run.check_datagrams([wanted[i] for i in kept] + [expected(octets) for octets in late])


def test_latency():
    """A Datagram is offered 6 cycles after its frame's last word, whatever comes behind it."""
    frames = [good(opcode, size) for opcode in HEADERS for size in (0, 1, 30, 64)]
    run = check(frames)
    delays = [b - a for a, b in zip(run.frame_ends, run.datagram_times, strict=True)]
    assert delays == [6] * len(frames)


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_random_mixture(seed):
    """P12: good and bad frames, gaps and stalls of random likelihood."""
    rng = random.Random(seed)
    sources = [octets for _, octets, _ in named_cases()]
    frames = []
    for _ in range(100):
        octets = rng.choice(sources) if rng.random() < 0.4 else good(
            rng.choice(list(HEADERS)), rng.choice((rng.randrange(20), rng.randrange(300)))
        )
        kind = rng.random()
        if kind < 0.1:
            octets = octets[: rng.randint(1, len(octets))]
        elif kind < 0.2:
            position = rng.randrange(len(octets))
            octets = patched(octets, {position: bytes([octets[position] ^ rng.randrange(1, 256)])})
        elif kind < 0.25:
            frames.append((octets, (rng.randrange(-(-len(octets) // 8)),)))
            continue
        frames.append(octets)
    # The outputs are slower than the wire now and then, but never so long that room runs out.
    check(frames, gap=rng.choice((0, 0.3)), stall=rng.choice((0, 0.3)), seed=seed)


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_parameters_are_checked():
    with pytest.raises(ValueError, match="payload_words is 128; an MTU of 1500 takes 190"):
        FrameReceiver(PARAMETERS, payload_words=128)
    gc.collect()
