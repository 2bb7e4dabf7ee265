# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions of this package.  Every message is one line that names both values."""
from __future__ import annotations

from typing import Any


class Error(Exception):
    """Any failure of the library."""


class InvalidArgument(Error, ValueError):
    """The caller or a file is at fault.  Nothing has been done."""


class Unsupported(Error, NotImplementedError):
    """A valid request that this build, this machine or the chosen implementation cannot serve."""


class CudaError(Error):
    """The CUDA runtime failed, but not for want of memory."""


class OutOfMemory(Error, MemoryError):
    """The host, a GPU, or an allocator that was set had not enough memory."""


class CommError(Error):
    """A collective call did not complete.  The group is then broken, and so is what uses it."""

    rank: int
    """The rank that reports."""
    peer: int
    """The rank to blame, or -1."""
    peer_is_silent: bool
    """Whether the peer has left, or has not come, and so reports nothing itself."""

    def __init__(
        self, message: str, rank: int = -1, peer: int = -1, peer_is_silent: bool = False
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.peer = peer
        self.peer_is_silent = peer_is_silent

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.rank, self.peer, self.peer_is_silent)


for _class in (Error, InvalidArgument, Unsupported, CudaError, OutOfMemory, CommError):
    _class.__module__ = "moebius"  # the name by which users know them
