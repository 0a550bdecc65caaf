"""Send rates: a bucket of octets for each queue pair (device behaviour, 7.9).

::

    charges -------+
    refills due ---+--> level --> register --> add --> level
    rows written --+--> rate, burst             '----> dry, a bit a QP --> wakes

Charges go first; what one makes of ``dry`` shows 4 cycles later. A refill, or the filling of a
bucket whose row is written, that it finds on the way, of its own QP, is done again after it. Those
take 2 cycles each.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import TICK_CYCLES, Parameters
from uwarp.wire import FRAME_OVERHEAD, MIN_FRAME

from ..compare import at_least
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

#: Bits of a level between two operations: the largest burst and the sign. One that no rate refills
#: may wrap around.
_LEVEL_BITS = 16 + _BURST_UNIT_BITS + _PART_BITS + 2


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
        # With each level what ``dry`` says of it, and whether there is a rate. No row is read while
        # it is written: what a charge meets on its way does not end.
        layout = data.StructLayout({"level": signed(_LEVEL_BITS), "dry": 1, "limited": 1})
        m.submodules.rows = rows = Memory(
            shape=layout, depth=n_qp, init=[], attrs={"no_rw_check": 1}
        )
        read, write = rows.read_port(), rows.write_port()
        # Of each QP its rate and its limit, the burst and a unit, a word each, the limit a cycle
        # later. What is read of one in the cycle in which it is written does not matter: the bucket
        # is filled after that.
        m.submodules.rates = rates = Memory(
            shape=32, depth=2 * n_qp, init=[], attrs={"no_rw_check": 1}
        )
        rate_read, rate_write = rates.read_port(), rates.write_port()
        writes_limit = Signal()
        fill_qpn = Signal(width, reset_less=True)
        new_limit = Signal(17, reset_less=True)
        m.d.sync += [writes_limit.eq(self.written), new_limit.eq(self.written_row.send_burst + 1)]
        m.d.comb += [
            rate_write.addr.eq(Cat(writes_limit, Mux(writes_limit, fill_qpn, self.written_qpn))),
            rate_write.data.eq(Mux(writes_limit, new_limit, self.written_row.send_rate)),
            rate_write.en.eq(self.written | writes_limit),
        ]

        m.submodules.woken = woken = Queue(width, _WAKES)
        wiring.connect(m, woken.o, wiring.flipped(self.wakes))

        # Choose. One operation of a QP at a time is between here and its end. Those that are on
        # their way all have room in the queue.
        operation = data.StructLayout({"kind": _Kind, "qpn": width})
        chosen = Signal(operation)
        reading, adding, ending = stages = [
            Signal(operation, name=name) for name in ("reading", "adding", "ending")
        ]
        fill_due = Signal()
        again = Signal(data.StructLayout({"due": 1, "qpn": width}))
        due = Signal(range(n_qp + 1))
        sweep = Signal(width)
        other = Signal(operation)
        reads_limit = Signal()
        takes_other = Signal()
        roomy = Signal()
        m.d.sync += roomy.eq(woken.level < _WAKES - 5)
        sweeps = Signal()
        with m.If(takes_other):
            m.d.sync += other.kind.eq(_Kind.NOTHING)
        with m.If(other.kind == _Kind.NOTHING):
            m.d.sync += other.qpn.eq(Mux(fill_due, fill_qpn, Mux(again.due, again.qpn, sweep)))
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
            # Others than charges, which need neither, begin every other cycle at most.
            rate_read.addr.eq(Mux(reads_limit, Cat(Const(1, 1), reading.qpn), other.qpn << 1)),
            chosen.qpn.eq(read.addr),
        ]
        m.d.sync += reads_limit.eq(takes_other)
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
            m.d.sync += [fill_due.eq(1), fill_qpn.eq(self.written_qpn)]

        # Add: the gain, or the complement of the cost and 1.
        least = MIN_FRAME + FRAME_OVERHEAD
        charged = [
            Signal(LENGTH_WIDTH, name="octets", reset_less=True),
            Signal(LENGTH_WIDTH, name="charged", init=least, reset_less=True),
        ]
        row = Signal(layout, reset_less=True)
        rate = Signal(32, reset_less=True)
        gain_shift = exact_log2(refill_ticks(self._parameters))
        total = Signal(signed(32 + gain_shift + 2), reset_less=True)
        limited = Signal(reset_less=True)
        was_dry = Signal(reset_less=True)
        limit = Signal(17, reset_less=True)
        charges = adding.kind == _Kind.CHARGE
        gain = Cat(Const(0, gain_shift), rate)
        level, cost = Signal(len(total)), Signal(len(total))
        summand = Mux(charges, ~cost, gain)
        m.d.comb += [level.eq(row.level), cost.eq(Cat(Const(0, _PART_BITS), charged[1]))]
        m.d.sync += [
            charged[0].eq(self.charge.octets),
            charged[1].eq(charged[0] + FRAME_OVERHEAD),
            row.eq(read.data),
            rate.eq(rate_read.data),
            total.eq((Cat(Const(1, 1), level) + Cat(charges, summand))[1:]),
            limited.eq(Mux(charges, row.limited, rate.any())),
            was_dry.eq(row.dry),
            limit.eq(rate_read.data),
        ]
        with m.If(~at_least(charged[0], MIN_FRAME)):
            m.d.sync += charged[1].eq(least)

        # End. A level of the limit's last unit may as well be cut to it, so units are compared.
        units = total[_BURST_UNIT_BITS + _PART_BITS : -1]
        beyond, full = Signal(len(units) + 1), Signal()
        m.submodules.dry = dry = Memory(shape=1, depth=n_qp, init=[])
        dry_look, dry_write = dry.read_port(domain="comb"), dry.write_port()
        m.d.comb += [
            # Its highest bit is the borrow: a carry chain, where synthesis makes LUTs of ``<=``.
            beyond.eq(units - limit),
            full.eq(
                (ending.kind == _Kind.FILL)
                | ((ending.kind == _Kind.REFILL) & ~total[-1] & ~beyond[-1])
            ),
            write.addr.eq(ending.qpn),
            write.data.limited.eq(limited),
            write.data.level.eq(
                Mux(full, Cat(Const(0, _BURST_UNIT_BITS + _PART_BITS), limit), total)
            ),
            write.data.dry.eq(limited & ~full & (total[-1] | ~total.any())),
            write.en.eq((ending.kind != _Kind.NOTHING) & ~overtaken[2]),
            dry_look.addr.eq(self.look),
            self.dry.eq(dry_look.data),
            dry_write.addr.eq(ending.qpn),
            dry_write.data.eq(write.data.dry),
            dry_write.en.eq(write.en),
        ]
        m.d.sync += [
            woken.i.p.eq(ending.qpn),
            woken.i.valid.eq(write.en & was_dry & ~write.data.dry),
        ]
        return m
