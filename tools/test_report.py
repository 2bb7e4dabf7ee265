#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Prints how test runs ended: the last lines that failing tests printed, then the names of these tests, then
the counts. The report is short, since often only the end of a log is shown.

It reads the files that ctest wrote: FILE.xml (--output-junit), and FILE.log (--output-log) for the reasons.
Where there are no results it prints FILE.err, and the run counts as failed. Fails if a test failed, or if
none passed.
"""

import argparse
import collections
import pathlib
import re
import sys
import xml.etree.ElementTree

MAX_LINES = 50  # that are printed of all failing tests together
MAX_LINES_OF_ONE = 30
MIN_LINES_OF_ONE = 8
MAX_NAMES = 15

# Matches blank lines and lines that GoogleTest prints besides failures.
NOISE = re.compile(
    r"\s*$|Running main\(\) from|Note: |\[[=-]{10}\]|\[ RUN |\[       OK |\[  PASSED  \]|\[  SKIPPED \]"
    r"|\[  FAILED  \] \d+ tests?, listed below:| *\d+ FAILED TESTS?$")

# Matches a line of the list of failures at the end of a log: "\t  4 - NAME (Timeout)".
REASON = re.compile(r"^\t *\d+ - (.*) \((.*)\)$", re.MULTILINE)

Test = collections.namedtuple("Test", "name result reason seconds output")


def result_of(case):
    """Returns passed, failed or skipped. A test whose program is missing has failed."""
    if case.get("status") == "run":
        return "passed"
    skipped = case.find("skipped")
    if case.get("status") == "disabled" or (
            skipped is not None and (skipped.get("message") or "").startswith("SKIP_")):
        return "skipped"
    return "failed"


def read_tests(base):
    suite = xml.etree.ElementTree.parse(base + ".xml").getroot()
    with open(base + ".log", encoding="utf-8", errors="replace") as log:
        reasons = dict(REASON.findall(log.read()))
    return [
        Test(case.get("name"), result_of(case), reasons.get(case.get("name"), "?"),
             float(case.get("time") or 0), case.findtext("system-out") or "")
        for case in suite.iter("testcase")
    ]


def end_of(output, limit):
    """Returns the last lines of an output, without lines that tell nothing or that repeat an earlier one."""
    lines = []
    for line in output.splitlines():
        if not NOISE.match(line) and not (line.startswith("[  FAILED  ]") and line in lines):
            lines.append(line)
    return lines[-limit:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="NAME=FILE",
                        help="a run's name, and its files without .xml and .log")
    counts = []
    failed = []
    total = collections.Counter()
    for run in parser.parse_args().runs:
        name, _, base = run.partition("=")
        try:
            tests = read_tests(base)
        except (OSError, xml.etree.ElementTree.ParseError):
            output = pathlib.Path(base + ".err").read_text(encoding="utf-8", errors="replace")
            tests = [Test("ctest itself", "failed", "no results", 0, output)]
        failed += [(name, test) for test in tests if test.result == "failed"]
        count = collections.Counter(test.result for test in tests)
        counts.append(f"{name}: {line_of(count)} (log: {base}.log)")
        total += count

    left = MAX_LINES
    for name, test in failed:
        limit = min(left, MAX_LINES_OF_ONE, max(MIN_LINES_OF_ONE, MAX_LINES // len(failed)))
        if limit < MIN_LINES_OF_ONE:
            break
        lines = end_of(test.output, limit) or ["(it printed nothing)"]
        left -= len(lines) + 1
        print(f"---- {name} {test.name}")
        print("\n".join(lines))
    if failed:
        print(f"\n{len(failed)} failed:")
        for name, test in failed[:MAX_NAMES]:
            print(f"  {name} {test.name} ({test.reason}, {test.seconds:.1f} s)")
        if len(failed) > MAX_NAMES:
            print("  ...")

    print("\n" + "\n".join(counts))
    print(line_of(total))
    return 1 if total["failed"] or not total["passed"] else 0


def line_of(count):
    return f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped"


if __name__ == "__main__":
    sys.exit(main())
