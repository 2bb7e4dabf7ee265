# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The drop-in for deep_ep: what its check does not look at."""
from __future__ import annotations

import functools
import gc
import sys
from typing import Any

import pytest
from helpers import run_threads, torch
from test_groups import run_program

import moebius

if torch is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import moebius.deep_ep as deep_ep
from moebius._library import lib
from moebius.deep_ep import Buffer, Config, ElasticBuffer, EventHandle, EventOverlap

EXPERTS, TOPK, HIDDEN = 8, 2, 128


def inputs(rank: int, tokens: int = 5) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(tokens, HIDDEN, generator=generator).bfloat16()
    ids = torch.randint(0, EXPERTS, (tokens, TOPK), generator=generator)
    return x, ids, torch.rand(tokens, TOPK, generator=generator)


def dispatch(buffer: Buffer, x: Any, ids: Any, weights: Any = None, **options: Any) -> Any:
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
    layout = (per_rank, per_node, in_rank, per_expert)
    return buffer.dispatch(x, None, *layout, ids, weights, **options), layout


def low_latency(buffer: Buffer, x: Any, ids: Any, **options: Any) -> Any:
    return buffer.low_latency_dispatch(x, ids, 8, EXPERTS, use_fp8=False, **options)


# Names.


def test_importing_the_name_takes_no_torch() -> None:
    program = "import sys, moebius.deep_ep; print('torch' in sys.modules)"
    assert run_program(program) == ["False\n"]


def test_install_lets_deep_ep_be_imported() -> None:
    program = """
import moebius.deep_ep as ours
assert not ours.is_installed()
ours.install()
ours.install()
import deep_ep, deep_ep.utils, deep_ep.utils.event
from deep_ep import Buffer, Config, ElasticBuffer, EPHandle, EventHandle, EventOverlap, topk_idx_t
from deep_ep.utils import EventHandle as again
from deep_ep.buffers import elastic, legacy
assert deep_ep is ours and again is EventHandle and Buffer is ours.Buffer
assert legacy.Buffer is Buffer and elastic.ElasticBuffer is ElasticBuffer
assert legacy.EventOverlap is EventOverlap and elastic.EPHandle is EPHandle
assert ours.__spec__.name == "moebius.deep_ep" and ours.is_installed()
try:
    import deep_ep.nothing
except ModuleNotFoundError as error:
    print(error.name)
ours.uninstall()
try:
    import deep_ep
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert run_program(program)[0].split() == ["deep_ep.nothing", "deep_ep"]


def test_another_deep_ep_is_not_replaced() -> None:
    program = """
import sys, types
import moebius.deep_ep as ours
sys.modules["deep_ep"] = types.ModuleType("deep_ep")
try:
    ours.install()
except ours._install.InvalidArgument as error:
    print(error)
"""
    assert "expected a call of install() before its import" in run_program(program)[0]


def test_the_package_lists_its_names() -> None:
    assert deep_ep.topk_idx_t == torch.int64
    assert deep_ep.__version__.split(".")[0] == "2"  # some callers ask
    assert set(deep_ep.__all__) <= set(dir(deep_ep))
    with pytest.raises(AttributeError, match="no attribute 'HybridEPBuffer'"):
        deep_ep.HybridEPBuffer


# Values without a group.


def test_configs() -> None:
    config = Config(24, 8, 256)
    assert (config.num_sms, config.num_max_rdma_chunked_recv_tokens) == (24, 256)
    assert config.get_nvl_buffer_size_hint(1024, 4) > 0
    assert config.get_rdma_buffer_size_hint(1024, 16) == 0
    for num_ranks in (1, 5, 160):
        assert Buffer.get_dispatch_config(num_ranks).num_sms == Buffer.num_sms
        assert Buffer.get_combine_config(num_ranks).num_sms == Buffer.num_sms
    for wrong in ((3,), (-2,), (20, 0)):
        with pytest.raises(moebius.InvalidArgument):
            Config(*wrong)
    with pytest.raises(moebius.InvalidArgument):
        Buffer.get_dispatch_config(0)
    before = Buffer.num_sms
    Buffer.set_num_sms(before + 2)
    assert Buffer.num_sms == before + 2 == Buffer.get_combine_config(2).num_sms
    Buffer.set_num_sms(before)
    assert Buffer.get_low_latency_rdma_size_hint(128, 7168, 8, 256) > 128 * 7168


def test_events_on_the_cpu_are_past() -> None:
    event = Buffer.capture()
    called: list[int] = []
    event.register_hook_after_wait(lambda: called.append(1))
    with pytest.raises(moebius.InvalidArgument, match="has a hook already"):
        event.register_hook_after_wait(lambda: None)
    with event(release_handle=True):
        assert called == []
    assert called == [1] and event.event is None
    with pytest.raises(moebius.InvalidArgument, match="has no event"):
        event.current_stream_wait()
    EventOverlap(EventHandle()).current_stream_wait()
    with EventOverlap():
        pass


# Buffers among threads.


def test_nodes() -> None:
    def body(group: moebius.Group) -> None:
        buffer = Buffer(group)
        x, ids, weights = inputs(group.rank)
        (rows, _, row_weights, counts, handle, _), layout = dispatch(buffer, x, ids, weights)
        nodes = ids // (EXPERTS // 2)
        assert layout[1].tolist() == [int((nodes == node).any(1).sum()) for node in range(2)]
        assert len(handle) == 10 and handle[0] is layout[2] or torch.equal(handle[0], layout[2])
        assert handle[-4][-1] == len(rows) and len(handle[7]) == len(rows)
        sums, summed, _ = buffer.internode_combine(rows, handle, row_weights)
        assert torch.equal(summed, weights)
        copies = layout[2].sum(1, keepdim=True)
        assert torch.allclose(sums.float(), x.float() * copies, rtol=1e-2)
        again = buffer.internode_dispatch(x, handle)[0]
        assert torch.equal(again, rows)
        elastic = ElasticBuffer(group, num_max_tokens_per_rank=5)
        assert elastic.get_logical_domain_size() == (2, 2)
        assert (elastic.scaleout_rank_idx, elastic.scaleup_rank_idx) == divmod(group.rank, 2)
        *_, route, _ = elastic.dispatch(x, ids, weights, num_experts=EXPERTS)
        ends = route.psum_num_recv_tokens_per_scaleup_rank
        assert ends.shape == (2,) and ends[-1] == len(rows)

    run_threads(body, 4, ranks_per_node=2)


def test_negations_of_torch_are_done_before_rows_are_sent() -> None:
    def body(group: moebius.Group) -> None:
        buffer = Buffer(group)
        x, ids, weights = inputs(group.rank)
        for _ in range(2):  # the second time the structs are there already
            (rows, *_), _ = dispatch(buffer, torch._neg_view(x), ids, weights)
            (expected, *_), _ = dispatch(buffer, -x, ids, weights)
            assert torch.equal(rows, expected)
            packed, _, handle, _, _ = low_latency(buffer, torch._neg_view(x), ids)
            sums, _, _ = buffer.low_latency_combine(packed, ids, torch._neg_view(weights), handle)
            live = weights.sum(1, keepdim=True)
            assert torch.allclose(sums.float(), x.float() * live, rtol=2e-2, atol=1e-2)

    run_threads(body, 2)


@pytest.mark.parametrize("experts", [3, 5])
def test_experts_that_ranks_cannot_share_equally(experts: int) -> None:
    def body(group: moebius.Group) -> None:
        buffer = Buffer(group)
        x, ids, weights = inputs(group.rank)
        ids %= experts
        _, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, experts)
        *_, counts, handle, _ = buffer.dispatch(
            x,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=ids,
            topk_weights=weights,
        )
        owned = experts // 4 + (group.rank < experts % 4)
        assert len(counts) == owned
        rows, counts, handle, _, _ = buffer.low_latency_dispatch(x, ids, 16, experts)
        assert rows[0].shape == (owned, 16 * 4, HIDDEN) and counts.shape == (owned,)
        y = torch.ones(rows[0].shape).bfloat16()
        sums, _, _ = buffer.low_latency_combine(y, ids, weights, handle)
        assert torch.allclose(sums.float(), weights.sum(1, keepdim=True), rtol=1e-2)

    run_threads(body, 4)


def test_handles_of_low_latency_are_good_until_the_dispatch_after_the_next() -> None:
    def body(group: moebius.Group) -> None:
        buffer = Buffer(group)
        x, ids, weights = inputs(group.rank)
        kept = [low_latency(buffer, x, ids, return_recv_hook=k == 1) for k in range(3)]
        rows, _, handle, _, hook = kept[1]
        live = weights.sum(1, keepdim=True)
        for _ in range(3):  # as often as one likes
            sums, _, _ = buffer.low_latency_combine(rows, ids, weights, handle)
            assert torch.allclose(sums.float(), x.float() * live, rtol=2e-2, atol=1e-2)
        hook()  # what combine has done already
        other = low_latency(buffer, x, ids)
        for rows, _, handle, *_ in (kept[1], other, kept[1]):
            sums, _, _ = buffer.low_latency_combine(rows, ids, weights, handle)
            assert torch.allclose(sums.float(), x.float() * live, rtol=2e-2, atol=1e-2)
        with pytest.raises(moebius.InvalidArgument, match="a dispatch before the last two"):
            buffer.low_latency_combine(kept[0][0], ids, weights, kept[0][2])

    run_threads(body, 2)


def test_a_combine_whose_hook_is_never_called_is_received_for_the_dispatch_after_the_next() -> None:
    def body(group: moebius.Group) -> None:
        buffer = Buffer(group)
        x, ids, weights = inputs(group.rank)
        expected = x.float() * weights.sum(1, keepdim=True)
        kept = []
        for _ in range(4):
            rows, _, handle, *_ = low_latency(buffer, x, ids)
            kept.append(
                buffer.low_latency_combine(rows, ids, weights, handle, return_recv_hook=True)
            )
        low_latency(buffer, x, ids)
        low_latency(buffer, x, ids)
        for sums, _, hook in kept:
            assert torch.allclose(sums.float(), expected, rtol=2e-2, atol=1e-2)
            hook()  # what is done already

    run_threads(body, 2)


def test_hooks_of_combines_end_them_in_any_order() -> None:
    def body(group: moebius.Group) -> None:
        buffer = Buffer(group)
        x, ids, weights = inputs(group.rank)
        expected = x.float() * weights.sum(1, keepdim=True)

        def combine(ids: Any, handle: Any) -> tuple[Any, Any]:
            options = {"return_recv_hook": True}
            sums, _, hook = buffer.low_latency_combine(rows, ids, weights, handle, **options)
            return sums, hook

        def expect_right(sums: Any) -> None:
            assert torch.allclose(sums.float(), expected, rtol=2e-2, atol=1e-2)

        rows, _, handle, *_ = low_latency(buffer, x, ids)
        first, hook = combine(ids, handle)
        second, last = combine(ids.int(), handle)  # a kind of ids that the dispatch did not have
        expect_right(first)  # the second has received it
        last(), hook(), last()
        expect_right(second)
        rows, _, handle, *_ = low_latency(buffer, x, ids)
        sums, hook = combine(ids, handle)
        del handle
        gc.collect()
        hook()  # holds what it needs
        expect_right(sums)

    run_threads(body, 2)


def expect_nothing_left(name: str, call: Any, monkeypatch: Any) -> None:
    """Lets an interrupt come in a function of the library that makes an object."""
    real = getattr(lib, name)

    def interrupted(*arguments: Any) -> int:
        # A signal that comes during a call has its handler run as soon as the call returns.
        assert real(*arguments) == 0
        raise KeyboardInterrupt

    interrupted.end = real.end  # type: ignore[attr-defined]
    in_use = []
    for _ in range(4):
        with monkeypatch.context() as patch:
            patch.setattr(lib, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                call()
        gc.collect()
        in_use.append(moebius.memory_statistics("cpu").bytes)
    assert in_use[1] == in_use[3]  # a bank may have been used for the first time
    call()


def test_an_interrupt_leaves_no_result_of_high_throughput(monkeypatch: Any) -> None:
    buffer = Buffer(moebius.Group.threads(1)[0])
    x, ids, weights = inputs(0)
    call = functools.partial(dispatch, buffer, x, ids, weights)
    call()
    expect_nothing_left("high_throughput_dispatch", call, monkeypatch)


@pytest.mark.parametrize("has_hooks", [False, True])
def test_an_interrupt_leaves_no_result_of_low_latency(has_hooks: bool, monkeypatch: Any) -> None:
    buffer = Buffer(moebius.Group.threads(1)[0])
    x, ids, weights = inputs(0)
    options = {"return_recv_hook": True} if has_hooks else {}

    def round_trip() -> None:
        rows, _, handle, _, hook = low_latency(buffer, x, ids, **options)
        if has_hooks:
            hook()
        sums, _, hook = buffer.low_latency_combine(rows, ids, weights, handle, **options)
        if has_hooks:
            hook()
        expected = x.float() * weights.sum(1, keepdim=True)
        assert torch.allclose(sums.float(), expected, rtol=2e-2, atol=1e-2)

    round_trip()
    names = ["dispatch_start", "combine_start"] if has_hooks else ["dispatch"]
    for name in [*(f"low_latency_{name}" for name in names), *["pending_take"] * has_hooks]:
        expect_nothing_left(name, round_trip, monkeypatch)


def test_elements_of_handles_are_not_overwritten() -> None:
    def body(group: moebius.Group) -> None:
        buffer = Buffer(group)
        x, ids, _ = inputs(group.rank)
        _, counts, handle, *_ = low_latency(buffer, x, ids)
        tokens, ranges, *sizes = handle
        kept = tokens.clone(), ranges.clone()
        assert sizes == [8, HIDDEN, EXPERTS]
        assert (ranges & 0xFFFFFFFF).sum(1).tolist() == counts.tolist()
        *_, later, _, _ = low_latency(buffer, x, ids)
        del handle
        for seed in range(4):  # memory of handles that nobody has looked into is used again
            other, other_ids, _ = inputs(group.rank + 10 * seed + 10)
            low_latency(buffer, other, other_ids)
        assert torch.equal(tokens, kept[0]) and torch.equal(ranges, kept[1])
        assert torch.equal(later[1], kept[1])
        for is_on in (True, False):  # whatever the mode in which the memory was made
            with torch.inference_mode(not is_on):
                low_latency(buffer, x, ids)
            with torch.inference_mode(is_on):
                rows, _, handle, *_ = low_latency(buffer, x, ids)
                assert rows.is_inference() == is_on
                handle[0].add_(1)
                del handle

    run_threads(body, 2)


def test_counts_are_not_overwritten() -> None:
    def body(group: moebius.Group) -> None:
        buffer = Buffer(group)
        x = inputs(0)[0]
        for mode in (True, False):  # whatever the mode in which their memory was made
            kept = []
            for token in range(70):  # memory is made for 64 at a time
                with torch.inference_mode(mode != (token % 2 == 0)):
                    ids = torch.full((5, TOPK), -1)
                    ids[: token % 5, 0] = token % EXPERTS
                    kept.append((token, low_latency(buffer, x, ids)[1]))
            for token, counts in kept:
                expected = [0] * EXPERTS
                expected[token % EXPERTS] = token % 5
                assert counts.tolist() == expected
                counts.zero_()
            assert counts.is_contiguous() and not counts.is_inference()

    run_threads(body, 1)


def test_sums_are_not_overwritten() -> None:
    def body(group: moebius.Group) -> None:
        buffer = Buffer(group)
        for num_tokens in (*range(18), 5):  # more numbers than are remembered
            x, ids, weights = inputs(0, num_tokens)
            kept = []
            for call in range(70 if num_tokens in (1, 5) else 3):  # up to 64 of a block
                with torch.inference_mode(call % 3 == 0):
                    rows, _, handle, *_ = buffer.low_latency_dispatch(
                        call + 0 * x, ids, 32, EXPERTS, use_fp8=False
                    )
                    weights = torch.full_like(weights, 0.5)
                    kept.append(buffer.low_latency_combine(rows, ids, weights, handle)[0])
            for call, sums in enumerate(kept):
                assert sums.shape == x.shape and sums.is_contiguous() and sums.dtype == x.dtype
                assert torch.equal(sums, torch.full_like(x, call))
                sums.zero_()
        # Autograd keeps one, and its neighbour may change.
        one, other = kept[-2:]
        one.fill_(3)
        scale = torch.ones_like(one).requires_grad_()
        product = (one * scale).sum()
        other.add_(1)
        product.backward()
        assert torch.equal(scale.grad, one)

    run_threads(body, 1)


def test_masked_ranks() -> None:
    def body(group: moebius.Group) -> None:
        buffer = Buffer(group)
        x, ids, weights = inputs(group.rank)
        low_latency(buffer, x, ids)
        if group.rank == 3:
            return
        with pytest.raises(moebius.InvalidArgument, match="expected another rank less than 4"):
            buffer.low_latency_update_mask_buffer(group.rank, True)
        buffer.low_latency_update_mask_buffer(3, True)
        status = torch.zeros(4, dtype=torch.int32)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 0, 0, 1]
        rows, counts, handle, *_ = low_latency(buffer, x, ids)
        expected = [
            sum(int((inputs(source)[1] == 2 * group.rank + k).sum()) for source in range(3))
            for k in range(2)
        ]
        assert counts.tolist() == expected
        sums, *_ = buffer.low_latency_combine(rows, ids, weights, handle)
        live = weights.masked_fill(ids >= 6, 0).sum(1, keepdim=True)
        assert torch.allclose(sums.float(), x.float() * live, rtol=2e-2, atol=1e-2)
        buffer.low_latency_clean_mask_buffer()
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 0, 0, 0]

    run_threads(body, 4)


def test_with_enable_shrink_ranks_that_have_gone_are_left_out() -> None:
    def body(group: moebius.Group) -> None:
        buffer = Buffer(group, enable_shrink=True)
        x, ids, weights = inputs(group.rank)
        low_latency(buffer, x, ids)
        if group.rank == 1:
            buffer.destroy()
            return
        buffer.clean_low_latency_buffer(8, HIDDEN, EXPERTS)
        status = torch.zeros(3, dtype=torch.int32)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 1, 0]
        rows, _, handle, *_ = low_latency(buffer, x, ids)
        buffer.low_latency_combine(rows, ids, weights, handle)

    run_threads(body, 3)


def test_with_enable_shrink_a_rank_that_never_calls_is_left_out() -> None:
    hint = Buffer.get_low_latency_rdma_size_hint(8, HIDDEN, 4, EXPERTS)

    def body(group: moebius.Group) -> None:
        buffer = Buffer(group, 0, hint, low_latency_mode=True, enable_shrink=True)
        x, ids, weights = inputs(group.rank)
        if group.rank == 1:
            return
        for use_fp8 in (False, True):
            buffer.low_latency_dispatch(x, ids, 8, EXPERTS, use_fp8=use_fp8)
        status = torch.zeros(4, dtype=torch.int32)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 1, 0, 0]
        rows, counts, handle, *_ = low_latency(buffer, x, ids)
        if group.rank == 2:
            return  # between a dispatch and its combine
        kept = rows.clone()
        given = ids.clone()
        for _ in range(3):  # the rows lie as all four ranks have sent them
            sums, *_ = buffer.low_latency_combine(kept, given, weights, handle)
            dead = (ids // 2 == 1) | (ids // 2 == 2)
            live = weights.masked_fill(dead, 0).sum(1, keepdim=True)
            assert torch.allclose(sums.float(), x.float() * live, rtol=2e-2, atol=1e-2)
            given[dead] = -1  # as callers do that have asked for the mask
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 1, 1, 0]

    run_threads(body, 4)


def test_rows_of_any_type_and_strides() -> None:
    names = ["float32", "bfloat16", "float16", "int8", "uint8", "int32", "int64", "bool"]
    dtypes = [getattr(torch, name) for name in names]
    dtypes += [torch.float8_e4m3fn] if hasattr(torch, "float8_e4m3fn") else []

    def bits(x: Any) -> Any:
        return x.contiguous().view(torch.uint8) if x.element_size() == 1 else x

    def body(group: moebius.Group) -> None:
        buffer = Buffer(group)
        _, ids, weights = inputs(0)
        scales = torch.rand(3, 5).t()
        for dtype in dtypes:
            wide = (torch.rand(HIDDEN, 5) * 2).to(dtype)
            for x in (wide.t().contiguous(), wide.t()):
                for given_ids in (ids, ids.int(), ids.t().contiguous().t()):
                    (rows, found, found_weights, counts, handle, _), _ = dispatch(
                        buffer, x, given_ids, weights
                    )
                    assert rows.dtype is dtype and torch.equal(bits(rows), bits(x))
                    assert found.dtype is given_ids.dtype and torch.equal(found, given_ids)
                    assert torch.equal(found_weights, weights) and sum(counts) == ids.numel()
                    again, *rest = buffer.dispatch((x, scales), handle)
                    assert torch.equal(bits(again[0]), bits(x)) and torch.equal(again[1], scales)
                    assert rest[:4] == [None] * 4
        (found, no_ids, no_weights, counts, *_), _ = dispatch(buffer, (wide.t(), scales), None)
        assert torch.equal(found[1], scales) and no_ids is no_weights is None

    def dispatch(buffer: Buffer, x: Any, given: Any, weights: Any = None) -> Any:
        _, ids, _ = inputs(0)
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
        return buffer.dispatch(x, None, per_rank, None, in_rank, per_expert, given, weights), None

    run_threads(body, 1)


def test_destroyed_buffers_and_results_that_outlive_them() -> None:
    def body(group: moebius.Group) -> Any:
        buffer = Buffer(group)
        x, ids, weights = inputs(group.rank)
        (rows, *_, handle, _), _ = dispatch(buffer, x, ids, weights)
        buffered = low_latency(buffer, x, ids)
        group.barrier()
        buffer.destroy()
        buffer.destroy()
        assert "destroyed" in repr(buffer)
        for call in (
            lambda: buffer.get_dispatch_layout(ids, EXPERTS),
            lambda: buffer.combine(rows, handle),
            lambda: low_latency(buffer, x, ids),
            lambda: buffer.low_latency_clean_mask_buffer(),
        ):
            with pytest.raises(moebius.InvalidArgument, match="this Buffer has been destroyed"):
                call()
        elastic = ElasticBuffer(group)
        elastic.destroy()
        with pytest.raises(moebius.InvalidArgument, match="this ElasticBuffer has been destroyed"):
            elastic.barrier()
        return rows, handle, buffered

    kept = run_threads(body, 2)
    gc.collect()
    for rows, handle, buffered in kept:
        assert torch.isfinite(rows.float()).all() and handle[0][-1, 0] >= 0
        assert buffered[1].sum() >= 0


def test_what_is_refused_is_refused_by_name() -> None:
    def body(group: moebius.Group) -> None:
        buffer, x = Buffer(group), torch.zeros(3, HIDDEN)
        with pytest.raises(moebius.Unsupported, match="get_local_buffer_tensor"):
            buffer.get_local_buffer_tensor(torch.bfloat16)
        if not torch.cuda.is_available():
            with pytest.raises(moebius.Unsupported, match="get_comm_stream"):
                buffer.get_comm_stream()
        ids = torch.zeros(3, TOPK, dtype=torch.int64)
        with pytest.raises(moebius.InvalidArgument, match="x is a float, expected a torch.Tensor"):
            buffer.dispatch([1.0, 2.0], None)
        with pytest.raises(moebius.InvalidArgument, match="use_ue8m0 is set without round_scale"):
            buffer.low_latency_dispatch(x.bfloat16(), ids, 8, EXPERTS, use_ue8m0=True)
        (rows, *_, handle, _), layout = dispatch(buffer, x, ids)
        per_rank, per_node, in_rank, per_expert = layout
        for nothing in ((), (x, None, None)):
            with pytest.raises(moebius.InvalidArgument, match=f"x is a tuple of {len(nothing)}"):
                buffer.dispatch(nothing, None, *layout, ids)
        for wrong in (ids[0], ids.float(), ids[:2], ids.double()):
            with pytest.raises(moebius.InvalidArgument):
                buffer.dispatch(x, None, *layout, wrong)
        for wrong in (ids, ids[0].float(), ids[:2].float(), ids.double()):
            with pytest.raises(moebius.InvalidArgument):
                buffer.dispatch(x, None, *layout, ids, wrong)
        for wrong in (in_rank[0], in_rank[:2], in_rank.int(), in_rank.repeat(1, 2)):
            with pytest.raises(moebius.InvalidArgument):
                buffer.dispatch(x, None, per_rank, None, wrong, per_expert, ids)
        with pytest.raises(moebius.InvalidArgument, match="dtype torch.float64"):
            buffer.dispatch(x.double(), None, *layout, ids)
        with pytest.raises(moebius.InvalidArgument, match="topk_idx has shape"):
            buffer.get_dispatch_layout(ids[0], EXPERTS)
        with pytest.raises(moebius.InvalidArgument, match="topk_ids dtype is f32"):
            buffer.get_dispatch_layout(ids.float(), EXPERTS)
        with pytest.raises(moebius.InvalidArgument, match="handle and topk_idx"):
            buffer.dispatch(x, handle, topk_idx=ids)
        with pytest.raises(moebius.InvalidArgument, match="x has .* rows, expected"):
            buffer.combine(torch.zeros(len(rows) + 1, HIDDEN), handle)
        elastic = ElasticBuffer(group)
        with pytest.raises(moebius.Unsupported, match="engram, pp and agrs"):
            elastic.engram_write(x)
        with pytest.raises(moebius.Unsupported, match="engram, pp and agrs"):
            ElasticBuffer.get_agrs_buffer_size_hint(group, 1 << 20)
        with pytest.raises(moebius.InvalidArgument, match="expected an EPHandle"):
            elastic.combine(x, handle)
        with pytest.raises(moebius.InvalidArgument, match="neither handle nor topk_idx"):
            elastic.dispatch(x)
        *_, route, _ = elastic.dispatch(x, ids, num_experts=EXPERTS)
        with pytest.raises(moebius.InvalidArgument, match="num_experts is 4, expected 8"):
            elastic.dispatch(x, num_experts=4, handle=route)

    run_threads(body, 1)
    for group, comm in ((None, None), (1, 1)):
        with pytest.raises(moebius.InvalidArgument, match="expected one of the two"):
            Buffer(group, comm=comm)


class Communicator:
    """What is used of one of mpi4py."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def allgather(self, value: bytes) -> list[bytes]:
        return [value]


def test_a_communicator_stands_for_a_group() -> None:
    communicator = Communicator()
    buffer = Buffer(None, comm=communicator)
    assert buffer.group is communicator and (buffer.rank, buffer.group_size) == (0, 1)
    x, ids, _ = inputs(0)
    (rows, *_), _ = dispatch(buffer, x, ids)
    assert torch.equal(rows, x)
