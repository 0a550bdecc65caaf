"""The transmit path, section 7 of the device behaviour, in the surroundings of transmit_bench."""

from itertools import pairwise

import pytest
from transmit_bench import (
    DATA,
    DATA_SIZE,
    DATA_TO,
    HEADERS,
    IMMEDIATE,
    KEY,
    LKEY,
    RINGS,
    SEND,
    SEND_IMMEDIATE,
    SIGNALED,
    SOLICITED,
    TAGGED,
    WRITE,
    WRITE_RECORD,
    Bench,
    pieces,
)

from uwarp.contract import QpState, Status


def send_all(bench, messages):
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
    """0 to 70 octets by one opcode or another, and around 128, any alignment, the flags turning."""
    bench = Bench(1000, stall=0.2)
    bench.set_qp(0)
    messages = []
    for index, opcode in enumerate(HEADERS):
        for length in sorted({0, *range(index, 71, 4), *range(126, 131)}):
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


def test_sends_of_many_segments():
    """They end on multiples of the granule of the MO, whatever ``remote_to`` says; flags and the
    immediate go with each segment, L with the last one."""
    bench = Bench(2500, stall=0.1)
    bench.set_qp(0)
    messages = []
    for number, opcode in enumerate((SEND, SEND_IMMEDIATE) * 6):
        room = 1500 - 32 - HEADERS[opcode]
        granule_log2 = (0, 6, 8, 10)[number % 4]
        granule = 1 << (granule_log2 or 6)
        whole = room // granule * granule
        length = (room + 1, whole + room, whole + room + 1, 2 * whole + 5)[number // 3]
        fields = {
            "granule_log2": granule_log2,
            "remote_to": bench.rng.getrandbits(64),
            "flags": SIGNALED | FLAGS[opcode][number % len(FLAGS[opcode])],
        }
        messages.append((opcode, bench.rng.randrange(4096), length, fields))
    send_all(bench, messages)


@pytest.mark.parametrize(
    "path_mtu", [576, *(pytest.param(n, marks=pytest.mark.soak) for n in (1500, 9000))]
)
def test_path_mtu_and_granule(path_mtu):
    bench = Bench(3000 + path_mtu, stall=0.05, max_mtu=9000)
    bench.set_qp(0, path_mtu=path_mtu)
    messages = []
    for granule_log2 in sorted({6, path_mtu.bit_length() - 2, path_mtu.bit_length() - 1}):
        if 1 << granule_log2 > path_mtu - 62:
            continue
        length = path_mtu + bench.rng.randrange(2000)
        offset = bench.rng.randrange(4096)
        fields = {"granule_log2": granule_log2, "remote_to": bench.rng.getrandbits(64)}
        messages.append((bench.rng.choice(TAGGED), offset, length, fields))
        messages.append((SEND, offset + 1, length, fields))
    send_all(bench, messages)


def test_round_robin():
    """A long message does not hold back short ones; QPs take turns by datagram."""
    bench = Bench(4000, stall=0.05)
    lengths = {0: [20_000], 2: [1408 * 4, 10, 20], 3: [100] * 12, 6: [64, 3000, 64]}

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
        # While all four have work, none has two turns before another has had one; a QP whose
        # second WQE is still being fetched has none.
        for qpn in expected:
            mine = [place for place, port in enumerate(ports) if port == qpn]
            for before, after in pairwise(mine[2:]):
                between = ports[before + 1 : after]
                assert len(between) == len(set(between)), f"{between} in the turn of {qpn}"
        # The long one has less than half of the wire until the others are done.
        done = max(place for place, port in enumerate(ports) if port != 0)
        assert ports[:done].count(0) <= done / 2 + 1, f"{ports}"

    bench.run(script)


ERRORS = {
    "opcode": ({"opcode": 0x5}, Status.LOC_QP_OP_ERR),
    "opcode of a tagged answer": ({"opcode": 0xD}, Status.LOC_QP_OP_ERR),
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
    "operation first": ({"opcode": 2, "sge_lkey": 0}, Status.LOC_QP_OP_ERR),
    "granule too big for a Send": (
        {"opcode": SEND, "granule_log2": 11, "length": 1451, "sge_length": 1451, "sge_lkey": 0},
        Status.LOC_LEN_ERR,
    ),
    "granule too big for 0xE": (
        {"opcode": SEND_IMMEDIATE, "granule_log2": 16, "length": 1447, "sge_length": 1447},
        Status.LOC_LEN_ERR,
    ),
    "granule too big": (
        {"granule_log2": 11, "length": 1439, "sge_length": 1439},
        Status.LOC_LEN_ERR,
    ),
    "length of 2^31": (
        {"opcode": SEND, "granule_log2": 11, "length": 2**31, "sge_length": 2**31},
        Status.LOC_LEN_ERR,
    ),
    "Send longer than the region": (
        {"opcode": SEND, "length": 2**31, "sge_length": 2**31},
        Status.LOC_PROT_ERR,
    ),
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
    "big granule in one Send": {
        "opcode": SEND,
        "granule_log2": 16,
        "length": 1450,
        "sge_length": 1450,
    },
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


@pytest.mark.parametrize(("place", "more"), [(0, 0), (1500, 75), (6999, 0)])
def test_payload_read_error(place, more):
    """A failed read: its frame and later ones of the message stay; the rest is unharmed."""
    bench = Bench(7000 + place, stall=0.1)
    bench.set_qp(0, sq_log2=7, sq_addr=(RINGS + 0x8000) // 64)
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
        bench.check_completion(cqes[1], 0, bench.failure(0, bad, Status.GENERAL_ERR, 2))
        bench.check_completion(cqes[2], 0, bench.success(0, after, 3))
        # The slot serves again: with 75 there are more messages than slots.
        expected = []
        for number in range(more):
            wqe = bench.post(0, WRITE_RECORD, 9000, 30)
            expected += bench.reference(0, wqe, 4 + number)
        sent = len(bench.frames)
        await bench.until(lambda: len(bench.completions) == 6 + more)
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
    ("length", "count", "each"),
    [
        (1408, 1, 20),
        (64, 80, 1),
        pytest.param(1, 80, 1, marks=pytest.mark.soak),
        pytest.param(300, 30, 1, marks=pytest.mark.soak),
    ],
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
    """From the doorbell to the first beat of a 64-octet Write-Record: 48 cycles beyond what its two
    reads of memory take, each from its burst to its last word."""
    bench = Bench(9900, latency=(0, 0))
    bench.set_qp(0)

    async def script(bench):
        start = bench.now
        bench.post(0, WRITE_RECORD, 0, 64)
        await bench.until(lambda: len(bench.frames) == 1)
        cycles = bench.frame_times[0][0] - start
        memory = bench.wqe_reads.cycles + bench.payload_reads.cycles
        print(f"latency {cycles}, of it memory {memory}")
        assert cycles - memory <= 48, f"{cycles} cycles, of it memory {memory}"
        assert cycles <= 62, f"{cycles} cycles"

    bench.run(script)
