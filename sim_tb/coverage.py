"""Which conditions of the written rule the frames of a run have met: ``python -m sim_tb.coverage``.

The conditions are those of ``docs/device.md``, sections 2 to 4 and what section 7 says of Reads,
responses, Terminates and frames that come in again, each branch of each numbered item by itself,
and the counters. A frame meets a condition when the NIC and the model have agreed on what became of
it; the octets of the frame and the state of the model before and after it say which.
The run puts on one NIC of the rtl form: a sample of the header matrix, the scenarios of faults,
addresses, peers, Reads, groups and Terminates, trials of messages, of mutated frames, and corners
that those may miss.
"""

import argparse
import json
import sys
from collections import Counter as Multiset
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from uwarp.contract import (
    DROPS,
    RECV_WQE,
    TERMINATE_CODES,
    Access,
    CloseTarget,
    Counter,
    QpState,
    Status,
    Terminated,
)
from uwarp.model import MemoryFault, Rnic
from uwarp.model.closed import Kind
from uwarp.model.reads import Response
from uwarp.model.rnic import Way
from uwarp.model.tables import QueuePair, RegionRow
from uwarp.model.terminates import kind_of
from uwarp.model.trackers import Tracker, Trackers
from uwarp.model.verdict import Datagram, examine
from uwarp.wire import (
    BROADCAST_IPV4,
    BROADCAST_MAC,
    READ_REQUEST,
    Opcode,
    ReadRequest,
    Segment,
    UdpFrame,
    ipv4_of,
    is_group_mac,
    mapped_ipv4,
    vlan_octets,
)

from . import corners, faults, grouping, headers, hosting, reading, receiving, terminating
from .fuzz import fuzz
from .instant import InstantModel
from .messages import messages
from .trials import TIMED, Scenario, play, play_scenario

__all__ = ["CONDITIONS", "Coverage", "collect", "main"]

_ACCEPTED = (0x0, 0x1, 0x3, 0x5, 0x7, 0xC, 0xD, 0xE)
_OF_GROUPS = (0x3, 0x5, 0xE)
_MANY = 2  # copies of a datagram that are more than one
_TAGS = {0: "no tag", 4: "one tag", 8: "two tags"}
_FAMILIES = ("IPv4", "IPv6")
_NO_TERMINATE = ("row without", "RTR", "of a Terminate", "of a copy", "too soon", "no room")


def _list_conditions() -> Iterator[str]:
    yield "2.1 no room"
    yield "2.2 flagged by the MAC"
    for tags in _TAGS.values():
        yield f"2.3 runt, {tags}"
    yield "2.4 oversize, no tag"
    yield "2.4 oversize, tags"
    yield "2.4 the longest that fits, placed"
    for kind in ("unicast", "group"):
        yield f"2.5 other {kind} MAC, dropped"
        yield f"2.5 other {kind} MAC, wanted"
    yield "2.5 group, no row of the group table"
    yield "2.5 group, other address"
    yield "2.5 group, no member"
    yield "2.5 group, wrong in 7 to 13"
    for family in (*_FAMILIES, "broadcast"):
        yield f"2.5 group datagram, {family}, placed"
    yield "2.6 other EtherType"
    yield "2.6 a third tag"
    for text in ("short", "version", "IHL", "total length < IHL", "total length > frame"):
        yield f"2.7 IPv4, {text}"
    for text in ("short", "version", "payload length > frame"):
        yield f"2.7 IPv6, {text}"
    yield "2.8 checksum, no options"
    yield "2.8 checksum, options"
    yield "2.9 IPv4, MF"
    yield "2.9 IPv4, offset"
    yield "2.9 IPv6"
    for family in _FAMILIES:
        yield f"2.10 {family}"
        yield f"2.11 {family}"
        for text in ("no UDP header", "UDP length < 8", "UDP length > payload"):
            yield f"2.13 {family}, {text}"
        yield f"2.14 {family}, checksum"
        yield f"2.14 {family}, no checksum, placed"
        yield f"2.15 {family}, no row"
        yield f"2.16 {family}, empty"
        yield f"2.16 {family}, 1 to 17"
        yield f"2.17 {family}"
    yield "2.14 group datagram, checksum"
    yield "2.15 broadcast MAC"
    yield "2.15 broadcast address"
    yield "2.15 row of a group"
    yield "2.17 group datagram"
    for version in (0, 2, 3):
        yield f"2.18 DDP version {version}"
        yield f"2.19 RDMAP version {version}"
    for opcode in range(16):
        yield f"2.20 opcode {opcode:#x}, " + ("wrong T" if opcode in _ACCEPTED else "unknown")
        if opcode in _ACCEPTED and opcode not in _OF_GROUPS:
            yield f"2.20 opcode {opcode:#x}, of a group datagram"
    for opcode in _ACCEPTED[1:]:
        yield f"2.21 opcode {opcode:#x}"
    for opcode in _ACCEPTED:
        for family in _FAMILIES:
            yield f"2 opcode {opcode:#x}, {family}, placed"
        for tags in _TAGS.values():
            yield f"2 opcode {opcode:#x}, {tags}, placed"
    for text in ("IPv4 options", "padding behind IP", "padding behind UDP"):
        yield f"2 {text}, placed"

    yield "3 copies, one"
    yield "3 copies, several"
    yield "3 copies that end differently"
    yield "3.1 state"
    yield "3.1 failed"
    yield "3.1 Read Request, RTR"
    yield "3.1 QPN beyond the table"
    yield "3.1 own group"
    yield "3.1 own group, other member"
    yield "3.1 peer's address"
    yield "3.1 peer's port"
    yield "3.1 RTR, placed"
    yield "3.2 opcode"
    for text in (
        "3 QN",
        "4 length",
        "5 marks",
        "5 other MLEN",
        "6 late",
        "7 no receive",
        "8 CQ full",
        "9 not valid",
        "9 key",
        "9 PD",
        "9 access",
        "9 bounds",
        "9 WQE unreadable",
        "10 short",
        "10 short, SGE of no octets",
        "11 placed",
        "11 placed, no octets",
        "12 no map",
        "14 no tracker",
        "15 opens",
    ):
        yield f"3 Send {text}"
    for text in (
        "3 QN",
        "4 MO",
        "4 longer",
        "4 size 0",
        "5 beyond the table",
        "5 not valid",
        "5 key",
        "5 PD",
        "5 access",
        "5 wrap",
        "5 before",
        "5 behind",
        "6 busy",
        "7 IPv4",
        "7 IPv6",
    ):
        yield f"3 Read Request {text}"
    for text in (
        "3 length",
        "4 late",
        "5 other STag",
        "5 other base",
        "5 other MLEN",
        "6 marks",
        "6 no octets",
    ):
        yield f"3 Read Response {text}"
    yield "3 Terminate 3 QN"
    yield "3 Terminate 4 told"
    for text in (
        "no octets",
        "3 beyond the table",
        "3 not valid",
        "4 key",
        "5 PD",
        "6 access",
        "7 wrap",
        "8 before",
        "8 behind",
        "9 placed",
    ):
        yield f"3 Write {text}"
    for text in (
        "3 length",
        "4 beyond the table",
        "4 not valid",
        "4 key",
        "4 PD",
        "4 access",
        "4 TO < MO",
        "4 wrap",
        "4 before",
        "4 behind",
        "5 other STag",
        "5 other base",
        "5 other MLEN",
        "6 late",
        "7 closes one",
        "7 closes several",
        "7 closes, then 8 drops",
        "8 CQ full",
        "9 MLEN 0",
        "9 single, mapped",
        "9 single, not mapped",
        "9 opens",
        "9 marks",
        "9 no octets of several",
        "9 not mapped, head",
        "9 not mapped, tail",
        "9 not mapped, neither",
        "9 no tracker, head",
        "9 no tracker, tail",
        "9 no tracker, neither",
    ):
        yield f"3 Write-Record {text}"
    yield "4.2 covers nothing"
    yield "4.2 covers the first"
    yield "4.2 covers the last"
    yield "4.2 covers others"
    yield "4.3 SUCCESS"
    yield "4.3 PARTIAL, timeout"
    yield "4.3 PARTIAL, overlapped"
    yield "4.4 one granule"
    yield "4.4 one map octet"
    yield "4.4 two map octets"
    yield "4.4 map octets in memory"
    for text in ("SUCCESS", "PARTIAL, timeout", "PARTIAL, overlapped"):
        yield f"4.3 Read, {text}"
    yield "4.6 Read, PARTIAL, closed"
    yield "7.7 opens"
    yield "7.7 opens, closes others"
    yield "7.7 waits for a tracker"
    yield "7.7 NO_TRACKER"
    for family in _FAMILIES:
        yield f"7.8 response, {family}, one segment"
        yield f"7.8 response, {family}, several segments"
    yield "7.8 response, unreadable"
    yield "7.10 to the own address"
    yield "7.10 to a group"
    yield "7.10 to a group, comes in"
    for family in _FAMILIES:
        for kind in Terminated:
            yield f"7.11 {kind.name}, {family}, made"
    for text in _NO_TERMINATE:
        yield f"7.11 not made, {text}"
    for counter in DROPS:
        yield counter.name


CONDITIONS: tuple[str, ...] = tuple(_list_conditions())


class _Headers:
    """What the headers of a frame say, as far as it has them."""

    def __init__(self, frame: bytes) -> None:
        self.length = len(frame)
        self.tags = vlan_octets(frame)
        self.ip = ip = 14 + self.tags
        self.mac = int.from_bytes(frame[:6], "big")
        self.ethertype = int.from_bytes(frame[12 + self.tags : ip], "big")
        self.family = {0x0800: "IPv4", 0x86DD: "IPv6"}.get(self.ethertype, "")
        if self.family == "IPv4" and self.length >= ip + 20:
            self.header = 4 * (frame[ip] & 15)
            self.total = int.from_bytes(frame[ip + 2 : ip + 4], "big")
            self.fragment = int.from_bytes(frame[ip + 6 : ip + 8], "big")
            self.address = int.from_bytes(frame[ip + 16 : ip + 20], "big")
            self.destination = mapped_ipv4(self.address)
        elif self.family == "IPv6" and self.length >= ip + 40:
            self.header = 40
            self.total = 40 + int.from_bytes(frame[ip + 4 : ip + 6], "big")
            self.address = -1
            self.destination = int.from_bytes(frame[ip + 24 : ip + 40], "big")
        else:
            return
        self.version = frame[ip] >> 4
        self.ip_payload = self.total - self.header
        udp = ip + self.header
        if self.length >= udp + 8:
            self.dest_port = int.from_bytes(frame[udp + 2 : udp + 4], "big")
            self.udp_length = int.from_bytes(frame[udp + 4 : udp + 6], "big")
            self.checksum = int.from_bytes(frame[udp + 6 : udp + 8], "big")
        if self.length >= udp + 10:
            self.ddp, self.rdmap = frame[udp + 8], frame[udp + 9]


def _of_headers(h: _Headers, end: Counter) -> Iterator[str]:
    """Conditions of section 2 that a frame has met which ended in a counter."""
    match end:
        case Counter.DROP_MAC_ERROR:
            yield "2.2 flagged by the MAC"
        case Counter.DROP_RUNT:
            yield f"2.3 runt, {_TAGS[h.tags]}"
        case Counter.DROP_OVERSIZE:
            yield "2.4 oversize, " + ("tags" if h.tags else "no tag")
        case Counter.DROP_MAC_FILTER:
            yield f"2.5 other {'group' if is_group_mac(h.mac) else 'unicast'} MAC, dropped"
        case Counter.DROP_IP_HEADER:
            yield f"2.7 {h.family}, {_wrong_ip(h)}"
        case Counter.DROP_IP_CHECKSUM:
            yield "2.8 checksum, " + ("options" if h.header > 20 else "no options")
        case Counter.DROP_IP_FRAGMENT if h.family == "IPv4":
            if h.fragment & 0x2000:
                yield "2.9 IPv4, MF"
            if h.fragment & 0x1FFF:
                yield "2.9 IPv4, offset"
        case Counter.DROP_IP_FRAGMENT:
            yield "2.9 IPv6"
        case Counter.DROP_IP_FILTER:
            yield f"2.10 {h.family}"
        case Counter.DROP_UDP_LENGTH:
            if h.ip_payload < 8:
                text = "no UDP header"
            else:
                text = "UDP length < 8" if h.udp_length < 8 else "UDP length > payload"
            yield f"2.13 {h.family}, {text}"
        case Counter.DROP_UDP_CHECKSUM:
            yield f"2.14 {h.family}, checksum"
        case Counter.DROP_DDP_SHORT if h.udp_length - 8 < 18:
            yield f"2.16 {h.family}, " + ("empty" if h.udp_length == 8 else "1 to 17")
        case Counter.DROP_DDP_SHORT:
            yield f"2.21 opcode {h.rdmap & 15:#x}"
        case Counter.DROP_CRC:
            yield f"2.17 {h.family}"
        case Counter.DROP_DDP_VERSION:
            yield f"2.18 DDP version {h.ddp & 3}"
        case Counter.DROP_RDMAP_VERSION:
            yield f"2.19 RDMAP version {h.rdmap >> 6}"
        case Counter.DROP_OPCODE:
            opcode = h.rdmap & 15
            text = "wrong T" if opcode in _ACCEPTED else "unknown"
            yield f"2.20 opcode {opcode:#x}, {text}"
        case Counter.RX_PLACED:
            yield from _passed(h)


def _wrong_ip(h: _Headers) -> str:
    six = h.family == "IPv6"
    if h.length < h.ip + (40 if six else 20):
        return "short"
    if h.version != (6 if six else 4):
        return "version"
    if six:
        return "payload length > frame"
    if h.header < 20:
        return "IHL"
    return "total length < IHL" if h.total < h.header else "total length > frame"


def _passed(h: _Headers) -> Iterator[str]:
    opcode = h.rdmap & 15
    yield f"2 opcode {opcode:#x}, {h.family}, placed"
    yield f"2 opcode {opcode:#x}, {_TAGS[h.tags]}, placed"
    if h.checksum == 0:
        yield f"2.14 {h.family}, no checksum, placed"
    if h.family == "IPv4" and h.header > 20:
        yield "2 IPv4 options, placed"
    if h.length > h.ip + h.total:
        yield "2 padding behind IP, placed"
    if h.udp_length < h.ip_payload:
        yield "2 padding behind UDP, placed"


def _managed(h: _Headers, mac: int) -> Iterator[str]:
    """Why a frame went to the management port."""
    if h.mac not in (mac, BROADCAST_MAC):
        yield f"2.5 other {'group' if is_group_mac(h.mac) else 'unicast'} MAC, wanted"
    elif not h.family:
        yield "2.6 a third tag" if h.ethertype in (0x8100, 0x88A8) else "2.6 other EtherType"


class _Seen:
    """A frame, and what the model was before it came (section 2).

    ``copies`` are the ends of the datagrams that it turns out to be, filled in by who watches.
    """

    def __init__(self, frame: bytes, error: bool, nic: Rnic) -> None:
        self.nic = nic
        self.headers = _Headers(frame)
        self.before = list(nic.counters)
        self.longest = len(frame) == nic._port.mtu + 14 + self.headers.tags
        self.copies: list[Counter] = []
        # Whose counter a frame to a group's MAC address would be in, were it not for that address.
        verdict = examine(frame, error, nic._port, nic._tables)
        own = nic._port.mac.to_bytes(6, "big")
        self.inner = examine(own + frame[6:], error, nic._port, nic._tables)
        self.members = verdict.members if isinstance(verdict, Datagram) else ()
        self.of_group = bool(self.members) or self._finds_members()

    def _finds_members(self) -> bool:
        h = self.headers
        if not is_group_mac(h.mac) or not hasattr(h, "dest_port"):
            return False
        return bool(self.nic._tables.members_of(h.destination, h.dest_port))

    @property
    def ends(self) -> list[Counter]:
        """In which counters the frame has ended: those of each copy."""
        if self.copies:
            return self.copies
        ends = (Counter.RX_PLACED, Counter.RX_MANAGEMENT, *DROPS)
        (found,) = (
            counter for counter in ends if self.nic.counters[counter] != self.before[counter]
        )
        return [found]

    def conditions(self) -> Iterator[str]:
        ends = self.ends
        for end in set(ends):
            if end in DROPS:
                yield end.name
            yield from self._of_end(end)
        if self.members:
            yield "3 copies, " + ("one" if len(ends) < _MANY else "several")
            if len(set(ends)) > 1:
                yield "3 copies that end differently"

    def _of_end(self, end: Counter) -> Iterator[str]:
        headers = self.headers
        yield from _of_headers(headers, end)
        match end:
            case Counter.RX_MANAGEMENT:
                yield from self._management()
            case Counter.RX_PLACED if self.longest:
                yield "2.4 the longest that fits, placed"
        strange = is_group_mac(headers.mac) and headers.mac != BROADCAST_MAC
        if strange and end in (Counter.DROP_MAC_FILTER, Counter.RX_MANAGEMENT):
            yield from self._no_group()
        if self.of_group:
            yield from self._of_group(end)

    def _no_group(self) -> Iterator[str]:
        """Why a frame to the MAC address of some group is no group datagram."""
        headers, tables = self.headers, self.nic._tables
        wrong = (
            Counter.DROP_IP_HEADER,
            Counter.DROP_IP_CHECKSUM,
            Counter.DROP_IP_FRAGMENT,
            Counter.DROP_UDP_LENGTH,
        )
        if self.inner in wrong:
            yield "2.5 group, wrong in 7 to 13"
        if not hasattr(headers, "dest_port"):
            return
        row = tables._port_row(headers.dest_port)
        if row is None or not row.group:
            return
        if row.qpn >= len(tables.groups):
            yield "2.5 group, no row of the group table"
        elif tables.groups[row.qpn].address != headers.destination:
            yield "2.5 group, other address"
        elif not tables.groups[row.qpn].members:
            yield "2.5 group, no member"

    def _of_group(self, end: Counter) -> Iterator[str]:
        headers = self.headers
        match end:
            case Counter.RX_PLACED:
                kind = "broadcast" if headers.address == BROADCAST_IPV4 else headers.family
                yield f"2.5 group datagram, {kind}, placed"
            case Counter.DROP_UDP_CHECKSUM:
                yield "2.14 group datagram, checksum"
            case Counter.DROP_CRC:
                yield "2.17 group datagram"
            case Counter.DROP_OPCODE:
                opcode, tagged = headers.rdmap & 15, bool(headers.ddp & 0x80)
                of_tag = opcode in (0x0, 0xC, 0xD)
                if opcode in _ACCEPTED and opcode not in _OF_GROUPS and tagged == of_tag:
                    yield f"2.20 opcode {opcode:#x}, of a group datagram"

    def _management(self) -> Iterator[str]:
        headers, port = self.headers, self.nic._port
        found = list(_managed(headers, port.mac))
        if found:
            yield from found
        elif headers.mac == BROADCAST_MAC and hasattr(headers, "udp_length"):
            yield "2.15 broadcast MAC"
        elif headers.address == BROADCAST_IPV4:
            yield "2.15 broadcast address"
        elif self._protocol_is_udp:
            row = self.nic._tables._port_row(headers.dest_port)
            of_group = row is not None and row.group
            yield "2.15 row of a group" if of_group else f"2.15 {headers.family}, no row"
        else:
            yield f"2.11 {headers.family}"

    @property
    def _protocol_is_udp(self) -> bool:
        frame = self.nic.management[-1]
        place = self.headers.ip + (9 if self.headers.family == "IPv4" else 6)
        return frame[place] == 17


class _Accepted:
    """A datagram to one QP, and what the model was before it came (section 3)."""

    def __init__(self, datagram: Datagram, nic: Rnic) -> None:
        self.nic = nic
        self.datagram = datagram
        self.open = nic._trackers.all_open()
        self.tracker = nic._trackers.find(datagram.name)
        known = datagram.qpn < len(nic._tables.qps)
        self.failed = known and nic._tables.qps[datagram.qpn].failed

    def conditions(self, end: Counter) -> Iterator[str]:
        datagram = self.datagram
        if datagram.qpn >= len(self.nic._tables.qps):
            yield "3.1 QPN beyond the table"
            return
        row = self.nic._tables.qps[datagram.qpn].row
        if datagram.own_group and end is Counter.RX_PLACED:
            yield "3.1 own group, other member"
        match end:
            case Counter.DROP_QP_STATE:
                if self.failed and row.receives:
                    yield "3.1 failed"
                elif row.state == QpState.RTR:
                    yield "3.1 Read Request, RTR"
                else:
                    yield "3.1 state"
            case Counter.DROP_OWN_GROUP:
                yield "3.1 own group"
            case Counter.DROP_PEER:
                other_port = row.peer_port not in (0, datagram.source_port)
                yield "3.1 peer's port" if other_port else "3.1 peer's address"
            case Counter.DROP_QP_OPCODE:
                yield "3.2 opcode"
            case _:
                if end is Counter.RX_PLACED and row.state == QpState.RTR:
                    yield "3.1 RTR, placed"
                match datagram.segment.opcode:
                    case Opcode.WRITE:
                        yield f"3 Write {self._write(datagram, end)}"
                    case Opcode.WRITE_RECORD:
                        for text in self._record(datagram, end):
                            yield f"3 Write-Record {text}"
                    case Opcode.READ_REQUEST:
                        yield f"3 Read Request {self._read_request(datagram, end)}"
                    case Opcode.READ_RESPONSE_RECORD:
                        yield f"3 Read Response {self._read_response(datagram, end)}"
                    case Opcode.TERMINATE:
                        told = end is Counter.RX_PLACED
                        yield "3 Terminate " + ("4 told" if told else "3 QN")
                    case _:
                        yield f"3 Send {self._send(datagram, end)}"

    def _region(self, stag: int) -> RegionRow | None:
        return self.nic._tables.region_of(stag)

    def _bad_stag(self, stag: int, end: Counter, first: int) -> str | None:
        """Which of four checks of an STag failed; the first has the number ``first``. Only those of
        a Write have a number each."""
        if end is Counter.DROP_STAG_INVALID:
            beyond = stag >> 8 >= len(self.nic._tables.regions)
            return f"{first} beyond the table" if beyond else f"{first} not valid"
        checks = (Counter.DROP_STAG_KEY, Counter.DROP_STAG_PD, Counter.DROP_STAG_ACCESS)
        for number, (counter, text) in enumerate(zip(checks, ("key", "PD", "access"), strict=True)):
            if end is counter:
                return f"{first + number + 1 if first == 3 else first} {text}"
        return None

    def _read_request(self, datagram: Datagram, end: Counter) -> str:
        segment = datagram.segment
        request = ReadRequest.decode(segment.payload[: READ_REQUEST.size])
        if end is Counter.RX_PLACED:
            return "7 IPv6" if ipv4_of(datagram.source_ip) is None else "7 IPv4"
        if end is Counter.DROP_MESSAGE_LENGTH:
            if segment.mo:
                return "4 MO"
            return "4 longer" if len(segment.payload) > READ_REQUEST.size else "4 size 0"
        if end is Counter.DROP_BOUNDS:
            region = self._region(request.source_stag)
            assert region is not None
            return "5 before" if request.source_to < region.base_to else "5 behind"
        found = self._bad_stag(request.source_stag, end, 5)
        return (
            found
            or {
                Counter.DROP_UNTAGGED_QN: "3 QN",
                Counter.DROP_TO_WRAP: "5 wrap",
                Counter.DROP_READ_BUSY: "6 busy",
            }[end]
        )

    def _read_response(self, datagram: Datagram, end: Counter) -> str:
        if end is Counter.RX_PLACED:
            return "6 marks" if datagram.segment.payload else "6 no octets"
        if end is Counter.DROP_RECORD_MISMATCH:
            return f"5 {self._contradiction(datagram)}"
        return {Counter.DROP_MESSAGE_LENGTH: "3 length", Counter.DROP_LATE: "4 late"}[end]

    def _contradiction(self, datagram: Datagram) -> str:
        """In what a tagged segment differs from its open message."""
        segment, tracker = datagram.segment, self.tracker
        assert tracker is not None
        if segment.stag != tracker.stag:
            return "other STag"
        return "other base" if segment.to - segment.mo != tracker.base else "other MLEN"

    def _write(self, datagram: Datagram, end: Counter) -> str:
        segment = datagram.segment
        if end is Counter.RX_PLACED:
            return "9 placed" if segment.payload else "no octets"
        if end is Counter.DROP_TO_WRAP:
            return "7 wrap"
        if end is Counter.DROP_BOUNDS:
            region = self._region(segment.stag)
            assert region is not None
            return "8 before" if segment.to < region.base_to else "8 behind"
        found = self._bad_stag(segment.stag, end, 3)
        assert found is not None, end
        return found

    def _send(self, datagram: Datagram, end: Counter) -> str:
        if end is Counter.RX_PLACED:
            if self.tracker is not None:
                return "5 marks"
            if len(datagram.segment.payload) != datagram.segment.mlen:
                return "15 opens"
            return "11 placed" if datagram.segment.payload else "11 placed, no octets"
        if end is Counter.DROP_RECEIVE_PROTECTION:
            return f"9 {self._protection(datagram)}"
        if end is Counter.DROP_RECEIVE_SHORT:
            return "10 short" if self._sge(datagram, 0)[1] else "10 short, SGE of no octets"
        return {
            Counter.DROP_UNTAGGED_QN: "3 QN",
            Counter.DROP_MESSAGE_LENGTH: "4 length",
            Counter.DROP_RECORD_MISMATCH: "5 other MLEN",
            Counter.DROP_LATE: "6 late",
            Counter.DROP_NO_RECEIVE: "7 no receive",
            Counter.DROP_CQ_FULL: "8 CQ full",
            Counter.DROP_SEND_SEGMENTED: "12 no map",
            Counter.DROP_NO_TRACKER: "14 no tracker",
        }[end]

    def _sge(self, datagram: Datagram, behind: int) -> tuple[int, int, int]:
        """Address, length and key of the receive that is, or was ``behind`` ago, the next one."""
        qp = self.nic._tables.qps[datagram.qpn]
        index = qp.rq_consumer - behind & (1 << qp.row.rq_log2) - 1
        octets = self.nic.memory.read(64 * qp.row.rq_addr + RECV_WQE.size * index, RECV_WQE.size)
        wqe = RECV_WQE.unpack(octets)
        return wqe.sge0_addr, wqe.sge0_length, wqe.sge0_lkey

    def _protection(self, datagram: Datagram) -> str:
        try:
            addr, length, lkey = self._sge(datagram, 1)
        except MemoryFault:
            return "WQE unreadable"
        region = self._region(lkey)
        if region is None:
            return "not valid"
        if region.key != lkey & 0xFF:
            return "key"
        if region.pd != self.nic._tables.qps[datagram.qpn].row.pd:
            return "PD"
        if not region.access & Access.LOCAL_WRITE:
            return "access"
        assert not region.holds(addr, length)
        return "bounds"

    def _record(self, datagram: Datagram, end: Counter) -> Iterator[str]:
        segment = datagram.segment
        base = segment.to - segment.mo
        open_now = self.nic._trackers.all_open()
        region = self._region(segment.stag) if segment.mlen else None
        closed = [item for item in self.open if item not in open_now and item is not self.tracker]
        if closed:
            yield "7 closes one" if len(closed) == 1 else "7 closes several"
            if end is Counter.DROP_CQ_FULL:
                yield "7 closes, then 8 drops"
        if end is Counter.RX_PLACED:
            yield from self._placed_record(datagram, region)
        elif end is Counter.DROP_RECORD_MISMATCH:
            yield f"5 {self._contradiction(datagram)}"
        elif end is Counter.DROP_TO_WRAP:
            yield "4 TO < MO" if base < 0 else "4 wrap"
        elif end is Counter.DROP_BOUNDS:
            assert region is not None
            yield "4 before" if base < region.base_to else "4 behind"
        elif (found := self._bad_stag(segment.stag, end, 4)) is not None:
            yield found
        else:
            yield {
                Counter.DROP_MESSAGE_LENGTH: "3 length",
                Counter.DROP_LATE: "6 late",
                Counter.DROP_CQ_FULL: "8 CQ full",
            }[end]

    def _placed_record(self, datagram: Datagram, region: RegionRow | None) -> Iterator[str]:
        segment = datagram.segment
        mapped = region is not None and region.mapped
        if not segment.mlen:
            yield "9 MLEN 0"
        elif not segment.payload:
            yield "9 no octets of several"
        if self.tracker is not None:
            yield "9 marks"
        elif len(segment.payload) == segment.mlen:
            yield "9 single, " + ("mapped" if mapped else "not mapped")
        elif mapped and len(self.open) < self.nic.parameters.n_tracker:
            yield "9 opens"
        else:
            why = "no tracker" if mapped else "not mapped"
            head = segment.mo == 0
            tail = segment.mo + len(segment.payload) == segment.mlen
            yield f"9 {why}, " + ("head" if head else "tail" if tail else "neither")


def _of_mark(tracker: Tracker, to: int, octets: int) -> str | None:
    low, high = tracker.covered(to, octets)
    if low >= high:
        return "4.2 covers nothing"
    if low <= tracker.first < high:
        return "4.2 covers the first"
    return "4.2 covers the last" if low <= tracker.last < high else "4.2 covers others"


def _of_close(tracker: Tracker, status: Status, cycles: int, asked: bool) -> Iterator[str]:
    """``asked``: MESSAGES_CLOSE closes it."""
    if status is Status.SUCCESS:
        how = "SUCCESS"
    elif asked:
        how = "PARTIAL, closed"
    else:
        how = "PARTIAL, " + ("timeout" if tracker.due <= cycles else "overlapped")
    if tracker.name.kind is Kind.READ:
        yield f"4.6 Read, {how}" if asked else f"4.3 Read, {how}"
    elif not asked:
        yield f"4.3 {how}"
    octets = tracker.last // 8 - tracker.first // 8 + 1
    if tracker.first == tracker.last:
        yield "4.4 one granule"
    kinds = ("one map octet", "two map octets", "map octets in memory")
    yield f"4.4 {kinds[min(octets, 3) - 1]}"


def _of_report(qp: QueuePair, datagram: Datagram, made: bool, room: bool) -> str:
    """Whether a peer is told of a datagram that was dropped, or why not; ``room``: there was some
    for one more answer."""
    row = qp.row
    if made:
        family = "IPv6" if ipv4_of(datagram.source_ip) is None else "IPv4"
        return f"{kind_of(datagram).name}, {family}, made"
    reasons = (
        not row.terminate,
        not row.sends,
        datagram.segment.opcode is Opcode.TERMINATE,
        datagram.is_copy,
        room,
        True,
    )
    return f"not made, {_NO_TERMINATE[reasons.index(True)]}"


def _of_way(frame: bytes, way: Way) -> Iterator[str]:
    if frame[0] & 1:
        yield "7.10 to a group" + (", comes in" if Way.LOOP in way else "")
    elif Way.LOOP in way:
        yield "7.10 to the own address"


class Coverage:
    """Counts how often each condition was met, by the run in which it was."""

    def __init__(self) -> None:
        self.runs: dict[str, Multiset[str]] = {}

    @property
    def missed(self) -> list[str]:
        """Conditions that were never met."""
        met = set().union(*self.runs.values())
        return [condition for condition in CONDITIONS if condition not in met]

    def add(self, run: str, conditions: Iterator[str] | list[str]) -> None:
        counts = self.runs.setdefault(run, Multiset())
        for condition in conditions:
            if condition not in _KNOWN:
                raise KeyError(f"no condition {condition!r}")
            counts[condition] += 1

    def watch(self, run: str, model: InstantModel) -> None:
        """Note all that a model goes through from now on."""
        nic, receive, transmit = model.nic, model.nic.receive, model.nic.transmit
        soft_reset = nic.soft_reset
        ends: list[Counter] = []

        def watched(frame: bytes, error: bool = False) -> None:
            if not nic._registers.enabled:
                return
            ends.clear()
            seen = _Seen(frame, error, nic)
            receive(frame, error)
            seen.copies = list(ends)
            self.add(run, seen.conditions())

        def watched_transmit() -> tuple[bytes, Way] | None:
            sent = transmit()
            if sent is not None:
                self.add(run, _of_way(*sent))
            return sent

        def watched_reset() -> None:
            soft_reset()
            self._watch_parts(run, nic, ends)

        nic.receive = watched  # type: ignore[method-assign]
        nic.transmit = watched_transmit  # type: ignore[method-assign]
        nic.soft_reset = watched_reset  # type: ignore[method-assign]
        self._watch_parts(run, nic, ends)

    def _watch_parts(self, run: str, nic: Rnic, ends: list[Counter]) -> None:
        """The parts that a soft reset makes anew; ``ends`` is given how each datagram ends."""
        accept = nic._receiver.accept

        def watched_accept(datagram: Datagram) -> Counter:
            seen = _Accepted(datagram, nic)
            end = accept(datagram)
            self.add(run, seen.conditions(end))
            ends.append(end)
            return end

        nic._receiver.accept = watched_accept  # type: ignore[method-assign]
        self._watch_reporter(run, nic)
        self._watch_trackers(run, nic._trackers, lambda: nic.time)
        self._watch_transmitter(run, nic)

    def _watch_reporter(self, run: str, nic: Rnic) -> None:
        reporter, answers = nic._receiver._reporter, nic._answers
        report = reporter.report

        def watched_report(qp: QueuePair, datagram: Datagram, counter: Counter) -> None:
            room, before = answers.has_room, len(answers._waiting)
            report(qp, datagram, counter)
            if counter in TERMINATE_CODES:
                made = len(answers._waiting) > before
                self.add(run, [f"7.11 {_of_report(qp, datagram, made, room)}"])

        reporter.report = watched_report  # type: ignore[method-assign]

    def _watch_transmitter(self, run: str, nic: Rnic) -> None:
        transmitter = nic._transmitter
        read, respond = transmitter._read, transmitter._respond

        def watched_read(qp: QueuePair, message: Any) -> bytes | None:
            free, before = nic._trackers.has_free, len(nic._trackers.all_open())
            frame = read(qp, message)
            if not free:
                self.add(run, ["7.7 waits for a tracker"])
            elif frame is None:
                self.add(run, ["7.7 NO_TRACKER"])
            else:
                closed = len(nic._trackers.all_open()) <= before
                self.add(run, ["7.7 opens, closes others" if closed else "7.7 opens"])
            return frame

        def watched_respond(qp: QueuePair, response: Response) -> bytes | None:
            frame = respond(qp, response)
            if frame is None:
                self.add(run, ["7.8 response, unreadable"])
            else:
                segment = Segment.from_datagram(UdpFrame.decode(frame).payload)
                count = (
                    "one segment" if len(segment.payload) == segment.mlen else "several segments"
                )
                self.add(run, [f"7.8 response, IPv{response.ip_version}, {count}"])
            return frame

        transmitter._read = watched_read  # type: ignore[method-assign]
        transmitter._respond = watched_respond  # type: ignore[method-assign]

    def _watch_trackers(self, run: str, trackers: Trackers, now: Callable[[], int]) -> None:
        mark, close, close_all = trackers.mark, trackers._close, trackers.close_all
        asked = False

        def watched_mark(tracker: Tracker, to: int, octets: int) -> None:
            self.add(run, [text for text in [_of_mark(tracker, to, octets)] if text])
            mark(tracker, to, octets)

        def watched_close(tracker: Tracker, status: Status) -> None:
            self.add(run, _of_close(tracker, status, now(), asked))
            close(tracker, status)

        def watched_close_all(target: CloseTarget, row: int) -> None:
            nonlocal asked
            asked = True
            close_all(target, row)
            asked = False

        trackers.close_all = watched_close_all  # type: ignore[method-assign]
        trackers.mark = watched_mark  # type: ignore[method-assign]
        trackers._close = watched_close  # type: ignore[method-assign]

    def report(self) -> str:
        """A table: conditions, and how often each run met them."""
        width = max(map(len, CONDITIONS))
        lines = [" " * width + "".join(f"{run:>12}" for run in self.runs)]
        for condition in CONDITIONS:
            counts = "".join(f"{run[condition] or '':>12}" for run in self.runs.values())
            lines.append(f"{condition:{width}}{counts}".rstrip())
        met = len(CONDITIONS) - len(self.missed)
        lines.append(f"{met} of {len(CONDITIONS)} conditions met")
        lines += [f"not met: {condition}" for condition in self.missed]
        return "\n".join(lines)


_KNOWN = frozenset(CONDITIONS)


def collect(seed: int = 1, *, matrix: int = 400, trials: int = 3, fuzzed: int = 4) -> Coverage:
    """Play all there is on the rtl form, with a sample of the matrix and so many trials.

    Raises
    ------
    AssertionError, DeviceError
        If the NIC does not do as the model.
    """
    coverage = Coverage()
    timed = -(-seed // TIMED) * TIMED  # some scenarios wait for timeouts

    def scenario(run: str, what: Scenario, **latencies: int) -> object:
        return play_scenario(what, timed, watch=partial(coverage.watch, run), **latencies)

    scenario("matrix", partial(headers.every_header, count=matrix))
    scenario("scenarios", headers.addresses)
    scenario("scenarios", headers.peers)
    scenario("scenarios", faults.every_reason)
    scenario("scenarios", partial(receiving.long_sends, rounds=2))
    scenario("scenarios", partial(reading.answered, count=8))
    scenario("scenarios", reading.read_requests_refused)
    scenario("scenarios", partial(reading.reads, rounds=8))
    scenario("scenarios", reading.reads_in_silence)
    scenario("scenarios", grouping.groups)
    scenario("scenarios", partial(grouping.looped, rounds=2))
    scenario("scenarios", grouping.looped_groups)
    scenario("scenarios", partial(terminating.terminated, count=6))
    scenario("scenarios", terminating.not_terminated)
    scenario("scenarios", terminating.waiting)
    scenario("corners", corners.corners)
    scenario("corners", corners.reads)
    scenario("corners", corners.groups)
    scenario("corners", corners.terminates)
    scenario("corners", hosting.broken_memory)
    counters = scenario("corners", corners.overload, write_latency=corners.SLOW)
    if counters[Counter.DROP_OVERFLOW]:
        coverage.add("corners", ["2.1 no room", Counter.DROP_OVERFLOW.name])
    for run, generate, count in (("messages", messages, trials), ("fuzz", fuzz, fuzzed)):
        for number in range(seed, seed + count):
            play(generate, number, watch=partial(coverage.watch, run))
    return coverage


def main(arguments: list[str] | None = None) -> int:
    """The command line. Exit status 1 if a condition was never met."""
    parser = argparse.ArgumentParser(prog="python -m sim_tb.coverage", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--matrix", type=int, default=400, help="frames of the header matrix")
    parser.add_argument("--trials", type=int, default=6, help="of messages, and as many of fuzz")
    parser.add_argument("--output", type=Path, default=Path("build/coverage.txt"))
    options = parser.parse_args(arguments)
    coverage = collect(
        options.seed, matrix=options.matrix, trials=options.trials, fuzzed=options.trials
    )
    report = coverage.report()
    print(report)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(report + "\n")
    options.output.with_suffix(".json").write_text(json.dumps(coverage.runs, indent=1) + "\n")
    return 1 if coverage.missed else 0


if __name__ == "__main__":
    sys.exit(main())
