# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What a process of the check does."""
from __future__ import annotations

import argparse
import os
import sys
import traceback
from typing import Any

import torch

from ..buffer import Buffer
from ..tensors import cuda, distributed
from . import checks, timing
from .inputs import Sizes


def _device(kind: str, rank: int) -> Any:
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % cuda.device_count())
    cuda.set_device(device)
    return device


def run_rank(rank: int, given: argparse.Namespace, store: str) -> None:
    """All checks and timings of one process."""
    torch.set_num_threads(1)
    device = _device(given.device, rank)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=given.num_processes
    )
    buffer = Buffer(distributed.group.WORLD)
    state = None
    for seed in range(given.seeds):
        sizes = Sizes(
            given.num_processes,
            given.num_tokens,
            given.hidden,
            given.num_topk,
            given.num_experts,
            device,
            seed,
        )
        state = checks.Rank(sizes, rank, distributed.group.WORLD, buffer)
        for check in checks.ALL:
            if not given.only or check.__name__ in given.only:
                _run(check, state, seed)
    if given.rounds and state is not None:
        for line in timing.lines(state, given.rounds):
            if rank == 0:
                print(line, flush=True)
    distributed.barrier()
    buffer.destroy()
    distributed.destroy_process_group()


def _run(check: Any, state: checks.Rank, seed: int) -> None:
    try:
        check(state)
    except BaseException:
        print(f"rank {state.rank}: {check.__name__} failed (seed {seed})", file=sys.stderr)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the others are waiting, and learn of it
    distributed.barrier(state.group)
    if state.rank == 0:
        print(f"{check.__name__}: right (seed {seed})", flush=True)
