# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What the calls of low latency have in common whose tensors are of the same kind.

It is decided at the first of them: the transport, the shapes of what is returned, and structs that
are filled already.  Another such call allocates its results, writes addresses and the number of
tokens into the structs, and calls the library once.  Whatever a struct says of a tensor is part of
the key of a dispatch, or compared before a combine, so no tensor is taken for one of another kind.

Letters: T tokens of this rank, H hidden, K top-k, R ranks, L local experts; rows are
max_tokens * R."""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Optional

import torch

from .. import _structs as s
from .. import _torch as _torch_tensors
from .._callbacks import raised
from .._frames import FilledFrame, Frame, Frames
from .._library import lib
from ..errors import check
from ..low_latency import LowLatency, LowLatencyCombined
from ..transports import Pending
from .tensors import as_fp8, fp8_dtype

_GROUP = 128  # elements that share a scale


@dataclass(frozen=True)
class Cast:
    """How rows travel."""

    use_fp8: bool
    round_scale: bool
    use_ue8m0: bool

    @property
    def code(self) -> int:
        if not self.use_fp8:
            return s.CAST_NONE
        return s.CAST_FP8_UE8M0 if self.round_scale else s.CAST_FP8

    @property
    def scales(self) -> int:
        if not self.use_fp8:
            return s.SCALES_ROWS
        return s.SCALES_PACKED_COLUMNS if self.use_ue8m0 else s.SCALES_COLUMNS


# The tensors of a dispatch, and of a combine.
_X, _IDS, _ROWS, _SCALES, _COUNTS, _TOKENS, _RANGES, _RECEIVED, _WAIT_US = range(9)
_Y, _COMBINE_IDS, _WEIGHTS, _OUT, _COMBINE_WAIT_US = range(5)
_DISPATCHES = Frames(s.LowLatencyDispatchInput, 9)
_COMBINES = Frames(s.LowLatencyCombineInput, 5)


@dataclass
class Received:
    """Memory for the results of a dispatch."""

    rows: Any
    scales: Any  # [L, rows, G], whose columns are neighbours in memory; None without a cast
    counts: Any  # i32 [L]
    words: Any  # i64: the ranges [L, R], then the tokens i32 [L, rows]


class Plan:
    """See the top of this file.  One thread at a time may use it."""

    def __init__(
        self,
        transport: LowLatency,
        x: Any,
        ids: Any,
        num_ranks: int,
        num_local: int,
        rows: int,
        cast: Cast,
    ) -> None:
        self.transport = transport
        self.cast = cast
        self.device = x.device
        self.dtype = x.dtype
        self.ids_dtype = ids.dtype
        self.topk = ids.shape[1]
        self.hidden = x.shape[1]
        self.rows_shape = torch.Size((num_local, rows, self.hidden))
        self.ranges_shape = (num_local, num_ranks)
        self._num_ranges = num_local * num_ranks
        self._num_tokens = num_local * rows
        self._num_words = self._num_ranges + (self._num_tokens + 1) // 2
        self._rows_dtype = fp8_dtype if cast.use_fp8 else x.dtype
        groups = -(-self.hidden // (4 * _GROUP)) if cast.use_ue8m0 else self.hidden // _GROUP
        self._scales_shape = (num_local, rows, groups)
        self._scales_strides = (groups * rows, 1, rows)
        self._scales_dtype = torch.int32 if cast.use_ue8m0 else torch.float32
        self._dispatches: list[FilledFrame] = []
        self._combines: list[FilledFrame] = []

    def allocate(self) -> Received:
        device = self.device
        scales = None
        if self.cast.use_fp8:
            scales = torch.empty_strided(
                self._scales_shape, self._scales_strides, dtype=self._scales_dtype, device=device
            )
        return Received(
            torch.empty(self.rows_shape, dtype=self._rows_dtype, device=device),
            scales,
            torch.empty(self.rows_shape[:1], dtype=torch.int32, device=device),
            torch.empty(self._num_words, dtype=torch.int64, device=device),
        )

    def ranges_of(self, words: Any) -> Any:
        """i64 [L, R]."""
        return words[: self._num_ranges].view(self.ranges_shape)

    def tokens_of(self, words: Any) -> Any:
        """i32 [L, rows]."""
        tokens = words[self._num_ranges :].view(torch.int32)[: self._num_tokens]
        return tokens.view(self.rows_shape[:2])

    def _fill_dispatch(self, x: Any, ids: Any, made: Received) -> FilledFrame:
        frame = Frame(_DISPATCHES, 9)
        put = frame.put
        cast = self.cast
        frame.fill(
            put(_X, x),
            0,
            put(_IDS, ids),
            cast.code,
            cast.scales,
            0,
            0,
            0,
            0,
            0,
            False,
            put(_ROWS, as_fp8(made.rows) if cast.use_fp8 else made.rows),
            put(_SCALES, made.scales.transpose(1, 2)) if cast.use_fp8 else 0,
            put(_COUNTS, made.counts),
            0,
            put(_TOKENS, self.tokens_of(made.words)),
            put(_RANGES, self.ranges_of(made.words)),
        )
        return FilledFrame(frame)

    def dispatch(
        self,
        x: Any,
        ids: Any,
        made: Received,
        received: Any,
        wait_us: Any,
        stream: Optional[int],
        starts: bool,
    ) -> int:
        """Gives a result, or with `starts` a pending one."""
        try:
            filled = self._dispatches.pop()
        except IndexError:
            filled = self._fill_dispatch(x, ids, made)
        tensors, shapes = filled.tensors, filled.shapes
        tensors[_X].data = x.data_ptr()
        shapes[_X][0] = x.shape[0]
        tensors[_IDS].data = ids.data_ptr()
        shapes[_IDS][0] = ids.shape[0]
        tensors[_ROWS].data = made.rows.data_ptr()
        if made.scales is not None:
            tensors[_SCALES].data = made.scales.data_ptr()
        tensors[_COUNTS].data = made.counts.data_ptr()
        words = made.words.data_ptr()
        tensors[_RANGES].data = words
        tensors[_TOKENS].data = words + 8 * self._num_ranges
        kept = None
        if received is not None or wait_us is not None:
            kept = self._lend_statistics(filled, received, wait_us)
        function = lib.low_latency_dispatch_start if starts else lib.low_latency_dispatch
        status = function(self.transport._get(), filled.struct, stream, filled.out_pointer)
        if kept is not None:
            filled.struct.received = filled.struct.wait_us = None
        self._dispatches.append(filled)
        if status or raised:
            check(status)
        return filled.out.value or 0

    @staticmethod
    def _lend_statistics(filled: FilledFrame, received: Any, wait_us: Any) -> list[Any]:
        kept = []
        if received is not None:
            filled.struct.received, keep = filled.lend(_RECEIVED, received)
            kept.append(keep)
        if wait_us is not None:
            filled.struct.wait_us, keep = filled.lend(_WAIT_US, wait_us)
            kept.append(keep)
        return kept

    def fits_combine(self, x: Any, ids: Any, weights: Any, out: Any) -> bool:
        """Whether these are of the kinds that the struct of a combine says."""
        device = self.device
        return (
            x.shape == self.rows_shape
            and ids.shape[1] == self.topk
            and out.shape[1] == self.hidden
            and weights.shape == ids.shape
            and x.dtype is self.dtype
            and out.dtype is self.dtype
            and ids.dtype is self.ids_dtype
            and weights.dtype is torch.float32
            and x.device == device
            and ids.device == device
            and weights.device == device
            and out.device == device
            and out.is_contiguous()
        )

    def _fill_combine(self, x: Any, ids: Any, weights: Any, out: Any) -> FilledFrame:
        frame = Frame(_COMBINES, 5)
        put = frame.put
        frame.fill(
            put(_Y, x),
            put(_COMBINE_IDS, ids),
            put(_WEIGHTS, weights),
            0,
            s.CODING_NONE,
            0,
            False,
            put(_OUT, out),
        )
        return FilledFrame(frame)

    def combine(
        self,
        dispatched: int,
        x: Any,
        ids: Any,
        weights: Any,
        out: Any,
        coding: int,
        wait_us: Any,
        stream: Optional[int],
        starts: bool,
    ) -> int:
        """Combines into `out`, or with `starts` gives a pending result.
        REQUIRES: fits_combine()."""
        try:
            filled = self._combines.pop()
        except IndexError:
            filled = self._fill_combine(x, ids, weights, out)
        tensors, shapes = filled.tensors, filled.shapes
        tensors[_Y].data = x.data_ptr()
        num_tokens = ids.shape[0]
        tensors[_COMBINE_IDS].data = ids.data_ptr()
        shapes[_COMBINE_IDS][0] = num_tokens
        tensors[_WEIGHTS].data = weights.data_ptr()
        shapes[_WEIGHTS][0] = num_tokens
        tensors[_OUT].data = out.data_ptr()
        shapes[_OUT][0] = out.shape[0]
        filled.struct.coding = coding
        kept = None
        if wait_us is not None:
            filled.struct.wait_us, kept = filled.lend(_COMBINE_WAIT_US, wait_us)
        transport = self.transport._get()
        if starts:
            status = lib.low_latency_combine_start(
                transport, filled.struct, dispatched, stream, filled.out_pointer
            )
        else:
            status = lib.low_latency_combine(transport, filled.struct, dispatched, stream, None)
        if kept is not None:
            filled.struct.wait_us = None
        self._combines.append(filled)
        if status or raised:
            check(status)
        return filled.out.value or 0

    @staticmethod
    def pending_combine(
        number: int, keep: Any, stream: Optional[int]
    ) -> Pending[LowLatencyCombined]:
        """What combine() has given with `starts`, which needs `keep`."""
        make = functools.partial(_combined, stream=stream)
        return Pending(number, make, keep, is_async=True)


def _combined(number: int, stream: Optional[int]) -> LowLatencyCombined:
    return LowLatencyCombined(number, _torch_tensors, stream)
