// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "quant/scale_grid.h"

#include <fmt/format.h>

#include "quant/group_rule.h"
#include "quant/groups.h"

namespace moebius::quant {

namespace {

// The index of the block of row n; blocks restart at gate_rows.
int64_t row_block(int64_t n, int64_t group_rows, int64_t gate_rows) {
  return n < gate_rows ? n / group_rows
                       : ceil_div(gate_rows, group_rows) + (n - gate_rows) / group_rows;
}

}  // namespace

int64_t ScaleGrid::row_begin(int64_t expert, int64_t n) const {
  const int64_t row = num_rows == 1 ? 0 : row_block(n, group_rows, gate_rows);
  return (expert * num_rows + row) * num_cols;
}

ScaleGrid scale_grid(const Tensor& w, const QuantDesc& desc, int64_t gate_rows) {
  const Shape& shape = desc.scale.shape();
  const int64_t rows = w.dim(1);
  const int64_t cols = w.dim(2);
  ScaleGrid grid{rows, cols, 1, 1, gate_rows};
  const bool is_block = desc.shape && desc.shape->col >= 1;
  if (is_block && shape.size() != 3) {
    expect(false,
           fmt::format("scale of a weight with blocks of {{{}, {}}} is {}, expected 3 dimensions",
                       desc.shape->row, desc.shape->col, to_string(shape)));
  }
  if (shape.size() == 3) {
    const int64_t fixed = fixed_group_cols(*desc.format);
    const GroupShape group = fixed > 0 ? GroupShape{1, fixed} : desc.shape.value_or(GroupShape{});
    if (group.col >= 1) {
      grid.group_cols = group.col;
      grid.num_cols = ceil_div(cols, group.col);
    }
    const bool is_per_row = group.row == 0 || (group.row == -1 && shape[1] == rows);
    if (is_per_row || group.row >= 1) {
      grid.group_rows = is_per_row ? 1 : group.row;
      grid.num_rows = row_block(rows - 1, grid.group_rows, gate_rows) + 1;
    }
  } else if (shape.size() == 2) {
    grid.group_rows = 1;
    grid.num_rows = rows;
  }
  const bool fits = shape.size() >= 1 && shape.size() <= 3 && shape[0] == w.dim(0) &&
                    (shape.size() < 2 || shape[1] == grid.num_rows) &&
                    (shape.size() < 3 || shape[2] == grid.num_cols);
  if (!fits) {
    const Shape expected = shape.size() == 3   ? Shape{w.dim(0), grid.num_rows, grid.num_cols}
                           : shape.size() == 2 ? Shape{w.dim(0), grid.num_rows}
                                               : Shape{w.dim(0)};
    expect_shape(desc.scale, expected,
                 fmt::format("scale of {} weight {}", name(*desc.format), to_string(w.shape())));
  }
  return grid;
}

float global_factor(const QuantDesc& desc,
                    int64_t expert,
                    bool is_up,
                    const Tensor& activation_gscale) {
  float factor = 1.0f;
  if (desc.alpha_or_gscale.defined()) {
    const int64_t per_expert =
        desc.alpha_or_gscale.num_dims() == 2 ? desc.alpha_or_gscale.dim(1) : 1;
    factor = desc.alpha_or_gscale
                 .data<float>()[expert * per_expert + (is_up && per_expert == 2 ? 1 : 0)];
  }
  if (activation_gscale.defined()) {
    factor *= activation_gscale.data<float>()[activation_gscale.numel() > 1 ? expert : 0];
  }
  return factor;
}

}  // namespace moebius::quant
