"""A DatagramReceiver with tables, rings, CQs and memory around it."""

from collections import deque
from types import SimpleNamespace

from receive_bench import (
    HostMemory,
    bits_of,
    follow_failed,
    payload_words,
    put_stream,
    take,
    value_of,
)
from receive_rule import CODE_BITS

from sim_tb.units import unit
from uwarp.contract import CQE, RECV_WQE, Counter, CqeFlag, EventType, QpState, Status
from uwarp_hdl.iwarp.receive import DatagramReceiver
from uwarp_hdl.iwarp.receive_prefetch import WQE_WORDS
from uwarp_hdl.layouts import CQE_LAYOUT, QP_ROW, REGION_ROW

__all__ = ["ALL_OPCODES", "ReceiverBench", "datagram", "qp_row"]

ALL_OPCODES = sum(1 << opcode for opcode in (0x0, 0x1, 0x3, 0x5, 0x7, 0xC, 0xD, 0xE))


def qp_row(**fields):
    row = {"state": QpState.RTS, "pd": 1, "timeout": 30000, "opcodes": ALL_OPCODES, "rq_log2": 4}
    return row | fields


def datagram(opcode=0xC, payload_length=0, **fields):
    d = dict.fromkeys(
        ("qpn", "solicited", "immediate_valid", "last", "stag", "to", "qn", "msn", "mo"), 0
    )
    d |= dict.fromkeys(("sink_to", "source_mac", "group", "own"), 0)
    d |= {"source_ip": 0xFFFF_0A000001, "source_port": 4000, "mlen": payload_length, "immediate": 0}
    d |= {"opcode": opcode, "payload_length": payload_length, "payload_offset": 0}
    unknown = fields.keys() - d.keys()
    assert not unknown, unknown
    return d | fields


def meaningful(request):
    """The fields of a ReadRequest that mean something, by name."""
    fields = {name: getattr(request, name) for name, _ in request.shape()}
    kept = {"qpn", "source_ip", "source_port", "msn", "report", "terminate"}
    if request.report:
        kept |= {"source_mac"}
        fields["code"] = request.sink_stag >> 16 & CODE_BITS
        kept |= {"code"}
    elif request.terminate:
        kept |= {"sink_stag"}
    else:
        kept = fields.keys()
    return {name: fields[name] for name in kept}


class ReceiverBench:
    """Feeds datagrams and collects what comes of them.

    With ``reads`` in ``background`` it takes Read Requests and Terminates, too: ``requests`` are
    those accepted, to be sent, and those that came (the fields that mean something), ``waiting`` is
    how many of the first two wait. ``order`` says of each item taken whether it was an opening,
    ``answers`` of each opening whether it succeeded.

    ``stall`` is the probability of a pause on every stream; ``delay`` the cycles of a write answer,
    ``wqe_delay`` those from a read burst to its first word, ``event_gap`` those before an event is
    taken. ``failed`` are the QPs that have. CQs in ``full`` have no free slot.
    """

    def __init__(
        self, parameters, qps, regions, receives, full, rng, stall=0.0, delay=None, wqe_delay=None
    ):
        self.unit = unit(DatagramReceiver, parameters)
        self.dut = dut = self.unit.component
        self.qps = qps
        self.n_read = parameters.n_read
        self.regions = [
            region.row() if not isinstance(region, dict) else region for region in regions
        ]
        self.receives = receives
        self.full = full
        self.rng = rng
        self.stall = stall
        delay = delay or (lambda: 3 + rng.randrange(20))
        answers_in = set()
        self.memory = HostMemory(dut.payload_write, rng, stall, delay, answers_in)
        self.map_memory = HostMemory(dut.map_write, rng, stall, delay, answers_in)
        self.wqe_delay = wqe_delay or (lambda: 1 + rng.randrange(20))
        self.wqe_answers = deque()
        self.outcomes = []
        self.completed = []
        self.order = []
        self.answers = []
        self.requests = []
        self.waiting = 0
        self.events = []
        self.event_gap = lambda: 0
        self.full_cqs = []
        self.failed = set()
        self.reserved = 0
        self.cycle = 0
        self.on_completion = lambda completion: None
        self.unwritten = deque()
        self.written = 0
        self.background = []

    async def tables(self, ctx):
        """Rows, a cycle after their index; and the strobes."""
        dut = self.dut
        qp_bits = [bits_of(QP_ROW, row) for row in self.qps]
        region_bits = [bits_of(REGION_ROW, row) for row in self.regions]
        shown = None
        while True:
            _, _, qp, region, events, full, full_cq, failed = await ctx.tick().sample(
                dut.qp.index, dut.region.index, dut.events, dut.cq_full, dut.cq_full_cq, dut.failed
            )
            self.cycle += 1
            if shown != (shown := (qp, region)):
                ctx.set(value_of(dut.qp.row), qp_bits[qp])
                ctx.set(value_of(dut.region.row), region_bits[region])
            if events:
                assert events & events - 1 == 0, f"events {events:#x} in one cycle"
                self.outcomes.append(Counter(events.bit_length() - 1))
                assert full == (self.outcomes[-1] == Counter.DROP_CQ_FULL)
            if full:
                self.full_cqs.append(full_cq)
            follow_failed(self.failed, failed)

    async def reads(self, ctx):
        dut = self.dut
        driven = None
        while True:
            room = self.waiting < self.n_read
            taking = self.rng.random() >= self.stall
            if driven != (driven := (room, taking)):
                ctx.set(dut.read_room, room)
                ctx.set(dut.requests.ready, taking)
            _, _, datagram, opening, opened, ok, valid, ready, request = await ctx.tick().sample(
                dut.datagrams.valid & dut.datagrams.ready,
                dut.read_openings.valid & dut.read_openings.ready,
                dut.opened,
                dut.opened_ok,
                dut.requests.valid,
                dut.requests.ready,
                value_of(dut.requests.payload),
            )
            assert not (datagram and opening)
            if datagram or opening:
                self.order.append(bool(opening))
            if opened:
                self.answers.append(bool(ok))
                self.reserved += ok  # the slot that was reserved before its WQE was fetched
            if valid and ready:
                shape = dut.requests.payload.shape()
                taken = shape.from_bits(request)
                assert room or taken.terminate, "a request without room"
                self.waiting += not taken.terminate
                self.requests.append(meaningful(taken))

    async def credits(self, ctx):
        credits = self.dut.credits
        while True:
            request = await take(ctx, credits.requests, self.rng, self.stall)
            if request.operation.value:  # RELEASE
                self.reserved -= 1
                continue
            granted = request.cq not in self.full
            self.reserved += granted
            await put_stream(ctx, credits.granted, [int(granted)], self.rng, self.stall)

    async def wqe_bursts(self, ctx):
        while True:
            burst = await take(ctx, self.dut.wqe_read.bursts, self.rng, self.stall)
            self.wqe_answers.append((self.cycle + self.wqe_delay(), burst))

    async def wqe_reads(self, ctx):
        while True:
            while not self.wqe_answers or self.wqe_answers[0][0] > self.cycle:
                await ctx.tick()
            _, burst = self.wqe_answers.popleft()
            first, octet = divmod(burst.address, RECV_WQE.size)
            assert octet == 0 and burst.beats % WQE_WORDS == WQE_WORDS - 1
            beats = []
            for slot in range(first, first + (burst.beats + 1) // WQE_WORDS):
                qpn, index = divmod(slot, 0x1000 // RECV_WQE.size)
                assert self.qps[qpn]["state"] in (QpState.RTR, QpState.RTS)
                ring = 1 << self.qps[qpn]["rq_log2"]
                posted = self.receives[qpn]
                assert len(posted) <= ring, "more receives than the ring holds"
                assert index < len(posted), "a read beyond the producer index"
                sge = posted[index]
                wqe = RECV_WQE.to_int(
                    sge0_addr=sge["addr"], sge0_length=sge["length"], sge0_lkey=sge["lkey"]
                )
                beats += [
                    {
                        "data": wqe >> 64 * beat & (1 << 64) - 1,
                        "last": 0,
                        "error": beat == sge.get("error", -1),
                    }
                    for beat in range(WQE_WORDS)
                ]
            beats[-1]["last"] = 1
            await put_stream(ctx, self.dut.wqe_read.beats, beats, self.rng, self.stall)

    async def completions(self, ctx):
        while True:
            port = self.dut.completions
            request = await take(ctx, port.requests, self.rng, self.stall)
            words = [
                await take(ctx, port.words, self.rng, self.stall) for _ in range(CQE.size // 8)
            ]
            cqe = CQE_LAYOUT.from_bits(sum(word << 64 * at for at, word in enumerate(words)))
            assert (cqe.time_low, cqe.time_high, cqe.phase) == (0, 0, 0)
            is_urgent = bool(cqe.flags & CqeFlag.SOLICITED) or cqe.status != Status.SUCCESS
            assert request.urgent == is_urgent
            completion = SimpleNamespace(cq=request.cq, cqe=cqe)
            self.reserved -= 1
            self.completed.append(completion)
            self.unwritten.append(self.cycle + 8 + self.rng.randrange(30))
            self.on_completion(completion)

    async def written_cqes(self, ctx):
        """CQEs reach memory, in order, some time after they were taken."""
        dut = self.dut
        while True:
            due = bool(self.unwritten) and self.unwritten[0] <= self.cycle
            ctx.set(dut.written, due)
            ctx.set(dut.unwritten, len(self.unwritten) + ctx.get(dut.completions.requests.valid))
            await ctx.tick()
            if due:
                self.unwritten.popleft()
                self.written += 1

    async def close_messages(self, ctx, target, row):
        """Returns when it is done, with the number of cycles that it took."""
        dut = self.dut
        start = self.cycle
        ctx.set(dut.close, {"active": 1, "target": target, "row": row})
        while not (await ctx.tick().sample(dut.close_done))[2]:
            pass
        ctx.set(dut.close.active, 0)
        cycles = self.cycle - start
        await ctx.tick()
        return cycles

    def event_requests(self, port):
        async def process(ctx):
            while True:
                await ctx.tick().repeat(1 + self.event_gap())
                request = await take(ctx, self.dut.event_requests[port])
                self.events.append((EventType(request.type), request.number))

        return process

    async def ring(self, ctx):
        """Post the receives."""
        doorbells = [
            {"qpn": qpn, "index": len(posted), "reset": 0} for qpn, posted in self.receives.items()
        ]
        await put_stream(ctx, self.dut.doorbells, doorbells)

    async def give(self, ctx, items):
        """Datagrams (fields, payload), each with its words; returns when all are taken."""
        for fields, octets in items:
            if octets:
                self.words += payload_words(octets, fields["payload_offset"], self.rng)
            await put_stream(ctx, self.dut.datagrams, [fields], self.rng, self.stall)

    async def feed_words(self, ctx):
        while True:
            while not self.words:
                await ctx.tick()
            await put_stream(ctx, self.dut.payload, [self.words.pop(0)], self.rng, self.stall)

    async def settle(self, ctx, open_messages=0):
        """Until only ``open_messages`` are left, for a while."""
        quiet = 0
        while quiet < 40:
            left = (await ctx.tick().sample(self.dut.open_messages))[2]
            quiet = quiet + 1 if left == open_messages and not self.words else 0

    def set_tick(self, ctx, tick):
        ctx.set(self.dut.time, tick % (1 << 37) << 10)

    def run(self, testbench, max_cycles=100_000):
        self.words = []
        self.unit.run(
            testbench,
            background=[
                self.tables,
                self.credits,
                self.wqe_bursts,
                self.wqe_reads,
                self.completions,
                self.written_cqes,
                self.feed_words,
                self.memory.serve,
                self.map_memory.serve,
                self.event_requests(0),
                self.event_requests(1),
                *self.background,
            ],
            max_cycles=max_cycles,
        )
