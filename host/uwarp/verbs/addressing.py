"""Who a datagram goes to: GID, GlobalRoute, AHAttr, AH.

A GID is an IPv6 address; an IPv4 peer is its mapped form, ``::ffff:10.0.0.2``.
Groups' addresses are GIDs, too.
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
    def is_multicast(self) -> bool:
        """Whether it is a group's: 224.0.0.0/4 (RFC 5771), ff00::/8 (RFC 4291), and broadcast."""
        ipv4 = self.ipv4
        if ipv4 is None:
            return self.number >> 120 == 0xFF
        return ipv4 >> 28 == 0xE or ipv4 == BROADCAST_IPV4

    @property
    def group_mac(self) -> int:
        """The MAC address of a group: RFC 1112, section 6.4; RFC 2464, section 7."""
        ipv4 = self.ipv4
        if ipv4 is None:
            return 0x3333 << 32 | self.number & 0xFFFF_FFFF
        return BROADCAST_MAC if ipv4 == BROADCAST_IPV4 else 0x01005E << 24 | ipv4 & 0x7F_FFFF

    @property
    def gid(self) -> str:
        """The address as eight groups of four digits."""
        return self._address.exploded

    @property
    def number(self) -> int:
        """The address in 128 bits."""
        return int(self._address)

    @property
    def ipv4(self) -> int | None:
        """The IPv4 address as a number, or None if it is another."""
        return ipv4_of(self.number)

    def __str__(self) -> str:
        return self.gid

    def __repr__(self) -> str:
        return f"GID({ip_text(self.number)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GID) and self._address == other._address

    def __hash__(self) -> int:
        return hash(self._address)


class GlobalRoute:
    """Destination and IP header fields.

    In IPv4 ``hop_limit`` is the TTL, ``traffic_class`` the TOS. ``flow_label`` is 0. ``sgid_index``
    chooses nothing: the source is the port's address of the destination's family.
    """

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
    """Attributes of an address handle. Of the first five ``sl`` alone means something on Ethernet.

    Parameters
    ----------
    sl : service level, 0 to 7: the tag's priority code point, if there is a tag.
    port_num : 1
    gr : GlobalRoute
    vlan_id : 0 to 4094: what is sent has a VLAN tag (IEEE 802.1Q; 0 has a priority only). None, the
        default: no tag.
    """

    def __init__(
        self,
        dlid: int = 0,
        sl: int = 0,
        src_path_bits: int = 0,
        static_rate: int = 0,
        is_global: int = 0,
        port_num: int = 1,
        gr: GlobalRoute | None = None,
        *,
        vlan_id: int | None = None,
    ) -> None:
        self.dlid = dlid
        self.sl = sl
        self.src_path_bits = src_path_bits
        self.static_rate = static_rate
        self.is_global = is_global
        self.port_num = port_num
        self.gr = gr
        self.vlan_id = vlan_id


class AH(Resource):
    """A destination: address, next hop, hop limit, traffic class, VLAN tag.

    The port's own addresses, groups and broadcast need no neighbour.

    Parameters
    ----------
    pd : PD
    attr : AHAttr
        With ``gr``: the destination's GID.
    wc : WC
        Instead of ``attr``: answer the sender of what this completion received, without a tag.

    Attributes
    ----------
    ip : number, of 32 or 128 bits as ``ip_version`` (4 or 6) has it.
    mac : number, of the next hop.
    vlan : tag control information, or None.
    is_multicast : whether the destination is a group, or broadcast.

    Raises
    ------
    VerbsRDMAError
        EHOSTUNREACH if the address is not a neighbour of the context, EADDRNOTAVAIL for an IPv6
        destination if the port has no IPv6 address, EINVAL.
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
        gid, context = route.dgid, pd.context
        ipv4 = gid.ipv4
        if not (gid.number if ipv4 is None else ipv4):
            raise refuse(f"{ip_text(gid.number)} is nobody's address")
        if ipv4 is None and context.ipv6 is None:
            raise refuse(
                f"{ip_text(gid.number)} is an IPv6 address, and the port has none to send from; "
                "open the context with ipv6=...",
                errno.EADDRNOTAVAIL,
            )
        if ipv4 is None and route.flow_label:
            raise refuse(f"flow_label is {route.flow_label}; the device sends 0")
        self.is_multicast = gid.is_multicast
        self.mac = gid.group_mac if self.is_multicast else context._next_hop(gid)
        self.vlan = _tag(attr)
        super().__init__(pd)
        self.pd = pd
        self.ip_version, self.ip = (6, gid.number) if ipv4 is None else (4, ipv4)
        self._text = ip_text(gid.number)
        self.hop_limit = route.hop_limit
        self.traffic_class = route.traffic_class

    def __repr__(self) -> str:
        tag = "" if self.vlan is None else f", VLAN {self.vlan & 0xFFF}"
        return f"<AH {self._text} at {mac_text(self.mac)}{tag}>"


def _tag(attr: AHAttr) -> int | None:
    """Tag control information (IEEE 802.1Q, clause 9.6). Raises EINVAL."""
    if attr.vlan_id is None:
        return None
    if not 0 <= attr.vlan_id <= 4094:
        raise refuse(f"vlan_id is {attr.vlan_id}; it takes 0 to 4094")
    if not 0 <= attr.sl <= 7:
        raise refuse(f"sl is {attr.sl}; as the priority of a tag it takes 0 to 7")
    return attr.sl << 13 | attr.vlan_id
