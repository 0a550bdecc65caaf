"""The wire's impairments and the memory bounds: the rules, and Python and C++ held together."""

from __future__ import annotations

import ctypes
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from uwarp.device import Fate, Impairments
from uwarp.device.build import MissingToolError, parts_library
from uwarp.device.impair import Direction, SplitMix64, thresholds
from uwarp.device.memory import FIRST, PAGE, AddressSpace

RELEASE = (1 << 64) - 1
U64 = ctypes.c_uint64


@pytest.fixture(scope="module")
def parts() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(parts_library()))
    except MissingToolError as error:
        pytest.skip(str(error))
    library.uwarp_direction_new.restype = ctypes.c_void_p
    library.uwarp_direction_new.argtypes = [U64] * 5
    library.uwarp_direction_delete.argtypes = [ctypes.c_void_p]
    library.uwarp_direction_offer.argtypes = [ctypes.c_void_p, U64, ctypes.c_void_p]
    library.uwarp_iommu_new.restype = ctypes.c_void_p
    library.uwarp_iommu_delete.argtypes = [ctypes.c_void_p]
    library.uwarp_iommu_map.argtypes = [ctypes.c_void_p, U64, U64, ctypes.c_void_p, ctypes.c_int]
    library.uwarp_iommu_unmap.argtypes = [ctypes.c_void_p, U64]
    library.uwarp_iommu_read.argtypes = [ctypes.c_void_p, U64, ctypes.c_void_p]
    library.uwarp_iommu_write.argtypes = [
        ctypes.c_void_p,
        U64,
        U64,
        ctypes.c_uint,
        ctypes.c_void_p,
    ]
    return library


def test_splitmix64_known_sequence() -> None:
    draws = SplitMix64(1234567)
    assert [draws.draw() for _ in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_perfect_wire_delivers_in_order() -> None:
    wire: Direction[int] = Direction(Impairments(), 0)
    assert [wire.offer(n) for n in range(100)] == [[(Fate.DELIVERED, n)] for n in range(100)]
    assert not wire.holds


def test_everything_lost() -> None:
    wire: Direction[int] = Direction(Impairments(loss=1.0, duplicate=1.0, reorder=1.0), 0)
    assert [wire.offer(n) for n in range(100)] == [[(Fate.DROPPED, n)] for n in range(100)]


def test_everything_duplicated() -> None:
    wire: Direction[int] = Direction(Impairments(duplicate=1.0), 1)
    for n in range(100):
        assert wire.offer(n) == [(Fate.DELIVERED, n), (Fate.DUPLICATE, n)]


@pytest.mark.parametrize("seed", range(4))
def test_nothing_vanishes_and_nothing_falls_far_behind(seed: int) -> None:
    wire: Direction[int] = Direction(
        Impairments(loss=0.1, duplicate=0.1, reorder=0.5, seed=seed), 0
    )
    fates: Counter[tuple[Fate, int]] = Counter()
    passed = 0  # frames that were not lost
    place: dict[int, int] = {}
    late: list[int] = []
    for n in range(5000):
        outcome = wire.offer(n)
        if (Fate.DROPPED, n) not in outcome:
            place[n] = passed
            passed += 1
        for fate, item in outcome:
            fates[fate, item] += 1
            if fate is Fate.DELIVERED:
                late.append(passed - 1 - place[item])
    for fate, item in wire.release():
        fates[fate, item] += 1
    assert not wire.holds
    assert set(late) == set(range(9)), f"seed {seed}"
    assert max(fates.values()) == 1, f"seed {seed}"
    for n in range(5000):
        assert (fates[Fate.DELIVERED, n] + fates[Fate.DROPPED, n]) == 1, f"seed {seed}, frame {n}"
        assert fates[Fate.DUPLICATE, n] <= fates[Fate.DELIVERED, n], f"seed {seed}, frame {n}"
    lost = sum(fates[Fate.DROPPED, n] for n in range(5000))
    assert 400 < lost < 600, f"seed {seed}"


def test_directions_and_seeds_differ() -> None:
    def lost(seed: int, source: int) -> list[int]:
        wire: Direction[int] = Direction(Impairments(loss=0.5, seed=seed), source)
        return [n for n in range(200) if wire.offer(n)[0][0] is Fate.DROPPED]

    patterns = {tuple(lost(seed, source)) for seed in range(10) for source in (0, 1)}
    assert len(patterns) == 20
    assert lost(3, 1) == lost(3, 1)


@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize("seed", [0, 1, 2, 12345, -1, 1 << 63, (1 << 64) + 7])
@pytest.mark.parametrize(
    "probabilities",
    [(0.1, 0.05, 0.2), (0.0, 0.0, 1.0), (0.5, 0.5, 0.5), (1e-3, 0.0, 0.0), (0.3, 1.0, 0.9)],
)
def test_python_and_cxx_agree(
    parts: ctypes.CDLL, probabilities: tuple[float, float, float], seed: int, source: int
) -> None:
    impairments = Impairments(*probabilities, seed=seed)
    wire: Direction[int] = Direction(impairments, source)
    other = parts.uwarp_direction_new(*thresholds(impairments), seed & RELEASE, source)
    found = (U64 * 128)()
    try:
        for n in range(3000):
            idle = n % 701 == 700
            count = parts.uwarp_direction_offer(other, RELEASE if idle else n, found)
            theirs = [(Fate(found[2 * i]), found[2 * i + 1]) for i in range(count)]
            ours = wire.release() if idle else wire.offer(n)
            assert theirs == ours, f"seed {seed}, source {source}, frame {n}"
    finally:
        parts.uwarp_direction_delete(other)


class Iommu:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.handle = library.uwarp_iommu_new()

    def map(self, start: int, length: int, memory: object, writable: bool = True) -> bool:
        address = ctypes.addressof(memory)  # type: ignore[arg-type]
        return bool(self.library.uwarp_iommu_map(self.handle, start, length, address, writable))

    def unmap(self, start: int) -> bool:
        return bool(self.library.uwarp_iommu_unmap(self.handle, start))

    def read(self, address: int) -> bytes | None:
        word = U64()
        good = self.library.uwarp_iommu_read(self.handle, address, ctypes.byref(word))
        return word.value.to_bytes(8, "little") if good else None

    def write(self, address: int, octets: bytes, strobe: int) -> tuple[int, int] | None:
        fault = U64()
        kind = self.library.uwarp_iommu_write(
            self.handle, address, int.from_bytes(octets, "little"), strobe, ctypes.byref(fault)
        )
        return None if kind < 0 else (kind, fault.value)


@pytest.fixture
def iommu(parts: ctypes.CDLL) -> Iterator[Iommu]:
    result = Iommu(parts)
    yield result
    parts.uwarp_iommu_delete(result.handle)


def test_iommu_reads_what_is_mapped(iommu: Iommu) -> None:
    memory = ctypes.create_string_buffer(bytes(range(1, 101)), 100)
    assert iommu.map(0x1_0000_0003, 100, memory)
    assert iommu.read(0x1_0000_0000) == b"\xee\xee\xee\x01\x02\x03\x04\x05"
    assert iommu.read(0x1_0000_0008) == bytes(range(6, 14))
    assert iommu.read(0x1_0000_0060) == bytes([94, 95, 96, 97, 98, 99, 100, 0xEE])
    assert iommu.read(0x1_0000_0068) is None
    assert iommu.read(0x0_FFFF_FFF8) is None
    assert iommu.read(0x0000_0008) is None
    assert iommu.unmap(0x1_0000_0003)
    assert not iommu.unmap(0x1_0000_0003)
    assert iommu.read(0x1_0000_0008) is None


def test_iommu_writes_only_within_bounds(iommu: Iommu) -> None:
    memory = ctypes.create_string_buffer(32)
    assert iommu.map(0x1004, 8, ctypes.c_char.from_buffer(memory, 12))
    word = b"abcdefgh"
    assert iommu.write(0x1000, word, 0xF0) is None
    assert iommu.write(0x1008, word, 0x07) is None
    assert memory.raw == bytes(12) + b"efghabc" + bytes(13)
    assert iommu.write(0x1008, word, 0xFF) == (1, 0x100C)
    assert memory.raw == bytes(12) + b"efghabcd" + bytes(12)
    assert iommu.write(0x1000, word, 0x0F) == (1, 0x1000)
    assert iommu.write(0x1010, word, 0x00) is None


def test_iommu_read_only_mappings(iommu: Iommu) -> None:
    memory = ctypes.create_string_buffer(b"01234567", 8)
    assert iommu.map(0x1000, 8, memory, writable=False)
    assert iommu.read(0x1000) == b"01234567"
    assert iommu.write(0x1000, b"abcdefgh", 0xFF) == (2, 0x1000)
    assert iommu.write(0x1000, b"abcdefgh", 0x80) == (2, 0x1007)
    assert memory.raw == b"01234567"


def test_iommu_refuses_overlaps(iommu: Iommu) -> None:
    memory = ctypes.create_string_buffer(0x100)
    assert iommu.map(0x1000, 0x10, memory)
    assert iommu.map(0x1020, 0x10, memory)
    for start, length in [
        (0xFF1, 0x10),
        (0x100F, 1),
        (0x1008, 0x20),
        (0x1010, 0x11),
        (0xF00, 0x200),
    ]:
        assert not iommu.map(start, length, memory), hex(start)
    assert iommu.map(0x1010, 0x10, memory)
    assert not iommu.map((1 << 64) - 8, 9, memory)
    assert iommu.map((1 << 64) - 8, 8, memory)
    assert iommu.read((1 << 64) - 8) == bytes(8)


@pytest.mark.parametrize("seed", range(3))
def test_iommu_random_ranges(iommu: Iommu, seed: int) -> None:
    rng = random.Random(seed)
    memory = ctypes.create_string_buffer(rng.randbytes(4096), 4096)
    octets: dict[int, int] = {}
    for _ in range(40):
        start, length = rng.randrange(2000), rng.randrange(1, 60)
        offset = rng.randrange(4096 - length)
        free = not any(start + i in octets for i in range(length))
        view = ctypes.c_char.from_buffer(memory, offset)
        assert iommu.map(start, length, view) == free, f"seed {seed}"
        if free:
            octets |= {start + i: memory.raw[offset + i] for i in range(length)}
    for address in range(0, 2080, 8):
        inside = any(address + i in octets for i in range(8))
        expected = bytes(octets.get(address + i, 0xEE) for i in range(8)) if inside else None
        assert iommu.read(address) == expected, f"seed {seed}, address {address}"


def test_address_space_bounds() -> None:
    memory = ctypes.create_string_buffer(b"0123456789", 10)
    space = AddressSpace()
    first = space.map(ctypes.addressof(memory), 10, True)
    second = space.map(ctypes.addressof(memory), 4, False)
    assert first.dma_address >= FIRST
    assert first.dma_address != ctypes.addressof(memory)
    assert first.dma_address % PAGE == ctypes.addressof(memory) % PAGE
    assert second.dma_address >= first.end + PAGE
    start = first.dma_address
    assert space.read(start, 10) == b"0123456789"
    assert space.read(start + 9, 1) == b"9"
    assert space.read(start + 9, 2) is None
    assert space.read(start - 1, 2) is None
    assert space.write(start + 8, b"xy")
    assert not space.write(start + 8, b"xyz")
    assert not space.write(second.dma_address, b"x")
    assert memory.raw == b"01234567xy"
    space.unmap(start)
    assert space.read(start, 1) is None
    with pytest.raises(ValueError, match="is not the DMA address of a mapping"):
        space.unmap(start)
    assert space.map(ctypes.addressof(memory), 10, True).dma_address > second.dma_address


@pytest.mark.parametrize("probability", [-0.1, 1.1])
def test_impairments_refuse_what_is_no_probability(probability: float) -> None:
    with pytest.raises(ValueError, match=r"takes a probability from 0 to 1"):
        Impairments(reorder=probability)
