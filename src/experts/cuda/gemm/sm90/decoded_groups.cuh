// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Warps that decode weights (decoder.cuh) and warps that multiply tell each other by this how far
// groups are.
#pragma once

#include "core/cuda/ptx.cuh"
#include "experts/cuda/gemm/sm90/shared.cuh"

namespace moebius::cuda::sm90 {

// Lists the groups that have rows, by a whole warp.
template <typename Config>
__device__ __forceinline__ void list_used_groups(const Args& args, Shared<Config>& shared) {
  const int lane = static_cast<int>(ptx::lane());
  int before = 0;
  for (int first = 0; first < args.num_groups; first += kWarp) {
    const int g = first + lane;
    const bool is_used = g < args.num_groups && shared.group_rows[g] > 0;
    const uint32_t all = __ballot_sync(0xffffffffu, is_used);
    if (is_used) {
      const int index = before + __popc(all & ((1u << lane) - 1));
      shared.decoding.used[index] = static_cast<uint8_t>(g);
      shared.decoding.used_index[g] = static_cast<uint8_t>(index);
    }
    before += __popc(all);
  }
  if (lane == 0) {
    shared.decoding.num_used = before;
  }
}

// The number of a group's units that are decoded.
__device__ __forceinline__ int* decoded_units(const Args& args, int group) {
  return args.decode_counters + 1 + group;
}
// The number of its tiles that are multiplied, of both CTAs of each pair.
__device__ __forceinline__ int* multiplied_tiles(const Args& args, int group) {
  return args.decode_counters + 1 + args.num_groups + group;
}
// The number of items that clusters have drawn.
__device__ __forceinline__ int* drawn_items(const Args& args) {
  return args.decode_counters + 1 + 2 * args.num_groups;
}

// Called by all consumer threads once a tile is multiplied.  Why one thread counts, and why the
// count releases nothing: a warp has awaited the tile's last stage, so what boxes read of b is
// here.
__device__ __forceinline__ void count_tile(const Args& args, int group) {
  if (threadIdx.x == 0) {
    ptx::red_add_relaxed_gpu(multiplied_tiles(args, group), 1);
  }
}

}  // namespace moebius::cuda::sm90
