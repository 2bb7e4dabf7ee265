// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Logits in the order of sums that router/ref/ref.h states.  The sums of blocks of kDepthBlock do
// not depend on each other: a CTA computes a tile of logits, its warps take blocks in turn, and one
// thread per logit adds the blocks' sums in order.  What limits is loads from L1: 4 tokens and 2
// experts per lane are 6 loads for 64 multiply-adds, 2 tokens and 1 expert 3 for 16; with few
// tokens the smaller tiles keep more SMs busy. Why no tensor cores: they round sums in a way of
// their own, and rows would be routed differently from one machine to the next.
#include <algorithm>

#include "core/cuda/check.h"
#include "core/cuda/floats.cuh"
#include "core/cuda/ftz.cuh"
#include "router/cuda/kernels.h"
#include "router/ref/ref.h"

namespace moebius::router {

namespace {

constexpr int kWarp = 32;
constexpr int kLaneTokens = 4;  // lanes of a warp lie over 4 tokens and 8 experts
constexpr int kLaneExperts = 8;

// Shape of a CTA.
template <int kT, int kE, int kW>
struct Tile {
  static constexpr int kTokensPerLane = kT;
  static constexpr int kExpertsPerLane = kE;
  static constexpr int kWarps = kW;
  static constexpr int kTokens = kT * kLaneTokens;
  static constexpr int kExperts = kE * kLaneExperts;
  static constexpr int kLogits = kTokens * kExperts;
  static constexpr int kBlocks = 8192 / kLogits;  // whose sums are kept: 32 KiB of shared memory
  static_assert(kLogits <= kW * kWarp);
};
using SmallTile = Tile<2, 1, 8>;
using LargeTile = Tile<4, 2, 16>;
constexpr int64_t kLargeTileTokens = 64;  // above: LargeTile
constexpr int64_t kManyTokens = 1024;     // above: many_logits.cu

constexpr int kDepth = static_cast<int>(kDepthBlock);

// Elements [begin, begin + 8) of a row; zeros from `end` on.  kWhole: there are eight, aligned.
template <bool kWhole, typename T>
__device__ __forceinline__ void load_part(const T* row,
                                          int64_t begin,
                                          int64_t end,
                                          float (&v)[cuda::kVector]) {
  if constexpr (kWhole) {
    cuda::widen(cuda::load_raw(row + begin), v);
  } else {
#pragma unroll
    for (int i = 0; i < cuda::kVector; ++i) {
      v[i] = begin + i < end ? cuda::load1(row + begin + i) : 0.0f;
    }
  }
}

// The chains of one block of depth.
template <bool kWhole, typename X, typename W, int kT, int kE>
__device__ __forceinline__ void add_block(const X* const (&tokens)[kT],
                                          const W* const (&experts)[kE],
                                          int64_t begin,
                                          int64_t end,
                                          float (&chains)[kT][kE][2]) {
#pragma unroll
  for (int part = 0; part < kDepth; part += cuda::kVector) {
    float w[kE][cuda::kVector];
#pragma unroll
    for (int e = 0; e < kE; ++e) {
      load_part<kWhole>(experts[e], begin + part, end, w[e]);
    }
#pragma unroll
    for (int t = 0; t < kT; ++t) {
      float x[cuda::kVector];
      load_part<kWhole>(tokens[t], begin + part, end, x);
#pragma unroll
      for (int e = 0; e < kE; ++e) {
#pragma unroll
        for (int i = 0; i < cuda::kVector; ++i) {
          chains[t][e][i % 2] = cuda::fma_ftz(x[i], w[e][i], chains[t][e][i % 2]);
        }
      }
    }
  }
}

template <typename Shape, typename X, typename W>
__global__ void __launch_bounds__(Shape::kWarps* kWarp)
    logits_kernel(const __grid_constant__ LogitsArgs a, bool is_aligned) {
  constexpr int kT = Shape::kTokensPerLane;
  constexpr int kE = Shape::kExpertsPerLane;
  __shared__ float sums[Shape::kBlocks][Shape::kLogits];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t first_token = int64_t{blockIdx.x} * Shape::kTokens;
  const int64_t first_expert = int64_t{blockIdx.y} * Shape::kExperts;
  const int lane_token = lane / kLaneExperts;
  const int lane_expert = lane % kLaneExperts;
  // Rows past the end repeat the last one.
  const X* tokens[kT];
  const W* experts[kE];
#pragma unroll
  for (int t = 0; t < kT; ++t) {
    const int64_t token = min(first_token + lane_token + t * kLaneTokens, a.num_tokens - 1);
    tokens[t] = static_cast<const X*>(a.hidden) + token * a.depth;
  }
#pragma unroll
  for (int e = 0; e < kE; ++e) {
    const int64_t expert = min(first_expert + lane_expert + e * kLaneExperts, a.num_experts - 1);
    experts[e] = static_cast<const W*>(a.gate) + expert * a.depth;
  }
  const int64_t num_blocks = (a.depth + kDepth - 1) / kDepth;
  float total = 0.0f;
  for (int64_t begin = 0; begin < num_blocks; begin += Shape::kBlocks) {
    const int count = static_cast<int>(min(int64_t{Shape::kBlocks}, num_blocks - begin));
    for (int b = warp; b < count; b += Shape::kWarps) {
      float chains[kT][kE][2] = {};
      const int64_t depth_begin = (begin + b) * kDepth;
      if (is_aligned && depth_begin + kDepth <= a.depth) {
        add_block<true>(tokens, experts, depth_begin, a.depth, chains);
      } else {
        add_block<false>(tokens, experts, depth_begin, a.depth, chains);
      }
#pragma unroll
      for (int t = 0; t < kT; ++t) {
#pragma unroll
        for (int e = 0; e < kE; ++e) {
          const int token = lane_token + t * kLaneTokens;
          const int expert = lane_expert + e * kLaneExperts;
          sums[b][token * Shape::kExperts + expert] =
              cuda::add_ftz(chains[t][e][0], chains[t][e][1]);
        }
      }
    }
    __syncthreads();
    if (threadIdx.x < Shape::kLogits) {
      for (int b = 0; b < count; ++b) {
        total = cuda::add_ftz(total, sums[b][threadIdx.x]);
      }
    }
    __syncthreads();
  }
  const int64_t token = first_token + threadIdx.x / Shape::kExperts;
  const int64_t expert = first_expert + threadIdx.x % Shape::kExperts;
  if (threadIdx.x < Shape::kLogits && token < a.num_tokens && expert < a.num_experts) {
    a.out[token * a.num_experts + expert] = total + a.bias[expert];
  }
}

template <typename Shape>
void launch(const LogitsArgs& args, bool is_aligned, cudaStream_t stream) {
  const dim3 grid(
      static_cast<unsigned>((args.num_tokens + Shape::kTokens - 1) / Shape::kTokens),
      static_cast<unsigned>((args.num_experts + Shape::kExperts - 1) / Shape::kExperts));
  cuda::visit_float(args.hidden_dtype, [&](auto x) {
    cuda::visit_float(args.gate_dtype, [&](auto w) {
      logits_kernel<Shape, decltype(x), decltype(w)>
          <<<grid, Shape::kWarps * kWarp, 0, stream>>>(args, is_aligned);
    });
  });
  cuda::check_launch("logits_kernel");
}

}  // namespace

void launch_logits(const LogitsArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) {
    return;
  }
  const bool is_aligned = args.depth % cuda::kVector == 0 && cuda::is_aligned(args.hidden, 16) &&
                          cuda::is_aligned(args.gate, 16);
  const auto run = args.num_tokens > kManyTokens        ? launch_many_logits
                   : args.num_tokens > kLargeTileTokens ? launch<LargeTile>
                                                        : launch<SmallTile>;
  run(args, is_aligned, stream);
}

}  // namespace moebius::router
