"""Signatures between the units of the NIC, written from the initiator's side."""

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import GROUP_MEMBERS, Parameters

from .layouts import (
    Burst,
    CompletionRequest,
    CreditRequest,
    PacketBeat,
    ReadBeat,
    WriteBeat,
    port_row_layout,
)

__all__ = [
    "Axi4LiteSignature",
    "Axi4Signature",
    "CompletionSignature",
    "CreditSignature",
    "GroupLookupSignature",
    "GroupMemberSignature",
    "PacketSignature",
    "PortLookupSignature",
    "ReadClientSignature",
    "TableReadSignature",
    "WriteClientSignature",
]


def PacketSignature() -> stream.Signature:
    """Frames, a beat of up to 8 octets a cycle."""
    return stream.Signature(PacketBeat)


class WriteClientSignature(wiring.Signature):
    """A unit that writes memory.

    ``bursts`` announces a burst, ``beats`` carries its words (in the same order; a client may offer
    words before, with or after the burst, but must bring all words of an announced burst without
    waiting for anything but ``ready``). ``done`` is high for one cycle for each burst that the bus
    has answered, in order; ``error`` with it if the answer was an error.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "bursts": Out(stream.Signature(Burst)),
                "beats": Out(stream.Signature(WriteBeat)),
                "done": In(1),
                "error": In(1),
            }
        )


class ReadClientSignature(wiring.Signature):
    """A unit that reads memory. Words come in the order of the bursts.

    A client asks only for what it has room for: a ``beats`` that is not ready holds up the other
    clients.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "bursts": Out(stream.Signature(Burst)),
                "beats": In(stream.Signature(ReadBeat)),
            }
        )


class TableReadSignature(wiring.Signature):
    """A read port of a table: ``row`` is that of the ``index`` of the cycle before.

    Of a table that gives its rows in several ``words``, it is only what lies in the ``word`` of the
    cycle before. While ``held`` no row may be begun; one that was is to be read to its end, within
    5 cycles.
    """

    def __init__(self, row: data.StructLayout, index_width: int, words: int = 1) -> None:
        self.row = row
        self.index_width = index_width
        members = {"index": Out(index_width), "row": In(row)}
        if words > 1:
            members |= {"word": Out(range(words)), "held": In(1)}
        super().__init__(members)


class PortLookupSignature(wiring.Signature):
    """The four banks of the UDP port table: ``rows[b]`` is that of ``indices[b]`` of the cycle
    before.

    The indices are those of ``uwarp.contract.port_rows``.
    """

    def __init__(self, parameters: Parameters) -> None:
        width = exact_log2(parameters.n_qp)
        row = port_row_layout(parameters)
        super().__init__({"indices": Out(width).array(4), "rows": In(row).array(4)})


class GroupLookupSignature(wiring.Signature):
    """Row ``index`` of the group table, in the same cycle: its address, IPv4 mapped into IPv6, if
    it is ``in_use``.

    ``queued`` strobes when a datagram to a group is on its way to its members: it was queued with
    the row that was looked up. That is to be at most 8 cycles after the look.
    """

    def __init__(self, index_width: int) -> None:
        self.index_width = index_width
        super().__init__(
            {
                "index": Out(index_width),
                "in_use": In(1),
                "address": In(128),
                "queued": Out(1),
            }
        )


class GroupMemberSignature(wiring.Signature):
    """Members of a group: ``qpn`` and ``last`` are those of member ``member`` of ``row``, of two
    cycles before. ``copied`` strobes when a datagram has gone to the last one."""

    def __init__(self, row_width: int) -> None:
        self.row_width = row_width
        super().__init__(
            {
                "row": Out(row_width),
                "member": Out(range(GROUP_MEMBERS)),
                "qpn": In(16),
                "last": In(1),
                "copied": Out(1),
            }
        )


class CreditSignature(wiring.Signature):
    """Reservation of CQ slots. One RESERVE at a time; its answer is one beat of ``granted``."""

    def __init__(self) -> None:
        super().__init__(
            {
                "requests": Out(stream.Signature(CreditRequest)),
                "granted": In(stream.Signature(1)),
            }
        )


class CompletionSignature(wiring.Signature):
    """CQEs for slots reserved before, as words of 8 octets.

    ``words`` brings the eight words of each CQE, in the order of ``requests``. Those of a request
    that was taken wait for nothing but ``ready``. Time and phase are 0 in them.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "requests": Out(stream.Signature(CompletionRequest)),
                "words": Out(stream.Signature(64)),
            }
        )


class Axi4Signature(wiring.Signature):
    """AXI4 manager, 64-bit data and addresses, one ID: answers come in order (Arm IHI 0022, part
    A)."""

    def __init__(self) -> None:
        members = {}
        for channel in ("aw", "ar"):
            members |= {
                f"{channel}id": Out(1),
                f"{channel}addr": Out(64),
                f"{channel}len": Out(8),
                f"{channel}size": Out(3),
                f"{channel}burst": Out(2),
                f"{channel}valid": Out(1),
                f"{channel}ready": In(1),
            }
        members |= {
            "wdata": Out(64),
            "wstrb": Out(8),
            "wlast": Out(1),
            "wvalid": Out(1),
            "wready": In(1),
            "bid": In(1),
            "bresp": In(2),
            "bvalid": In(1),
            "bready": Out(1),
            "rid": In(1),
            "rdata": In(64),
            "rresp": In(2),
            "rlast": In(1),
            "rvalid": In(1),
            "rready": Out(1),
        }
        super().__init__(members)


class Axi4LiteSignature(wiring.Signature):
    """AXI4-Lite manager, 32-bit data (Arm IHI 0022, part B). The NIC is the subordinate."""

    def __init__(self, address_width: int) -> None:
        self.address_width = address_width
        super().__init__(
            {
                "awaddr": Out(address_width),
                "awvalid": Out(1),
                "awready": In(1),
                "wdata": Out(32),
                "wstrb": Out(4),
                "wvalid": Out(1),
                "wready": In(1),
                "bresp": In(2),
                "bvalid": In(1),
                "bready": Out(1),
                "araddr": Out(address_width),
                "arvalid": Out(1),
                "arready": In(1),
                "rdata": In(32),
                "rresp": In(2),
                "rvalid": In(1),
                "rready": Out(1),
            }
        )
