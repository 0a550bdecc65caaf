"""Ring entries in host memory: send WQE, receive WQE, CQE. Rings are power-of-two sized."""

from __future__ import annotations

from .structure import Field, Structure

__all__ = ["CQE", "EVENT", "RECV_WQE", "SEND_WQE"]

SEND_WQE = Structure(
    "send_wqe",
    64,
    "One message to send. The ring's index is the WQE's free-running index modulo the ring's size.",
    (
        Field("opcode", 8, "RDMAP opcode of the message: 0x0, 0x3, 0xC or 0xE"),
        Field("flags", 8, "WqeFlag"),
        Field("granule_log2", 8, "log2 of the target's granule, 6 to 16; 0 is read as 6"),
        Field("num_sge", 8, "0 or 1; the SGE is ignored when 0"),
        Field("length", 32, "octets of the message; equals sge_length when num_sge is 1, else 0"),
        Field("remote_to", 64, "target offset of the message's first octet (tagged messages)"),
        Field("remote_stag", 32, "target STag (tagged messages)"),
        Field("immediate", 32, "sent when the flag IMMEDIATE is set, and always by opcode 0xE"),
        Field("dest_ip", 32, "IPv4 destination, as a number: 10.0.0.1 is 0x0A000001"),
        Field("dest_port", 16, "UDP destination port"),
        Field("_vlan", 16, "reserved"),
        Field("dest_mac", 48, "next hop, as a number: 02:00:00:00:00:01 is 0x020000000001"),
        Field("traffic_class", 8, "the IPv4 header's second octet"),
        Field("hop_limit", 8, "the IPv4 header's TTL"),
        Field("sge_addr", 64, "first octet, as an offset in the address space of the SGE's region"),
        Field("sge_length", 32, "octets"),
        Field("sge_lkey", 32, "STag of the region that holds the octets"),
        Field("_reserved", 64),
    ),
)

RECV_WQE = Structure(
    "recv_wqe",
    32,
    "One buffer to receive a Send into.",
    (
        Field(
            "sge0_addr", 64, "first octet, as an offset in the address space of the SGE's region"
        ),
        Field("sge0_length", 32, "octets"),
        Field("sge0_lkey", 32, "STag of the region; it must allow LOCAL_WRITE"),
        Field("_sge1_addr", 64, "reserved"),
        Field("_sge1_length", 32, "reserved"),
        Field("_sge1_lkey", 32, "reserved"),
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
            "low half of the WQE's free-running index (sends, and receives of a Send)",
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
        Field("stag", 32, "STag (tagged messages), lkey (Sends with flag MAPPED), else 0"),
        Field("immediate", 32, "immediate when the flag IMMEDIATE is set, else 0"),
        Field("source_ip", 128, "sender: IPv6 address, or IPv4 mapped into it; receive only"),
        Field("source_port", 16, "sender's UDP port; receive only"),
        Field("head_map", 8, "map byte that holds the message's first granule (flag MAPPED)"),
        Field("tail_map", 8, "map byte that holds the message's last granule (flag MAPPED)"),
        Field("time_low", 31, "lower 31 bits of the time of completion, in NIC clock cycles"),
        Field("phase", 1, "see above"),
    ),
)

EVENT = Structure(
    "event",
    16,
    "One asynchronous event. The phase bit works as in a CQE, with the event ring's own index.",
    (
        Field("type", 8, "EventType"),
        Field("_reserved0", 8),
        Field("number", 16, "row of the QP or CQ spoken of"),
        Field("_reserved1", 32),
        Field("_reserved2", 16),
        Field("time", 47, "when it was written, in NIC clock cycles"),
        Field("phase", 1, "see above"),
    ),
)
