"""The two sides of a bench, the gateware under cocotb and the model, behind one interface."""

import random
from collections.abc import Sequence
from typing import Protocol

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiSlave

from uwarp.contract import Parameters
from uwarp.model import Rnic

from .memory import AxiMemory, HostMemory
from .stream import FrameSink, FrameSource, hold_up

__all__ = ["GatewareSide", "ModelSide", "Side"]


class Side(Protocol):
    """A NIC with its memory, its bus, its wire and its clock."""

    memory: HostMemory
    sent: list[bytes]

    async def read32(self, address: int) -> int: ...
    async def read_each(self, addresses: Sequence[int]) -> list[int]:
        """Registers, as fast as the bus takes it."""

    async def write32(self, address: int, value: int) -> None: ...
    def receive(self, frame: bytes, error_beat: int | None = None) -> None: ...
    async def delivered(self) -> None:
        """Wait until the frames of :meth:`receive` are off the wire."""

    async def wait(self, cycles: int) -> None:
        """Let time go by; frames that were sent meanwhile are then in ``sent``."""

    @property
    def irq(self) -> bool: ...


class ModelSide:
    """The reference model."""

    def __init__(self, parameters: Parameters, memory: HostMemory) -> None:
        self.memory = memory
        self.sent: list[bytes] = []
        self._nic = Rnic(parameters, memory)

    async def read32(self, address: int) -> int:
        return self._nic.read32(address)

    async def read_each(self, addresses: Sequence[int]) -> list[int]:
        return [self._nic.read32(address) for address in addresses]

    async def write32(self, address: int, value: int) -> None:
        self._nic.write32(address, value)
        self._collect()

    def receive(self, frame: bytes, error_beat: int | None = None) -> None:
        self._nic.receive(frame, error_beat is not None)
        self._collect()

    async def delivered(self) -> None:
        pass

    async def wait(self, cycles: int) -> None:
        self._nic.advance(cycles)
        self._collect()

    @property
    def irq(self) -> bool:
        return bool(self._nic.irq)

    def _collect(self) -> None:
        while (frame := self._nic.next_frame()) is not None:
            self.sent.append(bytes(frame))


class GatewareSide:
    """The NIC's Verilog between a frame source, a frame sink and cocotbext-axi's bus models.

    ``stalls`` is a seeded generator that holds up every channel at random, or None for none.
    """

    def __init__(self, dut, memory: HostMemory, stalls: random.Random | None) -> None:
        self.memory = memory
        self._dut = dut
        self.source = FrameSource(dut, "rx", dut.clk)
        self.sink = FrameSink(dut, "tx", dut.clk)
        names = {"bus_separator": "__", "case_insensitive": False}
        self.bus = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "bus", **names), dut.clk, dut.rst)
        self.dma = AxiSlave(
            AxiBus.from_prefix(dut, "dma", **names), dut.clk, dut.rst, target=AxiMemory(memory)
        )
        if stalls is not None:
            self._stall(stalls)

    @classmethod
    async def start(cls, dut, memory: HostMemory, stalls: random.Random | None = None):
        """Start the clock (156.25 MHz) and reset the NIC."""
        cocotb.start_soon(Clock(dut.clk, 6.4, unit="ns").start())
        dut.rst.value = 1
        side = cls(dut, memory, stalls)
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        await ClockCycles(dut.clk, 2)
        return side

    def _stall(self, rng: random.Random) -> None:
        write, read = self.dma.write_if, self.dma.read_if
        bus_write, bus_read = self.bus.write_if, self.bus.read_if
        channels = (
            self.source,
            self.sink,
            write.aw_channel,
            write.w_channel,
            write.b_channel,
            read.ar_channel,
            read.r_channel,
            bus_write.aw_channel,
            bus_write.w_channel,
            bus_write.b_channel,
            bus_read.ar_channel,
            bus_read.r_channel,
        )
        cocotb.start_soon(hold_up(self._dut.clk, channels, rng))

    @property
    def sent(self) -> list[bytes]:
        return self.sink.frames

    async def read32(self, address: int) -> int:
        return await self.bus.read_dword(address)

    async def read_each(self, addresses: Sequence[int]) -> list[int]:
        reads = [cocotb.start_soon(self.bus.read_dword(address)) for address in addresses]
        return [await read for read in reads]

    async def write32(self, address: int, value: int) -> None:
        await self.bus.write_dword(address, value)

    def receive(self, frame: bytes, error_beat: int | None = None) -> None:
        self.source.send(frame, error_beat=error_beat)

    async def delivered(self) -> None:
        await self.source.wait()

    async def wait(self, cycles: int) -> None:
        await ClockCycles(self._dut.clk, cycles)

    @property
    def irq(self) -> bool:
        return bool(int(self._dut.irq.value))
