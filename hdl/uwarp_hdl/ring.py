"""Where an entry of a ring in host memory is."""

from amaranth.hdl import Cat, Mux, Value

__all__ = ["ring_entry"]


def ring_entry(address: Value, index: Value, in_ring: Value) -> Value:
    """The address of entry ``index`` modulo the ring's size, all in units of an entry; ``in_ring``
    is that size - 1.

    A ring lies at a multiple of its size (``uwarp.contract``), so no sum is needed.
    """
    inside = len(in_ring)
    places = (Mux(*bits) for bits in zip(in_ring, index[:inside], address[:inside], strict=True))
    return Cat(*places, address[inside:])
