"""Terminates in the receive side: those that peers send, and what is reported; against the rule."""

from receive_bench import make_rng
from receive_rule import TERMINATE
from receiver_bench import datagram
from test_reads import (
    OTHER,
    PARAMETERS,
    RESPONSE,
    ReadBench,
    opening,
    record,
    request,
    stag_of,
)

from uwarp.contract import TERMINATE_CODES, TERMINATE_TICKS, Counter, QpState, Terminated

SEND, SEND_IMM = 0x3, 0xE


class TerminateBench(ReadBench):
    """QPs that report. Of the second a receive is posted, of the others none."""

    def __init__(self, rng, **options):
        sge = {"addr": 0x80001, "length": 300, "lkey": stag_of(2)}
        super().__init__(rng, receives={1: [sge]}, **options)
        for rows in (self.qps, self.rule.qps):
            for row in rows:
                row |= {"terminate": 1}

    async def given(self, ctx, *items):
        """Play them, each by itself, and check. How many reports came of them."""
        before = len(self.reports)
        await self.play(ctx, items)
        await self.check(ctx)
        return len(self.reports) - before

    async def pass_ticks(self, ctx, ticks):
        """One after the other, but for those that nobody looks at."""
        step = min(ticks, TERMINATE_TICKS // 2)
        for _ in range(0, ticks, step):
            self.tick += step
            self.set_tick(ctx, self.tick)
            await ctx.tick().repeat(3)

    def sent(self):
        """What waited is sent."""
        self.waiting = self.rule.waiting = 0

    @property
    def reports(self):
        return [request for request in self.requests if request["report"]]


def peers(rng, length=0, **fields):
    """A peer's Terminate, which quotes ``length`` octets."""
    fields = {"qn": 2, "msn": rng.getrandbits(32), "immediate": rng.getrandbits(32)} | fields
    fields |= {"payload_offset": rng.randrange(8), "mlen": rng.choice((4, 0, 3))}
    return datagram(TERMINATE, length, **fields), rng.randbytes(length)


def bare(opcode, length=0, **fields):
    return datagram(opcode, length, **fields), bytes(length)


def every_reason(rng):
    """By counter and kind, a datagram that ends so."""
    untagged, tagged, asked = Terminated
    reasons = {
        (Counter.DROP_QP_OPCODE, untagged): bare(SEND, qpn=3),
        (Counter.DROP_QP_OPCODE, tagged): bare(0x0, qpn=3),
        (Counter.DROP_QP_OPCODE, asked): (request(qpn=3), b""),
        (Counter.DROP_UNTAGGED_QN, untagged): bare(SEND_IMM, qn=1),
        (Counter.DROP_UNTAGGED_QN, asked): (request(qn=2), b""),
        (Counter.DROP_MESSAGE_LENGTH, untagged): bare(SEND, mo=1),
        (Counter.DROP_MESSAGE_LENGTH, tagged): bare(RESPONSE, mo=1),
        (Counter.DROP_MESSAGE_LENGTH, asked): (request(mo=1), b""),
        (Counter.DROP_NO_RECEIVE, untagged): bare(0x5, 40),
        (Counter.DROP_RECEIVE_SHORT, untagged): bare(SEND, 301, qpn=1),
        (Counter.DROP_SEND_SEGMENTED, untagged): bare(SEND, 64, qpn=1, mlen=100),
    }
    regions = {
        Counter.DROP_STAG_INVALID: ({"stag": stag_of(5)}, {"stag": stag_of(5)}),
        Counter.DROP_STAG_KEY: ({"stag": 0x10}, {"stag": 0x10}),
        Counter.DROP_STAG_PD: ({"stag": stag_of(4)}, {"stag": stag_of(4)}),
        Counter.DROP_STAG_ACCESS: ({"stag": stag_of(7)}, {"stag": stag_of(6)}),
        Counter.DROP_TO_WRAP: 2 * ({"stag": stag_of(1), "to": (1 << 64) - 1},),
        Counter.DROP_BOUNDS: 2 * ({"stag": 0x11, "to": 0xFFFF},),
    }
    for counter, (written, read) in regions.items():
        reasons[counter, tagged] = bare(0x0, 8, **written)
        reasons[counter, asked] = (request(mlen=8, **read), b"")
    return reasons


def test_every_reason_that_is_reported():
    """With the code of its counter and kind, to where it came from."""
    rng = make_rng(600)
    bench = TerminateBench(rng)
    reasons = every_reason(rng)
    assert {counter for counter, _ in reasons} == TERMINATE_CODES.keys()

    async def drive(ctx):
        await bench.ring(ctx)
        for counter, kind in rng.sample(sorted(reasons), len(reasons)):
            fields, octets = reasons[counter, kind]
            names = {"source_mac": 48, "source_port": 16, "source_ip": 128}
            names |= {} if kind == Terminated.TAGGED else {"msn": 32}
            fields |= {name: rng.getrandbits(bits) for name, bits in names.items()}
            assert await bench.given(ctx, (fields, octets)) == 1, f"{counter.name}, {kind.name}"
            assert bench.outcomes[-1] == counter, kind.name
            bench.sent()
            await bench.pass_ticks(ctx, TERMINATE_TICKS)

    bench.run(drive)


def test_what_is_not_reported():
    """Other drops; a QP that does not ask for it, or is in RTR; copies for a group, Reads to be
    opened, Terminates; without room; and one too soon after the last."""
    rng = make_rng(601)
    bench = TerminateBench(rng)
    bad = bare(SEND, 40)  # no receive
    others = [
        bare(SEND, 40, qpn=2), bare(0x0, 0, qpn=2), bare(SEND, 1, mlen=0, qpn=1),
        bare(SEND, 301, qpn=1), bare(0xC, 40, qpn=3), bare(SEND, 40, group=1),
        bare(SEND, 1, mlen=0, group=1), opening(1, 0), None, opening(2, lkey=0x12), None,
        peers(rng, qn=0), bare(RESPONSE, 8, mlen=9),
        bare(0x0, 8, stag=0x11, to=0x10000), record(rng, 1, 0x10000, 0, 64, 64),
    ]  # fmt: skip
    for rows in (bench.qps, bench.rule.qps):
        rows[1] |= {"terminate": 0}
        rows[3] |= {"peer_port": 1}

    async def drive(ctx):
        await bench.ring(ctx)
        assert await bench.given(ctx, *others) == 0
        bench.waiting = bench.rule.waiting = PARAMETERS.n_read
        await ctx.tick().repeat(3)
        assert await bench.given(ctx, bad) == 0
        bench.sent()
        assert await bench.given(ctx, bad, bad) == 1
        for _ in range(TERMINATE_TICKS - 1):
            await bench.pass_ticks(ctx, 1)
        assert await bench.given(ctx, bad) == 0
        await bench.pass_ticks(ctx, 1)
        assert await bench.given(ctx, bad, bad) == 1
        # A Read Request and a report wait: that is all there may be.
        await bench.pass_ticks(ctx, 3 * TERMINATE_TICKS)
        bench.sent()
        busy = Counter.DROP_READ_BUSY
        items = [(request(), b""), bad, (request(), b""), bad]
        assert await bench.given(ctx, *items) == 1
        assert bench.outcomes[-2:] == [busy, Counter.DROP_NO_RECEIVE]

    bench.run(drive)


def test_terminates_of_peers():
    """Told with all their fields, in RTR as well; what they quote is placed nowhere, and the
    payload behind it where it belongs."""
    rng = make_rng(602)
    bench = TerminateBench(rng, stall=0.2)
    items = []
    for number in range(24):
        fields = {"source_ip": rng.getrandbits(128), "source_port": rng.getrandbits(16)}
        fields |= {"qpn": rng.randrange(3), "mo": rng.getrandbits(32), "stag": rng.getrandbits(32)}
        items.append(peers(rng, rng.choice((0, 1, 18, 1400)), **fields))
        if number % 3 == 0:
            items.append((datagram(0x0, 20, stag=0x11, to=0x10000 + 99 * number),
                          rng.randbytes(20)))  # fmt: skip
        if number % 8 == 0:
            items += [(request(source_ip=OTHER), b""), peers(rng, 8, qn=1), peers(rng, qn=1 << 31)]
    assert any(bench.qps[fields["qpn"]]["state"] == QpState.RTR for fields, _ in items)

    async def drive(ctx):
        await bench.play(ctx, items)
        await bench.check(ctx)

    bench.run(drive)
    assert sum(request["terminate"] for request in bench.requests) == 24
