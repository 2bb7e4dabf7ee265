// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The warp that plans: it works out which tile of the grouped GEMM a CTA computes next, while the
// warps that fill stages are at the tile before.  Why it is a warp of its own: finding an item's
// group and tile takes a thread some 4600 cycles, and all stages that are full last only as long.
#pragma once

#include "core/cuda/row_arrivals.cuh"
#include "experts/cuda/gemm/sm90/decoded_groups.cuh"
#include "experts/cuda/gemm/sm90/shared.cuh"

namespace moebius::cuda::sm90 {

__device__ __forceinline__ int num_clusters() {
  return static_cast<int>(gridDim.x) / kClusterSize;
}

// Goes through the items of a cluster: every num_clusters-th item, or, with args.next_item,
// whichever is next when the cluster begins one.  Then rank 0 draws the items and tells rank 1.
// Where CTAs decode they draw all items, the first ones, too: they wait for tiles of others, and
// must not wait for a cluster that does not run before they end.
template <typename Config>
class Items {
 public:
  __device__ __forceinline__ Items(const Args& args, Shared<Config>& shared)
      : args_(args),
        shared_(shared),
        cut_(shared.cuts_items),
        item_(static_cast<int>(blockIdx.x) / kClusterSize) {}

  // Draws the next item where CTAs decode.  Call it where the item is used, at the head of a loop:
  // when the end of the loop drew it, ptxas of CUDA 13.0 let rank 1 use the register before the
  // load from shared memory had filled it, so that now and then it computed the item before once
  // more.
  __device__ __forceinline__ void draw() { draw(drawn_items(args_), 0); }

  __device__ __forceinline__ bool exists() const {
    return item_ >> cut_ < shared_.first_items[args_.num_groups];
  }

  __device__ __forceinline__ PlanOf<Config> plan() const {
    const int whole = item_ >> cut_;
    const int group = group_of(shared_.first_items, args_.num_groups, whole);
    const int columns = args_.end_column - args_.first_column;
    const Tile tile = half_of(GroupTiles(shared_.group_rows[group], columns)
                                  .tile(whole - shared_.first_items[group], rank_),
                              item_ & cut_);
    PlanOf<Config> plan{{group, shared_.group_begin[group] + tile.row, tile.num_rows,
                         args_.first_column + tile.column, tile.is_small ? 1 : 0, cut_},
                        tile.shares_b,
                        (tile.num_rows + kBoxRowsA - 1) / kBoxRowsA};
    if constexpr (Config::kDecodes) {
      plan.slot = shared_.decoding.used_index[group] % args_.slots;
    }
    return plan;
  }

  __device__ __forceinline__ void advance() {
    if (args_.next_item == nullptr) {
      item_ += num_clusters();
    } else {
      draw(args_.next_item, num_clusters());
    }
  }

  // Called once nothing is left: the last cluster sets the counters to zeros again.
  __device__ __forceinline__ void finish() const {
    ptx::await_kernel_before();
    if (args_.next_item != nullptr && rank_ == 0 &&
        atomicAdd(args_.next_item + 1, 1) == num_clusters() - 1) {
      args_.next_item[0] = 0;
      args_.next_item[1] = 0;
    }
  }

 private:
  // `first`: how many items are not drawn.
  __device__ __forceinline__ void draw(int* counter, int first) {
    if (rank_ == 0) {
      ptx::await_kernel_before();  // that kernel may draw from the same counter
      item_ = first + atomicAdd(counter, 1);
      ptx::mbarrier_sleep_parity(&shared_.item_empty, parity_ ^ 1);
      ptx::st_async(&shared_.item, item_, &shared_.item_full, 1);
    } else {
      ptx::mbarrier_arrive_expect_tx(&shared_.item_full, sizeof(int));
      ptx::mbarrier_sleep_parity(&shared_.item_full, parity_);
      item_ = shared_.item;
      ptx::mbarrier_arrive_cluster(&shared_.item_empty, 0);
    }
    parity_ ^= 1;
  }

  const Args& args_;
  Shared<Config>& shared_;
  int rank_ = static_cast<int>(ptx::cluster_rank());
  int cut_;  // 1: first_items counts pairs of items
  int item_;
  uint32_t parity_ = 0;
};

// Waits for the rows of groups, where they come in waves.  The threads that copy rows learn of a
// tile by a barrier after that; any other thread that reads something of a row, such as its scale,
// does so after they have copied it.
class Arrivals {
 public:
  __device__ __forceinline__ explicit Arrivals(const Args& args) : args_(args) {}

  __device__ __forceinline__ void await(int group) {
    if (args_.arrivals.words == nullptr) {
      return;
    }
    const int wave = last_wave_of(args_.arrivals, args_.first_expert + group);
    if (wave > here_) {
      await_wave(args_.arrivals, wave);
      here_ = wave;
    }
  }

 private:
  const Args& args_;
  int here_ = 0;
};

// Plans tiles, by one thread of each CTA.  An item is drawn when the one before is begun and not
// sooner, so that the cluster that draws last has the least left to do.
template <typename Config>
__device__ __forceinline__ void plan_tiles(const Args& args, Shared<Config>& shared) {
  Items<Config> items(args, shared);
  Arrivals arrivals(args);
  uint32_t parity = 0;
  for (; items.exists(); items.advance()) {
    shared.plan = items.plan();
    arrivals.await(shared.plan.work.group);
    ptx::mbarrier_arrive(&shared.plan_full);
    ptx::mbarrier_sleep_parity(&shared.plan_empty, parity);
    parity ^= 1;
  }
  items.finish();
  shared.plan.work.num_rows = 0;
  ptx::mbarrier_arrive(&shared.plan_full);
}

// Hands the plans of plan_tiles() to a thread that fills stages, one after the other.
template <typename Config>
class Plans {
 public:
  __device__ __forceinline__ explicit Plans(Shared<Config>& shared) : shared_(shared) {}

  // The next plan; it has no rows when nothing is left.
  __device__ __forceinline__ PlanOf<Config> next() {
    ptx::mbarrier_sleep_parity(&shared_.plan_full, parity_);
    parity_ ^= 1;
    const PlanOf<Config> plan = shared_.plan;
    ptx::mbarrier_arrive(&shared_.plan_empty);
    return plan;
  }

 private:
  Shared<Config>& shared_;
  uint32_t parity_ = 0;
};

}  // namespace moebius::cuda::sm90
