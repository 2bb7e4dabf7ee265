# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Mixture-of-Experts layers spread over many workers.

    import moebius

    layer = moebius.MoeLayer.from_checkpoint("path/of/a/model")
    output = layer(hidden)          # numpy, torch, or anything with __dlpack__

A layer over several workers takes a group, which is made of threads, processes, MPI ranks, or a
process group of torch.distributed:

    group = moebius.Group.torch()
    layer = moebius.MoeLayer.from_checkpoint("path/of/a/model", group=group)

The parts of a layer are there, too: Router, HighThroughput and LowLatency (dispatch and combine),
Experts, quantize and dequantize.

Results are of the kind that was given.  On a GPU calls are enqueued on torch's current stream.
Calls release the GIL.  Errors are exceptions of this module (Error and its subclasses), and
KeyboardInterrupt ends waits for other ranks.  docs/python.md has more."""
from __future__ import annotations

import importlib
from typing import Any

from . import placement
from ._library import lib as _lib
from ._streams import Stream
from .checkpoint import Checkpoint, ModelInfo, make_model
from .errors import CommError, CudaError, Error, InvalidArgument, OutOfMemory, Unsupported
from .experts import Experts, ExpertsInfo, LoraWeights
from .groups import Group
from .high_throughput import Combined, Dispatched, ExpertOrder, HighThroughput, Layout
from .layer import LayerCall, LayerInfo, MoeLayer
from .layer_options import KernelOptions, LayerOptions, Workspaces
from .low_latency import LowLatency, LowLatencyCombined, LowLatencyDispatched
from .quant import (
    PER_TENSOR,
    PER_TOKEN,
    QuantConfig,
    Quantized,
    QuantOperand,
    QuantSpec,
    dequantize,
    quantize,
)
from .router import Router, RouterConfig, count_expert_tokens
from .settings import (
    MemoryStatistics,
    Setting,
    get_setting,
    is_usable,
    log_to_logging,
    log_to_stderr,
    memory_statistics,
    num_cuda_devices,
    reset_peak_memory,
    set_setting,
    settings,
    trim_memory,
)
from .tensors import Array, SupportsDLPack
from .transports import Pending, Result, Transports, TransportStatistics

__version__: str = _lib.version().decode()

# Modules that import torch, so only where somebody asks for them.
_MODULES = ("deep_ep", "torch_ops", "transformers")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "PER_TENSOR",
    "PER_TOKEN",
    "Array",
    "Checkpoint",
    "Combined",
    "CommError",
    "CudaError",
    "Dispatched",
    "Error",
    "ExpertOrder",
    "Experts",
    "ExpertsInfo",
    "Group",
    "HighThroughput",
    "InvalidArgument",
    "KernelOptions",
    "LayerCall",
    "LayerInfo",
    "LayerOptions",
    "Layout",
    "LoraWeights",
    "LowLatency",
    "LowLatencyCombined",
    "LowLatencyDispatched",
    "MemoryStatistics",
    "ModelInfo",
    "MoeLayer",
    "OutOfMemory",
    "Pending",
    "QuantConfig",
    "QuantOperand",
    "QuantSpec",
    "Quantized",
    "Result",
    "Router",
    "RouterConfig",
    "Setting",
    "Stream",
    "SupportsDLPack",
    "TransportStatistics",
    "Transports",
    "Unsupported",
    "Workspaces",
    "count_expert_tokens",
    "dequantize",
    "get_setting",
    "is_usable",
    "log_to_logging",
    "log_to_stderr",
    "make_model",
    "memory_statistics",
    "num_cuda_devices",
    "placement",
    "quantize",
    "reset_peak_memory",
    "set_setting",
    "settings",
    "trim_memory",
]
