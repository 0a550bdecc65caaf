"""Send rates: a bucket of octets for each queue pair (device behaviour, 7.9).

::

    row written --+
    charges ------+--> one machine <--> rows: level, rate, burst
    sweep --------+          |
                             +--> dry: a bit a QP

Each QP is refilled once in ``sweep_ticks`` ticks. An operation takes 4 cycles; a datagram is
charged every 7 cycles at most and a refill is due every 16, so that none is late.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import TICK_CYCLES, Parameters
from uwarp.wire import FRAME_OVERHEAD

from ..layouts import QP_ROW
from .fetch import LENGTH_WIDTH
from .scheduler import qp_width

__all__ = ["TokenBuckets", "charge_layout", "sweep_ticks"]

REFILL_CYCLES = 16
SHORTEST = 60

#: Fractions of an octet that a rate counts in.
_FRACTION = 8
#: Bits of a level: a burst of up to 2^22 octets, or what the highest rate adds at once; and a sign.
_LEVEL = 40


def sweep_ticks(parameters: Parameters) -> int:
    """Ticks between two refills of a QP: 1 up to 64 QPs."""
    return max(1, REFILL_CYCLES * parameters.n_qp // TICK_CYCLES)


def charge_layout(parameters: Parameters) -> data.StructLayout:
    """With ``valid``, for one cycle: a frame of ``octets`` octets of a QP is cut."""
    return data.StructLayout({"valid": 1, "qpn": qp_width(parameters), "octets": LENGTH_WIDTH})


class TokenBuckets(wiring.Component):
    """Keep count of what each queue pair may still send.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    written, written_qpn, written_row : In
        Strobe: the row of this QP is written. Its bucket is full a few cycles later.
    charge : In(charge_layout)
        At least 6 cycles apart.
    look, dry : In, Out(1)
        Whether the QP looked for in this cycle must wait; the last charge counts from 6 cycles on.
    busy : Out(1)
        The rows are being cleared after a reset.
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
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n_qp = self._parameters.n_qp
        layout = data.StructLayout({"level": _LEVEL, "rate": 32, "burst": 16})
        m.submodules.rows = rows = Memory(shape=layout, depth=n_qp, init=[])
        read, write = rows.read_port(), rows.write_port()

        period = TICK_CYCLES * sweep_ticks(self._parameters) // n_qp
        timer = Signal(range(period))
        sweep = Signal(qp_width(self._parameters))
        due = Signal()
        fill = Signal(data.StructLayout({"pending": 1, "qpn": len(sweep), "rate": 32, "burst": 16}))
        owed = Signal(charge_layout(self._parameters))
        m.d.sync += timer.eq(timer + 1)
        with m.If(timer == period - 1):
            m.d.sync += [timer.eq(0), due.eq(1)]

        qpn = Signal.like(sweep)
        row = Signal(layout)
        filling, charging = Signal(), Signal()
        gain = Signal(_LEVEL)
        level = Signal(_LEVEL)
        raised = Signal(_LEVEL)
        cap = Signal(_LEVEL)
        dry = Signal(n_qp)
        m.d.comb += [
            read.addr.eq(Mux(fill.pending, fill.qpn, Mux(owed.valid, owed.qpn, sweep))),
            raised.eq(row.level + gain),
            cap.eq(Cat(Const(0, 6 + _FRACTION), row.burst + 1)),
            write.addr.eq(qpn),
            write.data.rate.eq(row.rate),
            write.data.burst.eq(row.burst),
            write.data.level.eq(Mux(row.rate == 0, 0, level)),
            self.dry.eq(dry.bit_select(self.look, 1)),
        ]
        # A level is negative if its highest bit is set; the sums are far from wrapping.
        over = ~raised[-1] & (raised[:-1] > cap[:-1])
        with m.FSM(init="CLEAR"):
            with m.State("CLEAR"):
                m.d.comb += [
                    self.busy.eq(1),
                    write.addr.eq(sweep),
                    write.data.eq(0),
                    write.en.eq(1),
                ]
                m.d.sync += sweep.eq(sweep + 1)
                with m.If(sweep == n_qp - 1):
                    m.next = "PICK"
            with m.State("PICK"):
                m.d.sync += [qpn.eq(read.addr), filling.eq(fill.pending), charging.eq(owed.valid)]
                with m.If(fill.pending | owed.valid | due):
                    m.next = "LOAD"
                with m.If(fill.pending):
                    m.d.sync += fill.pending.eq(0)
                with m.Elif(owed.valid):
                    m.d.sync += owed.valid.eq(0)
                with m.Elif(due):
                    m.d.sync += [due.eq(0), sweep.eq(sweep + 1)]
            with m.State("LOAD"):
                wire_octets = Mux(owed.octets < SHORTEST, SHORTEST, owed.octets) + FRAME_OVERHEAD
                shift = exact_log2(sweep_ticks(self._parameters))
                m.d.sync += row.eq(read.data)
                with m.If(filling):
                    m.d.sync += [row.rate.eq(fill.rate), row.burst.eq(fill.burst)]
                m.d.sync += gain.eq(
                    Mux(
                        charging,
                        -Cat(Const(0, _FRACTION), wire_octets),
                        Cat(Const(0, shift), read.data.rate),
                    )
                )
                m.next = "ADD"
            with m.State("ADD"):
                m.d.sync += level.eq(Mux(filling | (over & ~charging), cap, raised))
                m.next = "STORE"
            with m.State("STORE"):
                m.d.comb += write.en.eq(1)
                m.d.sync += dry.bit_select(qpn, 1).eq((row.rate != 0) & (level[-1] | ~level.any()))
                m.next = "PICK"

        with m.If(self.charge.valid):
            m.d.sync += owed.eq(self.charge)
        with m.If(self.written):
            m.d.sync += [
                fill.pending.eq(1),
                fill.qpn.eq(self.written_qpn),
                fill.rate.eq(self.written_row.send_rate),
                fill.burst.eq(self.written_row.send_burst),
            ]
        return m
