"""Segmenter: messages become datagrams, one from each QP in turn (device behaviour, 7.1 to 7.4).

::

    messages --> message memory, 4 words -----+--> arithmetic --+--> segments, to the frame builder
          +--> list of the QP's slots         |                 +--> quads of its DDP header
    pieces ----> piece memory ----------------+                 +--> reads, to the payload reader
                  |                           |                 +--> openings of Reads
                  +--> lists with messages <--+  back to the end if the list has more

A datagram takes 8 cycles, and 3 more for each further piece that it is gathered from, a Read at
least 6 more; a message that comes in takes 3 more, 1 if nothing else waits. The smallest frame of a
Write-Record takes 12 on the wire.

A QP has two lists, its own messages and its responses, each with turns of its own: a Read that
waits for a tracker must not hold back the responses that peers need to free theirs. Messages of a
list leave in the order in which they came. A list whose QP has an empty bucket stands aside until
that is filled; meanwhile it costs the others no turns.
"""

from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp.contract import MAX_SGE, Parameters, QpState, Status
from uwarp.wire import (
    DEFAULT_GRANULE_LOG2,
    ETHERNET,
    READ_REQUEST,
    TAGGED_OPCODES,
    VLAN,
    Opcode,
    QueueNumber,
    header_size,
    least_size,
)

from ..choice import chosen_after
from ..data_register import data_register
from ..interfaces import TableReadSignature
from ..layouts import MAPPED, QP_ROW, ReadOpening
from ..stream.queue import Queue
from .destination import HIGH, LINK, LOW, PORT, PortWord, destination_address
from .fetch import (
    IPV6_OVERHEAD,
    LENGTH_WIDTH,
    OVERHEAD,
    STATUS_WIDTH,
    clamped_mtu,
    message_layout,
    piece_layout,
)
from .scheduler import EPOCH_WIDTH, all_slots, qp_width, slot_width
from .tables import SEGMENT_READ
from .terminate import whole_code
from .token_bucket import charge_layout

__all__ = [
    "QUAD_ROWS",
    "MessageWord",
    "ReadJob",
    "Segmenter",
    "message_words",
    "quads_layout",
    "recall_layout",
    "responding_layout",
    "segment_layout",
    "word_width",
]

#: Of a message's KIND, as its segments have them.
_COPIED = ("immediate_valid", "solicited", "vlan_valid")

#: Rows that a segment's quads have to themselves.
QUAD_ROWS = 8
_QUADS = 6  # rows of them in use

#: Octets of a Terminate that its DDP header counts as its own.
_CONTROL_WORD = least_size(Opcode.TERMINATE) - header_size(Opcode.TERMINATE)

#: Segments whose quads are kept: more than can be between here and the last word of their header.
_QUAD_SEGMENTS = 64

#: Cycles after the answer to an opening until ``trackers_full`` says so.
_OPENING_CYCLES = 8


class _Word(enum.Enum, shape=2):
    """The words of a list: what its turns begin with, and what is known of its head message."""

    LIST = 0
    MO = 1
    BEGUN = 2
    MSN = 3


def segment_layout(parameters: Parameters) -> data.StructLayout:
    """One turn of a message.

    With ``frame`` a frame of ``octets`` octets goes out, some of them payload if ``has_payload``;
    one that ``opens`` only when its tracker is open. With ``last`` the message in ``slot`` ends
    here: with ``status``, or without a completion on ``discard`` or of a response or a Terminate
    (``silent``).
    """
    message = message_layout(parameters).members
    return data.StructLayout(
        {name: message[name] for name in (*_COPIED, "ipv6")}
        | {
            "silent": 1,
            "slot": slot_width(parameters),
            "opcode": 4,
            "frame": 1,
            "last": 1,
            "discard": 1,
            "opens": 1,
            "status": STATUS_WIDTH,
            "has_payload": 1,
            "octets": LENGTH_WIDTH,
            "udp_port": 16,
        }
    )


def responding_layout(parameters: Parameters) -> data.StructLayout:
    """A response to be sent."""
    return data.StructLayout({"slot": slot_width(parameters), "qpn": qp_width(parameters)})


def quads_layout() -> data.StructLayout:
    """With ``valid``: row ``address`` of the DDP headers' quads behind the control octets.

    Each segment has QUAD_ROWS rows, one after the other and around. ``word`` is quads 2n - 1 and 2n
    in row n, as they are on the wire, the first octet in bits 7:0; row 0 has quad 0 in its high
    half, and 0 in the other.
    """
    return data.StructLayout({"valid": 1, "address": range(QUAD_ROWS * _QUAD_SEGMENTS), "word": 64})


class MessageWord(enum.Enum, shape=2):
    """The words of a message in its memory, in the order in which a segment needs them."""

    CUT = 0
    KIND = 1
    QUADS = 2
    SOURCE = 3


def message_words(parameters: Parameters) -> dict[MessageWord, data.StructLayout]:
    """What each word holds.

    ``to_low`` and ``to_high`` are ``remote_to``; ``granule_high`` is of ``granule_mask`` what is
    not always 1, and can matter to a segment: none is as long as the rest. ``tagged`` and ``bare``
    are of the opcode: whether its header is tagged, and nothing of its length payload. With
    ``sound`` the status is SUCCESS. A response has no SOURCE, and its ``room`` is 0.
    """
    members = message_layout(parameters).members

    def layout(*names, **fields):
        return data.StructLayout({name: members[name] for name in names} | fields)

    return {
        MessageWord.CUT: layout(
            "length",
            "room",
            "ipv6",
            to_low=LENGTH_WIDTH,
            granule_high=LENGTH_WIDTH - DEFAULT_GRANULE_LOG2,
            tagged=1,
            bare=1,
            sound=1,
        ),
        MessageWord.KIND: layout(
            "opcode",
            "status",
            "signaled",
            "solicited",
            "immediate_valid",
            "vlan_valid",
            to_high=members["remote_to"] - LENGTH_WIDTH,
        ),
        MessageWord.QUADS: layout("stag", "immediate"),
        MessageWord.SOURCE: layout("qpn", "cq", "index"),
    }


def word_width(parameters: Parameters) -> int:
    """Bits of a message's word."""
    return max(layout.size for layout in message_words(parameters).values())


def recall_layout(parameters: Parameters) -> data.StructLayout:
    """Address of a message's word."""
    return data.StructLayout({"word": MessageWord, "slot": slot_width(parameters)})


class ReadJob(data.Struct):
    """A piece of a segment's payload: ``length`` octets, not 0, from DMA address ``address``.

    For QP ``qpn``. The first one goes to octet ``place`` of a pair of quads, as the frame builder
    has them; ``final`` if no other piece of the segment follows.
    """

    address: 64
    length: LENGTH_WIDTH
    place: 3
    final: 1
    qpn: 16


class Segmenter(wiring.Component):
    """Cut messages into segments; QPs take turns by datagram.

    A message whose QP was reset since its fetch ends with ``discard``, and so does a response whose
    QP is in RESET. One whose slot is ``failed`` ends with GENERAL_ERR. One whose QP is not in RTS,
    or ``dry``, waits, and with it the list's later ones; so does a response of a QP that has
    failed, and a Read while all trackers are taken, or another's opening is not answered.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    messages : In(stream of message_layout)
    messages_begin : In(1)
        From 2 cycles before a message is valid until it is taken: its SOURCE is known, that of
        QUADS a cycle later, that of KIND 2 cycles later.
    responses : In(stream of message_layout)
        Taken as soon as there is a cycle to write it, at most once in a slot's life.
    responding : In(stream of {slot, qpn})
        Responses to be sent, after ``responses``.
    pieces : In(piece_layout)
        Of ``messages``, no later than the cycle in which theirs is taken.
    resets : In(stream of QPN)
        The QP's messages so far are discarded; its next MSN is 1.
    segments : Out(stream of segment_layout)
    quads : Out(quads_layout)
        The segments' DDP headers: a row a cycle, the first no later than two cycles after the
        segment is offered.
    destination, destination_taken : Out(TableReadSignature), In(1)
        Words of destinations, of two cycles before; another unit uses the port in this cycle.
    coming, comes : Out(1), Out(1)
        In two cycles a segment of ``failed_slot``'s message is offered, if ``comes`` in the next.
    recall, recalled, recalled_msn, recall_ready : In(recall_layout), Out, Out(32), Out(1)
        ``recalled`` is the word of two cycles before, if then ``recall_ready`` was 1; and so is
        the slot's MSN.
    reads : Out(stream of ReadJob)
        One for each piece, in the segments' order.
    read_openings : Out(stream of ReadOpening)
        One for each segment with ``frame`` that ``opens``, in their order.
    opened : In(1)
        Strobe: an opening is answered.
    trackers_full : In(1)
    qp : Out(TableReadSignature)
    qp_taken : Out(1)
        ``qp.index`` is in use in this cycle.
    dry : In(1)
        The QP of ``turn`` may send nothing now.
    turn : Out(qpn)
    wakes : In(stream of QPN)
        Each QP that is no longer ``dry``.
    qp_failed : In(1)
        With ``qp.row``: the QP has failed.
    charge : Out(charge_layout)
    failed_slot, failed, dropped : Out, In(1), In(1)
        ``failed`` answers ``failed_slot`` in the same cycle: a payload read of that message failed;
        and ``dropped``: it is a response that ends here.
    between : Out(1)
        No message is at work.
    enable : In(1)
        While 0 no frame goes out.
    busy : Out(1)
        The rows are being cleared after a reset.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        width = qp_width(parameters)
        super().__init__(
            {
                "messages": In(stream.Signature(message_layout(parameters))),
                "messages_begin": In(1),
                "responses": In(stream.Signature(message_layout(parameters))),
                "responding": In(stream.Signature(responding_layout(parameters))),
                "pieces": In(piece_layout(parameters)),
                "resets": In(stream.Signature(width)),
                "segments": Out(stream.Signature(segment_layout(parameters))),
                "quads": Out(quads_layout()),
                "destination": Out(TableReadSignature(64, destination_address(parameters).size)),
                "destination_taken": In(1),
                "coming": Out(1),
                "comes": Out(1),
                "recall": In(recall_layout(parameters)),
                "recalled": Out(word_width(parameters)),
                "recalled_msn": Out(32),
                "recall_ready": Out(1),
                "reads": Out(stream.Signature(ReadJob)),
                "read_openings": Out(stream.Signature(ReadOpening)),
                "opened": In(1),
                "trackers_full": In(1),
                "qp": Out(TableReadSignature(QP_ROW, width, 4)),
                "qp_taken": Out(1),
                "dry": In(1),
                "turn": Out(width),
                "wakes": In(stream.Signature(width)),
                "qp_failed": In(1),
                "charge": Out(charge_layout(parameters)),
                "failed_slot": Out(slot_width(parameters)),
                "failed": In(1),
                "dropped": In(1),
                "between": Out(1),
                "enable": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n_qp, n_slots = self._parameters.n_qp, all_slots(self._parameters)
        slot_bits = slot_width(self._parameters)
        piece_bits = (MAX_SGE - 1).bit_length()
        row_layout = data.StructLayout(
            {
                "head": slot_bits,
                "head_epoch": EPOCH_WIDTH,
                "tail": slot_bits,
                "count": range(n_slots + 1),
                "some": 1,  # it is not 0
                "epoch": EPOCH_WIDTH,
                "piece": piece_bits,  # that the head message's next segment begins in
                "under_way": 1,  # a segment of that message was sent: ``mo`` is not 0
                "in_piece": 1,  # some of that piece was: ``begun`` is not 0
            }
        )
        list_layout = data.StructLayout({"qpn": qp_width(self._parameters), "responds": 1})
        n_lists = 2 * n_qp
        # Of each list ``_Word``s.
        m.submodules.rows = rows = Memory(
            shape=max(32, row_layout.size), depth=len(_Word) * n_lists, init=[]
        )
        row_read, row_write = rows.read_port(), rows.write_port()
        # What is read is never what is written: of another slot, or not known yet.
        layouts = message_words(self._parameters)
        m.submodules.store = store = Memory(
            shape=word_width(self._parameters),
            depth=len(MessageWord) * n_slots,
            init=[],
            attrs={"no_rw_check": 1},
        )
        store_read, store_write = store.read_port(), store.write_port()
        # Of each slot the MSN, and behind all those its list's next one.
        link_layout = data.StructLayout({"slot": slot_bits, "epoch": EPOCH_WIDTH})
        m.submodules.notes = notes = Memory(
            shape=max(32, link_layout.size),
            depth=2 << slot_bits,
            init=[],
            attrs={"ram_style": "block", "no_rw_check": 1},
        )
        note_read, note_write = notes.read_port(), notes.write_port()
        piece_shape = data.StructLayout({"address": 64, "length": 32})
        m.submodules.piece_store = piece_store = Memory(
            shape=piece_shape,
            depth=1 << slot_bits + piece_bits,
            init=[],
            attrs={"no_rw_check": 1},
        )
        piece_read, piece_write = piece_store.read_port(), piece_store.write_port()
        # It has room for every list.
        m.submodules.turns = turns = Queue(list_layout, n_lists, block=True, bounded=False)
        # Which of a QP's lists stand aside. The row that is looked at is the one that is written.
        m.submodules.aside = aside = Memory(shape=2, depth=n_qp, init=[])
        aside_look, aside_write = aside.read_port(domain="comb"), aside.write_port()

        arrival = self.messages.p
        response, responding = self.responses.p, self.responding.p
        # What is appended: a response is one of the QP's present life, which ``row`` tells.
        arrived, arrived_epoch = Signal(link_layout), Signal(EPOCH_WIDTH, reset_less=True)
        arrived_slot = Signal(slot_bits, reset_less=True)
        next_piece = Signal(piece_bits)
        piece_ends = Signal()  # but the segment goes on
        emits = Signal()  # the state EMIT, from a register
        # Strobes: the message's CUT is loaded, and then its KIND; ``address`` and ``left`` begin
        # anew; the segment's size is found; a turn ends.
        loaded, kind_loaded, offsets, sizes, ending = (Signal() for _ in range(5))
        finishing, whole = Signal(), Signal()  # EMIT is over; all pieces are asked for
        closing_msn = Signal(32)
        appending = Signal()  # a message of the send rings
        # A message is looked up: one for each of its words.
        finds = Signal(len(MessageWord))
        finding = Signal()  # one of them is
        empty = Signal()  # so is ``row``
        alone = Signal()  # the head message, in its list: known long before it leaves
        at_once = Signal()  # the list of the message that comes has its turn, if it was empty
        owner = Signal(list_layout)
        row = Signal(row_layout)
        msn = Signal(32, init=1)  # of the list's next message that has one
        mo = Signal(32, reset_less=True)  # of the head message's next segment
        begun = Signal(32, reset_less=True)  # octets of the piece that are sent
        used = Signal(LENGTH_WIDTH, reset_less=True)  # ... in this turn
        counted = Signal(32)  # one of these, as it is written
        written = Signal(row_layout)
        # Strobes: the list's row is at its memory's output, or is written, and why.
        row_loads, writes = Signal(), Signal()
        leaves = Signal()  # the head message, from its list
        appends_row, resets_row, resets_next = Signal(), Signal(), Signal()
        turn_taken = Signal()
        looks_up = Signal()  # the list's ``row`` is known in the next cycle
        asks_qp, qp_arrives = Signal(), Signal()
        follower = Signal(link_layout, reset_less=True)
        cut, kind, quads_of, source = (
            Signal(layouts[word], name=word.name.lower(), reset_less=True) for word in MessageWord
        )
        # The memories' own output registers: their readers stand far apart.
        stored, noted = (
            Signal(len(port.data), name=name, reset_less=True)
            for name, port in (("stored", store_read), ("noted", note_read))
        )
        # ``cut`` and ``kind`` a cycle before they are kept.
        cut_given, kind_given = (
            data.View(layouts[word], stored[: layouts[word].size])
            for word in (MessageWord.CUT, MessageWord.KIND)
        )
        piece = Signal(piece_shape, reset_less=True)
        sends = Signal()
        in_reset = Signal()
        qp_state, qp_failed = Signal.like(self.qp.row.state, reset_less=True), Signal()
        stale = Signal()
        failed = Signal()
        remaining = Signal(32, reset_less=True)
        to = Signal(64, reset_less=True)
        # Segments end on multiples of the granule: of the TO, or of the offset in the message. The
        # first one begins anywhere, so this is where a full one would end, modulo the granule.
        full_end = Signal(LENGTH_WIDTH, reset_less=True)
        address = Signal(64, reset_less=True)
        left = Signal(32, reset_less=True)  # octets of the piece that are not sent
        drained = Signal()  # ... none are, by now
        left_long = Signal(reset_less=True)  # more than a frame holds
        # octets of the segment that are not asked for
        needed = Signal(LENGTH_WIDTH, reset_less=True)
        octet = Signal(3, reset_less=True)  # of a pair of quads, where they go
        udp_port = Signal(16, reset_less=True)
        path_mtu = Signal(16, reset_less=True)
        room_ipv4, room_ipv6 = (
            Signal(LENGTH_WIDTH, name=name, reset_less=True) for name in ("room_ipv4", "room_ipv6")
        )
        room = Signal(LENGTH_WIDTH, reset_less=True)
        headers = Signal(range(256), reset_less=True)
        length = Signal(LENGTH_WIDTH, reset_less=True)
        offers = Signal()  # the segment, if it is not taken
        segment_taken = Signal()
        opening_taken = Signal()
        sweep = Signal(range(2 * n_lists))
        clearing = Signal(init=1)
        # Strobes: ``owner`` goes to the end of the lists that wait, or aside. A wake that came in
        # the cycle of ``decides``, before either, would not find it aside.
        turn_again, steps_aside, decides = Signal(), Signal(), Signal()
        was_dry = Signal()  # ``dry`` a cycle ago, when ``turn`` was the same
        # A row that is held is not yet written in the next cycles: a cycle late is early enough.
        held = Signal()
        m.d.sync += held.eq(self.qp.held)
        goes_again, writes_row = Signal(), Signal()  # but at the end of a turn

        arrives = self._write_messages(m, store_write, appending)
        m.d.comb += [
            turns.o.ready.eq(turn_taken),
            self.coming.eq(decides),
            self.comes.eq(sizes),
            looks_up.eq(turn_taken | (appends_row & empty & at_once)),
            empty.eq(~row.some),
            arrived.slot.eq(arrived_slot),
            arrived.epoch.eq(Mux(owner.responds, row.epoch, arrived_epoch)),
            written.eq(row),
            written.some.eq(appends_row | (row.some & ~(leaves & alone))),
            # Never both.
            written.count.eq(
                row.count + Cat(leaves | appends_row, leaves.replicate(len(row.count) - 1))
            ),
            written.epoch.eq(row.epoch + resets_row),
            row_write.data.eq(counted),
            self.qp.index.eq(owner.qpn),
            self.qp_taken.eq(asks_qp),
            self.qp.word.eq(SEGMENT_READ),
            self.turn.eq(owner.qpn),
            store_read.addr.eq(
                Mux(
                    finding,
                    Cat(finds[1] | finds[3], finds[2] | finds[3], row.head),
                    self.recall.as_value(),
                )
            ),
            note_read.addr.eq(Mux(finds[0], Cat(row.head, Const(1, 1)), self.recall.slot)),
            note_write.addr.eq(Cat(row.head, Const(0, 1))),
            note_write.data.eq(closing_msn),
            self.recall_ready.eq(~finding),
            self.recalled.eq(stored),
            self.recalled_msn.eq(noted),
            piece_read.addr.eq(Cat(row.piece, row.head)),
            self.failed_slot.eq(row.head),
        ]
        m.d.sync += alone.eq(row.count == 1)
        m.d.sync += [stored.eq(store_read.data), noted.eq(note_read.data)]
        response_slot = Signal(slot_bits, reset_less=True)
        # Of a response, but 0 where it is a piece's that is written.
        response_address = Signal(64, reset_less=True)
        response_written = Signal()
        m.d.sync += [
            response_slot.eq(response.slot),
            response_address.eq(response.address),
            response_written.eq(self.responses.valid & self.responses.ready),
        ]
        with m.If(self.pieces.follows):
            m.d.sync += response_address.eq(0)
        m.d.comb += [
            piece_write.addr.eq(
                Mux(
                    response_written,
                    Cat(Const(0, piece_bits), response_slot),
                    Cat(self.pieces.index, self.pieces.slot),
                )
            ),
            piece_write.data.address.eq(self.pieces.address | response_address),
            # Of a response any that is not less than the message's: the greatest, without
            # ``valid``.
            piece_write.data.length.eq(self.pieces.length),
            piece_write.en.eq(self.pieces.valid | response_written),
        ]

        # Whether a Read may have its turn.
        opening = Signal(range(_OPENING_CYCLES + 1))  # 0: none is on its way
        with m.If(self.opened):
            m.d.sync += opening.eq(_OPENING_CYCLES - 1)
        with m.Elif((opening != 0) & (opening != _OPENING_CYCLES)):
            m.d.sync += opening.eq(opening - 1)
        opening_leaves = self.read_openings.valid & self.read_openings.ready
        with m.If(opening_leaves):
            m.d.sync += [
                self.read_openings.valid.eq(0),
                opening_taken.eq(1),
                opening.eq(_OPENING_CYCLES),
            ]
        # The trackers are far from here.
        no_tracker = Signal()
        m.d.sync += no_tracker.eq(self.trackers_full | (opening != 0))

        # The segment, from registers.
        segment_done = segment_taken | self.segments.ready
        segment = self.segments.p
        job = self.reads.p
        frame = Signal()
        numbered, answers = Signal(), Signal()  # it has an MSN; it is a response
        ends = Signal()
        has_more = Signal()  # segments, or the list more messages
        sound = Signal()
        is_tagged, is_read = Signal(), Signal()
        opens = frame & is_read
        is_bare = Signal()  # nothing of its length is payload
        opcode = Signal(4)  # of one that is sound
        # What is known long before ``enough`` stays apart from it.
        enough, read_taken, all_done = (
            Signal(name=name, attrs={"keep": 1}) for name in ("enough", "read_taken", "all_done")
        )
        asks_read, has_payload = Signal(), Signal()
        # A cycle later than ``all_done``, which does not wait for ``enough``.
        m.d.sync += whole.eq(enough | ~asks_read)
        m.d.comb += [
            ending.eq(finishing & whole),
            piece_ends.eq(finishing & ~whole),
            turn_again.eq(goes_again | (ending & has_more)),
            writes.eq(writes_row | ending),
        ]
        m.d.comb += [
            opcode.eq(kind.opcode),
            segment.silent.eq(owner.responds),
            segment.ipv6.eq(cut.ipv6),
            *(segment[name].eq(kind[name]) for name in _COPIED),
            segment.slot.eq(row.head),
            segment.opcode.eq(opcode),
            segment.frame.eq(frame),
            segment.last.eq(ends),
            segment.discard.eq(stale),
            segment.opens.eq(is_read),
            segment.status.eq(Mux(failed, Status.GENERAL_ERR, kind.status)),
            segment.has_payload.eq(has_payload),
            segment.octets.eq(needed + headers),
            segment.udp_port.eq(udp_port),
            closing_msn.eq(Mux(answers, quads_of.immediate, Mux(numbered, msn, 0))),
            enough.eq(left_long | (left[:LENGTH_WIDTH] >= needed)),
            job.address.eq(address),
            job.length.eq(Mux(enough, needed, left)),
            job.place.eq(octet),
            job.final.eq(enough),
            # Not before the segment is taken, which has what is needed to begin with.
            asks_read.eq(frame & has_payload),
            self.reads.valid.eq(emits & asks_read & segment_done),
            read_taken.eq(self.reads.valid & self.reads.ready),
            job.qpn.eq(owner.qpn),
        ]
        m.d.comb += self.segments.valid.eq(offers & ~segment_taken)
        charged_octets = data_register(m, self.charge.octets)
        with m.If(self.segments.valid):
            m.d.sync += [length.eq(needed), charged_octets.eq(segment.octets)]
        with m.If(offers):
            m.d.sync += segment_taken.eq(segment_done)
        asked = self.read_openings.p
        m.d.sync += data_register(m, asked.msn).eq(msn)  # known long before one is offered
        m.d.comb += [
            asked.qpn.eq(owner.qpn),
            asked.lkey.eq(quads_of.immediate),
            asked.addr.eq(address),
            asked.mlen.eq(cut.length),
            asked.wqe_index.eq(source.index),
        ]

        # The peer of an opening, a word a cycle.
        peer_word = Signal(2)  # the next one; LINK is none of them
        peer_asks = Signal()
        peer_comes, peer_arrives = Signal(2, init=LINK), Signal(2, init=LINK)
        peer_given = peer_asks & ~self.destination_taken
        m.d.comb += self.destination.index.eq(Cat(peer_word, row.head))
        m.d.sync += [
            peer_comes.eq(Mux(peer_given, peer_word, LINK)),
            peer_arrives.eq(peer_comes),
        ]
        with m.If(peer_given & (peer_word != LINK)):
            m.d.sync += peer_word.eq(peer_word + 1)
        # An address of IPv4 is put in its place first.
        mapped = MAPPED & 0xFFFF_FFFF
        peer_ip = [
            Signal(width, init=init, reset_less=True)
            for width, init in ((32, 0), (32, mapped), (64, 0))
        ]
        port_word = data.View(PortWord, self.destination.row)
        source_port = data_register(m, asked.source_port)
        with m.If(peer_arrives == PORT):
            m.d.sync += source_port.eq(port_word.dest_port)
        with m.If((peer_arrives == PORT) | ((peer_arrives == LOW) & cut.ipv6)):
            m.d.sync += peer_ip[0].eq(self.destination.row[:32])
        with m.If(peer_arrives == LOW):
            with m.If(cut.ipv6):
                m.d.sync += peer_ip[1].eq(self.destination.row[32:])
        with m.If(peer_arrives == HIGH):
            # EMIT waits for that.
            m.d.sync += [peer_ip[2].eq(self.destination.row), self.read_openings.valid.eq(opens)]
        with m.If(peer_arrives == PORT):
            m.d.sync += peer_ip[1].eq(mapped)
        with m.If((peer_arrives == HIGH) & ~cut.ipv6):
            m.d.sync += peer_ip[2].eq(0)
        m.d.comb += asked.source_ip.eq(Cat(peer_ip))

        # A row of quads a cycle, while the message's registers still hold what they are made of:
        # they are next loaded 6 cycles after ``quad_row`` is set to 0.
        is_terminate, with_immediate = Signal(), Signal()
        quad_row, quads_begin = Signal(range(QUAD_ROWS), init=_QUADS), Signal()
        number = Signal(range(_QUAD_SEGMENTS))
        at = Signal(_QUADS)
        m.d.comb += at.eq(Cat(quad_row == index for index in range(_QUADS)))
        firsts = [
            ((at[1] & is_tagged) | at[5], to[32:]),
            (at[1] & is_read, Const(QueueNumber.REQUEST, 32)),
            (at[1] & is_terminate, Const(QueueNumber.TERMINATE, 32)),
            (at[2] & is_tagged, closing_msn),
            (at[2] & ~is_tagged, mo),
            ((at[3] & is_tagged) | at[4], cut.length),
            (at[3] & ~is_tagged, address[32:]),
        ]
        seconds = [
            ((at[0] & is_tagged) | at[4], quads_of.stag),
            (at[0] & is_read, Const(READ_REQUEST.size, 32)),
            (at[0] & is_terminate, Const(_CONTROL_WORD, 32)),
            (at[0] & ~is_tagged & ~is_read & ~is_terminate, cut.length),
            ((at[1] & is_tagged) | at[5], to[:32]),
            (at[1] & ~is_tagged, closing_msn),
            (at[2] & is_tagged, mo),
            # A Read's is the sink STag.
            (
                ((at[2] & ~is_tagged) | (at[3] & is_tagged)) & with_immediate,
                quads_of.immediate,
            ),
            (at[2] & is_terminate, Cat(Const(0, 16), whole_code(quads_of.stag[16:]))),
            (at[3] & ~is_tagged, address[:32]),
        ]
        quads = (
            Value.cast(chosen_after(m, choices, name))
            for name, choices in (("first", firsts), ("second", seconds))
        )
        octets = Cat(quad.word_select(index, 8) for quad in quads for index in (3, 2, 1, 0))
        m.d.sync += [
            self.quads.valid.eq(at.any()),
            data_register(m, self.quads.address).eq(Cat(quad_row, number)),
        ]
        m.d.comb += self.quads.word.eq(octets)
        with m.If(at.any()):
            m.d.sync += quad_row.eq(quad_row + 1)
        # The TO is a long sum, and first asked for two cycles later.
        with m.If(quads_begin):
            m.d.sync += [quad_row.eq(0), to.eq(Cat(cut.to_low, kind.to_high) + mo)]
        with m.If(at[_QUADS - 1]):
            m.d.sync += number.eq(number + 1)

        # As the segment is offered: the list's next turn is to meet what it makes of ``dry``.
        charged = self.charge
        m.d.sync += [
            charged.valid.eq(quads_begin & frame),
            data_register(m, charged.qpn).eq(owner.qpn),
        ]

        # Lists that stand aside come back when nothing else is done to turns: each wake is for both
        # lists of the QP.
        woken = Signal(list_layout, reset_less=True)
        wake_step = Signal()
        woken_valid = Signal()
        # Whether ``aside_look`` is at the wake: who may step aside decides that first.
        at_wake = Signal()
        aside_address = Signal.like(self.wakes.p, reset_less=True)
        m.d.sync += [
            aside_address.eq(Mux(clearing, sweep, Mux(decides, owner.qpn, self.wakes.p))),
            at_wake.eq(self.wakes.valid & ~self.wakes.ready & ~decides),
        ]
        m.d.comb += [
            aside_look.addr.eq(aside_address),
            aside_write.addr.eq(aside_address),
            turns.i.p.eq(Mux(turn_again, owner, woken)),
            turns.i.valid.eq(turn_again | woken_valid),
        ]
        m.d.sync += [self.wakes.ready.eq(0), was_dry.eq(self.dry)]
        with m.If(~turn_again):
            m.d.sync += woken_valid.eq(0)
        # Whether or not it is written, which is known late.
        with m.If(steps_aside):
            m.d.comb += aside_write.data.eq(aside_look.data | Cat(~owner.responds, owner.responds))
        with m.Elif(~clearing):
            m.d.comb += aside_write.data.eq(aside_look.data & Cat(wake_step, ~wake_step))
        with m.If(steps_aside | clearing):
            m.d.comb += aside_write.en.eq(1)
        with m.Elif(at_wake & ~self.wakes.ready & ~decides & ~turn_again & ~woken_valid):
            m.d.comb += aside_write.en.eq(1)
            m.d.sync += [
                self.wakes.ready.eq(wake_step),
                wake_step.eq(~wake_step),
                woken.qpn.eq(self.wakes.p),
                woken.responds.eq(wake_step),
                woken_valid.eq(Mux(wake_step, aside_look.data[1], aside_look.data[0])),
            ]

        strobes = (
            self.resets.ready,
            *(turn_taken, asks_qp, appending, decides, goes_again, steps_aside),
            *(writes_row, appends_row, resets_row, resets_next, loaded, offsets, sizes, finishing),
        )
        m.d.comb += self.busy.eq(clearing)
        m.d.sync += [signal.eq(0) for signal in strobes]
        m.d.sync += finding.eq(finds[:-1].any())
        # The list that is looked at next: responses come first, they are few, and their requests
        # hold up nobody.
        coming_list = Signal(list_layout)
        with m.If(self.resets.valid):
            m.d.comb += coming_list.qpn.eq(self.resets.p)
        with m.Elif(self.responding.valid):
            m.d.comb += [coming_list.qpn.eq(responding.qpn), coming_list.responds.eq(1)]
        with m.Elif(arrives):
            m.d.comb += coming_list.qpn.eq(arrival.qpn)
        with m.Else():
            m.d.comb += coming_list.eq(turns.o.p)
        m.d.comb += row_read.addr.eq(Cat(_Word.LIST, coming_list))

        with m.FSM(init="END"):
            with m.State("IDLE"):
                m.d.comb += self.between.eq(1)
                m.d.sync += owner.eq(coming_list)
                with m.If(self.resets.valid):
                    m.d.sync += self.resets.ready.eq(1)
                    m.next = "RESET"
                with m.Elif(held):
                    pass
                with m.Elif(self.responding.valid):
                    m.next = "APPEND"
                with m.Elif(arrives):
                    # Taken as early as can be: the fetch of the next one waits for it.
                    m.d.sync += appending.eq(1)
                    m.next = "APPEND"
                with m.Elif(turns.o.valid):
                    # The turn's place is looked at here, and leaves in the next cycle.
                    m.d.sync += [turn_taken.eq(1), asks_qp.eq(1)]
                    m.next = "LIST"

            with m.State("RESET"):
                m.d.comb += row_loads.eq(1)
                m.d.sync += [resets_row.eq(1), writes_row.eq(1)]
                m.next = "RESET_ROW"

            with m.State("RESET_ROW"):
                m.next = "RESET_NEXT"
                with m.If(owner.responds):
                    m.next = "IDLE"
                with m.Else():
                    m.d.sync += resets_next.eq(1)

            with m.State("RESET_NEXT"):
                m.d.sync += owner.responds.eq(1)
                m.next = "RESET"

            with m.State("APPEND"):
                m.d.comb += row_loads.eq(1)
                m.d.sync += [
                    at_once.eq(~turns.o.valid),
                    asks_qp.eq(~turns.o.valid),
                    appends_row.eq(1),
                    writes_row.eq(1),
                ]
                with m.If(owner.responds):
                    m.d.comb += self.responding.ready.eq(1)
                    m.d.sync += arrived_slot.eq(responding.slot)
                with m.Else():
                    m.d.sync += arrived_slot.eq(arrival.slot)
                m.d.sync += arrived_epoch.eq(arrival.epoch)
                m.next = "APPEND_ROW"

            with m.State("APPEND_ROW"):
                m.d.sync += goes_again.eq(empty & ~at_once)
                m.next = "IDLE"
                with m.If(empty & at_once):
                    m.d.sync += [finds[0].eq(1), finding.eq(1)]
                    m.next = "FIND"

            with m.State("LIST"):
                m.d.comb += row_loads.eq(1)
                m.d.sync += [finds[0].eq(1), finding.eq(1)]
                m.next = "FIND"

            with m.State("FIND"):
                m.next = "LOAD"

            with m.State("LOAD"):
                m.d.sync += [
                    decides.eq(1),
                    loaded.eq(1),
                    offsets.eq(1),
                    piece.eq(piece_read.data),
                    # A request may come just after the reset of its QP.
                    stale.eq(
                        (row.head_epoch != row.epoch) | (owner.responds & in_reset) | self.dropped
                    ),
                    failed.eq(self.failed),
                ]
                m.next = "OFFSET"

            with m.State("OFFSET"):
                m.d.sync += sizes.eq(1)
                m.next = "SIZE"
                # Of its own messages a QP's only bare ones are Reads.
                read_waits = cut_given.bare & cut_given.sound & ~owner.responds & no_tracker
                with m.If(~stale & (~sends | read_waits)):
                    m.d.sync += [goes_again.eq(1), sizes.eq(0)]
                    m.next = "IDLE"
                with m.Elif(~stale & was_dry):
                    m.d.sync += [steps_aside.eq(1), sizes.eq(0)]
                    m.next = "IDLE"

            with m.State("SIZE"):
                m.d.sync += [emits.eq(1), offers.eq(1)]
                m.next = "EMIT"

            with m.State("EMIT"):
                read_done = ~asks_read | self.reads.ready
                m.d.comb += [
                    all_done.eq(segment_done & read_done & ~(opens & ~opening_taken)),
                    piece_read.addr.eq(Cat(next_piece, row.head)),
                    peer_asks.eq(is_read),
                ]
                with m.If(read_taken):
                    m.d.sync += [
                        needed.eq(needed - left),
                        octet.eq(octet + left[: len(octet)]),
                        drained.eq(left == needed),
                        used.eq(needed),
                    ]
                with m.If(all_done):
                    m.d.sync += [emits.eq(0), finishing.eq(1)]
                    m.next = "END"

            with m.State("NEXT_OFFSET"):
                m.d.sync += emits.eq(1)
                m.next = "EMIT"

            with m.State("END"):
                with m.If(piece_ends):
                    m.d.sync += [
                        piece.eq(piece_read.data),
                        row.piece.eq(next_piece),
                        offsets.eq(1),
                    ]
                    m.next = "NEXT_OFFSET"
                with m.Elif(~clearing):
                    m.next = "IDLE"
        with m.If(ending):
            m.d.sync += offers.eq(0)
        # The message's words, each two cycles after it is asked for.
        coming_word, arriving_word = Signal.like(finds), Signal.like(finds)
        m.d.sync += [
            finds[1:].eq(finds),
            coming_word.eq(finds),
            arriving_word.eq(coming_word),
            kind_loaded.eq(loaded),
            quads_begin.eq(sizes),
        ]
        with m.If(finds[0]):
            m.d.sync += finds[0].eq(0)
        for arrives_now, register in zip(arriving_word, (cut, kind, quads_of, source), strict=True):
            with m.If(arrives_now):
                m.d.sync += register.eq(stored)
        with m.If(loaded):
            # Either is 0.
            given = cut_given
            full = given.room | Mux(given.ipv6, room_ipv6, room_ipv4)
            m.d.sync += [
                follower.as_value().eq(noted),
                remaining.eq(given.length - mo),
                full_end.eq(full + Mux(given.tagged & ~row.under_way, given.to_low, 0)),
                room.eq(full),
                sound.eq(~stale & given.sound),
                frame.eq(~stale & given.sound & ~failed),
                is_tagged.eq(given.tagged),
                is_bare.eq(given.bare),
            ]
        with m.If(kind_loaded):
            given, coming = kind_given, kind_given.opcode
            reads = coming == Opcode.READ_REQUEST
            m.d.sync += [
                octet.eq(Cat(Const(0, 2), coming == Opcode.SEND)),
                headers.eq(self._headers(coming, cut.ipv6, given.vlan_valid)),
                numbered.eq(sound & (coming != Opcode.WRITE) & ~owner.responds),
                answers.eq(owner.responds),
                is_read.eq(reads),
                is_terminate.eq(coming == Opcode.TERMINATE),
                with_immediate.eq(
                    given.immediate_valid | reads | (coming == Opcode.SEND_IMMEDIATE)
                ),
            ]
        with m.If(sizes):
            # What the room holds beyond the last granule boundary is left to the next segment.
            mask = Cat(Const(-1, DEFAULT_GRANULE_LOG2), cut.granule_high)
            fits = ~remaining[len(room) :].any() & (room >= remaining[: len(room)])
            single = is_bare | fits
            size = Mux(fits, remaining, room - (full_end & mask))
            m.d.sync += [
                ends.eq(~frame | single),
                has_more.eq((frame & ~single) | ~alone),
                needed.eq(size),
                has_payload.eq(~is_bare & remaining.any()),
                drained.eq(0),
                segment_taken.eq(0),
                opening_taken.eq(0),
                peer_word.eq(PORT),
            ]
        with m.If(offsets):
            m.d.sync += [
                address.eq(piece.address + begun),
                left.eq(piece.length - begun),
                used.eq(0),
            ]
        # What may be 0 is set to it last, which takes no logic before a register.
        with m.If(sizes & is_bare):
            m.d.sync += needed.eq(0)
        # Nothing of a further piece is sent when ``offsets`` are found.
        m.d.sync += left_long.eq(
            Mux(offsets, piece.length[LENGTH_WIDTH:].any(), left[LENGTH_WIDTH:].any())
        )
        m.d.comb += next_piece.eq(row.piece + 1)

        # The other words of a list follow its row, a cycle each; so they do when they are written,
        # but for the MSN. Only different words are read and written in one cycle.
        loads = Signal(3)
        ended = Signal(list_layout, reset_less=True)
        puts_mo, puts_begun = Signal(), Signal()
        m.d.sync += [
            loads.eq(Cat(looks_up, loads)),
            ended.eq(owner),
            puts_mo.eq(ending),
            puts_begun.eq(puts_mo),
        ]
        m.d.comb += row_read.en.eq(~(row_write.en & (row_write.addr[:2] == row_read.addr[:2])))
        # Of a list that was empty it does not matter what is read of the first two.
        for strobe, word in (
            (turn_taken, _Word.MO),
            (loads[0], _Word.BEGUN),
            (loads[1], _Word.MSN),
        ):
            with m.If(strobe):
                m.d.comb += row_read.addr.eq(Cat(word, owner))
        with m.If(resets_next):
            m.d.comb += row_read.addr.eq(Cat(_Word.LIST, owner.qpn, Const(1, 1)))
        with m.If(row_loads):
            m.d.sync += row.as_value().eq(row_read.data)
        with m.If(appends_row & empty):
            m.d.sync += [
                row.head.eq(arrived.slot),
                row.head_epoch.eq(arrived.epoch),
                row.tail.eq(arrived.slot),
                row.count.eq(1),
                row.some.eq(1),
            ]
        # The MO is needed no earlier than what is begun.
        row_word = Signal(32, reset_less=True)
        m.d.sync += row_word.eq(row_read.data)
        with m.If(loads[1]):
            m.d.sync += [mo.eq(row_word), begun.eq(row_read.data)]
        with m.If(loads[1] & ~row.under_way):
            m.d.sync += mo.eq(0)
        with m.If((loads[1] & ~row.in_piece) | piece_ends):
            m.d.sync += begun.eq(0)
        with m.If(loads[2]):
            m.d.sync += msn.eq(row_read.data)
        with m.If(resets_row):
            m.d.sync += msn.eq(1)
        # An OR of registers of which all but one are 0; the MSN's in all other cycles.
        terms = [
            Signal(32, name=f"term_{number}", init=init) for number, init in enumerate((0, 0, 1))
        ]
        added = [Signal(LENGTH_WIDTH, name=f"added_{number}") for number in range(2)]
        m.d.sync += [
            *(term.eq(value) for term, value in zip(terms, (mo, begun, msn), strict=True)),
            *(addend.eq(value) for addend, value in zip(added, (length, used), strict=True)),
        ]
        for number, strobe in enumerate((ending, puts_mo)):
            with m.If(~strobe):
                m.d.sync += [terms[number].eq(0), added[number].eq(0)]
        with m.If(resets_row):
            m.d.sync += terms[2].eq(1)
        with m.If(ending | puts_mo):
            m.d.sync += terms[2].eq(0)
        m.d.comb += counted.eq(
            (
                Cat(Const(1, 1), reduce(or_, terms))
                + Cat(emits & ends & numbered, reduce(or_, added))
            )[1:]
        )
        # In every cycle of EMIT the MSN: it is known.
        m.d.comb += [
            row_write.addr.eq(Cat(_Word.MSN, owner)),
            row_write.en.eq(Cat(emits, resets_next, writes, puts_mo, puts_begun, clearing).any()),
        ]
        with m.If(writes):
            m.d.comb += row_write.addr.eq(Cat(_Word.LIST, owner))
        # While rows are cleared, ``written`` is 0 and ``counted`` is 1.
        with m.If(writes | (clearing & ~sweep[0])):
            m.d.comb += row_write.data.eq(written.as_value())
        with m.If(puts_mo):
            m.d.comb += row_write.addr.eq(Cat(_Word.MO, ended))
        with m.If(puts_begun):
            m.d.comb += row_write.addr.eq(Cat(_Word.BEGUN, ended))
        # After a reset nothing is in a list, and its next MSN is 1.
        with m.If(clearing):
            m.d.comb += row_write.addr.eq(Cat(sweep[0].replicate(2), sweep[1:]))
            m.d.sync += sweep.eq(sweep + 1)
            with m.If(sweep == 2 * n_lists - 1):
                m.d.sync += clearing.eq(0)
        m.d.comb += leaves.eq(ending & ends)
        with m.If(appends_row):
            m.d.comb += [
                written.tail.eq(arrived.slot),
                note_write.addr.eq(Cat(row.tail, Const(1, 1))),
                note_write.data.eq(arrived.as_value()),
                note_write.en.eq(~empty),
            ]
            with m.If(empty):
                m.d.comb += [
                    written.head.eq(arrived.slot),
                    written.head_epoch.eq(arrived.epoch),
                ]
        with m.If(ending):
            m.d.comb += [
                note_write.en.eq(ends),
                written.under_way.eq(~ends),
                written.in_piece.eq(~ends & ~drained),
                written.piece.eq(Mux(ends, 0, Mux(drained, next_piece, row.piece))),
            ]
        with m.If(leaves):
            m.d.comb += [
                written.head.eq(follower.slot),
                written.head_epoch.eq(follower.epoch),
            ]
        m.d.sync += qp_arrives.eq(asks_qp)
        with m.If(qp_arrives):
            m.d.sync += [
                qp_state.eq(self.qp.row.state),
                qp_failed.eq(self.qp_failed),
                udp_port.eq(self.qp.row.udp_port),
                path_mtu.eq(self.qp.row.path_mtu),
            ]
        m.d.comb += in_reset.eq(qp_state == QpState.RESET)
        m.d.sync += sends.eq(
            (qp_state == QpState.RTS) & self.enable & ~(owner.responds & qp_failed)
        )
        overhead = OVERHEAD[Opcode.READ_RESPONSE_RECORD]
        m.d.sync += [
            room_ipv4.eq(clamped_mtu(self._parameters, path_mtu, overhead)),
            room_ipv6.eq(clamped_mtu(self._parameters, path_mtu, overhead + IPV6_OVERHEAD)),
        ]
        with m.If(~owner.responds):
            m.d.sync += [room_ipv4.eq(0), room_ipv6.eq(0)]
        return m

    def _write_messages(self, m, port, appending):
        """Write the words of messages, with ``appending`` the last one, and of responses, when
        nothing else is written. Returns whether a message is known but for that word."""
        arrival, response = self.messages.p, self.responses.p
        layouts = message_words(self._parameters)
        written = Signal(2)  # words of the message
        complete = Signal()  # all of them but the last
        follows = Signal()  # one is written
        step = Signal(2)  # the response's word
        responds = Signal()
        m.d.comb += [
            follows.eq(self.messages_begin & ~complete),
            responds.eq(self.responses.valid & ~follows & ~appending & ~self.pieces.follows),
            self.messages.ready.eq(appending),
            self.responses.ready.eq(responds & step[1]),
        ]
        with m.If(follows):
            m.d.sync += [written.eq(written + 1), complete.eq(written[1])]
        with m.If(appending):
            m.d.sync += [written.eq(0), complete.eq(0)]
        with m.If(responds):
            m.d.sync += step.eq(Mux(step[1], 0, step + 1))

        # An OR of registers of which all but one are 0: a choice that takes no multiplexer.
        parts = []
        m.d.sync += [
            port.addr.eq(Cat(Const(0, 2), Mux(responds, response.slot, arrival.slot))),
            port.en.eq(follows | appending | responds),
        ]
        for message, order in (
            (
                arrival,
                (
                    (follows & (written == 0), MessageWord.SOURCE),
                    (follows & (written == 1), MessageWord.QUADS),
                    (follows & (written == 2), MessageWord.KIND),
                    (appending, MessageWord.CUT),
                ),
            ),
            (
                response,
                (
                    (responds & (step == 0), MessageWord.QUADS),
                    (responds & (step == 1), MessageWord.KIND),
                    (responds & step[1], MessageWord.CUT),
                ),
            ),
        ):
            opcode = message.opcode[:4]
            fields = {name: message[name] for name in message.shape().members} | {
                "to_low": message.remote_to[:LENGTH_WIDTH],
                "to_high": message.remote_to[LENGTH_WIDTH:],
                "granule_high": message.granule_mask[DEFAULT_GRANULE_LOG2:LENGTH_WIDTH],
                "tagged": Cat(opcode == item for item in TAGGED_OPCODES).any(),
                "bare": (opcode == Opcode.READ_REQUEST) | (opcode == Opcode.TERMINATE),
                "sound": message.status == Status.SUCCESS,
            }
            for selected, word in order:
                layout = layouts[word]
                part = Signal(layout, name=f"part_{len(parts)}", reset_less=True)
                m.d.sync += [part[name].eq(fields[name]) for name in layout.members]
                with m.If(~selected):
                    m.d.sync += part.eq(0)
                with m.If(selected):
                    m.d.sync += port.addr[:2].eq(word)
                parts.append(part.as_value())
        m.d.comb += port.data.eq(reduce(or_, parts))
        return self.messages.valid & written[1]

    @staticmethod
    def _headers(opcode, ipv6, vlan_valid):
        """Octets of a frame that are not payload."""
        octets = 0
        for item, overhead in OVERHEAD.items():
            octets = Mux(opcode == item, ETHERNET.size + overhead, octets)
        return octets + Mux(ipv6, IPV6_OVERHEAD, 0) + Mux(vlan_valid, VLAN.size, 0)
