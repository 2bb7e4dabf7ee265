# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Constants, structs and function types of moebius_c.h, by the names that they have there.

A test compares this file with the header.  Why longer than 500 lines: it follows that one header,
struct by struct."""
from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
    sizeof,
)
from typing import Any, ClassVar

from ._values import CHECKED, checked

ABI_VERSION = 1

OK = 0
INVALID_ARGUMENT = 1
UNSUPPORTED = 2
COMM_ERROR = 3
CUDA_ERROR = 4
OUT_OF_MEMORY = 5
ERROR = 6
LOG_DEBUG = 0
LOG_INFO = 1
LOG_WARN = 2
LOG_ERROR = 3
CPU = 0
CUDA = 1
F32 = 0
F16 = 1
BF16 = 2
F8E4M3 = 3
F8E5M2 = 4
I8 = 5
U8 = 6
I32 = 7
I64 = 8
BOOL = 9
F4E2M1 = 10
U4 = 11
F6E3M2 = 12
F6E2M3 = 13
E8M0 = 14
READ_ONLY = 1
NOT_QUANTIZED = 0
FP8 = 1
INT8 = 2
INT4 = 3
MXFP4 = 4
MXFP6_E3M2 = 5
MXFP6_E2M3 = 6
MXFP8 = 7
NVFP4 = 8
SOFTMAX = 0
SIGMOID = 1
SQRT_SOFTPLUS = 2
SPARSE_MIXER = 3
SILU = 0
GELU = 1
GELU_TANH = 2
SWIGLU_OAI = 3
RELU2 = 4
SWIGLU_STEP = 5
STANDARD = 0
BATCHED = 1
CAST_NONE = 0
CAST_FP8 = 1
CAST_FP8_UE8M0 = 2
SCALES_ROWS = 0
SCALES_COLUMNS = 1
SCALES_PACKED_COLUMNS = 2
CODING_NONE = 0
CODING_LOGFMT10 = 1


class Struct(Structure):
    """A struct that begins with its size.  Fields that are not given are cleared, and integers and
    texts that theirs cannot hold are refused."""

    _checked: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._checked = {name: kind for name, kind, *_ in cls._fields_ if kind in CHECKED}

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            if name in self._checked:
                fields[name] = checked(value, self._checked[name], name)
        super().__init__(sizeof(self), **fields)


LogFunction = CFUNCTYPE(None, c_void_p, c_int32, c_char_p, c_char_p)
InterruptFunction = CFUNCTYPE(c_int32, c_void_p)
JobFunction = CFUNCTYPE(None, c_void_p, c_int32)
ExecutorFunction = CFUNCTYPE(c_int32, c_void_p, c_int32, JobFunction, c_void_p)
AllGatherFunction = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_int64, c_void_p)


class ErrorInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("status", c_int32),
        ("rank", c_int32),
        ("peer", c_int32),
        ("peer_is_silent", c_int32),
        ("message", c_char_p),
    ]


class SettingInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("default_value", c_char_p),
        ("meaning", c_char_p),
        ("read", c_char_p),
    ]


class Device(Structure):
    _fields_ = [
        ("type", c_int32),
        ("index", c_int32),
    ]


AllocateFunction = CFUNCTYPE(c_void_p, c_void_p, c_int64, c_int64, Device, c_void_p)
DeallocateFunction = CFUNCTYPE(None, c_void_p, c_void_p, c_int64, Device, c_void_p)
DestroyFunction = CFUNCTYPE(None, c_void_p)


class Allocator(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("user", c_void_p),
        ("allocate", AllocateFunction),
        ("deallocate", DeallocateFunction),
        ("destroy", DestroyFunction),
    ]


class MemoryStatistics(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("bytes", c_int64),
        ("peak_bytes", c_int64),
        ("num_blocks", c_int64),
        ("num_allocations", c_int64),
    ]


class Tensor(Struct):
    keep: Any = None  # what the memory needs to stay alive

    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("dtype", c_int32),
        ("device", Device),
        ("num_dims", c_int32),
        ("flags", c_uint32),
        ("shape", c_int64 * 4),
        ("strides", c_int64 * 4),
    ]


class GroupOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("ranks_per_node", c_int32),
        ("timeout_ms", c_int64),
    ]


class GroupInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("size", c_int32),
        ("node", c_int32),
        ("num_nodes", c_int32),
        ("local_rank", c_int32),
        ("ranks_on_node", c_int32),
        ("device", Device),
        ("timeout_ms", c_int64),
        ("waited_ns", c_int64),
        ("bytes_sent", c_int64),
        ("name", c_char_p),
    ]


class Placement(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank_of", POINTER(c_int32)),
        ("num_experts", c_int64),
    ]


class RebalanceOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_physical", c_int64),
        ("num_groups", c_int64),
        ("num_nodes", c_int64),
        ("num_ranks", c_int64),
        ("policy", c_char_p),
    ]


class Rebalanced(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("physical_to_logical", POINTER(c_int64)),
        ("replica_index", POINTER(c_int64)),
        ("replica_count", POINTER(c_int64)),
    ]


class QuantSpec(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("format", c_int32),
        ("group_rows", c_int64),
        ("group_cols", c_int64),
        ("power_of_two_scale", c_int32),
        ("asymmetric", c_int32),
        ("global_scale_per_row", c_int32),
    ]


class Quantized(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("values", POINTER(Tensor)),
        ("scale", POINTER(Tensor)),
        ("zero_point", POINTER(Tensor)),
        ("global_scale", POINTER(Tensor)),
    ]


class QuantOperand(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("format", c_int32),
        ("group_rows", c_int64),
        ("group_cols", c_int64),
        ("scale", POINTER(Tensor)),
        ("alpha_or_gscale", POINTER(Tensor)),
        ("zero_point", POINTER(Tensor)),
        ("bias", POINTER(Tensor)),
        ("power_of_two_scale", c_int32),
        ("calls_bring_scales", c_int32),
    ]


class RouterConfig(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_experts", c_int64),
        ("topk", c_int64),
        ("scoring", c_int32),
        ("score_after_topk", c_int32),
        ("renormalize", c_int32),
        ("num_groups", c_int64),
        ("topk_groups", c_int64),
        ("routed_scaling_factor", c_float),
        ("tensor_core_logits", c_int32),
        ("mixer_epsilon", c_float),
    ]


class RouterWeights(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("gate", POINTER(Tensor)),
        ("bias", POINTER(Tensor)),
        ("correction_bias", POINTER(Tensor)),
        ("expert_scale", POINTER(Tensor)),
    ]


class Activation(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int32),
        ("is_not_gated", c_int32),
        ("interleaved", c_int32),
        ("alpha", c_float),
        ("beta", c_float),
        ("limit", c_float),
    ]


class LoraWeights(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("w1_a", POINTER(Tensor)),
        ("w1_b", POINTER(Tensor)),
        ("w2_a", POINTER(Tensor)),
        ("w2_b", POINTER(Tensor)),
        ("scaling", POINTER(Tensor)),
    ]


class ExpertWeights(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("w1", POINTER(Tensor)),
        ("w2", POINTER(Tensor)),
        ("a1", POINTER(QuantOperand)),
        ("a2", POINTER(QuantOperand)),
        ("quant_w1", POINTER(QuantOperand)),
        ("quant_w2", POINTER(QuantOperand)),
        ("lora", POINTER(LoraWeights)),
    ]


class ExpertsOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_experts", c_int64),
        ("topk", c_int64),
        ("in_dtype", c_int32),
        ("format", c_int32),
        ("activation", POINTER(Activation)),
        ("lends_weights", c_int32),
        ("implementation", c_char_p),
    ]


class ExpertsInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("num_experts", c_int64),
        ("num_local_experts", c_int64),
        ("topk", c_int64),
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("in_dtype", c_int32),
        ("format", c_int32),
        ("retains_weights", c_int32),
    ]


class ExpertsInput(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", POINTER(Tensor)),
        ("x_scale", POINTER(Tensor)),
        ("topk_ids", POINTER(Tensor)),
        ("topk_weights", POINTER(Tensor)),
        ("expert_num_tokens", POINTER(Tensor)),
        ("expert_map", POINTER(Tensor)),
        ("lora_ids", POINTER(Tensor)),
        ("a2_scale", POINTER(Tensor)),
    ]


class TransportStatistics(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("selections", c_int64),
        ("copies", c_int64),
        ("node_copies", c_int64),
    ]


class HighThroughputOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_experts", c_int64),
        ("placement", POINTER(Placement)),
        ("dispatch_sms", c_int32),
        ("combine_sms", c_int32),
        ("transports", c_void_p),
    ]


class DlpackArrays(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_arrays", c_int32),
        ("names", POINTER(c_char_p)),
        ("indices", POINTER(c_int32)),
        ("managed", POINTER(c_void_p)),
        ("user", c_void_p),
    ]


class LayoutInput(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("topk_ids", POINTER(Tensor)),
        ("tokens_per_rank_into", POINTER(Tensor)),
        ("tokens_per_node_into", POINTER(Tensor)),
        ("tokens_per_expert_into", POINTER(Tensor)),
        ("is_token_in_rank_into", POINTER(Tensor)),
    ]


class DispatchInput(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("payloads", POINTER(POINTER(Tensor))),
        ("num_payloads", c_int32),
        ("topk_ids", POINTER(Tensor)),
        ("topk_weights", POINTER(Tensor)),
        ("layout", c_void_p),
        ("expert_alignment", c_int64),
        ("capacity", c_int64),
        ("combine_row_bytes", c_int64),
        ("previous_cuda_event", c_void_p),
        ("is_async", c_int32),
        ("lists_counts", c_int32),
        ("payloads_into", POINTER(POINTER(Tensor))),
        ("topk_ids_into", POINTER(Tensor)),
        ("topk_weights_into", POINTER(Tensor)),
        ("is_token_in_rank", POINTER(Tensor)),
        ("tokens_per_expert", POINTER(Tensor)),
        ("arrays", POINTER(DlpackArrays)),
        ("expert_counts_into", POINTER(c_int64)),
    ]


class CombineInput(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", POINTER(Tensor)),
        ("topk_weights", POINTER(Tensor)),
        ("bias", POINTER(Tensor) * 2),
        ("previous_cuda_event", c_void_p),
        ("is_async", c_int32),
        ("x_into", POINTER(Tensor)),
        ("topk_weights_into", POINTER(Tensor)),
    ]


class LowLatencyOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_experts", c_int64),
        ("placement", POINTER(Placement)),
        ("max_tokens", c_int64),
        ("hidden", c_int64),
        ("topk", c_int64),
        ("in_dtype", c_int32),
        ("num_sms", c_int32),
        ("sums_per_rank", c_int32),
        ("excludes_missing", c_int32),
        ("transports", c_void_p),
    ]


class LowLatencyDispatchInput(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", POINTER(Tensor)),
        ("x_scale", POINTER(Tensor)),
        ("topk_ids", POINTER(Tensor)),
        ("cast", c_int32),
        ("scales", c_int32),
        ("max_tokens", c_int64),
        ("row_tags", POINTER(Tensor)),
        ("received", POINTER(Tensor)),
        ("wait_us", POINTER(Tensor)),
        ("previous_cuda_event", c_void_p),
        ("records_event", c_int32),
        ("x_into", POINTER(Tensor)),
        ("x_scale_into", POINTER(Tensor)),
        ("expert_num_tokens_into", POINTER(Tensor)),
        ("row_tags_into", POINTER(Tensor)),
        ("source_token_into", POINTER(Tensor)),
        ("source_ranges_into", POINTER(Tensor)),
    ]


class LowLatencyCombineInput(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", POINTER(Tensor)),
        ("topk_ids", POINTER(Tensor)),
        ("topk_weights", POINTER(Tensor)),
        ("wait_us", POINTER(Tensor)),
        ("coding", c_int32),
        ("previous_cuda_event", c_void_p),
        ("records_event", c_int32),
        ("x_into", POINTER(Tensor)),
    ]


class ModelInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("family", c_char_p),
        ("quant_method", c_char_p),
        ("moe_layers", POINTER(c_int64)),
        ("num_moe_layers", c_int64),
        ("num_layers", c_int64),
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("num_experts", c_int64),
        ("topk", c_int64),
        ("num_shared_experts", c_int64),
        ("shared_intermediate", c_int64),
        ("dtype", c_int32),
    ]


class KernelOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("chunk_tokens", c_int64),
        ("microbatches", c_int32),
        ("min_microbatch_tokens", c_int64),
        ("combine_parts", c_int32),
        ("early_rows", c_int64),
    ]


RoutingFunction = CFUNCTYPE(
    c_int32, c_void_p, POINTER(Tensor), POINTER(Tensor), POINTER(Tensor), c_void_p
)
SharedFunction = CFUNCTYPE(c_int32, c_void_p, POINTER(Tensor), POINTER(Tensor), c_void_p)


class LayerOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("format", c_int32),
        ("experts", c_char_p),
        ("lends_weights", c_int32),
        ("computes_in_f64", c_int32),
        ("kernel", POINTER(KernelOptions)),
        ("workspaces", c_void_p),
        ("backend", c_char_p),
        ("tp_size", c_int32),
        ("no_expert_parallel", c_int32),
        ("max_num_tokens", c_int64),
        ("transports", c_void_p),
        ("monolithic", c_int32),
        ("comm_sms", c_int32),
        ("capacity", c_int64),
        ("sums_per_rank", c_int32),
        ("sequence_parallel", c_int32),
        ("routing", RoutingFunction),
        ("routing_user", c_void_p),
        ("shared_experts", SharedFunction),
        ("shared_experts_user", c_void_p),
    ]


class LoadOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("quant", c_char_p),
        ("placement", POINTER(Placement)),
        ("allow_nonfinite", c_int32),
    ]


class LayerWeights(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("router_config", POINTER(RouterConfig)),
        ("router", POINTER(RouterWeights)),
        ("apply_router_weight_on_input", c_int32),
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("in_dtype", c_int32),
        ("activation", POINTER(Activation)),
        ("experts", POINTER(ExpertWeights)),
        ("placement", POINTER(Placement)),
        ("shared", POINTER(ExpertWeights)),
        ("shared_gate", POINTER(Tensor)),
    ]


class LayerInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_experts", c_int64),
        ("num_local_experts", c_int64),
        ("topk", c_int64),
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("in_dtype", c_int32),
        ("has_router", c_int32),
        ("retains_weights", c_int32),
        ("can_be_captured", c_int32),
        ("experts", c_char_p),
        ("backend", c_char_p),
        ("why_not_captured", c_char_p),
    ]


class LayerInput(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("hidden", POINTER(Tensor)),
        ("topk_ids", POINTER(Tensor)),
        ("topk_weights", POINTER(Tensor)),
        ("lora_ids", POINTER(Tensor)),
        ("kernel", POINTER(KernelOptions)),
        ("microbatch", c_int32),
        ("a2_scale", POINTER(Tensor)),
    ]
