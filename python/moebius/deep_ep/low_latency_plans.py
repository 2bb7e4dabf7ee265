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

import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, Tuple

import torch

from .. import _structs as s
from .._callbacks import raised
from .._frames import FilledFrame, Frame, Frames, data_word, rows_word
from .._library import lib
from ..errors import check, end_made
from ..low_latency import LowLatency
from .comm_stream import Lane, Turn
from .tensors import Cuts, as_fp8, fp8_dtype, inference_mode, maker, maker_like

_GROUP = 128  # elements that share a scale
_WEIGHTS_DTYPE: Any = torch.float32


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
_X_DATA, _IDS_DATA, _ROWS_DATA, _SCALES_DATA, _COUNTS_DATA, _TOKENS_DATA, _RANGES_DATA = map(
    data_word, range(_RANGES + 1)
)
_X_ROWS, _IDS_ROWS = rows_word(_X), rows_word(_IDS)
_Y_DATA, _COMBINE_IDS_DATA, _WEIGHTS_DATA, _OUT_DATA = map(data_word, range(_OUT + 1))
_COMBINE_IDS_ROWS, _WEIGHTS_ROWS, _OUT_ROWS = map(rows_word, (_COMBINE_IDS, _WEIGHTS, _OUT))
_DISPATCHES = Frames(s.LowLatencyDispatchInput, 9)
_COMBINES = Frames(s.LowLatencyCombineInput, 5)


# A plan remembers so many numbers of tokens, each of which keeps up to a block of memory.
_MOST_NEW_SUMS = 16


def _nobody() -> None:
    pass


class Banks:
    """The last two dispatches of a transport, which have a bank each.

    A dispatch never finds its bank taken: make_room() receives what is still to be received of the
    dispatch before last, and closes it.  Tensors that a caller has lie in torch's memory, so
    nothing that was returned is overwritten."""

    def __init__(self) -> None:
        self.last: Callable[[], Any] = _nobody
        """Gives the LowLatencyHandle of the last dispatch, or None where nobody has it any more."""
        self.before_last: Callable[[], Any] = _nobody

    def make_room(self) -> None:
        """Takes the bank of the dispatch before last, for the next one."""
        handle = self.before_last()
        if handle is not None:
            handle.close()

    def add(self, handle: Any) -> None:
        """Takes the handle of the dispatch that has come after make_room(): a new one, or one of the
        last two, which stands for another dispatch now."""
        if self.last() is not handle:
            self.before_last = self.last
        self.last = weakref.ref(handle)


# Memory i64 for the ranges [L, R] and then the tokens i32 [L, rows], and the addresses of the two.
Words = Tuple[Any, int, int]
# Memory for the results of a dispatch: rows [L, rows, H]; scales [L, rows, G], whose columns are
# neighbours in memory, or None without a cast; counts i32 [L]; and words.
Received = Tuple[Any, Any, Any, Words]


class Plan:
    """See the top of this file.  One thread at a time may use it."""

    def __init__(
        self,
        transport: LowLatency,
        banks: Banks,
        lane: Lane,
        x: Any,
        ids: Any,
        num_ranks: int,
        num_local: int,
        max_tokens: int,
        num_experts: int,
        cast: Cast,
    ) -> None:
        self.transport = transport
        self.banks = banks
        self.lane = lane
        self.cast = cast
        self.device = x.device
        self._index: int = x.get_device()
        self.dtype = x.dtype
        self.ids_dtype = ids.dtype
        self.topk = ids.shape[1]
        self.hidden: int = x.shape[1]
        self.sizes = (max_tokens, self.hidden, num_experts)
        rows = max_tokens * num_ranks
        self.rows_shape = torch.Size((num_local, rows, self.hidden))
        self.ranges_shape = (num_local, num_ranks)
        self._num_ranges = num_local * num_ranks
        self._num_tokens = num_local * rows
        self._num_words = self._num_ranges + (self._num_tokens + 1) // 2
        groups = -(-self.hidden // (4 * _GROUP)) if cast.use_ue8m0 else self.hidden // _GROUP
        rows_dtype = fp8_dtype if cast.use_fp8 else x.dtype
        self._new_rows = maker(rows_dtype, x.device, *self.rows_shape)
        self._new_scales: Optional[Callable[[], Any]] = None
        if cast.use_fp8:
            dtype: Any = torch.int32 if cast.use_ue8m0 else torch.float32
            shape, strides = (num_local, rows, groups), (groups * rows, 1, rows)
            with inference_mode(False):
                scales = torch.empty_strided(shape, strides, dtype=dtype, device=x.device)
            self._new_scales = maker_like(scales)
        self._counts = Cuts(torch.int32, x.device, num_local)
        self._new_words = maker(torch.int64, x.device, self._num_words)
        self._new_sums: dict[int, Cuts] = {}
        """By a number of tokens T, what makes memory [T, H] for the sums of a combine."""
        self.spare_words: defaultdict[Optional[int], list[Words]] = defaultdict(list)
        """Words that nobody has looked at, for a later dispatch on the same stream, which then
        writes them after the one that has written them first."""
        # Those of the last calls, for the next ones.
        self._filled_dispatch: Optional[FilledFrame] = None
        self._filled_combine: Optional[FilledFrame] = None

    def _make_words(self) -> Words:
        with inference_mode(False):  # they may be used again in another mode
            words = self._new_words()
        ranges = words.data_ptr()
        return words, ranges, ranges + 8 * self._num_ranges

    def ranges_of(self, words: Words) -> Any:
        """i64 [L, R]."""
        return words[0][: self._num_ranges].view(self.ranges_shape)

    def tokens_of(self, words: Words) -> Any:
        """i32 [L, rows]."""
        tokens = words[0][self._num_ranges :].view(torch.int32)[: self._num_tokens]
        return tokens.view(self.rows_shape[:2])

    def make_sums(self, num_tokens: int, turn: Optional[Turn]) -> Any:
        """Makes memory for the sums of so many tokens, for a combine on torch's current stream; `turn`
        is that of a combine that waits for nothing, or None."""
        cuts = self._new_sums.get(num_tokens)
        if cuts is None:
            if len(self._new_sums) == _MOST_NEW_SUMS:
                self._new_sums.clear()
            cuts = Cuts(self.dtype, self.device, num_tokens, self.hidden)
            self._new_sums[num_tokens] = cuts
        if turn is None or turn.is_recorded():
            return cuts.alone()
        return cuts.take(turn.here)[0]

    def _fill_dispatch(self, x: Any, ids: Any, made: Received) -> FilledFrame:
        frame = Frame(_DISPATCHES, 9)
        put = frame.put
        cast = self.cast
        rows, scales, counts, words = made
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
            put(_ROWS, as_fp8(rows) if cast.use_fp8 else rows),
            put(_SCALES, scales.transpose(1, 2)) if cast.use_fp8 else 0,
            put(_COUNTS, counts),
            0,
            put(_TOKENS, self.tokens_of(words)),
            put(_RANGES, self.ranges_of(words)),
        )
        return FilledFrame(frame)

    def dispatch(
        self,
        x: Any,
        ids: Any,
        num_tokens: int,
        num_routed: int,
        received: Any,
        wait_us: Any,
        stream: Optional[int],
        here: int,
        is_recorded: bool,
        starts: bool,
    ) -> tuple[int, Received]:
        """Gives a result, or with `starts` a pending one, and the memory that it is in.  x has
        num_tokens rows and ids have num_routed; `here` is the number of torch's current stream, and
        `is_recorded` says whether the dispatch goes into a CUDA graph, whose launches write the same
        memory again."""
        rows, scales = self._new_rows(), None
        if self._new_scales is not None:
            scales = self._new_scales()
        if is_recorded:
            counts, own = self._counts.alone(), self._make_words()
            counts_data = counts.data_ptr()
        else:
            counts, counts_data = self._counts.take(here)
            spare = self.spare_words.get(stream)
            own = spare.pop() if spare else self._make_words()
        made = rows, scales, counts, own
        filled, self._filled_dispatch = self._filled_dispatch, None
        if filled is None:
            filled = self._fill_dispatch(x, ids, made)
        words = filled.words
        words[_X_DATA] = x.data_ptr()
        words[_IDS_DATA] = ids.data_ptr()
        if filled.num_rows != num_tokens or num_routed != num_tokens:
            filled.num_rows = num_tokens if num_routed == num_tokens else -1
            words[_X_ROWS] = num_tokens
            words[_IDS_ROWS] = num_routed
        words[_ROWS_DATA] = rows.data_ptr()
        if scales is not None:
            words[_SCALES_DATA] = scales.data_ptr()
        words[_COUNTS_DATA] = counts_data
        _, words[_RANGES_DATA], words[_TOKENS_DATA] = own
        kept = None
        if received is not None or wait_us is not None:
            kept = self._lend_statistics(filled, received, wait_us)
        function = lib.low_latency_dispatch_start if starts else lib.low_latency_dispatch
        transport = self.transport._handle or self.transport._get()
        out = filled.out
        out.value = None
        try:
            status = function(transport, filled.struct, stream, out)
            if status or raised:
                check(status)
        except BaseException:
            end_made(function, out)
            raise  # what the call was given is not used again
        if kept is not None:
            filled.struct.received = filled.struct.wait_us = None
        self._filled_dispatch = filled
        return out.value or 0, made

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

    def count_combined(self, x: Any, ids: Any, weights: Any, out: Optional[Any]) -> int:
        """The tokens of a combine of tensors of the kinds that its struct says, -1 for others."""
        try:
            shape = ids.shape
            num_tokens: int
            num_tokens, topk = shape
            fits = (
                x.shape == self.rows_shape
                and topk == self.topk
                and weights.shape == shape
                and x.dtype is self.dtype
                and ids.dtype is self.ids_dtype
                and weights.dtype is _WEIGHTS_DTYPE
                and x.get_device() == self._index
                and ids.get_device() == self._index
                and weights.get_device() == self._index
                and (out is None or self._fits_sums(out, num_tokens))
            )
            return num_tokens if fits else -1
        except (AttributeError, TypeError, ValueError):
            return -1

    def _fits_sums(self, out: Any, num_tokens: int) -> bool:
        return (
            out.shape == (num_tokens, self.hidden)
            and out.dtype is self.dtype
            and out.device == self.device
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
        num_tokens: int,
        coding: int,
        wait_us: Any,
        stream: Optional[int],
        starts: bool,
    ) -> int:
        """Combines into `out`, or with `starts` gives a pending result.
        REQUIRES: num_tokens comes from count_combined()."""
        filled, self._filled_combine = self._filled_combine, None
        if filled is None:
            filled = self._fill_combine(x, ids, weights, out)
        words = filled.words
        words[_Y_DATA] = x.data_ptr()
        words[_COMBINE_IDS_DATA] = ids.data_ptr()
        words[_WEIGHTS_DATA] = weights.data_ptr()
        words[_OUT_DATA] = out.data_ptr()
        if filled.num_rows != num_tokens:
            filled.num_rows = num_tokens
            words[_COMBINE_IDS_ROWS] = words[_WEIGHTS_ROWS] = words[_OUT_ROWS] = num_tokens
        kept = None
        if coding != s.CODING_NONE:
            filled.struct.coding = coding
        if wait_us is not None:
            filled.struct.wait_us, kept = filled.lend(_COMBINE_WAIT_US, wait_us)
        transport = self.transport._handle or self.transport._get()
        function = lib.low_latency_combine_start if starts else lib.low_latency_combine
        out_handle = filled.out
        out_handle.value = None
        try:
            status = function(
                transport, filled.struct, dispatched, stream, out_handle if starts else None
            )
            if status or raised:
                check(status)
        except BaseException:
            end_made(function, out_handle)
            raise  # as in dispatch()
        if coding != s.CODING_NONE:
            filled.struct.coding = s.CODING_NONE
        if kept is not None:
            filled.struct.wait_us = None
        self._filled_combine = filled
        return out_handle.value or 0
