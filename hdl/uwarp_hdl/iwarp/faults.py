"""Which queue pairs have failed, from the error answers to their writes.

::

    payload fault --+--> recent --+--> row of four QPs: read, changed --> failed: to the copies of
    map fault ------'             +--> queue --> requests (event DMA_WRITE)          all who ask
    row written ------------------'

A bit changes two cycles after its fault, which ``recent`` tells in the cycle between; and two after
its row was written, or after the faults that come then. The queue has room for the faults of all
bursts that can be on their way; ``hold`` keeps others back while it is not empty, so no event is
lost here.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import EventType, Parameters

from ..layouts import EventRequest
from ..stream.queue import Queue
from .receive_layouts import failed_layout, fault_layout

__all__ = ["FailedQueuePairs", "has_failed"]

#: Bursts of payload and of maps that can be unanswered, and those offered before ``hold`` is heard.
_FAULTS = 128


def has_failed(m, changes, qpn):
    """Whether QP ``qpn`` has failed, of a copy in LUT RAM, submodule ``failed_rows``, that follows
    ``changes`` (failed_layout). Not to be called inside a condition."""
    m.submodules.failed_rows = rows = memory.Memory(
        shape=len(changes.bits), depth=1 << len(changes.row), init=[]
    )
    put, get = rows.write_port(), rows.read_port(domain="comb")
    m.d.comb += [
        put.addr.eq(changes.row),
        put.data.eq(changes.bits),
        put.en.eq(changes.write),
        get.addr.eq(qpn[2:]),
    ]
    return get.data.bit_select(qpn[:2], 1)


class FailedQueuePairs(wiring.Component):
    """Section 8.1 of the device behaviour.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    payload, map : In(fault)
        Answers of one bus: at most one of them is valid in a cycle.
    written, written_qpn : In
        Strobe: the row of this QP is written; heard a cycle later. The next comes when the faults
        of all bursts that can be on their way could have come meanwhile.
    failed : Out(failed_layout)
    recent : Out(fault)
        The fault of the cycle before, of which ``failed`` tells now.
    hold : Out(1)
    requests : Out(stream of EventRequest)
        For each fault.
    busy : Out(1)
        The rows are being cleared after a reset, a cycle for every four QPs; no fault comes.
    """

    def __init__(self, parameters: Parameters):
        self._qpn_width = exact_log2(parameters.n_qp)
        fault = fault_layout(parameters)
        super().__init__(
            {
                "payload": In(fault),
                "map": In(fault),
                "written": In(1),
                "written_qpn": In(self._qpn_width),
                "failed": Out(failed_layout(parameters)),
                "recent": Out(fault),
                "hold": Out(1),
                "requests": Out(stream.Signature(EventRequest)),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.faults = faults = Queue(self._qpn_width, _FAULTS, direct=False)
        # A cycle late: the answers come from afar, and the copies are far too. While there is no
        # fault the number is that of the row that was written before, which waits; not if a fault
        # of its QP has come since.
        valid, number = self.recent.valid, self.recent.qpn
        just_written = Signal()  # so the fault that is recent came before, or with it
        waits = Signal()
        waiting_qpn = Signal(self._qpn_width, reset_less=True)
        m.d.sync += [
            valid.eq(self.payload.valid | self.map.valid),
            number.eq(Mux(self.written, self.written_qpn, waiting_qpn)),
            just_written.eq(self.written),
        ]
        for fault in (self.payload, self.map):
            with m.If(fault.valid):
                m.d.sync += number.eq(fault.qpn)

        changed = self.failed
        m.submodules.rows = rows = memory.Memory(shape=4, depth=1 << len(changed.row), init=[])
        put, get = rows.write_port(), rows.read_port(domain="comb")
        sweep = Signal(len(changed.row))
        m.d.comb += [
            get.addr.eq(number[2:]),
            changed.write.eq(valid | waits | self.busy),
            changed.row.eq(Mux(self.busy, sweep, number[2:])),
            put.addr.eq(changed.row),
            put.data.eq(changed.bits),
            put.en.eq(changed.write),
        ]
        for index, bit in enumerate(changed.bits):
            is_its = number[:2] == index
            m.d.comb += bit.eq(Mux(is_its, valid, get.data[index]) & ~self.busy)
        with m.If(self.written):
            m.d.sync += [waits.eq(1), waiting_qpn.eq(self.written_qpn)]
        with m.Elif(~valid | ((number == waiting_qpn) & ~just_written)):
            m.d.sync += waits.eq(0)
        with m.If(self.busy):
            m.d.sync += [sweep.eq(sweep + 1), self.busy.eq(~sweep.all())]
        m.d.comb += [
            faults.i.payload.eq(number),
            faults.i.valid.eq(valid),
            self.hold.eq(faults.level != 0),
            self.requests.payload.type.eq(EventType.DMA_WRITE),
            self.requests.payload.number.eq(faults.o.payload),
            self.requests.valid.eq(faults.o.valid),
            faults.o.ready.eq(self.requests.ready),
        ]
        return m
