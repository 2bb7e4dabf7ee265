// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Pieces that communication kernels share: a ticket per block, and copies by a warp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cuda/ptx.cuh"

namespace moebius::comm {

inline constexpr int kWarpLanes = 32;

// Returns to all threads of a block whether it is the last of its launch to come here.  What the
// other blocks did before is then visible to it.  The counter is 0 before and after a launch, so
// launches may have different numbers of blocks.
__device__ inline bool comes_last(uint64_t* counter) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    // pairs with itself in the other blocks: what they stored before they came here.
    is_last = ptx::atom_add_acq_rel_gpu(counter, 1) + 1 == gridDim.x;
    if (is_last) {
      *counter = 0;
    }
  }
  __syncthreads();
  return is_last;
}

// One warp: makes barrier(i) ready for bulk copies, for `num` stages of its own.
template <typename Barrier>
__device__ __forceinline__ void init_stage_barriers(int num, int lane, const Barrier& barrier) {
  if (lane == 0) {
    for (int i = 0; i < num; ++i) {
      ptx::mbarrier_init(barrier(i), 1);
    }
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async_shared();
  }
  __syncwarp();
}

template <typename T>
__device__ __forceinline__ void copy_as(std::byte* to,
                                        const std::byte* from,
                                        int64_t bytes,
                                        int lane) {
  for (int64_t i = lane; i < bytes / static_cast<int64_t>(sizeof(T)); i += kWarpLanes) {
    reinterpret_cast<T*>(to)[i] = __ldg(reinterpret_cast<const T*>(from) + i);
  }
}

// A whole warp copies, in the widest words that sizes and addresses allow.
// REQUIRES: nobody writes the memory at `from` while the kernel runs.
__device__ inline void copy_plain(std::byte* to, const std::byte* from, int64_t bytes, int lane) {
  const uint64_t odd = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) |
                       static_cast<uint64_t>(bytes);
  if (odd % 16 == 0) {
    copy_as<int4>(to, from, bytes, lane);
  } else if (odd % 4 == 0) {
    copy_as<uint32_t>(to, from, bytes, lane);
  } else if (odd % 2 == 0) {
    copy_as<uint16_t>(to, from, bytes, lane);
  } else {
    copy_as<uint8_t>(to, from, bytes, lane);
  }
}

}  // namespace moebius::comm
