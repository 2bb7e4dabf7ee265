# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of Buffer for high throughput: layout, dispatch and combine.

Letters: T tokens of this rank, M rows received, H hidden, K top-k, R ranks, E experts, L local
experts."""
from __future__ import annotations

from typing import Any, Optional

import torch

from ..errors import InvalidArgument
from ..high_throughput import Dispatched, HighThroughput
from .comm_stream import CommStreams, Turn
from .config import Config
from .dispatch_plans import CachedDispatchPlan, DispatchPlan, can_plan
from .events import EventOverlap, NoEvent
from .handles import DispatchHandle, expect_handle
from .high_throughput_plans import CombinePlan, LayoutPlan
from .ranks import Ranks
from .tensors import expect_tensor, join_scales, list_biases, padded, split_scales


def send_rows(
    transport: HighThroughput,
    payloads: list[Any],
    topk_idx: Any,
    topk_weights: Any,
    room: int,
    turn: Turn,
    **options: Any,
) -> tuple[Dispatched, list[Any], Any, Any]:
    """A dispatch whose outputs have `room` rows, or as many as arrive where it is 0.  Gives the
    result, which the turn has adopted, and its tensors: payloads, ids and weights.  With room no
    host waits for a GPU, and the ids of rows past the end are -1."""
    options["stream"] = turn.stream
    if room == 0:
        rows = transport.dispatch(payloads, topk_idx, topk_weights, lists_counts=True, **options)
        turn.adopt(rows)
        return rows, *_tensors_of(rows)
    x = payloads[0]
    if x.is_cuda:
        row_bytes = max(2, x.element_size()) * x.shape[1]
        rows = transport.dispatch(
            payloads, topk_idx, topk_weights, capacity=room, combine_row_bytes=row_bytes, **options
        )
        turn.adopt(rows)
        return rows, *_tensors_of(rows)
    into = [torch.empty((room, *p.shape[1:]), dtype=p.dtype, device="cpu") for p in payloads]
    ids = weights = None
    if topk_idx is not None:
        ids = torch.empty((room, topk_idx.shape[1]), dtype=topk_idx.dtype, device="cpu")
        options["topk_ids_into"] = ids
    if topk_weights is not None:
        weights = torch.empty((room, topk_idx.shape[1]), dtype=torch.float32, device="cpu")
        options["topk_weights_into"] = weights
    rows = transport.dispatch(payloads, topk_idx, topk_weights, into=into, **options)
    if ids is not None:
        ids[rows.x.shape[0] :] = -1
    return rows, into, ids, weights


def _tensors_of(rows: Dispatched) -> tuple[list[Any], Any, Any]:
    payloads, (ids, weights, _) = rows.payloads_and("topk_ids", "topk_weights", "expert_counts")
    return payloads, ids, weights


def list_counts(rows: Dispatched) -> list[int]:
    """The selections of each local expert; none where the rank has no expert."""
    counts = rows.expert_counts
    listed: list[int] = [] if counts is None else counts.tolist()
    return listed


class HighThroughputCalls:
    """Mixed into Buffer."""

    num_sms: int = 20
    _num_sms_is_set = False
    _ranks: Optional[Ranks]
    _streams: CommStreams
    _layout_plans: dict[Any, LayoutPlan]
    _dispatch_plans: dict[Any, DispatchPlan]
    _cached_plans: dict[Any, CachedDispatchPlan]
    _combine_plans: dict[Any, CombinePlan]

    def _open(self) -> Ranks:
        if self._ranks is None:
            raise InvalidArgument(f"this {type(self).__name__} has been destroyed")
        return self._ranks

    @classmethod
    def set_num_sms(cls, new_num_sms: int) -> None:
        """The SMs that kernels of later calls use, even; for all buffers."""
        config = Config(new_num_sms)
        HighThroughputCalls.num_sms = config.num_sms
        HighThroughputCalls._num_sms_is_set = True

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """What dispatch() uses without a config, for any number of ranks."""
        return _config_of(num_ranks)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """What combine() uses without a config, for any number of ranks."""
        return _config_of(num_ranks)

    def _configure(self, transport: HighThroughput, config: Optional[Config], on_gpu: bool) -> None:
        if on_gpu and (config is not None or self._num_sms_is_set):
            num_sms = self.num_sms if config is None else config.num_sms
            if num_sms and transport.num_sms != (num_sms, num_sms):
                transport.set_sms(num_sms, num_sms)

    def get_dispatch_layout(
        self,
        topk_idx: Any,
        num_experts: int,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Optional[Any], Any, Any, EventOverlap]:
        """Counts where tokens go.  topk_idx [T, K] int64 or int32, -1 = masked.

        Gives i32 [R] copies for each rank; i32 [nodes] tokens for each node, or None where there is
        one; i32 [E] selections of each expert; bool [T, R] whether a token goes to a rank; and an
        event."""
        plan = self._find_layout_plan(topk_idx, num_experts)
        turn = self._streams.begin(plan.device, previous_event, async_finish)
        (ids,) = turn.contiguous(topk_idx)
        made = plan.allocate(ids.shape[0], turn)
        plan.count(ids, made, turn.own)
        event = self._streams.end(turn, (ids,), made) if async_finish else NoEvent()
        per_rank, per_node, per_expert, in_rank = made
        return per_rank, per_node, per_expert, in_rank, event

    def _find_layout_plan(self, ids: Any, num_experts: int) -> LayoutPlan:
        try:
            _, topk = ids.shape
            key = (topk, num_experts, ids.dtype, ids.device)
            plan = self._layout_plans.get(key)
        except (AttributeError, TypeError, ValueError):
            plan = None
        if plan is not None:
            return plan
        ranks = self._open()
        expect_tensor(ids, "topk_idx", 2)
        transport = ranks.on(ids.device).high_throughput(num_experts)
        plan = self._layout_plans[key] = LayoutPlan(
            transport, ids, num_experts, ranks.size, ranks.num_nodes
        )
        return plan

    def dispatch(
        self,
        x: Any,
        handle: Any = None,
        num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None,
        num_tokens_per_expert: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Optional[Config] = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Optional[Any], Optional[Any], Optional[list[int]], Any, EventOverlap]:
        """Sends tokens to the ranks that is_token_in_rank names.

        x [T, H] of any dtype, or a pair of it and scales [T, G].  Without a handle,
        is_token_in_rank and num_tokens_per_expert are needed, as get_dispatch_layout() counts them;
        ids and weights may be left out.  Gives
        - the rows [M, H] (and scales [M, G]), ordered by (source rank, source token);
        - ids [M, K], local ones, -1 elsewhere; weights f32 [M, K], 0 elsewhere; None if not given;
        - the list of selections by local expert, rounded up to multiples of expert_alignment;
        - the handle, an event.
        With num_worst_tokens there are so many rows, the ids of those past the end are -1, the list
        is empty, and no host waits for a GPU.  With a handle, x goes along the route of an earlier
        dispatch, and all but rows and event is None.  Collective."""
        if handle is not None:
            if topk_idx is not None or topk_weights is not None:
                raise InvalidArgument(
                    "handle and topk_idx or topk_weights are given, expected one of the two"
                )
            return self._dispatch_cached(x, handle, config, previous_event, async_finish)
        room = num_worst_tokens
        routing = (topk_idx, topk_weights, is_token_in_rank, num_tokens_per_expert)
        payloads = [*x] if isinstance(x, (tuple, list)) else [x]
        plan, sizes = self._find_dispatch_plan(payloads, *routing, expert_alignment, bool(room))
        if plan is None:
            return self._dispatch_unplanned(
                x, *routing, expert_alignment, room, config, previous_event, async_finish
            )
        if config is not None or self._num_sms_is_set:
            self._configure(plan.transport, config, plan.gpu is not None)
        turn = self._streams.begin(plan.device, previous_event, async_finish)
        *payloads, ids, weights, in_rank, per_expert = turn.contiguous(*payloads, *routing)
        stream, user = turn.own, turn.user
        number, received, received_ids, received_weights, counts = plan.dispatch(
            payloads, ids, weights, in_rank, per_expert, sizes, room, stream, user
        )
        num_rows = room or received[0].shape[0]
        made = DispatchHandle(plan.transport, num_rows, num_rows, in_rank, plan.ranks)
        made.take(number, user or stream)
        if async_finish:
            event = self._streams.end(turn, (*payloads, ids, weights, in_rank, per_expert))
        else:
            event = NoEvent()
        return join_scales(received), received_ids, received_weights, counts, made, event

    def _dispatch_unplanned(
        self,
        x: Any,
        ids: Any,
        weights: Any,
        in_rank: Any,
        per_expert: Any,
        expert_alignment: int,
        room: int,
        config: Optional[Config],
        previous_event: Any,
        async_finish: bool,
    ) -> tuple[Any, Optional[Any], Optional[Any], Optional[list[int]], Any, EventOverlap]:
        """What _find_dispatch_plan() has no plan for."""
        ranks = self._open()
        x, scales = split_scales(x)
        if in_rank is None or per_expert is None:
            raise InvalidArgument(
                "neither handle nor is_token_in_rank and num_tokens_per_expert are given, expected "
                "one of the two"
            )
        num_experts = expect_tensor(per_expert, "num_tokens_per_expert", 1).shape[0]
        transport = ranks.on(x.device).high_throughput(num_experts)
        self._configure(transport, config, x.is_cuda)
        turn = self._streams.begin(x.device, previous_event, async_finish)
        *payloads, in_rank, per_expert = turn.contiguous(
            *([x] if scales is None else [x, scales]), in_rank, per_expert
        )
        rows, received, received_ids, received_weights = send_rows(
            transport,
            payloads,
            ids,
            weights,
            room,
            turn,
            expert_alignment=expert_alignment,
            is_token_in_rank=in_rank,
            tokens_per_expert=per_expert,
        )
        counts = [] if room else list_counts(rows)
        num_rows = room if room and x.is_cuda else rows.x.shape[0]
        made = DispatchHandle(transport, num_rows, room or num_rows, in_rank, ranks)
        made.hold(rows)
        event = self._streams.end(turn, (*payloads, ids, weights, in_rank, per_expert))
        return join_scales(received), received_ids, received_weights, counts, made, event

    def _find_dispatch_plan(
        self,
        payloads: list[Any],
        ids: Optional[Any],
        weights: Optional[Any],
        in_rank: Any,
        per_expert: Any,
        expert_alignment: int,
        has_room: bool,
    ) -> tuple[Optional[DispatchPlan], tuple[int, int, int, int]]:
        """The plan of such dispatches, and the rows of x, ids, weights and in_rank.  No plan where
        there is none for the types of rows, or for rows with room on the CPU, and for what only the
        library can refuse by name."""
        try:
            x = payloads[0]
            num_tokens, hidden = x.shape
            num_masks, num_ranks = in_rank.shape
            (num_experts,) = per_expert.shape
            key: tuple[Any, ...] = (
                hidden,
                num_ranks,
                num_experts,
                expert_alignment,
                has_room,
                x.dtype,
                in_rank.dtype,
                per_expert.dtype,
                x.device,
                in_rank.get_device(),
                per_expert.get_device(),
            )
            num_routed = num_weighted = 0
            if ids is not None:
                num_routed, topk = ids.shape
                key += (topk, ids.dtype, ids.get_device())
            if weights is not None:
                num_weighted, topk = weights.shape
                key += ("weights", topk, weights.dtype, weights.get_device())
            if len(payloads) > 1:
                scales = payloads[1]
                _, groups = scales.shape
                key += ("scales", len(payloads), groups, scales.dtype, scales.get_device())
            plan = self._dispatch_plans.get(key)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return None, _NO_SIZES
        if plan is None:
            if not can_plan(payloads) or (has_room and not x.is_cuda):
                return None, _NO_SIZES
            split_scales(x if len(payloads) == 1 else payloads)
            ranks = self._open()
            plan = self._dispatch_plans[key] = DispatchPlan(
                payloads,
                ranks.on(x.device).high_throughput(num_experts),
                ranks,
                num_experts,
                expert_alignment,
                has_room,
            )
        return plan, (num_tokens, num_routed, num_weighted, num_masks)

    def _dispatch_cached(
        self, x: Any, handle: Any, config: Optional[Config], previous_event: Any, async_finish: bool
    ) -> tuple[Any, None, None, None, None, EventOverlap]:
        self._open()
        x, scales = split_scales(x)
        payloads = [x] if scales is None else [x, scales]
        route = expect_handle(handle)
        transport = route.transport
        self._configure(transport, config, x.is_cuda)
        key = tuple([_kind_of(payload) for payload in payloads])
        plan = self._cached_plans.get(key)
        if plan is None and can_plan(payloads):
            plan = self._cached_plans[key] = CachedDispatchPlan(payloads)
        turn = self._streams.begin(x.device, previous_event, async_finish)
        payloads = turn.contiguous(*payloads)
        if plan is not None:
            received = plan.dispatch(
                transport._get(), route.number(), payloads, turn.own, turn.user
            )
        else:
            rows = transport.dispatch_cached(payloads, route.rows, stream=turn.stream)
            turn.adopt(rows)
            received = rows.payloads
        if received[0].shape[0] != route.room:
            received = [padded(payload, route.room) for payload in received]
        event = self._streams.end(turn, tuple(payloads)) if async_finish else NoEvent()
        return join_scales(received), None, None, None, None, event

    def combine(
        self,
        x: Any,
        handle: Any,
        topk_weights: Any = None,
        bias: Any = None,
        config: Optional[Config] = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Optional[Any], EventOverlap]:
        """Sums the rows of each token, without weights: x [M, H] bf16, f16 or f32 -> [T, H].

        topk_weights f32 [M, K] are summed beside them.  A bias [T, H], or two, are added once.
        Gives the sums, those of the weights or None, and an event.  Collective."""
        self._open()
        route = expect_handle(handle)
        expect_tensor(x, "x", 2)
        if x.shape[0] != route.room:
            raise InvalidArgument(
                f"x has {x.shape[0]} rows, expected {route.room} as dispatch has given"
            )
        biases = list_biases(bias)
        self._configure(route.transport, config, x.is_cuda)
        if route.num_rows != route.room:
            x = x[: route.num_rows]
        if topk_weights is not None and topk_weights.shape[0] != route.num_rows:
            topk_weights = topk_weights[: route.num_rows]
        turn = self._streams.begin(x.device, previous_event, async_finish)
        given, weights = turn.contiguous(x, topk_weights)
        found = self._sum_rows(route, given, weights, biases, turn)
        if not async_finish:
            return (*found, NoEvent())
        return (*found, self._streams.end(turn, (given, weights, *biases), found))

    def _sum_rows(
        self, route: DispatchHandle, x: Any, weights: Any, biases: list[Any], turn: Turn
    ) -> tuple[Any, Optional[Any]]:
        kind: tuple[Any, ...] = (x.shape[1], x.dtype, x.device)
        if weights is not None:
            expect_tensor(weights, "topk_weights", 2)
            kind = (*kind, weights.shape[1], weights.dtype, weights.device)
        plan = self._combine_plans.get(kind)
        if plan is None:
            plan = self._combine_plans[kind] = CombinePlan(x, weights)
        found = turn.allocate(plan.allocate, route.is_token_in_rank.shape[0])
        sums, weight_sums = found
        if biases:
            route.transport.combine(
                x,
                route.rows,
                topk_weights=weights,
                bias=biases,
                into=sums,
                topk_weights_into=weight_sums,
                stream=turn.stream,
            )
        else:
            transport, rows = route.transport._get(), route.number()
            stream = turn.own
            plan.combine(transport, rows, x, weights, sums, weight_sums, stream)
        return sums, weight_sums

    def internode_dispatch(
        self,
        x: Any,
        handle: Any = None,
        num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None,
        num_tokens_per_expert: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        expert_alignment: int = 1,
        config: Optional[Config] = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Optional[Any], Optional[Any], Optional[list[int]], Any, EventOverlap]:
        """dispatch(), which takes care of nodes itself."""
        return self.dispatch(
            x,
            handle,
            num_tokens_per_rank,
            num_tokens_per_rdma_rank,
            is_token_in_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            0,
            config,
            previous_event,
            async_finish,
            allocate_on_comm_stream,
        )

    def internode_combine(
        self,
        x: Any,
        handle: Any,
        topk_weights: Any = None,
        bias: Any = None,
        config: Optional[Config] = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Optional[Any], EventOverlap]:
        """combine(), which takes care of nodes itself."""
        return self.combine(
            x,
            handle,
            topk_weights,
            bias,
            config,
            previous_event,
            async_finish,
            allocate_on_comm_stream,
        )


def _kind_of(x: Any) -> tuple[Any, ...]:
    """What tensors [rows, N] of a kind have in common."""
    _, width = x.shape
    return width, x.dtype, x.device


_NO_SIZES = (0, 0, 0, 0)


def _config_of(num_ranks: int) -> Config:
    if num_ranks < 1:
        raise InvalidArgument(f"num_ranks is {num_ranks}, expected at least 1")
    return Config(HighThroughputCalls.num_sms)
