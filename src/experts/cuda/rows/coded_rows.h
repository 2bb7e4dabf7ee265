// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// This header says which rows GPUs activate and quantize by one kernel.  A plan asks for it in
// builds without CUDA, too.
#pragma once

#include <cstdint>

#include "moebius/quantize.h"
#include "quant/group_rule.h"

namespace moebius::cuda {

// A kernel that must know a whole row takes up to so many elements.
inline constexpr int64_t kMostCodedWidth = 8192;
inline constexpr int64_t kCodedVector = 8;  // elements of a thread

// Says whether the kernel of scaled_codes.cu takes rows of `width`.
inline bool takes_scaled_codes(const QuantizeSpec& spec, int64_t width) {
  return quant::scaled_codes_fit(spec.format, DType::kBF16) && width % kCodedVector == 0 &&
         width <= kMostCodedWidth;
}

// Says whether activate_to_codes() takes rows of `width`.  It has kernels for fp8 and int8 with
// scales over groups of a row or a whole row.
inline bool can_activate_to_codes(const QuantizeSpec& spec, int64_t width) {
  constexpr int64_t kWarp = 32;
  if ((spec.format != QuantFormat::kFp8 && spec.format != QuantFormat::kInt8) ||
      spec.group.is_per_tensor() || width % kCodedVector != 0) {
    return false;
  }
  const int64_t group = spec.group.col > 0 ? spec.group.col : width;
  if (group >= width) {
    return width <= kMostCodedWidth;
  }
  const int64_t lanes = group / kCodedVector;
  return group % kCodedVector == 0 && width % group == 0 && lanes <= kWarp &&
         (lanes & (lanes - 1)) == 0;
}

// Says whether one kernel or the other does, if it is given the scales of many rows.
inline bool activates_to_codes(const QuantizeSpec& spec, int64_t width) {
  return takes_scaled_codes(spec, width) || can_activate_to_codes(spec, width);
}

}  // namespace moebius::cuda
