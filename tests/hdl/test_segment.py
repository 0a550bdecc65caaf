"""The segmenter alone: cuts, turns and lists, against the rule written octet by octet."""

import random
import struct
from collections import defaultdict, deque
from itertools import pairwise

import pytest
from amaranth.sim import Simulator
from transmit_bench import HEADERS, SEND, TAGGED, WRITE, WRITE_RECORD, pieces

from uwarp.contract import QP_ENTRY, Parameters, QpState, Status
from uwarp_hdl.iwarp.segment import MessageWord, Segmenter, message_words

PARAMETERS = Parameters(n_qp=4, n_region=4, max_mtu=9000)


class SegmenterBench:
    """Feeds messages and collects segments and read jobs, with stalls of ``stall``."""

    def __init__(self, seed, stall):
        self.rng, self.seed, self.stall = random.Random(seed), seed, stall
        self.dut = Segmenter(PARAMETERS)
        self.inputs, self.resets = deque(), deque()
        self.segments, self.jobs = [], []
        self.quads, self.rows = [], []
        self.messages, self.to_recall, self.ends = {}, deque(), []
        self.recalls = None  # since when the next word is asked for
        self.words = {}
        self.now = 0
        self.ended = deque()
        self.states = [QpState.RTS] * PARAMETERS.n_qp
        self.failed = set()
        self.free = deque(range(PARAMETERS.n_qp + 32))
        print(f"seed {seed}")

    def message(self, qpn, opcode, length, n_pieces=1, **fields):
        path_mtu = self.rng.choice((576, 1500, 4321, 9000))
        room = path_mtu - 32 - HEADERS[opcode]
        granule_log2 = self.rng.randint(6, room.bit_length() - 1)
        message = {
            "slot": self.free.popleft(),
            "qpn": qpn,
            "opcode": opcode,
            "length": length,
            "remote_to": self.rng.getrandbits(64),
            "room": room,
            "granule_mask": (1 << granule_log2) - 1,
            "index": self.rng.getrandbits(16),
        } | fields
        self.messages[message["slot"]] = message
        cuts = {self.rng.randrange(1, length) for _ in range(n_pieces - 1)} if length > 1 else ()
        spans = [
            (self.rng.getrandbits(60), end - start)
            for start, end in pairwise([0, *sorted(cuts), length])
            if length
        ]
        for index, (address, octets) in enumerate(spans):
            piece = {"valid": 1, "slot": message["slot"], "index": index}
            self.inputs.append(("piece", piece | {"address": address, "length": octets}))
        self.inputs.append(("message", message))
        return message | {"path_mtu": path_mtu, "granule": 1 << granule_log2, "spans": spans}

    async def cycle(self, ctx):
        dut = self.dut
        _, _, *values = await ctx.tick().sample(
            (dut.messages.valid & dut.messages.ready) | dut.pieces.valid,
            dut.resets.valid & dut.resets.ready,
            dut.segments.valid & dut.segments.ready,
            dut.segments.payload,
            dut.reads.valid & dut.reads.ready,
            dut.reads.payload,
            dut.qp.index,
            dut.quads,
            dut.recall_ready,
            dut.recalled,
            dut.recalled_msn,
        )
        input_taken, reset_taken, segment_given, segment, job_given, job, index, *values = values
        self.now += 1
        self.collect(*values)
        if input_taken:
            self.inputs.popleft()
        if reset_taken:
            self.resets.popleft()
        if segment_given:
            fields = {name: getattr(segment, name) for name in self.names}
            message = self.messages[segment.slot]
            self.segments.append(fields | {"index": message["index"], "qpn": message["qpn"]})
            if segment.last:
                self.to_recall.append((self.now + 60, message))
        # A slot is free only long after its last octets were asked for.
        if len(self.ended) > 4:
            self.free.append(self.ended.popleft())
        if job_given:
            self.jobs.append((job.address, job.length, job.place, job.final))
        if not self.recalls and self.to_recall and self.to_recall[0][0] <= self.now:
            word = MessageWord(len(self.words))
            ctx.set(dut.recall, {"slot": self.to_recall[0][1]["slot"], "word": word})
            self.recalls = self.now
        ctx.set(dut.qp.row.as_value(), QP_ENTRY.to_int(state=self.states[index]))
        kind, item = self.inputs[0] if self.inputs else (None, {})
        ctx.set(dut.pieces, item if kind == "piece" else {"valid": 0})
        ctx.set(dut.messages.valid, kind == "message")
        ctx.set(dut.messages_begin, kind == "message")
        if kind == "message":
            ctx.set(dut.messages.payload, item)
        ctx.set(dut.resets.valid, bool(self.resets))
        if self.resets:
            ctx.set(dut.resets.payload, self.resets[0])
        ctx.set(dut.segments.ready, self.rng.random() >= self.stall)
        ctx.set(dut.reads.ready, self.rng.random() >= self.stall)
        ctx.set(dut.failed, ctx.get(dut.failed_slot) in self.failed)

    def collect(self, quads, recall_ready, recalled, msn):
        """Rows of quads, and what is recalled of messages that ended."""
        if quads.valid:
            assert quads.address == len(self.quads) % 64 * 8 + len(self.rows), "rows out of order"
            self.rows.append(quads.word.to_bytes(8, "little"))
            if len(self.rows) == 6:
                self.quads.append(b"".join(self.rows)[4:])
                self.rows = []
        # That of two cycles before, of which the slot was set one cycle earlier.
        if self.recalls and self.recall_was_ready[0] and self.recalls < self.now - 2:
            word = MessageWord(len(self.words))
            self.words[word] = message_words(PARAMETERS)[word].from_bits(
                recalled & (1 << message_words(PARAMETERS)[word].size) - 1
            )
            self.recalls = None
        if len(self.words) == len(MessageWord):
            message = self.to_recall.popleft()[1]
            cut, kind, _, source = self.words.values()
            self.words = {}
            got = {"qpn": source.qpn, "index": source.index, "opcode": kind.opcode}
            got |= {"length": cut.length, "remote_to": kind.to_high << 14 | cut.to_low}
            for name, value in got.items():
                assert value == message[name], f"{name}; seed {self.seed}"
            self.ends.append((message["index"], source.qpn, msn))
            self.ended.append(message["slot"])
        self.recall_was_ready = (self.recall_was_ready[1], recall_ready)

    def header(self, number):
        """What the quads of a segment say."""
        quads, opcode = self.quads[number], self.segments[number]["opcode"]
        if opcode in TAGGED:
            _, to, msn, mo, mlen, _ = struct.unpack(">IQIIII", quads[:28])
            return {"to": to, "msn": msn, "mo": mo, "mlen": mlen}
        mlen, queue, msn, mo = struct.unpack(">IIII", quads[:16])
        assert queue == 0
        return {"msn": msn, "mo": mo, "mlen": mlen}

    async def until(self, ctx, condition, limit=5000):
        for _ in range(limit):
            if condition():
                return
            await self.cycle(ctx)
        raise AssertionError(
            f"not within {limit} cycles: {len(self.segments)} segments; seed {self.seed}"
        )

    def run(self, script):
        async def testbench(ctx):
            ctx.set(self.dut.enable, 1)
            await self.until(ctx, lambda: not ctx.get(self.dut.busy))
            await script(ctx)

        self.recall_was_ready = (0, 0)  # of the last two cycles
        self.names = self.dut.segments.payload.shape().members
        simulator = Simulator(self.dut)
        simulator.add_clock(6.4e-9)
        simulator.add_testbench(testbench)
        simulator.run()


def jobs_of(spans, first, octets, place):
    """The read jobs of ``octets`` octets from octet ``first`` of a message on."""
    jobs = []
    for address, length in spans:
        part = min(octets, length - first)
        if part > 0:
            octets -= part
            jobs.append((address + first, part, place, int(octets == 0)))
            place = (place + part) % 8
        first = max(0, first - length)
    return jobs


@pytest.mark.parametrize("stall", [pytest.param(0.0, marks=pytest.mark.soak), 0.4])
def test_cuts(stall):
    """Random messages of all QPs: every segment, every read, in the order of each QP."""
    bench = SegmenterBench(100 + int(10 * stall), stall)
    expected, reads = defaultdict(list), {}
    msns = defaultdict(int)

    async def script(ctx):
        for _ in range(120):
            await bench.until(ctx, lambda: len(bench.free) > 0)
            opcode = bench.rng.choice(tuple(HEADERS))
            length = bench.rng.choice((0, 1, bench.rng.randrange(2000), bench.rng.randrange(30000)))
            pieces_of_it = bench.rng.randint(1, 4)
            item = bench.message(bench.rng.randrange(4), opcode, length, pieces_of_it)
            length, qpn = item["length"], item["qpn"]
            msns[qpn] += opcode != WRITE
            cut = pieces(opcode, length, item["path_mtu"], item["remote_to"], item["granule"])
            for mo, octets in cut:
                to = (item["remote_to"] + mo) % 2**64
                msn = 0 if opcode == WRITE else msns[qpn]
                last = int(mo + octets == length)
                size = 42 + HEADERS[opcode] + octets + 4
                fields = {"msn": msn, "mo": mo, "mlen": length}
                fields |= {"to": to} if opcode in TAGGED else {}
                expected[qpn].append((item["index"], last, size, int(octets > 0), fields))
                place = 4 * (opcode == SEND)
                reads[qpn, len(expected[qpn])] = jobs_of(item["spans"], mo, octets, place)
            await bench.cycle(ctx)
        total = sum(map(len, expected.values()))
        await bench.until(ctx, lambda: len(bench.segments) == total, 20_000)
        for _ in range(20):
            await bench.cycle(ctx)

    bench.run(script)
    names = ("index", "last", "octets", "has_payload")
    got = defaultdict(list)
    jobs = []
    for number, segment in enumerate(bench.segments):
        assert segment["frame"] and not segment["discard"] and segment["status"] == 0
        qpn = segment["qpn"]
        got[qpn].append((*(segment[name] for name in names), bench.header(number)))
        if segment["has_payload"]:
            jobs += reads[qpn, len(got[qpn])]
    assert len(bench.ends) > 100
    for qpn, items in expected.items():
        ends = [(index, fields["msn"]) for index, last, *_, fields in items if last]
        recalled = [(index, msn) for index, owner, msn in bench.ends if owner == qpn]
        assert recalled == ends[: len(recalled)], f"seed {bench.seed}"
    assert got == expected, f"seed {bench.seed}"
    assert bench.jobs == jobs, f"seed {bench.seed}"


def test_a_segment_in_8_cycles():
    bench = SegmenterBench(200, 0.0)

    async def script(ctx):
        for qpn in range(4):
            bench.message(qpn, WRITE_RECORD, 200_000)
        await bench.until(ctx, lambda: not bench.inputs)
        before = len(bench.segments)
        for _ in range(800):
            await bench.cycle(ctx)
        assert len(bench.segments) - before >= 100, f"{len(bench.segments) - before} in 800 cycles"

    bench.run(script)


def test_ends_without_a_frame():
    """Status of the fetch, failed read, reset: one segment ends the message; MSNs go on or anew."""
    bench = SegmenterBench(300, 0.2)

    async def script(ctx):
        bench.message(1, WRITE_RECORD, 10, index=1)
        bench.message(1, WRITE_RECORD, 10, index=2, status=Status.LOC_PROT_ERR)
        bad = bench.message(1, WRITE_RECORD, 200_000, index=3)
        bench.message(1, WRITE_RECORD, 10, index=4)
        await bench.until(ctx, lambda: len(bench.segments) == 3)
        bench.failed.add(bad["slot"])
        await bench.until(ctx, lambda: bench.segments[-1]["index"] == 4)
        bench.failed.clear()
        sent = len(bench.segments)
        assert sent < 10, "the failed message went on"
        # Messages of an earlier life, also ones that wait because the QP has left RTS.
        bench.states[1] = QpState.RESET
        bench.message(1, WRITE_RECORD, 10, index=5)
        for _ in range(40):
            await bench.cycle(ctx)
        assert len(bench.segments) == sent, "sent outside RTS"
        bench.resets.append(1)
        await bench.until(ctx, lambda: not bench.resets)
        bench.message(1, WRITE_RECORD, 10, index=6)
        await bench.until(ctx, lambda: len(bench.segments) == sent + 2)
        bench.states[1] = QpState.RTS
        bench.message(1, WRITE_RECORD, 10, index=7, epoch=1)
        await bench.until(ctx, lambda: len(bench.ends) == 7)

    bench.run(script)
    names = ("index", "frame", "last", "discard", "status")
    assert [tuple(item[name] for name in names) for item in bench.segments if item["last"]] == [
        (1, 1, 1, 0, 0),
        (2, 0, 1, 0, Status.LOC_PROT_ERR),
        (3, 0, 1, 0, Status.GENERAL_ERR),
        (4, 1, 1, 0, 0),
        (5, 0, 1, 1, 0),
        (6, 0, 1, 1, 0),
        (7, 1, 1, 0, 0),
    ]
    msns = [1, 0, 2, 3, 0, 0, 1]
    assert bench.ends == [(index, 1, msn) for index, msn in enumerate(msns, 1)]
