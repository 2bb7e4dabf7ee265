# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Runs every model family of transformers whose experts go through its interface on Moebius, and
compares with transformers' own computation ("eager"):

    python families.py --devices cpu cuda --jobs 8 --seconds 150

Each family is a small model with random weights, in a process of its own.  Compared are
  experts  each experts module with random tokens, in f32 and bf16: |result - eager| / |eager|;
  logits   of the whole model, likewise.  In bf16 the experts are chosen as in the eager run, since
           rounding changes which of two close experts a router takes;
  tokens   32 tokens of greedy generation in f32, for models that generate.

A line for each family and device, and at the end how many passed; 0 is returned if all did, 1 if
some did not, and 77 without transformers 5.  Families that this list does not have, or that this
transformers does not have, are named."""
from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import multiprocessing
import os
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any, Iterator, Optional

import model_families

LIMITS = {"float32": 1e-3, "bfloat16": 1e-2}
NUM_TOKENS, NUM_NEW = 16, 32
SKIPPED = 77


def decorated_classes(source: str) -> list[str]:
    """The experts classes of a modeling file."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            names = [ast.unparse(decorator) for decorator in node.decorator_list]
            if any(name.startswith("use_experts_implementation") for name in names):
                found.append(node.name)
    return found


def discover() -> dict[str, list[str]]:
    """The families of this transformers, with their experts classes."""
    import transformers

    families = {}
    for path in sorted((Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")):
        source = path.read_text(encoding="utf-8")
        if "@use_experts_implementation" in source:
            classes = decorated_classes(source)
            if classes:
                families.setdefault(path.parent.name, []).extend(classes)
    return families


def settings_of(cls: Any) -> dict[str, Any]:
    """The settings of a configuration class, with their defaults."""
    found: dict[str, Any] = {name: None for name in getattr(cls, "attribute_map", {})}
    for base in reversed(cls.__mro__):
        for name in vars(base).get("__annotations__", {}):
            found[name] = vars(base).get(name, getattr(cls, name, None))
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            found.setdefault(name, parameter.default)
    return found


def small_config(cls: Any, family: str) -> Any:
    """A small configuration of a class."""
    defaults = settings_of(cls)
    chosen = dict(model_families.FAMILIES.get(family, model_families.Family()).small)
    for name, value in model_families.SMALL.items():
        if name in chosen or name not in defaults:
            continue
        old = defaults[name]
        is_needed = "experts" in name or name.endswith("_token_id")
        if old in (None, 0) and not is_needed:
            continue  # the family does without
        if name == "num_key_value_heads":
            # Families with as many as heads, or with one, may count on it.
            value = 1 if old == 1 else 4 if old == defaults.get("num_attention_heads") else 2
        elif name in ("n_group", "first_k_dense_replace", "n_shared_experts"):
            value = value if old is None else min(old, value)
        chosen[name] = value
    return cls(**{name: value for name, value in chosen.items() if value is not ...})


def config_class_of(cls: Any) -> Any:
    """The class that the constructor of a model names, or else that of its base."""
    named = inspect.signature(cls.__init__).parameters.get("config")
    annotation = inspect.Parameter.empty if named is None else named.annotation
    if isinstance(annotation, str):
        annotation = getattr(sys.modules[cls.__module__], annotation, None)
    has_one = isinstance(annotation, type) and annotation is not inspect.Parameter.empty
    return annotation if has_one else cls.config_class


def candidate_models(family: str) -> Iterator[Any]:
    """The model classes of a family that may hold its experts, those with a head first."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    from transformers import PreTrainedModel

    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, PreTrainedModel)
        and value.__module__ == module.__name__
        and getattr(value, "config_class", None) is not None
    ]
    for ending in ("ForCausalLM", "TextModel", "Model"):
        for value in classes:
            if value.__name__.endswith(ending) and "PreTrained" not in value.__name__:
                if ending == "Model" and value.__name__.endswith("TextModel"):
                    continue
                yield value


def experts_modules(model: Any, names: list[str]) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ in names]


def fill(module: Any) -> None:
    """Random weights with which experts neither vanish nor explode."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters(recurse=False):
            values = torch.randn(parameter.shape, generator=generator)
            if name.endswith("_bias"):
                parameter.copy_(0.1 * values)
            else:
                inputs = parameter.shape[1 if getattr(module, "is_transposed", False) else 2]
                # What experts add is then about as large as what they are given by the layer.
                size = 0.1 if name == "down_proj" else 1.0
                parameter.copy_(size * values / inputs**0.5)


def build(family: str, names: list[str]) -> tuple[Any, str]:
    """A small model with random weights; where none can be built, None and why."""
    import torch

    reasons = []
    for cls in candidate_models(family):
        try:
            torch.manual_seed(0)
            config = small_config(config_class_of(cls), family)
            if getattr(config, "hidden_size", 0) > 128 or getattr(config, "sub_configs", None):
                reasons.append(f"{cls.__name__} has no small configuration")
                continue
            model = cls(config).eval()
            modules = experts_modules(model, names)
            if not modules:
                reasons.append(f"{cls.__name__} has no experts")
                continue
            for module in modules:
                fill(module)
            choose(model, "eager")
            with torch.no_grad():
                run(model, torch.arange(3, 3 + NUM_TOKENS)[None])
            return model, ""
        except Exception as error:  # noqa: B902 any failure of the family's own code
            reasons.append(f"{cls.__name__}: {type(error).__name__}: {error}".split("\n")[0])
    return None, "; ".join(reasons) or "no model class"


class LooseConfig(types.SimpleNamespace):
    """A configuration for an experts class alone: what it lacks has the small value."""

    def __getattr__(self, name: str) -> Any:
        if name in model_families.SMALL:
            return model_families.SMALL[name]
        if name.startswith("__"):
            raise AttributeError(name)
        defaults: dict[str, Any] = {
            "hidden_act": "silu",
            "hidden_activation": "gelu_pytorch_tanh",
            "mlp_hidden_act": "relu2",
            "swiglu_limit": 7.0,
            "swiglu_alpha": 1.702,
        }
        return defaults.get(name)


def lone_experts(family: str, names: list[str]) -> list[Any]:
    """The experts of a family whose model cannot be built here."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    made = []
    for name in names:
        config = LooseConfig(model_type=family, _experts_implementation="eager")
        experts = getattr(module, name)(config).eval()
        fill(experts)
        made.append(experts)
    return made


def choose(model: Any, implementation: str) -> None:
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_experts_implementation"):
            try:
                config._experts_implementation_internal = implementation
            except AttributeError:
                pass
            if config._experts_implementation != implementation:
                config._experts_implementation = implementation


def run(model: Any, ids: Any) -> Any:
    """Logits, or hidden states of a model without a head."""
    output = model(input_ids=ids)
    logits = getattr(output, "logits", None)
    return (output[0] if logits is None else logits).float()


def error_of(result: Any, expected: Any) -> float:
    """|result - expected| / |expected|, as include/moebius/tolerance.h has it."""
    if not bool(result.isfinite().all()):
        return float("inf")
    return float((result - expected).norm() / expected.norm().clamp(min=1e-30))


def compare_experts(module: Any, device: str) -> float:
    """The error of one module with random tokens."""
    import torch

    weight = module.down_proj
    transposed = getattr(module, "is_transposed", False)
    hidden_size = weight.shape[2 if transposed else 1]
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(NUM_TOKENS, hidden_size, generator=generator).to(device, weight.dtype)
    scores = torch.randn(NUM_TOKENS, weight.shape[0], generator=generator).softmax(-1)
    weights, ids = scores.topk(min(2, weight.shape[0]))
    weights, ids = weights.to(device, weight.dtype), ids.to(device)
    results = []
    for implementation in ("eager", "moebius"):
        module.config._experts_implementation = implementation
        results.append(module(hidden, ids, weights).float())
    return error_of(results[1], results[0])


class Routing:
    """Records which experts a run chooses, and makes another run choose the same."""

    def __init__(self, modules: list[Any]) -> None:
        self.recorded: list[tuple[Any, Any]] = []
        self.position: Optional[int] = None
        self._hooks = [
            module.register_forward_pre_hook(self._see, with_kwargs=True) for module in modules
        ]

    def _see(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) < 3:
            return None
        if self.position is None:
            self.recorded.append((args[1], args[2]))
            return None
        ids, weights = self.recorded[self.position]
        self.position += 1
        return (args[0], ids, weights, *args[3:]), kwargs

    def replay(self) -> None:
        self.position = 0

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def generate(model: Any, ids: Any) -> list[int]:
    model.generation_config.eos_token_id = None
    made = model.generate(
        ids, max_new_tokens=NUM_NEW, min_new_tokens=NUM_NEW, do_sample=False, pad_token_id=0
    )
    tokens: list[int] = made[0, ids.shape[1] :].tolist()
    return tokens


def examine(family: str, names: list[str], device: str, only_experts: bool) -> dict[str, Any]:
    """All comparisons of a family on a device."""
    import torch

    import moebius.transformers

    moebius.transformers.register()
    found: dict[str, Any] = {
        "experts": {},
        "logits": {},
        "tokens": None,
        "note": "",
        "needs_logits": not only_experts,
    }
    model, why = (None, "") if only_experts else build(family, names)
    found["note"] = why
    if model is not None:
        found["note"] = type(model).__name__
        modules = experts_modules(model, names)
        model.to(device)
    else:
        modules = []
    # Other parts of a family have experts of their own.
    missing = [name for name in names if name not in {type(x).__name__ for x in modules}]
    lone = [module.to(device) for module in lone_experts(family, missing)]
    ids = torch.arange(3, 3 + NUM_TOKENS, device=device)[None]
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            name = str(dtype).rpartition(".")[2]
            for module in [*lone, model] if model is not None else lone:
                module.to(dtype)
            errors = [compare_experts(module, device) for module in [*modules, *lone]]
            found["experts"][name] = max(errors)
            if model is None:
                continue
            routing = Routing(modules) if dtype is torch.bfloat16 else None
            choose(model, "eager")
            expected = run(model, ids)
            choose(model, "moebius")
            if routing is not None:
                routing.replay()
            found["logits"][name] = error_of(run(model, ids), expected)
            if routing is not None:
                routing.remove()
            elif hasattr(model, "generate") and type(model).__name__.endswith("ForCausalLM"):
                choose(model, "eager")
                wanted = generate(model, ids)
                choose(model, "moebius")
                made = generate(model, ids)
                found["tokens"] = sum(a == b for a, b in zip(made, wanted))
    return found


def passed(found: dict[str, Any]) -> bool:
    if found.get("failure"):
        return False
    for kind in ("experts", "logits"):
        if any(error > LIMITS[name] for name, error in found[kind].items()):
            return False
    has_all = bool(found["experts"]) and (bool(found["logits"]) or not found["needs_logits"])
    return has_all and found["tokens"] in (None, NUM_NEW)


def line_of(family: str, device: str, found: dict[str, Any]) -> str:
    def errors(kind: str) -> str:
        values = found.get(kind) or {}
        shown = [f"{values[name]:.0e}" if name in values else "-" for name in LIMITS]
        return "/".join(shown)

    tokens = found.get("tokens")
    shown = "-" if tokens is None else f"{tokens}/{NUM_NEW}"
    note = found.get("failure") or found.get("note", "")
    state = "ok" if passed(found) else "FAILED"
    return (
        f"{family:22} {device:5} {state:6} experts {errors('experts'):12} "
        f"logits {errors('logits'):12} tokens {shown:6} {note[:200]}"
    )


def needs_fresh_process(found: dict[str, Any]) -> bool:
    failure = found.get("failure", "")
    return "re-initialize CUDA" in failure or "initialization error" in failure


def work(pipe: Any, family: str, names: list[str], device: str, only_experts: bool) -> None:
    """The body of a family's process."""
    try:
        import torch

        torch.set_num_threads(2)
        found = examine(family, names, device, only_experts)
    except BaseException as error:  # noqa: B902 reported by the parent
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        found = {"failure": f"{type(error).__name__}: {error} ({where})".replace("\n", " ")}
    pipe.send(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", nargs="+", default=["cpu"], help="cpu, cuda")
    parser.add_argument("--families", nargs="+", help="these alone")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--seconds", type=float, default=600.0, help="in all; the rest is not run")
    parser.add_argument("--family-seconds", type=float, default=60.0, help="for each family")
    parser.add_argument("--experts-only", action="store_true", help="builds no whole models")
    arguments = parser.parse_args()
    begin = time.monotonic()
    os.environ.setdefault("MOEBIUS_THREADS", "2")
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here needs a network
    # Makes torch.cuda.is_available(), which transformers calls, leave the GPU alone.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    try:
        import torch  # noqa: F401 processes of families start with what is loaded here
        import transformers
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS  # noqa: F401
    except ImportError as error:
        print(f"skipped: transformers 5 is needed: {error}")
        return SKIPPED
    import moebius.transformers  # noqa: F401

    there = discover()
    listed = model_families.FAMILIES
    print(f"transformers {transformers.__version__}, {len(there)} families; {len(listed)} listed")
    for what, names in (
        ("not listed", sorted(set(there) - set(listed))),
        ("not there", sorted(set(listed) - set(there))),
    ):
        if names:
            print(f"{what}: {', '.join(names)}")
    chosen = arguments.families or sorted(there)
    waiting = [(family, device) for device in arguments.devices for family in chosen]
    total = len(waiting)
    # Why fork: each family has transformers loaded already.  Where something has touched the GPU
    # here, that is of no use on it, and processes start anew.
    context: Any = multiprocessing.get_context("fork")
    running: list[tuple[str, str, Any, Any, float]] = []
    again: set[tuple[str, str]] = set()
    num_passed = 0
    while waiting or running:
        now = time.monotonic()
        if now - begin > arguments.seconds:
            waiting.clear()
        while waiting and len(running) < arguments.jobs:
            family, device = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=work,
                args=(theirs, family, there.get(family, []), device, arguments.experts_only),
                daemon=True,
            )
            process.start()
            theirs.close()
            running.append((family, device, process, ours, now))
        left = []
        for family, device, process, pipe, started in running:
            found: Optional[dict[str, Any]] = None
            if pipe.poll():
                try:
                    found = pipe.recv()
                except EOFError:
                    process.join()
                    found = {"failure": f"its process ended with {process.exitcode}"}
            elif now - started > arguments.family_seconds or now - begin > arguments.seconds + 5:
                process.kill()
                found = {"failure": f"took more than {now - started:.0f} s"}
            if found is None:
                left.append((family, device, process, pipe, started))
                continue
            process.join(5)
            if context.get_start_method() == "fork" and needs_fresh_process(found):
                context = multiprocessing.get_context("spawn")
                print("GPU processes start anew, since this one has touched the GPU", flush=True)
            if needs_fresh_process(found) and (family, device) not in again:
                again.add((family, device))
                waiting.append((family, device))
                continue
            num_passed += passed(found)
            print(line_of(family, device, found), flush=True)
        running = left
        time.sleep(0.02)
    print(f"{num_passed} of {total} passed, {time.monotonic() - begin:.0f} s")
    return 0 if num_passed == total else 1


if __name__ == "__main__":
    sys.exit(main())
