"""Scenarios of what is sent: lengths, alignments, path MTUs, errors, several queue pairs."""

from uwarp.contract import Counter, Register, Status, Table, WqeFlag
from uwarp.wire import Opcode

from .receiving import impaired, receive_wqe
from .segment_layer import crc_is_right, dissect
from .stage import MEMORY_BASE, MEMORY_SIZE, PD, PEER_IP, PEER_MAC, Region, Stage

__all__ = [
    "both_directions",
    "check_with_scapy",
    "lengths_and_alignments",
    "send_errors",
    "several_senders",
    "telling_lengths",
]

_RING = 60


def request(stage: Stage, opcode: Opcode, length: int, **fields: int) -> dict[str, int]:
    """A send WQE of octets at a random place in the source region."""
    rng, source = stage.rng, stage.source
    given = {
        "opcode": opcode,
        "flags": WqeFlag.SIGNALED,
        "granule_log2": rng.choice((0, 6, 7, 9)),
        "num_sge": 1,
        "length": length,
        "remote_to": rng.choice((rng.getrandbits(20), rng.getrandbits(63))),
        "remote_stag": rng.getrandbits(32),
        "dest_ip": PEER_IP,
        "dest_port": rng.getrandbits(16),
        "dest_mac": PEER_MAC,
        "traffic_class": rng.getrandbits(8),
        "hop_limit": rng.getrandbits(8),
        "sge_addr": source.base_to + rng.randint(0, source.length - length),
        "sge_length": length,
        "sge_lkey": source.stag,
    }
    return given | fields


def check_with_scapy(frames: list[bytes]) -> None:
    """Checksums must be those of scapy, the CRC32c right by another implementation."""
    for frame in frames:
        packet = dissect(frame)
        segment = packet["UDP"].payload
        assert crc_is_right(segment), f"CRC32c of {frame.hex()}"
        for layer in ("IP", "UDP") if "IP" in packet else ("UDP",):
            stated = packet[layer].chksum
            packet[layer].chksum = None
            built = type(packet)(bytes(packet))[layer].chksum
            assert stated == built, (
                f"{layer} checksum {stated:#06x}, not {built:#06x}: {frame.hex()}"
            )


async def _run(stage: Stage, work: list[tuple[int, dict[str, int]]]) -> None:
    """Post to QPs what fits their rings, until all is done."""
    for start in range(0, len(work), _RING):
        batch = work[start : start + _RING]
        for qpn in sorted({qpn for qpn, _ in batch}):
            await stage.post_send(qpn, *(fields for owner, fields in batch if owner == qpn))
        await stage.check()


def telling_lengths(short: int = 260) -> list[int]:
    """Lengths of messages up to ``short``, beside where they are cut, and of more than the largest
    MTU takes."""
    return [*range(short), *range(1390, 1450), 2815, 2816, 2817, 5000, 8895, 8896, 8897, 20000]


async def lengths_and_alignments(stage: Stage, lengths: list[int]) -> None:
    """Each length with some opcode from any alignment, signalled or not, on either path MTU."""
    rng = stage.rng
    work = []
    for length in rng.sample(lengths, len(lengths)):
        qpn = rng.choice((5, 6))
        opcodes = [Opcode.WRITE, Opcode.WRITE_RECORD]
        if length <= 1446:
            opcodes += [Opcode.SEND, Opcode.SEND_IMMEDIATE]
        opcode = rng.choice(opcodes)
        flags = rng.choice((0, WqeFlag.SIGNALED))
        if opcode is not Opcode.WRITE:
            flags |= rng.choice((0, WqeFlag.SOLICITED))
        if opcode in (Opcode.WRITE_RECORD, Opcode.SEND_IMMEDIATE):
            flags |= rng.choice((0, WqeFlag.IMMEDIATE))
        fields = {"flags": flags, "immediate": rng.getrandbits(32)}
        if not length and rng.random() < 0.5:
            fields |= {"num_sge": 0, "sge_length": 99}
        work.append((qpn, request(stage, opcode, length, **fields)))
    await _run(stage, work)
    assert (await stage.counters(stage.model))[Counter.TX_FRAMES] >= len(lengths)
    check_with_scapy(stage.nic.sent)


async def several_senders(stage: Stage) -> None:
    """Long and short messages of two queue pairs at once, and a full completion queue between."""
    rng = stage.rng
    for length in (30000, 4000, 1):
        work = [(5, request(stage, Opcode.WRITE_RECORD, length, flags=0))]
        work += [(6, request(stage, Opcode.SEND, rng.randint(0, 1400), flags=0)) for _ in range(10)]
        await _run(stage, work)
    # CQ 5 holds 64: the 65th waits until some are consumed, which `check` does.
    await stage.post_send(5, *(request(stage, Opcode.WRITE, 8) for _ in range(64)))
    await stage.settle()
    await stage.post_send(5, *(request(stage, Opcode.WRITE, 8) for _ in range(3)))
    completions = (await stage.check())[5]
    assert len(completions) == 64
    completions = (await stage.check())[5]
    assert len(completions) == 3
    check_with_scapy(stage.nic.sent)


async def both_directions(stage: Stage, rounds: int) -> None:
    """Sends of two queue pairs while all kinds of datagram arrive, some spoilt, lost or twice."""
    rng = stage.rng
    for _ in range(rounds):
        for qpn in (5, 6):
            opcodes = [rng.choice((Opcode.WRITE, Opcode.WRITE_RECORD)) for _ in range(8)]
            work = [request(stage, opcode, rng.randint(0, 4000)) for opcode in opcodes]
            await stage.post_send(qpn, *work)
        receives = [receive_wqe(stage.local, 256 * slot, 256) for slot in range(8)]
        await stage.post_receive(1, *receives)
        segments = [stage.send(rng.randint(0, 256)) for _ in range(8)]
        segments += [
            stage.write(stage.plain, rng.randrange(8000), rng.randint(0, 1000)) for _ in range(8)
        ]
        for slot in range(4):
            place = 8192 * slot + rng.randrange(3000)
            segments += stage.record(stage.mapped, place, rng.randint(100, 4000))
        first = impaired(rng, segments, 0.2, 0.2)
        frames = []
        for segment in first:
            frame = bytearray(stage.frame(segment))
            if rng.random() < 0.1:
                frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
            frames.append(bytes(frame))
        await stage.deliver(frames)
        await stage.check()
        await stage.deliver([stage.frame(segment) for segment in segments])
        await stage.check()
        assert await stage.read32(Register.OPEN_MESSAGES.address) == 0
    check_with_scapy(stage.nic.sent)


async def send_errors(stage: Stage) -> None:
    """Each check of a WQE fails once, good ones between; a payload that cannot be read."""
    source, end = stage.source, stage.source.base_to + stage.source.length
    beyond = MEMORY_BASE + MEMORY_SIZE
    broken = Region(8 << 8 | 1, 0, 8192, beyond - 4096)
    row = {"pd": PD, "key": 1, "length": broken.length, "dma_addr": broken.dma}
    await stage.write_row(Table.REGION, 8, valid=1, **row)
    record, send = Opcode.WRITE_RECORD, Opcode.SEND
    solicited, immediate = WqeFlag.SOLICITED, WqeFlag.IMMEDIATE

    def bad(status: Status, opcode: int, length: int, **fields: int):
        return status, request(stage, opcode, length, flags=fields.pop("flags", 0), **fields)

    operation, too_long, protection = Status.LOC_QP_OP_ERR, Status.LOC_LEN_ERR, Status.LOC_PROT_ERR
    cases = [
        *(bad(operation, opcode, 8) for opcode in (2, 5, 7, 8, 0xD, 0xF, 0x10, 0xFC)),
        bad(operation, record, 8, num_sge=2),
        bad(operation, record, 8, num_sge=0),
        bad(operation, record, 8, sge_length=9),
        *(bad(operation, record, 8, granule_log2=log2) for log2 in (1, 5, 17, 255)),
        bad(operation, Opcode.WRITE, 8, flags=immediate),
        bad(operation, Opcode.WRITE, 8, flags=solicited),
        bad(operation, send, 8, flags=immediate),
        bad(too_long, send, 1500 - 28 - 18 - 4 + 1, granule_log2=11),
        bad(too_long, Opcode.SEND_IMMEDIATE, 1500 - 28 - 22 - 4 + 1, granule_log2=16),
        bad(too_long, record, 1500, granule_log2=11),
        bad(protection, Opcode.READ_REQUEST, 8),
        bad(protection, record, 8, sge_lkey=source.stag ^ 1),
        bad(protection, record, 8, sge_lkey=9 << 8),
        bad(protection, record, 8, sge_lkey=200 << 8),
        bad(protection, record, 8, sge_lkey=stage.foreign.stag, sge_addr=0),
        bad(protection, record, 8, sge_addr=source.base_to - 1),
        bad(protection, record, 8, sge_addr=end - 7),
        bad(protection, record, 8, sge_addr=(1 << 64) - 4),
        bad(Status.GENERAL_ERR, record, 8, sge_lkey=broken.stag, sge_addr=4096),
        # Of one segment: of several, some may be read that are not sent.
        bad(Status.GENERAL_ERR, record, 1400, sge_lkey=broken.stag, sge_addr=3000, granule_log2=6),
        bad(Status.SUCCESS, record, 8, sge_addr=end - 8, flags=WqeFlag.SIGNALED),
        bad(Status.SUCCESS, record, 0, sge_lkey=0xFFFF_FFFF, flags=WqeFlag.SIGNALED),
        bad(Status.SUCCESS, send, 1450, flags=WqeFlag.SIGNALED, granule_log2=11),
        bad(Status.SUCCESS, send, 1451, flags=WqeFlag.SIGNALED, granule_log2=0),
    ]
    stage.rng.shuffle(cases)
    good = request(stage, record, 70, flags=0)
    for start in range(0, len(cases), 12):
        batch = cases[start : start + 12]
        await stage.post_send(5, *(item for _, bad_one in batch for item in (bad_one, good)))
        completions = (await stage.check())[5]
        assert [entry.status for entry in completions] == [status for status, _ in batch]
    check_with_scapy(stage.nic.sent)
