"""Errors of the verbs API. Those that stand for a refused operation carry an errno."""

from __future__ import annotations

import errno
import os
from typing import Any

__all__ = [
    "PyverbsError",
    "PyverbsRDMAError",
    "PyverbsUserError",
    "VerbsError",
    "VerbsRDMAError",
    "VerbsUserError",
    "refuse",
]


class VerbsError(Exception):
    """Base of everything that this package raises on purpose."""


class VerbsUserError(VerbsError):
    """A call that makes no sense, whatever the state of the device."""


class VerbsRDMAError(VerbsError, OSError):
    """An operation that was refused.

    Attributes
    ----------
    errno, error_code : int
        The same number, one of :mod:`errno`.
    bad_wr : SendWR or RecvWR or None
        The first work request of a list that was not posted.
    """

    def __init__(self, message: str, error_code: int = errno.EINVAL, bad_wr: Any = None) -> None:
        OSError.__init__(self, error_code, message)
        self.error_code = error_code
        self.bad_wr = bad_wr

    def __str__(self) -> str:
        code = errno.errorcode.get(self.error_code, str(self.error_code))
        return f"{self.strerror} ({code}, {os.strerror(self.error_code)})"


PyverbsError = VerbsError
PyverbsUserError = VerbsUserError
PyverbsRDMAError = VerbsRDMAError


def refuse(message: str, code: int = errno.EINVAL) -> VerbsRDMAError:
    """The error to raise: ``raise refuse("...", errno.ENOSPC)``."""
    return VerbsRDMAError(message, code)
