// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The warp that works out which tile of the grouped GEMM a CTA is next to compute, while those that
// fill stages are at the one before.  Why one of its own: to find an item's group and tile takes a
// thread some 4600 cycles, and all stages that are full last as long.
#pragma once

#include "core/cuda/row_arrivals.cuh"
#include "experts/cuda/gemm/sm90/shared.cuh"

namespace moebius::cuda::sm90 {

__device__ __forceinline__ int num_clusters() {
  return static_cast<int>(gridDim.x) / kClusterSize;
}

// The items of a cluster, in turn: every num_clusters-th, or, with args.next_item, whichever is
// next when one is begun.  There rank 0 draws them, and tells rank 1.
template <typename Config>
class Items {
 public:
  __device__ __forceinline__ Items(const Args& args, Shared<Config>& shared)
      : args_(args),
        shared_(shared),
        cut_(shared.cuts_items),
        item_(static_cast<int>(blockIdx.x) / kClusterSize) {}

  __device__ __forceinline__ bool exists() const {
    return item_ >> cut_ < shared_.first_items[args_.num_groups];
  }

  __device__ __forceinline__ Plan plan() const {
    const int whole = item_ >> cut_;
    const int group = group_of(shared_.first_items, args_.num_groups, whole);
    const int columns = args_.end_column - args_.first_column;
    const Tile tile = half_of(GroupTiles(shared_.group_rows[group], columns)
                                  .tile(whole - shared_.first_items[group], rank_),
                              item_ & cut_);
    return {{group, shared_.group_begin[group] + tile.row, tile.num_rows,
             args_.first_column + tile.column, tile.is_small ? 1 : 0, cut_},
            tile.shares_b,
            (tile.num_rows + kBoxRowsA - 1) / kBoxRowsA};
  }

  __device__ __forceinline__ void advance() {
    if (args_.next_item == nullptr) {
      item_ += num_clusters();
      return;
    }
    if (rank_ == 0) {
      ptx::await_kernel_before();  // it may draw from the same counter
      item_ = num_clusters() + atomicAdd(args_.next_item, 1);
      ptx::mbarrier_wait_parity(&shared_.item_empty, parity_ ^ 1);
      ptx::st_async(&shared_.item, item_, &shared_.item_full, 1);
    } else {
      ptx::mbarrier_arrive_expect_tx(&shared_.item_full, sizeof(int));
      ptx::mbarrier_wait_parity(&shared_.item_full, parity_);
      item_ = shared_.item;
      ptx::mbarrier_arrive_cluster(&shared_.item_empty, 0);
    }
    parity_ ^= 1;
  }

  // Once nothing is left: the last cluster leaves the counters as it found them.
  __device__ __forceinline__ void finish() const {
    ptx::await_kernel_before();
    if (args_.next_item != nullptr && rank_ == 0 &&
        atomicAdd(args_.next_item + 1, 1) == num_clusters() - 1) {
      args_.next_item[0] = 0;
      args_.next_item[1] = 0;
    }
  }

 private:
  const Args& args_;
  Shared<Config>& shared_;
  int rank_ = static_cast<int>(ptx::cluster_rank());
  int cut_;  // 1: first_items counts pairs of items
  int item_;
  uint32_t parity_ = 0;
};

// Waits for the rows of groups, where they come in waves.  Those that copy rows are told of a tile
// by way of a barrier after that; whoever else reads of a row, as its scale, does so once they
// have.
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

// By one thread of each CTA.  An item is drawn when the one before is begun, not sooner: whoever
// draws last has least to do.
template <typename Config>
__device__ __forceinline__ void plan_tiles(const Args& args, Shared<Config>& shared) {
  Items<Config> items(args, shared);
  Arrivals arrivals(args);
  uint32_t parity = 0;
  for (; items.exists(); items.advance()) {
    shared.plan = items.plan();
    arrivals.await(shared.plan.work.group);
    ptx::mbarrier_arrive(&shared.plan_full);
    ptx::mbarrier_wait_parity(&shared.plan_empty, parity);
    parity ^= 1;
  }
  items.finish();
  shared.plan.work.num_rows = 0;
  ptx::mbarrier_arrive(&shared.plan_full);
}

// What plan_tiles() says, in turn, to a thread that fills stages.
template <typename Config>
class Plans {
 public:
  __device__ __forceinline__ explicit Plans(Shared<Config>& shared) : shared_(shared) {}

  // Nothing any more if it has no rows.
  __device__ __forceinline__ Plan next() {
    ptx::mbarrier_wait_parity(&shared_.plan_full, parity_);
    parity_ ^= 1;
    const Plan plan = shared_.plan;
    ptx::mbarrier_arrive(&shared_.plan_empty);
    return plan;
  }

 private:
  Shared<Config>& shared_;
  uint32_t parity_ = 0;
};

}  // namespace moebius::cuda::sm90
