"""AXI4 memory and AXI4-Lite manager for Amaranth's simulator: the other sides of the NIC's buses.

The memory checks what a manager owes to it (Arm IHI 0022: A3.2.1 valid and payload held, A3.4.1
4 KiB pages, burst length against ``wlast``), stalls at random and answers in order.
"""

from __future__ import annotations

import random
from collections import deque

from uwarp.contract import TABLES, Register, counter_address

PAGE = 4096


async def until(ctx, condition, *values) -> list:
    """Go to the first clock edge at which ``condition`` holds; ``values`` as they were there."""
    while True:
        _, _, holds, *sampled = await ctx.tick().sample(condition, *values)
        if holds:
            return sampled


class AxiMemory:
    """Octets by address, zero until written.

    ``stall`` is the chance that a channel is not ready or not valid in a cycle; ``latency`` the
    greatest number of cycles from request to answer. Addresses in ``faulty`` (octet ranges) are
    answered with SLVERR. ``log`` lists (address, octets) of each burst in the order of its answers.
    """

    def __init__(self, bus, rng: random.Random, *, stall: float = 0.3, latency: int = 40) -> None:
        self.bus = bus
        self.rng = rng
        self.stall = stall
        self.latency = latency
        self.octets: dict[int, int] = {}
        self.faulty: list[range] = []
        self.log: list[tuple[int, int]] = []
        self.cycle = 0
        self.most_outstanding = 0
        self._addresses: deque[tuple[int, int]] = deque()
        self._words: deque[list[tuple[int, int]]] = deque([[]])
        self._answers: deque[tuple[int, int]] = deque()
        self._reads: deque[tuple[int, int, int]] = deque()
        self._granted = 0
        self._answered = 0

    def read(self, address: int, length: int) -> bytes:
        return bytes(self.octets.get(address + i, 0) for i in range(length))

    def write(self, address: int, octets: bytes) -> None:
        for i, octet in enumerate(octets):
            self.octets[address + i] = octet

    def is_faulty(self, address: int) -> bool:
        return any(address in item for item in self.faulty)

    def _ready(self) -> bool:
        return self.rng.random() >= self.stall

    def add_to(self, sim, *, write: bool = False, read: bool = False) -> None:
        """Add the channels' processes to a simulator, in the background."""
        sim.add_testbench(self._count, background=True)
        if write:
            for process in (self._aw, self._w, self._b):
                sim.add_testbench(process, background=True)
        if read:
            for process in (self._ar, self._r):
                sim.add_testbench(process, background=True)

    async def _count(self, ctx) -> None:
        while True:
            await ctx.tick()
            self.cycle += 1

    async def _accept(self, ctx, prefix: str, names: tuple[str, ...]):
        """Transfers of a channel towards the memory, checked for stability."""
        valid = getattr(self.bus, f"{prefix}valid")
        ready = getattr(self.bus, f"{prefix}ready")
        payload = [getattr(self.bus, prefix + name) for name in names]
        held = None
        while True:
            is_ready = self._ready()
            ctx.set(ready, is_ready)
            _, _, is_valid, *values = await ctx.tick().sample(valid, *payload)
            if held is not None:
                assert is_valid and values == held, f"{prefix} did not hold {held}: {values}"
            held = list(values) if is_valid and not is_ready else None
            if is_valid and is_ready:
                yield values

    @staticmethod
    def _check(address: int, beats: int, size: int, burst: int) -> None:
        assert (size, burst) == (3, 1), f"size {size}, burst {burst}: expected 3 and INCR"
        assert address % 8 == 0, f"burst at {address:#x} is not aligned to 8 octets"
        assert address // PAGE == (address + 8 * beats - 1) // PAGE, (
            f"burst of {beats} words at {address:#x} crosses a 4 KiB page"
        )

    async def _aw(self, ctx) -> None:
        async for address, length, size, burst in self._accept(
            ctx, "aw", ("addr", "len", "size", "burst")
        ):
            self._check(address, length + 1, size, burst)
            self._addresses.append((address, length + 1))
            self._granted += 1
            self.most_outstanding = max(self.most_outstanding, self._granted - self._answered)
            self._match()

    async def _w(self, ctx) -> None:
        async for word, strobe, last in self._accept(ctx, "w", ("data", "strb", "last")):
            self._words[-1].append((word, strobe))
            if last:
                self._words.append([])
            self._match()

    def _match(self) -> None:
        while self._addresses and len(self._words) > 1:
            address, beats = self._addresses.popleft()
            words = self._words.popleft()
            assert len(words) == beats, (
                f"burst of {beats} words at {address:#x} brought {len(words)}"
            )
            self._write_words(address, words)

    def _write_words(self, address: int, words: list[tuple[int, int]]) -> None:
        fault = self.is_faulty(address)
        for index, (word, strobe) in enumerate(words):
            for lane in range(8):
                if strobe >> lane & 1 and not fault:
                    self.octets[address + 8 * index + lane] = word >> 8 * lane & 0xFF
        due = self.cycle + self.rng.randint(1, self.latency)
        self._answers.append((due, 2 if fault else 0))
        self.log.append((address, 8 * len(words)))

    async def _b(self, ctx) -> None:
        while True:
            if not self._answers or self._answers[0][0] > self.cycle or not self._ready():
                await ctx.tick()
                continue
            _, response = self._answers.popleft()
            ctx.set(self.bus.bresp, response)
            ctx.set(self.bus.bvalid, 1)
            await until(ctx, self.bus.bready)
            ctx.set(self.bus.bvalid, 0)
            self._answered += 1

    async def _ar(self, ctx) -> None:
        async for address, length, size, burst in self._accept(
            ctx, "ar", ("addr", "len", "size", "burst")
        ):
            self._check(address, length + 1, size, burst)
            self._reads.append(
                (self.cycle + self.rng.randint(1, self.latency), address, length + 1)
            )
            self.most_outstanding = max(self.most_outstanding, len(self._reads))

    async def _r(self, ctx) -> None:
        while True:
            if not self._reads or self._reads[0][0] > self.cycle:
                await ctx.tick()
                continue
            _, address, beats = self._reads[0]
            for beat in range(beats):
                while not self._ready():
                    await ctx.tick()
                word = self.read(address + 8 * beat, 8)
                ctx.set(self.bus.rdata, int.from_bytes(word, "little"))
                ctx.set(self.bus.rresp, 2 if self.is_faulty(address + 8 * beat) else 0)
                ctx.set(self.bus.rlast, beat == beats - 1)
                ctx.set(self.bus.rvalid, 1)
                await until(ctx, self.bus.rready)
                ctx.set(self.bus.rvalid, 0)
            self._reads.popleft()


class AxiLite:
    """AXI4-Lite manager that stalls, and lets data come before or after the address."""

    def __init__(self, bus, rng, stall=0.3):
        self.bus = bus
        self.rng = rng
        self.stall = stall

    async def _offer(self, ctx, pending, latest):
        """Raise each valid at its own random time and drop it when it is taken."""
        delays = {name: self.rng.randint(0, latest) for name in pending}
        while pending:
            for name in pending:
                if delays[name] <= 0:
                    ctx.set(getattr(self.bus, f"{name}valid"), 1)
                delays[name] -= 1
            signals = [
                signal
                for name in pending
                for signal in (
                    getattr(self.bus, f"{name}valid"),
                    getattr(self.bus, f"{name}ready"),
                )
            ]
            _, _, *values = await ctx.tick().sample(*signals)
            for index, name in reversed(list(enumerate(pending))):
                if values[2 * index] and values[2 * index + 1]:
                    ctx.set(getattr(self.bus, f"{name}valid"), 0)
                    pending.pop(index)

    async def _answer(self, ctx, valid, ready, *values):
        while self.rng.random() < self.stall:
            await ctx.tick()
        ctx.set(ready, 1)
        sampled = await until(ctx, valid, *values)
        ctx.set(ready, 0)
        return sampled

    async def write(self, ctx, address, data, strobe=0xF):
        ctx.set(self.bus.awaddr, address)
        ctx.set(self.bus.wdata, data)
        ctx.set(self.bus.wstrb, strobe)
        await self._offer(ctx, ["aw", "w"], round(10 * self.stall))
        (response,) = await self._answer(ctx, self.bus.bvalid, self.bus.bready, self.bus.bresp)
        assert response == 0

    async def read(self, ctx, address):
        ctx.set(self.bus.araddr, address)
        await self._offer(ctx, ["ar"], round(10 * self.stall))
        response, data = await self._answer(
            ctx, self.bus.rvalid, self.bus.rready, self.bus.rresp, self.bus.rdata
        )
        assert response == 0
        return data

    async def read_counter(self, ctx, counter):
        low = await self.read(ctx, counter_address(counter))
        return low | await self.read(ctx, counter_address(counter) + 4) << 32

    async def command(self, ctx, table, row, value):
        for index in range(-(-TABLES[table].size // 4)):
            await self.write(ctx, Register.TABLE_DATA.at(index), value >> 32 * index & 0xFFFFFFFF)
        await self.write(ctx, Register.TABLE_SELECT.address, table << 16 | row)
        await self.write(ctx, Register.TABLE_COMMAND.address, self.rng.getrandbits(32))


def watchdog(cycles: int):
    """A process that fails the simulation after ``cycles``; add it in the background."""

    async def process(ctx) -> None:
        for _ in range(cycles):
            await ctx.tick()
        raise AssertionError(f"not done after {cycles} cycles")

    return process
