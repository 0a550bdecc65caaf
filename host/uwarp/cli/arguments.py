"""Command-line arguments: how they are read, and how it is said that they cannot be."""

from __future__ import annotations

import argparse
from typing import NoReturn

__all__ = ["Failure", "Parser", "UsageError", "integer", "probability"]


class UsageError(Exception):
    """Arguments that cannot be. The text is one line."""


class Failure(Exception):
    """What was asked for could not be done. The text is one line."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no probability; it takes 0 to 1")
    return value


def integer(text: str) -> int:
    """A whole number, also as 0x..."""
    try:
        return int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
