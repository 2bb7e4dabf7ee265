# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Whole models of transformers 5: generation, two processes that share the experts, quantized and
released weights, and saving.  families.py compares every family."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.integrations.moe")

import moebius  # noqa: E402
import moebius.transformers  # noqa: E402

NUM_NEW = 16


def make_model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = transformers.MixtralConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=6,
        num_experts_per_tok=2,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.MixtralForCausalLM(config).eval()


def generate(model: Any, prompt: Any) -> list[int]:
    made = model.generate(
        prompt, max_new_tokens=NUM_NEW, do_sample=False, synced_gpus=False, pad_token_id=0
    )
    tokens: list[int] = made[0, prompt.shape[1] :].tolist()
    return tokens


def prompt_of(rank: int = 0) -> Any:
    return torch.arange(5 + rank, 15 + rank)[None]


def test_generation_gives_the_tokens_of_eager() -> None:
    moebius.transformers.register()
    model = make_model()
    model.set_experts_implementation("eager")
    expected = generate(model, prompt_of())
    model.set_experts_implementation("moebius")
    assert generate(model, prompt_of()) == expected


def test_a_model_saves_and_loads_beside_packed_weights(tmp_path: Path) -> None:
    moebius.transformers.register()
    model = make_model()
    model.set_experts_implementation("moebius")
    with torch.no_grad():
        expected = model(prompt_of()).logits
    model.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model(prompt_of()).logits, expected)


def test_quantized_and_released_weights() -> None:
    moebius.transformers.register("moebius_int8", quant="int8_w8a16", release_parameters=True)
    model = make_model()
    model.set_experts_implementation("eager")
    with torch.no_grad():
        expected = model(prompt_of()).logits
        before = sum(parameter.numel() for parameter in model.parameters())
        model.set_experts_implementation("moebius_int8")
        result = model(prompt_of()).logits
    assert float((result - expected).norm() / expected.norm()) < 0.02
    experts = 2 * 6 * 3 * 64 * 96  # layers, experts, matrices
    assert before - sum(parameter.numel() for parameter in model.parameters()) == experts
    with pytest.raises(moebius.InvalidArgument, match="nothing to save"):
        model.state_dict()


def test_compiled_blocks_of_all_layers_share_code() -> None:
    if not hasattr(torch, "compile"):
        pytest.skip("torch has no compile()")
    from torch._dynamo.utils import counters

    moebius.transformers.register()
    model = make_model()
    model.set_experts_implementation("eager")
    with torch.no_grad():
        expected = model(prompt_of(), use_cache=False).logits
        model.set_experts_implementation("moebius")
        assert moebius.transformers.prepare(model) == 2
        torch._dynamo.reset()
        counters.clear()
        for layer in model.model.layers:
            layer.mlp.compile(fullgraph=True, backend="aot_eager")
        result = model(prompt_of(), use_cache=False).logits
    assert torch.allclose(result, expected, atol=1e-4)
    assert counters["stats"]["unique_graphs"] <= 2


def generate_as_rank(rank: int, size: int, tokens: str, path: str) -> None:
    import torch.distributed as dist

    moebius.set_setting("MOEBIUS_THREADS", "1")
    torch.set_num_threads(1)
    store = f"file://{path}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    group = moebius.Group.torch(timeout=60.0)
    moebius.transformers.register(group=group, tokens=tokens, release_parameters=True)
    model = make_model()
    prompt = prompt_of(rank if tokens == "own" else 0)
    model.set_experts_implementation("eager")
    expected = generate(model, prompt)
    model.set_experts_implementation("moebius")
    made = generate(model, prompt)
    Path(path, str(rank)).write_text("same" if made == expected else f"{made} {expected}")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("tokens", ["own", "same"])
def test_two_processes_share_the_experts(tokens: str, tmp_path: Path) -> None:
    import torch.multiprocessing as mp

    mp.spawn(generate_as_rank, args=(2, tokens, str(tmp_path)), nprocs=2)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["same", "same"]
