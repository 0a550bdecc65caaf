"""Segmenter: messages become datagrams, one from each QP in turn (device behaviour, 7.1 to 7.4).

::

    messages --> message memory, row = slot --+--> arithmetic --+--> segments, to the frame builder
          +--> list of the QP's slots         |                 +--> reads, to the payload reader
                  |                           |
                  +--> QPs with messages <----+  back to the end if the QP has more

A datagram takes 6 cycles, a message that comes in 2 more: less than the 12 that the smallest frame
of a Write-Record takes on the wire. Messages of a QP leave in the order in which they came.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters, QpState, Status
from uwarp.wire import ETHERNET, TAGGED_OPCODES, Opcode

from ..interfaces import TableReadSignature
from ..layouts import QP_ROW
from ..stream.queue import Queue
from .fetch import LENGTH_WIDTH, OVERHEAD, STATUS_WIDTH, message_layout
from .scheduler import EPOCH_WIDTH, qp_width, slot_count, slot_width

__all__ = ["ReadJob", "Segmenter", "segment_layout"]

_COPIED = (
    "slot",
    "qpn",
    "cq",
    "index",
    "opcode",
    "signaled",
    "immediate_valid",
    "solicited",
    "stag",
    "dest_ip",
    "dest_port",
    "dest_mac",
    "traffic_class",
    "hop_limit",
    "udp_port",
)


def segment_layout(parameters: Parameters) -> data.StructLayout:
    """One turn of a message.

    With ``frame`` a frame of ``octets`` octets goes out, ``length`` of them payload. With ``last``
    the message ends here: with ``status``, or without a completion on ``discard``.
    """
    message = message_layout(parameters).members
    return data.StructLayout(
        {name: message[name] for name in _COPIED}
        | {
            "frame": 1,
            "last": 1,
            "discard": 1,
            "status": STATUS_WIDTH,
            "length": LENGTH_WIDTH,
            "octets": LENGTH_WIDTH,
            "to": 64,
            "msn": 32,
            "mo": 32,
            "mlen": 32,
            "immediate": 32,
            "dest_ip": 128,
            "vlan_valid": 1,
            "vlan": 16,
            "ipv6": 1,
            "opens": 1,
            "silent": 1,
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

    A message whose QP was reset since its fetch ends with ``discard``. One whose slot is ``failed``
    ends with GENERAL_ERR. One whose QP is not in RTS waits, and with it the QP's later ones.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    messages : In(stream of message_layout)
    resets : In(stream of QPN)
        The QP's messages so far are discarded; its next MSN is 1.
    segments : Out(stream of segment_layout)
    reads : Out(stream of ReadJob)
        One for each segment of one octet or more, in the segments' order.
    qp : Out(TableReadSignature)
    qp_taken : Out(1)
        ``qp.index`` is in use in this cycle.
    failed_slot, failed : Out, In(1)
        ``failed`` answers ``failed_slot`` in the same cycle: a payload read of that message failed.
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
                "resets": In(stream.Signature(width)),
                "segments": Out(stream.Signature(segment_layout(parameters))),
                "reads": Out(stream.Signature(ReadJob)),
                "qp": Out(TableReadSignature(QP_ROW, width)),
                "qp_taken": Out(1),
                "failed_slot": Out(slot_width(parameters)),
                "failed": In(1),
                "enable": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n_qp, n_slots = self._parameters.n_qp, slot_count(self._parameters)
        slot_bits = slot_width(self._parameters)
        row_layout = data.StructLayout(
            {
                "head": slot_bits,
                "tail": slot_bits,
                "count": range(n_slots + 1),
                "epoch": EPOCH_WIDTH,
                "msn": 32,  # of the last message that had one
                "mo": 32,  # of the head message's next segment
            }
        )
        m.submodules.rows = rows = Memory(shape=row_layout, depth=n_qp, init=[])
        row_read, row_write = rows.read_port(), rows.write_port()
        layout = message_layout(self._parameters)
        m.submodules.store = store = Memory(shape=layout, depth=n_slots, init=[])
        store_read, store_write = store.read_port(), store.write_port()
        m.submodules.links = links = Memory(shape=slot_bits, depth=n_slots, init=[])
        link_read, link_write = links.read_port(), links.write_port()
        m.submodules.turns = turns = Queue(qp_width(self._parameters), n_qp)

        arrival = self.messages.p
        arrived = Signal(slot_bits)
        qpn = Signal(qp_width(self._parameters))
        row = Signal(row_layout)
        follower = Signal(slot_bits)
        message = Signal(layout)
        sends = Signal()
        stale = Signal()
        failed = Signal()
        remaining = Signal(32)
        to = Signal(64)
        # Segments end on multiples of the granule of it.
        place = Signal(16)
        address = Signal(64)
        single = Signal()
        length = Signal(LENGTH_WIDTH)
        segment_taken = Signal()
        read_taken = Signal()
        sweep = Signal(range(n_qp))

        m.d.comb += [
            store_write.addr.eq(arrival.slot),
            store_write.data.eq(arrival),
            link_write.addr.eq(row_read.data.tail),
            link_write.data.eq(arrived),
            row_write.addr.eq(qpn),
            turns.i.p.eq(qpn),
            self.qp.index.eq(turns.o.p),
            store_read.addr.eq(row_read.data.head),
            link_read.addr.eq(row_read.data.head),
            self.failed_slot.eq(row.head),
        ]

        # The segment, from registers.
        segment = self.segments.p
        sound = Signal()
        frame = Signal()
        first = Signal()
        numbered = Signal()
        ends = Signal()
        tagged = Signal()
        m.d.comb += [
            tagged.eq(Cat(message.opcode == opcode for opcode in TAGGED_OPCODES).any()),
            sound.eq(~stale & (message.status == Status.SUCCESS)),
            frame.eq(sound & ~failed),
            first.eq(row.mo == 0),
            numbered.eq(sound & (message.opcode != Opcode.WRITE)),
            ends.eq(~frame | single),
            *(segment[name].eq(message[name]) for name in _COPIED),
            segment.frame.eq(frame),
            segment.last.eq(ends),
            segment.discard.eq(stale),
            segment.status.eq(Mux(failed, Status.GENERAL_ERR, message.status)),
            segment.length.eq(length),
            segment.to.eq(to),
            segment.mo.eq(row.mo),
            segment.mlen.eq(message.length),
            segment.msn.eq(Mux(numbered, row.msn, 0)),
            segment.immediate.eq(Mux(message.immediate_valid, message.immediate, 0)),
            self.reads.p.address.eq(address),
            self.reads.p.length.eq(length),
            self.reads.p.qpn.eq(message.qpn),
            self.reads.p.place.eq(Mux(message.opcode == Opcode.SEND, 4, 0)),
            self.reads.p.final.eq(1),
        ]
        with m.Switch(message.opcode):
            for opcode, overhead in OVERHEAD.items():
                with m.Case(opcode):
                    m.d.comb += segment.octets.eq(length + (ETHERNET.size + overhead))
        with m.If(message.opcode == Opcode.SEND_IMMEDIATE):
            m.d.comb += segment.immediate.eq(message.immediate)

        with m.FSM(init="CLEAR"):
            with m.State("CLEAR"):
                m.d.comb += [self.busy.eq(1), row_write.addr.eq(sweep), row_write.en.eq(1)]
                m.d.sync += sweep.eq(sweep + 1)
                with m.If(sweep == n_qp - 1):
                    m.next = "IDLE"

            with m.State("IDLE"):
                with m.If(self.resets.valid):
                    m.d.comb += [self.resets.ready.eq(1), row_read.addr.eq(self.resets.p)]
                    m.d.sync += qpn.eq(self.resets.p)
                    m.next = "RESET"
                with m.Elif(self.messages.valid):
                    m.d.comb += [
                        self.messages.ready.eq(1),
                        row_read.addr.eq(arrival.qpn),
                        store_write.en.eq(1),
                    ]
                    m.d.sync += [qpn.eq(arrival.qpn), arrived.eq(arrival.slot)]
                    m.next = "APPEND"
                with m.Elif(turns.o.valid):
                    m.d.comb += [
                        row_read.addr.eq(turns.o.p),
                        turns.o.ready.eq(1),
                        self.qp_taken.eq(1),
                    ]
                    m.d.sync += qpn.eq(turns.o.p)
                    m.next = "LIST"

            with m.State("RESET"):
                m.d.comb += [
                    row_write.data.eq(row_read.data),
                    row_write.data.epoch.eq(row_read.data.epoch + 1),
                    row_write.data.msn.eq(0),
                    row_write.en.eq(1),
                ]
                m.next = "IDLE"

            with m.State("APPEND"):
                empty = row_read.data.count == 0
                m.d.comb += [
                    row_write.data.eq(row_read.data),
                    row_write.data.tail.eq(arrived),
                    row_write.data.count.eq(row_read.data.count + 1),
                    row_write.en.eq(1),
                    link_write.en.eq(~empty),
                    turns.i.valid.eq(empty),
                ]
                with m.If(empty):
                    m.d.comb += row_write.data.head.eq(arrived)
                m.next = "IDLE"

            with m.State("LIST"):
                m.d.sync += [
                    row.eq(row_read.data),
                    sends.eq((self.qp.row.state == QpState.RTS) & self.enable),
                ]
                m.next = "LOAD"

            with m.State("LOAD"):
                m.d.sync += [
                    message.eq(store_read.data),
                    follower.eq(link_read.data),
                    stale.eq(store_read.data.epoch != row.epoch),
                    failed.eq(self.failed),
                ]
                m.next = "OFFSET"

            with m.State("OFFSET"):
                m.d.sync += [
                    remaining.eq(message.length - row.mo),
                    to.eq(message.remote_to + row.mo),
                    place.eq(Mux(tagged, message.remote_to[:16], 0) + row.mo[:16]),
                    address.eq(message.address + row.mo),
                ]
                with m.If(first & numbered):
                    m.d.sync += row.msn.eq(row.msn + 1)
                with m.If(~stale & ~sends):
                    m.d.comb += turns.i.valid.eq(1)
                    m.next = "IDLE"
                with m.Else():
                    m.next = "SIZE"

            with m.State("SIZE"):
                # What the room holds beyond the last granule boundary is left to the next segment.
                beyond = (place + message.room) & message.granule_mask
                m.d.sync += [
                    single.eq(remaining <= message.room),
                    length.eq(Mux(remaining <= message.room, remaining, message.room - beyond)),
                    segment_taken.eq(0),
                    read_taken.eq(0),
                ]
                m.next = "EMIT"

            with m.State("EMIT"):
                segment_done = segment_taken | self.segments.ready
                read_done = read_taken | self.reads.ready | ~frame | (length == 0)
                m.d.comb += [
                    self.segments.valid.eq(~segment_taken),
                    self.reads.valid.eq(~read_taken & frame & (length != 0)),
                ]
                m.d.sync += [segment_taken.eq(segment_done), read_taken.eq(read_done)]
                with m.If(segment_done & read_done):
                    m.d.comb += [
                        row_write.data.eq(row),
                        row_write.data.mo.eq(Mux(ends, 0, row.mo + length)),
                        row_write.en.eq(1),
                        turns.i.valid.eq(~ends | (row.count != 1)),
                    ]
                    with m.If(ends):
                        m.d.comb += [
                            row_write.data.head.eq(follower),
                            row_write.data.count.eq(row.count - 1),
                        ]
                    m.next = "IDLE"
        return m
