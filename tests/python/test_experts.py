# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Experts and Router."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Weights, reference_experts, relative_error, silu, torch

import moebius

MODEL = Weights()


def test_experts_give_the_weighted_sum() -> None:
    hidden, ids, weights = MODEL.tokens(11)
    ids[3, 1] = -1
    experts = moebius.Experts(MODEL.w1, MODEL.w2, topk=2)
    expected = reference_experts(MODEL.w1, MODEL.w2, hidden, ids, weights)
    actual = experts(hidden, ids, weights)
    assert actual.dtype == np.float32 and relative_error(actual, expected) < 1e-2
    out = np.empty_like(hidden)
    assert experts(hidden, ids.astype(np.int64), weights, out=out) is out
    np.testing.assert_array_equal(out, actual)
    assert experts(hidden[:0], ids[:0], weights[:0]).shape == (0, 64)


def test_an_output_overlaps_no_ids_weights_or_map() -> None:
    experts, (hidden, ids, weights) = moebius.Experts(MODEL.w1, MODEL.w2, topk=2), MODEL.tokens(4)
    inputs = {"topk_ids": ids.astype(np.int32), "topk_weights": weights}
    inputs["expert_map"] = np.arange(8, dtype=np.int32)
    for what, given in inputs.items():
        out = np.zeros_like(hidden)
        over = out.reshape(-1)[: given.size].view(given.dtype).reshape(given.shape)
        over[:] = given
        a, b, c = ({**inputs, what: over}).values()
        with pytest.raises(moebius.InvalidArgument, match=f"output overlaps {what}"):
            experts(hidden, a, b, expert_map=c, out=out)
        np.testing.assert_array_equal(over, given)


def test_closed_experts_say_so() -> None:
    experts = moebius.Experts(MODEL.w1, MODEL.w2, topk=2)
    experts.close()
    with pytest.raises(moebius.InvalidArgument, match="this Experts has been closed"):
        experts(*MODEL.tokens(2))


def test_the_info_says_what_was_made() -> None:
    experts = moebius.Experts(MODEL.w1, MODEL.w2, topk=2, implementation="ref", format="batched")
    info = experts.info
    assert (info.name, info.format, info.dtype) == ("ref", "batched", "f32")
    assert (info.num_local_experts, info.hidden, info.intermediate) == (8, 64, 32)
    assert not info.retains_weights and "ref" in repr(experts)


def test_inputs_need_not_be_contiguous() -> None:
    hidden, ids, weights = MODEL.tokens(4)
    experts = moebius.Experts(MODEL.w1, MODEL.w2, topk=2)
    expected = experts(hidden, ids, weights)
    wide = np.zeros((4, 128), np.float32)
    wide[:, ::2] = hidden
    np.testing.assert_array_equal(experts(wide[:, ::2], ids, weights), expected)
    actual = experts(np.asfortranarray(hidden), ids, np.asfortranarray(weights))
    np.testing.assert_array_equal(actual, expected)


def test_expert_maps_leave_out_what_lives_elsewhere() -> None:
    hidden, ids, weights = MODEL.tokens(5)
    expert_map = np.int32([-1, -1, -1, -1, 0, 1, 2, 3])
    experts = moebius.Experts(MODEL.w1[4:], MODEL.w2[4:], topk=2, num_experts=8)
    here = np.where(ids >= 4, ids, -1)
    expected = reference_experts(MODEL.w1, MODEL.w2, hidden, here, weights)
    actual = experts(hidden, ids, weights, expert_map=expert_map)
    assert relative_error(actual, expected) < 1e-2


def test_rows_of_a_dispatch_are_computed() -> None:
    hidden, ids, weights = MODEL.tokens(5)
    experts = moebius.Experts(MODEL.w1, MODEL.w2, topk=2)
    actual = experts.apply(hidden, topk_ids=ids, topk_weights=weights)
    np.testing.assert_array_equal(actual, experts(hidden, ids, weights))

    batched = moebius.Experts(MODEL.w1, MODEL.w2, topk=2, format="batched")
    x, counts = MODEL.normal(8, 4, 64), np.int32([4, 0, 1, 2, 3, 4, 0, 1])
    out = batched.apply(x, expert_num_tokens=counts)
    assert out.shape == x.shape
    for expert, count in enumerate(counts):
        for row in range(count):
            gate, up = np.split(MODEL.w1[expert] @ x[expert, row], 2)
            expected = MODEL.w2[expert] @ (silu(gate) * up)
            assert relative_error(out[expert, row], expected) < 1e-2


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "relu2", "swiglu_oai", "swiglu_step"])
def test_activations_are_known(kind: str) -> None:
    hidden, ids, weights = MODEL.tokens(3)
    w1 = MODEL.w1[:, :32] if kind == "relu2" else MODEL.w1
    experts = moebius.Experts(
        w1, MODEL.w2, topk=2, activation=kind, gated=kind != "relu2", limit=2.0, alpha=1.5
    )
    assert np.isfinite(experts(hidden, ids, weights)).all()


def test_updates_replace_values_in_place() -> None:
    hidden, ids, weights = MODEL.tokens(6)
    experts = moebius.Experts(MODEL.w1, MODEL.w2, topk=2)
    before = experts(hidden, ids, weights)
    experts.update(w2=MODEL.w2 * 2)
    np.testing.assert_array_equal(experts(hidden, ids, weights), before * 2)
    with pytest.raises(moebius.InvalidArgument):
        experts.update(w2=MODEL.w2[:4])


def test_weights_are_copied_unless_they_are_lent() -> None:
    hidden, ids, weights = MODEL.tokens(2)
    w1, w2 = MODEL.w1.copy(), MODEL.w2.copy()
    experts = moebius.Experts(w1, w2, topk=2)
    expected = experts(hidden, ids, weights)
    w1[:] = w2[:] = 0
    np.testing.assert_array_equal(experts(hidden, ids, weights), expected)

    lent = moebius.Experts(MODEL.w1.copy(), MODEL.w2.copy(), topk=2, lends_weights=True)
    assert lent.info.retains_weights
    np.testing.assert_array_equal(lent(hidden, ids, weights), expected)


def test_adapters_are_applied() -> None:
    rank, random = 4, MODEL.normal
    lora = moebius.LoraWeights(
        w1_a=random(1, 8, 2 * rank, 64) / 8,
        w1_b=random(1, 8, 64, rank) / 2,
        scaling=np.float32([0.5]),
    )
    experts = moebius.Experts(MODEL.w1, MODEL.w2, topk=2, lora=lora)
    hidden, ids, weights = MODEL.tokens(3)
    plain = experts.apply(hidden, topk_ids=ids, topk_weights=weights)
    tuned = experts.apply(
        hidden, topk_ids=ids, topk_weights=weights, lora_ids=np.int32([0, -1, 0])
    )
    assert (tuned[1] == plain[1]).all() and (tuned[0] != plain[0]).any()


def test_wrong_arguments_are_refused_with_both_values() -> None:
    hidden, ids, weights = MODEL.tokens(2)
    with pytest.raises(moebius.InvalidArgument, match="activation is swish, expected one of silu"):
        moebius.Experts(MODEL.w1, MODEL.w2, topk=2, activation="swish")
    with pytest.raises(moebius.InvalidArgument, match="format is sparse"):
        moebius.Experts(MODEL.w1, MODEL.w2, topk=2, format="sparse")
    with pytest.raises(ValueError):
        moebius.Experts(MODEL.w1, MODEL.w2[:, :, :3], topk=2)
    with pytest.raises(moebius.Unsupported):
        moebius.Experts(MODEL.w1, MODEL.w2, topk=2, device="cuda:63")
    experts = moebius.Experts(MODEL.w1, MODEL.w2, topk=2)
    with pytest.raises(moebius.InvalidArgument, match="expected -1 to 7"):
        experts(hidden, ids + 8, weights)
    experts.close()
    with pytest.raises(moebius.InvalidArgument):
        experts(hidden, ids, weights)


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_torch_and_numpy_give_the_same_bits() -> None:
    hidden, ids, weights = MODEL.tokens(7)
    experts = moebius.Experts(torch.from_numpy(MODEL.w1), torch.from_numpy(MODEL.w2), topk=2)
    given = [torch.from_numpy(x) for x in (hidden, ids, weights)]
    actual = experts(*given)
    assert isinstance(actual, torch.Tensor)
    np.testing.assert_array_equal(actual.numpy(), experts(hidden, ids, weights))
    np.testing.assert_array_equal(experts(given[0].t().contiguous().t(), *given[1:]), actual)


def softmax(x: Any) -> Any:
    e = np.exp(np.float64(x) - np.float64(x).max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def test_routers_choose_the_best_experts() -> None:
    hidden, _, _ = MODEL.tokens(9)
    router = moebius.Router(8, 2, moebius.RouterConfig(renormalize=True), gate=MODEL.gate)
    logits = router.logits(hidden)
    np.testing.assert_allclose(logits, hidden @ MODEL.gate.T, rtol=1e-4, atol=1e-4)
    ids, weights = router(hidden)
    scores = softmax(logits)
    np.testing.assert_array_equal(ids, np.argsort(-scores, axis=1)[:, :2])
    chosen = np.take_along_axis(scores, ids, axis=1)
    np.testing.assert_allclose(weights, chosen / chosen.sum(axis=1, keepdims=True), rtol=1e-5)
    out = (np.empty((9, 2), np.int64), np.empty((9, 2), np.float32))
    assert router.select(logits, out=out)[0] is out[0]
    np.testing.assert_array_equal(out[0], ids)


def test_routers_score_by_sigmoid_within_groups() -> None:
    config = moebius.RouterConfig(
        scoring="sigmoid", num_groups=4, topk_groups=1, routed_scaling_factor=2.5
    )
    bias = np.linspace(0, 1, 8, dtype=np.float32)
    router = moebius.Router(8, 2, config, gate=MODEL.gate, correction_bias=bias)
    ids, weights = router(MODEL.tokens(6)[0])
    assert (ids // 2 == ids[:, :1] // 2).all() and (weights > 0).all()
    with pytest.raises(moebius.InvalidArgument, match="scoring is tanh"):
        moebius.Router(8, 2, moebius.RouterConfig(scoring="tanh"))
    with pytest.raises(moebius.InvalidArgument, match="routed_scaling_factor is 0"):
        moebius.Router(8, 2, moebius.RouterConfig(routed_scaling_factor=0))


def test_routers_mix_sparsely_and_scale_experts() -> None:
    config = moebius.RouterConfig(scoring="sparse_mixer", mixer_epsilon=0.25)
    scale = np.array([1, 2, 3, 4], np.float32)
    router = moebius.Router(4, 2, config, gate=np.zeros((4, 8), np.float32), expert_scale=scale)
    ids, weights = router.select(np.array([[3, 1, 4, 2.5]], np.float32))
    np.testing.assert_array_equal(ids, [[2, 0]])
    first = 1 / (1 + np.exp(-1) + np.exp(-1.5))
    np.testing.assert_allclose(weights, [[3 * first, 1 / (1 + np.exp(-0.5))]], rtol=1e-5)


def test_routers_follow_updates() -> None:
    hidden = MODEL.tokens(4)[0]
    router = moebius.Router(8, 2, gate=MODEL.gate)
    router.update(gate=-MODEL.gate)
    expected = moebius.Router(8, 2, gate=-MODEL.gate)(hidden)
    for actual, wanted in zip(router(hidden), expected):
        np.testing.assert_array_equal(actual, wanted)
    router.update()


def test_tokens_of_experts_are_counted() -> None:
    ids = np.int32([[0, 1], [1, -1], [3, 1]])
    assert moebius.count_expert_tokens(ids, 4).tolist() == [1, 3, 0, 1]
    expert_map = np.int32([-1, 0, 1, -1])
    counts = moebius.count_expert_tokens(ids, 2, expert_map=expert_map)
    assert counts.tolist() == [3, 0]
