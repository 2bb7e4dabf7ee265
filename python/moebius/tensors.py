# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors in and out: numpy, torch, and whatever else speaks DLPack.

Every function of this package takes tensors of any of them, and gives results of the kind that it
was given: numpy arrays for numpy arrays, torch tensors on the same device for torch tensors, and
`Array` for all others, and where numpy or torch has no such type."""
from __future__ import annotations

import sys
from collections.abc import Sequence
from ctypes import byref, c_int32, c_int64, memmove, pointer, sizeof
from types import ModuleType
from typing import Any, Protocol

from . import _structs as s
from ._dlpack import managed_of, to_capsule
from ._dtypes import BITS, NAMES, dtype_code
from ._handles import Handle
from ._library import lib
from ._streams import Stream, wrapped_stream
from ._values import integer, integers
from .errors import InvalidArgument, check, create

__all__ = ["Array", "SupportsDLPack"]


class SupportsDLPack(Protocol):
    """A tensor of numpy, of torch, or of any other library that speaks DLPack."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


def device_struct(device: Any) -> s.Device:
    """The device that "cpu", "cuda", "cuda:1" or a torch.device names; "cuda" is torch's current
    GPU, or the first."""
    name, _, index = str(device).partition(":")
    if name == "cpu":
        return s.Device(s.CPU, 0)
    if name != "cuda" or not (index.isdecimal() or not index):
        raise InvalidArgument(f"device is {device}, expected cpu, cuda or cuda:N")
    if index:
        return s.Device(s.CUDA, integer(int(index), c_int32, "index of the GPU"))
    torch = sys.modules.get("torch")
    is_used = torch is not None and torch.cuda.is_initialized()
    return s.Device(s.CUDA, torch.cuda.current_device() if is_used else 0)  # type: ignore[union-attr]


def device_name(device: s.Device) -> str:
    return f"cuda:{device.index}" if device.type == s.CUDA else "cpu"


class Array(Handle):
    """Memory of the library's, or of another library's, as a tensor of one of its types.

    It outlives the object that made it, and speaks DLPack both ways.  `dtype` is a name such as
    "bf16", "f8e4m3" or "u4"; `shape` counts elements, also where several share a byte."""

    _destroy = lib.array_destroy
    keep: Any = None  # what the memory needs to stay alive, besides the handle
    _is_borrowed = False  # the memory of a callback's argument, without a handle

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._tensor = s.Tensor()
        check(lib.array_view(handle, byref(self._tensor)))
        self._tensor.strides = (0, 0, 0, 0)  # contiguous, as every array is

    @staticmethod
    def empty(shape: Sequence[int], dtype: Any = "f32", device: Any = "cpu") -> Array:
        """Uninitialised memory."""
        sizes = integers(shape, c_int64, "shape")
        code, where = dtype_code(dtype), device_struct(device)
        return Array(create(lib.array_empty, code, where, len(shape), sizes) or 0)

    @staticmethod
    def from_numpy(x: Any, dtype: Any = None) -> Array:
        """The memory of a numpy array, read as another type if `dtype` is given: uint16 as bf16,
        uint8 as f8e4m3, or as a packed type, whose last dimension then counts elements.  The array
        is not copied unless it is read-only or not contiguous."""
        numpy = _module("_numpy").np
        x = numpy.asarray(x)
        if dtype is None and x.dtype.type.__module__ != "numpy":
            dtype = x.dtype.name  # one of ml_dtypes, which numpy cannot lend by itself
        if dtype is not None:
            rows = numpy.ascontiguousarray(x).reshape(x.shape or (1,))
            x = rows.view(numpy.uint8)
        return Array.from_dlpack(x if x.flags.writeable else x.copy(), dtype)

    @staticmethod
    def from_dlpack(x: SupportsDLPack, dtype: Any = None) -> Array:
        """Takes a tensor of another library over without a copy.  With `dtype`, bytes (uint8) are
        read as that type."""
        code = -1 if dtype is None else dtype_code(dtype)
        managed, is_versioned = managed_of(x)
        return Array(create(lib.array_from_dlpack, managed, is_versioned, code) or 0)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._tensor.shape[: self._tensor.num_dims])

    @property
    def dtype(self) -> str:
        code: int = self._tensor.dtype
        return NAMES[code]

    @property
    def device(self) -> str:
        """ "cpu" or "cuda:N"."""
        return device_name(self._tensor.device)

    @property
    def nbytes(self) -> int:
        count: int = BITS[self._tensor.dtype]
        for size in self.shape:
            count *= size
        return count // 8

    def numpy(self) -> Any:
        """The same memory as a numpy array.  Raises Unsupported where numpy has no such type."""
        kind = _module("_numpy")
        kind.expect_type(self._tensor.dtype)
        return kind.from_tensor(self._tensor, self)

    def torch(self) -> Any:
        """The same memory as a torch tensor.  Raises Unsupported where torch has no such type."""
        kind = _module("_torch")
        kind.expect_type(self._tensor.dtype)
        return kind.from_tensor(self._tensor, self)

    def bits(self) -> Any:
        """The same memory as a numpy array of unsigned integers as wide as the elements; of packed
        types and types of a byte it has the bytes."""
        return _module("_numpy").bits_of(self._tensor, self)

    def copy_from(self, x: SupportsDLPack, stream: Stream | None = None) -> Array:
        """Copies a tensor of the same type and shape from any device."""
        check(lib.copy(view(x), self._tensor, stream_handle(stream, self)))
        return self

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        device = self.__dlpack_device__()
        if copy or dl_device not in (None, device):
            raise BufferError(f"the array is on {self.device} and lends its memory; copy it first")
        return to_capsule(self._get(), is_versioned=bool(max_version and max_version[0] >= 1))

    def __dlpack_device__(self) -> tuple[int, int]:
        device = self._tensor.device
        return (2 if device.type == s.CUDA else 1, device.index)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"moebius.Array(shape={self.shape}, dtype={self.dtype!r}, device={self.device!r})"


# Kinds of tensors.  A kind is a module with the functions fill, empty, empty_like,
# from_tensor and stream_of.


class _Arrays:
    """The kind of Array, and of all tensors that are neither numpy's nor torch's."""

    @staticmethod
    def fill(tensor: s.Tensor, x: Any) -> Any:
        array = x if isinstance(x, Array) else Array.from_dlpack(x)
        if not array._is_borrowed:
            array._get()
        memmove(byref(tensor), byref(array._tensor), sizeof(tensor))
        return array

    @staticmethod
    def empty(code: int, shape: tuple[int, ...], device: s.Device) -> Any:
        return Array.empty(shape, NAMES[code], device_name(device))

    @staticmethod
    def empty_like(x: Any) -> Any:
        given = view(x)
        return _Arrays.empty(given.dtype, tuple(given.shape[: given.num_dims]), given.device)

    @staticmethod
    def from_tensor(tensor: s.Tensor, keep: Any) -> Any:
        return keep if isinstance(keep, Array) else None

    @staticmethod
    def stream_of(x: Any) -> int | None:
        device_type, index = x.__dlpack_device__()
        return current_stream(s.Device(s.CUDA, index)) if device_type in (2, 13) else None


_kinds: dict[type, Any] = {Array: _Arrays}


def _module(name: str) -> Any:
    """The module of numpy or torch tensors, which imports the library unless it is there."""
    import importlib

    importlib.import_module(name[1:])
    return importlib.import_module("moebius." + name)


def kind_of(x: Any) -> Any:
    """The kind of a tensor."""
    kind = _kinds.get(type(x))
    return _learn_kind(x) if kind is None else kind


def _is_instance(x: Any, module: ModuleType | None, name: str) -> bool:
    return module is not None and isinstance(x, getattr(module, name, ()))


def _learn_kind(x: Any) -> Any:
    if _is_instance(x, sys.modules.get("torch"), "Tensor"):
        kind: Any = _module("_torch")
    elif _is_instance(x, sys.modules.get("numpy"), "ndarray"):
        kind = _module("_numpy")
    elif hasattr(x, "__dlpack__"):
        kind = _Arrays
    else:
        raise InvalidArgument(
            f"a {type(x).__name__} is no tensor: expected one of numpy, torch, or with __dlpack__"
        )
    _kinds[type(x)] = kind
    return kind


def view(x: Any) -> s.Tensor:
    """The tensor as a struct that keeps it alive."""
    tensor = s.Tensor()
    tensor.keep = kind_of(x).fill(tensor, x)
    return tensor


def optional_view(x: Any) -> s.Tensor | None:
    return None if x is None else view(x)


def view_pointer(x: Any) -> Any:
    """A pointer for a field of a struct; None for None."""
    return None if x is None else pointer(view(x))


def empty(kind: Any, code: int, shape: tuple[int, ...], device: s.Device) -> Any:
    """A new tensor of a kind, or an Array where the kind has no such type."""
    x = kind.empty(code, shape, device)
    return _Arrays.empty(code, shape, device) if x is None else x


def from_array(kind: Any, array: Array) -> Any:
    """The array as a tensor of a kind, or itself where the kind has no such type."""
    x = kind.from_tensor(array._tensor, array)
    return array if x is None else x


def borrowed(kind: Any, tensor: s.Tensor) -> Any:
    """A tensor that the library lends to a callback, as one of a kind; on a GPU it is torch's.
    Where the kind has no such type it is numpy's or, as the last resort, an Array."""
    on_gpu = tensor.device.type == s.CUDA
    if on_gpu and "torch" in sys.modules:
        kind = _module("_torch")
    x = kind.from_tensor(tensor, None)
    if x is None and not on_gpu and "numpy" in sys.modules:
        x = _module("_numpy").from_tensor(tensor, None)
    if x is None:
        x = Array.__new__(Array)
        x._tensor, x._is_borrowed = s.Tensor.from_buffer_copy(tensor), True
    return x


def current_stream(device: s.Device) -> int | None:
    """The stream of calls that name none: torch's, or the legacy default stream of the GPU; on the
    CPU it is that of the setting MOEBIUS_THREADS."""
    if device.type == s.CPU:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        stream: int = _module("_torch").current_stream(device.index)
        return stream
    return wrapped_stream(device.index, 1)  # cudaStreamLegacy


def stream_handle(stream: Any, x: Any) -> int | None:
    """The handle of a stream that the caller has named, or else the one on which x is used now."""
    if stream is None:
        handle: int | None = kind_of(x).stream_of(x)
        return handle
    return named_stream(stream)


def named_stream(stream: Any) -> int | None:
    """The handle of a Stream, or of a torch.cuda.Stream."""
    if isinstance(stream, Stream):
        return stream._handle
    if hasattr(stream, "cuda_stream"):
        return wrapped_stream(stream.device.index, stream.cuda_stream)
    raise InvalidArgument(f"stream is a {type(stream).__name__}, expected a moebius.Stream")

