# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of the check, and says how it went."""
from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Any

import torch

from ..tensors import cuda
from . import checks
from .rank import run_rank


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m moebius.deep_ep.check",
        description="Checks moebius.deep_ep on this machine, over processes that it starts, and "
        "times its calls.  Processes may share a GPU.  Exits with 0 if all is right.",
    )
    has_gpu = cuda.is_available()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if has_gpu else "cpu")
    parser.add_argument("--num-processes", type=int, default=2)
    parser.add_argument("--num-tokens", type=int, default=64, help="of rank 0; others have fewer")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--num-topk", type=int, default=4)
    parser.add_argument("--num-experts", type=int, default=0, help="default: 4 for each process")
    parser.add_argument("--seeds", type=int, default=1, help="how often all is checked")
    parser.add_argument("--rounds", type=int, default=10, help="of each timing; 0: none")
    parser.add_argument("--only", default="", help="names of checks, with commas between them")
    given = parser.parse_args()
    given.num_experts = given.num_experts or 4 * given.num_processes
    names = {check.__name__ for check in checks.ALL}
    given.only = [name for name in given.only.split(",") if name]
    if set(given.only) - names:
        parser.error(f"--only is {given.only}, expected some of {sorted(names)}")
    for name in ("num_processes", "num_tokens", "hidden", "num_topk"):
        if getattr(given, name) < 1:
            parser.error(f"{name} is {getattr(given, name)}, expected at least 1")
    if given.num_experts % given.num_processes:
        parser.error(
            f"num_experts is {given.num_experts}, expected a multiple of {given.num_processes}"
        )
    if given.num_topk > given.num_experts:
        parser.error(f"num_topk is {given.num_topk}, expected at most {given.num_experts}")
    return given


def main() -> int:
    given = read_arguments()
    print(
        f"{given.num_processes} processes on {given.device}, {given.num_tokens} tokens, hidden "
        f"{given.hidden}, {given.num_topk} of {given.num_experts} experts",
        flush=True,
    )
    multiprocessing: Any = torch.multiprocessing
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        try:
            multiprocessing.spawn(run_rank, (given, store), nprocs=given.num_processes)
        except Exception as error:  # of the process that failed first
            print(f"not all is right: {error}", file=sys.stderr)
            return 1
    print("all is right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
