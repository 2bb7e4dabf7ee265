# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What torch has and what it lacks."""
from __future__ import annotations

from typing import Any, Optional

import torch

from ..errors import InvalidArgument
from ..tensors import Array

# Functions of these are not typed.
cuda: Any = torch.cuda
distributed: Any = torch.distributed
inference_mode: Any = torch.inference_mode

topk_idx_t: Any = torch.int64
"""The dtype of ids.  Calls take torch.int32, too, and give back what they were given."""

has_fp8: bool = hasattr(torch, "float8_e4m3fn")
# A torch without the type gets the bytes.
fp8_dtype: Any = getattr(torch, "float8_e4m3fn", torch.uint8)


def maker_of(dtype: Any, device: Any, method: str = "new_empty") -> Any:
    """A function of a shape that makes memory of a type.  It takes half as long as torch.empty(),
    which reads the type and the device in each call."""
    with inference_mode(False):
        return getattr(torch.empty(0, dtype=dtype, device=device), method)


def as_fp8(x: Any) -> Any:
    """The tensor as one of e4m3 for calls of the library."""
    return x if has_fp8 else Array.from_dlpack(x, "f8e4m3")


def expect_tensor(x: Any, what: str, dims: int) -> Any:
    """The tensor, if it is one with so many dimensions."""
    if not isinstance(x, torch.Tensor):
        raise InvalidArgument(f"{what} is a {type(x).__name__}, expected a torch.Tensor")
    if x.dim() != dims:
        raise InvalidArgument(f"{what} has shape {list(x.shape)}, expected {dims} dimensions")
    return x


def split_scales(x: Any) -> tuple[Any, Optional[Any]]:
    """Rows, and the scales that came with them as a pair."""
    rows, scales = x if isinstance(x, (tuple, list)) else (x, None)
    expect_tensor(rows, "x", 2)
    if scales is not None:
        expect_tensor(scales, "the scales of x", 2)
        if scales.shape[0] != rows.shape[0]:
            raise InvalidArgument(
                f"x has {rows.shape[0]} rows and its scales have {scales.shape[0]}"
            )
    return rows, scales


def join_scales(payloads: list[Any]) -> Any:
    """The reverse of split_scales()."""
    return payloads[0] if len(payloads) == 1 else tuple(payloads)


def list_biases(bias: Any) -> list[Any]:
    """None, a tensor, or a pair as a list."""
    if bias is None:
        return []
    if isinstance(bias, (tuple, list)):
        if len(bias) > 2:
            raise InvalidArgument(f"bias has {len(bias)} tensors, expected at most 2")
        return [part for part in bias if part is not None]
    return [bias]


def padded(x: Any, room: int) -> Any:
    """The rows at the front of a tensor with room for more."""
    num_rows = x.shape[0]
    if num_rows == room:
        return x
    if num_rows > room:
        raise InvalidArgument(f"{num_rows} rows have arrived, and there is room for {room}")
    wide = torch.empty((room, *x.shape[1:]), dtype=x.dtype, device=x.device)
    wide[:num_rows] = x
    return wide
