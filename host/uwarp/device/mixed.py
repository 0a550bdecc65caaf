"""One NIC of compiled gateware and one software NIC, joined by a wire.

The wire, its time and its impairments are those of the model form. The gateware's clock follows it
in steps of at most ``STEP_CYCLES``: so much later than it left may a frame of the gateware go on
its way. Register accesses let the gateware's clock run ahead, and the wire's catches up.
"""

from __future__ import annotations

from collections import deque

from uwarp.contract import Parameters
from uwarp.model import Way

from .base import Impairments
from .memory import DmaFault
from .model import ACCESS_CYCLES, ModelLink, WiredDevice
from .rtl import RtlNic

__all__ = ["STEP_CYCLES", "GatewareDevice", "MixedLink"]

STEP_CYCLES = 64


class GatewareDevice(WiredDevice):
    """A NIC of compiled gateware. Implements :class:`~uwarp.device.base.Device`."""

    form = "rtl"

    def __init__(self, link: ModelLink, index: int, nic: RtlNic) -> None:
        super().__init__(link, index)
        self.rnic = self
        self._nic = nic
        self._left: deque[bytes] = deque()

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

    @property
    def interrupt(self) -> bool:
        return self._nic.device.interrupt

    def take_faults(self) -> list[DmaFault]:
        return self._nic.device.take_faults()


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
        self._gateware = gateware
        self._nic = RtlNic(parameters, **latencies)  # type: ignore[arg-type]
        super().__init__(parameters, impairments)

    def _make_device(self, index: int) -> WiredDevice:
        if index == self._gateware:
            return GatewareDevice(self, index, self._nic)
        return super()._make_device(index)

    def __repr__(self) -> str:
        return f"<MixedLink {'closed' if self._closed else 'open'}>"

    def _next_event(self) -> int:
        return min(self._time + STEP_CYCLES, super()._next_event())

    def close(self) -> None:
        super().close()
        self._nic.close()
