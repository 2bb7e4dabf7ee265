# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Reads experts modules of transformers: where their weights are, how these lie in memory, which
activation the experts use, and whether the weights have changed.

E experts, H hidden, I intermediate size of an expert, N is 2 * I for gated experts, else I."""
from __future__ import annotations

from typing import Any, Tuple

import torch

from ._gates import Activation, identify
from .errors import InvalidArgument, Unsupported

# What a parameter was when it was read: object, address, version, dtype.  A move to another device
# changes the address, and so does a change of the shape.
Mark = Tuple[int, int, int, torch.dtype]


def label(module: torch.nn.Module) -> str:
    """Names a module in messages: "mixtral (MixtralExperts)"."""
    family = getattr(getattr(module, "config", None), "model_type", None)
    name = type(module).__name__
    return name if family is None else f"{family} ({name})"


class ExpertModule:
    """An experts module, as the decorator use_experts_implementation of transformers makes it.

    Its weights are given out as moebius.Experts takes them: w1 [E, N, H] with all gate rows before
    all up rows, w2 [E, H, I], biases [E, N] and [E, H].  A tensor that lies this way is lent,
    others are copied.

    Raises Unsupported, naming the module, where the library cannot compute what it computes."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.label = label(module)
        self.is_gated = bool(getattr(module, "has_gate", True))
        self.is_transposed = bool(getattr(module, "is_transposed", False))
        first = "gate_up_proj" if self.is_gated else "up_proj"
        self.has_bias = bool(getattr(module, "has_bias", hasattr(module, first + "_bias")))
        self._names = [first, "down_proj"]
        if self.has_bias:
            self._names += [first + "_bias", "down_proj_bias"]
        # Modules lend this dict, so that reading it sees parameters that are replaced later.
        self._parameters: Any = module._parameters
        self._check(module)
        self.activation = self._identify(module)
        w1 = self._parameters[first]
        self.num_experts: int = w1.shape[0]
        self.hidden: int = w1.shape[1 if self.is_transposed else 2]

    def _check(self, module: torch.nn.Module) -> None:
        if getattr(module, "has_post_expert_norm", False):
            raise Unsupported(f"{self.label} normalizes the output of each expert")
        for name in self._names:
            parameter = self._parameters.get(name)
            if parameter is None:
                raise Unsupported(
                    f"{self.label} has no parameter {name}, or an adapter computes it: merge "
                    "adapters into the weights first"
                )
            if type(parameter) not in (torch.nn.Parameter, torch.Tensor):
                raise Unsupported(
                    f"{name} of {self.label} is a {type(parameter).__name__}, expected a Parameter"
                )
            if parameter.dtype not in (torch.float32, torch.bfloat16, torch.float16):
                raise Unsupported(
                    f"{name} of {self.label} is {parameter.dtype}, expected float32, bfloat16 or "
                    "float16"
                )
            if parameter.device.type not in ("cpu", "cuda"):
                raise Unsupported(
                    f"{name} of {self.label} is on {parameter.device}, expected cpu or cuda"
                )
            expected = 3 if name in self._names[:2] else 2
            if parameter.dim() != expected:
                raise InvalidArgument(
                    f"{name} of {self.label} has {parameter.dim()} dimensions, expected {expected}"
                )

    def _identify(self, module: torch.nn.Module) -> Activation:
        if self.is_gated:
            function: Any = getattr(module, "_apply_gate", None) or _default_gate(module)
        else:
            function = module.act_fn
        device = self._parameters[self._names[0]].device
        found = identify(function, self.is_gated, device)
        if found is None:
            what = getattr(module, "act_fn", None)
            name = getattr(what, "__name__", type(what).__name__) if what is not None else "its own"
            gate = "gated " if self.is_gated else ""
            raise Unsupported(
                f"{self.label} has a {gate}activation ({name}) that Moebius does not compute: use "
                'another experts_implementation, such as "grouped_mm"'
            )
        return found

    @property
    def device(self) -> torch.device:
        device: torch.device = self._parameters[self._names[0]].device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self._parameters[self._names[0]].dtype
        return dtype

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [self._parameters[name] for name in self._names]

    @property
    def lies_as_wanted(self) -> bool:
        """Whether w1() and w2() lend the parameters instead of copying them."""
        return (
            not self.is_transposed
            and not self.activation.interleaved
            and all(self._parameters[name].is_contiguous() for name in self._names)
        )

    def marks(self) -> tuple[Mark, ...]:
        """What changes when the weights change or move.  Writes through `.data` do not count, nor
        do writes to inference tensors, which have no version."""
        parameters = self._parameters
        return tuple(
            [
                (
                    id(p := parameters[name]),
                    p.data_ptr(),
                    -1 if p.is_inference() else p._version,
                    p.dtype,
                )
                for name in self._names
            ]
        )

    def w1(self, experts: slice = slice(None)) -> torch.Tensor:
        """[E, N, H]: gate rows, then up rows."""
        weight = self._parameters[self._names[0]].detach()[experts]
        return self._in_order(weight.transpose(1, 2) if self.is_transposed else weight)

    def w2(self, experts: slice = slice(None)) -> torch.Tensor:
        """[E, H, I]"""
        weight: torch.Tensor = self._parameters["down_proj"].detach()[experts]
        return (weight.transpose(1, 2) if self.is_transposed else weight).contiguous()

    def biases(self, experts: slice = slice(None)) -> tuple[Any, Any]:
        """[E, N] and [E, H], or None."""
        if not self.has_bias:
            return None, None
        first = self._parameters[self._names[2]].detach()[experts]
        second = self._parameters["down_proj_bias"].detach()[experts]
        return self._in_order(first), second.contiguous()

    def _in_order(self, rows: torch.Tensor) -> torch.Tensor:
        if self.activation.interleaved:
            rows = torch.cat([rows[:, 0::2], rows[:, 1::2]], dim=1)
        return rows.contiguous()

    def empty_parameters(self) -> None:
        """Frees the memory of the parameters."""
        for parameter in self.parameters:
            parameter.data = parameter.data.new_empty(0)


def _default_gate(module: torch.nn.Module) -> Any:
    act_fn: Any = module.act_fn

    def gate(columns: torch.Tensor) -> torch.Tensor:
        gates, ups = columns.chunk(2, dim=-1)
        result: torch.Tensor = act_fn(gates) * ups
        return result

    return gate
