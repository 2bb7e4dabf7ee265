# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""moebius.transformers against the plain computation, with modules that stand in for those of
transformers.  families.py runs the real ones."""
from __future__ import annotations

import copy
import io
import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fake_experts as fake  # noqa: E402

import moebius  # noqa: E402
import moebius.transformers  # noqa: E402


@pytest.fixture(autouse=True)
def interface(monkeypatch: Any) -> None:
    fake.install_interface(monkeypatch)
    moebius.transformers.register()


TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


def check(module: Any, num_tokens: int = 9, topk: int = 2, tolerance: float = 0.0) -> None:
    """Compares with the definition in f64, of the same weights."""
    dtype = module.down_proj.dtype
    hidden = fake.tokens(num_tokens, 32, dtype)
    ids, weights = fake.route(num_tokens, module.num_experts, topk, dtype)
    with torch.no_grad():
        exact = copy.deepcopy(module).double()
        expected = exact.eager(hidden.double(), ids, weights.double())
        result = module(hidden, ids, weights)
    assert result.dtype == dtype and result.shape == expected.shape
    assert fake.error_of(result, expected) < (tolerance or TOLERANCES[dtype])


LAYOUTS = [
    dict(zip(("has_bias", "is_transposed", "is_concatenated"), flags))
    for flags in itertools.product((False, True), repeat=3)
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_what_eager_gives(layout: Any, dtype: Any) -> None:
    check(fake.FakeExperts(dtype=dtype, **layout))


@pytest.mark.parametrize("activation", [name for name in fake.GATES if name != "mish"])
@pytest.mark.parametrize("is_concatenated", [True, False])
def test_every_gate_is_recognized(activation: str, is_concatenated: bool) -> None:
    module = fake.FakeExperts(activation=activation, is_concatenated=is_concatenated)
    with torch.no_grad():
        module.gate_up_proj.mul_(8.0)  # so that clamps are reached
    check(module)


@pytest.mark.parametrize("activation", [name for name in fake.PLAIN if name != "mish"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_experts_without_gate(activation: str, has_bias: bool) -> None:
    check(fake.FakeExperts(activation=activation, has_gate=False, has_bias=has_bias))


@pytest.mark.parametrize("has_gate", [True, False])
def test_an_activation_that_the_library_lacks_is_refused_by_name(has_gate: bool) -> None:
    module = fake.FakeExperts(activation="mish", has_gate=has_gate)
    with pytest.raises(moebius.Unsupported, match=r"fake \(FakeExperts\) has a .*activation"):
        check(module)


def test_a_norm_of_each_experts_output_is_refused() -> None:
    module = fake.FakeExperts()
    module.has_post_expert_norm = True
    with pytest.raises(moebius.Unsupported, match="normalizes the output of each expert"):
        check(module)


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 33])
def test_any_number_of_tokens(num_tokens: int) -> None:
    module = fake.FakeExperts()
    hidden = fake.tokens(num_tokens, 32)
    ids, weights = fake.route(num_tokens, 6, 2)
    with torch.no_grad():
        result = module(hidden, ids, weights)
        expected = module.eager(hidden, ids, weights)
    assert torch.allclose(result, expected, atol=1e-5)


def test_the_id_behind_the_last_expert_adds_nothing() -> None:
    """Transformers' own expert parallelism names experts of other ranks this way."""
    module = fake.FakeExperts()
    hidden = fake.tokens(5, 32)
    ids, weights = fake.route(5, 6, 2)
    ids[0] = 6
    ids[1, 1] = 6
    with torch.no_grad():
        result = module(hidden, ids, weights)
        expected = module.eager(hidden, ids, weights)
    assert torch.allclose(result, expected, atol=1e-5)
    assert torch.count_nonzero(result[0]) == 0


def test_more_selections_than_experts_of_this_rank() -> None:
    module = fake.FakeExperts(num_experts=2)
    ids = torch.tensor([[0, 2, 2, 1], [2, 2, 2, 2], [1, 2, 0, 2]])
    weights = torch.full((3, 4), 0.25)
    hidden = fake.tokens(3, 32)
    with torch.no_grad():
        result = module(hidden, ids, weights)
        expected = module.eager(hidden, ids, weights)
    assert torch.allclose(result, expected, atol=1e-5)


def test_weights_of_all_experts_and_other_types_are_taken() -> None:
    module = fake.FakeExperts(dtype=torch.bfloat16)
    hidden = fake.tokens(4, 32, torch.bfloat16)
    ids, weights = fake.route(4, 6, 2, torch.bfloat16)
    everything = torch.zeros(4, 6, dtype=torch.bfloat16).scatter_(1, ids, weights)
    with torch.no_grad():
        expected = module(hidden, ids, weights)
        assert torch.equal(module(hidden, ids, everything), expected)
        assert torch.equal(module(hidden, ids.int(), weights.float()), expected)
        in_f32 = module(hidden.float(), ids, weights)  # as autocast has it
        assert in_f32.dtype == torch.float32 and torch.equal(in_f32, expected.float())
        assert torch.equal(module(hidden.view(2, 2, 32), ids, weights), expected.view(2, 2, 32))


@pytest.mark.parametrize("layout", [{}, {"is_transposed": True, "has_bias": True}])
def test_weights_are_followed(layout: Any) -> None:
    module = fake.FakeExperts(**layout)
    check(module)
    packed = module._moebius._experts
    with torch.no_grad():
        module.gate_up_proj.mul_(1.5)
        if "has_bias" in layout:
            module.down_proj_bias.add_(0.5)
    check(module)
    assert module._moebius._experts is packed, "values are replaced in place"
    module.load_state_dict(fake.FakeExperts(seed=7, **layout).state_dict())
    check(module)
    assert module._moebius._experts is packed
    module.down_proj.data = module.down_proj.data.clone() * 2
    check(module)
    module.down_proj = torch.nn.Parameter(module.down_proj.detach().clone() * 3)
    check(module)
    module.bfloat16()
    check(module)


def test_an_optimizer_step_is_followed() -> None:
    module = fake.FakeExperts()
    check(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    check(module)


def test_refresh_reads_weights_whose_writes_do_not_count() -> None:
    module = fake.FakeExperts(is_transposed=True)
    check(module)
    module.down_proj.data.mul_(2.0)
    with pytest.raises(AssertionError):
        check(module)
    assert moebius.transformers.refresh(module) == 1
    check(module)


def test_weights_made_in_inference_mode() -> None:
    with torch.inference_mode():
        module = fake.FakeExperts()
        check(module)


def test_results_have_no_gradients() -> None:
    module = fake.FakeExperts()
    hidden = fake.tokens(3, 32)
    ids, weights = fake.route(3, 6, 2)
    result = module(hidden, ids, weights)
    assert torch.allclose(result, module.eager(hidden, ids, weights), atol=1e-5)
    with pytest.raises(moebius.Unsupported, match="no gradients"):
        result.sum().backward()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    assert not module(hidden, ids, weights).requires_grad


@pytest.mark.parametrize(
    "scheme, tolerance",
    [
        ("int4_w4a16", 0.3),
        ("int8_w8a16", 0.02),
        ("int8_w8a8", 0.05),
        ("fp8_w8a8", 0.1),
        ("fp8_w8a8_channel", 0.1),
        ("fp8_w8a8_tensor", 0.15),
        ("mxfp4_w4a16", 0.4),
        ("mxfp8", 0.15),
        ("nvfp4", 0.4),
    ],
)
@pytest.mark.parametrize("is_interleaved", [False, True])
def test_weights_are_quantized(scheme: str, tolerance: float, is_interleaved: bool) -> None:
    moebius.transformers.register("quantized", quant=scheme)
    layout = {"is_transposed": True, "is_concatenated": False, "has_bias": True}
    module = fake.FakeExperts(
        hidden=32,
        intermediate=64,
        dtype=torch.bfloat16,
        implementation="quantized",
        **(layout if is_interleaved else {}),
    )
    check(module, tolerance=tolerance)
    with torch.no_grad():
        module.down_proj.mul_(3.0)
    check(module, tolerance=tolerance)


def test_weights_that_are_not_finite_are_not_quantized() -> None:
    moebius.transformers.register("quantized", quant="int8_w8a16")
    module = fake.FakeExperts(implementation="quantized")
    with torch.no_grad():
        module.down_proj[0, 0, 0] = float("nan")
    with pytest.raises(moebius.InvalidArgument, match="w2 has NaN or infinity"):
        check(module)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(moebius.InvalidArgument, match="quant is int5, expected one of fp8_w8a8"):
        moebius.transformers.register(quant="int5")
    with pytest.raises(moebius.InvalidArgument, match="tokens is 'all'"):
        moebius.transformers.register(tokens="all")
    with pytest.raises(moebius.InvalidArgument, match="backend is given without a group"):
        moebius.transformers.register(backend="low_latency")


@pytest.mark.parametrize("quant", [None, "int8_w8a16"])
def test_released_parameters(quant: Any) -> None:
    moebius.transformers.register("small", quant=quant, release_parameters=True)
    module = fake.FakeExperts(implementation="small", dtype=torch.bfloat16)
    hidden = fake.tokens(4, 32, torch.bfloat16)
    ids, weights = fake.route(4, 6, 2, torch.bfloat16)
    with torch.no_grad():
        expected = module.eager(hidden, ids, weights)
        for _ in range(2):
            assert fake.error_of(module(hidden, ids, weights), expected) < 0.02
    assert all(parameter.numel() == 0 for parameter in module.parameters())
    with pytest.raises(moebius.InvalidArgument, match="were released .* nothing to save"):
        torch.nn.Sequential(module).state_dict()
    with pytest.raises(moebius.InvalidArgument, match="no weights can be loaded"):
        module.load_state_dict({})
    with pytest.raises(moebius.InvalidArgument, match="cannot be copied"):
        copy.deepcopy(module)
    module.float()
    with pytest.raises(moebius.InvalidArgument, match="have changed or moved since"):
        module(hidden, ids, weights)


def test_a_copy_of_a_module_packs_its_own_weights() -> None:
    module = fake.FakeExperts()
    check(module)
    twin = copy.deepcopy(module)
    assert twin._moebius is None
    with torch.no_grad():
        twin.down_proj.mul_(2.0)
    check(twin)
    check(module)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)


def test_registering_again_packs_anew() -> None:
    module = fake.FakeExperts()
    check(module)
    first = module._moebius
    moebius.transformers.register(implementation="ref")
    check(module)
    assert module._moebius is not first
    assert module._moebius._experts._experts.info.name == "ref"


def test_prepare_counts_modules_and_refuses_none() -> None:
    model = torch.nn.Sequential(fake.FakeExperts(), torch.nn.Linear(3, 3), fake.FakeExperts())
    assert moebius.transformers.prepare(model) == 2
    with pytest.raises(moebius.InvalidArgument, match="no experts of this Linear use Moebius"):
        moebius.transformers.prepare(model[1])


def test_a_prepared_module_is_an_operator() -> None:
    module = fake.FakeExperts()
    moebius.transformers.prepare(module)
    hidden = fake.tokens(3, 32)
    ids, weights = fake.route(3, 6, 2)
    with torch.no_grad():
        expected = module.eager(hidden, ids, weights)
        result = torch.ops.moebius.experts(hidden, ids, weights, module._moebius.handle)
    assert torch.allclose(result, expected, atol=1e-5)


def test_compiled_without_a_graph_break() -> None:
    if not hasattr(torch, "compile"):
        pytest.skip("torch has no compile()")
    module = fake.FakeExperts()
    hidden = fake.tokens(3, 32)
    ids, weights = fake.route(3, 6, 2)
    with torch.no_grad():
        expected = module.eager(hidden, ids, weights)
        moebius.transformers.prepare(module)
        compiled = torch.compile(lambda *x: module(*x) + 1, fullgraph=True, backend="aot_eager")
        assert torch.allclose(compiled(hidden, ids, weights) - 1, expected, atol=1e-5)
        module.down_proj.mul_(2.0)
        assert torch.allclose(compiled(hidden, ids, weights) - 1, 2 * expected, atol=1e-5)
