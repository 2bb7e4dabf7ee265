// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "experts/cuda/gemm/weight_values.cuh"
#include "experts/cuda/lora/lora.h"
#include "experts/cuda/rows/row_groups.cuh"

namespace moebius::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;

struct Args {
  RowArgs x;
  int k;
  const void* a;
  DType a_dtype;
  const void* b;
  DType b_dtype;
  const float* scaling;
  int num_groups;
  int halves;
  int rank;
  bool is_interleaved;
  int n;
  RowGroups rows;
  RowAdapters adapters;
  float* shrunk;
  const float* sums;
  void* out;
  DType out_dtype;
};

// The adapter of a row, or -1 for none.
__device__ __forceinline__ int adapter_of(const RowAdapters& adapters, int64_t row) {
  const int64_t token = adapters.token_of_row != nullptr ? adapters.token_of_row[row] : row;
  const int id = adapters.ids[token];
  return id >= 0 && id < adapters.num_adapters ? id : -1;
}

// A block takes a row, and each of its warps takes rows of A.
__global__ void __launch_bounds__(kThreads) shrink_kernel(const __grid_constant__ Args p) {
  const RowSpan span = span_rows(p.rows, static_cast<int>(blockIdx.y));
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int columns = p.halves * p.rank;
  for (int64_t row = span.begin + blockIdx.x; row < span.end; row += gridDim.x) {
    const int adapter = adapter_of(p.adapters, row);
    if (adapter < 0) {
      continue;
    }
    const int g = group_of(p.rows, row);
    const int64_t first = (int64_t{adapter} * p.num_groups + g) * columns;
    for (int j = static_cast<int>(threadIdx.x) / kWarp; j < columns; j += kWarps) {
      float sum = 0.0f;
      for (int i = lane; i < p.k; i += kWarp) {
        sum = fmaf(load_float(p.a, p.a_dtype, (first + j) * p.k + i),
                   row_value(p.x, row, g, i, p.k), sum);
      }
      for (int step = kWarp / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
      }
      if (lane == 0) {
        p.shrunk[row * columns + j] = sum;
      }
    }
  }
}

// A block takes a row, and each of its threads takes elements.
__global__ void __launch_bounds__(kThreads) expand_kernel(const __grid_constant__ Args p) {
  const RowSpan span = span_rows(p.rows, static_cast<int>(blockIdx.y));
  for (int64_t row = span.begin + blockIdx.x; row < span.end; row += gridDim.x) {
    const int adapter = p.b != nullptr ? adapter_of(p.adapters, row) : -1;
    const int g = adapter >= 0 ? group_of(p.rows, row) : 0;
    for (int n = static_cast<int>(threadIdx.x); n < p.n; n += kThreads) {
      float value = p.sums[row * p.n + n];
      if (adapter >= 0) {
        const int half = p.halves == 1 ? 0 : p.is_interleaved ? n % 2 : n / (p.n / 2);
        const float* u = p.shrunk + (row * p.halves + half) * p.rank;
        const int64_t b = ((int64_t{adapter} * p.num_groups + g) * p.n + n) * p.rank;
        float sum = 0.0f;
        for (int j = 0; j < p.rank; ++j) {
          sum = fmaf(load_float(p.b, p.b_dtype, b + j), u[j], sum);
        }
        value += p.scaling[adapter] * sum;
      }
      quant::device::store_element(p.out, p.out_dtype, row * p.n + n, value);
    }
  }
}

Args make_args(const LoraGemm& lora) {
  Args p{};
  p.num_groups = lora.rows.num_groups;
  p.halves = lora.halves;
  p.is_interleaved = lora.is_interleaved;
  p.rows = lora.rows;
  p.adapters = lora.adapters;
  if (lora.lora_b) {
    p.x = row_args(lora.a);
    p.k = static_cast<int>(lora.a.values.dim(1));
    p.a = lora.lora_a.raw();
    p.a_dtype = lora.lora_a.dtype();
    p.b = lora.lora_b.raw();
    p.b_dtype = lora.lora_b.dtype();
    p.rank = static_cast<int>(lora.lora_b.dim(3));
    p.scaling = lora.scaling.data<float>();
    p.shrunk = lora.shrunk.data<float>();
  }
  return p;
}

}  // namespace

void lora_shrink(const LoraGemm& lora, const Stream& on) {
  const int64_t room = lora.a.values.dim(0);
  if (!lora.lora_a || room == 0) {
    return;
  }
  const int index = on.device().index;
  const DeviceGuard guard(index);
  shrink_kernel<<<span_grid(lora.rows, room, 1, num_sms(index)), kThreads, 0, as_stream(on)>>>(
      make_args(lora));
  check_launch("shrink_kernel");
}

void lora_expand(const LoraGemm& lora, const Tensor& sums, const Tensor& out, const Stream& on) {
  if (out.numel() == 0) {
    return;
  }
  const int index = on.device().index;
  const DeviceGuard guard(index);
  Args p = make_args(lora);
  p.n = static_cast<int>(out.dim(1));
  p.sums = sums.data<float>();
  p.out = out.raw();
  p.out_dtype = out.dtype();
  expand_kernel<<<span_grid(lora.rows, out.dim(0), 1, num_sms(index)), kThreads, 0,
                  as_stream(on)>>>(p);
  check_launch("expand_kernel");
}

}  // namespace moebius::cuda
