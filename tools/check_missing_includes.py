#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Fails on a file that does not include what it uses of the standard library, fmt, JSON or GoogleTest.

Builds parse headers of the standard library, fmt, JSON and GoogleTest once for all sources
(cmake/MoebiusPrecompiled.cmake), so a source that forgets one of them still compiles. This tool reads each file
without comments and strings. For each name it must include one of the headers below, by itself or through headers of
ours. Standard headers include each other as they like, so what they bring besides does not count. A name of the
standard library that no line below has is refused, too: add it there.
"""

import re
import sys

from check_includes import includes_of, main, source_files

# Each of these headers needs, and so defines, what <utility>, <cstddef> and <initializer_list> have.
EVERY_CONTAINER = "array deque functional list map memory optional set span string thread tuple unordered_map variant vector"

# Headers, and the names of namespace std for each of which one of them is enough.
NAMES = [
    ("algorithm", "adjacent_find all_of any_of binary_search clamp copy copy_backward copy_if copy_n count count_if"
     " equal fill fill_n find find_if for_each generate generate_n is_sorted lower_bound max max_element min"
     " min_element mismatch next_permutation none_of replace replace_if reverse rotate search shuffle sort stable_sort"
     " transform unique upper_bound"),
    ("array", "array"),
    ("atomic", "atomic atomic_flag atomic_ref memory_order_acq_rel memory_order_acquire memory_order_relaxed"
     " memory_order_release"),
    ("bit", "bit_cast bit_ceil bit_width countr_zero endian has_single_bit popcount"),
    ("cctype", "isdigit islower"),
    ("charconv", "from_chars"),
    ("charconv system_error", "errc"),
    ("chrono", "chrono"),
    ("chrono ratio", "micro milli"),
    ("chrono thread", "this_thread"),
    ("cmath", "ceil copysign cos erf erfc exp exp2 expm1 fabs floor fma frexp isfinite isinf isnan ldexp llround log"
     " log2 nanf nearbyint nextafter pow round signbit sin sqrt tanh trunc"),
    ("cmath cstdlib", "abs"),
    ("concepts", "convertible_to derived_from invocable"),
    ("condition_variable", "condition_variable"),
    ("condition_variable mutex shared_mutex", "try_to_lock unique_lock"),
    ("coroutine", "coroutine_handle suspend_always"),
    ("csignal", "raise signal"),
    ("cstddef span", "byte"),
    ("cstddef " + EVERY_CONTAINER, "nullptr_t ptrdiff_t size_t"),
    ("cstdio", "FILE ferror fflush fopen fprintf fputs freopen perror printf snprintf"),
    ("cstdlib", "_Exit abort aligned_alloc atexit atoi exit free getenv malloc system"),
    ("cstring", "memchr memcmp memcpy memmove memset strcmp strcpy strerror strncpy strstr"),
    ("deque", "deque"),
    ("deque list map set string vector", "erase erase_if"),
    ("exception stdexcept", "current_exception exception exception_ptr rethrow_exception uncaught_exceptions"),
    ("filesystem", "filesystem"),
    ("filesystem system_error", "error_code generic_category system_error"),
    ("fstream", "ifstream ofstream"),
    ("fstream ios iostream sstream", "endl ios streamsize ws"),
    ("fstream iosfwd iostream ostream sstream", "ostream"),
    ("fstream iterator iostream sstream", "istreambuf_iterator"),
    ("functional", "function greater"),
    ("functional map set", "less"),
    ("future", "async future_status launch"),
    ("initializer_list " + EVERY_CONTAINER, "initializer_list"),
    ("iostream", "cerr cout"),
    ("array iterator map set span string vector", "back_inserter begin distance end next size ssize"),
    ("latch", "latch"),
    ("limits", "numeric_limits"),
    ("list", "list"),
    ("map", "map"),
    ("memory", "const_pointer_cast construct_at dynamic_pointer_cast enable_shared_from_this get_deleter make_shared"
     " make_unique shared_ptr static_pointer_cast unique_ptr weak_ptr"),
    ("mutex", "lock_guard mutex"),
    ("new", "align_val_t bad_alloc nothrow"),
    ("numbers", "numbers"),
    ("numeric", "accumulate gcd inclusive_scan inner_product iota partial_sum"),
    ("optional", "nullopt optional"),
    ("queue", "priority_queue"),
    ("random", "minstd_rand mt19937 mt19937_64 normal_distribution uniform_int_distribution uniform_real_distribution"),
    ("regex", "regex regex_constants regex_error regex_match regex_replace regex_search sregex_iterator"),
    ("set", "multiset set"),
    ("shared_mutex", "shared_lock shared_mutex"),
    ("source_location", "source_location"),
    ("span", "as_bytes as_writable_bytes span"),
    ("sstream", "istringstream ostringstream"),
    ("stdexcept", "length_error out_of_range runtime_error"),
    ("string", "getline stod stoi stoll string to_string"),
    ("string string_view", "string_view string_view_literals"),
    ("thread", "thread"),
    ("tuple", "tuple"),
    ("type_traits", "conditional_t false_type integral_constant invoke_result_t is_const_v is_pointer_v is_same_v"
     " is_trivially_copyable_v is_trivially_destructible_v is_void_v remove_const_t remove_cvref_t remove_reference_t"
     " true_type type_identity_t"),
    ("unordered_map", "unordered_map"),
    ("utility " + EVERY_CONTAINER, "exchange forward get integer_sequence make_integer_sequence move pair swap tie"),
    ("variant", "get_if variant visit"),
    ("vector", "vector"),
]
HEADERS_OF = {name: set(headers.split()) for headers, names in NAMES for name in names.split()}

# Other names that precompiled headers bring.
OTHERS = [
    (re.compile(r"\bfmt::"), "fmt::", {"fmt/format.h", "fmt/core.h"}),
    (re.compile(r"\bnlohmann::"), "nlohmann::", {"nlohmann/json.hpp", "nlohmann/json_fwd.hpp"}),
    (re.compile(r"\bu?int(?:8|16|32|64)_t\b"), "int32_t and the like", {"cstdint", "stdint.h"}),
    (re.compile(r"\b(?:EXPECT|ASSERT)_[A-Z]+\(|\b(?:TEST|TEST_[FP]|FAIL|ADD_FAILURE)\("), "GoogleTest",
     {"gtest/gtest.h", "gmock/gmock.h"}),
]

FOLDERS = ("include", "src", "tests", "bench", "examples")
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL)
STD_NAME = re.compile(r"\bstd::(\w+)")


def needs(what, headers):
    return f"{what} needs {' or '.join(f'<{header}>' for header in sorted(headers))}"


class Tree:
    """The files under a project's root, and what each of them includes."""

    def __init__(self, root):
        self.root = root
        self.places = [root / "src", root, root / "include"]
        self.reached = {}

    def foreign_includes(self, path):
        """Returns the headers of others that a file includes, by itself or through headers of ours."""
        if path not in self.reached:
            self.reached[path] = found = set()
            for _, _, name in includes_of(path):
                ours = next((place / name for place in self.places if (place / name).is_file()), None)
                found |= self.foreign_includes(ours) if ours else {name}
        return self.reached[path]

    def missing(self, path):
        """Yields a message for each name that a file uses without a header that has it."""
        text = COMMENT_OR_STRING.sub(" ", path.read_text(encoding="utf-8"))
        reached = self.foreign_includes(path)
        for name in sorted(set(STD_NAME.findall(text))):
            headers = HEADERS_OF.get(name)
            if headers is None:
                yield f"std::{name} is in no line of tools/check_missing_includes.py"
            elif not headers & reached:
                yield needs(f"std::{name}", headers)
        for pattern, what, headers in OTHERS:
            if pattern.search(text) and not headers & reached:
                yield needs(what, headers)

    def check(self):
        for folder in FOLDERS:
            for path in source_files(self.root / folder):
                for message in self.missing(path):
                    yield f"{path.relative_to(self.root)}: {message}"


if __name__ == "__main__":
    sys.exit(main(__doc__, lambda root: Tree(root).check()))
