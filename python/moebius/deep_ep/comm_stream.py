# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""On which stream a call runs, and who waits for it.

A call that is not asynchronous runs on torch's current stream.  An asynchronous one runs on the
buffer's communication stream, so that the current stream goes on beside it.  Calls of a buffer are
ordered among each other, whatever streams they run on: a stream that another one follows is waited
for with all that it was given by then.  On the CPU none of this is needed."""
from __future__ import annotations

from typing import Any

from ..tensors import capture_of, named_stream
from .events import EventHandle, EventOverlap, cuda_event_of
from .tensors import cuda


class Turn:
    """The stream of one call.  None stands for torch's current one, and for the CPU."""

    def __init__(self, stream: Any, is_async: bool) -> None:
        self.stream = stream
        self.is_async = is_async

    def adopt(self, result: Any) -> None:
        """Lets a result of the library give its memory back only after what the current stream does
        with it from now on."""
        if self.stream is not None and self.is_async:
            result._stream = named_stream(cuda.current_stream(self.stream.device))


# The turn of a call that is where it would be without this module: on the CPU, or on torch's current
# stream.
_PLAIN = Turn(None, False)


class _Lane:
    """The communication stream of a GPU, and the stream of the last call."""

    def __init__(self, device: Any) -> None:
        self.stream: Any = cuda.Stream(device)
        self.last: Any = None

    def follow(self, stream: Any) -> None:
        """Orders a call on this stream after the last one.  A stream that is captured, and one that
        is not or is in another capture, cannot wait for each other: who launches a graph orders
        it."""
        last, self.last = self.last, stream
        if last is None or last.cuda_stream == stream.cuda_stream:
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

    def _lane(self, device: Any) -> _Lane:
        if device not in self._lanes:
            self._lanes[device] = _Lane(device)
        return self._lanes[device]

    def begin(self, device: Any, previous_event: Any, is_async: bool) -> Turn:
        """Makes the stream of a call wait for what comes before it."""
        previous = cuda_event_of(previous_event)
        if not is_async and previous is None and not self._lanes:
            return _PLAIN
        if device.type == "cpu":
            return Turn(None, is_async)
        current = stream = cuda.current_stream(device)
        if is_async:
            if previous is None or device not in self._lanes:
                self.on(device).wait_stream(current)
            stream = self.on(device)
        if previous is not None:
            stream.wait_event(previous)
        lane = self._lanes.get(device)
        if lane is not None:
            lane.follow(stream)
        return Turn(stream, is_async)

    def end(
        self, turn: Turn, tensors: tuple[Any, ...], made: tuple[Any, ...] = ()
    ) -> EventOverlap:
        """The end of a call that uses torch's memory of `tensors`, and has `made` some of its own
        for the caller."""
        if not turn.is_async:
            return EventOverlap()
        event = None
        if turn.stream is not None:
            event = cuda.Event()
            event.record(turn.stream)
            _record(tensors, turn.stream)
            _record(made, cuda.current_stream(turn.stream.device))
        return EventOverlap(EventHandle.of(event, tensors))


def _record(tensors: tuple[Any, ...], stream: Any) -> None:
    for tensor in tensors:
        if tensor is not None:
            tensor.record_stream(stream)
