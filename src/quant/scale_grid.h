// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Where the scales of a weight [L, N, K] lie: per expert, per row, per block or per group.
#pragma once

#include <cstdint>
#include <string_view>

#include "moebius/quant_config.h"

namespace moebius::quant {

// Throws InvalidArgument for groups, zero points and scales that mean nothing for a weight.
void expect_weight_desc(const QuantDesc& desc, std::string_view which);

struct ScaleGrid {
  int64_t group_rows = 1;  // rows of a block; blocks restart at gate_rows
  int64_t group_cols = 1;  // columns per scale
  int64_t num_rows = 1;    // per expert
  int64_t num_cols = 1;    // scales per row
  int64_t gate_rows = 1;

  // Index of the first of num_cols scales of row n; the same for zero points.
  int64_t row_begin(int64_t expert, int64_t n) const;
};

// gate_rows: see dequantize_weight_rows.  Throws InvalidArgument when desc.scale has another shape.
ScaleGrid scale_grid(const Tensor& w, const QuantDesc& desc, int64_t gate_rows);

// nvfp4: what the block scales of an expert's row (of up or of gate) are multiplied with.
float global_factor(const QuantDesc& desc,
                    int64_t expert,
                    bool is_up,
                    const Tensor& activation_gscale);

}  // namespace moebius::quant
