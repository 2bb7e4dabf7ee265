# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a checker of tools/ on a tree that a test writes."""

import pathlib
import subprocess
import sys
import tempfile

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"


def run_checker(name, files):
    """Runs tools/<name> on a tree of {path: text}; returns its exit code and output."""
    with tempfile.TemporaryDirectory() as root:
        for path_name, text in files.items():
            path = pathlib.Path(root, path_name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        command = [sys.executable, str(TOOLS / name), "--root", root]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stdout
