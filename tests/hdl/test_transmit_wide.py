"""Wide send rings: gathered and inline messages, IPv6, VLAN, refusals; Reads (section 7)."""

from itertools import product

from transmit_bench import DATA_SIZE, DATA_TO, KEY, LKEY, SEND, SEND_IMMEDIATE, WRITE, WRITE_RECORD
from turns_bench import PEER, PEER6, READ, TurnsBench

from uwarp.contract import Status, WqeFlag
from uwarp.wire import READ_REQUEST, Opcode, QueueNumber, ReadRequest, Segment

OPCODES = (WRITE, SEND, WRITE_RECORD, SEND_IMMEDIATE)


def wide_bench(seed, **options):
    bench = TurnsBench(seed, **options)
    bench.set_qp(0, sq_wide=1, sq_log2=5)
    return bench


async def send(bench, messages):
    """Post good messages, (opcode, spans, fields) each, and compare what comes of them."""
    expected, cqes, msn = [], [], 0
    for opcode, spans, fields in messages:
        payload = fields.get("inline")
        if payload is None:
            payload = bench.octets_of(spans)
            fields = {"num_sge": len(spans)} | fields
        fields = {"length": len(payload)} | fields
        wqe = bench.post_wide(0, opcode, spans, **fields)
        msn += opcode != WRITE
        expected += bench.frames_of(0, wqe, msn, payload)
        cqes.append(bench.success(0, wqe, msn))
        behind = len(cqes) - 30
        await bench.until(lambda n=behind: len(bench.completions) >= n)
    await bench.until(lambda: len(bench.completions) == len(cqes))
    bench.check_frames(bench.frames, expected)
    for got, cqe in zip(bench.completions, cqes, strict=True):
        bench.check_completion(got, 0, cqe)


def test_every_split():
    """All ways to gather up to 4 octets from up to 4 SGEs, empty ones included."""
    bench = wide_bench(100, stall=0.1)
    messages = []
    for count in range(1, 5):
        for lengths in product(range(5), repeat=count):
            if sum(lengths) <= 4 and lengths.count(0) < 3:
                spans = [(bench.rng.randrange(8192), length) for length in lengths]
                messages.append((OPCODES[len(messages) % 4], spans, {}))
    bench.run(lambda bench: send(bench, messages))


def test_gathered_segments():
    """Messages of many segments: cuts in SGEs, at their ends, several SGEs in one segment."""
    bench = wide_bench(200, stall=0.1)
    rng = bench.rng
    messages = []
    for number in range(12):
        sizes = [rng.choice((0, 1, 7, 64, 700, 1408, 1440, rng.randrange(3000))) for _ in range(4)]
        spans = [(rng.randrange(30_000), size) for size in sizes]
        fields = {"ipv6": PEER6 + number} if number % 3 == 1 else {}
        fields |= {"vlan": rng.getrandbits(16)} if number % 4 == 1 else {}
        messages.append((OPCODES[number % 4], spans[: rng.randint(1, 4)], fields))
    messages.append((WRITE_RECORD, [(1, 1408), (9, 1408), (5000, 1408)], {"remote_to": 640}))
    bench.run(lambda bench: send(bench, messages))


def test_inline():
    """0 to 48 octets of the WQE itself."""
    bench = wide_bench(300, stall=0.1)
    rng = bench.rng
    messages = []
    for length in range(49):
        fields = {"inline": rng.randbytes(length), "num_sge": 0}
        fields |= {"ipv6": rng.getrandbits(128)} if length % 3 == 1 else {}
        fields |= {"vlan": rng.getrandbits(16)} if length % 5 < 2 else {}
        messages.append((OPCODES[length % 4], (), fields))
    bench.run(lambda bench: send(bench, messages))


GROUP = 0x0100_5E00_0001
REFUSED = {
    "five SGEs": ({"num_sge": 5}, Status.LOC_QP_OP_ERR),
    "sum": ({"length": 301}, Status.LOC_QP_OP_ERR),
    "sum modulo 2^32": (
        {"sge1_length": 2**32 - 100, "sge2_length": 100, "length": 200},
        Status.LOC_QP_OP_ERR,
    ),
    "inline with SGEs": ({"inline": b"x" * 10, "length": 10}, Status.LOC_QP_OP_ERR),
    "inline too long": ({"inline": b"x" * 48, "length": 49, "num_sge": 0}, Status.LOC_QP_OP_ERR),
    "Read inline": (
        {"opcode": READ, "inline": b"x" * 8, "length": 8, "num_sge": 0},
        Status.LOC_QP_OP_ERR,
    ),
    "Read of two SGEs": ({"opcode": READ, "num_sge": 2, "length": 200}, Status.LOC_QP_OP_ERR),
    "Read of nothing": (
        {"opcode": READ, "num_sge": 1, "sge_length": 0, "length": 0},
        Status.LOC_QP_OP_ERR,
    ),
    "Read with immediate": (
        {"opcode": READ, "num_sge": 1, "length": 100, "flags": WqeFlag.IMMEDIATE},
        Status.LOC_QP_OP_ERR,
    ),
    "solicited Read": (
        {"opcode": READ, "num_sge": 1, "length": 100, "flags": WqeFlag.SOLICITED},
        Status.LOC_QP_OP_ERR,
    ),
    "Write to a group": ({"opcode": WRITE, "dest_mac": GROUP}, Status.LOC_QP_OP_ERR),
    "Write-Record to a group": ({"dest_mac": GROUP}, Status.LOC_QP_OP_ERR),
    "Read to a group": (
        {"opcode": READ, "num_sge": 1, "length": 100, "dest_mac": GROUP},
        Status.LOC_QP_OP_ERR,
    ),
    "granule and IPv6": (
        {"opcode": SEND, "granule_log2": 11, "ipv6": 1, "sge_length": 1231, "length": 1431},
        Status.LOC_LEN_ERR,
    ),
    "key of the second": ({"sge1_lkey": LKEY ^ 1}, Status.LOC_PROT_ERR),
    "third beyond the table": ({"sge2_lkey": 11 << 8 | KEY}, Status.LOC_PROT_ERR),
    "third below": ({"sge2_addr": DATA_TO - 1}, Status.LOC_PROT_ERR),
    "second above": ({"sge1_addr": DATA_TO + DATA_SIZE - 99}, Status.LOC_PROT_ERR),
    "first of another PD": ({"sge_lkey": 5 << 8 | KEY}, Status.LOC_PROT_ERR),
    "Read into what has no map": (
        {"opcode": READ, "num_sge": 1, "length": 100, "sge_lkey": 2 << 8 | KEY},
        Status.LOC_PROT_ERR,
    ),
    "Read into large granules": (
        {"opcode": READ, "num_sge": 1, "length": 100, "sge_lkey": 4 << 8 | KEY},
        Status.LOC_PROT_ERR,
    ),
    "Read into what may not be written": (
        {"opcode": READ, "num_sge": 1, "length": 100, "sge_lkey": 6 << 8 | KEY},
        Status.LOC_PROT_ERR,
    ),
}
GOOD = {
    "three SGEs": {},
    "Send to a group": {"opcode": SEND, "dest_mac": GROUP},
    "granule and IPv6 in one": {
        "opcode": SEND,
        "granule_log2": 11,
        "ipv6": 1,
        "sge_length": 1230,
        "length": 1430,
    },
    "an empty SGE of no region": {"num_sge": 4, "sge3_length": 0, "sge3_lkey": 0},
    "SGEs beyond are ignored": {"sge3_lkey": 0, "sge3_length": 77},
}


def test_refusals():
    bench = wide_bench(400, stall=0.1)
    bench.set_region(2)
    bench.set_region(4, mapped=1, access=63, granule_log2=7)
    bench.set_region(5, pd=8)
    bench.set_region(6, mapped=1, access=62, granule_log2=6)

    async def script(bench):
        cases = [*REFUSED.items(), *((name, (fields, None)) for name, fields in GOOD.items())]
        bench.rng.shuffle(cases)
        expected, cqes, msn = [], [], 0
        for number, (_, (fields, status)) in enumerate(cases):
            spans = [(1000 * number, 100), (40, 100), (9000 + number, 100)]
            fields = {"opcode": WRITE_RECORD, "num_sge": 3, "length": 300} | fields
            wqe = bench.post_wide(0, spans=spans, **fields)
            if status is None:
                msn += 1
                lengths = [wqe[f"{name}_length"] for name in ("sge", "sge1", "sge2")]
                spans = [(at, length) for (at, _), length in zip(spans, lengths, strict=True)]
                expected += bench.frames_of(0, wqe, msn, bench.octets_of(spans))
                cqes.append(bench.success(0, wqe, msn))
            else:
                cqes.append(bench.failure(0, wqe, status))
        await bench.until(lambda: len(bench.completions) == len(cqes))
        await bench.idle(60)
        bench.check_frames(bench.frames, expected)
        for (name, _), got, cqe in zip(cases, bench.completions, cqes, strict=True):
            print(name)
            bench.check_completion(got, 0, cqe)

    bench.run(script)


def test_narrow_rings_refuse_what_needs_an_extension():
    bench = TurnsBench(500, stall=0.1)
    bench.set_qp(0)

    async def script(bench):
        wqes = [
            bench.post(0, WRITE_RECORD, 0, 48, flags=WqeFlag.INLINE, num_sge=0),
            bench.post(0, WRITE_RECORD, 0, 48, flags=WqeFlag.IPV6),
            bench.post(0, WRITE_RECORD, 0, 48, num_sge=2),
        ]
        tagged = bench.post(0, SEND, 3, 40, flags=WqeFlag.SIGNALED | WqeFlag.VLAN, vlan=0xE123)
        await bench.until(lambda: len(bench.completions) == 4)
        for got, wqe in zip(bench.completions, wqes, strict=False):
            bench.check_completion(got, 0, bench.failure(0, wqe, Status.LOC_QP_OP_ERR))
        bench.check_frames(bench.frames, bench.frames_of(0, tagged, 1, bench.octets_of([(3, 40)])))

    bench.run(script)


def test_reads():
    """A request for each that has a tracker; NO_TRACKER and an MSN used up for one that has not."""
    bench = wide_bench(600, stall=0.1)
    bench.set_region(3, mapped=1, access=63, granule_log2=6)

    async def script(bench):
        expected, cqes, openings, msn = [], [], [], 0
        for number in range(12):
            size = bench.rng.choice((1, 5000, 100_000))
            fields = {"ipv6": PEER6} if number % 3 == 1 else {}
            fields |= {"flags": WqeFlag(0)} if number % 2 else {}
            bench.opens = number % 4 != 2
            wqe = bench.post_wide(0, READ, [(64, size)], num_sge=1, length=size, **fields)
            msn += 1
            source = wqe["dest_ipv6"] if "ipv6" in fields else PEER
            opening = {
                "qpn": 0,
                "msn": msn,
                "lkey": LKEY,
                "addr": wqe["sge_addr"],
                "mlen": size,
                "source_ip": source,
                "source_port": wqe["dest_port"],
                "wqe_index": wqe["index"],
            }
            openings.append(opening)
            request = ReadRequest(
                sink_stag=LKEY,
                sink_to=wqe["sge_addr"],
                size=size,
                source_stag=wqe["remote_stag"],
                source_to=wqe["remote_to"],
            )
            segment = Segment(
                opcode=Opcode.READ_REQUEST,
                payload=request.encode(),
                qn=QueueNumber.REQUEST,
                msn=msn,
                mlen=READ_REQUEST.size,
            )
            if bench.opens:
                expected.append(bench.frame_of(0, wqe, segment))
            else:
                cqes.append(bench.failure(0, wqe, Status.NO_TRACKER, msn))
            after = bench.post_wide(0, SEND, [(7, 9)], num_sge=1, length=9)
            msn += 1
            expected += bench.frames_of(0, after, msn, bench.octets_of([(7, 9)]))
            cqes.append(bench.success(0, after, msn))
            await bench.until(lambda n=len(cqes): len(bench.completions) == n)
        await bench.idle(60)
        bench.check_frames(bench.frames, expected)
        for got, cqe in zip(bench.completions, cqes, strict=True):
            bench.check_completion(got, 0, cqe)
        got = [{name: getattr(item, name) for name in openings[0]} for item in bench.openings]
        assert got == openings
        # The slot of a Read that is open is its tracker's now.
        reads = sum(number % 4 != 2 for number in range(12))
        assert bench.slots[1] == 1000 - len(cqes) - reads

    bench.run(script)
