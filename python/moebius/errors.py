# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Turns statuses of the library into exceptions."""
from __future__ import annotations

import threading
from ctypes import byref, c_void_p
from typing import Any, NoReturn

from . import _structs as s
from ._callbacks import raised
from ._exceptions import CommError, CudaError, Error, InvalidArgument, OutOfMemory, Unsupported
from ._library import lib

__all__ = ["CommError", "CudaError", "Error", "InvalidArgument", "OutOfMemory", "Unsupported"]

_CLASSES: dict[int, type[Error]] = {
    s.INVALID_ARGUMENT: InvalidArgument,
    s.UNSUPPORTED: Unsupported,
    s.CUDA_ERROR: CudaError,
    s.OUT_OF_MEMORY: OutOfMemory,
}


def _raise(status: int) -> NoReturn:
    info = s.ErrorInfo()
    lib.last_error(byref(info))
    message = (info.message or b"").decode(errors="replace")
    if status == s.COMM_ERROR:
        raise CommError(message, info.rank, info.peer, bool(info.peer_is_silent))
    raise _CLASSES.get(status, Error)(message)


def check(status: int) -> None:
    """Raises what a call of the library has reported, or what a callback has raised in it."""
    if raised:
        error = raised.pop(threading.get_ident(), None)
        if error is not None:
            raise error
    if status:
        _raise(status)


# Each function that makes an object has the one that ends it as its attribute `end`.
for _kind, _names in {
    "array": "array_empty array_from_dlpack result_array",
    "call": "layer_start",
    "checkpoint": "checkpoint_open",
    "event": "stream_record",
    "experts": "experts_create",
    "group": "make_process_group make_mpi_group make_nccl_group_of group_split",
    "high_throughput": "high_throughput_create",
    "layer": "layer_create layer_load",
    "low_latency": "low_latency_create",
    "pending": "high_throughput_dispatch_start high_throughput_combine_start"
    " low_latency_dispatch_start low_latency_combine_start",
    "result": "high_throughput_layout high_throughput_dispatch high_throughput_dispatch_cached"
    " high_throughput_expert_order high_throughput_combine low_latency_dispatch"
    " low_latency_combine pending_finish pending_take",
    "router": "router_create",
    "stream": "stream_cpu stream_cuda stream_wrap_cuda",
    "transports": "transports_create",
    "workspaces": "workspaces_create",
}.items():
    for _name in _names.split():
        getattr(lib, _name).end = getattr(lib, _kind + "_destroy")


def create(function: Any, *arguments: Any) -> int | None:
    """Calls a function whose last argument is where it writes a handle, and gives that.

    The function takes the c_void_p itself as a pointer to one, in less time than a byref() of it."""
    handle = c_void_p()
    try:
        check(function(*arguments, handle))
    except BaseException:
        end_made(function, handle)
        raise
    return handle.value


def end_made(function: Any, handle: c_void_p) -> None:
    """Ends what a function has made, if anything, when an exception has come.  Calls that are made
    often have the lines of create() in place, since those take some 0.3 us less than a call of it.

    A signal that comes during a call has its handler run as soon as the call returns.  What that
    raises, such as KeyboardInterrupt, must not leave an object that nobody has."""
    end = getattr(function, "end", None)
    if end is not None and handle.value is not None:
        end(handle)
