# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The package on a GPU with torch.  Where pytest is missing, run this file itself."""
from __future__ import annotations

import gc
import sys
import tempfile
from typing import Any

import numpy as np
from helpers import NO_GPU, Weights, relative_error, run_threads, torch

import moebius

try:
    import pytest

    pytestmark = pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU)
except ImportError:
    pass

MODEL = Weights(hidden=256, intermediate=128)
CONFIG = moebius.RouterConfig(renormalize=True)


def on_gpu(x: Any, dtype: Any = None) -> Any:
    tensor = torch.from_numpy(x).cuda()
    return tensor if dtype is None else tensor.to(dtype)


def make(device: str, **options: Any) -> moebius.MoeLayer:
    given = [torch.from_numpy(x).bfloat16() for x in (MODEL.w1, MODEL.w2, MODEL.gate)]
    w1, w2, gate = (x.to(device) for x in given)
    return moebius.MoeLayer(w1, w2, topk=2, gate=gate, router=CONFIG, device=device, **options)


def hidden_states(tokens: int = 7) -> Any:
    return on_gpu(MODEL.tokens(tokens)[0], torch.bfloat16)


def test_layers_give_what_they_give_on_the_cpu() -> None:
    hidden = hidden_states()
    out = make("cuda")(hidden)
    assert out.device == hidden.device and out.dtype == torch.bfloat16
    expected = make("cpu")(hidden.cpu())
    assert relative_error(out.float().cpu(), expected.float()) < 1e-2


def test_a_checkpoint_is_loaded_onto_the_gpu() -> None:
    with tempfile.TemporaryDirectory() as folder:
        moebius.make_model("tiny", folder)
        layer = moebius.MoeLayer.from_checkpoint(folder, device="cuda:0")
        on_cpu = moebius.MoeLayer.from_checkpoint(folder)
    hidden = torch.randn(5, layer.info.hidden, device="cuda", dtype=torch.bfloat16)
    expected = on_cpu(hidden.cpu()).float()
    assert relative_error(layer(hidden).float().cpu(), expected) < 1e-2


def test_calls_follow_torchs_current_stream() -> None:
    layer = make("cuda")
    hidden = hidden_states()
    expected = layer(hidden)
    late = torch.zeros_like(hidden)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        late.copy_(hidden)  # after the sleep, and before the call
        out = layer(late)
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(out, expected)
    torch.cuda.synchronize()
    named = layer(hidden, stream=side)
    side.synchronize()
    assert torch.equal(named, expected)
    own = moebius.Stream.cuda(0)
    result = layer(hidden, stream=own)
    own.synchronize()
    assert torch.equal(result, expected)


def test_graphs_of_torch_replay_calls_and_follow_updates() -> None:
    layer = make("cuda")
    assert layer.info.can_be_captured, layer.info.why_not_captured
    hidden, out = hidden_states(), hidden_states()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        layer(hidden, out=out)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        layer(hidden, out=out)
    hidden.copy_(hidden_states())
    graph.replay()
    assert torch.equal(out, layer(hidden))
    w2 = on_gpu(MODEL.w2 * 2, torch.bfloat16)
    layer.update(w2=w2)
    before = out.clone()
    graph.replay()
    assert relative_error(out.float().cpu(), 2 * before.float().cpu()) < 1e-2


def test_callbacks_get_torch_tensors_on_the_stream() -> None:
    kinds = []

    def shared(hidden: Any, output: Any) -> None:
        kinds.append((type(hidden), hidden.device.type))
        output.copy_(hidden)

    hidden = hidden_states()
    out = make("cuda", shared_experts=shared)(hidden)
    expected = make("cuda")(hidden).float() + hidden.float()
    assert relative_error(out.float().cpu(), expected.cpu()) < 1e-2
    assert kinds == [(torch.Tensor, "cuda")]


def test_experts_and_routers() -> None:
    hidden, ids, weights = MODEL.tokens(6)
    given = (on_gpu(hidden, torch.bfloat16), on_gpu(ids).long(), on_gpu(weights))
    w1, w2 = on_gpu(MODEL.w1, torch.bfloat16), on_gpu(MODEL.w2, torch.bfloat16)
    out = moebius.Experts(w1, w2, topk=2)(*given)
    expected = moebius.Experts(w1.cpu(), w2.cpu(), topk=2)(*(x.cpu() for x in given))
    assert relative_error(out.float().cpu(), expected.float()) < 1e-2
    chosen, _ = moebius.Router(8, 2, gate=on_gpu(MODEL.gate))(on_gpu(hidden))
    expected_ids, _ = moebius.Router(8, 2, gate=MODEL.gate)(hidden)
    np.testing.assert_array_equal(chosen.cpu().numpy(), expected_ids)


def test_arrays_share_memory_with_torch() -> None:
    array = moebius.Array.empty((4, 8), "bf16", "cuda")
    assert array.device == "cuda:0"
    x = array.torch()
    x.fill_(1.5)
    y = torch.from_dlpack(array)
    assert y.data_ptr() == x.data_ptr() and y.is_cuda
    del array, x
    gc.collect()
    assert (y == 1.5).all()
    back = moebius.Array.from_dlpack(y)
    torch.cuda.synchronize()
    copy = moebius.Array.empty((4, 8), "bf16").copy_from(back, stream=moebius.Stream.cuda(0))
    torch.cuda.synchronize()
    assert (copy.torch() == 1.5).all()
    try:
        back.numpy()
    except moebius.Unsupported:
        pass
    else:
        raise AssertionError("numpy is not on a GPU")


def test_values_are_quantized_where_they_are() -> None:
    x = on_gpu(MODEL.normal(16, 256))
    quantized = moebius.quantize(x, moebius.QuantSpec("fp8", moebius.PER_TOKEN))
    if hasattr(torch, "float8_e4m3fn"):
        assert quantized.values.dtype == torch.float8_e4m3fn and quantized.values.is_cuda
    back = moebius.dequantize(quantized)
    assert back.is_cuda and relative_error(back.cpu(), x.cpu()) < 0.04


def test_two_ranks_share_the_gpu() -> None:
    def body(host: moebius.Group) -> None:
        # Ranks wait for each other on the GPU, so each needs a stream of its own.
        with torch.cuda.stream(torch.cuda.Stream()), host.cuda(0) as group:
            assert group.device == "cuda:0"
            random = np.random.default_rng(group.rank)
            x = on_gpu(random.integers(-3, 4, (5, 256)).astype(np.float32), torch.bfloat16)
            ids = torch.tensor([[0, 7]] * 5, device="cuda")
            weights = torch.ones(5, 2, device="cuda")
            transport = moebius.HighThroughput(group, 8)
            rows = transport.dispatch(x, ids, weights)
            assert rows.x.shape == (10, 256) and rows.x.is_cuda
            assert torch.equal(transport.combine(rows.x, rows).x, 2 * x)

            low = moebius.LowLatency(group, 8, hidden=256, topk=2, max_tokens=8)
            arrived = low.dispatch(x, ids)
            assert torch.equal(low.combine(arrived.x, ids, weights, arrived).x, 2 * x)
            low.check()

            mine = slice(group.rank * 4, group.rank * 4 + 4)
            w1, w2, gate = (
                on_gpu(w, torch.bfloat16) for w in (MODEL.w1[mine], MODEL.w2[mine], MODEL.gate)
            )
            layer = moebius.MoeLayer(
                w1, w2, topk=2, num_experts=8, gate=gate, router=CONFIG, group=group
            )
            out = layer(x).float().cpu()
            expected = make("cpu")(x.cpu()).float()
            assert relative_error(out, expected) < 1e-2
            torch.cuda.current_stream().synchronize()

    run_threads(body, 2)


if __name__ == "__main__":
    if NO_GPU:
        print(f"skipped: {NO_GPU}")
        sys.exit(77)
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"passed {name}")
