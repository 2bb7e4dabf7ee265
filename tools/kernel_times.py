#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the kernels of one call in order of time, from a file that bench/kernel_times.cc has written.

A call begins with a kernel whose name contains FIRST, which is the kernel of the router's logits unless
given. CALL counts such kernels of the first device from 0, or from the end where it is negative.
"""
import argparse
import csv
import re


def short(name):
    return re.sub(r"\(anonymous namespace\)::|moebius::|cuda::|\bvoid ", "", name)[:80]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--call", type=int, default=3,
                        help="default 3; the last calls of bench layer are those that tell the time "
                             "per stage, with events between kernels that take microseconds")
    parser.add_argument("--first", default="logits_kernel")
    parser.add_argument("--device", help="this one alone; default: all")
    args = parser.parse_args()
    with open(args.file, encoding="utf-8") as lines:
        rows = sorted(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE),
                      key=lambda row: int(row["begin"]))
    device = args.device or min(row["device"] for row in rows)
    begins = [int(row["begin"]) for row in rows
              if row["device"] == device and args.first in row["name"]]
    begin = begins[args.call]
    later = [other for other in begins if other > begin]
    end = later[0] if later else float("inf")
    print("   begin      end       us  device stream blocks")
    for row in rows:
        at = int(row["begin"])
        if begin <= at < end and (args.device is None or row["device"] == args.device):
            until = int(row["end"])
            print(f"{(at - begin) / 1e3:8.2f} {(until - begin) / 1e3:8.2f} {(until - at) / 1e3:8.2f}  "
                  f"{row['device']:>6} {row['stream']:>6} {row['blocks']:>6} "
                  f"{short(row['name'])}")


if __name__ == "__main__":
    main()
