# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""tools/test_report.py counts what a real ctest wrote, and ends with what failed."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

REPORT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "test_report.py"

PASSES = "add_test(passes true)\n"
SKIPPED = """add_test(skipped echo "[  SKIPPED ]")
set_tests_properties(skipped PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED")
add_test(disabled true)
set_tests_properties(disabled PROPERTIES DISABLED TRUE)
"""
FAILS = 'add_test({0} sh -c "echo before; echo; echo [ RUN ]; echo why {0}; exit 1")\n'
TIMES_OUT = "add_test(hangs sleep 60)\nset_tests_properties(hangs PROPERTIES TIMEOUT 1)\n"
NO_PROGRAM = "add_test(lost no_such_program)\n"


def run_report(*runs):
    """Runs ctest on each list of tests and reports; returns the exit code and the lines."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = []
        for number, tests in enumerate(runs):
            path = pathlib.Path(folder, str(number))
            path.mkdir()
            (path / "CTestTestfile.cmake").write_text(tests, encoding="utf-8")
            base = str(path / "ctest")
            with open(base + ".err", "w", encoding="utf-8") as err:
                subprocess.run(["ctest", "--output-log", base + ".log", "--output-junit",
                                base + ".xml"], cwd=path, stdout=subprocess.DEVNULL, stderr=err,
                               check=False)
            arguments.append(f"run{number}={base}")
        done = subprocess.run([sys.executable, str(REPORT), *arguments], stdout=subprocess.PIPE,
                              text=True, check=False)
        return done.returncode, done.stdout.splitlines()


class TestReport(unittest.TestCase):
    def test_counts_are_the_last_line(self):
        code, lines = run_report(PASSES + SKIPPED, PASSES)
        self.assertEqual(code, 0)
        self.assertEqual(lines[-1], "2 passed, 0 failed, 2 skipped")
        self.assertTrue(lines[-2].startswith("run1: 1 passed, 0 failed, 0 skipped"), lines)
        self.assertTrue(lines[-3].startswith("run0: 1 passed, 0 failed, 2 skipped"), lines)

    def test_failures_are_told_of_with_their_reasons(self):
        code, lines = run_report(PASSES, PASSES + FAILS.format("breaks") + TIMES_OUT + NO_PROGRAM)
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "2 passed, 3 failed, 0 skipped")
        begin = lines.index("---- run1 breaks")
        self.assertEqual(lines[begin + 1:begin + 4], ["before", "why breaks", "---- run1 hangs"])
        begin = lines.index("3 failed:")
        for line, start in zip(lines[begin + 1:], ["  run1 breaks (Failed, ", "  run1 hangs (Timeout, ",
                                                   "  run1 lost (Not Run, "]):
            self.assertTrue(line.startswith(start), line)

    def test_many_failures_fit_into_the_end_of_a_log(self):
        code, lines = run_report("".join(FAILS.format(f"breaks{i}") for i in range(100)))
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "0 passed, 100 failed, 0 skipped")
        self.assertIn("why breaks0", lines)
        self.assertLessEqual(len(lines), 75)

    def test_runs_without_results_and_without_tests_fail(self):
        code, lines = run_report(PASSES, 'message(FATAL_ERROR "cannot list its tests")\n')
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")
        self.assertTrue(any("cannot list its tests" in line for line in lines), lines)
        self.assertEqual(run_report("")[0], 1)


if __name__ == "__main__":
    unittest.main()
