"""Segmenter: messages become datagrams, one from each QP in turn (device behaviour, 7.1 to 7.4).

::

    messages --> message memory, row = slot --+--> arithmetic --+--> segments, to the frame builder
          +--> list of the QP's slots         |                 +--> reads, to the payload reader
    pieces ----> piece memory ----------------+                 +--> openings of Reads
                  |                           |
                  +--> lists with messages <--+  back to the end if the list has more

A datagram takes 8 cycles, and 3 more for each further piece that it is gathered from; a message
that comes in takes 3 more. The smallest frame of a Write-Record takes 12 on the wire.

A QP has two lists, its own messages and its responses, each with turns of its own: a Read that
waits for a tracker must not hold back the responses that peers need to free theirs. Messages of a
list leave in the order in which they came. A list whose QP has an empty bucket stands aside until
that is filled; meanwhile it costs the others no turns.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp.contract import MAX_SGE, Parameters, QpState, Status
from uwarp.wire import ETHERNET, TAGGED_OPCODES, VLAN, Opcode

from ..interfaces import TableReadSignature
from ..layouts import QP_ROW, ReadOpening, mapped_ipv4
from ..stream.queue import Queue
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
from .token_bucket import charge_layout

__all__ = ["ReadJob", "Segmenter", "segment_layout"]

_COPIED = (
    "slot",
    "qpn",
    "cq",
    "index",
    "opcode",
    "signaled",
    "silent",
    "immediate_valid",
    "solicited",
    "stag",
    "ipv6",
    "dest_ip",
    "dest_port",
    "dest_mac",
    "vlan_valid",
    "vlan",
    "traffic_class",
    "hop_limit",
)

#: Cycles after the answer to an opening until ``trackers_full`` says so.
_OPENING_CYCLES = 8


def segment_layout(parameters: Parameters) -> data.StructLayout:
    """One turn of a message.

    With ``frame`` a frame of ``octets`` octets goes out, ``length`` of them payload; one that
    ``opens`` only when its tracker is open. With ``last`` the message ends here: with ``status``,
    or without a completion on ``discard`` or of a response (``silent``). Of a Read ``stag`` and
    ``to`` are the source's, ``immediate`` and ``sink_to`` the sink's. ``dest_ip`` is an IPv4
    address in its low 32 bits, unless ``ipv6``.
    """
    message = message_layout(parameters).members
    return data.StructLayout(
        {name: message[name] for name in _COPIED}
        | {
            "frame": 1,
            "last": 1,
            "discard": 1,
            "opens": 1,
            "status": STATUS_WIDTH,
            "length": LENGTH_WIDTH,
            "octets": LENGTH_WIDTH,
            "udp_port": 16,
            "to": 64,
            "msn": 32,
            "mo": 32,
            "mlen": 32,
            "immediate": 32,
            "sink_to": 64,
        }
    )


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
    pieces : In(piece_layout)
        Of messages that come later, but for responses: theirs comes with them.
    resets : In(stream of QPN)
        The QP's messages so far are discarded; its next MSN is 1.
    segments : Out(stream of segment_layout)
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
                "pieces": In(piece_layout(parameters)),
                "resets": In(stream.Signature(width)),
                "segments": Out(stream.Signature(segment_layout(parameters))),
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
            {name: shape for name, shape in members.items() if name != "address"}
        )
        m.submodules.store = store = Memory(shape=layout, depth=n_slots, init=[])
        store_read, store_write = store.read_port(), store.write_port()
        piece_shape = data.StructLayout({"address": 64, "length": 32})
        m.submodules.piece_store = piece_store = Memory(
            shape=piece_shape, depth=1 << slot_bits + piece_bits, init=[]
        )
        piece_read, piece_write = piece_store.read_port(), piece_store.write_port()
        m.submodules.links = links = Memory(shape=slot_bits, depth=n_slots, init=[])
        link_read, link_write = links.read_port(), links.write_port()
        m.submodules.turns = turns = Queue(list_layout, n_lists)
        m.submodules.aside = aside = Memory(shape=1, depth=n_lists, init=[])
        aside_look, aside_write = aside.read_port(domain="comb"), aside.write_port()

        arrival = self.messages.p
        arrived = Signal(slot_bits)  # its slot, a cycle late
        owner = Signal(list_layout)
        row = Signal(row_layout)
        follower = Signal(slot_bits)
        message = Signal(layout)
        piece = Signal(piece_shape)
        sends = Signal()
        in_reset = Signal()
        withdrawn = Signal()
        stale = Signal()
        failed = Signal()
        remaining = Signal(32)
        to = Signal(64)
        # Segments end on multiples of the granule of it.
        place = Signal(16)
        address = Signal(64)
        left = Signal(32)  # octets of the piece that are not sent
        needed = Signal(LENGTH_WIDTH)  # octets of the segment that are not asked for
        octet = Signal(3)  # of a frame word, where they go
        udp_port = Signal(16)
        mtu = Signal(LENGTH_WIDTH)
        room = Signal(LENGTH_WIDTH)
        headers = Signal(range(256))
        single = Signal()
        length = Signal(LENGTH_WIDTH)
        offers = Signal()  # the segment, if it is not taken
        segment_taken = Signal()
        opening_taken = Signal()
        sweep = Signal(range(n_lists))
        turn_again = Signal()
        steps_aside = Signal()

        m.d.comb += [
            store_write.addr.eq(arrival.slot),
            *(
                store_write.data[name].eq(arrival[name])
                for name in layout.members
                if name != "epoch"
            ),
            store_write.data.epoch.eq(Mux(owner.responds, row.epoch, arrival.epoch)),
            link_write.addr.eq(row.tail),
            link_write.data.eq(arrived),
            row_write.addr.eq(owner),
            self.qp.index.eq(turns.o.p.qpn),
            self.turn.eq(owner.qpn),
            store_read.addr.eq(row.head),
            piece_read.addr.eq(Cat(row.piece, row.head)),
            link_read.addr.eq(row.head),
            self.failed_slot.eq(row.head),
            piece_write.addr.eq(Cat(self.pieces.index, self.pieces.slot)),
            piece_write.data.address.eq(self.pieces.address),
            piece_write.data.length.eq(self.pieces.length),
            piece_write.en.eq(self.pieces.valid),
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
        sound = Signal()
        frame = Signal()
        first = Signal()
        numbered = Signal()
        ends = Signal()
        tagged = Signal()
        reads = Signal()
        enough = Signal()
        m.d.comb += [
            tagged.eq(Cat(message.opcode == opcode for opcode in TAGGED_OPCODES).any()),
            reads.eq(message.opcode == Opcode.READ_REQUEST),
            sound.eq(~stale & (message.status == Status.SUCCESS)),
            frame.eq(sound & ~failed),
            first.eq(row.mo == 0),
            numbered.eq(sound & (message.opcode != Opcode.WRITE) & ~message.silent),
            ends.eq(~frame | single),
            *(segment[name].eq(message[name]) for name in _COPIED),
            segment.frame.eq(frame),
            segment.last.eq(ends),
            segment.discard.eq(stale),
            segment.opens.eq(reads),
            segment.status.eq(Mux(failed, Status.GENERAL_ERR, message.status)),
            segment.length.eq(length),
            segment.octets.eq(length + headers),
            segment.udp_port.eq(udp_port),
            segment.to.eq(to),
            segment.mo.eq(row.mo),
            segment.mlen.eq(message.length),
            segment.msn.eq(Mux(message.silent, message.immediate, Mux(numbered, row.msn, 0))),
            segment.immediate.eq(
                Mux(
                    message.immediate_valid | reads | (message.opcode == Opcode.SEND_IMMEDIATE),
                    message.immediate,
                    0,
                )
            ),
            segment.sink_to.eq(address),
            enough.eq(left >= needed),
            job.address.eq(address),
            job.length.eq(Mux(enough, needed, left)),
            job.place.eq(octet),
            job.final.eq(enough),
            job.qpn.eq(message.qpn),
        ]
        segment_done = segment_taken | self.segments.ready
        m.d.comb += self.segments.valid.eq(offers & ~segment_taken)
        with m.If(offers):
            m.d.sync += segment_taken.eq(segment_done)
        asked = self.read_openings.p
        m.d.comb += [
            asked.qpn.eq(message.qpn),
            asked.msn.eq(row.msn),
            asked.lkey.eq(message.immediate),
            asked.addr.eq(address),
            asked.mlen.eq(message.length),
            asked.source_ip.eq(
                Mux(message.ipv6, message.dest_ip, mapped_ipv4(message.dest_ip[:32]))
            ),
            asked.source_port.eq(message.dest_port),
            asked.wqe_index.eq(message.index),
        ]
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
        with m.Elif(self.busy):
            m.d.comb += [aside_write.addr.eq(sweep), aside_write.en.eq(1)]
        with m.Elif(self.wakes.valid):
            m.d.comb += [
                turns.i.p.eq(woken),
                turns.i.valid.eq(aside_look.data),
                aside_write.addr.eq(woken),
                aside_write.en.eq(1),
                self.wakes.ready.eq(wake_step),
            ]
            m.d.sync += wake_step.eq(~wake_step)

        with m.FSM(init="CLEAR"):
            with m.State("CLEAR"):
                m.d.comb += [self.busy.eq(1), row_write.addr.eq(sweep), row_write.en.eq(1)]
                m.d.sync += sweep.eq(sweep + 1)
                with m.If(sweep == n_lists - 1):
                    m.next = "IDLE"

            with m.State("IDLE"):
                m.d.comb += self.between.eq(1)
                with m.If(self.resets.valid):
                    m.d.comb += [self.resets.ready.eq(1), row_read.addr.eq(self.resets.p)]
                    m.d.sync += [owner.qpn.eq(self.resets.p), owner.responds.eq(0)]
                    m.next = "RESET"
                with m.Elif(self.messages.valid):
                    m.d.comb += row_read.addr.eq(Cat(arrival.qpn, arrival.silent))
                    m.d.sync += [owner.qpn.eq(arrival.qpn), owner.responds.eq(arrival.silent)]
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
                    row_read.addr.eq(Cat(owner.qpn, Const(1, 1))),
                ]
                m.d.sync += owner.responds.eq(1)
                m.next = "RESET"
                with m.If(owner.responds):
                    m.next = "IDLE"

            with m.State("APPEND"):
                m.d.sync += [row.eq(row_read.data), arrived.eq(arrival.slot)]
                # Taken as early as can be: the fetch of the next one waits for it.
                with m.If(~arrival.silent):
                    m.d.comb += [self.messages.ready.eq(1), store_write.en.eq(1)]
                m.next = "APPEND_ROW"

            with m.State("APPEND_ROW"):
                empty = row.count == 0
                # The piece of a response is written when no other is.
                with m.If(~(owner.responds & self.pieces.valid)):
                    m.d.comb += [
                        row_write.data.eq(row),
                        row_write.data.tail.eq(arrived),
                        row_write.data.count.eq(row.count + 1),
                        row_write.en.eq(1),
                        link_write.en.eq(~empty),
                        turn_again.eq(empty),
                    ]
                    with m.If(empty):
                        m.d.comb += row_write.data.head.eq(arrived)
                    with m.If(owner.responds):
                        m.d.comb += [
                            self.messages.ready.eq(1),
                            store_write.en.eq(1),
                            piece_write.addr.eq(Cat(Const(0, piece_bits), arrived)),
                            piece_write.data.address.eq(arrival.address),
                            piece_write.data.length.eq(arrival.length),
                            piece_write.en.eq(1),
                        ]
                    m.next = "IDLE"

            with m.State("LIST"):
                m.d.sync += [
                    row.eq(row_read.data),
                    sends.eq(
                        (self.qp.row.state == QpState.RTS)
                        & self.enable
                        & ~(owner.responds & self.failed_qps.bit_select(owner.qpn, 1))
                    ),
                    in_reset.eq(self.qp.row.state == QpState.RESET),
                    udp_port.eq(self.qp.row.udp_port),
                    mtu.eq(clamped_mtu(self._parameters, self.qp.row.path_mtu)),
                ]
                m.next = "FIND"

            with m.State("FIND"):
                m.next = "LOAD"

            with m.State("LOAD"):
                m.d.sync += [
                    message.eq(store_read.data),
                    piece.eq(piece_read.data),
                    follower.eq(link_read.data),
                    # A request may come just after the reset of its QP.
                    withdrawn.eq((owner.responds & in_reset) | self.dropped),
                    failed.eq(self.failed),
                ]
                m.next = "OFFSET"

            with m.State("OFFSET"):
                overhead = OVERHEAD[Opcode.READ_RESPONSE_RECORD]
                m.d.sync += [
                    remaining.eq(Mux(reads, 0, message.length - row.mo)),
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
                is_stale = withdrawn | (message.epoch != row.epoch)
                m.d.sync += stale.eq(is_stale)
                m.next = "SIZE"
                read_waits = (
                    reads
                    & (message.status == Status.SUCCESS)
                    & (self.trackers_full | (opening != 0))
                )
                with m.If(~is_stale & (~sends | read_waits)):
                    m.d.comb += turn_again.eq(1)
                    m.next = "IDLE"
                with m.Elif(~is_stale & self.dry):
                    m.d.comb += steps_aside.eq(1)
                    m.next = "IDLE"

            with m.State("SIZE"):
                # What the room holds beyond the last granule boundary is left to the next segment.
                beyond = (place + room) & message.granule_mask
                size = Mux(remaining <= room, remaining, room - beyond)
                with m.If(first & numbered):
                    m.d.sync += row.msn.eq(row.msn + 1)
                m.d.sync += [
                    single.eq(remaining <= room),
                    length.eq(size),
                    needed.eq(size),
                    segment_taken.eq(0),
                    opening_taken.eq(0),
                ]
                m.next = "EMIT"

            with m.State("EMIT"):
                opening_done = opening_taken | self.read_openings.ready | ~frame | ~reads
                read_done = ~frame | (needed == 0) | self.reads.ready
                m.d.comb += [
                    offers.eq(1),
                    self.read_openings.valid.eq(frame & reads & ~opening_taken),
                    self.reads.valid.eq(frame & (needed != 0)),
                ]
                m.d.sync += opening_taken.eq(opening_done)
                with m.If(self.read_openings.valid & self.read_openings.ready):
                    m.d.sync += opening.eq(_OPENING_CYCLES)
                with m.If(self.reads.valid & self.reads.ready):
                    m.d.sync += [
                        needed.eq(Mux(enough, 0, needed - left)),
                        octet.eq(octet + job.length),
                        left.eq(left - needed),
                        address.eq(address + needed),
                        row.begun.eq(row.begun + needed),
                    ]
                with m.If(self.reads.valid & self.reads.ready & ~enough):
                    m.d.sync += [row.piece.eq(row.piece + 1), row.begun.eq(0)]
                    m.next = "NEXT_PIECE"
                with m.Elif(segment_done & read_done & opening_done):
                    m.next = "END"

            with m.State("NEXT_PIECE"):
                m.d.comb += offers.eq(1)
                m.next = "NEXT_LOAD"

            with m.State("NEXT_LOAD"):
                m.d.comb += offers.eq(1)
                m.d.sync += [
                    address.eq(piece_read.data.address),
                    left.eq(piece_read.data.length),
                ]
                m.next = "EMIT"

            with m.State("END"):
                m.d.comb += [
                    charged.valid.eq(frame),
                    row_write.data.eq(row),
                    row_write.data.mo.eq(Mux(ends, 0, row.mo + length)),
                    row_write.en.eq(1),
                    turn_again.eq(~ends | (row.count != 1)),
                ]
                with m.If(ends | (left == 0)):
                    m.d.comb += row_write.data.begun.eq(0)
                with m.If(ends):
                    m.d.comb += [
                        row_write.data.piece.eq(0),
                        row_write.data.head.eq(follower),
                        row_write.data.count.eq(row.count - 1),
                    ]
                with m.Elif(left == 0):
                    m.d.comb += row_write.data.piece.eq(row.piece + 1)
                m.next = "IDLE"
        return m

    @staticmethod
    def _headers(message):
        """Octets of a frame that are not payload."""
        octets = 0
        for opcode, overhead in OVERHEAD.items():
            octets = Mux(message.opcode == opcode, ETHERNET.size + overhead, octets)
        return octets + Mux(message.ipv6, IPV6_OVERHEAD, 0) + Mux(message.vlan_valid, VLAN.size, 0)
