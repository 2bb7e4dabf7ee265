# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What combines have in common whose tensors are of the same kind: a struct that is filled already.
See low_latency_plans.py.

Letters: T tokens of this rank, M rows received, H hidden, K top-k."""
from __future__ import annotations

from typing import Any, Optional

import torch

from .. import _structs as s
from .._callbacks import raised
from .._frames import FilledFrame, Frame, Frames
from .._library import lib
from ..errors import check

_X, _WEIGHTS, _SUMS, _WEIGHT_SUMS = range(4)
_COMBINES = Frames(s.CombineInput, 4)


class CombinePlan:
    """Combines of rows x [M, H] of one dtype, with weights f32 [M, K] or without, and no bias."""

    def __init__(self, x: Any, weights: Optional[Any]) -> None:
        self._hidden = x.shape[1]
        self._topk: int = 0 if weights is None else weights.shape[1]
        self._dtype = x.dtype
        self._device = x.device
        self._filled: list[FilledFrame] = []

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
        num_tokens: int,
        stream: Optional[int],
    ) -> tuple[Any, Optional[Any]]:
        """The sums [T, H], and those of the weights, f32 [T, K], or None.
        REQUIRES: the tensors are contiguous, and of the kinds that the plan was made with."""
        device = self._device
        sums = torch.empty((num_tokens, self._hidden), dtype=self._dtype, device=device)
        weight_sums = None
        if weights is not None:
            shape = (num_tokens, self._topk)
            weight_sums = torch.empty(shape, dtype=torch.float32, device=device)
        try:
            filled = self._filled.pop()
        except IndexError:
            filled = self._fill(x, weights, sums, weight_sums)
        tensors, shapes = filled.tensors, filled.shapes
        tensors[_X].data = x.data_ptr()
        shapes[_X][0] = x.shape[0]
        tensors[_SUMS].data = sums.data_ptr()
        shapes[_SUMS][0] = num_tokens
        if weight_sums is not None and weights is not None:
            tensors[_WEIGHTS].data = weights.data_ptr()
            shapes[_WEIGHTS][0] = weights.shape[0]
            tensors[_WEIGHT_SUMS].data = weight_sums.data_ptr()
            shapes[_WEIGHT_SUMS][0] = num_tokens
        status = lib.high_throughput_combine(transport, filled.struct, dispatched, stream, None)
        self._filled.append(filled)
        if status or raised:
            check(status)
        return sums, weight_sums
