#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Runs files of tests with pytest for ctest: `run.py FILE...`, or a program: `run.py --program FILE`.

Exits with 77, which ctest reports as skipped, where pytest or numpy are missing, or where every
test was skipped."""
import importlib.util
import subprocess
import sys

is_program = sys.argv[1] == "--program"
needed = ("numpy",) if is_program else ("pytest", "numpy")
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing:
    print(f"skipped: {sys.executable} has no {' and no '.join(missing)}")
    sys.exit(77)
if is_program:
    sys.exit(subprocess.call([sys.executable, *sys.argv[2:]]))

import pytest  # noqa: E402


class Counts:
    """Counts how tests end."""

    def __init__(self) -> None:
        self.passed = 0
        self.skipped = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed
        self.skipped += report.skipped

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.skipped += report.skipped  # a file that needs what is missing


counts = Counts()
options = ["-q", "-rs", "-p", "no:cacheprovider"]
code = pytest.main([*options, *sys.argv[1:]], plugins=[counts])
is_well = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
sys.exit(77 if is_well and counts.skipped and not counts.passed else int(code))
