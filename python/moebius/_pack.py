# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Writes a struct moebius_tensor in one step, which takes a fifth of the time of its fields."""
from __future__ import annotations

import struct
from collections.abc import Sequence

from . import _structs as s
from .errors import InvalidArgument

MAX_DIMS = 4
NO_STRIDES = (0, 0, 0, 0)

# data, dtype, device, num_dims, flags, shape, strides
_FIELDS = struct.Struct("=QiiiiI4x8q")
_DATA = s.Tensor.data.offset
assert _DATA + _FIELDS.size == s.Tensor.strides.offset + s.Tensor.strides.size
_MISSING = ((0, 0, 0, 0), (0, 0, 0), (0, 0), (0,), ())
_pack_into = _FIELDS.pack_into


# The same for contiguous tensors, by their number of dimensions: what follows is 0.
_CONTIGUOUS = [
    struct.Struct(f"=QiiiiI4x{dims}q{8 * (8 - dims)}x").pack_into for dims in range(MAX_DIMS + 1)
]


def pack_contiguous(
    tensor: s.Tensor, data: int, dtype: int, device_type: int, device_index: int, shape: Sequence[int]
) -> None:
    """The same as pack() without flags and strides, in less time."""
    num_dims = len(shape)
    if num_dims > MAX_DIMS:
        raise InvalidArgument(f"a tensor has {num_dims} dimensions, expected at most {MAX_DIMS}")
    _CONTIGUOUS[num_dims](tensor, _DATA, data, dtype, device_type, device_index, num_dims, 0, *shape)


def pack(
    tensor: s.Tensor,
    data: int,
    dtype: int,
    device_type: int,
    device_index: int,
    flags: int,
    shape: Sequence[int],
    strides: Sequence[int],
) -> None:
    """Sets all fields.  Strides are in elements; NO_STRIDES stands for contiguous rows."""
    num_dims = len(shape)
    if num_dims > MAX_DIMS:
        raise InvalidArgument(f"a tensor has {num_dims} dimensions, expected at most {MAX_DIMS}")
    missing = _MISSING[num_dims]
    if strides is not NO_STRIDES:
        strides = (*strides, *missing)
    _pack_into(
        tensor,
        _DATA,
        data,
        dtype,
        device_type,
        device_index,
        num_dims,
        flags,
        *shape,
        *missing,
        *strides,
    )
