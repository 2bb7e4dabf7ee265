// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The largest of what the threads of a warp or of a block have.
#pragma once

namespace moebius::cuda {

inline constexpr int kMostWarps = 32;  // of a block

// Floats that are not negative have the order of their bits.
__device__ __forceinline__ float largest_of_warp(float own) {
  constexpr unsigned kAll = 0xffffffffu;
  return __int_as_float(__reduce_max_sync(kAll, __float_as_int(own)));
}
// All threads of the block call it.  `of_warp` may be used again after another call with other
// memory.
__device__ __forceinline__ float largest_of_block(float own, float (&of_warp)[kMostWarps]) {
  constexpr int kWarp = 32;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  own = largest_of_warp(own);
  if (lane == 0) {
    of_warp[threadIdx.x / kWarp] = own;
  }
  __syncthreads();
  return largest_of_warp(lane * kWarp < static_cast<int>(blockDim.x) ? of_warp[lane] : 0.0f);
}

}  // namespace moebius::cuda
