// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Logits in the order of sums that router/ref/ref.h states.  The sums of blocks of kDepthBlock do
// not depend on each other: a CTA computes a tile of kTile x kTile logits, its warps take blocks in
// turn, and one thread per logit adds the blocks' sums in order.
// Why no tensor cores: they round sums in a way of their own, and rows would be routed differently
// from one machine to the next.
#include <algorithm>

#include "core/cuda/check.h"
#include "core/cuda/floats.cuh"
#include "core/cuda/ftz.cuh"
#include "router/cuda/kernels.h"
#include "router/ref/ref.h"

namespace moebius::router {

namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;
constexpr int kTile = 8;
constexpr int kLogits = kTile * kTile;
constexpr int kPerLane = kLogits / kWarp;
constexpr int kBlocks = 64;  // whose sums are kept in shared memory: 16 KiB
constexpr int kDepth = static_cast<int>(kDepthBlock);

__device__ __forceinline__ float load_one(const void* p, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return cuda::load1(static_cast<const float*>(p) + i);
    case DType::kBF16:
      return cuda::load1(static_cast<const BFloat16*>(p) + i);
    default:
      return cuda::load1(static_cast<const Float16*>(p) + i);
  }
}

__device__ __forceinline__ void load_eight(const void* p,
                                           DType dtype,
                                           int64_t i,
                                           float (&v)[cuda::kVector]) {
  switch (dtype) {
    case DType::kF32:
      return cuda::widen(cuda::load_raw(static_cast<const float*>(p) + i), v);
    case DType::kBF16:
      return cuda::widen(cuda::load_raw(static_cast<const BFloat16*>(p) + i), v);
    default:
      return cuda::widen(cuda::load_raw(static_cast<const Float16*>(p) + i), v);
  }
}

// Elements [begin, begin + 8) of a row; zeros from `end` on.
__device__ __forceinline__ void load_part(const void* p,
                                          DType dtype,
                                          int64_t row_begin,
                                          int64_t begin,
                                          int64_t end,
                                          bool is_aligned,
                                          float (&v)[cuda::kVector]) {
  if (is_aligned && begin + cuda::kVector <= end) {
    return load_eight(p, dtype, row_begin + begin, v);
  }
#pragma unroll
  for (int i = 0; i < cuda::kVector; ++i) {
    v[i] = begin + i < end ? load_one(p, dtype, row_begin + begin + i) : 0.0f;
  }
}

__global__ void __launch_bounds__(kWarps* kWarp)
    logits_kernel(const __grid_constant__ LogitsArgs a, bool is_aligned) {
  __shared__ float sums[kBlocks][kLogits];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t first_token = int64_t{blockIdx.x} * kTile;
  const int64_t first_expert = int64_t{blockIdx.y} * kTile;
  // Lane: one expert and kPerLane tokens.  Rows past the end repeat the last one.
  const int64_t expert = min(first_expert + lane % kTile, a.num_experts - 1);
  const int64_t num_blocks = (a.depth + kDepth - 1) / kDepth;
  float total = 0.0f;
  for (int64_t begin = 0; begin < num_blocks; begin += kBlocks) {
    const int count = static_cast<int>(min(int64_t{kBlocks}, num_blocks - begin));
    for (int b = warp; b < count; b += kWarps) {
      float chains[kPerLane][2] = {};
      const int64_t depth_begin = (begin + b) * kDepth;
#pragma unroll
      for (int part = 0; part < kDepth; part += cuda::kVector) {
        float w[cuda::kVector];
        load_part(a.gate, a.gate_dtype, expert * a.depth, depth_begin + part, a.depth, is_aligned,
                  w);
#pragma unroll
        for (int t = 0; t < kPerLane; ++t) {
          const int64_t token =
              min(first_token + lane / kTile + t * (kWarp / kTile), a.num_tokens - 1);
          float x[cuda::kVector];
          load_part(a.hidden, a.hidden_dtype, token * a.depth, depth_begin + part, a.depth,
                    is_aligned, x);
#pragma unroll
          for (int i = 0; i < cuda::kVector; ++i) {
            chains[t][i % 2] = cuda::fma_ftz(x[i], w[i], chains[t][i % 2]);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kPerLane; ++t) {
        sums[b][t * kWarp + lane] = cuda::add_ftz(chains[t][0], chains[t][1]);
      }
    }
    __syncthreads();
    if (threadIdx.x < kLogits) {
      for (int b = 0; b < count; ++b) {
        total = cuda::add_ftz(total, sums[b][threadIdx.x]);
      }
    }
    __syncthreads();
  }
  const int64_t token = first_token + threadIdx.x / kTile;
  const int64_t own_expert = first_expert + threadIdx.x % kTile;
  if (threadIdx.x < kLogits && token < a.num_tokens && own_expert < a.num_experts) {
    a.out[token * a.num_experts + own_expert] = total + a.bias[own_expert];
  }
}

}  // namespace

void launch_logits(const LogitsArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) {
    return;
  }
  const bool is_aligned = args.depth % cuda::kVector == 0 && cuda::is_aligned(args.hidden, 16) &&
                          cuda::is_aligned(args.gate, 16);
  const dim3 grid(static_cast<unsigned>((args.num_tokens + kTile - 1) / kTile),
                  static_cast<unsigned>((args.num_experts + kTile - 1) / kTile));
  logits_kernel<<<grid, kWarps * kWarp, 0, stream>>>(args, is_aligned);
  cuda::check_launch("logits_kernel");
}

}  // namespace moebius::router
