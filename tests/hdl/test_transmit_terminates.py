"""Terminates in the transmit path: those that go out, and those that came on their way to the event
ring."""

import random

from transmit_bench import MAC, PEER_MAC, WRITE_RECORD
from turns_bench import IPV4, OWN6, PEER, PEER6, TurnsBench

from uwarp.contract import TERMINATE_CODES, CloseTarget, QpState
from uwarp.wire import Opcode, QueueNumber, Segment, Terminate, UdpFrame, ipv4_of

CODES = sorted({code for codes in TERMINATE_CODES.values() for code in codes.values()})
WAITING = 8


class TerminatesBench(TurnsBench):
    def fields(self, qpn, source, **flags):
        rng = self.rng
        widths = {"source_port": 16, "msn": 32, "sink_to": 64, "size": 32, "address": 64}
        widths |= {"region": 16}
        fields = {name: rng.getrandbits(width) for name, width in widths.items()}
        fields |= {"qpn": qpn, "source_mac": PEER_MAC, "source_ip": source}
        return fields | flags

    def report(self, qpn, code, source=PEER, **flags):
        """A datagram that is answered by a Terminate. Returns that."""
        fields = self.fields(qpn, source, report=1, **flags)
        self.requests.append(fields | {"sink_stag": code << 16 | self.rng.getrandbits(16)})
        version = 6 if ipv4_of(source) is None else 4
        body = Terminate.of(code).encode()
        segment = Segment(
            opcode=Opcode.TERMINATE,
            payload=body,
            qn=QueueNumber.TERMINATE,
            msn=fields["msn"],
            mlen=len(body),
        )
        return UdpFrame(
            dest_mac=PEER_MAC,
            source_mac=MAC,
            source_ip=IPV4 if version == 4 else OWN6,
            dest_ip=ipv4_of(source) or source,
            source_port=self.qp_fields[qpn]["udp_port"],
            dest_port=fields["source_port"],
            payload=segment.to_datagram(),
            traffic_class=0,
            hop_limit=64,
            ip_version=version,
        ).encode()

    def terminate(self):
        """One that came. Returns what is to be told."""
        fields = self.fields(self.rng.getrandbits(16), self.rng.getrandbits(128), terminate=1)
        word = self.rng.getrandbits(32)
        self.requests.append(fields | {"sink_stag": word})
        names = ("qpn", "msn", "source_ip", "source_port")
        return {name: fields[name] for name in names} | {"code": word >> 16}

    def check_told(self, expected):
        got = [{name: getattr(item, name) for name, _ in item.shape()} for item in self.told]
        assert got == expected, f"seed {self.seed}"


def test_terminates_among_responses_and_messages():
    """Frame for frame, of every code, to both families; and those that came among the requests."""
    bench = TerminatesBench(900, stall=0.1, n_read=4)
    bench.set_qp(0)
    bench.set_qp(1, path_mtu=576)

    async def script(bench):
        expected, own, told = [], [], []
        for number, code in enumerate([*CODES, *random.Random(bench.seed).sample(CODES, 6)]):
            qpn, source = number % 2, (PEER, PEER6)[number // 2 % 2]
            expected.append(bench.report(qpn, code, source))
            if number % 3 == 0:
                expected += bench.response(bench.request(qpn, 8 * number, 700, source))
            if number % 5 == 0:
                own += bench.reference(0, bench.post(0, WRITE_RECORD, 100, 60), 1 + number // 5)
            if number % 2 == 0:
                told.append(bench.terminate())
        await bench.until(lambda: len(bench.frames) == len(expected) + len(own))
        await bench.until(lambda: len(bench.told) == len(told))
        await bench.idle(100)
        assert sorted(bench.frames) == sorted([*expected, *own]), f"seed {bench.seed}"
        assert [frame for frame in bench.frames if frame in own] == own
        bench.check_told(told)
        assert len(bench.completions) == len(own)
        assert not bench.lost_events

    bench.run(script)


def test_eight_wait_to_be_told():
    """Those beyond are lost; they take no room of Read Requests."""
    bench = TerminatesBench(910, n_read=2)
    bench.set_qp(0)

    async def script(bench):
        bench.tells = False
        told = [bench.terminate() for _ in range(WAITING + 3)]
        await bench.until(lambda: not bench.requests)
        await bench.idle(10)
        assert bench.lost_events == 3
        assert bench.ctx.get(bench.dut.read_room)
        bench.tells = True
        expected = bench.response(bench.request(0, 0, 100))
        await bench.until(lambda: len(bench.frames) == 1)
        bench.check_frames(bench.frames, expected)
        told[WAITING:] = [bench.terminate() for _ in range(WAITING)]
        await bench.until(lambda: len(bench.told) == 2 * WAITING)
        bench.check_told(told)
        assert bench.lost_events == 3

    bench.run(script)


def test_closing_the_queue_pair_drops_its_terminates():
    """Closing a region does not: they have none, whatever the request says."""
    bench = TerminatesBench(920, n_read=4)
    for qpn in range(2):
        bench.set_qp(qpn, state=QpState.RTR)

    async def close(target, row):
        ctx, dut = bench.ctx, bench.dut
        ctx.set(dut.close, {"active": 1, "target": target, "row": row})
        await bench.until(lambda: ctx.get(dut.close_done), 500)
        ctx.set(dut.close.active, 0)
        await bench.idle(3)

    async def script(bench):
        bench.report(0, CODES[0], region=5)
        kept = bench.report(1, CODES[-1], region=5)
        bench.request(1, 0, 500)
        bench.requests[-1]["region"] = 5
        await bench.until(lambda: not bench.requests)
        await bench.idle(30)
        await close(CloseTarget.REGION, 5)
        await close(CloseTarget.QP, 0)
        for qpn in range(2):
            bench.set_qp(qpn)
        await bench.until(lambda: len(bench.frames) == 1)
        await bench.idle(300)
        bench.check_frames(bench.frames, [kept])
        # Their slots serve again.
        expected = [bench.report(n % 2, CODES[n]) for n in range(6)]
        await bench.until(lambda: len(bench.frames) == 7)
        assert sorted(bench.frames[1:]) == sorted(expected)

    bench.run(script)
