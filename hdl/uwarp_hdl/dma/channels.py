"""The write half and the read half of the NIC's AXI4 port."""

from amaranth.lib import wiring

from ..interfaces import Axi4Signature

__all__ = ["INCR", "OUTSTANDING", "READ_CHANNELS", "SIZE_8_OCTETS", "WRITE_CHANNELS"]

#: Bursts that each direction can have on the bus.
OUTSTANDING = 64

#: AxBURST of incrementing bursts and AxSIZE of 8 octets (Arm IHI 0022, A3.4.1).
INCR = 1
SIZE_8_OCTETS = 3


def _channels(*prefixes: str) -> wiring.Signature:
    members = Axi4Signature().members
    return wiring.Signature(
        {name: member for name, member in members.items() if name.startswith(prefixes)}
    )


#: AW, W and B.
WRITE_CHANNELS = _channels("aw", "w", "b")

#: AR and R.
READ_CHANNELS = _channels("ar", "r")
