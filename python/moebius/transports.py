# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What the transports share: the memory that moves rows, results, and transfers under way."""
from __future__ import annotations

import functools
from collections.abc import Callable
from ctypes import byref, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, Generic, Optional, TypeVar

from . import _structs as s
from ._dlpack import ArrayNames
from ._handles import Handle, handle_of
from ._library import lib
from .errors import InvalidArgument, check, create
from .groups import Group
from .tensors import Array, from_array, named_stream

__all__ = ["Pending", "Result", "TransportStatistics", "Transports"]


class Transports(Handle):
    """What moves the rows of all layers of a group; several layers and transports share one, whose
    memory is then that of one.  Making it is local."""

    _destroy = lib.transports_destroy

    def __init__(self, group: Group) -> None:
        self._handle = create(lib.transports_create, handle_of(group, Group, "group"))

    def reserve_low_latency(self, nbytes: int) -> None:
        """Makes window memory ahead, on one node.  A LowLatency with these transports that fits in what
        is left of it is then made without a word to other ranks, so that it does not matter if one
        is gone by then.  LowLatency.size_hint() tells what one takes.  Collective."""
        check(lib.transports_reserve_low_latency(self._get(), nbytes))

    @property
    def nbytes(self) -> int:
        """The bytes of windows and buffers that this rank holds for them now."""
        return read_bytes(lib.transports_bytes, self)


@dataclass(frozen=True)
class TransportStatistics:
    """What a rank has sent, to itself too."""

    selections: int
    """Without masked ones."""
    copies: int
    """Rows sent to ranks, one per (token, rank)."""
    node_copies: int
    """Rows that crossed to another node."""


def read_bytes(function: Any, owner: Handle) -> int:
    found = c_int64()
    check(function(owner._get(), byref(found)))
    return found.value


def read_statistics(function: Any, owner: Handle) -> TransportStatistics:
    found = s.TransportStatistics()
    check(function(owner._get(), byref(found)))
    return TransportStatistics(found.selections, found.copies, found.node_copies)


class Result(Handle):
    """What a call of a transport has made.  Its tensors are of the kind that the call was given,
    and may outlive it.  Memory that shares a bank of the transport is given back with the last of
    them, or with close()."""

    _destroy = lib.result_destroy

    def __init__(self, handle: int, kind: Any, stream: Optional[int], lent: Any = None) -> None:
        self._handle = handle
        self._kind = kind
        self._stream = stream
        self._lent = lent  # memory of the caller's in which tensors of the result lie
        self._tensors: dict[tuple[str, int], Any] = {}

    def _tensor(self, name: str, index: int = 0) -> Any:
        key = (name, index)
        if key not in self._tensors:
            self._tensors[key] = self._read(name, index)
        return self._tensors[key]

    def _read_all(self, names: ArrayNames) -> list[Any]:
        """The tensors of several arrays, in one call of the library where that is possible."""
        take = getattr(self._kind, "from_result", None) if self._lent is None else None
        if take is not None:
            found = take(self._get(), names, self._stream)
            for key, x in zip(names.keys, found):
                if x is not self._kind.NOT_KNOWN:
                    self._tensors[key] = x
        return [self._tensor(*key) for key in names.keys]

    def _read(self, name: str, index: int) -> Any:
        handle = self._get()
        if self._lent is None:
            take = getattr(self._kind, "from_result", None)
            if take is not None:
                (x,) = take(handle, _array_name(name, index), self._stream)
                if x is not self._kind.NOT_KNOWN:
                    return x
        array = create(lib.result_array, handle, name, index)
        return None if array is None else self._convert(Array(array))

    def _convert(self, array: Array) -> Any:
        array.keep = self._lent
        if array._tensor.device.type == s.CUDA:
            check(lib.array_record_stream(array._handle, self._stream))
        return from_array(self._kind, array)

    def wait(self, stream: Any = None) -> None:
        """Makes a stream wait until the result is complete, by default that of the call; a CPU
        waits here.  Needed after calls with is_async, and for other streams."""
        where = self._stream if stream is None else named_stream(stream)
        check(lib.result_wait(self._get(), where))

    @property
    def event(self) -> Optional[int]:
        """The cudaEvent_t, as a number, that is complete when the result is; None on the CPU.
        Valid as long as the result."""
        event = c_void_p()
        check(lib.result_event(self._get(), byref(event)))
        return event.value

    def close(self) -> None:
        """Gives the memory back, unless tensors of the result are still alive elsewhere."""
        self._tensors.clear()
        super().close()


def array_property(name: str, doc: str) -> Any:
    """A property of a result: its array of this name, read at the first use."""
    return property(lambda result: result._tensor(name), doc=doc)


@functools.lru_cache(maxsize=None)  # there are few
def _array_name(name: str, index: int) -> ArrayNames:
    return ArrayNames((name, index))


R = TypeVar("R", bound=Result)


class Pending(Handle, Generic[R]):
    """A transfer whose rows are on their way.  Dropping one that was not finished abandons it."""

    _destroy = lib.pending_destroy

    def __init__(
        self, handle: int, make: Callable[[int], R], keep: Any, is_async: bool = False
    ) -> None:
        self._handle = handle
        self._make = make
        self._is_async = is_async
        self._keep = keep  # what the transfer reads and writes

    def hook(self) -> None:
        """Completes the transfer; on a GPU it enqueues that.  Optional, before finish()."""
        check(lib.pending_hook(self._get()))

    def _hand_over(self) -> tuple[int, Any]:
        """The handle, for somebody else who ends the transfer, and what that must keep."""
        handle, self._handle = self._get(), None
        return handle, self._keep

    def finish(self) -> R:
        """Completes the transfer and hands over its result, once.  The stream waits for it unless
        the transfer was started with is_async."""
        handle = create(lib.pending_finish, self._get())
        if handle is None:
            raise InvalidArgument("the transfer gave no result")
        result = self._make(handle)
        if not self._is_async:
            result.wait()
        self.close()
        self._keep = None
        return result
