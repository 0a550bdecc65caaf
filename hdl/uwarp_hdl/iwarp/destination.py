"""Where the datagrams of a message go: four words of 64 bits for each slot, as the WQE has them.

Behind those of the slots are the words of Terminates that came and wait for the event ring.
"""

from amaranth.lib import data

from uwarp.contract import Parameters

from .scheduler import all_slots

__all__ = [
    "DESTINATION_WORDS",
    "HIGH",
    "LINK",
    "LOW",
    "PORT",
    "TOLD",
    "LinkWord",
    "PortWord",
    "destination_address",
    "destination_write_layout",
]

#: The words: a PortWord, the halves of the IP address (IPv4 mapped into IPv6), a LinkWord.
PORT, LOW, HIGH, LINK = range(4)
DESTINATION_WORDS = 4

#: Terminates that may wait for the event ring, a power of two: they have the last slots.
TOLD = 8


class PortWord(data.Struct):
    """``dest_ip`` is the address of IPv4, ``vlan`` the tag's TCI."""

    dest_ip: 32
    dest_port: 16
    vlan: 16


class LinkWord(data.Struct):
    """``dest_mac`` is a number, the first octet on the wire most significant."""

    dest_mac: 48
    traffic_class: 8
    hop_limit: 8


def destination_address(parameters: Parameters) -> data.StructLayout:
    """Address of a word."""
    slots = all_slots(parameters) + TOLD
    return data.StructLayout({"index": 2, "slot": (slots - 1).bit_length()})


def destination_write_layout(parameters: Parameters) -> data.StructLayout:
    """A word to be written."""
    return data.StructLayout({"address": destination_address(parameters), "word": 64})
