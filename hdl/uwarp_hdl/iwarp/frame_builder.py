"""Frame builder: header and payload into the frame buffer, checksum and CRC beside it.

::

    segments --> header words --+--> word --> frame buffer
    payload  -------------------+      |
                                       +--> CRC32c and UDP checksum --> frames

A word a cycle, and one cycle between frames. A frame is announced 11 cycles after its last word;
by then the builder is on the next one. CRC and UDP checksum are not in the buffer: the sender
inserts them.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters, Status
from uwarp.wire import (
    DDP_LAST,
    DDP_TAGGED,
    DDP_VERSION,
    ETHERNET,
    IMMEDIATE,
    IPV4,
    RDMAP_IMMEDIATE,
    RDMAP_SOLICITED,
    RDMAP_VERSION,
    RECORD,
    TAGGED,
    UNTAGGED,
    Opcode,
)
from uwarp.wire.segment import header_size

from ..layouts import PortConfig
from ..net.header import HEADER_OCTETS, UdpHeader, header_octets
from ..stream.queue import Queue
from .frame_check import FrameCheck, FrameEnd
from .payload_reader import PayloadWord
from .scheduler import slot_count, slot_width
from .segment import segment_layout

__all__ = ["FRAMES", "FrameBuilder", "buffer_words", "done_layout"]

#: Frames and completions between the builder's start and the end of their way.
FRAMES = 16


def frame_words(parameters: Parameters) -> int:
    """Words of the longest frame."""
    return -(-(ETHERNET.size + parameters.max_mtu) // 8)


def buffer_words(parameters: Parameters) -> int:
    """Words of the frame buffer: two of the longest frames, and up to a power of two."""
    return 1 << (2 * frame_words(parameters) - 1).bit_length()


def done_layout(parameters: Parameters) -> data.StructLayout:
    """What the completion of a message needs."""
    members = segment_layout(parameters).members
    names = ("slot", "qpn", "cq", "index", "status", "opcode", "signaled", "discard")
    names += ("mlen", "msn", "stag", "to", "mo")
    return data.StructLayout({name: members[name] for name in names})


class FrameBuilder(wiring.Component):
    """Build frames in the order of the segments.

    A frame with a payload error is taken back out of the buffer, and so are later ones of its
    message; the message then ends with GENERAL_ERR.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    config : In(PortConfig)
    segments : In(stream of segment_layout)
    payload : In(stream of PayloadWord)
    write_enable, write_address, write_data : Out
        To the frame buffer. A frame begins where the one before ended, rounded up to a word.
    tail : In
        First word of the buffer that is still in use; one bit more than an address.
    frames : Out(stream of FrameEnd)
    done : Out(stream of done_layout)
        One for each FrameEnd with ``completes``, offered no later than that.
    finished : In(2)
        Number of FrameEnds that are through: the last beat has left, the completion is written.
    failed_slot, failed : In, Out(1)
        Whether a payload read of the slot's message has failed.
    busy : Out(1)
        Memory is being cleared after a reset.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        address_width = (buffer_words(parameters) - 1).bit_length()
        super().__init__(
            {
                "config": In(PortConfig),
                "segments": In(stream.Signature(segment_layout(parameters))),
                "payload": In(stream.Signature(PayloadWord)),
                "write_enable": Out(1),
                "write_address": Out(address_width),
                "write_data": Out(64),
                "tail": In(address_width + 1),
                "frames": Out(stream.Signature(FrameEnd)),
                "done": Out(stream.Signature(done_layout(parameters))),
                "finished": In(2),
                "failed_slot": In(slot_width(parameters)),
                "failed": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        depth = buffer_words(self._parameters)
        n_slots = slot_count(self._parameters)
        m.submodules.frame_queue = frame_queue = Queue(FrameEnd, FRAMES)
        m.submodules.done_queue = done_queue = Queue(self.done.p.shape(), FRAMES)
        m.submodules.marks = marks = Memory(shape=1, depth=n_slots, init=[])
        mark_read = marks.read_port(domain="comb")
        mark_look = marks.read_port(domain="comb")
        mark_write = marks.write_port()
        wiring.connect(m, frame_queue.o, wiring.flipped(self.frames))
        wiring.connect(m, done_queue.o, wiring.flipped(self.done))

        segment = Signal(self.segments.p.shape())
        header = self._header(m, segment)
        header_words = Signal(4)
        index = Signal(4)
        header_word = Signal(64)
        shares = Signal()  # the payload's first word holds the header's last octets
        head = Signal(len(self.tail))
        cursor = Signal(len(self.write_address))
        under_way = Signal(range(FRAMES + 1))
        sweep = Signal(range(n_slots))

        start = Signal()
        word = Signal(64)
        word_valid = Signal()
        end = Signal()
        bad = Signal()
        m.d.comb += [
            header_word.eq(header.word_select(index, 64)),
            mark_look.addr.eq(self.failed_slot),
            self.failed.eq(mark_look.data),
            mark_read.addr.eq(segment.slot),
            mark_write.addr.eq(segment.slot),
            mark_write.data.eq(bad & ~segment.last),
            mark_write.en.eq(end),
        ]
        m.d.sync += under_way.eq(under_way + start - self.finished)

        with m.FSM(init="CLEAR"):
            with m.State("CLEAR"):
                m.d.comb += [
                    self.busy.eq(1),
                    mark_write.addr.eq(sweep),
                    mark_write.data.eq(0),
                    mark_write.en.eq(1),
                ]
                m.d.sync += sweep.eq(sweep + 1)
                with m.If(sweep == n_slots - 1):
                    m.next = "IDLE"

            with m.State("IDLE"):
                used = (head - self.tail)[: len(head)]
                m.d.comb += self.segments.ready.eq(
                    (under_way != FRAMES) & (used <= depth - frame_words(self._parameters))
                )
                m.d.sync += [
                    segment.eq(self.segments.p),
                    index.eq(0),
                    cursor.eq(head),
                    header_words.eq(self._header_words(self.segments.p)),
                ]
                with m.If(self.segments.valid & self.segments.ready):
                    m.d.comb += start.eq(1)
                    with m.If(self.segments.p.frame):
                        m.next = "HEADER"
                    with m.Else():
                        m.next = "MARK"

            with m.State("HEADER"):
                m.d.comb += [
                    word.eq(header_word),
                    word_valid.eq(1),
                ]
                m.d.sync += [
                    index.eq(index + 1),
                    cursor.eq(cursor + 1),
                    shares.eq(segment.opcode == Opcode.SEND),
                ]
                with m.If(index == header_words - 1):
                    with m.If(segment.length == 0):
                        m.d.comb += end.eq(1)
                        m.next = "IDLE"
                    with m.Else():
                        m.next = "PAYLOAD"

            with m.State("PAYLOAD"):
                m.d.comb += [
                    word.eq(self.payload.p.data),
                    word_valid.eq(self.payload.valid),
                    self.payload.ready.eq(1),
                ]
                with m.If(shares):
                    m.d.comb += word[:32].eq(header_word[:32])
                with m.If(self.payload.valid):
                    m.d.sync += [cursor.eq(cursor + 1), shares.eq(0)]
                    with m.If(self.payload.p.last):
                        m.d.comb += [
                            end.eq(1),
                            bad.eq(mark_read.data | self.payload.p.error),
                        ]
                        m.next = "IDLE"

            with m.State("MARK"):
                m.d.comb += end.eq(1)
                m.next = "IDLE"

        good = segment.frame & ~bad
        with m.If(end & good):
            m.d.sync += head.eq(head + ((segment.octets + 7) >> 3))

        done = done_queue.i
        m.d.comb += [
            *(done.p[name].eq(segment[name]) for name in done.p.shape().members),
            done.valid.eq(end & segment.last),
        ]
        with m.If(bad):
            m.d.comb += done.p.status.eq(Status.GENERAL_ERR)

        m.submodules.check = check = FrameCheck()
        end_valid = Signal()
        m.d.sync += [
            self.write_enable.eq(word_valid),
            self.write_address.eq(cursor),
            self.write_data.eq(word),
            check.position.eq(index),
            check.udp_length.eq(segment.octets - (ETHERNET.size + IPV4.size)),
            check.end.octets.eq(segment.octets),
            check.end.frame.eq(good),
            check.end.completes.eq(segment.last),
            end_valid.eq(end),
        ]
        m.d.comb += [
            check.valid.eq(self.write_enable),
            check.word.eq(self.write_data),
            check.end_valid.eq(end_valid),
            frame_queue.i.p.eq(check.o),
            frame_queue.i.valid.eq(check.o_valid),
        ]
        return m

    @staticmethod
    def _header_words(segment):
        """Words before the payload's. A Send's header shares its last word with the payload."""
        sizes = [
            (segment.opcode == opcode, (HEADER_OCTETS + header_size(opcode)) // 8)
            for opcode in (Opcode.WRITE, Opcode.WRITE_RECORD, Opcode.SEND_IMMEDIATE, Opcode.SEND)
        ]
        words = 0
        for matches, size in sizes:
            words = Mux(matches, size, words)
        return words + ((segment.opcode == Opcode.SEND) & (segment.length == 0))

    def _header(self, m, segment):
        """All octets of the header."""
        m.submodules.udp = udp = UdpHeader()
        tagged = Signal()
        extended = Signal()
        opcode = Signal(4)
        m.d.comb += [
            tagged.eq((segment.opcode == Opcode.WRITE) | (segment.opcode == Opcode.WRITE_RECORD)),
            extended.eq(
                (segment.opcode == Opcode.WRITE_RECORD) | (segment.opcode == Opcode.SEND_IMMEDIATE)
            ),
            opcode.eq(segment.opcode),
            udp.i.dest_mac.eq(segment.dest_mac),
            udp.i.source_mac.eq(self.config.mac),
            udp.i.traffic_class.eq(segment.traffic_class),
            udp.i.hop_limit.eq(segment.hop_limit),
            udp.i.source_ip.eq(self.config.ipv4),
            udp.i.dest_ip.eq(segment.dest_ip),
            udp.i.source_port.eq(segment.udp_port),
            udp.i.dest_port.eq(segment.dest_port),
            udp.i.ip_length.eq(segment.octets - ETHERNET.size),
            udp.i.udp_length.eq(segment.octets - (ETHERNET.size + IPV4.size)),
        ]
        with m.If((segment.opcode == Opcode.SEND) & segment.solicited):
            m.d.comb += opcode.eq(Opcode.SEND_SOLICITED)
        control = {
            "ddp": DDP_VERSION | Mux(tagged, DDP_TAGGED, 0) | Mux(segment.last, DDP_LAST, 0),
            "rdmap": RDMAP_VERSION
            | Mux(extended & segment.solicited, RDMAP_SOLICITED, 0)
            | Mux(extended & segment.immediate_valid, RDMAP_IMMEDIATE, 0)
            | opcode,
        }
        record = {"msn": segment.msn, "mo": segment.mo, "mlen": segment.mlen}
        tagged_octets = Cat(
            header_octets(TAGGED, **control, stag=segment.stag, to=segment.to),
            header_octets(RECORD, **record, immediate=segment.immediate),
        )
        untagged_octets = Cat(
            header_octets(
                UNTAGGED, **control, rsvdulp=segment.mlen, msn=segment.msn, mo=segment.mo
            ),
            header_octets(IMMEDIATE, immediate=segment.immediate),
        )
        return Cat(udp.o, Mux(tagged, tagged_octets, untagged_octets))
