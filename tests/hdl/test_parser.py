"""The frame receiver against a second reading of section 2 of the device behaviour."""

import gc
import itertools
import random
import struct
from ipaddress import IPv4Address, IPv6Address
from types import SimpleNamespace

import google_crc32c
import pytest
from amaranth.hdl import Cat
from scapy.layers.inet import IP, UDP, IPOption_NOP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.packet import Raw

from sim_tb.port_tables import GROUP_IP, GROUP_IP6, GROUP_PORTS, GROUPS, PORTS, TabledReceiver
from sim_tb.units import unit
from tests.seeds import seeds
from uwarp.contract import Counter, Parameters
from uwarp_hdl.layouts import Datagram
from uwarp_hdl.net.receive import FrameReceiver

SEED = 5041
OUR_MAC, OUR_IP, PEER_IP = "02:00:00:00:00:01", "10.0.0.1", "10.1.2.3"
OUR_IP6, PEER_IP6 = "2001:db8:1:2:3:4:5:6", "fe80::1234:5678:9abc:def0"
CONFIG = {
    "enable": 1,
    "mac": 0x020000000001,
    "ipv4": 0x0A000001,
    "ipv6": int(IPv6Address(OUR_IP6)),
    "mtu": 1500,
}
GROUP_MAC = "01:00:5e:00:00:01"
HEADERS = {0x0: 14, 0x1: 46, 0x3: 18, 0x5: 18, 0x7: 22, 0xC: 30, 0xD: 30, 0xE: 22}
TAGGED = (0x0, 0xC, 0xD)
#: VLAN tags: none, one, two of either type, and one more than are taken out.
TAGS = (b"", b"\x81\0\x60\5", b"\x88\xa8\0\7\x81\0\x0f\xff", b"\x81\0\x81\0" * 3)
#: Forms of frames as ``good`` takes them, with headers of every length modulo 8 octets.
FORMS = (
    {},
    {"options": 1},
    {"options": 10, "tags": TAGS[2]},
    {"ipv6": True},
    {"options": 3, "tags": TAGS[1]},
    {"ipv6": True, "tags": TAGS[2]},
    {"tags": TAGS[1]},
    {"ipv6": True, "tags": TAGS[1]},
)


# Frames


def segment(opcode, payload, *, flags=0x40, bits=0, rng=None):
    """A DDP segment with random header fields, CRC included."""
    fill = (rng or random.Random(SEED)).randbytes(HEADERS[opcode] - 2)
    control = (0x80 if opcode in TAGGED else 0) | flags | 1
    return with_crc(bytes([control, 0x40 | bits | opcode]) + fill + payload)


def with_crc(octets):
    return octets + google_crc32c.value(octets).to_bytes(4, "little")


class Cut(bytes):
    """The begin of a frame; ``rest`` is what stands on the bus behind its end."""

    def __new__(cls, octets, length):
        self = super().__new__(cls, octets[:length])
        self.rest = octets[length:]
        return self


def frame(content, *, port=4791, sport=49152, ether=None, ip=None, udp=None, pad=True,
          tags=b"", options=0, ipv6=False):  # fmt: skip
    """A frame with right lengths and checksums, but for what the dictionaries say.

    ``options`` are words of IPv4 options; ``tags`` go before the type.
    """
    if ipv6:
        network = IPv6(**{"src": PEER_IP6, "dst": OUR_IP6, **(ip or {})})
    else:
        network = IP(**{"src": PEER_IP, "dst": OUR_IP, "flags": "DF", **(ip or {})})
    packet = (
        Ether(**{"dst": OUR_MAC, "src": "02:00:00:00:00:09", **(ether or {})})
        / network
        / UDP(**{"sport": sport, "dport": port, **(udp or {})})
        / Raw(content)
    )
    octets = bytes(packet)
    if options:
        # Octets that are no valid options: nobody reads them.
        filling = random.Random(SEED + options).randbytes(4 * options)
        length = int.from_bytes(octets[16:18], "big") + len(filling)
        octets = patched(
            octets[:34] + filling + octets[34:],
            {14: bytes([octets[14] + options]), 16: struct.pack(">H", length)},
        )
        if "chksum" not in (ip or {}):
            octets = with_ip_sum(octets)
    octets = octets[:12] + tags + octets[12:]
    return octets.ljust(60, b"\0") if pad else octets


def headers(octets):
    """Where the IP header and the UDP header of a frame begin."""
    ip = 14
    while ip < 22 and octets[ip - 2 : ip] in (b"\x81\0", b"\x88\xa8"):
        ip += 4
    if octets[ip - 2 : ip] == b"\x86\xdd":
        return ip, ip + 40
    return ip, ip + 4 * (octets[ip] & 15)


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


def with_ip_sum(octets, where=None):
    """With the header checksum that is right; nothing to do for IPv6."""
    ip, udp = where or headers(octets)
    if octets[ip - 2 : ip] == b"\x86\xdd":
        return octets
    octets = patched(octets, {ip + 10: b"\0\0"})
    return patched(octets, {ip + 10: struct.pack(">H", total(octets[ip:udp]) ^ 0xFFFF)})


def addresses(octets, where):
    """Source and destination."""
    ip, _ = where
    if octets[ip - 2 : ip] == b"\x86\xdd":
        return octets[ip + 8 : ip + 40]
    return octets[ip + 12 : ip + 20]


def with_udp_sum(octets, where=None):
    where = where or headers(octets)
    udp = where[1]
    octets = patched(octets, {udp + 6: b"\0\0"})
    length = int.from_bytes(octets[udp + 4 : udp + 6], "big")
    pseudo = addresses(octets, where) + struct.pack(">HH", 17, length)
    value = total(pseudo + octets[udp : udp + length])
    return patched(octets, {udp + 6: struct.pack(">H", (value ^ 0xFFFF) or 0xFFFF)})


# What is to become of them


def group_row(octets):
    """Row of the group table whose group the frame is for by type, IP and UDP header and port."""
    if len(octets) < 34:
        return None
    ip, udp = headers(octets)
    number = lambda first, size: int.from_bytes(octets[first : first + size], "big")  # noqa: E731
    if number(ip - 2, 2) == 0x0800 and len(octets) >= max(ip + 20, udp):
        size = number(ip + 2, 2) - (udp - ip)
        wrong = octets[ip] >> 4 != 4 or udp - ip < 20 or size < 0 or octets[ip + 9] != 17
        wrong = wrong or number(ip + 6, 2) & 0x3FFF or total(octets[ip:udp]) != 0xFFFF
        destination = 0xFFFF << 32 | number(ip + 16, 4)
    elif number(ip - 2, 2) == 0x86DD and len(octets) >= udp:
        size = number(ip + 4, 2)
        wrong = octets[ip] >> 4 != 6 or octets[ip + 6] != 17
        destination = number(ip + 24, 16)
    else:
        return None
    if wrong or udp + size > len(octets) or size < 8 or not 8 <= number(udp + 4, 2) <= size:
        return None
    row = GROUP_PORTS.get(number(udp + 2, 2))
    return row if row in GROUPS and destination == int(IPv6Address(GROUPS[row])) else None


def expected(octets, *, flagged=False, config=CONFIG):
    """The Counter that the frame ends in, or what the receiver says of the datagram."""
    number = lambda first, size: int.from_bytes(octets[first : first + size], "big")  # noqa: E731
    length = len(octets)
    if flagged:
        return Counter.DROP_MAC_ERROR
    tags = 0
    while tags < 8 and octets[12 + tags : 14 + tags] in (b"\x81\0", b"\x88\xa8"):
        tags += 4
    if length < 14 + tags:
        return Counter.DROP_RUNT
    if length > config["mtu"] + 14 + tags:
        return Counter.DROP_OVERSIZE
    mac = octets[:6]
    group = mac[0] & 1 and group_row(octets)
    if not group and mac not in (config["mac"].to_bytes(6, "big"), b"\xff" * 6):
        kept = config.get("accept_multicast" if mac[0] & 1 else "accept_foreign")
        return Counter.RX_MANAGEMENT if kept else Counter.DROP_MAC_FILTER
    ethertype, ip = number(12 + tags, 2), 14 + tags
    if ethertype == 0x0800:
        if length < ip + 20:
            return Counter.DROP_IP_HEADER
        version, ihl = divmod(octets[ip], 16)
        ip_length = number(ip + 2, 2)
        if version != 4 or ihl < 5 or ip_length < 4 * ihl or ip_length > length - ip:
            return Counter.DROP_IP_HEADER
        udp = ip + 4 * ihl
        if total(octets[ip:udp]) != 0xFFFF:
            return Counter.DROP_IP_CHECKSUM
        if octets[ip + 6] & 0x3F or octets[ip + 7]:
            return Counter.DROP_IP_FRAGMENT
        source, destination = octets[ip + 12 : ip + 16], octets[ip + 16 : ip + 20]
        if not group and destination not in (bytes([10, 0, 0, 1]), b"\xff" * 4):
            return Counter.DROP_IP_FILTER
        if octets[ip + 9] != 17:
            return Counter.RX_MANAGEMENT
        source_ip = 0xFFFF << 32 | int.from_bytes(source, "big")
        payload_length = ip_length - 4 * ihl
        is_broadcast = destination == b"\xff" * 4
    elif ethertype == 0x86DD:
        if length < ip + 40:
            return Counter.DROP_IP_HEADER
        payload_length = number(ip + 4, 2)
        if octets[ip] >> 4 != 6 or payload_length > length - ip - 40:
            return Counter.DROP_IP_HEADER
        if octets[ip + 6] == 44:
            return Counter.DROP_IP_FRAGMENT
        source, destination = octets[ip + 8 : ip + 24], octets[ip + 24 : ip + 40]
        if not group and int.from_bytes(destination, "big") != config["ipv6"]:
            return Counter.DROP_IP_FILTER
        if octets[ip + 6] != 17:
            return Counter.RX_MANAGEMENT
        udp = ip + 40
        source_ip = int.from_bytes(source, "big")
        is_broadcast = False
    else:
        return Counter.RX_MANAGEMENT
    udp_length = number(udp + 4, 2) if payload_length >= 8 else 0
    if udp_length < 8 or udp_length > payload_length:
        return Counter.DROP_UDP_LENGTH
    datagram = octets[udp : udp + udp_length]
    pseudo = source + destination + struct.pack(">HH", 17, udp_length)
    if number(udp + 6, 2) and total(pseudo + datagram) != 0xFFFF:
        return Counter.DROP_UDP_CHECKSUM
    is_ours = mac != b"\xff" * 6 and not is_broadcast and number(udp + 2, 2) in PORTS
    if not group and not is_ours:
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
    if group and opcode not in (0x3, 0x5, 0xE):
        return Counter.DROP_OPCODE
    header = HEADERS[opcode]
    if len(content) < header + 4:
        return Counter.DROP_DDP_SHORT
    fields = dict.fromkeys(Datagram.as_shape().members, 0)
    fields.update(
        qpn=group or PORTS[number(udp + 2, 2)],
        group=int(bool(group)),
        source_mac=number(6, 6),
        own=int(number(6, 6) == config["mac"]),
        source_ip=source_ip,
        source_port=number(udp, 2),
        opcode=opcode,
        solicited=int(opcode == 5 or (opcode in (0xC, 0xE) and bool(ddp[1] & 0x20))),
        immediate_valid=int(opcode in (0xC, 0xE) and bool(ddp[1] & 0x10)),
        last=ddp[0] >> 6 & 1,
        payload_length=len(ddp) - header,
        payload_offset=(42 + header) % 8,
    )
    if opcode in TAGGED:
        fields["stag"], fields["to"] = struct.unpack_from(">IQ", ddp, 2)
        if opcode in (0xC, 0xD):
            names = ("msn", "mo", "mlen", "immediate")
            fields.update(zip(names, struct.unpack_from(">IIII", ddp, 14), strict=True))
    else:
        names = ("mlen", "qn", "msn", "mo")
        fields.update(zip(names, struct.unpack_from(">IIII", ddp, 2), strict=True))
        if opcode in (0x7, 0xE):
            (fields["immediate"],) = struct.unpack_from(">I", ddp, 18)
        if opcode == 0x1:
            names = ("immediate", "sink_to", "mlen", "stag", "to")
            fields.update(zip(names, struct.unpack_from(">IQIIQ", ddp, 18), strict=True))
    if opcode not in (0x1, 0x7):
        fields["immediate"] *= fields["immediate_valid"]
    return SimpleNamespace(fields=fields, payload=ddp[header:])


# The bench


class Run:
    """Drive frames, take everything that comes out, and note when.

    ``frames`` are octets, or pairs of octets and the numbers of the beats that carry ``error``.
    ``gap`` and ``stall`` are probabilities for each cycle; ``open_at`` holds the outputs until that
    cycle; ``later`` is another configuration, and the cycle in which it comes; ``cuts`` are the
    cycles with ``cut``.
    """

    def __init__(
        self,
        frames,
        *,
        gap=0.0,
        stall=0.0,
        open_at=0,
        seed=SEED,
        config=CONFIG,
        later=(),
        cuts=(),
        **sizes,
    ):
        self.frames = [item if isinstance(item, tuple) else (item, ()) for item in frames]
        self.gap, self.stall, self.open_at, self.seed = gap, stall, open_at, seed
        self.config, self.later, self.cuts = config, later, cuts
        self.outcomes, self.datagrams, self.payloads = [], [], []
        self.frame_ends, self.datagram_times = [], []
        receiver = unit(TabledReceiver, **{"payload_words": 256, "datagrams": 8, **sizes})
        self.dut = receiver.component
        receiver.run(self._bench)

    def _beats(self):
        """Bits of each beat, which are much faster to set than its fields, and whether it is the
        last of its frame."""
        for octets, errors in self.frames:
            count = -(-len(octets) // 8)
            for i in range(count):
                part = octets[8 * i : 8 * i + 8]
                # Octets past the end are no zeros on a real bus.
                word = (part + getattr(octets, "rest", b"") + b"\xa5" * 8)[:8]
                last = i == count - 1
                bits = int.from_bytes(word, "little") | len(part) << 64
                yield bits | last << 68 | (i in errors) << 69, last

    async def _bench(self, ctx):
        dut, rng = self.dut, random.Random(self.seed)
        ctx.set(dut.config, self.config)
        await ctx.tick().repeat(4)
        beats = self._beats()
        pending, partial, quiet, cycle = next(beats), b"", 0, 0
        limit = 2000 + self.open_at + 20 * sum(len(octets) // 8 + 2 for octets, _ in self.frames)
        # Set at once: each time the simulator settles anew.
        payload = dut.rx.payload.as_value()
        driven = Cat(dut.rx.valid, dut.datagrams.ready, dut.payload.ready, payload)
        shown = 0
        while quiet < 40:
            assert cycle < limit, f"no end after {cycle} cycles; seed {self.seed}"
            send = pending is not None and rng.random() >= self.gap
            if self.later and cycle == self.later[1]:
                ctx.set(dut.config, self.later[0])
            ctx.set(dut.cut, cycle in self.cuts)
            ready = (
                cycle >= self.open_at and rng.random() >= self.stall,
                cycle >= self.open_at and rng.random() >= self.stall,
            )
            if send:
                shown, last = pending
                if last:
                    self.frame_ends.append(cycle)
                pending = next(beats, None)
            ctx.set(driven, send | ready[0] << 1 | ready[1] << 2 | shown << 3)
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
    config = options.get("config", CONFIG)
    wanted = [
        expected(item[0], flagged=bool(item[1]), config=config)
        if isinstance(item, tuple)
        else expected(item, config=config)
        for item in frames
    ]
    return Run(frames, **options).check(wanted)


def good(opcode=0xC, size=24, **options):
    """A frame of any form that becomes a Datagram."""
    rng = random.Random(SEED + size)
    return frame(segment(opcode, rng.randbytes(size), rng=rng), **options)


#: What ``good`` takes for a frame to a group of IPv4 and IPv6.
GROUP = {"port": 5000, "ether": {"dst": GROUP_MAC}, "ip": {"dst": GROUP_IP}}
GROUP6 = {"port": 5001, "ether": {"dst": "33:33:00:04:00:05"}, "ip": {"dst": GROUP_IP6}}
GROUP6 |= {"ipv6": True}
BROADCAST = {"port": 5002, "ether": {"dst": "ff:ff:ff:ff:ff:ff"}, "ip": {"dst": "255.255.255.255"}}


def to_group(form):
    return form | (GROUP6 if "ipv6" in form else GROUP)


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
    frames = [good(opcodes[size % 7], size) for size in range(73, 201)]
    frames += [good(opcode, 1500 - 28 - 4 - header) for opcode, header in HEADERS.items()]
    frames += [good(0xC, 1408), good(0xC, 1500 - 28 - 4 - 30 + 1)]
    run = check(frames, gap=0.2, stall=0.2)
    assert run.outcomes == [None] * (len(frames) - 1) + [Counter.DROP_OVERSIZE]


def test_every_form():
    """P6, P8: tags, options and versions, for each of what may be wrong behind them."""
    networks = [{"options": words} for words in range(11)]
    networks += [{"options": words, "ip": {"flags": "MF"}} for words in (0, 5)]
    networks += [{"ipv6": True}]
    contents = [(opcode, size) for opcode in HEADERS for size in (0, 23)]
    cases = [
        ({}, None),
        ({}, None),
        ({"udp": {"chksum": 0}}, None),
        ({"udp": {"chksum": 0x1234}}, Counter.DROP_UDP_CHECKSUM),
        ({"udp": {"len": 7}}, Counter.DROP_UDP_LENGTH),
        ({"udp": {"len": 1000}}, Counter.DROP_UDP_LENGTH),
        ({"port": 9}, Counter.RX_MANAGEMENT),
    ]
    frames, counters = [], []
    for tags, network in itertools.product(TAGS, networks):
        form = network | {"tags": tags, "pad": False}
        for fault, counter in cases:
            opcode, size = contents[len(frames) % len(contents)]
            frames.append(good(opcode, size, **form, **fault))
            counters.append(counter)
        frames.append(frame(b"", **form))
        counters.append(Counter.DROP_DDP_SHORT)
        # Hop limit and time to live differ in place only.
        kind = {"nh": 58} if "ipv6" in form else {"proto": 1}
        frames.append(good(0x3, 9, **form | {"ip": kind}))
        counters.append(Counter.RX_MANAGEMENT)
        if len(tags) > 8:
            counters[-len(cases) - 2 :] = [Counter.RX_MANAGEMENT] * (len(cases) + 2)
        elif "ip" in form:
            counters[-len(cases) - 2 : -1] = [Counter.DROP_IP_FRAGMENT] * (len(cases) + 1)
    assert check(frames).outcomes == counters
    check(frames[::-7], gap=0.3, stall=0.3)


# Of every kind of header it is in test_bench_nic, too.
SOME_FORMS = [
    pytest.param(form, marks=pytest.mark.soak if number % 2 else [])
    for number, form in enumerate(FORMS)
]


@pytest.mark.parametrize(
    "opcode", [0xC, *(pytest.param(n, marks=pytest.mark.soak) for n in (0, 5))]
)
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


@pytest.mark.parametrize("form", SOME_FORMS)
def test_every_truncation_of_a_form(form):
    """P4, P13: whatever stands on the bus behind the end, the rest of the frame among it; frames
    of one word follow, which begin like a tag or type, or an intact one of another form."""
    whole = good(0x3, 5, pad=False, **form)
    strays = (b"\x86\xdd", b"\x81\0\0\1\x08\0\x46", b"\x08\0\x46\0\x86\xdd\0\1")
    frames = []
    for length in range(1, len(whole) + 1):
        after = good(0xE, length % 3, **FORMS[length % 8])
        frames += [Cut(whole, length), after, whole[:length], strays[length % 3]]
    run = check(frames)
    tags = len(form.get("tags", b""))
    assert run.outcomes.count(Counter.DROP_IP_HEADER) >= 20
    assert run.outcomes.count(Counter.DROP_RUNT) == 2 * (13 + tags) + len(whole)


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
    whole = good(0xC, 13 + offset, **FORMS[offset]) + rng.randbytes(offset)
    where = headers(whole)
    udp = where[1]
    frames = []
    for position in range(offset, len(whole), 8):
        for fault in (1 << offset, rng.randrange(1, 256)):
            wrong = patched(whole, {position: bytes([whole[position] ^ fault])})
            summed = with_ip_sum(wrong, where)
            frames += [wrong, summed, patched(wrong, {udp + 6: b"\0\0"})]
            frames.append(with_udp_sum(summed, where))
    check(frames)


def ip_lengths(octets, ip_length, udp_length):
    octets = patched(octets, {16: struct.pack(">H", ip_length), 38: struct.pack(">H", udp_length)})
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
    yield "P8 VLAN", bytes(tagged), None
    tagged = Ether(dst=OUR_MAC) / Dot1AD(vlan=5) / Dot1Q(vlan=6, prio=7) / Ether(base)[IP]
    yield "P8 QinQ", bytes(tagged), None
    tagged = Ether(dst=OUR_MAC) / Dot1Q() / Dot1Q() / Dot1Q() / Ether(base)[IP]
    yield "P8 three tags", bytes(tagged), Counter.RX_MANAGEMENT
    yield "P8 ARP with a tag", arp_frame[:12] + TAGS[1] + arp_frame[12:], Counter.RX_MANAGEMENT
    for first in (0x81, 0x88, 0xA8, 0x91):
        octets = patched(base, {12: bytes([first, 1])})
        yield "P8 no tag", octets, Counter.RX_MANAGEMENT
    yield "P6 version 6", with_ip_sum(patched(base, {14: b"\x65"})), Counter.DROP_IP_HEADER
    yield "P6 IHL 4", with_ip_sum(patched(base, {14: b"\x44"})), Counter.DROP_IP_HEADER
    options = good(ip={"options": [IPOption_NOP()] * 4})
    yield "P6 options", options, None
    yield "P6 options, wrong sum", patched(options, {24: b"\0\1"}), Counter.DROP_IP_CHECKSUM
    yield "P6 wrong option", patched(options, {37: b"\0"}), Counter.DROP_IP_CHECKSUM
    yield "P6 IHL 15", with_ip_sum(patched(base, {14: b"\x4f"})), Counter.DROP_UDP_LENGTH
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
    six = good(ipv6=True)
    m = len(six)
    yield "IPv6", six, None
    yield "IPv6 version 4", patched(six, {14: b"\x45"}), Counter.DROP_IP_HEADER
    octets = good(ipv6=True, ip={"src": "fe80::ffff:ffff:0:1"})
    yield "IPv6 with ones where IPv4 has its destination", octets, None
    yield "IPv6 traffic class", patched(six, {14: b"\x6f\xff\xff\xff"}), None
    yield "IPv6 in an IPv4 frame", patched(six, {12: b"\x08\0"}), Counter.DROP_IP_HEADER
    yield "IPv4 in an IPv6 frame", patched(base, {12: b"\x86\xdd"}), Counter.DROP_IP_HEADER
    for more, counter in ((-1, Counter.DROP_UDP_LENGTH), (0, None), (1, Counter.DROP_IP_HEADER)):
        octets = patched(six, {18: struct.pack(">H", m - 54 + more)})
        yield f"IPv6 payload {more}", octets, counter
    yield "IPv6 payload 65535", patched(six, {18: b"\xff\xff"}), Counter.DROP_IP_HEADER
    yield "IPv6 payload 0", patched(six, {18: b"\0\0"}), Counter.DROP_UDP_LENGTH
    yield "IPv6 payload 7", patched(six, {18: b"\0\7"}), Counter.DROP_UDP_LENGTH
    yield "IPv6 padding", six + bytes(9), None
    yield "IPv6 header and no more", patched(six, {18: b"\0\0"})[:54], Counter.DROP_UDP_LENGTH
    yield "IPv6 one octet less", patched(six, {18: b"\0\0"})[:53], Counter.DROP_IP_HEADER
    for bit in range(0, 128, 7):
        other = str(IPv6Address(CONFIG["ipv6"] ^ 1 << bit))
        yield "IPv6 other address", good(ipv6=True, ip={"dst": other}), Counter.DROP_IP_FILTER
    yield "IPv6 multicast", good(ipv6=True, ip={"dst": "ff02::1"}), Counter.DROP_IP_FILTER
    yield (
        "IPv6 of ones",
        good(ipv6=True, ip={"dst": ":".join(["ffff"] * 8)}),
        Counter.DROP_IP_FILTER,
    )
    yield "IPv6 ICMP", good(ipv6=True, ip={"nh": 58}), Counter.RX_MANAGEMENT
    for header, counter in (
        (IPv6ExtHdrDestOpt(), Counter.RX_MANAGEMENT),
        (IPv6ExtHdrFragment(), Counter.DROP_IP_FRAGMENT),
    ):
        inner = Ether(six)[UDP]
        packet = Ether(dst=OUR_MAC) / IPv6(src=PEER_IP6, dst=OUR_IP6) / header / inner
        yield f"IPv6 {header.name}", bytes(packet), counter
    octets = good(ipv6=True, udp={"chksum": 0}, ether={"dst": "ff:ff:ff:ff:ff:ff"})
    yield "IPv6 broadcast MAC", octets, Counter.RX_MANAGEMENT
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
            octets = with_crc(bytes([control, 0x40 | opcode]) + bytes(44))
            known = opcode in HEADERS and bool(control & 0x80) == (opcode in TAGGED)
            yield (
                f"P31 {opcode=:#x} {control=:#x}",
                frame(octets),
                (None if known else Counter.DROP_OPCODE),
            )
    yield "CRC wrong", frame(header + b"\0\0\0\0"), Counter.DROP_CRC
    yield "CRC big-endian", frame(header + segment(0x0, b"")[:-5:-1]), Counter.DROP_CRC
    for opcode in HEADERS:
        yield f"{opcode=:#x} SE, IM", frame(segment(opcode, b"x", flags=0, bits=0x30)), None


def group_cases():
    """As ``named_cases``, of frames to groups, or nearly."""
    for opcode in HEADERS:
        counter = None if opcode in (0x3, 0x5, 0xE) else Counter.DROP_OPCODE
        for form in FORMS:
            yield f"{opcode=:#x} {form}", good(opcode, 9, **to_group(form)), counter
        yield f"{opcode=:#x} broadcast", good(opcode, 9, **BROADCAST), counter
    for name, form in (("IPv4", GROUP), ("IPv6", GROUP6)):
        own = {"ether": form["ether"] | {"src": OUR_MAC}}
        yield f"{name} our own", good(0x3, 9, **form | own), None
        yield f"{name} our own, tag", good(0x3, 9, **form | own, tags=TAGS[1]), None
        nearly = {"ether": form["ether"] | {"src": "02:00:00:00:00:03"}}
        yield f"{name} nearly our own", good(0x3, 9, **form | nearly), None
        other = "239.1.2.2" if form is GROUP else "ff0e::2:2:3:4:5"
        broadcast_mac = {"ether": BROADCAST["ether"]}
        faults = (
            ({"ip": {"dst": other}}, Counter.DROP_IP_FILTER),
            ({"port": 5003}, Counter.DROP_IP_FILTER),
            ({"port": 5004}, Counter.DROP_IP_FILTER),
            ({"port": 4791}, Counter.DROP_IP_FILTER),
            ({"port": 9}, Counter.DROP_IP_FILTER),
            ({"udp": {"len": 7}}, Counter.DROP_IP_FILTER),
            ({"udp": {"len": 1000}}, Counter.DROP_IP_FILTER),
        )
        for fault, counter in faults:
            octets = good(0x3, 9, **form | fault)
            yield f"{name} {fault}", octets, Counter.DROP_MAC_FILTER
            yield (
                f"{name} {fault}, broadcast",
                good(0x3, 9, **form | fault | broadcast_mac),
                counter,
            )
        yield f"{name} broadcast MAC", good(0x3, 9, **form | broadcast_mac), None
        sole = {"ether": {"dst": OUR_MAC}}
        yield f"{name} our MAC", good(0x3, 9, **form | sole), Counter.DROP_IP_FILTER
        octets = good(0x3, 9, **{**form, **sole, "ip": {}})
        yield f"{name} our MAC and address", octets, Counter.RX_MANAGEMENT
        octets = good(0x3, 9, **form, udp={"chksum": 1})
        yield f"{name} UDP sum wrong", octets, Counter.DROP_UDP_CHECKSUM
        yield f"{name} no UDP sum", good(0x3, 9, **form, udp={"chksum": 0}), None
        yield f"{name} UDP 8", frame(b"", **form), Counter.DROP_DDP_SHORT
        yield f"{name} UDP 8, unpadded", frame(b"", **form, pad=False), Counter.DROP_DDP_SHORT
        for size in range(1, 18):
            octets = frame(bytes(size), **form, pad=False)
            yield f"{name} UDP {8 + size}", octets, Counter.DROP_DDP_SHORT
        yield f"{name} CRC wrong", frame(bytes(18), **form), Counter.DROP_CRC
        octets = frame(with_crc(b"\1\xc3" + bytes(16)), **form)
        yield f"{name} RDMAP version 3", octets, Counter.DROP_RDMAP_VERSION
        octets = frame(with_crc(b"\2\x43" + bytes(16)), **form)
        yield f"{name} DDP version 2", octets, Counter.DROP_DDP_VERSION
        octets = frame(with_crc(b"\1\x4e" + bytes(18)), **form)
        yield f"{name} 0xE cut short", octets, Counter.DROP_DDP_SHORT
        yield f"{name} 0x2", frame(with_crc(b"\1\x42" + bytes(40)), **form), Counter.DROP_OPCODE
        yield (
            f"{name} 0x3, T",
            frame(with_crc(b"\x81\x43" + bytes(40)), **form),
            Counter.DROP_OPCODE,
        )
        yield f"{name} oversize", good(0x3, 1500, **form), Counter.DROP_OVERSIZE
    for mac, sums, fragments, kinds in (
        (GROUP_MAC, *[Counter.DROP_MAC_FILTER] * 3),
        ("ff:ff:ff:ff:ff:ff", Counter.DROP_IP_CHECKSUM, *[Counter.DROP_IP_FRAGMENT], None),
    ):
        form = GROUP | {"ether": {"dst": mac}}
        ip = form["ip"]
        yield "IP sum wrong", good(0x3, 9, **form | {"ip": ip | {"chksum": 1}}), sums
        yield "fragment", good(0x3, 9, **form | {"ip": ip | {"flags": "MF"}}), fragments
        kinds = kinds or Counter.DROP_IP_FILTER
        yield "ICMP", good(0x3, 9, **form | {"ip": ip | {"proto": 1}}), kinds
    mapped = GROUP | {"ip": {"dst": GROUPS[1]}, "ipv6": True}
    yield "the mapped address", good(0x3, 9, **mapped), None
    octets = good(0x3, 9, **GROUP | {"ip": {"dst": "1.2.3.4"}, "port": 5001})
    yield "IPv4 at an IPv6 group's port", octets, Counter.DROP_MAC_FILTER
    for bit in range(0, 128, 5):
        other = str(IPv6Address(int(IPv6Address(GROUP_IP6)) ^ 1 << bit))
        octets = good(0x3, 9, **GROUP6 | {"ip": {"dst": other}})
        yield "another address", octets, Counter.DROP_MAC_FILTER
    for bit in range(0, 32, 3):
        other = str(IPv4Address(int(IPv4Address(GROUP_IP)) ^ 1 << bit))
        octets = good(0x3, 9, **GROUP | {"ip": {"dst": other}})
        yield "another address", octets, Counter.DROP_MAC_FILTER


def test_each_line_of_the_rule_for_groups():
    names, frames, counters = zip(*group_cases(), strict=True)
    for name, octets, counter in zip(names, frames, counters, strict=True):
        want = expected(octets)
        assert (want if isinstance(want, Counter) else None) == counter, name
    check(frames)
    kept = CONFIG | {"accept_multicast": 1, "accept_foreign": 1}
    check(frames[::-2], gap=0.3, stall=0.3, config=kept)


@pytest.mark.parametrize("form", FORMS[:4])
def test_every_truncation_of_a_frame_to_a_group(form):
    """One frame behind the other, as short as they may be, to groups and to us."""
    whole = good(0x3, 5, pad=False, **to_group(form))
    afters = [good(0x5, 0, **to_group(FORMS[3])), good(0x3, 0, **GROUP), good(0x0, 4)]
    frames = []
    for length in range(1, len(whole) + 1):
        frames += [Cut(whole, length), afters[length % 3], b"\x02", afters[length % 2]]
    check(frames)


@pytest.mark.parametrize("offset", range(4))
def test_every_wrong_octet_of_a_frame_to_a_group(offset):
    rng = random.Random(SEED + offset)
    whole = good(0xE, 13 + offset, **to_group(FORMS[offset])) + rng.randbytes(offset)
    where = headers(whole)
    frames = []
    for position in range(len(whole)):
        fault = rng.choice((1 << offset, 0x80, rng.randrange(1, 256)))
        wrong = patched(whole, {position: bytes([whole[position] ^ fault])})
        frames += [wrong, with_udp_sum(with_ip_sum(wrong, where), where)]
    check(frames)


def test_frames_of_other_groups_take_no_room():
    """With the buffer full to the last word, what no group's row is for is dropped as that."""
    others = [good(0x3, 600, **GROUP | {"port": port}) for port in (5001, 5003, 9)]
    frames = [good(0xC, 600), good(0x3, 600, **GROUP), *others * 3, good(0x3, 600, **GROUP)]
    words = sum(len(octets) // 8 + 1 for octets in frames)
    run = Run(frames, open_at=words + 100)
    assert run.outcomes == [None] * 2 + [Counter.DROP_MAC_FILTER] * 9 + [None]
    run = Run([*frames, *frames], open_at=2 * words + 100)
    assert run.outcomes[12:] == [Counter.DROP_OVERFLOW] * 2 + [Counter.DROP_MAC_FILTER] * 9 + [
        Counter.DROP_OVERFLOW
    ]


@pytest.mark.parametrize("words", range(11, 40, 4))
def test_a_frame_that_is_cut(words):
    """It counts as one that found no room, whatever came of it, and those around it are whole."""
    whole = [good(0xC, 100), good(0xC, 64), good(0x3, 200), good(0xC, 1)]
    frames = [whole[0], good(0xC, 300)[: 8 * words], whole[1], good(port=9, size=300), *whole[2:]]
    counts = [-(-len(octets) // 8) for octets in frames]
    cuts = [sum(counts[:number]) - 2 for number in (2, 4)]
    run = Run(frames, cuts=cuts)
    lost = Counter.DROP_OVERFLOW
    assert run.outcomes == [None, lost, None, lost, None, None]
    run.check_datagrams([expected(octets) for octets in whole])


@pytest.mark.parametrize("register", ("mac", "ipv4", "mtu"))
def test_a_register_written_during_a_frame(register):
    """Whatever becomes of that frame, its payload comes whole or not at all."""
    frames = [good(0xC, 100 + index) for index in range(12)]
    wrong = CONFIG | {register: 500 if register == "ipv4" else 1}
    for seed in range(3):
        run = Run(frames, config=wrong, later=(CONFIG, 10 * (len(frames[0]) // 8) + 3 + 5 * seed))
        assert len(run.outcomes) == 12
        kept = [expected(octets) for octets in frames[len(frames) - len(run.datagrams) :]]
        run.check_datagrams(kept)
        assert 0 < len(kept) < 12 and run.outcomes[-len(kept) :] == [None] * len(kept)


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
    # Our address is no tag, wherever a frame of one word ended.
    ours = {"ether": {"dst": "02:00:00:00:81:00"}}
    frames = [b"\x02", good(**ours), b"\x02" * 8, good(**ours, **FORMS[3]), b"\x02", good(**ours)]
    check(frames, config=CONFIG | {"mac": 0x020000008100})


@pytest.mark.parametrize("form", FORMS[::3])
def test_mac_error_on_any_beat(form):
    """P9, P15: whichever beat carries it, once or more often, even one that is taken out."""
    whole = good(0xC, 36, **form)
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
    for form in FORMS:
        whole = good(0xC, 300, **form)
        fit = 614 + len(form.get("tags", b""))
        frames += [whole.ljust(fit, b"x"), whole.ljust(fit + 1, b"x")]
    run = check(frames, config=config)
    bad = Counter.DROP_OVERSIZE
    assert run.outcomes == [None, bad, bad, bad, bad, None] + [None, bad] * len(FORMS)


def test_the_smallest_mtu():
    """P17: the limit is that of the frame, not that of the frame before, from its first words."""
    for mtu in range(4):
        sizes = [*range(13, 20), *range(13, 20)]
        frames = [good(**form)[:size] for form in FORMS for size in sizes]
        check(frames, config=CONFIG | {"mtu": mtu})


def test_mac_filter():
    """The bits MULTICAST and PROMISCUOUS, and who is let in without."""
    macs = ("02:00:00:00:00:01", "02:00:00:00:00:02", "03:00:00:00:00:01", "fe:ff:ff:ff:ff:ff",
            "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "02:00:00:00:40:01")  # fmt: skip
    frames = [good(ether={"dst": mac}, **form) for mac in macs for form in FORMS[2:4]]
    for multicast, foreign in itertools.product((0, 1), repeat=2):
        bits = {"accept_multicast": multicast, "accept_foreign": foreign}
        run = check(frames, config=CONFIG | bits)
        dropped = 3 * (not foreign) + 2 * (not multicast)
        assert run.outcomes.count(Counter.DROP_MAC_FILTER) == 2 * dropped
        assert run.outcomes.count(None) == 2


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
    """A Datagram is offered 8 cycles after its frame's last word, whatever comes behind it; 7 if
    what that word holds goes into the one before; one more if that has octets of its header.
    Between two frames is less than there is on the wire: a short one that is no Datagram."""
    kinds = [(opcode, size, {}) for opcode in HEADERS for size in (0, 1, 30, 64)]
    kinds += [(0xC, size, form) for form in FORMS for size in range(8)]
    frames = [good(opcode, size, **form) for opcode, size, form in kinds]
    run = check([item for octets in frames for item in (octets, bytes(16))])
    delays = [b - a for a, b in zip(run.frame_ends[::2], run.datagram_times, strict=True)]
    for (opcode, _, _), octets, delay in zip(kinds, frames, delays, strict=True):
        udp = headers(octets)[1]
        moved = udp % 8 == 6 and 1 <= len(octets) % 8 <= 4
        # The UDP header has been brought to octet 2 of a word.
        is_short = (2 + 8 + HEADERS[opcode] - 1) // 8 == (2 + len(octets) - udp - 1) // 8
        assert delay == 8 - moved + is_short, octets.hex()


@pytest.mark.parametrize(
    ("opcode", "form", "words"),
    [(0x0, {}, 4), (0x3, {}, 5), (0xC, {}, 6), (0xC, {"ipv6": True}, 7), (0x1, {"ipv6": True}, 9)],
)
def test_the_next_datagram(opcode, form, words):
    """Datagrams that wait come one after the other in time for the receiver's budget."""
    frames = [good(opcode, size, **form) for size in range(6)]
    run = Run(frames, open_at=400).check([expected(octets) for octets in frames])
    times = run.datagram_times
    assert [b - a for a, b in itertools.pairwise(times)] == [words + 2] * (len(times) - 1)


def test_room_for_datagrams():
    """There is room for as many as it says, of the longest headers but those of Read Requests; what
    finds none changes nothing of the others."""
    frames = [good(0xC, 8 + size, ipv6=True) for size in range(12)]
    requests = [good(0x1, 0, ipv6=True)] * 12
    run = Run([*frames, *requests], open_at=1000, datagrams=8)
    wanted = [expected(octets) for octets in frames]
    assert run.outcomes == [None] * 8 + [Counter.DROP_OVERFLOW] * 16
    run.check_datagrams(wanted[:8])
    run = Run(requests, open_at=1000, datagrams=8)
    kept = run.outcomes.count(None)
    assert run.outcomes == [None] * kept + [Counter.DROP_OVERFLOW] * (12 - kept)
    assert 7 <= kept <= 8
    run.check_datagrams([expected(octets) for octets in requests[:kept]])


@pytest.mark.parametrize("seed", seeds(2, 8, SEED))
def test_random_mixture(seed):
    """P12: good and bad frames, gaps and stalls of random likelihood."""
    rng = random.Random(seed)
    sources = [octets for _, octets, _ in (*named_cases(), *group_cases())]
    frames = []
    for _ in range(100):
        octets = (
            rng.choice(sources)
            if rng.random() < 0.4
            else good(
                rng.choice(list(HEADERS)),
                rng.choice((rng.randrange(20), rng.randrange(300))),
                **rng.choice(FORMS),
            )
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
        FrameReceiver(Parameters(n_qp=16, max_mtu=1500), payload_words=128)
    gc.collect()
