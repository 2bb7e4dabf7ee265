// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/ceil_div.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "experts/cuda/gemm/dequant/norms.cuh"
#include "experts/cuda/gemm/dequant/scale_norms.h"
#include "experts/cuda/gemm/weight_values.cuh"
#include "experts/cuda/rows/largest.cuh"

namespace moebius::cuda {

namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;

// A warp takes a column.
__global__ void __launch_bounds__(kThreads)
    scale_norms_kernel(const __grid_constant__ WeightArgs w, int n, int64_t columns, float* norms) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t step = int64_t{gridDim.x} * (kThreads / kWarp);
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp; i < columns; i += step) {
    const int64_t first = scale_row(w, static_cast<int>(i / n), static_cast<int>(i % n));
    float largest = 0.0f;
    for (int j = lane; j < w.scale_cols; j += kWarp) {
      largest = fmaxf(largest, fabsf(load_float(w.scale, w.scale_dtype, first + j)));
    }
    largest = largest_of_warp(largest);
    if (lane == 0) {
      norms[i] = norm_of(largest, kNormalScale);
    }
  }
}

}  // namespace

void put_scale_norms(const WeightOperand& w, const Tensor& norms, const Stream& on) {
  constexpr int64_t kMostBlocks = 4096;
  const int64_t columns = norms.numel();
  if (columns == 0) {
    return;
  }
  const DeviceGuard guard(on.device().index);
  const auto blocks =
      static_cast<unsigned>(std::min(ceil_div(columns, int64_t{kThreads / kWarp}), kMostBlocks));
  scale_norms_kernel<<<blocks, kThreads, 0, as_stream(on.native_handle())>>>(
      weight_args(w), static_cast<int>(norms.dim(1)), columns, norms.data<float>());
  check_launch("scale_norms_kernel");
}

}  // namespace moebius::cuda
