# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Quantizes the weights of experts with the schemes that checkpoints can be loaded with, to the
same codes and scales.

L experts, N rows and K columns of a weight."""
from __future__ import annotations

from ctypes import byref, pointer
from dataclasses import dataclass
from typing import Any, Optional

import torch

from . import _structs as s
from ._dtypes import BITS
from ._library import lib
from .errors import InvalidArgument, check
from .quant import (
    PER_TENSOR,
    PER_TOKEN,
    Group,
    Quantized,
    QuantConfig,
    QuantOperand,
    QuantSpec,
    _quantized_struct,
)
from .tensors import stream_handle, view


@dataclass(frozen=True)
class Scheme:
    """How weights are quantized, and how the activations beside them."""

    format: str
    group: Group
    """Of a weight."""
    weight_group: Optional[Group] = None
    """As QuantOperand takes it; None: the format says it."""
    activation: Optional[str] = None
    activation_group: Optional[Group] = None


_BLOCK = (128, 128)

SCHEMES: dict[str, Scheme] = {
    "fp8_w8a8": Scheme("fp8", _BLOCK, _BLOCK, "fp8", _BLOCK),
    "fp8_w8a8_channel": Scheme("fp8", PER_TOKEN, PER_TOKEN, "fp8", PER_TOKEN),
    "fp8_w8a8_tensor": Scheme("fp8", PER_TENSOR, None, "fp8", PER_TENSOR),
    "int8_w8a8": Scheme("int8", PER_TOKEN, PER_TOKEN, "int8", PER_TOKEN),
    "int8_w8a16": Scheme("int8", PER_TOKEN, PER_TOKEN),
    "int4_w4a16": Scheme("int4", (1, 128)),
    "mxfp4_w4a16": Scheme("mxfp4", (1, 32)),
    **{
        name: Scheme(name, (1, 32), None, name, PER_TENSOR)
        for name in ("mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8")
    },
    "nvfp4": Scheme("nvfp4", (1, 16), None, "nvfp4", PER_TENSOR),
}


def find_scheme(name: str) -> Scheme:
    scheme = SCHEMES.get(name)
    if scheme is None:
        raise InvalidArgument(f"quant is {name}, expected one of {', '.join(SCHEMES)}")
    return scheme


def quantize_experts(
    scheme_name: str,
    w1: torch.Tensor,
    w2: torch.Tensor,
    biases: tuple[Any, Any] = (None, None),
    *,
    gated: bool,
) -> tuple[torch.Tensor, torch.Tensor, QuantConfig]:
    """Gives w1 [L, N, H] and w2 [L, H, I] as bytes, and the config that says how to read them.
    Gate rows come before up rows, and each half is quantized by itself.

    Raises InvalidArgument for an unknown scheme, for weights that are not finite, and where the
    scheme does not fit the shapes."""
    scheme = find_scheme(scheme_name)
    for name, weight in (("w1", w1), ("w2", w2)):
        if not bool(torch.isfinite(weight).all()):
            raise InvalidArgument(f"{name} has NaN or infinity, which {scheme_name} cannot say")
    group, weight_group, activation_group = (
        scheme.group,
        scheme.weight_group,
        scheme.activation_group,
    )
    if scheme.format == "int4":
        group = (1, _int4_group(w1.shape[2], w2.shape[2]))
        weight_group = activation_group = (0, group[1])
    spec = QuantSpec(scheme.format, group)
    operands = []
    values = []
    for weight, bias, num_parts in ((w1, biases[0], 2 if gated else 1), (w2, biases[1], 1)):
        is_whole = group == PER_TENSOR
        codes, scale, global_scale = _quantize_weight(weight, spec, 1 if is_whole else num_parts)
        values.append(codes)
        if is_whole:
            scale = scale.flatten()
        elif group == PER_TOKEN:
            scale = scale.squeeze(2)
        alpha = None
        if global_scale is not None:
            alpha = global_scale.reciprocal()
            alpha = alpha.squeeze(1) if alpha.shape[1] == 1 else alpha
        operands.append(QuantOperand(scheme.format, weight_group, scale, alpha, bias=bias))
    a1 = QuantOperand(scheme.activation, activation_group)
    a2 = QuantOperand(scheme.activation, activation_group)
    return values[0], values[1], QuantConfig(a1, a2, operands[0], operands[1])


def _int4_group(hidden: int, intermediate: int) -> int:
    for group in (128, 64):
        if hidden % group == 0 and intermediate % group == 0:
            return group
    return 32


def _quantize_weight(
    weight: torch.Tensor, spec: QuantSpec, num_parts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Quantizes each of the `num_parts` stretches of rows of each expert by itself.  Gives bytes
    [L, N, ...], scales [L, N or row blocks, column groups] and, of nvfp4, f32 [L, num_parts]."""
    num_experts, rows, cols = weight.shape
    part_rows = rows // num_parts
    # Why parts in a dimension of their own: each of them has whole rows of scales.
    parts = weight.reshape(num_experts * num_parts, part_rows, cols)
    shapes = [s.Tensor() for _ in range(4)]
    names = ("values", "scale", "zero_point", "global_scale")
    outputs = s.Quantized(**{name: pointer(shape) for name, shape in zip(names, shapes)})
    struct = spec._struct()
    device = view(weight).device
    check(lib.quantized_shapes(byref(struct), part_rows, cols, device, byref(outputs)))
    values, scale, _, global_scale = (_room_for(shape, parts) for shape in shapes)
    stream = stream_handle(None, weight)
    for i, part in enumerate(parts):
        out = Quantized(
            spec,
            values[i],
            scale[i],
            global_scale=None if global_scale is None else global_scale[i],
        )
        check(lib.quantize(view(part), struct, _quantized_struct(out), None, None, stream))
    return (
        values.view(num_experts, rows, -1),
        scale.view(num_experts, -1, scale.shape[-1]),
        None if global_scale is None else global_scale.view(num_experts, num_parts),
    )


def _room_for(shape: s.Tensor, parts: torch.Tensor) -> Any:
    """A tensor for an output of all parts: floats, or bytes of other types; None for none."""
    if shape.num_dims < 0:
        return None
    sizes = list(shape.shape[: shape.num_dims])
    dtype = torch.float32
    if shape.dtype != s.F32:
        dtype = torch.uint8
        sizes[-1] = sizes[-1] * BITS[shape.dtype] // 8
    return torch.empty([len(parts), *sizes], dtype=dtype, device=parts.device)
