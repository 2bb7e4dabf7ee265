# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""On which stream a call runs, and who waits for it.

A call that is not asynchronous runs on torch's current stream.  An asynchronous one runs on the
buffer's communication stream, so that the current stream goes on beside it.  Calls of a buffer are
ordered among each other, whatever streams they run on: a stream that another one follows is waited
for with all that it was given by then.  On the CPU none of this is needed."""
from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int32, c_uint64
from typing import Any, ClassVar, Optional

import torch

from .._library import lib
from .._structs import INVALID_ARGUMENT
from .._streams import wrapped_stream
from .._torch import contiguous, raw_stream
from ..errors import Unsupported, check, create
from .events import EventHandle, EventOverlap, event_of
from .tensors import cuda, current_torch_stream, is_capturing


class Turn:
    """The stream of one call."""

    def __init__(
        self,
        own: Optional[int] = None,
        here: int = 0,
        stream: Any = None,
        user: Optional[int] = None,
        lane: Optional[Lane] = None,
        is_async: bool = False,
        is_apart: bool = False,
    ) -> None:
        self.own = own
        """The library's handle of the stream; None on the CPU."""
        self.here = here
        """torch's current stream when the call began, as a number; 0 on the CPU, too."""
        self.stream = stream
        """The stream of torch; None stands for torch's current one, and for the CPU."""
        self.user = user
        """The library's handle of the stream that uses results last, which then give their memory
        back: torch's current one when an asynchronous call began, in whose body another one may be
        current; None where that is the stream of the call."""
        self.lane = lane
        """That of an asynchronous call on a GPU."""
        self.is_async = is_async
        self.is_apart = is_apart
        """Whether the stream has not waited for torch's current one.  Memory that torch gives for
        that one may still be in use there."""

    def adopt(self, result: Any) -> None:
        """Lets a result of the library give its memory back only after what the stream `user` does
        with it.  Call this before its tensors are read."""
        if self.user is not None:
            result._stream = self.user

    def wait(self, event: Any) -> None:
        """Lets the call begin after what event_of() has given."""
        if isinstance(event, EventHandle):
            event.hold_back(self.own)
        elif event is not None:
            self.stream.wait_event(event)

    def is_recorded(self) -> bool:
        """Whether torch's current stream is captured; the default stream cannot be."""
        return self.here != 0 and is_capturing()

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
                return [None if x is None else contiguous(x) for x in tensors]
        return [None if x is None else contiguous(x) for x in tensors]


_ON_CPU = Turn()
_ASYNC_ON_CPU = Turn(is_async=True)


class Lane:
    """The calls on a device: on a GPU the communication stream, the stream of the last call, and
    what calls have left."""

    _is_complete: ClassVar[Any] = lib.event_is_complete
    _destroy: ClassVar[Any] = lib.event_destroy

    def __init__(self, device: Any) -> None:
        self.gpu: Optional[int] = None if device.type == "cpu" else device.index
        self.stream: Any = None
        """The communication stream, once there was an asynchronous call."""
        self.cuda_stream: Optional[int] = None
        self.own: Optional[int] = None
        """The library's handle of it."""
        self.last: Optional[int] = None
        """That of the stream of the last call since then."""
        self.last_cuda_stream: Optional[int] = None
        self.left: list[tuple[int, tuple[Any, ...]]] = []
        self.plain: dict[int, Turn] = {}
        """The turns of calls on torch's current stream, by its number, that wait for nothing."""

    def open(self, device: Any) -> None:
        """Makes the communication stream."""
        if self.stream is None:
            self.stream = cuda.Stream(device)
            self.cuda_stream = self.stream.cuda_stream
            self.own = wrapped_stream(device.index, self.stream.cuda_stream)

    def make_plain(self, here: int) -> Turn:
        """Makes the plain turn of a stream."""
        turn = self.plain[here] = Turn(wrapped_stream(self.gpu or 0, here), here)
        return turn

    def plain_turn(self) -> Optional[Turn]:
        """The turn of a call on torch's current stream that has nothing to wait for: no call was
        asynchronous, or the last one ran on that stream, too.  None where it may have to wait."""
        if self.gpu is None:
            return _ON_CPU
        here: int = raw_stream(self.gpu)
        if self.stream is None or self.last_cuda_stream == here:
            return self.plain.get(here) or self.make_plain(here)
        return None

    def follow(self, stream: Optional[int], awaited: Optional[int]) -> None:
        """Orders a call on this stream, which has waited for the stream `awaited`, after the last
        one.  A stream that is captured, and one that is not or is in another capture, cannot wait
        for each other: who launches a graph orders it."""
        last, self.last = self.last, stream
        if last is None or last == stream or last == awaited:
            return
        if _capture_of(last) == _capture_of(stream):
            check(lib.stream_wait_stream(stream, last))

    def leave(self, event: int, made: tuple[Any, ...]) -> None:
        """Keeps tensors that the stream may still write, and their event, which nobody else has."""
        self.left.append((event, made))

    def let_go(self) -> None:
        """Gives back what was left.  Where its event is past, the allocator need not be told of the
        stream, which would cost it an event for each tensor."""
        left, self.left = self.left, []
        is_past = c_int32()
        for event, made in left:
            is_past.value = 0
            status = self._is_complete(event, is_past)
            # The events of a parent process are no events here, and its tensors are not ours.
            if not is_past.value and status != INVALID_ARGUMENT:
                _record(made, self.stream)
            self._destroy(event)

    def __del__(self) -> None:
        if self.left:
            self.let_go()


class CommStreams:
    """The communication streams of a buffer."""

    def __init__(self) -> None:
        self._lanes: dict[Any, Lane] = {}
        self._turns: dict[tuple[int, int], Turn] = {}
        """Of asynchronous calls that wait for torch's current stream, by GPU and stream."""

    def on(self, device: Any) -> Any:
        """The stream of a GPU."""
        lane = self.lane(device)
        lane.open(device)
        return lane.stream

    def current(self) -> Any:
        """The stream of torch's current GPU."""
        if not cuda.is_available():
            raise Unsupported("get_comm_stream() needs a GPU; calls on the CPU run in the caller")
        return self.on(torch.device("cuda", cuda.current_device()))

    def lane(self, device: Any) -> Lane:
        """The calls on a device."""
        lane = self._lanes.get(device)
        return self._lanes.setdefault(device, Lane(device)) if lane is None else lane

    def begin(self, device: Any, previous_event: Any, is_async: bool) -> Turn:
        """Makes the stream of a call wait for what comes before it."""
        lane = self._lanes.get(device) or self.lane(device)
        previous = None if previous_event is None else event_of(previous_event)
        if previous is None and not is_async:
            plain = lane.plain_turn()
            if plain is not None:
                return plain
        gpu = lane.gpu
        if gpu is None:
            return _ASYNC_ON_CPU if is_async else _ON_CPU
        here: int = raw_stream(gpu)
        is_first = lane.stream is None
        if is_async:
            is_apart = previous is not None and not is_first
            if is_apart:
                turn = self._make_turn(device, here, is_apart=True)
                awaited = turn.own
            else:
                turn = self._turn(device, here)
                awaited = turn.user
                check(lib.stream_wait_stream(turn.own, awaited))
        else:
            awaited = wrapped_stream(gpu, here)
            turn = Turn(awaited, here, current_torch_stream(gpu))
        if previous is not None:
            turn.wait(previous)
        if lane.stream is not None:
            lane.follow(turn.own, awaited)
            lane.last_cuda_stream = lane.cuda_stream if is_async else here
            if lane.left:
                lane.let_go()
        return turn

    def _turn(self, device: Any, here: int) -> Turn:
        turn = self._turns.get((device.index, here))
        if turn is None:
            turn = self._make_turn(device, here, is_apart=False)
            self._turns[device.index, here] = turn
        return turn

    def _make_turn(self, device: Any, here: int, is_apart: bool) -> Turn:
        lane, waiting = self.lane(device), wrapped_stream(device.index, here)
        lane.open(device)
        return Turn(lane.own, here, lane.stream, waiting, lane, True, is_apart)

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
        if turn.lane is None:
            return EventOverlap(EventHandle.of_call(None, (tensors, made)))
        number = create(lib.stream_record, turn.own)
        _record(tensors, turn.stream)
        if made and not turn.is_apart:
            event = EventHandle.of_call(number, tensors, made, turn.user, turn.lane)
        else:
            event = EventHandle.of_call(number, (tensors, made))
        if turn.is_apart or made_there:
            current = current_torch_stream(turn.stream.device.index)
            _record(made_there, current)
            if turn.is_apart:
                _record(made, current)
        return EventOverlap(event)


def _record(tensors: tuple[Any, ...], stream: Any) -> None:
    for tensor in tensors:
        if tensor is not None:
            tensor.record_stream(stream)


def _capture_of(stream: Optional[int]) -> int:
    """The number of the capture that a stream is in, which no other capture has; 0 for none."""
    found = c_uint64()
    check(lib.stream_capture_id(stream, found))
    return found.value
