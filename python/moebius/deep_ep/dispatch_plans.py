# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What dispatches have in common whose tensors are of the same kind: a struct that is filled
already.  See low_latency_plans.py.

Rows arrive in memory that ranks share, so they are the library's.  A call gives them as tensors of
DLPack at once; what is no type of DLPack travels as bytes.

Letters: T tokens of this rank, M rows received, H hidden, G groups of a row that share a scale, K
top-k, R ranks, L local experts."""
from __future__ import annotations

import ctypes
from typing import Any, Optional, Tuple

import torch

from .. import _structs as s
from .._callbacks import raised
from .._dlpack import ArrayNames, WantedArrays
from .._frames import FilledFrame, Frame, Frames, data_word, rows_word
from .._library import lib
from .._torch import take, takes_capsules_of
from ..errors import check, end_made
from ..high_throughput import HighThroughput
from .ranks import Ranks

_IDS, _WEIGHTS, _IN_RANK, _PER_EXPERT, _X, _SCALES = range(6)
_IDS_DATA, _WEIGHTS_DATA, _IN_RANK_DATA, _PER_EXPERT_DATA, _X_DATA, _SCALES_DATA = map(
    data_word, range(6)
)
_IDS_ROWS, _WEIGHTS_ROWS, _IN_RANK_ROWS, _, _X_ROWS, _SCALES_ROWS = map(rows_word, range(6))
_DISPATCHES = Frames(s.DispatchInput, 6)


def can_plan(payloads: list[Any]) -> bool:
    """Whether plans can send such rows."""
    return all(takes_capsules_of(p.dtype) or p.element_size() == 1 for p in payloads)


class _Plan:
    """What such plans have in common: payloads, x [T, H] and maybe scales [T, G], and arrays."""

    def __init__(self, payloads: list[Any], *others: str) -> None:
        x = payloads[0]
        self.device = x.device
        self.gpu: Optional[int] = x.get_device() if x.is_cuda else None
        # The types of payloads that travel as bytes.
        self._types = [None if takes_capsules_of(p.dtype) else p.dtype for p in payloads]
        keys = [("payload", index) for index in range(len(payloads))]
        self._names = ArrayNames(*keys, *[(name, 0) for name in others])

    def _put_payloads(self, frame: Frame, payloads: list[Any]) -> tuple[int, Any]:
        """The address of the pointers to the payloads, and what must live as long."""
        sent = [
            x if dtype is None else x.view(torch.uint8) for x, dtype in zip(payloads, self._types)
        ]
        address = frame.put_all(_X, sent)
        return address, frame.kept[-1]

    @staticmethod
    def _write_payloads(words: Any, payloads: list[Any]) -> None:
        x = payloads[0]
        words[_X_DATA] = x.data_ptr()
        words[_X_ROWS] = x.shape[0]
        if len(payloads) > 1:
            scales = payloads[1]
            words[_SCALES_DATA] = scales.data_ptr()
            words[_SCALES_ROWS] = scales.shape[0]

    def _take_payloads(self, managed: list[Optional[int]]) -> list[Any]:
        return [
            take(one) if dtype is None else take(one).view(dtype)
            for one, dtype in zip(managed, self._types)
        ]


# One call at a time uses these: a struct, the arrays that the call gives, and the counts i64 [L].
_Filled = Tuple[FilledFrame, WantedArrays, Any]


class DispatchPlan(_Plan):
    """Dispatches of tokens with ids [T, K] and weights f32 [T, K], or without.  With `has_room`, on a
    GPU, each says how many rows there is room for; else there are as many as arrive, and counts
    come with them."""

    def __init__(
        self,
        payloads: list[Any],
        transport: HighThroughput,
        ranks: Ranks,
        num_experts: int,
        expert_alignment: int,
        has_room: bool,
    ) -> None:
        super().__init__(payloads, "topk_ids", "topk_weights")
        x = payloads[0]
        self.transport = transport
        self.ranks = ranks
        self._filled: list[_Filled] = []
        self._num_counts = 0 if has_room else ranks.num_local_experts(num_experts)
        self._alignment = expert_alignment
        self._has_room = has_room
        self._combine_row_bytes = max(2, x.element_size()) * x.shape[1] if has_room else 0

    def _fill(
        self, payloads: list[Any], ids: Any, weights: Any, in_rank: Any, per_expert: Any
    ) -> _Filled:
        frame, wanted = Frame(_DISPATCHES, 6), WantedArrays(self._names)
        counts = (ctypes.c_int64 * self._num_counts)()
        put = frame.put
        pointers, keep = self._put_payloads(frame, payloads)
        frame.fill(
            pointers,
            len(payloads),
            put(_IDS, ids),
            put(_WEIGHTS, weights),
            0,
            self._alignment,
            0,
            self._combine_row_bytes,
            0,
            False,
            not self._has_room,
            0,
            0,
            0,
            put(_IN_RANK, in_rank),
            put(_PER_EXPERT, per_expert),
            ctypes.addressof(wanted.struct),
            ctypes.addressof(counts) if self._num_counts else 0,
        )
        return FilledFrame(frame, keep), wanted, counts

    def dispatch(
        self,
        payloads: list[Any],
        ids: Optional[Any],
        weights: Optional[Any],
        in_rank: Any,
        per_expert: Any,
        sizes: tuple[int, int, int, int],
        room: int,
        stream: Optional[int],
        user: Optional[int],
    ) -> tuple[int, list[Any], Optional[Any], Optional[Any], list[int]]:
        """The result as a handle of the library, its payloads, ids and weights, whose last user is
        the stream `user`, or that of the call for None; and the counts [L], or none with room.
        `sizes` are the rows of x, ids, weights and in_rank.
        REQUIRES: the tensors are contiguous, and of the kinds that the plan was made with; room is
        0 unless the plan has it."""
        try:
            parts = self._filled.pop()
        except IndexError:
            parts = self._fill(payloads, ids, weights, in_rank, per_expert)
        filled, wanted, counts = parts
        words = filled.words
        words[_X_DATA] = payloads[0].data_ptr()
        words[_X_ROWS], words[_IDS_ROWS], words[_WEIGHTS_ROWS], words[_IN_RANK_ROWS] = sizes
        if len(payloads) > 1:
            words[_SCALES_DATA] = payloads[1].data_ptr()
            words[_SCALES_ROWS] = payloads[1].shape[0]
        if ids is not None:
            words[_IDS_DATA] = ids.data_ptr()
        if weights is not None:
            words[_WEIGHTS_DATA] = weights.data_ptr()
        words[_IN_RANK_DATA] = in_rank.data_ptr()
        words[_PER_EXPERT_DATA] = per_expert.data_ptr()
        wanted.struct.user = user
        if room:
            filled.struct.capacity = room
        transport = self.transport._get()
        filled.out.value = None
        try:
            status = lib.high_throughput_dispatch(transport, filled.struct, stream, filled.out)
            if status or raised:
                check(status)
        except BaseException:
            if filled.out.value is not None:
                for one in wanted.managed:
                    take(one)
            end_made(lib.high_throughput_dispatch, filled.out)
            raise
        managed, listed = wanted.managed[:], counts[:]
        self._filled.append(parts)
        *received, received_ids, received_weights = managed
        return (
            filled.out.value or 0,
            self._take_payloads(received),
            take(received_ids),
            take(received_weights),
            listed,
        )


class CachedDispatchPlan(_Plan):
    """Dispatches along a known route."""

    def __init__(self, payloads: list[Any]) -> None:
        super().__init__(payloads)
        self._filled: list[tuple[FilledFrame, WantedArrays]] = []

    def _fill(self, payloads: list[Any]) -> tuple[FilledFrame, WantedArrays]:
        frame, wanted = Frame(_DISPATCHES, 6), WantedArrays(self._names)
        pointers, keep = self._put_payloads(frame, payloads)
        frame.fill(pointers, len(payloads), *[0] * 14, ctypes.addressof(wanted.struct), 0)
        return FilledFrame(frame, keep), wanted

    def dispatch(
        self,
        transport: int,
        route: int,
        payloads: list[Any],
        stream: Optional[int],
        user: Optional[int],
    ) -> list[Any]:
        """The payloads, whose last user is as in DispatchPlan.dispatch().
        REQUIRES: the tensors are contiguous, and of the kinds that the plan was made with."""
        try:
            filled, wanted = self._filled.pop()
        except IndexError:
            filled, wanted = self._fill(payloads)
        self._write_payloads(filled.words, payloads)
        wanted.struct.user = user
        status = lib.high_throughput_dispatch_cached(
            transport, filled.struct, route, stream, None
        )
        managed = wanted.managed[:]
        self._filled.append((filled, wanted))
        if status or raised:
            check(status)
        return self._take_payloads(managed)
