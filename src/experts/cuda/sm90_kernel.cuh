// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The grouped GEMM of grouped_gemm.h on Hopper's tensor cores; sm90_schedule.h says which CTA does
// what.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/cuda/floats.cuh"
#include "core/cuda/wgmma.cuh"
#include "experts/cuda/sm90_launch.h"
#include "experts/cuda/sm90_schedule.h"

namespace moebius::cuda::sm90 {

inline constexpr int kBoxBytesA = kBoxRowsA * kBlockBytes;
inline constexpr int kBoxBytesB = kBoxRowsB * kBlockBytes;
inline constexpr int kBytesA = kTileRows * kBlockBytes;
inline constexpr int kBytesB = kTileColumns * kBlockBytes;
inline constexpr int kStageBytes = kBytesA + kBytesB;
inline constexpr int kScaleBlock = 128;  // elements of K, and of N, that share a scale
inline constexpr int kWarp = 32;
inline constexpr int kWarpgroup = 128;
inline constexpr int kConsumers = 2;  // warpgroups
inline constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
inline constexpr int kConsumerWarps = kConsumers * kWarpgroup / kWarp;
inline constexpr int kClusterSize = 2;
inline constexpr int kItemSlots = 2;

template <bool kFp8, typename OutType>
struct Config {
  static constexpr bool kIsFp8 = kFp8;
  using Out = OutType;
  static constexpr int kStages = 4;
  // Of a thread: 168 at launch, 3 warpgroups.
  static constexpr int kConsumerRegisters = 224;
  static constexpr int kProducerRegisters = 56;
  static constexpr int kBlockElements = kFp8 ? kBlockBytes : kBlockBytes / 2;
};

// What a consumer has to do, from the stage on at which the producer says so.
struct Work {
  int group;
  int row;       // first row, in a and out
  int num_rows;  // 0: nothing, ever
  int column;
  int is_small;
};

// Shared memory: stages (1024-byte aligned), barriers, groups.
template <typename Config>
struct Shared {
  uint8_t stages[Config::kStages][kStageBytes];  // a, then b
  float a_scale[Config::kStages][Config::kIsFp8 ? kTileRows : 1];
  float b_scale[Config::kStages][2];  // of either half of the columns
  Work work[Config::kStages];         // of the tile whose first block a stage has
  uint64_t full[Config::kStages];     // of the bytes of a stage
  uint64_t empty[Config::kStages];    // of the consumer warps of both CTAs
  uint64_t item_full[kItemSlots];
  uint64_t item_empty[kItemSlots];  // in rank 0: of the producer of rank 1
  int items[kItemSlots];
  int first_items[kMaxGroups + 1];
  int group_begin[kMaxGroups];
  int group_rows[kMaxGroups];
};

// A place in the ring of stages; producer and consumers each go through it on their own.
template <typename Config>
struct Ring {
  Shared<Config>& shared;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint8_t* a() const { return shared.stages[stage]; }
  __device__ __forceinline__ uint8_t* b() const { return shared.stages[stage] + kBytesA; }
  __device__ __forceinline__ void advance() {
    if (++stage == Config::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void await_full() const {
    ptx::mbarrier_wait_parity(&shared.full[stage], parity);
  }
  // Of a new barrier the phase before the first counts as complete.
  __device__ __forceinline__ void await_empty() const {
    ptx::mbarrier_wait_parity(&shared.empty[stage], parity ^ 1);
  }
  // By every consumer warp once it has read the stage.  Both producers write it, by multicast.
  __device__ __forceinline__ void release(int of_stage) const {
    const unsigned lane = threadIdx.x % kWarp;
    if (lane < kClusterSize) {
      ptx::mbarrier_arrive_cluster(&shared.empty[of_stage], lane);
    }
  }
};

template <typename Config>
__device__ __forceinline__ int num_blocks(const Args& args) {
  return (args.k + Config::kBlockElements - 1) / Config::kBlockElements;
}

// Fills the table of groups; by the whole CTA.
template <typename Config>
__device__ __forceinline__ void read_groups(const Args& args, Shared<Config>& shared) {
  for (int g = static_cast<int>(threadIdx.x); g < args.num_groups; g += kThreads) {
    int begin = g * args.max_rows;
    int rows = 0;
    if (args.counts != nullptr) {
      rows = min(args.counts[g], args.max_rows);
    } else {
      begin = args.offsets[g];
      rows = args.offsets[g + 1] - begin;
    }
    shared.group_begin[g] = begin;
    shared.group_rows[g] = rows;
    shared.first_items[g] = GroupTiles(rows, args.n).num_items();
  }
  __syncthreads();
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
    }
  }
  __syncthreads();
}

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

// Where a consumer thread stands: rows and columns of D as wgmma.cuh has them.
struct Place {
  int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  int quad = static_cast<int>(threadIdx.x) % kWarp / 4;
  int lane = static_cast<int>(threadIdx.x) % 4;  // in the quad
};

template <typename T>
__device__ __forceinline__ T* out_at(const Args& args, int row, int column) {
  return static_cast<T*>(args.out) + int64_t{row} * args.n + column;
}

// sums[4 j + i] of 64 rows per warpgroup, 256 columns.
template <typename Config>
__device__ __forceinline__ void multiply_bf16(Ring<Config>& ring,
                                              int blocks,
                                              const Place& at,
                                              float (&sums)[kTileColumns / 2]) {
  int before = 0;
  for (int block = 0; block < blocks; ++block) {
    ring.await_full();
    const uint64_t a = ptx::wgmma_descriptor(ring.a() + at.warpgroup * 64 * kBlockBytes);
    const uint64_t b = ptx::wgmma_descriptor(ring.b());
    ptx::wgmma_pin(sums);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::Wgmma<kTileColumns>::bf16(sums, a + 2 * step, b + 2 * step, (block | step) != 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (block > 0) {
      ring.release(before);
    }
    before = ring.stage;
    ring.advance();
  }
  ptx::wgmma_wait<0>();
  ptx::wgmma_pin(sums);
  ring.release(before);
}

// Of f8e4m3, 128 of K at a time: the tensor core keeps fewer bits than f32 does, so its sums are
// scaled and added up here.  Two halves of the columns, one after the other, for want of registers;
// meanwhile the other warpgroup has the tensor core.
template <typename Config>
__device__ __forceinline__ void multiply_fp8(Ring<Config>& ring,
                                             int blocks,
                                             const Place& at,
                                             float (&sums)[kTileColumns / 2]) {
  const int row = at.warpgroup * 64 + at.warp * 16 + at.quad;
#pragma unroll
  for (int i = 0; i < kTileColumns / 2; ++i) {
    sums[i] = 0.0f;
  }
  for (int block = 0; block < blocks; ++block) {
    ring.await_full();
    const float low = ring.shared.a_scale[ring.stage][row];
    const float high = ring.shared.a_scale[ring.stage][row + 8];
    const float scale[2] = {ring.shared.b_scale[ring.stage][0], ring.shared.b_scale[ring.stage][1]};
    const uint64_t a = ptx::wgmma_descriptor(ring.a() + at.warpgroup * 64 * kBlockBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t b = ptx::wgmma_descriptor(ring.b() + half * kScaleBlock * kBlockBytes);
      float products[kScaleBlock / 2];
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<kScaleBlock>::e4m3(products, a + 2 * step, b + 2 * step, step != 0);
      }
      ptx::wgmma_commit();
      const float of_low = low * scale[half];
      const float of_high = high * scale[half];
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(products);
      if (half == 1) {
        ring.release(ring.stage);
      }
#pragma unroll
      for (int i = 0; i < kScaleBlock / 2; ++i) {
        float& sum = sums[half * kScaleBlock / 2 + i];
        sum = __fmaf_rn(products[i], (i & 2) == 0 ? of_low : of_high, sum);
      }
    }
    ring.advance();
  }
}

__device__ __forceinline__ void add_bias(const Args& args,
                                         const Place& at,
                                         const Work& work,
                                         float (&sums)[kTileColumns / 2]) {
  const float* bias = args.bias + int64_t{work.group} * args.n + work.column + 2 * at.lane;
#pragma unroll
  for (int j = 0; j < kTileColumns / 8; ++j) {
    if (work.column + 8 * j < args.n) {
      const float2 two = *reinterpret_cast<const float2*>(bias + 8 * j);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[4 * j + 2 * half] += two.x;
        sums[4 * j + 2 * half + 1] += two.y;
      }
    }
  }
}

// Four lanes of a row store 32 bytes in a row.
__device__ __forceinline__ void store_f32(const Args& args,
                                          const Place& at,
                                          const Work& work,
                                          const float (&sums)[kTileColumns / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = at.warpgroup * 64 + at.warp * 16 + 8 * half + at.quad;
#pragma unroll
    for (int j = 0; j < kTileColumns / 8; ++j) {
      const int column = work.column + 8 * j;
      if (row < work.num_rows && column < args.n) {
        *reinterpret_cast<float2*>(out_at<float>(args, work.row + row, column + 2 * at.lane)) = {
            sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]};
      }
    }
  }
}

// words[b] of lane l is what lane l has of block b; after it lane l has block l, in order of lanes.
__device__ __forceinline__ void transpose_in_quad(uint32_t (&words)[4], int lane) {
  const bool odd = (lane & 1) != 0;
  const bool upper = (lane & 2) != 0;
  uint32_t even_block[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t kept = odd ? words[2 * i + 1] : words[2 * i];
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? words[2 * i] : words[2 * i + 1], 1);
    words[2 * i] = odd ? got : kept;
    words[2 * i + 1] = odd ? kept : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    even_block[i] = __shfl_xor_sync(0xffffffffu, upper ? words[i] : words[2 + i], 2);
  }
  const uint32_t own[2] = {upper ? words[2] : words[0], upper ? words[3] : words[1]};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    words[i] = upper ? even_block[i] : own[i];
    words[2 + i] = upper ? own[i] : even_block[i];
  }
}

template <typename Out>
__device__ __forceinline__ void store_16_bits(const Args& args,
                                              const Place& at,
                                              const Work& work,
                                              const float (&sums)[kTileColumns / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = at.warpgroup * 64 + at.warp * 16 + 8 * half + at.quad;
    // Four lanes of a row store 64 bytes in a row.
#pragma unroll
    for (int four = 0; four < kTileColumns / 32; ++four) {
      uint32_t words[4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const int i = 4 * (4 * four + b) + 2 * half;
        words[b] = narrow_pair(Out{}, sums[i], sums[i + 1]);
      }
      transpose_in_quad(words, at.lane);
      const int column = work.column + 32 * four + 8 * at.lane;
      if (row < work.num_rows && column < args.n) {
        *reinterpret_cast<uint4*>(out_at<Out>(args, work.row + row, column)) = {words[0], words[1],
                                                                                words[2], words[3]};
      }
    }
  }
}

// A small tile: D is [columns of out, rows of out], 128 columns per warpgroup in two halves.
template <typename Config, int kRows>
__device__ __forceinline__ void small_tile(
    const Args& args, Ring<Config>& ring, int blocks, const Place& at, const Work& work) {
  using Out = typename Config::Out;
  constexpr int kSums = kRows / 2;
  float sums[2][kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    sums[0][i] = 0.0f;
    sums[1][i] = 0.0f;
  }
  for (int block = 0; block < blocks; ++block) {
    ring.await_full();
    [[maybe_unused]] float scale[kRows / 4];  // of the rows that this thread has columns of D of
    if constexpr (Config::kIsFp8) {
#pragma unroll
      for (int i = 0; i < kRows / 4; ++i) {
        scale[i] = ring.shared.a_scale[ring.stage][8 * (i / 2) + 2 * at.lane + i % 2] *
                   ring.shared.b_scale[ring.stage][at.warpgroup];
      }
    }
    const uint64_t rows = ptx::wgmma_descriptor(ring.a());
    const uint8_t* weights = ring.b() + at.warpgroup * 128 * kBlockBytes;
    if constexpr (Config::kIsFp8) {
      float products[2][kSums];
      ptx::wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint64_t columns = ptx::wgmma_descriptor(weights + half * 64 * kBlockBytes);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          ptx::Wgmma<kRows>::e4m3(products[half], columns + 2 * step, rows + 2 * step, step != 0);
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(products[0]);
      ptx::wgmma_pin(products[1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          sums[half][i] = __fmaf_rn(products[half][i], scale[i / 4 * 2 + i % 2], sums[half][i]);
        }
      }
    } else {
      ptx::wgmma_pin(sums[0]);
      ptx::wgmma_pin(sums[1]);
      ptx::wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint64_t columns = ptx::wgmma_descriptor(weights + half * 64 * kBlockBytes);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          ptx::Wgmma<kRows>::bf16(sums[half], columns + 2 * step, rows + 2 * step, true);
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(sums[0]);
      ptx::wgmma_pin(sums[1]);
    }
    ring.release(ring.stage);
    ring.advance();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const int column = work.column + at.warpgroup * 128 + half * 64 + at.warp * 16 + 8 * eight;
      const bool exists = column < args.n;
      const float bias = args.bias != nullptr && exists
                             ? args.bias[int64_t{work.group} * args.n + column + at.quad]
                             : 0.0f;
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        float two[2] = {sums[half][4 * j + 2 * eight], sums[half][4 * j + 2 * eight + 1]};
        if (args.bias != nullptr) {
          two[0] += bias;
          two[1] += bias;
        }
        if constexpr (std::is_same_v<Out, float>) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int row = 8 * j + 2 * at.lane + i;
            if (exists && row < work.num_rows) {
              *out_at<float>(args, work.row + row, column + at.quad) = two[i];
            }
          }
        } else {
          const uint32_t pair = ptx::transpose_8x8(narrow_pair(Out{}, two[0], two[1]));
          const int row = 8 * j + at.quad;
          if (exists && row < work.num_rows) {
            *reinterpret_cast<uint32_t*>(out_at<Out>(args, work.row + row, column + 2 * at.lane)) =
                pair;
          }
        }
      }
    }
  }
}

// The warps of both consumer warpgroups.
template <typename Config>
__device__ __forceinline__ void consume(const Args& args, Shared<Config>& shared) {
  Ring<Config> ring{shared};
  const Place at;
  const int blocks = num_blocks<Config>(args);
  while (true) {
    ring.await_full();
    const Work work = shared.work[ring.stage];
    if (work.num_rows == 0) {
      break;
    }
    if (work.is_small != 0) {
      if (work.num_rows <= kBoxRowsA) {
        small_tile<Config, kBoxRowsA>(args, ring, blocks, at, work);
      } else {
        small_tile<Config, kSmallRows>(args, ring, blocks, at, work);
      }
      continue;
    }
    float sums[kTileColumns / 2];
    if constexpr (Config::kIsFp8) {
      multiply_fp8(ring, blocks, at, sums);
    } else {
      multiply_bf16(ring, blocks, at, sums);
    }
    if (args.bias != nullptr) {
      add_bias(args, at, work, sums);
    }
    if constexpr (std::is_same_v<typename Config::Out, float>) {
      store_f32(args, at, work, sums);
    } else {
      store_16_bits<typename Config::Out>(args, at, work, sums);
    }
  }
}

// Grid: an even number of CTAs, pairs of which form clusters; one per SM, persistent.
// Block: two consumer warpgroups (64 rows of a tile each; 128 columns of a small one) and a
// producer, a warp of which issues all copies.  Registers go to the consumers: 128 sums each, in
// fp8 64 products more.
// Pipeline: four stages of 48 KiB, one block of K each, shared by tiles of all kinds.  A stage is
// empty when the consumer warps of both CTAs have read it, since both producers write to it.
template <typename Config>
__global__ void __cluster_dims__(kClusterSize) __launch_bounds__(kThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ Args args) {
  static_assert(kSmallRows == 2 * kBoxRowsA && kTileColumns == 2 * kBoxRowsB);
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<Config>*>(memory);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&args.a);
    ptx::prefetch_tensor_map(&args.b);
    for (int stage = 0; stage < Config::kStages; ++stage) {
      ptx::mbarrier_init(&shared.full[stage], Config::kIsFp8 ? 1 + kWarp : 1);
      ptx::mbarrier_init(&shared.empty[stage], kClusterSize * kConsumerWarps);
    }
    for (int slot = 0; slot < kItemSlots; ++slot) {
      ptx::mbarrier_init(&shared.item_full[slot], 1);
      ptx::mbarrier_init(&shared.item_empty[slot], 1);
    }
    ptx::fence_mbarrier_init();
  }
  read_groups(args, shared);
  // pairs with the peer's: its barriers are ready.
  ptx::cluster_arrive();
  ptx::cluster_wait();
  if (threadIdx.x >= kConsumers * kWarpgroup) {
    ptx::fewer_registers<Config::kProducerRegisters>();
    if (threadIdx.x < kConsumers * kWarpgroup + kWarp) {
      produce(args, shared);
    }
    __syncwarp();
  } else {
    ptx::more_registers<Config::kConsumerRegisters>();
    consume(args, shared);
  }
  // pairs with the peer's: it writes no more to this CTA's memory.
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

}  // namespace moebius::cuda::sm90
