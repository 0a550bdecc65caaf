"""Scenarios of RDMA Read: requests of peers answered, own ones placed, in part, or never."""

from dataclasses import replace

from uwarp.contract import (
    TICK_CYCLES,
    Access,
    Counter,
    QpState,
    Register,
    Status,
    Table,
    WqeFlag,
)
from uwarp.wire import Opcode, QueueNumber, ReadRequest, Segment, segments

from .receiving import impaired
from .sending import check_with_scapy, request
from .stage import ANY_OPCODE, IPV6, LONG, PD, PEER_IPV6, SHORT, Region, Stage

__all__ = [
    "Requester",
    "answered",
    "read_busy",
    "read_request",
    "read_requests_refused",
    "readable",
    "reads",
    "reads_in_silence",
]

PEER_PORT = 6000


async def readable(stage: Stage) -> Region:
    """A region that peers may read, and QP 5 open to what comes for it."""
    await stage.open_port(stage.port(5), 5)
    return await stage.register(9, 8192, Access.REMOTE_READ, base_to=0x9000_0000_0007, skew=3)


def read_request(stage: Stage, region: Region, offset: int, octets: int, **fields: int) -> Segment:
    """A peer's request for octets of a region, into its own region 0x1234."""
    given = {
        "sink_stag": 0x0012_3400 | stage.rng.getrandbits(8),
        "sink_to": stage.rng.getrandbits(40),
        "size": octets,
        "source_stag": region.stag,
        "source_to": region.base_to + offset,
    }
    payload = ReadRequest(**given | {k: v for k, v in fields.items() if k in given}).encode()
    header = {"qn": QueueNumber.REQUEST, "msn": stage.next_msn(), "mlen": len(payload)}
    header |= {k: v for k, v in fields.items() if k not in given}
    return Segment(opcode=Opcode.READ_REQUEST, payload=payload, **header)


async def answered(stage: Stage, count: int) -> None:
    """Requests for any octets, some twice, over IPv4 and IPv6, while QP 5 sends as well."""
    rng = stage.rng
    region = await readable(stage)
    stage.poke(region.dma, rng.randbytes(region.length))
    for _ in range(count):
        frames = []
        for _ in range(rng.randint(1, 4)):
            octets = rng.choice((1, rng.randint(1, 200), rng.randint(1, 5000)))
            segment = read_request(stage, region, rng.randint(0, region.length - octets), octets)
            fields = {}
            if rng.random() < 0.3:
                fields = {"ip_version": 6, "source_ip": PEER_IPV6, "dest_ip": IPV6}
            frames += [stage.frame(segment, 5, **fields)] * rng.choice((1, 1, 2))
        await stage.deliver(frames)
        await stage.post_send(5, request(stage, Opcode.WRITE_RECORD, rng.randint(0, 3000)))
        await stage.check()
    counters = await stage.counters(stage.model)
    assert counters[Counter.RX_PLACED] >= count and counters[Counter.TX_FRAMES] > count
    check_with_scapy(stage.nic.sent)


async def read_requests_refused(stage: Stage) -> None:
    """P27, P29: each check of a Read Request fails once; then a good one is answered."""
    region = await readable(stage)
    end = region.base_to + region.length
    top = await stage.register(10, 4096, Access.REMOTE_READ, base_to=(1 << 64) - 4096)

    def refused(counter: Counter, qpn: int = 5, of: Region = region, **fields: int):
        return counter, stage.frame(read_request(stage, of, 0, 16, **fields), qpn)

    longer = read_request(stage, region, 0, 8)
    longer = replace(longer, payload=longer.payload + b"!")
    cases = [
        refused(Counter.DROP_QP_STATE, 3),
        refused(Counter.DROP_QP_STATE, 4),
        refused(Counter.DROP_UNTAGGED_QN, qn=QueueNumber.SEND),
        refused(Counter.DROP_UNTAGGED_QN, qn=1 << 31 | 1),
        refused(Counter.DROP_MESSAGE_LENGTH, mo=1),
        refused(Counter.DROP_MESSAGE_LENGTH, size=0),
        (Counter.DROP_MESSAGE_LENGTH, stage.frame(longer, 5)),
        refused(Counter.DROP_STAG_INVALID, source_stag=11 << 8),
        refused(Counter.DROP_STAG_INVALID, source_stag=1 << 31),
        refused(Counter.DROP_STAG_KEY, source_stag=region.stag ^ 1),
        refused(Counter.DROP_STAG_PD, of=stage.foreign),
        refused(Counter.DROP_STAG_ACCESS, of=stage.plain),
        refused(Counter.DROP_STAG_ACCESS, of=stage.local),
        refused(Counter.DROP_TO_WRAP, of=top, source_to=(1 << 64) - 15),
        refused(Counter.DROP_BOUNDS, source_to=region.base_to - 1),
        refused(Counter.DROP_BOUNDS, source_to=end - 15),
        refused(Counter.DROP_BOUNDS, size=0xFFFF_FFFF),
        refused(Counter.RX_PLACED),
        refused(Counter.RX_PLACED, source_to=end - 16),
    ]
    for counter, frame in cases:
        before = (await stage.counters(stage.model))[counter]
        await stage.deliver([frame])
        await stage.check()
        after = (await stage.counters(stage.model))[counter]
        assert after == before + 1, f"not in {counter.name}"
    assert len(stage.nic.sent) == 2


async def read_busy(stage: Stage, region: Region) -> None:
    """As many requests as can wait, for a QP whose bucket is empty; then one too many.

    One of them has been answered before: it emptied the bucket.
    """
    row = {"pd": PD, "timeout": LONG, "opcodes": ANY_OPCODE, "path_mtu": 1500, "recv_cq": 1}
    row |= {"send_cq": 5, "udp_port": stage.port(7), "send_rate": 1}
    await stage.create_qp(7, state=QpState.RTS, **row)
    await stage.open_port(stage.port(7), 7)
    requests = [read_request(stage, region, n, 1 + n) for n in range(stage.parameters.n_read + 3)]
    before = await stage.counters(stage.model)
    await stage.deliver([stage.frame(requests[0], 7)])
    await stage.check()
    await stage.deliver([stage.frame(request, 7) for request in requests[1:]])
    await stage.check()
    after = await stage.counters(stage.model)
    assert after[Counter.DROP_READ_BUSY] == before[Counter.DROP_READ_BUSY] + 2
    assert after[Counter.TX_FRAMES] == before[Counter.TX_FRAMES] + 1
    # A QP that is reset has none to send, and there is room for others.
    await stage.write_row(Table.QP, 7, state=QpState.RESET, **row)
    await stage.wait(2000)  # each of them is taken up once more, to be dropped
    await stage.deliver([stage.frame(read_request(stage, region, 7, 99), 5)])
    await stage.check()
    assert (await stage.counters(stage.model))[Counter.RX_PLACED] > after[Counter.RX_PLACED]


class Requester:
    """Reads of one queue pair, and the responder that answers them."""

    def __init__(self, stage: Stage, qpn: int) -> None:
        self._stage = stage
        self._qpn = qpn
        self._msn = 0

    def post(self, offset: int, octets: int, **fields: int) -> tuple[dict[str, int], list[Segment]]:
        """A Read into the mapped region: its WQE, and the segments of its answer."""
        stage, sink = self._stage, self._stage.mapped
        self._msn += 1
        to = sink.base_to + offset
        work = request(
            stage,
            Opcode.READ_REQUEST,
            octets,
            sge_addr=to,
            sge_lkey=sink.stag,
            dest_port=PEER_PORT,
            flags=stage.rng.choice((0, WqeFlag.SIGNALED)),
        )
        content = stage.rng.randbytes(octets)
        answer = [
            Segment(
                opcode=Opcode.READ_RESPONSE_RECORD,
                stag=sink.stag,
                to=to + mo,
                msn=self._msn,
                mo=mo,
                mlen=octets,
                last=mo + length == octets,
                payload=content[mo : mo + length],
            )
            for mo, length in segments(Opcode.WRITE_RECORD, octets, 1500, to=to)
        ]
        return work | fields, answer

    def frame(self, segment: Segment, **fields: int) -> bytes:
        return self._stage.frame(segment, self._qpn, **{"source_port": PEER_PORT} | fields)


async def reads(stage: Stage, rounds: int) -> None:
    """P20, P21: answers in any order, twice, late, contradicting; beside Write-Records."""
    rng = stage.rng
    await readable(stage)
    reader = Requester(stage, 5)
    done = 0
    for _ in range(rounds):
        count = rng.randint(1, 4)
        works, answers = [], []
        for place in rng.sample(range(12), count):
            octets = rng.choice((1, rng.randint(1, 300), rng.randint(1, 8000)))
            work, answer = reader.post(8192 * place + rng.randrange(192), octets)
            works.append(work)
            answers += answer
        await stage.post_send(5, *works)
        await stage.check()
        frames = [reader.frame(item) for item in impaired(rng, answers, 0.1, 0.2)]
        astray = rng.choice(answers)
        wrong = {"stag": astray.stag ^ 1, "to": astray.to + 64, "mlen": astray.mlen + 1}
        for name in rng.sample(list(wrong), rng.randint(0, 2)):
            frames.insert(
                rng.randint(0, len(frames)),
                reader.frame(replace(astray, **{name: wrong[name]})),
            )
        frames.insert(0, reader.frame(astray, source_port=PEER_PORT + 1))
        frames += [stage.frame(item) for item in stage.record(stage.mapped, 120 << 10, 3000)]
        await stage.deliver(frames)
        await stage.check()
        await stage.deliver([reader.frame(item) for item in answers] * 2)
        completions = (await stage.check())[5]
        done += len(completions)
        assert await stage.read32(Register.OPEN_MESSAGES.address) == 0
    counters = await stage.counters(stage.model)
    assert done and counters[Counter.DROP_LATE]
    if rounds >= 10:  # in fewer, none may have met an open message
        assert counters[Counter.DROP_RECORD_MISMATCH]


async def reads_in_silence(stage: Stage) -> None:
    """P23: a Read without answer, or with part of one, times out; an overlap closes one."""
    await readable(stage)
    reader = Requester(stage, 2)
    works, answers = zip(*(reader.post(8192 * place, 5000) for place in range(3)), strict=True)
    await stage.post_send(2, *works)
    await stage.check()
    await stage.deliver([reader.frame(answers[0][1]), reader.frame(answers[1][-1])])
    await stage.check()
    work, _ = reader.post(8192 * 2 + 4000, 5000)
    await stage.post_send(2, work)
    completions = (await stage.check())[4]
    assert [entry.status for entry in completions] == [Status.PARTIAL]
    assert completions[0].valid == 0
    for _ in range(SHORT + 2):
        await stage.wait(TICK_CYCLES)
    completions = (await stage.check())[4]
    assert [entry.status for entry in completions] == [Status.PARTIAL] * 3
    assert sorted(entry.valid for entry in completions)[0] == 0
    await stage.deliver([reader.frame(item) for answer in answers for item in answer])
    await stage.check()
    counters = await stage.counters(stage.model)
    assert counters[Counter.DROP_LATE] == sum(len(answer) for answer in answers)
    check_with_scapy(stage.nic.sent)
