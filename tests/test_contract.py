"""The contract's structures, and the files made from it."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uwarp.contract import (
    CQ_ENTRY,
    CQE,
    PORT_ENTRY,
    QP_ENTRY,
    RECV_WQE,
    REGION_ENTRY,
    REGISTERS,
    SEND_WQE,
    Counter,
    Doorbell,
    Register,
    port_rows,
)
from uwarp.contract.generate import c_header, main, register_reference

STRUCTURES = (SEND_WQE, RECV_WQE, CQE, QP_ENTRY, REGION_ENTRY, CQ_ENTRY, PORT_ENTRY)
ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda item: item.name)
def test_round_trip(structure):
    @given(st.data())
    def check(data):
        values = {
            item.name: data.draw(st.integers(0, (1 << item.width) - 1), item.name)
            for item in structure.named_fields
        }
        octets = structure.pack(**values)
        assert len(octets) == structure.size
        assert vars(structure.unpack(octets)) == values

    check()


def test_values_that_do_not_fit():
    with pytest.raises(ValueError, match=r"cq_entry\.log2 is 256; it takes 0 to 255"):
        CQ_ENTRY.pack(log2=256)
    with pytest.raises(ValueError, match="no field 'phase'"):
        CQ_ENTRY.pack(phase=1)
    with pytest.raises(ValueError, match="takes 16 octets, not 15"):
        CQ_ENTRY.unpack(bytes(15))
    with pytest.raises(IndexError):
        Register.IRQ_STATUS.at(32)


def test_registers_do_not_overlap():
    seen = {}
    for register in REGISTERS:
        for index in range(register.value.count):
            address = register.at(index)
            assert address % 4 == 0
            assert address not in seen, f"{register.name} lies on {seen[address]}"
            seen[address] = register.name
    assert max(seen) < 0x1000
    assert len(Counter) <= Register.COUNTERS_LOW.value.count


def test_port_rows():
    """The four places of a port are rows, and each bank uses its rows evenly."""
    rows = {port: port_rows(port, 64) for port in range(65536)}
    assert all(0 <= row < 64 for places in rows.values() for row in places)
    for bank in range(4):
        counts = [0] * 64
        for places in rows.values():
            counts[places[bank]] += 1
        assert counts == [1024] * 64, f"bank {bank} does not use its rows evenly"


def test_reference_is_fresh():
    """docs/registers.md is what the contract makes."""
    path = ROOT / "docs" / "registers.md"
    assert path.read_text(encoding="utf-8") == register_reference(), (
        "run: python -m uwarp.contract registers --output docs/registers.md"
    )


def test_reference_is_complete():
    text = register_reference()
    fields = [item.name for structure in STRUCTURES for item in structure.named_fields]
    for name in (*(r.name for r in REGISTERS), *Counter.__members__, *Doorbell.__members__):
        assert f"`{name}`" in text, name
    for name in fields:
        assert f"`{name}`" in text, name


def test_command_line(tmp_path, capsys):
    path = tmp_path / "uwarp_contract.h"
    assert main(["header", "--check", str(path)]) == 1
    assert "is stale" in capsys.readouterr().err
    assert main(["header", "--output", str(path)]) == 0
    assert main(["header", "--check", str(path)]) == 0
    path.write_text(path.read_text() + " ")
    assert main(["header", "--check", str(path)]) == 1
    assert main(["registers"]) == 0
    assert capsys.readouterr().out == register_reference()


def compiler(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}")
    return found


@pytest.mark.parametrize(
    ("name", "options"),
    (("cc", ("-x", "c", "-std=c99", "-pedantic")), ("g++", ("-x", "c++", "-std=c++11"))),
)
def test_header_compiles(tmp_path, name, options):
    (tmp_path / "uwarp_contract.h").write_text(c_header())
    (tmp_path / "use").write_text('#include "uwarp_contract.h"\n#include "uwarp_contract.h"\n')
    command = [compiler(name), *options, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "use"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_header_packs_as_python(tmp_path):
    """The header's accessors and ``Structure.pack`` make the same octets, and read them back."""
    seed = 6
    rng = random.Random(seed)
    program = ["#include <stdio.h>", '#include "uwarp_contract.h"', "int main(void) {"]
    wanted = []
    for structure in STRUCTURES:
        for _ in range(4):
            values = {
                item.name: rng.getrandbits(min(64, item.width)) for item in structure.named_fields
            }
            wanted.append(structure.pack(**values).hex() + " 0")
            program.append(f"{{ struct uwarp_{structure.name} s; unsigned wrong = 0, i;")
            # Whatever was there before must go.
            program.append(f"for (i = 0; i < {structure.size // 4}; i++) s.words[i] = ~0u;")
            for item in structure.fields:
                if item.is_padding:
                    continue
                field = f"UWARP_{structure.name}_{item.name}".upper()
                program.append(f"UWARP_SET(&s, {field}, {values[item.name]:#x}ull);")
                program.append(f"wrong += UWARP_GET(&s, {field}) != {values[item.name]:#x}ull;")
            position = 0
            for item in structure.fields:
                if item.is_padding:
                    program.append(f"uwarp_set(s.words, {position}, {item.width}, 0);")
                position += item.width
            program.append(f"for (i = 0; i < {structure.size}; i++)")
            program.append('printf("%02x", s.words[i / 4] >> 8 * (i % 4) & 0xffu);')
            program.append('printf(" %u\\n", wrong); }')
    program.append("return 0; }")
    (tmp_path / "uwarp_contract.h").write_text(c_header())
    (tmp_path / "pack.c").write_text("\n".join(program))
    command = [compiler("cc"), "-std=c99", "-Wall", "-Werror", "-o", "pack", "pack.c"]
    build = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert build.returncode == 0, build.stderr
    run = subprocess.run(["./pack"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:-1] == wanted, f"seed {seed}"
