# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Objects that own something of the library's."""
from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import Weights, torch

import moebius

MODEL = Weights()
HIDDEN, IDS, WEIGHTS = MODEL.tokens(3)


def make_transport() -> moebius.HighThroughput:
    return moebius.HighThroughput(moebius.Group.threads(1)[0], 8)


# An object of each class, and a use of it.
OBJECTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "Array": (lambda: moebius.Array.empty((2,)), lambda x: x.__dlpack__()),
    "Group": (lambda: moebius.Group.threads(1)[0], lambda x: x.barrier()),
    "Stream": (lambda: moebius.Stream.cpu(1), lambda x: x.synchronize()),
    "Router": (lambda: moebius.Router(8, 2, gate=MODEL.gate), lambda x: x(HIDDEN)),
    "Experts": (
        lambda: moebius.Experts(MODEL.w1, MODEL.w2, topk=2),
        lambda x: x(HIDDEN, IDS, WEIGHTS),
    ),
    "MoeLayer": (
        lambda: moebius.MoeLayer(MODEL.w1, MODEL.w2, topk=2, gate=MODEL.gate),
        lambda x: x(HIDDEN),
    ),
    "Workspaces": (lambda: moebius.Workspaces(), lambda x: x.nbytes),
    "Transports": (lambda: moebius.Transports(moebius.Group.threads(1)[0]), lambda x: x.nbytes),
    "HighThroughput": (make_transport, lambda x: x.nbytes),
    "Dispatched": (lambda: make_transport().dispatch(HIDDEN, IDS, WEIGHTS), lambda x: x.x),
}


def expect_sole(target: Any) -> None:
    message = f"^a moebius.{type(target).__name__} cannot be copied or pickled$"
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(moebius.InvalidArgument, match=message):
            duplicate(target)


@pytest.mark.parametrize("name", OBJECTS)
def test_owners_are_not_copied(name: str) -> None:
    make, use = OBJECTS[name]
    target = make()
    assert type(target).__name__ == name
    expect_sole(target)
    use(target)


def test_checkpoints_are_not_copied(tmp_path: Path) -> None:
    moebius.make_model("tiny", tmp_path)
    checkpoint = moebius.Checkpoint(tmp_path)
    expect_sole(checkpoint)
    moebius.MoeLayer.from_checkpoint(checkpoint)


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_modules_and_handles_of_deep_ep_are_not_copied() -> None:
    from moebius.deep_ep import EventHandle

    expect_sole(EventHandle())
    module = torch.nn.Module()
    module.router = moebius.Router(8, 2, gate=MODEL.gate)
    with pytest.raises(moebius.InvalidArgument, match="moebius.Router"):
        copy.deepcopy(module)
    module.router(HIDDEN)
