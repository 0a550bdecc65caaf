"""A reference NIC with a QP and two regions, for tests, and frames for it."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from tests.host import (
    Host,
    HostMemory,
    Region,
    frame_of,
    record,
)
from uwarp.contract import (
    Counter,
    CqeFlag,
    Parameters,
    Status,
)
from uwarp.model import Rnic
from uwarp.wire import Opcode, Segment, UdpFrame

PARAMETERS = Parameters(
    n_qp=8, n_region=16, n_tracker=4, n_closed=64, n_group=4, n_read=2, map_bits=4096
)
QPN = 3
PORT = 4800
TIMEOUT = 100  # ticks of 1024 cycles
FILL = 0xA5  # what host memory begins as
RECEIVE = CqeFlag.RECEIVE
MAPPED = CqeFlag.RECEIVE | CqeFlag.MAPPED


@dataclass
class Bench:
    """A NIC with CQ 0 of 64 slots, QP 3 on port 4800, and a plain and a mapped region of 16 KiB."""

    nic: Rnic
    host: Host
    memory: HostMemory
    plain: Region
    mapped: Region

    def receive(self, segment: Segment, port: int = PORT, **fields: Any) -> None:
        self.nic.receive(frame_of(segment, port, **fields))

    def gets(self, counter: Counter, segment: Segment, port: int = PORT, **fields: Any) -> None:
        """Receive a segment that must end in ``counter``."""
        self.frame_gets(counter, frame_of(segment, port, **fields))

    def frame_gets(self, counter: Counter, frame: bytes, error: bool = False) -> None:
        """Receive a frame that must end in ``counter``, without effect if that is a drop."""
        before = self.host.counters()
        writes = len(self.memory.writes)
        cqes = self.host.counter(Counter.CQES)
        self.nic.receive(frame, error)
        after = self.host.counters()
        changed = {item.name: after[item] - before[item] for item in after}
        completed = changed.pop("CQES")
        events = changed.pop("EVENTS")
        for other in ("MESSAGES_PARTIAL", "EVENTS_LOST", "DMA_ERRORS"):
            changed.pop(other)
        expected = {"RX_FRAMES": 1, counter.name: 1}
        assert {name: by for name, by in changed.items() if by} == expected
        if counter is not Counter.RX_PLACED and completed == 0:
            assert len(self.memory.writes) == writes + events
            assert self.host.counter(Counter.CQES) == cqes

    def only_cqe(self, cq: int = 0) -> SimpleNamespace:
        (cqe,) = self.host.poll_all(cq)
        return cqe

    def check_map(
        self, region: Region, offset: int, data: bytes, cqe: SimpleNamespace, seed: int
    ) -> None:
        """Of a message of ``data`` at ``offset`` the granules that ``cqe`` and the map in memory
        call valid hold its octets, all else what was there before; ``cqe.valid`` counts them."""
        length = len(data)
        first, last = offset // 64, (offset + length - 1) // 64
        octets = bytearray(self.memory.read(region.map_address, last // 8 + 1))
        octets[first // 8], octets[last // 8] = cqe.head_map, cqe.tail_map
        bits = int.from_bytes(octets, "little")
        placed = self.octets(region)
        valid = 0
        for granule in range(first, last + 1):
            low, high = max(64 * granule, offset), min(64 * granule + 64, offset + length)
            expected = data[low - offset : high - offset]
            if bits >> granule & 1:
                valid += high - low
            else:
                expected = bytes([FILL]) * (high - low)
            assert placed[low:high] == expected, f"granule {granule}, seed {seed}"
        assert cqe.valid == valid
        assert (cqe.status == Status.SUCCESS) == (valid == length)
        assert placed[:offset] == bytes([FILL]) * offset
        assert set(placed[offset + length :]) == {FILL}

    def octets(self, region: Region, offset: int = 0, length: int | None = None) -> bytes:
        return self.memory.read(
            region.address + offset, region.length - offset if length is None else length
        )

    def map_octets(self, region: Region, first: int, count: int) -> str:
        return self.memory.read(region.map_address + first, count).hex()

    def advance_ticks(self, ticks: int) -> None:
        self.nic.advance(1024 * ticks)


def make_bench(**parameters: int) -> Bench:
    memory = HostMemory()
    sizes = replace(PARAMETERS, **parameters)
    nic = Rnic(sizes, memory)
    host = Host(nic, memory, n_qp=sizes.n_qp)
    host.start()
    return fill_tables(nic, host, memory)


def fill_tables(nic: Rnic, host: Host, memory: HostMemory) -> Bench:
    host.add_cq(0)
    host.add_qp(QPN, port=PORT, timeout=TIMEOUT)
    plain = host.add_region(1, 16384, base_to=0x20_0000)
    mapped = host.add_region(2, 16384, base_to=0x10_0000, mapped=1, map_base=128)
    return Bench(nic, host, memory, plain, mapped)


def write(region: Region, offset: int, payload: bytes) -> Segment:
    return Segment(
        opcode=Opcode.WRITE, stag=region.stag, to=region.base_to + offset, payload=payload
    )


def send(payload: bytes, msn: int = 1, opcode: Opcode = Opcode.SEND, **fields: Any) -> Segment:
    return replace(Segment(opcode=opcode, payload=payload, msn=msn, mlen=len(payload)), **fields)


def pattern(length: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(length)


# A message of 1500 octets that begins 202 octets into a region: granules 3 (from octet 10 on) to 26
# (38 octets). Its first segment holds granules 3 to 24, its second 25 and 26. Octets 1 and 2 of the
# map are the message's alone; octet 0 is its head_map, octet 3 its tail_map.
OFFSET, MLEN, CUT = 202, 1500, 1398
DATA = pattern(MLEN)


def first_half(region: Region, msn: int = 1) -> Segment:
    return record(region, OFFSET, MLEN, 0, DATA[:CUT], msn)


def second_half(region: Region, msn: int = 1) -> Segment:
    return record(region, OFFSET, MLEN, CUT, DATA[CUT:], msn)


def msn_of(frame: bytes) -> int:
    return Segment.from_datagram(UdpFrame.decode(frame).payload).msn


def ones_sum(octets: bytes) -> int:
    """RFC 1071, written anew."""
    total = sum(struct.unpack(f"!{len(octets) // 2}H", octets[: len(octets) // 2 * 2]))
    if len(octets) % 2:
        total += octets[-1] << 8
    return total % 0xFFFF or (0xFFFF if total else 0)


def sent(bench: Bench) -> list[Segment]:
    """All that the NIC wants to send, as segments."""
    return [Segment.from_datagram(UdpFrame.decode(frame).payload) for frame in frames(bench)]


def frames(bench: Bench) -> list[bytes]:
    found = []
    while (frame := bench.nic.next_frame()) is not None:
        found.append(frame)
    return found
