"""How a frame ends: the checks of section 2 of the device behaviour, in their order.

A check that the rule puts later may look at fields that the frame does not have, and come to any
result: one that comes earlier has failed then.

::

    word, fields --> flags --> four groups --> wait for the sums --> outcome
         1             2            3                  4                5     cycle
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter

from ..layouts import PortConfig
from .headers import (
    BROADCAST_MAC,
    CHECKED_FIELDS,
    EARLY_HEADER,
    ETHERNET_HEADER,
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
    word : In(FrameWord)
        Cycle 1.
    following : In(FrameWord)
        Cycle 0.
    destination_mac : In(48)
        Cycle 1.
    fields : In(StructLayout)
        CHECKED_FIELDS of the frame, cycle 1. ``udp_checksum`` is looked at in cycle 4.
    config : In(PortConfig)
    udp_index : Out(4)
        As of NetworkCheck.
    hit : In(1)
        The destination port is in the port table, cycle 3.
    ip_right, udp_right, crc_right : In(1)
        The sums over the frame up to this word, cycle 4.
    promising : Out(1)
        What was seen of the headers up to step 2 is good, cycle 2, if that is step 4 or later.
    accept : Out(1)
        All checks have passed, cycle 5.
    outcome : Out
        The Counter of the first that has not, cycle 5.
    """

    def __init__(self):
        layout = data.StructLayout(
            {name: 8 * octets for name, (_, octets) in CHECKED_FIELDS.items()}
        )
        super().__init__(
            {
                "word": In(FrameWord),
                "following": In(FrameWord),
                "destination_mac": In(48),
                "fields": In(layout),
                "config": In(PortConfig),
                "udp_index": Out(4),
                "hit": In(1),
                "ip_right": In(1),
                "udp_right": In(1),
                "crc_right": In(1),
                "promising": Out(1),
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
            ip.config.eq(self.config),
            self.udp_index.eq(ip.udp_index),
        ]

        size_limit = Signal(17)
        m.d.sync += size_limit.eq(
            self.config.mtu + Mux(self.following.early, EARLY_HEADER, ETHERNET_HEADER)
        )

        # position is the frame's length - 1, but for tags and, before an early header, 4 octets.
        mac_error = flag("mac_error", self.word.error)
        shortest_frame = Mux(self.word.early, EARLY_HEADER, ETHERNET_HEADER)
        runt = flag("runt", position < shortest_frame - 1)
        oversize = flag("oversize", position >= size_limit)
        mac = self.destination_mac
        to_broadcast_mac = mac == BROADCAST_MAC
        other_mac = flag("other_mac", ~to_broadcast_mac & (mac != self.config.mac))
        # The group bit is the lowest of the first octet (IEEE 802.3 clause 3.2.3).
        kept = flag("kept", Mux(mac[40], self.config.accept_multicast, self.config.accept_foreign))
        other_type = flag("other_type", ~self.word.ipv4 & ~self.word.ipv6)
        # If the IP payload is under 8 octets one of these two applies, whatever the UDP length is.
        udp_malformed = flag(
            "udp_malformed", (udp_length < UDP_HEADER) | (udp_length > ip.payload_length)
        )

        broadcast_mac = flag("broadcast_mac", to_broadcast_mac)
        shortest = min(item.header for item in OPCODES) + UDP_HEADER + SEGMENT_CRC
        too_short = flag("too_short", udp_length < shortest)

        ddp_version = flag("ddp_version", fields.ddp_control[:2] != 1)
        rdmap_version = flag("rdmap_version", fields.rdmap_control[6:] != 1)
        unknown_opcode = flag("unknown_opcode", ~known_opcode(opcode, tagged))
        header_cut = flag(
            "header_cut", udp_length < header_octets(opcode, UDP_HEADER + SEGMENT_CRC)
        )

        bad = [mac_error, oversize, other_mac, other_type, ip.malformed, ip.fragment]
        bad += [ip.other_address, ip.other_protocol, udp_malformed, too_short]
        bad += [broadcast_mac, ip.broadcast]
        bad += [ddp_version, rdmap_version, unknown_opcode, header_cut]
        m.d.comb += self.promising.eq(~Cat(bad).any() & self.hit)

        link = self._group(
            m,
            "link",
            (mac_error, Counter.DROP_MAC_ERROR),
            (runt, Counter.DROP_RUNT),
            (oversize, Counter.DROP_OVERSIZE),
            (other_mac & kept, Counter.RX_MANAGEMENT),
            (other_mac, Counter.DROP_MAC_FILTER),
            (other_type, Counter.RX_MANAGEMENT),
            (ip.malformed | ip.short, Counter.DROP_IP_HEADER),
        )
        network = self._group(
            m,
            "network",
            (ip.fragment, Counter.DROP_IP_FRAGMENT),
            (ip.other_address, Counter.DROP_IP_FILTER),
            (ip.other_protocol, Counter.RX_MANAGEMENT),
            (udp_malformed, Counter.DROP_UDP_LENGTH),
        )
        transport = self._group(
            m,
            "transport",
            (broadcast_mac | ip.broadcast, Counter.RX_MANAGEMENT),
            (too_short, Counter.DROP_DDP_SHORT),
            late=(~self.hit, Counter.RX_MANAGEMENT),
        )
        segment = self._group(
            m,
            "segment",
            (ddp_version, Counter.DROP_DDP_VERSION),
            (rdmap_version, Counter.DROP_RDMAP_VERSION),
            (unknown_opcode, Counter.DROP_OPCODE),
            (header_cut, Counter.DROP_DDP_SHORT),
        )

        groups = {"link": link, "network": network, "transport": transport, "segment": segment}
        groups_pass = Signal()
        m.d.comb += groups_pass.eq(~(link[0] | network[0] | transport[0] | segment[0]))
        udp_right = self.udp_right | (fields.udp_checksum == 0)
        no_sum = self.word.ipv6
        for cycle in range(2, 5):
            no_sum = flag(f"no_sum{cycle}", no_sum)
        ip_right = self.ip_right | no_sum
        ip_failed = flag("ip_failed", ~ip_right)
        udp_failed = flag("udp_failed", ~udp_right)
        crc_failed = flag("crc_failed", ~self.crc_right)
        m.d.sync += self.accept.eq(groups_pass & ip_right & udp_right & self.crc_right)

        final = {}
        for name, (failed, code) in groups.items():
            final[name] = (Signal(name=f"{name}_failed"), Signal(CODE_BITS, name=f"{name}_outcome"))
            m.d.sync += [final[name][0].eq(failed), final[name][1].eq(code)]
        order = (
            final["link"],
            (ip_failed, Counter.DROP_IP_CHECKSUM),
            final["network"],
            (udp_failed, Counter.DROP_UDP_CHECKSUM),
            final["transport"],
            (crc_failed, Counter.DROP_CRC),
            final["segment"],
        )
        m.d.comb += self.outcome.eq(final["segment"][1])
        for failed, code in reversed(order):
            with m.If(failed):
                m.d.comb += self.outcome.eq(code)
        return m

    def _group(self, m, name, *checks, late=None):
        """The first check of some that fails, in cycle 4 of those whose flags are of cycle 2.

        ``late`` is one of cycle 3, that comes before them.
        """
        failed, code = Signal(name=f"{name}_first_failed"), Signal(CODE_BITS, name=f"{name}_code")
        failed_held, code_held = Signal(name=f"{name}_held"), Signal(CODE_BITS, name=f"{name}_kept")
        m.d.sync += [failed.eq(0), failed_held.eq(failed), code_held.eq(code)]
        for condition, counter in reversed(checks):
            with m.If(condition):
                m.d.sync += [failed.eq(1), code.eq(counter)]
        if late is not None:
            condition, counter = late
            with m.If(condition):
                m.d.sync += [failed_held.eq(1), code_held.eq(counter)]
        return failed_held, code_held
