"""Fixtures of the benches, and the soak runs left out unless they are asked for."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def compiled_nic() -> Path:
    """Folder of the NIC compiled for cocotb; made once, shared by all workers and later runs."""
    from sim_tb.build import compiled
    from sim_tb.stage import BENCH

    return compiled(BENCH)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr:
        return
    soak = [item for item in items if item.get_closest_marker("soak")]
    if soak:
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if item not in soak]
