#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What the calls of moebius.deep_ep cost the host, in microseconds.

    PYTHONPATH=python MOEBIUS_LIBRARY=build/release/lib/libmoebius.so \\
        python3 bench/python/deep_ep_call_cost.py [--device cuda] [--json FILE]

There is one rank and one token, so nobody is waited for and next to nothing is moved.  The columns
are the whole call, the part of it in functions of the library, and the rest, which is Python's.  A
call on a GPU returns when its work is enqueued, except for the dispatch that lists counts.  The
first lines on a GPU are what two launches cost there.  "Waited" calls end when torch's current
stream has been made to wait for them, as callers do; other asynchronous ones drop what they have
given at once.  A tenth of the calls take less time than a figure says, since other programs of the
machine only add to it."""
from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch

import moebius
from moebius._library import lib
from moebius.deep_ep import Buffer

EXPERTS, TOPK, HIDDEN, MAX_TOKENS, RUNS = 8, 4, 1024, 8, 10


class Clock:
    """Counts the time in functions of the library while it is on."""

    def __init__(self) -> None:
        self.nanoseconds = 0
        self._replaced: dict[str, Any] = {}

    def __enter__(self) -> Clock:
        for name, function in list(vars(lib).items()):
            if callable(function):
                self._replaced[name] = function
                setattr(lib, name, self._timed(function))
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self._replaced.items():
            setattr(lib, name, function)
        self._replaced.clear()

    def _timed(self, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            begin = time.perf_counter_ns()
            result = function(*arguments)
            self.nanoseconds += time.perf_counter_ns() - begin
            return result

        return call


def calls_of(buffer: Buffer, device: Any) -> dict[str, Callable[[], Any]]:
    x = torch.ones(1, HIDDEN, dtype=torch.bfloat16, device=device)
    ids = torch.arange(TOPK, device=device).view(1, TOPK)
    weights = torch.ones(1, TOPK, device=device)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
    layout = (per_rank, None, in_rank, per_expert, ids, weights)
    rows, *_, handle, _ = buffer.dispatch(x, None, *layout)
    if device.type == "cuda":  # so that the hosts of calls along the handle do not wait
        rows, *_, handle, _ = buffer.dispatch(x, None, *layout, num_worst_tokens=MAX_TOKENS)

    def low_latency(**options: Any) -> Any:
        return buffer.low_latency_dispatch(x, ids, MAX_TOKENS, EXPERTS, **options)

    def both(**options: Any) -> Any:
        given, _, route, *_ = low_latency(use_fp8=False)
        return buffer.low_latency_combine(given, ids, weights, route, **options)

    def both_in_halves() -> None:
        given, _, route, _, hook = low_latency(use_fp8=False, return_recv_hook=True)
        hook()
        options = {"return_recv_hook": True}
        buffer.low_latency_combine(given, ids, weights, route, **options)[2]()

    def waited(*result: Any) -> None:
        if device.type == "cuda":
            result[-1].current_stream_wait()

    return {
        "get_dispatch_layout": lambda: buffer.get_dispatch_layout(ids, EXPERTS),
        "get_dispatch_layout, async_finish": lambda: buffer.get_dispatch_layout(
            ids, EXPERTS, async_finish=True
        ),
        "get_dispatch_layout, async, waited": lambda: waited(
            *buffer.get_dispatch_layout(ids, EXPERTS, async_finish=True)
        ),
        "dispatch": lambda: buffer.dispatch(x, None, *layout),
        "dispatch, async_finish": lambda: buffer.dispatch(x, None, *layout, async_finish=True),
        "dispatch, num_worst_tokens": lambda: buffer.dispatch(
            x, None, *layout, num_worst_tokens=MAX_TOKENS
        ),
        "dispatch, handle": lambda: buffer.dispatch(x, handle),
        "combine": lambda: buffer.combine(rows, handle),
        "combine, async_finish": lambda: buffer.combine(rows, handle, async_finish=True),
        "combine, async, waited": lambda: waited(
            *buffer.combine(rows, handle, async_finish=True)
        ),
        "low_latency_dispatch, bf16": lambda: low_latency(use_fp8=False),
        "low_latency_dispatch, fp8": lambda: low_latency(),
        "low_latency_dispatch, hook": lambda: low_latency(use_fp8=False, return_recv_hook=True)[4](),
        "low_latency_dispatch and _combine": both,
        "the two, with a hook each": both_in_halves,
    }


def measure(call: Callable[[], Any], number: int, wait: Callable[[], Any]) -> tuple[float, float]:
    """The whole call, and the functions of the library in it."""
    whole, inside = [], []
    for _ in range(RUNS):
        for _ in range(number):
            begin = time.perf_counter_ns()
            call()
            whole.append(time.perf_counter_ns() - begin)
        wait()
        with Clock() as clock:
            for _ in range(number):
                before = clock.nanoseconds
                call()
                inside.append(clock.nanoseconds - before)
        wait()
    return tuple(sorted(times)[len(times) // 10] / 1000 for times in (whole, inside))  # type: ignore


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--number", type=int, default=100, help="calls per run")
    parser.add_argument("--json", help="also write the figures to this file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    wait: Callable[[], Any] = lambda: None
    calls: dict[str, Callable[[], Any]] = {}
    cuda: Any = torch.cuda
    if given.device == "cuda":
        wait = cuda.synchronize
        nothing = torch.zeros(1, device="cuda")
        calls["two launches, of torch"] = lambda: (nothing.zero_(), nothing.zero_())
        calls["two launches, of empty kernels"] = lambda: (cuda._sleep(0), cuda._sleep(0))
    buffer = Buffer(moebius.Group.threads(1)[0])
    calls.update(calls_of(buffer, torch.device(given.device, 0 if given.device == "cuda" else None)))
    print(f"{'us per call, on ' + given.device:36} {'whole':>8} {'library':>8} {'Python':>8}")
    found = {}
    for name, call in calls.items():
        whole, inside = found[name] = measure(call, given.number, wait)
        print(f"{name:36} {whole:8.1f} {inside:8.1f} {whole - inside:8.1f}", flush=True)
    buffer.destroy()
    if given.json:
        with open(given.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
