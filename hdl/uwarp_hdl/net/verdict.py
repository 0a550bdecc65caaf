"""How a frame ends: the checks of section 2 of the device behaviour, in their order.

A check that the rule puts later may look at fields that the frame does not have, and come to any
result: one that comes earlier has failed then.

::

    word, fields --> flags --> four groups --> wait for the sums --> outcome
         1             2            3                  4                5     cycle
"""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter

from ..layouts import PortConfig
from .headers import (
    BROADCAST_IPV4,
    BROADCAST_MAC,
    CHECKED_FIELDS,
    ETHERNET_HEADER,
    ETHERTYPE_IPV4,
    IPV4_HEADER,
    OPCODES,
    PROTOCOL_UDP,
    SEGMENT_CRC,
    UDP_HEADER,
    header_octets,
    known_opcode,
)
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
    fields : In(StructLayout)
        CHECKED_FIELDS of the frame, cycle 1. Those of word 3 and later are looked at up to cycle 4.
    config : In(PortConfig)
    hit : In(1)
        The destination port is in the port table, cycle 2.
    ip_right, udp_right, crc_right : In(1)
        The sums over the frame up to this word, cycle 4.
    promising : Out(1)
        What was seen of the headers up to word 5 is good, cycle 2.
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
                "fields": In(layout),
                "config": In(PortConfig),
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

        ihl, version = fields.version_ihl[:4], fields.version_ihl[4:]
        total, udp_length = fields.total_length, fields.udp_length
        opcode, tagged = fields.rdmap_control[:4], fields.ddp_control[7]

        size_limit = Signal(17)
        total_end = Signal(17)
        m.d.sync += [
            size_limit.eq(self.config.mtu + ETHERNET_HEADER),
            total_end.eq(total + ETHERNET_HEADER),
        ]

        # position is the frame's length - 1.
        mac_error = flag("mac_error", self.word.error)
        runt = flag("runt", position < ETHERNET_HEADER - 1)
        oversize = flag("oversize", position >= size_limit)
        to_broadcast_mac = fields.destination_mac == BROADCAST_MAC
        other_mac = flag(
            "other_mac", ~to_broadcast_mac & (fields.destination_mac != self.config.mac)
        )
        other_ethertype = flag("other_ethertype", fields.ethertype != ETHERTYPE_IPV4)
        ip_malformed = flag("ip_malformed", (version != 4) | (ihl < 5) | (total < (ihl << 2)))
        ip_short = flag(
            "ip_short",
            (position < ETHERNET_HEADER + IPV4_HEADER - 1) | (total_end > position + 1),
        )
        options = flag("options", ihl > 5)

        # More Fragments and the offset; the reserved bit and Don't Fragment are not looked at.
        fragment = flag("fragment", (fields.fragment & 0x3FFF) != 0)
        to_broadcast_ip = fields.destination_ip == BROADCAST_IPV4
        other_ip = flag("other_ip", ~to_broadcast_ip & (fields.destination_ip != self.config.ipv4))
        other_protocol = flag("other_protocol", fields.protocol != PROTOCOL_UDP)
        # If the IP payload is under 8 octets one of these two applies, whatever the UDP length is.
        udp_malformed = flag(
            "udp_malformed", (udp_length < UDP_HEADER) | (udp_length + IPV4_HEADER > total)
        )

        broadcast = flag("broadcast", to_broadcast_mac | to_broadcast_ip)
        shortest = min(item.header for item in OPCODES) + UDP_HEADER + SEGMENT_CRC
        too_short = flag("too_short", udp_length < shortest)

        ddp_version = flag("ddp_version", fields.ddp_control[:2] != 1)
        rdmap_version = flag("rdmap_version", fields.rdmap_control[6:] != 1)
        unknown_opcode = flag("unknown_opcode", ~known_opcode(opcode, tagged))
        header_cut = flag(
            "header_cut", udp_length < header_octets(opcode, UDP_HEADER + SEGMENT_CRC)
        )

        bad = [mac_error, oversize, other_mac, other_ethertype, ip_malformed, options, fragment]
        bad += [other_ip, other_protocol, udp_malformed, broadcast, too_short]
        bad += [ddp_version, rdmap_version, unknown_opcode, header_cut]
        m.d.comb += self.promising.eq(~Cat(bad).any() & self.hit)

        link = self._group(
            m,
            "link",
            (mac_error, Counter.DROP_MAC_ERROR),
            (runt, Counter.DROP_RUNT),
            (oversize, Counter.DROP_OVERSIZE),
            (other_mac, Counter.DROP_MAC_FILTER),
            (other_ethertype, Counter.RX_MANAGEMENT),
            (ip_malformed | ip_short, Counter.DROP_IP_HEADER),
            (options, Counter.RX_MANAGEMENT),
        )
        network = self._group(
            m,
            "network",
            (fragment, Counter.DROP_IP_FRAGMENT),
            (other_ip, Counter.DROP_IP_FILTER),
            (other_protocol, Counter.RX_MANAGEMENT),
            (udp_malformed, Counter.DROP_UDP_LENGTH),
        )
        transport = self._group(
            m,
            "transport",
            (broadcast | ~self.hit, Counter.RX_MANAGEMENT),
            (too_short, Counter.DROP_DDP_SHORT),
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
        ip_failed = flag("ip_failed", ~self.ip_right)
        udp_failed = flag("udp_failed", ~udp_right)
        crc_failed = flag("crc_failed", ~self.crc_right)
        m.d.sync += self.accept.eq(groups_pass & self.ip_right & udp_right & self.crc_right)

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

    def _group(self, m, name, *checks):
        """The first check of some that fails, in cycle 4 of those whose flags are of cycle 2."""
        failed, code = Signal(name=f"{name}_first_failed"), Signal(CODE_BITS, name=f"{name}_code")
        failed_held, code_held = Signal(name=f"{name}_held"), Signal(CODE_BITS, name=f"{name}_kept")
        m.d.sync += [failed.eq(0), failed_held.eq(failed), code_held.eq(code)]
        for condition, counter in reversed(checks):
            with m.If(condition):
                m.d.sync += [failed.eq(1), code.eq(counter)]
        return failed_held, code_held
