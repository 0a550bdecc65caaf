"""Datagrams to groups, with their payloads, once for each member.

::

    datagrams.i ----> qpn of the datagram, or of a member ----> datagrams.o
                        ^                |
          members ------+                +-- "comes again" --> order (32 bits)
                                                                 |
    payload.i --------------------------+--- choice <------------+
                                        |      |
                                        v      +--------------> payload.o
                                      memory --^

A payload that comes again is written to the memory on its first pass; the others are read there.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter, Parameters

from ..interfaces import GroupMemberSignature
from ..layouts import Datagram, PacketBeat
from ..stream.queue import Queue
from .headers import ETHERNET_HEADER

__all__ = ["GroupCopies"]

#: Datagrams that can have left while their payloads have not.
_AHEAD = 32


class GroupCopies(wiring.Component):
    """Copy datagrams to groups to their members, in the order of the members.

    Other datagrams and their payloads pass without latency, and so do the payloads of first copies;
    a payload is only offered from the cycle on that follows its datagram's leaving. The first copy
    is offered 2 cycles after the datagram came, others 3 after the one before left; the second
    one's payload 3 cycles after the first one's end, then a word a cycle without a pause.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    datagrams_i, payload_i : In(stream of Datagram), In(stream of PacketBeat)
        Datagrams to groups have the row of the group table in ``qpn``. A datagram with a
        ``payload_length`` of 0 has no payload.
    datagrams_o, payload_o : Out(stream of Datagram), Out(stream of PacketBeat)
        With QP numbers only.
    members : Out(GroupMemberSignature)
    more : Out(1)
        Another copy follows of the datagram that is offered.
    events : Out
        Strobes by Counter: RX_COPIES.
    """

    def __init__(self, parameters: Parameters) -> None:
        # A power of two: other depths put logic behind the block RAM.
        self._words = 1 << ((parameters.max_mtu + ETHERNET_HEADER - 1) // 8).bit_length()
        super().__init__(
            {
                "datagrams_i": In(stream.Signature(Datagram)),
                "payload_i": In(stream.Signature(PacketBeat)),
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
        self._copy_payload(m, order.o)
        return m

    def _copy_datagrams(self, m, order):
        source, sink = self.datagrams_i, self.datagrams_o
        datagram = source.payload

        # The member: its address goes out, its number comes from block RAM, and is in a register.
        member = Signal.like(self.members.member)
        asked, known = Signal(), Signal()
        qpn = Signal(16)
        is_last = Signal()
        ask = Signal()
        leaves = Signal()
        m.d.comb += [
            ask.eq(source.valid & datagram.group & ~asked & ~known),
            self.members.row.eq(datagram.qpn),
            self.members.member.eq(member),
            leaves.eq(sink.valid & sink.ready),
        ]
        m.d.sync += asked.eq(ask)
        with m.If(asked):
            m.d.sync += [qpn.eq(self.members.qpn), is_last.eq(self.members.last), known.eq(1)]
        with m.Elif(leaves):
            m.d.sync += known.eq(0)

        m.d.comb += [
            self.more.eq(datagram.group & ~is_last),
            sink.payload.eq(datagram),
            sink.valid.eq(source.valid & order.ready & (~datagram.group | known)),
            source.ready.eq(sink.ready & order.ready & (~datagram.group | known & is_last)),
            order.payload.eq(self.more),
            order.valid.eq(leaves & (datagram.payload_length != 0)),
            self.members.copied.eq(leaves & datagram.group & is_last),
            self.events[Counter.RX_COPIES].eq(leaves & datagram.group & (member != 0)),
        ]
        with m.If(datagram.group):
            m.d.comb += sink.payload.qpn.eq(qpn)
        with m.If(leaves & datagram.group):
            m.d.sync += member.eq(Mux(is_last, 0, member + 1))

    def _copy_payload(self, m, order):
        source, sink = self.payload_i, self.payload_o
        width = len(source.payload.as_value())
        m.submodules.words = words = memory.Memory(shape=width, depth=self._words, init=[])
        writer, reader = words.write_port(), words.read_port()

        # The payload that comes next is one that has been here: it is read, and again, and again.
        repeats = Signal()
        write, read, final = (
            Signal(range(self._words), name=n) for n in ("write", "read", "final")
        )
        fetched, head_valid = Signal(), Signal()
        head = Signal(PacketBeat)
        head_free = ~head_valid | sink.ready & order.valid
        taken, ends = Signal(), Signal()
        m.d.comb += [
            sink.payload.eq(Mux(repeats, head, source.payload)),
            sink.valid.eq(order.valid & Mux(repeats, head_valid, source.valid)),
            source.ready.eq(sink.ready & order.valid & ~repeats),
            taken.eq(sink.valid & sink.ready),
            ends.eq(taken & sink.payload.last),
            order.ready.eq(ends),
            writer.addr.eq(write),
            writer.data.eq(source.payload.as_value()),
            # Never together with a read, as synthesis can see: no logic for that case.
            writer.en.eq(~repeats & taken),
            reader.addr.eq(read),
            reader.en.eq(repeats & (~fetched | head_free)),
        ]
        with m.If(writer.en):
            m.d.sync += [write.eq(Mux(source.payload.last, 0, write + 1)), final.eq(write)]
        with m.If(reader.en):
            m.d.sync += read.eq(Mux(read == final, 0, read + 1))
        with m.If(head_free):
            m.d.sync += [head.eq(reader.data), head_valid.eq(fetched)]
        with m.If(head_free | ~fetched):
            m.d.sync += fetched.eq(reader.en)
        with m.If(ends):
            m.d.sync += repeats.eq(order.payload)
            with m.If(~order.payload):
                m.d.sync += [read.eq(0), fetched.eq(0), head_valid.eq(0)]
        return m
