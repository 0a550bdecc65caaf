"""A host that drives two NICs alike, and the scoreboard that finds where they differ.

What is written to memory, tables and doorbells, and every frame, goes to both sides.
:meth:`Twin.check` waits until the gateware has done what the model did, then compares counters,
memory, completions, frames sent, open messages and the interrupt line.
"""

from collections import Counter as Multiset
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from uwarp.contract import (
    CQE,
    EVENT,
    RECV_WQE,
    SEND_WQE,
    SEND_WQE_EXTENSION,
    TABLES,
    Control,
    Counter,
    CqeFlag,
    DeviceStatus,
    Doorbell,
    Parameters,
    QpState,
    Register,
    Table,
    counter_address,
    doorbell_address,
    outcome_sum,
    port_rows,
)
from uwarp.wire import Opcode

from .memory import HostMemory
from .sides import Side

__all__ = ["Twin"]

_ANSWERS = (Opcode.READ_RESPONSE_RECORD, Opcode.TERMINATE)
_PATIENCE = 60_000  # cycles without progress before a bench gives up
_UNTIMED = ~CQE.to_int(time_low=(1 << 31) - 1, time_high=(1 << 16) - 1, phase=1)


class _Queue:
    """Host's view of a completion queue."""

    def __init__(self, address: int, log2: int) -> None:
        self.address = address
        self.log2 = log2
        self.consumer = 0

    @property
    def octets(self) -> int:
        return CQE.size << self.log2

    def entries(self, memory: HostMemory) -> list[int]:
        """The new CQEs, as integers, phase and time included."""
        found = []
        for index in range(self.consumer, self.consumer + (1 << self.log2)):
            place = self.address + CQE.size * (index & (1 << self.log2) - 1)
            entry = int.from_bytes(memory.read(place, CQE.size), "little")
            if entry >> CQE.offset("phase") & 1 == index >> self.log2 & 1:
                break
            found.append(entry)
        return found


class _Ring:
    """Host's view of a work queue, of entries of ``size`` octets."""

    def __init__(self, address: int, log2: int, size: int) -> None:
        self.address = address
        self.log2 = log2
        self.size = size
        self.producer = 0

    @property
    def place(self) -> int:
        """DMA address of the next entry."""
        return self.address + self.size * (self.producer & (1 << self.log2) - 1)


def _send_entry(request: dict[str, Any], size: int) -> bytes:
    names = {item.name for item in SEND_WQE.named_fields}
    entry = SEND_WQE.pack(**{name: request[name] for name in request.keys() & names})
    if size == len(entry):
        return entry
    inline = request.get("inline", b"")
    further = {name: request[name] for name in request.keys() - names - {"inline"}}
    return entry + inline + SEND_WQE_EXTENSION.pack(**further)[len(inline) :]


def _flow(frame: bytes) -> tuple[bytes, int | None]:
    """Source port of a frame, and its opcode if that is one of an answer: frames of a flow keep
    their order."""
    tags = 4 if frame[12:14] == b"\x81\x00" else 0
    udp = tags + (34 if frame[tags + 14] >> 4 == 4 else 54)
    opcode = int.from_bytes(frame[udp + 9 : udp + 10], "big") & 0xF
    return frame[udp : udp + 2], opcode if opcode in _ANSWERS else None


class Twin:
    """The gateware and the model under one host.

    Parameters
    ----------
    nic : the side under test.
    model : the side that is right.

    Attributes
    ----------
    snapshots : bool
        Whether counters of the side under test are read from a snapshot, which takes fewer cycles;
        a scenario that takes its own reads them one by one.
    """

    snapshots = True

    def __init__(self, nic: Side, model: Side, parameters: Parameters) -> None:
        if nic.memory.octets != model.memory.octets or nic.memory.base != model.memory.base:
            raise ValueError("the two memories must begin alike")
        self.nic = nic
        self.model = model
        self.parameters = parameters
        self._sides = (nic, model)
        self._forget()

    def _forget(self) -> None:
        self._free = self.model.memory.base
        self._queues: dict[int, _Queue] = {}
        self._send_rings: dict[int, _Ring] = {}
        self._receive_rings: dict[int, _Ring] = {}
        self._ports_taken: set[tuple[int, int]] = set()
        self._event_rings: list[range] = []
        self._settled = dict.fromkeys(Counter, 0)
        self._compared: dict[Counter, int] = {}

    # Registers, memory and time

    async def write32(self, address: int, value: int) -> None:
        for side in self._sides:
            await side.write32(address, value)

    async def read32(self, address: int) -> int:
        """A register that must read alike on both."""
        values = [await side.read32(address) for side in self._sides]
        assert values[0] == values[1], f"register {address:#x}: {values[0]:#x}, not {values[1]:#x}"
        return values[1]

    async def write_register(self, register: Register, value: int) -> None:
        await self.write32(register.address, value)

    async def close_messages(self, target: int, row: int) -> None:
        """Until the side under test says that it is done."""
        await self.write_register(Register.MESSAGES_CLOSE, target << 16 | row)
        for _ in range(500):
            if not await self.nic.read32(Register.MESSAGES_CLOSE.address):
                break
            await self.nic.wait(16)
        assert await self.read32(Register.MESSAGES_CLOSE.address) == 0

    async def wait(self, cycles: int) -> None:
        for side in self._sides:
            await side.wait(cycles)

    def poke(self, address: int, octets: bytes) -> None:
        """Write both memories."""
        for side in self._sides:
            side.memory.write(address, octets)

    def peek(self, address: int, length: int) -> bytes:
        """Memory of the side under test."""
        return self.nic.memory.read(address, length)

    def allocate(self, octets: int, alignment: int = 64) -> int:
        """DMA address of fresh memory."""
        address = -(-self._free // alignment) * alignment
        self._free = address + octets
        self.model.memory.read(address, octets)
        return address

    # Tables and rings

    def allocate_ring(self, octets: int) -> int:
        """DMA address of a ring, a multiple of its size."""
        return self.allocate(octets, max(64, octets))

    async def write_row(self, table: Table, row: int, **fields: int) -> None:
        structure = TABLES[table]
        value = structure.to_int(**fields)
        await self.write_register(Register.TABLE_SELECT, table << 16 | row)
        for word in range(structure.size // 4):
            await self.write32(Register.TABLE_DATA.at(word), value >> 32 * word & 0xFFFF_FFFF)
        await self.write_register(Register.TABLE_COMMAND, 1)

    async def open_port(self, port: int, qpn: int) -> int:
        """Name ``qpn`` by ``port`` in the first free bank; returns the table's row."""
        n_qp = self.parameters.n_qp
        for bank, row in enumerate(port_rows(port, n_qp)):
            if (bank, row) not in self._ports_taken:
                self._ports_taken.add((bank, row))
                row += bank * n_qp
                await self.write_row(Table.PORT, row, valid=1, port=port, qpn=qpn)
                return row
        raise ValueError(f"port {port} has no room in the table")

    async def create_cq(self, cq: int, log2: int) -> None:
        queue = _Queue(self.allocate_ring(CQE.size << log2), log2)
        self.poke(queue.address, bytes(queue.octets))
        self._queues[cq] = queue
        await self.write_row(Table.CQ, cq, valid=1, log2=log2, addr=queue.address)

    async def create_event_ring(self, log2: int) -> None:
        octets = EVENT.size << log2
        address = self.allocate_ring(octets)
        self.poke(address, bytes(octets))
        self._event_rings.append(range(address, address + octets))
        await self.write_register(Register.EVENT_ADDR_LOW, address & 0xFFFF_FFFF)
        await self.write_register(Register.EVENT_ADDR_HIGH, address >> 32)
        await self.write_register(Register.EVENT_RING, 1 << 8 | log2)

    def events(self, side: Side) -> list[SimpleNamespace]:
        """What is in the event rings, the oldest first, without times; those of one type in their
        order: an event of another may overtake them."""
        found = []
        for ring in self._event_rings:
            octets = side.memory.read(ring.start, len(ring))
            for place in range(0, len(ring), EVENT.size):
                if not any(octets[place : place + EVENT.size]):
                    continue
                event = EVENT.unpack(octets[place : place + EVENT.size])
                event.time_low = event.time_high = 0
                found.append(event)
        return sorted(found, key=lambda event: event.type)

    async def create_qp(
        self, qpn: int, *, sq_log2: int = 6, rq_log2: int = 6, **fields: int
    ) -> None:
        """Take a QP through RESET to the state of ``fields``, with rings of its own."""
        size = SEND_WQE.size + (SEND_WQE_EXTENSION.size if fields.get("sq_wide") else 0)
        send = _Ring(self.allocate_ring(size << sq_log2), sq_log2, size)
        receive = _Ring(self.allocate_ring(RECV_WQE.size << rq_log2), rq_log2, RECV_WQE.size)
        self._send_rings[qpn], self._receive_rings[qpn] = send, receive
        row = {
            "sq_log2": sq_log2,
            "rq_log2": rq_log2,
            "sq_addr": send.address >> 6,
            "rq_addr": receive.address >> 6,
        }
        await self.write_row(Table.QP, qpn, **fields | row | {"state": QpState.RESET})
        await self.write_row(Table.QP, qpn, **fields | row)

    async def post_send(self, qpn: int, *requests: dict[str, Any]) -> None:
        """Put WQEs into the send ring and ring once.

        A request has the fields of the WQE and, in a wide ring, those of its extension, or with
        ``inline`` the octets of the message.
        """
        ring = self._send_rings[qpn]
        for request in requests:
            self._fill(ring, _send_entry(request, ring.size))
        await self._ring(Doorbell.SQ_PRODUCER, qpn, ring)

    async def post_receive(self, qpn: int, *requests: dict[str, int]) -> None:
        ring = self._receive_rings[qpn]
        for request in requests:
            self._fill(ring, RECV_WQE.pack(**request))
        await self._ring(Doorbell.RQ_PRODUCER, qpn, ring)

    def _fill(self, ring: _Ring, entry: bytes) -> None:
        self.poke(ring.place, entry)
        ring.producer += 1

    async def _ring(self, doorbell: Doorbell, page: int, ring: _Ring) -> None:
        await self.write32(doorbell_address(doorbell, page), ring.producer & 0xFFFF_FFFF)

    async def arm(self, cq: int, *, solicited: bool = False) -> None:
        doorbell = Doorbell.CQ_ARM_SOLICITED if solicited else Doorbell.CQ_ARM
        await self.write32(doorbell_address(doorbell, cq), self._queues[cq].consumer)

    def queue_range(self, cq: int) -> range:
        """DMA addresses of a completion queue's ring."""
        queue = self._queues[cq]
        return range(queue.address, queue.address + queue.octets)

    # Frames and results

    def receive(self, *frames: bytes, error_beat: int | None = None) -> None:
        """Frames from the wire."""
        for frame in frames:
            for side in self._sides:
                side.receive(frame, error_beat)

    async def counters(
        self, side: Side, known: Mapping[Counter, int] | None = None
    ) -> dict[Counter, int]:
        """All of them; of the ``known`` ones the high half is not read, but is as it was."""
        low, known = await self._copied(side), known or {}
        places = [
            low.at(counter) + 4 * half
            for counter in Counter
            for half in range(1 if counter in known else 2)
        ]
        words = iter(await side.read_each(places))
        return {
            counter: next(words) | (known[counter] >> 32 if counter in known else next(words)) << 32
            for counter in Counter
        }

    async def _copied(self, side: Side) -> Register:
        """The register of the counters' low halves, which are those of now; behind each is the
        high one."""
        if side is self.model or not self.snapshots:
            return Register.COUNTERS_LOW
        await side.write32(Register.COUNTERS_SNAPSHOT.address, 1)
        return Register.SNAPSHOT_LOW

    async def settle(self) -> dict[Counter, int]:
        """Wait until the gateware has counted what the model has; returns the model's counters."""
        expected = await self.counters(self.model)
        open_messages = Register.OPEN_MESSAGES.address
        patience = _PATIENCE
        behind = [counter for counter in Counter if expected[counter] != self._settled[counter]]
        while behind:
            low = await self._copied(self.nic)
            behind = [
                counter
                for counter in behind
                if await self.nic.read32(low.at(counter)) < expected[counter]
            ]
            if behind:
                if patience <= 0:
                    names = ", ".join(counter.name for counter in behind)
                    await self._explain(expected, f"these stand still: {names}")
                await self.nic.wait(64)
                patience -= 64
        # A datagram is counted as placed before its last write is answered, and open until then.
        while await self.nic.read32(open_messages) > await self.model.read32(open_messages):
            if patience <= 0:
                await self._explain(expected, "the receive pipeline does not run empty")
            await self.nic.wait(64)
            patience -= 64
        while any(
            len(queue.entries(self.nic.memory)) < len(queue.entries(self.model.memory))
            for queue in self._queues.values()
        ) or len(self.nic.sent) < len(self.model.sent):
            if patience <= 0:
                await self._explain(expected, "completions or frames are missing")
            await self.nic.wait(64)
            patience -= 64
        while len(self.events(self.nic)) < len(self.events(self.model)):
            if patience <= 0:
                await self._explain(expected, "events are missing")
            await self.nic.wait(64)
            patience -= 64
        await self.nic.wait(100)
        self._settled = expected
        return expected

    async def _explain(self, expected: dict[Counter, int], what: str) -> None:
        found = await self.counters(self.nic)
        wrong = [
            f"{counter.name} {found[counter]}, not {expected[counter]}"
            for counter in Counter
            if found[counter] != expected[counter]
        ]
        queues = [
            f"CQ {number}: {len(queue.entries(self.nic.memory))} entries, "
            f"not {len(queue.entries(self.model.memory))}"
            for number, queue in self._queues.items()
        ]
        frames = f"{len(self.nic.sent)} frames sent, not {len(self.model.sent)}"
        raise AssertionError("; ".join([what, *wrong, *queues, frames]))

    async def check(self) -> dict[int, list[SimpleNamespace]]:
        """Settle, compare everything, consume the new completions; returns those of each CQ."""
        expected = await self.settle()
        # The high half of one that has not counted was compared before.
        still = {item: n for item, n in self._compared.items() if expected[item] == n}
        found = await self.counters(self.nic, still)
        if found != expected:
            await self._explain(expected, "counters differ")
        self._compared = found
        assert outcome_sum(found) == found[Counter.RX_FRAMES], (
            f"{found[Counter.RX_FRAMES]} frames came, {outcome_sum(found)} are accounted for"
        )
        await self.read32(Register.OPEN_MESSAGES.address)
        for word in range(-(-self.parameters.n_cq // 32)):
            await self.read32(Register.IRQ_STATUS.at(word))
        assert self.nic.irq == self.model.irq, f"interrupt is {self.nic.irq}"
        await self.read32(Register.EVENT_STATUS.address)
        found_events, expected_events = self.events(self.nic), self.events(self.model)
        assert found_events == expected_events, f"events {found_events}, not {expected_events}"
        self._check_frames()
        self._check_memory()
        return {number: await self._consume(number) for number in self._queues}

    def _check_frames(self) -> None:
        """Frames of one UDP source port keep their order, and so do its answers to Reads, and its
        Terminates; those of several may interleave."""
        flows: list[dict[tuple[bytes, int | None], list[bytes]]] = []
        for side in self._sides:
            flow: dict[tuple[bytes, int | None], list[bytes]] = {}
            for frame in side.sent:
                flow.setdefault(_flow(frame), []).append(frame)
            flows.append(flow)
        for key in flows[0].keys() | flows[1].keys():
            found, expected = (flow.get(key, []) for flow in flows)
            for number, pair in enumerate(zip(found, expected, strict=False)):
                assert pair[0] == pair[1], (
                    f"frame {number} from port {int.from_bytes(key[0], 'big')}:\n"
                    f"{pair[0].hex()}, not\n{pair[1].hex()}"
                )
            assert len(found) == len(expected), f"{len(found)} frames, not {len(expected)}"

    def _check_memory(self) -> None:
        """All of it but the rings of CQs and events, whose entries hold the time."""
        found, expected = (bytearray(side.memory.octets) for side in self._sides)
        timed = [range(item.address, item.address + item.octets) for item in self._queues.values()]
        for ring in (*timed, *self._event_rings):
            start = ring.start - self.model.memory.base
            found[start : start + len(ring)] = expected[start : start + len(ring)]
        if found == expected:
            return
        places = [
            n for n, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]
        ]
        first = places[0]
        raise AssertionError(
            f"memory differs in {len(places)} octets from {self.model.memory.base + first:#x} "
            f"to {self.model.memory.base + places[-1]:#x}: "
            f"{found[first : first + 16].hex()}, not {expected[first : first + 16].hex()}"
        )

    async def _consume(self, number: int) -> list[SimpleNamespace]:
        """Compare and consume a queue's new entries.

        A message with a map waits for its map to be written; others, which may overtake it, come
        in order.
        """
        queue = self._queues[number]
        found, expected = (
            [entry & _UNTIMED for entry in queue.entries(side.memory)] for side in self._sides
        )
        mapped = CqeFlag.MAPPED << CQE.offset("flags")
        for name, pick in (("mapped", lambda e: e & mapped), ("other", lambda e: not e & mapped)):
            got, want = [e for e in found if pick(e)], [e for e in expected if pick(e)]
            if got == want or (name == "mapped" and Multiset(got) == Multiset(want)):
                continue
            pairs = [pair for pair in zip(got, want, strict=False) if pair[0] != pair[1]]
            lines = [f"CQ {number}: {len(got)} {name} completions, not {len(want)}"]
            lines += [f"{CQE.from_int(a)},\n not {CQE.from_int(b)}" for a, b in pairs[:1]]
            raise AssertionError("\n".join(lines))
        if expected:
            queue.consumer = queue.consumer + len(expected) & 0xFFFF_FFFF
            await self.write32(doorbell_address(Doorbell.CQ_CONSUMER, number), queue.consumer)
        return [CQE.from_int(entry) for entry in expected]

    # Life and death

    async def cleared(self) -> None:
        """Wait until a reset has cleared all there is to clear."""
        for _ in range(1000):
            if not await self.nic.read32(Register.STATUS.address) & DeviceStatus.BUSY:
                return
            await self.nic.wait(64)
        raise AssertionError("STATUS.BUSY does not end")

    async def reset(self) -> None:
        """Soft reset of both, and a fresh host: nothing allocated, memories alike."""
        await self.write_register(Register.CONTROL, Control.RESET)
        await self.cleared()
        for counter in Counter:
            assert await self.read32(counter_address(counter)) == 0, f"{counter.name} after a reset"
        self.model.memory.octets[:] = self.nic.memory.octets
        self.nic.sent.clear()
        self.model.sent.clear()
        self._forget()
