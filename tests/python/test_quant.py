# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Quantize, dequantize, and experts on quantized weights."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Weights, reference_experts, relative_error, torch

import moebius
from moebius import QuantConfig, QuantSpec

X = np.random.default_rng(3).standard_normal((6, 256)).astype(np.float32)
# The relative error that rounding to each format leaves.
SPECS: list[tuple[QuantSpec, float]] = [
    (QuantSpec("fp8"), 0.04),
    (QuantSpec("fp8", moebius.PER_TOKEN), 0.04),
    (QuantSpec("fp8", (1, 128), power_of_two_scale=True), 0.04),
    (QuantSpec("int8", moebius.PER_TOKEN), 0.02),
    (QuantSpec("int4", (1, 64)), 0.2),
    (QuantSpec("int4", (1, 64), asymmetric=True), 0.2),
    (QuantSpec("mxfp4"), 0.2),
    (QuantSpec("mxfp6_e3m2"), 0.1),
    (QuantSpec("mxfp6_e2m3"), 0.06),
    (QuantSpec("mxfp8"), 0.05),
    (QuantSpec("nvfp4"), 0.2),
    (QuantSpec("nvfp4", global_scale_per_row=True), 0.2),
]


@pytest.mark.parametrize("spec,bound", SPECS, ids=str)
def test_dequantize_gives_nearly_what_was_quantized(spec: QuantSpec, bound: float) -> None:
    quantized = moebius.quantize(X, spec)
    assert quantized.values.shape == X.shape
    assert (quantized.zero_point is not None) == spec.asymmetric
    assert (quantized.global_scale is not None) == (spec.format == "nvfp4")
    back = moebius.dequantize(quantized)
    assert isinstance(back, np.ndarray) and back.dtype == np.float32
    assert 0 < relative_error(back, X) < bound


def test_outputs_and_scales_of_the_caller_are_used() -> None:
    scale = np.float32([0.5])
    quantized = moebius.quantize(np.float32([[1, 2], [3, 4]]), "fp8", static_scale=scale)
    assert quantized.scale.ravel().tolist() == [0.5]
    out = np.zeros((2, 2), np.float16)
    assert moebius.dequantize(quantized, out=out) is out
    assert out.tolist() == [[1, 2], [3, 4]]


def test_values_may_come_back_as_bytes() -> None:
    quantized = moebius.quantize(X, "mxfp4")
    expected = moebius.dequantize(quantized)
    quantized.values = quantized.values.bits().copy()
    quantized.scale = quantized.scale.bits().copy()
    assert quantized.values.dtype == np.uint8 and quantized.values.shape == (6, 128)
    np.testing.assert_array_equal(moebius.dequantize(quantized), expected)
    quantized.values = moebius.Array.from_numpy(quantized.values)
    assert quantized.values.dtype == "u8"
    np.testing.assert_array_equal(moebius.dequantize(quantized), expected)
    quantized.values = np.zeros((6, 256), np.uint8)[:, ::2]
    with pytest.raises(moebius.InvalidArgument, match="bytes of f4e2m1 are not contiguous"):
        moebius.dequantize(quantized)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(moebius.InvalidArgument, match="format is fp7, expected one of fp8"):
        moebius.quantize(X, "fp7")
    with pytest.raises(moebius.InvalidArgument, match="x has 1 dimensions, expected 2"):
        moebius.quantize(X[0], "fp8")
    with pytest.raises(moebius.InvalidArgument):
        moebius.quantize(X[:, :40], "mxfp4")


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_torch_tensors_are_quantized() -> None:
    x = torch.from_numpy(X).bfloat16()
    quantized = moebius.quantize(x, QuantSpec("int8", moebius.PER_TOKEN))
    assert quantized.values.dtype == torch.int8 and quantized.scale.shape == (6, 1)
    back = moebius.dequantize(quantized, torch.bfloat16)
    assert back.dtype == torch.bfloat16 and relative_error(back.float(), x.float()) < 0.02


def stacked(weights: Any, spec: QuantSpec) -> tuple[Any, Any, Any]:
    """The codes of [L, N, K] as bytes, the scales [L, N, groups], and the values they stand for."""
    experts, rows, cols = weights.shape
    q = moebius.quantize(weights.reshape(experts * rows, cols), spec)
    values = q.values.bits() if isinstance(q.values, moebius.Array) else q.values
    scale = q.scale.bits() if isinstance(q.scale, moebius.Array) else q.scale
    return (
        values.reshape(experts, rows, -1),
        scale.reshape(experts, rows, -1),
        moebius.dequantize(q).reshape(weights.shape),
    )


@pytest.mark.parametrize(
    "spec,group",
    [
        (QuantSpec("int4", (1, 32)), (1, 32)),
        (QuantSpec("mxfp4"), None),
        (QuantSpec("fp8", moebius.PER_TOKEN), moebius.PER_TOKEN),
        (QuantSpec("int8", moebius.PER_TOKEN), moebius.PER_TOKEN),
    ],
    ids=str,
)
def test_experts_compute_on_quantized_weights(spec: QuantSpec, group: Any) -> None:
    model = Weights()
    hidden, ids, weights = model.tokens(9)
    w1, w1_scale, w1_values = stacked(model.w1, spec)
    w2, w2_scale, w2_values = stacked(model.w2, spec)
    if spec.group == moebius.PER_TOKEN:
        w1_scale, w2_scale = w1_scale[..., 0], w2_scale[..., 0]
    activation = {"fp8": "fp8", "int8": "int8"}.get(spec.format)
    quant = QuantConfig.of_weights(
        spec.format,
        w1_scale,
        w2_scale,
        group=group,
        activation=activation,
        activation_group=moebius.PER_TOKEN if activation else None,
    )
    experts = moebius.Experts(w1, w2, topk=2, dtype="f32", quant=quant)
    expected = reference_experts(w1_values, w2_values, hidden, ids, weights)
    assert relative_error(experts(hidden, ids, weights), expected) < (0.06 if activation else 1e-2)


def test_experts_compute_on_blocks_of_fp8() -> None:
    model = Weights(experts=2, hidden=256, intermediate=128)
    hidden, ids, weights = model.tokens(5)
    spec = QuantSpec("fp8", (128, 128))
    values, scales, decoded = [], [], []
    for w in (model.w1, model.w2):
        parts = [moebius.quantize(w[expert], spec) for expert in range(2)]
        values.append(np.stack([part.values.bits() for part in parts]))
        scales.append(np.stack([part.scale for part in parts]))
        decoded.append(np.stack([moebius.dequantize(part) for part in parts]))
    quant = QuantConfig.of_weights(
        "fp8", *scales, group=(128, 128), activation="fp8", activation_group=(1, 128)
    )
    quant.a1.power_of_two_scale = quant.a2.power_of_two_scale = True
    experts = moebius.Experts(*values, topk=2, dtype="f32", quant=quant)
    expected = reference_experts(*decoded, hidden, ids, weights)
    assert relative_error(experts(hidden, ids, weights), expected) < 0.06


def test_biases_are_added() -> None:
    model = Weights()
    hidden, ids, weights = model.tokens(3)
    b1, b2 = np.zeros((8, 64), np.float32), model.normal(8, 64)
    experts = moebius.Experts(model.w1, model.w2, topk=2, quant=QuantConfig.biased(b1, b2))
    expected = reference_experts(model.w1, model.w2, hidden, ids, weights)
    for token in range(3):
        expected[token] += weights[token] @ b2[ids[token]]
    assert relative_error(experts(hidden, ids, weights), expected) < 1e-2


def test_calls_may_bring_the_scales_of_gemm2s_rows() -> None:
    model = Weights()
    hidden, ids, weights = model.tokens(5)
    spec = QuantSpec("int8", moebius.PER_TOKEN)
    w1, w1_scale, w1_values = stacked(model.w1, spec)
    w2, w2_scale, w2_values = stacked(model.w2, spec)
    quant = QuantConfig.of_weights(
        "int8",
        w1_scale[..., 0],
        w2_scale[..., 0],
        group=moebius.PER_TOKEN,
        activation="int8",
        activation_group=moebius.PER_TOKEN,
    )
    quant.a2.calls_bring_scales = True
    experts = moebius.Experts(w1, w2, topk=2, dtype="f32", quant=quant)
    scales = np.full(5, 0.05, np.float32)  # 127 of them are more than any value there
    out = experts.apply(hidden, topk_ids=ids, topk_weights=weights, a2_scale=scales)
    expected = reference_experts(w1_values, w2_values, hidden, ids, weights)
    assert relative_error(out, expected) < 0.06
    with pytest.raises(moebius.InvalidArgument):
        experts.apply(hidden, topk_ids=ids, topk_weights=weights)
