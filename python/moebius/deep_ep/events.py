# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Events between streams.  On the CPU a call is done when it returns, so events are always past."""
from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, Optional, Protocol, Type

import torch

from .._handles import Sole
from .._library import lib
from .._torch import current_stream
from ..errors import InvalidArgument, check, create

cuda: Any = torch.cuda


class Leftovers(Protocol):
    """Takes what nobody has waited for."""

    def leave(self, event: int, made: tuple[Any, ...]) -> None: ...


class EventHandle(Sole):
    """What torch's current stream has been given so far."""

    _destroy: ClassVar[Any] = lib.event_destroy
    # An event of the library's; none on the CPU, where a call is done when it returns.
    _number: Optional[int] = None
    _keep: Any = None
    _made: tuple[Any, ...] = ()
    _owner: Optional[int] = None
    _leftovers: Optional[Leftovers] = None

    def __init__(self) -> None:
        if cuda.is_initialized():
            self._number = create(lib.stream_record, current_stream(cuda.current_device()))

    @classmethod
    def of_call(
        cls,
        number: Optional[int],
        keep: Any = None,
        made: tuple[Any, ...] = (),
        owner: Optional[int] = None,
        leftovers: Optional[Leftovers] = None,
    ) -> EventHandle:
        """The end of a call that uses the tensors `keep`, and has made others in torch's memory of
        the stream `owner`.  If these go before that stream has waited for the event, its later work
        could be given their memory while the call still writes it, so they go to `leftovers`."""
        handle = cls.__new__(cls)
        handle._number, handle._keep = number, keep
        handle._made, handle._owner, handle._leftovers = made, owner, leftovers
        return handle

    @property
    def is_past(self) -> bool:
        """Whether there is nothing to wait for."""
        return self._number is None

    def hold_back(self, stream: Optional[int]) -> None:
        """Makes a stream of the library's wait."""
        if self._number is not None:
            check(lib.stream_wait(stream, self._number))
            if stream == self._owner:
                self._leftovers = None

    def current_stream_wait(self) -> None:
        """Makes torch's current stream wait."""
        if self._number is not None:
            self.hold_back(current_stream(cuda.current_device()))

    def __del__(self) -> None:
        number, self._number = self._number, None
        if number is None:
            return
        if self._leftovers is None:
            self._destroy(number)
        else:
            self._leftovers.leave(number, self._made)


class EventOverlap:
    """The end of a call.  `event` is an EventHandle, or None where the call did not run beside the
    current stream."""

    event: Optional[EventHandle] = None
    extra_tensors: Optional[tuple[Any, ...]] = None
    hook_after_wait: Optional[Callable[[], Any]] = None
    _releases = False

    def __init__(
        self, event: Optional[EventHandle] = None, extra_tensors: Optional[tuple[Any, ...]] = None
    ) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Makes torch's current stream wait for the end of the call, once per stream that uses its
        results.  With release_handle the event is dropped, and with it the tensors it keeps."""
        if self.event is None:
            raise InvalidArgument(
                "this EventOverlap has no event: the call was not asynchronous, or was waited for"
            )
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], Any]) -> None:
        """Calls a function after the next current_stream_wait()."""
        if self.hook_after_wait is not None:
            raise InvalidArgument("this EventOverlap has a hook already, expected one at most")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        """For `with event(release_handle=True):`."""
        self._releases = release_handle
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self.event is not None:
            self.current_stream_wait(self._releases)
        self._releases = False


class NoEvent(EventOverlap):
    """The end of a call that did not run beside the current stream.  Most calls make one, in half
    the time, since nothing is set."""

    __init__ = object.__init__  # type: ignore[assignment]


def event_of(given: Any) -> Any:
    """The EventHandle, or the torch.cuda.Event, in whatever a caller gives as previous_event; None
    where there is nothing to wait for."""
    while isinstance(given, EventOverlap):
        given = given.event
    return None if isinstance(given, EventHandle) and given.is_past else given
