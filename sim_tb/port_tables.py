# amaranth: UnusedElaboratable=no
"""The frame receiver with filled tables of ports and groups."""

from ipaddress import IPv6Address

from amaranth.hdl import Module
from amaranth.lib import memory, wiring

from uwarp.contract import Parameters, port_rows
from uwarp_hdl.layouts import port_row_layout
from uwarp_hdl.net.receive import FrameReceiver

__all__ = ["GROUPS", "GROUP_IP", "GROUP_IP6", "GROUP_PORTS", "PORTS", "TabledReceiver"]

_PARAMETERS = Parameters(n_qp=16, max_mtu=1500)
PORTS = {4791: 3, 1: 7, 65535: 15, 20001: 0}
#: Ports of groups: the group table's row, beyond which the last one is.
GROUP_PORTS = {5000: 1, 5001: 2, 5002: 3, 5003: 0, 5004: 17}
GROUP_IP, GROUP_IP6 = "239.1.2.3", "ff0e::1:2:3:4:5"
#: Of each row of the group table the address; it is in use if it is here.
GROUPS = {1: f"::ffff:{GROUP_IP}", 2: GROUP_IP6, 3: "::ffff:255.255.255.255"}


def _banks(layout) -> list[list[int]]:
    """The rows of the four banks of the port table."""
    n_qp, n_group = _PARAMETERS.n_qp, _PARAMETERS.n_group
    banks = [[0] * n_qp for _ in range(4)]

    def put(bank: int, port: int, qpn: int, group: bool) -> None:
        exists = qpn < (n_group if group else n_qp)
        number = qpn if exists else n_qp - 1
        fields = {"group": group, "exists": exists, "number": number, "tag": port // n_qp}
        row = port_rows(port, n_qp)[bank]
        assert not banks[bank][row]
        banks[bank][row] = layout.const(fields).as_bits()

    for i, (port, qpn) in enumerate((PORTS | GROUP_PORTS).items()):
        put(i % 4, port, qpn, port in GROUP_PORTS)
    # A port in two banks is the lower bank's.
    put(3, 4791, 9, True)
    put(1, 5000, 9, False)
    return banks


class TabledReceiver(wiring.Component):
    """A FrameReceiver with its tables: its ports but for those of the tables.

    Parameters
    ----------
    sizes : its further parameters.
    """

    def __init__(self, **sizes: int) -> None:
        self._receiver = receiver = FrameReceiver(_PARAMETERS, **sizes)
        members = dict(receiver.signature.members.items())
        del members["ports"], members["groups"]
        super().__init__(members)
        for name in members:
            setattr(self, name, getattr(receiver, name))

    def elaborate(self, platform):
        m = Module()
        m.submodules.receiver = receiver = self._receiver
        layout = port_row_layout(_PARAMETERS)
        for i, bank in enumerate(_banks(layout)):
            rows = memory.Memory(shape=layout.size, depth=_PARAMETERS.n_qp, init=bank)
            m.submodules[f"bank{i}"] = rows
            read = rows.read_port()
            m.d.comb += [
                read.addr.eq(receiver.ports.indices[i]),
                receiver.ports.rows[i].as_value().eq(read.data),
            ]
        groups = receiver.groups
        with m.Switch(groups.index):
            for row, address in GROUPS.items():
                with m.Case(row):
                    m.d.comb += [groups.in_use.eq(1), groups.address.eq(int(IPv6Address(address)))]
            with m.Default():
                m.d.comb += groups.address.eq(int(IPv6Address(GROUPS[1])))
        return m
