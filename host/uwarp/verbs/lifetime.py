"""Objects with a lifetime: closed once, children before parents."""

from __future__ import annotations

import errno
from types import TracebackType
from typing import TypeVar

from .errors import refuse

__all__ = ["Resource"]

Self = TypeVar("Self", bound="Resource")


class Resource:
    """Something that a device holds for us.

    Parents hold their children, so that memory which a device may still reach is not freed because
    a program lost its last name for it. ``close`` is idempotent and closes children first, youngest
    first.
    """

    def __init__(self, *parents: Resource) -> None:
        self._parents = parents
        self._children: dict[int, Resource] = {}
        self._closed = False
        for parent in parents:
            parent._children[id(self)] = self

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End it, and all that was made from it. Closing twice is harmless."""
        if self._closed:
            return
        for child in reversed(list(self._children.values())):
            child.close()
        self._closed = True
        try:
            self._release()
        finally:
            for parent in self._parents:
                parent._children.pop(id(self), None)

    def _release(self) -> None:
        """Take back from the device what this object holds."""

    def _check_open(self) -> None:
        if self._closed:
            raise refuse(f"this {type(self).__name__} is closed", errno.EBADF)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
