"""Rows of the NIC's tables, written whole through TABLE_DATA and TABLE_COMMAND.

A table is written, never read: the driver keeps what it wrote. All rows are zero after a reset.
"""

from __future__ import annotations

from .enums import Table
from .structure import Field, Structure

__all__ = [
    "CQ_ENTRY",
    "GROUP_ENTRY",
    "GROUP_MEMBERS",
    "MODERATION_ENTRY",
    "PORT_ENTRY",
    "QP_ENTRY",
    "REGION_ENTRY",
    "TABLES",
    "port_rows",
]

QP_ENTRY = Structure(
    "qp_entry",
    72,
    "A queue pair.",
    (
        Field("state", 4, "QpState; receives in RTR and RTS, sends in RTS"),
        Field("sq_log2", 4, "log2 of the send ring's entries, 0 to 15"),
        Field("rq_log2", 4, "log2 of the receive ring's entries, 0 to 15"),
        Field("sq_wide", 1, "entries of the send ring are 128 octets: WQE and extension"),
        Field("terminate", 1, "it reports by Terminate what it does not take"),
        Field("_reserved0", 2),
        Field("pd", 16, "protection domain"),
        Field("udp_port", 16, "source port of what it sends; the port table says what it receives"),
        Field("path_mtu", 16, "largest IP datagram it sends, in octets: 576 to MAX_MTU"),
        Field("send_cq", 16, "CQ of its sends"),
        Field("recv_cq", 16, "CQ of its receives"),
        Field(
            "timeout", 16, "silence after which a message closes as partial, in ticks; 1 to 32767"
        ),
        Field("opcodes", 16, "bit n set: RDMAP opcode n is accepted"),
        Field("send_burst", 16, "octets that its bucket holds beyond 64, in units of 64"),
        Field(
            "sq_addr",
            56,
            "DMA address of the send ring, in units of 64 octets; see device behaviour, 1.6",
        ),
        Field("rq_addr", 56, "DMA address of the receive ring, in units of 64 octets; as sq_addr"),
        Field("peer_ip", 128, "whom it listens to: an IPv6 address, IPv4 mapped into it"),
        Field("peer_mask", 128, "bits of peer_ip that must agree; 0 listens to every address"),
        Field("peer_port", 16, "UDP port it listens to; 0 listens to every port"),
        Field("_reserved1", 16),
        Field("send_rate", 32, "octets on the wire a tick, in units of 1/256; 0 sets no limit"),
    ),
)

REGION_ENTRY = Structure(
    "region_entry",
    48,
    "A memory region. Its STag is (index << 8) | key. Octet TO lies at DMA address "
    "dma_addr + TO - base_to.",
    (
        Field("valid", 1, "the row is in use"),
        Field("mapped", 1, "the region has a validity map"),
        Field("access", 6, "Access"),
        Field("key", 8, "low 8 bits of the STag"),
        Field("pd", 16, "protection domain"),
        Field("granule_log2", 8, "log2 of the granule in octets: 6 to 16"),
        Field("_reserved", 24),
        Field("base_to", 64, "TO of the first octet; a multiple of the granule if mapped"),
        Field("length", 64, "octets"),
        Field("dma_addr", 64, "DMA address of the first octet"),
        Field("map_addr", 64, "DMA address of the map in host memory; a multiple of 8"),
        Field("map_base", 32, "first bit in the on-chip map; a multiple of 64"),
        Field("_reserved1", 32),
    ),
)

CQ_ENTRY = Structure(
    "cq_entry",
    16,
    "A completion queue. Writing it clears its indices and disarms it.",
    (
        Field("valid", 1, "the row is in use"),
        Field("_reserved0", 7),
        Field("log2", 8, "log2 of the ring's entries, 1 to 16"),
        Field("_reserved1", 48),
        Field("addr", 64, "DMA address of the ring, a multiple of its size"),
    ),
)

PORT_ENTRY = Structure(
    "port_entry",
    8,
    "Names the QP, or the group, of a UDP port. Row b * n_qp + r is row r of bank b; see "
    "port_rows.",
    (
        Field("valid", 1, "the row is in use"),
        Field("group", 1, "the port is a group's"),
        Field("_reserved", 14),
        Field("port", 16, "UDP port"),
        Field("qpn", 16, "queue pair, or row of the group table"),
        Field("_reserved1", 16),
    ),
)

MODERATION_ENTRY = Structure(
    "moderation_entry",
    4,
    "How long an armed CQ, row by row the same CQ, holds its interrupt back.",
    (
        Field("count", 16, "completions that are enough to fire; 0 and 1 fire at once"),
        Field("ticks", 16, "ticks after which one completion is enough; 0 waits for the count"),
    ),
)

#: Members of a group, at most.
GROUP_MEMBERS = 16

GROUP_ENTRY = Structure(
    "group_entry",
    56,
    "Who receives what comes to a multicast or broadcast address, at the UDP port whose row "
    "names this row.",
    (
        Field("count", 8, "members, 0 to 16; with 0 the row is not in use"),
        Field("_reserved", 56),
        Field("address", 128, "the group's IPv6 address, or IPv4 mapped into it"),
        *(
            Field(f"member{index}", 16, "queue pair" if index == 0 else "")
            for index in range(GROUP_MEMBERS)
        ),
    ),
)

TABLES: dict[Table, Structure] = {
    Table.QP: QP_ENTRY,
    Table.REGION: REGION_ENTRY,
    Table.CQ: CQ_ENTRY,
    Table.PORT: PORT_ENTRY,
    Table.MODERATION: MODERATION_ENTRY,
    Table.GROUP: GROUP_ENTRY,
}


def port_rows(port: int, n_qp: int) -> tuple[int, int, int, int]:
    """The row within each of the four banks where ``port`` may stand, for ``n_qp`` rows a bank.

    With k = log2(n_qp), bank b takes the k low bits of ``port ^ (port >> s)`` with s = 16, 3, 6,
    10: shifts and XORs only, so that the gateware looks all four up in the cycle in which it knows
    the port.
    """
    return tuple((port ^ port >> shift) & n_qp - 1 for shift in (16, 3, 6, 10))  # type: ignore[return-value]
