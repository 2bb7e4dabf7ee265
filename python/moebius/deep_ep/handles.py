# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What a dispatch returns for its combine."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import c_void_p
from typing import Any, ClassVar, Optional

from .. import _torch as _torch_tensors
from .._callbacks import raised
from .._handles import Sole
from .._library import lib
from ..errors import InvalidArgument, check, end_made
from ..high_throughput import Dispatched, HighThroughput
from ..low_latency import LowLatencyDispatched
from .low_latency_plans import Plan, Words
from .ranks import Ranks


class DispatchHandle(Sole, Sequence):  # type: ignore[type-arg]
    """The route of a dispatch.  Its elements stand where DeepEP's do; those that describe buffers
    which do not exist here are None.

    Within a node: [0] rank_prefix_matrix i32 [R, R], the copies to rank `column` from the ranks 0
    to `row`; [3] i32 [rows], the token of each row on its rank; [4] is_token_in_rank bool [T, R].
    Over nodes: [0] is_token_in_rank; [6] i32 [R], the rows from the ranks 0 to r; [7] as [3].
    On GPUs without counts on the host, reading the tokens waits for the GPU."""

    _destroy: ClassVar[Any] = lib.result_destroy
    # A result of the library, until somebody needs it as an object.
    _number: Optional[int] = None
    _rows: Optional[Dispatched] = None

    def __init__(
        self,
        transport: HighThroughput,
        num_rows: int,
        room: int,
        is_token_in_rank: Any,
        ranks: Ranks,
    ) -> None:
        self.transport = transport
        self.num_rows = num_rows
        """The rows that combine takes from the front of its x."""
        self.room = room
        """The rows that the caller was given: num_rows, or num_worst_tokens."""
        self.is_token_in_rank = is_token_in_rank
        self._ranks = ranks

    def take(self, number: int, stream: Optional[int]) -> None:
        """Takes the result that the library has given for the dispatch, and the stream that uses it
        last."""
        self._number, self._stream = number, stream

    def hold(self, rows: Dispatched) -> None:
        """The same with an object."""
        self._rows = rows

    def number(self) -> int:
        """What the dispatch has brought as a handle of the library."""
        number = self._number
        return self.rows._get() if number is None else number

    @property
    def rows(self) -> Dispatched:
        """The same as an object."""
        number, self._number = self._number, None
        if number is not None:
            self._rows = Dispatched(number, _torch_tensors, self._stream)
        assert self._rows is not None
        return self._rows

    def __del__(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            self._destroy(number)

    @property
    def _spans_nodes(self) -> bool:
        return self._ranks.num_nodes > 1

    def __len__(self) -> int:
        return 10 if self._spans_nodes else 6

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"index is {index}, expected less than {len(self)}")
        return self._over_nodes(position) if self._spans_nodes else self._within_node(position)

    def _within_node(self, position: int) -> Any:
        if position == 0:
            return self.rows.rank_prefix
        if position == 3:
            return self.rows.source_token
        return self.is_token_in_rank if position == 4 else None

    def _over_nodes(self, position: int) -> Any:
        if position == 0:
            return self.is_token_in_rank
        if position == 6:
            return self.rows.rank_prefix[:, self._ranks.rank].contiguous()
        return self.rows.source_token if position == 7 else None


def expect_handle(handle: Any) -> DispatchHandle:
    if not isinstance(handle, DispatchHandle):
        raise InvalidArgument(
            f"handle is a {type(handle).__name__}, expected what dispatch() has returned"
        )
    return handle


class LowLatencyHandle(Sole, Sequence):  # type: ignore[type-arg]
    """A dispatch of low latency: (source_token i32 [L, rows], source_ranges i64 [L, R], max_tokens,
    hidden, num_experts).

    It holds one of the two banks of its transport until it is closed for the dispatch after the
    next, and is good until then."""

    is_combined = False
    _destroy: ClassVar[Any] = lib.result_destroy
    _abandon: ClassVar[Any] = lib.pending_destroy
    # A result of the library, until somebody needs it as an object.
    _number: Optional[int] = None
    _elements: Optional[tuple[Any, ...]] = None
    _result: Optional[LowLatencyDispatched] = None
    # Transfers of the library whose receive halves are not done, and what they need.
    _pending: Optional[int] = None
    _kept: Any = None
    _combining: Optional[int] = None
    _combining_kept: Any = None

    def __init__(
        self,
        plan: Plan,
        words: Words,
        stream: Optional[int],
        is_recorded: bool,
        number: int,
        keep: Optional[tuple[Any, ...]] = None,
    ) -> None:
        """Takes the result that the library has given for the dispatch, or with `keep` a pending
        one, which needs that."""
        self.plan = plan
        self.stream = stream
        """The stream of the dispatch."""
        self._words = words
        if keep is None:
            self._number = number
        else:
            self._pending, self._kept = number, keep
        if is_recorded:
            self._all()  # launches of the graph write the words, so nobody else may

    @property
    def max_tokens(self) -> int:
        return self.plan.sizes[0]

    @property
    def hidden(self) -> int:
        return self.plan.hidden

    @property
    def source_ranges(self) -> Any:
        return self._all()[1]

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all())

    def _all(self) -> tuple[Any, ...]:
        if self._elements is None:  # few callers look
            plan, words = self.plan, self._words
            self._elements = (plan.tokens_of(words), plan.ranges_of(words), *plan.sizes)
        return self._elements

    def finish(self) -> None:
        """The receive half, once."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        out = c_void_p()
        try:
            status = lib.pending_take(pending, out)
            self._kept = None
            if status or raised:
                self._abandon(pending)  # another thread may have been using it
                check(status)
        except BaseException:
            end_made(lib.pending_take, out)
            raise
        self._number = out.value

    def number(self) -> int:
        """What the dispatch has brought as a handle of the library, after its receive half."""
        if self._pending is not None:
            self.finish()
        number = self._number
        return self.result()._get() if number is None else number

    def result(self) -> LowLatencyDispatched:
        """The same as an object."""
        if self._pending is not None:
            self.finish()
        number, self._number = self._number, None
        if number is not None:
            self._result = _dispatched(number, self.stream)
        if self._result is None:
            raise InvalidArgument(
                "this handle is of a dispatch before the last two, whose memory has been used again"
            )
        return self._result

    def begin_combine(self, number: int, keep: Any) -> None:
        """Takes a pending combine of the library's, which needs `keep`.  finish_combine() or
        close() does its receive half, once."""
        self._combining, self._combining_kept = number, keep

    def finish_combine(self) -> None:
        combining, self._combining = self._combining, None
        if combining is None:
            return
        status = lib.pending_take(combining, None)
        self._combining_kept = None
        if status or raised:
            self._abandon(combining)
            check(status)

    def replace(self, result: LowLatencyDispatched) -> None:
        """Stands for another dispatch of the same tokens from now on."""
        self.close()
        self._result = result

    def close(self) -> None:
        """Gives the bank back.  Halves that nobody has asked for yet are received before that."""
        if self._pending is not None:
            self.finish()
        if self._combining is not None:
            self.finish_combine()
        number, self._number = self._number, None
        if number is not None:
            check(self._destroy(number))
        result, self._result = self._result, None
        if result is not None:
            result.close()

    def __del__(self) -> None:
        if self._pending is not None:
            self._abandon(self._pending)
        if self._combining is not None:
            self._abandon(self._combining)
        if self._number is not None:
            self._destroy(self._number)
        if self._elements is None:
            self.plan.spare_words[self.stream].append(self._words)


def _dispatched(number: int, stream: Optional[int]) -> LowLatencyDispatched:
    return LowLatencyDispatched(number, _torch_tensors, stream)


def expect_low_latency_handle(handle: Any) -> LowLatencyHandle:
    if not isinstance(handle, LowLatencyHandle):
        raise InvalidArgument(
            f"handle is a {type(handle).__name__}, expected what low_latency_dispatch() has returned"
        )
    return handle
