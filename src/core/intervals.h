// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace moebius {

// The total time during which an interval of `a` and one of `b` overlap.  An interval has `begin`
// and `end`, of any type with a difference.  REQUIRES: each list is sorted and its intervals are
// disjoint.
template <typename Interval>
auto common_length(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  using Length = decltype(a[0].end - a[0].begin);
  Length sum{};
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const auto begin = std::max(a[i].begin, b[j].begin);
    const auto end = std::min(a[i].end, b[j].end);
    sum += std::max(end - begin, Length{});
    ++(a[i].end < b[j].end ? i : j);
  }
  return sum;
}

}  // namespace moebius
