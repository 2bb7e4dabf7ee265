# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of a model of Qwen3-30B-A3B's shape with fewer layers and random weights, with
the experts of transformers (eager, grouped_mm, batched_mm) and with those of Moebius:

    python bench/python/transformers_bench.py --device cuda
    python bench/python/transformers_bench.py --device cpu --threads 16

Cases are a prefill of 2048 tokens, and decode steps of 1 and of 16 sequences; on a GPU also decode
steps that are replays of a CUDA graph, where the host's time does not count.  The experts of the
first layer are compared with eager before anything is timed, and one that is wrong gets no number;
the logits of a graph are compared with those of the same step without it.
"none" are experts that do nothing: what is left is attention, norms and the head, and no experts
can be faster over the whole model.  Every case ends after `--case-seconds`, of which the median step counts.  One table row and one
JSON line (--json) for each case; returns 77 without transformers 5."""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any, Callable

SKIPPED = 77
# An experts module in bf16 may differ from eager by this much: |result - eager| / |eager|.
LIMIT = 1e-2
OTHERS = ("eager", "grouped_mm", "batched_mm")
PROMPT = 64  # tokens of a sequence before its decode steps


def make_model(arguments: argparse.Namespace) -> Any:
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_hidden_layers=arguments.layers,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        max_position_embeddings=4096,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = Qwen3MoeForCausalLM(config)
        model = model.to_empty(device=arguments.device).eval()
        # to_empty leaves buffers without values, and these are not saved with a model.
        rotary = type(model.model.rotary_emb)(config)
        model.model.rotary_emb = rotary.to(arguments.device)
    finally:
        torch.set_default_dtype(before)
    block = torch.randn(1 << 22, device=arguments.device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
                continue
            scale = parameter.shape[-1] ** -0.5
            flat = parameter.view(-1)
            # Why one block over and over: a CPU makes random numbers more slowly than it copies.
            for begin in range(0, len(flat), len(block)):
                part = flat[begin : begin + len(block)]
                part.copy_(block[: len(part)] * scale)
    return model


def no_experts(module: Any, hidden: Any, ids: Any, weights: Any) -> Any:
    return hidden * 0.5


def experts_of(model: Any) -> Any:
    return model.model.layers[0].mlp.experts


def choose(model: Any, implementation: str) -> None:
    model.set_experts_implementation(implementation)
    experts_of(model).config._experts_implementation = implementation


def error_of(model: Any, implementation: str, device: str, num_tokens: int) -> float:
    import torch

    experts = experts_of(model)
    hidden = torch.randn(num_tokens, 2048, device=device).bfloat16()
    weights, ids = torch.randn(num_tokens, 128, device=device).softmax(-1).topk(8)
    weights = weights.bfloat16()
    choose(model, "eager")
    expected = experts(hidden, ids, weights).float()
    choose(model, implementation)
    result = experts(hidden, ids, weights).float()
    return float((result - expected).norm() / expected.norm())


def time_steps(step: Callable[[], Any], device: str, seconds: float) -> tuple[float, int]:
    """The median time of a step, and how many were timed."""
    import torch

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    step()
    wait()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - begin < seconds and len(times) < 200):
        start = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - start)
        if time.perf_counter() - begin > 4 * seconds:
            break
    return statistics.median(times), len(times)


def prefill(model: Any, device: str, num_tokens: int, seconds: float) -> tuple[float, int]:
    import torch

    ids = torch.randint(0, 151936, (1, num_tokens), device=device)
    return time_steps(
        lambda: model(input_ids=ids, use_cache=False, logits_to_keep=1), device, seconds
    )


def decode(model: Any, device: str, batch: int, seconds: float) -> tuple[float, int]:
    """A step appends one token to each sequence; the cache is cut back before it is long."""
    import torch
    from transformers import DynamicCache

    ids = torch.randint(0, 151936, (batch, PROMPT), device=device)
    cache = DynamicCache(config=model.config)
    model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    token = ids[:, :1]

    def step() -> Any:
        if cache.get_seq_length() > 4 * PROMPT:
            cache.crop(PROMPT)
        return model(input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1)

    return time_steps(step, device, seconds)


def decode_graph(model: Any, batch: int, seconds: float) -> tuple[float, int]:
    """As decode(), with a cache of fixed size and one CUDA graph of the whole step."""
    import torch
    from transformers import StaticCache

    ids = torch.randint(0, 151936, (batch, PROMPT), device="cuda")
    cache = StaticCache(config=model.config, max_cache_len=4 * PROMPT)
    token = ids[:, :1].clone()

    def forward(tokens: Any) -> Any:
        output = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return output.logits

    def cut_back() -> None:
        for layer in cache.layers:
            layer.cumulative_length.fill_(PROMPT)

    forward(ids)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            forward(token)
        cut_back()
        expected = forward(token).float()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        logits = forward(token)
    cut_back()
    graph.replay()
    error = float((logits.float() - expected).norm() / expected.norm())
    if not error < LIMIT:
        raise ValueError(f"the graph's logits differ by {error:.1e}, more than {LIMIT}")
    num_steps = 1

    def step() -> None:
        nonlocal num_steps
        if num_steps == 2 * PROMPT:
            cut_back()
            num_steps = 0
        graph.replay()
        num_steps += 1

    return time_steps(step, "cuda", seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--layers", type=int, default=12, help="12 unless given")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prefill", type=int, default=2048, help="tokens of the prefill")
    parser.add_argument(
        "--executor", default="auto", help="whose threads Moebius uses on a CPU: MOEBIUS_EXECUTOR"
    )
    parser.add_argument("--case-seconds", type=float, default=2.0)
    parser.add_argument(
        "--implementations",
        nargs="+",
        default=["grouped_mm", "batched_mm", "moebius", "none", "eager"],
    )
    parser.add_argument("--quant", nargs="*", default=[], help="schemes that Moebius runs besides")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("MOEBIUS_THREADS", str(arguments.threads))
    os.environ.setdefault("MOEBIUS_EXECUTOR", arguments.executor)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here needs a network
    try:
        import torch
        import transformers
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError as error:
        print(f"skipped: transformers 5 is needed: {error}")
        return SKIPPED
    import moebius
    import moebius.transformers

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device = arguments.device
    moebius.transformers.register()
    ALL_EXPERTS_FUNCTIONS.register("none", no_experts)
    names = list(arguments.implementations)
    for scheme in arguments.quant:
        names.append(f"moebius_{scheme}")
        moebius.transformers.register(names[-1], quant=scheme)
    where = f"{arguments.threads} threads"
    if device != "cpu":
        where = torch.cuda.get_device_name()
    print(
        f"Qwen3-30B-A3B with {arguments.layers} layers, bf16, {where}; torch {torch.__version__}, "
        f"transformers {transformers.__version__}, moebius {moebius.__version__}"
    )
    begin = time.perf_counter()
    model = make_model(arguments)
    print(f"made in {time.perf_counter() - begin:.1f} s; tokens/s, and times the best of the others")
    length = arguments.prefill
    cases: dict[str, tuple[int, Callable[..., tuple[float, int]]]] = {
        f"prefill {length}": (length, lambda seconds: prefill(model, device, length, seconds)),
        "decode 1": (1, lambda seconds: decode(model, device, 1, seconds)),
        "decode 16": (16, lambda seconds: decode(model, device, 16, seconds)),
    }
    if device != "cpu":
        cases["decode 1, graph"] = (1, lambda seconds: decode_graph(model, 1, seconds))
        cases["decode 16, graph"] = (16, lambda seconds: decode_graph(model, 16, seconds))
    rates: dict[str, dict[str, float]] = {case: {} for case in cases}
    is_right = True
    with torch.no_grad():
        for name in names:
            error = error_of(model, name, device, 64)
            if name == "moebius" and not error < LIMIT:
                print(f"{name}: the experts differ from eager by {error:.1e}, more than {LIMIT}")
                is_right = False
                continue
            for case, (num_tokens, measure) in cases.items():
                if name == "batched_mm" and num_tokens > 64:
                    continue  # it copies the weights of each selection: 100 GB here
                choose(model, name)
                try:
                    seconds, count = measure(arguments.case_seconds)
                except Exception as failure:  # noqa: B902 other implementations may be missing
                    if name.startswith("moebius"):
                        raise
                    print(f"{name}, {case}: {type(failure).__name__}: {failure}".split("\n")[0])
                    continue
                rates[case][name] = num_tokens / seconds
                if arguments.json:
                    fields = {
                        "case": case,
                        "implementation": name,
                        "device": where,
                        "layers": arguments.layers,
                        "tokens_per_second": num_tokens / seconds,
                        "median_ms": 1e3 * seconds,
                        "steps": count,
                        "error": error,
                    }
                    print(json.dumps(fields))
    print("| case | " + " | ".join(names) + " | moebius over the best |")
    print("| --- " * (len(names) + 2) + "|")
    for case, row in rates.items():
        others = [rate for name, rate in row.items() if name in OTHERS]
        ratio = "-"
        if "moebius" in row and others:
            ratio = f"{row['moebius'] / max(others):.2f}"
        cells = [f"{row[name]:.1f}" if name in row else "-" for name in names]
        print(f"| {case} | " + " | ".join(cells) + f" | {ratio} |")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
