"""The demo's programs on the model, on the gateware and on one of each: the same completions.

Each seed runs the same transfer over a wire that loses, duplicates and reorders datagrams, once
on each form. Replay one with ``pytest tests/test_end_to_end.py -k 'seed7-'``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.seeds import seeds
from uwarp.cli.programs import receiver, sender
from uwarp.contract import Counter, outcome_sum
from uwarp.device import Fate, Impairments, WireRecord, open_link
from uwarp.verbs import WC, Context

OCTETS = 200_000 + 13
"""Four messages, the last of which ends in the middle of a granule."""


@dataclass
class Outcome:
    octets: bytes
    valid: np.ndarray
    completions: list[tuple[object, ...]]
    counters: list[dict[Counter, int]]
    records: list[WireRecord]


def transfer(form: str, data: bytes, impairments: Impairments, mtu: int = 1500) -> Outcome:
    """Send ``data`` with the demo's two programs."""
    addresses = (("02:00:00:00:00:01", "10.0.0.1"), ("02:00:00:00:00:02", "10.0.0.2"))
    records: list[WireRecord] = []
    with open_link(form, impairments=impairments) as link:
        contexts = [
            Context(device=device, mac=mac, ipv4=ip, mtu=mtu)
            for device, (mac, ip) in zip(link.devices, addresses, strict=True)
        ]
        one, two = contexts
        with one, two:
            one.add_neighbour(*reversed(addresses[1]))
            two.add_neighbour(*reversed(addresses[0]))
            sending, receiving = (
                sender(one, addresses[1][1], data),
                receiver(two, 64, lambda octets: None),
            )
            while True:
                next(sending, None)
                try:
                    next(receiving)
                except StopIteration as end:
                    received = end.value
                    break
                records += link.records()
            records += link.records()
            region = received.region
            valid = np.zeros(len(data), dtype=bool)
            for offset, length in region.validity.ranges():
                valid[offset : offset + length] = True
            return Outcome(
                octets=region.read(),
                valid=valid,
                completions=sorted(describe(wc, region.buf) for wc in received.records),
                counters=[one.counters(), two.counters()],
                records=records,
            )


def describe(wc: WC, base: int) -> tuple[object, ...]:
    """A completion without what may differ: its time, its place in the ring, memory addresses."""
    return (
        wc.msn,
        wc.status.name,
        wc.opcode.name,
        wc.byte_len,
        wc.message_length,
        wc.remote_addr - base,
        wc.src_qp,
        tuple(wc.validity.ranges()),
    )


@pytest.mark.parametrize("seed", range(20), ids=lambda seed: f"seed{seed}-")
def test_what_is_valid_was_sent_and_both_forms_complete_alike(seed: int) -> None:
    data = np.random.default_rng(seed).integers(1, 256, OCTETS, dtype=np.uint8).tobytes()
    impairments = Impairments(loss=0.05, duplicate=0.02, reorder=0.05, seed=seed)
    outcomes = {form: transfer(form, data, impairments) for form in ("model", "rtl")}
    sent = np.frombuffer(data, dtype=np.uint8)
    for form, outcome in outcomes.items():
        placed = np.frombuffer(outcome.octets, dtype=np.uint8)
        wrong = np.flatnonzero((placed != sent) & outcome.valid)
        assert not wrong.size, f"{form}: octet {wrong[0]} is called valid and was not sent so"
        assert any(record.fate is Fate.DROPPED for record in outcome.records), "nothing was lost"
        for counters in outcome.counters:
            assert counters[Counter.RX_FRAMES] == outcome_sum(counters), (form, counters)
    assert outcomes["rtl"].completions == outcomes["model"].completions
    assert (outcomes["rtl"].valid == outcomes["model"].valid).all()
    assert outcomes["rtl"].octets == outcomes["model"].octets


@pytest.mark.parametrize("form", ["rtl+model", "model+rtl"])
@pytest.mark.parametrize("seed", seeds(1, 5), ids=lambda seed: f"seed{seed}-")
def test_the_forms_understand_each_other(form: str, seed: int) -> None:
    data = np.random.default_rng(seed).integers(1, 256, OCTETS, dtype=np.uint8).tobytes()
    impairments = Impairments(loss=0.05, duplicate=0.02, reorder=0.05, seed=seed)
    outcome, expected = transfer(form, data, impairments), transfer("model", data, impairments)
    assert outcome.completions == expected.completions
    assert (outcome.valid == expected.valid).all()
    assert outcome.octets == expected.octets
    for counters in outcome.counters:
        assert counters[Counter.RX_FRAMES] == outcome_sum(counters)


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_a_wire_without_loss_brings_every_octet_at_the_wire_s_rate(mtu: int) -> None:
    data = np.random.default_rng(mtu).integers(0, 256, 1 << 19, dtype=np.uint8).tobytes()
    outcome = transfer("rtl", data, Impairments(), mtu)
    assert outcome.valid.all()
    assert outcome.octets == data
    assert {status for _, status, *_ in outcome.completions} == {"IBV_WC_SUCCESS"}
    assert len(outcome.completions) == 8
