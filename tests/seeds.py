"""Seeds of random tests: some for every run, the rest for long ones."""

import pytest

__all__ = ["seeds"]


def seeds(count: int, soak: int, first: int = 0) -> list:
    """``count`` seeds from ``first`` on, and ``soak`` more that only ``make soak`` takes."""
    more = range(first + count, first + count + soak)
    return [*range(first, first + count), *(pytest.param(n, marks=pytest.mark.soak) for n in more)]
