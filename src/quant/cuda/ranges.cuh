// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The range of values from which a scale is computed, as the kernels of quantization find it: of
// vectors, of the lanes of a warp, and of a CTA.  The sizes of CTAs are here, too.
#pragma once

#include <cassert>
#include <cstdint>

#include "quant/cuda/elements.cuh"
#include "quant/group_rule.h"

namespace moebius::quant::device {

using cuda::Raw8;
using cuda::widen;

constexpr int kThreads = 256;
constexpr int kHeld = 4;  // vectors that a thread loads before it computes; 64 bytes of bf16
constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;

// Whether the scale depends on more than the largest |x|.
__host__ __device__ constexpr bool needs_min(Encode how) {
  return how == Encode::kU4Divide;
}

// Skips NaN.  Without has_min only range.max changes, to the largest |v|.
__device__ __forceinline__ void include(Range& range, float v, bool has_min) {
  if (has_min) {
    range.min = fminf(range.min, v);
    range.max = fmaxf(range.max, v);
  } else {
    range.max = fmaxf(range.max, fabsf(v));
  }
}

template <Encode kHow, typename T>
__device__ __forceinline__ void include(Range& range, const Raw8<T>& raw) {
  if constexpr (needs_min(kHow)) {
    float v[kVector];
    widen(raw, v);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      include(range, v[i], true);
    }
  } else {
    range.max = fmaxf(range.max, cuda::absmax(raw));
  }
}

// Reduces over neighbouring lanes of a warp, whose number is a power of two.  All get the result.
__device__ __forceinline__ Range reduced(Range range, int lanes, bool has_min) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    range.max = fmaxf(range.max, __shfl_xor_sync(kAll, range.max, step));
    if (has_min) {
      range.min = fminf(range.min, __shfl_xor_sync(kAll, range.min, step));
    }
  }
  return range;
}

// Reduces over the CTA.  REQUIRES: blockDim.x is a multiple of kWarp; a kernel calls this once.
__device__ __forceinline__ Range reduced_over_block(Range range, bool has_min) {
  constexpr int kMaxWarps = kThreads / kWarp;
  __shared__ float2 of_warp[kMaxWarps];
  const int num_warps = static_cast<int>(blockDim.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  range = reduced(range, kWarp, has_min);
  if (num_warps == 1) {
    return range;
  }
  if (lane == 0) {
    of_warp[threadIdx.x / kWarp] = {range.min, range.max};
  }
  __syncthreads();
  const int warp = lane % kMaxWarps;
  const float2 other = warp < num_warps ? of_warp[warp] : float2{0.0f, 0.0f};
  return reduced({other.x, other.y}, kMaxWarps, has_min);
}

inline unsigned grid_of(int64_t blocks) {
  assert(blocks <= 0x7fffffff);
  return static_cast<unsigned>(blocks);
}

}  // namespace moebius::quant::device
