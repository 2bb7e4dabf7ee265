# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Structs of calls with the tensors that they point to.  They are used again, since to make them
takes longer than to fill them."""
from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from ctypes import addressof, c_int32, c_int64, c_uint64, sizeof
from typing import Any

from . import _structs as s
from ._values import integer
from .tensors import kind_of


_CODES: dict[Any, str] = {c_int32: "i", c_int64: "q", c_uint64: "Q"}


def _format_of(kind: type[s.Struct]) -> tuple[str, list[tuple[str, Any]]]:
    """The fields of a struct for the module `struct`, and their names and types.  A pointer is a
    number."""
    format, fields, end = "=", [], 0
    for name, *of in kind._fields_:
        field, count = getattr(kind, name), 1
        field_type: Any = of[0]
        if issubclass(field_type, ctypes.Array):
            field_type, count = field_type._type_, field_type._length_
        if field_type not in _CODES:
            field_type = c_uint64
        format += f"{field.offset - end}x{count}{_CODES[field_type]}"
        fields += [(name, field_type)] * count
        end = field.offset + field.size
    return f"{format}{sizeof(kind) - end}x", fields


_TENSOR_BYTES = sizeof(s.Tensor)


def data_word(index: int) -> int:
    """Where FilledFrame.words have the address of a tensor."""
    return (index * _TENSOR_BYTES + s.Tensor.data.offset) // 8


def rows_word(index: int) -> int:
    """Where FilledFrame.words have the first dimension of a tensor."""
    return (index * _TENSOR_BYTES + s.Tensor.shape.offset) // 8


class Frame:
    """A struct, and room for tensors."""

    def __init__(self, frames: Frames, num_tensors: int) -> None:
        self.struct = frames._kind()
        self.kept: list[Any] = []
        """What must live as long as the struct is used."""
        self._pack = frames._pack
        self._fields = frames._fields
        self._size = sizeof(self.struct)
        self._memory = bytearray(num_tensors * _TENSOR_BYTES)
        self._tensors = list((s.Tensor * num_tensors).from_buffer(self._memory))
        for tensor in self._tensors:
            tensor.struct_size = _TENSOR_BYTES
        self._addresses = [addressof(tensor) for tensor in self._tensors]

    def put(self, index: int, x: Any) -> int:
        """The address of a tensor of the struct's, which is x from now on; 0 for None."""
        if x is None:
            return 0
        self.kept.append(kind_of(x).fill(self._tensors[index], x))
        return self._addresses[index]

    def put_all(self, first: int, tensors: list[Any]) -> int:
        """The address of an array of pointers to so many tensors."""
        pointers = (ctypes.c_void_p * max(len(tensors), 1))()
        for index, x in enumerate(tensors):
            pointers[index] = self.put(first + index, x)
        self.kept.append(pointers)
        return addressof(pointers)

    def fill(self, *fields: Any) -> None:
        """Sets all fields after struct_size."""
        try:
            self._pack(self.struct, 0, self._size, *fields)
        except struct.error:  # some field is no integer, or does not fit
            for (name, kind), value in zip(self._fields, (self._size, *fields)):
                integer(value, kind, name)
            raise


class FilledFrame:
    """A struct all of whose fields are set, but for what changes from call to call: the memory of
    its tensors and their first dimension, which are numbers in `words` at data_word() and
    rows_word(), and tensors that only some calls have.  One call at a time may use it."""

    def __init__(self, frame: Frame, keep: Any = None) -> None:
        frame.kept = []  # the tensors that it was filled with
        self.keep = keep
        """What the struct points to, besides tensors."""
        self.struct = frame.struct
        self.words = memoryview(frame._memory).cast("q")
        self.tensors = frame._tensors
        self.out = ctypes.c_void_p()
        """Where a call writes what it makes."""
        self.num_rows = -1
        """The first dimension that words have for all tensors of the caller's; -1: not known."""

    def lend(self, index: int, x: Any) -> tuple[Any, Any]:
        """A pointer to a tensor that only some calls have, and what must live as long."""
        tensor = self.tensors[index]
        return ctypes.pointer(tensor), kind_of(x).fill(tensor, x)


class Frames:
    """The frames of one kind of call.  Any thread may take one, since each is in one call only."""

    def __init__(self, kind: type[s.Struct], num_tensors: int) -> None:
        self._kind = kind
        self._num_tensors = num_tensors
        format, self._fields = _format_of(kind)
        self._pack: Callable[..., None] = struct.Struct(format).pack_into
        self._free: list[Frame] = []

    def take(self, num_tensors: int = 0) -> Frame:
        """A frame with room for so many tensors, if that is more than usual."""
        if num_tensors > self._num_tensors:
            return Frame(self, num_tensors)
        try:
            return self._free.pop()
        except IndexError:
            return Frame(self, self._num_tensors)

    def give_back(self, frame: Frame) -> list[Any]:
        """Ends the use of a frame.  Gives what it has kept, for calls that are not over."""
        kept, frame.kept = frame.kept, []
        if len(frame._tensors) == self._num_tensors:
            self._free.append(frame)
        return kept
