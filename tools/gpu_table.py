#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of docs/performance from JSON lines of `moebius bench --device cuda`.

Usage: tools/gpu_table.py [--measured] FILE.jsonl...

Lines of `bench dispatch` make those of dispatch.md. Times are those of the slowest rank, in us, and medians over
the calls. The calls are in a CUDA graph where the column does not say otherwise.
Lines of `bench experts --problem apply` make those of gpu_experts.md: the time of a call, the rate of products or
of weights, and the floor as a share of the time. With --measured they make the lines of src/plan/measured.cc.
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


def number(value):
    """Returns a number with three digits."""
    return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f}"


def cell_of(line):
    """Returns time, rate and share of an experts case; the rate is that of weights where there are few products."""
    if "median_us" not in line:
        return "refused" if "refused" in line else "wrong"
    us = line["median_us"]
    time = f"{number(us)} us" if us < 1000 else f"{number(us / 1000)} ms"
    per_byte = line["gflops"] / line["weight_gb_per_s"]
    rate = f"{line['gflops'] / 1000:.0f} TFLOP/s" if per_byte > 256 else f"{line['weight_gb_per_s'] / 1000:.2f} TB/s"
    return f"{time}, {rate}, {100 * line['of_floor']:.0f} %"


def experts_of(lines):
    """Returns the lines of experts by model, scheme and number of tokens."""
    found = {}
    for line in lines:
        _, problem, scheme = line["problem"].split("/")
        model, tokens = problem.rsplit("_t", 1)
        found.setdefault(model, {}).setdefault(scheme, {})[int(tokens)] = line
    return found


def print_experts(lines):
    for model, schemes in experts_of(lines).items():
        tokens = sorted({count for cells in schemes.values() for count in cells})
        print(f"## Experts, {model}\n")
        table(["scheme", *(f"{count} tokens" if count > 1 else "1 token" for count in tokens)],
              [[scheme, *(cell_of(cells[count]) if count in cells else "" for count in tokens)]
               for scheme, cells in schemes.items()])


def shown_us(line):
    """Returns the time with the digits that cell_of() shows."""
    us = line["median_us"]
    return float(number(us)) if us < 1000 else round(1000 * float(number(us / 1000)))


def print_measured(lines):
    for model, schemes in experts_of(lines).items():
        for scheme, cells in schemes.items():
            times = ", ".join(f"{shown_us(cells[count]):g}" for count in sorted(cells))
            print(f'    {{"{scheme}", "{model}", {{{times}}}}},')


def main():
    names = [name for name in sys.argv[1:] if name != "--measured"]
    lines = [json.loads(text) for name in names for text in open(name, encoding="ascii")]
    timed = [line for line in lines if "median_us" in line]
    experts = [line for line in lines if line["problem"].startswith("apply/")]
    if "--measured" in sys.argv:
        print_measured([line for line in experts if "median_us" in line])
        return
    if experts:
        print(f"# {timed[0]['gpu']}, commit {timed[0]['commit']}\n" if timed else "")
        print_experts(experts)
        timed = [line for line in timed if "ranks" in line]
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
