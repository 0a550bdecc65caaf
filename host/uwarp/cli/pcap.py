"""Frames into a capture file, for a protocol analyser."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

__all__ = ["write_pcap"]

MAGIC_NANOSECONDS = 0xA1B2_3C4D
LINKTYPE_ETHERNET = 1
SNAPLEN = 65535


def write_pcap(path: Path, frames: Iterable[tuple[int, bytes]]) -> int:
    """Write ``(time in ns, frame without FCS)``, in the order given. Returns how many there were.

    The classic format with nanoseconds, version 2.4, little-endian.
    """
    count = 0
    with path.open("wb") as file:
        file.write(
            struct.pack("<IHHiIII", MAGIC_NANOSECONDS, 2, 4, 0, 0, SNAPLEN, LINKTYPE_ETHERNET)
        )
        for time, frame in frames:
            seconds, nanoseconds = divmod(time, 1_000_000_000)
            file.write(struct.pack("<IIII", seconds, nanoseconds, len(frame), len(frame)))
            file.write(frame)
            count += 1
    return count
