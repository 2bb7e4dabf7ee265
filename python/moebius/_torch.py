# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""torch tensors as tensors of the library, and the other way.  Imported when torch is loaded."""
from __future__ import annotations

import ctypes
import sys
from typing import Any, NoReturn

from . import _structs as s
from ._dlpack import ArrayNames, capsule_of, drop_managed
from ._dtypes import BITS, FOREIGN_NAMES, NAMES
from ._pack import NO_STRIDES, pack, pack_contiguous
from ._streams import wrapped_stream
from .errors import InvalidArgument, Unsupported

torch: Any = sys.modules["torch"]
_strided: Any = torch.strided

_dtypes: dict[int, Any] = {
    code: getattr(torch, name) for name, code in FOREIGN_NAMES.items() if hasattr(torch, name)
}
_codes: dict[Any, int] = {dtype: code for code, dtype in _dtypes.items()}
# Two elements of 4 bits are one of torch's, whose shapes count pairs.
_pairs: Any = getattr(torch, "float4_e2m1fn_x2", None)
if _pairs is not None:
    _dtypes[s.F4E2M1] = _pairs

# The stream of the calling thread, as a number.  The function without a leading Stream object is
# what torch's own compiler calls; builds without CUDA do not have it.
raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def dtype_of(code: int) -> Any:
    """The torch dtype, or None where torch has none."""
    return _dtypes.get(code)


def fill(tensor: s.Tensor, x: Any) -> Any:
    """Sets the struct to the tensor; what comes back must live as long as the struct is used."""
    code = _codes.get(x.dtype)
    if code is None or x.layout is not _strided or not x.is_contiguous() or x.is_neg():
        return _fill_unusual(tensor, x, code)
    if x.is_cuda:
        pack_contiguous(tensor, x.data_ptr(), code, s.CUDA, x.get_device(), x.shape)
    elif x.is_cpu:
        pack_contiguous(tensor, x.data_ptr(), code, s.CPU, 0, x.shape)
    else:
        _refuse_device(x)
    return x


def _refuse_device(x: Any) -> NoReturn:
    raise Unsupported(f"a torch tensor is on {x.device}, expected cpu or cuda")


def _fill_unusual(tensor: s.Tensor, x: Any, code: int | None) -> Any:
    """One with strides, with a negation that is still to be done, or of two elements to a byte."""
    if x.layout is not _strided:
        raise InvalidArgument(f"a torch tensor has layout {x.layout}, expected {_strided}")
    given, x = x, x.resolve_neg()
    shape: tuple[int, ...] = x.shape
    strides: tuple[int, ...] = NO_STRIDES
    if not x.is_contiguous():
        strides = x.stride()
        # Strides that are all 0 would mean contiguous rows.
        if code is None or not any(strides):
            x = x.contiguous()
            strides = NO_STRIDES
    if code is None:
        if x.dtype is not _pairs:
            raise InvalidArgument(f"a torch tensor has dtype {x.dtype}, which no call takes")
        code = s.F4E2M1
        shape = (*shape[:-1], 2 * shape[-1])
    flags = 0 if x is given else s.READ_ONLY  # what a call wrote to a copy would be lost
    if x.is_cuda:
        pack(tensor, x.data_ptr(), code, s.CUDA, x.get_device(), flags, shape, strides)
    elif x.is_cpu:
        pack(tensor, x.data_ptr(), code, s.CPU, 0, flags, shape, strides)
    else:
        _refuse_device(x)
    return x


def contiguous(x: Any) -> Any:
    """Makes a tensor that can be read by its data_ptr() alone: its rows follow each other, and its
    negation is done."""
    return x.resolve_neg().contiguous()


def device_of(device: s.Device) -> Any:
    return torch.device("cuda", device.index) if device.type == s.CUDA else torch.device("cpu")


def empty(code: int, shape: tuple[int, ...], device: s.Device) -> Any:
    """A tensor, or None where torch has no such type."""
    dtype = _dtypes.get(code)
    if dtype is None:
        return None
    if code == s.F4E2M1:
        shape = (*shape[:-1], shape[-1] // 2)
    return torch.empty(shape, dtype=dtype, device=device_of(device))


def empty_like(x: Any) -> Any:
    if x.is_contiguous():
        return torch.empty_like(x)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


class _CudaMemory:
    """Bytes of a GPU, as torch.as_tensor() takes them without a copy."""

    def __init__(self, data: int, num_bytes: int, keep: Any) -> None:
        self.keep = keep
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (data, False),
            "version": 2,
        }


def from_tensor(tensor: s.Tensor, keep: Any) -> Any:
    """The memory of a contiguous tensor as a tensor of its type, or None where torch has no such
    type.  The result keeps `keep` alive."""
    dtype = _dtypes.get(tensor.dtype)
    if dtype is None:
        return None
    shape = list(tensor.shape[: tensor.num_dims])
    num_bytes = BITS[tensor.dtype]
    for size in shape:
        num_bytes *= size
    num_bytes //= 8
    if tensor.dtype == s.F4E2M1:
        shape[-1] //= 2
    device = device_of(tensor.device)
    if num_bytes == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    if tensor.device.type == s.CUDA:
        memory = _CudaMemory(tensor.data, num_bytes, keep)
        flat = torch.as_tensor(memory, device=device).view(dtype)
    else:
        buffer = (ctypes.c_ubyte * num_bytes).from_address(tensor.data)
        buffer.keep = keep
        flat = torch.frombuffer(buffer, dtype=torch.uint8).view(dtype)
    return flat.view(shape)


def _dlpack_types() -> set[int]:
    """The types, as words of DLPack, that this torch takes from a capsule."""
    codes = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
    known = {"int": (8, 16, 32, 64), "uint": (8,), "float": (16, 32, 64), "bfloat": (16,), "bool": (8,)}
    try:
        _from_dlpack(torch.utils.dlpack.to_dlpack(torch.zeros(1, dtype=torch.bool, device="cpu")))
    except Exception:  # an old torch
        del known["bool"]
    return {1 << 16 | bits << 8 | codes[name] for name, sizes in known.items() for bits in sizes}


# This is what torch.utils.dlpack.from_dlpack() calls for a capsule.
_from_dlpack: Any = getattr(torch._C, "_from_dlpack", torch.utils.dlpack.from_dlpack)
_word_at = ctypes.c_uint32.from_address
_known_types = _dlpack_types()
_TYPE = 20  # where the type of a DLManagedTensor is


# The types of DLPack: the kinds of elements by the types of the library.
_DLPACK_CODES = {s.F32: 2, s.F16: 2, s.BF16: 4, s.I8: 0, s.U8: 1, s.I32: 0, s.I64: 0, s.BOOL: 6}


def takes_capsules_of(dtype: Any) -> bool:
    """Whether take() makes tensors of this type."""
    code = _codes.get(dtype, -1)
    kind = _DLPACK_CODES.get(code)
    return kind is not None and 1 << 16 | BITS[code] << 8 | kind in _known_types


def take(managed: int | None) -> Any:
    """The tensor of a DLManagedTensor of such a type; None for None."""
    return None if managed is None else _from_dlpack(capsule_of(managed))


NOT_KNOWN = object()
"""Stands for an array whose type this torch does not take from a capsule."""


def from_result(result: int, names: ArrayNames, stream: int | None) -> list[Any]:
    """Tensors of arrays of a result: None where there is no array."""
    found: list[Any] = []
    for managed in names.take_managed(result, stream):
        if managed is None:
            found.append(None)
        elif _word_at(managed + _TYPE).value in _known_types:
            found.append(_from_dlpack(capsule_of(managed)))
        else:
            drop_managed(managed)
            found.append(NOT_KNOWN)
    return found


def expect_type(code: int) -> None:
    if code not in _dtypes:
        raise Unsupported(f"torch {torch.__version__} has no {NAMES[code]}; bits() gives its bits")


def stream_of(x: Any) -> int | None:
    """torch's current stream of the tensor's GPU; None on the CPU."""
    return current_stream(x.get_device()) if x.is_cuda else None


def current_stream(index: int) -> int:
    return wrapped_stream(index, raw_stream(index))
