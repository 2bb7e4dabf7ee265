# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""MoeLayer from tensors and from synthetic checkpoints."""
from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Weights, reference_experts, relative_error, run_threads, torch

import moebius
from moebius import _structs
from moebius._library import lib
from moebius.errors import check

MODEL = Weights()
CONFIG = moebius.RouterConfig(renormalize=True)


def make(group: Any = None, **options: Any) -> moebius.MoeLayer:
    """A layer of MODEL, in a group this rank's experts."""
    mine = slice(None)
    if group is not None and "placement" not in options:
        each = 8 // group.size
        mine = slice(group.rank * each, (group.rank + 1) * each)
    given = {"gate": MODEL.gate, "router": CONFIG, "num_experts": 8, "topk": 2, **options}
    return moebius.MoeLayer(MODEL.w1[mine], MODEL.w2[mine], group=group, **given)


def expected_of(hidden: Any) -> Any:
    ids, weights = moebius.Router(8, 2, CONFIG, gate=MODEL.gate)(hidden)
    return reference_experts(MODEL.w1, MODEL.w2, hidden, ids, weights)


def test_layers_route_and_compute() -> None:
    hidden = MODEL.tokens(10)[0]
    layer = make()
    out = layer(hidden)
    assert out.dtype == np.float32 and relative_error(out, expected_of(hidden)) < 1e-2
    assert sum(layer.expert_load()) == sum(layer.expert_load(local=True)) == 20
    info = layer.info
    assert (info.num_experts, info.num_local_experts, info.topk, info.hidden) == (8, 8, 2, 64)
    assert info.has_router and info.dtype == "f32" and info.backend == "no_ep"
    assert "MoeLayer" in repr(layer)
    layer.check()


def test_ids_and_weights_may_come_from_elsewhere() -> None:
    hidden, ids, weights = MODEL.tokens(6)
    layer = make(gate=None)
    assert not layer.info.has_router
    expected = reference_experts(MODEL.w1, MODEL.w2, hidden, ids, weights)
    assert relative_error(layer(hidden, ids.astype(np.int64), weights), expected) < 1e-2
    with pytest.raises(moebius.InvalidArgument):
        layer(hidden)
    with pytest.raises(moebius.InvalidArgument, match="topk_weights is not given"):
        layer(hidden, ids)
    with pytest.raises(moebius.InvalidArgument, match="topk_ids is not given"):
        layer.start(hidden, None, weights)
    assert layer(hidden, ids, weights, out=hidden) is hidden
    assert relative_error(hidden, expected) < 1e-2


def test_shared_experts_are_added() -> None:
    hidden = MODEL.tokens(4)[0]
    w1, w2 = MODEL.w1[:1] * 2, MODEL.w2[:1]
    layer = make(shared_w1=w1, shared_w2=w2)
    ones, zeros = np.ones((4, 1), np.float32), np.zeros((4, 1), np.int32)
    expected = expected_of(hidden) + reference_experts(w1, w2, hidden, zeros, ones)
    assert relative_error(layer(hidden), expected) < 1e-2
    layer.update(shared_w2=w2 * 0, shared_w1=w1)
    assert relative_error(layer(hidden), expected_of(hidden)) < 1e-2


def test_routing_and_shared_experts_may_be_the_callers() -> None:
    hidden, ids, weights = MODEL.tokens(5)
    kinds = []

    def routing(given: Any, ids_out: Any, weights_out: Any) -> None:
        kinds.append(type(given))
        np.testing.assert_array_equal(given, hidden)
        ids_out[:], weights_out[:] = ids, weights

    def shared(given: Any, output: Any) -> None:
        output[:] = 3 * given

    layer = make(gate=None, routing=routing, shared_experts=shared)
    expected = reference_experts(MODEL.w1, MODEL.w2, hidden, ids, weights) + 3 * hidden
    assert relative_error(layer(hidden), expected) < 1e-2
    assert kinds == [np.ndarray]

    def fails(given: Any, ids_out: Any, weights_out: Any) -> None:
        raise LookupError("no route")

    with pytest.raises(LookupError, match="no route"):
        make(gate=None, routing=fails)(hidden)


def test_callbacks_get_arrays_where_numpy_has_no_type() -> None:
    seen = []

    def routing(given: Any, ids: Any, weights: Any) -> None:
        seen.append(given)
        ids[:], weights[:] = 0, 1

    layer = make(gate=None, routing=routing, dtype="bf16")
    hidden = moebius.Array.from_numpy(np.zeros((2, 64), np.uint16), "bf16")
    out = layer(hidden, out=np.empty((2, 64), np.float32))
    assert not out.any() and len(seen) == 1
    if "ml_dtypes" not in sys.modules:
        assert isinstance(seen[0], moebius.Array) and seen[0].dtype == "bf16"


def test_updates_replace_values_in_place() -> None:
    hidden = MODEL.tokens(6)[0]
    layer = make()
    before = layer(hidden)
    layer.update(w1=MODEL.w1, w2=MODEL.w2 * 2)
    np.testing.assert_array_equal(layer(hidden), before * 2)
    layer.update(gate=-MODEL.gate)
    assert (layer(hidden) != before * 2).any()
    with pytest.raises(moebius.InvalidArgument):
        layer.update(w2=MODEL.w2[:, :, :8])


def test_options_are_those_of_layer_options() -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        make(no_such_option=1)
    with pytest.raises(moebius.InvalidArgument):
        make(backend="pigeons", group=moebius.Group.threads(1)[0])
    hidden = MODEL.tokens(9)[0]
    workspaces = moebius.Workspaces()
    layer = make(
        workspaces=workspaces,
        kernel=moebius.KernelOptions(chunk_tokens=4),
        experts="ref",
        lends_weights=True,
    )
    assert layer.info.experts == "ref" and layer.info.retains_weights
    expected = expected_of(hidden)
    assert relative_error(layer(hidden), expected) < 1e-2
    once = layer(hidden, kernel=moebius.KernelOptions(min_microbatch_tokens=0), microbatch=1)
    assert relative_error(once, expected) < 1e-2
    assert workspaces.nbytes > 0
    workspaces.trim()
    assert workspaces.nbytes == 0
    oracle = make(computes_in_f64=True)
    assert relative_error(oracle(hidden), expected) < 1e-5


def test_adapters_of_tokens() -> None:
    lora = moebius.LoraWeights(
        w2_a=MODEL.normal(2, 8, 4, 32) / 8, w2_b=MODEL.normal(2, 8, 64, 4), scaling=np.float32([1, 2])
    )
    layer = make(lora=lora)
    hidden = MODEL.tokens(3)[0]
    plain = layer(hidden)
    tuned = layer(hidden, lora_ids=np.int32([1, -1, 0]))
    assert (tuned[1] == plain[1]).all() and (tuned[0] != plain[0]).any()


def test_steps_give_the_bits_of_a_call() -> None:
    def body(group: moebius.Group) -> None:
        layer = make(group)
        hidden = MODEL.normal(6, 64) + group.rank
        expected = layer(hidden)
        call = layer.start(hidden)
        steps = 0
        while call.step():
            steps += 1
        np.testing.assert_array_equal(call.output, expected)
        assert steps > 0
        with layer.start(hidden, out=np.empty_like(hidden)) as call:
            assert sum(1 for _ in call) == steps
            np.testing.assert_array_equal(call.output, expected)

    run_threads(body, 2)


def test_a_call_that_is_dropped_is_given_up() -> None:
    layer = make()
    hidden = MODEL.tokens(4)[0]
    expected = layer(hidden)
    call = layer.start(hidden)
    with pytest.raises(moebius.InvalidArgument):
        layer(hidden)
    del call
    gc.collect()
    np.testing.assert_array_equal(layer(hidden), expected)


@pytest.mark.parametrize("backend", ["high_throughput", "allgather_reducescatter", "low_latency"])
def test_ranks_give_what_one_rank_gives(backend: str) -> None:
    format = "batched" if backend == "low_latency" else "standard"

    def body(group: moebius.Group) -> None:
        transports = moebius.Transports(group)
        layer = make(group, backend=backend, format=format, transports=transports)
        assert layer.info.num_local_experts == 2 and backend in layer.info.backend
        hidden = np.random.default_rng(group.rank).standard_normal((3 + group.rank, 64))
        hidden = hidden.astype(np.float32)
        assert relative_error(layer(hidden), expected_of(hidden)) < 1e-2

    run_threads(body, 4)


def test_ranks_of_a_layer_need_the_number_of_experts() -> None:
    groups = moebius.Group.threads(2)
    with pytest.raises(moebius.InvalidArgument, match="num_experts is not given"):
        moebius.MoeLayer(MODEL.w1[:4], MODEL.w2[:4], topk=2, group=groups[0])


def test_placements_say_where_experts_live() -> None:
    placement = [0, 1, 1, 0, 1, 0, 0, 0]

    def body(group: moebius.Group) -> None:
        mine = moebius.placement.experts_of(group.rank, placement)
        layer = moebius.MoeLayer(
            MODEL.w1[mine],
            MODEL.w2[mine],
            topk=2,
            gate=MODEL.gate,
            router=CONFIG,
            placement=placement,
            group=group,
        )
        assert layer.info.num_local_experts == len(mine)
        hidden = MODEL.normal(4, 64)
        assert relative_error(layer(hidden), expected_of(hidden)) < 1e-2

    run_threads(body, 2)


def test_experts_may_be_sharded_over_ranks() -> None:
    hidden = MODEL.tokens(6)[0]

    def body(group: moebius.Group) -> None:
        half = slice(group.rank * 16, group.rank * 16 + 16)
        gate, up = np.split(MODEL.w1, 2, axis=1)
        w1 = np.concatenate([gate[:, half], up[:, half]], axis=1)
        layer = moebius.MoeLayer(
            w1,
            np.ascontiguousarray(MODEL.w2[:, :, half]),
            topk=2,
            num_experts=8,
            gate=MODEL.gate,
            router=CONFIG,
            intermediate=32,
            group=group,
            backend="none",
            tp_size=2,
            expert_parallel=False,
        )
        assert relative_error(layer(hidden), expected_of(hidden)) < 1e-2

    run_threads(body, 2)


def test_low_latency_layers_go_on_without_a_rank() -> None:
    def body(group: moebius.Group) -> None:
        layer = make(group, backend="low_latency", format="batched")
        if group.rank < 3:
            layer.set_dead(3)
            assert np.isfinite(layer(MODEL.normal(2, 64))).all()

    run_threads(body, 4)


def test_a_lost_rank_is_a_comm_error() -> None:
    def body(group: moebius.Group) -> Any:
        layer = make(group)
        if group.rank == 1:
            group.abort("gone fishing")
            return None
        with pytest.raises(moebius.CommError, match="gone fishing") as caught:
            layer(MODEL.normal(2, 64))
        return caught.value.peer

    assert run_threads(body, 2) == [1, None]


def test_keyboard_interrupt_ends_the_call_of_a_layer() -> None:
    groups = moebius.Group.threads(2, timeout=60)
    made: list[Any] = [None, None]
    threads = [
        threading.Thread(target=lambda rank=rank: made.__setitem__(rank, make(groups[rank])))
        for rank in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        made[0](MODEL.normal(2, 64))
    with pytest.raises(moebius.CommError) as caught:
        made[1](MODEL.normal(2, 64))
    assert caught.value.peer == 0


def test_an_interrupt_during_the_making_of_a_layer_leaves_none() -> None:
    # A log function of C raises the signal inside the call, so its handler runs when that returns.
    raise_signal = ctypes.cast(ctypes.CDLL(None)["raise"], _structs.LogFunction)
    gc.collect()
    before = moebius.memory_statistics("cpu").bytes
    moebius.set_setting("MOEBIUS_LOG", "dispatch")
    try:
        check(lib.set_log_function(raise_signal, signal.SIGINT))
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                make()
    finally:
        moebius.set_setting("MOEBIUS_LOG", None)
        moebius.log_to_stderr()
    gc.collect()
    assert moebius.memory_statistics("cpu").bytes == before


def test_a_layer_ends_with_its_last_reference() -> None:
    gc.disable()
    try:
        layer = make(gate=None, routing=lambda hidden, ids, weights: (ids.fill(0), weights.fill(1)))
        layer(MODEL.tokens(2)[0])
        layer.start(MODEL.tokens(2)[0]).close()
        ref = weakref.ref(layer)
        del layer
        assert ref() is None
    finally:
        gc.enable()


def test_an_output_overlaps_no_ids_or_weights() -> None:
    layer, (hidden, ids, weights) = make(), MODEL.tokens(4)
    out = np.zeros_like(hidden)
    for given, what in ((ids.astype(np.int32), "topk_ids"), (weights, "topk_weights")):
        over = out.reshape(-1)[: given.size].view(given.dtype).reshape(given.shape)
        over[:] = given
        both = (over, weights) if what == "topk_ids" else (ids, over)
        with pytest.raises(moebius.InvalidArgument, match=f"output overlaps {what}"):
            layer(hidden, *both, out=out)
        np.testing.assert_array_equal(over, given)


def test_a_closed_layer_says_so() -> None:
    layer = make()
    layer.close()
    with pytest.raises(moebius.InvalidArgument, match="this MoeLayer has been closed"):
        layer(MODEL.tokens(2)[0])


def test_results_outlive_their_layer() -> None:
    layer = make()
    hidden = MODEL.tokens(4)[0]
    given = moebius.Array.from_numpy(hidden)
    out = layer(given)
    expected = layer(hidden)
    del layer, given
    gc.collect()
    assert isinstance(out, moebius.Array)
    np.testing.assert_array_equal(out.numpy(), expected)


def test_threads_that_use_a_layer_at_once_never_get_wrong_results() -> None:
    layer = make()
    inputs = [MODEL.tokens(1 + index)[0] for index in range(4)]
    expected = [layer(hidden) for hidden in inputs]
    wrong: list[Any] = []

    def run(index: int) -> None:
        for _ in range(300):
            try:
                if (layer(inputs[index]) != expected[index]).any():
                    wrong.append("values")
            except moebius.InvalidArgument:
                pass  # another thread was using it
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_gil_is_released() -> None:
    groups = moebius.Group.threads(2, timeout=60)
    # This thread waits in the library; the other could not come if it held the lock.
    other = threading.Timer(0.2, groups[1].barrier)
    other.start()
    groups[0].barrier()
    other.join()


def test_synthetic_models_are_made_and_loaded(tmp_path: Path) -> None:
    assert moebius.make_model("tiny", tmp_path, quant="int4", seed=3) > 0
    checkpoint = moebius.Checkpoint(tmp_path)
    layer = moebius.MoeLayer.from_checkpoint(checkpoint)
    hidden = np.ones((2, layer.info.hidden), np.float32)
    assert np.isfinite(layer(hidden)).all()
    assert moebius.MoeLayer.from_checkpoint(tmp_path, quant="none")(hidden).shape == hidden.shape
    with pytest.raises(moebius.InvalidArgument):
        moebius.make_model("no such model", tmp_path)


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_torch_tensors_give_torch_tensors() -> None:
    kinds = []

    def shared(given: Any, output: Any) -> None:
        kinds.append(type(given))
        output.copy_(given)

    tensors = [torch.from_numpy(x) for x in (MODEL.w1, MODEL.w2, MODEL.gate)]
    layer = moebius.MoeLayer(
        tensors[0], tensors[1], topk=2, gate=tensors[2], router=CONFIG, shared_experts=shared
    )
    hidden = MODEL.tokens(5)[0]
    out = layer(torch.from_numpy(hidden))
    assert isinstance(out, torch.Tensor) and kinds == [torch.Tensor]
    assert relative_error(out.numpy(), expected_of(hidden) + hidden) < 1e-2
    with torch.no_grad():
        bf16 = layer(torch.from_numpy(hidden).bfloat16())
    assert bf16.dtype == torch.bfloat16
