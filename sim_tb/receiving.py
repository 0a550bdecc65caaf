"""Scenarios of what arrives well: lengths, order, loss, duplication, trackers, receives."""

import random

from uwarp.contract import CqeFlag, Register, Status
from uwarp.wire import Opcode, Segment

from .stage import SHORT, Region, Stage

__all__ = [
    "every_length",
    "large_messages",
    "long_sends",
    "received_sends",
    "small_messages",
    "tracker_rules",
]

_BATCH = 100
_TICK = 1024


async def every_length(stage: Stage, opcode: Opcode, lengths: list[int]) -> None:
    """P1, P2, P14, P33: a datagram of each payload length, at any alignment, in any order."""
    lengths = stage.rng.sample(lengths, len(lengths))
    for start in range(0, len(lengths), _BATCH):
        batch = lengths[start : start + _BATCH]
        frames, receives = [], []
        for length in batch:
            region = stage.rng.choice((stage.mapped, stage.plain))
            offset = stage.rng.randint(0, region.length - length)
            if opcode is Opcode.WRITE:
                segment = stage.write(region, offset, length)
            elif opcode is Opcode.WRITE_RECORD:
                (segment,) = stage.record(region, offset, length, path_mtu=9000)
            else:
                segment = stage.send(length, opcode)
                room = min(length + stage.rng.choice((0, 0, 7)), region.length - offset)
                receives.append(receive_wqe(region, offset, room))
            frames.append(stage.frame(segment))
        if receives:
            await stage.post_receive(1, *receives)
        before = await stage.placed()
        await stage.deliver(frames)
        completions = (await stage.check())[1]
        assert await stage.placed() == before + len(batch)
        if opcode is Opcode.WRITE:
            assert not completions
        else:
            assert [entry.valid for entry in completions] == batch
            assert all(entry.status == Status.SUCCESS for entry in completions)


def receive_wqe(region: Region, offset: int, length: int) -> dict[str, int]:
    return {
        "sge0_addr": region.base_to + offset,
        "sge0_length": length,
        "sge0_lkey": region.stag,
    }


def impaired(rng: random.Random, items: list, loss: float, duplicate: float) -> list:
    """Items as a wire without manners delivers them."""
    arrivals = [item for item in items if rng.random() >= loss]
    arrivals += [item for item in arrivals if rng.random() < duplicate]
    rng.shuffle(arrivals)
    return arrivals


async def large_messages(stage: Stage, rounds: int) -> None:
    """Write-Records of 64 KiB in random order, with loss and duplication, until they time out.

    Every other round is without loss. One of the two messages is cut across granules, as a foreign
    sender may, and never completes.
    """
    rng = stage.rng
    for number in range(rounds):
        loss = 0.0 if number % 2 else 0.1
        messages = [stage.record(stage.mapped, rng.randrange(200), 65536)]
        cuts = sorted(rng.sample(range(1, 20000), 15))
        plan = [(start, end - start) for start, end in zip([0, *cuts], [*cuts, 20000], strict=True)]
        messages.append(stage.record(stage.mapped, 70000 + rng.randrange(200), 20000, plan=plan))
        segments = [segment for message in messages for segment in message]
        await stage.deliver(
            [stage.frame(segment, 2) for segment in impaired(rng, segments, loss, 0.1)]
        )
        await stage.settle()
        await stage.wait((SHORT + 2) * _TICK)
        completions = (await stage.check())[3]
        assert len(completions) == 2, f"{len(completions)} completions of two messages"
        assert all(entry.flags & CqeFlag.MAPPED for entry in completions)
        complete = [entry for entry in completions if entry.status == Status.SUCCESS]
        assert len(complete) == (0 if loss else 1)
        if complete:
            content = b"".join(segment.payload for segment in messages[0])
            place = stage.mapped.dma + complete[0].base_to - stage.mapped.base_to
            assert stage.peek(place, 65536) == content
        # Closed a moment ago, and remembered for a timeout.
        await stage.deliver([stage.frame(rng.choice(messages[1]), 2) for _ in range(4)])
        await stage.check()


async def small_messages(stage: Stage, rounds: int) -> None:
    """Messages of a few segments in regions of several granules, some overtaken, some repeated."""
    rng = stage.rng
    for _ in range(rounds):
        segments: list[Segment] = []
        for slot, (region, granule) in enumerate(
            ((stage.mapped, 64), (stage.mapped, 64), (stage.coarse, 256), (stage.plain, 64))
        ):
            octets = rng.choice((granule + 1, 2 * granule, rng.randint(granule + 1, 2000)))
            offset = 4096 * slot + rng.randrange(2048)
            segments += stage.record(
                region,
                offset,
                octets,
                path_mtu=62 + granule * rng.randint(1, 4),
                granule=granule,
                immediate_valid=rng.random() < 0.5,
                solicited=rng.random() < 0.5,
                immediate=rng.getrandbits(32),
            )
        first = impaired(rng, segments, 0.3, 0.2)
        await stage.deliver([stage.frame(segment) for segment in first])
        await stage.check()
        rest = [segment for segment in segments if segment not in first]
        await stage.deliver([stage.frame(segment) for segment in rest])
        await stage.check()
        assert await stage.read32(Register.OPEN_MESSAGES.address) == 0


async def received_sends(stage: Stage) -> None:
    """P30: Sends into posted receives; late ones, too long ones, ones without a receive."""
    rng = stage.rng
    region = stage.local
    for opcode in (Opcode.SEND, Opcode.SEND_SOLICITED, Opcode.SEND_IMMEDIATE):
        fields = {}
        if opcode is Opcode.SEND_IMMEDIATE:
            fields = {"immediate": rng.getrandbits(32), "immediate_valid": True, "solicited": True}
        await stage.post_receive(
            1, receive_wqe(region, 1, 100), receive_wqe(region, 201, 100), receive_wqe(region, 0, 0)
        )
        first, second = stage.send(100, opcode, **fields), stage.send(64, opcode, **fields)
        too_long, empty = stage.send(101, opcode, **fields), stage.send(0, opcode, **fields)
        unwanted = stage.send(5, opcode, **fields)
        arrivals = [first, first, too_long, second, empty, unwanted]
        await stage.deliver([stage.frame(segment) for segment in arrivals])
        completions = (await stage.check())[1]
        assert [entry.valid for entry in completions] == [100, 64, 0]


async def long_sends(stage: Stage, rounds: int) -> None:
    """Sends of several datagrams from two peers to one QP, with loss, duplicates, any order.

    One is cut across granules and never completes, one has no map to go to, one finds too short a
    receive, one contradicts itself.
    """
    rng = stage.rng
    for number in range(rounds):
        loss = 0.0 if number % 2 else 0.2
        step = 0x1000
        await stage.post_receive(
            2, *(receive_wqe(stage.mapped, step * slot, 4000) for slot in range(4))
        )
        messages = [
            stage.long_send(rng.randint(1500, 4000), opcode, immediate=rng.getrandbits(32))
            for opcode in (Opcode.SEND, Opcode.SEND_SOLICITED, Opcode.SEND_IMMEDIATE)
        ]
        messages.append(stage.long_send(3000, cut=1000))
        # The first datagram of each to arrive takes a receive; then the rest, in any order.
        frames = [
            stage.frame(segment, 2, source_port=77 + index % 2)
            for index, message in enumerate(messages)
            for segment in impaired(rng, message, loss, 0.2)
        ]
        await stage.deliver(rng.sample(frames, len(frames)))
        await stage.settle()
        await stage.wait((SHORT + 2) * _TICK)
        completions = (await stage.check())[3]
        assert all(entry.flags & CqeFlag.MAPPED for entry in completions)
        assert [entry.status for entry in completions].count(Status.PARTIAL) >= 1
        if not loss:
            assert len(completions) == 4
            assert [entry.status for entry in completions].count(Status.SUCCESS) == 3

        # What stays posted is taken by messages of one datagram.
        await stage.deliver([stage.frame(stage.send(10), 2) for _ in range(4 - len(completions))])
        assert len((await stage.check())[3]) == 4 - len(completions)

    await stage.post_receive(1, receive_wqe(stage.plain, 0, 4000), receive_wqe(stage.mapped, 1, 90))
    unmapped, taken = stage.long_send(3000), stage.send(4000)
    unaligned, too_long = stage.long_send(80, cut=40), stage.long_send(3000)
    for segments in (unmapped, [taken], unaligned, too_long):
        await stage.deliver([stage.frame(segment) for segment in segments])
    liar = stage.long_send(3000)
    await stage.post_receive(1, receive_wqe(stage.mapped, 0, 3000))
    await stage.deliver([stage.frame(stage.send(50)), stage.frame(liar[0])])
    other = stage.long_send(3001, msn=liar[0].msn)
    await stage.deliver([stage.frame(segment) for segment in (*other, *liar[1:])])
    completions = (await stage.check())[1]
    assert [entry.valid for entry in completions] == [4000, 50, 3000]


async def tracker_rules(stage: Stage) -> None:
    """All trackers taken, a message that overlaps an open one, one that contradicts itself."""
    size = 300
    messages = [
        stage.record(stage.mapped, 1000 * slot, size, path_mtu=62 + 128) for slot in range(9)
    ]
    await stage.deliver([stage.frame(message[0]) for message in messages])
    completions = (await stage.check())[1]
    assert [entry.flags & CqeFlag.SEGMENT != 0 for entry in completions] == [True]
    assert await stage.read32(Register.OPEN_MESSAGES.address) == 8

    liar = stage.record(stage.mapped, 1000, size + 1, path_mtu=62 + 128, msn=messages[1][0].msn)
    await stage.deliver([stage.frame(liar[1])])
    await stage.check()

    over = stage.record(stage.mapped, 2200, 1000, path_mtu=62 + 128)
    await stage.deliver([stage.frame(over[-1])])
    completions = (await stage.check())[1]
    assert [entry.status for entry in completions] == [Status.PARTIAL] * 2

    # The same name from another port or address is another message.
    twin = stage.record(
        stage.coarse, 0, 600, path_mtu=62 + 256, granule=256, msn=messages[0][0].msn
    )
    await stage.deliver([stage.frame(segment, source_port=77) for segment in twin])
    await stage.check()

    rest = [*over[:-1], *(segment for message in messages for segment in message[1:])]
    await stage.deliver([stage.frame(segment) for segment in stage.rng.sample(rest, len(rest))])
    await stage.check()
