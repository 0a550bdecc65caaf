"""Names of messages that have completed (device behaviour, section 5)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from .clock import Clock

__all__ = ["ClosedMessages", "Kind", "MessageName"]


class Kind(Enum):
    SEND = 0
    WRITE_RECORD = 1
    READ = 2  # never remembered


class MessageName(NamedTuple):
    """What names a message (4.1)."""

    qpn: int
    source_ip: int
    source_port: int
    msn: int
    kind: Kind


class ClosedMessages:
    """Direct-mapped memory: a newer name replaces the older one of its row."""

    def __init__(self, rows: int, clock: Clock) -> None:
        self._clock = clock
        self._rows: list[tuple[MessageName, int] | None] = [None] * rows

    def _row(self, name: MessageName) -> int:
        return (name.msn ^ name.qpn << 4) % len(self._rows)

    def remember(self, name: MessageName) -> None:
        self._rows[self._row(name)] = name, self._clock.tick

    def remembers(self, name: MessageName, timeout: int) -> bool:
        """Whether the message closed less than ``timeout`` ticks ago, as far as is known."""
        entry = self._rows[self._row(name)]
        if entry is None or entry[0] != name:
            return False
        return self._clock.tick - entry[1] < timeout
