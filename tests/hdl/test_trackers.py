"""Trackers and the memory of closed messages on their own."""

from dataclasses import replace

import pytest
from amaranth.hdl import Const
from receive_bench import make_rng, run

from uwarp.contract import CloseTarget, Parameters
from uwarp_hdl.iwarp.closed import ClosedMessages
from uwarp_hdl.iwarp.receive_layouts import (
    MessageKind,
    message_name_layout,
    name_parts,
    tracker_layout,
)
from uwarp_hdl.iwarp.trackers import OVERLAP_SETTLES, SCAN_STEPS, Trackers

PARAMETERS = Parameters(n_qp=4, n_tracker=8, n_closed=16, map_bits=1024)


async def strobe(ctx, signal, **values):
    """Set the ports given, raise ``signal`` for a cycle."""
    dut, name = signal
    for port, value in values.items():
        ctx.set(getattr(dut, port), value)
    if name == "open":
        ctx.set(dut.touch_index, ctx.get(dut.free_index))
        ctx.set(dut.prepare, 1)
    ctx.set(getattr(dut, name), 1)
    await ctx.tick()
    ctx.set(getattr(dut, name), 0)
    if name == "open":
        ctx.set(dut.prepare, 0)
    if name in ("open", "close"):  # which tracker is free is known a cycle later
        await ctx.tick()


async def insert(ctx, dut, name):
    low, high = name_parts(message_name_layout(PARAMETERS).const(name).as_value())
    ctx.set(dut.hold, 1)
    await strobe(ctx, (dut, "insert"), inserted=low)
    ctx.set(dut.hold, 0)
    ctx.set(dut.inserted, high)
    await ctx.tick()


async def look_up(ctx, dut, name, **values):
    ctx.set(dut.spare, 0)
    await strobe(ctx, (dut, "lookup"), name=name, **values)
    ctx.set(dut.spare, 1)
    ctx.set(dut.asked, name)


def name_of(number):
    return {"qpn": number % 4, "source_ip": 10 + number // 4, "source_port": 7, "msn": number}


def row_of(number, region, start, end, missing=0):
    """Ports that go with ``open``."""
    row = {"name": name_of(number), "stag": region << 8 | 3}
    row["others"] = ~missing & PARAMETERS.map_bits - 1
    return {"opened": row, "opened_start": start, "opened_end": end}


@pytest.mark.parametrize("n_tracker", [8, 16])
def test_open_look_up_close(n_tracker):
    """Random operations against a list; lookups by digest and by shared octets after each."""
    rng = make_rng(31)
    dut = Trackers(replace(PARAMETERS, n_tracker=n_tracker))
    slots = [None] * n_tracker

    async def bench(ctx):
        ctx.set(dut.renew, 1)  # there are no strangers
        for number in range(300):
            free = [i for i, slot in enumerate(slots) if slot is None]
            assert ctx.get(dut.free) == bool(free)
            assert ctx.get(dut.count) == n_tracker - len(free)
            taken = [i for i, slot in enumerate(slots) if slot]
            if free and (not taken or rng.random() < 0.55):
                assert ctx.get(dut.free_index) == free[0]
                start = rng.randrange(1000)
                slot = (number, rng.randrange(2), start, start + rng.randrange(100))
                slots[free[0]] = slot
                await strobe(ctx, (dut, "open"), **row_of(*slot), opened_digest=slot[0], timeout=50)
            else:
                index = rng.choice(taken)
                slots[index] = None
                await strobe(ctx, (dut, "close"), close_index=index)
            wanted = rng.choice([slot for slot in slots if slot] or [(number, 0, 0, 0)])
            many = ctx.get(dut.many)
            settles = OVERLAP_SETTLES - 2  # the cycles that ``strobe`` takes
            settles += SCAN_STEPS // 2 if many else 0
            # One octet before, at, and after each end of another message.
            for start in {wanted[2] - 1, wanted[2], wanted[3], wanted[3] + 1} - {-1}:
                end = start + rng.choice((0, 0, 30))
                ctx.set(dut.region, wanted[1])
                ctx.set(dut.start, start)
                ctx.set(dut.end, end)
                expected = sum(
                    (bool(s) and s[1] == wanted[1] and s[2] <= end and start <= s[3]) << i
                    for i, s in enumerate(slots)
                )
                await ctx.tick().repeat(settles)
                settles = SCAN_STEPS if many else SCAN_STEPS // 2
                assert ctx.get(dut.overlap) == expected
            for probe in (wanted[0], number + 1000):
                ctx.set(dut.digest, probe)
                await ctx.tick()
                expected = sum((bool(s) and s[0] == probe) << i for i, s in enumerate(slots))
                assert ctx.get(dut.match) == expected

    run(dut, bench)


def test_progress():
    """Complete when nothing is missing between the edges and both edges are in; not before."""
    dut = Trackers(PARAMETERS)

    async def bench(ctx):
        for missing, marks in (
            (0, [(0, 1, 0), (0, 1, 0), (0, 0, 1)]),
            (0, [(0, 1, 1)]),
            (30, [(10, 0, 0), (0, 0, 1), (0, 0, 0), (20, 0, 0), (0, 1, 0)]),
            (144, [(144, 1, 1)]),
        ):
            index = ctx.get(dut.free_index)
            await strobe(ctx, (dut, "open"), **row_of(1, 0, 0, 0, missing))
            for i, (newly, head, tail) in enumerate(marks):
                assert not ctx.get(dut.complete)
                ctx.set(dut.mark_index, index)
                ctx.set(dut.marking, 1)
                await ctx.tick()
                await strobe(ctx, (dut, "mark"), newly=newly, head=head, tail=tail)
                ctx.set(dut.marking, 0)
                assert ctx.get(dut.complete) == (i == len(marks) - 1)
            assert ctx.get(dut.complete_index) == index
            await strobe(ctx, (dut, "close"), close_index=index)
            assert not ctx.get(dut.complete)

    run(dut, bench)


def test_expiry():
    """Each tracker at its own timeout; a touch puts it off, also across the tick number's wrap,
    unless it is taken back."""
    dut = Trackers(PARAMETERS)
    patience = 4 * PARAMETERS.n_tracker

    async def expired(ctx, tick):
        ctx.set(dut.tick, tick & 0xFFFF)
        await ctx.tick().repeat(patience)
        return ctx.get(dut.expired_index) if ctx.get(dut.expired) else None

    async def bench(ctx):
        ctx.set(dut.tick, 65530)
        for i, timeout in enumerate((10, 32767, 4)):
            await strobe(ctx, (dut, "open"), **row_of(i, 0, 0, 0), timeout=timeout)
        assert await expired(ctx, 65533) is None
        assert await expired(ctx, 65534) == 2
        await strobe(ctx, (dut, "touch"), touch_index=2)
        assert not ctx.get(dut.expired)
        assert await expired(ctx, 65537) is None
        await strobe(ctx, (dut, "touch"), touch_index=2)
        await strobe(ctx, (dut, "untouch"))
        assert await expired(ctx, 65538) == 2
        await strobe(ctx, (dut, "close"), close_index=2)
        assert await expired(ctx, 65539) is None
        assert await expired(ctx, 65540) == 0
        await strobe(ctx, (dut, "close"), close_index=0)
        assert await expired(ctx, 65530 + 32766) is None
        assert await expired(ctx, 65530 + 32767) == 1

    run(dut, bench)


def test_a_touch_beside_the_scan_is_never_missed():
    """Touched in any cycle of the scan when the timeout has just ended: no expiry of the past."""
    dut = Trackers(PARAMETERS)

    async def bench(ctx):
        await strobe(ctx, (dut, "open"), **row_of(0, 0, 0, 0), timeout=1)
        for tick in range(1, 120):
            ctx.set(dut.tick, tick)
            for _ in range(tick % 30):  # the scan may find it expired, or be about to
                await ctx.tick()
            await strobe(ctx, (dut, "touch"), touch_index=0)
            for _ in range(40):
                assert not ctx.get(dut.expired), f"tick {tick}"
                await ctx.tick()

    run(dut, bench)


@pytest.mark.parametrize("target", list(CloseTarget))
def test_ending(target):
    """All that it names expire, one by one, while others are touched in every third cycle; what is
    opened afterwards may stay. Whatever else ends nothing."""
    rng = make_rng(34)
    dut = Trackers(PARAMETERS)
    owners = {CloseTarget.QP: lambda i: i % 4, CloseTarget.REGION: lambda i: i % 3}[target]

    async def ended(ctx, **request):
        ctx.set(dut.ending, {"active": 1} | request)
        closed = set()
        for cycle in range(200):
            if ctx.get(dut.ended):
                ctx.set(dut.ending.active, 0)
                await ctx.tick()
                return closed
            if ctx.get(dut.expired):
                index = ctx.get(dut.expired_index)
                closed.add(index)
                await strobe(ctx, (dut, "close"), close_index=index)
            elif cycle % 3 == 0:
                others = [i for i in range(8) if owners(i) != 1]
                await strobe(ctx, (dut, "touch"), touch_index=rng.choice(others))
            else:
                await ctx.tick()
        raise AssertionError("not ended after 200 cycles")

    async def bench(ctx):
        for i in range(8):
            await strobe(ctx, (dut, "open"), **row_of(i, i % 3, 0, 0), timeout=1000)
        await ctx.tick().repeat(rng.randrange(20))
        assert await ended(ctx, target=2, row=1) == set()
        assert await ended(ctx, target=target, row=0x101) == set()
        mine = {i for i in range(8) if owners(i) == 1}
        assert await ended(ctx, target=target, row=1) == mine
        assert await ended(ctx, target=target, row=1) == set()
        assert ctx.get(dut.count) == 8 - len(mine)

    run(dut, bench)


@pytest.mark.parametrize("field", ["msn", "source_port"])
def test_names_of_one_digest(field):
    """Names that differ in their low or in their high part are told apart one after the other;
    ``sure`` says when. The span is that of the first, and whether it is its own is known in time;
    strangers come again when something opens."""
    rng = make_rng(36)
    dut = Trackers(PARAMETERS)

    def named(number):
        # The low half of an MSN follows from the digest.
        differs = {field: number << 16 if field == "msn" else number}
        return {"qpn": 1, "msn": 5, "source_ip": 10, "source_port": 7} | differs

    async def look(ctx, number):
        """The start of the message's span, and how many are found until then."""
        await strobe(ctx, (dut, "renew"))
        ctx.set(dut.name, named(number))
        await ctx.tick().repeat(4)
        found = set()
        while not ctx.get(dut.sure):
            found.add(ctx.get(dut.found_index))
            await ctx.tick()
        if not ctx.get(dut.found):
            return None, len(found)
        found.add(ctx.get(dut.found_index))
        await strobe(ctx, (dut, "begin"))
        await ctx.tick()
        start = ctx.get(dut.span.start)
        await ctx.tick()
        assert ctx.get(dut.span.dma_addr) == start << 40
        assert ctx.get(dut.span.granule_log2) == number
        assert ctx.get(dut.span.map_base) == 64 * number
        await ctx.tick().repeat(3)
        assert ctx.get(dut.own) and ctx.get(dut.sure)
        return start, len(found)

    async def open_message(ctx, number):
        ports = row_of(number, 1, 100 * number, 100 * number + 5)
        ports["opened"] |= {"name": named(number), "granule_log2": number, "map_base": number}
        ports["dma_addr"] = 100 * number << 40
        await strobe(ctx, (dut, "open"), **ports, opened_digest=7, timeout=1000)
        await ctx.tick().repeat(2)

    async def begin(ctx, number, delay):
        """Whether what is found first is its own, when nothing was known of it."""
        await ctx.tick().repeat(rng.randrange(1, 3))
        await strobe(ctx, (dut, "renew"))
        ctx.set(dut.name, named(number))
        await ctx.tick().repeat(delay)
        await strobe(ctx, (dut, "begin"))
        await ctx.tick().repeat(5)
        own = ctx.get(dut.own)
        assert ctx.get(dut.sure) == own
        await ctx.tick().repeat(2)
        assert ctx.get(dut.sure) or not own  # it stays so
        return own

    async def begin_again(ctx, number, pause):
        """With ``own`` what is told is of its message, if that becomes the first meanwhile, too."""
        await strobe(ctx, (dut, "renew"))
        ctx.set(dut.name, named(number))
        await ctx.tick().repeat(3)
        for _ in range(5):
            await strobe(ctx, (dut, "begin"))
            await ctx.tick()
            start = ctx.get(dut.span.start)
            await ctx.tick()
            told = [start, ctx.get(dut.span.dma_addr) >> 40, ctx.get(dut.span.map_base)]
            await ctx.tick().repeat(3)
            if ctx.get(dut.own):
                assert told == [100 * number, 100 * number, 64 * number], f"after {pause}"
                return
            await ctx.tick().repeat(pause)
        raise AssertionError(f"message {number} is not found, begun every {6 + pause} cycles")

    async def bench(ctx):
        for number in (3, 4, 5):
            await open_message(ctx, number)
        ctx.set(dut.digest, 7)
        for pause in range(1, 12):
            for number in (3, 4, 5):
                await begin_again(ctx, number, pause)
        for number in (3, 4, 5):
            assert await look(ctx, number) == (100 * number, number - 2)
            for _ in range(20):
                other = rng.choice((3, 4, 5))
                # Which of several is the lowest is known a cycle after they are found.
                delay = rng.randrange(1, 4)
                own = await begin(ctx, other, delay)
                assert own == (other == 3) or (not own and delay == 1)
        assert await look(ctx, 6) == (None, 3)
        assert await look(ctx, 5) == (500, 3)
        await strobe(ctx, (dut, "close"), close_index=1)
        assert await look(ctx, 5) == (500, 2)
        await open_message(ctx, 6)
        assert await look(ctx, 6) == (600, 2)
        assert await look(ctx, 5) == (500, 3)
        # Its own closes: what is found next is another's, and not taken for it for a moment.
        await strobe(ctx, (dut, "close"), close_index=2)
        for _ in range(40):
            assert not (ctx.get(dut.found) and ctx.get(dut.sure))
            await ctx.tick()
        assert await look(ctx, 3) == (300, 1)
        for _ in range(40):
            assert ctx.get(dut.found) and ctx.get(dut.sure)
            await ctx.tick()
        await strobe(ctx, (dut, "close"), close_index=0)
        for _ in range(40):
            assert not (ctx.get(dut.found) and ctx.get(dut.sure))
            await ctx.tick()
        ctx.set(dut.digest, 6)
        assert await look(ctx, 6) == (None, 0)

    run(dut, bench)


@pytest.mark.parametrize("field", ["msn", "source_port"])
def test_the_last_tracker_opens(field):
    """Nothing was found before, and which would be the lowest stays the same: it is not taken for
    the message that was there, hence for a stranger."""
    dut = Trackers(PARAMETERS)
    shift = 16 if field == "msn" else 0  # the low half of an MSN follows from the digest
    names = [name_of(0) | {field: number << shift} for number in (100, 101)]

    async def open_message(ctx, name, digest):
        row = {"name": name, "stag": 0}
        await strobe(ctx, (dut, "open"), opened=row, opened_digest=digest, timeout=1000)
        await ctx.tick().repeat(3)

    async def bench(ctx):
        for number in range(7):
            await open_message(ctx, name_of(number), 1)
        await open_message(ctx, names[0], 1)
        ctx.set(dut.digest, 2)
        ctx.set(dut.name, names[1])
        await ctx.tick().repeat(10)
        await strobe(ctx, (dut, "close"), close_index=7)
        await ctx.tick().repeat(10)
        await open_message(ctx, names[1], 2)
        for cycle in range(20):
            assert ctx.get(dut.found), f"cycle {cycle}"
            await ctx.tick()
        assert ctx.get(dut.sure) and ctx.get(dut.found_index) == 7

    run(dut, bench)


def test_rows():
    """A row is read in four words, that of no tracker like the others; its fields come when they
    should, and its name in two parts."""
    rng = make_rng(35)
    dut = Trackers(PARAMETERS)
    shape = tracker_layout(PARAMETERS)
    name_width = shape["name"].width

    async def check(ctx, row):
        """In the second cycle after ``first``, or the fourth after ``keep``."""
        fields = shape.from_bits(row)
        for passed in range(3):
            assert not ctx.get(dut.there)
            if passed:
                for name in ("start", "end", "granule_log2", "others"):
                    assert ctx.get(dut.row[name]) == fields[name]
            await ctx.tick()
        for _ in range(rng.randrange(1, 3)):
            assert ctx.get(dut.there)
            assert ctx.get(dut.row.as_value()) == row
            await ctx.tick()
        low, high = name_parts(Const(row, name_width))
        assert ctx.get(dut.name_word[: len(low)]) == ctx.get(low)
        await strobe(ctx, (dut, "advance"))
        assert ctx.get(dut.name_word[: len(high)]) == ctx.get(high)

    async def bench(ctx):
        rows = {}
        for index in [*range(8), 8, 3, 8, 8, 5]:
            # A kind of 3 is none.
            row = rng.getrandbits(shape.size) & ~(1 << name_width - 1)
            if index < 8:
                if index in rows:
                    await strobe(ctx, (dut, "close"), close_index=index)
                assert ctx.get(dut.free_index) == index
                await strobe(ctx, (dut, "open"), opened=shape.from_bits(row))
                await ctx.tick().repeat(3)
            else:
                bare = rng.randrange(2)
                ctx.set(dut.index, 8)
                await strobe(ctx, (dut, "keep"), opened=shape.from_bits(row), keep_bare=bare)
                await ctx.tick().repeat(3)
                if bare:
                    for name in ("stag", "base"):
                        field = shape[name]
                        row &= ~((1 << field.width) - 1 << field.offset)
                await check(ctx, row)
            rows[index] = row
            for other, row in rows.items():
                ctx.set(dut.index, other)
                await strobe(ctx, (dut, "look"))
                await ctx.tick()
                fields = shape.from_bits(row)
                for name in ("stag", "base", "mlen"):
                    assert ctx.get(dut.place[name]) == fields[name]
                await strobe(ctx, (dut, "first"))
                await ctx.tick()
                await check(ctx, row)

    run(dut, bench)


def test_an_opening_beside_a_look():
    """Whenever another message opens: what is open is not taken for a stranger for good."""
    dut = Trackers(PARAMETERS)
    names = [name_of(0) | {"source_port": number} for number in (100, 101, 102, 103)]

    async def bench(ctx):
        async def show(number):
            ctx.set(dut.digest, number)
            ctx.set(dut.name, names[number])

        for number in (0, 1):
            row = {"name": names[number], "stag": 0}
            await strobe(ctx, (dut, "open"), opened=row, opened_digest=number, timeout=1000)
            await ctx.tick().repeat(3)
        for delay in range(14):
            for number in (0, 1):
                await show(1 - number)
                await ctx.tick().repeat(20)
                ctx.set(dut.renew, 1)
                await ctx.tick()
                ctx.set(dut.renew, 0)
                await show(number)
                for cycle in range(30):
                    ctx.set(dut.begin, cycle == 1)
                    if cycle == delay:
                        ctx.set(dut.opened, {"name": names[2]})
                        ctx.set(dut.opened_digest, 2)
                        ctx.set(dut.timeout, 1000)
                    if cycle == delay + 2:
                        ctx.set(dut.touch_index, ctx.get(dut.free_index))
                    for port in (dut.prepare, dut.open):
                        ctx.set(port, cycle == delay + 2)
                    await ctx.tick()
                assert ctx.get(dut.sure) and ctx.get(dut.found), f"{delay=}"
                assert ctx.get(dut.found_index) == number
                await strobe(ctx, (dut, "close"), close_index=2)

    run(dut, bench)


def test_a_lookup_while_old_rows_are_forgotten():
    """At every distance from the scrubber's steps the answer is that of the row asked for."""
    dut = ClosedMessages(PARAMETERS)
    fields = {"qpn": 0, "source_ip": 1, "source_port": 1}
    fresh, old, unknown = (fields | {"msn": msn, "kind": MessageKind.RECORD} for msn in (1, 2, 3))

    async def bench(ctx):
        await ctx.tick().until(~dut.busy)
        ctx.set(dut.spare, 1)
        ctx.set(dut.timeout, 100)
        for distance in range(1, 16 * 16 + 40):
            ctx.set(dut.tick, 0)
            await insert(ctx, dut, old)
            ctx.set(dut.tick, 0x9000)
            await insert(ctx, dut, fresh)
            await ctx.tick().repeat(distance)
            for name in (fresh, unknown):
                await look_up(ctx, dut, name)
                await ctx.tick().until(dut.answered)
                assert ctx.get(dut.hit) == (name is fresh), f"{distance=}"

    run(dut, bench)


def test_closed_messages():
    """Names are found by all of their parts, until replaced or too old."""
    rng = make_rng(32)
    dut = ClosedMessages(PARAMETERS)
    rows = {}
    ctx_tick = 65000

    async def bench(ctx):
        await ctx.tick().until(~dut.busy)
        ctx.set(dut.spare, 1)
        tick = ctx_tick
        for _ in range(600):
            tick += rng.choice((0, 0, 1, 20))
            ctx.set(dut.tick, tick & 0xFFFF)
            name = {
                "qpn": rng.randrange(4),
                "source_ip": rng.randrange(2),
                "source_port": rng.randrange(2),
                "msn": rng.choice((1, 2, 17, 0xFFFFFFF1)),
                "kind": rng.choice(list(MessageKind)),
            }
            row = (name["msn"] ^ name["qpn"] << 4) % 16
            if rng.random() < 0.5:
                await insert(ctx, dut, name)
                rows[row] = (name, tick)
            else:
                timeout = rng.choice((1, 20, 200))
                await look_up(ctx, dut, name, timeout=timeout)
                for _ in range(3):
                    assert not ctx.get(dut.answered)
                    await ctx.tick()
                assert ctx.get(dut.answered)
                known, when = rows.get(row, (None, 0))
                expected = known == name and tick - when < timeout
                for _ in range(3):  # stands
                    assert ctx.get(dut.hit) == expected
                    await ctx.tick()

    run(dut, bench)
