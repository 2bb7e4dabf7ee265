# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""A thousand objects are made and destroyed, and nothing is left of them."""
from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Weights, run_threads, torch

import moebius

CYCLES = 1000
# Bytes that the interpreter and the C library may keep for later, which come and go by megabytes.
# Blocks of the library are counted exactly.
ROOM = 8 << 20
MODEL = Weights(hidden=32, intermediate=16)


def resident_bytes() -> int:
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def state() -> dict[str, int]:
    gc.collect()
    moebius.trim_memory()
    statistics = moebius.memory_statistics()
    mappings = Path("/proc/self/maps").read_text()
    return {
        "blocks": statistics.num_blocks,
        "block bytes": statistics.bytes,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "shared memory": mappings.count("memfd:moebius"),
        "mappings of files": mappings.count("/"),
    }


def expect_no_leak(cycle: Callable[[], Any], cycles: int = CYCLES) -> None:
    for _ in range(cycles // 5):
        cycle()
    before, resident = state(), resident_bytes()
    for _ in range(cycles):
        cycle()
    assert state() == before
    assert resident_bytes() - resident < ROOM


def test_tensors() -> None:
    x = np.ones((4, 64), np.float32)

    def cycle() -> None:
        array = moebius.Array.empty((64, 64), "bf16")
        array.bits()[:] = 0
        np.from_dlpack(moebius.Array.from_numpy(x))
        array.__dlpack__(max_version=(1, 1))
        if torch is not None:
            array.torch()
            torch.from_dlpack(array)
        moebius.dequantize(moebius.quantize(x, "fp8"))

    expect_no_leak(cycle)


def test_groups() -> None:
    def cycle() -> None:
        groups = moebius.Group.threads(2)
        del groups[0]
        alone = moebius.Group.processes(0, 1, lambda data: [data])
        alone.split(0)
        alone.barrier()

    expect_no_leak(cycle)


def test_experts_and_routers() -> None:
    hidden, ids, weights = MODEL.tokens(3)

    def cycle() -> None:
        moebius.Experts(MODEL.w1, MODEL.w2, topk=2)(hidden, ids, weights)
        moebius.Router(8, 2, gate=MODEL.gate)(hidden)

    expect_no_leak(cycle)


def test_layers() -> None:
    hidden = MODEL.tokens(3)[0]

    def routing(given: Any, ids: Any, weights: Any) -> None:
        ids[:], weights[:] = 1, 1

    def cycle() -> None:
        layer = moebius.MoeLayer(MODEL.w1, MODEL.w2, topk=2, gate=MODEL.gate)
        layer(hidden)
        layer.start(hidden)
        moebius.MoeLayer(MODEL.w1, MODEL.w2, topk=2, routing=routing)(hidden)

    expect_no_leak(cycle)


def test_layers_of_a_checkpoint(tmp_path: Path) -> None:
    moebius.make_model("tiny", tmp_path)

    def cycle() -> None:
        group = moebius.Group.processes(0, 1, lambda data: [data])
        moebius.MoeLayer.from_checkpoint(tmp_path, group=group)

    expect_no_leak(cycle, cycles=100)


def test_transports() -> None:
    hidden, ids, weights = MODEL.tokens(3)

    def cycle() -> None:
        group = moebius.Group.threads(1)[0]
        shared = moebius.Transports(group)
        transport = moebius.HighThroughput(group, 8, transports=shared)
        rows = transport.dispatch(hidden, ids, weights)
        transport.combine(rows.x, rows)
        low = moebius.LowLatency(group, 8, hidden=32, topk=2, dtype="f32", transports=shared)
        low.dispatch(hidden, ids)
        transport.dispatch_start(hidden, ids)  # abandoned, which breaks the group

    expect_no_leak(cycle)


def test_groups_of_threads_with_layers() -> None:
    hidden = MODEL.tokens(3)[0]

    def body(group: moebius.Group) -> None:
        mine = slice(group.rank * 4, group.rank * 4 + 4)
        layer = moebius.MoeLayer(
            MODEL.w1[mine], MODEL.w2[mine], topk=2, num_experts=8, gate=MODEL.gate, group=group
        )
        layer(hidden)

    expect_no_leak(lambda: run_threads(body, 2), cycles=200)


def test_errors() -> None:
    def fails(data: bytes) -> list[bytes]:
        raise KeyError("no store")

    def cycle() -> None:
        with pytest.raises(KeyError):
            moebius.Group.processes(0, 2, fails)
        with pytest.raises(moebius.InvalidArgument):
            moebius.Experts(MODEL.w1, MODEL.w2[:, :, :3], topk=2)

    expect_no_leak(cycle)
