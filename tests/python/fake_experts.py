# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Experts modules as transformers has them, and the interface that they are called through, for
tests on machines without transformers."""
from __future__ import annotations

import sys
import types
from typing import Any, Callable, Optional

import torch
from torch import nn
from torch.nn import functional as F

FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {}


class Registry:
    def register(self, name: str, function: Callable[..., torch.Tensor]) -> None:
        FUNCTIONS[name] = function


def install_interface(monkeypatch: Any) -> None:
    """Makes `from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS` give a Registry."""
    package = types.ModuleType("transformers")
    integrations = types.ModuleType("transformers.integrations")
    moe = types.ModuleType("transformers.integrations.moe")
    moe.ALL_EXPERTS_FUNCTIONS = Registry()  # type: ignore[attr-defined]
    for module in (package, integrations, moe):
        monkeypatch.setitem(sys.modules, module.__name__, module)


class Config:
    def __init__(self, family: str, implementation: str) -> None:
        self.model_type = family
        self._experts_implementation = implementation


def swiglu(gate: torch.Tensor, up: torch.Tensor, alpha: float, beta: float, limit: float) -> Any:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + beta)


# Gated activations that model families use, of gate and up columns.
GATES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu": lambda gate, up: F.gelu(gate) * up,
    "gelu_pytorch_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "gpt_oss": lambda gate, up: swiglu(gate, up, 1.702, 1.0, 7.0),
    "deepseek_v4": lambda gate, up: swiglu(gate, up, 1.0, 0.0, 10.0),
    "mish": lambda gate, up: F.mish(gate) * up,
}
PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "gelu": F.gelu,
    "mish": F.mish,
}


class FakeExperts(nn.Module):
    """Experts with any of the flags of use_experts_implementation, with random weights."""

    def __init__(
        self,
        num_experts: int = 6,
        hidden: int = 32,
        intermediate: int = 48,
        *,
        activation: str = "silu",
        has_gate: bool = True,
        has_bias: bool = False,
        is_transposed: bool = False,
        is_concatenated: bool = True,
        dtype: torch.dtype = torch.float32,
        implementation: str = "moebius",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.config = Config("fake", implementation)
        self.num_experts = num_experts
        self.has_gate, self.has_bias = has_gate, has_bias
        self.is_transposed, self.is_concatenated = is_transposed, is_concatenated
        self.activation = activation
        generator = torch.Generator().manual_seed(seed)

        def weight(*shape: int) -> nn.Parameter:
            values = torch.randn(*shape, generator=generator) / shape[-1] ** 0.5
            return nn.Parameter(values.to(dtype))

        rows = 2 * intermediate if has_gate else intermediate
        first = "gate_up_proj" if has_gate else "up_proj"
        shapes = [(num_experts, rows, hidden), (num_experts, hidden, intermediate)]
        if is_transposed:
            shapes = [(e, k, n) for e, n, k in shapes]
        self.register_parameter(first, weight(*shapes[0]))
        self.down_proj = weight(*shapes[1])
        if has_bias:
            self.register_parameter(first + "_bias", weight(num_experts, rows))
            self.down_proj_bias = weight(num_experts, hidden)
        if not has_gate:
            self.act_fn = PLAIN[activation]

    def _apply_gate(self, columns: torch.Tensor) -> torch.Tensor:
        if self.is_concatenated:
            gate, up = columns.chunk(2, dim=-1)
        else:
            gate, up = columns[..., 0::2], columns[..., 1::2]
        return GATES[self.activation](gate, up)

    def forward(
        self, hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
    ) -> torch.Tensor:
        name = self.config._experts_implementation
        if name == "eager":
            return self.eager(hidden, topk_ids, topk_weights)
        return FUNCTIONS[name](self, hidden, topk_ids, topk_weights)

    def eager(
        self,
        hidden: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
    ) -> torch.Tensor:
        """The definition, in the steps and types of transformers' loop over experts."""
        first = self.gate_up_proj if self.has_gate else self.up_proj
        name = "gate_up_proj_bias" if self.has_gate else "up_proj_bias"
        first_bias: Optional[torch.Tensor] = getattr(self, name, None)
        out = torch.zeros_like(hidden)
        for expert in range(self.num_experts):
            tokens, slots = torch.where(topk_ids == expert)
            if len(tokens) == 0:
                continue

            def multiply(x: torch.Tensor, weight: Any, bias: Optional[torch.Tensor]) -> Any:
                matrix = weight[expert] if self.is_transposed else weight[expert].t()
                y = x @ matrix
                return y if bias is None else y + bias[expert]

            rows = multiply(hidden[tokens], first, first_bias)
            rows = self._apply_gate(rows) if self.has_gate else self.act_fn(rows)
            rows = multiply(rows, self.down_proj, getattr(self, "down_proj_bias", None))
            rows = rows * topk_weights[tokens, slots, None]
            out.index_add_(0, tokens, rows.to(out.dtype))
        return out


def route(
    num_tokens: int, num_experts: int, topk: int, dtype: torch.dtype = torch.float32, seed: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids i64 [T, K] and weights [T, K]."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_tokens, num_experts, generator=generator)
    weights, ids = logits.softmax(-1).topk(topk)
    return ids, weights.to(dtype)


def tokens(num_tokens: int, hidden: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(num_tokens, hidden, generator=generator).to(dtype)


def error_of(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the largest size."""
    difference = (result.float() - expected.float()).abs().max()
    return float(difference / expected.float().abs().max().clamp(min=1e-30))
