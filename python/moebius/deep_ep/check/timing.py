# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""How long calls take, and what they move."""
from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..tensors import cuda, distributed
from .checks import Rank
from .inputs import inputs_of


def median_seconds(call: Callable[[], Any], state: Rank, rounds: int) -> float:
    """The median over rounds, of which the first quarter is left out; ranks begin together."""
    times = []
    for _ in range(rounds + rounds // 4 + 1):
        distributed.barrier(state.group)
        begin = time.perf_counter()
        call()
        if state.sizes.device.type == "cuda":
            cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[rounds // 4 + 1 :])


def lines(state: Rank, rounds: int) -> Iterator[str]:
    """A line for each call: time, and the bytes of hidden states that this rank receives or sends
    back per second, its own included.  Collective."""
    sizes, buffer, given = state.sizes, state.buffer, inputs_of(state.sizes, state.rank)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(given.ids, sizes.num_experts)
    arguments = (given.x, None, per_rank, None, in_rank, per_expert, given.ids, given.weights)
    rows, *_, handle, _ = buffer.dispatch(*arguments)

    def line(name: str, num_bytes: int, call: Callable[[], Any]) -> str:
        seconds = median_seconds(call, state, rounds)
        return f"{name:22} {seconds * 1e6:10.1f} us {num_bytes / seconds / 1e9:8.2f} GB/s"

    row_bytes = sizes.hidden * 2
    received = len(rows) * row_bytes

    def layout() -> Any:
        return buffer.get_dispatch_layout(given.ids, sizes.num_experts)

    yield line("layout", 0, layout)
    yield line("dispatch", received, lambda: buffer.dispatch(*arguments))
    yield line("dispatch, cached", received, lambda: buffer.dispatch(given.x, handle))
    yield line("combine", received, lambda: buffer.combine(rows, handle))

    def low_latency() -> Any:
        return buffer.low_latency_dispatch(
            given.x, given.ids, sizes.num_tokens, sizes.num_experts, use_fp8=False
        )

    def low_latency_both() -> None:
        x, _, handle, *_ = low_latency()
        buffer.low_latency_combine(x, given.ids, given.weights, handle)

    counts = low_latency()[1]
    there, back = int(counts.sum()) * row_bytes, int((given.ids >= 0).sum()) * row_bytes
    yield line("low-latency dispatch", there, low_latency)
    yield line("the same and combine", there + back, low_latency_both)
