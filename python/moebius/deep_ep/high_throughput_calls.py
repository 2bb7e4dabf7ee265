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
from ..tensors import stream_handle
from .comm_stream import CommStreams
from .config import Config
from .events import EventOverlap
from .handles import DispatchHandle, expect_handle
from .high_throughput_plans import CombinePlan
from .ranks import Ranks
from .tensors import expect_tensor, front, join_scales, list_biases, padded, split_scales


def send_rows(
    transport: HighThroughput,
    payloads: list[Any],
    topk_idx: Any,
    topk_weights: Any,
    room: int,
    **options: Any,
) -> tuple[Dispatched, list[Any], Any, Any]:
    """A dispatch whose outputs have `room` rows, or as many as arrive where it is 0.  Gives the
    result and its tensors: payloads, ids and weights.  With room no host waits for a GPU, and the
    ids of rows past the end are -1."""
    if room == 0:
        rows = transport.dispatch(payloads, topk_idx, topk_weights, lists_counts=True, **options)
        return rows, *_tensors_of(rows)
    x = payloads[0]
    if x.is_cuda:
        row_bytes = max(2, x.element_size()) * x.shape[1]
        rows = transport.dispatch(
            payloads, topk_idx, topk_weights, capacity=room, combine_row_bytes=row_bytes, **options
        )
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
        ranks = self._open()
        expect_tensor(topk_idx, "topk_idx", 2)
        transport = ranks.on(topk_idx.device).high_throughput(num_experts)
        turn = self._streams.begin(topk_idx.device, previous_event, async_finish)
        layout = transport.layout(topk_idx, stream=turn.stream)
        turn.adopt(layout)
        per_rank, per_expert, in_rank = layout.counts
        per_node = layout.tokens_per_node if ranks.num_nodes > 1 else None
        event = self._streams.end(turn, (topk_idx,))
        return per_rank, per_node, per_expert, in_rank, event

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
        ranks = self._open()
        x, scales = split_scales(x)
        payloads = [x] if scales is None else [x, scales.contiguous()]
        if handle is not None:
            if topk_idx is not None or topk_weights is not None:
                raise InvalidArgument(
                    "handle and topk_idx or topk_weights are given, expected one of the two"
                )
            return self._dispatch_cached(payloads, handle, config, previous_event, async_finish)
        if is_token_in_rank is None or num_tokens_per_expert is None:
            raise InvalidArgument(
                "neither handle nor is_token_in_rank and num_tokens_per_expert are given, expected "
                "one of the two"
            )
        num_experts = expect_tensor(num_tokens_per_expert, "num_tokens_per_expert", 1).shape[0]
        transport = ranks.on(x.device).high_throughput(num_experts)
        self._configure(transport, config, x.is_cuda)
        is_token_in_rank = is_token_in_rank.contiguous()
        num_tokens_per_expert = num_tokens_per_expert.contiguous()
        turn = self._streams.begin(x.device, previous_event, async_finish)
        rows, received, ids, weights = send_rows(
            transport,
            payloads,
            topk_idx,
            topk_weights,
            num_worst_tokens,
            expert_alignment=expert_alignment,
            is_token_in_rank=is_token_in_rank,
            tokens_per_expert=num_tokens_per_expert,
            stream=turn.stream,
        )
        turn.adopt(rows)
        num_rows = num_worst_tokens if x.is_cuda and num_worst_tokens else rows.x.shape[0]
        made = DispatchHandle(
            transport,
            rows,
            num_rows,
            num_worst_tokens or num_rows,
            is_token_in_rank=is_token_in_rank,
            rank=ranks.rank,
            spans_nodes=ranks.num_nodes > 1,
        )
        counts = [] if num_worst_tokens else list_counts(rows)
        event = self._streams.end(
            turn, (*payloads, topk_idx, topk_weights, is_token_in_rank, num_tokens_per_expert)
        )
        return join_scales(received), ids, weights, counts, made, event

    def _dispatch_cached(
        self,
        payloads: list[Any],
        handle: Any,
        config: Optional[Config],
        previous_event: Any,
        async_finish: bool,
    ) -> tuple[Any, None, None, None, None, EventOverlap]:
        route = expect_handle(handle)
        x = payloads[0]
        self._configure(route.transport, config, x.is_cuda)
        turn = self._streams.begin(x.device, previous_event, async_finish)
        rows = route.transport.dispatch_cached(payloads, route.rows, stream=turn.stream)
        turn.adopt(rows)
        received = [padded(payload, route.room) for payload in rows.payloads]
        event = self._streams.end(turn, tuple(payloads))
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
        given = front(x, route.num_rows)
        weights = None if topk_weights is None else front(topk_weights, route.num_rows)
        turn = self._streams.begin(x.device, previous_event, async_finish)
        found = self._sum_rows(route, given, weights, biases, turn.stream)
        if not async_finish:
            return (*found, EventOverlap())
        return (*found, self._streams.end(turn, (given, weights, *biases, *found)))

    def _sum_rows(
        self, route: DispatchHandle, x: Any, weights: Any, biases: list[Any], stream: Any
    ) -> tuple[Any, Optional[Any]]:
        num_tokens = route.is_token_in_rank.shape[0]
        if biases:
            into = torch.empty((num_tokens, x.shape[1]), dtype=x.dtype, device=x.device)
            weights_into = None
            if weights is not None:
                shape = (num_tokens, *weights.shape[1:])
                weights_into = torch.empty(shape, dtype=torch.float32, device=x.device)
            route.transport.combine(
                x,
                route.rows,
                topk_weights=weights,
                bias=biases,
                into=into,
                topk_weights_into=weights_into,
                stream=stream,
            )
            return into, weights_into
        kind: tuple[Any, ...] = (x.shape[1], x.dtype, x.device)
        if weights is not None:
            expect_tensor(weights, "topk_weights", 2)
            kind = (*kind, weights.shape[1], weights.dtype, weights.device)
        plan = self._combine_plans.get(kind)
        if plan is None:
            plan = self._combine_plans[kind] = CombinePlan(x, weights)
        transport, rows = route.transport._get(), route.rows._get()
        return plan.combine(transport, rows, x, weights, num_tokens, stream_handle(stream, x))

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


def _config_of(num_ranks: int) -> Config:
    if num_ranks < 1:
        raise InvalidArgument(f"num_ranks is {num_ranks}, expected at least 1")
    return Config(HighThroughputCalls.num_sms)
