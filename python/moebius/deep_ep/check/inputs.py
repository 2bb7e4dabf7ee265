# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What each rank gives, as every rank can compute it, and what must come of it.

Letters: T tokens of a rank, M rows received, H hidden, K top-k, R ranks, E experts, L local experts."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Sizes:
    num_ranks: int
    num_tokens: int
    hidden: int
    num_topk: int
    num_experts: int
    device: Any
    seed: int = 0

    @property
    def experts_per_rank(self) -> int:
        return self.num_experts // self.num_ranks


@dataclass(frozen=True)
class Inputs:
    """x bf16 [T, H], ids i64 [T, K] with a tenth masked, weights f32 [T, K]."""

    x: Any
    ids: Any
    weights: Any


def inputs_of(sizes: Sizes, rank: int) -> Inputs:
    """The tokens of a rank.  Ranks have different numbers of them; the last of several has none."""
    generator = torch.Generator().manual_seed(1000 * sizes.seed + rank)
    num_tokens = max(0, sizes.num_tokens - rank)
    if rank > 0 and rank == sizes.num_ranks - 1:
        num_tokens = 0

    def draw(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")

    x = draw(num_tokens, sizes.hidden).to(torch.bfloat16)
    scores = draw(num_tokens, sizes.num_experts)
    ids = torch.topk(scores, sizes.num_topk, dim=1)[1] if num_tokens else _no_ids(sizes)
    masked = torch.rand(ids.shape, generator=generator, dtype=torch.float32, device="cpu") < 0.1
    ids = ids.masked_fill(masked, -1)
    weights = draw(num_tokens, sizes.num_topk).abs().masked_fill(masked, 0)
    return Inputs(*(part.to(sizes.device) for part in (x, ids, weights)))


def _no_ids(sizes: Sizes) -> Any:
    return torch.zeros((0, sizes.num_topk), dtype=torch.int64, device="cpu")


def is_in_rank(sizes: Sizes, ids: Any, rank: int) -> Any:
    """bool [T, K]: whether the expert of each selection lives on a rank."""
    first = rank * sizes.experts_per_rank
    return (ids >= first) & (ids < first + sizes.experts_per_rank)


@dataclass(frozen=True)
class Rows:
    """The rows that a rank receives: in order of (source rank, source token)."""

    x: Any
    ids: Any
    """Local, -1 elsewhere."""
    weights: Any
    """0 elsewhere."""
    source_rank: Any
    source_token: Any


def rows_of(sizes: Sizes, rank: int) -> Rows:
    parts: list[list[Any]] = [[] for _ in range(5)]
    for source in range(sizes.num_ranks):
        given = inputs_of(sizes, source)
        here = is_in_rank(sizes, given.ids, rank)
        token = here.any(1).nonzero().view(-1)
        here = here[token]
        local = given.ids[token] - rank * sizes.experts_per_rank
        found = (
            given.x[token],
            local.masked_fill(~here, -1),
            given.weights[token].masked_fill(~here, 0),
            torch.full_like(token, source),
            token,
        )
        for part, tensor in zip(parts, found):
            part.append(tensor)
    return Rows(*(torch.cat(part) for part in parts))


def counts_of(sizes: Sizes, ids: Any) -> list[int]:
    """The selections of each local expert."""
    return [int((ids == expert).sum()) for expert in range(sizes.experts_per_rank)]


def copies_of(sizes: Sizes, ids: Any) -> Any:
    """i64 [T]: the ranks that a token goes to."""
    ranks = [is_in_rank(sizes, ids, rank).any(1) for rank in range(sizes.num_ranks)]
    return torch.stack(ranks, 1).sum(1)


def decode_fp8(x: Any) -> Any:
    """f32 of e4m3, which a torch without the type has as uint8."""
    if x.dtype != torch.uint8:
        return x.to(torch.float32)
    bits = x.to(torch.int32)
    exponent, fraction = bits >> 3 & 15, bits & 7
    normal = (1 + fraction / 8) * torch.exp2((exponent - 7).to(torch.float32))
    value = torch.where(exponent == 0, fraction / 8 * 2.0**-6, normal)
    return torch.where(bits >= 128, -value, value)
