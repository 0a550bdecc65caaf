"""Loopback: frames to the own MAC address, and to groups, come in again (device behaviour, 7.10).

::

    tx <--------+--------------------------------------- frame sender
                +--> packet FIFO --+
                                   +--> choice --> o, to the frame receiver
    rx ------+---------------------+
             +--> FIFO ------------+

Frames from the MAC pass without latency until a looped one begins, which it does when none of
theirs is there; what comes from the MAC meanwhile waits in a FIFO, of two parts, that holds as many
words as the longest frame has, so that the MAC is never held back. The FIFO empties before another
looped frame begins. A looped frame without room in the packet FIFO is dropped: the transmitter is
never held back either, but for the octets between frames on the wire.

One word a cycle; a looped frame's first word comes out 4 cycles after its last was sent.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter, Parameters
from uwarp.wire import FRAME_OVERHEAD

from ..interfaces import PacketSignature
from ..layouts import PacketBeat, frame_words
from ..stream.packet_fifo import PacketFifo
from ..stream.queue import Queue, connect_streams

__all__ = ["Loopback"]

#: Words that come from the MAC beside those that take a looped frame's place: while the way is
#: changed, and while the FIFO begins to give.
_MARGIN = 16

#: Cycles after a frame that does not go to the wire: what the wire would take besides its octets.
_GAP = FRAME_OVERHEAD // 8


class Loopback(wiring.Component):
    """Let frames through to the wire, or to the frame receiver, or to both.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    sent : In(PacketSignature())
        Frames to send. Ready but for what ``tx`` holds up and 3 cycles between frames.
    own, group : In(1)
        Of the frame that ``sent`` offers: its destination is the port's own MAC address, so it does
        not go to the wire; or it has the group bit.
    loop_groups : In(1)
        Frames to groups come in again. It may change at any time and tells for frames that begin.
    tx : Out(PacketSignature())
        To the MAC.
    rx : In(PacketSignature())
        From the MAC; always ready if ``o`` is.
    o : Out(PacketSignature())
        To the frame receiver.
    events : Out
        RX_FRAMES and DROP_OVERFLOW together for each looped frame that was dropped.
    busy : Out(1)
        A looped frame, or a part of one, is here, or a frame from the MAC that had to wait.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._frame_words = frame_words(parameters)
        super().__init__(
            {
                "sent": In(PacketSignature()),
                "own": In(1),
                "group": In(1),
                "loop_groups": In(1),
                "tx": Out(PacketSignature()),
                "rx": In(PacketSignature()),
                "o": Out(PacketSignature()),
                "events": Out(len(Counter)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        words = self._frame_words + _MARGIN
        depth = 1 << (words - 1).bit_length()
        m.submodules.looped = looped = PacketFifo(PacketBeat, depth)
        # Two in a row, each a power of two deep: block RAM of another depth has logic behind it.
        half = depth // 2
        rest = max(4, 1 << (words - half - 1).bit_length())
        m.submodules.held = held = Queue(PacketBeat, half, direct=False)
        m.submodules.held_rest = held_rest = Queue(PacketBeat, rest, direct=False)
        connect_streams(m, held.o, held_rest.i)
        begun, given = Signal(), Signal()
        waiting = Signal(range(depth))  # frames
        m.d.sync += waiting.eq(waiting + looped.commit - given)
        self._send(m, looped, begun)
        direct = self._receive(m, looped, held, held_rest, given)
        m.d.comb += self.busy.eq(begun | (waiting != 0) | ~direct)
        return m

    def _send(self, m, looped, begun):
        inside = Signal()
        group_looped = Signal()  # the frame under way
        loops = Signal()
        lost = Signal()
        lost_now = Signal()
        gap = Signal(range(_GAP + 1))
        open_way = Signal()
        taken = Signal()
        ends = Signal()
        sent = self.sent
        m.d.comb += [
            open_way.eq(gap == 0),
            loops.eq(self.own | Mux(inside, group_looped, self.group & self.loop_groups)),
            self.tx.p.eq(sent.p),
            self.tx.valid.eq(sent.valid & ~self.own & open_way),
            sent.ready.eq((self.own | self.tx.ready) & open_way),
            taken.eq(sent.valid & sent.ready),
            ends.eq(taken & sent.p.last),
            looped.i.p.eq(sent.p),
            looped.i.valid.eq(taken & loops & ~lost),
            lost_now.eq(lost | (taken & loops & ~looped.i.ready)),
            looped.commit.eq(ends & loops & ~lost_now),
            looped.discard.eq(ends & loops & lost_now),
            begun.eq(inside & loops),
        ]
        with m.If(open_way):
            with m.If(ends & self.own):
                m.d.sync += gap.eq(_GAP)
        with m.Else():
            m.d.sync += gap.eq(gap - 1)
        with m.If(taken):
            m.d.sync += [inside.eq(~ends), lost.eq(lost_now & ~ends)]
            with m.If(~inside):
                m.d.sync += group_looped.eq(loops)
        m.d.sync += self.events.eq(0)
        with m.If(looped.discard):
            m.d.sync += [
                self.events[Counter.RX_FRAMES].eq(1),
                self.events[Counter.DROP_OVERFLOW].eq(1),
            ]

    def _receive(self, m, looped, held, held_rest, given):
        rx, o = self.rx, self.o
        inside = Signal()  # a frame from the MAC, that passes
        m.d.comb += held.i.p.eq(rx.p)
        with m.FSM() as fsm:
            with m.State("MAC"):
                connect_streams(m, rx, o)
                with m.If(rx.valid):
                    with m.If(rx.ready):
                        m.d.sync += inside.eq(~rx.p.last)
                with m.Elif(~inside & looped.o.valid):
                    m.next = "LOOPED"
            with m.State("LOOPED"):
                connect_streams(m, looped.o, o)
                m.d.comb += [
                    held.i.valid.eq(rx.valid),
                    rx.ready.eq(held.i.ready),
                    given.eq(o.valid & o.ready & o.p.last),
                ]
                with m.If(given):
                    m.next = "HELD"
            with m.State("HELD"):
                connect_streams(m, held_rest.o, o)
                m.d.comb += [held.i.valid.eq(rx.valid), rx.ready.eq(held.i.ready)]
                with m.If(o.valid & o.ready):
                    m.d.sync += inside.eq(~o.p.last)
                with m.If(~rx.valid & (held.level == 0) & (held_rest.level == 0)):
                    m.next = "MAC"
        return fsm.ongoing("MAC")
