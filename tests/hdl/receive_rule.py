"""Sections 3 to 5 of the device behaviour, the opening of Reads (7.7) and what is reported (7.11),
in plain Python, for the benches of the receive side.

Written from the page, item by item, and from nothing else.
"""

from dataclasses import dataclass, field, replace

from uwarp.contract import (
    TERMINATE_CODES,
    TERMINATE_TICKS,
    Access,
    CloseTarget,
    Counter,
    CqeFlag,
    QpState,
    Status,
    Terminated,
)

__all__ = ["CODE_BITS", "Completed", "Region", "Rule"]

WRITE, READ, SEND, SEND_SE, RECORD, RESPONSE, SEND_IMM = 0x0, 0x1, 0x3, 0x5, 0xC, 0xD, 0xE
TERMINATE = 0x7
#: Bits in which codes differ.
CODE_BITS = 0
for _code in (code for codes in TERMINATE_CODES.values() for code in codes.values()):
    CODE_BITS |= _code ^ TERMINATE_CODES[Counter.DROP_QP_OPCODE][Terminated.UNTAGGED]
REPORTED = dict.fromkeys((WRITE, RECORD, RESPONSE), Terminated.TAGGED)
REPORTED[READ] = Terminated.READ_REQUEST
KINDS = {RECORD: "record", READ: "read", RESPONSE: "read"}


@dataclass
class Region:
    valid: int = 1
    mapped: int = 0
    access: int = int(Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    key: int = 0
    pd: int = 1
    granule_log2: int = 6
    base_to: int = 0
    length: int = 0
    dma_addr: int = 0
    map_addr: int = 0
    map_base: int = 0

    def row(self):
        return dict(vars(self))

    def holds(self, start, length):
        return self.base_to <= start and start + length <= self.base_to + self.length


@dataclass
class Completed:
    """A CQE, and how many octets of payload and of map must be in memory before it."""

    cq: int
    cqe: dict
    after: int
    after_map: int


@dataclass
class Message:
    """An open message. ``name`` ends with its kind; ``region`` is as it was at the opening."""

    name: tuple
    region: Region
    stag: int
    base: int
    mlen: int
    cq: int
    timeout: int
    opener: dict
    wqe_index: int = 0
    valid: set = field(default_factory=set)
    tick: int = 0

    def shares_octets(self, stag, base, mlen):
        same_region = self.stag >> 8 == stag >> 8
        return same_region and self.base < base + mlen and base < self.base + self.mlen

    def granule(self, octet):
        return octet - self.region.base_to >> self.region.granule_log2

    @property
    def first(self):
        return self.granule(self.base)

    @property
    def last(self):
        return self.granule(self.base + self.mlen - 1)

    def octets_of(self, number):
        """The message's octets in a granule."""
        size = 1 << self.region.granule_log2
        start = self.region.base_to + number * size
        return max(start, self.base), min(start + size, self.base + self.mlen)


class Rule:
    """``datagram`` takes one and appends to ``outcomes`` (Counter), ``completed`` and ``requests``
    (fields of ReadRequest that mean something, and of a report the bits of ``code`` in which codes
    differ), ``opening`` takes a Read and appends to ``answers`` (bool); ``memory``
    and ``map_memory`` are what ends up where. ``full`` are the CQs without a free slot, ``waiting``
    is the number of Read Requests and own Terminates that wait."""

    def __init__(self, parameters, qps, regions, receives=None, full=()):
        self.parameters = parameters
        self.qps = qps
        self.regions = regions
        self.receives = receives or {}
        self.consumed = {}
        self.full = full
        self.trackers = [None] * parameters.n_tracker
        self.closed = {}
        self.outcomes = []
        self.completed = []
        self.requests = []
        self.waiting = 0
        self.reported = None
        self.answers = []
        self.memory = {}
        self.map_memory = {}
        self.placed_octets = 0
        self.map_octets = 0

    def datagram(self, d, payload, tick=0):
        outcome = self._outcome(d, payload, tick)
        self.outcomes.append(outcome)
        qp = {"terminate": 0} | self.qps[d["qpn"]]
        if (
            qp["terminate"]
            and qp["state"] == QpState.RTS
            and outcome in TERMINATE_CODES
            and d["opcode"] != TERMINATE
            and not d["group"]
            and (self.reported is None or tick - self.reported >= TERMINATE_TICKS)
            and self.waiting < self.parameters.n_read
        ):
            self.reported = tick
            self.waiting += 1
            kind = REPORTED.get(d["opcode"], Terminated.UNTAGGED)
            names = ("qpn", "source_mac", "source_ip", "source_port", "msn")
            report = {name: d[name] for name in names} | {"report": 1, "terminate": 0}
            report["code"] = TERMINATE_CODES[outcome][kind] & CODE_BITS
            self.requests.append(report)

    def _outcome(self, d, payload, tick):
        qp = {"peer_ip": 0, "peer_mask": 0, "peer_port": 0, "udp_port": 0} | self.qps[d["qpn"]]
        states = (QpState.RTS,) if d["opcode"] == READ else (QpState.RTR, QpState.RTS)
        if qp["state"] not in states:
            return Counter.DROP_QP_STATE
        if d["group"] and d["own"] and d["source_port"] == qp["udp_port"]:
            return Counter.DROP_OWN_GROUP
        strange_bits = (d["source_ip"] ^ qp["peer_ip"]) & qp["peer_mask"]
        if strange_bits or qp["peer_port"] not in (0, d["source_port"]):
            return Counter.DROP_PEER
        if not qp["opcodes"] >> d["opcode"] & 1:
            return Counter.DROP_QP_OPCODE
        if d["opcode"] == WRITE:
            return self._write(d, payload, qp)
        if d["opcode"] == READ:
            return self._request(d, payload, qp)
        if d["opcode"] == RESPONSE:
            return self._response(d, payload, tick)
        if d["opcode"] == TERMINATE:
            return self._terminate(d)
        if d["opcode"] == RECORD:
            return self._record(d, payload, qp, tick)
        return self._send(d, payload, qp, tick)

    def _send(self, d, payload, qp, tick):
        if d["qn"]:
            return Counter.DROP_UNTAGGED_QN
        if d["mo"] + len(payload) > d["mlen"]:
            return Counter.DROP_MESSAGE_LENGTH
        name = self._name(d)
        message = self._open_message(name)
        if message:
            if message.mlen != d["mlen"]:
                return Counter.DROP_RECORD_MISMATCH
            self._place(message.region, message.base + d["mo"], payload)
            self._mark(message, message.base + d["mo"], payload, tick)
            return Counter.RX_PLACED
        if self._is_closed(name, qp, tick):
            return Counter.DROP_LATE
        posted = self.receives.get(d["qpn"], [])
        index = self.consumed.get(d["qpn"], 0)
        if index >= len(posted):
            return Counter.DROP_NO_RECEIVE
        if qp["recv_cq"] in self.full:
            return Counter.DROP_CQ_FULL
        sge = posted[index]
        region = self._region(sge["lkey"])
        allowed = (
            region is not None
            and region.valid
            and region.key == sge["lkey"] & 0xFF
            and region.pd == qp["pd"]
            and region.access & Access.LOCAL_WRITE
            and region.holds(sge["addr"], sge["length"])
        )
        if d["mlen"] and sge["length"] and not allowed:
            self.consumed[d["qpn"]] = index + 1
            self._complete(d, qp, status=Status.LOC_PROT_ERR, wqe_index=index, valid=0)
            return Counter.DROP_RECEIVE_PROTECTION
        if d["mlen"] > sge["length"]:
            return Counter.DROP_RECEIVE_SHORT
        if len(payload) == d["mlen"]:
            self.consumed[d["qpn"]] = index + 1
            if payload:
                self._place(region, sge["addr"], payload)
            self._complete(d, qp, wqe_index=index, valid=len(payload))
            self._remember(name, tick)
            return Counter.RX_PLACED
        if not region.mapped or sge["addr"] % (1 << region.granule_log2):
            return Counter.DROP_SEND_SEGMENTED
        self._close_overlapped(sge["lkey"], sge["addr"], d["mlen"], tick)
        if None not in self.trackers:
            return Counter.DROP_NO_TRACKER
        self.consumed[d["qpn"]] = index + 1
        message = self._open(name, sge["lkey"], sge["addr"], d, qp, tick)
        message.wqe_index = index
        self._place(region, sge["addr"] + d["mo"], payload)
        self._mark(message, sge["addr"] + d["mo"], payload, tick)
        return Counter.RX_PLACED

    def _request(self, d, payload, qp):
        if d["qn"] != 1:
            return Counter.DROP_UNTAGGED_QN
        if d["mo"] or payload or not d["mlen"]:
            return Counter.DROP_MESSAGE_LENGTH
        reason = self._extent(d, d["mlen"], qp, Access.REMOTE_READ)
        if reason:
            return reason
        if self.waiting >= self.parameters.n_read:
            return Counter.DROP_READ_BUSY
        self.waiting += 1
        region = self._region(d["stag"])
        names = ("qpn", "source_mac", "source_ip", "source_port", "msn", "sink_to")
        request = {name: d[name] for name in names}
        request |= {"sink_stag": d["immediate"], "size": d["mlen"], "region": d["stag"] >> 8}
        request |= {"report": 0, "terminate": 0}
        request["address"] = region.dma_addr + d["to"] - region.base_to & (1 << 64) - 1
        self.requests.append(request)
        return Counter.RX_PLACED

    def _terminate(self, d):
        if d["qn"] != 2:
            return Counter.DROP_UNTAGGED_QN
        names = ("qpn", "source_ip", "source_port", "msn")
        told = {name: d[name] for name in names} | {"report": 0, "terminate": 1}
        self.requests.append(told | {"sink_stag": d["immediate"]})
        return Counter.RX_PLACED

    def _response(self, d, payload, tick):
        if d["mo"] + len(payload) > d["mlen"]:
            return Counter.DROP_MESSAGE_LENGTH
        message = self._open_message(self._name(d))
        if not message:
            return Counter.DROP_LATE
        base = d["to"] - d["mo"] & (1 << 64) - 1
        if (message.stag, message.base, message.mlen) != (d["stag"], base, d["mlen"]):
            return Counter.DROP_RECORD_MISMATCH
        self._place(message.region, message.base + d["mo"], payload)
        self._mark(message, message.base + d["mo"], payload, tick)
        return Counter.RX_PLACED

    def opening(self, o, tick=0):
        """Fields of ReadOpening."""
        self.answers.append(self._opens(o, tick))

    def _opens(self, o, tick):
        qp = self.qps[o["qpn"]]
        stag, base, mlen = o["lkey"], o["addr"], o["mlen"]
        region = self._region(stag)
        allowed = (
            qp["state"] == QpState.RTS
            and region is not None
            and region.valid
            and region.key == stag & 0xFF
            and region.pd == qp["pd"]
            and region.access & Access.LOCAL_WRITE
            and region.mapped
            and region.granule_log2 == 6
            and base + mlen <= 1 << 64
            and region.holds(base, mlen)
        )
        if not allowed:
            return False
        self._close_overlapped(stag, base, mlen, tick)
        if None not in self.trackers:
            return False
        d = o | {"opcode": READ}
        cqs = {"recv_cq": qp["send_cq"], "timeout": qp["timeout"]}
        message = self._open(self._name(d), stag, base, d, cqs, tick)
        message.wqe_index = o["wqe_index"]
        return True

    def _write(self, d, payload, qp):
        if not payload:
            return Counter.RX_PLACED
        reason = self._extent(d, len(payload), qp, Access.REMOTE_WRITE)
        if reason:
            return reason
        self._place(self._region(d["stag"]), d["to"], payload)
        return Counter.RX_PLACED

    def _extent(self, d, length, qp, access):
        """The checks of a Write of ``length`` octets, or what of them fails."""
        region = self._region(d["stag"])
        reason = self._stag(region, d["stag"], qp, access)
        if reason:
            return reason
        if d["to"] + length > 1 << 64:
            return Counter.DROP_TO_WRAP
        if not region.holds(d["to"], length):
            return Counter.DROP_BOUNDS
        return None

    def _record(self, d, payload, qp, tick):
        mlen, mo, base = d["mlen"], d["mo"], d["to"] - d["mo"]
        if mo + len(payload) > mlen:
            return Counter.DROP_MESSAGE_LENGTH
        region = self._region(d["stag"])
        if mlen:
            reason = self._stag(region, d["stag"], qp)
            if reason:
                return reason
            if base < 0 or base + mlen > 1 << 64:
                return Counter.DROP_TO_WRAP
            if not region.holds(base, mlen):
                return Counter.DROP_BOUNDS
        name = self._name(d)
        is_open = self._open_message(name)
        if is_open:
            if (is_open.stag, is_open.base, is_open.mlen) != (d["stag"], base, mlen):
                return Counter.DROP_RECORD_MISMATCH
            self._place(region, d["to"], payload)
            self._mark(is_open, d["to"], payload, tick)
            return Counter.RX_PLACED
        if self._is_closed(name, qp, tick):
            return Counter.DROP_LATE
        if mlen and region.mapped:
            self._close_overlapped(d["stag"], base, mlen, tick)
        if qp["recv_cq"] in self.full:
            return Counter.DROP_CQ_FULL
        if payload:
            self._place(region, d["to"], payload)
        if len(payload) == mlen:
            self._complete(d, qp, valid=mlen, base_to=d["to"] - mo, stag=d["stag"])
            self._remember(name, tick)
        elif region.mapped and None in self.trackers:
            message = self._open(name, d["stag"], base, d, qp, tick)
            self._mark(message, d["to"], payload, tick)
        else:
            flags = CqeFlag.SEGMENT
            flags |= CqeFlag.HEAD if mo == 0 else 0
            flags |= CqeFlag.TAIL if mo + len(payload) == mlen else 0
            self._complete(d, qp, flags=flags, valid=len(payload), base_to=d["to"], stag=d["stag"])
        return Counter.RX_PLACED

    def _stag(self, region, stag, qp, access=Access.REMOTE_WRITE):
        if region is None or not region.valid:
            return Counter.DROP_STAG_INVALID
        if region.key != stag & 0xFF:
            return Counter.DROP_STAG_KEY
        if region.pd != qp["pd"]:
            return Counter.DROP_STAG_PD
        if not region.access & access:
            return Counter.DROP_STAG_ACCESS
        return None

    def _region(self, stag):
        index = stag >> 8
        return self.regions[index] if index < len(self.regions) else None

    def _name(self, d):
        kind = KINDS.get(d["opcode"], "send")
        return d["qpn"], d["source_ip"], d["source_port"], d["msn"], kind

    def _open_message(self, name):
        return next(
            (message for message in self.trackers if message and message.name == name), None
        )

    def _open(self, name, stag, base, d, qp, tick):
        region = replace(self._region(stag))
        message = Message(
            name, region, stag, base, d["mlen"], qp["recv_cq"], qp["timeout"], d, tick=tick
        )
        self.trackers[self.trackers.index(None)] = message
        return message

    def _close_overlapped(self, stag, base, mlen, tick):
        for message in list(self.trackers):
            if message and message.shares_octets(stag, base, mlen):
                self._close(message, Status.PARTIAL, tick)

    def _closed_row(self, name):
        return (name[3] ^ name[0] << 4) % self.parameters.n_closed

    def _is_closed(self, name, qp, tick):
        known, when = self.closed.get(self._closed_row(name), (None, 0))
        return known == name and tick - when < qp["timeout"]

    def _remember(self, name, tick):
        self.closed[self._closed_row(name)] = (name, tick)

    def _place(self, region, start, payload):
        address = region.dma_addr + start - region.base_to & (1 << 64) - 1
        for i, octet in enumerate(payload):
            self.memory[address + i] = octet
        self.placed_octets += len(payload)

    def _mark(self, message, start, payload, tick):
        message.tick = tick
        stop = start + len(payload)
        for number in range(message.first, message.last + 1):
            low, high = message.octets_of(number)
            if start <= low and high <= stop:
                message.valid.add(number)
        if len(message.valid) == message.last - message.first + 1:
            self._close(message, Status.SUCCESS, tick)

    def expire(self, tick, cqe=None):
        """Close the messages (or the one that a ``cqe`` speaks of) that were silent too long."""
        name = cqe is not None and self._name(
            {field: getattr(cqe, field) for field, _ in cqe.shape()}
        )
        for message in list(self.trackers):
            if message and name in (False, message.name) and tick - message.tick >= message.timeout:
                self._close(message, Status.PARTIAL, tick)

    def close_messages(self, target, row, tick=0):
        """MESSAGES_CLOSE."""
        for message in list(self.trackers):
            if message:
                owners = {CloseTarget.QP: message.name[0], CloseTarget.REGION: message.stag >> 8}
                if owners.get(target) == row:
                    self._close(message, Status.PARTIAL, tick)

    def _close(self, message, status, tick):
        self.trackers[self.trackers.index(message)] = None
        octets = {}
        for number in range(message.first // 8, message.last // 8 + 1):
            octets[number] = sum(1 << i for i in range(8) if 8 * number + i in message.valid)
        for number in range(message.first // 8 + 1, message.last // 8):
            self.map_memory[message.region.map_addr + number] = octets[number]
            self.map_octets += 1
        valid = sum(high - low for low, high in map(message.octets_of, message.valid))
        self._complete(
            message.opener,
            {"recv_cq": message.cq},
            status=status,
            flags=CqeFlag.MAPPED,
            valid=valid,
            base_to=message.base,
            stag=message.stag,
            wqe_index=message.wqe_index,
            head_map=octets[message.first // 8],
            tail_map=octets[message.last // 8],
        )
        if message.name[-1] != "read":
            self._remember(message.name, tick)

    def _complete(self, d, qp, status=Status.SUCCESS, flags=0, **fields):
        flags |= 0 if d["opcode"] == READ else CqeFlag.RECEIVE
        defined = d["opcode"] in (RECORD, SEND_IMM)
        if defined and d["immediate_valid"]:
            flags |= CqeFlag.IMMEDIATE
            fields["immediate"] = d["immediate"]
        if d["opcode"] == SEND_SE or (defined and d["solicited"]):
            flags |= CqeFlag.SOLICITED
        for name in ("opcode", "qpn", "msn", "mlen", "source_ip", "source_port"):
            fields[name] = d[name]
        fields |= {"status": int(status), "flags": int(flags)}
        self.completed.append(Completed(qp["recv_cq"], fields, self.placed_octets, self.map_octets))
