# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The experts of a module of transformers, all of them in this process."""
from __future__ import annotations

from typing import Any, Optional

import torch

from ._expert_modules import ExpertModule
from ._weight_schemes import quantize_experts
from .experts import Experts
from .quant import QuantConfig


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).rpartition(".")[2]


def weights_of(
    source: ExpertModule, quant: Optional[str], experts: slice = slice(None)
) -> tuple[Any, Any, Optional[QuantConfig]]:
    """w1, w2 and how they are quantized, of some experts of a module."""
    w1, w2, biases = source.w1(experts), source.w2(experts), source.biases(experts)
    if quant is not None:
        return quantize_experts(quant, w1, w2, biases, gated=source.is_gated)
    return w1, w2, QuantConfig.biased(*biases) if source.has_bias else None


class LocalExperts:
    """Computes what the module computes: called with hidden [T, H] of `dtype`, ids [T, K] and
    weights f32 [T, K], it gives [T, H].

    The id E counts as masked: under the expert parallelism of transformers it stands for experts
    of other ranks."""

    def __init__(
        self,
        source: ExpertModule,
        *,
        topk: int,
        quant: Optional[str],
        lends: bool,
        implementation: Optional[str],
    ) -> None:
        self.dtype = source.dtype
        self._source = source
        self._quant = quant
        w1, w2, config = weights_of(source, quant)
        # The id E is foreign, and the library wants no more selections than ids.
        num_ids = max(source.num_experts + 1, topk)
        self._experts = Experts(
            w1,
            w2,
            topk=topk,
            num_experts=num_ids,
            dtype=dtype_name(source.dtype),
            quant=config,
            lends_weights=lends and quant is None and source.lies_as_wanted,
            implementation=implementation,
            device=source.device,
            **source.activation.arguments,
        )
        ids = torch.arange(num_ids, dtype=torch.int32)
        ids[source.num_experts :] = -1
        self._map = ids.to(source.device)

    def __call__(self, hidden: Any, ids: Any, weights: Any, out: Any = None) -> torch.Tensor:
        result: torch.Tensor = self._experts(hidden, ids, weights, expert_map=self._map, out=out)
        return result

    def update(self) -> None:
        """Reads the values of the parameters again, which lie where they lay."""
        w1, w2, config = weights_of(self._source, self._quant)
        self._experts.update(w1, w2, quant=config)
