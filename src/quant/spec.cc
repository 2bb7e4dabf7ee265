// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks whether a QuantizeSpec fits a matrix, and derives specs from the operands of a
// QuantConfig.
#include <fmt/format.h>

#include <algorithm>

#include "moebius/quantize.h"
#include "quant/groups.h"

namespace moebius {

int64_t quant::num_row_scales(const QuantizeSpec& spec, int64_t cols) {
  return groups_of(spec.group, 1, cols).num_col_groups +
         (spec.global_scale_per_row ? kRowGlobalScaleBytes : 0);
}

namespace {

bool is_row_group(const GroupShape& group) {
  return group.row == 1 && group.col >= 1;
}
bool is_block(const GroupShape& group) {
  return group.row >= 1 && group.col >= 1;
}

// Empty when the format takes the group; otherwise the shapes it takes, as a refusal words them.
std::string_view refused_group(QuantFormat format, const GroupShape& group) {
  switch (format) {
    case QuantFormat::kFp8:
      return group.is_per_tensor() || group.is_per_token() || is_block(group)
                 ? ""
                 : "{-1, -1}, {1, -1} or {rows >= 1, columns >= 1}";
    case QuantFormat::kInt8:
      return group.is_per_tensor() || group.is_per_token() || is_row_group(group)
                 ? ""
                 : "{-1, -1}, {1, -1} or {1, columns >= 1}";
    case QuantFormat::kInt4:
      return group.is_per_token() || (is_row_group(group) && group.col % 2 == 0)
                 ? ""
                 : "{1, -1} or {1, an even number of columns}";
    case QuantFormat::kNvfp4:
      return group == GroupShape{1, 16} ? "" : "{1, 16}";
    default:
      return group == GroupShape{1, 32} ? "" : "{1, 32}";
  }
}

// Whether an operand is scaled in blocks or groups that the config chose.
bool has_blocks(const QuantDesc& desc) {
  return quant::fixed_group_cols(*desc.format) == 0 && desc.shape && !desc.shape->is_per_tensor() &&
         !desc.shape->is_per_token();
}

// The spec of an operand without blocks; nullopt when the operand is not quantized.
std::optional<QuantizeSpec> common_spec(const QuantDesc& desc) {
  if (!desc.format) {
    return std::nullopt;
  }
  QuantizeSpec spec;
  spec.format = *desc.format;
  if (const int64_t group = quant::fixed_group_cols(*desc.format); group > 0) {
    spec.group = {1, group};
  } else if (desc.shape && !has_blocks(desc)) {
    spec.group = *desc.shape;
  }
  return spec;
}

}  // namespace

namespace quant {

Groups groups_of(const GroupShape& shape, int64_t rows, int64_t cols) {
  Groups groups;
  groups.group_rows = std::max<int64_t>(shape.row == -1 ? rows : std::min(shape.row, rows), 1);
  groups.group_cols = std::max<int64_t>(shape.col == -1 ? cols : std::min(shape.col, cols), 1);
  groups.num_row_groups = shape.row == -1 ? 1 : ceil_div(rows, groups.group_rows);
  groups.num_col_groups = shape.col == -1 ? 1 : ceil_div(cols, groups.group_cols);
  return groups;
}

bool scales_over_rows(const QuantDesc& activations) {
  const auto spec = activation_spec(activations);
  return spec && spec->group.is_per_tensor() && !activations.scale.defined();
}

}  // namespace quant

Support quantize_supported(const QuantizeSpec& spec, int64_t rows, int64_t cols) {
  const std::string_view format = name(spec.format);
  if (rows < 0 || cols < 1) {
    return Support::no(fmt::format("the matrix is [{}, {}], expected at least [0, 1]", rows, cols));
  }
  if (const std::string_view expected = refused_group(spec.format, spec.group); !expected.empty()) {
    return Support::no(fmt::format("{} groups of {{{}, {}}}, expected {}", format, spec.group.row,
                                   spec.group.col, expected));
  }
  if (spec.power_of_two_scale && !(spec.format == QuantFormat::kFp8 && is_block(spec.group))) {
    return Support::no(
        fmt::format("power-of-two scales for {} groups of {{{}, {}}}, expected fp8 "
                    "blocks",
                    format, spec.group.row, spec.group.col));
  }
  if (spec.global_scale_per_row && spec.format != QuantFormat::kNvfp4) {
    return Support::no(fmt::format("a global scale per row of {}, expected nvfp4", format));
  }
  if (spec.asymmetric && spec.format != QuantFormat::kInt4) {
    return Support::no(fmt::format("asymmetric {}, expected int4", format));
  }
  if (const int64_t group = quant::fixed_group_cols(spec.format); group > 0 && cols % group != 0) {
    return Support::no(
        fmt::format("{} columns are not a multiple of {}'s group of {}", cols, format, group));
  }
  const int pack = pack_factor(storage_dtype(spec.format));
  if (cols % pack != 0) {
    return Support::no(
        fmt::format("{} columns are not a multiple of {}, the codes of {} that share "
                    "bytes",
                    cols, pack, format));
  }
  return Support::yes();
}

Quantized allocate_quantized(const QuantizeSpec& spec, int64_t rows, int64_t cols, Device device) {
  const Support support = quantize_supported(spec, rows, cols);
  expect(support.ok, support.reason);
  Quantized out;
  quant::for_each_tensor(spec, rows, cols,
                         [&](auto tensor, const Shape& shape, DType dtype, std::string_view) {
                           out.*tensor = Tensor::empty(shape, dtype, device);
                         });
  return out;
}

std::optional<QuantizeSpec> activation_spec(const QuantDesc& desc) {
  auto spec = common_spec(desc);
  if (spec && spec->format == QuantFormat::kNvfp4) {
    spec->global_scale_per_row = !desc.alpha_or_gscale.defined();
  }
  if (spec && has_blocks(desc)) {
    spec->group = {1, desc.shape->col};  // weights have blocks, activations have groups in a row
    spec->power_of_two_scale = desc.power_of_two_scale;
  }
  return spec;
}

std::optional<QuantizeSpec> weight_spec(const QuantDesc& desc) {
  auto spec = common_spec(desc);
  if (!spec) {
    return spec;
  }
  spec->asymmetric = desc.format == QuantFormat::kInt4 && desc.zero_point.defined();
  if (has_blocks(desc)) {
    // {0, g} is another way to write {1, g}.
    spec->group = {std::max<int64_t>(desc.shape->row, 1), desc.shape->col};
  } else if (quant::fixed_group_cols(*desc.format) == 0 && !desc.shape && desc.scale.defined() &&
             desc.scale.num_dims() > 1) {
    spec->group = GroupShape::per_token();  // scales per channel are [L, N] or [L, N, 1]
  }
  return spec;
}

}  // namespace moebius
