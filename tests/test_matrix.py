"""Every kind of header around every kind of datagram, against the model: P3 to P9, P13, P31.

``sim_tb.matrix`` makes the frames with scapy and says what each must end in. Model and gateware get
all of them in ``test_bench_nic``; here each frame is looked at by itself, a sample of them in short
runs.
"""

from __future__ import annotations

import random
from collections import Counter as Multiset

import pytest

from sim_tb.matrix import TAGS, Target, matrix
from tests.host import IPV4, IPV6, MAC
from tests.model_bench import PORT, QPN, make_bench, sent
from uwarp.contract import Counter
from uwarp.wire import ip_text, ipv4_text, mac_text

SEED = 1
ALL = 9 * 10 * 56


@pytest.mark.parametrize("count", [1000, pytest.param(ALL, marks=pytest.mark.soak)])
@pytest.mark.parametrize("tags", TAGS, ids=lambda tags: tags.name)
def test_p3_p4_p5_p6_p8_p9_p13_p19_p31_matrix(tags, count) -> None:
    bench = make_bench()
    host, region = bench.host, bench.plain
    target = Target(
        mac=mac_text(MAC),
        ipv4=ipv4_text(IPV4),
        ipv6=ip_text(IPV6),
        port=PORT,
        stag=region.stag,
        to=region.base_to,
        length=region.length,
        source_stag=region.stag,
        source_to=region.base_to,
        source_length=region.length,
    )
    found: Multiset[Counter] = Multiset()
    for case in matrix(target, random.Random(SEED), tags=[tags], count=count):
        if case.takes_receive:
            host.post_receive(QPN, bench.mapped.base_to, 40, bench.mapped.stag)
        before, writes = list(bench.nic.counters), len(bench.memory.writes)
        bench.nic.receive(case.frame)
        changed = {
            counter
            for counter in Counter
            if bench.nic.counters[counter] != before[counter] and counter is not Counter.CQES
        }
        what = f"{case.name} (seed {SEED}): {case.frame.hex()}"
        lost = {Counter.EVENTS_LOST} if case.is_event else set()  # there is no event ring
        assert changed == {Counter.RX_FRAMES, case.expected} | lost, what
        found[case.expected] += 1
        if case.is_answered:
            (answer,) = sent(bench)
            assert answer.payload in bench.memory.read(region.address, region.length), what
        elif case.expected is Counter.RX_PLACED and not case.is_event:
            payload = bench.memory.read(*bench.memory.writes[writes])
            assert payload in case.frame, what
            assert all(cqe.valid == len(payload) for cqe in host.poll_all()), what
        else:
            assert bench.memory.writes[writes:] == [], what
    host.check_sum()
    assert {counter: host.counter(counter) for counter in found} == found
    assert host.counter(Counter.RX_FRAMES) == found.total() == count
    assert len(found) == 11
    if count == ALL:
        # Three IP headers and three of UDP lead to the seven segments that are accepted.
        assert found[Counter.RX_PLACED] == 3 * 3 * 7
        assert found[Counter.DROP_LATE] == 3 * 3
