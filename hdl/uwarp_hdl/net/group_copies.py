"""Datagrams to groups, with their payloads, once for each member.

::

    datagrams.i ----> qpn of the datagram, or of a member ----> datagrams.o
                        ^                |
          members ------+                +-- "comes again" --> order (32 bits) --> again
                                                                 v
    payload.i -----------------------------------------------> gate ------> payload.o

The payload's source offers it again.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter, Parameters

from ..interfaces import GroupMemberSignature
from ..layouts import Datagram, PacketBeat
from ..stream.queue import Queue

__all__ = ["GroupCopies"]

#: Datagrams that can have left while their payloads have not.
_AHEAD = 32


class GroupCopies(wiring.Component):
    """Copy datagrams to groups to their members, in the order of the members.

    Other datagrams are offered a cycle after they came, or two after the one before left; payloads
    pass without latency, but only from the second cycle after their datagram's leaving on, and from
    that after the payload before it. The first copy is offered 3 cycles after the datagram came,
    others 4 after the one before left.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    datagrams_i, payload_i : In(stream of Datagram), In(stream of PacketBeat)
        Datagrams to groups have the row of the group table in ``qpn``. A datagram with a
        ``payload_length`` of 0 has no payload.
    again : Out(1)
        The payload that is offered is to be offered once more, for another copy; right whenever it
        is taken.
    datagrams_o, payload_o : Out(stream of Datagram), Out(stream of PacketBeat)
        With QP numbers only.
    members : Out(GroupMemberSignature)
    more : Out(1)
        Another copy follows of the datagram that is offered.
    events : Out
        Strobes by Counter: RX_COPIES.
    """

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(
            {
                "datagrams_i": In(stream.Signature(Datagram)),
                "payload_i": In(stream.Signature(PacketBeat)),
                "again": Out(1),
                "datagrams_o": Out(stream.Signature(Datagram)),
                "payload_o": Out(stream.Signature(PacketBeat)),
                "members": Out(GroupMemberSignature((parameters.n_group - 1).bit_length())),
                "more": Out(1),
                "events": Out(len(Counter)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.order = order = Queue(1, _AHEAD)
        self._copy_datagrams(m, order.i)
        # Only with its datagram gone, so that ``again`` is known. The order goes on a cycle late:
        # what takes payload is far.
        ended = Signal()
        payload_ends = self.payload_o.valid & self.payload_o.ready & self.payload_o.p.last
        m.d.sync += ended.eq(payload_ends)
        m.d.comb += [
            self.payload_o.p.eq(self.payload_i.p),
            self.payload_o.valid.eq(self.payload_i.valid & order.o.valid & ~ended),
            self.payload_i.ready.eq(self.payload_o.ready & order.o.valid & ~ended),
            order.o.ready.eq(ended),
            self.again.eq(order.o.valid & order.o.p),
        ]
        return m

    def _copy_datagrams(self, m, order):
        source, sink = self.datagrams_i, self.datagrams_o
        # What left in the cycle before is yet to be put in.
        room = order.ready & ~order.valid
        datagram = source.payload

        # The member: its address goes out and stays, its number comes from block RAM.
        member = Signal.like(self.members.member)
        asked, known = Signal(), Signal()
        is_last = self.members.last
        ask = Signal()
        leaves = Signal()
        # Not ``sink.valid``, apart from it: what takes the datagram is far from here.
        offers_none = Signal(init=1)
        m.d.comb += [
            ask.eq(source.valid & datagram.group & ~asked & ~known),
            self.members.row.eq(datagram.qpn),
            self.members.member.eq(member),
            leaves.eq(~offers_none & sink.ready),
        ]
        m.d.sync += asked.eq(ask)
        with m.If(asked):
            m.d.sync += known.eq(1)
        with m.Elif(leaves):
            m.d.sync += known.eq(0)

        # From registers, since what takes it is far, all that is not as it came.
        qpn = Signal.like(datagram.qpn, reset_less=True)
        is_copied, has_payload = Signal(reset_less=True), Signal(reset_less=True)
        offers = source.valid & room & (~datagram.group | known) & ~leaves
        m.d.sync += [
            sink.valid.eq(offers),
            offers_none.eq(~offers),
            qpn.eq(datagram.qpn),
            self.more.eq(datagram.group & ~is_last),
            is_copied.eq(datagram.group & is_last),
            has_payload.eq(datagram.payload_length != 0),
        ]
        with m.If(datagram.group):
            m.d.sync += qpn.eq(self.members.qpn)
        m.d.comb += [
            sink.payload.eq(datagram),
            sink.payload.qpn.eq(qpn),
            source.ready.eq(leaves & ~self.more),
        ]
        m.d.sync += [
            order.payload.eq(self.more),
            order.valid.eq(leaves & has_payload),
            self.members.copied.eq(leaves & is_copied),
            self.events[Counter.RX_COPIES].eq(leaves & (member != 0)),
        ]
        with m.If(leaves):
            m.d.sync += member.eq(Mux(self.more, member + 1, 0))
