#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of docs/performance/dispatch.md from JSON lines of `moebius bench dispatch --device cuda`.

Usage: tools/gpu_table.py FILE.jsonl...

Times are those of the slowest rank, in us, and medians over the calls. The calls are in a CUDA graph where
the column does not say otherwise.
"""
import json
import sys


def operation(line):
    """Returns operation, dtype and sum of a line, such as ("combine", "bf16", "selections")."""
    name = line["problem"].split("/")[1].removesuffix("_graph").removesuffix("_ranks")
    sum_of = line["sum"] or "" if name.startswith(("combine", "both")) else ""
    return name.rsplit("_", 1)[0], line["dtype"], sum_of


def table(header, rows):
    print("| " + " | ".join(header) + " |")
    print("| " + " | ".join("---" for _ in header) + " |")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def print_high_throughput(lines):
    for tokens in sorted({line["tokens"] for line in lines}):
        chosen = [line for line in lines if line["tokens"] == tokens]
        sms = sorted({line["sms"] for line in chosen})
        names = list(dict.fromkeys(operation(line)[:2] for line in chosen))
        print(f"## High throughput, {tokens} tokens per rank, us by SMs (GB/s per rank, as DeepEP's)\n")
        rows = []
        for launch in ("graph", "stream"):
            for name in names:
                cells = []
                for n in sms:
                    found = [line for line in chosen
                             if (operation(line)[:2], line["sms"], line["launch"]) == (name, n, launch)]
                    cells.append("; ".join(
                        f"{line['median_us']:.1f} ({line['gb_per_s']:.0f}, {line['deepep_gb_per_s']:.0f})"
                        for line in found))
                wire = next(line["wire_bytes"] for line in chosen if operation(line)[:2] == name)
                rows.append([f"{name[0]}, {name[1]}", launch, f"{wire / 1e6:.0f} MB", *cells])
        table(["case", "launch", "wire", *map(str, sms)], rows)


def print_low_latency(lines):
    print("## Low latency, us (wire GB/s, as DeepEP's)\n")
    names = list(dict.fromkeys(operation(line) for line in lines))
    counts = sorted({line["tokens"] for line in lines})
    header = ["case"]
    for tokens in counts:
        header += [f"{tokens} tokens, {launch}" for launch in ("graph", "stream")]
    rows = []
    for name in names:
        row = [", ".join(filter(None, (name[0], name[1], name[2] and "sums of " + name[2])))]
        for tokens in counts:
            for launch in ("graph", "stream"):
                found = [line for line in lines
                         if (operation(line), line["tokens"], line["launch"]) == (name, tokens, launch)]
                row.append("; ".join(
                    f"{line['median_us']:.1f} ({line['gb_per_s']:.0f}, {line['deepep_gb_per_s']:.0f})"
                    for line in found))
        rows.append(row)
    table(header, rows)
    windows = sorted({(line["tokens"], line["window_bytes"]) for line in lines})
    print("Window per rank: " + ", ".join(f"{size / 1e6:.0f} MB ({tokens} tokens)"
                                          for tokens, size in windows) + "\n")


def main():
    lines = [json.loads(text) for name in sys.argv[1:] for text in open(name, encoding="ascii")]
    timed = [line for line in lines if "median_us" in line]
    if timed:
        first = timed[0]
        print(f"# {first['ranks']} ranks ({first['group']}) on {first['gpus']} x {first['gpu']}, "
              f"hidden {first['hidden']}, top-{first['topk']} of {first['experts']} experts, "
              f"commit {first['commit']}\n")
    for impl, show in (("high_throughput", print_high_throughput), ("low_latency", print_low_latency)):
        chosen = [line for line in timed if line["impl"] == impl]
        if chosen:
            show(chosen)
    for line in lines:
        for what in ("wrong", "refused"):
            if what in line:
                print(f"{what}: {line['problem']}: {line[what]}")


if __name__ == "__main__":
    main()
