"""Whose turn it is: responses, Reads that wait, send rates, failed and reset queue pairs."""

from itertools import pairwise

import pytest
from transmit_bench import WRITE_RECORD
from turns_bench import PEER, PEER6, READ, TurnsBench

from uwarp.contract import TICK_CYCLES, CloseTarget, QpState
from uwarp.wire import wire_octets


@pytest.mark.soak  # those of the compiled NIC are compared with the model's in every run
def test_responses():
    """Frame for frame; MSNs of the QP's own messages go on beside them; slots serve again."""
    bench = TurnsBench(100, stall=0.1, n_read=4)
    bench.set_qp(0)
    bench.set_qp(1, path_mtu=576)

    async def script(bench):
        expected = {0: [], 1: []}
        own = []
        for number in range(24):
            size = bench.rng.choice((1, 63, 1400, 1408, 1440, 1439, 1438, 3000, 9000))
            source = PEER6 if number % 3 == 2 else PEER
            request = bench.request(number % 2, bench.rng.randrange(8192), size, source)
            expected[number % 2].append(bench.response(request))
            if number % 4 == 0:
                wqe = bench.post(0, WRITE_RECORD, 100, 2000)
                own += bench.reference(0, wqe, 1 + number // 4)
        total = sum(len(item) for qpn in expected for item in expected[qpn]) + len(own)
        await bench.until(lambda: len(bench.frames) == total)
        await bench.idle(100)
        mine = iter(own)
        upcoming = next(mine)
        got = {0: [], 1: []}
        for frame in bench.frames:
            if frame == upcoming:
                upcoming = next(mine, None)
                continue
            is_six = frame[12:14] == b"\x86\xdd"
            got[frame[(54 if is_six else 34) + 1] & 1].append(frame)
        assert upcoming is None, "own messages"
        for qpn, responses in expected.items():
            bench.check_frames(got[qpn], [frame for response in responses for frame in response])
        assert len(bench.completions) == 6

    bench.run(script)


def test_room_for_requests():
    """``read_room`` falls within 3 cycles of the last request, and rises when one is through."""
    bench = TurnsBench(200, n_read=4)
    bench.set_qp(0, state=QpState.RTR)

    async def script(bench):
        requests = [bench.request(0, 64 * n, 100) for n in range(6)]
        await bench.until(lambda: len(bench.requests) == 2)
        await bench.idle(3)
        assert not bench.ctx.get(bench.dut.read_room)
        await bench.idle(200)
        assert len(bench.requests) == 2
        assert not bench.frames
        bench.set_qp(0)
        await bench.until(lambda: len(bench.frames) == 6)
        bench.check_frames(bench.frames, [f for item in requests for f in bench.response(item)])
        await bench.idle(100)
        assert bench.ctx.get(bench.dut.read_room)

    bench.run(script)


def test_a_read_that_waits_does_not_hold_back_responses():
    """Two peers whose trackers are all taken wait for each other's responses: they must go out."""
    bench = TurnsBench(300, stall=0.1)
    bench.set_qp(0)
    bench.set_region(3, mapped=1, access=63, granule_log2=6)

    async def script(bench):
        bench.ctx.set(bench.dut.trackers_full, 1)
        bench.post(0, READ, 0, 500, flags=0)
        await bench.idle(300)
        assert not bench.frames
        request = bench.request(0, 1000, 5000)
        expected = bench.response(request)
        await bench.until(lambda: len(bench.frames) == len(expected), 2000)
        bench.check_frames(bench.frames, expected)
        assert not bench.openings
        bench.ctx.set(bench.dut.trackers_full, 0)
        await bench.until(lambda: len(bench.openings) == 1)
        await bench.until(lambda: len(bench.frames) == len(expected) + 1)
        assert bench.opcodes()[-1] == READ

    bench.run(script)


def test_a_bucket_below_zero_stops_the_next_datagram():
    """One datagram empties a small bucket; the next one goes when its debt is paid, not before."""
    bench = TurnsBench(400, latency=(0, 0))
    bench.set_qp(0)

    async def script(bench):
        bench.write_qp(0, send_rate=900 * 256, send_burst=0)
        await bench.written()
        wqe = bench.post(0, WRITE_RECORD, 0, 1408 * 4)
        expected = bench.reference(0, wqe, 1)
        await bench.until(lambda: len(bench.frames) == len(expected), 16 * TICK_CYCLES)
        bench.check_frames(bench.frames, expected)
        # What a frame takes beyond the 64 octets of the bucket is gained again in whole ticks.
        begins = [begin // TICK_CYCLES for _, begin in bench.frame_times]
        gaps = [after - before for before, after in pairwise(begins)]
        octets = [wire_octets(len(frame)) for frame in expected]
        level, ticks = 64, []
        for size in octets[:-1]:
            level -= size
            count = 0
            while level <= 0:
                level += 900
                count += 1
            level = min(level, 64)
            ticks.append(count)
        assert all(abs(gap - count) <= 1 for gap, count in zip(gaps, ticks, strict=True)), (
            f"{gaps} ticks, not {ticks}"
        )
        assert abs(sum(gaps) - sum(ticks)) <= 1, f"{gaps} ticks, not {ticks}"

    bench.run(script)


def test_what_is_not_sent_costs_nothing():
    """Of a QP with a rate too: messages that fail before they have a frame empty no bucket."""
    bench = TurnsBench(450, latency=(0, 0))
    bench.set_qp(0)

    async def script(bench):
        bench.write_qp(0, send_rate=256, send_burst=15)
        await bench.written()
        bad = [bench.post(0, WRITE_RECORD, 0, 1400, sge_lkey=0) for _ in range(20)]
        await bench.until(lambda: len(bench.completions) == len(bad))
        assert not bench.frames
        wqe = bench.post(0, WRITE_RECORD, 0, 500)
        await bench.until(lambda: len(bench.frames) == 1, 1000)
        bench.check_frames(bench.frames, bench.reference(0, wqe, 1))

    bench.run(script)


def test_a_failed_queue_pair_responds_no_more():
    """8.1: it sends nothing more, until its row is written."""
    bench = TurnsBench(500)
    bench.set_qp(0, path_mtu=576)

    async def script(bench):
        expected = bench.response(bench.request(0, 0, 40_000))
        await bench.until(lambda: len(bench.frames) == 2)
        bench.ctx.set(bench.dut.failed, {"write": 1, "row": 0, "bits": 1})
        # What is cut by now goes out.
        await bench.idle(80 * 45)
        sent = len(bench.frames)
        assert sent < len(expected), "all of it went out"
        await bench.idle(300)
        assert len(bench.frames) == sent
        bench.ctx.set(bench.dut.failed, {"write": 1, "row": 0, "bits": 0})
        await bench.until(lambda: len(bench.frames) == len(expected))
        bench.check_frames(bench.frames, expected)

    bench.run(script)


def test_reset_discards_responses():
    """Those under way, those that wait, and one that comes from the receive side just after."""
    bench = TurnsBench(600, n_read=4)
    bench.set_qp(0, path_mtu=576)
    bench.set_qp(1)

    async def script(bench):
        for number in range(4):
            bench.request(0, 0, 30_000 + number)
        await bench.until(lambda: len(bench.frames) == 2)
        bench.set_qp(0, state=QpState.RESET, path_mtu=576)
        bench.reset_qp(0)
        await bench.until(lambda: not bench.doorbells)
        await bench.idle(40)
        bench.request(0, 0, 3000)
        await bench.idle(80 * 45)
        sent = len(bench.frames)
        bench.set_qp(0)
        await bench.idle(500)
        assert len(bench.frames) == sent, "an old response went out"
        # All slots are there again.
        expected = []
        for number in range(9):
            expected.append(bench.response(bench.request(number % 2, 10, 200)))
        await bench.until(lambda: len(bench.frames) == sent + 9)
        got = sorted(bench.frames[sent:])
        bench.check_frames(got, sorted(frame for frames in expected for frame in frames))

    bench.run(script)


def test_closing_is_done_when_the_last_response_is_dropped_just_then():
    """The only one that waits, in whatever cycle its turn comes."""
    bench = TurnsBench(650, n_read=4)
    bench.set_qp(0, state=QpState.RTR)

    async def script(bench):
        ctx, dut = bench.ctx, bench.dut
        for phase in range(8):
            bench.request(0, 0, 500)
            await bench.until(lambda: not bench.requests)
            await bench.idle(20 + phase)
            ctx.set(dut.close, {"active": 1, "target": CloseTarget.QP, "row": 0})
            await bench.until(lambda: ctx.get(dut.close_done), 100)
            ctx.set(dut.close.active, 0)
            await bench.idle(3)
        assert not bench.frames

    bench.run(script)


def test_queue_pairs_that_may_not_send_cost_the_others_nothing():
    """Fifteen empty buckets and a QP without a rate: that one has the whole line."""
    bench = TurnsBench(700, latency=(50, 50), wire=True, n_qp=16)
    bench.set_qp(0, sq_log2=7, sq_addr=0x8000 // 64)

    async def script(bench):
        for qpn in range(1, 16):
            bench.write_qp(qpn, send_rate=1, send_burst=0)
            await bench.written()
            bench.post(qpn, WRITE_RECORD, 0, 3000)
        await bench.until(lambda: len(bench.frames) == 15)
        await bench.idle(500)
        assert len(bench.frames) == 15
        expected = []
        for msn in range(1, 61):
            wqe = bench.post(0, WRITE_RECORD, 64 * msn, 64, ring=False)
            expected += bench.reference(0, wqe, msn)
        bench.ring(0)
        await bench.until(lambda: len(bench.frames) == 75)
        bench.check_frames(bench.frames[15:], expected)
        begins = [begin for _, begin in bench.frame_times[15:]]
        needed = sum(wire_octets(len(frame)) / 8 for frame in expected[:-1])
        took = begins[-1] - begins[0]
        assert took <= needed * 1.01, f"{took} cycles, the wire takes {needed}"

    bench.run(script)


@pytest.mark.soak  # tests/test_verbs_send.py has the figure, of the compiled NIC
@pytest.mark.parametrize(("ticks", "within"), [(8, 0.25), (300, 0.01)])
def test_rate_while_another_takes_the_rest(ticks, within):
    """1 Gb/s of octets on the wire, and the line is never idle. What a bucket holds for a moment
    makes up for less than ``within`` of ``ticks``."""
    bench = TurnsBench(800, latency=(20, 20), wire=True)
    bench.set_qp(2)

    async def script(bench):
        rate = 1e9 / 8 / bench.parameters.clock_hz * TICK_CYCLES
        bench.write_qp(1, send_rate=round(256 * rate), send_burst=15, path_mtu=576)
        await bench.written()
        bench.post(1, WRITE_RECORD, 0, 120_000)
        for _ in range(1 + ticks // 12):
            bench.post(1, WRITE_RECORD, 0, 120_000)
            bench.post(2, WRITE_RECORD, 64, 120_000)
        # Let the bucket's first fill go, and the queue of segments fill up.
        await bench.idle((3 if ticks < 100 else 10) * TICK_CYCLES)
        before = len(bench.frames)
        await bench.idle(ticks * TICK_CYCLES)
        octets = {1: 0, 2: 0}
        for frame in bench.frames[before:]:
            octets[frame[35] & 15] += wire_octets(len(frame))
        await bench.until(lambda: bench.partial == b"")
        print(f"{octets[1] / ticks:.1f} and {octets[2] / ticks:.1f} octets a tick")
        assert abs(octets[1] / ticks / rate - 1) < within, f"{octets[1]} octets, {ticks=}"
        line = 8 * TICK_CYCLES
        assert sum(octets.values()) / ticks > line - 1600 / ticks

    bench.run(script)
