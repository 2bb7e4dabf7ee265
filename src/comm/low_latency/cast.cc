// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/low_latency/cast.h"

#include <algorithm>
#include <cmath>

#include "quant/group_rule.h"

namespace moebius {

namespace {

constexpr int64_t kGroup = 128;
constexpr float kMinAmax = 1e-4f;

template <typename T>
void cast(const T* row, int64_t hidden, LowLatencyCast kind, uint8_t* values, float* scales) {
  for (int64_t g = 0; g < hidden / kGroup; ++g) {
    const T* x = row + g * kGroup;
    float amax = kMinAmax;
    for (int64_t i = 0; i < kGroup; ++i) {
      amax = std::max(amax, std::fabs(static_cast<float>(x[i])));
    }
    float scale = amax * (1.0f / kE4M3Max);
    float inverse = kE4M3Max / amax;
    if (kind == LowLatencyCast::kFp8Ue8m0) {
      scale = quant::detail::round_up_to_power_of_two(scale);
      inverse = 1.0f / scale;
    }
    scales[g] = scale;
    for (int64_t i = 0; i < kGroup; ++i) {
      values[g * kGroup + i] = F8E4M3(static_cast<float>(x[i]) * inverse).bits;
    }
  }
}

}  // namespace

void cast_row(DType dtype,
              const std::byte* row,
              int64_t hidden,
              LowLatencyCast kind,
              uint8_t* values,
              float* scales) {
  switch (dtype) {
    case DType::kF32:
      return cast(reinterpret_cast<const float*>(row), hidden, kind, values, scales);
    case DType::kF16:
      return cast(reinterpret_cast<const Float16*>(row), hidden, kind, values, scales);
    default:
      return cast(reinterpret_cast<const BFloat16*>(row), hidden, kind, values, scales);
  }
}

}  // namespace moebius
