# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""tools/check_syntax.py compiles each source alone and names what an include is missing for."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECKER = ROOT / "tools" / "check_syntax.py"


def check(folder, command, file, *arguments):
    """Runs the checker on a build of one command; returns its exit code and output."""
    database = [{"directory": folder, "command": command, "file": str(file)}]
    pathlib.Path(folder, "compile_commands.json").write_text(json.dumps(database), encoding="utf-8")
    done = subprocess.run([sys.executable, str(CHECKER), "--build", folder, *arguments], stdout=subprocess.PIPE,
                          text=True, check=False)
    return done.returncode, done.stdout


def run_checker(source):
    """Runs the checker on one source with the flags of a build; returns its exit code and output."""
    # Sources outside the project are other people's, so this one lies in it.
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        file = pathlib.Path(folder, "a.cc")
        file.write_text(source, encoding="utf-8")
        command = f"ccache g++ -Dx=1 -O3 -std=c++20 -Werror -MD -MT a.o -MF a.o.d -o a.o -c {file}"
        return check(folder, command, file)


@unittest.skipUnless(any(shutil.which(name) for name in ("clang++-19", "clang++-18", "clang++")), "no clang++")
class CheckSyntax(unittest.TestCase):
    def test_a_source_with_its_includes_passes(self):
        code, output = run_checker("#include <vector>\nstd::vector<int> numbers();\n")
        self.assertEqual(code, 0, output)
        self.assertIn("1 sources compiled", output)

    def test_a_missing_include_fails(self):
        code, output = run_checker("std::vector<int> numbers();\n")
        self.assertEqual(code, 1, output)
        self.assertIn("a.cc:1", output)


class CheckUnity(unittest.TestCase):
    """With --unity each source of a unity file is compiled alone by the build's compiler."""

    def run_on(self, *sources):
        (ROOT / "build").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
            unity = pathlib.Path(folder, "Unity", "unity_0_cxx.cxx")
            unity.parent.mkdir()
            files = [pathlib.Path(folder, f"{n}.cc") for n in range(len(sources))]
            for file, text in zip(files, sources):
                file.write_text(text, encoding="utf-8")
            unity.write_text("".join(f'#include "{file}"\n\n' for file in files), encoding="utf-8")
            command = f"ccache g++ -std=c++20 -MD -MT a.o -MF a.o.d -o a.o -c {unity}"
            return check(folder, command, unity, "--unity")

    def test_sources_with_their_includes_pass(self):
        code, output = self.run_on("#include <vector>\nstd::vector<int> a();\n", "int b();\n")
        self.assertEqual(code, 0, output)
        self.assertIn("2 sources compiled", output)

    def test_an_include_of_the_source_before_does_not_count(self):
        code, output = self.run_on("#include <vector>\nstd::vector<int> a();\n", "std::vector<int> b();\n")
        self.assertEqual(code, 1, output)
        self.assertIn("1.cc:1", output)


if __name__ == "__main__":
    unittest.main()
