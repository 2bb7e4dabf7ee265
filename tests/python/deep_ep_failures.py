#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What a hostile user does to moebius.deep_ep: kills and stalls ranks, gives wrong arguments, and
destroys and drops things in any order.  Each call must end with a result or an exception of
moebius; no process may hang or crash.

    PYTHONPATH=python MOEBIUS_LIBRARY=build/release/lib/libmoebius.so \\
        python3 tests/python/deep_ep_failures.py [--device cuda] [--only CASE,CASE]

Each case is a function below, which runs in a few processes.  What a process prints is compared
with what the case expects of it."""
from __future__ import annotations

import argparse
import gc
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

try:
    import torch
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)

import moebius
from moebius.deep_ep import Buffer, ElasticBuffer, EventOverlap

TIMEOUT_MS = 2000  # of waits for ranks
LIMIT = 60.0  # seconds; a process that is still running then has hung
EXPERTS, TOPK, HIDDEN, TOKENS, MAX_TOKENS = 12, 2, 256, 5, 8
VICTIM = 1  # the rank that is killed or stalls


class Rank:
    """A process of a case."""

    def __init__(self, rank: int, size: int, kind: str, store: str) -> None:
        torch.set_num_threads(1)
        self.rank, self.size = rank, size
        self.device = torch.device("cpu")
        cuda: Any = torch.cuda
        if kind == "cuda":
            self.device = torch.device("cuda", rank % cuda.device_count())
            cuda.set_device(self.device)
        self.distributed: Any = torch.distributed
        self.distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=size
        )
        self.group = self.distributed.group.WORLD
        generator = torch.Generator("cpu").manual_seed(rank)
        self.x = torch.randn(TOKENS, HIDDEN, generator=generator).bfloat16().to(self.device)
        scores = torch.rand(TOKENS, EXPERTS, generator=generator)
        self.ids = scores.topk(TOPK)[1].to(self.device)
        self.weights = torch.ones(TOKENS, TOPK, device=self.device)

    def buffer(self, **options: Any) -> Buffer:
        return Buffer(self.group, **options)

    def dispatch(
        self, buffer: Buffer, x: Any = None, ids: Any = None, experts: int = EXPERTS, **options: Any
    ) -> Any:
        x, ids = self.x if x is None else x, self.ids if ids is None else ids
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, experts)
        return buffer.dispatch(x, None, per_rank, per_node, in_rank, per_expert, ids, **options)

    def low_latency(self, buffer: Buffer, **options: Any) -> Any:
        given = {
            "x": self.x,
            "topk_idx": self.ids,
            "num_max_dispatch_tokens_per_rank": MAX_TOKENS,
            "num_experts": EXPERTS,
            "use_fp8": False,
        }
        return buffer.low_latency_dispatch(**{**given, **options})

    def finish(self) -> None:
        """Waits for what GPUs do; without one it is done already."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def expect_well(self, buffer: Buffer) -> None:
        """The buffer works."""
        rows, *_, handle, _ = self.dispatch(buffer)
        sums = buffer.combine(rows, handle)[0]
        copies = handle[4].sum(1, keepdim=True)
        assert torch.allclose(sums.float(), self.x.float() * copies, rtol=2e-2), "wrong sums"
        rows, _, handle, *_ = self.low_latency(buffer)
        sums = buffer.low_latency_combine(rows, self.ids, self.weights, handle)[0]
        assert torch.allclose(sums.float(), self.x.float() * TOPK, rtol=2e-2), "wrong sums"

    def barrier(self) -> None:
        self.distributed.barrier()


def error_of(call: Callable[[], Any]) -> Optional[moebius.Error]:
    """What a call raises, which is an exception of moebius with one line."""
    try:
        call()
    except moebius.Error as error:
        assert str(error).count("\n") == 0, f"more than a line: {error}"
        return error
    return None


def expect_refused(what: str, call: Callable[[], Any]) -> None:
    error = error_of(call)
    assert isinstance(error, (moebius.InvalidArgument, moebius.Unsupported)), f"{what}: {error!r}"


def until_it_fails(rank: Rank, call: Callable[[], Any]) -> moebius.CommError:
    """Calls again and again, as a program does that has not heard of the failure yet."""
    begin = time.monotonic()
    while time.monotonic() < begin + 20:
        try:
            call()
            rank.finish()
        except moebius.CommError as error:
            return error
    raise AssertionError("no call has failed in 20 s")


def say(text: Any) -> None:
    print(text, flush=True)


# A rank that is gone.


def killed(rank: Rank) -> None:
    buffer = rank.buffer()
    rank.expect_well(buffer)
    if rank.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    say(until_it_fails(rank, lambda: rank.dispatch(buffer)).peer)


def killed_in_low_latency(rank: Rank) -> None:
    buffer = rank.buffer(low_latency_mode=True)
    rank.expect_well(buffer)
    if rank.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)

    def step() -> None:
        rows, _, handle, *_ = rank.low_latency(buffer)
        buffer.low_latency_combine(rows, rank.ids, rank.weights, handle)

    say(until_it_fails(rank, step).peer)


def stalled(rank: Rank) -> None:
    buffer = rank.buffer()
    rank.expect_well(buffer)
    if rank.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGSTOP)
    say(until_it_fails(rank, lambda: rank.dispatch(buffer)).peer)


def left(rank: Rank) -> None:
    """A rank destroys its buffer and ends while the others go on."""
    buffer = rank.buffer()
    rank.expect_well(buffer)
    if rank.rank == VICTIM:
        buffer.destroy()
        time.sleep(1)
        say("left")
        return
    say(until_it_fails(rank, lambda: rank.dispatch(buffer)).peer)


def masked(rank: Rank) -> None:
    """The others go on without a rank that was killed, once they have masked it."""
    buffer = rank.buffer(low_latency_mode=True, enable_shrink=True)
    rank.low_latency(buffer)
    rank.finish()
    rank.barrier()
    if rank.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    buffer.low_latency_update_mask_buffer(VICTIM, True)
    own = rank.ids // (EXPERTS // rank.size) != VICTIM
    for _ in range(3):
        rows, _, handle, *_ = rank.low_latency(buffer)
        sums = buffer.low_latency_combine(rows, rank.ids, rank.weights, handle)[0]
        expected = rank.x.float() * own.sum(1, keepdim=True)
        assert torch.allclose(sums.float(), expected, rtol=2e-2), "wrong sums"
    status = torch.zeros(rank.size, dtype=torch.int32, device=rank.device)
    buffer.low_latency_query_mask_buffer(status)
    say(status.tolist())


def interrupted(rank: Rank) -> None:
    """Ctrl-C ends a wait at once."""
    buffer = rank.buffer()
    rank.expect_well(buffer)
    rank.finish()
    rank.barrier()
    if rank.rank == VICTIM:
        time.sleep(1)
        say("late")
        return
    if rank.rank == 0:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    try:
        while True:
            rank.dispatch(buffer)
    except KeyboardInterrupt:
        say("interrupted" if time.monotonic() < begin + 1.5 else "interrupted late")
    except moebius.CommError:
        say("told")


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
        "weights of another type": low_combine(topk_weights=weights.double()),
        "a handle of dispatch": low_combine(handle=handle),
        "masking itself": lambda: buffer.low_latency_update_mask_buffer(rank.rank, True),
        "masking nobody": lambda: buffer.low_latency_update_mask_buffer(rank.size, True),
        **(
            {"x elsewhere": dispatch(x.cpu()), "ids elsewhere": low(topk_idx=ids.cpu())}
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


def hooks(rank: Rank) -> None:
    """Hooks that are called twice, late, never, or in another order."""
    buffer = rank.buffer()
    hook = rank.low_latency(buffer, return_recv_hook=True)[4]
    hook(), hook()
    late = rank.low_latency(buffer, return_recv_hook=True)
    rank.low_latency(buffer, return_recv_hook=True)  # its hook is never called
    rank.expect_well(buffer)
    late[4]()  # of a dispatch whose memory has been used again
    rows, _, handle, *_ = rank.low_latency(buffer, return_recv_hook=True)
    options = {"return_recv_hook": True}
    sums, _, hook = buffer.low_latency_combine(rows, rank.ids, rank.weights, handle, **options)
    hook(), hook()
    assert torch.allclose(sums.float(), rank.x.float() * TOPK, rtol=2e-2)
    hook = rank.low_latency(buffer, return_recv_hook=True)[4]
    rank.finish()
    rank.barrier()
    buffer.destroy()
    error_of(hook)
    say("right")


# Ends.


@dataclass
class Parts:
    """What a user may hold."""

    buffer: Any = None
    rows: Any = None
    handle: Any = None
    event: Any = None
    low: Any = None
    sums: Any = None


def dropped(rank: Rank) -> None:
    """Things are dropped in every order; what is left is as it was."""
    names = ["buffer", "rows", "handle", "low"]
    for number, order in enumerate(itertools.permutations(names)):
        parts = Parts(buffer=rank.buffer())
        parts.rows, _, _, _, parts.handle, parts.event = rank.dispatch(
            parts.buffer, async_finish=number % 2 == 1
        )
        if isinstance(parts.event, EventOverlap) and parts.event.event is not None:
            parts.event.current_stream_wait()
        parts.low = rank.low_latency(parts.buffer, return_recv_hook=number % 3 == 0)
        expected = parts.rows.clone()
        rank.finish()
        rank.barrier()
        if number % 5 == 0:
            parts.buffer.destroy()
        for name in order:
            setattr(parts, name, None)
            gc.collect()
            if parts.rows is not None:
                assert torch.equal(parts.rows, expected), f"rows changed when {name} was dropped"
            if parts.handle is not None:
                error_of(lambda: parts.handle[0])
            if parts.low is not None:
                parts.low[1].sum()
    say("right")


def destroyed(rank: Rank) -> None:
    """A buffer that has been destroyed is refused; a handle of another one is good as long as that
    one is."""
    first, second = rank.buffer(), rank.buffer()
    rows, *_, handle, _ = rank.dispatch(first)
    low, _, route, *_ = rank.low_latency(first)
    rank.finish()
    assert torch.equal(second.combine(rows, handle)[0], first.combine(rows, handle)[0])
    second.low_latency_combine(low, rank.ids, rank.weights, route)
    rank.finish()
    rank.barrier()
    first.destroy()
    first.destroy()
    for call in (
        lambda: rank.dispatch(first),
        lambda: first.combine(rows, handle),
        lambda: rank.low_latency(first),
        lambda: first.low_latency_combine(low, rank.ids, rank.weights, route),
        lambda: first.get_next_low_latency_combine_buffer(route),
        lambda: first.low_latency_clean_mask_buffer(),
        lambda: first.clean_low_latency_buffer(MAX_TOKENS, HIDDEN, EXPERTS),
        lambda: second.combine(rows, handle),
        lambda: second.low_latency_combine(low, rank.ids, rank.weights, route),
    ):
        expect_refused("a buffer that has been destroyed", call)
    rank.expect_well(second)
    elastic = ElasticBuffer(rank.group, num_max_tokens_per_rank=TOKENS)
    *_, path, _ = elastic.dispatch(rank.x, rank.ids, rank.weights, num_experts=EXPERTS)
    rank.finish()
    rank.barrier()
    elastic.destroy()
    expect_refused("a buffer that has been destroyed", lambda: elastic.combine(rows, path))
    second.destroy()
    say("right")


def threads(rank: Rank) -> None:
    """Two threads use a buffer at the same time: the second one is refused, or comes after."""
    buffer = rank.buffer()
    rank.expect_well(buffer)
    rank.barrier()
    failures: list[BaseException] = []

    def refused() -> None:
        for _ in range(200):
            try:
                buffer.combine(rank.x, ())
                buffer.get_dispatch_layout(rank.ids, EXPERTS)
            except moebius.InvalidArgument:
                pass
            except BaseException as error:
                failures.append(error)

    other = threading.Thread(target=refused)
    other.start()
    for _ in range(20):
        try:
            buffer.get_dispatch_layout(rank.ids, EXPERTS)
        except moebius.InvalidArgument:
            pass
    other.join()
    assert not failures, repr(failures[0])
    rank.expect_well(buffer)
    buffer.destroy()
    say("right")


def ended(rank: Rank) -> None:
    """A program ends with everything alive."""
    global kept
    buffer = rank.buffer()
    kept = (buffer, rank.dispatch(buffer), rank.low_latency(buffer, return_recv_hook=True))
    rank.finish()
    rank.barrier()
    say("right")
    sys.exit(0)


def forked(rank: Rank) -> None:
    """A child, as loaders of data start them, ends with copies of everything."""
    buffer = rank.buffer()
    rank.expect_well(buffer)
    if rank.device.type == "cpu":  # CUDA does not survive a fork
        child = os.fork()
        if child == 0:
            del buffer
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
    rank.expect_well(buffer)
    rank.finish()
    rank.barrier()
    buffer.destroy()
    say("right")


kept: Any = None


@dataclass
class Case:
    run: Callable[[Rank], None]
    size: int
    expected: Callable[[int], Optional[str]]  # what a rank prints; None: it does not end by itself


def everybody(text: str) -> Callable[[int], Optional[str]]:
    return lambda rank: text


def others(text: str, victim: Optional[str] = None) -> Callable[[int], Optional[str]]:
    return lambda rank: victim if rank == VICTIM else text


CASES = [
    Case(wrong, 2, everybody("right")),
    Case(strange, 3, everybody("right")),
    Case(hooks, 2, everybody("right")),
    Case(destroyed, 2, everybody("right")),
    Case(dropped, 2, everybody("right")),
    Case(threads, 2, everybody("right")),
    Case(ended, 2, everybody("right")),
    Case(forked, 2, everybody("right")),
    Case(different, 2, everybody("right")),
    Case(killed, 3, others(str(VICTIM))),
    Case(killed_in_low_latency, 3, others(str(VICTIM))),
    Case(masked, 3, others("[0, 1, 0]")),
    Case(stalled, 3, others(str(VICTIM))),
    Case(left, 3, others(str(VICTIM), "left")),
    Case(interrupted, 3, lambda rank: ("interrupted", "late", "told")[rank]),
]


def run_case(case: Case, device: str) -> list[str]:
    """What was wrong, by rank."""
    wrongs: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        command = [sys.executable, __file__, "--device", device, "--case", case.run.__name__]
        environment = {**os.environ, "MOEBIUS_TIMEOUT_MS": str(TIMEOUT_MS)}
        processes = [
            subprocess.Popen(
                [*command, "--rank", str(rank), "--store", store],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(case.size)
        ]
        end = time.monotonic() + LIMIT
        try:
            for rank, process in enumerate(processes):
                expected = case.expected(rank)
                if expected is None:
                    continue
                try:
                    out, err = process.communicate(timeout=max(0.1, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    wrongs.append(f"rank {rank} has hung")
                    continue
                lines = (err or "").strip().splitlines()
                if process.returncode != 0 or out.strip() != expected:
                    why = lines[-1] if lines else ""
                    wrongs.append(
                        f"rank {rank} ended with {process.returncode} and {out.strip()!r}, "
                        f"expected 0 and {expected!r}; {why}"
                    )
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return wrongs


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="names of cases, with commas between them")
    for name in ("--case", "--store"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        (case,) = (case for case in CASES if case.run.__name__ == given.case)
        case.run(Rank(given.rank, case.size, given.device, given.store))
        os._exit(0)  # without the waits of torch.distributed for ranks that are gone
    if given.device == "cuda" and not (torch.cuda.is_available() and moebius.is_usable("cuda")):
        print("skipped: there is no GPU that both torch and this build can use")
        return 77
    only = [name for name in given.only.split(",") if name]
    failed = 0
    for case in CASES:
        name = case.run.__name__
        if only and name not in only:
            continue
        begin = time.monotonic()
        wrongs = run_case(case, given.device)
        failed += bool(wrongs)
        print(f"{name:24} {time.monotonic() - begin:5.1f} s  {'; '.join(wrongs) or 'right'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
