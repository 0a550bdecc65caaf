"""Build parameters of a NIC: what a form of the device was made with. Software reads them back."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BURST_WORDS", "MIN_MTU", "Parameters"]

#: Words of 8 octets of the longest DMA burst; none crosses a multiple of as many (section 8).
BURST_WORDS = 16

#: Octets of the IP datagram that every path takes (RFC 791, section 3.1).
MIN_MTU = 576


def _power_of_two(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high or value & (value - 1):
        raise ValueError(f"{name} is {value}; it takes a power of two from {low} to {high}")


@dataclass(frozen=True)
class Parameters:
    """Sizes of the NIC's tables and memories.

    ``n_cq`` completion queues share their doorbell pages with the ``n_qp`` queue pairs, hence are
    as many. ``map_bits`` is the on-chip validity map, one bit a granule. ``n_closed`` is the number
    of names of closed messages that are remembered, ``n_group`` that of multicast groups,
    ``n_read`` that of Read Requests of peers that can wait.
    """

    n_qp: int = 64
    n_region: int = 256
    n_tracker: int = 16
    n_closed: int = 256
    n_group: int = 16
    n_read: int = 16
    map_bits: int = 256 * 1024
    max_mtu: int = 9000
    clock_hz: int = 156_250_000

    def __post_init__(self) -> None:
        _power_of_two("n_qp", self.n_qp, 4, 1024)
        _power_of_two("n_region", self.n_region, 4, 65536)
        _power_of_two("n_tracker", self.n_tracker, 2, 64)
        _power_of_two("n_closed", self.n_closed, 16, 65536)
        _power_of_two("n_group", self.n_group, 2, 256)
        _power_of_two("n_read", self.n_read, 2, 64)
        _power_of_two("map_bits", self.map_bits, 1024, 1 << 24)
        if not MIN_MTU <= self.max_mtu <= 9216:
            raise ValueError(f"max_mtu is {self.max_mtu}; it takes {MIN_MTU} to 9216")

    @property
    def n_cq(self) -> int:
        return self.n_qp

    @property
    def n_port(self) -> int:
        """Rows of the UDP port table: four banks of ``n_qp``."""
        return 4 * self.n_qp
