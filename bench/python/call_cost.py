#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""What a Python call of a layer costs above the library's own time, in parts.

    PYTHONPATH=python MOEBIUS_LIBRARY=build/release/lib/libmoebius.so \\
        python3 bench/python/call_cost.py [--device cuda] [--json FILE]

The layer is a small one with one token, so that its own time does not hide what Python adds.  Each
figure is the least of 15 runs, in us per call, since other programs of the machine only add to it."""
from __future__ import annotations

import argparse
import ctypes
import json
import tempfile
import timeit
from collections.abc import Callable
from typing import Any

import moebius
from moebius._library import lib
from moebius._structs import LayerInput, Tensor
from moebius.errors import check
from moebius.tensors import kind_of


def time_us(calls: list[Callable[[], Any]], number: int, wait: Callable[[], Any]) -> list[float]:
    """The least time of each call, with runs by turns."""
    runs: list[list[float]] = [[] for _ in calls]
    for _ in range(15):
        for call, times in zip(calls, runs):
            call()
            wait()
            times.append(timeit.timeit(call, number=number) / number * 1e6)
            wait()
    return [min(times) for times in runs]


def measure(
    layer: moebius.MoeLayer, hidden: Any, number: int, wait: Callable[[], Any]
) -> dict[str, float]:
    """The parts of layer(hidden).  `wait` waits for a GPU, after each run of calls."""
    kind = kind_of(hidden)
    out = kind.empty_like(hidden)
    tensor, given, result = Tensor(), Tensor(), Tensor()
    kind.fill(given, hidden)
    kind.fill(result, out)
    input = LayerInput(hidden=ctypes.pointer(given))
    references = (ctypes.byref(input), ctypes.byref(result), kind.stream_of(hidden))
    forward = lib.layer_forward
    # A function of libc that gets the same arguments and does nothing with them.
    nothing = ctypes.CDLL(None)["abs"]
    nothing.argtypes = forward.argtypes
    nothing.restype = ctypes.c_int32

    whole, c_function, through_ctypes, output, reading, stream = time_us(
        [
            lambda: layer(hidden),
            lambda: forward(layer._handle, *references),
            lambda: nothing(None, *references),
            lambda: kind.empty_like(hidden),
            lambda: kind.fill(tensor, hidden),
            lambda: kind.stream_of(hidden),
        ],
        number,
        wait,
    )
    lib.layer_forward = nothing
    # A null pointer, of which abs() is 0: success.  None would stand for a layer that is closed.
    handle, layer._handle = layer._handle, ctypes.c_void_p()  # type: ignore[assignment]
    try:
        python, python_into = time_us(
            [lambda: layer(hidden), lambda: layer(hidden, out=out)], number, wait
        )
    finally:
        lib.layer_forward, layer._handle = forward, handle
    return {
        "layer(hidden)": whole,
        "the C function alone": c_function - through_ctypes,
        "added by Python, as the difference": whole - c_function + through_ctypes,
        "added by Python, without the library": python,
        "  making the output": output,
        "  reading two tensors": 2 * reading,
        "  finding the stream": stream,
        "  ctypes": through_ctypes,
        "  the rest": python - output - 2 * reading - stream - through_ctypes,
        "the same with out=out": python_into,
    }


def inputs(device: str, width: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        import torch

        found["torch"] = torch.randn(1, width, dtype=torch.float32).to(device, torch.bfloat16)
    except ImportError:
        print("torch is not installed")
    if device == "cpu":
        try:
            import numpy

            found["numpy"] = numpy.ones((1, width), numpy.float32)
        except ImportError:
            print("numpy is not installed")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--number", type=int, default=2000, help="calls per run")
    parser.add_argument("--json", help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        moebius.make_model("tiny", folder)
        layer = moebius.MoeLayer.from_checkpoint(folder, device=arguments.device)
    wait: Callable[[], Any] = lambda: None
    if arguments.device != "cpu":
        import torch

        wait = torch.cuda.synchronize
    results = {}
    for name, hidden in inputs(arguments.device, layer.info.hidden).items():
        results[name] = measure(layer, hidden, arguments.number, wait)
        print(f"{name} on {arguments.device}, {layer.info.experts}")
        for part, us in results[name].items():
            print(f"  {part:38} {us:8.2f} us")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
