"""Scenarios of wide send rings: SGEs gathered, inline data, IPv6 destinations, VLAN tags."""

from uwarp.contract import INLINE_OCTETS, MAX_SGE, QpState, Status, WqeFlag
from uwarp.wire import Opcode

from .sending import check_with_scapy, request
from .stage import ANY_OPCODE, LONG, PD, PEER_IPV6, PEER_MAC, Stage

__all__ = ["WIDE_QP", "create_wide", "gather_errors", "gathered", "wide_request"]

WIDE_QP, WIDE_CQ = 7, 7
_BATCH = 24
GROUP_MAC = 0x01_00_5E_01_02_03


async def create_wide(stage: Stage) -> None:
    """The queue pair with a wide send ring."""
    await stage.create_cq(WIDE_CQ, 6)
    await stage.create_qp(
        WIDE_QP,
        sq_wide=1,
        state=QpState.RTS,
        pd=PD,
        udp_port=stage.port(WIDE_QP),
        path_mtu=1500,
        send_cq=WIDE_CQ,
        recv_cq=1,
        timeout=LONG,
        opcodes=ANY_OPCODE,
    )


def wide_request(stage: Stage, opcode: Opcode, *lengths: int, **fields: int) -> dict[str, int]:
    """A WQE that gathers pieces of these lengths from anywhere in the source region."""
    rng, source = stage.rng, stage.source
    given = request(stage, opcode, 0) | {"num_sge": len(lengths), "length": sum(lengths)}
    for index, length in enumerate(lengths):
        name = f"sge{index}" if index else "sge"
        given |= {
            f"{name}_addr": source.base_to + rng.randint(0, source.length - length),
            f"{name}_length": length,
            f"{name}_lkey": source.stag if length else rng.getrandbits(32),
        }
    return given | fields


def _destination(stage: Stage) -> dict[str, int]:
    """IPv4 or IPv6, with or without a tag: flags and fields."""
    rng = stage.rng
    fields: dict[str, int] = {"flags": WqeFlag.SIGNALED}
    if rng.random() < 0.5:
        fields["flags"] |= WqeFlag.IPV6
        fields["dest_ipv6"] = rng.choice((PEER_IPV6, rng.getrandbits(128)))
    if rng.random() < 0.4:
        fields["flags"] |= WqeFlag.VLAN
        fields["vlan"] = rng.getrandbits(16)
    return fields


def _splits(length: int, pieces: int) -> list[tuple[int, ...]]:
    """Every way to cut a message into so many pieces, empty ones among them."""
    if pieces == 1:
        return [(length,)]
    return [(n, *rest) for n in range(length + 1) for rest in _splits(length - n, pieces - 1)]


async def gathered(stage: Stage, count: int) -> None:
    """Every split of short messages, ``count`` random ones, and every length inline."""
    rng = stage.rng
    await create_wide(stage)
    opcodes = (Opcode.WRITE, Opcode.SEND, Opcode.WRITE_RECORD, Opcode.SEND_IMMEDIATE)
    work = []
    splits = [split for n in (1, 3, 9) for split in _splits(n, 3)] + _splits(2, 4) + _splits(0, 4)
    for split in splits:
        work.append(wide_request(stage, rng.choice(opcodes), *split, **_destination(stage)))
    for _ in range(count):
        most = rng.choice((10, 100, 1500, 4000))
        lengths = [rng.randint(0, most) for _ in range(rng.randint(1, MAX_SGE))]
        opcode = rng.choice(opcodes)
        granule = rng.choice((0, 6, 8))
        fields = {"granule_log2": granule} | _destination(stage)
        work.append(wide_request(stage, opcode, *lengths, **fields))
    for length in range(INLINE_OCTETS + 1):
        fields = _destination(stage)
        fields["flags"] |= WqeFlag.INLINE
        fields |= {"inline": rng.randbytes(length), "num_sge": 0, "length": length}
        work.append(request(stage, rng.choice(opcodes), 0) | fields)
    rng.shuffle(work)
    for start in range(0, len(work), _BATCH):
        await stage.post_send(WIDE_QP, *work[start : start + _BATCH])
        completions = (await stage.check())[WIDE_CQ]
        assert [entry.status for entry in completions] == [Status.SUCCESS] * len(completions)
    check_with_scapy(stage.nic.sent)


async def gather_errors(stage: Stage) -> None:
    """P38, P39: each check of a wide WQE fails once, good ones between."""
    await create_wide(stage)
    operation, protection = Status.LOC_QP_OP_ERR, Status.LOC_PROT_ERR
    record, source = Opcode.WRITE_RECORD, stage.source
    inline, signaled = WqeFlag.INLINE | WqeFlag.SIGNALED, WqeFlag.SIGNALED
    end = source.base_to + source.length
    longest = 0xFFFF_FFFF

    def wide(*lengths: int, **fields: int) -> dict[str, int]:
        return wide_request(stage, record, *lengths, **fields)

    cases = [
        (operation, wide(1, 1, 1, 1, num_sge=5)),
        (operation, wide(1, 1, 1, 1, num_sge=255)),
        (operation, wide(1, 2, 3, length=7)),
        (operation, wide(1, 2, 3, num_sge=2)),
        (operation, wide(1, 2, sge1_length=longest, length=0)),
        (protection, wide(8, 0, sge_length=longest, length=longest)),
        (operation, wide(3, flags=inline)),
        (operation, wide(flags=inline, length=INLINE_OCTETS + 1)),
        *(
            (protection, wide(5, 6, 7, 8, **{f"sge{index}_lkey": source.stag ^ 1}))
            for index in (1, 2, 3)
        ),
        *((protection, wide(5, 6, 7, 8, **{f"sge{index}_addr": end - 4})) for index in (1, 2, 3)),
        (protection, wide(5, 6, sge1_lkey=stage.foreign.stag, sge1_addr=0)),
        (Status.SUCCESS, wide(5, 6, 7, num_sge=2, length=11, flags=signaled)),
        *(
            (operation, wide_request(stage, opcode, 8, dest_mac=GROUP_MAC))
            for opcode in (Opcode.WRITE, record)
        ),
        (Status.SUCCESS, wide_request(stage, Opcode.SEND, 8, 9, dest_mac=GROUP_MAC)),
    ]
    stage.rng.shuffle(cases)
    good = wide(30, 40, flags=0)
    for start in range(0, len(cases), 8):
        batch = cases[start : start + 8]
        await stage.post_send(WIDE_QP, *(item for _, bad in batch for item in (bad, good)))
        completions = (await stage.check())[WIDE_CQ]
        assert [entry.status for entry in completions] == [status for status, _ in batch]
    narrow = [
        request(stage, record, 8, flags=flag | signaled) for flag in (WqeFlag.IPV6, WqeFlag.INLINE)
    ]
    narrow.append(request(stage, record, 8, num_sge=2))
    narrow.append(request(stage, record, 8, dest_mac=PEER_MAC, flags=signaled | WqeFlag.VLAN))
    await stage.post_send(5, *narrow)
    completions = (await stage.check())[5]
    assert [entry.status for entry in completions] == [operation] * 3 + [Status.SUCCESS]
    assert stage.nic.sent[-1][12:14] == b"\x81\x00"
    check_with_scapy(stage.nic.sent)
