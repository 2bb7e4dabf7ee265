# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""On which stream a call runs, and who waits for it.

A call that is not asynchronous runs on torch's current stream.  An asynchronous one runs on the
buffer's communication stream, so that the current stream goes on beside it.  Calls of a buffer are
ordered among each other, whatever streams they run on: a stream that another one follows is waited
for with all that it was given by then.  On the CPU none of this is needed."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch

from .._streams import wrapped_stream
from .._torch import current_stream, raw_stream
from ..errors import Unsupported
from ..tensors import capture_of
from .events import EventHandle, EventOverlap, cuda_event_of
from .tensors import cuda, current_torch_stream


class Turn:
    """The stream of one call.  None stands for torch's current one, and for the CPU."""

    def __init__(
        self,
        stream: Any,
        is_async: bool,
        is_apart: bool = False,
        cuda_stream: int = 0,
        current: int = 0,
    ) -> None:
        self.stream = stream
        self.is_async = is_async
        self.is_apart = is_apart
        """Whether the stream has not waited for torch's current one.  Memory that torch gives for
        that one may still be in use there."""
        self._cuda_stream = cuda_stream
        self._current = current
        """torch's current stream when the call began.  Its body may run where another is current."""

    def handle(self, gpu: Optional[int]) -> Optional[int]:
        """The library's handle of the stream, for tensors on this GPU; None on the CPU."""
        if gpu is None:
            return None
        if self.stream is None:
            return current_stream(gpu)
        return wrapped_stream(gpu, self._cuda_stream)

    def user(self) -> Optional[int]:
        """The library's handle of the stream that uses results last, which then give their memory
        back: torch's current one when the call began; None where that is the stream of the call."""
        if self.stream is None or not self.is_async:
            return None
        return wrapped_stream(self.stream.device.index, self._current)

    def adopt(self, result: Any) -> None:
        """Lets a result of the library give its memory back only after what the stream user() does
        with it.  Call this before its tensors are read."""
        if self.stream is not None and self.is_async:
            result._stream = self.user()

    def allocate(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """What make() allocates for the call to write, which the end of the call takes as `made`."""
        if not self.is_apart:
            return make(*arguments)
        with cuda.stream(self.stream):
            return make(*arguments)

    def contiguous(self, *tensors: Any) -> list[Any]:
        """The tensors as the call reads them; None for None."""
        if self.is_apart:
            with cuda.stream(self.stream):
                return [None if x is None else x.contiguous() for x in tensors]
        return [None if x is None else x.contiguous() for x in tensors]


# The turn of a call that is where it would be without this module: on the CPU, or on torch's current
# stream.
_PLAIN = Turn(None, False)


class _Lane:
    """The communication stream of a GPU, and the stream of the last call."""

    def __init__(self, device: Any) -> None:
        self.stream: Any = cuda.Stream(device)
        self.cuda_stream: int = self.stream.cuda_stream
        self.last: Any = None
        self.last_handle: Optional[int] = None
        """The cudaStream_t of the last call."""

    def follow(self, stream: Any, cuda_stream: int, awaited: int) -> None:
        """Orders a call on this stream, which has waited for the stream `awaited`, after the last
        one.  A stream that is captured, and one that is not or is in another capture, cannot wait
        for each other: who launches a graph orders it."""
        last, self.last = self.last, stream
        before, self.last_handle = self.last_handle, cuda_stream
        if last is None or before == cuda_stream or before == awaited:
            return
        if capture_of(last) == capture_of(stream):
            stream.wait_stream(last)


class CommStreams:
    """The communication streams of a buffer."""

    def __init__(self) -> None:
        self._lanes: dict[Any, _Lane] = {}

    def on(self, device: Any) -> Any:
        """The stream of a GPU."""
        return self._lane(device).stream

    def current(self) -> Any:
        """The stream of torch's current GPU."""
        if not cuda.is_available():
            raise Unsupported("get_comm_stream() needs a GPU; calls on the CPU run in the caller")
        return self.on(torch.device("cuda", cuda.current_device()))

    def _lane(self, device: Any) -> _Lane:
        if device not in self._lanes:
            self._lanes[device] = _Lane(device)
        return self._lanes[device]

    def begin(self, device: Any, previous_event: Any, is_async: bool) -> Turn:
        """Makes the stream of a call wait for what comes before it."""
        previous = None if previous_event is None else cuda_event_of(previous_event)
        lane = self._lanes.get(device) if self._lanes else None
        # torch's current stream has nothing to wait for where no call was asynchronous, or where
        # the last call ran there, too.
        if not is_async and previous is None:
            if lane is None or lane.last_handle == raw_stream(device.index):
                return _PLAIN
        if device.type == "cpu":
            return Turn(None, is_async)
        current = stream = current_torch_stream(device.index)
        here = awaited = cuda_stream = raw_stream(device.index)
        is_apart = is_async and previous is not None and lane is not None
        if is_async:
            lane = self._lane(device)
            stream, cuda_stream = lane.stream, lane.cuda_stream
            if is_apart:
                awaited = cuda_stream
            else:
                stream.wait_stream(current)
        if previous is not None:
            stream.wait_event(previous)
        if lane is not None:
            lane.follow(stream, cuda_stream, awaited)
        return Turn(stream, is_async, is_apart, cuda_stream, here)

    def end(
        self,
        turn: Turn,
        tensors: tuple[Any, ...],
        made: tuple[Any, ...] = (),
        made_there: tuple[Any, ...] = (),
    ) -> EventOverlap:
        """The end of a call that uses torch's memory of `tensors`, and has made some for the caller:
        `made` by turn.allocate(), and `made_there` on its own stream."""
        if not turn.is_async:
            return EventOverlap()
        event = None
        if turn.stream is not None:
            event = cuda.Event()
            event.record(turn.stream)
            _record(tensors, turn.stream)
            if turn.is_apart or made_there:
                current = current_torch_stream(turn.stream.device.index)
                _record(made_there, current)
            _record(made, current if turn.is_apart else turn.stream)
        return EventOverlap(EventHandle.of(event, (*tensors, *made)))


def _record(tensors: tuple[Any, ...], stream: Any) -> None:
    for tensor in tensors:
        if tensor is not None:
            tensor.record_stream(stream)
