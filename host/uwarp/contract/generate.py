"""What is made from the contract: the C header for firmware, and the register reference.

``python -m uwarp.contract header`` prints the header, ``python -m uwarp.contract registers`` the
reference; with ``--check FILE`` they compare it with a file, with ``--output FILE`` they write it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path

from . import enums
from .counters import COUNTER_MEANINGS, Counter
from .descriptors import (
    CQE,
    EVENT,
    EVENT_TIME_LOG2,
    RECV_WQE,
    SEND_WQE,
    SEND_WQE_EXTENSION,
)
from .enums import CqeFlag, QpState, Status, WqeFlag
from .registers import (
    ADDRESS_BITS,
    DOORBELL_BASE,
    DOORBELL_PAGE,
    DOORBELLS,
    MAGIC,
    REGISTERS,
    TICK_CYCLES,
    VERSION,
    Control,
    DeviceStatus,
    Doorbell,
    Filter,
    counter_address,
)
from .structure import Field, Structure
from .tables import TABLES
from .terminates import TERMINATE_CODES, TERMINATE_TICKS, Terminated

__all__ = ["c_header", "main", "register_reference"]

_RING_ENTRIES = (SEND_WQE, SEND_WQE_EXTENSION, RECV_WQE, CQE, EVENT)
_TABLE_ROWS = tuple(TABLES.values())
_ENUMS: tuple[type[Enum], ...] = tuple(getattr(enums, name) for name in enums.__all__)
_PREFIXES: dict[type[Enum], str] = {QpState: "QP_STATE", CqeFlag: "CQE_FLAG", WqeFlag: "WQE_FLAG"}

_C_PROLOGUE = """\
/* Made from uwarp.contract: do not edit.
 *
 * A structure is an array of 32-bit words, the least significant first, each little-endian in
 * memory. Fields are read and written by the functions below, whose constant arguments a
 * compiler folds.
 */
#ifndef UWARP_CONTRACT_H
#define UWARP_CONTRACT_H

#include <stdint.h>
"""

_C_ACCESS = """\
/* The lowest 64 bits of the field of `width` bits that begins at bit `offset`. */
static inline uint64_t uwarp_get(const uint32_t *words, unsigned offset, unsigned width)
{
    uint64_t value = 0;
    unsigned bit = 0;

    while (bit < width && bit < 64) {
        unsigned place = (offset + bit) % 32;
        unsigned count = 32 - place;
        uint64_t part;

        if (count > width - bit)
            count = width - bit;
        part = words[(offset + bit) / 32] >> place & (uint32_t)(((uint64_t)1 << count) - 1);
        value |= part << bit;
        bit += count;
    }
    return value;
}

/* Sets the field to `value`; bits of the field above the 64th are cleared. */
static inline void uwarp_set(uint32_t *words, unsigned offset, unsigned width, uint64_t value)
{
    unsigned bit = 0;

    while (bit < width) {
        unsigned place = (offset + bit) % 32;
        unsigned count = 32 - place;
        uint32_t mask, part;

        if (count > width - bit)
            count = width - bit;
        mask = (uint32_t)(((uint64_t)1 << count) - 1) << place;
        part = bit < 64 ? (uint32_t)(value >> bit) << place : 0;
        words[(offset + bit) / 32] = (words[(offset + bit) / 32] & ~mask) | (part & mask);
        bit += count;
    }
}

/* UWARP_GET(row, UWARP_QP_ENTRY_STATE) reads a field, UWARP_SET(row, field, value) writes it. */
#define UWARP_GET(s, field) uwarp_get((s)->words, field##_OFFSET, field##_WIDTH)
#define UWARP_SET(s, field, value) uwarp_set((s)->words, field##_OFFSET, field##_WIDTH, (value))
"""


def _class_bits(holder: type) -> Iterator[tuple[str, int]]:
    return ((name, value) for name, value in vars(holder).items() if name.isupper())


def _define(name: str, value: int, *, digits: int = 1) -> str:
    return f"#define UWARP_{name} {value:#0{digits + 2}x}u"


def _c_registers() -> Iterator[str]:
    for register in REGISTERS:
        info = register.value
        yield _define(f"REG_{register.name}", info.address, digits=3)
        if info.count > 1:
            yield f"#define UWARP_REG_{register.name}_COUNT {info.count}u"
            yield f"#define UWARP_REG_{register.name}_STRIDE {info.stride}u"


def _c_structure(structure: Structure) -> Iterator[str]:
    prefix = f"UWARP_{structure.name.upper()}"
    yield ""
    yield f"struct uwarp_{structure.name} {{"
    yield f"    uint32_t words[{structure.size // 4}];"
    yield "};"
    for item in structure.named_fields:
        yield f"#define {prefix}_{item.name.upper()}_OFFSET {structure.offset(item.name)}u"
        yield f"#define {prefix}_{item.name.upper()}_WIDTH {item.width}u"


def c_header() -> str:
    """``uwarp_contract.h``: C99 and C++, no library but ``stdint.h``."""
    lines = [_C_PROLOGUE]
    lines += [
        _define("MAGIC", MAGIC),
        _define("VERSION", VERSION, digits=8),
        f"#define UWARP_ADDRESS_BITS {ADDRESS_BITS}u",
        f"#define UWARP_TICK_CYCLES {TICK_CYCLES}u",
        f"#define UWARP_EVENT_TIME_LOG2 {EVENT_TIME_LOG2}u",
        f"#define UWARP_TERMINATE_TICKS {TERMINATE_TICKS}u",
        "",
        *_c_registers(),
        "",
        *(_define(f"CONTROL_{name}", value) for name, value in _class_bits(Control)),
        *(_define(f"STATUS_{name}", value) for name, value in _class_bits(DeviceStatus)),
        *(_define(f"FILTER_{name}", value) for name, value in _class_bits(Filter)),
        "",
        _define("DOORBELL_BASE", DOORBELL_BASE),
        _define("DOORBELL_PAGE", DOORBELL_PAGE),
        *(_define(f"DOORBELL_{item.name}", item.value) for item in Doorbell),
        "",
        *(f"#define UWARP_COUNTER_{item.name} {item.value}u" for item in Counter),
        f"#define UWARP_COUNTERS {len(Counter)}u",
    ]
    for kind in _ENUMS:
        prefix = _PREFIXES.get(kind, kind.__name__.upper())
        if kind is Status:
            prefix = "WC"  # UWARP_STATUS_ names the bits of the register STATUS
        lines.append("")
        lines += [_define(f"{prefix}_{item.name}", item.value) for item in kind]
    for structure in (*_RING_ENTRIES, *_TABLE_ROWS):
        lines += _c_structure(structure)
    lines += ["", _C_ACCESS, "#endif"]
    return "\n".join(lines) + "\n"


def _table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    header = tuple(header)
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
    yield ""


def _field_row(position: int, item: Field) -> tuple[str, str, str, str]:
    last = position + item.width - 1
    bits = f"{position}" if item.width == 1 else f"{position} to {last}"
    octet = f"{position // 8}" if position % 8 == 0 and item.width % 8 == 0 else ""
    name = "" if item.is_padding else f"`{item.name}`"
    return bits, octet, name, item.meaning or ("reserved, 0" if item.is_padding else "")


def _structure_text(structure: Structure) -> Iterator[str]:
    yield f"### {structure.name}: {structure.size} octets"
    yield ""
    yield structure.meaning
    yield ""
    rows = []
    position = 0
    for item in structure.fields:
        rows.append(_field_row(position, item))
        position += item.width
    yield from _table(("bits", "octet", "field", "meaning"), rows)


def _enum_text(kind: type[Enum]) -> Iterator[str]:
    yield f"### {kind.__name__}"
    yield ""
    yield (kind.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    yield ""
    yield from _table(("value", "name"), ((f"{item.value:#x}", item.name) for item in kind))


def register_reference() -> str:
    """``docs/registers.md``."""
    lines = [
        "# Registers, doorbells, rings and tables",
        "",
        "Made from `uwarp.contract` by `python -m uwarp.contract registers`: do not edit. What the",
        "device does with all this is in [device.md](device.md).",
        "",
        f"BAR 0 has {ADDRESS_BITS} address bits. Accesses are whole, aligned 32-bit words.",
        "Addresses not listed read as 0, and writes to them do nothing.",
        "",
        "## Registers",
        "",
    ]
    rows = []
    for register in REGISTERS:
        info = register.value
        address = f"0x{info.address:03X}"
        if info.count > 1:
            end = info.address + (info.count - 1) * info.stride
            address += f" to 0x{end:03X}, every {info.stride}"
        rows.append((address, f"`{register.name}`", info.access.name, info.meaning))
    lines += _table(("address", "register", "access", "meaning"), rows)
    kinds = {register.value.access for register in REGISTERS}
    order = sorted(kinds, key=lambda access: access.name)
    lines += ["Access: " + "; ".join(f"{item.name} {item.value}" for item in order) + ".", ""]
    lines += [
        f"CONTROL bits: {_bit_list(Control)}. STATUS bits: {_bit_list(DeviceStatus)}. "
        f"FILTER bits: {_bit_list(Filter)}.",
        "",
        "## Doorbells",
        "",
        f"Page n is at 0x{DOORBELL_BASE:X} + 0x{DOORBELL_PAGE:X} n and serves QP n and CQ n. "
        "Write only.",
        "",
    ]
    lines += _table(
        ("offset", "doorbell", "meaning"),
        ((f"0x{item.value:X}", f"`{item.name}`", DOORBELLS[item]) for item in Doorbell),
    )
    lines += ["## Ring entries", ""]
    for structure in _RING_ENTRIES:
        lines += _structure_text(structure)
    lines += ["## Table rows", ""]
    for structure in _TABLE_ROWS:
        lines += _structure_text(structure)
    lines += ["## Numbers", ""]
    for kind in _ENUMS:
        lines += _enum_text(kind)
    lines += [
        "## Terminates",
        "",
        "Upper half of the control word (layer, etype, code) for what ended in these counters.",
        f"At least {TERMINATE_TICKS} ticks are between two Terminates of a device.",
        "",
    ]
    kinds_told = tuple(kind.name.lower().replace("_", " ") for kind in Terminated)
    lines += _table(
        ("counter", *kinds_told),
        (
            (f"`{item.name}`", *(f"0x{codes[kind]:04X}" for kind in Terminated))
            for item, codes in TERMINATE_CODES.items()
        ),
    )
    lines += ["## Counters", "", "Counter i is the pair of registers at COUNTERS_LOW + 8 i.", ""]
    lines += _table(
        ("i", "address", "counter", "counts"),
        (
            (item.value, f"0x{counter_address(item):03X}", f"`{item.name}`", COUNTER_MEANINGS[item])
            for item in Counter
        ),
    )
    return "\n".join(lines).rstrip("\n") + "\n"


def _bit_list(holder: type) -> str:
    return ", ".join(f"{value.bit_length() - 1} `{name}`" for name, value in _class_bits(holder))


def main(arguments: list[str] | None = None) -> int:
    """Print, write or compare a generated file; 1 if ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(
        prog="python -m uwarp.contract", description="Files made from the device contract."
    )
    parser.add_argument("what", choices=("header", "registers"))
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--output", type=Path, help="write to this file")
    where.add_argument("--check", type=Path, help="compare with this file")
    options = parser.parse_args(arguments)
    text = c_header() if options.what == "header" else register_reference()
    if options.check is not None:
        found = options.check.read_text(encoding="utf-8") if options.check.exists() else ""
        if found != text:
            print(
                f"{options.check} is stale: run "
                f"python -m uwarp.contract {options.what} --output {options.check}",
                file=sys.stderr,
            )
            return 1
    elif options.output is not None:
        options.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0
