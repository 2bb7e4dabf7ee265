// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/gemm/weight_values.h"

#include <bit>

#include "quant/group_rule.h"
#include "quant/scale_grid.h"

namespace moebius::cuda {

WeightArgs weight_args(const WeightOperand& w) {
  WeightArgs args{};
  args.values = static_cast<const uint8_t*>(w.values.raw());
  args.dtype = w.values.dtype();
  args.row_bytes = row_bytes(w.values.dtype(), w.values.dim(2));
  const QuantDesc& desc = w.quant;
  if (!desc.format) {
    return args;
  }
  args.is_coded = true;
  args.code = quant::code_of(*desc.format);
  args.is_packed = w.is_packed;
  args.scale = desc.scale.raw();
  args.scale_dtype = desc.scale.dtype();
  // Zero points of int8 count from -128 like the unsigned code (QuantDesc::zero_point).
  args.zero_point_offset = desc.format == QuantFormat::kInt8 ? 128.0f : 0.0f;
  args.default_zero_point = desc.format == QuantFormat::kInt4 ? 8.0f : 0.0f;
  args.zero_point = desc.zero_point ? desc.zero_point.data<uint8_t>() : nullptr;
  const quant::ScaleGrid grid = quant::scale_grid(w.values, desc, w.gate_rows);
  args.group_rows = static_cast<int>(grid.group_rows);
  args.group_cols = static_cast<int>(grid.group_cols);
  args.scale_rows = static_cast<int>(grid.num_rows);
  args.scale_cols = static_cast<int>(grid.num_cols);
  args.gate_rows = static_cast<int>(grid.gate_rows);
  if (desc.format == QuantFormat::kNvfp4) {
    const Tensor& alpha = desc.alpha_or_gscale;
    args.alpha = alpha ? alpha.data<float>() : nullptr;
    args.alphas_per_group = alpha && alpha.num_dims() == 2 ? static_cast<int>(alpha.dim(1)) : 1;
    const Tensor& gscale = w.activation_gscale;
    args.activation_gscale = gscale ? gscale.data<float>() : nullptr;
    args.has_gscale_per_group = gscale && gscale.numel() > 1;
  }
  return args;
}

int scale_shift(const WeightArgs& w) {
  constexpr int kWhole = 31;
  return w.scale_cols > 1 ? std::countr_zero(static_cast<unsigned>(w.group_cols)) : kWhole;
}

RowArgs row_args(const RowOperand& a) {
  RowArgs args{};
  const auto k = a.values.shape().back();
  args.values = static_cast<const uint8_t*>(a.values.raw());
  args.dtype = a.values.dtype();
  args.scales = a.scales;
  args.scale = a.scales != RowScales::kNone ? a.scale.data<float>() : nullptr;
  args.block = static_cast<int>(a.block > 0 ? a.block : k);
  args.num_blocks = static_cast<int>((k + args.block - 1) / args.block);
  args.divides = a.divides;
  return args;
}

GemmArgs gemm_args(const ExpertGemm& gemm) {
  const WeightOperand& w = *gemm.w;
  GemmArgs args{};
  args.a = row_args(gemm.a);
  args.w = weight_args(w);
  args.bias = w.quant.bias ? w.quant.bias.data<float>() : nullptr;
  args.rows = gemm.rows;
  args.out = gemm.out.raw();
  args.out_dtype = gemm.out.dtype();
  args.n = static_cast<int>(w.values.dim(1));
  args.k = static_cast<int>(w.values.dim(2));
  return args;
}

}  // namespace moebius::cuda
