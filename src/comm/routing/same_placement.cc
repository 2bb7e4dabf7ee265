// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/routing/same_placement.h"

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "comm/group/same_values.h"

namespace moebius {

void expect_same_placement(Group& group, std::string_view who, const ExpertPlacement& placement) {
  constexpr std::string_view kOp = "placement of experts";
  const int64_t num_experts = placement.num_experts();
  expect_same_values(group, kOp, who, {{"the number of experts", num_experts}});
  std::vector<int32_t> own;
  for (int64_t e = 0; e < num_experts; ++e) {
    own.push_back(placement.rank_of(e));
  }
  std::vector<int32_t> all(own.size() * static_cast<size_t>(group.size()));
  all_gather_bytes(group, kOp, own.data(), num_experts * int64_t{sizeof(int32_t)}, all.data());
  for (size_t i = own.size(); i < all.size(); ++i) {
    const size_t e = i % own.size();
    expect(all[i] == all[e], [&] {
      return fmt::format("{}: expert {} is placed on rank {} by rank {}, and on rank {} by rank 0",
                         who, e, all[i], i / own.size(), all[e]);
    });
  }
}

}  // namespace moebius
