"""Scenarios of multicast groups, of broadcast, and of frames to the port's own address."""

from uwarp.contract import Counter, Filter, QpState, Register, Table, WqeFlag, port_rows
from uwarp.wire import Opcode, mapped_ipv4

from .receiving import receive_wqe
from .sending import request
from .stage import ANY_OPCODE, IP, LONG, MAC, PD, PEER_IPV6, Stage

__all__ = [
    "GROUP6_MAC",
    "GROUP_IP",
    "GROUP_IPV6",
    "GROUP_MAC",
    "create_group",
    "groups",
    "looped",
    "looped_groups",
]

GROUP_PORT, GROUP6_PORT, BROADCAST_PORT = 5353, 5354, 5355
GROUP_IP, GROUP_MAC = 0xEF01_0203, 0x01_00_5E_01_02_03
GROUP_IPV6, GROUP6_MAC = 0xFF05 << 112 | 0x1234_5678, 0x33_33_12_34_56_78
BROADCAST_IP, BROADCAST_MAC = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF
MEMBERS = (1, 2, 6)
_SLOT = 512


async def create_group(stage: Stage, row: int, address: int, port: int, members) -> int:
    """Returns the row of the port table."""
    fields = {f"member{index}": qpn for index, qpn in enumerate(members)}
    await stage.write_row(Table.GROUP, row, count=len(members), address=address, **fields)
    place = port_rows(port, stage.parameters.n_qp)[3] + 3 * stage.parameters.n_qp
    await stage.write_row(Table.PORT, place, valid=1, group=1, port=port, qpn=row)
    return place


async def _post(stage: Stage, count: int = 6) -> None:
    """Receives for all members, each with a place of its own."""
    for slot, qpn in enumerate(MEMBERS):
        wqe = receive_wqe(stage.mapped, _SLOT * 64 * slot, _SLOT)
        receives = [wqe | {"sge0_addr": wqe["sge0_addr"] + _SLOT * n} for n in range(count)]
        await stage.post_receive(qpn, *receives)


async def groups(stage: Stage) -> None:
    """P43: each member has a copy, a QP that left has none; frames to others are not for us."""
    rng = stage.rng
    four = {"dest_mac": GROUP_MAC, "dest_ip": GROUP_IP, "dest_port": GROUP_PORT}
    six = {"dest_mac": GROUP6_MAC, "dest_ip": GROUP_IPV6, "dest_port": GROUP6_PORT}
    six |= {"ip_version": 6, "source_ip": PEER_IPV6}
    everybody = {"dest_mac": BROADCAST_MAC, "dest_ip": BROADCAST_IP, "dest_port": BROADCAST_PORT}
    await stage.deliver([stage.frame(stage.send(40), **four)])
    assert (await stage.check()) and (await _count(stage, Counter.DROP_MAC_FILTER)) == 1
    await create_group(stage, 1, mapped_ipv4(GROUP_IP), GROUP_PORT, MEMBERS)
    row = await create_group(stage, 0, GROUP_IPV6, GROUP6_PORT, (6, 2))
    await create_group(stage, 2, mapped_ipv4(BROADCAST_IP), BROADCAST_PORT, (1,))
    await _post(stage)
    good = [stage.frame(stage.send(rng.randint(0, 300)), **to) for to in (four, six, everybody)]
    wrong = [
        stage.frame(stage.send(9), **four | {"dest_ip": GROUP_IP + 1}),
        stage.frame(stage.send(9), **four | {"dest_port": GROUP_PORT + 1}),
        stage.frame(stage.send(9), **four | {"dest_port": stage.port(1)}),
        stage.frame(stage.send(9), **four | {"dest_mac": MAC}),
        stage.frame(stage.send(9), **four | {"dest_mac": MAC, "dest_ip": IP}),
        stage.frame(stage.send(9), **six | {"dest_ip": GROUP_IPV6 ^ 1 << 111}),
        stage.frame(stage.send(9), **everybody | {"dest_port": stage.port(1)}),
        stage.frame(stage.write(stage.plain, 0, 40), **four),
        stage.frame(stage.record(stage.mapped, 0, 40)[0], **four),
        stage.frame(stage.send(9), **four)[:-6],
        stage.frame(stage.send(9), **four)[:40],
    ]
    spoilt = bytearray(stage.frame(stage.send(60), **four))
    spoilt[-1] ^= 1
    ours = [stage.frame(stage.write(stage.plain, 64 * n, 50)) for n in range(8)]
    frames = [*good, *wrong, bytes(spoilt), *ours]
    rng.shuffle(frames)
    await stage.deliver(frames)
    completions = await stage.check()
    assert len(completions[1]) >= 2 and len(completions[3]) == 2
    assert await _count(stage, Counter.RX_COPIES) >= 3
    await stage.write_register(Register.FILTER, Filter.MULTICAST)
    await stage.deliver(wrong)
    await stage.check()
    # A member leaves, then a group ends.
    await create_group(stage, 1, mapped_ipv4(GROUP_IP), GROUP_PORT, (2,))
    await stage.write_row(Table.PORT, row)
    await stage.deliver([stage.frame(stage.send(70), **to) for to in (four, six)])
    completions = await stage.check()
    assert len(completions[3]) == 1 and not completions[1]
    # A Send of several datagrams, to all its members.
    await create_group(stage, 1, mapped_ipv4(GROUP_IP), GROUP_PORT, MEMBERS)
    await stage.deliver([stage.frame(item, **four) for item in stage.long_send(500, cut=128)])
    completions = await stage.check()
    assert len(completions[3]) == 1


async def _count(stage: Stage, counter: Counter) -> int:
    return (await stage.counters(stage.model))[counter]


async def looped(stage: Stage, rounds: int) -> None:
    """What goes to the own address comes in and does not leave; beside frames from the wire."""
    rng = stage.rng
    ours = {"dest_mac": MAC, "dest_ip": IP}
    leaving = 0
    for _ in range(rounds):
        place = rng.randrange(60000)
        octets = rng.randint(0, 5000)
        record = {"remote_stag": stage.mapped.stag, "remote_to": stage.mapped.base_to + place}
        record |= {"dest_port": stage.port(1), "granule_log2": 6}
        write = {"remote_stag": stage.plain.stag, "remote_to": stage.plain.base_to}
        write |= {"dest_port": stage.port(2)}
        await stage.post_send(5, request(stage, Opcode.WRITE_RECORD, octets, **ours | record))
        await stage.post_send(6, request(stage, Opcode.WRITE, rng.randint(0, 8000), **ours | write))
        await stage.deliver(
            [
                stage.frame(item, 2)
                for item in stage.record(stage.mapped, 100_000, rng.randint(1, 9000))
            ]
        )
        await stage.check()
        await stage.post_send(6, request(stage, Opcode.WRITE_RECORD, 20))
        leaving += 1
        await stage.check()
    assert len(stage.nic.sent) == leaving
    assert await _count(stage, Counter.RX_FRAMES) > leaving


async def looped_groups(stage: Stage) -> None:
    """P43: own frames to a group leave, and come in for all members but the QP that sent them."""
    await stage.create_cq(7, 6)
    row = {"state": QpState.RTS, "pd": PD, "udp_port": stage.port(7), "path_mtu": 1500}
    row |= {"send_cq": 7, "recv_cq": 7, "timeout": LONG, "opcodes": ANY_OPCODE}
    await stage.create_qp(7, **row)
    members = (*MEMBERS, 7)
    await create_group(stage, 3, mapped_ipv4(GROUP_IP), GROUP_PORT, members)
    await _post(stage)
    await stage.post_receive(7, *[receive_wqe(stage.local, 0, 128)] * 4)
    group = {"dest_mac": GROUP_MAC, "dest_ip": GROUP_IP, "dest_port": GROUP_PORT}
    work = request(stage, Opcode.SEND, 100, flags=WqeFlag.SIGNALED, **group)
    await stage.post_send(7, work)
    completions = await stage.check()
    assert len(completions[7]) == 1 and not completions[1], "comes in without LOOP_GROUPS"
    await stage.write_register(Register.FILTER, Filter.LOOP_GROUPS)
    await stage.post_send(7, work)
    completions = await stage.check()
    assert len(completions[7]) == 1 and len(completions[3]) == 1
    assert await _count(stage, Counter.DROP_OWN_GROUP) == 1
    # Another station that happens to use the QP's port is not the QP.
    await stage.deliver([stage.frame(stage.send(30), **group, source_port=stage.port(7))])
    completions = await stage.check()
    assert len(completions[7]) == 1
    assert len(stage.nic.sent) == 2
