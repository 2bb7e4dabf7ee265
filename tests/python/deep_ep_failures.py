#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What a hostile user does to moebius.deep_ep: kills and stalls ranks, gives wrong arguments, and
destroys and drops things in any order.  Each call must end with a result or an exception of
moebius; no process may hang or crash.

    PYTHONPATH=python MOEBIUS_LIBRARY=build/release/lib/libmoebius.so \\
        python3 tests/python/deep_ep_failures.py [--device cuda] [--only CASE,CASE]

Each case is a function below or in deep_ep_arguments.py, which runs in a few processes.  What a
process prints is compared with what the case expects of it."""
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

# These come first, since they exit with 77 without torch.
from deep_ep_arguments import different, strange, wrong
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
    until_it_fails,
)

import torch

import moebius
from moebius.deep_ep import ElasticBuffer, EventOverlap

TIMEOUT_MS = 2000  # of waits for ranks
LIMIT = 60.0  # seconds; a process that is still running then has hung


# A rank that is gone.


def signalled(rank: Rank, what: int) -> None:
    buffer = rank.buffer()
    rank.expect_well(buffer)
    if rank.rank == VICTIM:
        os.kill(os.getpid(), what)
    say(until_it_fails(rank, lambda: rank.dispatch(buffer)).peer)


def killed(rank: Rank) -> None:
    signalled(rank, signal.SIGKILL)


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
    signalled(rank, signal.SIGSTOP)


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
