# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What torch has and what it lacks."""
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Optional

import torch

from .._torch import raw_stream
from ..errors import InvalidArgument
from ..tensors import Array

# Functions of these are not typed.
cuda: Any = torch.cuda
distributed: Any = torch.distributed
inference_mode: Any = torch.inference_mode

# Whether torch's current stream is captured; what torch.cuda's function of that name calls.
is_capturing: Any = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", cuda.is_current_stream_capturing
)

topk_idx_t: Any = torch.int64
"""The dtype of ids.  Calls take torch.int32, too, and give back what they were given."""

has_fp8: bool = hasattr(torch, "float8_e4m3fn")
# A torch without the type gets the bytes.
fp8_dtype: Any = getattr(torch, "float8_e4m3fn", torch.uint8)


_empty_like: Any = torch.empty_like
_has_untyped: bool = hasattr(torch.Tensor, "untyped_storage")  # before torch 2.0 it is storage()
_contiguous: Any = torch.contiguous_format


class NewRows:
    """Makes memory [rows, ...] of a type.  torch.empty_like() takes the least time, since it reads no
    shape, type or device.  What it copies these from is one element that is seen many times."""

    def __init__(self, dtype: Any, device: Any, *row_shape: int) -> None:
        with inference_mode(False):
            self._element = torch.empty(1, dtype=dtype, device=device)
        self._row_shape = row_shape
        self._num_rows = -1
        self._pattern: Any = None

    def __call__(self, num_rows: int) -> Any:
        if num_rows != self._num_rows:
            self._pattern = self._element.expand(num_rows, *self._row_shape)
            self._num_rows = num_rows
        return _empty_like(self._pattern, memory_format=_contiguous)


def maker(dtype: Any, device: Any, *shape: int) -> Callable[[], Any]:
    """A function that makes contiguous memory of one shape."""
    with inference_mode(False):
        return maker_like(torch.empty(shape, dtype=dtype, device=device))


def maker_like(pattern: Any) -> Callable[[], Any]:
    """A function that makes memory with the shape and strides of a new tensor without gaps, whose
    own memory is given back.  torch.empty_like() takes a fifth less time where it is not told a
    format."""
    (pattern.untyped_storage() if _has_untyped else pattern.storage()).resize_(0)
    return functools.partial(_empty_like, pattern)


class Cuts:
    """Makes memory [rows, ...] of a type, a block at a time, since to cut one takes a third of the
    time that as many tensors with memory of their own take.  No memory is given out twice.  A block
    lives as long as one of its pieces.  It is for one of torch's streams, while that is not captured:
    a graph needs memory of its own."""

    _MOST = 64  # pieces of a block
    _MOST_BYTES = 1 << 18  # of a block with more than two pieces
    _MOST_BYTES_OF_TWO = 1 << 22
    _ALIGNMENT = 64

    def __init__(self, dtype: Any, device: Any, rows: int, *row_shape: int) -> None:
        with inference_mode(False):
            self._element = torch.empty(1, dtype=dtype, device=device)
        self.alone = maker(dtype, device, rows, *row_shape)
        """Makes memory that is no piece of a block."""
        row_bytes = self._element.element_size() * math.prod(row_shape)
        # Rows between two pieces make them start at aligned addresses.
        between = -rows % (self._ALIGNMENT // math.gcd(self._ALIGNMENT, row_bytes))
        self._bytes_apart = (rows + between) * row_bytes
        least = 2 if 2 * self._bytes_apart <= self._MOST_BYTES_OF_TWO else 1
        self._number = max(least, min(self._MOST, self._MOST_BYTES // max(1, self._bytes_apart)))
        self._shape = self._number * (rows + between), *row_shape
        self._sizes = ([rows, between] if between else [rows]) * self._number
        self._step = 2 if between else 1
        self._made: dict[int, list[tuple[Any, int]]] = {}

    def take(self, here: int) -> tuple[Any, int]:
        """Gives memory for torch's current stream, whose number is `here`, and its address."""
        return (self._made.get(here) or self._make(here)).pop()

    def _make(self, here: int) -> list[tuple[Any, int]]:
        if self._number == 1:
            x = self.alone()
            return [(x, x.data_ptr())]
        with inference_mode(False):  # they may be taken in another mode
            block = self._element.new_empty(self._shape)
            # These are no views for autograd, so it is not told of what is written to a neighbour.
            pieces = block.unsafe_split_with_sizes(self._sizes)[:: self._step]
        first, apart = block.data_ptr(), self._bytes_apart
        self._made[here] = made = [(x, first + apart * i) for i, x in enumerate(pieces)]
        return made


_streams: dict[tuple[int, int], Any] = {}


def current_torch_stream(gpu: int) -> Any:
    """torch's current stream of a GPU.  Objects are kept, since torch makes a new one each time,
    which takes as long as two launches."""
    key = gpu, raw_stream(gpu)
    stream = _streams.get(key)
    if stream is None:
        stream = _streams.setdefault(key, cuda.current_stream(gpu))
    return stream


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
    pair = x if isinstance(x, (tuple, list)) else (x, None)
    if len(pair) != 2:
        raise InvalidArgument(f"x is a tuple of {len(pair)}, expected a tensor, or rows and scales")
    rows, scales = pair
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
