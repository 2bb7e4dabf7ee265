// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/low_latency/cast.h"

#include <algorithm>

#include "quant/group_rule.h"

namespace moebius {

namespace {

constexpr int64_t kGroup = 128;
constexpr int64_t kGroupsAtOnce = 16;  // their factors fit the stack
constexpr float kMinAmax = 1e-4f;

}  // namespace

void cast_row(const quant::RowKernels& kernels,
              DType dtype,
              const std::byte* row,
              int64_t hidden,
              LowLatencyCast kind,
              const CastRow& out) {
  const int64_t num_groups = hidden / kGroup;
  for (int64_t first = 0; first < num_groups; first += kGroupsAtOnce) {
    const int64_t count = std::min(kGroupsAtOnce, num_groups - first);
    const std::byte* x = row + first * kGroup * bits(dtype) / 8;
    quant::Range ranges[kGroupsAtOnce] = {};
    kernels.range(x, dtype, count * kGroup, kGroup, ranges);
    float factors[kGroupsAtOnce];
    for (int64_t g = 0; g < count; ++g) {
      const float amax = std::max(kMinAmax, ranges[g].absmax());
      float scale = amax * (1.0f / kE4M3Max);
      float inverse = kE4M3Max / amax;
      if (kind == LowLatencyCast::kFp8Ue8m0) {
        scale = quant::detail::round_up_to_power_of_two(scale);
        inverse = 1.0f / scale;
      }
      out.scales[first + g] = scale;
      factors[g] = inverse;
    }
    // No product is so far beyond 448 that it overflows.
    kernels.encode({.how = quant::Encode::kE4M3Overflow,
                    .x = x,
                    .dtype = dtype,
                    .n = count * kGroup,
                    .group = kGroup,
                    .factors = factors,
                    .zero_points = nullptr,
                    .codes = out.values + first * kGroup});
  }
}

}  // namespace moebius
