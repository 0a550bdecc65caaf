"""One NIC of compiled gateware and one software NIC, joined by a wire.

The wire, its time and its impairments are those of the model form. The gateware's clock follows it
in steps of at most ``STEP_CYCLES``: so much later than it left may a frame of the gateware go on
its way. Register accesses let the gateware's clock run ahead, and the wire's catches up.
"""

from __future__ import annotations

from collections import deque

from uwarp.contract import Parameters
from uwarp.model import Way

from .base import DeviceError, Impairments
from .memory import DmaFault
from .model import ACCESS_CYCLES, ModelDevice, ModelLink
from .rtl import RtlNic
from .wire import PROGRESS_CYCLES, DirectionStatistics, parse_frame

__all__ = ["STEP_CYCLES", "GatewareDevice", "MixedLink"]

STEP_CYCLES = 64


class GatewareDevice:
    """The NIC of compiled gateware. Implements :class:`~uwarp.device.base.Device`."""

    def __init__(self, link: MixedLink, index: int, nic: RtlNic) -> None:
        self._link = link
        self._index = index
        self._nic = nic
        self._left: deque[bytes] = deque()
        self.sent = DirectionStatistics()

    def __repr__(self) -> str:
        return f"<GatewareDevice {self.name}>"

    @property
    def name(self) -> str:
        return f"rtl{self._index}"

    @property
    def rnic(self) -> GatewareDevice:
        """What the wire is joined to: itself."""
        return self

    def receive(self, frame: bytes, error: bool = False) -> None:
        self._nic.device.inject(frame, error=error)

    def transmit(self) -> tuple[bytes, Way] | None:
        """The next frame that left by the MAC."""
        return (self._left.popleft(), Way.MAC) if self._left else None

    def advance(self, cycles: int) -> None:
        """Follow the wire, whose time is ``cycles`` more than it was."""
        del cycles  # a register access may have run some of them already
        behind = self._link.time - self._nic.time
        if behind > 0:
            self._nic.run(behind)
        self._left += (record.frame for record in self._nic.records())

    def read32(self, address: int) -> int:
        with self._link._lock:
            self._link.run(ACCESS_CYCLES)
            return self._nic.device.read32(address)

    def write32(self, address: int, value: int) -> None:
        with self._link._lock:
            self._link.run(ACCESS_CYCLES)
            self._nic.device.write32(address, value)

    def map(self, address: int, length: int, *, writable: bool = True) -> int:
        return self._nic.device.map(address, length, writable=writable)

    def unmap(self, dma_address: int) -> None:
        self._nic.device.unmap(dma_address)

    def progress(self) -> None:
        self._link.run(PROGRESS_CYCLES)

    @property
    def interrupt(self) -> bool:
        return self._nic.device.interrupt

    def take_faults(self) -> list[DmaFault]:
        """What the NIC did to memory and must not, since the last call."""
        return self._nic.device.take_faults()

    def check(self) -> None:
        """Raise DeviceError if the NIC did what it must not since the last look."""
        faults = self.take_faults()
        if faults:
            raise DeviceError(f"{self.name}: {faults[0]} (the first of {len(faults)})")

    def inject(self, frame: bytes, *, error: bool = False) -> None:
        """Let a frame arrive that no NIC has sent: as it is, past impairments and records."""
        with self._link._lock:
            self._link._arrive(self._index, self._link.time, parse_frame(frame), error)

    def close(self) -> None:
        """Close the link: the NICs share a clock."""
        self._link.close()


class MixedLink(ModelLink):
    """A NIC of compiled gateware and one of the model, joined by a wire.

    Parameters
    ----------
    gateware : 0 or 1, which of the two devices is of gateware.
    parameters : sizes of the NICs' tables.
    impairments : what the wire does to frames.
    latencies : ``read_latency`` and ``write_latency`` of the gateware, as of
        :class:`~uwarp.device.rtl.RtlLink`.
    """

    def __init__(
        self,
        gateware: int,
        parameters: Parameters | None = None,
        impairments: Impairments | None = None,
        **latencies: int,
    ) -> None:
        super().__init__(parameters, impairments)
        self._nic = RtlNic(self.parameters, **latencies)  # type: ignore[arg-type]
        devices: list[ModelDevice | GatewareDevice] = list(self._devices)
        devices[gateware] = GatewareDevice(self, gateware, self._nic)
        self._devices = tuple(devices)  # type: ignore[assignment]  # what the wire needs, it has

    def __repr__(self) -> str:
        return f"<MixedLink {'closed' if self._closed else 'open'}>"

    def _next_event(self) -> int:
        return min(self._time + STEP_CYCLES, super()._next_event())

    def close(self) -> None:
        super().close()
        self._nic.close()
