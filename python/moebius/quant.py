# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Quantization: matrices to values and scales and back, and how the operands of experts are
quantized.  docs/formats.md has every format byte by byte.

Formats: fp8 (e4m3), int8, int4, mxfp4, mxfp6_e3m2, mxfp6_e2m3, mxfp8, nvfp4.
A group (rows, columns) says how many elements share a scale; -1 stands for all of a dimension."""
from __future__ import annotations

from ctypes import byref, pointer
from dataclasses import dataclass, field
from typing import Any, Optional, Tuple

from . import _structs as s
from ._dtypes import BITS, NAMES, dtype_code
from ._library import lib
from ._values import instance
from .errors import InvalidArgument, check
from .tensors import SupportsDLPack, empty, kind_of, optional_view, stream_handle, view

__all__ = [
    "PER_TENSOR",
    "PER_TOKEN",
    "QuantConfig",
    "QuantOperand",
    "QuantSpec",
    "Quantized",
    "dequantize",
    "quantize",
]

Group = Tuple[int, int]
PER_TENSOR: Group = (-1, -1)
PER_TOKEN: Group = (1, -1)
"""A scale for each row; the rows of a weight are its output channels."""

_FORMATS = {
    "fp8": s.FP8,
    "int8": s.INT8,
    "int4": s.INT4,
    "mxfp4": s.MXFP4,
    "mxfp6_e3m2": s.MXFP6_E3M2,
    "mxfp6_e2m3": s.MXFP6_E2M3,
    "mxfp8": s.MXFP8,
    "nvfp4": s.NVFP4,
}
_STORAGE = {
    "fp8": s.F8E4M3,
    "int8": s.I8,
    "int4": s.U4,
    "mxfp4": s.F4E2M1,
    "mxfp6_e3m2": s.F6E3M2,
    "mxfp6_e2m3": s.F6E2M3,
    "mxfp8": s.F8E4M3,
    "nvfp4": s.F4E2M1,
}
_GROUPS = {"nvfp4": (1, 16), **{name: (1, 32) for name in _FORMATS if name.startswith("mx")}}


def _format_code(name: str) -> int:
    if name not in _FORMATS:
        raise InvalidArgument(f"format is {name}, expected one of {', '.join(_FORMATS)}")
    return _FORMATS[name]


def _scale_code(format: str) -> int | None:
    """The type of scales that are bytes."""
    if format == "nvfp4":
        return s.F8E4M3
    return s.E8M0 if format.startswith("mx") else None


def view_bytes_as(x: Any, code: int | None) -> s.Tensor:
    """The tensor as a struct; bytes (uint8) are read as the type `code`, if there is one."""
    tensor = view(x)
    if code is None or tensor.dtype != s.U8 or code == s.U8:
        return tensor
    if BITS[code] < 8:
        last = tensor.num_dims - 1
        if any(tensor.strides) or last < 0:
            raise InvalidArgument(f"bytes of {NAMES[code]} are not contiguous rows")
        tensor.shape[last] = tensor.shape[last] * 8 // BITS[code]
    tensor.dtype = code
    return tensor


@dataclass(frozen=True)
class QuantSpec:
    """How a matrix [rows, columns] is quantized."""

    format: str = "fp8"
    group: Optional[Group] = None
    """None: (1, 32) for mx formats, (1, 16) for nvfp4, else one scale per tensor."""
    power_of_two_scale: bool = False
    """fp8 blocks: scales are rounded up to powers of two."""
    asymmetric: bool = False
    """int4: codes from minimum to maximum with a zero point."""
    global_scale_per_row: bool = False
    """nvfp4."""

    def _struct(self) -> s.QuantSpec:
        rows, cols = self.group if self.group else _GROUPS.get(self.format, PER_TENSOR)
        return s.QuantSpec(
            format=_format_code(self.format),
            group_rows=rows,
            group_cols=cols,
            power_of_two_scale=self.power_of_two_scale,
            asymmetric=self.asymmetric,
            global_scale_per_row=self.global_scale_per_row,
        )


@dataclass
class Quantized:
    """A quantized matrix: values [rows, columns], scale, and what its format has besides."""

    spec: QuantSpec
    values: Any
    scale: Any
    zero_point: Any = None
    global_scale: Any = None
    kind: Any = field(default=None, repr=False, compare=False)
    """Whose tensors dequantize() gives: those of the library that x was of."""


def quantize(
    x: SupportsDLPack,
    spec: QuantSpec | str = QuantSpec(),
    *,
    static_scale: Optional[SupportsDLPack] = None,
    global_scale: Optional[SupportsDLPack] = None,
    stream: Any = None,
) -> Quantized:
    """Quantizes x [rows, columns] f32, bf16 or f16.

    `static_scale` f32 [1] (fp8 and int8 per tensor) and `global_scale` f32 [1] (nvfp4) replace what
    is computed from x.  Raises InvalidArgument where the spec does not fit the matrix."""
    if isinstance(spec, str):
        spec = QuantSpec(spec)
    spec_struct = instance(spec, QuantSpec, "spec")._struct()
    given = view(x)
    if given.num_dims != 2:
        raise InvalidArgument(f"x has {given.num_dims} dimensions, expected 2")
    rows, cols = given.shape[0], given.shape[1]
    shapes = [s.Tensor() for _ in range(4)]
    out = s.Quantized(**{part: pointer(shape) for part, shape in zip(_PARTS, shapes)})
    check(lib.quantized_shapes(byref(spec_struct), rows, cols, given.device, byref(out)))
    kind = kind_of(x)
    values, scale, zero_point, own_global_scale = (
        empty(kind, shape.dtype, tuple(shape.shape[: shape.num_dims]), shape.device)
        if shape.num_dims >= 0
        else None
        for shape in shapes
    )
    quantized = Quantized(spec, values, scale, zero_point, own_global_scale, kind)
    check(
        lib.quantize(
            given,
            spec_struct,
            _quantized_struct(quantized),
            optional_view(static_scale),
            optional_view(global_scale),
            stream_handle(stream, x),
        )
    )
    return quantized


_PARTS = ("values", "scale", "zero_point", "global_scale")


def _quantized_struct(q: Quantized) -> s.Quantized:
    types = {"values": _STORAGE[q.spec.format], "scale": _scale_code(q.spec.format)}
    return s.Quantized(
        **{
            part: pointer(view_bytes_as(x, types.get(part)))
            for part in _PARTS
            if (x := getattr(q, part)) is not None
        }
    )


def dequantize(q: Quantized, dtype: Any = "f32", *, out: Any = None, stream: Any = None) -> Any:
    """The values [rows, columns] that q stands for, rounded once to `dtype` (f32, bf16 or f16), or
    to that of `out`."""
    spec = instance(q, Quantized, "q").spec._struct()
    struct = _quantized_struct(q)
    if out is None:
        values = struct.values.contents
        out = empty(
            q.kind or kind_of(q.scale),
            dtype_code(dtype),
            (values.shape[0], values.shape[1]),
            values.device,
        )
    check(lib.dequantize(struct, spec, view(out), stream_handle(stream, q.scale)))
    return out


@dataclass
class QuantOperand:
    """How an activation or a weight of experts is quantized.  L local experts, N rows and K columns
    of a weight, g elements of a group.

    Values and scales may be given as bytes (uint8); they are read as the types of the format."""

    format: Optional[str] = None
    """None: not quantized."""
    group: Optional[Group] = None
    scale: Any = None
    """Weights: [L] per tensor, [L, N] per channel, [L, row blocks, column blocks], or
    [L, N, ceil(K / g)] per group.  Activations: only where it is static, f32 [1], of a2 also [L]."""
    alpha_or_gscale: Any = None
    """nvfp4.  Activations: the global scale, f32 [1] or [L].  Weights: f32 [L] or [L, 2], what
    sums are multiplied with."""
    zero_point: Any = None
    """int4 and int8 weights: u8, with the shape of the scale."""
    bias: Any = None
    """Weights: [L, N]."""
    power_of_two_scale: bool = False
    """fp8 activations in blocks: scales are rounded up to powers of two."""
    calls_bring_scales: bool = False
    """a2 in fp8 or int8 per token: every call brings these scales (a2_scale), one for each row,
    instead of taking them from the rows."""

    def _storage(self) -> int | None:
        """The type of values that are given as bytes."""
        return None if self.format is None else _STORAGE.get(self.format)

    def _struct(self) -> s.QuantOperand:
        rows, cols = self.group or (0, 0)
        scale_type = None if self.format is None else _scale_code(self.format)
        tensors = {
            "scale": self.scale if self.scale is None else view_bytes_as(self.scale, scale_type),
            "alpha_or_gscale": optional_view(self.alpha_or_gscale),
            "zero_point": optional_view(self.zero_point),
            "bias": optional_view(self.bias),
        }
        return s.QuantOperand(
            format=s.NOT_QUANTIZED if self.format is None else _format_code(self.format),
            group_rows=rows,
            group_cols=cols,
            power_of_two_scale=self.power_of_two_scale,
            calls_bring_scales=self.calls_bring_scales,
            **{name: pointer(x) for name, x in tensors.items() if x is not None},
        )


@dataclass
class QuantConfig:
    """How the two activations and the two weights of experts are quantized, with their biases.

    a1 is what comes in, a2 what goes into the second GEMM.  The functions below build the usual
    schemes; fill the four operands by hand for others."""

    a1: QuantOperand = field(default_factory=QuantOperand)
    a2: QuantOperand = field(default_factory=QuantOperand)
    w1: QuantOperand = field(default_factory=QuantOperand)
    w2: QuantOperand = field(default_factory=QuantOperand)

    @staticmethod
    def biased(w1_bias: Any, w2_bias: Any) -> QuantConfig:
        """Nothing is quantized; biases [L, N] and [L, H]."""
        return QuantConfig(w1=QuantOperand(bias=w1_bias), w2=QuantOperand(bias=w2_bias))

    @staticmethod
    def of_weights(
        format: str,
        w1_scale: Any,
        w2_scale: Any,
        *,
        group: Optional[Group] = None,
        activation: Optional[str] = None,
        activation_group: Optional[Group] = None,
        a1_scale: Any = None,
        a2_scale: Any = None,
        w1_zero_point: Any = None,
        w2_zero_point: Any = None,
        w1_bias: Any = None,
        w2_bias: Any = None,
    ) -> QuantConfig:
        """Weights of a format with these scales, and activations that stay as they are or are
        quantized to `activation` in each call.

        "fp8" with group (128, 128), activation "fp8" and activation_group (1, 128) is DeepSeek-V3;
        "fp8" or "int8" with PER_TOKEN for both is per channel and per token; "int4" with group
        (1, 128) is GPTQ and AWQ; "mxfp4" is gpt-oss."""
        a1 = QuantOperand(activation, activation_group, a1_scale)
        a2 = QuantOperand(activation, activation_group, a2_scale)
        w1 = QuantOperand(
            format, group, w1_scale, zero_point=w1_zero_point, bias=w1_bias
        )
        w2 = QuantOperand(
            format, group, w2_scale, zero_point=w2_zero_point, bias=w2_bias
        )
        return QuantConfig(a1, a2, w1, w2)
