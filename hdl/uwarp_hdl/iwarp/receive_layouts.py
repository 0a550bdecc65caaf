"""Layouts that pass between the units of the receive side, sized by the build parameters.

Offsets are octets from a region's ``base_to``. A mapped region has at most ``map_bits`` granules of
at most 2^16 octets, so its offsets have ``log2(map_bits) + 16`` bits.
"""

from functools import reduce
from operator import xor

from amaranth.hdl import Cat
from amaranth.lib import data, enum
from amaranth.utils import exact_log2

from uwarp.contract import Parameters
from uwarp.wire import Opcode

from ..layouts import Datagram

__all__ = [
    "DIGEST_WIDTH",
    "NO_SENDS",
    "TICKET_WIDTH",
    "MessageKind",
    "PendingCompletion",
    "PlaceCommand",
    "covered_layout",
    "fault_layout",
    "granule_width",
    "map_run_layout",
    "map_words_width",
    "message_digest",
    "message_name",
    "message_name_layout",
    "name_parts",
    "offset_width",
    "segment_layout",
    "snapshot_layout",
    "span_layout",
    "tracker_layout",
]

#: What is received, and is no Send.
NO_SENDS = (
    Opcode.WRITE,
    Opcode.READ_REQUEST,
    Opcode.TERMINATE,
    Opcode.WRITE_RECORD,
    Opcode.READ_RESPONSE_RECORD,
)

TICKET_WIDTH = 8
DIGEST_WIDTH = 16


def granule_width(parameters: Parameters) -> int:
    return exact_log2(parameters.map_bits)


def map_words_width(parameters: Parameters) -> int:
    """For a number of words of 64 granules, up to all of the map, or a block of words more."""
    return granule_width(parameters) - 5


def offset_width(parameters: Parameters) -> int:
    return granule_width(parameters) + 16


class MessageKind(enum.Enum, shape=2):
    """What a message's segments are: Write-Records, Sends, or Read Response-Records."""

    RECORD = 0
    SEND = 1
    READ = 2


def message_name_layout(parameters: Parameters) -> data.StructLayout:
    """What names a message (device behaviour, 4.1)."""
    return data.StructLayout(
        {
            "qpn": exact_log2(parameters.n_qp),
            "msn": 32,
            "source_ip": 128,
            "source_port": 16,
            "kind": MessageKind,
        }
    )


def message_name(parameters: Parameters, datagram):
    shape = message_name_layout(parameters)
    named = [datagram[name][: shape[name].width] for name, _ in shape if name != "kind"]
    is_read = datagram.opcode == Opcode.READ_RESPONSE_RECORD
    is_send = ~is_read & (datagram.opcode != Opcode.WRITE_RECORD)
    return data.View(shape, Cat(named, is_send, is_read))


def name_parts(name):
    """The low and the high part of a name's bits: beside 17 bits more, the low one is as long."""
    low_width = -(-(len(name) - 17) // 2)
    return name[:low_width], name[low_width:]


def message_digest(name):
    """``DIGEST_WIDTH`` bits that differ for most pairs of names: each field folded, the QP's number
    and the kind away from the low bits of the others, where the messages of two QPs are likely to
    differ too."""
    fields = (name.msn, name.source_port, name.source_ip, name.qpn << 10)
    fields += (name.kind.as_value() << 8,)
    chunks = [
        field[start : start + DIGEST_WIDTH]
        for field in fields
        for start in range(0, len(field), DIGEST_WIDTH)
    ]
    return reduce(xor, chunks)[:DIGEST_WIDTH]


class PlaceCommand(data.Struct):
    """``length`` octets (at least one) of the payload stream, from octet ``offset`` of its next
    word on, to DMA address ``address`` on behalf of QP ``qpn``; or, with ``drop``, to nowhere."""

    address: 64
    qpn: 16
    length: 16
    offset: 3
    drop: 1


class PendingCompletion(data.Struct):
    """A CQE without what is known only when it is written: map bytes, time and phase."""

    cq: 16
    opcode: 4
    status: 8
    flags: 7
    qpn: 16
    wqe_index: 16
    valid: 32
    msn: 32
    mlen: 32
    base_to: 64
    stag: 32
    immediate: 32
    source_ip: 128
    source_port: 16


def segment_layout(parameters: Parameters) -> data.StructLayout:
    """A datagram, with all that can be said of it without regard to messages.

    ``drop`` is the Counter of the first failed check, 0 if none. ``first`` and ``last`` are the
    message's first and last granule, ``start`` and ``end`` the offsets of its first and last octet.
    ``starts`` and ``ends``: the segment begins, or ends, where its message does. ``digest`` is that
    of the message's name.

    Of a Send ``datagram.stag``, ``base`` and the region's fields are those of its receive's SGE, or
    ``held``: its message was found open; so is that of any Read Response-Record without ``drop``,
    whose ``base`` is as its header has it. ``mapped``: the message may have a tracker. ``reports``:
    its QP answers it by a Terminate, if it is dropped for a reason that is reported.

    With ``opening`` this is no datagram but a Read to be opened, as if it were a Response-Record
    without payload; ``receive.index`` is its WQE's.
    """
    granule = granule_width(parameters)
    return data.StructLayout(
        {
            "datagram": Datagram,
            "opening": 1,
            "digest": DIGEST_WIDTH,
            "drop": 6,
            "cq": 16,
            "timeout": 16,
            "address": 64,
            "base": 64,
            "dma_addr": 64,
            "held": 1,
            "mapped": 1,
            "reports": 1,
            "granule_log2": 5,
            "map_base": granule,
            "map_addr": 64,
            "start": offset_width(parameters),
            "end": offset_width(parameters),
            "first": granule,
            "last": granule,
            "starts": 1,
            "ends": 1,
            "receive": data.StructLayout({"available": 1, "fault": 1, "short": 1, "index": 16}),
        }
    )


def covered_layout(parameters: Parameters) -> data.StructLayout:
    """The granules that a segment covers but for its message's first and last: ``low`` to
    ``high`` - 1, if that is any."""
    granule = granule_width(parameters)
    return data.StructLayout({"low": granule + 1, "high": granule + 1})


def tracker_layout(parameters: Parameters) -> data.StructLayout:
    """What a tracker keeps unchanged from opening to closing; ``immediate`` is 0 without.

    ``start`` and ``end``: only as many bits as place an octet in the largest granule. ``map_base``
    and ``map_addr`` count words of 64 bits, of which each map is a number; ``cq`` is one that
    exists. ``others``: all granules but those between the first and the last, of the number that
    have as many bits, 0 among them."""
    granule = granule_width(parameters)
    return data.StructLayout(
        {
            "name": message_name_layout(parameters),
            "stag": 32,
            "base": 64,
            "mlen": 32,
            "cq": exact_log2(parameters.n_qp),
            "opcode": 4,
            "wqe_index": 16,
            "immediate": 32,
            "immediate_valid": 1,
            "solicited": 1,
            "granule_log2": 5,
            "map_base": granule - 6,
            "map_addr": 61,
            "start": 16,
            "end": 16,
            "first": granule,
            "last": granule,
            "others": granule,
        }
    )


def span_layout(parameters: Parameters) -> data.StructLayout:
    """Where an open message lies: its region's granules and DMA address, as they were when it
    opened, and the offset of its first octet."""
    return data.StructLayout(
        {
            "dma_addr": 64,
            "granule_log2": 5,
            "map_base": granule_width(parameters),
            "start": offset_width(parameters),
        }
    )


def fault_layout(parameters: Parameters) -> data.StructLayout:
    """With ``valid``, for one cycle: a burst on behalf of QP ``qpn`` was answered with an error."""
    return data.StructLayout({"valid": 1, "qpn": exact_log2(parameters.n_qp)})


def map_run_layout(parameters: Parameters) -> data.StructLayout:
    """``words`` words of host map, for a message of QP ``qpn``, from address 8 * ``word`` on."""
    return data.StructLayout(
        {
            "word": 61,
            "words": map_words_width(parameters),
            "qpn": exact_log2(parameters.n_qp),
        }
    )


def snapshot_layout(parameters: Parameters) -> data.StructLayout:
    """A closed message whose bits are to be taken out of the map."""
    granule = granule_width(parameters)
    return data.StructLayout(
        {
            "qpn": exact_log2(parameters.n_qp),
            "map_base": granule,
            "map_addr": 64,
            "first": granule,
            "last": granule,
            "head": 1,
            "tail": 1,
        }
    )
