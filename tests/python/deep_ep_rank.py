# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""A rank of deep_ep_failures.py: a process with the group, the tokens and the calls that its cases
have in common.  It exits with 77 without torch."""
from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Optional

try:
    import torch
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)

import moebius
from moebius.deep_ep import Buffer

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
