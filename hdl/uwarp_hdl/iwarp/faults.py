"""Which queue pairs have failed, from the error answers to their writes.

::

    payload fault --+--> failed[qpn] := 1
    map fault ------+--> queue --> requests (event DMA_WRITE)
    row written -------> failed[qpn] := 0

A bit changes in the cycle after its fault. The queue has room for the faults of all bursts that can
be on their way; ``hold`` keeps others back while it is not empty, so no event is lost here.
"""

from amaranth.hdl import Module, Mux
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import EventType, Parameters

from ..layouts import EventRequest
from ..stream.queue import Queue
from .receive_layouts import fault_layout

__all__ = ["FailedQueuePairs"]

#: Bursts of payload and of maps that can be unanswered, and those offered before ``hold`` is heard.
_FAULTS = 128


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
        Strobe: the row of this QP is written.
    failed : Out(n_qp)
    hold : Out(1)
    requests : Out(stream of EventRequest)
        For each fault.
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
                "failed": Out(parameters.n_qp),
                "hold": Out(1),
                "requests": Out(stream.Signature(EventRequest)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.faults = faults = Queue(self._qpn_width, _FAULTS, direct=False)
        valid = self.payload.valid | self.map.valid
        qpn = Mux(self.payload.valid, self.payload.qpn, self.map.qpn)
        with m.If(self.written):
            m.d.sync += self.failed.bit_select(self.written_qpn, 1).eq(0)
        with m.If(valid):
            m.d.sync += self.failed.bit_select(qpn, 1).eq(1)
        m.d.comb += [
            faults.i.payload.eq(qpn),
            faults.i.valid.eq(valid),
            self.hold.eq(faults.level != 0),
            self.requests.payload.type.eq(EventType.DMA_WRITE),
            self.requests.payload.number.eq(faults.o.payload),
            self.requests.valid.eq(faults.o.valid),
            faults.o.ready.eq(self.requests.ready),
        ]
        return m
