"""The demo's figures as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["report"]

SHOWN_RANGES = 6


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"


def _speed(figures: dict[str, Any], kind: str) -> str:
    if figures[f"{kind}_gbps"] is None:
        return "too short to measure"
    return (
        f"{figures[f'{kind}_gbps']:.2f} Gb/s of payload, {figures[f'{kind}_percent']:.1f} % of "
        f"the wire's {figures[f'{kind}_ceiling_gbps']:.2f} Gb/s"
    )


def _missing(ranges: list[tuple[int, int]]) -> list[str]:
    if not ranges:
        return ["nothing"]
    lines = [
        f"{offset:>11,} to {offset + length - 1:>11,}  {length:>8,} octets"
        for offset, length in ranges[:SHOWN_RANGES]
    ]
    more = len(ranges) - SHOWN_RANGES
    if more > 0:
        lines.append(f"and {more} more range{'s' if more > 1 else ''}: see result.json")
    return lines


def report(figures: dict[str, Any], out: Path) -> None:
    """Print the figures, one aligned row for each."""
    f = figures
    rows: list[tuple[str, str | list[str]]] = [
        ("sent", f"{f['source']}, {f['octets']:,} octets"),
        ("NICs", f"{f['device']}, MTU {f['mtu']}, granule {f['granule']} octets"),
        (
            "wire",
            f"loss {_percent(f['loss'])}, duplicates {_percent(f['duplicate'])}, "
            f"reordered {_percent(f['reorder'])}, seed {f['seed']}",
        ),
        (
            "datagrams",
            f"{f['datagrams_sent']:,} sent, {f['datagrams_dropped']:,} dropped by the wire, "
            f"{f['datagrams_duplicated']:,} duplicated",
        ),
        (
            "messages",
            f"{f['messages']:,} of {f['message_octets'] // 1024} KiB: {f['messages_complete']:,} "
            f"complete, {f['messages_partial']:,} partial, {f['messages_lost']:,} lost",
        ),
        (
            "octets",
            f"{f['octets_valid']:,} valid, {f['octets_missing']:,} missing "
            f"({_percent(f['octets_missing'] / f['octets'])})",
        ),
        ("missing", _missing(f["missing_ranges"])),
        (
            "NIC clock",
            f"{f['cycles']:,} cycles, {f['cycles'] / 156.25e3:.3f} ms at 156.25 MHz",
        ),
        ("sending", _speed(f, "sending")),
        ("placing", _speed(f, "placing")),
        (
            "simulated",
            f"{f['cycles_per_second']:,.0f} cycles a second, {f['seconds']:.1f} s",
        ),
        (
            "files",
            f"received.png, validity.png, wire.pcap, result.json in {out}",
        ),
        (
            "checks",
            [f"{'ok    ' if good else 'FAILED'}  {what}" for what, good in f["checks"].items()],
        ),
    ]
    for name, value in rows:
        lines = [value] if isinstance(value, str) else value
        for line in lines:
            print(f"{name:<11}{line}")
            name = ""
