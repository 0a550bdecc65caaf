"""TABLE_COMMAND: a row to its table, and what follows from it.

::

    command --> row written --> doorbells posted --> taken, cleared (CQ) --> done

QP row: 29 cycles, in which its words go to the table, then with state RESET until both units have
taken their doorbell. CQ row: until the completion unit has cleared the queue and its interrupt,
which waits for the CQEs before it to be in memory. Moderation row: until the completion unit has
taken it, in order with the CQ's doorbells. Group row: until the table has written it, when the
datagrams before it are copied. Region and port rows: 29 cycles, rows beyond their table: 2.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import QP_ENTRY, REGION_ENTRY, Parameters, QpState, Table

from ..iwarp.tables import AGAIN, TableWriteSignature
from ..layouts import CQ_ROW, GROUP_ROW, PORT_ROW, QP_ROW, REGION_ROW, RingDoorbell
from .doorbells import CqPost
from .registers import CommandSignature

__all__ = ["TableCommand"]

#: Where the numbers of a row's words begin: no unit is within a row when the first is written.
_FIRST = AGAIN - 3
#: Where they end: two cycles after the last one's, it has been written.
_LAST = max(QP_ENTRY.size, REGION_ENTRY.size) // 4 + 4


class TableCommand(wiring.Component):
    """Carry out table commands.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    command : In(CommandSignature())
    qp, region, port, group : Out(TableWriteSignature)
    group_written : In(1)
        Strobe: the row of the last write of ``group`` has been taken.
    row : Out(CQ_ROW)
        The row of a command of a CQ, or of its moderation.
    post_send, post_receive : Out(stream.Signature(RingDoorbell))
    post_completion : Out(stream.Signature(CqPost))
    doorbells_empty : In(1)
        Every doorbell posted has been taken.
    cq_cleared : In(1)
        Strobe: the completion unit has taken a row.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        rows = {
            Table.QP: QP_ROW,
            Table.REGION: REGION_ROW,
            Table.PORT: PORT_ROW,
            Table.GROUP: GROUP_ROW,
        }
        self._depths = {
            Table.QP: parameters.n_qp,
            Table.REGION: parameters.n_region,
            Table.CQ: parameters.n_cq,
            Table.PORT: parameters.n_port,
            Table.MODERATION: parameters.n_cq,
            Table.GROUP: parameters.n_group,
        }
        writes = {
            table.name.lower(): Out(TableWriteSignature(row, (depth - 1).bit_length()))
            for table, row in rows.items()
            for depth in (self._depths[table],)
        }
        super().__init__(
            {
                "command": In(CommandSignature()),
                **writes,
                "group_written": In(1),
                "row": Out(CQ_ROW),
                "post_send": Out(stream.Signature(RingDoorbell)),
                "post_receive": Out(stream.Signature(RingDoorbell)),
                "post_completion": Out(stream.Signature(CqPost)),
                "doorbells_empty": In(1),
                "cq_cleared": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        command = self.command
        # Numbers of a row's words: ``AGAIN`` is the first one, too.
        number = Signal(range(AGAIN + 1), init=_FIRST)
        numbers = [Signal.like(number, name=f"number_{age}") for age in (1, 2)]
        held = Signal()
        storing = Signal()
        m.d.sync += [
            numbers[0].eq(number),
            numbers[1].eq(numbers[0]),
            storing.eq(held),
        ]
        m.d.comb += command.number.eq(Mux(number[-2:].all(), 0, number))
        # The row's number has been there for some cycles when it is commanded.
        in_range = {}
        for table, depth in self._depths.items():
            in_range[table] = Signal(name=f"in_{table.name.lower()}")
            m.d.sync += in_range[table].eq((command.kind == table) & (command.row < depth))
        begins = Signal()
        is_reset = Signal()
        m.d.sync += is_reset.eq((command.kind == Table.QP) & (self.qp.row.state == QpState.RESET))
        for table, port in (
            (Table.QP, self.qp),
            (Table.REGION, self.region),
            (Table.PORT, self.port),
            (Table.GROUP, self.group),
        ):
            m.d.comb += [
                port.index.eq(command.row),
                port.row.as_value().eq(command.data),
            ]
            m.d.sync += port.enable.eq(begins & in_range[table])
        m.d.comb += [self.group.number.eq(numbers[-1]), self.group.data.eq(command.word)]
        for table, port in ((Table.QP, self.qp), (Table.REGION, self.region)):
            is_kind = Signal(name=f"is_{table.name.lower()}")
            m.d.sync += is_kind.eq(command.kind == table)
            m.d.sync += port.store.eq(storing & is_kind)
            m.d.comb += [
                port.number.eq(numbers[-1]),
                port.data.eq(command.word),
            ]
        holding = ((self.qp, in_range[Table.QP]), (self.region, in_range[Table.REGION]))
        rings = (self.post_send, self.post_receive)
        m.d.comb += [
            self.row.as_value().eq(command.data),
            self.post_completion.p.cq.eq(command.row),
            self.post_completion.p.reset.eq(command.kind == Table.CQ),
            self.post_completion.p.moderate.eq(command.kind == Table.MODERATION),
            *(ring.p.qpn.eq(command.row) for ring in rings),
            *(ring.p.reset.eq(1) for ring in rings),
        ]
        for ring in rings:
            with m.If(ring.ready):
                m.d.sync += ring.valid.eq(0)
        with m.If(self.post_completion.ready):
            m.d.sync += self.post_completion.valid.eq(0)

        with m.FSM():
            with m.State("IDLE"):
                with m.If(command.request):
                    m.d.comb += begins.eq(1)
                    m.d.sync += [port.held.eq(is_in) for port, is_in in holding]
                    m.next = "DONE"
                    with m.If(in_range[Table.QP] | in_range[Table.REGION] | in_range[Table.PORT]):
                        m.d.sync += held.eq(1)
                        m.next = "WORDS"
                    with m.If(in_range[Table.CQ]):
                        m.d.sync += self.post_completion.valid.eq(1)
                        m.next = "CLEAR"
                    with m.If(in_range[Table.MODERATION]):
                        m.d.sync += self.post_completion.valid.eq(1)
                        m.next = "POST"
                    with m.If(in_range[Table.GROUP]):
                        m.next = "WRITE"
            with m.State("WORDS"):
                m.d.sync += number.eq(number + 1)
                with m.If(number == _LAST):
                    m.d.sync += [held.eq(0), number.eq(_FIRST)]
                    m.d.sync += [port.held.eq(0) for port, _ in holding]
                    m.next = "DONE"
                    with m.If(is_reset):
                        m.d.sync += [ring.valid.eq(1) for ring in rings]
                        m.next = "POST"
            with m.State("WRITE"):
                m.d.sync += number.eq(number + 1)
                with m.If(self.group_written):
                    m.d.sync += number.eq(_FIRST)
                    m.next = "DONE"
            with m.State("POST"):
                posts = (*rings, self.post_completion)
                with m.If(~Cat(post.valid for post in posts).any() & self.doorbells_empty):
                    m.next = "DONE"
            with m.State("CLEAR"):
                with m.If(self.cq_cleared):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += command.done.eq(1)
                m.next = "IDLE"
        return m
