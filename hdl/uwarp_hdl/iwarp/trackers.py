"""Trackers: the open messages, one each (device behaviour, section 4).

Digests of names are compared in parallel. The octets that a new message would share with open ones
are compared in up to ``SCAN_STEPS`` steps, ``n_tracker / SCAN_STEPS`` messages at a time, over and
over; only the lower half of the trackers, in half the steps, while no other is open.
What stays the same until a message closes is in block RAM, what is compared in parallel and its
progress in LUT RAM. Of block RAM only the width counts: rows are four words, written in turn and
read in turn.
"""

from amaranth.hdl import C, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import CloseTarget, Parameters

from ..choice import chosen_after
from ..compare import equal
from ..data_register import data_register
from ..layouts import CloseRequest
from .receive_layouts import (
    DIGEST_WIDTH,
    granule_width,
    message_name_layout,
    name_parts,
    offset_width,
    span_layout,
    tracker_layout,
)

__all__ = ["OVERLAP_SETTLES", "SCAN_STEPS", "Trackers", "lowest_set", "progress_layout"]

SCAN_STEPS = 8
"""Cycles in which every tracker is compared with the extent that is asked for."""

OVERLAP_SETTLES = 3 + SCAN_STEPS // 2
"""Cycles from an ``open`` to the ``overlap`` that counts with it, if not ``many`` are open: one
until it is written, two from the memory's address to what is compared, ``SCAN_STEPS / 2`` to come
by all."""

_BLOCK_RAM = {"ram_style": "block"}


def lowest_set(bits):
    """The number of the lowest bit that is set; of the highest bit if none is."""
    if len(bits) == 1:
        return C(0, 0)
    half = 1 << exact_log2(len(bits)) - 1
    low = bits[:half].any()
    return Cat(Mux(low, lowest_set(bits[:half]), lowest_set(bits[half:])), ~low)


def _is_several(bits):
    """Whether more than one bit is set."""
    if len(bits) == 1:
        return C(0, 1)
    low, high = bits[: len(bits) // 2], bits[len(bits) // 2 :]
    return _is_several(low) | _is_several(high) | (low.any() & high.any())


def _number(one_hot):
    """The number of the bit that is set."""
    digits = range(exact_log2(len(one_hot)))
    numbers = range(len(one_hot))
    return Cat(
        Cat(one_hot[number] for number in numbers if number >> digit & 1).any() for digit in digits
    )


def _below(a, b):
    """Whether a < b: the borrow of a - b."""
    return (a - b)[len(a)]


def _compared(name):
    """A name without the 16 bits that it has alone in its digest: they are right with the rest."""
    return Cat(name.qpn, name.msn[DIGEST_WIDTH:], name.source_ip, name.source_port, name.kind)


def progress_layout(parameters: Parameters) -> data.StructLayout:
    """``missing``: granules between the first and the last that are not valid yet. ``head`` and
    ``tail``: the first and the last granule are valid; of a message in one granule both are set.
    """
    granule = granule_width(parameters)
    return data.StructLayout({"missing": granule, "head": 1, "tail": 1})


class Trackers(wiring.Component):
    """``n_tracker`` open messages: look up, open, account, close; and find those that fell silent.

    ``match`` is a cycle late. ``index`` may change in the cycle after an ``open``, and counts from
    the one after that on. One of ``open``, ``touch``, ``mark`` and ``close`` may be high in a
    cycle; or ``open`` and ``touch``, of the same tracker. What comes with ``open`` stays for four
    cycles.

    Members
    -------
    digest, region, start, end : In
        Of a datagram's message; its first and last octet count from the region's base. ``region``
        is the region's number.
    match : Out(n_tracker)
        Trackers whose message's name has ``digest``, strangers apart: nearly always the one of that
        name, if any.
    overlap : Out(n_tracker)
        Trackers of ``region`` that share an octet with ``start`` to ``end``, which must have been
        the same in the ``SCAN_STEPS / 2`` cycles before, or ``SCAN_STEPS`` if ``many``; right from
        ``OVERLAP_SETTLES`` cycles after an ``open``, or ``SCAN_STEPS / 2`` more, and at once after
        a ``close``.
    is_open : Out(n_tracker)
        Trackers that are open, from the cycle after ``open`` to that of ``close``.
    many : Out(1)
        Trackers of the upper half are open, or were when ``overlap`` was found out.
    found : Out(1)
        Whether there are such. Of the lowest, if it was ``found`` beside ``begin`` ...
    begin : In(1)
        Look at it from the beginning. Not in two cycles in turn, once it is found.
    span : Out
        ... where its message lies: ``start`` two cycles after that, the rest three.
    name, own : In, Out(1)
        ... six cycles after that: its message has this name, which was there four cycles before;
        not if another has come into its place since, nor of several with its digest that were
        found in the very cycle of ``begin``.
        Only to be asked for the ``digest`` that this name has: what of it follows from that is not
        compared.
    seen, found_index : Out
        ``found``, and the lowest, a cycle late.
    sure : Out(1)
        What is ``seen`` is ``own``, or nothing is; not of a ``name`` or ``digest`` younger than
        six cycles, nor in the cycle after a ``close``. What is not ``own`` becomes a stranger,
        until an ``open`` or ``renew``.
    renew : In(1)
        Another ``name`` comes.
    keep, keep_bare : In(1)
        Row ``n_tracker``, which is no tracker's, becomes ``opened``, which stays for three cycles
        more; if ``keep_bare`` in the next cycle, with an STag and a base of 0. Not beside ``open``,
        nor in the four cycles after. Another ``keep`` takes the place of one that is not written.
    index, look, first : In
        The row that is read: of it ``place`` with ``look``; all of it from ``first`` on, without
        ``look``, and row ``n_tracker`` from two cycles after ``keep`` on, while ``index`` stays.
    place : Out
        Two cycles after ``look``, and only then: fields of that row.
    row : Out
        Three cycles after ``first`` what of ``start``, ``end``, ``granule_log2`` and ``others`` it
        has, and in ...
    there : Out(1)
        ... all of it. Not to be looked at in the cycle after ``first``.
    advance, name_word : In(1), Out
        The low part of the row's name (:func:`.name_parts`); after ``advance``, beside ``there`` or
        a cycle later, the high one, which goes from ``row``.
    progress : Out
        Of the ``index`` of two cycles before, unless ``marking`` was high in the cycle between.
    free, free_index : Out
        The lowest free tracker; right from two cycles after an ``open`` or ``close``.
    prepare : In(1)
        High beside ``open``, and early in its cycle. What comes with ``open`` is there.
    open, opened, opened_digest, opened_start, opened_end, dma_addr, timeout : In
        Opens ``free_index`` with the row ``opened``, silent for at most ``timeout`` ticks;
        ``opened_start`` and ``opened_end`` as ``start`` and ``end`` are.
    touch, touch_index, tick : In
        A segment of ``touch_index`` has been placed at ``tick``; that is ``free_index`` beside
        ``open``.
    untouch : In(1)
        In the cycle after ``touch``: it has not.
    mark, mark_index, newly, head, tail : In
        ``newly`` more granules, and maybe the first and the last, are valid.
    marking : In(1)
        High beside ``mark`` and in the cycle before, with the same ``mark_index``.
    complete, complete_index : Out
        From the cycle after ``mark`` until ``close``: nothing of that message is missing.
    close, close_index : In
    expired, expired_index : Out
        A message that has been silent for its timeout, or that ``ending`` names. Withdrawn by a
        ``touch`` or ``close`` of it. Found within ``4 * n_tracker`` cycles without those.
    ending : In(CloseRequest)
    ended : Out(1)
        Every message that was open when ``ending`` became active, and that it names, is closed.
    count : Out
        Open messages.
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        n = parameters.n_tracker
        offset = offset_width(parameters)
        name = message_name_layout(parameters)
        super().__init__(
            {
                "digest": In(DIGEST_WIDTH),
                "region": In(exact_log2(parameters.n_region)),
                "start": In(offset),
                "end": In(offset),
                "match": Out(n),
                "found": Out(1),
                "seen": Out(1),
                "found_index": Out(range(n)),
                "span": Out(span_layout(parameters)),
                "name": In(name),
                "own": Out(1),
                "sure": Out(1),
                "begin": In(1),
                "renew": In(1),
                "overlap": Out(n),
                "is_open": Out(n),
                "many": Out(1),
                "keep": In(1),
                "keep_bare": In(1),
                "index": In(range(n + 1)),
                "look": In(1),
                "first": In(1),
                "there": Out(1),
                "place": Out(data.StructLayout({"stag": 32, "base": 64, "mlen": 32})),
                "row": Out(tracker_layout(parameters)),
                "advance": In(1),
                "name_word": Out(len(name_parts(Const(0, name.size))[0]) + 17),
                "progress": Out(progress_layout(parameters)),
                "free": Out(1, init=1),
                "free_index": Out(range(n)),
                "prepare": In(1),
                "open": In(1),
                "opened": In(tracker_layout(parameters)),
                "dma_addr": In(64),
                "opened_digest": In(DIGEST_WIDTH),
                "opened_start": In(offset),
                "opened_end": In(offset),
                "timeout": In(16),
                "touch": In(1),
                "touch_index": In(range(n)),
                "untouch": In(1),
                "tick": In(16),
                "mark": In(1),
                "marking": In(1),
                "mark_index": In(range(n)),
                "newly": In(9),
                "head": In(1),
                "tail": In(1),
                "complete": Out(1),
                "complete_index": Out(range(n)),
                "close": In(1),
                "close_index": In(range(n)),
                "expired": Out(1),
                "expired_index": Out(range(n)),
                "ending": In(CloseRequest),
                "ended": Out(1),
                "count": Out(range(n + 1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n = self._parameters.n_tracker
        opened = self.is_open
        # A cycle late like ``free_index``. The free tracker's digest follows ``opened_digest``, so
        # that ``open`` only has to say that it counts.
        is_free = Signal(n, init=1)
        lowest_free = Signal(range(n))
        m.d.comb += lowest_free.eq(lowest_set(~opened))
        # Not from ``lowest_free``, for a shorter path. Of no meaning if none is free.
        m.d.sync += is_free.eq(Cat(~opened[i] & opened[:i].all() for i in range(n)))
        # Open and no stranger. A name is a stranger's as long as it is there; the others are told
        # apart once more.
        eligible, stranger = Signal(n), Signal(n)
        with m.If(self.renew | self.open):
            m.d.sync += eligible.eq(opened)
        with m.Else():
            m.d.sync += eligible.eq(eligible & ~stranger)
        matches = Signal(n)
        for i in range(n):
            digest = Signal(DIGEST_WIDTH, name=f"digest{i}", reset_less=True)
            with m.If(self.open & is_free[i]):
                m.d.sync += [opened[i].eq(1), eligible[i].eq(1)]
            with m.If(is_free[i] & ~opened[i]):
                m.d.sync += digest.eq(self.opened_digest)
            with m.If(self.close & (self.close_index == i)):
                m.d.sync += [opened[i].eq(0), eligible[i].eq(0)]
            m.d.comb += matches[i].eq(eligible[i] & equal(m, digest, self.digest))
        # ``open`` comes late in its cycle, so what it opens is written in the next four.
        writing = Signal(4)
        written_index = Signal(range(n), reset_less=True)
        m.d.sync += writing.eq(Cat(self.open, writing[:-1]))
        with m.If(self.open):
            m.d.sync += written_index.eq(self.free_index)
        self._find_overlaps(m, opened, writing[0])
        with m.If(self.open):
            m.d.sync += self.count.eq(self.count + 1)
        with m.Elif(self.close):
            m.d.sync += self.count.eq(self.count - 1)

        m.d.sync += [self.free_index.eq(lowest_free), self.free.eq(~opened.all())]
        self._keep_rows(m, writing, written_index)
        self._identify(m, matches, eligible, stranger, writing, written_index)

        shape = progress_layout(self._parameters)
        m.submodules.progresses = progresses = memory.Memory(shape=shape, depth=n, init=[])
        before, progress_write = progresses.read_port(domain="comb"), progresses.write_port()
        after = Signal(shape)
        index = Signal(range(n), reset_less=True)
        m.d.sync += [
            index.eq(self.index),
            data_register(m, self.progress).eq(before.data),
        ]
        m.d.comb += [
            before.addr.eq(Mux(self.marking, self.mark_index, index)),
            # Chosen before the difference: ``newly`` is 0 for a message that is opened.
            after.missing.eq(
                Mux(self.marking, self.progress.missing, ~self.opened.others) - self.newly
            ),
            after.head.eq(self.progress.head | self.head),
            after.tail.eq(self.progress.tail | self.tail),
            # What a free tracker has is of no meaning until it is opened.
            progress_write.en.eq((self.prepare & self.free & ~self.marking) | self.mark),
            progress_write.addr.eq(Mux(self.marking, self.mark_index, self.free_index)),
            progress_write.data.missing.eq(after.missing),
            progress_write.data.head.eq(self.marking & after.head),
            progress_write.data.tail.eq(self.marking & after.tail),
        ]
        with m.If(self.close):
            m.d.sync += self.complete.eq(0)
        newly = self.newly[: len(before.data.missing)] | C(0, len(before.data.missing))
        nothing_missing = equal(m, self.progress.missing, newly)
        with m.If(self.mark):
            m.d.sync += [
                self.complete.eq(nothing_missing & after.head & after.tail),
                self.complete_index.eq(self.mark_index),
            ]

        self._find_expired(m, opened, writing[0], written_index)
        return m

    def _keep_rows(self, m, writing, written_index):
        """Rows of four words. What a segment is compared with is in the second."""
        n = self._parameters.n_tracker
        shape = tracker_layout(self._parameters)
        low, high = name_parts(self.opened.name.as_value())
        words = (
            (low, ("start", "end", "granule_log2", "others")),
            (C(0, 0), ("stag", "base", "mlen")),
            (
                C(0, 0),
                (
                    "immediate",
                    "immediate_valid",
                    "solicited",
                    "opcode",
                    "cq",
                    "wqe_index",
                    "map_base",
                    "map_addr",
                ),
            ),
            (high, ("first", "last")),
        )
        shapes = [
            data.StructLayout({"name": len(part)} | {name: shape[name].shape for name in fields})
            for part, fields in words
        ]
        written = []
        for number, ((part, fields), word_shape) in enumerate(zip(words, shapes, strict=True)):
            word = Signal(word_shape, name=f"row_word{number}")
            m.d.comb += word.name.eq(part)
            m.d.comb += [word[name].eq(self.opened[name]) for name in fields]
            written.append(word.as_value())
        keeping = Signal(4)
        writes = Signal(4)
        m.d.sync += keeping.eq(Mux(self.keep, 1, keeping << 1))
        m.d.comb += writes.eq(keeping | writing)

        # No word is read while it is written: reading begins at the first, one behind.
        m.submodules.rows = rows = memory.Memory(
            shape=max(word.size for word in shapes),
            depth=len(words) * (n + 1),
            init=[],
            attrs=_BLOCK_RAM | {"no_rw_check": 1},
        )
        read = rows.read_port()
        write = rows.write_port()
        # Of the second word a part may be 0 where the rest is not.
        begins, *follow = Cat(self.prepare | self.keep, Mux(self.keep, 0, writes)[:-1])
        place_width = shapes[1]["mlen"].offset
        place, beside = written[1][:place_width], Cat(C(0, place_width), written[1][place_width:])
        is_bare = self.keep_bare & keeping[0]
        choices = (
            (begins, written[0]),
            (follow[0] & ~is_bare, place),
            (follow[0], beside),
            (follow[1], written[2]),
            (follow[2], written[3]),
        )
        # It stays at the last word, of which ``advance`` takes the name's high part.
        turn, turn_next = Signal(2), Signal(2)
        is_read, is_word = Signal(len(words)), Signal(len(words))
        word = Signal(rows.shape, reset_less=True)
        m.d.comb += [
            turn.eq(Mux(self.look, 1, Mux(self.first | keeping[1], 0, turn_next))),
            read.addr.eq(Cat(turn, self.index)),
            write.addr.eq(
                Cat(
                    writes[1] | writes[3],
                    writes[2] | writes[3],
                    Mux(keeping.any(), n, written_index),
                )
            ),
            write.data.eq(chosen_after(m, choices)),
            write.en.eq(writes.any()),
        ]
        m.d.sync += [
            turn_next.eq(Mux(turn.all(), turn, turn + 1)),
            is_read.eq(1 << turn),
            is_word.eq(is_read),
            word.eq(read.data),
        ]
        # ``word``, the memory's own register, is the row's last word as long as the row stays.
        # The first one's name is a part on its own.
        name_word = data_register(m, self.name_word)
        rest = Signal(shapes[0].size - len(name_word), reset_less=True)
        second, third = (
            Signal(word_shape, name=name, reset_less=True)
            for name, word_shape in zip(("second", "third"), shapes[1:3], strict=True)
        )
        with m.If(is_word[0] | self.advance):
            m.d.sync += name_word.eq(word)
        with m.If(is_word[0]):
            m.d.sync += rest.eq(word[len(name_word) :])
        for number, kept in ((1, second), (2, third)):
            with m.If(is_word[number]):
                m.d.sync += kept.as_value().eq(word)
        first = data.View(shapes[0], Cat(name_word, rest))
        looked_at, fourth = (data.View(shapes[n], word[: shapes[n].size]) for n in (1, 3))
        m.d.comb += [
            self.row.name.eq(Cat(first.name, fourth.name)),
            self.there.eq(is_word[-1]),
        ]
        for (_, fields), kept in zip(words, (first, second, third, fourth), strict=True):
            m.d.comb += [self.row[name].eq(kept[name]) for name in fields]
        m.d.comb += [self.place[name].eq(looked_at[name]) for name in words[1][1]]

    def _identify(self, m, matches, eligible, stranger, writing, written_index):
        """Which of those with the digest is the message: spans and names, in four words. Who is
        not is ``stranger``."""
        n = self._parameters.n_tracker
        span_shape = span_layout(self._parameters)
        map_base = self.opened.map_base
        first_shape = data.StructLayout(
            {
                "start": span_shape["start"].shape,
                "granule_log2": 5,
                "map_base": len(map_base),
            }
        )
        # The address is to be alone in front of its word. Names fill what is left.
        ahead = (first_shape.size, 64, 0, 0)
        of_opened, of_asked = _compared(self.opened.name), _compared(self.name)
        width = max(64, -(-(sum(ahead) + len(of_opened)) // len(ahead)))
        first_written = Signal(first_shape)
        m.d.comb += [
            first_written.start.eq(self.opened_start),
            first_written.granule_log2.eq(self.opened.granule_log2),
            first_written.map_base.eq(map_base),
        ]
        heads = (first_written.as_value(), self.dma_addr, C(0, 0), C(0, 0))
        places, written, at = [], [], 0
        for head in heads:
            places.append(slice(at, min(len(of_opened), at + width - len(head))))
            written.append(Cat(head, of_opened[places[-1]]))
            at = places[-1].stop
        # No word is read while it is written: reading begins at the first, one behind.
        m.submodules.names = names = memory.Memory(
            shape=width, depth=len(heads) * n, init=[], attrs=_BLOCK_RAM | {"no_rw_check": 1}
        )
        read, write = names.read_port(), names.write_port()
        candidates = Signal(n)
        # Of one candidate its number is the OR of what each adds to it, two gates in front of the
        # address. Of several it is of no meaning, and the lowest is looked at a cycle later. Of two
        # the other is looked at as soon as one is out.
        several = Signal()
        lowest = Signal(range(n), reset_less=True)
        looked_at, before = Signal(range(n)), Signal(range(n), reset_less=True)
        turn, turn_next = Signal(2), Signal(2)
        is_read, is_word = Signal(len(heads)), Signal(len(heads))
        word = Signal(width, reset_less=True)
        # In parts, for the path to them is long.
        founds = Signal(4)
        m.d.comb += self.found.eq(founds.any())
        m.d.sync += [
            candidates.eq(matches),
            founds.eq(Cat(matches[part :: len(founds)].any() for part in range(len(founds)))),
            self.seen.eq(self.found),
            several.eq(_is_several(candidates & eligible)),
            lowest.eq(lowest_set(candidates)),
            self.found_index.eq(looked_at),
            before.eq(self.found_index),
            turn_next.eq(turn + 1),
            is_read.eq(Mux(read.en, 1 << turn, 0)),
            is_word.eq(is_read),
            word.eq(read.data),
        ]
        with m.If(writing[0]):
            m.d.sync += turn_next.eq(0)
        m.d.comb += [
            self.match.eq(candidates),
            looked_at.eq(Mux(several, lowest, _number(candidates))),
            turn.eq(Mux(self.begin, 0, turn_next)),
            read.addr.eq(Cat(turn, looked_at)),
            read.en.eq(~writing[0]),
            write.addr.eq(Cat(writing[1] | writing[3], writing[2] | writing[3], written_index)),
            write.data.eq(
                chosen_after(
                    m, zip((self.prepare | self.keep, *writing[:-1]), written, strict=True)
                )
            ),
            write.en.eq(writing.any()),
        ]
        first = data.View(first_shape, word[: first_shape.size])
        owns = Signal(len(heads))
        m.d.comb += [
            self.span.start.eq(first.start),
            self.span.dma_addr.eq(word),
            self.own.eq(owns.all()),
        ]
        for number, (head, place) in enumerate(zip(heads, places, strict=True)):
            asked = of_asked[place]
            same = equal(m, word[len(head) :][: len(asked)], asked)
            with m.If(is_word[number]):
                m.d.sync += owns[number].eq(same)
        # Words of two trackers are no name, even if each is like what is asked for.
        moved = Signal()
        m.d.comb += moved.eq(self.found_index != before)
        with m.If(moved):
            m.d.sync += owns.eq(0)
        granule_log2, place = (
            data_register(m, output) for output in (self.span.granule_log2, self.span.map_base)
        )
        with m.If(is_word[0]):
            m.d.sync += [
                granule_log2.eq(first.granule_log2),
                place.eq(Cat(C(0, 6), first.map_base)),
            ]

        # ``own`` is right when the tracker has been the first for six cycles, with no ``begin``
        # that puts the words out of turn: then all have been read and compared. If another takes
        # its place because it closes, that is seen in the third cycle after.
        unsettled, was_seen = Signal(), Signal()
        settled = Signal(len(heads))
        m.d.sync += [
            unsettled.eq(
                self.renew
                | self.begin
                | writing[1]  # then it begins at the first word
                | (self.close & (self.close_index == self.found_index))
            ),
            settled.eq(Cat(1, settled[:-1])),
            was_seen.eq(self.seen),
        ]
        with m.If(~self.seen | ~was_seen | moved | unsettled):
            m.d.sync += settled.eq(0)
        m.d.comb += self.sure.eq(~self.seen | (settled[-1] & self.own))
        # Of ``before``: which is found has maybe changed a cycle ago, because of this.
        with m.If(settled[-1] & ~self.own & ~unsettled):
            m.d.comb += stranger.eq(1 << before)

    def _find_overlaps(self, m, opened, writing):
        """Tracker ``banks * step + bank`` is in row ``step`` of its bank."""
        n = self._parameters.n_tracker
        steps = min(SCAN_STEPS, n)
        step = Signal(range(steps))
        step_compared = Signal.like(step)
        banks = n // steps
        bank_bits = exact_log2(banks)
        # While no other is open, the lower half in half the steps. It takes some cycles until all
        # that is compared has been chosen so.
        lower = max(1, steps // 2)
        is_many = Signal()
        many_for = Signal(range(SCAN_STEPS))
        following = Signal.like(step)
        m.d.comb += [
            is_many.eq(opened[banks * lower :].any()),
            following.eq(step + 1),
            self.many.eq(many_for != 0),
        ]
        m.d.sync += [
            step.eq(Mux(is_many, following, following[: exact_log2(lower)])),
            step_compared.eq(step),
        ]
        with m.If(is_many):
            m.d.sync += many_for.eq(SCAN_STEPS - 1)
        with m.Elif(self.many):
            m.d.sync += many_for.eq(many_for - 1)
        extent_shape = data.StructLayout(
            {
                "start": len(self.start),
                "end": len(self.end),
                "region": exact_log2(self._parameters.n_region),
            }
        )
        for bank in range(banks):
            extents = memory.Memory(shape=extent_shape, depth=steps, init=[])
            m.submodules[f"extents{bank}"] = extents
            extent_write, extent_read = extents.write_port(), extents.read_port(domain="comb")
            extent = Signal(extent_shape, name=f"extent{bank}", reset_less=True)
            in_bank = self.free_index[:bank_bits] == bank
            m.d.comb += [
                extent_write.addr.eq(self.free_index[bank_bits:]),
                extent_write.data.start.eq(self.opened_start),
                extent_write.data.end.eq(self.opened_end),
                extent_write.en.eq(writing & in_bank),
                extent_write.data.region.eq(self.opened.stag[8:]),
                extent_read.addr.eq(step),
            ]
            apart = Signal(3, name=f"apart{bank}")
            m.d.sync += extent.eq(extent_read.data)
            m.d.comb += apart.eq(
                Cat(
                    ~equal(m, extent.region, self.region),
                    _below(self.end, extent.start),
                    _below(extent.end, self.start),
                )
            )
            for i in range(steps):
                tracker = banks * i + bank
                conditions = Signal(3, name=f"conditions{tracker}", reset_less=True)
                with m.If(step_compared == i):
                    m.d.sync += conditions.eq(apart)
                m.d.comb += self.overlap[tracker].eq(opened[tracker] & ~conditions.any())

    def _find_expired(self, m, opened, writing, written_index):
        n = self._parameters.n_tracker
        m.submodules.touched = touched = memory.Memory(shape=16, depth=n, init=[])
        touched_read = touched.read_port()
        touched_write = touched.write_port()
        owner_shape = data.StructLayout(
            {
                "timeout": 16,
                "qpn": exact_log2(self._parameters.n_qp),
                "region": exact_log2(self._parameters.n_region),
            }
        )
        m.submodules.owners = owners = memory.Memory(shape=owner_shape, depth=n, init=[])
        owners_read = owners.read_port()
        owners_write = owners.write_port()
        scan = Signal(range(n))
        age = Signal(16, reset_less=True)
        timeout = Signal(16, reset_less=True)
        named = Signal(reset_less=True)
        is_open = Signal()
        # ``ending`` is there for many looks.
        of_qp, of_region = Signal(), Signal()
        m.d.sync += [
            of_qp.eq(self.ending.target == CloseTarget.QP),
            of_region.eq(self.ending.target == CloseTarget.REGION),
        ]
        owner = Mux(of_qp, owners_read.data.qpn, owners_read.data.region)
        m.d.comb += [
            touched_read.addr.eq(scan),
            owners_read.addr.eq(scan),
            owners_write.addr.eq(written_index),
            owners_write.data.timeout.eq(self.timeout),
            owners_write.data.qpn.eq(self.opened.name.qpn),
            owners_write.data.region.eq(self.opened.stag[8:]),
            owners_write.en.eq(writing),
            self.expired_index.eq(scan),
        ]
        # Late in its cycle, too.
        touches = Signal()
        m.d.comb += touched_write.en.eq(touches & ~self.untouch)
        m.d.sync += [
            data_register(m, touched_write.addr).eq(self.touch_index),
            data_register(m, touched_write.data).eq(self.tick),
            touches.eq(self.open | self.touch),
            is_open.eq(opened.bit_select(scan, 1)),
            age.eq(self.tick - touched_read.data),
            timeout.eq(owners_read.data.timeout),
            named.eq((of_qp | of_region) & equal(m, self.ending.row, (owner | C(0, 16))[:16])),
        ]

        # The first of the looks may have begun before ``ending`` was there.
        looks = Signal(range(n + 2))
        m.d.comb += self.ended.eq(self.ending.active & (looks == 0))
        looked = Signal()
        m.d.sync += looked.eq(0)
        with m.If(~self.ending.active):
            m.d.sync += looks.eq(n + 1)
        with m.Elif(looked & ~self.ended):
            m.d.sync += looks.eq(looks - 1)

        # What has been read of the tracker before an open, touch or close may be of the past then.
        # They come late in their cycle, so this is of the cycle before.
        changed = Signal()
        expired = Signal()
        m.d.comb += self.expired.eq(expired & ~changed)
        m.d.sync += changed.eq(
            (writing & (written_index == scan))
            | ((self.open | self.touch) & (self.touch_index == scan))
            | (touches & (touched_write.addr == scan))
            | (self.close & (self.close_index == scan))
        )
        with m.FSM(name="scan"):
            with m.State("READ"):
                with m.If(~changed):
                    m.next = "AGE"
            with m.State("AGE"):
                m.next = "COMPARE"
                with m.If(changed):
                    m.next = "READ"
            with m.State("COMPARE"):
                m.next = "READ"
                with m.If(~changed):
                    with m.If(is_open & ((age >= timeout) | (named & self.ending.active))):
                        m.d.sync += expired.eq(1)
                        m.next = "EXPIRED"
                    with m.Else():
                        m.d.sync += [scan.eq(scan + 1), looked.eq(1)]
            with m.State("EXPIRED"):
                with m.If(changed):
                    m.d.sync += expired.eq(0)
                    m.next = "READ"
