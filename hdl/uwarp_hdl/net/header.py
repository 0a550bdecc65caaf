"""Header insertion: the octets of Ethernet, IPv4 and UDP headers before a UDP payload.

Octet positions come from the header tables of :mod:`uwarp.wire`.
"""

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from uwarp.wire import ETHERNET, ETHERTYPE_IPV4, IPV4, IPV4_DONT_FRAGMENT, PROTOCOL_UDP, UDP, Header

__all__ = ["HEADER_OCTETS", "UdpHeader", "UdpHeaderFields", "header_octets"]

#: Octets before the UDP payload.
HEADER_OCTETS = ETHERNET.size + IPV4.size + UDP.size


def header_octets(header: Header, **values: Value) -> Value:
    """The octets of ``header`` on the wire, the first one in bits 7:0; fields not given are 0.

    Raises
    ------
    ValueError
        If ``values`` has a name that is no field of ``header``.
    """
    octets = []
    for name, size in header.fields:
        value = Value.cast(values.pop(name, 0))
        padded = Cat(value, Const(0, 8 * size))[: 8 * size]
        octets += reversed([padded.word_select(index, 8) for index in range(size)])
    if values:
        raise ValueError(f"{header.name} has no field {', '.join(map(repr, values))}")
    return Cat(octets)


class UdpHeaderFields(data.Struct):
    """What differs between frames. ``ip_length`` is IPv4's total length, ``udp_length`` UDP's."""

    dest_mac: 48
    source_mac: 48
    traffic_class: 8
    hop_limit: 8
    source_ip: 32
    dest_ip: 32
    source_port: 16
    dest_port: 16
    ip_length: 16
    udp_length: 16


class UdpHeader(wiring.Component):
    """The 42 octets of Ethernet, IPv4 and UDP headers, with the IPv4 checksum (RFC 791, 3.1).

    Combinational, but for the checksum: it is right from the third cycle after that in which ``i``
    began to hold, until 1 cycle after ``i`` changes. The UDP checksum's octets are 0. The
    identification is 0 and DF set (RFC 6864, section 4.1).

    Members
    -------
    i : In(UdpHeaderFields)
    o : Out(336)
        Octet 0 in bits 7:0.
    """

    i: In(UdpHeaderFields)
    o: Out(8 * HEADER_OCTETS)

    def elaborate(self, platform):
        m = Module()
        fields = self.i
        halves = [fields.source_ip[:16], fields.source_ip[16:]]
        halves += [fields.dest_ip[:16], fields.dest_ip[16:]]
        pairs = [Signal(17, name=f"pair_{index}") for index in range(4)]
        quads = [Signal(18, name=f"quad_{index}") for index in range(2)]
        total = Signal(17)
        m.d.sync += [
            pairs[0].eq(0x4500 + fields.traffic_class + fields.ip_length),
            pairs[1].eq(Cat(Const(PROTOCOL_UDP, 8), fields.hop_limit) + IPV4_DONT_FRAGMENT),
            pairs[2].eq(halves[0] + halves[1]),
            pairs[3].eq(halves[2] + halves[3]),
            quads[0].eq(pairs[0] + pairs[1]),
            quads[1].eq(pairs[2] + pairs[3]),
        ]
        wide = Signal(19)
        m.d.comb += wide.eq(quads[0] + quads[1])
        m.d.sync += total.eq(wide[:16] + wide[16:])
        folded = Signal(16)
        m.d.comb += folded.eq(total[:16] + total[16])
        m.d.comb += self.o.eq(
            Cat(
                header_octets(
                    ETHERNET,
                    destination=fields.dest_mac,
                    source=fields.source_mac,
                    ethertype=ETHERTYPE_IPV4,
                ),
                header_octets(
                    IPV4,
                    version_ihl=0x45,
                    traffic_class=fields.traffic_class,
                    total_length=fields.ip_length,
                    flags_fragment=IPV4_DONT_FRAGMENT,
                    ttl=fields.hop_limit,
                    protocol=PROTOCOL_UDP,
                    checksum=~folded,
                    source=fields.source_ip,
                    destination=fields.dest_ip,
                ),
                header_octets(
                    UDP,
                    source_port=fields.source_port,
                    destination_port=fields.dest_port,
                    length=fields.udp_length,
                ),
            )
        )
        return m
