// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The items of the kernels in this folder, and how their results are stored.  Each is a tile of
// rows of a group, kThinRows at most, times some columns, over all of K, and is one warp's.
#pragma once

#include "core/cuda/ptx.cuh"
#include "experts/cuda/gemm/gemm_plan.h"
#include "experts/cuda/rows/row_groups.h"

namespace moebius::cuda::thin {

constexpr int kWarp = 32;

// Prepares barriers at which one thread arrives, and fetches the tensor map.  One thread of a block
// calls it.
__device__ __forceinline__ void init_barriers(uint64_t* barriers, int num, const void* map) {
  ptx::prefetch_tensor_map(map);
  for (int barrier = 0; barrier < num; ++barrier) {
    ptx::mbarrier_init(barriers + barrier, 1);
  }
  ptx::fence_mbarrier_init();
  ptx::fence_proxy_async_shared();
}

// Requests weights of a warp's first item before the kernel ahead has ended, and then waits for
// that kernel, which may draw from the same counter.  Returns whether the warp has items.
template <typename Request>
__device__ __forceinline__ bool begin_items(bool has_items, bool lets_next_begin, Request request) {
  if (has_items) {
    request();
  }
  ptx::await_kernel_before();
  if (lets_next_begin) {
    ptx::let_next_begin();
  }
  return has_items;
}

constexpr int kTableTiles = 256;  // beyond them groups are searched for

struct Groups {
  int first_tile[kMaxExperts + 1];  // tiles of the groups before; [num_groups]: all
  int first_row[kMaxExperts];
  int num_rows[kMaxExperts];
  uint16_t of_tile[kTableTiles];  // the groups of the first tiles
};

// Fills the table with tiles of kRows rows, by the whole block.  Sizes are read from L2, since L1
// may have them from before they were written.
template <int kThreads, int kRows>
__device__ __forceinline__ void find_tiles(const RowGroups& rows, Groups& groups) {
  for (int g = static_cast<int>(threadIdx.x); g < rows.num_groups; g += kThreads) {
    int begin = g * static_cast<int>(rows.max_rows);
    int count = 0;
    if (rows.counts != nullptr) {
      count = max(0, min(__ldcg(rows.counts + g), static_cast<int>(rows.max_rows)));
    } else {
      begin = __ldcg(rows.offsets + g);
      count = __ldcg(rows.offsets + g + 1) - begin;
    }
    groups.first_row[g] = begin;
    groups.num_rows[g] = count;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const int lane = static_cast<int>(threadIdx.x);
    int before = 0;
    for (int first = 0; first < rows.num_groups; first += kWarp) {
      const int g = first + lane;
      const int own = g < rows.num_groups ? (groups.num_rows[g] + kRows - 1) / kRows : 0;
      int sum = own;
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
      }
      if (g < rows.num_groups) {
        const int first = before + sum - own;
        groups.first_tile[g] = first;
        for (int tile = first; tile < min(first + own, kTableTiles); ++tile) {
          groups.of_tile[tile] = static_cast<uint16_t>(g);
        }
      }
      before += __shfl_sync(0xffffffffu, sum, kWarp - 1);
    }
    if (lane == 0) {
      groups.first_tile[rows.num_groups] = before;
    }
  }
  __syncthreads();
}

struct Tile {
  int group;
  int row;  // first
  int rows;
};

__device__ __forceinline__ int find_group(const Groups& groups, int num_groups, int tile) {
  if (tile < kTableTiles) {
    return groups.of_tile[tile];
  }
  int low = 0;
  int high = num_groups;  // first_tile[low] <= tile < first_tile[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (groups.first_tile[middle] <= tile ? low : high) = middle;
  }
  return low;
}

template <int kRows>
__device__ __forceinline__ Tile find_tile(const Groups& groups, int num_groups, int tile) {
  const int g = find_group(groups, num_groups, tile);
  const int first = (tile - groups.first_tile[g]) * kRows;
  return {g, groups.first_row[g] + first, min(groups.num_rows[g] - first, kRows)};
}

// Stores eight columns of a tile's rows in a 16-bit type.  `out` is the matrix from the first
// column on.  Lane l has column l / 4 of rows 2 (l % 4) and 2 (l % 4) + 1; after the transpose, two
// columns of row l / 4.
__device__ __forceinline__ void store_eight(const Tile& tile,
                                            uint16_t* out,
                                            int width,
                                            uint32_t pair) {
  const uint32_t of_row = ptx::transpose_8x8(pair);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane / 4 < tile.rows) {
    *reinterpret_cast<uint32_t*>(out + int64_t{tile.row + lane / 4} * width + lane % 4 * 2) =
        of_row;
  }
}

// The items of a warp.  All warps begin with one each.  Where there are fewer items, they are dealt
// out evenly to the blocks, since all SMs together read faster.  A warp that is through with an
// item takes the next.
template <int kWarps>
class Items {
 public:
  // next_item: as in GroupedGemm; nullptr: warps take items by turns.
  __device__ __forceinline__ Items(int* next_item, int num) : num_(num), next_item_(next_item) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int blocks = static_cast<int>(gridDim.x);
    const int each = min(kWarps, (num + blocks - 1) / blocks);
    num_first_ = blocks * each;
    item_ = warp < each ? static_cast<int>(blockIdx.x) * each + warp : num;
  }
  __device__ __forceinline__ bool exists() const { return item_ < num_; }
  __device__ __forceinline__ int item() const { return item_; }
  // Draws the next item, once before each advance().  All lanes call these two.
  __device__ __forceinline__ void draw() {
    if (num_first_ < num_ && next_item_ != nullptr && threadIdx.x % kWarp == 0) {
      drawn_ = ptx::draw_next(next_item_);
    }
  }
  __device__ __forceinline__ void advance() {
    if (num_first_ >= num_) {
      item_ = num_;
    } else if (next_item_ == nullptr) {
      item_ += num_first_;
    } else {
      item_ = num_first_ + __shfl_sync(0xffffffffu, drawn_, 0);
    }
  }
  // Called once a warp has no more items: the last warp sets the counters to zeros again.
  __device__ __forceinline__ void finish() const {
    if (num_first_ < num_ && next_item_ != nullptr && threadIdx.x % kWarp == 0 &&
        atomicAdd(next_item_ + 1, 1) == num_first_ - 1) {
      next_item_[0] = 0;
      next_item_[1] = 0;
    }
  }

 private:
  int num_;
  int num_first_;  // the items with which warps begin
  int item_;
  int drawn_ = 0;  // of the first lane
  int* next_item_;
};

}  // namespace moebius::cuda::thin
