// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "core/forward.h"

namespace moebius::comm {

// Parts of equal size from each rank: this rank's own, and those of the others by rank.
struct RankParts {
  const std::byte* own = nullptr;
  std::byte* others = nullptr;
  int rank = 0;
  int num_ranks = 1;
};

// out = sum over ranks of their parts, f32 in rank order, rounded once.  f32, bf16 or f16.
void launch_sum_parts(const RankParts& parts, const Tensor& out, const Stream& stream);

}  // namespace moebius::comm
