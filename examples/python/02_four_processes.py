# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""A layer whose experts live on four processes.

Where torch is installed the processes meet through torch.distributed, else through pipes.  Started
by torchrun (torchrun --nproc-per-node 4 02_four_processes.py) it uses the processes that are there."""
from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import tempfile
from typing import Any

import numpy as np

import moebius

try:
    import torch.distributed as dist
except ImportError:
    dist = None  # type: ignore[assignment]

NUM_RANKS = 4


def work(group: moebius.Group, folder: str) -> None:
    """What each rank does: it has a quarter of the model's experts and tokens of its own."""
    layer = moebius.MoeLayer.from_checkpoint(folder, group=group)
    random = np.random.default_rng(group.rank)
    hidden = random.standard_normal((4 + group.rank, layer.info.hidden)).astype(np.float32)
    output = layer(hidden)

    # One rank alone gives the same up to rounding.
    whole = moebius.MoeLayer.from_checkpoint(folder)(hidden)
    error = np.linalg.norm(output - whole) / np.linalg.norm(whole)
    print(
        f"rank {group.rank} of {group.size}: {layer.info.num_local_experts} of "
        f"{layer.info.num_experts} experts by {layer.info.backend}, {len(hidden)} tokens, "
        f"sent {group.bytes_sent} bytes, relative error {error:.1e}",
        flush=True,
    )
    assert error < 1e-2
    group.barrier()


def run_with_torch(rank: int, port: int, folder: str) -> None:
    if "RANK" not in os.environ:  # torchrun sets these itself
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(NUM_RANKS))
    dist.init_process_group("gloo")
    with moebius.Group.torch() as group:
        work(group, folder)
    dist.destroy_process_group()


def run_with_pipes(rank: int, pipes: list[Any], folder: str) -> None:
    def all_gather(data: bytes) -> list[bytes]:
        """Rank 0 collects from the others and hands everything out."""
        if rank > 0:
            pipes[rank][1].send(data)
            parts: list[bytes] = pipes[rank][1].recv()
            return parts
        parts = [data] + [pipe[0].recv() for pipe in pipes[1:]]
        for pipe in pipes[1:]:
            pipe[0].send(parts)
        return parts

    with moebius.Group.processes(rank, NUM_RANKS, all_gather) as group:
        work(group, folder)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def main() -> None:
    if "RANK" in os.environ and dist is not None:
        folder = os.path.join(tempfile.gettempdir(), f"moebius-{os.environ['MASTER_PORT']}-model")
        if os.environ["RANK"] == "0":
            moebius.make_model("tiny", folder)
        run_with_torch(int(os.environ["RANK"]), 0, folder)
        if os.environ["RANK"] == "0":
            shutil.rmtree(folder)
        return
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        moebius.make_model("tiny", folder)
        if dist is not None and dist.is_available():
            port = free_port()
            arguments = [(rank, port, folder) for rank in range(NUM_RANKS)]
            processes = [context.Process(target=run_with_torch, args=each) for each in arguments]
        else:
            pipes = [context.Pipe() for _ in range(NUM_RANKS)]
            processes = [
                context.Process(target=run_with_pipes, args=(rank, pipes, folder))
                for rank in range(NUM_RANKS)
            ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert all(process.exitcode == 0 for process in processes)


if __name__ == "__main__":
    main()
