"""The UDP port table's four banks, searched at once."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import port_rows

from ..interfaces import PortLookupSignature

__all__ = ["PortLookup"]


class PortLookup(wiring.Component):
    """The QP of a UDP port.

    ``hit`` and ``qpn`` answer the ``port`` of two cycles before: the indices go out at once, the
    rows come in the next cycle, and are compared with the port, which must be the same still.

    Parameters
    ----------
    n_qp : int
        Rows of a bank.

    Attributes
    ----------
    port : In(16)
    ports : Out(PortLookupSignature)
    hit : Out(1)
    qpn : Out(16)
        Of the lowest bank that has the port; 0 without a hit.
    """

    def __init__(self, n_qp):
        self._n_qp = n_qp
        super().__init__(
            {
                "port": In(16),
                "ports": Out(PortLookupSignature((n_qp - 1).bit_length())),
                "hit": Out(1),
                "qpn": Out(16),
            }
        )

    def elaborate(self, platform):
        m = Module()
        for index, row in zip(self.ports.indices, port_rows(self.port, self._n_qp), strict=True):
            m.d.comb += index.eq(row)
        m.d.sync += [self.hit.eq(0), self.qpn.eq(0)]
        for row in reversed(list(self.ports.rows)):
            with m.If(row.valid & (row.port == self.port)):
                m.d.sync += [self.hit.eq(1), self.qpn.eq(row.qpn)]
        return m
