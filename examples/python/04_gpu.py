# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""A layer on a GPU, on torch's stream and in a CUDA graph of torch.

Without a GPU, or without torch, it says so and ends with exit code 77."""
import sys
import tempfile
import time

import moebius

try:
    import torch
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)


def main() -> None:
    if not (torch.cuda.is_available() and moebius.is_usable("cuda")):
        print("skipped: no GPU that both torch and this build can use")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        moebius.make_model("tiny", folder)
        layer = moebius.MoeLayer.from_checkpoint(folder, device="cuda")
        on_cpu = moebius.MoeLayer.from_checkpoint(folder)
    print(layer.info)

    hidden = torch.randn(16, layer.info.hidden, device="cuda", dtype=torch.bfloat16)
    output = layer(hidden)  # enqueued on torch's current stream, as torch's own operations
    difference = (output.float().cpu() - on_cpu(hidden.cpu()).float()).norm()
    relative = (difference / output.float().norm()).item()
    print(f"GPU against CPU: relative error {relative:.1e}")
    assert relative < 2e-2

    # Another stream: calls follow the one that is current.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        again = layer(hidden)
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(output, again)

    # A graph replays the call with new values in the same memory.
    assert layer.info.can_be_captured, layer.info.why_not_captured
    graph = torch.cuda.CUDAGraph()
    result = torch.empty_like(hidden)
    with torch.cuda.graph(graph):
        layer(hidden, out=result)
    hidden.copy_(torch.randn_like(hidden))
    graph.replay()
    assert torch.equal(result, layer(hidden))

    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(100):
        layer(hidden, out=result)
    torch.cuda.synchronize()
    print(f"{(time.perf_counter() - begin) * 1e4:.1f} us per call of 16 tokens")


if __name__ == "__main__":
    main()
