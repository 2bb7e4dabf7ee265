# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""tools/check_missing_includes.py passes complete files and names what the others lack."""

import functools
import unittest

import checker

run_checker = functools.partial(checker.run_checker, "check_missing_includes.py")


# By what is wrong: the text of src/core/a.cc, and what the checker must print.
REFUSED = {
    "a standard header": ("std::vector<int> v;\n", "src/core/a.cc: std::vector needs <vector>\n"),
    "one of several": ("#include <string>\nstd::unique_lock lock(m);\n",
                       "std::unique_lock needs <condition_variable> or <mutex> or <shared_mutex>"),
    "fmt": ("#include <string>\nauto s = fmt::format();\n", "fmt:: needs <fmt/core.h> or <fmt/format.h>"),
    "json": ("nlohmann::json j;\n", "nlohmann:: needs <nlohmann/json.hpp> or <nlohmann/json_fwd.hpp>"),
    "GoogleTest": ("TEST(A, B) {}\n", "GoogleTest needs"),
    "integers": ("#include <vector>\nint64_t i;\n", "int32_t and the like needs <cstdint>"),
    "an unknown name": ("#include <vector>\nstd::flat_map m;\n", "std::flat_map is in no line"),
}


class CheckMissingIncludes(unittest.TestCase):
    def test_passes_complete_files(self):
        code, out = run_checker({
            "include/moebius/a.h": "#include <vector>\n",
            "src/core/a.cc": '#include "moebius/a.h"\nstd::vector<int> v;\n',
            "tests/core/b.cc": '// std::map of a comment\nconst char* s = "std::map, fmt::";\n',
        })
        self.assertEqual((code, out), (0, ""))

    def test_names_what_is_missing(self):
        for what, (text, expected) in REFUSED.items():
            with self.subTest(what):
                code, out = run_checker({"src/core/a.cc": text})
                self.assertEqual(code, 1)
                self.assertIn(expected, out)


if __name__ == "__main__":
    unittest.main()
