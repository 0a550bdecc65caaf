"""Tables of queue pairs, regions and UDP ports, in memories that are cleared after a reset.

::

    write ----> memory, one copy a read port ----> reads[*].row
    sweep --^

A read takes one cycle and never waits. A row read in the cycle in which it is written is the old
one. After a reset ``busy`` is high for as many cycles as the table has rows, while each is set to
zero.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters

from ..interfaces import PortLookupSignature, TableReadSignature
from ..layouts import PORT_ROW

__all__ = ["BANKS", "PortTable", "RowTable", "TableWriteSignature"]

#: Banks of the port table.
BANKS = 4


class TableWriteSignature(wiring.Signature):
    """A write port of a table: ``row`` goes to ``index`` in each cycle with ``enable``."""

    def __init__(self, row: data.StructLayout, index_width: int) -> None:
        self.row = row
        self.index_width = index_width
        super().__init__({"index": Out(index_width), "row": Out(row), "enable": Out(1)})


def _named_fields(row) -> list:
    """The fields of a row that are not padding, least significant first."""
    names = [name for name, _ in row.shape() if not name.startswith("_")]
    return [row[name] for name in names]


class RowTable(wiring.Component):
    """A table with ``reads`` independent read ports. Padding is not stored and reads as 0.

    Parameters
    ----------
    row : data.StructLayout
    depth : int
        Rows, a power of two, at least 2.
    reads : int
        Read ports.

    Members
    -------
    write : In(TableWriteSignature)
        Ignored while ``busy``.
    reads : In(TableReadSignature).array(reads)
    busy : Out(1)
        The rows are being cleared.
    """

    def __init__(self, row: data.StructLayout, depth: int, reads: int) -> None:
        if depth < 2 or depth & (depth - 1):
            raise ValueError(f"depth is {depth}; it takes a power of two from 2")
        self._row = row
        self._depth = depth
        width = (depth - 1).bit_length()
        super().__init__(
            {
                "write": In(TableWriteSignature(row, width)),
                "reads": In(TableReadSignature(row, width)).array(reads),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        stored = Cat(_named_fields(self.write.row))
        m.submodules.rows = rows = memory.Memory(shape=len(stored), depth=self._depth, init=[])
        port = rows.write_port()
        sweep = Signal(range(self._depth))
        with m.If(self.busy):
            m.d.sync += [sweep.eq(sweep + 1), self.busy.eq(~sweep.all())]
        m.d.comb += [
            port.addr.eq(Mux(self.busy, sweep, self.write.index)),
            port.data.eq(Mux(self.busy, 0, stored)),
            port.en.eq(self.busy | self.write.enable),
        ]
        for read in self.reads:
            read_port = rows.read_port()
            m.d.comb += [
                read_port.addr.eq(read.index),
                Cat(_named_fields(read.row)).eq(read_port.data),
            ]
        return m


class PortTable(wiring.Component):
    """The UDP port table: four banks, looked up at once (see ``uwarp.contract.port_rows``).

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    write : In(TableWriteSignature)
        Row ``bank * n_qp + r`` is row ``r`` of a bank. Ignored while ``busy``.
    lookup : In(PortLookupSignature)
    busy : Out(1)
    """

    def __init__(self, parameters: Parameters) -> None:
        self._depth = parameters.n_qp
        width = (parameters.n_qp - 1).bit_length()
        super().__init__(
            {
                "write": In(TableWriteSignature(PORT_ROW, width + 2)),
                "lookup": In(PortLookupSignature(width)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = len(self.lookup.indices[0])
        for bank in range(BANKS):
            m.submodules[f"bank{bank}"] = table = RowTable(PORT_ROW, self._depth, 1)
            m.d.comb += [
                table.write.index.eq(self.write.index[:width]),
                table.write.row.eq(self.write.row),
                table.write.enable.eq(self.write.enable & (self.write.index[width:] == bank)),
                table.reads[0].index.eq(self.lookup.indices[bank]),
                self.lookup.rows[bank].eq(table.reads[0].row),
            ]
            if bank == 0:
                m.d.comb += self.busy.eq(table.busy)
        return m
