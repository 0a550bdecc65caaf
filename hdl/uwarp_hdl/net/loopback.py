"""Loopback: frames to the own MAC address, and to groups, come in again (device behaviour, 7.10).

::

    tx <--------+--------------------------------------- frame sender
                +--> register ------+
                                    OR --> o, to the frame receiver
    rx ------+----------------------+
             +--> FIFO -> register -+

A looped frame waits in the sender until the receive side is between two frames; then its words come
in as they are sent. Frames from the MAC pass without latency, but for those that come during a
looped frame: they wait in a FIFO, which has to be all but empty again before another looped frame
begins. So the MAC is never held back, and its frames go first.

The FIFO has room for seven eighths of the longest frame. What fills it is a frame of nearly that
length against a full wire, or one to a group that the wire takes in slowly: such a frame is cut,
and the receive side drops it. One that has waited for long, since the wire brings frame upon frame,
is let go without coming in. Both are counted, and the transmitter is held back no longer.

One word a cycle. A looped frame's words come out one cycle after they were sent; those of the MAC's
frames that wait 3 cycles after they came, or after the looped frame's last.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter, Parameters
from uwarp.wire import FRAME_OVERHEAD

from ..compare import equal
from ..interfaces import PacketSignature
from ..layouts import PacketBeat, frame_words

__all__ = ["Loopback"]

#: Words in the FIFO that do not keep a looped frame from beginning: a wire that leaves a word or
#: two between frames never lets it run empty.
_FEW = 8

#: Room that is left when the FIFO counts as full: words come until it gives its first.
_MARGIN = 16

#: Cycles after a frame that does not go to the wire: what the wire would take besides its octets.
_GAP = FRAME_OVERHEAD // 8

#: Cycles that a looped frame waits for its turn at most: some three of the longest frames.
_PATIENCE = 4096


class Loopback(wiring.Component):
    """Let frames through to the wire, or to the frame receiver, or to both.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    sent : In(PacketSignature())
        Frames to send, each without a gap. Ready but for what ``tx`` holds up, before looped
        frames, for 2 cycles at least, and for 3 after those that do not go to the wire.
    own, group : In(1)
        Of the frame that ``sent`` offers: its destination is the port's own MAC address, so it does
        not go to the wire; or it has the group bit.
    loop_groups : In(1)
        Frames to groups come in again. It may change at any time and tells for frames that are
        offered later.
    tx : Out(PacketSignature())
        To the MAC.
    rx : In(PacketSignature())
        From the MAC; always ready.
    o : Out(PacketSignature())
        To the frame receiver, which is always ready.
    cut : Out(1)
        Strobe: the frame whose last word ``o`` offers is to be dropped for want of room.
    events : Out
        RX_FRAMES and DROP_OVERFLOW together for each looped frame that did not get its turn.
    busy : Out(1)
        Part of a looped frame is here, or of one from the MAC that had to wait.
    """

    def __init__(self, parameters: Parameters) -> None:
        words = frame_words(parameters)
        self._depth = 1 << (words - words // 8).bit_length()
        super().__init__(
            {
                "sent": In(PacketSignature()),
                "own": In(1),
                "group": In(1),
                "loop_groups": In(1),
                "tx": Out(PacketSignature()),
                "rx": In(PacketSignature()),
                "o": Out(PacketSignature()),
                "cut": Out(1),
                "events": Out(len(Counter)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        sent, rx, o = self.sent, self.rx, self.o
        # Frames come from the MAC, or a looped one does, or those that waited for it.
        passing, looping, holding = Signal(init=1), Signal(), Signal()
        starts = Signal()
        wants, taken, ends = self._send(m, starts)

        gives, few, full = Signal(), Signal(), Signal()
        fetched, unread, word = self._hold(m, rx.valid & ~passing, gives, few, full)
        inside = Signal()  # a frame from the MAC, which goes on
        # The last word given, if any since the looped frame, ended its frame.
        ended, ended_before = Signal(), Signal()
        held = Signal(PacketBeat)
        held_valid = Signal()
        # Nothing ``wants`` its turn while a looped frame comes in.
        turns = wants & few & ended
        m.d.comb += [
            ended.eq(Mux(held_valid, held.last, ended_before)),
            starts.eq(Mux(passing, wants & Mux(rx.valid, rx.p.last, ~inside), turns)),
            gives.eq(holding & fetched & ~turns),
            self.busy.eq(~passing),
        ]
        m.d.sync += ended_before.eq(ended | looping)
        with m.If(passing & rx.valid):
            m.d.sync += inside.eq(~rx.p.last)
        with m.If(holding):
            m.d.sync += inside.eq(~ended)
            with m.If(~rx.valid & ~fetched & ~unread):
                m.d.sync += [holding.eq(0), passing.eq(1)]
        with m.If(looping & (full | ends)):
            m.d.sync += [looping.eq(0), holding.eq(1)]
        with m.If(starts):
            m.d.sync += [passing.eq(0), holding.eq(0), looping.eq(1)]

        # Each is 0 when another goes on: that is the registers' reset, and their OR is the choice.
        looped, passed = Signal(PacketBeat), Signal(PacketBeat)
        looped_valid = Signal()
        m.d.sync += [
            looped_valid.eq(looping & (taken | full)),
            looped.eq(sent.p),
            looped.last.eq(sent.p.last | full),
            self.cut.eq(looping & full & ~ends),
            held_valid.eq(gives),
            held.eq(word),
        ]
        with m.If(~looping):
            m.d.sync += looped.as_value().eq(0)
        with m.If(~gives):
            m.d.sync += held.as_value().eq(0)
        m.d.comb += [
            rx.ready.eq(1),
            passed.as_value().eq(Mux(passing, rx.p.as_value(), 0)),
            o.p.as_value().eq(looped.as_value() | held.as_value() | passed.as_value()),
            o.valid.eq(looped_valid | held_valid | (rx.valid & passing)),
        ]
        return m

    def _send(self, m, starts):
        """From ``sent`` to ``tx``: whether its frame waits to come in, and whether a word, and the
        last one, is taken."""
        sent = self.sent
        # Whether a frame loops stays as it was in the cycle before it was offered; that it has its
        # turn, or goes on without one, until its end.
        loop_groups = Signal()
        wants, opened, groups_pass = Signal(), Signal(), Signal()
        gap = Signal(range(_GAP + 1))
        clear = Signal(init=1)  # ``gap`` is 0
        taken, ends, gives_up = Signal(), Signal(), Signal()
        open_way = clear & (~self.group | groups_pass)
        m.d.comb += [
            self.tx.p.eq(sent.p),
            self.tx.valid.eq(sent.valid & ~self.own & open_way),
            sent.ready.eq(Mux(self.own, clear & opened, self.tx.ready & open_way)),
            taken.eq(sent.valid & sent.ready),
            ends.eq(taken & sent.p.last),
        ]
        opens = starts | gives_up
        m.d.sync += [
            wants.eq(sent.valid & (self.own | (self.group & loop_groups)) & ~opened & ~opens),
            opened.eq((opened | opens) & ~ends),
            groups_pass.eq(((opened | opens) & ~ends) | ~loop_groups),
        ]
        with m.If(~sent.valid | ends):
            m.d.sync += [loop_groups.eq(self.loop_groups), groups_pass.eq(~self.loop_groups)]
        # That is an end of an ``own`` one: not by ``sent.ready``, which is late.
        with m.If(sent.valid & sent.p.last & self.own & clear & opened):
            m.d.sync += [gap.eq(_GAP), clear.eq(0)]
        with m.Elif(gap != 0):
            m.d.sync += [gap.eq(gap - 1), clear.eq(gap == 1)]

        waited = Signal(range(_PATIENCE + 1))
        m.d.comb += gives_up.eq(wants & waited[-1] & ~starts)
        m.d.sync += [
            waited.eq(waited + 1),
            self.events.eq(0),
            self.events[Counter.RX_FRAMES].eq(gives_up),
            self.events[Counter.DROP_OVERFLOW].eq(gives_up),
        ]
        with m.If(~wants):
            m.d.sync += waited.eq(0)
        return wants, taken, ends

    def _hold(self, m, puts, gives, few, full):
        """The FIFO for words of ``rx``, which ``gives`` the next: whether that is fetched, whether
        others wait behind it, and the word."""
        # No word is read while it is written: synthesis need not add logic for that case.
        m.submodules.words = words = memory.Memory(
            shape=PacketBeat, depth=self._depth, init=[], attrs={"no_rw_check": 1}
        )
        writer, reader = words.write_port(), words.read_port()
        write, read, level = (
            Signal(range(self._depth), name=name) for name in ("write", "read", "level")
        )
        fetched, unread = Signal(), Signal()
        m.d.comb += [
            writer.addr.eq(write),
            writer.data.eq(self.rx.p),
            writer.en.eq(puts),
            unread.eq(~equal(m, write, read)),
            reader.addr.eq(read),
            reader.en.eq(unread & (~fetched | gives)),
            level.eq(write - read),
        ]
        m.d.sync += [
            fetched.eq(reader.en | (fetched & ~gives)),
            few.eq(level < _FEW),
            full.eq(level >= self._depth - _MARGIN),
        ]
        with m.If(writer.en):
            m.d.sync += write.eq(write + 1)
        with m.If(reader.en):
            m.d.sync += read.eq(read + 1)
        return fetched, unread, reader.data
