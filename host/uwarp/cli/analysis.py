"""What the demo concludes from the wire's records, the completions and the counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from uwarp.contract import DROPS, Counter, Parameters, outcome_sum
from uwarp.device import Fate, Impairments, WireRecord
from uwarp.verbs import IBV_WC_PARTIAL, IBV_WC_SUCCESS, MR
from uwarp.wire import Opcode, Segment, UdpFrame, wire_octets

from .programs import MESSAGE, Received

__all__ = ["Account", "Speed", "checks", "placing_speed", "sending_speed"]

WIRE_OCTETS_PER_CYCLE = 8  # 10 Gb/s at 156.25 MHz
CLOCK_HZ = Parameters().clock_hz


@dataclass(frozen=True)
class Datagram:
    """One segment of a Write-Record as the wire had it. ``time`` is when its last octet left."""

    time: int
    fate: Fate
    number: int  # of the message, from 0
    offset: int  # in the region
    length: int
    cost: int  # octets of the wire, gap included


@dataclass
class Account:
    """The Write-Record datagrams of one run, in the order of delivery or loss."""

    total: int
    datagrams: list[Datagram] = field(default_factory=list)
    malformed: int = 0

    @classmethod
    def of(cls, records: Sequence[WireRecord], received: Received, total: int) -> Account:
        account = cls(total)
        for record in records:
            if record.source:
                continue
            try:
                segment = Segment.from_datagram(UdpFrame.decode(record.frame).payload)
            except ValueError:  # FrameError, SegmentError: the sender made it wrong
                account.malformed += 1
                continue
            if segment.opcode is Opcode.WRITE_RECORD:
                offset = segment.to - received.region.buf
                account.datagrams.append(
                    Datagram(
                        record.time,
                        record.fate,
                        offset // MESSAGE,
                        offset,
                        len(segment.payload),
                        wire_octets(len(record.frame)),
                    )
                )
        return account

    def having(self, *fates: Fate) -> list[Datagram]:
        return [item for item in self.datagrams if item.fate in fates]

    @property
    def sent(self) -> int:
        return len(self.having(Fate.DELIVERED, Fate.DROPPED))

    @property
    def dropped(self) -> int:
        return len(self.having(Fate.DROPPED))

    @property
    def duplicated(self) -> int:
        return len(self.having(Fate.DUPLICATE))

    def messages(self, received: Received) -> dict[str, int]:
        """Messages by what became of them.

        By their completions; those that completed datagram by datagram, because all trackers were
        taken, by the map.
        """
        complete, partial = set[int](), set[int]()
        for wc in received.records:
            number = (wc.remote_addr - received.region.buf) // MESSAGE
            if wc.segment:
                start = number * MESSAGE
                length = min(MESSAGE, self.total - start)
                whole = received.region.validity.is_valid(start, length)
                (complete if whole else partial).add(number)
            elif wc.status == IBV_WC_SUCCESS:
                complete.add(number)
            elif wc.status == IBV_WC_PARTIAL:
                partial.add(number)
        partial -= complete
        count = -(-self.total // MESSAGE)
        return {
            "messages": count,
            "messages_complete": len(complete),
            "messages_partial": len(partial),
            "messages_lost": count - len(complete | partial),
        }


@dataclass(frozen=True)
class Speed:
    """Payload in a stretch of time, and the time which the wire itself needs for it."""

    payload: int
    cycles: float
    wire_cycles: float

    def figures(self) -> dict[str, float | None]:
        """Gb/s, those of a wire that never pauses, and their ratio in percent."""
        bits = 8 * self.payload * CLOCK_HZ / 1e9
        return {
            "gbps": bits / self.cycles if self.cycles else None,
            "ceiling_gbps": bits / self.wire_cycles if self.wire_cycles else None,
            "percent": 100 * self.wire_cycles / self.cycles if self.cycles else None,
        }

    @classmethod
    def unknown(cls) -> Speed:
        return cls(0, 0, 0)


def sending_speed(account: Account) -> Speed | None:
    """From the first octet of the first datagram to the last of the last, at the sender."""
    items = sorted(account.having(Fate.DELIVERED, Fate.DROPPED), key=lambda item: item.time)
    if len(items) < 2:
        return None
    first = items[0].cost / WIRE_OCTETS_PER_CYCLE
    return Speed(
        payload=sum(item.length for item in items),
        cycles=items[-1].time - items[0].time + first,
        wire_cycles=sum(item.cost for item in items) / WIRE_OCTETS_PER_CYCLE,
    )


def placing_speed(account: Account, received: Received) -> Speed | None:
    """From the first octet that left the sender to the completion of the last whole message.

    The way through wire and NIC is included. A datagram that is lost takes the sender's time on the
    wire, a duplicate the receiver's: the ceiling is that of the busier end.
    """
    whole = [
        (wc.time, (wc.remote_addr - received.region.buf) // MESSAGE)
        for wc in received.records
        if wc.status == IBV_WC_SUCCESS and not wc.segment
    ]
    if not whole:
        return None
    ended, last = max(whole)
    until = [item for item in account.datagrams if item.number <= last]
    first = min(until, key=lambda item: item.time)
    return Speed(
        payload=sum(item.length for item in until if item.fate is Fate.DELIVERED),
        cycles=ended - first.time + first.cost / WIRE_OCTETS_PER_CYCLE,
        wire_cycles=max(
            sum(item.cost for item in until if item.fate is not fate)
            for fate in (Fate.DUPLICATE, Fate.DROPPED)
        )
        / WIRE_OCTETS_PER_CYCLE,
    )


def _covers(region: MR, item: Datagram) -> bool:
    return region.validity.is_valid(item.offset, item.length)


def checks(
    sent: bytes,
    octets: bytes,
    account: Account,
    received: Received,
    counters: Sequence[dict[Counter, int]],
    impairments: Impairments,
) -> dict[str, bool]:
    """What must hold, and whether it does."""
    region = received.region
    source, target = (np.frombuffer(item, dtype=np.uint8) for item in (sent, octets))
    valid = np.zeros(len(sent), dtype=np.bool_)
    for offset, length in region.validity.ranges():
        valid[offset : offset + length] = True
    untouched = np.ones(len(sent), dtype=np.bool_)
    crossed = account.having(Fate.DELIVERED, Fate.DUPLICATE)
    for item in crossed:
        untouched[item.offset : item.offset + item.length] = False
    delivered = {(item.offset, item.length) for item in crossed}
    dropped = [
        item for item in account.having(Fate.DROPPED) if (item.offset, item.length) not in delivered
    ]
    unplaced = sum(not _covers(region, item) for item in account.having(Fate.DELIVERED))
    refused = sum(counters[1][counter] for counter in DROPS)
    held = {
        "every frame that left the sender is whole, its CRC32c right": not account.malformed,
        "all that the map calls valid equals what was sent": bool(
            (source[valid] == target[valid]).all()
        ),
        "all that the wire dropped is missing in the map": not any(
            valid[item.offset : item.offset + item.length].any() for item in dropped
        ),
        "what never arrived left the memory as it was": not target[untouched].any(),
        "what arrived is in the map, or counted as dropped by the NIC": unplaced <= refused,
        "every frame is accounted for by one counter": all(
            side[Counter.RX_FRAMES] == outcome_sum(side) for side in counters
        ),
    }
    if not impairments.loss:
        held["nothing is missing"] = bool(valid.all())
    return held
