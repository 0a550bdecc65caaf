"""What a bench measures, and what the receive bench offers a NIC: the datagrams, and the queue
pairs that take them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from uwarp.contract import CQE, Parameters
from uwarp.device.rtl import RtlDevice
from uwarp.verbs import (
    CQ,
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_WC_PARTIAL,
    IBV_WC_RECV,
    IBV_WC_SUCCESS,
    MR,
    PD,
    QP,
    SGE,
    WC,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
)
from uwarp.wire import (
    CRC_OCTETS,
    DEFAULT_GRANULE,
    ETHERNET,
    IPV4,
    UDP,
    Opcode,
    Segment,
    UdpFrame,
    header_size,
    ipv4_number,
    mac_number,
    segment_room,
    wire_octets,
)

from .arguments import Failure

__all__ = ["CLOCK_HZ", "IP", "MAC", "OPCODES", "Case", "Target"]

OPCODES = {"write-record": Opcode.WRITE_RECORD, "send": Opcode.SEND}
MTUS = (1500, 9000)
MAC, IP = "02:00:00:00:00:01", "10.0.0.1"
PEER_MAC, PEER_IP = "02:00:00:00:00:02", "10.0.0.2"
FIRST_PORT, FIRST_PEER_PORT = 18000, 50000
MEMORY = 8 << 20  # octets of all regions together; more messages are written over older ones
OCTETS_PER_CYCLE = 8  # 10 Gb/s at 156.25 MHz
CLOCK_HZ = Parameters().clock_hz


def datagram_cycles(opcode: Opcode, payload: int) -> float:
    """What one datagram takes of the wire's time, its gap included."""
    headers = ETHERNET.size + IPV4.size + UDP.size + header_size(opcode)
    return wire_octets(headers + payload + CRC_OCTETS) / OCTETS_PER_CYCLE


@dataclass(frozen=True)
class Case:
    """Datagrams of ``payload`` octets each, ``datagrams`` a message, to ``qps`` queue pairs.

    The queue pairs take turns by message. Each has a region and a CQ of its own; a Write-Record's
    region has a validity map. Of what is sent one message in ``cq_mod`` is signalled.
    """

    opcode: Opcode
    payload: int
    qps: int = 1
    datagrams: int = 1
    cq_mod: int = 1

    @property
    def mtu(self) -> int:
        """1500, or 9000 for a payload that needs it. Raises ValueError for one with no room."""
        for mtu in MTUS:
            if 1 <= self.payload <= segment_room(self.opcode, mtu):
                return mtu
        room = segment_room(self.opcode, MTUS[-1])
        raise ValueError(f"a payload of {self.payload} octets; it takes 1 to {room}")

    @property
    def kind(self) -> str:
        name = next(name for name, opcode in OPCODES.items() if opcode is self.opcode)
        several = f" of {self.datagrams} datagrams" if self.datagrams > 1 else ""
        return name + several + (f", {self.qps} QPs" if self.qps > 1 else "")

    @property
    def length(self) -> int:
        """Octets of a message."""
        return self.payload * self.datagrams

    @property
    def wire_cycles(self) -> float:
        """What one frame takes of the wire's time, its gap included."""
        return datagram_cycles(self.opcode, self.payload)

    @property
    def ceiling_gbps(self) -> float:
        """Payload on a wire that never pauses."""
        return 8 * self.payload * CLOCK_HZ / self.wire_cycles / 1e9


class Target:
    """One queue pair of the receiver, and the peer that sends to it.

    Parameters
    ----------
    index : of the queue pair; 0 upward.
    messages : that it will be sent.
    """

    def __init__(self, pd: PD, device: RtlDevice, case: Case, index: int, messages: int) -> None:
        self._case = case
        self._port, self._peer_port = FIRST_PORT + index, FIRST_PEER_PORT + index
        self._random = random.Random(index)
        self._record = case.opcode is Opcode.WRITE_RECORD
        self._stride = -(-case.length // DEFAULT_GRANULE) * DEFAULT_GRANULE
        self._slots = min(messages, max(4, MEMORY // (case.qps * self._stride)))
        access = IBV_ACCESS_LOCAL_WRITE | (IBV_ACCESS_REMOTE_WRITE if self._record else 0)
        self._region = MR(pd, self._slots * self._stride, access, validity=self._record)
        (memory,) = (item for item in device.mappings if item.address == self._region.buf)
        before = set(device.mappings)
        self._cq = CQ(pd.context, messages * case.datagrams)
        (ring,) = set(device.mappings) - before
        self._memory, self._ring = memory, ring
        cap = QPCap(max_recv_wr=1 if self._record else messages)
        init = QPInitAttr(scq=self._cq, rcq=self._cq, cap=cap)
        self._qp = QP(pd, init, QPAttr(), udp_port=self._port)
        self._sent: list[bytes] = []
        if not self._record:
            self._post(messages)

    def _post(self, count: int) -> None:
        """Receives for ``count`` Sends, at one doorbell."""
        wr: RecvWR | None = None
        for number in reversed(range(count)):
            sge = SGE(self._region.buf + self._offset(number), self._case.length, self._region.lkey)
            wr = RecvWR(number, sg=[sge], next_wr=wr)
        if wr is not None:
            self._qp.post_recv(wr)

    def _offset(self, number: int) -> int:
        """Where the ``number``-th message goes (a Send: the one that takes that receive)."""
        return number % self._slots * self._stride

    def message(self) -> Iterator[bytes]:
        """The frames of the next message."""
        case = self._case
        octets = self._random.randbytes(case.length)
        self._sent.append(octets)
        msn = len(self._sent)
        base = self._region.buf + self._offset(msn - 1)
        for mo in range(0, case.length, case.payload):
            segment = Segment(
                opcode=case.opcode,
                payload=octets[mo : mo + case.payload],
                last=mo + case.payload == case.length,
                msn=msn,
                mo=mo,
                mlen=case.length,
                stag=self._region.rkey if self._record else 0,
                to=base + mo if self._record else 0,
            )
            yield UdpFrame(
                dest_mac=mac_number(MAC),
                source_mac=mac_number(PEER_MAC),
                source_ip=ipv4_number(PEER_IP),
                dest_ip=ipv4_number(IP),
                source_port=self._peer_port,
                dest_port=self._port,
                payload=segment.to_datagram(),
            ).encode()

    def ends_cqe(self, address: int) -> bool:
        """Whether the word at this DMA address is the last of a CQE of this queue pair."""
        ring = self._ring
        return ring.dma_address <= address < ring.end and (
            (address + OCTETS_PER_CYCLE - ring.dma_address) % CQE.size == 0
        )

    def ends_message(self, address: int, number: int) -> bool:
        """Whether the word at this DMA address has the last octet of the ``number``-th message."""
        last = self._memory.dma_address + self._offset(number) + self._case.length - 1
        return address <= last < address + OCTETS_PER_CYCLE

    def completions(self) -> list[WC]:
        """All there are, in the order of the ring, after a look at what they say has arrived.

        Raises
        ------
        Failure
            If one is not what it should be, or memory does not hold what was sent.
        """
        found: list[WC] = []
        while (taken := self._cq.poll(4096)[1]) != []:
            found += taken
        latest: dict[int, tuple[int, bytes]] = {}
        for wc in found:
            where = f"the completion of message {wc.msn} to UDP port {self._port}"
            if wc.status not in (IBV_WC_SUCCESS, IBV_WC_PARTIAL):
                raise Failure(f"{where} has {wc.status.name}")
            if wc.opcode == IBV_WC_RECV:
                offset = self._offset(wc.wr_id)
            else:
                offset = wc.remote_addr - self._region.buf
            if wc.status == IBV_WC_SUCCESS and not wc.segment:
                latest[offset] = (wc.msn, self._sent[wc.msn - 1])
            else:
                latest.pop(offset, None)
        for offset, (msn, octets) in latest.items():
            if self._region.read(len(octets), offset) != octets:
                raise Failure(f"message {msn} to UDP port {self._port} arrived changed")
        return found
