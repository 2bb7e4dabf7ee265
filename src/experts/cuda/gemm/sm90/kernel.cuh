// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The grouped GEMM of grouped_gemm.h on Hopper's tensor cores; schedule.h says which CTA does
// what.
#pragma once

#include "core/cuda/fetch_ahead.cuh"
#include "experts/cuda/gemm/sm90/consume.cuh"
#include "experts/cuda/gemm/sm90/copies.cuh"
#include "experts/cuda/gemm/sm90/decoder.cuh"
#include "experts/cuda/gemm/sm90/plan.cuh"
#include "experts/cuda/gemm/sm90/produce.cuh"
#include "experts/cuda/gemm/sm90/shared.cuh"

namespace moebius::cuda::sm90 {

// Fills the table of groups and items, by the whole CTA.  Sizes are read from L2, since L1 may have
// them from before they were written.
template <typename Config>
__device__ __forceinline__ void read_groups(const Args& args, Shared<Config>& shared) {
  bool is_large = false;
  for (int g = static_cast<int>(threadIdx.x); g < args.num_groups; g += kThreads) {
    int begin = g * args.max_rows;
    int rows = 0;
    if (args.counts != nullptr) {
      rows = max(0, min(__ldcg(args.counts + g), args.max_rows));
    } else {
      begin = __ldcg(args.offsets + g);
      rows = __ldcg(args.offsets + g + 1) - begin;
    }
    shared.group_begin[g] = begin;
    shared.group_rows[g] = rows;
    const GroupTiles tiles(rows, args.end_column - args.first_column);
    shared.first_items[g] = tiles.num_items();
    is_large = is_large || tiles.row_tiles() > 0;
  }
  const bool any_large = __syncthreads_or(is_large ? 1 : 0) != 0;
  if (threadIdx.x < kWarp) {
    const int lane = static_cast<int>(threadIdx.x);
    int before = 0;
    for (int first = 0; first < args.num_groups; first += kWarp) {
      const int g = first + lane;
      const int own = g < args.num_groups ? shared.first_items[g] : 0;
      int sum = own;
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
      }
      if (g < args.num_groups) {
        shared.first_items[g] = before + sum - own;
      }
      before += __shfl_sync(0xffffffffu, sum, kWarp - 1);
    }
    if (lane == 0) {
      shared.first_items[args.num_groups] = before;
      const bool cuts = Config::kCutsItems && args.a_rows == nullptr &&
                        cuts_items(before, any_large, num_clusters());
      shared.cuts_items = cuts ? 1 : 0;
    }
  }
  if constexpr (Config::kDecodes) {
    if (threadIdx.x / kWarp == 1) {
      list_used_groups(args, shared);
    }
  }
  __syncthreads();
}

// Grid: an even number of persistent CTAs, one per SM; pairs of them form clusters.
// Block: two consumer warpgroups (with 64 rows of a tile each, or 128 columns of a small one) and a
// third warpgroup.  Of the third, one warp fills the stages with boxes, one plans tiles, and up to
// two copy what no box brings.  The one that plans and those that copy nothing may also decode
// weights (decoder.cuh).  Registers go to the consumers, whose threads have 128 sums each, and with
// scales 64 products more.
// Pipeline: four stages of 48 KiB, or three and room for results, have one block of K each and are
// shared by tiles of all kinds.  A stage is empty when the consumer warps of both CTAs have read
// it, since both CTAs fill it.
template <typename Config>
__global__ void __cluster_dims__(kClusterSize) __launch_bounds__(kThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ Args args) {
  static_assert(kSmallRows == 2 * kBoxRowsA && kTileColumns == 2 * kBoxRowsB);
  static_assert(kConsumerWarps + 2 + kRowWarps == kThreads / kWarp, "the rest copies rows");
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<Config>*>(memory);
  if (threadIdx.x == 0) {
    if (args.a_rows == nullptr) {
      ptx::prefetch_tensor_map(&args.a);
      ptx::prefetch_tensor_map(&args.a_tiles);
    }
    ptx::prefetch_tensor_map(&args.b);
    if constexpr (Config::kStoresInBulk) {
      ptx::prefetch_tensor_map(&args.out_boxes);
    }
    for (int stage = 0; stage < Config::kStages; ++stage) {
      ptx::mbarrier_init(&shared.full[stage], Config::filling_threads(args));
      ptx::mbarrier_init(&shared.empty[stage], kClusterSize * kConsumerWarps);
    }
    if constexpr (Config::kDecodes) {
      for (auto& codes : shared.decoding.codes) {
        for (uint64_t& full : codes.full) {
          ptx::mbarrier_init(&full, 1);
        }
      }
      ptx::fence_proxy_async_shared();
    }
    ptx::mbarrier_init(&shared.plan_full, 1);
    ptx::mbarrier_init(&shared.plan_empty, Config::filling_threads(args));
    ptx::mbarrier_init(&shared.item_full, 1);
    ptx::mbarrier_init(&shared.item_empty, 1);
    ptx::fence_mbarrier_init();
  }
  if (!args.settled_groups) {
    ptx::await_kernel_before();
  }
  read_groups(args, shared);
  // pairs with the peer's arrive and wait here: its barriers are ready.
  ptx::cluster_arrive();
  ptx::cluster_wait();
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / kWarp);
  if (warp >= kConsumerWarps) {
    ptx::fewer_registers<Config::kProducerRegisters>();
    const Ring<Config> ring(shared);
    if (warp == kConsumerWarps) {
      if (ptx::elect_one()) {
        fill_boxes(args, shared, ring);
      }
    } else if (warp == kConsumerWarps + 1) {
      if constexpr (Config::kDecodes) {
        plan_and_decode(args, shared);
      } else if (ptx::elect_one()) {
        plan_tiles(args, shared);
      }
    } else if (args.a_rows != nullptr) {
      fill_copies<Config, kRowWarps>(args, shared, ring, warp - kConsumerWarps - 2);
    } else if (Config::kStagesHaveScales && warp == kConsumerWarps + 2) {
      fill_copies<Config, 1>(args, shared, ring, 0);
    } else if constexpr (Config::kDecodes) {
      decode_ahead(args, shared, warp - (kThreads / kWarp - Config::kDecoders));
    }
    __syncwarp();
  } else {
    ptx::more_registers<Config::kConsumerRegisters>();
    if (args.fetch.units > 0 && warp == 0) {
      if (ptx::elect_one()) {
        fetch_at_a_pace(args.fetch);
      }
      __syncwarp();
    }
    ptx::await_kernel_before();
    Consumer<Config>(args, shared).run();
  }
  // pairs with the peer's arrive and wait here: it writes no more to this CTA's memory.
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

}  // namespace moebius::cuda::sm90
