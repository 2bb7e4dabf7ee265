# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine for low latency: few tokens and a fixed capacity, so no counts are exchanged
before rows.

Letters: T tokens of this rank, H hidden, K top-k, R ranks, E experts, L local experts; rows are
max_tokens * R, and G is H / 128."""
from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_int32, c_int64
from typing import Any, Optional

from . import _structs as s
from ._dtypes import dtype_code
from ._frames import Frames
from ._handles import Handle, handle_of, optional_handle
from ._library import lib
from .errors import InvalidArgument, check, create
from .groups import Group
from .placement import placement_pointer
from .tensors import SupportsDLPack, device_struct, kind_of, stream_handle
from .transports import (
    Pending,
    Result,
    Transports,
    TransportStatistics,
    array_property,
    read_bytes,
    read_statistics,
)

__all__ = ["LowLatency", "LowLatencyCombined", "LowLatencyDispatched"]

_CASTS = {None: s.CAST_NONE, "fp8": s.CAST_FP8, "fp8_ue8m0": s.CAST_FP8_UE8M0}
_SCALES = {
    "rows": s.SCALES_ROWS,
    "columns": s.SCALES_COLUMNS,
    "packed_columns": s.SCALES_PACKED_COLUMNS,
}
_CODINGS = {None: s.CODING_NONE, "logfmt10": s.CODING_LOGFMT10}


def _choose(choices: dict[Any, int], value: Any, what: str) -> int:
    choice = choices.get(value)
    if choice is None:
        raise InvalidArgument(f"{what} is {value!r}, expected one of {list(choices)}")
    return choice


class LowLatencyDispatched(Result):
    """What a dispatch has brought, which is needed to combine.  Two may be alive at a time; close()
    or the end of the object gives its place back."""

    x = array_property(
        "x",
        "[L, rows, H]: the rows of an expert stand at its front, ordered by (source rank, source "
        "token).",
    )
    x_scale = array_property(
        "x_scale", "The scales of a cast as `scales` said, or as they were given; else None."
    )
    expert_num_tokens = array_property("expert_num_tokens", "i32 [L].")
    row_tags = array_property(
        "row_tags", "i32 [L, rows]: the tags of the rows' tokens, -1 without one."
    )
    source_token = array_property("source_token", "i32 [L, rows]: the token's index on its rank.")
    source_ranges = array_property(
        "source_ranges",
        "i64 [L, R]: the rows of an expert that come from a rank, as begin << 32 | count.",
    )
    combine_buffer = array_property(
        "combine_buffer",
        "[L, rows, H]: memory for the x of the combine, which need not be allocated then.",
    )


class LowLatencyCombined(Result):
    """What a combine has summed."""

    x = array_property("x", "[T, H].")


def _options(
    hidden: int,
    topk: int,
    num_experts: Optional[int],
    placement: Optional[Sequence[int]],
    max_tokens: int,
    dtype: Any,
    num_sms: int,
    sums_per_rank: bool,
    excludes_missing: bool,
    transports: Optional[Transports],
) -> s.LowLatencyOptions:
    return s.LowLatencyOptions(
        num_experts=num_experts or 0,
        placement=placement_pointer(placement),
        max_tokens=max_tokens,
        hidden=hidden,
        topk=topk,
        in_dtype=dtype_code(dtype),
        num_sms=num_sms,
        sums_per_rank=sums_per_rank,
        excludes_missing=excludes_missing,
        transports=optional_handle(transports, Transports, "transports"),
    )


class LowLatency(Handle):
    """Moves few rows between the ranks of a group; all layers of one shape can share it.

    `dtype` is that of hidden states: bf16, f16 or f32.  `max_tokens` is per rank and call.
    `placement` has the rank of each expert; without it `num_experts` live linearly.
    `sums_per_rank` sends sums back instead of a row per selection; with `excludes_missing` (ranks of
    one node) calls go on without a rank that is missed.  `num_sms` is how many SMs a call on a GPU
    uses at most; 0: all.  With `transports` the object is shared with others of the same shape.

    Collective, and so are dispatch and combine among the ranks that are not excluded."""

    _destroy = lib.low_latency_destroy

    def __init__(
        self,
        group: Group,
        num_experts: Optional[int] = None,
        *,
        hidden: int,
        topk: int,
        max_tokens: int = 128,
        dtype: Any = "bf16",
        placement: Optional[Sequence[int]] = None,
        num_sms: int = 0,
        sums_per_rank: bool = False,
        excludes_missing: bool = False,
        transports: Optional[Transports] = None,
    ) -> None:
        options = _options(
            hidden,
            topk,
            num_experts,
            placement,
            max_tokens,
            dtype,
            num_sms,
            sums_per_rank,
            excludes_missing,
            transports,
        )
        self._handle = create(lib.low_latency_create, handle_of(group, Group, "group"), options)
        self._num_ranks = group.size

    @staticmethod
    def size_hint(
        num_ranks: int,
        num_experts: int,
        *,
        hidden: int,
        topk: int,
        max_tokens: int = 128,
        dtype: Any = "bf16",
        sums_per_rank: bool = False,
        device: Any = "cpu",
    ) -> int:
        """The bytes of window memory that each rank needs."""
        options = _options(
            hidden, topk, num_experts, None, max_tokens, dtype, 0, sums_per_rank, False, None
        )
        found = c_int64()
        where = device_struct(device)
        check(lib.low_latency_size_hint(options, num_ranks, where, byref(found)))
        return found.value

    def dispatch(
        self,
        x: SupportsDLPack,
        topk_ids: SupportsDLPack,
        *,
        x_scale: Optional[SupportsDLPack] = None,
        cast: Optional[str] = None,
        scales: str = "rows",
        max_tokens: int = 0,
        row_tags: Optional[SupportsDLPack] = None,
        received: Any = None,
        wait_us: Any = None,
        previous_event: Optional[int] = None,
        records_event: bool = False,
        into: Optional[dict[str, Any]] = None,
        stream: Any = None,
    ) -> LowLatencyDispatched:
        """Sends x [T, H] to the experts topk_ids i32 or i64 [T, K], global, -1 = masked.

        `cast`: None, "fp8" or "fp8_ue8m0", with `scales` in "rows", "columns" or "packed_columns";
        rows that were quantized before bring x_scale [T, G] of their own.  `max_tokens` is the room
        of this call, 0: that of the object.  row_tags i32 [T] travel along.  received i32 [L] and
        wait_us i64 [R] are added to.  The stream waits for `previous_event` (a cudaEvent_t) first,
        and with `records_event` the result has one.  `into` has memory of the caller's for results,
        by their names."""
        call = _Dispatch(
            self._get(),
            x,
            topk_ids,
            x_scale=x_scale,
            cast=cast,
            scales=scales,
            max_tokens=max_tokens,
            row_tags=row_tags,
            received=received,
            wait_us=wait_us,
            previous_event=previous_event,
            records_event=records_event,
            into=into,
            stream=stream,
        )
        return call.result(call.make(lib.low_latency_dispatch))

    def dispatch_start(
        self, x: SupportsDLPack, topk_ids: SupportsDLPack, **options: Any
    ) -> Pending[LowLatencyDispatched]:
        """The send half; the options are the same.  Pending.hook() or finish() is the receive
        half."""
        call = _Dispatch(self._get(), x, topk_ids, **options)
        return Pending(call.make(lib.low_latency_dispatch_start), call.result, call)

    def combine(
        self,
        x: SupportsDLPack,
        topk_ids: SupportsDLPack,
        topk_weights: SupportsDLPack,
        dispatched: LowLatencyDispatched,
        *,
        wait_us: Any = None,
        coding: Optional[str] = None,
        previous_event: Optional[int] = None,
        records_event: bool = False,
        into: Any = None,
        stream: Any = None,
    ) -> LowLatencyCombined:
        """Weights and sums the rows x [L, rows, H] of each token.  topk_ids are those of the
        dispatch; topk_weights f32 [T, K]; `coding` None or "logfmt10" (10 bits per element);
        `into` [T, H] is memory of the caller's."""
        call = _Combine(
            self._get(),
            x,
            topk_ids,
            topk_weights,
            wait_us=wait_us,
            coding=coding,
            previous_event=previous_event,
            records_event=records_event,
            into=into,
            stream=stream,
        )
        return call.result(call.make(lib.low_latency_combine, dispatched))

    def combine_start(
        self,
        x: SupportsDLPack,
        topk_ids: SupportsDLPack,
        topk_weights: SupportsDLPack,
        dispatched: LowLatencyDispatched,
        **options: Any,
    ) -> Pending[LowLatencyCombined]:
        """The send half; the options are the same."""
        call = _Combine(self._get(), x, topk_ids, topk_weights, **options)
        handle = call.make(lib.low_latency_combine_start, dispatched)
        return Pending(handle, call.result, (call, dispatched))

    def set_dead(self, rank: int, is_dead: bool = True) -> None:
        """Excludes a rank or takes it back; every live rank makes the same call before its next
        one."""
        check(lib.low_latency_set_dead(self._get(), rank, is_dead))

    @property
    def dead_ranks(self) -> list[bool]:
        """Whether each rank is excluded."""
        found = (c_int32 * self._num_ranks)()
        check(lib.low_latency_dead_ranks(self._get(), found))
        return [bool(is_dead) for is_dead in found]

    def check(self) -> None:
        """Raises what has gone wrong in calls whose work is done by now (GPUs)."""
        check(lib.low_latency_check(self._get()))

    @property
    def nbytes(self) -> int:
        """The bytes of windows and buffers that this rank holds for the object now."""
        return read_bytes(lib.low_latency_bytes, self)

    @property
    def statistics(self) -> TransportStatistics:
        """Counts since the object was made; on a GPU, of the calls whose work is done."""
        return read_statistics(lib.low_latency_statistics, self)


_INTO = ("x", "x_scale", "expert_num_tokens", "row_tags", "source_token", "source_ranges")
_DISPATCHES = Frames(s.LowLatencyDispatchInput, 6 + len(_INTO))
_COMBINES = Frames(s.LowLatencyCombineInput, 5)


class _Dispatch:
    """The arguments of a dispatch."""

    def __init__(
        self,
        transport: int,
        x: Any,
        topk_ids: Any,
        *,
        x_scale: Any = None,
        cast: Optional[str] = None,
        scales: str = "rows",
        max_tokens: int = 0,
        row_tags: Any = None,
        received: Any = None,
        wait_us: Any = None,
        previous_event: Optional[int] = None,
        records_event: bool = False,
        into: Optional[dict[str, Any]] = None,
        stream: Any = None,
    ) -> None:
        self._lent = into or {}
        if not self._lent.keys() <= set(_INTO):
            unknown = sorted(set(self._lent) - set(_INTO))
            raise InvalidArgument(f"into has {unknown}, expected some of {list(_INTO)}")
        self._transport = transport
        self._kind = kind_of(x)
        self._stream = stream_handle(stream, x)
        frame = self._frame = _DISPATCHES.take()
        put, lent = frame.put, self._lent.get
        frame.fill(
            put(0, x),
            put(1, x_scale),
            put(2, topk_ids),
            _choose(_CASTS, cast, "cast"),
            _choose(_SCALES, scales, "scales"),
            max_tokens,
            put(3, row_tags),
            put(4, received),
            put(5, wait_us),
            previous_event or 0,
            records_event,
            *[put(6 + index, lent(name)) for index, name in enumerate(_INTO)],
        )

    def make(self, function: Any) -> int:
        handle = create(function, self._transport, self._frame.struct, self._stream) or 0
        self._kept = _DISPATCHES.give_back(self._frame)
        return handle

    def result(self, handle: int) -> LowLatencyDispatched:
        return LowLatencyDispatched(handle, self._kind, self._stream, self._lent)


class _Combine:
    """The arguments of a combine."""

    def __init__(
        self,
        transport: int,
        x: Any,
        topk_ids: Any,
        topk_weights: Any,
        *,
        wait_us: Any = None,
        coding: Optional[str] = None,
        previous_event: Optional[int] = None,
        records_event: bool = False,
        into: Any = None,
        stream: Any = None,
    ) -> None:
        self._transport = transport
        self._kind = kind_of(x)
        self._stream = stream_handle(stream, x)
        self._lent = into
        frame = self._frame = _COMBINES.take()
        put = frame.put
        frame.fill(
            put(0, x),
            put(1, topk_ids),
            put(2, topk_weights),
            put(3, wait_us),
            _choose(_CODINGS, coding, "coding"),
            previous_event or 0,
            records_event,
            put(4, into),
        )

    def make(self, function: Any, dispatched: LowLatencyDispatched) -> int:
        route = handle_of(dispatched, LowLatencyDispatched, "dispatched")
        handle = create(function, self._transport, self._frame.struct, route, self._stream)
        self._kept = _COMBINES.give_back(self._frame)
        return handle or 0

    def result(self, handle: int) -> LowLatencyCombined:
        return LowLatencyCombined(handle, self._kind, self._stream, self._lent)
