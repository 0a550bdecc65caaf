"""Let what resets thousands of flip-flops go over the device's global network.

nextpnr gives that network to clocks alone; it takes resets, too, and has sixteen lines. In wires a
net to flip-flops all over the device is as slow as the device is wide, and a placer that looks at
nothing but it makes the rest slow, too::

    FF -> 3,000 resets      becomes      FF -> DCCA -> 3,000 resets
"""

from __future__ import annotations

from .netlist import Netlist

__all__ = ["use_global_network"]

#: Resets of one net that are worth a line.
_MANY = 1000


def use_global_network(netlist: Netlist, *, many: int = _MANY) -> None:
    """Put a global buffer before the resets of each net of ``netlist`` that has over ``many``."""
    for net in list(netlist.driver):
        resets = [load for load in netlist.readers[net] if load[1] == "LSR"]
        if len(resets) > many:
            buffered = netlist.add_global_buffer(f"$global_resets${net}", net)
            for name, port in resets:
                netlist.connect(name, port, buffered)
