// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/cuda/check.h"
#include "quant/cuda/elements.cuh"
#include "quant/cuda/ranges.cuh"
#include "quant/cuda/tensor_scale.h"
#include "quant/groups.h"

namespace moebius::quant::device {

namespace {

using cuda::load1;
using cuda::load_raw;

// *largest = max(*largest, |x|); NaN elements are skipped.  REQUIRES: *largest is not negative.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    absmax_kernel(const T* x, int64_t n, bool is_aligned, float* largest) {
  Range range;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t num_units = is_aligned ? n / kVector : 0;
  for (int64_t unit = thread; unit < num_units; unit += kHeld * step) {
    Raw8<T> raw[kHeld] = {};
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (unit + i * step < num_units) {
        raw[i] = load_raw(x + (unit + i * step) * kVector);
      }
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      range.max = fmaxf(range.max, cuda::absmax(raw[i]));
    }
  }
  for (int64_t i = num_units * kVector + thread; i < n; i += step) {
    include(range, load1(x + i), /*has_min=*/false);
  }
  range = reduced_over_block(range, /*has_min=*/false);
  if (threadIdx.x == 0) {
    // Non-negative floats have the order of their bits.
    atomicMax(reinterpret_cast<int*>(largest), __float_as_int(range.absmax()));
  }
}

// scale[row] = the row's global scale.  A CTA takes a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    row_scales_kernel(const T* x, int64_t cols, bool is_aligned, float* scale) {
  const T* row = x + int64_t{blockIdx.x} * cols;
  Range range;
  if (is_aligned) {
    for (int64_t i = int64_t{threadIdx.x} * kVector; i < cols; i += int64_t{kThreads} * kVector) {
      range.max = fmaxf(range.max, cuda::absmax(load_raw(row + i)));
    }
  } else {
    for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
      include(range, load1(row + i), /*has_min=*/false);
    }
  }
  range = reduced_over_block(range, /*has_min=*/false);
  if (threadIdx.x == 0) {
    scale[blockIdx.x] = row_global_scale(range.absmax());
  }
}

__global__ void tensor_scale_kernel(QuantFormat format, float* absmax_to_scale) {
  *absmax_to_scale = tensor_scale(format, *absmax_to_scale);
}

void launch_row_scales(const Tensor& x, float* scale, cudaStream_t stream) {
  if (x.dim(0) == 0) {
    return;
  }
  cuda::visit_float(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool is_aligned = x.dim(1) % kVector == 0 && cuda::is_aligned(x.raw(), 16);
    row_scales_kernel<T>
        <<<grid_of(x.dim(0)), kThreads, 0, stream>>>(x.data<T>(), x.dim(1), is_aligned, scale);
    cuda::check_launch("row_scales_kernel");
  });
}

}  // namespace

void launch_tensor_scale(const Tensor& x,
                         const QuantizeSpec& spec,
                         const Tensor& given,
                         float* scale,
                         cudaStream_t stream) {
  if (spec.global_scale_per_row) {
    launch_row_scales(x, scale, stream);
    return;
  }
  if (given.defined()) {
    cuda::check_cuda(
        cudaMemcpyAsync(scale, given.raw(), sizeof(float), cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync of a scale");
    return;
  }
  cuda::check_cuda(cudaMemsetAsync(scale, 0, sizeof(float), stream), "cudaMemsetAsync of a scale");
  cuda::visit_float(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool is_aligned = cuda::is_aligned(x.raw(), 16);
    constexpr int64_t kMaxBlocks = 132 * 8;
    const int64_t blocks =
        std::min(kMaxBlocks, ceil_div(x.numel(), int64_t{kThreads} * kHeld * kVector));
    if (blocks > 0) {
      absmax_kernel<T>
          <<<grid_of(blocks), kThreads, 0, stream>>>(x.data<T>(), x.numel(), is_aligned, scale);
      cuda::check_launch("absmax_kernel");
    }
  });
  tensor_scale_kernel<<<1, 1, 0, stream>>>(spec.format, scale);
  cuda::check_launch("tensor_scale_kernel");
}

}  // namespace moebius::quant::device
