# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The drop-in for deep_ep over processes: its check, and what is found out when one of them is wrong."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import torch
from test_groups import run_program

if torch is None:
    pytest.skip("torch is not installed", allow_module_level=True)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_check_finds_all_right(size: int) -> None:
    command = [sys.executable, "-m", "moebius.deep_ep.check", "--device", "cpu", "--rounds", "2"]
    ended = subprocess.run(
        [*command, "--num-processes", str(size), "--num-tokens", "24"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0 and ended.stdout.endswith("all is right\n"), ended.stderr


def test_the_check_says_what_is_wrong() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "moebius.deep_ep.check", "--num-experts", "7"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "num_experts is 7, expected a multiple of 2" in ended.stderr


HEAD = """
import os, signal, sys
import torch, torch.distributed as dist
import moebius
from moebius.deep_ep import Buffer
from test_deep_ep import dispatch, inputs
rank, size = map(int, sys.argv[1:])
store = "file://" + os.environ["STORE"]
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
x, ids, weights = inputs(rank)
buffer = Buffer(dist.group.WORLD)
"""

KILLED = """
dispatch(buffer, x, ids)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        dispatch(buffer, x, ids)
except moebius.CommError as error:
    print(error.peer, flush=True)
os._exit(0)
"""

DIFFERENT = """
try:
    dispatch(buffer, x if rank else x[:, :64].contiguous(), ids)
except moebius.Error as error:
    print(type(error).__name__, str(error).count(chr(10)), flush=True)
os._exit(0)
"""


def test_arguments_that_differ_between_ranks_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    assert run_program(HEAD + DIFFERENT, size=2) == ["InvalidArgument 0\n"] * 2


def test_a_process_that_was_killed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(tmp_path / "store")
    environment = {**os.environ, "STORE": store}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HEAD + KILLED, str(rank), "3"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
            env=environment,
        )
        for rank in range(3)
    ]
    try:
        outs = [process.communicate(timeout=90)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [outs[0], outs[2]] == ["1\n"] * 2
