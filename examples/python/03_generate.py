# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Generates text with a Hugging Face model whose experts run on Moebius.

The model is a small one with random weights, so that nothing is downloaded, and its text is a row
of token numbers.  For a real model, replace make_model() by

    AutoModelForCausalLM.from_pretrained(name, dtype="auto", experts_implementation="moebius")

Needs torch and transformers 5; without them it says so and returns 77."""
from __future__ import annotations

import sys
import time
from typing import Any

SKIPPED = 77

try:
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS  # noqa: F401
except ImportError as error:
    print(f"skipped: torch and transformers 5 are needed: {error}")
    sys.exit(SKIPPED)

import moebius.transformers


def make_model() -> Any:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=16,
        num_experts_per_tok=4,
        eos_token_id=None,
        bos_token_id=1,
        pad_token_id=0,
    )
    return Qwen3MoeForCausalLM(config).eval()


def main() -> int:
    moebius.transformers.register()
    model = make_model()
    prompt = torch.arange(10, 26)[None]
    texts = {}
    for implementation in ("eager", "moebius"):
        model.set_experts_implementation(implementation)
        with torch.no_grad():
            model(prompt)  # packs the weights
            begin = time.perf_counter()
            made = model.generate(prompt, max_new_tokens=32, do_sample=False)
        seconds = time.perf_counter() - begin
        texts[implementation] = made[0, prompt.shape[1] :].tolist()
        print(f"{implementation:8} {32 / seconds:6.1f} tokens/s  {texts[implementation][:12]} ...")
    if texts["eager"] != texts["moebius"]:
        print("the two differ")
        return 1
    print("both chose the same 32 tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
