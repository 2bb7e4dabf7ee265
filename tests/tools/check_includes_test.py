# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""tools/check_includes.py passes right trees and names each wrong include."""

import functools
import unittest

import checker

run_checker = functools.partial(checker.run_checker, "check_includes.py")


# Wrong trees, by what is wrong with them: ({path: text}, what the checker must print).
REFUSED = {
    "an upward include": (
        {"src/core/tensor.cc": '\n#include "quant/block.h"\n'},
        "src/core/tensor.cc:2: core may not include quant"),
    "a sibling's header": (
        {"src/router/topk.cc": '#include "experts/act.h"\n'}, "router may not include experts"),
    "a later stage's public header": (
        {"src/comm/dispatch.cc": '#include "moebius/router.h"\n'}, "comm may not include router"),
    "a later stage's public header in a public one": (
        {"include/moebius/tensor.h": '#include "moebius/experts.h"\n'}, "core may not include experts"),
    "an internal header in a public one": (
        {"include/moebius/tensor.h": '#include "core/parallel.h"\n'},
        "may include only public and standard ones: core/parallel.h"),
    "a third party's header in a public one": (
        {"include/moebius/log.h": "#include <fmt/format.h>\n"},
        "may include only public and standard ones: fmt/format.h"),
    "an unknown public header": (
        {"include/moebius/misc.h": ""}, "moebius/misc.h belongs to no stage"),
    "an include of an unknown public header": (
        {"src/core/a.cc": '#include "moebius/misc.h"\n'}, "moebius/misc.h belongs to no stage"),
    "a later stage in a test": (
        {"tests/quant/a_test.cc": '#include "layer/task.h"\n'},
        "tests/quant/a_test.cc:1: quant may not include layer"),
    "the command in a benchmark": (
        {"bench/micro_a.cc": '#include "app/options.h"\n'}, "bench may not include app"),
    "a test's header in a benchmark": (
        {"bench/micro_a.cc": '#include "tests/temp_dir.h"\n'}, "is neither"),
    "problems in a stage": (
        {"src/layer/a.cc": '#include "problems/sizes.h"\n'}, "layer may not include problems"),
    "a backend in the layer": (
        {"src/layer/a.cc": '#include "core/cuda/runtime.h"\n'},
        "src/layer/a.cc:1: layer names no backend outside src/layer/rows"),
    "an unknown folder": ({"src/utils/a.cc": ""}, "src/utils is not a stage"),
    "a relative include": (
        {"src/core/a.cc": '#include "b.h"\n', "src/core/b.h": ""}, '"b.h" is'),
}


class CheckIncludes(unittest.TestCase):
    def test_right_arrows_pass(self):
        code, output = run_checker({
            "include/moebius/error.h": "#include <string>\n",
            "include/moebius/router.h": '#include "moebius/error.h"\n',
            "src/core/parallel.h": "#include <thread>\n",
            "src/quant/quantize.cc": '#include "core/parallel.h"\n#include <fmt/format.h>\n',
            "src/router/ref/router.cc": '#include "moebius/router.h"\n#include "core/parallel.h"\n',
            "src/app/main.cc": '#include "checkpoint/names.h"\n#include "problems/sizes.h"\n',
            "src/problems/sizes.h": '#include "quant/block.h"\n',
            "tests/quant/quant_test.cc": '#include "problems/sizes.h"\n#include "tests/temp_dir.h"\n',
            "tests/temp_dir.h": "#include <string>\n",
            "bench/micro_quant.cc": '#include "quant/block.h"\n#include "problems/sizes.h"\n',
        })
        self.assertEqual((code, output), (0, ""))

    def test_row_operations_of_the_layer_may_name_a_backend(self):
        code, output = run_checker({"src/layer/rows/a.cc": '#include "layer/rows/cuda/rows.h"\n'})
        self.assertEqual((code, output), (0, ""))

    def test_wrong_includes_are_named(self):
        for what, (files, message) in REFUSED.items():
            with self.subTest(what):
                code, output = run_checker(files)
                self.assertEqual(code, 1, output)
                self.assertIn(message, output)


if __name__ == "__main__":
    unittest.main()
