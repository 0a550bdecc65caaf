"""QP: a datagram queue pair."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from uwarp.contract import (
    INLINE_OCTETS,
    MAX_SGE,
    MIN_MTU,
    QP_ENTRY,
    RECV_WQE,
    SEND_WQE,
    SEND_WQE_EXTENSION,
    TICK_CYCLES,
    CloseTarget,
    Doorbell,
    QpState,
    Table,
)
from uwarp.wire import DATAGRAM_OPCODES, Opcode, segment_room

from . import enums as e
from .addressing import GID, PeerFilter
from .attributes import QPAttr, QPInitAttr
from .completion import CQ
from .context import PD
from .descriptors import recv_wqe, send_wqe
from .errors import VerbsRDMAError, refuse
from .lifetime import Resource
from .rate import RateLimit
from .work import RecvWR, SendWR
from .work_completion import WC
from .work_queue import Request, WorkQueue

__all__ = ["QP"]

FIRST_PORT = 0xC000  # of those that a QP gets by itself (RFC 6335, dynamic ports)


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
    ipv6 : bool, optional
        Whether it can send to IPv6 destinations, by default whether the port has an IPv6 address.
        It receives from both families anyhow.

    A send request takes 64 octets of the host's memory to be read, or 128 if the QP is *wide*: if
    it has ``ipv6``, or ``cap`` asks for more than one SGE or for inline data.

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
        ipv6: bool | None = None,
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
        for name, limit in (
            ("max_send_sge", MAX_SGE),
            ("max_recv_sge", 1),
            ("max_inline_data", INLINE_OCTETS),
        ):
            if not 0 <= getattr(cap, name) <= limit:
                raise refuse(f"{name} is {getattr(cap, name)}; it takes 0 to {limit}")
        self.pd = creator
        self.context = context = creator.context
        self.scq, self.rcq = init_attr.scq, init_attr.rcq
        self.cap = replace(cap)
        self.qp_context = init_attr.qp_context
        self.qp_type = e.IBV_QPT_UD
        self.signal_all = bool(init_attr.sq_sig_all)
        self.terminate = bool(init_attr.terminate)
        if ipv6 is None:
            ipv6 = context.ipv6 is not None
        self.wide = ipv6 or cap.max_send_sge > 1 or cap.max_inline_data > 0
        entry = SEND_WQE.size + (SEND_WQE_EXTENSION.size if self.wide else 0)
        self._sq = WorkQueue(entry, cap.max_send_wr, "max_send_wr", read_once=True)
        self._rq = WorkQueue(RECV_WQE.size, cap.max_recv_wr, "max_recv_wr")
        self._state = e.IBV_QPS_RESET
        self.path_mtu = context.mtu
        self._timeout_ticks = 0
        self._peer = PeerFilter()
        self._peer_port = 0
        self._rate = RateLimit()
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
        ports.insert(_udp_port("udp_port", port), self._row)
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
        """Octets of a Send that go in one datagram, so that any buffer will do at the peer (see
        :class:`RecvWR`). With immediate, 4 fewer; over IPv6, 20 fewer."""
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
            peer_ip=self._peer.ip,
            peer_prefix=self._peer.prefix,
            peer_port=self._peer_port,
            rate_limit=self._rate.kbps,
            max_burst_sz=self._rate.burst if self._rate.kbps else None,
        )
        init = QPInitAttr(
            self.qp_type,
            self.qp_context,
            self.scq,
            self.rcq,
            None,
            replace(self.cap),
            int(self.signal_all),
            self.terminate,
        )
        return attr, init

    def modify(self, attr: QPAttr, attr_mask: int) -> None:
        """Change what ``attr_mask`` names: IBV_QP_STATE, IBV_QP_PATH_MTU, IBV_QP_TIMEOUT,
        IBV_QP_PEER, IBV_QP_RATE_LIMIT.

        To IBV_QPS_ERR and IBV_QPS_RESET from any state: work requests that have not completed do so
        with IBV_WC_WR_FLUSH_ERR, and messages that were open complete as partial first. Afterwards
        the device writes to nothing of this QP's. A QP that has failed (IBV_EVENT_QP_FATAL) works
        again after IBV_QPS_RESET.
        """
        self._check_open()
        known = int(
            e.IBV_QP_STATE
            | e.IBV_QP_PATH_MTU
            | e.IBV_QP_TIMEOUT
            | e.IBV_QP_PEER
            | e.IBV_QP_RATE_LIMIT
        )
        if attr_mask & ~known:
            raise refuse(f"attr_mask is {attr_mask:#x}; it takes bits of {known:#x}")
        peer, rate = attr_mask & e.IBV_QP_PEER, attr_mask & e.IBV_QP_RATE_LIMIT
        self._set(
            QPAttr(
                port_num=attr.port_num,
                path_mtu=attr.path_mtu if attr_mask & e.IBV_QP_PATH_MTU else None,
                timeout_us=attr.timeout_us if attr_mask & e.IBV_QP_TIMEOUT else None,
                peer_ip=attr.peer_ip if peer else None,
                peer_prefix=attr.peer_prefix if peer else None,
                peer_port=attr.peer_port if peer else None,
                rate_limit=attr.rate_limit if rate else None,
                max_burst_sz=attr.max_burst_sz if rate else None,
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
                f"path_mtu is {mtu}; it takes {MIN_MTU} to {context.mtu}, octets of an IP packet"
            )
        if attr.peer_port is not None and not 0 <= attr.peer_port <= 65535:
            raise refuse(f"peer_port is {attr.peer_port}; it takes 0 to 65535")
        if attr.peer_ip is None and attr.peer_prefix is not None:
            raise refuse("peer_prefix says nothing without peer_ip")
        peer = self._peer
        if attr.peer_ip is not None:
            peer = PeerFilter(attr.peer_ip, attr.peer_prefix)
        rate, limits = self._rate, context.query_device()
        if attr.rate_limit is not None:
            rate = RateLimit.of(
                attr.rate_limit, attr.max_burst_sz, clock_hz=limits.clock_hz, mtu=context.mtu
            )
        elif attr.max_burst_sz is not None:
            raise refuse("max_burst_sz says nothing without rate_limit")
        if attr.timeout_us is not None:
            ticks = -int(-attr.timeout_us * limits.clock_hz // (TICK_CYCLES * 1_000_000))
            if not 1 <= ticks <= 32767:
                raise refuse(
                    f"timeout_us is {attr.timeout_us}; it takes more than 0, "
                    f"to {limits.max_timeout_us}"
                )
            self._timeout_ticks = ticks
        self._peer, self._rate = peer, rate
        if attr.peer_port is not None:
            self._peer_port = attr.peer_port
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
            sq_wide=self.wide,
            terminate=self.terminate,
            pd=self.pd.number,
            udp_port=self.qp_num,
            path_mtu=self.path_mtu,
            send_cq=self.scq._row,
            recv_cq=self.rcq._row,
            timeout=self._timeout_ticks,
            opcodes=sum(1 << opcode for opcode in DATAGRAM_OPCODES),
            sq_addr=self._sq.memory.dma_address >> 6,
            rq_addr=self._rq.memory.dma_address >> 6,
            peer_ip=self._peer.number,
            peer_mask=self._peer.mask,
            peer_port=self._peer_port,
            send_rate=self._rate.send_rate,
            send_burst=self._rate.send_burst,
        )
        self.context._write_row(Table.QP, self._row, row)

    @property
    def _may_send(self) -> bool:
        """Whether a datagram of this QP may be under way: of a request, or of an answer to a Read
        or a Terminate, which nobody here knows of."""
        regions = self.context._regions.values()
        readable = any(
            region.pd is self.pd and region.access & e.IBV_ACCESS_REMOTE_READ for region in regions
        )
        return self._sq.outstanding > 0 or readable or self.terminate

    def _stop(self) -> None:
        """Go to ERROR; afterwards the device works on nothing of this QP, and all has completed."""
        if self._state in (e.IBV_QPS_RESET, e.IBV_QPS_ERR):
            self._state = e.IBV_QPS_ERR
            return
        received = self._state in (e.IBV_QPS_RTR, e.IBV_QPS_RTS)
        self._state = e.IBV_QPS_ERR
        context = self.context
        if received:
            # A failure ends when the row is written: what is open must complete as failed before.
            context._close_messages(CloseTarget.QP, self._row)
        self._write_row()
        if received and self._may_send:
            context._settle_sends()
        if received:
            context._settle_receives(CloseTarget.QP, self._row)
            context._quiet_since[self._row] = context.time
        context._take_events()
        for cq in {self.scq, self.rcq}:
            cq._drain()
        for ring, cq in ((self._sq, self.scq), (self._rq, self.rcq)):
            for request in ring.flush():
                self._flush(cq, request)

    def _flush(self, cq: CQ, request: Request) -> None:
        cq._waiting.append(
            WC(
                wr_id=request.wr_id,
                status=e.IBV_WC_WR_FLUSH_ERR,
                opcode=request.opcode,
                qp_num=self.qp_num,
            )
        )

    def _reset(self) -> None:
        self._state = e.IBV_QPS_RESET
        self._write_row()
        for ring in (self._sq, self._rq):
            ring.reset()

    def _release(self) -> None:
        self._stop()
        self.context._groups.leave(self._row)
        self.context._ports.remove(self.qp_num)
        self.context._write_row(Table.QP, self._row, bytes(QP_ENTRY.size))
        for ring in (self._sq, self._rq):
            ring.memory.release()
        del self.context._qps[self._row]
        self.context._qp_rows.give(self._row)

    # Groups

    def attach_mcast(self, gid: GID | str, lid: int = 0, *, port: int) -> None:
        """Receive what comes to a group, own datagrams to it of other QPs of this device included.

        A Send to the group arrives at each of its members but the QP that sends it, and takes a
        receive of each. The sender names the group by an :class:`AH`, and its UDP port in
        ``SendWR.set_wr_ud``. A QP that is a member already stays it. Membership ends with
        :meth:`detach_mcast` or the QP, not with a state.

        Parameters
        ----------
        gid : the group's address: IPv4 or IPv6 multicast, or 255.255.255.255.
        lid : not used on Ethernet.
        port : UDP port of the group, 1 to 65,535, the same at all members and senders. On one
            device it is no QP's, and no other group's.

        Raises
        ------
        VerbsRDMAError
            EADDRINUSE; ENOMEM if the group has 16 members, ENOSPC if the device has no group or no
            row for the port left, EINVAL.
        """
        self._check_open()
        del lid
        self.context._groups.attach(_group(gid), _udp_port("port", port), self._row)

    def detach_mcast(self, gid: GID | str, lid: int = 0, *, port: int) -> None:
        """Receive it no longer. Raises EINVAL if the QP is no member."""
        self._check_open()
        del lid
        self.context._groups.detach(_group(gid), _udp_port("port", port), self._row)

    # Work

    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:
        """Post a request and those that hang on its ``next_wr``, in that order.

        Raises
        ------
        VerbsRDMAError
            With ``bad_wr``, the request that was refused: those before it are posted, it and the
            rest are not. (A ``bad_wr`` given as argument becomes a copy of it.) ENOMEM: the queue
            is full. EMSGSIZE: a message longer than a datagram whose granule is longer, too,
            or of 4 GiB. EAFNOSUPPORT: an IPv6 destination of a QP made without. EINVAL: another
            state than RTS, a wrong field, a Write, Write-Record or Read to a group. EOPNOTSUPP:
            the opcode.
        """
        self._check_open()
        with self._posting(self._sq, Doorbell.SQ_PRODUCER):
            for item in wr:
                with _blamed(item, bad_wr):
                    request, wqe = send_wqe(self, item)
                    self._post(self._sq, self.scq, wqe, request)

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post buffers for Sends, in the order of ``next_wr``. Raises as :meth:`post_send`."""
        self._check_open()
        with self._posting(self._rq, Doorbell.RQ_PRODUCER):
            for item in wr:
                with _blamed(item, bad_wr):
                    wqe = recv_wqe(self, item)
                    request = Request(item.wr_id, e.IBV_WC_RECV, in_order=False)
                    self._post(self._rq, self.rcq, wqe, request)

    def _post(self, queue: WorkQueue, cq: CQ, wqe: bytes, request: Request) -> None:
        if self._state is e.IBV_QPS_ERR:
            self._flush(cq, request)
        elif queue.full:
            raise refuse(f"the queue holds {queue.limit} requests and is full", errno.ENOMEM)
        else:
            queue.post(wqe, request)

    @contextmanager
    def _posting(self, queue: WorkQueue, doorbell: Doorbell) -> Iterator[None]:
        """Tell the device of what has been posted meanwhile, also if the rest is refused."""
        before = queue.producer
        try:
            yield
        finally:
            if queue.producer != before:
                self.context._ring_doorbell(doorbell, self._row, queue.producer)


def _udp_port(name: str, port: int) -> int:
    if not 1 <= port <= 65535:
        raise refuse(f"{name} is {port}; it takes 1 to 65535")
    return port


def _group(gid: GID | str) -> GID:
    gid = GID(gid) if isinstance(gid, str) else gid
    if not gid.is_multicast:
        raise refuse(f"{gid!r} is one station's; it takes a multicast address")
    return gid


@contextmanager
def _blamed(wr: SendWR | RecvWR, bad_wr: SendWR | RecvWR | None) -> Iterator[None]:
    """Let a refusal name the request that it is about."""
    try:
        yield
    except VerbsRDMAError as error:
        error.bad_wr = wr
        if bad_wr is not None:
            vars(bad_wr).update(vars(wr))
        raise
