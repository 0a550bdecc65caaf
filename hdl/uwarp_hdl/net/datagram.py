"""The description of a datagram that has passed its checks."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..layouts import Datagram
from .headers import DATAGRAM_FIELDS, SEGMENT, header_octets

__all__ = ["DatagramBuilder"]


class DatagramBuilder(wiring.Component):
    """Sort the fields of a segment by its opcode. Combinational.

    What a segment does not have is 0, and so is the immediate without the bit IM. A Send with
    Solicited Event (0x5) is solicited; else the bit SE counts where it is defined, in Write-Record
    and Send with Immediate.

    Attributes
    ----------
    fields : In(StructLayout)
        DATAGRAM_FIELDS of the frame.
    qpn : In(16)
    payload_length : In(16)
    datagram : Out(Datagram)
    """

    def __init__(self):
        layout = data.StructLayout(
            {name: 8 * octets for name, (_, octets) in DATAGRAM_FIELDS.items()}
        )
        super().__init__(
            {
                "fields": In(layout),
                "qpn": In(16),
                "payload_length": In(16),
                "datagram": Out(Datagram),
            }
        )

    def elaborate(self, platform):
        m = Module()
        fields, datagram = self.fields, self.datagram
        opcode = fields.rdmap_control[:4]
        tagged = fields.ddp_control[7]
        record = Signal()
        has_immediate = Signal()
        immediate = Mux(tagged, fields.record_immediate, fields.record_mo)
        m.d.comb += [
            record.eq(opcode == 0xC),
            has_immediate.eq(record | (opcode == 0xE)),
            datagram.qpn.eq(self.qpn),
            datagram.source_ip.eq(fields.source_ip),
            datagram.source_port.eq(fields.source_port),
            datagram.opcode.eq(opcode),
            datagram.solicited.eq((opcode == 0x5) | has_immediate & fields.rdmap_control[5]),
            datagram.immediate_valid.eq(has_immediate & fields.rdmap_control[4]),
            datagram.last.eq(fields.ddp_control[6]),
            datagram.immediate.eq(Mux(datagram.immediate_valid, immediate, 0)),
            datagram.payload_length.eq(self.payload_length),
            datagram.payload_offset.eq(header_octets(opcode, SEGMENT)[:3]),
        ]
        with m.If(tagged):
            m.d.comb += [datagram.stag.eq(fields.stag), datagram.to.eq(fields.to)]
            with m.If(record):
                m.d.comb += [
                    datagram.msn.eq(fields.record_msn),
                    datagram.mo.eq(fields.record_mo),
                    datagram.mlen.eq(fields.record_mlen),
                ]
        with m.Else():
            m.d.comb += [
                datagram.mlen.eq(fields.stag),
                datagram.qn.eq(fields.to[32:]),
                datagram.msn.eq(fields.to[:32]),
                datagram.mo.eq(fields.record_msn),
            ]
        return m
