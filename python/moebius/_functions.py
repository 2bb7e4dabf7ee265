# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The functions of moebius_c.h: what they return and take, without the prefix moebius_.  Integers
and texts have the names that they have there.

A test compares this file with the header."""
from __future__ import annotations

from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

from . import _structs as s
from ._values import Argument


def _i32(name: str) -> Argument:
    return Argument(c_int32, name)


def _i64(name: str) -> Argument:
    return Argument(c_int64, name)


def _u64(name: str) -> Argument:
    return Argument(c_uint64, name)


def _text(name: str) -> Argument:
    return Argument(c_char_p, name)


FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "last_error": (c_int32, [POINTER(s.ErrorInfo)]),
    "status_name": (c_char_p, [_i32("status")]),
    "abi_version": (c_int32, []),
    "version": (c_char_p, []),
    "set_setting": (c_int32, [_text("name"), _text("value")]),
    "get_setting": (c_int32, [_text("name"), c_char_p, _u64("room"), POINTER(c_size_t)]),
    "num_settings": (c_int64, []),
    "setting_at": (c_int32, [_i64("index"), POINTER(s.SettingInfo)]),
    "set_log_function": (c_int32, [s.LogFunction, c_void_p]),
    "set_interrupt_function": (c_int32, [s.InterruptFunction, c_void_p]),
    "cuda_device_count": (c_int32, []),
    "expect_usable": (c_int32, [s.Device]),
    "set_allocator": (c_int32, [s.Device, POINTER(s.Allocator)]),
    "get_memory_statistics": (c_int32, [s.Device, POINTER(s.MemoryStatistics)]),
    "reset_peak_memory": (c_int32, [s.Device]),
    "trim_memory": (c_int32, [s.Device]),
    "set_executor": (c_int32, [s.ExecutorFunction, c_void_p]),
    "stream_cpu": (c_int32, [_i32("num_threads"), POINTER(c_void_p)]),
    "stream_cuda": (c_int32, [_i32("index"), POINTER(c_void_p)]),
    "stream_wrap_cuda": (c_int32, [c_void_p, _i32("index"), POINTER(c_void_p)]),
    "stream_synchronize": (c_int32, [c_void_p]),
    "stream_capture_id": (c_int32, [c_void_p, POINTER(c_uint64)]),
    "stream_get_cuda": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "stream_destroy": (c_int32, [c_void_p]),
    "stream_wait_stream": (c_int32, [c_void_p, c_void_p]),
    "stream_record": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "stream_wait": (c_int32, [c_void_p, c_void_p]),
    "event_is_complete": (c_int32, [c_void_p, POINTER(c_int32)]),
    "event_destroy": (c_int32, [c_void_p]),
    "dtype_name": (c_char_p, [_i32("dtype")]),
    "dtype_bits": (c_int32, [_i32("dtype")]),
    "array_empty": (
        c_int32,
        [_i32("dtype"), s.Device, _i32("num_dims"), POINTER(c_int64), POINTER(c_void_p)],
    ),
    "array_view": (c_int32, [c_void_p, POINTER(s.Tensor)]),
    "array_record_stream": (c_int32, [c_void_p, c_void_p]),
    "array_destroy": (c_int32, [c_void_p]),
    "array_from_dlpack": (
        c_int32,
        [c_void_p, _i32("is_versioned"), _i32("as_dtype"), POINTER(c_void_p)],
    ),
    "array_to_dlpack": (c_int32, [c_void_p, _i32("is_versioned"), POINTER(c_void_p)]),
    "copy": (c_int32, [POINTER(s.Tensor), POINTER(s.Tensor), c_void_p]),
    "make_thread_groups": (
        c_int32,
        [_i32("num_ranks"), POINTER(s.GroupOptions), POINTER(c_void_p)],
    ),
    "make_process_group": (
        c_int32,
        [
            _i32("rank"),
            _i32("size"),
            s.AllGatherFunction,
            c_void_p,
            POINTER(s.GroupOptions),
            POINTER(c_void_p),
        ],
    ),
    "make_mpi_group": (c_int32, [c_void_p, POINTER(s.GroupOptions), POINTER(c_void_p)]),
    "make_cuda_group": (c_int32, [c_void_p, _i32("cuda_index"), POINTER(c_void_p)]),
    "make_nccl_group": (c_int32, [c_void_p, _i32("cuda_index"), c_void_p, POINTER(c_void_p)]),
    "make_nccl_group_of": (c_int32, [c_void_p, _i64("timeout_ms"), POINTER(c_void_p)]),
    "group_get_info": (c_int32, [c_void_p, POINTER(s.GroupInfo)]),
    "group_barrier": (c_int32, [c_void_p]),
    "group_all_gather": (c_int32, [c_void_p, c_void_p, _i64("bytes"), c_void_p]),
    "group_split": (c_int32, [c_void_p, _i32("color"), _i32("key"), POINTER(c_void_p)]),
    "group_abort": (c_int32, [c_void_p, _text("why")]),
    "group_set_dead": (c_int32, [c_void_p, _i32("rank"), _i32("is_dead")]),
    "group_destroy": (c_int32, [c_void_p]),
    "rebalance": (
        c_int32,
        [
            POINTER(c_float),
            _i64("num_layers"),
            _i64("num_experts"),
            POINTER(s.RebalanceOptions),
            POINTER(s.Rebalanced),
        ],
    ),
    "quantized_shapes": (
        c_int32,
        [POINTER(s.QuantSpec), _i64("rows"), _i64("cols"), s.Device, POINTER(s.Quantized)],
    ),
    "quantize": (
        c_int32,
        [
            POINTER(s.Tensor),
            POINTER(s.QuantSpec),
            POINTER(s.Quantized),
            POINTER(s.Tensor),
            POINTER(s.Tensor),
            c_void_p,
        ],
    ),
    "dequantize": (
        c_int32,
        [POINTER(s.Quantized), POINTER(s.QuantSpec), POINTER(s.Tensor), c_void_p],
    ),
    "router_create": (
        c_int32,
        [POINTER(s.RouterConfig), POINTER(s.RouterWeights), s.Device, POINTER(c_void_p)],
    ),
    "router_logits": (c_int32, [c_void_p, POINTER(s.Tensor), POINTER(s.Tensor), c_void_p]),
    "router_select": (
        c_int32,
        [c_void_p, POINTER(s.Tensor), POINTER(s.Tensor), POINTER(s.Tensor), c_void_p],
    ),
    "router_update": (c_int32, [c_void_p, POINTER(s.RouterWeights), c_void_p]),
    "router_destroy": (c_int32, [c_void_p]),
    "count_expert_tokens": (
        c_int32,
        [POINTER(s.Tensor), POINTER(s.Tensor), POINTER(s.Tensor), c_void_p],
    ),
    "experts_create": (
        c_int32,
        [POINTER(s.ExpertWeights), POINTER(s.ExpertsOptions), c_void_p, POINTER(c_void_p)],
    ),
    "experts_get_info": (c_int32, [c_void_p, POINTER(s.ExpertsInfo)]),
    "experts_forward": (
        c_int32,
        [
            c_void_p,
            POINTER(s.Tensor),
            POINTER(s.Tensor),
            POINTER(s.Tensor),
            POINTER(s.Tensor),
            POINTER(s.Tensor),
            c_void_p,
        ],
    ),
    "experts_apply": (c_int32, [c_void_p, POINTER(s.ExpertsInput), POINTER(s.Tensor), c_void_p]),
    "experts_update": (c_int32, [c_void_p, POINTER(s.ExpertWeights), c_void_p]),
    "experts_destroy": (c_int32, [c_void_p]),
    "transports_create": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "transports_reserve_low_latency": (c_int32, [c_void_p, _i64("bytes")]),
    "transports_bytes": (c_int32, [c_void_p, POINTER(c_int64)]),
    "transports_destroy": (c_int32, [c_void_p]),
    "result_array": (c_int32, [c_void_p, _text("name"), _i32("index"), POINTER(c_void_p)]),
    "result_dlpack": (c_int32, [c_void_p, POINTER(s.DlpackArrays)]),
    "result_wait": (c_int32, [c_void_p, c_void_p]),
    "result_event": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "result_destroy": (c_int32, [c_void_p]),
    "pending_hook": (c_int32, [c_void_p]),
    "pending_finish": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "pending_take": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "pending_destroy": (c_int32, [c_void_p]),
    "high_throughput_create": (
        c_int32,
        [c_void_p, POINTER(s.HighThroughputOptions), POINTER(c_void_p)],
    ),
    "high_throughput_layout": (
        c_int32,
        [c_void_p, POINTER(s.LayoutInput), c_void_p, POINTER(c_void_p)],
    ),
    "high_throughput_dispatch": (
        c_int32,
        [c_void_p, POINTER(s.DispatchInput), c_void_p, POINTER(c_void_p)],
    ),
    "high_throughput_dispatch_start": (
        c_int32,
        [c_void_p, POINTER(s.DispatchInput), c_void_p, POINTER(c_void_p)],
    ),
    "high_throughput_dispatch_cached": (
        c_int32,
        [c_void_p, POINTER(s.DispatchInput), c_void_p, c_void_p, POINTER(c_void_p)],
    ),
    "high_throughput_expert_order": (
        c_int32,
        [c_void_p, c_void_p, _i64("expert_alignment"), c_void_p, POINTER(c_void_p)],
    ),
    "high_throughput_combine": (
        c_int32,
        [c_void_p, POINTER(s.CombineInput), c_void_p, c_void_p, POINTER(c_void_p)],
    ),
    "high_throughput_combine_start": (
        c_int32,
        [c_void_p, POINTER(s.CombineInput), c_void_p, c_void_p, POINTER(c_void_p)],
    ),
    "high_throughput_set_sms": (c_int32, [c_void_p, _i32("dispatch_sms"), _i32("combine_sms")]),
    "high_throughput_bytes": (c_int32, [c_void_p, POINTER(c_int64)]),
    "high_throughput_statistics": (c_int32, [c_void_p, POINTER(s.TransportStatistics)]),
    "high_throughput_trim": (c_int32, [c_void_p]),
    "high_throughput_destroy": (c_int32, [c_void_p]),
    "low_latency_create": (c_int32, [c_void_p, POINTER(s.LowLatencyOptions), POINTER(c_void_p)]),
    "low_latency_size_hint": (
        c_int32,
        [POINTER(s.LowLatencyOptions), _i32("num_ranks"), s.Device, POINTER(c_int64)],
    ),
    "low_latency_dispatch": (
        c_int32,
        [c_void_p, POINTER(s.LowLatencyDispatchInput), c_void_p, POINTER(c_void_p)],
    ),
    "low_latency_dispatch_start": (
        c_int32,
        [c_void_p, POINTER(s.LowLatencyDispatchInput), c_void_p, POINTER(c_void_p)],
    ),
    "low_latency_combine": (
        c_int32,
        [c_void_p, POINTER(s.LowLatencyCombineInput), c_void_p, c_void_p, POINTER(c_void_p)],
    ),
    "low_latency_combine_start": (
        c_int32,
        [c_void_p, POINTER(s.LowLatencyCombineInput), c_void_p, c_void_p, POINTER(c_void_p)],
    ),
    "low_latency_set_dead": (c_int32, [c_void_p, _i32("rank"), _i32("is_dead")]),
    "low_latency_dead_ranks": (c_int32, [c_void_p, POINTER(c_int32)]),
    "low_latency_check": (c_int32, [c_void_p]),
    "low_latency_bytes": (c_int32, [c_void_p, POINTER(c_int64)]),
    "low_latency_statistics": (c_int32, [c_void_p, POINTER(s.TransportStatistics)]),
    "low_latency_destroy": (c_int32, [c_void_p]),
    "checkpoint_open": (c_int32, [_text("directory"), POINTER(c_void_p)]),
    "checkpoint_get_info": (c_int32, [c_void_p, POINTER(s.ModelInfo)]),
    "checkpoint_destroy": (c_int32, [c_void_p]),
    "make_model": (
        c_int32,
        [
            _text("preset"),
            _i64("num_layers"),
            _text("quant"),
            _u64("seed"),
            _text("directory"),
            POINTER(c_int64),
        ],
    ),
    "workspaces_create": (c_int32, [POINTER(c_void_p)]),
    "workspaces_bytes": (c_int32, [c_void_p, POINTER(c_int64)]),
    "workspaces_trim": (c_int32, [c_void_p]),
    "workspaces_destroy": (c_int32, [c_void_p]),
    "layer_load": (
        c_int32,
        [
            c_void_p,
            _i64("layer_index"),
            POINTER(s.LoadOptions),
            POINTER(s.LayerOptions),
            c_void_p,
            c_void_p,
            POINTER(c_void_p),
        ],
    ),
    "layer_create": (
        c_int32,
        [POINTER(s.LayerWeights), POINTER(s.LayerOptions), c_void_p, c_void_p, POINTER(c_void_p)],
    ),
    "layer_get_info": (c_int32, [c_void_p, POINTER(s.LayerInfo)]),
    "layer_forward": (c_int32, [c_void_p, POINTER(s.LayerInput), POINTER(s.Tensor), c_void_p]),
    "layer_start": (
        c_int32,
        [c_void_p, POINTER(s.LayerInput), POINTER(s.Tensor), c_void_p, POINTER(c_void_p)],
    ),
    "call_step": (c_int32, [c_void_p, POINTER(c_int32)]),
    "call_destroy": (c_int32, [c_void_p]),
    "layer_update": (c_int32, [c_void_p, POINTER(s.LayerWeights), c_void_p]),
    "layer_set_dead": (c_int32, [c_void_p, _i32("rank"), _i32("is_dead")]),
    "layer_check": (c_int32, [c_void_p]),
    "layer_expert_load": (c_int32, [c_void_p, _i32("is_local"), POINTER(c_int64), _i64("count")]),
    "layer_destroy": (c_int32, [c_void_p]),
}
