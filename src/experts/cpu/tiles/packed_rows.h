// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Packs activation rows into the panels of tile_kernels.h.
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

// How rows become panels.  bf16 panels take bf16, f32 (rounded to bf16), and fp8 and int8 codes,
// which bf16 holds exactly; f32 panels take these and f16; i8 panels take int8 codes.
struct RowPacking {
  DType from;
  Operand operand;
  int64_t k;            // values of a row
  int64_t lines;        // of a panel
  float factor = 1.0f;  // multiplies values before they are rounded; a power of two unless from f32
};
// Packs rows[i], i < m.  Padding in k is zero; rows of a panel from m on are left as they are.
// `scratch` has room for k values of the operand.
void pack_rows(const RowPacking& how,
               const std::byte* const* rows,
               int64_t m,
               std::byte* scratch,
               std::byte* panels);

}  // namespace moebius::cpu
