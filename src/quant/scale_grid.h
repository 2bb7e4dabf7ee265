// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The layout of the scales of a weight [L, N, K]: per expert, per row, per block or per group.
#pragma once

#include <cstdint>
#include <string_view>

#include "moebius/quant_config.h"

namespace moebius::quant {

// Throws InvalidArgument when groups, zero points or scales mean nothing for a weight.
void expect_weight_desc(const QuantDesc& desc, std::string_view which);

struct ScaleGrid {
  int64_t group_rows = 1;  // rows of a block; blocks restart at gate_rows
  int64_t group_cols = 1;  // columns per scale
  int64_t num_rows = 1;    // per expert
  int64_t num_cols = 1;    // scales per row
  int64_t gate_rows = 1;

  // The index of the first of the num_cols scales of row n; zero points have the same indices.
  int64_t row_begin(int64_t expert, int64_t n) const;
};

// dequantize_weight_rows() explains gate_rows.  Throws InvalidArgument when desc.scale has a shape
// that fits no grid.
ScaleGrid scale_grid(const Tensor& w, const QuantDesc& desc, int64_t gate_rows);

// The factor that nvfp4's block scales of an expert's rows (of up or of gate) are multiplied with.
float global_factor(const QuantDesc& desc,
                    int64_t expert,
                    bool is_up,
                    const Tensor& activation_gscale);

}  // namespace moebius::quant
