# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Which streams of the drop-in for deep_ep wait for which, with streams that only note it down."""
from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any, Optional

import pytest
from helpers import torch

if torch is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from moebius._structs import INVALID_ARGUMENT
from moebius.deep_ep import EventHandle, EventOverlap, comm_stream, events
from moebius.deep_ep.comm_stream import CommStreams
from moebius.deep_ep.high_throughput_calls import send_rows

GPU = torch.device("cuda", 0)


class Stream:
    """Notes what it waits for."""

    def __init__(self, device: Any = GPU) -> None:
        self.device = device
        self.cuda_stream = id(self)
        self.done: list[Any] = []

    def wait_event(self, event: Any) -> None:
        self.done.append(event)


class Library:
    """The functions of the library for streams, whose handles are addresses of a Stream each, and
    for events, whose handles count."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.events: dict[int, Stream] = {}
        self.are_complete = False

    def stream_wait_stream(self, stream: int, other: int) -> int:
        self.streams[stream].done.append(self.streams[other])
        return 0

    def stream_record(self, stream: int, event: Any) -> int:
        number = event.value = 1 + max(self.events, default=0)
        self.events[number] = self.streams[stream]
        return 0

    def stream_wait(self, stream: int, event: int) -> int:
        self.streams[stream].done.append(event)
        return 0

    def stream_capture_id(self, stream: int, number: Any) -> int:
        return 0

    def event_is_complete(self, event: int, is_complete: Any) -> int:
        assert event in self.events
        is_complete.value = self.are_complete
        return 0

    def event_destroy(self, event: int) -> int:
        del self.events[event]
        return 0


class Tensor:
    """Memory of a stream."""

    def __init__(self, owner: Stream) -> None:
        self.owner = owner
        self.users: list[Stream] = []

    def record_stream(self, stream: Stream) -> None:
        self.users.append(stream)

    def resolve_neg(self) -> Tensor:
        return self

    def contiguous(self) -> Tensor:
        return self


class Cuda:
    """What the modules take of torch.cuda."""

    def __init__(self) -> None:
        self.lib = Library()
        self.current = self.Stream()

    def Stream(self, device: Any = GPU) -> Stream:
        stream = Stream(device)
        self.lib.streams[stream.cuda_stream] = stream
        return stream

    def current_device(self) -> int:
        return 0

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def make(self) -> Tensor:
        return Tensor(self.current)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    made = Cuda()
    for module in (comm_stream, events):
        monkeypatch.setattr(module, "cuda", made)
        monkeypatch.setattr(module, "lib", made.lib)
    monkeypatch.setattr(events, "current_stream", lambda gpu: made.current.cuda_stream)
    monkeypatch.setattr(comm_stream, "raw_stream", lambda index: made.current.cuda_stream)
    monkeypatch.setattr(comm_stream, "current_torch_stream", lambda gpu: made.current)
    monkeypatch.setattr(comm_stream, "wrapped_stream", lambda gpu, stream: stream)
    monkeypatch.setattr(comm_stream.Lane, "_is_complete", made.lib.event_is_complete)
    for kind in (comm_stream.Lane, EventHandle):
        monkeypatch.setattr(kind, "_destroy", made.lib.event_destroy)
    yield made
    gc.collect()
    assert made.lib.events == {}  # every event that was made has been given back


def test_calls_wait_for_the_call_before_them_and_not_twice(cuda: Cuda) -> None:
    streams = CommStreams()
    first = cuda.current
    for _ in range(2):
        turn = streams.begin(GPU, None, False)
        assert turn.stream is None and turn.own == turn.here == first.cuda_stream
    assert first.done == []
    turn = streams.begin(GPU, None, True)
    comm = streams.on(GPU)
    assert turn.stream is comm and comm.done == [first] and not turn.is_apart
    assert streams.begin(GPU, None, False).stream is first  # waits for the asynchronous one
    assert first.done == [comm]
    assert streams.begin(GPU, None, False).stream is None  # its stream is where the last call was
    assert streams.begin(GPU, EventOverlap(), False).stream is None  # an event of nothing
    assert first.done == [comm]
    with cuda.stream(cuda.Stream()):
        other = cuda.current
        turn = streams.begin(GPU, None, False)
        assert turn.stream is other and turn.own == turn.here == other.cuda_stream
        assert other.done == [first]
    assert streams.begin(GPU, None, False).stream is first
    assert first.done == [comm, other]
    streams.begin(GPU, None, True)
    assert comm.done == [first, first]


def test_a_call_after_an_event_has_memory_of_its_own_stream(cuda: Cuda) -> None:
    streams, lib = CommStreams(), cuda.lib
    first, before = cuda.current, cuda.Stream()
    number = 1
    lib.events[number] = before
    previous = EventOverlap(EventHandle.of_call(number))
    turn = streams.begin(GPU, previous, True)  # the first one waits for all
    comm = streams.on(GPU)
    assert comm.done == [first, number] and not turn.is_apart
    given, made = Tensor(first), turn.allocate(cuda.make)
    assert made.owner is first
    ended = streams.end(turn, (given, None), (made, None))
    assert given.users == [comm] and ended.event is not None
    assert lib.events[ended.event._number] is comm
    ended.current_stream_wait()
    turn = streams.begin(GPU, previous, True)
    assert comm.done == [first, number, number] and turn.is_apart
    made = turn.allocate(cuda.make)
    assert made.owner is comm and cuda.current is first
    assert turn.contiguous(given, None) == [given, None]
    streams.end(turn, (given,), (made,))
    assert given.users == [comm, comm] and made.users == [first]
    there = Tensor(comm)
    streams.end(turn, (given,), made_there=(there,))
    assert there.users == [first]


def test_an_event_of_torch_is_waited_for(cuda: Cuda) -> None:
    streams, first, event = CommStreams(), cuda.current, object()
    streams.begin(GPU, event, False)
    assert first.done == [event]
    streams.begin(GPU, EventOverlap(event), True)  # type: ignore[arg-type]
    assert streams.on(GPU).done == [first, event]


def ended_call(cuda: Cuda, streams: CommStreams) -> tuple[Tensor, EventOverlap]:
    """What an asynchronous call has made, and its end."""
    turn = streams.begin(GPU, None, True)
    made = turn.allocate(cuda.make)
    return made, streams.end(turn, (), (made, None))


def test_memory_of_a_stream_that_has_waited_is_free_at_once(cuda: Cuda) -> None:
    streams = CommStreams()
    made, event = ended_call(cuda, streams)
    event.current_stream_wait(release_handle=True)
    assert made.users == [] and cuda.lib.events == {}
    made, event = ended_call(cuda, streams)
    with cuda.stream(cuda.Stream()):
        event.current_stream_wait()  # not that of the call
    del event
    assert made.users == [] and len(cuda.lib.events) == 1
    ended_call(cuda, streams)
    assert made.users == [streams.on(GPU)]


@pytest.mark.parametrize("are_complete", [False, True])
def test_memory_that_nobody_has_waited_for_is_kept(cuda: Cuda, are_complete: bool) -> None:
    streams = CommStreams()
    made, event = ended_call(cuda, streams)
    comm = streams.on(GPU)
    others = weakref.ref(made)
    del event, made
    assert others() is not None  # the stream may still write it
    cuda.lib.are_complete = are_complete
    users = others().users  # type: ignore[union-attr]
    streams.begin(GPU, None, True)
    assert others() is None and users == ([] if are_complete else [comm])
    made, event = ended_call(cuda, streams)  # and without a call after it
    users = made.users
    del streams, event, made
    gc.collect()
    assert users == ([] if are_complete else [comm])


def test_what_a_parent_process_has_left_is_not_touched(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = CommStreams()
    made, event = ended_call(cuda, streams)
    del event
    monkeypatch.setattr(comm_stream.Lane, "_is_complete", lambda *arguments: INVALID_ARGUMENT)
    streams.begin(GPU, None, True)
    assert made.users == []


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
        assert turn.user == first.cuda_stream
        rows: Any
        rows, *_ = send_rows(transport, [OnGpu()], None, None, room, turn)
    assert rows.users == [first.cuda_stream]


def test_on_the_cpu_there_is_nothing_to_wait_for(cuda: Cuda) -> None:
    streams, cpu = CommStreams(), torch.device("cpu")
    streams.begin(GPU, None, True)
    for is_async in (False, True):
        turn = streams.begin(cpu, None, is_async)
        assert turn.stream is None and turn.own is None and turn.user is None
        made = turn.allocate(cuda.make)
        assert (streams.end(turn, (made,)).event is None) != is_async
        assert made.users == []
