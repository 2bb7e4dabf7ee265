// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/low_latency/same_options.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/routing/same_placement.h"

namespace moebius {

namespace {

constexpr std::array<std::string_view, 6> kNames = {"hidden",   "topk", "max_tokens",
                                                    "in_dtype", "sum",  "excludes_missing"};
using Values = std::array<int64_t, kNames.size()>;

std::string describe(size_t index, int64_t value) {
  return kNames[index] == "in_dtype" ? std::string(name(static_cast<DType>(value)))
                                     : fmt::format("{}", value);
}

}  // namespace

void expect_same_options(Group& group,
                         const ExpertPlacement& placement,
                         const LowLatencyOptions& options) {
  expect_same_placement(group, "low latency", placement);
  const Values own = {options.hidden,
                      options.topk,
                      options.max_tokens,
                      static_cast<int64_t>(options.in_dtype),
                      static_cast<int64_t>(options.sum),
                      options.excludes_missing ? 1 : 0};
  std::vector<Values> all(static_cast<size_t>(group.size()));
  all_gather_bytes(group, "low latency options", &own, sizeof(own), all.data());
  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (size_t i = 0; i < own.size(); ++i) {
      expect(all[rank][i] == all[0][i], [&] {
        return fmt::format("low latency: {} is {} on rank {} and {} on rank 0", kNames[i],
                           describe(i, all[rank][i]), rank, describe(i, all[0][i]));
      });
    }
  }
}

}  // namespace moebius
