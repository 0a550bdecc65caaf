"""The wire between two NICs, at the rate of 10 Gigabit Ethernet, as every simulated form has it.

A frame of L octets without FCS, padded to 60, takes L + 4 (FCS) + 8 (preamble and delimiter) + 12
(gap, IEEE 802.3 clause 4.4.2) octets of the wire, 8 octets a cycle. Time on the wire is kept in
octets, so that fractions of a cycle add up. A frame begins to arrive ``WIRE_CYCLES`` after its last
octet left. The harness of the rtl form has the same in ``harness/mac.hpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

from uwarp.wire import FRAME_OVERHEAD

__all__ = [
    "PROGRESS_CYCLES",
    "WIRE_CYCLES",
    "DirectionStatistics",
    "Pace",
    "parse_frame",
]

WIRE_CYCLES = 32
PROGRESS_CYCLES = 256
"""Cycles of one :meth:`Device.progress`."""


@dataclass
class DirectionStatistics:
    """One direction of the wire since the link was made.

    Frames that left and their octets, padding included; ``wire_octets`` with FCS, preamble and gap.
    ``underruns`` counts cycles within a frame in which the NIC had nothing to send; ``delivered``
    (duplicates included) and ``dropped`` count frames.
    """

    frames: int = 0
    octets: int = 0
    wire_octets: int = 0
    underruns: int = 0
    delivered: int = 0
    dropped: int = 0


class Pace:
    """When the wire can take the next frame."""

    def __init__(self) -> None:
        self._free = 0  # in octets

    @property
    def next(self) -> int:
        """First cycle in which a frame may begin."""
        return -(-self._free // 8)

    def begin(self, now: int, length: int) -> None:
        """A frame of ``length`` octets begins in cycle ``now``, which is ``next`` or later."""
        start = self._free if self._free + 8 > 8 * now else 8 * now
        self._free = start + length + FRAME_OVERHEAD


def parse_frame(frame: bytes | bytearray | memoryview) -> bytes:
    """A frame that is to arrive. Raises ValueError unless it has 1 to 65,536 octets."""
    octets = bytes(frame)
    if not 1 <= len(octets) <= 65536:
        raise ValueError(f"a frame has 1 to 65536 octets, not {len(octets)}")
    return octets
