"""Tables of queue pairs, regions and UDP ports, in memories that are cleared after a reset.

::

    write, word by word ----> memories of 32 or 16 bits ----> reads[*].row, several words a cycle
    sweep ----------------^

A row is read in a few cycles, and so needs few memories. A read takes one cycle and never waits,
but no row may be begun to be read while one is written: so none is read half old and half new.
After a reset ``busy`` is high for as many cycles as a memory has words, while each is cleared.
"""

from collections.abc import Iterable, Sequence

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import Parameters, port_rows

from ..interfaces import PortLookupSignature, TableReadSignature
from ..layouts import PORT_ROW, port_row_layout

__all__ = [
    "AGAIN",
    "BANKS",
    "QP_READS",
    "REGION_READS",
    "RING_READ",
    "SEGMENT_READ",
    "PortTable",
    "RowTable",
    "TableWriteSignature",
    "half_words",
    "keep_half_words",
]

#: Banks of the port table.
BANKS = 4

#: The number with which a row's first word comes once more.
AGAIN = 31

#: What is read in a cycle of a QP's row, as numbers of its words of 32 bits: by the receiver, the
#: first three for its checks in turn, the last for the ring; and by the transmitter, all three
#: to fetch a WQE, the third alone to send. Of a pair the low half is the one's, the high one the
#: other's.
QP_READS = (
    ((0, 1, 3, 16), (8, 9, 12, 13), (10, 11, 14, 15), (0, 2, 6, 7)),
    ((0, (2, 4)), (5, 6), (0, 1), ()),
)

#: The one for the ring.
RING_READ = 3
#: The one to send.
SEGMENT_READ = 2

#: The same of a region's, for both.
REGION_READS = (((2, 3, 1), (4, 5, 0), (6, 7), (8, 9, 10)),)


def half_words(read: Sequence[int | tuple[int, int]]) -> list[int]:
    """The numbers of half words, of 16 bits, that a read gives."""
    lanes = ((item, item) if isinstance(item, int) else item for item in read)
    return [2 * number + half for lane in lanes for half, number in enumerate(lane)]


def keep_half_words(row: data.View, given: data.View, numbers: Iterable[int]):
    """The statements by which half words of ``row`` become those that are ``given``."""
    return [
        row.as_value().word_select(number, 16).eq(given.as_value().word_select(number, 16))
        for number in numbers
    ]


class TableWriteSignature(wiring.Signature):
    """A write port of a table: ``row`` goes to ``index``.

    Both stay for 27 cycles from each with ``enable`` on; in these ``held`` is high, and a word of
    the row is ``data``, ``number`` its number, in each with ``store``: the first one with
    ``AGAIN``, not before the sixth cycle, then all in turn. Numbers that no word has do nothing.
    """

    def __init__(self, row: data.StructLayout, index_width: int) -> None:
        self.row = row
        self.index_width = index_width
        super().__init__(
            {
                "index": Out(index_width),
                "row": Out(row),
                "enable": Out(1),
                "held": Out(1),
                "store": Out(1),
                "number": Out(range(AGAIN + 1)),
                "data": Out(32),
            }
        )


class RowTable(wiring.Component):
    """A table with two independent read ports.

    Of a row that was not written since the reset the words that are the row's first are 0, which
    says that the row is not in use; the others may be anything.

    Parameters
    ----------
    row : data.StructLayout
    depth : int
        Rows, a power of two, at least 2.
    reads : Sequence[Sequence[Sequence[int]]]
        Of each read port, or once for both, which then share a memory of two ports: as many reads
        as make a row, a power of two; of each the row's words of 32 bits that it gives. A word
        comes in one read only, but the first in up to two, in the same place of both.

    Members
    -------
    write : In(TableWriteSignature)
        Ignored while ``busy``.
    reads : In(TableReadSignature).array(2)
        What lies in none of the reads is 0.
    busy : Out(1)
        The rows are being cleared.
    """

    def __init__(
        self,
        row: data.StructLayout,
        depth: int,
        reads: Sequence[Sequence[Sequence[int]]],
    ) -> None:
        if depth < 2 or depth & (depth - 1):
            raise ValueError(f"depth is {depth}; it takes a power of two from 2")
        self._reads = reads
        self._depth = depth
        width = exact_log2(depth)
        port = TableReadSignature(row, width, len(reads[0]))
        super().__init__(
            {
                "write": In(TableWriteSignature(row, width)),
                "reads": In(port).array(2),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        write = self.write
        sweep = Signal(range(self._depth * len(self._reads[0])))
        word_data = Signal(32, reset_less=True)
        m.d.sync += word_data.eq(write.data)
        with m.If(self.busy):
            m.d.sync += [sweep.eq(sweep + 1), self.busy.eq(~sweep.all()), word_data.eq(0)]
        shared = len(self._reads) == 1
        for number, reads in enumerate(self._reads):
            ports = self.reads if shared else self.reads[number : number + 1]
            self._store(m, f"rows{number}", reads, ports, sweep, word_data)
        for read in self.reads:
            m.d.comb += read.held.eq(write.held)
        return m

    def _store(self, m, name, reads, ports, sweep, word_data):
        """A copy of the table, of which a read gives as many words of 32 bits as there are lanes,
        each in a memory of its own; or in two, as wide as both ports of one can be."""
        write = self.write
        halves = [half_words(read) for read in reads]
        lanes = max(len(numbers) for numbers in halves) // 2
        places = {}
        for word, numbers in enumerate(halves):
            for place, half in enumerate(numbers):
                again = any(half in earlier for earlier in halves[:word])
                places.setdefault(AGAIN if again else half // 2, []).append((word, place))

        address = Signal(len(sweep), reset_less=True, name=f"{name}_address")
        writes = Signal(2 * lanes, name=f"{name}_writes")
        any_write = Signal(name=f"{name}_any_write")
        word = Signal(range(len(reads)), name=f"{name}_word")
        comes = Signal(2 * lanes, name=f"{name}_comes")
        with m.Switch(write.number):
            for number, items in places.items():
                with m.Case(number):
                    m.d.comb += [
                        word.eq(items[0][0]),
                        comes.eq(sum(1 << place for _, place in items)),
                    ]
        m.d.sync += [
            address.eq(Mux(self.busy, sweep, Cat(word, write.index))),
            writes.eq(Mux(self.busy, -1, Mux(write.store, comes, 0))),
            any_write.eq(self.busy | write.store),
        ]
        two = len(ports) == 2
        width = 1 if two else 2  # of a memory, in half words
        addresses = [Signal(len(address), name=f"{name}_read{side}") for side in range(len(ports))]
        m.d.comb += [
            a.eq(Cat(port.word, port.index)) for a, port in zip(addresses, ports, strict=True)
        ]
        if two:
            # One of the memory's ports reads and writes: a word, or what nobody looks at.
            with m.If(any_write):
                m.d.comb += addresses[0].eq(address)
        given = [Signal(32 * lanes, name=f"{name}_{side}") for side in range(len(ports))]
        for first in range(0, 2 * lanes, width):
            # No row is read while it is written: synthesis need not add logic for that case.
            rows = memory.Memory(
                shape=16 * width,
                depth=self._depth * len(reads),
                init=[],
                attrs={"no_rw_check": 1, "ram_style": "block"},
            )
            m.submodules[f"{name}_{first}"] = rows
            write_port = rows.write_port(granularity=16)
            start = 16 * first % 32
            for side, read_address in enumerate(addresses):
                reader = rows.read_port()
                m.d.comb += [
                    reader.addr.eq(read_address),
                    given[side][16 * first : 16 * (first + width)].eq(reader.data),
                ]
                if two and side == 0:
                    m.d.comb += reader.en.eq(~writes[first])
            m.d.comb += [
                write_port.addr.eq(addresses[0] if two else address),
                write_port.data.eq(word_data[start : start + 16 * width]),
                write_port.en.eq(writes[first : first + width]),
            ]
        for port, bits in zip(ports, given, strict=True):
            known = set()
            for numbers in halves:
                for place, half in enumerate(numbers):
                    if half not in known:
                        m.d.comb += port.row.as_value()[16 * half : 16 * half + 16].eq(
                            bits[16 * place : 16 * place + 16]
                        )
                known |= set(numbers)


class PortTable(wiring.Component):
    """The UDP port table: four banks, looked up at once (see ``uwarp.contract.port_rows``).

    Two banks share a memory of two ports. A row is written when a lookup has stayed at its rows for
    a cycle: so it gives the old row or the new one.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    write : In(TableWriteSignature)
        Row ``bank * n_qp + r`` is row ``r`` of a bank. Ignored while ``busy``. Written when the
        lookups of the bank pause for a cycle.
    lookup : In(PortLookupSignature)
    busy : Out(1)
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._width = width = exact_log2(parameters.n_qp)
        super().__init__(
            {
                "write": In(TableWriteSignature(PORT_ROW, width + 2)),
                "lookup": In(PortLookupSignature(parameters)),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters, width = self._parameters, self._width
        row, index = self.write.row, self.write.index
        bank = index[width:]
        stored = Signal(port_row_layout(parameters), reset_less=True)
        address = Signal(width + 1, reset_less=True)
        sweep = Signal(width + 1)
        clears = Signal()
        enabled = Signal()
        waits = Signal(BANKS // 2)  # a row for one of these banks
        # What lies where its port is not looked for is never found.
        belongs = Signal()
        exists = Signal()
        # Each bank's row is the low bits of the port but for other bits of it.
        others = Array(place ^ row.port for place in port_rows(row.port, parameters.n_qp))
        place = Signal(width)
        m.d.comb += [
            place.eq(row.port ^ others[bank]),
            belongs.eq(place == index[:width]),
            exists.eq(
                ~Mux(
                    row.group,
                    row.qpn[exact_log2(parameters.n_group) :].any(),
                    row.qpn[width:].any(),
                )
            ),
        ]
        m.d.sync += [
            enabled.eq(self.write.enable),
            stored.group.eq(row.group),
            stored.exists.eq(exists),
            stored.number.eq(row.qpn | ~exists.replicate(16)),
            stored.tag.eq(row.port[width:]),
        ]
        m.d.sync += [
            address.eq(Mux(self.busy, sweep, Cat(index[:width], bank[0]))),
            clears.eq(self.busy),
        ]
        with m.If(self.busy | ~row.valid | ~belongs):
            m.d.sync += stored.eq(0)
        with m.If(self.busy):
            m.d.sync += [sweep.eq(sweep + 1), self.busy.eq(~sweep.all())]

        for pair in range(BANKS // 2):
            # No row is read while it is written: synthesis need not add logic for that case.
            rows = memory.Memory(
                shape=stored.shape().size,
                depth=2 * parameters.n_qp,
                init=[],
                attrs={"no_rw_check": 1, "ram_style": "block"},
            )
            m.submodules[f"rows{pair}"] = rows
            indices = self.lookup.indices[2 * pair : 2 * pair + 2]
            before = Signal(2 * width, name=f"before{pair}", reset_less=True)
            # Without ``keep`` each bit of an address would find this out by itself.
            writes = Signal(name=f"writes{pair}", attrs={"keep": 1})
            m.d.sync += before.eq(Cat(indices))
            m.d.comb += writes.eq(clears | (waits[pair] & (before == Cat(indices))))
            with m.If(enabled):
                m.d.sync += waits[pair].eq(~self.busy & (bank[1] == pair))
            with m.Elif(writes):
                m.d.sync += waits[pair].eq(0)
            # One of the memory's ports reads and writes.
            addresses = [
                Signal(len(address), name=f"address{2 * pair + number}") for number in range(2)
            ]
            m.d.comb += [
                addresses[0].eq(Mux(writes, address, Cat(indices[0], 0))),
                addresses[1].eq(Cat(indices[1], 1)),
            ]
            write_port = rows.write_port()
            m.d.comb += [
                write_port.addr.eq(addresses[0]),
                write_port.data.eq(stored),
                write_port.en.eq(writes),
            ]
            for number, read_address in enumerate(addresses):
                reader = rows.read_port()
                m.d.comb += [
                    reader.addr.eq(read_address),
                    reader.en.eq(~writes),
                    self.lookup.rows[2 * pair + number].as_value().eq(reader.data),
                ]
        return m
