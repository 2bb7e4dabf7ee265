# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The experts of a module of transformers, spread over the ranks of a group."""
from __future__ import annotations

from typing import Any, Optional

import torch

from ._expert_modules import ExpertModule
from ._local_experts import dtype_name, weights_of
from .errors import InvalidArgument
from .layer import MoeLayer


class ParallelExperts:
    """Computes what the module computes, with a share of the experts on each rank: called with
    hidden [T, H] of `dtype`, ids [T, K] and weights f32 [T, K], it gives [T, H].

    Experts lie as in a MoeLayer without a placement: neighbours live together, and the first E % R
    ranks own one more.  Making and calling is collective; update() is local."""

    def __init__(
        self,
        source: ExpertModule,
        *,
        topk: int,
        quant: Optional[str],
        implementation: Optional[str],
        group: Any,
        **options: Any,
    ) -> None:
        self.dtype = source.dtype
        self._source = source
        self._quant = quant
        self._experts = share_of(source.num_experts, group.rank, group.size)
        if self._experts.start == self._experts.stop:
            raise InvalidArgument(
                f"{source.label} has {source.num_experts} experts, expected one for each of "
                f"{group.size} ranks"
            )
        w1, w2, config = weights_of(source, quant, self._experts)
        self._layer = MoeLayer(
            w1,
            w2,
            topk=topk,
            num_experts=source.num_experts,
            dtype=dtype_name(source.dtype),
            quant=config,
            experts=implementation,
            group=group,
            **source.activation.arguments,
            **options,
        )

    def __call__(self, hidden: Any, ids: Any, weights: Any, out: Any = None) -> torch.Tensor:
        result: torch.Tensor = self._layer(hidden, ids, weights, out=out)
        return result

    def update(self) -> None:
        """Reads the values of this rank's share of the parameters again."""
        w1, w2, config = weights_of(self._source, self._quant, self._experts)
        self._layer.update(w1, w2, quant=config)


def share_of(num_experts: int, rank: int, num_ranks: int) -> slice:
    """The experts of a rank."""
    least, more = divmod(num_experts, num_ranks)
    begin = rank * least + min(rank, more)
    return slice(begin, begin + least + (rank < more))
