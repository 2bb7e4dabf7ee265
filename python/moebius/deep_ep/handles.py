# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What a dispatch returns for its combine."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from ..errors import InvalidArgument
from ..high_throughput import Dispatched, HighThroughput
from ..low_latency import LowLatency, LowLatencyCombined, LowLatencyDispatched
from ..transports import Pending


class DispatchHandle(Sequence):  # type: ignore[type-arg]
    """The route of a dispatch.  Its elements stand where DeepEP's do; those that describe buffers
    which do not exist here are None.

    Within a node: [0] rank_prefix_matrix i32 [R, R], the copies to rank `column` from the ranks 0
    to `row`; [3] i32 [rows], the token of each row on its rank; [4] is_token_in_rank bool [T, R].
    Over nodes: [0] is_token_in_rank; [6] i32 [R], the rows from the ranks 0 to r; [7] as [3].
    On GPUs without counts on the host, reading the tokens waits for the GPU."""

    def __init__(
        self, transport: HighThroughput, rows: Dispatched, num_rows: int, room: int, **more: Any
    ) -> None:
        self.transport = transport
        self.rows = rows
        self.num_rows = num_rows
        """The rows that combine takes from the front of its x."""
        self.room = room
        """The rows that the caller was given: num_rows, or num_worst_tokens."""
        self.is_token_in_rank = more["is_token_in_rank"]
        self._rank: int = more["rank"]
        self._spans_nodes: bool = more["spans_nodes"]

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
            return self.rows.rank_prefix[:, self._rank].contiguous()
        return self.rows.source_token if position == 7 else None


def expect_handle(handle: Any) -> DispatchHandle:
    if not isinstance(handle, DispatchHandle):
        raise InvalidArgument(
            f"handle is a {type(handle).__name__}, expected what dispatch() has returned"
        )
    return handle


class LowLatencyRoute:
    """A dispatch of low latency.  It holds one of the two banks of its transport, until it is closed
    for the dispatch after the next."""

    def __init__(
        self,
        transport: LowLatency,
        pending: Optional[Pending[LowLatencyDispatched]] = None,
        result: Optional[LowLatencyDispatched] = None,
    ) -> None:
        self.transport = transport
        self.is_combined = False
        self._pending = pending
        self._result = result
        self._combining: Optional[Pending[LowLatencyCombined]] = None

    def finish(self) -> None:
        """The receive half, once."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._result = pending.finish()

    def result(self) -> LowLatencyDispatched:
        """What the dispatch has brought, after its receive half."""
        self.finish()
        if self._result is None:
            raise InvalidArgument(
                "this handle is of a dispatch before the last two, whose memory has been used again"
            )
        return self._result

    def begin_combine(self, combining: Pending[LowLatencyCombined]) -> None:
        """Keeps the receive half of a combine, which finish_combine() or close() does, once."""
        self._combining = combining

    def finish_combine(self) -> None:
        combining, self._combining = self._combining, None
        if combining is not None:
            combining.finish()

    def close(self) -> None:
        """Gives the bank back.  Halves that nobody has asked for yet are received before that."""
        self.finish()
        self.finish_combine()
        result, self._result = self._result, None
        if result is not None:
            result.close()


class LowLatencyHandle(tuple):  # type: ignore[type-arg]
    """(source_token i32 [L, rows], source_ranges i64 [L, R], max_tokens, hidden, num_experts).

    It is good until the dispatch after the next."""

    route: LowLatencyRoute


def expect_low_latency_handle(handle: Any) -> LowLatencyHandle:
    if not isinstance(handle, LowLatencyHandle):
        raise InvalidArgument(
            f"handle is a {type(handle).__name__}, expected what low_latency_dispatch() has returned"
        )
    return handle
