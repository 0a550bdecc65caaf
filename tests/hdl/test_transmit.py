"""The transmit path between a memory, tables, completion queues and a wire, all with stalls.

Frames are compared octet for octet with ones put together by scapy and google_crc32c; how a message
is cut is computed here from the rules of docs/device.md, not with the code under test.
"""

import random
from collections import defaultdict, deque
from itertools import pairwise

import google_crc32c
import pytest
from amaranth.sim import Simulator
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from uwarp.contract import (
    CQE,
    QP_ENTRY,
    REGION_ENTRY,
    SEND_WQE,
    Counter,
    Parameters,
    QpState,
    Status,
    WqeFlag,
)
from uwarp_hdl.iwarp.transmit import TransmitPath
from uwarp_hdl.layouts import CreditOperation

WRITE, SEND, WRITE_RECORD, SEND_IMMEDIATE = 0x0, 0x3, 0xC, 0xE
HEADERS = {WRITE: 14, SEND: 18, WRITE_RECORD: 30, SEND_IMMEDIATE: 22}
TAGGED = (WRITE, WRITE_RECORD)
SIGNALED, SOLICITED, IMMEDIATE = WqeFlag.SIGNALED, WqeFlag.SOLICITED, WqeFlag.IMMEDIATE

MAC, IPV4 = 0x0200_0000_0001, 0x0A00_0001
PEER_MAC, PEER_IPV4 = 0x0200_0000_0002, 0x0A00_0002
RINGS = 0x1_0000
DATA, DATA_TO, DATA_SIZE = 0x10_0000, 0xFFFF_FFFF_0000_0123, 0x2_0000
KEY = 0x5A
LKEY = 3 << 8 | KEY


def mac(number):
    return number.to_bytes(6, "big").hex(":")


def be(value, octets):
    return value.to_bytes(octets, "big")


def pieces(opcode, length, path_mtu, to, granule):
    """Offset and octets of each segment: device behaviour, 7.3, octet by octet."""
    room = path_mtu - 20 - 8 - HEADERS[opcode] - 4
    start = 0
    while length - start > room:
        end = start + room
        while (to + end) % granule:
            end -= 1
        yield start, end - start
        start = end
    yield start, length - start


def reference_frames(wqe, udp_port, path_mtu, msn, payload):
    """All frames of a good WQE."""
    opcode, flags = wqe["opcode"], wqe["flags"]
    granule = 1 << (wqe["granule_log2"] or 6)
    to = wqe["remote_to"]
    frames = []
    for mo, octets in pieces(opcode, len(payload), path_mtu, to, granule):
        last = mo + octets == len(payload)
        wire_opcode = 0x5 if opcode == SEND and flags & SOLICITED else opcode
        bits = 0
        if opcode in (WRITE_RECORD, SEND_IMMEDIATE):
            bits = (0x20 if flags & SOLICITED else 0) | (0x10 if flags & IMMEDIATE else 0)
        ddp = 1 | (0x80 if opcode in TAGGED else 0) | (0x40 if last else 0)
        segment = bytes((ddp, 0x40 | bits | wire_opcode))
        mlen = be(len(payload), 4)
        if opcode in TAGGED:
            segment += be(wqe["remote_stag"], 4) + be((to + mo) % 2**64, 8)
            if opcode == WRITE_RECORD:
                immediate = wqe["immediate"] if flags & IMMEDIATE else 0
                segment += be(msn, 4) + be(mo, 4) + mlen + be(immediate, 4)
        else:
            segment += mlen + be(0, 4) + be(msn, 4) + be(mo, 4)
            if opcode == SEND_IMMEDIATE:
                segment += be(wqe["immediate"], 4)
        segment += payload[mo : mo + octets]
        segment += google_crc32c.value(segment).to_bytes(4, "little")
        frames.append(
            bytes(
                Ether(dst=mac(wqe["dest_mac"]), src=mac(MAC), type=0x0800)
                / IP(
                    src=".".join(map(str, be(IPV4, 4))),
                    dst=".".join(map(str, be(wqe["dest_ip"], 4))),
                    tos=wqe["traffic_class"],
                    ttl=wqe["hop_limit"],
                    id=0,
                    flags="DF",
                )
                / UDP(sport=udp_port, dport=wqe["dest_port"])
                / Raw(segment)
            )
        )
    return frames


class Reads:
    """Memory behind one read client: bursts wait, then their words come in order."""

    def __init__(self, bench, port):
        self.bench, self.port = bench, port
        self.word = port.beats.payload.as_value()
        self.waiting = deque()
        self.words = deque()
        self.outstanding = 0
        self.most_outstanding = 0
        self.bursts = 0

    def signals(self):
        return (
            self.port.bursts.valid,
            self.port.bursts.ready,
            self.port.bursts.payload.as_value(),
            self.port.beats.valid,
            self.port.beats.ready,
        )

    def clock(self, valid, ready, burst, beat_valid, beat_ready):
        bench = self.bench
        if valid and ready:
            address, count = burst & (1 << 64) - 1, (burst >> 64) + 1
            assert address % 8 == 0, f"burst at {address:#x}"
            assert address // 4096 == (address + 8 * count - 1) // 4096, (
                f"burst of {count} words at {address:#x} crosses a page"
            )
            self.waiting.append((bench.now + bench.latency(), address, count))
            self.outstanding += count
            self.most_outstanding = max(self.most_outstanding, self.outstanding)
            self.bursts += 1
        if beat_valid and beat_ready:
            self.words.popleft()
            self.outstanding -= 1
        while self.waiting and self.waiting[0][0] <= bench.now:
            _, address, count = self.waiting.popleft()
            for index in range(count):
                place = address + 8 * index
                value = int.from_bytes(bench.memory[place : place + 8], "little")
                error = place in bench.broken
                self.words.append(value | (index == count - 1) << 64 | error << 65)
        bench.set(self.port.bursts.ready, not bench.stalls())
        # A word that was offered and not taken stays.
        offer = bool(self.words) and ((beat_valid and not beat_ready) or not bench.stalls())
        if offer:
            bench.set(self.word, self.words[0])
        bench.set(self.port.beats.valid, offer)


class Bench:
    """Everything around the transmit path. ``stall`` is the probability of each side's stalls."""

    def __init__(self, seed, *, stall=0.0, latency=(3, 30), wire=False, **sizes):
        sizes = {"n_qp": 8, "n_region": 8, "max_mtu": 1500} | sizes
        self.parameters = Parameters(**sizes)
        self.dut = TransmitPath(self.parameters)
        self.seed, self.rng = seed, random.Random(seed)
        self.stall, self.latency_range, self.wire = stall, latency, wire
        self.memory = bytearray(self.rng.randbytes(DATA + DATA_SIZE + 64))
        self.broken = set()
        self.values = {}
        self.qp = [0] * self.parameters.n_qp
        self.qp_fields = [{} for _ in range(self.parameters.n_qp)]
        self.region = [0] * self.parameters.n_region
        self.producer = [0] * self.parameters.n_qp
        self.slots = defaultdict(lambda: 1000)
        self.doorbells = deque()
        self.answers = deque()
        self.frames, self.frame_times, self.partial = [], [], b""
        self.completions = []
        self.now = 0
        self.events = 0
        self.refused = 0
        self.must_be_valid = False
        self.wire_free = 0
        self.set_region(3)
        print(f"seed {seed}")

    def stalls(self):
        return self.rng.random() < self.stall

    def latency(self):
        return self.rng.randint(*self.latency_range)

    def set(self, signal, value):
        """Drive an input, if it is to change: that costs the simulator time."""
        if self.values.get(id(signal)) != value:
            self.values[id(signal)] = value
            self.ctx.set(signal, value)

    def set_qp(self, qpn, **fields):
        fields = {
            "state": QpState.RTS,
            "sq_log2": 6,
            "pd": 7,
            "udp_port": 0x4000 + qpn,
            "path_mtu": 1500,
            "send_cq": qpn ^ 1,
            "sq_addr": (RINGS + 0x1000 * qpn) // 64,
        } | fields
        self.qp_fields[qpn] = fields
        self.qp[qpn] = QP_ENTRY.to_int(**fields)

    def set_region(self, index, **fields):
        fields = {
            "valid": 1,
            "key": KEY,
            "pd": 7,
            "base_to": DATA_TO,
            "length": DATA_SIZE,
            "dma_addr": DATA,
        } | fields
        self.region[index] = REGION_ENTRY.to_int(**fields)

    def post(self, qpn, opcode, offset, length, *, flags=SIGNALED, ring=True, **fields):
        """Write a WQE of ``length`` octets at ``offset`` of the region. Returns its fields."""
        wqe = {
            "opcode": opcode,
            "flags": flags,
            "num_sge": 1,
            "length": length,
            "remote_to": self.rng.getrandbits(48) << 6,
            "remote_stag": self.rng.getrandbits(32),
            "immediate": self.rng.getrandbits(32),
            "dest_ip": PEER_IPV4,
            "dest_port": self.rng.getrandbits(16),
            "dest_mac": PEER_MAC,
            "traffic_class": self.rng.getrandbits(8),
            "hop_limit": self.rng.randint(1, 255),
            "granule_log2": 0,
            "sge_addr": DATA_TO + offset,
            "sge_length": length,
            "sge_lkey": LKEY,
        } | fields
        row = self.qp_fields[qpn]
        entry = self.producer[qpn] % (1 << row["sq_log2"])
        place = row["sq_addr"] * 64 + entry * 64
        self.memory[place : place + 64] = SEND_WQE.pack(**wqe)
        wqe["index"] = self.producer[qpn]
        self.producer[qpn] += 1
        if ring:
            self.ring(qpn)
        return wqe

    def ring(self, qpn):
        self.doorbells.append(qpn | self.producer[qpn] << 16)

    def reset_qp(self, qpn):
        self.producer[qpn] = 0
        self.doorbells.append(qpn | 1 << 48)

    def reference(self, qpn, wqe, msn):
        row = self.qp_fields[qpn]
        start = DATA + wqe["sge_addr"] - DATA_TO
        payload = bytes(self.memory[start : start + wqe["length"]])
        return reference_frames(wqe, row["udp_port"], row["path_mtu"], msn, payload)

    def success(self, qpn, wqe, msn):
        """The CQE that a good signalled WQE ends with."""
        tagged = wqe["opcode"] in TAGGED
        return {
            "opcode": wqe["opcode"],
            "qpn": qpn,
            "wqe_index": wqe["index"] & 0xFFFF,
            "valid": wqe["length"],
            "mlen": wqe["length"],
            "msn": 0 if wqe["opcode"] == WRITE else msn,
            "base_to": wqe["remote_to"] if tagged else 0,
            "stag": wqe["remote_stag"] if tagged else 0,
        }

    def failure(self, qpn, wqe, status):
        return self.success(qpn, wqe, 0) | {"status": status, "valid": 0, "msn": 0}

    # One clock cycle.

    def signals(self):
        dut = self.dut
        return (
            *self.wqe_reads.signals(),
            *self.payload_reads.signals(),
            dut.doorbells.valid,
            dut.doorbells.ready,
            dut.qp.index,
            dut.region.index,
            dut.credits.requests.valid,
            dut.credits.requests.ready,
            dut.credits.requests.payload.as_value(),
            dut.credits.granted.valid,
            dut.credits.granted.ready,
            dut.tx.valid,
            dut.tx.ready,
            dut.tx.payload.as_value(),
            dut.completions.valid,
            dut.completions.ready,
            dut.completions.payload.as_value(),
            dut.events,
        )

    async def cycle(self):
        dut, ctx = self.dut, self.ctx
        _, _, *values = await ctx.tick().sample(*self.sampled)
        self.now += 1
        self.wqe_reads.clock(*values[:5])
        self.payload_reads.clock(*values[5:10])
        (doorbell_valid, doorbell_ready, qp_index, region_index, *values) = values[10:]
        (request_valid, request_ready, request, granted_valid, granted_ready, *values) = values
        (tx_valid, tx_ready, beat, cqe_valid, cqe_ready, cqe, events) = values

        if doorbell_valid and doorbell_ready:
            self.doorbells.popleft()
        if self.doorbells:
            self.set(self.doorbell_payload, self.doorbells[0])
        self.set(dut.doorbells.valid, bool(self.doorbells))
        self.set(self.qp_row, self.qp[qp_index])
        self.set(self.region_row, self.region[region_index])

        if request_valid and request_ready:
            operation, cq = request & 1, request >> 1
            if operation == CreditOperation.RELEASE.value:
                self.slots[cq] += 1
            else:
                grant = self.slots[cq] > 0
                self.slots[cq] -= grant
                self.refused += not grant
                self.answers.append((self.now + self.rng.randint(0, 2), grant))
        if granted_valid and granted_ready:
            self.answers.popleft()
        offered = bool(self.answers) and self.answers[0][0] <= self.now
        if offered:
            self.set(dut.credits.granted.payload, self.answers[0][1])
        self.set(dut.credits.granted.valid, offered)
        self.set(dut.credits.requests.ready, not self.stalls())

        if cqe_valid and cqe_ready:
            cq, value = cqe & 0xFFFF, CQE.from_int(cqe >> 16)
            self.completions.append((cq, vars(value)))
            self.completed_after.append(len(self.frames))
        self.set(dut.completions.ready, not self.stalls())

        assert tx_valid or not self.must_be_valid, f"a gap in a frame, cycle {self.now}"
        if tx_valid and self.offered is None:
            self.offered = self.now
        if tx_valid and tx_ready and self.begins is None:
            self.begins = self.now
        ended = 0
        if tx_valid and tx_ready:
            word, count = beat & (1 << 64) - 1, beat >> 64 & 15
            last, error = beat >> 68 & 1, beat >> 69
            assert not error
            assert 1 <= count <= 8 and (last or count == 8), f"{count} octets, {last=}"
            self.partial += word.to_bytes(8, "little")[:count]
            ended = last
            if last:
                self.frames.append(self.partial)
                self.frame_times.append((self.offered, self.begins))
                # A frame that comes in the cycle after the wire is free is in time; what the wire
                # was idle longer is not made up for.
                late = self.begins >= self.wire_free + 1
                begin = self.begins if late else self.wire_free
                self.wire_free = begin + (len(self.partial) + 24) / 8
                self.partial, self.offered, self.begins = b"", None, None
        assert events == (ended << Counter.TX_FRAMES), f"{events=:#x} {ended=}"
        self.must_be_valid = tx_valid and not ended
        if self.wire:
            # A MAC: a whole frame without a pause, then the octets of FCS, gap and preamble.
            self.set(dut.tx.ready, self.now >= self.wire_free - 1 or self.begins is not None)
        else:
            self.set(dut.tx.ready, not self.stalls())

    async def until(self, condition, limit=20_000):
        end = self.now + limit
        while not condition():
            assert self.now < end, (
                f"not within {limit} cycles: {len(self.frames)} frames and "
                f"{len(self.completions)} completions came; seed {self.seed}"
            )
            await self.cycle()

    async def idle(self, cycles):
        for _ in range(cycles):
            await self.cycle()

    def run(self, script):
        async def testbench(ctx):
            self.ctx = ctx
            dut = self.dut
            ctx.set(dut.config, {"enable": 1, "mac": MAC, "ipv4": IPV4, "mtu": 1500})
            await self.until(lambda: not ctx.get(dut.busy), 2000)
            await script(self)
            assert self.partial == b"", f"half a frame; seed {self.seed}"

        dut = self.dut
        self.wqe_reads = Reads(self, dut.wqe_read)
        self.payload_reads = Reads(self, dut.payload_read)
        self.doorbell_payload = dut.doorbells.payload.as_value()
        self.qp_row, self.region_row = dut.qp.row.as_value(), dut.region.row.as_value()
        self.sampled = self.signals()
        self.begins = self.offered = None
        self.completed_after = []
        simulator = Simulator(dut)
        simulator.add_clock(6.4e-9)
        simulator.add_testbench(testbench)
        simulator.run()

    # What came.

    def check_completion(self, got, qpn, expected):
        cq, cqe = got
        assert cq == self.qp_fields[qpn]["send_cq"], f"CQ {cq} for QP {qpn}; seed {self.seed}"
        wrong = {
            name: (value, expected.get(name, 0))
            for name, value in cqe.items()
            if value != expected.get(name, 0)
        }
        assert not wrong, f"CQE, (got, expected): {wrong}; seed {self.seed}"

    def check_frames(self, got, expected):
        for index, (frame, wanted) in enumerate(zip(got, expected, strict=False)):
            assert frame == wanted, (
                f"frame {index}, seed {self.seed}:\n{frame.hex()}\nnot\n{wanted.hex()}"
            )
        assert len(got) == len(expected), f"{len(got)} frames, not {len(expected)}; {self.seed}"


def send_all(bench, messages, **run):
    """Send messages of QP 0, all good; compare frames, completions and CQ slots."""

    async def script(bench):
        expected, cqes, msn = [], [], 0
        for opcode, offset, length, fields in messages:
            wqe = bench.post(0, opcode, offset, length, **fields)
            msn += opcode != WRITE
            expected += bench.reference(0, wqe, msn)
            if wqe["flags"] & SIGNALED:
                cqes.append(bench.success(0, wqe, msn))
            await bench.until(lambda: len(bench.doorbells) < 2)
            # The ring has 64 entries.
            behind = len(expected) - 40
            await bench.until(lambda n=behind: len(bench.frames) >= n)
        await bench.until(
            lambda: len(bench.frames) >= len(expected) and len(bench.completions) >= len(cqes)
        )
        await bench.idle(60)
        bench.check_frames(bench.frames, expected)
        assert len(bench.completions) == len(cqes)
        for got, cqe in zip(bench.completions, cqes, strict=True):
            bench.check_completion(got, 0, cqe)
        assert bench.slots[1] == 1000 - len(cqes), f"{bench.slots[1]} slots; seed {bench.seed}"

    bench.run(script)


FLAGS = {
    WRITE: (0,),
    SEND: (0, SOLICITED),
    WRITE_RECORD: (0, SOLICITED, IMMEDIATE, SOLICITED | IMMEDIATE),
    SEND_IMMEDIATE: (0, SOLICITED, IMMEDIATE, SOLICITED | IMMEDIATE),
}


def test_every_small_length():
    """0 to 130 octets of each opcode, the source alignment and the flags turning with them."""
    bench = Bench(1000, stall=0.2)
    bench.set_qp(0)
    messages = []
    for opcode in HEADERS:
        for length in range(131):
            flags = FLAGS[opcode][length % len(FLAGS[opcode])]
            flags |= SIGNALED if bench.rng.random() < 0.7 else 0
            fields = {"flags": flags, "remote_to": bench.rng.getrandbits(64)}
            if length == 0:
                fields |= {"num_sge": 0, "sge_length": bench.rng.getrandbits(32), "sge_lkey": 0}
            messages.append((opcode, bench.rng.randrange(8192), length, fields))
    send_all(bench, messages)


def test_lengths_around_granules_and_segments():
    """Every alignment of source and target, lengths around what a segment and a granule hold."""
    bench = Bench(2000, stall=0.1)
    bench.set_qp(0)
    messages = []
    room = 1500 - 28 - 30 - 4
    for index, length in enumerate(
        [room - 1, room, room + 1, 1408, 1409, 1472, 2816, 2845, 2846, 2847, 2848, 4000]
        + [64 * n + d for n in range(3, 12, 4) for d in (-1, 0, 1)]
    ):
        to = (bench.rng.getrandbits(50) << 6) + (index * 11 % 64 if index % 3 else 0)
        messages.append(
            (WRITE_RECORD, 8 * bench.rng.randrange(512) + index % 8, length, {"remote_to": to})
        )
    for index, length in enumerate((1454, 1455, 3000)):
        messages.append((WRITE, 4096 - 700 + index, length, {"remote_to": 2**64 - 5000 + index}))
    messages += [(SEND, 5, 1450, {}), (SEND_IMMEDIATE, 7, 1446, {}), (SEND, 2, 1449, {})]
    send_all(bench, messages)


@pytest.mark.parametrize("path_mtu", [576, 1500, 9000])
def test_path_mtu_and_granule(path_mtu):
    bench = Bench(3000 + path_mtu, stall=0.05, max_mtu=9000)
    bench.set_qp(0, path_mtu=path_mtu)
    messages = []
    for granule_log2 in sorted({6, 7, 9, path_mtu.bit_length() - 2, path_mtu.bit_length() - 1}):
        if 1 << granule_log2 > path_mtu - 62:
            continue
        length = path_mtu + bench.rng.randrange(path_mtu)
        offset = bench.rng.randrange(4096)
        fields = {"granule_log2": granule_log2, "remote_to": bench.rng.getrandbits(64)}
        messages.append((bench.rng.choice(TAGGED), offset, length, fields))
    send_all(bench, messages)


def test_round_robin():
    """A long message does not hold back short ones; QPs take turns by datagram."""
    bench = Bench(4000, stall=0.05)
    lengths = {0: [30_000], 2: [1408 * 4, 10, 20], 3: [100] * 12, 6: [64, 3000, 64]}

    async def script(bench):
        expected, cqes = {}, {}
        for qpn, sizes in lengths.items():
            bench.set_qp(qpn)
            wqes = [bench.post(qpn, WRITE_RECORD, 77 * n, size) for n, size in enumerate(sizes)]
            numbered = [(wqe, msn) for msn, wqe in enumerate(wqes, 1)]
            expected[qpn] = [bench.reference(qpn, *item) for item in numbered]
            cqes[qpn] = [bench.success(qpn, *item) for item in numbered]
        total = sum(len(frames) for messages in expected.values() for frames in messages)
        count = sum(map(len, lengths.values()))
        await bench.until(lambda: len(bench.completions) == count and len(bench.frames) == total)
        ports = [int.from_bytes(frame[34:36], "big") - 0x4000 for frame in bench.frames]
        for qpn, messages in expected.items():
            wanted = [frame for frames in messages for frame in frames]
            got = [frame for port, frame in zip(ports, bench.frames, strict=True) if port == qpn]
            bench.check_frames(got, wanted)
            got = [item for item in bench.completions if item[1]["qpn"] == qpn]
            for item, cqe in zip(got, cqes[qpn], strict=True):
                bench.check_completion(item, qpn, cqe)
        # While all four have work, none has two turns before another has had one.
        for qpn in expected:
            mine = [place for place, port in enumerate(ports) if port == qpn]
            for before, after in pairwise(mine):
                between = ports[before + 1 : after]
                assert len(between) == len(set(between)), f"{between} in the turn of {qpn}"
        # The long one has less than half of the wire until the others are done.
        done = max(place for place, port in enumerate(ports) if port != 0)
        assert ports[:done].count(0) <= done / 2 + 1, f"{ports}"

    bench.run(script)


ERRORS = {
    "opcode": ({"opcode": 0x5}, Status.LOC_QP_OP_ERR),
    "opcode high": ({"opcode": 0x1C}, Status.LOC_QP_OP_ERR),
    "num_sge": ({"num_sge": 2}, Status.LOC_QP_OP_ERR),
    "length": ({"sge_length": 99}, Status.LOC_QP_OP_ERR),
    "length without SGE": ({"num_sge": 0}, Status.LOC_QP_OP_ERR),
    "granule 5": ({"granule_log2": 5}, Status.LOC_QP_OP_ERR),
    "granule 17": ({"granule_log2": 17}, Status.LOC_QP_OP_ERR),
    "granule 70": ({"granule_log2": 70}, Status.LOC_QP_OP_ERR),
    "immediate in Write": ({"opcode": WRITE, "flags": IMMEDIATE}, Status.LOC_QP_OP_ERR),
    "immediate in Send": ({"opcode": SEND, "flags": IMMEDIATE}, Status.LOC_QP_OP_ERR),
    "solicited Write": ({"opcode": WRITE, "flags": SOLICITED}, Status.LOC_QP_OP_ERR),
    "operation first": ({"opcode": 1, "sge_lkey": 0}, Status.LOC_QP_OP_ERR),
    "Send too long": (
        {"opcode": SEND, "length": 1451, "sge_length": 1451, "sge_lkey": 0},
        Status.LOC_LEN_ERR,
    ),
    "0xE too long": (
        {"opcode": SEND_IMMEDIATE, "length": 1447, "sge_length": 1447},
        Status.LOC_LEN_ERR,
    ),
    "granule too big": (
        {"granule_log2": 11, "length": 1439, "sge_length": 1439},
        Status.LOC_LEN_ERR,
    ),
    "length of 2^31": ({"opcode": SEND, "length": 2**31, "sge_length": 2**31}, Status.LOC_LEN_ERR),
    "key": ({"sge_lkey": LKEY ^ 1}, Status.LOC_PROT_ERR),
    "region not valid": ({"sge_lkey": 4 << 8 | KEY}, Status.LOC_PROT_ERR),
    "region of another PD": ({"sge_lkey": 5 << 8 | KEY}, Status.LOC_PROT_ERR),
    "beyond the table": ({"sge_lkey": 11 << 8 | KEY}, Status.LOC_PROT_ERR),
    "below": ({"sge_addr": DATA_TO - 1}, Status.LOC_PROT_ERR),
    "above": ({"sge_addr": DATA_TO + DATA_SIZE - 99}, Status.LOC_PROT_ERR),
    "far above": ({"sge_addr": 2**64 - 1}, Status.LOC_PROT_ERR),
    "longer than the region": (
        {"length": 2**32 - 1, "sge_length": 2**32 - 1},
        Status.LOC_PROT_ERR,
    ),
}

GOOD = {
    "at the end": {"sge_addr": DATA_TO + DATA_SIZE - 100},
    "big granule in one segment": {"granule_log2": 16},
    "nothing of no region": {"length": 0, "num_sge": 1, "sge_length": 0, "sge_lkey": 0},
}


def test_errors():
    """Each error completes its WQE, signalled or not; good ones between them go out."""
    bench = Bench(5000, stall=0.1)
    bench.set_qp(0)
    bench.set_region(4, valid=0)
    bench.set_region(5, pd=8)

    async def script(bench):
        expected, cqes, msn = [], [], 0
        cases = list(ERRORS.items()) + [(name, (fields, None)) for name, fields in GOOD.items()]
        bench.rng.shuffle(cases)
        for number, (_, (fields, status)) in enumerate(cases):
            fields = {"opcode": WRITE_RECORD, "offset": 40, "length": 100, "flags": 0} | fields
            if status is None:
                fields["flags"] |= SIGNALED
            if number % 2:
                fields["flags"] |= SIGNALED
            wqe = bench.post(0, ring=number % 5 == 0, **fields)
            if status is None:
                msn += 1
                expected += bench.reference(0, wqe, msn)
                cqes.append(bench.success(0, wqe, msn))
            else:
                cqes.append(bench.failure(0, wqe, status))
        # One that cannot be read.
        wqe = bench.post(0, WRITE_RECORD, 0, 10)
        bench.broken.add(RINGS + 64 * wqe["index"] + 24)
        nothing = {"opcode": 0, "length": 0, "remote_to": 0, "remote_stag": 0}
        cqes.append(bench.failure(0, wqe | nothing, Status.LOC_QP_OP_ERR))
        wqe = bench.post(0, SEND, 1, 9)
        expected += bench.reference(0, wqe, msn + 1)
        cqes.append(bench.success(0, wqe, msn + 1))
        await bench.until(
            lambda: len(bench.completions) == len(cqes) and len(bench.frames) == len(expected)
        )
        await bench.idle(100)
        bench.check_frames(bench.frames, expected)
        for (name, _), got, cqe in zip(
            [*cases, ("unreadable", None), ("after", None)], bench.completions, cqes, strict=True
        ):
            print(name)
            bench.check_completion(got, 0, cqe)

    bench.run(script)


def test_credit_refused_and_state():
    """No CQ slot or not in RTS: the QP waits, others go on, and nothing is lost."""
    bench = Bench(6000, stall=0.1)
    full = 5
    bench.slots[full] = 0
    bench.set_qp(1, send_cq=full)
    bench.set_qp(2, state=QpState.RTR)
    bench.set_qp(3)

    async def script(bench):
        frames = {}
        for qpn in (1, 2, 3):
            wqes = [bench.post(qpn, WRITE_RECORD, 10 * n, 100 + n) for n in range(3)]
            frames[qpn] = [
                frame for msn, wqe in enumerate(wqes, 1) for frame in bench.reference(qpn, wqe, msn)
            ]
        await bench.until(lambda: len(bench.frames) == 3)
        await bench.idle(400)
        bench.check_frames(bench.frames, frames[3])
        assert bench.refused > 3, f"{bench.refused} refused"
        bench.slots[full] = 1
        await bench.until(lambda: len(bench.frames) == 4)
        await bench.idle(300)
        bench.check_frames(bench.frames, frames[3] + frames[1][:1])
        bench.set_qp(2)
        await bench.until(lambda: len(bench.frames) == 7)
        await bench.idle(200)
        bench.check_frames(bench.frames, frames[3] + frames[1][:1] + frames[2])
        bench.slots[full] = 5
        await bench.until(lambda: len(bench.completions) == 9)
        bench.check_frames(bench.frames[7:], frames[1][1:])
        assert bench.slots[full] == 3

    bench.run(script)


@pytest.mark.parametrize("place", [0, 1500, 6999])
def test_payload_read_error(place):
    """A failed read: its frame and later ones of the message stay; the rest is unharmed."""
    bench = Bench(7000 + place, stall=0.1)
    bench.set_qp(0)
    bench.set_qp(1)
    bench.broken.add((DATA + 8 + place) & ~7)

    async def script(bench):
        others = [bench.post(1, WRITE_RECORD, 20_000 + 100 * n, 3000) for n in range(3)]
        before = bench.post(0, WRITE_RECORD, 30_000, 500)
        bad = bench.post(0, WRITE_RECORD, 8, 7000, flags=0)
        after = bench.post(0, WRITE_RECORD, 30_000, 5000)
        other_frames = [
            frame for msn, wqe in enumerate(others, 1) for frame in bench.reference(1, wqe, msn)
        ]
        bad_frames = [
            frame
            for mo, frame in zip(
                (mo for mo, _ in pieces(WRITE_RECORD, 7000, 1500, bad["remote_to"], 64)),
                bench.reference(0, bad, 2),
                strict=True,
            )
            if mo + len(frame) - 76 <= place
        ]
        mine = bench.reference(0, before, 1) + bad_frames + bench.reference(0, after, 3)
        await bench.until(lambda: len(bench.completions) == 6)
        await bench.idle(100)
        ports = [frame[34:36] for frame in bench.frames]
        by_port = {
            port: [f for f in bench.frames if f[34:36] == port] for port in dict.fromkeys(ports)
        }
        bench.check_frames(by_port[b"\x40\x01"], other_frames)
        bench.check_frames(by_port[b"\x40\x00"], mine)
        cqes = [item for item in bench.completions if item[1]["qpn"] == 0]
        bench.check_completion(cqes[0], 0, bench.success(0, before, 1))
        bench.check_completion(cqes[1], 0, bench.failure(0, bad, Status.GENERAL_ERR))
        bench.check_completion(cqes[2], 0, bench.success(0, after, 3))
        # The slot serves again: more messages than there are slots.
        expected = []
        for number in range(75):
            wqe = bench.post(0, WRITE_RECORD, 9000, 30)
            expected += bench.reference(0, wqe, 4 + number)
        sent = len(bench.frames)
        await bench.until(lambda: len(bench.completions) == 81)
        bench.check_frames(bench.frames[sent:], expected)

    bench.run(script)


def test_reset():
    """A reset QP starts over at index 0 with MSN 1; what had been fetched gives its slot back."""
    bench = Bench(8000, stall=0.05)
    bench.set_qp(0)

    async def script(bench):
        for _ in range(5):
            bench.post(0, WRITE_RECORD, 0, 20_000)
        await bench.until(lambda: len(bench.frames) == 4)
        bench.set_qp(0, state=QpState.RESET)
        bench.reset_qp(0)
        await bench.until(lambda: not bench.doorbells)
        await bench.idle(2000)
        assert bench.slots[1] == 1000, f"{bench.slots[1]} slots; seed {bench.seed}"
        assert not bench.completions
        sent = len(bench.frames)
        await bench.idle(300)
        assert len(bench.frames) == sent < 40
        bench.set_qp(0)
        wqe = bench.post(0, WRITE_RECORD, 5, 3000)
        await bench.until(lambda: len(bench.completions) == 1)
        bench.check_frames(bench.frames[sent:], bench.reference(0, wqe, 1))
        bench.check_completion(bench.completions[0], 0, bench.success(0, wqe, 1))

    bench.run(script)


def test_enable_and_state_in_the_middle():
    """While the port is disabled or the QP not in RTS a message pauses; it goes on where it was."""
    bench = Bench(8500, stall=0.05)
    bench.set_qp(0)

    async def script(bench):
        wqe = bench.post(0, WRITE_RECORD, 3, 40_000)
        expected = bench.reference(0, wqe, 1)
        await bench.until(lambda: len(bench.frames) == 3)
        bench.ctx.set(bench.dut.config.enable, 0)
        await bench.idle(300)
        sent = len(bench.frames)
        assert sent <= 4, f"{sent} frames"
        await bench.idle(250)
        assert len(bench.frames) == sent
        bench.ctx.set(bench.dut.config.enable, 1)
        await bench.until(lambda: len(bench.frames) == sent + 1)
        bench.set_qp(0, state=QpState.ERROR)
        await bench.idle(2500)
        sent = len(bench.frames)
        await bench.idle(300)
        assert len(bench.frames) == sent < len(expected)
        bench.set_qp(0)
        await bench.until(lambda: len(bench.completions) == 1)
        bench.check_frames(bench.frames, expected)

    bench.run(script)


def test_completion_follows_the_frame():
    """The CQE comes after the last beat of the message's last frame, also behind other frames."""
    bench = Bench(8600, stall=0.3)
    bench.set_qp(0)

    async def script(bench):
        count = 0
        for length in (10, 3000, 0, 1500, 64):
            wqe = bench.post(0, WRITE_RECORD, 0, length)
            count += len(bench.reference(0, wqe, 1))
            message = len(bench.completions)
            await bench.until(lambda n=message: len(bench.completions) == n + 1)
            assert bench.completed_after[-1] == count, f"after {bench.completed_after[-1]} frames"

    bench.run(script)


def spacing(bench, frames):
    """Cycles from the first beat of the first frame to the last's, and what the wire needs."""
    begins = [begin for _, begin in bench.frame_times]
    needed = sum((len(frame) + 24) / 8 for frame in frames[:-1])
    return begins[-1] - begins[0], needed


@pytest.mark.parametrize(
    ("length", "count", "each"), [(1408, 1, 20), (64, 80, 1), (1, 80, 1), (300, 30, 1)]
)
def test_line_rate(length, count, each):
    """Frames at the wire's rate with 200 cycles of read latency, for WQEs and payload alike.

    ``count`` messages of ``each`` segments of ``length`` octets, into a MAC that takes a frame in
    each of its slots of L + 24 octets.
    """
    bench = Bench(9000 + length, latency=(200, 200), wire=True)
    bench.set_qp(0, sq_log2=7, sq_addr=RINGS // 64)

    async def script(bench):
        expected = []
        for msn in range(1, count + 1):
            wqe = bench.post(
                0, WRITE_RECORD, 64 * msn + 3, length * each, ring=False, remote_to=320
            )
            expected += bench.reference(0, wqe, msn)
        bench.ring(0)
        await bench.until(lambda: len(bench.frames) == count * each)
        bench.check_frames(bench.frames, expected)
        took, needed = spacing(bench, expected)
        assert took <= needed + 1, f"{took} cycles, the wire takes {needed}"
        first = bench.frame_times[0][0]
        print(f"{length}: {took} cycles, wire {needed}, first beat {first}")
        print(f"outstanding: {bench.payload_reads.most_outstanding} words of payload")

    bench.run(script)


def test_latency():
    """From the doorbell to the first beat of a 64-octet Write-Record, with the fastest memory."""
    bench = Bench(9900, latency=(0, 0))
    bench.set_qp(0)

    async def script(bench):
        start = bench.now
        bench.post(0, WRITE_RECORD, 0, 64)
        await bench.until(lambda: len(bench.frames) == 1)
        cycles = bench.frame_times[0][0] - start
        print(f"latency {cycles}")
        assert cycles <= 80, f"{cycles} cycles"

    bench.run(script)
