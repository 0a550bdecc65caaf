"""The loopback: which way each frame goes, whole and in order, and what happens without room."""

import random
from collections import deque

import pytest
from amaranth.sim import Simulator

from uwarp.contract import Counter, Parameters
from uwarp_hdl.net.loopback import Loopback

PARAMETERS = Parameters(n_qp=4, n_region=4, max_mtu=576)
LONGEST = 14 + 4 + 576
DROPPED = 1 << Counter.RX_FRAMES | 1 << Counter.DROP_OVERFLOW


class LoopBench:
    """Frames from the transmitter and from the MAC, and what reaches the wire and the receiver.

    A frame is a mark in its first octet and random octets, so that each is known where it comes
    out. The MAC never waits; what the wire stalls, if not as much as all else, is ``wire_stall``.
    """

    def __init__(self, seed, stall=0.0, gap=3, wire_stall=None):
        self.rng, self.seed, self.stall, self.gap = random.Random(seed), seed, stall, gap
        self.wire_stall = stall if wire_stall is None else wire_stall
        self.dut = Loopback(PARAMETERS)
        self.sent, self.received = deque(), deque()
        self.wire, self.into, self.events = [], [], []
        self.cut = []
        self.sent_times, self.into_times = [], []
        self.now = 0
        self.loop_groups = 1
        self.busy_when_idle = 0
        print(f"seed {seed}")

    def frame(self, mark, length):
        return bytes((mark,)) + self.rng.randbytes(length - 1)

    def send(self, length, own=0, group=0):
        frame = self.frame(0xA0 | own << 1 | group, length)
        self.sent.append((frame, own, group))
        return frame

    def receive(self, length, pause=None):
        frame = self.frame(0xB0, length)
        self.received.append((frame, self.gap if pause is None else pause))
        return frame

    @staticmethod
    def beats(frame):
        words = [frame[start : start + 8] for start in range(0, len(frame), 8)]
        return deque(
            {
                "data": int.from_bytes(word, "little"),
                "count": len(word),
                "last": number == len(words),
                "error": 0,
            }
            for number, word in enumerate(words, 1)
        )

    async def testbench(self, ctx):
        dut = self.dut
        ctx.set(dut.o.ready, 1)
        ctx.set(dut.loop_groups, self.loop_groups)
        await ctx.tick()  # from here on that tells for frames
        sending, coming = deque(), deque()
        pause = 0
        partial = {"wire": b"", "into": b""}
        offered = False
        is_cut = False
        quiet = 0
        while quiet < 20:
            assert self.now < 40_000, f"it does not end; seed {self.seed}"
            if not sending and self.sent:
                frame, own, group = self.sent.popleft()
                sending = self.beats(frame)
                ctx.set(dut.own, own)
                ctx.set(dut.group, group)
            if sending:
                ctx.set(dut.sent.payload, sending[0])
            ctx.set(dut.sent.valid, bool(sending))
            if not coming and not pause and self.received:
                frame, pause = self.received.popleft()
                if self.stall:
                    pause = self.rng.choice((pause, self.rng.randrange(100)))
                coming = self.beats(frame)
            if coming:
                ctx.set(dut.rx.payload, coming[0])
            elif pause:
                pause -= 1
            ctx.set(dut.rx.valid, bool(coming))
            ctx.set(dut.tx.ready, self.rng.random() >= self.wire_stall)
            _, _, *values = await ctx.tick().sample(
                dut.sent.ready,
                dut.rx.ready,
                dut.tx.valid,
                dut.tx.ready,
                dut.tx.payload,
                dut.o.valid,
                dut.o.payload,
                dut.cut,
                dut.events,
                dut.busy,
            )
            sent_ready, rx_ready, tx_valid, tx_ready, word, o_valid, received, *values = values
            cuts, events, busy = values
            self.now += 1
            assert rx_ready, "the MAC is held up"
            assert tx_valid or not offered, "valid falls"
            offered = tx_valid and not tx_ready
            if sending and sent_ready:
                beat = sending.popleft()
                if beat["last"]:
                    self.sent_times.append(self.now)
            if coming:
                coming.popleft()
            if tx_valid and tx_ready:
                self.collect(partial, "wire", word, self.wire)
            if cuts:
                is_cut = True
                self.events.append(DROPPED)
            if o_valid:
                begins = not partial["into"]
                if begins:
                    self.into_times.append(self.now)
                self.collect(partial, "into", received, self.cut if is_cut else self.into)
                is_cut &= not received.last
            if events:
                self.events.append(events)
            idle = not (sending or coming or self.sent or self.received or o_valid or busy)
            quiet = quiet + 1 if idle else 0
        assert partial == {"wire": b"", "into": b""}
        assert not is_cut, "a cut frame does not end"

    @staticmethod
    def collect(partial, name, word, frames):
        assert word.count == 8 or word.last
        partial[name] += word.data.to_bytes(8, "little")[: word.count]
        if word.last:
            frames.append(partial[name])
            partial[name] = b""

    def run(self):
        simulator = Simulator(self.dut)
        simulator.add_clock(6.4e-9)
        simulator.add_testbench(self.testbench)
        simulator.run()

    def check_ways(self, sent, received):
        """``sent`` are (frame, own, group); nothing is missing, nothing out of order."""
        assert self.wire == [frame for frame, own, _ in sent if not own], f"wire; {self.seed}"
        looped = [frame for frame, own, group in sent if own or (group and self.loop_groups)]
        came = [frame for frame in self.into if frame[0] == 0xB0]
        assert came == received, f"from the MAC; seed {self.seed}"
        back = [frame for frame in self.into if frame[0] != 0xB0]
        dropped = len(self.events)
        assert self.events == [DROPPED] * dropped
        assert len(back) == len(looped) - dropped, f"{len(back)} of {len(looped)}, {dropped=}"
        place = iter(looped)
        assert all(frame in place for frame in back), f"looped; seed {self.seed}"
        return dropped


@pytest.mark.parametrize("loop_groups", [0, 1])
def test_ways(loop_groups):
    """Every kind of frame, all lengths of the last word, with a wire that stalls and a MAC."""
    bench = LoopBench(3100 + loop_groups, stall=0.2)
    bench.loop_groups = loop_groups
    sent, received = [], []
    for number in range(90):
        own, group = bench.rng.choice(((0, 0), (0, 1), (1, 0), (1, 1)))
        sent.append((bench.send(60 + bench.rng.randrange(90), own, group), own, group))
        if number % 2:
            received.append(bench.receive(1 + bench.rng.randrange(150)))
    bench.run()
    bench.check_ways(sent, received)
    assert bench.into_times and len(bench.wire) > 20


def test_mac_alone_gains_no_latency():
    bench = LoopBench(3110)
    sent = [(bench.send(80), 0, 0) for _ in range(5)]
    received = [bench.receive(64) for _ in range(5)]
    bench.run()
    bench.check_ways(sent, received)
    assert bench.into_times == [1 + 11 * number for number in range(5)]


def test_looped_alone():
    """Own frames at the wire's rate: none is lost, and each word is there a cycle after it went."""
    bench = LoopBench(3120)
    sent = [(bench.send(length, 1), 1, 0) for length in [60] * 20 + [61, LONGEST, LONGEST]]
    bench.run()
    assert bench.check_ways(sent, []) == 0
    ends = bench.sent_times
    for (frame, _, _), before, after in zip(sent[1:], ends, ends[1:], strict=False):
        assert after - before == -(-len(frame) // 8) + 3
    for (frame, _, _), begin, end in zip(sent, bench.into_times, ends, strict=True):
        assert end - begin == -(-len(frame) // 8) - 2


def test_longest_frames_against_a_full_wire():
    """Both directions full, of the longest frames and the shortest: no frame from the MAC is held
    up or lost, and looped ones come in whole and in order."""
    bench = LoopBench(3130)
    sent, received = [], []
    for number in range(10):
        length = LONGEST if number % 3 else 60
        sent.append((bench.send(length, 1), 1, 0))
    while sum(map(len, received)) < 40 * LONGEST:
        received.append(bench.receive(bench.rng.choice((LONGEST, 60, 333))))
    bench.run()
    assert bench.check_ways(sent, received) == 0


def test_shortest_gaps():
    """A wire that never lets the FIFO run empty, since it leaves two words between frames: looped
    frames get their turns as soon as it has given what waits."""
    bench = LoopBench(3135, gap=2)
    sent = [(bench.send(65, number % 2, 1), number % 2, 1) for number in range(40)]
    received = [bench.receive(65) for _ in range(300)]
    bench.run()
    assert bench.check_ways(sent, received) == 0
    # 9 words of 11 come while a looped frame passes, and then leave in gaps of two.
    assert bench.sent_times[-1] < 300 * 11


def test_without_a_turn():
    """A MAC that leaves no gap: a frame for which none comes goes on without coming in."""
    bench = LoopBench(3140, gap=0)
    sent = [(bench.send(200, number % 2, 1), number % 2, 1) for number in range(40)]
    received = [bench.receive(1500) for _ in range(60)]
    bench.run()
    assert bench.check_ways(sent, received) == 2
    assert bench.sent_times[1] - bench.sent_times[0] > 4096
    # The first one has its turn, and so have those that come when the MAC pauses.
    back = [frame for frame in bench.into if frame[0] != 0xB0]
    assert back == [frame for frame, _, _ in (sent[0], *sent[3:])]


def test_a_wire_that_is_slow():
    """Frames to a group that take several times their words, and the MAC brings words all the
    while: they are cut before anything of the MAC's is lost, reach the wire whole, and what comes
    after them is whole."""
    bench = LoopBench(3150, gap=2, wire_stall=0.8)
    sent, received = [], []
    for number in range(30):
        own, group = number % 3 == 0, number % 3 != 0
        length = LONGEST if number % 2 else 60
        sent.append((bench.send(length, own, group), own, group))
    received += [bench.receive(bench.rng.choice((60, 65, 300))) for _ in range(300)]
    bench.run()
    assert bench.check_ways(sent, received) == len(bench.cut) > 1
    assert len(bench.into) > len(received) + 10


def test_a_wire_that_stands_still():
    """Not even the first word is taken until the FIFO is full."""
    bench = LoopBench(3160, gap=2, wire_stall=0.999)
    sent = [(bench.send(20, 0, 1), 0, 1)]
    received = [bench.receive(65) for _ in range(60)]
    bench.run()
    assert bench.check_ways(sent, received) == 1
    assert len(bench.cut) == 1 and bench.sent_times[0] > 140
