# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine that autograd can differentiate: each is the other's backward.

Letters: T tokens of this rank, M rows received, H hidden, K top-k."""
from __future__ import annotations

from typing import Any, Optional

import torch

from .buffer import Buffer
from .events import EventHandle, EventOverlap

_Function: Any = torch.autograd.Function


def _now(is_async: bool) -> Optional[EventOverlap]:
    return EventOverlap(EventHandle()) if is_async else None


def _wait(event: EventOverlap) -> None:
    if event.event is not None:
        event.current_stream_wait()


class DispatchFunction(_Function):  # type: ignore[misc]
    """See dispatch()."""

    @staticmethod
    def forward(
        ctx: Any,
        buffer: Buffer,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        num_experts: int,
        expert_alignment: int,
        num_worst_tokens: int,
        is_async: bool,
    ) -> tuple[Any, ...]:
        *layout, event = buffer.get_dispatch_layout(
            topk_idx, num_experts, previous_event=_now(is_async), async_finish=is_async
        )
        per_rank, per_node, per_expert, is_in_rank = layout
        rows, ids, weights, counts, handle, event = buffer.dispatch(
            x,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=is_in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
            expert_alignment=expert_alignment,
            num_worst_tokens=num_worst_tokens,
            previous_event=event,
            async_finish=is_async,
        )
        _wait(event)
        ctx.buffer, ctx.handle, ctx.is_async = buffer, handle, is_async
        ctx.mark_non_differentiable(ids)
        return rows, ids, weights, counts, handle

    @staticmethod
    def backward(
        ctx: Any, grad_rows: Any, grad_ids: Any, grad_weights: Any, *rest: Any
    ) -> tuple[Any, ...]:
        needs_weights = ctx.needs_input_grad[3]
        grad_x, grad_weights, event = ctx.buffer.combine(
            grad_rows.contiguous(),
            ctx.handle,
            topk_weights=grad_weights.to(torch.float32) if needs_weights else None,
            previous_event=_now(ctx.is_async),
            async_finish=ctx.is_async,
        )
        _wait(event)
        return None, grad_x, None, grad_weights, None, None, None, None


class CombineFunction(_Function):  # type: ignore[misc]
    """See combine()."""

    @staticmethod
    def forward(ctx: Any, buffer: Buffer, x: Any, handle: Any, is_async: bool) -> Any:
        sums, _, event = buffer.combine(
            x, handle, previous_event=_now(is_async), async_finish=is_async
        )
        _wait(event)
        ctx.buffer, ctx.handle, ctx.is_async = buffer, handle, is_async
        return sums

    @staticmethod
    def backward(ctx: Any, grad_sums: Any) -> tuple[Any, ...]:
        grad_x, *_, event = ctx.buffer.dispatch(
            grad_sums.contiguous(),
            handle=ctx.handle,
            previous_event=_now(ctx.is_async),
            async_finish=ctx.is_async,
        )
        _wait(event)
        return None, grad_x, None, None


def dispatch(
    buffer: Buffer,
    x: Any,
    topk_idx: Any,
    topk_weights: Any,
    num_experts: int,
    *,
    expert_alignment: int = 1,
    num_worst_tokens: int = 0,
    is_async: bool = False,
) -> tuple[Any, Any, Any, list[int], Any]:
    """Buffer.get_dispatch_layout() and Buffer.dispatch(): x [T, H] bf16, f16 or f32, topk_idx and
    topk_weights f32 [T, K] -> rows [M, H], ids and weights [M, K], counts, and the handle.

    The gradients of x and topk_weights are the sums of those of their copies.  Collective, and so
    is backward."""
    result: tuple[Any, Any, Any, list[int], Any] = DispatchFunction.apply(
        buffer,
        x,
        topk_idx,
        topk_weights,
        num_experts,
        expert_alignment,
        num_worst_tokens,
        is_async,
    )
    return result


def combine(buffer: Buffer, x: Any, handle: Any, *, is_async: bool = False) -> Any:
    """Buffer.combine(): x [M, H] -> the sums [T, H].

    A row's gradient is that of its token.  Collective, and so is backward."""
    return CombineFunction.apply(buffer, x, handle, is_async)
