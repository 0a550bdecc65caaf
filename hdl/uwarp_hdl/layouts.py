"""Amaranth layouts made from the device contract, and the payloads of the streams between units."""

from amaranth.hdl import C, Cat, Value
from amaranth.lib import data, enum
from amaranth.utils import exact_log2

from uwarp.contract import (
    CQ_ENTRY,
    CQE,
    GROUP_ENTRY,
    MODERATION_ENTRY,
    PORT_ENTRY,
    QP_ENTRY,
    RECV_WQE,
    REGION_ENTRY,
    SEND_WQE,
    SEND_WQE_EXTENSION,
    Parameters,
    Structure,
)
from uwarp.wire import ETHERNET, VLAN
from uwarp.wire import mapped_ipv4 as mapped_address

__all__ = [
    "CQE_LAYOUT",
    "CQ_ROW",
    "GROUP_ROW",
    "MAPPED",
    "MODERATION_ROW",
    "PORT_ROW",
    "QP_ROW",
    "RECV_WQE_LAYOUT",
    "REGION_ROW",
    "SEND_WQE_EXTENSION_LAYOUT",
    "SEND_WQE_LAYOUT",
    "Burst",
    "CloseRequest",
    "CompletionRequest",
    "CqDoorbell",
    "CreditRequest",
    "Datagram",
    "EventRequest",
    "EventRing",
    "PacketBeat",
    "PortConfig",
    "ReadBeat",
    "ReadOpening",
    "ReadRequest",
    "ReceivedTerminate",
    "RingDoorbell",
    "WriteBeat",
    "frame_words",
    "is_mapped_ipv4",
    "mapped_ipv4",
    "port_row_layout",
    "structure_layout",
]

MAPPED = mapped_address(0) >> 32
"""An IPv4 address's upper bits when it is mapped into IPv6, above 32 of its own."""


def structure_layout(structure: Structure) -> data.StructLayout:
    """The contract's structure as a layout of the same bits; padding keeps its place and its
    name."""
    return data.StructLayout({item.name: item.width for item in structure.fields})


def frame_words(parameters: Parameters) -> int:
    """Words of 8 octets of the longest frame that is sent or received, with one VLAN tag."""
    return -(-(ETHERNET.size + VLAN.size + parameters.max_mtu) // 8)


def mapped_ipv4(ipv4: Value) -> Value:
    """An IPv4 address of 32 bits, mapped into IPv6 (RFC 4291, section 2.5.5.2); without the zeros
    at the top."""
    return Cat(ipv4, C(MAPPED, 16))


def is_mapped_ipv4(address: Value) -> Value:
    """Whether 128 bits are the address of IPv4."""
    return address[32:] == MAPPED


QP_ROW = structure_layout(QP_ENTRY)
REGION_ROW = structure_layout(REGION_ENTRY)
CQ_ROW = structure_layout(CQ_ENTRY)
PORT_ROW = structure_layout(PORT_ENTRY)
MODERATION_ROW = structure_layout(MODERATION_ENTRY)
GROUP_ROW = structure_layout(GROUP_ENTRY)
SEND_WQE_LAYOUT = structure_layout(SEND_WQE)
SEND_WQE_EXTENSION_LAYOUT = structure_layout(SEND_WQE_EXTENSION)
RECV_WQE_LAYOUT = structure_layout(RECV_WQE)
CQE_LAYOUT = structure_layout(CQE)


def port_row_layout(parameters: Parameters) -> data.StructLayout:
    """A row of the UDP port table as it is kept: of its port only ``tag``, what its place does not
    tell. ``number`` is that of a QP, or (``group``) of a row of the group table, if it ``exists``;
    else of one beyond its table if it or ``group`` is not 0. With neither the row is not in use.
    """
    width = exact_log2(parameters.n_qp)
    return data.StructLayout(
        {
            "group": 1,
            "exists": 1,
            "number": max(width, exact_log2(parameters.n_group)),
            "tag": 16 - width,
        }
    )


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

    ``accept_multicast``, ``accept_foreign`` and ``loop_groups`` are the bits MULTICAST, PROMISCUOUS
    and LOOP_GROUPS of FILTER.
    """

    enable: 1
    mac: 48
    ipv4: 32
    ipv6: 128
    mtu: 16
    accept_multicast: 1
    accept_foreign: 1
    loop_groups: 1


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


class CompletionRequest(data.Struct):
    """A CQE to be written into a slot reserved before; ``urgent`` if it is solicited, or tells of
    anything but success."""

    cq: 16
    urgent: 1


class EventRequest(data.Struct):
    """An event to be written: ``type`` is an EventType, ``number`` the row spoken of."""

    type: 8
    number: 16


class ReceivedTerminate(data.Struct):
    """A peer's Terminate to QP ``qpn``, for the event ring; ``code`` is the upper half of its
    control word, ``source_ip`` has IPv4 mapped."""

    qpn: 16
    msn: 32
    source_ip: 128
    source_port: 16
    code: 16


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


class ReadOpening(data.Struct):
    """The tracker of a Read, to be opened (device behaviour, 7.7): for ``mlen`` octets at ``addr``
    of the region of ``lkey``, named by the responder's address and port."""

    qpn: 16
    msn: 32
    lkey: 32
    addr: 64
    mlen: 32
    source_ip: 128
    source_port: 16
    wqe_index: 16


class ReadRequest(data.Struct):
    """A Read Request accepted, to be answered (device behaviour, 7.8): ``size`` octets from DMA
    address ``address`` of the region in row ``region``, to ``source_ip`` (IPv4 mapped).

    With ``report`` a datagram that is answered by a Terminate (7.11), of which the upper half of
    ``sink_stag`` is the code, as :func:`uwarp_hdl.iwarp.terminate.terminate_code` makes it. With
    ``terminate`` a peer's Terminate, to be told; ``sink_stag`` is its control word. Of either the
    other fields that are only a Read's have no meaning.
    """

    qpn: 16
    source_mac: 48
    source_ip: 128
    source_port: 16
    msn: 32
    sink_stag: 32
    sink_to: 64
    size: 32
    address: 64
    region: 16
    report: 1
    terminate: 1


class Datagram(data.Struct):
    """A datagram that passed every check of section 2 of the device behaviour.

    ``qpn`` is the port's, or a member's of the group (``group``); ``own`` says that the frame's
    source MAC is the port's own. ``stag`` and ``to`` are of tagged, ``qn`` of untagged segments;
    ``msn``, ``mo``, ``mlen`` of all but the plain Write (0 there). Of a Read Request ``stag``,
    ``to`` and ``mlen`` are source STag, source TO and size, ``immediate`` and ``sink_to`` the
    sink's STag and TO, and what follows its 28 octets is payload; of a Terminate ``immediate`` is
    the control word, and what follows it is payload. Of the payload stream
    ``payload_length`` octets are the datagram's: with ``payload_offset`` the position (0 to 7) of
    the first one in the first beat, and no beat at all if there are none.
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
    sink_to: 64
    source_mac: 48
    group: 1
    own: 1
    payload_length: 16
    payload_offset: 3
