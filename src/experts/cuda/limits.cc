// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/limits.h"

#include <fmt/format.h>

#include "experts/cuda/rows/row_groups.h"
#include "experts/cuda/rows/weighted_sum.h"

namespace moebius::cuda {

Support within_limits(const ExpertsDesc& desc) {
  if (desc.precision != Precision::kModel) {
    return Support::no("precision f64 is computed by ref only");
  }
  if (desc.num_local_experts > kMaxExperts) {
    return Support::no(
        fmt::format("{} local experts, it takes up to {}", desc.num_local_experts, kMaxExperts));
  }
  if (desc.topk > kMaxSumTerms) {
    return Support::no(
        fmt::format("{} selections of a token, it takes up to {}", desc.topk, kMaxSumTerms));
  }
  return Support::yes();
}

}  // namespace moebius::cuda
