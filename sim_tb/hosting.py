"""Scenarios of the host's side: interrupts, resets, disabled and broken memory, order of writes."""

import cocotb
from cocotb.triggers import RisingEdge

from uwarp.contract import (
    TABLES,
    Control,
    Counter,
    Doorbell,
    QpState,
    Register,
    Status,
    Table,
    doorbell_address,
)
from uwarp.wire import Opcode

from .receiving import receive_wqe
from .sending import request
from .stage import BENCH, MEMORY_BASE, MEMORY_SIZE, PD, Stage

__all__ = ["broken_memory", "identity", "interrupts", "order_of_writes", "resets"]


async def identity(stage: Stage) -> None:
    """What software reads to know the device; registers that keep what is written to them."""
    for register in Register:
        if register not in (Register.TIME_LOW, Register.TIME_HIGH):
            await stage.read32(register.address)
    assert await stage.read32(Register.N_QP.address) == BENCH.n_qp
    for word in range(TABLES[Table.QP].size // 4):  # the longest row
        await stage.read32(Register.TABLE_DATA.at(word))
    for word in range(4):
        await stage.read32(Register.IPV6.at(word))
    await stage.read32(0x7F_FFFC)
    await stage.write32(0x7F_FFFC, 1)
    await stage.write_row(Table.QP, BENCH.n_qp, state=QpState.RTS)  # beyond the table
    await stage.write_row(Table.REGION, BENCH.n_region, valid=1)
    await stage.write32(0x10_0000 + BENCH.n_qp * 0x1000, 7)  # no such doorbell page
    time = await stage.nic.read32(Register.TIME_LOW.address)
    await stage.wait(10)
    assert await stage.nic.read32(Register.TIME_LOW.address) >= time + 10
    assert await stage.read32(Register.TIME_HIGH.address) == 0
    await stage.check()


async def interrupts(stage: Stage) -> None:
    """Armed, a queue fires once; the line follows status and enable."""

    async def one_message() -> None:
        (segment,) = stage.record(stage.plain, 0, 10)
        await stage.deliver([stage.frame(segment)])

    async def fired() -> bool:
        await stage.settle()
        assert stage.nic.irq == stage.model.irq
        return bool(await stage.read32(Register.IRQ_STATUS.address))

    await stage.write_register(Register.IRQ_ENABLE, 1)
    await one_message()
    assert not await fired()
    await stage.arm(1)  # there is an entry that was not seen
    assert await fired() and stage.nic.irq
    await stage.check()
    await stage.write_register(Register.IRQ_STATUS, 1 << 3)  # another CQ's bit
    assert await fired()
    await stage.write_register(Register.IRQ_STATUS, 1 << 1)
    assert not await fired()
    await one_message()  # fired once, not armed again
    assert not await fired()
    await stage.check()
    await stage.arm(1)
    assert not await fired()
    await stage.write_register(Register.IRQ_ENABLE, 0)
    await one_message()
    assert await fired() and not stage.nic.irq
    await stage.write_register(Register.IRQ_ENABLE, 1)
    assert await fired() and stage.nic.irq
    await stage.post_send(5, request(stage, Opcode.WRITE, 1))
    await stage.check()
    await stage.arm(5)
    await stage.post_send(5, request(stage, Opcode.WRITE, 1))
    await stage.check()
    assert await stage.read32(Register.IRQ_STATUS.address) == 1 << 1 | 1 << 5


async def resets(stage: Stage) -> None:
    """P32: disabled; a QP taken through RESET; soft resets amid traffic; all works after."""
    (segment,) = stage.record(stage.plain, 0, 10)
    await stage.write_register(Register.CONTROL, 0)
    await stage.deliver([stage.frame(segment)])
    await stage.post_send(5, request(stage, Opcode.SEND, 10))
    await stage.nic.delivered()
    await stage.wait(200)
    assert await stage.read32(Register.CONTROL.address) == 0
    assert (await stage.counters(stage.nic))[Counter.RX_FRAMES] == 0
    await stage.write_register(Register.CONTROL, Control.ENABLE)
    await stage.deliver([stage.frame(segment)])
    await stage.check()

    # Through RESET a QP begins anew: indices and MSN.
    await stage.post_send(5, request(stage, Opcode.WRITE_RECORD, 10))
    await stage.check()
    row = {"pd": PD, "timeout": 9, "path_mtu": 1500, "send_cq": 5, "udp_port": 7}
    await stage.create_qp(5, state=QpState.RTS, **row)
    await stage.post_send(5, request(stage, Opcode.WRITE_RECORD, 10))
    completions = (await stage.check())[5]
    assert [entry.msn for entry in completions] == [1]

    for _ in range(3):
        message = stage.record(stage.mapped, stage.rng.randrange(64), 20000)
        await stage.post_receive(1, *(receive_wqe(stage.local, 0, 100) for _ in range(4)))
        await stage.post_send(6, request(stage, Opcode.WRITE_RECORD, 40000))
        for item in (*message[:-1], stage.send(90), stage.send(4)):
            stage.receive(stage.frame(item))
        await stage.nic.wait(stage.rng.randrange(2500))
        await stage.reset()
        await stage.nic.delivered()
        await stage.set_up()
        (segment,) = stage.record(stage.mapped, 5, 500)
        whole = stage.record(stage.mapped, 5000, 3000)
        await stage.deliver([stage.frame(item) for item in (segment, *whole)])
        await stage.post_send(6, request(stage, Opcode.WRITE_RECORD, 12000))
        completions = await stage.check()
        assert [entry.status for entry in completions[1]] == [Status.SUCCESS] * 2
        assert len(completions[6]) == 1


async def broken_memory(stage: Stage) -> None:
    """Rings that no memory answers: an error for each WQE, and the NIC goes on."""
    beyond = MEMORY_BASE + MEMORY_SIZE
    row = {"pd": PD, "timeout": 99, "path_mtu": 1500, "udp_port": 7, "opcodes": 0xFFFF}
    rings = {"sq_log2": 4, "rq_log2": 4, "sq_addr": beyond >> 6, "rq_addr": beyond >> 6}
    for state in (QpState.RESET, QpState.RTS):
        await stage.write_row(Table.QP, 7, **row, **rings, state=state, send_cq=5, recv_cq=1)
    await stage.open_port(stage.port(7), 7)
    await stage.write32(doorbell_address(Doorbell.SQ_PRODUCER, 7), 3)
    assert [entry.status for entry in (await stage.check())[5]] == [Status.LOC_QP_OP_ERR] * 3
    # One by one: WQEs that are there together may be read together, and fail as one burst.
    for posted in (1, 2):
        await stage.write32(doorbell_address(Doorbell.RQ_PRODUCER, 7), posted)
        await stage.deliver([stage.frame(stage.send(9), 7)])
        assert [entry.status for entry in (await stage.check())[1]] == [Status.LOC_PROT_ERR]
    await stage.deliver([stage.frame(stage.send(9), 7)])
    await stage.post_send(5, request(stage, Opcode.WRITE_RECORD, 100))
    assert len((await stage.check())[5]) == 1


async def order_of_writes(stage: Stage) -> None:
    """P23: payload is answered before the map is written, the map before the CQE (4.5)."""
    dut = stage.nic._dut
    events: list[tuple[str, int]] = []

    async def watch() -> None:
        edge = RisingEdge(dut.clk)
        waiting: list[int] = []
        while True:
            await edge
            if dut.dma__awvalid.value and dut.dma__awready.value:
                address = int(dut.dma__awaddr.value)
                events.append(("asked", address))
                waiting.append(address)
            if dut.dma__bvalid.value and dut.dma__bready.value:
                events.append(("answered", waiting.pop(0)))

    watcher = cocotb.start_soon(watch())
    for octets in (9000, 700, 3):
        events.clear()
        message = stage.record(stage.mapped, 64 * stage.rng.randrange(100), octets)
        await stage.deliver([stage.frame(item) for item in message])
        assert len((await stage.check())[1]) == 1
        payload = range(stage.mapped.dma & ~4095, stage.mapped.dma + stage.mapped.length)
        ring = stage.queue_range(1)
        kinds = [
            (what, "payload" if address in payload else "cqe" if address in ring else "map")
            for what, address in events
        ]
        assert ("asked", "cqe") in kinds and ("asked", "payload") in kinds
        assert octets < 9000 or ("asked", "map") in kinds
        last_payload = max(n for n, kind in enumerate(kinds) if kind == ("answered", "payload"))
        first_cqe = kinds.index(("asked", "cqe"))
        assert last_payload < first_cqe, f"the CQE overtakes payload: {kinds}"
        maps = [n for n, kind in enumerate(kinds) if kind[1] == "map"]
        assert all(last_payload < n < first_cqe for n in maps), f"the map is out of order: {kinds}"
    watcher.cancel()
