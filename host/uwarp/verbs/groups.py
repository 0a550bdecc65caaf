"""Multicast groups of a device: the group table, the groups' ports, and who is a member.

A group is an address and a UDP port; the device finds it by the port, so a port has one group. Its
table row is written before its port's, and erased after it: no datagram finds half a group.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

from uwarp.contract import GROUP_ENTRY, GROUP_MEMBERS
from uwarp.wire import ip_text

from .addressing import GID
from .allocator import Numbers
from .errors import refuse
from .ports import PortTable

__all__ = ["GroupTable"]


@dataclass
class _Group:
    row: int
    gid: GID
    port: int
    members: list[int] = field(default_factory=list)


class GroupTable:
    """The driver's copy of the group table.

    Parameters
    ----------
    rows : of the device's table.
    ports : the port table, which groups share with QPs.
    write : writes a row of the device's table, given its number and its octets.
    loop : told to bring own frames to groups in again while there is a group, and to stop it.
    """

    def __init__(
        self,
        rows: int,
        ports: PortTable,
        write: Callable[[int, bytes], None],
        loop: Callable[[bool], None],
    ) -> None:
        self._rows = Numbers("multicast groups", range(rows))
        self._ports = ports
        self._write = write
        self._loop = loop
        self._groups: dict[tuple[GID, int], _Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def attach(self, gid: GID, port: int, qpn: int) -> None:
        """Make the QP of row ``qpn`` a member; one that is stays it. Raises as QP.attach_mcast."""
        group = self._groups.get((gid, port))
        if group is not None:
            if qpn in group.members:
                return
            if len(group.members) == GROUP_MEMBERS:
                raise refuse(
                    f"group {ip_text(gid.number)}, port {port}, has {GROUP_MEMBERS} members, "
                    "which is all that it takes",
                    errno.ENOMEM,
                )
            group.members.append(qpn)
            self._write_group(group)
            return
        group = _Group(self._rows.take(), gid, port, [qpn])
        self._write_group(group)
        try:
            self._ports.insert(port, group.row, group=True)
        except BaseException:
            self._erase(group)
            raise
        self._groups[gid, port] = group
        if len(self._groups) == 1:
            self._loop(True)

    def detach(self, gid: GID, port: int, qpn: int) -> None:
        """End a membership. Raises EINVAL if it is none."""
        group = self._groups.get((gid, port))
        if group is None or qpn not in group.members:
            raise refuse(f"this QP is no member of group {ip_text(gid.number)}, port {port}")
        group.members.remove(qpn)
        if group.members:
            self._write_group(group)
            return
        del self._groups[gid, port]
        self._ports.remove(port)
        self._erase(group)
        if not self._groups:
            self._loop(False)

    def leave(self, qpn: int) -> None:
        """End all memberships of a QP."""
        for (gid, port), group in list(self._groups.items()):
            if qpn in group.members:
                self.detach(gid, port, qpn)

    def _write_group(self, group: _Group) -> None:
        members = {f"member{index}": qpn for index, qpn in enumerate(group.members)}
        row = GROUP_ENTRY.pack(count=len(members), address=group.gid.number, **members)
        self._write(group.row, row)

    def _erase(self, group: _Group) -> None:
        self._write(group.row, bytes(GROUP_ENTRY.size))
        self._rows.give(group.row)
