# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for modules of Megatron, vLLM and SGLang: what the files that deep_ep_callers.py runs
import besides torch and deep_ep, as far as they use it."""
from __future__ import annotations

import enum
import sys
import types
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch


def stand_in(name: str, **contents: Any) -> None:
    """A module of that name, and packages for the names before its dots."""
    parent = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        full = ".".join(parts[:count])
        module = sys.modules.setdefault(full, types.ModuleType(full))
        if count < len(parts):
            module.__path__ = []  # a package
        if parent is not None:
            setattr(parent, parts[count - 1], module)
        parent = module
    vars(parent).update(contents)


# vLLM.


class _ActivationFormat(enum.Enum):
    Standard = "standard"
    BatchedExperts = "batched_experts"


def _quantize_input(
    x: Any, scale: Any, dtype: Any, per_token: bool, block_shape: Any = None
) -> tuple[Any, Any]:
    """As vLLM's moe_kernel_quantize_input, for no type and for blocks of e4m3."""
    if dtype is None:
        return x, scale
    groups = x.float().unflatten(-1, (-1, block_shape[1]))
    scales = groups.abs().amax(-1).clamp(min=1e-4) / 448
    return (groups / scales.unsqueeze(-1)).flatten(-2).to(dtype), scales


def _moe_sum(rows: Any, out: Any) -> None:
    out.copy_(rows.sum(1))


def stand_in_for_vllm() -> None:
    stand_in(
        "vllm.model_executor.layers.fused_moe.modular_kernel",
        FusedMoEPrepareAndFinalize=type("FusedMoEPrepareAndFinalize", (), {}),
        FusedMoEActivationFormat=_ActivationFormat,
    )
    stand_in(
        "vllm.model_executor.layers.fused_moe.utils", moe_kernel_quantize_input=_quantize_input
    )
    stand_in("vllm._custom_ops", moe_sum=_moe_sum)


# SGLang.


class DeepEPMode(enum.Enum):
    NORMAL = "normal"
    LOW_LATENCY = "low_latency"
    AUTO = "auto"

    def enable_normal(self) -> bool:
        return self is not DeepEPMode.LOW_LATENCY

    def enable_low_latency(self) -> bool:
        return self is not DeepEPMode.NORMAL

    def resolve(self, is_extend_in_batch: bool) -> DeepEPMode:
        if self is not DeepEPMode.AUTO:
            return self
        return DeepEPMode.NORMAL if is_extend_in_batch else DeepEPMode.LOW_LATENCY


class _Format(enum.Enum):
    DEEPEP_NORMAL = "deepep_normal"
    DEEPEP_LL = "deepep_ll"


@runtime_checkable
class _HasFormat(Protocol):
    @property
    def format(self) -> Any: ...


class _Dispatcher:
    """As SGLang's BaseDispatcher."""

    def set_quant_config(self, quant_config: dict[str, Any]) -> None:
        self.quant_config = quant_config


class _DispatcherHooks:
    def __init__(self) -> None:
        self.hook_dict: dict[int, Any] = {}


@dataclass
class _Setting:
    value: Any

    def get(self) -> Any:
        return self.value


class TopKOutput(NamedTuple):
    topk_weights: Any
    topk_ids: Any


@dataclass
class Sglang:
    """What SGLang's configuration and state say to its dispatcher."""

    is_extend: bool = False
    sends_bf16: _Setting = field(default_factory=lambda: _Setting(True))
    counts: list[Any] = field(default_factory=list)  # what its recorder of loads is told

    def install(self) -> None:
        base = "sglang.srt.layers.moe."
        stand_in(
            "sglang.srt.environ",
            envs=types.SimpleNamespace(
                SGLANG_DEEPEP_BF16_DISPATCH=self.sends_bf16,
                SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=_Setting(16),
            ),
        )
        recorder = types.SimpleNamespace(
            on_deepep_dispatch_normal=lambda counts, **_: self.counts.append(counts),
            on_deepep_dispatch_low_latency=self.counts.append,
        )
        stand_in(
            "sglang.srt.eplb.expert_distribution",
            get_global_expert_distribution_recorder=lambda: recorder,
        )
        stand_in(
            "sglang.srt.layers",
            deep_gemm_wrapper=types.SimpleNamespace(
                ENABLE_JIT_DEEPGEMM=True, DEEPGEMM_BLACKWELL=False, DEEPGEMM_SCALE_UE8M0=False
            ),
        )
        stand_in(
            "sglang.srt.layers.dp_attention", get_is_extend_in_batch=lambda: self.is_extend
        )
        stand_in(
            base + "token_dispatcher.base",
            BaseDispatcher=_Dispatcher,
            BaseDispatcherConfig=object,
            CombineInput=_HasFormat,
            CombineInputFormat=_Format,
            DispatcherBaseHooks=_DispatcherHooks,
            DispatchOutput=_HasFormat,
            DispatchOutputFormat=_Format,
        )
        stand_in(base + "topk", TopKOutput=TopKOutput)
        stand_in(
            base + "utils",
            DeepEPMode=DeepEPMode,
            get_deepep_config=lambda: None,
            get_moe_runner_backend=lambda: types.SimpleNamespace(is_cutlass=lambda: False),
            is_tbo_enabled=lambda: False,
        )
        stand_in(
            "sglang.srt.layers.quantization.fp8_kernel",
            sglang_per_token_group_quant_fp8=lambda x, size, **_: _quantize_input(
                x, None, torch.float8_e4m3fn, False, [size, size]  # type: ignore[attr-defined]
            ),
        )
        no: Any = lambda *_: False
        stand_in(
            "sglang.srt.utils",
            get_bool_env_var=no,
            is_blackwell=no,
            is_hip=no,
            is_npu=no,
            load_json_config=no,
        )


def stand_in_for_a_gpu() -> None:
    """The dispatcher asks torch for the GPU, which it only counts SMs of."""
    cuda: Any = torch.cuda
    cuda.get_device_properties = lambda device: types.SimpleNamespace(multi_processor_count=132)
