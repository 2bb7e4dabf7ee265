# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Experts: y = W2[e] * act(W1[e] * x + b1[e]) + b2[e], weighted and summed over the experts of each
token.

Letters: T tokens, H hidden, E experts, L local experts, K top-k, I intermediate size of an expert,
N rows of w1 (2 * I for gated experts, else I), M rows of a dispatch."""
from __future__ import annotations

from ctypes import byref, pointer
from dataclasses import dataclass
from typing import Any, Optional

from . import _structs as s
from ._dtypes import NAMES, dtype_code
from ._handles import Handle
from ._library import lib
from ._values import instance
from .errors import InvalidArgument, check, create
from .quant import QuantConfig, QuantOperand, view_bytes_as
from .tensors import (
    SupportsDLPack,
    current_stream,
    device_struct,
    empty,
    kind_of,
    named_stream,
    stream_handle,
    view,
    view_pointer,
)

__all__ = ["Experts", "ExpertsInfo", "LoraWeights"]

_ACTIVATIONS = {
    "silu": s.SILU,
    "gelu": s.GELU,
    "gelu_tanh": s.GELU_TANH,
    "swiglu_oai": s.SWIGLU_OAI,
    "relu2": s.RELU2,
    "swiglu_step": s.SWIGLU_STEP,
}
_FORMATS = {"standard": s.STANDARD, "batched": s.BATCHED}


def format_code(name: str) -> int:
    if name not in _FORMATS:
        raise InvalidArgument(f"format is {name}, expected standard or batched")
    return _FORMATS[name]


def activation_struct(
    kind: str,
    gated: bool,
    interleaved: bool,
    alpha: float | None,
    beta: float | None,
    limit: float | None,
) -> s.Activation:
    """alpha, beta and limit that are not given are 1.702, 1 and 7."""
    if kind not in _ACTIVATIONS:
        raise InvalidArgument(f"activation is {kind}, expected one of {', '.join(_ACTIVATIONS)}")
    return s.Activation(
        kind=_ACTIVATIONS[kind],
        is_not_gated=not gated,
        interleaved=interleaved,
        alpha=1.702 if alpha is None else alpha,
        beta=1.0 if beta is None else beta,
        limit=7.0 if limit is None else limit,
    )


@dataclass
class LoraWeights:
    """Adapters of the local experts: A of them, of rank r; S is 2 for gated experts, else 1.
    Either pair may be left out."""

    w1_a: Any = None
    """[A, L, S * r, H]"""
    w1_b: Any = None
    """[A, L, N, r]"""
    w2_a: Any = None
    """[A, L, r, I]"""
    w2_b: Any = None
    """[A, L, H, r]"""
    scaling: Any = None
    """f32 [A]: alpha / rank"""


def weights_struct(
    w1: Any, w2: Any, quant: QuantConfig | None = None, lora: LoraWeights | None = None
) -> s.ExpertWeights:
    """What is None is left out, as an update takes it."""
    config = QuantConfig() if quant is None else instance(quant, QuantConfig, "quant")
    a1, a2, q1, q2 = (
        instance(getattr(config, name), QuantOperand, f"quant.{name}")
        for name in ("a1", "a2", "w1", "w2")
    )

    def values(x: Any, operand: QuantOperand) -> Any:
        return None if x is None else pointer(view_bytes_as(x, operand._storage()))

    struct = s.ExpertWeights(w1=values(w1, q1), w2=values(w2, q2))
    if quant is not None:
        struct.a1, struct.a2 = pointer(a1._struct()), pointer(a2._struct())
        struct.quant_w1, struct.quant_w2 = pointer(q1._struct()), pointer(q2._struct())
    if lora is not None:
        given = vars(instance(lora, LoraWeights, "lora"))
        parts = {name: view_pointer(x) for name, x in given.items() if x is not None}
        struct.lora = pointer(s.LoraWeights(**parts))
    return struct


@dataclass(frozen=True)
class ExpertsInfo:
    """What experts are, fixed for their life."""

    name: str
    """The implementation, as "cpu_avx2"."""
    num_experts: int
    num_local_experts: int
    topk: int
    hidden: int
    intermediate: int
    dtype: str
    format: str
    retains_weights: bool
    """Whether the caller must keep the weights alive and in place; the object then holds them."""


class _Frame:
    """The structs of a call, which are kept for the next one."""

    def __init__(self) -> None:
        self.hidden, self.ids, self.weights, self.map, self.out = (s.Tensor() for _ in range(5))
        tensors = (self.hidden, self.ids, self.weights, self.map, self.out)
        self.refs: tuple[Any, ...] = tuple(byref(tensor) for tensor in tensors)


class Experts(Handle):
    """The experts of this process, on the device of `stream`, or else of `device`, or else of w1.

    w1 [L, N, H] and w2 [L, H, I] are bf16, f16, f32, or quantized as `quant` says (bytes are then
    read as the type of its format).  `dtype` is that of hidden states and outputs; None: that of
    w1, and bf16 where w1 is quantized.  Gated experts have gate and up rows in w1, one after the
    other or `interleaved`.  `activation`: silu, gelu, gelu_tanh, swiglu_oai, relu2, swiglu_step;
    alpha, beta and limit are those of the two swiglus.
    `num_experts` is E where only L of them are here.

    The weights are copied or packed, and may be freed afterwards; with `lends_weights` the experts
    compute on the caller's memory, which they keep alive and whose values update() follows.

    One thread at a time may use an object.  Raises InvalidArgument for shapes and types that do not
    fit, and Unsupported, naming every implementation that was tried and why it refused."""

    _destroy = lib.experts_destroy

    def __init__(
        self,
        w1: SupportsDLPack,
        w2: SupportsDLPack,
        *,
        topk: int,
        num_experts: Optional[int] = None,
        dtype: Any = None,
        format: str = "standard",
        activation: str = "silu",
        gated: bool = True,
        interleaved: bool = False,
        alpha: Optional[float] = None,
        beta: Optional[float] = None,
        limit: Optional[float] = None,
        quant: Optional[QuantConfig] = None,
        lora: Optional[LoraWeights] = None,
        lends_weights: bool = False,
        implementation: Optional[str] = None,
        device: Any = None,
        stream: Any = None,
    ) -> None:
        weights = weights_struct(w1, w2, quant, lora)
        options = s.ExpertsOptions(
            num_experts=num_experts or 0,
            topk=topk,
            in_dtype=weights_dtype(weights.w1.contents) if dtype is None else dtype_code(dtype),
            format=format_code(format),
            activation=pointer(
                activation_struct(activation, gated, interleaved, alpha, beta, limit)
            ),
            lends_weights=lends_weights,
            implementation=implementation,
        )
        where = stream_of_device(stream, device, weights.w1.contents.device)
        self._handle = create(lib.experts_create, weights, options, where)
        info = s.ExpertsInfo()
        check(lib.experts_get_info(self._handle, byref(info)))
        self.info = ExpertsInfo(
            name=info.name.decode(),
            num_experts=info.num_experts,
            num_local_experts=info.num_local_experts,
            topk=info.topk,
            hidden=info.hidden,
            intermediate=info.intermediate,
            dtype=NAMES[info.in_dtype],
            format="batched" if info.format == s.BATCHED else "standard",
            retains_weights=bool(info.retains_weights),
        )
        self._lent = (w1, w2, quant, lora) if info.retains_weights else None
        self._frames: list[_Frame] = []

    def __call__(
        self,
        hidden: SupportsDLPack,
        topk_ids: SupportsDLPack,
        topk_weights: SupportsDLPack,
        *,
        expert_map: Optional[SupportsDLPack] = None,
        out: Any = None,
        stream: Any = None,
    ) -> Any:
        """All experts of the tokens, weighted and summed; of standard experts.

        hidden [T, H] of `dtype`; topk_ids i32 or i64 [T, K], -1 = masked; topk_weights f32 [T, K].
        expert_map i32 [E] maps global ids to local ones, -1 for experts elsewhere; without it ids
        are local.  Returns [T, H] of the dtype of hidden, in `out` if it is given.
        On a GPU the work is enqueued, on torch's current stream unless `stream` names one."""
        frame = self._frames.pop() if self._frames else _Frame()
        kind = kind_of(hidden)
        if out is None:
            out = kind.empty_like(hidden)
        keep = (
            kind.fill(frame.hidden, hidden),
            kind_of(topk_ids).fill(frame.ids, topk_ids),
            kind_of(topk_weights).fill(frame.weights, topk_weights),
            kind_of(out).fill(frame.out, out),
            None if expert_map is None else kind_of(expert_map).fill(frame.map, expert_map),
        )
        a, b, c, d, e = frame.refs
        where = kind.stream_of(hidden) if stream is None else named_stream(stream)
        mapped = None if expert_map is None else d
        check(lib.experts_forward(self._handle or self._get(), a, b, c, mapped, e, where))
        del keep
        self._frames.append(frame)
        return out

    def apply(
        self,
        x: SupportsDLPack,
        *,
        x_scale: Optional[SupportsDLPack] = None,
        topk_ids: Optional[SupportsDLPack] = None,
        topk_weights: Optional[SupportsDLPack] = None,
        expert_num_tokens: Optional[SupportsDLPack] = None,
        expert_map: Optional[SupportsDLPack] = None,
        lora_ids: Optional[SupportsDLPack] = None,
        a2_scale: Optional[SupportsDLPack] = None,
        out: Any = None,
        stream: Any = None,
    ) -> Any:
        """Computes the rows of a dispatch.

        Standard: x [M, H], topk_ids [M, K] and topk_weights f32 [M, K] give [M, H]: each row's
        weighted sum over the experts here, as combine takes it.  Batched: x [L, rows, H] and
        expert_num_tokens i32 [L] give [L, rows, H], unweighted.
        x_scale belongs to rows that travelled quantized; lora_ids i32 name each row's adapter;
        a2_scale f32 has a scale for each row where a2 has calls_bring_scales."""
        given = view(x)
        fields = {
            "x_scale": x_scale,
            "topk_ids": topk_ids,
            "topk_weights": topk_weights,
            "expert_num_tokens": expert_num_tokens,
            "expert_map": expert_map,
            "lora_ids": lora_ids,
            "a2_scale": a2_scale,
        }
        pointers = {name: view_pointer(t) for name, t in fields.items() if t is not None}
        input = s.ExpertsInput(x=pointer(given), **pointers)
        if out is None:
            shape = (*given.shape[: given.num_dims - 1], self.info.hidden)
            out = empty(kind_of(x), dtype_code(self.info.dtype), shape, given.device)
        check(lib.experts_apply(self._get(), input, view(out), stream_handle(stream, x)))
        return out

    def update(
        self,
        w1: Optional[SupportsDLPack] = None,
        w2: Optional[SupportsDLPack] = None,
        *,
        quant: Optional[QuantConfig] = None,
        lora: Optional[LoraWeights] = None,
        stream: Any = None,
    ) -> None:
        """Replaces the values of weights in place, between calls, so that a recorded CUDA graph
        computes with the new ones.  Shapes and types are those of before; what is None stays."""
        weights = weights_struct(w1, w2, quant, lora)
        given = w1 if w1 is not None else w2
        where = stream_handle(stream, given) if given is not None else named_stream(stream)
        check(lib.experts_update(self._get(), weights, where))

    def __repr__(self) -> str:
        return f"moebius.Experts({self.info})"


def weights_dtype(w1: s.Tensor) -> int:
    """The type of hidden states: that of w1, or bf16 where w1 is quantized."""
    code: int = w1.dtype
    return code if code in (s.F32, s.F16, s.BF16) else s.BF16


def stream_of_device(stream: Any, device: Any, otherwise: s.Device) -> int | None:
    """The stream that says where an object works."""
    if stream is not None:
        return named_stream(stream)
    return current_stream(otherwise if device is None else device_struct(device))
