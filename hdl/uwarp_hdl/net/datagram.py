"""The description of a datagram that has passed its checks."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from uwarp.wire import IMMEDIATE_OPCODES, Opcode

from ..layouts import Datagram, mapped_ipv4
from .headers import DATAGRAM_FIELDS, SEGMENT, SOURCE_FIELDS, header_octets
from .word import FrameWord

__all__ = ["DatagramBuilder"]


class DatagramBuilder(wiring.Component):
    """Sort the fields of a segment by its opcode. Combinational.

    What a segment does not have is 0, and so is the immediate without the bit IM. A Send with
    Solicited Event (0x5) is solicited; else the bit SE counts where it is defined, in Write-Record
    and Send with Immediate. A source address of IPv4 is mapped into IPv6 (RFC 4291, section
    2.5.5.2). Of a Read Request ``immediate`` and ``sink_to`` are the sink's STag and TO, of a
    Terminate ``immediate`` is the control word.

    Attributes
    ----------
    word : In(FrameWord)
        Any but the first of the frame.
    source : In(StructLayout)
        SOURCE_FIELDS of the frame.
    fields : In(StructLayout)
        DATAGRAM_FIELDS of the frame.
    source_mac : In(48)
    own, group : In(1)
    qpn : In(16)
    payload_length : In(16)
    datagram : Out(Datagram)
    """

    def __init__(self):
        layout = data.StructLayout(
            {name: 8 * octets for name, (_, octets) in DATAGRAM_FIELDS.items()}
        )
        source = data.StructLayout({name: 8 * size for name, (_, size) in SOURCE_FIELDS.items()})
        super().__init__(
            {
                "word": In(FrameWord),
                "source": In(source),
                "fields": In(layout),
                "source_mac": In(48),
                "own": In(1),
                "group": In(1),
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
        is_request = Signal()
        has_immediate = Signal()
        immediate = Mux(tagged, fields.record_immediate, fields.record_mo)
        address = self.source.source_ip
        ipv4 = Mux(self.word.early, address[64:96], address[32:64])
        m.d.comb += [
            record.eq(opcode.matches(Opcode.WRITE_RECORD, Opcode.READ_RESPONSE_RECORD)),
            is_request.eq(opcode == Opcode.READ_REQUEST),
            has_immediate.eq(opcode.matches(*IMMEDIATE_OPCODES)),
            datagram.qpn.eq(self.qpn),
            datagram.source_ip.eq(Mux(self.word.ipv6, address, mapped_ipv4(ipv4))),
            datagram.source_port.eq(fields.source_port),
            datagram.opcode.eq(opcode),
            datagram.solicited.eq(
                (opcode == Opcode.SEND_SOLICITED) | has_immediate & fields.rdmap_control[5]
            ),
            datagram.immediate_valid.eq(has_immediate & fields.rdmap_control[4]),
            datagram.last.eq(fields.ddp_control[6]),
            datagram.immediate.eq(
                Mux(
                    datagram.immediate_valid | is_request | (opcode == Opcode.TERMINATE),
                    immediate,
                    0,
                )
            ),
            datagram.source_mac.eq(self.source_mac),
            datagram.own.eq(self.own),
            datagram.group.eq(self.group),
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
                datagram.mlen.eq(Mux(is_request, fields.read_size, fields.stag)),
                datagram.qn.eq(fields.to[32:]),
                datagram.msn.eq(fields.to[:32]),
                datagram.mo.eq(fields.record_msn),
            ]
            with m.If(is_request):
                m.d.comb += [
                    datagram.stag.eq(fields.read_stag),
                    datagram.to.eq(fields.read_to),
                    datagram.sink_to.eq(Cat(fields.record_immediate, fields.record_mlen)),
                ]
        return m
