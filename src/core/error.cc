// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/error.h"

#include <fmt/format.h>

namespace moebius {

namespace {

[[noreturn]] void fail(const std::string& message, const Where& where) {
  std::string_view file = where.file_name();
  file.remove_prefix(file.find_last_of('/') + 1);  // npos + 1 == 0
  throw InvalidArgument(fmt::format("{} ({}:{})", message, file, where.line()));
}

}  // namespace

void expect_eq(int64_t actual, int64_t expected, std::string_view what, Where where) {
  if (actual != expected) {
    fail(fmt::format("{} is {}, expected {}", what, actual, expected), where);
  }
}

void expect_eq(std::string_view actual,
               std::string_view expected,
               std::string_view what,
               Where where) {
  if (actual != expected) {
    fail(fmt::format("{} is {}, expected {}", what, actual, expected), where);
  }
}

void expect_ge(int64_t actual, int64_t bound, std::string_view what, Where where) {
  if (actual < bound) {
    fail(fmt::format("{} is {}, expected at least {}", what, actual, bound), where);
  }
}

void expect_le(int64_t actual, int64_t bound, std::string_view what, Where where) {
  if (actual > bound) {
    fail(fmt::format("{} is {}, expected at most {}", what, actual, bound), where);
  }
}

void expect_multiple_of(int64_t actual, int64_t divisor, std::string_view what, Where where) {
  if (actual % divisor != 0) {
    fail(fmt::format("{} is {}, expected a multiple of {}", what, actual, divisor), where);
  }
}

void expect(bool ok, std::string_view message, Where where) {
  if (!ok) {
    fail(std::string(message), where);
  }
}

}  // namespace moebius
