"""Fetch of send WQEs, and their checks (device behaviour, 7.2).

::

    fetches --> burst --> memory --> words (FIFO) --+--> WQE register ------> checks --> messages
           +--> contexts (memory) ------------------|-----------------------^   ^
                                                    +--> destinations           |
                                                    +--> SGE: look up, add, compare --> pieces
                                                             ^
                                              region table --+

Up to 32 WQEs are on their way; the FIFO has room for all their words, so the read bus is never held
up. A WQE takes 11 cycles: 8 for its words, 3 for the checks; one with its extension 19 to 22. SGEs
are checked as their words come, one every three cycles.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp.contract import (
    INLINE_OCTETS,
    MAX_SGE,
    MIN_MTU,
    SEND_WQE,
    SEND_WQE_EXTENSION,
    Access,
    EventType,
    Parameters,
    Status,
    WqeFlag,
)
from uwarp.wire import (
    CRC_OCTETS,
    DEFAULT_GRANULE_LOG2,
    IPV4,
    IPV6,
    MAC_GROUP_BIT,
    UDP,
    Opcode,
    least_size,
)

from ..compare import at_least, equal
from ..data_register import data_register
from ..interfaces import ReadClientSignature, TableReadSignature
from ..layouts import (
    REGION_ROW,
    SEND_WQE_LAYOUT,
    EventRequest,
    ReadBeat,
)
from ..stream.ports import keep_apart
from ..stream.queue import Queue
from .destination import HIGH, LINK, LOW, PORT, destination_write_layout
from .scheduler import EPOCH_WIDTH, fetch_layout, qp_width, slot_width
from .tables import REGION_READS, half_words, keep_half_words

__all__ = [
    "IPV6_OVERHEAD",
    "LENGTH_WIDTH",
    "OVERHEAD",
    "STATUS_WIDTH",
    "WqeFetch",
    "clamped_mtu",
    "message_layout",
    "piece_layout",
]

OUTSTANDING = 32
WQE_WORDS = SEND_WQE.size // 8
WIDE_WORDS = WQE_WORDS + SEND_WQE_EXTENSION.size // 8

#: Words of an entry that tell where its message goes.
_PORT_WORD, _LINK_WORD = (SEND_WQE.offset(name) // 64 for name in ("dest_ip", "dest_mac"))
_LKEY_WORD = SEND_WQE.offset("sge_lkey") // 64
_LOW_WORD = WQE_WORDS + SEND_WQE_EXTENSION.offset("dest_ipv6") // 64

#: Bits of a number of octets within one frame.
LENGTH_WIDTH = 14

#: Bits of the statuses that a send completes with.
STATUS_WIDTH = 5

#: IPv4 datagram of each opcode without its payload: IPv4 and UDP headers, DDP header, CRC.
OVERHEAD = {
    opcode: IPV4.size + UDP.size + least_size(opcode) + CRC_OCTETS
    for opcode in (
        Opcode.WRITE,
        Opcode.READ_REQUEST,
        Opcode.SEND,
        Opcode.TERMINATE,
        Opcode.WRITE_RECORD,
        Opcode.READ_RESPONSE_RECORD,
        Opcode.SEND_IMMEDIATE,
    )
}

#: How much more the headers of an IPv6 datagram take.
IPV6_OVERHEAD = IPV6.size - IPV4.size

_ANSWERS = (Opcode.TERMINATE, Opcode.READ_RESPONSE_RECORD)
_POSTED = tuple(opcode for opcode in OVERHEAD if opcode not in _ANSWERS)
_UNICAST = (Opcode.WRITE, Opcode.READ_REQUEST, Opcode.WRITE_RECORD)


def clamped_mtu(parameters: Parameters, path_mtu: Value, overhead: int = 0) -> Value:
    """A QP's path MTU as it counts, the nearest one that there may be, less ``overhead``."""
    least, most = MIN_MTU, parameters.max_mtu
    room = Mux(at_least(path_mtu, least), path_mtu - overhead, least - overhead)
    return Mux(at_least(path_mtu, most), most - overhead, room)


def message_layout(parameters: Parameters) -> data.StructLayout:
    """A message to send: a WQE that was fetched and checked, or a response or a Terminate.

    ``room`` is the most payload octets of a segment, ``granule_mask`` the granule less one. Of a
    Read ``immediate`` is the sink's lkey and the only piece's address the sink TO. Of a response
    ``immediate`` is the request's MSN, ``address`` its payload's DMA address, and what its QP's row
    says is left to the segmenter (``room`` is 0). A Terminate is like a response, but the
    upper half of its ``stag`` is the code, as ``whole_code`` takes it; and it has no payload,
    whatever ``length`` says. Where it goes is written elsewhere.
    """
    return data.StructLayout(
        {
            "slot": slot_width(parameters),
            "qpn": qp_width(parameters),
            "cq": qp_width(parameters),
            "epoch": EPOCH_WIDTH,
            "index": 16,
            "status": STATUS_WIDTH,
            "opcode": 8,
            "signaled": 1,
            "solicited": 1,
            "immediate_valid": 1,
            "vlan_valid": 1,
            "ipv6": 1,
            "length": 32,
            "remote_to": 64,
            "stag": 32,
            "immediate": 32,
            "address": 64,
            "room": LENGTH_WIDTH,
            "granule_mask": 16,
        }
    )


def piece_layout(parameters: Parameters) -> data.StructLayout:
    """With ``valid``, for one cycle: piece ``index`` of the payload of the message in ``slot`` is
    the ``length`` octets, not 0, at DMA address ``address``; or it was until now. ``follows`` if
    ``valid`` in the next cycle. Pieces have no gap in their numbers. The only piece may have a
    greater ``length`` than the message; without ``valid`` it is the greatest there is, and
    ``address`` is 0."""
    return data.StructLayout(
        {
            "valid": 1,
            "follows": 1,
            "slot": slot_width(parameters),
            "index": range(MAX_SGE),
            "address": 64,
            "length": 32,
        }
    )


class WqeFetch(wiring.Component):
    """Read and check WQEs, in the order asked for.

    A WQE that fails comes out like the others, with its status. One that could not be read has all
    fields zero. A QP's ``path_mtu`` outside 576 to ``max_mtu`` is taken as the nearer of the two.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    fetches : In(stream of fetch_layout)
    messages : Out(stream of message_layout)
    messages_begin : Out(1)
        From 2 cycles before a message is valid until it is taken: what is of its fetch is there, a
        cycle later all else but ``room`` and ``granule_mask``, and ``status`` another cycle later.
    pieces : Out(piece_layout)
        Those of a message, before it or in the cycle after that in which it is first offered.
    destination, destination_written : Out(destination_write_layout), Out(1)
        Words of a message's destination, before it; to IPv4 without those of the IP address.
    read : Out(ReadClientSignature)
    region : Out(TableReadSignature)
    event_requests : Out(stream of EventRequest)
        For each WQE that could not be read; taken before its message is given.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._index_width = (parameters.n_region - 1).bit_length()
        super().__init__(
            {
                "fetches": In(stream.Signature(fetch_layout(parameters))),
                "messages": Out(stream.Signature(message_layout(parameters))),
                "messages_begin": Out(1),
                "pieces": Out(piece_layout(parameters)),
                "destination": Out(destination_write_layout(parameters)),
                "destination_written": Out(1),
                "read": Out(ReadClientSignature()),
                "region": Out(TableReadSignature(REGION_ROW, self._index_width, 4)),
                "event_requests": Out(stream.Signature(EventRequest)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.words = words = Queue(ReadBeat, OUTSTANDING * WIDE_WORDS, bounded=False)

        # Ask. A context is done after its words have left the FIFO, so their room is there.
        burst = self.read.bursts
        fetch = self.fetches.p
        room = Signal()
        asks = Signal()
        done = Signal()
        compares = Signal()  # an SGE; it makes a piece two cycles later
        asked = data_register(m, burst.p)
        with m.If(burst.valid):
            m.d.sync += burst.valid.eq(~burst.ready)
        with m.Else():
            m.d.sync += [
                burst.valid.eq(asks),
                asked.address.eq(fetch.entry << 6),
                asked.beats.eq(Mux(fetch.wide, WIDE_WORDS - 1, WQE_WORDS - 1)),
            ]
        m.d.comb += asks.eq(
            self.fetches.valid & ~self.fetches.ready & ~burst.valid & room & ~compares
        )
        context, context_loads = self._keep_contexts(m, fetch, asks, room, done)
        m.d.comb += [
            words.i.p.eq(self.read.beats.p),
            words.i.valid.eq(self.read.beats.valid),
            self.read.beats.ready.eq(words.i.ready),
        ]

        # Collect.
        wqe = Signal(SEND_WQE_LAYOUT, reset_less=True)
        count = Signal(range(WIDE_WORDS))
        failed = Signal()
        unreadable = Signal()
        clears = Signal()
        looks = Signal()  # in the next cycle an SGE's region cannot be looked up
        spoiled = Signal()  # ``unreadable`` in the cycle before
        collects = Signal()  # words, and their context is there
        taken = Signal()
        last = Signal()
        collects_next = Signal()
        m.d.comb += [
            collects_next.eq(context_loads | (collects & ~(taken & last))),
            taken.eq(words.o.valid & words.o.ready),
            last.eq(count == Mux(context.wide, WIDE_WORDS - 1, WQE_WORDS - 1)),
            unreadable.eq(failed | words.o.p.error),
        ]
        m.d.sync += [
            collects.eq(collects_next),
            # Before a row is written it is held for longer than its reads take: a cycle late is
            # early enough.
            words.o.ready.eq(collects_next & ~looks & ~self.region.held),
            spoiled.eq(unreadable),
        ]

        opcodes = {opcode: Signal(name=f"is_{opcode.name.lower()}") for opcode in _POSTED}
        for opcode, matches in opcodes.items():
            m.d.comb += matches.eq(wqe.opcode == opcode)
        reads = opcodes[Opcode.READ_REQUEST]
        flag = {item: wqe.flags[item.value.bit_length() - 1] for item in WqeFlag}
        inline, ipv6 = flag[WqeFlag.INLINE], flag[WqeFlag.IPV6]

        m.d.comb += done.eq(self.messages.valid & self.messages.ready)
        octets, allowed = self._check_elements(
            m, wqe, reads, context, words.o.p.data, taken, done, compares, count, looks
        )

        # Also of a ``granule_log2`` of 0; of one that is wrong it does not matter.
        granule_mask = Cat(
            Const(1, 1)
            if index < DEFAULT_GRANULE_LOG2
            else at_least(wqe.granule_log2[:5], index + 1)
            for index in range(16)
        )
        granule_wrong = wqe.granule_log2.any() & (
            ~at_least(wqe.granule_log2, 6) | at_least(wqe.granule_log2, 17)
        )
        immediate_allowed = opcodes[Opcode.WRITE_RECORD] | opcodes[Opcode.SEND_IMMEDIATE]
        length_mismatch = Mux(
            inline,
            wqe.num_sge.any() | at_least(wqe.length, INLINE_OCTETS + 1),
            ~equal(m, wqe.length, octets[:32]) | octets[32:].any(),
        )
        to_group = wqe.dest_mac[MAC_GROUP_BIT] & Cat(opcodes[item] for item in _UNICAST).any()

        overhead = Signal(range(max(OVERHEAD.values()) + IPV6_OVERHEAD + 1), reset_less=True)
        m.d.sync += overhead.eq(0)
        for opcode, matches in opcodes.items():
            with m.If(matches):
                m.d.sync += overhead.eq(OVERHEAD[opcode] + Mux(ipv6, IPV6_OVERHEAD, 0))

        mask = Signal(16, reset_less=True)
        room = Signal(LENGTH_WIDTH, reset_less=True)
        wrong = Signal(4, reset_less=True)  # of the operation, in parts
        operation_wrong = Signal()
        length_wrong = Signal()
        status = Signal(STATUS_WIDTH)
        mtu = Signal(LENGTH_WIDTH, reset_less=True)

        told = self.event_requests
        m.d.comb += [told.p.type.eq(EventType.DMA_READ), told.p.number.eq(context.qpn)]
        with m.If(told.ready):
            m.d.sync += told.valid.eq(0)
        with m.FSM():
            with m.State("COLLECT"):
                m.d.sync += mtu.eq(clamped_mtu(self._parameters, context.path_mtu))
                with m.If(taken):
                    m.d.sync += [failed.eq(unreadable), count.eq(count + 1)]
                # Whatever is there, until the word is: whether it is taken is known late.
                with m.If(collects):
                    with m.Switch(count):
                        for index in range(_LKEY_WORD):
                            with m.Case(index):
                                word = wqe.as_value().word_select(index, 64)
                                m.d.sync += word.eq(words.o.p.data)
                        with m.Case(_LKEY_WORD):
                            # A Read's lkey lies in its word where the immediate does in another.
                            with m.If(reads):
                                m.d.sync += wqe.immediate.eq(words.o.p.data[32:])
                # In every cycle, of which the last one counts.
                m.d.sync += [
                    mask.eq(granule_mask),
                    wrong.eq(
                        Cat(
                            unreadable
                            | ~Cat(opcodes.values()).any()
                            | (~context.wide & (inline | ipv6))
                            | (flag[WqeFlag.IMMEDIATE] & ~immediate_allowed),
                            Mux(
                                context.wide,
                                at_least(wqe.num_sge, MAX_SGE + 1),
                                at_least(wqe.num_sge, 2),
                            )
                            | granule_wrong,
                            length_mismatch,
                            to_group
                            | (flag[WqeFlag.SOLICITED] & (opcodes[Opcode.WRITE] | reads))
                            | (reads & (inline | (wqe.num_sge != 1) | ~wqe.length.any())),
                        )
                    ),
                ]
                m.d.sync += room.eq(mtu - overhead)
                with m.If(taken & last):
                    m.d.sync += [failed.eq(0), count.eq(0), told.valid.eq(unreadable)]
                    m.d.sync += self.messages_begin.eq(1)
                    m.next = "ADD"

            with m.State("ADD"):
                too_long = wqe.length[len(room) :].any() | (room < wqe.length[: len(room)])
                too_coarse = mask[len(room) :].any() | (mask[: len(room)] >= room)
                m.d.sync += length_wrong.eq(too_long & too_coarse & ~reads)
                m.d.sync += operation_wrong.eq(wrong.any())
                m.d.comb += clears.eq(spoiled)
                m.next = "COMPARE"

            with m.State("COMPARE"):
                m.d.sync += self.messages.valid.eq(~told.valid)
                m.next = "STATUS"

            with m.State("STATUS"):
                with m.If(operation_wrong):
                    m.d.comb += status.eq(Status.LOC_QP_OP_ERR)
                with m.Elif(length_wrong):
                    m.d.comb += status.eq(Status.LOC_LEN_ERR)
                with m.Elif(~allowed):
                    m.d.comb += status.eq(Status.LOC_PROT_ERR)
                with m.Else():
                    m.d.comb += status.eq(Status.SUCCESS)
                m.d.sync += self.messages.valid.eq(~told.valid)
                with m.If(done):
                    m.d.sync += [self.messages.valid.eq(0), self.messages_begin.eq(0)]
                    m.next = "COLLECT"

        with m.If(clears):
            m.d.sync += wqe.eq(0)

        destination = self.destination
        m.d.comb += [destination.address.slot.eq(context.slot), destination.word.eq(words.o.p.data)]
        with m.If(taken):
            with m.Switch(count):
                for number, index in (
                    (_PORT_WORD, PORT),
                    (_LINK_WORD, LINK),
                ):
                    with m.Case(number):
                        m.d.comb += [
                            destination.address.index.eq(index),
                            self.destination_written.eq(1),
                        ]
                for number, index in ((_LOW_WORD, LOW), (_LOW_WORD + 1, HIGH)):
                    with m.Case(number):
                        m.d.comb += [
                            destination.address.index.eq(index),
                            self.destination_written.eq(ipv6),
                        ]
                with m.Default():
                    pass

        message = self.messages.p
        m.d.comb += [
            message[name].eq(context[name]) for name in ("slot", "qpn", "cq", "epoch", "index")
        ]
        m.d.comb += [
            message[name].eq(wqe[name])
            for name in (
                "opcode",
                "length",
                "remote_to",
            )
        ]
        m.d.comb += [
            message.stag.eq(wqe.remote_stag),
            message.immediate.eq(wqe.immediate),
            message.status.eq(status),
            message.signaled.eq(flag[WqeFlag.SIGNALED]),
            message.solicited.eq(flag[WqeFlag.SOLICITED]),
            message.immediate_valid.eq(flag[WqeFlag.IMMEDIATE]),
            message.vlan_valid.eq(flag[WqeFlag.VLAN]),
            message.ipv6.eq(ipv6),
            message.room.eq(room),
            message.granule_mask.eq(mask),
        ]
        return m

    def _keep_contexts(self, m, fetch, asks, room, done):
        """What goes with a fetch's words, in two rows of block RAM; and a strobe: it comes with the
        next cycle, for the words that are collected next. The first row of the next context waits
        at the memory's output, so that it takes the place of the one that is done at once; the
        second follows a cycle later."""
        members = fetch_layout(self._parameters).members
        layouts = [
            data.StructLayout({name: members[name] for name in names})
            for names in (("qpn", "slot", "cq", "pd", "wide"), ("epoch", "index", "path_mtu"))
        ]
        context = Signal(
            data.StructLayout(layouts[0].members | layouts[1].members), reset_less=True
        )
        halves = (context.as_value()[: layouts[0].size], context.as_value()[layouts[0].size :])
        m.submodules.contexts = contexts = Memory(
            shape=max(layout.size for layout in layouts),
            depth=2 * OUTSTANDING,
            init=[],
            attrs={"ram_style": "block"},
        )
        reader, writer = contexts.read_port(), contexts.write_port()

        # Both rows of a fetch are written by the time they can be read.
        first, second = (Signal(layout, reset_less=True) for layout in layouts)
        into, out_of = Signal(range(OUTSTANDING)), Signal(range(OUTSTANDING))
        level = Signal(range(OUTSTANDING + 1))
        m.d.comb += [
            *(row[name].eq(fetch[name]) for row in (first, second) for name in row.shape().members),
            room.eq(level != OUTSTANDING),
            writer.addr.eq(Cat(self.fetches.ready, into)),
            writer.data.eq(Mux(self.fetches.ready, second.as_value(), first.as_value())),
            writer.en.eq(asks | self.fetches.ready),
        ]
        m.d.sync += [
            self.fetches.ready.eq(asks),
            into.eq(into + self.fetches.ready),
            level.eq(level + asks - done),
        ]

        unread = Signal(range(OUTSTANDING + 1))
        valid = Signal()
        ahead = Signal()  # the next one's first row is at the output
        loads, follows = Signal(), Signal()
        reads = Signal()
        m.d.comb += [
            loads.eq(ahead & (~valid | done)),
            reads.eq((unread != 0) & ~ahead),
            reader.addr.eq(Cat(loads, out_of)),
        ]
        keep_apart(m, reader, writer, loads | reads)
        m.d.sync += [
            unread.eq(unread + asks - reads),
            out_of.eq(out_of + loads),
            follows.eq(loads),
        ]
        with m.If(reads | loads):
            m.d.sync += ahead.eq(reads)
        with m.If(loads):
            m.d.sync += [valid.eq(1), halves[0].eq(reader.data)]
        with m.Elif(done):
            m.d.sync += valid.eq(0)
        with m.If(follows):
            m.d.sync += halves[1].eq(reader.data)
        return context, loads

    def _check_elements(self, m, wqe, reads, context, word, taken, done, compares, count, looks):
        """Look up, add and compare each SGE, and write it as a piece. Before all those of a WQE, as
        it is asked for, the octets that may be inline: an inline WQE has no SGE.

        Word ``count`` of the entry is ``word``, if one is ``taken``; after ``looks`` none can be.
        Returns the sum of the lengths, and whether all SGEs are allowed: known one and four cycles
        after the last one's second word. Both begin anew with ``done``.
        """
        addr_words = [SEND_WQE.offset("sge_addr") // 64]
        addr_words += [
            WQE_WORDS + SEND_WQE_EXTENSION.offset(f"sge{n}_addr") // 64 for n in range(1, MAX_SGE)
        ]
        region = Signal(REGION_ROW, reset_less=True)
        addr = Signal(64, reset_less=True)
        wanted = Signal()
        look, add, place = Signal(), Signal(), Signal()
        element = Signal(data.StructLayout({"addr": 64, "length": 32}), reset_less=True)
        compared = Signal.like(element, reset_less=True)
        lkey = Signal(32, reset_less=True)
        element_end = Signal(65, reset_less=True)
        offset = Signal(65, reset_less=True)
        offset_end = Signal(65, reset_less=True)
        allowed = Signal(init=1)
        number = Signal(range(MAX_SGE))
        octets = Signal(32 + (MAX_SGE - 1).bit_length())
        piece_length = Signal(32, init=(1 << 32) - 1, reset_less=True)
        length, arriving_lkey = word[:32], word[32:]

        # Early, apart from whether it is taken.
        second = Signal(attrs={"keep": 1})
        with m.Switch(count):
            for index, start in enumerate(addr_words):
                with m.Case(start + 1):
                    m.d.comb += second.eq(wqe.num_sge > index)
        m.d.comb += wanted.eq(taken & second)
        with m.If(taken):
            m.d.sync += addr.eq(word)
        # The row's words come one after the other, the next row's first not before the last.
        row = self.region
        m.d.comb += [
            row.index.eq(Mux(look | add, lkey, arriving_lkey)[8:]),
            row.word.eq(Cat(look, add)),
        ]
        m.d.comb += looks.eq(look & (count >= WQE_WORDS))
        for strobe, numbers in zip((look, add, compares), REGION_READS[0], strict=False):
            with m.If(strobe):
                m.d.sync += keep_half_words(region, row.row, half_words(numbers))
        with m.If(wanted):
            m.d.sync += octets.eq(octets + length)
        # Whatever is there, until one is wanted, which is known late; then it stays for two cycles
        # more.
        with m.If(~(look | add)):
            m.d.sync += [
                element.addr.eq(addr),
                element.length.eq(length),
                lkey.eq(arriving_lkey),
            ]
        m.d.sync += [
            look.eq(wanted & (length != 0)),
            element_end.eq(element.addr + element.length),
            add.eq(look),
            compares.eq(add),
            compared.eq(element),
            place.eq(compares),
        ]
        # Bit 64 is the borrow, or in ``offset_end`` the carry if there is none in ``offset``.
        with m.If(add):
            m.d.sync += [
                offset.eq(element.addr - region.base_to),
                offset_end.eq(element_end - region.base_to),
            ]
        sound = (
            region.valid
            & (region.key == lkey[:8])
            & (region.pd == context.pd)
            & ~lkey[8 + self._index_width :].any()
            & (
                ~reads
                | (
                    region.access[Access.LOCAL_WRITE.bit_length() - 1]
                    & region.mapped
                    & (region.granule_log2 == DEFAULT_GRANULE_LOG2)
                )
            )
        )
        # The comparison is late: the rest is the register's reset.
        with m.If(compares):
            m.d.sync += allowed.eq(allowed & (region.length >= offset_end[:64]))
        with m.If(compares & ~(sound & ~offset[64] & ~offset_end[64])):
            m.d.sync += allowed.eq(0)

        # Of the three that an address may be, all but one are 0: a choice without a multiplexer.
        asked, fetch = self.fetches.ready, self.fetches.p
        placed, given, inline = (Signal(64, reset_less=True) for _ in range(3))
        piece = self.pieces
        slot, index = data_register(m, piece.slot), data_register(m, piece.index)
        m.d.comb += [
            piece.follows.eq(place | asked),
            piece.address.eq(placed | given | inline),
        ]
        m.d.sync += [
            piece.valid.eq(piece.follows),
            slot.eq(Mux(asked, fetch.slot, context.slot)),
            index.eq(Mux(asked, 0, number)),
            placed.eq(region.dma_addr + offset[:64]),
            given.eq(compared.addr),
            inline.eq((fetch.entry | 1) << 6),
            piece_length.eq(compared.length),
        ]
        with m.If(~place | reads):
            m.d.sync += placed.eq(0)
        with m.If(~place | ~reads):
            m.d.sync += given.eq(0)
        with m.If(~asked):
            m.d.sync += inline.eq(0)
        m.d.comb += piece.length.eq(piece_length)
        with m.If(place):
            m.d.sync += number.eq(number + 1)
        with m.Else():
            m.d.sync += piece_length.eq(~0)
        with m.If(done):
            m.d.sync += [octets.eq(0), allowed.eq(1), number.eq(0)]
        return octets, allowed
