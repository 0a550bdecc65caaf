"""CRC32c of a DDP segment: Castagnoli, sent least significant octet first (RFC 5044, section
4.4)."""

from __future__ import annotations

import google_crc32c

__all__ = ["CRC_OCTETS", "append_crc", "crc32c", "crc_is_right"]

CRC_OCTETS = 4


def crc32c(octets: bytes) -> int:
    """CRC32c as a number; that of ``b"123456789"`` is 0xE3069283."""
    return int(google_crc32c.value(bytes(octets)))


def append_crc(segment: bytes) -> bytes:
    """The UDP payload that carries ``segment``."""
    return segment + crc32c(segment).to_bytes(CRC_OCTETS, "little")


def crc_is_right(payload: bytes) -> bool:
    """Whether a UDP payload ends in the CRC32c of all before it."""
    if len(payload) < CRC_OCTETS:
        return False
    return crc32c(payload[:-CRC_OCTETS]).to_bytes(CRC_OCTETS, "little") == payload[-CRC_OCTETS:]
