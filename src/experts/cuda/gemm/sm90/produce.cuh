// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The producer: the thread that keeps the stages of the grouped GEMM's kernel filled with boxes,
// and with the scales of columns.
#pragma once

#include "experts/cuda/gemm/sm90/plan.cuh"
#include "experts/cuda/gemm/sm90/shared.cuh"

namespace moebius::cuda::sm90 {

// Says where one of a tile's boxes of columns is, in the order of launch.h.  Past the last column a
// box is zeros.
template <typename Config>
struct BoxOfB {
  int at[5];

  __device__ __forceinline__ BoxOfB(const Args& args, const PlanOf<Config>& plan, int box, int k)
      : at{k, 0, 0, 0,
           plan.work.column + box * box_columns<Config>(plan.work) < args.end_column
               ? (slot_of(plan) * args.n + box_column<Config>(args, plan.work, box)) /
                     kColumnsInOrder
               : kNowhere} {}

 private:
  static constexpr int kNowhere = 1 << 30;

  // Which of b's matrices the group has.
  static __device__ __forceinline__ int slot_of(const PlanOf<Config>& plan) {
    if constexpr (Config::kDecodes) {
      return plan.slot;
    } else {
      return plan.work.group;
    }
  }
};

// The map with boxes of the width that a tile has.
template <typename Config>
__device__ __forceinline__ const CUtensorMap* map_of_b(const Args& args, const Work& work) {
  return box_columns<Config>(work) == kBoxRowsB ? &args.b : &args.b_narrow;
}

// Loads the boxes of one block of K.
template <typename Config>
__device__ __forceinline__ void load_stage(const Args& args,
                                           const Ring<Config>& ring,
                                           const PlanOf<Config>& plan,
                                           int rank,
                                           int k,
                                           uint64_t evict_first) {
  constexpr uint16_t kBoth = (1 << kClusterSize) - 1;
  const Work& work = plan.work;
  const auto box_of_b = [&](int box) { return BoxOfB<Config>(args, plan, box, k); };
  if (plan.shares_b) {
    if (plan.boxes == kTileRows / kBoxRowsA) {
      ptx::tensor_load(ring.a(), &args.a_tiles, k, work.row, ring.full());
    } else {
      for (int box = 0; box < plan.boxes; ++box) {
        ptx::tensor_load(ring.a() + box * kBoxBytesA, &args.a, k, work.row + box * kBoxRowsA,
                         ring.full());
      }
    }
    ptx::tensor_load_multicast(ring.b() + rank * kBoxBytesB, &args.b, box_of_b(rank).at,
                               ring.full(), kBoth);
  } else {
    for (int box = rank; box < plan.boxes; box += kClusterSize) {
      ptx::tensor_load_multicast(ring.a() + box * kBoxBytesA, &args.a, k,
                                 work.row + box * kBoxRowsA, ring.full(), kBoth);
    }
    const CUtensorMap* b = map_of_b<Config>(args, work);
    if (args.evicts_b) {
      ptx::tensor_load(ring.b(), b, box_of_b(0).at, ring.full(), evict_first);
      ptx::tensor_load(ring.b() + kBoxBytesB, b, box_of_b(1).at, ring.full(), evict_first);
    } else {
      ptx::tensor_load(ring.b(), b, box_of_b(0).at, ring.full());
      ptx::tensor_load(ring.b() + kBoxBytesB, b, box_of_b(1).at, ring.full());
    }
  }
}

// Fetches to L2 what a CTA first reads of b, while the kernel before ends.
template <typename Config>
__device__ __forceinline__ void prefetch_b(const Args& args, const PlanOf<Config>& plan, int rank) {
  constexpr int kBlocks = 2 * Config::kStages;
  for (int block = 0; block < min(kBlocks, num_blocks<Config>(args)); ++block) {
    for (int box = 0; box < 2; ++box) {
      if (!plan.shares_b || box == rank) {
        const BoxOfB<Config> boxes(args, plan, box, block * Config::kBlockElements);
        ptx::tensor_prefetch(map_of_b<Config>(args, plan.work), boxes.at);
      }
    }
  }
}

// Loads boxes and says what they are for, by one thread of each CTA.
template <typename Config>
__device__ __forceinline__ void fill_boxes(const Args& args,
                                           Shared<Config>& shared,
                                           Ring<Config> ring) {
  const int rank = static_cast<int>(ptx::cluster_rank());
  const int blocks = num_blocks<Config>(args);
  const uint64_t evict_first = ptx::evict_first();
  Plans<Config> plans(shared);
  PlanOf<Config> plan = plans.next();
  if (!Config::kDecodes && args.settled_groups && plan.work.num_rows > 0) {
    prefetch_b<Config>(args, plan, rank);
  }
  ptx::await_kernel_before();
  if (args.lets_next_begin) {
    ptx::let_next_begin();
  }
  for (; plan.work.num_rows > 0; plan = plans.next()) {
    if constexpr (Config::kDecodes) {
      ptx::fence_proxy_async();
    }
    if (args.a_rows != nullptr) {
      plan.boxes = 0;  // fill_copies brings rows
    }
    const int bytes = plan.boxes * kBoxBytesA + 2 * box_columns<Config>(plan.work) * kBlockBytes;
    for (int block = 0; block < blocks; ++block) {
      ring.await_empty();
      if (block == 0) {
        shared.work[ring.stage] = plan.work;
      }
      ptx::mbarrier_arrive_expect_tx(&shared.full[ring.stage], static_cast<uint32_t>(bytes));
      load_stage(args, ring, plan, rank, block * Config::kBlockElements, evict_first);
      ring.advance();
    }
  }
  ring.await_empty();
  shared.work[ring.stage].num_rows = 0;
  ptx::mbarrier_arrive(&shared.full[ring.stage]);
}

}  // namespace moebius::cuda::sm90
