// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A warp quantizes one group of a row.  The kernel is simple because it need not be fast: rows that
// travel as fp8 blocks are cast in flight, so it serves the other formats, with a few rows per
// expert.
#include <algorithm>
#include <memory>

#include "core/allocate.h"
#include "core/cuda/check.h"
#include "core/cuda/runtime.h"
#include "quant/cuda/batched.h"
#include "quant/cuda/elements.cuh"
#include "quant/group_rule.h"
#include "quant/groups.h"

namespace moebius::quant {

namespace device {

namespace {

using cuda::load1;

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kTensorColumns = 512;  // columns that a warp takes when one scale serves all
constexpr unsigned kAll = 0xffffffffu;

struct BatchedArgs {
  QuantizeSpec spec;
  Encode how;
  bool is_per_tensor;
  const int32_t* counts;
  int64_t max_rows;
  int64_t cols;
  int64_t group_cols;
  int64_t num_groups;  // per row
  const void* x;
  const float* tensor_scale;  // the given scale; nullptr: absmax determines it, or there is none
  int num_tensor_scales;
  const float* absmax;  // [L] or nullptr
  uint8_t* codes;
  void* scale;
  bool has_f32_scale;
};

__device__ int64_t rows_of(const BatchedArgs& a, int64_t expert) {
  return max(int64_t{0}, min(int64_t{a.counts[expert]}, a.max_rows));
}

__device__ float tensor_scale_of(const BatchedArgs& a, int64_t expert) {
  if (a.tensor_scale != nullptr) {
    return a.tensor_scale[a.num_tensor_scales == 1 ? 0 : expert];
  }
  return a.absmax != nullptr ? tensor_scale(a.spec.format, a.absmax[expert]) : 0.0f;
}

template <typename T>
__device__ Range range_of(const T* x, int64_t n, int lane) {
  Range range;
  for (int64_t i = lane; i < n; i += kWarp) {
    const float v = load1(x + i);
    range.min = fminf(range.min, v);
    range.max = fmaxf(range.max, v);
  }
  for (int step = kWarp / 2; step > 0; step /= 2) {
    range.min = fminf(range.min, __shfl_xor_sync(kAll, range.min, step));
    range.max = fmaxf(range.max, __shfl_xor_sync(kAll, range.max, step));
  }
  return range;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantize_batched_kernel(const __grid_constant__ BatchedArgs a) {
  const int64_t expert = blockIdx.y;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t num_groups = rows_of(a, expert) * a.num_groups;
  const float of_tensor = tensor_scale_of(a, expert);
  const Code code = code_of(a.how);
  const int pack = pack_elements(code);
  if (a.is_per_tensor && num_groups > 0 && blockIdx.x == 0 && threadIdx.x == 0) {
    static_cast<float*>(a.scale)[expert] = of_tensor;
  }
  const int64_t step = int64_t{gridDim.x} * (kThreads / kWarp);
  for (int64_t g = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp; g < num_groups;
       g += step) {
    const int64_t row = expert * a.max_rows + g / a.num_groups;
    const int64_t col = g % a.num_groups * a.group_cols;
    const int64_t width = min(a.cols - col, a.group_cols);
    const int64_t begin = row * a.cols + col;
    const T* x = static_cast<const T*>(a.x) + begin;
    const Range range = a.is_per_tensor ? Range{} : range_of(x, width, lane);
    const GroupCode group = group_code(a.spec, range, of_tensor);
    if (lane == 0 && !a.is_per_tensor) {
      const int64_t at = row * a.num_groups + g % a.num_groups;
      if (a.has_f32_scale) {
        static_cast<float*>(a.scale)[at] = group.scale;
      } else {
        static_cast<uint8_t*>(a.scale)[at] = group.scale_code;
      }
    }
    const Factor factor = make_factor(group.factor, group.zero_point);
    for (int64_t i = lane; i < width / pack; i += kWarp) {
      uint32_t codes = 0;
      for (int j = 0; j < pack; ++j) {
        codes |= encode1(a.how, load1(x + i * pack + j), factor) << (j * code_bits(code));
      }
      uint8_t* to = a.codes + (begin / pack + i) * pack_bytes(code);
      for (int j = 0; j < pack_bytes(code); ++j) {
        to[j] = static_cast<uint8_t>(codes >> (8 * j));
      }
    }
  }
}

// absmax[e] = max(absmax[e], |x|) over the rows in use; NaN elements are skipped.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    absmax_batched_kernel(const __grid_constant__ BatchedArgs a, float* absmax) {
  const int64_t expert = blockIdx.y;
  const int64_t n = rows_of(a, expert) * a.cols;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  const T* x = static_cast<const T*>(a.x) + expert * a.max_rows * a.cols;
  float largest = 0.0f;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    largest = fmaxf(largest, fabsf(load1(x + i)));
  }
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, lanes));
  }
  if (threadIdx.x % kWarp == 0) {
    // Non-negative floats have the order of their bits.
    atomicMax(reinterpret_cast<int*>(absmax + expert), __float_as_int(largest));
  }
}

}  // namespace

}  // namespace device

void cuda_quantize_batched(const BatchedQuantize& args, const Stream& on) {
  const Tensor& x = args.x;
  const int64_t num_experts = x.dim(0);
  if (x.numel() == 0) {
    return;
  }
  const cuda::DeviceGuard guard(on);
  const cudaStream_t stream = cuda::as_stream(on);
  device::BatchedArgs a{};
  a.spec = args.spec;
  a.how = encode_of(args.spec);
  a.is_per_tensor = args.spec.group.is_per_tensor();
  a.counts = args.counts.data<int32_t>();
  a.max_rows = x.dim(1);
  a.cols = x.dim(2);
  a.group_cols = a.is_per_tensor ? device::kTensorColumns
                                 : groups_of(args.spec.group, a.max_rows, a.cols).group_cols;
  a.num_groups = ceil_div(a.cols, a.group_cols);
  a.x = x.raw();
  a.codes = static_cast<uint8_t*>(args.values.raw());
  a.scale = args.scale.raw();
  a.has_f32_scale = args.scale.dtype() == DType::kF32;
  if (args.tensor_scale) {
    a.tensor_scale = args.tensor_scale.data<float>();
    a.num_tensor_scales = static_cast<int>(args.tensor_scale.numel());
  }
  // About eight CTAs per SM in total, but no more than the rows can keep busy.
  constexpr int64_t kBlocks = 132 * 8;
  const int64_t most = ceil_div(a.max_rows * a.num_groups, device::kThreads / device::kWarp);
  const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>(kBlocks / num_experts, 1, most)),
                  static_cast<unsigned>(num_experts));
  cuda::visit_float(x.dtype(), [&](auto type) {
    using T = decltype(type);
    std::shared_ptr<void> absmax;
    if (a.is_per_tensor && a.tensor_scale == nullptr) {
      const int64_t bytes = num_experts * int64_t{sizeof(float)};
      absmax = allocate_on(bytes, on);
      cuda::fill_zero(absmax.get(), bytes, on.native_handle(), on.device().index);
      device::absmax_batched_kernel<T>
          <<<grid, device::kThreads, 0, stream>>>(a, static_cast<float*>(absmax.get()));
      cuda::check_launch("absmax_batched_kernel");
      a.absmax = static_cast<const float*>(absmax.get());
    }
    device::quantize_batched_kernel<T><<<grid, device::kThreads, 0, stream>>>(a);
    cuda::check_launch("quantize_batched_kernel");
  });
}

}  // namespace moebius::quant
