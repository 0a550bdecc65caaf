"""Proofs of the soft reset and of the gates that keep frames whole through it (P32)."""

import pytest
from amaranth.hdl import Assert, Assume, Cover, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from sim_tb.formal.prove import prove, refute
from sim_tb.formal.stream import StreamContract
from uwarp_hdl.csr.reset import ReceiveGate, SoftReset, TransmitGate

SPLIT = "a frame is passed in part"
LATE = "a frame that began outside is passed"
HELD_UP = "a frame that is dropped holds up the input"
BEGUN = "a frame begins during halt"
STOPPED = "a frame that has begun is stopped"
NOT_QUIET = "reset not two cycles after all was quiet, or longer than a cycle"
NOT_HALTED = "reset without halt"
NOT_BUSY = "not busy until the sweep is over"


class SoftResetProof(wiring.Component):
    request: In(1)
    quiet: In(1)
    sweeping: In(1)

    def __init__(self, unit):
        self._unit = unit
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit
        m.d.comb += [
            unit.request.eq(self.request),
            unit.quiet.eq(self.quiet),
            unit.sweeping.eq(self.sweeping),
        ]
        quiet, was_quiet, was_reset, requested, swept = (Signal() for _ in range(5))
        m.d.sync += [
            quiet.eq(self.quiet & unit.halt),
            was_quiet.eq(quiet),
            was_reset.eq(unit.reset),
            requested.eq((requested | (self.request & ~unit.busy)) & ~unit.reset),
            swept.eq((swept | ~self.sweeping) & ~unit.reset & ~requested),
        ]
        m.d.comb += [
            Assert(~unit.reset | (was_quiet & ~was_reset), NOT_QUIET),
            Assert(~unit.reset | unit.halt, NOT_HALTED),
            Assert(unit.halt == requested, NOT_HALTED),
            Assert(unit.busy | (swept & ~requested), NOT_BUSY),
            Cover(was_reset & self.sweeping, "reset"),
            Cover(~unit.busy & self.request, "asked when idle"),
        ]
        return m


class GateProof(wiring.Component):
    """Each frame is passed whole or not at all; a cut alone shortens one that is passed."""

    def __init__(self, gate):
        self._gate = gate
        super().__init__(
            {
                "valid": In(1),
                "last": In(1),
                "data": In(2),
                "ready": In(1),
                "open": In(1),
                "cut": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.gate = gate = self._gate
        receive = hasattr(gate, "cut")
        i, o = gate.i, gate.o
        m.d.comb += [
            i.valid.eq(self.valid),
            i.payload.data.eq(self.data),
            i.payload.last.eq(self.last),
            o.ready.eq(self.ready),
        ]
        cut = self.cut if receive else Signal()
        m.submodules.i_contract = StreamContract(i, Assume)
        m.submodules.o_contract = StreamContract(o, Assert, waive=cut)

        took, gave = i.valid & i.ready, o.valid & o.ready
        # Where the input is in its frame, what the first beat's fate was, whether it was cut since.
        inside, passed, cut_since, pending = Signal(), Signal(), Signal(), Signal()
        with m.If(took):
            m.d.sync += inside.eq(~i.payload.last)
            with m.If(~inside):
                m.d.sync += passed.eq(gave)
        m.d.sync += cut_since.eq((cut_since & (inside | pending) | cut) & ~(took & i.payload.last))
        m.d.sync += pending.eq(i.valid & ~i.ready & ~inside)
        with m.If(o.valid):
            m.d.comb += [
                Assert(i.valid & (o.payload.as_value() == i.payload.as_value()), SPLIT),
                Assert(~inside | passed, LATE),
            ]
        with m.If(gave != took):
            # What is given is taken; what is taken is given, or its frame is dropped from its start
            # or from a cut on.
            m.d.comb += Assert(~gave & Mux(inside, ~passed | cut_since, 1), SPLIT)
        if receive:
            m.d.comb += [gate.open.eq(self.open), gate.cut.eq(self.cut)]
            with m.If(i.valid & ~inside & ~pending):
                m.d.comb += Assert(o.valid == self.open, LATE)
            m.d.comb += Assert(~i.valid | o.valid | i.ready, HELD_UP)
        else:
            m.d.comb += gate.halt.eq(~self.open)
            with m.If(i.valid & (inside | (pending & ~gate.idle))):
                m.d.comb += Assert(o.valid, STOPPED)
            halted = Signal()
            m.d.sync += halted.eq(gate.halt)
            with m.If(halted & ~inside & gate.idle):
                m.d.comb += Assert(~o.valid, BEGUN)
            m.d.comb += Assert(~inside | ~gate.idle, BEGUN)
            m.d.comb += Assert(~took | gave, SPLIT)
            m.d.comb += Assert(~inside | passed, SPLIT)
        m.d.comb += Cover(inside & passed & o.valid & ~self.open & self.last, "closed in a frame")
        return m


class LeakyGate(wiring.Component):
    """A gate that follows its control in the middle of a frame."""

    def __init__(self, gate):
        self._gate = gate
        super().__init__(gate.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.gate = gate = self._gate
        wiring.connect(m, wiring.flipped(self.i), gate.i)
        wiring.connect(m, gate.o, wiring.flipped(self.o))
        if hasattr(gate, "cut"):
            m.d.comb += [gate.open.eq(self.open), gate.cut.eq(self.cut | ~self.open)]
        else:
            m.d.comb += [gate.halt.eq(self.halt), self.idle.eq(gate.idle)]
            with m.If(self.halt):
                m.d.comb += [self.o.valid.eq(0), self.i.ready.eq(0), gate.o.ready.eq(0)]
        return m


class HastyReset(wiring.Component):
    """A soft reset that does not wait until all is quiet."""

    def __init__(self):
        self._unit = SoftReset()
        super().__init__(self._unit.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit
        m.d.comb += [
            unit.request.eq(self.request),
            unit.quiet.eq(1),
            unit.sweeping.eq(self.sweeping),
            self.halt.eq(unit.halt),
            self.reset.eq(unit.reset),
            self.busy.eq(unit.busy),
        ]
        return m


def test_soft_reset(tmp_path):
    prove(SoftResetProof(SoftReset()), tmp_path, cycles=15, induction=4)


def test_a_hasty_reset_is_refuted(tmp_path):
    refute(SoftResetProof(HastyReset()), tmp_path, cycles=8, message=NOT_QUIET)


def test_receive_gate(tmp_path):
    prove(GateProof(ReceiveGate()), tmp_path, cycles=15)


def test_transmit_gate(tmp_path):
    prove(GateProof(TransmitGate()), tmp_path, cycles=15, induction=4)


@pytest.mark.parametrize("gate, message", [(ReceiveGate, SPLIT), (TransmitGate, STOPPED)])
def test_a_leaky_gate_is_refuted(tmp_path, gate, message):
    refute(GateProof(LeakyGate(gate())), tmp_path, cycles=8, message=message)
