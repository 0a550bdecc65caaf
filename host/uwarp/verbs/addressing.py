"""Who a datagram goes to: GID, GlobalRoute, AHAttr, AH.

A GID is an IPv6 address; an IPv4 peer is its mapped form, ``::ffff:10.0.0.2``.
"""

from __future__ import annotations

import errno
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uwarp.wire import (
    BROADCAST_IPV4,
    BROADCAST_MAC,
    ip_number,
    ip_text,
    ipv4_of,
    ipv4_text,
    mac_text,
)

from .errors import VerbsUserError, refuse
from .lifetime import Resource

if TYPE_CHECKING:
    from .context import PD
    from .work_completion import WC

__all__ = ["AH", "GID", "AHAttr", "GlobalRoute", "PeerFilter"]


@dataclass(frozen=True)
class PeerFilter:
    """Which addresses a QP listens to: those that begin with the first ``prefix`` bits of ``ip``.

    Parameters
    ----------
    ip : IPv4 or IPv6 address as text.
    prefix : in bits of the address as it is written, 32 or 128; None means all of them.

    Raises
    ------
    VerbsRDMAError
        EINVAL
    """

    ip: str = "::"
    prefix: int | None = 0

    def __post_init__(self) -> None:
        try:
            ip_number(self.ip)
        except ValueError:
            raise refuse(f"peer_ip is {self.ip!r}; it takes an IPv4 or IPv6 address") from None
        if self.prefix is None:
            object.__setattr__(self, "prefix", self._bits)
        elif not 0 <= self.prefix <= self._bits:
            raise refuse(f"peer_prefix is {self.prefix}; with {self.ip} it takes 0 to {self._bits}")

    @property
    def _bits(self) -> int:
        return 128 if ":" in self.ip else 32

    @property
    def number(self) -> int:
        """The address in 128 bits."""
        return ip_number(self.ip)

    @property
    def mask(self) -> int:
        """The bits of it that must agree. An IPv4 prefix, even of 0 bits, keeps IPv6 out."""
        assert self.prefix is not None
        return (1 << 128) - (1 << self._bits - self.prefix)


class GID:
    """An address in the form of 16 octets.

    Parameters
    ----------
    val : IPv4 or IPv6 address as text. None is ``::``.
    """

    def __init__(self, val: str | None = None) -> None:
        try:
            self._address = ipaddress.IPv6Address(ip_number(val or "::"))
        except ValueError:
            raise VerbsUserError(f"{val!r} is neither an IPv4 nor an IPv6 address") from None

    @property
    def gid(self) -> str:
        """The address as eight groups of four digits."""
        return self._address.exploded

    @property
    def ipv4(self) -> int | None:
        """The IPv4 address as a number, or None if it is another."""
        return ipv4_of(int(self._address))

    def __str__(self) -> str:
        return self.gid

    def __repr__(self) -> str:
        return f"GID({ip_text(int(self._address))!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GID) and self._address == other._address

    def __hash__(self) -> int:
        return hash(self._address)


class GlobalRoute:
    """Destination and IP header fields: ``hop_limit`` is the TTL, ``traffic_class`` the TOS."""

    def __init__(
        self,
        dgid: GID | None = None,
        flow_label: int = 0,
        sgid_index: int = 0,
        hop_limit: int = 1,
        traffic_class: int = 0,
    ) -> None:
        for name, value in (("hop_limit", hop_limit), ("traffic_class", traffic_class)):
            if not 0 <= value <= 255:
                raise VerbsUserError(f"{name} is {value}; it takes 0 to 255")
        self.dgid = dgid or GID()
        self.flow_label = flow_label
        self.sgid_index = sgid_index
        self.hop_limit = hop_limit
        self.traffic_class = traffic_class


class AHAttr:
    """Attributes of an address handle. Only ``gr`` and ``port_num`` mean something on Ethernet."""

    def __init__(
        self,
        dlid: int = 0,
        sl: int = 0,
        src_path_bits: int = 0,
        static_rate: int = 0,
        is_global: int = 0,
        port_num: int = 1,
        gr: GlobalRoute | None = None,
    ) -> None:
        self.dlid = dlid
        self.sl = sl
        self.src_path_bits = src_path_bits
        self.static_rate = static_rate
        self.is_global = is_global
        self.port_num = port_num
        self.gr = gr


class AH(Resource):
    """A destination: IPv4 address, next hop, TTL and traffic class.

    Parameters
    ----------
    pd : PD
    attr : AHAttr
        With ``gr``: the destination's GID.
    wc : WC
        Instead of ``attr``: answer the sender of what this completion received.

    Raises
    ------
    VerbsRDMAError
        EHOSTUNREACH if the address is not a neighbour of the context, EAFNOSUPPORT for IPv6,
        EINVAL.
    """

    def __init__(
        self,
        pd: PD,
        *,
        attr: AHAttr | None = None,
        wc: WC | None = None,
        grh: object = None,
        port_num: int = 1,
    ) -> None:
        pd._check_open()
        del grh  # kept for callers that know it; on Ethernet a completion names its sender itself
        if (attr is None) == (wc is None):
            raise VerbsUserError("an AH takes either attr or wc")
        if attr is None:
            assert wc is not None
            if wc.src_ip is None:
                raise refuse("this completion received nothing, so it names no sender")
            attr = AHAttr(port_num=port_num, gr=GlobalRoute(dgid=GID(wc.src_ip), hop_limit=64))
        if attr.port_num != 1:
            raise refuse(f"port {attr.port_num}; the device has port 1 only")
        route = attr.gr
        if route is None:
            raise refuse("an address on Ethernet is a GID: give attr.gr, a GlobalRoute")
        address = route.dgid.ipv4
        if address is None:
            raise refuse(
                f"{route.dgid!r} is no IPv4 address; the device receives IPv6, it does not send it",
                errno.EAFNOSUPPORT,
            )
        if not address:
            raise refuse("0.0.0.0 is nobody's address")
        context = pd.context
        mac = BROADCAST_MAC if address == BROADCAST_IPV4 else context._neighbours.get(address)
        if mac is None:
            text = ipv4_text(address)
            raise refuse(
                f"the MAC address of {text} is not known; "
                f'call context.add_neighbour("{text}", "02:...") first',
                errno.EHOSTUNREACH,
            )
        super().__init__(pd)
        self.pd = pd
        self.ip = address
        self.mac = mac
        self.hop_limit = route.hop_limit
        self.traffic_class = route.traffic_class

    def __repr__(self) -> str:
        return f"<AH {ipv4_text(self.ip)} at {mac_text(self.mac)}>"
