"""The table of multicast groups: addresses for the frame receiver, members for the copies.

::

    write --> row out of use --> datagrams before it copied --> members --> address --> written
                   |                        ^                      |           |
                   v                        |                      v           v
              lookup (in_use)   queued - copied = under way     members      lookup

So a datagram whose frame came to a group's address goes to members of that group, whatever the row
becomes. Members are written two a cycle, as the row's words pass.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import GROUP_ENTRY, GROUP_MEMBERS, Parameters

from ..interfaces import GroupLookupSignature, GroupMemberSignature
from ..iwarp.tables import TableWriteSignature
from ..layouts import GROUP_ROW

__all__ = ["GroupTable"]

#: Cycles after which every datagram whose group was looked up before is queued, and more.
_LOOKUP_CYCLES = 12

#: The row's word with the first two members.
_MEMBERS = GROUP_ENTRY.offset("member0") // 32


class GroupTable(wiring.Component):
    """Rows of groups, none in use after a reset.

    A write takes 30 to 65 cycles, and as many as the datagrams to groups that wait then need to be
    copied.

    Parameters
    ----------
    parameters : Parameters
    datagrams : int
        Datagrams to groups that may wait.

    Members
    -------
    write : In(TableWriteSignature)
        Not while ``busy``. The row stays until ``written``, and its words pass, each with its
        number, in turn and again and again, one a cycle. A count above 16 is 16.
    written : Out(1)
        Strobe.
    lookup : In(GroupLookupSignature)
    members : In(GroupMemberSignature)
    busy : Out(1)
        The rows are being cleared.
    """

    def __init__(self, parameters: Parameters, datagrams: int = 64) -> None:
        self._depth = parameters.n_group
        self._datagrams = datagrams
        self._width = width = (parameters.n_group - 1).bit_length()
        super().__init__(
            {
                "write": In(TableWriteSignature(GROUP_ROW, width)),
                "written": Out(1),
                "lookup": In(GroupLookupSignature(width)),
                "members": In(GroupMemberSignature(width)),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        row = self.write.row
        width, depth = self._width, self._depth

        index = Signal(width)
        m.submodules.addresses = addresses = memory.Memory(shape=129, depth=depth, init=[])
        put_address, get_address = addresses.write_port(), addresses.read_port(domain="comb")
        pairs = GROUP_MEMBERS // 2
        m.submodules.qpns = qpns = memory.Memory(shape=34, depth=depth * pairs, init=[])
        put_member, get_member = qpns.write_port(), qpns.read_port()
        is_odd = Signal(2)
        members = Signal(34, reset_less=True)
        m.d.comb += [
            get_address.addr.eq(self.lookup.index),
            Cat(self.lookup.address, self.lookup.in_use).eq(get_address.data),
            get_member.addr.eq(Cat(self.members.member[1:], self.members.row)),
            # No row is looked up while it is written. Since synthesis can see that, it adds no
            # logic behind the memory for its sake.
            get_member.en.eq(~put_member.en | (self.members.row != put_member.addr[-width:])),
            Cat(self.members.qpn, self.members.last).eq(members.word_select(is_odd[1], 17)),
        ]
        m.d.sync += [is_odd.eq(Cat(self.members.member[0], is_odd)), members.eq(get_member.data)]

        under_way = Signal(range(self._datagrams + 2))
        under_way_next = Signal.like(under_way)
        m.d.comb += under_way_next.eq(under_way + self.lookup.queued - self.members.copied)
        m.d.sync += under_way.eq(under_way_next)

        left = Signal.like(under_way)
        pair = Signal(range(pairs))
        in_use = Signal()
        # A cycle late: what gives the row is far.
        puts, put = Signal(), Signal()
        put_pair = Signal(len(put_member.addr), reset_less=True)
        put_data = Signal(len(put_member.data), reset_less=True)
        word = self.write.data
        m.d.comb += [
            put_address.addr.eq(index),
            put_address.data.eq(Cat(row.address, in_use)),
            put_member.addr.eq(put_pair),
            put_member.data.eq(put_data),
            put_member.en.eq(put),
        ]
        m.d.sync += [
            put.eq(puts),
            put_pair.eq(Cat(pair, index)),
            put_data.eq(
                Cat(
                    word[:16],
                    row.count == Cat(Const(1, 1), pair),
                    word[16:],
                    (row.count == Cat(Const(0, 1), pair + 1)) | (pair == pairs - 1),
                )
            ),
        ]
        with m.FSM():
            with m.State("SWEEP"):
                m.d.comb += put_address.en.eq(1)
                m.d.sync += index.eq(index + 1)
                with m.If(index == depth - 1):
                    m.d.sync += self.busy.eq(0)
                    m.next = "IDLE"
            with m.State("IDLE"):
                m.d.sync += [index.eq(self.write.index), left.eq(_LOOKUP_CYCLES)]
                with m.If(self.write.enable):
                    m.next = "UNUSE"
            with m.State("UNUSE"):
                m.d.comb += put_address.en.eq(1)
                m.d.sync += left.eq(left - 1)
                with m.If(left == 0):
                    m.d.sync += left.eq(under_way_next)
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.sync += left.eq(Mux(self.members.copied, left - 1, left))
                with m.If(left == 0):
                    m.next = "WORDS"
            with m.State("WORDS"):
                with m.If(self.write.number == _MEMBERS - 1):
                    m.next = "MEMBERS"
            with m.State("MEMBERS"):
                m.d.comb += puts.eq(1)
                m.d.sync += pair.eq(pair + 1)
                with m.If(pair == pairs - 1):
                    m.next = "ADDRESS"
            with m.State("ADDRESS"):
                m.d.comb += [
                    in_use.eq(row.count != 0),
                    put_address.en.eq(1),
                    self.written.eq(1),
                ]
                m.next = "IDLE"
        return m
