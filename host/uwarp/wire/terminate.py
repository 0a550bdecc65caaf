"""What Terminates report: names of layers, error types and codes (RFC 5040, section 4.8; RFC 5041,
section 7; RFC 5044, section 8)."""

from __future__ import annotations

__all__ = ["TERMINATE_MEANINGS", "terminate_text"]

_LAYERS = {0: "RDMAP", 1: "DDP", 2: "LLP"}

#: By layer and etype: the name of the type (none where the RFCs give the layer but one), and of its
#: codes.
TERMINATE_MEANINGS: dict[tuple[int, int], tuple[str, dict[int, str]]] = {
    (0, 0): ("", {0x00: "local catastrophic error"}),
    (0, 1): (
        "remote protection",
        {
            0x00: "invalid STag",
            0x01: "base or bounds violation",
            0x02: "access rights violation",
            0x03: "STag not associated with the stream",
            0x04: "TO wrap",
            0x09: "STag cannot be invalidated",
            0xFF: "unspecified error",
        },
    ),
    (0, 2): (
        "remote operation",
        {
            0x05: "invalid RDMAP version",
            0x06: "unexpected opcode",
            0x07: "catastrophic error of this stream",
            0x08: "catastrophic error, global",
            0x09: "STag cannot be invalidated",
            0xFF: "unspecified error",
        },
    ),
    (1, 0): ("", {0x00: "local catastrophic error"}),
    (1, 1): (
        "tagged buffer",
        {
            0x00: "invalid STag",
            0x01: "base or bounds violation",
            0x02: "STag not associated with the stream",
            0x03: "TO wrap",
            0x04: "invalid DDP version",
        },
    ),
    (1, 2): (
        "untagged buffer",
        {
            0x01: "invalid queue number",
            0x02: "no buffer for the message",
            0x03: "message number out of range",
            0x04: "invalid message offset",
            0x05: "message too long for the buffer",
            0x06: "invalid DDP version",
        },
    ),
    (2, 0): (
        "",
        {
            0x01: "connection lost",
            0x02: "CRC error",
            0x03: "marker and length do not match",
            0x04: "invalid MPA request or reply",
            0x05: "local catastrophic error",
            0x06: "insufficient IRD",
            0x07: "no matching RTR option",
        },
    ),
}


def terminate_text(report: int) -> str:
    """The upper half of a control word in words: ``DDP, untagged buffer: invalid queue number``."""
    layer, etype, code = report >> 12, report >> 8 & 15, report & 255
    name, codes = TERMINATE_MEANINGS.get((layer, etype), (f"type {etype}", {}))
    where = _LAYERS.get(layer, f"layer {layer}") + (f", {name}" if name else "")
    return f"{where}: {codes.get(code, f'code {code:#04x}')}"
