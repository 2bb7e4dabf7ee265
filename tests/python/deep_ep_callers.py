#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Runs callers' own code of expert parallelism on moebius.deep_ep, and compares what it gives with
experts that see all tokens.

    PYTHONPATH=python MOEBIUS_LIBRARY=build/release/lib/libmoebius.so \\
        python3 tests/python/deep_ep_callers.py megatron PATH [--device cuda] [--num-processes 4]

PATH is a checkout of the caller's repository, or a folder that has its files:

- megatron: fused_dispatch and fused_combine of fused_a2a.py, forward and backward
- vllm: prepare and finalize of deepep_ht_prepare_finalize.py and deepep_ll_prepare_finalize.py
- sglang: DeepEPDispatcher of deepep.py, in normal and low-latency mode

What these files import besides torch and deep_ep is replaced by deep_ep_stand_ins.py.  Nothing of
the callers is in this repository.  Exits with 77 where PATH does not have the files."""
from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import torch
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)

import moebius.deep_ep

from deep_ep_stand_ins import (
    DeepEPMode,
    Sglang,
    TopKOutput,
    stand_in,
    stand_in_for_a_gpu,
    stand_in_for_vllm,
)

TOPK = 3
EXPERTS_PER_RANK = 4


# Where the files are, by caller: their folder in a checkout, and their names.
FILES = {
    "megatron": ("megatron/core/transformer/moe", ["fused_a2a.py"]),
    "vllm": (
        "vllm/model_executor/layers/fused_moe",
        ["deepep_ht_prepare_finalize.py", "deepep_ll_prepare_finalize.py"],
    ),
    "sglang": ("python/sglang/srt/layers/moe/token_dispatcher", ["deepep.py"]),
}


def find_files(caller: str, path: Path) -> list[Path]:
    folder, names = FILES[caller]
    for place in (path / folder, path):
        if all((place / name).is_file() for name in names):
            return [place / name for name in names]
    return []


def load(file: Path) -> Any:
    """The module of a file, which finds deep_ep and the stand-ins."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Experts:
    """Expert e computes tanh(x W_e)."""

    weights: Any  # [E, H, H]

    def __call__(self, expert: int, x: Any) -> Any:
        return torch.tanh(x.float() @ self.weights[expert]).to(x.dtype)

    def of_all(self, x: Any, ids: Any, weights: Any) -> Any:
        """What a token gets from all its experts, in f32."""
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in range(len(self.weights)):
            share = (weights * (ids == expert)).sum(1, keepdim=True)
            out = out + self(expert, x).float() * share
        return out


@dataclass
class Rank:
    """What a process knows."""

    rank: int
    size: int
    device: Any
    group: Any

    @property
    def num_experts(self) -> int:
        return EXPERTS_PER_RANK * self.size

    @property
    def first_expert(self) -> int:
        return EXPERTS_PER_RANK * self.rank

    def experts(self, hidden: int) -> Experts:
        generator = torch.Generator("cpu").manual_seed(3)
        shape = (self.num_experts, hidden, hidden)
        weights = torch.randn(shape, generator=generator, device="cpu") / hidden**0.5
        return Experts(weights.to(self.device))

    def tokens(self, count: int, hidden: int, dtype: Any) -> tuple[Any, Any, Any]:
        """x [T, H], ids [T, K] and weights [T, K] of this rank."""
        generator = torch.Generator("cpu").manual_seed(100 * count + self.rank)
        x = torch.randn(count, hidden, generator=generator, device="cpu").to(dtype)
        scores = torch.rand(count, self.num_experts, generator=generator, device="cpu")
        weights, ids = scores.topk(TOPK)
        return x.to(self.device), ids.to(self.device), weights.to(self.device)


def expect_close(found: Any, expected: Any, error: float, what: str) -> None:
    """By the norm of the difference."""
    difference = torch.linalg.norm(found.double() - expected.double())
    limit = error * torch.linalg.norm(expected.double())
    assert difference <= limit, f"{what} differs by {difference}, expected at most {limit}"


# Megatron.


def run_megatron(rank: Rank, files: list[Path]) -> None:
    stand_in("megatron.core.utils", internal_api=lambda function: function)
    caller = load(files[0])
    assert caller.HAVE_DEEP_EP
    hidden = 64
    experts = rank.experts(hidden)
    caller.set_deepep_num_sms(24)
    for count in (6 + rank.rank, 0 if rank.rank == rank.size - 1 else 9):
        for is_async in (False, True):
            _megatron_layer(rank, caller, experts, count, hidden, is_async)


def _megatron_layer(
    rank: Rank, caller: Any, experts: Experts, count: int, hidden: int, is_async: bool
) -> None:
    x, ids, weights = rank.tokens(count, hidden, torch.float32)
    given = [x.requires_grad_(), weights.requires_grad_()]
    rows, row_ids, row_weights, counts, handle = caller.fused_dispatch(
        x, ids, weights, rank.num_experts, rank.group, is_async, is_async
    )
    y = torch.zeros_like(rows)
    for local in range(EXPERTS_PER_RANK):
        is_selected = row_ids == local
        assert int(is_selected.sum()) == int(counts[local])
        share = (row_weights * is_selected).sum(1, keepdim=True)
        y = y + experts(rank.first_expert + local, rows) * share
    out, _ = caller.fused_combine(y, rank.group, handle, is_async, is_async)
    upstream = torch.ones_like(out) * torch.arange(1, hidden + 1, device=rank.device) / hidden
    found = torch.autograd.grad(out, given, upstream)

    again = [tensor.detach().clone().requires_grad_() for tensor in given]
    expected_out = experts.of_all(again[0], ids, again[1])
    expected = torch.autograd.grad(expected_out, again, upstream)
    expect_close(out, expected_out, 1e-5, "the output")
    expect_close(found[0], expected[0], 1e-5, "the gradient of x")
    expect_close(found[1], expected[1], 1e-5, "the gradient of the weights")


# vLLM.


def _dequantized(x: Any, scales: Any, dtype: Any) -> Any:
    if scales is None:
        return x
    groups = x.float().unflatten(-1, (scales.shape[-1], -1))
    return (groups * scales.unsqueeze(-1)).flatten(-2).to(dtype)


def run_vllm(rank: Rank, files: list[Path]) -> None:
    stand_in_for_vllm()
    high_throughput, low_latency = map(load, files)
    fp8 = getattr(torch, "float8_e4m3fn", None)
    for block_dtype in [None] if fp8 is None else [None, fp8]:
        for count in (6 + rank.rank, 0 if rank.rank == rank.size - 1 else 9):
            _vllm_high_throughput(rank, high_throughput, count, block_dtype)
        _vllm_low_latency(rank, low_latency, 6 + rank.rank, block_dtype)


def _options(block_dtype: Any) -> dict[str, Any]:
    return {} if block_dtype is None else {"quant_dtype": block_dtype, "block_shape": [128, 128]}


def _vllm_high_throughput(rank: Rank, caller: Any, count: int, block_dtype: Any) -> None:
    hidden = 256
    experts = rank.experts(hidden)
    x, ids, weights = rank.tokens(count, hidden, torch.bfloat16)
    buffer = moebius.deep_ep.Buffer(rank.group, int(1e9), 0)
    both = caller.DeepEPHTPrepareAndFinalize(
        buffer, rank.size, rank.rank, rank.size, rank.first_expert, **_options(block_dtype)
    )
    rows, scales, _, row_ids, row_weights = both.prepare(
        x, None, None, weights, ids, rank.num_experts, None, False
    )
    rows = _dequantized(rows, scales, x.dtype)
    y = torch.zeros((len(rows), TOPK, hidden), dtype=x.dtype, device=x.device)
    for expert in range(rank.first_expert, rank.first_expert + EXPERTS_PER_RANK):
        found = experts(expert, rows)
        for slot in range(TOPK):
            y[:, slot] += found * (row_ids[:, slot] == expert).unsqueeze(1)
    out = torch.empty_like(x)
    both.finalize(out, y.flatten(0, 1), row_weights, row_ids, False)
    expect_close(out, experts.of_all(x, ids, weights), 2e-2 if block_dtype is None else 6e-2, "out")
    buffer.destroy()


def _vllm_low_latency(rank: Rank, caller: Any, count: int, block_dtype: Any) -> None:
    hidden = caller.DeepEPLLPrepareAndFinalize.SUPPORTED_HIDDEN_SIZES[0]
    experts = rank.experts(hidden)
    x, ids, weights = rank.tokens(count, hidden, torch.bfloat16)
    buffer = moebius.deep_ep.Buffer(rank.group, 0, int(1e9), low_latency_mode=True)
    both = caller.DeepEPLLPrepareAndFinalize(
        buffer,
        rank.size,
        rank.size,
        16,
        use_fp8_dispatch=block_dtype is not None,
        **_options(block_dtype),
    )
    for _ in range(3):  # so that each of the two banks is used again
        rows, scales, counts, *_ = both.prepare(
            x, None, None, weights, ids, rank.num_experts, None, False
        )
        rows = _dequantized(rows, scales, x.dtype)
        y = torch.zeros_like(rows)
        for local, num_rows in enumerate(counts.tolist()):
            y[local, :num_rows] = experts(rank.first_expert + local, rows[local, :num_rows])
        out = torch.empty_like(x)
        both.finalize(out, y, weights, ids, False)
        error = 2e-2 if block_dtype is None else 6e-2
        expect_close(out, experts.of_all(x, ids, weights), error, "out")
    buffer.destroy()


# SGLang.


def run_sglang(rank: Rank, files: list[Path]) -> None:
    if rank.device.type == "cpu":
        stand_in_for_a_gpu()
    if not hasattr(torch, "get_device_module"):  # before torch 2.5
        torch.get_device_module = lambda: torch.cuda  # type: ignore[attr-defined]
    settings = Sglang()
    settings.install()
    caller = load(files[0])
    assert caller.use_deepep
    hidden = 256
    experts = rank.experts(hidden)
    has_fp8 = hasattr(torch, "float8_e4m3fn")
    for asynchronous in (False, True):
        dispatcher = caller.DeepEPDispatcher(
            group=rank.group,
            router_topk=TOPK,
            num_experts=rank.num_experts,
            num_local_experts=EXPERTS_PER_RANK,
            hidden_size=hidden,
            params_dtype=torch.bfloat16,
            deepep_mode=DeepEPMode.AUTO,
            async_finish=asynchronous,
            return_recv_hook=not asynchronous,
        )
        for settings.sends_bf16.value in (True, False) if has_fp8 else (True,):
            for settings.is_extend in (True, False):
                for count in (6 + rank.rank, 0 if rank.rank == rank.size - 1 else 9):
                    _sglang_layer(rank, caller, dispatcher, settings, experts, count, hidden)
    caller.DeepEPBuffer._buffer.destroy()


def _sglang_layer(
    rank: Rank,
    caller: Any,
    dispatcher: Any,
    settings: Sglang,
    experts: Experts,
    count: int,
    hidden: int,
) -> None:
    x, ids, weights = rank.tokens(count, hidden, torch.bfloat16)
    given = dispatcher.dispatch(x, TopKOutput(weights, ids))
    rows = _dequantized(given.hidden_states, given.hidden_states_scale, x.dtype)
    y = torch.zeros_like(rows)
    if settings.is_extend:
        y = y.float()
        for local in range(EXPERTS_PER_RANK):
            is_selected = given.topk_ids == local
            wanted = -(-int(is_selected.sum()) // 128) * 128  # it asks for multiples of 128
            assert given.num_recv_tokens_per_expert[local] == wanted
            share = (given.topk_weights * is_selected).sum(1, keepdim=True)
            y += experts(rank.first_expert + local, rows).float() * share
        made = caller.DeepEPNormalCombineInput(y.to(x.dtype), given.topk_ids, given.topk_weights)
    else:
        for local, num_rows in enumerate(given.masked_m.tolist()):
            y[local, :num_rows] = experts(rank.first_expert + local, rows[local, :num_rows])
        made = caller.DeepEPLLCombineInput(y, given.topk_ids, given.topk_weights)
    out = dispatcher.combine(made)
    error = 2e-2 if settings.sends_bf16.value else 6e-2
    expect_close(out, experts.of_all(x, ids, weights), error, "out")


# Processes.


RUN = {"megatron": run_megatron, "vllm": run_vllm, "sglang": run_sglang}


def run_rank(rank: int, given: argparse.Namespace, files: list[Path], store: str) -> None:
    torch.set_num_threads(1)
    device = torch.device(given.device)
    cuda: Any = torch.cuda
    if given.device == "cuda":
        device = torch.device("cuda", rank % cuda.device_count())
        cuda.set_device(device)
    distributed: Any = torch.distributed
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=given.num_processes
    )
    moebius.deep_ep.install()
    RUN[given.caller](
        Rank(rank, given.num_processes, device, distributed.group.WORLD), files
    )
    distributed.barrier()
    distributed.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("caller", choices=sorted(FILES))
    parser.add_argument("path", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--num-processes", type=int, default=2)
    given = parser.parse_args()
    files = find_files(given.caller, given.path)
    if not files:
        print(f"skipped: {given.path} has no {' and no '.join(FILES[given.caller][1])}")
        return 77
    spawn: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        spawn(run_rank, (given, files, store), nprocs=given.num_processes)
    print(f"{given.caller} on {given.num_processes} processes, {given.device}: right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
