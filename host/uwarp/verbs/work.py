"""Work requests: SGE, SendWR, RecvWR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from uwarp.wire import DEFAULT_GRANULE

from .addressing import AH
from .enums import IBV_SEND_SIGNALED, IBV_WR_SEND
from .errors import VerbsUserError

__all__ = ["SGE", "RecvWR", "SendWR"]


class SGE:
    """``length`` octets at ``addr``, an address of this process inside the region of ``lkey``."""

    def __init__(self, addr: int, length: int, lkey: int) -> None:
        self.addr = addr
        self.length = length
        self.lkey = lkey

    def __repr__(self) -> str:
        return f"SGE(addr={self.addr:#x}, length={self.length}, lkey={self.lkey:#x})"


def _elements(num_sge: int, sg: Sequence[SGE] | None) -> list[SGE]:
    sg = sg or ()
    if not 0 <= num_sge <= len(sg):
        raise VerbsUserError(f"num_sge is {num_sge}, and {len(sg)} SGEs are given")
    return list(sg[: num_sge or len(sg)])


class RecvWR:
    """A buffer for one Send. ``num_sge`` 0 means all of ``sg``.

    A Send longer than a datagram needs a buffer in a region with a validity map
    (``MR(..., validity=True)``), that begins on one of its granules. Into another the device
    receives Sends of one datagram only: of longer ones it drops the datagrams, and the buffer stays
    posted. Receives complete in the order in which their messages do, not in that of posting.
    """

    def __init__(
        self,
        wr_id: int = 0,
        num_sge: int = 0,
        sg: Sequence[SGE] | None = None,
        next_wr: RecvWR | None = None,
    ) -> None:
        self.wr_id = wr_id
        self.sg_list = _elements(num_sge, sg)
        self.next_wr = next_wr

    @property
    def num_sge(self) -> int:
        return len(self.sg_list)

    def __repr__(self) -> str:
        return f"<RecvWR {self.wr_id}, {self.sg_list}>"

    def __iter__(self) -> Iterator[RecvWR]:
        wr: RecvWR | None = self
        while wr is not None:
            yield wr
            wr = wr.next_wr


class SendWR:
    """One message to send.

    Parameters
    ----------
    wr_id : any number of yours; the completion has it.
    opcode : ibv_wr_opcode
    num_sge : how many of ``sg``; 0 means all.
    imm_data : 32-bit number, for the opcodes WITH_IMM. It arrives as the same number: no byte order
        to mind.
    sg : list of SGE
        An empty list sends a message of no octets; None is refused.
    send_flags : ibv_send_flags
    next_wr : SendWR
        Posted with this one, after it.
    granule : octets
        Granule of the target region (64 unless it says otherwise); for a Send, of the region that
        the peer receives into. A message longer than a datagram is cut at multiples of it. Not used
        by a Read.

    The SGEs' octets, one after the other, are the message. With IBV_SEND_INLINE they are taken when
    the request is posted, from any memory: lkeys are not looked at.

    A Read (IBV_WR_RDMA_READ) brings the octets that ``set_wr_rdma`` names into its one SGE, which
    lies in a region with LOCAL_WRITE and a validity map of granule 64. It completes when all have
    arrived, or as partial after the QP's timeout, whatever was posted before or after it: the
    completion's ``validity`` says what is there. The timeout runs from the request on, so that it
    has to allow for the Reads that are answered before. An unsignalled Read that succeeds may still
    fire an event that was asked for, and the CQ is empty then. The peer's region needs
    IBV_ACCESS_REMOTE_READ, and its QP IBV_QPS_RTS.
    """

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = IBV_WR_SEND,
        num_sge: int = 0,
        imm_data: int = 0,
        sg: Sequence[SGE] | None = None,
        send_flags: int = IBV_SEND_SIGNALED,
        next_wr: SendWR | None = None,
        *,
        granule: int = DEFAULT_GRANULE,
    ) -> None:
        if sg is None:
            raise VerbsUserError("a SendWR needs sg; an empty list sends a message of no octets")
        self.wr_id = wr_id
        self.opcode = opcode
        self.imm_data = imm_data
        self.sg_list = _elements(num_sge, sg)
        self.send_flags = send_flags
        self.next_wr = next_wr
        self.granule = granule
        self.ah: AH | None = None
        self.rqpn = 0
        self.rqkey = 0
        self.rkey = 0
        self.remote_addr = 0

    @property
    def num_sge(self) -> int:
        return len(self.sg_list)

    @property
    def length(self) -> int:
        """Octets of the message."""
        return sum(item.length for item in self.sg_list)

    def set_wr_ud(self, ah: AH, rqpn: int, rqkey: int = 0) -> None:
        """Destination: an address, and the peer's QP number (its UDP port), or the group's port.

        There are no Q_Keys.
        """
        self.ah = ah
        self.rqpn = rqpn
        self.rqkey = rqkey

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """Target of a tagged message, or source of a Read: the region's rkey, and the first octet's
        address in the peer."""
        self.rkey = rkey
        self.remote_addr = addr

    def __repr__(self) -> str:
        return f"<SendWR {self.wr_id}, opcode {self.opcode!r}, {self.length} octets>"

    def __iter__(self) -> Iterator[SendWR]:
        wr: SendWR | None = self
        while wr is not None:
            yield wr
            wr = wr.next_wr
