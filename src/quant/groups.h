// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Where the groups of a spec lie in a [rows, cols] matrix.
#pragma once

#include <cstdint>

#include "core/ceil_div.h"
#include "moebius/quant_config.h"
#include "moebius/quantize.h"

namespace moebius::quant {

// Groups of a row handed to a row kernel at once; bounds the stack arrays of their factors.
inline constexpr int64_t kMaxGroups = 256;

// Groups of group_rows x group_cols; those at the edges may be smaller.
struct Groups {
  int64_t group_rows = 1;
  int64_t group_cols = 1;
  int64_t num_row_groups = 1;
  int64_t num_col_groups = 1;
};

// REQUIRES: quantize_supported(spec, rows, cols).
Groups groups_of(const GroupShape& shape, int64_t rows, int64_t cols);

// mx formats and nvfp4: elements that share a scale, whatever the config says; 0 for the others.
int64_t fixed_group_cols(QuantFormat format);

// Whether rows of activations take a scale from all that are at hand with them.
bool scales_over_rows(const QuantDesc& activations);

// The scales' dtype: e8m0 (mx), e4m3 (nvfp4) or f32.
DType scale_dtype(QuantFormat format);

// Calls fn(member of Quantized, shape, dtype, name) for every tensor that a [rows, cols] matrix has
// with this spec.
template <typename Fn>
void for_each_tensor(const QuantizeSpec& spec, int64_t rows, int64_t cols, const Fn& fn) {
  const Groups groups = groups_of(spec.group, rows, cols);
  const Shape scales{groups.num_row_groups, groups.num_col_groups};
  fn(&Quantized::values, Shape{rows, cols}, storage_dtype(spec.format), "quantized values");
  fn(&Quantized::scale, scales, scale_dtype(spec.format), "scale");
  if (spec.asymmetric) {
    fn(&Quantized::zero_point, scales, DType::kU8, "zero point");
  }
  if (spec.format == QuantFormat::kNvfp4) {
    fn(&Quantized::global_scale, Shape{1}, DType::kF32, "global scale");
  }
}

}  // namespace moebius::quant
