"""The cocotb benches of the whole NIC, a simulation for each group so that they run side by side.

``UWARP_SEED=n`` chooses another seed.
"""

import pytest

from sim_tb.build import run_bench

GROUPS = {
    "write-lengths": "write_lengths",
    "record-lengths": "record_lengths",
    "send-lengths": "send_lengths",
    "messages": "large_messages|small_messages|received_sends|long_sends|tracker_rules",
    "faults": "wrong_octets_(short|long)|cut_frames|flagged_frames|every_reason|overload",
    "headers": "every_header|cut_headers|wrong_octets_in_headers|addresses|peers",
    "sending": "send_alignments|several_senders|send_errors|both_directions",
    "trouble": "event_ring|snapshot|closing|failing_memory|moderation",
    "reads": "gathered|answered|reads|reads_in_silence|groups|looped|looped_groups|"
    "terminated|not_terminated|terminates_told",
    "hosting": "identity|interrupts|resets|broken_memory|order_of_writes",
}


@pytest.mark.parametrize("group", GROUPS)
def test_nic(compiled_nic, tmp_path, group):
    run_bench(compiled_nic, "sim_tb.bench", tmp_path, only=rf"\.({GROUPS[group]})")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("group", GROUPS)
def test_soak(compiled_nic, tmp_path, group, seed):
    run_bench(
        compiled_nic,
        "sim_tb.bench",
        tmp_path,
        only=rf"\.({GROUPS[group]})",
        environment={"UWARP_SOAK": "1", "UWARP_SEED": str(seed)},
    )
