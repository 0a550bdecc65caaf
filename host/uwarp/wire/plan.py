"""How a message is cut into segments (wire format, rules for the sender; device behaviour, 7.3)."""

from __future__ import annotations

from collections.abc import Iterator

from .crc import CRC_OCTETS
from .header import IPV4, IPV6, UDP
from .segment import Opcode, header_size

__all__ = ["DEFAULT_GRANULE", "DEFAULT_GRANULE_LOG2", "segment_room", "segments"]

DEFAULT_GRANULE_LOG2 = 6
DEFAULT_GRANULE = 1 << DEFAULT_GRANULE_LOG2


def segment_room(opcode: Opcode, path_mtu: int, *, ip_version: int = 4) -> int:
    """Most payload octets of one segment in an IP datagram of ``path_mtu`` octets."""
    ip = IPV4 if ip_version == 4 else IPV6
    return path_mtu - ip.size - UDP.size - header_size(opcode) - CRC_OCTETS


def segments(
    opcode: Opcode,
    length: int,
    path_mtu: int,
    *,
    to: int = 0,
    granule: int = DEFAULT_GRANULE,
    ip_version: int = 4,
) -> Iterator[tuple[int, int]]:
    """Offset in the message and payload octets of each segment, in the order in which they go out.

    Segments end on multiples of ``granule`` of the target offset: ``to`` is that of the first octet
    (tagged messages), 0 for untagged ones.

    Raises
    ------
    ValueError
        A message that needs more than one segment, if a granule has no room in one.
    """
    room = segment_room(opcode, path_mtu, ip_version=ip_version)
    if length <= room:
        yield 0, length
        return
    if granule > room:
        raise ValueError(f"a granule of {granule} octets; one datagram carries {room}")
    offset = 0
    while length - offset > room:
        end = (to + offset + room) // granule * granule - to
        yield offset, end - offset
        offset = end
    yield offset, length - offset
