"""Source and sink of frames for the NIC's packet streams, and what holds channels up at random."""

import random
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heapreplace
from typing import Protocol

import cocotb
from cocotb.triggers import Event, RisingEdge

from uwarp.wire import wire_octets

__all__ = ["FrameSink", "FrameSource", "Pausable", "hold_up"]


class Pausable(Protocol):
    """A channel that transfers nothing while it is paused."""

    pause: bool


def _spells(rng: random.Random, share: float) -> Iterator[int]:
    """Cycles without and with a pause, by turns: short and long ones, ``share`` of them pauses."""
    while True:
        longest = rng.choice((1, 1, 4, 4, 16, 60))
        pause = rng.randint(1, longest)
        yield max(1, round(pause * (1 - share) / share * rng.uniform(0.5, 1.5)))
        yield pause


async def hold_up(clock, channels: Iterable[Pausable], rng: random.Random) -> None:
    """Pause each of the channels at random, for ever.

    One task for all of them: a task for each, woken in every cycle, takes most of a bench's time.
    """
    turns = []
    for number, channel in enumerate(channels):
        spells = _spells(random.Random(rng.random()), rng.choice((0.1, 0.3, 0.5)))
        turns.append((next(spells), number, channel, spells))
    heapify(turns)
    edge = RisingEdge(clock)
    now = 0
    while True:
        while turns[0][0] <= now:
            when, number, channel, spells = turns[0]
            channel.pause = not channel.pause
            heapreplace(turns, (when + next(spells), number, channel, spells))
        await edge
        now += 1


class FrameSource:
    """Sends frames into a packet stream with the spacing of 10GbE (preamble, FCS, gap).

    A pause holds ``valid`` low between beats, also within a frame.
    """

    pause = False

    def __init__(self, dut, prefix: str, clock) -> None:
        self._payload = getattr(dut, f"{prefix}__payload")
        self._valid = getattr(dut, f"{prefix}__valid")
        self._ready = getattr(dut, f"{prefix}__ready")
        self._edge = RisingEdge(clock)
        self._frames: deque[tuple[list[int], float]] = deque()
        self._wake = Event()
        self._idle = Event()
        self._idle.set()
        self._valid.value = 0
        self._payload.value = 0
        self._task = cocotb.start_soon(self._run())

    def send(self, frame: bytes, *, error_beat: int | None = None) -> None:
        """Queue ``frame``; the beat ``error_beat`` of it, if any, is flagged."""
        if not frame:
            raise ValueError("a frame has at least one octet")
        beats = []
        for start in range(0, len(frame), 8):
            octets = frame[start : start + 8]
            beat = int.from_bytes(octets, "little") | len(octets) << 64
            beat |= (start + 8 >= len(frame)) << 68 | (start // 8 == error_beat) << 69
            beats.append(beat)
        self._frames.append((beats, wire_octets(len(frame)) / 8))
        self._idle.clear()
        self._wake.set()

    async def wait(self) -> None:
        """Until all frames are sent."""
        await self._idle.wait()

    async def _run(self) -> None:
        owed = 0.0
        while True:
            if not self._frames:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
                await self._edge
                owed = 0.0
            beats, cycles = self._frames.popleft()
            for beat in beats:
                while self.pause:
                    self._valid.value = 0
                    await self._edge
                self._payload.value = beat
                self._valid.value = 1
                await self._edge
                while not self._ready.value:
                    await self._edge
            self._valid.value = 0
            owed += max(0.0, cycles - len(beats))
            for _ in range(int(owed)):
                await self._edge
            owed -= int(owed)


class FrameSink:
    """Collects frames from a packet stream, and checks the stream's rules.

    A beat that was offered stays until taken; ``count`` is 8 but in the last; nothing is flagged.
    A pause holds ``ready`` low.
    """

    def __init__(self, dut, prefix: str, clock) -> None:
        self._payload = getattr(dut, f"{prefix}__payload")
        self._valid = getattr(dut, f"{prefix}__valid")
        self._ready = getattr(dut, f"{prefix}__ready")
        self._edge = RisingEdge(clock)
        self._offer = RisingEdge(self._valid)
        self._pause = False
        self.frames: list[bytes] = []
        self._arrival = Event()
        self._ready.value = 1
        self._task = cocotb.start_soon(self._run())

    async def recv(self) -> bytes:
        """The next frame."""
        while not self.frames:
            self._arrival.clear()
            await self._arrival.wait()
        return self.frames.pop(0)

    @property
    def pause(self) -> bool:
        return self._pause

    @pause.setter
    def pause(self, paused: bool) -> None:
        self._pause = paused
        self._ready.value = int(not paused)

    async def _run(self) -> None:
        octets = bytearray()
        held: int | None = None
        while True:
            await self._edge
            valid = int(self._valid.value)
            if not valid:
                assert held is None, "valid fell before the beat was taken"
                await self._offer
            elif self._ready.value:
                beat = int(self._payload.value)
                assert held in (None, beat), f"a beat changed while it waited: {held:#x} {beat:#x}"
                held = None
                count, last = beat >> 64 & 15, beat >> 68 & 1
                assert not beat >> 69, "a frame sent is flagged as spoilt"
                assert count == 8 or (last and 1 <= count <= 8), f"count {count}, last {last}"
                octets += (beat & (1 << 64) - 1).to_bytes(8, "little")[:count]
                if last:
                    self.frames.append(bytes(octets))
                    octets.clear()
                    self._arrival.set()
            else:
                beat = int(self._payload.value)
                assert held in (None, beat), f"a beat changed while it waited: {held:#x} {beat:#x}"
                held = beat
