// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tiles of rows of a grouped GEMM: every group is cut into tiles of its own, and blocks find out on
// the device how many there are.
#pragma once

#include "experts/cuda/rows/row_groups.cuh"

namespace moebius::cuda {

struct TileStarts {
  int before[kMaxExperts + 1];  // tiles of the groups before g; [num_groups]: all
};

// Fills `starts`, by all threads of a block of kThreads, and ends with a barrier.
// REQUIRES: it is called once per kernel.
template <int kThreads>
__device__ void find_tiles(const RowGroups& rows, int tile_rows, TileStarts& starts) {
  constexpr int kWarp = 32;
  constexpr int kWarps = kThreads / kWarp;
  constexpr int kItems = (kMaxExperts + kThreads - 1) / kThreads;  // neighbours of a thread
  __shared__ int of_warp[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const int first = thread * kItems;
  int own[kItems];
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    own[i] = 0;
    if (first + i < rows.num_groups) {
      const RowSpan span = group_rows(rows, first + i);
      own[i] = static_cast<int>((span.end - span.begin + tile_rows - 1) / tile_rows);
    }
    sum += own[i];
  }
  int before = sum;
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, step);
    before += thread % kWarp >= step ? other : 0;
  }
  if (thread % kWarp == kWarp - 1) {
    of_warp[thread / kWarp] = before;
  }
  __syncthreads();
  before -= sum;
  for (int w = 0; w < thread / kWarp; ++w) {
    before += of_warp[w];
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (first + i <= rows.num_groups) {
      starts.before[first + i] = before;
    }
    before += own[i];
  }
  // Here no thread's items reach behind the last group.
  if (thread == kThreads - 1 && rows.num_groups == kThreads * kItems) {
    starts.before[rows.num_groups] = before;
  }
  __syncthreads();
}

struct TilePlace {
  int group;
  int64_t begin;  // the tile's first row
  int64_t end;    // of the group's rows
};

// REQUIRES: tile < starts.before[num_groups].
__device__ __forceinline__ TilePlace find_tile(const RowGroups& rows,
                                               const TileStarts& starts,
                                               int tile,
                                               int tile_rows) {
  int low = 0;
  int high = rows.num_groups;  // before[low] <= tile < before[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (starts.before[middle] <= tile ? low : high) = middle;
  }
  // Of several starts that are equal, only the last group has tiles.
  const RowSpan span = group_rows(rows, low);
  return {low, span.begin + int64_t{tile - starts.before[low]} * tile_rows, span.end};
}

// Does the same with the rows of a group shared out evenly among its tiles, in eights; tiles end
// with their own rows.  REQUIRES: the number of rows that `starts` was made for is a multiple of
// eight.
__device__ __forceinline__ TilePlace find_even_tile(const RowGroups& rows,
                                                    const TileStarts& starts,
                                                    int tile) {
  TilePlace place = find_tile(rows, starts, tile, 0);  // which begins with the group
  const int first = starts.before[place.group];
  const int tiles = starts.before[place.group + 1] - first;
  const int all = static_cast<int>(place.end - place.begin);
  const int own = ((all + tiles - 1) / tiles + 7) / 8 * 8;
  place.begin += int64_t{tile - first} * own;
  place.end = min(place.begin + own, place.end);
  return place;
}

// An upper bound of starts.before[num_groups] for `room` rows.
inline int64_t most_tiles(const RowGroups& rows, int64_t room, int64_t tile_rows) {
  if (rows.offsets != nullptr) {
    return (room + tile_rows - 1) / tile_rows + rows.num_groups;
  }
  return (rows.max_rows + tile_rows - 1) / tile_rows * rows.num_groups;
}

}  // namespace moebius::cuda
