# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Capsules of DLPack."""
from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_char_p, c_int, c_int32, c_int64, c_void_p, py_object
from typing import Any

from . import _structs as s
from ._library import lib
from .errors import InvalidArgument, check

_NAMES = (b"dltensor", b"dltensor_versioned")
_USED_NAMES = (b"used_dltensor", b"used_dltensor_versioned")
# The two structs have their deleter at these bytes.
_DELETERS = (56, 16)
_CUDA_DEVICES = (2, 13)  # kDLCUDA, kDLCUDAManaged

_DESTRUCTOR = ctypes.PYFUNCTYPE(None, c_void_p)
_DELETER = ctypes.CFUNCTYPE(None, c_void_p)


def _python(name: str, result: Any, *arguments: Any) -> Any:
    """A function of Python's C API.  Capsules are given as addresses, since a capsule that is being
    destroyed must get no new references."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _python("PyCapsule_New", py_object, c_void_p, c_char_p, _DESTRUCTOR)
_is_valid = _python("PyCapsule_IsValid", c_int, c_void_p, c_char_p)
_pointer = _python("PyCapsule_GetPointer", c_void_p, c_void_p, c_char_p)
_set_name = _python("PyCapsule_SetName", c_int, c_void_p, c_char_p)


def _destroy_unused(capsule: int) -> None:
    for is_versioned, name in enumerate(_NAMES):
        if _is_valid(capsule, name):  # nobody has taken it
            managed = _pointer(capsule, name)
            _DELETER.from_address(managed + _DELETERS[is_versioned])(managed)


_destroy = _DESTRUCTOR(_destroy_unused)
_no_destructor = _DESTRUCTOR(0)


class WantedArrays:
    """Arrays of a result as a call gives them.  One call at a time may use it."""

    def __init__(self, names: ArrayNames) -> None:
        self.names = names
        self.managed = (c_void_p * len(names.keys))()
        """The DLManagedTensors that the last call has given; None where there is no array."""
        self.struct = s.DlpackArrays(
            num_arrays=len(names.keys),
            names=names._names,
            indices=names._indices,
            managed=self.managed,
        )


class ArrayNames:
    """Arrays of a result, by their names and their numbers among those of a name."""

    def __init__(self, *keys: tuple[str, int]) -> None:
        self.keys = keys
        self._names = (c_char_p * len(keys))(*[name.encode() for name, _ in keys])
        self._indices = (c_int32 * len(keys))(*[index for _, index in keys])
        self._free: list[WantedArrays] = []

    def take_managed(self, result: int, stream: int | None) -> list[int | None]:
        """Their DLManagedTensors, whose last user is the stream; None where there is no array."""
        try:
            wanted = self._free.pop()
        except IndexError:
            wanted = WantedArrays(self)
        wanted.struct.user = stream
        status = lib.result_dlpack(result, wanted.struct)
        managed = wanted.managed[:]
        self._free.append(wanted)
        if status:
            check(status)
        return managed


def drop_managed(managed: int) -> None:
    _DELETER.from_address(managed + _DELETERS[0])(managed)


def capsule_of(managed: int) -> Any:
    """A capsule for somebody who takes the DLManagedTensor out of it at once."""
    return _new(managed, _NAMES[0], _no_destructor)


def to_capsule(array: int, is_versioned: bool) -> Any:
    """A capsule of the array with this handle."""
    managed = c_void_p()
    check(lib.array_to_dlpack(array, is_versioned, byref(managed)))
    return _new(managed, _NAMES[is_versioned], _destroy)


def _stream_for(x: Any) -> int | None:
    """The stream that a producer on a GPU is to be ordered before: the one that calls use."""
    if x.__dlpack_device__()[0] not in _CUDA_DEVICES:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return torch.cuda.current_stream(x.__dlpack_device__()[1]).cuda_stream or 1
    return 1  # the legacy default stream


def managed_of(x: Any) -> tuple[int, bool]:
    """The DLManagedTensor or DLManagedTensorVersioned of a tensor, which is then the caller's."""
    stream = _stream_for(x)
    try:
        capsule = x.__dlpack__(stream=stream, max_version=(1, 1))
    except TypeError:  # older than version 1.0
        capsule = x.__dlpack__() if stream is None else x.__dlpack__(stream=stream)
    address = id(capsule)
    for is_versioned, name in enumerate(_NAMES):
        if _is_valid(address, name):
            managed = _pointer(address, name)
            _set_name(address, _USED_NAMES[is_versioned])
            return managed, bool(is_versioned)
    raise InvalidArgument(f"__dlpack__ of a {type(x).__name__} gave no capsule of a DLPack tensor")
