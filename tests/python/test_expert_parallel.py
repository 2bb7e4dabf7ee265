# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""moebius.transformers with a group: threads as ranks, against the plain computation."""
from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fake_experts as fake  # noqa: E402
from helpers import run_threads  # noqa: E402

import moebius  # noqa: E402
import moebius.transformers  # noqa: E402


@pytest.fixture(autouse=True)
def interface(monkeypatch: Any) -> None:
    fake.install_interface(monkeypatch)


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"is_transposed": True, "is_concatenated": False, "has_bias": True, "activation": "gpt_oss"},
    {"has_gate": False, "activation": "relu2"},
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": "allgather_reducescatter"},
        {"backend": "low_latency", "format": "batched", "max_num_tokens": 16},
    ],
)
def test_every_rank_brings_its_own_tokens(options: Any, size: int, layout: Any) -> None:
    @torch.no_grad()
    def body(group: Any) -> None:
        name = f"own{group.rank}"
        moebius.transformers.register(name, group=group, **options)
        module = fake.FakeExperts(num_experts=7, implementation=name, **layout)
        for num_tokens in (3 + group.rank, 1, 0 if group.rank else 5):
            hidden = fake.tokens(num_tokens, 32) + group.rank
            ids, weights = fake.route(num_tokens, 7, 2, seed=group.rank)
            expected = module.eager(hidden, ids, weights)
            assert torch.allclose(module(hidden, ids, weights), expected, atol=1e-3, rtol=1e-4)
        for parameter in module.parameters():
            parameter.mul_(1.25)
        hidden = fake.tokens(4, 32)
        ids, weights = fake.route(4, 7, 2, seed=group.rank)
        expected = module.eager(hidden, ids, weights)
        assert torch.allclose(module(hidden, ids, weights), expected, atol=1e-3, rtol=1e-4)

    run_threads(body, size)


@pytest.mark.parametrize("quant", [None, "int8_w8a16"])
def test_ranks_with_the_same_tokens_release_what_they_do_not_need(quant: Any) -> None:
    @torch.no_grad()
    def body(group: Any) -> None:
        name = f"same{group.rank}"
        moebius.transformers.register(
            name, group=group, tokens="same", quant=quant, release_parameters=True
        )
        module = fake.FakeExperts(num_experts=5, implementation=name)
        hidden = fake.tokens(6, 32)
        ids, weights = fake.route(6, 5, 2)
        expected = module.eager(hidden, ids, weights)
        for _ in range(2):
            assert fake.error_of(module(hidden, ids, weights), expected) < (0.02 if quant else 1e-5)
        assert module.gate_up_proj.numel() == 0

    run_threads(body, 2)


def test_layers_share_a_transport() -> None:
    sizes: dict[int, list[int]] = {}

    @torch.no_grad()
    def body(group: Any) -> None:
        name = f"shared{group.rank}"
        transports = moebius.Transports(group)
        moebius.transformers.register(name, group=group, transports=transports)
        sizes[group.rank] = []
        for seed in range(3):
            module = fake.FakeExperts(implementation=name, seed=seed)
            hidden = fake.tokens(4, 32)
            ids, weights = fake.route(4, 6, 2, seed=group.rank)
            module(hidden, ids, weights)
            sizes[group.rank].append(transports.nbytes)

    run_threads(body, 2)
    assert all(values[0] == values[2] > 0 for values in sizes.values())


def test_fewer_experts_than_ranks_are_refused() -> None:
    @torch.no_grad()
    def body(group: Any) -> None:
        name = f"few{group.rank}"
        moebius.transformers.register(name, group=group)
        module = fake.FakeExperts(num_experts=2, implementation=name)
        ids, weights = fake.route(2, 2, 1)
        if group.rank < 2:
            return  # only the rank without experts can tell
        with pytest.raises(moebius.InvalidArgument, match="has 2 experts, expected one for each"):
            module(fake.tokens(2, 32), ids, weights)

    run_threads(body, 3)
