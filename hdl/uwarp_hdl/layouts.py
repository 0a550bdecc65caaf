"""Amaranth layouts made from the device contract, and the payloads of the streams between units."""

from amaranth.lib import data, enum

from uwarp.contract import (
    CQ_ENTRY,
    CQE,
    MODERATION_ENTRY,
    PORT_ENTRY,
    QP_ENTRY,
    RECV_WQE,
    REGION_ENTRY,
    SEND_WQE,
    Structure,
)

__all__ = [
    "CQ_ROW",
    "MODERATION_ROW",
    "PORT_ROW",
    "QP_ROW",
    "RECV_WQE_LAYOUT",
    "REGION_ROW",
    "SEND_WQE_LAYOUT",
    "Burst",
    "CloseRequest",
    "Completion",
    "CqDoorbell",
    "CreditRequest",
    "Datagram",
    "EventRequest",
    "EventRing",
    "PacketBeat",
    "PortConfig",
    "ReadBeat",
    "RingDoorbell",
    "WriteBeat",
    "structure_layout",
]


def structure_layout(structure: Structure) -> data.StructLayout:
    """The contract's structure as a layout of the same bits; padding keeps its place and its
    name."""
    return data.StructLayout({item.name: item.width for item in structure.fields})


QP_ROW = structure_layout(QP_ENTRY)
REGION_ROW = structure_layout(REGION_ENTRY)
CQ_ROW = structure_layout(CQ_ENTRY)
PORT_ROW = structure_layout(PORT_ENTRY)
MODERATION_ROW = structure_layout(MODERATION_ENTRY)
SEND_WQE_LAYOUT = structure_layout(SEND_WQE)
RECV_WQE_LAYOUT = structure_layout(RECV_WQE)


class PacketBeat(data.Struct):
    """Eight octets of a frame. Octet 0, the first on the wire, is ``data[0:8]``.

    ``count`` is the number of valid octets, 8 in every beat but the last, 1 to 8 there. ``error``
    on any beat spoils the frame.
    """

    data: 64
    count: 4
    last: 1
    error: 1


class PortConfig(data.Struct):
    """Port registers. Addresses are numbers, the first octet on the wire most significant.

    ``accept_multicast`` and ``accept_foreign`` are the bits MULTICAST and PROMISCUOUS of FILTER.
    """

    enable: 1
    mac: 48
    ipv4: 32
    ipv6: 128
    mtu: 16
    accept_multicast: 1
    accept_foreign: 1


class EventRing(data.Struct):
    """The event ring: of ``2 ** log2`` entries at ``address``, in use if ``enabled``."""

    address: 64
    log2: 4
    enabled: 1


class CloseRequest(data.Struct):
    """While ``active``: close the open messages of ``row`` of ``target``, a ``CloseTarget``. It
    stays as it is until that is done."""

    active: 1
    target: 8
    row: 16


class RingDoorbell(data.Struct):
    """A new producer index of a QP's ring, or (``reset``) the QP's indices to be cleared."""

    qpn: 16
    index: 32
    reset: 1


class CqDoorbell(data.Struct):
    """A new consumer index of a CQ, to arm it (``arm``), if need be for solicited completions only
    (``solicited`` as well); or (``reset``) the CQ's row as it was written; or (``moderate``) its
    row of the moderation table, ``MODERATION_ROW``, in ``index``."""

    cq: 16
    index: 32
    arm: 1
    solicited: 1
    reset: 1
    moderate: 1
    row: CQ_ROW


class CreditOperation(enum.Enum, shape=1):
    """What a client asks of the completion queues."""

    RESERVE = 0
    RELEASE = 1


class CreditRequest(data.Struct):
    """Reserve a slot of a CQ (answered by one beat: granted or not) or give one back (no
    answer)."""

    operation: CreditOperation
    cq: 16


class Completion(data.Struct):
    """A CQE to be written into a slot reserved before. ``cqe``'s time and phase are ignored."""

    cq: 16
    cqe: structure_layout(CQE)


class EventRequest(data.Struct):
    """An event to be written: ``type`` is an EventType, ``number`` the row spoken of."""

    type: 8
    number: 16


class Burst(data.Struct):
    """A DMA burst of ``beats + 1`` words of 8 octets within one 4 KiB page. ``address`` is a
    multiple of 8."""

    address: 64
    beats: 8


class WriteBeat(data.Struct):
    """A word of a write burst. Octet at ``address + i`` is ``data[8 * i:]``, written if
    ``strobe[i]``."""

    data: 64
    strobe: 8
    last: 1


class ReadBeat(data.Struct):
    """A word of a read burst; ``error`` if the bus answered with an error."""

    data: 64
    last: 1
    error: 1


class Datagram(data.Struct):
    """A datagram that passed every check of section 2 of the device behaviour.

    ``qpn`` is the port's. ``stag`` and ``to`` are of tagged, ``qn`` of untagged segments; ``msn``,
    ``mo``, ``mlen`` of all but the plain Write (0 there). Of the payload stream ``payload_length``
    octets are its payload: with ``payload_offset`` the position (0 to 7) of the first one in the
    first beat, and no beat at all if there are none.
    """

    qpn: 16
    source_ip: 128
    source_port: 16
    opcode: 4
    solicited: 1
    immediate_valid: 1
    last: 1
    stag: 32
    to: 64
    qn: 32
    msn: 32
    mo: 32
    mlen: 32
    immediate: 32
    payload_length: 16
    payload_offset: 3
