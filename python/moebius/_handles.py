# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Objects that own a handle of the library."""
from __future__ import annotations

from types import TracebackType
from typing import Any, ClassVar, NoReturn, SupportsIndex, TypeVar

from ._values import instance
from .errors import InvalidArgument, check

H = TypeVar("H", bound="Handle")


class Sole:
    """Owns something of the library's by its number.  Copies would share the number, and the first
    of them to go would end what the others use, so there are none."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        # copy.copy(), copy.deepcopy() and pickle all call this.
        raise InvalidArgument(f"a moebius.{type(self).__name__} cannot be copied or pickled")


class Handle(Sole):
    """Owns a handle, which ends with the object, with close(), or with the block of a `with`."""

    _destroy: ClassVar[Any]
    _handle: int | None = None

    def _get(self) -> int:
        """The handle.  Raises InvalidArgument after close()."""
        if self._handle is None:
            raise InvalidArgument(f"this {type(self).__name__} has been closed")
        return self._handle

    def close(self) -> None:
        """Gives up what the object holds.  Doing it twice is valid."""
        handle, self._handle = self._handle, None
        if handle is not None:
            check(self._destroy(handle))

    def __enter__(self: H) -> H:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._destroy(handle)


def handle_of(owner: Any, kind: type[Handle], name: str) -> int:
    """The handle of an argument, which must be an object of the kind."""
    return instance(owner, kind, name)._get()


def optional_handle(owner: Any, kind: type[Handle], name: str) -> int | None:
    """The same; None for None."""
    return None if owner is None else handle_of(owner, kind, name)
