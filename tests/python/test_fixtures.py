# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""All checkpoints with expected outputs, through Python: within their tolerances, and with the same
bits as `moebius run` (MOEBIUS_COMMAND names it)."""
from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import FIXTURES, read_safetensors, relative_error, run_threads, torch

import moebius

# How far outputs may be from the expected ones, as the formats of activations allow.
TOLERANCES = {
    "mixtral": 1e-2,
    "qwen2_moe": 1e-2,
    "qwen3_moe": 1e-2,
    "deepseek_v3": 1e-2,
    "gpt_oss": 1e-2,
    "llama4": 1e-2,
    "deepseek_v3_fp8": 6e-2,
    "gpt_oss_mxfp4": 1e-2,
    "qwen3_moe_int4": 1e-2,
    "mixtral_int8": 6e-2,
    "qwen3_moe_nvfp4": 2.5e-1,
}
pytestmark = pytest.mark.skipif(not FIXTURES.is_dir(), reason=f"no fixtures at {FIXTURES}")


def load(folder: str, layer: int) -> tuple[str, Any, Any]:
    """The name of the input, its bits as bf16, and the expected output."""
    tensors = read_safetensors(FIXTURES / folder / "expected.safetensors")
    (name,) = [
        name
        for name in tensors
        if name.startswith(f"model.layers.{layer}.") and name.endswith(".input")
    ]
    kind, bits = tensors[name]
    assert kind == "bf16"
    return name, bits, tensors[name.replace(".input", ".output")][1]


def bf16(bits: Any) -> Any:
    return moebius.Array.from_numpy(bits, dtype="bf16")


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("folder", TOLERANCES)
def test_outputs_are_within_tolerance_and_have_the_bits_of_the_command(
    folder: str, layer: int, tmp_path: Path
) -> None:
    name, bits, expected = load(folder, layer)
    for format in ("standard", "batched"):
        moe = moebius.MoeLayer.from_checkpoint(FIXTURES / folder, layer, format=format)
        out = np.empty(bits.shape, np.float32)
        assert moe(bf16(bits), out=out) is out
        assert relative_error(out, expected) <= TOLERANCES[folder]
        command = os.environ.get("MOEBIUS_COMMAND")
        if command:
            file, written = FIXTURES / folder / "expected.safetensors", tmp_path / "out.safetensors"
            subprocess.run(
                [command, "run", "--repeat", "1", "--model", FIXTURES / folder]
                + ["--layer", str(layer), "--format", format, "--input", file]
                + ["--input-tensor", name, "--output", written],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            np.testing.assert_array_equal(out, read_safetensors(written)["output"][1])


@pytest.mark.parametrize("folder", TOLERANCES)
def test_weights_as_stored_stay_within_the_weight_only_tolerance(folder: str) -> None:
    _, bits, expected = load(folder, 0)
    moe = moebius.MoeLayer.from_checkpoint(FIXTURES / folder, 0, quant="none")
    out = moe(bf16(bits), out=np.empty(bits.shape, np.float32))
    assert relative_error(out, expected) <= 1e-2


@pytest.mark.parametrize("backend", ["high_throughput", "low_latency", "allgather_reducescatter"])
@pytest.mark.parametrize("folder", ["mixtral", "deepseek_v3_fp8", "gpt_oss_mxfp4"])
def test_outputs_over_ranks_are_within_tolerance(folder: str, backend: str) -> None:
    _, bits, expected = load(folder, 0)

    def body(group: moebius.Group) -> None:
        moe = moebius.MoeLayer.from_checkpoint(
            FIXTURES / folder,
            group=group,
            backend=backend,
            format="batched" if backend == "low_latency" else "standard",
        )
        mine = slice(group.rank * len(bits) // 4, (group.rank + 1) * len(bits) // 4)
        out = moe(bf16(bits[mine].copy()), out=np.empty(bits[mine].shape, np.float32))
        assert relative_error(out, expected[mine]) <= TOLERANCES[folder]
        assert sum(moe.expert_load()) == moe.info.topk * len(out)

    run_threads(body, 4)


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_torch_gives_the_same_bits() -> None:
    _, bits, _ = load("qwen3_moe", 0)
    moe = moebius.MoeLayer.from_checkpoint(FIXTURES / "qwen3_moe")
    hidden = torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)
    out = moe(hidden, out=torch.empty(hidden.shape))
    expected = moe(bf16(bits), out=np.empty(bits.shape, np.float32))
    np.testing.assert_array_equal(out.numpy(), expected)
    rounded = moe(hidden)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, out.bfloat16())


def test_a_checkpoint_says_what_it_is() -> None:
    checkpoint = moebius.Checkpoint(FIXTURES / "deepseek_v3_fp8")
    assert checkpoint.info.family == "deepseek_v3" and checkpoint.info.quant_method == "fp8"
    assert checkpoint.info.moe_layers[0] == 0 and checkpoint.info.num_shared_experts == 1
    assert moebius.MoeLayer.from_checkpoint(checkpoint).info.hidden == checkpoint.info.hidden
    with pytest.raises(moebius.InvalidArgument):
        moebius.MoeLayer.from_checkpoint(checkpoint, 99)
    with pytest.raises(moebius.Error, match="nowhere"):
        moebius.Checkpoint("/nowhere")
