"""Proofs of the round robin and of the write arbiter's order."""

import pytest
from amaranth.hdl import Array, Assert, Assume, Cat, Cover, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In

from sim_tb.formal.prove import prove, refute
from sim_tb.formal.stream import PAYLOAD_CHANGED, VALID_DROPPED, StreamContract
from uwarp_hdl.dma import write as write_unit
from uwarp_hdl.dma.write import WriteArbiter
from uwarp_hdl.stream.arbiter import RoundRobin

NO_REQUEST = "one that does not request is chosen"
IDLE = "somebody requests and nobody is chosen"
PASSED_OVER = "a requester is passed over more than count - 1 times"


class RoundRobinProof(wiring.Component):
    """Who is chosen asks for it, and who asks is passed over at most ``count - 1`` times."""

    def __init__(self, arbiter, count):
        self._arbiter, self._count = arbiter, count
        super().__init__({"requests": In(count), "advance": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.arbiter = arbiter = self._arbiter
        m.d.comb += [
            arbiter.requests.eq(self.requests),
            arbiter.advance.eq(self.advance),
            Assume(~self.advance | self.requests.any()),
            Assert(arbiter.valid == self.requests.any(), IDLE),
        ]
        with m.If(arbiter.valid):
            m.d.comb += Assert((self.requests >> arbiter.index)[0], NO_REQUEST)
        for index, request in enumerate(self.requests):
            passed = Signal(range(self._count + 1), name=f"passed{index}")
            with m.If(~request):
                m.d.sync += passed.eq(0)
            with m.Elif(self.advance):
                m.d.sync += passed.eq(Mux(arbiter.index == index, 0, passed + 1))
            m.d.comb += Assert(passed <= self._count - 1, PASSED_OVER)
            m.d.comb += Cover(passed == self._count - 1, f"{index} waits its longest")
        return m


class FixedPriority(wiring.Component):
    """A RoundRobin that forgets who was served."""

    def __init__(self, count):
        self._turn = RoundRobin(count)
        super().__init__(self._turn.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.turn = turn = self._turn
        m.d.comb += [
            turn.requests.eq(self.requests),
            self.index.eq(turn.index),
            self.valid.eq(turn.valid),
        ]
        return m


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_round_robin(tmp_path, count):
    prove(RoundRobinProof(RoundRobin(count), count), tmp_path, cycles=16)


def test_a_fixed_priority_is_refuted(tmp_path):
    proof = RoundRobinProof(FixedPriority(3), 3)
    refute(proof, tmp_path, cycles=8, message=PASSED_OVER)


CLIENTS = 2
BURST_ORDER = "AW does not follow the grants"
WORD_ORDER = "W does not follow the words taken"
WRONG_CLIENT = "a word is taken from a client whose burst is not at the head"
WRONG_ANSWER = "an answer does not reach the client of its burst alone"
NO_GRANT = "a burst is not granted though there is room"
NO_WORD = "a word of the burst at the head is not taken though there is room for it"


class WriteProof(wiring.Component):
    """Bursts, words and answers keep the order of the grants, each with its own client.

    One burst is marked by the solver as it is granted. ``ahead`` is how many bursts are before it
    where its address, its words, and its answer are waited for.
    """

    def __init__(self, arbiter):
        self._arbiter = arbiter
        super().__init__(
            {
                "bursts": In(CLIENTS),
                "beats": In(CLIENTS),
                "lasts": In(CLIENTS),
                "addresses": In(2).array(CLIENTS),
                "awready": In(1),
                "wready": In(1),
                "bvalid": In(1),
                "bresp": In(2),
                "mark": In(1),
                "halt": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.arbiter = arbiter = self._arbiter
        bus, clients = arbiter.bus, arbiter.clients
        for index, client in enumerate(clients):
            m.d.comb += [
                client.bursts.valid.eq(self.bursts[index]),
                client.bursts.payload.address.eq(self.addresses[index]),
                client.bursts.payload.beats.eq(index),
                client.beats.valid.eq(self.beats[index]),
                client.beats.payload.last.eq(self.lasts[index]),
                client.beats.payload.data.eq(index),
            ]
            m.submodules[f"bursts{index}"] = StreamContract(client.bursts, Assume)
            m.submodules[f"beats{index}"] = StreamContract(client.beats, Assume)
        m.d.comb += [
            bus.awready.eq(self.awready),
            bus.wready.eq(self.wready),
            bus.bvalid.eq(self.bvalid),
            bus.bresp.eq(self.bresp),
            arbiter.halt.eq(self.halt),
        ]
        for name, width in (("aw", 3), ("w", 2)):
            channel = stream.Signature(width).create(path=(name,))
            fields = {"aw": Cat(bus.awaddr[:2], bus.awlen[0]), "w": Cat(bus.wdata[0], bus.wlast)}
            m.d.comb += [
                channel.valid.eq(getattr(bus, f"{name}valid")),
                channel.ready.eq(getattr(bus, f"{name}ready")),
                channel.payload.eq(fields[name]),
            ]
            m.submodules[f"{name}_contract"] = StreamContract(channel, Assert)

        granted_to = Cat(client.bursts.valid & client.bursts.ready for client in clients)
        taken_from = Cat(client.beats.valid & client.beats.ready for client in clients)
        granted, aw = granted_to.any(), bus.awvalid & bus.awready
        word = taken_from.any()
        word_end = (taken_from & self.lasts).any()
        w_end = bus.wvalid & bus.wready & bus.wlast

        # Words taken that have not left.
        held = Signal(2)
        m.d.sync += held.eq(held + word - (bus.wvalid & bus.wready))

        # Bursts granted that wait for: AW, the taking of their words, their end on W, an answer.
        stages = {"aw": aw, "words": word_end, "w": w_end, "answer": self.bvalid}
        waiting = {name: Signal(4, name=f"{name}_waiting") for name in stages}
        ahead = {name: Signal(4, name=f"{name}_ahead") for name in stages}
        to_come = {name: Signal(name=f"{name}_to_come") for name in stages}
        marked, owner, address = Signal(), Signal(), Signal(2)
        marking = granted & self.mark & ~marked
        for name, leaves in stages.items():
            m.d.sync += waiting[name].eq(waiting[name] + granted - leaves)
            with m.If(marking):
                m.d.sync += [ahead[name].eq(waiting[name] - leaves), to_come[name].eq(1)]
            with m.Elif(leaves & to_come[name]):
                m.d.sync += ahead[name].eq(ahead[name] - 1)
                m.d.sync += to_come[name].eq(ahead[name] != 0)
        with m.If(marking):
            m.d.sync += [
                marked.eq(1),
                owner.eq(granted_to[1]),
                address.eq(Array(self.addresses)[granted_to[1]]),
            ]
        at_head = {name: to_come[name] & (ahead[name] == 0) for name in stages}

        m.d.comb += [
            # The bus answers what it has got in full.
            Assume(~self.bvalid | (waiting["answer"] > waiting["w"])),
            Assume(~self.bvalid | (waiting["answer"] > waiting["aw"])),
            Assert(~granted_to.all() & ~taken_from.all(), WRONG_CLIENT),
            Assert(~bus.awvalid | (waiting["aw"] != 0), BURST_ORDER),
            Assert(~word | (waiting["words"] != 0), WRONG_CLIENT),
            Assert(~bus.wvalid | (waiting["w"] != 0), WORD_ORDER),
            Assert(bus.wvalid == (held != 0), "W is not what has been taken"),
        ]
        with m.If(bus.awvalid & at_head["aw"]):
            m.d.comb += Assert(
                Cat(bus.awaddr[:2], bus.awlen[0]) == Cat(address, owner), BURST_ORDER
            )
        # A burst that is granted just when the words before it have gone waits a cycle longer.
        was_at_head = Signal()
        m.d.sync += was_at_head.eq(at_head["words"])
        with m.If(at_head["words"]):
            m.d.comb += Assert(~(taken_from & (1 << ~owner)).any(), WRONG_CLIENT)
            with m.If(was_at_head & (self.beats >> owner)[0] & (held < 2)):
                m.d.comb += Assert(word, NO_WORD)
        with m.If(bus.wvalid & at_head["w"]):
            m.d.comb += Assert(bus.wdata[0] == owner, WORD_ORDER)

        answered, failed, for_owner = Signal(), Signal(), Signal()
        m.d.sync += [
            answered.eq(self.bvalid),
            failed.eq(self.bresp[1]),
            for_owner.eq(self.bvalid & at_head["answer"]),
        ]
        done = Cat(client.done for client in clients)
        error = Cat(client.error for client in clients)
        m.d.comb += [
            Assert(done.any() == answered, WRONG_ANSWER),
            Assert(~done.all() & (error.any() == (answered & failed)), WRONG_ANSWER),
            Assert((error & ~done) == 0, WRONG_ANSWER),
        ]
        with m.If(for_owner):
            m.d.comb += Assert((done >> owner)[0], WRONG_ANSWER)

        room = (waiting["answer"] < write_unit.OUTSTANDING) & ~self.halt
        # Whose turn it is, and whether there may be a grant, was decided in the cycle before.
        waited = Signal(CLIENTS)
        could, was_granted, was_halted = Signal(), Signal(), Signal()
        m.d.sync += [
            waited.eq(self.bursts & ~granted_to),
            was_granted.eq(granted),
            was_halted.eq(self.halt),
            could.eq((~bus.awvalid | bus.awready) & room & ~granted & ~was_granted),
        ]
        with m.If(waited.any() & could):
            m.d.comb += Assert(granted, NO_GRANT)
        with m.If(self.halt & was_halted):
            m.d.comb += Assert(~granted, "a burst is granted during halt")
        m.d.comb += [
            Assert(waiting["answer"] <= write_unit.OUTSTANDING + 1, "too many bursts"),
            Cover(marked & ~at_head["answer"] & arbiter.idle, "the marked burst is done"),
            Cover(waiting["answer"] == write_unit.OUTSTANDING + 1, "full"),
            Cover((waiting["aw"] > waiting["w"]), "words before their address"),
        ]
        return m


class FaultyWrite(wiring.Component):
    """A WriteArbiter with a fault at its clients' or its bus's side."""

    def __init__(self, fault):
        self._arbiter, self._fault = WriteArbiter(CLIENTS), fault
        super().__init__(self._arbiter.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.arbiter = arbiter = self._arbiter
        other = {"words": "beats", "answers": "done"}.get(self._fault)
        for index, client in enumerate(self.clients):
            for name in ("bursts", "beats"):
                inner = arbiter.clients[1 - index if name == other else index]
                wiring.connect(m, wiring.flipped(getattr(client, name)), getattr(inner, name))
            inner = arbiter.clients[1 - index if other == "done" else index]
            m.d.comb += [client.done.eq(inner.done), client.error.eq(inner.error)]
        wiring.connect(m, arbiter.bus, wiring.flipped(self.bus))
        m.d.comb += [arbiter.halt.eq(self.halt), self.idle.eq(arbiter.idle)]
        waited = Signal()
        m.d.sync += waited.eq(self.bus.awvalid & ~self.bus.awready)
        match self._fault:
            case "address":
                m.d.comb += self.bus.awaddr.eq(arbiter.bus.awaddr ^ waited)
            case "valid":
                m.d.comb += self.bus.awvalid.eq(arbiter.bus.awvalid & ~waited)
        return m


@pytest.fixture
def few_outstanding(monkeypatch):
    """So few that the bound reaches them."""
    monkeypatch.setattr(write_unit, "OUTSTANDING", 4)


def test_write_arbiter(tmp_path, few_outstanding):
    prove(WriteProof(WriteArbiter(CLIENTS)), tmp_path, cycles=12)


@pytest.mark.parametrize(
    "fault, message",
    [
        ("words", WRONG_CLIENT),
        ("answers", WRONG_ANSWER),
        ("address", PAYLOAD_CHANGED),
        ("address", BURST_ORDER),
        ("valid", VALID_DROPPED),
    ],
)
def test_a_faulty_write_arbiter_is_refuted(tmp_path, few_outstanding, fault, message):
    refute(WriteProof(FaultyWrite(fault)), tmp_path, cycles=7, message=message)
