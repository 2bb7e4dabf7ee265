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
inline constexpr int64_t panels_bytes(int64_t rows, int64_t steps) {
  return num_panels(rows) * steps * kStepBytes;
}

// rows[i], i < m: k values of `from` -> panels of bf16 (f32 rounded, fp8 and int8 codes exact), or
// of i8 where `from` is i8 and `integers` holds.  Padding in k is zero; rows from m on are left as
// they are.  `factor` multiplies values before they are rounded; a power of two unless they are
// f32.  `scratch`: k bf16 values.
void pack_rows(DType from,
               bool integers,
               const std::byte* const* rows,
               int64_t m,
               int64_t k,
               int64_t steps,
               float factor,
               uint16_t* scratch,
               std::byte* panels);

}  // namespace moebius::cpu
