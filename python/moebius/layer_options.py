# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Options of layers and of their calls, and scratch memory that layers share."""
from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from ctypes import pointer
from dataclasses import dataclass
from typing import Any, Optional

from . import _structs as s
from ._callbacks import guarded
from ._handles import Handle, optional_handle
from ._library import lib
from ._values import instance
from .errors import check, create
from .experts import format_code
from .tensors import borrowed
from .transports import Transports, read_bytes

__all__ = ["KernelOptions", "LayerOptions", "Workspaces"]

Routing = Callable[[Any, Any, Any], None]
SharedExperts = Callable[[Any, Any], None]


class Workspaces(Handle):
    """Scratch memory that the layers of a rank share, one set per micro-batch."""

    _destroy = lib.workspaces_destroy

    def __init__(self) -> None:
        self._handle = create(lib.workspaces_create)

    @property
    def nbytes(self) -> int:
        """The bytes that they hold now."""
        return read_bytes(lib.workspaces_bytes, self)

    def trim(self) -> None:
        """Gives the memory back; the next calls make it again."""
        check(lib.workspaces_trim(self._get()))


@dataclass(frozen=True)
class KernelOptions:
    """How a call is cut into pieces; struct KernelOptions in moebius/modular_kernel.h."""

    chunk_tokens: int = 0
    """The most rows per pass through the experts; 0: setting MOEBIUS_CHUNK_TOKENS."""
    microbatches: int = 1
    """The most parts of the batch of which one travels while another computes."""
    min_microbatch_tokens: Optional[int] = None
    """A micro-batch has at least so many tokens; None: the library's number."""
    combine_parts: int = 0
    """Parts by columns in which results return; 0: the library chooses."""
    early_rows: Optional[int] = None
    """GPUs: rows from which on they come in waves; 0: never; None: the library's number."""

    def _struct(self) -> s.KernelOptions:
        # In C, 0 is the library's number, and -1 is 0.
        def number(value: Optional[int]) -> int:
            return 0 if value is None else value or -1

        return s.KernelOptions(
            chunk_tokens=self.chunk_tokens,
            microbatches=self.microbatches,
            min_microbatch_tokens=number(self.min_microbatch_tokens),
            combine_parts=self.combine_parts,
            early_rows=number(self.early_rows),
        )


def kernel_pointer(kernel: Optional[KernelOptions]) -> Any:
    """A pointer to the struct; None for None."""
    return None if kernel is None else pointer(instance(kernel, KernelOptions, "kernel")._struct())


@dataclass(frozen=True)
class LayerOptions:
    """Options of a layer, which MoeLayer takes as keywords."""

    format: str = "standard"
    """How rows lie before the experts: "standard" or "batched"."""
    experts: Optional[str] = None
    """The implementation of the experts; None: one is chosen."""
    lends_weights: bool = False
    """The experts compute on the caller's memory, which the layer keeps alive."""
    computes_in_f64: bool = False
    """The oracle, on the CPU."""
    kernel: Optional[KernelOptions] = None
    """For all calls."""
    workspaces: Optional[Workspaces] = None
    """Scratch memory that is shared with other layers; None: the layer has its own."""
    backend: Optional[str] = None
    """In a group: "high_throughput", "low_latency", "allgather_reducescatter", "none" (the ranks
    hold the same tokens), or vLLM's names.  None: high_throughput, or low_latency if batched."""
    tp_size: int = 1
    """Ranks that hold the same tokens; rank = dp_rank * tp_size + tp_rank."""
    expert_parallel: bool = True
    """False: every expert is sharded over all ranks."""
    max_num_tokens: int = 0
    """batched: the most tokens of a rank per pass; 0: 256."""
    transports: Optional[Transports] = None
    """What moves the rows, shared with other layers; None: the layer has its own."""
    monolithic: bool = False
    """allgather_reducescatter: router logits travel instead of ids."""
    comm_sms: int = 0
    """GPUs: SMs of the transport's kernels; 0: the backend chooses."""
    capacity: int = 0
    """high_throughput on GPUs.  0: in each call the host waits for the number of rows that come.
    More: there is room for so many rows, and no host waits.  -1: for the tokens of all ranks."""
    sums_per_rank: bool = False
    """low_latency: ranks send sums back instead of a row per selection."""
    sequence_parallel: bool = False
    """Every rank has tokens of its own although tp_size > 1."""
    routing: Optional[Routing] = None
    """Chooses experts instead of the router: routing(hidden, ids, weights) sets ids i32 [T, K]
    (-1 = masked) and weights f32 [T, K] from hidden [T, H]."""
    shared_experts: Optional[SharedExperts] = None
    """Replaces the shared experts: shared_experts(hidden, output) sets output [T, H]."""

    def _struct(self, kind_of_call: list[Any]) -> s.LayerOptions:
        """The struct keeps alive what it points to.  Callbacks get tensors of the kind that is the
        list's only element when they are called; these live as long as the callback."""
        struct = s.LayerOptions(
            format=format_code(self.format),
            experts=self.experts,
            lends_weights=self.lends_weights,
            computes_in_f64=self.computes_in_f64,
            kernel=kernel_pointer(self.kernel),
            workspaces=optional_handle(self.workspaces, Workspaces, "workspaces"),
            backend=self.backend,
            tp_size=self.tp_size,
            no_expert_parallel=not self.expert_parallel,
            max_num_tokens=self.max_num_tokens,
            transports=optional_handle(self.transports, Transports, "transports"),
            monolithic=self.monolithic,
            comm_sms=self.comm_sms,
            capacity=self.capacity,
            sums_per_rank=self.sums_per_rank,
            sequence_parallel=self.sequence_parallel,
        )
        if self.routing is not None:
            struct.routing = s.RoutingFunction(_callback(self.routing, kind_of_call))
        if self.shared_experts is not None:
            struct.shared_experts = s.SharedFunction(_callback(self.shared_experts, kind_of_call))
        return struct


def _callback(function: Callable[..., None], kind_of_call: list[Any]) -> Callable[..., int]:
    def call(user: Any, *arguments: Any) -> None:
        *tensors, stream = arguments
        given = [tensor.contents for tensor in tensors]
        with _on_stream(given[0].device, stream):
            function(*(borrowed(kind_of_call[0], tensor) for tensor in given))

    return guarded(call)


def _on_stream(device: s.Device, stream: Optional[int]) -> Any:
    """Makes the stream of the call torch's current one."""
    torch = sys.modules.get("torch")
    if device.type == s.CPU or torch is None:
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream or 0, device=device.index))
