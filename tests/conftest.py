"""Fixtures of the benches."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def compiled_nic() -> Path:
    """Folder of the NIC compiled for cocotb; made once, shared by all workers and later runs."""
    from sim_tb.build import compiled
    from sim_tb.stage import BENCH

    return compiled(BENCH)
