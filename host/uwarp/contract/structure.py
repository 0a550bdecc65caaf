"""Little-endian structures of named bit fields, shared by host, gateware and firmware.

A :class:`Structure` is data: the fields of a ring entry or of a table row, from the least
significant bit up. The host packs and unpacks with it; ``uwarp_hdl.layouts`` makes Amaranth layouts
from it and ``uwarp.contract.generate`` the C header and the register reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

__all__ = ["Field", "Structure"]


@dataclass(frozen=True)
class Field:
    """A named run of bits. A name that begins with an underscore is padding and always zero."""

    name: str
    width: int
    meaning: str = ""

    @property
    def is_padding(self) -> bool:
        return self.name.startswith("_")


@dataclass(frozen=True)
class Structure:
    """Fields laid out from bit 0 up, in a little-endian block of ``size`` octets.

    Parameters
    ----------
    name : name in the documents and, in capitals, in the C header.
    size : octets; the fields must fill them exactly.
    fields : from the least significant bit up.
    """

    name: str
    size: int
    meaning: str
    fields: tuple[Field, ...]
    _offsets: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        offsets: dict[str, int] = {}
        position = 0
        for item in self.fields:
            if not item.is_padding and item.name in offsets:
                raise ValueError(f"{self.name} has two fields named {item.name!r}")
            offsets[item.name] = position
            position += item.width
        if position != self.size * 8:
            raise ValueError(f"{self.name} has {position} bits of fields in {self.size} octets")
        object.__setattr__(self, "_offsets", offsets)

    @property
    def named_fields(self) -> tuple[Field, ...]:
        return tuple(item for item in self.fields if not item.is_padding)

    def offset(self, name: str) -> int:
        """Bit position of a field's least significant bit."""
        return self._offsets[name]

    def to_int(self, **values: int) -> int:
        """The structure as one integer.

        Raises
        ------
        ValueError
            For an unknown field, or a value that does not fit.
        """
        result = 0
        for item in self.named_fields:
            value = int(values.pop(item.name, 0))
            if not 0 <= value < 1 << item.width:
                raise ValueError(
                    f"{self.name}.{item.name} is {value}; it takes 0 to {(1 << item.width) - 1}"
                )
            result |= value << self._offsets[item.name]
        if values:
            raise ValueError(f"{self.name} has no field {', '.join(map(repr, values))}")
        return result

    def from_int(self, value: int) -> SimpleNamespace:
        fields: dict[str, Any] = {
            item.name: value >> self._offsets[item.name] & (1 << item.width) - 1
            for item in self.named_fields
        }
        return SimpleNamespace(**fields)

    def pack(self, **values: int) -> bytes:
        """The structure's ``size`` octets. Fields not given are zero. Raises as :meth:`to_int`."""
        return self.to_int(**values).to_bytes(self.size, "little")

    def unpack(self, octets: bytes | bytearray | memoryview) -> SimpleNamespace:
        """The named fields of ``size`` octets. Raises ValueError for another number of octets."""
        if len(octets) != self.size:
            raise ValueError(f"{self.name} takes {self.size} octets, not {len(octets)}")
        return self.from_int(int.from_bytes(octets, "little"))
