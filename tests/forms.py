"""Which links the end-to-end tests run on; see ``uwarp.device.open_link``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

__all__ = ["EVERYWHERE", "KINDS", "forms"]

KINDS = ("model", "rtl", "rtl+model", "model+rtl")


def forms(made: Collection[str] = ("model", "rtl")) -> list[Any]:
    """All of ``KINDS``; ``make test`` runs those of ``made`` only, ``make soak`` the others too."""
    return [pytest.param(kind, marks=[] if kind in made else [pytest.mark.soak]) for kind in KINDS]


#: For a test with a fixture ``pair``: on all of ``KINDS`` in ``make test``, too.
EVERYWHERE = pytest.mark.parametrize("pair", KINDS, indirect=True)
