"""Frame builder: header and payload into the frame buffer, checksum and CRC beside it.

::

    segments, destinations --> header pairs --+--> pair --> frame buffer
    quads --> quad memory --------^           |      |
    payload ----------------------------------+      |
    opened --> answers                               +--> CRC32c and UDP checksum --> frames, checks

A pair of quads a cycle, and one cycle between frames; VLAN tag and IPv6 have a cycle each for an
odd quad. A segment that nothing is built beside waits 4 cycles for its destination. The payload
begins with a pair, but that of a Send with a high quad, after the header's last one. After an odd
quad the halves of a pair go to two words of the buffer, which takes both at once. A frame is
announced 8 cycles after its last word, and its checks come 8 after that; by then the builder is on
the next one. CRC and UDP checksum are not in the buffer: the sender inserts them.
"""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import Parameters, Status
from uwarp.wire import (
    DDP_LAST,
    DDP_TAGGED,
    DDP_VERSION,
    MAC_GROUP_BIT,
    RDMAP_IMMEDIATE,
    RDMAP_SOLICITED,
    RDMAP_VERSION,
    TAGGED_OPCODES,
    Opcode,
    least_size,
)

from ..data_register import data_register
from ..interfaces import TableReadSignature
from ..layouts import PortConfig, frame_words
from ..net.header import DDP_STEP, FIELDS_STEP, FrameHeader
from ..stream.ports import keep_apart
from ..stream.queue import Queue
from .destination import HIGH, LINK, LOW, PORT, LinkWord, PortWord, destination_address
from .fetch import OVERHEAD
from .frame_check import FrameCheck, FrameChecks, FrameEnd
from .payload_reader import PayloadWord
from .scheduler import all_slots, slot_width
from .segment import QUAD_ROWS, quads_layout, segment_layout

__all__ = ["FRAMES", "FrameBuilder", "buffer_words", "done_layout"]

#: Frames and completions between the builder's start and the end of their way.
FRAMES = 16

#: Answers to openings that can come before the builder asks for them: more than one for each Read
#: that waits for the builder, and one on either side of those.
ANSWERS = 64

#: Words that are free in the buffer, at least, when a frame begins: the longest header has 15.
_HEADER_ROOM = 16

#: Octets of the DDP header of each opcode, with what is no payload to the builder.
_HEADERS = {opcode: least_size(opcode) for opcode in OVERHEAD}
_TAGGED = [opcode for opcode in _HEADERS if opcode in TAGGED_OPCODES]


def buffer_words(parameters: Parameters) -> int:
    """Words of the frame buffer: one and a half of the longest frames, up to a power of two.

    A frame is written while the one before it leaves, as far behind that as there is room: so it is
    whole long before it is its turn, and the time until then makes up for memory's pauses.
    """
    return 1 << (frame_words(parameters) * 3 // 2 - 1).bit_length()


def done_layout(parameters: Parameters) -> data.StructLayout:
    """How a message ended. ``tracked`` if it is a Read whose CQE comes from its tracker, ``silent``
    if it is a response or a Terminate: it has none."""
    members = segment_layout(parameters).members
    names = ("slot", "status", "discard", "silent")
    return data.StructLayout({name: members[name] for name in names} | {"tracked": 1})


class FrameBuilder(wiring.Component):
    """Build frames in the order of the segments.

    A frame with a payload error is taken back out of the buffer, and so are later ones of its
    message; the message then ends with GENERAL_ERR. One that ``opens`` waits for the answer; it
    does not go out without a tracker, and its message ends with NO_TRACKER.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    config : In(PortConfig)
    segments : In(stream of segment_layout)
    coming, coming_slot, comes : In(1), In(slot), In(1)
        Until the next segment is offered there is none, and that is of this slot's message, if
        ``comes`` in the next cycle. Given ahead, it saves cycles.
    quads : In(quads_layout)
        Of each segment, row n no later than 2 + n cycles after it is offered.
    destination, destination_taken : Out(TableReadSignature), Out(1)
        Words of destinations, of two cycles before; the port is in use in this cycle.
    payload : In(stream of PayloadWord)
    opened, opened_ok : In(1)
        An answer to the opening of a segment that ``opens`` and has ``frame``: in the segments'
        order, before or after the segment. Fewer than ANSWERS can be ahead of it.
    write_low, write_high : Out(1)
    write_low_address, write_high_address, write_data : Out
        To the frame buffer, each half of a word to an address of its own. A frame begins where the
        one before ended, rounded up to a word. Of its last word the high half may not be written.
    tail : In
        First word of the buffer that is still in use; one bit more than an address.
    frames : Out(stream of FrameEnd)
    checks : Out(stream of FrameChecks)
        Of each FrameEnd with ``frame``, in their order, no later than 8 cycles after it is offered.
    done : Out(stream of done_layout)
        One for each FrameEnd with ``completes``, offered no later than that.
    finished : In(2)
        Number of FrameEnds that are through: the last beat has left, the completion is written.
    built : Out(1)
        Strobe, a cycle later: a segment is built, or will not be, and its payload read.
    failed_slot, failed : In, Out(1)
        Whether a payload read of the slot's message has failed. It may not be told in a cycle, but
        the message still ends as one that has.
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
                "coming": In(1),
                "coming_slot": In(slot_width(parameters)),
                "comes": In(1),
                "quads": In(quads_layout()),
                "destination": Out(TableReadSignature(64, destination_address(parameters).size)),
                "destination_taken": Out(1),
                "payload": In(stream.Signature(PayloadWord)),
                "opened": In(1),
                "opened_ok": In(1),
                "write_low": Out(1),
                "write_high": Out(1),
                "write_low_address": Out(address_width),
                "write_high_address": Out(address_width),
                "write_data": Out(64),
                "tail": In(address_width + 1),
                "frames": Out(stream.Signature(FrameEnd)),
                "checks": Out(stream.Signature(FrameChecks)),
                "done": Out(stream.Signature(done_layout(parameters))),
                "finished": In(2),
                "failed_slot": In(slot_width(parameters)),
                "failed": Out(1),
                "built": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        depth = buffer_words(self._parameters)
        n_slots = all_slots(self._parameters)
        # No more wait in any of them than are ``under_way``.
        m.submodules.frame_queue = frame_queue = Queue(
            FrameEnd, FRAMES, registered=False, bounded=False
        )
        m.submodules.check_queue = check_queue = Queue(
            FrameChecks, FRAMES, registered=False, bounded=False
        )
        m.submodules.done_queue = done_queue = Queue(
            self.done.p.shape(), FRAMES, registered=False, bounded=False
        )
        m.submodules.marks = marks = Memory(shape=1, depth=n_slots, init=[])
        mark_read = marks.read_port(domain="comb")
        mark_write = marks.write_port()
        wiring.connect(m, frame_queue.o, wiring.flipped(self.frames))
        wiring.connect(m, check_queue.o, wiring.flipped(self.checks))
        wiring.connect(m, done_queue.o, wiring.flipped(self.done))

        m.submodules.answers = answers = Memory(shape=1, depth=ANSWERS, init=[])
        answer_write, answer_read = answers.write_port(), answers.read_port(domain="comb")
        answered, answer, answer_taken = Signal(), Signal(), Signal()
        m.d.comb += [
            answer_write.data.eq(self.opened_ok),
            answer_write.en.eq(self.opened),
            answered.eq(answer_write.addr != answer_read.addr),
            answer.eq(answer_read.data),
        ]
        m.d.sync += [
            answer_write.addr.eq(answer_write.addr + self.opened),
            answer_read.addr.eq(answer_read.addr + (answer_taken & answered)),
        ]

        segment = Signal(self.segments.p.shape(), reset_less=True)
        own, group, refused = Signal(reset_less=True), Signal(), Signal()
        last_step = Signal(4, reset_less=True)
        shares = Signal()  # the pair after it holds the header's last octets
        head, head_next = Signal(len(self.tail)), Signal(len(self.tail), reset_less=True)
        # The state IDLE, and that with room for the longest header and all else that a start needs.
        idle, clear = Signal(), Signal()
        cursor = Signal(len(self.write_high_address), reset_less=True)
        odd = Signal()  # the word's first quad is written
        under_way = Signal(range(FRAMES + 1))
        marked = Signal(reset_less=True)  # the segment's message; known by the time of its payload
        sweep = Signal(range(n_slots))

        start = Signal()
        # The states HEADER and REST, in registers: what they count is far away. In HEADER, at
        # ``last_step``.
        heads, rests, at_last = Signal(), Signal(), Signal()
        word = Signal(64)
        word_valid = Signal()
        alone = Signal()  # only the high quad is of the frame
        end, ended = Signal(), Signal()
        bad, was_bad, marks_slot = Signal(), Signal(), Signal()
        begun = Signal(2)  # ``start`` one and two cycles ago
        m.d.sync += begun.eq(Cat(start, begun[0]))
        destination, destination_used, destination_ready = self._fetch_destination(m, start)
        header = self._header(m, segment, destination, start, begun)
        # Before it is known that one begins: until then it begins again and again.
        m.d.comb += header.start.eq(idle)
        # Either is 0 where the other is not: the pair after the header's, but for a quad that is
        # left, and the payload in the half where that is.
        payload_puts = Signal()
        m.d.comb += [
            word.eq(header.pair | (self.payload.p.data & payload_puts.replicate(64))),
            header.left.eq(shares),
            # Whoever does not hear of a mark cuts a segment in vain, as before it is there.
            mark_read.addr.eq(Mux(begun[0], segment.slot, self.failed_slot)),
            self.failed.eq(mark_read.data & ~begun[0]),
            self.built.eq(ended),
            mark_write.addr.eq(segment.slot),
            mark_write.data.eq(marks_slot),
            mark_write.en.eq(ended),
        ]
        # The segment is still there in the cycle after its end, and nothing yet asks for its mark.
        m.d.sync += [
            ended.eq(end),
            was_bad.eq(bad),
            marks_slot.eq(bad & ~segment.last),
            under_way.eq(under_way + start - self.finished),
        ]
        with m.If(begun[0]):
            m.d.sync += [
                marked.eq(mark_read.data),
                own.eq(destination.link.dest_mac == self.config.mac),
                group.eq(destination.link.dest_mac[MAC_GROUP_BIT]),
            ]

        # ``draws`` is the state PAYLOAD, in a register, and ready is another: what depends on
        # payload is late.
        draws, takes, ends_payload = Signal(), Signal(), Signal()
        # ``space`` is that of the cycle before, which has words to spare.
        begins_payload, space = Signal(), Signal()
        m.d.comb += [
            takes.eq(self.payload.valid & self.payload.ready),
            ends_payload.eq(takes & self.payload.p.last),
        ]
        m.d.sync += self.payload.ready.eq((begins_payload | (draws & ~ends_payload)) & space)
        with m.If(draws):
            m.d.comb += [
                payload_puts.eq(1),
                bad.eq(marked | self.payload.p.error),
                end.eq(ends_payload),
            ]
        m.d.comb += [
            # Ready, the payload has its state.
            word_valid.eq(heads | rests | takes),
            alone.eq(heads & header.alone),
            header.left_taken.eq(takes),
            header.advance.eq(heads),
            header.last.eq(at_last),
            self.segments.ready.eq(clear),
            start.eq(clear & self.segments.valid),
        ]
        m.d.sync += at_last.eq(heads & (header.following == last_step))
        with m.If(start):
            m.d.sync += idle.eq(0)
        with m.Elif(end):
            m.d.sync += idle.eq(1)
        with m.If(begins_payload):
            m.d.sync += draws.eq(1)
        with m.Elif(ends_payload):
            m.d.sync += draws.eq(0)

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
                    m.d.sync += idle.eq(1)
                    m.next = "IDLE"

            with m.State("IDLE"):
                m.d.sync += [segment.eq(self.segments.p), cursor.eq(head), refused.eq(0)]
                m.d.sync += odd.eq(0)
                self._measure_header(m, self.segments.p, last_step, shares)
                with m.If(start):
                    with m.If(~self.segments.p.frame):
                        m.next = "MARK"
                    with m.Elif(self.segments.p.opens):
                        m.next = "OPEN"
                    with m.Else():
                        m.d.sync += heads.eq(1)
                        m.next = "HEADER"

            with m.State("OPEN"):
                m.d.comb += answer_taken.eq(1)
                with m.If(answered):
                    m.d.sync += refused.eq(~answer)
                    with m.If(answer):
                        m.d.sync += heads.eq(1)
                        m.next = "HEADER"
                    with m.Else():
                        m.next = "MARK"

            with m.State("HEADER"):
                # The words asked for then replace these 4 cycles later, at the earliest.
                with m.If(header.step >= FIELDS_STEP):
                    m.d.sync += destination_used.eq(1)
                with m.If(at_last):
                    m.d.sync += heads.eq(0)
                    with m.If(segment.has_payload):
                        m.d.comb += begins_payload.eq(1)
                        m.next = "PAYLOAD"
                    with m.Elif(shares):
                        m.d.sync += rests.eq(1)
                        m.next = "REST"
                    with m.Else():
                        m.d.comb += end.eq(1)
                        m.next = "IDLE"

            with m.State("REST"):
                m.d.comb += end.eq(1)
                m.d.sync += rests.eq(0)
                m.next = "IDLE"

            with m.State("PAYLOAD"):
                with m.If(ends_payload):
                    m.next = "IDLE"

            with m.State("MARK"):
                m.d.comb += end.eq(1)
                m.d.sync += destination_used.eq(1)
                m.next = "IDLE"

        with m.If(word_valid & (odd | ~alone)):
            m.d.sync += cursor.eq(cursor + 1)
        with m.If(alone):
            m.d.sync += odd.eq(~odd)

        good = segment.frame & ~bad & ~refused

        def is_free(place, words):
            """Whether so many words are free from ``place`` on, a power of two."""
            used = (place - self.tail)[: exact_log2(depth)]
            return ~used[exact_log2(words) :].all()

        # Where the next frame begins, if this one is good; what is asked for is the same when not.
        next_head = Mux(idle, head, head_next)
        m.d.sync += [
            head_next.eq((Cat(1, head) + Cat(segment.octets[:3].any(), segment.octets[3:]))[1:]),
            # The number under way is that of two cycles ago: the next start is later than that.
            clear.eq(
                (idle | end)
                & is_free(next_head, _HEADER_ROOM)
                & (under_way != FRAMES)
                & destination_ready
                & ~start
            ),
        ]
        m.d.sync += space.eq(is_free(cursor, 4))
        with m.If(end & good):
            m.d.sync += head.eq(head_next)

        done = done_queue.i
        m.d.comb += [
            *(
                done.p[name].eq(segment[name])
                for name in done.p.shape().members
                if name != "tracked"
            ),
            done.p.tracked.eq(segment.frame & segment.opens & ~refused),
            done.valid.eq(ended & segment.last),
        ]
        with m.If(was_bad):
            m.d.comb += done.p.status.eq(Status.GENERAL_ERR)
        with m.If(refused):
            m.d.comb += done.p.status.eq(Status.NO_TRACKER)

        m.submodules.check = check = FrameCheck()
        end_valid = Signal()
        pair, pair_valid, crosses = Signal(64, reset_less=True), Signal(), Signal()
        ipv6, frame_end, low_address, high_address = (
            data_register(m, driven)
            for driven in (check.ipv6, check.end, self.write_low_address, self.write_high_address)
        )
        m.d.sync += [
            self.write_low.eq(word_valid & ~(alone & odd)),
            self.write_high.eq(word_valid & ~(alone & ~odd)),
            low_address.eq(Mux(odd, cursor + 1, cursor)),
            high_address.eq(cursor),
            crosses.eq(odd ^ alone),
            pair.eq(word),
            pair_valid.eq(word_valid),
            check.step.eq(header.step),
            ipv6.eq(segment.ipv6),
            frame_end.octets.eq(segment.octets),
            frame_end.frame.eq(good),
            frame_end.completes.eq(segment.last),
            frame_end.vlan.eq(segment.vlan_valid),
            frame_end.ipv6.eq(segment.ipv6),
            frame_end.own.eq(own),
            frame_end.group.eq(group),
            frame_end.terminate.eq(segment.opcode == Opcode.TERMINATE),
            end_valid.eq(end),
        ]
        m.d.comb += [
            self.write_data.eq(Mux(crosses, pair.rotate_left(32), pair)),
            check.valid.eq(pair_valid),
            check.word.eq(pair),
            check.end_valid.eq(end_valid),
            frame_queue.i.p.eq(check.o),
            frame_queue.i.valid.eq(check.o_valid),
            check_queue.i.p.eq(check.checks),
            check_queue.i.valid.eq(check.checks_valid),
        ]
        return m

    @staticmethod
    def _measure_header(m, segment, last_step, shares):
        """The step of the header's last whole pair; whether four octets of it are left then."""
        with m.Switch(segment.opcode):
            for opcode, size in _HEADERS.items():
                # Six octets of it are in the pair of DDP_STEP.
                steps, left = divmod(size - 6, 8)
                with m.Case(opcode):
                    m.d.sync += [last_step.eq(DDP_STEP + steps), shares.eq(left != 0)]

    def _fetch_destination(self, m, start):
        """Where the next segment's frame goes, asked for once the header under way has what it
        needs (``used``). ``ready`` for the start after 4 cycles, a word a cycle comes later.
        Returns it, ``used``, and whether it is ready in the next cycle but for a start."""
        layout = data.StructLayout({"port": PortWord, "link": LinkWord, "ip": 128})
        place = Signal(layout, reset_less=True)
        ready, used = Signal(), Signal(init=1)
        assert (LINK, PORT, LOW, HIGH) == (3, 0, 1, 2)
        begins = Signal()
        # Bit ``n``: so many cycles ago and one more it began. A word is asked for in each of the
        # first four, and is there two cycles after.
        since = Signal(6)
        guesses = Signal()  # the segment is still to come
        address = Signal(destination_address(self._parameters), reset_less=True)
        m.d.comb += [
            begins.eq((self.segments.valid | self.coming) & used & ~ready & ~since[:3].any()),
            self.destination.index.eq(address),
        ]
        m.d.sync += [
            since.eq(Cat(begins, since)),
            guesses.eq(~self.segments.valid),
            self.destination_taken.eq(begins | since[:3].any()),
            address.index.eq(Cat(begins | since[1], begins | since[2])),
        ]
        with m.If(~since[:3].any()):
            slot = Mux(self.segments.valid, self.segments.p.slot, self.coming_slot)
            m.d.sync += address.slot.eq(slot)
        with m.If(since[0] & guesses & ~self.comes):
            m.d.sync += since.eq(0)
        with m.If(since[2]):
            m.d.sync += ready.eq(1)
        with m.If(start):
            m.d.sync += [ready.eq(0), used.eq(0)]
        registers = (
            place.link.as_value(),
            place.port.as_value(),
            place.ip[:64],
            place.ip[64:],
        )
        for arrives, register in zip(since[2:], registers, strict=True):
            with m.If(arrives):
                m.d.sync += register.eq(self.destination.row)
        return place, used, ready | since[2]

    def _header(self, m, segment, destination, start, begun):
        """The pairs of the header of ``segment``, of which the first comes with ``start``."""
        m.submodules.header = header = FrameHeader()
        for fields, source in ((header.starting, self.segments.p), (header.i, segment)):
            m.d.comb += [
                *(fields[name].eq(source[name]) for name in ("vlan_valid", "ipv6", "octets")),
                fields.dest_mac.eq(destination.link.dest_mac),
                fields.traffic_class.eq(destination.link.traffic_class),
                fields.hop_limit.eq(destination.link.hop_limit),
                fields.vlan.eq(destination.port.vlan),
                fields.dest_port.eq(destination.port.dest_port),
                fields.dest_ipv4.eq(destination.port.dest_ip),
                fields.dest_ipv6.eq(destination.ip),
                fields.source_mac.eq(self.config.mac),
                fields.source_ipv4.eq(self.config.ipv4),
                fields.source_ipv6.eq(self.config.ipv6),
                fields.source_port.eq(source.udp_port),
            ]

        tagged = Signal()
        extended = Signal()
        opcode = Signal(4)
        m.d.comb += [
            tagged.eq(Cat(segment.opcode == each for each in _TAGGED).any()),
            extended.eq(
                (segment.opcode == Opcode.WRITE_RECORD) | (segment.opcode == Opcode.SEND_IMMEDIATE)
            ),
            opcode.eq(segment.opcode),
        ]
        with m.If((segment.opcode == Opcode.SEND) & segment.solicited):
            m.d.comb += opcode.eq(Opcode.SEND_SOLICITED)
        ddp = DDP_VERSION | Mux(tagged, DDP_TAGGED, 0) | Mux(segment.last, DDP_LAST, 0)
        rdmap = (
            RDMAP_VERSION
            | Mux(extended & segment.solicited, RDMAP_SOLICITED, 0)
            | Mux(extended & segment.immediate_valid, RDMAP_IMMEDIATE, 0)
            | opcode
        )
        m.d.comb += header.control.eq(Cat(Value.cast(ddp)[:8], Value.cast(rdmap)[:8]))

        # A row of quads is read ahead, at the memory's output.
        m.submodules.quad_store = quad_store = Memory(
            shape=64, depth=1 << len(self.quads.address), init=[]
        )
        quad_read, quad_write = quad_store.read_port(), quad_store.write_port()
        row_bits = (QUAD_ROWS - 1).bit_length()
        number_bits = len(self.quads.address) - row_bits
        number = Signal(number_bits, init=(1 << number_bits) - 1)
        row = Signal(range(QUAD_ROWS))
        reads = Signal()
        m.d.comb += [
            quad_write.addr.eq(self.quads.address),
            quad_write.data.eq(self.quads.word),
            quad_write.en.eq(self.quads.valid),
            quad_read.addr.eq(Cat(row, number)),
            reads.eq(begun[1] | header.ddp_taken),
            header.ddp.eq(quad_read.data),
        ]
        keep_apart(m, quad_read, quad_write, reads)
        with m.If(reads):
            m.d.sync += row.eq(row + 1)
        with m.If(start):
            m.d.sync += [row.eq(0), number.eq(number + 1)]
        return header
