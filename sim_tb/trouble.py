"""Scenarios of what the host is told: events, counters of one moment, closing, memory that fails,
interrupts held back."""

from uwarp.contract import (
    TICK_CYCLES,
    Access,
    CloseTarget,
    Counter,
    CqeFlag,
    EventType,
    QpState,
    Register,
    Status,
    Table,
)
from uwarp.wire import Opcode

from .receiving import receive_wqe
from .sending import request
from .stage import BENCH, LONG, PD, Stage

__all__ = ["closing", "event_ring", "failing_memory", "moderation", "snapshot"]


async def event_ring(stage: Stage) -> None:
    """P24: each full CQ is told of once until its next doorbell; ring full, wrap, a fresh ring."""

    async def one_message() -> None:
        (segment,) = stage.record(stage.plain, 0, 10)
        await stage.deliver([stage.frame(segment)])

    async def expect(events: int, lost: int) -> None:
        await stage.check()
        counters = await stage.counters(stage.model)
        told = counters[Counter.EVENTS], counters[Counter.EVENTS_LOST]
        assert told == (events, lost), told

    await stage.create_cq(1, 1)
    for _ in range(4):
        await one_message()
    await expect(0, 1)  # no ring yet; told of once
    await stage.write_register(Register.IRQ_ENABLE, 1)
    await stage.create_event_ring(1)
    for told in range(1, 4):
        if told == 3:
            await stage.write_register(Register.EVENT_CONSUMER, 1)
        for _ in range(3):
            await one_message()
        await expect(told, 1)
        await stage.write_register(Register.EVENT_STATUS, 1)
    for _ in range(3):
        await one_message()
    await expect(3, 2)
    await stage.create_event_ring(2)
    for _ in range(3):
        await one_message()
    await expect(4, 2)


async def snapshot(stage: Stage) -> None:
    """Counters of one moment: nothing between two frames, however long the reading takes."""

    async def read() -> dict[Counter, int]:
        return {
            counter: await stage.read32(Register.SNAPSHOT_LOW.at(counter))
            | await stage.read32(Register.SNAPSHOT_HIGH.at(counter)) << 32
            for counter in Counter
        }

    stage.snapshots = False
    assert not any((await read()).values())
    frames = [stage.frame(stage.write(stage.plain, 0, 40)) for _ in range(60)]
    await stage.deliver(frames[:30])
    await stage.check()
    await stage.write_register(Register.COUNTERS_SNAPSHOT, 1)
    await stage.deliver(frames[30:])
    found = await read()
    assert found[Counter.RX_FRAMES] == found[Counter.RX_PLACED] == 30
    await stage.check()
    await stage.write_register(Register.COUNTERS_SNAPSHOT, 1)
    assert (await read())[Counter.RX_PLACED] == 60
    # In the midst of frames no event is lost or counted twice.
    for frame in frames * 2:
        stage.receive(frame)
        await stage.write_register(Register.COUNTERS_SNAPSHOT, 1)
    await stage.check()


async def closing(stage: Stage) -> None:
    """P32: the open messages of a QP, or of a region, close at once; nothing comes after."""
    records = [stage.record(stage.mapped, 5000 * slot, 4000) for slot in range(2)]
    other = stage.record(stage.coarse, 0, 3000, path_mtu=62 + 1024, granule=256)
    await stage.post_receive(2, receive_wqe(stage.mapped, 0x8000, 4000))
    sent = stage.long_send(4000)
    opened = [
        stage.frame(records[0][1]),
        stage.frame(records[1][0], 2),
        stage.frame(other[0]),
        stage.frame(sent[2], 2),
    ]
    await stage.deliver(opened)
    await stage.nic.delivered()  # on their way through the pipeline, perhaps
    await stage.close_messages(CloseTarget.QP, 2)
    completions = await stage.check()
    assert [entry.status for entry in completions[3]] == [Status.PARTIAL] * 2
    assert not completions[1]
    await stage.close_messages(CloseTarget.REGION, stage.coarse.stag >> 8)
    completions = await stage.check()
    assert [entry.status for entry in completions[1]] == [Status.PARTIAL]
    for target, row in ((CloseTarget.QP, BENCH.n_qp), (CloseTarget.REGION, BENCH.n_region), (9, 1)):
        await stage.close_messages(target, row)
    assert await stage.read32(Register.OPEN_MESSAGES.address) == 1
    late = [stage.frame(item, 2) for item in (*records[1], *sent)]
    await stage.deliver([*late, *(stage.frame(item) for item in records[0])])
    completions = await stage.check()
    assert [entry.status for entry in completions[1]] == [Status.SUCCESS]


async def failing_memory(stage: Stage) -> None:
    """P33: error answers to writes of payload, map and CQE, and to reads; others go on."""
    await stage.create_event_ring(5)
    nowhere = 0x66 << 40
    write = Access.LOCAL_WRITE | Access.REMOTE_WRITE
    hole = await stage.register(8, 8192, write, base_to=0x9000, at=nowhere)
    mapless = await stage.register(
        9, 8192, write, base_to=0x20000, map_base=2048, map_at=nowhere + 0x10000
    )

    async def revive(qpn: int) -> None:
        row = {"pd": PD, "opcodes": 0xFFFF, "path_mtu": 1500, "timeout": LONG, "recv_cq": 1}
        await stage.create_qp(
            qpn, udp_port=stage.port(qpn), state=QpState.RTS, send_cq=2, rq_log2=7, **row
        )

    # Payload: the message is not called valid, the QP has failed, another one goes on.
    (lost,) = stage.record(hole, 0, 700)
    (good,) = stage.record(stage.plain, 0, 64)
    await stage.deliver([stage.frame(lost)])
    await stage.settle()
    await stage.deliver([stage.frame(good), stage.frame(good, 2)])
    completions = await stage.check()
    assert [(entry.status, entry.valid) for entry in completions[1]] == [(Status.GENERAL_ERR, 0)]
    assert [entry.status for entry in completions[3]] == [Status.SUCCESS]
    events = [event for event in stage.events(stage.nic) if event.type]
    assert {event.type for event in events} == {EventType.DMA_WRITE}
    assert {event.number for event in events} == {1}
    assert (await stage.counters(stage.model))[Counter.DROP_QP_STATE] == 1
    await revive(1)
    await stage.deliver([stage.frame(stage.record(stage.plain, 0, 64)[0])])
    assert [entry.status for entry in (await stage.check())[1]] == [Status.SUCCESS]

    # A map: all octets came, but nobody could tell.
    message = stage.record(mapless, 64, 6000, path_mtu=62 + 64)
    await stage.deliver([stage.frame(segment) for segment in message])
    completions = await stage.check()
    (entry,) = completions[1]
    assert entry.status == Status.GENERAL_ERR and not entry.flags & CqeFlag.MAPPED
    await revive(1)

    # A CQE: its CQ goes on.
    await stage.write_row(Table.CQ, 7, valid=1, log2=2, addr=nowhere)
    row = {"pd": PD, "opcodes": 0xFFFF, "path_mtu": 1500, "timeout": 99, "send_cq": 2}
    await stage.create_qp(4, udp_port=stage.port(4), state=QpState.RTS, recv_cq=7, **row)
    for _ in range(2):
        (segment,) = stage.record(stage.plain, 0, 64)
        await stage.deliver([stage.frame(segment, 4)])
    await stage.check()
    assert EventType.DMA_CQE in {event.type for event in stage.events(stage.nic)}

    # Payload to send.
    await stage.post_send(
        5, request(stage, Opcode.WRITE, 100, sge_addr=hole.base_to, sge_lkey=hole.stag)
    )
    completions = await stage.check()
    assert [entry.status for entry in completions[5]] == [Status.GENERAL_ERR]
    assert EventType.DMA_READ in {event.type for event in stage.events(stage.nic)}


async def moderation(stage: Stage) -> None:
    """An armed CQ waits for its count or its time, but not with what is solicited or in error."""

    async def message(**fields) -> None:
        (segment,) = stage.record(stage.plain, 0, 10, **fields)
        await stage.deliver([stage.frame(segment)])
        await stage.settle()

    async def fired() -> bool:
        await stage.nic.wait(64)  # a doorbell takes its time
        status = await stage.read32(Register.IRQ_STATUS.address)
        if status:
            await stage.write_register(Register.IRQ_STATUS, status)
        await stage.check()
        return bool(status)

    async def moderate(count: int, ticks: int) -> None:
        await stage.write_row(Table.MODERATION, 1, count=count, ticks=ticks)

    await moderate(3, 0)
    await stage.arm(1)
    for expected in (False, False, True):
        await message()
        assert await fired() == expected
    await message()
    assert not await fired()  # once

    await stage.arm(1)
    await message(solicited=True)
    assert await fired()

    await moderate(100, 8)
    await stage.arm(1)
    await message()
    assert not await fired()
    await stage.wait(10 * TICK_CYCLES)
    assert await fired()
    await stage.wait(10 * TICK_CYCLES)
    assert not await fired()

    await moderate(0, 0)
    await stage.arm(1, solicited=True)
    await message()
    assert not await fired()
    await message(solicited=True)
    assert await fired()
    await message()
    await stage.arm(1, solicited=True)  # with one there that was not consumed
    assert await fired()
