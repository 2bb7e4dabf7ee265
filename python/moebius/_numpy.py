# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""numpy arrays as tensors of the library, and the other way.  Imported when numpy is loaded."""
from __future__ import annotations

import ctypes
import sys
from typing import Any

from . import _structs as s
from ._dtypes import BITS, FOREIGN_NAMES, NAMES
from ._pack import NO_STRIDES, pack
from .errors import InvalidArgument, Unsupported

np: Any = sys.modules["numpy"]
addressof = ctypes.addressof
from_buffer = ctypes.c_char.from_buffer

_codes: dict[Any, int] = {}
_dtypes: dict[int, Any] = {}


def _learn_types() -> None:
    """Finds the types of numpy, and those of ml_dtypes if that is loaded."""
    more = sys.modules.get("ml_dtypes")
    for name, code in FOREIGN_NAMES.items():
        try:
            dtype = np.dtype(getattr(more, name, name))
        except TypeError:
            continue
        _codes[dtype] = code
        _dtypes[code] = dtype


_learn_types()


def dtype_of(code: int) -> Any:
    """The numpy dtype, or None where numpy has none."""
    if code not in _dtypes:
        _learn_types()
    return _dtypes.get(code)


def _code_of(x: Any) -> int:
    if x.dtype not in _codes:
        _learn_types()
    code = _codes.get(x.dtype)
    if code is None:
        raise InvalidArgument(
            f"a numpy array has dtype {x.dtype}, expected one of {', '.join(map(str, _codes))}, "
            "or bits of another type as moebius.Array.from_numpy(x, dtype)"
        )
    return code


def fill(tensor: s.Tensor, x: Any) -> Any:
    """Sets the struct to the array; what comes back must live as long as the struct is used."""
    code = _codes.get(x.dtype)
    if code is None:
        code = _code_of(x)
    has = x.flags
    flags = 0 if has.writeable else s.READ_ONLY
    strides: tuple[int, ...] = NO_STRIDES
    if has.c_contiguous:
        if not flags and x.size:  # a quarter of the time of the other way below
            pack(tensor, addressof(from_buffer(x)), code, s.CPU, 0, 0, x.shape, strides)
            return x
    else:
        size = x.itemsize
        strides = tuple(stride // size for stride in x.strides)
        # Strides that are all 0 would mean contiguous rows, and there are no negative ones.
        if not any(strides) or any(stride < 0 or stride % size for stride in x.strides):
            x = np.ascontiguousarray(x)
            strides = NO_STRIDES
            flags = s.READ_ONLY  # what a call wrote to a copy would be lost
    pack(
        tensor,
        x.__array_interface__["data"][0],
        code,
        s.CPU,
        0,
        flags,
        x.shape,
        strides,
    )
    return x


def empty(code: int, shape: tuple[int, ...], device: s.Device) -> Any:
    """An array, or None where numpy has no such type."""
    dtype = dtype_of(code)
    return None if dtype is None else np.empty(shape, dtype)


def empty_like(x: Any) -> Any:
    return np.empty(x.shape, x.dtype)


def bits_of(tensor: s.Tensor, keep: Any) -> Any:
    """The memory of a contiguous tensor as unsigned integers; packed types as bytes.  The result
    keeps `keep` alive."""
    if tensor.device.type != s.CPU:
        raise Unsupported("the array is on a GPU, and numpy is not; copy it first")
    shape = list(tensor.shape[: tensor.num_dims])
    bits = BITS[tensor.dtype]
    dtype = np.dtype({16: "u2", 32: "u4", 64: "u8"}.get(bits, "u1"))
    if bits < 8:
        shape[-1] = shape[-1] * bits // 8
    count = 1
    for size in shape:
        count *= size
    if count == 0:
        return np.empty(shape, dtype)
    memory = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(tensor.data)
    memory.keep = keep
    array = np.frombuffer(memory, dtype).reshape(shape)
    array.flags.writeable = not tensor.flags & s.READ_ONLY
    return array


def from_tensor(tensor: s.Tensor, keep: Any) -> Any:
    """The memory as an array of its type, or None where numpy has no such type."""
    dtype = dtype_of(tensor.dtype)
    return None if dtype is None else bits_of(tensor, keep).view(dtype)


def expect_type(code: int) -> None:
    if dtype_of(code) is None:
        raise Unsupported(
            f"numpy has no {NAMES[code]}"
            + (" (import ml_dtypes for it)" if BITS[code] >= 8 else "")
            + "; bits() gives its bits"
        )


def stream_of(x: Any) -> int | None:
    return None
