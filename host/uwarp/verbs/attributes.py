"""What a QP is made with, and what may change while it lives."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import enums as e
from .completion import CQ

__all__ = ["QPAttr", "QPCap", "QPInitAttr"]


@dataclass
class QPCap:
    """Sizes of a QP's queues, and of their requests.

    Attributes
    ----------
    max_send_wr, max_recv_wr : requests posted and not completed.
    max_send_sge : 0 to 4. max_recv_sge : 0 or 1.
    max_inline_data : octets of a send with IBV_SEND_INLINE, 0 to 48.
    """

    max_send_wr: int = 1
    max_recv_wr: int = 10
    max_send_sge: int = 1
    max_recv_sge: int = 1
    max_inline_data: int = 0


@dataclass
class QPInitAttr:
    """What a QP is made with. ``scq`` and ``rcq``, which may be the same, are required.

    ``terminate``, this project's own: whether it tells peers by a Terminate what it does not take
    of theirs and why, in RTS, as far as the device's limit of their rate allows.
    """

    qp_type: int = e.IBV_QPT_UD
    qp_context: object = None
    scq: CQ | None = None
    rcq: CQ | None = None
    srq: object = None
    cap: QPCap = field(default_factory=QPCap)
    sq_sig_all: int = 1
    terminate: bool = False

    def __post_init__(self) -> None:
        self.cap = QPCap() if self.cap is None else self.cap


@dataclass
class QPAttr:
    """What may change while a QP lives.

    Attributes
    ----------
    qp_state, cur_qp_state : ibv_qp_state
    port_num : 1
    path_mtu : largest IP packet that it sends, in octets (not an ``ibv_mtu``): 576 to the context's
        ``mtu``, which None stands for.
    timeout_us : silence after which a message that misses octets completes as partial, in
        microseconds. None leaves it as it is; it begins as 1000.
    peer_ip, peer_prefix : whom it listens to: datagrams from other addresses than those that begin
        with the first ``peer_prefix`` bits of ``peer_ip`` are dropped. ``peer_prefix`` None means
        that address alone. ``peer_ip`` None leaves both as they are; they begin as ``"::"`` and 0:
        everybody, of both families.
    peer_port : UDP port that it listens to, 0 for any. None leaves it as it is; it begins as 0.
    rate_limit : most that it sends, in kb/s of the wire: frames with preamble, FCS and gap, answers
        to Reads of peers included. 0 sets no limit. None leaves it as it is; it begins as 0.
    max_burst_sz : octets of the wire that it may send at once after a pause, 64 to 4,194,304,
        rounded up to 64, and no less than the rate brings in a tick of the device (6.6 us at
        156.25 MHz). None leaves it to the driver: four ticks' worth, or two of the largest packets.
    """

    qp_state: int = e.IBV_QPS_INIT
    cur_qp_state: int = e.IBV_QPS_RESET
    port_num: int = 1
    path_mtu: int | None = None
    timeout_us: float | None = None
    peer_ip: str | None = None
    peer_prefix: int | None = None
    peer_port: int | None = None
    rate_limit: int | None = None
    max_burst_sz: int | None = None
