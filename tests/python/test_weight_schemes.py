# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Weights that moebius.transformers quantizes have the codes and scales of a checkpoint that is
loaded with the same scheme: results are equal bit by bit."""
from __future__ import annotations

from typing import Any

import pytest
from helpers import FIXTURES, read_safetensors

torch = pytest.importorskip("torch")

import fake_experts as fake  # noqa: E402

import moebius  # noqa: E402
import moebius.transformers  # noqa: E402
from moebius._weight_schemes import SCHEMES  # noqa: E402

FOLDER = FIXTURES / "qwen3_moe"
NUM_EXPERTS, TOPK, HIDDEN, INTERMEDIATE = 16, 4, 192, 96
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no fixture at {FOLDER}")


def bf16(bits: Any) -> Any:
    return torch.frombuffer(bytearray(bits.tobytes()), dtype=torch.bfloat16).view(bits.shape)


def module_of_layer(layer: int) -> Any:
    """The experts of a layer of the fixture as transformers has them."""
    tensors = read_safetensors(FOLDER / "model.safetensors")
    module = fake.FakeExperts(NUM_EXPERTS, HIDDEN, INTERMEDIATE, dtype=torch.bfloat16)
    with torch.no_grad():
        for expert in range(NUM_EXPERTS):
            prefix = f"model.layers.{layer}.mlp.experts.{expert}."
            gate, up, down = (
                bf16(tensors[prefix + name + ".weight"][1])
                for name in ("gate_proj", "up_proj", "down_proj")
            )
            module.gate_up_proj[expert] = torch.cat([gate, up])
            module.down_proj[expert] = down
    return module


@pytest.mark.parametrize("scheme", [None, *SCHEMES])
def test_results_have_the_bits_of_a_checkpoint(scheme: Any, monkeypatch: Any) -> None:
    fake.install_interface(monkeypatch)
    moebius.transformers.register(quant=scheme)
    hidden = fake.tokens(9, HIDDEN, torch.bfloat16)
    ids, weights = fake.route(9, NUM_EXPERTS, TOPK)
    layer = moebius.MoeLayer.from_checkpoint(FOLDER, 0, quant=scheme or "none")
    expected = layer(hidden, ids, weights)
    with torch.no_grad():
        result = module_of_layer(0)(hidden, ids, weights)
    assert torch.equal(result, expected)


def test_the_schemes_are_those_of_checkpoints() -> None:
    with pytest.raises(moebius.InvalidArgument) as error:
        moebius.MoeLayer.from_checkpoint(FOLDER, 0, quant="int5")
    assert ", ".join(SCHEMES) in str(error.value)
