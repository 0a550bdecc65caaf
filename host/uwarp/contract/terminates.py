"""What a Terminate says of a datagram that was dropped (device behaviour, 7.11)."""

from __future__ import annotations

from enum import IntEnum

from .counters import Counter

__all__ = ["TERMINATE_CODES", "TERMINATE_TICKS", "Terminated"]

#: Ticks between two Terminates of a device, at least.
TERMINATE_TICKS = 64


class Terminated(IntEnum):
    """Kinds of datagram, as a Terminate tells of them."""

    UNTAGGED = 0
    TAGGED = 1
    READ_REQUEST = 2


def _codes(untagged: int, tagged: int, request: int) -> dict[Terminated, int]:
    return dict(zip(Terminated, (untagged, tagged, request), strict=True))


def _each(code: int) -> dict[Terminated, int]:
    return _codes(code, code, code)


#: Upper half of the control word, ``layer << 12 | etype << 8 | code`` (RFC 5040, section 4.8; RFC
#: 5041, section 7), by the counter in which the datagram ends. Drops that are not here are not
#: reported.
TERMINATE_CODES: dict[Counter, dict[Terminated, int]] = {
    Counter.DROP_QP_OPCODE: _each(0x0206),
    Counter.DROP_UNTAGGED_QN: _each(0x1201),
    Counter.DROP_MESSAGE_LENGTH: _codes(0x1204, 0x1101, 0x1204),
    Counter.DROP_SEND_SEGMENTED: _each(0x1205),
    Counter.DROP_STAG_INVALID: _codes(0x1100, 0x1100, 0x0100),
    Counter.DROP_STAG_KEY: _codes(0x1100, 0x1100, 0x0100),
    Counter.DROP_STAG_PD: _codes(0x1102, 0x1102, 0x0103),
    Counter.DROP_STAG_ACCESS: _codes(0x1100, 0x1100, 0x0102),
    Counter.DROP_TO_WRAP: _codes(0x1103, 0x1103, 0x0104),
    Counter.DROP_BOUNDS: _codes(0x1101, 0x1101, 0x0101),
    Counter.DROP_NO_RECEIVE: _each(0x1202),
    Counter.DROP_RECEIVE_SHORT: _each(0x1205),
}
