"""What is said of a message when its tracker closes."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import CqeFlag, Parameters, Status
from uwarp.wire import Opcode

from .receive_layouts import (
    MessageKind,
    PendingCompletion,
    granule_width,
    snapshot_layout,
    tracker_layout,
)
from .trackers import progress_layout

__all__ = ["Closing"]


class Closing(wiring.Component):
    """Completion and snapshot command of a tracker (device behaviour, 4.4).

    Right 4 cycles after ``row`` and ``progress``, as long as these stay.

    Members
    -------
    row, progress : In
    status : In
        SUCCESS or PARTIAL.
    entry : Out(PendingCompletion)
    snapshot : Out
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        super().__init__(
            {
                "row": In(tracker_layout(parameters)),
                "progress": In(progress_layout(parameters)),
                "status": In(Status),
                "entry": Out(PendingCompletion),
                "snapshot": Out(snapshot_layout(parameters)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        row = self.row
        progress = self.progress

        # Valid octets: whole granules between the edges, and the message's share of the edges.
        alone = Signal()
        between_edges = Signal(granule_width(self._parameters))
        granule = Signal(17)
        beyond_start = Signal(17)
        beyond_end = Signal(17)
        in_granule = Cat(row.granule_log2 > bit for bit in range(16))
        m.d.sync += [
            alone.eq(row.first == row.last),
            between_edges.eq(row.last - row.first - 1),
            granule.eq(1 << row.granule_log2),
            beyond_start.eq(row.start[:16] & in_granule),
            beyond_end.eq(row.end[:16] & in_granule),
        ]
        whole = Signal(granule_width(self._parameters))
        head = Signal(32)
        tail = Signal(17)
        m.d.sync += [
            whole.eq(Mux(alone, 0, between_edges - progress.missing)),
            head.eq(Mux(progress.head, Mux(alone, row.mlen, granule - beyond_start), 0)),
            tail.eq(Mux(progress.tail & ~alone, beyond_end + 1, 0)),
        ]
        between = Signal(32)
        edges = Signal(32)
        m.d.sync += [between.eq(whole << row.granule_log2), edges.eq(head + tail)]
        valid = Signal(32)
        m.d.sync += valid.eq(between + edges)

        entry = self.entry
        is_read = row.name.kind == MessageKind.READ
        m.d.comb += [
            entry.cq.eq(row.cq),
            entry.opcode.eq(Mux(is_read, Opcode.READ_REQUEST, row.opcode)),
            entry.status.eq(self.status),
            entry.flags.eq(
                Mux(is_read, 0, CqeFlag.RECEIVE)
                | CqeFlag.MAPPED
                | Mux(row.immediate_valid, CqeFlag.IMMEDIATE, 0)
                | Mux(row.solicited, CqeFlag.SOLICITED, 0)
            ),
            entry.qpn.eq(row.name.qpn),
            entry.wqe_index.eq(row.wqe_index),
            entry.valid.eq(valid),
            entry.msn.eq(row.name.msn),
            entry.mlen.eq(row.mlen),
            entry.base_to.eq(row.base),
            entry.stag.eq(row.stag),
            entry.immediate.eq(Mux(row.immediate_valid, row.immediate, 0)),
            entry.source_ip.eq(row.name.source_ip),
            entry.source_port.eq(row.name.source_port),
        ]
        snapshot = self.snapshot
        m.d.comb += [
            snapshot.qpn.eq(row.name.qpn),
            snapshot.map_base.eq(row.map_base),
            snapshot.map_addr.eq(row.map_addr),
            snapshot.first.eq(row.first),
            snapshot.last.eq(row.last),
            snapshot.head.eq(progress.head),
            snapshot.tail.eq(progress.tail),
        ]
        return m
