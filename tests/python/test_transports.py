# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine over threads and processes, against the plain definition."""
from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import run_threads, torch
from test_groups import run_program

import moebius

RANKS, EXPERTS, TOPK, HIDDEN = 4, 8, 3, 256


def tokens_of(rank: int, count: int = 0) -> tuple[Any, Any, Any]:
    """Whole numbers, so that sums are exact in any order."""
    random = np.random.default_rng(rank)
    count = count or 3 + rank
    x = random.integers(-4, 5, (count, HIDDEN)).astype(np.float32)
    ids = np.argsort(random.random((count, EXPERTS)), axis=1)[:, :TOPK].astype(np.int32)
    ids[0, 1] = -1
    return x, ids, random.integers(1, 4, (count, TOPK)).astype(np.float32)


def ranks_of(ids: Any) -> Any:
    """The rank of each selection under the linear placement; -1 of a masked one."""
    return np.where(ids >= 0, ids // (EXPERTS // RANKS), -1)


def expected_rows(rank: int) -> list[tuple[int, int]]:
    """(source rank, source token) of the rows that a rank receives."""
    return [
        (source, token)
        for source in range(RANKS)
        for token, targets in enumerate(ranks_of(tokens_of(source)[1]))
        if rank in targets
    ]


def test_dispatch_brings_rows_and_combine_sums_them() -> None:
    def body(group: moebius.Group) -> None:
        x, ids, weights = tokens_of(group.rank)
        transport = moebius.HighThroughput(group, EXPERTS)
        tags = np.arange(len(x), dtype=np.int64)[:, None] + 100 * group.rank
        rows = transport.dispatch([x, tags], ids, weights)
        expected = expected_rows(group.rank)
        assert list(zip(rows.source_rank.tolist(), rows.source_token.tolist())) == expected
        assert rows.payloads[1].ravel().tolist() == [100 * r + t for r, t in expected]
        for row, (source, token) in enumerate(expected):
            given_x, given_ids, given_weights = tokens_of(source)
            np.testing.assert_array_equal(rows.x[row], given_x[token])
            here = ranks_of(given_ids[token]) == group.rank
            local = np.where(here, given_ids[token] % (EXPERTS // RANKS), -1)
            np.testing.assert_array_equal(rows.topk_ids[row], local)
            np.testing.assert_array_equal(rows.topk_weights[row][here], given_weights[token][here])
        assert rows.expert_num_tokens.sum() == (rows.topk_ids >= 0).sum()
        assert rows.expert_counts.tolist() == rows.expert_num_tokens.tolist()
        assert rows.num_rows is None and rows.rank_prefix.shape == (RANKS, RANKS)
        assert rows.rank_prefix[-1, group.rank] == len(expected)

        bias = np.ones_like(x)
        back = transport.combine(rows.x * 2, rows, topk_weights=rows.topk_weights, bias=[bias])
        copies = np.array([len(set(targets) - {-1}) for targets in ranks_of(ids)])
        np.testing.assert_array_equal(back.x, 2 * x * copies[:, None] + 1)
        assert back.topk_weights.shape == weights.shape
        assert transport.statistics.copies == copies.sum() and transport.nbytes >= 0
        assert back.event is None
        back.wait()
        transport.set_sms(20, 20)
        transport.trim()

    run_threads(body, RANKS)


def test_many_payloads_and_calls_after_wrong_ones() -> None:
    def body(group: moebius.Group) -> None:
        x, ids, _ = tokens_of(group.rank)
        transport = moebius.HighThroughput(group, EXPERTS)
        payloads = [x * factor for factor in range(7)]
        for _ in range(3):
            with pytest.raises(moebius.InvalidArgument, match="capacity is .many., expected an integer"):
                transport.dispatch(payloads, ids, capacity="many")  # type: ignore[arg-type]
            with pytest.raises(moebius.InvalidArgument):
                transport.dispatch([*payloads, object()], ids)  # type: ignore[list-item]
            rows = transport.dispatch(payloads, ids)
            for factor, found in enumerate(rows.payloads):
                np.testing.assert_array_equal(found, rows.payloads[1] * factor)
        low = moebius.LowLatency(group, EXPERTS, hidden=HIDDEN, topk=TOPK, max_tokens=8)
        with pytest.raises(moebius.InvalidArgument, match="cast is 'fp9', expected one of"):
            low.dispatch(x, ids, cast="fp9")

    run_threads(body, RANKS)


def test_reserved_memory_needs_no_other_rank() -> None:
    sizes: dict[str, Any] = {"hidden": HIDDEN, "topk": TOPK, "dtype": "f32", "max_tokens": 8}
    hint = moebius.LowLatency.size_hint(3, EXPERTS, **sizes)

    def body(group: moebius.Group) -> None:
        transports = moebius.Transports(group)
        transports.reserve_low_latency(hint + 256)
        if group.rank == 1:
            return
        low = moebius.LowLatency(
            group, EXPERTS, excludes_missing=True, transports=transports, **sizes
        )
        x, ids, _ = tokens_of(group.rank)
        low.dispatch(x[:4], ids[:4])
        assert low.dead_ranks == [False, True, False]

    run_threads(body, 3)


def test_layouts_cached_routes_and_expert_order() -> None:
    def body(group: moebius.Group) -> None:
        x, ids, _ = tokens_of(group.rank)
        transport = moebius.HighThroughput(group, EXPERTS)
        layout = transport.layout(ids)
        targets = ranks_of(ids)
        is_in_rank = np.array([[rank in row for rank in range(RANKS)] for row in targets])
        np.testing.assert_array_equal(layout.is_token_in_rank, is_in_rank)
        np.testing.assert_array_equal(layout.tokens_per_rank, is_in_rank.sum(axis=0))
        assert layout.tokens_per_node.tolist() == [len(x)]
        counts = np.bincount(ids[ids >= 0], minlength=EXPERTS)
        np.testing.assert_array_equal(layout.tokens_per_expert, counts)

        rows = transport.dispatch(x, ids, layout=layout)
        again = transport.dispatch_cached([x * 3], rows)
        np.testing.assert_array_equal(again.x, rows.x * 3)
        assert again.topk_ids is None

        order = transport.expert_order(rows, expert_alignment=4)
        assert (np.diff(order.expert_offsets) % 4 == 0).all()
        for row, (source, slot) in enumerate(zip(order.copy_row, order.slot)):
            if source < 0:
                assert not order.x[row].any()
            else:
                np.testing.assert_array_equal(order.x[row], rows.x[source])
                expert = np.searchsorted(order.expert_offsets, row, side="right") - 1
                assert rows.topk_ids[source, slot] == expert

        without_ids = transport.dispatch(x, layout=layout)
        np.testing.assert_array_equal(without_ids.x, rows.x)

    run_threads(body, RANKS)


def test_results_may_lie_in_memory_of_the_caller() -> None:
    def body(group: moebius.Group) -> None:
        x, ids, weights = tokens_of(group.rank)
        transport = moebius.HighThroughput(group, EXPERTS)
        room = np.zeros((64, HIDDEN), np.float32)
        rows = transport.dispatch(x, ids, into=[room])
        assert rows.x.ctypes.data == room.ctypes.data and len(rows.x) < 64
        out = np.zeros_like(x)
        assert transport.combine(rows.x, rows, into=out).x.ctypes.data == out.ctypes.data
        with pytest.raises(moebius.InvalidArgument, match="into has 2 tensors, expected 1"):
            transport.dispatch(x, ids, into=[room, room])
        with pytest.raises(moebius.InvalidArgument, match="bias has 3 tensors, expected at most 2"):
            transport.combine(rows.x, rows, bias=[x, x, x])
        with pytest.raises(moebius.InvalidArgument, match="neither payloads nor topk_ids"):
            transport.dispatch([])

    run_threads(body, RANKS)


def test_transfers_may_be_started_and_finished() -> None:
    def body(group: moebius.Group) -> None:
        x, ids, weights = tokens_of(group.rank)
        transport = moebius.HighThroughput(group, EXPERTS)
        pending = transport.dispatch_start(x, ids, weights, expert_alignment=2)
        pending.hook()
        rows = pending.finish()
        assert (rows.expert_num_tokens % 2 == 0).all()
        back = transport.combine_start(rows.x, rows).finish()
        copies = np.array([len(set(targets) - {-1}) for targets in ranks_of(ids)])
        np.testing.assert_array_equal(back.x, x * copies[:, None])
        with pytest.raises(moebius.InvalidArgument):
            pending.finish()

    run_threads(body, RANKS)


def low_latency(group: moebius.Group, **options: Any) -> moebius.LowLatency:
    options = {"hidden": HIDDEN, "topk": TOPK, "max_tokens": 8, "dtype": "f32", **options}
    return moebius.LowLatency(group, EXPERTS, **options)


def expected_low_latency(local: int, rank: int) -> list[tuple[int, int]]:
    expert = rank * (EXPERTS // RANKS) + local
    return [
        (source, token)
        for source in range(RANKS)
        for token, chosen in enumerate(tokens_of(source)[1])
        if expert in chosen
    ]


@pytest.mark.parametrize("sums_per_rank", [False, True])
def test_low_latency_brings_rows_and_sums_them(sums_per_rank: bool) -> None:
    def body(group: moebius.Group) -> None:
        x, ids, weights = tokens_of(group.rank)
        transport = low_latency(group, sums_per_rank=sums_per_rank)
        received = np.zeros(2, np.int32)
        waited = np.zeros(RANKS, np.int64)
        tags = np.arange(len(x), dtype=np.int32) + 100 * group.rank
        rows = transport.dispatch(
            x, ids.astype(np.int64), row_tags=tags, received=received, wait_us=waited
        )
        assert rows.x.shape == (2, 8 * RANKS, HIDDEN) and rows.x_scale is None
        for local in range(2):
            expected = expected_low_latency(local, group.rank)
            count = rows.expert_num_tokens[local]
            assert count == len(expected) == received[local]
            for row, (source, token) in enumerate(expected):
                np.testing.assert_array_equal(rows.x[local, row], tokens_of(source)[0][token])
                assert rows.source_token[local, row] == token
                assert rows.row_tags[local, row] == 100 * source + token
            counts = (rows.source_ranges[local] & 0xFFFFFFFF).tolist()
            assert counts == [[s for s, _ in expected].count(rank) for rank in range(RANKS)]
        buffer = rows.combine_buffer
        buffer[:] = rows.x
        back = transport.combine(buffer, ids, weights, rows)
        live = np.where(ids >= 0, weights, 0).sum(axis=1, keepdims=True)
        np.testing.assert_array_equal(back.x, x * live)
        assert transport.dead_ranks == [False] * RANKS
        assert transport.statistics.selections == (ids >= 0).sum() and transport.nbytes > 0
        transport.check()

    run_threads(body, RANKS)


def test_low_latency_in_halves_with_casts_and_codings() -> None:
    def body(group: moebius.Group) -> None:
        x, ids, weights = tokens_of(group.rank)
        transport = low_latency(group)
        pending = transport.dispatch_start(x, ids, cast="fp8", scales="columns", max_tokens=7)
        rows = pending.finish()
        assert rows.x.dtype == "f8e4m3" or rows.x.itemsize == 1
        assert rows.x_scale.shape == (2, HIDDEN // 128, 7 * RANKS)
        out = np.zeros_like(x)
        given = np.ones((2, 7 * RANKS, HIDDEN), np.float32)
        back = transport.combine_start(
            given, ids, weights, rows, coding="logfmt10", into=out
        ).finish()
        live = np.where(ids >= 0, weights, 0).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(back.x, np.broadcast_to(live, x.shape), rtol=1e-2)
        with pytest.raises(moebius.InvalidArgument, match="cast is 'fp4', expected one of"):
            transport.dispatch(x, ids, cast="fp4")
        with pytest.raises(moebius.InvalidArgument, match="into has"):
            transport.dispatch(x, ids, into={"y": x})

    run_threads(body, RANKS)


def test_low_latency_holds_two_results_at_most() -> None:
    def body(group: moebius.Group) -> None:
        x, ids, weights = tokens_of(group.rank)
        transport = low_latency(group)
        first, second = transport.dispatch(x, ids), transport.dispatch(x, ids)
        with pytest.raises(moebius.InvalidArgument):
            transport.dispatch(x, ids)
        first.close()
        for _ in range(3):
            del second
            second = transport.dispatch(x, ids)

    run_threads(body, RANKS)


def test_low_latency_with_different_options_is_refused_on_all_ranks() -> None:
    def body(group: moebius.Group) -> None:
        for name, value, other in (
            ("hidden", 128, 256),
            ("topk", 2, 3),
            ("max_tokens", 8, 9),
            ("num_experts", 6, 9),
        ):
            options = {"hidden": 128, "topk": 2, "max_tokens": 8, "num_experts": 6}
            options[name] = other if group.rank == 1 else value
            with pytest.raises(
                moebius.InvalidArgument, match=f"is {other} on rank 1 and {value} on rank 0"
            ):
                moebius.LowLatency(group, **options)
        moebius.LowLatency(group, 6, hidden=128, topk=2).close()

    run_threads(body, 3)


def test_low_latency_goes_on_without_a_rank() -> None:
    def body(group: moebius.Group) -> Any:
        x, ids, weights = tokens_of(group.rank, 4)
        transport = low_latency(group)
        if group.rank == 3:
            return None
        transport.set_dead(3)
        assert transport.dead_ranks == [False, False, False, True]
        rows = transport.dispatch(x, ids)
        back = transport.combine(rows.x, ids, weights, rows)
        alive = (ids >= 0) & (ids < 6)
        np.testing.assert_array_equal(
            back.x, x * np.where(alive, weights, 0).sum(axis=1, keepdims=True)
        )
        return back.x

    run_threads(body, RANKS)


def test_sizes_are_known_before() -> None:
    hint = moebius.LowLatency.size_hint(4, 8, hidden=HIDDEN, topk=TOPK, max_tokens=8, dtype="f32")
    assert hint > 0


def test_transports_are_shared() -> None:
    def body(group: moebius.Group) -> None:
        x, ids, weights = tokens_of(group.rank)
        shared = moebius.Transports(group)
        placement = moebius.placement.linear(EXPERTS, RANKS)[::-1]
        for _ in range(3):
            transport = moebius.HighThroughput(group, placement=placement, transports=shared)
            rows = transport.dispatch(x, ids)
            local = moebius.placement.experts_of(group.rank, placement)
            assert len(rows.expert_num_tokens) == len(local)
        low_latency(group, transports=shared)
        assert shared.nbytes > 0

    run_threads(body, RANKS)


def test_placements() -> None:
    assert moebius.placement.linear(5, 2) == [0, 0, 0, 1, 1]
    assert moebius.placement.experts_of(1, [1, 0, 1]) == [0, 2]
    with pytest.raises(moebius.InvalidArgument, match="num_experts is 0"):
        moebius.placement.linear(0, 2)


def test_results_outlive_their_transport() -> None:
    def body(group: moebius.Group) -> Any:
        x, ids, _ = tokens_of(group.rank)
        transport = moebius.HighThroughput(group, EXPERTS)
        return transport.dispatch(x, ids).x

    found = run_threads(body, RANKS)
    gc.collect()
    for rank, rows in enumerate(found):
        for row, (source, token) in zip(rows, expected_rows(rank)):
            np.testing.assert_array_equal(row, tokens_of(source)[0][token])


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_torch_tensors_come_back_as_torch_tensors() -> None:
    def body(group: moebius.Group) -> None:
        x, ids, weights = map(torch.from_numpy, tokens_of(group.rank))
        transport = moebius.HighThroughput(group, EXPERTS)
        rows = transport.dispatch(x.bfloat16(), ids.long(), weights)
        assert rows.x.dtype == torch.bfloat16 and rows.topk_ids.dtype == torch.int64
        back = transport.combine(rows.x, rows)
        assert back.x.dtype == torch.bfloat16 and back.x.shape == x.shape

    run_threads(body, RANKS)


# Each process sends its tokens and prints whether its rows and sums are right.
PROGRAM = """
import os, sys, time
import numpy as np
import torch, torch.distributed as dist
import moebius
from test_transports import *
rank, size = map(int, sys.argv[1:])
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=rank, world_size=size)
with moebius.Group.torch(timeout=60) as group:
    x, ids, weights = tokens_of(rank)
    copies = np.array([len(set(targets) - {-1}) for targets in ranks_of(ids)])
    transport = moebius.HighThroughput(group, EXPERTS)
    for _ in range(3):
        rows = transport.dispatch(x, ids, weights)
        assert list(zip(rows.source_rank.tolist(), rows.source_token.tolist())) == expected_rows(rank)
        np.testing.assert_array_equal(transport.combine(rows.x, rows).x, x * copies[:, None])
    transport = low_latency(group)
    rows = transport.dispatch(x, ids)
    live = np.where(ids >= 0, weights, 0).sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(transport.combine(rows.x, ids, weights, rows).x, x * live)
    group.barrier()
print("right")
"""


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_four_processes_dispatch_and_combine(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    assert run_program(PROGRAM, size=4) == ["right\n"] * 4
