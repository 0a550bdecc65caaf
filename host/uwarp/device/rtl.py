"""The rtl form: NICs of compiled gateware, two joined by a wire or one alone, in this process.

The clock stands still between calls: time goes by in :meth:`RtlLink.run`, in register accesses and
in :meth:`RtlDevice.progress`. A call lets other Python threads run; calls from several threads take
turns.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from dataclasses import dataclass, fields
from enum import Enum
from types import TracebackType
from typing import Self

from uwarp.contract import ADDRESS_BITS, Parameters

from .base import DeviceError, Fate, Impairments, WireRecord
from .build import rtl_library
from .impair import thresholds
from .memory import AddressSpace, DmaFault, Mapping
from .wire import PROGRESS_CYCLES, DirectionStatistics, parse_frame

__all__ = ["Event", "EventKind", "RtlDevice", "RtlLink", "RtlNic"]

_FAULT_KINDS = (
    "DMA read of an address that is not mapped",
    "DMA write to an address that is not mapped",
    "DMA write into a mapping that is read only",
    "a transfer that breaks the bus's rules",
    "a receive port that was not ready for a beat",
    "a sent frame without end",
)
_RECORD = struct.Struct("<QIBBH")
_KEPT_FAULTS = 64
_LOG_OCTETS = 256 << 20


class _Fault(ctypes.Structure):
    _fields_ = (
        ("time", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("kind", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("time", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("octets", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
    )


class _Counts(ctypes.Structure):
    _fields_ = tuple((item.name, ctypes.c_uint64) for item in fields(DirectionStatistics))


def _load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    handle, u32, u64, i32 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int
    pointer = ctypes.c_void_p
    signatures: dict[str, tuple[object, tuple[object, ...]]] = {
        "link_new": (handle, (u32, u64, u64, u64, u64, u32, u32, i32, u64, ctypes.c_char_p)),
        "link_delete": (None, (handle,)),
        "link_run": (None, (handle, u64)),
        "link_time": (u64, (handle,)),
        "link_records_lost": (u64, (handle,)),
        "link_log_size": (u64, (handle,)),
        "link_take_log": (u64, (handle, pointer, u64)),
        "link_inject": (None, (handle, u32, ctypes.c_char_p, u64, i32)),
        "link_flush": (None, (handle,)),
        "nic_read32": (i32, (handle, u32, u32, pointer)),
        "nic_write32": (i32, (handle, u32, u32, u32)),
        "nic_map": (i32, (handle, u32, u64, u64, pointer, i32)),
        "nic_unmap": (i32, (handle, u32, u64)),
        "nic_irq": (i32, (handle, u32)),
        "nic_take_faults": (u64, (handle, u32, pointer, u64)),
        "nic_counts": (None, (handle, u32, pointer)),
        "nic_watch": (None, (handle, u32, i32)),
        "nic_take_events": (u64, (handle, u32, pointer, u64)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"uwarp_{name}")
        function.restype = result
        function.argtypes = arguments
    return library


def _check_word(address: int, value: int) -> None:
    if not 0 <= address < 1 << ADDRESS_BITS or address % 4:
        raise ValueError(f"address {address:#x}; registers are aligned words")
    if not 0 <= value < 1 << 32:
        raise ValueError(f"value {value:#x}; registers take 32 bits")


class EventKind(Enum):
    """What an :class:`Event` tells of."""

    ARRIVAL = 0  # the last word of a frame came in
    WRITE = 1  # the last word of a DMA write burst was taken
    DEPARTURE = 2  # the first word of a frame went out
    REGISTER = 3  # the new value of a register was taken
    READ = 4  # the last word of a DMA read burst was given
    ASKED = 5  # the address of a DMA read burst was taken


@dataclass(frozen=True, slots=True)
class Event:
    """Something at a NIC's ports, in cycle ``time``.

    Of an arrival ``octets`` are the frame's, of a departure those of its first word, and
    ``address`` is 0. Of a burst ``octets`` are those of its words, and ``address`` is the DMA
    address of the last word, or of the first where it is asked for. Of a register ``octets`` is 4.
    """

    time: int
    kind: EventKind
    address: int
    octets: int


class RtlDevice:
    """One NIC of an :class:`RtlLink`, or an :class:`RtlNic`'s.

    Implements :class:`~uwarp.device.base.Device`.
    """

    def __init__(self, link: _Harness, index: int) -> None:
        self._link = link
        self._index = index
        self._space = AddressSpace()

    def __repr__(self) -> str:
        return f"<RtlDevice {self.name}>"

    @property
    def name(self) -> str:
        return f"rtl{self._index}"

    def read32(self, address: int) -> int:
        _check_word(address, 0)
        value = ctypes.c_uint32()
        with self._link._open() as (library, handle):
            status = library.uwarp_nic_read32(handle, self._index, address, ctypes.byref(value))
        self._check_access(status, f"read of register {address:#x}")
        return value.value

    def write32(self, address: int, value: int) -> None:
        _check_word(address, value)
        with self._link._open() as (library, handle):
            status = library.uwarp_nic_write32(handle, self._index, address, value)
        self._check_access(status, f"write to register {address:#x}")

    def _check_access(self, status: int, what: str) -> None:
        if status:
            answer = "was not answered" if status < 0 else f"was answered with error {status}"
            raise DeviceError(f"{self.name}: the {what} {answer}")

    def map(self, address: int, length: int, *, writable: bool = True) -> int:
        with self._link._open() as (library, handle):
            mapping = self._space.map(address, length, writable)
            if not library.uwarp_nic_map(
                handle, self._index, mapping.dma_address, length, address, writable
            ):
                raise DeviceError(f"{self.name}: cannot map {mapping}")
        return mapping.dma_address

    def unmap(self, dma_address: int) -> None:
        with self._link._open() as (library, handle):
            self._space.unmap(dma_address)
            library.uwarp_nic_unmap(handle, self._index, dma_address)

    def progress(self) -> None:
        self._link.run(PROGRESS_CYCLES)

    @property
    def interrupt(self) -> bool:
        with self._link._open() as (library, handle):
            return bool(library.uwarp_nic_irq(handle, self._index))

    def take_faults(self) -> list[DmaFault]:
        """What the NIC did and must not, since the last call; of many, the first 64."""
        found = (_Fault * _KEPT_FAULTS)()
        with self._link._open() as (library, handle):
            count = library.uwarp_nic_take_faults(handle, self._index, found, _KEPT_FAULTS)
        return [
            DmaFault(item.time, item.address, _FAULT_KINDS[item.kind])
            for item in found[: min(count, _KEPT_FAULTS)]
        ]

    def check(self) -> None:
        """Raise DeviceError if the NIC did what it must not since the last look."""
        faults = self.take_faults()
        if faults:
            raise DeviceError(f"{self.name}: {faults[0]} (the first of {len(faults)})")

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        """The memory that the NIC may reach, by DMA address."""
        return self._space.mappings

    def watch(self, wanted: bool = True) -> None:
        """Keep :class:`Event` s from now on, or no longer; those not taken are forgotten."""
        with self._link._open() as (library, handle):
            library.uwarp_nic_watch(handle, self._index, wanted)

    def take_events(self) -> list[Event]:
        """What was kept since the last call, of each kind by time."""
        with self._link._open() as (library, handle):
            count = library.uwarp_nic_take_events(handle, self._index, None, 0)
            found = (_Event * count)()
            library.uwarp_nic_take_events(handle, self._index, found, count)
        return [Event(item.time, EventKind(item.kind), item.address, item.octets) for item in found]

    @property
    def sent(self) -> DirectionStatistics:
        """Statistics of the direction of which this NIC is the source."""
        counts = _Counts()
        with self._link._open() as (library, handle):
            library.uwarp_nic_counts(handle, self._index, ctypes.byref(counts))
        return DirectionStatistics(
            **{item.name: getattr(counts, item.name) for item in fields(DirectionStatistics)}
        )

    def inject(self, frame: bytes, *, error: bool = False) -> None:
        """Let a frame arrive that no NIC has sent: as it is, past impairments and records.

        Parameters
        ----------
        frame : 1 octet or more, without FCS. Not padded.
        error : whether the MAC flags it.
        """
        octets = parse_frame(frame)
        with self._link._open() as (library, handle):
            library.uwarp_link_inject(handle, self._index, octets, len(octets), error)

    def close(self) -> None:
        """Close the link: the NICs share a clock."""
        self._link.close()


class _Harness:
    """NICs of compiled gateware on one clock.

    Parameters
    ----------
    count : NICs: two are joined by a wire; what one alone sends goes nowhere.

    The others are those of :class:`RtlLink`.
    """

    def __init__(
        self,
        count: int,
        parameters: Parameters | None = None,
        impairments: Impairments | None = None,
        *,
        trace: str | os.PathLike[str] | None = None,
        read_latency: int = 8,
        write_latency: int = 8,
        threads: bool = False,
    ) -> None:
        for name, latency in (("read_latency", read_latency), ("write_latency", write_latency)):
            if not 0 <= latency < 1 << 16:
                raise ValueError(f"{name} is {latency}; it takes 0 to 65535 cycles")
        self.parameters = parameters or Parameters()
        self.impairments = impairments or Impairments()
        self.read_latency, self.write_latency = read_latency, write_latency
        self._lock = threading.RLock()
        self._library = _load(str(rtl_library(self.parameters, trace=trace is not None)))
        self._handle: int | None = self._library.uwarp_link_new(
            count,
            *thresholds(self.impairments),
            self.impairments.seed & (1 << 64) - 1,
            read_latency,
            write_latency,
            threads,
            _LOG_OCTETS,
            os.fsencode(trace) if trace is not None else b"",
        )
        self._devices = tuple(RtlDevice(self, index) for index in range(count))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'open' if self._handle else 'closed'}>"

    def _open(self) -> _Locked:
        return _Locked(self)

    @property
    def time(self) -> int:
        with self._open() as (library, handle):
            return int(library.uwarp_link_time(handle))

    def run(self, cycles: int) -> None:
        if cycles < 0:
            raise ValueError(f"cannot run {cycles} cycles")
        with self._open() as (library, handle):
            library.uwarp_link_run(handle, cycles)

    def records(self) -> list[WireRecord]:
        """Frames, in the order of delivery or loss, each with the time when it left.

        Those of the last 256 MiB; ``records_lost`` counts older ones that nobody took.
        """
        with self._open() as (library, handle):
            log = (ctypes.c_ubyte * library.uwarp_link_log_size(handle))()
            library.uwarp_link_take_log(handle, log, len(log))
        octets = memoryview(log)
        result = []
        position = 0
        while position < len(octets):
            time, length, source, fate, _ = _RECORD.unpack_from(octets, position)
            position += _RECORD.size
            frame = bytes(octets[position : position + length])
            result.append(WireRecord(time, source, Fate(fate), frame))
            position += length
        return result

    @property
    def records_lost(self) -> int:
        with self._open() as (library, handle):
            return int(library.uwarp_link_records_lost(handle))

    def check(self) -> None:
        """Raise DeviceError if a NIC did what it must not since the last look."""
        for device in self._devices:
            device.check()

    def flush(self) -> None:
        """Bring the waveform files up to now."""
        with self._open() as (library, handle):
            library.uwarp_link_flush(handle)

    def close(self) -> None:
        with self._lock:
            if self._handle is not None:
                self._library.uwarp_link_delete(self._handle)
                self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.close()


class RtlLink(_Harness):
    """Two NICs of compiled gateware joined by a wire.

    Parameters
    ----------
    parameters : what the NICs are made with. The first use of each set compiles it: about a minute.
    impairments : what the wire does to frames.
    trace : file for waveforms (VCD); the NIC's number is put before the suffix. Slow, and large.
    read_latency : cycles from the address of a DMA read to its first word.
    write_latency : cycles from the last word of a DMA write to its answer.
    threads : run the second NIC in a thread of its own. The result is the same.
    """

    def __init__(
        self,
        parameters: Parameters | None = None,
        impairments: Impairments | None = None,
        *,
        trace: str | os.PathLike[str] | None = None,
        read_latency: int = 8,
        write_latency: int = 8,
        threads: bool = False,
    ) -> None:
        super().__init__(
            2,
            parameters,
            impairments,
            trace=trace,
            read_latency=read_latency,
            write_latency=write_latency,
            threads=threads,
        )

    @property
    def devices(self) -> tuple[RtlDevice, RtlDevice]:
        one, two = self._devices
        return one, two


class RtlNic(_Harness):
    """One NIC of compiled gateware, alone: for benches, which give it frames by
    :meth:`RtlDevice.inject`. They arrive at the wire's spacing, one right behind the other.

    Parameters are those of :class:`RtlLink`.
    """

    def __init__(
        self,
        parameters: Parameters | None = None,
        *,
        trace: str | os.PathLike[str] | None = None,
        read_latency: int = 8,
        write_latency: int = 8,
    ) -> None:
        super().__init__(
            1, parameters, trace=trace, read_latency=read_latency, write_latency=write_latency
        )

    @property
    def device(self) -> RtlDevice:
        return self._devices[0]


class _Locked:
    """The library and its handle, for the length of a call."""

    def __init__(self, link: _Harness) -> None:
        self._link = link

    def __enter__(self) -> tuple[ctypes.CDLL, int]:
        self._link._lock.acquire()
        if self._link._handle is None:
            self._link._lock.release()
            raise DeviceError("the link is closed")
        return self._link._library, self._link._handle

    def __exit__(self, *_: object) -> None:
        self._link._lock.release()
