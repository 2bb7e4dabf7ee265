// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads rows of a plain or quantized weight [L, N, K] as float.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "moebius/quantize.h"
#include "quant/e4m3_values.h"
#include "quant/group_rule.h"
#include "quant/groups.h"
#include "quant/impls.h"
#include "quant/scale_grid.h"

namespace moebius {

namespace quant {

namespace {

// Reads scales [first, first + n) of the flat tensor.  Those in e4m3 are multiplied by `factor`,
// because that format has a global scale.
void read_scales(const RowKernels& kernels,
                 const Tensor& scale,
                 int64_t first,
                 int64_t n,
                 float factor,
                 float* out) {
  const DType dtype = scale.dtype();
  if (dtype == DType::kE8M0 || dtype == DType::kF8E4M3) {
    const uint8_t* codes = scale.data<uint8_t>() + first;
    for (int64_t i = 0; i < n; ++i) {
      out[i] = dtype == DType::kE8M0 ? e8m0_to_float(codes[i]) : kE4M3Values[codes[i]] * factor;
    }
  } else {
    kernels.widen(scale.bytes() + first * bits(dtype) / 8, dtype, n, out);
  }
}

// Zero points of int4 and int8 are both u8.  An int8 code q is signed, but its zero point counts
// from -128, so that value = (q + 128 - zero_point) * scale, as for the unsigned code.
void read_zero_points(const QuantDesc& desc, int64_t first, int64_t n, float* out) {
  const float offset = desc.format == QuantFormat::kInt8 ? 128.0f : 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    out[i] = desc.zero_point.defined()
                 ? static_cast<float>(desc.zero_point.data<uint8_t>()[first + i]) - offset
                 : 8.0f - offset;
  }
}

// The checks run in every call, so messages and shapes are built only for a refusal.
void expect_global_scales(const Tensor& t,
                          int64_t num_experts,
                          int64_t columns,
                          std::string_view what) {
  if (!t.defined()) {
    return;
  }
  const bool is_per_expert = t.num_dims() == 1 && t.dim(0) == num_experts;
  const bool is_other = columns == 1
                            ? t.numel() == 1
                            : t.num_dims() == 2 && t.dim(0) == num_experts && t.dim(1) == columns;
  if (!is_per_expert && !is_other) {
    expect_shape(t, {num_experts}, what);
  }
  expect_dtype(t, DType::kF32, what);
}

void validate(const Tensor& w,
              const QuantDesc& desc,
              const WeightRows& rows,
              const Tensor& activation_gscale) {
  expect_defined(w, "weight");
  expect_eq(w.num_dims(), 3, "dimensions of a weight");
  for (const auto& [tensor, what] : {std::pair(&w, "weight"),
                                     {&desc.scale, "scale"},
                                     {&desc.zero_point, "zero points"},
                                     {&desc.alpha_or_gscale, "alpha"},
                                     {&activation_gscale, "activation global scale"}}) {
    if (*tensor && !tensor->device().is_cpu()) {
      throw Unsupported(fmt::format("{} is on {}: this build reads weights on cpu", what,
                                    to_string(tensor->device())));
    }
  }
  expect_weight_desc(desc, "weight");
  expect_ge(rows.local_expert, 0, "local expert");
  expect_le(rows.local_expert, w.dim(0) - 1, "local expert");
  expect_ge(rows.begin, 0, "row_begin");
  expect_ge(rows.end, rows.begin, "row_end");
  expect_le(rows.end, w.dim(1), "row_end");
  expect_ge(rows.gate_rows, 1, "gate_rows");
  expect_le(rows.gate_rows, w.dim(1), "gate_rows");
  if (!desc.format) {
    const DType dtype = w.dtype();
    expect(is_float(dtype), [&] {
      return fmt::format("weight is {} without a quantization format, expected f32, bf16 or f16",
                         name(dtype));
    });
    return;
  }
  expect_dtype(w, storage_dtype(*desc.format), "quantized weight");
  expect_defined(desc.scale, "scale of a quantized weight");
  const DType expected = scale_dtype(*desc.format);
  const DType actual = desc.scale.dtype();
  if (actual != expected &&
      !(expected == DType::kF32 && (actual == DType::kBF16 || actual == DType::kF16))) {
    expect_dtype(desc.scale, expected, "scale of a quantized weight");
  }
  if (desc.format == QuantFormat::kNvfp4) {
    expect_global_scales(desc.alpha_or_gscale, w.dim(0), 2, "alpha of an nvfp4 weight");
    expect_global_scales(activation_gscale, w.dim(0), 1, "activation global scale");
  }
}

}  // namespace

}  // namespace quant

void dequantize_weight_rows(const Tensor& w,
                            const QuantDesc& desc,
                            const WeightRows& rows,
                            float* out,
                            const Tensor& activation_gscale) {
  quant::validate(w, desc, rows, activation_gscale);
  const quant::RowKernels& kernels = *quant::select_quant_impl().kernels;
  const int64_t cols = w.dim(2);
  const int64_t bytes_per_row = row_bytes(w.dtype(), cols);
  const std::byte* expert = w.bytes() + rows.local_expert * w.dim(1) * bytes_per_row;
  if (!desc.format) {
    kernels.widen(expert + rows.begin * bytes_per_row, w.dtype(), (rows.end - rows.begin) * cols,
                  out);
    return;
  }

  const quant::ScaleGrid grid = quant::scale_grid(w, desc, rows.gate_rows);
  const bool has_zero_points = desc.format == QuantFormat::kInt4 || desc.zero_point.defined();
  if (desc.zero_point.defined()) {
    expect_shape(desc.zero_point, desc.scale.shape(), "zero points of a quantized weight");
    expect_dtype(desc.zero_point, DType::kU8, "zero points of a quantized weight");
  }
  std::array<float, quant::kMaxGroups> scales;
  std::array<float, quant::kMaxGroups> zero_points;
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    const float factor =
        desc.format == QuantFormat::kNvfp4
            ? quant::global_factor(desc, rows.local_expert, n >= rows.gate_rows, activation_gscale)
            : 1.0f;
    const int64_t scale_begin = grid.row_begin(rows.local_expert, n);
    const auto* codes = reinterpret_cast<const uint8_t*>(expert + n * bytes_per_row);
    for (int64_t first = 0; first < grid.num_cols; first += quant::kMaxGroups) {
      const int64_t num_groups = std::min(grid.num_cols - first, quant::kMaxGroups);
      const int64_t col = first * grid.group_cols;
      const int64_t count = std::min(cols - col, num_groups * grid.group_cols);
      quant::read_scales(kernels, desc.scale, scale_begin + first, num_groups, factor,
                         scales.data());
      if (has_zero_points) {
        quant::read_zero_points(desc, scale_begin + first, num_groups, zero_points.data());
      }
      kernels.decode({quant::code_of(*desc.format), codes + col * bits(w.dtype()) / 8, count,
                      grid.group_cols, scales.data(),
                      has_zero_points ? zero_points.data() : nullptr,
                      out + (n - rows.begin) * cols + col, DType::kF32});
    }
  }
}

}  // namespace moebius
