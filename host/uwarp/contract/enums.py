"""Numbers of the device contract that are neither fields nor registers."""

from __future__ import annotations

from enum import IntEnum, IntFlag

__all__ = [
    "Access",
    "CloseTarget",
    "CqeFlag",
    "EventType",
    "QpState",
    "Status",
    "Table",
    "WqeFlag",
]


class QpState(IntEnum):
    """State of a queue pair, numbered as ``ibv_qp_state``. Writing RESET clears the QP's
    indices."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    ERROR = 6


class Access(IntFlag):
    """What a region allows, numbered as ``ibv_access_flags``. Local read is always allowed."""

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4


class WqeFlag(IntFlag):
    """Flags of a send WQE. The last three ask for a wide ring, but for VLAN.

    INLINE: the message is in the WQE's extension, not in SGEs. IPV6: the destination is the
    extension's. VLAN: the frame has a VLAN tag.
    """

    SIGNALED = 1
    SOLICITED = 2
    IMMEDIATE = 4
    VLAN = 8
    INLINE = 16
    IPV6 = 32


class Status(IntEnum):
    """Status of a completion, numbered as ``ibv_wc_status``; NO_TRACKER (of a Read) and PARTIAL are
    this project's own."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    GENERAL_ERR = 21
    NO_TRACKER = 30
    PARTIAL = 0x80


class CqeFlag(IntFlag):
    """Flags of a CQE.

    SEGMENT: the CQE speaks of one datagram of a longer message; HEAD and TAIL then say whether that
    datagram holds the first and the last octet of the message. MAPPED: the map in host memory and
    the CQE's own ``head_map`` and ``tail_map`` say which granules are valid.
    """

    RECEIVE = 1
    IMMEDIATE = 2
    SOLICITED = 4
    SEGMENT = 8
    HEAD = 16
    TAIL = 32
    MAPPED = 64


class Table(IntEnum):
    """Kinds of table, as in the register TABLE_SELECT."""

    QP = 0
    REGION = 1
    CQ = 2
    PORT = 3
    MODERATION = 4
    GROUP = 5


class CloseTarget(IntEnum):
    """Whose open messages the register MESSAGES_CLOSE closes."""

    QP = 0
    REGION = 1


class EventType(IntEnum):
    """What an entry of the event ring tells; ``number`` in the entry is the row spoken of."""

    CQ_FULL = 1  # CQ: a datagram was dropped for want of a slot
    DMA_WRITE = 2  # QP: a write of payload or map was answered with an error; the QP has failed
    DMA_READ = 3  # QP: a read of a WQE or of payload was answered with an error
    DMA_CQE = 4  # CQ: the write of a CQE was answered with an error
    TERMINATE = 5  # QP: a peer's Terminate came
