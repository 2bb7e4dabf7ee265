// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cmath>

#include "app/bench/gpu/gemm_data.h"
#include "core/cuda/check.h"

namespace moebius::bench {

namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kBlock = 128;

__device__ __forceinline__ uint32_t mix(uint64_t seed, uint64_t i) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + i;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 16);
}

// Returns a number in [0, 1).
__device__ __forceinline__ float uniform(uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

__device__ __forceinline__ void draw(uint32_t bits, __nv_bfloat16* to) {
  *to = __float2bfloat16_rn(2.0f * uniform(bits) - 1.0f);
}
__device__ __forceinline__ void draw(uint32_t bits, uint8_t* to) {
  const uint32_t byte = bits & 0xffu;
  *to = static_cast<uint8_t>((byte & 0x7fu) == 0x7fu ? byte - 1 : byte);
}
__device__ __forceinline__ void draw(uint32_t bits, float* to) {
  *to = (1.0f + 2.0f * uniform(bits)) / 512.0f;
}

template <typename T>
__global__ void fill_kernel(T* to, int64_t count, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    draw(mix(seed, static_cast<uint64_t>(i)), to + i);
  }
}

struct CheckArgs {
  const void* a;
  const void* b;
  const float* a_scale;
  const float* b_scale;
  const void* out;
  const int32_t* offsets;
  const int32_t* counts;
  int max_rows;
  int n;
  int k;
  int columns;
  bool is_fp8;
  bool is_f32;
  double* sums;  // error^2, sum^2, unwritten
};

__device__ __forceinline__ double element(const void* p, int64_t i, bool is_fp8) {
  if (is_fp8) {
    __nv_fp8_e4m3 value;
    value.__x = static_cast<const uint8_t*>(p)[i];
    return static_cast<double>(static_cast<float>(value));
  }
  return static_cast<double>(__bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]));
}

// blockIdx.y is the group.  Each warp checks one element, a (row, column), at a time.
__global__ void check_kernel(const CheckArgs args) {
  const int group = static_cast<int>(blockIdx.y);
  const int begin = args.counts != nullptr ? group * args.max_rows : args.offsets[group];
  const int rows = args.counts != nullptr ? args.counts[group] : args.offsets[group + 1] - begin;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int blocks = (args.k + kBlock - 1) / kBlock;
  const int column_blocks = (args.n + kBlock - 1) / kBlock;
  const int64_t step = int64_t{gridDim.x} * kThreads / kWarp;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
       i < int64_t{rows} * args.columns; i += step) {
    const int64_t row = begin + i / args.columns;
    const int64_t column =
        mix(static_cast<uint64_t>(row) + 1, static_cast<uint64_t>(i % args.columns)) %
        static_cast<uint32_t>(args.n);
    double sum = 0;
    for (int k = lane; k < args.k; k += kWarp) {
      double product =
          element(args.a, row * args.k + k, args.is_fp8) *
          element(args.b, (int64_t{group} * args.n + column) * args.k + k, args.is_fp8);
      if (args.a_scale != nullptr) {
        product *= static_cast<double>(args.a_scale[row * blocks + k / kBlock]);
        product *= static_cast<double>(
            args.b_scale[(int64_t{group} * column_blocks + column / kBlock) * blocks + k / kBlock]);
      }
      sum += product;
    }
    for (int other = kWarp / 2; other > 0; other /= 2) {
      sum += __shfl_down_sync(0xffffffffu, sum, other);
    }
    if (lane == 0) {
      const int64_t at = row * args.n + column;
      const double actual = args.is_f32
                                ? static_cast<double>(static_cast<const float*>(args.out)[at])
                                : element(args.out, at, false);
      if (isnan(actual)) {
        atomicAdd(args.sums + 2, 1.0);
      } else {
        atomicAdd(args.sums, (actual - sum) * (actual - sum));
        atomicAdd(args.sums + 1, sum * sum);
      }
    }
  }
}

}  // namespace

void fill_random(const Tensor& tensor, uint64_t seed, const Stream& stream) {
  const auto native = cuda::as_stream(stream);
  constexpr int kGrid = 132 * 8;
  if (tensor.dtype() == DType::kBF16) {
    fill_kernel<<<kGrid, kThreads, 0, native>>>(static_cast<__nv_bfloat16*>(tensor.raw()),
                                                tensor.numel(), seed);
  } else if (tensor.dtype() == DType::kF32) {
    fill_kernel<<<kGrid, kThreads, 0, native>>>(static_cast<float*>(tensor.raw()), tensor.numel(),
                                                seed);
  } else {
    fill_kernel<<<kGrid, kThreads, 0, native>>>(static_cast<uint8_t*>(tensor.raw()), tensor.numel(),
                                                seed);
  }
  cuda::check_launch("fill_kernel");
}

GemmError check_products(const cuda::GroupedGemm& gemm, int columns, const Stream& stream) {
  const Tensor sums = Tensor::zeros({6}, DType::kF32, stream.device());
  CheckArgs args{};
  args.a = gemm.a.raw();
  args.b = gemm.b.raw();
  args.a_scale = static_cast<const float*>(gemm.a_scale.raw());
  args.b_scale = static_cast<const float*>(gemm.b_scale.raw());
  args.out = gemm.out.raw();
  args.offsets = static_cast<const int32_t*>(gemm.group_offsets.raw());
  args.counts = static_cast<const int32_t*>(gemm.group_counts.raw());
  args.max_rows = args.counts != nullptr ? static_cast<int>(gemm.a.dim(1)) : 0;
  args.n = static_cast<int>(gemm.b.dim(1));
  args.k = static_cast<int>(gemm.b.dim(2));
  args.columns = columns;
  args.is_fp8 = gemm.a.dtype() != DType::kBF16;
  args.is_f32 = gemm.out.dtype() == DType::kF32;
  args.sums = static_cast<double*>(sums.raw());
  const dim3 grid(64, static_cast<unsigned>(gemm.b.dim(0)));
  check_kernel<<<grid, kThreads, 0, cuda::as_stream(stream)>>>(args);
  cuda::check_launch("check_kernel");
  double host[3];
  cuda::check_cuda(
      cudaMemcpyAsync(host, sums.raw(), sizeof(host), cudaMemcpyDefault, cuda::as_stream(stream)),
      "cudaMemcpyAsync");
  stream.synchronize();
  return {std::sqrt(host[0] / host[1]), static_cast<int64_t>(host[2])};
}

}  // namespace moebius::bench
