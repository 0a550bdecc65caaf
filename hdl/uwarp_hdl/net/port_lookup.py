"""The UDP port table's four banks, searched at once.

::

    port --> rows --> registers --> port compared --> hit --> qpn, is_group
     0        1          2                             3       4            cycle
"""

from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import port_rows

from ..data_register import data_register
from ..interfaces import PortLookupSignature

__all__ = ["PortLookup"]


class PortLookup(wiring.Component):
    """The QP, or the group, of a UDP port.

    The indices go out at once, the rows come in the next cycle. They are compared in the one after,
    with the port, which must be the same still.

    Parameters
    ----------
    parameters : Parameters

    Attributes
    ----------
    port : In(16)
    ports : Out(PortLookupSignature)
    hit : Out(1)
        A QP has the ``port`` of three cycles before.
    is_group : Out(1)
        A group has that of four cycles before.
    qpn : Out(16)
        Of that of four cycles before: of the lowest bank that has it, 0 if none has. One beyond its
        table is another such one.
    """

    def __init__(self, parameters):
        self._n_qp = parameters.n_qp
        super().__init__(
            {
                "port": In(16),
                "ports": Out(PortLookupSignature(parameters)),
                "hit": Out(1),
                "is_group": Out(1),
                "qpn": Out(16),
            }
        )

    def elaborate(self, platform):
        m = Module()
        for index, row in zip(self.ports.indices, port_rows(self.port, self._n_qp), strict=True):
            m.d.comb += index.eq(row)
        width = len(self.ports.indices[0])
        found = Signal(len(self.ports.rows))
        chosen, group, qpns = [], [], []
        for index, row in enumerate(self.ports.rows):
            held = Signal.like(row, name=f"row{index}", reset_less=True)
            qpn = Signal(len(row.number) + 1, name=f"qpn{index}", reset_less=True)
            is_group = Signal(name=f"is_group{index}", reset_less=True)
            m.d.sync += [
                held.eq(row),
                qpn.eq(Cat(held.number, ~held.exists)),
                is_group.eq(held.group),
                found[index].eq(
                    (held.group | held.exists | held.number[0]) & (held.tag == self.port[width:])
                ),
            ]
            chosen.append(found[index] & ~found[:index].any())
            group.append(is_group)
            qpns.append(Mux(chosen[index], qpn, 0))
        m.d.comb += self.hit.eq((Cat(chosen) & ~Cat(group)).any())
        m.d.sync += [
            self.is_group.eq((Cat(chosen) & Cat(group)).any()),
            data_register(m, self.qpn).eq(reduce(or_, qpns)),
        ]
        return m
