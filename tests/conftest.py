"""Fixtures of the benches, the order of tests, and the soak runs left out unless asked for."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A machine with much else to do is slow: no fault of what is tested.
settings.register_profile("uwarp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("uwarp")


@pytest.fixture(scope="session")
def compiled_nic() -> Path:
    """Folder of the NIC compiled for cocotb; made once, shared by all workers and later runs."""
    from sim_tb.build import compiled
    from sim_tb.stage import BENCH

    return compiled(BENCH)


# The longest come first, so that no worker is left alone with one at the end.
_FIRST = ("test_coverage.py", "test_bench_nic.py", "test_scenarios.py", "test_trials.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in _FIRST)
    if config.option.markexpr:
        return
    soak = [item for item in items if item.get_closest_marker("soak")]
    if soak:
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if item not in soak]
