"""CQ, and CompChannel for those who wait instead of polling."""

from __future__ import annotations

import errno
import time
from collections import deque
from types import SimpleNamespace

from uwarp.contract import (
    CQ_ENTRY,
    CQE,
    MODERATION_ENTRY,
    TICK_CYCLES,
    Doorbell,
    Register,
    Table,
)

from .context import Context
from .errors import refuse
from .lifetime import Resource
from .memory import Memory
from .translate import completion
from .work_completion import WC

__all__ = ["CQ", "CompChannel"]


class CompChannel(Resource):
    """Where completion events of CQs arrive."""

    def __init__(self, context: Context) -> None:
        context._check_open()
        super().__init__(context)
        self.context = context
        context._write(Register.IRQ_ENABLE, 1)

    def __repr__(self) -> str:
        return f"<CompChannel of {self.context.name}{', closed' if self.closed else ''}>"

    def get_cq_event(self, cq: CQ, timeout: float | None = None) -> CQ:
        """Wait for the event that ``cq.req_notify`` asked for.

        Parameters
        ----------
        cq : CQ made with this channel.
        timeout : seconds of this process's clock; None waits for ever.

        Raises
        ------
        VerbsRDMAError
            ETIMEDOUT; EINVAL if the CQ has another channel or was not armed.
        """
        self._check_open()
        if cq.comp_channel is not self:
            raise refuse("this CQ has another channel")
        if not (cq._armed or cq._fired):
            raise refuse("this CQ is not armed: call req_notify first")
        deadline = None if timeout is None else time.monotonic() + timeout
        while not cq._fired:
            if cq._waiting:
                cq._fired = True
            elif self.context.device.interrupt:
                self.context._take_interrupts()
            elif deadline is not None and time.monotonic() > deadline:
                raise refuse(f"no event within {timeout} s", errno.ETIMEDOUT)
            else:
                self.context.device.progress()
        cq._armed = cq._fired = False
        cq.events += 1
        return cq


class CQ(Resource):
    """A completion queue.

    Parameters
    ----------
    context : Context
    cqe : completions that it must hold; rounded up to a power of two, 2 to 65,536.
    cq_context : anything, kept as an attribute.
    channel : CompChannel, for ``req_notify``.
    comp_vector : 0

    The device keeps a slot free for whatever it has begun, and waits (sends) or drops (receives)
    when there is none: a CQ never overruns.
    """

    def __init__(
        self,
        context: Context,
        cqe: int,
        cq_context: object = None,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
    ) -> None:
        context._check_open()
        if not 1 <= cqe <= 1 << 16:
            raise refuse(f"cqe is {cqe}; it takes 1 to {1 << 16}")
        if comp_vector:
            raise refuse(f"comp_vector is {comp_vector}; the device has 0 only")
        self.context = context
        self.cq_context = cq_context
        self.comp_channel = channel
        self.events = 0
        self._log2 = max(1, (cqe - 1).bit_length())
        self._consumer = 0
        self._waiting: deque[WC] = deque()  # taken from the ring, or made here, and not polled yet
        self._armed = self._fired = False
        self._row = context._cq_rows.take()
        self._memory = Memory(CQE.size << self._log2)
        self._memory.map(context.device)
        super().__init__(context, *([channel] if channel else []))
        context._cqs[self._row] = self
        self._moderate(0, 0)
        row = CQ_ENTRY.pack(valid=1, log2=self._log2, addr=self._memory.dma_address)
        context._write_row(Table.CQ, self._row, row)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<CQ {self._row} of {self.context.name}, {self.cqe} entries{state}>"

    @property
    def cqe(self) -> int:
        """Completions that it holds."""
        return 1 << self._log2

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """Take up to ``num_entries`` completions, oldest first.

        If there are none, time goes by on a simulated device, once.

        Returns
        -------
        number, completions
        """
        self._check_open()
        if num_entries < 1:
            raise refuse(f"num_entries is {num_entries}; it takes 1 or more")
        self._drain(num_entries)
        if not self._waiting:
            self.context.device.progress()
            self._drain(num_entries)
            self.context._take_events()
        taken = [self._waiting.popleft() for _ in range(min(num_entries, len(self._waiting)))]
        return len(taken), taken

    def req_notify(self, solicited_only: bool = False) -> None:
        """Ask for one event at the next completion, one that is not polled yet included.

        Parameters
        ----------
        solicited_only : at the next one that the sender solicited, or that is not a success; still
            at once if any completion is not polled yet.
        """
        self._check_open()
        if self.comp_channel is None:
            raise refuse("this CQ has no channel")
        self._armed = True
        doorbell = Doorbell.CQ_ARM_SOLICITED if solicited_only else Doorbell.CQ_ARM
        self.context._ring_doorbell(doorbell, self._row, self._consumer)

    def modify(self, cq_count: int = 0, cq_period: float = 0) -> None:
        """Moderate the event that ``req_notify`` asks for, as ``ibv_modify_cq`` does.

        Parameters
        ----------
        cq_count : completions that the event waits for, to 65,535. 0 and 1 wait for no more.
        cq_period : microseconds after the first completion at which it comes anyhow, rounded up to
            ticks of the device. 0: it waits for the count.

        Completions that are solicited or no success do not wait. Raises EINVAL.
        """
        self._check_open()
        clock = self.context.query_device().clock_hz
        ticks = -int(-cq_period * clock // (TICK_CYCLES * 1_000_000))
        if not 0 <= cq_count <= 0xFFFF:
            raise refuse(f"cq_count is {cq_count}; it takes 0 to 65535")
        if cq_period < 0 or ticks > 0xFFFF:
            most = 0xFFFF * TICK_CYCLES * 1_000_000 // clock
            raise refuse(f"cq_period is {cq_period}; it takes 0 to {most}")
        if cq_count > self.cqe and not ticks:
            raise refuse(f"cq_count is {cq_count}; this CQ holds {self.cqe}, so give a cq_period")
        self._moderate(cq_count, ticks)

    def _moderate(self, count: int, ticks: int) -> None:
        row = MODERATION_ENTRY.pack(count=count, ticks=ticks)
        self.context._write_row(Table.MODERATION, self._row, row)

    def ack_events(self, num_events: int) -> None:
        """Acknowledge events, as the verbs API has it. There is nothing to free here."""
        self.events = max(0, self.events - num_events)

    def _peek(self) -> SimpleNamespace | None:
        """The next CQE of the ring, if the device has written it."""
        index = self._consumer
        place = CQE.size * (index & (1 << self._log2) - 1)
        phase = self._memory.view[place + CQE.size - 1] >> 7
        if phase == index >> self._log2 & 1:
            return None
        return CQE.unpack(self._memory.view[place : place + CQE.size])

    def _drain(self, enough: int | None = None) -> None:
        """Move completions from the ring to ``_waiting``, until ``enough`` wait (None: all)."""
        before = self._consumer
        while enough is None or len(self._waiting) < enough:
            entry = self._peek()
            if entry is None:
                break
            self._consumer = self._consumer + 1 & 0xFFFF_FFFF
            qp = self.context._qps.get(entry.qpn)
            wc = None if qp is None else completion(qp, entry)
            if wc is not None:
                self._waiting.append(wc)
        if self._consumer != before:
            self.context._ring_doorbell(Doorbell.CQ_CONSUMER, self._row, self._consumer)

    def _release(self) -> None:
        self.context._write_row(Table.CQ, self._row, bytes(CQ_ENTRY.size))
        self._memory.release()
        del self.context._cqs[self._row]
        self.context._cq_rows.give(self._row)
