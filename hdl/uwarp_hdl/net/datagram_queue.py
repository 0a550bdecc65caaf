"""Descriptions of datagrams that wait, kept as the words of their headers.

::

    words --> lanes chosen --> memory --> register --> register, enables --> fields --> o
    details -----------------> memory --> register ----------------------------^

Of a frame those words are written in which its header has something for the Datagram; its source
addresses take the lanes that are of no use. They are in the memory before the frame's fate is known
and are read again at once if no other Datagram waits, so that the fields are in their registers
when it is. The details that come with the verdict are known before it, too, and in a memory of
their own.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.wire import IMMEDIATE_OPCODES, Opcode

from ..choice import chosen_after
from ..compare import equal
from ..layouts import Datagram, mapped_ipv4
from .headers import SEGMENT, header_octets
from .word import FrameWord

__all__ = ["DatagramDetails", "DatagramQueue"]

#: Fields of a Datagram that are not in its header as they are.
_OTHERS = ("qpn", "payload_length", "own", "group", "payload_offset")

#: Words of memory for each Datagram: only a Read Request by IPv6 takes more.
_WORDS = 8

#: Kinds of words behind those of the UDP header and the segment, which are numbered by their step:
#: most of the source address, and what is missing of one of IPv6.
_ADDRESS, _ADDRESS_ENDS = 8, 9

#: Indices of the frame's words that these two are made of, together with the one before.
_ADDRESS_WORD, _ADDRESS_ENDS_WORD = 3, 4

_PORTS, _CONTROL, _TO, _MESSAGE, _RECORD, _SOURCE, _SOURCE_TO = range(1, 8)
"""What the words by step are called here, after the fields of the segment in them."""


class DatagramDetails(data.Struct):
    """Members of Datagram that are not from the header."""

    qpn: 16
    payload_length: 16
    own: 1
    group: 1


class _HeaderWord(data.Struct):
    """A word of the memory; ``final`` is the last of its Datagram."""

    data: 64
    kind: 4
    ipv6: 1
    early: 1
    final: 1


class _Load(data.Struct):
    """Which fields a word is for: those of its own name, but ``address`` for most of ``source_ip``
    and ``address_ends`` for its ends; ``ipv4`` says that this is of IPv4, and ``late_ipv4`` that it
    is not early; ``tagged`` tells of the segment."""

    address: 1
    address_ends: 1
    ipv4: 1
    late_ipv4: 1
    ports: 1
    control: 1
    stag: 1
    mlen: 1
    to: 1
    qn: 1
    msn: 1
    mo: 1
    immediate: 1
    sink_to: 1
    tagged: 1


class DatagramQueue(wiring.Component):
    """Take a Datagram's fields out of its frame, and keep it until it is taken.

    A Datagram that finds none before it is offered in the cycle after ``commit``, or 6 cycles after
    the last word of its header. Others are offered as many cycles after the one before
    them was taken as they have words, 4 (a Write by IPv4) to 9 (a Read Request by IPv6), and two,
    or five if none waited behind that.

    Fields: what a segment does not have is 0, and so is the immediate without the bit IM. A Send
    with Solicited Event (0x5) is solicited; else the bit SE counts where it is defined, in
    Write-Record and Send with Immediate. A source address of IPv4 is mapped into IPv6 (RFC 4291,
    section 2.5.5.2). Of a Read Request ``immediate`` and ``sink_to`` are the sink's STag and TO, of
    a Terminate ``immediate`` is the control word.

    Parameters
    ----------
    datagrams : int
        Room for Datagrams, a power of two from 2; for fewer if many of them are Read Requests by
        IPv6.

    Members
    -------
    following, word : In(FrameWord)
        A word of this cycle and of the one before. The ``commit`` or ``discard`` of its frame comes
        4 cycles or more after the last word, and not after word 3 of the next frame.
    source_mac : In(48)
        Right with the word of step 1.
    opcode : In(4)
        Right from step 2 to the last word of the header.
    details : In(DatagramDetails)
        Right from 2 cycles after ``word`` was the frame's last until ``commit``, if that has step 4
        or a later one.
    ready : Out(1)
        There is room for the frame's Datagram. Right in the cycle in which it is committed.
    commit, discard : In(1)
        What has come since the last of these is a Datagram, or nothing. Not both, and ``commit``
        only if ``ready``.
    o : Out(stream of Datagram)
    waiting : Out(1)
        There is a Datagram in the queue, offered or not yet.
    """

    def __init__(self, datagrams: int) -> None:
        if datagrams < 2 or datagrams & (datagrams - 1):
            raise ValueError(f"datagrams is {datagrams!r}; it takes a power of two from 2")
        self._datagrams = datagrams
        super().__init__(
            {
                "following": In(FrameWord),
                "word": In(FrameWord),
                "source_mac": In(48),
                "opcode": In(4),
                "details": In(DatagramDetails),
                "ready": Out(1),
                "commit": In(1),
                "discard": In(1),
                "o": Out(stream.Signature(Datagram)),
                "waiting": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        loaded = Signal()
        # A Datagram leaves a cycle late, in which it is offered no more: what takes it is far.
        takes, taken = Signal(), Signal()
        has_details, details = self._count(m, taken)
        m.d.sync += taken.eq(takes)
        m.d.comb += [
            takes.eq(self.o.valid & self.o.ready),
            *(self.o.p[name].eq(details[name]) for name in _OTHERS[:-1]),
        ]
        # What was read of a Datagram that is discarded goes a cycle later.
        flush = Signal()
        m.d.sync += flush.eq(self.discard & ~self.waiting)
        word = Signal(_HeaderWord, reset_less=True)
        load, ends = Signal(_Load), Signal()
        moves, staged = self._store(m, has_details, word, loaded, ends, taken, flush)

        # A word's fields are taken, and with the last one all are there.
        m.d.sync += self.o.valid.eq((self.waiting | self.commit) & loaded)
        with m.If(~loaded):
            m.d.sync += [
                loaded.eq(ends),
                self.o.valid.eq((self.waiting | self.commit) & ends),
            ]
        with m.If(taken | flush):
            m.d.sync += loaded.eq(0)
        with m.If(takes | taken | flush):
            m.d.sync += self.o.valid.eq(0)
        # The first word of the next Datagram may be captured then, but none of what is cleared.
        restarts = Signal(init=1)
        m.d.sync += restarts.eq(taken | flush)
        fields = self._capture(m, word, staged, moves, flush, loaded, load, ends, restarts)
        m.d.comb += [self.o.p[name].eq(fields[name]) for name in fields.shape().members]
        m.d.comb += self.o.p.payload_offset.eq(header_octets(fields.opcode, SEGMENT)[:3])
        return m

    def _count(self, m, taken):
        """Whether there are details for another Datagram, and the oldest one's."""
        depth = self._datagrams
        # No details are read while they are written, but those that are read again.
        m.submodules.details = memory_of_details = memory.Memory(
            shape=DatagramDetails, depth=depth, init=[], attrs={"no_rw_check": 1}
        )
        writer, reader = memory_of_details.write_port(), memory_of_details.read_port()
        oldest, end = (Signal(range(depth), name=name) for name in ("oldest", "end"))
        level = Signal(range(depth + 1))
        is_one = Signal()  # ``level`` is 1
        full, has_details = Signal(), Signal()
        details = Signal(DatagramDetails, reset_less=True)
        # It takes no frame's details for some cycles to come.
        committed = Signal()
        # ``word`` was the last of its frame, and of a step that a Datagram's has: so no frame that
        # is none writes while the one before it is read.
        ended = Signal(2)
        m.d.comb += [
            writer.addr.eq(end),
            writer.data.eq(self.details),
            writer.en.eq(ended[1] & ~full),
            reader.addr.eq(oldest),
        ]
        m.d.sync += [
            oldest.eq(oldest + taken),
            committed.eq(self.commit),
            end.eq(end + committed),
            full.eq(level[-1]),
            ended.eq(Cat(self.word.valid & self.word.last & (self.word.step >= 4), ended[0])),
            details.eq(reader.data),
        ]
        with m.If(self.commit & ~taken):
            m.d.sync += [level.eq(level + 1), self.waiting.eq(1), is_one.eq(~self.waiting)]
        with m.Elif(taken & ~self.commit):
            m.d.sync += [level.eq(level - 1), self.waiting.eq(~is_one), is_one.eq(level == 2)]
        with m.If(ended[1]):
            m.d.sync += has_details.eq(~full)
        return has_details, details

    def _store(self, m, has_details, word, loaded, ends, taken, flush):
        """From ``self.word`` to ``word``, through the memory: whether that goes on, and whether it
        is there."""
        depth = 1 << (_WORDS * self._datagrams - 1).bit_length()
        shape = len(word.as_value())
        # No word is read while it is written: synthesis need not add logic for that case.
        m.submodules.words = words = memory.Memory(
            shape=shape, depth=depth, init=[], attrs={"no_rw_check": 1}
        )
        writer, reader = words.write_port(), words.read_port()
        stored, stores = self._choose(m)

        # One bit more than an address, so that full and empty differ. What they were before they
        # last went on is kept: it takes no sum to see that one is about to meet another.
        write, committed, read = (
            Signal(range(2 * depth), name=name) for name in ("write", "committed", "read")
        )
        write_before, committed_before, read_before = (
            Signal.like(pointer, name=f"{pointer.name}_before")
            for pointer in (write, committed, read)
        )
        full, lost = Signal(), Signal()
        m.d.comb += [
            writer.addr.eq(write[:-1]),
            writer.data.eq(stored.as_value()),
            writer.en.eq(stores & ~full),
            self.ready.eq(has_details & ~lost),
        ]
        undecided = Signal()  # there are words that are not committed
        with m.If(writer.en):
            m.d.sync += [write.eq(write + 1), write_before.eq(write), undecided.eq(1)]
        with m.If(stores & full):
            m.d.sync += lost.eq(1)
        # No word is written in the cycle of either.
        with m.If(self.commit):
            m.d.sync += [committed.eq(write), committed_before.eq(write_before)]
        with m.If(self.discard):
            m.d.sync += write.eq(committed)
        with m.If(self.commit | self.discard):
            m.d.sync += [lost.eq(0), undecided.eq(0)]

        # What is not yet committed is read only if all before it has been taken: so, if it is
        # discarded, either nothing of it has been read or all that has been is of it.
        at_write, at_committed = Signal(), Signal(init=1)
        meets_write, meets_committed = Signal(), Signal()
        fetched, staged, enabled = Signal(), Signal(), Signal()
        held_up, staged_held = Signal(), Signal()
        moves, stage_free = ~held_up, ~staged_held
        # What ``enabled & loaded``, and that with ``staged``, will be.
        holds = Mux(loaded, enabled | staged, ends & staged) & ~taken & ~flush
        m.d.sync += [held_up.eq(holds), staged_held.eq(holds & (fetched | staged_held))]
        stuck = fetched & staged_held
        m.d.comb += [
            meets_write.eq(equal(m, read, write_before)),
            meets_committed.eq(equal(m, read, committed_before)),
            reader.addr.eq(read[:-1]),
            reader.en.eq(Mux(self.waiting, ~at_committed, undecided & ~at_write) & ~stuck),
        ]
        # ``at_write`` counts while words are undecided.
        with m.If(writer.en):
            m.d.sync += at_write.eq(0)
        with m.Elif(reader.en):
            m.d.sync += at_write.eq(meets_write)
        with m.If(self.commit):
            m.d.sync += at_committed.eq(Mux(reader.en, meets_write, at_write))
        with m.Elif(reader.en):
            m.d.sync += at_committed.eq(meets_committed)
        # After a ``flush`` a word is read before ``read_before`` is looked at.
        with m.If(reader.en):
            m.d.sync += [read.eq(read + 1), read_before.eq(read)]
        discarded_full, written_full = Signal(), Signal()
        m.d.comb += [
            discarded_full.eq(equal(m, committed, read ^ depth)),
            written_full.eq(equal(m, write, read_before ^ depth)),
        ]
        with m.If(reader.en):
            m.d.sync += full.eq(0)
        with m.Elif(self.discard):
            m.d.sync += full.eq(discarded_full)
        with m.Elif(writer.en):
            m.d.sync += full.eq(written_full)
        with m.If(~stuck):
            m.d.sync += fetched.eq(reader.en)
        with m.If(stage_free):
            m.d.sync += [staged.eq(fetched), word.as_value().eq(reader.data)]
        with m.If(moves):
            m.d.sync += enabled.eq(staged)
        with m.If(flush):
            m.d.sync += [
                read.eq(committed),
                at_committed.eq(1),
                fetched.eq(0),
                staged.eq(0),
                enabled.eq(0),
            ]
        return moves, staged

    def _choose(self, m):
        """From ``self.word`` to the word to be written, a cycle later, and whether there is one."""
        word, following = self.word, self.following
        stored, stores = Signal(_HeaderWord, reset_less=True), Signal()
        # The source address of IPv6 begins in lane 1 of the word before ``_ADDRESS``; that of an
        # early IPv4 header in lane 3.
        before = Signal(48, reset_less=True)
        with m.If(word.valid & word.at(_ADDRESS_WORD - 1)):
            m.d.sync += before.eq(word.data[16:])
        mac = Cat(self.source_mac.word_select(octet, 8) for octet in reversed(range(6)))

        # Right with step 3; before that it is not reached, whatever it is.
        final_step = Signal(4, init=3, reset_less=True)
        m.d.sync += final_step.eq(header_octets(self.opcode, SEGMENT - 1)[3:])
        # Registers: their fan-out is large.
        is_address, is_rest, is_ports, is_early_ipv4, is_wanted = (
            Signal(name=name)
            for name in ("is_address", "is_rest", "is_ports", "is_early_ipv4", "is_wanted")
        )
        m.d.sync += [
            is_address.eq(following.at(_ADDRESS_WORD)),
            is_rest.eq(following.at(_ADDRESS_ENDS_WORD) & following.ipv6),
            is_ports.eq(following.step == _PORTS),
            is_early_ipv4.eq(following.early & ~following.ipv6),
            is_wanted.eq((following.step != 0) & (following.step <= final_step)),
        ]
        m.d.sync += [
            stores.eq(word.valid & (is_address | is_rest | is_wanted)),
            stored.kind.eq(word.step),
            stored.ipv6.eq(word.ipv6),
            stored.early.eq(word.early),
            stored.final.eq(word.step == final_step),
        ]
        with m.If(is_address):
            m.d.sync += stored.kind.eq(_ADDRESS)
        with m.If(is_rest):
            m.d.sync += stored.kind.eq(_ADDRESS_ENDS)

        ends_early = is_address & is_early_ipv4
        neither = ~is_rest & ~is_ports
        own = [word.data.word_select(lane, 16) for lane in range(4)]
        lanes = (
            ((~is_ports, own[0]), (is_ports, mac[:16])),
            ((~is_rest, own[1]), (is_rest, before[:16])),
            ((neither, own[2]), (is_rest, before[16:32]), (is_ports, mac[16:32])),
            (
                (neither & ~ends_early, own[3]),
                (is_rest | ends_early, before[32:]),
                (is_ports, mac[32:]),
            ),
        )
        m.d.comb += stored.data.eq(
            Cat(chosen_after(m, lane, f"lane_{number}") for number, lane in enumerate(lanes))
        )
        return stored, stores

    def _capture(self, m, word, staged, moves, flush, loaded, load, ends, restarts):
        """The fields of the header of which ``word`` is one: first what it has, then that."""
        members = data.Layout.cast(Datagram).members.items()
        shape = data.StructLayout({k: v for k, v in members if k not in _OTHERS})
        datagram = Signal(shape, reset_less=True)

        def octets_of(item):
            return [item.word_select(octet, 8) for octet in range(8)]

        # Whether the segment is tagged, and has an immediate, its other words do not tell.
        control, operation = octets_of(word.data)[2:4]
        has_immediate = operation[:4].matches(*IMMEDIATE_OPCODES)
        tagged, takes_immediate = Signal(), Signal()
        with m.If(moves & (word.kind == _CONTROL)):
            m.d.sync += [
                tagged.eq(control[7]),
                takes_immediate.eq(
                    has_immediate & operation[4]
                    | operation[:4].matches(Opcode.READ_REQUEST, Opcode.TERMINATE)
                ),
            ]

        def comes(*kinds):
            return word.kind.matches(*kinds)

        octets_held = Signal(64, reset_less=True)
        with m.If(moves):
            m.d.sync += [
                octets_held.eq(word.data),
                ends.eq(word.final),
                load.address.eq(comes(_ADDRESS)),
                load.address_ends.eq(comes(_ADDRESS, _ADDRESS_ENDS)),
                load.ipv4.eq(comes(_ADDRESS) & ~word.ipv6),
                load.late_ipv4.eq(comes(_ADDRESS) & ~word.ipv6 & ~word.early),
                load.ports.eq(comes(_PORTS)),
                load.control.eq(comes(_CONTROL)),
                load.stag.eq(comes(_CONTROL) & control[7] | comes(_SOURCE)),
                load.mlen.eq(
                    comes(_CONTROL) & ~control[7] | comes(_SOURCE) | comes(_RECORD) & tagged
                ),
                load.to.eq(comes(_TO) & tagged | comes(_SOURCE_TO)),
                load.qn.eq(comes(_TO) & ~tagged),
                load.msn.eq(Mux(tagged, comes(_MESSAGE), comes(_TO))),
                load.mo.eq(comes(_MESSAGE)),
                load.immediate.eq(Mux(tagged, comes(_RECORD), comes(_MESSAGE)) & takes_immediate),
                load.sink_to.eq(comes(_RECORD) & ~tagged),
                load.tagged.eq(tagged),
            ]
        with m.If(flush | moves & ~staged):
            m.d.sync += [load.eq(0), ends.eq(0)]

        octets = octets_of(octets_held)

        def number(first, last):
            """The octets as a number in network byte order."""
            return Cat(reversed(octets[first:last]))

        def take(name, **fields):
            with m.If(~loaded & load[name]):
                m.d.sync += [datagram[field].eq(value) for field, value in fields.items()]

        # IPv4 is in lanes 1 and 2, or in 3 and 0.
        address = datagram.source_ip
        with m.If(~loaded & load.address):
            m.d.sync += [
                address[16:32].eq(Mux(load.late_ipv4, number(2, 4), number(6, 8))),
                address[32:80].eq(number(0, 6)),
            ]
        with m.If(~loaded & load.ipv4):
            m.d.sync += address[32:80].eq(mapped_ipv4(address[:32])[32:])
        with m.If(~loaded & load.address_ends):
            m.d.sync += [
                address[:16].eq(Mux(load.late_ipv4, number(4, 6), number(0, 2))),
                address[80:].eq(number(2, 8)),
            ]
        with m.If(~loaded & load.address):
            m.d.sync += address[80:].eq(0)

        mac = Cat(octets[:2], octets[4:])
        take(
            "ports",
            source_port=number(2, 4),
            source_mac=Cat(mac.word_select(octet, 8) for octet in reversed(range(6))),
        )

        control, operation = octets[2], octets[3]
        has_immediate = operation[:4].matches(*IMMEDIATE_OPCODES)
        is_solicited = operation[:4].matches(Opcode.SEND_SOLICITED)
        take(
            "control",
            last=control[6],
            opcode=operation[:4],
            immediate_valid=has_immediate & operation[4],
            solicited=is_solicited | has_immediate & operation[5],
        )
        first, second = number(0, 4), number(4, 8)
        take("stag", stag=second)
        take("mlen", mlen=Mux(load.control, second, first))
        take("to", to=number(0, 8))
        take("qn", qn=first)
        take("msn", msn=Mux(load.tagged, first, second))
        take("mo", mo=Mux(load.tagged, second, first))
        take("immediate", immediate=second)
        take("sink_to", sink_to=number(0, 8))
        # Written last for a field, this is the registers' own reset; else it takes LUTs.
        with m.If(restarts):
            for name in ("stag", "to", "qn", "msn", "mo", "mlen", "immediate", "sink_to"):
                m.d.sync += datagram[name].eq(0)
        return datagram
