# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine for high throughput: rows go to the ranks that own their experts, and come
back summed.

Letters: T tokens of this rank, M rows received, H hidden, K top-k, R ranks, E experts, L local
experts."""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Optional, Union

from . import _structs as s
from ._dlpack import ArrayNames
from ._frames import Frames
from ._handles import Handle, handle_of, optional_handle
from ._library import lib
from .errors import InvalidArgument, check, create
from .groups import Group
from .placement import placement_pointer
from .tensors import SupportsDLPack, kind_of, named_stream, stream_handle
from .transports import (
    Pending,
    Result,
    Transports,
    TransportStatistics,
    array_property,
    read_bytes,
    read_statistics,
)

__all__ = ["Combined", "Dispatched", "ExpertOrder", "HighThroughput", "Layout"]

Payloads = Union[SupportsDLPack, Sequence[SupportsDLPack]]


class Layout(Result):
    """Where tokens go, as a rank counts it from its own ids."""

    @property
    def counts(self) -> tuple[Any, Any, Any]:
        """tokens_per_rank, tokens_per_expert and is_token_in_rank, which is faster than to ask for
        each."""
        per_rank, per_expert, in_rank = self._read_all(_LAYOUT)
        return per_rank, per_expert, in_rank

    tokens_per_rank = array_property("tokens_per_rank", "i32 [R]: copies that this rank sends.")
    tokens_per_node = array_property("tokens_per_node", "i32 [nodes]: tokens with an expert there.")
    tokens_per_expert = array_property("tokens_per_expert", "i32 [E]: selections.")
    is_token_in_rank = array_property("is_token_in_rank", "bool [T, R].")


@functools.lru_cache(maxsize=None)  # there are few
def _names(num_payloads: int, *others: str) -> ArrayNames:
    payloads = [("payload", index) for index in range(num_payloads)]
    return ArrayNames(*payloads, *((name, 0) for name in others))


_LAYOUT = ArrayNames(("tokens_per_rank", 0), ("tokens_per_expert", 0), ("is_token_in_rank", 0))


class _Rows(Result):
    """Rows that have arrived."""

    _num_payloads: int = 0

    @property
    def payloads(self) -> list[Any]:
        """Each [M, ...], or [capacity, ...], ordered by (source rank, source token)."""
        if self._num_payloads == 0:
            return []
        return self._read_all(_names(self._num_payloads))

    def payloads_and(self, *names: str) -> tuple[list[Any], list[Any]]:
        """The payloads and other arrays, which is faster than to ask for each."""
        found = self._read_all(_names(self._num_payloads, *names))
        return found[: self._num_payloads], found[self._num_payloads :]

    x = array_property("payload", "The first payload.")


class Dispatched(_Rows):
    """What a dispatch has brought.  It is needed to combine, and to send more along its route."""

    topk_ids = array_property(
        "topk_ids", "[M, K]: local ids, -1 where the expert is elsewhere or masked."
    )
    topk_weights = array_property("topk_weights", "f32 [M, K], if weights were given; else None.")
    expert_num_tokens = array_property(
        "expert_num_tokens", "i32 [L], rounded up to multiples of expert_alignment."
    )
    expert_counts = array_property(
        "expert_counts",
        "The same as i64 [L] on the host; None with a capacity, and on GPUs without lists_counts.",
    )
    num_rows = array_property("num_rows", "i32 [1]: M, where there is a capacity; else None.")
    source_rank = array_property("source_rank", "i32 [M]: where each row comes from.")
    source_token = array_property("source_token", "i32 [M]: its token there.")
    rank_prefix = array_property(
        "rank_prefix", "i32 [R, R]: the copies to rank `column` from the ranks 0 to `row`."
    )


class ExpertOrder(_Rows):
    """Rows grouped by local expert: one per selection."""

    expert_offsets = array_property(
        "expert_offsets", "i32 [L + 1]: rows of expert l are [offsets[l], offsets[l + 1])."
    )
    copy_row = array_property("copy_row", "i32 [rows]: the row of the dispatch, -1 for padding.")
    slot = array_property("slot", "i32 [rows]: which of the K selections it is.")


class Combined(Result):
    """What a combine has summed."""

    x = array_property("x", "[T, H]: the sum over copies in order of rank.")
    topk_weights = array_property("topk_weights", "f32 [T, K], if weights were given; else None.")


class HighThroughput(Handle):
    """Moves rows between the ranks of a group; all layers of one shape can share it.

    `placement` has the rank of each expert; without it `num_experts` live linearly.  `dispatch_sms`
    and `combine_sms` say how many SMs kernels on GPUs use, an even number; 0: the library chooses.
    With `transports` the object is shared with others of the same shape.  Calls on a GPU are
    enqueued on torch's current stream unless `stream` names one.

    Collective, and so are dispatch and combine."""

    _destroy = lib.high_throughput_destroy

    def __init__(
        self,
        group: Group,
        num_experts: Optional[int] = None,
        *,
        placement: Optional[Sequence[int]] = None,
        dispatch_sms: int = 0,
        combine_sms: int = 0,
        transports: Optional[Transports] = None,
    ) -> None:
        options = s.HighThroughputOptions(
            num_experts=num_experts or 0,
            placement=placement_pointer(placement),
            dispatch_sms=dispatch_sms,
            combine_sms=combine_sms,
            transports=optional_handle(transports, Transports, "transports"),
        )
        self._handle = create(lib.high_throughput_create, handle_of(group, Group, "group"), options)
        self.num_sms = (dispatch_sms, combine_sms)
        """What dispatch and combine use on GPUs; 0: the library has chosen."""

    def layout(self, topk_ids: SupportsDLPack, *, stream: Any = None) -> Layout:
        """Counts where tokens go.  topk_ids i32 or i64 [T, K] are global, -1 = masked."""
        where = stream_handle(stream, topk_ids)
        frame = _LAYOUTS.take()
        frame.fill(frame.put(0, topk_ids), 0, 0, 0, 0)
        handle = create(lib.high_throughput_layout, self._get(), frame.struct, where)
        _LAYOUTS.give_back(frame)
        return Layout(handle or 0, kind_of(topk_ids), where)

    def dispatch(
        self,
        payloads: Payloads,
        topk_ids: Optional[SupportsDLPack] = None,
        topk_weights: Optional[SupportsDLPack] = None,
        *,
        layout: Optional[Layout] = None,
        expert_alignment: int = 1,
        capacity: int = 0,
        combine_row_bytes: int = 0,
        previous_event: Optional[int] = None,
        is_async: bool = False,
        lists_counts: bool = False,
        into: Optional[Sequence[Any]] = None,
        topk_ids_into: Any = None,
        topk_weights_into: Any = None,
        is_token_in_rank: Any = None,
        tokens_per_expert: Any = None,
        stream: Any = None,
    ) -> Dispatched:
        """Sends each token to the ranks that own its experts.

        payloads: a tensor [T, ...] or several, of any types.  topk_ids i32 or i64 [T, K] global,
        -1 = masked; they may be left out with a `layout`, whose is_token_in_rank then decides.
        A layout of the caller's is is_token_in_rank bool [T, R] and tokens_per_expert i32 [E].
        Counts are rounded up to multiples of `expert_alignment`.
        On GPUs, `capacity` is room for so many rows, with which no host waits, and
        `combine_row_bytes` those of a row of combine's x; the stream waits for `previous_event`
        (a cudaEvent_t) first; with `is_async` it does not wait for the result (Result.wait);
        with `lists_counts` the host waits and expert_counts is there.
        `into`, topk_ids_into and topk_weights_into are memory of the caller's for the results."""
        call = _Dispatch(
            self._get(),
            payloads,
            topk_ids,
            topk_weights,
            layout=layout,
            expert_alignment=expert_alignment,
            capacity=capacity,
            combine_row_bytes=combine_row_bytes,
            previous_event=previous_event,
            is_async=is_async,
            lists_counts=lists_counts,
            into=into,
            topk_ids_into=topk_ids_into,
            topk_weights_into=topk_weights_into,
            is_token_in_rank=is_token_in_rank,
            tokens_per_expert=tokens_per_expert,
            stream=stream,
        )
        return call.result(call.make(lib.high_throughput_dispatch))

    def dispatch_start(
        self,
        payloads: Payloads,
        topk_ids: Optional[SupportsDLPack] = None,
        topk_weights: Optional[SupportsDLPack] = None,
        **options: Any,
    ) -> Pending[Dispatched]:
        """The same, and the options are the same, but rows are on their way when it returns."""
        call = _Dispatch(self._get(), payloads, topk_ids, topk_weights, **options)
        handle = call.make(lib.high_throughput_dispatch_start)
        return Pending(handle, call.result, call, call.is_async)

    def dispatch_cached(
        self,
        payloads: Payloads,
        route: Dispatched,
        *,
        previous_event: Optional[int] = None,
        is_async: bool = False,
        stream: Any = None,
    ) -> Dispatched:
        """Sends other payloads along the route of an earlier dispatch; the result has payloads
        only."""
        call = _Dispatch(
            self._get(), payloads, previous_event=previous_event, is_async=is_async, stream=stream
        )
        made = call.make(lib.high_throughput_dispatch_cached, handle_of(route, Dispatched, "route"))
        return call.result(made)

    def expert_order(
        self, dispatched: Dispatched, *, expert_alignment: int = 1, stream: Any = None
    ) -> ExpertOrder:
        """The rows of a dispatch grouped by local expert.  Rows that fill a group up to a multiple
        of `expert_alignment` are zero.  On GPUs the host waits."""
        where = dispatched._stream if stream is None else named_stream(stream)
        handle = create(
            lib.high_throughput_expert_order,
            self._get(),
            handle_of(dispatched, Dispatched, "dispatched"),
            expert_alignment,
            where,
        )
        order = ExpertOrder(handle or 0, dispatched._kind, where)
        order._num_payloads = dispatched._num_payloads
        return order

    def combine(
        self,
        x: SupportsDLPack,
        dispatched: Dispatched,
        *,
        topk_weights: Optional[SupportsDLPack] = None,
        bias: Sequence[SupportsDLPack] = (),
        previous_event: Optional[int] = None,
        is_async: bool = False,
        into: Any = None,
        topk_weights_into: Any = None,
        stream: Any = None,
    ) -> Combined:
        """Sums the copies of each token: x [M, H] f32, bf16 or f16 -> [T, H].

        topk_weights f32 [M, K] are summed beside x.  Up to two biases [T, H] are added once.
        `into` [T, H] and topk_weights_into f32 [T, K] are memory of the caller's; the other options
        are those of dispatch()."""
        call = _Combine(
            self._get(),
            x,
            topk_weights=topk_weights,
            bias=bias,
            previous_event=previous_event,
            is_async=is_async,
            into=into,
            topk_weights_into=topk_weights_into,
            stream=stream,
        )
        return call.result(call.make(lib.high_throughput_combine, dispatched))

    def combine_start(
        self, x: SupportsDLPack, dispatched: Dispatched, **options: Any
    ) -> Pending[Combined]:
        """The same, and the options are the same, but rows are on their way when it returns."""
        call = _Combine(self._get(), x, **options)
        handle = call.make(lib.high_throughput_combine_start, dispatched)
        return Pending(handle, call.result, (call, dispatched), call.is_async)

    def set_sms(self, dispatch_sms: int, combine_sms: int) -> None:
        """Changes what the next calls use on GPUs; ranks may differ."""
        check(lib.high_throughput_set_sms(self._get(), dispatch_sms, combine_sms))
        self.num_sms = (dispatch_sms, combine_sms)

    @property
    def nbytes(self) -> int:
        """The bytes of windows and buffers that this rank holds for the object now."""
        return read_bytes(lib.high_throughput_bytes, self)

    @property
    def statistics(self) -> TransportStatistics:
        """Counts since the object was made, without calls along a known route."""
        return read_statistics(lib.high_throughput_statistics, self)

    def trim(self) -> None:
        """Gives back memory of results that are gone."""
        check(lib.high_throughput_trim(self._get()))


# Payloads for which the frames of a dispatch have room.
_USUAL_PAYLOADS = 4
_LAYOUTS = Frames(s.LayoutInput, 1)
_DISPATCHES = Frames(s.DispatchInput, 6 + 2 * _USUAL_PAYLOADS)
_COMBINES = Frames(s.CombineInput, 6)


class _Dispatch:
    """The arguments of a dispatch."""

    def __init__(
        self,
        transport: int,
        payloads: Payloads,
        topk_ids: Any = None,
        topk_weights: Any = None,
        *,
        layout: Optional[Layout] = None,
        expert_alignment: int = 0,
        capacity: int = 0,
        combine_row_bytes: int = 0,
        previous_event: Optional[int] = None,
        is_async: bool = False,
        lists_counts: bool = False,
        into: Optional[Sequence[Any]] = None,
        topk_ids_into: Any = None,
        topk_weights_into: Any = None,
        is_token_in_rank: Any = None,
        tokens_per_expert: Any = None,
        stream: Any = None,
    ) -> None:
        given = list(payloads) if isinstance(payloads, (list, tuple)) else [payloads]
        first = topk_ids if topk_ids is not None else next(iter(given), None)
        if first is None:
            raise InvalidArgument("there are neither payloads nor topk_ids")
        if into is not None and len(into) != len(given):
            raise InvalidArgument(f"into has {len(into)} tensors, expected {len(given)}")
        self._transport = transport
        self.is_async = is_async
        count = self._num_payloads = len(given)
        self._kind = kind_of(given[0] if given else first)
        self._stream = stream_handle(stream, first)
        lent = (into, topk_ids_into, topk_weights_into)
        self._lent = None if all(part is None for part in lent) else lent
        frame = self._frame = _DISPATCHES.take(6 + 2 * count)
        put = frame.put
        frame.fill(
            frame.put_all(6, given),
            count,
            put(0, topk_ids),
            put(1, topk_weights),
            optional_handle(layout, Layout, "layout") or 0,
            expert_alignment,
            capacity,
            combine_row_bytes,
            previous_event or 0,
            is_async,
            lists_counts,
            0 if into is None else frame.put_all(6 + count, list(into)),
            put(2, topk_ids_into),
            put(3, topk_weights_into),
            put(4, is_token_in_rank),
            put(5, tokens_per_expert),
            0,
            0,
        )

    def make(self, function: Any, *route: int) -> int:
        handle = create(function, self._transport, self._frame.struct, *route, self._stream) or 0
        self._kept = _DISPATCHES.give_back(self._frame)
        return handle

    def result(self, handle: int) -> Dispatched:
        dispatched = Dispatched(handle, self._kind, self._stream, self._lent)
        dispatched._num_payloads = self._num_payloads
        return dispatched


class _Combine:
    """The arguments of a combine."""

    def __init__(
        self,
        transport: int,
        x: Any,
        *,
        topk_weights: Any = None,
        bias: Sequence[Any] = (),
        previous_event: Optional[int] = None,
        is_async: bool = False,
        into: Any = None,
        topk_weights_into: Any = None,
        stream: Any = None,
    ) -> None:
        if len(bias) > 2:
            raise InvalidArgument(f"bias has {len(bias)} tensors, expected at most 2")
        self.is_async = is_async
        self._transport = transport
        self._kind = kind_of(x)
        self._stream = stream_handle(stream, x)
        self._lent = None if into is None and topk_weights_into is None else (into, topk_weights_into)
        frame = self._frame = _COMBINES.take()
        put = frame.put
        frame.fill(
            put(0, x),
            put(1, topk_weights),
            put(2, bias[0] if len(bias) > 0 else None),
            put(3, bias[1] if len(bias) > 1 else None),
            previous_event or 0,
            is_async,
            put(4, into),
            put(5, topk_weights_into),
        )

    def make(self, function: Any, dispatched: Dispatched) -> int:
        route = handle_of(dispatched, Dispatched, "dispatched")
        handle = create(function, self._transport, self._frame.struct, route, self._stream)
        self._kept = _COMBINES.give_back(self._frame)
        return handle or 0

    def result(self, handle: int) -> Combined:
        return Combined(handle, self._kind, self._stream, self._lent)
