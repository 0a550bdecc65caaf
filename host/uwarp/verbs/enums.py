"""Numbers of the verbs API, with the names and values of ``infiniband/verbs.h``.

Each enumeration is iterable, and each member is a constant of this module too. Members marked *own*
are this project's: Write-Record, partial completion, a Read for which there is no tracker, the peer
filter, and Terminates that end nothing have no counterpart there.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from uwarp.contract import Status

__all__ = [
    "IBV_ACCESS_LOCAL_WRITE",
    "IBV_ACCESS_REMOTE_READ",
    "IBV_ACCESS_REMOTE_WRITE",
    "IBV_EVENT_CQ_ERR",
    "IBV_EVENT_QP_ACCESS_ERR",
    "IBV_EVENT_QP_FATAL",
    "IBV_EVENT_QP_TERMINATE",
    "IBV_LINK_LAYER_ETHERNET",
    "IBV_PORT_ACTIVE",
    "IBV_PORT_DOWN",
    "IBV_QPS_ERR",
    "IBV_QPS_INIT",
    "IBV_QPS_RESET",
    "IBV_QPS_RTR",
    "IBV_QPS_RTS",
    "IBV_QPT_RC",
    "IBV_QPT_UC",
    "IBV_QPT_UD",
    "IBV_QP_PATH_MTU",
    "IBV_QP_PEER",
    "IBV_QP_RATE_LIMIT",
    "IBV_QP_STATE",
    "IBV_QP_TIMEOUT",
    "IBV_SEND_FENCE",
    "IBV_SEND_INLINE",
    "IBV_SEND_SIGNALED",
    "IBV_SEND_SOLICITED",
    "IBV_WC_GENERAL_ERR",
    "IBV_WC_LOC_LEN_ERR",
    "IBV_WC_LOC_PROT_ERR",
    "IBV_WC_LOC_QP_OP_ERR",
    "IBV_WC_NO_TRACKER",
    "IBV_WC_PARTIAL",
    "IBV_WC_RDMA_READ",
    "IBV_WC_RDMA_WRITE",
    "IBV_WC_RDMA_WRITE_RECORD",
    "IBV_WC_RECV",
    "IBV_WC_RECV_RDMA_RECORD",
    "IBV_WC_SEND",
    "IBV_WC_SUCCESS",
    "IBV_WC_WITH_IMM",
    "IBV_WC_WR_FLUSH_ERR",
    "IBV_WR_RDMA_READ",
    "IBV_WR_RDMA_WRITE",
    "IBV_WR_RDMA_WRITE_RECORD",
    "IBV_WR_RDMA_WRITE_RECORD_WITH_IMM",
    "IBV_WR_RDMA_WRITE_WITH_IMM",
    "IBV_WR_SEND",
    "IBV_WR_SEND_WITH_IMM",
    "ibv_access_flags",
    "ibv_event_type",
    "ibv_port_state",
    "ibv_qp_attr_mask",
    "ibv_qp_state",
    "ibv_qp_type",
    "ibv_send_flags",
    "ibv_wc_flags",
    "ibv_wc_opcode",
    "ibv_wc_status",
    "ibv_wr_opcode",
]


class ibv_access_flags(IntFlag):
    """What a memory region allows. Local read is always allowed."""

    IBV_ACCESS_LOCAL_WRITE = 1
    IBV_ACCESS_REMOTE_WRITE = 2
    IBV_ACCESS_REMOTE_READ = 4


class ibv_event_type(IntEnum):
    IBV_EVENT_CQ_ERR = 0
    IBV_EVENT_QP_FATAL = 1
    IBV_EVENT_QP_ACCESS_ERR = 3
    IBV_EVENT_QP_TERMINATE = 0x100  # own: a peer has not taken something of the QP's


class ibv_port_state(IntEnum):
    IBV_PORT_DOWN = 1
    IBV_PORT_ACTIVE = 4


class ibv_qp_type(IntEnum):
    IBV_QPT_RC = 2
    IBV_QPT_UC = 3
    IBV_QPT_UD = 4


class ibv_qp_state(IntEnum):
    IBV_QPS_RESET = 0
    IBV_QPS_INIT = 1
    IBV_QPS_RTR = 2
    IBV_QPS_RTS = 3
    IBV_QPS_ERR = 6


class ibv_qp_attr_mask(IntFlag):
    IBV_QP_STATE = 1
    IBV_QP_PATH_MTU = 256
    IBV_QP_TIMEOUT = 512
    IBV_QP_RATE_LIMIT = 1 << 25
    IBV_QP_PEER = 1 << 30  # own: peer_ip, peer_prefix and peer_port


class ibv_wr_opcode(IntEnum):
    IBV_WR_RDMA_WRITE = 0
    IBV_WR_RDMA_WRITE_WITH_IMM = 1
    IBV_WR_SEND = 2
    IBV_WR_SEND_WITH_IMM = 3
    IBV_WR_RDMA_READ = 4
    IBV_WR_RDMA_WRITE_RECORD = 0x100  # own
    IBV_WR_RDMA_WRITE_RECORD_WITH_IMM = 0x101  # own


class ibv_send_flags(IntFlag):
    IBV_SEND_FENCE = 1
    IBV_SEND_SIGNALED = 2
    IBV_SEND_SOLICITED = 4
    IBV_SEND_INLINE = 8


class ibv_wc_status(IntEnum):
    IBV_WC_SUCCESS = Status.SUCCESS
    IBV_WC_LOC_LEN_ERR = Status.LOC_LEN_ERR
    IBV_WC_LOC_QP_OP_ERR = Status.LOC_QP_OP_ERR
    IBV_WC_LOC_PROT_ERR = Status.LOC_PROT_ERR
    IBV_WC_WR_FLUSH_ERR = Status.WR_FLUSH_ERR
    IBV_WC_GENERAL_ERR = Status.GENERAL_ERR
    IBV_WC_NO_TRACKER = Status.NO_TRACKER  # own: a Read that could not be begun
    IBV_WC_PARTIAL = Status.PARTIAL  # own: the message closed with octets missing


class ibv_wc_opcode(IntEnum):
    IBV_WC_SEND = 0
    IBV_WC_RDMA_WRITE = 1
    IBV_WC_RDMA_READ = 2
    IBV_WC_RECV = 128
    IBV_WC_RDMA_WRITE_RECORD = 0x100  # own: a Write-Record has been sent
    IBV_WC_RECV_RDMA_RECORD = 0x180  # own: a Write-Record has arrived


class ibv_wc_flags(IntFlag):
    IBV_WC_GRH = 1
    IBV_WC_WITH_IMM = 2


IBV_LINK_LAYER_ETHERNET = 2

IBV_ACCESS_LOCAL_WRITE = ibv_access_flags.IBV_ACCESS_LOCAL_WRITE
IBV_ACCESS_REMOTE_WRITE = ibv_access_flags.IBV_ACCESS_REMOTE_WRITE
IBV_ACCESS_REMOTE_READ = ibv_access_flags.IBV_ACCESS_REMOTE_READ
IBV_EVENT_CQ_ERR = ibv_event_type.IBV_EVENT_CQ_ERR
IBV_EVENT_QP_FATAL = ibv_event_type.IBV_EVENT_QP_FATAL
IBV_EVENT_QP_ACCESS_ERR = ibv_event_type.IBV_EVENT_QP_ACCESS_ERR
IBV_EVENT_QP_TERMINATE = ibv_event_type.IBV_EVENT_QP_TERMINATE
IBV_PORT_DOWN = ibv_port_state.IBV_PORT_DOWN
IBV_PORT_ACTIVE = ibv_port_state.IBV_PORT_ACTIVE
IBV_QPT_RC = ibv_qp_type.IBV_QPT_RC
IBV_QPT_UC = ibv_qp_type.IBV_QPT_UC
IBV_QPT_UD = ibv_qp_type.IBV_QPT_UD
IBV_QPS_RESET = ibv_qp_state.IBV_QPS_RESET
IBV_QPS_INIT = ibv_qp_state.IBV_QPS_INIT
IBV_QPS_RTR = ibv_qp_state.IBV_QPS_RTR
IBV_QPS_RTS = ibv_qp_state.IBV_QPS_RTS
IBV_QPS_ERR = ibv_qp_state.IBV_QPS_ERR
IBV_QP_STATE = ibv_qp_attr_mask.IBV_QP_STATE
IBV_QP_PATH_MTU = ibv_qp_attr_mask.IBV_QP_PATH_MTU
IBV_QP_TIMEOUT = ibv_qp_attr_mask.IBV_QP_TIMEOUT
IBV_QP_RATE_LIMIT = ibv_qp_attr_mask.IBV_QP_RATE_LIMIT
IBV_QP_PEER = ibv_qp_attr_mask.IBV_QP_PEER
IBV_WR_RDMA_WRITE = ibv_wr_opcode.IBV_WR_RDMA_WRITE
IBV_WR_RDMA_WRITE_WITH_IMM = ibv_wr_opcode.IBV_WR_RDMA_WRITE_WITH_IMM
IBV_WR_RDMA_READ = ibv_wr_opcode.IBV_WR_RDMA_READ
IBV_WR_SEND = ibv_wr_opcode.IBV_WR_SEND
IBV_WR_SEND_WITH_IMM = ibv_wr_opcode.IBV_WR_SEND_WITH_IMM
IBV_WR_RDMA_WRITE_RECORD = ibv_wr_opcode.IBV_WR_RDMA_WRITE_RECORD
IBV_WR_RDMA_WRITE_RECORD_WITH_IMM = ibv_wr_opcode.IBV_WR_RDMA_WRITE_RECORD_WITH_IMM
IBV_SEND_FENCE = ibv_send_flags.IBV_SEND_FENCE
IBV_SEND_SIGNALED = ibv_send_flags.IBV_SEND_SIGNALED
IBV_SEND_SOLICITED = ibv_send_flags.IBV_SEND_SOLICITED
IBV_SEND_INLINE = ibv_send_flags.IBV_SEND_INLINE
IBV_WC_SUCCESS = ibv_wc_status.IBV_WC_SUCCESS
IBV_WC_LOC_LEN_ERR = ibv_wc_status.IBV_WC_LOC_LEN_ERR
IBV_WC_LOC_QP_OP_ERR = ibv_wc_status.IBV_WC_LOC_QP_OP_ERR
IBV_WC_LOC_PROT_ERR = ibv_wc_status.IBV_WC_LOC_PROT_ERR
IBV_WC_WR_FLUSH_ERR = ibv_wc_status.IBV_WC_WR_FLUSH_ERR
IBV_WC_GENERAL_ERR = ibv_wc_status.IBV_WC_GENERAL_ERR
IBV_WC_NO_TRACKER = ibv_wc_status.IBV_WC_NO_TRACKER
IBV_WC_PARTIAL = ibv_wc_status.IBV_WC_PARTIAL
IBV_WC_SEND = ibv_wc_opcode.IBV_WC_SEND
IBV_WC_RDMA_WRITE = ibv_wc_opcode.IBV_WC_RDMA_WRITE
IBV_WC_RDMA_READ = ibv_wc_opcode.IBV_WC_RDMA_READ
IBV_WC_RECV = ibv_wc_opcode.IBV_WC_RECV
IBV_WC_RDMA_WRITE_RECORD = ibv_wc_opcode.IBV_WC_RDMA_WRITE_RECORD
IBV_WC_RECV_RDMA_RECORD = ibv_wc_opcode.IBV_WC_RECV_RDMA_RECORD
IBV_WC_GRH = ibv_wc_flags.IBV_WC_GRH
IBV_WC_WITH_IMM = ibv_wc_flags.IBV_WC_WITH_IMM
