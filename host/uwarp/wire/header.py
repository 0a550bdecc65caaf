"""Big-endian headers as tables of fields: one declaration for host and gateware."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "ETHERNET",
    "IMMEDIATE",
    "IPV4",
    "IPV6",
    "READ_REQUEST",
    "RECORD",
    "TAGGED",
    "UDP",
    "UNTAGGED",
    "VLAN",
    "Header",
]


@dataclass(frozen=True)
class Header:
    """Fields of whole octets, in the order in which they go on the wire, most significant first."""

    name: str
    fields: tuple[tuple[str, int], ...]
    size: int = field(init=False)
    _places: dict[str, tuple[int, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places: dict[str, tuple[int, int]] = {}
        position = 0
        for name, octets in self.fields:
            places[name] = (position, octets)
            position += octets
        object.__setattr__(self, "size", position)
        object.__setattr__(self, "_places", places)

    def offset(self, name: str) -> int:
        """Octets from the header's start to the field's."""
        return self._places[name][0]

    def pack(self, **values: int) -> bytes:
        """The header's octets; fields not given are 0. Raises ValueError if one does not fit or is
        unknown."""
        parts = []
        for name, octets in self.fields:
            value = int(values.pop(name, 0))
            if not 0 <= value < 1 << 8 * octets:
                raise ValueError(
                    f"{self.name}.{name} is {value}; it takes 0 to {(1 << 8 * octets) - 1}"
                )
            parts.append(value.to_bytes(octets, "big"))
        if values:
            raise ValueError(f"{self.name} has no field {', '.join(map(repr, values))}")
        return b"".join(parts)

    def unpack(self, octets: bytes, start: int = 0) -> dict[str, int]:
        """The fields of the header that begins at ``start``. Raises ValueError if it is cut
        short."""
        if len(octets) - start < self.size:
            raise ValueError(
                f"{self.name} takes {self.size} octets, {max(0, len(octets) - start)} left"
            )
        return {
            name: int.from_bytes(octets[start + place : start + place + size], "big")
            for name, (place, size) in self._places.items()
        }


ETHERNET = Header("ethernet", (("destination", 6), ("source", 6), ("ethertype", 2)))

VLAN = Header("vlan", (("tpid", 2), ("tci", 2)))  # before the EtherType (IEEE 802.1Q, 9.3)

IPV4 = Header(
    "ipv4",
    (
        ("version_ihl", 1),
        ("traffic_class", 1),
        ("total_length", 2),
        ("identification", 2),
        ("flags_fragment", 2),
        ("ttl", 1),
        ("protocol", 1),
        ("checksum", 2),
        ("source", 4),
        ("destination", 4),
    ),
)

IPV6 = Header(
    "ipv6",
    (
        ("version_class_flow", 4),  # version 4 bits, traffic class 8, flow label 20
        ("payload_length", 2),
        ("next_header", 1),
        ("hop_limit", 1),
        ("source", 16),
        ("destination", 16),
    ),
)

UDP = Header("udp", (("source_port", 2), ("destination_port", 2), ("length", 2), ("checksum", 2)))

TAGGED = Header("tagged", (("ddp", 1), ("rdmap", 1), ("stag", 4), ("to", 8)))

UNTAGGED = Header(
    "untagged", (("ddp", 1), ("rdmap", 1), ("rsvdulp", 4), ("qn", 4), ("msn", 4), ("mo", 4))
)

RECORD = Header("record", (("msn", 4), ("mo", 4), ("mlen", 4), ("immediate", 4)))

IMMEDIATE = Header("immediate", (("immediate", 4),))

READ_REQUEST = Header(
    "read_request",
    (("sink_stag", 4), ("sink_to", 8), ("size", 4), ("source_stag", 4), ("source_to", 8)),
)
