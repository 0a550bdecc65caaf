"""MESSAGES_CLOSE: what was before the write passes, then messages close (device behaviour, 4.6).

    request -> ARRIVING -> QUEUED -> INSIDE -> SCAN -> HELD -> TAKEN -> WRITTEN -> done
               frames      datagrams           trackers  completions

Each step waits for what was there when it began, and for nothing that came later: traffic to
others does not prolong it. With nothing on its way it takes some 50 cycles and 3 for each tracker.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..layouts import CloseRequest

__all__ = ["MessageClose"]

_FRAME_CYCLES = 20
"""From a frame's last word into the frame receiver until its datagram is queued there, and more."""
_QUEUE_PAUSE = 7
"""Cycles without an offer that say that a queue is empty. Others are at most 4 long."""
_COMPLETION_CYCLES = 7
"""From a completion's taking until it counts among those not yet written, and more."""


class MessageClose(wiring.Component):
    """Close the messages that a request names, of all datagrams that came before it.

    Parameters
    ----------
    datagrams : int
        Datagrams that may wait in the queue that offers them.

    Members
    -------
    request : In(CloseRequest)
    done : Out(1)
        Strobe: the completions of those messages are in memory.
    offered, taken : In(1)
        A datagram waits; one, or a copy, is taken.
    passed : In(1)
        A datagram is taken, or the last copy of one.
    opening_offered, opening_taken : In(1)
        A Read to be opened waits; is taken.
    settled : In(1)
        A datagram or an opening taken before has met its fate.
    ending : Out(CloseRequest)
    ended : In(1)
        All messages that ``ending`` names have closed: their completions count in ``held``.
    held : In(8)
        Completions that wait for their payload or map. They leave in order.
    leaves : In(1)
        One of them leaves.
    unwritten : In(8)
        Completions that have left and whose CQEs are not in memory. They are written in order.
    written : In(1)
        A CQE is in memory.
    """

    def __init__(self, datagrams: int):
        self._datagrams = datagrams
        super().__init__(
            {
                "request": In(CloseRequest),
                "done": Out(1),
                "offered": In(1),
                "taken": In(1),
                "opening_offered": In(1),
                "opening_taken": In(1),
                "passed": In(1),
                "settled": In(1),
                "ending": Out(CloseRequest),
                "ended": In(1),
                "held": In(8),
                "leaves": In(1),
                "unwritten": In(8),
                "written": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # A cycle late: there is time. So a count to begin with needs no regard to what leaves, or
        # is written, beside it.
        late = {}
        for name in (
            "offered",
            "taken",
            "opening_offered",
            "opening_taken",
            "passed",
            "settled",
            "ended",
            "leaves",
            "written",
        ):
            late[name] = signal = Signal(name=name)
            m.d.sync += signal.eq(getattr(self, name))
        # Counted beside ``left``, a cycle later still, which begins with ``inside``, ``unwritten``.
        settled = Signal()
        inside = Signal(3)
        written = Signal()
        unwritten = Signal.like(self.unwritten)
        m.d.sync += [
            settled.eq(late["settled"]),
            written.eq(late["written"]),
            unwritten.eq(self.unwritten),
            inside.eq(inside + (late["taken"] | late["opening_taken"]) - late["settled"]),
        ]

        left = Signal(range(max(256, self._datagrams + 1)))
        none_left = Signal()
        pause = Signal(range(_QUEUE_PAUSE + 1))
        no_opening = Signal()  # nor one that was offered when QUEUED began
        active = Signal()
        m.d.comb += [
            self.ending.target.eq(self.request.target),
            self.ending.row.eq(self.request.row),
            self.ending.active.eq(active),
        ]

        def begin(count):
            m.d.sync += [left.eq(count), none_left.eq(count == 0)]

        def count_down(event, following, count):
            """Until ``left`` is 0; then begin with ``count`` of what follows."""
            with m.If(none_left):
                begin(count)
                m.next = following
            with m.Elif(event):
                m.d.sync += [left.eq(left - 1), none_left.eq(left == 1)]

        with m.FSM():
            with m.State("IDLE"):
                begin(_FRAME_CYCLES)
                with m.If(self.request.active):
                    m.next = "ARRIVING"
            with m.State("ARRIVING"):
                m.d.sync += [pause.eq(0), no_opening.eq(0)]
                count_down(1, "QUEUED", self._datagrams)
            with m.State("QUEUED"):
                gone = none_left | (pause == _QUEUE_PAUSE)
                with m.If(late["opening_taken"] | ~late["opening_offered"]):
                    m.d.sync += no_opening.eq(1)
                with m.If(gone):
                    with m.If(no_opening):
                        begin(inside)
                        m.next = "INSIDE"
                with m.Else():
                    m.d.sync += [
                        pause.eq(Mux(late["offered"], 0, pause + 1)),
                        left.eq(left - late["passed"]),
                        none_left.eq(left == late["passed"]),
                    ]
            with m.State("INSIDE"):
                m.d.sync += active.eq(none_left)
                count_down(settled, "SCAN", 0)
            with m.State("SCAN"):
                with m.If(late["ended"]):
                    m.d.sync += active.eq(0)
                    begin(self.held)
                    m.next = "HELD"
            with m.State("HELD"):
                count_down(late["leaves"], "TAKEN", _COMPLETION_CYCLES)
            with m.State("TAKEN"):
                count_down(1, "WRITTEN", unwritten)
            with m.State("WRITTEN"):
                # Those whose CQ has no ring are not written.
                count_down(written, "DONE", 0)
                with m.If(unwritten == 0):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.done.eq(1)
                m.next = "REST"
            with m.State("REST"):
                with m.If(~self.request.active):
                    m.next = "IDLE"
        return m
