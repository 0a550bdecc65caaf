"""Ring entries in host memory: send WQE, receive WQE, CQE. Rings are power-of-two sized."""

from __future__ import annotations

from .structure import Field, Structure

__all__ = [
    "CQE",
    "EVENT",
    "EVENT_TIME_LOG2",
    "INLINE_OCTETS",
    "MAX_SGE",
    "RECV_WQE",
    "SEND_WQE",
    "SEND_WQE_EXTENSION",
]

#: SGEs of a send WQE with its extension.
MAX_SGE = 4

#: Octets of a message that a WQE with its extension itself can hold.
INLINE_OCTETS = 48

SEND_WQE = Structure(
    "send_wqe",
    64,
    "One message to send. The ring's index is the WQE's free-running index modulo the ring's size. "
    "In a wide ring (sq_wide) a send_wqe_extension follows each.",
    (
        Field("opcode", 8, "RDMAP opcode of the message: 0x0, 0x1, 0x3, 0xC or 0xE"),
        Field("flags", 8, "WqeFlag"),
        Field("granule_log2", 8, "log2 of the target's granule, 6 to 16; 0 is read as 6"),
        Field("num_sge", 8, "0 or 1, in a wide ring 0 to 4; SGEs beyond are ignored"),
        Field("length", 32, "octets of the message: the sum of the SGEs' lengths, or those inline"),
        Field(
            "remote_to", 64, "target offset of the message's first octet (tagged messages, Reads)"
        ),
        Field("remote_stag", 32, "target STag (tagged messages, Reads)"),
        Field("immediate", 32, "sent when the flag IMMEDIATE is set, and always by opcode 0xE"),
        Field(
            "dest_ip", 32, "IPv4 destination, as a number: 10.0.0.1 is 0x0A000001; unused with IPV6"
        ),
        Field("dest_port", 16, "UDP destination port"),
        Field("vlan", 16, "tag control information of the VLAN tag, with VLAN"),
        Field("dest_mac", 48, "next hop, as a number: 02:00:00:00:00:01 is 0x020000000001"),
        Field("traffic_class", 8, "the IPv4 header's second octet, or IPv6's traffic class"),
        Field("hop_limit", 8, "the IPv4 header's TTL, or IPv6's hop limit"),
        Field("sge_addr", 64, "first octet, as an offset in the address space of the SGE's region"),
        Field("sge_length", 32, "octets"),
        Field("sge_lkey", 32, "STag of the region that holds the octets"),
        Field("_reserved", 64),
    ),
)

SEND_WQE_EXTENSION = Structure(
    "send_wqe_extension",
    64,
    "Second half of an entry of a wide send ring. With INLINE its first 48 octets, those of the "
    "SGEs, are the message.",
    (
        Field("sge1_addr", 64, "second SGE"),
        Field("sge1_length", 32),
        Field("sge1_lkey", 32),
        Field("sge2_addr", 64, "third SGE"),
        Field("sge2_length", 32),
        Field("sge2_lkey", 32),
        Field("sge3_addr", 64, "fourth SGE"),
        Field("sge3_length", 32),
        Field("sge3_lkey", 32),
        Field("dest_ipv6", 128, "IPv6 destination, as a number, with IPV6"),
    ),
)

RECV_WQE = Structure(
    "recv_wqe",
    16,
    "One buffer to receive a Send into.",
    (
        Field(
            "sge0_addr", 64, "first octet, as an offset in the address space of the SGE's region"
        ),
        Field("sge0_length", 32, "octets"),
        Field("sge0_lkey", 32, "STag of the region; it must allow LOCAL_WRITE"),
    ),
)

CQE = Structure(
    "cqe",
    64,
    "One completion. The phase bit is in the last word written: it is 1 in the first pass through "
    "the ring, 0 in the second, and so on.",
    (
        Field("opcode", 8, "RDMAP opcode of the message"),
        Field("status", 8, "Status"),
        Field("flags", 16, "CqeFlag"),
        Field("qpn", 32, "queue pair"),
        Field(
            "wqe_index",
            16,
            "low half of the WQE's free-running index (sends, Reads, and receives of a Send)",
        ),
        Field("time_high", 16, "upper 16 bits of the time"),
        Field("valid", 32, "octets placed and valid (receive), octets sent (send)"),
        Field("msn", 32, "message sequence number"),
        Field("mlen", 32, "octets of the whole message"),
        Field(
            "base_to",
            64,
            "target offset of the first octet spoken of (tagged messages; flag MAPPED), else 0",
        ),
        Field(
            "stag", 32, "STag (tagged messages), lkey (Sends and Reads with flag MAPPED), else 0"
        ),
        Field("immediate", 32, "immediate when the flag IMMEDIATE is set, else 0"),
        Field(
            "source_ip",
            128,
            "sender, of a Read the responder: IPv6 address, or IPv4 mapped into it; not of sends",
        ),
        Field("source_port", 16, "its UDP port; not of sends"),
        Field("head_map", 8, "map byte that holds the message's first granule (flag MAPPED)"),
        Field("tail_map", 8, "map byte that holds the message's last granule (flag MAPPED)"),
        Field("time_low", 31, "lower 31 bits of the time of completion, in NIC clock cycles"),
        Field("phase", 1, "see above"),
    ),
)

#: Binary logarithm of the clock cycles in which the time of an event is counted.
EVENT_TIME_LOG2 = 8

EVENT = Structure(
    "event",
    32,
    "One asynchronous event. The phase bit works as in a CQE, with the event ring's own index.",
    (
        Field("type", 8, "EventType"),
        Field("time_high", 8, "upper 8 bits of the time"),
        Field("number", 16, "row of the QP or CQ spoken of"),
        Field("msn", 32, "MSN of the Terminate, else 0"),
        Field("source_ip", 128, "its sender: IPv6 address, or IPv4 mapped into it; else 0"),
        Field("source_port", 16, "its UDP port, else 0"),
        Field("code", 16, "upper half of its control word: layer, etype and code; else 0"),
        Field(
            "time_low",
            31,
            "lower 31 bits of the time when it was written, in units of "
            f"{1 << EVENT_TIME_LOG2} NIC clock cycles",
        ),
        Field("phase", 1, "see above"),
    ),
)
