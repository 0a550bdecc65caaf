"""Header insertion: a frame's headers in pairs of quads, one a cycle.

::

    fields --> two quads by step, each 0 but in its own --> OR --> pair
          +--> IPv4 checksum ------^

The headers are a row of *quads*, four octets each: VLAN tag, IPv6 and every DDP header move what
comes after them by whole quads. A step gives a pair of quads as they lie in an IPv4 frame without
a tag. For an odd quad that is put in (by the tag, or by IPv6) there is a step of its own; all after
it is one quad further on in the frame, which is left to whoever stores the pairs.

Octet positions come from the header tables of :mod:`uwarp.wire`.
"""

from functools import reduce
from operator import or_

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

from ..data_register import data_register

__all__ = [
    "DDP_STEP",
    "FIELDS_STEP",
    "HEADER_OCTETS",
    "FrameHeader",
    "FrameHeaderFields",
    "header_octets",
]

#: Octets before the UDP payload, in IPv4 without a VLAN tag.
HEADER_OCTETS = ETHERNET.size + IPV4.size + UDP.size

#: The step whose pair has the first six octets of the UDP payload, from octet 2 on.
DDP_STEP = 9

# In a step of TYPE or ODD only the high quad counts.
_TAG, _TYPE, _IPV4_FIRST, _IPV4_LAST, _IPV6_LAST, _ODD, _PORTS = 1, 2, 3, 4, 6, 7, 8

#: From this step on, which each frame has, the fields are looked at for three cycles more at most.
FIELDS_STEP = _IPV4_FIRST


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


class _Parts:
    """Registers of which one at a time has something in it: their OR is a choice.

    They change with ``load``. With ``clear``, which comes with it, all but ``first`` are 0.
    """

    def __init__(self, m: Module, load: Value, clear: Value, width: int) -> None:
        self._m, self._load, self._clear, self._width = m, load, clear, width
        self._registers: list[Value] = []

    def add(self, condition: Value, value: Value) -> None:
        """With ``load``: ``value``, if the condition was 1 in the cycle of the ``load`` before."""
        self.add_each(condition, (value,), Const(0, 1))

    def add_now(self, condition: Value, value: Value) -> None:
        """With ``load``: ``value``, if the condition is 1."""
        self._add(condition & ~self._clear, value)

    def add_first(self, value: Value) -> None:
        """With ``clear``: ``value``."""
        self._add(self._clear, value)

    def add_each(
        self, condition: Value, values: tuple[Value, ...], stops: Value
    ) -> tuple[Value, Value]:
        """Like ``add``, but without the value whose bit in ``stops`` is set with ``load``. Returns
        whether they are chosen, and the register of the first."""
        chosen = Signal()
        with self._m.If(self._load):
            self._m.d.sync += chosen.eq(condition)
        for value, stop in zip(values, stops, strict=True):
            self._add(chosen & ~self._clear & ~stop, value)
        return chosen, self._registers[-len(values)]

    def _add(self, chosen: Value, value: Value) -> None:
        register = Signal(self._width, name=f"part_{len(self._registers)}", reset_less=True)
        # In this order it is the register's reset.
        with self._m.If(self._load & ~chosen):
            self._m.d.sync += register.eq(0)
        with self._m.Elif(self._load):
            self._m.d.sync += register.eq(value)
        self._registers.append(register)

    def any(self) -> Value:
        return reduce(or_, self._registers)


class FrameHeaderFields(data.Struct):
    """What differs between frames. ``vlan`` is the tag's TCI, ``octets`` the frame's length. Of
    the destination the UDP port and the IPv4 address may come in the cycle after ``start``, that of
    IPv6 three after it; so may the tag."""

    dest_mac: 48
    source_mac: 48
    vlan_valid: 1
    vlan: 16
    ipv6: 1
    traffic_class: 8
    hop_limit: 8
    source_ipv4: 32
    source_ipv6: 128
    dest_ipv4: 32
    dest_ipv6: 128
    source_port: 16
    dest_port: 16
    octets: 16


class FrameHeader(wiring.Component):
    """Ethernet with or without VLAN tag, IPv4 (RFC 791) or IPv6 (RFC 8200), UDP, DDP header.

    A pair a cycle, the first in the cycle after ``start``. The UDP checksum's octets are 0, IPv4
    identification and IPv6 flow label too, DF is set (RFC 6864, section 4.1).

    Members
    -------
    start : In(1), starting : In(FrameHeaderFields)
        A frame begins; the one that does may be the last of several in a row.
    i : In(FrameHeaderFields), control : In(16)
        The same, and the first two octets of the DDP header (the first one in bits 7:0), from the
        cycle after ``start`` until ``pair`` is the last.
    following : Out(4)
        The step of the next pair.
    ddp : In(64), ddp_taken : Out(1)
        While ``ddp_taken``, the next pair of the DDP header is taken: first quad 0 in the high
        half, the low one 0, then quads 1 and 2, 3 and 4 and so on behind ``control``.
    advance : In(1)
        ``pair`` is taken.
    last, left : In(1)
        With ``advance``: it was the last one that is the header's as a whole; its last quad is left
        then. What is after the header is 0.
    left_taken : In(1)
        ``pair`` is 0 from the next cycle on.
    pair : Out(64)
        Octet 0 in bits 7:0.
    alone : Out(1)
        Of the pair only the high quad is the frame's: it comes after the quad before.
    step : Out(4)
        Where ``pair`` is: 0 in the first, DDP_STEP in that which has ``control`` in octets 2 and 3,
        one more in each after it. Before that, those that a frame does not have are left out.
    udp_length : Out(16)
        Of the frame; from the cycle after ``start`` until the next one.
    """

    start: In(1)
    starting: In(FrameHeaderFields)
    i: In(FrameHeaderFields)
    control: In(16)
    following: Out(4)
    ddp: In(64)
    ddp_taken: Out(1)
    advance: In(1)
    last: In(1)
    left: In(1)
    left_taken: In(1)
    pair: Out(64)
    alone: Out(1)
    step: Out(4)
    udp_length: Out(16)

    def elaborate(self, platform):
        m = Module()
        checksum = self._ipv4_checksum(m)
        ipv4, ipv6, tag = self._fixed_quads(checksum)
        fields = self.i

        following, upcoming = self.following, Signal(4)
        moves = Signal()
        tags, is_ipv6 = Signal(), Signal()
        m.d.comb += [
            moves.eq(self.start | self.advance),
            self.alone.eq((self.step == _TYPE) | (self.step == _ODD)),
            tags.eq(fields.vlan_valid),
            is_ipv6.eq(fields.ipv6),
            upcoming.eq(following + 1),
        ]
        with m.If((following == _TAG) & ~tags):
            m.d.comb += upcoming.eq(_IPV4_FIRST)
        with m.If((following == _IPV4_LAST) & ~is_ipv6):
            m.d.comb += upcoming.eq(_PORTS)
        with m.If(self.start):
            m.d.comb += upcoming.eq(_TAG)

        high = Const(0, 32)
        pairs = _Parts(m, moves, self.start, 64)
        pairs.add_first(
            header_octets(
                ETHERNET,
                destination=self.starting.dest_mac,
                source=self.starting.source_mac,
            )[:64]
        )
        # With ``start`` the frame's fields are not there yet: what they choose in the pair after
        # the first is chosen when that is taken.
        at_tag, at_type = Signal(), Signal()
        with m.If(moves):
            m.d.sync += [at_tag.eq(self.start), at_type.eq(~self.start & (upcoming == _TYPE))]
        types = (at_tag & ~tags) | at_type
        pairs.add(self.start, ipv4[2])
        pairs.add_now(at_tag & tags, Cat(high, tag))
        pairs.add_now(types & ~is_ipv6, Cat(high, ipv4[3]))
        pairs.add_now(types & is_ipv6, Cat(high, ipv6[3]))
        for step in range(_IPV4_FIRST, _IPV4_LAST + 1):
            pairs.add((upcoming == step) & ~is_ipv6, Cat(ipv4[2 * step - 2 : 2 * step]))
        for step in range(_IPV4_FIRST, _IPV6_LAST + 1):
            pairs.add((upcoming == step) & is_ipv6, Cat(ipv6[2 * step - 2 : 2 * step]))
        pairs.add(upcoming == _ODD, Cat(high, ipv6[12]))
        pairs.add(upcoming == _PORTS, Cat(ipv4[8:10]))
        pairs.add(upcoming == DDP_STEP, ipv4[10])
        ends = Cat(self.last & ~self.left, self.last)
        ddp = self.ddp[:32], Cat(high, self.ddp[32:])
        takes_ddp, left = pairs.add_each(upcoming >= DDP_STEP, ddp, ends)
        with m.If(self.left_taken):
            m.d.sync += left.eq(0)
        m.d.comb += [
            self.pair.eq(pairs.any()),
            self.ddp_taken.eq(self.advance & takes_ddp),
        ]
        with m.If(moves):
            m.d.sync += following.eq(upcoming)
        with m.If(self.start):
            m.d.sync += self.step.eq(0)
        with m.Elif(self.advance):
            m.d.sync += self.step.eq(following)
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
        # What comes after the address is chosen from this header for both families.
        address = Cat(
            Mux(fields.ipv6, fields.dest_ipv6[:16], fields.dest_ipv4[:16]), fields.dest_ipv4[16:]
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
            destination=address,
        )
        ipv6 = header_octets(
            IPV6,
            version_class_flow=Cat(Const(0, 20), fields.traffic_class, Const(6, 4)),
            payload_length=self.udp_length,
            next_header=PROTOCOL_UDP,
            hop_limit=fields.hop_limit,
            source=fields.source_ipv6,
            destination=fields.dest_ipv6,
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
        # 18 bits hold them: the length is that of a frame.
        own, rest, length = (
            Signal(18, name=name, reset_less=True) for name in ("own", "rest", "length")
        )
        source, destination = Signal(17, reset_less=True), Signal(17, reset_less=True)
        udp_length = data_register(m, self.udp_length)
        with m.If(self.start):
            m.d.sync += [
                udp_length.eq(fields.octets - before_udp),
                rest.eq(Cat(fields.traffic_class, fields.hop_limit) + own),
            ]
        wide = Signal(20)
        total = Signal(17, reset_less=True)
        folded = Signal(16)
        m.d.comb += [
            wide.eq(length + destination),
            folded.eq(total[:16] + total[16]),
        ]
        m.d.sync += [
            source.eq(fields.source_ipv4[:16] + fields.source_ipv4[16:]),
            own.eq(source + fixed),
            length.eq(rest + self.udp_length),
            destination.eq(self.i.dest_ipv4[:16] + self.i.dest_ipv4[16:]),
            total.eq(wide[:16] + wide[16:]),
        ]
        return ~folded
