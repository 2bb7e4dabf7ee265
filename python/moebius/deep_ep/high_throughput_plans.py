# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What layouts, and combines, have in common whose tensors are of the same kind: a struct that is
filled already.  See low_latency_plans.py.

Letters: T tokens of this rank, M rows received, H hidden, K top-k, R ranks, E experts."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from .. import _structs as s
from .._callbacks import raised
from .._frames import FilledFrame, Frame, Frames, data_word, rows_word
from .._library import lib
from ..errors import check
from ..high_throughput import HighThroughput
from .comm_stream import Turn
from .tensors import Cuts, NewRows, maker

_IDS, _PER_RANK, _PER_NODE, _PER_EXPERT, _IN_RANK = range(5)
_IDS_DATA, _PER_RANK_DATA, _PER_NODE_DATA, _PER_EXPERT_DATA, _IN_RANK_DATA = map(data_word, range(5))
_IDS_ROWS, _IN_RANK_ROWS = rows_word(_IDS), rows_word(_IN_RANK)
_LAYOUTS = Frames(s.LayoutInput, 5)
_X, _WEIGHTS, _SUMS, _WEIGHT_SUMS = range(4)
_X_DATA, _WEIGHTS_DATA, _SUMS_DATA, _WEIGHT_SUMS_DATA = map(data_word, range(4))
_X_ROWS, _WEIGHTS_ROWS, _SUMS_ROWS, _WEIGHT_SUMS_ROWS = map(rows_word, range(4))
_COMBINES = Frames(s.CombineInput, 4)


# Memory for a layout: i32 [R], i32 [nodes] or None where there is one, i32 [E], and bool [T, R].
Counted = Tuple[Any, Any, Any, Any]


class LayoutPlan:
    """Layouts of ids [T, K] of one dtype."""

    def __init__(
        self, transport: HighThroughput, ids: Any, num_experts: int, num_ranks: int, num_nodes: int
    ) -> None:
        self.transport = transport
        self.device = ids.device
        self.gpu: Optional[int] = ids.get_device() if ids.is_cuda else None
        self._num_nodes = num_nodes
        self._new_per_node = maker(torch.int32, ids.device, num_nodes)
        self._new_in_rank = NewRows(torch.bool, ids.device, num_ranks)
        self._per_rank = Cuts(torch.int32, ids.device, num_ranks)
        self._per_expert = Cuts(torch.int32, ids.device, num_experts)
        self._filled: list[FilledFrame] = []

    def allocate(self, num_tokens: int, turn: Turn) -> Counted:
        """Makes memory for a layout of so many tokens in that turn."""
        if turn.is_async or turn.is_recorded():
            return turn.allocate(self._allocate, num_tokens, None)  # type: ignore[no-any-return]
        return self._allocate(num_tokens, turn.here)

    def _allocate(self, num_tokens: int, here: Optional[int]) -> Counted:
        """Cuts counts for torch's stream `here`; with None they get memory of their own."""
        per_rank, per_expert = self._per_rank, self._per_expert
        return (
            per_rank.alone() if here is None else per_rank.take(here)[0],
            self._new_per_node() if self._num_nodes > 1 else None,
            per_expert.alone() if here is None else per_expert.take(here)[0],
            self._new_in_rank(num_tokens),
        )

    def _fill(self, ids: Any, made: Counted) -> FilledFrame:
        frame = Frame(_LAYOUTS, 5)
        frame.fill(*[frame.put(index, x) for index, x in enumerate((ids, *made))])
        return FilledFrame(frame)

    def count(self, ids: Any, made: Counted, stream: Optional[int]) -> None:
        """Writes the layout of the ids.
        REQUIRES: they are contiguous, and of the kind that the plan was made with."""
        try:
            filled = self._filled.pop()
        except IndexError:
            filled = self._fill(ids, made)
        per_rank, per_node, per_expert, in_rank = made
        words = filled.words
        words[_IDS_DATA] = ids.data_ptr()
        words[_IDS_ROWS] = words[_IN_RANK_ROWS] = ids.shape[0]
        words[_PER_RANK_DATA] = per_rank.data_ptr()
        if per_node is not None:
            words[_PER_NODE_DATA] = per_node.data_ptr()
        words[_PER_EXPERT_DATA] = per_expert.data_ptr()
        words[_IN_RANK_DATA] = in_rank.data_ptr()
        status = lib.high_throughput_layout(self.transport._get(), filled.struct, stream, None)
        self._filled.append(filled)
        if status or raised:
            check(status)


class CombinePlan:
    """Combines of rows x [M, H] of one dtype, with weights f32 [M, K] or without, and no bias."""

    def __init__(self, x: Any, weights: Optional[Any]) -> None:
        self.device = x.device
        self.gpu: Optional[int] = x.get_device() if x.is_cuda else None
        self._new_sums = NewRows(x.dtype, x.device, x.shape[1])
        self._new_weights: Optional[NewRows] = None
        if weights is not None:
            self._new_weights = NewRows(torch.float32, x.device, weights.shape[1])
        self._filled: list[FilledFrame] = []

    def allocate(self, num_tokens: int) -> tuple[Any, Optional[Any]]:
        """Memory for the sums [T, H], and for those of the weights, f32 [T, K]."""
        sums = self._new_sums(num_tokens)
        return sums, None if self._new_weights is None else self._new_weights(num_tokens)

    def _fill(self, x: Any, weights: Any, sums: Any, weight_sums: Any) -> FilledFrame:
        frame = Frame(_COMBINES, 4)
        put = frame.put
        frame.fill(
            put(_X, x),
            put(_WEIGHTS, weights),
            0,
            0,
            0,
            False,
            put(_SUMS, sums),
            put(_WEIGHT_SUMS, weight_sums),
        )
        return FilledFrame(frame)

    def combine(
        self,
        transport: int,
        dispatched: int,
        x: Any,
        weights: Optional[Any],
        sums: Any,
        weight_sums: Optional[Any],
        stream: Optional[int],
    ) -> None:
        """Writes the sums.
        REQUIRES: the tensors are contiguous, and of the kinds that the plan was made with."""
        try:
            filled = self._filled.pop()
        except IndexError:
            filled = self._fill(x, weights, sums, weight_sums)
        words = filled.words
        words[_X_DATA] = x.data_ptr()
        words[_X_ROWS] = x.shape[0]
        words[_SUMS_DATA] = sums.data_ptr()
        words[_SUMS_ROWS] = num_tokens = sums.shape[0]
        if weight_sums is not None and weights is not None:
            words[_WEIGHTS_DATA] = weights.data_ptr()
            words[_WEIGHTS_ROWS] = weights.shape[0]
            words[_WEIGHT_SUMS_DATA] = weight_sums.data_ptr()
            words[_WEIGHT_SUMS_ROWS] = num_tokens
        status = lib.high_throughput_combine(transport, filled.struct, dispatched, stream, None)
        self._filled.append(filled)
        if status or raised:
            check(status)
