// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// These kernels are bound by memory: a thread takes eight elements where alignment allows, and a
// row of threads takes a row.
#include <algorithm>

#include "core/cuda/device.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/ptx.cuh"
#include "experts/cuda/activation/activation.cuh"
#include "experts/cuda/activation/activation.h"
#include "experts/cuda/rows/row_groups.cuh"

namespace moebius::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

template <typename T, bool kIsPlainSilu>
__global__ void __launch_bounds__(kThreads)
    activate_vectors_kernel(const __grid_constant__ ActivationArgs a) {
  ptx::await_and_let_next(a.rows.between_gemms);
  const RowSpan span = span_rows(a.rows, static_cast<int>(blockIdx.y));
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  for (int64_t row = span.begin + int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < span.end;
       row += step) {
    const T* in = static_cast<const T*>(a.in) + row * a.in_width;
    T* out = static_cast<T*>(a.out) + row * a.width;
    for (int i = static_cast<int>(threadIdx.x) * kVector; i < a.width;
         i += static_cast<int>(blockDim.x) * kVector) {
      *reinterpret_cast<Raw8<T>*>(out + i) = activate_vector<kIsPlainSilu>(a, in, i);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    activate_elements_kernel(const __grid_constant__ ActivationArgs a) {
  ptx::await_and_let_next(a.rows.between_gemms);
  const RowSpan span = span_rows(a.rows, static_cast<int>(blockIdx.y));
  const int gate_step = a.spec.interleaved ? 2 : 1;
  const int up_offset = a.spec.interleaved ? 1 : a.width;
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  for (int64_t row = span.begin + int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < span.end;
       row += step) {
    const T* in = static_cast<const T*>(a.in) + row * a.in_width;
    T* out = static_cast<T*>(a.out) + row * a.width;
    for (int i = static_cast<int>(threadIdx.x); i < a.width; i += static_cast<int>(blockDim.x)) {
      const float gate = load1(in + i * gate_step);
      const float up = a.spec.gated ? load1(in + i * gate_step + up_offset) : 0.0f;
      store1(out + i, activate_one<T>(a.spec, gate, up));
    }
  }
}

}  // namespace

void activate(const ActivationSpec& spec,
              const RowGroups& rows,
              const Tensor& input,
              const Tensor& output,
              const Stream& on) {
  if (output.numel() == 0) {
    return;
  }
  const int index = on.device().index;
  const DeviceGuard guard(index);
  const cudaStream_t stream = as_stream(on);
  ActivationArgs a{};
  a.spec = spec;
  a.rows = rows;
  a.in = input.raw();
  a.out = output.raw();
  a.width = static_cast<int>(output.dim(1));
  a.in_width = static_cast<int>(input.dim(1));
  const bool is_vector = a.width % kVector == 0 && is_aligned(a.in, 16) && is_aligned(a.out, 16);
  const int per_row = is_vector ? a.width / kVector : a.width;
  const int across = std::clamp((per_row + kWarp - 1) / kWarp * kWarp, kWarp, kThreads);
  const dim3 threads(static_cast<unsigned>(across), static_cast<unsigned>(kThreads / across));
  const dim3 grid = span_grid(rows, output.dim(0), threads.y, num_sms(index));
  visit_float(input.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto vectors = is_plain_silu<T>(spec) ? activate_vectors_kernel<T, sizeof(T) == 2>
                                                : activate_vectors_kernel<T, false>;
    const auto kernel = is_vector ? vectors : activate_elements_kernel<T>;
    launch_early("activate_kernel", kernel, grid, threads, 0, stream, a);
  });
}

}  // namespace moebius::cuda
