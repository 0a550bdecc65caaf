"""The Device protocol: what the verbs driver needs of any form of the NIC."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Protocol, Self

__all__ = ["Device", "DeviceError", "Fate", "Impairments", "Link", "WireRecord"]


class DeviceError(OSError):
    """A device that cannot be opened, or that did what it must not (for instance DMA out of
    bounds)."""


class Device(Protocol):
    """One NIC: registers, and memory that it may reach."""

    @property
    def name(self) -> str:
        """Short name for messages, for instance ``rtl0``."""

    def read32(self, address: int) -> int:
        """Read the 32-bit register at ``address`` in BAR 0."""

    def write32(self, address: int, value: int) -> None:
        """Write the 32-bit register at ``address`` in BAR 0."""

    def map(self, address: int, length: int, *, writable: bool = True) -> int:
        """Let the device reach ``length`` octets of this process's memory at ``address``.

        Returns the DMA address of the first octet: of memory that begins with a page a multiple of
        the power of two that holds ``length``, as rings need it. The caller keeps the memory alive
        until :meth:`unmap`.
        """

    def unmap(self, dma_address: int) -> None:
        """Take a mapping back, named by the DMA address that :meth:`map` returned."""

    def progress(self) -> None:
        """Let time go by on a simulated device: called by whoever polls memory in vain."""

    @property
    def interrupt(self) -> bool:
        """Level of the interrupt line."""

    def close(self) -> None:
        """End the device. Closing twice is harmless."""


@dataclass(frozen=True)
class Impairments:
    """What a wire does to datagrams, each with the given probability, decided by a seeded
    generator."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}; it takes a probability from 0 to 1")


class Fate(Enum):
    """What became of a frame that was given to the wire."""

    DELIVERED = 0
    DROPPED = 1
    DUPLICATE = 2  # the extra delivery of a frame that also has a DELIVERED record


@dataclass(frozen=True)
class WireRecord:
    """One frame (without FCS) that left device ``source`` (0 or 1); ``time`` in NIC clock
    cycles."""

    time: int
    source: int
    fate: Fate
    frame: bytes = field(repr=False)


class Link(Protocol):
    """Two devices joined by a wire. A context manager; closing it closes both devices."""

    @property
    def devices(self) -> tuple[Device, Device]: ...

    @property
    def time(self) -> int:
        """NIC clock cycles since the link was made."""

    def run(self, cycles: int) -> None:
        """Let ``cycles`` clock cycles go by."""

    def records(self) -> list[WireRecord]:
        """What crossed (or was dropped) since the last call, in the order in which it happened."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
