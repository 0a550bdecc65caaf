"""Cut runs of words into DMA write bursts, and hear their answers.

::

    commands {word, end, qpn} --> [BurstSplitter] --> bursts {address, beats}
                                        |
                        queue of {final, qpn} of each burst
                                        v
                     done, error -------+-----------> answered, fault

One burst a cycle; the first one a cycle after the command. None crosses 128 octets, hence none a
4 KiB page, which AXI forbids (Arm IHI 0022, A3.4.1).
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import BURST_WORDS, Parameters

from ..layouts import Burst
from ..stream.queue import Queue
from .receive_layouts import fault_layout

__all__ = ["BlockRun", "BurstSplitter", "WriteBursts", "block_run_layout"]

_BLOCK_LOG2 = BURST_WORDS.bit_length() - 1
_END_WIDTH = 25


class BlockRun(data.Struct):
    """Words of 8 octets, from address 8 * ``word`` on. ``end`` is the number of the last one, that
    of the first word of the first one's block being 0. ``one_block``: that is less than a block,
    which who gives the command may know earlier."""

    word: 61
    end: _END_WIDTH
    one_block: 1


def block_run_layout(parameters: Parameters) -> data.StructLayout:
    """A BlockRun that is written on behalf of QP ``qpn``."""
    return data.StructLayout({"run": BlockRun, "qpn": exact_log2(parameters.n_qp)})


class BurstSplitter(wiring.Component):
    """Bursts of a run of words, in order, cut at multiples of ``BURST_WORDS``.

    Parameters
    ----------
    end_width : int
        Bits of a run's ``end`` that may be set.

    Members
    -------
    commands : In(stream of BlockRun)
    bursts : Out(stream of Burst)
    final : Out(1)
        With ``bursts``: the last one of its command.
    """

    def __init__(self, end_width: int):
        self._blocks_width = end_width - _BLOCK_LOG2
        super().__init__(
            {
                "commands": In(stream.Signature(BlockRun)),
                "bursts": Out(stream.Signature(Burst)),
                "final": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()

        active = Signal()
        block = Signal(61 - _BLOCK_LOG2, reset_less=True)
        first = Signal(_BLOCK_LOG2, reset_less=True)
        last = Signal(_BLOCK_LOG2, reset_less=True)
        left = Signal(self._blocks_width, reset_less=True)  # blocks after this one
        end_number = self.commands.payload.end[_BLOCK_LOG2:][: self._blocks_width]
        m.d.comb += [
            self.bursts.valid.eq(active),
            self.bursts.payload.address.eq(Cat(C(0, 3), first, block)),
            self.bursts.payload.beats.eq(Mux(self.final, last, BURST_WORDS - 1) - first),
            self.commands.ready.eq(~active),
        ]
        with m.If(self.bursts.valid & self.bursts.ready):
            m.d.sync += [
                block.eq(block + 1),
                first.eq(0),
                left.eq(left - 1),
                self.final.eq(left == 1),
                active.eq(~self.final),
            ]
        # Whatever is there, until it counts: no path goes from ``commands.valid`` to all of this.
        with m.If(~active):
            m.d.sync += [
                active.eq(self.commands.valid),
                Cat(first, block).eq(self.commands.payload.word),
                last.eq(self.commands.payload.end),
                left.eq(end_number),
                self.final.eq(self.commands.payload.one_block),
            ]
        return m


class WriteBursts(wiring.Component):
    """Bursts of runs of words; which of them are answered, and whose have failed.

    Parameters
    ----------
    parameters : Parameters
    outstanding : int
        Bursts that may wait for their answer, at least 2.
    end_width : int
        As of :class:`BurstSplitter`.

    Members
    -------
    commands : In(stream of block_run_layout)
    bursts : Out(stream of Burst)
    done, error : In(1)
        As of ``WriteClientSignature``.
    hold : In(1)
        No burst is offered but one that has been, from two cycles later on.
    answered : Out(1)
        Strobe, with ``done``: all bursts of the next command have been answered.
    fault : Out(fault)
        With ``error``.
    """

    def __init__(self, parameters: Parameters, outstanding: int, end_width: int = _END_WIDTH):
        if outstanding < 2:
            raise ValueError(f"outstanding is {outstanding}; it takes 2 or more")
        self._qpn_width = exact_log2(parameters.n_qp)
        self._outstanding = outstanding
        self._end_width = end_width
        super().__init__(
            {
                "commands": In(stream.Signature(block_run_layout(parameters))),
                "bursts": Out(stream.Signature(Burst)),
                "done": In(1),
                "error": In(1),
                "hold": In(1),
                "answered": Out(1),
                "fault": Out(fault_layout(parameters)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.splitter = splitter = BurstSplitter(self._end_width)
        # Of each burst on its way: whether it is the last one of its command, and for whom.
        flight_shape = data.StructLayout({"final": 1, "qpn": self._qpn_width})
        m.submodules.flights = flights = Queue(flight_shape, self._outstanding)
        flight = flights.o.payload

        qpn = Signal(self._qpn_width, reset_less=True)
        may_offer = Signal(init=1)
        room = flights.i.ready & may_offer
        m.d.comb += [
            splitter.commands.payload.eq(self.commands.payload.run),
            splitter.commands.valid.eq(self.commands.valid),
            self.commands.ready.eq(splitter.commands.ready),
            self.bursts.payload.eq(splitter.bursts.payload),
            self.bursts.valid.eq(splitter.bursts.valid & room),
            splitter.bursts.ready.eq(self.bursts.ready & room),
            flights.i.payload.final.eq(splitter.final),
            flights.i.payload.qpn.eq(qpn),
            flights.i.valid.eq(splitter.bursts.valid & self.bursts.ready & may_offer),
            flights.o.ready.eq(self.done),
        ]
        with m.If(self.commands.valid & self.commands.ready):
            m.d.sync += qpn.eq(self.commands.payload.qpn)
        with m.If(~self.bursts.valid | self.bursts.ready):
            m.d.sync += may_offer.eq(~self.hold)
        m.d.comb += [
            self.answered.eq(self.done & flight.final),
            self.fault.valid.eq(self.done & self.error),
            self.fault.qpn.eq(flight.qpn),
        ]
        return m
