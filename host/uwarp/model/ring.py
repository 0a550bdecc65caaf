"""Where an entry of a ring in host memory is (device behaviour, 1.6)."""

from __future__ import annotations

__all__ = ["entry_address"]


def entry_address(address: int, entry_size: int, log2: int, index: int) -> int:
    """The address of entry ``index``, a free-running index, of a ring of ``2 ** log2`` entries of
    ``entry_size`` octets (a power of two): the ring lies at a multiple of its size."""
    size = entry_size << log2
    return address // size * size + entry_size * index % size
