// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Activation rows in the panels of tile_kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "experts/cpu/tiles/tile_kernels.h"

namespace moebius::cpu {

inline constexpr int64_t num_panels(int64_t rows) {
  return (rows + kPanelRows - 1) / kPanelRows;
}
inline constexpr int64_t panels_bytes(int64_t rows, int64_t lines) {
  return num_panels(rows) * lines * kStepBytes;
}

// rows[i], i < m: k values of `from` -> panels of `lines` lines.  bf16 and f32 panels take f32,
// bf16 and f16 (rounded to bf16), and fp8 and int8 codes, which are exact; i8 panels take int8
// codes. Padding in k is zero; rows from m on are left as they are.  `factor` multiplies values
// before they are rounded; it is a power of two unless they are f32.  `scratch`: k values of the
// operand.
struct RowPacking {
  DType from;
  Operand operand;
  int64_t k;
  int64_t lines;
  float factor = 1.0f;
};
void pack_rows(const RowPacking& how,
               const std::byte* const* rows,
               int64_t m,
               std::byte* scratch,
               std::byte* panels);

}  // namespace moebius::cpu
