# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What several files of tests use."""
from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import moebius

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(os.environ.get("MOEBIUS_FIXTURES", ROOT.parent / "shared" / "fixtures"))
TIMEOUT = 60.0  # seconds; of groups that must not fail

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

# Why tests of GPUs are skipped; empty: they run.
NO_GPU = ""
if torch is None:
    NO_GPU = "torch is not installed"
elif not (torch.cuda.is_available() and moebius.is_usable("cuda")):
    NO_GPU = "there is no GPU that both torch and this build can use"


def run_threads(body: Callable[[moebius.Group], Any], size: int, **options: Any) -> list[Any]:
    """Calls the body on `size` threads that are the ranks of a group, and gives its results."""
    groups = moebius.Group.threads(size, **{"timeout": TIMEOUT, **options})
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(group: moebius.Group) -> None:
        try:
            with group:
                results[group.rank] = body(group)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(group,), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a rank has not ended"
    if errors:
        # What the first rank raised, rather than what the others said about it.
        raise min(errors, key=lambda error: isinstance(error, moebius.CommError))
    return results


def read_safetensors(path: Path) -> dict[str, tuple[str, Any]]:
    """The tensors of a file by name, as a pair (type, numpy array); bf16 has its bits."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    types = {"F32": np.float32, "BF16": np.uint16, "I64": np.int64, "I32": np.int32, "F16": np.float16}
    found = {}
    for name, info in header.items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in info["data_offsets"])
            array = np.frombuffer(data[begin:end], types[info["dtype"]]).reshape(info["shape"])
            found[name] = (info["dtype"].lower(), array)
    return found


def relative_error(actual: Any, expected: Any) -> float:
    """|actual - expected| / |expected|, as include/moebius/tolerance.h has it."""
    difference = np.linalg.norm(np.float64(actual) - np.float64(expected))
    return float(difference / np.linalg.norm(np.float64(expected)))


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def reference_experts(w1: Any, w2: Any, hidden: Any, ids: Any, weights: Any) -> Any:
    """Gated silu experts in float64."""
    out = np.zeros(hidden.shape)
    for token, row in enumerate(np.float64(hidden)):
        for expert, weight in zip(ids[token], weights[token]):
            if expert >= 0:
                gate, up = np.split(np.float64(w1[expert]) @ row, 2)
                out[token] += weight * (np.float64(w2[expert]) @ (silu(gate) * up))
    return out


class Weights:
    """Random weights of experts and a router, and hidden states with a choice of experts."""

    def __init__(self, experts: int = 8, hidden: int = 64, intermediate: int = 32, topk: int = 2):
        self.random = np.random.default_rng(7)
        self.topk, self.hidden, self.num_experts = topk, hidden, experts
        self.w1 = self.normal(experts, 2 * intermediate, hidden) / 8
        self.w2 = self.normal(experts, hidden, intermediate) / 8
        self.gate = self.normal(experts, hidden)

    def normal(self, *shape: int) -> Any:
        return self.random.standard_normal(shape).astype(np.float32)

    def tokens(self, count: int) -> tuple[Any, Any, Any]:
        """hidden [T, H], ids [T, K], weights [T, K]."""
        ids = np.argsort(self.random.random((count, self.num_experts)), axis=1)[:, : self.topk]
        weights = self.random.random((count, self.topk)).astype(np.float32)
        return self.normal(count, self.hidden), ids.astype(np.int32), weights
