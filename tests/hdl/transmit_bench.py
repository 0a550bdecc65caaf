"""Surroundings of the transmit path: memory, tables, completion queues and a wire, all with stalls.

Frames are compared octet for octet with ones put together by scapy and google_crc32c; how a message
is cut is computed here from the rules of docs/device.md, not with the code under test.
"""

import random
from collections import defaultdict, deque
from dataclasses import replace

import google_crc32c
from amaranth.hdl import Cat
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from sim_tb.units import TRANSMIT, unit
from uwarp.contract import (
    CQE,
    QP_ENTRY,
    REGION_ENTRY,
    SEND_WQE,
    Counter,
    QpState,
    Status,
    WqeFlag,
)
from uwarp_hdl.iwarp.transmit import TransmitPath
from uwarp_hdl.layouts import CreditOperation

WRITE, SEND, WRITE_RECORD, SEND_IMMEDIATE = 0x0, 0x3, 0xC, 0xE
TERMINATE = 0x7
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
    if opcode not in TAGGED:
        to = 0
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
        self.began, self.cycles = 0, 0  # with a word outstanding
        self.bursts = 0
        self.failed_bursts = 0

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
            assert count <= 16, f"burst of {count} words"
            if not self.outstanding:
                self.began = bench.now
            places = range(address, address + 8 * count, 8)
            self.failed_bursts += any(place in bench.broken for place in places)
            self.waiting.append((bench.now + bench.latency(), address, count))
            self.outstanding += count
            self.most_outstanding = max(self.most_outstanding, self.outstanding)
            self.bursts += 1
        if beat_valid and beat_ready:
            self.words.popleft()
            self.outstanding -= 1
            if not self.outstanding:
                self.cycles += bench.now - self.began
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


def is_terminate(frame):
    """Of a frame that is sent."""
    tag = 4 * (frame[12:14] == b"\x81\x00")
    ipv6 = 20 * (frame[12 + tag : 14 + tag] == b"\x86\xdd")
    return frame[43 + tag + ipv6] & 15 == TERMINATE


class Bench:
    """Everything around the transmit path. ``stall`` is the probability of each side's stalls."""

    def __init__(self, seed, *, stall=0.0, latency=(3, 30), wire=False, **sizes):
        self.parameters = replace(TRANSMIT, **sizes)
        self.unit = unit(TransmitPath, self.parameters)
        self.dut = self.unit.component
        self.seed, self.rng = seed, random.Random(seed)
        self.stall, self.latency_range, self.wire = stall, latency, wire
        self.memory = bytearray(self.rng.randbytes(DATA + DATA_SIZE + 64))
        self.broken = set()
        self.values = {}
        self.changes = None
        self.qp = [0] * self.parameters.n_qp
        self.qp_fields = [{} for _ in range(self.parameters.n_qp)]
        self.region = [0] * self.parameters.n_region
        self.producer = [0] * self.parameters.n_qp
        self.slots = defaultdict(lambda: 1000)
        self.doorbells = deque()
        self.answers = deque()
        self.frames, self.frame_times, self.partial = [], [], b""
        self.completions = []
        self.requested, self.cqe_words = deque(), deque()
        self.dma_events = []
        self.now = 0
        self.lost_events = 0
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
            if self.changes is None:
                self.ctx.set(signal, value)
            else:
                self.changes.append((signal, int(value) & (1 << len(signal)) - 1))

    def apply_changes(self):
        """All that ``set`` gave since ``changes`` is a list, at once: each time the simulator
        settles anew."""
        signals, bits, place = [], 0, 0
        for signal, value in self.changes:
            signals.append(signal)
            bits |= value << place
            place += len(signal)
        self.changes = None
        if signals:
            self.ctx.set(Cat(signals), bits)

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
        tagged = wqe["opcode"] in (*TAGGED, 0x2, 0xD)
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

    def failure(self, qpn, wqe, status, msn=0):
        """The CQE that a bad WQE ends with; it has an MSN if a read of its payload failed."""
        return self.success(qpn, wqe, msn) | {"status": status, "valid": 0}

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
            dut.completions.requests.valid,
            dut.completions.requests.ready,
            dut.completions.requests.payload,
            dut.completions.words.valid,
            dut.completions.words.ready,
            dut.completions.words.payload,
            dut.events,
            *(port.valid for port in dut.event_requests),
            *(port.payload.as_value() for port in dut.event_requests),
        )

    async def cycle(self):
        dut, ctx = self.dut, self.ctx
        _, _, *values = await ctx.tick().sample(*self.sampled)
        self.now += 1
        self.changes = []
        self.wqe_reads.clock(*values[:5])
        self.payload_reads.clock(*values[5:10])
        (doorbell_valid, doorbell_ready, qp_index, region_index, *values) = values[10:]
        (request_valid, request_ready, request, granted_valid, granted_ready, *values) = values
        (tx_valid, tx_ready, beat, *values) = values
        (cqe_valid, cqe_ready, cqe_request, *values) = values
        (word_valid, word_ready, word, events, *told) = values
        for is_told, event in zip(told[:2], told[2:], strict=True):
            if is_told:
                self.dma_events.append((event & 0xFF, event >> 8))

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
            self.requested.append(cqe_request)
            self.completed_after.append(len(self.frames))
        if word_valid and word_ready:
            self.cqe_words.append(word)
        if self.requested and len(self.cqe_words) >= CQE.size // 8:
            cqe_request = self.requested.popleft()
            words = [self.cqe_words.popleft() for _ in range(CQE.size // 8)]
            cqe = CQE.from_int(sum(word << 64 * at for at, word in enumerate(words)))
            assert cqe_request.urgent == (cqe.status != Status.SUCCESS)
            self.completions.append((cqe_request.cq, vars(cqe)))
        self.set(dut.completions.requests.ready, not self.stalls())
        self.set(dut.completions.words.ready, not self.stalls())

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
        if ended and is_terminate(self.frames[-1]):
            ended |= 1 << Counter.TX_TERMINATES - Counter.TX_FRAMES
        self.lost_events += events >> Counter.EVENTS_LOST & 1
        events &= ~(1 << Counter.EVENTS_LOST)
        assert events == (ended << Counter.TX_FRAMES), f"{events=:#x} {ended=}"
        self.must_be_valid = tx_valid and not ended
        if self.wire:
            # A MAC: a whole frame without a pause, then the octets of FCS, gap and preamble.
            self.set(dut.tx.ready, self.now >= self.wire_free - 1 or self.begins is not None)
        else:
            self.set(dut.tx.ready, not self.stalls())
        self.apply_changes()

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
            for port in dut.event_requests:
                ctx.set(port.ready, 1)
            await script(self)
            failed = self.wqe_reads.failed_bursts + self.payload_reads.failed_bursts
            assert len(self.dma_events) == failed, f"events of failed reads; seed {self.seed}"
            assert self.partial == b"", f"half a frame; seed {self.seed}"

        dut = self.dut
        self.wqe_reads = Reads(self, dut.wqe_read)
        self.payload_reads = Reads(self, dut.payload_read)
        self.doorbell_payload = dut.doorbells.payload.as_value()
        self.qp_row, self.region_row = dut.qp.row.as_value(), dut.region.row.as_value()
        self.sampled = self.signals()
        self.begins = self.offered = None
        self.completed_after = []
        self.unit.run(testbench)

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
