# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Which streams of the drop-in for deep_ep wait for which, with streams that only note it down."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Optional

import pytest
from helpers import torch

if torch is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from moebius.deep_ep import EventHandle, EventOverlap, comm_stream
from moebius.deep_ep.comm_stream import CommStreams
from moebius.deep_ep.high_throughput_calls import send_rows

GPU = torch.device("cuda", 0)


class Stream:
    """Notes what it is given."""

    def __init__(self, device: Any = GPU) -> None:
        self.device = device
        self.cuda_stream = id(self)
        self.done: list[Any] = []

    def wait_stream(self, other: Stream) -> None:
        self.done.append(other)

    def wait_event(self, event: Any) -> None:
        self.done.append(event)


class Event:
    stream: Optional[Stream] = None

    def record(self, stream: Stream) -> None:
        self.stream = stream


class Tensor:
    """Memory of a stream."""

    def __init__(self, owner: Stream) -> None:
        self.owner = owner
        self.users: list[Stream] = []

    def record_stream(self, stream: Stream) -> None:
        self.users.append(stream)

    def contiguous(self) -> Tensor:
        return self


class Cuda:
    """What the module takes of torch.cuda."""

    Stream = Stream
    Event = Event

    def __init__(self) -> None:
        self.current = Stream()

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def make(self) -> Tensor:
        return Tensor(self.current)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setattr(comm_stream, "cuda", made)
    monkeypatch.setattr(comm_stream, "raw_stream", lambda index: made.current.cuda_stream)
    monkeypatch.setattr(comm_stream, "current_torch_stream", lambda gpu: made.current)
    monkeypatch.setattr(comm_stream, "wrapped_stream", lambda gpu, stream: stream)
    monkeypatch.setattr(comm_stream, "capture_of", lambda stream: 0)
    return made


def test_calls_wait_for_the_call_before_them_and_not_twice(cuda: Cuda) -> None:
    streams = CommStreams()
    first = cuda.current
    for _ in range(2):
        assert streams.begin(GPU, None, False).stream is None
    assert first.done == []
    turn = streams.begin(GPU, None, True)
    comm = streams.on(GPU)
    assert turn.stream is comm and comm.done == [first] and not turn.is_apart
    assert streams.begin(GPU, None, False).stream is first  # waits for the asynchronous one
    assert first.done == [comm]
    assert streams.begin(GPU, None, False).stream is None  # its stream is where the last call was
    assert streams.begin(GPU, EventOverlap(), False).stream is None  # an event of nothing
    assert first.done == [comm]
    with cuda.stream(Stream()):
        other = cuda.current
        assert streams.begin(GPU, None, False).stream is other
        assert other.done == [first]
    assert streams.begin(GPU, None, False).stream is first
    assert first.done == [comm, other]
    streams.begin(GPU, None, True)
    assert comm.done == [first, first]


def test_a_call_after_an_event_has_memory_of_its_own_stream(cuda: Cuda) -> None:
    streams = CommStreams()
    first = cuda.current
    event = Event()
    previous = EventOverlap(EventHandle.of(event))
    turn = streams.begin(GPU, previous, True)  # the first one waits for all
    comm = streams.on(GPU)
    assert comm.done == [first, event] and not turn.is_apart
    given, made = Tensor(first), turn.allocate(cuda.make)
    assert made.owner is first
    ended = streams.end(turn, (given, None), (made, None))
    assert given.users == made.users == [comm] and ended.event is not None
    assert ended.event.event.stream is comm
    turn = streams.begin(GPU, previous, True)
    assert comm.done == [first, event, event] and turn.is_apart
    made = turn.allocate(cuda.make)
    assert made.owner is comm and cuda.current is first
    assert turn.contiguous(given, None) == [given, None]
    streams.end(turn, (given,), (made,))
    assert given.users == [comm, comm] and made.users == [first]
    there = Tensor(comm)
    streams.end(turn, (given,), made_there=(there,))
    assert there.users == [first]


class Rows:
    """What a dispatch has brought, which notes the stream that its tensors are given for."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.users: list[Any] = []

    def payloads_and(self, *names: str) -> tuple[list[Any], list[Any]]:
        self.users.append(self._stream)
        return [], [None for _ in names]


class Transport:
    def dispatch(self, *arguments: Any, stream: Any, **options: Any) -> Rows:
        return Rows(stream.cuda_stream)


class OnGpu:
    is_cuda = True
    shape = (1, 8)

    def element_size(self) -> int:
        return 2


@pytest.mark.parametrize("room", [0, 4])
def test_rows_are_given_back_after_the_stream_of_the_caller(cuda: Cuda, room: int) -> None:
    streams, first = CommStreams(), cuda.current
    turn = streams.begin(GPU, None, True)
    transport: Any = Transport()
    with cuda.stream(turn.stream):  # as ElasticBuffer does
        assert turn.user() == first.cuda_stream
        rows: Any
        rows, *_ = send_rows(transport, [OnGpu()], None, None, room, turn)
    assert rows.users == [first.cuda_stream]


def test_on_the_cpu_there_is_nothing_to_wait_for(cuda: Cuda) -> None:
    streams, cpu = CommStreams(), torch.device("cpu")
    streams.begin(GPU, None, True)
    for is_async in (False, True):
        turn = streams.begin(cpu, None, is_async)
        assert turn.stream is None and turn.handle(None) is None and turn.user() is None
        made = turn.allocate(cuda.make)
        assert (streams.end(turn, (made,)).event is None) != is_async
        assert made.users == []
