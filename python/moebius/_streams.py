# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Streams: where calls are enqueued."""
from __future__ import annotations

from typing import Any

from ._handles import Sole
from ._library import lib
from .errors import check, create

# Handles on streams of others, which are kept for good, since calls keep scratch memory in them.
_wrapped: dict[tuple[int, int], int] = {}


def wrapped_stream(index: int, cuda_stream: int) -> int:
    """The handle of a cudaStream_t of GPU `index`."""
    handle = _wrapped.get((index, cuda_stream))
    if handle is None:
        handle = _wrapped.setdefault(
            (index, cuda_stream), create(lib.stream_wrap_cuda, cuda_stream, index) or 0
        )
    return handle


class Stream(Sole):
    """A stream of the library's, or one of the caller's that lives at least as long.

    Calls take one as `stream`; without it they use torch's current stream where tensors are on a
    GPU, and all threads of the setting MOEBIUS_THREADS on the CPU."""

    def __init__(self, handle: int, device: str, owned: bool = True) -> None:
        self._handle = handle
        self._owned = owned
        self.device = device

    @staticmethod
    def cpu(num_threads: int = 0) -> Stream:
        """Calls use so many threads; 0 stands for the setting MOEBIUS_THREADS."""
        return Stream(create(lib.stream_cpu, num_threads) or 0, "cpu")

    @staticmethod
    def cuda(index: int = 0) -> Stream:
        """A new non-blocking stream of a GPU."""
        return Stream(create(lib.stream_cuda, index) or 0, f"cuda:{index}")

    @staticmethod
    def wrap(cuda_stream: int, index: int = 0) -> Stream:
        """A cudaStream_t of somebody else's, as a number.  Its handle is kept for good, so the
        stream must not be destroyed while the library is in use; streams of torch never are."""
        return Stream(wrapped_stream(index, cuda_stream), f"cuda:{index}", owned=False)

    @property
    def cuda_stream(self) -> int:
        """The cudaStream_t as a number, as torch.cuda.ExternalStream takes it; valid as long as this
        object.  0 on the CPU, and for the legacy default stream."""
        return create(lib.stream_get_cuda, self._handle) or 0

    def synchronize(self) -> None:
        """Waits until all work that was enqueued is done."""
        check(lib.stream_synchronize(self._handle))

    def __del__(self, destroy: Any = lib.stream_destroy) -> None:
        if getattr(self, "_owned", False):
            destroy(self._handle)

    def __repr__(self) -> str:
        return f"moebius.Stream({self.device})"
