#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Runs every subcommand under limits of its address space (ulimit -v), on one rank and on four.

A run has to end in time with exit code 0 and nothing on stderr, or with exit code 3 and exactly one line
"moebius: ..." there. There are 40 limits from 60 MB up; without --all a part of the runs is done, spread over
commands and limits. Options give other limits: many close ones, say, meet every allocation of a command.
"""

import argparse
import collections
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

SOME = 110  # runs without --all, which take less than 30 s of CPU time
DEADLINE_S = 120

RUN = "run --model {model} --tokens 32 --repeat 1"
COMMANDS = [
    f"{RUN} --threads 1",
    f"{RUN} --threads 4 --check --output {{out}}/o.safetensors",
    f"{RUN} --threads 4 --quant fp8_w8a8 --check",
    f"{RUN} --threads 4 --quant int4_w4a16 --format batched --json {{out}}/o.json --trace {{out}}/o.trace",
    f"{RUN} --threads 16 --experts ref",
    f"{RUN} --dp 3 --threads 4",
    f"{RUN} --dp 4 --threads 4 --check --output {{out}}/o.safetensors",
    f"{RUN} --dp 4 --threads 16 --all2all high_throughput --ranks-per-node 2",
    f"{RUN} --dp 4 --threads 8 --all2all low_latency --format batched --microbatches 2",
    f"{RUN} --dp 2 --tp 2 --threads 16 --all2all allgather_reducescatter --json {{out}}/o.json",
    f"{RUN} --tp 4 --no-ep --threads 4 --quant int8_w8a8 --check",
    "make-model --preset tiny --output {out}/made",
    "make-model --preset tiny --layers 2 --quant int4 --output {out}/made",
    "bench quant --problem int8_token/quantize --impl cpu_avx2 --no-check --threads 4 --min-time 0.001",
    "bench router --problem qwen3_decode/select --threads 4 --min-time 0.001",
    "bench experts --problem qwen3_decode/nvfp4 --impl cpu_portable --no-check --threads 4 --min-time 0.001",
    "bench dispatch --problem dsv3_decode_r1 --ranks 1 --threads 4 --min-time 0.001",
    "bench dispatch --problem dsv3_decode_r4 --ranks 4 --threads 8 --min-time 0.001",
    "bench layer --preset tiny --threads 4 --tokens 1 --min-time 0.001",
    "verify --stage quant --problem fp8_token/quantize --threads 4",
    "verify --stage router --threads 4 --json {out}/o.json",
    "verify --stage experts --problem tiny --threads 4",
    "verify --stage dispatch --threads 8",
    "info --json {out}/o.json",
    "info --model {model}",
    "plan --preset deepseek-v3 --ranks 64 --sweep tokens --json {out}/o.json",
]


def limits(options):
    step = (options.last / options.first) ** (1 / (options.limits - 1))
    return [int(options.first * step**i * 2**20) for i in range(options.limits)]


def run(program, words, limit):
    """(what is wrong or None, exit code or -signal, stderr) of one run."""

    def set_limits():
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    environment = dict(os.environ, MOEBIUS_TIMEOUT_MS="20000", MOEBIUS_SPIN_US="0")
    process = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True, errors="replace", env=environment, preexec_fn=set_limits,
                               start_new_session=True)
    try:
        _, said = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, said = process.communicate()
        return f"did not end within {DEADLINE_S} s", process.returncode, said
    code = process.returncode
    if code < 0:
        return f"ended by {signal.Signals(-code).name}", code, said
    if code not in (0, 3):
        return f"exit code {code}", code, said
    if code == 0 and said:
        return "exit code 0, but it said something", code, said
    if code == 3 and not (said.startswith("moebius: ") and said.count("\n") == 1 and said.endswith("\n")):
        return "exit code 3 without exactly one line", code, said
    return None, code, said


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--all", action="store_true", help="every command under every limit")
    parser.add_argument("--match", default="", help="only commands with these words")
    parser.add_argument("--limits", type=int, default=40, help="their number")
    parser.add_argument("--first", type=float, default=60, help="the lowest limit in MB")
    parser.add_argument("--last", type=float, default=2048, help="the highest; the default is enough for all")
    parser.add_argument("--verbose", action="store_true", help="a line for each run")
    options = parser.parse_args()

    cases = [(limit, command) for limit in limits(options) for command in COMMANDS
             if options.match in command]
    random.Random(29).shuffle(cases)
    cases = cases if options.all else cases[:SOME]
    codes = collections.Counter()
    messages = collections.Counter()
    num_wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder, "model")
        subprocess.run([options.program, "make-model", "--preset", "tiny", "--output", model], check=True,
                       stdout=subprocess.DEVNULL)
        for limit, command in cases:
            out = pathlib.Path(folder, "out")
            out.mkdir()
            words = command.format(model=model, out=out).split()
            wrong, code, said = run(options.program, words, limit)
            leftovers = [p.name for p in out.iterdir()] if code != 0 and "make-model" not in command else []
            if wrong is None and leftovers:
                wrong = f"exit code {code}, but it left {leftovers}"
            shutil.rmtree(out)
            codes[code] += 1
            if code == 3:
                messages[said.strip().replace(folder, "")[:60]] += 1
            if options.verbose:
                print(code, limit >> 20, "MB:", command, "|", said.strip(), flush=True)
            if wrong is not None:
                num_wrong += 1
                print(f"WRONG: {wrong}\n  ulimit -v {limit >> 10}; moebius {' '.join(words)}\n  {said.strip()}",
                      flush=True)
    print(f"{len(cases)} runs, exit codes {dict(sorted(codes.items()))}, {num_wrong} wrong")
    if options.verbose:
        for message, count in messages.most_common():
            print(f"{count:5} {message}")
    # What tells nothing proves nothing.
    if not options.match and not (codes[0] and codes[3]):
        print("the limits are not around what commands need")
        return 1
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
