"""Segmenter: messages become datagrams, one from each QP in turn (device behaviour, 7.1 to 7.4).

::

    messages --> message memory, row = slot --+--> arithmetic --+--> segments, to the frame builder
          +--> list of the QP's slots         |                 +--> quads of its DDP header
    pieces ----> piece memory ----------------+                 +--> reads, to the payload reader
                  |                           |                 +--> openings of Reads
                  +--> lists with messages <--+  back to the end if the list has more

A datagram takes 8 cycles, and 3 more for each further piece that it is gathered from, a Read at
least 4 more; a message that comes in takes 3 more, 1 if nothing else waits. The smallest frame of a
Write-Record takes 12 on the wire.

A QP has two lists, its own messages and its responses, each with turns of its own: a Read that
waits for a tracker must not hold back the responses that peers need to free theirs. Messages of a
list leave in the order in which they came. A list whose QP has an empty bucket stands aside until
that is filled; meanwhile it costs the others no turns.
"""

from collections.abc import Iterable

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp.contract import MAX_SGE, Parameters, QpState, Status
from uwarp.wire import (
    ETHERNET,
    READ_REQUEST,
    TAGGED_OPCODES,
    VLAN,
    Opcode,
    QueueNumber,
    header_size,
    least_size,
)

from ..interfaces import TableReadSignature
from ..layouts import QP_ROW, ReadOpening
from ..stream.ports import keep_apart
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
from .terminate import whole_code
from .token_bucket import charge_layout

__all__ = [
    "QUAD_ROWS",
    "ReadJob",
    "Segmenter",
    "quads_layout",
    "recall_layout",
    "responding_layout",
    "segment_layout",
]

_COPIED = ("silent", "immediate_valid", "solicited", "ipv6", "vlan_valid")

#: Of a message, for its completion.
_RECALLED = ("qpn", "cq", "index", "opcode", "signaled", "length", "remote_to", "stag")

#: What nobody looks at in a response: whatever the last message had.
_NOT_OF_RESPONSES = ("cq", "index", "signaled", "room")

#: Rows that a segment's quads have to themselves.
QUAD_ROWS = 8
_QUADS = 6  # rows of them in use

#: Octets of a Terminate that its DDP header counts as its own.
_CONTROL_WORD = least_size(Opcode.TERMINATE) - header_size(Opcode.TERMINATE)

#: Segments whose quads are kept: more than can be between here and the last word of their header.
_QUAD_SEGMENTS = 64

#: Cycles after the answer to an opening until ``trackers_full`` says so.
_OPENING_CYCLES = 8


def segment_layout(parameters: Parameters) -> data.StructLayout:
    """One turn of a message.

    With ``frame`` a frame of ``octets`` octets goes out, some of them payload if ``has_payload``;
    one that ``opens`` only when its tracker is open. With ``last`` the message in ``slot`` ends
    here: with ``status``, or without a completion on ``discard`` or of a response or a Terminate
    (``silent``).
    """
    message = message_layout(parameters).members
    return data.StructLayout(
        {name: message[name] for name in _COPIED}
        | {
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


def recall_layout(parameters: Parameters) -> data.StructLayout:
    """What the completion of a message tells."""
    message = message_layout(parameters).members
    return data.StructLayout({name: message[name] for name in _RECALLED} | {"msn": 32})


def _selected(choices: Iterable[tuple[Value, Value]]) -> Value:
    """The OR of the quads whose conditions are 1."""
    result = Const(0, 32)
    for condition, quad in choices:
        result = result | (quad & condition.replicate(32))
    return result


class ReadJob(data.Struct):
    """A piece of a segment's payload: ``length`` octets, not 0, from DMA address ``address``.

    For QP ``qpn``. The first one goes to octet ``place`` of a word; ``final`` if no other piece of
    the segment follows.
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
    responses : In(stream of message_layout)
        Taken as soon as there is a cycle to write it, at most once in a slot's life.
    responding : In(stream of {slot, qpn})
        Responses to be sent, after ``responses``.
    pieces : In(piece_layout)
        Of ``messages`` that come later.
    resets : In(stream of QPN)
        The QP's messages so far are discarded; its next MSN is 1.
    segments : Out(stream of segment_layout)
    quads : Out(quads_layout)
        The segments' DDP headers: a row a cycle, the first no later than the cycle after the
        segment is offered.
    destination, destination_taken : Out(TableReadSignature), In(1)
        Words of destinations; another unit uses the port in this cycle.
    coming : Out(1)
        In the next cycle a segment of ``failed_slot``'s message is offered.
    recall, recalled, recall_ready : In(slot), Out(recall_layout), Out(1)
        ``recalled`` is that of the slot of the cycle before, if then ``recall_ready`` was 1.
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
    failed_qps : In(n_qp)
        QPs that have failed.
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
                "responses": In(stream.Signature(message_layout(parameters))),
                "responding": In(stream.Signature(responding_layout(parameters))),
                "pieces": In(piece_layout(parameters)),
                "resets": In(stream.Signature(width)),
                "segments": Out(stream.Signature(segment_layout(parameters))),
                "quads": Out(quads_layout()),
                "destination": Out(TableReadSignature(64, destination_address(parameters).size)),
                "destination_taken": In(1),
                "coming": Out(1),
                "recall": In(slot_width(parameters)),
                "recalled": Out(recall_layout(parameters)),
                "recall_ready": Out(1),
                "reads": Out(stream.Signature(ReadJob)),
                "read_openings": Out(stream.Signature(ReadOpening)),
                "opened": In(1),
                "trackers_full": In(1),
                "qp": Out(TableReadSignature(QP_ROW, width)),
                "qp_taken": Out(1),
                "dry": In(1),
                "turn": Out(width),
                "wakes": In(stream.Signature(width)),
                "failed_qps": In(parameters.n_qp),
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
                "epoch": EPOCH_WIDTH,
                "msn": 32,  # of the last message that had one
                "mo": 32,  # of the head message's next segment
                "piece": piece_bits,  # that it begins in
                "begun": 32,  # octets of the piece that are sent
            }
        )
        list_layout = data.StructLayout({"qpn": qp_width(self._parameters), "responds": 1})
        n_lists = 2 * n_qp
        m.submodules.rows = rows = Memory(shape=row_layout, depth=n_lists, init=[])
        row_read, row_write = rows.read_port(), rows.write_port()
        members = message_layout(self._parameters).members
        layout = data.StructLayout(
            {
                name: shape
                for name, shape in members.items()
                if name not in ("slot", "epoch", "address")
            }
        )
        m.submodules.store = store = Memory(shape=layout, depth=n_slots, init=[])
        store_read, store_write = store.read_port(), store.write_port()
        m.submodules.msns = msns = Memory(
            shape=32, depth=n_slots, init=[], attrs={"ram_style": "block"}
        )
        msn_read, msn_write = msns.read_port(), msns.write_port()
        piece_shape = data.StructLayout({"address": 64, "length": 32})
        m.submodules.piece_store = piece_store = Memory(
            shape=piece_shape, depth=1 << slot_bits + piece_bits, init=[]
        )
        piece_read, piece_write = piece_store.read_port(), piece_store.write_port()
        link_layout = data.StructLayout({"slot": slot_bits, "epoch": EPOCH_WIDTH})
        m.submodules.links = links = Memory(shape=link_layout, depth=n_slots, init=[])
        link_read, link_write = links.read_port(), links.write_port()
        keep_apart(m, link_read, link_write)
        m.submodules.turns = turns = Queue(list_layout, n_lists)
        m.submodules.aside = aside = Memory(shape=1, depth=n_lists, init=[])
        aside_look, aside_write = aside.read_port(domain="comb"), aside.write_port()

        arrival = self.messages.p
        response, responding = self.responses.p, self.responding.p
        arrived = Signal(link_layout)
        appending = Signal()  # a message of the send rings
        finds = Signal()  # a message is looked up
        at_once = Signal()  # the list of the message that comes has its turn, if it was empty
        qp_looked_up = Signal()
        owner = Signal(list_layout)
        row = Signal(row_layout)
        follower = Signal(link_layout)
        message = Signal(layout)
        piece = Signal(piece_shape)
        sends = Signal()
        in_reset = Signal()
        stale = Signal()
        failed = Signal()
        remaining = Signal(32)
        to = Signal(64)
        # Segments end on multiples of the granule of it.
        place = Signal(16)
        address = Signal(64)
        left = Signal(32)  # octets of the piece that are not sent
        drained = Signal()  # ... none are, by now
        needed = Signal(LENGTH_WIDTH)  # octets of the segment that are not asked for
        octet = Signal(3)  # of a frame word, where they go
        udp_port = Signal(16)
        mtu = Signal(LENGTH_WIDTH)
        room = Signal(LENGTH_WIDTH)
        headers = Signal(range(256))
        length = Signal(LENGTH_WIDTH)
        offers = Signal()  # the segment, if it is not taken
        segment_taken = Signal()
        opening_taken = Signal()
        sweep = Signal(range(n_lists))
        clearing = Signal(init=1)
        concludes = Signal()  # a turn: the row is written
        # Strobes: ``owner`` goes to the end of the lists that wait, or aside. A wake that came in
        # the cycle of ``decides``, before either, would not find it aside.
        turn_again, steps_aside, decides = Signal(), Signal(), Signal()

        # A response is written when nothing else is.
        m.d.comb += [
            self.responses.ready.eq(~appending & ~self.pieces.valid & ~finds),
            store_write.addr.eq(Mux(appending, arrival.slot, response.slot)),
            *(
                store_write.data[name].eq(
                    arrival[name]
                    if name in _NOT_OF_RESPONSES
                    else Mux(appending, arrival[name], response[name])
                )
                for name in layout.members
            ),
            store_write.en.eq(appending | (self.responses.valid & self.responses.ready)),
            link_write.addr.eq(row.tail),
            link_write.data.eq(arrived),
            row_write.addr.eq(owner),
            self.qp.index.eq(turns.o.p.qpn),
            self.turn.eq(owner.qpn),
            store_read.addr.eq(self.recall),
            msn_read.addr.eq(self.recall),
            msn_write.addr.eq(row.head),
            self.recall_ready.eq(~finds & ~store_write.en & ~msn_write.en),
            # Nothing is read while a row is written, so that synthesis adds no logic for the sake
            # of a row that is both.
            row_read.en.eq(~row_write.en),
            store_read.en.eq(~store_write.en),
            msn_read.en.eq(~msn_write.en),
            piece_read.en.eq(~piece_write.en),
            *(self.recalled[name].eq(store_read.data[name]) for name in _RECALLED),
            self.recalled.msn.eq(msn_read.data),
            piece_read.addr.eq(Cat(row.piece, row.head)),
            link_read.addr.eq(row.head),
            self.failed_slot.eq(row.head),
        ]
        with m.If(self.pieces.valid):
            m.d.comb += [
                piece_write.addr.eq(Cat(self.pieces.index, self.pieces.slot)),
                piece_write.data.address.eq(self.pieces.address),
                piece_write.data.length.eq(self.pieces.length),
                piece_write.en.eq(1),
            ]
        with m.Else():
            m.d.comb += [
                piece_write.addr.eq(Cat(Const(0, piece_bits), response.slot)),
                piece_write.data.address.eq(response.address),
                piece_write.data.length.eq(response.length),
                piece_write.en.eq(self.responses.valid & self.responses.ready),
            ]

        # Whether a Read may have its turn.
        opening = Signal(range(_OPENING_CYCLES + 1))  # 0: none is on its way
        with m.If(self.opened):
            m.d.sync += opening.eq(_OPENING_CYCLES - 1)
        with m.Elif((opening != 0) & (opening != _OPENING_CYCLES)):
            m.d.sync += opening.eq(opening - 1)

        # The segment, from registers.
        segment = self.segments.p
        job = self.reads.p
        frame = Signal()
        numbered = Signal()
        ends = Signal()
        has_more = Signal()  # segments, or the list more messages
        tagged = Signal()
        reads = Signal()
        is_tagged, is_read = Signal(), Signal()
        bare = Signal()  # nothing of its length is payload
        enough = Signal()
        m.d.comb += [
            tagged.eq(Cat(message.opcode == opcode for opcode in TAGGED_OPCODES).any()),
            reads.eq(message.opcode == Opcode.READ_REQUEST),
            bare.eq(reads | (message.opcode == Opcode.TERMINATE)),
            *(segment[name].eq(message[name]) for name in _COPIED),
            segment.slot.eq(row.head),
            segment.opcode.eq(message.opcode),
            segment.frame.eq(frame),
            segment.last.eq(ends),
            segment.discard.eq(stale),
            segment.opens.eq(is_read),
            segment.status.eq(Mux(failed, Status.GENERAL_ERR, message.status)),
            segment.has_payload.eq(length != 0),
            segment.octets.eq(length + headers),
            segment.udp_port.eq(udp_port),
            msn_write.data.eq(Mux(message.silent, message.immediate, Mux(numbered, row.msn, 0))),
            enough.eq(left >= needed),
            job.address.eq(address),
            job.length.eq(Mux(enough, needed, left)),
            job.place.eq(octet),
            job.final.eq(enough),
            job.qpn.eq(owner.qpn),
        ]
        segment_done = segment_taken | self.segments.ready
        m.d.comb += self.segments.valid.eq(offers & ~segment_taken)
        with m.If(offers):
            m.d.sync += segment_taken.eq(segment_done)
        asked = self.read_openings.p
        m.d.comb += [
            asked.qpn.eq(owner.qpn),
            asked.msn.eq(row.msn),
            asked.lkey.eq(message.immediate),
            asked.addr.eq(address),
            asked.mlen.eq(message.length),
            asked.wqe_index.eq(message.index),
        ]

        # The peer of an opening, a word a cycle.
        peer_word = Signal(2)  # the next one; LINK is none of them
        peer_asks, peer_known = Signal(), Signal()
        peer_arrives = Signal(2, init=LINK)
        peer_given = peer_asks & ~self.destination_taken
        m.d.comb += self.destination.index.eq(Cat(peer_word, row.head))
        m.d.sync += peer_arrives.eq(Mux(peer_given, peer_word, LINK))
        with m.If(peer_given & (peer_word != LINK)):
            m.d.sync += peer_word.eq(peer_word + 1)
        with m.Switch(peer_arrives):
            with m.Case(PORT):
                port_word = data.View(PortWord, self.destination.row)
                m.d.sync += asked.source_port.eq(port_word.dest_port)
            with m.Case(LOW):
                m.d.sync += asked.source_ip[:64].eq(self.destination.row)
            with m.Case(HIGH):
                m.d.sync += [asked.source_ip[64:].eq(self.destination.row), peer_known.eq(1)]

        # A row of quads a cycle, while the message's registers still hold what they are made of:
        # they are next loaded 6 cycles after ``quad_row`` is set to 0.
        is_terminate, with_immediate = Signal(), Signal()
        quad_row = Signal(range(QUAD_ROWS), init=_QUADS)
        number = Signal(range(_QUAD_SEGMENTS))
        at = Signal(_QUADS)
        m.d.comb += at.eq(Cat(quad_row == index for index in range(_QUADS)))
        firsts = [
            ((at[1] & is_tagged) | at[5], to[32:]),
            (at[1] & is_read, Const(QueueNumber.REQUEST, 32)),
            (at[1] & is_terminate, Const(QueueNumber.TERMINATE, 32)),
            (at[2] & is_tagged, msn_write.data),
            (at[2] & ~is_tagged, row.mo),
            ((at[3] & is_tagged) | at[4], message.length),
            (at[3] & ~is_tagged, address[32:]),
        ]
        seconds = [
            ((at[0] & is_tagged) | at[4], message.stag),
            (at[0] & is_read, Const(READ_REQUEST.size, 32)),
            (at[0] & is_terminate, Const(_CONTROL_WORD, 32)),
            (at[0] & ~is_tagged & ~is_read & ~is_terminate, message.length),
            ((at[1] & is_tagged) | at[5], to[:32]),
            (at[1] & ~is_tagged, msn_write.data),
            (at[2] & is_tagged, row.mo),
            # A Read's is the sink STag.
            (
                ((at[2] & ~is_tagged) | (at[3] & is_tagged)) & with_immediate,
                message.immediate,
            ),
            (at[2] & is_terminate, Cat(Const(0, 16), whole_code(message.stag[16:]))),
            (at[3] & ~is_tagged, address[:32]),
        ]
        quads = (Value.cast(_selected(choices)) for choices in (firsts, seconds))
        octets = Cat(quad.word_select(index, 8) for quad in quads for index in (3, 2, 1, 0))
        m.d.sync += [
            self.quads.valid.eq(at.any()),
            self.quads.address.eq(Cat(quad_row, number)),
            self.quads.word.eq(octets),
        ]
        with m.If(at.any()):
            m.d.sync += quad_row.eq(quad_row + 1)
        with m.If(at[_QUADS - 1]):
            m.d.sync += number.eq(number + 1)

        shift = message.ipv6 ^ message.vlan_valid  # by 4 octets, modulo a word
        charged = self.charge
        m.d.comb += [charged.qpn.eq(owner.qpn), charged.octets.eq(segment.octets)]

        # Lists that stand aside come back when nothing else is done to turns: each wake is for both
        # lists of the QP.
        woken = Signal(list_layout)
        wake_step = Signal()
        m.d.comb += [
            woken.qpn.eq(self.wakes.p),
            woken.responds.eq(wake_step),
            aside_look.addr.eq(woken),
            aside_write.addr.eq(owner),
            aside_write.data.eq(steps_aside),
            turns.i.p.eq(owner),
        ]
        with m.If(turn_again):
            m.d.comb += turns.i.valid.eq(1)
        with m.Elif(steps_aside):
            m.d.comb += aside_write.en.eq(1)
        with m.Elif(clearing):
            m.d.comb += [aside_write.addr.eq(sweep), aside_write.en.eq(1)]
        with m.Elif(self.wakes.valid & ~decides):
            m.d.comb += [
                turns.i.p.eq(woken),
                turns.i.valid.eq(aside_look.data),
                aside_write.addr.eq(woken),
                aside_write.en.eq(1),
                self.wakes.ready.eq(wake_step),
            ]
            m.d.sync += wake_step.eq(~wake_step)

        strobes = (appending, decides, turn_again, steps_aside, concludes)
        m.d.comb += [self.busy.eq(clearing), self.messages.ready.eq(appending)]
        m.d.sync += [signal.eq(0) for signal in strobes]
        with m.FSM(init="CLEAR"):
            with m.State("CLEAR"):
                m.d.comb += [row_write.addr.eq(sweep), row_write.en.eq(1)]
                m.d.sync += sweep.eq(sweep + 1)
                with m.If(sweep == n_lists - 1):
                    m.d.sync += clearing.eq(0)
                    m.next = "IDLE"

            with m.State("IDLE"):
                m.d.comb += self.between.eq(1)
                with m.If(self.resets.valid):
                    m.d.comb += [self.resets.ready.eq(1), row_read.addr.eq(self.resets.p)]
                    m.d.sync += [owner.qpn.eq(self.resets.p), owner.responds.eq(0)]
                    m.next = "RESET"
                # Responses come first: they are few, and their requests hold up nobody.
                with m.Elif(self.responding.valid):
                    m.d.comb += row_read.addr.eq(Cat(responding.qpn, Const(1, 1)))
                    m.d.sync += [owner.qpn.eq(responding.qpn), owner.responds.eq(1)]
                    m.next = "APPEND"
                with m.Elif(self.messages.valid):
                    m.d.comb += row_read.addr.eq(Cat(arrival.qpn, Const(0, 1)))
                    # Taken as early as can be: the fetch of the next one waits for it.
                    m.d.sync += [
                        owner.qpn.eq(arrival.qpn),
                        owner.responds.eq(0),
                        appending.eq(1),
                    ]
                    m.next = "APPEND"
                with m.Elif(turns.o.valid):
                    m.d.comb += [
                        row_read.addr.eq(turns.o.p),
                        turns.o.ready.eq(1),
                        self.qp_taken.eq(1),
                    ]
                    m.d.sync += owner.eq(turns.o.p)
                    m.next = "LIST"

            with m.State("RESET"):
                m.d.sync += row.eq(row_read.data)
                m.next = "RESET_ROW"

            with m.State("RESET_ROW"):
                m.d.comb += [
                    row_write.data.eq(row),
                    row_write.data.epoch.eq(row.epoch + 1),
                    row_write.data.msn.eq(0),
                    row_write.en.eq(1),
                ]
                m.d.sync += owner.responds.eq(1)
                m.next = "RESET_NEXT"
                with m.If(owner.responds):
                    m.next = "IDLE"

            with m.State("RESET_NEXT"):
                m.d.comb += row_read.addr.eq(owner)
                m.next = "RESET"

            with m.State("APPEND"):
                m.d.sync += [row.eq(row_read.data), at_once.eq(~turns.o.valid)]
                with m.If(~turns.o.valid):
                    m.d.comb += [self.qp.index.eq(owner.qpn), self.qp_taken.eq(1)]
                with m.If(owner.responds):
                    m.d.comb += self.responding.ready.eq(1)
                    m.d.sync += [
                        arrived.slot.eq(responding.slot),
                        arrived.epoch.eq(row_read.data.epoch),
                    ]
                with m.Else():
                    m.d.sync += [arrived.slot.eq(arrival.slot), arrived.epoch.eq(arrival.epoch)]
                m.next = "APPEND_ROW"

            with m.State("APPEND_ROW"):
                empty = row.count == 0
                m.d.comb += [
                    row_write.data.eq(row),
                    row_write.data.tail.eq(arrived.slot),
                    row_write.data.count.eq(row.count + 1),
                    row_write.en.eq(1),
                    link_write.en.eq(~empty),
                ]
                m.d.sync += turn_again.eq(empty & ~at_once)
                m.next = "IDLE"
                with m.If(empty):
                    m.d.comb += [
                        row_write.data.head.eq(arrived.slot),
                        row_write.data.head_epoch.eq(arrived.epoch),
                    ]
                    m.d.sync += [
                        row.head.eq(arrived.slot),
                        row.head_epoch.eq(arrived.epoch),
                        row.tail.eq(arrived.slot),
                        row.count.eq(1),
                    ]
                    with m.If(at_once):
                        m.d.comb += qp_looked_up.eq(1)
                        m.next = "FIND"

            with m.State("LIST"):
                m.d.comb += qp_looked_up.eq(1)
                m.d.sync += row.eq(row_read.data)
                m.next = "FIND"

            with m.State("FIND"):
                m.d.comb += [store_read.addr.eq(row.head), finds.eq(1)]
                with m.If(~self.pieces.valid):
                    m.next = "LOAD"

            with m.State("LOAD"):
                m.d.sync += [
                    decides.eq(1),
                    message.eq(store_read.data),
                    piece.eq(piece_read.data),
                    follower.eq(link_read.data),
                    # A request may come just after the reset of its QP.
                    stale.eq(
                        (row.head_epoch != row.epoch) | (owner.responds & in_reset) | self.dropped
                    ),
                    failed.eq(self.failed),
                ]
                m.next = "OFFSET"

            with m.State("OFFSET"):
                sound = ~stale & (message.status == Status.SUCCESS)
                overhead = OVERHEAD[Opcode.READ_RESPONSE_RECORD]
                m.d.sync += [
                    remaining.eq(Mux(bare, 0, message.length - row.mo)),
                    to.eq(message.remote_to + row.mo),
                    place.eq(Mux(tagged, message.remote_to[:16], 0) + row.mo[:16]),
                    address.eq(piece.address + row.begun),
                    left.eq(piece.length - row.begun),
                    octet.eq(Cat(Const(0, 2), shift ^ (message.opcode == Opcode.SEND))),
                    room.eq(
                        Mux(
                            message.silent,
                            mtu - Mux(message.ipv6, overhead + IPV6_OVERHEAD, overhead),
                            message.room,
                        )
                    ),
                    headers.eq(self._headers(message)),
                ]
                m.d.sync += [
                    frame.eq(sound & ~failed),
                    numbered.eq(sound & (message.opcode != Opcode.WRITE) & ~message.silent),
                    is_tagged.eq(tagged),
                    is_read.eq(reads),
                    is_terminate.eq(message.opcode == Opcode.TERMINATE),
                    with_immediate.eq(
                        message.immediate_valid | reads | (message.opcode == Opcode.SEND_IMMEDIATE)
                    ),
                    quad_row.eq(0),
                ]
                m.next = "SIZE"
                read_waits = (
                    reads
                    & (message.status == Status.SUCCESS)
                    & (self.trackers_full | (opening != 0))
                )
                with m.If(~stale & (~sends | read_waits)):
                    m.d.sync += [turn_again.eq(1), quad_row.eq(_QUADS)]
                    m.next = "IDLE"
                with m.Elif(~stale & self.dry):
                    m.d.sync += [steps_aside.eq(1), quad_row.eq(_QUADS)]
                    m.next = "IDLE"

            with m.State("SIZE"):
                # What the room holds beyond the last granule boundary is left to the next segment.
                beyond = (place + room) & message.granule_mask
                single = remaining <= room
                size = Mux(single, remaining, room - beyond)
                with m.If((row.mo == 0) & numbered):
                    m.d.sync += row.msn.eq(row.msn + 1)
                m.d.comb += self.coming.eq(1)
                m.d.sync += [
                    ends.eq(~frame | single),
                    has_more.eq((frame & ~single) | (row.count != 1)),
                    length.eq(size),
                    needed.eq(size),
                    drained.eq(0),
                    segment_taken.eq(0),
                    opening_taken.eq(0),
                    peer_word.eq(PORT),
                    peer_known.eq(0),
                ]
                m.next = "EMIT"

            with m.State("EMIT"):
                opens = frame & is_read & ~opening_taken
                opening_done = ~opens | (self.read_openings.ready & peer_known)
                read_done = ~frame | (needed == 0) | self.reads.ready
                m.d.comb += [
                    offers.eq(1),
                    peer_asks.eq(is_read),
                    self.read_openings.valid.eq(opens & peer_known),
                    self.reads.valid.eq(frame & (needed != 0)),
                ]
                m.d.sync += opening_taken.eq(opening_done)
                with m.If(self.read_openings.valid & self.read_openings.ready):
                    m.d.sync += opening.eq(_OPENING_CYCLES)
                with m.If(self.reads.valid & self.reads.ready):
                    m.d.sync += [
                        needed.eq(Mux(enough, 0, needed - left)),
                        octet.eq(octet + job.length),
                        drained.eq(left == needed),
                        row.begun.eq(row.begun + needed),
                    ]
                with m.If(self.reads.valid & self.reads.ready & ~enough):
                    m.d.sync += [row.piece.eq(row.piece + 1), row.begun.eq(0)]
                    m.next = "NEXT_PIECE"
                with m.Elif(segment_done & read_done & opening_done):
                    m.d.sync += [concludes.eq(1), turn_again.eq(has_more)]
                    m.next = "END"

            with m.State("NEXT_PIECE"):
                m.d.comb += [offers.eq(1), finds.eq(1)]
                with m.If(~self.pieces.valid):
                    m.next = "NEXT_LOAD"

            with m.State("NEXT_LOAD"):
                m.d.comb += offers.eq(1)
                m.d.sync += [
                    address.eq(piece_read.data.address),
                    left.eq(piece_read.data.length),
                ]
                m.next = "EMIT"

            with m.State("END"):
                m.next = "IDLE"
        with m.If(concludes):
            m.d.comb += [
                charged.valid.eq(frame),
                msn_write.en.eq(ends),
                row_write.data.eq(row),
                row_write.data.mo.eq(Mux(ends, 0, row.mo + length)),
                row_write.en.eq(1),
            ]
            with m.If(ends | drained):
                m.d.comb += row_write.data.begun.eq(0)
            with m.If(ends):
                m.d.comb += [
                    row_write.data.piece.eq(0),
                    row_write.data.head.eq(follower.slot),
                    row_write.data.head_epoch.eq(follower.epoch),
                    row_write.data.count.eq(row.count - 1),
                ]
            with m.Elif(drained):
                m.d.comb += row_write.data.piece.eq(row.piece + 1)
        with m.If(qp_looked_up):
            m.d.sync += [
                sends.eq(
                    (self.qp.row.state == QpState.RTS)
                    & self.enable
                    & ~(owner.responds & self.failed_qps.bit_select(owner.qpn, 1))
                ),
                in_reset.eq(self.qp.row.state == QpState.RESET),
                udp_port.eq(self.qp.row.udp_port),
                mtu.eq(clamped_mtu(self._parameters, self.qp.row.path_mtu)),
            ]
        return m

    @staticmethod
    def _headers(message):
        """Octets of a frame that are not payload."""
        octets = 0
        for opcode, overhead in OVERHEAD.items():
            octets = Mux(message.opcode == opcode, ETHERNET.size + overhead, octets)
        return octets + Mux(message.ipv6, IPV6_OVERHEAD, 0) + Mux(message.vlan_valid, VLAN.size, 0)
