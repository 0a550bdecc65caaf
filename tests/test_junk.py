"""14.88 million junk frames a second among good messages: no good message is harmed (P7, P18).

On the rtl form, at the wire's spacing. ``sim_tb.junk`` says what each junk frame ends in.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter as Multiset

import pytest

from sim_tb.junk import junk
from uwarp.cli.workload import CLOCK_HZ, FIRST_PORT, IP, MAC, Case, Target
from uwarp.contract import Counter, Register, outcome_sum
from uwarp.device import build
from uwarp.device.rtl import EventKind, RtlNic
from uwarp.verbs import IBV_WC_SUCCESS, PD, Context
from uwarp.wire import Opcode, ipv4_number, mac_number, wire_octets

SEED = 1
IPV6 = 0xFD00 << 112 | 1


@pytest.mark.parametrize("latency", [8, 156])
def test_p18_junk_harms_no_good_message(latency: int) -> None:
    cases = (
        Case(Opcode.WRITE_RECORD, 1),
        Case(Opcode.WRITE_RECORD, 64),
        Case(Opcode.WRITE_RECORD, 256, datagrams=8),
        Case(Opcode.SEND, 64),
        Case(Opcode.SEND, 1408),
    )
    try:
        nic = RtlNic(read_latency=latency, write_latency=latency)
    except build.MissingToolError as error:
        pytest.skip(str(error))
    turns, rng = 25, random.Random(SEED)
    with nic, Context(device=nic.device, mac=MAC, ipv4=IP, mtu=1500) as context:
        for word in range(4):
            nic.device.write32(Register.IPV6.at(word), IPV6 >> 32 * word & 0xFFFF_FFFF)
        pd = PD(context)
        targets = [Target(pd, nic.device, case, n, turns) for n, case in enumerate(cases)]
        unwanted = junk(mac_number(MAC), ipv4_number(IP), IPV6, FIRST_PORT, SEED)
        expected: Multiset[Counter] = Multiset()
        octets = shortest = 0
        nic.device.watch()
        for _ in range(turns):
            for target in rng.sample(targets, len(targets)):
                for frame in target.message():
                    for _ in range(rng.choice((0, 1, 2, 5, 20))):
                        item = next(unwanted)
                        nic.device.inject(item.frame, error=item.error)
                        expected[item.ends_in] += 1
                        octets += wire_octets(len(item.frame))
                        shortest += 1
                    nic.device.inject(frame)
                    expected[Counter.RX_PLACED] += 1
                    octets += wire_octets(len(frame))
        nic.run(octets // 8 + 4096)
        events = nic.device.take_events()
        counters = context.counters()
        nic.check()
        arrivals = [event for event in events if event.kind is EventKind.ARRIVAL]
        # The wire never paused; junk alone comes at the highest rate there is.
        assert arrivals[-1].time - arrivals[0].time <= octets / 8
        pairs = itertools.pairwise(arrivals)
        gaps = [two.time - one.time for one, two in pairs if one.octets == two.octets == 60]
        assert len(gaps) > 1000
        assert CLOCK_HZ * len(gaps) / sum(gaps) == pytest.approx(14.88e6, rel=0.001)
        assert shortest > 1500
        assert counters[Counter.DROP_OVERFLOW] == 0
        assert {counter: counters[counter] for counter in expected} == expected
        assert outcome_sum(counters) == counters[Counter.RX_FRAMES] == expected.total()
        for target in targets:
            completions = target.completions()  # which compares octets, too
            assert len(completions) == turns
            assert {wc.status for wc in completions} == {IBV_WC_SUCCESS}
