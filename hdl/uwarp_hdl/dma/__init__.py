"""AXI4 read and write engines, shared by all units that touch host memory."""

from .read import ReadArbiter
from .write import WriteArbiter

__all__ = ["ReadArbiter", "WriteArbiter"]
