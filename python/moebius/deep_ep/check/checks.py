# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The checks: each is a function of the state of a rank, and collective."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import CommError, InvalidArgument
from ...settings import get_setting, set_setting
from .. import autograd
from ..buffer import Buffer
from ..elastic import ElasticBuffer
from ..tensors import distributed
from .inputs import (
    Rows,
    Sizes,
    copies_of,
    counts_of,
    decode_fp8,
    inputs_of,
    is_in_rank,
    rows_of,
)


@dataclass
class Rank:
    """What the checks of a rank work on."""

    sizes: Sizes
    rank: int
    group: Any
    buffer: Buffer


def expect(is_right: Any, what: str) -> None:
    if not is_right:
        raise AssertionError(what)


def expect_equal(found: Any, expected: Any, what: str) -> None:
    if isinstance(expected, torch.Tensor):
        same = found.shape == expected.shape and torch.equal(found, expected.to(found.dtype))
    else:
        same = found == expected
    expect(same, f"{what} is {found}, expected {expected}")


def expect_close(found: Any, expected: Any, error: float, what: str) -> None:
    """By the norm of the difference."""
    difference = torch.linalg.norm(found.double() - expected.double())
    limit = error * torch.linalg.norm(expected.double())
    expect(difference <= limit, f"{what} differs by {difference}, expected at most {limit}")


def align(count: int, alignment: int) -> int:
    return -(-count // alignment) * alignment


def layout(state: Rank) -> None:
    """get_dispatch_layout()."""
    sizes, ids = state.sizes, inputs_of(state.sizes, state.rank).ids
    for dtype in (torch.int64, torch.int32):
        per_rank, _, per_expert, in_rank, _ = state.buffer.get_dispatch_layout(
            ids.to(dtype), sizes.num_experts
        )
        for rank in range(sizes.num_ranks):
            expected = is_in_rank(sizes, ids, rank).any(1)
            expect_equal(in_rank[:, rank], expected, "is_token_in_rank")
            expect_equal(int(per_rank[rank]), int(expected.sum()), "num_tokens_per_rank")
        for expert in range(sizes.num_experts):
            expect_equal(int(per_expert[expert]), int((ids == expert).sum()), "per expert")


def _dispatch(state: Rank, **options: Any) -> tuple[Any, ...]:
    given = inputs_of(state.sizes, state.rank)
    per_rank, _, per_expert, in_rank, _ = state.buffer.get_dispatch_layout(
        given.ids, state.sizes.num_experts
    )
    found: tuple[Any, ...] = state.buffer.dispatch(
        **{
            "x": given.x,
            "num_tokens_per_rank": per_rank,
            "is_token_in_rank": in_rank,
            "num_tokens_per_expert": per_expert,
            **options,
        }
    )
    if options.get("async_finish"):
        found[-1].current_stream_wait()
    return found


def _expect_rows(state: Rank, expected: Rows, x: Any, handle: Any) -> None:
    expect_equal(x, expected.x, "rows")
    expect_equal(handle[3], expected.source_token, "source tokens")
    ends = [int((expected.source_rank <= rank).sum()) for rank in range(state.sizes.num_ranks)]
    expect_equal(handle[0][:, state.rank].tolist(), ends, "rank_prefix_matrix")


def dispatch(state: Rank) -> None:
    """dispatch() and combine(), with and without ids, events and scales, and along a handle."""
    sizes, given = state.sizes, inputs_of(state.sizes, state.rank)
    expected = rows_of(sizes, state.rank)
    copies = copies_of(sizes, given.ids).unsqueeze(1)
    scales = given.x[:, : max(1, sizes.hidden // 128)].to(torch.float32)
    ids = {"topk_idx": given.ids, "topk_weights": given.weights}
    for is_async in (False, True):
        for alignment, with_ids in ((1, False), (1, True), (16, True)):
            options: dict[str, Any] = {"async_finish": is_async, "expert_alignment": alignment}
            if is_async:
                options["previous_event"] = Buffer.capture()
            x, found_ids, weights, counts, handle, _ = _dispatch(
                state, **options, **(ids if with_ids else {})
            )
            _expect_rows(state, expected, x, handle)
            wanted = [align(n, alignment) for n in counts_of(sizes, expected.ids)]
            expect_equal(counts, wanted, "counts")
            if with_ids:
                expect_equal(found_ids, expected.ids, "ids")
                expect_equal(weights, expected.weights, "weights")
            else:
                expect(found_ids is None and weights is None, "ids come without any given")
            again = state.buffer.dispatch(given.x * 2, handle=handle)[0]
            expect_equal(again, expected.x * 2, "rows along a handle")
            sums, summed_weights, event = state.buffer.combine(
                x, handle, topk_weights=weights, async_finish=is_async
            )
            if is_async:
                event.current_stream_wait()
            expect_close(sums, given.x * copies, 4e-3, "sums")
            if with_ids:
                expect_equal(summed_weights, given.weights, "sums of weights")
    columns = scales.t().contiguous().t()
    found, *_ = _dispatch(state, x=(given.x.view(torch.uint8), columns))
    expect_equal(found[0].view(torch.bfloat16), expected.x, "rows of another type")
    wanted_scales = expected.x[:, : scales.shape[1]].to(torch.float32)
    expect_equal(found[1], wanted_scales, "scales")


def worst_case(state: Rank) -> None:
    """dispatch() with num_worst_tokens, which waits for no counts."""
    sizes, given = state.sizes, inputs_of(state.sizes, state.rank)
    expected = rows_of(sizes, state.rank)
    num_rows, room = len(expected.x), max(1, sizes.num_tokens * sizes.num_ranks)
    x, ids, weights, counts, handle, _ = _dispatch(
        state, topk_idx=given.ids, topk_weights=given.weights, num_worst_tokens=room
    )
    expect_equal((len(x), len(ids), len(weights), counts), (room, room, room, []), "sizes")
    expect_equal(x[:num_rows], expected.x, "rows")
    expect_equal(ids[:num_rows], expected.ids, "ids")
    expect_equal(weights[:num_rows], expected.weights, "weights")
    expect((ids[num_rows:] == -1).all(), "ids past the end are not all -1")
    expect_equal(len(state.buffer.dispatch(given.x, handle=handle)[0]), room, "rows again")
    sums = state.buffer.combine(x, handle)[0]
    copies = copies_of(sizes, given.ids).unsqueeze(1)
    expect_close(sums, given.x * copies, 4e-3, "sums")


def biases(state: Rank) -> None:
    """combine() with one and two biases."""
    given = inputs_of(state.sizes, state.rank)
    x, *_, handle, _ = _dispatch(state)
    zero = torch.zeros_like(x)
    expect_equal(state.buffer.combine(zero, handle, bias=given.x)[0], given.x, "a bias")
    both = state.buffer.combine(zero, handle, bias=(given.x, given.x))[0]
    expect_equal(both, given.x * 2, "two biases")


def _expect_low_latency(state: Rank, rows: Any, counts: Any, handle: Any, error: float) -> None:
    """rows f32 [L, M * R, H]."""
    sizes = state.sizes
    for local in range(sizes.experts_per_rank):
        expert, begin = state.rank * sizes.experts_per_rank + local, 0
        for source in range(sizes.num_ranks):
            given = inputs_of(sizes, source)
            tokens = (given.ids == expert).any(1).nonzero().view(-1)
            word = int(handle[1][local, source])
            if len(tokens):
                expect_equal((word >> 32, word & 0xFFFFFFFF), (begin, len(tokens)), "a range")
            end = begin + len(tokens)
            expect_equal(handle[0][local, begin:end], tokens, "source tokens")
            expect_close(rows[local, begin:end], given.x[tokens], error, "rows")
            begin = end
        expect_equal(int(counts[local]), begin, "a count")


def _scales_of(scales: Any, hidden: int) -> Any:
    """f32 [L, rows, G] of scales that may be packed."""
    if scales.dtype == torch.int32:
        parts = [(scales >> shift & 255) << 23 for shift in (0, 8, 16, 24)]
        scales = torch.stack(parts, -1).flatten(2).view(torch.float32)
    return scales[..., : hidden // 128]


def low_latency(state: Rank) -> None:
    """Low-latency dispatch and combine: casts, hooks, events, zero copy, logfmt, statistics."""
    sizes, given = state.sizes, inputs_of(state.sizes, state.rank)
    device, buffer = sizes.device, state.buffer
    expected = given.x.float() * given.weights.sum(1, keepdim=True)
    casts: list[dict[str, bool]] = [{"use_fp8": False}]
    if sizes.hidden % 128 == 0:
        casts += [{}, {"round_scale": True}, {"round_scale": True, "use_ue8m0": True}]
    for cast in casts:
        for with_hook in (False, True):
            end = {"return_recv_hook": with_hook, "async_finish": not with_hook}
            received = torch.zeros(sizes.experts_per_rank, dtype=torch.int32, device=device)
            waited = torch.zeros(sizes.num_ranks, dtype=torch.int64, device=device)
            rows, counts, handle, event, hook = buffer.low_latency_dispatch(
                given.x, given.ids, sizes.num_tokens, sizes.num_experts, received, waited, **cast, **end
            )
            hook() if hook is not None else event.current_stream_wait()
            expect_equal(received, counts, "received")
            if isinstance(rows, tuple):
                scales = _scales_of(rows[1], sizes.hidden).repeat_interleave(128, -1)
                rows = decode_fp8(rows[0]) * scales
            _expect_low_latency(state, rows, counts, handle, 0.06 if len(casts) > 1 else 0)
            uses_logfmt = with_hook and sizes.hidden % 128 == 0
            combines: list[dict[str, bool]] = [
                {"use_logfmt": True} if uses_logfmt else {"zero_copy": True},
                {},
            ]
            y = rows.to(torch.bfloat16)
            for options in combines:
                if "zero_copy" in options:
                    buffer.get_next_low_latency_combine_buffer(handle)[:] = y
                out = torch.empty_like(given.x)
                sums, event, hook = buffer.low_latency_combine(
                    y, given.ids, given.weights, handle, out=out, **options, **end
                )
                hook() if hook is not None else event.current_stream_wait()
                expect(sums is out, "the sums are not in `out`")
                expect_close(sums, expected, 0.08, f"sums ({cast}, {options})")


def elastic(state: Rank) -> None:
    """ElasticBuffer: with and without expansion and counts on the host, and along a handle."""
    sizes, given = state.sizes, inputs_of(state.sizes, state.rank)
    expected = rows_of(sizes, state.rank)
    num_rows = len(expected.x)
    buffer = ElasticBuffer(state.group, num_max_tokens_per_rank=max(1, sizes.num_tokens))
    copies = copies_of(sizes, given.ids).unsqueeze(1)
    selections = (given.ids >= 0).sum(1, keepdim=True)
    for do_expand in (False, True):
        for do_cpu_sync in (True, False):
            stats = torch.zeros(sizes.experts_per_rank, dtype=torch.int32, device=sizes.device)
            found: Any = buffer.dispatch(
                given.x,
                given.ids,
                given.weights,
                stats,
                sizes.num_experts,
                expert_alignment=8,
                do_cpu_sync=do_cpu_sync,
                do_expand=do_expand,
                async_with_compute_stream=True,
            )
            x, ids, weights, handle, event = found
            event.current_stream_wait()
            expect_equal(stats.tolist(), counts_of(sizes, expected.ids), "statistics")
            ends = handle.psum_num_recv_tokens_per_scaleup_rank
            expect_equal(int(ends[-1]), num_rows, "rows")
            most = buffer.num_max_tokens_per_rank
            index = handle.recv_src_metadata[:num_rows, 0]
            expect_equal(index, expected.source_rank * most + expected.source_token, "sources")
            again, *_ = buffer.dispatch(given.x, handle=handle, do_expand=do_expand)
            if do_expand:
                slots = handle.recv_src_metadata[:num_rows, 2:].long()
                here = expected.ids >= 0
                expect_equal(slots >= 0, here, "slots")
                source = here.nonzero()[:, 0]
                expect_equal(x[slots[here]], expected.x[source], "expanded rows")
                expect_equal(weights[slots[here]], expected.weights[here], "expanded weights")
                expect_equal(again[slots[here]], expected.x[source], "expanded rows again")
                expect_equal(handle.num_unaligned_recv_tokens_per_expert, stats, "counts")
            else:
                expect_equal(x[:num_rows], expected.x, "rows")
                expect_equal(ids[:num_rows], expected.ids, "ids")
                expect_equal(again[:num_rows], expected.x, "rows again")
            sums, summed, _ = buffer.combine(x, handle, topk_weights=weights, bias=given.x)
            times = (selections if do_expand else copies) + 1
            expect_close(sums, given.x * times, 8e-3, "sums")
            expect_equal(summed, given.weights, "sums of weights")
    buffer.barrier()
    buffer.destroy()


def gradients(state: Rank) -> None:
    """Dispatch and combine under autograd against experts that see all tokens."""
    sizes, given = state.sizes, inputs_of(state.sizes, state.rank)
    tokens, probabilities = given.x.float(), given.weights

    def factor(expert: int) -> float:
        return 1.0 + expert / 8

    x, weights = (part.clone().requires_grad_() for part in (tokens, probabilities))
    rows, ids, row_weights, _, handle = autograd.dispatch(
        state.buffer, x, given.ids, weights, sizes.num_experts
    )
    y = torch.zeros_like(rows)
    for local in range(sizes.experts_per_rank):
        share = (row_weights * (ids == local)).sum(1, keepdim=True)
        y = y + torch.tanh(rows * factor(state.rank * sizes.experts_per_rank + local)) * share
    sums: Any = autograd.combine(state.buffer, y, handle)
    sums.backward(tokens)

    x2, weights2 = (part.clone().requires_grad_() for part in (tokens, probabilities))
    expected: Any = torch.zeros_like(tokens)
    for expert in range(sizes.num_experts):
        share = (weights2 * (given.ids == expert)).sum(1, keepdim=True)
        expected = expected + torch.tanh(x2 * factor(expert)) * share
    expected.backward(tokens)
    for found, wanted, what in (
        (sums, expected, "sums"),
        (x.grad, x2.grad, "gradients of x"),
        (weights.grad, weights2.grad, "gradients of weights"),
    ):
        expect_close(found, wanted, 1e-5, what)


def refusals(state: Rank) -> None:
    """Wrong arguments are refused on the rank that gives them, and nothing is sent."""
    given, buffer = inputs_of(state.sizes, state.rank), state.buffer
    calls: list[Callable[[], Any]] = [
        lambda: buffer.dispatch(given.x),
        lambda: buffer.combine(given.x, (1, 2, 3)),
        lambda: buffer.low_latency_combine(given.x, given.ids, given.weights, ()),
        lambda: buffer.low_latency_dispatch(
            given.x, given.ids, 8, 8, async_finish=True, return_recv_hook=True
        ),
    ]
    for call in calls:
        try:
            call()
        except InvalidArgument:
            continue
        raise AssertionError("a wrong call was not refused")


def missing_rank(state: Rank) -> None:
    """A rank that does not come is named when the deadline has passed."""
    before = get_setting("MOEBIUS_TIMEOUT_MS")
    set_setting("MOEBIUS_TIMEOUT_MS", "500")
    buffer = Buffer(state.group)
    set_setting("MOEBIUS_TIMEOUT_MS", before or None)
    late = state.sizes.num_ranks - 1
    if state.sizes.num_ranks > 1 and state.rank != late:
        given = inputs_of(state.sizes, state.rank)
        try:
            found = Rank(state.sizes, state.rank, state.group, buffer)
            _dispatch(found, topk_idx=given.ids)
        except CommError as error:
            expect_equal(error.peer, late, "the rank to blame")
        else:
            raise AssertionError("a dispatch went on without a rank")
    distributed.barrier(state.group)
    buffer.destroy()


ALL = [
    layout,
    dispatch,
    worst_case,
    biases,
    low_latency,
    elastic,
    gradients,
    refusals,
    missing_rank,
]
