"""Where UDP ports, of QPs and of groups, stand in the device's port table: four banks, one possible
row in each.

A port that finds its four rows taken moves a tenant to another of the tenant's rows, and so on
(cuckoo hashing). A row is written before the one that it replaces is erased, and a port that stands
twice names the same QP or group both times, so no datagram meets a gap.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable

from uwarp.contract import PORT_ENTRY, port_rows

from .errors import refuse

__all__ = ["PortTable"]

BANKS = 4


class PortTable:
    """The driver's copy of the port table.

    Parameters
    ----------
    n_qp : rows of a bank.
    write : writes a row of the device's table, given its number and its octets.
    """

    def __init__(self, n_qp: int, write: Callable[[int, bytes], None]) -> None:
        self._n_qp = n_qp
        self._write = write
        self._rows: dict[int, tuple[int, int, bool]] = {}  # row: (port, qpn or group, group?)
        self._ports: dict[int, int] = {}  # port: row

    def __contains__(self, port: int) -> bool:
        return port in self._ports

    def __len__(self) -> int:
        return len(self._ports)

    def _candidates(self, port: int) -> list[int]:
        rows = port_rows(port, self._n_qp)
        return [bank * self._n_qp + row for bank, row in enumerate(rows)]

    def _path(self, port: int) -> list[int]:
        """Rows from one of ``port``'s to a free one, each but the last moving to the next.

        Breadth first: the shortest there is. Raises ENOSPC.
        """
        previous: dict[int, int] = dict.fromkeys(self._candidates(port), -1)
        queue = list(previous)
        for row in queue:
            if row not in self._rows:
                path = [row]
                while previous[path[0]] >= 0:
                    path.insert(0, previous[path[0]])
                return path
            for other in self._candidates(self._rows[row][0]):
                if other not in previous:
                    previous[other] = row
                    queue.append(other)
        raise refuse(f"no row of the port table can be freed for UDP port {port}", errno.ENOSPC)

    def insert(self, port: int, number: int, *, group: bool = False) -> None:
        """Give ``port`` to the QP, or to the group, of this row. Raises EADDRINUSE, ENOSPC."""
        if port in self._ports:
            owner = "group" if self._rows[self._ports[port]][2] else "QP"
            raise refuse(f"UDP port {port} has a {owner} already", errno.EADDRINUSE)
        path = self._path(port)
        for source, target in reversed(list(itertools.pairwise(path))):
            self._set(target, *self._rows[source])
        self._set(path[0], port, number, group)

    def remove(self, port: int) -> None:
        row = self._ports.pop(port)
        del self._rows[row]
        self._write(row, bytes(PORT_ENTRY.size))

    def _set(self, row: int, port: int, number: int, group: bool) -> None:
        self._rows[row] = (port, number, group)
        self._ports[port] = row
        self._write(row, PORT_ENTRY.pack(valid=1, group=group, port=port, qpn=number))
