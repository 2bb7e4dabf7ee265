#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles every host source of a configured build with clang, without making objects.

Each source is compiled by itself, so that one that lacks an include fails here. The tool prints what clang
says and exits with 1 if a source fails. Where there is no clang or no configured build it says so and exits
with 0. On Debian it needs clang-19 and libomp-19-dev, which has omp.h.

With --unity it compiles only the sources that the build compiles several at a time (moebius_use_unity in
cmake/MoebiusPrecompiled.cmake), with the build's own compiler and precompiled headers. The build must have been made.
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
UNITY_SOURCE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
COMPILER = re.compile(r"\+\+(-[\d.]+)?$")


def find_clang():
    """Returns the newest clang++ on the path, or None."""
    for name in ["clang++-19", "clang++-18", "clang++"]:
        if shutil.which(name):
            return name
    return None


def sources_of(entry, only_unity):
    """Returns an entry for each source that the entry compiles, which are many where it is a unity file of CMake's."""
    file = pathlib.Path(entry["file"])
    if file.parent.name != "Unity":
        return [] if only_unity else [entry]
    return [{**entry, "file": source, "command": entry["command"].replace(str(file), source)}
            for source in UNITY_SOURCE.findall(file.read_text(encoding="utf-8"))]


def split_command(entry):
    """Returns the compiler and its arguments, without a launcher such as ccache, which comes before it."""
    words = shlex.split(entry["command"])
    compiler = next(i for i, word in enumerate(words) if COMPILER.search(word))
    return words[compiler], words[compiler + 1:]


def own_command(entry):
    compiler, words = split_command(entry)
    at = words.index("-o")
    return [compiler, "-fsyntax-only", *words[:at], *words[at + 2:]]


def clang_command(clang, entry):
    # libstdc++ 12 uses its own deprecated get_temporary_buffer() in std::stable_sort.
    command = [clang, "-fsyntax-only", "-Wno-unknown-warning-option",
               "-Wno-unused-command-line-argument", "-Wno-deprecated-declarations"]
    skip = False
    for word in split_command(entry)[1]:
        if skip:
            skip = False
        elif word in TAKES_VALUE:
            skip = True
        elif not LEFT_OUT.fullmatch(word):
            command.append(word)
    return command


def compile_one(command, entry):
    done = subprocess.run(command(entry), cwd=entry["directory"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release", help="a configured folder")
    parser.add_argument("--only", default="", help="regular expression of the sources to compile")
    parser.add_argument("--unity", action="store_true", help="compile only sources of unity files, as the build would")
    arguments = parser.parse_args()
    compiler, command = find_clang(), lambda entry: clang_command(compiler, entry)
    if arguments.unity:
        compiler, command = "the build's compiler", own_command
    database = arguments.build / "compile_commands.json"
    if not compiler or not database.exists():
        print(f"check: {f'no {database}' if compiler else 'no clang++'}, sources are not compiled by themselves")
        return 1 if arguments.unity else 0
    entries = [e for listed in json.loads(database.read_text(encoding="utf-8"))
               for e in sources_of(listed, arguments.unity)
               if e["file"].endswith(".cc") and re.search(arguments.only, e["file"])
               and pathlib.Path(e["file"]).is_relative_to(ROOT)]
    unique = {e["file"]: e for e in entries}
    jobs = int(os.environ.get("JOBS", 0)) or len(os.sched_getaffinity(0))
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for code, output in pool.map(lambda e: compile_one(command, e), unique.values()):
            failed += code != 0
            sys.stdout.write(output)
    print(f"check: {len(unique)} sources compiled with {compiler}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
