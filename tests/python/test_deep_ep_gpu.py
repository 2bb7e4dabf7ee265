# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The drop-in for deep_ep on GPUs: CUDA graphs, and calls that wait for no GPU.  Where pytest is
missing, run this file itself."""
from __future__ import annotations

import os
import sys
import tempfile
import traceback
from typing import Any

from helpers import NO_GPU, torch

import moebius

try:
    import pytest

    pytestmark = pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU)
except ImportError:
    pass

EXPERTS, TOPK, HIDDEN, TOKENS = 8, 2, 512, 16


class Rank:
    """A process among those that share the GPUs of a machine."""

    def __init__(self, rank: int, size: int, store: str) -> None:
        from moebius.deep_ep import Buffer

        self.rank, self.size = rank, size
        torch.cuda.set_device(rank % torch.cuda.device_count())
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=size
        )
        self.buffer = Buffer(torch.distributed.group.WORLD, low_latency_mode=True)
        self.x = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16, device="cuda")
        self.ids = torch.zeros(TOKENS, TOPK, dtype=torch.int64, device="cuda")
        self.weights = torch.zeros(TOKENS, TOPK, device="cuda")
        self.set_inputs(0)

    def set_inputs(self, seed: int) -> None:
        """Other values in the same memory."""
        generator = torch.Generator("cpu").manual_seed(10 * seed + self.rank)
        self.x.copy_(torch.randn(TOKENS, HIDDEN, generator=generator))
        weights, ids = torch.rand(TOKENS, EXPERTS, generator=generator).topk(TOPK)
        self.ids.copy_(ids)
        self.weights.copy_(weights)

    def barrier(self) -> None:
        torch.cuda.synchronize()
        torch.distributed.barrier()

    def record(self, step: Any) -> Any:
        """A graph of the step, and what the step has given.  The step is called before, since calls
        make the memory that they need."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(side)
        self.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            given = step()
        self.barrier()
        return graph, given

    def expect_replays(self, step: Any, check: Any) -> None:
        graph, given = self.record(step)
        for seed in range(1, 4):
            self.set_inputs(seed)
            graph.replay()
            self.barrier()
            check(*given)
            again = step()  # calls outside of the graph are as they were
            self.barrier()
            check(*again)
            check(*given)
        self.barrier()

    def copies(self) -> Any:
        """[T, 1]: how many ranks a token goes to."""
        ranks = self.ids // (EXPERTS // self.size)
        found = [(ranks == rank).any(1) for rank in range(self.size)]
        return torch.stack(found, 1).sum(1, keepdim=True)

    def expect_close(self, found: Any, expected: Any, error: float = 1e-2) -> None:
        difference = torch.linalg.norm(found.double() - expected.double())
        limit = error * torch.linalg.norm(expected.double())
        assert difference <= limit, f"sums differ by {difference}, expected at most {limit}"


def low_latency_in_a_graph(rank: Rank) -> None:
    for options in (
        {"use_fp8": False},
        {},
        {"round_scale": True, "use_ue8m0": True},
        {"use_fp8": False, "return_recv_hook": True},
        {"use_fp8": False, "async_finish": True},
    ):
        ends = {k: v for k, v in options.items() if k in ("return_recv_hook", "async_finish")}

        def end(event: Any, hook: Any) -> None:
            if hook is not None:
                hook()
            elif ends:
                event.current_stream_wait()

        def step() -> Any:
            rows, _, handle, event, hook = rank.buffer.low_latency_dispatch(
                rank.x, rank.ids, TOKENS, EXPERTS, **options
            )
            end(event, hook)
            y = rows
            if isinstance(rows, tuple):
                y = torch.zeros(rows[0].shape, dtype=torch.bfloat16, device="cuda")
                y += rank.x[:1, :1].abs() * 0 + 1
            sums, event, hook = rank.buffer.low_latency_combine(
                y, rank.ids, rank.weights, handle, **ends
            )
            end(event, hook)
            return (sums,)

        def check(sums: Any) -> None:
            shares = rank.weights.sum(1, keepdim=True)
            is_cast = options.get("use_fp8", True)
            expected = shares.expand_as(rank.x) if is_cast else rank.x.float() * shares
            rank.expect_close(sums, expected)

        rank.expect_replays(step, check)


def dispatch_with_a_worst_case_in_a_graph(rank: Rank) -> None:
    def step() -> Any:
        per_rank, _, per_expert, in_rank, _ = rank.buffer.get_dispatch_layout(rank.ids, EXPERTS)
        rows, ids, weights, counts, handle, _ = rank.buffer.dispatch(
            rank.x,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=rank.ids,
            topk_weights=rank.weights,
            num_worst_tokens=TOKENS * rank.size,
        )
        assert counts == []
        again = rank.buffer.dispatch(rank.x, handle)[0]
        sums, summed, _ = rank.buffer.combine(rows, handle, topk_weights=weights)
        return sums, summed, ids, per_rank, again

    def check(sums: Any, summed: Any, ids: Any, per_rank: Any, again: Any) -> None:
        rank.expect_close(sums, rank.x.float() * rank.copies())
        rank.expect_close(summed, rank.weights, 1e-6)
        assert len(ids) == len(again) == TOKENS * rank.size
        expected = [
            int((rank.ids // (EXPERTS // rank.size) == peer).any(1).sum())
            for peer in range(rank.size)
        ]
        assert per_rank.tolist() == expected

    rank.expect_replays(step, check)


def elastic_dispatch_in_a_graph(rank: Rank) -> None:
    from moebius.deep_ep import ElasticBuffer

    group = torch.distributed.group.WORLD
    elastic = ElasticBuffer(group, num_max_tokens_per_rank=TOKENS, num_topk=TOPK)

    def step() -> Any:
        rows, _, weights, handle, _ = elastic.dispatch(
            rank.x, rank.ids, rank.weights, num_experts=EXPERTS, do_cpu_sync=False
        )
        sums, summed, _ = elastic.combine(rows, handle, topk_weights=weights)
        return sums, summed

    def check(sums: Any, summed: Any) -> None:
        rank.expect_close(sums, rank.x.float() * rank.copies())
        rank.expect_close(summed, rank.weights, 1e-6)

    rank.expect_replays(step, check)
    elastic.destroy()


def two_graphs_in_a_row(rank: Rank) -> None:
    """Asynchronous calls are ordered within a capture, and not by events of the one before.  One of
    them is waited for by way of the next only."""

    def step() -> Any:
        rank.buffer.get_dispatch_layout(rank.ids, EXPERTS, async_finish=True)
        rows, _, handle, event, _ = rank.buffer.low_latency_dispatch(
            rank.x, rank.ids, TOKENS, EXPERTS, use_fp8=False, async_finish=True
        )
        event.current_stream_wait()
        sums, event, _ = rank.buffer.low_latency_combine(
            rows, rank.ids, rank.weights, handle, async_finish=True
        )
        event.current_stream_wait()
        return sums

    step()
    rank.barrier()
    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
    found = []
    for graph in graphs:
        with torch.cuda.graph(graph):
            found.append(step())
    rank.barrier()
    for seed in range(1, 4):
        rank.set_inputs(seed)
        for graph in graphs:
            graph.replay()
        rank.barrier()
        for sums in found:
            rank.expect_close(sums, rank.x.float() * rank.weights.sum(1, keepdim=True))
    rank.barrier()


def calls_that_wait_for_no_gpu(rank: Rank) -> None:
    """Calls return while the GPU is still busy with what came before."""
    buffer = rank.buffer
    calls = {
        "get_dispatch_layout": lambda: buffer.get_dispatch_layout(rank.ids, EXPERTS),
        "low_latency_dispatch": lambda: buffer.low_latency_dispatch(
            rank.x, rank.ids, TOKENS, EXPERTS
        ),
        "dispatch with num_worst_tokens": lambda: buffer.dispatch(
            rank.x,
            is_token_in_rank=layout[3],
            num_tokens_per_expert=layout[2],
            topk_idx=rank.ids,
            num_worst_tokens=TOKENS * rank.size,
        ),
        "combine": lambda: buffer.combine(rows, handle),
    }
    layout = calls["get_dispatch_layout"]()
    rows, *_, handle, _ = calls["dispatch with num_worst_tokens"]()
    for name, call in calls.items():
        call()
        rank.barrier()
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        after = torch.cuda.Event()
        after.record()
        kept = call()
        assert not after.query(), f"{name} has waited for the GPU"
        rank.barrier()
        del kept


def banks_of_a_busy_gpu(rank: Rank) -> None:
    """A bank is used again while the GPU has not come to the end of the call that had it: handles
    that are combined twice, hooks that nobody calls, and rows that nobody has any more.  Handles
    are kept, since a transfer whose handle is dropped before its hook is called never ends."""
    buffer = rank.buffer
    expected = rank.x.float() * rank.weights.sum(1, keepdim=True)
    found, handles = [], []

    def step(**ends: Any) -> None:
        rows, _, handle, event, hook = buffer.low_latency_dispatch(
            rank.x, rank.ids, TOKENS, EXPERTS, use_fp8=False, **ends
        )
        handles.append(handle)
        if event.event is not None:
            event.current_stream_wait()
        for zero_copy in (False, True):
            if zero_copy:
                buffer.get_next_low_latency_combine_buffer(handle).copy_(rows)
            sums, event, _ = buffer.low_latency_combine(
                rows, rank.ids, rank.weights, handle, zero_copy=zero_copy, **ends
            )
            if event.event is not None:
                event.current_stream_wait()
            found.append(sums)

    step()
    rank.barrier()
    torch.cuda._sleep(100_000_000)  # about 0.05 s
    for number in range(9):
        step(async_finish=number % 3 == 1, return_recv_hook=number % 3 == 2)
    low_latency = lambda: buffer.low_latency_dispatch(rank.x, rank.ids, TOKENS, EXPERTS)
    kept = [low_latency(), low_latency()]  # what was left to be received has been, by now
    torch.cuda.current_stream().wait_stream(buffer.get_comm_stream())
    rank.barrier()
    for number, sums in enumerate(found):
        rank.expect_close(sums, expected)
    del kept


def memory_that_nobody_has_waited_for(rank: Rank) -> None:
    """What asynchronous calls have made is not given to others while their stream still writes it."""
    buffer = rank.buffer
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(rank.ids, EXPERTS)
    routing = (per_rank, None, in_rank, per_expert, rank.ids, rank.weights)
    rows, *_, handle, _ = buffer.dispatch(rank.x, None, *routing)
    ends = {"async_finish": True}

    def call(waits: bool) -> set[int]:
        """The addresses of what two calls have given, which nobody has any more."""
        addresses = set()
        for given in (
            buffer.get_dispatch_layout(rank.ids, EXPERTS, **ends),
            buffer.combine(rows, handle, **ends),
        ):
            *made, event = given
            addresses |= {x.data_ptr() for x in made if x is not None}
            if waits:
                event.current_stream_wait(release_handle=True)
        return addresses

    call(True)
    for waits, num_calls in ((True, 1), (False, 1), (False, 3)):
        rank.barrier()
        with torch.cuda.stream(buffer.get_comm_stream()):
            torch.cuda._sleep(100_000_000)  # about 0.05 s
        after = torch.cuda.Event()
        after.record(buffer.get_comm_stream())
        addresses = set().union(*[call(waits) for _ in range(num_calls)])
        small = [torch.full((EXPERTS,), -7, dtype=torch.int32, device="cuda") for _ in range(64)]
        large = [torch.full_like(rank.x, -7) for _ in range(8)]
        taken = {x.data_ptr() for x in (*small, *large)}
        if not waits:
            assert not addresses & taken, "memory that is still written was given to others"
        assert not after.query(), "the calls have waited for the GPU"
        rank.barrier()
        for x in (*small, *large):
            assert bool((x == -7).all())
        del small, large
    rank.barrier()


def results_of_a_busy_gpu(rank: Rank) -> None:
    """The same without the drop-in, with tensors in memory of the library's."""
    group = moebius.Group.torch(torch.distributed.group.WORLD).cuda(torch.cuda.current_device())
    options = {"hidden": HIDDEN, "topk": TOPK, "max_tokens": TOKENS}
    with moebius.LowLatency(group, EXPERTS, **options) as transport:
        found = []

        def step() -> None:
            result = transport.dispatch(rank.x, rank.ids)
            rows = result.x
            sums = transport.combine(rows, rank.ids, rank.weights, result).x
            found.append(sums.clone())

        step()
        rank.barrier()
        torch.cuda._sleep(100_000_000)
        for _ in range(6):
            step()
        rank.barrier()
        for sums in found:
            rank.expect_close(sums, rank.x.float() * rank.weights.sum(1, keepdim=True))
        rank.barrier()


BODIES = {
    body.__name__: body
    for body in (
        low_latency_in_a_graph,
        dispatch_with_a_worst_case_in_a_graph,
        elastic_dispatch_in_a_graph,
        two_graphs_in_a_row,
        calls_that_wait_for_no_gpu,
        banks_of_a_busy_gpu,
        memory_that_nobody_has_waited_for,
        results_of_a_busy_gpu,
    )
}


def _run(rank: int, size: int, store: str, name: str) -> None:
    try:
        state = Rank(rank, size, store)
        BODIES[name](state)
        state.barrier()
        state.buffer.destroy()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the others are waiting, and learn of it


def run(name: str, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        arguments = (size, os.path.join(folder, "store"), name)
        torch.multiprocessing.spawn(_run, arguments, nprocs=size)


def test_low_latency_in_a_graph() -> None:
    run("low_latency_in_a_graph", 2)


def test_dispatch_with_a_worst_case_in_a_graph() -> None:
    run("dispatch_with_a_worst_case_in_a_graph", 2)


def test_elastic_dispatch_in_a_graph() -> None:
    run("elastic_dispatch_in_a_graph", 2)


def test_two_graphs_in_a_row() -> None:
    run("two_graphs_in_a_row", 2)


def test_calls_wait_for_no_gpu() -> None:
    run("calls_that_wait_for_no_gpu", 2)


def test_banks_of_a_busy_gpu() -> None:
    run("banks_of_a_busy_gpu", 2)


def test_memory_that_nobody_has_waited_for() -> None:
    run("memory_that_nobody_has_waited_for", 2)


def test_results_of_a_busy_gpu() -> None:
    run("results_of_a_busy_gpu", 2)


if __name__ == "__main__":
    if NO_GPU:
        print(f"skipped: {NO_GPU}")
        sys.exit(77)
    failed = []
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            try:
                test()
                print(f"passed {name}", flush=True)
            except Exception as error:
                failed.append(name)
                print(f"failed {name}: {str(error).strip().splitlines()[-1]}", flush=True)
    sys.exit(f"failed: {failed}" if failed else 0)
