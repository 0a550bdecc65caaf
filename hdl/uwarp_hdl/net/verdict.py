"""How a frame ends: the checks of section 2 of the device behaviour, in their order.

A check that the rule puts later may look at fields that the frame does not have, and come to any
result: one that comes earlier has failed then.

::

    word, fields --> flags --> sets of them --> wait for the sums --> accept --> outcome
         1             2            3                  4                5           6    cycle

Whether the frame is a datagram to a group, which the rule asks in the place of one check and which
changes others, is known last: the outcome is found for both.
"""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter
from uwarp.wire import MAC_GROUP_BIT

from ..compare import at_least, equal
from ..layouts import PortConfig
from .headers import (
    BROADCAST_MAC,
    CHECKED_FIELDS,
    EARLY_HEADER,
    ETHERNET_HEADER,
    GROUP_OPCODES,
    OPCODES,
    SEGMENT_CRC,
    UDP_HEADER,
    header_octets,
    known_opcode,
)
from .network import NetworkCheck
from .word import FrameWord

__all__ = ["Verdict"]

CODE_BITS = (len(Counter) - 1).bit_length()


class Verdict(wiring.Component):
    """Judge every word as if it were the last of its frame; what counts is the last one's verdict.

    A verdict every cycle. Overflow, the first of the checks, is not looked at here.

    Attributes
    ----------
    following, word : In(FrameWord)
        Cycles 0 and 1.
    destination_mac : In(48)
    destination : In(128)
        Addresses, cycle 1; the latter as of GroupLookup.
    fields : In(StructLayout)
        CHECKED_FIELDS of the frame, cycle 1. ``udp_checksum`` is looked at in cycle 4.
    config : In(PortConfig)
    before_udp : Out(4)
        As of NetworkCheck.
    hit : In(1)
        The destination port is a QP's, cycle 3.
    match : In(1)
        It is a group's, and the IP destination is the group's address, cycle 6; cycle 4 if that is
        step 4 or later.
    ip_right, udp_right, crc_right : In(1)
        The sums over the frame up to this word, cycle 4.
    promising, promising_group : Out(1)
        What was seen of the headers up to step 2 is good, cycle 2, if that is step 4 or later; or
        good for a datagram to a group, if ``match`` says so later.
    accept : Out(1)
        All checks have passed, cycle 5.
    outcome : Out
        The Counter of the first that has not, cycle 6.
    """

    def __init__(self):
        layout = data.StructLayout(
            {name: 8 * octets for name, (_, octets) in CHECKED_FIELDS.items()}
        )
        super().__init__(
            {
                "following": In(FrameWord),
                "word": In(FrameWord),
                "destination_mac": In(48),
                "destination": In(128),
                "fields": In(layout),
                "config": In(PortConfig),
                "before_udp": Out(4),
                "hit": In(1),
                "match": In(1),
                "ip_right": In(1),
                "udp_right": In(1),
                "crc_right": In(1),
                "promising": Out(1),
                "promising_group": Out(1),
                "accept": Out(1),
                "outcome": Out(CODE_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        fields, position = self.fields, self.word.position

        def flag(name, condition):
            signal = Signal(name=name)
            m.d.sync += signal.eq(condition)
            return signal

        udp_length = fields.udp_length
        opcode, tagged = fields.rdmap_control[:4], fields.ddp_control[7]
        m.submodules.network = ip = NetworkCheck()
        m.d.comb += [
            ip.word.eq(self.word),
            ip.destination.eq(self.destination),
            ip.config.eq(self.config),
            self.before_udp.eq(ip.before_udp),
        ]

        # position is the frame's length - 1, but for tags and, before an early header, 4 octets.
        mac_error = flag("mac_error", self.word.error)
        shortest_frame = Mux(self.word.early, EARLY_HEADER, ETHERNET_HEADER)
        runt = flag("runt", _is_less(position, shortest_frame - 1))
        # One subtraction, since what is left to compare with has few bits.
        excess = Signal(signed(18), reset_less=True)
        m.d.sync += excess.eq((self.following.index << 3) - self.config.mtu)
        low = excess[:4] + self.word.last_octet
        is_over = [
            excess[4:-1].any() | at_least(low, header) for header in (ETHERNET_HEADER, EARLY_HEADER)
        ]
        oversize = flag("oversize", ~excess[-1] & Mux(self.word.early, is_over[1], is_over[0]))
        mac = self.destination_mac
        to_broadcast_mac = mac == BROADCAST_MAC
        other_mac = flag("other_mac", ~(to_broadcast_mac | equal(m, mac, self.config.mac)))
        kept = flag(
            "kept",
            Mux(mac[MAC_GROUP_BIT], self.config.accept_multicast, self.config.accept_foreign),
        )
        to_group = flag("to_group", mac[MAC_GROUP_BIT])
        other_type = flag("other_type", ~self.word.ipv4 & ~self.word.ipv6)
        # If the IP payload is under 8 octets one of these two applies, whatever the UDP length is.
        udp_malformed = flag(
            "udp_malformed", _is_less(udp_length, UDP_HEADER) | (udp_length > ip.payload_length)
        )

        broadcast_mac = flag("broadcast_mac", to_broadcast_mac)
        shortest = min(item.header for item in OPCODES) + UDP_HEADER + SEGMENT_CRC
        too_short = flag("too_short", _is_less(udp_length, shortest))

        ddp_version = flag("ddp_version", fields.ddp_control[:2] != 1)
        rdmap_version = flag("rdmap_version", fields.rdmap_control[6:] != 1)
        unknown_opcode = flag("unknown_opcode", ~known_opcode(opcode, tagged))
        header_cut = flag(
            "header_cut", _is_less(udp_length, header_octets(opcode, UDP_HEADER + SEGMENT_CRC))
        )

        not_for_groups = flag(
            "not_for_groups", ~Cat(opcode == item for item in GROUP_OPCODES).any()
        )

        bad = [mac_error, oversize, other_type, ip.malformed, ip.fragment, ip.other_protocol]
        bad += [udp_malformed, too_short, ddp_version, rdmap_version, unknown_opcode, header_cut]
        not_ours = [other_mac, ip.other_address, broadcast_mac, ip.broadcast]
        good = Signal()
        m.d.comb += [
            good.eq(~Cat(bad).any()),
            self.promising.eq(good & ~Cat(not_ours).any() & self.hit),
            self.promising_group.eq(good & to_group & ~not_for_groups),
        ]

        frame = self._first(
            m,
            "frame",
            (mac_error, Counter.DROP_MAC_ERROR),
            (runt, Counter.DROP_RUNT),
            (oversize, Counter.DROP_OVERSIZE),
        )
        link = self._first(
            m,
            "link",
            (other_mac & kept, Counter.RX_MANAGEMENT),
            (other_mac, Counter.DROP_MAC_FILTER),
            (other_type, Counter.RX_MANAGEMENT),
            (ip.malformed, Counter.DROP_IP_HEADER),
            late_last=(ip.short, Counter.DROP_IP_HEADER),
        )
        network = self._first(
            m,
            "network",
            (ip.fragment, Counter.DROP_IP_FRAGMENT),
            (ip.other_address, Counter.DROP_IP_FILTER),
            (ip.other_protocol, Counter.RX_MANAGEMENT),
            (udp_malformed, Counter.DROP_UDP_LENGTH),
        )
        transport = self._first(
            m,
            "transport",
            (broadcast_mac | ip.broadcast, Counter.RX_MANAGEMENT),
            (too_short, Counter.DROP_DDP_SHORT),
            late=(~self.hit, Counter.RX_MANAGEMENT),
        )
        versions = (
            (ddp_version, Counter.DROP_DDP_VERSION),
            (rdmap_version, Counter.DROP_RDMAP_VERSION),
        )
        segment = self._first(
            m,
            "segment",
            *versions,
            (unknown_opcode, Counter.DROP_OPCODE),
            (header_cut, Counter.DROP_DDP_SHORT),
        )
        group_transport = self._first(m, "group_transport", (too_short, Counter.DROP_DDP_SHORT))
        group_segment = self._first(
            m,
            "group_segment",
            *versions,
            (unknown_opcode | not_for_groups, Counter.DROP_OPCODE),
            (header_cut, Counter.DROP_DDP_SHORT),
        )
        barred = ~to_group | other_type | ip.malformed | ip.fragment
        barred |= ip.other_protocol | udp_malformed
        barred = flag("barred4", flag("barred3", barred) | ip.short)

        sets = {
            "frame": frame,
            "link": link,
            "network": network,
            "transport": transport,
            "segment": segment,
            "group_transport": group_transport,
            "group_segment": group_segment,
        }
        passes, group_passes = Signal(), Signal()
        m.d.comb += [
            passes.eq(~(frame[0] | link[0] | network[0] | transport[0] | segment[0])),
            group_passes.eq(~(frame[0] | barred | group_transport[0] | group_segment[0])),
        ]
        udp_right = self.udp_right | (fields.udp_checksum == 0)
        no_sum = self.word.ipv6
        for cycle in range(2, 5):
            no_sum = flag(f"no_sum{cycle}", no_sum)
        ip_right = self.ip_right | no_sum
        ip_failed = flag("ip_failed", ~ip_right)
        udp_failed = flag("udp_failed", ~udp_right)
        crc_failed = flag("crc_failed", ~self.crc_right)
        m.d.sync += self.accept.eq(
            (passes | group_passes & self.match) & ip_right & udp_right & self.crc_right
        )

        final = {}
        for name, (failed, code) in sets.items():
            final[name] = (
                Signal(name=f"{name}_failed"),
                Signal(CODE_BITS, name=f"{name}_outcome", reset_less=True),
            )
            m.d.sync += [final[name][0].eq(failed), final[name][1].eq(code)]
        udp, crc = (udp_failed, Counter.DROP_UDP_CHECKSUM), (crc_failed, Counter.DROP_CRC)
        order = (
            final["frame"],
            final["link"],
            (ip_failed, Counter.DROP_IP_CHECKSUM),
            final["network"],
            udp,
            final["transport"],
            crc,
            final["segment"],
        )
        group_order = (
            final["frame"],
            udp,
            final["group_transport"],
            crc,
            final["group_segment"],
        )
        outcomes = [
            Signal(CODE_BITS, name=f"{name}_outcome", reset_less=True)
            for name in ("own", "to_group")
        ]
        for outcome, checks in zip(outcomes, (order, group_order), strict=True):
            m.d.sync += outcome.eq(checks[-1][1])
            for failed, code in reversed(checks):
                with m.If(failed):
                    m.d.sync += outcome.eq(code)
        may_match = flag("may_match", ~(flag("barred5", barred) | ip_failed))
        m.d.comb += self.outcome.eq(Mux(may_match & self.match, outcomes[1], outcomes[0]))
        return m

    def _first(self, m, name, *checks, late=None, late_last=None):
        """The first check of some that fails, in cycle 4 of those whose flags are of cycle 2.

        ``late`` is one of cycle 3, that comes before them, ``late_last`` one that comes after.
        """
        flags = Signal(len(checks), name=f"{name}_flags")
        failed, code = (
            Signal(name=f"{name}_held"),
            Signal(CODE_BITS, name=f"{name}_code", reset_less=True),
        )
        m.d.sync += flags.eq(Cat(condition for condition, _ in checks))
        in_order = [(flag, counter) for flag, (_, counter) in zip(flags, checks, strict=True)]
        if late is not None:
            in_order.insert(0, late)
        if late_last is not None:
            in_order.append(late_last)
        m.d.sync += [
            failed.eq(Cat(condition for condition, _ in in_order).any()),
            code.eq(in_order[-1][1]),
        ]
        for condition, counter in reversed(in_order):
            with m.If(condition):
                m.d.sync += code.eq(counter)
        return failed, code


def _is_less(value, limit):
    """``value < limit``, where ``limit`` has few bits: the others are only asked for a 1."""
    limit = Value.cast(limit)
    width = len(limit)
    return ~value[width:].any() & (value[:width] < limit.as_unsigned())
