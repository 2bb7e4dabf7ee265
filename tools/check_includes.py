#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Fails on an #include that points the wrong way between stages.

core <- quant <- {router, comm, experts} <- layer <- checkpoint <- {c_api, plan} <- app; siblings never
include each other. problems/, which the command, tests and benchmarks share, stands beside plan. absent/ stands in
for CUDA and NCCL in a build without them. A public header belongs to the stage that implements it and may
include only public headers and the standard library. A test of tests/<stage>/ may include what the stage
may, problems/, checkpoint/ and files of tests/. A benchmark of bench/ may include every stage except the
command, and nothing of tests/. The layer names no backend: of its files only the row operations,
src/layer/rows, may include from a cuda/ folder.
"""

import argparse
import pathlib
import re
import sys

# For each stage the stages that it may include, besides itself.
MAY_INCLUDE = {
    "core": set(),
    "quant": {"core"},
    "router": {"core", "quant"},
    "comm": {"core", "quant"},
    "experts": {"core", "quant"},
    "layer": {"core", "quant", "router", "comm", "experts"},
    "checkpoint": {"core", "quant", "layer"},
    "c_api": {"core", "quant", "router", "comm", "experts", "layer", "checkpoint"},
    "plan": {"core", "quant", "router", "comm", "experts", "layer", "checkpoint"},
    "problems": {"core", "quant", "router", "comm", "experts", "layer", "checkpoint"},
    "absent": {"core", "quant", "router", "comm", "experts", "layer"},
    "app": {"core", "quant", "router", "comm", "experts", "layer", "checkpoint", "plan", "problems"},
}

# For each stage its headers in include/moebius.
PUBLIC_HEADERS = {
    "core": "allocator api deadline device dlpack dtype error float_types graph interrupt log parallel_executor pending"
    " profile row_arrivals settings slot_order stream support tensor version",
    "quant": "quant_config quantize scale_layout",
    "router": "router",
    "comm": "dispatch group low_latency low_latency_rows rebalance transports",
    "experts": "experts permute",
    "layer": "all2all layer_call modular_kernel moe_layer parallel_config prepare_finalize"
    " shared_experts tolerance weight_and_reduce workspace",
    "checkpoint": "checkpoint safetensors",
}
STAGE_OF_HEADER = {
    f"moebius/{name}.h": stage for stage, names in PUBLIC_HEADERS.items() for name in names.split()
} | {"moebius_c.h": "c_api"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
STANDARD_HEADER = re.compile(r"^([a-z_0-9]+|std(def|int)\.h)$")
SOURCE_SUFFIXES = {".h", ".cc", ".cuh", ".cu"}


def includes_of(path):
    """Yields (line number, is quoted, included name) of a file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1] == '"', match[2]


def source_files(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in SOURCE_SUFFIXES)


def stage_of(name):
    """Returns the stage that an included name belongs to, or None if it is not ours."""
    if name.startswith("moebius/") or name in STAGE_OF_HEADER:
        return STAGE_OF_HEADER.get(name)
    first = name.split("/")[0]
    return first if "/" in name and first in MAY_INCLUDE else None


def refusal(stage, name):
    """Returns why a file of `stage` may not include `name`, a header of ours, or None if it may."""
    target = stage_of(name)
    if target is None:
        return f"{name} belongs to no stage (see PUBLIC_HEADERS in tools/check_includes.py)"
    if target != stage and target not in MAY_INCLUDE[stage]:
        return f"{stage} may not include {target} ({name})"
    return None


def check_public_header(path, name):
    if name not in STAGE_OF_HEADER:
        yield 1, f"{name} belongs to no stage (see PUBLIC_HEADERS in tools/check_includes.py)"
        return
    for number, _, included in includes_of(path):
        if included.startswith("moebius/"):
            reason = refusal(STAGE_OF_HEADER[name], included)
            if reason:
                yield number, reason
        elif not STANDARD_HEADER.match(included):
            yield number, f"a public header may include only public and standard ones: {included}"


def names_backend(path, src, included):
    """Whether a file of the layer outside its row operations includes from a backend's folder."""
    layer = src / "layer"
    return "/cuda/" in included and path.is_relative_to(layer) and not path.is_relative_to(layer / "rows")


def check_source(path, stage, allowed, roots):
    """Checks one file; `allowed` is what it may include besides `stage`, `roots` the include folders."""
    for number, quoted, included in includes_of(path):
        target = stage_of(included)
        if names_backend(path, roots[0], included):
            yield number, f"layer names no backend outside src/layer/rows ({included})"
        elif included.startswith("moebius/") and target is None:
            yield number, f"{included} belongs to no stage (see PUBLIC_HEADERS in tools/check_includes.py)"
        elif target and target != stage and target not in allowed:
            yield number, f"{stage} may not include {target} ({included})"
        elif quoted and not target and not any((root / included).exists() for root in roots):
            yield number, f'"{included}" is neither "moebius/..." nor "<stage>/..."'


def check_tree(root):
    """Yields one message for each wrong include under `root`."""
    public = root / "include"
    for path in source_files(public):
        for number, reason in check_public_header(path, path.relative_to(public).as_posix()):
            yield f"{path.relative_to(root)}:{number}: {reason}"
    src = root / "src"
    every_stage = set(MAY_INCLUDE) - {"app"}
    for folder in ("src", "tests", "bench"):
        for path in source_files(root / folder):
            name = path.relative_to(root).parts[1]
            stage, allowed, roots = name, MAY_INCLUDE.get(name, every_stage), [src]
            if folder == "src" and name not in MAY_INCLUDE:
                yield f"{path.relative_to(root)}:1: src/{name} is not a stage"
                continue
            if folder == "tests":
                allowed = allowed | {"problems", "checkpoint"}  # checkpoint/ reads fixtures
                roots = [src, root]
            elif folder == "bench":
                stage, allowed = "bench", every_stage
            for number, reason in check_source(path, stage, allowed, roots):
                yield f"{path.relative_to(root)}:{number}: {reason}"


def main(description, check):
    """Prints the messages that `check` yields for a project root; returns the exit code."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    default_root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--root", type=pathlib.Path, default=default_root, help="project root")
    messages = list(check(parser.parse_args().root.resolve()))
    for message in messages:
        print(message)
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(__doc__, check_tree))
