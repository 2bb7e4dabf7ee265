# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Where experts live, and how many replicas they should have."""
from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from helpers import ROOT, Weights, run_threads

import moebius
from moebius import placement

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

CASES = ROOT.parent / "shared" / "data" / "placement_cases.json"


def balance_of(loads: Any, made: placement.Rebalanced, ranks: list[int]) -> list[float]:
    """The mean of the ranks' loads over the largest, per layer."""
    found = []
    for load, slots, counts in zip(loads, made.physical_to_logical, made.replica_count):
        shares = np.bincount(ranks, weights=(load / counts)[slots], minlength=max(ranks) + 1)
        found.append(shares.mean() / shares.max())
    return found


def expect_consistent(made: placement.Rebalanced, num_experts: int, num_physical: int) -> None:
    """The three maps say the same."""
    layers = len(made.physical_to_logical)
    assert made.physical_to_logical.shape == (layers, num_physical)
    assert made.replica_count.shape == (layers, num_experts)
    assert made.logical_to_physical.shape == (layers, num_experts, made.replica_count.max())
    for array in (made.physical_to_logical, made.logical_to_physical, made.replica_count):
        assert array.dtype == np.int64
    for slots, replicas, counts in zip(
        made.physical_to_logical, made.logical_to_physical, made.replica_count
    ):
        assert (np.bincount(slots, minlength=num_experts) == counts).all()
        assert counts.min() >= 1
        for expert, count in enumerate(counts):
            assert (slots[replicas[expert, :count]] == expert).all()
            assert len(set(replicas[expert, :count])) == count
            assert (replicas[expert, count:] == -1).all()


def test_the_example_of_eplb() -> None:
    load = [
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ]
    made = placement.rebalance(load, 16, num_groups=4, num_nodes=2, num_ranks=8)
    assert made.physical_to_logical.tolist() == [
        [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
        [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
    ]
    assert made.logical_to_physical[0, 5].tolist() == [0, 2]
    assert made.logical_to_physical[0, 6].tolist() == [1, -1]
    expect_consistent(made, 12, 16)


@pytest.mark.skipif(not CASES.exists(), reason=f"{CASES} is not there")
def test_cases_of_eplb() -> None:
    cases = json.loads(CASES.read_text())
    assert cases
    for case in cases:
        load = np.array(case["load"])
        made = placement.rebalance(
            load,
            case["num_replicas"],
            num_groups=case["num_groups"],
            num_nodes=case["num_nodes"],
            num_ranks=case["num_ranks"],
        )
        assert made.physical_to_logical.tolist() == case["physical_to_logical"], case["name"]
        assert made.replica_count.tolist() == case["replica_count"], case["name"]
        expect_consistent(made, load.shape[1], case["num_replicas"])
        ranks = placement.linear(case["num_replicas"], case["num_ranks"])
        assert np.allclose(balance_of(load, made, ranks), case["balance"], atol=1e-6), case["name"]


@pytest.mark.parametrize("num_physical, num_ranks", [(9, 4), (8, 8), (13, 5), (30, 7), (8, 11)])
def test_numbers_need_not_divide(num_physical: int, num_ranks: int) -> None:
    load = np.random.default_rng(0).integers(0, 1000, (3, 8))
    made = placement.rebalance(load, num_physical, num_groups=3, num_nodes=2, num_ranks=num_ranks)
    expect_consistent(made, 8, num_physical)
    again = placement.rebalance(load, num_physical, num_ranks=num_ranks)
    assert (made.physical_to_logical == again.physical_to_logical).all()


def test_loads_may_be_zero_and_layers_missing() -> None:
    made = placement.rebalance(np.zeros((2, 4)), 6, num_ranks=3)
    expect_consistent(made, 4, 6)
    none = placement.rebalance(np.zeros((0, 4)), 6)
    assert none.physical_to_logical.shape == (0, 6)
    assert none.replica_count.shape == (0, 4)


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_torch_loads() -> None:
    load = torch.tensor([[1, 9, 2, 2]])
    expected = placement.rebalance(load.numpy(), 6, num_ranks=2).physical_to_logical
    for given in (load, load.to(torch.bfloat16), load.float().requires_grad_()):
        made = placement.rebalance(given, 6, num_ranks=2)
        assert (made.physical_to_logical == expected).all()


def test_ids_choose_among_replicas_in_turn() -> None:
    made = placement.rebalance([[8, 1, 1]], 5)
    assert made.replica_count.tolist() == [[3, 1, 1]]
    ids = np.array([[0, 1], [0, 0], [-1, 0]], np.int32)
    slots = made.physical_ids(ids)
    replicas, one = made.logical_to_physical[0, 0], made.logical_to_physical[0, 1, 0]
    assert slots.tolist() == [[replicas[0], one], [replicas[2], replicas[0]], [-1, replicas[2]]]
    assert slots.dtype == np.int32
    if torch is not None:
        for given in (torch.from_numpy(ids), torch.from_numpy(ids).long()):
            found = made.physical_ids(given)
            assert found.dtype == given.dtype and found.tolist() == slots.tolist()


@pytest.mark.parametrize("backend", ["high_throughput", "low_latency"])
def test_layers_with_replicas_give_what_layers_without_give(backend: str) -> None:
    model, ranks = Weights(), 2
    experts = len(model.w1)
    made = placement.rebalance(np.arange(experts)[None], experts + 3, num_ranks=ranks)
    owners = placement.linear(experts + 3, ranks)
    options: Any = {"topk": 2, "backend": backend}
    if backend == "low_latency":
        options["format"] = "batched"

    tokens = [model.tokens(5 + rank) for rank in range(ranks)]

    def run(group: moebius.Group) -> None:
        hidden, ids, weights = tokens[group.rank]
        mine = placement.experts_of(group.rank, placement.linear(experts, ranks))
        plain = moebius.MoeLayer(
            model.w1[mine], model.w2[mine], num_experts=experts, group=group, **options
        )
        held = made.physical_to_logical[0][placement.experts_of(group.rank, owners)]
        layer = moebius.MoeLayer(
            model.w1[held], model.w2[held], placement=owners, group=group, **options
        )
        expected = plain(hidden, ids, weights)
        found = layer(hidden, made.physical_ids(ids), weights)
        # Low latency sums by slot, wherever the experts are; high throughput rounds rank by rank.
        np.testing.assert_allclose(found, expected, rtol=0 if backend == "low_latency" else 1e-5)

    run_threads(run, ranks)


@pytest.mark.parametrize(
    "load, options, words",
    [
        ([[1.0, 2.0]], {"num_physical": 1}, ["1", "2"]),
        ([[1.0, 2.0]], {"num_physical": 2, "policy": "best"}, ["best", "deepseek"]),
        ([[1.0, 2.0]], {"num_physical": 2, "num_ranks": 0}, ["0", "at least 1"]),
        ([[1.0, 2.0]], {"num_physical": 2, "num_groups": -1}, ["-1", "at least 1"]),
        ([[1.0, -2.0]], {"num_physical": 2}, ["expert 1", "-2"]),
        ([[float("nan"), 2.0]], {"num_physical": 2}, ["expert 0", "nan"]),
        ([1.0, 2.0], {"num_physical": 2}, ["1", "2"]),
        ("text", {"num_physical": 2}, ["load"]),
        ([[1.0, 2.0]], {"num_physical": 1 << 40}, [str(1 << 40), str(1 << 20)]),
        (np.zeros((1, 0)), {"num_physical": 2}, ["num_experts is 0"]),
    ],
)
def test_wrong_arguments(load: Any, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(moebius.InvalidArgument) as error:
        placement.rebalance(load, **options)
    for word in words:
        assert word in str(error.value)
