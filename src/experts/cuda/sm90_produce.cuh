// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The warp that keeps the stages of the grouped GEMM's kernel filled.
#pragma once

#include "experts/cuda/sm90_shared.cuh"

namespace moebius::cuda::sm90 {

// The items of a cluster, in turn: every num_clusters-th, or, with args.next_item, whichever is
// next when one is done.  There the producer of rank 0 draws them and tells everybody by way of
// slots.
template <typename Config>
class Items {
 public:
  __device__ __forceinline__ Items(const Args& args, Shared<Config>& shared)
      : args_(args), shared_(shared), item_(static_cast<int>(blockIdx.x) / kClusterSize) {}

  __device__ __forceinline__ int item() const { return item_; }
  __device__ __forceinline__ bool exists() const {
    return item_ < shared_.first_items[args_.num_groups];
  }

  // By rank 1.
  __device__ __forceinline__ void advance() {
    if (args_.next_item == nullptr) {
      item_ += num_clusters();
      return;
    }
    if (is_leader()) {
      ptx::mbarrier_arrive_expect_tx(&shared_.item_full[slot_], sizeof(int));
    }
    ptx::mbarrier_wait_parity(&shared_.item_full[slot_], parity_);
    item_ = shared_.items[slot_];
    __syncwarp();
    if (is_leader()) {
      ptx::mbarrier_arrive_cluster(&shared_.item_empty[slot_], 0);
    }
    next_slot();
  }

  // By rank 0: early in an item, late in it, and at its end.
  __device__ __forceinline__ void draw() {
    drawn_ = item_ + num_clusters();
    if (args_.next_item != nullptr && is_leader()) {
      drawn_ = num_clusters() + atomicAdd(args_.next_item, 1);
    }
  }
  __device__ __forceinline__ void tell() {
    if (args_.next_item == nullptr) {
      return;
    }
    ptx::mbarrier_wait_parity(&shared_.item_empty[slot_], parity_ ^ 1);
    if (is_leader()) {
      ptx::st_async(&shared_.items[slot_], drawn_, &shared_.item_full[slot_], 1);
    }
    next_slot();
  }
  __device__ __forceinline__ void take_drawn() { item_ = __shfl_sync(0xffffffffu, drawn_, 0); }

  // By the same once nothing is left: the last cluster leaves the counters as it found them.
  __device__ __forceinline__ void finish() const {
    if (args_.next_item != nullptr && is_leader() &&
        atomicAdd(args_.next_item + 1, 1) == num_clusters() - 1) {
      args_.next_item[0] = 0;
      args_.next_item[1] = 0;
    }
  }

 private:
  static __device__ __forceinline__ int num_clusters() {
    return static_cast<int>(gridDim.x) / kClusterSize;
  }
  static __device__ __forceinline__ bool is_leader() { return threadIdx.x % kWarp == 0; }
  __device__ __forceinline__ void next_slot() {
    if (++slot_ == kItemSlots) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }

  const Args& args_;
  Shared<Config>& shared_;
  int item_;
  int drawn_ = 0;
  int slot_ = 0;
  uint32_t parity_ = 0;
};

// Scales of the rows of a tile, and of its two times 128 columns, for one block of K.
template <typename Config>
__device__ __forceinline__ void copy_scales(const Args& args,
                                            Shared<Config>& shared,
                                            const Ring<Config>& ring,
                                            const Work& work,
                                            int boxes,
                                            int block,
                                            int blocks) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int row = lane; row < boxes * kBoxRowsA; row += kWarp) {
    const int64_t from = min(work.row + row, args.num_rows - 1);
    ptx::copy_async_4(&shared.a_scale[ring.stage][row], args.a_scale + from * blocks + block);
  }
  if (lane < 2) {
    const int columns = (args.n + kScaleBlock - 1) / kScaleBlock;
    const int64_t column = min(work.column / kScaleBlock + lane, columns - 1);
    ptx::copy_async_4(&shared.b_scale[ring.stage][lane],
                      args.b_scale + (int64_t{work.group} * columns + column) * blocks + block);
  }
  ptx::mbarrier_arrive_after_copies(&shared.full[ring.stage]);
}

// The boxes of one block of K.
template <typename Config>
__device__ __forceinline__ void load_stage(const Args& args,
                                           const Ring<Config>& ring,
                                           const Work& work,
                                           bool shares_b,
                                           int rank,
                                           int boxes,
                                           int k,
                                           uint64_t* full) {
  constexpr uint16_t kBoth = (1 << kClusterSize) - 1;
  if (shares_b) {
    for (int box = 0; box < boxes; ++box) {
      ptx::tensor_load(ring.a() + box * kBoxBytesA, &args.a, k, work.row + box * kBoxRowsA, full);
    }
    ptx::tensor_load_multicast(ring.b() + rank * kBoxBytesB, &args.b, k,
                               work.column + rank * kBoxRowsB, work.group, full, kBoth);
  } else {
    for (int box = rank; box < boxes; box += kClusterSize) {
      ptx::tensor_load_multicast(ring.a() + box * kBoxBytesA, &args.a, k,
                                 work.row + box * kBoxRowsA, full, kBoth);
    }
    ptx::tensor_load(ring.b(), &args.b, k, work.column, work.group, full);
    ptx::tensor_load(ring.b() + kBoxBytesB, &args.b, k, work.column + kBoxRowsB, work.group, full);
  }
}

// One warp of each CTA: keeps the stages filled, and says what they are for.
template <typename Config>
__device__ __forceinline__ void produce(const Args& args, Shared<Config>& shared) {
  Ring<Config> ring{shared};
  const bool is_leader = threadIdx.x % kWarp == 0;
  const int rank = static_cast<int>(ptx::cluster_rank());
  const int blocks = num_blocks<Config>(args);
  // Late enough to balance, early enough that nobody waits.
  const int tell_at = max(blocks - Config::kStages, 0);
  Items<Config> items(args, shared);
  while (items.exists()) {
    const int group = group_of(shared.first_items, args.num_groups, items.item());
    const Tile tile = GroupTiles(shared.group_rows[group], args.n)
                          .tile(items.item() - shared.first_items[group], rank);
    const Work work{group, shared.group_begin[group] + tile.row, tile.num_rows, tile.column,
                    tile.is_small ? 1 : 0};
    const int boxes = (tile.num_rows + kBoxRowsA - 1) / kBoxRowsA;
    if (rank == 0) {
      items.draw();
    }
    for (int block = 0; block < blocks; ++block) {
      if (rank == 0 && block == tell_at) {
        items.tell();
      }
      ring.await_empty();
      uint64_t* full = &shared.full[ring.stage];
      if (is_leader) {
        if (block == 0) {
          shared.work[ring.stage] = work;
        }
        ptx::mbarrier_arrive_expect_tx(full, static_cast<uint32_t>(boxes * kBoxBytesA + kBytesB));
        load_stage(args, ring, work, tile.shares_b, rank, boxes, block * Config::kBlockElements,
                   full);
      }
      if constexpr (Config::kIsFp8) {
        __syncwarp();
        copy_scales(args, shared, ring, work, boxes, block, blocks);
      }
      ring.advance();
    }
    if (rank == 0) {
      items.take_drawn();
    } else {
      items.advance();
    }
  }
  if (rank == 0) {
    items.finish();
  }
  ring.await_empty();
  if (is_leader) {
    shared.work[ring.stage].num_rows = 0;
    ptx::mbarrier_arrive(&shared.full[ring.stage]);
  }
  if constexpr (Config::kIsFp8) {
    ptx::mbarrier_arrive(&shared.full[ring.stage]);
  }
}

}  // namespace moebius::cuda::sm90
