"""``uwarp.wire`` and the scapy layer, written apart, must agree on every message."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from sim_tb import segment_layer as layer
from uwarp.wire import (
    IMMEDIATE_OPCODES,
    RECORD_OPCODES,
    TAGGED_OPCODES,
    AtomicRequest,
    AtomicResponse,
    ImmediateData,
    Opcode,
    ReadRequest,
    Segment,
    Terminate,
    UdpFrame,
    mac_text,
    queue_number,
)

U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
MACS = st.integers(0, (1 << 48) - 1)


def body_layers(opcode: Opcode, draw) -> tuple[bytes, object]:
    """Payload of a message by ``uwarp.wire``, and the same as scapy layers (None for no layer)."""
    if opcode is Opcode.READ_REQUEST:
        names = (("sink_stag", U32), ("sink_to", U64), ("size", U32))
        names += (("source_stag", U32), ("source_to", U64))
        fields = {name: draw(kind) for name, kind in names}
        return ReadRequest(**fields).encode(), layer.ReadRequest(**fields)
    if opcode is Opcode.TERMINATE:
        code = {"layer": draw(st.integers(0, 15)), "etype": draw(st.integers(0, 15))}
        code["code"] = draw(st.integers(0, 255))
        m, d, r = (draw(st.booleans()) for _ in range(3))
        quoted = draw(st.binary(max_size=20))
        wire = Terminate(**code, has_length=m, has_ddp=d, has_rdmap=r, quoted=quoted)
        return wire.encode(), layer.Terminate(**code, m=m, d=d, r=r) / Raw(quoted)
    if opcode in (Opcode.IMMEDIATE, Opcode.IMMEDIATE_SOLICITED):
        value = draw(U64)
        return ImmediateData(data=value).encode(), layer.ImmediateData(data=value)
    if opcode is Opcode.ATOMIC_REQUEST:
        fields = {"operation": draw(st.integers(0, 15)), "request": draw(U32), "stag": draw(U32)}
        names = ("to", "add_swap", "add_swap_mask", "compare", "compare_mask")
        fields |= {name: draw(U64) for name in names}
        return AtomicRequest(**fields).encode(), layer.AtomicRequest(**fields)
    if opcode is Opcode.ATOMIC_RESPONSE:
        fields = {"request": draw(U32), "data": draw(U64)}
        return AtomicResponse(**fields).encode(), layer.AtomicResponse(**fields)
    payload = draw(st.binary(max_size=70))
    return payload, Raw(payload) if payload else None


@pytest.mark.parametrize("opcode", Opcode, ids=lambda opcode: opcode.name)
@settings(max_examples=25)
@given(st.data())
def test_frames_agree(opcode, data):
    draw = data.draw
    payload, body = body_layers(opcode, draw)
    flags = {}
    if opcode in IMMEDIATE_OPCODES:
        flags = {"solicited": draw(st.booleans()), "immediate_valid": draw(st.booleans())}
    last, number = draw(st.booleans()), {name: draw(U32) for name in ("msn", "mo", "mlen")}
    stag, to, immediate = draw(U32), draw(U64), draw(U32)
    control = {
        "opcode": int(opcode),
        "l": int(last),
        "se": int(flags.get("solicited", False)),
        "im": int(flags.get("immediate_valid", False)),
    }
    fields = {"opcode": opcode, "payload": payload, "last": last, **flags}
    if opcode in TAGGED_OPCODES:
        packet = layer.DdpTagged(**control, stag=stag, to=to)
        fields |= {"stag": stag, "to": to}
        if opcode in RECORD_OPCODES:
            packet /= layer.Record(**number, immediate=immediate)
            fields |= number | {"immediate": immediate}
    else:
        queue = int(queue_number(opcode))
        packet = layer.DdpUntagged(**control, qn=queue, **number)
        fields |= number | {"qn": queue}
        if opcode is Opcode.SEND_IMMEDIATE:
            packet /= layer.SendImmediate(immediate=immediate)
            fields |= {"immediate": immediate}
    segment = Segment(**fields)
    if body is not None:
        packet /= body
    source, destination = draw(MACS), draw(MACS)
    frame = UdpFrame(
        dest_mac=destination,
        source_mac=source,
        source_ip=0x0A00_0001,
        dest_ip=0xC0A8_00FE,
        source_port=draw(U16),
        dest_port=draw(U16),
        payload=segment.to_datagram(),
        traffic_class=draw(st.integers(0, 255)),
        hop_limit=draw(st.integers(0, 255)),
    )
    addresses = {"src": "10.0.0.1", "dst": "192.168.0.254", "flags": "DF", "id": 0}
    built = (
        Ether(src=mac_text(source), dst=mac_text(destination))
        / IP(**addresses, tos=frame.traffic_class, ttl=frame.hop_limit)
        / UDP(sport=frame.source_port, dport=frame.dest_port)
        / packet
    )
    octets = frame.encode()
    assert bytes(built).ljust(60, b"\0") == octets

    dissected = layer.dissect(octets)["UDP"].payload
    assert layer.crc_is_right(dissected)
    for name, value in control.items():
        assert getattr(dissected, name) == value, name
    seen = dissected
    while seen:
        for name in seen.fields.keys() & fields.keys() - {"opcode", "payload"}:
            assert seen.fields[name] == fields[name], name
        seen = seen.payload
    wrong = bytearray(octets)
    wrong[draw(st.integers(42, 42 + len(segment.encode()) + 3))] ^= draw(st.integers(1, 255))
    spoilt = bytes(wrong[42 : 42 + len(segment.encode()) + 4])
    assert not layer.crc_is_right(type(packet)(spoilt))


def test_bound_port_is_dissected():
    layer.bind_port(4791)
    segment = Segment(opcode=Opcode.WRITE_RECORD, payload=b"abc", stag=1, to=2, msn=3, mlen=3)
    frame = UdpFrame(
        **{"dest_mac": 1, "source_mac": 2, "source_ip": 3, "dest_ip": 4},
        source_port=5,
        dest_port=4791,
        payload=segment.to_datagram(),
    )
    packet = Ether(frame.encode())
    assert packet[layer.Record].mlen == 3
    assert packet[Raw].load == b"abc"
