"""The demo's two programs: each knows its own context and the verbs API, nothing else.

The sender asks until it is answered; the receiver answers whatever it is asked, as often as it is
asked, since every datagram may be lost:

    sender                                     receiver
      HELLO, octets                  ->
                                     <-          REGION, rkey, address, granule
      Write-Record x n               ->
      DONE, messages                 ->
                                     <-          BYE

Both are generators, resumed in turn by one thread: what they do depends on the devices' clock only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from uwarp.verbs import (
    AH,
    CQ,
    GID,
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_WC_RDMA_WRITE_RECORD,
    IBV_WC_RECV,
    IBV_WC_RECV_RDMA_RECORD,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_WRITE_RECORD,
    IBV_WR_SEND,
    MR,
    PD,
    QP,
    SGE,
    WC,
    AHAttr,
    Context,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
)

from .arguments import Failure

__all__ = ["MESSAGE", "PORT", "NoAnswer", "Received", "receiver", "sender"]

PORT = 18515
MESSAGE = 64 * 1024
TIMEOUT_US = 100.0
ASK_CYCLES = 8192  # between two askings
ASKINGS = 64
DEPTH = 16  # messages posted at once
NOTE = struct.Struct("!5sIQI")  # kind, and up to three numbers
HELLO, REGION, DONE, BYE = b"HELLO", b"REGIO", b"DONE!", b"BYE!!"


class NoAnswer(Failure):
    """The peer does not answer."""


@dataclass
class Received:
    """What the receiver has at the end. Its region stays open."""

    region: MR
    records: list[WC] = field(default_factory=list)


class _Notes:
    """Small messages of fixed form: Sends, with their buffers."""

    BUFFERS = 16

    def __init__(self, pd: PD, qp: QP) -> None:
        self._pd, self._qp = pd, qp
        self._memory = MR(pd, 2 * self.BUFFERS * NOTE.size, IBV_ACCESS_LOCAL_WRITE)
        self._sent = 0
        for index in range(self.BUFFERS):
            self._post(index)

    def _sge(self, index: int) -> SGE:
        return SGE(self._memory.buf + index * NOTE.size, NOTE.size, self._memory.lkey)

    def _post(self, index: int) -> None:
        self._qp.post_recv(RecvWR(index, sg=[self._sge(index)]))

    def take(self, wc: WC) -> tuple[bytes, int, int, int]:
        """The note that ``wc`` received; its buffer is posted again."""
        kind, a, b, c = NOTE.unpack(self._memory.read(NOTE.size, wc.wr_id * NOTE.size))
        self._post(wc.wr_id)
        return kind, a, b, c

    def send(self, ah: AH, port: int, kind: bytes, a: int = 0, b: int = 0, c: int = 0) -> None:
        index = self.BUFFERS + self._sent % self.BUFFERS
        self._sent += 1
        self._memory.write(NOTE.pack(kind, a, b, c), offset=index * NOTE.size)
        wr = SendWR(index, IBV_WR_SEND, sg=[self._sge(index)])
        wr.set_wr_ud(ah, port)
        self._qp.post_send(wr)


def _queue_pair(context: Context, port: int | None) -> tuple[PD, CQ, QP]:
    pd, cq = PD(context), CQ(context, 1024)
    cap = QPCap(max_send_wr=DEPTH + _Notes.BUFFERS, max_recv_wr=_Notes.BUFFERS)
    attr = QPAttr(timeout_us=TIMEOUT_US)
    return pd, cq, QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=cap), attr, udp_port=port)


def sender(context: Context, peer: str, data: bytes) -> Generator[None, None, None]:
    """Write ``data`` into the region of the program at ``peer``. Raises NoAnswer."""
    pd, cq, qp = _queue_pair(context, None)
    notes = _Notes(pd, qp)
    source = MR(pd, buffer=data)
    ah = AH(pd, attr=AHAttr(gr=GlobalRoute(GID(peer), hop_limit=64)))

    def ask(kind: bytes, number: int, answer: bytes) -> Generator[None, None, tuple[int, int, int]]:
        for _ in range(ASKINGS):
            notes.send(ah, PORT, kind, 0, number)
            until = context.time + ASK_CYCLES
            while context.time < until:
                for wc in cq.poll(16)[1]:
                    if wc.opcode == IBV_WC_RECV:
                        came, *numbers = notes.take(wc)
                        if came == answer:
                            return numbers[0], numbers[1], numbers[2]
                yield
        raise NoAnswer(f"{peer} does not answer; {ASKINGS} datagrams went to it")

    rkey, address, granule = yield from ask(HELLO, len(data), REGION)
    offsets = range(0, len(data), MESSAGE)
    posted = completed = 0
    while completed < len(offsets):
        while posted < len(offsets) and posted - completed < DEPTH:
            offset = offsets[posted]
            sge = SGE(source.buf + offset, min(MESSAGE, len(data) - offset), source.lkey)
            wr = SendWR(offset, IBV_WR_RDMA_WRITE_RECORD, sg=[sge], granule=granule)
            wr.set_wr_ud(ah, PORT)
            wr.set_wr_rdma(rkey, address + offset)
            qp.post_send(wr)
            posted += 1
        for wc in cq.poll(16)[1]:
            if wc.status != IBV_WC_SUCCESS:
                raise Failure(f"sending failed: {wc.status.name}")
            if wc.opcode == IBV_WC_RECV:
                notes.take(wc)
            elif wc.opcode == IBV_WC_RDMA_WRITE_RECORD:
                completed += 1
        yield
    yield from ask(DONE, len(offsets), BYE)


def receiver(
    context: Context, granule: int, arrived: Callable[[int], None]
) -> Generator[None, None, Received]:
    """Offer a region and wait until it is written. ``arrived`` is told of valid octets as they
    come.

    Raises NoAnswer if nobody asks for a region.
    """
    pd, cq, qp = _queue_pair(context, PORT)
    notes = _Notes(pd, qp)
    clock = context.query_device().clock_hz
    # A message whose last segments are lost completes a timeout after the sender has gone quiet.
    linger = max(4 * ASK_CYCLES, int(3 * qp.timeout_us * clock / 1e6))
    result: Received | None = None
    done = False
    heard = context.time
    while context.time < heard + (linger if done else ASKINGS * ASK_CYCLES):
        for wc in cq.poll(16)[1]:
            if wc.opcode == IBV_WC_RECV_RDMA_RECORD and result is not None:
                result.records.append(wc)
                arrived(wc.byte_len)
                heard = context.time
            elif wc.opcode == IBV_WC_RECV:
                heard = context.time
                kind, _, number, _ = notes.take(wc)
                answer = AH(pd, wc=wc)
                if kind == HELLO:
                    if result is None:
                        access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
                        result = Received(MR(pd, number, access, validity=True, granule=granule))
                    region = result.region
                    notes.send(answer, wc.src_qp, REGION, region.rkey, region.buf, granule)
                elif kind == DONE:
                    done = True
                    notes.send(answer, wc.src_qp, BYE)
                answer.close()
        yield
    if result is None:
        raise NoAnswer("nobody asked for a region")
    return result
