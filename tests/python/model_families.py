# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The model families of transformers 5.17 whose experts go through its interface, what their
experts are, and small configurations of them.

`python model_families.py` prints the table of docs/transformers.md, which a test compares."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """The experts of a family.  `small` are settings of a small model that SMALL does not have;
    `...` leaves what SMALL has as the configuration has it."""

    layout: str = "gate, then up"
    bias: bool = False
    activation: str = "silu"
    works: str = "yes"
    small: dict[str, Any] = field(default_factory=dict)


_LAYERS = ["dense", "sparse"]
_GEMMA = {
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 64,
    "layer_types": ["sliding_attention", "full_attention"],
    "global_head_dim": 16,
}

FAMILIES: dict[str, Family] = {
    "afmoe": Family(),
    "axk1": Family(),
    "axk2": Family(),
    "cohere2_moe": Family(),
    "deepseek_ocr2": Family(small={"mlp_layer_types": _LAYERS}),
    "deepseek_v2": Family(small={"first_k_dense_replace": 1}),
    "deepseek_v3": Family(),
    "deepseek_v32": Family(),
    "deepseek_v4": Family(
        activation="silu, clamped",
        small={
            "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"],
            "mlp_layer_types": ["moe", "moe"],
            "head_dim": 32,
            "partial_rotary_factor": 0.5,
            "num_key_value_heads": 1,
            "o_groups": 2,
            "hc_mult": 2,
            "compress_rates": {
                "compressed_sparse_attention": 4,
                "heavily_compressed_attention": 8,
            },
        },
    ),
    "diffusion_gemma": Family(activation="gelu, tanh approximation", small=_GEMMA),
    "dots1": Family(small={"n_shared_experts": 1, "first_k_dense_replace": 1}),
    "ernie4_5_moe": Family(),
    "ernie4_5_vl_moe": Family(
        small={
            "moe_intermediate_size": [64, 32],
            "mlp_layer_types": _LAYERS,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [3, 3, 2],
            },
        }
    ),
    "exaone_moe": Family(small={"first_k_dense_replace": 1, "mlp_layer_types": _LAYERS}),
    "flex_olmo": Family(),
    "gemma4": Family(
        activation="gelu, tanh approximation",
        small={"enable_moe_block": True, **_GEMMA},
    ),
    "glm4_moe": Family(),
    "glm4_moe_lite": Family(small={"mlp_layer_types": _LAYERS}),
    "glm4v_moe": Family(
        small={
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],
            }
        }
    ),
    "glm5_next": Family(
        activation="silu, clamped where the config says so",
        small={
            "layer_types": ["linear_attention", "deepseek_sparse_attention"],
            "mlp_layer_types": _LAYERS,
        },
    ),
    "glm_moe_dsa": Family(small={"mlp_layer_types": _LAYERS}),
    "gpt_oss": Family(
        "gate and up alternate, transposed",
        bias=True,
        activation="swiglu of gpt-oss",
        small={"layer_types": ["sliding_attention", "full_attention"]},
    ),
    "granitemoe": Family(),
    "granitemoe_swa": Family(),
    "granitemoehybrid": Family(
        small={"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 16}
    ),
    "granitemoeshared": Family(),
    "hunyuan_v1_moe": Family(small={"moe_topk": 2, "num_experts": 8, "head_dim": 16}),
    "hy_v3": Family(small={"mlp_layer_types": _LAYERS}),
    "hy_v4": Family(activation="silu, clamped where the config says so"),
    "inkling": Family(),
    "jamba": Family(
        small={"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}
    ),
    "kimi_linear": Family(small={"layer_types": ["linear_attention", "full_attention"]}),
    "laguna": Family(small={"mlp_layer_types": _LAYERS}),
    "lfm2_moe": Family(
        small={"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}
    ),
    "mellum": Family(),
    "mimo_v2_flash": Family(),
    "minimax": Family(small={"layer_types": ["linear_attention", "full_attention"]}),
    "minimax_m2": Family(),
    "minimax_m3_vl": Family(activation="swiglu of gpt-oss"),
    "mistral4": Family(small={"first_k_dense_replace": 1, "head_dim": ...}),
    "mixtral": Family(),
    "nemotron_h": Family(
        "no gate",
        activation="relu squared",
        small={
            "layers_block_type": ["mamba", "moe", "attention", "moe"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "use_mamba_kernels": False,
        },
    ),
    "olmoe": Family(),
    "openai_privacy_filter": Family(
        "gate, then up, transposed",
        bias=True,
        activation="swiglu of gpt-oss",
        works="yes; transformers computes these experts in f32, Moebius in the type of the weights",
    ),
    "phimoe": Family(),
    "qwen2_moe": Family(),
    "qwen3_5_moe": Family(small={"layer_types": ["linear_attention", "full_attention"]}),
    "qwen3_moe": Family(),
    "qwen3_next": Family(small={"layer_types": ["linear_attention", "full_attention"]}),
    "qwen3_omni_moe": Family(),
    "qwen3_vl_moe": Family(),
    "qwen4_exp": Family(
        small={
            "layer_types": ["linear_attention", "full_attention"],
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 64,
            "indexer_budget": 16,
            "indexer_compress_ratio": 4,
        }
    ),
    "solar_open": Family(),
    "zaya": Family(small={"num_experts_per_tok": 1}),
}

# Settings of small models, for those configurations that have them.  None as a default of
# transformers is kept where it says that a part does not exist.
SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "dense_intermediate_size": 96,
    "shared_intermediate_size": 64,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "swa_v_head_dim": 16,
    "head_dim": 16,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 128,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "o_lora_rank": 32,
    "index_n_heads": 2,
    "index_head_dim": 32,
    "index_topk": 8,
    "index_block_size": 8,
    "index_topk_blocks": 4,
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_local_experts": 8,
    "moe_num_experts": 8,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "dense_mlp_idx": 1,
    "max_position_embeddings": 256,
    "sliding_window": 32,
    "sliding_window_size": 32,
    "ssm_state_size": 16,
    "n_groups": 2,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
    "chunk_size": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "index_kpool": 4,
    "block_size": 16,
    "d_rel": 8,
    "rel_extent": 32,
    "hc_count": 2,
    "hc_lowrank": 16,
    "rotary_dim": 16,
    "router_hidden_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def table() -> str:
    """The table of docs/transformers.md."""
    lines = ["| family | experts | bias | activation | works |", "| --- | --- | --- | --- | --- |"]
    for name, family in FAMILIES.items():
        bias = "yes" if family.bias else "no"
        lines.append(
            f"| {name} | {family.layout} | {bias} | {family.activation} | {family.works} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
