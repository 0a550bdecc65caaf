"""Links for the end-to-end tests: two NICs of one form, or one of the gateware and one model.

The mixed link puts a wire between a model of a link of its own, whose other NIC is off, and a NIC
of compiled gateware alone. Time goes by in steps on both sides in turn; after each step what one
has sent arrives at the other. So a frame is up to a step late, and the wire's order is kept.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from uwarp.contract import Parameters
from uwarp.device import Fate, Impairments, Link, WireRecord, open_link
from uwarp.device.impair import IDLE_CYCLES, Direction
from uwarp.device.model import ModelDevice, ModelLink
from uwarp.device.rtl import RtlDevice, RtlNic
from uwarp.device.wire import PROGRESS_CYCLES

__all__ = ["KINDS", "MixedLink", "open_pair"]

KINDS = ("model",)
"""Of the end-to-end tests; "rtl", "model-rtl" and "rtl-model" are the others."""

STEP = 64


def open_pair(kind: str, **options: Any) -> Link:
    """A link of this kind: "model", "rtl", or the two forms in the order of the devices."""
    one, _, two = kind.partition("-")
    return MixedLink(one, two, **options) if two else open_link(kind, **options)


class _Device:
    """One NIC of a :class:`MixedLink`: as it is, but its accesses take the other's time, too."""

    def __init__(self, link: MixedLink, device: ModelDevice | RtlDevice) -> None:
        self._link = link
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def read32(self, address: int) -> int:
        value = self._device.read32(address)
        self._link.run(0)
        return value

    def write32(self, address: int, value: int) -> None:
        self._device.write32(address, value)
        self._link.run(0)

    def progress(self) -> None:
        self._link.run(PROGRESS_CYCLES)

    def close(self) -> None:
        self._link.close()


class MixedLink:
    """A model and a NIC of gateware joined by a wire.

    Parameters
    ----------
    one, two : "model" and "rtl", or the other way round.
    parameters, impairments : as of the other links.
    """

    def __init__(
        self,
        one: str,
        two: str,
        *,
        parameters: Parameters | None = None,
        impairments: Impairments | None = None,
    ) -> None:
        if {one, two} != {"model", "rtl"}:
            raise ValueError(f"a link of {one!r} and {two!r}")
        self.parameters = parameters or Parameters()
        self.impairments = impairments or Impairments()
        self._model = ModelLink(self.parameters, self.impairments)
        self._nic = RtlNic(self.parameters)
        self._rtl = (one, two).index("rtl")
        self._fates: Direction[WireRecord] = Direction(self.impairments, self._rtl)
        self._last = 0  # when the gateware last sent
        self._records: list[WireRecord] = []
        sides = [self._model.devices[1 - self._rtl], self._nic.device]
        if self._rtl == 0:
            sides.reverse()
        self._devices = (_Device(self, sides[0]), _Device(self, sides[1]))

    @property
    def devices(self) -> tuple[_Device, _Device]:
        return self._devices

    @property
    def time(self) -> int:
        return max(self._model.time, self._nic.time)

    def run(self, cycles: int) -> None:
        end = self.time + cycles
        while True:
            now = min(end, min(self._model.time, self._nic.time) + STEP)
            for side in (self._nic, self._model):
                side.run(max(0, now - side.time))
            self._exchange(now)
            if now == end:
                return

    def _exchange(self, now: int) -> None:
        for record in self._model.records():
            if record.source == self._rtl:
                continue
            self._records.append(record)
            if record.fate is not Fate.DROPPED:
                self._nic.device.inject(record.frame)
        outcome: list[tuple[Fate, WireRecord]] = []
        for record in self._nic.records():
            outcome += self._fates.offer(record)
            self._last = record.time
        if self._fates.holds and now - self._last > IDLE_CYCLES:
            outcome += self._fates.release()
        for fate, record in outcome:
            self._records.append(WireRecord(record.time, self._rtl, fate, record.frame))
            if fate is not Fate.DROPPED:
                self._model.devices[1 - self._rtl].inject(record.frame)

    def records(self) -> list[WireRecord]:
        """Frames, each with the time when it left, in the order in which the other end got them."""
        records, self._records = self._records, []
        return records

    def check(self) -> None:
        """Raise DeviceError if a NIC did what it must not since the last look."""
        for device in self._devices:
            device.check()

    def close(self) -> None:
        self._model.close()
        self._nic.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
