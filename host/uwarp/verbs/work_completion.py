"""WC: what a completion queue yields."""

from __future__ import annotations

from dataclasses import dataclass

from .enums import ibv_wc_opcode, ibv_wc_status
from .validity import Validity

__all__ = ["WC"]


@dataclass(slots=True)
class WC:
    """A work completion.

    Attributes
    ----------
    wr_id : of the work request; 0 for a Write-Record that arrived, which took none.
    status : IBV_WC_SUCCESS, IBV_WC_PARTIAL (a Write-Record, Send or Read of which octets are
        missing), IBV_WC_NO_TRACKER (a Read that the device could not keep account of: nothing was
        sent) or another error.
    opcode : ibv_wc_opcode
    byte_len : octets that arrived and are valid, of a Read too; of a send, octets sent.
    qp_num : our QP, by its UDP port.
    src_qp, src_ip : the sender's UDP port and IPv4 or IPv6 address, of a Read the responder's; 0
        and None for a send.
    imm_data : if ``wc_flags`` has IBV_WC_WITH_IMM.
    msn : message sequence number; the sender's count of its messages.
    message_length : octets of the whole message.
    stag, remote_addr : target of a tagged message, or of a received Send of many datagrams, or
        where a Read's octets go: region, and address of the first octet spoken of.
    segment : the completion speaks of one datagram of a longer message; ``head`` and ``tail`` say
        whether it holds the message's first and last octet.
    solicited : the sender asked for an event.
    time : of completion, in cycles of the device's clock.
    validity : which of the octets spoken of are valid; only for a Read, and for a Write-Record or a
        Send of many datagrams that arrived, in a region that is still open. (Of a Send of one
        datagram all octets are there.) Taken when the completion is polled, so poll before the
        region's same octets are written again.
    """

    wr_id: int = 0
    status: ibv_wc_status = ibv_wc_status.IBV_WC_SUCCESS
    opcode: ibv_wc_opcode = ibv_wc_opcode.IBV_WC_SEND
    vendor_err: int = 0
    byte_len: int = 0
    qp_num: int = 0
    src_qp: int = 0
    src_ip: str | None = None
    imm_data: int = 0
    wc_flags: int = 0
    msn: int = 0
    message_length: int = 0
    stag: int = 0
    remote_addr: int = 0
    segment: bool = False
    head: bool = False
    tail: bool = False
    solicited: bool = False
    time: int = 0
    validity: Validity | None = None
