"""CRC-32C as XOR matrices: steps over 1 to 8 octets, and what lets whole words do for any length.

The register is the reflected one (RFC 3385, RFC 3720 section 12.1): bit 31 is the coefficient of
x^0, octets enter with their bit 0 first. It starts at :data:`INITIAL`; the value sent is its
complement, least significant octet first.

The step is linear, so it splits into a share of the state and a share of the data::

    next = advance(state, n) ^ data_share(data)          n octets

Each bit of either share is one XOR reduction; what several have in common is written once, which
halves them. A unit that must be fast registers the data's share first; the loop then holds the
state's share and one XOR. A segment that does not fill its words needs no other step widths: octets
before its start are zeroed and the state begins at ``unstep(INITIAL, k)``, octets after its end are
zeroed and the state is compared with ``RESIDUES[k]``, or taken back by ``unstep(state, k)``.
"""

from collections.abc import Callable, Sequence
from functools import cache
from heapq import nlargest
from itertools import combinations

from amaranth.hdl import Cat, Const, Value

__all__ = [
    "INITIAL",
    "POLYNOMIAL",
    "RESIDUES",
    "advance",
    "crc32c",
    "crc32c_next",
    "data_share",
    "step",
    "unstep",
]

POLYNOMIAL = 0x82F63B78
"""Castagnoli's polynomial 0x1EDC6F41, reflected."""

INITIAL = 0xFFFF_FFFF


def step(state: int, octets: bytes) -> int:
    """The state after ``octets``."""
    for octet in octets:
        state ^= octet
        for _ in range(8):
            state = state >> 1 ^ (POLYNOMIAL if state & 1 else 0)
    return state


def crc32c(octets: bytes) -> int:
    """The CRC of ``octets`` as a number; it is sent least significant octet first."""
    return step(INITIAL, octets) ^ 0xFFFF_FFFF


def _retreat(state: int, octets: int) -> int:
    for _ in range(8 * octets):
        out = state >> 31
        state = ((state ^ (POLYNOMIAL if out else 0)) << 1 | out) & 0xFFFF_FFFF
    return state


@cache
def _rows(kind: str, octets: int) -> tuple[tuple[int, ...], ...]:
    """For each of the 32 result bits, the positions of the operand's bits that it is the XOR of."""
    functions: dict[str, tuple[int, Callable[[int], int]]] = {
        "advance": (32, lambda value: step(value, bytes(octets))),
        "unstep": (32, lambda value: _retreat(value, octets)),
        "data": (8 * octets, lambda value: step(0, value.to_bytes(octets, "little"))),
    }
    width, function = functions[kind]
    columns = [function(1 << position) for position in range(width)]
    return tuple(
        tuple(position for position, column in enumerate(columns) if column >> row & 1)
        for row in range(32)
    )


#: Inputs of a lookup table, and the pairs of positions that are tried for a part.
_INPUTS, _TRIED = 4, 64


@cache
def _factored(
    kind: str, octets: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """The same rows, of positions and parts: a part is an XOR that several rows share, and is at
    the position after the operand's bits and the parts before it.

    One after the other those are taken that save most: a part of n positions is one lookup table
    of up to four inputs, and makes each row that has them shorter by n - 1; three are a table's.
    """
    rows = _rows(kind, octets)
    width = 8 * octets if kind == "data" else 32
    columns = [
        sum(1 << number for number, row in enumerate(rows) if position in row)
        for position in range(width)
    ]

    def common(positions: Sequence[int]) -> int:
        users = (1 << len(rows)) - 1
        for position in positions:
            users &= columns[position]
        return users

    parts = []
    while True:
        least = _INPUTS - 1
        part: tuple[int, ...] = ()
        pairs = combinations(range(len(columns)), 2)
        for members in nlargest(_TRIED, pairs, key=lambda pair: common(pair).bit_count()):
            tried: tuple[int, ...] = members
            while True:
                saved = common(tried).bit_count() * (len(tried) - 1)
                if saved > least:
                    least, part = saved, tried
                if len(tried) == _INPUTS:
                    break
                users = common(tried)
                others = (each for each in range(len(columns)) if each not in tried)
                tried += (max(others, key=lambda each: (columns[each] & users).bit_count()),)
        if not part:
            break
        users = common(part)
        for position in part:
            columns[position] &= ~users
        columns.append(users)
        parts.append(part)
    factored = tuple(
        tuple(position for position, users in enumerate(columns) if users >> number & 1)
        for number in range(len(rows))
    )
    return tuple(parts), factored


def _product(kind: str, octets: int, value: Value) -> Value:
    parts, rows = _factored(kind, octets)
    terms = [value[position] for position in range(len(value))]
    for part in parts:
        terms.append(Cat(terms[position] for position in part).xor())
    return Cat(Cat(terms[i] for i in row).xor() if row else Const(0, 1) for row in rows)


def _check_state(state: Value) -> None:
    if len(state) != 32:
        raise ValueError(f"state is {len(state)} bits wide; it takes 32")


def advance(state: int | Value, octets: int) -> int | Value:
    """The state after ``octets`` zero octets; an integer for an integer, else a 32-bit value."""
    if octets < 0:
        raise ValueError(f"octets is {octets}; it takes 0 or more")
    if isinstance(state, int):
        return step(state, bytes(octets))
    state = Value.cast(state)
    _check_state(state)
    return _product("advance", octets, state)


def unstep(state: int | Value, octets: int) -> int | Value:
    """The state before ``octets`` zero octets led to ``state``: the inverse of :func:`advance`."""
    if octets < 0:
        raise ValueError(f"octets is {octets}; it takes 0 or more")
    if isinstance(state, int):
        return _retreat(state, octets)
    state = Value.cast(state)
    _check_state(state)
    return _product("unstep", octets, state)


def data_share(data: Value) -> Value:
    """What ``data`` adds to the next state, 32 bits.

    Parameters
    ----------
    data : Value
        1 to 8 octets, the first one in bits 7:0.

    Raises
    ------
    ValueError
        For any other width.
    """
    data = Value.cast(data)
    if len(data) not in range(8, 65, 8):
        raise ValueError(f"data is {len(data)} bits wide; it takes 8, 16, ... 64")
    return _product("data", len(data) // 8, data)


def crc32c_next(state: Value, data: Value) -> Value:
    """The state after the octets of ``data``, each bit one XOR reduction over state and data.

    Parameters
    ----------
    state : Value
        32 bits.
    data : Value
        1 to 8 octets, the first one in bits 7:0.

    Raises
    ------
    ValueError
        For any other width.
    """
    state, data = Value.cast(state), Value.cast(data)
    _check_state(state)
    if len(data) not in range(8, 65, 8):
        raise ValueError(f"data is {len(data)} bits wide; it takes 8, 16, ... 64")
    rows = zip(_rows("advance", len(data) // 8), _rows("data", len(data) // 8), strict=True)
    return Cat(
        Cat(*(state[i] for i in state_bits), *(data[i] for i in data_bits)).xor()
        for state_bits, data_bits in rows
    )


RESIDUES: tuple[int, ...] = tuple(
    step(INITIAL, crc32c(b"").to_bytes(4, "little") + bytes(zeros)) for zeros in range(9)
)
"""``RESIDUES[k]``: the state after any segment, its CRC as sent, and ``k`` zero octets."""
