# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The cases of deep_ep_failures.py that are about arguments: those that differ between ranks, those
that are wrong, and those that only look so."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deep_ep_rank import (
    EXPERTS,
    HIDDEN,
    MAX_TOKENS,
    TOKENS,
    TOPK,
    VICTIM,
    Rank,
    error_of,
    expect_refused,
    say,
)

import torch
from moebius.deep_ep import Buffer


# Ranks that do not agree.


def different(rank: Rank) -> None:
    """Ranks give arguments that do not fit together, or make different calls."""
    odd = rank.rank == VICTIM
    narrow = rank.x[:, : HIDDEN // 2].contiguous()
    calls: dict[str, Callable[[Buffer], Any]] = {
        "hidden": lambda buffer: rank.dispatch(buffer, narrow if odd else rank.x),
        "dtype": lambda buffer: rank.dispatch(buffer, rank.x.float() if odd else rank.x),
        "topk": lambda buffer: rank.dispatch(buffer, ids=rank.ids[:, :1] if odd else rank.ids),
        "calls": lambda buffer: rank.low_latency(buffer) if odd else rank.dispatch(buffer),
        "scales": lambda buffer: rank.dispatch(
            buffer, (rank.x, torch.ones(TOKENS, 2, device=rank.device)) if odd else rank.x
        ),
        "cast": lambda buffer: rank.low_latency(buffer, use_fp8=odd),
        "rows": lambda buffer: rank.low_latency(buffer, x=rank.x.float() if odd else rank.x),
        "room": lambda buffer: rank.low_latency(buffer, num_max_dispatch_tokens_per_rank=MAX_TOKENS + odd),
        "experts": lambda buffer: rank.low_latency(buffer, num_experts=EXPERTS - 2 * odd),
        "experts of a layout": lambda buffer: buffer.get_dispatch_layout(
            rank.ids, EXPERTS - 2 * odd
        ),
        "selections": lambda buffer: rank.low_latency(
            buffer, topk_idx=rank.ids[:, :1].contiguous() if odd else rank.ids
        ),
        "width": lambda buffer: rank.low_latency(buffer, x=narrow if odd else rank.x),
    }
    for name, call in calls.items():
        buffer = rank.buffer()

        def run() -> None:
            for _ in range(3):
                call(buffer)
                rank.finish()

        error = error_of(run)
        assert error is not None, f"{name}: ranks that do not agree went on"
        del run
        rank.barrier()
        buffer.destroy()
    buffer = rank.buffer()
    rank.expect_well(buffer)
    buffer.destroy()
    say("right")


# Wrong arguments.


def wrong(rank: Rank) -> None:
    """Each call is refused on all ranks alike, and the buffer works as before."""
    buffer, x, ids, weights = rank.buffer(), rank.x, rank.ids, rank.weights
    rows, _, _, _, handle, _ = rank.dispatch(buffer)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
    layout = {"is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}
    low_rows, _, low_handle, *_ = rank.low_latency(buffer)
    cuda = rank.device.type == "cuda"
    anything: Any = object()

    def combine(x: Any = rows, handle: Any = handle, **options: Any) -> Callable[[], Any]:
        return lambda: buffer.combine(x, handle, **options)

    def dispatch(given: Any = x, **options: Any) -> Callable[[], Any]:
        return lambda: buffer.dispatch(given, **{**layout, **options})

    def low(**options: Any) -> Callable[[], Any]:
        return lambda: rank.low_latency(buffer, **options)

    def low_combine(x: Any = low_rows, **options: Any) -> Callable[[], Any]:
        given = {"topk_idx": ids, "topk_weights": weights, "handle": low_handle, **options}
        return lambda: buffer.low_latency_combine(x, **given)

    for what, call in {
        "a layout of floats": lambda: buffer.get_dispatch_layout(weights, EXPERTS),
        "a layout of a line": lambda: buffer.get_dispatch_layout(ids[0], EXPERTS),
        "no experts": lambda: buffer.get_dispatch_layout(ids, 0),
        "fewer than no experts": lambda: buffer.get_dispatch_layout(ids, -3),
        "x is an object": dispatch(anything),
        "x is None": dispatch(None),
        "x has three dimensions": dispatch(x.view(TOKENS, 2, -1)),
        "x has fewer tokens": dispatch(x[:2]),
        "ids have fewer tokens": dispatch(topk_idx=ids[:2]),
        "ids are floats": dispatch(topk_idx=weights),
        "weights without ids": dispatch(topk_weights=weights),
        "weights are halves": dispatch(topk_idx=ids, topk_weights=weights.half()),
        "weights have another shape": dispatch(topk_idx=ids, topk_weights=weights[:, :1]),
        "a layout of integers": dispatch(is_token_in_rank=in_rank.int()),
        "a layout of fewer ranks": dispatch(is_token_in_rank=in_rank[:, :1]),
        "counts of floats": dispatch(num_tokens_per_expert=per_expert.float()),
        "an alignment of 0": dispatch(topk_idx=ids, expert_alignment=-1),
        "scales of fewer tokens": dispatch((x, weights[:2])),
        "a handle that is none": dispatch(handle=anything),
        "a handle and ids": dispatch(handle=handle, topk_idx=ids),
        "a handle of low latency": combine(handle=low_handle),
        "too few rows": combine(rows[:-1]) if len(rows) else combine(rows.new_empty(1, HIDDEN)),
        "rows of integers": combine(rows.int()),
        "weights of other rows": combine(topk_weights=weights[:1]),
        "three biases": combine(bias=(x, x, x)),
        "a narrow bias": combine(bias=x[:, :1]),
        "a bias of another type": combine(bias=x.float()),
        "too many tokens": low(num_max_dispatch_tokens_per_rank=TOKENS - 1),
        "a room of 0": low(num_max_dispatch_tokens_per_rank=0),
        "ids of floats": low(topk_idx=weights),
        "fewer ids": low(topk_idx=ids[:2]),
        "a hook and an event": low(async_finish=True, return_recv_hook=True),
        "ue8m0 without rounding": low(use_fp8=True, use_ue8m0=True),
        "statistics of floats": low(cumulative_local_expert_recv_stats=weights[0]),
        "x of bytes": low(x=x.view(torch.uint8)),
        "an out of another type": low_combine(out=x.float()),
        "an out of another shape": low_combine(out=x[:1]),
        "rows of low latency of another type": low_combine(low_rows.float()),
        "fewer rows of low latency": low_combine(low_rows[:1]),
        "weights of fewer tokens": low_combine(topk_weights=weights[:2]),
        "an out of a line": low_combine(out=x.view(-1)),
        "weights of another type": low_combine(topk_weights=weights.double()),
        "a handle of dispatch": low_combine(handle=handle),
        "masking itself": lambda: buffer.low_latency_update_mask_buffer(rank.rank, True),
        "masking nobody": lambda: buffer.low_latency_update_mask_buffer(rank.size, True),
        **(
            {
                "x elsewhere": dispatch(x.cpu()),
                "ids elsewhere": low(topk_idx=ids.cpu()),
                "weights elsewhere": low_combine(topk_weights=weights.cpu()),
            }
            if cuda
            else {
                "ids of no expert": lambda: buffer.get_dispatch_layout(ids + EXPERTS, EXPERTS),
                "ids less than -1": lambda: buffer.get_dispatch_layout(ids - EXPERTS - 2, EXPERTS),
                "low-latency ids of no expert": low(topk_idx=ids + EXPERTS),
            }
        ),
    }.items():
        expect_refused(what, call)
    rank.expect_well(buffer)
    buffer.destroy()
    say("right")


def strange(rank: Rank) -> None:
    """What looks wrong and is valid: strides, no tokens, masked ids, NaN."""
    buffer = rank.buffer()
    wide = rank.x.repeat(1, 2)[:, :HIDDEN]
    assert not wide.is_contiguous()
    rows = rank.dispatch(buffer, wide)[0]
    assert torch.equal(rows, rank.dispatch(buffer)[0])
    nothing = rank.rank == 0
    count = 0 if nothing else TOKENS
    rows, *_, handle, _ = rank.dispatch(buffer, rank.x[:count], rank.ids[:count])
    assert buffer.combine(rows, handle)[0].shape == (count, HIDDEN)
    rank.low_latency(buffer, x=rank.x[:count], topk_idx=rank.ids[:count])
    rows = rank.dispatch(buffer, ids=torch.full_like(rank.ids, -1))[0]
    assert len(rows) == 0
    rows, *_, handle, _ = rank.dispatch(buffer, torch.full_like(rank.x, float("nan")))
    assert buffer.combine(rows, handle)[0].isnan().all()
    low, _, route, *_ = rank.low_latency(buffer, x=torch.full_like(rank.x, float("inf")))
    buffer.low_latency_combine(low, rank.ids, rank.weights, route)
    rank.expect_well(buffer)
    buffer.destroy()
    say("right")
