#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles every host source of a configured build with clang, without making objects.

Each source is compiled by itself, so that one that lacks an include fails here. The tool prints what clang
says and exits with 1 if a source fails. Where there is no clang or no configured build it says so and exits
with 0. On Debian it needs clang-19 and libomp-19-dev, which has omp.h.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# These flags are unknown to clang, or would make it write files.
LEFT_OUT = re.compile(r"-o|-c|-M[DMTF].*|-march=.*|-mtune=.*")
TAKES_VALUE = {"-o", "-MT", "-MF", "-include"}  # the last includes precompiled headers
COMPILER = re.compile(r"\+\+(-[\d.]+)?$")


def find_clang():
    """Returns the newest clang++ on the path, or None."""
    for name in ["clang++-19", "clang++-18", "clang++"]:
        if shutil.which(name):
            return name
    return None


def clang_command(clang, entry):
    words = shlex.split(entry["command"])
    # A launcher such as ccache comes before the compiler.
    first_flag = next(i for i, word in enumerate(words) if COMPILER.search(word)) + 1
    # libstdc++ 12 uses its own deprecated get_temporary_buffer() in std::stable_sort.
    command = [clang, "-fsyntax-only", "-Wno-unknown-warning-option",
               "-Wno-unused-command-line-argument", "-Wno-deprecated-declarations"]
    skip = False
    for word in words[first_flag:]:
        if skip:
            skip = False
        elif word in TAKES_VALUE:
            skip = True
        elif not LEFT_OUT.fullmatch(word):
            command.append(word)
    return command


def compile_one(clang, entry):
    done = subprocess.run(clang_command(clang, entry), cwd=entry["directory"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release", help="a configured folder")
    parser.add_argument("--only", default="", help="regular expression of the sources to compile")
    arguments = parser.parse_args()
    clang, database = find_clang(), arguments.build / "compile_commands.json"
    if not clang or not database.exists():
        print(f"check: {'no clang++' if not clang else f'no {database}'}, sources are not compiled with clang")
        return 0
    entries = [e for e in json.loads(database.read_text(encoding="utf-8"))
               if e["file"].endswith(".cc") and re.search(arguments.only, e["file"])
               and pathlib.Path(e["file"]).is_relative_to(ROOT)]
    unique = {e["file"]: e for e in entries}
    jobs = int(os.environ.get("JOBS", 0)) or len(os.sched_getaffinity(0))
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for code, output in pool.map(lambda e: compile_one(clang, e), unique.values()):
            failed += code != 0
            sys.stdout.write(output)
    print(f"check: {len(unique)} sources compiled with {clang}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
