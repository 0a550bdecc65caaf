"""Tables of queue pairs, regions and UDP ports, in memories that are cleared after a reset.

::

    write ----> memory, one copy a read port ----> reads[*].row
    sweep --^

A read takes one cycle and never waits; no part of a row is read newer than another. A row is
written one or two cycles after its ``enable``, and a port reads the old one until then, or, if it
stays at that row, until the cycle after. After a reset ``busy`` is high for as many cycles as the
table has rows, while each is cleared.
"""

from collections.abc import Sequence

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
    """A write port of a table: ``row`` goes to ``index``. Both stay for two cycles after each with
    ``enable``, of which there is none in these."""

    def __init__(self, row: data.StructLayout, index_width: int) -> None:
        self.row = row
        self.index_width = index_width
        super().__init__({"index": Out(index_width), "row": Out(row), "enable": Out(1)})


class RowTable(wiring.Component):
    """A table with ``reads`` independent read ports. Padding is not stored and reads as 0.

    Of a row that was not written since the reset the first field is 0, which says that the row is
    not in use; the others may be anything.

    Parameters
    ----------
    row : data.StructLayout
    depth : int
        Rows, a power of two, at least 2.
    reads : int
        Read ports.
    first, last : Sequence[str]
        Fields that lie at the ends of what is stored. A block RAM of which a port uses no field is
        left out: those that only some ports use, or none, should be neighbours.

    Members
    -------
    write : In(TableWriteSignature)
        Ignored while ``busy``.
    ports : In(reads, init=all)
        The read ports that the write is for, if they are not to read the same.
    reads : In(TableReadSignature).array(reads)
    busy : Out(1)
        The rows are being cleared.
    """

    def __init__(
        self,
        row: data.StructLayout,
        depth: int,
        reads: int,
        *,
        first: Sequence[str] = (),
        last: Sequence[str] = (),
    ) -> None:
        if depth < 2 or depth & (depth - 1):
            raise ValueError(f"depth is {depth}; it takes a power of two from 2")
        names = [name for name, _ in row if not name.startswith("_")]
        for name in (*first, *last):
            if name not in names:
                raise ValueError(f"the row has no field {name!r}; it has {', '.join(names)}")
        self._names = (*first, *(name for name in names if name not in (*first, *last)), *last)
        self._depth = depth
        width = (depth - 1).bit_length()
        super().__init__(
            {
                "write": In(TableWriteSignature(row, width)),
                "ports": In(reads, init=(1 << reads) - 1),
                "reads": In(TableReadSignature(row, width)).array(reads),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        in_use = next(name for name, _ in self.write.row.shape())
        stored = [
            Mux(self.busy, 0, self.write.row[name]) if name == in_use else self.write.row[name]
            for name in self._names
        ]
        width = len(Cat(stored))
        sweep = Signal(range(self._depth))
        enabled = Signal(2)
        m.d.sync += enabled.eq(self.write.enable | enabled << 1)
        with m.If(self.busy):
            m.d.sync += [sweep.eq(sweep + 1), self.busy.eq(~sweep.all())]
        for number, read in enumerate(self.reads):
            # No row is read while it is written: synthesis need not add logic for that case.
            rows = memory.Memory(shape=width, depth=self._depth, init=[], attrs={"no_rw_check": 1})
            m.submodules[f"rows{number}"] = rows
            write_port, read_port = rows.write_port(), rows.read_port()
            # What block RAM gives of a row that is written at the same time is not defined. A port
            # that has come to the row in this cycle comes first; one that was there keeps what it
            # has read.
            is_there = Signal(name=f"is_there_{number}")
            was_there = Signal(name=f"was_there_{number}")
            written = Signal(name=f"written_{number}")
            writes = Signal(name=f"writes_{number}")
            chosen = self.ports[number]
            kept = chosen & (enabled[0] & was_there | enabled[1] & ~written)
            m.d.sync += [was_there.eq(is_there), written.eq(writes)]
            m.d.comb += [
                is_there.eq(read.index == self.write.index),
                writes.eq(~self.busy & (kept | chosen & enabled[0] & ~is_there)),
                write_port.addr.eq(Mux(self.busy, sweep, self.write.index)),
                write_port.data.eq(Cat(stored)),
                write_port.en.eq(self.busy | writes),
                read_port.addr.eq(read.index),
                read_port.en.eq(~(kept & is_there)),
                Cat(read.row[name] for name in self._names).eq(read_port.data),
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
        m.submodules.table = table = RowTable(PORT_ROW, self._depth, BANKS)
        width = len(table.write.index)
        m.d.comb += [
            table.write.index.eq(self.write.index[:width]),
            table.write.row.eq(self.write.row),
            table.write.enable.eq(self.write.enable),
            table.ports.eq(1 << self.write.index[width:]),
            self.busy.eq(table.busy),
        ]
        for read, index, row in zip(
            table.reads, self.lookup.indices, self.lookup.rows, strict=True
        ):
            m.d.comb += [read.index.eq(index), row.eq(read.row)]
        return m
