"""Counters of the NIC: one for each way in which a frame can end, and a few for what is sent.

The order of the drop reasons is the order of the checks: a frame that is wrong in several ways is
counted at the first. ``docs/device.md`` gives the rule behind each.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["COUNTER_MEANINGS", "DROPS", "Counter", "outcome_sum"]


class Counter(IntEnum):
    """Index of each counter; its register is COUNTERS + 8 * index."""

    RX_FRAMES = 0
    RX_PLACED = 1
    RX_MANAGEMENT = 2
    DROP_OVERFLOW = 3
    DROP_MAC_ERROR = 4
    DROP_RUNT = 5
    DROP_OVERSIZE = 6
    DROP_MAC_FILTER = 7
    DROP_IP_HEADER = 8
    DROP_IP_CHECKSUM = 9
    DROP_IP_FRAGMENT = 10
    DROP_IP_FILTER = 11
    DROP_UDP_LENGTH = 12
    DROP_UDP_CHECKSUM = 13
    DROP_DDP_SHORT = 14
    DROP_CRC = 15
    DROP_DDP_VERSION = 16
    DROP_RDMAP_VERSION = 17
    DROP_OPCODE = 18
    DROP_QP_STATE = 19
    DROP_OWN_GROUP = 20
    DROP_PEER = 21
    DROP_QP_OPCODE = 22
    DROP_UNTAGGED_QN = 23
    DROP_MESSAGE_LENGTH = 24
    DROP_SEND_SEGMENTED = 25
    DROP_STAG_INVALID = 26
    DROP_STAG_KEY = 27
    DROP_STAG_PD = 28
    DROP_STAG_ACCESS = 29
    DROP_TO_WRAP = 30
    DROP_BOUNDS = 31
    DROP_LATE = 32
    DROP_RECORD_MISMATCH = 33
    DROP_NO_RECEIVE = 34
    DROP_RECEIVE_PROTECTION = 35
    DROP_RECEIVE_SHORT = 36
    DROP_CQ_FULL = 37
    DROP_NO_TRACKER = 38
    DROP_READ_BUSY = 39
    TX_FRAMES = 40
    CQES = 41
    MESSAGES_PARTIAL = 42
    EVENTS = 43
    EVENTS_LOST = 44
    DMA_ERRORS = 45
    RX_COPIES = 46
    TX_TERMINATES = 47


COUNTER_MEANINGS: dict[Counter, str] = {
    Counter.RX_FRAMES: "frames that came from the MAC",
    Counter.RX_PLACED: "datagrams accepted (also those of no octets)",
    Counter.RX_MANAGEMENT: "frames handed to the management port",
    Counter.DROP_OVERFLOW: "no room in the receive buffer",
    Counter.DROP_MAC_ERROR: "flagged by the MAC (FCS, code error, cut short)",
    Counter.DROP_RUNT: "shorter than an Ethernet header",
    Counter.DROP_OVERSIZE: "longer than the port's MTU and an Ethernet header",
    Counter.DROP_MAC_FILTER: "destination MAC neither ours, nor broadcast, nor of a group of ours",
    Counter.DROP_IP_HEADER: "IPv4 header or total length wrong",
    Counter.DROP_IP_CHECKSUM: "IPv4 header checksum wrong",
    Counter.DROP_IP_FRAGMENT: "IPv4 fragment",
    Counter.DROP_IP_FILTER: "IP destination neither ours, nor broadcast, nor a group of ours",
    Counter.DROP_UDP_LENGTH: "UDP length under 8 or over the IPv4 payload",
    Counter.DROP_UDP_CHECKSUM: "UDP checksum wrong",
    Counter.DROP_DDP_SHORT: "UDP payload shorter than the segment's header and CRC",
    Counter.DROP_CRC: "CRC32c wrong",
    Counter.DROP_DDP_VERSION: "DDP version not 1",
    Counter.DROP_RDMAP_VERSION: "RDMAP version not 1",
    Counter.DROP_OPCODE: "opcode not known here, or its T bit wrong",
    Counter.DROP_QP_STATE: "queue pair not in RTR or RTS",
    Counter.DROP_OWN_GROUP: "sent to a group by the queue pair itself",
    Counter.DROP_PEER: "sender not whom the queue pair listens to",
    Counter.DROP_QP_OPCODE: "opcode not accepted by the queue pair",
    Counter.DROP_UNTAGGED_QN: "queue number not 0; of a Read Request not 1, of a Terminate not 2",
    Counter.DROP_MESSAGE_LENGTH: "message offset and payload exceed the message length",
    Counter.DROP_SEND_SEGMENTED: "Send of several datagrams, and the posted receive has no map",
    Counter.DROP_STAG_INVALID: "STag names no region",
    Counter.DROP_STAG_KEY: "STag's key is not the region's",
    Counter.DROP_STAG_PD: "region of another protection domain",
    Counter.DROP_STAG_ACCESS: "region does not allow remote write, or remote read",
    Counter.DROP_TO_WRAP: "target offset wraps at 0 or 2^64",
    Counter.DROP_BOUNDS: "outside the region",
    Counter.DROP_LATE: "message already completed",
    Counter.DROP_RECORD_MISMATCH: "segment contradicts its open message",
    Counter.DROP_NO_RECEIVE: "Send, and no receive posted",
    Counter.DROP_RECEIVE_PROTECTION: "Send, and the posted receive's SGE is not allowed",
    Counter.DROP_RECEIVE_SHORT: "Send longer than the posted receive",
    Counter.DROP_CQ_FULL: "no free slot in the completion queue",
    Counter.DROP_NO_TRACKER: "Send of several datagrams, and no tracker is free",
    Counter.DROP_READ_BUSY: "Read Request, and as many wait as can",
    Counter.TX_FRAMES: "frames given to the MAC",
    Counter.CQES: "completions written",
    Counter.MESSAGES_PARTIAL: "messages completed as partial",
    Counter.EVENTS: "events written",
    Counter.EVENTS_LOST: "events that found the event ring full, no ring, or no place to wait",
    Counter.DMA_ERRORS: "DMA bursts that were answered with an error",
    Counter.RX_COPIES: "datagrams to a group beyond the first: one for each member but one",
    Counter.TX_TERMINATES: "Terminates among TX_FRAMES",
}

DROPS: tuple[Counter, ...] = tuple(item for item in Counter if item.name.startswith("DROP_"))


def outcome_sum(counters: dict[Counter, int]) -> int:
    """Frames accounted for: placed, handed to management, dropped; a datagram to a group once.

    Equals RX_FRAMES when idle.
    """
    ends = (Counter.RX_PLACED, Counter.RX_MANAGEMENT, *DROPS)
    return sum(counters[item] for item in ends) - counters[Counter.RX_COPIES]
