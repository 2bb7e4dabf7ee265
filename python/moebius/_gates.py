# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Finds out which activation of the library a function of torch computes.

Model families write the activation of their experts in many ways: as the name of a function, as a
module, or as a method that clamps, and keep its numbers under many names.  So the function is not
read; it is computed at some points, and the results are compared with what the library computes.
A function that agrees at all points with none of them is not known."""
from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Optional

import torch
from torch.nn import functional as F

Function = Callable[[torch.Tensor], Any]

# Further than any limit that a model clamps at, and still far from the end of f16.
_FAR = 1e4
_NEAR = 0.25
# How far a result may be from the formula, relative to 1 + its size, for each 1 + the size of up:
# rounding of f32 stays below 1e-6, and the closest pair, gelu and its tanh approximation, differs
# by 1e-4.
_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Activation:
    """An activation of moebius.Experts, under the names of its arguments."""

    kind: str
    gated: bool
    interleaved: bool = False
    """Whether gate and up columns alternate, instead of gate, then up."""
    alpha: Optional[float] = None
    beta: Optional[float] = None
    limit: Optional[float] = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Those of moebius.Experts, for columns that do not alternate."""
        found = dataclasses.asdict(self)
        del found["interleaved"]
        return {"activation": found.pop("kind"), **found}


_PLAIN: dict[str, Function] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu2": lambda x: F.relu(x).square(),
}
# The library has no gated relu2.
_GATED = ("silu", "gelu", "gelu_tanh")


def identify(function: Function, gated: bool, device: torch.device) -> Activation | None:
    """The activation that `function` computes: of [M, N] to [M, I], where N is 2 * I for gated
    experts and I for others; None where the library has no such activation."""
    with torch.no_grad():
        if not gated:
            return _identify_plain(function, device)
        for interleaved in (False, True):
            found = _identify_gated(function, interleaved, device)
            if found is not None:
                return found
    return None


def _points(device: torch.device) -> torch.Tensor:
    far = torch.tensor([-_FAR, -50.0, 50.0, _FAR], dtype=torch.float32)
    return torch.cat([torch.linspace(-12.0, 12.0, 97, dtype=torch.float32), far]).to(device)


def _agree(result: torch.Tensor, expected: torch.Tensor, up: torch.Tensor) -> bool:
    if result.shape != expected.shape:
        return False
    error = (result.float() - expected).abs()
    return bool((error < _TOLERANCE * (1.0 + expected.abs()) * (1.0 + up.abs())).all())


def _identify_plain(function: Function, device: torch.device) -> Activation | None:
    points = _points(device)
    result = function(points[None, :])[0]
    for kind, formula in _PLAIN.items():
        if _agree(result, formula(points), torch.zeros_like(points)):
            return Activation(kind, gated=False)
    return None


def _identify_gated(
    function: Function, interleaved: bool, device: torch.device
) -> Activation | None:
    def compute(gate: torch.Tensor, up: torch.Tensor) -> Any:
        columns = (
            torch.stack([gate, up], dim=1).flatten() if interleaved else torch.cat([gate, up])
        )
        return function(columns[None, :])[0]

    points = _points(device)
    gate = points.repeat_interleave(len(points))
    up = points.repeat(len(points))
    result = compute(gate, up)
    if result.shape != gate.shape:
        return None
    for kind in _GATED:
        if _agree(result, _PLAIN[kind](gate) * up, up):
            return Activation(kind, True, interleaved)
    # Both swiglus are s(gate) * (clamp(up) + beta), where beta is 0 in swiglu_step.
    # Below _NEAR nothing is clamped, and s(gate) is gate * sigmoid(alpha * gate).
    ups = torch.tensor([0.0, _NEAR, _FAR], dtype=torch.float32, device=device)
    at_0, at_near, at_far = compute(torch.full_like(ups, _NEAR), ups).tolist()
    slope = (at_near - at_0) / _NEAR
    if not 0.0 < slope < _NEAR:
        return None
    alpha = _rounded(-math.log(_NEAR / slope - 1.0) / _NEAR)
    beta = _rounded(at_0 / slope)
    limit = _rounded(at_far / slope - beta)
    # Of a function without a clamp, the limit is _FAR or so.  The library wants a number there.
    is_clamped = limit < 0.9 * _FAR
    bound = limit if is_clamped else torch.finfo(torch.float32).max
    clamped_up = up.clamp(-bound, bound)
    clamped_gate = gate.clamp(max=bound)
    oai = clamped_gate * torch.sigmoid(alpha * clamped_gate) * (clamped_up + beta)
    if _agree(result, oai, up):
        return Activation("swiglu_oai", True, interleaved, alpha, beta, bound)
    if is_clamped and _agree(result, F.silu(gate).clamp(max=limit) * clamped_up, up):
        return Activation("swiglu_step", True, interleaved, limit=limit)
    return None


def _rounded(x: float) -> float:
    """The number as a model writes it, without the rounding of the computation."""
    return float(f"{x:.6g}") if abs(x) > 1e-5 else 0.0
