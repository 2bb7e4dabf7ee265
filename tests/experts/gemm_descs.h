// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// These functions describe the GEMMs for which the tests of plans choose a kernel.
#pragma once

#include <cstdint>

#include "experts/cuda/gemm/gemm_plan.h"

namespace moebius::cuda {

inline constexpr int64_t kGroups = 16;
inline constexpr int64_t kN = 1536;
inline constexpr int64_t kK = 2048;

inline CudaDeviceInfo gpu_of(int major) {
  CudaDeviceInfo gpu;
  gpu.major = major;
  return gpu;
}

// Returns weights with one scale per column where `group` is 0, else with one per so many elements
// of K.
inline WeightFacts weights_in(QuantFormat format, int64_t group = 0, DType scale = DType::kF32) {
  WeightFacts w{.num_groups = kGroups, .n = kN, .k = kK, .gate_rows = kN / 2};
  w.dtype = storage_dtype(format);
  w.format = format;
  w.shape = GroupShape{1, group > 0 ? group : -1};
  w.scale_dtype = scale;
  w.grid = {1, group > 0 ? group : kK, kN, group > 0 ? kK / group : 1, kN / 2};
  w.scale_dims = group > 0 ? 3 : 2;
  w.num_scales = kGroups * w.grid.num_rows * w.grid.num_cols;
  return w;
}

inline GemmDesc plain(DType dtype) {
  GemmDesc desc;
  desc.rows.dtype = dtype;
  desc.weights = {.num_groups = kGroups, .n = kN, .k = kK, .gate_rows = kN / 2, .dtype = dtype};
  desc.out = dtype;
  desc.keeps_f32 = dtype == DType::kF32;
  return desc;
}

inline GemmDesc coded(const WeightFacts& weights, RowFacts rows = {}) {
  GemmDesc desc;
  desc.rows = rows;
  desc.weights = weights;
  return desc;
}

inline GemmDesc fp8_blocks() {
  GemmDesc desc = coded(weights_in(QuantFormat::kFp8, 128),
                        {DType::kF8E4M3, RowScales::kPerRow, /*block=*/128});
  desc.weights.shape = GroupShape{128, 128};
  desc.weights.grid.group_rows = 128;
  desc.weights.grid.num_rows = kN / 128;
  return desc;
}

// The weights are of fp8 with a scale per column, and each row has a scale.
inline GemmDesc fp8_columns() {
  return coded(weights_in(QuantFormat::kFp8), {DType::kF8E4M3, RowScales::kPerRow, /*block=*/kK});
}

inline const RowFacts kInt8Rows{DType::kI8, RowScales::kPerRow};

inline Multiplier of(const GemmDesc& desc, int64_t rows = kManyRows, int major = 9) {
  return choose_gemm(desc, gpu_of(major), rows).multiplier;
}

}  // namespace moebius::cuda
