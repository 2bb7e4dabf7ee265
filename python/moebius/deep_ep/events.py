# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Events between streams.  On the CPU a call is done when it returns, so events are always past."""
from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Optional, Type

from ..errors import InvalidArgument
from .tensors import cuda, current_torch_stream


class EventHandle:
    """What torch's current stream has been given so far."""

    def __init__(self) -> None:
        self.event: Any = None
        self._keep: Any = None
        if cuda.is_initialized():
            self.event = cuda.Event()
            self.event.record(current_torch_stream(cuda.current_device()))

    @classmethod
    def of(cls, event: Any, keep: Any = None) -> EventHandle:
        """An event that was recorded before, of a call that uses the tensors `keep`."""
        handle = cls.__new__(cls)
        handle.event, handle._keep = event, keep
        return handle

    def current_stream_wait(self) -> None:
        """Makes torch's current stream wait."""
        if self.event is not None:
            current_torch_stream(cuda.current_device()).wait_event(self.event)


class EventOverlap:
    """The end of a call.  `event` is an EventHandle, or None where the call did not run beside the
    current stream."""

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


def cuda_event_of(event: Any) -> Any:
    """The torch.cuda.Event in whatever a caller gives as previous_event; None: none."""
    while isinstance(event, (EventOverlap, EventHandle)):
        event = event.event
    return event
