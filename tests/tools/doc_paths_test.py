# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Every path that HACKING.md, docs/design.md and docs/protocol.md name exists; a row's way has each once."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Paths in backquotes that begin with a folder of the project; patterns such as src/<stage> are left out.
PATH = re.compile(r"`((?:src|include|tests|bench|examples|tools|docs|web|cmake|python)/[\w./-]+)`")


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def section(text, heading):
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


class DocPaths(unittest.TestCase):
    def test_named_paths_exist(self):
        for name, least in [("HACKING.md", 25), ("docs/design.md", 40), ("docs/protocol.md", 12)]:
            paths = PATH.findall(text_of(name))
            self.assertGreaterEqual(len(paths), least, f"{name} names few paths: is the pattern right?")
            missing = [path for path in paths if not (ROOT / path).exists()]
            self.assertEqual(missing, [], f"{name} names what is not there")

    def test_hacking_answers_twelve_questions_with_files(self):
        rows = [row for row in section(text_of("HACKING.md"), "Where is ...?").splitlines() if "?" in row]
        answered = [row for row in rows if PATH.search(row)]
        self.assertGreaterEqual(len(answered), 12)
        self.assertEqual(rows, answered, "each question has a file")

    def test_the_way_of_a_row_names_each_file_once(self):
        paths = PATH.findall(section(text_of("docs/design.md"), "The way of one row"))
        self.assertGreaterEqual(len(paths), 20)
        self.assertEqual(len(paths), len(set(paths)))


if __name__ == "__main__":
    unittest.main()
