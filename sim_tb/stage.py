"""A twin set up for the benches: port, regions, queue pairs, and makers of frames for them."""

import random
from dataclasses import dataclass

from uwarp.contract import Access, Control, Counter, Parameters, QpState, Register, Table
from uwarp.wire import Opcode, Segment, UdpFrame, segments

from .memory import HostMemory
from .sides import ModelSide, Side
from .twin import Twin

__all__ = ["BENCH", "IPV6", "PEER_IP", "PEER_IPV6", "PEER_MAC", "Region", "Stage", "host_memories"]

BENCH = Parameters(n_qp=8, n_region=16, n_tracker=8, n_closed=64, map_bits=8192, max_mtu=9000)
MAC, IP = 0x02_00_00_00_00_01, 0x0A00_0001
PEER_MAC, PEER_IP = 0x02_00_00_00_00_02, 0x0A00_0002
IPV6, PEER_IPV6 = 0xFD00 << 112 | 1, 0xFD00 << 112 | 2
MEMORY_BASE, MEMORY_SIZE = 0x12_3400_0000, 1 << 19
PD, OTHER_PD = 5, 6
ANY_OPCODE = 0xFFFF
LONG, SHORT = 32767, 48  # timeouts in ticks
_OCTETS_UNDER_STALL = 6000  # what the receive buffer takes in however slow the memory is


@dataclass(frozen=True)
class Region:
    """A registered region as the host knows it."""

    stag: int
    base_to: int
    length: int
    dma: int
    map_address: int = 0


def host_memories(seed: int) -> tuple[HostMemory, HostMemory]:
    """Two memories of the same, random, content."""
    first, second = (HostMemory(MEMORY_BASE, MEMORY_SIZE, seed) for _ in range(2))
    return first, second


class Stage(Twin):
    """Port, regions and queue pairs that every bench starts from.

    ====  ==========================================================
    QP    what it is for
    ====  ==========================================================
    1     receives everything, forgets nothing; CQ 1 (sends: CQ 2)
    2     the same with a timeout of ``SHORT`` ticks; CQ 3 (CQ 4)
    3     in INIT: receives nothing
    4     in RTR, accepts no opcode
    5, 6  senders with a path MTU of 1500 and 9000; CQ 5 and 6
    ====  ==========================================================
    """

    def __init__(self, nic: Side, memory: HostMemory, rng: random.Random, stalled: bool) -> None:
        super().__init__(nic, ModelSide(BENCH, memory), BENCH)
        self.rng = rng
        self.stalled = stalled
        self._msn = 0

    async def set_up(self) -> None:
        await self.cleared()
        await self.write_register(Register.MAC_LOW, MAC & 0xFFFF_FFFF)
        await self.write_register(Register.MAC_HIGH, MAC >> 32)
        await self.write_register(Register.IPV4, IP)
        for word in range(4):
            await self.write32(Register.IPV6.at(word), IPV6 >> 32 * word & 0xFFFF_FFFF)
        await self.write_register(Register.MTU, 9000)
        for cq in (1, 3):
            await self.create_cq(cq, 8)
        for cq in (2, 4, 5, 6):
            await self.create_cq(cq, 6)
        common = {"pd": PD, "timeout": LONG, "opcodes": ANY_OPCODE, "path_mtu": 1500}
        receiver = common | {"state": QpState.RTS, "recv_cq": 1, "send_cq": 2, "rq_log2": 7}
        await self.create_qp(1, udp_port=self.port(1), **receiver)
        await self.create_qp(
            2, udp_port=self.port(2), **receiver | {"timeout": SHORT, "recv_cq": 3, "send_cq": 4}
        )
        await self.create_qp(3, udp_port=self.port(3), **common | {"state": QpState.INIT})
        await self.create_qp(
            4, udp_port=self.port(4), **common | {"state": QpState.RTR, "opcodes": 0}
        )
        sender = common | {"state": QpState.RTS, "recv_cq": 1}
        await self.create_qp(5, udp_port=self.port(5), **sender | {"send_cq": 5})
        await self.create_qp(6, udp_port=self.port(6), **sender | {"send_cq": 6, "path_mtu": 9000})
        for qpn in range(1, 5):
            await self.open_port(self.port(qpn), qpn)
        write = Access.LOCAL_WRITE | Access.REMOTE_WRITE
        self.mapped = await self.register(
            1, 160 << 10, write, base_to=0x7F00_1234_0000, map_base=64, alignment=8, skew=3
        )
        self.plain = await self.register(2, 16 << 10, write, base_to=0x1003, skew=5)
        self.local = await self.register(3, 4096, Access.LOCAL_WRITE, base_to=0)
        self.foreign = await self.register(4, 256, write, base_to=0, pd=OTHER_PD)
        self.top = await self.register(5, 4096, write, base_to=(1 << 64) - 4096)
        self.source = await self.register(6, 48 << 10, Access(0), base_to=0x55_0000_0001, skew=1)
        self.coarse = await self.register(
            7, 40 << 10, write, base_to=1 << 40, map_base=4096, granule_log2=8
        )
        await self.write_register(Register.CONTROL, Control.ENABLE)

    @staticmethod
    def port(qpn: int) -> int:
        """UDP port of a QP."""
        return 4790 + 1111 * qpn

    async def register(
        self,
        index: int,
        length: int,
        access: Access,
        *,
        base_to: int,
        pd: int = PD,
        map_base: int | None = None,
        granule_log2: int = 6,
        alignment: int = 64,
        skew: int = 0,
        at: int | None = None,
        map_at: int | None = None,
    ) -> Region:
        """Write a region's row; ``skew`` octets off the alignment in memory.

        ``at`` and ``map_at`` are DMA addresses for octets and map instead of fresh memory.
        """
        key = 0xA0 + index
        dma = self.allocate(length + skew, alignment) + skew if at is None else at
        mapped = map_base is not None
        map_address = map_at or 0
        if mapped and map_at is None:
            map_address = self.allocate((length >> granule_log2) // 8 + 8, 8)
        await self.write_row(
            Table.REGION,
            index,
            valid=1,
            mapped=mapped,
            access=access,
            key=key,
            pd=pd,
            granule_log2=granule_log2,
            base_to=base_to,
            length=length,
            dma_addr=dma,
            map_addr=map_address,
            map_base=map_base or 0,
        )
        return Region(index << 8 | key, base_to, length, dma, map_address)

    def next_msn(self) -> int:
        self._msn += 1
        return self._msn

    def frame(self, segment: Segment, qpn: int = 1, **fields) -> bytes:
        """The frame that brings ``segment`` to a QP; ``fields`` are those of ``UdpFrame``."""
        return self.datagram(segment.to_datagram(), qpn, **fields)

    def datagram(self, payload: bytes, qpn: int = 1, **fields) -> bytes:
        """The frame that brings a UDP payload to a QP."""
        given = {
            "dest_mac": MAC,
            "source_mac": PEER_MAC,
            "source_ip": PEER_IP,
            "dest_ip": IP,
            "source_port": 9000 + qpn,
            "dest_port": self.port(qpn),
        }
        return UdpFrame(**given | fields, payload=payload).encode()

    def write(self, region: Region, offset: int, octets: int, **fields) -> Segment:
        """A plain Write of random octets, ``offset`` into the region."""
        given = {"stag": region.stag, "to": region.base_to + offset}
        return Segment(opcode=Opcode.WRITE, payload=self.rng.randbytes(octets), **given | fields)

    def send(self, octets: int, opcode: Opcode = Opcode.SEND, **fields) -> Segment:
        given = {"msn": self.next_msn(), "mlen": octets}
        return Segment(opcode=opcode, payload=self.rng.randbytes(octets), **given | fields)

    def long_send(
        self, octets: int, opcode: Opcode = Opcode.SEND, *, cut: int | None = None, **fields
    ) -> list[Segment]:
        """The segments of a Send of random octets, cut by the rule or into pieces of ``cut``."""
        content = self.rng.randbytes(octets)
        if cut is None:
            plan = list(segments(opcode, octets, 1500))
        else:
            plan = [(mo, min(cut, octets - mo)) for mo in range(0, octets, cut)]
        if opcode is not Opcode.SEND_IMMEDIATE:
            fields.pop("immediate", None)
        given = {"msn": self.next_msn(), "mlen": octets} | fields
        return [
            Segment(
                opcode=opcode,
                mo=mo,
                last=mo + length == octets,
                payload=content[mo : mo + length],
                **given,
            )
            for mo, length in plan
        ]

    def record(
        self,
        region: Region,
        offset: int,
        octets: int,
        *,
        path_mtu: int = 1500,
        granule: int = 64,
        plan: list[tuple[int, int]] | None = None,
        **fields,
    ) -> list[Segment]:
        """The segments of a Write-Record of random octets, cut by the rule or as ``plan`` says."""
        base = region.base_to + offset
        content = self.rng.randbytes(octets)
        if plan is None:
            plan = list(segments(Opcode.WRITE_RECORD, octets, path_mtu, to=base, granule=granule))
        given = {"stag": region.stag, "msn": self.next_msn(), "mlen": octets} | fields
        return [
            Segment(
                opcode=Opcode.WRITE_RECORD,
                to=base + mo,
                mo=mo,
                last=mo + length == octets,
                payload=content[mo : mo + length],
                **given,
            )
            for mo, length in plan
        ]

    async def deliver(self, frames: list[bytes]) -> None:
        """Frames from the wire, in order; under stalls no more at once than the buffer takes."""
        waiting = 0
        for frame in frames:
            if self.stalled and waiting + len(frame) > _OCTETS_UNDER_STALL:
                await self.settle()
                waiting = 0
            self.receive(frame)
            waiting += len(frame)

    async def placed(self) -> int:
        """Datagrams placed so far, by the model."""
        return (await self.counters(self.model))[Counter.RX_PLACED]
