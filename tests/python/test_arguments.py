# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments that C cannot take: each is refused by one line with its name and its value."""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import Weights, torch

import moebius
from moebius import placement

MODEL = Weights()
HIDDEN, IDS, WEIGHTS = MODEL.tokens(3)
I32 = "expected -2147483648 to 2147483647"
I64 = "expected -9223372036854775808 to 9223372036854775807"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    moebius.make_model("tiny", path)
    return str(path)


def expect_refusal(message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(moebius.InvalidArgument) as caught:
        call()
    assert re.match(re.escape(message), str(caught.value)), caught.value
    assert "\n" not in str(caught.value)


def group(size: int = 1) -> moebius.Group:
    return moebius.Group.threads(size)[0]


def make(**options: Any) -> moebius.MoeLayer:
    return moebius.MoeLayer(MODEL.w1, MODEL.w2, gate=MODEL.gate, **{"topk": 2, **options})


# Calls with an integer that would be another one in C: one that would be fine.
INTEGERS: dict[str, Callable[[], Any]] = {
    f"num_physical is {2**64 + 8}, {I64}": lambda: placement.rebalance(np.ones((2, 8)), 2**64 + 8),
    f"rank is {2**32 + 1}, {I32}": lambda: group(2).set_dead(2**32 + 1),
    f"num_threads is {2**32}, {I32}": lambda: moebius.Stream.cpu(2**32),
    f"color is {2**32}, {I32}": lambda: group().split(2**32),
    f"num_ranks is {2**31}, {I32}": lambda: moebius.LowLatency.size_hint(
        2**31, 8, hidden=64, topk=2
    ),
    f"topk is {2**64 + 2}, {I64}": lambda: moebius.Router(8, 2**64 + 2),
    f"tp_size is {2**32 + 1}, {I32}": lambda: make(tp_size=2**32 + 1),
    f"placement[3] is {2**32}, {I32}": lambda: make(placement=[0] * 3 + [2**32] * 5),
    f"microbatches is {2**32 + 1}, {I32}": lambda: make(
        kernel=moebius.KernelOptions(microbatches=2**32 + 1)
    ),
    f"microbatch is {2**32}, {I32}": lambda: make()(HIDDEN, microbatch=2**32),
    f"group_cols is {2**64 + 32}, {I64}": lambda: moebius.quantize(
        HIDDEN, moebius.QuantSpec("int8", group=(1, 2**64 + 32))
    ),
    f"shape[1] is {2**64 + 1}, {I64}": lambda: moebius.Array.empty((1, 2**64 + 1)),
    f"index of the GPU is {2**32}, {I32}": lambda: moebius.is_usable(f"cuda:{2**32}"),
    f"capacity is {2**64}, {I64}": lambda: moebius.HighThroughput(group(), 8).dispatch(
        HIDDEN, IDS, capacity=2**64
    ),
    f"seed is -1, expected 0 to {2**64 - 1}": lambda: moebius.make_model("tiny", "x", seed=-1),
    "color is 1.5, expected an integer": lambda: group().split(1.5),  # type: ignore[arg-type]
    "topk is None, expected an integer": lambda: make(topk=None),
    "placement[0] is 0.0, expected an integer": lambda: make(placement=np.zeros(8)),
    "num_physical is 8.0, expected an integer": lambda: placement.rebalance(
        np.ones((2, 8)), 8.0  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("message", INTEGERS)
def test_integers_are_refused_that_do_not_fit_in_c(message: str) -> None:
    expect_refusal(message, INTEGERS[message])


def test_layers_of_a_checkpoint_are_integers_that_fit(folder: str) -> None:
    load: Any = moebius.MoeLayer.from_checkpoint
    expect_refusal(f"layer_index is {2**64}, {I64}", lambda: load(folder, layer=2**64))
    expect_refusal("layer_index is 1.5, expected an integer", lambda: load(folder, layer=1.5))


def test_integers_of_numpy_and_torch_are_taken() -> None:
    kinds: list[Any] = [np.int64, np.uint8]
    if torch is not None:
        kinds.append(torch.tensor)
    for kind in kinds:
        moebius.Stream.cpu(kind(1))
        make(topk=kind(2), placement=kind([0] * 8))


# Calls with a text that C would read up to its NUL.
TEXTS: dict[str, Callable[[str], Any]] = {
    r"directory is 'FOLDER\x00x', expected a text without NUL": lambda folder: moebius.Checkpoint(
        folder + "\0x"
    ),
    r"quant is 'int8_w8a8\x00x', expected a text without NUL": lambda folder: (
        moebius.MoeLayer.from_checkpoint(folder, quant="int8_w8a8\0x")
    ),
    r"value is '2\x00', expected a text without NUL": lambda folder: moebius.set_setting(
        "MOEBIUS_THREADS", "2\0"
    ),
    r"backend is 'none\x00', expected a text without NUL": lambda folder: make(backend="none\0"),
    "directory is empty": lambda folder: moebius.Checkpoint(""),
    "directory is null": lambda folder: moebius.Checkpoint(None),  # type: ignore[arg-type]
    "quant is 3, expected a text": lambda folder: moebius.MoeLayer.from_checkpoint(
        folder, quant=3  # type: ignore[arg-type]
    ),
    "policy is 5, expected a text": lambda folder: placement.rebalance(
        np.ones((2, 8)), 8, policy=5  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("message", TEXTS)
def test_texts_are_refused_that_c_would_not_read_to_their_end(message: str, folder: str) -> None:
    expect_refusal(message.replace("FOLDER", folder), lambda: TEXTS[message](folder))


def test_a_failure_whose_message_has_a_nul_is_told_to_the_peers() -> None:
    ours, theirs = moebius.Group.threads(2)
    with pytest.raises(KeyError, match="out of"), ours:
        raise KeyError("out of\0range")
    with pytest.raises(moebius.CommError, match="out of"):
        theirs.barrier()


# Calls with an object, a number or a shape that is not what was asked for.
OTHERS: dict[str, Callable[[], Any]] = {
    "group is a str, expected a moebius.Group": lambda: make(group="x"),
    "group is a int, expected a moebius.Group": lambda: moebius.Transports(5),  # type: ignore
    "group is a Workspaces, expected a moebius.Group": lambda: moebius.HighThroughput(
        moebius.Workspaces(), 8  # type: ignore[arg-type]
    ),
    "group is a NoneType, expected a moebius.Group": lambda: moebius.LowLatency(
        None, 8, hidden=64, topk=2  # type: ignore[arg-type]
    ),
    "transports is a Group, expected a moebius.Transports": lambda: make(transports=group()),
    "workspaces is a str, expected a moebius.Workspaces": lambda: make(workspaces="mine"),
    "dispatched is a ndarray, expected a moebius.Dispatched": lambda: moebius.HighThroughput(
        group(), 8
    ).combine(HIDDEN, HIDDEN),
    "router is a str, expected a moebius.RouterConfig": lambda: make(router="softmax"),
    "quant is a str, expected a moebius.QuantConfig": lambda: make(quant="int8"),
    "quant.w1 is a str, expected a moebius.QuantOperand": lambda: make(
        quant=moebius.QuantConfig(w1="int8")  # type: ignore[arg-type]
    ),
    "lora is a dict, expected a moebius.LoraWeights": lambda: make(lora={}),
    "kernel is a int, expected a moebius.KernelOptions": lambda: make(kernel=2),
    "kernel is a dict, expected a moebius.KernelOptions": lambda: make()(
        HIDDEN, IDS, WEIGHTS, kernel={}  # type: ignore[arg-type]
    ),
    "placement is 3, expected integers": lambda: make(num_experts=4, placement=3),
    "config is a str, expected a moebius.RouterConfig": lambda: moebius.Router(
        8, 2, "softmax"  # type: ignore[arg-type]
    ),
    "spec is a int, expected a moebius.QuantSpec": lambda: moebius.quantize(
        HIDDEN, 8  # type: ignore[arg-type]
    ),
    "q is a ndarray, expected a moebius.Quantized": lambda: moebius.dequantize(HIDDEN),
    "comm is 'x', expected one of mpi4py or an address": lambda: moebius.Group.mpi("x"),
    f"size is {2**40}, {I32}": lambda: moebius.Group.threads(2**40),
    f"num_ranks is {2**31 - 1}, expected at most": lambda: moebius.Group.threads(2**31 - 1),
    "timeout is nan s, expected a finite number": lambda: moebius.Group.threads(1, timeout=np.nan),
    "timeout is inf s, expected a finite number": lambda: moebius.Group.threads(1, timeout=np.inf),
    "num_local_experts is -1, expected 0 to": lambda: moebius.count_expert_tokens(IDS, -1),
    "the load of expert 1 in layer 0 is 1e+300, expected 0 to": lambda: placement.rebalance(
        [[1.0, 1e300]], 2
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("message", OTHERS)
def test_other_arguments_are_refused_by_their_names(message: str) -> None:
    expect_refusal(message, OTHERS[message])
