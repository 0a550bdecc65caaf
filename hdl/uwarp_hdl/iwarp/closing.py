"""What is said of a message when its tracker closes."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import CqeFlag, Parameters, Status
from uwarp.wire import Opcode

from .receive_layouts import (
    MessageKind,
    PendingCompletion,
    snapshot_layout,
    tracker_layout,
)
from .trackers import progress_layout

__all__ = ["Closing"]


class Closing(wiring.Component):
    """Completion and snapshot command of a tracker (device behaviour, 4.4).

    Of a complete message all octets are valid; those of another are summed in ``granule_log2`` + 5
    cycles.

    Members
    -------
    row, progress : In
        They stay from the cycle after ``start`` to ``take``.
    status : In
        SUCCESS or PARTIAL.
    start : In(1)
        Strobe.
    done : Out(1)
        ``entry`` and ``snapshot`` are right: from the cycle after ``start`` with SUCCESS.
    take : In(1)
        Strobe, with ``done``.
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
                "start": In(1),
                "done": Out(1),
                "take": In(1),
                "entry": Out(PendingCompletion),
                "snapshot": Out(snapshot_layout(parameters)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        row = self.row
        progress = self.progress

        # Valid octets: whole granules between the edges, and the message's share of the edges. Only
        # a complete message in one granule has an edge, so here the edges are two.
        between = Signal(32)
        in_granule = Signal(16)
        shifts = Signal.like(row.granule_log2)
        from_start = Signal(16)
        to_end = Signal(16)
        edges = Signal(18)
        valid = Signal(32)
        m.d.sync += [
            from_start.eq(Mux(progress.head, ~row.start & in_granule, 0)),
            to_end.eq(Mux(progress.tail, row.end & in_granule, 0)),
            edges.eq(from_start + to_end + progress.head),
            valid.eq(between + edges + progress.tail),
        ]
        with m.FSM():
            with m.State("IDLE"):
                with m.If(self.start):
                    m.next = "LOAD"
                    with m.If(self.status == Status.SUCCESS):
                        m.d.sync += self.done.eq(1)
                        m.next = "DONE"
            with m.State("LOAD"):
                m.d.sync += [
                    between.eq((progress.between - progress.missing)[: len(progress.between)]),
                    in_granule.eq(0),
                    shifts.eq(row.granule_log2),
                ]
                m.next = "SHIFT"
            with m.State("SHIFT"):
                with m.If(shifts == 0):
                    m.next = "EDGES"
                with m.Else():
                    m.d.sync += [
                        between.eq(between << 1),
                        in_granule.eq(Cat(1, in_granule)),
                        shifts.eq(shifts - 1),
                    ]
            with m.State("EDGES"):
                m.next = "SUM"
            with m.State("SUM"):
                m.d.sync += self.done.eq(1)
                m.next = "DONE"
            with m.State("DONE"):
                with m.If(self.take):
                    m.d.sync += self.done.eq(0)
                    m.next = "IDLE"

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
            entry.valid.eq(Mux(self.status == Status.SUCCESS, row.mlen, valid)),
            entry.msn.eq(row.name.msn),
            entry.mlen.eq(row.mlen),
            entry.base_to.eq(row.base),
            entry.stag.eq(row.stag),
            entry.immediate.eq(row.immediate),
            entry.source_ip.eq(row.name.source_ip),
            entry.source_port.eq(row.name.source_port),
        ]
        snapshot = self.snapshot
        m.d.comb += [
            snapshot.qpn.eq(row.name.qpn),
            snapshot.map_base.eq(Cat(C(0, 6), row.map_base)),
            snapshot.map_addr.eq(Cat(C(0, 3), row.map_addr)),
            snapshot.first.eq(row.first),
            snapshot.last.eq(row.last),
            snapshot.head.eq(progress.head),
            snapshot.tail.eq(progress.tail),
        ]
        return m
