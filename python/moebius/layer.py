# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""MoeLayer: router, experts and shared experts; hidden states go in, the output comes out.

Letters: T tokens of this rank, H hidden, E experts, L local experts, K top-k, I intermediate size
of an expert, Is of the shared experts, N rows of w1 (2 * I for gated experts, else I)."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import byref, c_int32, c_int64, pointer
from dataclasses import dataclass
from typing import Any, Optional, Union

from . import _structs as s
from ._dtypes import NAMES, dtype_code
from ._handles import Handle, optional_handle
from ._library import lib
from ._values import instance
from .checkpoint import Checkpoint, Path
from .errors import InvalidArgument, check, create
from .experts import LoraWeights, activation_struct, stream_of_device, weights_dtype, weights_struct
from .groups import Group
from .layer_options import KernelOptions, LayerOptions, kernel_pointer
from .placement import placement_pointer
from .quant import QuantConfig
from .router import RouterConfig, router_weights
from .tensors import SupportsDLPack, kind_of, named_stream, stream_handle, view_pointer

__all__ = ["LayerCall", "LayerInfo", "MoeLayer"]


@dataclass(frozen=True)
class LayerInfo:
    """What a layer is, fixed for its life."""

    num_experts: int
    num_local_experts: int
    topk: int
    hidden: int
    intermediate: int
    dtype: str
    """Hidden states of another type are rounded to it first."""
    has_router: bool
    """False: every call brings ids, or the caller's routing chooses."""
    retains_weights: bool
    """Whether the caller's weights must stay alive and in place; the layer then holds them."""
    can_be_captured: bool
    """Whether a CUDA graph can record calls."""
    why_not_captured: str
    experts: str
    """The implementation of the experts."""
    backend: str


class _Frame:
    """The structs of a call, which are kept for the next one."""

    def __init__(self) -> None:
        self.hidden, self.ids, self.weights, self.out = (s.Tensor() for _ in range(4))
        hidden, ids, weights = pointer(self.hidden), pointer(self.ids), pointer(self.weights)
        self.input = s.LayerInput(hidden=hidden)
        self.input_with_ids = s.LayerInput(hidden=hidden, topk_ids=ids, topk_weights=weights)
        self.input_ref, self.input_with_ids_ref = byref(self.input), byref(self.input_with_ids)
        self.out_ref = byref(self.out)

    def fill_ids(self, topk_ids: Any, topk_weights: Any) -> Any:
        """Gives what must live as long as the structs are used."""
        if topk_ids is None or topk_weights is None:
            missing, given = ("topk_ids", "topk_weights")[:: 1 if topk_ids is None else -1]
            raise InvalidArgument(f"{missing} is not given, expected one beside {given}")
        return (
            kind_of(topk_ids).fill(self.ids, topk_ids),
            kind_of(topk_weights).fill(self.weights, topk_weights),
        )


class MoeLayer(Handle):
    """A layer of experts, from a checkpoint or from tensors.

    Made here from tensors: w1 [L, N, H] and w2 [L, H, I] of this rank's experts, in the order of
    their ids, plain or as `quant` says; activation and dtype as in Experts.  gate [E, H], bias [E],
    correction_bias [E] and expert_scale [E] are the router's, with `router` as its config; without
    a gate each call brings ids, or the option `routing` chooses.  Shared experts: shared_w1
    [1, 2 * Is, H], shared_w2 [1, H, Is], and shared_gate [1, H] if there is one.
    In a group `num_experts` is that of all ranks, and `placement` has the rank of each expert; None
    is linear.  `hidden` and `intermediate` are those of whole experts, where ranks hold shards.
    The layer works on the device of `stream`, or on `device`, or where the group is, or where w1 is.
    `options` are the fields of LayerOptions.

    Making a layer and calling it is collective with a group.  One thread at a time may use it, its
    group and its transports; it keeps both alive."""

    _destroy = lib.layer_destroy
    info: LayerInfo
    _lent: Any = None

    def __init__(
        self,
        w1: SupportsDLPack,
        w2: SupportsDLPack,
        *,
        topk: int,
        num_experts: Optional[int] = None,
        dtype: Any = None,
        router: RouterConfig = RouterConfig(),
        gate: Optional[SupportsDLPack] = None,
        bias: Optional[SupportsDLPack] = None,
        correction_bias: Optional[SupportsDLPack] = None,
        expert_scale: Optional[SupportsDLPack] = None,
        apply_router_weight_on_input: bool = False,
        hidden: int = 0,
        intermediate: int = 0,
        activation: str = "silu",
        gated: bool = True,
        interleaved: bool = False,
        alpha: Optional[float] = None,
        beta: Optional[float] = None,
        limit: Optional[float] = None,
        quant: Optional[QuantConfig] = None,
        lora: Optional[LoraWeights] = None,
        shared_w1: Optional[SupportsDLPack] = None,
        shared_w2: Optional[SupportsDLPack] = None,
        shared_gate: Optional[SupportsDLPack] = None,
        placement: Optional[Sequence[int]] = None,
        group: Optional[Group] = None,
        device: Any = None,
        stream: Any = None,
        **options: Any,
    ) -> None:
        group_handle = optional_handle(group, Group, "group")
        experts = weights_struct(w1, w2, quant, lora)
        given = experts.w1.contents
        if num_experts is None:
            num_experts = len(placement) if placement is not None else given.shape[0]
            if placement is None and group is not None and group.size > 1:
                raise InvalidArgument("num_experts is not given, expected that of all ranks")
        weights = s.LayerWeights(
            router_config=pointer(
                instance(router, RouterConfig, "router")._struct(num_experts, topk)
            ),
            apply_router_weight_on_input=apply_router_weight_on_input,
            hidden=hidden,
            intermediate=intermediate,
            in_dtype=weights_dtype(given) if dtype is None else dtype_code(dtype),
            activation=pointer(
                activation_struct(activation, gated, interleaved, alpha, beta, limit)
            ),
            experts=pointer(experts),
            placement=placement_pointer(placement),
            shared_gate=view_pointer(shared_gate),
        )
        if any(x is not None for x in (gate, bias, correction_bias, expert_scale)):
            weights.router = pointer(router_weights(gate, bias, correction_bias, expert_scale))
        if shared_w1 is not None or shared_w2 is not None:
            weights.shared = pointer(weights_struct(shared_w1, shared_w2))
        if device is None and group is not None:
            device = group.device
        where = stream_of_device(stream, device, given.device)
        self._make(options, group_handle, lib.layer_create, weights, where)
        if self.info.retains_weights:
            self._lent = (w1, w2, quant, lora, shared_w1, shared_w2)

    @classmethod
    def from_checkpoint(
        cls,
        path: Union[Path, Checkpoint],
        layer: Optional[int] = None,
        *,
        group: Optional[Group] = None,
        device: Any = None,
        quant: str = "auto",
        placement: Optional[Sequence[int]] = None,
        allow_nonfinite: bool = False,
        stream: Any = None,
        **options: Any,
    ) -> MoeLayer:
        """Loads a layer of a Hugging Face model folder, in a group this rank's share of it.

        `path` is the folder, or a Checkpoint of it.  `layer` counts all layers of the model; None is
        the first that has experts.  `device`: "cpu" or "cuda:N"; None: that of the group, or the
        CPU.  `quant`: "auto" keeps weights as they are stored and quantizes activations as the
        checkpoint says; "none" keeps them, too, and quantizes no activations; other names, such as
        "int4_w4a16", quantize unquantized weights.  `placement` has the rank of each expert; None
        is linear.  `options` are the fields of LayerOptions.  Raises InvalidArgument for files that
        cannot be right, unless `allow_nonfinite` also for experts' weights with NaN or infinity.
        Collective with a group."""
        group_handle = optional_handle(group, Group, "group")
        checkpoint = path if isinstance(path, Checkpoint) else Checkpoint(path)
        load = s.LoadOptions(
            quant=quant,
            placement=placement_pointer(placement),
            allow_nonfinite=allow_nonfinite,
        )
        if device is None and group is not None:
            device = group.device
        where = stream_of_device(stream, device, s.Device(s.CPU, 0))
        made = cls.__new__(cls)
        index = -1 if layer is None else layer
        source = (checkpoint._get(), index, load)
        made._make(options, group_handle, lib.layer_load, *source, where)
        return made

    def _make(
        self, options: dict[str, Any], group: Optional[int], function: Any, *arguments: Any
    ) -> None:
        *source, where = arguments
        self._options = LayerOptions(**options)
        # The kind of tensors of the call under way, for callbacks.  They have this list rather than
        # the layer, which would otherwise refer to itself.
        self._kind: list[Any] = [None]
        self._options_struct = self._options._struct(self._kind)  # which holds the callbacks
        self._has_callbacks = (self._options.routing or self._options.shared_experts) is not None
        self._handle = create(function, *source, self._options_struct, group, where)
        self._where = where
        self._frames: list[_Frame] = []
        info = s.LayerInfo()
        check(lib.layer_get_info(self._handle, byref(info)))
        self.info = LayerInfo(
            num_experts=info.num_experts,
            num_local_experts=info.num_local_experts,
            topk=info.topk,
            hidden=info.hidden,
            intermediate=info.intermediate,
            dtype=NAMES[info.in_dtype],
            has_router=bool(info.has_router),
            retains_weights=bool(info.retains_weights),
            can_be_captured=bool(info.can_be_captured),
            why_not_captured=info.why_not_captured.decode(),
            experts=info.experts.decode(),
            backend=info.backend.decode(),
        )

    def __call__(
        self,
        hidden: SupportsDLPack,
        topk_ids: Optional[SupportsDLPack] = None,
        topk_weights: Optional[SupportsDLPack] = None,
        *,
        lora_ids: Optional[SupportsDLPack] = None,
        a2_scale: Optional[SupportsDLPack] = None,
        kernel: Optional[KernelOptions] = None,
        microbatch: int = 0,
        out: Any = None,
        stream: Any = None,
    ) -> Any:
        """hidden [T, H] f32, bf16 or f16 -> [T, H] of the same type, or in `out`, whose type may be
        another of the three.  `out` may be hidden itself.

        With topk_ids i32 or i64 [T, K] (-1 = masked) and topk_weights f32 [T, K] the layer does not
        route.  lora_ids i32 [T] name each token's adapter.  a2_scale f32 [T] has a scale for each
        token where a2 has calls_bring_scales.  `kernel` replaces the layer's options for this call.
        `microbatch` selects scratch memory; calls in flight need different ones.
        On a GPU the work is enqueued, on torch's current stream unless `stream` names one.
        Raises CommError where a rank was lost; on a GPU it may have been in an earlier call."""
        frame = self._frames.pop() if self._frames else _Frame()
        kind = kind_of(hidden)
        keep = kind.fill(frame.hidden, hidden)
        if out is None:
            out = kind.empty_like(hidden)
            kind.fill(frame.out, out)  # which needs nothing else to live
            keep_out = None
        else:
            keep_out = kind_of(out).fill(frame.out, out)
        if topk_ids is None and topk_weights is None:
            given: Any = frame.input_ref
            keep_ids = None
        else:
            given = frame.input_with_ids_ref
            keep_ids = frame.fill_ids(topk_ids, topk_weights)
        if microbatch or not (lora_ids is None and a2_scale is None and kernel is None):
            has_ids = topk_ids is not None
            given = self._full_input(frame, has_ids, lora_ids, a2_scale, kernel, microbatch)
        where = kind.stream_of(hidden) if stream is None else named_stream(stream)
        if self._has_callbacks:
            self._kind[0] = kind
        check(lib.layer_forward(self._handle or self._get(), given, frame.out_ref, where))
        del keep, keep_ids, keep_out
        self._frames.append(frame)
        return out

    @staticmethod
    def _full_input(
        frame: _Frame,
        has_ids: bool,
        lora_ids: Any,
        a2_scale: Any,
        kernel: Optional[KernelOptions],
        microbatch: int,
    ) -> s.LayerInput:
        simple = frame.input_with_ids if has_ids else frame.input
        return s.LayerInput(
            hidden=simple.hidden,
            topk_ids=simple.topk_ids,
            topk_weights=simple.topk_weights,
            lora_ids=view_pointer(lora_ids),
            kernel=kernel_pointer(kernel),
            microbatch=microbatch,
            a2_scale=view_pointer(a2_scale),
        )

    def start(
        self,
        hidden: SupportsDLPack,
        topk_ids: Optional[SupportsDLPack] = None,
        topk_weights: Optional[SupportsDLPack] = None,
        *,
        lora_ids: Optional[SupportsDLPack] = None,
        a2_scale: Optional[SupportsDLPack] = None,
        kernel: Optional[KernelOptions] = None,
        microbatch: int = 0,
        out: Any = None,
        stream: Any = None,
    ) -> LayerCall:
        """The same in steps of the caller.  It checks the arguments and enqueues nothing; the
        object keeps the tensors alive until the call is over."""
        frame = _Frame()
        kind = kind_of(hidden)
        if out is None:
            out = kind.empty_like(hidden)
        keep = [kind_of(out).fill(frame.out, out), kind.fill(frame.hidden, hidden)]
        has_ids = topk_ids is not None or topk_weights is not None
        if has_ids:
            keep.append(frame.fill_ids(topk_ids, topk_weights))
        input = self._full_input(frame, has_ids, lora_ids, a2_scale, kernel, microbatch)
        where = stream_handle(stream, hidden)
        self._kind[0] = kind
        handle = create(lib.layer_start, self._get(), input, frame.out_ref, where)
        return LayerCall(handle or 0, out, (self, input, keep))

    def update(
        self,
        w1: Optional[SupportsDLPack] = None,
        w2: Optional[SupportsDLPack] = None,
        *,
        quant: Optional[QuantConfig] = None,
        lora: Optional[LoraWeights] = None,
        shared_w1: Optional[SupportsDLPack] = None,
        shared_w2: Optional[SupportsDLPack] = None,
        shared_gate: Optional[SupportsDLPack] = None,
        gate: Optional[SupportsDLPack] = None,
        bias: Optional[SupportsDLPack] = None,
        correction_bias: Optional[SupportsDLPack] = None,
        expert_scale: Optional[SupportsDLPack] = None,
        stream: Any = None,
    ) -> None:
        """Replaces the values of weights in place, between calls, so that a recorded CUDA graph
        computes with the new ones.  Shapes and types are those of before, and what is None stays.
        Local: each rank updates its own share."""
        weights = s.LayerWeights(shared_gate=view_pointer(shared_gate))
        if any(x is not None for x in (w1, w2, lora)):
            weights.experts = pointer(weights_struct(w1, w2, quant, lora))
        if shared_w1 is not None or shared_w2 is not None:
            weights.shared = pointer(weights_struct(shared_w1, shared_w2))
        if any(x is not None for x in (gate, bias, correction_bias, expert_scale)):
            weights.router = pointer(router_weights(gate, bias, correction_bias, expert_scale))
        where = self._where if stream is None else named_stream(stream)
        check(lib.layer_update(self._get(), weights, where))

    def expert_load(self, *, local: bool = False) -> list[int]:
        """Of the last call: selections per expert [E] of this rank's tokens, or with `local` the
        rows that each expert of this rank has computed [L].  On a GPU the host waits."""
        count = self.info.num_local_experts if local else self.info.num_experts
        load = (c_int64 * count)()
        check(lib.layer_expert_load(self._get(), local, load, count))
        return list(load)

    def set_dead(self, rank: int, is_dead: bool = True) -> None:
        """low_latency: goes on without a rank, or takes it back; every live rank makes the same
        call.  The experts of that rank contribute nothing."""
        check(lib.layer_set_dead(self._get(), rank, is_dead))

    def check(self) -> None:
        """Raises the loss of a rank that is known by now (GPUs)."""
        check(lib.layer_check(self._get()))

    def __repr__(self) -> str:
        return f"moebius.MoeLayer({self.info})"


class LayerCall(Handle):
    """A call of a layer that the caller drives, so that other work fits between the steps:

        call = layer.start(hidden)
        while call.step():
            other_work()
        use(call.output)

    A call that is dropped before its end is given up, and other ranks are told."""

    _destroy = lib.call_destroy

    def __init__(self, handle: int, output: Any, keep: Any) -> None:
        self._handle = handle
        self._keep = keep
        self.output = output
        """[T, H]; complete once step() has returned False, on a GPU in the order of the stream."""

    def step(self) -> bool:
        """Runs until rows have been sent (True), or to the end of the call (False)."""
        has_more = c_int32()
        check(lib.call_step(self._get(), byref(has_more)))
        if not has_more.value:
            self._keep = None
        return bool(has_more.value)

    def __iter__(self) -> Iterator[None]:
        """Steps through the call; the body of the loop runs while rows travel."""
        while self.step():
            yield
