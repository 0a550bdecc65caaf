"""QP: a datagram queue pair, and its attributes."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np

from uwarp.contract import (
    QP_ENTRY,
    RECV_WQE,
    SEND_WQE,
    TICK_CYCLES,
    CqeFlag,
    Doorbell,
    QpState,
    Structure,
    Table,
    WqeFlag,
)
from uwarp.wire import DEFAULT_GRANULE, Opcode, ipv4_text, segment_room

from . import enums as e
from .completion import CQ, WC
from .context import MIN_MTU, PD
from .errors import VerbsRDMAError, refuse
from .lifetime import Resource
from .memory import Memory
from .region import MAX_GRANULE
from .validity import Validity
from .work import RecvWR, SendWR

__all__ = ["QP", "QPAttr", "QPCap", "QPInitAttr"]

FIRST_PORT = 0xC000  # of those that a QP gets by itself (RFC 6335, dynamic ports)
ACCEPTED = (
    Opcode.WRITE,
    Opcode.SEND,
    Opcode.SEND_SOLICITED,
    Opcode.WRITE_RECORD,
    Opcode.SEND_IMMEDIATE,
)


@dataclass
class QPCap:
    """Sizes of a QP's queues. The device takes one SGE a request, and no inline data."""

    max_send_wr: int = 1
    max_recv_wr: int = 10
    max_send_sge: int = 1
    max_recv_sge: int = 1
    max_inline_data: int = 0


@dataclass
class QPInitAttr:
    """What a QP is made with. ``scq`` and ``rcq``, which may be the same, are required."""

    qp_type: int = e.IBV_QPT_UD
    qp_context: object = None
    scq: CQ | None = None
    rcq: CQ | None = None
    srq: object = None
    cap: QPCap = field(default_factory=QPCap)
    sq_sig_all: int = 1

    def __post_init__(self) -> None:
        self.cap = QPCap() if self.cap is None else self.cap


@dataclass
class QPAttr:
    """What may change while a QP lives.

    Attributes
    ----------
    qp_state, cur_qp_state : ibv_qp_state
    port_num : 1
    path_mtu : largest IPv4 datagram that it sends, in octets (not an ``ibv_mtu``): 576 to the
        context's ``mtu``, which None stands for.
    timeout_us : silence after which a message that misses octets completes as partial, in
        microseconds. None leaves it as it is; it begins as 1000.
    """

    qp_state: int = e.IBV_QPS_INIT
    cur_qp_state: int = e.IBV_QPS_RESET
    port_num: int = 1
    path_mtu: int | None = None
    timeout_us: float | None = None


@dataclass(frozen=True)
class _Kind:
    """How a send opcode is made."""

    opcode: Opcode
    flags: int = 0
    tagged: bool = False


_SENDS: dict[int, _Kind] = {
    e.IBV_WR_SEND: _Kind(Opcode.SEND),
    e.IBV_WR_SEND_WITH_IMM: _Kind(Opcode.SEND_IMMEDIATE, WqeFlag.IMMEDIATE),
    e.IBV_WR_RDMA_WRITE: _Kind(Opcode.WRITE, tagged=True),
    e.IBV_WR_RDMA_WRITE_RECORD: _Kind(Opcode.WRITE_RECORD, tagged=True),
    e.IBV_WR_RDMA_WRITE_RECORD_WITH_IMM: _Kind(Opcode.WRITE_RECORD, WqeFlag.IMMEDIATE, tagged=True),
}
_SENT: dict[int, e.ibv_wc_opcode] = {
    Opcode.SEND: e.IBV_WC_SEND,
    Opcode.SEND_IMMEDIATE: e.IBV_WC_SEND,
    Opcode.WRITE: e.IBV_WC_RDMA_WRITE,
    Opcode.WRITE_RECORD: e.IBV_WC_RDMA_WRITE_RECORD,
}


class _Ring:
    """One work queue: its memory, its free-running indices, and the wr_id of each request in it."""

    def __init__(self, structure: Structure, limit: int, name: str) -> None:
        if not 1 <= limit <= 1 << 15:
            raise refuse(f"{name} is {limit}; it takes 1 to {1 << 15}")
        self.limit = limit
        self.log2 = (limit - 1).bit_length()
        self.size = structure.size
        self.memory = Memory(structure.size << self.log2)
        self.reset()

    def reset(self) -> None:
        self.producer = self.consumer = 0
        self.requests: dict[int, tuple[int, e.ibv_wc_opcode]] = {}

    @property
    def outstanding(self) -> int:
        return self.producer - self.consumer & 0xFFFF_FFFF

    @property
    def full(self) -> bool:
        return self.outstanding >= self.limit

    def post(self, wqe: bytes, wr_id: int, opcode: e.ibv_wc_opcode) -> None:
        place = self.size * (self.producer & (1 << self.log2) - 1)
        self.memory.view[place : place + self.size] = wqe
        self.requests[self.producer] = (wr_id, opcode)
        self.producer = self.producer + 1 & 0xFFFF_FFFF

    def complete(self, low_index: int) -> int:
        """The wr_id of a completed request, given the low half of its index.

        Requests before it have completed too, unsignalled.
        """
        index = self.consumer + (low_index - self.consumer & 0xFFFF) & 0xFFFF_FFFF
        if index not in self.requests:
            raise refuse(
                f"the device completed request {low_index}, which is not posted", errno.EIO
            )
        wr_id = self.requests[index][0]
        while self.consumer != index + 1 & 0xFFFF_FFFF:
            del self.requests[self.consumer]
            self.consumer = self.consumer + 1 & 0xFFFF_FFFF
        return wr_id

    def flush(self) -> list[tuple[int, e.ibv_wc_opcode]]:
        """The requests that have not completed, oldest first; none are left."""
        requests = list(self.requests.values())
        self.requests.clear()
        self.consumer = self.producer
        return requests


class QP(Resource):
    """A datagram queue pair (UD).

    Its number is its UDP port: what it sends comes from there, and peers name it by that in
    ``SendWR.set_wr_ud``.

    Parameters
    ----------
    creator : PD
    init_attr : QPInitAttr
    qp_attr : QPAttr, optional
        Given: the QP is brought to RTS at once. Else it stays in RESET.
    udp_port : int, optional
        1 to 65,535; by default a free one from 0xC000 up.

    Raises
    ------
    VerbsRDMAError
        EADDRINUSE, ENOSPC if the device has no QP left, EOPNOTSUPP for other services than UD,
        EINVAL.
    """

    def __init__(
        self,
        creator: PD,
        init_attr: QPInitAttr,
        qp_attr: QPAttr | None = None,
        *,
        udp_port: int | None = None,
    ) -> None:
        creator._check_open()
        cap = init_attr.cap
        if init_attr.qp_type != e.IBV_QPT_UD:
            raise refuse(f"QP type {init_attr.qp_type!r}; the device has UD", errno.EOPNOTSUPP)
        if init_attr.srq is not None:
            raise refuse("the device has no shared receive queues", errno.EOPNOTSUPP)
        if init_attr.scq is None or init_attr.rcq is None:
            raise refuse("a QP needs both scq and rcq")
        for cq in (init_attr.scq, init_attr.rcq):
            cq._check_open()
            if cq.context is not creator.context:
                raise refuse("the CQ belongs to another context")
        for name, limit in (("max_send_sge", 1), ("max_recv_sge", 1), ("max_inline_data", 0)):
            if not 0 <= getattr(cap, name) <= limit:
                raise refuse(f"{name} is {getattr(cap, name)}; it takes 0 to {limit}")
        self.pd = creator
        self.context = context = creator.context
        self.scq, self.rcq = init_attr.scq, init_attr.rcq
        self.cap = replace(cap)
        self.qp_context = init_attr.qp_context
        self.qp_type = e.IBV_QPT_UD
        self._signal_all = bool(init_attr.sq_sig_all)
        self._sq = _Ring(SEND_WQE, cap.max_send_wr, "max_send_wr")
        self._rq = _Ring(RECV_WQE, cap.max_recv_wr, "max_recv_wr")
        self._state = e.IBV_QPS_RESET
        self.path_mtu = context.mtu
        self._timeout_ticks = 0
        self._set(QPAttr(timeout_us=1000))
        self._row = context._qp_rows.take()
        try:
            self.qp_num = self._take_port(udp_port)
        except VerbsRDMAError:
            context._qp_rows.give(self._row)
            raise
        for ring in (self._sq, self._rq):
            ring.memory.map(context.device)
        cqs = [self.scq] if self.scq is self.rcq else [self.scq, self.rcq]
        super().__init__(creator, *cqs)
        context._qps[self._row] = self
        self._write_row()
        if qp_attr is not None:
            try:
                self.to_rts(qp_attr)
            except BaseException:
                self.close()
                raise

    def __repr__(self) -> str:
        state = "closed" if self.closed else self._state.name.removeprefix("IBV_QPS_")
        return f"<QP {self.qp_num} of {self.context.name}, {state}>"

    def _take_port(self, port: int | None) -> int:
        ports = self.context._ports
        if port is None:
            candidates = range(FIRST_PORT, 1 << 16)
            port = next((item for item in candidates if item not in ports), None)
            if port is None:
                raise refuse("all UDP ports from 0xC000 up are taken", errno.EADDRINUSE)
        elif not 1 <= port <= 65535:
            raise refuse(f"udp_port is {port}; it takes 1 to 65535")
        ports.insert(port, self._row)
        return port

    # States

    @property
    def qp_state(self) -> e.ibv_qp_state:
        return self._state

    @property
    def timeout_us(self) -> float:
        """The timeout, rounded up to ticks of the device."""
        return self._timeout_ticks * TICK_CYCLES * 1e6 / self.context.query_device().clock_hz

    @property
    def max_send_length(self) -> int:
        """Octets that a Send without immediate carries. One with immediate carries 4 fewer."""
        return segment_room(Opcode.SEND, self.path_mtu)

    def to_init(self, qp_attr: QPAttr) -> None:
        self._bring_to(e.IBV_QPS_INIT, qp_attr)

    def to_rtr(self, qp_attr: QPAttr) -> None:
        self._bring_to(e.IBV_QPS_RTR, qp_attr)

    def to_rts(self, qp_attr: QPAttr) -> None:
        """Bring the QP from whatever it is before to RTS, through the states between."""
        self._bring_to(e.IBV_QPS_RTS, qp_attr)

    def _bring_to(self, state: e.ibv_qp_state, attr: QPAttr) -> None:
        self._check_open()
        if self._state >= state:
            raise refuse(f"a QP in {self._state.name} cannot go to {state.name}")
        self._set(attr)
        for step in (e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_RTS):
            if self._state < step <= state:
                self._change(step)

    def query(self, attr_mask: int = 0) -> tuple[QPAttr, QPInitAttr]:
        """The attributes as they are. All are filled in, whatever the mask."""
        del attr_mask
        attr = QPAttr(
            qp_state=self._state,
            cur_qp_state=self._state,
            path_mtu=self.path_mtu,
            timeout_us=self.timeout_us,
        )
        init = QPInitAttr(
            self.qp_type,
            self.qp_context,
            self.scq,
            self.rcq,
            None,
            replace(self.cap),
            int(self._signal_all),
        )
        return attr, init

    def modify(self, attr: QPAttr, attr_mask: int) -> None:
        """Change what ``attr_mask`` names: IBV_QP_STATE, IBV_QP_PATH_MTU, IBV_QP_TIMEOUT.

        To IBV_QPS_ERR and IBV_QPS_RESET from any state: work requests that have not completed do so
        with IBV_WC_WR_FLUSH_ERR, and messages that were open complete as partial first.
        """
        self._check_open()
        known = int(e.IBV_QP_STATE | e.IBV_QP_PATH_MTU | e.IBV_QP_TIMEOUT)
        if attr_mask & ~known:
            raise refuse(f"attr_mask is {attr_mask:#x}; it takes bits of {known:#x}")
        self._set(
            QPAttr(
                port_num=attr.port_num,
                path_mtu=attr.path_mtu if attr_mask & e.IBV_QP_PATH_MTU else None,
                timeout_us=attr.timeout_us if attr_mask & e.IBV_QP_TIMEOUT else None,
            )
        )
        if not attr_mask & e.IBV_QP_STATE:
            self._write_row()
            return
        try:
            state = e.ibv_qp_state(attr.qp_state)
        except ValueError:
            raise refuse(f"qp_state is {attr.qp_state}; a datagram QP has no such state") from None
        if state in (e.IBV_QPS_ERR, e.IBV_QPS_RESET):
            self._stop()
            if state is e.IBV_QPS_RESET:
                self._reset()
        elif state in (self._state, self._state + 1):
            self._change(state)
        else:
            raise refuse(f"a QP in {self._state.name} cannot go to {state.name}")

    def _set(self, attr: QPAttr) -> None:
        context = self.context
        if attr.port_num != 1:
            raise refuse(f"port {attr.port_num}; the device has port 1 only")
        mtu = self.path_mtu if attr.path_mtu is None else attr.path_mtu
        if not MIN_MTU <= mtu <= context.mtu:
            raise refuse(
                f"path_mtu is {mtu}; it takes {MIN_MTU} to {context.mtu}, octets of an IPv4 "
                "datagram"
            )
        if attr.timeout_us is not None:
            limits = context.query_device()
            ticks = -int(-attr.timeout_us * limits.clock_hz // (TICK_CYCLES * 1_000_000))
            if not 1 <= ticks <= 32767:
                raise refuse(
                    f"timeout_us is {attr.timeout_us}; it takes more than 0, "
                    f"to {limits.max_timeout_us}"
                )
            self._timeout_ticks = ticks
        self.path_mtu = mtu

    def _change(self, state: e.ibv_qp_state) -> None:
        if state is e.IBV_QPS_RTR and self._row in self.context._quiet_since:
            # The device knows closed messages by the QP's row and their number. A peer that starts
            # again at number 1 must not be taken for the one before it.
            since = self.context._quiet_since.pop(self._row)
            self.context._wait_until(since + (self._timeout_ticks + 1) * TICK_CYCLES)
        self._state = state
        self._write_row()

    def _write_row(self) -> None:
        row = QP_ENTRY.pack(
            state=QpState(self._state),
            sq_log2=self._sq.log2,
            rq_log2=self._rq.log2,
            pd=self.pd.number,
            udp_port=self.qp_num,
            path_mtu=self.path_mtu,
            send_cq=self.scq._row,
            recv_cq=self.rcq._row,
            timeout=self._timeout_ticks,
            opcodes=sum(1 << opcode for opcode in ACCEPTED),
            sq_addr=self._sq.memory.dma_address >> 6,
            rq_addr=self._rq.memory.dma_address >> 6,
        )
        self.context._write_row(Table.QP, self._row, row)

    @property
    def _sends_outstanding(self) -> int:
        return self._sq.outstanding

    def _stop(self) -> None:
        """Go to ERROR; afterwards the device works on nothing of this QP, and all has completed."""
        if self._state in (e.IBV_QPS_RESET, e.IBV_QPS_ERR):
            self._state = e.IBV_QPS_ERR
            return
        received = self._state in (e.IBV_QPS_RTR, e.IBV_QPS_RTS)
        self._state = e.IBV_QPS_ERR
        self._write_row()
        if self._sq.outstanding:
            self.context._settle_sends()
        if received:
            self.context._settle_receives(self._timeout_ticks)
            self.context._quiet_since[self._row] = self.context.time
        for cq in {self.scq, self.rcq}:
            cq._drain()
        for ring, cq in ((self._sq, self.scq), (self._rq, self.rcq)):
            for wr_id, opcode in ring.flush():
                self._flush(cq, wr_id, opcode)

    def _flush(self, cq: CQ, wr_id: int, opcode: e.ibv_wc_opcode) -> None:
        cq._waiting.append(
            WC(wr_id=wr_id, status=e.IBV_WC_WR_FLUSH_ERR, opcode=opcode, qp_num=self.qp_num)
        )

    def _reset(self) -> None:
        self._state = e.IBV_QPS_RESET
        self._write_row()
        for ring in (self._sq, self._rq):
            ring.reset()

    def _release(self) -> None:
        self._stop()
        self.context._ports.remove(self.qp_num)
        self.context._write_row(Table.QP, self._row, bytes(QP_ENTRY.size))
        for ring in (self._sq, self._rq):
            ring.memory.release()
        del self.context._qps[self._row]
        self.context._qp_rows.give(self._row)

    # Work

    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:
        """Post a request and those that hang on its ``next_wr``, in that order.

        Raises
        ------
        VerbsRDMAError
            With ``bad_wr``, the request that was refused: those before it are posted, it and the
            rest are not. (A ``bad_wr`` given as argument becomes a copy of it.) ENOMEM: the queue
            is full. EMSGSIZE: a Send longer than a datagram. EINVAL: another state than RTS, a
            wrong field. EOPNOTSUPP: the opcode.
        """
        self._check_open()
        posted = False
        try:
            for item in wr:
                try:
                    kind, wqe = self._send_wqe(item)
                    if self._state is e.IBV_QPS_ERR:
                        self._flush(self.scq, item.wr_id, _SENT[kind.opcode])
                        continue
                    if self._sq.full:
                        raise refuse(
                            f"the send queue holds {self._sq.limit} requests and is full",
                            errno.ENOMEM,
                        )
                except VerbsRDMAError as error:
                    error.bad_wr = item
                    if bad_wr is not None:
                        vars(bad_wr).update(vars(item))
                    raise
                self._sq.post(wqe, item.wr_id, _SENT[kind.opcode])
                posted = True
        finally:
            if posted:
                self.context._ring_doorbell(Doorbell.SQ_PRODUCER, self._row, self._sq.producer)

    def _send_wqe(self, wr: SendWR) -> tuple[_Kind, bytes]:
        if self._state not in (e.IBV_QPS_RTS, e.IBV_QPS_ERR):
            raise refuse(f"a QP in {self._state.name} takes no sends: bring it to RTS")
        kind = _SENDS.get(wr.opcode)
        if kind is None:
            hint = (
                "; IBV_WR_RDMA_WRITE_RECORD_WITH_IMM is there"
                if wr.opcode == e.IBV_WR_RDMA_WRITE_WITH_IMM
                else ""
            )
            raise refuse(f"opcode {wr.opcode!r} is not supported{hint}", errno.EOPNOTSUPP)
        _check_elements(wr, self.cap.max_send_sge)
        if wr.ah is None:
            raise refuse("a datagram needs a destination: call set_wr_ud")
        wr.ah._check_open()
        if wr.ah.pd is not self.pd:
            raise refuse("the AH belongs to another PD")
        if not 1 <= wr.rqpn <= 65535:
            raise refuse(f"rqpn is {wr.rqpn}; it takes the peer's UDP port, 1 to 65535")
        if wr.send_flags & e.IBV_SEND_INLINE:
            raise refuse("inline data: max_inline_data is 0")
        flags = kind.flags
        if self._signal_all or wr.send_flags & e.IBV_SEND_SIGNALED:
            flags |= WqeFlag.SIGNALED
        if wr.send_flags & e.IBV_SEND_SOLICITED:
            if kind.opcode is Opcode.WRITE:
                raise refuse("a Write completes nothing at the peer, so it cannot be solicited")
            flags |= WqeFlag.SOLICITED
        room = segment_room(kind.opcode, self.path_mtu)
        fields: dict[str, int] = {}
        if kind.tagged:
            granule = wr.granule
            if not DEFAULT_GRANULE <= granule <= MAX_GRANULE or granule & (granule - 1):
                raise refuse(f"granule is {granule}; it takes a power of two, 64 to {MAX_GRANULE}")
            if wr.length > room < granule:
                raise refuse(
                    f"granule is {granule}; a datagram of path MTU {self.path_mtu} carries {room}",
                    errno.EMSGSIZE,
                )
            if not 0 <= wr.remote_addr < 1 << 64 or not 0 <= wr.rkey < 1 << 32:
                raise refuse(f"rkey {wr.rkey:#x}, remote address {wr.remote_addr:#x}")
            fields |= {
                "granule_log2": granule.bit_length() - 1,
                "remote_to": wr.remote_addr,
                "remote_stag": wr.rkey,
            }
        elif wr.length > room:
            raise refuse(
                f"a Send of {wr.length} octets; a datagram of path MTU {self.path_mtu} carries "
                f"{room}",
                errno.EMSGSIZE,
            )
        if flags & WqeFlag.IMMEDIATE:
            if not 0 <= wr.imm_data < 1 << 32:
                raise refuse(f"imm_data is {wr.imm_data}; it takes 32 bits")
            fields["immediate"] = wr.imm_data
        if wr.sg_list:
            sge = wr.sg_list[0]
            fields |= {"sge_addr": sge.addr, "sge_length": sge.length, "sge_lkey": sge.lkey}
        return kind, SEND_WQE.pack(
            opcode=kind.opcode,
            flags=flags,
            num_sge=wr.num_sge,
            length=wr.length,
            dest_ip=wr.ah.ip,
            dest_port=wr.rqpn,
            dest_mac=wr.ah.mac,
            traffic_class=wr.ah.traffic_class,
            hop_limit=wr.ah.hop_limit,
            **fields,
        )

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post buffers for Sends, in the order of ``next_wr``. Raises as :meth:`post_send`."""
        self._check_open()
        posted = False
        try:
            for item in wr:
                try:
                    if self._state is e.IBV_QPS_RESET:
                        raise refuse("a QP in IBV_QPS_RESET takes no receives: bring it to INIT")
                    _check_elements(item, self.cap.max_recv_sge)
                    if self._state is e.IBV_QPS_ERR:
                        self._flush(self.rcq, item.wr_id, e.IBV_WC_RECV)
                        continue
                    if self._rq.full:
                        raise refuse(
                            f"the receive queue holds {self._rq.limit} requests and is full",
                            errno.ENOMEM,
                        )
                except VerbsRDMAError as error:
                    error.bad_wr = item
                    if bad_wr is not None:
                        vars(bad_wr).update(vars(item))
                    raise
                fields: dict[str, int] = {}
                for sge in item.sg_list:
                    fields = {
                        "sge0_addr": sge.addr,
                        "sge0_length": sge.length,
                        "sge0_lkey": sge.lkey,
                    }
                self._rq.post(RECV_WQE.pack(**fields), item.wr_id, e.IBV_WC_RECV)
                posted = True
        finally:
            if posted:
                self.context._ring_doorbell(Doorbell.RQ_PRODUCER, self._row, self._rq.producer)

    # Completions

    def _completion(self, entry: SimpleNamespace) -> WC:
        """The WC of a CQE of this QP."""
        flags = CqeFlag(entry.flags)
        wc = WC(
            status=e.ibv_wc_status(entry.status),
            byte_len=entry.valid,
            qp_num=self.qp_num,
            msn=entry.msn,
            message_length=entry.mlen,
            stag=entry.stag,
            remote_addr=entry.base_to,
            solicited=CqeFlag.SOLICITED in flags,
            time=entry.time_high << 31 | entry.time_low,
        )
        if CqeFlag.RECEIVE not in flags:
            wc.opcode = _SENT[entry.opcode]
            wc.wr_id = self._sq.complete(entry.wqe_index)
            return wc
        wc.src_ip, wc.src_qp = ipv4_text(entry.source_ip), entry.source_port
        if CqeFlag.IMMEDIATE in flags:
            wc.imm_data, wc.wc_flags = entry.immediate, e.IBV_WC_WITH_IMM
        if entry.opcode == Opcode.WRITE_RECORD:
            wc.opcode = e.IBV_WC_RECV_RDMA_RECORD
            wc.segment = CqeFlag.SEGMENT in flags
            wc.head = not wc.segment or CqeFlag.HEAD in flags
            wc.tail = not wc.segment or CqeFlag.TAIL in flags
            wc.validity = self._record_validity(entry, flags)
        else:
            wc.opcode = e.IBV_WC_RECV
            wc.wr_id = self._rq.complete(entry.wqe_index)
        return wc

    def _record_validity(self, entry: SimpleNamespace, flags: CqeFlag) -> Validity | None:
        """Which octets a Write-Record's CQE speaks of; folded into the region's own account."""
        if not entry.mlen:
            return Validity(0)
        region = self.context._regions.get(entry.stag)
        if region is None:
            return None
        base = entry.base_to - region.buf
        length = entry.mlen if CqeFlag.MAPPED in flags else entry.valid
        granule = region.granule
        message = Validity(length, granule, base % granule)
        if CqeFlag.MAPPED in flags:
            first, last = base // granule, (base + length - 1) // granule
            low, high = first // 8, last // 8
            octets = bytes([entry.head_map])
            if high > low:
                octets += region._map_octets(low + 1, high) + bytes([entry.tail_map])
            bits = np.unpackbits(np.frombuffer(octets, dtype=np.uint8), bitorder="little")
            message._mark_granules(bits[first - 8 * low : last - 8 * low + 1].astype(np.bool_))
        else:
            message._mark(0, length)
        if region.mapped:
            region.validity._fold(message, base)
        return message


def _check_elements(wr: SendWR | RecvWR, limit: int) -> None:
    if wr.num_sge > limit:
        raise refuse(f"{wr.num_sge} SGEs; this QP takes {limit}")
    for sge in wr.sg_list:
        if not 0 <= sge.addr < 1 << 64 or not 0 <= sge.length < 1 << 32:
            raise refuse(f"{sge!r} does not fit the descriptor")
        if not 0 <= sge.lkey < 1 << 32:
            raise refuse(f"{sge!r} does not fit the descriptor")
