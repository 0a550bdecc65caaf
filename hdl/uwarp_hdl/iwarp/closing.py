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

    Of a complete message all octets are valid; those of another are summed in ``granule_log2`` + 7
    cycles.

    Members
    -------
    row, progress : In
        They stay from the cycle after ``start`` to ``take``; of what only ``entry`` and
        ``snapshot`` say the row need not be there before.
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
        between = Signal(32, reset_less=True)
        in_granule = Signal(16, reset_less=True)
        shifts = Signal.like(row.granule_log2, reset_less=True)
        second = Signal()
        edge = Signal()
        octets = Signal(16, reset_less=True)
        edges = Signal(17, reset_less=True)
        valid = Signal(32, reset_less=True)
        loads, shares = Signal(), Signal()
        width = len(progress.missing)
        m.d.sync += [
            octets.eq(Mux(second, row.end, ~row.start) & in_granule),
            edge.eq(Mux(second, progress.tail, progress.head)),
            edges.eq(edges + octets + edge),
            valid.eq(between + edges),
        ]
        with m.FSM():
            with m.State("IDLE"):
                with m.If(self.start):
                    m.next = "LOAD"
                    with m.If(self.status == Status.SUCCESS):
                        m.d.sync += self.done.eq(1)
                        m.next = "DONE"
            with m.State("LOAD"):
                m.d.comb += loads.eq(1)
                m.d.sync += [
                    between[:width].eq(~(row.others + progress.missing)),
                    shifts.eq(row.granule_log2),
                ]
                m.next = "SHIFT"
            with m.State("SHIFT"):
                with m.If(shifts == 0):
                    m.next = "HEAD"
                with m.Else():
                    m.d.sync += [
                        between.eq(between << 1),
                        in_granule.eq(Cat(1, in_granule)),
                        shifts.eq(shifts - 1),
                    ]
            with m.State("HEAD"):
                m.d.comb += shares.eq(progress.head)
                m.d.sync += second.eq(1)
                m.next = "TAIL"
            with m.State("TAIL"):
                m.d.comb += shares.eq(progress.tail)
                m.d.sync += second.eq(0)
                m.next = "EDGES"
            with m.State("EDGES"):
                m.next = "SUM"
            with m.State("SUM"):
                m.d.sync += self.done.eq(1)
                m.next = "DONE"
            with m.State("DONE"):
                with m.If(self.take):
                    m.d.sync += self.done.eq(0)
                    m.next = "IDLE"
        # Outermost: resets, which take no logic.
        with m.If(loads):
            m.d.sync += [
                between[width:].eq(0),
                in_granule.eq(0),
                edges.eq(0),
            ]
        with m.If(~shares):
            m.d.sync += [octets.eq(0), edge.eq(0)]

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
