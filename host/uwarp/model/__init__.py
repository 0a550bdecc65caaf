"""The reference NIC: what the rule of ``docs/device.md`` means, in Python."""

from .memory import Memory, MemoryFault
from .rnic import Rnic, Way

__all__ = ["Memory", "MemoryFault", "Rnic", "Way"]
