"""The whole NIC once around: receive, send, an open message cut off by a soft reset, and again."""

import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from amaranth.sim import Simulator

from uwarp.contract import (
    CQ_ENTRY,
    CQE,
    GROUP_ENTRY,
    PORT_ENTRY,
    QP_ENTRY,
    RECV_WQE,
    REGION_ENTRY,
    SEND_WQE,
    Access,
    CloseTarget,
    Control,
    Counter,
    DeviceStatus,
    Doorbell,
    Filter,
    Parameters,
    QpState,
    Register,
    Status,
    Table,
    WqeFlag,
    doorbell_address,
    outcome_sum,
    port_rows,
)
from uwarp.device import build
from uwarp.wire import Opcode, Segment, UdpFrame, append_crc
from uwarp_hdl.nic import Nic
from uwarp_hdl.verilog import TOP

sys.path.insert(0, str(Path(__file__).parent))
from axi_model import AxiLite, AxiMemory, until, watchdog

PARAMETERS = Parameters(n_qp=4, n_region=4, n_tracker=2, n_closed=16, map_bits=1024, max_mtu=1500)
MAC, PEER_MAC = 0x020000000001, 0x020000000002
IPV4, PEER_IPV4 = 0x0A000001, 0x0A000002
IPV6, PEER_IPV6 = 0x20010DB8 << 96 | 1, 0x20010DB8 << 96 | 2
PORT, PEER_PORT = 4791, 1000
STAG, PEER_STAG = 2 << 8 | 0x55, 0x123
BASE_TO, BUFFER = 0x1000, 0x40000
RECV_RING, SEND_RING, GROUP_RING = 0x10000, 0x11000, 0x12000
WQES, NEIGHBOUR_WQES = 0x20000, 0x21000
GROUP_PORT, GROUP_IP = 5001, {4: 0xEF010203, 6: 0xFF0E << 112 | 0x010203}
MEMBERS = (3, 2)


def record(msn, to, mo, mlen, payload, **fields):
    """A Write-Record's frame; ``fields`` are those of UdpFrame that are to be others."""
    segment = Segment(
        opcode=Opcode.WRITE_RECORD,
        stag=STAG,
        to=to,
        msn=msn,
        mo=mo,
        mlen=mlen,
        payload=payload,
        last=mo + len(payload) == mlen,
    )
    usual = {
        "dest_mac": MAC,
        "source_mac": PEER_MAC,
        "source_ip": PEER_IPV4,
        "dest_ip": IPV4,
        "source_port": PEER_PORT,
        "dest_port": PORT,
        "payload": append_crc(segment.encode()),
    }
    return UdpFrame(**usual | fields).encode()


class Bench:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.dut = Nic(PARAMETERS)
        self.memory = AxiMemory(self.dut.dma, self.rng, stall=0.2)
        self.bus = AxiLite(self.dut.bus, self.rng, stall=0)
        self.sent = []

    async def mac_sink(self, ctx):
        frame = b""
        tx = self.dut.tx
        ctx.set(tx.ready, 1)
        while True:
            (beat,) = await until(ctx, tx.valid, tx.payload)
            frame += beat.data.to_bytes(8, "little")[: beat.count]
            if beat.last:
                self.sent.append(frame)
                frame = b""

    async def receive(self, ctx, frame, pause=None):
        """A frame from the MAC; before its word number 7 ``pause`` is awaited."""
        rx = self.dut.rx
        words = [frame[i : i + 8] for i in range(0, len(frame), 8)]
        for index, word in enumerate(words):
            if index == 7 and pause is not None:
                ctx.set(rx.valid, 0)
                await pause()
            beat = {"data": int.from_bytes(word, "little"), "count": len(word)}
            ctx.set(rx.payload, beat | {"last": index == len(words) - 1})
            ctx.set(rx.valid, 1)
            await until(ctx, rx.ready)
        ctx.set(rx.valid, 0)

    async def wait_idle(self, ctx):
        while await self.bus.read(ctx, Register.STATUS.address) & DeviceStatus.BUSY:
            pass

    async def configure(self, ctx):
        bus = self.bus
        for register, value in (
            (Register.MAC_LOW, MAC & 0xFFFFFFFF),
            (Register.MAC_HIGH, MAC >> 32),
            (Register.IPV4, IPV4),
            (Register.FILTER, Filter.MULTICAST),
            (Register.IRQ_ENABLE, 1),
            (Register.CONTROL, Control.ENABLE),
        ):
            await bus.write(ctx, register.address, value)
        for index in range(4):
            await bus.write(ctx, Register.IPV6.at(index), IPV6 >> 32 * index & 0xFFFFFFFF)
        await bus.command(ctx, Table.CQ, 0, CQ_ENTRY.to_int(valid=1, log2=2, addr=RECV_RING))
        await bus.command(ctx, Table.CQ, 1, CQ_ENTRY.to_int(valid=1, log2=2, addr=SEND_RING))
        await bus.command(ctx, Table.QP, 1, QP_ENTRY.to_int(state=QpState.RESET))
        queue_pair = QP_ENTRY.to_int(
            state=QpState.RTS,
            sq_log2=2,
            pd=7,
            udp_port=PORT,
            path_mtu=1500,
            send_cq=1,
            recv_cq=0,
            timeout=100,
            opcodes=0xFFFF,
            sq_addr=WQES >> 6,
            peer_port=PEER_PORT,
        )
        await bus.command(ctx, Table.QP, 1, queue_pair)
        # A neighbour that sends to it, from the port that it listens to.
        await bus.command(ctx, Table.QP, 2, QP_ENTRY.to_int(state=QpState.RESET))
        neighbour = QP_ENTRY.to_int(
            state=QpState.RTS,
            sq_log2=2,
            pd=7,
            udp_port=PEER_PORT,
            path_mtu=1500,
            send_cq=1,
            sq_addr=NEIGHBOUR_WQES >> 6,
        )
        await bus.command(ctx, Table.QP, 2, neighbour)
        region = REGION_ENTRY.to_int(
            valid=1,
            mapped=1,
            access=Access.REMOTE_WRITE | Access.LOCAL_WRITE,
            key=STAG & 0xFF,
            pd=7,
            granule_log2=6,
            base_to=BASE_TO,
            length=4096,
            dma_addr=BUFFER,
            map_addr=0x50000,
            map_base=64,
        )
        await bus.command(ctx, Table.REGION, STAG >> 8, region)
        port = PORT_ENTRY.to_int(valid=1, port=PORT, qpn=1)
        await bus.command(ctx, Table.PORT, port_rows(PORT, PARAMETERS.n_qp)[0], port)
        await bus.write(ctx, doorbell_address(Doorbell.CQ_ARM, 0), 0)

    async def single(self, ctx, version):
        """A Write-Record of one datagram, behind two frames that are not for the queue pair:
        memory, then a CQE, then the interrupt."""
        payload = self.rng.randbytes(100)
        fields, source = {}, 0xFFFF << 32 | PEER_IPV4
        if version == 6:
            source = PEER_IPV6
            fields = {"ip_version": 6, "source_ip": source, "dest_ip": IPV6}
            fields["vlan_tags"] = (0x8100_0005,)
        stranger = record(1, BASE_TO, 0, 100, payload, source_port=PEER_PORT + 1)
        await self.receive(ctx, stranger)
        await self.receive(ctx, record(1, BASE_TO, 0, 100, payload, dest_mac=1 << 40))
        await self.receive(ctx, record(1, BASE_TO + 0x45, 0, 100, payload, **fields))
        assert await self.bus.read(ctx, Register.OPEN_MESSAGES.address) > 0
        while not ctx.get(self.dut.irq):
            await ctx.tick()
        assert self.memory.read(BUFFER + 0x45, 100) == payload
        cqe = CQE.unpack(self.memory.read(RECV_RING, 64))
        assert (cqe.phase, cqe.opcode, cqe.valid, cqe.msn) == (1, 0xC, 100, 1)
        assert (cqe.source_ip, cqe.source_port) == (source, PEER_PORT)
        assert await self.bus.read(ctx, Register.OPEN_MESSAGES.address) == 0
        assert await self.bus.read(ctx, Register.IRQ_STATUS.at(0)) == 1

    async def send(self, ctx):
        """A Write-Record sent, from the doorbell to its CQE."""
        payload = self.rng.randbytes(150)
        self.memory.write(BUFFER + 3, payload)
        wqe = SEND_WQE.pack(
            opcode=Opcode.WRITE_RECORD,
            flags=WqeFlag.SIGNALED,
            num_sge=1,
            length=150,
            remote_to=0x99,
            remote_stag=PEER_STAG,
            dest_ip=PEER_IPV4,
            dest_port=PEER_PORT,
            dest_mac=PEER_MAC,
            hop_limit=9,
            sge_addr=BASE_TO + 3,
            sge_length=150,
            sge_lkey=STAG,
        )
        self.memory.write(WQES, wqe)
        await self.bus.write(ctx, doorbell_address(Doorbell.SQ_PRODUCER, 1), 1)
        while not self.memory.read(SEND_RING, 64)[63]:
            await ctx.tick()
        segment = Segment(
            opcode=Opcode.WRITE_RECORD,
            stag=PEER_STAG,
            to=0x99,
            msn=1,
            mlen=150,
            payload=payload,
        )
        frame = UdpFrame(
            dest_mac=PEER_MAC,
            source_mac=MAC,
            source_ip=IPV4,
            dest_ip=PEER_IPV4,
            source_port=PORT,
            dest_port=PEER_PORT,
            hop_limit=9,
            payload=append_crc(segment.encode()),
        )
        assert self.sent == [frame.encode()]

    async def close(self, ctx):
        """MESSAGES_CLOSE right behind an open message's frame: its CQE is there when it is done."""
        await self.receive(ctx, record(5, BASE_TO + 0x400, 64, 500, self.rng.randbytes(64)))
        await self.bus.write(ctx, Register.MESSAGES_CLOSE.address, CloseTarget.QP << 16 | 1)
        while await self.bus.read(ctx, Register.MESSAGES_CLOSE.address):
            pass
        cqe = CQE.unpack(self.memory.read(RECV_RING + 64, 64))
        assert (cqe.phase, cqe.status, cqe.valid, cqe.msn) == (1, Status.PARTIAL, 64, 5)
        assert await self.bus.read(ctx, Register.OPEN_MESSAGES.address) == 0

    async def loop(self, ctx):
        """A Write-Record to the own MAC address: memory, both CQEs, and nothing on the wire."""
        payload = self.rng.randbytes(200)
        self.memory.write(BUFFER + 3, payload)
        wqe = SEND_WQE.pack(
            opcode=Opcode.WRITE_RECORD,
            flags=WqeFlag.SIGNALED,
            num_sge=1,
            length=200,
            remote_to=BASE_TO + 0x600,
            remote_stag=STAG,
            dest_ip=IPV4,
            dest_port=PORT,
            dest_mac=MAC,
            hop_limit=9,
            sge_addr=BASE_TO + 3,
            sge_length=200,
            sge_lkey=STAG,
        )
        self.memory.write(NEIGHBOUR_WQES, wqe)
        await self.bus.write(ctx, doorbell_address(Doorbell.SQ_PRODUCER, 2), 1)
        while not self.memory.read(SEND_RING + 64, 64)[63]:
            await ctx.tick()
        # From here on OPEN_MESSAGES tells of it until its CQE is there.
        while await self.bus.read(ctx, Register.OPEN_MESSAGES.address):
            pass
        cqe = CQE.unpack(self.memory.read(RECV_RING + 128, 64))
        assert (cqe.phase, cqe.opcode, cqe.valid, cqe.msn) == (1, 0xC, 200, 1)
        assert (cqe.source_ip, cqe.source_port) == (0xFFFF << 32 | IPV4, PEER_PORT)
        assert self.memory.read(BUFFER + 0x600, 200) == payload
        assert len(self.sent) == 1, "it went to the wire"

    async def group(self, ctx, version):
        """A Send to a group of two queue pairs, and one to nobody's group."""
        bus = self.bus
        await bus.command(ctx, Table.CQ, 2, CQ_ENTRY.to_int(valid=1, log2=2, addr=GROUP_RING))
        for index, qpn in enumerate(MEMBERS):
            await bus.command(ctx, Table.QP, qpn, QP_ENTRY.to_int(state=QpState.RESET))
            queue_pair = QP_ENTRY.to_int(
                state=QpState.RTR,
                rq_log2=1,
                pd=7,
                udp_port=PORT + qpn,
                path_mtu=1500,
                recv_cq=2,
                timeout=100,
                opcodes=0xFFFF,
                rq_addr=(WQES + 0x1000 * qpn) >> 6,
            )
            await bus.command(ctx, Table.QP, qpn, queue_pair)
            place = BASE_TO + 0x800 + 0x100 * index
            wqe = RECV_WQE.pack(sge0_addr=place, sge0_length=200, sge0_lkey=STAG)
            self.memory.write(WQES + 0x1000 * qpn, wqe)
            await bus.write(ctx, doorbell_address(Doorbell.RQ_PRODUCER, qpn), 1)
        port = PORT_ENTRY.to_int(valid=1, group=1, port=GROUP_PORT, qpn=1)
        await bus.command(ctx, Table.PORT, port_rows(GROUP_PORT, PARAMETERS.n_qp)[2] + 8, port)
        address = GROUP_IP[version] | (0xFFFF << 32 if version == 4 else 0)
        members = {f"member{index}": qpn for index, qpn in enumerate(MEMBERS)}
        entry = GROUP_ENTRY.to_int(count=len(MEMBERS), address=address, **members)
        await bus.command(ctx, Table.GROUP, 1, entry)

        payload = self.rng.randbytes(187)
        segment = Segment(opcode=Opcode.SEND, msn=1, mlen=187, payload=payload, last=True)
        frame = UdpFrame(
            ip_version=version,
            dest_mac=0x01005E010203,
            source_mac=PEER_MAC,
            source_ip={4: PEER_IPV4, 6: PEER_IPV6}[version],
            dest_ip=GROUP_IP[version],
            source_port=PEER_PORT,
            dest_port=GROUP_PORT,
            payload=append_crc(segment.encode()),
        )
        await self.receive(ctx, frame.encode())
        await self.receive(ctx, replace(frame, dest_ip=GROUP_IP[version] + 1).encode())
        last = GROUP_RING + 64 * (len(MEMBERS) - 1)
        while not self.memory.read(last, 64)[63]:
            await ctx.tick()
        for index, qpn in enumerate(MEMBERS):
            cqe = CQE.unpack(self.memory.read(GROUP_RING + 64 * index, 64))
            assert (cqe.qpn, cqe.opcode, cqe.status, cqe.valid) == (qpn, 0x3, 0, 187)
            place = BUFFER + 0x800 + 0x100 * index
            assert self.memory.read(place, 200) == payload + bytes(13)
        # The write of the last CQE may not have been answered.
        while await bus.read(ctx, Register.OPEN_MESSAGES.address):
            pass

    async def cut_off(self, ctx):
        """A soft reset with a message open, and in the middle of its next frame."""
        payload = self.rng.randbytes(128)
        await self.receive(ctx, record(2, BASE_TO + 0x100, 0, 500, payload))
        while self.memory.read(BUFFER + 0x100, 128) != payload:
            await ctx.tick()
        await ctx.tick().repeat(100)
        assert await self.bus.read(ctx, Register.OPEN_MESSAGES.address) == 1
        counts = {item: await self.bus.read_counter(ctx, item) for item in Counter}
        assert {item for item in Counter if counts[item]} == {
            Counter.RX_FRAMES,
            Counter.RX_PLACED,
            Counter.RX_MANAGEMENT,
            Counter.DROP_PEER,
            Counter.TX_FRAMES,
            Counter.CQES,
            Counter.MESSAGES_PARTIAL,
            Counter.RX_COPIES,
        }
        assert (counts[Counter.RX_PLACED], counts[Counter.CQES]) == (6, 7)
        assert (counts[Counter.RX_MANAGEMENT], counts[Counter.DROP_PEER]) == (2, 1)
        assert (counts[Counter.RX_FRAMES], counts[Counter.RX_COPIES]) == (8, 1)
        assert counts[Counter.TX_FRAMES] == 2
        assert outcome_sum(counts) == 8

        async def reset():
            await self.bus.write(ctx, Register.CONTROL.address, Control.ENABLE | Control.RESET)
            assert await self.bus.read(ctx, Register.STATUS.address) == DeviceStatus.BUSY

        second = record(2, BASE_TO + 0x180, 128, 500, payload)
        await self.receive(ctx, second, pause=reset)
        await self.wait_idle(ctx)
        await self.receive(ctx, second)
        for register in (
            Register.CONTROL,
            Register.IPV4,
            Register.IPV6,
            Register.FILTER,
            Register.OPEN_MESSAGES,
        ):
            assert await self.bus.read(ctx, register.address) == 0, register.name
        for item in Counter:
            assert await self.bus.read_counter(ctx, item) == 0, item.name
        assert not ctx.get(self.dut.irq)
        assert self.memory.read(BUFFER + 0x180, 128) == bytes(128), "a late write"


@pytest.mark.soak
def test_once_around():
    seed = 1
    bench = Bench(seed)

    async def run(ctx):
        for version in (4, 6):
            await bench.wait_idle(ctx)
            await bench.configure(ctx)
            await bench.single(ctx, version)
            await bench.send(ctx)
            await bench.close(ctx)
            await bench.loop(ctx)
            await bench.group(ctx, version)
            await bench.cut_off(ctx)
            bench.sent.clear()
            bench.memory.octets.clear()

    sim = Simulator(bench.dut)
    sim.add_clock(6.4e-9)
    sim.add_testbench(run)
    sim.add_testbench(bench.mac_sink, background=True)
    bench.memory.add_to(sim, write=True, read=True)
    sim.add_testbench(watchdog(40000), background=True)
    sim.run()


def test_verilog_ports():
    """The top module's ports have the names and widths that harness and boards rely on."""
    text = build._verilog(Parameters()).read_text()
    top = text[text.index(f"module {TOP}(") :]
    top = top[: top.index("endmodule")]
    ports = {
        name: int(high or 0) + 1
        for high, name in re.findall(r"^  (?:input|output) (?:\[(\d+):0\] )?(\w+);", top, re.M)
    }
    for name, width in {
        "clk": 1,
        "rst": 1,
        "rx__payload": 70,
        "rx__valid": 1,
        "rx__ready": 1,
        "tx__payload": 70,
        "bus__awaddr": 23,
        "bus__rdata": 32,
        "dma__awaddr": 64,
        "dma__wdata": 64,
        "dma__rresp": 2,
        "irq": 1,
    }.items():
        assert ports.get(name) == width, f"{name} is {ports.get(name)} wide, not {width}"
    assert "/" not in "".join(re.findall(r'"(.*?)"', text)), "a path of the machine"
