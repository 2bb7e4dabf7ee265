# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""The operators moebius::experts and moebius::layer against calls of the objects themselves."""
from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import moebius  # noqa: E402
from moebius import torch_ops  # noqa: E402

NUM_EXPERTS, TOPK, HIDDEN, INTERMEDIATE = 4, 2, 32, 48


def random(*shape: int, seed: int = 0, device: str = "cpu") -> Any:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator) / shape[-1] ** 0.5
    return values.to(torch.bfloat16).to(device)


def make_experts(device: str = "cpu") -> Any:
    w1 = random(NUM_EXPERTS, 2 * INTERMEDIATE, HIDDEN, device=device)
    w2 = random(NUM_EXPERTS, HIDDEN, INTERMEDIATE, seed=1, device=device)
    return moebius.Experts(w1, w2, topk=TOPK)


def make_layer(device: str = "cpu") -> Any:
    w1 = random(NUM_EXPERTS, 2 * INTERMEDIATE, HIDDEN, device=device)
    w2 = random(NUM_EXPERTS, HIDDEN, INTERMEDIATE, seed=1, device=device)
    gate = random(NUM_EXPERTS, HIDDEN, seed=2, device=device)
    return moebius.MoeLayer(w1, w2, topk=TOPK, gate=gate)


def make_call(num_tokens: int = 5, device: str = "cpu") -> tuple[Any, Any, Any]:
    hidden = random(num_tokens, HIDDEN, seed=3, device=device)
    scores = random(num_tokens, NUM_EXPERTS, seed=4).float().softmax(-1)
    weights, ids = scores.topk(TOPK)
    return hidden, ids.to(device), weights.to(device)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: Any) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    name: str = request.param
    return name


def test_experts_give_the_bits_of_a_call(device: str) -> None:
    experts = make_experts(device)
    number = torch_ops.handle(experts)
    for num_tokens in (0, 1, 5):
        call = make_call(num_tokens, device)
        result = torch.ops.moebius.experts(*call, number)
        assert torch.equal(result, experts(*call))
        out = torch.empty_like(result)
        assert torch.ops.moebius.experts_out(*call, number, out) is None
        assert torch.equal(out, result)


def test_layers_give_the_bits_of_a_call_with_and_without_ids(device: str) -> None:
    layer = make_layer(device)
    number = torch_ops.handle(layer)
    hidden, ids, weights = make_call(device=device)
    assert torch.equal(torch.ops.moebius.layer(hidden, None, None, number), layer(hidden))
    expected = layer(hidden, ids, weights)
    assert torch.equal(torch.ops.moebius.layer(hidden, ids, weights, number), expected)
    out = torch.empty_like(hidden)
    torch.ops.moebius.layer_out(hidden, ids, weights, number, out)
    assert torch.equal(out, expected)


def test_strided_inputs_are_taken() -> None:
    experts = make_experts()
    hidden, ids, weights = make_call()
    wide = torch.cat([hidden, hidden], dim=1)[:, :HIDDEN]
    columns = hidden.t().contiguous().t()
    expected = experts(hidden, ids, weights)
    for given in (wide, columns):
        assert not given.is_contiguous()
        result = torch.ops.moebius.experts(given, ids, weights, torch_ops.handle(experts))
        assert result.is_contiguous() and torch.equal(result, expected)


def test_meta_tensors_give_shape_and_type() -> None:
    hidden, ids, weights = (x.to("meta") for x in make_call())
    for result in (
        torch.ops.moebius.experts(hidden, ids, weights, 99),
        torch.ops.moebius.layer(hidden, None, None, 99),
    ):
        assert result.is_meta and result.shape == hidden.shape and result.dtype == hidden.dtype


def test_schemas_declare_what_is_written() -> None:
    assert "(a!) out" in str(torch.ops.moebius.experts_out.default._schema)
    assert "!" not in str(torch.ops.moebius.experts.default._schema)
    assert "!" not in str(torch.ops.moebius.layer.default._schema)


def test_handles_are_for_good_and_hold_nothing() -> None:
    experts = make_experts()
    number = torch_ops.handle(experts)
    assert torch_ops.handle(experts) == number
    assert torch_ops.handle(make_experts()) != number
    del experts
    gc.collect()
    with pytest.raises(moebius.InvalidArgument, match=f"handle is {number}, expected that of"):
        torch.ops.moebius.experts(*make_call(), number)


def test_operators_refuse_objects_of_the_other_kind() -> None:
    experts, layer, call = make_experts(), make_layer(), make_call()
    out = torch.empty_like(call[0])
    operators = torch.ops.moebius
    for target, kind, run, run_out in (
        (layer, "Experts", operators.experts, operators.experts_out),
        (experts, "MoeLayer", operators.layer, operators.layer_out),
    ):
        number = torch_ops.handle(target)
        given = type(target).__name__
        message = f"handle is {number}, that of a {given}, expected that of a moebius.{kind}$"
        with pytest.raises(moebius.InvalidArgument, match=message):
            run(*call, number)
        with pytest.raises(moebius.InvalidArgument, match=message):
            run_out(*call, number, out)


def test_errors_of_the_library_come_through() -> None:
    experts = make_experts()
    hidden, ids, weights = make_call()
    with pytest.raises(moebius.InvalidArgument, match="31"):
        torch.ops.moebius.experts(hidden[:, :31], ids, weights, torch_ops.handle(experts))


def test_backward_says_that_there_are_no_gradients() -> None:
    experts = make_experts()
    number = torch_ops.handle(experts)
    hidden, ids, weights = make_call()
    result = torch.ops.moebius.experts(hidden.requires_grad_(), ids, weights, number)
    assert result.requires_grad
    with pytest.raises(moebius.Unsupported, match="have no gradients"):
        result.sum().backward()
    with torch.no_grad():
        assert not torch.ops.moebius.experts(hidden, ids, weights, number).requires_grad


def needs_compile() -> None:
    if not hasattr(torch, "compile"):
        pytest.skip(f"torch {torch.__version__} has no compile()")


def test_torch_checks_the_registration() -> None:
    needs_compile()
    experts = make_experts()
    arguments = (*make_call(), torch_ops.handle(experts))
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.moebius.experts.default, arguments, test_utils=tests)
    out = torch.empty(5, HIDDEN, dtype=torch.bfloat16)
    torch.library.opcheck(
        torch.ops.moebius.experts_out.default, (*arguments, out), test_utils=tests
    )


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_block_compiles_without_a_graph_break(device: str, backend: str) -> None:
    needs_compile()
    layer = make_layer(device)
    number = torch_ops.handle(layer)

    def block(hidden: Any) -> Any:
        normed = torch.nn.functional.rms_norm(hidden, (HIDDEN,))
        return hidden + torch.ops.moebius.layer(normed, None, None, number)

    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(block, fullgraph=True, backend=backend)
        for num_tokens in (5, 6, 9):  # from the second on with a symbolic size
            hidden = make_call(num_tokens, device)[0]
            try:
                result = compiled(hidden)
            except Exception as error:  # noqa: B902 its class differs from version to version
                if "CompileError" in str(error) or "InvalidCxxCompiler" in str(error):
                    pytest.skip(f"inductor cannot compile here: {error}"[:100])
                raise
            torch.testing.assert_close(result, block(hidden), rtol=0.02, atol=0.02)


def test_a_cuda_graph_replays_an_operator(device: str) -> None:
    if device == "cpu":
        pytest.skip("graphs are for GPUs")
    experts = make_experts(device)
    number = torch_ops.handle(experts)
    hidden, ids, weights = make_call(device=device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.ops.moebius.experts(hidden, ids, weights, number)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = torch.ops.moebius.experts(hidden, ids, weights, number)
    for factor in (1.0, 2.0):
        hidden.mul_(factor)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, experts(hidden, ids, weights))
