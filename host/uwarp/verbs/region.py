"""MR: memory that peers, and our own queue pairs, may name by an STag."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from uwarp.contract import REGION_ENTRY, CloseTarget, Table
from uwarp.wire import DEFAULT_GRANULE

from .context import PD
from .enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    ibv_access_flags,
)
from .errors import refuse
from .lifetime import Resource
from .memory import Memory
from .validity import Validity

__all__ = ["MR"]

MAX_GRANULE = 1 << 16


class MR(Resource):
    """A memory region. Target offset is the virtual address: octet n of the region has ``buf + n``.

    Parameters
    ----------
    creator : PD
    length : octets to allocate (zeroed, page-aligned). Not with ``buffer``.
    access : ibv_access_flags
        REMOTE_WRITE needs LOCAL_WRITE. Local read is always allowed.
    address : int, optional
        Register ``length`` octets of this process at ``address`` instead; the caller keeps them
        alive.
    buffer : object with the buffer protocol, optional
        Register this memory instead: bytearray, memoryview, numpy array, mmap. Read-only ones too,
        without LOCAL_WRITE. It cannot be resized until the region is closed.
    validity : bool
        Keep a validity map: Write-Records of many datagrams complete once, with their map, Sends of
        many datagrams can be received (see :class:`RecvWR`), and Reads be made into it.
    granule : octets
        Of the map: 64 or a greater power of two, to 65,536. Peers must send with the same
        (``SendWR.granule``). The region's address must be a multiple of it.

    Attributes
    ----------
    buf, length : address and octets.
    lkey, rkey : the STag. A region that is registered later has another, also in the same place.
    view : memoryview
        The memory itself.

    Raises
    ------
    VerbsRDMAError
        ENOSPC if the device has no region or no map bits left, EINVAL for the arguments.
    """

    def __init__(
        self,
        creator: PD,
        length: int = 0,
        access: int = 0,
        address: int | None = None,
        *,
        buffer: Any = None,
        validity: bool = False,
        granule: int = DEFAULT_GRANULE,
    ) -> None:
        creator._check_open()
        _check_access(access)
        if not DEFAULT_GRANULE <= granule <= MAX_GRANULE or granule & (granule - 1):
            raise refuse(f"granule is {granule}; it takes a power of two from 64 to {MAX_GRANULE}")
        if buffer is not None and (length or address is not None):
            raise refuse("buffer comes with its own length and address: give neither")
        if buffer is None and length <= 0:
            raise refuse(f"a region of {length} octets; it takes 1 or more")
        self.pd = creator
        self.context = context = creator.context
        self.access = ibv_access_flags(access)
        self.granule = granule
        self._memory: Memory | None = None
        self._map_memory: Memory | None = None
        self._map_base: int | None = None
        writable = bool(access & IBV_ACCESS_LOCAL_WRITE)
        self.view: memoryview[Any]
        if buffer is not None:
            self.view = _octets(buffer, writable)
            self.buf = int(np.frombuffer(self.view, dtype=np.uint8).ctypes.data)
        elif address is not None:
            if not 0 < address < (1 << 64) - length:
                raise refuse(f"address is {address:#x}; it takes one of this process")
            self.view = memoryview((ctypes.c_ubyte * length).from_address(address)).cast("B")
            self.buf = address
        else:
            self._memory = Memory(length, alignment=max(mmap.PAGESIZE, granule))
            self.view, self.buf = self._memory.view[:length], self._memory.address
        self.length = len(self.view)
        self._validity: Validity | None = None
        if validity:
            self._validity = Validity(self.length, granule)
            if self.buf % granule:
                raise refuse(
                    f"a region with a validity map begins on a granule of {granule} octets, and "
                    f"this memory is at {self.buf:#x}: use MR(pd, length), which allocates it so"
                )
        self._row = context._region_rows.take()
        try:
            if self._validity:
                bits = len(self._validity.granules)
                self._map_base = context._map.take(bits)
                self._map_memory = Memory(-(-bits // 64) * 8)
                self._map_memory.map(context.device)
            self._dma_address = context.device.map(self.buf, self.length, writable=writable)
        except BaseException:
            self._give_back()
            raise
        key = context._keys.get(self._row, 0) % 255 + 1  # never 0, so no STag is 0
        context._keys[self._row] = key
        self.lkey = self.rkey = self._row << 8 | key
        super().__init__(creator)
        context._regions[self.rkey] = self
        self._write_row(valid=True)

    def __repr__(self) -> str:
        kind = f", granule {self.granule}" if self._validity else ""
        state = ", closed" if self.closed else ""
        return f"<MR {self.rkey:#x}, {self.length} octets at {self.buf:#x}{kind}{state}>"

    @property
    def validity(self) -> Validity:
        """What has arrived, by the completions polled so far. Raises EINVAL if there is no map."""
        if self._validity is None:
            raise refuse("this region has no validity map: register it with validity=True")
        return self._validity

    @property
    def mapped(self) -> bool:
        """Whether the region has a validity map."""
        return self._validity is not None

    def write(self, data: bytes, length: int | None = None, offset: int = 0) -> None:
        """Copy ``length`` octets of ``data`` (all if not given) to ``offset``."""
        length = len(data) if length is None else length
        self._check_range(offset, length)
        self.view[offset : offset + length] = data[:length]

    def read(self, length: int | None = None, offset: int = 0) -> bytes:
        """Copy of ``length`` octets (to the end if not given) from ``offset``."""
        length = self.length - offset if length is None else length
        self._check_range(offset, length)
        return bytes(self.view[offset : offset + length])

    def _check_range(self, offset: int, length: int) -> None:
        self._check_open()
        if offset < 0 or length < 0 or offset + length > self.length:
            raise refuse(f"octets {offset} to {offset + length} of a region of {self.length}")

    def _map_octets(self, first: int, last: int) -> bytes:
        """Octets ``first`` to ``last`` (exclusive) of the map in host memory."""
        assert self._map_memory is not None
        return bytes(self._map_memory.view[first:last])

    def _write_row(self, *, valid: bool) -> None:
        fields: dict[str, int] = {}
        if self._map_memory is not None and self._map_base is not None:
            fields = {
                "mapped": 1,
                "map_addr": self._map_memory.dma_address,
                "map_base": self._map_base,
            }
        row = REGION_ENTRY.pack(
            valid=valid,
            access=self.access,
            key=self.rkey & 0xFF,
            pd=self.pd.number,
            granule_log2=self.granule.bit_length() - 1,
            base_to=self.buf,
            length=self.length,
            dma_addr=self._dma_address,
            **fields,
        )
        self.context._write_row(Table.REGION, self._row, row)

    def _release(self) -> None:
        # The row keeps its other fields: messages that are open close by them.
        self._write_row(valid=False)
        users = [qp for qp in self.context._qps.values() if qp.pd is self.pd]
        if any(self.access & IBV_ACCESS_REMOTE_READ or qp._sq.outstanding for qp in users):
            self.context._settle_sends()
        if users:
            self.context._settle_receives(CloseTarget.REGION, self._row)
        self.context._regions.pop(self.rkey)
        self.context.device.unmap(self._dma_address)
        self._give_back()
        self.view = memoryview(b"")

    def _give_back(self) -> None:
        if self._map_memory is not None:
            self._map_memory.release()
        if self._validity is not None and self._map_base is not None:
            self.context._map.give(self._map_base, len(self._validity.granules))
        self.context._region_rows.give(self._row)


def _check_access(access: int) -> None:
    known = sum(int(flag) for flag in ibv_access_flags)
    if access & ~known:
        raise refuse(f"access is {access:#x}; it takes bits of {known:#x}")
    if access & IBV_ACCESS_REMOTE_WRITE and not access & IBV_ACCESS_LOCAL_WRITE:
        raise refuse("REMOTE_WRITE needs LOCAL_WRITE")


def _octets(buffer: Any, writable: bool) -> memoryview[Any]:
    try:
        view = memoryview(buffer).cast("B")
    except TypeError as error:
        raise refuse(f"buffer cannot be registered: {error}") from None
    if not len(view):
        raise refuse("buffer is empty")
    if writable and view.readonly:
        raise refuse("buffer is read-only: register it without LOCAL_WRITE")
    return view
