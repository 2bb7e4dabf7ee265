#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Records what `moebius run` gives for every fixture, backend and rank count, and compares two records.

  tools/same_bits.py --record OUT.json [--command build/release/bin/moebius] [--fixtures DIR] [--device cuda]
  tools/same_bits.py --compare BEFORE.json AFTER.json

A record has the exit code, the error text and a hash of the output's bytes of each run. After a change
that shall keep all results the record is the same on the same machine. --compare names every run that
differs and exits with 1 if there is one.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEMES = ("none fp8_w8a8 fp8_w8a8_channel fp8_w8a8_tensor int8_w8a8 int8_w8a16 int4_w4a16 mxfp4_w4a16 mxfp4"
           " mxfp6_e3m2 mxfp6_e2m3 mxfp8 nvfp4").split()
QUANTIZED_AT_LOAD = ["qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "llama4"]  # fixtures in bf16
TRANSPORTS = ["allgather_reducescatter", "high_throughput", "low_latency"]


def ways_to_run(device):
    """Returns the arguments of every way in which a fixture is run."""
    ways = ["", "--format batched", "--chunk-tokens 7", "--threads 1"]
    for ranks in (2, 3, 4):
        ways.append(f"--ranks {ranks} --tp {ranks} --all2all none")
        for transport in TRANSPORTS:
            ways += [f"--ranks {ranks} --all2all {transport}{nodes}" for nodes in ("", " --ranks-per-node 1")]
    ways += [f"--ranks 4 --ranks-per-node 2 --all2all {transport}" for transport in TRANSPORTS[1:]]
    ways += [f"--ranks 4 --tp 2 --all2all {transport}" for transport in TRANSPORTS[:2]]
    ways += ["--ranks 2 --tp 2 --no-ep --all2all none",
             "--ranks 2 --all2all allgather_reducescatter --monolithic",
             "--ranks 2 --all2all low_latency --sum ranks",
             "--ranks 2 --all2all high_throughput --microbatches 2",
             "--ranks 2 --all2all low_latency --microbatches 3"]
    if device == "cuda":
        ways += ["--graph"] + [f"--graph --ranks 2 --all2all {transport}" for transport in TRANSPORTS[1:]]
    else:
        ways += ["--experts ref", "--experts ref --ranks 2 --all2all low_latency"]
    return ways


def runs(fixtures, device):
    """Yields (fixture, arguments) of every run."""
    for fixture in sorted(path.name for path in fixtures.iterdir() if path.is_dir()):
        yield from ((fixture, way) for way in ways_to_run(device))
    for fixture in QUANTIZED_AT_LOAD:
        for scheme in SCHEMES:
            for way in ["", " --format batched"] + [f" --ranks 2 --all2all {t}" for t in TRANSPORTS]:
                yield fixture, f"--quant {scheme}{way}"


def run(command, fixtures, device, fixture, way):
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder, "output.safetensors")
        words = [str(command), "run", "--model", str(fixtures / fixture), "--device", device, "--tokens", "33",
                 "--seed", "3", "--repeat", "1", "--output", str(output), *way.split()]
        if "--threads" not in words:
            words += ["--threads", "2"]
        environment = dict(os.environ, MOEBIUS_SPIN_US="0")
        done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env=environment, check=False)
        digest = ""
        if done.returncode == 0:
            data = output.read_bytes()
            header = 8 + int.from_bytes(data[:8], "little")
            digest = hashlib.sha256(data[header:]).hexdigest()[:16]
        error = done.stderr.strip().replace(str(fixtures), "FIXTURES").replace(folder, "FOLDER")
        return {"exit": done.returncode, "output": digest, "error": error}


def record(arguments):
    fixtures = arguments.fixtures.resolve()
    todo = list(runs(fixtures, arguments.device))
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(lambda r: run(arguments.command, fixtures, arguments.device, *r), todo)
        table = {f"{fixture} {way}": result for (fixture, way), result in zip(todo, results)}
    arguments.record.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(f"{len(table)} runs, {sum(r['exit'] == 0 for r in table.values())} with an output")
    return 0


def compare(before, after):
    tables = [json.loads(path.read_text(encoding="utf-8")) for path in (before, after)]
    different = [name for name in sorted(tables[0] | tables[1])
                 if tables[0].get(name) != tables[1].get(name)]
    for name in different:
        print(name, *(f"\n  {table.get(name, 'not run')}" for table in tables))
    print(f"{len(tables[0])} runs, {len(different)} differ")
    return 1 if different else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", type=pathlib.Path, metavar="OUT.json")
    what.add_argument("--compare", type=pathlib.Path, nargs=2, metavar=("BEFORE.json", "AFTER.json"))
    parser.add_argument("--command", type=pathlib.Path, default=ROOT / "build/release/bin/moebius")
    parser.add_argument("--fixtures", type=pathlib.Path, default=ROOT.parent / "shared/fixtures")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    arguments = parser.parse_args()
    return compare(*arguments.compare) if arguments.compare else record(arguments)


if __name__ == "__main__":
    sys.exit(main())
