"""What the send bench posts to a NIC: queue pairs with messages in memory, and a look at the
frames that come of them."""

from __future__ import annotations

import random

from uwarp.verbs import (
    AH,
    CQ,
    GID,
    IBV_ACCESS_LOCAL_WRITE,
    IBV_SEND_SIGNALED,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_WRITE_RECORD,
    IBV_WR_SEND,
    MR,
    PD,
    QP,
    SGE,
    AHAttr,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    SendWR,
)
from uwarp.wire import DEFAULT_GRANULE, Opcode, Segment, UdpFrame

from .arguments import Failure
from .workload import FIRST_PEER_PORT, MEMORY, PEER_IP, PEER_MAC, Case

__all__ = ["SEND_PORT", "Source"]

SEND_PORT = 20000  # of the first queue pair that sends
TARGET_RKEY, TARGET = 0x100, 1 << 32  # nobody receives: any will do


class Source:
    """One queue pair of the sender.

    Parameters
    ----------
    index : of the queue pair; 0 upward.
    messages : that it will send.
    """

    def __init__(self, pd: PD, case: Case, index: int, messages: int) -> None:
        self._case = case
        self._messages = messages
        self.port = SEND_PORT + index
        self._record = case.opcode is Opcode.WRITE_RECORD
        self._stride = -(-case.length // DEFAULT_GRANULE) * DEFAULT_GRANULE
        self._slots = min(messages, max(4, MEMORY // (case.qps * self._stride)))
        self._octets = random.Random(index).randbytes(self._slots * self._stride)
        self._region = MR(pd, len(self._octets), IBV_ACCESS_LOCAL_WRITE)
        self._region.write(self._octets)
        self._cq = CQ(pd.context, messages)
        cap = QPCap(max_send_wr=messages)
        init = QPInitAttr(scq=self._cq, rcq=self._cq, cap=cap, sq_sig_all=0)
        self._qp = QP(pd, init, QPAttr(), udp_port=self.port)
        pd.context.add_neighbour(PEER_IP, PEER_MAC)
        self._ah = AH(pd, attr=AHAttr(gr=GlobalRoute(GID(PEER_IP), hop_limit=64)))
        self._peer_port = FIRST_PEER_PORT + index
        self._posted = 0

    def _offset(self, number: int) -> int:
        return number % self._slots * self._stride

    def _signals(self, number: int) -> bool:
        every = self._case.cq_mod
        return number % every == every - 1 or number == self._messages - 1

    def post(self, messages: int) -> None:
        """Post so many, at one doorbell."""
        wr: SendWR | None = None
        for number in reversed(range(self._posted, self._posted + messages)):
            offset = self._offset(number)
            wr = SendWR(
                number,
                IBV_WR_RDMA_WRITE_RECORD if self._record else IBV_WR_SEND,
                sg=[SGE(self._region.buf + offset, self._case.length, self._region.lkey)],
                send_flags=IBV_SEND_SIGNALED if self._signals(number) else 0,
                next_wr=wr,
            )
            wr.set_wr_ud(self._ah, self._peer_port)
            if self._record:
                wr.set_wr_rdma(TARGET_RKEY, TARGET + offset)
        self._posted += messages
        if wr is not None:
            self._qp.post_send(wr)

    def check(self, frames: list[UdpFrame]) -> None:
        """Raise Failure if these are not the frames of all messages, in order, octet for octet,
        or if a completion is missing."""
        case = self._case
        if len(frames) != self._posted * case.datagrams:
            raise Failure(
                f"UDP port {self.port} sent {len(frames)} frames of {self._posted * case.datagrams}"
            )
        for index, frame in enumerate(frames):
            number, part = divmod(index, case.datagrams)
            segment = Segment.from_datagram(frame.payload)
            start = self._offset(number) + part * case.payload
            if (segment.msn, segment.mo, segment.payload) != (
                number + 1,
                part * case.payload,
                self._octets[start : start + case.payload],
            ):
                raise Failure(f"frame {index} of UDP port {self.port} is not what was posted")
        found = 0
        while (taken := self._cq.poll(4096)[1]) != []:
            for wc in taken:
                if wc.status != IBV_WC_SUCCESS:
                    raise Failure(f"message {wc.wr_id} of port {self.port}: {wc.status.name}")
            found += len(taken)
        wanted = sum(self._signals(number) for number in range(self._posted))
        if found != wanted:
            raise Failure(f"UDP port {self.port} has {found} completions of {wanted}")
