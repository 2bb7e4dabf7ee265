// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How the groups of a spec tile a [rows, cols] matrix.
#pragma once

#include <cstdint>

#include "core/ceil_div.h"
#include "moebius/quant_config.h"
#include "moebius/quantize.h"

namespace moebius::quant {

// The most groups of a row that a row kernel gets at once; it bounds the stack arrays of factors.
inline constexpr int64_t kMaxGroups = 256;

// Groups of group_rows x group_cols elements; groups at the edges may be smaller.
struct Groups {
  int64_t group_rows = 1;
  int64_t group_cols = 1;
  int64_t num_row_groups = 1;
  int64_t num_col_groups = 1;
};

// REQUIRES: quantize_supported(spec, rows, cols).
Groups groups_of(const GroupShape& shape, int64_t rows, int64_t cols);

// How many elements of a row share a scale in mx formats and nvfp4, whatever the config says; 0 for
// the other formats.
int64_t fixed_group_cols(QuantFormat format);

// How many elements the scales of one row have that travel with its codes: one per group and, where
// the row has a global scale of its own (nvfp4), the four bytes of that f32 after them.
inline constexpr int64_t kRowGlobalScaleBytes = 4;
int64_t num_row_scales(const QuantizeSpec& spec, int64_t cols);

// Whether the scale of an activation row depends on the other rows of the same matrix.
bool scales_over_rows(const QuantDesc& activations);

// The dtype of scales: e8m0 (mx), e4m3 (nvfp4) or f32.
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
    fn(&Quantized::global_scale, Shape{spec.global_scale_per_row ? rows : 1}, DType::kF32,
       "global scale");
  }
}

}  // namespace moebius::quant
