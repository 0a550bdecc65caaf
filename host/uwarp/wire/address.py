"""MAC and IP addresses: text and numbers. The first octet on the wire is the most significant."""

from __future__ import annotations

import ipaddress

__all__ = [
    "MAC_GROUP_BIT",
    "ip_number",
    "ip_text",
    "ipv4_number",
    "ipv4_of",
    "ipv4_text",
    "is_group_mac",
    "mac_number",
    "mac_text",
    "mapped_ipv4",
]

MAC_GROUP_BIT = 40
"""Of a MAC address as a number: a group's, multicast or broadcast (IEEE 802.3, clause 3.2.3)."""

_MAPPED = 0xFFFF << 32  # RFC 4291, section 2.5.5.2: ::ffff:0:0/96


def mac_number(text: str) -> int:
    """``02:00:00:00:00:01`` as a number. Raises ValueError."""
    parts = text.split(":")
    if len(parts) != 6 or not all(len(part) in (1, 2) for part in parts):
        raise ValueError(f"{text!r} is no MAC address; write it as 02:00:00:00:00:01")
    return int.from_bytes(bytes(int(part, 16) for part in parts), "big")


def is_group_mac(mac: int) -> bool:
    """Whether a MAC address is a group's."""
    return bool(mac >> MAC_GROUP_BIT & 1)


def mac_text(number: int) -> str:
    return number.to_bytes(6, "big").hex(":")


def ipv4_number(text: str) -> int:
    """``10.0.0.1`` as a number. Raises ValueError."""
    return int(ipaddress.IPv4Address(text))


def ipv4_text(number: int) -> str:
    return str(ipaddress.IPv4Address(number))


def mapped_ipv4(ipv4: int) -> int:
    """The IPv6 address that stands for an IPv4 address."""
    return _MAPPED | ipv4


def ipv4_of(number: int) -> int | None:
    """The IPv4 address that an IPv6 address stands for, or None if it is one of its own."""
    return number & 0xFFFF_FFFF if number >> 32 == _MAPPED >> 32 else None


def ip_number(text: str) -> int:
    """An IPv6 address, or an IPv4 address mapped into one, as 128 bits. Raises ValueError."""
    address = ipaddress.ip_address(text)
    return mapped_ipv4(int(address)) if address.version == 4 else int(address)


def ip_text(number: int) -> str:
    """128 bits as text; a mapped IPv4 address in dotted form."""
    ipv4 = ipv4_of(number)
    return str(ipaddress.IPv6Address(number)) if ipv4 is None else ipv4_text(ipv4)
