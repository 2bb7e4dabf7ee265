// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The operands of an expert GEMM as kernels get them.
#pragma once

#include <cstdint>

#include "experts/cuda/gemm/expert_gemm.h"
#include "quant/row_kernels.h"

namespace moebius::cuda {

// A weight [G, N, K].
struct WeightArgs {
  const uint8_t* values;
  DType dtype;    // of plain values
  bool is_coded;  // else `code` and all below mean nothing
  quant::Code code;
  // Codes lie as packed_e2m1.cuh says, and scales of nvfp4 as packed_e4m3.cuh does.
  bool is_packed;
  int64_t row_bytes;
  const void* scale;
  DType scale_dtype;
  const uint8_t* zero_point;  // nullptr: all default_zero_point
  float zero_point_offset;    // subtracted from stored zero points
  float default_zero_point;
  // See quant::ScaleGrid.
  int group_rows;
  int group_cols;
  int scale_rows;
  int scale_cols;
  int gate_rows;
  // nvfp4: the factors of block scales.
  const float* alpha;  // [G, alphas_per_group]; nullptr: 1
  int alphas_per_group;
  const float* activation_gscale;  // [G] or [1]; nullptr: 1
  bool has_gscale_per_group;
};

// Rows [M, K].
struct RowArgs {
  const uint8_t* values;
  DType dtype;
  const float* scale;
  RowScales scales;
  int block;
  int num_blocks;
  bool divides;
};

// The arguments that every kernel of an ExpertGemm needs.
struct GemmArgs {
  RowArgs a;
  WeightArgs w;
  const float* bias;  // [G, N] or nullptr
  RowGroups rows;
  void* out;
  DType out_dtype;
  int n;
  int k;
};

WeightArgs weight_args(const WeightOperand& w);
// Returns s such that 1 << s elements of k share a scale, where they are a power of two or all.
int scale_shift(const WeightArgs& w);
RowArgs row_args(const RowOperand& a);
GemmArgs gemm_args(const ExpertGemm& gemm);

}  // namespace moebius::cuda
