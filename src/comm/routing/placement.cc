// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "moebius/dispatch.h"

namespace moebius {

ExpertPlacement ExpertPlacement::linear(int64_t num_experts, int num_ranks) {
  expect_ge(num_experts, 1, "num_experts");
  expect_ge(num_ranks, 1, "num_ranks");
  const int64_t share = num_experts / num_ranks;
  const int64_t extra = num_experts % num_ranks;  // the first `extra` ranks own one more
  std::vector<int> rank_of;
  rank_of.reserve(static_cast<size_t>(num_experts));
  for (int r = 0; r < num_ranks; ++r) {
    rank_of.insert(rank_of.end(), static_cast<size_t>(share + (r < extra ? 1 : 0)), r);
  }
  return from_ranks(std::move(rank_of), num_ranks);
}

ExpertPlacement ExpertPlacement::from_ranks(std::vector<int> rank_of, int num_ranks) {
  expect_ge(static_cast<int64_t>(rank_of.size()), 1, "num_experts");
  expect_ge(num_ranks, 1, "num_ranks");
  ExpertPlacement placement;
  placement.num_local_.assign(static_cast<size_t>(num_ranks), 0);
  placement.local_.reserve(rank_of.size());
  for (size_t e = 0; e < rank_of.size(); ++e) {
    if (rank_of[e] < 0 || rank_of[e] >= num_ranks) {
      throw InvalidArgument(fmt::format("expert {} is placed on rank {}, expected 0 to {}", e,
                                        rank_of[e], num_ranks - 1));
    }
    placement.local_.push_back(placement.num_local_[static_cast<size_t>(rank_of[e])]++);
  }
  placement.rank_of_ = std::move(rank_of);
  return placement;
}

Tensor ExpertPlacement::expert_map(int rank) const {
  const Tensor map = Tensor::empty({num_experts()}, DType::kI32);
  for (int64_t e = 0; e < num_experts(); ++e) {
    map.data<int32_t>()[e] = rank_of(e) == rank ? static_cast<int32_t>(local_index(e)) : -1;
  }
  return map;
}

}  // namespace moebius
