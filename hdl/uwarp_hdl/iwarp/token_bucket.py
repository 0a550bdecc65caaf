"""Send rates: a bucket of octets for each queue pair (device behaviour, 7.9).

::

    charges -------+
    rows written --+--> row --> register --> add --> level, rate, burst of the row
    refills due ---+                          '----> dry, a bit a QP --> wakes

Charges go first; what one makes of ``dry`` shows 4 cycles later. A refill or a row written that it
finds on the way, of its own QP, is done again after it. Those take 2 cycles each.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import TICK_CYCLES, Parameters
from uwarp.wire import FRAME_OVERHEAD, MIN_FRAME

from ..layouts import QP_ROW
from ..stream.queue import Queue
from .fetch import LENGTH_WIDTH
from .scheduler import qp_width

__all__ = ["TokenBuckets", "charge_layout", "refill_ticks"]

#: Cycles from one refill to the next, at least: one takes 2, and charges go first.
_REFILL_CYCLES = 4

#: A rate counts in 1/2^8 of an octet, a burst in 2^6 octets.
_PART_BITS = 8
_BURST_UNIT_BITS = 6

#: QPs that wait to be told of, at most.
_WAKES = 8

#: Bits of a level: the gain of four ticks on top of the largest burst, and the sign.
_LEVEL_BITS = 32 + 2 + 2


def refill_ticks(parameters: Parameters) -> int:
    """Ticks from one refill of a QP to the next: 1 up to 256 QPs, 2 for 512, 4 for 1024."""
    return max(1, _REFILL_CYCLES * parameters.n_qp // TICK_CYCLES)


def charge_layout(parameters: Parameters) -> data.StructLayout:
    """With ``valid``, for one cycle: QP ``qpn`` sends a frame of ``octets`` octets."""
    return data.StructLayout({"valid": 1, "qpn": qp_width(parameters), "octets": LENGTH_WIDTH})


class _Kind(enum.Enum, shape=2):
    NOTHING = 0
    CHARGE = 1
    FILL = 2
    REFILL = 3


class TokenBuckets(wiring.Component):
    """Keep count of what each queue pair may still send.

    A refill is the gain of ``refill_ticks`` ticks at once; a bucket that holds less loses the rest.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    written, written_qpn, written_row : In
        Strobe: this QP's row is written. Within 16 cycles its bucket is full; as long no other row
        may be written.
    charge : In(charge_layout)
        At least 4 cycles apart, and 8 on average: then refills keep up. A frame shorter than the
        shortest is charged as that.
    look, dry : In, Out(1)
        ``dry`` answers ``look`` in the same cycle: the QP has a rate and nothing in its bucket.
    wakes : Out(stream of QPN)
        Each QP that is no longer ``dry``, a cycle or more after it ceased to be.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        width = qp_width(parameters)
        super().__init__(
            {
                "written": In(1),
                "written_qpn": In(width),
                "written_row": In(QP_ROW),
                "charge": In(charge_layout(parameters)),
                "look": In(width),
                "dry": Out(1),
                "wakes": Out(stream.Signature(width)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n_qp, width = self._parameters.n_qp, len(self.look)
        layout = data.StructLayout({"level": _LEVEL_BITS, "rate": 32, "burst": 16})
        m.submodules.rows = rows = Memory(shape=layout, depth=n_qp, init=[])
        read, write = rows.read_port(), rows.write_port()

        m.submodules.woken = woken = Queue(width, _WAKES)
        wiring.connect(m, woken.o, wiring.flipped(self.wakes))

        # Choose. One operation of a QP at a time is between here and its end. Those that are on
        # their way all have room in the queue.
        operation = data.StructLayout({"kind": _Kind, "qpn": width})
        chosen = Signal(operation)
        reading, adding, ending = stages = [
            Signal(operation, name=name) for name in ("reading", "adding", "ending")
        ]
        fill = Signal(data.StructLayout({"qpn": width, "rate": 32, "burst": 16}))
        fill_due = Signal()
        again = Signal(data.StructLayout({"due": 1, "qpn": width}))
        due = Signal(range(n_qp + 1))
        sweep = Signal(width)
        other = Signal(operation)
        takes_other = Signal()
        roomy = Signal()
        m.d.sync += roomy.eq(woken.level < _WAKES - 5)
        sweeps = Signal()
        with m.If(takes_other):
            m.d.sync += other.kind.eq(_Kind.NOTHING)
        with m.Elif(other.kind == _Kind.NOTHING):
            m.d.sync += other.qpn.eq(Mux(fill_due, fill.qpn, Mux(again.due, again.qpn, sweep)))
            with m.If(fill_due):
                m.d.sync += [other.kind.eq(_Kind.FILL), fill_due.eq(0)]
            with m.Elif(again.due):
                m.d.sync += [other.kind.eq(_Kind.REFILL), again.due.eq(0)]
            with m.Elif(due != 0):
                m.d.comb += sweeps.eq(1)
                m.d.sync += [other.kind.eq(_Kind.REFILL), sweep.eq(sweep + 1)]
        on_its_way = Cat(
            (stage.kind != _Kind.NOTHING) & (stage.qpn == other.qpn) for stage in stages
        )
        m.d.comb += [
            takes_other.eq(
                ~self.charge.valid & (other.kind != _Kind.NOTHING) & ~on_its_way.any() & roomy
            ),
            read.addr.eq(Mux(self.charge.valid, self.charge.qpn, other.qpn)),
            chosen.qpn.eq(read.addr),
        ]
        with m.If(self.charge.valid):
            m.d.comb += chosen.kind.eq(_Kind.CHARGE)
        with m.Elif(takes_other):
            m.d.comb += chosen.kind.eq(other.kind)

        # One that a charge overtakes ends here, and is due again.
        overtaken = Signal(3)
        m.d.comb += overtaken.eq(
            Cat(self.charge.valid & (stage.qpn == self.charge.qpn) for stage in stages)
        )
        m.d.sync += [reading.eq(chosen), adding.eq(reading), ending.eq(adding)]
        for index, after in enumerate((adding, ending)):
            with m.If(overtaken[index]):
                m.d.sync += after.kind.eq(_Kind.NOTHING)

        period = TICK_CYCLES * refill_ticks(self._parameters) // n_qp
        timer = Signal(range(period))
        expires = Signal()
        m.d.comb += expires.eq(timer == period - 1)
        m.d.sync += [timer.eq(Mux(expires, 0, timer + 1)), due.eq(due + expires - sweeps)]
        for index, stage in enumerate(stages):
            with m.If(overtaken[index] & (stage.kind == _Kind.REFILL)):
                m.d.sync += [again.due.eq(1), again.qpn.eq(stage.qpn)]
            with m.If(overtaken[index] & (stage.kind == _Kind.FILL)):
                m.d.sync += fill_due.eq(1)
        with m.If(self.written):
            m.d.sync += [
                fill_due.eq(1),
                fill.qpn.eq(self.written_qpn),
                fill.rate.eq(self.written_row.send_rate),
                fill.burst.eq(self.written_row.send_burst),
            ]

        # Add.
        charged = [Signal(LENGTH_WIDTH, name=f"charged_{stage}") for stage in range(2)]
        row = Signal(layout)
        total = Signal(_LEVEL_BITS)
        limit = Signal(_LEVEL_BITS)
        rate, burst = Signal(32), Signal(16)
        gain = Cat(Const(0, exact_log2(refill_ticks(self._parameters))), row.rate)
        cost = Cat(Const(0, _PART_BITS), charged[1])
        shortest = Mux(self.charge.octets < MIN_FRAME, MIN_FRAME, self.charge.octets)
        m.d.sync += [
            charged[0].eq(shortest + FRAME_OVERHEAD),
            charged[1].eq(charged[0]),
            row.eq(read.data),
            total.eq(Mux(adding.kind == _Kind.CHARGE, row.level - cost, row.level + gain)),
            rate.eq(row.rate),
            burst.eq(row.burst),
            limit.eq(Cat(Const(0, _BURST_UNIT_BITS + _PART_BITS), row.burst + 1)),
        ]
        with m.If(adding.kind == _Kind.FILL):
            m.d.sync += [
                rate.eq(fill.rate),
                burst.eq(fill.burst),
                limit.eq(Cat(Const(0, _BURST_UNIT_BITS + _PART_BITS), fill.burst + 1)),
            ]

        # End. The highest bit is a level's sign.
        full = Signal()
        m.submodules.dry = dry = Memory(shape=1, depth=n_qp, init=[])
        dry_look, dry_before = (dry.read_port(domain="comb") for _ in range(2))
        dry_write = dry.write_port()
        m.d.comb += [
            full.eq(
                (ending.kind == _Kind.FILL)
                | ((ending.kind == _Kind.REFILL) & ~total[-1] & (total[:-1] > limit[:-1]))
            ),
            write.addr.eq(ending.qpn),
            write.data.level.eq(Mux(full, limit, total)),
            write.data.rate.eq(rate),
            write.data.burst.eq(burst),
            write.en.eq((ending.kind != _Kind.NOTHING) & ~overtaken[2]),
            dry_look.addr.eq(self.look),
            self.dry.eq(dry_look.data),
            dry_before.addr.eq(ending.qpn),
            dry_write.addr.eq(ending.qpn),
            dry_write.data.eq((rate != 0) & ~full & (total[-1] | ~total.any())),
            dry_write.en.eq(write.en),
            woken.i.p.eq(ending.qpn),
            woken.i.valid.eq(write.en & dry_before.data & ~dry_write.data),
        ]
        return m
