"""Register map of BAR 0 (AXI4-Lite, 32-bit data) and the doorbell pages.

Only whole, aligned 32-bit accesses. Addresses not listed read as 0; writes to them do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .counters import Counter

__all__ = [
    "ADDRESS_BITS",
    "DOORBELLS",
    "DOORBELL_BASE",
    "DOORBELL_PAGE",
    "MAGIC",
    "REGISTERS",
    "TICK_CYCLES",
    "VERSION",
    "AccessMode",
    "Control",
    "DeviceStatus",
    "Doorbell",
    "Filter",
    "Register",
    "RegisterInfo",
    "counter_address",
    "doorbell_address",
]

MAGIC = 0x5052_5755
VERSION = 0x0003_0000
ADDRESS_BITS = 23
DOORBELL_BASE = 0x10_0000
DOORBELL_PAGE = 0x1000
TICK_CYCLES = 1024


class AccessMode(Enum):
    RO = "read only"
    RW = "read and write"
    WO = "write only, reads as 0"
    W1C = "read; writing a 1 clears the bit"


@dataclass(frozen=True)
class RegisterInfo:
    """One register, or ``count`` registers ``stride`` octets apart."""

    address: int
    access: AccessMode
    meaning: str
    count: int = 1
    stride: int = 4


class Register(Enum):
    """Registers by name; the value describes them."""

    MAGIC = RegisterInfo(0x000, AccessMode.RO, "0x50525755, the octets UWRP")
    VERSION = RegisterInfo(0x004, AccessMode.RO, "contract version: major in the upper half")
    N_QP = RegisterInfo(
        0x008, AccessMode.RO, "queue pairs; also completion queues and doorbell pages"
    )
    N_REGION = RegisterInfo(0x00C, AccessMode.RO, "rows of the region table")
    N_TRACKER = RegisterInfo(0x010, AccessMode.RO, "messages that can be open at once")
    N_CLOSED = RegisterInfo(0x014, AccessMode.RO, "names of closed messages remembered")
    MAP_BITS = RegisterInfo(0x018, AccessMode.RO, "bits of the on-chip validity map")
    MAX_MTU = RegisterInfo(0x01C, AccessMode.RO, "largest MTU, octets")
    CLOCK_HZ = RegisterInfo(0x020, AccessMode.RO, "clock frequency, Hz")
    N_GROUP = RegisterInfo(0x024, AccessMode.RO, "rows of the group table")
    N_READ = RegisterInfo(0x028, AccessMode.RO, "Read Requests of peers that can wait at once")
    CONTROL = RegisterInfo(0x040, AccessMode.RW, "Control")
    STATUS = RegisterInfo(0x044, AccessMode.RO, "DeviceStatus")
    TIME_LOW = RegisterInfo(
        0x048, AccessMode.RO, "clock cycles since power-up; reading latches TIME_HIGH"
    )
    TIME_HIGH = RegisterInfo(
        0x04C, AccessMode.RO, "bits 32 to 46 of the time when TIME_LOW was read"
    )
    OPEN_MESSAGES = RegisterInfo(
        0x050,
        AccessMode.RO,
        "messages open or completing, datagrams in the receive pipeline included",
    )
    MAC_LOW = RegisterInfo(0x080, AccessMode.RW, "port MAC address, low 32 bits of its number")
    MAC_HIGH = RegisterInfo(0x084, AccessMode.RW, "port MAC address, high 16 bits of its number")
    IPV4 = RegisterInfo(0x088, AccessMode.RW, "port IPv4 address, as a number")
    MTU = RegisterInfo(0x08C, AccessMode.RW, "port MTU, octets; 1500 after a reset")
    FILTER = RegisterInfo(0x090, AccessMode.RW, "Filter")
    IPV6 = RegisterInfo(
        0x0A0, AccessMode.RW, "port IPv6 address, as a number, least significant word first", 4
    )
    IRQ_ENABLE = RegisterInfo(
        0x0C0, AccessMode.RW, "bit 0: the interrupt line follows IRQ_STATUS and EVENT_STATUS"
    )
    EVENT_STATUS = RegisterInfo(0x0C4, AccessMode.W1C, "bit 0: an event has been written")
    EVENT_ADDR_LOW = RegisterInfo(
        0x0C8, AccessMode.RW, "DMA address of the event ring, a multiple of its size and of 64"
    )
    EVENT_ADDR_HIGH = RegisterInfo(0x0CC, AccessMode.RW, "its upper 32 bits")
    EVENT_RING = RegisterInfo(
        0x0D0,
        AccessMode.RW,
        "bits 0 to 3: log2 of the event ring's entries; bit 8: in use. A write clears its indices",
    )
    EVENT_CONSUMER = RegisterInfo(
        0x0D4, AccessMode.WO, "free-running consumer index of the event ring"
    )
    IRQ_STATUS = RegisterInfo(0x100, AccessMode.W1C, "bit n of word w: CQ 32 w + n has fired", 32)
    TABLE_SELECT = RegisterInfo(0x200, AccessMode.RW, "bits 0 to 15 row, bits 16 to 23 Table")
    TABLE_COMMAND = RegisterInfo(
        0x204,
        AccessMode.WO,
        "any write: copy TABLE_DATA to the row; done before the next access is",
    )
    MESSAGES_CLOSE = RegisterInfo(
        0x208,
        AccessMode.RW,
        "write: close the open messages of row (bits 0 to 15) of CloseTarget (bits 16 to 23); "
        "reads as 1 until they are closed",
    )
    COUNTERS_SNAPSHOT = RegisterInfo(
        0x20C,
        AccessMode.WO,
        "any write: copy every Counter, all of one moment, to SNAPSHOT; done before the next "
        "access is",
    )
    TABLE_DATA = RegisterInfo(0x240, AccessMode.RW, "the row, least significant word first", 32)
    COUNTERS_LOW = RegisterInfo(
        0x400, AccessMode.RO, "low half of each Counter; reading latches COUNTERS_HIGH", 64, 8
    )
    COUNTERS_HIGH = RegisterInfo(
        0x404, AccessMode.RO, "high half, as of the last read of a low half", 64, 8
    )
    SNAPSHOT_LOW = RegisterInfo(
        0x600, AccessMode.RO, "low half of each Counter as of the last COUNTERS_SNAPSHOT", 64, 8
    )
    SNAPSHOT_HIGH = RegisterInfo(0x604, AccessMode.RO, "high half of the same", 64, 8)

    @property
    def address(self) -> int:
        return self.value.address

    def at(self, index: int) -> int:
        """Address of the ``index``-th register of an array. Raises IndexError."""
        if not 0 <= index < self.value.count:
            raise IndexError(f"{self.name} has {self.value.count} registers, not a number {index}")
        return self.value.address + index * self.value.stride


REGISTERS: tuple[Register, ...] = tuple(Register)


class Control:
    """Bits of CONTROL."""

    ENABLE = 1 << 0  # frames are received and sent; while 0 frames are not counted either
    RESET = 1 << 1  # write 1: soft reset; reads as 0


class Filter:
    """Bits of FILTER. The first two name frames that go to the management port instead of being
    dropped."""

    MULTICAST = 1 << 0  # those to a multicast MAC address
    PROMISCUOUS = 1 << 1  # those to a foreign unicast MAC address
    LOOP_GROUPS = 1 << 2  # own frames to a multicast or broadcast MAC address also come in again


class DeviceStatus:
    """Bits of STATUS."""

    BUSY = 1 << 0  # a reset is clearing tables and map: nothing but STATUS may be used


class Doorbell(Enum):
    """Registers of a doorbell page, write only. Page n serves QP n and CQ n."""

    SQ_PRODUCER = 0x0
    RQ_PRODUCER = 0x4
    CQ_CONSUMER = 0x8
    CQ_ARM = 0xC
    CQ_ARM_SOLICITED = 0x10


DOORBELLS: dict[Doorbell, str] = {
    Doorbell.SQ_PRODUCER: "free-running producer index of the QP's send ring",
    Doorbell.RQ_PRODUCER: "free-running producer index of the QP's receive ring",
    Doorbell.CQ_CONSUMER: "free-running consumer index of the CQ",
    Doorbell.CQ_ARM: "the same as CQ_CONSUMER, and arms: the CQ fires once, as soon as its "
    "producer index differs from the value written and moderation allows",
    Doorbell.CQ_ARM_SOLICITED: "the same as CQ_ARM, but only solicited completions and those in "
    "error fire it, or completions already there when it is written",
}


def doorbell_address(doorbell: Doorbell, page: int) -> int:
    return DOORBELL_BASE + page * DOORBELL_PAGE + doorbell.value


def counter_address(counter: Counter) -> int:
    """Address of the low half; the high half follows."""
    return Register.COUNTERS_LOW.at(counter)
