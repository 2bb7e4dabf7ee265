# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Router: hidden states to logits to topk_ids and topk_weights.

Letters: T tokens, H hidden, E experts, L local experts, K top-k."""
from __future__ import annotations

from ctypes import c_uint32
from dataclasses import dataclass
from typing import Any, Optional

from . import _structs as s
from ._dtypes import dtype_code
from ._handles import Handle
from ._library import lib
from ._values import instance, integer
from .errors import InvalidArgument, check, create
from .tensors import (
    SupportsDLPack,
    device_struct,
    empty,
    kind_of,
    optional_view,
    stream_handle,
    view,
    view_pointer,
)

__all__ = ["Router", "RouterConfig", "count_expert_tokens"]

_SCORINGS = {
    "softmax": s.SOFTMAX,
    "sigmoid": s.SIGMOID,
    "sqrt_softplus": s.SQRT_SOFTPLUS,
    "sparse_mixer": s.SPARSE_MIXER,
}


@dataclass(frozen=True)
class RouterConfig:
    """How logits become ids and weights; moebius/router.h has the steps."""

    scoring: str = "softmax"
    """softmax, sigmoid, sqrt_softplus, or sparse_mixer, which is the rule of PhiMoE."""
    score_after_topk: bool = False
    """Logits are selected, then scored."""
    renormalize: bool = False
    """The weights of a token sum to 1, before the factor."""
    num_groups: int = 1
    topk_groups: int = 1
    """How many groups of experts are open to a token."""
    routed_scaling_factor: float = 1.0
    tensor_core_logits: bool = False
    """GPUs, bf16: sums in the order of the tensor cores."""
    mixer_epsilon: float = 0.01
    """sparse_mixer only: router_jitter_noise in PhiMoE's configuration."""

    def _struct(self, num_experts: int, topk: int) -> s.RouterConfig:
        if self.scoring not in _SCORINGS:
            raise InvalidArgument(f"scoring is {self.scoring}, expected one of {', '.join(_SCORINGS)}")
        if self.routed_scaling_factor == 0:
            raise InvalidArgument("routed_scaling_factor is 0, expected another number")
        return s.RouterConfig(
            num_experts=num_experts,
            topk=topk,
            scoring=_SCORINGS[self.scoring],
            score_after_topk=self.score_after_topk,
            renormalize=self.renormalize,
            num_groups=self.num_groups,
            topk_groups=self.topk_groups,
            routed_scaling_factor=self.routed_scaling_factor,
            tensor_core_logits=self.tensor_core_logits,
            mixer_epsilon=self.mixer_epsilon,
        )


def router_weights(
    gate: Any, bias: Any, correction_bias: Any, expert_scale: Any
) -> s.RouterWeights:
    return s.RouterWeights(
        gate=view_pointer(gate),
        bias=view_pointer(bias),
        correction_bias=view_pointer(correction_bias),
        expert_scale=view_pointer(expert_scale),
    )


class Router(Handle):
    """Chooses the experts of each token: the K best of E.

    gate [E, H] makes the logits; it is None where the caller brings logits.  bias [E] is added to
    them, correction_bias [E] only where experts are chosen, and expert_scale [E] multiplies the
    weights of chosen experts.  All are bf16, f16 or f32, and are copied.  The router works on
    `device`, or else where its weights are.  Raises InvalidArgument for what does not fit."""

    _destroy = lib.router_destroy

    def __init__(
        self,
        num_experts: int,
        topk: int,
        config: RouterConfig = RouterConfig(),
        *,
        gate: Optional[SupportsDLPack] = None,
        bias: Optional[SupportsDLPack] = None,
        correction_bias: Optional[SupportsDLPack] = None,
        expert_scale: Optional[SupportsDLPack] = None,
        device: Any = None,
    ) -> None:
        weights = router_weights(gate, bias, correction_bias, expert_scale)
        tensors = (weights.gate, weights.bias, weights.correction_bias, weights.expert_scale)
        given = [x for x in tensors if x]
        if device is not None:
            where = device_struct(device)
        else:
            where = given[0].contents.device if given else s.Device(s.CPU, 0)
        self.num_experts = num_experts
        self.topk = topk
        self.config = config
        struct = instance(config, RouterConfig, "config")._struct(num_experts, topk)
        self._handle = create(lib.router_create, struct, weights, where)

    def logits(self, hidden: SupportsDLPack, *, out: Any = None, stream: Any = None) -> Any:
        """hidden [T, H] f32, bf16 or f16 -> logits f32 [T, E]."""
        given = view(hidden)
        if out is None:
            out = empty(kind_of(hidden), s.F32, (given.shape[0], self.num_experts), given.device)
        check(lib.router_logits(self._get(), given, view(out), stream_handle(stream, hidden)))
        return out

    def select(
        self,
        logits: SupportsDLPack,
        *,
        ids_dtype: Any = "i32",
        out: Any = None,
        stream: Any = None,
    ) -> tuple[Any, Any]:
        """logits f32 [T, E] -> ids i32 or i64 [T, K] and weights f32 [T, K], in the pair `out` if
        it is given."""
        given = view(logits)
        if out is None:
            kind, shape = kind_of(logits), (given.shape[0], self.topk)
            out = (
                empty(kind, dtype_code(ids_dtype), shape, given.device),
                empty(kind, s.F32, shape, given.device),
            )
        ids, weights = out
        check(
            lib.router_select(
                self._get(), given, view(ids), view(weights), stream_handle(stream, logits)
            )
        )
        return ids, weights

    def __call__(
        self, hidden: SupportsDLPack, *, ids_dtype: Any = "i32", stream: Any = None
    ) -> tuple[Any, Any]:
        """hidden [T, H] -> ids [T, K] and weights f32 [T, K]."""
        return self.select(self.logits(hidden, stream=stream), ids_dtype=ids_dtype, stream=stream)

    def update(
        self,
        gate: Optional[SupportsDLPack] = None,
        bias: Optional[SupportsDLPack] = None,
        correction_bias: Optional[SupportsDLPack] = None,
        expert_scale: Optional[SupportsDLPack] = None,
        *,
        stream: Any = None,
    ) -> None:
        """Replaces the values of weights in place; shapes and types are those of before."""
        tensors = (gate, bias, correction_bias, expert_scale)
        given = next((x for x in tensors if x is not None), None)
        if given is None:
            return
        weights = router_weights(gate, bias, correction_bias, expert_scale)
        check(lib.router_update(self._get(), weights, stream_handle(stream, given)))


def count_expert_tokens(
    topk_ids: SupportsDLPack,
    num_local_experts: int,
    *,
    expert_map: Optional[SupportsDLPack] = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Counts the tokens of each local expert among topk_ids [T, K]: i32 [L].  expert_map i32 [E]
    maps global ids to local ones, -1 for those elsewhere; without it ids are local."""
    given = view(topk_ids)
    if out is None:
        count = integer(num_local_experts, c_uint32, "num_local_experts")
        out = empty(kind_of(topk_ids), s.I32, (count,), given.device)
    check(
        lib.count_expert_tokens(
            given, optional_view(expert_map), view(out), stream_handle(stream, topk_ids)
        )
    )
    return out
