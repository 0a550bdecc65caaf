"""Header insertion: the words of a frame's headers, one a cycle.

::

    fields --> choice of two quads by step --> pair --+--> steering --> word
          +--> IPv4 checksum ------^                  +--> held quad ---^

The headers are a row of *quads*, four octets each: VLAN tag, IPv6 and every DDP header move what
comes after them by whole quads. A step chooses a pair of quads as they lie in an IPv4 frame without
a tag; an odd quad that is put in (the tag, or one of IPv6) shifts all after it by one: from then on
a word is the quad held from the step before and the pair's first.

Octet positions come from the header tables of :mod:`uwarp.wire`.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from uwarp.wire import (
    ETHERNET,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ETHERTYPE_VLAN,
    IPV4,
    IPV4_DONT_FRAGMENT,
    IPV6,
    PROTOCOL_UDP,
    UDP,
    VLAN,
    Header,
)

__all__ = [
    "DDP_QUADS",
    "DDP_STEP",
    "HEADER_OCTETS",
    "FrameHeader",
    "FrameHeaderFields",
    "header_octets",
]

#: Octets before the UDP payload, in IPv4 without a VLAN tag.
HEADER_OCTETS = ETHERNET.size + IPV4.size + UDP.size

#: The step whose word ends with the first two octets of the UDP payload and what comes before them,
#: or with those and the next four.
DDP_STEP = 8

#: Quads of the longest DDP header behind its first two octets.
DDP_QUADS = 11

_IPV4_LAST, _IPV6_LAST, _PORTS = 3, 6, 7


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


class FrameHeaderFields(data.Struct):
    """What differs between frames. ``dest_ip`` of IPv4 is in the low 32 bits, ``vlan`` is the tag's
    TCI, ``octets`` the frame's length."""

    dest_mac: 48
    source_mac: 48
    vlan_valid: 1
    vlan: 16
    ipv6: 1
    traffic_class: 8
    hop_limit: 8
    source_ipv4: 32
    source_ipv6: 128
    dest_ip: 128
    source_port: 16
    dest_port: 16
    octets: 16


class FrameHeader(wiring.Component):
    """Ethernet with or without VLAN tag, IPv4 (RFC 791) or IPv6 (RFC 8200), UDP, DDP header.

    A word a cycle, the first in the cycle after ``start``. The UDP checksum's octets are 0, IPv4
    identification and IPv6 flow label too, DF is set (RFC 6864, section 4.1).

    Members
    -------
    start : In(1), starting : In(FrameHeaderFields)
        A frame begins.
    i : In(FrameHeaderFields)
        The same, from the cycle after ``start`` until ``word`` is the last.
    control : In(16), quads : In(32).array(DDP_QUADS)
        The DDP header, from the cycle after ``start`` on; the first octet in bits 7:0.
    advance : In(1)
        ``word`` is taken.
    word : Out(64)
        Octet 0 in bits 7:0. The word after the last whole one has the header's last four octets in
        its low half, if they are left; what follows the DDP header is not defined.
    step : Out(4)
        Where ``word`` is: 0 in the first, DDP_STEP in that which holds ``control`` in octets 2 and
        3 or 6 and 7, one more in each word after. Before that, words that a frame does not have are
        left out.
    shifted : Out(1)
        From DDP_STEP on: ``control`` is in octets 6 and 7, the quads 0, 2, 4 are in low halves.
    udp_length : Out(16)
        Of the frame; from the cycle after ``start`` until the next one.
    """

    start: In(1)
    starting: In(FrameHeaderFields)
    i: In(FrameHeaderFields)
    control: In(16)
    quads: In(32).array(DDP_QUADS)
    advance: In(1)
    word: Out(64)
    step: Out(4)
    shifted: Out(1)
    udp_length: Out(16)

    def elaborate(self, platform):
        m = Module()
        checksum = self._ipv4_checksum(m)
        ipv4, ipv6, tag = self._fixed_quads(checksum)
        fields = self.i

        pair = Signal(64)
        held = Signal(32)
        chosen = Signal(64)
        passed_over = Signal(32)  # the quad after the pair, where an odd one was put in
        next_step = Signal(4)
        low, high = pair[:32], pair[32:]
        m.d.comb += [
            next_step.eq(self.step + 1),
            passed_over.eq(high),
            self.word.eq(Mux(self.shifted, Cat(held, low), pair)),
        ]
        with m.Switch(self.step):
            with m.Case(1):
                with m.If(fields.vlan_valid):
                    m.d.comb += passed_over.eq(Mux(fields.ipv6, ipv6[3], ipv4[3]))
            with m.Case(_IPV4_LAST):
                with m.If(~fields.ipv6):
                    m.d.comb += next_step.eq(_PORTS)
            with m.Case(_IPV6_LAST):
                m.d.comb += passed_over.eq(ipv6[14])
                with m.If(~self.shifted):
                    m.d.comb += next_step.eq(DDP_STEP)

        with m.Switch(next_step):
            with m.Case(1):
                m.d.comb += chosen.eq(
                    Cat(ipv4[2], Mux(fields.vlan_valid, tag, Mux(fields.ipv6, ipv6[3], ipv4[3])))
                )
            for step in (2, 3):
                with m.Case(step):
                    m.d.comb += chosen.eq(
                        Mux(
                            fields.ipv6,
                            Cat(ipv6[2 * step], ipv6[2 * step + 1]),
                            Cat(ipv4[2 * step], ipv4[2 * step + 1]),
                        )
                    )
            for step in range(_IPV4_LAST + 1, _PORTS):
                with m.Case(step):
                    m.d.comb += chosen.eq(Cat(ipv6[2 * step], ipv6[2 * step + 1]))
            with m.Case(_PORTS):
                m.d.comb += chosen.eq(Cat(ipv4[8], ipv4[9]))
            with m.Case(DDP_STEP):
                m.d.comb += chosen.eq(Cat(ipv4[10], self.quads[0]))
            for index in range(1, DDP_QUADS, 2):
                with m.Case(DDP_STEP + (index + 1) // 2):
                    m.d.comb += chosen.eq(Cat(self.quads[index], self.quads[index + 1]))

        with m.If(self.start):
            macs = header_octets(
                ETHERNET,
                destination=self.starting.dest_mac,
                source=self.starting.source_mac,
            )
            m.d.sync += [
                pair.eq(macs[:64]),
                self.step.eq(0),
                self.shifted.eq(0),
            ]
        with m.Elif(self.advance):
            m.d.sync += [pair.eq(chosen), held.eq(passed_over), self.step.eq(next_step)]
            with m.If(self.step == 1):
                m.d.sync += self.shifted.eq(fields.vlan_valid)
            with m.If(self.step == _IPV6_LAST):
                m.d.sync += self.shifted.eq(~self.shifted)
        return m

    def _fixed_quads(self, checksum):
        """All quads but the DDP header's of a frame of either family without a tag; the tag."""
        fields = self.i
        udp = header_octets(
            UDP,
            source_port=fields.source_port,
            destination_port=fields.dest_port,
            length=self.udp_length,
        )
        ipv4 = header_octets(
            IPV4,
            version_ihl=0x45,
            traffic_class=fields.traffic_class,
            total_length=self.udp_length + IPV4.size,
            flags_fragment=IPV4_DONT_FRAGMENT,
            ttl=fields.hop_limit,
            protocol=PROTOCOL_UDP,
            checksum=checksum,
            source=fields.source_ipv4,
            destination=fields.dest_ip[:32],
        )
        ipv6 = header_octets(
            IPV6,
            version_class_flow=Cat(Const(0, 20), fields.traffic_class, Const(6, 4)),
            payload_length=self.udp_length,
            next_header=PROTOCOL_UDP,
            hop_limit=fields.hop_limit,
            source=fields.source_ipv6,
            destination=fields.dest_ip,
        )
        frames = []
        for ethertype, ip in ((ETHERTYPE_IPV4, ipv4), (ETHERTYPE_IPV6, ipv6)):
            ethernet = header_octets(
                ETHERNET,
                destination=fields.dest_mac,
                source=fields.source_mac,
                ethertype=ethertype,
            )
            octets = Cat(ethernet, ip, udp, self.control)
            frames.append([octets.word_select(quad, 32) for quad in range(len(octets) // 32)])
        return *frames, header_octets(VLAN, tpid=ETHERTYPE_VLAN, tci=fields.vlan)

    def _ipv4_checksum(self, m):
        """RFC 791, section 3.1; right from the third cycle after ``start`` on."""
        fields = self.starting
        before_udp = Signal(range(ETHERNET.size + VLAN.size + IPV6.size + 1))
        m.d.comb += before_udp.eq(
            ETHERNET.size
            + Mux(fields.vlan_valid, VLAN.size, 0)
            + Mux(fields.ipv6, IPV6.size, IPV4.size)
        )
        fixed = 0x4500 + IPV4.size + IPV4_DONT_FRAGMENT + PROTOCOL_UDP
        rest, source, destination = (Signal(17, name=name) for name in ("rest", "source", "dest"))
        with m.If(self.start):
            m.d.sync += [
                self.udp_length.eq(fields.octets - before_udp),
                rest.eq(Cat(fields.traffic_class, fields.hop_limit) + fixed),
                source.eq(fields.source_ipv4[:16] + fields.source_ipv4[16:]),
                destination.eq(fields.dest_ip[:16] + fields.dest_ip[16:32]),
            ]
        halves = [Signal(18, name=f"half_{index}") for index in range(2)]
        wide = Signal(19)
        total = Signal(17)
        folded = Signal(16)
        m.d.comb += [
            wide.eq(halves[0] + halves[1]),
            folded.eq(total[:16] + total[16]),
        ]
        m.d.sync += [
            halves[0].eq(rest + self.udp_length),
            halves[1].eq(source + destination),
            total.eq(wide[:16] + wide[16:]),
        ]
        return ~folded
