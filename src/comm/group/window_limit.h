// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How large windows may be asked for.  What is refused here is more than any machine has, and a
// sum or an offset of what is accepted fits into an int64_t.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <string_view>

#include "moebius/error.h"

namespace moebius::comm {

// A bound for each number of rows, elements or selections.  Two of them have a product that fits.
inline constexpr int64_t kMostCount = std::numeric_limits<int32_t>::max();
// A bound for the bytes of the windows of all ranks, which may lie in one mapping.
inline constexpr int64_t kMostWindowBytes = int64_t{1} << 62;

// Checks a count that sizes of windows are made of.
inline void expect_count(int64_t count,
                         int64_t least,
                         std::string_view what,
                         Where where = Where::current()) {
  expect_ge(count, least, what, where);
  expect_le(count, kMostCount, what, where);
}

// `bytes` of the window of each rank are a double, since a product of doubles does not overflow.
inline void expect_window_bytes(double bytes,
                                int num_ranks,
                                std::string_view what,
                                Where where = Where::current()) {
  const double all = bytes * num_ranks;
  expect(
      all <= static_cast<double>(kMostWindowBytes),
      [&] {
        return fmt::format("{} of {} ranks needs about {:.3g} bytes, expected at most {}", what,
                           num_ranks, all, kMostWindowBytes);
      },
      where);
}

}  // namespace moebius::comm
